//! From a finding to a deed: what the step depends on, the deed that it is, and how that ended, told to people.

use super::cases::Case;
use super::eyes::Eyes;
use super::{Setting, Trouble, questions};
use crate::act::look::Look;
use crate::act::{self, Desk, Doubt, Ending, Terminate};
use crate::config::Config;
use crate::ledger::Ledger;
use crate::model::*;
use crate::policy::cap::Cap;
use crate::policy::judge;
use crate::policy::slot::Slot;
use crate::policy::stage::{Circumstances, Step};
use crate::reading::Reading;
use crate::units::BootMs;

impl Case {
    pub(super) fn circumstances(
        &self,
        setting: &Setting,
        run: RunId,
        previous: Option<BootMs>,
        ledger: &Ledger,
    ) -> Result<Circumstances<'_>, Trouble> {
        let (config, node) = (setting.config, &setting.place.node);
        let spread_ms = config.limits.spread.as_millis() as i64;
        let cadence = self.cadence.measured().copied();
        let slot =
            Slot::of_deed(node, self.job().registration.job, spread_ms, cadence, &self.history.actions);
        let open = slot.is_open(previous, setting.now.boot);
        Ok(Circumstances {
            permit: config.mode().permit(&config.enforce_in, self.job(), node),
            run,
            now: setting.now.boot,
            job: self.job(),
            actions: &self.history.actions,
            node_units: self.history.node_units,
            nodes: questions::nodes_of(self.job(), node),
            wait_ms: if open { 0 } else { slot.next_in_ms(setting.now.boot) },
            held_by: held_by(setting, ledger)?,
            backing_off: backing_off(setting, self.job(), ledger)?,
        })
    }

    /// Drain, vote, warn or cancel.
    pub(super) fn perform(
        &mut self,
        setting: &Setting,
        run: RunId,
        finding: i64,
        step: Step,
        eyes: &mut dyn Eyes,
        ledger: &mut Ledger,
    ) -> Result<(), Trouble> {
        let (job, config) = (self.job().clone(), setting.config);
        let mut gpus = || eyes.gpus();
        let mut look = look(setting, &mut gpus);
        let mut desk = Desk { ledger, slurm: setting.slurm, now: setting.now, run, finding };
        let terminate = if config.act.requeue { Terminate::Requeue } else { Terminate::Cancel };
        let signal = config.rules.warn.map_or("USR1", |warn| warn.signal);
        let (asked, ending) = match step {
            Step::Drain(warrant) => (Deed::Drain, act::drain(warrant, &job, &mut look, &mut desk)?),
            Step::Vote(warrant) => (Deed::Vote, act::vote(warrant, &job, &mut look, &mut desk)?),
            Step::Warn(all) => (Deed::Warn, act::warn(all, signal, &job, &mut look, &mut desk)?),
            Step::Cancel(all) => act::cancel(all, terminate, &job, &mut look, &mut desk)?,
            Step::Unclear | Step::Rest | Step::Later { .. } | Step::Alert | Step::Withheld { .. } => {
                return Ok(());
            }
        };
        match ending {
            Ending::Withheld(Doubt { guard, because, of_limit }) => {
                // A vote is due for as long as the job hangs, on every node of it.
                if of_limit || asked == Deed::Vote {
                    ledger.unanswered(&back_off(&job, asked), setting.now)?;
                }
                self.withhold(setting, run, (asked, false), guard, &because, ledger)
            }
            Ending::Ended(outcome, words) => {
                self.tell_done(setting, finding, (asked, outcome, &words), ledger);
                self.tell_deed(setting, asked, outcome, &words, ledger)
            }
        }
    }

    fn tell_deed(
        &mut self,
        setting: &Setting,
        asked: Deed,
        outcome: Outcome,
        words: &str,
        ledger: &mut Ledger,
    ) -> Result<(), Trouble> {
        let (job, asked_word) = (self.job().shown_id(), asked.word());
        let how = outcome.word();
        let (raw, partition) = (self.raw_id(), self.partition());
        let before = self.history.actions.iter().rfind(|a| a.deed == asked);
        // What Slurm refuses is tried again, and told again only where the refusal is another.
        if before.is_some_and(|a| a.outcome == outcome && a.detail == words) {
            tracing::info!(
                job = raw,
                shown = job,
                partition,
                verdict = asked_word,
                outcome = how,
                "job {job}: {asked_word} {how} again: {words}"
            );
        } else {
            tracing::warn!(
                job = raw,
                shown = job,
                partition,
                verdict = asked_word,
                outcome = how,
                "job {job}: {asked_word} {how}: {words}"
            );
        }
        match outcome {
            Outcome::Failed => ledger.unanswered(&back_off(self.job(), asked), setting.now)?,
            Outcome::Done if matches!(asked, Deed::Cancel | Deed::Requeue) => {
                let details = questions::over(self.job(), JobState::Completing);
                ledger.set_details(self.job().id, &details)?;
                self.history.job.details = Some(details);
                self.assessment = judge(&self.history, &setting.config.rules, self.cadence, setting.now);
            }
            // The next doubt is the first one again.
            Outcome::Done => ledger.forget_answer(&back_off(self.job(), asked))?,
            _ => {}
        }
        Ok(())
    }
}

/// Finds out how earlier deeds ended whose outcome is not known, also of jobs that have gone meanwhile: by looking,
/// never by repeating, and ever more rarely while Slurm does not say.
pub(super) fn settle_earlier(setting: &Setting, run: RunId, ledger: &mut Ledger) -> Result<(), Trouble> {
    for unsettled in ledger.unsettled_actions()? {
        let action = &unsettled.action;
        if action.deed == Deed::Alert {
            // What was not told whole is told anew.
            ledger.end_action(action.id, Outcome::Failed, "its run was killed", false)?;
            continue;
        }
        if action.deed == Deed::Warn {
            // Nothing shows whether it arrived; the ladder stands still for that job run.
            continue;
        }
        let subject = format!("outcome {}", action.id);
        if !setting.may_ask() || !ledger.ask_allowed(&subject, setting.now)? {
            continue;
        }
        let mut desk = Desk { ledger, slurm: setting.slurm, now: setting.now, run, finding: 0 };
        let deed = action.deed.word();
        match act::reconcile(&unsettled, &mut desk)? {
            Some(outcome) => {
                let outcome = outcome.word();
                let job = unsettled.job.get();
                tracing::warn!(
                    job,
                    verdict = deed,
                    outcome,
                    "job {job}: the earlier {deed} is {outcome}, by looking"
                );
            }
            None => ledger.unanswered(&subject, setting.now)?,
        }
    }
    Ok(())
}

/// Where a refused deed is kept, so that it is not asked for again every run.
pub(super) fn back_off(job: &JobRun, asked: Deed) -> String {
    format!("{} {}", asked.word(), job.id.0)
}

/// The look before a deed, by this configuration.
pub(super) fn look<'a>(setting: &Setting<'a>, gpus: &'a mut dyn FnMut() -> Reading<GpuReport>) -> Look<'a> {
    let (config, limits) = (setting.config, &setting.config.limits);
    Look {
        rules: &config.rules,
        cap: Cap { fraction: limits.max_drained_fraction, most: limits.max_drained_nodes },
        gpus,
        admin_comment: config.act.admin_comment,
        notify_job: config.act.notify_job,
        in_epilog: false,
    }
}

/// A ledger that was begun just now cannot know what was done before; in words, until it is old enough.
pub fn too_new(config: &Config, ledger: &Ledger, now: &Now) -> Option<String> {
    let thresholds = &config.rules.thresholds;
    let hold_ms = thresholds.window_ms.max(thresholds.warmup_ms);
    // No figure that changes: it would be told anew in every run.
    ledger.age_ms(now).filter(|age| *age < hold_ms).map(|_| {
        let hold = crate::units::human_ms(hold_ms);
        format!("the ledger is new: nothing is done before it is {hold} old")
    })
}

/// Whatever about this run, node or site forbids a deed that time has made due.
pub(super) fn held_by(setting: &Setting, ledger: &Ledger) -> Result<Option<String>, Trouble> {
    let config = setting.config;
    if let Some(new) = too_new(config, ledger, setting.now) {
        return Ok(Some(new));
    }
    if setting.fresh_slurmd() {
        return Ok(Some("slurmd has just started: this run only samples".to_owned()));
    }
    if !setting.may_act() {
        return Ok(Some("too little of this run's time is left".to_owned()));
    }
    let most = config.limits.max_actions_per_hour;
    if ledger.actions_in_last_hour(setting.now)? >= most {
        return Ok(Some(format!("`limits.max_actions_per_hour` is {most}, and they are done")));
    }
    Ok(None)
}

fn backing_off(setting: &Setting, job: &JobRun, ledger: &Ledger) -> Result<Vec<Deed>, Trouble> {
    let mut waits = Vec::new();
    for deed in [Deed::Drain, Deed::Vote, Deed::Warn, Deed::Cancel, Deed::Requeue] {
        if !ledger.ask_allowed(&back_off(job, deed), setting.now)? {
            waits.push(deed);
        }
    }
    Ok(waits)
}

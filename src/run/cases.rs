//! One job run in this run: judged, its finding recorded, one step taken, and the line that tells people.

use super::eyes::Eyes;
use super::snapshot::Snapshot;
use super::{Setting, Trouble, questions};
use crate::act::look::Look;
use crate::act::{self, Desk, Doubt, Ending, Terminate};
use crate::explain::{self, Asked};
use crate::ledger::{self, Closing, FindingRow, JobAsked, Ledger, NewAction, NewFinding, OpenDrain, Reach};
use crate::lock::RunLock;
use crate::model::*;
use crate::policy::cap::Cap;
use crate::policy::nodes::Nodes;
use crate::policy::slot::Slot;
use crate::policy::stage::{self, Circumstances, Step};
use crate::policy::{self, Assessment, Finding, Guard, Judgement, Rules, Signature, judge};
use crate::reading::{Absence, Reading};
use crate::units::{BootMs, NodeName};
use std::collections::BTreeSet;

/// Slurm's own limit for one list.
const MOST_NODES: usize = 64 << 10;

/// A job run with its history and judgement.
pub struct Case {
    /// What replay gave.
    pub history: JobHistory,
    /// What was judged of it.
    pub assessment: Assessment,
    cadence: Reading<Cadence>,
    /// This node shows that the job still lives.
    lives: bool,
}

/// Replays and judges every registered job that holds GPUs here; gives our standing drains with them.
pub fn open(
    setting: &Setting,
    snapshot: &Snapshot,
    ledger: &mut Ledger,
) -> Result<(Vec<Case>, Vec<OpenDrain>), Trouble> {
    let (rules, boot, cadence) = (&setting.config.rules, &setting.now.boot_id, snapshot.cadence);
    let holding = snapshot.jobs.iter().filter(|j| !j.registration.gpus.is_empty());
    let mut enough = |seen: &Observation| policy::settles(seen, &rules.thresholds);
    let (histories, mut open, drains) = ledger.together(|ledger| {
        let open = ledger.open_findings()?;
        let asked = holding.map(|run| JobAsked {
            units: snapshot.held.get(&run.id).cloned().unwrap_or(Reading::Absent(Absence::NotRecorded)),
            reach: reach(rules, cadence, open.iter().find(|row| row.job_run == run.id)),
            run: run.clone(),
        });
        let histories = ledger.replay(boot, asked.collect(), snapshot.node_units, &mut enough, false)?;
        Ok((histories, open, ledger.open_drains(setting.now)?))
    })?;
    let judged = histories.into_iter().map(|mut history| {
        let at = open.iter().position(|row| row.job_run == history.job.id);
        history.open_finding = at.map(|at| open.swap_remove(at).into());
        let assessment = judge(&history, rules, cadence, setting.now);
        let lives = snapshot.lives(&history.job);
        Case { history, assessment, cadence, lives }
    });
    let mut cases: Vec<Case> = judged.collect();
    if cases.iter().any(|c| c.finding().is_some()) {
        // An Epilog may have cleared a run since the snapshot: nothing is recorded or done for it.
        let still = ledger.open_runs(boot)?;
        cases.retain(|c| still.iter().any(|j| j.id == c.history.job.id));
    }
    Ok((cases, drains))
}

/// How far back a job's history must reach: where a breach without any compute stands open, no further than the last
/// stage asks, and two windows. Beyond that every stage is due, and since when it stands is in the finding's own row.
fn reach(rules: &Rules, cadence: Reading<Cadence>, open: Option<&FindingRow>) -> Option<Reach> {
    const AT_ZERO: [Signature; 2] = [Signature::Idle, Signature::Hung];
    let limits = policy::window::limits(&rules.thresholds, *cadence.measured()?);
    let last_ms = rules.stages.iter().map(|stage| stage.after_ms).max()?;
    let zero = open.is_some_and(|row| AT_ZERO.iter().any(|s| s.word() == row.signature));
    zero.then_some(Reach { time_ms: last_ms + 2 * limits.window_ms, gap_ms: limits.gap_ms })
}

impl Case {
    fn job(&self) -> &JobRun {
        &self.history.job
    }

    /// The finding, where there is one.
    pub fn finding(&self) -> Option<&Finding> {
        match &self.assessment.judgement {
            Judgement::Breaching(finding) => Some(finding),
            _ => None,
        }
    }

    /// Records the finding, takes one step for it, and tells people what changed.
    pub fn settle(
        &mut self,
        setting: &Setting,
        run: RunId,
        (snapshot, eyes): (&Snapshot, &mut dyn Eyes),
        ledger: &mut Ledger,
        lock: &mut RunLock,
    ) -> Result<(), Trouble> {
        self.ask(setting, ledger)?;
        self.call_witness(setting, run, (snapshot, eyes), ledger)?;
        let Some(finding) = self.finding().cloned() else {
            return self.close_finding(setting, run, ledger);
        };
        let row = self.record(setting, run, &finding, ledger)?;
        let circumstances = self.circumstances(setting, run, ledger)?;
        match stage::escalate(&finding, &setting.config.rules, circumstances) {
            Step::Rest | Step::Later { .. } => {}
            Step::Alert => self.alert(setting, run, row, &finding, ledger)?,
            Step::Withheld { asked, guard, because } => {
                self.withhold(setting, run, asked.into(), guard, &because, ledger)?
            }
            step => {
                lock.phase("act");
                self.perform(setting, run, row, step, eyes, ledger)?;
                lock.phase("judge");
            }
        }
        Ok(())
    }

    /// What only Slurm can say, once a finding makes it matter, or while its last word was that the job does not run.
    fn ask(&mut self, setting: &Setting, ledger: &mut Ledger) -> Result<(), Trouble> {
        if self.may_be_stale()
            && let Some(details) = questions::ended(setting, self.job(), ledger)?
        {
            return self.end(setting, details, ledger);
        }
        let not_running = self.job().details.as_ref().is_some_and(|d| d.state != JobState::Running);
        if !self.assessment.wants_details && !not_running {
            return Ok(());
        }
        if let Some(details) = questions::details(setting, self.job(), ledger)? {
            if details.state == JobState::Ended {
                return self.end(setting, details, ledger);
            }
            self.history.job.details = Some(details);
            self.assessment = judge(&self.history, &setting.config.rules, self.cadence, setting.now);
        }
        Ok(())
    }

    /// Before units are called idle, /proc is asked who holds their device files open, and it is judged again.
    fn call_witness(
        &mut self,
        setting: &Setting,
        run: RunId,
        (snapshot, eyes): (&Snapshot, &mut dyn Eyes),
        ledger: &mut Ledger,
    ) -> Result<(), Trouble> {
        let (true, Some(finding)) = (self.assessment.wants_witness, self.finding()) else { return Ok(()) };
        let units: Vec<_> = finding.units.iter().map(|u| u.uuid.clone()).collect();
        let holders = snapshot.holders(eyes, self.job(), &units).map(|held| {
            let pids: BTreeSet<u32> = held.into_iter().map(|(_, pid)| pid).collect();
            pids.len() as u32
        });
        ledger.keep_holders(run, self.job().id, &holders)?;
        if let Some(tick) = self.history.ticks.last_mut().filter(|tick| tick.run == run) {
            tick.job.holders = holders;
        }
        self.assessment = judge(&self.history, &setting.config.rules, self.cadence, setting.now);
        Ok(())
    }

    /// Whether only Slurm can tell this registration from one whose Epilog failed: another job claims a unit of it
    /// too and nothing on this node shows that it lives (shards and MPS share for good, and nobody need be asked),
    /// or a drain of ours stands for it.
    fn may_be_stale(&self) -> bool {
        let drained = |a: &ActionRecord| a.deed == Deed::Drain && a.outcome == Outcome::Done;
        let shared = self.history.units == Reading::Absent(Absence::Shared);
        (shared && !self.lives) || self.history.actions.iter().any(drained)
    }

    /// Slurm says that the run is over, which it says only after its Epilog: ours never ran here. So this run does
    /// what the Epilog would have done.
    fn end(&mut self, setting: &Setting, details: JobDetails, ledger: &mut Ledger) -> Result<(), Trouble> {
        let job = self.job().clone();
        let asked =
            Asked { config: setting.config, place: setting.place, now: setting.now, slurm: setting.slurm };
        let case = explain::case_file(&asked, ledger, job.clone())?;
        let archive = !setting.config.mode().enforces();
        let (id, restart) = (job.registration.job, Some(job.registration.restart));
        ledger.clear(id, restart, setting.now, archive, case.as_ref())?;
        tracing::info!(job = id.get(), "job {} has ended and no Epilog told: cleared", job.shown_id());
        self.history.job.details = Some(details);
        self.history.open_finding = None;
        self.assessment = judge(&self.history, &setting.config.rules, self.cadence, setting.now);
        Ok(())
    }

    fn record(
        &self,
        setting: &Setting,
        run: RunId,
        finding: &Finding,
        ledger: &mut Ledger,
    ) -> Result<i64, Trouble> {
        // Another start is another breach: new clocks.
        if self.history.open_finding.as_ref().is_some_and(|open| open.since != finding.since) {
            ledger.close_finding(self.job().id, Closing::Lost, run, setting.now)?;
        }
        let units: Vec<_> = finding.units.iter().map(|u| u.uuid.as_str()).collect();
        let seen = NewFinding {
            job: self.job(),
            signature: finding.signature.word(),
            scope: finding.scope.word(),
            units: &units.join(","),
            since: finding.since,
            established: BootMs(setting.now.boot.0 - finding.established_for_ms),
            certified_ms: finding.evidence().certified_ms(),
        };
        Ok(ledger.record_finding(&seen, run, setting.now)?)
    }

    fn close_finding(&self, setting: &Setting, run: RunId, ledger: &mut Ledger) -> Result<(), Trouble> {
        if self.history.open_finding.is_none() {
            return Ok(());
        }
        let over = self
            .job()
            .details
            .as_ref()
            .is_some_and(|d| matches!(d.state, JobState::Completing | JobState::Ended));
        let how = match &self.assessment.judgement {
            Judgement::Alive { .. } => Closing::Alive,
            Judgement::Spared { guard: Guard::Exemption, .. } => Closing::Exempt,
            _ if over => Closing::Ended,
            _ => Closing::Lost,
        };
        ledger.close_finding(self.job().id, how, run, setting.now)?;
        let job = self.job().shown_id();
        tracing::info!(job, judgement = self.assessment.judgement.word(), "job {job}: {}", self.words());
        Ok(())
    }

    fn circumstances(
        &self,
        setting: &Setting,
        run: RunId,
        ledger: &Ledger,
    ) -> Result<Circumstances<'_>, Trouble> {
        let (config, node) = (setting.config, &setting.place.node);
        let spread_ms = config.limits.spread.as_millis() as i64;
        let slot = Slot::of(node, self.job().registration.job, spread_ms);
        let open = slot.is_open(ledger.run_before(run, setting.now)?, setting.now.boot);
        Ok(Circumstances {
            permit: config.mode().permit(&config.enforce_in, self.job(), node),
            run,
            now: setting.now.boot,
            job: self.job(),
            actions: &self.history.actions,
            node_units: self.history.node_units,
            nodes: nodes_of(self.job(), node),
            wait_ms: if open { 0 } else { slot.next_in_ms(setting.now.boot) },
            held_by: held_by(setting, self.job(), ledger)?,
        })
    }

    fn alert(
        &self,
        setting: &Setting,
        run: RunId,
        row: i64,
        f: &Finding,
        ledger: &mut Ledger,
    ) -> Result<(), Trouble> {
        let action = ledger.begin_action(&self.action(Verdict::Alert, run, row, f), setting.now)?;
        // Of a job on several nodes the first one tells people, once.
        if let Ok(nodes) = nodes_of(self.job(), &setting.place.node)
            && !nodes.is_first()
        {
            let (job, first) = (self.job().shown_id(), nodes.first());
            tracing::info!(job, "job {job}: {}; node {first} tells of it", self.words());
            return Ok(ledger.end_action(action, Outcome::Done, &format!("told by node {first}"), false)?);
        }
        let (job, gpus) = (self.job().shown_id(), f.gpus_words());
        let user = self.job().registration.user.measured().map_or("", |u| u.as_str());
        tracing::warn!(
            job,
            user = %user.escape_debug(),
            gpus,
            verdict = "alert",
            signature = f.signature.word(),
            "job {job}: {}",
            self.words()
        );
        Ok(ledger.end_action(action, Outcome::Done, "journal", false)?)
    }

    fn action<'a>(&'a self, verdict: Verdict, run: RunId, row: i64, f: &'a Finding) -> NewAction<'a> {
        NewAction {
            deed: Deed::from(verdict),
            finding: Some(row),
            job: self.job(),
            run,
            signature: f.signature.word(),
            seen_before: "",
            reason: None,
        }
    }

    fn withhold(
        &self,
        setting: &Setting,
        run: RunId,
        asked: Deed,
        guard: Option<Guard>,
        because: &str,
        ledger: &mut Ledger,
    ) -> Result<(), Trouble> {
        if ledger.withhold(self.job().id, asked, because, run, setting.now)? {
            let (job, asked) = (self.job().shown_id(), asked.word());
            let guard = guard.map_or("", Guard::word);
            tracing::warn!(job, verdict = asked, guard, "job {job}: {asked} withheld: {because}");
        }
        Ok(())
    }

    /// Drain, vote, warn, cancel, or the look at an earlier deed of unclear outcome.
    fn perform(
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
            Step::Cancel(all) => (Deed::Cancel, act::cancel(all, terminate, &job, &mut look, &mut desk)?),
            Step::Reconcile(action) => return self.reconcile(setting, &action, &mut desk),
            Step::Rest | Step::Later { .. } | Step::Alert | Step::Withheld { .. } => return Ok(()),
        };
        match ending {
            Ending::Withheld(Doubt { guard, because, of_limit }) => {
                if of_limit {
                    ledger.unanswered(&back_off(&job, asked), setting.now)?;
                }
                self.withhold(setting, run, asked, guard, &because, ledger)
            }
            Ending::Ended(outcome, words) => self.tell_deed(setting, asked, outcome, &words, ledger),
        }
    }

    /// Finds out how an earlier deed ended; asked again ever more rarely while Slurm does not say.
    fn reconcile(&self, setting: &Setting, action: &ActionRecord, desk: &mut Desk) -> Result<(), Trouble> {
        let subject = format!("outcome {}", action.id);
        if !setting.may_ask() || !desk.ledger.ask_allowed(&subject, setting.now)? {
            return Ok(());
        }
        let (job, deed) = (self.job().shown_id(), action.deed.word());
        match act::reconcile(action, self.job().registration.job, desk)? {
            Some(outcome) => {
                let outcome = format!("{outcome:?}").to_lowercase();
                tracing::warn!(
                    job,
                    verdict = deed,
                    outcome,
                    "job {job}: the earlier {deed} is {outcome}, by looking"
                );
            }
            None => desk.ledger.unanswered(&subject, setting.now)?,
        }
        Ok(())
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
        let how = format!("{outcome:?}").to_lowercase();
        tracing::warn!(job, verdict = asked_word, outcome = how, "job {job}: {asked_word} {how}: {words}");
        match outcome {
            Outcome::Failed => ledger.unanswered(&back_off(self.job(), asked), setting.now)?,
            Outcome::Done if asked == Deed::Cancel => {
                let details = questions::over(self.job(), JobState::Completing);
                ledger.set_details(self.job().id, &details)?;
                self.history.job.details = Some(details);
                self.assessment = judge(&self.history, &setting.config.rules, self.cadence, setting.now);
            }
            _ => {}
        }
        Ok(())
    }

    /// The judgement in one line of facts.
    pub fn words(&self) -> String {
        match &self.assessment.judgement {
            Judgement::Spared { guard, because } => format!("spared ({}): {because}", guard.word()),
            Judgement::Unjudged { guard, because } => {
                format!("not judged ({}): {because}", guard.word())
            }
            Judgement::Alive { because } => format!("alive: {because}"),
            Judgement::Breaching(f) => f.facts(),
        }
    }
}

/// Where a refused deed is kept, so that it is not asked for again every run.
fn back_off(job: &JobRun, asked: Deed) -> String {
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
    }
}

/// The job's nodes by Slurm's own list; without an answer of Slurm, only a job that its registration places on one
/// node is known to be alone.
pub(super) fn nodes_of(job: &JobRun, me: &NodeName) -> Result<Nodes, String> {
    let count = job.details.as_ref().map_or(job.registration.nodes, |details| details.nodes);
    match count {
        Reading::Measured(1) => return Ok(Nodes::alone(me)),
        Reading::Measured(_) => {}
        Reading::Absent(_) => return Err("on how many nodes the job runs is not known".to_owned()),
    }
    let list = job.details.as_ref().and_then(|details| details.node_list.measured());
    let list = list.ok_or("on which nodes the job runs is not known")?;
    let names = crate::slurm::hostlist::expand(list, MOST_NODES)?;
    let names = names.iter().map(|name| NodeName::new(name)).collect::<Result<Vec<_>, _>>()?;
    if count != Reading::Measured(names.len() as u32) {
        return Err("Slurm's list of the job's nodes is not as long as it says".to_owned());
    }
    Nodes::new(names, me)
}

/// Whatever about this run, node or site forbids a deed that time has made due.
fn held_by(setting: &Setting, job: &JobRun, ledger: &Ledger) -> Result<Option<String>, Trouble> {
    let config = setting.config;
    let thresholds = &config.rules.thresholds;
    let hold_ms = thresholds.window_ms.max(thresholds.warmup_ms);
    let age_ms = ledger.age_ms(setting.now);
    if age_ms.is_some_and(|age| age < hold_ms) {
        let left = crate::units::human_ms(hold_ms - age_ms.unwrap_or(hold_ms));
        return Ok(Some(format!("the ledger is new: nothing is done for another {left}")));
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
    for deed in [Deed::Drain, Deed::Vote, Deed::Warn, Deed::Cancel] {
        if !ledger.ask_allowed(&back_off(job, deed), setting.now)? {
            return Ok(Some(format!(
                "the {} was not done when it was due; it is tried again later",
                deed.word()
            )));
        }
    }
    Ok(None)
}

/// One line for people: every job with its judgement, also those that are no candidates.
pub fn summary(snapshot: &Snapshot, cases: &[Case], missing: &[String], ledger: &Ledger) -> String {
    let gpus = match &snapshot.gpus {
        Reading::Measured(report) => format!("{} GPUs read", report.units.len()),
        Reading::Absent(why) => format!("GPUs not read: {}", why.words()),
    };
    let mut line = format!("{gpus}; {} jobs", cases.len());
    for case in cases {
        line += &format!("; {} {}", case.job().shown_id(), case.words());
    }
    let adapted = cases.iter().filter_map(|c| c.assessment.limits.as_ref()).flat_map(|l| &l.adapted).next();
    if let Some(adapted) = adapted {
        line += &format!("; {adapted}");
    }
    for note in ledger.notes() {
        tracing::warn!("{note}");
    }
    for note in missing.iter().chain(ledger.notes()).chain(&snapshot.note) {
        line += &format!("; {note}");
    }
    line
}

impl From<ledger::FindingRow> for OpenFinding {
    fn from(row: ledger::FindingRow) -> OpenFinding {
        OpenFinding {
            since: row.since,
            opened_run: row.opened_run,
            last_run: row.last_run,
            certified_ms: row.certified_ms,
            signature: row.signature,
        }
    }
}

//! What people are told beyond the journal, once for each finding and stage, by the job's first node: queued with what it
//! is about (`post`). No trouble here is a run's trouble, and none of it goes anywhere but to the journal.

use super::cases::Case;
use super::faults::COLLECTOR;
use super::post::{Channel, anybody, put, queue, warn_of};
use super::{Setting, questions};
use crate::config::Config;
use crate::deliver::event::{Broken, Event, Next, Seen, Unit, What};
use crate::ledger::{FaultRow, FindingRow, Ledger, LedgerError, OpenDrain};
use crate::model::*;
use crate::policy::{Finding, Guard, stage};
use crate::units::{BootMs, NodeName, hash, human_ms};

/// What is wrong with nodes may be wrong with all of them at once.
const FAULTS_SPREAD_MS: i64 = 600_000;
/// That the GPUs cannot be read is told to people once it has lasted so long: one run that could not is none's concern.
const COLLECTOR_LASTS_MS: i64 = 300_000;

/// What the ladder's deeds are to people. A vote is among nodes.
fn verdict_of(deed: Deed) -> Option<Verdict> {
    match deed {
        Deed::Alert => Some(Verdict::Alert),
        Deed::Drain => Some(Verdict::Drain),
        Deed::Warn | Deed::Cancel | Deed::Requeue => Some(Verdict::Cancel),
        Deed::Vote | Deed::Release => None,
    }
}

impl Case {
    /// Of a job on several nodes the first one speaks; of one whose nodes are not known, whoever sees it.
    fn speaks(&self, setting: &Setting) -> bool {
        questions::nodes_of(self.job(), &setting.place.node).map_or(true, |nodes| nodes.is_first())
    }

    fn event(&self, setting: &Setting, what: What, finding: &Finding) -> Event {
        let rules = &setting.config.rules;
        let enforces = setting.config.mode().enforces();
        let next = stage::next(finding, &rules.stages);
        let event = Event::of(what, &setting.place.node, enforces, setting.now).about(self.job());
        Event { finding: Some(finding.into()), next: next.map(|next| Next::of(&next, setting.now)), ..event }
    }

    /// A finding was made, as `row`.
    pub(super) fn tell_finding(&self, setting: &Setting, row: i64, finding: &Finding, ledger: &mut Ledger) {
        if anybody(setting.config) {
            let event = Event { words: finding.facts(), ..self.event(setting, What::Finding, finding) };
            let at = (Verdict::Alert, setting.now.boot);
            queue(setting, (&of_finding(row), "alert"), at, &event, ledger);
        }
        self.notify_job(setting, finding, "");
    }

    /// Something was due for a finding, and was done or tried.
    pub(super) fn tell_done(
        &self,
        setting: &Setting,
        row: i64,
        (deed, outcome, words): (Deed, Outcome, &str),
        ledger: &mut Ledger,
    ) {
        let (Some(finding), Some(verdict)) = (self.finding(), verdict_of(deed)) else { return };
        if !self.speaks(setting) {
            return;
        }
        if anybody(setting.config) {
            let event = Event {
                verdict: deed.word(),
                outcome: Some(outcome.word()),
                words: words.to_owned(),
                ..self.event(setting, What::Deed, finding)
            };
            let stage = match outcome {
                Outcome::Done => deed.word().to_owned(),
                _ => format!("{}-{}", deed.word(), outcome.word()),
            };
            queue(setting, (&of_finding(row), &stage), (verdict, setting.now.boot), &event, ledger);
        }
        if deed == Deed::Drain && outcome == Outcome::Done {
            self.notify_job(setting, finding, "; the node is drained, this job goes on");
        }
    }

    /// Something was due for a finding, and is withheld.
    pub(super) fn tell_withheld(
        &self,
        setting: &Setting,
        row: i64,
        (deed, guard, because): (Deed, Option<Guard>, &str),
        ledger: &mut Ledger,
    ) {
        let (Some(finding), Some(verdict)) = (self.finding(), verdict_of(deed)) else { return };
        if !anybody(setting.config) || !self.speaks(setting) {
            return;
        }
        let event = Event {
            verdict: deed.word(),
            guard: guard.map(Guard::word),
            words: format!("Not done: {because}"),
            ..self.event(setting, What::Withheld, finding)
        };
        let stage = format!("{}-withheld", deed.word());
        queue(setting, (&of_finding(row), &stage), (verdict, setting.now.boot), &event, ledger);
    }

    /// One line into the job's own output, where the site wants that. Nothing rests on it.
    fn notify_job(&self, setting: &Setting, finding: &Finding, more: &str) {
        if !setting.config.act.notify_job || !self.speaks(setting) || !setting.may_ask() {
            return;
        }
        let (job, node) = (self.job().shown_id(), &setting.place.node);
        let quiet = human_ms(finding.evidence().certified_ms());
        let text = format!(
            "gpu-reaper: job {job}: {} on {} of node {node} for {quiet}{more}; ask: gpu-reaper-hc --explain {job}",
            finding.signature,
            finding.gpus_words()
        );
        if let Err(silence) = setting.slurm.notify(&job, &text) {
            let raw = self.job().registration.job.get();
            tracing::info!(job = raw, "job {job}: its output was not told: {silence}");
        }
    }
}

fn of_finding(row: i64) -> String {
    format!("finding {row}")
}

/// A job run's open finding is about to be closed: whoever was told of it is told that it is over. Also by an Epilog, which
/// sends nothing itself. Nothing is asked where nobody may have been told. Gives what of it could not be done, a line each.
pub fn recovered(
    (config, node, now): (&Config, &NodeName, &Now),
    job: &JobRun,
    words: &str,
    ledger: &mut Ledger,
) -> Vec<String> {
    let mut troubles = Vec::new();
    let open = if anybody(config) { ledger.findings_of(job.id).map(|mut all| all.pop()) } else { Ok(None) };
    let open = open.unwrap_or_else(|why| {
        troubles.push(untold_words(&why));
        None
    });
    let Some(row) = open.filter(|row| row.closed.is_none()) else { return troubles };
    let thread = of_finding(row.id);
    for channel in Channel::configured(config) {
        let told = ledger.told_in(&channel.thread(&thread)).unwrap_or_else(|why| {
            troubles.push(untold_words(&why));
            Vec::new()
        });
        // Who was told that we ended the job knows.
        let ended_by_us = |stage: &String| matches!(stage.as_str(), "cancel" | "requeue");
        if told.is_empty() || told.iter().any(ended_by_us) {
            continue;
        }
        let enforces = config.mode().enforces();
        let unit = |uuid: &str| Unit { uuid: uuid.to_owned(), index: None, name: None };
        let event = Event {
            words: words.to_owned(),
            finding: Some(Seen {
                signature: row.signature.clone(),
                scope: row.scope.clone(),
                units: row.units.split(',').map(unit).collect(),
                since: row.since_wall.rfc3339(),
                certified_s: row.certified_ms / 1000,
                wasted_gpu_hours: None,
                facts: None,
            }),
            ..Event::of(What::Recovered, node, enforces, now).about(job)
        };
        troubles.extend(put(now, channel, (&thread, "recovered"), &event, now.boot, ledger));
    }
    troubles
}

fn untold_words(why: &LedgerError) -> String {
    format!("{why}; who was told of its finding is not told that it is over")
}

/// The same by a run.
pub(super) fn over(setting: &Setting, job: &JobRun, words: &str, ledger: &mut Ledger) {
    warn_of(recovered((setting.config, &setting.place.node, setting.now), job, words, ledger));
}

/// A drain of ours is not lifted, and somebody has to, with this command. Each node speaks for its own. `thread`: that of
/// the drain.
pub(super) fn drain_stays(setting: &Setting, thread: &str, words: &str, command: &str, ledger: &mut Ledger) {
    if !anybody(setting.config) {
        return;
    }
    let event = of_drain(setting, "stays", words, command);
    queue(setting, (thread, "stays"), (Verdict::Drain, setting.now.boot), &event, ledger);
}

/// A drain of ours is gone: whoever was told that it was made, or that it stays, is told. `thread`: that of its staying.
pub(super) fn drain_lifted(
    setting: &Setting,
    (drain, thread): (&OpenDrain, &str),
    words: &str,
    ledger: &mut Ledger,
) {
    if !anybody(setting.config) {
        return;
    }
    let findings = or_nobody_is_told(ledger.findings_of(drain.job_run));
    let made = |stage: &String| ["drain", "drain-unknown"].contains(&stage.as_str());
    let knows_it_was_made = |channel: Channel, ledger: &Ledger| {
        let told = |row: &FindingRow| told_in(channel, &of_finding(row.id), ledger);
        findings.iter().flat_map(told).any(|stage| made(&stage))
    };
    let event = of_drain(setting, "lifted", words, &format!("gpu-reaper-hc --explain {}", drain.job));
    lifted(setting, thread, &event, knows_it_was_made, ledger);
}

/// The same of one of which only its thread is known.
pub(super) fn drain_gone(setting: &Setting, thread: &str, words: &str, ledger: &mut Ledger) {
    if anybody(setting.config) {
        let event = of_drain(setting, "lifted", words, "gpu-reaper-hc status");
        lifted(setting, thread, &event, |_, _| false, ledger);
    }
}

fn lifted(
    setting: &Setting,
    thread: &str,
    event: &Event,
    knows: impl Fn(Channel, &Ledger) -> bool,
    ledger: &mut Ledger,
) {
    for channel in Channel::configured(setting.config) {
        if knows(channel, ledger) || !told_in(channel, thread, ledger).is_empty() {
            warn_of(put(setting.now, channel, (thread, "lifted"), event, setting.now.boot, ledger));
        }
    }
}

/// What of a thread was told, or is about to be.
fn told_in(channel: Channel, thread: &str, ledger: &Ledger) -> Vec<String> {
    or_nobody_is_told(ledger.told_in(&channel.thread(thread)))
}

/// The thread of a drain that this boot made.
pub(super) fn of_drain_row(drain: &OpenDrain) -> String {
    format!("drain {}", drain.action.id)
}

fn of_drain(setting: &Setting, outcome: &'static str, words: &str, explain: &str) -> Event {
    let (node, enforces) = (&setting.place.node, setting.config.mode().enforces());
    Event {
        verdict: Deed::Drain.word(),
        outcome: Some(outcome),
        words: words.to_owned(),
        explain: explain.to_owned(),
        ..Event::of(What::Deed, node, enforces, setting.now)
    }
}

/// What cannot be read costs a message, never what a run or an Epilog still has to do.
fn or_nobody_is_told<T>(read: Result<Vec<T>, LedgerError>) -> Vec<T> {
    read.unwrap_or_else(|why| {
        tracing::warn!("{why}; a message about it is not sent");
        Vec::new()
    })
}

/// How a drain for a fault ended, or why it was withheld.
pub(super) enum ForFault<'a> {
    /// It began.
    Begun(&'a str),
    /// It is over.
    Over,
    /// A drain for it was asked for, and ended so.
    Drain(Outcome, &'a str),
    /// A drain for it is withheld.
    Withheld(&'a str),
}

/// Something about a fault of the node, or that its GPUs cannot be read. `enforces`: as the mode of its kind says.
pub(super) fn fault(setting: &Setting, row: &FaultRow, enforces: bool, news: ForFault, ledger: &mut Ledger) {
    if !setting.config.notify.node_faults || !anybody(setting.config) {
        return;
    }
    let thread = format!("fault {}", row.id);
    let (what, verdict, outcome, words) = match news {
        ForFault::Begun(words) => (What::Fault, Verdict::Alert, None, words),
        ForFault::Over => (What::FaultOver, Verdict::Alert, None, "it is over"),
        ForFault::Drain(outcome, words) => (What::Fault, Verdict::Drain, Some(outcome.word()), words),
        ForFault::Withheld(because) => (What::Fault, Verdict::Drain, None, because),
    };
    let stage = match (what, verdict) {
        (What::FaultOver, _) => "over".to_owned(),
        (_, Verdict::Alert) => "alert".to_owned(),
        _ => format!("drain-{}", outcome.unwrap_or("withheld")),
    };
    let broken = Broken {
        kind: row.kind.clone(),
        subject: row.subject.clone(),
        detail: row.detail.clone(),
        since: Some(row.opened.rfc3339()),
    };
    let event = Event {
        verdict: verdict.word(),
        outcome,
        words: format!("{}; {words}", row.detail),
        fault: Some(broken),
        explain: "gpu-reaper-hc ack".to_owned(),
        ..Event::of(what, &setting.place.node, enforces, setting.now)
    };
    let spread_ms = i64::from(hash(setting.place.node.as_str())) % FAULTS_SPREAD_MS;
    let wait_ms = if row.kind == COLLECTOR { COLLECTOR_LASTS_MS } else { 0 };
    let due = BootMs(setting.now.boot.0 + wait_ms + spread_ms);
    if what != What::FaultOver {
        queue(setting, (&thread, &stage), (verdict, due), &event, ledger);
        return;
    }
    for channel in Channel::configured(setting.config) {
        // One that was over before anybody was told of it is not told at all.
        if row.kind == COLLECTOR && withdrawn(&channel.subject(&thread, "alert"), ledger) {
            continue;
        }
        if !told_in(channel, &thread, ledger).is_empty() {
            warn_of(put(setting.now, channel, (&thread, &stage), &event, due, ledger));
        }
    }
}

fn withdrawn(subject: &str, ledger: &mut Ledger) -> bool {
    ledger.withdraw_letter(subject).unwrap_or_else(|why| {
        tracing::warn!("{why}; message `{subject}` may be sent though it is over");
        false
    })
}

/// The same of one that was just written down, by its kind and subject.
pub(super) fn fault_began(
    setting: &Setting,
    (kind, subject): (&str, &str),
    enforces: bool,
    words: &str,
    ledger: &mut Ledger,
) {
    if !setting.config.notify.node_faults || !anybody(setting.config) {
        return;
    }
    let open = or_nobody_is_told(ledger.faults());
    if let Some(row) = open.into_iter().find(|row| row.is(kind, subject)) {
        fault(setting, &row, enforces, ForFault::Begun(words), ledger);
    }
}

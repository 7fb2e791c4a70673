//! Telling people beyond the journal: Slack and the site's own program, through the outbox. A message is queued with
//! what it is about, once for each finding and stage, by the job's first node; and sent last in a run, when all else is
//! done and kept. Where no channel is configured nothing of this costs anything. No trouble here is a run's trouble, and
//! none of it goes anywhere but to the journal.

use super::cases::Case;
use super::{Setting, questions};
use crate::config::Config;
use crate::deliver::event::{Broken, Event, Next, Seen, Unit, What};
use crate::deliver::{Delivery, exec, slack};
use crate::ledger::{
    Actor, FaultRow, FindingRow, Ledger, LedgerError, Letter, MOST_WAITING, OpenDrain, Question, Tally,
};
use crate::lock::RunLock;
use crate::model::*;
use crate::policy::{Finding, Guard, stage};
use crate::units::{BootMs, NodeName, hash, human_ms};
use std::time::{Duration, Instant};

/// So many messages a run, and so long for all of them.
const MOST_A_RUN: usize = 3;
const SENDING_TAKES: Duration = Duration::from_secs(3);
/// No message is sent with less left of the run.
const SENDING_NEEDS: Duration = Duration::from_secs(5);
/// What is wrong with nodes may be wrong with all of them at once.
const FAULTS_SPREAD_MS: i64 = 600_000;

/// Where messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Channel {
    Slack,
    Exec,
}

impl Channel {
    const ALL: [Channel; 2] = [Channel::Slack, Channel::Exec];

    /// The first word of a letter's subject.
    fn word(self) -> &'static str {
        match self {
            Channel::Slack => "slack",
            Channel::Exec => "exec",
        }
    }

    /// Under whom its failures are counted.
    fn actor(self) -> Actor {
        match self {
            Channel::Slack => Actor::Slack,
            Channel::Exec => Actor::Exec,
        }
    }

    fn of(subject: &str) -> Option<Channel> {
        let word = subject.split(' ').next();
        Channel::ALL.into_iter().find(|channel| Some(channel.word()) == word)
    }

    /// What is milder is not told; `None`: nothing is.
    fn least(self, config: &Config) -> Option<Verdict> {
        match self {
            Channel::Slack => config.slack.webhook_file.as_ref().map(|_| config.slack.min_verdict),
            Channel::Exec => (!config.notify.exec.is_empty()).then_some(config.notify.min_verdict),
        }
    }

    fn body(self, event: &Event) -> String {
        match self {
            Channel::Slack => slack::text(event),
            Channel::Exec => serde_json::to_string(event).unwrap_or_default(),
        }
    }

    fn send(self, setting: &Setting, body: &str, limit: Duration) -> Delivery {
        let (slack, exec) = (&setting.config.slack, &setting.config.notify.exec);
        match (self, &slack.webhook_file) {
            (Channel::Slack, Some(file)) => {
                slack::send(file, slack.ca_file.as_deref(), body, limit, setting.now.wall)
            }
            (Channel::Slack, None) => Delivery::Never("no web hook is configured".to_owned()),
            (Channel::Exec, _) => exec::tell(exec, body, limit),
        }
    }
}

/// Whether anybody is told anything.
fn anybody(config: &Config) -> bool {
    Channel::ALL.into_iter().any(|channel| channel.least(config).is_some())
}

/// Queues one message for each channel that wants to hear of this verdict. `thread` and `stage`, one word, name it.
fn queue(
    setting: &Setting,
    (thread, stage): (&str, &str),
    (verdict, due): (Verdict, BootMs),
    event: &Event,
    ledger: &mut Ledger,
) {
    for channel in Channel::ALL {
        if channel.least(setting.config).is_some_and(|least| verdict >= least) {
            let subject = format!("{} {thread} {stage}", channel.word());
            warn_of(put(setting.now, &subject, &channel.body(event), due, ledger));
        }
    }
}

/// A message that cannot be queued is a line for whoever asked, and nothing that a run or an Epilog still has to do waits
/// for it.
fn put(now: &Now, subject: &str, body: &str, due: BootMs, ledger: &mut Ledger) -> Option<String> {
    match ledger.queue_letter(subject, body, due, now) {
        Ok(queued) => {
            let lost = queued.given_up?;
            Some(format!("message `{lost}` is given up: {MOST_WAITING} others wait to be sent"))
        }
        Err(why) => Some(format!("{why}; message `{subject}` is not sent")),
    }
}

fn warn_of(troubles: impl IntoIterator<Item = String>) {
    troubles.into_iter().for_each(|trouble| tracing::warn!("{trouble}"));
}

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
    for channel in Channel::ALL {
        if channel.least(config).is_none() {
            continue;
        }
        let thread = format!("{} {}", channel.word(), of_finding(row.id));
        let told = ledger.told_in(&thread).unwrap_or_else(|why| {
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
        let subject = format!("{thread} recovered");
        troubles.extend(put(now, &subject, &channel.body(&event), now.boot, ledger));
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

/// A drain of ours is not lifted, and somebody has to. Each node speaks for its own. `thread`: that of the drain.
pub(super) fn drain_stays(setting: &Setting, thread: &str, words: &str, ledger: &mut Ledger) {
    if !anybody(setting.config) {
        return;
    }
    let event = of_drain(setting, "stays", words, "gpu-reaper-hc release");
    queue(setting, (thread, "stays"), (Verdict::Drain, setting.now.boot), &event, ledger);
}

/// A drain of ours is gone: whoever was told that it was made, or that it stays, is told.
pub(super) fn drain_lifted(setting: &Setting, drain: &OpenDrain, words: &str, ledger: &mut Ledger) {
    if !anybody(setting.config) {
        return;
    }
    let event = of_drain(setting, "lifted", words, &format!("gpu-reaper-hc --explain {}", drain.job));
    let findings = or_nobody_is_told(ledger.findings_of(drain.job_run));
    let thread = of_drain_row(drain.action.id);
    for channel in Channel::ALL {
        let word = channel.word();
        let made = |row: &FindingRow| {
            let told = or_nobody_is_told(ledger.told_in(&format!("{word} {}", of_finding(row.id))));
            told.iter().any(|stage| stage == Deed::Drain.word())
        };
        let knows = findings.iter().any(made)
            || !or_nobody_is_told(ledger.told_in(&format!("{word} {thread}"))).is_empty();
        if channel.least(setting.config).is_some() && knows {
            let subject = format!("{word} {thread} lifted");
            warn_of(put(setting.now, &subject, &channel.body(&event), setting.now.boot, ledger));
        }
    }
}

/// The thread of a drain, by its row.
pub(super) fn of_drain_row(action: i64) -> String {
    format!("drain {action}")
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
    let due = BootMs(setting.now.boot.0 + i64::from(hash(setting.place.node.as_str())) % FAULTS_SPREAD_MS);
    if what != What::FaultOver {
        queue(setting, (&thread, &stage), (verdict, due), &event, ledger);
        return;
    }
    for channel in Channel::ALL {
        let thread = format!("{} {thread}", channel.word());
        if channel.least(setting.config).is_some() && !or_nobody_is_told(ledger.told_in(&thread)).is_empty() {
            warn_of(put(setting.now, &format!("{thread} {stage}"), &channel.body(&event), due, ledger));
        }
    }
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

/// Sends what is due: the last thing that a run does.
pub(super) fn deliver(setting: &Setting, lock: &mut RunLock, ledger: &mut Ledger) {
    if !anybody(setting.config) || setting.left() < SENDING_NEEDS {
        return;
    }
    let sent = ledger.due_letters(setting.now).and_then(|due| {
        if due.is_empty() || setting.fresh_slurmd() {
            return Ok(());
        }
        lock.phase("deliver");
        send(setting, due, ledger)
    });
    if let Err(why) = sent {
        tracing::warn!("{why}; messages that wait are sent by a later run");
    }
}

/// One attempt each. A channel that did not take one is left alone until the next run.
fn send(setting: &Setting, due: Vec<Letter>, ledger: &mut Ledger) -> Result<(), LedgerError> {
    let until = Instant::now() + SENDING_TAKES;
    let mut silent: Vec<Channel> = Vec::new();
    let mut tried = 0;
    for (at, letter) in due.iter().enumerate() {
        let Some(channel) = Channel::of(&letter.subject).filter(|c| c.least(setting.config).is_some()) else {
            // Its channel was taken from the configuration.
            ledger.give_letter_up(letter.id)?;
            continue;
        };
        if letter.is_old {
            ledger.give_letter_up(letter.id)?;
            tracing::warn!("message `{}` is given up: it has waited for more than a day", letter.subject);
            continue;
        }
        let left = until.saturating_duration_since(Instant::now());
        if tried == MOST_A_RUN || left < SENDING_TAKES / 10 {
            break;
        }
        if silent.contains(&channel) {
            continue;
        }
        tried += 1;
        // One that is silent leaves the other its half.
        let others = due[at..].iter().any(|other| Channel::of(&other.subject) != Some(channel));
        let limit = if others && silent.is_empty() { left / 2 } else { left };
        match channel.send(setting, &letter.body, limit) {
            Delivery::Arrived => arrived(setting, channel, letter, ledger)?,
            failed => {
                silent.push(channel);
                not_arrived(setting, channel, letter, failed, ledger)?;
            }
        }
    }
    Ok(())
}

/// Where it is kept what was last said of a channel.
fn channel_subject(channel: Channel) -> String {
    format!("channel {}", channel.word())
}

fn arrived(
    setting: &Setting,
    channel: Channel,
    letter: &Letter,
    ledger: &mut Ledger,
) -> Result<(), LedgerError> {
    ledger.letter_sent(letter.id, setting.now)?;
    let word = channel.word();
    tracing::info!(channel = word, "message `{}` was taken", letter.subject);
    let subject = channel_subject(channel);
    if let Question::Answered { .. } = ledger.question(&subject, setting.now)? {
        ledger.forget_answer(&subject)?;
        tracing::warn!(channel = word, "{word} takes messages again");
    }
    Ok(())
}

/// Said once, until it is something else: to the journal and nobody else.
fn not_arrived(
    setting: &Setting,
    channel: Channel,
    letter: &Letter,
    failed: Delivery,
    ledger: &mut Ledger,
) -> Result<(), LedgerError> {
    let (word, subject) = (channel.word(), channel_subject(channel));
    ledger.count(&[(Tally::DeedError(channel.actor()), 1)])?;
    let (why, again) = match failed {
        Delivery::Arrived => return Ok(()),
        Delivery::Later { why, wanted_ms } => {
            let again = ledger.letter_failed(letter.id, wanted_ms, setting.now)?;
            (why, again)
        }
        Delivery::Never(why) => {
            ledger.give_letter_up(letter.id)?;
            (why, false)
        }
    };
    let known = matches!(ledger.question(&subject, setting.now)?,
        Question::Answered { answer, .. } if answer == why);
    if !known {
        ledger.answered(&subject, &why, setting.now)?;
        let then = if again { "; messages wait and are tried again" } else { "" };
        tracing::warn!(channel = word, "{word}: {why}{then}");
    }
    if !again {
        let tries = letter.tries + 1;
        tracing::warn!(channel = word, "message `{}` is given up after {tries} attempts", letter.subject);
    }
    Ok(())
}

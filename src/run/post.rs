//! The way of a message: to the channels that want to hear of it, through the outbox, and sent last in a run, when all
//! else is done and kept. Where no channel is configured nothing of this costs anything.

use super::Setting;
use crate::config::Config;
use crate::deliver::event::Event;
use crate::deliver::{Delivery, exec, slack};
use crate::ledger::{Actor, Ledger, LedgerError, Letter, MOST_WAITING, Question, Tally};
use crate::lock::RunLock;
use crate::model::*;
use crate::units::BootMs;
use std::time::{Duration, Instant};

/// So many messages a run, and so long for all of them.
const MOST_A_RUN: usize = 3;
const SENDING_TAKES: Duration = Duration::from_secs(3);
/// No message is sent with less left of the run.
const SENDING_NEEDS: Duration = Duration::from_secs(5);

/// Where messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channel {
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

    /// Those that the site wants.
    pub(super) fn configured(config: &Config) -> impl Iterator<Item = Channel> {
        Channel::ALL.into_iter().filter(|channel| channel.least(config).is_some())
    }

    /// What is told of one thing here, in the outbox.
    pub(super) fn thread(self, thread: &str) -> String {
        format!("{} {thread}", self.word())
    }

    /// One letter of it; the stage is one word.
    pub(super) fn subject(self, thread: &str, stage: &str) -> String {
        format!("{} {stage}", self.thread(thread))
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
pub(super) fn anybody(config: &Config) -> bool {
    Channel::configured(config).next().is_some()
}

/// Queues one message for each channel that wants to hear of this verdict. `thread` and `stage`, one word, name it.
pub(super) fn queue(
    setting: &Setting,
    (thread, stage): (&str, &str),
    (verdict, due): (Verdict, BootMs),
    event: &Event,
    ledger: &mut Ledger,
) {
    let wants = |channel: &Channel| channel.least(setting.config).is_some_and(|least| verdict >= least);
    for channel in Channel::ALL.into_iter().filter(wants) {
        warn_of(put(setting.now, channel, (thread, stage), event, due, ledger));
    }
}

/// Queues it for one channel. A message that cannot be queued is a line for whoever asked, and nothing that a run or an
/// Epilog still has to do waits for it.
pub(super) fn put(
    now: &Now,
    channel: Channel,
    (thread, stage): (&str, &str),
    event: &Event,
    due: BootMs,
    ledger: &mut Ledger,
) -> Option<String> {
    let subject = channel.subject(thread, stage);
    match ledger.queue_letter(&subject, &channel.body(event), due, now) {
        Ok(queued) => {
            let lost = queued.given_up?;
            Some(format!("message `{lost}` is given up: {MOST_WAITING} others wait to be sent"))
        }
        Err(why) => Some(format!("{why}; message `{subject}` is not sent")),
    }
}

pub(super) fn warn_of(troubles: impl IntoIterator<Item = String>) {
    troubles.into_iter().for_each(|trouble| tracing::warn!("{trouble}"));
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

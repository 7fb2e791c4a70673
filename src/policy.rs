//! The rules: from a job run's replayed history to a judgement and one step. Pure: no clock, no I/O, no
//! logging; what a rule needs it is given, and what is absent satisfies no rule in either direction.

use crate::model::Verdict;
use regex_lite::Regex;

/// `auto`, or what the configuration says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auto<T> {
    /// Derived from this node's real cadence, or from the card itself.
    Auto,
    /// Said in the configuration.
    Set(T),
}

/// The numbers the rules compare with (`thresholds` in the configuration).
#[derive(Clone, Debug, PartialEq)]
pub struct Thresholds {
    /// At this utilization and above a unit is busy; percent, 1 to 100.
    pub util_pct: u32,
    /// Share of memory that counts as held where the process list is unreadable; 0 to 1.
    pub mem_held_fraction: f64,
    /// What an empty card draws at most; only ever vetoes `idle`. Milliwatts.
    pub idle_power: Auto<u64>,
    /// How long a breach must hold without interruption.
    pub window_ms: i64,
    /// Jobs younger than this are not judged.
    pub warmup_ms: i64,
    /// A job never active yet is only alerted on until this age.
    pub first_activity_grace_ms: i64,
    /// Samples per unit that a window must hold.
    pub min_samples: Auto<u32>,
    /// The longest time between two samples that is no hole.
    pub max_sample_gap: Auto<i64>,
}

/// One rung of the ladder: `after` this much certified time since the finding was established, ask for `verdict`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Milliseconds since established.
    pub after_ms: i64,
    /// What is asked for.
    pub verdict: Verdict,
}

/// Jobs that are never judged, with the bounds of that.
#[derive(Clone, Debug, Default)]
pub struct Exemptions {
    /// User names.
    pub users: Vec<String>,
    /// Accounts.
    pub accounts: Vec<String>,
    /// Partitions.
    pub partitions: Vec<String>,
    /// QOS names.
    pub qos: Vec<String>,
    /// Matches anywhere in the job's name unless anchored.
    pub name_pattern: Option<Regex>,
    /// An exemption holds only up to so many GPUs of the job on this node.
    pub max_gpus: Option<u32>,
    /// An exemption holds only up to this age of the job run, milliseconds.
    pub max_age_ms: Option<i64>,
    /// The most that a job's own comment may exempt it for, from its start, milliseconds; `None`: comments are not
    /// looked at.
    pub job_comment_ms: Option<i64>,
}

/// What the rules are given besides a history: the configuration's part of the law.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The numbers.
    pub thresholds: Thresholds,
    /// The ladder, in rising order of `after` and verdict.
    pub stages: Vec<Stage>,
    /// The most `spinning` may ask for.
    pub spinning: Verdict,
    /// Who is left alone.
    pub exemptions: Exemptions,
    /// Whether a node may be drained whose other GPUs are not the job's.
    pub drain_shared: bool,
    /// The warning before a cancel, where the site wants one.
    pub warn: Option<Warn>,
}

/// A signal some time ahead of a cancel (`act.warn: USR1@5m`). For many jobs it is a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Warn {
    /// The signal's name without SIG.
    pub signal: &'static str,
    /// How long before the cancel, at least; in any case the cancel comes in a later run.
    pub ahead_ms: i64,
}

pub mod attribution;
pub mod cap;
pub mod fault;
pub mod floor;
pub mod free;
pub mod guard;
mod host_activity;
pub mod interval;
pub mod judge;
pub mod keep;
pub mod leak;
pub mod level;
pub mod nodes;
pub mod reason;
pub mod signature;
pub mod slot;
pub mod stage;
pub mod window;

pub use guard::{Guard, GuardReport};
pub use judge::{Assessment, Finding, Judgement, Scope, judge};
pub use level::{Level, is_work, settles};
pub use signature::Signature;
pub use stage::{Circumstances, Step, escalate};
pub use window::Evidence;

#[cfg(test)]
mod tests;

//! One health-check run: the story. Snapshot, append, replay, and for each job judge, escalate, record, perform.
//! The only place where the edges meet.

mod blocked;
pub mod cases;
pub mod deeds;
pub mod eyes;
pub mod faults;
pub mod leaks;
mod learn;
pub mod machine;
mod metrics;
pub mod orphans;
pub mod owners;
mod post;
pub mod questions;
pub mod release;
pub mod snapshot;
pub mod tell;
mod voided;
mod xids;

use crate::config::{ACT_NEEDS, Config};
use crate::ledger::{Ledger, LedgerError, Opening};
use crate::lock::{self, Before, RunLock, Taken};
use crate::model::{Cadence, Now};
use crate::place::Place;
use crate::reading::Reading;
use crate::slurm::Slurm;
use crate::units::BootMs;
use eyes::Eyes;
use snapshot::Books;
use std::time::{Duration, Instant};

/// A second run waits so long for the first.
const LOCK_WAIT: Duration = Duration::from_secs(1);
/// How long the ledger may be locked by hooks.
const LEDGER_WAIT: Duration = Duration::from_secs(3);
/// Taken for the interval while the ledger does not know it: Slurm's own limit for a health check.
const UNKNOWN_INTERVAL_MS: i64 = 60_000;
/// No question to Slurm begins with less left.
const ASK_NEEDS: Duration = Duration::from_secs(14);

/// What a run is given.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    /// The law.
    pub config: &'a Config,
    /// This node.
    pub place: &'a Place,
    /// This moment.
    pub now: &'a Now,
    /// Slurm's commands.
    pub slurm: &'a Slurm,
    /// Whether the slurmd that started this run is itself younger than so many milliseconds.
    pub slurmd_is_younger: &'a dyn Fn(i64) -> bool,
    /// How often runs come, milliseconds; not known before the ledger was read.
    pub interval_ms: Option<i64>,
    /// When the whole run must have ended.
    pub until: Instant,
}

impl Setting<'_> {
    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// A run started within one interval of its slurmd asks and does nothing.
    fn knowing_its_slurmd(&self, cadence: Reading<Cadence>) -> Self {
        let interval_ms = match cadence {
            Reading::Measured(cadence) => cadence.median_ms,
            Reading::Absent(_) => UNKNOWN_INTERVAL_MS,
        };
        Setting { interval_ms: Some(interval_ms), ..*self }
    }

    /// That slurmd is younger than an interval and waits for this run before it registers: it only samples. Looked
    /// for when it matters: a run that has nothing to ask or do spares the walk up its parents.
    pub fn fresh_slurmd(&self) -> bool {
        self.interval_ms.is_none_or(self.slurmd_is_younger)
    }

    /// Whether Slurm may be asked now.
    pub fn may_ask(&self) -> bool {
        self.left() >= ASK_NEEDS && !self.fresh_slurmd()
    }

    /// Whether an action may begin now.
    pub fn may_act(&self) -> bool {
        self.left() >= ACT_NEEDS && !self.fresh_slurmd()
    }

    /// How the ledger is opened.
    pub fn opening(&self) -> Opening {
        opening(self.config, LEDGER_WAIT)
    }
}

/// How a ledger is opened under a configuration.
pub fn opening(config: &Config, wait: Duration) -> Opening {
    Opening { wait, max_bytes: config.history.max_size_bytes }
}

/// How a run ended.
#[derive(Debug)]
pub enum Ended {
    /// It ran to its end; one line for people.
    Ran(String),
    /// Another run holds the lock; this one was counted.
    Overlapped,
}

/// Why a run could not do its work.
#[derive(Debug)]
pub enum Trouble {
    /// The state folder, its lock, or opening its ledger.
    State(String),
    /// The ledger, later on.
    Ledger(LedgerError),
}

impl From<LedgerError> for Trouble {
    fn from(e: LedgerError) -> Trouble {
        Trouble::Ledger(e)
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Trouble::State(why) => write!(f, "{why}; nothing was judged"),
            // It may have come at any step of a run.
            Trouble::Ledger(e) => write!(f, "{e}; nothing more was judged or done"),
        }
    }
}

/// One health-check run.
pub fn run(setting: &Setting, eyes: &mut dyn Eyes) -> Result<Ended, Trouble> {
    with_ledger(setting, eyes).map(|(ended, _ledger)| ended)
}

/// The only run of a process that ends with it. Its ledger is left open: every transaction is over and every lock
/// free, and to give back memory that the kernel takes anyway would be a twentieth of the run.
pub fn run_last(setting: &Setting, eyes: &mut dyn Eyes) -> Result<Ended, Trouble> {
    let (ended, ledger) = with_ledger(setting, eyes)?;
    std::mem::forget(ledger);
    Ok(ended)
}

fn with_ledger(setting: &Setting, eyes: &mut dyn Eyes) -> Result<(Ended, Option<Ledger>), Trouble> {
    let dir = &setting.place.dir;
    let state = |e: std::io::Error| Trouble::State(format!("state `{}`: {e}", dir.display()));
    crate::lock::prepare_folder(dir).map_err(state)?;
    let (mut lock, before) = match lock::take(dir, LOCK_WAIT, setting.now).map_err(state)? {
        Taken::Ours(lock, before) => (lock, before),
        Taken::Busy => return Ok((Ended::Overlapped, None)),
    };
    let ended = under_lock(setting, eyes, &mut lock, before);
    // A run that could not do its work has said so: only a killed one leaves its phase behind. What was open before it is
    // still to be read by the next one.
    lock.finish(!matches!(&ended, Ok((_, false, _))));
    ended.map(|(ended, _, ledger)| (ended, Some(ledger)))
}

fn under_lock(
    setting: &Setting,
    eyes: &mut dyn Eyes,
    lock: &mut RunLock,
    before: Before,
) -> Result<(Ended, bool, Ledger), Trouble> {
    eyes.start(before != Before::Ended || states_are_due(lock.previous(), setting.now.boot));
    lock.phase("ledger");
    let opened = Ledger::open(&setting.place.dir, &setting.place.node, setting.now, setting.opening());
    let mut ledger = opened.map_err(|e| Trouble::State(e.to_string()))?;
    let books = Books::read(setting, &ledger)?;
    voided::close(setting, &books, &mut ledger);
    let killed = matches!(before, Before::Killed(_));
    if !killed && books.previous.is_some_and(|previous| came_later(previous, setting.now.boot)) {
        lock::count_overlap(&setting.place.dir, setting.now);
        return Ok((Ended::Overlapped, matches!(before, Before::EndedAmiss), ledger));
    }
    let setting = &setting.knowing_its_slurmd(books.cadence);
    lock.phase("observe");
    let snapshot = snapshot::take(setting, eyes, books, &mut ledger)?;
    lock.phase("remember");
    let run = snapshot.append(setting, &mut ledger, &before)?;
    lock.phase("faults");
    let mut amiss = faults::look(setting, run, (&snapshot, eyes), &before, &mut ledger)?;
    learn::at_rest(setting, run, &snapshot, &mut ledger)?;
    lock.phase("judge");
    deeds::settle_earlier(setting, run, &mut ledger)?;
    let drains = release::count_again(setting, run, &mut ledger)?;
    let mut cases = cases::open(setting, &snapshot, amiss.any, &mut ledger)?;
    for case in &mut cases {
        case.settle(setting, run, (&snapshot, eyes), &mut ledger, lock)?;
    }
    lock.phase("act");
    faults::drains::act(setting, run, &snapshot, &amiss, &mut ledger)?;
    lock.phase("release");
    release::ours(setting, run, &snapshot, &cases, &drains, &mut ledger)?;
    let orphans = orphans::look(setting, run, &snapshot, &before, &mut ledger)?;
    let ours = (&drains[..], !orphans.is_empty());
    let drained = blocked::count(setting, run, &snapshot, ours, &before, &mut ledger);
    let left = snapshot.gpus.measured().is_none() || amiss.any || drained;
    amiss.words.extend(orphans);
    metrics::write(setting, &snapshot, &cases, &mut ledger);
    post::deliver(setting, lock, &mut ledger);
    Ok((Ended::Ran(cases::summary(&snapshot, &cases, &amiss.words, &ledger)), left, ledger))
}

/// States that change rarely are read by the first run of each five minutes, and by every run while something is amiss.
fn states_are_due(previous: Option<BootMs>, now: BootMs) -> bool {
    const EVERY_MS: i64 = 300_000;
    previous.is_none_or(|previous| previous.0.div_euclid(EVERY_MS) != now.0.div_euclid(EVERY_MS))
}

/// A run that began after this one had the lock first: a sample of an earlier moment behind its own would be no sample
/// but a hole. What lies further ahead is no run beside this one.
fn came_later(newest: BootMs, now: BootMs) -> bool {
    let ahead_ms = newest.since_ms(now);
    (0..=2 * LOCK_WAIT.as_millis() as i64).contains(&ahead_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_waited_while_a_later_one_sampled_leaves() {
        for (newest, now, leaves) in [
            (10_000, 9_970, true),
            (10_000, 10_000, true),
            (10_000, 10_001, false),
            (10_000, 9_000, true),
            // A clock that went back, as of a machine restored: no run waits for so long.
            (10_000, 7_000, false),
        ] {
            assert_eq!(came_later(BootMs(newest), BootMs(now)), leaves, "{newest} {now}");
        }
    }
}

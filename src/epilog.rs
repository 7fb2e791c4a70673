//! The Epilog: clears the job run from everything the policy reads, and keeps its case file where it had a finding
//! or an action. Then it looks whether the job's own GPUs, and no others, are clean; what outlived the job is kept, and the
//! node drained for it where the site wants that. Fails only where that drain was asked for and is not seen to be done.
//! Never a signal to any process.

mod ended;
pub mod here;
pub mod verify;

use crate::explain::{self, Asked};
use crate::ledger::{Ledger, LedgerError};
use crate::mode::Mode;
use crate::model::{JobId, JobRun};
use crate::prolog::{Done, Env, job_id};
use crate::run::leaks::{Kept, Leak};
use crate::run::{self, Setting};
use ended::Ended;
use std::time::{Duration, Instant};
use verify::{Looked, Sight, Verified};

/// How long an Epilog waits for the ledger: longer than a Prolog, since nobody waits for it, shorter than Slurm's
/// patience.
const LEDGER_WAIT: Duration = Duration::from_secs(4);

/// Gives what is looked with, once it is needed; or says why that cannot be had. Takes whether the ledger remembers that
/// the GPUs stay initialised.
pub type OpenSight<'a, 's> = &'a mut dyn FnMut(bool) -> Result<Box<dyn Sight + 's>, String>;

/// Clears the job run of this environment, then looks at its GPUs.
pub fn run(asked: &Asked, env: Env, sight: OpenSight) -> Result<Done, String> {
    let (config, place, now) = (asked.config, asked.place, asked.now);
    let job = job_id(env)?;
    let restart = env("SLURM_JOB_RESTART_COUNT").and_then(|n| n.parse().ok());
    let later = |e: LedgerError| {
        format!("{e}; job {job} is not cleared, it is withheld from until Slurm says that it ended")
    };
    let opening = run::opening(config, LEDGER_WAIT);
    let mut ledger = Ledger::open(&place.dir, &place.node, now, opening).map_err(later)?;
    let ending = ledger.ending_run(job, restart, now).map_err(later)?;
    let case = match ending.clone() {
        Some(job_run) => explain::case_file(asked, &ledger, job_run).map_err(later)?,
        None => None,
    };
    let archive = config.mode() == Mode::Observe;
    let cleared = ledger.clear(job, restart, now, archive, case.as_ref()).map_err(later)?;
    let mut words = format!(
        "job {job} cleared: {} samples {}{}",
        cleared.samples,
        if cleared.archived { "archived" } else { "dropped" },
        if cleared.case_kept { ", case file kept" } else { "" }
    );
    let ended = Ended::find(asked, env, ending.clone(), &ledger);
    let persistent = run::faults::is_persistent(&ledger.remembered().map_err(later)?);
    let notes = ledger.notes().to_vec();
    // The worker is forked, and an open ledger must not be in two processes.
    drop(ledger);
    let verified = Verified { job, run: cleared.job_run, looked: look(asked, ended, persistent, sight) };
    if let Looked::NotChecked(why) = &verified.looked {
        words += &format!("; whether its GPUs are clean was not checked: {why}");
    }
    let mut done = Done { words, notes, found: verified.lines(config.epilog.verify), drain_failed: false };
    let leaks = verified.leaks();
    if !leaks.is_empty() {
        match keep(asked, (job, ending.as_ref()), &leaks) {
            Ok(kept) => {
                done.found.extend(kept.lines);
                done.drain_failed = kept.drain_failed;
            }
            Err(why) => done.found.push(format!("{why}; what job {job} left is not kept")),
        }
    }
    Ok(done)
}

/// A drain for a leak may take so long in all: Slurm is asked four times at most.
const DRAIN_TAKES: Duration = Duration::from_secs(30);

/// Keeps what was found, and drains where the site wants that.
fn keep(asked: &Asked, job: (JobId, Option<&JobRun>), leaks: &[Leak]) -> Result<Kept, String> {
    let Asked { config, place, now, slurm } = *asked;
    let opening = run::opening(config, LEDGER_WAIT);
    let mut ledger = Ledger::open(&place.dir, &place.node, now, opening).map_err(|e| e.to_string())?;
    let setting = Setting {
        config,
        place,
        now,
        slurm,
        slurmd_is_younger: &|_| false,
        interval_ms: Some(0),
        until: Instant::now() + DRAIN_TAKES,
    };
    run::leaks::keep(&setting, job, leaks, &mut ledger).map_err(|trouble| trouble.to_string())
}

/// A job without GPUs here is not looked at, nor is a driver that a look would change.
fn look(asked: &Asked, ended: Result<Ended, String>, persistent: bool, sight: OpenSight) -> Looked {
    if ended.as_ref().is_ok_and(|ended| ended.units.is_empty()) {
        return Looked::NoUnits;
    }
    let mut sight = match sight(persistent).and_then(|sight| sight.may_look().map(|()| sight)) {
        Ok(sight) => sight,
        Err(why) => return Looked::NotChecked(why),
    };
    match ended {
        Ok(ended) => Looked::Units(ended.look(asked, sight.as_mut())),
        Err(why) => Looked::UnitsUnknown(why),
    }
}

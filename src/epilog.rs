//! The Epilog: clears the job run from everything the policy reads, and keeps its case file where it had a finding
//! or an action. Then it looks whether the job's own GPUs, and no others, are clean; what outlived the job is kept, and the
//! node drained for it where the site wants that. Fails only where that drain was asked for and is not seen to be done.
//! Never a signal to any process.

mod ended;
pub mod here;
pub mod verify;

use crate::explain::{self, Asked};
use crate::ledger::{Cleared, Ledger, LedgerError};
use crate::mode::Mode;
use crate::model::{JobId, JobRun, JobRunId};
use crate::prolog::{Done, Env, job_id};
use crate::run::leaks::{Kept, Leak};
use crate::run::{self, Setting, tell};
use ended::Ended;
use std::time::{Duration, Instant};
use verify::{Looked, Sight, Verified};

/// How long an Epilog waits for the ledger: longer than a Prolog, since nobody waits for it, shorter than Slurm's
/// patience.
const LEDGER_WAIT: Duration = Duration::from_secs(4);

/// Gives what is looked with, once it is needed; or says why that cannot be had. Takes whether the ledger remembers that
/// the GPUs stay initialised.
pub type OpenSight<'a, 's> = &'a mut dyn FnMut(bool) -> Result<Box<dyn Sight + 's>, String>;

/// Clears the job run of this environment, then looks at its GPUs: also where it could not be cleared, for nobody else
/// will look at them.
pub fn run(asked: &Asked, env: Env, sight: OpenSight) -> Result<Done, String> {
    let job = job_id(env)?;
    let closed = Closed::with_ledger(asked, env, job).unwrap_or_else(|e| Closed::without(asked, env, job, e));
    let Closed { uncleared, words, mut notes, row, ending, ended, persistent } = closed;
    let verified = Verified { job, run: row, looked: look(asked, ended, persistent, sight) };
    let words = match looked_words(&verified.looked, uncleared) {
        Some(looked) if uncleared => {
            // What had to be said first; a hook without trouble says nothing.
            notes.push(words);
            looked
        }
        Some(looked) => format!("{words}; {looked}"),
        None => words,
    };
    let mut done =
        Done { words, notes, found: verified.lines(asked.config.epilog.verify), drain_failed: false };
    let leaks = verified.leaks();
    match uncleared {
        _ if leaks.is_empty() => {}
        true => done.found.push(format!("what job {job} left is not kept")),
        false => match keep(asked, (job, ending.as_ref()), &leaks) {
            Ok(kept) => {
                done.found.extend(kept.lines);
                done.drain_failed = kept.drain_failed;
            }
            Err(why) => done.found.push(format!("{why}; what job {job} left is not kept")),
        },
    }
    Ok(done)
}

/// What became of the look, where that has to stand beside what became of the job.
fn looked_words(looked: &Looked, uncleared: bool) -> Option<String> {
    Some(match looked {
        Looked::NotChecked(why) => format!("whether its GPUs are clean was not checked: {why}"),
        _ if !uncleared => return None,
        Looked::NoUnits => "no GPU of it is known that could be looked at".to_owned(),
        Looked::UnitsUnknown(_) => "which GPUs it held is not known".to_owned(),
        Looked::Units(_) => "its GPUs were looked at all the same".to_owned(),
    })
}

/// What the ledger gave before it was closed: the worker is forked, and an open ledger must not be in two processes.
struct Closed {
    uncleared: bool,
    words: String,
    notes: Vec<String>,
    row: Option<JobRunId>,
    ending: Option<JobRun>,
    ended: Result<Ended, String>,
    persistent: bool,
}

impl Closed {
    fn with_ledger(asked: &Asked, env: Env, job: JobId) -> Result<Closed, LedgerError> {
        let (config, place, now) = (asked.config, asked.place, asked.now);
        let restart = env("SLURM_JOB_RESTART_COUNT").and_then(|n| n.parse().ok());
        let opening = run::opening(config, LEDGER_WAIT);
        let mut ledger = Ledger::open(&place.dir, &place.node, now, opening)?;
        let ending = ledger.ending_run(job, restart, now)?;
        let case =
            ending.clone().map_or(Ok(None), |run| explain::case_file(asked, &ledger, run, "its Epilog came"));
        // Before its finding is closed.
        let untold = ending.as_ref().map_or(Vec::new(), |run| {
            tell::recovered((config, &place.node, now), run, "the job has ended", &mut ledger)
        });
        let archive = config.mode() == Mode::Observe;
        let cleared = case.and_then(|case| ledger.clear(job, restart, now, archive, case.as_ref()));
        Ok(Closed {
            uncleared: cleared.is_err(),
            words: match &cleared {
                Ok(cleared) => cleared_words(job, cleared),
                Err(e) => uncleared_words(job, e),
            },
            row: cleared.ok().and_then(|cleared| cleared.job_run),
            ended: Ended::find(asked, env, ending.clone(), Some(&ledger)),
            ending,
            persistent: ledger.remembered().is_ok_and(|all| run::faults::is_persistent(&all)),
            notes: ledger.notes().iter().cloned().chain(untold).collect(),
        })
    }

    fn without(asked: &Asked, env: Env, job: JobId, why: LedgerError) -> Closed {
        Closed {
            uncleared: true,
            words: uncleared_words(job, &why),
            notes: Vec::new(),
            row: None,
            ending: None,
            ended: Ended::find(asked, env, None, None),
            persistent: false,
        }
    }
}

fn cleared_words(job: JobId, cleared: &Cleared) -> String {
    let samples = if cleared.archived { "archived" } else { "dropped" };
    let case = if cleared.case_kept { ", case file kept" } else { "" };
    format!("job {job} cleared: {} samples {samples}{case}", cleared.samples)
}

fn uncleared_words(job: JobId, why: &LedgerError) -> String {
    format!("{why}; job {job} is not cleared, it is withheld from until Slurm says that it ended")
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

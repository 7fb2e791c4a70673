//! The Epilog: clears the job run from everything the policy reads, and keeps its case file where it had a finding
//! or an action. Never a non-zero exit in this version, never a signal to any process, no driver touched.

use crate::config::Config;
use crate::explain::{self, Asked};
use crate::ledger::{Ledger, LedgerError};
use crate::mode::Mode;
use crate::model::Now;
use crate::place::Place;
use crate::prolog::{Done, Env, job_id};
use crate::run;
use crate::slurm::Slurm;
use std::time::Duration;

/// How long an Epilog waits for the ledger: longer than a Prolog, since nobody waits for it, shorter than Slurm's
/// patience.
const LEDGER_WAIT: Duration = Duration::from_secs(4);

/// Clears the job run of this environment.
pub fn run(config: &Config, place: &Place, slurm: &Slurm, now: &Now, env: Env) -> Result<Done, String> {
    let job = job_id(env)?;
    let restart = env("SLURM_JOB_RESTART_COUNT").and_then(|n| n.parse().ok());
    let later = |e: LedgerError| {
        format!("{e}; job {job} is not cleared, it is withheld from until Slurm says that it ended")
    };
    let opening = run::opening(config, LEDGER_WAIT);
    let mut ledger = Ledger::open(&place.dir, &place.node, now, opening).map_err(later)?;
    let asked = Asked { config, place, now, slurm };
    let case = match ledger.ending_run(job, restart, now).map_err(later)? {
        Some(job_run) => explain::case_file(&asked, &ledger, job_run).map_err(later)?,
        None => None,
    };
    let archive = config.mode() == Mode::Observe;
    let cleared = ledger.clear(job, restart, now, archive, case.as_ref()).map_err(later)?;
    let words = format!(
        "job {job} cleared: {} samples {}{}",
        cleared.samples,
        if cleared.archived { "archived" } else { "dropped" },
        if cleared.case_kept { ", case file kept" } else { "" }
    );
    Ok(Done { words, notes: ledger.notes().to_vec() })
}

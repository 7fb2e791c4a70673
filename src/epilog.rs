//! The Epilog: clears the job run from everything the policy reads, and keeps its case file where it had a finding
//! or an action. Never a non-zero exit in this version, never a signal to any process, no driver touched.

use crate::config::Config;
use crate::explain::{self, Asked};
use crate::ledger::{CaseFile, Ledger, LedgerError};
use crate::mode::Mode;
use crate::model::{JobRun, Now};
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
        Some(job_run) => case_file(&asked, &ledger, job_run).map_err(later)?,
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

/// The explanation as it stands, for a run that had a finding or an action.
fn case_file(asked: &Asked, ledger: &Ledger, job: JobRun) -> Result<Option<CaseFile>, LedgerError> {
    let nothing = ledger.findings_of(job.id)?.is_empty() && ledger.actions_of(job.id)?.is_empty();
    if nothing {
        return Ok(None);
    }
    let display_id = job.shown_id();
    let told = explain::tell(asked, ledger, job, &[])?;
    let mut body = explain::json::page(&told);
    body["page"] = explain::text::page(&told).into();
    Ok(Some(CaseFile { display_id, body: body.to_string() }))
}

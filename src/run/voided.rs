//! Job runs that an earlier boot left open: whatever held their GPUs went with it, and no Epilog tells of it. What was
//! found of them is kept as of any other run that ended. Looked for by the first run of a boot.

use super::snapshot::Books;
use super::{Setting, tell};
use crate::explain::{self, Asked};
use crate::ledger::{Ledger, LedgerError};
use crate::model::{JobRun, Now};

/// Closes those that had a finding or an action, each with its case file as its last sample saw it. Whatever fails here
/// fails no run.
pub fn close(setting: &Setting, books: &Books, ledger: &mut Ledger) {
    if books.previous.is_some() {
        return;
    }
    let closed = ledger.left_by_boot_before(&setting.now.boot_id).and_then(|left| {
        let Some((last, left)) = left else { return Ok(()) };
        left.into_iter().try_for_each(|run| close_one(setting, run, &last, ledger))
    });
    if let Err(why) = closed {
        tracing::warn!("{why}; of what an earlier boot left open not everything is kept as a case");
    }
}

fn close_one(setting: &Setting, run: JobRun, last: &Now, ledger: &mut Ledger) -> Result<(), LedgerError> {
    let asked = Asked { config: setting.config, place: setting.place, now: last, slurm: setting.slurm };
    let Some(case) = explain::case_file(&asked, ledger, run.clone(), "the node booted")? else {
        return Ok(());
    };
    tell::over(setting, &run, "the node booted, the job run is over", ledger);
    // What a crash broke off is worth a back-test in any mode.
    ledger.clear_without_epilog(&run, last, true, Some(&case))?;
    let (raw, job) = (run.registration.job.get(), run.shown_id());
    tracing::info!(job = raw, "job {job}: the node booted while it ran; what was found is kept as a case");
    Ok(())
}

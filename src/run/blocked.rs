//! What our own drains cost: GPUs that nobody holds while one of them stands. Counted from run to run, never over a hole or
//! a boot, and never guessed. Without a drain it costs nothing.

use super::Setting;
use super::snapshot::Snapshot;
use crate::act;
use crate::ledger::{FaultDrain, Ledger, LedgerError, OpenDrain};
use crate::lock::Before;
use crate::model::{Outcome, RunId};
use crate::policy::window;

/// The question whether drains for faults still stand, under which it is kept when to ask again.
const SUBJECT: &str = "fault drains stand";

/// Counts what was blocked between the run before and this one, and gives whether a drain of ours stands: then the next
/// run has to look here too. `orphaned`: one that an earlier boot or ledger made.
///
/// Where a job's GPUs are not known nothing is counted, nor where runs have no cadence yet. What cannot be counted fails no
/// run: it has done all else.
pub fn count(
    setting: &Setting,
    run: RunId,
    snapshot: &Snapshot,
    ours: (&[OpenDrain], bool),
    before: &Before,
    ledger: &mut Ledger,
) -> bool {
    counted(setting, run, snapshot, ours, before, ledger).unwrap_or_else(|why| {
        tracing::warn!("{why}; what our drains block is not counted for this run");
        true
    })
}

fn counted(
    setting: &Setting,
    run: RunId,
    snapshot: &Snapshot,
    (drains, orphaned): (&[OpenDrain], bool),
    before: &Before,
    ledger: &mut Ledger,
) -> Result<bool, LedgerError> {
    let here = |d: &&OpenDrain| d.action.outcome == Outcome::Done && d.boot_id == setting.now.boot_id;
    let mut by_run: Vec<RunId> = drains.iter().filter(here).map(|drain| drain.action.run).collect();
    // One for a fault may outlive it; that it stands, the run before has left in the lock file.
    let for_faults = match before {
        Before::Ended => Vec::new(),
        Before::EndedAmiss | Before::Killed(_) => ledger.fault_drains(setting.now)?,
    };
    let for_faults: Vec<_> = for_faults.into_iter().filter(|drain| drain.outcome == Outcome::Done).collect();
    by_run.extend(for_faults.iter().map(|drain| drain.run));
    let stands = orphaned || !by_run.is_empty();
    if !orphaned && !by_run.iter().any(|made| *made < run) {
        return Ok(stands);
    }
    let (Some(cadence), true) = (snapshot.cadence.measured(), snapshot.knows_all_holders()) else {
        return Ok(stands);
    };
    let limits = window::limits(&setting.config.rules.thresholds, *cadence);
    if ledger.count_blocked(run, limits.gap_ms)? > 0 {
        look_after(setting, &for_faults, ledger)?;
    }
    Ok(stands)
}

/// A person may have lifted one by Slurm's own command, of which no run is told: it is asked ever more rarely, while it
/// would be counted.
fn look_after(setting: &Setting, drains: &[FaultDrain], ledger: &mut Ledger) -> Result<(), LedgerError> {
    if drains.is_empty() || !setting.may_ask() || !ledger.ask_allowed(SUBJECT, setting.now)? {
        return Ok(());
    }
    ledger.unanswered(SUBJECT, setting.now)?;
    let Ok(node) = setting.slurm.node() else { return Ok(()) };
    for drain in drains.iter().filter(|drain| !drain.shows(&node)) {
        let words = act::by_somebody(&node);
        ledger.end_fault_drain(drain.id, Outcome::Lifted, &words)?;
        tracing::info!("our drain `{}` no longer stands: {words}", drain.reason);
    }
    Ok(())
}

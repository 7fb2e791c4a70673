//! Lifting our own drains, by a later run, never by the Epilog: only once the job run is gone or certainly works
//! again, its GPUs are clean, and two runs agree. Any doubt and the drain stays.

use super::cases::Case;
use super::snapshot::Snapshot;
use super::{Setting, Trouble};
use crate::act::{self, Deed, Desk};
use crate::config::Release;
use crate::ledger::{Ledger, OpenDrain};
use crate::model::*;
use crate::policy::Judgement;
use crate::reading::Reading;

/// Above this a GPU that nobody holds is not clean: 2 % of its memory, and what a driver may use.
const CLEAN_BYTES: u64 = 256 << 20;

/// Looks at every drain of ours that still stands.
pub fn ours(
    setting: &Setting,
    run: RunId,
    snapshot: &Snapshot,
    cases: &[Case],
    drains: Vec<OpenDrain>,
    ledger: &mut Ledger,
) -> Result<(), Trouble> {
    for mut drain in drains {
        settle(setting, run, &mut drain, ledger)?;
        if let Err(why) = fit(setting, snapshot, cases, &drain) {
            ledger.clear_release_seen(drain.action.id)?;
            tracing::debug!("our drain for job {} stays: {why}", drain.job);
            continue;
        }
        let before = ledger.note_release_seen(drain.action.id, run)?;
        if before.is_none_or(|seen| seen >= run) || !setting.may_act() {
            continue;
        }
        let mut desk = Desk { ledger, slurm: setting.slurm, now: setting.now, run, finding: 0 };
        tell(&drain, act::release(&drain, &mut desk)?);
    }
    Ok(())
}

/// A drain whose outcome is not known, of a job that has gone meanwhile: looked at, never repeated.
fn settle(setting: &Setting, run: RunId, drain: &mut OpenDrain, ledger: &mut Ledger) -> Result<(), Trouble> {
    let unclear = matches!(drain.action.outcome, Outcome::Begun | Outcome::Unknown);
    if !unclear || drain.job_open || !setting.may_ask() {
        return Ok(());
    }
    let mut desk = Desk { ledger, slurm: setting.slurm, now: setting.now, run, finding: 0 };
    if let Some(outcome) = act::reconcile(&drain.action, drain.job, &mut desk)? {
        drain.action.outcome = outcome;
    }
    Ok(())
}

fn tell(drain: &OpenDrain, deed: Deed) {
    let job = drain.job.get();
    match deed {
        Deed::Ended(Outcome::Lifted, words) => {
            tracing::warn!(job, "our drain for job {job} is lifted: {words}")
        }
        Deed::Ended(_, words) => {
            tracing::warn!(job, "our drain for job {job}: outcome of the release unknown: {words}")
        }
        Deed::Withheld(why) => tracing::info!(job, "our drain for job {job} stays: {why}"),
    }
}

/// Whether this run sees the drain fit for release.
fn fit(setting: &Setting, snapshot: &Snapshot, cases: &[Case], drain: &OpenDrain) -> Result<(), String> {
    if setting.config.act.release == Release::Never {
        return Err("`act.release` is never".to_owned());
    }
    if setting.config.mode().permit().is_none() {
        return Err("mode is observe".to_owned());
    }
    if drain.boot_id != setting.now.boot_id {
        return Err("it was made before this boot".to_owned());
    }
    if drain.action.outcome != Outcome::Done {
        return Err("its outcome is not known".to_owned());
    }
    let case = cases.iter().find(|c| c.history.job.id == drain.job_run);
    match case.map(|c| &c.assessment.judgement) {
        Some(Judgement::Alive { .. }) => Ok(()),
        Some(_) => Err("its job run is still here".to_owned()),
        None if drain.job_open => Err("its job run is still here".to_owned()),
        None => clean(snapshot),
    }
}

/// No process and no memory held on any unit that no registered job holds.
fn clean(snapshot: &Snapshot) -> Result<(), String> {
    let report = match &snapshot.gpus {
        Reading::Measured(report) => report,
        Reading::Absent(why) => return Err(format!("the GPUs could not be read: {}", why.words())),
    };
    let held: Vec<_> =
        snapshot.held.values().filter_map(|h| h.measured()).flatten().map(|u| &u.uuid).collect();
    for unit in &report.units {
        let Reading::Measured(uuid) = &unit.identity.uuid else {
            return Err(format!("GPU {} cannot be read", unit.identity.index));
        };
        if held.contains(&uuid) {
            continue;
        }
        let empty = matches!(&unit.readings.processes, Reading::Measured(p) if p.iter().all(|p| p.kind == ProcessKind::Graphics));
        let free = match &unit.readings.memory {
            Reading::Measured(m) => m.used.0 <= m.total.0 / 50 + CLEAN_BYTES,
            Reading::Absent(_) => empty,
        };
        if !empty || !free {
            return Err(format!("GPU {} is not clean", unit.identity.index));
        }
    }
    Ok(())
}

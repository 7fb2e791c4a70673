//! Lifting our own drains, by a later run, never by the Epilog: only once the job run is gone or certainly works
//! again, its GPUs are clean, and two runs agree. Any doubt and the drain stays.

use super::cases::Case;
use super::snapshot::Snapshot;
use super::{Setting, Trouble};
use crate::act::{self, Desk, Ending, Lift};
use crate::config::Release;
use crate::ledger::{Ledger, OpenDrain};
use crate::model::*;
use crate::policy::Judgement;
use crate::reading::Reading;

/// Above this a GPU that nobody holds is not clean: 2 % of its memory, and what a driver may use.
const CLEAN_BYTES: u64 = 256 << 20;

/// The kind of fault under which a drain that stays is kept.
const KIND: &str = "drain";

/// Why a drain is not fit for release.
enum Stays {
    /// Its job run is here, or its outcome is still to be found out: a later run sees.
    ForNow,
    /// Something that may never pass by itself: people are told.
    Because(String),
}

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
        if let Err(stays) = fit(setting, snapshot, cases, &drain) {
            if drain.release_seen.is_some() {
                ledger.clear_release_seen(drain.action.id)?;
            }
            if let Stays::Because(why) = stays {
                look_and_tell(setting, run, &drain, &why, ledger)?;
            }
            continue;
        }
        let before = ledger.note_release_seen(drain.action.id, run)?;
        if before.is_none_or(|seen| seen >= run) || !setting.may_act() {
            continue;
        }
        let mut desk = Desk { ledger, slurm: setting.slurm, now: setting.now, run, finding: 0 };
        match act::lift(&drain, Lift::Release, &mut desk)? {
            Ending::Withheld(doubt) if told(&drain, &doubt.because, ledger)? => {}
            Ending::Withheld(doubt) => tell_it_stays(setting, run, &drain, &doubt.because, ledger)?,
            Ending::Ended(outcome, words) => tell(setting, &drain, outcome, &words, ledger)?,
        }
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

fn tell(
    setting: &Setting,
    drain: &OpenDrain,
    outcome: Outcome,
    words: &str,
    ledger: &mut Ledger,
) -> Result<(), Trouble> {
    let job = drain.job.get();
    if outcome != Outcome::Lifted {
        tracing::warn!(job, "our drain for job {job}: outcome of the release unknown: {words}");
        return Ok(());
    }
    tracing::warn!(job, "our drain for job {job} is lifted: {words}");
    let subject = drain.action.id.to_string();
    for fault in ledger.open_faults()?.iter().filter(|f| f.kind == KIND && f.subject == subject) {
        ledger.fault_gone(fault.id, setting.now)?;
    }
    Ok(())
}

/// Whether that was told already, of this drain and for this reason.
fn told(drain: &OpenDrain, why: &str, ledger: &Ledger) -> Result<bool, Trouble> {
    let subject = drain.action.id.to_string();
    Ok(ledger.open_faults()?.iter().any(|f| f.kind == KIND && f.subject == subject && f.detail == why))
}

/// Before people are sent to a drain: is it still there, and ours? While Slurm does not say, nothing is told.
fn look_and_tell(
    setting: &Setting,
    run: RunId,
    drain: &OpenDrain,
    why: &str,
    ledger: &mut Ledger,
) -> Result<(), Trouble> {
    if told(drain, why, ledger)? || !setting.may_ask() {
        return Ok(());
    }
    match setting.slurm.node() {
        Ok(node) if drain.shows(&node) => tell_it_stays(setting, run, drain, why, ledger),
        Ok(node) => {
            let detail = format!("lifted or changed by somebody else: {node}");
            ledger.mark_lifted(drain.action.id, &detail)?;
            tell(setting, drain, Outcome::Lifted, &detail, ledger)
        }
        Err(_) => Ok(()),
    }
}

/// Says that a drain stays and how to lift it, and keeps that it was said.
fn tell_it_stays(
    setting: &Setting,
    run: RunId,
    drain: &OpenDrain,
    why: &str,
    ledger: &mut Ledger,
) -> Result<(), Trouble> {
    ledger.fault_seen(KIND, &drain.action.id.to_string(), why, run, setting.now)?;
    let (job, node) = (drain.job.get(), &setting.place.node);
    let lift = format!("`scontrol update nodename={node} state=undrain`");
    tracing::warn!(job, "our drain for job {job} stays: {why}; to lift it: {lift}");
    Ok(())
}

/// Whether this run sees the drain fit for release.
fn fit(setting: &Setting, snapshot: &Snapshot, cases: &[Case], drain: &OpenDrain) -> Result<(), Stays> {
    if drain.action.outcome != Outcome::Done {
        return Err(Stays::ForNow);
    }
    let case = cases.iter().find(|c| c.history.job.id == drain.job_run);
    let alive = match case.map(|c| &c.assessment.judgement) {
        Some(Judgement::Alive { .. }) => true,
        Some(_) => return Err(Stays::ForNow),
        None if drain.job_open => return Err(Stays::ForNow),
        None => false,
    };
    let because = |why: &str| Err(Stays::Because(why.to_owned()));
    if setting.config.act.release == Release::Never {
        return because("`act.release` is never");
    }
    if !setting.config.mode().enforces() {
        return because("mode is observe");
    }
    if drain.boot_id != setting.now.boot_id {
        return because("it was made before this boot");
    }
    if alive { Ok(()) } else { clean(snapshot).map_err(Stays::Because) }
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

//! The drain for a fault: one step for each that may have one, and what becomes of earlier ones. None is ever lifted here,
//! but one too many.

use super::{Amiss, action, mode};
use crate::act::look::FOR_A_FAULT;
use crate::act::{self, Desk, Doubt, Ending};
use crate::ledger::{FaultDrain, FaultRow, Ledger};
use crate::model::{Outcome, RunId, Verdict};
use crate::policy::fault::{self, Action, Standing, Step};
use crate::policy::reason;
use crate::policy::slot::Slot;
use crate::reading::{Absence, Reading};
use crate::run::deeds::{held_by, look as look_by};
use crate::run::snapshot::Snapshot;
use crate::run::tell::{ForFault, fault as tell_people};
use crate::run::{Setting, Trouble};

/// Looks after earlier drains, and takes each fault's one step.
pub fn act(
    setting: &Setting,
    run: RunId,
    snapshot: &Snapshot,
    amiss: &Amiss,
    ledger: &mut Ledger,
) -> Result<(), Trouble> {
    if !amiss.any {
        return Ok(());
    }
    let mut drains = ledger.fault_drains(setting.now)?;
    for drain in &mut drains {
        look_after(setting, run, drain, ledger)?;
    }
    for (row, standing) in &amiss.standing {
        step(setting, run, snapshot, (row, standing), &drains, ledger)?;
    }
    Ok(())
}

/// One whose end is not known is looked for; one that was made is counted once more.
fn look_after(
    setting: &Setting,
    run: RunId,
    drain: &mut FaultDrain,
    ledger: &mut Ledger,
) -> Result<(), Trouble> {
    let unclear = matches!(drain.outcome, Outcome::Begun | Outcome::Unknown);
    let subject = format!("fault drain {}", drain.id);
    // Who switches back to observe is not acted for.
    let enforces = || reason::read_fault(&drain.reason).is_some_and(|kind| mode(setting, kind).enforces());
    let due = drain.run < run && drain.is_unsettled() && (unclear || enforces());
    if !due || !setting.may_act() || !ledger.ask_allowed(&subject, setting.now)? {
        return Ok(());
    }
    ledger.unanswered(&subject, setting.now)?;
    let mut unseen = || Reading::Absent(Absence::NotAsked);
    let look = look_by(setting, &mut unseen);
    let mut desk = Desk { ledger, slurm: setting.slurm, now: setting.now, run, finding: 0 };
    if unclear {
        if let Some(outcome) = act::fault::reconcile(drain, &mut desk)? {
            drain.outcome = outcome;
            tracing::warn!("the earlier drain `{}` is {}, by looking", drain.reason, outcome.word());
        }
        return Ok(());
    }
    match act::fault::count_again(drain, &look, &mut desk)? {
        Some(Ending::Ended(Outcome::Done, words)) => {
            drain.outcome = Outcome::Failed;
            tracing::warn!(
                "our drain `{}` is withdrawn: others drained at the same time, and with it the limit over the cluster \
                 was overshot: {words}",
                drain.reason
            );
        }
        Some(Ending::Ended(_, words) | Ending::Withheld(Doubt { because: words, .. })) => {
            tracing::warn!("our drain `{}` is one too many and stays for now: {words}", drain.reason);
        }
        None => {}
    }
    Ok(())
}

/// Whether a drain was made for this episode, or for another one while it stood: there is no second one, whoever lifted
/// it. One broken card shows by several faults.
pub fn is_covered(row: &FaultRow, drains: &[FaultDrain]) -> bool {
    let is_its = |drain: &FaultDrain| drain.fault == row.id || drain.made.0 >= row.opened.0;
    let while_one_stood = row.withheld.as_deref().is_some_and(|why| why.contains(FOR_A_FAULT));
    while_one_stood || drains.iter().any(|d| (d.stands() || d.outcome == Outcome::Lifted) && is_its(d))
}

fn step(
    setting: &Setting,
    run: RunId,
    snapshot: &Snapshot,
    (row, standing): (&FaultRow, &Standing),
    drains: &[FaultDrain],
    ledger: &mut Ledger,
) -> Result<(), Trouble> {
    let (config, node, kind) = (setting.config, &setting.place.node, standing.kind);
    let action = action(setting, kind);
    if action != Action::Drain {
        return Ok(());
    }
    let spread_ms = config.limits.spread.as_millis() as i64;
    let slot = Slot::of_fault(node, kind.word(), spread_ms, snapshot.cadence.measured().copied());
    let open = slot.is_open(snapshot.previous, setting.now.boot);
    let back_off = format!("drain for fault {}", row.id);
    let circumstances = fault::Circumstances {
        action,
        // How far `enforce_in` reaches a leak's job its Epilog has said: else the row has no place.
        permit: mode(setting, kind).node_permit(&config.enforce_in, node),
        drained: is_covered(row, drains),
        wait_ms: if open { 0 } else { slot.next_in_ms(setting.now.boot) },
        held_by: held_by(setting, ledger)?,
    };
    let because = match fault::escalate(standing, circumstances) {
        Step::Rest | Step::Later => return Ok(()),
        Step::Withheld(because) => because,
        Step::Drain(_) if !ledger.ask_allowed(&back_off, setting.now)? => return Ok(()),
        Step::Drain(warrant) => {
            let mut unseen = || Reading::Absent(Absence::NotAsked);
            let look = look_by(setting, &mut unseen);
            let mut desk = Desk { ledger, slurm: setting.slurm, now: setting.now, run, finding: 0 };
            match act::fault::drain(warrant, row.id, &look, &mut desk)? {
                Ending::Withheld(doubt) => {
                    ledger.unanswered(&back_off, setting.now)?;
                    doubt.because
                }
                Ending::Ended(outcome, words) => {
                    if outcome == Outcome::Failed {
                        ledger.unanswered(&back_off, setting.now)?;
                    }
                    let (fault, how) = (kind.word(), outcome.word());
                    tracing::warn!(
                        fault,
                        verdict = Verdict::Drain.word(),
                        outcome = how,
                        "drain for fault {fault} {how}: {words}"
                    );
                    let enforces = mode(setting, kind).enforces();
                    tell_people(setting, row, enforces, ForFault::Drain(outcome, &words), ledger);
                    return Ok(());
                }
            }
        }
    };
    if ledger.fault_withheld(row.id, &because)? {
        tracing::warn!(
            fault = kind.word(),
            verdict = Verdict::Drain.word(),
            "fault {}: drain withheld: {because}",
            kind.word()
        );
        let withheld = ForFault::Withheld(&because);
        tell_people(setting, row, mode(setting, kind).enforces(), withheld, ledger);
    }
    Ok(())
}

//! The drain for a fault of the node: the same look, limit and durable record as for a job's, and nothing of a job. It is
//! never lifted by a run, but for the one that drained one too many.

use super::look::Look;
use super::{Desk, Ending, Lift, lift_recorded, seen};
use crate::ledger::{FaultDrain, Ledger, LedgerError};
use crate::model::{NodeStatus, Outcome};
use crate::policy::fault::DrainWarrant;
use crate::policy::reason;
use crate::slurm::Controller;

/// Drains this node for the warrant's fault, whose row is `fault`.
pub fn drain(warrant: DrainWarrant, fault: i64, look: &Look, desk: &mut Desk) -> Result<Ending, LedgerError> {
    let node = match look.before_fault_drain(desk) {
        Ok(node) => node,
        Err(doubt) => return Ok(Ending::Withheld(doubt)),
    };
    let reason = warrant.reason();
    let id = desk.ledger.begin_fault_drain(fault, (&node.to_string(), &reason), desk.run, desk.now)?;
    let told = desk.slurm.drain(&reason);
    let seen = desk.slurm.node();
    // The Epilogs of two jobs may drain at once: the later Reason stands, and either way the node is drained.
    let by_another = seen.as_ref().ok().filter(|node| node.drained() && told.is_ok()).and_then(|node| {
        let shown = node.reason.clone()?;
        (shown != reason && reason::read_fault(&shown).is_some()).then(|| node.to_string())
    });
    let (outcome, words) = match by_another {
        Some(node) => (Outcome::Lifted, format!("another drain of ours came at the same time: {node}")),
        None => seen::drained(&told, seen, &reason),
    };
    desk.ledger.end_fault_drain(id, outcome, &words)?;
    Ok(Ending::Ended(outcome, words))
}

/// Finds out how an earlier one ended, by looking, never by repeating it. `None`: Slurm does not say yet.
pub fn reconcile(drain: &FaultDrain, desk: &mut Desk) -> Result<Option<Outcome>, LedgerError> {
    let outcome = match desk.slurm.node() {
        Ok(node) if drain.shows(&node) => Outcome::Done,
        Ok(_) if drain.age_ms > super::UNCLEAR_FOR_MS => Outcome::Failed,
        _ => return Ok(None),
    };
    desk.ledger.end_fault_drain(drain.id, outcome, "found by looking")?;
    Ok(Some(outcome))
}

/// Counts the cluster's drains once more, in a run after the drain, and withdraws it if it is one too many. `None`: it may
/// stay, or Slurm does not say.
pub fn count_again(drain: &FaultDrain, look: &Look, desk: &mut Desk) -> Result<Option<Ending>, LedgerError> {
    match look.fault_is_one_too_many(desk) {
        Err(_) => Ok(None),
        Ok(false) => desk.ledger.note_fault_drain_counted(drain.id).map(|()| None),
        Ok(true) => lift(drain, Lift::Withdraw, desk.slurm, desk.ledger).map(Some),
    }
}

/// Lifts it: because it is one too many, or because an administrator on the node says so.
pub fn lift(
    drain: &FaultDrain,
    why: Lift,
    slurm: &dyn Controller,
    ledger: &mut Ledger,
) -> Result<Ending, LedgerError> {
    let shows = |node: &NodeStatus| drain.shows(node);
    lift_recorded(why, slurm, (drain.outcome, &drain.detail), shows, |outcome, words| {
        ledger.end_fault_drain(drain.id, outcome, words)
    })
}

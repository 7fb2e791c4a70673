//! The deeds: drain, cancel, release, and finding out how an unclear one ended. The only room that changes
//! anything outside the ledger. Every deed consumes its warrant, looks before it acts, is written down
//! durably before and with its outcome after; a run killed between the two is reconciled by looking.

pub mod look;
pub mod reason;

use crate::ledger::{Ledger, LedgerError, NewAction};
use crate::model::{ActionRecord, JobRun, Now, Outcome, RunId, Verdict};
use crate::policy::stage::{CancelWarrant, DrainWarrant};
use crate::slurm::{Answer, Slurm};
use look::Look;

/// Where a deed is done: the books, the commands, and this run.
pub struct Desk<'a> {
    /// The books.
    pub ledger: &'a mut Ledger,
    /// Slurm's commands for this node.
    pub slurm: &'a Slurm,
    /// This moment.
    pub now: &'a Now,
    /// This run.
    pub run: RunId,
}

/// How a deed ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Begun, and how it ended, with Slurm's words.
    Ended(Outcome, String),
    /// The look before found a doubt: nothing was begun.
    Withheld(String),
}

/// Drains this node for the warrant's finding.
pub fn drain(warrant: DrainWarrant, job: &JobRun, look: &mut Look, desk: &mut Desk) -> Result<Deed, LedgerError> {
    let finding = warrant.finding();
    let before = match look.before_drain(job, finding, desk) {
        Ok(node) => node,
        Err(doubt) => return Ok(Deed::Withheld(doubt)),
    };
    let reason = reason::waste(job, finding, Verdict::Drain);
    let action = desk.ledger.begin_action(&NewAction {
        verdict: Verdict::Drain,
        job,
        run: desk.run,
        now: desk.now,
        before: &before.words(),
        reason: Some(&reason),
        signature: finding.signature.word(),
        detail: "",
    })?;
    let told = desk.slurm.drain(&reason);
    let (outcome, detail) = match (&told, desk.slurm.node()) {
        (_, Answer::Told(node)) if node.is_drained_as(&reason) => (Outcome::Done, node.words()),
        (Answer::Told(()), Answer::Told(node)) => (Outcome::Failed, format!("Slurm took it, but shows {}", node.words())),
        (Answer::Refused { .. } | Answer::Unavailable(_), _) => (Outcome::Failed, told.words()),
        _ => (Outcome::Unknown, told.words()),
    };
    desk.ledger.end_action(action, outcome, &detail)?;
    Ok(Deed::Ended(outcome, detail))
}

/// Cancels exactly the job run that was judged.
pub fn cancel(warrant: CancelWarrant, job: &JobRun, look: &mut Look, desk: &mut Desk) -> Result<Deed, LedgerError> {
    let finding = warrant.finding();
    let target = match look.before_cancel(job, &warrant, desk) {
        Ok(target) => target,
        Err(doubt) => return Ok(Deed::Withheld(doubt)),
    };
    let action = desk.ledger.begin_action(&NewAction {
        verdict: Verdict::Cancel,
        job,
        run: desk.run,
        now: desk.now,
        before: "RUNNING",
        reason: None,
        signature: finding.signature.word(),
        detail: &target,
    })?;
    if look.admin_comment {
        leave_comment(&target, &reason::comment(job, finding, desk.now), desk.slurm);
    }
    let told = desk.slurm.cancel(&target);
    let (outcome, detail) = cancelled(&told, job, desk.slurm);
    desk.ledger.end_action(action, outcome, &detail)?;
    Ok(Deed::Ended(outcome, detail))
}

/// Says why in the job's AdminComment, unless somebody else's words stand there.
fn leave_comment(target: &str, text: &str, slurm: &Slurm) {
    let words = match slurm.has_admin_comment(target) {
        Answer::Told(true) => "an AdminComment is already there; it was left as it is".to_owned(),
        Answer::Told(false) => slurm.admin_comment(target, text).words(),
        other => other.words(),
    };
    tracing::info!(job = target, "AdminComment: {words}");
}

/// Exit status 0 of scancel proves nothing: an unknown or ended job gives it too. Seen by looking.
fn cancelled(told: &Answer<()>, job: &JobRun, slurm: &Slurm) -> (Outcome, String) {
    use crate::model::JobState::{Completing, Ended, Running};
    match (told, slurm.job(job.registration.job)) {
        (_, Answer::Told(None)) => (Outcome::Done, "Slurm no longer lists it".to_owned()),
        (_, Answer::Told(Some(d))) if matches!(d.state, Completing | Ended) => (Outcome::Done, format!("{:?}", d.state)),
        (Answer::Refused { .. } | Answer::Unavailable(_), Answer::Told(Some(d))) if d.state == Running => {
            (Outcome::Failed, told.words())
        }
        // scancel returns before the job's processes are told.
        _ => (Outcome::Unknown, told.words()),
    }
}

/// How long an update that timed out may still come true (measured: slurmctld applies it when it resumes).
const UNCLEAR_FOR_MS: i64 = 120_000;

/// Finds out how an earlier action ended, by looking, never by repeating it.
pub fn reconcile(action: &ActionRecord, job: &JobRun, desk: &mut Desk) -> Result<Option<Outcome>, LedgerError> {
    let old = desk.now.wall.0 - action.wall.0 > UNCLEAR_FOR_MS;
    let seen = match action.verdict {
        Verdict::Drain => match (desk.slurm.node(), &action.reason) {
            (Answer::Told(node), Some(reason)) => Some(node.is_drained_as(reason)),
            _ => None,
        },
        Verdict::Cancel => match cancelled(&Answer::Told(()), job, desk.slurm) {
            (Outcome::Done, _) => Some(true),
            _ => Some(false),
        },
        Verdict::Alert => Some(false),
    };
    let outcome = match seen {
        Some(true) => Outcome::Done,
        Some(false) if old => Outcome::Failed,
        _ => return Ok(None),
    };
    desk.ledger.end_action(action.id, outcome, "found by looking")?;
    Ok(Some(outcome))
}

/// Lifts a drain of ours: the caller has seen that its job run is gone or works again, in two runs. `UNDRAIN`
/// clears only the drain; every state but plainly IDLE, MIXED or ALLOCATED beside it, and every other reason,
/// keeps it.
pub fn release(drain: &ActionRecord, desk: &mut Desk) -> Result<Deed, LedgerError> {
    let reason = drain.reason.as_deref().unwrap_or_default();
    let node = match desk.slurm.node() {
        Answer::Told(node) => node,
        other => return Ok(Deed::Withheld(other.words())),
    };
    if !node.is_drained_as(reason) {
        desk.ledger.mark_lifted(drain.id, &format!("lifted or changed by somebody else: {}", node.words()))?;
        return Ok(Deed::Ended(Outcome::Lifted, node.words()));
    }
    if !node.is_plain() {
        return Ok(Deed::Withheld(format!("the node is {}", node.words())));
    }
    let told = desk.slurm.undrain();
    match desk.slurm.node() {
        Answer::Told(after) if !after.is_drained() => {
            desk.ledger.mark_lifted(drain.id, "released by us")?;
            Ok(Deed::Ended(Outcome::Lifted, after.words()))
        }
        _ => Ok(Deed::Ended(Outcome::Unknown, told.words())),
    }
}

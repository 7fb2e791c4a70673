//! The deeds: drain, cancel, release, and finding out how an unclear one ended. The only room that changes
//! anything outside the ledger. Every deed consumes its warrant, looks before it acts, is written down
//! durably before and with its outcome after; a run killed between the two is reconciled by looking.

pub mod look;
pub mod reason;

use crate::ledger::{self, Ledger, LedgerError, NewAction, OpenDrain};
use crate::model::{ActionRecord, JobId, JobRun, JobState, NodeStatus, Now, Outcome, RunId, Verdict};
use crate::policy::stage::{CancelWarrant, DrainWarrant};
use crate::slurm::{Answer, Ask, Controller};
use look::Look;

/// Where a deed is done: the books, the commands, and this run.
pub struct Desk<'a> {
    /// The books.
    pub ledger: &'a mut Ledger,
    /// slurmctld, asked from this node.
    pub slurm: &'a dyn Controller,
    /// This moment.
    pub now: &'a Now,
    /// This run.
    pub run: RunId,
    /// The finding's row.
    pub finding: i64,
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
pub fn drain(
    warrant: DrainWarrant,
    job: &JobRun,
    look: &mut Look,
    desk: &mut Desk,
) -> Result<Deed, LedgerError> {
    let finding = warrant.finding();
    let before = match look.before_drain(job, finding, desk) {
        Ok(node) => node,
        Err(doubt) => return Ok(Deed::Withheld(doubt)),
    };
    let reason = reason::waste(job, finding, Verdict::Drain);
    let action = desk.ledger.begin_action(
        &NewAction {
            deed: ledger::Deed::Of(Verdict::Drain),
            finding: Some(desk.finding),
            job,
            run: desk.run,
            signature: finding.signature.word(),
            seen_before: &before.to_string(),
            reason: Some(&reason),
        },
        desk.now,
    )?;
    let told = desk.slurm.drain(&reason);
    let (outcome, detail) = drained(&told, desk.slurm.node(), &reason);
    desk.ledger.end_action(action, outcome, &detail, true)?;
    Ok(Deed::Ended(outcome, detail))
}

/// How a drain ended: seen, not believed.
fn drained(told: &Answer<()>, seen: Answer<NodeStatus>, reason: &str) -> (Outcome, String) {
    match (told, seen) {
        (_, Ok(node)) if node.drained_as(reason) => (Outcome::Done, node.to_string()),
        (Ok(()), Ok(node)) => (Outcome::Failed, format!("Slurm took it, but shows {node}")),
        (Err(silence), _) => (silence.outcome(), silence.to_string()),
        (Ok(()), Err(silence)) => (Outcome::Unknown, silence.to_string()),
    }
}

/// Cancels exactly the job run that was judged.
pub fn cancel(
    warrant: CancelWarrant,
    job: &JobRun,
    look: &mut Look,
    desk: &mut Desk,
) -> Result<Deed, LedgerError> {
    let finding = warrant.finding();
    let target = match look.before_cancel(job, &warrant, desk) {
        Ok(target) => target,
        Err(doubt) => return Ok(Deed::Withheld(doubt)),
    };
    let action = desk.ledger.begin_action(
        &NewAction {
            deed: ledger::Deed::Of(Verdict::Cancel),
            finding: Some(desk.finding),
            job,
            run: desk.run,
            signature: finding.signature.word(),
            seen_before: &format!("job {} running", target.display_id),
            reason: None,
        },
        desk.now,
    )?;
    if look.admin_comment {
        leave_comment(&target.display_id, &reason::comment(job, finding, desk.now), desk.slurm);
    }
    // Brake, node, GPUs and comment took their time: a requeue meanwhile makes it another run.
    if let Err(doubt) = look::is_that_run(job, Ask::NOTHING_MORE, desk) {
        let detail = format!("not asked for: {doubt}");
        desk.ledger.end_action(action, Outcome::Failed, &detail, true)?;
        return Ok(Deed::Ended(Outcome::Failed, detail));
    }
    let told = desk.slurm.cancel(&target);
    let (outcome, detail) = cancelled(&told, job, desk.slurm);
    desk.ledger.end_action(action, outcome, &detail, true)?;
    Ok(Deed::Ended(outcome, detail))
}

/// Says why in the job's AdminComment, unless somebody else's words stand there.
fn leave_comment(target: &str, text: &str, slurm: &dyn Controller) {
    match slurm.set_admin_comment(target, text).map(|()| "written") {
        Ok(words) => tracing::info!(job = target, "AdminComment {words}"),
        Err(silence) => tracing::warn!(job = target, "AdminComment not written: {silence}"),
    }
}

/// Exit status 0 of scancel proves nothing: an unknown or ended job gives it too. Seen by looking.
fn cancelled(told: &Answer<()>, job: &JobRun, slurm: &dyn Controller) -> (Outcome, String) {
    match (told, slurm.job(job.registration.job, Ask::NOTHING_MORE)) {
        (_, Ok(None)) => (Outcome::Done, "Slurm no longer lists it".to_owned()),
        (_, Ok(Some(d))) if matches!(d.state, JobState::Completing | JobState::Ended) => {
            (Outcome::Done, format!("Slurm says {}", d.state.word()))
        }
        (_, Ok(Some(d))) if d.state == JobState::Pending => {
            (Outcome::Failed, "requeued meanwhile; what waits now was not cancelled".to_owned())
        }
        (Err(silence), _) => (silence.outcome(), silence.to_string()),
        // scancel returns before the job's processes are told.
        (Ok(()), _) => (Outcome::Unknown, "scancel was taken; the job still runs".to_owned()),
    }
}

/// How long an update that timed out may still come true (measured: slurmctld applies it when it resumes).
const UNCLEAR_FOR_MS: i64 = 120_000;

/// Finds out how an earlier action ended, by looking, never by repeating it.
pub fn reconcile(action: &ActionRecord, job: JobId, desk: &mut Desk) -> Result<Option<Outcome>, LedgerError> {
    let old = desk.ledger.action_age_ms(action.id, desk.now)? > UNCLEAR_FOR_MS;
    let seen = match action.verdict {
        Verdict::Drain => match (desk.slurm.node(), &action.reason) {
            (Ok(node), Some(reason)) => Some(node.drained_as(reason)),
            _ => None,
        },
        Verdict::Cancel => match desk.slurm.job(job, Ask::NOTHING_MORE) {
            Ok(None) => Some(true),
            Ok(Some(d)) => Some(matches!(d.state, JobState::Completing | JobState::Ended)),
            Err(_) => None,
        },
        Verdict::Alert => Some(false),
    };
    let outcome = match seen {
        Some(true) => Outcome::Done,
        Some(false) if old => Outcome::Failed,
        _ => return Ok(None),
    };
    desk.ledger.end_action(action.id, outcome, "found by looking", true)?;
    Ok(Some(outcome))
}

/// Lifts a drain of ours: the caller has seen that its job run is gone or works again, in two runs. `UNDRAIN`
/// clears only the drain; every state but plainly IDLE, MIXED or ALLOCATED beside it, and every other reason,
/// keeps it.
pub fn release(drain: &OpenDrain, desk: &mut Desk) -> Result<Deed, LedgerError> {
    let Some(reason) = drain.action.reason.as_deref() else {
        return Ok(Deed::Withheld("its reason is not known".to_owned()));
    };
    let drain = &drain.action;
    let node = match desk.slurm.node() {
        Ok(node) => node,
        Err(silence) => return Ok(Deed::Withheld(silence.to_string())),
    };
    if !node.drained_as(reason) {
        desk.ledger.mark_lifted(drain.id, &format!("lifted or changed by somebody else: {node}"))?;
        return Ok(Deed::Ended(Outcome::Lifted, node.to_string()));
    }
    if !node.plain() {
        return Ok(Deed::Withheld(format!("the node is {node}")));
    }
    let told = desk.slurm.undrain();
    match desk.slurm.node() {
        Ok(after) if !after.drained() => {
            desk.ledger.mark_lifted(drain.id, "released by us")?;
            Ok(Deed::Ended(Outcome::Lifted, after.to_string()))
        }
        _ => Ok(Deed::Ended(Outcome::Unknown, told.map_or_else(|e| e.to_string(), |()| "asked".to_owned()))),
    }
}

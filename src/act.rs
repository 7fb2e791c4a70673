//! The deeds: drain, vote, warn, cancel, release, and finding out how an unclear one ended. The only room that changes
//! anything outside the ledger. Every deed consumes its warrant, looks before it acts, is written down
//! durably before and with its outcome after; a run killed between the two is reconciled by looking.

pub mod fault;
pub mod look;
mod seen;

use crate::ledger::{Ledger, LedgerError, NewAction, OpenDrain, Unsettled};
use crate::model::{Deed, JobRun, NodeStatus, Now, Outcome, RunId};
use crate::policy::keep;
use crate::policy::nodes::Nodes;
use crate::policy::reason::{self, RunKey, Stand};
use crate::policy::stage::{CancelWarrant, DrainWarrant, Uncounted, VoteWarrant};
use crate::policy::{Finding, Guard};
use crate::reading::{Absence, Reading};
use crate::slurm::{Ask, Controller, Target};
use look::{Agreed, Look};

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

/// Why a deed was not begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// The guard that holds, where one does.
    pub guard: Option<Guard>,
    /// In words.
    pub because: String,
    /// The limit over the whole cluster holds: it is asked again ever more rarely.
    pub of_limit: bool,
}

impl From<String> for Doubt {
    fn from(because: String) -> Doubt {
        Doubt { guard: None, because, of_limit: false }
    }
}

/// How a deed ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Begun, and how it ended, with Slurm's words.
    Ended(Outcome, String),
    /// The look before found a doubt: nothing was begun.
    Withheld(Doubt),
}

/// How a job's time on its nodes is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminate {
    /// It is cancelled.
    Cancel,
    /// It is requeued where it can be, once; else cancelled.
    Requeue,
}

impl Desk<'_> {
    fn begin(
        &mut self,
        deed: Deed,
        job: &JobRun,
        finding: &Finding,
        (seen_before, reason): (&str, Option<&str>),
    ) -> Result<i64, LedgerError> {
        let action = NewAction {
            deed,
            finding: Some(self.finding),
            job,
            run: self.run,
            signature: finding.signature.word(),
            seen_before,
            reason,
        };
        self.ledger.begin_action(&action, self.now)
    }

    fn end(&mut self, action: i64, (outcome, detail): (Outcome, String)) -> Result<Ending, LedgerError> {
        self.ledger.end_action(action, outcome, &detail, true)?;
        Ok(Ending::Ended(outcome, detail))
    }
}

/// Drains this node for the warrant's finding.
pub fn drain(
    warrant: DrainWarrant,
    job: &JobRun,
    look: &mut Look,
    desk: &mut Desk,
) -> Result<Ending, LedgerError> {
    let (node, key) = match look.before_drain(job, &warrant, desk) {
        Ok(seen) => seen,
        Err(doubt) => return Ok(Ending::Withheld(doubt)),
    };
    let finding = warrant.finding();
    let reason = reason::waste(key, finding.signature, Stand::Drain, finding.since_wall);
    let action = desk.begin(Deed::Drain, job, finding, (&node.to_string(), Some(&reason)))?;
    let told = desk.slurm.drain(&reason);
    let outcome = seen::drained(&told, desk.slurm.node(), &reason);
    desk.end(action, outcome)
}

/// Rewrites the reason of our own drain: this node agrees that the job be cancelled.
pub fn vote(
    warrant: VoteWarrant,
    job: &JobRun,
    look: &mut Look,
    desk: &mut Desk,
) -> Result<Ending, LedgerError> {
    let (node, key) = match look.before_vote(job, &warrant, desk) {
        Ok(seen) => seen,
        Err(doubt) => return Ok(Ending::Withheld(doubt)),
    };
    let finding = warrant.finding();
    let reason = reason::waste(key, finding.signature, warrant.stand(), finding.since_wall);
    let action = desk.begin(Deed::Vote, job, finding, (&node.to_string(), Some(&reason)))?;
    let told = desk.slurm.set_reason(&reason);
    let outcome = seen::drained(&told, desk.slurm.node(), &reason);
    desk.end(action, outcome)
}

/// Takes this node's vote back: it would not vote now. The drain stays, with the reason that it had first. `Lifted`:
/// somebody came first, and there is no vote any more.
pub fn retract(drain: &OpenDrain, job: &JobRun, desk: &mut Desk) -> Result<Ending, LedgerError> {
    let Some(first) = drain.action.reason.as_deref() else {
        return Ok(Ending::Withheld("the drain's reason is not known".to_owned().into()));
    };
    let node = match desk.slurm.node() {
        Ok(node) if drain.shows(&node) => node,
        Ok(node) => {
            return desk.end(drain.action.id, (Outcome::Lifted, by_somebody(&node)));
        }
        Err(silence) => return Ok(Ending::Withheld(silence.to_string().into())),
    };
    let action = NewAction {
        deed: Deed::Vote,
        finding: None,
        job,
        run: desk.run,
        signature: &drain.action.signature,
        seen_before: &node.to_string(),
        reason: Some(first),
    };
    let action = desk.ledger.begin_action(&action, desk.now)?;
    let told = desk.slurm.set_reason(first);
    let outcome = seen::drained(&told, desk.slurm.node(), first);
    desk.end(action, outcome)
}

/// Warns the job by a signal. For many jobs that is a kill: it takes all that a cancel takes.
pub fn warn(
    uncounted: Uncounted,
    signal: &str,
    job: &JobRun,
    look: &mut Look,
    desk: &mut Desk,
) -> Result<Ending, LedgerError> {
    let Agreed { warrant, target, .. } = match look.before_cancel(job, uncounted, desk) {
        Ok(agreed) => agreed,
        Err(doubt) => return Ok(Ending::Withheld(doubt)),
    };
    let finding = warrant.finding();
    let before = format!("job {} running", target.display_id);
    let action = desk.begin(Deed::Warn, job, finding, (&before, None))?;
    let outcome = match desk.slurm.signal(&target, signal) {
        Ok(()) => (Outcome::Done, format!("SIG{signal} sent")),
        Err(silence) => (silence.outcome(), silence.to_string()),
    };
    desk.end(action, outcome)
}

/// Cancels exactly the job run that was judged, or requeues it where the site wants that and it can be. Gives which.
pub fn cancel(
    uncounted: Uncounted,
    terminate: Terminate,
    job: &JobRun,
    look: &mut Look,
    desk: &mut Desk,
) -> Result<(Deed, Ending), LedgerError> {
    let agreed = match look.before_cancel(job, uncounted, desk) {
        Ok(agreed) => agreed,
        Err(doubt) => return Ok((Deed::Cancel, Ending::Withheld(doubt))),
    };
    let deed = match terminate {
        Terminate::Requeue if can_be_requeued(&agreed) => Deed::Requeue,
        Terminate::Requeue | Terminate::Cancel => Deed::Cancel,
    };
    let Agreed { warrant, target, .. } = agreed;
    let nodes = warrant.votes();
    let before = format!("job {} running, {nodes} nodes agree", target.display_id);
    let action = desk.begin(deed, job, warrant.finding(), (&before, None))?;
    let outcome = match last_look(deed, &warrant, &target, job, look, desk) {
        Ok(()) => end_it(deed, warrant, &target, job, desk.slurm),
        Err(because) => (Outcome::Failed, format!("not asked for: {because}")),
    };
    Ok((deed, desk.end(action, outcome)?))
}

/// The last look at a job, and our words to it, the moment before it is ended.
fn last_look(
    deed: Deed,
    warrant: &CancelWarrant,
    target: &Target,
    job: &JobRun,
    look: &Look,
    desk: &Desk,
) -> Result<(), String> {
    let there = look.once_more(job, warrant, desk).map_err(|doubt| doubt.because)?;
    if look.admin_comment {
        let text = reason::comment(deed, job, warrant.finding(), desk.now);
        leave_comment(job, target, &there, &text, desk.slurm);
    }
    if look.notify_job
        && let Err(silence) =
            desk.slurm.notify(&target.display_id, &reason::comment(deed, job, warrant.finding(), desk.now))
    {
        tracing::info!(job = job.registration.job.get(), "the job's output was not told: {silence}");
    }
    // The comment took its time too.
    look::is_that_run(job, Ask::NOTHING_MORE, desk).map(drop)
}

/// The one place where a job is ended; takes the warrant.
fn end_it(
    deed: Deed,
    _warrant: CancelWarrant,
    target: &Target,
    job: &JobRun,
    slurm: &dyn Controller,
) -> (Outcome, String) {
    let told = match deed {
        Deed::Requeue => slurm.requeue(target),
        _ => slurm.cancel(target),
    };
    let seen = slurm.job(job.registration.job, Ask::NOTHING_MORE);
    match deed {
        Deed::Requeue => seen::requeued(&told, seen, job),
        _ => seen::cancelled(&told, seen),
    }
}

/// Only what Slurm can requeue, and at most once a job id: one that was restarted before, by us on any node or by
/// somebody else, is not requeued.
fn can_be_requeued(agreed: &Agreed) -> bool {
    let yes = |reading: &Reading<bool>| *reading == Reading::Measured(true);
    yes(&agreed.batch) && yes(&agreed.requeue) && agreed.restart == Reading::Measured(0)
}

/// Says why in the job's AdminComment, unless anything but our own words stands there.
fn leave_comment(job: &JobRun, target: &Target, there: &Reading<String>, text: &str, slurm: &dyn Controller) {
    let (raw, id) = (job.registration.job.get(), &target.display_id);
    let free = match there {
        Reading::Absent(why) => *why == Absence::NoData,
        // A keep is over where a cancel comes to this.
        Reading::Measured(words) => {
            let others = keep::others(words);
            others.is_empty() || reason::is_comment(&others)
        }
    };
    if !free {
        tracing::info!(job = raw, shown = id, "AdminComment left as it is: somebody's words stand there");
        return;
    }
    match slurm.set_admin_comment(id, text) {
        Ok(()) => tracing::info!(job = raw, shown = id, "AdminComment written"),
        Err(silence) => tracing::warn!(job = raw, shown = id, "AdminComment not written: {silence}"),
    }
}

/// How long an update that timed out may still come true (measured: slurmctld applies it when it resumes).
const UNCLEAR_FOR_MS: i64 = 120_000;

/// Finds out how an earlier action ended, by looking, never by repeating it.
pub fn reconcile(unsettled: &Unsettled, desk: &mut Desk) -> Result<Option<Outcome>, LedgerError> {
    let Unsettled { action, job, restart } = unsettled;
    let old = desk.ledger.action_age_ms(action.id, desk.now)? > UNCLEAR_FOR_MS;
    let seen = match action.deed {
        Deed::Drain | Deed::Vote => match (desk.slurm.node(), &action.reason) {
            (Ok(node), Some(reason)) => Some(node.drained_as(reason)),
            _ => None,
        },
        Deed::Cancel | Deed::Requeue => seen::is_over(desk.slurm.job(*job, Ask::NOTHING_MORE), *restart),
        // Whether a signal arrived cannot be seen.
        Deed::Warn => None,
        Deed::Release => match (desk.slurm.node(), &action.reason) {
            (Ok(node), Some(reason)) => Some(!node.drained_as(reason)),
            _ => None,
        },
        Deed::Alert => Some(false),
    };
    let outcome = match seen {
        Some(true) => Outcome::Done,
        Some(false) if old => Outcome::Failed,
        _ => return Ok(None),
    };
    let words = match action.deed {
        Deed::Cancel | Deed::Requeue if outcome == Outcome::Done => "found by looking: the job run is over",
        _ => "found by looking",
    };
    desk.ledger.end_action(action.id, outcome, words, true)?;
    Ok(Some(outcome))
}

/// Whose wish it is that a drain of ours be lifted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lift {
    /// Its job run is gone or works again, as two runs agree.
    Release,
    /// The cap is overshot, and this node's drain came past it.
    Withdraw,
    /// An administrator on the node asks for it.
    ByHand,
}

impl Lift {
    /// How the ledger calls what it leads to.
    fn words(self) -> (Outcome, &'static str) {
        match self {
            Lift::Release => (Outcome::Released, "released by us"),
            // Not lifted by somebody: the ladder may come to it again.
            Lift::Withdraw => (Outcome::Failed, "withdrawn by us: the limit over the cluster was overshot"),
            Lift::ByHand => (Outcome::Lifted, "lifted by hand with `gpu-reaper-hc release`"),
        }
    }
}

/// What the ledger says of a drain that the node no longer shows as ours.
pub fn by_somebody(node: &NodeStatus) -> String {
    format!("lifted or changed by somebody else: {node}")
}

/// Lifts a drain of ours; the caller answers for the conditions on job and GPUs. Gives `Done` where it is gone by us,
/// `Lifted` where somebody came first, `Failed` where it surely stands.
pub fn lift(drain: &OpenDrain, why: Lift, desk: &mut Desk) -> Result<Ending, LedgerError> {
    let Desk { ledger, slurm, .. } = desk;
    let action = &drain.action;
    let shows = |node: &NodeStatus| drain.shows(node);
    lift_recorded(why, *slurm, (action.outcome, &action.detail), shows, |outcome, words| {
        ledger.end_action(action.id, outcome, words, true)
    })
}

/// The steps that lift any drain of ours. `UNDRAIN` clears only the drain; every state but plainly IDLE, MIXED or ALLOCATED
/// beside it, and every other reason than the one that `shows` knows, keeps it. `stood`: how its record stands, which
/// `record` writes: before the deed, and again after it.
fn lift_recorded(
    why: Lift,
    slurm: &dyn Controller,
    (stood, before): (Outcome, &str),
    shows: impl Fn(&NodeStatus) -> bool,
    mut record: impl FnMut(Outcome, &str) -> Result<(), LedgerError>,
) -> Result<Ending, LedgerError> {
    let node = match slurm.node() {
        Ok(node) => node,
        Err(silence) => return Ok(Ending::Withheld(silence.to_string().into())),
    };
    let (outcome, words) = why.words();
    if !shows(&node) {
        // A run that was killed after it had asked left word.
        if before == words {
            record(outcome, words)?;
            return Ok(Ending::Ended(Outcome::Done, words.to_owned()));
        }
        let by_somebody = by_somebody(&node);
        record(Outcome::Lifted, &by_somebody)?;
        return Ok(Ending::Ended(Outcome::Lifted, by_somebody));
    }
    if !node.plain() {
        return Ok(Ending::Withheld(look::not_plain(&node)));
    }
    record(stood, words)?;
    match undrain(slurm) {
        (Outcome::Done, after) => {
            record(outcome, words)?;
            Ok(Ending::Ended(Outcome::Done, after))
        }
        (Outcome::Failed, why) => {
            record(stood, before)?;
            Ok(Ending::Ended(Outcome::Failed, why))
        }
        // The record stands as it is: the next look tells.
        (_, why) => Ok(Ending::Ended(Outcome::Unknown, why)),
    }
}

/// Lifts a drain of ours that the ledger does not know, seen with this reason; the caller answers for the conditions.
/// `key`: the run that it names, under which the deed is written down.
pub fn lift_unknown(reason: &str, key: RunKey, desk: &mut Desk) -> Result<Ending, LedgerError> {
    let node = match desk.slurm.node() {
        Ok(node) => node,
        Err(silence) => return Ok(Ending::Withheld(silence.to_string().into())),
    };
    if !node.drained_as(reason) || !node.plain() {
        return Ok(Ending::Withheld(look::not_plain(&node)));
    }
    let action = desk.ledger.begin_release(key, reason, &node.to_string(), desk.run, desk.now)?;
    let outcome = undrain(desk.slurm);
    desk.end(action, outcome)
}

/// Lifts DRAIN from this node, whose drain was just seen to be ours and its state to be plain; sees whether it is gone.
pub fn undrain(slurm: &dyn Controller) -> (Outcome, String) {
    let told = slurm.undrain();
    seen::undrained(&told, slurm.node())
}

/// Counts the cluster's drains once more, in the run after a drain of ours, and withdraws it if it is one too many.
/// `None`: it may stay, or Slurm does not say.
pub fn count_again(
    drain: &OpenDrain,
    nodes: &Nodes,
    look: &Look,
    desk: &mut Desk,
) -> Result<Option<Ending>, LedgerError> {
    match look.is_one_too_many(drain, nodes, desk) {
        Err(_) => Ok(None),
        Ok(false) => desk.ledger.note_counted_again(drain.action.id, desk.run).map(|()| None),
        Ok(true) => lift(drain, Lift::Withdraw, desk).map(Some),
    }
}

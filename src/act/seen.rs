//! How a deed ended: seen, not believed. An exit status of 0 proves nothing, and one that timed out may have been done.

use crate::model::{JobRun, JobState, NodeStatus, Outcome};
use crate::reading::Reading;
use crate::slurm::{Answer, Listed};

/// A drain, or a new reason of one.
pub fn drained(told: &Answer<()>, seen: Answer<NodeStatus>, reason: &str) -> (Outcome, String) {
    match (told, seen) {
        (_, Ok(node)) if node.drained_as(reason) => (Outcome::Done, node.to_string()),
        (Ok(()), Ok(node)) => (Outcome::Failed, format!("Slurm took it, but shows {node}")),
        (Err(silence), _) => (silence.outcome(), silence.to_string()),
        (Ok(()), Err(silence)) => (Outcome::Unknown, silence.to_string()),
    }
}

/// A drain that was lifted.
pub fn undrained(told: &Answer<()>, seen: Answer<NodeStatus>) -> (Outcome, String) {
    match (told, seen) {
        (_, Ok(node)) if !node.drained() => (Outcome::Done, node.to_string()),
        (Ok(()), Ok(node)) => (Outcome::Unknown, format!("Slurm took it, but shows {node}")),
        (Err(silence), _) => (silence.outcome(), silence.to_string()),
        (Ok(()), Err(silence)) => (Outcome::Unknown, silence.to_string()),
    }
}

/// A cancel: an unknown or ended job makes scancel end well too.
pub fn cancelled(told: &Answer<()>, seen: Answer<Option<Listed>>) -> (Outcome, String) {
    match (told, seen) {
        (_, Ok(None)) => (Outcome::Done, "Slurm no longer lists it".to_owned()),
        (_, Ok(Some(l))) if matches!(l.state, JobState::Completing | JobState::Ended) => {
            (Outcome::Done, format!("Slurm says {}", l.state.word()))
        }
        (_, Ok(Some(l))) if l.state == JobState::Pending => {
            (Outcome::Failed, "requeued meanwhile; what waits now was not cancelled".to_owned())
        }
        (Err(silence), _) => (silence.outcome(), silence.to_string()),
        // scancel returns before the job's processes are told.
        (Ok(()), _) => (Outcome::Unknown, "scancel was taken; the job still runs".to_owned()),
    }
}

/// A requeue: the job waits, completes its old run, or runs already as another one.
pub fn requeued(told: &Answer<()>, seen: Answer<Option<Listed>>, job: &JobRun) -> (Outcome, String) {
    let another = |l: &Listed| {
        let restart = l.details.as_ref().map(|d| d.restart);
        matches!(restart, Some(Reading::Measured(n)) if n > job.registration.restart)
    };
    match (told, seen) {
        (_, Ok(Some(l))) if matches!(l.state, JobState::Pending | JobState::Completing) || another(&l) => {
            (Outcome::Done, format!("requeued; Slurm says {}", l.state.word()))
        }
        (_, Ok(None)) => (Outcome::Done, "Slurm no longer lists it".to_owned()),
        (_, Ok(Some(l))) if l.state == JobState::Ended => (Outcome::Done, "it has ended".to_owned()),
        (Err(silence), _) => (silence.outcome(), silence.to_string()),
        (Ok(()), _) => (Outcome::Unknown, "the requeue was taken; the job still runs".to_owned()),
    }
}

/// Whether the job run with this restart count is over, where Slurm says: ended, waiting for its next run, or in it.
pub fn is_over(seen: Answer<Option<Listed>>, restart: u32) -> Option<bool> {
    let Some(listed) = seen.ok()? else { return Some(true) };
    let next = listed.details.as_ref().and_then(|d| d.restart.measured()).is_some_and(|n| *n > restart);
    Some(next || matches!(listed.state, JobState::Completing | JobState::Ended | JobState::Pending))
}

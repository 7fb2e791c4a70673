//! A job as Slurm lists it, whichever command was asked, and what its words mean. Asks nothing.

use crate::model::{JobDetails, JobId, JobState};
use crate::reading::{Absence, Reading};

/// A job as Slurm lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The raw id.
    pub job: JobId,
    /// Its user.
    pub uid: u32,
    /// Its state.
    pub state: JobState,
    /// The rest, but for the name, which is asked alone. `None`: it has no start time (it waits, or ended
    /// before it began) and so is on no node.
    pub details: Option<JobDetails>,
}

pub(super) fn word(text: &str) -> Reading<String> {
    match text {
        "" | "(null)" | "N/A" => Reading::Absent(Absence::NoData),
        _ => Reading::Measured(text.to_owned()),
    }
}

/// Where this node cannot look the uid up, older clients print `nobody` and newer ones the number
/// (slurm's uid_to_string): neither is the user's name.
pub(super) fn user(text: &str, uid: u32) -> Reading<String> {
    const NOBODY: u32 = 65534;
    if text == uid.to_string() || (text == "nobody" && ![NOBODY, 99].contains(&uid)) {
        return Reading::Absent(Absence::NoData);
    }
    word(text)
}

/// A job's state from its words: one (text), or base and flags (JSON since data_parser v0.0.40). One word
/// that is not known makes the whole unknown.
pub fn job_state<'a>(words: impl IntoIterator<Item = &'a str>) -> JobState {
    let mut states = Vec::new();
    for word in words {
        states.push(match word.trim() {
            "RUNNING" => JobState::Running,
            "SUSPENDED" | "STOPPED" => JobState::Suspended,
            "COMPLETING" | "STAGE_OUT" => JobState::Completing,
            "CONFIGURING" | "POWER_UP_NODE" => JobState::Configuring,
            "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED" | "SPECIAL_EXIT" | "RESV_DEL_HOLD" => {
                JobState::Pending
            }
            "COMPLETED" | "CANCELLED" | "FAILED" | "TIMEOUT" | "NODE_FAIL" | "PREEMPTED" | "BOOT_FAIL"
            | "DEADLINE" | "OUT_OF_MEMORY" | "LAUNCH_FAILED" | "RECONFIG_FAIL" | "REVOKED" => JobState::Ended,
            _ => JobState::Other,
        });
    }
    // The furthest from plain running wins: COMPLETING beside RUNNING is completing.
    const ORDER: [JobState; 7] = [
        JobState::Other,
        JobState::Completing,
        JobState::Configuring,
        JobState::Suspended,
        JobState::Pending,
        JobState::Ended,
        JobState::Running,
    ];
    ORDER.into_iter().find(|state| states.contains(state)).unwrap_or(JobState::Other)
}

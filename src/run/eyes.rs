//! What a run sees: GPUs, and jobs by local evidence. One implementation looks at this machine, the other at a
//! scenario; the run cannot tell them apart.

use crate::model::{GpuReport, JobId, JobRun, JobSample};
use crate::reading::Reading;

/// A process on a GPU, as this machine knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Start time in clock ticks since boot: with the pid, its identity.
    pub start_ticks: Reading<u64>,
    /// The job its cgroup names, on this node; `None` inside: no job's process, or one that cannot be told.
    pub job: Reading<Option<JobId>>,
}

/// Everything a run can look at. Nothing here asks the controller.
pub trait Eyes {
    /// Starts the look at the GPUs; called once, before the ledger is opened.
    fn start(&mut self);

    /// Ends that look; called again, it looks anew.
    fn gpus(&mut self) -> Reading<GpuReport>;

    /// Jobs that local evidence shows on this node: job cgroups.
    fn jobs_here(&mut self) -> Reading<Vec<JobId>>;

    /// A process that the driver lists.
    fn resident(&mut self, pid: u32) -> Resident;

    /// The job beside its GPUs. `pids`: its processes on them.
    fn job(&mut self, job: &JobRun, pids: &[u32]) -> JobSample;
}

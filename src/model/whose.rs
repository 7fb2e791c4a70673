//! Whose a process is, by its cgroup.

use super::JobId;

/// nvidia-persistenced, as long as the kernel keeps a name. No proof: whoever takes it only gives up a witness.
pub const PERSISTENCED: &str = "nvidia-persiste";

/// Whose a process is, by its cgroup: never by its user, who may have several jobs on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Of this job on this node.
    Job(JobId),
    /// Of a job that cannot be told, or of another node of this host.
    SomeJobs,
    /// Slurm's, with no job in its path: slurmd, or any job where Slurm keeps no cgroups.
    Slurms,
    /// Of no cgroup of Slurm's: a container that a daemon started, a daemon, a session. On a GPU that one job
    /// holds it is weakly that job's: it counts for it, and speaks against nobody (NVIDIA/nvidia-docker#1227).
    Outside,
}

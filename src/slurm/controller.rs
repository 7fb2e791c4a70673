//! What a deed asks of slurmctld and tells it: the whole of it, in one trait, because there are two that answer: Slurm
//! by its commands, and the stand-in of the simulated cluster. Whether a deed may be done is decided elsewhere, by
//! warrant.

use super::{Answer, Listed, Slurm};
use crate::model::{JobId, NodeRow, NodeStatus};
use crate::reading::Reading;
use crate::units::NodeName;

/// What is asked of a job beside its machine fields. Where scontrol writes JSON (23.02 on) all of it comes with the
/// one question there is; before, each is a question of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Its name.
    pub name: bool,
    /// The user's own comment.
    pub comment: bool,
    /// The rest of [`crate::model::NearDeed`].
    pub near_deed: bool,
}

impl Ask {
    /// Machine fields alone.
    pub const NOTHING_MORE: Ask = Ask { name: false, comment: false, near_deed: false };
}

/// One job run, named in every way that this Slurm lets a deed be bound to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `130`, `123_4`: never an array's leader id, never a component of a heterogeneous job.
    pub display_id: String,
    /// Its SLUID (26.05 on): a requeued run has another.
    pub sluid: Reading<String>,
    /// Its user.
    pub user: Reading<String>,
    /// A node that it runs on.
    pub node: NodeName,
}

/// slurmctld, as far as deeds need it.
pub trait Controller {
    /// One job, asked now; `None`: Slurm does not know it (any more).
    fn job(&self, job: JobId, ask: Ask) -> Answer<Option<Listed>>;

    /// This node, asked now. The cheapest look at a node.
    fn node(&self) -> Answer<NodeStatus>;

    /// Every node of the cluster; one without this node among them is no answer.
    fn survey(&self) -> Answer<Vec<NodeRow>>;

    /// Whether the reservation `gpu-reaper-stop` exists.
    fn brake(&self) -> Answer<bool>;

    /// Drains this node, replacing any Reason that it has: look first.
    fn drain(&self, reason: &str) -> Answer<()>;

    /// Replaces this node's Reason and leaves its state alone: look first.
    fn set_reason(&self, reason: &str) -> Answer<()>;

    /// Lifts DRAIN from this node and nothing else.
    fn undrain(&self) -> Answer<()>;

    /// Cancels exactly this run, as far as this Slurm can bind it. `Ok` proves nothing.
    fn cancel(&self, target: &Target) -> Answer<()>;

    /// Requeues exactly this run; batch jobs only.
    fn requeue(&self, target: &Target) -> Answer<()>;

    /// Sends a signal (`USR1`) to the job's steps and its batch script.
    fn signal(&self, target: &Target, signal: &str) -> Answer<()>;

    /// Writes the job's AdminComment, replacing one that is there.
    fn set_admin_comment(&self, display_id: &str, text: &str) -> Answer<()>;

    /// Writes one line into the job's own output.
    fn notify(&self, display_id: &str, text: &str) -> Answer<()>;
}

impl Controller for Slurm {
    fn job(&self, job: JobId, ask: Ask) -> Answer<Option<Listed>> {
        Slurm::job(self, job, ask)
    }

    fn node(&self) -> Answer<NodeStatus> {
        Slurm::node(self)
    }

    fn survey(&self) -> Answer<Vec<NodeRow>> {
        Slurm::survey(self)
    }

    fn brake(&self) -> Answer<bool> {
        Slurm::brake(self)
    }

    fn drain(&self, reason: &str) -> Answer<()> {
        Slurm::drain(self, reason)
    }

    fn set_reason(&self, reason: &str) -> Answer<()> {
        Slurm::set_reason(self, reason)
    }

    fn undrain(&self) -> Answer<()> {
        Slurm::undrain(self)
    }

    fn cancel(&self, target: &Target) -> Answer<()> {
        Slurm::cancel(self, target)
    }

    fn requeue(&self, target: &Target) -> Answer<()> {
        Slurm::requeue(self, target)
    }

    fn signal(&self, target: &Target, signal: &str) -> Answer<()> {
        Slurm::signal(self, target, signal)
    }

    fn set_admin_comment(&self, display_id: &str, text: &str) -> Answer<()> {
        Slurm::set_admin_comment(self, display_id, text)
    }

    fn notify(&self, display_id: &str, text: &str) -> Answer<()> {
        Slurm::notify(self, display_id, text)
    }
}

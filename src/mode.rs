//! Observe or enforce. The permit to hurt is made here and nowhere else, for one job run.

use crate::model::{JobRun, JobRunId};
use crate::reading::Reading;
use crate::units::{NodeName, hash};
use serde::{Deserialize, Serialize};

/// What the configuration allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Look, remember, alert. Never drain, cancel or signal.
    Observe,
    /// Also act, as far as the stages say.
    Enforce,
}

/// `enforce_in:`; empty lists: everywhere.
#[derive(Clone, Debug, PartialEq)]
pub struct EnforceIn {
    /// Partitions.
    pub partitions: Vec<String>,
    /// Accounts.
    pub accounts: Vec<String>,
    /// QOS.
    pub qos: Vec<String>,
    /// Share of nodes, 0 to 1, by a hash of the node's name.
    pub node_share: f64,
}

impl EnforceIn {
    /// Every job on every node.
    pub const EVERYWHERE: EnforceIn =
        EnforceIn { partitions: Vec::new(), accounts: Vec::new(), qos: Vec::new(), node_share: 1.0 };
}

/// Why there is no permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoPermit {
    /// `mode: observe`.
    Observe,
    /// `enforce_in` leaves this job run or node out; in words.
    Outside(String),
}

impl std::fmt::Display for NoPermit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NoPermit::Observe => "mode is observe",
            NoPermit::Outside(because) => because,
        })
    }
}

/// Proof that the configuration says `enforce` for one job run on this node. Whatever can hurt needs one.
///
/// It cannot be forged: its fields are private and [`Mode::permit`] is its only maker.
///
/// ```compile_fail,E0451
/// use gpu_reaper_hc::model::JobRunId;
/// let forged = gpu_reaper_hc::mode::EnforcePermit { job: JobRunId(1) };
/// ```
///
/// Nor copied, nor made from nothing:
///
/// ```compile_fail,E0277
/// fn from_nothing<T: Default>() -> T { T::default() }
/// let forged: gpu_reaper_hc::mode::EnforcePermit = from_nothing();
/// ```
#[derive(Debug)]
pub struct EnforcePermit {
    job: JobRunId,
}

impl EnforcePermit {
    /// The job run that it is for.
    pub fn job(&self) -> JobRunId {
        self.job
    }
}

/// Proof that the configuration says that this node may be drained for what is its own: a fault, or what a job left
/// behind. As hard to forge as an [`EnforcePermit`], and no use for a job.
///
/// ```compile_fail,E0423
/// let forged = gpu_reaper_hc::mode::NodePermit(());
/// ```
#[derive(Debug)]
pub struct NodePermit(());

impl Mode {
    /// Whether anything at all is ever done.
    pub fn enforces(self) -> bool {
        self == Mode::Enforce
    }

    /// A permit for this job run on this node: under `enforce`, as far as `narrow` reaches. A value that is not known
    /// lies outside of every list.
    pub fn permit(
        self,
        narrow: &EnforceIn,
        job: &JobRun,
        node: &NodeName,
    ) -> Result<EnforcePermit, NoPermit> {
        if !self.enforces() {
            return Err(NoPermit::Observe);
        }
        let (r, details) = (&job.registration, job.details.as_ref());
        let checks = [
            ("partitions", &narrow.partitions, details.map(|d| &d.partition), &r.partition),
            ("accounts", &narrow.accounts, details.map(|d| &d.account), &r.account),
            ("qos", &narrow.qos, details.map(|d| &d.qos), &r.qos),
        ];
        for (key, list, told, registered) in checks {
            if !list.is_empty() && !names(list, told, registered) {
                return Err(NoPermit::Outside(format!("`enforce_in.{key}` does not name this job's")));
            }
        }
        in_share(narrow, node).map(|()| EnforcePermit { job: job.id })
    }

    /// A permit for this node because of what a job left on it: as far as `enforce_in` reaches that job. Of one that is
    /// not known only a list that narrows nothing is sure.
    pub fn leak_permit(
        self,
        narrow: &EnforceIn,
        job: Option<&JobRun>,
        node: &NodeName,
    ) -> Result<NodePermit, NoPermit> {
        let narrows = [&narrow.partitions, &narrow.accounts, &narrow.qos].iter().any(|list| !list.is_empty());
        match job {
            Some(job) => self.permit(narrow, job, node).map(|_| NodePermit(())),
            None if narrows && self.enforces() => {
                Err(NoPermit::Outside("whether `enforce_in` names its job is not known".to_owned()))
            }
            None => self.node_permit(narrow, node),
        }
    }

    /// A permit for this node itself: under `enforce`, in its share of the nodes.
    pub fn node_permit(self, narrow: &EnforceIn, node: &NodeName) -> Result<NodePermit, NoPermit> {
        if !self.enforces() {
            return Err(NoPermit::Observe);
        }
        in_share(narrow, node).map(|()| NodePermit(()))
    }
}

/// Whether `enforce_in.node_share` reaches this node.
fn in_share(narrow: &EnforceIn, node: &NodeName) -> Result<(), NoPermit> {
    let (place, share) = (f64::from(hash(node.as_str())) / f64::from(u32::MAX), narrow.node_share);
    match place > share {
        true => Err(NoPermit::Outside(format!("`enforce_in.node_share` {share} leaves this node out"))),
        false => Ok(()),
    }
}

/// Slurm's word where there is one, else the registration's.
fn names(list: &[String], told: Option<&Reading<String>>, registered: &Reading<String>) -> bool {
    let value = told.and_then(|t| t.measured()).or(registered.measured());
    value.is_some_and(|value| list.contains(value))
}

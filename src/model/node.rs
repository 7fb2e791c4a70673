//! Nodes as Slurm shows them.

use crate::units::NodeName;
use std::fmt;

/// Beside these a node counts as plain: our concern itself, and the scheduler's note that a job is to start
/// here later (in 22.05 it sticks to idle nodes).
const HARMLESS: [&str; 2] = ["drain", "planned"];

/// A node's state without its flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeBase {
    /// No job.
    Idle,
    /// Some CPUs taken.
    Mixed,
    /// All CPUs taken.
    Allocated,
    /// Any other word: nothing is done on such a node.
    Other(String),
}

/// What Slurm says of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// The state.
    pub base: NodeBase,
    /// Its flags, lower case, in Slurm's order: `drain`, `completing`, `not_responding`, ...
    pub flags: Vec<String>,
    /// The Reason, byte for byte, where there is one. It proves no drain: 24.11 keeps it after UNDRAIN for as
    /// long as the node has not answered (measured).
    pub reason: Option<String>,
}

impl NodeStatus {
    /// Drained or draining, by whomever.
    pub fn drained(&self) -> bool {
        self.flags.iter().any(|flag| flag == "drain")
    }

    /// IDLE, MIXED or ALLOCATED and nothing beside but DRAIN: no power, reboot, maintenance or reservation
    /// word, no job completing, and it responds.
    pub fn plain(&self) -> bool {
        !matches!(self.base, NodeBase::Other(_))
            && self.flags.iter().all(|flag| HARMLESS.contains(&flag.as_str()))
    }

    /// Drained with exactly this reason: byte for byte ours.
    pub fn drained_as(&self, reason: &str) -> bool {
        self.drained() && self.reason.as_deref() == Some(reason)
    }
}

impl fmt::Display for NodeStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base = match &self.base {
            NodeBase::Idle => "idle",
            NodeBase::Mixed => "mixed",
            NodeBase::Allocated => "allocated",
            NodeBase::Other(word) => word,
        };
        f.write_str(base)?;
        for flag in &self.flags {
            write!(f, "+{flag}")?;
        }
        match &self.reason {
            Some(reason) => write!(f, " (reason `{}`)", reason.escape_debug()),
            None => Ok(()),
        }
    }
}

/// A node of the cluster in one look at many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow {
    /// Which node.
    pub name: NodeName,
    /// Its state and Reason.
    pub status: NodeStatus,
    /// Whether it has GPUs as GRES.
    pub gpus: bool,
    /// When its Reason was set, by slurmctld's clock, Unix seconds; `None`: it has none.
    pub reason_unix_s: Option<i64>,
}

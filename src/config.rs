//! The configuration: one strict YAML file. Never half understood: any error means no action at all, and
//! all errors are reported at once with key path and position.

use crate::mode::Mode;
use crate::model::Verdict;
use crate::policy::{Auto, Rules};
use std::path::PathBuf;
use std::time::Duration;

/// Where GPU readings come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuSourceKind {
    /// libnvidia-ml through the worker.
    Nvml,
    /// The nvidia-smi program, on nodes where only that serves.
    NvidiaSmi,
    /// A scenario file: no GPU, and the only source under which the clock can be moved.
    Simulator,
}

/// `gpu:`
#[derive(Clone, Debug)]
pub struct Gpu {
    /// The source.
    pub source: GpuSourceKind,
    /// An explicit library; then no other sign of a driver is asked for.
    pub library: Option<PathBuf>,
    /// How long the worker may take; auto: 10 s with persistence mode, 35 s without.
    pub deadline: Auto<Duration>,
    /// The simulator's scenario.
    pub scenario: Option<PathBuf>,
    /// How many GPUs this node should have.
    pub expected: Auto<u32>,
}

/// Where Slurm is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlurmSource {
    /// Local evidence, then one bounded question a job.
    Auto,
    /// The whole list of this node, at most every 15 minutes.
    Squeue,
    /// slurmrestd; its keys parse, this version does not read it.
    Rest,
}

/// `slurm:`
#[derive(Clone, Debug)]
pub struct Slurm {
    /// The source.
    pub source: SlurmSource,
    /// Where scontrol, squeue, sinfo and scancel lie; else PATH, then the usual places.
    pub bin_dir: Option<PathBuf>,
    /// slurm.conf, for commands that slurmd starts without SLURM_CONF.
    pub conf: Option<PathBuf>,
}

/// When our own drain is lifted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Once the job run is gone and its GPUs are clean.
    JobEnd,
    /// By a person only.
    Never,
}

/// `act:`
#[derive(Clone, Debug)]
pub struct Act {
    /// When our own drain is lifted.
    pub release: Release,
    /// Whether a cancelled job's AdminComment says why.
    pub admin_comment: bool,
}

/// `limits:`
#[derive(Clone, Debug)]
pub struct Limits {
    /// Actions of this node in any hour; releases do not count.
    pub max_actions_per_hour: u32,
}

/// `history:`
#[derive(Clone, Debug)]
pub struct History {
    /// How long samples are kept.
    pub keep: Duration,
    /// How long observed samples of ended jobs are kept.
    pub archive: Duration,
    /// The ledger's ceiling in bytes.
    pub max_size_bytes: u64,
    /// How long case files are kept.
    pub case_files: Duration,
}

/// The effective configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file it came from; `None`: defaults.
    pub file: Option<PathBuf>,
    /// Observe or enforce. Private to be changed only by the loader: see [`Config::mode`].
    mode: Mode,
    /// The ledger, locks and markers.
    pub state_dir: PathBuf,
    /// The whole run's deadline.
    pub deadline: Duration,
    /// Where enforce holds.
    pub enforce_in: EnforceIn,
    /// `gpu:`
    pub gpu: Gpu,
    /// `slurm:`
    pub slurm: Slurm,
    /// `thresholds:`, `stages:`, `signatures:`, `exemptions:`.
    pub rules: Rules,
    /// `act:`
    pub act: Act,
    /// `limits:`
    pub limits: Limits,
    /// `history:`
    pub history: History,
    /// What an older file says that needs no action: one note each, with its replacement.
    pub notes: Vec<String>,
}

/// `enforce_in:`; empty lists: everywhere.
#[derive(Clone, Debug, Default)]
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

impl Config {
    /// Observe or enforce.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The mildest stage that acts, if any does.
    pub fn acts(&self) -> bool {
        self.rules.stages.iter().any(|s| s.verdict > Verdict::Alert)
    }
}

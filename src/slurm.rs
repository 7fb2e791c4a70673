//! Slurm as this node can ask it: jobs, the node's own state, and the few things we may do to either.
//! Every question is one command (or one GET to slurmrestd) with a deadline, and its answer is an [`Answer`]: told, or not told with
//! the reason. Silence is never an empty list, and the only node state written here is DRAIN and its undoing.

pub mod cgroup;
pub mod command;
pub mod conf;
mod controller;
mod find;
pub mod gres;
pub mod gres_conf;
pub mod hostlist;
pub mod json;
mod listed;
mod node;
mod rest;
mod scontrol;
mod show_job;
pub mod shown;
mod squeue;
mod version;

pub use command::Site;
pub use controller::{Ask, Controller, Target};
pub use find::is_one_job;
pub use listed::{Listed, job_state};
pub use rest::RestSite;
pub use version::release_of;

use crate::model::{GpuClaim, JobRun, Outcome};
use crate::policy::attribution::{Configured, Mapping};
use crate::program::one_line;
use crate::reading::Absence;
use crate::units::NodeName;
use command::{Commands, Program};
use gres_conf::{GresConf, GresMap};
use rest::Rest;
use std::cell::OnceCell;
use std::fmt;
use std::path::PathBuf;
use version::Version;

/// What Slurm said, or why it said nothing.
pub type Answer<T> = Result<T, NoAnswer>;

/// Why there is no answer. One printable line through `Display`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// Killed at its limit. A change that was asked for may still happen: slurmctld applies what it has
    /// received after the client is gone (measured on 22.05).
    TimedOut {
        /// The command.
        program: &'static str,
        /// Its limit.
        limit_ms: u64,
    },
    /// The command ended with an error.
    Refused {
        /// The command.
        program: &'static str,
        /// Its exit status: an error number cut to 8 bits for scancel, else 1. slurmrestd's HTTP status.
        code: i32,
        /// Its last line, at most 200 bytes.
        text: String,
    },
    /// Slurm lists no node of this name: a fault of the set-up (SLURMD_NODENAME, or the host's name).
    UnknownNode(NodeName),
    /// The command was not run.
    Unavailable {
        /// The command.
        program: &'static str,
        /// Not found, not to be trusted, or a text that must not be passed on.
        why: String,
    },
    /// It ended well and said something that is not understood, or it died of a signal.
    NotUnderstood {
        /// The command.
        program: &'static str,
        /// What was found, at most 200 bytes.
        text: String,
    },
}

/// Texts of slurmctld and of the clients after which a change has surely not been made. Anything else that
/// ends with an error may have been: "Socket timed out" was followed by the drain (measured on 22.05).
const SURELY_NOT_DONE: [&str; 8] = [
    "Invalid user id",
    "Access/permission denied",
    "Invalid node name",
    "Invalid node state",
    "Invalid job id",
    "Request denied",
    "connect failure",
    "authentication",
];

impl NoAnswer {
    /// Slurm is not there, or does not speak to us: a word that it knows no such job is an answer.
    fn is_silence(&self) -> bool {
        !matches!(self, NoAnswer::Refused { text, .. } if text.contains("Invalid job id"))
    }

    /// The reason as a reading has it.
    pub fn absence(&self) -> Absence {
        match self {
            NoAnswer::TimedOut { .. } => Absence::DeadlinePassed,
            NoAnswer::Refused { .. } | NoAnswer::Unavailable { .. } | NoAnswer::UnknownNode(_) => {
                Absence::SourceFailed
            }
            NoAnswer::NotUnderstood { .. } => Absence::NotUnderstood,
        }
    }

    /// What this means for a change that was asked for: surely not made, or not known.
    pub fn outcome(&self) -> Outcome {
        match self {
            NoAnswer::Unavailable { .. } | NoAnswer::UnknownNode(_) => Outcome::Failed,
            NoAnswer::Refused { text, .. } if SURELY_NOT_DONE.iter().any(|t| text.contains(t)) => {
                Outcome::Failed
            }
            NoAnswer::Refused { .. } | NoAnswer::TimedOut { .. } | NoAnswer::NotUnderstood { .. } => {
                Outcome::Unknown
            }
        }
    }
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoAnswer::TimedOut { program, limit_ms } => {
                write!(f, "{program}: no answer within {} s", *limit_ms as f64 / 1000.0)
            }
            NoAnswer::Refused { program: rest::PROGRAM, code, text } => {
                write!(f, "{}: `{text}` (HTTP status {code})", rest::PROGRAM)
            }
            NoAnswer::Refused { program, code, text } => {
                write!(f, "{program}: `{text}` (exit status {code})")
            }
            NoAnswer::UnknownNode(node) => write!(f, "Slurm knows no node `{node}`"),
            NoAnswer::Unavailable { program: rest::PROGRAM, why } => {
                write!(f, "{}: not asked: {why}", rest::PROGRAM)
            }
            NoAnswer::Unavailable { program, why } => write!(f, "{program}: not run: {why}"),
            NoAnswer::NotUnderstood { program, text } => {
                write!(f, "{program}: answer not understood: {text}")
            }
        }
    }
}

/// What slurmd's configuration says of this node's GPUs.
pub struct Gres {
    /// What a GRES index means, or why that is not known.
    pub mapping: Result<Mapping, String>,
    /// Whether GPUs are given out in shares here (`gres/shard`, `gres/mps`).
    pub shares: bool,
}

/// Slurm, asked from one node.
pub struct Slurm {
    node: NodeName,
    commands: Commands,
    version: OnceCell<Answer<Version>>,
    rest: Option<Rest>,
}

impl Slurm {
    /// Nothing is looked up or run yet. `node` is Slurm's name of this node.
    pub fn new(node: NodeName, site: Site) -> Slurm {
        Slurm { node, commands: Commands::new(site), version: OnceCell::new(), rest: None }
    }

    /// The same, with jobs and nodes asked of slurmrestd. Everything else stays with the commands.
    pub fn reading_from(self, site: RestSite) -> Slurm {
        Slurm { rest: Some(Rest::new(site)), ..self }
    }

    /// What gres.conf says of the GPUs that these registrations name; read only where one names any. A file that
    /// cannot be read is a complaint only where an index has to be mapped.
    pub fn gres(&self, jobs: &[JobRun]) -> Gres {
        let claims = || jobs.iter().flat_map(|job| &job.registration.gpus);
        if claims().next().is_none() {
            return Gres { mapping: Ok(Mapping::Unknown), shares: false };
        }
        let conf = GresConf::read(self.commands.conf());
        let node = self.node.as_str();
        let shares = conf.as_ref().is_ok_and(|conf| conf.shares(node));
        let mapping = match claims().any(|claim| matches!(claim, GpuClaim::Index(_))) {
            true => conf.and_then(|conf| conf.map(node)).map(mapping),
            false => Ok(Mapping::Unknown),
        };
        Gres { mapping, shares }
    }

    /// What gres.conf says of this node's GPUs, whoever holds them.
    pub fn gres_of_node(&self) -> Result<Mapping, String> {
        GresConf::read(self.commands.conf()).and_then(|conf| conf.map(self.node.as_str())).map(mapping)
    }

    /// What the GRES indices of these registrations mean on this node.
    pub fn mapping(&self, jobs: &[JobRun]) -> Result<Mapping, String> {
        self.gres(jobs).mapping
    }

    /// How often it gave no answer since this process began.
    pub fn silences(&self) -> u32 {
        self.commands.silences.get() + self.rest.as_ref().map_or(0, |rest| rest.silences.get())
    }

    /// Where a command lies, or why root does not run it.
    pub fn command(&self, program: Program) -> Result<PathBuf, String> {
        self.commands.as_root(program)
    }

    /// The same node under the name that Slurm's error means.
    fn known_node(&self, silence: NoAnswer) -> NoAnswer {
        match &silence {
            NoAnswer::Refused { text, .. } if text.contains("Invalid node name") => {
                NoAnswer::UnknownNode(self.node.clone())
            }
            _ => silence,
        }
    }
}

/// The device files' minors in place of the files.
pub fn mapping(map: GresMap) -> Mapping {
    let minors =
        |files: &[PathBuf]| files.iter().map(|file| gres_conf::minor_of(file).ok()).collect::<Vec<_>>();
    match map {
        GresMap::Files(files) => Mapping::Minors(minors(&files)),
        GresMap::AutoDetected => Mapping::AutoDetected(Configured::All),
        GresMap::AutoDetectedCount(count) => Mapping::AutoDetected(Configured::Count(count)),
        GresMap::AutoDetectedFiles(files) => Mapping::AutoDetected(Configured::Minors(minors(&files))),
    }
}

/// A parser's complaint as an answer that was not understood.
fn misread(program: Program, why: impl fmt::Display) -> NoAnswer {
    NoAnswer::NotUnderstood { program: program.name(), text: one_line(why.to_string().as_bytes()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_drain_is_a_failure_and_a_late_one_is_unknown() {
        // aws/aws-parallelcluster#2467 (CT-07), ComputeCanada/puppet-magic_castle#177 (CT-08): texts of 22.05.8.
        let refused =
            |text: &str| NoAnswer::Refused { program: "scontrol", code: 1, text: text.into() }.outcome();
        let table = [
            ("slurm_update error: Invalid user id", Outcome::Failed),
            ("You must specify a reason when ... a node. Request denied", Outcome::Failed),
            ("slurm_update error: Unable to contact slurm controller (connect failure)", Outcome::Failed),
            ("slurm_load_node error: Protocol authentication error", Outcome::Failed),
            ("slurm_update error: Socket timed out on send/recv operation", Outcome::Unknown),
            ("a text of a later version", Outcome::Unknown),
        ];
        for (text, want) in table {
            assert_eq!(refused(text), want, "{text}");
        }
        assert_eq!(NoAnswer::TimedOut { program: "scontrol", limit_ms: 6000 }.outcome(), Outcome::Unknown);
    }

    #[test]
    fn every_silence_is_one_line_that_names_its_command() {
        let timed_out = NoAnswer::TimedOut { program: "squeue", limit_ms: 6000 };
        assert_eq!(timed_out.to_string(), "squeue: no answer within 6 s");
        let refused = NoAnswer::Refused { program: "scontrol", code: 1, text: "Invalid user id".into() };
        assert_eq!(refused.to_string(), "scontrol: `Invalid user id` (exit status 1)");
        let misread = misread(Program::Squeue, "row `a\nb`");
        assert_eq!(misread.to_string().lines().count(), 1);
    }
}

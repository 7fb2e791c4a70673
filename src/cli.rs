//! The command line. One definition makes parsing, `--help` and the man page's options.

use crate::policy::keep;
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// Finds wasted GPU allocations on a Slurm node; alerts, drains, cancels: in that order, as far as it is told.
///
/// Without a command: one health-check run, as slurmd calls it (HealthCheckProgram).
#[derive(Debug, Parser)]
#[command(name = "gpu-reaper-hc", version, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do instead of a health-check run
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Options of every command
    #[command(flatten)]
    pub common: Common,

    /// Explain one job, as `explain JOBID` does
    #[arg(long, value_name = "JOBID")]
    pub explain: Option<String>,
}

/// Options that every command takes, before or after it.
#[derive(Debug, Args)]
pub struct Common {
    /// Configuration file [default: /etc/gpu-reaper-hc/config.yaml, or GPU_REAPER_CONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Slurm's name of this node [default: SLURMD_NODENAME, the only node with state here, or the host's name]
    #[arg(long, global = true, value_name = "NAME")]
    pub node: Option<String>,

    /// Print JSON instead of text; ack, keep, release, config and demo refuse it
    #[arg(long, global = true)]
    pub json: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Register the job of Slurm's Prolog environment; always exits 0
    Prolog,
    /// Clear the job of Slurm's Epilog environment, look whether its GPUs are clean; exits 0 but where a drain fails
    Epilog,
    /// Say why a job is or is not judged, what was done, and what comes next
    Explain {
        /// The job as Slurm prints it: 130, 123_4, 200+1, or a SLUID
        #[arg(value_name = "JOBID")]
        job: String,
    },
    /// Have one running job neither drained for nor cancelled for a time; works from any node
    ///
    /// Writes a line to the job's AdminComment, beside what others wrote there, where every node finds it before a
    /// deed. A later keep replaces an earlier one. Alerts go on.
    Keep {
        /// The job as Slurm prints it: 130, 123_4, or a SLUID; of an array one task
        #[arg(value_name = "JOBID")]
        job: String,
        /// For how long from now, 1m to 30d
        #[arg(long = "for", value_name = "DURATION", value_parser = keep_length,
              required_unless_present = "end", conflicts_with = "end")]
        length: Option<Duration>,
        /// Why, for those who read it later
        #[arg(long, value_name = "TEXT", value_parser = keep::reason, required_unless_present = "end")]
        reason: Option<String>,
        /// End a keep now
        #[arg(long)]
        end: bool,
    },
    /// Lift our own drain from this node, also one that the ledger does not know; nobody else's
    ///
    /// Whether the job has gone and the GPUs are clean is yours to judge. To be run as root on the node.
    Release,
    /// Take a fault of this node on, so that it is told no more; without FAULT: list what is open
    ///
    /// From then on it holds back the lifting of no drain, and a drain for it that was not made yet is not made; one
    /// that stands, stays until somebody lifts it. Over, and come again, it is told anew. To be run as root.
    Ack {
        /// The fault's number, or a kind: all that are open of it
        #[arg(value_name = "FAULT")]
        fault: Option<String>,
    },
    /// Show this node on one screen: GPUs, who holds them, verdicts, next steps, hours wasted and blocked, our drains
    ///
    /// Judges again from the ledger as --explain does, and changes nothing; neither Slurm nor a GPU is asked.
    Status,
    /// List the case files kept of job runs that are over and had a finding or an action, newest first
    ///
    /// Hours are certified ones, never projections. Reads the ledger of this node and changes nothing.
    Cases {
        /// Print CSV, which no spreadsheet takes for formulas; with --json: an object a line, and not both
        #[arg(long)]
        csv: bool,
        /// Only those of job runs that ended within this time
        #[arg(long, value_name = "DURATION", value_parser = crate::config::duration)]
        since: Option<Duration>,
    },
    /// Check, show or print the configuration
    Config {
        /// Which
        #[command(subcommand)]
        what: ConfigCommand,
    },
    /// Look at this node's set-up: Slurm's files and ours, hooks, GPUs, disk; say what is wrong and which line mends it
    ///
    /// Changes nothing. To be run as root on the node, after installation and whenever something seems amiss. Exits 0
    /// where all is ok, 1 with warnings or what could not be looked at, 2 with faults.
    Doctor,
    /// Judge what is recorded by a configuration: what would have been asked for, and when. Nothing is done
    ///
    /// Without --trace: every job run of which this node's ledger or its archive holds samples. What is judged is
    /// judged as under `mode: enforce`, so that drains and cancels show.
    Backtest {
        /// Recordings instead of the ledger; each is one job on one node that holds all GPUs of the file
        ///
        /// CSV as `nvidia-smi --query-gpu=timestamp,uuid,... --format=csv -l 15` writes it, with its header.
        #[arg(long, value_name = "FILE", num_args = 1..)]
        trace: Vec<PathBuf>,
        /// As if a run came this often
        #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = interval, requires = "trace")]
        every: Duration,
        /// The job began this long before the first row
        #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = crate::config::duration,
              requires = "trace")]
        job_start: Duration,
    },
    /// Play every scenario and print its verdict beside the sentence it proves
    Scenarios,
    /// Watch two wasted jobs escalate beside a healthy one: no cluster, no GPU, no root
    Demo,
}

impl Command {
    /// Whether it refuses `--json`: what it says is for people alone, and its exit status says the rest.
    pub fn prints_no_json(&self) -> bool {
        use Command::*;
        matches!(self, Ack { .. } | Keep { .. } | Release | Config { .. } | Demo)
    }
}

/// What to do with the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
pub enum ConfigCommand {
    /// Report every error and note of the file; exits 1 on errors
    Check,
    /// Print the effective values with their origin
    Show,
    /// Print the commented default file
    Example,
}

/// How often runs come: at least every second.
fn interval(text: &str) -> Result<Duration, String> {
    crate::config::duration(text).and_then(|every| match every.is_zero() {
        true => Err("expected at least 1s".to_owned()),
        false => Ok(every),
    })
}

/// How long a keep may last.
fn keep_length(text: &str) -> Result<Duration, String> {
    const LEAST: Duration = Duration::from_secs(60);
    const MOST: Duration = Duration::from_secs(30 * 86_400);
    crate::config::duration(text).and_then(|length| match (LEAST..=MOST).contains(&length) {
        true => Ok(length),
        false => Err("expected 1m to 30d; `--end` ends a keep".to_owned()),
    })
}

/// The definition, for the man page and for tests.
pub fn command() -> clap::Command {
    Cli::command()
}

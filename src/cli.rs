//! The command line. One definition makes parsing, `--help` and the man page's options.

pub mod out;

use crate::policy::keep;
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// Finds wasted and sick GPU allocations; without a command: one health-check run
//
// Each help fits a terminal of 80 columns and 24 lines: one line an option, and what more is to be said of a
// command stands after them. A long help would set each option apart by empty lines.
#[derive(Debug, Parser)]
#[command(name = "gpu-reaper-hc", version, disable_help_subcommand = true, help_template = TOP)]
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

/// The commands and options explain themselves without a heading each.
const TOP: &str = "{about}\n{usage-heading} {usage}\n\n{subcommands}\n\n{options}";

/// Options that every command takes, before or after it.
#[derive(Debug, Args)]
pub struct Common {
    /// Configuration [/etc/gpu-reaper-hc/config.yaml]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Slurm's name of this node (SLURMD_NODENAME)
    #[arg(long, global = true, value_name = "NAME")]
    pub node: Option<String>,

    /// JSON instead of text, where a command has both
    #[arg(long, global = true)]
    pub json: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Register the job of Slurm's Prolog environment; always exits 0
    Prolog,
    /// Clear the job of Slurm's Epilog environment, look at its GPUs
    #[command(after_help = "Exits 0, but with 75 where a leak was found and the drain for it failed.")]
    Epilog,
    /// Say why a job is or is not judged, what was done, what comes next
    Explain {
        /// The job as Slurm prints it: 130, 123_4, 200+1, or a SLUID
        #[arg(value_name = "JOBID")]
        job: String,
    },
    /// Spare one running job drain and cancel for a time; from any node
    #[command(
        override_usage = "gpu-reaper-hc keep <JOBID> --for <DURATION> --reason <TEXT>\n       gpu-reaper-hc keep <JOBID> --end",
        after_help = "Writes a line to the job's AdminComment, beside what others wrote there, where\n\
      every node finds it before a deed. A later keep replaces an earlier one.\n\
      Alerts go on."
    )]
    Keep {
        /// The job as Slurm prints it: 130, 123_4, or a SLUID
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
    /// Lift the drain that we made on this node; nobody else's
    #[command(after_help = "Whether the job has gone and the GPUs are clean is yours to judge. To be run\n\
      as root on the node.")]
    Release,
    /// Take a fault of this node on; without FAULT: list what is open
    #[command(after_help = "A fault that was taken on keeps no drain from being lifted and starts no new\n\
      one; a drain that was made for it stays until somebody lifts it. If the fault\n\
      ends and comes again, it is told anew. To be run as root.")]
    Ack {
        /// The fault's number, or a kind: all that are open of it
        #[arg(value_name = "FAULT")]
        fault: Option<String>,
    },
    /// Show this node on one screen: GPUs, jobs, verdicts, hours, drains
    #[command(after_help = "Judges again from the ledger as --explain does, and changes nothing; neither\n\
      Slurm nor a GPU is asked.")]
    Status,
    /// List the case files of ended jobs that were found, newest first
    #[command(
        after_help = "Hours are certified ones, never projections. Reads the ledger of this node and\n\
      changes nothing."
    )]
    Cases {
        /// Print CSV; with --json: an object a line, not both
        #[arg(long)]
        csv: bool,
        /// Only those that ended within this time
        #[arg(long, value_name = "DURATION", value_parser = crate::config::duration,
              allow_hyphen_values = true)]
        since: Option<Duration>,
    },
    /// Check, show or print the configuration
    Config {
        /// Which
        #[command(subcommand)]
        what: ConfigCommand,
    },
    /// Look at this node's set-up: what is wrong, which line mends it
    #[command(after_help = "Slurm's files and ours, hooks, GPUs, disk. Changes nothing. To be run as root\n\
      on the node, after installation and whenever something seems amiss. Exits 0\n\
      where all is ok, 1 with warnings or what could not be looked at, 2 with\n\
      faults.")]
    Doctor,
    /// Judge what is recorded: what would have been done, and when
    #[command(after_help = "Without --trace: every job run of which this node's ledger or its archive\n\
      holds samples. What is judged is judged as under `mode: enforce`, so that\n\
      drains and cancels show, whoever owns the configuration. Each recording is one\n\
      job on one node that holds all GPUs of the file (--every and --job-start are\n\
      of recordings alone): CSV as `nvidia-smi --query-gpu=timestamp,uuid,...\n\
      --format=csv -l 15` writes it, with its header.")]
    Backtest {
        /// Recordings instead of the ledger
        #[arg(long, value_name = "FILE", num_args = 1..)]
        trace: Vec<PathBuf>,
        /// As if a run came this often
        #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = interval, requires = "trace")]
        every: Duration,
        /// The job began so long before
        #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = crate::config::duration,
              requires = "trace")]
        job_start: Duration,
    },
    /// Play every scenario; print its verdict and the sentence it proves
    Scenarios,
    /// Watch two wasted jobs escalate: no cluster, no GPU, no root
    Demo,
}

impl Cli {
    /// Whether it changes anything outside of its own words.
    pub fn does_something(&self) -> bool {
        use Command::*;
        match &self.command {
            Some(command) => matches!(command, Prolog | Epilog | Ack { .. } | Keep { .. } | Release),
            None => self.explain.is_none(),
        }
    }
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

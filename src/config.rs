//! The configuration: one strict YAML file. Never half understood: any error means no action at all, and
//! all errors are reported at once with key path and position.
//!
//! From text to meaning: `file` reads, `tree` parses, `schema` asks for every key (through `table`, which
//! collects what is wrong, and `values`, which read one value each), `cross` compares keys with one another.

use crate::mode::{EnforceIn, Mode};
use crate::model::{Gpm, Verdict};
use crate::policy::fault::{self, Action, Law};
use crate::policy::{Auto, Exemptions, Rules, Stage, Thresholds};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

mod cross;
mod effective;
mod file;
mod schema;
mod table;
mod tree;
mod values;

pub use effective::{change, show};

/// Where the configuration lies unless the caller names another file.
pub const DEFAULT_FILE: &str = "/etc/gpu-reaper-hc/config.yaml";

/// No action begins with less left of the run's time, so a `deadline` of no more never acts.
pub const ACT_NEEDS: Duration = Duration::from_secs(20);

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
    /// Whose activity GPM measures; only NVML has it.
    pub gpm: Gpm,
}

/// Where Slurm is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlurmSource {
    /// Local evidence, then one bounded question a job.
    Auto,
    /// The whole list of this node, at most every 15 minutes.
    Squeue,
    /// slurmrestd for jobs and nodes; deeds stay with the commands.
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
    /// `http://host:port`, `https://host:port` or `unix:/path`; there where the source is [`SlurmSource::Rest`].
    pub rest_url: Option<String>,
    /// Of `v0.0.41` the 41; `None`: the newest that is served.
    pub rest_version: Option<u8>,
    /// As whom slurmrestd is asked.
    pub username: Option<String>,
    /// The file that holds the token.
    pub token_file: Option<PathBuf>,
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
    /// Whether that holds also for a drain with our prefix that this ledger does not know.
    pub release_orphans: bool,
    /// Whether a job is requeued, once, where it would be cancelled and can be requeued.
    pub requeue: bool,
    /// Whether a cancelled job's AdminComment says why.
    pub admin_comment: bool,
    /// Whether the job's own output is told too.
    pub notify_job: bool,
}

/// `limits:`
#[derive(Clone, Debug)]
pub struct Limits {
    /// Share of the cluster's GPU nodes, 0 to 1, that may carry our drains at once.
    pub max_drained_fraction: f64,
    /// The same as a number of nodes; `None`: the share alone.
    pub max_drained_nodes: Option<u32>,
    /// Over how long the nodes' moments of acting are spread.
    pub spread: Duration,
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

/// `epilog:`
#[derive(Clone, Debug)]
pub struct Epilog {
    /// How long the Epilog may look again for leftover processes.
    pub verify: Duration,
    /// Names of processes that are no leak.
    pub allow: Vec<String>,
    /// What is done about one: never off.
    pub on_leak: Action,
}

/// `faults:`
#[derive(Clone, Debug)]
pub struct Faults {
    /// Observe or enforce, apart from that of jobs. Private for the same reason: see [`Config::faults_mode`].
    mode: Mode,
    /// What is done about which.
    pub law: Law,
}

/// `metrics:`
#[derive(Clone, Debug)]
pub struct Metrics {
    /// The file for node_exporter's textfile collector; `None`: none is written.
    pub textfile: Option<PathBuf>,
}

/// `slack:`, and any web hook of that form.
#[derive(Clone, Debug)]
pub struct Slack {
    /// The file that holds the web hook's address, which is a secret; `None`: nothing is sent.
    pub webhook_file: Option<PathBuf>,
    /// The certificates that are trusted; `None`: the system's.
    pub ca_file: Option<PathBuf>,
    /// What is milder is not sent.
    pub min_verdict: Verdict,
}

/// `notify:`
#[derive(Clone, Debug)]
pub struct Notify {
    /// The site's own program and its arguments; empty: none.
    pub exec: Vec<String>,
    /// What is milder it is not told.
    pub min_verdict: Verdict,
    /// Whether both channels are told of faults of the node, and that its GPUs cannot be read.
    pub node_faults: bool,
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
    /// `faults:`
    pub faults: Faults,
    /// `epilog:`
    pub epilog: Epilog,
    /// `metrics:`
    pub metrics: Metrics,
    /// `slack:`
    pub slack: Slack,
    /// `notify:`
    pub notify: Notify,
    /// What is accepted but worth saying once a file: keys without effect, with what replaces them, and
    /// settings that are probably not meant.
    pub notes: Vec<String>,
    /// What the file says, for [`show`]; empty for defaults.
    text: String,
}

impl Config {
    /// Observe or enforce.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Observe or enforce, for faults of the node.
    pub fn faults_mode(&self) -> Mode {
        self.faults.mode
    }

    /// The mildest stage that acts, if any does.
    pub fn acts(&self) -> bool {
        self.rules.stages.iter().any(|s| s.verdict > Verdict::Alert)
    }
}

/// One thing that is wrong, on one line: file, key, what was found and where, what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, as the caller named it.
    pub file: String,
    /// The key, dotted, with the index of a list's item: `stages[1].after`. Empty: the file as a whole.
    pub key: String,
    /// What is wrong.
    pub what: String,
    /// Line and column, from 1, where the file has such a place.
    pub position: Option<(usize, usize)>,
    /// What is allowed, or what to do.
    pub hint: String,
}

impl ConfigError {
    fn of_file(file: &str) -> ConfigError {
        ConfigError {
            file: file.to_owned(),
            key: String::new(),
            what: String::new(),
            position: None,
            hint: String::new(),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "config `{}`: ", self.file.escape_debug())?;
        if !self.key.is_empty() {
            write!(f, "`{}`: ", self.key)?;
        }
        f.write_str(&self.what)?;
        if let Some((line, column)) = self.position {
            write!(f, " at line {line} column {column}")?;
        }
        if !self.hint.is_empty() {
            write!(f, "; {}", self.hint)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// Reads the configuration from `named`, or from [`DEFAULT_FILE`] where nothing is named: that one may be
/// absent, which means [`defaults`]; a file that somebody named may not.
///
/// # Errors
///
/// Every error of the file at once. A file that says `enforce` and that others than root could have written
/// is an error too: what it says may not be what the administrator said.
pub fn load(named: Option<&Path>) -> Result<Config, Vec<ConfigError>> {
    load_from(named.unwrap_or(Path::new(DEFAULT_FILE)), named.is_some(), true)
}

/// The same for who judges by it and does nothing: whoever wrote a draft may see what it would have done.
///
/// # Errors
///
/// Every error of the file at once.
pub fn load_draft(named: Option<&Path>) -> Result<Config, Vec<ConfigError>> {
    load_from(named.unwrap_or(Path::new(DEFAULT_FILE)), named.is_some(), false)
}

fn load_from(path: &Path, must_exist: bool, acts: bool) -> Result<Config, Vec<ConfigError>> {
    let name = path.display().to_string();
    let refuse = |what: String, hint: &str| {
        Err(vec![ConfigError { what, hint: hint.to_owned(), ..ConfigError::of_file(&name) }])
    };
    match file::read(path) {
        Err(cause) => refuse(cause, ""),
        Ok(None) if must_exist => refuse("does not exist".to_owned(), "leave the name out for defaults"),
        Ok(None) => Ok(defaults()),
        Ok(Some((text, file))) => {
            let mut config = parse(&text, &name)?;
            config.file = Some(path.to_owned());
            let by = [("mode", config.mode), ("faults.mode", config.faults.mode)];
            if let Some((key, _)) = by.iter().find(|(_, mode)| acts && mode.enforces())
                && let Some(why) = file::doubt(path, &file)
            {
                return refuse(
                    format!("`{key}: enforce` is refused: {why}"),
                    "root alone may be able to write it",
                );
            }
            Ok(config)
        }
    }
}

/// Reads a configuration from text; `name` is what errors call it. Whoever calls this answers for where the
/// text came from: only [`load`] looks at who could have written it.
///
/// # Errors
///
/// Every error of the text at once.
pub fn parse(text: &str, name: &str) -> Result<Config, Vec<ConfigError>> {
    let defaults = Config { file: Some(PathBuf::from(name)), text: text.to_owned(), ..defaults() };
    let root = match tree::read(text) {
        Ok(Some(root)) => root,
        Ok(None) => return Ok(defaults),
        Err(tree::Unreadable { cause, position }) => {
            let what = "is unusable".to_owned();
            // The parser repeats keys as they stand in the file, with whatever control characters they hold.
            let mut hint = values::on_one_line(&cause);
            if let Some((line, column)) = position {
                hint = hint.replacen(&format!(" at line {line} column {column}"), "", 1);
                let tabbed = |text: &&str| text.trim_start_matches(' ').starts_with('\t');
                if text.lines().nth(line - 1).filter(tabbed).is_some() {
                    hint = "a tab stands before its first word: YAML is indented by blanks alone".to_owned();
                }
            }
            return Err(vec![ConfigError { what, position, hint, ..ConfigError::of_file(name) }]);
        }
    };
    let mut check = table::Check::new(text, name);
    let table = table::Table::new(&mut check, String::new(), Some(&root));
    let mut config = schema::config(table, defaults);
    cross::check(&mut check, &root, &config);
    config.notes = std::mem::take(&mut check.notes);
    let errors = check.errors();
    if errors.is_empty() { Ok(config) } else { Err(errors) }
}

/// Where a configuration is from, for people: its file, or that the defaults hold and why.
pub fn origin(config: &Config) -> String {
    let Some(file) = &config.file else {
        let other = Path::new(DEFAULT_FILE).with_extension("yml");
        let beside =
            if other.exists() { format!("; `{}` is not read", other.display()) } else { String::new() };
        return format!("the defaults hold: `{DEFAULT_FILE}` does not exist{beside}");
    };
    file.display().to_string()
}

/// A duration as the configuration spells it, for options: `60s`, `1h30m`.
///
/// # Errors
///
/// Anything else, a bare number too.
pub fn duration(text: &str) -> Result<Duration, String> {
    crate::units::quantity::duration(text).ok_or("expected a duration like 60s, 30m or 1h30m".to_owned())
}

/// The commented default file. It says exactly what [`defaults`] answers.
pub fn example() -> &'static str {
    include_str!("config/example.yaml")
}

/// What holds where nothing is said: observe.
pub fn defaults() -> Config {
    const HOUR: u64 = 3600;
    const DAY: u64 = 24 * HOUR;
    Config {
        file: None,
        mode: Mode::Observe,
        state_dir: PathBuf::from("/var/lib/gpu-reaper-hc"),
        deadline: Duration::from_secs(45),
        enforce_in: EnforceIn::EVERYWHERE,
        gpu: Gpu {
            source: GpuSourceKind::Nvml,
            library: None,
            deadline: Auto::Auto,
            scenario: None,
            expected: Auto::Auto,
            gpm: Gpm::Off,
        },
        slurm: Slurm {
            source: SlurmSource::Auto,
            bin_dir: None,
            conf: None,
            rest_url: None,
            rest_version: None,
            username: None,
            token_file: None,
        },
        rules: default_rules(),
        act: Act {
            release: Release::JobEnd,
            release_orphans: false,
            requeue: false,
            admin_comment: true,
            notify_job: false,
        },
        limits: Limits {
            max_drained_fraction: 0.1,
            max_drained_nodes: None,
            spread: Duration::from_secs(600),
            max_actions_per_hour: 4,
        },
        history: History {
            keep: Duration::from_secs(DAY),
            archive: Duration::from_secs(14 * DAY),
            max_size_bytes: 64 << 20,
            case_files: Duration::from_secs(30 * DAY),
        },
        faults: Faults {
            mode: Mode::Observe,
            law: Law { actions: vec![], xids: fault::HARDWARE_XIDS.to_vec() },
        },
        epilog: Epilog { verify: Duration::from_secs(10), allow: vec![], on_leak: Action::Alert },
        metrics: Metrics { textfile: None },
        slack: Slack { webhook_file: None, ca_file: None, min_verdict: Verdict::Alert },
        notify: Notify { exec: vec![], min_verdict: Verdict::Alert, node_faults: false },
        notes: vec![],
        text: String::new(),
    }
}

fn default_rules() -> Rules {
    const MINUTE: i64 = 60_000;
    Rules {
        thresholds: Thresholds {
            util_pct: 15,
            mem_held_fraction: 0.05,
            idle_power: Auto::Auto,
            window_ms: 30 * MINUTE,
            warmup_ms: 15 * MINUTE,
            first_activity_grace_ms: 60 * MINUTE,
            min_samples: Auto::Auto,
            max_sample_gap: Auto::Auto,
        },
        stages: vec![
            Stage { after_ms: 0, verdict: Verdict::Alert },
            Stage { after_ms: 60 * MINUTE, verdict: Verdict::Drain },
        ],
        spinning: Verdict::Drain,
        exemptions: Exemptions::default(),
        drain_shared: false,
        warn: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_change_of_a_key_keeps_what_stands_beside_it() {
        let table = [
            ("", "slurm.conf", "/a", (None, "slurm: { conf: /a }")),
            ("mode: observe\nslurm: { conf: /b }\n", "slurm.conf", "/a", (Some(2), "slurm: { conf: /a }")),
            (
                "slurm:\n  bin_dir: /opt/bin\n",
                "slurm.conf",
                "/a",
                (Some(1), "slurm: { bin_dir: /opt/bin, conf: /a }"),
            ),
            ("deadline: 50s\n", "deadline", "40s", (Some(1), "deadline: 40s")),
            ("", "deadline", "40s", (None, "deadline: 40s")),
        ];
        for (text, key, value, (line, want)) in table {
            let config = parse(text, "c").unwrap();
            assert_eq!(change(&config, key, value), (line, want.to_owned()), "{text:?}");
            assert!(parse(&change(&config, key, value).1, "c").is_ok());
        }
    }

    #[test]
    fn no_default_file_means_defaults_and_a_broken_one_does_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config.yaml");
        let absent = load_from(&path, false, true).expect("defaults");
        assert_eq!((absent.mode(), absent.file), (Mode::Observe, None));
        symlink("nowhere", &path).expect("a link");
        let told = load_from(&path, false, true).expect_err("a link to nothing");
        assert!(told[0].what.starts_with("cannot be opened"), "{told:?}");
        std::fs::remove_file(&path).expect("the link");
        std::fs::write(&path, "# nothing\n").expect("a file");
        assert_eq!(load_from(&path, false, true).expect("defaults").file, Some(path));
    }
}

//! One Slurm command: an absolute path, an environment of four variables, and the limits of [`crate::program`].

use super::{Answer, NoAnswer};
use crate::program::{Ended, Gathered, is_root, one_line, run_within, trusted};
use std::cell::{Cell, OnceCell};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

/// What is kept of each of the two outputs; a longer one is read on, dropped, and not understood.
const KEPT_BYTES: usize = 1 << 20;
/// The same for a long list: 10,000 nodes, none like another, in five partitions; or 2,000 tasks of one array in JSON,
/// of which each takes 7.5 kB (26.05).
const KEPT_BYTES_OF_A_LONG_LIST: usize = 16 << 20;
/// Where Slurm is installed when nobody says where.
const USUAL_PLACES: [&str; 3] = ["/usr/bin", "/usr/local/bin", "/opt/slurm/bin"];

/// Where Slurm's commands and configuration lie on this host.
#[derive(Clone, Debug)]
pub struct Site {
    /// `slurm.bin_dir`: if given, nowhere else is looked.
    pub bin_dir: Option<PathBuf>,
    /// slurm.conf, for SLURM_CONF; `None` leaves the choice to Slurm's own search.
    pub conf: Option<PathBuf>,
    /// Our PATH; slurmd gives none to its HealthCheckProgram.
    pub path: Option<OsString>,
    /// How long one command may take.
    pub limit: Duration,
}

impl Site {
    /// The configuration's words, completed from our own environment (PATH, and SLURM_CONF where `conf` is
    /// not given: Prolog and Epilog have it).
    pub fn here(bin_dir: Option<PathBuf>, conf: Option<PathBuf>) -> Site {
        let inherited = || std::env::var_os("SLURM_CONF").filter(|v| !v.is_empty()).map(PathBuf::from);
        Site {
            bin_dir,
            conf: conf.or_else(inherited),
            path: std::env::var_os("PATH"),
            limit: Duration::from_secs(6),
        }
    }
}

/// The four commands that are ever run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Shows and changes.
    Scontrol,
    /// Lists jobs.
    Squeue,
    /// Lists nodes.
    Sinfo,
    /// Cancels jobs.
    Scancel,
}

impl Program {
    /// All of them.
    pub const ALL: [Program; 4] = [Program::Scontrol, Program::Squeue, Program::Sinfo, Program::Scancel];

    /// Its file name.
    pub fn name(self) -> &'static str {
        match self {
            Program::Scontrol => "scontrol",
            Program::Squeue => "squeue",
            Program::Sinfo => "sinfo",
            Program::Scancel => "scancel",
        }
    }
}

/// Runs commands; each one is looked for once.
pub(super) struct Commands {
    site: Site,
    found: [OnceCell<Result<PathBuf, String>>; 4],
    /// How often none was given.
    pub(super) silences: Cell<u32>,
}

impl Commands {
    pub(super) fn new(site: Site) -> Commands {
        Commands { site, found: Default::default(), silences: Cell::new(0) }
    }

    pub(super) fn conf(&self) -> Option<&Path> {
        self.site.conf.as_deref()
    }

    /// Where a command lies, looked at as root would before it runs it, whoever asks.
    pub(super) fn as_root(&self, program: Program) -> Result<PathBuf, String> {
        find(&self.site, program.name(), true)
    }

    /// Standard output of a command that ended with exit status 0. User text may hold any byte: what is no UTF-8 is
    /// replaced.
    pub(super) fn run<A: AsRef<OsStr>>(&self, program: Program, args: &[A]) -> Answer<String> {
        self.run_keeping(KEPT_BYTES, program, args)
    }

    /// The same where all nodes of a cluster or all tasks of an array may be listed.
    pub(super) fn run_for_a_long_list<A: AsRef<OsStr>>(
        &self,
        program: Program,
        args: &[A],
    ) -> Answer<String> {
        self.run_keeping(KEPT_BYTES_OF_A_LONG_LIST, program, args)
    }

    fn run_keeping<A: AsRef<OsStr>>(&self, most: usize, program: Program, args: &[A]) -> Answer<String> {
        let answer = self.run_to_its_end(most, program, args);
        if answer.as_ref().is_err_and(NoAnswer::is_silence) {
            self.silences.set(self.silences.get() + 1);
        }
        answer
    }

    fn run_to_its_end<A: AsRef<OsStr>>(&self, most: usize, program: Program, args: &[A]) -> Answer<String> {
        let name = program.name();
        let path = self.found[program as usize]
            .get_or_init(|| find(&self.site, name, is_root()))
            .as_ref()
            .map_err(|why| NoAnswer::Unavailable { program: name, why: why.clone() })?;
        let mut command = Command::new(path);
        command.args(args).env_clear().envs(self.environment());
        let ended = run_within(command, None, self.site.limit, most).map_err(|e| NoAnswer::Unavailable {
            program: name,
            why: format!("`{}`: {e}", path.display()),
        })?;
        let Some(Ended { status, out, err }) = ended else {
            return Err(NoAnswer::TimedOut { program: name, limit_ms: self.site.limit.as_millis() as u64 });
        };
        understand(name, status, out, err)
    }

    /// SQUEUE_FORMAT, SLURM_CLUSTERS, TZ and their like change what is printed: only what is needed goes in.
    /// With SLURM_TIME_FORMAT=%s the clients print Unix seconds (measured on 22.05.8).
    fn environment(&self) -> Vec<(&'static str, OsString)> {
        let mut env: Vec<(&str, OsString)> = vec![
            ("PATH", "/usr/bin:/bin".into()),
            ("LC_ALL", "C".into()),
            ("SLURM_TIME_FORMAT", "%s".into()),
        ];
        env.extend(self.site.conf.as_ref().map(|conf| ("SLURM_CONF", conf.into())));
        env
    }
}

fn understand(program: &'static str, status: ExitStatus, out: Gathered, err: Gathered) -> Answer<String> {
    let not_understood = |text: String| Err(NoAnswer::NotUnderstood { program, text });
    match status.code() {
        Some(0) if out.too_long => not_understood(format!("more than {} bytes", out.most)),
        // squeue and sinfo drop a field they do not know, say so on stderr and exit 0 (22.05 to 26.05).
        Some(0) if one_line(&err.kept).contains("Invalid job format specification") => {
            not_understood(format!("this Slurm's version is not supported: {}", one_line(&err.kept)))
        }
        Some(0) => Ok(String::from_utf8_lossy(&out.kept).into_owned()),
        Some(code) => {
            // `scontrol show node` says on stdout that there is no such node.
            let said = if one_line(&err.kept).is_empty() { &out.kept } else { &err.kept };
            Err(NoAnswer::Refused { program, code, text: one_line(said) })
        }
        None => not_understood(match status.signal() {
            Some(signal) => format!("it died of signal {signal}"),
            None => "it ended without a status".to_owned(),
        }),
    }
}

/// The configured folder alone, or PATH and then the usual places.
fn find(site: &Site, name: &str, root: bool) -> Result<PathBuf, String> {
    let from_path = site.path.iter().flat_map(std::env::split_paths).filter(|p| p.is_absolute());
    let places: Vec<PathBuf> = match &site.bin_dir {
        Some(folder) => vec![folder.clone()],
        None => from_path.chain(USUAL_PLACES.map(PathBuf::from)).collect(),
    };
    let mut unseen = None;
    for path in places.iter().map(|folder| folder.join(name)) {
        match std::fs::metadata(&path) {
            Ok(meta) if meta.is_file() && meta.mode() & 0o111 != 0 => return trusted(path, &meta, root),
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                unseen.get_or_insert_with(|| format!("`{}`: {e}", path.display()));
            }
            _ => continue,
        }
    }
    Err(match &site.bin_dir {
        _ if unseen.is_some() => unseen.unwrap_or_default(),
        Some(folder) => format!("`slurm.bin_dir` is `{}`, which holds no program `{name}`", folder.display()),
        None => format!("no program `{name}` in PATH or {}", USUAL_PLACES.join(", ")),
    })
}

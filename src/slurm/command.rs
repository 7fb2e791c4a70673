//! One Slurm command: an absolute path, an environment of four variables, its own process group and a
//! deadline that holds whatever the command or its children do. Never a shell, never a reader thread.

use super::{Answer, NoAnswer};
use crate::units::rights::writable_by_others;
use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

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
}

impl Commands {
    pub(super) fn new(site: Site) -> Commands {
        Commands { site, found: Default::default() }
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
        let name = program.name();
        let path = self.found[program as usize]
            .get_or_init(|| find(&self.site, name, is_root()))
            .as_ref()
            .map_err(|why| NoAnswer::Unavailable { program: name, why: why.clone() })?;
        let mut command = Command::new(path);
        command.args(args).env_clear().envs(self.environment());
        let ended = run_within(command, self.site.limit, most).map_err(|e| NoAnswer::Unavailable {
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

/// The last line that holds anything, printable, at most 200 bytes: what a command complains of last is
/// what it died of.
pub(super) fn one_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let line = text.lines().map(str::trim).rfind(|l| !l.is_empty()).unwrap_or("");
    let printable = |c: char| {
        if c.is_ascii_graphic() || c == ' ' { c } else { '?' }
    };
    line.chars().map(printable).take(200).collect()
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

/// What root runs, nobody else may be able to change, nor to put another in its place: the file, and each folder on the
/// way to it, by the name that it was found under and by its own.
fn trusted(path: PathBuf, meta: &Metadata, root: bool) -> Result<PathBuf, String> {
    let shown = path.display();
    if !path.is_absolute() {
        return Err(format!("`{shown}` is not an absolute path"));
    }
    if !root {
        return Ok(path);
    }
    if let Some(why) = changeable(meta) {
        return Err(format!("`{shown}` {why}"));
    }
    let checked = || -> std::io::Result<Option<String>> {
        let (named, own) = (path.parent().unwrap_or(&path).canonicalize()?, path.canonicalize()?);
        let elsewhere = own.ancestors().skip(1).filter(|folder| !named.starts_with(folder));
        for folder in named.ancestors().chain(elsewhere) {
            if let Some(why) = changeable(&folder.metadata()?) {
                return Ok(Some(format!("its folder `{}` {why}", folder.display())));
            }
        }
        Ok(None)
    };
    match checked() {
        Ok(None) => Ok(path),
        Ok(Some(why)) => Err(format!("`{shown}`: {why}")),
        Err(error) => Err(format!("`{shown}`: its rights cannot be read: {error}")),
    }
}

fn is_root() -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// For root alone.
fn changeable(meta: &Metadata) -> Option<String> {
    writable_by_others(meta.uid(), meta.gid(), meta.mode(), 0)
}

struct Ended {
    status: ExitStatus,
    out: Gathered,
    err: Gathered,
}

/// `None`: killed at the limit. Returns within the limit and half a second, also when a grandchild holds
/// the pipe, or when the command hangs in the kernel and cannot die.
fn run_within(mut command: Command, limit: Duration, most: usize) -> std::io::Result<Option<Ended>> {
    let deadline = Instant::now() + limit;
    die_with_us(&mut command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let mut out = Gathered::new(child.stdout.take(), most);
    let mut err = Gathered::new(child.stderr.take(), most);
    loop {
        // Looked at before the read: what a process wrote before it ended is then in the pipe.
        let gone = has_ended(&child);
        out.read_what_is_there();
        err.read_what_is_there();
        if gone {
            // Not yet reaped, so its id still names its group and nothing else.
            if out.is_open() || err.is_open() {
                kill_group(&child);
            }
            return Ok(Some(Ended { status: child.wait()?, out, err }));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            kill_group(&child);
            reap(&mut child, Duration::from_millis(500));
            return Ok(None);
        }
        wait_for_news(&out, &err, left);
    }
}

/// A run that is given up at its deadline, or killed, waits for nobody: its command, perhaps a deed that nothing would
/// look after, goes with it. The kernel means the thread that started the command; that is the one that waits here.
fn die_with_us(command: &mut Command) {
    let us = std::process::id();
    // SAFETY: two system calls between fork and exec. One whose parent has gone before the first was never told.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            match libc::getppid() as u32 == us {
                true => Ok(()),
                false => Err(ErrorKind::NotConnected.into()),
            }
        });
    }
}

/// Whether it has ended, leaving it to be reaped.
fn has_ended(child: &Child) -> bool {
    // SAFETY: siginfo is plain data for waitid to fill in; the id is our own child's, not yet reaped.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        libc::waitid(libc::P_PID, child.id(), &mut info, flags) == 0 && info.si_pid() != 0
    }
}

fn kill_group(child: &Child) {
    // SAFETY: the group was made for this child, which has not been reaped.
    unsafe { libc::killpg(child.id() as libc::pid_t, libc::SIGKILL) };
}

/// A process in uninterruptible sleep outlives SIGKILL: it is left to init, not waited for.
fn reap(child: &mut Child, patience: Duration) {
    let until = Instant::now() + patience;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns when a pipe has something to say, or after a short while: a child's end alone wakes nobody when
/// a grandchild holds the pipe.
fn wait_for_news(out: &Gathered, err: &Gathered, left: Duration) {
    let mut fds = [out, err].map(|g| libc::pollfd { fd: g.raw(), events: libc::POLLIN, revents: 0 });
    let slice_ms = if out.is_open() || err.is_open() { 20 } else { 1 };
    let wait_ms = left.as_millis().clamp(1, slice_ms) as libc::c_int;
    // SAFETY: two entries, alive for the call; a negative descriptor is skipped by poll.
    unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, wait_ms) };
}

/// One output of a command, as far as it is kept.
struct Gathered {
    source: Option<Box<dyn Pipe>>,
    kept: Vec<u8>,
    most: usize,
    too_long: bool,
}

trait Pipe: Read + AsRawFd {}
impl<T: Read + AsRawFd> Pipe for T {}

impl Gathered {
    fn new<P: Pipe + 'static>(source: Option<P>, most: usize) -> Gathered {
        if let Some(pipe) = &source {
            // SAFETY: our own descriptor. Its file description is ours alone: the command holds the other end.
            unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        }
        Gathered {
            source: source.map(|p| Box::new(p) as Box<dyn Pipe>),
            kept: Vec::new(),
            most,
            too_long: false,
        }
    }

    fn is_open(&self) -> bool {
        self.source.is_some()
    }

    fn raw(&self) -> i32 {
        self.source.as_ref().map_or(-1, |pipe| pipe.as_raw_fd())
    }

    /// At most a MiB at a time, so that an endless writer cannot keep the deadline from being looked at.
    fn read_what_is_there(&mut self) {
        let mut buffer = [0u8; 16 << 10];
        for _ in 0..64 {
            let Some(pipe) = &mut self.source else { return };
            match pipe.read(&mut buffer) {
                Ok(0) => self.source = None,
                Ok(n) => {
                    let room = self.most - self.kept.len();
                    self.too_long |= n > room;
                    self.kept.extend_from_slice(&buffer[..n.min(room)]);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.source = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_shown_as_its_last_line_printable_and_short() {
        let munge = b"squeue: error: If munged is up, restart with --num-threads=10\nslurm_load_node error: Protocol authentication error\n\n";
        assert_eq!(one_line(munge), "slurm_load_node error: Protocol authentication error");
        assert_eq!(one_line(b"a\x1b[31mb\xff\xc3\xa9"), "a?[31mb??");
        assert_eq!(one_line(&[b'x'; 500]).len(), 200);
        assert_eq!(one_line(b""), "");
    }
}

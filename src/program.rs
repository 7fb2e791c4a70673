//! One program that we run: its own process group and a deadline that holds whatever it or its children do. Never a
//! shell, never a reader thread. Which program, and with what, is its caller's concern.

use crate::units::rights::writable_by_others;
use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// So many links the kernel follows in one path (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// The last line that holds anything, printable, at most 200 bytes: what a command complains of last is
/// what it died of.
pub fn one_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let line = text.lines().map(str::trim).rfind(|l| !l.is_empty()).unwrap_or("");
    let printable = |c: char| {
        if c.is_ascii_graphic() || c == ' ' { c } else { '?' }
    };
    line.chars().map(printable).take(200).collect()
}

/// What root runs, nobody else may be able to change, nor to put another in its place: the file, and each folder and link
/// on the way to it.
pub fn trusted(path: PathBuf, meta: &Metadata, root: bool) -> Result<PathBuf, String> {
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
    let changed_on_the_way = || -> std::io::Result<Option<String>> {
        let way = way_to(&path)?;
        for folder in &way.folders {
            if let Some(why) = changeable(&folder.metadata()?) {
                return Ok(Some(format!("its folder `{}` {why}", folder.display())));
            }
        }
        // A folder with the sticky bit keeps everybody off what is not theirs, and not from their own link.
        for link in &way.links {
            let uid = link.symlink_metadata()?.uid();
            if uid != 0 {
                return Ok(Some(format!("the link `{}` belongs to uid {uid}, not to root", link.display())));
            }
        }
        Ok(None)
    };
    match changed_on_the_way() {
        Ok(None) => Ok(path),
        Ok(Some(why)) => Err(format!("`{shown}`: {why}")),
        Err(error) => Err(format!("`{shown}`: its rights cannot be read: {error}")),
    }
}

/// What the kernel passes on the way to a file.
#[derive(Debug, Default)]
struct Way {
    /// Every folder in which a name is looked up, behind links too: who can write there can put something else in its place.
    folders: Vec<PathBuf>,
    /// Every link.
    links: Vec<PathBuf>,
}

fn way_to(path: &Path) -> std::io::Result<Way> {
    let steps = |path: &Path| -> Vec<PathBuf> { path.iter().rev().map(PathBuf::from).collect() };
    let (mut at, mut left) = (PathBuf::from("/"), steps(path));
    let mut way = Way::default();
    while let Some(step) = left.pop() {
        if step.as_os_str() == ".." {
            at.pop();
            continue;
        }
        if step.as_os_str() == "." {
            continue;
        }
        if !way.folders.contains(&at) {
            way.folders.push(at.clone());
        }
        // A step that is `/` begins anew.
        let next = at.join(&step);
        if !next.symlink_metadata()?.is_symlink() {
            at = next;
            continue;
        }
        if way.links.len() == MOST_LINKS {
            return Err(std::io::Error::from_raw_os_error(libc::ELOOP));
        }
        left.extend(steps(&next.read_link()?));
        way.links.push(next);
    }
    Ok(way)
}

/// Whether root runs us.
pub fn is_root() -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// For root alone.
fn changeable(meta: &Metadata) -> Option<String> {
    writable_by_others(meta.uid(), meta.gid(), meta.mode(), 0)
}

/// A program that ended by itself.
pub struct Ended {
    /// How.
    pub status: ExitStatus,
    /// Its standard output.
    pub out: Gathered,
    /// Its standard error.
    pub err: Gathered,
}

/// Runs it to its end, with this on its standard input. `None`: killed at the limit. Returns within the limit and half a
/// second, also when a grandchild holds the pipe, or when the command hangs in the kernel and cannot die.
pub fn run_within(
    mut command: Command,
    input: Option<&[u8]>,
    limit: Duration,
    most: usize,
) -> std::io::Result<Option<Ended>> {
    let deadline = Instant::now() + limit;
    die_with_us(&mut command);
    let mut child = command
        .stdin(input.map_or(Ok(Stdio::null()), in_memory)?)
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

/// A file without a name that holds it all: nobody waits for a reader, and one that never reads fills no pipe.
fn in_memory(input: &[u8]) -> std::io::Result<Stdio> {
    // SAFETY: a name that lives through the call; what comes back is a descriptor of our own.
    let mut file = unsafe {
        match libc::memfd_create(c"gpu-reaper-hc".as_ptr(), libc::MFD_CLOEXEC) {
            fd if fd < 0 => return Err(std::io::Error::last_os_error()),
            fd => File::from_raw_fd(fd),
        }
    };
    file.write_all(input)?;
    file.rewind()?;
    Ok(file.into())
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
pub struct Gathered {
    source: Option<Box<dyn Pipe>>,
    /// Its beginning.
    pub kept: Vec<u8>,
    /// So much is kept; a longer one is read on and dropped.
    pub most: usize,
    /// There was more.
    pub too_long: bool,
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

    #[test]
    fn every_link_of_a_path_and_every_folder_of_it_is_on_the_way() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().canonicalize().unwrap().join(name);
        for folder in ["a", "open", "b/c"] {
            std::fs::create_dir_all(at(folder)).unwrap();
        }
        std::fs::write(at("b/c/tool"), "").unwrap();
        let link = |to: PathBuf, from: &str| std::os::unix::fs::symlink(to, at(from)).unwrap();
        // A link in the middle of the path, in a folder that is neither where it was named nor where it lies.
        link(at("open/hop"), "a/bin");
        link(PathBuf::from("./../b/./c"), "open/hop");
        let Way { folders, links } = way_to(&at("a/bin/tool")).unwrap();
        for folder in ["a", "open", "b", "b/c"] {
            assert!(folders.contains(&at(folder)), "{folder}: {folders:?}");
        }
        assert!(folders.contains(&PathBuf::from("/")) && !folders.contains(&at("a/bin")));
        assert!([at("a/bin"), at("open/hop")].iter().all(|link| links.contains(link)), "{links:?}");
        link(at("loop"), "loop");
        assert_eq!(way_to(&at("loop")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
    }
}

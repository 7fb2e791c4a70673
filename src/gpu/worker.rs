//! The worker: a forked process that asks the driver and answers on a pipe of its own, so that a driver stuck
//! in uninterruptible sleep can hang neither the run, nor slurmd's pipe, nor the run lock, and cannot pile
//! up. It never touches the ledger and never waits for a process that may not die.
//!
//! Fork without exec: nothing has to be found, parsed or linked a second time (0.2 ms). That is sound only
//! while the run has one thread and no SQLite handle, so the run starts the worker first and opens its ledger
//! meanwhile.
//!
//! A thread with a watchdog would not do: a process one of whose threads sleeps in state D never leaves, and
//! slurmd waits for the end of its output and for its exit without limit.

use super::GpuSource;
use super::few::Wanted;
use super::nvidia_smi::NvidiaSmi;
use super::nvml::Nvml;
use super::wire::{Assembly, Frames, Head, Piece, frame};
use crate::model::{Gpm, GpuReport};
use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Which source the worker asks.
#[derive(Clone, Debug)]
pub enum SourcePlan {
    /// libnvidia-ml; `None`: the loader's, where a driver is loaded.
    Nvml {
        /// An explicit library.
        library: Option<PathBuf>,
        /// Whose activity is measured too.
        gpm: Gpm,
    },
    /// A few units through libnvidia-ml, and only who is on them.
    Few {
        /// An explicit library.
        library: Option<PathBuf>,
        /// Which; told under their place here.
        units: Vec<Wanted>,
    },
    /// The nvidia-smi program.
    NvidiaSmi {
        /// Its absolute path.
        program: PathBuf,
    },
}

/// What to ask, for how long, and what keeps a second worker away.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which source.
    pub source: SourcePlan,
    /// Whether NVML is asked for the states that change rarely, which takes some calls more of each GPU.
    pub states: bool,
    /// Counted from [`start`].
    pub deadline: Duration,
    /// The lock file that a worker holds until it is really gone; on a local disk.
    pub lock: PathBuf,
}

/// How long a lock that is held is asked again: a worker that has just answered needs a moment to be gone.
const LOCK_PATIENCE: Duration = Duration::from_millis(100);
/// How long a worker that has answered may take to be gone before it is killed.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// A worker that holds its lock for so long after its own deadline was killed and did not die.
const DYING: Duration = Duration::from_secs(1);

/// Starts the worker and returns at once. To be called while this process has one thread and no open ledger. Of this
/// lock nobody else looks meanwhile: a worker that holds it was left behind.
pub fn start(plan: &Plan) -> Pending {
    begin(plan, LOCK_PATIENCE, |_| Absence::WorkerStuck)
}

/// The same, for one whose lock short looks of others may hold: [`Absence::LookAtWork`] where one did all the time.
pub fn start_patiently(plan: &Plan, patience: Duration) -> Pending {
    begin(plan, patience, Busy::why)
}

fn begin(plan: &Plan, patience: Duration, busy: impl Fn(Busy) -> Absence) -> Pending {
    let until = Instant::now() + plan.deadline;
    match fork(plan, until, patience, busy) {
        Ok((pid, pipe)) => Pending(State::Running(Worker { pid, pipe, until })),
        Err(why) => Pending(State::Settled(why)),
    }
}

/// A look that is under way.
#[derive(Debug)]
pub struct Pending(State);

#[derive(Debug)]
enum State {
    Settled(Absence),
    Running(Worker),
}

impl Pending {
    /// The worker's pid; `None` where none was started.
    pub fn worker(&self) -> Option<u32> {
        match &self.0 {
            State::Settled(_) => None,
            State::Running(worker) => u32::try_from(worker.pid).ok(),
        }
    }

    /// Waits for the answer, at most until the deadline. GPUs that were announced and not read by then are
    /// absent with [`Absence::DeadlinePassed`] (with [`Absence::SourceFailed`] where the worker died); GPUs
    /// read before are kept. The worker is then killed and left: one that cannot die keeps its lock, and the
    /// next [`start`] answers [`Absence::WorkerStuck`].
    pub fn finish(self) -> Reading<GpuReport> {
        let mut worker = match self.0 {
            State::Settled(why) => return Absent(why),
            State::Running(worker) => worker,
        };
        let (mut frames, mut assembly) = (Frames::default(), Assembly::default());
        let mut chunk = [0; 4 << 10];
        let missing = loop {
            match worker.hear(&mut chunk) {
                Heard::Bytes(n) => frames.push(&chunk[..n]),
                Heard::Late => break Absence::DeadlinePassed,
                Heard::End if frames.at_boundary() => break Absence::SourceFailed,
                Heard::End => return Absent(Absence::NotUnderstood),
            }
            if assembly.take(&mut frames).is_err() {
                return Absent(Absence::NotUnderstood);
            }
            if assembly.ended() {
                worker.until = worker.until.min(Instant::now() + LAST_WORDS);
            }
        };
        assembly.report(missing)
    }
}

#[derive(Debug)]
struct Worker {
    pid: libc::pid_t,
    pipe: File,
    until: Instant,
}

enum Heard {
    Bytes(usize),
    End,
    Late,
}

impl Worker {
    /// The next bytes. What lies in the pipe is taken even after the deadline.
    fn hear(&mut self, chunk: &mut [u8]) -> Heard {
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            // Rounded up, so that the last millisecond is slept and not spun away.
            let ms = left.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32;
            let mut wait = libc::pollfd { fd: self.pipe.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one pollfd that outlives the call.
            match unsafe { libc::poll(&mut wait, 1, ms) } {
                0 => return Heard::Late,
                -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                -1 => return Heard::End,
                _ => match self.pipe.read(chunk) {
                    Ok(0) => return Heard::End,
                    Ok(n) => return Heard::Bytes(n),
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => return Heard::End,
                },
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: plain system calls. Only a child not yet waited for is killed, so its pid is still its own;
        // it is never waited for with blocking: in state D not even SIGKILL ends it.
        unsafe {
            if libc::waitpid(self.pid, std::ptr::null_mut(), libc::WNOHANG) == 0 {
                libc::kill(self.pid, libc::SIGKILL);
                libc::waitpid(self.pid, std::ptr::null_mut(), libc::WNOHANG);
            }
        }
    }
}

fn fork(
    plan: &Plan,
    until: Instant,
    patience: Duration,
    busy: impl Fn(Busy) -> Absence,
) -> Result<(libc::pid_t, File), Absence> {
    let failed = |what: &str, cause: io::Error| {
        tracing::warn!("GPU worker: {what}: {cause}; no GPU was looked at");
        Absence::SourceFailed
    };
    let mut options = File::options();
    let lock = options.create(true).truncate(false).read(true).write(true).mode(0o600).open(&plan.lock);
    let lock = lock.map_err(|e| failed(&format!("lock `{}` cannot be opened", plan.lock.display()), e))?;
    match take(&lock, patience) {
        Ok(None) => mark(&lock, until),
        Ok(Some(who)) => return Err(busy(who)),
        Err(e) => return Err(failed(&format!("lock `{}` cannot be taken", plan.lock.display()), e)),
    }
    let mut ends = [0; 2];
    // SAFETY: pipe2 writes two descriptors, which the two Files then own.
    let (reader, writer) = unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return Err(failed("no pipe", io::Error::last_os_error()));
        }
        (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
    };
    let parent = std::process::id();
    // SAFETY: the run has one thread here, so the child may do whatever a process may. It never returns.
    match unsafe { libc::fork() } {
        -1 => Err(failed("no process", io::Error::last_os_error())),
        0 => work(plan, until, writer, &lock, parent),
        pid => Ok((pid, reader)),
    }
}

/// Waits, at most so long, until no worker holds this lock; else says what kept it. None is started, and none is kept
/// from starting.
pub fn wait_for(lock: &Path, patience: Duration) -> Result<(), Absence> {
    let Ok(lock) = File::options().read(true).write(true).open(lock) else { return Ok(()) };
    match take(&lock, patience) {
        Ok(Some(busy)) => Err(busy.why()),
        Ok(None) | Err(_) => Ok(()),
    }
}

/// Who holds a lock.
#[derive(Clone, Copy, Debug)]
enum Busy {
    /// One that still has time, as far as anybody knows.
    AtWork,
    /// One whose time is over.
    Stuck,
}

impl Busy {
    fn why(self) -> Absence {
        match self {
            Busy::AtWork => Absence::LookAtWork,
            Busy::Stuck => Absence::WorkerStuck,
        }
    }
}

/// Takes the lock, or says who holds it after all of `patience`; of one that does not die that is known sooner. The mark
/// of a holder is believed once it has stood for a while: who has just taken the lock may not have written his.
fn take(lock: &File, patience: Duration) -> io::Result<Option<Busy>> {
    let began = Instant::now();
    let (mut marked, mut since) = (marked(lock), began);
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(None),
            Err(TryLockError::Error(e)) => return Err(e),
            Err(TryLockError::WouldBlock) => {}
        }
        let now = self::marked(lock);
        if now != marked {
            (marked, since) = (now, Instant::now());
        }
        let (stood, over) = (since.elapsed(), began.elapsed() >= patience);
        match marked.is_some_and(|until| until < uptime_ms()) {
            true if stood >= DYING || (over && stood >= patience) => return Ok(Some(Busy::Stuck)),
            _ if over => return Ok(Some(Busy::AtWork)),
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Writes into the lock file how long its holder may look. A full disk costs the difference between two words.
fn mark(lock: &File, until: Instant) {
    let left = until.saturating_duration_since(Instant::now()).as_millis() as u64;
    let _ = lock.write_all_at(format!("{:020}\n", uptime_ms().saturating_add(left)).as_bytes(), 0);
}

fn marked(lock: &File) -> Option<u64> {
    let mut text = [0; 20];
    lock.read_exact_at(&mut text, 0).ok()?;
    std::str::from_utf8(&text).ok()?.parse().ok()
}

/// A clock that all processes share.
fn uptime_ms() -> u64 {
    let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `at` is plain data that lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut at) };
    at.tv_sec as u64 * 1000 + at.tv_nsec as u64 / 1_000_000
}

// ---------------------------------------------------------------- the child

/// The child's whole life. It ends by `_exit`: destructors and exit handlers would run what belongs to the
/// parent, and NVML's shutdown can hang.
fn work(plan: &Plan, until: Instant, mut pipe: File, lock: &File, parent: u32) -> ! {
    // A panic must not unwind into the parent's code; in a release build it aborts.
    let done = catch_unwind(AssertUnwindSafe(|| {
        seclude(pipe.as_raw_fd(), lock.as_raw_fd(), parent)?;
        let mut broken = Ok(());
        look(plan, until, &mut |piece| {
            if broken.is_ok() {
                broken = frame(&piece).map_err(io::Error::other).and_then(|bytes| pipe.write_all(&bytes));
            }
        });
        broken
    }));
    // SAFETY: ends this process, and nothing else.
    unsafe { libc::_exit(if matches!(done, Ok(Ok(()))) { 0 } else { 1 }) }
}

fn look(plan: &Plan, until: Instant, out: &mut dyn FnMut(Piece)) {
    match &plan.source {
        SourcePlan::Nvml { library, gpm } => {
            Nvml::new(library.clone(), *gpm, plan.states).stream(Some(until), out);
        }
        SourcePlan::Few { library, units } => Nvml::new(library.clone(), Gpm::Off, false).few(units, out),
        SourcePlan::NvidiaSmi { program } => match NvidiaSmi::new(program.clone()).read() {
            Absent(why) => out(Piece::Begin(Absent(why))),
            Measured(report) => {
                let gpus = report.units.len() as u32;
                out(Piece::Begin(Measured(Head { driver: report.driver, gpus })));
                report.units.into_iter().for_each(|unit| out(Piece::Unit(unit)));
                out(Piece::End);
            }
        },
    }
}

/// Cuts the child off from everything it inherited but its pipe and its lock.
fn seclude(pipe: RawFd, lock: RawFd, parent: u32) -> io::Result<()> {
    // SAFETY: plain system calls on this process alone, which has one thread.
    unsafe {
        // First of all: slurmd waits for the end of the output that 1 and 2 lead to.
        let nowhere = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if nowhere < 0 {
            return Err(io::Error::last_os_error());
        }
        for fd in 0..=2 {
            libc::dup2(nowhere, fd);
        }
        close_all_but(pipe, lock);
        // A program that the worker starts, or that NVML starts, holds the lock too until it is gone.
        libc::fcntl(lock, libc::F_SETFD, 0);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() as u32 != parent {
            return Err(io::Error::other("the run is gone"));
        }
        for signal in [libc::SIGPIPE, libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGALRM] {
            libc::signal(signal, libc::SIG_DFL);
        }
        // NVML allocates by this limit, and slurmd often has a huge one: 24 s instead of 2
        // (NVIDIA/nvidia-container-toolkit#1053).
        let mut files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut files) == 0 {
            files = libc::rlimit { rlim_cur: files.rlim_cur.min(1024), rlim_max: files.rlim_max.min(1024) };
            libc::setrlimit(libc::RLIMIT_NOFILE, &files);
        }
        // It changes what NVML calls a device (nvml.h). Not by std: its lock may be held by a thread that the
        // child does not have.
        libc::unsetenv(c"NVML_MPS_DEVICE_ENUMERATION".as_ptr());
    }
    Ok(())
}

fn close_all_but(one: RawFd, other: RawFd) {
    let (low, high) = (one.min(other) as u32, one.max(other) as u32);
    for (first, last) in [(3, low - 1), (low + 1, high - 1), (high + 1, u32::MAX)] {
        // SAFETY: no File of this process is used any more but these two. By number, since glibc before 2.34
        // has no such function.
        if first <= last && unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } != 0 {
            return close_one_by_one(one, other);
        }
    }
}

/// For kernels before 5.9, which have no close_range.
fn close_one_by_one(one: RawFd, other: RawFd) {
    let Ok(list) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    let open: Vec<RawFd> = list.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect();
    for fd in open.into_iter().filter(|fd| *fd > 2 && *fd != one && *fd != other) {
        // SAFETY: as above; the list's own descriptor is closed already, which only fails.
        unsafe { libc::close(fd) };
    }
}

//! This host as the kernel tells it: the clock and boot, a few facts of processes and files, and who holds a GPU's device
//! file open. Knows nothing of Slurm but slurmd's name.

mod aside;
pub mod files;
mod holders;
pub mod kernel_log;
mod processes;

pub use aside::aside;
pub use holders::Holders;
pub use processes::{Proc, ProcessFacts, ProcessIo};

use crate::model::Now;
use crate::reading::Reading;
use crate::units::{BootMs, WallMs};
use std::ffi::CStr;

/// How far up the parents of this process slurmd is looked for: a site's wrapper may stand between.
const MOST_PARENTS: usize = 8;

/// The moment. For `main` alone: it is an input ever after.
pub fn now() -> Result<Now, String> {
    const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
    let boot_id =
        std::fs::read_to_string(BOOT_ID).map_err(|e| format!("`{BOOT_ID}`: {e}"))?.trim().to_owned();
    if boot_id.is_empty() {
        return Err(format!("`{BOOT_ID}` is empty"));
    }
    let boot = BootMs(clock_ms(libc::CLOCK_BOOTTIME)?);
    let wall = WallMs(clock_ms(libc::CLOCK_REALTIME)?);
    Ok(Now { boot_id, boot, wall })
}

fn clock_ms(clock: libc::clockid_t) -> Result<i64, String> {
    let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `at` is plain data that lives through the call.
    match unsafe { libc::clock_gettime(clock, &mut at) } {
        0 => Ok(at.tv_sec * 1000 + at.tv_nsec / 1_000_000),
        _ => Err(format!("clock {clock}: {}", std::io::Error::last_os_error())),
    }
}

/// How many columns the terminal has that standard output is, 0 where it does not say; `None` where it is none.
pub fn terminal_columns() -> Option<u16> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: `size` is plain data that lives through both calls.
    unsafe {
        (libc::isatty(libc::STDOUT_FILENO) == 1).then(|| {
            libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size);
            size.ws_col
        })
    }
}

/// Has an interruption of this process tidied up after: for a command of people, before it starts a thread. What it starts
/// begins with no signal held back, as everything that std starts.
pub fn when_interrupted(tidy: fn()) {
    // SAFETY: plain data, filled in before it is used; the signals are held back in this thread and those that come of it.
    let signals = unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut signals);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // What was told to pass us by (nohup, a script's background) goes on passing us by.
            let mut how: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut how);
            if how.sa_sigaction != libc::SIG_IGN {
                libc::sigaddset(&mut signals, signal);
            }
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut());
        signals
    };
    std::thread::spawn(move || {
        let mut signal = 0;
        // SAFETY: both live through the call.
        while unsafe { libc::sigwait(&signals, &mut signal) } != 0 {}
        tidy();
        // It ends by the signal, so that a shell's loop around it ends too.
        // SAFETY: plain system calls; the signal was held back and is let through.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &signals, std::ptr::null_mut());
            libc::raise(signal);
        }
    });
}

/// Whether the slurmd that started this process is itself younger than `within_ms`: it runs the health check
/// once before it registers, and waits for it. `false` where no parent is a slurmd.
pub fn started_by_fresh_slurmd(now: &Now, within_ms: i64) -> Reading<bool> {
    fresh_slurmd(std::os::unix::process::parent_id(), now.boot, within_ms, |pid| Proc::default().facts(pid))
}

fn fresh_slurmd(
    parent: u32,
    now: BootMs,
    within_ms: i64,
    process: impl Fn(u32) -> Reading<ProcessFacts>,
) -> Reading<bool> {
    let (mut pid, mut slurmd) = (parent, None);
    for _ in 0..MOST_PARENTS {
        if pid <= 1 {
            break;
        }
        let facts = match process(pid) {
            Reading::Measured(facts) => facts,
            Reading::Absent(_) if slurmd.is_some() => break,
            Reading::Absent(why) => return Reading::Absent(why),
        };
        pid = facts.parent;
        // The topmost one is the daemon. `slurmd`, Debian's `slurmd-wlm`; `slurmstepd` is another.
        match (facts.comm.starts_with("slurmd"), &slurmd) {
            (true, _) => slurmd = Some(facts),
            (false, Some(_)) => break,
            (false, None) => {}
        }
    }
    Reading::Measured(slurmd.is_some_and(|daemon| now.since_ms(daemon.started()) < within_ms))
}

/// Ends this process with status 1 and a line if it still runs after `deadline`: SQLite, the journal or a command
/// may sleep. The phase is in the lock file; a process in state D can not be helped by any of this.
pub fn alarm(deadline: std::time::Duration) {
    extern "C" fn give_up(_signal: libc::c_int) {
        end(
            b"gpu-reaper-hc: the run's deadline passed; it was given up, the next run names its last phase\n",
            1,
        )
    }
    alarm_with(give_up, deadline);
}

/// The same for Prolog and Epilog, with status 0: a hook that fails drains its node, and one that never ends holds its
/// job for ever. Set again, it counts anew.
pub fn hook_alarm(deadline: std::time::Duration) {
    extern "C" fn give_up(_signal: libc::c_int) {
        end(b"gpu-reaper-hc: the hook's time passed; it was given up, the next run does what it left\n", 0)
    }
    alarm_with(give_up, deadline);
}

fn end(line: &'static [u8], status: libc::c_int) {
    let mut reader = libc::pollfd { fd: 2, events: libc::POLLOUT, revents: 0 };
    // SAFETY: poll, write and _exit are async-signal-safe, and the line is static. Where nobody reads, the line is what
    // would never end.
    unsafe {
        if libc::poll(&mut reader, 1, 0) == 1 {
            libc::write(2, line.as_ptr().cast(), line.len());
        }
        libc::_exit(status);
    }
}

fn alarm_with(give_up: extern "C" fn(libc::c_int), deadline: std::time::Duration) {
    let seconds = deadline.as_secs().clamp(1, 3600) as libc::c_uint;
    // SAFETY: the handler does nothing but what is safe in one.
    unsafe {
        libc::signal(libc::SIGALRM, give_up as extern "C" fn(libc::c_int) as libc::sighandler_t);
        libc::alarm(seconds);
    }
}

/// The host's own name, to its first dot. Slurm may know this node by another one.
pub fn short_hostname() -> Result<String, String> {
    let mut buffer = [0u8; 256];
    // SAFETY: the buffer lives through the call, and its last byte is kept for the end of the string.
    let rc = unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len() - 1) };
    if rc != 0 {
        return Err(format!("gethostname: {}", std::io::Error::last_os_error()));
    }
    let name = CStr::from_bytes_until_nul(&buffer).map_err(|e| format!("gethostname: {e}"))?;
    let name = name.to_string_lossy();
    Ok(name.split('.').next().unwrap_or(&name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::Absence;

    #[test]
    fn the_moment_is_after_this_process_began() {
        let now = now().unwrap();
        let own = Proc::default().facts(std::process::id());
        let own = own.measured().expect("our own stat");
        assert!(own.started() <= now.boot && now.boot.since_ms(own.started()) < 3_600_000);
        assert!(now.wall.0 > 1_700_000_000_000 && now.boot_id.len() == 36);
    }

    #[test]
    fn only_a_young_slurmd_above_us_counts() {
        let second = {
            // SAFETY: sysconf reads one number.
            unsafe { libc::sysconf(libc::_SC_CLK_TCK) as u64 }
        };
        let tree = |pid: u32| {
            let (comm, parent, at_s) = match pid {
                10 => ("sh", 9, 995),
                9 => ("slurmd", 8, 994),
                8 => ("slurmd", 1, 990),
                20 => ("slurmd", 1, 100),
                30 => ("slurmstepd: x", 31, 999),
                31 => ("bash", 1, 100),
                _ => return Reading::Absent(Absence::NotListed),
            };
            let start_ticks = at_s * second;
            Reading::Measured(ProcessFacts {
                comm: comm.to_owned(),
                state: 'S',
                parent,
                start_ticks,
                cpu_ms: 0,
            })
        };
        let fresh = |parent| fresh_slurmd(parent, BootMs(1_000_000), 60_000, tree);
        assert_eq!(fresh(8), Reading::Measured(true));
        assert_eq!(fresh(10), Reading::Measured(true), "a wrapper stands between");
        assert_eq!(fresh(20), Reading::Measured(false), "an old one");
        assert_eq!(fresh(30), Reading::Measured(false), "none");
        assert_eq!(fresh(99), Reading::Absent(Absence::NotListed), "unknown is not old");
        assert_eq!(
            fresh_slurmd(10, BootMs(1_000_000), 8_000, tree),
            Reading::Measured(false),
            "the daemon's age"
        );
    }
}

//! This host as the kernel tells it: the clock and boot, and a few facts of processes from /proc. Of a job's
//! process only stat, io and cgroup are read; never its command line, environment or memory map, which can
//! hold secrets or block.

use crate::model::Now;
use crate::reading::{Absence, Reading};
use crate::units::{BootMs, WallMs};
use std::ffi::CStr;
use std::io::ErrorKind;

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

/// What stat says of a process. (pid, `start_ticks`) is its identity; the pid alone is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessFacts {
    /// The kernel's short name, as the process itself may have set it. No proof of anything.
    pub comm: String,
    /// `R`, `S`, `D`, `T`, `Z`, ...: proc_pid_stat(5).
    pub state: char,
    /// Its parent.
    pub parent: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// CPU time of it and of its ended, waited-for children, milliseconds. So a sum over a job's processes
    /// keeps what short-lived children did, and counts nothing twice.
    pub cpu_ms: u64,
}

impl ProcessFacts {
    /// When it started.
    pub fn started(&self) -> BootMs {
        BootMs((self.start_ticks.saturating_mul(1000) / ticks_per_second()).min(i64::MAX as u64) as i64)
    }
}

/// Bytes that reached, or came from, storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessIo {
    /// Read.
    pub read_bytes: u64,
    /// Written.
    pub write_bytes: u64,
}

/// One process. Gone meanwhile is `NotListed`: a normal race.
pub fn process(pid: u32) -> Reading<ProcessFacts> {
    read_proc(pid, "stat").and_then(|text| {
        facts(&text, ticks_per_second()).map_or(Reading::Absent(Absence::NotUnderstood), Reading::Measured)
    })
}

/// The text of its /proc/PID/cgroup.
pub fn process_cgroup(pid: u32) -> Reading<String> {
    read_proc(pid, "cgroup")
}

/// Its /proc/PID/io; needs the rights of root or of its owner.
pub fn process_io(pid: u32) -> Reading<ProcessIo> {
    read_proc(pid, "io")
        .and_then(|text| io_of(&text).map_or(Reading::Absent(Absence::NotUnderstood), Reading::Measured))
}

fn read_proc(pid: u32, file: &str) -> Reading<String> {
    match std::fs::read(format!("/proc/{pid}/{file}")) {
        Ok(bytes) => Reading::Measured(String::from_utf8_lossy(&bytes).into_owned()),
        Err(e) if e.kind() == ErrorKind::NotFound || e.raw_os_error() == Some(libc::ESRCH) => {
            Reading::Absent(Absence::NotListed)
        }
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Reading::Absent(Absence::NoPermission),
        Err(_) => Reading::Absent(Absence::SourceFailed),
    }
}

fn ticks_per_second() -> u64 {
    // SAFETY: sysconf reads one number.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    // Linux has shown 100 to user space on every architecture that runs Slurm (USER_HZ).
    if ticks > 0 { ticks as u64 } else { 100 }
}

/// The name stands in parentheses and may hold spaces and parentheses: the last `)` ends it.
fn facts(stat: &str, ticks_per_second: u64) -> Option<ProcessFacts> {
    let (_, rest) = stat.split_once('(')?;
    let (comm, rest) = rest.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // Numbered from 3 (state) in proc_pid_stat(5).
    let number = |n: usize| fields.get(n - 3)?.parse::<i64>().ok().filter(|v| *v >= 0).map(|v| v as u64);
    let ticks = (14..=17).map(number).sum::<Option<u64>>()?;
    Some(ProcessFacts {
        comm: comm.to_owned(),
        state: fields.first()?.chars().next()?,
        parent: u32::try_from(number(4)?).ok()?,
        start_ticks: number(22)?,
        cpu_ms: ticks.checked_mul(1000)? / ticks_per_second,
    })
}

fn io_of(text: &str) -> Option<ProcessIo> {
    let field = |key: &str| text.lines().find_map(|line| line.strip_prefix(key))?.trim().parse().ok();
    Some(ProcessIo { read_bytes: field("read_bytes:")?, write_bytes: field("write_bytes:")? })
}

/// Whether the slurmd that started this process is itself younger than `within_ms`: it runs the health check
/// once before it registers, and waits for it. `false` where no parent is a slurmd.
pub fn started_by_fresh_slurmd(now: &Now, within_ms: i64) -> Reading<bool> {
    fresh_slurmd(std::os::unix::process::parent_id(), now.boot, within_ms, process)
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
        const LINE: &[u8] =
            b"gpu-reaper-hc: the run's deadline passed; it was given up, the next run names its last phase\n";
        // SAFETY: write and _exit are async-signal-safe, and the line is static.
        unsafe {
            libc::write(2, LINE.as_ptr().cast(), LINE.len());
            libc::_exit(1);
        }
    }
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

    fn stat(comm: &str, parent: u32, start_ticks: u64) -> String {
        format!(
            "42 ({comm}) S {parent} 42 42 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 {start_ticks} 1 2 3 4\n"
        )
    }

    #[test]
    fn a_name_with_spaces_and_parentheses_shifts_no_field() {
        for comm in ["python3", "a b", "x) R 1 1 (y", "", ")", "a\nb"] {
            let facts = facts(&stat(comm, 7, 12_345), 100).unwrap();
            assert_eq!((facts.comm.as_str(), facts.state, facts.parent), (comm, 'S', 7), "{comm:?}");
            assert_eq!((facts.start_ticks, facts.cpu_ms), (12_345, 1000), "{comm:?}");
        }
    }

    #[test]
    fn a_text_cut_short_is_not_understood() {
        let whole = stat("sh", 1, 5);
        for end in 0..whole.find(" 5 1").unwrap() {
            assert_eq!(facts(&whole[..end], 100), None, "{end}");
        }
    }

    #[test]
    fn io_is_both_fields_or_nothing() {
        let text = "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 1\n";
        assert_eq!(io_of(text), Some(ProcessIo { read_bytes: 4096, write_bytes: 8192 }));
        assert_eq!(io_of("read_bytes: 1\ncancelled_write_bytes: 1\n"), None);
        assert_eq!(io_of(""), None);
    }

    #[test]
    fn this_process_can_be_read_and_a_gone_one_is_not_listed() {
        // wookayin/gpustat#16, #95, #144 (CG-06): a pid that vanished is a normal race.
        let own = process(std::process::id());
        let own = own.measured().expect("our own stat");
        assert_eq!(own.parent, std::os::unix::process::parent_id());
        let now = now().unwrap();
        assert!(own.started() <= now.boot && now.boot.since_ms(own.started()) < 3_600_000);
        assert!(now.wall.0 > 1_700_000_000_000 && now.boot_id.len() == 36);
        assert!(process_io(std::process::id()).measured().is_some());
        assert!(process_cgroup(std::process::id()).measured().is_some());
        assert_eq!(process(u32::MAX), Reading::Absent(Absence::NotListed));
    }

    #[test]
    fn only_a_young_slurmd_above_us_counts() {
        let second = ticks_per_second();
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
            facts(&stat(comm, parent, at_s * second), second)
                .map_or(Reading::Absent(Absence::NoData), Reading::Measured)
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

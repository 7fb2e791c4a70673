//! What /proc says of processes. Of a job's process only stat, io, cgroup and, where a GPU is about to be called
//! idle, the targets of its open files are read; never its command line, environment or memory map, which can
//! hold secrets or block. Those are for daemons. A pid is not an identity: another process may have it a moment later.

use crate::reading::{Absence, Reading};
use crate::units::BootMs;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

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

/// The processes of this host. Gone meanwhile is `NotListed`, a normal race; refused is `NoPermission`.
#[derive(Clone, Debug)]
pub struct Proc(PathBuf);

impl Default for Proc {
    fn default() -> Proc {
        Proc(PathBuf::from("/proc"))
    }
}

impl Proc {
    /// As under another folder than /proc.
    pub fn at(root: &Path) -> Proc {
        Proc(root.to_path_buf())
    }

    /// One process.
    pub fn facts(&self, pid: u32) -> Reading<ProcessFacts> {
        self.text(pid, "stat").and_then(|text| understood(facts_of(&text, ticks_per_second())))
    }

    /// The text of its /proc/PID/cgroup.
    pub fn cgroup(&self, pid: u32) -> Reading<String> {
        self.text(pid, "cgroup")
    }

    /// Its /proc/PID/io; needs the rights of root or of its owner.
    pub fn io(&self, pid: u32) -> Reading<ProcessIo> {
        self.text(pid, "io").and_then(|text| understood(io_of(&text)))
    }

    /// Its real user. From status: the owner of /proc/PID is root also for a user's process that forbids to be dumped.
    pub fn real_uid(&self, pid: u32) -> Reading<u32> {
        self.text(pid, "status").and_then(|text| understood(real_uid_of(&text)))
    }

    /// The file name of the program it runs, also when that was replaced meanwhile.
    pub fn program(&self, pid: u32) -> Reading<String> {
        let link = fs::read_link(self.file(pid, "exe"));
        let named = link.map(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()));
        read(named).and_then(|name| {
            understood(name.map(|name| name.strip_suffix(DELETED).unwrap_or(&name).to_owned()))
        })
    }

    /// A run of ours, or a worker of it that hangs: by pid, or by program and user.
    pub fn is_this_program(&self, pid: u32) -> bool {
        let own = std::process::id();
        let same = |a: Reading<u32>, b: Reading<u32>| a.measured().is_some() && a == b;
        let program = self.program(pid);
        pid == own
            || (program.measured().is_some()
                && program == self.program(own)
                && same(self.real_uid(pid), self.real_uid(own)))
    }

    /// The title that a daemon gave itself, in place of its command line. For daemons only: of a job's process it
    /// may hold secrets, or block.
    pub fn title(&self, pid: u32) -> Reading<String> {
        self.text(pid, "cmdline").map(|text| text.split('\0').next().unwrap_or("").to_owned())
    }

    /// The command line of a daemon, word by word. For daemons only, as [`Proc::title`].
    pub fn arguments(&self, pid: u32) -> Reading<Vec<String>> {
        self.text(pid, "cmdline").map(|text| text.split_terminator('\0').map(str::to_owned).collect())
    }

    /// One variable of the environment that a daemon was started with; needs the rights of root. For daemons only.
    pub fn variable(&self, pid: u32, name: &str) -> Reading<Option<String>> {
        let said = |text: String| {
            let value = |pair: &str| Some(pair.strip_prefix(name)?.strip_prefix('=')?.to_owned());
            text.split('\0').find_map(value)
        };
        self.text(pid, "environ").map(said)
    }

    /// Every process there is.
    pub fn all(&self) -> Reading<Vec<u32>> {
        let listed = fs::read_dir(&self.0).and_then(|entries| {
            let pid = |entry: fs::DirEntry| entry.file_name().to_str().and_then(|name| name.parse().ok());
            entries.filter_map(|entry| entry.map(pid).transpose()).collect::<io::Result<Vec<u32>>>()
        });
        read(listed)
    }

    /// Its open files: each one's link in /proc and what that names. One closed meanwhile is left out. Absent with
    /// `LimitReached` where there are more than `most`.
    pub fn open_files(&self, pid: u32, most: usize) -> Reading<Vec<(PathBuf, PathBuf)>> {
        let entries = match read(fs::read_dir(self.file(pid, "fd"))) {
            Reading::Measured(entries) => entries,
            Reading::Absent(why) => return Reading::Absent(why),
        };
        let mut files = Vec::new();
        for entry in entries {
            let link = match read(entry) {
                Reading::Measured(entry) => entry.path(),
                Reading::Absent(why) => return Reading::Absent(why),
            };
            if files.len() == most {
                return Reading::Absent(Absence::LimitReached);
            }
            if let Ok(name) = fs::read_link(&link) {
                files.push((link, name));
            }
        }
        Reading::Measured(files)
    }

    fn file(&self, pid: u32, file: &str) -> PathBuf {
        let mut path = OsString::with_capacity(self.0.as_os_str().len() + file.len() + 12);
        path.push(&self.0);
        path.push(format!("/{pid}/{file}"));
        path.into()
    }

    fn text(&self, pid: u32, file: &str) -> Reading<String> {
        read(whole(&self.file(pid, file)).map(|bytes| match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(other) => String::from_utf8_lossy(other.as_bytes()).into_owned(),
        }))
    }
}

/// How the kernel marks a file that has no name any more.
pub(super) const DELETED: &str = " (deleted)";

/// A small file of /proc: the kernel gives one of a single record whole, so a read that leaves room was the last.
fn whole(path: &Path) -> io::Result<Vec<u8>> {
    let (mut file, mut bytes, mut length) = (File::open(path)?, vec![0; 4096], 0);
    loop {
        length += file.read(&mut bytes[length..])?;
        if length < bytes.len() {
            bytes.truncate(length);
            return Ok(bytes);
        }
        bytes.resize(2 * length, 0);
    }
}

fn read<T>(result: io::Result<T>) -> Reading<T> {
    match result {
        Ok(value) => Reading::Measured(value),
        Err(e) if e.kind() == ErrorKind::NotFound || e.raw_os_error() == Some(libc::ESRCH) => {
            Reading::Absent(Absence::NotListed)
        }
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Reading::Absent(Absence::NoPermission),
        Err(_) => Reading::Absent(Absence::SourceFailed),
    }
}

fn understood<T>(value: Option<T>) -> Reading<T> {
    value.map_or(Reading::Absent(Absence::NotUnderstood), Reading::Measured)
}

fn ticks_per_second() -> u64 {
    // SAFETY: sysconf reads one number.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    // Linux has shown 100 to user space on every architecture that runs Slurm (USER_HZ).
    if ticks > 0 { ticks as u64 } else { 100 }
}

/// The name stands in parentheses and may hold spaces and parentheses: the last `)` ends it.
fn facts_of(stat: &str, ticks_per_second: u64) -> Option<ProcessFacts> {
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

/// Real, effective, saved and file system uid, in this order: proc_pid_status(5).
fn real_uid_of(text: &str) -> Option<u32> {
    text.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_tells_how_it_was_started() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("7");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("cmdline"), b"/usr/sbin/slurmd\0-D\0-f\0/opt/slurm.conf\0").unwrap();
        fs::write(dir.join("environ"), b"SLURM_CONF_SERVER=a\0SLURM_CONF=/opt/x\0PATH=\0").unwrap();
        let proc = Proc::at(folder.path());
        let words = ["/usr/sbin/slurmd", "-D", "-f", "/opt/slurm.conf"].map(str::to_owned);
        assert_eq!(proc.arguments(7), Reading::Measured(words.to_vec()));
        let said = |name: &str| proc.variable(7, name);
        assert_eq!(said("SLURM_CONF"), Reading::Measured(Some("/opt/x".to_owned())));
        assert_eq!(said("PATH"), Reading::Measured(Some(String::new())));
        assert_eq!(said("HOME"), Reading::Measured(None));
        assert_eq!(proc.variable(8, "HOME"), Reading::Absent(Absence::NotListed));
    }

    fn stat(comm: &str, parent: u32, start_ticks: u64) -> String {
        format!(
            "42 ({comm}) S {parent} 42 42 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 {start_ticks} 1 2 3 4\n"
        )
    }

    #[test]
    fn a_name_with_spaces_and_parentheses_shifts_no_field() {
        for comm in ["python3", "a b", "x) R 1 1 (y", "", ")", "a\nb"] {
            let facts = facts_of(&stat(comm, 7, 12_345), 100).unwrap();
            assert_eq!((facts.comm.as_str(), facts.state, facts.parent), (comm, 'S', 7), "{comm:?}");
            assert_eq!((facts.start_ticks, facts.cpu_ms), (12_345, 1000), "{comm:?}");
        }
    }

    #[test]
    fn a_text_cut_short_is_not_understood() {
        let whole = stat("sh", 1, 5);
        for end in 0..whole.find(" 5 1").unwrap() {
            assert_eq!(facts_of(&whole[..end], 100), None, "{end}");
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
        let (proc, pid) = (Proc::default(), std::process::id());
        let own = proc.facts(pid);
        let own = own.measured().expect("our own stat");
        assert_eq!(own.parent, std::os::unix::process::parent_id());
        assert!(proc.io(pid).measured().is_some() && proc.cgroup(pid).measured().is_some());
        // SAFETY: getuid has no preconditions.
        assert_eq!(proc.real_uid(pid), Reading::Measured(unsafe { libc::getuid() }));
        let exe = std::env::current_exe().unwrap();
        assert_eq!(proc.program(pid).measured().map(String::as_str), exe.file_name().unwrap().to_str());
        assert!(proc.all().measured().is_some_and(|all| all.contains(&pid)));
        assert!(proc.open_files(pid, 100).measured().is_some_and(|files| files.len() >= 3));
        assert_eq!(
            proc.open_files(pid, 1),
            Reading::Absent(Absence::LimitReached),
            "a part is not the whole"
        );
        assert_eq!(proc.facts(u32::MAX), Reading::Absent(Absence::NotListed));
        assert_eq!(proc.open_files(u32::MAX, 100), Reading::Absent(Absence::NotListed));
    }

    #[test]
    fn a_file_longer_than_one_read_is_whole_and_a_refused_one_is_told() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("7")).unwrap();
        for length in [0, 4095, 4096, 4097, 20_000] {
            fs::write(temp.path().join("7/cgroup"), "x".repeat(length)).unwrap();
            let read = Proc::at(temp.path()).cgroup(7);
            assert_eq!(read.measured().map(String::len), Some(length));
        }
        let table = [
            (libc::ENOENT, Absence::NotListed),
            (libc::ESRCH, Absence::NotListed),
            (libc::EACCES, Absence::NoPermission),
            (libc::EIO, Absence::SourceFailed),
        ];
        for (errno, why) in table {
            assert_eq!(read::<()>(Err(io::Error::from_raw_os_error(errno))), Reading::Absent(why), "{errno}");
        }
    }

    #[test]
    fn a_program_that_was_replaced_keeps_its_name() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("7")).unwrap();
        std::os::unix::fs::symlink("/usr/sbin/slurmstepd (deleted)", temp.path().join("7/exe")).unwrap();
        assert_eq!(Proc::at(temp.path()).program(7), Reading::Measured("slurmstepd".to_owned()));
    }
}

//! Measures whole processes: wall time, CPU time and resident memory of a program with every process it
//! leaves behind, fsyncs by strace, instructions by callgrind. It judges nothing.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use std::{fs, io};

/// What one run of a program cost.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// From the start to the exit of the program itself.
    pub wall_us: u64,
    /// User and system time, those of processes that outlive the program included.
    pub cpu_us: u64,
    /// The largest resident set among its processes. The kernel counts that of the bench at the moment of the
    /// fork too, so a figure close to the bench's own says only that the program needs no more.
    pub rss_kib: u64,
}

/// A program with its arguments and its whole environment, as slurmd would start it.
#[derive(Clone, Debug)]
pub struct Program {
    pub argv: Vec<OsString>,
    pub env: Vec<(String, String)>,
}

impl Program {
    pub fn new<S: Into<OsString>>(argv: impl IntoIterator<Item = S>) -> Program {
        let env = vec![("SLURMD_NODENAME".to_string(), "n1".to_string())];
        Program { argv: argv.into_iter().map(Into::into).collect(), env }
    }

    /// The same program started through another one (`strace`, `valgrind`).
    pub fn under<S: Into<OsString>>(&self, before: impl IntoIterator<Item = S>) -> Program {
        let argv = before.into_iter().map(Into::into).chain(self.argv.iter().cloned()).collect();
        Program { argv, env: self.env.clone() }
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.argv[0]);
        command.args(&self.argv[1..]).env_clear().envs(self.env.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Runs it to its end, and says what it wrote if it fails.
    pub fn must_run(&self) -> io::Result<()> {
        let output = self.command().stdout(Stdio::piped()).stderr(Stdio::piped()).output()?;
        if output.status.success() {
            return Ok(());
        }
        let said =
            String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        Err(io::Error::other(format!("{:?} ended with {}: {}", self.argv, output.status, said.trim())))
    }
}

/// Orphans of what we start become ours, so that a worker which outlives its run is counted and waited for.
pub fn adopt_orphans() {
    // SAFETY: a plain prctl without pointers.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
}

/// The bench's own peak, the floor of every [`Cost::rss_kib`].
pub fn own_rss_kib() -> u64 {
    // SAFETY: rusage is plain data; the call fills it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    u64::try_from(usage.ru_maxrss).expect("a resident set is not negative")
}

fn wait4(pid: i32) -> io::Result<(i32, i32, libc::rusage)> {
    let mut status = 0;
    // SAFETY: both pointers are to live values of the right types.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let reaped = unsafe { libc::wait4(pid, &mut status, 0, &mut usage) };
    if reaped < 0 { Err(io::Error::last_os_error()) } else { Ok((reaped, status, usage)) }
}

fn cpu_us(usage: &libc::rusage) -> u64 {
    let us = |t: libc::timeval| t.tv_sec * 1_000_000 + t.tv_usec;
    u64::try_from(us(usage.ru_utime) + us(usage.ru_stime)).expect("CPU time is not negative")
}

/// Starts the program, waits for it and for what it leaves behind.
pub fn cost_of(program: &Program) -> io::Result<Cost> {
    let mut command = program.command();
    let start = Instant::now();
    let child = command.spawn()?;
    let (_, status, usage) = wait4(i32::try_from(child.id()).map_err(io::Error::other)?)?;
    let wall_us = start.elapsed().as_micros() as u64;
    let mut cost = Cost { wall_us, cpu_us: cpu_us(&usage), rss_kib: usage.ru_maxrss as u64 };
    while let Ok((_, _, usage)) = wait4(-1) {
        cost.cpu_us += cpu_us(&usage);
        cost.rss_kib = cost.rss_kib.max(usage.ru_maxrss as u64);
    }
    if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 {
        return Ok(cost);
    }
    program.must_run()?;
    Err(io::Error::other(format!("{:?} ended with raw status {status} once, then well", program.argv)))
}

/// Runs all programs in turn, `rounds` times, so that a busy moment of the machine meets all of them.
pub fn interleaved(
    programs: &[(&'static str, Program)],
    rounds: usize,
) -> io::Result<BTreeMap<&'static str, Cost>> {
    let mut costs: BTreeMap<&'static str, Vec<Cost>> = BTreeMap::new();
    for round in 0..=rounds {
        for (name, program) in programs {
            let cost = cost_of(program)?;
            // The first round warms the page cache.
            if round > 0 {
                costs.entry(name).or_default().push(cost);
            }
        }
    }
    Ok(costs.into_iter().map(|(name, all)| (name, medians(&all))).collect())
}

fn medians(all: &[Cost]) -> Cost {
    let of = |field: fn(&Cost) -> u64| median(all.iter().map(field).collect());
    Cost { wall_us: of(|c| c.wall_us), cpu_us: of(|c| c.cpu_us), rss_kib: of(|c| c.rss_kib) }
}

/// The middle one, the upper of two.
pub fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

/// Whether a program of this name answers `--version`.
pub fn installed(name: &str) -> bool {
    let mut asked = Command::new(name);
    asked.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    asked.status().is_ok_and(|status| status.success())
}

/// How often the program and its children asked the disk to be certain.
pub fn fsyncs(program: &Program, folder: &Path) -> io::Result<usize> {
    let log = folder.join("strace.log");
    let calls = "trace=fsync,fdatasync,sync,syncfs,sync_file_range,msync";
    let strace = ["strace", "-f", "-qq", "-e", "signal=none", "-e", calls, "-o"].map(OsString::from);
    let traced = program.under(strace.into_iter().chain([log.clone().into_os_string()]));
    path_of(&traced).must_run()?;
    Ok(fs::read_to_string(log)?.lines().filter(|line| line.contains("sync")).count())
}

/// With the bench's own PATH, to find a tool; what the tool starts is named by its whole path.
fn path_of(program: &Program) -> Program {
    let mut found = program.clone();
    found.env.extend(std::env::var("PATH").ok().map(|path| ("PATH".to_string(), path)));
    found
}

/// Instructions in user space, by whose code they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Instructions {
    /// By the last part of the object's path.
    pub by_object: BTreeMap<String, u64>,
    /// Spent in the stand-in library and in what it calls.
    pub stand_in: u64,
}

impl Instructions {
    pub fn total(&self) -> u64 {
        self.by_object.values().sum()
    }

    /// Everything but what the stand-in library spent, directly or through libc.
    pub fn ours(&self) -> u64 {
        self.total() - self.stand_in
    }
}

/// Counts the instructions of a program and of the worker it forks.
pub fn instructions(program: &Program, folder: &Path) -> io::Result<Instructions> {
    let out = folder.join("callgrind");
    fs::create_dir(&out)?;
    // A forked child inherits its parent's counters: dumping (which also zeroes) at every function with
    // "fork" in its name, up to the C library's own, leaves it none to count a second time.
    let valgrind = ["valgrind", "-q", "--tool=callgrind", "--dump-before=*fork*"].map(OsString::from);
    let file = OsString::from(format!("--callgrind-out-file={}/out.%p", out.display()));
    path_of(&program.under(valgrind.into_iter().chain([file]))).must_run()?;
    let mut sum = Instructions::default();
    for entry in fs::read_dir(&out)? {
        add_profile(&fs::read_to_string(entry?.path())?, "libnvidia-ml", &mut sum);
    }
    fs::remove_dir_all(out)?;
    Ok(sum)
}

/// Adds one file of callgrind's format. Self cost goes to its object; the inclusive cost of each call from
/// another object into `stand_in` is what the stand-in and its own callees spent.
pub fn add_profile(text: &str, stand_in: &str, sum: &mut Instructions) {
    let mut names: HashMap<String, String> = HashMap::new();
    let mut named = |text: &str| {
        let (id, name) = text.split_once(' ').unwrap_or((text, ""));
        let known = names.entry(id.to_string()).or_default();
        if !name.is_empty() {
            *known = name.rsplit('/').next().unwrap_or(name).to_string();
        }
        known.clone()
    };
    let (mut object, mut callee, mut is_call) = (String::new(), None, false);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            object = named(name);
        } else if let Some(name) = line.strip_prefix("cob=") {
            callee = Some(named(name));
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '*')) {
            let cost = line.split(' ').nth(1).and_then(|cost| cost.parse::<u64>().ok());
            let into = callee.take().filter(|_| is_call).unwrap_or_else(|| object.clone());
            let crosses = into.contains(stand_in) && !object.contains(stand_in);
            match cost {
                Some(cost) if is_call && crosses => sum.stand_in += cost,
                Some(cost) if !is_call => *sum.by_object.entry(object.clone()).or_default() += cost,
                _ => {}
            }
            is_call = false;
        }
    }
}

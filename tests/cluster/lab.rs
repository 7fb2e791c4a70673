//! The one lab of this test process: brought up at the first lease, its nodes lent to one test at a time, taken
//! down when the process ends. What an interrupted process left behind is taken down first.

use super::node::Node;
use super::settings::Settings;
use super::stand_in;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How many nodes the lab has: most tests take one, and wait more than they work.
const NODES: usize = 8;

/// So many of them a test gets that takes them all.
const OF_ALL: usize = 4;

/// Seconds between two health checks of a node.
const INTERVAL_S: &str = "3";

/// A lab that is up.
pub struct Lab {
    /// Where all of it lies.
    pub dir: PathBuf,
    /// The program under test.
    pub program: PathBuf,
    /// The stand-in library.
    pub library: PathBuf,
    free: Mutex<Vec<usize>>,
    given_back: Condvar,
    /// Held as long as this process lives: cgroups carry the nodes' names, so a machine has room for one lab.
    _alone: File,
}

enum NoLab {
    /// This machine or user cannot have one.
    Skipped(String),
    /// It should have come up.
    Broken(String),
}

static LAB: OnceLock<Result<Lab, NoLab>> = OnceLock::new();
/// A failed test leaves the lab's folder for a look.
static FAILED: AtomicBool = AtomicBool::new(false);

/// The right to one node; given back when dropped.
pub struct Place {
    /// The lab.
    pub lab: &'static Lab,
    /// Which node, from 0.
    pub index: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        FAILED.fetch_or(std::thread::panicking(), Ordering::Relaxed);
        self.lab.free.lock().unwrap_or_else(|e| e.into_inner()).push(self.index);
        self.lab.given_back.notify_all();
    }
}

/// One node with this configuration and a new ledger, for this test alone. `None`: no lab can be had here.
pub fn lease(settings: &Settings) -> Option<Node> {
    lease_some(1, settings)?.pop()
}

/// The first nodes while no other is on lease, for a test that stops slurmctld or counts what it is asked.
pub fn lease_all(settings: &Settings) -> Option<Alone> {
    let mut places = shared()?.take(NODES);
    let rest = places.split_off(OF_ALL);
    let nodes = places.into_iter().map(|place| Node::prepare(place, settings)).collect();
    Some(Alone { nodes, _rest: rest })
}

/// Some nodes, and nobody else has any.
pub struct Alone {
    nodes: Vec<Node>,
    _rest: Vec<Place>,
}

impl std::ops::Deref for Alone {
    type Target = [Node];

    fn deref(&self) -> &[Node] {
        &self.nodes
    }
}

/// So many nodes at once.
pub fn lease_some(count: usize, settings: &Settings) -> Option<Vec<Node>> {
    let places = shared()?.take(count);
    Some(places.into_iter().map(|place| Node::prepare(place, settings)).collect())
}

fn shared() -> Option<&'static Lab> {
    match LAB.get_or_init(start) {
        Ok(lab) => Some(lab),
        Err(NoLab::Broken(why)) => panic!("{why}"),
        Err(NoLab::Skipped(why)) => {
            assert!(std::env::var_os("GPU_REAPER_REQUIRE_CLUSTER").is_none(), "no cluster: {why}");
            // Past the test harness's capture, which shows nothing of a test that passes.
            let name = std::thread::current().name().unwrap_or("?").to_owned();
            let _ = writeln!(std::io::stderr(), "{name}: SKIPPED, no cluster: {why}");
            None
        }
    }
}

fn start() -> Result<Lab, NoLab> {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Err(NoLab::Skipped("a lab of real slurmds needs root".to_owned()));
    }
    if !Command::new("unshare").args(["-m", "true"]).output().is_ok_and(|o| o.status.success()) {
        return Err(NoLab::Skipped("no mount namespace can be made here (`unshare -m` fails)".to_owned()));
    }
    if !Path::new("/usr/bin/apt-get").exists() {
        return Err(NoLab::Skipped("no Debian (`apt-get` is missing)".to_owned()));
    }
    let program = match std::env::var_os("GPU_REAPER_PROGRAM") {
        Some(path) => path.into(),
        None => PathBuf::from(env!("CARGO_BIN_EXE_gpu-reaper-hc")),
    };
    let dir = std::env::temp_dir().join("gpu-reaper-lab");
    let alone = File::create(dir.with_extension("lock")).and_then(|file| file.lock().map(|()| file));
    let lab = Lab {
        _alone: alone.map_err(|e| NoLab::Broken(format!("{}.lock: {e}", dir.display())))?,
        dir,
        program,
        library: stand_in::build().map_err(NoLab::Broken)?,
        free: Mutex::new((0..NODES).collect()),
        given_back: Condvar::new(),
    };
    // Taken down rather than reused: a daemon of an earlier lab still sees the program of that time.
    let _ = lab.tool(&["down", "--purge"]);
    let nodes = NODES.to_string();
    let mut up = vec![
        "up",
        "--program",
        lab.program.to_str().unwrap_or_default(),
        "--nodes",
        &nodes,
        "--interval",
        INTERVAL_S,
        // Slurm refuses `scontrol reboot` without one.
        "--conf",
        "RebootProgram=/bin/true",
    ];
    let wish = |name| std::env::var(name).unwrap_or_default();
    let (suite, cgroup) = (wish("GPU_REAPER_SUITE"), wish("GPU_REAPER_CGROUP"));
    for (option, value) in [("--suite", &suite), ("--cgroup", &cgroup)] {
        if !value.is_empty() {
            up.extend([option, value]);
        }
    }
    let output = lab.tool(&up);
    if !output.status.success() {
        return Err(NoLab::Broken(format!(
            "the lab does not come up:\n{}",
            String::from_utf8_lossy(&output.stderr)
        )));
    }
    let _ = std::io::stderr().write_all(&output.stderr);
    // SAFETY: `tear_down` is an extern "C" function without preconditions.
    unsafe { libc::atexit(tear_down) };
    Ok(lab)
}

extern "C" fn tear_down() {
    let Some(Ok(lab)) = LAB.get() else { return };
    if FAILED.load(Ordering::Relaxed) {
        let _ = lab.tool(&["down"]);
        let _ = writeln!(
            std::io::stderr(),
            "logs, ledgers and scenarios of the lab are left in {}",
            lab.dir.display()
        );
    } else {
        let _ = lab.tool(&["down", "--purge"]);
    }
}

impl Lab {
    fn take(&'static self, count: usize) -> Vec<Place> {
        let mut free = self.free.lock().unwrap_or_else(|e| e.into_inner());
        while free.len() < count {
            free = self.given_back.wait(free).unwrap_or_else(|e| e.into_inner());
        }
        // In Slurm's order: the first is the first node of a job on all of them.
        free.sort_unstable();
        free.drain(..count).map(|index| Place { lab: self, index }).collect()
    }

    /// slurm-lab itself.
    pub fn tool(&self, args: &[&str]) -> Output {
        let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/slurm-lab");
        let (command, rest) = args.split_first().expect("a command of slurm-lab");
        let mut call = Command::new(&tool);
        call.arg(command).arg("--dir").arg(&self.dir).args(rest);
        call.output().unwrap_or_else(|e| panic!("`{}`: {e}", tool.display()))
    }

    /// One of Slurm's commands, as an administrator gives it; its standard output.
    pub fn slurm(&self, command: &[&str]) -> Result<String, String> {
        let output = Command::new("/usr/bin/timeout")
            .arg("30")
            .arg(self.dir.join("bin").join(command[0]))
            .args(&command[1..])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .current_dir("/")
            .output()
            .map_err(|e| format!("{command:?}: {e}"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned()),
            false => Err(format!(
                "{command:?}: {}: {}",
                output.status,
                String::from_utf8_lossy(&output.stderr).trim_end()
            )),
        }
    }
}

/// Whether `held` comes to be within `ceiling`.
pub fn comes_to_be(ceiling: Duration, mut held: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + ceiling;
    loop {
        if held() {
            return true;
        }
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

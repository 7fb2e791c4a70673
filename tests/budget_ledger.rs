//! Promises about time and company that hold for every build: what a stuck driver may cost, what six runs at
//! once leave behind. Whole processes against a stand-in driver; what is measured exactly is in
//! `tests/benches/budget.rs`.

#[path = "benches/measure.rs"]
#[allow(dead_code, reason = "the bench uses the rest")]
mod measure;
#[path = "benches/node.rs"]
#[allow(dead_code, reason = "the bench uses the rest")]
mod node;

use measure::Instructions;
use node::{GPUS, Load, Node};
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fs, io};

const BINARY: &str = env!("CARGO_BIN_EXE_gpu-reaper-hc");

/// `gpu.deadline` of the node's configuration, and what a run may take beyond it.
const DEADLINE: Duration = Duration::from_secs(2);
const LEAVING: Duration = Duration::from_millis(300);
const REFUSING: Duration = Duration::from_millis(200);

/// Machines that run all tests at once are slow, promises are not: time is judged at this many times the promise.
const SLACK: u32 = 2;

fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("gpu-reaper-node.").tempdir().unwrap()
}

fn now_unix_secs() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64
}

fn timed(node: &Node) -> (Duration, ExitStatus) {
    let start = Instant::now();
    let status = node.health_run().command().status().unwrap();
    (start.elapsed(), status)
}

fn count(db: &Connection, question: &str) -> i64 {
    db.query_row(question, [], |row| row.get(0)).unwrap()
}

#[test]
fn six_runs_at_once_lose_no_row_and_tear_none() {
    let folder = folder();
    let node = Node::new(Path::new(BINARY), folder.path(), &Load::Busy.driver(), "").unwrap();
    node.prolog(Load::Busy, 4242, now_unix_secs() - 60).must_run().unwrap();
    let at_once: Vec<Child> = (0..6).map(|_| node.health_run().command().spawn().unwrap()).collect();
    for mut run in at_once {
        assert!(run.wait().unwrap().success());
    }
    // One more, so that those that left a line behind last are counted too.
    node.health_run().must_run().unwrap();
    let db = Connection::open(node.ledger().unwrap()).unwrap();
    let complete = count(&db, "SELECT count(*) FROM run WHERE outcome = 'ok'");
    assert!(complete >= 2, "{complete} runs complete");
    assert_eq!(
        complete + count(&db, "SELECT sum(overlapped) FROM run"),
        7,
        "each run is a row or is counted by one"
    );
    assert_eq!(count(&db, "SELECT count(*) FROM run"), complete, "no other outcome");
    assert_eq!(count(&db, "SELECT count(*) FROM sample"), complete * GPUS as i64);
    let torn = "SELECT count(*) FROM (SELECT run FROM sample GROUP BY run HAVING count(*) <> 8)";
    assert_eq!(count(&db, torn), 0);
    let sound: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(sound, "ok");
}

#[test]
fn a_driver_that_never_answers_holds_no_run_beyond_its_deadline() {
    let folder = folder();
    let driver = "nvmlInit_v2 ~ forever\n".to_string() + &Load::Busy.driver();
    let node = Node::new(Path::new(BINARY), folder.path(), &driver, "").unwrap();
    for _ in 0..2 {
        let (took, status) = timed(&node);
        assert!(took < DEADLINE + LEAVING * SLACK, "left after {took:?} ({status})");
    }
}

/// A worker in uninterruptible sleep outlives SIGKILL: the run leaves it, and no later one joins it.
/// NVIDIA/open-gpu-kernel-modules#1333, leptonai/gpud#117: NVML calls that never come back, in state D.
#[test]
fn a_worker_stuck_in_the_kernel_is_left_alone_and_never_joined() {
    let folder = folder();
    let frozen = match FrozenDisk::new(&folder.path().join("disk")) {
        Ok(frozen) => frozen,
        Err(why) => return eprintln!("not tested: no frozen file system to sleep on: {why}"),
    };
    let driver = format!("nvmlInit_v2 = write {}/x\n", frozen.mount.display()) + &Load::Busy.driver();
    let node = Node::new(Path::new(BINARY), folder.path(), &driver, "").unwrap();
    let (took, status) = timed(&node);
    assert!(took < DEADLINE + LEAVING * SLACK, "the first run left after {took:?} ({status})");
    for _ in 0..2 {
        let (took, status) = timed(&node);
        assert!(took < REFUSING * SLACK, "a later run left after {took:?} ({status})");
    }
    assert_eq!(asleep_in(&node), 1, "one worker, not three");
    drop(frozen);
}

/// Processes in state D that were started with this node's configuration.
fn asleep_in(node: &Node) -> usize {
    let config = node.config().display().to_string();
    let is_ours = |process: &PathBuf| {
        let state = fs::read_to_string(process.join("stat")).unwrap_or_default();
        let sleeps = state.rsplit(')').next().is_some_and(|rest| rest.starts_with(" D"));
        sleeps
            && fs::read(process.join("cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&config))
    };
    fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok().map(|e| e.path())).filter(is_ours).count()
}

/// A small file system on a file, frozen: whoever writes to it sleeps uninterruptibly until it is dropped.
struct FrozenDisk {
    mount: PathBuf,
}

impl FrozenDisk {
    fn new(folder: &Path) -> io::Result<FrozenDisk> {
        let (image, mount) = (folder.join("image"), folder.join("mount"));
        fs::create_dir_all(&mount)?;
        fs::File::create(&image)?.set_len(8 << 20)?;
        ran(Command::new("mkfs.ext4").arg("-q").arg(&image))?;
        ran(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&mount))?;
        let disk = FrozenDisk { mount };
        ran(Command::new("fsfreeze").arg("-f").arg(&disk.mount))?;
        Ok(disk)
    }
}

impl Drop for FrozenDisk {
    fn drop(&mut self) {
        let _ = ran(Command::new("fsfreeze").arg("-u").arg(&self.mount));
        // Who slept on it holds it for a moment more.
        let _ = ran(Command::new("umount").arg("-l").arg(&self.mount));
    }
}

fn ran(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

#[test]
fn the_count_of_instructions_leaves_out_the_stand_in_and_what_it_calls() {
    let profile = "\
ob=(1) /usr/sbin/gpu-reaper-hc
fn=(1) sample
3 100
cob=(2) /tmp/x/libnvidia-ml.so.1
cfn=(2) nvmlInit_v2
calls=1 0
4 70
+1 5
cfn=(4) inner
calls=2 9
* 900

ob=(2)
fn=(2)
0 40
cob=(3) /lib/libc.so.6
cfn=(3) strtoull
calls=3 0
0 30

ob=(3)
fn=(3)
0 30
";
    let mut sum = Instructions::default();
    measure::add_profile(profile, "libnvidia-ml", &mut sum);
    let by_object = [("gpu-reaper-hc", 105), ("libc.so.6", 30), ("libnvidia-ml.so.1", 40)];
    assert_eq!(sum.by_object, by_object.map(|(name, count)| (name.to_string(), count)).into());
    assert_eq!((sum.total(), sum.stand_in, sum.ours()), (175, 70, 105));
}

//! Drivers that hang, crash or answer late: the run never waits for them.

use crate::fake_nvml::{FakeNvml, node};
use crate::*;
use std::path::{Path, PathBuf};

#[test]
fn a_hang_at_the_start_ends_at_the_deadline() {
    // NVIDIA/go-nvml#152, NVIDIA/gpu-monitoring-tools#46 (FT-01): nvmlInit never returns.
    for hang in ["forever", "stop"] {
        let fake = FakeNvml::new(&format!("nvmlInit_v2 ~ {hang}\n"));
        let (answer, took) = timed(worker::start(&plan(&fake, SHORT)));
        assert_eq!(answer, Absent(Absence::DeadlinePassed), "{hang}");
        assert!(took < SHORT + SLACK, "{hang}: {took:?}");
        fake.play(&node(1));
        assert_eq!(
            report(&fake).units,
            [healthy(0, 1)],
            "a worker that could be killed leaves nothing behind"
        );
    }
}

#[test]
fn a_second_worker_is_not_added_to_one_that_hangs() {
    let fake = FakeNvml::new("nvmlInit_v2 ~ forever\n");
    let first = worker::start(&plan(&fake, SHORT));
    let from = Instant::now();
    let second = worker::start(&plan(&fake, PATIENT));
    assert_eq!(second.worker(), None);
    assert_eq!(second.finish(), Absent(Absence::WorkerStuck));
    assert!(from.elapsed() < Duration::from_millis(200), "{:?}", from.elapsed());
    drop(first);
    fake.play(&node(1));
    assert_eq!(report(&fake).units, [healthy(0, 1)]);
}

#[test]
fn gpus_read_before_a_hang_are_kept() {
    let fake = FakeNvml::new(&format!("{}gpu 3\nnvmlDeviceGetPowerUsage ~ forever\n", node(5)));
    let (answer, took) = timed(worker::start(&plan(&fake, SHORT)));
    let late = |i| unread(i, Absence::DeadlinePassed);
    let want = vec![healthy(0, 5), healthy(1, 5), healthy(2, 5), late(3), late(4)];
    assert_eq!(answer.map(|r| r.units), Measured(want));
    assert!(took < SHORT + SLACK, "{took:?}");
}

#[test]
fn gpus_read_before_a_crash_are_kept() {
    let fake = FakeNvml::new(&format!("{}gpu 1\nnvmlDeviceGetName ~ crash\n", node(2)));
    assert_eq!(report(&fake).units, [healthy(0, 2), unread(1, Absence::SourceFailed)]);
    fake.play("nvmlInit_v2 ~ crash\n");
    assert_eq!(look(&fake), Absent(Absence::SourceFailed));
}

#[test]
fn an_answer_that_came_in_time_is_taken_even_if_the_run_was_late() {
    let fake = FakeNvml::new(&node(2));
    let until = Instant::now() + SHORT;
    let pending = worker::start(&plan(&fake, SHORT));
    let pid = pending.worker().unwrap();
    eventually("the worker has answered", || state(pid) == Some('Z'));
    eventually("the deadline has passed", || Instant::now() > until);
    assert_eq!(pending.finish().map(|r| r.units.len()), Measured(2));
}

#[test]
fn a_slow_start_within_the_deadline_is_no_fault() {
    let fake = FakeNvml::new(&format!("nvmlInit_v2 ~ 100\n{}", node(1)));
    assert_eq!(report(&fake).units, [healthy(0, 1)]);
}

#[test]
fn the_worker_holds_nothing_that_it_inherited() {
    let fake = FakeNvml::new("nvmlInit_v2 ~ forever\n");
    let inherited = fs::File::open("/proc/self/status").unwrap();
    let pending = worker::start(&plan(&fake, PATIENT));
    let pid = pending.worker().unwrap();
    let lock = fake.dir().join("probe.lock").canonicalize().unwrap();
    let expected = |target: &Path| {
        target == Path::new("/dev/null") || target == lock || target.to_string_lossy().starts_with("pipe:")
    };
    // While the library is being loaded its file is open for a moment.
    eventually("only null, pipe and lock are open", || {
        let list = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let open: Vec<PathBuf> = list.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok()).collect();
        open.len() == 5 && open.iter().all(|target| expected(target))
    });
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let files = limits.lines().find(|l| l.starts_with("Max open files")).unwrap();
    assert!(files.split_whitespace().nth(3).unwrap().parse::<u32>().unwrap() <= 1024, "{files}");
    drop((inherited, pending));
}

/// A cgroup v1 freezer: a process in it sleeps in state D and not even SIGKILL ends it, as in a wedged
/// driver.
struct Freezer(PathBuf);

impl Freezer {
    fn new() -> Option<Freezer> {
        let dir = Path::new("/sys/fs/cgroup/freezer").join(format!("gpu-reaper-test-{}", std::process::id()));
        fs::create_dir(&dir).ok()?;
        dir.join("freezer.state").exists().then_some(Freezer(dir))
    }

    fn say(&self, file: &str, text: &str) {
        fs::write(self.0.join(file), text).unwrap();
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.say("freezer.state", "THAWED");
        let empty = || fs::read_to_string(self.0.join("cgroup.procs")).is_ok_and(|pids| pids.is_empty());
        eventually("the freezer is empty", empty);
        fs::remove_dir(&self.0).unwrap();
    }
}

#[test]
fn a_worker_that_cannot_be_killed_hangs_nobody_and_is_alone() {
    // leptonai/gpud#117, NVIDIA/NVSentinel#1576 (FT-01): uninterruptible sleep in the driver, monitors piling
    // up.
    let Some(freezer) = Freezer::new() else {
        return println!("skipped: no cgroup v1 freezer to write to (needs root)");
    };
    let fake = FakeNvml::new("nvmlInit_v2 ~ forever\n");
    let pending = worker::start(&plan(&fake, SHORT));
    let pid = pending.worker().unwrap();
    freezer.say("cgroup.procs", &pid.to_string());
    freezer.say("freezer.state", "FROZEN");
    eventually("the worker is frozen", || state(pid) == Some('D'));

    let (answer, took) = timed(pending);
    assert_eq!(answer, Absent(Absence::DeadlinePassed));
    assert!(took < SHORT + SLACK, "{took:?}");
    assert_eq!(state(pid), Some('D'), "SIGKILL was sent and did nothing");

    fake.play(&node(1));
    for run in 2..=3 {
        let (answer, took) = timed(worker::start(&plan(&fake, PATIENT)));
        assert_eq!(answer, Absent(Absence::WorkerStuck), "run {run}");
        assert!(took < Duration::from_millis(200), "run {run}: {took:?}");
    }

    drop(freezer);
    assert_eq!(report(&fake).units, [healthy(0, 1)], "once the driver lets go, all works again");
}

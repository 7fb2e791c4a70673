//! Health-check runs that overlap, are killed, run out of time, or cannot see a GPU.

use crate::fake_nvml::FakeNvml;
use crate::slurm::{Cluster, install};
use crate::*;
use gpu_reaper_hc::reading::Absence;

fn config(driver: &FakeNvml, deadline: &str) -> String {
    format!("gpu: {{ library: {}, deadline: {deadline} }}\n", driver.library().display())
}

/// `outcome` and `gpus_absent` of the newest run.
fn newest_run(node: &Node) -> String {
    node.ledger("SELECT outcome || ' ' || coalesce(gpus_absent, 'read') FROM run ORDER BY id DESC LIMIT 1")
}

#[test]
fn a_second_run_gives_up_soon_is_counted_and_nothing_is_lost() {
    // vamseeachanta/workspace-hub#3463, openshift/openshift-tools#123 (RT-02): three at a time for hours.
    let driver = FakeNvml::new("nvmlInit_v2 ~ forever\n");
    let node = Node::new(&config(&driver, "4s"));
    let first = started(node.command(&[]));
    eventually("the first run looks at the GPUs", || node.phase().as_deref() == Some("observe"));
    let second = started(node.command(&[]));
    // A hook is not starved by it: separate, short waits.
    let prolog = node.hook("prolog", "7", &[("SLURM_JOB_GPUS", "0")]);
    assert!(prolog.status == Some(0) && prolog.took < Duration::from_secs(1), "{prolog:?}");
    let second = ended(second);
    assert_eq!((second.status, second.out.as_str(), second.err.as_str()), (Some(0), "", ""));
    assert!(second.took < Duration::from_millis(1300), "{second:?}");
    let epilog = node.hook("epilog", "7", &[("SLURM_JOB_GPUS", "0")]);
    assert!(epilog.status == Some(0) && epilog.took < Duration::from_secs(1), "{epilog:?}");
    let first = ended(first);
    assert_eq!(first.status, Some(0), "{first:?}");
    assert_eq!(newest_run(&node), format!("fault {}", Absence::DeadlinePassed.code()));
    driver.play(&fake_nvml::node(2));
    assert_eq!(node.health_check().status, Some(0));
    assert_eq!(newest_run(&node), "ok read");
    assert_eq!(
        node.ledger("SELECT group_concat(overlapped) FROM run"),
        "1,0",
        "counted by the first that ended"
    );
}

#[test]
fn the_same_trouble_run_after_run_is_told_once_and_no_process_that_came_and_went() {
    // NVIDIA/DCGM#279 (LG-03): gigabytes of complaints, every minute, about processes that were no more.
    let driver = FakeNvml::new("nvmlInit_v2 ! 9\n");
    let node = Node::new(&config(&driver, "10s"));
    let told_in = |runs: u32, before: &dyn Fn(u32)| -> Vec<String> {
        let of_run = |run| {
            before(run);
            let said = node.health_check();
            assert_eq!(said.status, Some(0), "{said:?}");
            let lines = said.err.lines().filter(|line| !line.contains(" INFO "));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        (0..runs).flat_map(of_run).collect()
    };
    let blind = told_in(60, &|_| {});
    assert!(blind.len() <= 1, "{blind:?}");
    let healthy = fake_nvml::node(1);
    driver.play(&healthy);
    let over = told_in(10, &|_| {});
    assert!(over.len() == 1 && over[0].contains("the GPUs can be read again"), "{over:?}");
    // Five hundred of them, and none lives that is named.
    let crowd = |run: u32| {
        let pids =
            (0..5).map(|n| format!("               proc compute = {} 1000\n", 4_100_000 + 5 * run + n));
        driver.play(&format!("{healthy}{}", pids.collect::<String>()));
    };
    assert_eq!(told_in(100, &crowd), [""; 0]);
    assert!(fs::metadata(node.state().join("ledger.db")).unwrap().len() < 1 << 20);
}

#[test]
fn a_run_killed_in_the_middle_is_recorded_by_the_next_with_its_phase() {
    // mej/nhc#161, #9 (RT-01): killed at the time limit with no clue. celerity/slurmactiond#4 (RT-04): the lock file
    // is still there, and blocks nobody.
    let driver = FakeNvml::new("nvmlInit_v2 ~ forever\n");
    let node = Node::new(&config(&driver, "20s"));
    let mut run = started(node.command(&[]));
    eventually("the run looks at the GPUs", || node.phase().as_deref() == Some("observe"));
    run.kill().unwrap();
    run.wait().unwrap();
    driver.play(&fake_nvml::node(2));
    let next = node.health_check();
    assert_eq!(next.status, Some(0));
    assert!(next.err.contains("was killed in its phase `observe`"), "{next:?}");
    assert_eq!(
        node.ledger("SELECT group_concat(outcome || ' ' || coalesce(phase, '')) FROM run"),
        "killed observe,ok "
    );
    assert_eq!(newest_run(&node), "ok read", "its worker died with it");
    let after = node.health_check();
    assert!(!after.err.contains("killed"), "said once: {after:?}");
}

#[test]
fn a_run_past_its_deadline_ends_itself_with_a_line_and_the_next_names_its_phase() {
    // mej/nhc#161 (RT-01): an own deadline, well below the 60 s at which slurmd kills.
    let cluster = Cluster::new(
        "deadline: 5s\ngpu: { library: LIBRARY, deadline: 1s }\nslurm: { COMMANDS }\nlimits: { spread: 1d }\n",
    );
    let node = &cluster.node;
    assert_eq!(cluster.prolog(7, &[]).err, "");
    // A file system that hangs: whoever opens a FIFO waits for its writer.
    let gres_conf = node.path("etc/gres.conf");
    fs::remove_file(&gres_conf).unwrap();
    assert!(Command::new("mkfifo").arg(&gres_conf).status().unwrap().success());
    let run = node.health_check();
    assert_eq!((run.status, run.out.as_str()), (Some(1), ""), "{run:?}");
    assert!(run.took > Duration::from_secs(4) && run.took < Duration::from_secs(7), "{run:?}");
    assert!(run.line().starts_with("gpu-reaper-hc: the run's deadline passed;"), "{run:?}");
    fs::remove_file(&gres_conf).unwrap();
    let next = node.health_check();
    assert_eq!(next.status, Some(0));
    assert!(next.err.contains("was killed in its phase `observe`"), "{next:?}");
    assert_eq!(
        node.ledger("SELECT group_concat(outcome || ' ' || coalesce(phase, '')) FROM run"),
        "killed observe,ok "
    );
    assert!(cluster.calls().is_empty(), "a time-out asks nothing and drains nothing");
}

#[test]
fn a_run_that_ended_by_itself_is_no_killed_one() {
    // mej/nhc#161 (RT-01): the wrong check was blamed.
    let node = Node::without_driver();
    assert_eq!(node.health_check().status, Some(0));
    let holder = rusqlite::Connection::open(node.state().join("ledger.db")).unwrap();
    holder.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let run = node.health_check();
    assert_eq!(run.status, Some(1));
    assert!(
        run.line().contains("database is locked") && run.line().ends_with("; nothing was judged"),
        "{run:?}"
    );
    assert!(run.took < Duration::from_secs(10), "{run:?}");
    holder.execute_batch("ROLLBACK").unwrap();
    let next = node.health_check();
    assert!(next.status == Some(0) && !next.err.contains("killed"), "{next:?}");
    assert_eq!(node.ledger("SELECT count(*) FROM run WHERE outcome = 'killed'"), "0");
}

#[test]
fn without_library_or_driver_a_run_ends_well_and_invents_no_sample() {
    // rust-nvml/nvml-wrapper#47, #63 (NR-15): an unwrap here is a dead tool on every node.
    // mozilla/translations#1167, Azure/az-hop#269 (NR-16): a package update under running jobs.
    let driver = FakeNvml::new(&fake_nvml::node(2));
    let node = Node::new(&config(&driver, "10s"));
    node.prolog("7");
    assert_eq!(node.health_check().status, Some(0));
    assert_eq!(node.ledger("SELECT count(*) FROM sample"), "2");
    let table = [
        ("nvmlInit_v2 ! 9\n", Absence::DriverNotLoaded),
        ("nvmlInit_v2 ! 18\n", Absence::VersionMismatch),
        ("nvmlInit_v2 ! 12\n", Absence::LibraryNotFound),
        ("nvmlInit_v2 ~ crash\n", Absence::SourceFailed),
    ];
    for (scenario, why) in table {
        driver.play(scenario);
        let run = node.health_check();
        assert_eq!((run.status, run.out.as_str()), (Some(0), ""), "{scenario}");
        assert!(run.err.contains(&format!("GPUs not read: {}", why.words())), "{run:?}");
        assert_eq!(newest_run(&node), format!("fault {}", why.code()), "{scenario}");
    }
    fs::remove_file(driver.library()).unwrap();
    let run = node.health_check();
    assert_eq!(run.status, Some(0));
    assert_eq!(newest_run(&node), format!("fault {}", Absence::LibraryNotFound.code()));
    assert!(run.err.contains("1 jobs; 7 "), "the job stays registered: {run:?}");
    assert_eq!(node.ledger("SELECT count(*) FROM sample"), "2", "five faults, no row of them");
    assert_eq!(node.ledger("SELECT count(*) FROM finding"), "0");
}

#[test]
fn three_runs_against_a_driver_that_hangs_end_in_time_and_judge_nothing() {
    // leptonai/gpud#117, NVIDIA/NVSentinel#1576 (FT-01)
    let driver = FakeNvml::new(&format!("{}gpu 1\nnvmlDeviceGetPowerUsage ~ forever\n", fake_nvml::node(2)));
    let node = Node::new(&config(&driver, "1s"));
    node.prolog("7");
    for _ in 0..3 {
        let run = node.health_check();
        assert_eq!(run.status, Some(0));
        assert!(run.took < Duration::from_millis(2500), "{run:?}");
    }
    let late = Absence::DeadlinePassed.code();
    assert_eq!(node.ledger("SELECT count(*) FROM run"), "3");
    assert_eq!(
        node.ledger(&format!("SELECT count(*) FROM sample WHERE power_absent = {late}")),
        "0",
        "no identity yet"
    );
    assert_eq!(
        node.ledger("SELECT count(*) FROM sample WHERE power_mw IS NOT NULL"),
        "3",
        "the other card was read"
    );
    assert_eq!(node.ledger("SELECT count(*) FROM finding"), "0");
}

#[test]
fn a_run_that_a_young_slurmd_started_asks_slurm_nothing() {
    // mej/nhc#159 (CT-05): slurmd waits for its first health check before it registers; scontrol does not answer
    // until it does.
    let asking = "gpu: { library: /nonexistent/libnvidia-ml.so.1 }\nslurm: { source: squeue, COMMANDS }\n";
    let cluster = Cluster::new(asking);
    cluster.job(7, "7", "train");
    // A shell by the name of slurmd; not `exec`, so that it stays the parent.
    let slurmd = cluster.node.path("slurmd");
    let copy = "cp \"$(readlink -f /bin/sh)\" \"$0\" && chmod 755 \"$0\"";
    assert!(Command::new("/bin/sh").args(["-c", copy]).arg(&slurmd).status().unwrap().success());
    let mut command = Command::new(&slurmd);
    command.args(["-c", "\"$0\"; exit $?", PROGRAM]).env_clear();
    command.env("SLURMD_NODENAME", "n1").env("GPU_REAPER_CONFIG", cluster.node.path("config.yaml"));
    let run = said(&mut command);
    assert_eq!(run.status, Some(0), "{run:?}");
    assert_eq!(cluster.node.ledger("SELECT count(*) FROM run"), "1", "it samples");
    assert!(cluster.calls().is_empty(), "{:?}", cluster.calls());
    assert_eq!(cluster.node.health_check().status, Some(0));
    assert!(cluster.calls()[0].starts_with("squeue "), "any other run asks: {:?}", cluster.calls());
}

#[test]
fn a_command_that_never_answers_is_left_behind_and_the_run_ends_well() {
    // mej/nhc#159 (CT-05), SchedMD/slurm#171 (CT-01), stemdeckapp/stemdeck#583 (RT-05)
    let asking = "gpu: { library: /nonexistent/libnvidia-ml.so.1 }\nslurm: { source: squeue, COMMANDS }\n";
    let cluster = Cluster::new(asking);
    assert_eq!(cluster.prolog(7, &[]).err, "");
    install(&cluster.node.path("bin/squeue"), "#!/bin/sh\ntrap '' TERM\nsleep 300 & sleep 300\n");
    let run = cluster.node.health_check();
    assert_eq!(run.status, Some(0), "{run:?}");
    assert!(run.took < Duration::from_secs(8), "{run:?}");
    assert!(
        run.err.contains("squeue: no answer within 6 s; jobs without a registration are unknown"),
        "{run:?}"
    );
    assert_eq!(cluster.node.ledger("SELECT count(*) FROM job_run WHERE closed_how IS NULL"), "1");
    let again = cluster.node.health_check();
    assert!(again.took < Duration::from_secs(2), "not asked again at once: {again:?}");
    // Nowhere at all.
    fs::remove_file(cluster.node.path("bin/squeue")).unwrap();
    cluster.node.ledger("DELETE FROM question RETURNING 1");
    let run = cluster.node.health_check();
    assert_eq!(run.status, Some(0));
    // PrincetonUniversity/jobstats#26, NVIDIA/deepops#919 (CT-09): absent means unavailable, not a crash.
    assert!(run.err.contains("squeue: not run: "), "{run:?}");
}

#[test]
fn gpus_that_cannot_be_read_are_told_once_and_once_more_when_they_can() {
    // WickedLukas/nvidia-tuner#5 (NR-15), Azure/az-hop#269 (NR-16): one alert, no verdict, no idleness.
    let driver = FakeNvml::new("nvmlInit_v2 ! 18\ngpu 0\nnvmlDeviceGetUUID = GPU-0\n");
    let node = Node::new(&format!("gpu: {{ library: {} }}\n", driver.library().display()));
    let told =
        |said: Said| said.err.lines().filter(|l| l.contains("WARN")).map(str::to_owned).collect::<Vec<_>>();
    let first = told(node.health_check());
    assert!(
        first.len() == 1
            && first[0].contains("fault driver-mismatch: driver and library are of different versions"),
        "{first:?}"
    );
    for _ in 0..3 {
        assert_eq!(told(node.health_check()), [""; 0], "not again");
    }
    driver.play("gpu 0\nnvmlDeviceGetUUID = GPU-0\n");
    let again: Vec<String> = (0..5).flat_map(|_| told(node.health_check())).collect();
    assert!(again.len() == 1 && again[0].contains("fault driver-mismatch is over"), "{again:?}");
    // What is no fault of the node is told of too.
    driver.play("nvmlInit_v2 ! 4\ngpu 0\nnvmlDeviceGetUUID = GPU-0\n");
    let first = told(node.health_check());
    assert!(
        first.len() == 1 && first[0].contains("the GPUs cannot be read: permission refused"),
        "{first:?}"
    );
    assert_eq!(told(node.health_check()), [""; 0]);
    driver.play("gpu 0\nnvmlDeviceGetUUID = GPU-0\n");
    let again = told(node.health_check());
    assert!(again.len() == 1 && again[0].contains("can be read again"), "{again:?}");
    assert_eq!(told(node.health_check()), [""; 0]);
}

#[test]
fn a_cpu_job_on_a_node_without_gpus_leaves_no_ledger() {
    let node = Node::new("");
    if std::fs::read_to_string("/proc/bus/pci/devices").is_ok_and(|list| list.contains("10de")) {
        eprintln!("SKIPPED: this machine has an NVIDIA device");
        return;
    }
    for which in ["prolog", "epilog"] {
        assert_eq!(node.hook(which, "7", &[]).status, Some(0));
    }
    assert_eq!(node.health_check().status, Some(0));
    assert!(!node.state_dir().exists());
}

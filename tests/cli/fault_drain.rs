//! A drain for a fault of the node through the real program: made once, whatever kills a run, counted against nobody's
//! job, and lifted by a person alone.

use crate::slurm::{Cluster, quiet};
use crate::*;
use std::os::unix::process::ExitStatusExt;

const CONFIG: &str = "
gpu: { library: LIBRARY }
slurm: { COMMANDS }
limits: { spread: 0s }
thresholds: { window: 1s, warmup: 0s }
faults:
  mode: enforce
  actions: { gpu-reset: drain, foreign-process: off }
";

/// The driver's only GPU, which it wants reset.
fn sick() -> String {
    quiet().replace("field 230 = u 0", "field 230 = u 1")
}

/// A node with a fault that drains, and a ledger that is old enough to act.
fn stage(config: &str) -> Cluster {
    let cluster = Cluster::new(config);
    cluster.show(&quiet());
    assert_eq!(cluster.node.health_check().status, Some(0));
    std::thread::sleep(Duration::from_millis(1100));
    cluster.show(&sick());
    cluster
}

fn drains(cluster: &Cluster) -> usize {
    let is_one =
        |call: &&String| call.starts_with("scontrol update") && call.to_lowercase().contains("state=drain");
    cluster.calls().iter().filter(is_one).count()
}

#[test]
fn a_fault_drains_once_and_only_a_person_lifts_it() {
    // leptonai/gpud#1072, #1075 (FT-09), NVIDIA/DCGM#263 (FT-11)
    let cluster = stage(CONFIG);
    let said = cluster.node.health_check();
    assert!(said.err.contains("fault gpu-reset: GPU 0 ("), "{said:?}");
    assert_eq!(drains(&cluster), 0, "what one run alone saw drains nothing");
    let said = cluster.node.health_check();
    assert!(
        cluster.read("node.reason").starts_with("gpu-reaper: fault=gpu-reset at=0000:1a:00.0 since=20"),
        "{said:?}"
    );
    assert!(cluster.read("node.state").contains("drain"));
    for _ in 0..3 {
        cluster.node.health_check();
    }
    assert_eq!(drains(&cluster), 1);
    let list = cluster.node.call(&["ack"]);
    assert!(
        list.out.contains("gpu-reset since") && list.out.contains("stays so: `gpu-reaper-hc release`"),
        "{list:?}"
    );
    // It is mended: the fault ends by itself, the drain does not.
    cluster.show(&quiet());
    let over: String = (0..6).map(|_| cluster.node.health_check().err).collect();
    assert!(over.contains("fault gpu-reset is over"), "{over}");
    assert!(cluster.read("node.state").contains("drain"));
    let lifted = cluster.node.call(&["release"]);
    assert!(lifted.status == Some(0) && lifted.out.contains("lifted"), "{lifted:?}");
    assert!(!cluster.read("node.state").contains("drain"));
    assert_eq!(cluster.node.ledger("SELECT outcome FROM fault_drain"), "lifted");
}

#[test]
fn a_person_who_lifts_it_is_not_overruled_and_observe_only_tells() {
    let cluster = stage(CONFIG);
    cluster.node.health_check();
    cluster.node.health_check();
    cluster.write("node.state", "allocated");
    cluster.write("node.reason", "none");
    for _ in 0..3 {
        cluster.node.health_check();
    }
    assert_eq!(drains(&cluster), 1, "{:?}", cluster.calls());
    let observed = stage(&CONFIG.replace("mode: enforce", "mode: observe"));
    let said: String = (0..3).map(|_| observed.node.health_check().err).collect();
    assert!(said.contains("the mode is observe: this node is not drained for it"), "{said}");
    let of_orphans = |call: &String| call.starts_with("sinfo -h -a --local -N -n n1 ");
    assert!(observed.calls().iter().all(of_orphans), "nothing else is asked: {:?}", observed.calls());
}

#[test]
fn what_somebody_else_says_of_the_node_is_left_alone() {
    // mej/nhc#82, #36, clustershell#362 (ND-08): only plainly IDLE, MIXED or ALLOCATED.
    let table = [
        ("idle+drain", "DIMM replaced tomorrow"),
        ("allocated", "ada: watching this one"),
        ("idle+powering_down", "none"),
        ("reserved", "none"),
        ("mixed+maintenance", "none"),
        ("down+not_responding", "Not responding"),
        ("idle+drain+reboot_requested", "none"),
    ];
    for (state, reason) in table {
        let cluster = stage(CONFIG);
        cluster.write("node.state", state);
        cluster.write("node.reason", reason);
        let said: String = (0..2).map(|_| cluster.node.health_check().err).collect();
        assert!(said.contains("fault gpu-reset: drain withheld: "), "{state}: {said}");
        let list = cluster.node.call(&["ack"]);
        assert!(
            list.out.contains("\n  its drain is withheld: ") && list.out.contains("to take one on"),
            "{list:?}"
        );
        assert_eq!((drains(&cluster), cluster.read("node.reason").as_str()), (0, reason), "{state}");
    }
}

/// A run so much later, killed before this touch of the world, from 1. Its touches, where nothing kills it.
fn run_at(cluster: &Cluster, later_ms: u64, kill: usize) -> Option<String> {
    let (mut command, log) = (cluster.node.command(&[]), cluster.node.path("touches"));
    command.env("LD_PRELOAD", kill_shim::built()).env("KILL_LATER_MS", later_ms.to_string());
    command
        .env("KILL_UNDER", cluster.node.state_dir())
        .env("KILL_LOG", &log)
        .env("KILL_AT", kill.to_string());
    let status = command.output().unwrap().status;
    let ended = status.signal() != Some(libc::SIGKILL);
    assert!(!ended || status.code() == Some(0), "{status:?}");
    ended.then(|| fs::read_to_string(log).unwrap())
}

/// As [`stage`], without a wait.
fn stage_in_no_time() -> Cluster {
    let cluster = Cluster::new(CONFIG);
    cluster.show(&quiet());
    run_at(&cluster, 0, 0).expect("nobody kills it");
    cluster.show(&sick());
    run_at(&cluster, 60_000, 0).expect("nobody kills it");
    cluster
}

#[test]
fn killed_before_or_after_the_drain_it_is_made_once() {
    let touches: Vec<char> =
        run_at(&stage_in_no_time(), 120_000, 0).expect("nobody kills it").chars().collect();
    // Of many writes in a row, all of which are undone or none, the first and the last.
    let inside =
        |n: usize| n > 0 && touches[n - 1..].iter().take(3).filter(|kind| **kind == 'w').count() == 3;
    let moments: Vec<usize> = (0..touches.len()).filter(|n| !inside(*n)).collect();
    assert!(moments.len() > 15, "{touches:?}");
    for touch in moments {
        let cluster = stage_in_no_time();
        assert_eq!(run_at(&cluster, 120_000, touch + 1), None, "{touch}");
        // Later, so that what is unclear may be called so.
        for minutes in [4, 8, 12] {
            run_at(&cluster, minutes * 60_000, 0).expect("nobody kills it");
        }
        let outcomes = cluster.node.ledger("SELECT group_concat(outcome) FROM fault_drain");
        assert!(
            drains(&cluster) == 1 && outcomes.ends_with("done"),
            "{touch}: {outcomes} {:?}",
            cluster.calls()
        );
        assert_eq!(cluster.node.ledger("PRAGMA integrity_check"), "ok");
    }
}

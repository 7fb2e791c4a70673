//! The health check and `--explain` on disks that are full or read-only, and with damaged ledgers.

use crate::*;

/// On a small disk, with a job registered and one run made.
fn on(disk: &SmallDisk) -> Node {
    let node = Node::without_driver();
    std::os::unix::fs::symlink(disk.path(), node.state_dir()).unwrap();
    node.prolog("7");
    assert_eq!(node.health_check().status, Some(0));
    node
}

fn unusable(run: &Said, why: &str) {
    assert_eq!((run.status, run.out.as_str()), (Some(1), ""), "{run:?}");
    assert!(run.line().starts_with("gpu-reaper-hc: ") && run.line().contains(why), "{run:?}");
    // What has begun is not said to be nothing.
    let had_begun = run.line().contains(": append: ");
    let end = if had_begun { "; nothing more was judged or done" } else { "; nothing was judged" };
    assert!(run.line().ends_with(end), "{run:?}");
    assert!(run.took < Duration::from_secs(5), "{run:?}");
}

#[test]
fn a_full_disk_stops_no_explanation_and_heals_by_itself() {
    // louislam/uptime-kuma#4581, strongloop/strong-pm#368 (DB-04): a manager crash-looped on it.
    let Some(disk) = SmallDisk::mount("1m") else { return };
    let node = on(&disk);
    disk.fill();
    for _ in 0..3 {
        unusable(&node.health_check(), "database or disk is full");
        assert_eq!(node.call(&["--explain", "7"]).status, Some(13), "what is there is still read");
    }
    assert_eq!(node.ledger("SELECT count(*) FROM run"), "1", "a gap");
    disk.empty();
    let run = node.health_check();
    assert!(run.status == Some(0) && !run.err.contains("killed"), "{run:?}");
    assert_eq!(node.ledger("SELECT group_concat(outcome) FROM run"), "fault,fault", "both without a driver");
    assert_eq!(node.ledger("PRAGMA integrity_check"), "ok");
}

#[test]
fn a_full_disk_before_the_first_run_leaves_no_half_ledger() {
    // louislam/uptime-kuma#4581 (DB-04)
    let Some(disk) = SmallDisk::mount("1m") else { return };
    let node = Node::without_driver();
    std::os::unix::fs::symlink(disk.path(), node.state_dir()).unwrap();
    disk.fill();
    unusable(&node.health_check(), "database or disk is full");
    let told = node.call(&["--explain", "7"]);
    assert_eq!(told.status, Some(17), "{told:?}");
    assert!(told.line().contains("holds no ledger of this version yet"), "{told:?}");
    disk.empty();
    assert_eq!(node.health_check().status, Some(0));
    assert_eq!(node.call(&["--explain", "7"]).status, Some(14));
}

#[test]
fn a_read_only_disk_stops_no_explanation_and_heals_by_itself() {
    // louislam/uptime-kuma#4581 (DB-04)
    let Some(disk) = SmallDisk::mount("4m") else { return };
    let node = on(&disk);
    disk.remount("ro");
    unusable(&node.health_check(), "Read-only file system");
    assert_eq!(node.call(&["--explain", "7"]).status, Some(13));
    disk.remount("rw");
    assert_eq!(node.health_check().status, Some(0));
    assert_eq!(node.ledger("SELECT count(*) FROM run"), "2");
}

#[test]
fn a_full_disk_costs_a_second_run_its_count_and_no_more() {
    // louislam/uptime-kuma#4581 (DB-04), vamseeachanta/workspace-hub#3463 (RT-02)
    let Some(disk) = SmallDisk::mount("1m") else { return };
    let node = on(&disk);
    disk.fill();
    let lock = fs::File::open(node.state().join("run.lock")).unwrap();
    lock.lock().unwrap();
    let run = node.health_check();
    assert_eq!((run.status, run.err.as_str()), (Some(0), ""), "{run:?}");
}

#[test]
fn a_reader_leaves_a_damaged_ledger_to_the_next_run() {
    // louislam/uptime-kuma#4581 (DB-04); mknoxnv/ubuntu-slurm#4 (PE-08)
    let node = Node::without_driver();
    node.prolog("7");
    let ledger = node.state().join("ledger.db");
    let damaged = "no ledger at all\n".repeat(500);
    fs::write(&ledger, &damaged).unwrap();
    let told = node.call(&["--explain", "7"]);
    assert_eq!((told.status, told.out.as_str()), (Some(17), ""));
    assert!(told.line().contains("file is not a database"), "{told:?}");
    assert_eq!(fs::read_to_string(&ledger).unwrap(), damaged, "nothing is moved by looking");
    let run = node.health_check();
    assert_eq!(run.status, Some(0));
    assert!(run.err.contains("moved to") && run.err.contains("a new one was begun"), "{run:?}");
    assert_eq!(node.call(&["--explain", "7"]).status, Some(14), "that registration is gone");
}

#[test]
fn no_ledger_at_all_is_said_and_none_is_made() {
    let node = Node::without_driver();
    let told = node.call(&["--explain", "7"]);
    assert_eq!((told.status, told.out.as_str()), (Some(17), ""));
    assert!(told.line().starts_with("gpu-reaper-hc: no run has left a ledger of node n1 in `"), "{told:?}");
    assert!(!node.state_dir().exists());
}

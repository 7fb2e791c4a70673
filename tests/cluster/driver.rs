//! A driver that never answers.

use super::lab::lease;
use super::node::Node;
use super::settings::{ENFORCE, Settings};
use super::stand_in::DRIVER_HANGS;
use std::fs;
use std::time::{Duration, Instant};

/// Processes of ours on this node that no run waits for or has just started: parent is init or one of ours.
fn workers(node: &Node) -> Vec<u32> {
    let mine = format!("SLURMD_NODENAME={}", node.name);
    let ours = |pid: u32| {
        let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        exe.file_name() == node.lab.program.file_name()
            && environ.split(|b| *b == 0).any(|v| v == mine.as_bytes())
    };
    let parent = |pid: u32| -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    let all =
        fs::read_dir("/proc").expect("/proc").filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
    all.filter(|&pid| ours(pid) && parent(pid).is_some_and(|p| p == 1 || ours(p))).collect()
}

#[test]
fn a_driver_that_hangs_for_ever_holds_neither_the_run_nor_slurmd_and_workers_do_not_pile_up() {
    let Some(node) = lease(&Settings { deadline: "2s", ..ENFORCE }) else {
        return;
    };
    node.show_text(DRIVER_HANGS);
    let job = node.submit(4);
    let before = node.standing();

    for _ in 0..3 {
        node.wait_for_runs(1);
        assert!(workers(&node).len() <= 1, "{:?}", workers(&node));
    }
    let begun = Instant::now();
    let output = node.health_check();
    assert!(output.status.success(), "{output:?}");
    // The deadline, a run in progress that may hold the lock, and room for a busy machine.
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    node.nothing_happens(1, &before);

    let log =
        fs::read_to_string(node.lab.dir.join(format!("log/slurmd.{}.log", node.name))).expect("slurmd's log");
    assert!(!log.contains("health_check poll timeout"), "slurmd waited its 60 s");
    assert_eq!(node.ledger().findings(job.id), 0);
    let (status, text) = node.explain(job.id);
    assert!(status == 12 || status == 13, "not judged, or no samples: {status}\n{text}");
}

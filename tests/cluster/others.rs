//! Our drain stands, and then others act on the node: an Epilog fails, somebody wants a reboot, a maintenance begins, an
//! administrator thinks otherwise. None of it is lifted or fought.

use super::lab::lease_all;
use super::node::{Job, Node};
use super::settings::{SOON, Settings};
use super::several::{cycles, updates};

/// Runs after which a drain that may be lifted would have been, and a cancel that may be done.
const RUNS: usize = 8;

/// Drained, and the cancel is far away.
const DRAINED: Settings = Settings { stages: ["1s", "1h"], ..SOON };
/// Drained, and the cancel is due after the administrator came.
const CANCEL_LATER: Settings = Settings { stages: ["1s", "9s"], ..SOON };

/// What was done to a node is undone however the test ends.
struct Undo<'a>(&'a Node, &'a [&'a str]);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        let _ = self.0.lab.slurm(self.1);
    }
}

fn update(node: &Node, what: &[&str]) {
    let name = format!("nodename={}", node.name);
    node.slurm(&[&["scontrol", "update", &name], what].concat());
}

/// The node, its job that hangs, and our reason once it is drained for it.
fn drained(node: &Node, job: &Job) -> String {
    node.wait_until("the drain", || node.ledger().done(job.id, "drain").is_some());
    let reason = node.reason();
    assert!(reason.starts_with("gpu-reaper: job="), "{reason}");
    reason
}

#[test]
fn what_others_do_to_a_node_that_we_drained_is_neither_lifted_nor_fought() {
    let Some(nodes) = lease_all(&DRAINED) else { return };
    let [failed, reboot, maintained, resumed] = &nodes[..] else { panic!("four nodes") };
    resumed.configure(&CANCEL_LATER);
    nodes.iter().for_each(Node::without_energy_counter);
    let jobs: Vec<Job> = nodes.iter().map(|node| node.submit(4)).collect();
    nodes.iter().zip(&jobs).for_each(|(node, job)| node.show(&job.hung()));

    // An administrator sees it otherwise, lifts our drain and has one of his own, before the job is cancelled.
    drained(resumed, &jobs[3]);
    update(resumed, &["state=resume"]);
    update(resumed, &["state=drain", "reason=fan 3 dead"]);
    let [of_failed, of_reboot, of_maintained] = [0, 1, 2].map(|n| drained(&nodes[n], &jobs[n]));
    failed.epilog_fails();
    let resume = format!("nodename={}", reboot.name);
    let _no_reboot = Undo(reboot, &["scontrol", "update", &resume, "state=resume"]);
    reboot.slurm(&["scontrol", "reboot", "ASAP", &reboot.name]);
    let _no_maintenance = Undo(maintained, &["scontrol", "delete", "reservationname=maintenance"]);
    let (name, on) = ("reservationname=maintenance", format!("nodes={}", maintained.name));
    let flags = "flags=maint,ignore_jobs";
    maintained.slurm(&[
        "scontrol",
        "create",
        "reservation",
        name,
        "starttime=now",
        "duration=60",
        "user=root",
        flags,
        &on,
    ]);
    maintained.wait_until("the maintenance", || maintained.state_with_flags().contains("maintenance"));
    resumed.wait_until("the cancel is due, and withheld", || {
        resumed.ledger().withheld(jobs[3].id).iter().any(|w| w.verdict == "cancel")
    });
    let told = updates(resumed);
    for (node, job) in nodes.iter().zip(&jobs) {
        assert!(node.ledger().actions(job.id).iter().all(|a| a.verdict != "cancel"), "{}", node.name);
        node.cancel(job);
    }
    failed.wait_until("the Epilog failed", || failed.standing().squeue.is_empty());
    failed.wait_until("it is told that the drain stays", || !failed.ledger().faults("drain").is_empty());
    cycles(&nodes.iter().collect::<Vec<_>>(), RUNS);

    assert_eq!(failed.reason(), of_failed, "an Epilog that failed leaves our reason: ours did not run");
    assert!(reboot.reason().starts_with(&of_reboot), "{}", reboot.reason());
    assert_eq!(maintained.reason(), of_maintained);
    assert_eq!(resumed.reason(), "fan 3 dead");
    assert_eq!(updates(resumed), told, "nothing was told to Slurm about any of them");
    assert_eq!(failed.ledger().faults("drain").len(), 1, "{:?}", failed.ledger().faults("drain"));

    failed.loses_its_ledger();
    cycles(&[failed], RUNS);
    assert_eq!(failed.reason(), of_failed, "an orphan is not lifted");
    assert_eq!(failed.ledger().faults("orphan").len(), 1, "and is told once");
    assert_eq!(updates(resumed), told);
}

//! slurmctld away in the middle: stopped, when no health check runs at all, and hung, when every question to it
//! takes ten seconds and brings nothing.

use super::lab::{Lab, lease_all};
use super::leaving_alone::uptime_ms;
use super::ledger::Action;
use super::node::{Job, Node};
use super::settings::{ENFORCE, MAX_SAMPLE_GAP_MS, Settings};

/// Brings slurmctld back however the test ends.
struct Slurmctld(&'static Lab);

impl Slurmctld {
    fn call(&self, what: &str) {
        let output = self.0.tool(&[what, "slurmctld"]);
        assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Slurmctld {
    fn drop(&mut self) {
        let _ = self.0.tool(&["resume", "slurmctld"]);
        let _ = self.0.tool(&["start", "slurmctld"]);
    }
}

/// Runs the health check by hand where none was started for an interval.
fn by_hand_if_due(node: &Node) {
    if uptime_ms() - node.ledger().last_run_boot_ms() > 2_500 {
        let output = node.health_check();
        assert!(output.status.success(), "{output:?}");
    }
}

/// Runs by hand until the drain has been due, and withheld, in two runs.
fn by_hand_until_withheld_twice(node: &Node, job: &Job) {
    node.wait_until("the drain is withheld in two runs for want of an answer", || {
        by_hand_if_due(node);
        node.ledger().withheld(job.id).iter().map(|w| w.count).sum::<i64>() >= 2
    });
    let actions = node.ledger().actions(job.id);
    assert!(actions.iter().all(|a| a.verdict == "alert"), "{actions:?}");
}

fn drained_in_the_end(node: &Node, job: &Job) {
    node.wait_until("the drain, once slurmctld answers", || {
        by_hand_if_due(node);
        node.ledger().done(job.id, "drain").is_some()
    });
    assert_eq!(Some(node.reason()), node.ledger().done(job.id, "drain").and_then(|a| a.reason));
}

#[test]
fn without_slurmctld_nothing_is_done_nor_believed_and_afterwards_all_goes_on() {
    // A hole longer than a window would be a new beginning: this one lasts some twenty seconds.
    let Some(nodes) = lease_all(&Settings { window: "40s", ..ENFORCE }) else {
        return;
    };
    let [left_alone, run_by_hand] = [&nodes[0], &nodes[1]];
    let jobs = [left_alone, run_by_hand].map(|node| {
        let job = node.submit(4);
        node.show(&job.hung());
        job
    });
    let found = |node: &Node, job: &Job| node.ledger().done(job.id, "alert").is_some();
    left_alone.wait_until("both are found", || found(left_alone, &jobs[0]) && found(run_by_hand, &jobs[1]));

    // Stopped: slurmd gets no health-check request. One node is run by hand, so that its window has no hole.
    let slurmctld = Slurmctld(left_alone.lab);
    slurmctld.call("stop");
    let runs = left_alone.ledger().runs();
    by_hand_until_withheld_twice(run_by_hand, &jobs[1]);
    left_alone.wait_until("the hole of the other node is longer than any allowed gap", || {
        by_hand_if_due(run_by_hand);
        uptime_ms() - left_alone.ledger().last_run_boot_ms() > MAX_SAMPLE_GAP_MS + 500
    });
    assert_eq!(left_alone.ledger().runs(), runs, "no health check runs without slurmctld");
    slurmctld.call("start");
    drained_in_the_end(run_by_hand, &jobs[1]);

    // Hung, before the other node's drain is due: the energy counter vouches for the hole, so its finding goes on,
    // but the hole does not count.
    assert!(left_alone.ledger().done(jobs[0].id, "drain").is_none());
    slurmctld.call("pause");
    by_hand_until_withheld_twice(left_alone, &jobs[0]);
    slurmctld.call("resume");
    drained_in_the_end(left_alone, &jobs[0]);
    let alerts = |a: &&Action| a.verdict == "alert";
    assert_eq!(left_alone.ledger().actions(jobs[0].id).iter().filter(alerts).count(), 1);
}

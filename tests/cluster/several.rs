//! Jobs on several nodes: all agree, by their drains, or nothing is ended. The nodes are run by hand too, between the
//! runs that slurmd starts, so that many cycles pass in little time.

use super::cost::requests;
use super::lab::{Lab, lease_all};
use super::node::{Job, Node, sbatch};
use super::settings::SOON;

/// So many cycles must change nothing.
const CYCLES: usize = 50;

/// A job over these nodes with every GPU of each, once all of it runs; its part on each.
fn submit_over(nodes: &[Node]) -> Vec<Job> {
    // Runs by hand are so close together that a counter read some milliseconds late would show any power.
    nodes.iter().for_each(Node::without_energy_counter);
    let names = nodes.iter().map(|n| n.name.as_str()).collect::<Vec<_>>().join(",");
    let count = format!("-N{}", nodes.len());
    let step = "exec srun --gres=gpu:4 sleep 3600";
    let id = sbatch(nodes[0].lab, &["-w", &names, &count, "--gres=gpu:4", "--uid=games", "--wrap", step]);
    nodes.iter().map(|node| node.running(id)).collect()
}

fn all_hung(nodes: &[Node], parts: &[Job]) {
    for (node, part) in nodes.iter().zip(parts) {
        node.show(&part.hung());
    }
}

/// So many runs on each of these nodes, side by side.
pub fn cycles(nodes: &[&Node], count: usize) {
    let before: Vec<i64> = nodes.iter().map(|node| node.ledger().runs()).collect();
    let each = format!("for i in $(seq {count}); do /usr/sbin/gpu-reaper-hc 2>&1; sleep 0.1; done");
    let calls = nodes.iter().map(|node| (node.lab, node.name.clone()));
    std::thread::scope(|scope| {
        for (lab, name) in calls {
            let each = &each;
            scope.spawn(move || by_hand(lab, &name, each));
        }
    });
    for (node, before) in nodes.iter().zip(before) {
        let ran = node.ledger().runs() - before;
        assert!(ran >= count as i64, "{}: {ran} runs", node.name);
    }
}

fn by_hand(lab: &Lab, node: &str, script: &str) {
    let named = format!("SLURMD_NODENAME={node}");
    let output =
        lab.tool(&["exec", "--node", node, "--", "env", "-i", &named, "PATH=/usr/bin", "sh", "-c", script]);
    assert!(output.status.success(), "{node}: {output:?}");
}

/// Updates of nodes that slurmctld was asked for so far.
pub fn updates(node: &Node) -> u64 {
    requests(node).get("REQUEST_UPDATE_NODE").copied().unwrap_or(0)
}

fn voted(node: &Node) -> bool {
    node.reason().contains(" st=cancel ")
}

/// Nobody has cancelled it, and all of it runs.
fn is_left_alone(nodes: &[Node], job: u32) {
    let state = nodes[0].slurm(&["squeue", "-h", "-j", &job.to_string(), "-o", "%T"]);
    assert_eq!(state, "RUNNING");
    for node in nodes {
        let actions = node.ledger().actions(job);
        assert!(actions.iter().all(|a| a.verdict != "cancel"), "{}: {actions:?}", node.name);
    }
}

/// All have voted: the first node cancels, once, and each releases its own drain.
fn is_cancelled_by_the_first(nodes: &[Node], parts: &[Job]) {
    let job = parts[0].id;
    nodes[0].wait_until("the cancel", || nodes[0].ledger().done(job, "cancel").is_some());
    for (node, part) in nodes.iter().zip(parts) {
        node.freed_by(part);
    }
    for (n, node) in nodes.iter().enumerate() {
        node.wait_until("the node is released", || node.standing().is_unused());
        let of = |verdict| node.ledger().actions(job).iter().filter(|a| a.verdict == verdict).count();
        assert_eq!(of("cancel"), usize::from(n == 0), "{}", node.name);
        assert_eq!(of("drain"), 1, "{}", node.name);
    }
}

/// slurmctld's rows as they are, one for each node, but for the time of the other nodes' reasons: so long cannot be waited
/// here.
const OF_LONG_AGO: &str = r#"#!/bin/sh
case "$*" in *NodeList*) ;; *) exec /usr/bin/sinfo "$@" ;; esac
/usr/bin/sinfo -N "$@" | /usr/bin/awk -v RS='\036\n' -v ORS='\036\n' -F'|' -v OFS='|' \
    '$1 != "node1" && $4 ~ /^[0-9]+$/ { $4 -= 960 } { print }'
"#;

/// All hang now, and the first node is shown votes of 16 minutes ago.
fn old_votes_are_none(nodes: &[Node], parts: &[Job], last: usize) {
    let (first, job) = (&nodes[0], parts[0].id);
    assert_eq!(first.name, "node1");
    first.slurm_commands_but(&SOON, "sinfo", OF_LONG_AGO);
    nodes[last].show(&parts[last].hung());
    first.wait_until("all have voted, and it is too long ago", || {
        nodes.iter().all(voted)
            && first
                .ledger()
                .withheld(job)
                .iter()
                .any(|w| w.verdict == "cancel" && w.because.contains(" old"))
    });
    cycles(&nodes.iter().collect::<Vec<_>>(), CYCLES / 5);
    is_left_alone(nodes, job);
    first.configure(&SOON);
}

#[test]
fn one_busy_node_of_four_keeps_the_job_until_it_hangs_too_and_then_the_first_cancels_once() {
    let Some(nodes) = lease_all(&SOON) else { return };
    let parts = submit_over(&nodes);
    let (job, busy) = (parts[0].id, &nodes[2]);
    let told = updates(busy);
    all_hung(&nodes, &parts);
    busy.show(&parts[2].busy());
    for node in nodes.iter().filter(|node| node.name != busy.name) {
        node.wait_until("a node that hangs votes", || voted(node));
    }
    let first = nodes[0].ledger().done(job, "drain").map(|a| a.run);
    assert!(first.is_some(), "the first node drained");
    cycles(&nodes.iter().collect::<Vec<_>>(), CYCLES);
    is_left_alone(&nodes, job);
    assert_eq!(busy.reason(), "", "a node at work drains nothing");
    assert_eq!(busy.ledger().findings(job), 0);
    assert_eq!(updates(busy) - told, 6, "a drain and a vote of three nodes, whatever the cycles");

    old_votes_are_none(&nodes, &parts, 2);
    is_cancelled_by_the_first(&nodes, &parts);
    assert_eq!(updates(busy) - told, 12, "of each of four nodes a drain, a vote and a release");
}

#[test]
fn a_job_at_work_on_its_first_node_drains_nothing_and_one_without_a_slurmd_is_never_cancelled() {
    let Some(nodes) = lease_all(&SOON) else { return };
    let parts = submit_over(&nodes);
    let (job, first, silent) = (parts[0].id, &nodes[0], &nodes[3]);
    let told = updates(first);
    all_hung(&nodes, &parts);
    first.show(&parts[0].busy());
    for node in &nodes[1..] {
        node.wait_until("a drain is withheld", || {
            node.ledger()
                .withheld(job)
                .iter()
                .any(|w| w.verdict == "drain" && w.because.contains("first node"))
        });
    }
    cycles(&nodes.iter().collect::<Vec<_>>(), CYCLES);
    is_left_alone(&nodes, job);
    assert_eq!(updates(first), told, "nobody is drained for a job that works on its first node");

    // Now it hangs there too, but one node has no slurmd, hence no runs.
    let slurmd = Slurmd::stopped(silent);
    first.show(&parts[0].hung());
    for node in &nodes[..3] {
        node.wait_until("a node that hangs votes", || voted(node));
    }
    cycles(&nodes[..3].iter().collect::<Vec<_>>(), CYCLES / 2);
    is_left_alone(&nodes, job);
    assert_eq!(silent.reason(), "");
    drop(slurmd);
    is_cancelled_by_the_first(&nodes, &parts);
}

/// A node's slurmd is stopped until this is dropped.
struct Slurmd<'a>(&'a Node);

impl<'a> Slurmd<'a> {
    fn stopped(node: &'a Node) -> Slurmd<'a> {
        assert!(node.lab.tool(&["stop", &node.name]).status.success());
        Slurmd(node)
    }
}

impl Drop for Slurmd<'_> {
    fn drop(&mut self) {
        let _ = self.0.lab.tool(&["start", &self.0.name]);
    }
}

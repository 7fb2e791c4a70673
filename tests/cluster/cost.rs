//! What a healthy node asks of slurmctld: nothing, after one question a boot.

use super::lab::lease_all;
use super::node::Node;
use super::settings::ENFORCE;
use std::collections::BTreeMap;

/// Requests to slurmctld so far by type, as sdiag counts them; without sdiag's own and what daemons report.
pub fn requests(node: &Node) -> BTreeMap<String, u64> {
    let text = node.slurm(&["sdiag"]);
    let (_, by_type) = text.split_once("statistics by message type").expect("sdiag's table of RPCs");
    let rows = by_type.lines().skip(1).take_while(|line| !line.contains("statistics by user"));
    rows.filter_map(|row| {
        let kind = row.split_whitespace().next()?;
        let (_, count) = row.split_once("count:")?;
        let asked = kind.starts_with("REQUEST_") && kind != "REQUEST_STATS_INFO";
        asked.then_some((kind.to_owned(), count.split_whitespace().next()?.parse().ok()?))
    })
    .collect()
}

#[test]
fn a_healthy_node_with_registered_jobs_asks_slurmctld_nothing_in_twenty_runs() {
    let Some(nodes) = lease_all(&ENFORCE) else {
        return;
    };
    let mut jobs = Vec::new();
    for node in nodes.iter() {
        let both = [node.submit(1), node.submit(2)];
        node.show(&[both[0].busy(), both[1].busy()].concat());
        jobs.push(both);
    }
    // Past warm-up, the jobs' start is over for slurmctld too, and every node has asked for drains left over.
    nodes.iter().for_each(|node| node.wait_for_runs(2));

    let ledger = nodes[0].ledger();
    let samples = || jobs[0].each_ref().map(|job| ledger.registration(job.id).map(|r| ledger.samples_of(r)));
    let (before, runs, sampled) = (requests(&nodes[0]), ledger.runs(), samples());
    nodes[0].wait_for_runs(6);
    while ledger.runs() < runs + 20 {
        assert!(nodes[0].health_check().status.success());
    }
    assert_eq!(requests(&nodes[0]), before);
    // One GPU and two, in each of twenty runs.
    let [one, two] =
        [samples()[0].zip(sampled[0]), samples()[1].zip(sampled[1])].map(|s| s.map(|(now, then)| now - then));
    assert!(one >= Some(20) && two >= Some(40), "its runs do sample: {one:?}, {two:?}");
}

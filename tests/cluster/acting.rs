//! What is done, in which order, and what is left alone although it could be done.

use super::lab::lease;
use super::node::{Job, Node};
use super::settings::ENFORCE;
use regex_lite::Regex;

#[test]
fn a_hung_job_that_holds_its_node_is_alerted_on_then_drained_then_cancelled_in_three_runs() {
    let Some(node) = lease(&ENFORCE) else { return };
    node.configure_with(&ENFORCE, "act: { notify_job: true }\n");
    let output = tempfile::NamedTempFile::new().expect("the job's output");
    let job = node.submit_with(4, &[&format!("--error={}", output.path().display())]);
    node.show(&job.hung());
    let before = node.standing();

    node.wait_until("the alert", || node.ledger().done(job.id, "alert").is_some());
    assert_eq!(node.standing(), before, "an alert changes nothing");
    let told = format!("gpu-reaper: job {}: hung on ", job.id);
    node.wait_until("the job's output is told", || {
        std::fs::read_to_string(output.path()).is_ok_and(|text| text.contains(&told))
    });
    let (status, text) = node.explain(job.id);
    assert_eq!(status, 0, "a finding\n{text}");
    let registration = node.ledger().registration(job.id).expect("registered");
    assert!(node.ledger().samples_of(registration) > 0);
    the_node_is_drained_with_our_reason(&node, &job);
    node.wait_until("the cancel", || node.ledger().done(job.id, "cancel").is_some());
    let runs = ["alert", "drain", "cancel"].map(|v| node.ledger().done(job.id, v).expect(v).run);
    assert!(runs[0] < runs[1] && runs[1] < runs[2], "each in a run of its own: {runs:?}");
    it_is_cleared_and_its_node_released(&node, &job, registration);
}

fn the_node_is_drained_with_our_reason(node: &Node, job: &Job) {
    node.wait_until("the drain", || node.ledger().done(job.id, "drain").is_some());
    let written = node.ledger().done(job.id, "drain").and_then(|a| a.reason).expect("a drain has a reason");
    assert_eq!(node.reason(), written);
    let form = format!(
        r"^gpu-reaper: job={} run=\d+\.0 sig=hung st=drain since=\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ$",
        job.id
    );
    assert!(Regex::new(&form).expect("a pattern").is_match(&written), "{written}");
    let state = node.standing().sinfo;
    assert!(state.starts_with("draining ") || state.starts_with("drained "), "{state}");
}

fn it_is_cleared_and_its_node_released(node: &Node, job: &Job, registration: i64) {
    let last = node.ledger().last_run();
    node.freed_by(job);
    node.wait_until("the Epilog cleared it", || node.ledger().registration(job.id).is_none());
    assert_eq!(node.ledger().samples_of(registration), 0);
    assert_eq!(node.ledger().case_files(job.id), 1);
    let (status, text) = node.explain(job.id);
    assert_eq!(status, 15, "ended, with a case file\n{text}");
    node.wait_until("the node is released", || node.standing().is_unused());
    assert!(node.ledger().last_run() >= last + 2, "released only after two runs agreed");
    for verdict in ["alert", "drain", "cancel"] {
        let kept = node.ledger().actions(job.id).iter().any(|a| a.verdict == verdict);
        assert!(kept, "the {verdict} outlives the Epilog");
    }
}

#[test]
fn an_administrators_drain_stays_untouched() {
    let Some(node) = lease(&ENFORCE) else { return };
    let job = node.submit(4);
    node.show(&job.hung());
    let reason = "fan 3 dead, ticket 4711";
    node.slurm(&[
        "scontrol",
        "update",
        &format!("nodename={}", node.name),
        "state=drain",
        &format!("reason={reason}"),
    ]);
    let before = node.standing();

    node.wait_until("a drain is due, and withheld", || {
        node.ledger().withheld(job.id).iter().any(|w| w.verdict == "drain")
    });
    // The cancel stage passes too: without a drain of ours there is no cancel.
    node.nothing_happens(4, &before);
    assert_eq!(node.reason(), reason);
    assert!(node.ledger().actions(job.id).iter().all(|a| a.verdict == "alert"));

    node.cancel(&job);
    node.wait_until("the Epilog cleared it", || node.ledger().registration(job.id).is_none());
    node.wait_for_runs(3);
    assert_eq!(node.reason(), reason, "nor is it lifted when the job has ended");
}

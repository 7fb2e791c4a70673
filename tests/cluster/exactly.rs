//! Ended is exactly what was judged: one task and not its array, no component of a heterogeneous job, and no run that
//! began after the decision.

use super::lab::{lease, lease_some};
use super::node::{Job, Node, sbatch};
use super::settings::{SOON, Settings};
use super::several::cycles;
use std::os::unix::fs::PermissionsExt;

fn squeue(node: &Node, job: u32, format: &str) -> String {
    node.slurm(&["squeue", "-h", "-r", "-j", &job.to_string(), "-o", format])
}

#[test]
fn of_an_array_only_the_task_that_hangs_is_cancelled_also_the_one_that_has_the_arrays_id() {
    let Some(nodes) = lease_some(2, &SOON) else { return };
    let all = nodes[0].slurm(&["sinfo", "-h", "-N", "-o", "%N"]);
    let others: Vec<&str> = all.lines().filter(|name| nodes.iter().all(|node| node.name != *name)).collect();
    let exclude = format!("--exclude={}", others.join(","));
    let options = ["--array=1-2", "--gres=gpu:4", "--uid=games", &exclude, "--wrap", "exec sleep 3600"];
    let array = sbatch(nodes[0].lab, &options);
    let mut rows = String::new();
    nodes[0].wait_until("both tasks run", || {
        rows = squeue(&nodes[0], array, "%A %F_%K %N %T");
        rows.matches("RUNNING").count() == 2
    });
    // The last task has the id of the array as its own: `scancel ID` would end both.
    let mut tasks: Vec<(&Node, Job)> = rows.lines().map(|row| task(&nodes, row)).collect();
    tasks.sort_by_key(|(_, job)| job.id != array);
    let [(node, hung), (other, busy)] = &tasks[..] else { panic!("{rows}") };
    assert_eq!(hung.id, array, "{rows}");
    node.show(&hung.hung());
    other.show(&busy.busy());
    node.wait_until("the cancel", || node.ledger().done(hung.id, "cancel").is_some());
    node.freed_by(hung);
    node.wait_until("the node is released", || node.standing().is_unused());
    cycles(&[other], 3);
    assert_eq!(squeue(other, busy.id, "%T"), "RUNNING");
    assert_eq!(other.ledger().findings(busy.id), 0);
    assert_eq!(other.reason(), "");
}

fn task<'a>(nodes: &'a [Node], row: &str) -> (&'a Node, Job) {
    let words: Vec<&str> = row.split(' ').collect();
    let node = nodes.iter().find(|node| node.name == words[2]).expect("a node on lease");
    (node, node.running(words[0].parse().expect("a raw id")))
}

#[test]
fn of_a_heterogeneous_job_no_component_is_drained_for_or_cancelled() {
    let Some(nodes) = lease_some(2, &SOON) else { return };
    let [one, other] = &nodes[..] else { panic!("two nodes") };
    let step = "exec srun --het-group=0,1 --gres=gpu:4 sleep 3600";
    let component = ["-N1", "--gres=gpu:4", "-w"];
    let options = [&component[..], &[&one.name, "--wrap", step, ":"], &component, &[&other.name]].concat();
    let id = sbatch(one.lab, &options);
    let parts = [one.running(id), other.running(id + 1)];
    let before = nodes.iter().zip(&parts).map(|(node, part)| {
        node.show(&part.hung());
        node.standing()
    });
    let before: Vec<_> = before.collect();
    for (node, part) in nodes.iter().zip(&parts) {
        node.wait_until("the alert", || node.ledger().done(part.id, "alert").is_some());
    }
    for (node, before) in nodes.iter().zip(&before) {
        node.nothing_happens(4, before);
    }
    for (node, part) in nodes.iter().zip(&parts) {
        assert!(node.ledger().actions(part.id).iter().all(|a| a.verdict == "alert"));
        let (_, text) = node.explain(part.id);
        assert!(text.contains("heterogeneous"), "{text}");
    }
}

#[test]
fn a_batch_job_is_warned_and_requeued_once_and_cancelled_when_it_hangs_again() {
    let Some(node) = lease(&SOON) else { return };
    node.configure_with(&SOON, "act: { terminate: requeue, warn: USR1@5s }\n");
    let heard = node.lab.dir.join(format!("heard.{}", node.name));
    std::fs::write(&heard, "").expect("a file for the job");
    std::fs::set_permissions(&heard, PermissionsExt::from_mode(0o666)).expect("its rights");
    let script = format!(
        "trap 'echo USR1 >>{}' USR1; (trap '' USR1; exec sleep 3600) & while kill -0 $!; do wait $!; done",
        heard.display()
    );
    let options = ["--requeue", "-w", &node.name, "--gres=gpu:4", "--uid=games", "--wrap", &script];
    let job = node.running(sbatch(node.lab, &options));
    node.show(&job.hung());
    let (id, ended) = (job.id.to_string(), |deed: &str| node.ledger().done(job.id, deed));
    node.wait_until("the requeue", || ended("requeue").is_some());
    let (warned, requeued) = (ended("warn").expect("the warning"), ended("requeue").expect("the requeue"));
    assert!(warned.run < requeued.run, "{warned:?} {requeued:?}");
    assert_eq!(std::fs::read_to_string(&heard).expect("what it heard"), "USR1\n");
    node.freed_by(&job);
    node.wait_until("the node is released", || node.standing().sinfo.starts_with("up "));
    node.wait_until("it waits for its next run", || squeue(&node, job.id, "%T") == "PENDING");
    assert!(node.slurm(&["scontrol", "show", "job", &id]).contains("requeueing"), "in its AdminComment");

    node.slurm(&["scontrol", "update", &format!("jobid={id}"), "starttime=now"]);
    let again = node.running(job.id);
    node.show(&again.hung());
    node.wait_until("the cancel", || ended("cancel").is_some());
    node.freed_by(&again);
    node.wait_until("the node is released", || node.standing().is_unused());
    let requeues = node.ledger().actions(job.id).iter().filter(|a| a.verdict == "requeue").count();
    assert_eq!(requeues, 1);
}

#[test]
fn a_job_requeued_right_before_scancel_runs_is_not_cancelled() {
    let Some(node) = lease(&Settings { warmup: "3s", ..SOON }) else { return };
    let script =
        "#!/bin/sh\nfor id; do :; done\n/usr/bin/scontrol requeue \"$id\"\nexec /usr/bin/scancel \"$@\"\n";
    node.slurm_commands_but(&SOON, "scancel", script);
    let job = node.submit(4);
    node.show(&job.hung());
    node.wait_until("the cancel is told", || {
        node.ledger().actions(job.id).iter().any(|a| a.verdict == "cancel" && a.outcome != "begun")
    });
    node.freed_by(&job);
    let id = job.id.to_string();
    node.wait_until("it waits for its next run", || {
        node.slurm(&["squeue", "-h", "-j", &id, "-o", "%T"]) == "PENDING"
    });
    node.wait_until("the node is released", || node.standing().sinfo.starts_with("up "));
    let shown = node.slurm(&["scontrol", "show", "job", &id]);
    assert!(shown.contains("JobState=PENDING") && shown.contains("Restarts=1"), "{shown}");
    let cancels = node.ledger().actions(job.id).iter().filter(|a| a.verdict == "cancel").count();
    assert_eq!(cancels, 1);
    node.slurm(&["scancel", &id]);
}

//! `slurm.source: rest`: jobs and nodes by a real slurmrestd, deeds by the commands. Where slurmrestd is away, or
//! refuses us, nothing is done, though the commands would answer.

use super::lab::{Lab, lease};
use super::node::{Job, Node};
use super::settings::ENFORCE;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

/// Runs until dropped.
struct Slurmrestd(&'static Lab);

impl Slurmrestd {
    fn call(&self, what: &str) {
        let output = self.0.tool(&[what, "slurmrestd"]);
        assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Slurmrestd {
    fn drop(&mut self) {
        let _ = self.0.tool(&["stop", "slurmrestd"]);
    }
}

/// Lays the node's token, readable by its owner alone.
fn lay_token(node: &Node, token: &str) {
    let path = node.folder("etc").join("token");
    fs::write(&path, token).expect("a token file");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("a private token file");
}

/// Two runs more in which the drain was due and withheld for this; the node and its job stay as they were.
fn withheld_twice(node: &Node, job: &Job, because: &str) {
    let count = || {
        let withheld = node.ledger().withheld(job.id);
        withheld.iter().filter(|w| w.because.contains(because)).map(|w| w.count).sum::<i64>()
    };
    let before = (count(), node.standing());
    node.wait_until(&format!("withheld in two runs: {because}"), || count() >= before.0 + 2);
    assert_eq!(node.standing(), before.1);
    assert!(node.ledger().actions(job.id).iter().all(|a| a.verdict == "alert"));
}

#[test]
fn with_slurmrestd_as_the_source_all_is_done_and_without_it_nothing() {
    let Some(node) = lease(&ENFORCE) else { return };
    let slurmrestd = Slurmrestd(node.lab);
    slurmrestd.call("start");
    // A plain user's token: what needs more goes through the commands.
    let token = node.slurm(&["scontrol", "token", "username=games", "lifespan=3600"]);
    lay_token(&node, &token);
    let socket = node.lab.dir.join("run/rest/sock");
    let slurm = format!(
        "slurm: {{ source: rest, rest_url: \"unix:{}\", username: games, token_file: /etc/gpu-reaper-hc/token }}\n",
        socket.display()
    );
    node.configure_with(&ENFORCE, &slurm);
    let job = node.submit(4);
    node.show(&job.hung());
    node.wait_until("the alert", || node.ledger().done(job.id, "alert").is_some());

    lay_token(&node, &format!("{}x", token.trim_end()));
    withheld_twice(&node, &job, "slurmrestd: ");
    fs::set_permissions(node.folder("etc").join("token"), Permissions::from_mode(0o644)).expect("a chmod");
    withheld_twice(&node, &job, "can be read or written by others (mode 0644)");
    lay_token(&node, &token);
    slurmrestd.call("stop");
    withheld_twice(&node, &job, "slurmrestd: not asked: ");
    let told = fs::read_to_string(node.lab.dir.join("log").join(format!("slurmd.{}.log", node.name)));
    let secret = token.trim_start_matches("SLURM_JWT=").trim_end();
    assert!(!told.expect("slurmd's log").contains(secret), "a token in slurmd's log");

    slurmrestd.call("start");
    node.wait_until("the drain", || node.ledger().done(job.id, "drain").is_some());
    assert_eq!(Some(node.reason()), node.ledger().done(job.id, "drain").and_then(|a| a.reason));
    node.wait_until("the cancel", || node.ledger().done(job.id, "cancel").is_some());
    node.freed_by(&job);
    node.wait_until("the node is released", || node.standing().is_unused());
}

//! Jobs that look hung and must be left alone: so many runs pass that the whole ladder would have been climbed,
//! nothing happens, and `--explain` says why.

use super::lab::lease;
use super::node::{Job, Node, Standing};
use super::settings::{ENFORCE, MAX_SAMPLE_GAP_MS, RUNS_TO_CANCEL, Settings};
use std::fs::{self, File};
use std::time::Duration;

const NOT_JUDGED: i32 = 12;
const EXEMPT: i32 = 11;

fn never_touched(node: &Node, job: &Job, before: &Standing, status: i32, word: &str) {
    node.nothing_happens(RUNS_TO_CANCEL, before);
    assert_eq!(node.ledger().findings(job.id), 0);
    assert_eq!(node.ledger().actions(job.id), []);
    explained(node, job.id, status, word);
}

fn explained(node: &Node, job: u32, status: i32, word: &str) {
    let (found, text) = node.explain(job);
    assert_eq!(found, status, "{text}");
    assert!(text.to_lowercase().contains(word), "no `{word}` in:\n{text}");
}

#[test]
fn a_job_in_its_warm_up_is_not_judged() {
    let Some(node) = lease(&Settings { warmup: "20m", ..ENFORCE }) else {
        return;
    };
    let job = node.submit(4);
    node.show(&job.hung());
    never_touched(&node, &job, &node.standing(), NOT_JUDGED, "warm-up");
}

#[test]
fn a_job_of_an_exempt_user_is_left_alone() {
    let Some(node) = lease(&Settings { exempt_users: "news", ..ENFORCE }) else {
        return;
    };
    let job = node.submit_as("news", 4);
    node.show(&job.hung());
    never_touched(&node, &job, &node.standing(), EXEMPT, "exempt");
}

#[test]
fn a_suspended_job_is_not_judged() {
    let Some(node) = lease(&ENFORCE) else { return };
    let job = node.submit(4);
    node.show(&job.hung());
    node.slurm(&["scontrol", "suspend", &job.id.to_string()]);
    let before = node.standing();
    assert!(before.squeue.contains("SUSPENDED"), "{before:?}");
    never_touched(&node, &job, &before, NOT_JUDGED, "frozen");

    // It goes on: a window of its own before anything is said.
    node.slurm(&["scontrol", "resume", &job.id.to_string()]);
    node.wait_for_runs(2);
    assert_eq!(node.ledger().findings(job.id), 0);
    node.wait_until("it is found", || node.ledger().done(job.id, "alert").is_some());
}

#[test]
fn a_requeued_job_is_a_new_run_with_new_clocks() {
    let Some(node) = lease(&ENFORCE) else { return };
    let job = node.submit(4);
    node.show(&job.hung());
    node.wait_until("the first run of it is found", || node.ledger().done(job.id, "alert").is_some());

    let (id, first) = (job.id.to_string(), node.ledger().registration(job.id));
    node.slurm(&["scontrol", "requeue", &id]);
    node.freed_by(&job);
    node.wait_until("it is pending again", || {
        node.slurm(&["squeue", "-h", "-j", &id, "-o", "%T"]) == "PENDING"
    });
    // Slurm holds a requeued job back for two minutes (the life of its credential): not what this is about.
    node.slurm(&["scontrol", "update", &format!("jobid={id}"), "starttime=now"]);
    let again = node.running(job.id);
    assert_ne!(again.pid, job.pid);
    node.show(&again.hung());
    let (before, done) = (node.standing(), node.ledger().actions(job.id));

    // By the first run's clocks a drain is due within two runs; by its own, nothing is for a window.
    node.nothing_happens(3, &before);
    let second = node.ledger().registration(job.id);
    assert!(second.is_some() && second != first, "{first:?}, then {second:?}");
    assert_eq!(node.ledger().actions(job.id), done);
    explained(&node, job.id, NOT_JUDGED, "window");
}

#[test]
fn a_hole_that_nothing_speaks_for_is_not_idleness() {
    let Some(node) = lease(&ENFORCE) else {
        return;
    };
    node.without_energy_counter();
    let job = node.submit(4);
    node.show(&job.hung());
    node.wait_until("it is found", || node.ledger().done(job.id, "alert").is_some());
    let before = node.standing();

    // Runs that find the lock held leave at once and sample nothing.
    let lock = File::open(node.state().join("run.lock")).expect("the run lock");
    lock.lock().expect("the run lock, held");
    let runs = node.ledger().runs();
    // A run waits a second for the lock, and its sample is of the moment when it began.
    node.wait_until("the hole is longer than any allowed gap", || {
        uptime_ms() - node.ledger().last_run_boot_ms() > MAX_SAMPLE_GAP_MS + 1_700
    });
    assert_eq!(node.ledger().runs(), runs, "no run got past the lock");
    drop(lock);

    node.wait_for_runs(1);
    explained(&node, job.id, NOT_JUDGED, "hole");
    // By the old clock the drain is due, the hole counted or not.
    node.nothing_happens(2, &before);
    assert!(node.ledger().actions(job.id).iter().all(|a| a.verdict == "alert"));
}

/// CLOCK_BOOTTIME in milliseconds, as the ledger has it.
pub fn uptime_ms() -> i64 {
    let text = fs::read_to_string("/proc/uptime").expect("/proc/uptime");
    let seconds: f64 = text.split(' ').next().and_then(|s| s.parse().ok()).expect("seconds since boot");
    Duration::from_secs_f64(seconds).as_millis() as i64
}

//! Whose a process is, by the cgroup that this Slurm gave it, and never by asking slurmctld.

use super::lab::lease;
use super::settings::{ENFORCE, OBSERVE, RUNS_TO_CANCEL};
use super::stand_in::Look;
use std::process::{Child, Command};

/// A process in no cgroup of Slurm's, as a container has it that a daemon started.
struct Outsider(Child);

impl Outsider {
    fn start() -> Outsider {
        Outsider(Command::new("/bin/sleep").arg("600").spawn().expect("sleep"))
    }
}

impl Drop for Outsider {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn processes_on_each_others_gpus_make_both_jobs_uncertain() {
    let Some(node) = lease(&ENFORCE) else { return };
    let (one, other) = (node.submit(2), node.submit(2));
    node.show(&[one.busy(), other.busy()].concat());
    for job in [&one, &other] {
        node.wait_until("each process is its own job's", || {
            let registered = node.ledger().registration(job.id);
            registered.is_some() && node.ledger().registration_of_process(job.pid) == registered
        });
        let registered = node.ledger().registration(job.id).expect("just seen");
        assert!(node.ledger().looks_beside(registered) > 0, "its cgroup is read");
    }
    let swapped = |gpus: &[usize], pid| gpus.iter().map(|&gpu| (gpu, Look::Hung(pid))).collect::<Vec<_>>();
    node.show(&[swapped(&one.gpus, other.pid), swapped(&other.gpus, one.pid)].concat());
    let before = node.standing();
    node.nothing_happens(RUNS_TO_CANCEL, &before);
    for job in [&one, &other] {
        assert_eq!(node.ledger().findings(job.id), 0);
        let (status, text) = node.explain(job.id);
        assert_eq!(status, 12, "not judged\n{text}");
    }
}

#[test]
fn a_process_outside_of_slurm_on_a_jobs_gpu_counts_for_the_job_and_contradicts_nobody() {
    let Some(node) = lease(&OBSERVE) else { return };
    let (job, outsider) = (node.submit(4), Outsider::start());
    let pid = outsider.0.id();
    node.show(&job.gpus.iter().map(|&gpu| (gpu, Look::Hung(pid))).collect::<Vec<_>>());
    node.wait_until("the job is found, hung", || node.ledger().done(job.id, "alert").is_some());
    assert_eq!(node.ledger().registration_of_process(pid), None, "weakly, not by its cgroup");
    let (status, text) = node.explain(job.id);
    assert_eq!(status, 0, "a finding\n{text}");
    assert!(text.contains("hung"), "{text}");
}

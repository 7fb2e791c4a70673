//! The whole ladder through the real program, its times shortened to seconds: what a job's owner and an
//! administrator can read afterwards, and what a refusal does to it.

use crate::slurm::{Cluster, install};
use crate::*;
use gpu_reaper_hc::explain::Answer;
use gpu_reaper_hc::model::{JobId, Outcome, Verdict};
use gpu_reaper_hc::scenarios::file::Scenario;
use gpu_reaper_hc::scenarios::stage::Stage;
use regex_lite::Regex;
use serde_json::Value;

pub const SECONDS: &str = "
mode: enforce
gpu: { library: LIBRARY }
slurm: { COMMANDS }
thresholds: { window: 4s, warmup: 0s, first_activity_grace: 0s, min_samples: 3, max_sample_gap: 2s }
stages: [{ after: 0s, verdict: alert }, { after: 0s, verdict: drain }, { after: 0s, verdict: cancel }]
exemptions: { name_pattern: '^debug-' }
limits: { spread: 0s, max_drained_fraction: 1.0, max_actions_per_hour: 100 }
";
const HOSTILE: &str = "x\nState=DOWN Reason=\"forged\" \u{1b}[2J = ' \" debug-";

/// Runs until the ledger holds that deed of job 4242; everything that was said on the way.
pub fn run_until(cluster: &Cluster, verdict: &str) -> String {
    let mut said = String::new();
    let done = format!("SELECT count(*) FROM action WHERE verdict = '{verdict}' AND outcome = 'done'");
    for _ in 0..400 {
        let run = cluster.node.health_check();
        assert_eq!(run.status, Some(0), "{run:?}");
        said += &run.err;
        if cluster.node.ledger(&done) != "0" {
            return said;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("no {verdict}: {said}\n{}", cluster.node.call(&["--explain", "4242"]).out)
}

fn plain(text: &str) -> bool {
    text.bytes().all(|b| b == b'\n' || (0x20..0x7f).contains(&b))
}

#[test]
fn a_cancelled_jobs_owner_can_read_why_then_and_afterwards() {
    // ArjunaCluster/ArjunaUsers#134 (FP-13): jobs died with no reason anywhere.
    let cluster = Cluster::new(SECONDS);
    cluster.job(4242, "4240_2", HOSTILE);
    assert_eq!(cluster.prolog(4242, &[("SLURM_JOB_USER", HOSTILE)]).err, "");
    let mut said = run_until(&cluster, "alert");
    assert_eq!(cluster.read("node.reason"), "none", "an alert changes nothing");
    said += &run_until(&cluster, "drain");
    // aws/aws-parallelcluster-node#639 (ND-10): one line, ids only, whatever the job calls itself.
    // mej/nhc commit 95b4c9e (ND-07): DRAIN and nothing else.
    let reason = cluster.read("node.reason");
    let form = r"^gpu-reaper: job=4242 run=\d+\.0 sig=hung st=drain since=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$";
    assert!(Regex::new(form).unwrap().is_match(&reason), "{reason}");
    assert_eq!(cluster.read("node.state"), "allocated+drain");
    let page = cluster.node.call(&["--explain", "4240_2"]);
    // On a slow machine the newest sample may be older than so short a window allows: not judged, and as well found.
    assert!(matches!(page.status, Some(0 | 12)), "found as Slurm shows it: {page:?}");
    // meziantou/Meziantou.Framework#2899 (LG-05)
    assert!(page.out.contains("name      x\\nState=DOWN") && plain(&page.out), "{page:?}");
    said += &run_until(&cluster, "cancel");
    assert!(plain(&said), "{said}");
    assert_eq!(cluster.read("jobs/4242.state"), "COMPLETING");
    let comment = cluster.read("jobs/4242.comment");
    assert!(
        comment.starts_with("gpu-reaper: cancelling 20") && comment.contains("hung on 1 GPUs"),
        "{comment}"
    );
    assert!(comment.ends_with("ask: gpu-reaper-hc --explain 4242") && plain(&comment), "{comment}");
    let changes: Vec<String> =
        cluster.calls().into_iter().filter(|c| c.contains(" update ") || c.starts_with("scancel")).collect();
    let [drain, admin_comment, scancel] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(drain, &format!("scontrol update NodeName=n1 State=DRAIN Reason={reason}"));
    assert!(admin_comment.starts_with("scontrol update JobId=4240_2 AdminComment="), "{admin_comment}");
    assert_eq!(scancel, "scancel --state=RUNNING --nodelist=n1 --user=ada 4240_2");
    afterwards(&cluster, &reason);
}

#[test]
fn whoever_cannot_be_told_that_a_finding_is_over_keeps_no_job_from_being_cleared() {
    // mknoxnv/ubuntu-slurm#4 (PE-08)
    let cluster = Cluster::new(&format!("{SECONDS}slack: {{ webhook_file: /nonexistent/webhook }}\n"));
    cluster.job(4242, "4242", "train");
    assert_eq!(cluster.prolog(4242, &[]).err, "");
    run_until(&cluster, "alert");
    let ledger = rusqlite::Connection::open(cluster.node.state().join("ledger.db")).unwrap();
    ledger.execute_batch("DROP TABLE outbox").unwrap();
    let said = cluster.node.hook("epilog", "4242", &[("SLURM_JOB_GPUS", "0")]);
    assert_eq!(said.status, Some(0), "{said:?}");
    assert!(said.err.contains("who was told of its finding is not told that it is over"), "{said:?}");
    assert_eq!(cluster.node.ledger("SELECT closed_how FROM job_run"), "ended");
}

#[test]
fn a_job_requeued_between_look_and_cancel_is_not_cancelled() {
    let cluster = Cluster::new(SECONDS);
    cluster.job(4242, "4242", "train");
    assert_eq!(cluster.prolog(4242, &[]).err, "");
    run_until(&cluster, "drain");
    // It is requeued while its AdminComment is written: after every other look.
    let (bin, real) = (cluster.node.path("bin/scontrol"), cluster.node.path("real"));
    fs::create_dir(&real).unwrap();
    fs::rename(&bin, real.join("scontrol")).unwrap();
    let requeue = format!("printf PENDING >{}/cluster/jobs/4242.state", cluster.node.path("").display());
    let text = format!(
        "#!/bin/sh\ncase $* in *AdminComment=*) {requeue} ;; esac\nexec {}/scontrol \"$@\"\n",
        real.display()
    );
    install(&bin, &text);
    let failed = "SELECT detail FROM action WHERE verdict = 'cancel' AND outcome = 'failed'";
    for _ in 0..100 {
        assert_eq!(cluster.node.health_check().status, Some(0));
        if cluster.read("jobs/4242.state") == "PENDING" {
            break;
        }
    }
    assert_eq!(cluster.node.ledger(failed), "not asked for: Slurm says the job is pending");
    assert_eq!(cluster.read("jobs/4242.state"), "PENDING");
    assert!(!cluster.calls().iter().any(|c| c.starts_with("scancel")), "{:?}", cluster.calls());
    assert!(!cluster.read("jobs/4242.comment").contains("cancelled"));
}

#[test]
fn a_drain_that_nobody_will_lift_is_told_once() {
    let observe = SECONDS.replace("mode: enforce", "mode: observe");
    let never = format!("{SECONDS}act: {{ release: never }}\n");
    let ways = [("mode is observe", observe.as_str()), ("`act.release` is never", never.as_str())];
    for (why, config) in ways {
        let cluster = Cluster::new(SECONDS);
        cluster.job(4242, "4242", "train");
        assert_eq!(cluster.prolog(4242, &[]).err, "");
        run_until(&cluster, "drain");
        assert_eq!(cluster.node.hook("epilog", "4242", &[("SLURM_JOB_GPUS", "0")]).status, Some(0));
        cluster.write("jobs/4242.state", "COMPLETED");
        cluster.configure(config);
        let said: Vec<String> = (0..3).map(|_| cluster.node.health_check().err).collect();
        let told = format!(
            "our drain for job 4242 stays: {why}; to lift it: `gpu-reaper-hc release` there, or `scontrol update \
             nodename=n1 state=undrain`"
        );
        assert!(said[0].contains(&told), "{said:?}");
        assert!(!said[1..].iter().any(|s| s.contains("our drain")), "{said:?}");
        assert_eq!(cluster.node.ledger("SELECT detail FROM fault WHERE kind = 'drain'"), why);
        assert_eq!(cluster.read("node.state"), "allocated+drain");
    }
}

/// The Epilog came: everything is still there to be read.
fn afterwards(cluster: &Cluster, reason: &str) {
    assert_eq!(cluster.node.hook("epilog", "4242", &[("SLURM_JOB_GPUS", "0")]).status, Some(0));
    assert_eq!(cluster.node.ledger("SELECT closed_how FROM job_run"), "ended");
    for id in ["4242", "4240_2"] {
        let told = cluster.node.call(&["--explain", id]);
        assert_eq!(told.status, Some(15), "{told:?}");
        for words in ["as it stood then:", "alert 20", "drain 20", "cancel 20", reason] {
            assert!(told.words().contains(words), "{words}: {}", told.out);
        }
        assert!(plain(&told.out), "{told:?}");
    }
    let page: Value = serde_json::from_str(&cluster.node.call(&["--explain", "4242", "--json"]).out).unwrap();
    assert_eq!((&page["schema"], &page["judgement"]), (&1.into(), &"ended".into()));
    assert_eq!(page["case_file"]["done"], serde_json::json!(["alert", "drain", "cancel"]));
}

#[test]
fn a_drain_that_slurm_refuses_is_tried_ever_more_rarely_and_leads_nowhere() {
    // aws/aws-parallelcluster#2467, radical-cybertools/radical.saga#106 (CT-07): some tools believed in it.
    let text =
        include_str!("../../fixtures/scenarios/a-refused-drain-does-not-advance-the-ladder/scenario.yaml");
    let scenario = Scenario::parse(text).unwrap();
    let mut stage = Stage::set(&scenario).unwrap();
    for at_ms in scenario.runs() {
        stage.run_at(at_ms).unwrap();
    }
    let Ok(Answer::Told(told)) = stage.explain(JobId::new(4242).unwrap()) else { panic!("registered") };
    let of = |verdict: Verdict| told.actions.iter().filter(move |a| a.deed == verdict.into());
    assert_eq!(of(Verdict::Alert).count(), 1, "one alert, not one a run");
    assert_eq!(of(Verdict::Cancel).count(), 0);
    assert!(of(Verdict::Drain).all(|a| a.outcome == Outcome::Failed && a.detail.contains("Invalid user id")));
    let tried: Vec<i64> = of(Verdict::Drain).map(|a| a.wall.0 / 60_000).collect();
    let waits: Vec<i64> = tried.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits.len() >= 3, "{waits:?}");
    for (wait, least) in waits.iter().zip([1, 5, 30, 30, 30]) {
        assert!(*wait >= least && *wait <= least + 1, "after 1, then 5, then every 30 minutes: {waits:?}");
    }
}

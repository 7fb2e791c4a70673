//! What becomes of our own drains, through the real program: released, kept, orphaned, lifted by hand.

use crate::slurm::{Cluster, START_S};
use crate::*;

/// The driver's only GPU at rest, nothing on it.
fn free() -> String {
    let node = fake_nvml::node(1);
    let without: Vec<&str> = node.lines().filter(|line| !line.trim().starts_with("proc ")).collect();
    let rest = format!("nvmlDeviceGetMemoryInfo_v2 = {} 0 0", fake_nvml::TOTAL_BYTES);
    format!("{}\n{rest}\nnvmlDeviceGetTotalEnergyConsumption ! 3\n", without.join("\n"))
}

const CONFIG: &str = "
mode: enforce
gpu: { library: LIBRARY }
slurm: { COMMANDS }
limits: { spread: 0s }
";

const SET: &str = "our drain for job 4242";

fn reason(job: u32) -> String {
    format!("gpu-reaper: job={job} run={START_S}.0 sig=hung st=drain since=2026-11-29T13:25:38Z")
}

/// A node on which job 4242 was registered by its Prolog and drained for.
fn drained(config: &str) -> Cluster {
    let cluster = Cluster::new(config);
    cluster.show(&free());
    cluster.job(4242, "4242", "train");
    assert_eq!(cluster.prolog(4242, &[]).err, "");
    assert_eq!(cluster.node.health_check().status, Some(0));
    let drain = format!(
        "INSERT INTO action (verdict, node, job_id, restart, start_wall_ms, job_run, boot, boottime_ms, run, wall_ms,
             signature, seen_before, reason, outcome, detail, counted_again_run)
         SELECT 'drain', 'n1', job_id, 0, start_wall_ms, j.id, j.boot, boottime_ms, r.id, wall_ms, 'hung', '', '{}',
             'done', '', r.id FROM job_run j, run r",
        reason(4242)
    );
    cluster.change(&drain);
    cluster.write("node.state", "allocated+drain");
    cluster.write("node.reason", &reason(4242));
    cluster
}

fn ended(cluster: &Cluster) {
    cluster.write("jobs/4242.state", "COMPLETED");
    cluster.write("node.state", "idle+drain");
}

/// What some runs said, and whether the drain is gone after each.
fn runs(cluster: &Cluster, count: usize) -> Vec<(String, bool)> {
    let run = |_| {
        let said = cluster.node.health_check();
        assert_eq!(said.status, Some(0), "{said:?}");
        (said.err, !cluster.read("node.state").contains("drain"))
    };
    (0..count).map(run).collect()
}

#[test]
fn a_drain_is_lifted_by_the_second_run_after_its_jobs_epilog() {
    let cluster = drained(CONFIG);
    ended(&cluster);
    assert_eq!(cluster.node.hook("epilog", "4242", &[("SLURM_JOB_GPUS", "0")]).status, Some(0));
    let said = runs(&cluster, 2);
    assert!(!said[0].1 && said[1].1, "{said:?}");
    assert!(said[1].0.contains(&format!("{SET} is lifted")), "{said:?}");
    assert_eq!(cluster.node.ledger("SELECT outcome FROM action"), "released");
}

/// Two GPUs: job 4242's, which is `/dev/nvidia0`, is free; the other one's job is at work.
fn beside_a_neighbour(cluster: &Cluster) {
    let node = fake_nvml::node(2);
    let (work, own) = node.split_once("gpu 1").unwrap();
    let own: Vec<&str> = own.lines().filter(|line| !line.trim().starts_with("proc ")).collect();
    let rest = format!("nvmlDeviceGetMemoryInfo_v2 = {} 0 0", fake_nvml::TOTAL_BYTES);
    cluster.show(&format!(
        "{work}nvmlDeviceGetUtilizationRates = 97 40\ngpu 1{}\n{rest}\nnvmlDeviceGetTotalEnergyConsumption ! 3\n",
        own.join("\n")
    ));
    fs::write(cluster.node.path("etc/gres.conf"), "AutoDetect=off\nName=gpu File=/dev/nvidia[0-1]\n")
        .unwrap();
    cluster.job(4300, "4300", "train");
    assert_eq!(cluster.prolog(4300, &[("SLURM_JOB_GPUS", "1")]).err, "");
}

#[test]
fn a_neighbour_at_work_keeps_no_drain() {
    // ROCm/spur#836 (ND-11): busy GPUs of other jobs were a 'possible hang' after any job had ended.
    for epilog_of in ["4242", "4300"] {
        let cluster = drained(CONFIG);
        beside_a_neighbour(&cluster);
        // A run that sees the cards as they are numbered now.
        cluster.node.health_check();
        ended(&cluster);
        assert_eq!(cluster.node.hook("epilog", epilog_of, &[("SLURM_JOB_GPUS", "0")]).status, Some(0));
        let said = runs(&cluster, 2);
        assert_eq!(said[1].1, epilog_of == "4242", "after the Epilog of {epilog_of}: {said:?}");
    }
}

#[test]
fn a_drain_stays_after_an_epilog_that_failed() {
    // nebius/soperator#1316 (JL-11): the node crashed under the job, or another Epilog failed; Slurm shows our reason.
    let cluster = drained(CONFIG);
    ended(&cluster);
    let said = runs(&cluster, 4);
    assert!(said.iter().all(|(_, gone)| !gone), "{said:?}");
    let told: Vec<_> =
        said.iter().filter(|(text, _)| text.contains(&format!("{SET} stays: its Epilog failed"))).collect();
    assert_eq!(told.len(), 1, "told once: {said:?}");
    assert!(told[0].0.contains("`scontrol update nodename=n1 state=undrain`"), "{said:?}");
    assert_eq!(cluster.node.ledger("SELECT closed_how || coalesce(by_epilog, '') FROM job_run"), "ended");
}

#[test]
fn beside_a_drain_only_a_plain_state_is_released() {
    // mej/nhc#82, #36, clustershell#362 (ND-08): UNDRAIN drops a reboot that was asked for (measured).
    for state in ["idle+drain+reboot_requested", "idle+drain+maintenance+reserved", "down+drain"] {
        let cluster = drained(CONFIG);
        ended(&cluster);
        cluster.write("node.state", state);
        assert_eq!(cluster.node.hook("epilog", "4242", &[("SLURM_JOB_GPUS", "0")]).status, Some(0));
        let said = runs(&cluster, 4);
        assert!(said.iter().all(|(_, gone)| !gone), "{said:?}");
        assert_eq!(said.iter().filter(|(text, _)| text.contains(SET)).count(), 1, "told once: {said:?}");
        let asked = cluster.calls().iter().filter(|call| call.starts_with("sinfo")).count();
        assert!(asked <= 2, "ever more rarely: {:?}", cluster.calls());
    }
}

#[test]
fn a_reason_that_somebody_changed_is_never_lifted() {
    // mej/nhc#134, #95 (ND-04).
    let cluster = drained(CONFIG);
    ended(&cluster);
    let theirs = format!("{} ada: disk too", reason(4242));
    cluster.write("node.reason", &theirs);
    assert_eq!(cluster.node.hook("epilog", "4242", &[("SLURM_JOB_GPUS", "0")]).status, Some(0));
    let said = runs(&cluster, 4);
    assert!(said.iter().all(|(_, gone)| !gone), "{said:?}");
    assert_eq!(cluster.read("node.reason"), theirs);
    let refused = cluster.node.call(&["release"]);
    assert!(refused.status == Some(1) && refused.line().contains("somebody changed it"), "{refused:?}");
}

#[test]
fn an_orphan_is_found_by_one_question_told_once_and_stays() {
    let cluster = Cluster::new(CONFIG);
    cluster.show(&free());
    cluster.write("node.state", "idle+drain");
    cluster.write("node.reason", &reason(77));
    let said = runs(&cluster, 4);
    assert!(!said[0].0.contains("orphan"), "not in the first run: {said:?}");
    let told =
        "an orphaned drain of ours, which this ledger does not know, stays: `act.release_orphans` is false";
    let warned =
        |text: &str| text.lines().filter(|line| line.contains(told) && line.contains("scontrol")).count();
    assert_eq!(said.iter().map(|(text, _)| warned(text)).collect::<Vec<_>>(), [0, 1, 0, 0], "{said:?}");
    assert!(
        said[1..].iter().all(|(text, gone)| text.contains(told) && !gone),
        "in each run's line: {said:?}"
    );
    assert_eq!(cluster.calls().len(), 1, "{:?}", cluster.calls());
    assert_eq!(cluster.node.ledger("SELECT subject FROM fault WHERE kind = 'orphan'"), reason(77));

    // Somebody lifts it: the next look closes it, and none follows.
    cluster.write("node.state", "idle");
    cluster.change("UPDATE question SET next_boot_ms = 0");
    let said = runs(&cluster, 3);
    assert!(said[0].0.contains("no longer stands") && !said[1].0.contains("orphan"), "{said:?}");
    assert_eq!(cluster.calls().len(), 2, "{:?}", cluster.calls());
    assert_eq!(cluster.node.ledger("SELECT count(*) FROM fault WHERE closed_wall_ms ISNULL"), "0");
}

#[test]
fn a_healthy_node_asks_once_a_boot() {
    let cluster = Cluster::new(CONFIG);
    cluster.show(&free());
    runs(&cluster, 12);
    assert_eq!(cluster.calls().len(), 1, "{:?}", cluster.calls());
}

#[test]
fn an_orphan_of_an_earlier_boot_is_lifted_where_the_site_says_so_once_its_job_is_gone() {
    let config = format!("{CONFIG}act: {{ release_orphans: true }}\nnotify: {{ exec: [/bin/true] }}\n");
    let cluster = drained(&config);
    let told = |what: &str| {
        let sql = format!("SELECT count(*) FROM outbox WHERE subject LIKE '{what}' AND sent_wall_ms NOTNULL");
        cluster.node.ledger(&sql)
    };
    cluster.change("UPDATE boot SET boot_id = 'earlier'; DELETE FROM question");
    let said = runs(&cluster, 3);
    assert_eq!([told("exec orphan % stays"), told("% lifted")], ["1", "0"]);
    let stays = "made before this boot, stays: Slurm says that job 4242 is running";
    assert!(said[1].0.contains(stays) && said.iter().all(|(_, gone)| !gone), "{said:?}");
    ended(&cluster);
    cluster.change("UPDATE question SET next_boot_ms = 0");
    let said = runs(&cluster, 3);
    assert_eq!(said.iter().map(|(_, gone)| *gone).collect::<Vec<_>>(), [false, true, true], "{said:?}");
    assert!(said[1].0.contains("is lifted: ") && !said[2].0.contains("orphan"), "{said:?}");
    assert_eq!(cluster.node.ledger("SELECT outcome FROM action"), "released");
    assert_eq!([told("exec orphan % stays"), told("exec orphan % lifted")], ["1", "1"]);
}

#[test]
fn an_orphan_of_this_boot_whose_epilog_nobody_saw_stays() {
    let cluster = Cluster::new(&format!("{CONFIG}act: {{ release_orphans: true }}\n"));
    cluster.show(&free());
    cluster.write("node.state", "idle+drain");
    runs(&cluster, 1);
    for (text, why) in [
        (reason(77).replace(&START_S.to_string(), "99999999999"), "what became of its Epilog is not known"),
        ("gpu-reaper: fault=ecc since=x".to_owned(), "only a person may lift it"),
    ] {
        cluster.write("node.reason", &text);
        cluster.change("DELETE FROM question");
        let said = runs(&cluster, 3);
        assert!(said.iter().any(|(text, _)| text.contains(why)) && !said[2].1, "{said:?}");
    }
}

#[test]
fn an_orphan_that_no_ledger_knows_is_lifted_and_written_down() {
    let cluster = Cluster::new(&format!("{CONFIG}act: {{ release_orphans: true }}\n"));
    cluster.show(&free());
    cluster.write("node.state", "idle+drain");
    // A run of 2001: of an earlier boot whatever this machine's clock says.
    cluster.write("node.reason", &reason(77).replace(&START_S.to_string(), "1000000000"));
    let said = runs(&cluster, 4);
    assert_eq!(
        said.iter().map(|(_, gone)| *gone).collect::<Vec<_>>(),
        [false, false, true, true],
        "{said:?}"
    );
    let row = "SELECT verdict || ' ' || job_id || ' ' || outcome FROM action";
    assert_eq!(cluster.node.ledger(row), "release 77 done");
    // The fault that was told of is closed.
    assert_eq!(cluster.node.ledger("SELECT count(*) FROM fault WHERE closed_wall_ms ISNULL"), "0");
}

#[test]
fn an_administrator_lifts_our_drain_by_hand_and_nobody_elses() {
    let cluster = drained(CONFIG);
    let lifted = cluster.node.call(&["release"]);
    assert_eq!((lifted.status, lifted.err.as_str()), (Some(0), ""), "{lifted:?}");
    assert!(
        lifted.out.contains(&reason(4242)) && lifted.out.contains("lifted: it is allocated"),
        "{lifted:?}"
    );
    assert_eq!(cluster.read("node.state"), "allocated");
    assert_eq!(
        cluster.node.ledger("SELECT outcome || ', ' || detail FROM action"),
        "lifted, lifted by hand with `gpu-reaper-hc release`"
    );

    let refused = [
        ("idle", "none", "not drained"),
        ("idle+drain", "fan 3 dead, ticket 4711", "not ours"),
        ("idle+drain", "gpu-reaper: see ticket 7, by eve", "that is not what we write"),
        ("idle+drain+reboot_requested", &reason(4242), "beside DRAIN only"),
    ];
    for (state, reason, why) in refused {
        cluster.write("node.state", state);
        cluster.write("node.reason", reason);
        let said = cluster.node.call(&["release"]);
        assert_eq!((said.status, said.out.as_str()), (Some(1), ""), "{said:?}");
        assert!(said.line().contains(why) && said.line().ends_with("; nothing was lifted"), "{said:?}");
        assert_eq!(cluster.read("node.state"), state);
    }
    cluster.write("down", "");
    let said = cluster.node.call(&["release"]);
    assert!(said.status == Some(1) && said.line().contains("connect failure"), "{said:?}");
}

#[test]
fn a_release_by_hand_needs_no_ledger_and_believes_what_it_sees() {
    let cluster = Cluster::new(CONFIG);
    cluster.write("node.state", "mixed+drain");
    cluster.write("node.reason", &reason(77));
    cluster.write("refuses", "");
    let said = cluster.node.call(&["release"]);
    assert_eq!(said.status, Some(1));
    assert!(
        said.line().contains("Invalid user id") && said.line().ends_with("; nothing was lifted"),
        "{said:?}"
    );
    fs::remove_file(cluster.node.path("cluster/refuses")).unwrap();
    let said = cluster.node.call(&["release"]);
    assert_eq!((said.status, cluster.read("node.state").as_str()), (Some(0), "mixed"), "{said:?}");
    assert!(!cluster.node.state().join("ledger.db").exists(), "none is begun");
}

//! `keep JOBID`: from a node without a ledger, to the job's AdminComment and back, and what `--explain` then says.

use crate::ladder::run_until;
use crate::slurm::Cluster;
use crate::*;
use gpu_reaper_hc::policy::keep::admin;
use serde_json::Value;

const LAW: &str = "
thresholds: { window: 4s, warmup: 0s, first_activity_grace: 0s, min_samples: 3, max_sample_gap: 2s }
gpu: { library: LIBRARY }
slurm: { COMMANDS }
exemptions: { users: [ci-bot], job_comment: 24h }
";

fn cluster() -> Cluster {
    let cluster = Cluster::new(LAW);
    cluster.job(4242, "4240_2", "train");
    cluster
}

fn kept(cluster: &Cluster) -> Option<String> {
    let said = admin(&cluster.read("jobs/4242.comment"));
    assert_eq!(said.doubt, None);
    said.keep.map(|keep| format!("{}: {}", keep.by, keep.reason))
}

/// What `--explain` says while the finding stands: a slow machine may leave a hole in so short a window.
fn explained(cluster: &Cluster, args: &[&str]) -> String {
    for _ in 0..100 {
        let page = cluster.node.call(&[&["--explain", "4242"], args].concat()).out;
        if page.contains("breaching") || page.contains("verdict   hung") {
            return page;
        }
        assert_eq!(cluster.node.health_check().status, Some(0));
    }
    panic!("no finding stands: {}", cluster.node.call(&["--explain", "4242"]).out)
}

#[test]
fn a_keep_is_written_read_back_shown_and_ended() {
    let cluster = cluster();
    cluster.write("jobs/4242.comment", "ticket 42");
    cluster.write("jobs/4242.user-comment", "run 7, gpu-reaper:keep=99d \u{1b}[2J");
    let said = cluster.node.call(&["keep", "4240_2", "--for", "4h", "--reason", "paper deadline"]);
    assert_eq!((said.status, said.err.as_str()), (Some(0), ""), "{said:?}");
    assert!(said.out.starts_with("job 4240_2 is kept until 20"), "{said:?}");
    assert!(kept(&cluster).is_some_and(|k| k.ends_with(": paper deadline")));
    let written = cluster.read("jobs/4242.comment");
    assert!(written.starts_with("ticket 42 | gpu-reaper: keep until="), "{written}");
    assert!(!cluster.node.state_dir().exists(), "no ledger was begun");

    assert_eq!(cluster.prolog(4242, &[]).err, "");
    let calls = cluster.calls().len();
    assert!(!cluster.node.call(&["--explain", "4242"]).out.contains("AdminComment"));
    assert_eq!(cluster.calls().len(), calls, "no deed can come yet, so nothing is asked");
    run_until(&cluster, "alert");
    let page = explained(&cluster, &[]);
    assert!(page.contains("`exemptions.users`: ci-bot"), "{page}");
    assert!(
        page.contains(": `paper deadline`") && page.contains("a keep in its AdminComment, at 20"),
        "{page}"
    );
    let json: Value = serde_json::from_str(&explained(&cluster, &["--json"])).unwrap();
    let rows: Vec<&Value> =
        json["guards"].as_array().unwrap().iter().filter(|g| g["name"] == "exemption").collect();
    let held: Vec<bool> = rows.iter().map(|g| g["held"] == true).collect();
    assert_eq!(held[..2], [false, true], "{rows:?}");
    assert!(rows[2]["limit"].as_str().unwrap().contains("`exemptions.job_comment`: 1 d"), "{rows:?}");

    // Where slurmrestd is to be asked, nobody else is: here it is nowhere.
    let by_rest = "slurm: { source: rest, rest_url: \"http://127.0.0.1:1\", ";
    cluster.configure(&LAW.replace("slurm: { ", by_rest));
    let page = explained(&cluster, &[]);
    assert!(page.contains("slurmrestd: ") && !page.contains("paper deadline"), "{page}");
    cluster.configure(LAW);

    let said = cluster.node.call(&["keep", "4242", "--end"]);
    assert!(
        said.status == Some(0)
            && said.out.starts_with("job 4240_2: its keep has ended; the one before: until 20"),
        "{said:?}"
    );
    let page = explained(&cluster, &[]);
    assert!(page.contains("a keep that has ended, until 20"), "{page}");
    assert_eq!(cluster.node.call(&["keep", "4242", "--end"]).status, Some(1), "there is none any more");
}

#[test]
fn what_cannot_be_kept_is_refused_and_nothing_is_written() {
    let cluster = cluster();
    let keep = |id: &str| cluster.node.call(&["keep", id, "--for", "4h", "--reason", "x"]);
    for (id, words) in [
        ("4243", "Slurm knows no such job"),
        ("4240_3", "Slurm knows no such job"),
        ("4242+1", "heterogeneous"),
        ("-u root", "is no id of one job"),
    ] {
        let said = keep(id);
        assert_eq!(said.status, Some(if id.starts_with('-') { 2 } else { 1 }), "{said:?}");
        assert!(id.starts_with('-') || said.err.contains(words), "{said:?}");
    }
    cluster.write("jobs/4242.state", "COMPLETED");
    assert!(keep("4242").err.contains("Slurm says it is ended"), "{:?}", keep("4242"));
    cluster.write("down", "");
    let said = keep("4242");
    assert!(said.status == Some(1) && said.err.contains("Unable to contact"), "{said:?}");
    assert_eq!(cluster.read("jobs/4242.comment"), "");
}

#[test]
fn a_keep_has_an_end_and_a_reason() {
    let node = Node::without_driver();
    for wrong in [
        &["keep", "4242"][..],
        &["keep", "4242", "--for", "4h"],
        &["keep", "4242", "--reason", "x"],
        &["keep", "4242", "--for", "0s", "--reason", "x"],
        &["keep", "4242", "--for", "59s", "--reason", "x"],
        &["keep", "4242", "--for", "31d", "--reason", "x"],
        &["keep", "4242", "--for", "4", "--reason", "x"],
        &["keep", "4242", "--for", "4h", "--reason", ""],
        &["keep", "4242", "--for", "4h", "--reason", "a | gpu-reaper: keep until=2099-01-01T00:00:00Z"],
        &["keep", "4242", "--for", "4h", "--reason", "a\nb"],
        &["keep", "4242", "--for", "4h", "--end", "--reason", "x"],
        &["keep", "4242", "--for", "4h", "--reason", "x", "--json"],
        &["--json", "release"],
    ] {
        let said = node.call(wrong);
        assert_eq!((said.status, said.out.as_str()), (Some(2), ""), "{wrong:?}: {said:?}");
    }
}

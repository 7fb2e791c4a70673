//! `--explain JOBID`: its exit statuses, its JSON, every form of id, and text that somebody made to deceive.

use crate::slurm::Cluster;
use crate::*;
use gpu_reaper_hc::model::JobId;
use gpu_reaper_hc::scenarios::file::Scenario;
use gpu_reaper_hc::scenarios::stage::Stage;
use gpu_reaper_hc::screen::Screen;
use serde_json::Value;

/// A newline with a forged entry, the sequences that clear a terminal, and a right-to-left override.
const HOSTILE: &str = "a\n2026-11-29 cancelled by root\r\u{1b}[2J\u{1b}]0;x\u{7}\u{9b}31m\u{202e}b";

fn json(node: &Node, id: &str) -> (Option<i32>, Value) {
    let told = node.call(&["explain", id, "--json"]);
    assert_eq!(told.err, "", "{told:?}");
    (told.status, serde_json::from_str(&told.out).unwrap_or_else(|e| panic!("{e}: {told:?}")))
}

/// Whether a terminal shows this text as it is and does nothing else.
fn harmless(text: &str) -> bool {
    text.lines()
        .all(|line| !line.contains(|c: char| c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c)))
}

#[test]
fn an_unknown_job_is_14_by_every_form_of_its_id() {
    let node = Node::without_driver();
    assert_eq!(node.hook("prolog", "1", &[]).status, Some(0));
    // What names no one job: a variable of a script that was not set, a name, a step, tasks that still wait.
    for id in ["", "train", "0", "123_[1-4]", "4242.0", "-1", HOSTILE] {
        let said = node.call(&["explain", "--json", "--", id]);
        assert_eq!((said.status, said.out.as_str()), (Some(2), ""), "{id:?}");
        assert!(
            said.line().contains("is no job id; expected one as Slurm prints it: 130, 123_4"),
            "{said:?}"
        );
        assert!(harmless(&said.err), "{said:?}");
    }
    for id in ["130", "123_4", "200+1", "s5K1KKYAYG5D00", "4294967296"] {
        let told = node.call(&["--explain", id]);
        assert_eq!((told.status, told.err.as_str()), (Some(14), ""), "{id:?}");
        assert!(told.out.starts_with("job ") && told.out.contains(" is not known to node n1"), "{told:?}");
        assert!(harmless(&told.out), "{told:?}");
        let (status, page) = json(&node, id);
        assert_eq!(
            (status, &page["schema"], &page["judgement"]),
            (Some(14), &1.into(), &"unknown_job".into())
        );
        assert_eq!(page["job"], id);
    }
}

#[test]
fn a_registered_job_is_found_by_its_number_and_its_sluid() {
    let node = Node::without_driver();
    let said = node.hook("prolog", "4242", &[("SLURM_JOB_GPUS", "0"), ("SLURM_JOB_SLUID", "s5K1KKYAYG5D00")]);
    assert_eq!(said.status, Some(0));
    for id in ["4242", "s5K1KKYAYG5D00"] {
        let (status, page) = json(&node, id);
        assert_eq!(
            (status, &page["schema"], &page["job"]["id"]),
            (Some(13), &1.into(), &4242.into()),
            "{id}"
        );
        assert_eq!((&page["judgement"], &page["guard"]), (&"spared".into(), &"warmup".into()));
    }
}

#[test]
fn a_job_that_ended_without_a_finding_is_15_and_has_no_case_file() {
    let node = Node::without_driver();
    node.prolog("7");
    assert_eq!(node.hook("epilog", "7", &[]).status, Some(0));
    let told = node.call(&["--explain", "7"]);
    assert_eq!(told.status, Some(15));
    assert!(told.out.contains("and no case file: none was kept"), "{told:?}");
    let (status, page) = json(&node, "7");
    assert_eq!((status, &page["judgement"], &page["case_file"]), (Some(15), &"ended".into(), &Value::Null));
}

#[test]
fn a_job_of_another_node_of_this_host_is_16() {
    let node = Node::without_driver();
    node.prolog("7");
    assert_eq!(said(node.hook_command("prolog", "8").env("SLURMD_NODENAME", "n2")).status, Some(0));
    let told = node.call(&["--explain", "8"]);
    assert_eq!(told.status, Some(16));
    assert!(told.out.contains("--node n2"), "{told:?}");
    assert_eq!(node.call(&["--explain", "8", "--node", "n2"]).status, Some(13));
}

#[test]
fn text_of_a_user_never_reaches_a_terminal_or_a_log_raw() {
    // meziantou/Meziantou.Framework#2899, rust-lang/log#611 (LG-05): perfect fake entries, cleared terminals.
    let cluster =
        Cluster::new("gpu: { library: LIBRARY }\nslurm: { COMMANDS }\nthresholds: { warmup: 0s }\n");
    let hostile = [
        "SLURM_JOB_USER",
        "SLURM_JOB_ACCOUNT",
        "SLURM_JOB_PARTITION",
        "SLURM_JOB_QOS",
        "SLURM_CLUSTER_NAME",
        "SLURM_NODELIST",
    ]
    .map(|name| (name, HOSTILE));
    assert_eq!(cluster.prolog(7, &hostile).err, "");
    for _ in 0..2 {
        let run = cluster.node.health_check();
        assert_eq!(run.status, Some(0));
        assert!(harmless(&run.err), "{run:?}");
    }
    let told = cluster.node.call(&["--explain", "7"]);
    assert!(told.out.contains("a\\n2026-11-29 cancelled by root\\r\\u{1b}[2J"), "{told:?}");
    assert!(harmless(&told.out), "{told:?}");
    let (_, page) = json(&cluster.node, "7");
    assert_eq!(page["job"]["registration"]["user"]["value"], HOSTILE, "kept as it is, and encoded");
    // An id or a list of GPUs that is none is shown on one line too.
    for (id, gpus) in [(HOSTILE, "0"), ("8", HOSTILE)] {
        let said = cluster.node.hook("prolog", id, &[("SLURM_JOB_GPUS", gpus)]);
        assert!(said.status == Some(0) && harmless(said.line()), "{said:?}");
    }
}

/// The names of all fields, but of what Slurm and NVML name.
fn names(value: &Value, found: &mut std::collections::BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                found.insert(name.clone());
                if !matches!(name.as_str(), "registration" | "details" | "fields" | "memory" | "sm_peak") {
                    names(value, found);
                }
            }
        }
        Value::Array(all) => all.iter().for_each(|one| names(one, found)),
        _ => {}
    }
}

#[test]
fn every_field_of_every_answer_is_in_the_manual_page() {
    let node = Node::without_driver();
    let mut found = std::collections::BTreeSet::new();
    let of = |id: &str, status, found: &mut _| {
        let said = node.call(&["explain", id, "--json"]);
        assert_eq!(said.status, Some(status), "{said:?}");
        let page: Value = serde_json::from_str(&said.out).unwrap();
        assert_eq!(page["schema"], 1);
        names(&page, found);
    };
    of("9", 17, &mut found);
    node.prolog("7");
    assert_eq!(said(node.hook_command("prolog", "8").env("SLURMD_NODENAME", "n2")).status, Some(0));
    of("9", 14, &mut found);
    of("8", 16, &mut found);
    assert_eq!(node.hook("epilog", "7", &[]).status, Some(0));
    of("7", 15, &mut found);
    let scenario = Scenario::parse(HOLE).unwrap();
    let mut stage = Stage::set(&scenario).unwrap();
    for at_ms in scenario.runs() {
        stage.run_at(at_ms).unwrap();
        let answer = stage.explain(JobId::new(4242).unwrap()).unwrap();
        names(&gpu_reaper_hc::explain::json::answer(&answer, "4242"), &mut found);
    }
    let manual = include_str!("../../man/gpu-reaper-hc.8.in");
    let (_, manual) = manual.split_once(".SH EXPLAIN AS JSON").unwrap();
    let (manual, _) = manual.split_once("\n.SH ").unwrap();
    let missing: Vec<&String> =
        found.iter().filter(|name| !manual.contains(&format!("\\fB{name}\\fR"))).collect();
    assert!(found.len() > 50 && missing.is_empty(), "{missing:?}");
}

const HOLE: &str =
    include_str!("../../fixtures/scenarios/a-hole-in-the-samples-begins-a-new-window/scenario.yaml");

#[test]
fn a_hole_is_drawn_as_a_hole_and_zero_as_zero_on_a_page_of_any_width() {
    let scenario = Scenario::parse(HOLE).unwrap();
    let mut stage = Stage::set(&scenario).unwrap();
    for at_ms in scenario.runs() {
        stage.run_at(at_ms).unwrap();
    }
    for width in [60, 80, 100, 200] {
        let page = stage.page(4242, &Screen { width, ..Screen::PLAIN }).unwrap();
        assert!(page.is_ascii() && page.lines().all(|line| line.len() <= width), "{page}");
        let drawn: Vec<&str> =
            page.lines().filter(|l| l.starts_with("  GPU ")).filter_map(|l| l.split('|').nth(1)).collect();
        assert_eq!(drawn.len(), 3, "eight GPUs that do the same are drawn once: {page}");
        let util = drawn[0];
        assert!(util.contains('.') && util.trim_matches(' ').contains(' ') && !util.contains('?'), "{page}");
    }
}

#[test]
fn a_ledger_that_may_not_be_read_says_who_may() {
    // fr-ser/grafana-sqlite-datasource#167, sifiveinc/wake#501 (DB-07)
    use std::os::unix::{fs::PermissionsExt, process::CommandExt};
    let node = Node::without_driver();
    node.prolog("7");
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(node.state()).unwrap());
    if owner != 0 {
        return println!("skipped: needs root, to be somebody else");
    }
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(node.folder.path(), 0o755);
    mode(&node.path("config.yaml"), 0o644);
    mode(&node.state_dir(), 0o755);
    // The program itself may lie where only root looks.
    let program = node.path("gpu-reaper-hc");
    fs::copy(PROGRAM, &program).unwrap();
    let ask = || {
        let mut command = Command::new(&program);
        command.args(["--explain", "7"]).env_clear().env("SLURMD_NODENAME", "n1");
        command.env("GPU_REAPER_CONFIG", node.path("config.yaml")).uid(65534).gid(65534);
        said(&mut command)
    };
    let told = ask();
    assert_eq!((told.status, told.out.as_str()), (Some(17), ""), "{told:?}");
    assert!(told.line().contains("permission denied") && told.line().contains("user root"), "{told:?}");
    mode(&node.state(), 0o755);
    mode(&node.state().join("ledger.db"), 0o644);
    assert_eq!(ask().status, Some(13), "reading needs no right to write");
}

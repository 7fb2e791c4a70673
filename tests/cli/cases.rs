//! `cases`: the kept case files as table, CSV and JSON lines; names that are formulas, forged lines and escape sequences;
//! and that nothing is written.

use crate::ladder::{SECONDS, run_until};
use crate::slurm::Cluster;
use crate::*;
use serde_json::{Value, json};

const FORMULA: &str = "=cmd|' /C calc'!A0,\"x\"";
const FORGED: &str = "a\n4242,cancelled by root\r\u{1b}[2J\u{9b}31m\u{202e}b";

/// A node whose ledger keeps one file of a job that hung, was alerted on and has ended.
fn with_one_case() -> Cluster {
    let cluster = Cluster::new(&SECONDS.replace("mode: enforce", "mode: observe"));
    cluster.job(4242, "4240_2", "train");
    let odd = [("SLURM_JOB_ACCOUNT", FORMULA), ("SLURM_JOB_USER", FORGED)];
    assert_eq!(cluster.prolog(4242, &odd).err, "");
    run_until(&cluster, "alert");
    let run = cluster.node.health_check();
    assert_eq!(run.status, Some(0), "{run:?}");
    let epilog = cluster.node.hook("epilog", "4242", &[("SLURM_JOB_GPUS", "0")]);
    assert_eq!(epilog.status, Some(0), "{epilog:?}");
    cluster
}

/// One more file, as an Epilog kept it so many days ago.
fn keep(cluster: &Cluster, id: u64, days: i64, body: &str) {
    cluster.change(&format!(
        "INSERT INTO case_file (job_id, restart, display_id, created_wall_ms, body)
         SELECT {id}, 1, '{id}', created_wall_ms - {days} * 86400000, '{body}' FROM case_file WHERE job_id = 4242"
    ));
}

fn page(user: &str, findings: &Value) -> String {
    let reading = |value: Value| json!({ "value": value });
    json!({
        "schema": 1,
        "job": { "id": 1, "registration": { "user": reading(user.into()), "account": { "value": null, "absent": "not_recorded" },
            "partition": reading("h100".into()), "nodes": reading(2.into()), "gpus": [{ "index": 0 }, { "index": 1 }] } },
        "signature": null,
        "findings": findings,
        "done": ["alert", "drain", "cancel"],
        "withheld": [],
    })
    .to_string()
}

/// The bytes of the state folder's files, by name.
pub fn state(node: &Node) -> Vec<(PathBuf, Vec<u8>)> {
    let files = fs::read_dir(node.state()).unwrap().map(|file| file.unwrap().path());
    let mut all: Vec<_> = files.map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    all.sort();
    all
}

#[test]
fn the_files_are_listed_in_three_forms_and_nothing_is_written() {
    let cluster = with_one_case();
    let node = &cluster.node;
    let (before, calls) = (state(node), cluster.calls().len());
    let table = node.call(&["cases"]);
    assert_eq!((table.status, table.err.as_str()), (Some(0), ""), "{table:?}");
    let lines: Vec<&str> = table.out.lines().collect();
    let [heading, row, "", total] = &lines[..] else { panic!("{table:?}") };
    assert!(heading.starts_with("JOB ") && heading.ends_with("DONE (WITHHELD)"), "{heading}");
    // meziantou/Meziantou.Framework#2899 (LG-05)
    assert!(row.starts_with("4240_2 ") && row.contains(r"a\n4242,cancelled by root\r\u{1b}[2J"), "{row}");
    assert!(row.contains(" hung ") && row.contains(" alert"), "{row}");
    assert!(total.starts_with("1 job run that ended: 0.0 certified GPU-hours (hung 0.0)"), "{total}");
    assert!(table.out.bytes().all(|b| b == b'\n' || (0x20..0x7f).contains(&b)), "{table:?}");

    let csv = node.call(&["--csv", "cases"]);
    assert_eq!(csv.status, Some(2), "an option of its own: {csv:?}");
    let csv = node.call(&["cases", "--csv"]);
    let lines: Vec<&str> = csv.out.split_terminator("\r\n").collect();
    let [heading, row] = &lines[..] else { panic!("{csv:?}") };
    assert_eq!(heading.split(',').count(), 19);
    assert!(
        heading.starts_with("node,job,restart,user,account,partition,nodes,gpus,signature,"),
        "{heading}"
    );
    assert!(row.starts_with(r#"n1,4240_2,0,"a\n4242,cancelled by root\r\u{1b}[2J"#), "{row}");
    assert!(row.contains(r#","'=cmd|' /C calc'!A0,""x""","#), "{row}");

    let said = node.call(&["cases", "--json"]);
    let line: Value = serde_json::from_str(said.out.trim_end()).unwrap();
    assert_eq!((said.out.lines().count(), &line["schema"], &line["job"]), (1, &1.into(), &"4240_2".into()));
    assert_eq!(
        (&line["user"], &line["account"]),
        (&FORGED.into(), &FORMULA.into()),
        "kept as it is, encoded"
    );
    assert_eq!(
        (&line["signature"], &line["scope"], &line["gpus"]),
        (&"hung".into(), &"whole".into(), &1.into())
    );
    assert!(line["certified_gpu_hours"].as_f64().unwrap() > 0.0 && line["hours_complete"] == true, "{line}");
    assert_eq!(line["done"][0], "alert");
    assert_eq!(node.call(&["cases", "--csv", "--json"]).status, Some(2));
    assert_eq!((state(node), cluster.calls().len()), (before, calls), "read only, and Slurm is not asked");
}

#[test]
fn hours_are_summed_by_signature_and_an_unreadable_file_is_a_row_that_says_so() {
    let cluster = with_one_case();
    let of = |signature: &str, hours: Value| {
        json!({ "signature": signature, "scope": "whole", "since": "2026-11-29T13:25:38Z",
                "established": "2026-11-29T13:55:38Z", "wasted_gpu_hours": hours })
    };
    keep(&cluster, 7, 1, &page("ada", &json!([of("idle", 2.5.into()), of("hung", 40.25.into())])));
    keep(&cluster, 8, 3, &page("eve", &json!([of("idle", 1.0.into()), of("idle", Value::Null)])));
    keep(&cluster, 9, 9, "{");
    let table = cluster.node.call(&["cases"]);
    let total = "4 job runs that ended: >43.8 certified GPU-hours (hung 40.3, idle 3.5); of 1 not all hours were kept; \
                 the case files of 1 are not readable\n";
    assert!(table.out.ends_with(total), "{table:?}");
    let row =
        |id: &str| table.out.lines().find(|line| line.starts_with(id)).unwrap_or_else(|| panic!("{table:?}"));
    assert!(
        row("7 r1 ").contains(" 42.8 ") && row("7 r1 ").contains(" hung "),
        "the last finding: {table:?}"
    );
    assert!(row("8 r1 ").contains(" >1.0 "), "{table:?}");
    assert!(row("9 r1 ").ends_with("not readable"), "{table:?}");
    let counts = ["1d12h", "3d12h", "30d"]
        .map(|since| cluster.node.call(&["cases", "--since", since, "--json"]).out.lines().count());
    assert_eq!(counts, [2, 3, 4]);
    let none = cluster.node.call(&["cases", "--since", "0s"]);
    assert!(none.status == Some(0) && none.out.starts_with("none ended since 20"), "{none:?}");
    assert!(none.out.contains("; 4 older are kept\n"), "{none:?}");
    // A ledger of a minute cannot tell of a month.
    let month = cluster.node.call(&["cases", "--since", "30d"]).out;
    assert!(month.lines().last().unwrap().starts_with("what ended before 20"), "{month}");
    // Hours of which nothing is known are no number, and no negative one.
    keep(&cluster, 10, 9, &page("ada", &json!([of("hung", Value::Null)])));
    let lines = |args: &[&str]| cluster.node.call(args).out;
    let csv = lines(&["cases", "--csv"]);
    let row_10 = csv.lines().find(|line| line.starts_with("n1,10,")).unwrap();
    assert!(row_10.contains("Z,,,false,") && !csv.contains("-0."), "{row_10}");
    let json: Vec<Value> =
        lines(&["cases", "--json"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_job = |job: &str| json.iter().find(|line| line["job"] == job).unwrap();
    assert_eq!(of_job("10")["certified_gpu_hours"], Value::Null);
    let fields = |line: &Value| line.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(fields(of_job("9")), fields(of_job("7")), "what is not known is null, and there");
    let unreadable = cluster.node.call(&["cases", "--csv"]);
    let row = unreadable.out.lines().last().unwrap();
    assert!(row.starts_with("n1,9,1,,,,,,,,,,20") && row.ends_with(",,,,,false"), "{row}");
}

#[test]
fn a_ledger_that_is_not_there_is_17_and_none_is_made() {
    let node = Node::without_driver();
    for args in [&["cases"][..], &["cases", "--csv"], &["cases", "--json"]] {
        let said = node.call(args);
        assert_eq!((said.status, said.out.as_str()), (Some(17), ""), "{said:?}");
        assert!(said.line().contains("ledger"), "{said:?}");
    }
    assert!(!node.state().exists());
}

//! `backtest --trace`, by the real program on small recordings that are made here: what it finds, what it does not
//! judge, and what it says. No recording of anybody's is needed, nor a GPU, Slurm, root or a ledger.

mod recording;
mod same_as_a_run;

use recording::{Recording, Span, resting, working};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};

/// Calls the program in a folder with a configuration of its own and nothing else.
fn backtest(folder: &Path, config: &str, args: &[&str]) -> Output {
    let file = folder.join("config.yaml");
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-reaper-hc"));
    command.env_clear().env("GPU_REAPER_CONFIG", file).current_dir(folder);
    command.arg("backtest").args(args).output().unwrap()
}

/// The one answer about one recording.
fn judged(recording: &Recording, config: &str, args: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("t.csv"), recording.text()).unwrap();
    let said = backtest(folder.path(), config, &[&["--trace", "t.csv", "--json"], args].concat());
    assert_eq!((said.status.code(), String::from_utf8_lossy(&said.stderr).as_ref()), (Some(0), ""));
    let text = String::from_utf8(said.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "one object, one line: {text}");
    serde_json::from_str(&text).unwrap()
}

fn why(answer: &Value, guard: &str) -> i64 {
    let all = answer["not_judged"].as_array().unwrap();
    all.iter().find(|n| n["why"] == guard).map_or(0, |n| n["seconds"].as_i64().unwrap())
}

/// Two GPUs at work for half an hour, then dead with their processes for two. The first run that sees them dead sees
/// in the energy that they worked just before.
fn hang() -> Recording {
    Recording::new(2, 15).span(30, working()).span(120, resting())
}

#[test]
fn a_hang_is_alerted_on_then_drained_and_the_answer_has_this_shape() {
    let wanted = json!({
        "file": "t.csv", "gpus": 2, "seconds": 8985, "judged_seconds": 8100, "most_asked": "drain",
        "findings": [{
            "signature": "hung", "scope": "whole", "since_s": 1860, "established_s": 3660, "last_s": 8940,
            "most_asked": "drain", "gpus": [0, 1],
        }],
        "not_judged": [{ "why": "warmup", "seconds": 840 }],
    });
    assert_eq!(judged(&hang(), "", &[]), wanted);
}

#[test]
fn people_get_a_table_of_what_would_have_been_asked_for_and_when() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("t.csv"), hang().text()).unwrap();
    let said = backtest(folder.path(), "", &["--trace", "t.csv"]);
    let look = "hung on GPU 0,1 (whole): processes resident or memory held, no compute for";
    let wanted = format!(
        "t.csv: 2 GPUs, 2 h 29 m recorded\n\
         \x20 1 h 1 m    alert           {look} 30 m; 1.0 GPU-hours\n\
         \x20 2 h 1 m    drain           {look} 1 h 30 m; 3.0 GPU-hours\n\
         \x20 judged 2 h 15 m (90 %); not judged: warmup 14 m; most asked: drain\n"
    );
    assert_eq!(String::from_utf8(said.stdout).unwrap(), wanted);
}

#[test]
fn stages_and_thresholds_are_those_of_the_configuration() {
    let config = "thresholds: { window: 20m }\nstages: [{ after: 0m, verdict: alert }, { after: 20m, verdict: drain }, \
                  { after: 30m, verdict: cancel }]\nexemptions: { users: [ada], partitions: [debug] }\n";
    let answer = judged(&hang(), config, &[]);
    assert_eq!(answer["findings"][0]["established_s"], 1860 + 1200);
    assert_eq!(answer["most_asked"], "cancel", "whose job it was is not known, so nobody is exempt");
    assert_eq!(judged(&hang(), "stages: [{ after: 8h, verdict: alert }]\n", &[])["most_asked"], "none");
}

#[test]
fn without_a_process_list_little_memory_is_not_known_to_be_held() {
    let names = |answer: &Value| answer["findings"][0]["signature"].as_str().map(str::to_owned);
    let little = Span { memory_mib: 900, ..resting() };
    let recording = |span: Span| Recording::new(1, 15).span(30, working()).span(60, span);
    let signature = |r: Recording| names(&judged(&r, "", &[]));
    assert_eq!(signature(recording(little).without("processes")).as_deref(), Some("unknown"));
    assert_eq!(signature(recording(resting()).without("processes")).as_deref(), Some("hung"));
    // What is empty is idle only where nobody holds the device files either, which no usual recording tells.
    let empty = Span { memory_mib: 4, watts: 70, processes: "0", holders: "0", ..little };
    assert_eq!(signature(recording(empty)).as_deref(), Some("idle"));
    assert_eq!(signature(recording(empty).without("holders")).as_deref(), Some("unknown"));
    assert_eq!(signature(recording(Span { holders: "1", ..empty })).as_deref(), Some("unknown"));
}

/// Bursts of half a minute in every two, all between the looks of a run every two minutes.
fn bursts() -> Recording {
    (0..75).fold(Recording::new(1, 15).span(30, working()), |recording, _| {
        recording.seconds(45, resting()).seconds(30, working()).seconds(45, resting())
    })
}

#[test]
fn work_between_slow_runs_shows_in_the_energy_and_without_power_nothing_is_judged() {
    let every = ["--every", "120s"];
    let answer = judged(&bursts(), "", &every);
    assert_eq!(answer["findings"], json!([]), "{answer}");
    assert_eq!(why(&answer, "sparse"), 0);
    let blind = judged(&bursts().without("power.draw [W]"), "", &every);
    assert_eq!(blind["findings"], json!([]));
    assert!(why(&blind, "sparse") > 6000, "{blind}");
    assert_eq!(judged(&hang(), "", &every)["most_asked"], "drain", "what really rests is still found");
}

#[test]
fn a_hole_in_the_recording_is_nobodys_idleness() {
    let holed = hang().but(|minute| (50..70).contains(&minute));
    let answer = judged(&holed, "", &[]);
    // From the last row before the hole; then a new window, but for the run that completes it.
    assert_eq!(why(&answer, "gap"), 15 + 20 * 60 + 29 * 60, "{answer}");
    assert_eq!(answer["findings"][0]["since_s"], 70 * 60);
    assert_eq!(answer["findings"].as_array().unwrap().len(), 1);
}

#[test]
fn without_utilization_nothing_is_judged() {
    let answer = judged(&hang().without("utilization.gpu [%]"), "", &[]);
    assert_eq!((&answer["judged_seconds"], &answer["findings"]), (&json!(0), &json!([])));
    assert!(why(&answer, "peak") > 7000, "{answer}");
}

#[test]
fn words_in_place_of_numbers_are_absent_and_leave_the_rest_judged() {
    let table = [("[N/A]", "power.draw [W]"), ("[Unknown Error]", "temperature.gpu"), ("[N/A]", "processes")];
    for (word, column) in table {
        let answer = judged(&hang().word(column, word), "", &["--every", "30s"]);
        assert_eq!(answer["findings"][0]["signature"], "hung", "{word} in {column}: {answer}");
    }
    let lost = judged(&hang().word("utilization.gpu [%]", "[GPU is lost]"), "", &[]);
    assert_eq!(lost["findings"], json!([]));
}

#[test]
fn the_order_of_the_columns_is_nobodys_business() {
    assert_eq!(judged(&hang().reversed(), "", &[]), judged(&hang(), "", &[]));
}

#[test]
fn a_job_that_began_before_its_recording_is_past_its_warm_up() {
    let answer = judged(&hang(), "", &["--job-start", "1h"]);
    assert_eq!(why(&answer, "warmup"), 0);
    let dead = Recording::new(1, 15).span(40, resting());
    let config = "stages: [{ after: 0m, verdict: alert }, { after: 0m, verdict: drain }]\n";
    assert_eq!(judged(&dead, config, &[])["most_asked"], "none", "40 minutes hold no warm-up and window");
    let answer = judged(&dead, config, &["--job-start", "1h"]);
    assert_eq!((&answer["findings"][0]["since_s"], &answer["most_asked"]), (&json!(0), &json!("drain")));
}

#[test]
fn a_drain_is_lifted_when_the_job_works_again_and_a_later_one_comes_first_again() {
    let config = "stages: [{ after: 0m, verdict: alert }, { after: 10m, verdict: drain }, { after: 6h, verdict: cancel }]\n";
    let twice =
        Recording::new(1, 15).span(30, working()).span(50, resting()).span(10, working()).span(50, resting());
    let answer = judged(&twice, config, &[]);
    let most: Vec<_> = answer["findings"].as_array().unwrap().iter().map(|f| &f["most_asked"]).collect();
    assert_eq!(most, ["drain", "drain"], "{answer}");
}

#[test]
fn a_file_that_cannot_be_read_is_named_with_its_line_and_the_others_are_judged() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("good.csv"), hang().text()).unwrap();
    std::fs::write(folder.path().join("bad.csv"), hang().text().replacen("2026/11/29 08:00:15.000", "?", 1))
        .unwrap();
    std::fs::write(folder.path().join("odd.csv"), [0xff, 0xfe]).unwrap();
    let said =
        backtest(folder.path(), "", &["--json", "--trace", "bad.csv", "none.csv", "odd.csv", "good.csv"]);
    assert_eq!(said.status.code(), Some(1));
    assert_eq!(String::from_utf8(said.stdout).unwrap().lines().count(), 1);
    let err = String::from_utf8(said.stderr).unwrap();
    let lines: Vec<&str> = err.lines().collect();
    assert!(lines[0].starts_with("gpu-reaper-hc: backtest: bad.csv: line 4: `?` is no time"), "{err}");
    assert!(lines[1].starts_with("gpu-reaper-hc: backtest: none.csv: No such file"), "{err}");
    assert!(lines[2].starts_with("gpu-reaper-hc: backtest: odd.csv: no text"), "{err}");
    assert_eq!(lines.len(), 3, "{err}");
}

#[test]
fn a_node_without_a_ledger_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let config = format!("state_dir: {}\n", folder.path().join("state").display());
    let said = backtest(folder.path(), &config, &["--node", "n1"]);
    assert_eq!((said.status.code(), said.stdout.len()), (Some(1), 0));
    let err = String::from_utf8(said.stderr).unwrap();
    assert!(err.starts_with("gpu-reaper-hc: backtest: ") && err.contains("nothing was judged"), "{err}");
    assert!(!folder.path().join("state").exists());
}

#[test]
fn nothing_is_written_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("t.csv"), hang().text()).unwrap();
    let config = format!("state_dir: {}\n", folder.path().join("state").display());
    assert!(backtest(folder.path(), &config, &["--trace", "t.csv"]).status.success());
    let mut names: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["config.yaml", "t.csv"]);
}

#[test]
fn a_cadence_that_is_none_is_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    let without_unit = ["--trace", "t.csv", "--every", "60"];
    for args in [&["--trace", "t.csv", "--every", "0s"][..], &without_unit, &["--every", "30s"]] {
        assert_eq!(backtest(folder.path(), "", args).status.code(), Some(2), "{args:?}");
    }
}

//! README says what is true: its test command is the one that CI runs, its guards have the scenarios it names.

use gpu_reaper_hc::policy::Signature;
use gpu_reaper_hc::policy::fault::Kind;
use gpu_reaper_hc::scenarios::{file::Scenario, stage::Stage};
use gpu_reaper_hc::screen::Screen;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// The lines of a section, from its heading to the next of the same rank.
fn section(text: &str, heading: &str) -> String {
    let after = text
        .split(&format!("\n## {heading}\n"))
        .nth(1)
        .unwrap_or_else(|| panic!("README has no section {heading}"));
    after.split("\n## ").next().unwrap().to_string()
}

/// The commands in a section's fenced shell blocks.
fn commands(section: &str) -> Vec<&str> {
    let blocks = section.split("```sh\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    blocks.flat_map(str::lines).collect()
}

#[test]
fn two_commands_do_everything() {
    let readme = read("README.md");
    let two = section(&readme, "Two commands");
    assert_eq!(commands(&two), ["cargo run --release -- demo", "cargo test"]);
}

#[test]
fn ci_runs_the_test_command_that_readme_names() {
    let readme = read("README.md");
    let named = section(&readme, "Two commands");
    let test = *commands(&named).last().unwrap();
    let ci = read(".ci/run");
    assert_eq!(
        ci.lines().filter(|line| *line == test).count(),
        1,
        "`.ci/run` runs `{test}` once, as it stands in README"
    );
}

#[test]
fn readme_can_be_read_in_two_minutes() {
    let lines = read("README.md").lines().count();
    assert!(lines <= 325, "{lines} lines");
}

/// Whether the lines of a section's first plain block stand in `said` in their order; `...` stands for what is left out.
fn is_excerpt(section: &str, said: &str) {
    let block = section.split("\n```\n").find(|part| part.contains("\n...\n")).expect("a block of output");
    let mut rest = said.lines();
    for line in block.lines().filter(|line| *line != "...") {
        assert!(rest.any(|said| said == line), "not said, or not there: `{line}`\n{said}");
    }
}

#[test]
fn what_readme_shows_of_the_demo_is_what_it_says() {
    let demo = Command::new(env!("CARGO_BIN_EXE_gpu-reaper-hc")).arg("demo").env_clear().output().unwrap();
    is_excerpt(&section(&read("README.md"), "Two commands"), &String::from_utf8_lossy(&demo.stdout));
}

#[test]
fn what_readme_shows_of_an_explanation_is_what_it_says() {
    let scenario = Scenario::parse(&read("fixtures/demo/observe.yaml")).unwrap();
    let mut stage = Stage::set(&scenario).unwrap();
    for at_ms in scenario.runs() {
        stage.run_at(at_ms).unwrap();
    }
    let page = stage.page(4242, &Screen { width: 80, unicode: true, colour: false }).unwrap();
    is_excerpt(&section(&read("README.md"), "What people see"), &page);
}

/// Rows of README's table of guards: the guard and the scenarios it names.
fn guards() -> Vec<(String, Vec<String>)> {
    let readme = read("README.md");
    let table = section(&readme, "Guards");
    let rows = table.lines().filter(|line| line.starts_with('|')).skip(2);
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let scenarios = cells[2].split('`').skip(1).step_by(2).map(str::to_string).collect();
        (cells[0].to_string(), scenarios)
    };
    rows.map(row).collect()
}

/// The cells of each row of a table.
fn rows(section: &str) -> Vec<Vec<String>> {
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    rows.map(|line| line.trim_matches('|').split(" | ").map(|c| c.trim().to_string()).collect()).collect()
}

#[test]
fn the_signatures_stand_in_readme_as_the_rules_have_them() {
    let said = rows(&section(&read("README.md"), "Signatures"));
    let want: Vec<Vec<String>> = Signature::ALL
        .map(|signature| {
            let rule = signature.rule();
            let word = format!("`{signature}`");
            [&word, rule.inputs, rule.breaches_if, rule.most].map(str::to_string).to_vec()
        })
        .to_vec();
    assert_eq!(said, want);
}

#[test]
fn the_faults_stand_in_readme_as_the_rules_have_them() {
    let said = rows(&section(&read("README.md"), "Faults of the node"));
    let want = Kind::ALL.iter().map(|kind| {
        let rule = kind.in_words();
        [format!("`{}`", kind.word()), rule.inputs.to_owned(), rule.faulty_if.to_owned()].to_vec()
    });
    assert_eq!(said, want.collect::<Vec<_>>());
}

#[test]
fn every_guard_of_the_table_has_scenarios_that_exist() {
    let folder = root().join("fixtures/scenarios");
    let wrong: Vec<String> =
        guards().into_iter().filter_map(|(guard, scenarios)| missing(&folder, &guard, &scenarios)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn missing(folder: &Path, guard: &str, scenarios: &[String]) -> Option<String> {
    if scenarios.is_empty() {
        return Some(format!("guard `{guard}` names no scenario"));
    }
    let absent: Vec<&String> = scenarios.iter().filter(|name| !folder.join(name).is_dir()).collect();
    (!absent.is_empty()).then(|| format!("guard `{guard}` names scenarios that are not there: {absent:?}"))
}

#[test]
fn the_fifteen_guards_are_named_once_each() {
    let names: BTreeSet<String> = guards().into_iter().map(|(guard, _)| guard).collect();
    let fixed = [
        "observe",
        "warmup",
        "window",
        "peak",
        "sparse",
        "energy",
        "gap",
        "job-state",
        "whole-job",
        "attribution",
        "fault",
        "host-activity",
        "signature-cap",
        "cancel-history",
        "exemption",
    ];
    assert_eq!(names, fixed.map(str::to_string).into());
}

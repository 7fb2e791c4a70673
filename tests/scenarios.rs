//! Every scenario, played by the real binary: what the tool will and will not do. The folder, the list in the
//! binary, README's guard table and the scenarios' own words about guards are held together here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output};

fn program(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpu-reaper-hc")).args(args).output().expect("the program starts")
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("`{}`: {e}", path.display()))
}

fn folders() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/scenarios");
    let entries = std::fs::read_dir(folder).expect("fixtures/scenarios");
    entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn every_scenario_comes_out_as_it_says() {
    let played = program(&["scenarios", "--json"]);
    let verdicts: Vec<serde_json::Value> = serde_json::from_slice(&played.stdout).expect("JSON");
    let differs = |v: &serde_json::Value| !v["differs"].as_array().unwrap().is_empty();
    let wrong: Vec<String> = verdicts.iter().filter(|v| differs(v)).map(|v| format!("{v:#}")).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(played.status.success());
    let played: BTreeSet<String> =
        verdicts.iter().map(|v| v["scenario"].as_str().unwrap().to_owned()).collect();
    assert_eq!(
        played,
        folders(),
        "each folder of fixtures/scenarios is in the binary, and expects something"
    );
}

#[test]
fn the_scenarios_of_a_guard_and_readmes_row_name_each_other() {
    let mut by_scenario: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for name in folders() {
        let text = read(&format!("fixtures/scenarios/{name}/scenario.yaml"));
        let line = text.lines().find_map(|l| l.strip_prefix("guards: [")).unwrap_or("]");
        for guard in line.trim_end_matches(']').split(", ").filter(|g| !g.is_empty()) {
            by_scenario.entry(guard.to_owned()).or_default().insert(name.clone());
        }
    }
    let readme = read("README.md");
    let section = readme.split("\n## Guards").nth(1).expect("README has a section of guards");
    let rows = section.split("\n## ").next().unwrap().lines().filter(|l| l.starts_with('|')).skip(2);
    let mut by_readme: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let names = cells[2].split('`').skip(1).step_by(2).map(str::to_owned).collect();
        by_readme.insert(cells[0].to_owned(), names);
    }
    assert_eq!(by_scenario, by_readme);
    let guards: BTreeSet<String> =
        gpu_reaper_hc::policy::Guard::ALL.iter().map(|g| g.word().to_owned()).collect();
    assert_eq!(by_readme.into_keys().collect::<BTreeSet<_>>(), guards);
}

#[test]
fn the_demo_shows_two_jobs_escalate_beside_a_healthy_one() {
    let mut shown = String::new();
    gpu_reaper_hc::demo::play(&mut |text| shown.push_str(text), std::time::Duration::ZERO).unwrap();
    let lines_of =
        |job: &str| shown.lines().filter(|l| l.contains(&format!("  {job}  "))).collect::<Vec<_>>();
    for (job, look) in [("4242", "hung"), ("4243", "idle")] {
        let lines = lines_of(job);
        let at = |what: &str| {
            lines.iter().position(|l| l.contains(what)).unwrap_or_else(|| panic!("{what}: {shown}"))
        };
        assert!(at(look) <= at("-> alert"));
        assert!(at("-> alert") < at("drain withheld: mode is observe"), "{shown}");
    }
    assert!(lines_of("4244").iter().all(|l| !l.contains("alert") && !l.contains("drain")), "{shown}");
}

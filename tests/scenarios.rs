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
    let said: serde_json::Value = serde_json::from_slice(&played.stdout).expect("JSON");
    assert_eq!(said["schema"], "gpu-reaper-hc/scenarios/1");
    let verdicts = said["verdicts"].as_array().expect("verdicts");
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
fn the_demo_tells_each_thing_once_in_order_and_leaves_the_healthy_job_alone() {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_gpu-reaper-hc"));
    let output = demo.arg("demo").env_remove("COLUMNS").output().expect("the program starts");
    assert!(output.status.success());
    let shown = String::from_utf8(output.stdout).expect("text");
    assert!(shown.lines().all(|line| line.len() <= 80), "{shown}");
    let (observe, enforce) = shown.split_once("Act 2").expect("two acts");
    let order = |act: &str, words: &[&str]| {
        let at = words.iter().map(|word| {
            assert_eq!(act.matches(word).count(), 1, "`{word}`: {shown}");
            act.find(word)
        });
        assert!(at.is_sorted(), "{words:?}: {shown}");
    };
    for (job, user, look) in [("4242", "ada", "hung"), ("4243", "bob", "idle")] {
        let alert = format!("ALERT     job {job} of {user}: {look} on GPU");
        let withheld = format!("WITHHELD  the drain for job {job}: mode is observe");
        order(observe, &[&alert, &withheld]);
        let drain = format!("DRAIN     for job {job}");
        let reason = format!("Reason=gpu-reaper: job={job}");
        let [ends, lifted] = [format!("{user} ends job {job}"), format!("LIFTED    job {job}")];
        order(enforce, &[&alert, &drain, &reason, &ends, &lifted]);
    }
    assert_eq!(observe.matches("DRAIN ").count(), 0, "{shown}");
    let of_the_healthy: Vec<&str> = shown.lines().filter(|line| line.contains("4244")).collect();
    assert_eq!(of_the_healthy.len(), 3, "who it is, twice, and that it ran on: {of_the_healthy:?}");
    let commands = "told to drain 2 times and to undrain 2 times, scancel was called 0 times";
    assert!(shown.replace('\n', " ").contains(commands), "{shown}");
}

//! A scenario played through the real run; the same GPUs written down as nvidia-smi would; and the ledger of the same
//! story under observe. All must ask for the same, at the same moments.

use gpu_reaper_hc::backtest::{Report, Setting, kept, trace};
use gpu_reaper_hc::config::{self, Config};
use gpu_reaper_hc::gpu::{GpuSource, simulated::Simulated};
use gpu_reaper_hc::model::{JobId, UnitSample};
use gpu_reaper_hc::reading::Reading::{Absent, Measured};
use gpu_reaper_hc::scenarios::{file::Scenario, stage::Stage};

const HEADER: &str = "timestamp, uuid, index, utilization.gpu [%], utilization.memory [%], memory.used [MiB], \
                      memory.total [MiB], enforced.power.limit [W], driver_version, processes\n";

fn story() -> String {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/scenarios");
    let file = folder.join("alert-then-drain-then-cancel-in-three-runs/scenario.yaml");
    std::fs::read_to_string(file).unwrap()
}

/// What was done, and in which run: milliseconds after the first.
fn by_the_run(scenario: &Scenario) -> Vec<(i64, String)> {
    let mut stage = Stage::set(scenario).unwrap();
    let (runs, job) = (scenario.runs(), JobId::new(scenario.jobs[0].id).unwrap());
    let mut done = Vec::new();
    for at_ms in &runs {
        stage.run_at(*at_ms).unwrap();
        let all = stage.done(job).unwrap();
        let new = all.into_iter().skip(done.len());
        done.extend(new.map(|verdict| (at_ms - runs[0], verdict)).collect::<Vec<_>>());
    }
    done
}

fn row(at_ms: i64, unit: &UnitSample) -> String {
    let (r, id) = (&unit.readings, &unit.identity);
    let (Measured(uuid), Measured(util), Measured(memctl)) = (&id.uuid, r.sm_util, r.mem_util) else {
        panic!("this scenario measures everything");
    };
    let (Measured(memory), Measured(limit), Measured(list)) = (r.memory, r.power_limit, &r.processes) else {
        panic!("this scenario measures everything");
    };
    let s = at_ms / 1000;
    format!(
        "2026/11/29 {:02}:{:02}:{:02}.{:03}, {uuid}, {}, {util}, {memctl}, {} MiB, {} MiB, {} W, 580.95.05, {}\n",
        s / 3600,
        s / 60 % 60,
        s % 60,
        at_ms % 1000,
        id.index,
        memory.used.0 >> 20,
        memory.total.0 >> 20,
        limit.0 / 1000,
        list.len(),
    )
}

/// The same GPUs at the same moments.
fn recorded(scenario: &Scenario) -> String {
    let (timeline, runs) = (scenario.timeline().unwrap(), scenario.runs());
    let mut text = HEADER.to_owned();
    for at_ms in &runs {
        match (Simulated { timeline: &timeline, at_ms: *at_ms }).read() {
            Measured(report) => report.units.iter().for_each(|unit| text += &row(at_ms - runs[0], unit)),
            Absent(why) => panic!("{why:?}"),
        }
    }
    text
}

fn config(scenario: &Scenario) -> Config {
    config::parse(&serde_yaml::to_string(&scenario.config).unwrap(), "scenario").unwrap()
}

fn asked(report: &Report) -> Vec<(i64, String)> {
    report.played.asked.iter().map(|a| (report.since_first_ms(a.at), a.verdict.to_string())).collect()
}

#[test]
fn a_recording_is_judged_as_the_run_judged_it() {
    let scenario = Scenario::parse(&story()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("story.csv");
    std::fs::write(&file, recorded(&scenario)).unwrap();
    let config = config(&scenario);
    // Every row is a run.
    let report = trace(&file, &Setting { config: &config, every_ms: 15_000, began_before_ms: 0 }).unwrap();
    let asked = asked(&report);
    assert_eq!(asked, by_the_run(&scenario));
    assert_eq!(
        asked.iter().map(|(_, verdict)| verdict.as_str()).collect::<Vec<_>>(),
        ["alert", "drain", "cancel"]
    );
}

#[test]
fn a_week_of_observing_says_what_enforcing_would_have_done() {
    let enforced = Scenario::parse(&story()).unwrap();
    let wanted = by_the_run(&enforced);
    // While the job runs, and from the archive after its Epilog.
    for gpus in ["gpus: 8", "gpus: 8, ended: 1m30s"] {
        let observed = story().replace("mode: enforce", "mode: observe").replacen("gpus: 8", gpus, 1);
        let observed = Scenario::parse(&observed).unwrap();
        let mut stage = Stage::set(&observed).unwrap();
        for at_ms in observed.runs().into_iter().chain([120_000]) {
            stage.run_at(at_ms).unwrap();
        }
        let reports = kept::ledger(&stage.place().dir, &config(&enforced)).unwrap();
        let [report] = &reports[..] else { panic!("{} job runs", reports.len()) };
        assert_eq!(asked(report), wanted, "{gpus}");
        assert!(
            report.json().starts_with(r#"{"job":"4242","user":{"value":"ada"},"first":"20"#),
            "{}",
            report.json()
        );
        assert!(report.text().starts_with("job 4242 (ada): 8 GPUs, 6 h"), "{}", report.text());
    }
}

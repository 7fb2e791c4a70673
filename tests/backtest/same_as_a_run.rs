//! A scenario played through the real run, and the same GPUs written down as nvidia-smi would: both must ask for the
//! same, at the same moments.

use gpu_reaper_hc::backtest::{Setting, trace};
use gpu_reaper_hc::config;
use gpu_reaper_hc::gpu::{GpuSource, simulated::Simulated};
use gpu_reaper_hc::model::{JobId, UnitSample};
use gpu_reaper_hc::reading::Reading::{Absent, Measured};
use gpu_reaper_hc::scenarios::{file::Scenario, stage::Stage};

const HEADER: &str = "timestamp, uuid, index, utilization.gpu [%], utilization.memory [%], memory.used [MiB], \
                      memory.total [MiB], enforced.power.limit [W], driver_version, processes\n";

fn scenario() -> Scenario {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/scenarios");
    let file = folder.join("alert-then-drain-then-cancel-in-three-runs/scenario.yaml");
    Scenario::parse(&std::fs::read_to_string(file).unwrap()).unwrap()
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

#[test]
fn a_recording_is_judged_as_the_run_judged_it() {
    let scenario = scenario();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("story.csv");
    std::fs::write(&file, recorded(&scenario)).unwrap();
    let yaml = serde_yaml::to_string(&scenario.config).unwrap();
    let config = config::parse(&yaml, "scenario").unwrap();
    // Every row is a run.
    let report = trace(&file, &Setting { config: &config, every_ms: 15_000, began_before_ms: 0 }).unwrap();
    let asked = report.played.asked.iter().map(|a| (report.since_first_ms(a.at), a.verdict.to_string()));
    let asked: Vec<_> = asked.collect();
    assert_eq!(asked, by_the_run(&scenario));
    assert_eq!(
        asked.iter().map(|(_, verdict)| verdict.as_str()).collect::<Vec<_>>(),
        ["alert", "drain", "cancel"]
    );
}

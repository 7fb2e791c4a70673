//! One report as JSON: for the comparison with NVIDIA's own binding, here and beside a real GPU.

use crate::*;
use serde_json::{Map, Value, json};

/// The report, its fields by their names.
pub fn page(report: &GpuReport) -> Value {
    let mut page = serde_json::to_value(report).unwrap();
    for (unit, shown) in report.units.iter().zip(page["units"].as_array_mut().unwrap()) {
        let by_name = |field: &Field| (field.word().to_owned(), json!(unit.readings.fields.get(*field)));
        shown["readings"]["fields"] = Value::Object(Field::ALL.iter().map(by_name).collect::<Map<_, _>>());
    }
    page
}

/// Prints one line, `report: {...}`, of this machine's GPUs or of the library that GPU_REAPER_LIBRARY names, with
/// GPM unless GPU_REAPER_GPM is `off`. No test: run by `cargo test --test gpu -- --ignored dump --nocapture`, and by `real/look.py`.
#[test]
#[ignore = "prints what this machine's GPUs say"]
fn dump() {
    let dir = tempfile::tempdir().unwrap();
    let library = std::env::var_os("GPU_REAPER_LIBRARY").map(Into::into);
    let gpm = if std::env::var("GPU_REAPER_GPM").is_ok_and(|v| v == "off") { Gpm::Off } else { Gpm::On };
    let source = SourcePlan::Nvml { library, gpm };
    let plan = Plan { source, states: false, deadline: PATIENT, lock: dir.path().join("probe.lock") };
    let (answer, took) = timed(worker::start(&plan));
    match answer {
        Measured(report) => {
            println!("\nreport: {}", json!({ "took_ms": took.as_millis() as u64, "report": page(&report) }))
        }
        Absent(why) => panic!("no report: {}", why.words()),
    }
}

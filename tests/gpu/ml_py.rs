//! NVIDIA's own Python binding on the same stand-in: every value that we read, it reads too, and what it is refused
//! we do not have. Skipped where the binding (PyPI nvidia-ml-py) is not there; with GPU_REAPER_REQUIRE_ML_PY set that
//! is a failure.

use crate::dump::page;
use crate::fake_nvml::{FakeNvml, INIT, Like, node};
use crate::*;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gpu/ml_py.py");

/// Whether the binding can be imported; says so where not.
pub fn binding_is_there() -> bool {
    let asked = Command::new("python3").args(["-c", "import pynvml; pynvml.c_nvmlGpmMetricsGet_t"]).output();
    let there = asked.is_ok_and(|out| out.status.success());
    if !there {
        assert!(std::env::var_os("GPU_REAPER_REQUIRE_ML_PY").is_none(), "python3 cannot import pynvml");
        println!("skipped: python3 cannot import pynvml (pip install nvidia-ml-py)");
    }
    there
}

fn theirs(fake: &FakeNvml, gpm: &str) -> Value {
    let mut python = Command::new("python3");
    let out = python.args(["-B", SCRIPT, gpm]).env("LD_LIBRARY_PATH", fake.dir()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn ours(fake: &FakeNvml, gpm: Gpm) -> Value {
    let source = SourcePlan::Nvml { library: Some(fake.library()), gpm };
    let plan = Plan { source, states: false, deadline: PATIENT, lock: fake.dir().join("probe.lock") };
    match worker::start(&plan).finish() {
        Measured(report) => page(&report),
        Absent(why) => panic!("no report: {}", why.words()),
    }
}

/// Our reason for what the binding was refused with (nvml.h, nvmlReturn_t).
fn reason(refused: &Value) -> &'static str {
    match (refused["error"].as_u64(), refused["at"].as_str()) {
        (Some(3 | 13 | 25 | 26), _) => "not_supported",
        (Some(6 | 21), _) => "no_data",
        (Some(4 | 17), _) => "no_permission",
        (Some(15), _) | (Some(999), Some("handle")) => "gpu_lost",
        (Some(16), _) => "reset_required",
        (Some(10 | 27 | 999), _) => "transient",
        other => panic!("no reason for {other:?}"),
    }
}

/// Walks both pages: counts the values compared and collects the places that differ.
#[derive(Default)]
struct Compared {
    values: usize,
    differ: BTreeSet<String>,
}

impl Compared {
    fn walk(&mut self, at: &str, ours: &Value, theirs: &Value) {
        let is_reading = |v: &Value| v.get("value").is_some() || v.get("error").is_some();
        match (ours, theirs) {
            (_, Value::Null) if is_reading(ours) => {
                // Nobody else read it: then it may not be measured.
                self.say(at, ours["value"].is_null());
            }
            (_, read) if is_reading(read) => {
                if read.get("error").is_some() {
                    self.say(at, ours["value"].is_null() && ours["absent"] == reason(read));
                } else if ours["value"].is_null() {
                    self.say(at, false);
                } else {
                    self.walk(at, &ours["value"], &read["value"]);
                }
            }
            (Value::Object(own), Value::Object(_) | Value::Null) => {
                own.iter().for_each(|(key, value)| self.walk(&format!("{at}/{key}"), value, &theirs[key]));
            }
            (Value::Array(own), Value::Array(read)) => {
                self.say(&format!("{at}/length"), own.len() == read.len());
                own.iter()
                    .zip(read)
                    .enumerate()
                    .for_each(|(n, (a, b))| self.walk(&format!("{at}/{n}"), a, b));
            }
            _ => self.say(at, ours == theirs),
        }
    }

    fn say(&mut self, at: &str, same: bool) {
        self.values += 1;
        if !same {
            self.differ.insert(at.to_owned());
        }
    }
}

/// Compares everything; `stricter` are the places where we believe less than the binding repeats.
fn agree(name: &str, fake: &FakeNvml, gpm: (Gpm, &str), stricter: &[&str]) {
    let (ours, theirs) = (ours(fake, gpm.0), theirs(fake, gpm.1));
    let mut compared = Compared::default();
    compared.walk("", &ours, &theirs);
    let want: BTreeSet<String> = stricter.iter().map(|s| s.to_string()).collect();
    assert_eq!(compared.differ, want, "{name}\nours: {ours:#}\ntheirs: {theirs:#}");
    for place in stricter {
        let place = ours.pointer(place).unwrap_or_else(|| panic!("{name}: no {place}"));
        assert_eq!(place["absent"], "implausible", "{name}: {place}");
    }
    println!("{name}: {} values, {} of them not believed", compared.values, stricter.len());
}

const NO_GPM: (Gpm, &str) = (Gpm::Off, "off");

#[test]
fn nvidias_own_binding_reads_what_we_read() {
    if !binding_is_there() {
        return;
    }
    agree("minors in reverse", &FakeNvml::new(&node(8)), NO_GPM, &[]);
    // NVIDIA/dcgm-exporter#46 (FT-02).
    for fault in ["gone", "nvmlDeviceGetHandleByIndex_v2 ! 999", "nvmlDeviceGetHandleByIndex_v2 ! 4"] {
        agree(fault, &FakeNvml::new(&format!("{}gpu 2\n{fault}\n", node(8))), NO_GPM, &[]);
    }
    counters();
    mixed();
    unreadable();
    broken_processes();
}

/// Counters that grow, at two instants of a fixed clock.
fn counters() {
    let growing = "gpu 1\nfield 83 = ull 1000 + 690000\nnvmlDeviceGetTotalEnergyConsumption = 1000 + 690000\n\
                   field 74 = ull 15814000000000 + 1000000000\nfield 138 all = ull 7 + 25000000\nfield 197 = ull 0 + 1\n";
    let fake = FakeNvml::new("");
    let mut energy = Vec::new();
    for now in ["300000000", "360000000"] {
        fake.play(&format!("now {now}\n{}{growing}", node(2)));
        agree("counters", &fake, NO_GPM, &[]);
        energy.push(ours(&fake, Gpm::Off)["units"][1]["readings"]["energy"]["value"].as_u64().unwrap());
    }
    assert_eq!(energy[1] - energy[0], 690_000 * 60);
}

/// guilbaults/slurm-job-exporter#50 (SH-01): one GPU split, one whole; with and without GPM.
fn mixed() {
    let supports = "nvmlGpmQueryDeviceSupport = 1\ngpm 2 = 61.07\ngpm 5 = 0\ngpm 10 = 3.5\n";
    let mut scenario = format!(
        "{}{supports}gpu 0\n{supports}nvmlDeviceGetMigMode = 1 1\nnvmlDeviceGetUtilizationRates ! 3\nsample 1 ! 3\n\
         sample 2 ! 3\nnvmlDeviceGetMaxMigDeviceCount = 7\n",
        node(2)
    );
    for (place, gi) in [(0, 1), (2, 5), (3, 6)] {
        scenario.push_str(&format!(
            "mig {place}\nnvmlDeviceGetUUID = MIG-{place}\nnvmlDeviceGetName = NVIDIA H100 MIG 1g.10gb\n\
             nvmlDeviceGetGpuInstanceId = {gi}\nnvmlDeviceGetComputeInstanceId = 0\n\
             nvmlDeviceGetMemoryInfo_v2 = 42412802048 20736638976 0\nnvmlDeviceGetComputeRunningProcesses_v3 = ok\n\
             proc compute = {INIT} 4096\ngpm 2 = {gi}.301\ngpm 5 = 0\ngpm 10 = 99.999\n"
        ));
    }
    for gpm in [NO_GPM, (Gpm::Mig, "mig"), (Gpm::On, "on")] {
        agree(&format!("MIG beside a whole GPU, GPM {}", gpm.1), &FakeNvml::new(&scenario), gpm, &[]);
    }
}

/// influxdata/telegraf#9785 (NR-08): a fault a GPU.
fn unreadable() {
    let faults = [
        ("nvmlDeviceGetUUID ! 999", None),
        ("nvmlDeviceGetMinorNumber ! 3", None),
        ("nvmlDeviceGetPciInfo_v3 ! 999", None),
        ("nvmlDeviceGetName ! 4", None),
        ("nvmlDeviceGetUtilizationRates ! 999", None),
        ("nvmlDeviceGetUtilizationRates = 101 7", Some("sm_util")),
        ("sample 1 ! 6", None),
        ("sample 2 = -:50 100000:101 200000:4 9200000:3", None),
        ("nvmlDeviceGetMemoryInfo_v2 = 100 200 0", Some("memory")),
        ("nvmlDeviceGetPowerUsage ! 4", None),
        ("nvmlDeviceGetPowerUsage = 4294967295", Some("power")),
        ("nvmlDeviceGetEnforcedPowerLimit ! 25", None),
        ("nvmlDeviceGetClockInfo(1) ! 17", None),
        ("nvmlDeviceGetMaxClockInfo(1) ! 27", None),
        ("nvmlDeviceGetTemperature(0) ! 26", None),
        ("nvmlDeviceGetTemperature(0) = 255", Some("temperature")),
        ("nvmlDeviceGetMigMode ! 3", None),
        ("nvmlDeviceGetComputeRunningProcesses_v3 ! 4", None),
        ("nvmlDeviceGetGraphicsRunningProcesses_v3 ! 3", None),
        ("proc graphics = 4194305 5", Some("processes")),
        ("field 74 ! 3", None),
        ("field 94 ! 999", None),
        ("field 144 = si -1", Some("fields/remap_pending")),
        ("nvmlDeviceGetFieldValues ! 3", None),
    ];
    for faults in faults.chunks(8) {
        let mut scenario = node(faults.len() as u64);
        let mut stricter = Vec::new();
        for (gpu, (fault, differs)) in faults.iter().enumerate() {
            scenario.push_str(&format!("gpu {gpu}\n{fault}\n"));
            stricter.extend(differs.map(|place| format!("/units/{gpu}/readings/{place}")));
        }
        let stricter: Vec<&str> = stricter.iter().map(String::as_str).collect();
        agree("unreadable, one by one", &FakeNvml::new(&scenario), NO_GPM, &stricter);
    }
}

/// XuehaiPan/nvitop#88 (NR-05): the driver of 535.54, whose list the binding repeats as it stands.
fn broken_processes() {
    let moved = ["197", "198", "230", "269", "270", "271"].map(|id| format!("field {id} ="));
    let all = node(1).replace("580.95.05", "535.54.03");
    let of_535: Vec<&str> = all.lines().filter(|line| !moved.iter().any(|m| line.starts_with(m))).collect();
    let scenario =
        of_535.join("\n") + "\nprocabi broken\nproc compute = 28128 1073741824\nproc compute = 28129 4096\n";
    let fake = FakeNvml::like(Like::Driver535, &scenario);
    agree("the process list of 535.54", &fake, NO_GPM, &["/units/0/readings/processes"]);
    let pids = theirs(&fake, "off")["units"][0]["readings"]["processes"]["value"].clone();
    let garbage = pids.as_array().unwrap().iter().any(|p| p["pid"] == 0 || p["pid"] == u32::MAX);
    assert!(garbage, "the stand-in misleads whoever trusts it: {pids}");
}

//! The GPU edge against stand-ins: the real worker, loader and bindings on a scripted library, and a scripted
//! nvidia-smi. No GPU, no driver, no network.

mod dump;
#[path = "../common/fake_nvml.rs"]
mod fake_nvml;
mod few;
mod fields;
mod gpm;
mod hangs;
mod ml_py;
mod readings;
mod real;
mod smi;
mod states;

use fake_nvml::{FakeNvml, INIT, TOTAL_BYTES};
use fields::{all_fields, no_fields, settled_fields};
use gpu_reaper_hc::gpu::worker::{self, Pending, Plan, SourcePlan};
use gpu_reaper_hc::model::*;
use gpu_reaper_hc::reading::Absence;
use gpu_reaper_hc::reading::Reading::{self, Absent, Measured};
use gpu_reaper_hc::units::*;
use std::fs;
use std::time::{Duration, Instant};

const PATIENT: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);
/// How much longer than its deadline a look may take.
const SLACK: Duration = Duration::from_millis(300);

fn plan(fake: &FakeNvml, deadline: Duration) -> Plan {
    let source = SourcePlan::Nvml { library: Some(fake.library()), gpm: Gpm::Off };
    Plan { source, states: false, deadline, lock: fake.dir().join("probe.lock") }
}

fn look(fake: &FakeNvml) -> Reading<GpuReport> {
    worker::start(&plan(fake, PATIENT)).finish()
}

fn report(fake: &FakeNvml) -> GpuReport {
    match look(fake) {
        Measured(report) => report,
        Absent(why) => panic!("no report: {}", why.words()),
    }
}

fn percent(n: u32) -> Reading<Percent> {
    Measured(Percent::new(n).unwrap())
}

fn peak(n: u32, covered_ms: u32) -> Reading<Peak> {
    Measured(Peak { percent: Percent::new(n).unwrap(), covered_ms })
}

/// What [`fake_nvml::node`] says of its GPU `i` of `gpus`.
fn healthy(i: u32, gpus: u32) -> UnitSample {
    let n = u64::from(i);
    let memory =
        Memory { used: MemoryBytes((n + 1) << 30), total: MemoryBytes(TOTAL_BYTES), excludes_reserved: true };
    let process = |pid, kind, memory| GpuProcess { pid, kind, memory };
    UnitSample {
        identity: UnitIdentity {
            uuid: Measured(UnitUuid::new(&format!("GPU-{i:08}-1111-2222-3333-444444444444")).unwrap()),
            kind: UnitKind::Gpu,
            index: NvmlIndex(i),
            minor: Measured(DeviceMinor(gpus - 1 - i)),
            pci: Measured(PciAddress::parse(&format!("0000:{:02x}:00.0", 0x1a + i)).unwrap()),
            name: Measured("NVIDIA H100 80GB HBM3".into()),
        },
        readings: Readings {
            fields: all_fields(n),
            sm_util: percent(10 * i),
            mem_util: percent(5 * i),
            sm_peak: peak(20 + i, 9_800),
            mem_peak: peak(2, 8_900),
            memory: Measured(memory),
            power: Measured(Milliwatts(90_000 + n)),
            power_limit: Measured(Milliwatts(700_000)),
            energy: Measured(Millijoules(5_000_000_000 * (n + 1))),
            sm_clock: Measured(Megahertz(345 + i)),
            sm_clock_max: Measured(Megahertz(1980)),
            temperature: Measured(Celsius(30 + i)),
            clocks_event: Measured(ClocksEventMask(0x604)),
            mig: Measured(MigMode::Disabled),
            processes: Measured(vec![
                process(std::process::id(), ProcessKind::Compute, Measured(memory.used)),
                process(INIT, ProcessKind::Mps, Absent(Absence::NotSupported)),
            ]),
        },
    }
}

fn unread(index: u32, why: Absence) -> UnitSample {
    let identity = UnitIdentity {
        uuid: Absent(why),
        kind: UnitKind::Gpu,
        index: NvmlIndex(index),
        minor: Absent(why),
        pci: Absent(why),
        name: Absent(why),
    };
    UnitSample { identity, readings: Readings::absent(why) }
}

/// Waits for something that another process is about to do.
fn eventually(what: &str, done: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < until, "never came: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits for the answer and says how long that took.
fn timed(pending: Pending) -> (Reading<GpuReport>, Duration) {
    let from = Instant::now();
    (pending.finish(), from.elapsed())
}

/// The letter of /proc/PID/stat; `None` once the process is gone.
fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

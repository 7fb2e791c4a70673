//! One hung GPU, judged by the real rules from a history built by hand; every node of the fleet has the same one.
//! Makes no finding that the rules would not make.

use gpu_reaper_hc::model::*;
use gpu_reaper_hc::policy::{Assessment, Finding, Judgement, Rules, judge};
use gpu_reaper_hc::reading::{Absence, Reading};
use gpu_reaper_hc::units::*;

const TICKS: i64 = 241;
const TICK_MS: i64 = 30_000;

/// The only unit of each node.
pub fn unit() -> UnitUuid {
    UnitUuid::new("GPU-00000000-0000-0000-0000-000000000000").unwrap()
}

/// A card at `util` percent with one process.
fn card(util: u32) -> Readings {
    let percent = |value| Reading::Measured(Percent::new(value).unwrap());
    Readings {
        sm_util: percent(util),
        mem_util: percent(util),
        memory: Reading::Measured(Memory {
            used: MemoryBytes(60 << 30),
            total: MemoryBytes(80 << 30),
            excludes_reserved: true,
        }),
        power: Reading::Measured(Milliwatts(if util > 0 { 600_000 } else { 118_000 })),
        power_limit: Reading::Measured(Milliwatts(700_000)),
        processes: Reading::Measured(vec![GpuProcess {
            pid: 4711,
            kind: ProcessKind::Compute,
            memory: Reading::Measured(MemoryBytes(60 << 30)),
        }]),
        ..Readings::absent(Absence::NotSupported)
    }
}

/// What a node's GPUs show while its job hangs.
pub fn quiet() -> GpuReport {
    let identity = UnitIdentity {
        uuid: Reading::Measured(unit()),
        kind: UnitKind::Gpu,
        index: NvmlIndex(0),
        minor: Reading::Measured(DeviceMinor(0)),
        pci: Reading::Absent(Absence::NotSupported),
        name: Reading::Absent(Absence::NotSupported),
    };
    let units = vec![UnitSample { identity, readings: card(0) }];
    GpuReport { driver: Reading::Measured("580.65.06".to_owned()), units }
}

/// What the rules say of a job that has shown `util` percent for the last two hours.
pub fn judged(util: u32, job: &JobRun, rules: &Rules, now: &Now) -> Assessment {
    let tick = |t: i64| Tick {
        run: RunId(t),
        at: BootMs(now.boot.0 - (TICKS - 1 - t) * TICK_MS),
        wall: WallMs(now.wall.0 - (TICKS - 1 - t) * TICK_MS),
        driver: Reading::Measured("580.65.06".to_owned()),
        job: JobSample {
            frozen: Reading::Measured(false),
            holders: Reading::Measured(0),
            ..JobSample::absent(Absence::NotSupported)
        },
        units: vec![card(util).counted()],
    };
    let unit = UnitRef { uuid: unit(), index: NvmlIndex(0), name: Reading::Absent(Absence::NotRecorded) };
    let history = JobHistory {
        floors: Vec::new(),
        job: job.clone(),
        units: Reading::Measured(vec![unit]),
        node_units: Reading::Measured(1),
        ticks: (0..TICKS).map(tick).collect(),
        actions: Vec::new(),
        open_finding: None,
        fault: None,
    };
    let every_tick = Cadence { median_ms: TICK_MS, p90_ms: TICK_MS };
    judge(&history, rules, Reading::Measured(every_tick), now)
}

/// The finding of a hung job.
pub fn hung(job: &JobRun, rules: &Rules, now: &Now) -> Finding {
    match judged(0, job, rules, now).judgement {
        Judgement::Breaching(finding) => *finding,
        other => panic!("a hung job is {other:?}"),
    }
}

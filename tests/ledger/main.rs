//! The ledger against the world: several processes at once, kills, full and read-only disks, damaged files.
//! Every trouble is an error value or a new file that says so; none is a panic, and none loses what was good.

mod crowd;
mod damage;
mod disk;
mod size;

use gpu_reaper_hc::ledger::*;
use gpu_reaper_hc::model::*;
use gpu_reaper_hc::reading::Absence;
use gpu_reaper_hc::reading::Reading::{Absent, Measured};
use gpu_reaper_hc::units::*;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const BOOT: &str = "b6c9d2f0-3b1e-4f0e-9a51-0c4f5a2f7d11";
const MIB: u64 = 1 << 20;

fn at(minutes: i64) -> Now {
    Now {
        boot_id: BOOT.to_owned(),
        boot: BootMs(3_600_000 + minutes * 60_000),
        wall: WallMs(1_764_422_738_000 + minutes * 60_000),
    }
}

fn node() -> NodeName {
    NodeName::new("gpu-a7").unwrap()
}

fn keep(max_bytes: u64) -> Keep {
    Keep {
        samples_ms: 24 * 3_600_000,
        archive_ms: 14 * 86_400_000,
        case_files_ms: 30 * 86_400_000,
        max_bytes,
    }
}

fn opening(wait_ms: u64, max_bytes: u64) -> Opening {
    Opening { wait: Duration::from_millis(wait_ms), max_bytes }
}

fn open(dir: &Path) -> Result<Ledger, LedgerError> {
    Ledger::open(dir, &node(), &at(0), opening(10_000, 64 * MIB))
}

fn uuid(n: u32) -> UnitUuid {
    UnitUuid::new(&format!("GPU-{n:08}-0000-0000-0000-000000000000")).unwrap()
}

fn report(units: u32) -> GpuReport {
    let unit = |n| UnitSample {
        identity: UnitIdentity {
            uuid: Measured(uuid(n)),
            kind: UnitKind::Gpu,
            index: NvmlIndex(n),
            minor: Measured(DeviceMinor(n)),
            pci: Measured(PciAddress::parse(&format!("0000:{n:02x}:00.0")).unwrap()),
            name: Measured("NVIDIA H100".to_owned()),
        },
        readings: Readings {
            sm_util: Measured(Percent::new(0).unwrap()),
            mem_util: Measured(Percent::new(0).unwrap()),
            memory: Measured(Memory {
                used: MemoryBytes(61 << 30),
                total: MemoryBytes(80 << 30),
                excludes_reserved: true,
            }),
            power: Measured(Milliwatts(92_000)),
            energy: Measured(Millijoules(7_000_000)),
            processes: Measured(vec![GpuProcess {
                pid: 1000 + n,
                kind: ProcessKind::Compute,
                memory: Measured(MemoryBytes(60 << 30)),
            }]),
            ..Readings::absent(Absence::NotSupported)
        },
    };
    GpuReport { driver: Measured("580.65.06".to_owned()), units: (0..units).map(unit).collect() }
}

fn registration(id: u64) -> Registration {
    Registration {
        cluster: Measured("lab".to_owned()),
        job: JobId::new(id).unwrap(),
        restart: 0,
        sluid: Absent(Absence::NotSupported),
        start: JobStart { boot: at(0).boot, wall: at(0).wall, source: StartSource::Registration },
        user: Measured("ada".to_owned()),
        uid: Measured(1000),
        account: Absent(Absence::NoData),
        partition: Measured("h100".to_owned()),
        qos: Absent(Absence::NotAsked),
        nodes: Measured(1),
        node_list: Measured("gpu-a7".to_owned()),
        het_leader: None,
        limit_end: Absent(Absence::NoData),
        gpus: vec![GpuClaim::Index(GresIndex(0))],
        by: RegisteredBy::Prolog,
    }
}

/// A run that sees `report` for one job run that holds everything.
fn append(
    ledger: &mut Ledger,
    minutes: i64,
    report: &GpuReport,
    job: Option<JobRunId>,
    keep: &Keep,
) -> Result<RunId, LedgerError> {
    let units = report.units.iter().filter_map(|u| u.identity.uuid.measured());
    let owners: BTreeMap<_, _> =
        job.into_iter().flat_map(|j| units.clone().map(move |u| (u.clone(), j))).collect();
    let sample = JobSample::absent(Absence::NotAsked);
    let jobs: Vec<_> =
        job.into_iter().map(|run| JobInRun { run, sample: sample.clone(), active: false }).collect();
    ledger.append(&NewRun {
        now: &at(minutes),
        killed: None,
        overlapped: 0,
        gpus: Measured(report),
        owners: &owners,
        processes: &BTreeMap::new(),
        jobs: &jobs,
        keep,
    })
}

fn ticks(ledger: &Ledger, units: u32) -> Vec<usize> {
    let name = Absent(Absence::NoData);
    let units = (0..units).map(|n| UnitRef { uuid: uuid(n), index: NvmlIndex(n), name: name.clone() });
    let units: Vec<_> = units.collect();
    let asked = |run| JobAsked { run, units: Measured(units.clone()), reach: None };
    let asked = ledger.open_runs(BOOT).unwrap().into_iter().map(asked).collect();
    let histories = ledger.replay(BOOT, asked, Measured(8), &mut |_| false, true).unwrap();
    histories.iter().map(|h| h.ticks.len()).collect()
}

fn sqlite(dir: &Path, sql: &str) -> String {
    let conn = rusqlite::Connection::open(dir.join("ledger.db")).unwrap();
    conn.query_row(sql, [], |r| r.get::<_, rusqlite::types::Value>(0).map(|v| format!("{v:?}"))).unwrap()
}

/// Runs one of this file's own steps in a process of its own.
fn step(name: &str, dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"])
        .env("LEDGER_STEP_DIR", dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn step_dir() -> Option<PathBuf> {
    std::env::var_os("LEDGER_STEP_DIR").map(PathBuf::from)
}

fn finished(child: Child) {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

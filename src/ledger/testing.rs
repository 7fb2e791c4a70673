//! What the ledger's own tests share: a ledger in a folder of its own, instants, and plain facts to store.

use super::*;
use crate::model::*;
use crate::reading::Absence;
use crate::reading::Reading::{Absent, Measured};
use crate::units::*;
use std::collections::BTreeMap;

pub(super) const BOOT: &str = "b6c9d2f0-3b1e-4f0e-9a51-0c4f5a2f7d11";
pub(super) const OPENING: Opening = Opening { wait: Duration::from_secs(2), max_bytes: 64 << 20 };
pub(super) const KEEP: Keep = Keep {
    samples_ms: 24 * 3_600_000,
    archive_ms: 14 * 86_400_000,
    case_files_ms: 30 * 86_400_000,
    max_bytes: 64 << 20,
};

/// The instant `minutes` after the tests' beginning, an hour into the boot.
pub(super) fn at(minutes: i64) -> Now {
    Now {
        boot_id: BOOT.to_owned(),
        boot: BootMs((60 + minutes) * 60_000),
        wall: WallMs(1_764_422_738_000 + minutes * 60_000),
    }
}

pub(super) fn node() -> NodeName {
    NodeName::new("gpu-a7").unwrap()
}

pub(super) fn fresh() -> (tempfile::TempDir, Ledger) {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(dir.path(), &node(), &at(0), OPENING).unwrap();
    (dir, ledger)
}

pub(super) fn job(id: u64) -> JobId {
    JobId::new(id).unwrap()
}

pub(super) fn uuid(n: u32) -> UnitUuid {
    UnitUuid::new(&format!("GPU-{n:08}-0000-0000-0000-000000000000")).unwrap()
}

pub(super) fn registration(id: u64, restart: u32, by: RegisteredBy) -> Registration {
    Registration {
        cluster: Measured("lab".to_owned()),
        job: job(id),
        restart,
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
        by,
    }
}

pub(super) fn details(display_id: &str) -> JobDetails {
    JobDetails {
        state: JobState::Running,
        start_unix_s: 1_764_422_738,
        restart: Measured(0),
        display_id: display_id.to_owned(),
        name: Measured("a\nname".to_owned()),
        user: Measured("ada".to_owned()),
        account: Absent(Absence::NoData),
        partition: Measured("h100".to_owned()),
        qos: Measured("normal".to_owned()),
        nodes: Measured(1),
        node_list: Measured("gpu-a7".to_owned()),
        shares: Measured(false),
        near: NearDeed::absent(Absence::NotAsked),
    }
}

/// A unit that reads `util`.
pub(super) fn unit(n: u32, util: u32) -> UnitSample {
    let percent = Percent::new(util).unwrap();
    let readings = Readings {
        sm_util: Measured(percent),
        mem_util: Measured(percent),
        sm_peak: Measured(Peak { percent, covered_ms: 16_000 }),
        memory: Measured(Memory {
            used: MemoryBytes(61 << 30),
            total: MemoryBytes(80 << 30),
            excludes_reserved: true,
        }),
        power: Measured(Milliwatts(92_000)),
        energy: Measured(Millijoules(1_000_000 + u64::from(n))),
        clocks_event: Measured(ClocksEventMask(u64::MAX)),
        mig: Absent(Absence::NotSupported),
        processes: Measured(vec![GpuProcess {
            pid: 1000 + n,
            kind: ProcessKind::Compute,
            memory: Measured(MemoryBytes(60 << 30)),
        }]),
        ..Readings::absent(Absence::NotSupported)
    };
    let identity = UnitIdentity {
        uuid: Measured(uuid(n)),
        kind: UnitKind::Gpu,
        index: NvmlIndex(n),
        minor: Measured(DeviceMinor(n)),
        pci: Measured(PciAddress::parse(&format!("0000:{n:02x}:00.0")).unwrap()),
        name: Measured("NVIDIA H100".to_owned()),
    };
    UnitSample { identity, readings }
}

/// A report of units `0..n`, all reading `util`.
pub(super) fn report(n: u32, util: u32) -> GpuReport {
    GpuReport { driver: Measured("580.65.06".to_owned()), units: (0..n).map(|i| unit(i, util)).collect() }
}

/// What a run brings, to be changed by the test before it is appended.
pub(super) struct Brought {
    pub(super) now: Now,
    pub(super) report: GpuReport,
    pub(super) owners: BTreeMap<UnitUuid, JobRunId>,
    pub(super) processes: BTreeMap<u32, ProcessFacts>,
    pub(super) jobs: Vec<JobInRun>,
    pub(super) keep: Keep,
}

impl Brought {
    pub(super) fn at(minutes: i64, report: GpuReport) -> Brought {
        Brought {
            now: at(minutes),
            report,
            owners: BTreeMap::new(),
            processes: BTreeMap::new(),
            jobs: Vec::new(),
            keep: KEEP,
        }
    }

    /// All its units and processes are that job run's.
    pub(super) fn owned_by(mut self, run: JobRunId) -> Brought {
        for unit in &self.report.units {
            if let Measured(uuid) = &unit.identity.uuid {
                self.owners.insert(uuid.clone(), run);
            }
            for process in unit.readings.processes.measured().into_iter().flatten() {
                let facts = ProcessFacts { start_ticks: Measured(77), job_run: Some(run) };
                self.processes.insert(process.pid, facts);
            }
        }
        let sample = JobSample {
            working_set_bytes: Absent(Absence::NotRecorded),
            holders: Absent(Absence::NotAsked),
            frozen: Measured(false),
            cpu_ms: Measured(5),
            written_bytes: Absent(Absence::NoPermission),
            read_bytes: Measured(7),
        };
        self.jobs.push(JobInRun { run, sample, active: false });
        self
    }

    pub(super) fn run(&self) -> NewRun<'_> {
        NewRun {
            now: &self.now,
            killed: None,
            overlapped: 0,
            gpus: Measured(&self.report),
            owners: &self.owners,
            processes: &self.processes,
            jobs: &self.jobs,
            keep: &self.keep,
        }
    }

    pub(super) fn append(&self, ledger: &mut Ledger) -> RunId {
        ledger.append(&self.run()).unwrap()
    }
}

/// How many rows a condition finds.
pub(super) fn count(ledger: &Ledger, from: &str) -> i64 {
    ledger.conn.query_row(&format!("SELECT count(*) FROM {from}"), [], |r| r.get(0)).unwrap()
}

//! A node made of files: a stand-in NVML library with eight busy GPUs, a configuration that observes, one
//! registered job that holds them all, and a ledger that already holds a day of it.
//!
//! The past is not invented: one real run writes its rows, and they are repeated back in time.

use crate::measure::Program;
use gpu_reaper_hc::model::{Field, Fields};
use gpu_reaper_hc::reading::Absence;
use gpu_reaper_hc::reading::Reading::{Absent, Measured};
use rusqlite::{Connection, params};
use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// GPUs of the node.
pub const GPUS: usize = 8;

/// Spacing of the repeated runs.
pub const SPACING_MS: i64 = 30_000;

/// Age of the job.
const JOB_AGE_SECS: i64 = 25 * 3600;

/// Runs in a day at that spacing.
pub const RUNS_A_DAY: i64 = 24 * 3_600_000 / SPACING_MS;

/// The node's name, for its folder and for SLURMD_NODENAME.
pub const NAME: &str = "n1";

/// MIG instances of each GPU where it is split.
const INSTANCES: usize = 7;

/// What the GPUs of a node do, now and in the history that is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Eight GPUs at work.
    Busy,
    /// Eight GPUs that stand still with a process resident.
    Hung,
    /// The same eight in seven instances each.
    HungInstances,
}

impl Load {
    const ALL: [(Load, &str); 3] =
        [(Load::Busy, "busy"), (Load::Hung, "hung"), (Load::HungInstances, "hung-instances")];

    pub fn word(self) -> &'static str {
        Load::ALL.iter().find(|(load, _)| *load == self).map_or("", |(_, word)| word)
    }

    pub fn of(word: &str) -> Option<Load> {
        Load::ALL.iter().find(|(_, own)| *own == word).map(|(load, _)| *load)
    }

    /// The units that the job holds.
    fn units(self) -> Vec<String> {
        match self {
            Load::Busy | Load::Hung => (0..GPUS).map(uuid).collect(),
            Load::HungInstances => {
                (0..GPUS * INSTANCES).map(|n| instance(n / INSTANCES, n % INSTANCES)).collect()
            }
        }
    }

    /// What one GPU draws.
    fn watts(self) -> u64 {
        match self {
            Load::Busy => 690,
            Load::Hung | Load::HungInstances => 118,
        }
    }

    /// The scenario of the stand-in library.
    pub fn driver(self) -> String {
        let mut text = "epoch 1790000000000000\nnvmlSystemGetDriverVersion = 580.95.05\nnvmlSystemGetNVMLVersion = 13.580.95.05\n\
                        nvmlSystemGetCudaDriverVersion = 13000\n"
            .to_string();
        for gpu in 0..GPUS {
            let _ = write!(text, "gpu {gpu}\n{}", card(self, gpu));
        }
        text
    }
}

/// A node's folder. Everything of it lies beneath.
pub struct Node {
    pub folder: PathBuf,
    binary: PathBuf,
}

impl Node {
    /// A node that was laid out before.
    pub fn at(binary: &Path, folder: &Path) -> Node {
        Node { folder: folder.to_path_buf(), binary: binary.to_path_buf() }
    }

    /// Lays everything out but the ledger. `driver` is the scenario of the stand-in library, `more` goes to the
    /// end of the configuration.
    pub fn new(binary: &Path, folder: &Path, driver: &str, more: &str) -> io::Result<Node> {
        let node = Node { folder: folder.to_path_buf(), binary: binary.to_path_buf() };
        fs::create_dir_all(folder.join("bin"))?;
        build_stand_in(&node.library())?;
        fs::write(folder.join("scenario.txt"), driver)?;
        let config = format!(
            "mode: observe\nstate_dir: {}\ngpu: {{ library: {}, deadline: 2s }}\nslurm: {{ bin_dir: {} }}\n{more}\n",
            folder.join("state").display(),
            node.library().display(),
            folder.join("bin").display()
        );
        fs::write(node.config(), config)?;
        Ok(node)
    }

    fn library(&self) -> PathBuf {
        self.folder.join("libnvidia-ml.so.1")
    }

    pub fn config(&self) -> PathBuf {
        self.folder.join("config.yaml")
    }

    /// One health-check run.
    pub fn health_run(&self) -> Program {
        Program::new([self.binary.as_os_str(), "--config".as_ref(), self.config().as_os_str()])
    }

    /// The Prolog of a job that holds all units, as slurmd of 25.11 calls it (UUIDs in CUDA_VISIBLE_DEVICES).
    pub fn prolog(&self, load: Load, job: u32, started_unix_secs: i64) -> Program {
        let units = load.units();
        let mut prolog = self.health_run();
        prolog.argv.push("prolog".into());
        let env = [
            ("SLURM_JOB_ID", job.to_string()),
            ("SLURM_JOB_USER", "ada".to_string()),
            ("SLURM_JOB_UID", "1001".to_string()),
            ("SLURM_JOB_PARTITION", "h100".to_string()),
            ("SLURM_JOB_ACCOUNT", "physics".to_string()),
            ("SLURM_JOB_RESTART_COUNT", "0".to_string()),
            ("SLURM_JOB_NUM_NODES", "1".to_string()),
            ("SLURM_JOB_NODELIST", NAME.to_string()),
            ("SLURM_CLUSTER_NAME", "bench".to_string()),
            ("SLURM_SCRIPT_CONTEXT", "prolog_slurmd".to_string()),
            ("SLURM_JOB_START_TIME", started_unix_secs.to_string()),
            ("SLURM_JOB_GPUS", (0..units.len()).map(|n| n.to_string()).collect::<Vec<_>>().join(",")),
            ("CUDA_VISIBLE_DEVICES", units.join(",")),
        ];
        prolog.env.extend(env.map(|(key, value)| (key.to_string(), value)));
        prolog
    }

    /// The ledger: the one SQLite file in the node's state folder.
    pub fn ledger(&self) -> io::Result<PathBuf> {
        let state = self.folder.join("state").join(NAME);
        let is_ledger =
            |path: &PathBuf| fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"SQLite format 3\0"));
        let mut files = fs::read_dir(&state)?.filter_map(|entry| entry.ok().map(|e| e.path()));
        files.find(is_ledger).ok_or_else(|| io::Error::other(format!("no ledger in {}", state.display())))
    }

    /// Registers the job and lets one run write its rows; `runs` in all then stand in the ledger, all of them since
    /// the registration.
    pub fn with_history(&self, load: Load, runs: i64, now_unix_secs: i64) -> io::Result<()> {
        self.prolog(load, 4242, now_unix_secs - JOB_AGE_SECS).must_run()?;
        self.health_run().must_run()?;
        repeat_back_in_time(&self.ledger()?, load, runs).map_err(io::Error::other)
    }
}

/// The UUID of one of the stand-in's GPUs.
pub fn uuid(gpu: usize) -> String {
    format!("GPU-0000000{gpu}-1111-2222-3333-444444444444")
}

/// Compiles the stand-in library with every name that a current driver exports; it reads `scenario.txt` beside
/// itself.
pub fn build_stand_in(library: &Path) -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake-nvml");
    let flags = ["-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libnvidia-ml.so.1"];
    let output = Command::new("gcc")
        .args(flags)
        .args(["fake_nvml.c", "all_symbols.c"].map(|source| folder.join(source)))
        .arg("-o")
        .arg(library)
        .args(["-lpthread", "-ldl"])
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("gcc: {}", String::from_utf8_lossy(&output.stderr))))
}

/// The UUID of one of their instances.
fn instance(gpu: usize, place: usize) -> String {
    format!("MIG-0000000{gpu}-1111-2222-3333-00000000000{place}")
}

/// One H100, with a process and with the 72 entries that current drivers keep in a utilization ring.
fn card(load: Load, gpu: usize) -> String {
    // One that is there whenever a run looks: a list of processes that are all gone is not believed.
    let pid = 1;
    let (sm, memory, mhz) = if load == Load::Busy { (97, 60, 1755) } else { (0, 0, 1980) };
    let mw = load.watts() * 1000;
    let mut text = format!(
        "  nvmlDeviceGetUUID = {}
  nvmlDeviceGetMinorNumber = {gpu}
  nvmlDeviceGetPciInfo_v3 = 00000000:{:02X}:00.0
  nvmlDeviceGetName = NVIDIA H100 80GB HBM3
  nvmlDeviceGetArchitecture = 9
  nvmlDeviceGetPersistenceMode = 1
  nvmlDeviceGetUtilizationRates = {sm} {memory}
  nvmlDeviceGetMemoryInfo = 85520809984 75770101760
  nvmlDeviceGetMemoryInfo_v2 = 85520809984 75161927680 608174080
  nvmlDeviceGetPowerUsage = {mw}
  nvmlDeviceGetEnforcedPowerLimit = 700000
  nvmlDeviceGetPowerManagementDefaultLimit = 700000
  nvmlDeviceGetTotalEnergyConsumption = 1000000000 + {mw}
  nvmlDeviceGetClockInfo(1) = {mhz}
  nvmlDeviceGetMaxClockInfo(1) = 1980
  nvmlDeviceGetTemperature(0) = 64
  nvmlDeviceGetCurrentClocksThrottleReasons = 0x4
  nvmlDeviceGetCurrentClocksEventReasons = 0x4
  nvmlDeviceGetComputeRunningProcesses_v3 = ok
  nvmlDeviceGetGraphicsRunningProcesses_v3 = ok
  nvmlDeviceGetMPSComputeRunningProcesses_v3 = ok
  sample 1 = 167000:{sm}*72
  sample 2 = 167000:{memory}*72
  field 83 = ull 1000000000 + {mw}
  field 186 = u {mw}
  field 74 = ull 9000000000
  field 138 all = ull 9000000000 + 1000000
  field 139 all = ull 9000000000 + 1000000
  fields = ull 0
",
        uuid(gpu),
        0x1a + 0x10 * gpu
    );
    if load != Load::HungInstances {
        let _ = write!(text, "  nvmlDeviceGetMigMode = 0 0\n  proc compute = {pid} 74826383360\n");
        return text;
    }
    text.push_str("  nvmlDeviceGetMigMode = 1 1\n  nvmlDeviceGetMaxMigDeviceCount = 7\n");
    for place in 0..INSTANCES {
        let _ = write!(
            text,
            "mig {place}
  nvmlDeviceGetUUID = {}
  nvmlDeviceGetName = NVIDIA H100 80GB HBM3 MIG 1g.10gb
  nvmlDeviceGetGpuInstanceId = {}
  nvmlDeviceGetComputeInstanceId = 0
  nvmlDeviceGetMemoryInfo_v2 = 10603200512 9663676416 0
  nvmlDeviceGetComputeRunningProcesses_v3 = ok
  nvmlDeviceGetGraphicsRunningProcesses_v3 = ok
  nvmlDeviceGetMPSComputeRunningProcesses_v3 = ok
  proc compute = {pid} 9663676416
",
            instance(gpu, place),
            place + 7
        );
    }
    text
}

/// Repeats the newest run's rows until `runs` runs stand in the ledger, [`SPACING_MS`] apart, the newest last.
fn repeat_back_in_time(ledger: &Path, load: Load, runs: i64) -> rusqlite::Result<()> {
    let mut db = Connection::open(ledger)?;
    let newest: i64 = db.query_row("SELECT max(id) FROM run", [], |row| row.get(0))?;
    let all = db.transaction()?;
    // Once before they are repeated too, so that rows come as long as they stay.
    fill_fields(&all, load, newest..=newest)?;
    repeat(&all, "run", "id", newest, runs)?;
    for table in BY_RUN {
        repeat(&all, table, "run", newest, runs)?;
    }
    let last = newest + runs - 1;
    let back =
        "UPDATE run SET boottime_ms = boottime_ms - (?1 - id) * ?2, wall_ms = wall_ms - (?1 - id) * ?2";
    all.execute(back, params![last, SPACING_MS])?;
    let registered = "UPDATE job_run SET registered_boot_ms = registered_boot_ms - ?1";
    all.execute(registered, [JOB_AGE_SECS * 1000])?;
    let energy = "UPDATE sample SET energy_mj = energy_mj - (?1 - run) * ?2";
    all.execute(energy, params![last, SPACING_MS * load.watts() as i64])?;
    // As GPM reads an instance that does nothing.
    all.execute(
        "UPDATE sample SET sm_util = 0, sm_util_absent = NULL, mem_util = 0, mem_util_absent = NULL
         WHERE unit IN (SELECT id FROM unit WHERE parent NOTNULL)",
        [],
    )?;
    fill_fields(&all, load, newest..=last)?;
    all.commit()
}

/// An instance has none of its own.
fn fill_fields(db: &Connection, load: Load, runs: RangeInclusive<i64>) -> rusqlite::Result<()> {
    let sql = "UPDATE sample SET fields = ?3 WHERE run = ?1
               AND unit = (SELECT id FROM unit WHERE id = ?2 AND parent ISNULL)";
    let mut fill = db.prepare(sql)?;
    for run in runs {
        for unit in 1..=GPUS as i64 {
            fill.execute(params![run, unit, fields(run, unit, load == Load::Busy).pack()])?;
        }
    }
    Ok(())
}

/// What an H100 says that has been up for some days: two causes of throttling have their time, of which at work one
/// moves; PCIe and NVLink move at work; the rest of a sound card stands still.
fn fields(run: i64, unit: i64, works: bool) -> Fields {
    let moved =
        |start: u64, a_run: u64| Measured(start + unit as u64 * 7_919 + works as u64 * run as u64 * a_run);
    let mut fields = Fields::absent(Absence::NotSupported);
    for field in Field::ALL {
        let value = match field {
            Field::PowerCapNs => moved(81_234_567_890_123, 4_321_987_654),
            Field::LowUtilizationNs => Measured(34_567_890_123_456),
            Field::PcieTxBytes => moved(412_345_678_901_234, 31_234_567_890),
            Field::PcieRxBytes => moved(523_456_789_012_345, 42_345_678_901),
            Field::NvlinkTxKib | Field::NvlinkRxKib => moved(1_234_567_890_123, 987_654_321),
            Field::RetiredSingleBit | Field::RetiredDoubleBit | Field::RetiredPending => continue,
            Field::GpmSmActive | Field::GpmTensorActive | Field::GpmDramActive => Absent(Absence::NotAsked),
            Field::PersistenceMode | Field::FabricState | Field::FabricStatus => Absent(Absence::NotAsked),
            Field::NvlinkActive | Field::NvlinkInactive => Absent(Absence::NotAsked),
            _ => Measured(0),
        };
        fields.set(*field, value);
    }
    fields
}

/// Tables that hold what each run read.
const BY_RUN: &[&str] = &["sample", "job_sample"];

/// Copies one run's rows of a table under the next `runs - 1` numbers.
fn repeat(db: &Connection, table: &str, key: &str, newest: i64, runs: i64) -> rusqlite::Result<()> {
    let mut ask = db.prepare("SELECT name FROM pragma_table_info(?1)")?;
    let columns: Vec<String> = ask.query_map([table], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let list = |number: &str| {
        columns.iter().map(|c| if c == key { number } else { c }).collect::<Vec<_>>().join(", ")
    };
    let copy = format!(
        "WITH RECURSIVE copy(number) AS (SELECT ?1 + 1 UNION ALL SELECT number + 1 FROM copy WHERE number < ?1 + ?2 - 1)
         INSERT INTO {table} ({}) SELECT {} FROM copy CROSS JOIN {table} WHERE {key} = ?1",
        list(key),
        list("copy.number")
    );
    db.execute(&copy, params![newest, runs]).map(|_| ())
}

//! The facts: what the sources say about GPUs and jobs, and what the ledger remembers of them. Plain data,
//! no rules, no I/O. A field that may be unreadable is a [`Reading`]; a name is a type of its own.

mod fields;
mod history;
mod node;
mod whose;
pub use fields::*;
pub use history::*;
pub use node::*;
pub use whose::*;

use crate::reading::{Absence, Reading};
use crate::units::*;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The moment of one invocation, read once in `main` (or given by a scenario) and an input ever after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Now {
    /// `/proc/sys/kernel/random/boot_id`: instants of different boots cannot be compared.
    pub boot_id: String,
    /// CLOCK_BOOTTIME.
    pub boot: BootMs,
    /// The wall clock, for showing.
    pub wall: WallMs,
}

impl Now {
    /// The wall-clock time of another instant of this boot, by today's clock.
    pub fn wall_of(&self, at: BootMs) -> WallMs {
        WallMs(self.wall.0.saturating_sub(self.boot.since_ms(at)))
    }
}

/// How often this node's runs really come, over the last 24 h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cadence {
    /// Median spacing of runs.
    pub median_ms: i64,
    /// Its 90th percentile.
    pub p90_ms: i64,
}

impl Cadence {
    /// Fewer spacings say nothing.
    const FEWEST: usize = 3;

    /// Of the spacings between runs, in any order; `None` where there are too few to tell.
    pub fn of(mut spacings_ms: Vec<i64>) -> Option<Cadence> {
        if spacings_ms.len() < Cadence::FEWEST {
            return None;
        }
        spacings_ms.sort_unstable();
        let rank = |percent: usize| spacings_ms[(spacings_ms.len() - 1) * percent / 100];
        Some(Cadence { median_ms: rank(50), p90_ms: rank(90) })
    }
}

// ---------------------------------------------------------------- GPUs

/// Whether a GPU is split into instances; read before utilization, to explain its absence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MigMode {
    /// The GPU is one allocation unit.
    Disabled,
    /// Its instances are the allocation units.
    Enabled,
}

/// Of which units GPM's activity is measured (GPU Performance Monitoring, Hopper and newer).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gpm {
    /// Of none.
    Off,
    /// Of MIG instances, for which it is the only word on load.
    Mig,
    /// Of whole GPUs too.
    On,
}

/// What an allocation unit is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitKind {
    /// A whole GPU.
    Gpu,
    /// A MIG instance of `parent`, with its GPU instance and compute instance ids.
    Mig {
        /// The GPU it is cut from.
        parent: UnitUuid,
        /// GPU instance id.
        gi: u32,
        /// Compute instance id.
        ci: u32,
    },
}

/// The names of one unit. Only the UUID is a key; the others explain and map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitIdentity {
    /// Absent for a card whose handle already fails: it is then a device without identity.
    pub uuid: Reading<UnitUuid>,
    /// GPU or MIG instance.
    pub kind: UnitKind,
    /// NVML index of the GPU (of the parent, for an instance) at this run.
    pub index: NvmlIndex,
    /// N of /dev/nvidiaN (of the parent, for an instance).
    pub minor: Reading<DeviceMinor>,
    /// PCI address of the GPU.
    pub pci: Reading<PciAddress>,
    /// Product name.
    pub name: Reading<String>,
}

/// A unit as this node knows it, from this run's report or from an earlier one of this boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownUnit {
    /// The key.
    pub uuid: UnitUuid,
    /// GPU or instance.
    pub kind: UnitKind,
    /// NVML index when last seen.
    pub index: NvmlIndex,
    /// Minor when last seen.
    pub minor: Reading<DeviceMinor>,
    /// Product name.
    pub name: Reading<String>,
}

/// The highest entry of a driver's sample ring since the last run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peak {
    /// The highest utilization in the ring.
    pub percent: Percent,
    /// How much of the time before the run the used entries cover, in milliseconds.
    pub covered_ms: u32,
}

/// Memory of one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Held now.
    pub used: MemoryBytes,
    /// Of the whole unit; never 0 (a total of 0 is absent).
    pub total: MemoryBytes,
    /// Whether `used` leaves out the driver's own reservation (NVML's v2 call does, v1 does not).
    pub excludes_reserved: bool,
}

/// NVML's three process lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessKind {
    /// CUDA contexts.
    Compute,
    /// Display servers and the like.
    Graphics,
    /// Clients of an MPS server.
    Mps,
}

/// One process on one unit, as the driver lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// In the namespace we run in.
    pub pid: u32,
    /// Which list named it.
    pub kind: ProcessKind,
    /// What it holds of this unit's memory.
    pub memory: Reading<MemoryBytes>,
}

/// Who a process is, beside whose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// Its real user.
    pub uid: Reading<u32>,
    /// The kernel's short name of it, as it may have set it: no proof, and to be escaped.
    pub comm: Reading<String>,
}

/// Everything read from one unit in one run. `P`: its processes, as the driver lists them or, in a history, counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readings<P = Vec<GpuProcess>> {
    /// Share of the last 1/6 to 1 s in which any kernel was resident. 100 is not yet work.
    pub sm_util: Reading<Percent>,
    /// Share of that time in which memory was read or written.
    pub mem_util: Reading<Percent>,
    /// Peak of `sm_util` in the driver's ring.
    pub sm_peak: Reading<Peak>,
    /// Peak of `mem_util` in the driver's ring.
    pub mem_peak: Reading<Peak>,
    /// Memory held and present.
    pub memory: Reading<Memory>,
    /// Power now (a 1 s average on most cards).
    pub power: Reading<Milliwatts>,
    /// The enforced power limit.
    pub power_limit: Reading<Milliwatts>,
    /// Energy since the driver was loaded; its difference is the mean power over a whole interval.
    pub energy: Reading<Millijoules>,
    /// SM clock now.
    pub sm_clock: Reading<Megahertz>,
    /// Highest SM clock.
    pub sm_clock_max: Reading<Megahertz>,
    /// GPU temperature.
    pub temperature: Reading<Celsius>,
    /// Clocks-event reasons, raw.
    pub clocks_event: Reading<ClocksEventMask>,
    /// MIG mode of the GPU; absent with `NotSupported` on GPUs without MIG.
    pub mig: Reading<MigMode>,
    /// Processes of all three lists; absent as a whole where any list is unreadable or implausible.
    pub processes: Reading<P>,
    /// Counters, states and GPM's activity.
    pub fields: Fields,
}

impl<P> Readings<P> {
    /// All absent for one reason: a lost card, a unit that the driver does not list.
    pub fn absent(why: Absence) -> Readings<P> {
        Readings {
            sm_util: Reading::Absent(why),
            mem_util: Reading::Absent(why),
            sm_peak: Reading::Absent(why),
            mem_peak: Reading::Absent(why),
            memory: Reading::Absent(why),
            power: Reading::Absent(why),
            power_limit: Reading::Absent(why),
            energy: Reading::Absent(why),
            sm_clock: Reading::Absent(why),
            sm_clock_max: Reading::Absent(why),
            temperature: Reading::Absent(why),
            clocks_event: Reading::Absent(why),
            mig: Reading::Absent(why),
            processes: Reading::Absent(why),
            fields: Fields::absent(why),
        }
    }
}

impl Readings {
    /// The same with its processes counted, as the rules see them.
    pub fn counted(&self) -> Observation {
        let count = |list: &Vec<GpuProcess>| {
            let graphics = list.iter().filter(|p| p.kind == ProcessKind::Graphics).count() as u32;
            ProcessCount { compute: list.len() as u32 - graphics, graphics }
        };
        Readings {
            sm_util: self.sm_util,
            mem_util: self.mem_util,
            sm_peak: self.sm_peak,
            mem_peak: self.mem_peak,
            memory: self.memory,
            power: self.power,
            power_limit: self.power_limit,
            energy: self.energy,
            sm_clock: self.sm_clock,
            sm_clock_max: self.sm_clock_max,
            temperature: self.temperature,
            clocks_event: self.clocks_event,
            mig: self.mig,
            processes: self.processes.as_ref().map(count),
            fields: self.fields.clone(),
        }
    }
}

/// One unit, read once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitSample {
    /// Which unit.
    pub identity: UnitIdentity,
    /// What it said.
    pub readings: Readings,
}

/// All that one look at this node's GPUs brought. One lost card leaves the others judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuReport {
    /// Driver version.
    pub driver: Reading<String>,
    /// One entry per GPU that is one unit, and one per MIG instance.
    pub units: Vec<UnitSample>,
}

// ---------------------------------------------------------------- jobs

/// A raw Slurm job id: what cgroups and hooks use, one per array task. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct JobId(u64);

impl JobId {
    /// The lowest there is; for a story without a real one.
    pub const FIRST: JobId = JobId(1);

    /// `None` for 0 and for anything beyond Slurm's own range of ids (26 bits, MaxJobId).
    pub fn new(id: u64) -> Option<JobId> {
        (id > 0 && id < 1 << 32).then_some(JobId(id))
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }

    /// Decimal digits only.
    pub fn parse(text: &str) -> Option<JobId> {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        text.parse().ok().filter(|_| digits).and_then(JobId::new)
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The ledger's row of a health-check run; grows by one, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct RunId(pub i64);

/// The ledger's row of a job run; grows by one, never reused, so a cleared run cannot come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct JobRunId(pub i64);

/// What names a GPU in a registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuClaim {
    /// From `SLURM_JOB_GPUS`: a GRES index, to be mapped.
    Index(GresIndex),
    /// From `CUDA_VISIBLE_DEVICES` where it holds UUIDs (MIG; Slurm 25.11 on).
    Uuid(UnitUuid),
}

/// Where a job run's start time comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StartSource {
    /// Slurm's own start time.
    Slurm,
    /// The moment of registration (Prolog on Slurm before 23.02).
    Registration,
}

/// When a job run began, on both clocks of this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct JobStart {
    /// For arithmetic.
    pub boot: BootMs,
    /// For showing, and to compare with Slurm's StartTime.
    pub wall: WallMs,
    /// Who said so.
    pub source: StartSource,
}

/// Who registered a job run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RegisteredBy {
    /// Our Prolog, from its environment.
    Prolog,
    /// A later health-check run, from local evidence and one question to Slurm.
    Discovery,
}

/// What is known of a job run at its registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Registration {
    /// ClusterName.
    pub cluster: Reading<String>,
    /// The raw id.
    pub job: JobId,
    /// SLURM_JOB_RESTART_COUNT; a requeued job is a new run.
    pub restart: u32,
    /// Slurm 25.11 on.
    pub sluid: Reading<String>,
    /// When the run began.
    pub start: JobStart,
    /// Submitting user.
    pub user: Reading<String>,
    /// Its uid.
    pub uid: Reading<u32>,
    /// Account; the word `(null)` of Slurm is absent.
    pub account: Reading<String>,
    /// Partition.
    pub partition: Reading<String>,
    /// QOS (Prolog knows it from 26.05 on).
    pub qos: Reading<String>,
    /// Nodes of the allocation.
    pub nodes: Reading<u32>,
    /// Slurm's node list of the allocation, compressed.
    pub node_list: Reading<String>,
    /// The leader's id, for a component of a heterogeneous job.
    pub het_leader: Option<JobId>,
    /// When the time limit ends it; for projections only.
    pub limit_end: Reading<WallMs>,
    /// Its GPUs on this node; empty for a job that holds none here.
    pub gpus: Vec<GpuClaim>,
    /// Who registered it.
    pub by: RegisteredBy,
}

/// The base state of a job as Slurm names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// RUNNING without any flag.
    Running,
    /// SUSPENDED or STOPPED.
    Suspended,
    /// COMPLETING, also as a flag beside another state, and STAGE_OUT.
    Completing,
    /// CONFIGURING or POWER_UP_NODE.
    Configuring,
    /// PENDING, REQUEUED and the like: not on any node.
    Pending,
    /// COMPLETED, CANCELLED, FAILED, TIMEOUT, ...: over.
    Ended,
    /// A word that is not understood: blocks every action.
    Other,
}

impl JobState {
    /// The state in words.
    pub fn word(self) -> &'static str {
        match self {
            JobState::Running => "running",
            JobState::Suspended => "suspended",
            JobState::Completing => "completing",
            JobState::Configuring => "configuring",
            JobState::Pending => "pending",
            JobState::Ended => "ended",
            JobState::Other => "in a state that is not understood",
        }
    }
}

/// What only Slurm can say of a job run; asked once, when a finding makes it matter, and before acting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobDetails {
    /// The job's state.
    pub state: JobState,
    /// Slurm's StartTime, Unix seconds.
    pub start_unix_s: i64,
    /// Restart count, where this Slurm says it.
    pub restart: Reading<u32>,
    /// The id as Slurm shows it and as commands take it: `130`, `123_4`, `200+1`.
    pub display_id: String,
    /// User-chosen text: compare and show, never parse, never pass on unescaped.
    pub name: Reading<String>,
    /// User.
    pub user: Reading<String>,
    /// Account.
    pub account: Reading<String>,
    /// Partition.
    pub partition: Reading<String>,
    /// QOS.
    pub qos: Reading<String>,
    /// Number of nodes.
    pub nodes: Reading<u32>,
    /// Node list, compressed.
    pub node_list: Reading<String>,
    /// Whether it holds shares of GPUs here and not whole ones; asked only where GPUs are given out in shares.
    pub shares: Reading<bool>,
    /// What matters only once a deed is near.
    pub near: NearDeed,
}

/// What is asked of a job only once a deed is near.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NearDeed {
    /// Slurm's unique id of this run (26.05 on): another run of the job has another.
    pub sluid: Reading<String>,
    /// When Slurm last suspended or resumed it, Unix seconds; 0: never.
    pub suspended_unix_s: Reading<i64>,
    /// The administrators' comment, where `keep` stands; no data: there is none.
    pub admin_comment: Reading<String>,
    /// The user's own comment; no data: there is none.
    pub comment: Reading<String>,
    /// Whether it is a batch job: only those can be requeued.
    pub batch: Reading<bool>,
    /// Whether it may be requeued (Requeue=1).
    pub requeue: Reading<bool>,
}

impl NearDeed {
    /// Nothing of it, for this reason.
    pub fn absent(why: Absence) -> NearDeed {
        NearDeed {
            sluid: Reading::Absent(why),
            suspended_unix_s: Reading::Absent(why),
            admin_comment: Reading::Absent(why),
            comment: Reading::Absent(why),
            batch: Reading::Absent(why),
            requeue: Reading::Absent(why),
        }
    }
}

impl JobDetails {
    /// A task of an array (`123_4`).
    pub fn is_array_task(&self) -> bool {
        self.display_id.contains('_')
    }

    /// A component of a heterogeneous job (`200+1`).
    pub fn is_het(&self) -> bool {
        self.display_id.contains('+')
    }
}

/// A job run as the ledger holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobRun {
    /// Its row.
    pub id: JobRunId,
    /// What was registered.
    pub registration: Registration,
    /// When it was registered.
    pub registered: BootMs,
    /// What Slurm said of it last, if it was ever asked.
    pub details: Option<JobDetails>,
    /// Folded from samples beyond the horizon too: the first busy sample.
    pub first_activity: Option<BootMs>,
    /// The last busy sample.
    pub last_activity: Option<BootMs>,
}

impl JobRun {
    /// The id as Slurm prints it, where it is known; else the raw id.
    pub fn shown_id(&self) -> String {
        match &self.details {
            Some(d) => d.display_id.clone(),
            None => self.registration.job.to_string(),
        }
    }
}

/// What a job's processes on this node did, summed; cumulative values, differences are made in the rules.
/// It may soften a verdict, never create one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSample {
    /// Whether the job's processes are frozen or stopped (its cgroup or a parent, or all in state T).
    pub frozen: Reading<bool>,
    /// CPU time of its processes, milliseconds.
    pub cpu_ms: Reading<u64>,
    /// Bytes they wrote.
    pub written_bytes: Reading<u64>,
    /// Bytes they read.
    pub read_bytes: Reading<u64>,
    /// Memory of its cgroup that is in use and not only cached file pages, bytes; a level, not a sum.
    pub working_set_bytes: Reading<u64>,
    /// How many processes hold the device files of its units open, by /proc: asked only when the driver lists none
    /// and the units are about to be called idle. Not asked otherwise.
    pub holders: Reading<u32>,
}

impl JobSample {
    /// Nothing could be read; who holds the device files was not asked.
    pub fn absent(why: Absence) -> JobSample {
        JobSample {
            frozen: Reading::Absent(why),
            cpu_ms: Reading::Absent(why),
            written_bytes: Reading::Absent(why),
            read_bytes: Reading::Absent(why),
            working_set_bytes: Reading::Absent(why),
            holders: Reading::Absent(Absence::NotAsked),
        }
    }
}

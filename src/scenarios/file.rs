//! A scenario file: one idea, told as configuration, jobs, samples and what must come of them. Times count from
//! the end of the story (`-20m`), which is its now. Strict: a word that is not understood fails the scenario.

use super::faults;
use super::kernel_log::Line;
use super::machine::{Node, Process};
use crate::gpu::bus::LinkWidth;
use crate::gpu::simulated::{Phase, Timeline};
use crate::model::{Field, MigMode, Peak};
use crate::reading::{Absence, Reading};
use crate::units::{Celsius, ClocksEventMask, Megahertz, MemoryBytes, Milliwatts, Percent};
use serde::{Deserialize, Deserializer, de::Error};
use std::collections::BTreeMap;

/// A whole scenario.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The sentence it proves.
    pub about: String,
    /// The guards it shows; README's guard table names it for each.
    #[serde(default)]
    pub guards: Vec<String>,
    /// Configuration on top of the defaults, as the configuration file has it.
    #[serde(default)]
    pub config: Option<serde_yaml::Value>,
    /// The node.
    #[serde(default)]
    pub node: Node,
    /// Its jobs.
    pub jobs: Vec<Job>,
    /// What its GPUs said, and when runs came: the runs of the story are those of its samples.
    pub samples: Vec<Samples>,
    /// What was written to the kernel's log, by time; empty: there is none.
    #[serde(default)]
    pub kernel_log: Vec<Line>,
    /// Processes on the GPUs that are no job's, or of one that is named.
    #[serde(default)]
    pub processes: Vec<Process>,
    /// What happened at Slurm's side, by time.
    #[serde(default)]
    pub slurm: Vec<SlurmEvent>,
    /// How many of Slurm's commands were run in all, where that is the point.
    #[serde(default)]
    pub slurm_commands: Option<usize>,
    /// Faults that a person takes on.
    #[serde(default)]
    pub acknowledged: Vec<faults::Acknowledged>,
    /// What must come of faults of the node.
    #[serde(default)]
    pub faults: Vec<faults::Expect>,
    /// What must come of it.
    pub expect: Vec<Expect>,
}

/// A job of a story.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Raw id.
    pub id: u64,
    /// When it began.
    pub started: Ago,
    /// Its time limit; absent: Slurm does not say.
    #[serde(default)]
    pub limit: Option<Span>,
    /// How many GPUs, from the first free of the story, or which GRES indices.
    pub gpus: Gpus,
    /// Submitting user.
    #[serde(default = "ada")]
    pub user: String,
    /// Partition.
    #[serde(default = "h100")]
    pub partition: String,
    /// Account.
    #[serde(default)]
    pub account: Option<String>,
    /// QOS.
    #[serde(default)]
    pub qos: Option<String>,
    /// Its name.
    #[serde(default = "train")]
    pub name: String,
    /// What its user wrote beside it.
    #[serde(default)]
    pub comment: Option<String>,
    /// Restart count.
    #[serde(default)]
    pub restart: u32,
    /// Number of nodes.
    #[serde(default = "one")]
    pub nodes: u32,
    /// Their list as Slurm writes it; this node is `n1`.
    #[serde(default = "n1")]
    pub node_list: String,
    /// The id as Slurm shows it, for array tasks and components.
    #[serde(default)]
    pub shown_as: Option<String>,
    /// When it ended and its Epilog ran.
    #[serde(default)]
    pub ended: Option<Ago>,
    /// Whether a Prolog registered it.
    #[serde(default = "yes")]
    pub prolog: bool,
    /// Whether its Epilog reached the ledger.
    #[serde(default = "yes")]
    pub epilog: bool,
}

fn ada() -> String {
    "ada".to_owned()
}
fn h100() -> String {
    "h100".to_owned()
}
fn train() -> String {
    "train".to_owned()
}
fn n1() -> String {
    "n1".to_owned()
}

fn no_reason() -> String {
    "none".to_owned()
}

fn one() -> u32 {
    1
}
fn yes() -> bool {
    true
}

/// `8`, or `[4, 5]`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Gpus {
    /// The first so many.
    Count(u32),
    /// These GRES indices.
    Indices(Vec<u32>),
}

impl Gpus {
    /// The GRES indices.
    pub fn indices(&self) -> Vec<u32> {
        match self {
            Gpus::Count(n) => (0..*n).collect(),
            Gpus::Indices(list) => list.clone(),
        }
    }
}

/// What some GPUs said over some time, one sample every `every`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Samples {
    /// First run.
    pub from: Ago,
    /// Last run, inclusive.
    pub to: Ago,
    /// Cadence of the runs; without it this entry makes no runs of its own.
    #[serde(default)]
    pub every: Option<Span>,
    /// Which GPUs, by minor; empty: all.
    #[serde(default)]
    pub gpus: Vec<u32>,
    /// SM utilization.
    #[serde(default = "nothing")]
    pub util: Share,
    /// Memory-controller utilization.
    #[serde(default = "nothing")]
    pub memctl: Share,
    /// Peak in the ring since the last run, where it differs; the ring covers 10 s.
    #[serde(default)]
    pub ring: Option<Share>,
    /// Memory held on each.
    #[serde(default = "no_bytes")]
    pub memory: Bytes,
    /// Power of each.
    #[serde(default = "resting")]
    pub power: Watts,
    /// Mean power between the runs, where it differs from what each look sees: what the energy counter counts.
    #[serde(default)]
    pub drawn: Option<Watts>,
    /// Compute processes, shared out evenly over these GPUs.
    #[serde(default)]
    pub processes: u32,
    /// SM clock in MHz, where it is not the usual one.
    #[serde(default)]
    pub clock_mhz: Option<u32>,
    /// Clocks-event reasons, as NVML's mask.
    #[serde(default)]
    pub clocks_event: u64,
    /// Temperature in degrees Celsius.
    #[serde(default = "cool")]
    pub celsius: u32,
    /// The driver's recovery action: 1 reset, 2 reboot, ...
    #[serde(default)]
    pub recovery_action: u64,
    /// Counters and states by their names: `{ remap_pending: 1, fabric_state: no_permission }`.
    #[serde(default)]
    pub fields: BTreeMap<String, Told>,
    /// Lanes of each card's link to the bus, now and at most: `8/16`.
    #[serde(default)]
    pub link_width: Option<Lanes>,
    /// Readings that are absent, and why.
    #[serde(default)]
    pub absent: BTreeMap<String, String>,
    /// The cards fail at their handle: `true`, or another reason than that they are lost.
    #[serde(default)]
    pub lost: Lost,
    /// The driver does not list the cards.
    #[serde(default)]
    pub unlisted: bool,
    /// The whole read fails, and why.
    #[serde(default)]
    pub outage: Option<String>,
    /// Jobs whose processes are frozen.
    #[serde(default)]
    pub frozen: Vec<u64>,
    /// Cores that each job's processes keep busy.
    #[serde(default)]
    pub cores: Option<f64>,
    /// What each job's processes write, per second.
    #[serde(default)]
    pub writes: Option<Bytes>,
}

/// A number, or why there is none.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Told {
    /// The number.
    Number(u64),
    /// The reason's key.
    Absent(String),
}

/// Whether cards are lost, or why they fail.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Lost {
    /// Lost or not.
    Plainly(bool),
    /// The reason's key.
    Because(String),
}

impl Default for Lost {
    fn default() -> Lost {
        Lost::Plainly(false)
    }
}

fn nothing() -> Share {
    Share(Percent::new(0))
}
fn no_bytes() -> Bytes {
    Bytes(0)
}
fn cool() -> u32 {
    41
}
fn resting() -> Watts {
    Watts(70_000)
}

/// Something that happens at Slurm's side.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlurmEvent {
    /// When.
    pub at: Ago,
    /// slurmctld stops answering (true) or answers again (false).
    #[serde(default)]
    pub down: Option<bool>,
    /// Updates and cancels are refused (true) or taken again.
    #[serde(default)]
    pub refuses: Option<bool>,
    /// The node's complete state, as sinfo writes it.
    #[serde(default)]
    pub node_state: Option<String>,
    /// The node's Reason.
    #[serde(default)]
    pub node_reason: Option<String>,
    /// A job's state: `{ 4242: SUSPENDED }`.
    #[serde(default)]
    pub job_state: BTreeMap<u64, String>,
    /// An administrator keeps a job for so long from now: `{ 4242: 2h }`.
    #[serde(default)]
    pub keep: BTreeMap<u64, Span>,
    /// The reservation `gpu-reaper-stop` is made (true) or deleted.
    #[serde(default)]
    pub brake: Option<bool>,
    /// Other nodes: their complete state, and their Reason, set at this moment.
    #[serde(default)]
    pub other_nodes: BTreeMap<String, OtherNode>,
}

/// Another node of the cluster.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OtherNode {
    /// Its complete state, as sinfo writes it.
    pub state: String,
    /// Its Reason.
    #[serde(default = "no_reason")]
    pub reason: String,
    /// When the Reason was set, where this moment is only when Slurm first shows it.
    #[serde(default)]
    pub reason_set: Option<Ago>,
}

/// What must have come of it at the end.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// The job.
    pub job: u64,
    /// spared, unjudged, alive, breaching; `ended` for a job that is gone.
    pub judgement: String,
    /// The finding's signature.
    #[serde(default)]
    pub signature: Option<String>,
    /// The guard that held.
    #[serde(default)]
    pub guard: Option<String>,
    /// whole or part.
    #[serde(default)]
    pub scope: Option<String>,
    /// Everything that was done for it, in order: alert, drain, cancel, release.
    #[serde(default)]
    pub done: Vec<String>,
    /// What was withheld, with a part of the reason.
    #[serde(default)]
    pub withheld: BTreeMap<String, String>,
    /// Parts of what --explain says.
    #[serde(default)]
    pub says: Vec<String>,
}

macro_rules! parsed {
    ($(#[$doc:meta])* $name:ident($inner:ty), $parse:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $name(pub $inner);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<$name, D::Error> {
                let text = String::deserialize(d)?;
                let parse: fn(&str) -> Option<$inner> = $parse;
                parse(&text).map($name).ok_or_else(|| D::Error::custom(format!(concat!("`{}` is no ", stringify!($name)), text)))
            }
        }
    };
}

parsed!(
    /// An instant: milliseconds before (negative) or at the end of the story.
    Ago(i64),
    |t| match t.strip_prefix('-') {
        Some(rest) => span(rest).map(|ms| -ms),
        None if t == "0" => Some(0),
        None => span(t),
    }
);
parsed!(
    /// A duration in milliseconds.
    Span(i64),
    span
);
parsed!(
    /// An amount of memory.
    Bytes(u64),
    |t| {
        let (digits, shift) = [("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)]
            .iter()
            .find_map(|(unit, shift)| t.strip_suffix(unit).map(|d| (d, *shift)))?;
        digits.parse::<u64>().ok()?.checked_mul(1 << shift)
    }
);
parsed!(
    /// Power in milliwatts.
    Watts(u64),
    |t| t.strip_suffix('W')?.parse::<u64>().ok()?.checked_mul(1000)
);
parsed!(
    /// Lanes of a link now, and at most.
    Lanes(LinkWidth),
    |t| {
        let (current, max) = t.split_once('/')?;
        Some(LinkWidth { current: current.parse().ok()?, max: max.parse().ok()? })
    }
);
parsed!(
    /// A percentage.
    Share(Option<Percent>),
    |t| Percent::new(t.strip_suffix('%')?.parse().ok()?).map(Some)
);

/// `1h30m`, `20s`.
fn span(text: &str) -> Option<i64> {
    let mut total = 0i64;
    let mut digits = String::new();
    for c in text.chars() {
        let unit_ms = match c {
            '0'..='9' => {
                digits.push(c);
                continue;
            }
            's' => 1000,
            'm' => 60_000,
            'h' => 3_600_000,
            'd' => 86_400_000,
            _ => return None,
        };
        total = total.checked_add(digits.parse::<i64>().ok()?.checked_mul(unit_ms)?)?;
        digits.clear();
    }
    (digits.is_empty() && !text.is_empty()).then_some(total)
}

impl Share {
    fn reading(self) -> Reading<Percent> {
        match self.0 {
            Some(percent) => Reading::Measured(percent),
            None => Reading::Absent(Absence::Implausible),
        }
    }
}

/// The absence of a key.
pub(super) fn absence(key: &str) -> Result<Absence, String> {
    let found = Absence::ALL.iter().find(|a| a.key() == key).copied();
    found.ok_or_else(|| format!("`{key}` is no reason of absence"))
}

impl Samples {
    fn or_absent<T>(&self, field: &str, value: Reading<T>) -> Result<Reading<T>, String> {
        match self.absent.get(field) {
            Some(why) => Ok(Reading::Absent(absence(why)?)),
            None => Ok(value),
        }
    }

    fn fields(&self) -> Result<Vec<(Field, Reading<u64>)>, String> {
        let mut fields = vec![(Field::RecoveryAction, Reading::Measured(self.recovery_action))];
        for (word, told) in &self.fields {
            let field = Field::ALL.iter().find(|field| field.word() == word);
            let field = *field.ok_or_else(|| format!("`fields: {word}`: no field has that name"))?;
            let value = match told {
                Told::Number(number) => Reading::Measured(*number),
                Told::Absent(why) => Reading::Absent(absence(why)?),
            };
            fields.push((field, value));
        }
        Ok(fields)
    }

    fn phase(&self, cards: usize) -> Result<Phase, String> {
        const READINGS: [&str; 8] =
            ["util", "memctl", "ring", "memory", "power", "processes", "link_width", "kernel_log"];
        if let Some(odd) = self.absent.keys().find(|k| !READINGS.contains(&k.as_str())) {
            return Err(format!("`absent: {odd}`: expected one of {}", READINGS.join(", ")));
        }
        self.absent.values().try_for_each(|why| absence(why).map(drop))?;
        let width =
            self.link_width.map_or(Reading::Absent(Absence::NotSupported), |l| Reading::Measured(l.0));
        let ring = match self.ring {
            Some(ring) => ring.reading().map(|percent| Peak { percent, covered_ms: 10_000 }),
            None => Reading::Absent(Absence::NoData),
        };
        Ok(Phase {
            from_ms: self.from.0,
            to_ms: self.to.0,
            gpus: self.gpus.clone(),
            sm_util: self.or_absent("util", self.util.reading())?,
            mem_util: self.or_absent("memctl", self.memctl.reading())?,
            sm_peak: self.or_absent("ring", ring)?,
            memory: self.or_absent("memory", Reading::Measured(MemoryBytes(self.memory.0)))?,
            power: self.or_absent("power", Reading::Measured(Milliwatts(self.power.0)))?,
            drawn: Milliwatts(self.drawn.unwrap_or(self.power).0),
            processes: self
                .or_absent("processes", Reading::Measured(self.processes.div_ceil(cards.max(1) as u32)))?,
            sm_clock: self.clock_mhz.map(Megahertz),
            clocks_event: ClocksEventMask(self.clocks_event),
            temperature: Celsius(self.celsius),
            fields: self.fields()?,
            link_width: self.or_absent("link_width", width)?,
            lost: match &self.lost {
                Lost::Plainly(lost) => lost.then_some(Absence::GpuLost),
                Lost::Because(why) => Some(absence(why)?),
            },
            unlisted: self.unlisted,
        })
    }
}

impl Scenario {
    /// Reads a file's text.
    pub fn parse(text: &str) -> Result<Scenario, String> {
        let scenario: Scenario = serde_yaml::from_str(text).map_err(|e| e.to_string())?;
        let samples = scenario.samples.iter().position(|s| s.from.0 > s.to.0).map(|n| ("samples", n));
        let processes =
            || scenario.processes.iter().position(|p| p.from.0 > p.to.0).map(|n| ("processes", n));
        match samples.or_else(processes) {
            Some((list, n)) => {
                Err(format!("{list}[{n}]: `from` lies after `to`: nothing of it would be played"))
            }
            None => Ok(scenario),
        }
    }

    /// Its GPUs' story.
    pub fn timeline(&self) -> Result<Timeline, String> {
        let cards = |s: &Samples| {
            if s.gpus.is_empty() { self.node.gpus as usize } else { s.gpus.len() }
        };
        let mut outages = Vec::new();
        for s in &self.samples {
            if let Some(why) = &s.outage {
                outages.push((s.from.0, s.to.0, absence(why)?));
            }
        }
        Ok(Timeline {
            gpus: self.node.gpus,
            minors: self.node.minors.clone(),
            name: self.node.model.clone(),
            memory_total: MemoryBytes(self.node.memory.0),
            power_limit: Milliwatts(self.node.limit.0),
            energy: self.node.energy,
            mig: match self.node.mig {
                Some(true) => Reading::Measured(MigMode::Enabled),
                Some(false) => Reading::Measured(MigMode::Disabled),
                None => Reading::Absent(Absence::NotSupported),
            },
            phases: self.samples.iter().map(|s| s.phase(cards(s))).collect::<Result<_, _>>()?,
            outages,
        })
    }

    /// The instants at which a run comes, in order.
    pub fn runs(&self) -> Vec<i64> {
        let mut at = Vec::new();
        for s in &self.samples {
            if let Some(every) = s.every {
                let mut t = s.from.0;
                while t <= s.to.0 {
                    at.push(t);
                    t += every.0.max(1000);
                }
            }
        }
        at.sort_unstable();
        at.dedup();
        at
    }

    /// The samples entry that tells of a job's host side at an instant.
    pub fn host_at(&self, at_ms: i64) -> Option<&Samples> {
        self.samples.iter().rev().find(|s| s.from.0 <= at_ms && at_ms <= s.to.0)
    }
}

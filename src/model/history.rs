//! What replay recovers from the ledger for the rules: ticks, actions, the open finding.

use super::*;

/// Processes on a unit, counted by list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessCount {
    /// Compute and MPS processes.
    pub compute: u32,
    /// Graphics processes.
    pub graphics: u32,
}

/// What the rules see of one unit in one run.
pub type Observation = Readings<ProcessCount>;

/// One run's view of one job run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tick {
    /// The run.
    pub run: RunId,
    /// When it sampled.
    pub at: BootMs,
    /// The same, for showing.
    pub wall: WallMs,
    /// The driver's version then: a change voids counters across it.
    pub driver: Reading<String>,
    /// The job beside its GPUs.
    pub job: JobSample,
    /// One per unit of [`JobHistory::units`], in its order. A unit without a row in that run is absent.
    pub units: Vec<Observation>,
}

/// How a card rests: a context costs power, and a card at high clocks draws up to eight times as much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rest {
    /// No process, clocks down.
    EmptyLow,
    /// No process, clocks up.
    EmptyHigh,
    /// A process resident, clocks down.
    ContextLow,
    /// A process resident, clocks up.
    ContextHigh,
}

impl Rest {
    /// All of them, by their code.
    pub const ALL: [Rest; 4] = [Rest::EmptyLow, Rest::EmptyHigh, Rest::ContextLow, Rest::ContextHigh];

    /// The ledger's code.
    pub fn code(self) -> i64 {
        self as i64 + 1
    }
}

/// What a card draws at rest, as this node learnt it over its life: the lowest mean power of an interval in which
/// it certainly rested. It only ever vetoes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearntFloors([Reading<Milliwatts>; 4]);

impl LearntFloors {
    /// Nothing learnt.
    pub fn none() -> LearntFloors {
        LearntFloors([Reading::Absent(Absence::NotRecorded); 4])
    }

    /// The floor of one way to rest.
    pub fn get(&self, rest: Rest) -> Reading<Milliwatts> {
        self.0[rest as usize]
    }

    /// Writes one down.
    pub fn set(&mut self, rest: Rest, floor: Milliwatts) {
        self.0[rest as usize] = Reading::Measured(floor);
    }
}

/// A unit of a job run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnitRef {
    /// The key.
    pub uuid: UnitUuid,
    /// NVML index when last seen; to name it in words.
    pub index: NvmlIndex,
    /// Product name when last seen.
    pub name: Reading<String>,
}

/// An action that was recorded for a job run; it outlives the Epilog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ActionRecord {
    /// Its row.
    pub id: i64,
    /// What was done.
    #[serde(rename = "verdict")]
    pub deed: Deed,
    /// The run that did it.
    pub run: RunId,
    /// When, on its own boot.
    #[serde(skip)]
    pub at: BootMs,
    /// The same, for showing.
    pub wall: WallMs,
    /// How it ended.
    pub outcome: Outcome,
    /// The node's Reason that we wrote, byte for byte; for drains and votes.
    pub reason: Option<String>,
    /// The finding's signature when it was done.
    pub signature: String,
    /// What Slurm said, for people.
    pub detail: String,
    /// Of a drain: the later run that counted the cluster's drains again and let it stand.
    #[serde(skip)]
    pub counted_again: Option<RunId>,
}

/// How an action ended. `Unknown` is neither done nor not done: it is looked at, never repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Written down before the deed; still so if the run was killed.
    Begun,
    /// Seen to be done.
    Done,
    /// Refused or failed, seen not to be done.
    Failed,
    /// No answer in time.
    Unknown,
    /// A drain that we lifted again, as two runs agreed.
    Released,
    /// A drain of ours that somebody lifted or changed: it is not made again for that job run.
    Lifted,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Outcome; 6] = [
        Outcome::Begun,
        Outcome::Done,
        Outcome::Failed,
        Outcome::Unknown,
        Outcome::Released,
        Outcome::Lifted,
    ];

    /// The word in the ledger and for people.
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Begun => "begun",
            Outcome::Done => "done",
            Outcome::Failed => "failed",
            Outcome::Unknown => "unknown",
            Outcome::Released => "released",
            Outcome::Lifted => "lifted",
        }
    }

    /// The outcome of a word.
    pub fn from_word(word: &str) -> Option<Outcome> {
        Outcome::ALL.into_iter().find(|outcome| outcome.word() == word)
    }
}

/// What a stage asks for, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Tell people.
    Alert,
    /// Take the node out of service for new jobs.
    Drain,
    /// End the job.
    Cancel,
}

impl Verdict {
    /// Slurm's and our word.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Alert => "alert",
            Verdict::Drain => "drain",
            Verdict::Cancel => "cancel",
        }
    }
}

/// What is written down: a stage's verdict, and what belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Deed {
    /// People are told.
    Alert,
    /// This node is drained.
    Drain,
    /// Our drain's reason says that this node agrees to a cancel, or no longer does.
    Vote,
    /// The job is warned by a signal.
    Warn,
    /// The job is cancelled.
    Cancel,
    /// The job is requeued in place of a cancel.
    Requeue,
    /// Our drain is lifted.
    Release,
}

impl Deed {
    /// All of them.
    pub const ALL: [Deed; 7] =
        [Deed::Alert, Deed::Drain, Deed::Vote, Deed::Warn, Deed::Cancel, Deed::Requeue, Deed::Release];

    /// The word in the ledger and for people.
    pub fn word(self) -> &'static str {
        match self {
            Deed::Alert => "alert",
            Deed::Drain => "drain",
            Deed::Vote => "vote",
            Deed::Warn => "warn",
            Deed::Cancel => "cancel",
            Deed::Requeue => "requeue",
            Deed::Release => "release",
        }
    }

    /// The deed of a word.
    pub fn from_word(word: &str) -> Option<Deed> {
        Deed::ALL.into_iter().find(|deed| deed.word() == word)
    }
}

impl From<Verdict> for Deed {
    fn from(verdict: Verdict) -> Deed {
        match verdict {
            Verdict::Alert => Deed::Alert,
            Verdict::Drain => Deed::Drain,
            Verdict::Cancel => Deed::Cancel,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A job run's open finding as the ledger keeps it: what is left of a breach that began before the oldest sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OpenFinding {
    /// Start of the breach.
    pub since: BootMs,
    /// The run that opened it.
    pub opened_run: RunId,
    /// The run that kept it last.
    pub last_run: RunId,
    /// Certified breaching time as of that run.
    pub certified_ms: i64,
    /// Its signature's word.
    pub signature: String,
}

/// Everything the rules may see of one job run: recovered from the ledger by replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobHistory {
    /// The job run.
    pub job: JobRun,
    /// Its units on this node; absent where the mapping could not be completed, or another job holds one too.
    pub units: Reading<Vec<UnitRef>>,
    /// How many allocation units this node has in all (to know what a drain would block), where known.
    pub node_units: Reading<u32>,
    /// Oldest first, of this boot only, from the start of the job run or from where it no longer matters
    /// (every unit has been seen at work since).
    pub ticks: Vec<Tick>,
    /// What each unit of [`JobHistory::units`] was learnt to draw at rest, in its order; none for a unit beyond.
    pub floors: Vec<LearntFloors>,
    /// Actions recorded for this job run, oldest first.
    pub actions: Vec<ActionRecord>,
    /// Its open finding, if there is one.
    pub open_finding: Option<OpenFinding>,
    /// A fault of the node on one of its units that hides what the job does, in words.
    pub fault: Option<String>,
}

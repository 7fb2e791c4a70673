//! One thing to tell people, as a site's program gets it (`schema: 1`, documented in the man page): plain facts, in the
//! words of the ledger. What is not known is null, never 0 and never an empty text.

use crate::model::{JobRun, Now, UnitRef};
use crate::policy::Finding;
use crate::policy::stage;
use crate::reading::Reading;
use crate::units::{NodeName, WallMs};
use serde::Serialize;

/// The form of [`Event`]: another one would have another number. Keys may be added to it.
pub const SCHEMA: u32 = 1;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A finding was made: the first stage.
    Finding,
    /// Something was done, or tried.
    Deed,
    /// Something was due and not done.
    Withheld,
    /// A finding is over.
    Recovered,
    /// A fault of the node began, or a drain for it is at hand.
    Fault,
    /// A fault of the node is over.
    FaultOver,
}

/// One thing to tell.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What happened.
    pub event: What,
    /// When, RFC 3339 in UTC.
    pub at: String,
    /// On which node.
    pub node: String,
    /// `observe` or `enforce`: `mode`, for a fault `faults.mode`.
    pub mode: &'static str,
    /// What it is about: alert, drain, warn, cancel or requeue.
    pub verdict: &'static str,
    /// How a deed ended: done, failed or unknown; of a drain that somebody has to lift: stays; of one
    /// that is gone: lifted.
    pub outcome: Option<&'static str>,
    /// The guard that held a deed back, where one did.
    pub guard: Option<&'static str>,
    /// In one line of words.
    pub words: String,
    /// The job; a fault of the node has none.
    pub job: Option<Job>,
    /// What was found of it.
    pub finding: Option<Seen>,
    /// The fault.
    pub fault: Option<Broken>,
    /// What comes next, if it goes on and nothing withholds it.
    pub next: Option<Next>,
    /// What explains it, on that node.
    pub explain: String,
}

impl Event {
    /// Nothing of a job or a fault yet.
    pub fn of(what: What, node: &NodeName, enforces: bool, now: &Now) -> Event {
        Event {
            schema: SCHEMA,
            event: what,
            at: now.wall.rfc3339(),
            node: node.to_string(),
            mode: if enforces { "enforce" } else { "observe" },
            verdict: "alert",
            outcome: None,
            guard: None,
            words: String::new(),
            job: None,
            finding: None,
            fault: None,
            next: None,
            explain: String::new(),
        }
    }

    /// The same about a job.
    pub fn about(self, job: &JobRun) -> Event {
        let explain = format!("gpu-reaper-hc --explain {}", job.shown_id());
        Event { job: Some(Job::of(job)), explain, ..self }
    }
}

/// A job run.
#[derive(Clone, Debug, Serialize)]
pub struct Job {
    /// The raw id.
    pub id: u64,
    /// The id as Slurm shows it.
    pub shown: String,
    /// The restart count.
    pub restart: u32,
    /// User.
    pub user: Option<String>,
    /// Account.
    pub account: Option<String>,
    /// Partition.
    pub partition: Option<String>,
    /// QOS.
    pub qos: Option<String>,
    /// Its name, where an exemption by name made somebody ask for it. A user's own text.
    pub name: Option<String>,
    /// On how many nodes it runs.
    pub nodes: Option<u32>,
    /// When it began.
    pub started: String,
}

impl Job {
    fn of(job: &JobRun) -> Job {
        let r = &job.registration;
        let known = |reading: &Reading<String>| reading.measured().cloned();
        let said = job.details.as_ref();
        Job {
            id: r.job.get(),
            shown: job.shown_id(),
            restart: r.restart,
            user: known(&r.user),
            account: known(&r.account),
            partition: known(&r.partition),
            qos: known(said.map_or(&r.qos, |d| &d.qos)),
            name: said.and_then(|d| known(&d.name)),
            nodes: said.map_or(&r.nodes, |d| &d.nodes).measured().copied(),
            started: r.start.wall.rfc3339(),
        }
    }
}

/// A unit.
#[derive(Clone, Debug, Serialize)]
pub struct Unit {
    /// Its UUID.
    pub uuid: String,
    /// NVML's index.
    pub index: Option<u32>,
    /// Product name.
    pub name: Option<String>,
}

impl From<&UnitRef> for Unit {
    fn from(unit: &UnitRef) -> Unit {
        let index = unit.index.to_string().parse().ok();
        Unit { uuid: unit.uuid.to_string(), index, name: unit.name.measured().cloned() }
    }
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Seen {
    /// Its signature.
    pub signature: String,
    /// `whole` or `part`.
    pub scope: String,
    /// Its units on this node.
    pub units: Vec<Unit>,
    /// Start of the breach.
    pub since: String,
    /// How much of the time since is certified, in seconds.
    pub certified_s: i64,
    /// Units times certified time; null once it is over.
    pub wasted_gpu_hours: Option<f64>,
    /// In one line of facts; null once it is over.
    pub facts: Option<String>,
}

impl From<&Finding> for Seen {
    fn from(finding: &Finding) -> Seen {
        Seen {
            signature: finding.signature.word().to_owned(),
            scope: finding.scope.word().to_owned(),
            units: finding.units.iter().map(Unit::from).collect(),
            since: finding.since_wall.rfc3339(),
            certified_s: finding.evidence().certified_ms() / 1000,
            wasted_gpu_hours: Some(finding.wasted().hours()),
            facts: Some(finding.facts()),
        }
    }
}

/// A fault of the node.
#[derive(Clone, Debug, Serialize)]
pub struct Broken {
    /// Its kind.
    pub kind: String,
    /// What it is about: a GPU's UUID or address, or `node`.
    pub subject: String,
    /// In one line of facts.
    pub detail: String,
    /// Since when it is known.
    pub since: Option<String>,
}

/// The next stage.
#[derive(Clone, Debug, Serialize)]
pub struct Next {
    /// drain or cancel.
    pub verdict: &'static str,
    /// In so many seconds at the earliest; 0: due.
    pub in_s: i64,
    /// The same on the wall clock.
    pub at: String,
}

impl Next {
    /// What the ladder says.
    pub fn of(next: &stage::Next, now: &Now) -> Next {
        let at = WallMs(now.wall.0.saturating_add(next.in_ms)).rfc3339();
        Next { verdict: next.verdict.word(), in_s: next.in_ms / 1000, at }
    }
}

//! slurmctld for a whole fleet, at its worst: whoever asks within a tick is told how things stood when the tick began,
//! and what is told to it comes true when the tick ends. Only of itself a node sees what it has just done. It counts
//! the RPCs that Slurm's commands cost it; the GPUs, the ledger and the rules it knows nothing of.

use gpu_reaper_hc::model::{JobDetails, JobId, JobState, NodeBase, NodeRow, NodeStatus};
use gpu_reaper_hc::policy::reason::PREFIX;
use gpu_reaper_hc::slurm::{Answer, Ask, Controller, Listed, NoAnswer, Target};
use gpu_reaper_hc::units::NodeName;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::sync::Mutex;

/// What was asked and told, by kind. The costs are those of Slurm's commands, alike from 22.05 to 26.05.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// squeue of one job: JOB_INFO_SINGLE.
    pub jobs: u64,
    /// scontrol show reservation: RESERVATION_INFO.
    pub brakes: u64,
    /// sinfo of all nodes: PARTITION_INFO and NODE_INFO.
    pub surveys: u64,
    /// sinfo of one node: PARTITION_INFO and NODE_INFO_SINGLE.
    pub looks: u64,
    /// scontrol update node: UPDATE_NODE.
    pub updates: u64,
    /// scancel: KILL_JOB; also a comment on a job: UPDATE_JOB.
    pub kills: u64,
    /// Commands that met no slurmctld: no RPC.
    pub in_vain: u64,
}

impl Asked {
    /// RPCs in all.
    pub fn rpcs(&self) -> u64 {
        self.jobs + self.brakes + 2 * self.surveys + 2 * self.looks + self.updates + self.kills
    }
}

impl AddAssign for Asked {
    fn add_assign(&mut self, more: Asked) {
        self.jobs += more.jobs;
        self.brakes += more.brakes;
        self.surveys += more.surveys;
        self.looks += more.looks;
        self.updates += more.updates;
        self.kills += more.kills;
        self.in_vain += more.in_vain;
    }
}

/// What it was told in this tick.
#[derive(Default)]
struct Told {
    /// Rows as they will be at the tick's end.
    changed: BTreeMap<usize, NodeRow>,
    ending: BTreeSet<JobId>,
}

/// The cluster as slurmctld has it.
pub struct Slurmctld {
    shown: Vec<NodeRow>,
    jobs: BTreeMap<JobId, JobDetails>,
    ended: BTreeSet<JobId>,
    unix_s: i64,
    tick: Mutex<Told>,
    /// Whether the reservation of the brake exists.
    pub brake: bool,
    /// Whether it answers nobody.
    pub down: bool,
}

impl Slurmctld {
    /// Nodes in service, with a job on each.
    pub fn new(names: &[NodeName], jobs: BTreeMap<JobId, JobDetails>) -> Slurmctld {
        let in_service = |name: &NodeName| NodeRow {
            name: name.clone(),
            status: NodeStatus { base: NodeBase::Allocated, flags: Vec::new(), reason: None },
            gpus: true,
            reason_unix_s: None,
        };
        Slurmctld {
            shown: names.iter().map(in_service).collect(),
            jobs,
            ended: BTreeSet::new(),
            unix_s: 0,
            tick: Mutex::default(),
            brake: false,
            down: false,
        }
    }

    /// A tick begins.
    pub fn begin(&mut self, unix_s: i64) {
        self.unix_s = unix_s;
    }

    /// What the tick's runs have told it comes true.
    pub fn end(&mut self) {
        let mut told = std::mem::take(self.tick.get_mut().unwrap());
        for (at, row) in told.changed {
            self.shown[at] = row;
        }
        self.ended.append(&mut told.ending);
    }

    /// Nodes that carry our drains.
    pub fn standing(&self) -> usize {
        let ours = |row: &&NodeRow| {
            row.status.drained() && row.status.reason.as_ref().is_some_and(|r| r.starts_with(PREFIX))
        };
        self.shown.iter().filter(ours).count()
    }

    /// Whether a job has ended.
    pub fn is_over(&self, job: JobId) -> bool {
        self.ended.contains(&job)
    }

    /// A node's place at its commands.
    pub fn seat(&self, node: usize) -> Seat<'_> {
        Seat { of: self, node, asked: Cell::default() }
    }
}

/// slurmctld, asked from one node.
pub struct Seat<'a> {
    of: &'a Slurmctld,
    node: usize,
    asked: Cell<Asked>,
}

impl Seat<'_> {
    /// What was asked from here.
    pub fn asked(&self) -> Asked {
        self.asked.get()
    }

    fn count(&self, one: Asked) -> Answer<()> {
        let mut asked = self.asked.get();
        asked += if self.of.down { Asked { in_vain: 1, ..Asked::default() } } else { one };
        self.asked.set(asked);
        match self.of.down {
            true => Err(NoAnswer::TimedOut { program: "scontrol", limit_ms: 6000 }),
            false => Ok(()),
        }
    }

    fn own(&self) -> NodeRow {
        let told = self.of.tick.lock().unwrap();
        told.changed.get(&self.node).unwrap_or(&self.of.shown[self.node]).clone()
    }

    fn update(&self, flags: Vec<String>, reason: Option<&str>) -> Answer<()> {
        self.count(Asked { updates: 1, ..Asked::default() })?;
        let own = self.own();
        // The same text again is no change.
        let same = own.status.reason.as_deref() == reason;
        let reason_unix_s = if same { own.reason_unix_s } else { reason.map(|_| self.of.unix_s) };
        let status = NodeStatus { flags, reason: reason.map(str::to_owned), ..own.status };
        self.of.tick.lock().unwrap().changed.insert(self.node, NodeRow { status, reason_unix_s, ..own });
        Ok(())
    }

    fn end_job(&self, target: &Target) -> Answer<()> {
        self.count(Asked { kills: 1, ..Asked::default() })?;
        self.of.tick.lock().unwrap().ending.extend(JobId::parse(&target.display_id));
        Ok(())
    }
}

impl Controller for Seat<'_> {
    fn job(&self, job: JobId, _: Ask) -> Answer<Option<Listed>> {
        self.count(Asked { jobs: 1, ..Asked::default() })?;
        let over = self.of.ended.contains(&job) || self.of.tick.lock().unwrap().ending.contains(&job);
        let state = if over { JobState::Ended } else { JobState::Running };
        let details = self.of.jobs.get(&job).map(|details| JobDetails { state, ..details.clone() });
        Ok(details.map(|details| Listed { job, uid: 1001, state, details: Some(details) }))
    }

    fn node(&self) -> Answer<NodeStatus> {
        self.count(Asked { looks: 1, ..Asked::default() })?;
        Ok(self.own().status)
    }

    /// sinfo asks for one node alone, and for all of them where it is to show several.
    fn survey(&self) -> Answer<Vec<NodeRow>> {
        self.count(Asked { surveys: 1, ..Asked::default() })?;
        Ok(self.of.shown.clone())
    }

    fn brake(&self) -> Answer<bool> {
        self.count(Asked { brakes: 1, ..Asked::default() })?;
        Ok(self.of.brake)
    }

    fn drain(&self, reason: &str) -> Answer<()> {
        self.update(vec!["drain".to_owned()], Some(reason))
    }

    fn set_reason(&self, reason: &str) -> Answer<()> {
        let flags = self.of.shown[self.node].status.flags.clone();
        self.update(flags, Some(reason))
    }

    fn undrain(&self) -> Answer<()> {
        self.update(Vec::new(), None)
    }

    fn cancel(&self, target: &Target) -> Answer<()> {
        self.end_job(target)
    }

    fn requeue(&self, target: &Target) -> Answer<()> {
        self.end_job(target)
    }

    fn signal(&self, _: &Target, _: &str) -> Answer<()> {
        self.count(Asked { kills: 1, ..Asked::default() })
    }

    fn set_admin_comment(&self, _: &str, _: &str) -> Answer<()> {
        self.count(Asked { kills: 1, ..Asked::default() })
    }

    fn notify(&self, _: &str, _: &str) -> Answer<()> {
        self.count(Asked { kills: 1, ..Asked::default() })
    }
}

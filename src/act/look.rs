//! The look before the deed: nobody has pulled the brake, Slurm says this very job run is RUNNING on the nodes that are
//! known, was not suspended and is not exempt, the nodes are ours to touch and few enough, and the GPUs, read once more,
//! are still quiet. Any doubt, or no answer, is a reason to withhold.

use super::{Desk, Doubt};
use crate::ledger::OpenDrain;
use crate::model::{
    ActionRecord, Field, GpuReport, JobDetails, JobRun, JobState, NodeRow, NodeStatus, StartSource,
};
use crate::policy::cap::{Cap, Census};
use crate::policy::guard::{Exempt, exempt_before_deed};
use crate::policy::nodes::{self, Nodes, SKEW_S};
use crate::policy::reason::{PREFIX, RunKey};
use crate::policy::stage::{CancelWarrant, DrainWarrant, Uncounted, VoteWarrant};
use crate::policy::{Finding, Guard, Level, Rules, Signature, level, reason};
use crate::reading::Reading;
use crate::slurm::{Answer, Ask, Listed, Target};
use crate::units::NodeName;

/// Looks again.
pub struct Look<'a> {
    /// Who is left alone.
    pub rules: &'a Rules,
    /// How many nodes of the cluster may carry our drains.
    pub cap: Cap,
    /// Reads the GPUs once more, bounded in time.
    pub gpus: &'a mut dyn FnMut() -> Reading<GpuReport>,
    /// `act.admin_comment`.
    pub admin_comment: bool,
    /// `act.notify_job`.
    pub notify_job: bool,
    /// The Epilog of a job asks: that this job completes speaks against nothing.
    pub in_epilog: bool,
}

/// All that the look before a cancel found: every node agrees.
pub struct Agreed {
    /// With the votes of all nodes.
    pub warrant: CancelWarrant,
    /// The job run as commands name it.
    pub target: Target,
    /// Whether it is a batch job.
    pub batch: Reading<bool>,
    /// Whether it may be requeued.
    pub requeue: Reading<bool>,
    /// How often it was restarted so far.
    pub restart: Reading<u32>,
}

impl Look<'_> {
    /// Everything a drain needs to be true now. Gives the node as it was, and the job run's key for the reason.
    pub fn before_drain(
        &mut self,
        job: &JobRun,
        warrant: &DrainWarrant,
        desk: &Desk,
    ) -> Result<(NodeStatus, RunKey), Doubt> {
        let (finding, nodes) = (warrant.finding(), warrant.nodes());
        brake_is_off(desk)?;
        let key = key(job, &self.judged_one(job, finding, nodes, desk)?);
        let rows = told(desk.slurm.survey(), "the nodes' states")?;
        let node = self.free_to_drain(&rows, nodes, key, desk)?;
        self.gpus_are_quiet(finding)?;
        // The GPUs took their time: an administrator may have come first.
        match told(desk.slurm.node(), "the node's state")? {
            again if !again.drained() && again.plain() && again.reason == node.reason => Ok((node, key)),
            other => Err(format!("the node was {node} and is {other}").into()),
        }
    }

    /// This node is in service and nobody's, the cap leaves room, and the job's first node went before.
    fn free_to_drain(
        &self,
        rows: &[NodeRow],
        nodes: &Nodes,
        key: RunKey,
        desk: &Desk,
    ) -> Result<NodeStatus, Doubt> {
        let me = desk.ledger.node();
        let node = nobodys(rows, me, false)?;
        let census = Census::of(rows, me, Some(key));
        self.cap.room(census, nodes.count()).map_err(of_limit)?;
        nodes::follow(rows, nodes, key)?;
        Ok(node)
    }

    /// Everything a drain for a fault of this node needs to be true now. What jobs run there is no matter: a drain
    /// touches none.
    pub fn before_fault_drain(&self, desk: &Desk) -> Result<NodeStatus, Doubt> {
        brake_is_off(desk)?;
        let rows = told(desk.slurm.survey(), "the nodes' states")?;
        let me = desk.ledger.node();
        let node = nobodys(&rows, me, self.in_epilog)?;
        self.cap.room(Census::of(&rows, me, None), 1).map_err(of_limit)?;
        Ok(node)
    }

    /// Whether this node's drain for a fault is one too many by now.
    pub fn fault_is_one_too_many(&self, desk: &Desk) -> Result<bool, String> {
        let rows = told(desk.slurm.survey(), "the nodes' states")?;
        Ok(self.cap.overshot(Census::of(&rows, desk.ledger.node(), None), 1))
    }

    /// Everything a vote needs to be true now: our drain stands as it was, and nothing here speaks for the job.
    pub fn before_vote(
        &mut self,
        job: &JobRun,
        warrant: &VoteWarrant,
        desk: &Desk,
    ) -> Result<(NodeStatus, RunKey), Doubt> {
        let finding = warrant.finding();
        brake_is_off(desk)?;
        let details = self.named_run(job, finding, desk)?;
        self.gpus_are_quiet(finding)?;
        // Last, so that no administrator comes between this look and the new reason.
        let node = told(desk.slurm.node(), "the node's state")?;
        if !node.drained_as(warrant.shown()) {
            return Err(format!("our drain no longer stands as we wrote it: the node is {node}").into());
        }
        if !node.plain() {
            return Err(format!("the node is {node}").into());
        }
        Ok((node, key(job, &details)))
    }

    /// Everything a cancel needs to be true now, the other nodes' votes among it.
    pub fn before_cancel(
        &mut self,
        job: &JobRun,
        uncounted: Uncounted,
        desk: &Desk,
    ) -> Result<Agreed, Doubt> {
        brake_is_off(desk)?;
        let details = self.judged_one(job, uncounted.finding(), uncounted.nodes(), desk)?;
        if details.is_het() {
            return Err("a component of a heterogeneous job; ending it would end the others"
                .to_owned()
                .into());
        }
        let key = key(job, &details);
        let rows = told(desk.slurm.survey(), "the nodes' states")?;
        let own = rows.iter().find(|row| row.name == *desk.ledger.node());
        if !own.is_some_and(|row| row.status.drained_as(uncounted.shown())) {
            return Err("our drain no longer stands as we wrote it".to_owned().into());
        }
        let written = uncounted.written();
        if let Some(shown_at) =
            own.and_then(|row| row.reason_unix_s).filter(|_| uncounted.nodes().are_several())
        {
            same_clock(shown_at, written)?;
        }
        let since_own_s = desk.now.boot.since_ms(written.at) / 1000;
        let votes = nodes::count(&rows, uncounted.nodes(), key, since_own_s)?;
        let census = Census::of(&rows, desk.ledger.node(), Some(key));
        self.cap.not_full_of_others(census, uncounted.nodes().count()).map_err(of_limit)?;
        self.gpus_are_quiet(uncounted.finding())?;
        let target = Target {
            display_id: details.display_id,
            sluid: details.near.sluid,
            user: details.user,
            node: desk.ledger.node().clone(),
        };
        Ok(Agreed {
            warrant: uncounted.counted(votes),
            target,
            batch: details.near.batch,
            requeue: details.near.requeue,
            restart: details.restart,
        })
    }

    /// The job run once more, the moment before it is ended: brake, nodes and GPUs took their time, in which it may have
    /// been requeued, suspended or kept. Gives the administrators' comment that is there.
    pub fn once_more(
        &self,
        job: &JobRun,
        warrant: &CancelWarrant,
        desk: &Desk,
    ) -> Result<Reading<String>, Doubt> {
        Ok(self.named_run(job, warrant.finding(), desk)?.near.admin_comment)
    }

    /// Whether this node's drain is one too many by now.
    pub fn is_one_too_many(&self, drain: &OpenDrain, nodes: &Nodes, desk: &Desk) -> Result<bool, String> {
        let ours = drain.action.reason.as_deref().and_then(reason::read);
        let key = ours.ok_or("the drain's reason is not known")?.key;
        let rows = told(desk.slurm.survey(), "the nodes' states")?;
        Ok(self.cap.overshot(Census::of(&rows, desk.ledger.node(), Some(key)), nodes.count()))
    }

    /// The judged run, on the very nodes that the warrant names.
    fn judged_one(
        &self,
        job: &JobRun,
        finding: &Finding,
        nodes: &Nodes,
        desk: &Desk,
    ) -> Result<JobDetails, Doubt> {
        let details = self.named_run(job, finding, desk)?;
        let same_list = job.details.as_ref().is_some_and(|known| known.node_list == details.node_list);
        if details.nodes != Reading::Measured(nodes.count()) || (nodes.are_several() && !same_list) {
            return Err("Slurm does not say that the job runs on the nodes that are known".to_owned().into());
        }
        Ok(details)
    }

    /// The judged run: RUNNING, never suspended since the breach began, not exempt and not kept.
    fn named_run(&self, job: &JobRun, finding: &Finding, desk: &Desk) -> Result<JobDetails, Doubt> {
        let exemptions = &self.rules.exemptions;
        let (name, comment) = (exemptions.name_pattern.is_some(), exemptions.job_comment_ms.is_some());
        let details = is_that_run(job, Ask { name, comment, near_deed: true }, desk)?;
        never_suspended(&details, finding)?;
        let mut looked = job.clone();
        looked.details = Some(details.clone());
        let gpus = job.registration.gpus.len() as u32;
        let exempted = |because| Doubt { guard: Some(Guard::Exemption), because, of_limit: false };
        match exempt_before_deed(exemptions, &looked, gpus, desk.now) {
            Exempt::No(_) => Ok(details),
            Exempt::Yes(why) => Err(exempted(format!("exempt by {why}"))),
            Exempt::CannotSay(why) => Err(exempted(format!("whether it is exempt cannot be said: {why}"))),
        }
    }

    fn gpus_are_quiet(&mut self, finding: &Finding) -> Result<(), String> {
        let report = match (self.gpus)() {
            Reading::Measured(report) => report,
            Reading::Absent(why) => {
                return Err(format!("the GPUs could not be read once more: {}", why.words()));
            }
        };
        for unit in &finding.units {
            let seen = report.units.iter().find(|s| s.identity.uuid.measured() == Some(&unit.uuid));
            let Some(seen) = seen else {
                return Err(format!("GPU {} is no longer listed", unit.index));
            };
            let shows = finding.signature.look();
            match level::at_a_glance(&seen.readings, &self.rules.thresholds) {
                level if shows.keeps(level) => {}
                Level::Unreadable(why) => {
                    return Err(format!("GPU {} not readable: {}", unit.index, why.words()));
                }
                _ => {
                    let peak = level::peak(seen.readings.sm_util, &seen.readings.sm_peak);
                    let peak = peak.measured().map_or("0 %".to_owned(), |p| p.to_string());
                    return Err(format!("GPU {} works again: {peak}", unit.index));
                }
            }
            let wants = seen.readings.fields.get(Field::RecoveryAction);
            if matches!(wants, Reading::Measured(action) if action > 0) {
                return Err(format!("GPU {} needs a reset: that is no job's doing", unit.index));
            }
            let alone = seen.readings.processes.measured().is_some_and(Vec::is_empty);
            if finding.signature == Signature::Idle && !alone {
                return Err(format!("GPU {} is no longer without a process", unit.index));
            }
        }
        Ok(())
    }
}

/// What a job whose Epilog runs adds to its node's state.
const COMPLETING: &str = "completing";

/// Whose a drain is that covers another fault too: there is no second one while it stands, nor after it is lifted.
pub const FOR_A_FAULT: &str = "by us, for a fault";

/// This node, if it is in service and nobody has drained it or left a Reason on it. `in_epilog`: its own job completes.
fn nobodys(rows: &[NodeRow], me: &NodeName, in_epilog: bool) -> Result<NodeStatus, Doubt> {
    let row = rows.iter().find(|row| row.name == *me);
    let node = row.ok_or_else(|| format!("Slurm does not show node `{me}`"))?.status.clone();
    if node.drained() {
        let reason = node.reason.as_deref().unwrap_or_default();
        let whose = match reason.starts_with(PREFIX) {
            true if reason::read_fault(reason).is_some() => FOR_A_FAULT,
            true => "by us, for something else",
            false => "by somebody else",
        };
        return Err(format!("the node is already drained {whose}: {node}").into());
    }
    let mut beside = node.clone();
    beside.flags.retain(|flag| !(in_epilog && flag == COMPLETING));
    if !beside.plain() {
        return Err(not_plain(&node));
    }
    // One of ours is a leftover: 24.11 keeps it after UNDRAIN. Slurm would replace any without a word.
    match node.reason.as_deref().filter(|text| !reason::is_ours(text)) {
        Some(theirs) => {
            Err(format!("the node's Reason is `{}`, by somebody else", theirs.escape_debug()).into())
        }
        None => Ok(node),
    }
}

/// Why a node is left alone that shows more than IDLE, MIXED or ALLOCATED.
pub fn not_plain(node: &NodeStatus) -> Doubt {
    format!("the node is {node}").into()
}

/// Slurm says that this very job run is RUNNING now.
pub fn is_that_run(job: &JobRun, ask: Ask, desk: &Desk) -> Result<JobDetails, String> {
    let details = match told(desk.slurm.job(job.registration.job, ask), "the job")? {
        Some(Listed { details: Some(details), .. }) => details,
        Some(Listed { state, .. }) => {
            return Err(format!("Slurm says the job is {}", state.word()));
        }
        None => return Err("Slurm no longer lists the job".to_owned()),
    };
    if details.state != JobState::Running {
        return Err(format!("Slurm says the job is {}", details.state.word()));
    }
    same_run(job, &details)?;
    Ok(details)
}

/// A job that Slurm stopped did not stand still by itself. The two times are of two clocks, which may differ a little.
fn never_suspended(details: &JobDetails, finding: &Finding) -> Result<(), Doubt> {
    let doubt = |because| Err(Doubt { guard: Some(Guard::JobState), because, of_limit: false });
    match details.near.suspended_unix_s {
        Reading::Measured(at) if (at + SKEW_S).saturating_mul(1000) < finding.since_wall.0 => Ok(()),
        Reading::Measured(_) => doubt("Slurm has suspended or resumed it since the breach began".to_owned()),
        Reading::Absent(why) => doubt(format!("whether it was suspended is not known: {}", why.words())),
    }
}

/// How old the votes are is told by slurmctld's time of this node's own, which is the vote that this node knows only if
/// the two clocks say so: an update that came true late may have left an older one of the same text.
fn same_clock(shown_at_unix_s: i64, written: &ActionRecord) -> Result<(), String> {
    let apart_s = shown_at_unix_s - written.wall.0.div_euclid(1000);
    if apart_s.abs() <= SKEW_S {
        return Ok(());
    }
    Err(format!(
        "Slurm dates this node's vote {apart_s} s after this node does: how old the others are is not known"
    ))
}

/// The job run as every node of it names it.
fn key(job: &JobRun, details: &JobDetails) -> RunKey {
    let r = &job.registration;
    let restart = details.restart.measured().copied().unwrap_or(r.restart);
    RunKey { job: r.job, start_unix_s: details.start_unix_s, restart }
}

/// No reservation of the brake's name exists.
fn brake_is_off(desk: &Desk) -> Result<(), String> {
    match told(desk.slurm.brake(), "the brake")? {
        false => Ok(()),
        true => Err("the reservation `gpu-reaper-stop` exists: every node is stopped".to_owned()),
    }
}

/// Guarded against a requeue between finding and deed: same restart count and same start, where each is known.
fn same_run(job: &JobRun, details: &JobDetails) -> Result<(), String> {
    let r = &job.registration;
    match details.restart {
        Reading::Measured(n) if n != r.restart => {
            return Err(format!("requeued meanwhile: restart {n}, judged was {}", r.restart));
        }
        Reading::Measured(_) => {}
        Reading::Absent(_) if r.start.source == StartSource::Slurm => {}
        Reading::Absent(why) => {
            return Err(format!("its restart count is not known: {}", why.words()));
        }
    }
    let registered_s = r.start.wall.0.div_euclid(1000);
    let same = match r.start.source {
        StartSource::Slurm => details.start_unix_s == registered_s,
        // The Prolog of Slurm before 23.02 knows no start time; it ran after the start. A second of rounding.
        StartSource::Registration => details.start_unix_s <= registered_s + 1,
    };
    if same {
        Ok(())
    } else {
        Err(format!("another start: {} in Slurm, {registered_s} judged", details.start_unix_s))
    }
}

/// The limit over the whole cluster holds.
fn of_limit(because: String) -> Doubt {
    Doubt { guard: None, because, of_limit: true }
}

fn told<T>(answer: Answer<T>, what: &str) -> Result<T, String> {
    answer.map_err(|silence| format!("{what} could not be confirmed: {silence}"))
}

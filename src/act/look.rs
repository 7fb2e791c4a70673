//! The look before the deed: Slurm says this very job run is RUNNING here and alone here, nobody has pulled the
//! brake, the node is ours to touch, and the GPUs, read once more, are still quiet. Any doubt, or no answer, is
//! a reason to withhold.

use super::Desk;
use super::reason::PREFIX;
use crate::model::{Field, GpuReport, JobDetails, JobRun, JobState, NodeStatus, StartSource};
use crate::policy::guard::{Exempt, exempt_before_deed};
use crate::policy::stage::CancelWarrant;
use crate::policy::{Finding, Level, Rules, Signature, level};
use crate::reading::Reading;
use crate::slurm::{Answer, Ask, Listed, Target};

/// Looks again.
pub struct Look<'a> {
    /// Who is left alone.
    pub rules: &'a Rules,
    /// Reads the GPUs once more, bounded in time.
    pub gpus: &'a mut dyn FnMut() -> Reading<GpuReport>,
    /// `act.admin_comment`.
    pub admin_comment: bool,
}

impl Look<'_> {
    /// Everything a drain needs to be true now. Gives the node as it was.
    pub fn before_drain(
        &mut self,
        job: &JobRun,
        finding: &Finding,
        desk: &Desk,
    ) -> Result<NodeStatus, String> {
        self.job_is_the_judged_one(job, finding, desk)?;
        brake_is_off(desk)?;
        let node = told(desk.slurm.node(), "the node's state")?;
        if node.drained() {
            return Err(format!("the node is already drained by somebody else: {node}"));
        }
        if !node.plain() {
            return Err(format!("the node is {node}"));
        }
        // One of ours is a leftover: 24.11 keeps it after UNDRAIN. Slurm would replace any without a word.
        if let Some(theirs) = node.reason.as_deref().filter(|r| !r.starts_with(PREFIX)) {
            return Err(format!("the node's Reason is `{}`, by somebody else", theirs.escape_debug()));
        }
        self.gpus_are_quiet(finding)?;
        Ok(node)
    }

    /// Everything a cancel needs to be true now. Gives the id that scancel takes.
    pub fn before_cancel(
        &mut self,
        job: &JobRun,
        warrant: &CancelWarrant,
        desk: &Desk,
    ) -> Result<Target, String> {
        let details = self.job_is_the_judged_one(job, warrant.finding(), desk)?;
        if details.is_het() {
            return Err("a component of a heterogeneous job; ending it would end the others".to_owned());
        }
        brake_is_off(desk)?;
        let node = told(desk.slurm.node(), "the node's state")?;
        if !warrant.drain().reason.as_deref().is_some_and(|ours| node.drained_as(ours)) {
            return Err(format!("our drain no longer stands: the node is {node}"));
        }
        self.gpus_are_quiet(warrant.finding())?;
        let node = desk.ledger.node().clone();
        Ok(Target { display_id: details.display_id, sluid: details.near.sluid, user: details.user, node })
    }

    fn job_is_the_judged_one(
        &self,
        job: &JobRun,
        finding: &Finding,
        desk: &Desk,
    ) -> Result<JobDetails, String> {
        let exemptions = &self.rules.exemptions;
        let (name, comment) = (exemptions.name_pattern.is_some(), exemptions.job_comment_ms.is_some());
        let ask = Ask { name, comment, near_deed: true };
        let details = is_that_run(job, ask, desk)?;
        if details.nodes != Reading::Measured(1) {
            return Err("Slurm does not say that the job runs on this node alone".to_owned());
        }
        let mut looked = job.clone();
        looked.details = Some(details.clone());
        let gpus = finding.units.len() as u32;
        match exempt_before_deed(exemptions, &looked, gpus, desk.now) {
            Exempt::No(_) => Ok(details),
            Exempt::Yes(why) => Err(format!("exempt by {why}")),
            Exempt::CannotSay(why) => Err(format!("whether it is exempt cannot be said: {why}")),
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

fn told<T>(answer: Answer<T>, what: &str) -> Result<T, String> {
    answer.map_err(|silence| format!("{what} could not be confirmed: {silence}"))
}

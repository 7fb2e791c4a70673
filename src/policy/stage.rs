//! The ladder: from a finding to one step of this run. Alert, then drain, then cancel, each in a run of its
//! own; whatever is not done is a value with its reason. Warrants are made here and nowhere else.

use super::guard::Guard;
use super::judge::{Finding, Scope};
use super::{Rules, Stage};
use crate::mode::EnforcePermit;
use crate::model::{ActionRecord, JobRun, Outcome, RunId, Verdict};
use crate::reading::Reading;

/// Everything a drain needs; consumed by the actor.
#[derive(Debug)]
pub struct DrainWarrant {
    finding: Finding,
    _permit: EnforcePermit,
}

impl DrainWarrant {
    /// What it rests on.
    pub fn finding(&self) -> &Finding {
        &self.finding
    }
}

/// Everything a cancel needs, with the earlier drain; consumed by the actor.
#[derive(Debug)]
pub struct CancelWarrant {
    finding: Finding,
    drain: ActionRecord,
    _permit: EnforcePermit,
}

impl CancelWarrant {
    /// What it rests on.
    pub fn finding(&self) -> &Finding {
        &self.finding
    }

    /// The drain of an earlier run, seen to be done.
    pub fn drain(&self) -> &ActionRecord {
        &self.drain
    }
}

/// The one step of this run for one job.
#[derive(Debug)]
pub enum Step {
    /// Nothing is due.
    Rest,
    /// Tell people: the finding's first stage.
    Alert,
    /// Drain this node.
    Drain(DrainWarrant),
    /// Cancel this job.
    Cancel(CancelWarrant),
    /// Due, and not done.
    Withheld {
        /// What was asked for.
        asked: Verdict,
        /// The guard, where one holds; else Slurm, a limit or the site.
        guard: Option<Guard>,
        /// Why not, in words.
        because: String,
    },
    /// An earlier action's outcome is not known: look before anything else.
    Reconcile(ActionRecord),
}

/// What a step depends on besides the finding.
#[derive(Debug)]
pub struct Circumstances<'a> {
    /// Only `mode: enforce` can make one.
    pub permit: Option<EnforcePermit>,
    /// This run.
    pub run: RunId,
    /// The job run.
    pub job: &'a JobRun,
    /// What was done for it so far, oldest first.
    pub actions: &'a [ActionRecord],
    /// Allocation units of this node in all.
    pub node_units: Reading<u32>,
    /// Something about this run or node that forbids acting: a new ledger, a fresh slurmd, a limit, no time left.
    pub held_by: Option<String>,
}

/// What comes next for a finding and when, if it goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// The stage.
    pub verdict: Verdict,
    /// From now, if the breach holds; 0: due.
    pub in_ms: i64,
}

fn done(actions: &[ActionRecord], verdict: Verdict, before: RunId) -> impl Iterator<Item = &ActionRecord> {
    actions.iter().filter(move |a| a.verdict == verdict && a.outcome == Outcome::Done && a.run < before)
}

/// The alert of this very finding as it looks now, made by an earlier run: what was told of another look told nobody
/// of this one.
fn alerted(finding: &Finding, c: &Circumstances) -> bool {
    let of_this = |a: &ActionRecord| a.run >= finding.since_run && a.signature == finding.signature.word();
    done(c.actions, Verdict::Alert, c.run).any(of_this)
}

/// Our drain for this job run, of an earlier run and still standing; also one of an earlier finding.
fn drained<'a>(c: &Circumstances<'a>) -> Option<&'a ActionRecord> {
    done(c.actions, Verdict::Drain, c.run).last()
}

/// The time of a finding that counts for a stage. What its cap forbids is told as withheld from the first hour on.
fn elapsed_ms(finding: &Finding, verdict: Verdict) -> i64 {
    let told_only = verdict == Verdict::Alert || verdict > finding.cap;
    if told_only { finding.established_for_ms } else { finding.acting_for_ms }
}

fn has_drain(rules: &Rules) -> bool {
    rules.stages.iter().any(|s| s.verdict == Verdict::Drain)
}

/// The verdict that time alone makes due.
pub fn due(finding: &Finding, stages: &[Stage]) -> Option<Verdict> {
    stages.iter().filter(|s| elapsed_ms(finding, s.verdict) >= s.after_ms).map(|s| s.verdict).max()
}

/// The next stage of a finding that goes on.
pub fn next(finding: &Finding, stages: &[Stage]) -> Option<Next> {
    let to_go_ms = |s: &Stage| s.after_ms - elapsed_ms(finding, s.verdict);
    let ahead = stages.iter().filter(|s| s.verdict <= finding.cap && to_go_ms(s) > 0);
    ahead.min_by_key(|s| to_go_ms(s)).map(|s| Next { verdict: s.verdict, in_ms: to_go_ms(s) })
}

/// One step for this finding in this run. No configuration reaches cancel in fewer than three runs.
pub fn escalate(finding: &Finding, rules: &Rules, c: Circumstances) -> Step {
    let Some(asked) = due(finding, &rules.stages) else {
        return Step::Rest;
    };
    if !alerted(finding, &c) {
        let this_run = c.actions.iter().any(|a| a.verdict == Verdict::Alert && a.run == c.run);
        return if this_run { Step::Rest } else { Step::Alert };
    }
    if asked == Verdict::Alert {
        return Step::Rest;
    }
    let unclear = |a: &&ActionRecord| matches!(a.outcome, Outcome::Begun | Outcome::Unknown);
    if let Some(unclear) = c.actions.iter().filter(|a| a.verdict > Verdict::Alert).find(unclear) {
        return Step::Reconcile(unclear.clone());
    }
    if done(c.actions, Verdict::Cancel, c.run).next().is_some() {
        return Step::Rest;
    }
    let drain = drained(&c);
    // A drain has a clock of its own: a cancel that is only told of does not bring it forward.
    let is_due = |s: &Stage| s.verdict == Verdict::Drain && elapsed_ms(finding, s.verdict) >= s.after_ms;
    if drain.is_none() && has_drain(rules) && !rules.stages.iter().any(is_due) {
        return Step::Rest;
    }
    // `stages` is in order: where a cancel is due, a drain stage is due too, or there is none.
    let asked = if drain.is_none() && has_drain(rules) { Verdict::Drain } else { asked };
    if drain.is_some() && asked == Verdict::Drain {
        return Step::Rest;
    }
    if drain.is_none() && asked == Verdict::Cancel {
        let because = "cancel needs an earlier drain, and `stages` has no drain".to_owned();
        return Step::Withheld { asked, guard: Some(Guard::CancelHistory), because };
    }
    if let Some((guard, because)) = forbids(finding, rules, &c, asked) {
        return Step::Withheld { asked, guard, because };
    }
    let Some(permit) = c.permit else {
        return Step::Withheld { asked, guard: Some(Guard::Observe), because: "mode is observe".to_owned() };
    };
    match drain {
        None => Step::Drain(DrainWarrant { finding: finding.clone(), _permit: permit }),
        Some(drain) => {
            Step::Cancel(CancelWarrant { finding: finding.clone(), drain: drain.clone(), _permit: permit })
        }
    }
}

/// Whatever forbids a drain or cancel that time has made due.
fn forbids(
    finding: &Finding,
    rules: &Rules,
    c: &Circumstances,
    asked: Verdict,
) -> Option<(Option<Guard>, String)> {
    if let (true, Some((guard, because))) = (finding.cap < asked, &finding.capped_by) {
        return Some((Some(*guard), because.clone()));
    }
    if finding.cap < asked {
        return Some((
            Some(Guard::SignatureCap),
            format!("`{}` may ask for {} at most", finding.signature, finding.cap),
        ));
    }
    if finding.scope == Scope::Part {
        return Some((Some(Guard::WholeJob), "other units of the job work".to_owned()));
    }
    if c.permit.is_none() {
        return Some((Some(Guard::Observe), "mode is observe".to_owned()));
    }
    let ours = c.actions.iter().filter(|a| a.verdict == Verdict::Drain);
    if ours.clone().any(|a| a.outcome == Outcome::Lifted && a.run >= finding.since_run) {
        return Some((None, "our drain was lifted by somebody; it is not made twice".to_owned()));
    }
    match nodes(c.job) {
        Reading::Measured(1) => {}
        Reading::Measured(n) => {
            return Some((None, format!("the job runs on {n} nodes; no node alone may act on it")));
        }
        Reading::Absent(_) => {
            return Some((None, "on how many nodes the job runs is not known".to_owned()));
        }
    }
    if c.job.registration.het_leader.is_some() || c.job.details.as_ref().is_some_and(|d| d.is_het()) {
        return Some((None, "a component of a heterogeneous job; ending it would end the others".to_owned()));
    }
    if let (Verdict::Drain, Some(because)) = (asked, would_block(finding, rules, c)) {
        return Some((None, because));
    }
    c.held_by.clone().map(|because| (None, because))
}

fn nodes(job: &JobRun) -> Reading<u32> {
    match &job.details {
        Some(details) if details.nodes.measured().is_some() => details.nodes,
        _ => job.registration.nodes,
    }
}

/// A drain that takes GPUs of others out of service is not made, unless the site says so.
fn would_block(finding: &Finding, rules: &Rules, c: &Circumstances) -> Option<String> {
    if rules.drain_shared {
        return None;
    }
    match c.node_units {
        Reading::Measured(all) => {
            let others = all.saturating_sub(finding.units.len() as u32);
            (others > 0).then(|| format!("would block {others} GPUs of others"))
        }
        Reading::Absent(why) => {
            Some(format!("that the job holds every GPU of this node is not certain: {}", why.words()))
        }
    }
}

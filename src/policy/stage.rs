//! The ladder: from a finding to one step of this run. Alert, then drain, then cancel, each in a run of its
//! own; whatever is not done is a value with its reason. Warrants are made here and nowhere else.

use super::guard::Guard;
use super::judge::{Finding, Judgement, Scope};
use super::nodes::{Nodes, REFRESH_MS, VOTE_HOLDS_S, Votes};
use super::reason::{self, MOST_REFRESHES, Stand};
use super::{Rules, Stage};
use crate::mode::{EnforcePermit, NoPermit};
use crate::model::{ActionRecord, Deed, JobRun, Outcome, RunId, Verdict};
use crate::reading::Reading;
use crate::units::BootMs;

/// Everything a drain needs; consumed by the actor.
#[derive(Debug)]
pub struct DrainWarrant {
    finding: Finding,
    nodes: Nodes,
    _permit: EnforcePermit,
}

impl DrainWarrant {
    /// What it rests on.
    pub fn finding(&self) -> &Finding {
        &self.finding
    }

    /// The job's nodes.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }
}

/// Everything a vote needs: the right to rewrite our own drain's reason; consumed by the actor.
#[derive(Debug)]
pub struct VoteWarrant {
    finding: Finding,
    shown: String,
    stand: Stand,
    _permit: EnforcePermit,
}

impl VoteWarrant {
    /// What it rests on.
    pub fn finding(&self) -> &Finding {
        &self.finding
    }

    /// What the node's Reason says now, byte for byte, if our drain still stands.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// What the reason will say.
    pub fn stand(&self) -> Stand {
        self.stand
    }
}

/// Everything a cancel needs but the votes, which only slurmctld can show.
#[derive(Debug)]
pub struct Uncounted {
    finding: Finding,
    drain: ActionRecord,
    shown: String,
    written: ActionRecord,
    nodes: Nodes,
    permit: EnforcePermit,
}

impl Uncounted {
    /// What it rests on.
    pub fn finding(&self) -> &Finding {
        &self.finding
    }

    /// The drain of an earlier run, seen to be done.
    pub fn drain(&self) -> &ActionRecord {
        &self.drain
    }

    /// What the node's Reason says now, byte for byte, if our drain still stands: its own text or the vote's.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// The deed that wrote it.
    pub fn written(&self) -> &ActionRecord {
        &self.written
    }

    /// The job's nodes, all of which have to agree.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// With the votes it is whole.
    pub fn counted(self, votes: Votes) -> CancelWarrant {
        let Uncounted { finding, drain, permit, .. } = self;
        CancelWarrant { finding, drain, votes, _permit: permit }
    }
}

/// Everything a cancel, a requeue in its place, or the warning before it needs: finding, permit, earlier drain and the
/// votes of all nodes; consumed by the actor.
#[derive(Debug)]
pub struct CancelWarrant {
    finding: Finding,
    drain: ActionRecord,
    votes: Votes,
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

    /// How many nodes agree.
    pub fn votes(&self) -> u32 {
        self.votes.nodes()
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
    /// Say by our drain's reason that this node agrees to the cancel.
    Vote(VoteWarrant),
    /// Warn this job by a signal: the cancel follows in a later run.
    Warn(Uncounted),
    /// Cancel this job.
    Cancel(Uncounted),
    /// Due, and not in this run: this node's moment is later.
    Later {
        /// What is asked for.
        asked: Verdict,
        /// From now.
        in_ms: i64,
    },
    /// Due, and not done.
    Withheld {
        /// What was asked for.
        asked: Verdict,
        /// The guard, where one holds; else Slurm, a limit or the site.
        guard: Option<Guard>,
        /// Why not, in words.
        because: String,
    },
    /// How an earlier deed ended is not known. Each run looks for that when it begins; until then nothing else is done.
    Unclear,
}

/// How a reason begins that withholds a drain because the job shares its node.
pub const WOULD_BLOCK: &str = "would block";

/// What a step depends on besides the finding.
#[derive(Debug)]
pub struct Circumstances<'a> {
    /// Only `mode: enforce` can make one, for this job run.
    pub permit: Result<EnforcePermit, NoPermit>,
    /// This run.
    pub run: RunId,
    /// Its moment.
    pub now: BootMs,
    /// The job run.
    pub job: &'a JobRun,
    /// What was done for it so far, oldest first.
    pub actions: &'a [ActionRecord],
    /// Allocation units of this node in all.
    pub node_units: Reading<u32>,
    /// The job's nodes, or in words why they are not known.
    pub nodes: Result<Nodes, String>,
    /// How long until this node's moment; 0: now.
    pub wait_ms: i64,
    /// Something about this run or node that forbids acting: a new ledger, a fresh slurmd, a limit, no time left.
    pub held_by: Option<String>,
    /// Deeds for this job that were not done when they were due, and are not tried again yet.
    pub backing_off: Vec<Deed>,
}

/// What comes next for a finding and when, if it goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// The stage.
    pub verdict: Verdict,
    /// From now, if the breach holds; 0: due.
    pub in_ms: i64,
}

fn done(actions: &[ActionRecord], deed: Deed, before: RunId) -> impl Iterator<Item = &ActionRecord> {
    actions.iter().filter(move |a| a.deed == deed && a.outcome == Outcome::Done && a.run < before)
}

/// The alert of this very finding as it looks now, made by an earlier run: what was told of another look told nobody
/// of this one.
fn alerted(finding: &Finding, c: &Circumstances) -> bool {
    let of_this = |a: &ActionRecord| a.run >= finding.since_run && a.signature == finding.signature.word();
    done(c.actions, Deed::Alert, c.run).any(of_this)
}

/// Our drain for this job run, of an earlier run and still standing; also one of an earlier finding.
fn drained<'a>(c: &Circumstances<'a>) -> Option<&'a ActionRecord> {
    done(c.actions, Deed::Drain, c.run).last()
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

/// What the reason says that an action wrote; `None`: it wrote none of ours.
pub fn stand(action: &ActionRecord) -> Option<Stand> {
    Some(reason::read(action.reason.as_deref()?)?.stand)
}

/// What the reason of a standing drain says, byte for byte, and the deed that wrote it: the last that was done.
fn standing(actions: &[ActionRecord]) -> Option<(Stand, &str, &ActionRecord)> {
    let mut ours =
        actions.iter().filter(|a| matches!(a.deed, Deed::Drain | Deed::Vote) && a.outcome == Outcome::Done);
    let last = ours.next_back()?;
    Some((stand(last)?, last.reason.as_deref()?, last))
}

/// One step for this finding in this run. No configuration reaches cancel in fewer than three runs.
pub fn escalate(finding: &Finding, rules: &Rules, c: Circumstances) -> Step {
    let Some(asked) = due(finding, &rules.stages) else {
        return Step::Rest;
    };
    if !alerted(finding, &c) {
        let this_run = c.actions.iter().any(|a| a.deed == Deed::Alert && a.run == c.run);
        return if this_run { Step::Rest } else { Step::Alert };
    }
    if asked == Verdict::Alert {
        return Step::Rest;
    }
    let is_unclear = |a: &&ActionRecord| matches!(a.outcome, Outcome::Begun | Outcome::Unknown);
    let unclear = c.actions.iter().filter(|a| a.deed > Deed::Alert).find(is_unclear).map(|a| a.deed);
    match unclear {
        None => {}
        Some(Deed::Warn) => {
            return withheld(
                asked,
                "whether the job heard its warning cannot be seen, and it is not sent twice",
            );
        }
        Some(_) => return Step::Unclear,
    }
    let over =
        [Deed::Cancel, Deed::Requeue].iter().any(|deed| done(c.actions, *deed, c.run).next().is_some());
    if over {
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
    allowed(finding, rules, drain.cloned(), c)
}

fn backs_off(asked: Verdict, deed: Deed) -> Step {
    withheld(asked, &format!("the {} was not done when it was due; it is tried again later", deed.word()))
}

/// The step that nothing forbids.
fn allowed(finding: &Finding, rules: &Rules, drain: Option<ActionRecord>, c: Circumstances) -> Step {
    let asked = if drain.is_some() { Verdict::Cancel } else { Verdict::Drain };
    let (permit, nodes) = match (c.permit, c.nodes) {
        (Ok(permit), Ok(nodes)) if permit.job() == c.job.id => (permit, nodes),
        (Ok(_), Ok(_)) => return withheld(asked, "the permit is for another job run"),
        (Err(why @ NoPermit::Observe), _) => {
            let because = why.to_string();
            return Step::Withheld { asked, guard: Some(Guard::Observe), because };
        }
        (Err(NoPermit::Outside(because)), _) | (_, Err(because)) => return withheld(asked, &because),
    };
    let (finding, in_ms) = (finding.clone(), c.wait_ms);
    let Some(drain) = drain else {
        return match in_ms {
            _ if c.backing_off.contains(&Deed::Drain) => backs_off(asked, Deed::Drain),
            0 => Step::Drain(DrainWarrant { finding, nodes, _permit: permit }),
            _ => Step::Later { asked, in_ms },
        };
    };
    if drain.counted_again.is_none() {
        // One too many is withdrawn, and ends no job before.
        return withheld(asked, "the cluster's drains were not counted again yet since the drain");
    }
    let Some((stand, shown, written)) = standing(c.actions) else {
        return withheld(asked, "what our drain's reason says is not known");
    };
    if nodes.are_several() {
        match vote(stand, written, votes_since(&drain, c.actions), &nodes, (c.now, in_ms)) {
            Vote::Write(_) if c.backing_off.contains(&Deed::Vote) => return backs_off(asked, Deed::Vote),
            Vote::Write(n) => {
                let shown = shown.to_owned();
                return Step::Vote(VoteWarrant { finding, shown, stand: Stand::Vote(n), _permit: permit });
            }
            Vote::Later => return Step::Later { asked, in_ms },
            Vote::RanOut => {
                return withheld(asked, "its votes ran out before every node of the job had voted");
            }
            Vote::Stands if !nodes.is_first() => return Step::Rest,
            Vote::Stands => {}
        }
    }
    if let Some(deed) =
        [Deed::Warn, Deed::Cancel, Deed::Requeue].into_iter().find(|deed| c.backing_off.contains(deed))
    {
        return backs_off(asked, deed);
    }
    let warned = warned(rules, &finding, c.actions, c.run, c.now);
    let all = Uncounted { finding, drain, shown: shown.to_owned(), written: written.clone(), nodes, permit };
    match warned {
        _ if in_ms > 0 => Step::Later { asked, in_ms },
        Warned::NotYet => Step::Warn(all),
        Warned::Until(in_ms) => Step::Later { asked, in_ms },
        Warned::LongEnough => Step::Cancel(all),
    }
}

/// Whether this run would vote for the job's cancel: a vote of an earlier one stands no longer than that.
pub fn would_vote(judgement: &Judgement, rules: &Rules, permit: &Result<EnforcePermit, NoPermit>) -> bool {
    let Judgement::Breaching(finding) = judgement else { return false };
    let whole = finding.scope == Scope::Whole && finding.cap >= Verdict::Cancel;
    whole && permit.is_ok() && due(finding, &rules.stages) == Some(Verdict::Cancel)
}

fn withheld(asked: Verdict, because: &str) -> Step {
    Step::Withheld { asked, guard: None, because: because.to_owned() }
}

/// What is to be done about this node's vote.
enum Vote {
    /// It is to be written, as the vote of this number.
    Write(u32),
    /// It is to be written in this node's moment.
    Later,
    /// It stands.
    Stands,
    /// It may not be written any more, and is none by now.
    RanOut,
}

/// `written_so_far`: votes of this drain. One that is to be written anew need not wait for the node's moment, so that it
/// does not go stale; a first one does, and one that stands no more.
fn vote(
    stand: Stand,
    written: &ActionRecord,
    written_so_far: u32,
    nodes: &Nodes,
    (now, in_ms): (BootMs, i64),
) -> Vote {
    let age_ms = match stand {
        Stand::Vote(_) => now.since_ms(written.at),
        Stand::Drain => i64::MAX,
    };
    let still_one = age_ms <= VOTE_HOLDS_S * 1000;
    // The first node's moment and the time to write anew come together: were its vote written first, it would never count.
    let counts = nodes.is_first() && in_ms == 0 && still_one;
    if age_ms < REFRESH_MS || counts {
        return Vote::Stands;
    }
    match written_so_far > MOST_REFRESHES {
        true if still_one => Vote::Stands,
        true => Vote::RanOut,
        false if !still_one && in_ms > 0 => Vote::Later,
        false => Vote::Write(written_so_far),
    }
}

/// How many votes this drain's reason was rewritten to, also those that were taken back or whose end is not known.
fn votes_since(drain: &ActionRecord, actions: &[ActionRecord]) -> u32 {
    let is_vote = |a: &&ActionRecord| {
        a.deed == Deed::Vote && a.outcome != Outcome::Failed && matches!(stand(a), Some(Stand::Vote(_)))
    };
    actions.iter().filter(|a| a.id > drain.id).filter(is_vote).count() as u32
}

/// Whether the job was warned, where the site wants that.
enum Warned {
    NotYet,
    Until(i64),
    LongEnough,
}

fn warned(rules: &Rules, finding: &Finding, actions: &[ActionRecord], run: RunId, now: BootMs) -> Warned {
    let Some(warn) = &rules.warn else { return Warned::LongEnough };
    match done(actions, Deed::Warn, run).filter(|a| a.run >= finding.since_run).last() {
        None => Warned::NotYet,
        Some(warned) => match warn.ahead_ms - now.since_ms(warned.at) {
            left if left > 0 => Warned::Until(left),
            _ => Warned::LongEnough,
        },
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
    if matches!(c.permit, Err(NoPermit::Observe)) {
        return Some((Some(Guard::Observe), "mode is observe".to_owned()));
    }
    let mut ours = c.actions.iter().filter(|a| a.deed == Deed::Drain);
    if ours.any(|a| a.outcome == Outcome::Lifted) {
        return Some((
            None,
            "our drain was lifted by somebody; it is not made again for this job run".to_owned(),
        ));
    }
    if c.job.registration.het_leader.is_some() || c.job.details.as_ref().is_some_and(|d| d.is_het()) {
        return Some((None, "a component of a heterogeneous job; ending it would end the others".to_owned()));
    }
    if let (Verdict::Drain, Some(because)) = (asked, would_block(finding, rules, c)) {
        return Some((None, because));
    }
    c.held_by.clone().map(|because| (None, because))
}

/// A drain that takes GPUs of others out of service is not made, unless the site says so.
fn would_block(finding: &Finding, rules: &Rules, c: &Circumstances) -> Option<String> {
    if rules.drain_shared {
        return None;
    }
    match c.node_units {
        Reading::Measured(all) => {
            let others = all.saturating_sub(finding.units.len() as u32);
            (others > 0).then(|| format!("{WOULD_BLOCK} {others} GPUs of others"))
        }
        Reading::Absent(why) => {
            Some(format!("that the job holds every GPU of this node is not certain: {}", why.words()))
        }
    }
}

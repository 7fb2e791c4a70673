//! What becomes of our own drains after the run that made them: counted again and withdrawn where the cap is overshot,
//! a vote taken back once its node would not vote any more, and lifted by a later run, never by the Epilog: only once the job run is
//! gone with all that it left or certainly works again, and two runs agree. Any doubt and the drain stays.

use super::cases::Case;
use super::deeds;
use super::snapshot::Snapshot;
use super::{Setting, Trouble, questions, tell};
use crate::act::{self, Desk, Doubt, Ending, Lift};
use crate::config::{Config, Release};
use crate::ledger::{EpilogOf, FaultRow, Ledger, LedgerError, OpenDrain};
use crate::model::*;
use crate::policy::fault::Kind;
use crate::policy::reason::Stand;
use crate::policy::{Judgement, leak, nodes, stage};
use crate::reading::{Absence, Reading};
use crate::units::BootMs;

/// The kind of fault under which a drain that stays is kept.
pub const KIND: &str = "drain";
/// The kind under which one that this boot or this ledger does not know is kept; its subject is the node's Reason.
pub const ORPHAN: &str = "orphan";

/// Kinds that are notes about our drains or about jobs, and no fault of the node; a setting that makes no GPU unfit; and
/// what can only be seen to end while jobs work, which none does on a drained node.
const NO_FAULT_OF_THE_NODE: [&str; 6] =
    [KIND, ORPHAN, "job-xid", Kind::PersistenceMode.word(), Kind::HwSlowdown.word(), Kind::PcieWidth.word()];

/// Why a drain is not fit for release.
#[derive(Debug, PartialEq, Eq)]
enum Stays {
    /// Its job run is here, or its outcome is still to be found out: a later run sees.
    ForNow(&'static str),
    /// Something that may never pass by itself: people are told.
    Because(String),
}

/// What the ledger says beside the drain itself.
struct Known {
    epilog: EpilogOf,
    faults: Vec<FaultRow>,
}

/// Looks at every drain of ours of this boot that still stands.
pub fn ours(
    setting: &Setting,
    run: RunId,
    snapshot: &Snapshot,
    cases: &[Case],
    drains: &[OpenDrain],
    ledger: &mut Ledger,
) -> Result<(), Trouble> {
    for drain in drains.iter().filter(|drain| drain.boot_id == setting.now.boot_id) {
        let case = cases.iter().find(|case| case.history.job.id == drain.job_run);
        take_vote_back(setting, run, drain, case, ledger)?;
        let known = Known { epilog: ledger.epilog_of(drain.job_run)?, faults: ledger.open_faults()? };
        if let Err(stays) = fit(setting, snapshot, case, drain, &known) {
            if drain.release_seen.is_some() {
                ledger.clear_release_seen(drain.action.id)?;
            }
            if let Stays::Because(why) = stays {
                look_and_tell(setting, run, drain, &why, ledger)?;
            }
            continue;
        }
        let before = ledger.note_release_seen(drain.action.id, run)?;
        if before.is_some_and(|seen| seen < run) && setting.may_act() {
            lift(setting, run, drain, ledger)?;
        }
    }
    Ok(())
}

/// Two runs agree: it is lifted, if Slurm shows it as ours and the node as plain. What holds it may last (a reservation,
/// a reboot that waits), so it is tried ever more rarely.
fn lift(setting: &Setting, run: RunId, drain: &OpenDrain, ledger: &mut Ledger) -> Result<(), Trouble> {
    let subject = format!("release {}", drain.action.id);
    if !ledger.ask_allowed(&subject, setting.now)? {
        return Ok(());
    }
    let mut desk = Desk { ledger, slurm: setting.slurm, now: setting.now, run, finding: 0 };
    let why = match act::lift(drain, Lift::Release, &mut desk)? {
        Ending::Ended(Outcome::Done | Outcome::Lifted, words) => return gone(setting, drain, &words, ledger),
        Ending::Ended(Outcome::Failed, words) => format!("it could not be lifted: {words}"),
        Ending::Ended(_, words) => format!("it was asked for, and is not seen to be lifted: {words}"),
        Ending::Withheld(doubt) => doubt.because,
    };
    ledger.unanswered(&subject, setting.now)?;
    if told(drain, &why, ledger)? { Ok(()) } else { tell_it_stays(setting, run, drain, &why, ledger) }
}

/// Our standing drains. In the run after a drain the cluster's drains are counted once more, before anything rests on it:
/// nodes that came at one instant may have taken too much, and what is one too many goes.
pub fn count_again(setting: &Setting, run: RunId, ledger: &mut Ledger) -> Result<Vec<OpenDrain>, Trouble> {
    let mut stand = Vec::new();
    for drain in ledger.open_drains(setting.now)? {
        if !withdrawn(setting, run, &drain, ledger)? {
            stand.push(drain);
        }
    }
    Ok(stand)
}

/// Counts for one drain. `true`: it was one too many and is gone. While Slurm does not say, it is asked ever more rarely.
fn withdrawn(setting: &Setting, run: RunId, drain: &OpenDrain, ledger: &mut Ledger) -> Result<bool, Trouble> {
    let action = &drain.action;
    let here = drain.boot_id == setting.now.boot_id;
    let due = here && action.outcome == Outcome::Done && action.counted_again.is_none() && action.run < run;
    let subject = format!("count again {}", action.id);
    let may = || setting.config.mode().enforces() && setting.may_act();
    if !due || !may() || !ledger.ask_allowed(&subject, setting.now)? {
        return Ok(false);
    }
    let job = ledger.find_runs(drain.job)?.into_iter().map(|it| it.run).find(|it| it.id == drain.job_run);
    let Some(job) = job else { return Ok(false) };
    let Ok(nodes) = questions::nodes_of(&job, &setting.place.node) else { return Ok(false) };
    ledger.unanswered(&subject, setting.now)?;
    let mut unseen = || Reading::Absent(Absence::NotAsked);
    let look = deeds::look(setting, &mut unseen);
    let mut desk = Desk { ledger, slurm: setting.slurm, now: setting.now, run, finding: 0 };
    let Some(ending) = act::count_again(drain, &nodes, &look, &mut desk)? else { return Ok(false) };
    let shown = job.shown_id();
    match ending {
        Ending::Withheld(Doubt { because, .. })
        | Ending::Ended(Outcome::Failed | Outcome::Unknown, because) => {
            tracing::warn!(
                job = drain.job.get(),
                shown,
                "our drain for job {shown} is one too many and stays for now: {because}"
            );
            Ok(false)
        }
        Ending::Ended(Outcome::Lifted, words) => gone(setting, drain, &words, ledger).map(|()| true),
        Ending::Ended(_, words) => {
            ledger.unanswered(&deeds::back_off(&job, Deed::Drain), setting.now)?;
            close_notes(setting, drain, ledger)?;
            let words = format!(
                "our drain for job {shown} is withdrawn: others drained at the same time, and with it the limit over \
                 the cluster was overshot: {words}"
            );
            tracing::warn!(job = drain.job.get(), shown, "{words}");
            tell::drain_lifted(setting, (drain, &tell::of_drain_row(drain)), &words, ledger);
            Ok(true)
        }
    }
}

/// When the vote of this node was written that stands, or may; `None` without one. What was to take it back and is not
/// seen to be done may have left it.
fn voted(actions: &[ActionRecord]) -> Option<BootMs> {
    let mut rewritten =
        actions.iter().filter(|a| a.deed == Deed::Vote).filter_map(|a| Some((a, stage::stand(a)?)));
    let counts = |(a, stand): &(&ActionRecord, Stand)| match stand {
        Stand::Vote(_) => a.outcome != Outcome::Failed,
        Stand::Drain => a.outcome == Outcome::Done,
    };
    let standing = rewritten.rfind(counts)?;
    matches!(standing.1, Stand::Vote(_)).then_some(standing.0.at)
}

/// A node that would not vote now takes its vote back at once, and no other may count it: in any mode, while the vote is
/// one. It is no deed that hurts.
fn take_vote_back(
    setting: &Setting,
    run: RunId,
    drain: &OpenDrain,
    case: Option<&Case>,
    ledger: &mut Ledger,
) -> Result<(), Trouble> {
    let Some(case) = case else { return Ok(()) };
    let (config, job) = (setting.config, &case.history.job);
    let Some(at) = voted(&case.history.actions) else { return Ok(()) };
    let permit = config.mode().permit(&config.enforce_in, job, &setting.place.node);
    let stands_still = stage::would_vote(&case.assessment.judgement, &config.rules, &permit);
    let is_one = setting.now.boot.since_ms(at) <= nodes::VOTE_HOLDS_S * 1000;
    let is_over =
        |d: &JobDetails| matches!(d.state, JobState::Completing | JobState::Ended | JobState::Pending);
    if stands_still || !is_one || job.details.as_ref().is_some_and(is_over) || !setting.may_act() {
        return Ok(());
    }
    let unclear =
        |a: &ActionRecord| a.deed == Deed::Vote && matches!(a.outcome, Outcome::Begun | Outcome::Unknown);
    let subject = format!("take back {}", drain.action.id);
    if case.history.actions.iter().any(unclear) || !ledger.ask_allowed(&subject, setting.now)? {
        return Ok(());
    }
    let mut desk = Desk { ledger, slurm: setting.slurm, now: setting.now, run, finding: 0 };
    let ending = act::retract(drain, job, &mut desk)?;
    let (shown, seen) = (job.shown_id(), case.words());
    let why = match ending {
        Ending::Ended(Outcome::Lifted, words) => return gone(setting, drain, &words, ledger),
        Ending::Ended(Outcome::Done, words) => {
            tracing::warn!(
                job = drain.job.get(),
                shown,
                "job {shown}: this node no longer agrees to its cancel: {seen}; {words}"
            );
            return Ok(());
        }
        // Slurm was silent before anything was begun: the next run asks again.
        Ending::Withheld(doubt) => doubt.because,
        Ending::Ended(_, words) => {
            ledger.unanswered(&subject, setting.now)?;
            words
        }
    };
    tracing::warn!(
        job = drain.job.get(),
        shown,
        "job {shown}: this node no longer agrees to its cancel ({seen}), and its vote could not be taken back: {why}; \
         it ends by itself after 15 minutes"
    );
    Ok(())
}

/// Says that a drain of ours is gone, and closes what was kept of its staying.
pub(super) fn gone(
    setting: &Setting,
    drain: &OpenDrain,
    words: &str,
    ledger: &mut Ledger,
) -> Result<(), Trouble> {
    gone_from(setting, (drain, &tell::of_drain_row(drain)), words, ledger)
}

/// The same where people were told in this thread that it stays.
pub(super) fn gone_from(
    setting: &Setting,
    (drain, thread): (&OpenDrain, &str),
    words: &str,
    ledger: &mut Ledger,
) -> Result<(), Trouble> {
    let job = drain.job.get();
    let words = format!("our drain for job {job} is lifted: {words}");
    tracing::warn!(job, "{words}");
    tell::drain_lifted(setting, (drain, thread), &words, ledger);
    close_notes(setting, drain, ledger)
}

/// The same of one that is no longer shown as ours.
pub(super) fn lifted_by_somebody(
    setting: &Setting,
    drain: &OpenDrain,
    node: &NodeStatus,
    ledger: &mut Ledger,
) -> Result<(), Trouble> {
    let detail = act::by_somebody(node);
    ledger.mark_lifted(drain.action.id, &detail)?;
    gone(setting, drain, &detail, ledger)
}

fn close_notes(setting: &Setting, drain: &OpenDrain, ledger: &mut Ledger) -> Result<(), Trouble> {
    Ok(ledger.faults_gone(KIND, &drain.action.id.to_string(), setting.now)?)
}

/// Whether that was told already, of this drain and for this reason.
fn told(drain: &OpenDrain, why: &str, ledger: &Ledger) -> Result<bool, Trouble> {
    let subject = drain.action.id.to_string();
    Ok(ledger.open_faults()?.iter().any(|f| f.kind == KIND && f.subject == subject && f.detail == why))
}

/// Before people are sent to a drain: is it still there, and ours? While Slurm does not say, nothing is told.
fn look_and_tell(
    setting: &Setting,
    run: RunId,
    drain: &OpenDrain,
    why: &str,
    ledger: &mut Ledger,
) -> Result<(), Trouble> {
    if told(drain, why, ledger)? || !setting.may_ask() {
        return Ok(());
    }
    match setting.slurm.node() {
        Ok(node) if drain.shows(&node) => tell_it_stays(setting, run, drain, why, ledger),
        Ok(node) => lifted_by_somebody(setting, drain, &node, ledger),
        Err(_) => Ok(()),
    }
}

/// Says that a drain stays and how to lift it, and keeps that it was said.
fn tell_it_stays(
    setting: &Setting,
    run: RunId,
    drain: &OpenDrain,
    why: &str,
    ledger: &mut Ledger,
) -> Result<(), Trouble> {
    ledger.fault_seen(KIND, &drain.action.id.to_string(), why, run, setting.now)?;
    let job = drain.job.get();
    let words = format!("our drain for job {job} stays: {why}; {}", how_to_lift(setting));
    tracing::warn!(job, "{words}");
    let thread = tell::of_drain_row(drain);
    tell::drain_stays(setting, &thread, &words, "gpu-reaper-hc release", ledger);
    Ok(())
}

/// The exact words to type.
pub(super) fn how_to_lift(setting: &Setting) -> String {
    let node = &setting.place.node;
    format!("to lift it: `gpu-reaper-hc release` there, or `scontrol update nodename={node} state=undrain`")
}

/// Why the ledger alone keeps a drain of this boot from being lifted, whatever a look at the GPUs and a question to Slurm
/// would say; `None`: it does not. `judgement`: of its job run, while that is registered.
pub fn kept_by_books(
    config: &Config,
    drain: &OpenDrain,
    judgement: Option<&Judgement>,
    ledger: &Ledger,
) -> Result<Option<String>, LedgerError> {
    let known = Known { epilog: ledger.epilog_of(drain.job_run)?, faults: ledger.open_faults()? };
    Ok(match by_books(config, drain, judgement, &known) {
        Ok(_) => None,
        Err(Stays::ForNow(why)) => Some(why.to_owned()),
        Err(Stays::Because(why)) => Some(why),
    })
}

/// Whether this run sees the drain fit for release.
fn fit(
    setting: &Setting,
    snapshot: &Snapshot,
    case: Option<&Case>,
    drain: &OpenDrain,
    known: &Known,
) -> Result<(), Stays> {
    match by_books(setting.config, drain, case.map(|c| &c.assessment.judgement), known)? {
        Fit::WorksAgain => Ok(()),
        Fit::IsGone => nothing_is_left(snapshot, drain.job).map_err(Stays::Because),
    }
}

/// Why a drain may be lifted, as far as the ledger says.
enum Fit {
    /// Its job run certainly works again.
    WorksAgain,
    /// Its job run is over.
    IsGone,
}

fn by_books(
    config: &Config,
    drain: &OpenDrain,
    judgement: Option<&Judgement>,
    known: &Known,
) -> Result<Fit, Stays> {
    if drain.action.outcome != Outcome::Done {
        return Err(Stays::ForNow("how it ended is not known yet"));
    }
    let fit = match judgement {
        Some(Judgement::Alive { .. }) => Fit::WorksAgain,
        Some(_) => return Err(Stays::ForNow("its job still runs and does not certainly work")),
        None if drain.job_open => return Err(Stays::ForNow("its job is still registered here")),
        None => Fit::IsGone,
    };
    may_be_lifted(config).and_then(|()| no_fault(&known.faults)).map_err(Stays::Because)?;
    if let Fit::IsGone = fit {
        epilog_ended(known.epilog).map_err(Stays::Because)?;
    }
    Ok(fit)
}

/// Whether the site lets drains be lifted at all.
pub(super) fn may_be_lifted(config: &Config) -> Result<(), String> {
    if config.act.release == Release::Never {
        return Err("`act.release` is never".to_owned());
    }
    if !config.mode().enforces() {
        return Err("mode is observe".to_owned());
    }
    Ok(())
}

/// Whether no fault of the node itself is open.
pub(super) fn no_fault(open: &[FaultRow]) -> Result<(), String> {
    match open.iter().find(|fault| !NO_FAULT_OF_THE_NODE.contains(&fault.kind.as_str())) {
        Some(fault) => Err(format!("a fault of the node is open: {}", fault.detail)),
        None => Ok(()),
    }
}

/// Slurm shows our reason also after an Epilog failed or the node went down under the job (measured): only our own hook,
/// which runs last, tells. Without hooks the job run is closed once Slurm no longer lists it.
pub(super) fn epilog_ended(epilog: EpilogOf) -> Result<(), String> {
    match epilog {
        EpilogOf::Ended | EpilogOf::NoHook => Ok(()),
        EpilogOf::Missing => {
            Err("its Epilog failed, or the node or slurmd went down: our hook, which runs last, \
                                  never came for the job"
                .to_owned())
        }
        EpilogOf::NotKnown => Err("what became of its Epilog is not known".to_owned()),
    }
}

/// Whether nothing of the job is left here, and no unit that no registered job holds is in use.
pub(super) fn nothing_is_left(snapshot: &Snapshot, job: JobId) -> Result<(), String> {
    match snapshot.holds_on(job) {
        Reading::Measured(false) => clean(snapshot),
        Reading::Measured(true) => Err(format!("something of job {job} is still on this node")),
        Reading::Absent(why) => {
            Err(format!("whether something of job {job} is left is not known: {}", why.words()))
        }
    }
}

/// No process and no memory held on any unit that no registered job holds.
fn clean(snapshot: &Snapshot) -> Result<(), String> {
    let report = match &snapshot.gpus {
        Reading::Measured(report) => report,
        Reading::Absent(why) => return Err(format!("the GPUs could not be read: {}", why.words())),
    };
    let held: Vec<_> =
        snapshot.held.values().filter_map(|h| h.measured()).flatten().map(|u| &u.uuid).collect();
    for unit in &report.units {
        let Reading::Measured(uuid) = &unit.identity.uuid else {
            return Err(format!("GPU {} cannot be read", unit.identity.index));
        };
        if held.contains(&uuid) {
            continue;
        }
        let empty = matches!(&unit.readings.processes, Reading::Measured(p) if p.iter().all(|p| p.kind == ProcessKind::Graphics));
        let free = match &unit.readings.memory {
            Reading::Measured(m) => m.used <= leak::empty_at_most(m),
            Reading::Absent(_) => empty,
        };
        if !empty || !free {
            return Err(format!("GPU {} is not clean", unit.identity.index));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Signature;
    use crate::policy::reason::{RunKey, waste};
    use crate::units::WallMs;

    fn vote(stand: Stand, outcome: Outcome) -> ActionRecord {
        let key = RunKey { job: JobId::FIRST, start_unix_s: 1_764_422_738, restart: 0 };
        ActionRecord {
            id: 1,
            deed: Deed::Vote,
            run: RunId(1),
            at: BootMs(0),
            wall: WallMs(0),
            outcome,
            reason: Some(waste(key, Signature::Hung, stand, WallMs(0))),
            signature: "hung".to_owned(),
            detail: String::new(),
            counted_again: Some(RunId(1)),
        }
    }

    #[test]
    fn whatever_may_stand_as_a_vote_is_taken_back() {
        let (yes, no) = (Stand::Vote(1), Stand::Drain);
        let drain = ActionRecord { deed: Deed::Drain, ..vote(no, Outcome::Done) };
        let table = [
            (vec![], false),
            (vec![vote(yes, Outcome::Done)], true),
            (vec![vote(yes, Outcome::Unknown)], true),
            (vec![vote(yes, Outcome::Failed)], false),
            (vec![vote(yes, Outcome::Done), vote(no, Outcome::Done)], false),
            (vec![vote(yes, Outcome::Done), vote(no, Outcome::Failed)], true),
            (vec![vote(yes, Outcome::Done), vote(no, Outcome::Unknown)], true),
            (vec![vote(yes, Outcome::Done), vote(no, Outcome::Done), vote(yes, Outcome::Done)], true),
        ];
        for (votes, want) in table {
            let actions = [vec![drain.clone()], votes].concat();
            assert_eq!(voted(&actions).is_some(), want, "{actions:?}");
        }
    }

    #[test]
    fn a_fault_of_the_node_keeps_a_drain_and_our_own_notes_do_not() {
        let fault = |kind: &str| FaultRow {
            id: 1,
            kind: kind.to_owned(),
            subject: String::new(),
            detail: "2 of 4 GPUs missing".to_owned(),
            opened: WallMs(0),
            opened_run: RunId(1),
            last_run: RunId(1),
            clean: 0,
            told: true,
            place: None,
            withheld: None,
            acked_by: None,
        };
        for kind in ["drain", "orphan", "job-xid", "persistence-mode", "hw-slowdown"] {
            assert_eq!(no_fault(&[fault(kind)]), Ok(()), "{kind}");
        }
        for kind in ["collector", "gpu-missing", "a kind of a later version"] {
            let held = no_fault(&[fault("drain"), fault(kind)]).unwrap_err();
            assert_eq!(held, "a fault of the node is open: 2 of 4 GPUs missing", "{kind}");
        }
    }

    #[test]
    fn a_failed_epilog_keeps_a_drain() {
        // nebius/soperator#1316 (JL-11): what a crash left behind looks like a job that ended.
        for (epilog, want) in [
            (EpilogOf::Ended, true),
            (EpilogOf::NoHook, true),
            (EpilogOf::Missing, false),
            (EpilogOf::NotKnown, false),
        ] {
            assert_eq!(epilog_ended(epilog).is_ok(), want, "{epilog:?}");
        }
    }
}

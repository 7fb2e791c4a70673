//! Orphans: a drain of ours on this node that this boot or this ledger does not know. Found by one question a boot, at a
//! moment that differs by node; told once, counted, and lifted only where the site says so, under the conditions of any
//! other release and once the run that it names is gone. A reason that cannot be read is left to people.

use super::release::{self, ORPHAN, epilog_ended, how_to_lift, may_be_lifted, no_fault, nothing_is_left};
use super::snapshot::Snapshot;
use super::{Setting, Trouble, UNKNOWN_INTERVAL_MS, tell as people};
use crate::act::{self, Desk, Ending, Lift};
use crate::ledger::{EpilogOf, FaultRow, Ledger, OpenDrain, Question};
use crate::lock::Before;
use crate::model::*;
use crate::policy::reason::{self, Ours, PREFIX, RunKey};
use crate::policy::slot::Slot;
use crate::slurm::{Ask, Listed};
use crate::units::hash;

/// The question whether there is one.
const SUBJECT: &str = "orphans";
/// Its answer, after which it is not asked again; kept for as long as the boot lasts.
const NONE: &str = "for this boot";
/// Where it is kept that a run saw one fit to be lifted.
const FIT: &str = "orphan fit";
/// A job that began so much before this boot did certainly not begin in it.
const SKEW_S: i64 = 60;

/// One that stands.
struct Orphan {
    reason: String,
    /// The record of an earlier boot, where the ledger has it.
    known: Option<OpenDrain>,
}

/// Looks for orphans where it is time, and gives every one that stands, in words for the run's line. While there is
/// none, which the run before has left in the lock file, a run asks neither Slurm nor, outside of its node's moment,
/// the ledger.
pub fn look(
    setting: &Setting,
    run: RunId,
    snapshot: &Snapshot,
    before: &Before,
    ledger: &mut Ledger,
) -> Result<Vec<String>, Trouble> {
    let spread_ms = setting.config.limits.spread.as_millis() as i64;
    let slot = Slot::of_node(&setting.place.node, spread_ms);
    let interval_ms = setting.interval_ms.unwrap_or(UNKNOWN_INTERVAL_MS);
    let began_ms = spread_ms - slot.next_in_ms(setting.now.boot);
    if *before == Before::Ended && spread_ms > 0 && began_ms > 2 * interval_ms {
        return Ok(Vec::new());
    }
    let question = ledger.question(SUBJECT, setting.now)?;
    if matches!(question, Question::Answered { .. }) {
        return Ok(Vec::new());
    }
    let open = open(ledger)?;
    // Not in the first run after boot: slurmd may just be starting, and every node with it.
    let previous = snapshot.previous;
    let its_moment = !open.is_empty() || slot.is_open(previous, setting.now.boot);
    if question == Question::Ask && previous.is_some() && its_moment && setting.may_ask() {
        ask(setting, run, snapshot, open, ledger)?;
        return Ok(words(self::open(ledger)?));
    }
    Ok(words(open))
}

fn open(ledger: &Ledger) -> Result<Vec<FaultRow>, Trouble> {
    Ok(ledger.open_faults()?.into_iter().filter(|fault| fault.kind == ORPHAN).collect())
}

fn words(open: Vec<FaultRow>) -> Vec<String> {
    open.into_iter().map(|fault| fault.detail).collect()
}

/// The question itself. While one stands it is asked again, ever more rarely: somebody may lift it.
fn ask(
    setting: &Setting,
    run: RunId,
    snapshot: &Snapshot,
    open: Vec<FaultRow>,
    ledger: &mut Ledger,
) -> Result<(), Trouble> {
    ledger.unanswered(SUBJECT, setting.now)?;
    let node = match setting.slurm.node() {
        Ok(node) => node,
        Err(silence) => {
            tracing::info!("{silence}; whether a drain of ours is left over is asked again later");
            return Ok(());
        }
    };
    let orphan = found(setting, &node, ledger)?;
    let gone = |fault: &&FaultRow| orphan.as_ref().is_none_or(|orphan| orphan.reason != fault.subject);
    for fault in open.iter().filter(gone) {
        ledger.fault_gone(fault.id, setting.now)?;
        let words = format!("the orphaned drain `{}` no longer stands: the node is {node}", fault.subject);
        tracing::warn!("{words}");
        people::drain_gone(setting, &thread(&fault.subject), &words, ledger);
    }
    let Some(orphan) = orphan else {
        ledger.forget_answer(FIT)?;
        return Ok(ledger.answered(SUBJECT, NONE, setting.now)?);
    };
    match fit(setting, snapshot, &node, &orphan, ledger)? {
        Ok(ours) => agree(setting, run, &orphan, ours.key, ledger),
        Err(why) => {
            ledger.forget_answer(FIT)?;
            tell(setting, run, &orphan, &why, ledger)
        }
    }
}

/// Drains of an earlier boot that are no longer shown are closed; what is left over and ours is an orphan.
fn found(setting: &Setting, node: &NodeStatus, ledger: &mut Ledger) -> Result<Option<Orphan>, Trouble> {
    let (here, earlier): (Vec<_>, Vec<_>) =
        ledger.open_drains(setting.now)?.into_iter().partition(|d| d.boot_id == setting.now.boot_id);
    let (shown, gone): (Vec<_>, Vec<_>) = earlier.into_iter().partition(|drain| drain.shows(node));
    for drain in gone {
        release::lifted_by_somebody(setting, &drain, node, ledger)?;
    }
    let reason = node.reason.as_deref().filter(|reason| node.drained() && reason.starts_with(PREFIX));
    // One for a fault that this ledger knows is no orphan on any boot: it stays until a person lifts it.
    let of_fault = ledger.fault_drains(setting.now)?.iter().any(|drain| drain.shows(node));
    let orphan = reason.filter(|_| !of_fault && !here.iter().any(|drain| drain.shows(node)));
    Ok(orphan.map(|reason| Orphan { reason: reason.to_owned(), known: shown.into_iter().next_back() }))
}

/// Told once, to people too, and again only where it stays for another cause.
fn tell(
    setting: &Setting,
    run: RunId,
    orphan: &Orphan,
    why: &str,
    ledger: &mut Ledger,
) -> Result<(), Trouble> {
    if let Some(words) = note(setting, run, orphan, why, ledger)? {
        people::drain_stays(setting, &thread(&orphan.reason), &words, &lift_words(setting, orphan), ledger);
    }
    Ok(())
}

/// The thread of what people are told of one.
fn thread(reason: &str) -> String {
    format!("orphan {}", hash(reason))
}

/// What to type.
fn lift_words(setting: &Setting, orphan: &Orphan) -> String {
    match reason::read(&orphan.reason) {
        Some(_) => "gpu-reaper-hc release".to_owned(),
        None => format!("scontrol update nodename={} state=undrain", setting.place.node),
    }
}

/// Kept, and told in the journal, where it is news: then in words. The first of them are for the run's line too.
fn note(
    setting: &Setting,
    run: RunId,
    orphan: &Orphan,
    why: &str,
    ledger: &mut Ledger,
) -> Result<Option<String>, Trouble> {
    let reason = orphan.reason.escape_debug();
    let whose = match orphan.known {
        Some(_) => "made before this boot",
        None => "which this ledger does not know",
    };
    let detail = format!("an orphaned drain of ours, {whose}, stays: {why}: `{reason}`");
    let told = open(ledger)?.iter().any(|fault| fault.subject == orphan.reason && fault.detail == detail);
    ledger.fault_seen(ORPHAN, &orphan.reason, &detail, run, setting.now)?;
    if told {
        return Ok(None);
    }
    let lift = match reason::read(&orphan.reason) {
        Some(_) => how_to_lift(setting),
        None => format!("to lift it: `{}`", lift_words(setting, orphan)),
    };
    let words = format!("{detail}; {lift}");
    tracing::warn!("{words}");
    Ok(Some(words))
}

/// Whether this run sees the orphan fit to be lifted, else in words why not. Slurm is asked for the job last.
fn fit(
    setting: &Setting,
    snapshot: &Snapshot,
    node: &NodeStatus,
    orphan: &Orphan,
    ledger: &Ledger,
) -> Result<Result<Ours, String>, Trouble> {
    if !setting.config.act.release_orphans {
        return Ok(Err("`act.release_orphans` is false".to_owned()));
    }
    let Some(ours) = reason::read(&orphan.reason) else {
        return Ok(Err("its reason names no job run; only a person may lift it".to_owned()));
    };
    let faults = ledger.open_faults()?;
    let epilog = match orphan.known.is_some() || began_before_this_boot(ours.key, setting.now) {
        // Whatever the job left on the node went with that boot.
        true => Ok(()),
        false => epilog_ended(epilog_of(ours.key, setting.now, ledger)?),
    };
    let held = may_be_lifted(setting.config)
        .and_then(|()| no_fault(&faults))
        .and_then(|()| if node.plain() { Ok(()) } else { Err("the node is in no plain state".to_owned()) })
        .and(epilog)
        .and_then(|()| nothing_is_left(snapshot, ours.key.job))
        .and_then(|()| is_gone(setting, ours.key));
    Ok(held.map(|()| ours))
}

/// By the wall clock, which is all that a job's start in Slurm's words can be compared with.
fn began_before_this_boot(key: RunKey, now: &Now) -> bool {
    let booted_s = (now.wall.0 - now.boot.0).div_euclid(1000);
    key.start_unix_s < booted_s - SKEW_S
}

/// What this ledger knows of the Epilog of a job run of this boot. One that it does not know may have ended badly before
/// the ledger began.
fn epilog_of(key: RunKey, now: &Now, ledger: &Ledger) -> Result<EpilogOf, Trouble> {
    let runs = ledger.find_runs(key.job)?;
    let its =
        runs.into_iter().find(|it| it.boot_id == now.boot_id && it.run.registration.restart == key.restart);
    Ok(its.map_or(Ok(EpilogOf::NotKnown), |it| ledger.epilog_of(it.run.id))?)
}

/// Slurm says that this very run is over, or that the job is another run by now.
fn is_gone(setting: &Setting, key: RunKey) -> Result<(), String> {
    if !setting.may_ask() {
        return Err("too little of the run's time was left to ask for its job".to_owned());
    }
    let listed = setting.slurm.job(key.job, Ask::NOTHING_MORE);
    over(listed.map_err(|silence| silence.to_string())?.as_ref(), key)
}

fn over(listed: Option<&Listed>, key: RunKey) -> Result<(), String> {
    let Some(Listed { state, details, .. }) = listed else { return Ok(()) };
    let another = details.as_ref().is_some_and(|d| {
        d.start_unix_s != key.start_unix_s || d.restart.measured().is_some_and(|n| *n != key.restart)
    });
    match state {
        JobState::Ended | JobState::Pending => Ok(()),
        // A run that completes to be requeued shows the next one's count already.
        JobState::Completing => Err(format!("job {} is completing", key.job)),
        _ if another => Ok(()),
        _ => Err(format!("Slurm says that job {} is {}", key.job, state.word())),
    }
}

/// Two runs have to agree: the next one looks at once, and lifts it.
fn agree(
    setting: &Setting,
    run: RunId,
    orphan: &Orphan,
    key: RunKey,
    ledger: &mut Ledger,
) -> Result<(), Trouble> {
    let seen = ledger.question(FIT, setting.now)?;
    let agreed =
        matches!(seen, Question::Answered { answer, age_ms } if answer == orphan.reason && age_ms > 0);
    if !agreed {
        // The next run looks: no person is sent to it.
        note(setting, run, orphan, "a second run has to see that its job is gone", ledger)?;
        ledger.answered(FIT, &orphan.reason, setting.now)?;
        return Ok(ledger.forget_answer(SUBJECT)?);
    }
    if !setting.may_act() {
        return Ok(());
    }
    let mut desk = Desk { ledger, slurm: setting.slurm, now: setting.now, run, finding: 0 };
    let ending = match &orphan.known {
        Some(drain) => act::lift(drain, Lift::Release, &mut desk)?,
        None => act::lift_unknown(&orphan.reason, key, &mut desk)?,
    };
    match ending {
        Ending::Ended(Outcome::Done | Outcome::Lifted, words) => {
            ledger.faults_gone(ORPHAN, &orphan.reason, setting.now)?;
            ledger.forget_answer(FIT)?;
            ledger.answered(SUBJECT, NONE, setting.now)?;
            if let Some(drain) = &orphan.known {
                return release::gone_from(setting, (drain, &thread(&orphan.reason)), &words, ledger);
            }
            let words = format!("the orphaned drain `{}` is lifted: {words}", orphan.reason.escape_debug());
            tracing::warn!("{words}");
            people::drain_gone(setting, &thread(&orphan.reason), &words, ledger);
            Ok(())
        }
        Ending::Ended(_, words) => tell(setting, run, orphan, &format!("it was asked for: {words}"), ledger),
        Ending::Withheld(doubt) => tell(setting, run, orphan, &doubt.because, ledger),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::{Absence, Reading};
    use crate::units::{BootMs, WallMs};

    const KEY: RunKey = RunKey { job: JobId::FIRST, start_unix_s: 1_764_422_738, restart: 1 };

    fn listed(state: JobState, start_unix_s: i64, restart: Reading<u32>) -> Listed {
        let absent = || Reading::Absent(Absence::NotAsked);
        let details = JobDetails {
            state,
            start_unix_s,
            restart,
            display_id: "1".to_owned(),
            name: absent(),
            user: absent(),
            account: absent(),
            partition: absent(),
            qos: absent(),
            nodes: Reading::Measured(1),
            node_list: absent(),
            shares: Reading::Absent(Absence::NotAsked),
            near: NearDeed::absent(Absence::NotAsked),
        };
        Listed { job: JobId::FIRST, uid: 1001, state, details: Some(details) }
    }

    #[test]
    fn only_the_very_run_that_a_reason_names_keeps_its_drain() {
        let (start, same) = (KEY.start_unix_s, Reading::Measured(1));
        let table = [
            (JobState::Running, start, same, false),
            (JobState::Running, start, Reading::Absent(Absence::NotAsked), false),
            (JobState::Running, start + 600, same, true),
            (JobState::Running, start, Reading::Measured(2), true),
            (JobState::Suspended, start, same, false),
            (JobState::Completing, start, same, false),
            (JobState::Completing, start, Reading::Measured(2), false),
            (JobState::Other, start, same, false),
            (JobState::Pending, start, same, true),
            (JobState::Ended, start, same, true),
        ];
        for (state, start, restart, want) in table {
            let row = listed(state, start, restart);
            assert_eq!(over(Some(&row), KEY).is_ok(), want, "{state:?} {start} {restart:?}");
        }
        assert_eq!(over(None, KEY), Ok(()), "Slurm has forgotten it");
    }

    #[test]
    fn a_boot_ends_what_began_before_it_and_a_minute_is_no_proof() {
        let booted_s = KEY.start_unix_s;
        let now = |after_s: i64| Now {
            boot_id: String::new(),
            boot: BootMs(3_600_000),
            wall: WallMs((booted_s + after_s + 3600) * 1000),
        };
        for (after_s, want) in [(-600, false), (0, false), (60, false), (61, true)] {
            assert_eq!(began_before_this_boot(KEY, &now(after_s)), want, "{after_s}");
        }
    }
}

//! Processes that outlived their job: kept and acted on for the Epilog that found them, and looked at again by the runs
//! after it. One is known by unit, pid and start time; its pid alone may be another's by then.

use super::deeds::{held_by, look as look_by};
use super::faults::NODE;
use super::snapshot::Snapshot;
use super::tell::fault_began;
use super::{Setting, Trouble};
use crate::act::look::Look;
use crate::act::{self, Desk, Ending};
use crate::ledger::{Ledger, SeenFault};
use crate::mode::NoPermit;
use crate::model::*;
use crate::policy::fault::{self, Action, Kind, Standing, Step};
use crate::policy::reason::Where;
use crate::reading::{Absence, Reading};
use crate::units::UnitUuid;

/// Whether a run after an Epilog has something to look for, also where the run before found nothing amiss.
pub const LEFT: &str = "left";

/// One process on one unit, after its job's end.
#[derive(Clone, Debug)]
pub struct Leak {
    /// The unit.
    pub unit: UnitUuid,
    /// The process.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// Who it is.
    pub who: Who,
    /// In words, with job and GPU.
    pub words: String,
    /// Every look of the Epilog showed it, long enough. One that is not sure a later run decides.
    pub sure: bool,
}

impl Leak {
    fn subject(&self) -> String {
        format!("{} {} {}", self.unit, self.pid, self.start_ticks)
    }
}

/// What came of a drain for a leak.
#[derive(Debug, Default)]
pub struct Kept {
    /// To be told, a line each.
    pub lines: Vec<String>,
    /// The drain was asked for and is not seen to be done: the Epilog's own status is what is left.
    pub drain_failed: bool,
}

/// Keeps what an Epilog found, and drains for the first that is sure, where the site wants that. `run`: the job's, as far
/// as it is known.
pub fn keep(
    setting: &Setting,
    (job, run): (JobId, Option<&JobRun>),
    leaks: &[Leak],
    ledger: &mut Ledger,
) -> Result<Kept, Trouble> {
    let newest = ledger.newest_run_id()?;
    let permit = setting.config.mode().leak_permit(&setting.config.enforce_in, run, &setting.place.node);
    // A later run knows no job any more: that this one's node may be drained is said by the place.
    let may_drain = !matches!(permit, Err(NoPermit::Outside(_)));
    for leak in leaks {
        let place = Where::left(leak.unit.as_str(), job, leak.pid, &leak.who);
        let seen = SeenFault {
            kind: Kind::Leak.word(),
            subject: &leak.subject(),
            detail: &leak.words,
            place: may_drain.then(|| place.as_str()),
            tells_after: if leak.sure { 1 } else { Kind::Leak.tells_after() },
        };
        if ledger.fault_sighted(&seen, newest, setting.now)? {
            let name = (Kind::Leak.word(), leak.subject());
            let enforces = setting.config.mode().enforces();
            fault_began(setting, (name.0, &name.1), enforces, "found by the Epilog", ledger);
        }
    }
    if !leaks.is_empty() {
        ledger.remember(&[(NODE.to_owned(), LEFT, 1)])?;
    }
    match leaks.iter().find(|leak| leak.sure) {
        Some(leak) if setting.config.epilog.on_leak == Action::Drain => {
            drain(setting, (job, run), leak, newest, ledger)
        }
        _ => Ok(Kept::default()),
    }
}

fn drain(
    setting: &Setting,
    (job, run): (JobId, Option<&JobRun>),
    leak: &Leak,
    newest: RunId,
    ledger: &mut Ledger,
) -> Result<Kept, Trouble> {
    let subject = leak.subject();
    let rows = ledger.faults()?;
    let Some(row) = rows.into_iter().find(|row| row.kind == Kind::Leak.word() && row.subject == subject)
    else {
        return Ok(Kept::default());
    };
    let standing = Standing {
        kind: Kind::Leak,
        place: Where::left(leak.unit.as_str(), job, leak.pid, &leak.who),
        since: row.opened,
        seen_now: true,
    };
    let (config, node) = (setting.config, &setting.place.node);
    let drained = ledger.fault_drains(setting.now)?.iter().any(|drain| drain.fault == row.id);
    let circumstances = fault::Circumstances {
        action: config.epilog.on_leak,
        permit: config.mode().leak_permit(&config.enforce_in, run, node),
        drained,
        // The next job may come at once.
        wait_ms: 0,
        held_by: held_by(setting, ledger)?,
    };
    let mut kept = Kept::default();
    let withheld = match fault::escalate(&standing, circumstances) {
        Step::Rest | Step::Later => return Ok(kept),
        Step::Withheld(because) => because,
        Step::Drain(warrant) => {
            let mut unseen = || Reading::Absent(Absence::NotAsked);
            let look = Look { in_epilog: true, ..look_by(setting, &mut unseen) };
            let mut desk = Desk { ledger, slurm: setting.slurm, now: setting.now, run: newest, finding: 0 };
            match act::fault::drain(warrant, row.id, &look, &mut desk)? {
                Ending::Withheld(doubt) => doubt.because,
                Ending::Ended(outcome, words) => {
                    let how = outcome.word();
                    kept.lines.push(format!("drain for what job {job} left {how}: {words}"));
                    kept.drain_failed = matches!(outcome, Outcome::Failed | Outcome::Unknown);
                    return Ok(kept);
                }
            }
        }
    };
    ledger.fault_withheld(row.id, &withheld)?;
    kept.lines.push(format!("drain for what job {job} left withheld: {withheld}"));
    Ok(kept)
}

/// Whether a process that was left is still on its unit, and of no job that runs; `None`: it cannot be said. `subject`: as
/// [`Leak`] has it.
pub fn is_still_there(subject: &str, snapshot: &Snapshot) -> Option<bool> {
    let mut words = subject.split(' ');
    let (uuid, pid) = (words.next()?, words.next()?.parse().ok()?);
    let ticks: u64 = words.next()?.parse().ok()?;
    let Reading::Measured(report) = &snapshot.gpus else { return None };
    let is_it =
        |sample: &&UnitSample| sample.identity.uuid.measured().is_some_and(|its| its.as_str() == uuid);
    let sample = report.units.iter().find(is_it)?;
    let Reading::Measured(processes) = &sample.readings.processes else { return None };
    if !processes.iter().any(|process| process.pid == pid) {
        return Some(false);
    }
    // By now it may be in the cgroup of a job that runs.
    if let Reading::Measured(Whose::Job(job)) = snapshot.whose(pid)
        && snapshot.jobs.iter().any(|open| open.registration.job == job)
    {
        return None;
    }
    match snapshot.start_ticks(pid) {
        Reading::Measured(its) => Some(its == ticks),
        Reading::Absent(Absence::NotListed) => Some(false),
        Reading::Absent(_) => None,
    }
}

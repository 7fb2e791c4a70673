//! The ledger's own samples, of open job runs and of archived ones, judged once more: under another configuration
//! than the one they were taken under. The ledger is opened to read only.

use super::player::Player;
use super::{Report, Subject};
use crate::config::Config;
use crate::ledger::{JobAsked, JobRecord, Ledger, LedgerError};
use crate::model::*;
use crate::reading::Absence;
use crate::reading::Reading::{Absent, Measured};
use std::path::Path;
use std::time::Duration;

/// How long a run or a hook may hold the ledger.
const WAIT: Duration = Duration::from_secs(3);

/// Judges every job run of which the ledger in `dir` still holds samples, oldest first.
///
/// # Errors
///
/// The ledger cannot be opened or read.
pub fn ledger(dir: &Path, config: &Config) -> Result<Vec<Report>, LedgerError> {
    let ledger = Ledger::open_read_only(dir, WAIT)?;
    let mut reports = Vec::new();
    for record in ledger.all_runs()? {
        reports.extend(judged(&ledger, record, config)?);
    }
    Ok(reports)
}

/// `None` where no sample of it is left.
fn judged(ledger: &Ledger, record: JobRecord, config: &Config) -> Result<Option<Report>, LedgerError> {
    let units = ledger.units_of(record.run.id)?;
    let asked = JobAsked { run: record.run.clone(), units: Measured(units.clone()), reach: None };
    let mut history = ledger.replay_closed(asked, &record.boot_id)?;
    let ticks = std::mem::take(&mut history.ticks);
    let (Some(first), Some(last)) = (ticks.first(), ticks.last()) else {
        return Ok(None);
    };
    let (first, first_wall, recorded_ms) = (first.at, first.wall, last.at.since_ms(first.at));
    history.node_units = match ledger.known_units(&record.boot_id)?.len() {
        0 => Absent(Absence::NotRecorded),
        n => Measured(n as u32),
    };
    let r = &record.run.registration;
    let subject = Subject::Job { job: record.run.shown_id(), user: r.user.clone(), first: first_wall };
    let gpus = units.len();
    history.job = as_it_ran(record.run, first);
    let mut player = Player::new(config, history);
    for tick in ticks {
        player.run(tick);
    }
    Ok(Some(Report { subject, gpus, recorded_ms, first, played: player.end() }))
}

/// The job run as it was while it ran: what came of it later is not known yet, what lies before its oldest sample is.
fn as_it_ran(mut run: JobRun, oldest: crate::units::BootMs) -> JobRun {
    run.first_activity = run.first_activity.filter(|at| *at < oldest);
    run.last_activity = run.first_activity;
    if let Some(details) = &mut run.details {
        details.state = JobState::Running;
    }
    run
}

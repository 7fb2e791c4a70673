//! `backtest`: recorded telemetry through the very rules that decide in a run, to see what they would have asked for
//! before anything is enforced: from files, or from what the ledger and its archive hold. It writes answers and nothing
//! else: it runs no command, looks at no GPU and knows no clock but that of the recording.
//!
//! A file is one job run on one node that holds every GPU of the file. It knows nothing of the job beside its GPUs: no
//! host activity, no suspension, no user, and without a column `processes` no process list. What the rules make of that
//! is theirs: nothing here fills it in.

pub mod kept;
mod looks;
pub mod player;
pub mod table;
mod words;

use crate::config::Config;
use crate::model::*;
use crate::policy::Exemptions;
use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use crate::units::{BootMs, WallMs};
use player::{Played, Player};
use std::path::Path;
use table::Recording;

/// By which law, and as if runs came how often, a recording is judged.
pub struct Setting<'a> {
    /// The law; enforce is assumed, so that what would be asked for shows.
    pub config: &'a Config,
    /// The cadence of runs.
    pub every_ms: i64,
    /// The job began so long before the first row.
    pub began_before_ms: i64,
}

/// What was judged.
pub enum Subject {
    /// A recording, by its file as it was named.
    File(String),
    /// A job run of the ledger.
    Job {
        /// Its id as Slurm shows it.
        job: String,
        /// Its user.
        user: Reading<String>,
        /// The wall clock at its first sample.
        first: WallMs,
    },
}

/// What came of it. Times count from the first row or sample.
pub struct Report {
    /// What was judged.
    pub subject: Subject,
    gpus: usize,
    recorded_ms: i64,
    first: BootMs,
    /// Every finding and step, on the recording's own clock.
    pub played: Played,
}

/// Judges one recording.
///
/// # Errors
///
/// The file cannot be read, or not understood: one line that names it and, where there is one, the line.
pub fn trace(file: &Path, setting: &Setting) -> Result<Report, String> {
    let name = file.display().to_string();
    let failed = |why: String| format!("backtest: {}: {why}; it was not judged", name.escape_debug());
    let bytes = std::fs::read(file).map_err(|e| failed(e.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|e| failed(format!("no text: {e}")))?;
    judged(&text, name.clone(), setting).map_err(failed)
}

fn judged(text: &str, file: String, setting: &Setting) -> Result<Report, String> {
    let recording = Recording::read(text)?;
    let times = || recording.gpus.iter().flat_map(|gpu| &gpu.rows).map(|row| row.at_ms);
    let (Some(first), Some(last)) = (times().min(), times().max()) else {
        return Err("no row of any GPU".to_owned());
    };
    let units: Vec<UnitRef> = recording.gpus.iter().map(|gpu| gpu.unit.clone()).collect();
    let gpus = units.len();
    let history = JobHistory {
        job: job(first - setting.began_before_ms, gpus),
        units: Measured(units),
        node_units: Measured(gpus as u32),
        ticks: Vec::new(),
        floors: Vec::new(),
        actions: Vec::new(),
        open_finding: None,
        fault: None,
    };
    let mut config = setting.config.clone();
    // Whose job it was is not known, so nobody can be found exempt, nor would anything be found at all.
    config.rules.exemptions = Exemptions::default();
    let mut player = Player::new(&config, history);
    looks::play(&recording, setting.every_ms, &mut |tick| player.run(tick));
    let subject = Subject::File(file);
    Ok(Report { subject, gpus, recorded_ms: last - first, first: BootMs(first), played: player.end() })
}

/// The job run that a recording is taken for.
fn job(start_ms: i64, gpus: usize) -> JobRun {
    let start =
        JobStart { boot: BootMs(start_ms), wall: WallMs(start_ms), source: StartSource::Registration };
    let unknown = || Absent(Absence::NotRecorded);
    JobRun {
        id: JobRunId(1),
        registration: Registration {
            cluster: unknown(),
            job: JobId::FIRST,
            restart: 0,
            sluid: unknown(),
            start,
            user: unknown(),
            uid: Absent(Absence::NotRecorded),
            account: unknown(),
            partition: unknown(),
            qos: unknown(),
            nodes: Measured(1),
            node_list: unknown(),
            het_leader: None,
            limit_end: Absent(Absence::NotRecorded),
            gpus: (0..gpus as u32).map(|n| GpuClaim::Index(crate::units::GresIndex(n))).collect(),
            by: RegisteredBy::Discovery,
        },
        registered: start.boot,
        details: None,
        first_activity: None,
        last_activity: None,
    }
}

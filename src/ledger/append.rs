//! Remembering one run: everything it saw, in one transaction and without an fsync. Owners are looked at once
//! more inside it: what an Epilog cleared since the run looked belongs to nobody.

use super::columns::{Cells, Sink, blanks};
use super::sample;
use super::unit::{self, Units};
use super::{Boot, Keep, Ledger, LedgerError, LedgerErrorKind, boot_row_made, cadence, open, past, prune};
use crate::model::*;
use crate::reading::Absence;
use crate::reading::Reading::{self, Measured};
use crate::units::{BootMs, UnitUuid, WallMs};
use rusqlite::Transaction;
use std::collections::{BTreeMap, BTreeSet};

/// What is known of a process beside what the driver lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessFacts {
    /// Its start in clock ticks since boot: pid and start together are the process.
    pub start_ticks: Reading<u64>,
    /// The job run whose cgroup it is in.
    pub job_run: Option<JobRunId>,
}

/// A registered job in one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobInRun {
    /// Its row.
    pub run: JobRunId,
    /// What its processes did.
    pub sample: JobSample,
    /// Whether any of its units was seen at work in this run; folded into the job run's first and last activity.
    pub active: bool,
}

/// An earlier run of this boot that never came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Killed {
    /// What it was doing.
    pub phase: String,
    /// When it began.
    pub boot: BootMs,
    /// The same, for showing.
    pub wall: WallMs,
}

/// Everything one run has to remember.
#[derive(Debug)]
pub struct NewRun<'a> {
    /// Its instant.
    pub now: &'a Now,
    /// The run before it, if that was killed.
    pub killed: Option<Killed>,
    /// How many runs found the lock held since the last one.
    pub overlapped: u32,
    /// What the GPUs said. Absent as a whole: a fault of the collector, and no unit gets a row.
    pub gpus: Reading<&'a GpuReport>,
    /// Which job run holds which unit; a unit of none, or of uncertain owner, is not in it.
    pub owners: &'a BTreeMap<UnitUuid, JobRunId>,
    /// By pid; a process that is missing here has no known start and no job.
    pub processes: &'a BTreeMap<u32, ProcessFacts>,
    /// The registered jobs.
    pub jobs: &'a [JobInRun],
    /// How long things are kept.
    pub keep: &'a Keep,
}

impl Ledger {
    /// Writes down who held a job's device files open in this run, which is asked only after its samples were kept.
    pub fn keep_holders(
        &mut self,
        run: RunId,
        job: JobRunId,
        holders: &Reading<u32>,
    ) -> Result<(), LedgerError> {
        self.write("keep who holds the device files", |tx| {
            let mut cells = Cells::new();
            cells.pair(holders, |n| Some(i64::from(*n))).int(run.0).int(job.0);
            let sql = "UPDATE job_sample SET holders = ?, holders_absent = ? WHERE run = ? AND job_run = ?";
            cells.execute(&mut tx.prepare(sql)?).map(|_| ())
        })
    }

    /// Appends a run, prunes what is old, and keeps the cadence, in one transaction.
    ///
    /// A unit known on this boot that the driver does not list gets a row of absent readings, so that a lost
    /// card is seen to be lost. Cards that have no UUID to be known by are left out, and of two entries with
    /// one UUID the second. A damaged ledger is put aside; the run is then the first of a new one, and
    /// belongs to no job, because those registrations are gone.
    ///
    /// Errors: `Busy`, `Full`, `ReadOnly`, `Io`: nothing was written, and there is a gap.
    pub fn append(&mut self, run: &NewRun) -> Result<RunId, LedgerError> {
        self.check_after_boot(run.now)?;
        let boot = self.boot(&run.now.boot_id).map_err(|e| self.error("append", e))?;
        self.write_or_anew("append", |tx, anew| append(tx, run, boot.filter(|_| !anew), anew))
    }

    /// The first run of a boot looks at the whole file: without fsync a dead machine may have torn it.
    fn check_after_boot(&mut self, now: &Now) -> Result<(), LedgerError> {
        let sound = match self.boot(&now.boot_id) {
            Ok(Some(Boot { first_run: Some(_), .. })) => Ok(()),
            Ok(_) => open::check(&self.conn),
            Err(e) => Err(e),
        };
        match sound.map_err(|e| self.error("check after a boot", e)) {
            Err(error) if error.kind == LedgerErrorKind::Corrupt => self.start_anew(&error),
            other => other,
        }
    }
}

fn append(tx: &Transaction, new: &NewRun, boot: Option<Boot>, anew: bool) -> rusqlite::Result<RunId> {
    let boot = match boot {
        Some(boot) => boot,
        None => boot_row_made(tx, &new.now.boot_id)?,
    };
    prune::make_room(tx, new.keep)?;
    if let Some(killed) = &new.killed {
        note_killed(tx, boot.id, killed)?;
    }
    let run = insert_run(tx, boot.id, new)?;
    let open = if anew { BTreeSet::new() } else { open_registrations(tx, boot.id)? };
    if let Measured(report) = &new.gpus {
        let units = unit::keep(tx, run, boot, new.now, report)?;
        insert_samples(tx, run, new, report, &units, &open)?;
    }
    insert_jobs(tx, run, new, &open)?;
    let number = cadence::keep(tx, boot, run, new.now)?;
    if number % prune::EVERY == 0 {
        prune::aged(tx, boot.id, new.now, new.keep)?;
        past::pack(tx, run)?;
    }
    Ok(run)
}

/// The killed run may have appended before it died, or not.
fn note_killed(tx: &Transaction, boot: i64, killed: &Killed) -> rusqlite::Result<()> {
    let noted = tx.execute(
        "UPDATE run SET outcome = 'killed', phase = ?3
         WHERE id = (SELECT max(id) FROM run) AND boot = ?1 AND boottime_ms = ?2",
        (boot, killed.boot.0, &killed.phase),
    )?;
    if noted == 0 {
        let mut cells = Cells::new();
        cells.int(boot).int(killed.boot.0).int(killed.wall.0).text("killed").text(&killed.phase);
        let why = Absence::NotRecorded.code();
        cells.int_if(None).int(why).int(why).int(0);
        cells.execute(&mut tx.prepare(INSERT_RUN)?)?;
    }
    Ok(())
}

const INSERT_RUN: &str = "INSERT INTO run
    (boot, boottime_ms, wall_ms, outcome, phase, driver, driver_absent, gpus_absent, overlapped)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";

fn insert_run(tx: &Transaction, boot: i64, new: &NewRun) -> rusqlite::Result<RunId> {
    let driver = new.gpus.and_then(|report| report.driver.clone());
    let why = new.gpus.absence();
    let mut cells = Cells::new();
    cells
        .int(boot)
        .int(new.now.boot.0)
        .int(new.now.wall.0)
        .text(if why.is_some() { "fault" } else { "ok" })
        .text_if(None)
        .text_pair(&driver)
        .int_if(why.map(Absence::code))
        .int(i64::from(new.overlapped));
    cells.execute(&mut tx.prepare(INSERT_RUN)?)?;
    Ok(RunId(tx.last_insert_rowid()))
}

fn open_registrations(tx: &Transaction, boot: i64) -> rusqlite::Result<BTreeSet<i64>> {
    tx.prepare("SELECT id FROM job_run WHERE boot = ?1 AND closed_how IS NULL")?
        .query_map([boot], |r| r.get(0))?
        .collect()
}

fn owner(open: &BTreeSet<i64>, run: Option<JobRunId>) -> Option<i64> {
    run.map(|r| r.0).filter(|id| open.contains(id))
}

/// One row per unit: what the report says of the listed ones, and that the others are not.
fn insert_samples(
    tx: &Transaction,
    run: RunId,
    new: &NewRun,
    report: &GpuReport,
    units: &Units,
    open: &BTreeSet<i64>,
) -> rusqlite::Result<()> {
    // OR FAIL, here and below: what is refused ends the whole transaction anyway, and without it SQLite copies
    // every page of a table that has a trigger before each row, to undo that row alone.
    let blanks = blanks(sample::FIRST_READING + sample::READINGS);
    let mut insert = tx.prepare(&format!("INSERT OR FAIL INTO sample VALUES ({blanks})"))?;
    // A card that the driver lists and that cannot be named is one of those that are missing.
    let unnamed = report.units.iter().find_map(|unit| unit.identity.uuid.absence());
    let not_listed = Readings::absent(unnamed.unwrap_or(Absence::NotListed));
    let listed = report
        .units
        .iter()
        .zip(&units.listed)
        .filter_map(|(unit, row)| Some(((*row)?, unit.identity.uuid.measured()?, &unit.readings)));
    let missing = units.missing.iter().map(|(row, uuid)| (*row, uuid, &not_listed));
    let mut cells = Cells::new();
    for (row, uuid, readings) in listed.chain(missing) {
        let owner = owner(open, new.owners.get(uuid).copied());
        cells.int(run.0).int(row).int_if(owner);
        let list = readings.processes.measured().map_or(&[][..], Vec::as_slice);
        let listed = sample::words(list, new.processes, |run| self::owner(open, Some(run)), owner);
        sample::readings(&mut cells, readings, listed);
        cells.execute(&mut insert)?;
    }
    Ok(())
}

fn insert_jobs(tx: &Transaction, run: RunId, new: &NewRun, open: &BTreeSet<i64>) -> rusqlite::Result<()> {
    let mut insert =
        tx.prepare("INSERT OR FAIL INTO job_sample VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")?;
    let mut activity = tx.prepare(
        "UPDATE job_run SET first_activity_ms = coalesce(first_activity_ms, ?2), last_activity_ms = ?2
         WHERE id = ?1",
    )?;
    let mut cells = Cells::new();
    for job in new.jobs.iter().filter(|job| open.contains(&job.run.0)) {
        cells.int(run.0).int(job.run.0);
        sample::job_readings(&mut cells, &job.sample);
        cells.execute(&mut insert)?;
        if job.active {
            activity.execute((job.run.0, new.now.boot.0))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crate::reading::Reading::Absent;

    fn prolog(ledger: &mut Ledger, id: u64) -> JobRunId {
        ledger.register(&at(0), &registration(id, 0, RegisteredBy::Prolog)).unwrap()
    }

    #[test]
    fn a_reading_is_measured_or_absent_never_both_never_neither() {
        let (_dir, mut ledger) = fresh();
        Brought::at(1, report(1, 0)).append(&mut ledger);
        let table = [
            ("both", "UPDATE sample SET sm_util_absent = 1"),
            ("neither", "UPDATE sample SET sm_util = NULL"),
            ("above 100", "UPDATE sample SET sm_util = 101"),
            ("text in a number", "UPDATE sample SET sm_util = 'busy'"),
            ("used beyond total", "UPDATE sample SET mem_used = mem_total + 1"),
            ("a peak without its cover", "UPDATE sample SET sm_peak_covered_ms = NULL"),
            ("an energy of both kinds", "UPDATE sample SET energy_absent = 1"),
            ("a negative counter", "UPDATE sample SET energy_mj = -1"),
            ("processes half known", "UPDATE sample SET processes_graphics = NULL"),
            ("an index as a key", "UPDATE unit SET uuid = '0'"),
            (
                "a job sample without owner",
                "INSERT INTO job_sample VALUES (1, 9, 0, NULL, 0, NULL, 0, NULL, 0, NULL, 0, NULL, 0, NULL)",
            ),
            ("a run that is neither", "UPDATE run SET outcome = 'fine'"),
            ("killed without a phase", "UPDATE run SET outcome = 'killed'"),
        ];
        for (name, sql) in table {
            let error = ledger.conn.execute(sql, []).unwrap_err();
            let code = error.sqlite_error_code();
            assert_eq!(code, Some(rusqlite::ErrorCode::ConstraintViolation), "{name}: {error}");
        }
    }

    #[test]
    fn what_cannot_be_stored_is_implausible_and_loses_nothing_else() {
        let (_dir, mut ledger) = fresh();
        let mut brought = Brought::at(1, report(2, 30));
        let readings = &mut brought.report.units[0].readings;
        readings.energy = Measured(crate::units::Millijoules(u64::MAX));
        readings.memory = Measured(Memory {
            used: crate::units::MemoryBytes(2),
            total: crate::units::MemoryBytes(1),
            excludes_reserved: false,
        });
        brought.append(&mut ledger);
        let why = Absence::Implausible.code();
        assert_eq!(count(&ledger, &format!("sample WHERE mem_absent = {why}")), 1);
        assert_eq!(count(&ledger, &format!("sample WHERE energy_absent = {why}")), 1);
        assert_eq!(count(&ledger, "sample WHERE sm_util = 30"), 2);
    }

    #[test]
    fn a_sample_of_a_cleared_run_is_refused_and_append_gives_it_to_nobody() {
        let (_dir, mut ledger) = fresh();
        let run = prolog(&mut ledger, 77);
        let brought = Brought::at(1, report(2, 0)).owned_by(run);
        brought.append(&mut ledger);
        assert_eq!(count(&ledger, "sample WHERE job_run IS NOT NULL"), 2);
        // The Epilog comes between a run's look and its append.
        ledger.clear(job(77), Some(0), &at(2), false, None).unwrap();
        brought.append(&mut ledger);
        assert_eq!(count(&ledger, "sample WHERE job_run IS NOT NULL"), 0);
        assert_eq!(count(&ledger, "sample"), 2, "the unit's own samples of the second run");
        for table in ["sample", "job_sample"] {
            let sql = format!("INSERT INTO {table} (run, job_run) VALUES (9, {})", run.0);
            let error = ledger.conn.execute(&sql, []).unwrap_err().to_string();
            assert!(error.contains("no open registration"), "{table}: {error}");
        }
    }

    #[test]
    fn a_collector_fault_leaves_a_run_and_no_samples() {
        // microsoft/pai#889 (FT-12): the last good values are not served again.
        let (_dir, mut ledger) = fresh();
        let brought = Brought::at(1, report(2, 0));
        brought.append(&mut ledger);
        let mut run = brought.run();
        run.gpus = Absent(Absence::DeadlinePassed);
        run.killed = Some(Killed { phase: "gpus".into(), boot: at(0).boot, wall: at(0).wall });
        ledger.append(&run).unwrap();
        assert_eq!(count(&ledger, "sample"), 2);
        let code = Absence::DeadlinePassed.code();
        assert_eq!(count(&ledger, &format!("run WHERE outcome = 'fault' AND gpus_absent = {code}")), 1);
        assert_eq!(count(&ledger, "run WHERE outcome = 'killed' AND phase = 'gpus'"), 1);
        // A run that was killed after it had appended is not counted twice.
        run.killed = Some(Killed { phase: "act".into(), boot: at(1).boot, wall: at(1).wall });
        run.gpus = Measured(&brought.report);
        ledger.append(&run).unwrap();
        assert_eq!(count(&ledger, "run"), 4);
        assert_eq!(count(&ledger, "run WHERE outcome = 'killed'"), 2);
    }

    #[test]
    fn activity_is_folded_into_the_job_run() {
        let (_dir, mut ledger) = fresh();
        let run = prolog(&mut ledger, 1);
        let activity = |ledger: &Ledger| {
            let open = ledger.open_runs(BOOT).unwrap();
            (open[0].first_activity, open[0].last_activity)
        };
        for (minute, active) in [(1, false), (2, true), (3, false), (4, true), (5, false)] {
            let mut brought = Brought::at(minute, report(1, 0)).owned_by(run);
            brought.jobs[0].active = active;
            brought.append(&mut ledger);
            if minute == 1 {
                assert_eq!(activity(&ledger), (None, None));
            }
        }
        assert_eq!(activity(&ledger), (Some(at(2).boot), Some(at(4).boot)));
    }
}

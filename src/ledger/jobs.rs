//! Registrations: which job runs this node was given, and which of them are over. Believes nobody that an
//! ended run is back; guesses nothing that a registration did not say.

use super::facts::{self, FACTS, Facts};
use super::words::{by_from, by_word, damage, known, source_from, source_word};
use super::{Ledger, LedgerError, boot_row_made};
use crate::model::*;
use crate::reading::Absence;
use crate::reading::Reading::{Absent, Measured};
use crate::units::{BootMs, WallMs};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, ffi};

/// Whether a job run is still registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// The policy sees it, on its own boot.
    Open,
    /// Its Epilog came.
    Ended(WallMs),
    /// A later run of the same job came, and no Epilog of this one.
    Requeued(WallMs),
    /// Another job run of the same id and restart count came, as after ids wrapped.
    Replaced(WallMs),
}

/// A job run as `--explain` finds it, open or over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRecord {
    /// What was registered.
    pub run: JobRun,
    /// On which boot.
    pub boot_id: String,
    /// Whether it is over.
    pub life: Life,
}

impl Ledger {
    /// Registers a job run and gives its row.
    ///
    /// The same open run again keeps its first row. A higher restart count closes the older runs of that job
    /// (a requeued job is a new run: ClusterCockpit/cc-backend#30); a Prolog whose start or SLUID differs
    /// replaces the open run, because Prologs do not come twice for one.
    ///
    /// Errors: `Refused` for a discovery of a run that has ended, or of one older than what is registered.
    pub fn register(&mut self, now: &Now, job: &Registration) -> Result<JobRunId, LedgerError> {
        self.write_or_anew("register job", |tx, _| {
            let boot = boot_row_made(tx, &now.boot_id)?.id;
            if let Some(kept) = make_room(tx, boot, now, job)? {
                return Ok(kept);
            }
            if job.by == RegisteredBy::Prolog {
                tx.execute(
                    "DELETE FROM ended WHERE boot = ?1 AND job_id = ?2 AND restart >= ?3",
                    (boot, number(job.job), job.restart),
                )?;
            }
            insert(tx, boot, now, job)
        })
    }

    /// The registered job runs of a boot that are not over, oldest first; rows of other boots are void.
    pub fn open_runs(&self, boot_id: &str) -> Result<Vec<JobRun>, LedgerError> {
        self.read("read registrations", |conn| {
            let Some(boot) = self.boot(boot_id)? else {
                return Ok(Vec::new());
            };
            let mut runs = runs(conn, "boot = ?1 AND closed_how IS NULL", [boot.id])?;
            // Sorted here: for a handful of rows SQLite would set up a sorter.
            runs.sort_by_key(|run| run.id);
            Ok(runs)
        })
    }

    /// The last moment of the boot before this one that a run saw, and the job runs that it left open. To be asked before
    /// this boot's first run is appended: of earlier boots cadence and packing are not known any more.
    pub fn left_by_boot_before(&self, boot_id: &str) -> Result<Option<(Now, Vec<JobRun>)>, LedgerError> {
        self.read("read registrations of the boot before", |conn| {
            let sql =
                "SELECT b.id, b.boot_id, r.boottime_ms, r.wall_ms FROM run r JOIN boot b ON b.id = r.boot
                       ORDER BY r.id DESC LIMIT 1";
            let moment = |r: &Row| {
                let now = Now { boot_id: r.get(1)?, boot: BootMs(r.get(2)?), wall: WallMs(r.get(3)?) };
                Ok((r.get::<_, i64>(0)?, now))
            };
            let newest = conn.query_row(sql, [], moment).optional()?;
            let Some((boot, last)) = newest.filter(|(_, last)| last.boot_id != boot_id) else {
                return Ok(None);
            };
            let left = runs(conn, "closed_how IS NULL AND boot = ?1 ORDER BY id", [boot])?;
            Ok(Some((last, left)))
        })
    }

    /// Every run of a job that the ledger still knows, on any boot, open or over, newest first.
    pub fn find_runs(&self, job: JobId) -> Result<Vec<JobRecord>, LedgerError> {
        self.read("look for the job", |conn| records(conn, "job_id = ?1 ORDER BY id DESC", [number(job)]))
    }

    /// Every job run that is still known, on any boot, open or over, oldest first.
    pub fn all_runs(&self) -> Result<Vec<JobRecord>, LedgerError> {
        self.read("read the job runs", |conn| records(conn, "1 ORDER BY id", []))
    }

    /// The same for an id as Slurm shows it (`123_4`, `200+1`), where Slurm was asked, or for a SLUID.
    pub fn find_shown(&self, shown: &str) -> Result<Vec<JobRecord>, LedgerError> {
        self.read("look for the job", |conn| {
            let condition = "id IN (SELECT job_run FROM job_fact
                WHERE name IN ('sluid', 'slurm.display_id') AND value = ?1) ORDER BY id DESC";
            records(conn, condition, [shown])
        })
    }

    /// Keeps what Slurm said of a job run; the last answer counts.
    pub fn set_details(&mut self, run: JobRunId, details: &JobDetails) -> Result<(), LedgerError> {
        self.write("keep what Slurm said of a job", |tx| facts::keep_details(tx, run, details))
    }
}

/// Closes what the new registration supersedes; gives the row to keep where it is the same run.
fn make_room(
    tx: &Transaction,
    boot: i64,
    now: &Now,
    job: &Registration,
) -> rusqlite::Result<Option<JobRunId>> {
    let condition = "boot = ?1 AND closed_how IS NULL AND job_id = ?2 ORDER BY id";
    for open in runs(tx, condition, (boot, number(job.job)))? {
        let known = &open.registration;
        let prolog = job.by == RegisteredBy::Prolog;
        if known.restart < job.restart {
            close(tx, open.id, "requeued", now)?;
        } else if prolog && (known.restart > job.restart || another_run(known, job)) {
            close(tx, open.id, "replaced", now)?;
        } else if known.restart == job.restart {
            return Ok(Some(open.id));
        } else {
            return Err(refusal("a later run of this job is registered"));
        }
    }
    Ok(None)
}

/// Whether two registrations of one id and restart count are surely not the same run.
fn another_run(known: &Registration, new: &Registration) -> bool {
    let slurm = |r: &Registration| r.start.source == StartSource::Slurm;
    // Whole seconds in Slurm, put on our clock twice: a difference of a second is none.
    let starts_differ = slurm(known) && slurm(new) && known.start.wall.0.abs_diff(new.start.wall.0) > 1500;
    let sluids_differ = match (&known.sluid, &new.sluid) {
        (Measured(a), Measured(b)) => a != b,
        _ => false,
    };
    starts_differ || sluids_differ
}

fn insert(tx: &Transaction, boot: i64, now: &Now, job: &Registration) -> rusqlite::Result<JobRunId> {
    tx.execute(
        "INSERT INTO job_run (boot, job_id, restart, registered_by, registered_boot_ms, start_boot_ms,
             start_wall_ms, start_source, het_leader, archived, after_run)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 0, (SELECT coalesce(max(id), 0) FROM run))",
        (
            boot,
            number(job.job),
            job.restart,
            by_word(job.by),
            now.boot.0,
            job.start.boot.0,
            job.start.wall.0,
            source_word(job.start.source),
            job.het_leader.map(number),
        ),
    )?;
    let id = JobRunId(tx.last_insert_rowid());
    facts::register(tx, id, job)?;
    Ok(id)
}

/// Ends a registration; its open finding ends with it.
pub(super) fn close(tx: &Transaction, run: JobRunId, how: &str, now: &Now) -> rusqlite::Result<()> {
    tx.execute(
        "UPDATE job_run SET closed_how = ?2, closed_wall_ms = ?3 WHERE id = ?1 AND closed_how IS NULL",
        (run.0, how, now.wall.0),
    )?;
    tx.execute(
        "UPDATE finding SET closed_how = 'ended', closed_wall_ms = ?2
         WHERE job_run = ?1 AND closed_how IS NULL",
        (run.0, now.wall.0),
    )?;
    Ok(())
}

/// Job runs by a condition, with their facts.
pub(super) fn runs(
    conn: &Connection,
    condition: &str,
    params: impl rusqlite::Params,
) -> rusqlite::Result<Vec<JobRun>> {
    Ok(stored(conn, condition, params)?.into_iter().map(|stored| stored.run).collect())
}

/// The same as `--explain` wants them.
fn records(
    conn: &Connection,
    condition: &str,
    params: impl rusqlite::Params,
) -> rusqlite::Result<Vec<JobRecord>> {
    let mut boot = conn.prepare("SELECT boot_id FROM boot WHERE id = ?1")?;
    let mut record = |Stored { run, boot: row, life }| {
        Ok(JobRecord { run, boot_id: boot.query_row([row], |r| r.get(0))?, life })
    };
    stored(conn, condition, params)?.into_iter().map(&mut record).collect()
}

/// A row of `job_run`.
struct Stored {
    run: JobRun,
    boot: i64,
    life: Life,
}

fn stored(
    conn: &Connection,
    condition: &str,
    params: impl rusqlite::Params,
) -> rusqlite::Result<Vec<Stored>> {
    // Whole rows, in the table's order: naming a column costs SQLite more than reading it.
    let mut found = conn.prepare(&format!("SELECT * FROM job_run WHERE {condition}"))?;
    let mut all = found.query_map(params, row)?.collect::<rusqlite::Result<Vec<Stored>>>()?;
    if all.is_empty() {
        return Ok(all);
    }
    let mut all_facts = conn.prepare(FACTS)?;
    for Stored { run, .. } in &mut all {
        let mut facts = Facts::read(&mut all_facts, run.id)?;
        facts::fill(&mut run.registration, &mut facts)?;
        run.details = facts::details(&mut facts)?;
    }
    Ok(all)
}

/// The row itself; its readings follow.
fn row(row: &Row) -> rusqlite::Result<Stored> {
    let source = known(source_from(&row.get::<_, String>(9)?), "job_run.start_source")?;
    let start = JobStart { boot: BootMs(row.get(7)?), wall: WallMs(row.get(8)?), source };
    let registration = Registration {
        job: job_id(row.get(2)?)?,
        restart: row.get(3)?,
        by: known(by_from(&row.get::<_, String>(4)?), "job_run.registered_by")?,
        start,
        het_leader: row.get::<_, Option<i64>>(10)?.map(job_id).transpose()?,
        cluster: Absent(Absence::NotRecorded),
        sluid: Absent(Absence::NotRecorded),
        user: Absent(Absence::NotRecorded),
        uid: Absent(Absence::NotRecorded),
        account: Absent(Absence::NotRecorded),
        partition: Absent(Absence::NotRecorded),
        qos: Absent(Absence::NotRecorded),
        nodes: Absent(Absence::NotRecorded),
        node_list: Absent(Absence::NotRecorded),
        limit_end: Absent(Absence::NotRecorded),
        gpus: Vec::new(),
    };
    let run = JobRun {
        id: JobRunId(row.get(0)?),
        registration,
        registered: BootMs(row.get(5)?),
        details: None,
        first_activity: row.get::<_, Option<i64>>(11)?.map(BootMs),
        last_activity: row.get::<_, Option<i64>>(12)?.map(BootMs),
    };
    let (how, closed): (Option<String>, Option<i64>) = (row.get(14)?, row.get(15)?);
    let life = match (how.as_deref(), closed.map(WallMs)) {
        (None, None) => Life::Open,
        (Some("ended"), Some(at)) => Life::Ended(at),
        (Some("requeued"), Some(at)) => Life::Requeued(at),
        (Some("replaced"), Some(at)) => Life::Replaced(at),
        _ => return Err(damage("job_run.closed_how")),
    };
    Ok(Stored { run, boot: row.get(1)?, life })
}

/// A job id as a column.
pub(super) fn number(job: JobId) -> i64 {
    // Below 2^32 by construction.
    job.get() as i64
}

/// A job id column back.
pub(super) fn job_id(value: i64) -> rusqlite::Result<JobId> {
    known(u64::try_from(value).ok().and_then(JobId::new), "job_id")
}

fn refusal(why: &str) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CONSTRAINT), Some(why.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::LedgerErrorKind;
    use super::super::testing::*;
    use super::*;
    use crate::reading::Reading;
    use crate::units::GresIndex;

    fn prolog(job: u64, restart: u32) -> Registration {
        registration(job, restart, RegisteredBy::Prolog)
    }

    fn discovery(job: u64, restart: u32) -> Registration {
        registration(job, restart, RegisteredBy::Discovery)
    }

    #[test]
    fn a_registration_comes_back_as_it_was_given() {
        let (_dir, mut ledger) = fresh();
        let mut job = prolog(4242, 0);
        job.gpus = vec![GpuClaim::Index(GresIndex(3)), GpuClaim::Uuid(uuid(1))];
        job.het_leader = JobId::new(4200);
        job.limit_end = Measured(WallMs(99));
        job.nodes = Reading::Absent(Absence::NotUnderstood);
        let id = ledger.register(&at(10), &job).unwrap();
        let open = ledger.open_runs(BOOT).unwrap();
        assert_eq!(open.len(), 1);
        assert_eq!((open[0].id, &open[0].registration), (id, &job));
        assert_eq!(open[0].registered, at(10).boot);

        let said = details("4242_7");
        ledger.set_details(id, &details("old")).unwrap();
        ledger.set_details(id, &said).unwrap();
        assert_eq!(ledger.open_runs(BOOT).unwrap()[0].details, Some(said));
        assert_eq!(ledger.find_shown("4242_7").unwrap().len(), 1);
        assert!(ledger.find_shown("4242_8").unwrap().is_empty());
    }

    #[test]
    fn a_requeued_job_is_a_new_run_and_both_are_listed() {
        // ClusterCockpit/cc-backend#30, snakemake/snakemake-executor-plugin-slurm#109 (JL-02).
        let (_dir, mut ledger) = fresh();
        let first = ledger.register(&at(0), &prolog(77, 0)).unwrap();
        assert_eq!(ledger.register(&at(1), &prolog(77, 0)).unwrap(), first, "the same run keeps its row");
        let second = ledger.register(&at(50), &prolog(77, 1)).unwrap();
        assert_ne!(first, second);
        let open: Vec<_> = ledger.open_runs(BOOT).unwrap().iter().map(|r| r.id).collect();
        assert_eq!(open, [second]);
        let lives: Vec<_> = ledger.find_runs(job(77)).unwrap().iter().map(|r| r.life).collect();
        assert_eq!(lives, [Life::Open, Life::Requeued(at(50).wall)]);
    }

    #[test]
    fn a_late_discovery_of_an_older_run_is_refused() {
        let (_dir, mut ledger) = fresh();
        ledger.register(&at(0), &prolog(77, 2)).unwrap();
        let error = ledger.register(&at(1), &discovery(77, 1)).unwrap_err();
        assert_eq!(error.kind, LedgerErrorKind::Refused);
        assert_eq!(ledger.open_runs(BOOT).unwrap()[0].registration.restart, 2);
    }

    #[test]
    fn an_ended_run_is_not_discovered_again_but_a_prolog_begins_a_new_one() {
        let (_dir, mut ledger) = fresh();
        let first = ledger.register(&at(0), &prolog(77, 0)).unwrap();
        ledger.clear(job(77), Some(0), &at(5), false, None).unwrap();
        let error = ledger.register(&at(6), &discovery(77, 0)).unwrap_err();
        assert_eq!(error.kind, LedgerErrorKind::Refused, "{error}");
        assert!(ledger.open_runs(BOOT).unwrap().is_empty());
        let second = ledger.register(&at(7), &prolog(77, 0)).unwrap();
        assert!(second > first, "numbers never return");
        // The mark is gone with the new run: its own rediscovery is welcome.
        assert_eq!(ledger.register(&at(8), &discovery(77, 0)).unwrap(), second);
    }

    #[test]
    fn an_epilog_without_a_restart_count_ends_every_run_of_an_unregistered_job() {
        let (_dir, mut ledger) = fresh();
        ledger.clear(job(5), None, &at(0), false, None).unwrap();
        for restart in [0, 3] {
            assert!(ledger.register(&at(1), &discovery(5, restart)).is_err());
        }
        assert!(ledger.register(&at(2), &prolog(5, 0)).is_ok());
    }

    #[test]
    fn a_prolog_with_another_start_is_another_run() {
        let (_dir, mut ledger) = fresh();
        let mut one = prolog(9, 0);
        one.start.source = StartSource::Slurm;
        let first = ledger.register(&at(0), &one).unwrap();
        let mut two = one.clone();
        two.start.wall.0 += 900;
        assert_eq!(ledger.register(&at(1), &two).unwrap(), first, "rounded differently");
        two.start.wall.0 += 3_600_000;
        let second = ledger.register(&at(60), &two).unwrap();
        assert_ne!(first, second);
        assert_eq!(ledger.find_runs(job(9)).unwrap()[1].life, Life::Replaced(at(60).wall));
    }

    #[test]
    fn registrations_of_another_boot_are_void() {
        let (_dir, mut ledger) = fresh();
        ledger.register(&at(0), &prolog(1, 0)).unwrap();
        assert!(ledger.open_runs("another boot").unwrap().is_empty());
        assert_eq!(ledger.find_runs(job(1)).unwrap()[0].boot_id, BOOT);
    }
}

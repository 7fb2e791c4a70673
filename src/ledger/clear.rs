//! The Epilog's part: a job run is taken out of everything the policy reads, in one transaction, and marked as
//! over so that no late writer brings it back. Touches no other job run, also none on the same unit.

use super::jobs::{close, number, runs};
use super::{Ledger, LedgerError, boot_row_made};
use crate::model::*;
use crate::units::WallMs;
use rusqlite::{OptionalExtension, Transaction};

/// The longest case file, in bytes; one that is longer is not kept.
const LONGEST_CASE: usize = 64 << 10;

/// Which run of a job (of a boot) an Epilog with the restart count ?3 is about. The Epilog of a run that is requeued
/// already says the count of the next one (measured with Slurm 22.05 and 24.11).
const ENDING: &str = "(?3 IS NULL OR restart <= ?3) AND closed_how IS NOT 'ended' ORDER BY id DESC LIMIT 1";

/// The explanation of a job run as it stood at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseFile {
    /// The id as Slurm shows it.
    pub display_id: String,
    /// JSON.
    pub body: String,
}

/// A case file as it was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCase {
    /// The job's id.
    pub job: JobId,
    /// Its restart count.
    pub restart: u32,
    /// The id as Slurm shows it.
    pub display_id: String,
    /// When the job run ended.
    pub created: WallMs,
    /// JSON.
    pub body: String,
}

/// What a clearing did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cleared {
    /// The job run, if it was registered.
    pub job_run: Option<JobRunId>,
    /// Samples of its units that were there.
    pub samples: u32,
    /// Whether they are in the archive now.
    pub archived: bool,
    /// Whether the case file was kept: only for a run with a finding or an action.
    pub case_kept: bool,
}

/// What became of a job run's Epilog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpilogOf {
    /// Our hook came: it runs last, so every Epilog of that job ended well.
    Ended,
    /// The hooks are installed here, and none came for this run.
    Missing,
    /// No hook was ever seen on this node, and none registered this run.
    NoHook,
    /// The ledger has forgotten that run, or it is not over.
    NotKnown,
}

impl Ledger {
    /// What became of the Epilog of a job run. That a Prolog of ours registered it says that the hooks are installed.
    pub fn epilog_of(&self, run: JobRunId) -> Result<EpilogOf, LedgerError> {
        self.read("look for a job's Epilog", |conn| {
            let sql = "SELECT by_epilog, registered_by = 'prolog' FROM job_run
                       WHERE id = ?1 AND closed_how NOTNULL";
            let found: Option<(Option<bool>, bool)> =
                conn.query_row(sql, [run.0], |r| Ok((r.get(0)?, r.get(1)?))).optional()?;
            Ok(match found {
                None => EpilogOf::NotKnown,
                Some((Some(true), _)) => EpilogOf::Ended,
                Some((_, true)) => EpilogOf::Missing,
                Some(_) => match conn.prepare("SELECT 1 FROM job_run WHERE by_epilog")?.exists([])? {
                    true => EpilogOf::Missing,
                    false => EpilogOf::NoHook,
                },
            })
        })
    }

    /// The job run that an Epilog is about: the latest of this boot up to that restart count that has not been
    /// cleared, whether open or closed by a requeue.
    pub fn ending_run(
        &self,
        job: JobId,
        restart: Option<u32>,
        now: &Now,
    ) -> Result<Option<JobRun>, LedgerError> {
        self.read("look for the job", |conn| {
            let condition =
                format!("boot = (SELECT id FROM boot WHERE boot_id = ?1) AND job_id = ?2 AND {ENDING}");
            Ok(runs(conn, &condition, (&now.boot_id, number(job), restart))?.into_iter().next())
        })
    }

    /// Clears a job run: its registration is closed, so that the policy sees nothing of it any more; its
    /// samples become archived ones (if `archive`) or go away; a tombstone keeps it from being discovered
    /// again. An unregistered run leaves just the tombstone: for the run before that restart count, since this
    /// count may be the next run's; if none is known, one for all runs of that job, until a Prolog says
    /// otherwise. `case` is kept if the run had a finding or an
    /// action.
    pub fn clear(
        &mut self,
        job: JobId,
        restart: Option<u32>,
        now: &Now,
        archive: bool,
        case: Option<&CaseFile>,
    ) -> Result<Cleared, LedgerError> {
        self.clear_by(true, job, restart, now, archive, case)
    }

    /// The same by a health run, which found a job run ended whose Epilog never came here.
    pub fn clear_without_epilog(
        &mut self,
        job: &JobRun,
        now: &Now,
        archive: bool,
        case: Option<&CaseFile>,
    ) -> Result<Cleared, LedgerError> {
        let (id, restart) = (job.registration.job, Some(job.registration.restart));
        self.clear_by(false, id, restart, now, archive, case)
    }

    fn clear_by(
        &mut self,
        epilog: bool,
        job: JobId,
        restart: Option<u32>,
        now: &Now,
        archive: bool,
        case: Option<&CaseFile>,
    ) -> Result<Cleared, LedgerError> {
        self.write_or_anew("clear a job", |tx, _| {
            let boot = boot_row_made(tx, &now.boot_id)?.id;
            let found: Option<(i64, u32, i64)> = tx
                .query_row(
                    &format!(
                        "SELECT id, restart, after_run FROM job_run WHERE boot = ?1 AND job_id = ?2
                         AND {ENDING}"
                    ),
                    (boot, number(job), restart),
                    |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)),
                )
                .optional()?;
            let unregistered = restart.map_or(u32::MAX, |count| count.saturating_sub(1));
            let ended = found.map_or(unregistered, |(_, restart, _)| restart);
            let id = found.map(|(id, ..)| id);
            tx.execute(
                "INSERT OR REPLACE INTO ended VALUES (?1, ?2, ?3, ?4, ?5)",
                (boot, number(job), ended, now.wall.0, id),
            )?;
            let Some((id, _, after_run)) = found else {
                return Ok(Cleared { job_run: None, samples: 0, archived: false, case_kept: false });
            };
            let case_kept = keep_case(tx, id, job, ended, now, case)?;
            let samples = take_samples(tx, id, after_run, archive)?;
            close(tx, JobRunId(id), "ended", now)?;
            let sql = "UPDATE job_run SET closed_how = 'ended', by_epilog = ?2 WHERE id = ?1";
            tx.execute(sql, (id, epilog.then_some(1)))?;
            let archived = archive && samples > 0;
            Ok(Cleared { job_run: Some(JobRunId(id)), samples, archived, case_kept })
        })
    }

    /// The case files of a job, by its id or as Slurm shows it, newest first.
    pub fn cases_of(&self, shown: &str) -> Result<Vec<StoredCase>, LedgerError> {
        self.cases("WHERE display_id = ?1 OR CAST(job_id AS TEXT) = ?1", [shown])
    }

    /// All case files, newest first.
    pub fn all_cases(&self) -> Result<Vec<StoredCase>, LedgerError> {
        self.cases("", [])
    }

    fn cases(&self, condition: &str, params: impl rusqlite::Params) -> Result<Vec<StoredCase>, LedgerError> {
        self.read("read case files", |conn| {
            let mut found = conn.prepare(&format!(
                "SELECT job_id, restart, display_id, created_wall_ms, body FROM case_file
                 {condition} ORDER BY id DESC"
            ))?;
            found
                .query_map(params, |r| {
                    Ok(StoredCase {
                        job: super::jobs::job_id(r.get(0)?)?,
                        restart: r.get(1)?,
                        display_id: r.get(2)?,
                        created: WallMs(r.get(3)?),
                        body: r.get(4)?,
                    })
                })?
                .collect()
        })
    }
}

fn keep_case(
    tx: &Transaction,
    id: i64,
    job: JobId,
    restart: u32,
    now: &Now,
    case: Option<&CaseFile>,
) -> rusqlite::Result<bool> {
    let Some(case) = case.filter(|case| case.body.len() <= LONGEST_CASE) else {
        return Ok(false);
    };
    let kept = tx.execute(
        "INSERT INTO case_file (job_id, restart, display_id, created_wall_ms, body)
         SELECT ?2, ?3, ?4, ?5, ?6 WHERE EXISTS (SELECT 1 FROM finding WHERE job_run = ?1)
             OR EXISTS (SELECT 1 FROM action WHERE job_run = ?1)",
        (id, number(job), restart, &case.display_id, now.wall.0, &case.body),
    )?;
    Ok(kept == 1)
}

/// Only runs since the registration are looked at: their rows lie together, the rest is never read. What is
/// archived stays where it is; the mark keeps it from being pruned with the others.
fn take_samples(tx: &Transaction, id: i64, after_run: i64, archive: bool) -> rusqlite::Result<u32> {
    let own = "WHERE run > ?1 AND job_run = ?2";
    let there = format!(
        "SELECT (SELECT count(*) FROM sample {own}) + (SELECT coalesce(sum(units), 0) FROM past {own})"
    );
    let samples = tx.query_row(&there, (after_run, id), |r| r.get(0))?;
    if archive {
        tx.execute("UPDATE job_run SET archived = 1 WHERE id = ?1", [id])?;
        return Ok(samples);
    }
    for table in ["sample", "past", "job_sample"] {
        tx.execute(&format!("DELETE FROM {table} {own}"), (after_run, id))?;
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::super::{Closing, JobAsked, Life, NewFinding};
    use super::*;
    use crate::reading::Absence;
    use crate::reading::Reading::{Absent, Measured};

    fn two_jobs(ledger: &mut Ledger) -> (JobRunId, JobRunId) {
        let mut register = |id| ledger.register(&at(0), &registration(id, 0, RegisteredBy::Prolog)).unwrap();
        (register(1), register(2))
    }

    #[test]
    fn an_epilog_clears_its_own_run_and_no_other() {
        // dsx-ai-factory/fleet-intelligence-agent#258, PrincetonUniversity/jobstats (SH-02): two jobs on one
        // card, the first one ends.
        let (_dir, mut ledger) = fresh();
        let (a, b) = two_jobs(&mut ledger);
        for minute in 1..=4 {
            let mut brought = Brought::at(minute, report(3, 0)).owned_by(b);
            brought.owners.insert(uuid(0), a);
            // The third card is both jobs': nobody's.
            brought.owners.remove(&uuid(2));
            brought.append(&mut ledger);
        }
        let cleared = ledger.clear(job(1), Some(0), &at(5), true, None).unwrap();
        let want = Cleared { job_run: Some(a), samples: 4, archived: true, case_kept: false };
        assert_eq!(cleared, want);
        let open: Vec<_> = ledger.open_runs(BOOT).unwrap().iter().map(|r| r.id).collect();
        assert_eq!(open, [b]);
        assert_eq!(count(&ledger, &format!("sample WHERE job_run = {}", b.0)), 4);
        assert_eq!(count(&ledger, "sample WHERE job_run IS NULL"), 4);
        assert_eq!(count(&ledger, "sample"), 12, "the archived ones stay");
        assert_eq!(count(&ledger, &format!("sample WHERE processes LIKE '% {}'", b.0)), 8);
        assert_eq!(ledger.find_runs(job(1)).unwrap()[0].life, Life::Ended(at(5).wall));
    }

    #[test]
    fn the_epilog_of_a_requeued_run_says_the_next_count_and_clears_its_own() {
        // Measured with Slurm 22.05.8 and 24.11.5: restart 0 ends with SLURM_JOB_RESTART_COUNT=1. After it,
        // Slurm 22.05 may start restart 1 without a Prolog.
        for registered in [true, false] {
            let (_dir, mut ledger) = fresh();
            if registered {
                ledger.register(&at(0), &registration(1, 0, RegisteredBy::Prolog)).unwrap();
            }
            let cleared = ledger.clear(job(1), Some(1), &at(5), true, None).unwrap();
            assert_eq!(cleared.job_run.is_some(), registered);
            assert_eq!(ledger.open_runs(BOOT).unwrap(), []);
            let ended = registration(1, 0, RegisteredBy::Discovery);
            assert!(ledger.register(&at(6), &ended).is_err(), "what ended stays ended");
            let next = ledger.register(&at(6), &registration(1, 1, RegisteredBy::Discovery)).unwrap();
            assert_eq!(ledger.ending_run(job(1), Some(1), &at(7)).unwrap().unwrap().id, next);
        }
    }

    #[test]
    fn only_our_hook_says_that_an_epilog_ended() {
        // A failing Epilog stops those after it; ours runs last (measured with Slurm 22.05, 24.11 and 26.05).
        let (_dir, mut ledger) = fresh();
        let register = |ledger: &mut Ledger, id, by| {
            ledger.register(&at(0), &registration(id, 0, by)).unwrap();
            ledger.open_runs(BOOT).unwrap().pop().unwrap()
        };
        let bare = register(&mut ledger, 1, RegisteredBy::Discovery);
        assert_eq!(ledger.epilog_of(bare.id).unwrap(), EpilogOf::NotKnown, "it is not over");
        ledger.clear_without_epilog(&bare, &at(1), false, None).unwrap();
        assert_eq!(ledger.epilog_of(bare.id).unwrap(), EpilogOf::NoHook);

        let failed = register(&mut ledger, 2, RegisteredBy::Prolog);
        ledger.clear_without_epilog(&failed, &at(2), false, None).unwrap();
        assert_eq!(ledger.epilog_of(failed.id).unwrap(), EpilogOf::Missing, "its Prolog was ours");

        let well = register(&mut ledger, 3, RegisteredBy::Discovery);
        ledger.clear(job(3), Some(0), &at(3), false, None).unwrap();
        assert_eq!(ledger.epilog_of(well.id).unwrap(), EpilogOf::Ended);
        assert_eq!(ledger.epilog_of(bare.id).unwrap(), EpilogOf::Missing, "the hook is here");
        assert_eq!(ledger.epilog_of(JobRunId(99)).unwrap(), EpilogOf::NotKnown);
    }

    #[test]
    fn an_archived_run_can_be_judged_again() {
        let (_dir, mut ledger) = fresh();
        let (a, _) = two_jobs(&mut ledger);
        for minute in 1..=3 {
            Brought::at(minute, report(2, 7)).owned_by(a).append(&mut ledger);
        }
        let brought = Brought::at(4, report(2, 7));
        let mut failed = brought.run();
        failed.gpus = Absent(Absence::WorkerStuck);
        ledger.append(&failed).unwrap();
        let run = ledger.open_runs(BOOT).unwrap().remove(0);
        let asked = |ledger: &Ledger| JobAsked {
            run: run.clone(),
            units: Measured(ledger.units_of(a).unwrap()),
            reach: None,
        };
        let jobs = vec![asked(&ledger)];
        let before = ledger.replay(BOOT, jobs, Measured(2), &mut |_| false, true).unwrap().remove(0);
        ledger.clear(job(1), None, &at(5), true, None).unwrap();
        let after = ledger.replay_closed(asked(&ledger), BOOT).unwrap();
        assert_eq!(after.ticks[..], before.ticks[..3], "runs after its last sample are not its own");
        assert_eq!(after.ticks[0].units.len(), 2);
        let jobs = vec![asked(&ledger)];
        let live = ledger.replay(BOOT, jobs, Measured(2), &mut |_| false, true).unwrap().remove(0);
        assert!(live.ticks.is_empty(), "the policy sees nothing of it");
    }

    #[test]
    fn a_case_file_is_kept_for_a_run_with_a_finding_or_an_action() {
        let (_dir, mut ledger) = fresh();
        two_jobs(&mut ledger);
        let run = ledger.open_runs(BOOT).unwrap().remove(1);
        let finding = NewFinding {
            job: &run,
            signature: "idle",
            scope: "whole",
            units: "0",
            since: at(0).boot,
            established: at(30).boot,
            certified_ms: 0,
            wasted: crate::units::GpuHours::of(1, 0),
            gpus: 1,
        };
        ledger.record_finding(&finding, RunId(1), &at(30)).unwrap();
        ledger.close_finding(run.id, Closing::Alive, RunId(2), &at(31)).unwrap();
        let case = CaseFile { display_id: "200_7".to_owned(), body: "{}".to_owned() };
        assert!(!ledger.clear(job(1), Some(0), &at(40), false, Some(&case)).unwrap().case_kept);
        let long = CaseFile { body: "x".repeat(LONGEST_CASE + 1), ..case.clone() };
        assert_eq!(ledger.ending_run(job(2), None, &at(40)).unwrap().map(|r| r.id), Some(run.id));
        assert!(ledger.clear(job(2), Some(0), &at(40), false, Some(&case)).unwrap().case_kept);
        assert_eq!(ledger.ending_run(job(2), None, &at(40)).unwrap(), None);
        assert_eq!(ledger.cases_of("200_7").unwrap().len(), 1);
        assert_eq!(ledger.cases_of("2").unwrap()[0].body, "{}");
        assert_eq!(ledger.all_cases().unwrap().len(), 1);
        assert!(!ledger.clear(job(2), Some(0), &at(41), false, Some(&long)).unwrap().case_kept);
    }

    #[test]
    fn a_requeued_runs_late_epilog_clears_that_run_only() {
        let (_dir, mut ledger) = fresh();
        let first = ledger.register(&at(0), &registration(7, 0, RegisteredBy::Prolog)).unwrap();
        Brought::at(1, report(1, 0)).owned_by(first).append(&mut ledger);
        let second = ledger.register(&at(2), &registration(7, 1, RegisteredBy::Prolog)).unwrap();
        Brought::at(3, report(1, 0)).owned_by(second).append(&mut ledger);
        let cleared = ledger.clear(job(7), Some(0), &at(4), false, None).unwrap();
        assert_eq!((cleared.job_run, cleared.samples), (Some(first), 1));
        assert_eq!(ledger.open_runs(BOOT).unwrap()[0].id, second);
        assert_eq!(count(&ledger, &format!("sample WHERE job_run = {}", second.0)), 1);
        assert_eq!(ledger.find_runs(job(7)).unwrap()[1].life, Life::Ended(at(2).wall));
    }
}

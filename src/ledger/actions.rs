//! Actions: written down before they are done and again when their outcome is known. The record outlives job
//! run, Epilog and boot. Decides nothing, and calls nothing done that was not seen to be done.

use super::columns::Cells;
use super::jobs::{self, number};
use super::tally;
use super::words::known;
use super::{Ledger, LedgerError, boot_row_made};
use crate::model::*;
use crate::policy::reason::RunKey;
use crate::units::{BootMs, WallMs};
use rusqlite::{Connection, OptionalExtension, Row, Statement, Transaction};

/// An action that is about to begin.
#[derive(Clone, Debug)]
pub struct NewAction<'a> {
    /// What will be done.
    pub deed: Deed,
    /// The finding that asks for it.
    pub finding: Option<i64>,
    /// For whom.
    pub job: &'a JobRun,
    /// By which run.
    pub run: RunId,
    /// The finding's signature.
    pub signature: &'a str,
    /// What Slurm showed before, for people.
    pub seen_before: &'a str,
    /// The Reason that will be written: one line of printable ASCII.
    pub reason: Option<&'a str>,
}

/// A drain of ours that was not lifted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenDrain {
    /// The record; its outcome may be begun or unknown: then it is looked at first.
    pub action: ActionRecord,
    /// The job run it is for.
    pub job_run: JobRunId,
    /// Its id.
    pub job: JobId,
    /// Its restart count.
    pub restart: u32,
    /// Its start.
    pub start: WallMs,
    /// What its reason was rewritten to, oldest first: votes, and votes taken back, however they ended.
    pub rewritten: Vec<String>,
    /// The boot on which it was drained.
    pub boot_id: String,
    /// Whether that job run is still registered on the present boot.
    pub job_open: bool,
    /// The run that last saw it fit for release: two runs have to agree.
    pub release_seen: Option<RunId>,
}

/// An action of which it is not known how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsettled {
    /// The record.
    pub action: ActionRecord,
    /// For which job.
    pub job: JobId,
    /// Its restart count: a later one is another run.
    pub restart: u32,
}

impl OpenDrain {
    /// Whether the node shows this very drain: the reason is byte for byte one that we wrote for it.
    pub fn shows(&self, node: &NodeStatus) -> bool {
        self.action.reason.iter().chain(&self.rewritten).any(|reason| node.drained_as(reason))
    }
}

/// A job run's alerts, drains and cancels, oldest first; for [`of`].
pub(super) const OF_RUN: &str =
    "SELECT id, verdict, run, wall_ms, outcome, reason, signature, detail, boottime_ms, counted_again_run FROM action
     WHERE job_run = ?1 AND verdict <> 'release' ORDER BY id";

const HOUR_MS: i64 = 3_600_000;

impl Ledger {
    /// Writes down that an action begins, and gives its row. A drain, a cancel and a release are on the disk
    /// when this returns (the one place with `synchronous=FULL`); an alert touches nothing and need not be.
    ///
    /// Errors: any: then the action must not be done. `Refused` for a reason that is no single line.
    pub fn begin_action(&mut self, action: &NewAction, now: &Now) -> Result<i64, LedgerError> {
        let durable = action.deed != Deed::Alert;
        let node = self.node.as_str().to_owned();
        self.durably(durable, "write an action down", |tx| insert(tx, &node, action, now))
    }

    /// Writes down that a drain of ours is about to be lifted that this ledger does not know, and gives the row.
    pub fn begin_release(
        &mut self,
        key: RunKey,
        reason: &str,
        seen_before: &str,
        run: RunId,
        now: &Now,
    ) -> Result<i64, LedgerError> {
        let node = self.node.as_str().to_owned();
        self.durably(true, "write an action down", |tx| {
            let boot = boot_row_made(tx, &now.boot_id)?.id;
            let mut cells = Cells::new();
            cells
                .text(Deed::Release.word())
                .text(&node)
                .int(number(key.job))
                .int(i64::from(key.restart))
                .int(key.start_unix_s.saturating_mul(1000))
                .int(boot)
                .int(now.boot.0)
                .int(run.0)
                .int(now.wall.0)
                .text(seen_before)
                .text(reason)
                .text(Outcome::Begun.word());
            cells.query_row(&mut tx.prepare(
                "INSERT INTO action (verdict, node, job_id, restart, start_wall_ms, boot, boottime_ms, run, wall_ms,
                     seen_before, reason, outcome, job_run, signature, detail)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, '', '') RETURNING id",
            )?)
        })
    }

    /// Writes down how an action ended.
    pub fn end_action(
        &mut self,
        id: i64,
        outcome: Outcome,
        detail: &str,
        durable: bool,
    ) -> Result<(), LedgerError> {
        self.durably(durable, "write an action's outcome down", |tx| {
            let sql = "SELECT verdict, outcome FROM action WHERE id = ?1";
            let words: Option<(String, String)> =
                tx.query_row(sql, [id], |r| Ok((r.get(0)?, r.get(1)?))).optional()?;
            let kept =
                words.and_then(|(deed, was)| Some((Deed::from_word(&deed)?, Outcome::from_word(&was)?)));
            if let Some((deed, before)) = kept {
                tally::add_ended(tx, deed, before, outcome)?;
            }
            let sql = "UPDATE action SET outcome = ?2, detail = ?3 WHERE id = ?1";
            tx.execute(sql, (id, outcome.word(), detail)).map(|_| ())
        })
    }

    /// Alerts, drains and cancels recorded for a job run, oldest first.
    pub fn actions_of(&self, job: JobRunId) -> Result<Vec<ActionRecord>, LedgerError> {
        self.read("read actions", |conn| of(&mut conn.prepare(OF_RUN)?, job))
    }

    /// For how long at least an action has been begun, by no clock that steps: one of an earlier boot is older
    /// than this boot.
    pub fn action_age_ms(&self, id: i64, now: &Now) -> Result<i64, LedgerError> {
        self.read("read an action's age", |conn| {
            let boot = self.boot(&now.boot_id)?.map(|b| b.id);
            let sql =
                "SELECT CASE WHEN boot = ?2 THEN ?3 - boottime_ms ELSE ?3 END FROM action WHERE id = ?1";
            conn.query_row(sql, (id, boot, now.boot.0), |r| r.get(0))
        })
    }

    /// Our drains that were begun and not lifted, oldest first, of any boot.
    pub fn open_drains(&self, now: &Now) -> Result<Vec<OpenDrain>, LedgerError> {
        self.read("read our drains", |conn| {
            if none(conn)? {
                return Ok(Vec::new());
            }
            let boot = self.boot(&now.boot_id)?.map(|b| b.id);
            let mut found = conn.prepare(
                "SELECT a.id, a.verdict, a.run, a.wall_ms, a.outcome, a.reason, a.signature, a.detail,
                     a.boottime_ms, a.counted_again_run, a.job_run, a.job_id, a.restart, a.start_wall_ms, b.boot_id,
                     a.release_seen_run, j.id IS NOT NULL
                 FROM action a JOIN boot b ON b.id = a.boot LEFT JOIN job_run j
                     ON j.id = a.job_run AND j.boot = ?1 AND j.closed_how IS NULL
                 WHERE a.verdict = 'drain' AND a.outcome IN ('begun', 'done', 'unknown') ORDER BY a.id",
            )?;
            let mut drains: Vec<OpenDrain> =
                found.query_map([boot], open_drain)?.collect::<Result<_, _>>()?;
            let mut votes = conn.prepare(
                "SELECT reason FROM action WHERE verdict = 'vote' AND job_run = ?1 AND id > ?2
                 AND reason NOTNULL ORDER BY id",
            )?;
            for drain in &mut drains {
                let of_it = votes.query_map((drain.job_run.0, drain.action.id), |r| r.get(0))?;
                drain.rewritten = of_it.collect::<Result<_, _>>()?;
            }
            Ok(drains)
        })
    }

    /// Actions whose outcome is not known yet, oldest first: their run was killed, or Slurm did not answer. They are
    /// looked at, never repeated.
    pub fn unsettled_actions(&self) -> Result<Vec<Unsettled>, LedgerError> {
        self.read("read unsettled actions", |conn| {
            if none(conn)? {
                return Ok(Vec::new());
            }
            let mut found = conn.prepare(
                "SELECT id, verdict, run, wall_ms, outcome, reason, signature, detail, boottime_ms, counted_again_run,
                     job_id, restart
                 FROM action WHERE outcome IN ('begun', 'unknown') ORDER BY id",
            )?;
            let unsettled = |row: &Row| {
                let (job, restart) = (jobs::job_id(row.get(10)?)?, row.get(11)?);
                Ok(Unsettled { action: action_record(row)?, job, restart })
            };
            found.query_map([], unsettled)?.collect()
        })
    }

    /// Notes that this run saw a drain of ours fit for release, and gives the earlier run that did.
    pub fn note_release_seen(&mut self, id: i64, run: RunId) -> Result<Option<RunId>, LedgerError> {
        self.write("note that a drain can be released", |tx| {
            let sql = "SELECT release_seen_run FROM action WHERE id = ?1";
            let earlier: Option<Option<i64>> = tx.query_row(sql, [id], |r| r.get(0)).optional()?;
            tx.execute("UPDATE action SET release_seen_run = ?2 WHERE id = ?1", (id, run.0))?;
            Ok(earlier.flatten().filter(|earlier| *earlier < run.0).map(RunId))
        })
    }

    /// Forgets that a drain was seen fit for release: a look disagreed.
    pub fn clear_release_seen(&mut self, id: i64) -> Result<(), LedgerError> {
        self.write("note that a drain stays", |tx| {
            tx.execute("UPDATE action SET release_seen_run = NULL WHERE id = ?1", [id]).map(|_| ())
        })
    }

    /// Notes that this run counted the cluster's drains again after a drain of ours.
    pub fn note_counted_again(&mut self, id: i64, run: RunId) -> Result<(), LedgerError> {
        self.write("note that the cluster's drains were counted again", |tx| {
            tx.execute("UPDATE action SET counted_again_run = ?2 WHERE id = ?1", (id, run.0)).map(|_| ())
        })
    }

    /// Our drain is no longer there, or no longer ours: somebody else lifted or changed it.
    pub fn mark_lifted(&mut self, id: i64, detail: &str) -> Result<(), LedgerError> {
        self.end_action(id, Outcome::Lifted, detail, false)
    }

    /// Drains, for faults too, warnings, cancels and requeues of the last hour, however they ended. Those of an earlier
    /// boot go by the wall clock, and count if that clock has stepped back since.
    pub fn actions_in_last_hour(&self, now: &Now) -> Result<u32, LedgerError> {
        self.read("count actions", |conn| {
            let boot = self.boot(&now.boot_id)?.map(|b| b.id);
            conn.query_row(
                "SELECT count(*) FROM
                     (SELECT boot, boottime_ms, wall_ms FROM action
                          WHERE verdict IN ('drain', 'warn', 'cancel', 'requeue')
                      UNION ALL SELECT boot, boottime_ms, wall_ms FROM fault_drain)
                 WHERE CASE WHEN boot = ?1 THEN boottime_ms > ?2 ELSE wall_ms > ?3 END",
                (boot, now.boot.0 - HOUR_MS, now.wall.0 - HOUR_MS),
                |r| r.get(0),
            )
        })
    }

    /// A writing transaction that is on the disk when it returns, if `durable`.
    pub(super) fn durably<T>(
        &mut self,
        durable: bool,
        doing: &'static str,
        work: impl FnOnce(&Transaction) -> rusqlite::Result<T>,
    ) -> Result<T, LedgerError> {
        if !durable {
            return self.write(doing, work);
        }
        self.synchronous("FULL", doing)?;
        let done = self.write(doing, work);
        self.synchronous("OFF", doing)?;
        done
    }

    fn synchronous(&self, how: &str, doing: &'static str) -> Result<(), LedgerError> {
        self.read(doing, |conn| conn.pragma_update(None, "synchronous", how))
    }
}

fn insert(tx: &Transaction, node: &str, action: &NewAction, now: &Now) -> rusqlite::Result<i64> {
    let boot = boot_row_made(tx, &now.boot_id)?.id;
    let job = &action.job.registration;
    let mut cells = Cells::new();
    cells
        .int_if(action.finding)
        .text(action.deed.word())
        .text(node)
        .int(number(job.job))
        .int(i64::from(job.restart))
        .int(job.start.wall.0)
        .int(action.job.id.0)
        .int(boot)
        .int(now.boot.0)
        .int(action.run.0)
        .int(now.wall.0)
        .text(action.signature)
        .text(action.seen_before)
        .text_if(action.reason)
        .text(Outcome::Begun.word())
        .text("");
    cells.query_row(&mut tx.prepare(
        "INSERT INTO action (finding, verdict, node, job_id, restart, start_wall_ms, job_run, boot,
             boottime_ms, run, wall_ms, signature, seen_before, reason, outcome, detail)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
    )?)
}

/// Whether nothing was ever done here, as on most nodes: then no larger question about actions needs to be put.
pub(super) fn none(conn: &Connection) -> rusqlite::Result<bool> {
    Ok(!conn.prepare("SELECT 1 FROM action")?.exists([])?)
}

/// Reads with a statement of [`OF_RUN`].
pub(super) fn of(statement: &mut Statement, job: JobRunId) -> rusqlite::Result<Vec<ActionRecord>> {
    statement.query_map([job.0], action_record)?.collect()
}

fn action_record(row: &Row) -> rusqlite::Result<ActionRecord> {
    Ok(ActionRecord {
        id: row.get(0)?,
        deed: known(Deed::from_word(&row.get::<_, String>(1)?), "action.verdict")?,
        run: RunId(row.get(2)?),
        at: BootMs(row.get(8)?),
        wall: WallMs(row.get(3)?),
        outcome: known(Outcome::from_word(&row.get::<_, String>(4)?), "action.outcome")?,
        reason: row.get(5)?,
        signature: row.get(6)?,
        detail: row.get(7)?,
        counted_again: row.get::<_, Option<i64>>(9)?.map(RunId),
    })
}

fn open_drain(row: &Row) -> rusqlite::Result<OpenDrain> {
    Ok(OpenDrain {
        action: action_record(row)?,
        rewritten: Vec::new(),
        job_run: JobRunId(row.get(10)?),
        job: jobs::job_id(row.get(11)?)?,
        restart: row.get(12)?,
        start: WallMs(row.get(13)?),
        boot_id: row.get(14)?,
        release_seen: row.get::<_, Option<i64>>(15)?.map(RunId),
        job_open: row.get(16)?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::LedgerErrorKind;
    use super::super::testing::*;
    use super::*;

    fn drain<'a>(job: &'a JobRun, reason: Option<&'a str>) -> NewAction<'a> {
        NewAction {
            deed: Deed::Drain,
            finding: None,
            job,
            run: RunId(3),
            signature: "hung",
            seen_before: "State=ALLOCATED",
            reason,
        }
    }

    fn registered(ledger: &mut Ledger, id: u64) -> JobRun {
        ledger.register(&at(0), &registration(id, 0, RegisteredBy::Prolog)).unwrap();
        ledger.open_runs(BOOT).unwrap().pop().unwrap()
    }

    #[test]
    fn an_action_is_known_before_it_is_done_and_outlives_the_epilog_and_the_boot() {
        // docker/docs#670 (LG-04): whatever the journal drops, what was done and why stands here first.
        let (_dir, mut ledger) = fresh();
        let job = registered(&mut ledger, 4242);
        let reason = "gpu-reaper: job=4242 run=1764422738.0 sig=hung st=drain since=2026-11-29T13:25:38Z";
        let id = ledger.begin_action(&drain(&job, Some(reason)), &at(1)).unwrap();
        assert_eq!(ledger.actions_of(job.id).unwrap()[0].outcome, Outcome::Begun);
        assert_eq!(ledger.unsettled_actions().unwrap()[0].action.id, id);
        ledger.end_action(id, Outcome::Done, "exit 0", true).unwrap();
        assert!(ledger.unsettled_actions().unwrap().is_empty());
        assert!(ledger.open_drains(&at(2)).unwrap()[0].job_open);

        ledger.clear(job.registration.job, Some(0), &at(3), false, None).unwrap();
        let mut rebooted = at(4);
        rebooted.boot_id = "another".to_owned();
        let open = ledger.open_drains(&rebooted).unwrap();
        assert_eq!((open[0].job, open[0].restart, open[0].job_open), (job.registration.job, 0, false));
        assert_eq!(open[0].action.reason.as_deref(), Some(reason));
        assert_eq!(open[0].boot_id, BOOT);

        assert_eq!(ledger.note_release_seen(id, RunId(9)).unwrap(), None);
        assert_eq!(
            ledger.note_release_seen(id, RunId(9)).unwrap(),
            None,
            "one run does not agree with itself"
        );
        assert_eq!(ledger.note_release_seen(id, RunId(10)).unwrap(), Some(RunId(9)));
        ledger.clear_release_seen(id).unwrap();
        assert_eq!(ledger.note_release_seen(id, RunId(11)).unwrap(), None);
        ledger.mark_lifted(id, "released").unwrap();
        assert!(ledger.open_drains(&rebooted).unwrap().is_empty());
    }

    #[test]
    fn an_action_ages_by_the_boot_clock_whatever_the_wall_clock_does() {
        let (_dir, mut ledger) = fresh();
        let job = registered(&mut ledger, 1);
        let id = ledger.begin_action(&drain(&job, None), &at(1)).unwrap();
        let mut stepped = at(2);
        stepped.wall.0 += 3_600_000;
        assert_eq!(ledger.action_age_ms(id, &stepped).unwrap(), 60_000);
        let rebooted = Now { boot_id: "another".to_owned(), boot: BootMs(30_000), ..at(1) };
        assert_eq!(ledger.action_age_ms(id, &rebooted).unwrap(), 30_000);
    }

    #[test]
    fn a_reason_is_one_line_of_printable_ascii() {
        let (_dir, mut ledger) = fresh();
        let job = registered(&mut ledger, 1);
        for bad in ["", "two\nlines", "a\ttab", "\u{1b}[31m", "\u{fc}ber"] {
            let error = ledger.begin_action(&drain(&job, Some(bad)), &at(1)).unwrap_err();
            assert_eq!(error.kind, LedgerErrorKind::Refused, "{bad:?}");
        }
        assert!(ledger.actions_of(job.id).unwrap().is_empty());
    }

    #[test]
    fn the_last_hour_counts_drains_and_cancels_across_a_reboot_but_no_releases() {
        let (_dir, mut ledger) = fresh();
        let job = registered(&mut ledger, 1);
        let deeds = [Deed::Alert, Deed::Drain, Deed::Release, Deed::Cancel];
        for (minute, deed) in (1..).zip(deeds) {
            let action = NewAction { deed, ..drain(&job, None) };
            ledger.begin_action(&action, &at(minute * 10)).unwrap();
        }
        let count = |ledger: &Ledger, now: &Now| ledger.actions_in_last_hour(now).unwrap();
        assert_eq!(count(&ledger, &at(45)), 2);
        assert_eq!(count(&ledger, &at(85)), 1);
        assert_eq!(count(&ledger, &at(200)), 0);
        let mut rebooted = Now { boot_id: "another".to_owned(), boot: BootMs(5), wall: at(85).wall };
        assert_eq!(count(&ledger, &rebooted), 1);
        rebooted.wall = at(-1000).wall;
        assert_eq!(count(&ledger, &rebooted), 2, "a clock that stepped back frees no allowance");
        ledger.begin_fault_drain(1, ("idle", "for a fault"), RunId(1), &at(44)).unwrap();
        assert_eq!((count(&ledger, &at(45)), count(&ledger, &at(103))), (3, 1));
    }
}

//! Reads a node's ledger as it stands, beside the program that writes it. A ledger that is not there yet, or
//! is being written, holds nothing yet: whoever waits asks again.

use rusqlite::ErrorCode::{CannotOpen, DatabaseBusy, DatabaseLocked, ReadOnly};
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, Result, Row};
use std::path::PathBuf;
use std::time::Duration;

/// A path, opened anew for each question.
pub struct Ledger(PathBuf);

/// A row of `action`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// The run that did it.
    pub run: i64,
    /// `alert`, `drain` or `cancel`.
    pub verdict: String,
    /// `begun`, `done`, `failed`, `unknown` or `lifted`.
    pub outcome: String,
    /// The Reason written.
    pub reason: Option<String>,
}

/// A row of `withheld`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withheld {
    /// `drain` or `cancel`.
    pub verdict: String,
    /// Why it was not done.
    pub because: String,
    /// In so many runs.
    pub count: i64,
}

impl Ledger {
    /// The ledger in this file.
    pub fn at(path: PathBuf) -> Ledger {
        Ledger(path)
    }

    /// Nothing where there is no ledger yet or its writer is at work. A question that this schema does not know
    /// is a mistake of the test: "no row" must never stand for it.
    fn ask<T>(&self, sql: &str, each: impl FnMut(&Row) -> Result<T>) -> Vec<T> {
        self.try_ask(sql, each).unwrap_or_else(|e| match e.sqlite_error_code() {
            Some(CannotOpen | DatabaseBusy | DatabaseLocked | ReadOnly) => Vec::new(),
            _ => panic!("{}: {e}: {sql}", self.0.display()),
        })
    }

    fn try_ask<T>(&self, sql: &str, each: impl FnMut(&Row) -> Result<T>) -> Result<Vec<T>> {
        let db = Connection::open_with_flags(&self.0, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        db.busy_timeout(Duration::from_secs(2))?;
        if db.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0))? == 0 {
            return Ok(Vec::new());
        }
        db.prepare(sql)?.query_map([], each)?.collect()
    }

    fn count(&self, sql: &str) -> i64 {
        self.ask(sql, |row| row.get(0)).first().copied().unwrap_or(0)
    }

    /// Health-check runs so far.
    pub fn runs(&self) -> i64 {
        self.count("SELECT count(*) FROM run")
    }

    /// The newest run.
    pub fn last_run(&self) -> i64 {
        self.count("SELECT coalesce(max(id), 0) FROM run")
    }

    /// When the newest run sampled, on CLOCK_BOOTTIME.
    pub fn last_run_boot_ms(&self) -> i64 {
        self.count("SELECT coalesce(max(boottime_ms), 0) FROM run")
    }

    /// The open registration of a job, if it has one.
    pub fn registration(&self, job: u32) -> Option<i64> {
        let sql =
            format!("SELECT coalesce(max(id), 0) FROM job_run WHERE job_id = {job} AND closed_how IS NULL");
        Some(self.count(&sql)).filter(|id| *id > 0)
    }

    /// Samples that the policy would read for a registration.
    pub fn samples_of(&self, registration: i64) -> i64 {
        self.count(&format!("SELECT count(*) FROM sample WHERE job_run = {registration}"))
    }

    /// The registration to which the newest reading of a process on a GPU gives it; `None`: to none.
    pub fn registration_of_process(&self, pid: u32) -> Option<i64> {
        let sql =
            "SELECT coalesce(job_run, 0), processes FROM sample WHERE processes <> '' ORDER BY run DESC";
        let samples: Vec<(i64, String)> = self.ask(sql, |row| Ok((row.get(0)?, row.get(1)?)));
        let named = |(owner, processes): &(i64, String)| {
            let mut each = processes.split(", ").map(|one| one.split(' ').collect::<Vec<_>>());
            let ours = each.find(|words| words[0] == pid.to_string())?;
            // A fifth word is the registration where it is not the unit's; `-` is none.
            Some(ours.get(4).map_or(*owner, |other| other.parse().unwrap_or(0)))
        };
        samples.iter().find_map(named).filter(|id| *id > 0)
    }

    /// Findings about a job so far, whatever became of them.
    pub fn findings(&self, job: u32) -> i64 {
        self.count(&format!("SELECT count(*) FROM finding WHERE job_id = {job}"))
    }

    /// Runs that measured a registration's CPU time, and whether its processes are frozen.
    pub fn looks_beside(&self, registration: i64) -> i64 {
        let measured = "cpu_ms IS NOT NULL AND frozen IS NOT NULL";
        self.count(&format!("SELECT count(*) FROM job_sample WHERE job_run = {registration} AND {measured}"))
    }

    /// Case files of a job.
    pub fn case_files(&self, job: u32) -> i64 {
        self.count(&format!("SELECT count(*) FROM case_file WHERE job_id = {job}"))
    }

    /// What was done for a job, oldest first.
    pub fn actions(&self, job: u32) -> Vec<Action> {
        let sql =
            format!("SELECT run, verdict, outcome, reason FROM action WHERE job_id = {job} ORDER BY id");
        let action = |row: &Row| {
            let (run, verdict) = (row.get(0)?, row.get(1)?);
            Ok(Action { run, verdict, outcome: row.get(2)?, reason: row.get(3)? })
        };
        self.ask(&sql, action)
    }

    /// The action of this kind that was seen to be done.
    pub fn done(&self, job: u32, verdict: &str) -> Option<Action> {
        self.actions(job).into_iter().find(|a| a.verdict == verdict && a.outcome == "done")
    }

    /// What was due for a job and not done.
    pub fn withheld(&self, job: u32) -> Vec<Withheld> {
        let sql = format!(
            "SELECT verdict, because, count FROM withheld
             WHERE job_run IN (SELECT id FROM job_run WHERE job_id = {job}) ORDER BY first_run"
        );
        let withheld = |row: &Row| {
            let (verdict, because, count) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(Withheld { verdict, because, count })
        };
        self.ask(&sql, withheld)
    }

    /// What was told about a kind of fault, a row for each time.
    pub fn faults(&self, kind: &str) -> Vec<String> {
        self.ask(&format!("SELECT detail FROM fault WHERE kind = '{kind}'"), |row| row.get(0))
    }

    /// The first column of whatever is asked for.
    pub fn rows(&self, sql: &str) -> Vec<String> {
        self.ask(sql, |row| row.get(0))
    }

    /// The newest rows of each table, for a failed test.
    pub fn summary(&self) -> String {
        let mut out = String::new();
        for table in ["run", "job_run", "finding", "action", "withheld", "case_file"] {
            let rows = self.try_ask(&format!("SELECT * FROM {table} ORDER BY 1 DESC LIMIT 8"), cells);
            for row in rows.unwrap_or_else(|e| vec![e.to_string()]).iter().rev() {
                out += &format!("{table}: {}\n", row.chars().take(400).collect::<String>());
            }
        }
        out
    }
}

/// `name=value` for all that is not NULL.
fn cells(row: &Row) -> Result<String> {
    let mut out = Vec::new();
    for name in row.as_ref().column_names() {
        match row.get::<_, Value>(name)? {
            Value::Null => {}
            Value::Integer(i) => out.push(format!("{name}={i}")),
            Value::Text(t) => out.push(format!("{name}={}", t.escape_debug())),
            other => out.push(format!("{name}={other:?}")),
        }
    }
    Ok(out.join(" "))
}

//! Xids of the kernel's log, kept beside the job run that they are about: rows of `fault`, of a kind that nobody acts
//! on. One row for each number, GPU and process of a job run, the first time it is told.

use super::faults::{COLUMNS, fault};
use super::{FaultRow, Ledger, LedgerError};
use crate::model::{JobRunId, Now, RunId};

/// The kind of these rows.
const KIND: &str = "job-xid";
/// A job run keeps so many: a process that is restarted for ever would fill the table.
const MOST: usize = 16;

/// The row's subject: the job run, and what tells the Xid from its others.
fn subject(job: JobRunId, what: &str) -> String {
    format!("{} {what}", job.0)
}

impl FaultRow {
    /// The job run of an Xid; `None` for a fault of another kind.
    pub fn xid_of(&self) -> Option<JobRunId> {
        let (job, _) = self.subject.split_once(' ').filter(|_| self.kind == KIND)?;
        job.parse().ok().map(JobRunId)
    }
}

impl Ledger {
    /// Keeps an Xid of a job run; `false` if it was kept before, or if there are too many. `what`: number, GPU and
    /// process; `detail`: in words.
    pub fn keep_xid(
        &mut self,
        job: JobRunId,
        what: &str,
        detail: &str,
        run: RunId,
        now: &Now,
    ) -> Result<bool, LedgerError> {
        let subject = subject(job, what);
        let kept = self.xids_of(job)?;
        if kept.len() >= MOST || kept.iter().any(|row| row.subject == subject) {
            return Ok(false);
        }
        self.fault_seen(KIND, &subject, detail, run, now)
    }

    /// The Xids of a job run, oldest first, also after its end.
    pub fn xids_of(&self, job: JobRunId) -> Result<Vec<FaultRow>, LedgerError> {
        self.read("read Xids", |conn| {
            let sql = format!("SELECT {COLUMNS} FROM fault WHERE kind = ?1 AND subject GLOB ?2 ORDER BY id");
            conn.prepare(&sql)?.query_map((KIND, subject(job, "*")), fault)?.collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    #[test]
    fn an_xid_is_kept_once_with_its_job_run_and_outlives_it() {
        let (_dir, mut ledger) = fresh();
        let mut keep =
            |job: i64, what: &str| ledger.keep_xid(JobRunId(job), what, "Xid 31", RunId(1), &at(1)).unwrap();
        assert!(keep(7, "31 0000:9b:00.0 1234"));
        assert!(!keep(7, "31 0000:9b:00.0 1234"), "the same");
        assert!(keep(7, "31 0000:9b:00.0 1235") && keep(70, "31 0000:9b:00.0 1234"));
        assert!((0..40).filter(|pid| keep(7, &format!("13 0000:9b:00.0 {pid}"))).count() == MOST - 2);
        ledger.fault_seen("gpu-missing", "7 x", "no Xid", RunId(1), &at(1)).unwrap();
        let of = |ledger: &Ledger, job| ledger.xids_of(JobRunId(job)).unwrap();
        assert_eq!((of(&ledger, 7).len(), of(&ledger, 70).len(), of(&ledger, 1).len()), (MOST, 1, 0));
        let jobs: Vec<_> = ledger.open_faults().unwrap().iter().map(FaultRow::xid_of).collect();
        assert_eq!(jobs[..3], [7, 7, 70].map(|job| Some(JobRunId(job))));
        assert_eq!(jobs.last(), Some(&None));
        let row = of(&ledger, 70).remove(0);
        ledger.fault_gone(row.id, &at(2)).unwrap();
        assert_eq!(of(&ledger, 70), [row]);
        assert!(!ledger.keep_xid(JobRunId(70), "31 0000:9b:00.0 1234", "", RunId(3), &at(3)).unwrap());
    }
}

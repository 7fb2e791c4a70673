//! What is known of a job run, one reading a row: its registration's readings, its GPUs, and what Slurm said
//! under names that begin with `slurm.`. Writer and reader of each stand side by side. A reading without a row
//! is not recorded.

use super::columns::{Cells, Sink, small};
use super::words::{known, state_from, state_word};
use crate::model::{GpuClaim, JobDetails, JobRunId, NearDeed, Registration};
use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use crate::units::{GresIndex, UnitUuid, WallMs};
use rusqlite::types::Value;
use rusqlite::{Statement, Transaction};
use std::collections::BTreeMap;

/// What names of GPU claims begin with; a number follows.
const GPU: &str = "gpu.";

/// Every fact of a job run, for [`Facts::read`].
pub(super) const FACTS: &str = "SELECT name, value, absent FROM job_fact WHERE job_run = ?1";

/// Writes the readings of a registration.
pub(super) fn register(tx: &Transaction, run: JobRunId, job: &Registration) -> rusqlite::Result<()> {
    let mut write = writer(tx)?;
    let mut facts = Writer { run, write: &mut write };
    facts.text("cluster", &job.cluster)?;
    facts.text("sluid", &job.sluid)?;
    facts.text("user", &job.user)?;
    facts.number("uid", &job.uid, |n| i64::from(*n))?;
    facts.text("account", &job.account)?;
    facts.text("partition", &job.partition)?;
    facts.text("qos", &job.qos)?;
    facts.number("nodes", &job.nodes, |n| i64::from(*n))?;
    facts.text("node_list", &job.node_list)?;
    facts.number("limit_end_wall_ms", &job.limit_end, |w| w.0)?;
    for (position, gpu) in job.gpus.iter().enumerate() {
        // Three digits, so that they come back in their order.
        let name = format!("{GPU}{position:03}");
        match gpu {
            GpuClaim::Index(index) => facts.number(&name, &Measured(index), |i| i64::from(i.0))?,
            GpuClaim::Uuid(uuid) => facts.text(&name, &Measured(uuid.as_str().to_owned()))?,
        }
    }
    Ok(())
}

/// Reads them into a registration that has none yet.
pub(super) fn fill(job: &mut Registration, facts: &mut Facts) -> rusqlite::Result<()> {
    job.cluster = facts.text("cluster");
    job.sluid = facts.text("sluid");
    job.user = facts.text("user");
    job.uid = facts.number("uid", small);
    job.account = facts.text("account");
    job.partition = facts.text("partition");
    job.qos = facts.text("qos");
    job.nodes = facts.number("nodes", small);
    job.node_list = facts.text("node_list");
    job.limit_end = facts.number("limit_end_wall_ms", |n| Some(WallMs(n)));
    let claims = facts.0.range(GPU.to_owned()..).take_while(|(name, _)| name.starts_with(GPU));
    job.gpus = claims.map(|(_, claim)| gpu(claim)).collect::<rusqlite::Result<_>>()?;
    Ok(())
}

/// A GRES index or a UUID, told apart by what they are.
fn gpu(claim: &Reading<Value>) -> rusqlite::Result<GpuClaim> {
    let claim = match claim {
        Measured(Value::Integer(index)) => small(*index).map(|i| GpuClaim::Index(GresIndex(i))),
        Measured(Value::Text(uuid)) => UnitUuid::new(uuid).ok().map(GpuClaim::Uuid),
        _ => None,
    };
    known(claim, "job_fact.gpu")
}

/// Writes what Slurm said, over what it said before.
pub(super) fn keep_details(tx: &Transaction, run: JobRunId, details: &JobDetails) -> rusqlite::Result<()> {
    let mut write = writer(tx)?;
    let mut facts = Writer { run, write: &mut write };
    facts.text("slurm.state", &Measured(state_word(details.state).to_owned()))?;
    facts.number("slurm.start_unix_s", &Measured(details.start_unix_s), |s| *s)?;
    facts.number("slurm.restart", &details.restart, |n| i64::from(*n))?;
    facts.text("slurm.display_id", &Measured(details.display_id.clone()))?;
    facts.text("slurm.name", &details.name)?;
    facts.text("slurm.user", &details.user)?;
    facts.text("slurm.account", &details.account)?;
    facts.text("slurm.partition", &details.partition)?;
    facts.text("slurm.qos", &details.qos)?;
    facts.number("slurm.nodes", &details.nodes, |n| i64::from(*n))?;
    facts.text("slurm.node_list", &details.node_list)?;
    facts.number("slurm.shares", &details.shares, |shares| i64::from(*shares))?;
    let near = &details.near;
    facts.text("slurm.sluid", &near.sluid)?;
    facts.number("slurm.suspended_unix_s", &near.suspended_unix_s, |s| *s)?;
    facts.text("slurm.admin_comment", &near.admin_comment)?;
    facts.text("slurm.comment", &near.comment)?;
    facts.number("slurm.batch", &near.batch, |batch| i64::from(*batch))?;
    facts.number("slurm.requeue", &near.requeue, |requeue| i64::from(*requeue))
}

/// Reads it back; `None` if Slurm was never asked.
pub(super) fn details(facts: &mut Facts) -> rusqlite::Result<Option<JobDetails>> {
    let Measured(display_id) = facts.text("slurm.display_id") else {
        return Ok(None);
    };
    let state = facts.text("slurm.state");
    let start = facts.number("slurm.start_unix_s", Some);
    Ok(Some(JobDetails {
        state: known(state.measured().and_then(|word| state_from(word)), "job_fact.slurm.state")?,
        start_unix_s: known(start.measured().copied(), "job_fact.slurm.start_unix_s")?,
        restart: facts.number("slurm.restart", small),
        display_id,
        name: facts.text("slurm.name"),
        user: facts.text("slurm.user"),
        account: facts.text("slurm.account"),
        partition: facts.text("slurm.partition"),
        qos: facts.text("slurm.qos"),
        nodes: facts.number("slurm.nodes", small),
        node_list: facts.text("slurm.node_list"),
        shares: facts.number("slurm.shares", |n| Some(n == 1)),
        near: NearDeed {
            sluid: facts.text("slurm.sluid"),
            suspended_unix_s: facts.number("slurm.suspended_unix_s", Some),
            admin_comment: facts.text("slurm.admin_comment"),
            comment: facts.text("slurm.comment"),
            batch: facts.number("slurm.batch", |n| Some(n == 1)),
            requeue: facts.number("slurm.requeue", |n| Some(n == 1)),
        },
    }))
}

fn writer<'t>(tx: &'t Transaction) -> rusqlite::Result<Statement<'t>> {
    tx.prepare("INSERT OR REPLACE INTO job_fact (job_run, name, value, absent) VALUES (?, ?, ?, ?)")
}

struct Writer<'w, 't> {
    run: JobRunId,
    write: &'w mut Statement<'t>,
}

impl Writer<'_, '_> {
    fn text(&mut self, name: &str, reading: &Reading<String>) -> rusqlite::Result<()> {
        let mut cells = Cells::new();
        cells.int(self.run.0).text(name).text_pair(reading);
        cells.execute(self.write).map(|_| ())
    }

    fn number<T>(
        &mut self,
        name: &str,
        reading: &Reading<T>,
        column: impl Fn(&T) -> i64,
    ) -> rusqlite::Result<()> {
        let mut cells = Cells::new();
        cells.int(self.run.0).text(name).pair(reading, |value| Some(column(value)));
        cells.execute(self.write).map(|_| ())
    }
}

/// The facts of one job run by name.
pub(super) struct Facts(BTreeMap<String, Reading<Value>>);

impl Facts {
    /// Reads with a statement of [`FACTS`].
    pub(super) fn read(statement: &mut Statement, run: JobRunId) -> rusqlite::Result<Facts> {
        let mut facts = BTreeMap::new();
        let mut rows = statement.query([run.0])?;
        while let Some(row) = rows.next()? {
            let reading = match (row.get(1)?, row.get::<_, Option<i64>>(2)?) {
                (Value::Null, Some(code)) => Absent(Absence::from_code(code)),
                (Value::Null, None) | (_, Some(_)) => Absent(Absence::Implausible),
                (value, None) => Measured(value),
            };
            facts.insert(row.get(0)?, reading);
        }
        Ok(Facts(facts))
    }

    fn take(&mut self, name: &str) -> Reading<Value> {
        self.0.remove(name).unwrap_or(Absent(Absence::NotRecorded))
    }

    fn text(&mut self, name: &str) -> Reading<String> {
        self.take(name).and_then(|value| match value {
            Value::Text(text) => Measured(text),
            _ => Absent(Absence::Implausible),
        })
    }

    fn number<T>(&mut self, name: &str, value: impl Fn(i64) -> Option<T>) -> Reading<T> {
        self.take(name).and_then(|found| match found {
            Value::Integer(n) => value(n).map_or(Absent(Absence::Implausible), Measured),
            _ => Absent(Absence::Implausible),
        })
    }
}

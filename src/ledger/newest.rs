//! The newest looks at this node's GPUs, whoever held them: for people who ask how it stands. Reads a few runs, which are
//! never packed, and judges nothing.

use super::columns::Cursor;
use super::sample;
use super::words::known;
use super::{Boot, Ledger, LedgerError};
use crate::model::{JobRunId, Observation, RunId};
use crate::reading::Absence;
use crate::units::{BootMs, UnitUuid, WallMs};
use rusqlite::{Connection, OptionalExtension, Row};
use std::collections::BTreeMap;

/// One run's look at the GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewestLook {
    /// The run.
    pub run: RunId,
    /// When it sampled.
    pub at: BootMs,
    /// The same, for showing.
    pub wall: WallMs,
    /// Why the whole look failed, if it did; then there are no units.
    pub failed: Option<Absence>,
    /// What it saw of each unit.
    pub units: BTreeMap<UnitUuid, SeenUnit>,
}

/// What one run saw of one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenUnit {
    /// The job run that it was attributed to; none: nobody's, or of uncertain owner.
    pub owner: Option<JobRunId>,
    /// The readings.
    pub seen: Observation,
    /// Its compute processes by number.
    pub pids: Vec<u32>,
}

impl Ledger {
    /// The newest looks of this boot, newest first.
    pub fn newest_looks(&self, boot_id: &str, most: usize) -> Result<Vec<NewestLook>, LedgerError> {
        self.read("read the newest looks", |conn| {
            let Some(Boot { id: boot, first_run: Some(first) }) = self.boot(boot_id)? else {
                return Ok(Vec::new());
            };
            let uuids = uuids(conn)?;
            let mut runs = conn.prepare(
                "SELECT id, boottime_ms, wall_ms, gpus_absent FROM run
                 WHERE id >= ?1 AND boot = ?2 ORDER BY id DESC LIMIT ?3",
            )?;
            let mut samples = conn.prepare("SELECT * FROM sample WHERE run = ?1")?;
            let mut looks = Vec::new();
            let mut rows = runs.query((first, boot, most as i64))?;
            while let Some(row) = rows.next()? {
                let run: i64 = row.get(0)?;
                let mut units = BTreeMap::new();
                let mut seen = samples.query([run])?;
                while let Some(sample) = seen.next()? {
                    if let Some(uuid) = uuids.get(&sample.get(1)?) {
                        units.insert(uuid.clone(), seen_unit(sample)?);
                    }
                }
                looks.push(NewestLook {
                    run: RunId(run),
                    at: BootMs(row.get(1)?),
                    wall: WallMs(row.get(2)?),
                    failed: row.get::<_, Option<i64>>(3)?.map(Absence::from_code),
                    units,
                });
            }
            Ok(looks)
        })
    }

    /// When the newest run of any boot was, by the wall clock of then.
    pub fn newest_run_wall(&self) -> Result<Option<WallMs>, LedgerError> {
        self.read("look for the newest run", |conn| {
            let sql = "SELECT wall_ms FROM run ORDER BY id DESC LIMIT 1";
            conn.query_row(sql, [], |r| r.get(0).map(WallMs)).optional()
        })
    }
}

fn uuids(conn: &Connection) -> rusqlite::Result<BTreeMap<i64, UnitUuid>> {
    let row = |r: &Row| {
        let uuid = known(UnitUuid::new(&r.get::<_, String>(1)?).ok(), "unit.uuid")?;
        Ok((r.get(0)?, uuid))
    };
    conn.prepare("SELECT id, uuid FROM unit")?.query_map([], row)?.collect()
}

fn seen_unit(row: &Row) -> rusqlite::Result<SeenUnit> {
    Ok(SeenUnit {
        owner: row.get::<_, Option<i64>>(2)?.map(JobRunId),
        seen: sample::observation(&mut Cursor::from(row, sample::FIRST_READING))?,
        pids: sample::compute_pids(row.get_ref("processes")?.as_str()?),
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crate::model::RegisteredBy;
    use crate::reading::Reading::Absent;

    #[test]
    fn the_newest_looks_say_who_held_what_and_which_failed() {
        let (_dir, mut ledger) = fresh();
        assert_eq!(ledger.newest_run_wall().unwrap(), None);
        let job = ledger.register(&at(0), &registration(1, 0, RegisteredBy::Prolog)).unwrap();
        for minute in 1..=2 {
            let mut brought = Brought::at(minute, report(2, minute as u32));
            brought.owners.insert(uuid(0), job);
            brought.append(&mut ledger);
        }
        let brought = Brought::at(3, report(2, 0));
        let mut failed = brought.run();
        failed.gpus = Absent(Absence::WorkerStuck);
        ledger.append(&failed).unwrap();
        let looks = ledger.newest_looks(BOOT, 2).unwrap();
        assert_eq!(looks.iter().map(|l| l.at).collect::<Vec<_>>(), [at(3).boot, at(2).boot]);
        assert_eq!((looks[0].failed, looks[0].units.len()), (Some(Absence::WorkerStuck), 0));
        let units = &looks[1].units;
        assert_eq!((looks[1].failed, units[&uuid(0)].owner, units[&uuid(1)].owner), (None, Some(job), None));
        assert_eq!(units[&uuid(1)].pids, [1001]);
        assert_eq!(units[&uuid(1)].seen.sm_util.measured().map(|p| p.get()), Some(2));
        assert_eq!(ledger.newest_looks("another", 2).unwrap(), []);
        assert_eq!(ledger.newest_run_wall().unwrap(), Some(at(3).wall));
    }
}

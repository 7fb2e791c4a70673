//! The run before a run, whoever held the units then: what a card drew between two looks can be learnt while no job
//! holds it. Reads one run and no further back.

use super::columns::Cursor;
use super::learnt::Known;
use super::sample;
use super::{Boot, Ledger, LedgerError};
use crate::model::{JobRunId, Observation, RunId};
use crate::reading::Absence;
use crate::reading::Reading;
use crate::units::{BootMs, UnitUuid};
use rusqlite::{Connection, OptionalExtension};

/// Units, and the job run that each was attributed to; none for one of nobody, or of uncertain owner.
pub type Owners = Vec<(UnitUuid, Option<JobRunId>)>;

/// What the newest run before another saw of some units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Earlier {
    /// Which run.
    pub run: RunId,
    /// When it sampled.
    pub at: BootMs,
    /// The driver's version then.
    pub driver: Reading<String>,
    /// One per unit, in the order asked. A unit without a row in that run is absent as not recorded; where the whole
    /// look at the GPUs failed, each is absent for that reason.
    pub units: Vec<Observation>,
}

impl Ledger {
    /// What the newest run of this boot before `run` saw of these units; `None` where there is none.
    pub fn before(
        &self,
        boot_id: &str,
        run: RunId,
        units: &[UnitUuid],
    ) -> Result<Option<Earlier>, LedgerError> {
        self.read("read the run before", |conn| {
            let Some(Boot { id: boot, first_run: Some(first) }) = self.boot(boot_id)? else {
                return Ok(None);
            };
            let sql = "SELECT id, boottime_ms, driver, driver_absent, gpus_absent FROM run
                       WHERE id < ?1 AND id >= ?2 AND boot = ?3 ORDER BY id DESC LIMIT 1";
            let found = conn
                .query_row(sql, [run.0, first, boot], |row| {
                    let c = &mut Cursor::from(row, 0);
                    let (run, at, driver) = (RunId(c.get()?), BootMs(c.get()?), c.text_pair()?);
                    Ok((Earlier { run, at, driver, units: Vec::new() }, c.get::<Option<i64>>()?))
                })
                .optional()?;
            let Some((mut earlier, failed)) = found else {
                return Ok(None);
            };
            earlier.units = match failed {
                Some(why) => vec![Observation::absent(Absence::from_code(why)); units.len()],
                None => observations(conn, earlier.run, units)?,
            };
            Ok(Some(earlier))
        })
    }
}

impl Ledger {
    /// When the newest run of this boot was, and whose it took each unit to be that it saw; nothing where it saw none.
    pub fn last_owners(&self, boot_id: &str) -> Result<Option<(BootMs, Owners)>, LedgerError> {
        self.read("read whose the units were", |conn| {
            let Some(Boot { id: boot, .. }) = self.boot(boot_id)? else { return Ok(None) };
            let newest = "SELECT id, boottime_ms FROM run WHERE boot = ?1 ORDER BY id DESC LIMIT 1";
            let newest =
                conn.query_row(newest, [boot], |row| Ok((row.get::<_, i64>(0)?, BootMs(row.get(1)?))));
            let Some((run, at)) = newest.optional()? else { return Ok(None) };
            let owners =
                "SELECT u.uuid, s.job_run FROM sample s JOIN unit u ON u.id = s.unit WHERE s.run = ?1";
            let owner = |row: &rusqlite::Row| {
                let uuid: String = row.get(0)?;
                Ok((UnitUuid::new(&uuid).ok(), row.get::<_, Option<i64>>(1)?.map(JobRunId)))
            };
            let rows: Vec<_> = conn.prepare(owners)?.query_map([run], owner)?.collect::<Result<_, _>>()?;
            Ok(Some((at, rows.into_iter().filter_map(|(uuid, owner)| Some((uuid?, owner))).collect())))
        })
    }
}

fn observations(conn: &Connection, run: RunId, units: &[UnitUuid]) -> rusqlite::Result<Vec<Observation>> {
    let mut row = Known::statement(conn)?;
    let mut sample = conn.prepare("SELECT * FROM sample WHERE run = ?1 AND unit = ?2")?;
    let mut one = |uuid: &UnitUuid| {
        let unrecorded = || Observation::absent(Absence::NotRecorded);
        let Some(Known { id, .. }) = Known::of(&mut row, uuid)? else {
            return Ok(unrecorded());
        };
        let read = |r: &rusqlite::Row| sample::observation(&mut Cursor::from(r, sample::FIRST_READING));
        Ok(sample.query_row([run.0, id], read).optional()?.unwrap_or_else(unrecorded))
    };
    units.iter().map(&mut one).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crate::reading::Reading::{Absent, Measured};

    #[test]
    fn the_run_before_is_this_boots_newest_and_says_what_it_saw_of_free_units_too() {
        let (_dir, mut ledger) = fresh();
        let units = [uuid(1), uuid(7), uuid(0)];
        let first = Brought::at(1, report(2, 0)).append(&mut ledger);
        assert_eq!(ledger.before(BOOT, first, &units).unwrap(), None);
        let second = Brought::at(2, report(2, 5)).append(&mut ledger);
        let third = Brought::at(3, report(2, 9)).append(&mut ledger);
        let earlier = ledger.before(BOOT, third, &units).unwrap().unwrap();
        assert_eq!((earlier.run, earlier.at), (second, at(2).boot));
        assert_eq!(earlier.driver, report(0, 0).driver);
        assert_eq!(earlier.units[0].sm_util.measured().map(|p| p.get()), Some(5));
        assert_eq!(earlier.units[0].energy, unit(1, 0).readings.energy);
        assert_eq!(earlier.units[1], Observation::absent(Absence::NotRecorded));
        assert_eq!(earlier.units[2].energy, unit(0, 0).readings.energy);
        assert_eq!(ledger.before("another", third, &units).unwrap(), None);
    }

    #[test]
    fn a_failed_look_says_why_and_no_older_one_speaks_for_it() {
        let (_dir, mut ledger) = fresh();
        let brought = Brought::at(1, report(1, 0));
        brought.append(&mut ledger);
        let mut failed = brought.run();
        failed.gpus = Absent(Absence::WorkerStuck);
        ledger.append(&failed).unwrap();
        let now = Brought::at(3, report(1, 0)).append(&mut ledger);
        let earlier = ledger.before(BOOT, now, &[uuid(0)]).unwrap().unwrap();
        assert_eq!(earlier.units, [Observation::absent(Absence::WorkerStuck)]);
        assert!(matches!(earlier.driver, Absent(_)));
        assert!(matches!(ledger.before(BOOT, RunId(2), &[]).unwrap().unwrap().driver, Measured(_)));
    }
}

//! Samples that are no longer the newest: those of one job run in one run, packed into one row of `past`. They were
//! checked when they came; reading them back packed costs a sixth of what rows of two columns a reading do, and a job
//! that hangs has its whole history read in every run. Loses nothing that a rule can see: only the text of the
//! processes is for people, and goes.

use super::columns::{Cursor, Sink, Source};
use super::sample;
use crate::model::{Fields, JobRunId, Observation, ProcessCount, RunId};
use crate::reading::Reading::{self, Absent, Measured};
use crate::reading::packed::{self, Unpack};
use rusqlite::{Connection, OptionalExtension, Statement, Transaction};
use std::collections::BTreeSet;

/// At least so many runs stay rows, for people and for whoever wants the run before.
const NEWEST: i64 = 16;
/// The most runs that are packed in one run: a ledger of an earlier version holds thousands.
const MOST_RUNS: i64 = 1024;
/// So many at once, then their rows go: a file at its ceiling has no room for more.
const AT_ONCE: i64 = 64;

/// Packs what has become old since it was last done.
pub(super) fn pack(tx: &Transaction, newest: RunId) -> rusqlite::Result<()> {
    let oldest = "SELECT min(run) FROM sample WHERE run > ?1 AND job_run NOTNULL";
    let done = tx.query_row("SELECT max(run) FROM past", [], |r| r.get::<_, Option<i64>>(0))?;
    let Some(mut from) = tx.query_row(oldest, [done.unwrap_or(0)], |r| r.get::<_, Option<i64>>(0))? else {
        return Ok(());
    };
    let to = (newest.0 - NEWEST).min(from + MOST_RUNS);
    while from < to {
        let next = to.min(from + AT_ONCE);
        pack_some(tx, from, next)?;
        from = next;
    }
    Ok(())
}

fn pack_some(tx: &Transaction, from: i64, to: i64) -> rusqlite::Result<()> {
    let owned = "run >= ?1 AND run < ?2 AND job_run NOTNULL";
    let mut samples =
        tx.prepare(&format!("SELECT * FROM sample WHERE {owned} ORDER BY run, job_run, unit"))?;
    let mut insert = tx.prepare("INSERT INTO past VALUES (?1, ?2, ?3, ?4)")?;
    let mut rows = samples.query([from, to])?;
    let mut packing: Option<Packing> = None;
    while let Some(row) = rows.next()? {
        let of = (row.get(0)?, row.get(2)?);
        if let Some(done) = packing.take_if(|packing| packing.of != of) {
            done.insert(&mut insert)?;
        }
        let seen = sample::observation(&mut Cursor::from(row, sample::FIRST_READING))?;
        packing.get_or_insert_with(|| Packing { of, units: 0, bytes: Vec::new() }).add(row.get(1)?, &seen);
    }
    if let Some(last) = packing {
        last.insert(&mut insert)?;
    }
    tx.execute(&format!("DELETE FROM sample WHERE {owned}"), [from, to]).map(|_| ())
}

/// One row of `past` as it grows.
struct Packing {
    /// Run and job run.
    of: (i64, i64),
    units: i64,
    bytes: Vec<u8>,
}

impl Packing {
    /// The unit's row, then the length and bytes of its main readings and of its fields.
    fn add(&mut self, unit: i64, seen: &Observation) {
        let mut numbers = Numbers(Vec::new());
        sample::numbers(&mut numbers, seen, |count: &ProcessCount| {
            Some([i64::from(count.compute), i64::from(count.graphics)])
        });
        packed::push(&mut self.bytes, unit.cast_unsigned());
        for part in [packed::pack(&numbers.0), seen.fields.pack()] {
            packed::push(&mut self.bytes, part.len() as u64);
            self.bytes.extend(part);
        }
        self.units += 1;
    }

    fn insert(self, statement: &mut Statement) -> rusqlite::Result<()> {
        let (run, job_run) = self.of;
        statement.execute((run, job_run, self.units, self.bytes)).map(|_| ())
    }
}

struct Numbers(Vec<Reading<u64>>);

impl Sink for Numbers {
    fn numbers<const N: usize>(&mut self, numbers: Reading<[i64; N]>) {
        match numbers {
            // The sign last: -1 is 1, and few numbers are below 0.
            Measured(all) => self.0.extend(all.map(|n| Measured(((n << 1) ^ (n >> 63)).cast_unsigned()))),
            Absent(why) => self.0.extend([Absent(why); N]),
        }
    }
}

impl Source for Unpack<'_> {
    fn numbers<const N: usize>(&mut self) -> rusqlite::Result<Reading<[i64; N]>> {
        let mut numbers = [0; N];
        let mut why = None;
        for slot in &mut numbers {
            match self.take() {
                Measured(n) => *slot = (n >> 1).cast_signed() ^ -((n & 1).cast_signed()),
                Absent(reason) => why = Some(reason),
            }
        }
        Ok(why.map_or(Measured(numbers), Absent))
    }
}

/// The units of a packed row, one after the other. Ends where the bytes make no sense: what is behind was not
/// recorded then.
pub(super) struct Units<'b>(&'b [u8]);

impl Iterator for Units<'_> {
    type Item = (i64, Observation);

    fn next(&mut self) -> Option<(i64, Observation)> {
        let unit = packed::pull(&mut self.0)?.cast_signed();
        let main = self.part()?;
        let fields = self.part()?;
        let seen = sample::main(&mut Unpack::new(main)).ok()?;
        Some((unit, Observation { fields: Fields::packed(fields), ..seen }))
    }
}

impl<'b> Units<'b> {
    pub(super) fn of(bytes: &'b [u8]) -> Units<'b> {
        Units(bytes)
    }

    fn part(&mut self) -> Option<&'b [u8]> {
        let length = usize::try_from(packed::pull(&mut self.0)?).ok()?;
        let (part, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(part)
    }
}

/// What of a job run is packed, for readers.
pub(super) struct Past<'c> {
    row: Statement<'c>,
    newest: i64,
}

impl<'c> Past<'c> {
    pub(super) fn new(conn: &'c Connection) -> rusqlite::Result<Past<'c>> {
        let newest = conn.query_row("SELECT max(run) FROM past", [], |r| r.get::<_, Option<i64>>(0))?;
        let row = conn.prepare("SELECT readings FROM past WHERE run = ?1 AND job_run = ?2")?;
        Ok(Past { row, newest: newest.unwrap_or(0) })
    }

    /// Whether runs up to this one may be packed.
    pub(super) fn holds(&self, run: RunId) -> bool {
        run.0 <= self.newest
    }

    /// The bytes for [`Units::of`].
    pub(super) fn of(&mut self, run: RunId, job_run: i64) -> rusqlite::Result<Option<Vec<u8>>> {
        self.row.query_row([run.0, job_run], |r| r.get(0)).optional()
    }
}

/// The units that packed samples of a job run name; `after` says since which run, of the job run ?1.
pub(super) fn units_of(conn: &Connection, run: JobRunId, after: &str) -> rusqlite::Result<BTreeSet<i64>> {
    let sql = format!("SELECT readings FROM past WHERE job_run = ?1 AND run > {after}");
    let mut found = conn.prepare(&sql)?;
    let mut rows = found.query([run.0])?;
    let mut units = BTreeSet::new();
    while let Some(row) = rows.next()? {
        units.extend(Units::of(row.get_ref(0)?.as_blob().unwrap_or_default()).map(|(unit, _)| unit));
    }
    Ok(units)
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::super::{JobAsked, Ledger};
    use super::*;
    use crate::model::{Field, JobHistory, JobRun, Readings, RegisteredBy};
    use crate::reading::Absence;
    use crate::units::ClocksEventMask;

    /// What two jobs on a node of four GPUs leave: every absence, odd masks, fields, a unit that drops out, a run in
    /// which nothing was anybody's, and one in which the whole look failed.
    fn filled(ledger: &mut Ledger) -> [JobRunId; 2] {
        let mut register = |id| ledger.register(&at(0), &registration(id, 0, RegisteredBy::Prolog)).unwrap();
        let jobs = [register(1), register(2)];
        for minute in 1..=30 {
            let mut brought = Brought::at(minute, report(4, minute as u32));
            for n in 0..4 {
                brought.owners.insert(uuid(n), jobs[n as usize / 2]);
            }
            let readings = &mut brought.report.units[1].readings;
            readings.clocks_event = Measured(ClocksEventMask(u64::MAX - minute as u64));
            readings.fields =
                Fields::absent(Absence::NotSupported).with(Field::PcieTxBytes, Measured(1 << 60));
            let why = Absence::ALL[minute as usize % Absence::ALL.len()];
            brought.report.units[2].readings = Readings::absent(why);
            match minute {
                7 => drop(brought.report.units.pop()),
                9 => brought.owners.clear(),
                _ => {}
            }
            let mut run = brought.run();
            if minute == 11 {
                run.gpus = Absent(Absence::WorkerStuck);
            }
            ledger.append(&run).unwrap();
        }
        jobs
    }

    fn packed_up_to(ledger: &mut Ledger, run: i64) {
        ledger.write("pack", |tx| pack(tx, RunId(run + NEWEST))).unwrap();
    }

    fn asked(ledger: &Ledger, run: JobRun) -> JobAsked {
        JobAsked { units: Measured(ledger.units_of(run.id).unwrap()), run, reach: None }
    }

    /// Of both jobs; read until every unit has shown at most so many percent.
    fn histories(ledger: &Ledger, at_most: u32) -> Vec<JobHistory> {
        let jobs = ledger.open_runs(BOOT).unwrap().into_iter().map(|run| asked(ledger, run)).collect();
        let enough = &mut |o: &Observation| matches!(o.sm_util, Measured(p) if p.get() <= at_most);
        ledger.replay(BOOT, jobs, Measured(4), enough, false).unwrap()
    }

    #[test]
    fn what_is_packed_is_replayed_as_if_it_were_not() {
        let (_dir, mut ledger) = fresh();
        filled(&mut ledger);
        assert_eq!(count(&ledger, "past"), 0);
        // Whole; and until each unit has shown enough, in the midst of what will be packed and before.
        let before = [0, 8, 25].map(|at_most| histories(&ledger, at_most));
        assert!(before[0][0].ticks.len() > before[1][0].ticks.len());
        for run in [5, 20, 29] {
            packed_up_to(&mut ledger, run);
            assert_eq!(count(&ledger, &format!("sample WHERE job_run NOTNULL AND run < {run}")), 0);
            assert_eq!([0, 8, 25].map(|at_most| histories(&ledger, at_most)), before, "up to {run}");
        }
        assert_eq!(count(&ledger, "sample WHERE run < 29"), 4, "what was nobody's stays");
    }

    #[test]
    fn a_run_that_is_over_is_judged_again_from_what_is_packed_and_cleared_with_it() {
        let (_dir, mut ledger) = fresh();
        let [one, two] = filled(&mut ledger);
        let run = ledger.open_runs(BOOT).unwrap().remove(0);
        let before = ledger.replay_closed(asked(&ledger, run.clone()), BOOT).unwrap();
        packed_up_to(&mut ledger, 31);
        let cleared = ledger.clear(job(1), Some(0), &at(31), true, None).unwrap();
        assert_eq!((cleared.samples, cleared.archived), (2 * 28, true));
        assert_eq!(ledger.replay_closed(asked(&ledger, run), BOOT).unwrap(), before);
        let others = format!("past WHERE job_run = {}", two.0);
        assert_eq!(count(&ledger, &others), 28);
        assert_eq!(ledger.clear(job(2), Some(0), &at(31), false, None).unwrap().samples, 2 * 28);
        assert_eq!(
            (count(&ledger, &others), count(&ledger, &format!("past WHERE job_run = {}", one.0))),
            (0, 28)
        );
    }

    #[test]
    fn bytes_that_make_no_sense_are_no_readings() {
        let (_dir, mut ledger) = fresh();
        filled(&mut ledger);
        packed_up_to(&mut ledger, 31);
        let damage = ["x''", "x'ff'", "x'01ffffffffffffffffff01'", "substr(readings, 1, 20)", "zeroblob(99)"];
        for damage in damage {
            ledger.conn.execute(&format!("UPDATE past SET readings = {damage}"), []).unwrap();
            for history in histories(&ledger, 0) {
                let units = || history.ticks.iter().flat_map(|tick| &tick.units);
                assert!(units().all(|seen| seen.processes.measured().is_none()), "{damage}");
            }
        }
    }
}

//! Replay: what happened to each job run, read back newest first and given oldest first. It reads until
//! nothing older can matter, believes no value that cannot be, and fills no hole: a run that recorded nothing
//! of a job is a hole in its history, not a tick.

use super::columns::Cursor;
use super::learnt::Known;
use super::past::{Past, Units};
use super::sample;
use super::words::known;
use super::{Boot, Ledger, LedgerError, actions, past};
use crate::model::*;
use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use crate::units::{BootMs, NvmlIndex, UnitUuid, WallMs};
use rusqlite::{Connection, OptionalExtension, Row, Statement};
use std::collections::BTreeMap;

/// A job run whose history is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobAsked {
    /// From [`Ledger::open_runs`], or an archived one.
    pub run: JobRun,
    /// Its units on this node, as the run mapped them.
    pub units: Reading<Vec<UnitRef>>,
    /// How much of it is enough; `None`: all that can matter.
    pub reach: Option<Reach>,
}

/// So much time between ticks suffices, holes not counted: what is older is in the open finding's own row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Time between ticks, milliseconds.
    pub time_ms: i64,
    /// A longer step is a hole.
    pub gap_ms: i64,
}

/// One history as it grows, newest tick first.
struct Growing {
    asked: JobAsked,
    /// By unit row: its place among the job's units.
    places: BTreeMap<i64, usize>,
    /// What each of its units was learnt to draw at rest.
    floors: Vec<LearntFloors>,
    /// Which of its units have been seen to be decided.
    decided: Vec<bool>,
    /// Whether the job run is over: runs after its last tick are not its own.
    over: bool,
    ticks: Vec<Tick>,
    /// Time between its ticks so far, holes not counted.
    reached_ms: i64,
}

impl Growing {
    /// Whether nothing older can matter.
    fn closed(&self) -> bool {
        let far_enough = self.asked.reach.is_some_and(|reach| self.reached_ms >= reach.time_ms);
        far_enough || self.decided.iter().all(|d| *d)
    }

    /// One more tick, older than all before.
    fn push(&mut self, tick: Tick) {
        if let (Some(reach), Some(after)) = (self.asked.reach, self.ticks.last()) {
            let step_ms = after.at.since_ms(tick.at);
            self.reached_ms += if step_ms <= reach.gap_ms { step_ms } else { 0 };
        }
        self.ticks.push(tick);
    }

    fn newest(&self) -> Option<RunId> {
        self.ticks.last().map(|tick| tick.run)
    }
}

/// How far back a pass reads.
struct Depth<'a> {
    enough: &'a mut dyn FnMut(&Observation) -> bool,
    full: bool,
}

/// Three plain statements instead of one join of three tables: to plan that costs more than a run's rows.
struct Reader<'c> {
    jobs: Statement<'c>,
    samples: Statement<'c>,
    /// Once runs are read that may have been packed.
    past: Option<Past<'c>>,
}

/// The runs of a boot, newest first.
const RUNS: &str = "SELECT id, boottime_ms, wall_ms, driver, driver_absent, gpus_absent FROM run
    WHERE id >= ?1 AND boot = ?2 ORDER BY id DESC";
const GPUS_ABSENT: usize = 5;

impl Reader<'_> {
    fn new(conn: &Connection) -> rusqlite::Result<Reader<'_>> {
        Ok(Reader {
            jobs: conn.prepare("SELECT * FROM job_sample WHERE run = ?1 AND job_run = ?2")?,
            samples: conn.prepare("SELECT * FROM sample WHERE run = ?1 AND job_run NOTNULL")?,
            past: None,
        })
    }
}

impl Ledger {
    /// The histories of job runs on this boot, in the order asked, in one pass from the newest run back.
    ///
    /// Unless `full`, a job's history goes back only until every unit of it has shown one observation for
    /// which `enough` holds (the tick that did is kept); never beyond its registration. A job whose units
    /// are not known has no ticks, and none has one whose registration is closed. A run in which the whole
    /// GPU read was absent is a tick of units absent for that reason; a unit without a row is absent as not
    /// recorded; a run that recorded nothing of the job is no tick.
    pub fn replay(
        &self,
        boot_id: &str,
        jobs: Vec<JobAsked>,
        node_units: Reading<u32>,
        enough: &mut dyn FnMut(&Observation) -> bool,
        full: bool,
    ) -> Result<Vec<JobHistory>, LedgerError> {
        self.read("replay", |conn| {
            let mut growing = begin(conn, jobs, false)?;
            pass(conn, self.boot(boot_id)?, &mut growing, Depth { enough, full })?;
            histories(conn, growing, node_units)
        })
    }

    /// The history of a job run that is over, whole, from its boot; for judging it once more.
    pub fn replay_closed(&self, asked: JobAsked, boot_id: &str) -> Result<JobHistory, LedgerError> {
        self.read("replay a job run that is over", |conn| {
            let mut growing = begin(conn, vec![asked], true)?;
            let depth = Depth { enough: &mut |_| false, full: true };
            pass(conn, self.boot(boot_id)?, &mut growing, depth)?;
            let found = histories(conn, growing, Absent(Absence::NotRecorded))?.pop();
            known(found, "job_run")
        })
    }

    /// The units that samples of a job run name; for runs that are over, whose claims are mapped no more.
    pub fn units_of(&self, run: JobRunId) -> Result<Vec<UnitRef>, LedgerError> {
        self.read("read the units of a job", |conn| {
            let after = "(SELECT after_run FROM job_run WHERE id = ?1)";
            let mut ids = past::units_of(conn, run, after)?;
            let sql = format!("SELECT DISTINCT unit FROM sample WHERE job_run = ?1 AND run > {after}");
            for id in conn.prepare(&sql)?.query_map([run.0], |r| r.get(0))? {
                ids.insert(id?);
            }
            let mut unit =
                conn.prepare("SELECT uuid, nvml_index, name, name_absent FROM unit WHERE id = ?1")?;
            let mut units = Vec::with_capacity(ids.len());
            for id in ids {
                units.extend(unit.query_row([id], unit_ref).optional()?);
            }
            units.sort_by(|a: &UnitRef, b| (a.index, &a.uuid).cmp(&(b.index, &b.uuid)));
            Ok(units)
        })
    }
}

fn unit_ref(row: &Row) -> rusqlite::Result<UnitRef> {
    let c = &mut Cursor::from(row, 0);
    let uuid = known(UnitUuid::new(&c.get::<String>()?).ok(), "unit.uuid")?;
    Ok(UnitRef { uuid, index: NvmlIndex(c.get()?), name: c.text_pair()? })
}

fn begin(conn: &Connection, jobs: Vec<JobAsked>, over: bool) -> rusqlite::Result<Vec<Growing>> {
    let mut row = Known::statement(conn)?;
    let mut open = conn.prepare("SELECT 1 FROM job_run WHERE id = ?1 AND closed_how IS NULL")?;
    let mut growing = Vec::with_capacity(jobs.len());
    for asked in jobs {
        let mut places = BTreeMap::new();
        // An Epilog may have come since the caller read the registrations.
        let wanted = over || open.exists([asked.run.id.0])?;
        let units = match &asked.units {
            Measured(units) if wanted => units.as_slice(),
            _ => &[],
        };
        let mut floors = vec![LearntFloors::none(); units.len()];
        for (place, unit) in units.iter().enumerate() {
            if let Some(known) = Known::of(&mut row, &unit.uuid)? {
                places.insert(known.id, place);
                floors[place] = known.floors;
            }
        }
        // A unit that was never recorded cannot be decided: the whole history is read.
        let decided = vec![false; units.len()];
        growing.push(Growing { asked, places, floors, decided, over, ticks: Vec::new(), reached_ms: 0 });
    }
    Ok(growing)
}

fn pass(
    conn: &Connection,
    boot: Option<Boot>,
    growing: &mut [Growing],
    mut depth: Depth,
) -> rusqlite::Result<()> {
    // From the boot's first run on, so that no row of an earlier one is read at all.
    let Some(Boot { id: boot, first_run: Some(first) }) = boot else {
        return Ok(());
    };
    let mut reader = Reader::new(conn)?;
    let mut runs = conn.prepare(RUNS)?;
    let mut rows = runs.query([first, boot])?;
    // The newest run of the present boot, which alone has registrations that are open, is never packed: a healthy
    // history ends there and asks for no more.
    let mut packed = growing.iter().any(|g| g.over);
    while let Some(row) = rows.next()? {
        let at = BootMs(row.get(1)?);
        let wanted = |g: &Growing| (depth.full || !g.closed()) && at >= g.asked.run.registered;
        if !growing.iter().any(wanted) {
            break;
        }
        if packed && reader.past.is_none() {
            reader.past = Some(Past::new(conn)?);
        }
        packed = true;
        match row.get::<_, Option<i64>>(GPUS_ABSENT)? {
            Some(why) => failed(row, growing, &mut reader, &depth, Absence::from_code(why))?,
            None => take(row, growing, &mut reader, &mut depth)?,
        }
    }
    Ok(())
}

/// A run whose whole look at the GPUs failed.
fn failed(
    row: &Row,
    growing: &mut [Growing],
    reader: &mut Reader,
    depth: &Depth,
    why: Absence,
) -> rusqlite::Result<()> {
    let (run, at) = (RunId(row.get(0)?), BootMs(row.get(1)?));
    for history in growing.iter_mut().filter(|g| takes(g, run, at, depth.full)) {
        if !(history.over && history.ticks.is_empty()) {
            open_tick(row, history, &mut reader.jobs, why)?;
        }
    }
    Ok(())
}

/// Whether a run still belongs into a history: a tick that was begun is always finished.
fn takes(history: &Growing, run: RunId, at: BootMs, full: bool) -> bool {
    let known = !history.decided.is_empty() && at >= history.asked.run.registered;
    known && (full || !history.closed() || history.newest() == Some(run))
}

/// The samples of one run: those of a job run are all packed or all rows.
fn take(row: &Row, growing: &mut [Growing], reader: &mut Reader, depth: &mut Depth) -> rusqlite::Result<()> {
    let (run, at, full) = (RunId(row.get(0)?), BootMs(row.get(1)?), depth.full);
    let mut rows_too = true;
    if let Some(past) = reader.past.as_mut().filter(|past| past.holds(run)) {
        rows_too = false;
        for history in growing.iter_mut().filter(|g| takes(g, run, at, full)) {
            let Some(bytes) = past.of(run, history.asked.run.id.0)? else {
                rows_too = true;
                continue;
            };
            for (unit, seen) in Units::of(&bytes) {
                if let Some(&place) = history.places.get(&unit) {
                    seen_in(row, history, &mut reader.jobs, place, seen, depth)?;
                }
            }
        }
    }
    if !rows_too {
        return Ok(());
    }
    let mut samples = reader.samples.query([run.0])?;
    while let Some(sample) = samples.next()? {
        let (unit, owner): (i64, i64) = (sample.get(1)?, sample.get(2)?);
        let of = growing.iter_mut().find(|g| g.asked.run.id.0 == owner);
        let Some(history) = of.filter(|g| takes(g, run, at, full)) else {
            continue;
        };
        if let Some(&place) = history.places.get(&unit) {
            let seen = sample::observation(&mut Cursor::from(sample, sample::FIRST_READING))?;
            seen_in(row, history, &mut reader.jobs, place, seen, depth)?;
        }
    }
    Ok(())
}

/// What one run saw of one unit.
fn seen_in(
    run: &Row,
    history: &mut Growing,
    jobs: &mut Statement,
    place: usize,
    seen: Observation,
    depth: &mut Depth,
) -> rusqlite::Result<()> {
    if history.newest() != Some(RunId(run.get(0)?)) {
        open_tick(run, history, jobs, Absence::NotRecorded)?;
    }
    if !history.decided[place] {
        history.decided[place] = (depth.enough)(&seen);
    }
    if let Some(tick) = history.ticks.last_mut() {
        tick.units[place] = seen;
    }
    Ok(())
}

/// Begins a tick: every unit is absent until its row comes.
fn open_tick(row: &Row, history: &mut Growing, jobs: &mut Statement, why: Absence) -> rusqlite::Result<()> {
    let c = &mut Cursor::from(row, 0);
    let run = RunId(c.get()?);
    let job =
        jobs.query_row((run.0, history.asked.run.id.0), |r| sample::job_sample(&mut Cursor::from(r, 2)));
    history.push(Tick {
        run,
        at: BootMs(c.get()?),
        wall: WallMs(c.get()?),
        driver: c.text_pair()?,
        job: job.optional()?.unwrap_or_else(|| JobSample::absent(Absence::NotRecorded)),
        units: vec![Observation::absent(why); history.decided.len()],
    });
    Ok(())
}

fn histories(
    conn: &Connection,
    growing: Vec<Growing>,
    node_units: Reading<u32>,
) -> rusqlite::Result<Vec<JobHistory>> {
    let mut recorded = match actions::none(conn)? {
        true => None,
        false => Some(conn.prepare(actions::OF_RUN)?),
    };
    let finish = |mut g: Growing| {
        g.ticks.reverse();
        let recorded = recorded.as_mut().map(|statement| actions::of(statement, g.asked.run.id));
        Ok(JobHistory {
            actions: recorded.transpose()?.unwrap_or_default(),
            job: g.asked.run,
            units: g.asked.units,
            node_units,
            ticks: g.ticks,
            open_finding: None,
            fault: None,
            floors: g.floors,
        })
    };
    growing.into_iter().map(finish).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    fn refs(units: impl IntoIterator<Item = u32>) -> Reading<Vec<UnitRef>> {
        let name = Measured("NVIDIA H100".to_owned());
        let unit = |n| UnitRef { uuid: uuid(n), index: NvmlIndex(n), name: name.clone() };
        Measured(units.into_iter().map(unit).collect())
    }

    fn history(ledger: &Ledger, run: JobRunId, units: Reading<Vec<UnitRef>>, full: bool) -> JobHistory {
        let run = ledger.open_runs(BOOT).unwrap().into_iter().find(|r| r.id == run).unwrap();
        let asked = vec![JobAsked { run, units, reach: None }];
        let busy = &mut |o: &Observation| matches!(o.sm_util, Measured(p) if p.get() >= 15);
        ledger.replay(BOOT, asked, Measured(8), busy, full).unwrap().pop().unwrap()
    }

    fn minutes(history: &JobHistory) -> Vec<i64> {
        history.ticks.iter().map(|t| t.at.since_ms(at(0).boot) / 60_000).collect()
    }

    fn registered(ledger: &mut Ledger, id: u64) -> JobRunId {
        ledger.register(&at(0), &registration(id, 0, RegisteredBy::Prolog)).unwrap()
    }

    #[test]
    fn what_was_appended_is_what_is_replayed() {
        let (_dir, mut ledger) = fresh();
        let run = registered(&mut ledger, 1);
        let brought = Brought::at(1, report(2, 3)).owned_by(run);
        brought.append(&mut ledger);
        let history = history(&ledger, run, refs([1, 0]), false);
        let tick = &history.ticks[0];
        assert_eq!((tick.at, tick.wall), (at(1).boot, at(1).wall));
        assert_eq!(tick.driver, brought.report.driver);
        assert_eq!(tick.job, brought.jobs[0].sample);
        let seen = &brought.report.units[1].readings;
        let want = Observation {
            fields: seen.fields.clone(),
            sm_util: seen.sm_util,
            mem_util: seen.mem_util,
            sm_peak: seen.sm_peak,
            mem_peak: seen.mem_peak,
            memory: seen.memory,
            power: seen.power,
            power_limit: seen.power_limit,
            energy: seen.energy,
            sm_clock: seen.sm_clock,
            sm_clock_max: seen.sm_clock_max,
            temperature: seen.temperature,
            clocks_event: seen.clocks_event,
            mig: seen.mig,
            processes: Measured(ProcessCount { compute: 1, graphics: 0 }),
        };
        assert_eq!(tick.units[0], want, "in the order of the job's units");
        assert_eq!(history.node_units, Measured(8));
    }

    #[test]
    fn every_absence_comes_back_as_itself() {
        let (_dir, mut ledger) = fresh();
        let run = registered(&mut ledger, 1);
        for (minute, why) in (1..).zip(Absence::ALL) {
            let mut brought = Brought::at(minute, report(1, 0)).owned_by(run);
            brought.report.units[0].readings = Readings::absent(*why);
            brought.append(&mut ledger);
        }
        let history = history(&ledger, run, refs([0]), true);
        let seen: Vec<_> = history.ticks.iter().map(|t| t.units[0].clone()).collect();
        let want: Vec<_> = Absence::ALL.iter().map(|why| Observation::absent(*why)).collect();
        assert_eq!(seen, want);
    }

    #[test]
    fn reading_stops_once_every_unit_was_seen_at_work() {
        let (_dir, mut ledger) = fresh();
        let run = registered(&mut ledger, 1);
        for minute in 1..=9 {
            let mut brought = Brought::at(minute, report(2, 0)).owned_by(run);
            let busy = Measured(crate::units::Percent::new(90).unwrap());
            match minute {
                3 => brought.report.units[0].readings.sm_util = busy,
                5 => brought.report.units[1].readings.sm_util = busy,
                _ => {}
            }
            brought.append(&mut ledger);
        }
        assert_eq!(minutes(&history(&ledger, run, refs([0, 1]), false)), [3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(minutes(&history(&ledger, run, refs([1]), false)), [5, 6, 7, 8, 9]);
        assert_eq!(minutes(&history(&ledger, run, refs([0, 1]), true)), (1..=9).collect::<Vec<_>>());
        let unknown = Absent(Absence::NotUnderstood);
        assert!(history(&ledger, run, unknown, false).ticks.is_empty());
    }

    #[test]
    fn a_run_that_recorded_nothing_of_a_job_is_a_hole_and_a_failed_read_says_why() {
        let (_dir, mut ledger) = fresh();
        let run = registered(&mut ledger, 1);
        Brought::at(1, report(2, 0)).owned_by(run).append(&mut ledger);
        // Contested or unmapped: the unit's sample is nobody's.
        Brought::at(2, report(2, 0)).append(&mut ledger);
        let brought = Brought::at(3, report(2, 0));
        let mut failed = brought.run();
        failed.gpus = Absent(Absence::WorkerStuck);
        ledger.append(&failed).unwrap();
        let mut part = Brought::at(4, report(2, 0));
        part.owners.insert(uuid(1), run);
        part.append(&mut ledger);
        let history = history(&ledger, run, refs([0, 1]), false);
        assert_eq!(minutes(&history), [1, 3, 4]);
        assert_eq!(history.ticks[1].units, vec![Observation::absent(Absence::WorkerStuck); 2]);
        assert_eq!(history.ticks[2].units[0], Observation::absent(Absence::NotRecorded));
        assert_eq!(history.ticks[2].job, JobSample::absent(Absence::NotRecorded));
        assert!(history.ticks[2].units[1].sm_util.measured().is_some());
    }

    #[test]
    fn one_pass_serves_all_jobs_and_gives_each_only_its_own() {
        let (_dir, mut ledger) = fresh();
        let (one, two) = (registered(&mut ledger, 1), registered(&mut ledger, 2));
        for minute in 1..=3 {
            let mut brought = Brought::at(minute, report(4, 0));
            for n in 0..4 {
                brought.owners.insert(uuid(n), if n < 2 { one } else { two });
            }
            brought.append(&mut ledger);
        }
        let open = ledger.open_runs(BOOT).unwrap();
        let asked = open.into_iter().map(|run| JobAsked { run, units: refs(0..4), reach: None }).collect();
        let both = ledger.replay(BOOT, asked, Measured(4), &mut |_| false, false).unwrap();
        for (history, own) in both.iter().zip([[0, 1], [2, 3]]) {
            assert_eq!(minutes(history), [1, 2, 3]);
            for n in 0..4 {
                let measured = history.ticks[0].units[n].sm_util.measured().is_some();
                assert_eq!(measured, own.contains(&n));
            }
        }
    }

    #[test]
    fn a_clock_that_steps_back_changes_neither_order_nor_keeping() {
        // prometheus/blackbox_exporter#38, gilestrolab/ethoscope#16 (CK-01).
        let (_dir, mut ledger) = fresh();
        let run = registered(&mut ledger, 1);
        for minute in [1, 6, 11, 16] {
            let mut brought = Brought::at(minute, report(1, 0)).owned_by(run);
            if minute > 6 {
                brought.now.wall.0 -= 7 * 3_600_000;
            }
            brought.append(&mut ledger);
        }
        assert_eq!(minutes(&history(&ledger, run, refs([0]), false)), [1, 6, 11, 16]);
    }

    #[test]
    fn damaged_values_are_implausible_never_numbers() {
        let (_dir, mut ledger) = fresh();
        let run = registered(&mut ledger, 1);
        Brought::at(1, report(1, 0)).owned_by(run).append(&mut ledger);
        ledger
            .conn
            .execute_batch(
                "PRAGMA ignore_check_constraints = ON;
                 UPDATE sample SET sm_util = 120, mem_used = mem_total + 1, power_absent = 3,
                     mig_absent = NULL, processes_compute = -1;",
            )
            .unwrap();
        let history = history(&ledger, run, refs([0]), false);
        let o = &history.ticks[0].units[0];
        assert_eq!(o.sm_util, Absent(Absence::Implausible));
        assert_eq!(o.memory, Absent(Absence::Implausible));
        assert_eq!(o.power, Absent(Absence::Implausible));
        assert_eq!(o.mig, Absent(Absence::Implausible));
        assert_eq!(o.processes, Absent(Absence::Implausible));
        assert!(o.mem_util.measured().is_some());
    }
}

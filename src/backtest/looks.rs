//! From the rows of a recording to what runs would have read: at each tick the newest row of each GPU that no tick
//! used before, the driver's ring as the highest of the rows just before it, the energy counter as the integral of
//! power. Where the rows lie too far apart nothing is known of the time between, and no energy is made up.

use super::table::{Gpu, Recording, Row};
use crate::model::{JobSample, Observation, Peak, RunId, Tick};
use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use crate::units::{BootMs, Millijoules, Percent, WallMs};

/// How far back a driver's sample ring reaches on most cards.
const RING_MS: i64 = 10_000;
/// Rows of one look at all GPUs lie no further apart: each GPU's row has a time of its own.
const LOOK_MS: i64 = 10_000;
/// Rows that usually lie no further apart than this speak for the time between, as instants do for the rules.
const DENSE_MS: i64 = 45_000;
/// And where they usually do, one step may be so long: a recorder is late at times.
const STEP_MS: i64 = DENSE_MS * 3 / 2;

/// The ticks of a recording under a cadence of runs, oldest first.
pub fn ticks(recording: &Recording, every_ms: i64) -> Vec<Tick> {
    let looks = looks(&recording.gpus);
    let (Some(first), Some(last)) = (looks.first(), looks.last()) else {
        return Vec::new();
    };
    let mut units: Vec<Unit> = recording.gpus.iter().map(Unit::new).collect();
    let mut ticks = Vec::new();
    let (mut begun, mut due_ms) = (looks.iter().peekable(), first.from_ms);
    let mut seen_ms = i64::MIN;
    while due_ms <= last.from_ms {
        let mut until_ms = seen_ms;
        while let Some(look) = begun.next_if(|look| look.from_ms <= due_ms) {
            until_ms = look.to_ms;
        }
        due_ms += every_ms;
        if until_ms > seen_ms {
            ticks.push(tick(recording, &mut units, ticks.len() as i64, seen_ms, until_ms));
            seen_ms = until_ms;
        }
    }
    ticks
}

/// When the recorder looked at all GPUs once.
struct Look {
    from_ms: i64,
    to_ms: i64,
}

fn looks(gpus: &[Gpu]) -> Vec<Look> {
    let mut rows: Vec<(i64, usize)> = Vec::new();
    for (place, gpu) in gpus.iter().enumerate() {
        rows.extend(gpu.rows.iter().map(|row| (row.at_ms, place)));
    }
    rows.sort_unstable();
    let mut looks: Vec<Look> = Vec::new();
    let mut seen = vec![false; gpus.len()];
    for (at_ms, place) in rows {
        match looks.last_mut() {
            Some(look) if !seen[place] && at_ms - look.from_ms <= LOOK_MS => look.to_ms = at_ms,
            _ => {
                seen.fill(false);
                looks.push(Look { from_ms: at_ms, to_ms: at_ms });
            }
        }
        seen[place] = true;
    }
    looks
}

/// What all GPUs said between two ticks.
fn tick(recording: &Recording, units: &mut [Unit], number: i64, after_ms: i64, until_ms: i64) -> Tick {
    let mut driver = Absent(Absence::NotRecorded);
    let mut read = |unit: &mut Unit| {
        let Some((row, ring)) = unit.newest(after_ms, until_ms) else {
            return Observation::absent(Absence::NotRecorded);
        };
        driver = recording.driver(row);
        let energy = unit.energy(until_ms);
        Observation {
            sm_peak: peak(ring, |row| row.sm_util),
            mem_peak: peak(ring, |row| row.mem_util),
            energy,
            ..recording.observation(row)
        }
    };
    let units = units.iter_mut().map(&mut read).collect();
    Tick {
        run: RunId(number + 1),
        at: BootMs(until_ms),
        wall: WallMs(until_ms),
        driver,
        job: JobSample::absent(Absence::NotRecorded),
        units,
    }
}

/// What the driver's ring would have held; one row alone is no ring.
fn peak(ring: &[Row], of: impl Fn(&Row) -> Reading<Percent>) -> Reading<Peak> {
    let (Some(first), Some(last)) = (ring.first(), ring.last()) else {
        return Absent(Absence::NoData);
    };
    let highest = ring.iter().filter_map(|row| of(row).measured().copied()).max();
    match highest.filter(|_| ring.len() > 1) {
        Some(percent) => Measured(Peak { percent, covered_ms: (last.at_ms - first.at_ms) as u32 }),
        None => Absent(Absence::NoData),
    }
}

/// One GPU on its way through the ticks.
struct Unit<'r, 'a> {
    rows: &'r [Row<'a>],
    /// Rows that a tick has passed.
    used: usize,
    /// Whether its rows usually lie close enough to speak for the time between.
    dense: bool,
    /// Integrated up to the newest of the used rows, microjoules.
    energy_uj: u64,
    /// Nothing is known of some of the time since the tick before.
    unknown: bool,
}

impl<'r, 'a> Unit<'r, 'a> {
    fn new(gpu: &'r Gpu<'a>) -> Unit<'r, 'a> {
        let mut steps: Vec<i64> = gpu.rows.windows(2).map(|pair| pair[1].at_ms - pair[0].at_ms).collect();
        steps.sort_unstable();
        let dense = steps.get(steps.len() / 2).is_some_and(|median| *median <= DENSE_MS);
        Unit { rows: &gpu.rows, used: 0, dense, energy_uj: 0, unknown: false }
    }

    /// The newest row after one instant up to another, with those that its ring would still hold, itself the last.
    fn newest(&mut self, after_ms: i64, until_ms: i64) -> Option<(&'r Row<'a>, &'r [Row<'a>])> {
        while let Some(next) = self.rows.get(self.used).filter(|row| row.at_ms <= until_ms) {
            if self.used > 0 {
                match self.drawn_uj(self.used - 1, next.at_ms) {
                    Some(drawn) => self.energy_uj += drawn,
                    None => self.unknown = true,
                }
            }
            self.used += 1;
        }
        let newest = self.rows[..self.used].last().filter(|row| row.at_ms > after_ms)?;
        let held = |row: &Row| row.at_ms > after_ms && row.at_ms >= newest.at_ms - RING_MS;
        let ring = self.rows[..self.used].iter().rev().take_while(|row| held(row)).count();
        Some((newest, &self.rows[self.used - ring..self.used]))
    }

    /// What the counter would show at the tick; absent where the time since the tick before is not all known.
    fn energy(&mut self, at_ms: i64) -> Reading<Millijoules> {
        let known = !std::mem::take(&mut self.unknown) && self.dense;
        let since = self.used.checked_sub(1).filter(|_| known);
        let since = since.filter(|row| self.rows[*row].power.measured().is_some());
        let Some(row) = since else {
            return Absent(Absence::NotRecorded);
        };
        // The next row, where there is one, says how the power went on to the tick.
        let on = if self.rows[row].at_ms == at_ms { Some(0) } else { self.drawn_uj(row, at_ms) };
        on.map_or(Absent(Absence::NotRecorded), |on| Measured(Millijoules((self.energy_uj + on) / 1000)))
    }

    /// Energy from one row to an instant not after the next: the mean of both powers. mW times ms.
    fn drawn_uj(&self, row: usize, until_ms: i64) -> Option<u64> {
        let (from, to) = (&self.rows[row], self.rows.get(row + 1)?);
        let close = self.dense && to.at_ms - from.at_ms <= STEP_MS;
        match (from.power, to.power) {
            (Measured(a), Measured(b)) if close => Some((a.0 + b.0) / 2 * (until_ms - from.at_ms) as u64),
            _ => None,
        }
    }
}

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
/// Rows no further apart than three runs, or this, have a line drawn between their powers: that is what the rules take
/// for no hole in the samples (`max_sample_gap: auto`).
const BRIDGED_MS: i64 = 90_000;
/// Where nothing is known of some time, the counter starts anew, so far below that it shows less than before: no
/// difference across it is believed. More than any card draws while a recording lasts.
const ANEW_MJ: u64 = 10_000_000_000_000;

/// Gives the ticks of a recording under a cadence of runs, oldest first.
pub fn play(recording: &Recording, every_ms: i64, run: &mut dyn FnMut(Tick)) {
    let looks = looks(&recording.gpus);
    let (Some(first), Some(last)) = (looks.first(), looks.last()) else {
        return;
    };
    let bridged_ms = BRIDGED_MS.max(3 * every_ms);
    let mut units: Vec<Unit> = recording.gpus.iter().map(|gpu| Unit::new(gpu, bridged_ms)).collect();
    let mut number = 0;
    let (mut begun, mut due_ms) = (looks.iter().peekable(), first.from_ms);
    let mut seen_ms = i64::MIN;
    while due_ms <= last.from_ms {
        let mut until_ms = seen_ms;
        while let Some(look) = begun.next_if(|look| look.from_ms <= due_ms) {
            until_ms = look.to_ms;
        }
        due_ms += every_ms;
        if until_ms > seen_ms {
            number += 1;
            run(tick(recording, &mut units, RunId(number), seen_ms, until_ms));
            seen_ms = until_ms;
        }
    }
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
fn tick(recording: &Recording, units: &mut [Unit], run: RunId, after_ms: i64, until_ms: i64) -> Tick {
    let mut tick = Tick {
        run,
        at: BootMs(until_ms),
        wall: WallMs(until_ms),
        // One recording is of one driver, and its job ran all the time, for all that anybody knows.
        driver: Measured("recorded".to_owned()),
        job: JobSample {
            holders: Measured(0),
            frozen: Measured(false),
            ..JobSample::absent(Absence::NotRecorded)
        },
        units: Vec::with_capacity(units.len()),
    };
    for unit in units {
        let Some((row, ring)) = unit.newest(after_ms, until_ms) else {
            tick.job.holders = Absent(Absence::NotRecorded);
            tick.units.push(Observation::absent(Absence::NotRecorded));
            continue;
        };
        if let driver @ Measured(_) = recording.driver(row) {
            tick.driver = driver;
        }
        // All of them, or nobody can say how many.
        tick.job.holders =
            tick.job.holders.and_then(|sum| recording.holders(row).map(|n| sum.saturating_add(n)));
        tick.units.push(Observation {
            sm_peak: peak(ring, |row| row.sm_util),
            mem_peak: peak(ring, |row| row.mem_util),
            energy: unit.energy(until_ms),
            ..recording.observation(row)
        });
    }
    tick
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
    /// So far apart two rows may lie.
    bridged_ms: i64,
    /// What the counter started from last.
    base_mj: u64,
    /// Integrated since, up to the newest of the used rows; microjoules.
    energy_uj: u64,
}

impl<'r, 'a> Unit<'r, 'a> {
    fn new(gpu: &'r Gpu<'a>, bridged_ms: i64) -> Unit<'r, 'a> {
        Unit { rows: &gpu.rows, used: 0, bridged_ms, base_mj: u64::MAX / 2, energy_uj: 0 }
    }

    /// The newest row after one instant up to another, with those that its ring would still hold, itself the last.
    fn newest(&mut self, after_ms: i64, until_ms: i64) -> Option<(&'r Row<'a>, &'r [Row<'a>])> {
        while let Some(next) = self.rows.get(self.used).filter(|row| row.at_ms <= until_ms) {
            if self.used > 0 {
                match self.drawn_uj(self.used - 1, next.at_ms) {
                    Some(drawn) => self.energy_uj += drawn,
                    None => (self.base_mj, self.energy_uj) = (self.base_mj.saturating_sub(ANEW_MJ), 0),
                }
            }
            self.used += 1;
        }
        let newest = self.rows[..self.used].last().filter(|row| row.at_ms > after_ms)?;
        let held = |row: &Row| row.at_ms > after_ms && row.at_ms >= newest.at_ms - RING_MS;
        let ring = self.rows[..self.used].iter().rev().take_while(|row| held(row)).count();
        Some((newest, &self.rows[self.used - ring..self.used]))
    }

    /// What the counter would show at the tick; absent where the rows speak for no time but their own.
    fn energy(&self, at_ms: i64) -> Reading<Millijoules> {
        let newest = self.used.checked_sub(1).filter(|row| self.rows[*row].power.measured().is_some());
        let Some(row) = newest.filter(|_| self.base_mj > 0) else {
            return Absent(Absence::NotRecorded);
        };
        // The next row, where there is one, says how the power went on to the tick.
        let on = if self.rows[row].at_ms == at_ms { Some(0) } else { self.drawn_uj(row, at_ms) };
        let counted = |on: u64| Millijoules(self.base_mj + (self.energy_uj + on) / 1000);
        on.map_or(Absent(Absence::NotRecorded), |on| Measured(counted(on)))
    }

    /// Energy from one row to an instant not after the next: the mean of both powers. mW times ms.
    fn drawn_uj(&self, row: usize, until_ms: i64) -> Option<u64> {
        let (from, to) = (&self.rows[row], self.rows.get(row + 1)?);
        let close = to.at_ms - from.at_ms <= self.bridged_ms;
        match (from.power, to.power) {
            (Measured(a), Measured(b)) if close => Some((a.0 + b.0) / 2 * (until_ms - from.at_ms) as u64),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of `gpu,second,util,watts`.
    fn recorded(rows: &[(u32, f64, u32, f64)]) -> String {
        let mut text = "timestamp, index, utilization.gpu [%], power.draw [W]\n".to_owned();
        for (gpu, second, util, watts) in rows {
            let (minutes, seconds) = ((second / 60.0).floor(), second % 60.0);
            text += &format!("2026/11/29 13:{minutes:02}:{seconds:06.3}, {gpu}, {util} %, {watts} W\n");
        }
        text
    }

    fn played(text: &str, every_ms: i64) -> Vec<Tick> {
        let recording = Recording::read(text).unwrap();
        let first = recording.gpus[0].rows[0].at_ms;
        let mut ticks = Vec::new();
        play(&recording, every_ms, &mut |tick| ticks.push(tick));
        ticks.iter_mut().for_each(|tick| tick.at = BootMs(tick.at.0 - first));
        ticks
    }

    fn at(ticks: &[Tick]) -> Vec<i64> {
        ticks.iter().map(|tick| tick.at.0).collect()
    }

    /// Energy of each interval.
    fn energies(ticks: &[Tick]) -> Vec<Option<u64>> {
        let at = |tick: &Tick| tick.units[0].energy.measured().map(|e| e.0);
        ticks.windows(2).map(|pair| at(&pair[1])?.checked_sub(at(&pair[0])?)).collect()
    }

    fn every(step: f64, rows: usize) -> Vec<(u32, f64, u32, f64)> {
        (0..rows).map(|n| (0, n as f64 * step, 0, 70.0)).collect()
    }

    #[test]
    fn a_tick_takes_the_newest_row_and_no_row_twice() {
        assert_eq!(at(&played(&recorded(&every(15.0, 9)), 60_000)), [0, 60_000, 120_000]);
        // A recorder slower than the runs: a tick without a new row is no sample.
        assert_eq!(at(&played(&recorded(&every(20.0, 4)), 15_000)), [0, 20_000, 40_000, 60_000]);
        assert_eq!(at(&played(&recorded(&every(20.0, 4)), 30_000)), [0, 20_000, 60_000]);
    }

    #[test]
    fn the_rows_of_one_look_stay_together_though_each_has_its_own_time() {
        let look = |s: f64| [(0, s, 0, 70.0), (1, s + 0.004, 7, 70.0), (2, s + 0.009, 0, 70.0)];
        let rows: Vec<_> = [0.0, 30.0, 60.0].into_iter().flat_map(look).collect();
        let ticks = played(&recorded(&rows), 30_000);
        assert_eq!(at(&ticks), [9, 30_009, 60_009]);
        assert!(ticks.iter().all(|t| t.units.iter().all(|o| o.sm_util.measured().is_some())));
        // Sorted by GPU it is the same recording.
        let mut sorted = rows.clone();
        sorted.sort_by_key(|row| row.0);
        assert_eq!(played(&recorded(&sorted), 30_000), ticks);
    }

    #[test]
    fn a_gpu_without_a_new_row_is_absent_and_hides_no_other() {
        let rows = [
            (0, 0.0, 5, 70.0),
            (1, 0.0, 6, 70.0),
            (0, 30.0, 7, 70.0),
            (0, 60.0, 8, 70.0),
            (1, 60.0, 9, 70.0),
        ];
        let ticks = played(&recorded(&rows), 30_000);
        assert_eq!(ticks[1].units[1], Observation::absent(Absence::NotRecorded));
        assert_eq!(ticks[1].units[0].sm_util, Measured(Percent::new(7).unwrap()));
        assert_eq!(ticks[2].units[1].sm_util, Measured(Percent::new(9).unwrap()));
    }

    #[test]
    fn the_ring_is_the_highest_of_ten_seconds_and_one_row_is_none() {
        let mut rows = every(5.0, 13);
        (rows[9].2, rows[10].2) = (99, 40);
        let ring = played(&recorded(&rows), 60_000)[1].units[0].sm_peak;
        assert_eq!(ring, Measured(Peak { percent: Percent::new(40).unwrap(), covered_ms: 10_000 }));
        let ring = played(&recorded(&every(15.0, 5)), 60_000)[1].units[0].sm_peak;
        assert_eq!(ring, Absent(Absence::NoData));
    }

    #[test]
    fn energy_is_the_integral_of_power_also_between_the_ticks() {
        let mut rows = every(15.0, 9);
        rows[2].3 = 310.0;
        // 240 W more, in a triangle of 30 s.
        let base = 70 * 60_000;
        let ticks = played(&recorded(&rows), 60_000);
        assert_eq!(energies(&ticks), [Some(base + 240 * 15_000), Some(base)]);
    }

    #[test]
    fn no_energy_is_made_up_for_time_that_nobody_recorded() {
        let mut rows = every(15.0, 21);
        // 120 s without a row, between ticks at 60 and at 180 s.
        rows.drain(5..12);
        let holed = recorded(&rows);
        let ticks = played(&holed, 30_000);
        let hole = at(&ticks).iter().position(|at| *at == 180_000).unwrap();
        for (n, energy) in energies(&ticks).into_iter().enumerate() {
            assert_eq!(energy, (n + 1 != hole).then_some(70 * 30_000), "interval {n}");
        }
        // For runs every minute that is no hole.
        assert!(energies(&played(&holed, 60_000)).iter().all(Option::is_some));
    }
}

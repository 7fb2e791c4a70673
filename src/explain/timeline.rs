//! A job run over time, scaled into columns: of many samples the highest utilization, the mean of the power, the highest
//! memory. A column in which samples are missing shows that, whatever else it holds; so does one with an absent reading.

use super::Told;
use crate::model::{Observation, Tick};
use crate::policy::{Level, interval, level};
use crate::reading::{Absence, Reading};
use crate::units::{BootMs, WallMs};

/// What one column says of one quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// In the quantity's unit.
    Value(u64),
    /// At least one sample could not say.
    Absent(Absence),
    /// For some of its time there is no sample.
    Hole,
}

/// What stands out of one column, as it was judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Nothing.
    None,
    /// Busy at 95 % or more without memory traffic, at the power of a wait.
    Spin,
    /// Slowed by hardware or heat.
    Throttled,
}

/// One unit's rows, all of the same length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Highest utilization, percent.
    pub util: Vec<Seen>,
    /// Mean power, milliwatts: by the energy counter, else by the power at each sample.
    pub power: Vec<Seen>,
    /// Highest memory held, bytes.
    pub memory: Vec<Seen>,
    /// What stands out.
    pub marks: Vec<Mark>,
}

/// A job run over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// Where the first column begins: the job's start, or the oldest sample that is kept.
    pub from: WallMs,
    /// Whether that is the job's start.
    pub whole: bool,
    /// Where the last column ends: this moment.
    pub to: WallMs,
    /// One for each unit, in the order of the history's.
    pub units: Vec<Rows>,
}

/// The columns between two moments.
#[derive(Clone, Copy)]
struct Scale {
    from: BootMs,
    span_ms: i64,
    columns: usize,
}

impl Scale {
    fn column(&self, at_ms: i64) -> usize {
        let into = i128::from(at_ms - self.from.0) * self.columns as i128 / i128::from(self.span_ms);
        into.clamp(0, self.columns as i128 - 1) as usize
    }
}

/// One quantity of one unit while it is gathered.
#[derive(Clone, Copy, Default)]
struct Gathered {
    hole: bool,
    absent: Option<Absence>,
    most: u64,
    sum: u64,
    count: u64,
}

impl Gathered {
    fn add(&mut self, reading: &Reading<u64>) {
        match reading {
            Reading::Measured(value) => {
                self.most = self.most.max(*value);
                self.sum = self.sum.saturating_add(*value);
                self.count += 1;
            }
            Reading::Absent(why) => self.absent = Some(*why),
        }
    }

    fn seen(&self, mean: bool) -> Seen {
        match (self.hole, self.absent, self.count) {
            (true, ..) | (_, None, 0) => Seen::Hole,
            (_, Some(why), _) => Seen::Absent(why),
            (_, None, count) => Seen::Value(if mean { self.sum / count } else { self.most }),
        }
    }
}

/// The samples of a job run in so many columns; `None` where there is none.
pub fn of(told: &Told, columns: usize) -> Option<Timeline> {
    let ticks = &told.history.ticks[..];
    let start = told.history.job.registration.start.boot;
    let oldest = ticks.first()?.at;
    let whole = oldest.since_ms(start) <= told.gap_ms;
    let from = if whole { start.min(oldest) } else { oldest };
    let span_ms = told.now.boot.since_ms(from).max(1);
    let scale = Scale { from, span_ms, columns: columns.max(1) };
    let units = (0..ticks[0].units.len()).map(|unit| rows(told, unit, scale)).collect();
    Some(Timeline { from: told.now.wall_of(from), whole, to: told.now.wall, units })
}

fn rows(told: &Told, unit: usize, scale: Scale) -> Rows {
    let ticks = &told.history.ticks[..];
    let mut gathered = [[Gathered::default(); 3]; 1].repeat(scale.columns);
    let mut marks = vec![Mark::None; scale.columns];
    let levels = told.assessment.units.get(unit).map_or(&[][..], |a| &a.levels[..]);
    for (t, tick) in ticks.iter().enumerate() {
        let before = t.checked_sub(1).map(|before| &ticks[before]);
        let (begin, at) = (before.map_or(scale.from, |before| before.at), tick.at);
        let last = scale.column(at.0);
        let first = match at.since_ms(begin) > told.gap_ms {
            true => hole(&mut gathered, scale, (begin.0, at.0)).min(last),
            // A sample speaks for the time since the one before.
            false => (scale.column(begin.0) + usize::from(before.is_some())).min(last),
        };
        let quantities = quantities(before, tick, unit);
        for column in &mut gathered[first..=last] {
            column.iter_mut().zip(&quantities).for_each(|(one, reading)| one.add(reading));
        }
        match levels.get(t) {
            Some(Level::Spin) => marks[first..=last].fill(Mark::Spin),
            Some(Level::Throttled) => marks[first..=last].fill(Mark::Throttled),
            _ => {}
        }
        if t + 1 == ticks.len() {
            let end = (at.0, scale.from.0 + scale.span_ms);
            if end.1 - end.0 > told.gap_ms {
                hole(&mut gathered, scale, (end.0, end.1 + 1));
            } else {
                let newest = gathered[last];
                gathered[last + 1..].fill(newest);
            }
        }
    }
    let row = |n: usize, mean| gathered.iter().map(|column| column[n].seen(mean)).collect();
    Rows { util: row(0, false), power: row(1, true), memory: row(2, false), marks }
}

/// Marks the columns of a hole, but for the one that its end alone touches; gives the one it ends in.
fn hole(gathered: &mut [[Gathered; 3]], scale: Scale, (from_ms, to_ms): (i64, i64)) -> usize {
    let (first, last) = (scale.column(from_ms + 1), scale.column(to_ms));
    let end = if last > first && to_ms <= scale.from.0 + scale.span_ms { last } else { last + 1 };
    for column in gathered[first..end].iter_mut().flatten() {
        column.hole = true;
    }
    last
}

/// Utilization, power and memory of a unit at a tick.
fn quantities(before: Option<&Tick>, tick: &Tick, unit: usize) -> [Reading<u64>; 3] {
    let seen: &Observation = &tick.units[unit];
    let util = level::peak(seen.sm_util, &seen.sm_peak).map(|p| u64::from(p.get()));
    let mean = before.map(|before| interval::mean_power(before.moment(unit), tick.moment(unit)));
    let power = match mean {
        Some(mean @ Reading::Measured(_)) => mean,
        _ => seen.power,
    };
    [util, power.map(|p| p.0), seen.memory.map(|m| m.used.0)]
}

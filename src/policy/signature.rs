//! What a breach looks like, and the most that look may ask for. Words state facts, not guilt.

use super::level::{Level, well_above};
use super::window::{Evidence, Series};
use super::{Auto, Thresholds};
use crate::model::{Observation, Verdict};
use crate::reading::Reading;
use crate::units::MemoryBytes;
use std::fmt;

/// The looks of waste that this version tells apart, in the order they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// Every unit zero, no process, memory at the card's empty level.
    Idle,
    /// Every unit zero, processes resident or memory held above the empty level.
    Hung,
    /// Any unit low, none busy.
    Starved,
    /// Breaching, and none of the above, or a needed reading absent.
    Unknown,
}

impl Signature {
    /// The word in reasons, JSON and tables.
    pub fn word(self) -> &'static str {
        match self {
            Signature::Idle => "idle",
            Signature::Hung => "hung",
            Signature::Starved => "starved",
            Signature::Unknown => "unknown",
        }
    }

    /// The most it may ask for.
    pub fn most(self) -> Verdict {
        match self {
            Signature::Idle | Signature::Hung => Verdict::Cancel,
            Signature::Starved | Signature::Unknown => Verdict::Alert,
        }
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Above a card's own empty level this much memory is held by somebody (a driver's own use stays below).
const HELD_ABOVE_EMPTY_BYTES: u64 = 250 << 20;

/// Whether one unit is empty at one tick, holds something, or cannot say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    Empty,
    Held,
    CannotSay,
}

/// The most an empty unit of this series showed; never more than 2 % of its memory (driver reservation reads
/// up to 1.6 %), so that a leak can not pass as a card's empty level.
fn empty_level(series: &Series, unit: usize) -> MemoryBytes {
    let seen = series.ticks.iter().map(|tick| &tick.units[unit]);
    let empty = seen.filter(|o| matches!(o.processes, Reading::Measured(p) if p.compute == 0));
    let lowest = empty.filter_map(|o| o.memory.measured()).map(|m| m.used.0.min(m.total.0 / 50)).min();
    // Without such a tick: v2 leaves the reservation out, v1 counts it as used.
    let untouched = series.ticks.last().and_then(|t| t.units[unit].memory.measured().copied());
    let reserved = untouched.map(|m| if m.excludes_reserved { 0 } else { m.total.0 / 50 });
    MemoryBytes(lowest.or(reserved).unwrap_or(0))
}

fn hold(seen: &Observation, empty: MemoryBytes, thresholds: &Thresholds) -> Hold {
    let held_bytes = |limit: u64| seen.memory.map(|m| m.used.0 > limit);
    match seen.processes {
        Reading::Measured(p) if p.compute > 0 => Hold::Held,
        Reading::Measured(_) => match held_bytes(empty.0.saturating_add(HELD_ABOVE_EMPTY_BYTES)) {
            Reading::Measured(true) => Hold::Held,
            // Memory unreadable (unified-memory parts): a readable, empty process list suffices.
            Reading::Measured(false) | Reading::Absent(_) => Hold::Empty,
        },
        Reading::Absent(_) => {
            match seen.memory.map(|m| m.used.0 as f64 > m.total.0 as f64 * thresholds.mem_held_fraction) {
                Reading::Measured(true) => Hold::Held,
                // "Cannot say" blocks idle.
                Reading::Measured(false) | Reading::Absent(_) => Hold::CannotSay,
            }
        }
    }
}

/// Whether the interval's power vetoes `idle` on this unit at tick `t`.
fn draws_more_than_empty(series: &Series, t: usize, unit: usize, thresholds: &Thresholds) -> bool {
    let seen = &series.ticks[t].units[unit];
    let drawn = match (series.means[t][unit], seen.power) {
        (Reading::Measured(mean), _) => mean,
        (Reading::Absent(_), Reading::Measured(now)) => now,
        (Reading::Absent(_), Reading::Absent(_)) => return false,
    };
    match (thresholds.idle_power, series.floors[t][unit].empty) {
        (Auto::Set(limit_mw), _) => drawn.0 > limit_mw,
        (Auto::Auto, Reading::Measured(floor)) => well_above(drawn, floor),
        (Auto::Auto, Reading::Absent(_)) => false,
    }
}

/// Below which line every unit stayed over the evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing above zero.
    Zero,
    /// Zero, or spin-shaped.
    Dead,
    /// Anything but busy.
    Quiet,
}

impl Look {
    /// From the strictest to the widest.
    pub const ALL: [Look; 3] = [Look::Zero, Look::Dead, Look::Quiet];

    /// Whether a level keeps this look.
    pub fn keeps(self, level: Level) -> bool {
        match self {
            Look::Zero => level == Level::Zero,
            Look::Dead => matches!(level, Level::Zero | Level::Spin),
            Look::Quiet => level != Level::Busy,
        }
    }
}

/// The signature of a breach of this look; read off its newest window, so that one reading that failed hours ago
/// does not decide. Only evidence without anything above zero can be more than `starved` or `unknown`.
pub fn classify(
    series: &Series,
    evidence: &Evidence,
    look: Look,
    units: &[usize],
    thresholds: &Thresholds,
) -> Signature {
    let window = series.window_start().max(evidence.since_tick());
    let span = || window..series.ticks.len();
    let any_level = |wanted: Level| units.iter().any(|&u| span().any(|t| series.levels[t][u] == wanted));
    match look {
        Look::Zero => {}
        Look::Quiet if any_level(Level::Low) && !any_level(Level::Spin) => return Signature::Starved,
        Look::Quiet | Look::Dead => return Signature::Unknown,
    }
    let mut holds = Vec::new();
    for &unit in units {
        let empty = empty_level(series, unit);
        holds.extend(span().map(|t| hold(&series.ticks[t].units[unit], empty, thresholds)));
    }
    let vetoed =
        || units.iter().any(|&u| span().skip(1).any(|t| draws_more_than_empty(series, t, u, thresholds)));
    if holds.contains(&Hold::CannotSay) {
        Signature::Unknown
    } else if holds.contains(&Hold::Held) {
        Signature::Hung
    } else if vetoed() {
        Signature::Unknown
    } else {
        Signature::Idle
    }
}

/// The last tick of the evidence at which it could not be said whether the units were empty or held.
pub fn last_unclear(
    series: &Series,
    evidence: &Evidence,
    units: &[usize],
    thresholds: &Thresholds,
) -> Option<usize> {
    let unclear = |&unit: &usize| {
        let empty = empty_level(series, unit);
        (evidence.since_tick() + 1..series.ticks.len()).rev().find(|&t| {
            match hold(&series.ticks[t].units[unit], empty, thresholds) {
                Hold::CannotSay => true,
                Hold::Empty => draws_more_than_empty(series, t, unit, thresholds),
                Hold::Held => false,
            }
        })
    };
    units.iter().filter_map(unclear).max()
}

//! What one unit did in one tick, on peaks: zero, low, busy or spin-shaped. An unreadable utilization is a
//! level of its own, never zero.

use super::Thresholds;
use crate::model::{Observation, Readings, Tick};
use crate::reading::{Absence, Reading};
use crate::units::{Milliwatts, Percent};

/// A unit at one tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Peak below 1 %.
    Zero,
    /// Peak from 1 % to below `util_pct`.
    Low,
    /// Peak from `util_pct` up, not spin-shaped; or the interval's energy says that work was done.
    Busy,
    /// 95 % or more, memory controller at 1 % or less, mean power below 0.4 of the limit: the look of a
    /// collective that busy-waits (facts: four of four real hangs).
    Spin,
    /// Utilization is not readable.
    Unreadable(Absence),
}

/// At this and above a kernel was resident all the time.
const SPIN_UTIL_PCT: u32 = 95;
/// A spinning kernel hardly touches memory; healthy inference at low watts reads 12 to 23.
const SPIN_MEM_PCT: u32 = 1;

/// What a card draws at rest: the lowest instant power seen while nothing ran, over the window up to a tick. Older
/// instants are of another clock state, or of another context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floors {
    /// No process on the card.
    pub empty: Reading<Milliwatts>,
    /// At least one process resident (a context alone costs 4 to 60 W).
    pub context: Reading<Milliwatts>,
    /// Where the process list is unreadable: whichever of the two it was.
    pub unlisted: Reading<Milliwatts>,
}

/// The highest utilization seen by instant or ring; absent only where the instant is.
pub fn peak(instant: Reading<Percent>, ring: &Reading<crate::model::Peak>) -> Reading<Percent> {
    instant.map(|now| match ring {
        Reading::Measured(ring) => now.max(ring.percent),
        Reading::Absent(_) => now,
    })
}

/// Whether these readings alone prove work, whatever came before: replay may stop here. Stricter than
/// [`Level::Busy`]: what could still be spin-shaped proves nothing.
pub fn is_work<P>(read: &Readings<P>, thresholds: &Thresholds) -> bool {
    let Reading::Measured(util) = peak(read.sm_util, &read.sm_peak) else { return false };
    let memory = peak(read.mem_util, &read.mem_peak);
    let memory_works = matches!(memory, Reading::Measured(m) if m.get() > SPIN_MEM_PCT);
    util.get() >= thresholds.util_pct && (util.get() < SPIN_UTIL_PCT || memory_works)
}

/// Mean power of one unit over the whole interval between two ticks, from its energy counter.
///
/// Absent where either end is, where the driver changed, or where the difference is not plausible
/// (a counter that went back, or more than 1.5 times the limit).
pub fn mean_power(before: &Tick, after: &Tick, unit: usize) -> Reading<Milliwatts> {
    let (a, b) = (&before.units[unit], &after.units[unit]);
    let (Reading::Measured(from), Reading::Measured(to)) = (a.energy, b.energy) else {
        return Reading::Absent(b.energy.absence().or(a.energy.absence()).unwrap_or(Absence::NotRecorded));
    };
    let elapsed_ms = after.at.since_ms(before.at);
    if elapsed_ms <= 0 || to < from || before.driver.measured() != after.driver.measured() {
        return Reading::Absent(Absence::CounterReset);
    }
    // mJ per ms is W.
    let mean = Milliwatts((to.0 - from.0).saturating_mul(1000) / elapsed_ms as u64);
    match b.power_limit {
        Reading::Measured(limit) if mean.0 > limit.0 + limit.0 / 2 => Reading::Absent(Absence::Implausible),
        _ => Reading::Measured(mean),
    }
}

/// Well above a floor: a quarter more. Real waits stay within 1.15 of the card's idle-with-context.
pub fn well_above(mean: Milliwatts, floor: Milliwatts) -> bool {
    mean.0 > floor.0 + floor.0 / 4
}

fn resident(seen: &Observation) -> Reading<bool> {
    seen.processes.map(|count| count.compute > 0)
}

/// The floors of one unit over these ticks: instants at which it certainly rested.
pub fn floors(ticks: &[Tick], unit: usize) -> Floors {
    let none = Reading::Absent(Absence::NoData);
    let mut floors = Floors { empty: none, context: none, unlisted: none };
    for seen in ticks.iter().map(|tick| &tick.units[unit]) {
        let rests = matches!(peak(seen.sm_util, &seen.sm_peak), Reading::Measured(p) if p.get() == 0);
        let Reading::Measured(power) = seen.power else { continue };
        if !rests || power.0 == 0 {
            continue;
        }
        let floor = match resident(seen) {
            Reading::Measured(true) => &mut floors.context,
            Reading::Measured(false) => &mut floors.empty,
            Reading::Absent(_) => &mut floors.unlisted,
        };
        *floor = match *floor {
            Reading::Measured(lowest) => Reading::Measured(lowest.min(power)),
            Reading::Absent(_) => Reading::Measured(power),
        };
    }
    floors
}

/// The floor that an interval ending in this observation is compared with.
pub fn floor_at(seen: &Observation, floors: &Floors) -> Reading<Milliwatts> {
    match (resident(seen), floors.context) {
        (Reading::Measured(true), context) => context,
        // A card that has just lost its last process may still rest at the higher floor.
        (Reading::Measured(false), Reading::Measured(context)) => Reading::Measured(context),
        (Reading::Measured(false), Reading::Absent(_)) => floors.empty,
        (Reading::Absent(_), _) => floors.unlisted,
    }
}

/// The level of one unit at the tick `at`. `mean` is its mean power since the tick before.
pub fn level(
    at: &Tick,
    unit: usize,
    mean: Reading<Milliwatts>,
    floors: &Floors,
    thresholds: &Thresholds,
) -> Level {
    let seen = &at.units[unit];
    let util = match peak(seen.sm_util, &seen.sm_peak) {
        Reading::Measured(util) => util.get(),
        Reading::Absent(why) => {
            // A ring that shows work is work, also where the instant failed.
            return match seen.sm_peak {
                Reading::Measured(ring) if ring.percent.get() >= thresholds.util_pct => Level::Busy,
                _ => Level::Unreadable(why),
            };
        }
    };
    if util >= SPIN_UTIL_PCT && spin_shaped(seen, mean) {
        return Level::Spin;
    }
    if util >= thresholds.util_pct || worked_by_energy(seen, mean, floors) {
        return Level::Busy;
    }
    if util == 0 { Level::Zero } else { Level::Low }
}

fn spin_shaped(seen: &Observation, mean: Reading<Milliwatts>) -> bool {
    let memory_rests =
        matches!(peak(seen.mem_util, &seen.mem_peak), Reading::Measured(m) if m.get() <= SPIN_MEM_PCT);
    let power = match mean {
        Reading::Measured(mean) => Reading::Measured(mean),
        Reading::Absent(_) => seen.power,
    };
    match (power, seen.power_limit) {
        (Reading::Measured(power), Reading::Measured(limit)) => memory_rests && power.0 * 10 < limit.0 * 4,
        _ => false,
    }
}

/// Guard `energy`: an interval whose mean power lies well above the floor with a context was work. Veto only.
fn worked_by_energy(seen: &Observation, mean: Reading<Milliwatts>, floors: &Floors) -> bool {
    let floor = match resident(seen) {
        Reading::Measured(_) => floors.context,
        Reading::Absent(_) => floors.unlisted,
    };
    match (mean, floor) {
        (Reading::Measured(mean), Reading::Measured(floor)) => well_above(mean, floor),
        _ => false,
    }
}

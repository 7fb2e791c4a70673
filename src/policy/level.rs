//! What one unit did in one tick, on peaks: zero, low, busy, spin-shaped or throttled. What cannot be read, or is
//! not to be trusted, is a level of its own, never zero.

use super::Thresholds;
use super::floor::{self, Floors, resident, rest_of, rests, well_above, well_above_learnt};
pub use super::interval::peak;
use super::interval::{self, Moment};
use crate::model::{Field, LearntFloors, Observation, Readings, Rest};
use crate::reading::{Absence, Reading};
use crate::units::{ClocksEventMask, Milliwatts};

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
    /// Utilized, and slowed by hardware or heat to less than half its clock and well below its power limit.
    Throttled,
    /// Utilization is not readable, or not to be trusted, or the card cannot be used.
    Unreadable(Absence),
}

/// At this and above a kernel was resident all the time.
const SPIN_UTIL_PCT: u32 = 95;
/// A spinning kernel hardly touches memory; healthy inference at low watts reads 12 to 23.
const SPIN_MEM_PCT: u32 = 1;

/// Whether these readings alone prove work, whatever came before. Stricter than [`Level::Busy`]: what could still
/// be spin-shaped proves nothing.
pub fn is_work<P>(read: &Readings<P>, thresholds: &Thresholds) -> bool {
    let Reading::Measured(util) = peak(read.sm_util, &read.sm_peak) else { return false };
    let memory = peak(read.mem_util, &read.mem_peak);
    let memory_works = matches!(memory, Reading::Measured(m) if m.get() > SPIN_MEM_PCT);
    util.get() >= thresholds.util_pct && (util.get() < SPIN_UTIL_PCT || memory_works)
}

/// Whether nothing older can matter once a unit has shown this: it works, and nothing can be slowing it.
pub fn settles<P>(read: &Readings<P>, thresholds: &Thresholds) -> bool {
    is_work(read, thresholds) && !at_low_clocks(read)
}

/// Below half of the highest clock.
fn at_low_clocks<P>(read: &Readings<P>) -> bool {
    match (read.sm_clock, read.sm_clock_max) {
        (Reading::Measured(clock), Reading::Measured(most)) => clock.0.saturating_mul(2) < most.0,
        _ => false,
    }
}

/// Clock below half of its maximum and power below 0.6 of its limit: the power cap and application clocks look
/// otherwise (TH-01 was 385 of 1785 MHz at 160 of 400 W).
fn runs_slow<P>(read: &Readings<P>, power: Reading<Milliwatts>) -> bool {
    match (power, read.power_limit) {
        (Reading::Measured(power), Reading::Measured(limit)) => {
            at_low_clocks(read) && power.0 * 10 < limit.0 * 6
        }
        _ => false,
    }
}

/// Clocks-event reasons that are no normal operation (nvml.h): hardware slow-down 0x8, software thermal 0x20,
/// hardware thermal 0x40, hardware power brake 0x80. Bits that are not known mean nothing here.
const SLOWING: u64 = 0x8 | 0x20 | 0x40 | 0x80;

/// Whether these readings by themselves show a card that hardware or heat has slowed to less than half its clock, well
/// below its power limit.
pub fn is_slowed_by_hardware<P>(read: &Readings<P>) -> Reading<bool> {
    let known = read.power.absence().or(read.sm_clock.absence()).or(read.sm_clock_max.absence());
    match (read.clocks_event, known) {
        (Reading::Measured(mask), _) if !is_slowed(mask) => Reading::Measured(false),
        (Reading::Measured(_), None) => Reading::Measured(runs_slow(read, read.power)),
        (Reading::Measured(_), Some(why)) | (Reading::Absent(why), _) => Reading::Absent(why),
    }
}

fn is_slowed(mask: ClocksEventMask) -> bool {
    mask.0 & SLOWING != 0
}

/// The level of one instant by itself, where no run before it is known: the look before a deed.
pub fn at_a_glance<P>(read: &Readings<P>, thresholds: &Thresholds) -> Level {
    match peak(read.sm_util, &read.sm_peak) {
        Reading::Absent(why) => Level::Unreadable(why),
        Reading::Measured(p) if p.get() >= SPIN_UTIL_PCT && is_spin_shaped(read, read.power) => Level::Spin,
        Reading::Measured(p) if p.get() >= thresholds.util_pct => Level::Busy,
        Reading::Measured(p) if p.get() > 0 => Level::Low,
        Reading::Measured(_) => Level::Zero,
    }
}

/// The memory controller rests and power is below 0.4 of the limit; no such shape where either cannot be read.
fn is_spin_shaped<P>(read: &Readings<P>, power: Reading<Milliwatts>) -> bool {
    let memory = peak(read.mem_util, &read.mem_peak);
    let memory_rests = matches!(memory, Reading::Measured(m) if m.get() <= SPIN_MEM_PCT);
    match (power, read.power_limit) {
        (Reading::Measured(power), Reading::Measured(limit)) => memory_rests && power.0 * 10 < limit.0 * 4,
        _ => false,
    }
}

/// One unit at one tick, with what its counters and floors say.
#[derive(Clone, Copy)]
pub struct Glance<'a> {
    /// What it said.
    pub seen: &'a Observation,
    /// Its mean power since the tick before.
    pub mean: Reading<Milliwatts>,
    /// The tick before and this one, where there is one before.
    pub interval: Option<(Moment<'a>, Moment<'a>)>,
    /// What it drew at rest over the window.
    pub floors: &'a Floors,
    /// What it was learnt to draw at rest.
    pub learnt: LearntFloors,
}

impl Glance<'_> {
    /// Mean power of the interval, else the instant's.
    fn power(&self) -> Reading<Milliwatts> {
        match self.mean {
            Reading::Measured(mean) => Reading::Measured(mean),
            Reading::Absent(_) => self.seen.power,
        }
    }

    /// The higher of its instant powers at both ends of the interval.
    pub fn ends(&self) -> Reading<Milliwatts> {
        let Some((before, now)) = self.interval else { return Reading::Absent(Absence::NotRecorded) };
        before.seen.power.and_then(|a| now.seen.power.map(|b| a.max(b)))
    }

    /// The level of this unit at this tick.
    pub fn level(&self, thresholds: &Thresholds) -> Level {
        let seen = self.seen;
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
        if is_ghost(seen, thresholds) {
            return Level::Unreadable(Absence::Implausible);
        }
        let utilized = util >= thresholds.util_pct;
        if utilized && self.is_throttled() {
            return Level::Throttled;
        }
        let spins = util >= SPIN_UTIL_PCT && is_spin_shaped(seen, self.power());
        if !spins && (utilized || self.worked_by_energy()) {
            return Level::Busy;
        }
        // The driver wants this card reset or drained: that nothing runs on it is not the job's doing
        // (NVIDIA/DCGM#263).
        if matches!(seen.fields.get(Field::RecoveryAction), Reading::Measured(n) if n > 0) {
            return Level::Unreadable(Absence::ResetRequired);
        }
        if spins {
            return Level::Spin;
        }
        // Copies are no kernels, and no silence: offloading, loading, GPUDirect.
        let memory = peak(seen.mem_util, &seen.mem_peak);
        let copies = matches!(memory, Reading::Measured(m) if m.get() > SPIN_MEM_PCT);
        if util == 0 && !copies { Level::Zero } else { Level::Low }
    }

    fn is_throttled(&self) -> bool {
        let now = matches!(self.seen.clocks_event, Reading::Measured(mask) if is_slowed(mask));
        let long = || {
            let slowed = self.interval.map(|(before, now)| interval::slowed_permille(before, now));
            matches!(slowed, Some(Reading::Measured(share)) if share >= 500)
        };
        runs_slow(self.seen, self.power()) && (now || long())
    }

    /// Guard `energy`: an interval whose mean power lies well above the floor with a context was work; so was one
    /// that drew well more than either instant at its ends, where nothing rested and there is no floor. Veto only.
    fn worked_by_energy(&self) -> bool {
        let above = |floor: Reading<Milliwatts>, well_above: fn(Milliwatts, Milliwatts) -> bool| matches!((self.mean, floor), (Reading::Measured(mean), Reading::Measured(f)) if well_above(mean, f));
        // A card that clocks down at rest has drawn more before it did (RTX A6000: 80 W, then 27): that is no work.
        if above(self.ends(), well_above) || self.clocks_fell() {
            return above(self.ends(), well_above);
        }
        let window = match resident(self.seen) {
            Reading::Measured(_) => self.floors.context,
            Reading::Absent(_) => self.floors.unlisted,
        };
        let learnt = match rest_of(self.seen) {
            Reading::Measured(rest @ (Rest::ContextLow | Rest::ContextHigh)) => self.learnt.get(rest),
            _ => Reading::Absent(Absence::NotRecorded),
        };
        above(window, well_above) || above(learnt, well_above_learnt)
    }

    /// Whether it rested at both ends of the interval, first with clocks up and then with clocks down.
    fn clocks_fell(&self) -> bool {
        let Some((before, now)) = self.interval else { return false };
        let high = |seen| matches!(rest_of(seen), Reading::Measured(Rest::ContextHigh | Rest::EmptyHigh));
        let low = |seen| matches!(rest_of(seen), Reading::Measured(Rest::ContextLow | Rest::EmptyLow));
        rests(before.seen) && rests(now.seen) && high(before.seen) && low(now.seen)
    }

    /// Whether the unit's energy since the tick before says that it stayed at its floor. Absent says nothing, nor does
    /// a counter that stood still or counts on another scale than the sensor: well below every floor.
    pub fn rested(&self) -> bool {
        let floors = [self.floors.empty, self.floors.context, self.floors.unlisted];
        let lowest = floors.iter().filter_map(Reading::measured).min();
        match (self.mean, floor::floor_at(self.seen, self.floors), lowest) {
            (Reading::Measured(mean), Reading::Measured(floor), Some(lowest)) => {
                !well_above(mean, floor) && mean.0 >= lowest.0 - lowest.0 / 4
            }
            _ => false,
        }
    }
}

/// Utilization on a card without any process and with empty memory: a counter that stands still after its process
/// died (Datura-ai/lium-io#1140 saw 100 % for nine days).
fn is_ghost(seen: &Observation, thresholds: &Thresholds) -> bool {
    let util = matches!(seen.sm_util, Reading::Measured(p) if p.get() >= thresholds.util_pct);
    let nobody = matches!(seen.processes, Reading::Measured(p) if p.compute + p.graphics == 0);
    let empty = matches!(seen.memory, Reading::Measured(m) if m.used.0 <= m.total.0 / 50);
    util && nobody && empty
}

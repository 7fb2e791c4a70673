//! What a card draws at rest: over the window at hand, and as this node learnt it over the card's life. A floor only
//! ever vetoes: more power than it was work.

use super::interval::{self, Moment, peak};
use crate::model::{Observation, Rest, Tick};
use crate::reading::{Absence, Reading};
use crate::units::{BootMs, Milliwatts};
use std::collections::VecDeque;

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

/// Well above a floor: a quarter more. Real waits stay within 1.15 of the card's idle-with-context.
pub fn well_above(mean: Milliwatts, floor: Milliwatts) -> bool {
    mean.0 > floor.0 + floor.0 / 4
}

/// Well above a floor that was learnt long ago: cards vary with heat and driver by a few watts, whatever their size.
pub fn well_above_learnt(mean: Milliwatts, floor: Milliwatts) -> bool {
    const SLACK_MW: u64 = 15_000;
    mean.0 > floor.0 + (floor.0 / 4).max(SLACK_MW)
}

/// Whether a process has a context on it.
pub fn resident(seen: &Observation) -> Reading<bool> {
    seen.processes.map(|count| count.compute > 0)
}

/// Nothing ran, by instant and ring.
pub fn rests(seen: &Observation) -> bool {
    matches!(peak(seen.sm_util, &seen.sm_peak), Reading::Measured(p) if p.get() == 0)
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

/// A window's lowest value, as the window moves on.
#[derive(Default)]
struct Lowest(VecDeque<(BootMs, Milliwatts)>);

impl Lowest {
    fn push(&mut self, at: BootMs, power: Milliwatts) {
        while self.0.back().is_some_and(|(_, last)| *last >= power) {
            self.0.pop_back();
        }
        self.0.push_back((at, power));
    }

    fn at(&mut self, now: BootMs, window_ms: i64) -> Reading<Milliwatts> {
        while self.0.front().is_some_and(|(at, _)| now.since_ms(*at) > window_ms) {
            self.0.pop_front();
        }
        self.0.front().map_or(Reading::Absent(Absence::NoData), |(_, power)| Reading::Measured(*power))
    }
}

/// The floors of one unit at each tick: instants at which it certainly rested, within a window up to that tick.
pub fn floors(ticks: &[Tick], unit: usize, window_ms: i64) -> Vec<Floors> {
    let (mut empty, mut context, mut unlisted) = (Lowest::default(), Lowest::default(), Lowest::default());
    let up_to = |tick: &Tick| {
        let seen = &tick.units[unit];
        if let Reading::Measured(power) = seen.power
            && power.0 > 0
            && rests(seen)
        {
            match resident(seen) {
                Reading::Measured(true) => context.push(tick.at, power),
                Reading::Measured(false) => empty.push(tick.at, power),
                Reading::Absent(_) => unlisted.push(tick.at, power),
            }
        }
        Floors {
            empty: empty.at(tick.at, window_ms),
            context: context.at(tick.at, window_ms),
            unlisted: unlisted.at(tick.at, window_ms),
        }
    };
    ticks.iter().map(up_to).collect()
}

/// How this card rests, if it rests: with or without a context, clocks up or down. A card that rests at high clocks
/// draws up to eight times as much as with clocks down (RTX 3090: 18 and 114 W).
pub fn rest_of(seen: &Observation) -> Reading<Rest> {
    resident(seen).and_then(|resident| {
        seen.sm_clock.and_then(|clock| {
            seen.sm_clock_max.map(|most| match (resident, clock.0.saturating_mul(2) >= most.0) {
                (false, false) => Rest::EmptyLow,
                (false, true) => Rest::EmptyHigh,
                (true, false) => Rest::ContextLow,
                (true, true) => Rest::ContextHigh,
            })
        })
    })
}

/// Whether a card as it is seen now rests in a way that can be learnt; asked before the run before it is looked up.
pub fn may_be_learnt(seen: &Observation) -> bool {
    rests(seen) && rest_of(seen).measured().is_some() && seen.energy.measured().is_some()
}

/// The mean power of an interval in which this card certainly rested, to be learnt: nothing ran at either end by
/// instant and ring, in one way to rest, and the energy of the whole time is what the instants drew.
pub fn rested(before: Moment, after: Moment) -> Option<(Rest, Milliwatts)> {
    let (Reading::Measured(rest), Reading::Measured(was)) = (rest_of(after.seen), rest_of(before.seen))
    else {
        return None;
    };
    let (Reading::Measured(a), Reading::Measured(b)) = (before.seen.power, after.seen.power) else {
        return None;
    };
    let mean = *interval::mean_power(before, after).measured()?;
    let flat = (9..=11).contains(&(mean.0 * 10 / a.0.min(b.0).max(1)));
    (rest == was && rests(before.seen) && rests(after.seen) && flat).then_some((rest, mean))
}

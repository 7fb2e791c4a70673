//! What a breach looks like, and the most that look may ask for. Words state facts, not guilt. Each signature has one
//! reference form ([`Rule`]); README, the manual page and `--explain` print that and nothing else.

use super::floor::{rest_of, well_above, well_above_learnt};
use super::interval;
use super::level::Level;
use super::window::{Evidence, Series};
use super::{Auto, Rules, Thresholds};
use crate::model::{Memory, Observation, Rest, Verdict};
use crate::reading::{Absence, Reading};
use crate::units::{MemoryBytes, Milliwatts};
use std::fmt;

/// The look of a breach, in the order in which they are tried: the first that fits is it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// Hardware or heat slows a unit that works: the node's trouble.
    Throttled,
    /// Kernels busy-wait: a collective whose partner is gone.
    Spinning,
    /// Every unit zero, nobody on it.
    Idle,
    /// Every unit zero, somebody on it.
    Hung,
    /// Any unit low, none busy.
    Starved,
    /// Breaching, and none of the above, or a needed reading absent.
    Unknown,
}

/// A signature's rule in its reference form. All of it over one whole certified window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What it reads.
    pub inputs: &'static str,
    /// When it fits.
    pub breaches_if: &'static str,
    /// The most it may ask for.
    pub most: &'static str,
}

impl Signature {
    /// In the order in which they are tried.
    pub const ALL: [Signature; 6] = [
        Signature::Throttled,
        Signature::Spinning,
        Signature::Idle,
        Signature::Hung,
        Signature::Starved,
        Signature::Unknown,
    ];

    /// The word in reasons, JSON and tables.
    pub fn word(self) -> &'static str {
        match self {
            Signature::Throttled => "throttled",
            Signature::Spinning => "spinning",
            Signature::Idle => "idle",
            Signature::Hung => "hung",
            Signature::Starved => "starved",
            Signature::Unknown => "unknown",
        }
    }

    /// The signature of this word.
    pub fn from_word(word: &str) -> Option<Signature> {
        Signature::ALL.into_iter().find(|signature| signature.word() == word)
    }

    /// The most it may ask for. Only [`Signature::Spinning`] has a say of the site's in it.
    pub fn most(self, rules: &Rules) -> Verdict {
        match self {
            Signature::Spinning => rules.spinning,
            Signature::Idle | Signature::Hung => Verdict::Cancel,
            Signature::Throttled | Signature::Starved | Signature::Unknown => Verdict::Alert,
        }
    }

    /// Below which line every unit of it stands.
    pub fn look(self) -> Look {
        match self {
            Signature::Throttled => Look::Throttled,
            Signature::Spinning => Look::Dead,
            Signature::Idle | Signature::Hung => Look::Zero,
            Signature::Starved | Signature::Unknown => Look::Quiet,
        }
    }

    /// Its reference form.
    pub fn rule(self) -> Rule {
        let (inputs, breaches_if, most) = match self {
            Signature::Throttled => (
                "utilization, clocks-event reasons or throttle times, SM clock, power",
                "a unit utilized all the time, slowed by hardware slow-down, heat or power brake, below half its \
                 clock and below 0.6 of its power limit",
                "alert, about the node",
            ),
            Signature::Spinning => (
                "utilization, memory-controller utilization, power, process list or memory, PCIe and NVLink bytes",
                "every unit zero or spin-shaped (95 % or more, memory controller at 1 % or less, below 0.4 of \
                 the power limit) and one of them spin-shaped; held by a process each; active earlier; power \
                 steady; traffic flat where it can be read",
                "drain; `signatures.spinning` says otherwise",
            ),
            Signature::Idle => (
                "utilization, memory-controller utilization, process list, memory, holders of the device file, power",
                "every unit zero, no process, memory and power at the card's empty level, device file not open",
                "cancel",
            ),
            Signature::Hung => (
                "utilization, memory-controller utilization, process list or memory",
                "every unit zero, and held at every sample by processes or memory",
                "cancel",
            ),
            Signature::Starved => {
                ("utilization", "any unit above zero, none at `util_pct` or above, none spin-shaped", "alert")
            }
            Signature::Unknown => ("any", "breaching, none of the above, or an input is absent", "alert"),
        };
        Rule { inputs, breaches_if, most }
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Below which line every unit stayed over the evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Utilized, and slowed all the time.
    Throttled,
    /// Nothing above zero.
    Zero,
    /// Zero, or spin-shaped.
    Dead,
    /// Anything but busy.
    Quiet,
}

impl Look {
    /// Looks at a whole job without work, from the strictest to the widest.
    pub const QUIET: [Look; 3] = [Look::Zero, Look::Dead, Look::Quiet];

    /// Whether a level keeps this look.
    pub fn keeps(self, level: Level) -> bool {
        match self {
            Look::Throttled => level == Level::Throttled,
            Look::Zero => level == Level::Zero,
            Look::Dead => matches!(level, Level::Zero | Level::Spin),
            Look::Quiet => !matches!(level, Level::Busy | Level::Throttled),
        }
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

/// What an empty unit holds at most: NVML's v2 call leaves the driver's reservation out, v1 counts it as used (it
/// reads up to 1.6 % of a card's memory).
fn level_of(memory: &Memory) -> u64 {
    if memory.excludes_reserved { 0 } else { memory.total.0 / 50 }
}

/// Whether this is the empty level of a card: what `idle` calls memory empty.
pub fn is_empty(memory: &Memory) -> bool {
    memory.used.0 <= level_of(memory).saturating_add(HELD_ABOVE_EMPTY_BYTES)
}

fn empty_level(series: &Series, unit: usize) -> MemoryBytes {
    let newest = series.ticks.last().and_then(|t| t.units[unit].memory.measured());
    MemoryBytes(newest.map_or(0, level_of))
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

/// What a signature is read off: a history, some units of it, the law.
pub struct Scene<'a> {
    /// The history.
    pub series: &'a Series<'a>,
    /// Which units, by their place in it.
    pub units: &'a [usize],
    thresholds: &'a Thresholds,
    active: bool,
    /// The empty level of each of the units.
    empty: Vec<MemoryBytes>,
}

impl<'a> Scene<'a> {
    /// `active`: whether the job run has ever been seen at work.
    pub fn new(
        series: &'a Series,
        units: &'a [usize],
        thresholds: &'a Thresholds,
        active: bool,
    ) -> Scene<'a> {
        let empty = units.iter().map(|&u| empty_level(series, u)).collect();
        Scene { series, units, thresholds, active, empty }
    }

    fn seen(&self, t: usize, unit: usize) -> &Observation {
        &self.series.ticks[t].units[unit]
    }

    /// The newest window of a breach: one reading that failed hours ago does not decide.
    fn window(&self, evidence: &Evidence) -> std::ops::Range<usize> {
        self.series.window_start().max(evidence.since_tick())..self.series.ticks.len()
    }

    fn any_level(&self, evidence: &Evidence, wanted: Level) -> bool {
        let shows = |t: usize, u: &usize| self.series.levels[t][*u] == wanted;
        self.window(evidence).any(|t| self.units.iter().any(|u| shows(t, u)))
    }

    /// The signature of a breach of this look.
    pub fn classify(&self, evidence: &Evidence, look: Look) -> Signature {
        match look {
            Look::Throttled => Signature::Throttled,
            Look::Zero => self.at_zero(evidence),
            Look::Dead if self.spins(evidence) => Signature::Spinning,
            Look::Quiet if self.any_level(evidence, Level::Low) && !self.any_level(evidence, Level::Spin) => {
                Signature::Starved
            }
            Look::Dead | Look::Quiet => Signature::Unknown,
        }
    }

    fn at_zero(&self, evidence: &Evidence) -> Signature {
        if self.is_empty(evidence) {
            return match self.holders() {
                Reading::Measured(0) => Signature::Idle,
                Reading::Measured(_) | Reading::Absent(_) => Signature::Unknown,
            };
        }
        // At every tick: somebody who came this minute did not hang for an hour.
        let held = |t: usize| {
            self.holds(t).any(|hold| hold == Hold::Held) && self.holds(t).all(|hold| hold != Hold::CannotSay)
        };
        if self.window(evidence).all(held) { Signature::Hung } else { Signature::Unknown }
    }

    /// No process, memory and power at the card's empty level: idle, unless /proc knows a holder.
    fn is_empty(&self, evidence: &Evidence) -> bool {
        let mut window = self.window(evidence);
        let first = window.start;
        window.all(|t| {
            // The interval before the first tick is not the breach's.
            let vetoed = |u: &usize| t > first && self.draws_more_than_empty(t, *u);
            self.holds(t).all(|hold| hold == Hold::Empty) && !self.units.iter().any(vetoed)
        })
    }

    /// Why a breach is no more than `unknown`: the first doubt, in words.
    pub fn doubts(&self, evidence: &Evidence) -> Option<String> {
        let window = || self.window(evidence);
        let holds = |wanted: Hold| window().any(|t| self.holds(t).any(|hold| hold == wanted));
        let first = window().start;
        if self.any_level(evidence, Level::Spin) {
            return Some(match () {
                _ if !self.active => "never seen at work before".to_owned(),
                _ if !window().all(|t| self.is_held_by_processes(t)) => {
                    "not on every one a process can be seen".to_owned()
                }
                _ if !window().all(|t| t == first || self.waits(t)) => {
                    "power or traffic rose meanwhile, as in slow work".to_owned()
                }
                _ => "beside the full ones some are utilized a little".to_owned(),
            });
        }
        if holds(Hold::CannotSay) {
            return Some("neither process list nor memory says whether it is held".to_owned());
        }
        if holds(Hold::Held) {
            return Some("held at some times and empty at others".to_owned());
        }
        if window().any(|t| t > first && self.units.iter().any(|u| self.draws_more_than_empty(t, *u))) {
            return Some("no process, and more power than an empty card draws".to_owned());
        }
        Some(match self.holders() {
            Reading::Measured(n) => {
                format!("{n} processes that the driver does not list hold a device file open")
            }
            Reading::Absent(why) => format!("who holds the device files open is not known: {}", why.words()),
        })
    }

    /// Who holds the device files, as the newest run asked.
    fn holders(&self) -> Reading<u32> {
        self.series.ticks.last().map_or(Reading::Absent(Absence::NoData), |tick| tick.job.holders)
    }

    /// Whether only the witness in /proc is lacking, and was not asked: then it is to be asked, and judged again.
    pub fn wants_witness(&self, evidence: &Evidence, look: Look) -> bool {
        look == Look::Zero && self.holders() == Reading::Absent(Absence::NotAsked) && self.is_empty(evidence)
    }

    /// Kernels that busy-wait, and nothing that speaks against it.
    fn spins(&self, evidence: &Evidence) -> bool {
        let mut window = self.window(evidence);
        let first = window.start;
        self.active
            && self.any_level(evidence, Level::Spin)
            && window.all(|t| self.is_held_by_processes(t) && (t == first || self.waits(t)))
    }

    /// Every unit is held, and none by memory alone where a process list can be read: what a dead process left behind
    /// does not spin.
    fn is_held_by_processes(&self, t: usize) -> bool {
        let nobody = |u: &usize| matches!(self.seen(t, *u).processes, Reading::Measured(p) if p.compute == 0);
        self.holds(t).all(|hold| hold == Hold::Held) && !self.units.iter().any(nobody)
    }

    /// Over the interval before tick `t` no unit moved anything, and none that spins drew more than before: a wait is
    /// steady (real ones within 2 W for an hour), slow progress is not (QwenLM/Qwen#970).
    fn waits(&self, t: usize) -> bool {
        let Some(before) = t.checked_sub(1) else { return false };
        self.units.iter().all(|&u| {
            let (then, now) = (self.series.ticks[before].moment(u), self.series.ticks[t].moment(u));
            let still = match interval::traffic(then, now) {
                Reading::Measured(moved) => !moved,
                // "Where it can be read": a counter that went back could be read, and says nothing.
                Reading::Absent(why) => why == Absence::NotSupported,
            };
            still && self.is_steady(t, u)
        })
    }

    /// A unit that spins draws no more than in the interval before.
    fn is_steady(&self, t: usize, unit: usize) -> bool {
        if self.series.levels[t][unit] != Level::Spin {
            return true;
        }
        match (self.drawn(t - 1, unit), self.drawn(t, unit)) {
            (Reading::Measured(before), Reading::Measured(now)) => !well_above(now, before),
            _ => false,
        }
    }

    fn drawn(&self, t: usize, unit: usize) -> Reading<Milliwatts> {
        match self.series.means[t][unit] {
            Reading::Measured(mean) => Reading::Measured(mean),
            Reading::Absent(_) => self.seen(t, unit).power,
        }
    }

    fn holds(&self, t: usize) -> impl Iterator<Item = Hold> {
        let units = self.units.iter().zip(&self.empty);
        units.map(move |(&u, &empty)| hold(self.seen(t, u), empty, self.thresholds))
    }

    /// Whether power vetoes `idle` on this unit at tick `t`: of the interval, else of the instant.
    fn draws_more_than_empty(&self, t: usize, unit: usize) -> bool {
        let Reading::Measured(drawn) = self.drawn(t, unit) else { return false };
        let learnt = match rest_of(self.seen(t, unit)) {
            Reading::Measured(rest @ (Rest::EmptyLow | Rest::EmptyHigh)) => {
                self.series.learnt[unit].get(rest)
            }
            _ => Reading::Absent(Absence::NotRecorded),
        };
        match self.thresholds.idle_power {
            Auto::Set(limit_mw) => drawn.0 > limit_mw,
            Auto::Auto => {
                let window = self.series.floors(t, unit).empty;
                window.measured().is_some_and(|floor| well_above(drawn, *floor))
                    || learnt.measured().is_some_and(|floor| well_above_learnt(drawn, *floor))
            }
        }
    }

    /// The last tick of the evidence at which this look was not clear enough to ask for more than an alert.
    pub fn last_unclear(&self, evidence: &Evidence, look: Look) -> Option<usize> {
        let blind = |t: usize| self.series.ticks[t].job.frozen.measured().is_none();
        (evidence.since_tick() + 1..self.series.ticks.len()).rev().find(|&t| match look {
            Look::Zero => blind(t) || self.is_unclear(t),
            Look::Dead => blind(t) || !self.is_held_by_processes(t) || !self.waits(t),
            // Never more than an alert.
            Look::Throttled | Look::Quiet => true,
        })
    }

    /// Whether it could not be said at this tick if the units were empty or held, or that changed.
    fn is_unclear(&self, t: usize) -> bool {
        let unit_is = |(hold, &u): (Hold, &usize)| match hold {
            Hold::CannotSay => true,
            Hold::Empty => self.draws_more_than_empty(t, u),
            Hold::Held => false,
        };
        let witness_doubts = match self.series.ticks[t].job.holders {
            Reading::Measured(holders) => holders > 0,
            Reading::Absent(why) => !matches!(why, Absence::NotAsked | Absence::NotRecorded),
        };
        let held = |t: usize| self.holds(t).any(|hold| hold == Hold::Held);
        // Somebody came or went after it: what was seen up to then was another look.
        let changed = t + 1 < self.series.ticks.len() && held(t) != held(t + 1);
        changed || self.holds(t).zip(self.units).any(unit_is) || (witness_doubts && !held(t))
    }
}

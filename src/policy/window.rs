//! What a window is, and when it is certified: enough samples per unit, no hole, fresh, one boot and one job
//! run, every reading that the rule needs measured. [`certify`] is the only maker of [`Evidence`].

use super::floor::{self, Floors};
use super::interval;
use super::level::{self, Glance, Level};
use super::{Auto, Thresholds};
use crate::model::{Cadence, JobHistory, LearntFloors, OpenFinding, Tick};
use crate::reading::{Absence, Reading};
use crate::units::{BootMs, Milliwatts, human_ms};

/// Where most steps of a window are no longer, instants are evidence; else ring or energy counter must agree.
const INSTANT_CADENCE_MS: i64 = 45_000;
/// And up to this single step: slurmd is late at times, but nothing is known of what an instant did not see.
const INSTANT_STEP_MS: i64 = INSTANT_CADENCE_MS * 3 / 2;
/// Samples of a window below which no configuration goes: two instants are no history.
const FEWEST_SAMPLES: u32 = 3;

/// The numbers a window is held against, as this node's real cadence makes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long a breach must hold.
    pub window_ms: i64,
    /// The longest step between samples that is no hole.
    pub gap_ms: i64,
    /// Samples per unit within a window.
    pub min_samples: u32,
    /// The cadence they come from.
    pub cadence: Cadence,
    /// Configured numbers that this cadence can never meet, in words: what was taken instead.
    pub adapted: Vec<String>,
}

/// Limits for a cadence. Configured numbers that could never be met are replaced, and said so.
pub fn limits(thresholds: &Thresholds, cadence: Cadence) -> Limits {
    let mut adapted = Vec::new();
    let slow_ms = cadence.p90_ms.max(1);
    let mut window_ms = thresholds.window_ms;
    // Three steps and a hole of two must fit, else no window could ever hold four samples.
    if window_ms < 6 * slow_ms && thresholds.max_sample_gap == Auto::Auto {
        window_ms = 6 * slow_ms;
        adapted.push(format!(
            "`thresholds.window` is {} but runs come every {}; judged over {}",
            human_ms(thresholds.window_ms),
            human_ms(slow_ms),
            human_ms(window_ms)
        ));
    }
    let auto_gap_ms = (3 * slow_ms).max(90_000).min(window_ms / 3).max(slow_ms + slow_ms / 2);
    let gap_ms = match thresholds.max_sample_gap {
        Auto::Set(set) if set < slow_ms => {
            adapted.push(format!(
                "`thresholds.max_sample_gap` is {} but runs come every {}; {} was taken",
                human_ms(set),
                human_ms(slow_ms),
                human_ms(auto_gap_ms)
            ));
            auto_gap_ms
        }
        // A gap as long as the window would make two samples a window.
        Auto::Set(set) if set > window_ms / 2 && set > auto_gap_ms => {
            adapted.push(format!(
                "`thresholds.max_sample_gap` is {} but must fit twice into {}; {} was taken",
                human_ms(set),
                human_ms(window_ms),
                human_ms(auto_gap_ms)
            ));
            auto_gap_ms
        }
        Auto::Set(set) => set,
        Auto::Auto => auto_gap_ms,
    };
    let fits = (window_ms / cadence.median_ms.max(1)).clamp(0, i64::from(u32::MAX)) as u32;
    let auto_samples = (fits.saturating_mul(7) / 10).max(FEWEST_SAMPLES);
    let min_samples = match thresholds.min_samples {
        Auto::Set(set) if set > fits.saturating_add(1) => {
            adapted.push(format!(
                "`thresholds.min_samples` is {set} but a window of {} holds {fits}; {auto_samples} was taken",
                human_ms(window_ms)
            ));
            auto_samples
        }
        Auto::Set(set) => set.max(FEWEST_SAMPLES),
        Auto::Auto => auto_samples,
    };
    Limits { window_ms, gap_ms, min_samples, cadence, adapted }
}

/// Whether runs so far apart, as steady as a clock, come often enough for instants to speak for the time between them.
pub fn instants_suffice(interval_ms: i64) -> bool {
    interval_ms <= INSTANT_CADENCE_MS
}

/// Why a stretch does not reach further back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The unit worked at this instant, at this peak (percent; 0: by its energy alone).
    Work {
        /// When.
        at: BootMs,
        /// Peak utilization then.
        peak_pct: Reading<u32>,
    },
    /// Samples of the warm-up are not used.
    Warmup,
    /// A hole of so many milliseconds.
    Hole(i64),
    /// A reading that the rule needs is absent.
    Unreadable(Absence),
    /// The job was frozen or stopped.
    Frozen,
    /// A slow cadence without agreement of ring or energy.
    Sparse,
}

/// An uninterrupted run of ticks up to now in which a unit stayed below a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Index of its oldest tick; ticks.len() where it holds none.
    pub from: usize,
    /// Why it starts there.
    pub ended: Ended,
}

/// The levels and intervals of a history, computed once.
pub struct Series<'a> {
    /// The ticks, oldest first.
    pub ticks: &'a [Tick],
    /// Per tick, per unit: the level.
    pub levels: Vec<Vec<Level>>,
    /// Per tick, per unit: mean power since the tick before.
    pub means: Vec<Vec<Reading<Milliwatts>>>,
    /// Per unit: what it was learnt to draw at rest.
    pub learnt: Vec<LearntFloors>,
    /// Per unit, per tick: what it drew at rest over the window up to that tick.
    floors: Vec<Vec<Floors>>,
    /// Milliseconds of holes before each tick that the counters prove idle: the clock stands still there.
    paused_ms: Vec<i64>,
    /// Per tick: whether the runs up to it came often enough for instants to speak for the time between.
    dense: Vec<bool>,
    warm_from: BootMs,
    limits: &'a Limits,
    open_finding: Option<&'a OpenFinding>,
    units: usize,
}

impl<'a> Series<'a> {
    /// Reads the history through the thresholds.
    pub fn new(
        history: &'a JobHistory,
        units: usize,
        thresholds: &Thresholds,
        limits: &'a Limits,
    ) -> Series<'a> {
        let ticks = &history.ticks[..];
        let learnt = |u| history.floors.get(u).copied().unwrap_or_else(LearntFloors::none);
        let mut series = Series {
            ticks,
            levels: Vec::with_capacity(ticks.len()),
            means: (0..ticks.len()).map(|t| means(ticks, t, units, limits.gap_ms)).collect(),
            learnt: (0..units).map(learnt).collect(),
            floors: (0..units).map(|u| floor::floors(ticks, u, limits.window_ms)).collect(),
            paused_ms: Vec::new(),
            dense: (0..ticks.len()).map(|t| is_dense(ticks, t, limits)).collect(),
            warm_from: BootMs(history.job.registration.start.boot.0.saturating_add(thresholds.warmup_ms)),
            limits,
            open_finding: history.open_finding.as_ref(),
            units,
        };
        for t in 0..ticks.len() {
            let levels = (0..units).map(|u| series.glance(t, u).level(thresholds)).collect();
            series.levels.push(levels);
        }
        series.paused_ms = (0..ticks.len()).map(|t| series.proven_idle_hole(t)).collect();
        series
    }

    /// One unit at one tick, with what its counters and floors say.
    fn glance(&self, t: usize, unit: usize) -> Glance<'_> {
        let now = &self.ticks[t];
        let before = t.checked_sub(1).map(|before| self.ticks[before].moment(unit));
        Glance {
            seen: &now.units[unit],
            mean: self.means[t][unit],
            interval: before.map(|before| (before, now.moment(unit))),
            floors: &self.floors[unit][t],
            learnt: self.learnt[unit],
        }
    }

    /// What the unit drew at rest over the window up to a tick.
    pub fn floors(&self, t: usize, unit: usize) -> &Floors {
        &self.floors[unit][t]
    }

    /// The hole before tick `t` where every unit's energy stayed at the floor and nothing moved over its wires: nothing ran. 0: no such hole. Never
    /// longer than a window: in the mean of many hours a spell of work would drown.
    fn proven_idle_hole(&self, t: usize) -> i64 {
        let step = self.step_ms(t);
        let hole = step > self.limits.gap_ms && step <= self.limits.window_ms;
        let still = |u: usize| {
            let moved = interval::traffic(self.ticks[t - 1].moment(u), self.ticks[t].moment(u));
            matches!(moved, Reading::Measured(false) | Reading::Absent(Absence::NotSupported))
        };
        if hole && (0..self.units).all(|u| self.glance(t, u).rested() && still(u)) { step } else { 0 }
    }

    fn step_ms(&self, t: usize) -> i64 {
        step_ms(self.ticks, t)
    }

    /// How far back from now the unit satisfied `below` without interruption.
    pub fn stretch(&self, unit: usize, below: impl Fn(Level) -> bool) -> Stretch {
        let mut from = self.ticks.len();
        for t in (0..self.ticks.len()).rev() {
            let tick = &self.ticks[t];
            let level = self.levels[t][unit];
            let ended = if tick.at < self.warm_from {
                Some(Ended::Warmup)
            } else if tick.job.frozen == Reading::Measured(true) {
                Some(Ended::Frozen)
            } else if let Level::Unreadable(why) = level {
                Some(Ended::Unreadable(why))
            } else if !below(level) {
                let peak_pct =
                    level::peak(tick.units[unit].sm_util, &tick.units[unit].sm_peak).map(|p| p.get());
                Some(Ended::Work { at: tick.at, peak_pct })
            } else {
                None
            };
            if let Some(ended) = ended {
                return Stretch { from, ended };
            }
            from = t;
            if t > 0
                && let Some(ended) = self.interval_before(t, unit)
            {
                return Stretch { from, ended };
            }
        }
        Stretch { from: self.oldest_of_the_breach(), ended: Ended::Warmup }
    }

    /// Where a stretch begins that reaches the oldest tick: what was drawn before that tick is not seen here. The run that
    /// opened the finding saw it, so an open breach begins no earlier than that run said.
    fn oldest_of_the_breach(&self) -> usize {
        let began = |row: &OpenFinding| self.ticks.iter().position(|tick| tick.at >= row.since);
        self.open_finding.and_then(began).unwrap_or(0)
    }

    /// Whether the time between tick `t - 1` and `t` is itself evidence.
    fn interval_before(&self, t: usize, unit: usize) -> Option<Ended> {
        let step = self.step_ms(t);
        if step > self.limits.gap_ms || step <= 0 {
            return (self.paused_ms[t] == 0).then_some(Ended::Hole(step));
        }
        (!self.dense[t] && !self.counters_agree(t, unit)).then_some(Ended::Sparse)
    }

    /// Whether ring or energy say that the time before tick `t` was as its instants were: the ring covers it, or the
    /// mean power stayed at the floor. A unit that was not at rest at `t` has no floor to stay at: there the mean must
    /// not exceed what the instants at both ends drew.
    fn counters_agree(&self, t: usize, unit: usize) -> bool {
        let glance = self.glance(t, unit);
        let covers = |ring: &crate::model::Peak| i64::from(ring.covered_ms) * 10 >= self.step_ms(t) * 9;
        if glance.seen.sm_peak.measured().is_some_and(covers) {
            return true;
        }
        if glance.interval.is_some_and(|(before, now)| interval::is_fed(before, now)) {
            return false;
        }
        if glance.rested() {
            return true;
        }
        match (self.levels[t][unit], glance.mean, glance.ends()) {
            (Level::Zero | Level::Unreadable(_), _, _) => false,
            (_, Reading::Measured(mean), Reading::Measured(ends)) => !floor::well_above(mean, ends),
            _ => false,
        }
    }

    /// Index of the oldest tick of the newest window: it holds a full window of certified time, so that what a
    /// look rests on is never less than what was certified.
    pub fn window_start(&self) -> usize {
        let full = |t: &usize| self.certified_ms(*t) >= self.limits.window_ms;
        (0..self.ticks.len()).rev().find(full).unwrap_or(0)
    }

    /// The ticks of the window that ends with tick `t`.
    pub fn window_up_to(&self, t: usize) -> &'a [Tick] {
        &self.ticks[window_before(self.ticks, t, self.limits.window_ms)..=t]
    }

    /// The open finding that a stretch from `from` continues beyond the oldest sample, with the tick it was last
    /// kept at: replay reaches no further back than `history.keep`.
    fn carried(&self, from: usize) -> Option<(&'a OpenFinding, usize)> {
        let row = self.open_finding?;
        let oldest = self.ticks.first()?;
        let last = self.ticks.iter().position(|tick| tick.run == row.last_run)?;
        (from == 0 && row.since < oldest.at).then_some((row, last))
    }

    /// Whether a stretch from `from` is the breach of the open finding. What was established stays so while its breach
    /// goes on, though the window, which follows the cadence, grew by a little since.
    fn continues(&self, from: usize) -> bool {
        let began = self.ticks.get(from).map(|tick| tick.at);
        self.open_finding.is_some_and(|row| Some(row.since) == began || self.carried(from).is_some())
    }

    /// Certified time from tick `from` to the newest one: holes proven idle do not count.
    pub fn certified_ms(&self, from: usize) -> i64 {
        let Some(newest) = self.ticks.last() else {
            return 0;
        };
        let Some(oldest) = self.ticks.get(from) else {
            return 0;
        };
        newest.at.since_ms(oldest.at) - self.paused_ms.get(from + 1..).map_or(0, |p| p.iter().sum())
    }
}

/// Mean power of each unit since the tick before. Where the counter could not be read at one of the two, the mean of
/// the time around them: one reading that failed makes no hole, as long as the gap between its neighbours is none.
fn means(ticks: &[Tick], t: usize, units: usize, gap_ms: i64) -> Vec<Reading<Milliwatts>> {
    let Some(before) = t.checked_sub(1) else { return vec![Reading::Absent(Absence::NotRecorded); units] };
    let mean = |u: usize| {
        let counted = |at: &usize| ticks[*at].units[u].energy.measured().is_some();
        let from =
            [Some(before), before.checked_sub(1)].into_iter().flatten().find(counted).unwrap_or(before);
        let to = [t, t + 1].into_iter().filter(|at| *at < ticks.len()).find(counted).unwrap_or(t);
        match ticks[to].at.since_ms(ticks[from].at) <= gap_ms.max(step_ms(ticks, t)) {
            true => interval::mean_power(ticks[from].moment(u), ticks[to].moment(u)),
            false => interval::mean_power(ticks[before].moment(u), ticks[t].moment(u)),
        }
    };
    (0..units).map(mean).collect()
}

fn step_ms(ticks: &[Tick], t: usize) -> i64 {
    match t.checked_sub(1) {
        Some(before) => ticks[t].at.since_ms(ticks[before].at),
        None => 0,
    }
}

/// Whether the step before tick `t` is one that instants speak for: by the steps of the window that begins with it,
/// since an interval can be changed, and for the newest ticks by those of the newest window. Older ticks do not
/// count: how far back a replay reaches must not matter. Holes are judged by themselves.
fn is_dense(ticks: &[Tick], t: usize, limits: &Limits) -> bool {
    let (Some(newest), Some(before)) = (ticks.last(), ticks.get(t.wrapping_sub(1))) else { return false };
    let begin = BootMs(before.at.0.min(newest.at.0 - limits.window_ms));
    let from = ticks.partition_point(|tick| tick.at < begin) + 1;
    let inside = |s: &usize| ticks[*s].at.since_ms(begin) <= limits.window_ms;
    let steps = || (from..ticks.len()).take_while(inside).map(|s| step_ms(ticks, s));
    let steps = || steps().filter(|step| *step <= limits.gap_ms);
    let slow = steps().filter(|step| !instants_suffice(*step)).count();
    step_ms(ticks, t) <= INSTANT_STEP_MS && 2 * slow <= steps().count()
}

/// Index of the oldest tick within a window up to tick `t`.
fn window_before(ticks: &[Tick], t: usize, window_ms: i64) -> usize {
    let Some(newest) = ticks.get(t) else { return 0 };
    ticks[..=t].partition_point(|tick| newest.at.since_ms(tick.at) > window_ms)
}

/// A full window of measured readings without a hole. Only [`certify`] makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    since: usize,
    certified_ms: i64,
    samples: u32,
    carried: Option<OpenFinding>,
}

impl Evidence {
    /// Index of the first tick of the breach.
    pub fn since_tick(&self) -> usize {
        self.since
    }

    /// Certified breaching time up to now; at least a window.
    pub fn certified_ms(&self) -> i64 {
        self.certified_ms
    }

    /// The folded row of this breach, where it began before the oldest sample that is kept.
    pub fn carried(&self) -> Option<&OpenFinding> {
        self.carried.as_ref()
    }

    /// Samples per unit within the breach, as far as they are kept.
    pub fn samples(&self) -> u32 {
        self.samples
    }
}

/// What a window lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lacking {
    /// No sample of this run, or the last one is older than the gap: so many milliseconds.
    Stale(i64),
    /// So many milliseconds of the window are certified so far.
    Short(i64),
    /// So many samples.
    Few(u32),
}

/// Certifies the stretch that begins at tick `from` as a full window up to `now`.
pub fn certify(series: &Series, from: usize, now: BootMs) -> Result<Evidence, Lacking> {
    let Some(newest) = series.ticks.last() else {
        return Err(Lacking::Stale(i64::MAX));
    };
    let age_ms = now.since_ms(newest.at);
    if age_ms > series.limits.gap_ms || age_ms < 0 {
        return Err(Lacking::Stale(age_ms));
    }
    let carried = series.carried(from);
    let certified_ms = match &carried {
        Some((row, last)) => row.certified_ms + series.certified_ms(*last),
        None => series.certified_ms(from),
    };
    let Limits { mut window_ms, mut min_samples, .. } = *series.limits;
    if series.continues(from) {
        (window_ms, min_samples) = (window_ms / 4 * 3, min_samples / 4 * 3);
    }
    if certified_ms < window_ms {
        return Err(Lacking::Short(certified_ms));
    }
    let samples = (series.ticks.len() - from) as u32;
    if samples < min_samples.max(FEWEST_SAMPLES) {
        return Err(Lacking::Few(samples));
    }
    Ok(Evidence { since: from, certified_ms, samples, carried: carried.map(|(row, _)| row.clone()) })
}

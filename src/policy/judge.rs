//! The judgement of one job run from its history: four outcomes, never a bool.

mod cap;
mod finding;
mod lacking;
mod particulars;

pub use finding::{Finding, Scope};

use super::guard::{self, Exempt, Guard, GuardReport};
use super::level::Level;
use super::signature::{Look, Scene, Signature};
use super::window::{self, Ended, Evidence, Lacking, Limits, Series, Stretch};
use super::{Rules, host_activity, level};
use crate::model::{Cadence, JobHistory, Now, UnitRef, Verdict};
use crate::reading::{Absence, Reading};
use crate::units::human_ms;

/// What is said of a job run in one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// A guard leaves it alone: exempt, or too young.
    Spared {
        /// Which.
        guard: Guard,
        /// Why, in words.
        because: String,
    },
    /// The evidence does not suffice; nothing is done.
    Unjudged {
        /// Which guard found it lacking.
        guard: Guard,
        /// What is lacking, in words.
        because: String,
    },
    /// It works, or did within the window.
    Alive {
        /// What cleared it, in words.
        because: String,
    },
    /// A full certified window of waste.
    Breaching(Box<Finding>),
}

impl Judgement {
    /// The word in JSON and tables.
    pub fn word(&self) -> &'static str {
        match self {
            Judgement::Spared { .. } => "spared",
            Judgement::Unjudged { .. } => "unjudged",
            Judgement::Alive { .. } => "alive",
            Judgement::Breaching(_) => "breaching",
        }
    }
}

/// One unit as judged, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitAssessment {
    /// Which.
    pub unit: UnitRef,
    /// Its level at each tick of the history; none where nothing was weighed.
    pub levels: Vec<Level>,
    /// How long it has stayed below busy, certified.
    pub quiet_ms: i64,
    /// What ended that, looking back.
    pub ended: Option<Ended>,
}

/// A judgement with everything that led to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assessment {
    /// The outcome.
    pub judgement: Judgement,
    /// What every guard saw.
    pub guards: Vec<GuardReport>,
    /// Per unit.
    pub units: Vec<UnitAssessment>,
    /// The window's numbers; `None` while the cadence is not known.
    pub limits: Option<Limits>,
    /// Slurm's answer would matter now (name, QOS, state): a finding stands or an exemption cannot be decided.
    pub wants_details: bool,
    /// Only /proc could still say whether the units are idle, and it was not asked: ask, and judge again.
    pub wants_witness: bool,
}

/// Judges one job run. Pure: the same history, rules, cadence and moment give the same answer.
pub fn judge(history: &JobHistory, rules: &Rules, cadence: Reading<Cadence>, now: &Now) -> Assessment {
    let mut bench = Bench::new(history, rules, now);
    let judgement = bench.outcome(cadence);
    let wants_details = history.job.details.is_none() && bench.details_matter(&judgement);
    let Bench { guards, units, limits, wants_witness, .. } = bench;
    Assessment { judgement, guards, units, limits, wants_details, wants_witness }
}

/// The table at which one history is judged.
struct Bench<'a> {
    history: &'a JobHistory,
    rules: &'a Rules,
    now: &'a Now,
    guards: Vec<GuardReport>,
    units: Vec<UnitAssessment>,
    limits: Option<Limits>,
    wants_witness: bool,
    /// There would be a finding, and whether the job holds whole GPUs only Slurm can say.
    shares_undecided: bool,
}

fn spared(guard: Guard, because: String) -> Judgement {
    Judgement::Spared { guard, because }
}

fn unjudged(guard: Guard, because: String) -> Judgement {
    Judgement::Unjudged { guard, because }
}

impl<'a> Bench<'a> {
    fn new(history: &'a JobHistory, rules: &'a Rules, now: &'a Now) -> Bench<'a> {
        let (guards, units) = (Vec::new(), Vec::new());
        Bench {
            history,
            rules,
            now,
            guards,
            units,
            limits: None,
            wants_witness: false,
            shares_undecided: false,
        }
    }

    fn note(&mut self, guard: Guard, saw: impl Into<String>, limit: impl Into<String>, held: bool) {
        self.guards.push(GuardReport::new(guard, saw, limit, held));
    }

    fn details_matter(&self, judgement: &Judgement) -> bool {
        match judgement {
            Judgement::Breaching(_) | Judgement::Unjudged { guard: Guard::Exemption, .. } => true,
            Judgement::Unjudged { guard: Guard::Attribution, .. } => self.shares_undecided,
            _ => false,
        }
    }

    fn age_ms(&self) -> i64 {
        self.now.boot.since_ms(self.history.job.registration.start.boot)
    }

    fn outcome(&mut self, cadence: Reading<Cadence>) -> Judgement {
        let claimed = self.history.job.registration.gpus.len() as u32;
        let looked = guard::configured(&self.rules.exemptions, &self.history.job, claimed, self.age_ms());
        let exempt = guard::decide(&looked);
        self.guards.extend(looked.into_iter().map(|one| one.report(false)));
        if let Exempt::Yes(why) = &exempt {
            return spared(Guard::Exemption, format!("exempt by {why}"));
        }
        self.name_units();
        if let Some(before) = self.before_evidence() {
            return before;
        }
        let units = match &self.history.units {
            Reading::Measured(units) if !units.is_empty() => units,
            Reading::Measured(_) => {
                return unjudged(Guard::Attribution, "it holds no GPU on this node".to_owned());
            }
            Reading::Absent(why) => {
                let because = format!("its GPUs on this node are not known for certain: {}", why.words());
                self.note(
                    Guard::Attribution,
                    because.clone(),
                    "every GPU known, held by this job alone",
                    true,
                );
                return unjudged(Guard::Attribution, because);
            }
        };
        if let Some(because) = self.holds_shares() {
            self.note(Guard::Attribution, because.clone(), "whole GPUs, held by this job alone", true);
            return unjudged(Guard::Attribution, because);
        }
        self.note(
            Guard::Attribution,
            match units.len() {
                1 => "1 GPU, held by this job alone".to_owned(),
                n => format!("{n} GPUs, held by this job alone"),
            },
            "no other holder",
            false,
        );
        let fault = self.history.fault.clone();
        let saw = fault.clone().unwrap_or_else(|| "none that hides its job".to_owned());
        self.note(Guard::Fault, saw, "no such fault of its GPUs", fault.is_some());
        if let Some(fault) = fault {
            return unjudged(Guard::Fault, format!("its node has a fault: {fault}"));
        }
        let cadence = match cadence {
            Reading::Measured(cadence) => cadence,
            Reading::Absent(_) => {
                return unjudged(Guard::Window, "too few runs yet to know how often they come".to_owned());
            }
        };
        let limits = window::limits(&self.rules.thresholds, cadence);
        self.limits = Some(limits.clone());
        let series = Series::new(self.history, units.len(), &self.rules.thresholds, &limits);
        let outcome = self.weigh(&series, units, &limits);
        self.after_evidence(outcome, exempt)
    }

    fn node_gives_shares(&self) -> bool {
        self.history.node_units == Reading::Absent(Absence::Shared)
    }

    /// Where GPUs are given out in shares, only Slurm can tell a share from a whole one: it must have said.
    fn holds_shares(&self) -> Option<String> {
        match self.history.job.details.as_ref()?.shares {
            Reading::Measured(true) => {
                Some("it holds shares of GPUs (shard or MPS), not whole ones".to_owned())
            }
            Reading::Absent(why) if self.node_gives_shares() => {
                Some(format!("whether it holds shares of GPUs or whole ones is not known: {}", why.words()))
            }
            Reading::Measured(false) | Reading::Absent(_) => None,
        }
    }

    /// The units by name, for people, also where nothing can be weighed yet.
    fn name_units(&mut self) {
        let named = |unit: &UnitRef| UnitAssessment {
            unit: unit.clone(),
            levels: Vec::new(),
            quiet_ms: 0,
            ended: None,
        };
        self.units = self.history.units.measured().into_iter().flatten().map(named).collect();
    }

    /// Guards that need no sample: job state and warm-up.
    fn before_evidence(&mut self) -> Option<Judgement> {
        let forbids = self.history.job.details.as_ref().and_then(|d| guard::state_forbids(d.state));
        let frozen = self.history.ticks.last().map(|t| t.job.frozen) == Some(Reading::Measured(true));
        let because = forbids.or(frozen.then(|| "its processes are frozen or stopped".to_owned()));
        let saw = because.as_deref().unwrap_or("running, not frozen").to_owned();
        self.note(Guard::JobState, saw, "running", because.is_some());
        if let Some(because) = because {
            return Some(unjudged(Guard::JobState, because));
        }
        let (age_ms, warmup_ms) = (self.age_ms(), self.rules.thresholds.warmup_ms);
        let young = age_ms < warmup_ms;
        self.note(
            Guard::Warmup,
            format!("age {}", human_ms(age_ms)),
            format!("at least {}", human_ms(warmup_ms)),
            young,
        );
        young.then(|| {
            spared(
                Guard::Warmup,
                format!("runs for {}, warm-up is {}", human_ms(age_ms), human_ms(warmup_ms)),
            )
        })
    }

    /// The heart: stretches of quiet per unit, certified or not.
    fn weigh(&mut self, series: &Series, units: &[UnitRef], limits: &Limits) -> Judgement {
        let of = |look: Look| -> Vec<Stretch> {
            (0..units.len()).map(|u| series.stretch(u, |l| look.keeps(l))).collect()
        };
        let looks = Look::QUIET.map(|look| (look, of(look)));
        let [(_, zero), (_, dead), (_, quiet)] = &looks;
        self.units.clear();
        for (u, unit) in units.iter().enumerate() {
            self.units.push(UnitAssessment {
                unit: unit.clone(),
                levels: series.levels.iter().map(|l| l[u]).collect(),
                quiet_ms: series.certified_ms(quiet[u].from),
                ended: Some(quiet[u].ended.clone()),
            });
        }
        self.evidence_notes(series, quiet, limits);
        if let Some(throttled) = self.throttled(series, units) {
            return throttled;
        }
        let all: Vec<usize> = (0..units.len()).collect();
        for (look, stretches) in &looks {
            let shortest = stretches.iter().map(|s| s.from).max().unwrap_or(usize::MAX);
            if let Ok(evidence) = window::certify(series, shortest, self.now.boot) {
                self.note(Guard::WholeJob, format!("all {} GPUs quiet", units.len()), "all of them", false);
                let spent_ms = evidence.certified_ms() * units.len() as i64;
                return self.found(series, (units, &all), (Scope::Whole, *look), evidence, spent_ms);
            }
        }
        self.part(series, units, (zero, dead))
            .unwrap_or_else(|| self.not_established(series, quiet, units, limits))
    }

    /// Units that worked, slowed, for a full window.
    fn throttled(&mut self, series: &Series, units: &[UnitRef]) -> Option<Judgement> {
        let from: Vec<usize> =
            (0..units.len()).map(|u| series.stretch(u, |l| Look::Throttled.keeps(l)).from).collect();
        let certified = |u: &usize| window::certify(series, from[*u], self.now.boot).is_ok();
        let slowed: Vec<usize> = (0..units.len()).filter(certified).collect();
        let scope = if slowed.len() == units.len() { Scope::Whole } else { Scope::Part };
        self.of_some(series, units, &slowed, &from, scope, Look::Throttled)
    }

    /// A finding about some units, since the first of them: one more that joins is the same breach.
    fn of_some(
        &mut self,
        series: &Series,
        units: &[UnitRef],
        some: &[usize],
        from: &[usize],
        scope: Scope,
        look: Look,
    ) -> Option<Judgement> {
        let first = some.iter().map(|u| from[*u]).min()?;
        let evidence = window::certify(series, first, self.now.boot).ok()?;
        let each = |u: &usize| match from[*u] == first {
            true => evidence.certified_ms(),
            false => series.certified_ms(from[*u]),
        };
        let spent_ms = some.iter().map(each).sum();
        let named: Vec<UnitRef> = some.iter().map(|&u| units[u].clone()).collect();
        Some(self.found(series, (&named, some), (scope, look), evidence, spent_ms))
    }

    /// Some units at zero for a full window among others that work; one that spins neither works nor is it idle.
    fn part(
        &mut self,
        series: &Series,
        units: &[UnitRef],
        (zero, dead): (&[Stretch], &[Stretch]),
    ) -> Option<Judgement> {
        let certified = |u: &usize| window::certify(series, zero[*u].from, self.now.boot).is_ok();
        let wasted: Vec<usize> = (0..units.len()).filter(certified).collect();
        let worked = |s: &Stretch| matches!(s.ended, Ended::Work { .. });
        let others_work = (0..units.len()).filter(|u| !wasted.contains(u)).all(|u| worked(&dead[u]));
        if !others_work || wasted.is_empty() {
            return None;
        }
        self.note(
            Guard::WholeJob,
            format!("{} of {} GPUs quiet", wasted.len(), units.len()),
            "all of them",
            true,
        );
        let from: Vec<usize> = zero.iter().map(|s| s.from).collect();
        self.of_some(series, units, &wasted, &from, Scope::Part, Look::Zero)
    }

    fn found(
        &mut self,
        series: &Series,
        (named, units): (&[UnitRef], &[usize]),
        (scope, look): (Scope, Look),
        evidence: Evidence,
        spent_ms: i64,
    ) -> Judgement {
        let first = &series.ticks[evidence.since_tick()];
        let thresholds = &self.rules.thresholds;
        let active = self.was_active(series);
        let scene = Scene::new(series, units, thresholds, active);
        let signature = scene.classify(&evidence, look);
        self.wants_witness |= scene.wants_witness(&evidence, look);
        let window_ms = self.limits.as_ref().map_or(thresholds.window_ms, |l| l.window_ms);
        let particulars = particulars::words(&scene, named, signature, &evidence);
        let (cap, capped_by) = self.cap(series, units, scope, signature);
        let (since, since_run) = match evidence.carried() {
            Some(row) => (row.since, row.opened_run),
            None => (first.at, first.run),
        };
        let established_for_ms = (evidence.certified_ms() - window_ms).max(0);
        let clear_for_ms = clear_for_ms(&scene, &evidence, look, window_ms);
        Judgement::Breaching(Box::new(Finding {
            signature,
            scope,
            units: named.to_vec(),
            since,
            since_wall: self.now.wall_of(since),
            since_run,
            established_for_ms,
            acting_for_ms: established_for_ms.min(clear_for_ms),
            cap,
            capped_by,
            particulars,
            spent_ms,
            evidence,
        }))
    }

    fn evidence_notes(&mut self, series: &Series, quiet: &[Stretch], limits: &Limits) {
        let window = human_ms(limits.window_ms);
        let shortest_ms = quiet.iter().map(|s| series.certified_ms(s.from)).min().unwrap_or(0);
        let short = shortest_ms < limits.window_ms;
        self.note(
            Guard::Window,
            format!("quiet for {}", human_ms(shortest_ms)),
            format!("at least {window}"),
            short,
        );
        let highest = series.ticks[series.window_start()..].iter().flat_map(|t| {
            t.units.iter().filter_map(|o| level::peak(o.sm_util, &o.sm_peak).measured().map(|p| p.get()))
        });
        let unread = quiet.iter().find_map(|s| match s.ended {
            Ended::Unreadable(why) if !why.is_collector_fault() => Some(why),
            _ => None,
        });
        let saw = match (unread.filter(|_| short), highest.max()) {
            (Some(why), _) => format!("utilization not readable: {}", why.words()),
            (None, Some(p)) => format!("peak {p} %"),
            (None, None) => "no readable utilization in the window".to_owned(),
        };
        let busy = quiet.iter().any(|s| matches!(s.ended, Ended::Work { .. }));
        let holds = (busy || unread.is_some()) && short;
        self.note(Guard::Peak, saw, format!("below {} %", self.rules.thresholds.util_pct), holds);
        self.interval_notes(quiet, limits, short);
    }

    /// The guards that look at the time between the samples. `short`: no full window yet.
    fn interval_notes(&mut self, quiet: &[Stretch], limits: &Limits, short: bool) {
        let sparse = quiet.iter().any(|s| s.ended == Ended::Sparse) && short;
        let every = human_ms(limits.cadence.median_ms);
        self.note(
            Guard::Sparse,
            format!("runs every {every}"),
            "up to 45 s, or the driver's own samples or the energy counter agree",
            sparse,
        );
        let by_energy = |s: &Stretch| matches!(s.ended, Ended::Work { peak_pct: Reading::Measured(p), .. } if p < self.rules.thresholds.util_pct);
        let worked = quiet.iter().any(by_energy) && short;
        let saw = if worked {
            "a mean power between two runs well above rest"
        } else {
            "no mean power between two runs well above rest"
        };
        self.note(Guard::Energy, saw, "1.25 times what the card draws at rest with a process", worked);
        let hole = quiet.iter().find_map(|s| if let Ended::Hole(ms) = s.ended { Some(ms) } else { None });
        let saw = hole.map_or("no hole".to_owned(), |ms| format!("a hole of {}", human_ms(ms)));
        self.note(Guard::Gap, saw, format!("at most {}", human_ms(limits.gap_ms)), hole.is_some() && short);
    }

    /// Guards that speak only once there is a finding: what exemptions could not decide.
    fn after_evidence(&mut self, outcome: Judgement, exempt: Exempt) -> Judgement {
        if matches!(outcome, Judgement::Breaching(_))
            && self.node_gives_shares()
            && self.history.job.details.is_none()
        {
            self.shares_undecided = true;
            let because = "whether it holds shares of GPUs or whole ones was not asked yet";
            self.note(Guard::Attribution, because, "whole GPUs, held by this job alone", true);
            return unjudged(Guard::Attribution, because.to_owned());
        }
        if let (Judgement::Breaching(_), Exempt::CannotSay(why)) = (&outcome, exempt) {
            self.note(Guard::Exemption, why.clone(), "every exemption that could hold, decided", true);
            return unjudged(Guard::Exemption, format!("whether it is exempt cannot be said: {why}"));
        }
        outcome
    }
}

/// Certified time since the last run in which this breach could only be alerted on: its look was not clear (then a
/// full window must follow), or the CPUs worked.
fn clear_for_ms(scene: &Scene, evidence: &Evidence, look: Look, window_ms: i64) -> i64 {
    let series = scene.series;
    let unclear =
        scene.last_unclear(evidence, look).map_or(i64::MAX, |t| series.certified_ms(t + 1) - window_ms);
    let works = |t: &usize| {
        let over_window = host_activity::over_window(series, *t, scene.units);
        over_window.measured().is_some_and(|activity| activity.works())
    };
    let worked = (evidence.since_tick()..series.ticks.len()).rev().find(works);
    unclear.min(worked.map_or(i64::MAX, |t| series.certified_ms(t))).max(0)
}

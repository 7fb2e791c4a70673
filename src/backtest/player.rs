//! The runs of the past, played again: each tick is judged and escalated by the very functions that decide in a run,
//! whatever is due counts as done, and what came of it is written down. Nothing is done: a warrant is dropped where it
//! is received, no command is run and no ledger is opened.

use crate::config::{Config, Release};
use crate::mode::{EnforceIn, Mode};
use crate::model::*;
use crate::policy::nodes::Nodes;
use crate::policy::reason::{self, RunKey, Stand};
use crate::policy::stage::{Circumstances, Step};
use crate::policy::{self, Finding, Guard, Judgement, Rules, Scope, Signature, escalate, judge};
use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use crate::units::{BootMs, NodeName};
use std::collections::BTreeMap;

/// The cadence counts spacings so far back, as in the ledger,
const CADENCE_MS: i64 = 24 * 3_600_000;
/// and is measured anew at every run up to so many, then after each so many.
const RENEW: usize = 30;

/// One finding of the past.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its look.
    pub signature: Signature,
    /// Whole job or part of it.
    pub scope: Scope,
    /// First sample of the breach.
    pub since: BootMs,
    /// Since when it is a finding.
    pub established: BootMs,
    /// The last run that still saw it.
    pub last: BootMs,
    /// The most that was asked for it while it had this look.
    pub most: Option<Verdict>,
    /// Its units, by index.
    pub gpus: Vec<u32>,
}

/// Something that would have been asked for, or was withheld.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// When.
    pub at: BootMs,
    /// What.
    pub verdict: Verdict,
    /// Why it would not have been done.
    pub withheld: Option<String>,
    /// The finding in words.
    pub facts: String,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Played {
    /// Time in which it was seen to be alive or wasted.
    pub judged_ms: i64,
    /// Time in which nothing could be said, by the guard that held.
    pub not_judged_ms: BTreeMap<Guard, i64>,
    /// What such a guard said last, in words; for people.
    pub because: BTreeMap<Guard, String>,
    /// Every finding, oldest first; another look is another entry.
    pub findings: Vec<Found>,
    /// Every step, oldest first.
    pub asked: Vec<Asked>,
}

/// One job run, as far as it is played.
pub struct Player {
    rules: Rules,
    keep_ms: i64,
    releases: bool,
    history: JobHistory,
    runs: Vec<BootMs>,
    cadence: Reading<Cadence>,
    /// Per unit: when it was last seen at work.
    worked: Vec<Option<BootMs>>,
    alive_before: bool,
    played: Played,
}

impl Player {
    /// What is known before the first run: the job run, its units, their learnt floors. Whatever else the history
    /// holds is left out: it is to be played.
    pub fn new(config: &Config, history: JobHistory) -> Player {
        let units = history.units.measured().map_or(0, Vec::len);
        Player {
            rules: config.rules.clone(),
            keep_ms: config.history.keep.as_millis() as i64,
            releases: config.act.release == Release::JobEnd,
            history: JobHistory { ticks: Vec::new(), actions: Vec::new(), open_finding: None, ..history },
            runs: Vec::new(),
            cadence: Absent(Absence::NoData),
            worked: vec![None; units],
            alive_before: false,
            played: Played::default(),
        }
    }

    /// One run.
    pub fn run(&mut self, tick: Tick) {
        let (run, now) = (tick.run, Now { boot_id: String::new(), boot: tick.at, wall: tick.wall });
        let step_ms = self.runs.last().map_or(0, |before| now.boot.since_ms(*before));
        self.remember(tick);
        let assessment = judge(&self.history, &self.rules, self.cadence, &now);
        let hole = assessment.limits.as_ref().is_some_and(|limits| step_ms > limits.gap_ms);
        let guard = match &assessment.judgement {
            _ if hole => Some(Guard::Gap),
            Judgement::Spared { guard, .. } | Judgement::Unjudged { guard, .. } => Some(*guard),
            Judgement::Alive { .. } | Judgement::Breaching(_) => None,
        };
        if let Judgement::Unjudged { guard, because } = &assessment.judgement {
            self.played.because.insert(*guard, because.clone());
        }
        match guard {
            Some(guard) => *self.played.not_judged_ms.entry(guard).or_default() += step_ms,
            None => self.played.judged_ms += step_ms,
        }
        self.release(matches!(assessment.judgement, Judgement::Alive { .. }));
        match assessment.judgement {
            Judgement::Breaching(finding) => self.settle(&finding, run, &now),
            _ => self.history.open_finding = None,
        }
        self.count(now.boot);
    }

    /// What came of all runs.
    pub fn end(self) -> Played {
        self.played
    }

    /// Appends, then forgets what replay would not read: beyond the horizon, or before every unit was seen at work.
    fn remember(&mut self, tick: Tick) {
        let (at, thresholds) = (tick.at, &self.rules.thresholds);
        for (worked, seen) in self.worked.iter_mut().zip(&tick.units) {
            if policy::settles(seen, thresholds) {
                *worked = Some(at);
            }
            if policy::is_work(seen, thresholds) {
                self.history.job.first_activity.get_or_insert(at);
                self.history.job.last_activity = Some(at);
            }
        }
        self.history.ticks.push(tick);
        let decided = self.worked.iter().copied().min().flatten();
        let oldest = BootMs(at.0 - self.keep_ms).max(decided.unwrap_or(BootMs(i64::MIN)));
        let kept = self.history.ticks.partition_point(|tick| tick.at < oldest);
        self.history.ticks.drain(..kept);
    }

    /// The cadence as the next run will know it.
    fn count(&mut self, at: BootMs) {
        self.runs.push(at);
        let n = self.runs.len();
        if n <= RENEW || n.is_multiple_of(RENEW) {
            let from = self.runs.partition_point(|run| at.since_ms(*run) > CADENCE_MS);
            let spacings = self.runs[from..].windows(2).map(|pair| pair[1].since_ms(pair[0])).collect();
            self.cadence = Cadence::of(spacings).map_or(Absent(Absence::NoData), Measured);
        }
    }

    /// Our drain is lifted once two runs agree that the job works again.
    fn release(&mut self, alive: bool) {
        if alive && self.alive_before && self.releases {
            let drains = self.history.actions.iter_mut().filter(|a| a.deed == Deed::Drain);
            drains.for_each(|drain| drain.outcome = Outcome::Released);
        }
        self.alive_before = alive;
    }

    /// Keeps the finding and takes one step for it.
    fn settle(&mut self, finding: &Finding, run: RunId, now: &Now) {
        let before = self.history.open_finding.take().filter(|open| open.since == finding.since);
        self.history.open_finding = Some(OpenFinding {
            since: finding.since,
            opened_run: before.map_or(run, |open| open.opened_run),
            last_run: run,
            certified_ms: finding.evidence().certified_ms(),
            signature: finding.signature.word().to_owned(),
        });
        let here = NodeName::nowhere();
        let circumstances = Circumstances {
            permit: Mode::Enforce.permit(&EnforceIn::EVERYWHERE, &self.history.job, &here),
            run,
            now: now.boot,
            job: &self.history.job,
            actions: &self.history.actions,
            node_units: self.history.node_units,
            nodes: Ok(Nodes::alone(&here)),
            wait_ms: 0,
            held_by: None,
            backing_off: Vec::new(),
        };
        let (verdict, withheld) = match escalate(finding, &self.rules, circumstances) {
            Step::Rest | Step::Vote(_) | Step::Warn(_) | Step::Later { .. } | Step::Unclear => (None, None),
            Step::Alert => (Some(Verdict::Alert), None),
            Step::Drain(_) => (Some(Verdict::Drain), None),
            Step::Cancel(_) => (Some(Verdict::Cancel), None),
            Step::Withheld { asked, because, .. } => (None, Some((asked, because))),
        };
        self.note(finding, verdict, now);
        if let Some(verdict) = verdict {
            self.done(finding, verdict, run, now);
            self.asked(finding, verdict, None, now);
        }
        if let Some((asked, because)) = withheld {
            self.asked(finding, asked, Some(because), now);
        }
    }

    fn note(&mut self, finding: &Finding, verdict: Option<Verdict>, now: &Now) {
        let key = (finding.signature, finding.scope, finding.since);
        let known = self.played.findings.iter_mut().rev().find(|f| (f.signature, f.scope, f.since) == key);
        let gpus = finding.units.iter().map(|unit| unit.index.0).collect();
        match known {
            Some(known) => {
                (known.last, known.gpus) = (now.boot, gpus);
                known.most = known.most.max(verdict);
            }
            None => self.played.findings.push(Found {
                signature: finding.signature,
                scope: finding.scope,
                since: finding.since,
                established: BootMs(now.boot.0 - finding.established_for_ms),
                last: now.boot,
                most: verdict,
                gpus,
            }),
        }
    }

    fn reason(&self, finding: &Finding) -> String {
        let r = &self.history.job.registration;
        let start_unix_s = r.start.wall.0.div_euclid(1000);
        let key = RunKey { job: r.job, start_unix_s, restart: r.restart };
        reason::waste(key, finding.signature, Stand::Drain, finding.since_wall)
    }

    fn done(&mut self, finding: &Finding, verdict: Verdict, run: RunId, now: &Now) {
        self.history.actions.push(ActionRecord {
            id: self.history.actions.len() as i64 + 1,
            deed: verdict.into(),
            run,
            at: now.boot,
            wall: now.wall,
            outcome: Outcome::Done,
            reason: (verdict == Verdict::Drain).then(|| self.reason(finding)),
            signature: finding.signature.word().to_owned(),
            detail: "played".to_owned(),
            counted_again: Some(run),
        });
    }

    /// Writes a step down; the same thing withheld for the same reason once a finding.
    fn asked(&mut self, finding: &Finding, verdict: Verdict, withheld: Option<String>, now: &Now) {
        let again = |a: &&Asked| a.at >= finding.since && a.verdict == verdict && a.withheld == withheld;
        if withheld.is_none() || !self.played.asked.iter().any(|a| again(&a)) {
            self.played.asked.push(Asked { at: now.boot, verdict, withheld, facts: finding.facts() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::*;

    #[test]
    fn a_throttle_that_a_run_finds_is_found_in_the_backtest_too() {
        // slurmwatch (TH-01): a card at a fifth of its clock, at work all the time; no work of it may end its history.
        let percent = |n| Percent::new(n).map_or(Absent(Absence::Implausible), Measured);
        let seen = Observation {
            sm_util: percent(100),
            mem_util: percent(30),
            power: Measured(Milliwatts(160_000)),
            power_limit: Measured(Milliwatts(400_000)),
            sm_clock: Measured(Megahertz(385)),
            sm_clock_max: Measured(Megahertz(1785)),
            clocks_event: Measured(ClocksEventMask(0x8)),
            processes: Measured(ProcessCount { compute: 1, graphics: 0 }),
            ..Observation::absent(Absence::NotSupported)
        };
        let unit = UnitRef {
            uuid: UnitUuid::new("GPU-0").unwrap(),
            index: NvmlIndex(0),
            name: Absent(Absence::NotRecorded),
        };
        let history = JobHistory {
            job: super::super::job(0, 1),
            units: Measured(vec![unit]),
            node_units: Measured(1),
            ticks: Vec::new(),
            floors: Vec::new(),
            actions: Vec::new(),
            open_finding: None,
            fault: None,
        };
        let config = crate::config::parse("mode: observe\n", "test").unwrap();
        let mut player = Player::new(&config, history);
        for n in 1..=240 {
            player.run(Tick {
                run: RunId(n),
                at: BootMs(n * 30_000),
                wall: WallMs(n * 30_000),
                driver: Measured("1".into()),
                job: JobSample { frozen: Measured(false), ..JobSample::absent(Absence::NotSupported) },
                units: vec![seen.clone()],
            });
        }
        let found = player.end().findings;
        assert_eq!(found.iter().map(|f| f.signature).collect::<Vec<_>>(), [Signature::Throttled]);
    }
}

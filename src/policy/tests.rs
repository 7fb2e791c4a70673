//! The rules as promises: small histories built by hand, and many built by chance.

use super::nodes::Nodes;
use super::reason::{RunKey, Stand, waste};
use super::stage::{Circumstances, Step, escalate};
use super::window::{self, Lacking, Series};
use super::*;
use crate::mode::{EnforceIn, Mode, NoPermit};
use crate::model::*;
use crate::reading::{Absence, Reading};
use crate::units::*;
use proptest::prelude::*;

mod cadences;
mod doubts;
mod exemptions;
mod ladder;
mod signatures;

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;
/// The end of every history here.
const NOW: i64 = 100 * HOUR;

fn now() -> Now {
    Now { boot_id: "boot".into(), boot: BootMs(NOW), wall: WallMs(1_795_961_844_000) }
}

pub(super) fn rules() -> Rules {
    Rules {
        thresholds: Thresholds {
            util_pct: 15,
            mem_held_fraction: 0.05,
            idle_power: Auto::Auto,
            window_ms: 30 * MINUTE,
            warmup_ms: 15 * MINUTE,
            first_activity_grace_ms: HOUR,
            min_samples: Auto::Auto,
            max_sample_gap: Auto::Auto,
        },
        stages: vec![
            Stage { after_ms: 0, verdict: Verdict::Alert },
            Stage { after_ms: HOUR, verdict: Verdict::Drain },
            Stage { after_ms: 4 * HOUR, verdict: Verdict::Cancel },
        ],
        spinning: Verdict::Drain,
        exemptions: Exemptions::default(),
        drain_shared: false,
        warn: None,
    }
}

fn every(seconds: i64) -> Reading<Cadence> {
    Reading::Measured(Cadence { median_ms: seconds * 1000, p90_ms: seconds * 1000 })
}

/// A card at `util` percent with one process.
fn at(util: u32) -> Observation {
    Observation {
        sm_util: percent(util),
        mem_util: percent(if util > 0 { 30 } else { 0 }),
        memory: Reading::Measured(Memory {
            used: MemoryBytes(60 << 30),
            total: MemoryBytes(80 << 30),
            excludes_reserved: true,
        }),
        power: Reading::Measured(Milliwatts(if util > 0 { 600_000 } else { 118_000 })),
        power_limit: Reading::Measured(Milliwatts(700_000)),
        processes: Reading::Measured(ProcessCount { compute: 1, graphics: 0 }),
        ..Observation::absent(Absence::NotSupported)
    }
}

fn percent(value: u32) -> Reading<Percent> {
    Percent::new(value).map_or(Reading::Absent(Absence::Implausible), Reading::Measured)
}

/// A job five hours old, once active, with these observations of each unit every 30 s up to now.
fn history(units: &[Vec<Observation>]) -> JobHistory {
    history_every(30, units)
}

fn history_every(seconds: i64, units: &[Vec<Observation>]) -> JobHistory {
    let length = units[0].len() as i64;
    let tick = |t: i64| Tick {
        run: RunId(1000 + t),
        at: BootMs(NOW - (length - 1 - t) * seconds * 1000),
        wall: WallMs(0),
        driver: Reading::Measured("1".into()),
        job: JobSample {
            frozen: Reading::Measured(false),
            holders: Reading::Measured(0),
            ..JobSample::absent(Absence::NotSupported)
        },
        units: units.iter().map(|u| u[t as usize].clone()).collect(),
    };
    let unit = |u: usize| UnitRef {
        uuid: UnitUuid::new(&format!("GPU-{u}")).unwrap(),
        index: NvmlIndex(u as u32),
        name: Reading::Absent(Absence::NotRecorded),
    };
    JobHistory {
        floors: Vec::new(),
        job: job(NOW - 5 * HOUR, units.len()),
        units: Reading::Measured((0..units.len()).map(unit).collect()),
        node_units: Reading::Measured(units.len() as u32),
        ticks: (0..length).map(tick).collect(),
        actions: Vec::new(),
        open_finding: None,
        fault: None,
    }
}

fn job(start_ms: i64, gpus: usize) -> JobRun {
    let none = || Reading::Absent(Absence::NotRecorded);
    let start = JobStart { boot: BootMs(start_ms), wall: WallMs(0), source: StartSource::Slurm };
    JobRun {
        id: JobRunId(1),
        registration: Registration {
            cluster: none(),
            job: JobId::new(4242).unwrap(),
            restart: 0,
            sluid: none(),
            start,
            user: Reading::Measured("ada".into()),
            uid: Reading::Measured(1001),
            account: none(),
            partition: Reading::Measured("h100".into()),
            qos: none(),
            nodes: Reading::Measured(1),
            node_list: none(),
            het_leader: None,
            limit_end: Reading::Absent(Absence::NotRecorded),
            gpus: (0..gpus as u32).map(|g| GpuClaim::Index(GresIndex(g))).collect(),
            by: RegisteredBy::Prolog,
        },
        registered: BootMs(start_ms),
        details: None,
        first_activity: Some(BootMs(start_ms)),
        last_activity: Some(BootMs(start_ms)),
    }
}

fn finding(history: &JobHistory) -> Box<Finding> {
    match judge(history, &rules(), every(30), &now()).judgement {
        Judgement::Breaching(finding) => finding,
        other => panic!("{other:?}"),
    }
}

fn guard_of(history: &JobHistory, cadence: Reading<Cadence>) -> Guard {
    match judge(history, &rules(), cadence, &now()).judgement {
        Judgement::Unjudged { guard, .. } | Judgement::Spared { guard, .. } => guard,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_full_window_of_zero_with_processes_is_hung_and_a_shorter_one_is_not_judged() {
    let found = finding(&history(&[vec![at(0); 61]]));
    assert_eq!((found.signature, found.scope, found.cap), (Signature::Hung, Scope::Whole, Verdict::Cancel));
    assert_eq!(found.established_for_ms, 0);
    assert_eq!(found.wasted().hours(), 0.5);
    assert_eq!(guard_of(&history(&[vec![at(0); 60]]), every(30)), Guard::Window);
}

#[test]
fn work_anywhere_in_the_window_is_alive() {
    let mut unit = vec![at(0); 61];
    unit[30] = at(97);
    let judged = judge(&history(&[unit]), &rules(), every(30), &now()).judgement;
    assert!(matches!(judged, Judgement::Alive { .. }), "{judged:?}");
}

#[test]
fn one_unreadable_sample_in_the_window_certifies_nothing() {
    // NordicHPC/sonar#247, slurmwatch (NR-01, NR-09): an absent utilization is not zero.
    let mut unit = vec![at(0); 61];
    unit[59].sm_util = Reading::Absent(Absence::Transient);
    assert_eq!(guard_of(&history(&[unit]), every(30)), Guard::Peak);
}

#[test]
fn a_unit_that_the_driver_no_longer_lists_is_not_idle() {
    // NVIDIA/dcgm-exporter#46 (FT-02): the lost card's job is not judged.
    let lost = vec![Observation::absent(Absence::NotListed); 121];
    assert_eq!(guard_of(&history(&[vec![at(0); 121], lost]), every(30)), Guard::Peak);
}

#[test]
fn a_success_code_with_zero_memory_traffic_and_high_power_is_no_spin() {
    // Cache-resident kernels: 100 % with an idle memory controller at high power is work.
    let mut busy = at(100);
    busy.mem_util = percent(0);
    let judged = judge(&history(&[vec![busy.clone(); 61]]), &rules(), every(30), &now()).judgement;
    assert!(matches!(judged, Judgement::Alive { .. }));
    busy.power = Reading::Measured(Milliwatts(118_000));
    assert_eq!(finding(&history(&[vec![busy.clone(); 61]])).signature, Signature::Spinning);
    busy.mem_util = Reading::Absent(Absence::NotSupported);
    let judged = judge(&history(&[vec![busy; 61]]), &rules(), every(30), &now()).judgement;
    assert!(matches!(judged, Judgement::Alive { .. }), "no spin where memory utilization is unreadable");
}

#[test]
fn some_idle_among_busy_ones_is_a_part_and_only_an_alert() {
    let found = finding(&history(&[vec![at(95); 61], vec![at(0); 61]]));
    assert_eq!((found.scope, found.cap, found.units.len()), (Scope::Part, Verdict::Alert, 1));
    assert_eq!(found.capped_by.as_ref().unwrap().0, Guard::WholeJob);
}

#[test]
fn numbers_that_this_cadence_can_never_meet_are_replaced_and_said() {
    // The older daemon's defaults against HealthCheckInterval=300 (RT-07).
    let mut thresholds = rules().thresholds;
    thresholds.window_ms = 20 * MINUTE;
    thresholds.max_sample_gap = Auto::Set(3 * MINUTE);
    thresholds.min_samples = Auto::Set(8);
    let slow = Cadence { median_ms: 5 * MINUTE, p90_ms: 5 * MINUTE };
    let limits = window::limits(&thresholds, slow);
    assert_eq!(limits.adapted.len(), 2, "{:?}", limits.adapted);
    assert!(limits.gap_ms >= 5 * MINUTE && limits.min_samples <= 4);
    let fast = Cadence { median_ms: 30_000, p90_ms: 31_000 };
    let limits = window::limits(&thresholds, fast);
    assert_eq!((limits.gap_ms, limits.min_samples, limits.adapted.len()), (3 * MINUTE, 8, 0));
    // A cadence slower than a third of the window stretches the window: at least four samples fit.
    thresholds.max_sample_gap = Auto::Auto;
    thresholds.min_samples = Auto::Auto;
    let limits = window::limits(&thresholds, Cadence { median_ms: 10 * MINUTE, p90_ms: 10 * MINUTE });
    assert_eq!(limits.window_ms, 60 * MINUTE);
    assert!(limits.min_samples >= 4 && limits.gap_ms >= 15 * MINUTE);
}

#[test]
fn no_configuration_makes_two_samples_a_window() {
    let mut thresholds = rules().thresholds;
    thresholds.max_sample_gap = Auto::Set(thresholds.window_ms);
    thresholds.min_samples = Auto::Set(1);
    let limits = window::limits(&thresholds, Cadence { median_ms: 30_000, p90_ms: 30_000 });
    assert!(limits.gap_ms <= thresholds.window_ms / 2 && limits.min_samples == 3, "{limits:?}");
    assert_eq!(limits.adapted.len(), 1);
}

#[test]
fn hours_of_little_compute_and_a_pause_shorter_than_a_window_are_not_a_hang() {
    // Runs whose step does not divide the window: the pause is certified by no window, the hours before it are.
    for seconds in [29, 31, 37, 43] {
        let pause = (1800 / seconds) as usize;
        let mut unit = vec![at(8); 400];
        unit.extend(vec![at(0); pause]);
        let judged = judge(&history_every(seconds, &[unit]), &rules(), every(seconds), &now()).judgement;
        let Judgement::Breaching(found) = judged else { panic!("every {seconds} s: {judged:?}") };
        assert_eq!((found.signature, found.cap), (Signature::Starved, Verdict::Alert), "every {seconds} s");
    }
}

#[test]
fn hours_of_another_look_do_not_count_for_a_drain() {
    let mut spin = at(100);
    spin.mem_util = percent(0);
    spin.power = Reading::Measured(Milliwatts(118_000));
    let mut unlisted = at(0);
    unlisted.processes = Reading::Absent(Absence::NoPermission);
    unlisted.memory = Reading::Absent(Absence::NotSupported);
    for before in [at(8), spin, unlisted] {
        let mut unit = vec![before; 400];
        unit.extend(vec![at(0); 71]);
        let found = finding(&history(&[unit]));
        assert_eq!(found.signature, Signature::Hung);
        assert_eq!(found.acting_for_ms, 5 * MINUTE, "71 samples hold 35 minutes, a window is 30");
    }
}

#[test]
fn hours_of_work_on_the_cpus_do_not_count_for_a_drain() {
    let mut hung = history(&[vec![at(0); 400]]);
    // Thirty cores, then one, for 35 minutes.
    let mut cpu_ms = 0;
    for (t, tick) in hung.ticks.iter_mut().enumerate() {
        cpu_ms += if t < 330 { 30 * 30_000 } else { 30_000 };
        tick.job.cpu_ms = Reading::Measured(cpu_ms);
        tick.job.written_bytes = Reading::Measured(0);
    }
    let found = finding(&hung);
    assert_eq!((found.signature, found.cap), (Signature::Hung, Verdict::Cancel));
    assert!(found.established_for_ms > 2 * HOUR);
    assert!(found.acting_for_ms < 10 * MINUTE, "{}", human_ms(found.acting_for_ms));
}

#[test]
fn instants_are_evidence_by_the_steps_of_their_own_window() {
    // Ten hours every 45 s, then every 85 s: the day's median is not what covers the last window.
    let mut slowed = history_every(45, &[vec![at(0); 200]]);
    let last = slowed.ticks.len() - 1;
    for (t, tick) in slowed.ticks.iter_mut().enumerate().skip(150) {
        tick.at = BootMs(NOW - (last - t) as i64 * 85_000);
    }
    for (t, tick) in slowed.ticks.iter_mut().enumerate().take(150) {
        tick.at = BootMs(NOW - (last - 149) as i64 * 85_000 - (149 - t) as i64 * 45_000);
    }
    assert_eq!(guard_of(&slowed, every(45)), Guard::Sparse);
    let mut late = history(&[vec![at(0); 121]]);
    for tick in late.ticks.iter_mut().take(100) {
        tick.at = BootMs(tick.at.0 - 30_000);
    }
    assert_eq!(finding(&late).signature, Signature::Hung, "one late run is what every node has");
}

#[test]
fn at_every_cadence_from_10_to_300_seconds_an_empty_job_is_found_within_two_windows() {
    for seconds in [10, 30, 45, 60, 120, 300] {
        let mut empty = at(0);
        empty.processes = Reading::Measured(ProcessCount { compute: 0, graphics: 0 });
        empty.memory = Reading::Measured(Memory {
            used: MemoryBytes(0),
            total: MemoryBytes(80 << 30),
            excludes_reserved: true,
        });
        empty.power = Reading::Measured(Milliwatts(70_000));
        let length = 2 * 30 * 60 / seconds + 1;
        let mut unit = vec![empty; length as usize];
        for (t, seen) in unit.iter_mut().enumerate() {
            seen.energy = Reading::Measured(Millijoules(70_000 * seconds as u64 * t as u64));
        }
        let judged = judge(&history_every(seconds, &[unit]), &rules(), every(seconds), &now()).judgement;
        let Judgement::Breaching(found) = judged else { panic!("every {seconds} s: {judged:?}") };
        assert_eq!(found.signature, Signature::Idle);
    }
}

#[test]
fn stale_samples_are_not_certified() {
    // microsoft/pai#889 (FT-12): last known values served for ever.
    let mut old = history(&[vec![at(0); 121]]);
    for tick in &mut old.ticks {
        tick.at = BootMs(tick.at.0 - 12 * MINUTE);
    }
    assert_eq!(guard_of(&old, every(30)), Guard::Gap);
    let limits = window::limits(&rules().thresholds, Cadence { median_ms: 30_000, p90_ms: 30_000 });
    let series = Series::new(&old, 1, &rules().thresholds, &limits);
    assert_eq!(window::certify(&series, 0, BootMs(NOW)), Err(Lacking::Stale(12 * MINUTE)));
}

#[test]
fn a_breach_older_than_the_kept_samples_is_judged_as_if_they_were_all_there() {
    let whole = history(&[vec![at(0); 481]]);
    let full = finding(&whole);
    // The same breach after pruning: the newest hour of samples, and the finding's own row of the run before.
    let mut folded = whole.clone();
    folded.ticks.drain(..360);
    let before_last = &whole.ticks[479];
    folded.open_finding = Some(OpenFinding {
        since: whole.ticks[0].at,
        opened_run: RunId(1060),
        last_run: before_last.run,
        certified_ms: before_last.at.since_ms(whole.ticks[0].at),
        signature: "hung".into(),
    });
    let carried = finding(&folded);
    assert_eq!(carried.since, full.since);
    assert_eq!(carried.established_for_ms, full.established_for_ms);
    assert_eq!(carried.wasted(), full.wasted());
    assert_eq!((carried.signature, carried.cap), (full.signature, full.cap));
    // A row of an earlier breach does not stretch a new one.
    folded.ticks[0].units[0] = at(97);
    assert!(finding(&folded).since > folded.ticks[0].at);
}

#[test]
fn an_exemption_that_cannot_be_decided_is_no_verdict() {
    let mut strict = rules();
    strict.exemptions.qos = vec!["debug".into()];
    let quiet = history(&[vec![at(0); 61]]);
    let assessed = judge(&quiet, &strict, every(30), &now());
    assert!(matches!(assessed.judgement, Judgement::Unjudged { guard: Guard::Exemption, .. }));
    assert!(assessed.wants_details);
}

fn record(id: i64, deed: impl Into<Deed>, run: i64, outcome: Outcome) -> ActionRecord {
    let deed = deed.into();
    ActionRecord {
        id,
        deed,
        run: RunId(run),
        at: now().boot,
        wall: WallMs(0),
        outcome,
        reason: (deed == Deed::Drain).then(|| waste(KEY, Signature::Hung, Stand::Drain, WallMs(0))),
        signature: "hung".into(),
        detail: String::new(),
        counted_again: Some(RunId(run)),
    }
}

const KEY: RunKey = RunKey { job: JobId::FIRST, start_unix_s: 1_764_422_738, restart: 0 };

fn step(history: &JobHistory, found: &Finding, rules: &Rules, mode: Mode, run: i64) -> Step {
    escalate(found, rules, circumstances(history, mode, run))
}

fn circumstances(history: &JobHistory, mode: Mode, run: i64) -> Circumstances<'_> {
    let here = NodeName::nowhere();
    Circumstances {
        permit: mode.permit(&EnforceIn::EVERYWHERE, &history.job, &here),
        run: RunId(run),
        now: now().boot,
        job: &history.job,
        actions: &history.actions,
        node_units: history.node_units,
        nodes: Ok(Nodes::alone(&here)),
        wait_ms: 0,
        held_by: None,
        backing_off: Vec::new(),
    }
}

#[test]
fn every_stage_at_once_still_takes_three_runs() {
    let mut all_at_once = rules();
    all_at_once.stages.iter_mut().for_each(|s| s.after_ms = 0);
    let mut quiet = history(&[vec![at(0); 121]]);
    let found = finding(&quiet);
    let last = 1120;
    assert!(matches!(step(&quiet, &found, &all_at_once, Mode::Enforce, last), Step::Alert));
    quiet.actions.push(record(1, Verdict::Alert, last, Outcome::Done));
    assert!(matches!(step(&quiet, &found, &all_at_once, Mode::Enforce, last), Step::Rest));
    assert!(matches!(step(&quiet, &found, &all_at_once, Mode::Enforce, last + 1), Step::Drain(_)));
    quiet.actions.push(record(2, Verdict::Drain, last + 1, Outcome::Done));
    assert!(!matches!(step(&quiet, &found, &all_at_once, Mode::Enforce, last + 1), Step::Cancel(_)));
    assert!(matches!(step(&quiet, &found, &all_at_once, Mode::Enforce, last + 2), Step::Cancel(_)));
    quiet.actions.push(record(3, Verdict::Cancel, last + 2, Outcome::Done));
    assert!(matches!(step(&quiet, &found, &all_at_once, Mode::Enforce, last + 3), Step::Rest));
}

#[test]
fn an_alert_of_an_earlier_stretch_is_no_rung() {
    // microsoft/pai#912 (FP-05): breaches of separate stretches never add up.
    let mut quiet = history(&[vec![at(0); 400]]);
    let found = finding(&quiet);
    quiet.actions.push(record(1, Verdict::Alert, 900, Outcome::Done));
    assert!(matches!(step(&quiet, &found, &rules(), Mode::Enforce, 1400), Step::Alert));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// No configuration, no history of actions reaches a cancel without an alert and a drain, both done in earlier
    /// runs, nor a drain without an alert done in an earlier run, nor anything under observe.
    #[test]
    fn no_config_reaches_cancel_without_its_rungs(
        afters in prop::collection::vec(0i64..120, 3),
        actions in prop::collection::vec((0usize..3, 1000i64..1130, 0usize..5), 0..6),
        enforce in any::<bool>(),
        run in 1121i64..1130,
    ) {
        let mut rules = rules();
        for (stage, after) in rules.stages.iter_mut().zip(&afters) {
            stage.after_ms = after * MINUTE;
        }
        let mut quiet = history(&[vec![at(0); 121]]);
        let found = finding(&quiet);
        let verdicts = [Verdict::Alert, Verdict::Drain, Verdict::Cancel];
        let outcomes = [Outcome::Begun, Outcome::Done, Outcome::Failed, Outcome::Unknown, Outcome::Released, Outcome::Lifted];
        quiet.actions = actions.iter().enumerate()
            .map(|(i, (v, r, o))| record(i as i64, verdicts[*v], *r, outcomes[*o])).collect();
        let done = |verdict| quiet.actions.iter()
            .any(|a| a.deed == Deed::from(verdict) && a.outcome == Outcome::Done && a.run < RunId(run));
        let mode = if enforce { Mode::Enforce } else { Mode::Observe };
        match step(&quiet, &found, &rules, mode, run) {
            Step::Drain(_) => prop_assert!(enforce && done(Verdict::Alert)),
            Step::Cancel(_) => prop_assert!(enforce && done(Verdict::Alert) && done(Verdict::Drain)),
            _ => {}
        }
    }

    /// Whatever is absent, wherever: a unit without a readable utilization in the window is never part of a verdict.
    #[test]
    fn absent_evidence_never_breaches(
        holes in prop::collection::vec((0usize..2, 0usize..121, 0usize..20), 1..40),
    ) {
        let mut units = [vec![at(0); 121], vec![at(0); 121]];
        for (u, t, why) in &holes {
            units[*u][*t] = Observation::absent(Absence::ALL[*why % Absence::ALL.len()]);
        }
        let judged = judge(&history(&units), &rules(), every(30), &now()).judgement;
        if let Judgement::Breaching(found) = judged {
            let from = found.evidence().since_tick();
            for unit in &found.units {
                let u = unit.index.0 as usize;
                prop_assert!(holes.iter().all(|(hole_u, t, _)| *hole_u != u || *t < from));
            }
        }
    }
}

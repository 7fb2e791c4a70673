//! What runs at other cadences see, and what they must not make of it.

use super::*;

/// A unit at these levels, one a tick, whose energy counter integrates the given watts between the ticks.
fn metered(seconds: i64, unit: &[(Observation, u64)]) -> Vec<Observation> {
    let mut mj = 0;
    let meter = |(seen, watts): &(Observation, u64)| {
        mj += watts * seconds as u64 * 1000;
        Observation { energy: Reading::Measured(Millijoules(mj)), ..seen.clone() }
    };
    unit.iter().map(meter).collect()
}

fn drawing(util: u32, watts: u64) -> Observation {
    Observation { power: Reading::Measured(Milliwatts(watts * 1000)), ..at(util) }
}

fn judged_every(seconds: i64, unit: Vec<Observation>) -> Judgement {
    judge(&history_every(seconds, &[unit]), &rules(), every(seconds), &now()).judgement
}

#[test]
fn a_tiny_job_is_judged_at_any_cadence_where_its_energy_is_what_the_instants_drew() {
    for seconds in [60, 120, 300] {
        let ticks = (2 * 1800 / seconds) as usize;
        let low: Vec<_> = (0..ticks).map(|t| (drawing(7, 76 + t as u64 % 3), 78)).collect();
        let judgement = judged_every(seconds, metered(seconds, &low));
        let Judgement::Breaching(found) = judgement else { panic!("every {seconds} s: {judgement:?}") };
        assert_eq!((found.signature, found.cap), (Signature::Starved, Verdict::Alert));
        // More was drawn between than at any instant: something ran that no run saw.
        let bursts: Vec<_> = low.iter().map(|(seen, _)| (seen.clone(), 130)).collect();
        let judgement = judged_every(seconds, metered(seconds, &bursts));
        let Judgement::Unjudged { guard, .. } = judgement else { panic!("every {seconds} s: {judgement:?}") };
        assert_eq!(guard, Guard::Sparse);
        let unmetered: Vec<_> = low.iter().map(|(seen, _)| seen.clone()).collect();
        let judgement = judged_every(seconds, unmetered);
        assert!(matches!(judgement, Judgement::Unjudged { guard: Guard::Sparse, .. }), "{judgement:?}");
    }
}

#[test]
fn a_finding_stays_found_while_the_cadence_makes_its_window_a_little_longer() {
    // Six runs a window: the 90th percentile of a jittering cadence moves the stretched window from run to run.
    let seconds = 310;
    let unit: Vec<_> = (0..7).map(|_| (at(0), 118)).collect();
    let mut quiet = history_every(seconds, &[metered(seconds, &unit)]);
    let cadence = |p90_s: i64| Reading::Measured(Cadence { median_ms: 310_000, p90_ms: p90_s * 1000 });
    let found = |quiet: &JobHistory, p90_s| {
        matches!(judge(quiet, &rules(), cadence(p90_s), &now()).judgement, Judgement::Breaching(_))
    };
    assert!(found(&quiet, 310) && !found(&quiet, 330));
    quiet.open_finding = Some(OpenFinding {
        since: quiet.ticks[0].at,
        opened_run: quiet.ticks[0].run,
        last_run: quiet.ticks[5].run,
        certified_ms: 5 * 310_000,
        signature: "hung".into(),
    });
    assert!(found(&quiet, 330), "the breach goes on");
    quiet.open_finding.as_mut().unwrap().since = BootMs(NOW);
    quiet.ticks.remove(0);
    assert!(!found(&quiet, 330), "another breach has its own window");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever the cadence and its jitter, an empty job with an energy counter is found within two windows.
    #[test]
    fn an_empty_job_is_found_within_two_windows(seconds in 10i64..=300, jitter in prop::collection::vec(0i64..10, 400)) {
        let window_ms = window::limits(
            &rules().thresholds,
            Cadence { median_ms: seconds * 1000, p90_ms: seconds * 1090 },
        ).window_ms;
        let ticks = (2 * window_ms / (seconds * 1000)) as usize;
        let mut empty = at(0);
        empty.processes = Reading::Measured(ProcessCount { compute: 0, graphics: 0 });
        empty.memory = empty.memory.map(|m| Memory { used: MemoryBytes(0), ..m });
        empty.power = Reading::Measured(Milliwatts(70_000));
        let mut judged = history_every(seconds, &[vec![empty; ticks]]);
        let mut late_ms = 0;
        for (t, tick) in judged.ticks.iter_mut().enumerate().rev() {
            tick.at = BootMs(tick.at.0 - late_ms);
            late_ms += jitter[t % 400] * seconds * 9;
            tick.units[0].energy = Reading::Measured(Millijoules((tick.at.0 as u64) * 70));
        }
        let cadence = Reading::Measured(Cadence { median_ms: seconds * 1000, p90_ms: seconds * 1090 });
        let judgement = judge(&judged, &rules(), cadence, &now()).judgement;
        let is_idle = matches!(&judgement, Judgement::Breaching(f) if f.signature == Signature::Idle);
        prop_assert!(is_idle, "every {} s: {:?}", seconds, judgement);
    }
}

//! What must not pass for evidence, and what must not hide it.

use super::super::level::settles;
use super::super::{floor, interval};
use super::*;

const GIB: u64 = 1 << 30;

fn watts(watts: u64) -> Reading<Milliwatts> {
    Reading::Measured(Milliwatts(watts * 1000))
}

fn spin() -> Observation {
    Observation { sm_util: percent(100), mem_util: percent(0), power: watts(125), ..at(0) }
}

fn empty() -> Observation {
    Observation {
        processes: Reading::Measured(ProcessCount { compute: 0, graphics: 0 }),
        memory: Reading::Measured(Memory {
            used: MemoryBytes(0),
            total: MemoryBytes(80 << 30),
            excludes_reserved: true,
        }),
        power: watts(70),
        ..at(0)
    }
}

fn judged_every(seconds: i64, history: &JobHistory) -> Judgement {
    judge(history, &rules(), every(seconds), &now()).judgement
}

/// Energy counters that integrate these watts, one for each interval before a tick.
fn metered(history: &mut JobHistory, unit: usize, drawn: impl Fn(usize) -> u64) {
    let (mut mj, mut last) = (1_000_000u64, None);
    for (t, tick) in history.ticks.iter_mut().enumerate() {
        if let Some(last) = last {
            mj += tick.at.since_ms(last) as u64 * drawn(t);
        }
        last = Some(tick.at);
        tick.units[unit].energy = Reading::Measured(Millijoules(mj));
    }
}

fn may_hurt(judgement: &Judgement) -> bool {
    matches!(judgement, Judgement::Breaching(f) if f.cap > Verdict::Alert)
}

/// What a run replays of it: back to where every unit has settled.
fn as_replayed(history: &JobHistory) -> JobHistory {
    let mut short = history.clone();
    let mut decided = vec![false; history.ticks[0].units.len()];
    let mut from = history.ticks.len();
    for (t, tick) in history.ticks.iter().enumerate().rev() {
        if decided.iter().all(|d| *d) {
            break;
        }
        from = t;
        for (d, seen) in decided.iter_mut().zip(&tick.units) {
            *d |= settles(seen, &rules().thresholds);
        }
    }
    short.ticks.drain(..from);
    short
}

#[test]
fn a_cancel_stage_beyond_the_cap_does_not_bring_the_drain_forward() {
    // Dead for 4 h 15 m beyond a window, but its wires were busy until 31 minutes ago: 1 minute of certainty.
    let mut unit = vec![spin(); 571];
    for (t, seen) in unit.iter_mut().enumerate() {
        let moved = t.min(508) as u64 * 10_000_000;
        seen.fields.set(Field::NvlinkTxKib, Reading::Measured(moved));
    }
    let mut hung = history(&[unit]);
    let found = finding(&hung);
    assert_eq!((found.signature, found.cap), (Signature::Spinning, Verdict::Drain));
    assert!(found.established_for_ms >= 4 * HOUR && found.acting_for_ms < 2 * MINUTE);
    hung.actions.push(record(1, Verdict::Alert, 1500, Outcome::Done));
    let taken = step(&hung, &found, &rules(), Mode::Enforce, 1570);
    assert!(!matches!(taken, Step::Drain(_)), "drain after 60 m, certain for {} ms", found.acting_for_ms);
}

#[test]
fn an_energy_counter_that_stands_still_agrees_with_nothing() {
    let mut stuck = history_every(120, &[vec![at(0); 31]]);
    metered(&mut stuck, 0, |_| 0);
    let judgement = judged_every(120, &stuck);
    assert!(!matches!(judgement, Judgement::Breaching(_)), "0 W of a card at 118 W: {judgement:?}");
}

#[test]
fn a_stuck_energy_counter_does_not_prove_a_hole_idle() {
    let mut stuck = history(&[vec![at(0); 80]]);
    for tick in stuck.ticks.iter_mut().take(60) {
        tick.at = BootMs(tick.at.0 - 25 * MINUTE);
    }
    metered(&mut stuck, 0, |_| 0);
    let judgement = judged_every(30, &stuck);
    assert!(!matches!(judgement, Judgement::Breaching(_)), "{judgement:?}");
}

#[test]
fn a_hole_with_traffic_on_the_wires_is_not_proven_idle() {
    // "A hole over which the counters prove that nothing ran (energy at the floor, traffic flat)".
    let mut hole = history(&[vec![at(0); 80]]);
    for (t, tick) in hole.ticks.iter_mut().enumerate() {
        if t < 60 {
            tick.at = BootMs(tick.at.0 - 25 * MINUTE);
        }
        let moved = if t < 60 { 0 } else { 4_000 * GIB };
        tick.units[0].fields.set(Field::PcieRxBytes, Reading::Measured(moved));
    }
    metered(&mut hole, 0, |_| 125);
    let judgement = judged_every(30, &hole);
    assert!(!matches!(judgement, Judgement::Breaching(_)), "4 TiB in 25 minutes: {judgement:?}");
}

#[test]
fn at_a_slow_cadence_busy_wires_do_not_agree_with_a_silent_card() {
    let mut bursts = history_every(120, &[vec![at(0); 31]]);
    metered(&mut bursts, 0, |_| 140);
    for (t, tick) in bursts.ticks.iter_mut().enumerate() {
        tick.units[0].fields.set(Field::PcieRxBytes, Reading::Measured(t as u64 * 100 * GIB));
    }
    let judgement = judged_every(120, &bursts);
    assert!(!may_hurt(&judgement), "100 GiB every two minutes: {judgement:?}");
}

#[test]
fn a_process_that_came_this_minute_is_no_hang_of_four_hours() {
    let mut unit = vec![empty(); 540];
    unit[539] = Observation { processes: at(0).processes, power: watts(118), ..empty() };
    let found = finding(&history(&[unit]));
    let hurts = found.cap > Verdict::Alert && found.acting_for_ms > HOUR;
    assert!(!hurts, "{} may ask for {} after {}", found.signature, found.cap, human_ms(found.acting_for_ms));
}

#[test]
fn no_process_is_no_spin() {
    // "a process resident on each"; a latched counter over memory that a dead process leaked.
    let nobody =
        Observation { processes: Reading::Measured(ProcessCount { compute: 0, graphics: 0 }), ..spin() };
    let judgement = judged_every(30, &history(&[vec![nobody; 121]]));
    assert!(!may_hurt(&judgement), "{judgement:?}");
}

#[test]
fn a_card_that_wants_a_reset_is_not_spinning() {
    // A job on a faulty GPU is unknown, not idle.
    let mut wants = spin();
    wants.fields.set(Field::RecoveryAction, Reading::Measured(1));
    let judgement = judged_every(30, &history(&[vec![wants; 121]]));
    assert!(!may_hurt(&judgement), "{judgement:?}");
}

#[test]
fn a_counter_that_fails_every_second_time_is_not_flat() {
    let wire = (0..121u64).map(|t| {
        let mut seen = spin();
        let read = Reading::Measured(t * 1_000_000_000);
        seen.fields
            .set(Field::NvlinkTxKib, if t % 2 == 0 { read } else { Reading::Absent(Absence::Transient) });
        seen
    });
    let judgement = judged_every(30, &history(&[wire.collect()]));
    assert!(!may_hurt(&judgement), "{judgement:?}");
}

#[test]
fn a_card_that_clocks_down_while_hung_has_not_worked() {
    // Recorded: RTX A6000 with a context 73-82 W (P2), falls back to P8 (27 W) when long quiet.
    let mut hung = history(&[vec![at(0); 100]]);
    for (t, tick) in hung.ticks.iter_mut().enumerate() {
        tick.units[0].power = watts(if t < 90 { 80 } else { 27 });
        tick.units[0].power_limit = watts(300);
        tick.units[0].sm_clock = Reading::Measured(Megahertz(if t < 90 { 1800 } else { 210 }));
        tick.units[0].sm_clock_max = Reading::Measured(Megahertz(1860));
    }
    metered(&mut hung, 0, |t| {
        if t < 90 {
            80
        } else if t == 90 {
            55
        } else {
            27
        }
    });
    let judgement = judged_every(30, &hung);
    assert!(matches!(judgement, Judgement::Breaching(_)), "{judgement:?}");
}

#[test]
fn what_lies_far_below_both_instants_is_not_learnt() {
    let driver = Reading::Measured("580.95".to_owned());
    let seen = |mj: u64| Observation {
        energy: Reading::Measured(Millijoules(mj)),
        sm_clock: Reading::Measured(Megahertz(1755)),
        sm_clock_max: Reading::Measured(Megahertz(1755)),
        ..at(0)
    };
    let (before, after) = (seen(0), seen(30_000));
    let moment = |ms, seen| interval::Moment { at: BootMs(ms), driver: &driver, seen };
    // 1 W over 30 s of a card that drew 118 W at both ends: the counter stood still for most of it.
    assert_eq!(floor::rested(moment(0, &before), moment(30_000, &after)), None);
}

#[test]
fn a_floor_once_learnt_too_low_does_not_hide_every_hang() {
    // Recorded: A100 SXM4 40GB with a context 34 / 37 / 49 W.
    let clock = Reading::Measured(Megahertz(1410));
    let unit = Observation {
        power: watts(49),
        power_limit: watts(400),
        sm_clock: clock,
        sm_clock_max: clock,
        ..at(0)
    };
    let mut hung = history(&[vec![unit; 121]]);
    metered(&mut hung, 0, |_| 49);
    let mut learnt = LearntFloors::none();
    learnt.set(Rest::ContextHigh, Milliwatts(34_000));
    hung.floors = vec![learnt];
    let judgement = judged_every(30, &hung);
    assert!(matches!(judgement, Judgement::Breaching(_)), "{judgement:?}");
}

#[test]
fn thirty_cores_are_a_cpu_phase_also_where_workers_come_and_go() {
    // Sums over live processes fall when some of them end: workers of two minutes each, 30 at a time, each writing.
    let mut phase = history(&[vec![at(0); 541]]);
    for (t, tick) in phase.ticks.iter_mut().enumerate() {
        tick.job.cpu_ms = Reading::Measured(1_000_000 + (t as u64 % 4) * 30 * 30_000);
        tick.job.written_bytes = Reading::Measured((t as u64 % 4) * 30 * (16 << 20));
    }
    let found = finding(&phase);
    let hurts = found.cap > Verdict::Alert && found.acting_for_ms >= HOUR;
    assert!(!hurts, "may ask for {} after {}", found.cap, human_ms(found.acting_for_ms));
}

#[test]
fn hours_in_which_the_witness_could_not_say_are_no_hours_of_certainty() {
    // Past its limit of links the witness cannot say, run after run.
    let mut idle = history(&[vec![empty(); 541]]);
    for tick in idle.ticks.iter_mut().take(540) {
        tick.job.holders = Reading::Absent(Absence::LimitReached);
    }
    let found = finding(&idle);
    assert_eq!(found.signature, Signature::Idle);
    assert!(found.acting_for_ms < HOUR, "{}", human_ms(found.acting_for_ms));
}

#[test]
fn how_far_back_replay_reads_does_not_change_the_signature() {
    // Worked, then its process died and left 1.5 GiB of 80: explain reads from the start, a run from the last work.
    let left = Observation {
        memory: empty().memory.map(|m| Memory { used: MemoryBytes(3 * GIB / 2), ..m }),
        ..empty()
    };
    let mut unit = vec![empty(); 30];
    unit.extend(vec![at(90); 30]);
    unit.extend(vec![left; 61]);
    let full = history(&[unit]);
    assert_eq!(finding(&full).signature, finding(&as_replayed(&full)).signature);
}

#[test]
fn how_far_back_replay_reads_does_not_make_an_open_breach_an_earlier_one_that_is_told_again() {
    // The job's last work lay between two looks: the first look at zero is known for work by its energy alone.
    let mut unit = vec![at(97); 30];
    unit.extend(vec![at(0); 211]);
    let mut full = history(&[unit]);
    metered(&mut full, 0, |t| if t <= 30 { 600 } else { 118 });
    let since = full.ticks[31].at;
    full.actions.push(record(1, Verdict::Alert, full.ticks[91].run.0, Outcome::Done));
    full.open_finding = Some(OpenFinding {
        since,
        opened_run: full.ticks[91].run,
        last_run: full.ticks[239].run,
        certified_ms: full.ticks[239].at.since_ms(since),
        signature: "hung".into(),
    });
    for oldest in 28..34 {
        let mut cut = full.clone();
        cut.ticks.drain(..oldest);
        let found = finding(&cut);
        assert_eq!((found.since, found.wasted()), (since, finding(&full).wasted()), "from tick {oldest}");
        let taken = step(&cut, &found, &rules(), Mode::Observe, 1240);
        assert!(!matches!(taken, Step::Alert), "told again from tick {oldest}");
    }
}

#[test]
fn how_far_back_replay_reads_does_not_hide_a_throttle() {
    let slowed = Observation {
        sm_util: percent(100),
        mem_util: percent(30),
        power: watts(250),
        power_limit: watts(400),
        sm_clock: Reading::Measured(Megahertz(385)),
        sm_clock_max: Reading::Measured(Megahertz(1785)),
        clocks_event: Reading::Measured(ClocksEventMask(0x8)),
        ..at(0)
    };
    let mut full = history(&[vec![slowed; 91]]);
    metered(&mut full, 0, |_| 160);
    let words = |h: &JobHistory| judged_every(30, h).word();
    assert_eq!(words(&full), words(&as_replayed(&full)), "explain (full) and a run");
}

#[test]
fn a_job_that_may_have_been_suspended_is_not_acted_on() {
    // "while the job was running (not suspended or frozen ...)", and the look asks Slurm for no suspension inside
    // the window; here nobody knows at any tick.
    let mut unknown = history(&[vec![at(0); 541]]);
    for tick in &mut unknown.ticks {
        tick.job.frozen = Reading::Absent(Absence::NoData);
    }
    let judgement = judged_every(30, &unknown);
    assert!(!may_hurt(&judgement), "{judgement:?}");
}

#[test]
fn one_energy_reading_that_failed_does_not_lose_a_finding_at_a_minute() {
    let mut hung = history_every(60, &[vec![at(0); 91]]);
    metered(&mut hung, 0, |_| 118);
    assert!(matches!(judged_every(60, &hung), Judgement::Breaching(_)));
    hung.ticks[75].units[0].energy = Reading::Absent(Absence::Transient);
    let judgement = judged_every(60, &hung);
    assert!(matches!(judgement, Judgement::Breaching(_)), "{judgement:?}");
}

#[test]
fn a_driver_that_nobody_knows_is_not_the_same_driver() {
    let unknown = Reading::Absent(Absence::Transient);
    let seen = |mj: u64| Observation { energy: Reading::Measured(Millijoules(mj)), ..at(0) };
    let (before, after) = (seen(0), seen(30 * 118_000));
    let moment = |ms, seen| interval::Moment { at: BootMs(ms), driver: &unknown, seen };
    let mean = interval::mean_power(moment(0, &before), moment(30_000, &after));
    assert!(mean.measured().is_none(), "{mean:?}");
}

#[test]
fn an_energy_counter_of_another_scale_neither_agrees_nor_speaks_of_work() {
    // ml-energy/zeus#181: the counter and the power reading disagree, 37 and 65 W at rest. At
    // 120 s the counter says 62 W where 37 W is rest: work, and it is taken for rest because instants read 65 W.
    let mut bursts = history_every(120, &[vec![at(0); 46]]);
    for tick in &mut bursts.ticks {
        tick.units[0].power = watts(65);
    }
    metered(&mut bursts, 0, |t| if t % 3 == 0 { 37 } else { 62 });
    let judgement = judged_every(120, &bursts);
    assert!(!may_hurt(&judgement), "{judgement:?}");
}

#[test]
fn the_alert_of_another_finding_is_no_alert_of_this_one() {
    // Little compute was alerted on at tick 75; the zero of now began at tick 45 and was never told to anybody.
    let mut unit = vec![at(8); 45];
    unit.extend(vec![at(0); 200]);
    let mut quiet = history(&[unit]);
    let found = finding(&quiet);
    assert_eq!((found.signature, found.since_run), (Signature::Hung, RunId(1045)));
    let mut starved = record(1, Verdict::Alert, 1060, Outcome::Done);
    starved.signature = "starved".into();
    quiet.actions.push(starved);
    let taken = step(&quiet, &found, &rules(), Mode::Enforce, 1244);
    assert!(matches!(taken, Step::Alert), "{taken:?}");
}

#[test]
fn an_instance_whose_only_word_is_a_tenth_of_a_second_of_gpm_is_not_cancelled() {
    // No ring, energy, or power: nothing
    // can veto a confident zero (DCGM MIG util = 0, dcgm-exporter#216), 61 looks at 0.1 s in 30 minutes.
    let absent = Reading::Absent(Absence::NotSupported);
    let instance =
        Observation { mig: Reading::Measured(MigMode::Enabled), power: absent, power_limit: absent, ..at(0) };
    let judgement = judged_every(30, &history(&[vec![instance; 541]]));
    assert!(!may_hurt(&judgement), "{judgement:?}");
}

#[test]
fn a_card_whose_memory_is_read_and_written_is_not_hung() {
    // Copies (offload, loading, GPUDirect) are no kernels:
    // utilization 0, memory controller 40 %, 10 GB/s over PCIe, hour after hour.
    let copies = (0..541u64).map(|t| {
        let mut seen = Observation { mem_util: percent(40), power: watts(160), ..at(0) };
        seen.fields.set(Field::PcieRxBytes, Reading::Measured(t * 300_000_000_000));
        seen
    });
    let judgement = judged_every(30, &history(&[copies.collect()]));
    assert!(!may_hurt(&judgement), "{judgement:?}");
}

#[test]
fn a_part_that_grows_is_the_same_breach() {
    // Unit 0 idle for hours and told; unit 1 idle since 31 minutes, unit 2 works: lost, found anew and told again.
    let mut joined = vec![at(95); 200];
    joined.extend(vec![at(0); 63]);
    let mut part = history(&[vec![at(0); 263], joined, vec![at(95); 263]]);
    part.actions.push(record(1, Verdict::Alert, 1070, Outcome::Done));
    let found = finding(&part);
    assert_eq!((found.scope, found.units.len()), (Scope::Part, 2));
    let taken = step(&part, &found, &rules(), Mode::Observe, 1262);
    assert!(!matches!(taken, Step::Alert), "told again; since jumped to run {}", found.since_run.0);
}

#[test]
fn a_throttle_that_takes_one_more_card_is_the_same_breach() {
    let slowed = Observation {
        sm_util: percent(100),
        mem_util: percent(30),
        power: watts(160),
        power_limit: watts(400),
        sm_clock: Reading::Measured(Megahertz(385)),
        sm_clock_max: Reading::Measured(Megahertz(1785)),
        clocks_event: Reading::Measured(ClocksEventMask(0x8)),
        ..at(0)
    };
    let mut later = vec![at(95); 200];
    later.extend(vec![slowed.clone(); 63]);
    let mut hot = history(&[vec![slowed; 263], later, vec![at(95); 263]]);
    hot.actions.push(ActionRecord {
        signature: "throttled".into(),
        ..record(1, Verdict::Alert, 1070, Outcome::Done)
    });
    let found = finding(&hot);
    assert_eq!((found.signature, found.units.len()), (Signature::Throttled, 2));
    let taken = step(&hot, &found, &rules(), Mode::Observe, 1262);
    assert!(!matches!(taken, Step::Alert), "told again; since jumped to run {}", found.since_run.0);
}

//! Each signature from its evidence, and what keeps it from being one.

use super::*;

const SECOND: u64 = 1_000_000_000;

/// 100 % with a resting memory controller at 125 of 700 W: a kernel that busy-waits.
fn spin() -> Observation {
    Observation {
        sm_util: percent(100),
        mem_util: percent(0),
        power: Reading::Measured(Milliwatts(125_000)),
        ..at(0)
    }
}

/// A card at 20 % of its clock, utilized.
fn slowed(mask: u64) -> Observation {
    Observation {
        sm_util: percent(100),
        mem_util: percent(30),
        power: Reading::Measured(Milliwatts(160_000)),
        power_limit: Reading::Measured(Milliwatts(400_000)),
        sm_clock: Reading::Measured(Megahertz(385)),
        sm_clock_max: Reading::Measured(Megahertz(1785)),
        clocks_event: Reading::Measured(ClocksEventMask(mask)),
        temperature: Reading::Measured(Celsius(52)),
        ..at(0)
    }
}

fn judged(units: &[Vec<Observation>]) -> Judgement {
    judge(&history(units), &rules(), every(30), &now()).judgement
}

fn is_alive(judgement: &Judgement) -> bool {
    matches!(judgement, Judgement::Alive { .. })
}

fn empty() -> Observation {
    let nobody = ProcessCount { compute: 0, graphics: 0 };
    let memory = Memory { used: MemoryBytes(0), total: MemoryBytes(80 << 30), excludes_reserved: true };
    Observation {
        processes: Reading::Measured(nobody),
        memory: Reading::Measured(memory),
        power: Reading::Measured(Milliwatts(70_000)),
        ..at(0)
    }
}

#[test]
fn a_hung_collective_spins_and_may_ask_for_a_drain_but_not_for_a_cancel() {
    // NVIDIA/nccl#968, nebius/soperator#796 (HS-01): 100 %, power near the resident floor, for 45 minutes.
    let found = finding(&history(&[vec![spin(); 91], vec![spin(); 91]]));
    assert_eq!(
        (found.signature, found.scope, found.cap),
        (Signature::Spinning, Scope::Whole, Verdict::Drain)
    );
    let mut allowed = rules();
    allowed.spinning = Verdict::Cancel;
    let judgement = judge(&history(&[vec![spin(); 91]]), &allowed, every(30), &now()).judgement;
    let Judgement::Breaching(found) = judgement else { panic!("{judgement:?}") };
    assert_eq!(found.cap, Verdict::Cancel, "a site has to say so");
}

#[test]
fn one_rank_at_zero_among_spinning_ones_is_the_same_hang() {
    // Theano/libgpuarray#387, NVIDIA/nccl#1063 (HS-02): seven at 100 %, the odd one at 0.
    let mut units = vec![vec![spin(); 81]; 7];
    units.push(vec![at(0); 81]);
    let found = finding(&history(&units));
    assert_eq!((found.signature, found.scope, found.units.len()), (Signature::Spinning, Scope::Whole, 8));
}

#[test]
fn a_rank_that_waits_for_others_at_work_is_no_finding() {
    assert!(is_alive(&judged(&[vec![spin(); 121], vec![at(95); 121]])));
}

#[test]
fn whatever_speaks_against_a_spin_leaves_it_unknown() {
    let unlisted = Observation {
        processes: Reading::Absent(Absence::Implausible),
        memory: Reading::Absent(Absence::NotSupported),
        ..spin()
    };
    // QwenLM/Qwen#970 (HS-05): slow but real progress shows as rises of power.
    let rises = (0..91).map(|t| Observation {
        power: Reading::Measured(Milliwatts(if t % 10 == 9 { 245_000 } else { 140_000 })),
        ..spin()
    });
    let wire = (0..91u64).map(|t| {
        let mut seen = spin();
        seen.fields.set(Field::NvlinkTxKib, Reading::Measured(t * 1_000_000));
        seen
    });
    let table = [
        ("nobody is known to hold it", vec![unlisted; 91]),
        ("its power rises", rises.collect()),
        ("data moved over NVLink", wire.collect()),
    ];
    for (why, unit) in table {
        let found = finding(&history(&[unit]));
        assert_eq!((found.signature, found.cap), (Signature::Unknown, Verdict::Alert), "{why}");
    }
    let mut never = history(&[vec![spin(); 91]]);
    never.job.first_activity = None;
    assert_eq!(finding(&never).signature, Signature::Unknown, "it was never seen at work");
    let mut unreadable = spin();
    unreadable.mem_util = Reading::Absent(Absence::NotSupported);
    assert!(is_alive(&judged(&[vec![unreadable; 91]])), "no spin without memory utilization");
}

#[test]
fn flat_wires_and_a_list_that_is_unreadable_beside_held_memory_are_still_a_spin() {
    let mut quiet = spin();
    quiet.processes = Reading::Absent(Absence::NoPermission);
    for field in [Field::PcieTxBytes, Field::PcieRxBytes, Field::NvlinkTxKib, Field::NvlinkRxKib] {
        quiet.fields.set(field, Reading::Measured(77));
    }
    assert_eq!(finding(&history(&[vec![quiet; 91]])).signature, Signature::Spinning);
}

#[test]
fn a_latched_counter_is_neither_work_nor_a_hang() {
    // Datura-ai/lium-io#1140, #1142 (HS-06): 100 % at 100 W with empty memory and no process, for days.
    let ghost =
        Observation { sm_util: percent(100), power: Reading::Measured(Milliwatts(100_000)), ..empty() };
    assert_eq!(guard_of(&history(&[vec![ghost; 121]]), every(30)), Guard::Peak);
}

#[test]
fn a_pending_recovery_action_is_the_nodes_trouble_not_idleness() {
    // NVIDIA/DCGM#263 (FT-11): the card needs a reset, and the job can have no process on it.
    let wants = |action| Observation {
        fields: Fields::absent(Absence::NotSupported).with(Field::RecoveryAction, Reading::Measured(action)),
        ..empty()
    };
    assert_eq!(guard_of(&history(&[vec![wants(1); 121]]), every(30)), Guard::Peak);
    assert_eq!(finding(&history(&[vec![wants(0); 121]])).signature, Signature::Idle);
    let at_work = Observation { sm_util: percent(90), mem_util: percent(30), ..wants(3) };
    let at_work = Observation { processes: at(0).processes, ..at_work };
    assert!(is_alive(&judged(&[vec![at_work; 121]])), "work is work");
}

#[test]
fn a_card_pinned_at_a_fifth_of_its_clock_is_throttled_and_nobodys_guilt() {
    // slurmwatch (TH-01): 385 of 1785 MHz, 160 of 400 W, 52 C, the slow-down flag up all the time.
    let found = finding(&history(&[vec![slowed(0x8); 91], vec![at(95); 91]]));
    assert_eq!(
        (found.signature, found.scope, found.cap),
        (Signature::Throttled, Scope::Part, Verdict::Alert)
    );
    assert_eq!((found.units.len(), found.wasted().hours()), (1, 0.0));
    // The same, with the look of a spin: the throttle is asked about first.
    let both =
        Observation { mem_util: percent(0), power: Reading::Measured(Milliwatts(150_000)), ..slowed(0x8) };
    assert_eq!(finding(&history(&[vec![both; 91]])).signature, Signature::Throttled);
}

#[test]
fn only_hardware_heat_and_power_brake_throttle() {
    // Azure/azurehpc-health-checks#138 (TH-04), Azure/azurehpc#595 (TH-02): each bit alone, and one that is not defined.
    for bit in (0..12).map(|n| 1u64 << n) {
        let seen = judged(&[vec![slowed(bit); 91]]);
        let throttled = matches!(&seen, Judgement::Breaching(f) if f.signature == Signature::Throttled);
        assert_eq!(throttled, [0x8, 0x20, 0x40, 0x80].contains(&bit), "bit {bit:#x}: {seen:?}");
    }
    let at_the_cap = Observation {
        power: Reading::Measured(Milliwatts(398_000)),
        sm_clock: Reading::Measured(Megahertz(637)),
        ..slowed(0x4 | 0x20)
    };
    assert!(is_alive(&judged(&[vec![at_the_cap; 91]])), "low clocks at the power cap are hard work");
}

#[test]
fn a_throttle_between_the_runs_is_seen_by_its_time() {
    let unit = |of_30_s: u64| -> Vec<Observation> {
        let seen = |t: u64| Observation {
            fields: Fields::absent(Absence::NotSupported)
                .with(Field::HwPowerBrakeNs, Reading::Measured(t * of_30_s * SECOND)),
            ..slowed(0)
        };
        (0..91).map(seen).collect()
    };
    assert_eq!(finding(&history(&[unit(25)])).signature, Signature::Throttled);
    assert!(is_alive(&judged(&[unit(5)])));
}

#[test]
fn a_hot_card_is_no_finding() {
    // mmontes11/k8s-infrastructure#115 (TH-05): 88 C, no thermal bit, clocks at maximum.
    let hot = Observation {
        temperature: Reading::Measured(Celsius(88)),
        sm_clock: Reading::Measured(Megahertz(1785)),
        ..slowed(0)
    };
    assert!(is_alive(&judged(&[vec![hot; 91]])));
}

#[test]
fn idle_needs_a_witness_and_a_holder_of_the_device_file_is_no_idleness() {
    let mut held = history(&[vec![empty(); 61]]);
    assert_eq!(finding(&held).signature, Signature::Idle);
    let table = [
        (Reading::Measured(1), false),
        (Reading::Absent(Absence::NoPermission), false),
        (Reading::Absent(Absence::NotAsked), true),
    ];
    for (holders, asks) in table {
        held.ticks.last_mut().unwrap().job.holders = holders;
        let assessed = judge(&held, &rules(), every(30), &now());
        let Judgement::Breaching(found) = &assessed.judgement else { panic!("{holders:?}") };
        assert_eq!((found.signature, found.cap), (Signature::Unknown, Verdict::Alert), "{holders:?}");
        assert_eq!(assessed.wants_witness, asks, "{holders:?}");
    }
}

#[test]
fn a_share_of_a_gpu_is_not_judged_and_where_shares_are_given_out_slurm_must_say() {
    // dsx-ai-factory/fleet-intelligence-agent#258 (SH-02): one of several holders, and perhaps the only one now.
    let told = |shares| JobDetails {
        state: JobState::Running,
        start_unix_s: 1,
        restart: Reading::Measured(0),
        display_id: "4242".into(),
        name: Reading::Absent(Absence::NotAsked),
        user: Reading::Measured("ada".into()),
        account: Reading::Absent(Absence::NoData),
        partition: Reading::Measured("h100".into()),
        qos: Reading::Absent(Absence::NoData),
        nodes: Reading::Measured(1),
        node_list: Reading::Absent(Absence::NoData),
        shares,
        near: NearDeed::absent(Absence::NotAsked),
    };
    let (whole, silent) = (Reading::Measured(1), Reading::Absent(Absence::SourceFailed));
    let shared = Reading::Absent(Absence::Shared);
    let table = [
        (whole, Reading::Absent(Absence::NotAsked), false),
        (whole, Reading::Measured(true), true),
        (shared, Reading::Measured(false), false),
        (shared, Reading::Measured(true), true),
        (shared, silent, true),
    ];
    let mut unasked = history(&[vec![at(0); 61]]);
    unasked.node_units = shared;
    assert_eq!(guard_of(&unasked, every(30)), Guard::Attribution);
    assert!(judge(&unasked, &rules(), every(30), &now()).wants_details);
    for (node_units, shares, unjudged) in table {
        let mut quiet = history(&[vec![at(0); 61]]);
        (quiet.node_units, quiet.job.details) = (node_units, Some(told(shares)));
        let judgement = judge(&quiet, &rules(), every(30), &now()).judgement;
        let is = matches!(judgement, Judgement::Unjudged { guard: Guard::Attribution, .. });
        assert_eq!(is, unjudged, "{node_units:?} {shares:?}: {judgement:?}");
    }
}

#[test]
fn what_was_learnt_of_a_card_only_vetoes() {
    // A card that reads 0 % at a steady 300 W (iopsystems/rezolus#1105, NR-02: success and a confident zero).
    let (power, clock) = (Reading::Measured(Milliwatts(300_000)), Reading::Measured(Megahertz(1755)));
    let steady = |t: u64| Observation {
        power,
        sm_clock: clock,
        sm_clock_max: clock,
        energy: Reading::Measured(Millijoules(t * 30 * 300_000)),
        ..at(0)
    };
    let mut zero = history(&[(0..91).map(steady).collect()]);
    assert_eq!(finding(&zero).signature, Signature::Hung);
    let mut learnt = LearntFloors::none();
    learnt.set(Rest::ContextLow, Milliwatts(30_000));
    zero.floors = vec![learnt];
    assert_eq!(finding(&zero).signature, Signature::Hung, "another clock state");
    learnt.set(Rest::ContextHigh, Milliwatts(118_000));
    zero.floors = vec![learnt];
    assert!(is_alive(&judge(&zero, &rules(), every(30), &now()).judgement));
    learnt.set(Rest::ContextHigh, Milliwatts(290_000));
    zero.floors = vec![learnt];
    assert_eq!(finding(&zero).signature, Signature::Hung);
}

#[test]
fn every_signature_has_its_rule_and_asks_for_no_more_than_it_says() {
    for signature in Signature::ALL {
        let (rule, most) = (signature.rule(), signature.most(&rules()));
        assert!(rule.most.starts_with(most.word()), "{signature}: {}", rule.most);
        assert!(!rule.inputs.contains("  ") && !rule.breaches_if.contains("  "), "{signature}");
    }
}

//! The states that only some looks ask for: what they say, what they cost, and that a usual look asks for none.

use crate::fake_nvml::{FakeNvml, Like, node};
use crate::*;

const STATES: [Field; 5] = [
    Field::PersistenceMode,
    Field::FabricState,
    Field::FabricStatus,
    Field::NvlinkActive,
    Field::NvlinkInactive,
];

fn units(fake: &FakeNvml, deadline: Duration) -> Vec<UnitSample> {
    let plan = Plan { states: true, ..plan(fake, deadline) };
    match worker::start(&plan).finish() {
        Measured(report) => report.units,
        Absent(why) => panic!("no report: {}", why.words()),
    }
}

fn states(unit: &UnitSample) -> [Reading<u64>; 5] {
    STATES.map(|field| unit.readings.fields.get(field))
}

/// A healthy unit with these states.
fn with(mut unit: UnitSample, states: [Reading<u64>; 5]) -> UnitSample {
    STATES.iter().zip(states).for_each(|(field, value)| unit.readings.fields.set(*field, value));
    unit
}

/// What a GPU of an H100 board says whose links are in these states, by their numbers.
fn board(links: &[u32]) -> String {
    let links = links.iter().enumerate();
    let links: Vec<String> = links.map(|(n, state)| format!("field 165 link {n} = u {state}\n")).collect();
    let links = links.concat();
    format!("nvmlDeviceGetPersistenceMode = 1\nnvmlDeviceGetGpuFabricInfoV = 3 0\n{links}")
}

const SOUND: [Reading<u64>; 5] = [Measured(1), Measured(3), Measured(0), Measured(18), Measured(0)];

fn only(board: &str) -> [Reading<u64>; 5] {
    let fake = FakeNvml::new(&format!("{}{board}", node(1)));
    let unit = units(&fake, PATIENT).remove(0);
    assert_eq!(with(unit.clone(), [Absent(Absence::NotAsked); 5]), healthy(0, 1), "{board}");
    states(&unit)
}

#[test]
fn every_state_is_what_the_driver_said_and_costs_three_calls_a_gpu() {
    let calls = |fake: &FakeNvml| {
        let calls = fake.calls();
        let asks = |c: &&String| ["PersistenceMode", "Fabric", "NvLink"].iter().any(|word| c.contains(word));
        (calls.len(), calls.iter().filter(asks).count())
    };
    let two = node(2).replace("gpu 1", &format!("{}gpu 1", board(&[1; 18]))) + &board(&[1; 18]);
    let fake = FakeNvml::new(&format!("log\n{two}"));
    assert_eq!(report(&fake).units, [healthy(0, 2), healthy(1, 2)], "a usual look does not ask");
    assert_eq!(calls(&fake), (4 + 2 * 20, 0));
    let fake = FakeNvml::new(&format!("log\n{two}"));
    assert_eq!(units(&fake, PATIENT), [with(healthy(0, 2), SOUND), with(healthy(1, 2), SOUND)]);
    assert_eq!(calls(&fake), (4 + 2 * 23, 2 * 2), "the third is one of fields");
}

#[test]
fn a_state_that_is_refused_hides_no_other() {
    use Absence::*;
    let absent = |why| Absent(why);
    let [mode, state, status, up, down] = SOUND;
    let table = [
        ("nvmlDeviceGetPersistenceMode = 0", [Measured(0), state, status, up, down]),
        ("nvmlDeviceGetPersistenceMode = 2", [absent(NotUnderstood), state, status, up, down]),
        ("nvmlDeviceGetPersistenceMode ! 3", [absent(NotSupported), state, status, up, down]),
        ("nvmlDeviceGetPersistenceMode ! 999", [absent(Transient), state, status, up, down]),
        ("nvmlDeviceGetGpuFabricInfoV = 0 0", [mode, Measured(0), absent(NoData), up, down]),
        ("nvmlDeviceGetGpuFabricInfoV = 1 0", [mode, Measured(1), absent(NoData), up, down]),
        ("nvmlDeviceGetGpuFabricInfoV = 2 999", [mode, Measured(2), absent(NoData), up, down]),
        // meta-pytorch/torchcomms#936: completed, and not well.
        ("nvmlDeviceGetGpuFabricInfoV = 3 999", [mode, Measured(3), Measured(999), up, down]),
        ("nvmlDeviceGetGpuFabricInfoV = 3 0 3", SOUND),
        ("nvmlDeviceGetGpuFabricInfoV = 3 0 4", [mode, absent(NotSupported), absent(NotSupported), up, down]),
        ("nvmlDeviceGetGpuFabricInfoV = 9 0", [mode, absent(NotUnderstood), absent(NoData), up, down]),
        ("nvmlDeviceGetGpuFabricInfoV ! 3", [mode, absent(NotSupported), absent(NotSupported), up, down]),
        ("nvmlDeviceGetGpuFabricInfoV ! 4", [mode, absent(NoPermission), absent(NoPermission), up, down]),
        ("field 165 link 5 ! 999", [mode, state, status, absent(Transient), absent(Transient)]),
        ("field 165 link 5 = u 9", [mode, state, status, absent(NotUnderstood), absent(NotUnderstood)]),
    ];
    for (fault, want) in table {
        assert_eq!(only(&format!("{}{fault}\n", board(&[1; 18]))), want, "{fault}");
    }
}

#[test]
fn links_are_counted_by_state_and_those_that_a_gpu_lacks_are_none() {
    let counts = |board: &str| only(board)[3..].try_into().unwrap();
    let both = |up, down| [Measured(up), Measured(down)];
    let table: [(&str, String, [Reading<u64>; 2]); 10] = [
        // Azure/azhpc-diagnostics#73: a V100 with two of six down.
        ("two are down", board(&[1, 1, 1, 0, 1, 0]), both(4, 2)),
        // NVIDIA/NVSentinel#1481: a card without a bridge.
        ("none leads anywhere", board(&[0; 12]), both(0, 12)),
        ("asleep, and closed to traffic", board(&[1, 2, 3, 0]), both(3, 1)),
        // NVIDIA/TensorRT-LLM#19177: a link that is refused amid those of a sound GB200.
        ("a hole", board(&[1; 18]) + "field 165 link 5 ! 3\n", both(17, 0)),
        ("the other call knows better", board(&[1, 0, 0]) + "nvmlDeviceGetNvLinkState(1) = 1\n", both(2, 1)),
        ("the other call agrees", board(&[1, 0]) + "nvmlDeviceGetNvLinkState(1) = 0\n", both(1, 1)),
        ("the other call fails", board(&[1, 0]) + "nvmlDeviceGetNvLinkState(1) ! 999\n", both(1, 1)),
        ("no links", board(&[]) + "field 165 link 0 ! 3\n", [Absent(Absence::NotSupported); 2]),
        ("by the other call alone", one_by_one(&["= 1", "= 0", "= 1", "! 2", "= 1"]), both(2, 1)),
        ("which fails", one_by_one(&["= 1", "! 999", "= 1", "! 2"]), [Absent(Absence::Transient); 2]),
    ];
    for (name, board, want) in table {
        let found: [Reading<u64>; 2] = counts(&board);
        assert_eq!(found, want, "{name}");
    }
}

/// A GPU whose links no field tells.
fn one_by_one(links: &[&str]) -> String {
    let links = links.iter().enumerate();
    let links: Vec<String> =
        links.map(|(n, answer)| format!("nvmlDeviceGetNvLinkState({n}) {answer}\n")).collect();
    board(&[]) + &links.concat()
}

#[test]
fn an_older_driver_says_what_it_can() {
    let older = board(&[]) + &one_by_one(&["= 1", "= 1", "! 2"]);
    let table = [(Like::Driver470, "470.256.02"), (Like::Driver535, "535.54.03")];
    for (like, driver) in table {
        let fake = FakeNvml::like(like, &format!("{}{older}", node(1).replace("580.95.05", driver)));
        let none = Absent(Absence::NotSupported);
        let want = [Measured(1), none, none, Measured(2), Measured(0)];
        assert_eq!(states(&units(&fake, PATIENT)[0]), want, "{driver}");
    }
}

#[test]
fn instances_have_no_states_and_their_gpu_has() {
    let split = "nvmlDeviceGetMigMode = 1 1
         nvmlDeviceGetMaxMigDeviceCount = 7
         mig 0
           nvmlDeviceGetUUID = MIG-22222222-1111-2222-3333-444444444444
           nvmlDeviceGetGpuInstanceId = 3
           nvmlDeviceGetComputeInstanceId = 1\n";
    let units = units(&FakeNvml::new(&format!("{}{}{split}", node(1), board(&[1; 18]))), PATIENT);
    assert_eq!(units.iter().map(states).collect::<Vec<_>>(), [SOUND, [Absent(Absence::NotAsked); 5]]);
}

#[test]
fn a_lost_gpu_has_no_states_and_the_others_have() {
    let two = node(2).replace("gpu 1", &format!("{}gpu 1", board(&[1; 18])));
    let units = units(&FakeNvml::new(&format!("{two}gone\n")), PATIENT);
    assert_eq!(units, [with(healthy(0, 2), SOUND), unread(1, Absence::GpuLost)]);
}

#[test]
fn a_state_that_hangs_takes_no_reading_with_it() {
    let fake = FakeNvml::new("");
    for hang in ["nvmlDeviceGetGpuFabricInfoV ~ forever", "field 165 link 3 ~ forever"] {
        let two = node(2).replace("gpu 1", &format!("{}gpu 1", board(&[1; 18])));
        fake.play(&format!("{two}{}{hang}\n", board(&[1; 18])));
        let units = units(&fake, SHORT * 2);
        assert_eq!(units, [with(healthy(0, 2), SOUND), healthy(1, 2)], "{hang}");
    }
}

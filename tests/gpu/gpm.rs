//! GPM: whose activity is told, whose is not, and what it may cost the others.

use crate::fake_nvml::{FakeNvml, INIT, Like, node};
use crate::*;

const GPM: [Field; 3] = [Field::GpmSmActive, Field::GpmTensorActive, Field::GpmDramActive];

fn look_with(fake: &FakeNvml, gpm: Gpm, deadline: Duration) -> (Reading<GpuReport>, Duration) {
    let source = SourcePlan::Nvml { library: Some(fake.library()), gpm };
    timed(worker::start(&Plan { source, states: false, deadline, lock: fake.dir().join("probe.lock") }))
}

fn units(fake: &FakeNvml, gpm: Gpm) -> Vec<UnitSample> {
    match look_with(fake, gpm, PATIENT).0 {
        Measured(report) => report.units,
        Absent(why) => panic!("no report: {}", why.words()),
    }
}

/// SM, tensor, DRAM.
fn activity(unit: &UnitSample) -> [Reading<u64>; 3] {
    GPM.map(|field| unit.readings.fields.get(field))
}

/// A healthy unit with this activity.
fn with(mut unit: UnitSample, activity: [Reading<u64>; 3]) -> UnitSample {
    GPM.iter().zip(activity).for_each(|(field, value)| unit.readings.fields.set(*field, value));
    unit
}

/// GPUs that measure 97.2 % of SM, 0.3 % of tensor and no DRAM activity.
fn measuring(gpus: u64) -> String {
    let all = node(gpus);
    all.replace(
        "nvmlDeviceGetMigMode",
        "nvmlGpmQueryDeviceSupport = 1\ngpm 2 = 97.2\ngpm 5 = 0.3\ngpm 10 = 0\nnvmlDeviceGetMigMode",
    )
}

const MEASURED: [Reading<u64>; 3] = [Measured(9720), Measured(30), Measured(0)];

/// GPU 0 cut into instances with these ids, each with its SM activity; GPU 1 whole.
fn cut(instances: &[(u32, u32, &str)]) -> String {
    let mut text = measuring(2).replacen(
        "nvmlDeviceGetMigMode = 0 0",
        "nvmlDeviceGetMigMode = 1 1\nnvmlDeviceGetMaxMigDeviceCount = 7",
        1,
    );
    text.push_str("gpu 0\n");
    for (place, (gi, ci, sm)) in instances.iter().enumerate() {
        text.push_str(&format!(
            "mig {place}
               nvmlDeviceGetUUID = MIG-{place}
               nvmlDeviceGetGpuInstanceId = {gi}
               nvmlDeviceGetComputeInstanceId = {ci}
               nvmlDeviceGetMemoryInfo_v2 = 42412802048 20736638976 0
               nvmlDeviceGetComputeRunningProcesses_v3 = ok
               proc compute = {INIT} 4096
               gpm 2 = {sm}
               gpm 5 = 0
               gpm 10 = 45.01\n"
        ));
    }
    text
}

#[test]
fn nobody_is_measured_unasked() {
    let fake = FakeNvml::new(&format!("log\n{}", cut(&[(1, 0, "5")])));
    let units = units(&fake, Gpm::Off);
    assert!(units.iter().all(|u| activity(u) == [Absent(Absence::NotAsked); 3]), "{units:#?}");
    assert_eq!(units[1].readings.sm_util, Absent(Absence::NotSupported));
    assert!(!fake.calls().iter().any(|c| c.contains("Gpm")));
}

#[test]
fn an_instance_is_as_busy_as_gpm_says_and_never_rounded_down_to_idle() {
    // NordicHPC/sonar#247, utkuozdemir/nvidia_gpu_exporter#203 (NR-01): nothing else tells load under MIG.
    let fake = FakeNvml::new(&format!("log\n{}", cut(&[(1, 0, "0.3"), (5, 0, "0"), (6, 0, "88.8")])));
    let units = units(&fake, Gpm::Mig);
    let [gpu, slow, idle, busy, whole] = &units[..] else { panic!("{units:#?}") };
    let told = |unit: &UnitSample| (unit.readings.sm_util, unit.readings.mem_util, activity(unit));
    let want = |util, sm| (percent(util), percent(46), [Measured(sm), Measured(0), Measured(4501)]);
    assert_eq!(told(slow), want(1, 30));
    assert_eq!(told(idle), want(0, 0));
    assert_eq!(told(busy), want(89, 8880));
    assert_eq!(activity(gpu), [Absent(Absence::NotAsked); 3]);
    assert_eq!(*whole, healthy(1, 2));
    // Everything else of an instance is as absent as ever: its GPU's numbers are not lent.
    assert_eq!(busy.readings.energy, Absent(Absence::NotSupported));
    assert_eq!(busy.readings.fields.get(Field::PowerCapNs), Absent(Absence::NotSupported));
    let calls = fake.calls();
    let count = |what: &str| calls.iter().filter(|c| c.starts_with(what)).count();
    assert_eq!(
        (count("nvmlGpmSampleAlloc"), count("nvmlGpmSampleFree")),
        (6, 6),
        "all samples are given back"
    );
    assert_eq!(count("nvmlGpmSampleGet"), 0);
}

#[test]
fn whole_gpus_are_measured_where_that_is_asked_for() {
    let fake = FakeNvml::new(&measuring(3));
    let want: Vec<_> = (0..3).map(|i| with(healthy(i, 3), MEASURED)).collect();
    assert_eq!(units(&fake, Gpm::On), want, "their utilization stays NVML's own");
    assert_eq!(units(&fake, Gpm::Mig), (0..3).map(|i| healthy(i, 3)).collect::<Vec<_>>());
}

#[test]
fn a_gpu_without_gpm_says_so() {
    let cases = [
        (Like::Current, "nvmlGpmQueryDeviceSupport = 0", Absence::NotSupported),
        (Like::Current, "nvmlGpmQueryDeviceSupport ! 3", Absence::NotSupported),
        (Like::Current, "nvmlGpmQueryDeviceSupport ! 4", Absence::NoPermission),
        (Like::Current, "nvmlGpmSampleGet ! 999", Absence::Transient),
        (Like::Driver470, "", Absence::NotSupported),
    ];
    for (like, fault, why) in cases {
        let fake = FakeNvml::like(like, &format!("{}{fault}\n", measuring(1)));
        assert_eq!(activity(&units(&fake, Gpm::On)[0]), [Absent(why); 3], "{fault}");
    }
}

#[test]
fn one_metric_that_fails_hides_no_other() {
    let fake = FakeNvml::new("");
    let gone = |why| [Absent(why); 3];
    let table = [
        ("gpm 5 ! 3", [Measured(9720), Absent(Absence::NotSupported), Measured(0)]),
        ("gpm 2 = 100.5", [Absent(Absence::Implausible), Measured(30), Measured(0)]),
        ("gpm 10 = nan", [Measured(9720), Measured(30), Absent(Absence::Implausible)]),
        ("gpm 2 ! 15\ngpm 5 ! 15\ngpm 10 ! 15", gone(Absence::GpuLost)),
    ];
    for (fault, want) in table {
        fake.play(&format!("{}gpu 1\n{fault}\n", measuring(2)));
        let all = units(&fake, Gpm::On);
        assert_eq!(all, [with(healthy(0, 2), MEASURED), with(healthy(1, 2), want)], "{fault}");
    }
}

#[test]
fn what_several_units_share_is_nobodys() {
    let absent = [Absent(Absence::NotSupported); 3];
    let units_of = |scenario: &str| units(&FakeNvml::new(scenario), Gpm::Mig);
    let two_in_one = units_of(&cut(&[(1, 0, "50"), (1, 1, "50"), (2, 0, "7")]));
    let told: Vec<_> = two_in_one[1..4].iter().map(|u| (u.readings.sm_util, activity(u))).collect();
    let shared = (Absent(Absence::NotSupported), absent);
    assert_eq!(told, [shared, shared, (percent(7), [Measured(700), Measured(0), Measured(4501)])]);

    // An instance without ids may sit in any of the others' GPU instances.
    for fault in ["nvmlDeviceGetGpuInstanceId ! 999", "nvmlDeviceGetMigDeviceHandleByIndex ! 4"] {
        let unknown = units_of(&format!("{}mig 1\n{fault}\n", cut(&[(1, 0, "50"), (2, 0, "7")])));
        assert_eq!(unknown.len(), 3, "{fault}");
        assert_eq!(activity(&unknown[1]), absent, "{fault}");
    }
}

#[test]
fn a_gpu_that_hangs_costs_the_others_their_activity_and_nothing_else() {
    // NVIDIA/go-nvml#152 (FT-01): the second samples come after all units, so they wait for the one that hangs.
    let fake = FakeNvml::new(&format!("{}gpu 2\nnvmlDeviceGetPowerUsage ~ forever\n", measuring(3)));
    let (report, took) = look_with(&fake, Gpm::On, SHORT);
    let Measured(report) = report else { panic!("{report:?}") };
    assert_eq!(report.units, [healthy(0, 3), healthy(1, 3), unread(2, Absence::DeadlinePassed)]);
    assert!(took < SHORT + SLACK, "{took:?}");
}

#[test]
fn the_wait_between_two_samples_ends_before_the_deadline_does() {
    let fake = FakeNvml::new(&measuring(2));
    let want = Measured(vec![healthy(0, 2), healthy(1, 2)]);
    // Less than two samples lie apart: who waited would be late. On a busy machine one that did not may be too.
    eventually("all but the activity", || {
        look_with(&fake, Gpm::On, Duration::from_millis(95)).0.map(|report| report.units) == want
    });
}

//! What is read, where nothing can be read, and what is never called.

use crate::fake_nvml::{FakeNvml, INIT, Like, RESERVED_BYTES, TOTAL_BYTES, node};
use crate::*;

#[test]
fn every_reading_is_what_the_driver_said() {
    let report = report(&FakeNvml::new(&node(8)));
    assert_eq!(report.driver, Measured("580.95.05".into()));
    assert_eq!(report.units, (0..8).map(|i| healthy(i, 8)).collect::<Vec<_>>());
}

#[test]
fn one_lost_gpu_leaves_seven_read() {
    // NVIDIA/dcgm-exporter#46 (FT-02): with one card in error state the others had no data.
    let table = [
        ("gone", Absence::GpuLost),
        ("nvmlDeviceGetHandleByIndex_v2 ! 999", Absence::GpuLost),
        ("nvmlDeviceGetHandleByIndex_v2 ! 4", Absence::NoPermission),
        ("nvmlDeviceGetHandleByIndex_v2 ! 16", Absence::ResetRequired),
        ("nvmlDeviceGetUUID ! 15", Absence::GpuLost),
    ];
    for (fault, why) in table {
        let report = report(&FakeNvml::new(&format!("{}gpu 2\n{fault}\n", node(8))));
        let mut lost = unread(2, why);
        if fault.contains("GetUUID") {
            // The handle still gives the address.
            lost.identity.pci = healthy(2, 8).identity.pci;
        }
        let want: Vec<_> = (0..8).map(|i| if i == 2 { lost.clone() } else { healthy(i, 8) }).collect();
        assert_eq!(report.units, want, "{fault}");
    }
}

#[test]
fn a_card_that_dropped_out_shifts_indices_and_no_identity() {
    // kubernetes-sigs/dra-driver-nvidia-gpu#563 (ID-03): the remaining cards are renumbered.
    let all = node(3);
    let at = |n: usize| all.match_indices("gpu ").map(|(at, _)| at).nth(n).unwrap();
    let without_first =
        format!("{}{}", &all[..at(0)], &all[at(1)..].replace("gpu 1", "gpu 0").replace("gpu 2", "gpu 1"));
    let before = report(&FakeNvml::new(&all)).units;
    let after = report(&FakeNvml::new(&without_first)).units;
    for (old, new) in before[1..].iter().zip(&after) {
        assert_eq!(old.identity.uuid, new.identity.uuid);
        assert_eq!(old.identity.minor, new.identity.minor);
        assert_ne!(old.identity.index, new.identity.index);
    }
}

type Change = fn(&mut UnitSample);

#[test]
fn one_unreadable_field_hides_no_other() {
    // utkuozdemir/nvidia_gpu_exporter#68, influxdata/telegraf#9785 (NR-08); slurmwatch article (NR-09).
    use Absence::*;
    let table: &[(&str, Change)] = &[
        ("nvmlDeviceGetUUID ! 999", |u| u.identity.uuid = Absent(Transient)),
        ("nvmlDeviceGetUUID = nonsense", |u| u.identity.uuid = Absent(NotUnderstood)),
        ("nvmlDeviceGetMinorNumber ! 3", |u| u.identity.minor = Absent(NotSupported)),
        ("nvmlDeviceGetPciInfo_v3 ! 999", |u| u.identity.pci = Absent(Transient)),
        ("nvmlDeviceGetName ! 999", |u| u.identity.name = Absent(Transient)),
        ("nvmlDeviceGetUtilizationRates = 101 7", |u| {
            u.readings.sm_util = Absent(Implausible);
            u.readings.mem_util = percent(7);
        }),
        ("nvmlDeviceGetUtilizationRates ! 999", |u| {
            u.readings.sm_util = Absent(Transient);
            u.readings.mem_util = Absent(Transient);
        }),
        ("sample 1 ! 6", |u| u.readings.sm_peak = Absent(NoData)),
        ("sample 1 = ", |u| u.readings.sm_peak = Absent(NoData)),
        ("sample 2 = -:50 100000:101 200000:4 9200000:3", |u| u.readings.mem_peak = peak(4, 9_000)),
        ("sample 2 = 100000:101", |u| u.readings.mem_peak = Absent(Implausible)),
        ("nvmlDeviceGetPowerUsage ! 4", |u| u.readings.power = Absent(NoPermission)),
        ("nvmlDeviceGetPowerUsage ! 3\nfield 186 ! 3", |u| u.readings.power = Absent(NotSupported)),
        ("nvmlDeviceGetPowerUsage ! 3\nfield 186 ! 999", |u| u.readings.power = Absent(Transient)),
        ("nvmlDeviceGetPowerUsage ! 3\nfield 186 = u 66840", |u| {
            u.readings.power = Measured(Milliwatts(66_840))
        }),
        ("nvmlDeviceGetPowerUsage = 4294967295", |u| u.readings.power = Absent(Implausible)),
        ("nvmlDeviceGetPowerUsage = 0", |u| u.readings.power = Measured(Milliwatts(0))),
        ("nvmlDeviceGetEnforcedPowerLimit = 0", |u| u.readings.power_limit = Absent(Implausible)),
        ("nvmlDeviceGetEnforcedPowerLimit ! 25", |u| u.readings.power_limit = Absent(NotSupported)),
        ("nvmlDeviceGetClockInfo(1) ! 17", |u| u.readings.sm_clock = Absent(NoPermission)),
        ("nvmlDeviceGetClockInfo(1) = 0", |u| u.readings.sm_clock = Measured(Megahertz(0))),
        ("nvmlDeviceGetMaxClockInfo(1) ! 27", |u| u.readings.sm_clock_max = Absent(Transient)),
        ("nvmlDeviceGetTemperature(0) ! 26", |u| u.readings.temperature = Absent(NotSupported)),
        ("nvmlDeviceGetTemperature(0) = 255", |u| u.readings.temperature = Absent(Implausible)),
        ("nvmlDeviceGetCurrentClocksEventReasons ! 3", |u| {
            u.readings.clocks_event = Measured(ClocksEventMask(4))
        }),
        ("nvmlDeviceGetCurrentClocksEventReasons ! 999", |u| u.readings.clocks_event = Absent(Transient)),
        ("nvmlDeviceGetMigMode ! 3", |u| u.readings.mig = Absent(NotSupported)),
        ("nvmlDeviceGetMigMode = 7 0", |u| u.readings.mig = Absent(NotUnderstood)),
        ("nvmlDeviceGetComputeRunningProcesses_v3 ! 4", |u| u.readings.processes = Absent(NoPermission)),
        ("nvmlDeviceGetMPSComputeRunningProcesses_v3 ! 999", |u| u.readings.processes = Absent(Transient)),
        ("proc graphics = 0 5", |u| u.readings.processes = Absent(Implausible)),
        ("proc compute = 4194305 5", |u| u.readings.processes = Absent(Implausible)),
        ("proc compute = 1 85520809985", |u| u.readings.processes = Absent(Implausible)),
        // Beside the 2 GiB that the GPU's first process holds.
        ("proc compute = 1 83373326337", |u| u.readings.processes = Absent(Implausible)),
    ];
    let fake = FakeNvml::new("");
    for (fault, change) in table {
        fake.play(&format!("{}gpu 1\n{fault}\n", node(2)));
        let mut want = healthy(1, 2);
        change(&mut want);
        assert_eq!(report(&fake).units, [healthy(0, 2), want], "{fault}");
    }
}

#[test]
fn memory_falls_back_to_the_older_call_and_says_so() {
    // leptonai/gpud#1170, XuehaiPan/nvitop#208 (NR-04): both calls refused, or zeros with success.
    let v1 =
        |used| Memory { used: MemoryBytes(used), total: MemoryBytes(TOTAL_BYTES), excludes_reserved: false };
    let table = [
        ("nvmlDeviceGetMemoryInfo_v2 ! 3", Measured(v1((1 << 30) + RESERVED_BYTES))),
        ("nvmlDeviceGetMemoryInfo_v2 ! 25", Measured(v1((1 << 30) + RESERVED_BYTES))),
        ("nvmlDeviceGetMemoryInfo_v2 ! 999", Absent(Absence::Transient)),
        ("nvmlDeviceGetMemoryInfo_v2 ! 3\nnvmlDeviceGetMemoryInfo ! 3", Absent(Absence::NotSupported)),
        ("nvmlDeviceGetMemoryInfo_v2 = 0 0 0", Absent(Absence::Implausible)),
        ("nvmlDeviceGetMemoryInfo_v2 = 100 200 0", Absent(Absence::Implausible)),
    ];
    for (fault, want) in table {
        let mut unit = healthy(0, 1);
        unit.readings.memory = want;
        assert_eq!(report(&FakeNvml::new(&format!("{}{fault}\n", node(1)))).units, [unit], "{fault}");
    }
}

#[test]
fn an_older_driver_is_read_by_its_older_names() {
    let v2_lists = node(1).replace("RunningProcesses_v3", "RunningProcesses_v2");
    let mut want = healthy(0, 1);
    let used = MemoryBytes((1 << 30) + RESERVED_BYTES);
    want.readings.memory =
        Measured(Memory { used, total: MemoryBytes(TOTAL_BYTES), excludes_reserved: false });
    want.readings.clocks_event = Measured(ClocksEventMask(4));
    want.readings.fields = settled_fields(0);
    let v2_lists = v2_lists.replace("580.95.05", "470.256.02");
    assert_eq!(report(&FakeNvml::like(Like::Driver470, &v2_lists)).units, [want]);
}

#[test]
fn a_process_list_in_the_wrong_layout_is_absent_not_empty() {
    // gpuopenanalytics/pynvml#48, wookayin/gpustat#157 (NR-05): pids out of range, entries missing.
    let one = node(1).replace("proc mps = 1 na\n", "");
    let broken = format!("{one}procabi broken\nproc compute = 1 6521094144\n");
    let narrow = broken.replace("broken", "narrow");
    // 4 GiB and 2 MiB: half of it reads as a pid that may be, held by next to nothing.
    let narrow_by_chance =
        format!("{one}procabi narrow\nproc compute = 1 4297064448\nproc compute = 1 4096\n");
    let table = [
        // One entry of 32 bytes reads well by chance: only the symbols tell.
        (Like::Driver535, &one),
        (Like::Driver535, &broken),
        // A vendor's build of a current driver with the older width.
        (Like::Current, &broken),
        // XuehaiPan/nvitop#226: another vendor's build, with half of the entry.
        (Like::Current, &narrow),
        (Like::Current, &narrow_by_chance),
    ];
    for (like, scenario) in table {
        let readings = report(&FakeNvml::like(like, scenario)).units.remove(0).readings;
        assert_eq!(readings.processes, Absent(Absence::Implausible), "{like:?}");
        assert_eq!(readings.memory, healthy(0, 1).readings.memory);
    }
}

#[test]
fn processes_that_this_machine_does_not_have_are_no_list() {
    // XuehaiPan/nvitop#181 (NR-05), and a worker in a pid namespace of its own. One that ended just now is a race.
    let me = std::process::id();
    let mut gone = std::process::Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let all = node(2);
    let bare: Vec<&str> = all.lines().filter(|line| !line.trim().starts_with("proc ")).collect();
    let bare = bare.join("\n");
    let table = [
        (format!("proc compute = {} 4096\n", gone.id()), Absent(Absence::Implausible)),
        (format!("proc compute = {} 4096\nproc compute = {me} 4096\n", gone.id()), Measured(2)),
        (String::new(), Measured(0)),
    ];
    for (list, want) in table {
        let processes =
            report(&FakeNvml::new(&format!("{bare}\ngpu 1\n{list}"))).units.remove(1).readings.processes;
        assert_eq!(processes.map(|all| all.len()), want, "{list}");
    }
}

#[test]
fn a_long_process_list_is_read_to_its_end() {
    let many = "proc compute = 1 4096\n".repeat(200);
    let processes = report(&FakeNvml::new(&format!("{}{many}", node(1)))).units.remove(0).readings.processes;
    assert_eq!(processes.map(|list| list.len()), Measured(202));
}

#[test]
fn a_ring_stamped_since_boot_is_understood_too() {
    let fake = FakeNvml::new(&format!("clock boottime\n{}", node(1)));
    let uptime: f64 = fs::read_to_string("/proc/uptime").unwrap().split(' ').next().unwrap().parse().unwrap();
    if uptime < 60.0 {
        return println!("skipped: this machine is up for {uptime} s, less than a ring is long");
    }
    assert_eq!(report(&fake).units, [healthy(0, 1)]);
}

#[test]
fn mig_instances_are_units_and_lend_nothing_from_their_gpu() {
    // NordicHPC/sonar#247, Syllo/nvtop#256 (NR-01): utilization under MIG printed as 0.
    let scenario = format!(
        "{}nvmlDeviceGetMigMode = 1 1
         nvmlDeviceGetUtilizationRates ! 3
         sample 1 ! 3
         sample 2 ! 3
         nvmlDeviceGetMaxMigDeviceCount = 7
         mig 2
           nvmlDeviceGetUUID = MIG-22222222-1111-2222-3333-444444444444
           nvmlDeviceGetName = NVIDIA H100 80GB HBM3 MIG 3g.40gb
           nvmlDeviceGetGpuInstanceId = 3
           nvmlDeviceGetComputeInstanceId = 1
           nvmlDeviceGetMemoryInfo_v2 = 42412802048 20736638976 0
           nvmlDeviceGetPowerUsage = 71000
           nvmlDeviceGetComputeRunningProcesses_v3 = ok
           proc compute = {INIT} 20736638976
         mig 5
           nvmlDeviceGetUUID = MIG-55555555-1111-2222-3333-444444444444
           nvmlDeviceGetGpuInstanceId ! 15\n",
        node(1)
    );
    let mut units = report(&FakeNvml::new(&scenario)).units;
    let instance = units.remove(1);
    let mut gpu = healthy(0, 1);
    gpu.readings = Readings {
        sm_util: Absent(Absence::NotSupported),
        mem_util: Absent(Absence::NotSupported),
        sm_peak: Absent(Absence::NotSupported),
        mem_peak: Absent(Absence::NotSupported),
        mig: Measured(MigMode::Enabled),
        ..gpu.readings
    };
    assert_eq!(units, [gpu.clone()], "an instance that cannot be named is not made up");
    let parent = gpu.identity.uuid.measured().unwrap().clone();
    let used = MemoryBytes(20_736_638_976);
    let memory = Memory { used, total: MemoryBytes(42_412_802_048), excludes_reserved: true };
    let process = GpuProcess { pid: INIT, kind: ProcessKind::Compute, memory: Measured(used) };
    let want = UnitSample {
        identity: UnitIdentity {
            uuid: Measured(UnitUuid::new("MIG-22222222-1111-2222-3333-444444444444").unwrap()),
            kind: UnitKind::Mig { parent, gi: 3, ci: 1 },
            name: Measured("NVIDIA H100 80GB HBM3 MIG 3g.40gb".into()),
            ..gpu.identity
        },
        readings: Readings {
            memory: Measured(memory),
            processes: Measured(vec![process]),
            mig: Measured(MigMode::Enabled),
            fields: no_fields(),
            ..Readings::absent(Absence::NotSupported)
        },
    };
    assert_eq!(instance, want);
}

#[test]
fn an_unknown_kind_of_gpu_is_read_like_any_other() {
    // rust-nvml/nvml-wrapper#70, #97 (NR-14): unknown enum values failed the whole tool.
    let scenario = format!("{}nvmlDeviceGetArchitecture = 99\nnvmlDeviceGetBrand = 77\nlog\n", node(1));
    let fake = FakeNvml::new(&scenario);
    assert_eq!(report(&fake).units, [healthy(0, 1)]);
    assert!(!fake.calls().iter().any(|c| c.contains("Architecture") || c.contains("Brand")));
}

#[test]
fn a_driver_that_does_not_start_says_why() {
    // mozilla/translations#1167, Azure/az-hop#269 (NR-16): 18, library and module differ after an upgrade.
    let table = [
        ("nvmlInit_v2 ! 4", Absence::NoPermission),
        ("nvmlInit_v2 ! 9", Absence::DriverNotLoaded),
        ("nvmlInit_v2 ! 12", Absence::LibraryNotFound),
        ("nvmlInit_v2 ! 18", Absence::VersionMismatch),
        ("nvmlInit_v2 ! 999", Absence::Transient),
        ("nvmlDeviceGetCount_v2 ! 15", Absence::GpuLost),
        ("nvmlDeviceGetCount_v2 = 4000000000", Absence::Implausible),
    ];
    for (scenario, want) in table {
        assert_eq!(look(&FakeNvml::new(scenario)), Absent(want), "{scenario}");
    }
}

#[test]
fn no_gpus_is_an_answer_and_a_missing_library_is_none() {
    // rust-nvml/nvml-wrapper#63, #17 (NR-15): total failure is a collector fault, not an empty node.
    let fake = FakeNvml::new("nvmlSystemGetDriverVersion = 535.54.03\n");
    assert_eq!(look(&fake), Measured(GpuReport { driver: Measured("535.54.03".into()), units: vec![] }));
    fs::remove_file(fake.library()).unwrap();
    assert_eq!(look(&fake), Absent(Absence::LibraryNotFound));
    fs::write(fake.library(), "no library at all").unwrap();
    assert_eq!(look(&fake), Absent(Absence::LibraryNotFound));
    fs::remove_dir_all(fake.dir()).unwrap();
    assert_eq!(look(&fake), Absent(Absence::SourceFailed), "the lock's folder is missing");
}

#[test]
fn without_a_driver_the_loaders_library_is_not_touched() {
    if gpu_reaper_hc::gpu::driver::loaded() {
        return println!("skipped: this machine has the driver");
    }
    let dir = tempfile::tempdir().unwrap();
    let source = SourcePlan::Nvml { library: None, gpm: Gpm::Off };
    let plan = Plan { source, states: false, deadline: PATIENT, lock: dir.path().join("probe.lock") };
    assert_eq!(worker::start(&plan).finish(), Absent(Absence::DriverNotLoaded));
}

#[test]
fn nothing_is_ever_set_and_nothing_shut_down() {
    let fake = FakeNvml::new(&format!("log\n{}", node(2)));
    report(&fake);
    let calls = fake.calls();
    let asks = |call: &String| call.starts_with("nvmlSystemGet") || call.starts_with("nvmlDeviceGet");
    assert!(calls.iter().all(|c| asks(c) || c == "nvmlInitWithFlags -"), "{calls:#?}");
    assert!(calls.len() < 50, "{} calls for two GPUs", calls.len());
}

//! A look at a few units: who is on them, by as few calls as that takes, and none on other GPUs.

use crate::fake_nvml::{FakeNvml, INIT, node};
use crate::*;
use gpu_reaper_hc::gpu::few::{self, Occupancy, Wanted};

const NOT_ASKED: Reading<DeviceMinor> = Absent(Absence::NotAsked);

fn uuid(gpu: u32) -> UnitUuid {
    UnitUuid::new(&format!("GPU-{gpu:08}-1111-2222-3333-444444444444")).unwrap()
}

fn looked(fake: &FakeNvml, wanted: &[Wanted], deadline: Duration) -> Vec<Occupancy> {
    few::look(&plan(fake, deadline), wanted, Duration::from_millis(100))
}

/// What [`node`] says of GPU `i`.
fn occupied(i: u32, minor: Reading<DeviceMinor>) -> Occupancy {
    let Readings { memory, processes, .. } = healthy(i, i + 1).readings;
    Occupancy { uuid: Measured(uuid(i)), minor, memory, processes }
}

fn absent(why: Absence) -> Occupancy {
    Occupancy { uuid: Absent(why), minor: Absent(why), memory: Absent(why), processes: Absent(why) }
}

#[test]
fn only_the_wanted_unit_is_touched_and_only_asked_who_is_on_it() {
    // ROCm/spur#836, nebius/soperator#1246 (ND-11, PE-03): the load of neighbours is no evidence.
    let fake = FakeNvml::new(&format!("log\n{}", node(4)));
    assert_eq!(looked(&fake, &[Wanted::Uuid(uuid(2))], PATIENT), [occupied(2, NOT_ASKED)]);
    // The first two are the bindings' own.
    let want = [
        "nvmlInitWithFlags -",
        "nvmlSystemGetDriverVersion -",
        "nvmlDeviceGetHandleByUUID 2",
        "nvmlDeviceGetUUID 2",
        "nvmlDeviceGetMemoryInfo_v2 2",
        "nvmlDeviceGetComputeRunningProcesses_v3 2",
        "nvmlDeviceGetGraphicsRunningProcesses_v3 2",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3 2",
    ];
    assert_eq!(fake.calls(), want);
}

#[test]
fn a_unit_of_which_only_the_device_file_is_known_is_searched_for() {
    let fake = FakeNvml::new(&format!("log\n{}gpu 1\ngone\n", node(3)));
    let wanted = [2, 0, 1].map(|minor| Wanted::Minor(DeviceMinor(minor)));
    // Minors come in the opposite order, and what GPU 1 is cannot be said: it may be any that is not found.
    let minor = |n| Measured(DeviceMinor(n));
    let want = [occupied(0, minor(2)), occupied(2, minor(0)), absent(Absence::GpuLost)];
    assert_eq!(looked(&fake, &wanted, PATIENT), want);
    let asked = |call: &str| fake.calls().iter().any(|c| c == call);
    assert!(!asked("nvmlDeviceGetMemoryInfo_v2 1") && !asked("nvmlDeviceGetUtilizationRates 0"));
}

#[test]
fn an_instance_is_a_unit_of_its_own() {
    let instance = format!(
        "gpu 0\nmig 0\nnvmlDeviceGetUUID = MIG-a\nnvmlDeviceGetMemoryInfo_v2 = 42412802048 4096 0\n\
         nvmlDeviceGetComputeRunningProcesses_v3 = ok\nproc compute = {INIT} 4096\n"
    );
    let fake = FakeNvml::new(&format!("log\n{}{instance}", node(1)));
    let own = UnitUuid::new("MIG-a").unwrap();
    let [seen] = &looked(&fake, &[Wanted::Uuid(own.clone())], PATIENT)[..] else { panic!("one unit") };
    assert_eq!(seen.uuid, Measured(own));
    assert_eq!(seen.memory.map(|m| m.used), Measured(MemoryBytes(4096)));
    assert_eq!(seen.processes.as_ref().map(Vec::len), Measured(1));
    assert!(
        fake.calls().iter().all(|call| call.ends_with("/mig") || call.ends_with(" -")),
        "{:?}",
        fake.calls()
    );
}

#[test]
fn what_cannot_be_read_is_absent_in_its_place() {
    let table = [
        ("gpu 1\ngone\n", Absence::GpuLost),
        ("gpu 1\nnvmlDeviceGetHandleByUUID ! 999\n", Absence::GpuLost),
        ("gpu 1\nnvmlDeviceGetUUID ! 15\n", Absence::GpuLost),
        ("gpu 1\nnvmlDeviceGetUUID = GPU-another\n", Absence::NotListed),
    ];
    for (fault, why) in table {
        let fake = FakeNvml::new(&format!("{}{fault}", node(3)));
        let wanted = [1, 0].map(|gpu| Wanted::Uuid(uuid(gpu)));
        assert_eq!(looked(&fake, &wanted, PATIENT), [absent(why), occupied(0, NOT_ASKED)], "{fault}");
    }
    let fake = FakeNvml::new(&format!("{}gpu 0\nnvmlDeviceGetComputeRunningProcesses_v3 ! 4\n", node(1)));
    let [seen] = &looked(&fake, &[Wanted::Uuid(uuid(0))], PATIENT)[..] else { panic!("one unit") };
    assert_eq!(seen.processes, Absent(Absence::NoPermission));
    assert_eq!(seen.memory, occupied(0, NOT_ASKED).memory);
    fake.play("nvmlInit_v2 ! 9\n");
    assert_eq!(looked(&fake, &[Wanted::Uuid(uuid(0))], PATIENT), [absent(Absence::DriverNotLoaded)]);
}

#[test]
fn a_driver_that_hangs_costs_its_deadline_and_hides_no_unit_before() {
    // leptonai/gpud#117, NVIDIA/go-nvml#152 (FT-01)
    let fake = FakeNvml::new(&format!("{}gpu 1\nnvmlDeviceGetMemoryInfo_v2 ~ forever\n", node(3)));
    let wanted = [0, 1, 2].map(|gpu| Wanted::Uuid(uuid(gpu)));
    let from = Instant::now();
    let late = absent(Absence::DeadlinePassed);
    assert_eq!(looked(&fake, &wanted, SHORT), [occupied(0, NOT_ASKED), late.clone(), late]);
    assert!(from.elapsed() < SHORT + SLACK, "{:?}", from.elapsed());
}

#[test]
fn a_worker_at_work_is_told_from_one_that_does_not_die_and_keeps_nobody_waiting_for_long() {
    let fake = FakeNvml::new("nvmlInit_v2 ~ forever\n");
    let lock = fake.dir().join("probe.lock");
    assert_eq!(worker::wait_for(&lock, SHORT), Ok(()), "none has ever been");
    let stuck = worker::start(&plan(&fake, PATIENT));
    let from = Instant::now();
    assert_eq!(worker::wait_for(&lock, SHORT), Err(Absence::LookAtWork));
    assert_eq!(looked(&fake, &[Wanted::Uuid(uuid(0))], PATIENT), [absent(Absence::LookAtWork)]);
    assert!(from.elapsed() < SHORT * 2 + SLACK, "{:?}", from.elapsed());
    drop(stuck);
    eventually("it is gone", || worker::wait_for(&lock, Duration::ZERO).is_ok());
    // One whose time is long over, and one of which nobody knows how long it may look.
    let held = std::fs::File::open(&lock).unwrap();
    held.lock().unwrap();
    std::fs::write(&lock, format!("{:020}\n", 1)).unwrap();
    let from = Instant::now();
    assert_eq!(worker::wait_for(&lock, PATIENT), Err(Absence::WorkerStuck));
    assert!(from.elapsed() < Duration::from_secs(1) + SLACK, "{:?}", from.elapsed());
    std::fs::write(&lock, "").unwrap();
    assert_eq!(worker::wait_for(&lock, SHORT), Err(Absence::LookAtWork));
}

//! What the looks of an Epilog come to: a leak, a suspicion, nothing, or that it cannot be said.

use super::*;
use Absence::{DriverNotLoaded, NotListed, NotSupported, Transient};

const GIB: u64 = 1 << 30;
const VERIFY: Duration = Duration::from_secs(10);

fn job(id: u64) -> JobId {
    JobId::new(id).unwrap()
}

fn case() -> Case<'static> {
    let began = Reading::Measured(BootMs(500_000));
    Case { job: job(7), began, shared: false, elsewhere: &[], verify: VERIFY, allow: &[] }
}

/// A container of the job's time that holds 20 GiB.
fn docker(pid: u32) -> Present {
    Present {
        pid,
        found: Found::Listed(ProcessKind::Compute),
        start_ticks: Reading::Measured(60_000),
        started: Reading::Measured(BootMs(600_000)),
        whose: Reading::Measured(Whose::Outside),
        uid: Reading::Measured(1001),
        comm: Reading::Measured("python3".to_owned()),
        memory: Reading::Measured(MemoryBytes(20 * GIB)),
        own: false,
    }
}

fn of_job(id: u64) -> Present {
    Present { whose: Reading::Measured(Whose::Job(job(id))), ..docker(900) }
}

fn gone(pid: u32) -> Present {
    Present {
        start_ticks: Reading::Absent(NotListed),
        started: Reading::Absent(NotListed),
        whose: Reading::Absent(NotListed),
        ..docker(pid)
    }
}

fn holding(used: u64) -> Reading<Memory> {
    Reading::Measured(Memory {
        used: MemoryBytes(used),
        total: MemoryBytes(80 * GIB),
        excludes_reserved: true,
    })
}

/// A look at so many milliseconds; the memory is that of its processes.
fn look(at_ms: u64, processes: &[Present]) -> Look {
    let used = processes.iter().filter_map(|p| p.memory.measured()).map(|m| m.0).sum();
    Look {
        at: Duration::from_millis(at_ms),
        memory: holding(used),
        processes: Reading::Measured(processes.to_vec()),
    }
}

fn unread(at_ms: u64, why: Absence) -> Look {
    Look { processes: Reading::Absent(why), ..look(at_ms, &[]) }
}

/// The same at every moment of ten seconds.
fn always(processes: &[Present]) -> Vec<Look> {
    moments(VERIFY).iter().map(|at| look(at.as_millis() as u64, processes)).collect()
}

fn word(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Clean => "clean".to_owned(),
        Outcome::Leak(left) => format!("leak {:?}", left.iter().map(|l| l.pid).collect::<Vec<_>>()),
        Outcome::CouldNotLook(why) => format!("blind {why:?}"),
        Outcome::Unsettled(left) => format!("open {:?}", left.iter().map(|l| l.pid).collect::<Vec<_>>()),
    }
}

#[test]
fn what_outlives_its_job_in_every_look_is_a_leak_and_what_is_ending_is_none() {
    let p = docker(900);
    let here = |at_ms| look(at_ms, std::slice::from_ref(&p));
    let until = |last: u64, end: u64| -> Vec<Look> {
        let at = moments(VERIFY).into_iter().map(|at| at.as_millis() as u64).filter(|at| *at <= end);
        at.map(|at| look(at, if at <= last { std::slice::from_ref(&p) } else { &[] })).collect()
    };
    let reborn = |n: u64| Present { start_ticks: Reading::Measured(60_000 + n), ..p.clone() };
    let table = [
        ("the first look", vec![look(0, &[])], "clean"),
        // jade-hpc-gpu/jade-hpc-gpu.github.io#73, NVIDIA/nvidia-docker#1227 (PE-01, CG-04)
        ("a container to the end", always(std::slice::from_ref(&p)), "leak [900]"),
        // NVIDIA/deepops#1317 (PE-02): seen at 0, 2 and 6 s, gone at 9 s.
        ("gone at 9 s", until(9_000, 10_000), "clean"),
        ("gone at once", until(0, 250), "clean"),
        ("most of the time", until(10_000, 7_750), "leak [900]"),
        ("less of it", until(10_000, 3_750), "open [900]"),
        ("one look", until(10_000, 0), "open [900]"),
        // Syllo/nvtop#70 (CG-07): another process has the pid.
        ("another each time", (0..6).map(|n| look(n * 2_000, &[reborn(n)])).collect(), "blind Late(900)"),
        ("it came later", [vec![look(0, &[])], until(10_000, 10_000)].concat(), "blind Late(900)"),
        ("two looks", vec![here(0), here(10_000)], "open [900]"),
        // wookayin/gpustat#16 (CG-06): gone between the list and /proc, and from the next list.
        ("vanished", vec![look(0, &[gone(777)]), look(250, &[])], "clean"),
        ("vanishing", vec![look(0, &[]), look(250, &[gone(777)])], "blind Unknown(777)"),
        ("listed for ever", always(&[gone(777)]), "blind Unknown(777)"),
    ];
    for (name, looks, want) in table {
        assert_eq!(word(&judge(&case(), &looks)), want, "{name}");
    }
    let once = Case { verify: Duration::ZERO, ..case() };
    assert_eq!(word(&judge(&once, &[here(0)])), "open [900]", "one look confirms nothing");
    let held = |gib: u64| Present { memory: Reading::Measured(MemoryBytes(gib * GIB)), ..p.clone() };
    let looks = [look(0, &[held(30)]), look(5_000, &[held(10)]), look(10_000, &[held(12)])];
    let Outcome::Leak(left) = judge(&case(), &looks) else { panic!("a leak") };
    assert_eq!(left[0].memory, Reading::Measured(MemoryBytes(10 * GIB)), "the least over all looks");
}

#[test]
fn nobody_elses_process_is_a_leak() {
    let with = |whose| Present { whose: Reading::Measured(whose), ..docker(900) };
    let named = |comm: &str| Present { comm: Reading::Measured(comm.to_owned()), ..docker(900) };
    let own_named = |comm: &str| Present { comm: Reading::Measured(comm.to_owned()), ..of_job(7) };
    let listed = |kind| Present { found: Found::Listed(kind), ..docker(900) };
    let older = Present { started: Reading::Measured(BootMs(499_990)), ..docker(900) };
    let perhaps_older = Present { started: Reading::Measured(BootMs(499_995)), ..docker(900) };
    let older_of_it = Present { started: Reading::Measured(BootMs(1)), ..of_job(7) };
    let table = [
        ("its own", of_job(7), "leak [900]", "leak [900]"),
        // NVIDIA/deepops#992, SchedMD/slurm#171 (PE-06): the same user's other job, registered or not.
        ("the user's other job", of_job(8), "clean", "clean"),
        ("a job that cannot be told", with(Whose::SomeJobs), "blind Unknown(900)", "clean"),
        // Where another job may hold the unit too, only what is certain counts.
        ("a container", docker(900), "leak [900]", "clean"),
        ("in slurmd's own cgroup", with(Whose::Slurms), "leak [900]", "clean"),
        // XuehaiPan/nvitop#152, wookayin/gpustat#157 (PE-14): what was there before, and displays.
        ("older than the job", older, "clean", "clean"),
        ("of the tick in which it began", perhaps_older, "leak [900]", "clean"),
        ("its own by an odd clock", older_of_it, "leak [900]", "leak [900]"),
        ("a display", listed(ProcessKind::Graphics), "clean", "clean"),
        ("a client of MPS", listed(ProcessKind::Mps), "leak [900]", "clean"),
        ("a device file", Present { found: Found::DeviceFile, ..docker(900) }, "leak [900]", "clean"),
        ("allowed", named("dcgm-exporter"), "clean", "clean"),
        ("the MPS server", named("nvidia-cuda-mps"), "clean", "clean"),
        ("allowed by a long name", named("a-name-of-the-s"), "clean", "clean"),
        ("almost allowed", named("dcgm-exporter2"), "leak [900]", "clean"),
        ("the persistence daemon", named("nvidia-persiste"), "clean", "clean"),
        // Its own MPS server, or who took that name (`epilog.allow` is still believed).
        ("its own MPS", own_named("nvidia-cuda-mps"), "leak [900]", "leak [900]"),
        ("the name alone", own_named("nvidia-persiste"), "leak [900]", "leak [900]"),
        ("its own, allowed", own_named("dcgm-exporter"), "clean", "clean"),
        ("this program", Present { own: true, ..docker(900) }, "clean", "clean"),
    ];
    let allow = ["dcgm-exporter".to_owned(), "a-name-of-the-site-that-is-long".to_owned()];
    for (name, process, alone, shared) in table {
        let looks = always(&[process]);
        let judged = |shared| word(&judge(&Case { shared, allow: &allow, ..case() }, &looks));
        assert_eq!(judged(false), alone, "{name}");
        assert_eq!(judged(true), shared, "{name}, shared");
    }
    let unsaid = Case { began: Reading::Absent(Absence::NotRecorded), ..case() };
    assert_eq!(word(&judge(&unsaid, &always(&[docker(900)]))), "blind Unknown(900)");
    assert_eq!(word(&judge(&unsaid, &always(&[of_job(7)]))), "leak [900]");
}

#[test]
fn what_could_not_be_seen_is_never_clean() {
    // nebius/soperator#1161 and a4a87755 (PE-12): an empty list where nothing could be listed.
    let (empty, tiny) =
        (look(0, &[]), Present { memory: Reading::Measured(MemoryBytes(4 << 20)), ..docker(1) });
    let display = Present { found: Found::Listed(ProcessKind::Graphics), ..tiny.clone() };
    let silent = Present { memory: Reading::Absent(NotSupported), ..of_job(8) };
    let held = |used: u64, processes: &[Present]| Look { memory: holding(used), ..look(0, processes) };
    let no_memory = |why| Look { memory: Reading::Absent(why), ..look(0, &[]) };
    let table = [
        ("no look", vec![], "blind Unread(NotAsked)"),
        ("an error", vec![unread(0, Transient)], "blind Unread(Transient)"),
        ("an error at the end", vec![empty.clone(), unread(1, Transient)], "blind Unread(Transient)"),
        ("an error before", vec![unread(0, Transient), empty.clone()], "clean"),
        (
            "30 GiB of nobody",
            vec![held(30 * GIB, &[])],
            "blind MemoryWithoutProcess(MemoryBytes(32212254720))",
        ),
        (
            "of a display",
            vec![held(30 * GIB, &[display])],
            "blind MemoryWithoutProcess(MemoryBytes(32212254720))",
        ),
        ("what a driver uses", vec![held(600 << 20, &[])], "clean"),
        ("of one who does not say", vec![held(30 * GIB, &[silent])], "clean"),
        // NVIDIA/deepops#1317 (PE-02): memory falls two seconds after its process has gone.
        ("still falling", vec![held(30 * GIB, &[]), held(20 * GIB, &[])], "open []"),
        ("its process just went", vec![look(0, &[docker(9)]), held(20 * GIB, &[])], "open []"),
        ("no memory to read", vec![no_memory(NotSupported)], "clean"),
        ("memory not read", vec![no_memory(Transient)], "blind Unread(Transient)"),
    ];
    for (name, looks, want) in table {
        assert_eq!(word(&judge(&case(), &looks)), want, "{name}");
    }
    let [first, .., last] = &always(&[docker(900)])[..] else { panic!("looks") };
    let gaps = [first.clone(), unread(1_000, Transient), look(4_000, &[docker(900)]), last.clone()];
    assert_eq!(word(&judge(&case(), &gaps)), "leak [900]", "a look that failed saw nobody go");
}

#[test]
fn a_process_of_a_job_that_is_registered_elsewhere_says_that_the_units_are_not_certain() {
    let others = [job(8)];
    let judged =
        |shared, all: &[Present]| word(&judge(&Case { elsewhere: &others, shared, ..case() }, &always(all)));
    assert_eq!(judged(false, &[of_job(8)]), "blind Elsewhere(JobId(8))");
    assert_eq!(judged(false, &[of_job(9)]), "clean", "a job that is over, or that nobody registered");
    assert_eq!(judged(true, &[of_job(8)]), "clean");
    assert_eq!(judged(false, &[of_job(8), Present { pid: 1, ..of_job(7) }]), "leak [1]");
}

#[test]
fn looks_come_ever_more_rarely_and_end_with_the_time() {
    let ms = |s| moments(Duration::from_millis(s)).iter().map(|d| d.as_millis() as u64).collect::<Vec<_>>();
    assert_eq!(ms(10_000), [0, 250, 750, 1_750, 3_750, 7_750, 10_000]);
    assert_eq!(ms(1_000), [0, 25, 75, 175, 375, 775, 1_000]);
    assert_eq!(ms(60_000)[..3], [0, 250, 750]);
    assert_eq!(ms(60_000).last(), Some(&60_000));
    assert_eq!(ms(0), [0]);
}

#[test]
fn only_what_may_change_is_looked_at_again() {
    let unread = |why| Outcome::CouldNotLook(Blind::Unread(why));
    assert!(!Outcome::Clean.may_change() && !unread(DriverNotLoaded).may_change());
    assert!(unread(Transient).may_change() && unread(Absence::WorkerStuck).may_change());
    assert!(Outcome::CouldNotLook(Blind::MemoryWithoutProcess(MemoryBytes(9))).may_change());
    assert!(Outcome::Unsettled(vec![]).may_change());
}

#[test]
fn only_what_is_the_jobs_and_was_there_from_the_first_look_is_ever_suspected() {
    let began = Reading::Absent(Absence::NotRecorded);
    // A service, on a Slurm that does not tell when a job began: too few looks make no suspicion of it.
    let once = Case { began, verify: Duration::ZERO, ..case() };
    assert_eq!(word(&judge(&once, &[look(0, &[docker(900)])])), "blind Unknown(900)");
    let unsaid = Case { began, ..case() };
    let few = [look(0, &[docker(900)]), look(250, &[docker(900)])];
    assert_eq!(word(&judge(&unsaid, &few)), "blind Unknown(900)");
    // An admin's tool or the next tenant's container, beside what really was left.
    let later =
        |p: Present| [look(0, &[docker(900)]), look(5_000, &[docker(900), p.clone()]), look(10_000, &[p])];
    assert_eq!(word(&judge(&case(), &later(docker(901)))), "blind Late(901)");
    assert_eq!(word(&judge(&case(), &later(Present { pid: 901, ..of_job(7) }))), "blind Late(901)");
    let both = [look(0, &[docker(900)]), look(250, &[docker(900), docker(901)])];
    assert_eq!(word(&judge(&case(), &both)), "open [900]");
    let first_failed = [unread(0, Transient), look(250, &[docker(900)])];
    assert_eq!(word(&judge(&case(), &first_failed)), "open [900]", "the first look that was made");
}

#[test]
fn a_last_look_that_failed_hides_nothing_and_makes_nothing_certain() {
    let blind_end = |mut looks: Vec<Look>, why| {
        if let Some(last) = looks.last_mut() {
            *last = unread(10_000, why);
        }
        word(&judge(&case(), &looks))
    };
    assert_eq!(blind_end(always(&[docker(900)]), Transient), "open [900]");
    assert_eq!(blind_end(always(&[of_job(7)]), Absence::GpuLost), "open [900]");
    assert_eq!(blind_end(always(&[of_job(8)]), Transient), "blind Unread(Transient)");
    assert_eq!(blind_end(always(&[gone(777)]), Transient), "blind Unread(Transient)");
    let ended = [look(0, &[docker(900)]), look(250, &[]), unread(750, Transient)];
    assert_eq!(word(&judge(&case(), &ended)), "blind Unread(Transient)", "it was gone before");
}

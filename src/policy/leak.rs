//! Whether a job left something on one of its units: from the looks of its Epilog to an outcome. A process is a leak
//! only if every look showed it, so that one that is still ending is none; what cannot be said is never `Clean`.
//! Says nothing of other jobs' processes, and nobody is ever signalled for what is found here.

use super::fault::strangers::is_service;
use crate::model::{JobId, Memory, ProcessKind, Whose};
use crate::reading::{Absence, Reading};
use crate::units::{BootMs, MemoryBytes};
use std::time::Duration;

/// What a driver may use of an empty card, beside 2 % of it.
const EMPTY_BYTES: u64 = 256 << 20;
/// Fewer looks confirm nothing.
const LOOKS_LEAST: usize = 3;
/// The first pause between two looks, where the time is long enough; each next one is twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
/// A start time is known to a clock tick (USER_HZ is 100 wherever Slurm runs).
const TICK_MS: i64 = 10;

/// Above this much used memory a unit is not empty.
pub fn empty_at_most(memory: &Memory) -> MemoryBytes {
    MemoryBytes(memory.total.0 / 50 + EMPTY_BYTES)
}

/// How a process shows on a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// In one of the driver's lists.
    Listed(ProcessKind),
    /// In none of them: it has the unit's device file open and can compute on it.
    DeviceFile,
}

/// One process on a unit, as one look showed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// In the namespace we run in.
    pub pid: u32,
    /// How it shows.
    pub found: Found,
    /// In clock ticks since boot: with the pid, its identity. Not listed: gone between the driver's list and /proc.
    pub start_ticks: Reading<u64>,
    /// The same instant.
    pub started: Reading<BootMs>,
    /// Whose it is, by its cgroup.
    pub whose: Reading<Whose>,
    /// Its real user.
    pub uid: Reading<u32>,
    /// The kernel's short name of it.
    pub comm: Reading<String>,
    /// What it holds of the unit.
    pub memory: Reading<MemoryBytes>,
    /// A run of this program.
    pub own: bool,
}

/// One look at one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Since the first look.
    pub at: Duration,
    /// Memory held and present.
    pub memory: Reading<Memory>,
    /// Everything on it; absent where it could not be listed, which is not nobody.
    pub processes: Reading<Vec<Present>>,
}

/// What the looks are held against.
#[derive(Clone, Debug)]
pub struct Case<'a> {
    /// The job that ended.
    pub job: JobId,
    /// When its run began; what was there before is a service of the site. Absent: not known.
    pub began: Reading<BootMs>,
    /// Whether another job may hold the unit too: shards, MPS, the instances of a GPU. Then only a process in the
    /// job's own cgroup is certainly its.
    pub shared: bool,
    /// The registered jobs that hold other units: a process of one of these here says that nobody's units are certain.
    pub elsewhere: &'a [JobId],
    /// Over how long is looked.
    pub verify: Duration,
    /// Names of services that are no leak.
    pub allow: &'a [String],
}

/// What is left of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// In the namespace we run in.
    pub pid: u32,
    /// With the pid, its identity; there in every leak.
    pub start_ticks: Reading<u64>,
    /// Its real user.
    pub uid: Reading<u32>,
    /// The kernel's short name, as the process may have set it: never to be shown unescaped.
    pub comm: Reading<String>,
    /// The least it was seen to hold.
    pub memory: Reading<MemoryBytes>,
    /// How it shows.
    pub found: Found,
    /// Whether its cgroup is the job's own.
    pub in_its_cgroup: bool,
}

/// Why nothing can be said of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blind {
    /// It could not be read, or nobody knows which unit it is.
    Unread(Absence),
    /// It holds so much memory, and no process is listed that holds it.
    MemoryWithoutProcess(MemoryBytes),
    /// Whose this process is, is not known.
    Unknown(u32),
    /// A process of this job is on it, which is registered for others.
    Elsewhere(JobId),
}

/// What became of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing of the job is on it.
    Clean,
    /// These outlived their job, in every look.
    Leak(Vec<Left>),
    /// It cannot be said: never to be taken for clean.
    CouldNotLook(Blind),
    /// Something was on it until the end, and the looks were not enough to call it a leak. Nobody: memory that was
    /// still falling.
    Unsettled(Vec<Left>),
}

impl Outcome {
    /// Whether another look may change it. A driver that is not there comes in no ten seconds.
    pub fn may_change(&self) -> bool {
        use Absence::*;
        match self {
            Outcome::Clean => false,
            Outcome::CouldNotLook(Blind::Unread(why)) => !matches!(
                why,
                DriverNotLoaded
                    | LibraryNotFound
                    | VersionMismatch
                    | ControlRefused
                    | NotSupported
                    | NoPermission
                    | NotMapped
                    | NotListed
                    | GpuLost
                    | ResetRequired
            ),
            Outcome::CouldNotLook(_) | Outcome::Leak(_) | Outcome::Unsettled(_) => true,
        }
    }
}

/// When is looked, counted from the first look: at once, then after growing pauses, and once at the end.
pub fn moments(verify: Duration) -> Vec<Duration> {
    let (mut moments, mut at) = (vec![Duration::ZERO], Duration::ZERO);
    let mut pause = PAUSE_FIRST.min(verify / 40);
    while !pause.is_zero() && at + pause < verify {
        at += pause;
        moments.push(at);
        pause *= 2;
    }
    if !verify.is_zero() {
        moments.push(verify);
    }
    moments
}

/// Whose concern a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Concern {
    /// Another's, or a service.
    None,
    /// This job's.
    Ours { in_its_cgroup: bool },
    /// It cannot be said.
    Unknown,
}

impl Case<'_> {
    fn concern(&self, process: &Present) -> Concern {
        let service = process.comm.measured().is_some_and(|comm| self.is_service(comm));
        if process.found == Found::Listed(ProcessKind::Graphics) || process.own || service {
            return Concern::None;
        }
        match process.whose {
            Reading::Measured(Whose::Job(id)) if id == self.job => Concern::Ours { in_its_cgroup: true },
            Reading::Measured(Whose::Job(_) | Whose::SomeJobs) => Concern::None,
            Reading::Measured(Whose::Slurms | Whose::Outside) if self.shared => Concern::None,
            Reading::Measured(Whose::Slurms | Whose::Outside) => match (self.began, process.started) {
                (Reading::Measured(began), Reading::Measured(started))
                    if began.since_ms(started) >= TICK_MS =>
                {
                    Concern::None
                }
                (Reading::Measured(_), Reading::Measured(_)) => Concern::Ours { in_its_cgroup: false },
                _ => Concern::Unknown,
            },
            Reading::Absent(_) => Concern::Unknown,
        }
    }

    fn is_service(&self, comm: &str) -> bool {
        is_service(comm, self.allow)
    }

    /// A job whose process here contradicts the registrations.
    fn contradiction(&self, present: &[Present]) -> Option<JobId> {
        let computes = present.iter().filter(|p| p.found != Found::Listed(ProcessKind::Graphics));
        let mut owners = computes.filter_map(|p| match p.whose {
            Reading::Measured(Whose::Job(id)) => Some(id),
            _ => None,
        });
        owners.find(|id| !self.shared && self.elsewhere.contains(id))
    }
}

/// What the looks at one unit say together.
pub fn judge(case: &Case, looks: &[Look]) -> Outcome {
    let Some(last) = looks.last() else {
        return Outcome::CouldNotLook(Blind::Unread(Absence::NotAsked));
    };
    let present = match &last.processes {
        Reading::Measured(present) => present,
        Reading::Absent(why) => return Outcome::CouldNotLook(Blind::Unread(*why)),
    };
    let (mut leaks, mut left, mut unknown) = (Vec::new(), Vec::new(), None);
    for process in present {
        let lasting = is_lasting(case.verify, looks, process);
        let in_its_cgroup = match case.concern(process) {
            Concern::None => continue,
            Concern::Ours { in_its_cgroup } if lasting => {
                add(&mut leaks, of(looks, process, in_its_cgroup));
                continue;
            }
            Concern::Ours { in_its_cgroup } => in_its_cgroup,
            Concern::Unknown if lasting => {
                unknown = Some(process.pid);
                continue;
            }
            Concern::Unknown => false,
        };
        add(&mut left, of(looks, process, in_its_cgroup));
    }
    match (case.contradiction(present), unknown) {
        _ if !leaks.is_empty() => Outcome::Leak(leaks),
        (_, Some(pid)) => Outcome::CouldNotLook(Blind::Unknown(pid)),
        _ if !left.is_empty() => Outcome::Unsettled(left),
        (Some(job), None) => Outcome::CouldNotLook(Blind::Elsewhere(job)),
        (None, None) => by_memory(case, looks, last, present),
    }
}

/// Whether every look that could be made shows it, enough of them over most of the time. What has no start time is
/// known by its pid alone.
fn is_lasting(verify: Duration, looks: &[Look], process: &Present) -> bool {
    let made: Vec<(Duration, &Vec<Present>)> =
        looks.iter().filter_map(|look| Some((look.at, look.processes.measured()?))).collect();
    let is_it = |p: &Present| p.pid == process.pid && p.start_ticks == process.start_ticks;
    let (Some((first, _)), Some((last, _))) = (made.first(), made.last()) else { return false };
    made.len() >= LOOKS_LEAST
        && (*last - *first) * 4 >= verify * 3
        && made.iter().all(|(_, present)| present.iter().any(is_it))
}

fn of(looks: &[Look], process: &Present, in_its_cgroup: bool) -> Left {
    let shown = looks.iter().filter_map(|look| look.processes.measured()).flatten();
    let same = shown.filter(|p| p.pid == process.pid && p.start_ticks == process.start_ticks);
    let least = same.filter(|p| p.found == process.found).filter_map(|p| p.memory.measured()).min();
    Left {
        pid: process.pid,
        start_ticks: process.start_ticks,
        uid: process.uid,
        comm: process.comm.clone(),
        memory: process.memory.map(|now| least.map_or(now, |least| now.min(*least))),
        found: process.found,
        in_its_cgroup,
    }
}

/// Once, also where it stands in two lists.
fn add(all: &mut Vec<Left>, left: Left) {
    if !all.iter().any(|known| known.pid == left.pid) {
        all.push(left);
    }
}

/// A unit on which nothing of the job is left: empty, unless it holds memory that nobody is listed for.
fn by_memory(case: &Case, looks: &[Look], last: &Look, present: &[Present]) -> Outcome {
    let memory = match &last.memory {
        Reading::Measured(memory) => memory,
        Reading::Absent(Absence::NotSupported) => return Outcome::Clean,
        Reading::Absent(why) => return Outcome::CouldNotLook(Blind::Unread(*why)),
    };
    let mut explained = empty_at_most(memory).0;
    for process in present {
        match process.memory {
            Reading::Measured(bytes) => explained = explained.saturating_add(bytes.0),
            // Whoever is listed with an unknown part may hold it all.
            Reading::Absent(_) if process.found == Found::Listed(ProcessKind::Graphics) => {}
            Reading::Absent(_) => return Outcome::Clean,
        }
    }
    if memory.used.0 <= explained {
        return Outcome::Clean;
    }
    let before = &looks[..looks.len() - 1];
    let falls = before.iter().any(|l| l.memory.measured().is_some_and(|m| m.used > memory.used));
    let somebody = |look: &Look| {
        let shown = look.processes.measured();
        shown.is_some_and(|all| all.iter().any(|p| case.concern(p) != Concern::None))
    };
    match falls || before.iter().any(somebody) {
        true => Outcome::Unsettled(Vec::new()),
        false => Outcome::CouldNotLook(Blind::MemoryWithoutProcess(memory.used)),
    }
}

#[cfg(test)]
mod tests {
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
            ("another each time", (0..6).map(|n| look(n * 2_000, &[reborn(n)])).collect(), "open [900]"),
            ("it came later", [vec![look(0, &[])], until(10_000, 10_000)].concat(), "open [900]"),
            ("two looks", vec![here(0), here(10_000)], "open [900]"),
            // wookayin/gpustat#16 (CG-06): gone between the list and /proc, and from the next list.
            ("vanished", vec![look(0, &[gone(777)]), look(250, &[])], "clean"),
            ("vanishing", vec![look(0, &[]), look(250, &[gone(777)])], "open [777]"),
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
        let listed = |kind| Present { found: Found::Listed(kind), ..docker(900) };
        let older = Present { started: Reading::Measured(BootMs(499_990)), ..docker(900) };
        let perhaps_older = Present { started: Reading::Measured(BootMs(499_995)), ..docker(900) };
        let older_of_it = Present { started: Reading::Measured(BootMs(1)), ..of_job(7) };
        let table = [
            ("its own", of_job(7), "leak [900]", "leak [900]"),
            // NVIDIA/deepops#992, SchedMD/slurm#171 (PE-06): the same user's other job, registered or not.
            ("the user's other job", of_job(8), "clean", "clean"),
            ("a job that cannot be told", with(Whose::SomeJobs), "clean", "clean"),
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
            ("allowed by a long name", named("nvidia-cuda-mps"), "clean", "clean"),
            ("almost allowed", named("dcgm-exporter2"), "leak [900]", "clean"),
            ("the persistence daemon", named("nvidia-persiste"), "clean", "clean"),
            ("this program", Present { own: true, ..docker(900) }, "clean", "clean"),
        ];
        let allow = ["dcgm-exporter".to_owned(), "nvidia-cuda-mps-server".to_owned()];
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
        let judged = |shared, all: &[Present]| {
            word(&judge(&Case { elsewhere: &others, shared, ..case() }, &always(all)))
        };
        assert_eq!(judged(false, &[of_job(8)]), "blind Elsewhere(JobId(8))");
        assert_eq!(judged(false, &[of_job(9)]), "clean", "a job that is over, or that nobody registered");
        assert_eq!(judged(true, &[of_job(8)]), "clean");
        assert_eq!(judged(false, &[of_job(8), Present { pid: 1, ..of_job(7) }]), "leak [1]");
    }

    #[test]
    fn looks_come_ever_more_rarely_and_end_with_the_time() {
        let ms =
            |s| moments(Duration::from_millis(s)).iter().map(|d| d.as_millis() as u64).collect::<Vec<_>>();
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
}

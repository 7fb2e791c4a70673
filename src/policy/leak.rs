//! Whether a job left something on one of its units: from the looks of its Epilog to an outcome. A process is a leak
//! only if every look showed it, so that one that is still ending is none; one that the first look did not show is never
//! even suspected; what cannot be said is never `Clean`.
//! Says nothing of other jobs' processes, and nobody is ever signalled for what is found here.

use super::fault::strangers::{is_allowed, is_service};
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
    /// This process came on it only after the first look: an admin's, the next job's, or of what the job left.
    Late(u32),
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
    /// What is certainly the job's was on it from the first look to the last one that could be made, and the looks
    /// were not enough to call it a leak. Nobody: memory that was still falling.
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
        let in_its_cgroup = process.whose == Reading::Measured(Whose::Job(self.job));
        let exempt = process.comm.measured().is_some_and(|comm| self.is_exempt(comm, in_its_cgroup));
        if process.found == Found::Listed(ProcessKind::Graphics) || process.own || exempt {
            return Concern::None;
        }
        match process.whose {
            Reading::Measured(Whose::Job(id)) if id == self.job => Concern::Ours { in_its_cgroup: true },
            Reading::Measured(Whose::Job(_)) => Concern::None,
            Reading::Measured(_) if self.shared => Concern::None,
            // It may be this very job, whose SLUID nobody knows.
            Reading::Measured(Whose::SomeJobs) => Concern::Unknown,
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

    /// A job may start an MPS server of its own, and any process may take a service's name: in the job's own cgroup only
    /// the names that the site allows are believed.
    fn is_exempt(&self, comm: &str, in_its_cgroup: bool) -> bool {
        match in_its_cgroup {
            true => is_allowed(comm, self.allow),
            false => is_service(comm, self.allow),
        }
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

/// What a look that could be made showed, and when.
type Made<'a> = (Duration, &'a [Present]);

/// What the looks at one unit say together: the last one that could be made, and the first, by which it is known what
/// was there all the time. A look that failed saw nobody go.
pub fn judge(case: &Case, looks: &[Look]) -> Outcome {
    let made: Vec<Made> =
        looks.iter().filter_map(|look| Some((look.at, look.processes.measured()?.as_slice()))).collect();
    let blind = looks.last().map_or(Some(Absence::NotAsked), |look| look.processes.absence());
    let (Some((_, first)), Some((_, present))) = (made.first(), made.last()) else {
        return Outcome::CouldNotLook(Blind::Unread(blind.unwrap_or(Absence::NotAsked)));
    };
    let (mut leaks, mut left, mut unknown) = (Vec::new(), Vec::new(), None);
    for process in *present {
        match case.concern(process) {
            Concern::None => {}
            Concern::Unknown => unknown = Some(Blind::Unknown(process.pid)),
            Concern::Ours { .. } if !shows(first, process) => {
                unknown = unknown.or(Some(Blind::Late(process.pid)));
            }
            Concern::Ours { in_its_cgroup } => {
                let sure = blind.is_none() && is_lasting(case.verify, &made, process);
                let which = if sure { &mut leaks } else { &mut left };
                add(which, of(looks, process, in_its_cgroup));
            }
        }
    }
    match (blind, unknown, case.contradiction(present), looks.last()) {
        _ if !leaks.is_empty() => Outcome::Leak(leaks),
        _ if !left.is_empty() => Outcome::Unsettled(left),
        (Some(why), ..) => Outcome::CouldNotLook(Blind::Unread(why)),
        (None, Some(why), ..) => Outcome::CouldNotLook(why),
        (None, None, Some(job), _) => Outcome::CouldNotLook(Blind::Elsewhere(job)),
        (None, None, None, Some(last)) => by_memory(case, looks, last, present),
        (None, None, None, None) => Outcome::CouldNotLook(Blind::Unread(Absence::NotAsked)),
    }
}

/// What has no start time is known by its pid alone.
fn shows(present: &[Present], process: &Present) -> bool {
    present.iter().any(|p| p.pid == process.pid && p.start_ticks == process.start_ticks)
}

/// Whether every look that could be made shows it, enough of them over most of the time.
fn is_lasting(verify: Duration, made: &[Made], process: &Present) -> bool {
    let (Some((first, _)), Some((last, _))) = (made.first(), made.last()) else { return false };
    made.len() >= LOOKS_LEAST
        && (*last - *first) * 4 >= verify * 3
        && made.iter().all(|(_, present)| shows(present, process))
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
mod tests;

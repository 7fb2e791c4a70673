//! What is left on the units of a job that ended: looks at them, and at no other, until nothing can change any more or
//! the time is over. Gives a value and does nothing with it; no process is ever signalled.

use crate::model::{GpuClaim, JobId, JobRun, JobRunId, Who};
use crate::policy::attribution::ending::{EndedUnit, Name};
use crate::policy::leak::{self, Blind, Case, Found, Left, Look, Outcome};
use crate::reading::{Absence, Reading};
use crate::run::leaks::Leak;
use crate::units::UnitUuid;
use crate::units::quantity::duration_text;
use std::time::Duration;

/// The last look gets as much of the driver's time even where none is left.
const LOOK_LEAST: Duration = Duration::from_secs(1);
/// More processes than this are not named in one line.
const NAMED_MOST: usize = 8;

/// What the Epilog looks with: this machine, or a scenario.
pub trait Sight {
    /// The registered jobs, the ended one among them: whose SLUID is whose.
    fn know(&mut self, jobs: &[JobRun]);

    /// Whether a look would leave the driver as it is; else why not.
    fn may_look(&self) -> Result<(), String>;

    /// Since this sight was made.
    fn elapsed(&self) -> Duration;

    /// Lets time pass until then.
    fn wait_until(&mut self, at: Duration);

    /// Who is on these units, in their order; `deadline`: how long that may take.
    fn look(&mut self, units: &[&Name], deadline: Duration) -> Vec<Seen>;
}

/// One look at one unit.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Which unit answered.
    pub uuid: Reading<UnitUuid>,
    /// What it showed. Its instant is the verifier's to say.
    pub look: Look,
}

/// What the Epilog saw: to be told, kept, and acted on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The job.
    pub job: JobId,
    /// The ledger's row of its run, where it was registered.
    pub run: Option<JobRunId>,
    /// What came of it.
    pub looked: Looked,
}

/// What came of the looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Looked {
    /// It held no GPU here: there was nothing to look at.
    NoUnits,
    /// No look was made, and no trouble is known: why.
    NotChecked(String),
    /// It held GPUs, and nobody knows which: why.
    UnitsUnknown(String),
    /// Each of its units.
    Units(Vec<Checked>),
}

/// One unit of the job, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// What Slurm had given.
    pub claim: GpuClaim,
    /// Which unit that is; the UUID as the driver told it in the looks.
    pub name: Reading<Name>,
    /// What became of it.
    pub outcome: Outcome,
    /// How often it was looked at.
    pub looks: usize,
    /// Why the last look could not be made, where it could not.
    pub blind: Option<Absence>,
}

/// A unit under observation.
struct Watched {
    unit: EndedUnit,
    looks: Vec<Look>,
    outcome: Outcome,
}

impl Watched {
    fn new(unit: EndedUnit) -> Watched {
        let why = unit.name.absence().unwrap_or(Absence::NotAsked);
        Watched { unit, looks: Vec::new(), outcome: Outcome::CouldNotLook(Blind::Unread(why)) }
    }

    fn open(&self) -> Option<&Name> {
        self.unit.name.measured().filter(|_| self.outcome.may_change())
    }

    fn saw(&mut self, seen: Seen, at: Duration, case: &Case) {
        if let Reading::Measured(name) = &mut self.unit.name
            && seen.uuid.measured().is_some()
        {
            name.uuid = seen.uuid;
        }
        self.looks.push(Look { at, ..seen.look });
        self.outcome = leak::judge(&Case { shared: self.unit.shared, ..case.clone() }, &self.looks);
    }
}

/// Looks as often as it takes, and at most as long as is allowed. `shared` is each unit's own, and not the case's.
pub fn verify(case: &Case, units: Vec<EndedUnit>, sight: &mut dyn Sight) -> Vec<Checked> {
    let mut watched: Vec<Watched> = units.into_iter().map(Watched::new).collect();
    let (begin, mut took) = (sight.elapsed(), Duration::ZERO);
    let passed = |sight: &dyn Sight| sight.elapsed().saturating_sub(begin);
    for moment in leak::moments(case.verify) {
        let names: Vec<Name> = watched.iter().filter_map(Watched::open).cloned().collect();
        if names.is_empty() {
            break;
        }
        // A look took longer than the pause after it: the next one that is still to come.
        if !moment.is_zero() && moment < case.verify && moment <= passed(sight) {
            continue;
        }
        sight.wait_until(begin + moment);
        let at = passed(sight);
        let deadline = case.verify.saturating_sub(at).max(least(case.verify));
        // It would only end unfinished, and hide what the one before it saw.
        if took > deadline {
            break;
        }
        let mut seen = sight.look(&names.iter().collect::<Vec<_>>(), deadline).into_iter();
        for unit in watched.iter_mut().filter(|unit| unit.open().is_some()) {
            seen.next().into_iter().for_each(|seen| unit.saw(seen, at, case));
        }
        took = passed(sight).saturating_sub(at);
        // A driver that hung has had all the time there was.
        if at + took >= case.verify {
            break;
        }
    }
    let checked = |Watched { unit, looks, outcome }| Checked {
        claim: unit.claim,
        name: unit.name,
        outcome,
        looks: looks.len(),
        blind: looks.last().and_then(|look| look.processes.absence()),
    };
    watched.into_iter().map(checked).collect()
}

/// What the last look gets.
fn least(verify: Duration) -> Duration {
    if verify.is_zero() { LOOK_LEAST } else { LOOK_LEAST.min(verify) }
}

impl Verified {
    /// What has to be said aloud: a line for each unit, and one for all that could not be read for the same reason.
    /// Nothing where all is well.
    pub fn lines(&self, verify: Duration) -> Vec<String> {
        let job = self.job;
        match &self.looked {
            Looked::NoUnits | Looked::NotChecked(_) => Vec::new(),
            Looked::UnitsUnknown(why) => {
                vec![format!("job {job}: its GPUs could not be looked at: {why}; they may not be clean")]
            }
            Looked::Units(units) => {
                let mut lines: Vec<String> = units.iter().filter_map(|unit| unit.line(job, verify)).collect();
                lines.extend(unread_lines(job, units));
                lines
            }
        }
    }
}

impl Verified {
    /// What is to be kept: every process that outlived the job, and those that may have, for a later run to decide. What
    /// cannot be named by UUID and start time, or shows by its device file alone, is told and no more: no later run
    /// would find it again.
    pub fn leaks(&self) -> Vec<Leak> {
        let Looked::Units(units) = &self.looked else { return Vec::new() };
        units.iter().flat_map(|unit| unit.leaks(self.job)).collect()
    }
}

impl Checked {
    fn leaks(&self, job: JobId) -> Vec<Leak> {
        let (left, sure) = match &self.outcome {
            Outcome::Leak(left) => (left, true),
            Outcome::Unsettled(left) => (left, false),
            Outcome::Clean | Outcome::CouldNotLook(_) => return Vec::new(),
        };
        let uuid = self.name.measured().and_then(|name| name.uuid.measured());
        let of = |left: &Left| {
            Some(Leak {
                unit: uuid?.clone(),
                pid: left.pid,
                start_ticks: *left.start_ticks.measured()?,
                who: Who { uid: left.uid, comm: left.comm.clone() },
                words: format!("job {job} ended and left on {}: {}", self.label(), words(left)),
                sure,
            })
        };
        let listed = left.iter().filter(|left| left.found != Found::DeviceFile);
        listed.take(NAMED_MOST).filter_map(of).collect()
    }

    /// What it is called: `GPU 0 (GPU-8f...)`.
    pub fn label(&self) -> String {
        let name = match (&self.name, &self.claim) {
            (Reading::Measured(name), _) => name,
            (Reading::Absent(_), GpuClaim::Index(index)) => return format!("GPU of GRES index {index}"),
            (Reading::Absent(_), GpuClaim::Uuid(uuid)) => return format!("GPU {uuid}"),
        };
        let short = match (name.index, name.minor) {
            (Reading::Measured(index), _) => Some(format!("GPU {index}")),
            (_, Reading::Measured(minor)) => Some(format!("/dev/nvidia{minor}")),
            _ => None,
        };
        match (short, &name.uuid) {
            (Some(short), Reading::Measured(uuid)) => format!("{short} ({uuid})"),
            (Some(short), Reading::Absent(_)) => short,
            (None, Reading::Measured(uuid)) => format!("GPU {uuid}"),
            (None, Reading::Absent(_)) => "a GPU without a name".to_owned(),
        }
    }

    fn line(&self, job: JobId, verify: Duration) -> Option<String> {
        let (gpu, verify) = (self.label(), duration_text(verify));
        Some(match &self.outcome {
            Outcome::Clean | Outcome::CouldNotLook(Blind::Unread(_)) => return None,
            Outcome::Leak(left) => format!("job {job} ended and left on {gpu}: {}", all_words(left)),
            Outcome::CouldNotLook(why) => {
                format!("job {job}: {gpu} could not be looked at: {}; it may not be clean", why_words(why))
            }
            Outcome::Unsettled(left) if left.is_empty() => {
                format!("job {job}: {gpu} was still giving its memory back after {verify}")
            }
            Outcome::Unsettled(left) => match self.blind {
                None => format!("job {job}: {gpu} was still in use after {verify}: {}", all_words(left)),
                Some(why) => format!(
                    "job {job}: {gpu} was still in use when it was last seen: {}; the last look failed: {}",
                    all_words(left),
                    why.words()
                ),
            },
        })
    }
}

/// Where the driver is gone, it is gone for all of them.
fn unread_lines(job: JobId, units: &[Checked]) -> Vec<String> {
    let mut reasons: Vec<(Absence, Vec<String>)> = Vec::new();
    for unit in units {
        let Outcome::CouldNotLook(Blind::Unread(why)) = unit.outcome else { continue };
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, labels)) => labels.push(unit.label()),
            None => reasons.push((why, vec![unit.label()])),
        }
    }
    let line = |(why, labels): &(Absence, Vec<String>)| {
        let it = if labels.len() == 1 { "it" } else { "they" };
        let gpus = labels.join(", ");
        format!("job {job}: {gpus} could not be looked at: {}; {it} may not be clean", why.words())
    };
    reasons.iter().map(line).collect()
}

fn why_words(why: &Blind) -> String {
    match why {
        Blind::Unread(why) => why.words().to_owned(),
        Blind::MemoryWithoutProcess(bytes) => {
            format!("{} of its memory are held, and no process is listed for them", bytes.human())
        }
        Blind::Unknown(pid) => format!("whose process {pid} is, is not known"),
        Blind::Late(pid) => format!("process {pid} came on it after the first look"),
        Blind::Elsewhere(other) => {
            format!("a process of job {other} is on it, which is registered for other GPUs")
        }
    }
}

fn all_words(left: &[Left]) -> String {
    let mut words: Vec<String> = left.iter().take(NAMED_MOST).map(words).collect();
    if left.len() > NAMED_MOST {
        words.push(format!("and {} more", left.len() - NAMED_MOST));
    }
    words.join("; ")
}

/// Never a command line: it can hold secrets.
fn words(left: &Left) -> String {
    let uid = left.uid.measured().map_or("uid not readable".to_owned(), |uid| format!("uid {uid}"));
    let comm = left.comm.measured().map_or("?".to_owned(), |comm| comm.escape_debug().to_string());
    let holds = match (&left.memory, left.found) {
        (Reading::Measured(bytes), _) => bytes.human(),
        (Reading::Absent(_), Found::DeviceFile) => "its device file open".to_owned(),
        (Reading::Absent(_), Found::Listed(_)) => "memory not known".to_owned(),
    };
    format!("pid {} (`{comm}`, {uid}, {holds})", left.pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Memory, ProcessKind, Whose};
    use crate::policy::leak::Present;
    use crate::units::{BootMs, DeviceMinor, GresIndex, MemoryBytes, NvmlIndex};

    const SECOND: Duration = Duration::from_secs(1);
    const VERIFY: Duration = Duration::from_secs(10);

    fn unit(index: u32) -> EndedUnit {
        EndedUnit {
            claim: GpuClaim::Index(GresIndex(index)),
            name: Reading::Measured(Name {
                uuid: Reading::Measured(UnitUuid::new(&format!("GPU-{index}")).unwrap()),
                index: Reading::Measured(NvmlIndex(index)),
                minor: Reading::Absent(Absence::NotRecorded),
            }),
            shared: false,
        }
    }

    fn case(verify: Duration) -> Case<'static> {
        let began = Reading::Measured(BootMs(0));
        Case { job: JobId::new(7).unwrap(), began, shared: false, elsewhere: &[], verify, allow: &[] }
    }

    fn process(pid: u32) -> Present {
        Present {
            pid,
            found: Found::Listed(ProcessKind::Compute),
            start_ticks: Reading::Measured(60_000),
            started: Reading::Measured(BootMs(600_000)),
            whose: Reading::Measured(Whose::Outside),
            uid: Reading::Measured(1001),
            comm: Reading::Measured("a\u{1b}[2J`\n".to_owned()),
            memory: Reading::Measured(MemoryBytes(20 << 30)),
            own: false,
        }
    }

    /// Which GPUs a look was at, when, and how long it might take.
    type Looked = (Duration, Vec<String>, Duration);

    /// A sight by script: who is on GPU `n` at an instant. Each look takes `takes` of the time.
    struct Script<'a> {
        on: &'a dyn Fn(u32, Duration) -> Reading<Vec<Present>>,
        takes: Duration,
        now: Duration,
        looks: Vec<Looked>,
    }

    impl<'a> Script<'a> {
        fn new(on: &'a dyn Fn(u32, Duration) -> Reading<Vec<Present>>, takes: Duration) -> Script<'a> {
            // Something happened before the first look.
            Script { on, takes, now: SECOND * 3, looks: Vec::new() }
        }
    }

    impl Sight for Script<'_> {
        fn know(&mut self, _: &[JobRun]) {}

        fn may_look(&self) -> Result<(), String> {
            Ok(())
        }

        fn elapsed(&self) -> Duration {
            self.now
        }

        fn wait_until(&mut self, at: Duration) {
            self.now = self.now.max(at);
        }

        fn look(&mut self, units: &[&Name], deadline: Duration) -> Vec<Seen> {
            let at = self.now - SECOND * 3;
            let names = units.iter().map(|name| name.uuid.measured().unwrap().to_string()).collect();
            self.looks.push((at, names, deadline));
            self.now += self.takes.min(deadline);
            let seen = |name: &&Name| {
                let processes = match self.takes > deadline {
                    true => Reading::Absent(Absence::DeadlinePassed),
                    false => (self.on)(name.index.measured().unwrap().0, at),
                };
                let (used, total) = (MemoryBytes(0), MemoryBytes(80 << 30));
                let memory = Reading::Measured(Memory { used, total, excludes_reserved: true });
                Seen { uuid: name.uuid.clone(), look: Look { at: Duration::ZERO, memory, processes } }
            };
            units.iter().map(seen).collect()
        }
    }

    fn outcomes(checked: &[Checked]) -> Vec<(&'static str, usize)> {
        let word = |outcome: &Outcome| match outcome {
            Outcome::Clean => "clean",
            Outcome::Leak(_) => "leak",
            Outcome::CouldNotLook(_) => "blind",
            Outcome::Unsettled(_) => "open",
        };
        checked.iter().map(|unit| (word(&unit.outcome), unit.looks)).collect()
    }

    #[test]
    fn what_is_clean_is_not_looked_at_again_and_what_is_not_known_never() {
        // NVIDIA/deepops#1317 (PE-02): GPU 1 is given back after 2 s, GPU 2 never.
        let on = |gpu: u32, at: Duration| {
            let held = gpu == 2 || (gpu == 1 && at <= SECOND * 2);
            Reading::Measured(if held { vec![process(900 + gpu)] } else { vec![] })
        };
        let mut script = Script::new(&on, Duration::from_millis(20));
        let unmapped = EndedUnit { name: Reading::Absent(Absence::NotMapped), ..unit(3) };
        let units = vec![unit(0), unit(1), unit(2), unmapped];
        let checked = verify(&case(VERIFY), units, &mut script);
        assert_eq!(outcomes(&checked), [("clean", 1), ("clean", 5), ("leak", 7), ("blind", 0)]);
        let at: Vec<u128> = script.looks.iter().map(|(at, ..)| at.as_millis()).collect();
        assert_eq!(at, [0, 250, 750, 1_750, 3_750, 7_750, 10_000]);
        let names: Vec<String> = script.looks.iter().map(|(_, names, _)| names.join(" ")).collect();
        assert_eq!(names[..2], ["GPU-0 GPU-1 GPU-2", "GPU-1 GPU-2"]);
        assert_eq!(names[5..], ["GPU-2", "GPU-2"]);
        let deadlines: Vec<u128> = script.looks.iter().map(|(.., d)| d.as_millis()).collect();
        assert_eq!(deadlines, [10_000, 9_750, 9_250, 8_250, 6_250, 2_250, 1_000]);
        assert_eq!(checked[3].label(), "GPU of GRES index 3");
        let mut clean = Script::new(&on, Duration::from_millis(20));
        assert_eq!(outcomes(&verify(&case(VERIFY), vec![unit(0)], &mut clean)), [("clean", 1)]);
        assert_eq!(clean.now, SECOND * 3 + Duration::from_millis(20), "nothing is waited for");
    }

    #[test]
    fn a_slow_driver_and_one_that_hangs_cost_no_more_than_the_time_there_is() {
        let nobody = |_: u32, _: Duration| Reading::Measured(vec![]);
        let somebody = |_: u32, _: Duration| Reading::Measured(vec![process(900)]);
        // Each look takes two seconds: those that would have come meanwhile are left out.
        let mut slow = Script::new(&somebody, SECOND * 2);
        let checked = verify(&case(VERIFY), vec![unit(0)], &mut slow);
        let at: Vec<u64> = slow.looks.iter().map(|(at, ..)| at.as_millis() as u64).collect();
        assert_eq!(at, [0, 3_750, 7_750], "and none begins that could not end");
        assert_eq!(outcomes(&checked), [("leak", 3)]);
        for (verify_s, least) in [(10, 10), (1, 1), (0, 1)] {
            let mut hung = Script::new(&nobody, SECOND * 3_600);
            let checked = verify(&case(SECOND * verify_s), vec![unit(0), unit(1)], &mut hung);
            assert_eq!(outcomes(&checked), [("blind", 1); 2]);
            assert_eq!(hung.now, SECOND * 3 + SECOND * least, "{verify_s}");
        }
    }

    #[test]
    fn what_fails_for_all_is_said_once() {
        let checked = |n: u32, why| {
            let EndedUnit { claim, name, .. } = unit(n);
            Checked { claim, name, outcome: Outcome::CouldNotLook(Blind::Unread(why)), looks: 1, blind: None }
        };
        let (none, lost) = (Absence::DriverNotLoaded, Absence::GpuLost);
        let units = vec![checked(0, none), checked(1, lost), checked(2, none)];
        let looked = super::Looked::Units(units);
        let verified = Verified { job: JobId::new(7).unwrap(), run: None, looked };
        let want = [
            "job 7: GPU 0 (GPU-0), GPU 2 (GPU-2) could not be looked at: the NVIDIA driver is not loaded; they may not \
             be clean",
            "job 7: GPU 1 (GPU-1) could not be looked at: the GPU is lost; it may not be clean",
        ];
        assert_eq!(verified.lines(VERIFY), want);
    }

    #[test]
    fn what_shows_by_its_device_file_alone_is_told_and_not_kept() {
        let by_file = Present { found: Found::DeviceFile, ..process(901) };
        let on = |_: u32, _: Duration| Reading::Measured(vec![by_file.clone(), process(900)]);
        let checked = verify(&case(VERIFY), vec![unit(0)], &mut Script::new(&on, Duration::ZERO));
        let looked = super::Looked::Units(checked);
        let verified = Verified { job: JobId::new(7).unwrap(), run: None, looked };
        let told = verified.lines(VERIFY).join("\n");
        assert!(told.contains("pid 901 (") && told.contains("pid 900 ("), "{told}");
        let kept: Vec<(u32, bool)> = verified.leaks().iter().map(|leak| (leak.pid, leak.sure)).collect();
        assert_eq!(kept, [(900, true)]);
    }

    #[test]
    fn what_was_left_is_kept_as_unsure_where_the_last_look_fails() {
        let on = |_: u32, at: Duration| match at < VERIFY {
            true => Reading::Measured(vec![process(900)]),
            false => Reading::Absent(Absence::Transient),
        };
        let checked = verify(&case(VERIFY), vec![unit(0)], &mut Script::new(&on, Duration::ZERO));
        assert_eq!(outcomes(&checked), [("open", 7)]);
        let looked = super::Looked::Units(checked);
        let verified = Verified { job: JobId::new(7).unwrap(), run: None, looked };
        let told = verified.lines(VERIFY).join("\n");
        let end = "; the last look failed: the driver could not say this time";
        assert!(told.contains("when it was last seen: pid 900 (") && told.ends_with(end), "{told}");
        assert_eq!(verified.leaks().iter().map(|leak| leak.sure).collect::<Vec<_>>(), [false]);
    }

    #[test]
    fn every_line_names_the_gpu_and_no_user_text_reaches_a_terminal() {
        let line = |outcome: Outcome| {
            let EndedUnit { claim, mut name, .. } = unit(0);
            if let Reading::Measured(name) = &mut name {
                name.minor = Reading::Measured(DeviceMinor(4));
            }
            let units = vec![Checked { claim, name, outcome, looks: 1, blind: None }];
            let looked = super::Looked::Units(units);
            let verified = Verified { job: JobId::new(7).unwrap(), run: None, looked };
            verified.lines(VERIFY).join("\n")
        };
        let left = |pid: u32, found: Found| Left {
            pid,
            start_ticks: Reading::Measured(1),
            uid: Reading::Measured(1001),
            comm: process(1).comm,
            memory: Reading::Absent(Absence::NotListed),
            found,
            in_its_cgroup: false,
        };
        let listed = Found::Listed(ProcessKind::Compute);
        let many = Outcome::Leak((1..=10).map(|pid| left(pid, listed)).collect());
        let told = line(many);
        assert!(told.starts_with(
            "job 7 ended and left on GPU 0 (GPU-0): pid 1 (`a\\u{1b}[2J`\\n`, uid 1001, memory"
        ));
        assert!(told.ends_with("; and 2 more") && told.lines().count() == 1, "{told}");
        assert!(line(Outcome::Unsettled(vec![left(5, Found::DeviceFile)])).contains("its device file open"));
        assert_eq!(
            line(Outcome::Unsettled(vec![])),
            "job 7: GPU 0 (GPU-0) was still giving its memory back after 10s"
        );
        assert_eq!(line(Outcome::Clean), "");
        for blind in [
            Blind::Unread(Absence::Transient),
            Blind::MemoryWithoutProcess(MemoryBytes(1 << 30)),
            Blind::Unknown(777),
            Blind::Late(778),
            Blind::Elsewhere(JobId::new(8).unwrap()),
        ] {
            let told = line(Outcome::CouldNotLook(blind));
            assert!(told.starts_with("job 7: GPU 0 (GPU-0) could not be looked at: "), "{told}");
            assert!(told.ends_with("; it may not be clean"), "{told}");
        }
        let unknown = super::Looked::UnitsUnknown("no gres.conf".to_owned());
        let verified = Verified { job: JobId::new(7).unwrap(), run: None, looked: unknown };
        assert_eq!(verified.lines(VERIFY).len(), 1);
    }
}

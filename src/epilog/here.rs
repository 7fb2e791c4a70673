//! The Epilog's sight of this machine: the worker for the GPUs, /proc for whose their processes are. Reads only.

use super::verify::{Seen, Sight};
use crate::config::{Gpu, GpuSourceKind};
use crate::gpu::few::{self, Occupancy, Wanted};
use crate::gpu::worker::{self, Plan, SourcePlan};
use crate::host::{Holders, Proc};
use crate::model::{GpuProcess, JobRun};
use crate::place::Place;
use crate::policy::attribution::ending::Name;
use crate::policy::leak::{Found, Look, Present};
use crate::reading::{Absence, Reading};
use crate::run::owners::Owners;
use crate::units::{DeviceMinor, MemoryBytes};
use std::time::{Duration, Instant};

/// This machine.
pub struct Here {
    plan: Plan,
    may_look: bool,
    owners: Owners,
    proc: Proc,
    began: Instant,
}

impl Here {
    /// `source`: how the GPUs are asked; `persistenced`: whether the persistence daemon runs.
    pub fn new(place: &Place, gpu: &Gpu, source: SourcePlan, persistenced: bool) -> Here {
        // A lock of its own: a health run whose look it kept away would be blind.
        let plan =
            Plan { source, states: false, deadline: Duration::ZERO, lock: place.dir.join("epilog.lock") };
        let (owners, proc) = (Owners::new(place.node.clone()), Proc::default());
        let may_look = may_touch_driver(gpu, persistenced);
        Here { plan, may_look, owners, proc, began: Instant::now() }
    }

    fn present(&mut self, pid: u32, found: Found, memory: Reading<MemoryBytes>) -> Present {
        let (resident, facts) = self.owners.resident_with_facts(pid);
        Present {
            pid,
            found,
            start_ticks: resident.start_ticks,
            started: facts.as_ref().map(|facts| facts.started()),
            whose: resident.whose,
            uid: self.proc.real_uid(pid),
            comm: facts.map(|facts| facts.comm),
            memory,
            own: self.proc.is_this_program(pid),
        }
    }

    /// The driver's list, and who else has the unit's device file open and can compute on it.
    fn everybody(
        &mut self,
        listed: &Reading<Vec<GpuProcess>>,
        minor: Reading<DeviceMinor>,
        holders: &[(DeviceMinor, u32)],
    ) -> Reading<Vec<Present>> {
        let listed = match listed {
            Reading::Measured(listed) => listed,
            Reading::Absent(why) => return Reading::Absent(*why),
        };
        let mut all: Vec<Present> =
            listed.iter().map(|p| self.present(p.pid, Found::Listed(p.kind), p.memory)).collect();
        for (held, pid) in holders {
            if minor == Reading::Measured(*held) && !listed.iter().any(|p| p.pid == *pid) {
                all.push(self.present(*pid, Found::DeviceFile, Reading::Absent(Absence::NotListed)));
            }
        }
        Reading::Measured(all)
    }

    /// A health run's look, or another Epilog's, is short: it is waited for as long as there is time.
    fn occupancies(&self, wanted: &[Wanted], deadline: Duration) -> Result<Vec<Occupancy>, Absence> {
        let until = Instant::now() + deadline;
        let left = || until.saturating_duration_since(Instant::now());
        // What a health run's worker hangs in, a second one would hang in too.
        let lock_of_runs = self.plan.lock.with_file_name("probe.lock");
        worker::wait_for(&lock_of_runs, left())?;
        let plan = Plan { deadline: left(), ..self.plan.clone() };
        Ok(few::look(&plan, wanted, left()))
    }
}

/// Whether a look leaves the driver as it is. Without persistence the first client initialises each GPU, which takes
/// up to 30 s for eight (Azure/aks-gpu#105), at every job's end. A library that is named is meant to be asked.
fn may_touch_driver(gpu: &Gpu, persistenced: bool) -> bool {
    persistenced || (gpu.source == GpuSourceKind::Nvml && gpu.library.is_some())
}

impl Sight for Here {
    fn know(&mut self, jobs: &[JobRun]) {
        jobs.iter().for_each(|job| self.owners.know(&job.registration));
    }

    fn may_look(&self) -> Result<(), String> {
        match self.may_look {
            true => Ok(()),
            false => Err("without persistence mode the driver is not initialised for a look".to_owned()),
        }
    }

    fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    fn wait_until(&mut self, at: Duration) {
        std::thread::sleep(at.saturating_sub(self.began.elapsed()));
    }

    fn look(&mut self, units: &[&Name], deadline: Duration) -> Vec<Seen> {
        let wanted: Vec<Wanted> = units.iter().filter_map(|name| wanted(name)).collect();
        let looked = match wanted.len() == units.len() {
            true => self.occupancies(&wanted, deadline),
            false => Err(Absence::NotMapped),
        };
        let occupancies = match looked {
            Ok(occupancies) => occupancies,
            Err(why) => return units.iter().map(|_| absent(why)).collect(),
        };
        let minor = |name: &Name, seen: &Occupancy| match name.minor {
            Reading::Absent(_) => seen.minor,
            known => known,
        };
        let minors: Vec<DeviceMinor> = units
            .iter()
            .zip(&occupancies)
            .filter(|(_, seen)| seen.processes.measured().is_some())
            .filter_map(|(name, seen)| minor(name, seen).measured().copied())
            .collect();
        let holders = match minors.is_empty() {
            true => Reading::Measured(Vec::new()),
            false => Holders::new(self.proc.clone()).of(&minors, &[]),
        };
        // One witness beside the driver's own list: where it cannot say, that list stands alone.
        let holders = holders.measured().map_or(&[][..], Vec::as_slice);
        let mut all = Vec::new();
        for (name, seen) in units.iter().zip(&occupancies) {
            let processes = self.everybody(&seen.processes, minor(name, seen), holders);
            let look = Look { at: Duration::ZERO, memory: seen.memory, processes };
            all.push(Seen { uuid: seen.uuid.clone(), look });
        }
        all
    }
}

fn wanted(name: &Name) -> Option<Wanted> {
    match (&name.uuid, name.minor) {
        (Reading::Measured(uuid), _) => Some(Wanted::Uuid(uuid.clone())),
        (_, Reading::Measured(minor)) => Some(Wanted::Minor(minor)),
        _ => None,
    }
}

/// A look that could not be made.
pub fn absent(why: Absence) -> Seen {
    let look = Look { at: Duration::ZERO, memory: Reading::Absent(why), processes: Reading::Absent(why) };
    Seen { uuid: Reading::Absent(why), look }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::model::{Gpm, JobId, ProcessKind, Whose};
    use crate::slurm::cgroup::Roots;
    use crate::units::NodeName;
    use std::fs;
    use std::path::Path;

    /// This node with another folder as /proc.
    fn here(folder: &Path) -> Here {
        let place = Place::new(folder, NodeName::new("n1").unwrap());
        let proc = Proc::at(folder);
        let source = SourcePlan::Nvml { library: None, gpm: Gpm::Off };
        let owners = Owners::at(place.node.clone(), proc.clone(), Roots::under(folder));
        Here { owners, proc, ..Here::new(&place, &config::defaults().gpu, source, true) }
    }

    fn process(folder: &Path, pid: u32, cgroup: &str) {
        let of_it = folder.join(pid.to_string());
        fs::create_dir_all(&of_it).unwrap();
        let stat = format!("{pid} (py) S 1 1 1 0 -1 0 1 2 3 4 5 0 0 0 20 0 1 0 {} 1 2\n", pid * 100);
        fs::write(of_it.join("stat"), stat).unwrap();
        fs::write(of_it.join("status"), "Name:\tpy\nUid:\t1001\t0\t0\t0\n").unwrap();
        fs::write(of_it.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
    }

    #[test]
    fn a_process_is_known_by_pid_and_start_and_its_owner_by_its_cgroup() {
        let folder = tempfile::tempdir().unwrap();
        let scope = "/system.slice/n1_slurmstepd.scope";
        // NVIDIA/deepops#992 (PE-06), mej/nhc#15 (JL-09): the same user's other job, an interactive one.
        for (pid, job) in [(10, 7), (11, 8)] {
            process(folder.path(), pid, &format!("{scope}/job_{job}/step_interactive"));
        }
        process(folder.path(), 12, "/docker/879c");
        process(folder.path(), 13, &format!("{scope}/s5K1KKYAYG5D00/step_0"));
        let listed = |pid: u32| {
            let memory = Reading::Measured(MemoryBytes(5));
            GpuProcess { pid, kind: ProcessKind::Compute, memory }
        };
        // wookayin/gpustat#16 (CG-06): 77 is gone.
        let list = Reading::Measured([10, 11, 13, 77].map(listed).to_vec());
        let card = DeviceMinor(3);
        let holders = [(card, 11), (card, 12), (DeviceMinor(4), 13)];
        let everybody = here(folder.path()).everybody(&list, Reading::Measured(card), &holders);
        let everybody = everybody.measured().unwrap();
        let job = |id| Reading::Measured(Whose::Job(JobId::new(id).unwrap()));
        let gone = Reading::Absent(Absence::NotListed);
        let want = [
            (10, job(7), Reading::Measured(1_000)),
            (11, job(8), Reading::Measured(1_100)),
            (13, Reading::Measured(Whose::SomeJobs), Reading::Measured(1_300)),
            (77, Reading::Absent(Absence::NotListed), gone),
            (12, Reading::Measured(Whose::Outside), Reading::Measured(1_200)),
        ];
        assert_eq!(everybody.iter().map(|p| (p.pid, p.whose, p.start_ticks)).collect::<Vec<_>>(), want);
        assert_eq!(everybody[0].uid, Reading::Measured(1001));
        assert_eq!(everybody[0].comm, Reading::Measured("py".to_owned()));
        assert_eq!(everybody[4].found, Found::DeviceFile, "nobody lists it, and it holds the device file");
        assert_eq!(everybody[4].memory.measured(), None);
        let failed = here(folder.path()).everybody(
            &Reading::Absent(Absence::Transient),
            Reading::Measured(card),
            &holders,
        );
        assert_eq!(failed, Reading::Absent(Absence::Transient), "a list that failed is not made up for");
    }

    #[test]
    fn a_look_initialises_no_driver_that_nobody_keeps_initialised() {
        // Azure/aks-gpu#105, NVIDIA/nvidia-docker#628 (RT-06)
        let gpu = |yaml: &str| config::parse(&format!("gpu: {yaml}"), "c.yaml").unwrap().gpu;
        for (yaml, persistenced, may) in [
            ("{}", false, false),
            ("{}", true, true),
            ("{ library: /opt/libnvidia-ml.so.1 }", false, true),
            ("{ source: nvidia-smi }", false, false),
            ("{ source: nvidia-smi, library: /opt/libnvidia-ml.so.1 }", false, false),
            ("{ source: nvidia-smi }", true, true),
        ] {
            assert_eq!(may_touch_driver(&gpu(yaml), persistenced), may, "{yaml} {persistenced}");
        }
    }
}

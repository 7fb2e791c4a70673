//! The eyes that look at this machine: the worker for the GPUs, /proc and Slurm's cgroups for the jobs. The controller
//! is not asked for anything.

use super::eyes::{Eyes, Resident};
use super::owners::Owners;
use crate::gpu::bus::LinkWidth;
use crate::gpu::worker::{self, Pending, Plan};
use crate::gpu::{bus, driver};
use crate::host::kernel_log::{self, Heard};
use crate::host::{Holders, Proc};
use crate::model::{GpuReport, JobId, JobRun, JobSample, Now, Who};
use crate::reading::{Absence, Reading};
use crate::slurm::cgroup::{self, JobTag};
use crate::units::{DeviceMinor, NodeName, PciAddress};
use std::collections::BTreeMap;

/// This machine.
pub struct Machine {
    plan: Plan,
    pending: Option<Pending>,
    owners: Owners,
    holders: Holders,
}

impl Machine {
    /// Nothing is looked at yet.
    pub fn new(plan: Plan, node: NodeName) -> Machine {
        let holders = Holders::new(Proc::default());
        Machine { plan, pending: None, owners: Owners::new(node), holders }
    }

    /// What everything in the cgroups of these processes used: a container's loaders hold no GPU. `None` where one of
    /// them is not counted.
    fn containers_cpu_ms(&self, pids: &[u32]) -> Option<u64> {
        let mut containers = BTreeMap::new();
        for pid in pids {
            let lines = self.owners.proc.cgroup(*pid);
            let (folder, cpu_ms) = self.owners.roots.cpu_ms_beside(lines.measured()?)?;
            containers.insert(folder, cpu_ms);
        }
        (!containers.is_empty()).then(|| containers.values().sum())
    }

    /// Sums over the processes that are still there.
    fn sums(&self, pids: &[u32]) -> Sums {
        let none = Reading::Measured(0);
        let mut sums = Sums { seen: 0, stopped: 0, cpu_ms: none, written_bytes: none, read_bytes: none };
        for pid in pids {
            let Reading::Measured(facts) = self.owners.proc.facts(*pid) else { continue };
            if self.owners.began_later(facts.started()) {
                continue;
            }
            // slurmstepd goes on while its job is stopped; a zombie does nothing.
            let own = !facts.comm.starts_with("slurmstepd") && facts.state != 'Z';
            sums.seen += u32::from(own);
            sums.stopped += u32::from(own && matches!(facts.state, 'T' | 't'));
            sums.cpu_ms = sums.cpu_ms.map(|ms| ms + facts.cpu_ms);
            let io = self.owners.proc.io(*pid);
            sums.written_bytes = sums.written_bytes.and_then(|n| io.map(|io| n + io.write_bytes));
            sums.read_bytes = sums.read_bytes.and_then(|n| io.map(|io| n + io.read_bytes));
        }
        sums
    }
}

impl Eyes for Machine {
    fn start(&mut self, states: bool) {
        self.plan.states = states;
        self.pending = Some(worker::start(&self.plan));
        self.plan.states = false;
    }

    fn know(&mut self, now: &Now, jobs: &[JobRun]) {
        self.owners.moment = Some(now.boot);
        jobs.iter().for_each(|job| self.owners.know(&job.registration));
    }

    fn gpus(&mut self) -> Reading<GpuReport> {
        let pending = self.pending.take();
        pending.unwrap_or_else(|| worker::start(&self.plan)).finish()
    }

    fn jobs_here(&mut self) -> Reading<Vec<JobId>> {
        let tags =
            self.owners.folders().map(|folders| folders.iter().map(|f| f.tag.clone()).collect::<Vec<_>>());
        tags.map(|tags| {
            let job = |tag| match tag {
                JobTag::Job(id) => Some(id),
                JobTag::Sluid(sluid) => self.owners.job_of_sluid(&sluid),
                JobTag::Slurm | JobTag::NotSlurm => None,
            };
            tags.into_iter().filter_map(job).collect()
        })
    }

    fn resident(&mut self, pid: u32) -> Resident {
        self.owners.resident_with_facts(pid).0
    }

    fn job(&mut self, job: &JobRun, pids: &[u32]) -> JobSample {
        let folder = self.owners.folder_of(job);
        let listed = folder.as_ref().map(|f| cgroup::processes(&f.path));
        let (inside, whole) = match listed {
            Some(Reading::Measured(all)) => (all, true),
            _ => (pids.to_vec(), false),
        };
        let outside: Vec<u32> = pids.iter().copied().filter(|pid| !inside.contains(pid)).collect();
        let (mut own, mut weak) = (self.sums(&inside), self.sums(&outside));
        if let Some(counted) = self.containers_cpu_ms(&outside) {
            weak.cpu_ms = Reading::Measured(counted);
        }
        if own.seen == 0 && !whole {
            return JobSample::absent(Absence::NoData);
        }
        let (mut frozen, mut working_set_bytes) =
            (Reading::Absent(Absence::NoData), Reading::Absent(Absence::NoData));
        if let Some(folder) = &folder {
            // Processes that ended take their time with them; the kernel's own count keeps it.
            match self.owners.roots.cpu_ms(&folder.path) {
                Reading::Absent(Absence::NotSupported) => {}
                counted => own.cpu_ms = counted,
            }
            frozen = cgroup::frozen(&folder.path);
            working_set_bytes = self.owners.roots.working_set_bytes(&folder.path);
        }
        let both = |a: Reading<u64>, b: Reading<u64>| a.and_then(|a| b.map(|b| a + b));
        JobSample {
            frozen: frozen_or_stopped(frozen, &own),
            cpu_ms: both(own.cpu_ms, weak.cpu_ms),
            written_bytes: both(own.written_bytes, weak.written_bytes),
            read_bytes: both(own.read_bytes, weak.read_bytes),
            working_set_bytes,
            holders: Reading::Absent(Absence::NotAsked),
        }
    }

    fn holders(&mut self, minors: &[DeviceMinor], job: Option<&JobRun>) -> Reading<Vec<(DeviceMinor, u32)>> {
        let folder = job.and_then(|job| self.owners.folder_of(job));
        let processes = folder.map(|folder| cgroup::processes(&folder.path));
        let first = processes.as_ref().and_then(Reading::measured).map_or(&[][..], Vec::as_slice);
        self.holders.of(minors, first)
    }

    fn set_aside(&mut self) -> (Vec<PciAddress>, usize) {
        (driver::excluded(), bus::lent())
    }

    fn who(&mut self, pid: u32) -> Who {
        let proc = &self.owners.proc;
        Who { uid: proc.real_uid(pid), comm: proc.facts(pid).map(|facts| facts.comm) }
    }

    fn persistent(&mut self) -> bool {
        driver::persistenced()
    }

    fn unlisted(&mut self, listed: &[PciAddress]) -> Reading<Vec<PciAddress>> {
        bus::unlisted(listed)
    }

    fn link_width(&mut self, gpu: &PciAddress) -> Reading<LinkWidth> {
        bus::link_width(gpu)
    }

    fn kernel_log(&mut self, since: Option<u64>) -> Reading<Heard> {
        kernel_log::since(since)
    }
}

/// What processes did, summed.
struct Sums {
    /// Those that can be stopped: neither slurmstepd nor a zombie.
    seen: u32,
    /// In state T. State D alone says nothing.
    stopped: u32,
    cpu_ms: Reading<u64>,
    written_bytes: Reading<u64>,
    read_bytes: Reading<u64>,
}

/// By its cgroup, or because every process of it is stopped.
fn frozen_or_stopped(cgroup: Reading<bool>, own: &Sums) -> Reading<bool> {
    let stopped = own.seen > 0 && own.stopped == own.seen;
    match cgroup {
        Reading::Measured(frozen) => Reading::Measured(frozen || stopped),
        Reading::Absent(_) if own.seen > 0 => Reading::Measured(stopped),
        Reading::Absent(why) => Reading::Absent(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::worker::SourcePlan;
    use crate::model::{GpuClaim, JobRunId, JobStart, RegisteredBy, Registration, StartSource, Whose};
    use crate::slurm::cgroup::Roots;
    use crate::units::{BootMs, GresIndex, WallMs};
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    const SLUID: &str = "s63NM8KTNVBJ00";
    const OTHER: &str = "s5K1KKYAYG5D00";

    /// A host of files: /proc and /sys/fs/cgroup.
    struct Host(tempfile::TempDir);

    impl Host {
        fn new() -> Host {
            Host(tempfile::tempdir().unwrap())
        }

        fn file(&self, name: &str, text: &str) {
            let path = self.0.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// A process that began at so many seconds since boot and used so many of CPU.
        fn process(&self, pid: u32, cgroup: &str, began_s: u64, cpu_s: u64) {
            let (start, ticks) = (began_s * 100, cpu_s * 100);
            let stat = format!("{pid} (x) S 1 1 1 0 -1 0 1 2 3 4 {ticks} 0 0 0 20 0 1 0 {start} 1 2\n");
            self.file(&format!("proc/{pid}/stat"), &stat);
            self.file(&format!("proc/{pid}/cgroup"), &format!("0::{cgroup}\n"));
            self.file(&format!("proc/{pid}/io"), "read_bytes: 1\nwrite_bytes: 10\n");
        }

        fn steward(&self, pid: u32, program: &str, uid: u32, title: &str) {
            self.file(&format!("proc/{pid}/status"), &format!("Name:\tx\nUid:\t{uid}\t0\t0\t0\n"));
            self.file(&format!("proc/{pid}/cmdline"), &format!("{title}\0\0"));
            symlink(format!("/usr/sbin/{program}"), self.0.path().join(format!("proc/{pid}/exe"))).unwrap();
        }

        /// A file of a job's cgroup on this node.
        fn cgroup(&self, name: &str, text: &str) {
            let scope = "cg/system.slice/n1_slurmstepd.scope";
            self.file(&format!("{scope}/{name}"), text);
            // The kernel makes this one in every cgroup.
            for (end, _) in name.match_indices('/') {
                let procs = format!("{scope}/{}/cgroup.procs", &name[..end]);
                if !self.0.path().join(&procs).exists() {
                    self.file(&procs, "");
                }
            }
        }

        fn machine(&self) -> Machine {
            let source = SourcePlan::Nvml { library: None, gpm: crate::model::Gpm::Off };
            let plan = Plan {
                source,
                states: false,
                deadline: Duration::from_secs(1),
                lock: self.0.path().join("lock"),
            };
            let mut machine = Machine::new(plan, NodeName::new("n1").unwrap());
            machine.owners.proc = Proc::at(&self.0.path().join("proc"));
            machine.owners.roots = Roots::under(&self.0.path().join("cg"));
            machine.holders = Holders::new(machine.owners.proc.clone());
            machine.owners.moment = Some(BootMs(1_000_000));
            machine
        }
    }

    fn job(id: u64, sluid: Option<&str>) -> JobRun {
        let absent = || Reading::Absent(Absence::NotRecorded);
        let sluid = sluid.map_or(absent(), |s| Reading::Measured(s.to_owned()));
        JobRun {
            id: JobRunId(id as i64),
            registration: Registration {
                cluster: absent(),
                job: JobId::new(id).unwrap(),
                restart: 0,
                sluid,
                start: JobStart { boot: BootMs(0), wall: WallMs(0), source: StartSource::Slurm },
                user: absent(),
                uid: Reading::Absent(Absence::NotRecorded),
                account: absent(),
                partition: absent(),
                qos: absent(),
                nodes: Reading::Measured(1),
                node_list: absent(),
                het_leader: None,
                limit_end: Reading::Absent(Absence::NotRecorded),
                gpus: vec![GpuClaim::Index(GresIndex(0))],
                by: RegisteredBy::Prolog,
            },
            registered: BootMs(0),
            details: None,
            first_activity: None,
            last_activity: None,
        }
    }

    fn of(id: u64) -> Reading<Whose> {
        Reading::Measured(Whose::Job(JobId::new(id).unwrap()))
    }

    fn path(folder: &str) -> String {
        format!("/system.slice/n1_slurmstepd.scope/{folder}/step_0/user/task_0")
    }

    #[test]
    fn a_sluid_is_told_by_its_registration_else_by_its_slurmstepd() {
        // guilbaults/slurm-job-exporter#66 (CG-01): never a number, never `not Slurm`.
        let host = Host::new();
        host.process(10, &path(SLUID), 5, 0);
        host.process(11, &path(OTHER), 5, 0);
        host.cgroup(&format!("{SLUID}/step_0/slurm/cgroup.procs"), "20\n");
        host.cgroup(&format!("{OTHER}/step_0/slurm/cgroup.procs"), "21\n22\n23\n");
        host.steward(20, "slurmstepd", 0, "slurmstepd: [999.0]");
        // A user's process under slurmstepd's title, a hook of root's, and the real one, Debian's.
        host.steward(21, "slurmstepd", 1000, "slurmstepd: [666.0]");
        host.steward(22, "sh", 0, "slurmstepd: [667.0]");
        host.steward(23, "slurmstepd-wlm", 0, "slurmstepd: [3385.0]");
        let mut machine = host.machine();
        let now = Now { boot_id: "b".to_owned(), boot: BootMs(1_000_000), wall: WallMs(0) };
        machine.know(&now, &[job(77, Some(SLUID))]);
        assert_eq!(machine.resident(10).whose, of(77), "the registration's word comes first");
        assert_eq!(machine.resident(11).whose, of(3385));
        let mut here = machine.jobs_here().measured().unwrap().clone();
        here.sort_unstable();
        assert_eq!(here.iter().map(|id| id.get()).collect::<Vec<_>>(), [77, 3385], "found late too");
        // Discovery may register a job without its SLUID; a requeued job's other run is another folder.
        let counted = |machine: &mut Machine, job: &JobRun| machine.job(job, &[]).cpu_ms.measured().is_some();
        assert!(counted(&mut machine, &job(3385, None)));
        assert!(counted(&mut machine, &job(77, Some(SLUID))));
        assert!(!counted(&mut machine, &job(77, Some("s7ZZZZZZZZZZZ0"))));
    }

    #[test]
    fn a_sluid_that_nobody_names_is_slurms_and_no_jobs() {
        let host = Host::new();
        host.process(10, &path(SLUID), 5, 0);
        host.cgroup(&format!("{SLUID}/step_0/slurm/cgroup.procs"), "20\n21\n");
        host.steward(20, "slurmstepd", 0, "slurmstepd: [5.0]");
        host.steward(21, "slurmstepd", 0, "slurmstepd: [6.0]");
        let mut machine = host.machine();
        assert_eq!(machine.resident(10).whose, Reading::Measured(Whose::SomeJobs), "two jobs are none");
        assert_eq!(machine.jobs_here(), Reading::Measured(vec![]));
    }

    #[test]
    fn whose_a_process_is_comes_from_its_cgroup_alone() {
        let host = Host::new();
        let table = [
            ("/system.slice/n1_slurmstepd.scope/job_7/step_0", of(7)),
            ("/system.slice/slurmstepd.scope/job_7/step_0", of(7)),
            ("/system.slice/n2_slurmstepd.scope/job_7/step_0", Reading::Measured(Whose::SomeJobs)),
            ("/system.slice/slurmd.service", Reading::Measured(Whose::Slurms)),
            // NVIDIA/nvidia-docker#1227 (CG-04).
            ("/docker/879c", Reading::Measured(Whose::Outside)),
            ("/machine.slice/libpod-12.scope", Reading::Measured(Whose::Outside)),
        ];
        for (pid, (cgroup, want)) in (30..).zip(table) {
            host.process(pid, cgroup, 5, 0);
            assert_eq!(host.machine().resident(pid).whose, want, "{cgroup}");
        }
    }

    #[test]
    fn a_pid_that_is_another_process_by_now_has_no_job() {
        // Syllo/nvtop#70 (CG-07), wookayin/gpustat#16 (CG-06).
        let host = Host::new();
        host.process(40, "/system.slice/slurmstepd.scope/job_7", 1001, 50);
        host.process(41, "/system.slice/slurmstepd.scope/job_7", 1000, 3);
        let gone = Reading::Absent(Absence::NotListed);
        let mut machine = host.machine();
        let reused = Resident { start_ticks: Reading::Absent(Absence::NotListed), whose: gone };
        assert_eq!(machine.resident(40), reused, "it began after the driver was asked");
        assert_eq!(machine.resident(42), reused, "gone: kept without details");
        let there = Resident { start_ticks: Reading::Measured(100_000), whose: of(7) };
        assert_eq!(machine.resident(41), there);
        assert_eq!(machine.job(&job(7, None), &[40, 41]).cpu_ms, Reading::Measured(3_000));
        fs::remove_file(host.0.path().join("proc/41/cgroup")).unwrap();
        assert_eq!(machine.resident(41).whose, gone, "it ended between the two reads");
    }

    #[test]
    fn a_container_outside_the_jobs_cgroup_counts_for_the_job() {
        // NVIDIA/nvidia-docker#1227, nebius/soperator#563 (CG-04).
        let host = Host::new();
        host.cgroup("job_7/step_0/cgroup.procs", "50\n");
        host.process(50, "/system.slice/n1_slurmstepd.scope/job_7/step_0", 5, 2);
        host.process(51, "/docker/879c", 6, 100);
        let mut machine = host.machine();
        let sample = machine.job(&job(7, None), &[51]);
        assert_eq!(
            (sample.cpu_ms, sample.written_bytes),
            (Reading::Measured(102_000), Reading::Measured(20))
        );
        // The kernel's count of the cgroup keeps what ended; the container's comes on top.
        host.cgroup("job_7/cpu.stat", "usage_usec 9000000\n");
        host.cgroup("job_7/memory.current", "500\n");
        host.cgroup("job_7/memory.stat", "inactive_file 100\n");
        let sample = machine.job(&job(7, None), &[51]);
        assert_eq!(sample.cpu_ms, Reading::Measured(109_000));
        assert_eq!(sample.working_set_bytes, Reading::Measured(400));
        host.cgroup("job_7/cpu.stat", "nonsense\n");
        let sample = machine.job(&job(7, None), &[51]);
        assert_eq!(sample.cpu_ms, Reading::Absent(Absence::NotUnderstood), "two counts are never mixed");
    }

    #[test]
    fn the_loaders_of_a_container_outside_count_too() {
        // The process on the GPU waits for 30 loaders of its own container, which hold no GPU.
        let host = Host::new();
        host.cgroup("job_7/step_0/cgroup.procs", "50\n");
        host.process(50, "/system.slice/n1_slurmstepd.scope/job_7/step_0", 5, 2);
        host.process(51, "/docker/879c", 6, 1);
        host.file("cg/docker/879c/cpu.stat", "usage_usec 100000000000\n");
        let cpu_ms = host.machine().job(&job(7, None), &[51]).cpu_ms;
        assert_eq!(cpu_ms, Reading::Measured(100_002_000));
    }

    #[test]
    fn a_job_of_which_nothing_is_found_can_still_be_asked_about_at_its_device_files() {
        let sample = Host::new().machine().job(&job(7, None), &[]);
        assert_eq!(sample.cpu_ms, Reading::Absent(Absence::NoData));
        assert_eq!(sample.holders, Reading::Absent(Absence::NotAsked));
    }

    #[test]
    fn a_job_all_of_whose_own_processes_are_stopped_is_stopped() {
        let sums = |seen, stopped| Sums {
            seen,
            stopped,
            cpu_ms: Reading::Measured(0),
            written_bytes: Reading::Measured(0),
            read_bytes: Reading::Measured(0),
        };
        let (yes, no, unknown) =
            (Reading::Measured(true), Reading::Measured(false), Reading::Absent(Absence::NoData));
        let table = [
            (yes, 2, 0, yes),
            (no, 2, 2, yes),
            (no, 2, 1, no),
            (no, 0, 0, no),
            (unknown, 2, 2, yes),
            (unknown, 2, 1, no),
            (unknown, 0, 0, unknown),
        ];
        for (cgroup, seen, stopped, want) in table {
            assert_eq!(
                frozen_or_stopped(cgroup, &sums(seen, stopped)),
                want,
                "{cgroup:?} {stopped} of {seen}"
            );
        }
    }
}

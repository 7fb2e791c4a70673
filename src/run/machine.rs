//! The eyes that look at this machine: the worker for the GPUs, /proc and Slurm's cgroups for the jobs.

use super::eyes::{Eyes, Resident};
use crate::gpu::worker::{self, Pending, Plan};
use crate::host;
use crate::model::{GpuReport, JobId, JobRun, JobSample};
use crate::reading::{Absence, Reading};
use crate::slurm::cgroup::{self, JobFolder, JobTag, Roots};
use crate::units::NodeName;

/// This machine.
pub struct Machine {
    plan: Plan,
    pending: Option<Pending>,
    node: NodeName,
    folders: Option<Reading<Vec<JobFolder>>>,
}

impl Machine {
    /// Nothing is looked at yet.
    pub fn new(plan: Plan, node: NodeName) -> Machine {
        Machine { plan, pending: None, node, folders: None }
    }

    /// The job cgroups, listed once a run.
    fn folders(&mut self) -> &Reading<Vec<JobFolder>> {
        let node = &self.node;
        self.folders.get_or_insert_with(|| Roots::default().jobs(node.as_str()))
    }
}

impl Eyes for Machine {
    fn start(&mut self) {
        self.pending = Some(worker::start(&self.plan));
    }

    fn gpus(&mut self) -> Reading<GpuReport> {
        let pending = self.pending.take();
        pending.unwrap_or_else(|| worker::start(&self.plan)).finish()
    }

    fn jobs_here(&mut self) -> Reading<Vec<JobId>> {
        let job = |folder: &JobFolder| match folder.tag {
            JobTag::Job(id) => Some(id),
            // A SLUID names a job only through its registration; Slurm is not asked for it.
            JobTag::Sluid(_) | JobTag::Slurm | JobTag::NotSlurm => None,
        };
        self.folders().as_ref().map(|folders| folders.iter().filter_map(job).collect())
    }

    fn resident(&mut self, pid: u32) -> Resident {
        let ours = |place: &cgroup::Place| place.node.as_deref().is_none_or(|n| n == self.node.as_str());
        let job = host::process_cgroup(pid).map(|text| {
            let place = cgroup::place(&text);
            match place.tag {
                JobTag::Job(id) if ours(&place) => Some(id),
                _ => None,
            }
        });
        Resident { start_ticks: host::process(pid).map(|p| p.start_ticks), job }
    }

    fn job(&mut self, job: &JobRun, pids: &[u32]) -> JobSample {
        let folder = self.folder_of(job);
        let by_cgroup = folder.as_ref().map(|f| cgroup::processes(&f.path));
        let (pids, whole) = match by_cgroup {
            Some(Reading::Measured(all)) => (all, true),
            _ => (pids.to_vec(), false),
        };
        let mut sample = sums(&pids, whole);
        let stopped = sample.frozen;
        let frozen = folder.map_or(Reading::Absent(Absence::NoData), |f| cgroup::frozen(&f.path));
        sample.frozen = match (frozen, stopped) {
            (Reading::Measured(true), _) | (_, Reading::Measured(true)) => Reading::Measured(true),
            (Reading::Measured(false), _) => Reading::Measured(false),
            (Reading::Absent(_), stopped) => stopped,
        };
        sample
    }
}

impl Machine {
    fn folder_of(&mut self, job: &JobRun) -> Option<JobFolder> {
        let r = &job.registration;
        let is_its = |folder: &&JobFolder| match &folder.tag {
            JobTag::Job(id) => *id == r.job,
            JobTag::Sluid(sluid) => r.sluid.measured().is_some_and(|s| s.eq_ignore_ascii_case(sluid)),
            JobTag::Slurm | JobTag::NotSlurm => false,
        };
        self.folders().measured()?.iter().find(is_its).cloned()
    }
}

/// CPU time and bytes summed over the processes that are still there; stopped: every one of the job's own in state
/// T. State D alone says nothing.
fn sums(pids: &[u32], whole: bool) -> JobSample {
    let mut sum = JobSample {
        working_set_bytes: Reading::Absent(Absence::NotAsked),
        holders: Reading::Absent(Absence::NotAsked),
        frozen: Reading::Absent(Absence::NoData),
        cpu_ms: Reading::Measured(0),
        written_bytes: Reading::Measured(0),
        read_bytes: Reading::Measured(0),
    };
    let (mut seen, mut stopped) = (0, 0);
    for pid in pids {
        let Reading::Measured(facts) = host::process(*pid) else {
            continue;
        };
        // slurmstepd goes on while its job is stopped; a zombie does nothing.
        let own = !facts.comm.starts_with("slurmstepd") && facts.state != 'Z';
        seen += u32::from(own);
        stopped += u32::from(own && matches!(facts.state, 'T' | 't'));
        sum.cpu_ms = sum.cpu_ms.map(|ms| ms + facts.cpu_ms);
        let io = host::process_io(*pid);
        sum.written_bytes = sum.written_bytes.and_then(|n| io.map(|io| n + io.write_bytes));
        sum.read_bytes = sum.read_bytes.and_then(|n| io.map(|io| n + io.read_bytes));
    }
    if seen > 0 {
        sum.frozen = Reading::Measured(stopped == seen);
    }
    if seen == 0 && !whole {
        return JobSample::absent(Absence::NoData);
    }
    sum
}

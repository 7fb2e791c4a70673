//! Whose a process of this machine is: by its cgroup, never by its user. A SLUID is told by the registration that has
//! it, else by root's own slurmstepd in that cgroup. Reads only; sends no signal and asks no controller.

use super::eyes::Resident;
use crate::host::{Proc, ProcessFacts};
use crate::model::{JobId, JobRun, Registration, Whose};
use crate::reading::{Absence, Reading};
use crate::slurm::cgroup::{self, JobFolder, JobTag, Roots};
use crate::units::{BootMs, NodeName};
use std::collections::BTreeMap;
use std::path::Path;

/// slurmstepd's program files: Slurm's own name, and Debian's.
const STEWARDS: [&str; 2] = ["slurmstepd", "slurmstepd-wlm"];

/// The owners of this node's processes, as one command asks for them.
pub struct Owners {
    node: NodeName,
    pub(super) proc: Proc,
    pub(super) roots: Roots,
    /// The asker's own moment, where it matters: a process that began later was not there when the driver was asked.
    pub(super) moment: Option<BootMs>,
    folders: Option<Reading<Vec<JobFolder>>>,
    /// SLUIDs in capitals, with the job that registration or slurmstepd names.
    sluids: BTreeMap<String, Option<JobId>>,
}

impl Owners {
    /// Nothing is looked at yet.
    pub fn new(node: NodeName) -> Owners {
        Owners::at(node, Proc::default(), Roots::default())
    }

    /// The same of other folders than /proc and /sys/fs/cgroup.
    pub fn at(node: NodeName, proc: Proc, roots: Roots) -> Owners {
        Owners { node, proc, roots, moment: None, folders: None, sluids: BTreeMap::new() }
    }

    /// The SLUID of a registration: its word comes before any slurmstepd's.
    pub fn know(&mut self, registration: &Registration) {
        if let Reading::Measured(sluid) = &registration.sluid {
            self.sluids.insert(sluid.to_ascii_uppercase(), Some(registration.job));
        }
    }

    /// The job cgroups, listed once.
    pub fn folders(&mut self) -> Reading<&[JobFolder]> {
        let (roots, node) = (&self.roots, &self.node);
        let listed = self.folders.get_or_insert_with(|| roots.jobs(node.as_str()));
        listed.as_ref().map(Vec::as_slice)
    }

    /// The job of a SLUID: that of the registration that has it, else of the slurmstepd in its cgroup.
    pub fn job_of_sluid(&mut self, sluid: &str) -> Option<JobId> {
        let key = sluid.to_ascii_uppercase();
        if let Some(known) = self.sluids.get(&key) {
            return *known;
        }
        let is_its = |f: &&JobFolder| matches!(&f.tag, JobTag::Sluid(s) if s.eq_ignore_ascii_case(sluid));
        let folder = self.folders().measured().and_then(|folders| folders.iter().find(is_its).cloned());
        let job = folder.and_then(|folder| self.steward_names(&folder.path));
        self.sluids.insert(key, job);
        job
    }

    /// What the slurmstepd of a job's steps calls itself. Only root's slurmstepd is believed: any process may take
    /// its title, and what it starts (hooks under RunInJob, SPANK plugins) stands beside it.
    fn steward_names(&self, job: &Path) -> Option<JobId> {
        let is_steward = |pid: &u32| {
            let program = self.proc.program(*pid);
            program.measured().is_some_and(|name| STEWARDS.contains(&name.as_str()))
                && self.proc.real_uid(*pid) == Reading::Measured(0)
        };
        let named = |pid: u32| cgroup::job_of_title(self.proc.title(pid).measured()?);
        let mut jobs = cgroup::stewards(job).into_iter().filter(is_steward).filter_map(named);
        let first = jobs.next()?;
        jobs.all(|job| job == first).then_some(first)
    }

    fn whose(&mut self, cgroup: &str) -> Whose {
        let place = cgroup::place(cgroup);
        let ours = place.node.as_deref().is_none_or(|n| n == self.node.as_str());
        let job = match place.tag {
            JobTag::NotSlurm => return Whose::Outside,
            JobTag::Slurm => return Whose::Slurms,
            JobTag::Job(id) if ours => Some(id),
            JobTag::Sluid(sluid) if ours => self.job_of_sluid(&sluid),
            JobTag::Job(_) | JobTag::Sluid(_) => None,
        };
        job.map_or(Whose::SomeJobs, Whose::Job)
    }

    /// The cgroup of this very run: of a requeued job, the other run's may still be there.
    pub fn folder_of(&mut self, job: &JobRun) -> Option<JobFolder> {
        let r = &job.registration;
        let folders = self.folders().measured()?.to_vec();
        let sluid = r.sluid.measured();
        folders.into_iter().find(|folder| match (&folder.tag, sluid) {
            (JobTag::Job(id), _) => *id == r.job,
            (JobTag::Sluid(s), Some(own)) => s.eq_ignore_ascii_case(own),
            (JobTag::Sluid(s), None) => self.job_of_sluid(s) == Some(r.job),
            (JobTag::Slurm | JobTag::NotSlurm, _) => false,
        })
    }

    /// Whether something began after the asker's moment.
    pub fn began_later(&self, started: BootMs) -> bool {
        self.moment.is_some_and(|moment| started > moment)
    }

    /// A process that the driver lists, and what stat says of it.
    pub fn resident_with_facts(&mut self, pid: u32) -> (Resident, Reading<ProcessFacts>) {
        // In this order: a process that has the pid after its cgroup was read, and began before the moment, had it all
        // the time.
        let cgroup = self.proc.cgroup(pid);
        let facts = self.proc.facts(pid).and_then(|facts| match self.began_later(facts.started()) {
            true => Reading::Absent(Absence::NotListed),
            false => Reading::Measured(facts),
        });
        let start_ticks = facts.as_ref().map(|facts| facts.start_ticks);
        let whose = start_ticks.and_then(|_| cgroup.map(|text| self.whose(&text)));
        (Resident { start_ticks, whose }, facts)
    }
}

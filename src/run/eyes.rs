//! What a run sees: GPUs, and jobs by local evidence. One implementation looks at this machine, the other at a
//! scenario; the run cannot tell them apart.

use crate::gpu::bus::LinkWidth;
use crate::host::kernel_log::Heard;
use crate::model::{GpuReport, JobId, JobRun, JobSample, Now, Who, Whose};
use crate::reading::{Absence, Reading};
use crate::units::{DeviceMinor, PciAddress};

/// A process on a GPU, as this machine knows it. Of one that has gone, or whose pid another one has by now, nothing
/// is known; its entry stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Start time in clock ticks since boot: with the pid, its identity.
    pub start_ticks: Reading<u64>,
    /// Whose it is.
    pub whose: Reading<Whose>,
}

impl Resident {
    /// The job that its cgroup names.
    pub fn job(&self) -> Option<JobId> {
        match self.whose {
            Reading::Measured(Whose::Job(id)) => Some(id),
            Reading::Measured(Whose::SomeJobs | Whose::Slurms | Whose::Outside) | Reading::Absent(_) => None,
        }
    }
}

/// Everything a run can look at. Nothing here asks the controller.
pub trait Eyes {
    /// Starts the look at the GPUs; called once, before the ledger is opened. `states`: also at those that change
    /// rarely and cost calls of their own.
    fn start(&mut self, states: bool);

    /// What is known before anything is seen: the run's moment, and the registered jobs.
    fn know(&mut self, now: &Now, jobs: &[JobRun]);

    /// Ends that look; called again, it looks anew.
    fn gpus(&mut self) -> Reading<GpuReport>;

    /// Jobs that local evidence shows on this node: job cgroups.
    fn jobs_here(&mut self) -> Reading<Vec<JobId>>;

    /// A process that the driver lists.
    fn resident(&mut self, pid: u32) -> Resident;

    /// The job beside its GPUs. `pids`: the processes on them, also those that are outside of its cgroup.
    fn job(&mut self, job: &JobRun, pids: &[u32]) -> JobSample;

    /// Who holds the device files of these GPUs open and can compute on them, the driver's own list aside; a job's
    /// own processes are looked at first. Empty: nobody. Absent: it cannot be said, which is not nobody.
    fn holders(&mut self, minors: &[DeviceMinor], job: Option<&JobRun>) -> Reading<Vec<(DeviceMinor, u32)>>;

    /// GPUs on the PCI bus that are not in the driver's list. Not supported where the GPUs are imagined.
    fn unlisted(&mut self, _listed: &[PciAddress]) -> Reading<Vec<PciAddress>> {
        Reading::Absent(Absence::NotSupported)
    }

    /// GPUs that are not for this node's jobs by somebody's will: those that the driver was told to leave out, and how many
    /// are lent to virtual machines.
    fn set_aside(&mut self) -> (Vec<PciAddress>, usize) {
        (Vec::new(), 0)
    }

    /// Who a process is.
    fn who(&mut self, _pid: u32) -> Who {
        Who { uid: Reading::Absent(Absence::NotSupported), comm: Reading::Absent(Absence::NotSupported) }
    }

    /// Whether the GPUs stay initialised between two looks, as far as it can be told without asking the driver.
    fn persistent(&mut self) -> bool {
        true
    }

    /// How wide a GPU's link to the bus is. Not supported where the GPUs are imagined.
    fn link_width(&mut self, _gpu: &PciAddress) -> Reading<LinkWidth> {
        Reading::Absent(Absence::NotSupported)
    }

    /// What the driver wrote to the kernel's log about its GPUs, from a record on; `None`: all that is there. Not
    /// supported where those are imagined.
    fn kernel_log(&mut self, _since: Option<u64>) -> Reading<Heard> {
        Reading::Absent(Absence::NotSupported)
    }
}

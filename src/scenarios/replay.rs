//! A scenario as the GPUs of a real run (`gpu.source: simulator`): the story stands at its end for ever, on this
//! machine's own clock. To try a set-up without a GPU; the jobs are those that Slurm's hooks register.

use super::afterwards::Afterwards;
use super::file::Scenario;
use crate::gpu::GpuSource;
use crate::gpu::bus::LinkWidth;
use crate::gpu::simulated::{Simulated, Timeline};
use crate::host::kernel_log::Heard;
use crate::model::{GpuReport, JobId, JobRun, JobSample, Now, Who};
use crate::reading::{Absence, Reading};
use crate::run::eyes::{Eyes, Resident};
use crate::units::{BootMs, DeviceMinor, PciAddress};
use std::path::Path;

/// The end of a story.
pub struct Replay {
    scenario: Scenario,
    timeline: Timeline,
    /// The end of the story on this machine's clock, once a run has begun.
    end: BootMs,
}

impl Replay {
    /// Reads `gpu.scenario`.
    pub fn open(path: Option<&Path>) -> Result<Replay, String> {
        let path =
            path.ok_or("`gpu.source` is simulator, and `gpu.scenario` names no file; nothing was judged")?;
        let text = std::fs::read_to_string(path)
            .map_err(|e| format!("scenario `{}`: {e}; nothing was judged", path.display()))?;
        let bad = |e| format!("scenario `{}`: {e}; nothing was judged", path.display());
        let scenario = Scenario::parse(&text).map_err(bad)?;
        let timeline = scenario.timeline().map_err(bad)?;
        Ok(Replay { scenario, timeline, end: BootMs(0) })
    }

    /// The same for an Epilog.
    pub fn afterwards(self) -> Afterwards {
        Afterwards::new(self.timeline, 0)
    }
}

impl Eyes for Replay {
    fn start(&mut self, _states: bool) {}

    fn know(&mut self, now: &Now, _jobs: &[JobRun]) {
        self.end = now.boot;
    }

    fn gpus(&mut self) -> Reading<GpuReport> {
        self.scenario.with_processes(Simulated { timeline: &self.timeline, at_ms: 0 }.read(), 0)
    }

    fn jobs_here(&mut self) -> Reading<Vec<JobId>> {
        Reading::Absent(Absence::NotSupported)
    }

    fn resident(&mut self, pid: u32) -> Resident {
        let whose =
            self.scenario.whose(pid).map_or(Reading::Absent(Absence::NotSupported), Reading::Measured);
        Resident { start_ticks: Reading::Absent(Absence::NotSupported), whose }
    }

    fn job(&mut self, _job: &JobRun, _pids: &[u32]) -> JobSample {
        JobSample { frozen: Reading::Measured(false), ..JobSample::absent(Absence::NotSupported) }
    }

    fn holders(&mut self, _: &[DeviceMinor], _: Option<&JobRun>) -> Reading<Vec<(DeviceMinor, u32)>> {
        Reading::Measured(Vec::new())
    }

    fn unlisted(&mut self, listed: &[PciAddress]) -> Reading<Vec<PciAddress>> {
        self.scenario.unlisted(listed)
    }

    fn who(&mut self, pid: u32) -> Who {
        self.scenario.who(pid)
    }

    fn persistent(&mut self) -> bool {
        self.scenario.node.persistent
    }

    fn link_width(&mut self, gpu: &PciAddress) -> Reading<LinkWidth> {
        Simulated { timeline: &self.timeline, at_ms: 0 }.link_width(gpu)
    }

    fn kernel_log(&mut self, since: Option<u64>) -> Reading<Heard> {
        self.scenario.kernel_log(0, since, |at_ms| BootMs(self.end.0 + at_ms))
    }
}

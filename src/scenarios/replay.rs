//! A scenario as the GPUs of a real run (`gpu.source: simulator`): the story stands at its end for ever, on this
//! machine's own clock. To try a set-up without a GPU; the jobs are those that Slurm's hooks register.

use super::file::Scenario;
use crate::gpu::GpuSource;
use crate::gpu::simulated::{Simulated, Timeline};
use crate::model::{GpuReport, JobId, JobRun, JobSample, Now};
use crate::reading::{Absence, Reading};
use crate::run::eyes::{Eyes, Resident};
use crate::units::DeviceMinor;
use std::path::Path;

/// The end of a story.
pub struct Replay {
    timeline: Timeline,
}

impl Replay {
    /// Reads `gpu.scenario`.
    pub fn open(path: Option<&Path>) -> Result<Replay, String> {
        let path =
            path.ok_or("`gpu.source` is simulator, and `gpu.scenario` names no file; nothing was judged")?;
        let text = std::fs::read_to_string(path)
            .map_err(|e| format!("scenario `{}`: {e}; nothing was judged", path.display()))?;
        let timeline = Scenario::parse(&text)
            .and_then(|s| s.timeline())
            .map_err(|e| format!("scenario `{}`: {e}; nothing was judged", path.display()))?;
        Ok(Replay { timeline })
    }
}

impl Eyes for Replay {
    fn start(&mut self) {}

    fn know(&mut self, _now: &Now, _jobs: &[JobRun]) {}

    fn gpus(&mut self) -> Reading<GpuReport> {
        Simulated { timeline: &self.timeline, at_ms: 0 }.read()
    }

    fn jobs_here(&mut self) -> Reading<Vec<JobId>> {
        Reading::Absent(Absence::NotSupported)
    }

    fn resident(&mut self, _pid: u32) -> Resident {
        Resident {
            start_ticks: Reading::Absent(Absence::NotSupported),
            whose: Reading::Absent(Absence::NotSupported),
        }
    }

    fn job(&mut self, _job: &JobRun, _pids: &[u32]) -> JobSample {
        JobSample { frozen: Reading::Measured(false), ..JobSample::absent(Absence::NotSupported) }
    }

    fn holders(&mut self, _: &[DeviceMinor], _: Option<&JobRun>) -> Reading<Vec<(DeviceMinor, u32)>> {
        Reading::Measured(Vec::new())
    }
}

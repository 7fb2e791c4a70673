//! An Epilog's sight of a scenario: time passes in the story alone, and stands still at its end. Whatever process the
//! story shows on a GPU then is one of no job's cgroup, begun after every job.

use crate::epilog::here::absent;
use crate::epilog::verify::{Seen, Sight};
use crate::gpu::GpuSource;
use crate::gpu::simulated::{Simulated, Timeline};
use crate::model::{GpuProcess, JobRun, UnitSample, Whose};
use crate::policy::attribution::ending::Name;
use crate::policy::leak::{Found, Look, Present};
use crate::reading::{Absence, Reading};
use crate::units::BootMs;
use std::time::Duration;

/// The story from an instant on.
pub struct Afterwards {
    timeline: Timeline,
    from_ms: i64,
    passed: Duration,
}

impl Afterwards {
    /// From this instant, on the story's clock, whose end is 0.
    pub fn new(timeline: Timeline, from_ms: i64) -> Afterwards {
        Afterwards { timeline, from_ms, passed: Duration::ZERO }
    }
}

impl Sight for Afterwards {
    fn know(&mut self, _jobs: &[JobRun]) {}

    fn may_look(&self) -> Result<(), String> {
        Ok(())
    }

    fn elapsed(&self) -> Duration {
        self.passed
    }

    fn wait_until(&mut self, at: Duration) {
        self.passed = self.passed.max(at);
    }

    fn look(&mut self, units: &[&Name], _deadline: Duration) -> Vec<Seen> {
        let at_ms = (self.from_ms + self.passed.as_millis() as i64).min(0);
        let report = match (Simulated { timeline: &self.timeline, at_ms }).read() {
            Reading::Measured(report) => report,
            Reading::Absent(why) => return units.iter().map(|_| absent(why)).collect(),
        };
        let is = |name: &Name, unit: &UnitSample| match &name.uuid {
            Reading::Measured(_) => unit.identity.uuid == name.uuid,
            Reading::Absent(_) => name.minor.measured().is_some() && unit.identity.minor == name.minor,
        };
        let found = |name: &&Name| match report.units.iter().find(|unit| is(name, unit)) {
            Some(unit) => seen(unit),
            None => absent(Absence::NotListed),
        };
        units.iter().map(found).collect()
    }
}

fn seen(unit: &UnitSample) -> Seen {
    let processes = unit.readings.processes.as_ref().map(|list| list.iter().map(present).collect());
    let look = Look { at: Duration::ZERO, memory: unit.readings.memory, processes };
    Seen { uuid: unit.identity.uuid.clone(), look }
}

fn present(process: &GpuProcess) -> Present {
    Present {
        pid: process.pid,
        found: Found::Listed(process.kind),
        start_ticks: Reading::Measured(1),
        started: Reading::Measured(BootMs(i64::MAX)),
        whose: Reading::Measured(Whose::Outside),
        uid: Reading::Absent(Absence::NotSupported),
        comm: Reading::Measured("scenario".to_owned()),
        memory: process.memory,
        own: false,
    }
}

//! A look at a few units, and at no more of them than tells who is on them: memory and processes. Other GPUs are left
//! alone, so that whatever their jobs do costs nothing here and is no evidence.

use super::worker::{self, Plan, SourcePlan};
use crate::model::{GpuProcess, GpuReport, Memory, UnitKind, UnitSample};
use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use crate::units::{DeviceMinor, UnitUuid};
use std::time::Duration;

/// A unit to be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A GPU or an instance.
    Uuid(UnitUuid),
    /// A GPU of which nothing but its device file is known.
    Minor(DeviceMinor),
}

/// Who is on a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// Which unit answered.
    pub uuid: Reading<UnitUuid>,
    /// Its own device file, where it was looked for: an instance has none.
    pub minor: Reading<DeviceMinor>,
    /// Memory held and present.
    pub memory: Reading<Memory>,
    /// Its processes, of all lists.
    pub processes: Reading<Vec<GpuProcess>>,
}

impl Occupancy {
    fn absent(why: Absence) -> Occupancy {
        Occupancy { uuid: Absent(why), minor: Absent(why), memory: Absent(why), processes: Absent(why) }
    }
}

/// Looks at these units, through a worker as `plan` says, and answers in their order. `patience`: how long a worker of
/// somebody else's, of the same lock, may take to be gone. nvidia-smi can only be asked for everything.
pub fn look(plan: &Plan, wanted: &[Wanted], patience: Duration) -> Vec<Occupancy> {
    let source = match &plan.source {
        SourcePlan::Nvml { library, .. } | SourcePlan::Few { library, .. } => {
            SourcePlan::Few { library: library.clone(), units: wanted.to_vec() }
        }
        SourcePlan::NvidiaSmi { program } => SourcePlan::NvidiaSmi { program: program.clone() },
    };
    let by_place = matches!(source, SourcePlan::Few { .. });
    match worker::start_patiently(&Plan { source, ..plan.clone() }, patience).finish() {
        Absent(why) => wanted.iter().map(|_| Occupancy::absent(why)).collect(),
        Measured(report) => {
            let found = |(place, unit)| match by_place {
                true => report.units.iter().find(|u| u.identity.index.0 as usize == place),
                false => named(&report, unit),
            };
            wanted.iter().enumerate().map(|one| occupancy(found(one))).collect()
        }
    }
}

fn named<'a>(report: &'a GpuReport, wanted: &Wanted) -> Option<&'a UnitSample> {
    let is_it = |unit: &&UnitSample| match wanted {
        Wanted::Uuid(uuid) => unit.identity.uuid.measured() == Some(uuid),
        Wanted::Minor(minor) => unit.identity.minor.measured() == Some(minor),
    };
    report.units.iter().find(is_it)
}

fn occupancy(unit: Option<&UnitSample>) -> Occupancy {
    match unit {
        None => Occupancy::absent(Absence::NotListed),
        Some(UnitSample { identity, readings }) => Occupancy {
            uuid: identity.uuid.clone(),
            minor: match identity.kind {
                UnitKind::Mig { .. } => Absent(Absence::NotSupported),
                _ => identity.minor,
            },
            memory: readings.memory,
            processes: readings.processes.clone(),
        },
    }
}

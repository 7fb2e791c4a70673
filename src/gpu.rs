//! The GPUs of this node: the sources that read them, the worker that keeps a hanging driver away from the
//! run, and the signs of a driver. Nothing here judges, remembers or changes a setting of any GPU.

pub mod bus;
pub mod driver;
pub mod few;
pub mod nvidia_smi;
pub mod nvml;
mod processes;
pub mod simulated;
pub mod wire;
pub mod worker;

use crate::model::{GpuReport, Readings, UnitIdentity, UnitKind, UnitSample};
use crate::reading::Absence;
use crate::reading::Reading::{self, Absent};
use crate::units::NvmlIndex;

/// One look at all GPUs of this node.
pub trait GpuSource {
    /// Absent as a whole only where no GPU could be looked at; one lost card leaves the others measured. It
    /// may hang as long as the driver does, which is why the run asks through [`worker`].
    fn read(&mut self) -> Reading<GpuReport>;
}

/// A GPU of which nothing is known but its place in the driver's list.
fn unread(index: NvmlIndex, why: Absence) -> UnitSample {
    UnitSample {
        identity: UnitIdentity {
            uuid: Absent(why),
            kind: UnitKind::Gpu,
            index,
            minor: Absent(why),
            pci: Absent(why),
            name: Absent(why),
        },
        readings: Readings::absent(why),
    }
}

//! The GPUs of this node: the sources that read them, the worker that keeps a hanging driver away from the
//! run, and the signs of a driver. Nothing here judges, remembers or changes a setting of any GPU.

pub mod driver;
pub mod nvidia_smi;
pub mod nvml;
pub mod simulated;
pub mod wire;
pub mod worker;

use crate::model::{GpuProcess, GpuReport, Memory, Readings, UnitIdentity, UnitKind, UnitSample};
use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
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

/// Linux never gives out a higher pid (PID_MAX_LIMIT, proc(5) `pid_max`).
const PID_MOST: u32 = 1 << 22;

/// A process list that can be; one entry that cannot spoils it all, since a list read in the wrong layout
/// also lacks processes (gpuopenanalytics/pynvml#48).
fn vetted(list: Vec<GpuProcess>, memory: &Reading<Memory>) -> Reading<Vec<GpuProcess>> {
    let total = memory.measured().map(|m| m.total);
    Measured(list).plausible(|list| {
        list.iter().all(|p| {
            let fits = match (p.memory.measured(), total) {
                (Some(held), Some(total)) => *held <= total,
                _ => true,
            };
            p.pid != 0 && p.pid <= PID_MOST && fits
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ProcessKind;
    use crate::units::MemoryBytes;

    #[test]
    fn one_impossible_entry_spoils_the_whole_process_list() {
        // gpuopenanalytics/pynvml#48, XuehaiPan/nvitop#88 (NR-05): pid 4294967295, memory above the device's.
        let process =
            |pid, held| GpuProcess { pid, kind: ProcessKind::Compute, memory: Measured(MemoryBytes(held)) };
        let memory =
            Measured(Memory { used: MemoryBytes(1), total: MemoryBytes(100), excludes_reserved: true });
        let table = [
            (vec![], memory, true),
            (vec![process(1, 0), process(4_194_304, 100)], memory, true),
            (vec![process(7, 10), process(0, 10)], memory, false),
            (vec![process(7, 10), process(u32::MAX, 10)], memory, false),
            (vec![process(4_194_305, 10)], memory, false),
            (vec![process(7, 101)], memory, false),
            (vec![process(7, 101)], Absent(Absence::NotSupported), true),
        ];
        for (list, memory, good) in table {
            let want = if good { Measured(list.clone()) } else { Absent(Absence::Implausible) };
            assert_eq!(vetted(list, &memory), want);
        }
    }
}

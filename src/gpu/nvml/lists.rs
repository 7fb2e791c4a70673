//! NVML's three process lists. A list that was, or may have been, read in the wrong layout is absent: never
//! shorter, never empty.

use super::codes::{Answer, value};
use crate::gpu::processes::{is_there, vetted};
use crate::model::{GpuProcess, Memory, ProcessKind};
use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use crate::units::MemoryBytes;
use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::{Device, Nvml as Library};
use std::ffi::c_uint;

/// nvmlProcessInfo_t, the 24 bytes of *_v2 and *_v3.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    pid: c_uint,
    used_bytes: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

const BLANK: Entry = Entry { pid: 0, used_bytes: 0, gpu_instance: 0, compute_instance: 0 };
const ROOM_FIRST: usize = 32;
const ROOM_MOST: usize = 4096;
/// NVML_VALUE_NOT_AVAILABLE, which it writes for a memory that it does not know.
const NOT_AVAILABLE: u64 = u64::MAX;
/// The instance ids of a process on a GPU without instances (nvml.h).
const NO_INSTANCE: c_uint = c_uint::MAX;
/// More instances than any card can hold.
const INSTANCES_MOST: c_uint = 256;

/// All processes on one unit, of all lists that it can have.
pub(super) fn processes(
    library: &Library,
    device: &Device,
    memory: &Reading<Memory>,
) -> Reading<Vec<GpuProcess>> {
    let lib = library.lib();
    // Drivers 535.43 to 535.86 write 32 bytes an entry under the name of the 24-byte layout
    // (gpuopenanalytics/pynvml#48, XuehaiPan/nvitop#88); this pair of symbols tells them from all others.
    if lib.nvmlDeviceGetConfComputeMemSizeInfo.is_ok() && lib.nvmlDeviceGetRunningProcessDetailList.is_err() {
        return Absent(Absence::Implausible);
    }
    // SAFETY: the handle is NVML's own, used only while the library is loaded.
    let handle = unsafe { device.handle() };
    // Drivers before 510 know only the *_v2 names, with the same layout, which the bindings do not look up.
    macro_rules! list {
        ($newer:ident, $older:literal) => {
            value(|| match &lib.$newer {
                Ok(call) => entries(*call, handle),
                // SAFETY: nvml.h gives the *_v2 functions this signature.
                Err(_) => match unsafe {
                    lib.__library.get::<unsafe extern "C" fn(_, *mut c_uint, *mut Entry) -> c_uint>($older)
                } {
                    Ok(call) => entries(*call, handle),
                    Err(_) => Err(NvmlError::FunctionNotFound),
                },
            })
        };
    }
    let compute =
        list!(nvmlDeviceGetComputeRunningProcesses_v3, b"nvmlDeviceGetComputeRunningProcesses_v2\0");
    let graphics =
        list!(nvmlDeviceGetGraphicsRunningProcesses_v3, b"nvmlDeviceGetGraphicsRunningProcesses_v2\0");
    let mps =
        list!(nvmlDeviceGetMPSComputeRunningProcesses_v3, b"nvmlDeviceGetMPSComputeRunningProcesses_v2\0");
    joined(compute, graphics, mps).and_then(|all| vetted(all, memory, is_there))
}

/// Asks for one list, with more room where it did not fit.
fn entries<D: Copy, P>(
    call: unsafe extern "C" fn(D, *mut c_uint, *mut P) -> c_uint,
    handle: D,
) -> Answer<Vec<Entry>> {
    let mut room = ROOM_FIRST;
    while room <= ROOM_MOST {
        // Twice the room that is announced: a driver with a wider entry than it should have must not write
        // past it.
        let mut entries = vec![BLANK; room * 2];
        let mut count = room as c_uint;
        // SAFETY: `Entry` has the layout of nvmlProcessInfo_t, and no more than `count` of them are written.
        match nvml_try(unsafe { call(handle, &mut count, entries.as_mut_ptr().cast()) }) {
            Err(NvmlError::InsufficientSize(_)) => room = (count as usize + ROOM_FIRST).max(room * 2),
            Err(e) => return Err(e),
            Ok(()) if count as usize > room => return Err(NvmlError::InsufficientSize(None)),
            Ok(()) => {
                entries.truncate(count as usize);
                return Ok(entries);
            }
        }
    }
    Err(NvmlError::InsufficientSize(None))
}

/// The lists as one. Without the compute list there is none; a card that says of graphics or MPS that it does
/// not support them (MPS: Volta and newer) has no such processes.
fn joined(
    compute: Reading<Vec<Entry>>,
    graphics: Reading<Vec<Entry>>,
    mps: Reading<Vec<Entry>>,
) -> Reading<Vec<GpuProcess>> {
    let mut all = Vec::new();
    let lists = [(ProcessKind::Compute, compute), (ProcessKind::Graphics, graphics), (ProcessKind::Mps, mps)];
    for (kind, list) in lists {
        match list.plausible(|entries| entries.iter().all(names_instances)) {
            Measured(entries) => all.extend(entries.iter().map(|e| process(kind, e))),
            Absent(Absence::NotSupported) if kind != ProcessKind::Compute => {}
            Absent(why) => return Absent(why),
        }
    }
    Measured(all)
}

/// Whether its instance ids can be such: all ones for none, else small. In a layout of 16 bytes an entry, which one
/// vendor's build has (XuehaiPan/nvitop#226), the next entry's pid stands in their place.
fn names_instances(entry: &Entry) -> bool {
    [entry.gpu_instance, entry.compute_instance].iter().all(|id| *id == NO_INSTANCE || *id < INSTANCES_MOST)
}

fn process(kind: ProcessKind, entry: &Entry) -> GpuProcess {
    let memory = match entry.used_bytes {
        NOT_AVAILABLE => Absent(Absence::NotSupported),
        bytes => Measured(MemoryBytes(bytes)),
    };
    GpuProcess { pid: entry.pid, kind, memory }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_failed_spoils_all_three_and_one_that_cannot_exist_does_not() {
        let some = |pid| Measured(vec![Entry { pid, used_bytes: 5, ..BLANK }]);
        let failed = |why| Absent::<Vec<Entry>>(why);
        let pids = |r: Reading<Vec<GpuProcess>>| r.map(|all| all.iter().map(|p| p.pid).collect::<Vec<_>>());
        use Absence::{NotSupported, Transient};
        let table = [
            (some(1), some(2), some(3), Measured(vec![1, 2, 3])),
            // A Pascal card: no MPS list.
            (some(1), some(2), failed(NotSupported), Measured(vec![1, 2])),
            (some(1), failed(NotSupported), failed(NotSupported), Measured(vec![1])),
            (failed(NotSupported), some(2), some(3), Absent(NotSupported)),
            (some(1), failed(Transient), some(3), Absent(Transient)),
            (some(1), some(2), failed(Transient), Absent(Transient)),
        ];
        for (compute, graphics, mps, want) in table {
            assert_eq!(pids(joined(compute, graphics, mps)), want);
        }
    }

    #[test]
    fn memory_that_the_driver_does_not_know_is_absent_not_huge() {
        let known = process(ProcessKind::Compute, &Entry { pid: 7, used_bytes: 0, ..BLANK });
        let unknown = process(ProcessKind::Compute, &Entry { pid: 7, used_bytes: u64::MAX, ..BLANK });
        assert_eq!(known.memory, Measured(MemoryBytes(0)));
        assert_eq!(unknown.memory, Absent(Absence::NotSupported));
    }
}

//! Whether a process list can be what the driver meant. Says yes or no to a list as a whole and mends nothing: one
//! read in the wrong layout may also lack processes (gpuopenanalytics/pynvml#48).

use crate::model::{GpuProcess, Memory};
use crate::reading::Reading::{self, Measured};
use std::collections::BTreeMap;
use std::path::Path;

/// Linux never gives out a higher pid (PID_MAX_LIMIT, proc(5) `pid_max`).
const PID_MOST: u32 = 1 << 22;

/// A process list that can be. No pid is out of range; not all processes are unknown to this machine, as in a
/// foreign pid namespace (a single one may just have ended); and what they hold fits into the unit, each alone and
/// all together.
pub(super) fn vetted(
    list: Vec<GpuProcess>,
    memory: &Reading<Memory>,
    is_there: impl Fn(u32) -> bool,
) -> Reading<Vec<GpuProcess>> {
    Measured(list).plausible(|list| {
        list.iter().all(|p| p.pid != 0 && p.pid <= PID_MOST)
            && memory.measured().is_none_or(|memory| held_bytes(list) <= u128::from(memory.total.0))
            && (list.is_empty() || list.iter().any(|p| is_there(p.pid)))
    })
}

/// What all of them hold. A process that stands in several lists holds it once.
fn held_bytes(list: &[GpuProcess]) -> u128 {
    let mut held = BTreeMap::new();
    for process in list {
        if let Measured(bytes) = process.memory {
            let most: &mut u64 = held.entry(process.pid).or_default();
            *most = bytes.0.max(*most);
        }
    }
    held.into_values().map(u128::from).sum()
}

/// Whether this machine has such a process now, as seen from our own pid namespace.
pub(super) fn is_there(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ProcessKind::{self, Compute, Graphics, Mps};
    use crate::reading::Absence;
    use crate::reading::Reading::Absent;
    use crate::units::MemoryBytes;

    fn process(pid: u32, kind: ProcessKind, held: Option<u64>) -> GpuProcess {
        let memory = held.map_or(Absent(Absence::NotSupported), |bytes| Measured(MemoryBytes(bytes)));
        GpuProcess { pid, kind, memory }
    }

    #[test]
    fn one_impossible_entry_spoils_the_whole_process_list() {
        // gpuopenanalytics/pynvml#48, XuehaiPan/nvitop#88 (NR-05): pid 4294967295, memory above the device's.
        let of = |pid, held| process(pid, Compute, Some(held));
        let of_100 =
            Measured(Memory { used: MemoryBytes(1), total: MemoryBytes(100), excludes_reserved: true });
        let unknown = Absent(Absence::NotSupported);
        let table = [
            ("none", vec![], of_100, true),
            ("to the edge", vec![of(1, 0), of(4_194_304, 100)], of_100, true),
            ("pid 0", vec![of(7, 10), of(0, 10)], of_100, false),
            ("pid -1", vec![of(7, 10), of(u32::MAX, 10)], of_100, false),
            ("pid too high", vec![of(4_194_305, 10)], of_100, false),
            ("one above the total", vec![of(7, 101)], of_100, false),
            ("no total to compare with", vec![of(7, 101)], unknown, true),
            ("all above the total", vec![of(7, 60), of(8, 41)], of_100, false),
            ("in two lists", vec![of(7, 60), process(7, Graphics, Some(40)), of(8, 40)], of_100, true),
            ("of unknown size", vec![of(7, 100), process(8, Mps, None)], of_100, true),
            ("huge sums", vec![of(7, u64::MAX), of(8, u64::MAX)], of_100, false),
        ];
        for (name, list, memory, good) in table {
            let want = if good { Measured(list.clone()) } else { Absent(Absence::Implausible) };
            assert_eq!(vetted(list, &memory, |_| true), want, "{name}");
        }
    }

    #[test]
    fn a_process_may_just_have_ended_but_not_all_can_be_strangers() {
        let memory = Absent(Absence::NotSupported);
        let table: [(&[u32], bool); 4] = [(&[], true), (&[7], true), (&[7, 8], true), (&[8, 9], false)];
        for (pids, good) in table {
            let list: Vec<_> = pids.iter().map(|pid| process(*pid, Compute, None)).collect();
            let found = vetted(list, &memory, |pid| pid == 7);
            assert_eq!(found.measured().is_some(), good, "{pids:?}");
        }
        assert!(is_there(std::process::id()));
        assert!(!is_there(PID_MOST + 1));
    }
}

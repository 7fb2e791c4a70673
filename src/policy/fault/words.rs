//! What each kind of fault reads and when it is one, in the words of README's table, which a test compares.

use super::Kind;

/// A rule in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InWords {
    /// What it reads.
    pub inputs: &'static str,
    /// When a reading is faulty.
    pub faulty_if: &'static str,
}

impl Kind {
    /// Its rule.
    pub fn in_words(self) -> InWords {
        let (inputs, faulty_if) = match self {
            Kind::DriverUnresponsive => (
                "the worker's deadline, a worker that is stuck",
                "looks at the GPUs do not end, and it is no slow start: something keeps them initialised",
            ),
            Kind::DriverNotLoaded => ("/proc/driver/nvidia, the PCI bus", "there are GPUs and no driver"),
            Kind::DriverMismatch => ("the library's start", "kernel module and library differ in version"),
            Kind::GpuMissing => (
                "the driver's list, the PCI bus, `gpu.expected`, gres.conf, the most ever listed",
                "a GPU on the bus is not listed, or fewer are than expected",
            ),
            Kind::GpuLost => ("every reading of a GPU", "the driver says that it is lost, or cannot open it"),
            Kind::GpuReset => (
                "recovery action, every reading",
                "the driver refuses it until a reset, or asks for a recovery action",
            ),
            Kind::Ecc => {
                ("uncorrectable ECC counts, volatile and aggregate", "one of them rose since the last run")
            }
            Kind::RowRemapPending => ("remapped rows", "a row waits to be remapped"),
            Kind::RowRemapFailure => ("remapped rows", "a row could not be remapped"),
            Kind::RetiredPages => {
                ("retired pages (before Ampere)", "a page waits for retirement, or 60 of 64 are retired")
            }
            Kind::Xid => (
                "the kernel's log since it was last read",
                "an Xid of `faults.xids` names a GPU of this node",
            ),
            Kind::HwSlowdown => (
                "utilization, clocks-event reasons, SM clock, power",
                "slowed by hardware or heat at work, below half its clock and 0.6 of its power limit",
            ),
            Kind::Nvlink => ("state of the NVLinks", "fewer are up than once were"),
            Kind::Fabric => {
                ("state and status of the NVLink fabric", "it is not up, or came up with an error")
            }
            Kind::PcieWidth => {
                ("PCIe link width of card and slot, utilization", "fewer lanes at work than both could have")
            }
            Kind::PersistenceMode => (
                "persistence mode, the worker's deadline",
                "it is off on a GPU, or a start without it took too long",
            ),
            Kind::ForeignProcess => (
                "process lists, /proc/PID/cgroup, gres.conf",
                "a process outside of Slurm computes on a GPU of gres.conf that no job holds",
            ),
            Kind::Leak => {
                ("the Epilog's looks, process lists", "a process outlived its job on one of its GPUs")
            }
        };
        InWords { inputs, faulty_if }
    }
}

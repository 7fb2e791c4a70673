//! The kernel's log of a story: what the driver writes to it, as it writes it, and what is gone from it.

use super::file::{Ago, Scenario, absence};
use crate::host::kernel_log::{Heard, Record, imagined};
use crate::reading::{Absence, Reading};
use crate::units::BootMs;
use serde::Deserialize;

/// A record of the log.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// When.
    pub at: Ago,
    /// Its text: `NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.` GPU 0 is `1a`, GPU 1 `1b`.
    #[serde(default)]
    pub says: String,
    /// A process wrote it, and not the kernel.
    #[serde(default)]
    pub by_process: bool,
    /// From now on everything before it is overwritten.
    #[serde(default)]
    pub overwrites: bool,
}

impl Scenario {
    /// What the log holds at an instant, from a record on. `boot`: an instant of the story as the kernel counts.
    pub fn kernel_log(&self, at_ms: i64, since: Option<u64>, boot: impl Fn(i64) -> BootMs) -> Reading<Heard> {
        if self.kernel_log.is_empty() {
            return Reading::Absent(Absence::NotSupported);
        }
        if let Some(why) = self.host_at(at_ms).and_then(|samples| samples.absent.get("kernel_log")) {
            return Reading::Absent(absence(why).unwrap_or(Absence::NotUnderstood));
        }
        let mut written: Vec<&Line> = self.kernel_log.iter().filter(|line| line.at.0 <= at_ms).collect();
        written.sort_by_key(|line| line.at.0);
        let first = written.iter().rposition(|line| line.overwrites).unwrap_or(0);
        let records = (1..).zip(&written).skip(first).map(|(seq, line)| Record {
            seq,
            at: boot(line.at.0),
            by_kernel: !line.by_process,
            text: &line.says,
        });
        Reading::Measured(imagined(records, since))
    }
}

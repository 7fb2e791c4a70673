//! Guard `host-activity`: what the job does beside its GPUs. It may soften a verdict, never create one.

use super::window::Series;
use crate::reading::{Absence, Reading};
use crate::units::MemoryBytes;

/// What the job's processes did beside its GPUs over the window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HostActivity {
    cores: f64,
    processes: u32,
    written_bytes_per_s: f64,
    /// Told, never judged on: a job may read or hold much and do nothing with it.
    read_bytes_per_s: Reading<f64>,
    working_set_bytes: Reading<u64>,
}

impl HostActivity {
    pub(super) fn works(&self) -> bool {
        self.cores > 1.5 * f64::from(self.processes.max(1)) || self.written_bytes_per_s > 1_048_576.0
    }

    pub(super) fn words(&self) -> String {
        let mib = |bytes: f64| format!("{:.1} MiB/s", bytes / 1_048_576.0);
        let mut words = format!(
            "{:.1} cores busy beside {} GPU processes, {} written",
            self.cores,
            self.processes,
            mib(self.written_bytes_per_s)
        );
        if let Reading::Measured(read) = self.read_bytes_per_s {
            words += &format!(", {} read", mib(read));
        }
        if let Reading::Measured(bytes) = self.working_set_bytes {
            words += &format!(", working set {}", MemoryBytes(bytes).human());
        }
        words
    }
}

/// Cores and bytes over the window that ends with tick `t`; absent where either end is, or where a sum went back.
pub(super) fn over_window(series: &Series, t: usize, units: &[usize]) -> Reading<HostActivity> {
    let window = series.window_up_to(t);
    let (Some(first), Some(last)) = (window.first(), window.last()) else {
        return Reading::Absent(Absence::NoData);
    };
    let elapsed_ms = last.at.since_ms(first.at);
    if elapsed_ms <= 0 {
        return Reading::Absent(Absence::NoData);
    }
    let rise = |from: Reading<u64>, to: Reading<u64>| {
        from.and_then(|from| {
            to.and_then(|to| match to.checked_sub(from) {
                Some(rise) => Reading::Measured(rise as f64 / elapsed_ms as f64),
                None => Reading::Absent(Absence::CounterReset),
            })
        })
    };
    let count = |u: &usize| last.units[*u].processes.measured().map_or(0, |p| p.compute);
    let processes = units.iter().map(count).sum();
    rise(first.job.cpu_ms, last.job.cpu_ms).map(|cores| HostActivity {
        cores,
        processes,
        // Unreadable writes soften nothing; they never create a verdict.
        written_bytes_per_s: rise(first.job.written_bytes, last.job.written_bytes)
            .measured()
            .map_or(0.0, |r| r * 1000.0),
        read_bytes_per_s: rise(first.job.read_bytes, last.job.read_bytes).map(|r| r * 1000.0),
        working_set_bytes: last.job.working_set_bytes,
    })
}

//! Guard `host-activity`: what the job does beside its GPUs. It may soften a verdict, never create one.

use super::window::Series;
use crate::model::JobSample;
use crate::reading::{Absence, Reading};
use crate::units::MemoryBytes;

/// What the job's processes did beside its GPUs over the window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HostActivity {
    cores: f64,
    processes: u32,
    written_bytes_per_s: Reading<f64>,
    /// Told, never judged on: a job may read or hold much and do nothing with it.
    read_bytes_per_s: Reading<f64>,
    working_set_bytes: Reading<u64>,
}

impl HostActivity {
    /// Unreadable writes soften nothing; they never create a verdict.
    pub(super) fn works(&self) -> bool {
        let writes = matches!(self.written_bytes_per_s, Reading::Measured(rate) if rate > 1_048_576.0);
        self.cores > 1.5 * f64::from(self.processes.max(1)) || writes
    }

    pub(super) fn words(&self) -> String {
        let rate = |rate: Reading<f64>| match rate {
            Reading::Measured(bytes) => format!("{:.1} MiB/s", bytes / 1_048_576.0),
            Reading::Absent(why) => format!("({})", why.words()),
        };
        let mut words = format!(
            "over the window: {:.1} cores busy, GPU processes: {}, written {}, read {}",
            self.cores,
            self.processes,
            rate(self.written_bytes_per_s),
            rate(self.read_bytes_per_s)
        );
        if let Reading::Measured(bytes) = self.working_set_bytes {
            words += &format!(", working set {}", MemoryBytes(bytes).human());
        }
        words
    }
}

/// Cores and bytes over the window that ends with tick `t`. What rose is added up from run to run: a sum over
/// processes falls where one of them ends, and what the others did meanwhile must not be lost with it.
pub(super) fn over_window(series: &Series, t: usize, units: &[usize]) -> Reading<HostActivity> {
    let window = series.window_up_to(t);
    let (Some(first), Some(last)) = (window.first(), window.last()) else {
        return Reading::Absent(Absence::NoData);
    };
    let elapsed_ms = last.at.since_ms(first.at);
    if elapsed_ms <= 0 {
        return Reading::Absent(Absence::NoData);
    }
    let a_ms = |of: fn(&JobSample) -> Reading<u64>| {
        let mut rose = 0u64;
        for pair in window.windows(2) {
            match (of(&pair[0].job), of(&pair[1].job)) {
                (Reading::Measured(from), Reading::Measured(to)) => {
                    rose = rose.saturating_add(to.saturating_sub(from));
                }
                (Reading::Absent(why), _) | (_, Reading::Absent(why)) => return Reading::Absent(why),
            }
        }
        Reading::Measured(rose as f64 / elapsed_ms as f64)
    };
    let count = |u: &usize| last.units[*u].processes.measured().map_or(0, |p| p.compute);
    a_ms(|job| job.cpu_ms).map(|cores| HostActivity {
        cores,
        processes: units.iter().map(count).sum(),
        written_bytes_per_s: a_ms(|job| job.written_bytes).map(|r| r * 1000.0),
        read_bytes_per_s: a_ms(|job| job.read_bytes).map(|r| r * 1000.0),
        working_set_bytes: last.job.working_set_bytes,
    })
}

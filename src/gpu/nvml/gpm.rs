//! GPM's activity: what the SMs, the tensor pipes and the memory of a GPU or an instance really did over the 100 ms
//! and more between two samples. Hopper and newer; under MIG nothing else in NVML tells load. A sample means nothing
//! outside of its process, so both are taken here.
//!
//! Each unit's first sample is taken as the unit is read and the second after all of them, so that no GPU waits for
//! another's and one that hangs takes from none what was read of it before.

use super::codes::{Answer, absence, value};
use crate::gpu::wire::{Activity, Piece};
use crate::model::Gpm;
use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::struct_wrappers::gpm::GpmMetricResult;
use nvml_wrapper::{Device, GpmSample, Nvml as Library};
use std::time::{Duration, Instant};

/// How far two samples have to lie apart at least (nvml.h, nvmlGpmMetricsGet).
const APART: Duration = Duration::from_millis(100);

const METRICS: [GpmMetricId; 3] = [GpmMetricId::SmUtil, GpmMetricId::AnyTensorUtil, GpmMetricId::DramBwUtil];

/// The units whose first sample is taken.
pub(super) struct Watch<'a> {
    library: &'a Library,
    scope: Gpm,
    begun: Vec<Begun<'a>>,
}

struct Begun<'a> {
    unit: usize,
    /// The GPU, also for an instance of it.
    device: Device<'a>,
    gpu_instance: Option<u32>,
    sample: GpmSample<'a>,
    at: Instant,
}

impl<'a> Watch<'a> {
    /// Nothing is begun yet.
    pub(super) fn new(library: &'a Library, scope: Gpm) -> Watch<'a> {
        Watch { library, scope, begun: Vec::new() }
    }

    /// Whether instances are asked about at all.
    pub(super) fn wants_instances(&self) -> bool {
        self.scope != Gpm::Off
    }

    /// The first sample of a whole GPU; why its activity is absent until the second, or for good.
    pub(super) fn gpu(&mut self, unit: usize, device: &Device) -> Absence {
        if self.scope == Gpm::On { self.begin(unit, device, None) } else { Absence::NotAsked }
    }

    /// The same for the GPU instance `gi` of a GPU. Only for one that is a unit as a whole: GPM knows no compute
    /// instances.
    pub(super) fn instance(&mut self, unit: usize, device: &Device, gi: u32) -> Absence {
        if self.wants_instances() { self.begin(unit, device, Some(gi)) } else { Absence::NotAsked }
    }

    fn begin(&mut self, unit: usize, device: &Device, gpu_instance: Option<u32>) -> Absence {
        // SAFETY: the same GPU's, in the same library: both live as long as this look.
        let device = unsafe { Device::new(device.handle(), self.library) };
        let first = value(|| match device.gpm_support()? {
            true => sample(&device, gpu_instance),
            false => Err(NvmlError::NotSupported),
        });
        match first {
            Measured(sample) => {
                self.begun.push(Begun { unit, device, gpu_instance, sample, at: Instant::now() });
                // This is what stands where the look ends before the second.
                Absence::NotAsked
            }
            Absent(why) => why,
        }
    }

    /// Waits for what is missing of the time between the samples, and tells every activity. Where the deadline
    /// comes first, none: a late worker is a killed one.
    pub(super) fn finish(self, until: Option<Instant>, out: &mut dyn FnMut(Piece)) {
        let Some(due) = self.begun.iter().map(|b| b.at + APART).max() else {
            return;
        };
        if until.is_some_and(|until| due >= until) {
            return;
        }
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        for begun in self.begun {
            let activity = match value(|| metrics(self.library, &begun)) {
                Measured(results) => activity(&results),
                Absent(why) => Activity { sm: Absent(why), tensor: Absent(why), dram: Absent(why) },
            };
            out(Piece::Activity { unit: begun.unit as u32, activity });
        }
    }
}

fn sample<'a>(device: &Device<'a>, gpu_instance: Option<u32>) -> Answer<GpmSample<'a>> {
    match gpu_instance {
        None => device.gpm_sample(),
        Some(gi) => device.gpm_mig_sample(gi),
    }
}

type Results = Vec<Answer<GpmMetricResult>>;

fn metrics(library: &Library, begun: &Begun) -> Answer<Results> {
    let second = sample(&begun.device, begun.gpu_instance)?;
    gpm_metrics_get(library, &begun.sample, &second, &METRICS)
}

/// By position, as they were asked for.
fn activity(results: &Results) -> Activity {
    let share = |at: usize| match &results[at] {
        Ok(metric) => hundredths(metric.value),
        Err(e) => Absent(absence(e)),
    };
    Activity { sm: share(0), tensor: share(1), dram: share(2) }
}

/// Percent as hundredths of a percent, rounded up: what was active at all is never nothing.
fn hundredths(percent: f64) -> Reading<u64> {
    Measured(percent).plausible(|p| (0.0..=100.0).contains(p)).map(|p| (p * 100.0).ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_activity_is_never_none() {
        let table = [
            (0.0, Measured(0)),
            (0.000_1, Measured(1)),
            (0.3, Measured(30)),
            (0.301, Measured(31)),
            (97.25, Measured(9725)),
            (100.0, Measured(10_000)),
            (100.1, Absent(Absence::Implausible)),
            (-0.1, Absent(Absence::Implausible)),
            (f64::NAN, Absent(Absence::Implausible)),
            (f64::INFINITY, Absent(Absence::Implausible)),
        ];
        for (percent, want) in table {
            assert_eq!(hundredths(percent), want, "{percent}");
        }
    }
}

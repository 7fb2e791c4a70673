//! The driver's own sample rings: the highest utilization of the last seconds, which one instant would miss.
//! They hold 10 to 20 s (72 entries, 99 on older drivers), so they never speak for a whole interval between
//! two runs.

use super::codes::{Answer, absence, count, symbol};
use crate::model::Peak;
use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use crate::units::Percent;
use nvml_wrapper::error::nvml_try;
use nvml_wrapper::{Device, Nvml as Library};
use std::ffi::c_uint;

/// NVML_GPU_UTILIZATION_SAMPLES.
pub(super) const SM_UTILIZATION: c_uint = 1;
/// NVML_MEMORY_UTILIZATION_SAMPLES.
pub(super) const MEMORY_UTILIZATION: c_uint = 2;

/// More than any ring known (72, 99, 119 entries): one call, with no question for the size before it.
const ENTRIES_MOST: usize = 256;

/// How far the newest entry may lie from now to be called current.
const CURRENT_US: u64 = 60_000_000;

/// nvmlSample_t; its value is a union of 8 bytes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sample {
    stamp_us: u64,
    value: [u8; 8],
}

/// The two clocks by which drivers stamp, in microseconds.
#[derive(Clone, Copy)]
struct Clocks {
    real_us: u64,
    boot_us: u64,
}

impl Clocks {
    /// Read here and nowhere else in this program's edges: the stamps lie on the driver's clock at the moment
    /// of the call, and nothing but these differences is kept.
    fn read() -> Clocks {
        let micros = |clock| {
            let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: `t` is a timespec that outlives the call.
            unsafe { libc::clock_gettime(clock, &mut t) };
            t.tv_sec as u64 * 1_000_000 + t.tv_nsec as u64 / 1000
        };
        Clocks { real_us: micros(libc::CLOCK_REALTIME), boot_us: micros(libc::CLOCK_BOOTTIME) }
    }
}

/// The peak of one ring. An empty ring is [`Absence::NoData`]: current drivers let it run dry while a GPU
/// idles.
pub(super) fn peak(library: &Library, device: &Device, ring: c_uint) -> Reading<Peak> {
    match entries(library, device, ring) {
        Ok(entries) => highest(entries, Clocks::read()),
        Err(e) => Absent(absence(&e)),
    }
}

/// Stamps and values as the driver wrote them; a value of another kind than a number is `None`.
fn entries(library: &Library, device: &Device, ring: c_uint) -> Answer<Vec<(u64, Option<u64>)>> {
    let call = symbol(&library.lib().nvmlDeviceGetSamples)?;
    let mut samples = [Sample::default(); ENTRIES_MOST];
    let (mut filled, mut value_type) = (ENTRIES_MOST as c_uint, 0);
    // SAFETY: `Sample` has the layout of nvmlSample_t, `filled` announces how many fit, and the handle is
    // NVML's own.
    nvml_try(unsafe {
        call(device.handle(), ring, 0, &mut value_type, &mut filled, samples.as_mut_ptr().cast())
    })?;
    let filled = &samples[..ENTRIES_MOST.min(filled as usize)];
    Ok(filled.iter().map(|s| (s.stamp_us, count(value_type, s.value).measured().copied())).collect())
}

/// Entries come in any order, with stamps of 0 and values above 100 among them (NVIDIA/dcgm-exporter#418):
/// both are left out. Which clock stamped them is told by which one is nearer: epoch on some drivers, since
/// boot on others. A ring that stands still has nothing to tell about now; one that is ahead of both clocks
/// cannot be.
fn highest(entries: Vec<(u64, Option<u64>)>, now: Clocks) -> Reading<Peak> {
    if entries.is_empty() {
        return Absent(Absence::NoData);
    }
    let kept = || {
        entries.iter().filter_map(|(stamp, value)| {
            let percent = Percent::new(u32::try_from((*value)?).ok()?)?;
            (*stamp > 0).then_some((*stamp, percent))
        })
    };
    let (Some(newest), Some(percent)) = (kept().map(|k| k.0).max(), kept().map(|k| k.1).max()) else {
        return Absent(Absence::Implausible);
    };
    let clock_us =
        if newest.abs_diff(now.real_us) < newest.abs_diff(now.boot_us) { now.real_us } else { now.boot_us };
    if newest.abs_diff(clock_us) > CURRENT_US {
        return Absent(if newest < clock_us { Absence::NoData } else { Absence::Implausible });
    }
    match u32::try_from(covered_us(kept().map(|k| k.0).collect()) / 1000) {
        Ok(covered_ms) => Measured(Peak { percent, covered_ms }),
        Err(_) => Absent(Absence::Implausible),
    }
}

/// For how long the ring really sampled. Entries come each sixth of a second, or each second on the slowest cards; a
/// ring runs dry while a GPU idles, and over a longer step nobody looked.
fn covered_us(mut stamps: Vec<u64>) -> u64 {
    const STEP_US: u64 = 10_000_000;
    stamps.sort_unstable();
    stamps.windows(2).map(|pair| pair[1] - pair[0]).filter(|step| *step <= STEP_US).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_speaks_only_for_now() {
        let now = Clocks { real_us: 1_764_422_738_000_000, boot_us: 5_000_000_000 };
        let at = |base: u64, entries: &[(u64, u64)]| {
            entries.iter().map(|(age_ms, value)| (base - age_ms * 1000, Some(*value))).collect::<Vec<_>>()
        };
        let peak =
            |percent, covered_ms| Measured(Peak { percent: Percent::new(percent).unwrap(), covered_ms });
        let table = [
            ("empty", vec![], Absent(Absence::NoData)),
            ("unsorted", at(now.real_us, &[(100, 3), (9_900, 70), (5_000, 0)]), peak(70, 9_800)),
            ("since boot", at(now.boot_us, &[(9_900, 0), (100, 3)]), peak(3, 9_800)),
            ("a ring that ran dry", at(now.real_us, &[(0, 0), (100, 0), (60_000, 9)]), peak(9, 100)),
            ("one entry", at(now.boot_us, &[(100, 0)]), peak(0, 0)),
            // NVIDIA/dcgm-exporter#418: values above 100 on an H100.
            ("too high", at(now.real_us, &[(20_000, 4_294_967), (10_000, 5), (0, 101)]), peak(5, 0)),
            ("nothing left", at(now.real_us, &[(10, 101)]), Absent(Absence::Implausible)),
            ("stamp of 0", vec![(0, Some(50)), (now.real_us, Some(1))], peak(1, 0)),
            ("no number", vec![(now.real_us, None)], Absent(Absence::Implausible)),
            ("stale", at(now.real_us, &[(61_000, 0), (70_000, 0)]), Absent(Absence::NoData)),
            ("stale since boot", vec![(12_345, Some(0))], Absent(Absence::NoData)),
            ("ahead", vec![(now.real_us + 61_000_000, Some(0))], Absent(Absence::Implausible)),
        ];
        for (name, entries, want) in table {
            assert_eq!(highest(entries, now), want, "{name}");
        }
    }
}

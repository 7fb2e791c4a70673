//! GPUs that exist only in a scenario: a timeline of what they would have said. Needs no driver, and is the
//! only source under which the clock can be moved.

use super::GpuSource;
use super::bus::LinkWidth;
use crate::model::*;
use crate::reading::{Absence, Reading};
use crate::units::*;

/// What GPUs say from one instant to another, on the scenario's own clock.
#[derive(Clone, Debug)]
pub struct Phase {
    /// First instant, milliseconds on the scenario's clock.
    pub from_ms: i64,
    /// Last instant, inclusive.
    pub to_ms: i64,
    /// Which GPUs, by minor; empty: all.
    pub gpus: Vec<u32>,
    /// SM utilization.
    pub sm_util: Reading<Percent>,
    /// Memory-controller utilization.
    pub mem_util: Reading<Percent>,
    /// Peak in the driver's ring, with the time it covers.
    pub sm_peak: Reading<Peak>,
    /// Memory held.
    pub memory: Reading<MemoryBytes>,
    /// Power whenever somebody looks.
    pub power: Reading<Milliwatts>,
    /// Power over all the time between: energy is its integral.
    pub drawn: Milliwatts,
    /// Compute processes on each of these GPUs.
    pub processes: Reading<u32>,
    /// SM clock, where it is not the usual one at work or at rest.
    pub sm_clock: Option<Megahertz>,
    /// Clocks-event reasons.
    pub clocks_event: ClocksEventMask,
    /// Temperature.
    pub temperature: Celsius,
    /// Counters and states; the rest is not supported.
    pub fields: Vec<(Field, Reading<u64>)>,
    /// How wide the card's link to the bus is.
    pub link_width: Reading<LinkWidth>,
    /// The card fails at its handle.
    pub lost: Option<Absence>,
    /// The driver does not list the card.
    pub unlisted: bool,
}

/// The node's GPUs and their story.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// How many.
    pub gpus: u32,
    /// Minor of each NVML index; empty: the same.
    pub minors: Vec<u32>,
    /// Product name.
    pub name: String,
    /// Memory of each.
    pub memory_total: MemoryBytes,
    /// Enforced power limit of each.
    pub power_limit: Milliwatts,
    /// Whether the cards count energy.
    pub energy: bool,
    /// MIG mode of each.
    pub mig: Reading<MigMode>,
    /// The phases; where two cover an instant the later entry speaks.
    pub phases: Vec<Phase>,
    /// The whole read fails from one instant to another.
    pub outages: Vec<(i64, i64, Absence)>,
}

/// The timeline at one instant.
#[derive(Debug)]
pub struct Simulated<'a> {
    /// The story.
    pub timeline: &'a Timeline,
    /// Now, on the scenario's clock.
    pub at_ms: i64,
}

impl Timeline {
    fn speaks(&self, minor: u32, at_ms: i64) -> Option<&Phase> {
        let covers = |p: &&Phase| p.from_ms <= at_ms && at_ms <= p.to_ms;
        self.phases.iter().rev().filter(covers).find(|p| p.gpus.is_empty() || p.gpus.contains(&minor))
    }

    /// Energy since the first phase: power integrated; a hole goes on at the power before it.
    fn energy_at(&self, minor: u32, at_ms: i64) -> Reading<Millijoules> {
        if !self.energy {
            return Reading::Absent(Absence::NotSupported);
        }
        let mine = self.phases.iter().filter(|p| p.gpus.is_empty() || p.gpus.contains(&minor));
        let mut edges: Vec<i64> = mine.flat_map(|p| [p.from_ms, p.to_ms]).filter(|e| *e < at_ms).collect();
        edges.push(at_ms);
        edges.sort_unstable();
        edges.dedup();
        let mut total_mj: u64 = 1_000_000;
        let mut power = Milliwatts(0);
        for pair in edges.windows(2) {
            let middle = pair[0] + (pair[1] - pair[0]) / 2;
            if let Some(phase) = self.speaks(minor, middle) {
                power = phase.drawn;
            }
            total_mj += power.0 * (pair[1] - pair[0]) as u64 / 1000;
        }
        Reading::Measured(Millijoules(total_mj))
    }

    /// Where a card is on the PCI bus.
    pub fn pci(minor: u32) -> Reading<PciAddress> {
        PciAddress::parse(&format!("0000:{:02x}:00.0", 0x1a + minor))
            .map_or(Reading::Absent(Absence::Implausible), Reading::Measured)
    }

    fn uuid(minor: u32) -> Reading<UnitUuid> {
        match UnitUuid::new(&format!("GPU-51000000-0000-0000-0000-{minor:012}")) {
            Ok(uuid) => Reading::Measured(uuid),
            Err(_) => Reading::Absent(Absence::Implausible),
        }
    }
}

impl Simulated<'_> {
    /// How wide a card's link to the bus is, whether the driver lists the card or not.
    pub fn link_width(&self, gpu: &PciAddress) -> Reading<LinkWidth> {
        let minors = (0..self.timeline.gpus).map(|index| self.minor(index));
        let its = minors.into_iter().find(|minor| Timeline::pci(*minor).measured() == Some(gpu));
        let phase = its.and_then(|minor| self.timeline.speaks(minor, self.at_ms));
        phase.map_or(Reading::Absent(Absence::NoData), |phase| phase.link_width)
    }

    fn minor(&self, index: u32) -> u32 {
        self.timeline.minors.get(index as usize).copied().unwrap_or(index)
    }

    fn unit(&self, index: u32) -> Option<UnitSample> {
        let minor = self.minor(index);
        let phase = self.timeline.speaks(minor, self.at_ms);
        if phase.is_some_and(|p| p.unlisted) {
            return None;
        }
        let mut identity = UnitIdentity {
            uuid: Timeline::uuid(minor),
            kind: UnitKind::Gpu,
            index: NvmlIndex(index),
            minor: Reading::Measured(DeviceMinor(minor)),
            pci: Timeline::pci(minor),
            name: Reading::Measured(self.timeline.name.clone()),
        };
        let Some(phase) = phase else {
            return Some(UnitSample { identity, readings: Readings::absent(Absence::NoData) });
        };
        if let Some(why) = phase.lost {
            identity.uuid = Reading::Absent(why);
            identity.minor = Reading::Absent(why);
            identity.pci = Reading::Absent(why);
            identity.name = Reading::Absent(why);
            return Some(UnitSample { identity, readings: Readings::absent(why) });
        }
        Some(UnitSample { identity, readings: self.readings(phase, minor) })
    }

    fn readings(&self, phase: &Phase, minor: u32) -> Readings {
        let line = self.timeline;
        let memory =
            phase.memory.map(|used| Memory { used, total: line.memory_total, excludes_reserved: true });
        let usual = phase.sm_util.map(|u| Megahertz(if u.get() > 0 { 1755 } else { 345 }));
        let none = Fields::absent(Absence::NotSupported);
        Readings {
            fields: phase.fields.iter().fold(none, |all, (field, value)| all.with(*field, *value)),
            sm_util: phase.sm_util,
            mem_util: phase.mem_util,
            sm_peak: phase.sm_peak,
            mem_peak: Reading::Absent(Absence::NoData),
            memory,
            power: phase.power,
            power_limit: Reading::Measured(line.power_limit),
            energy: line.energy_at(minor, self.at_ms),
            sm_clock: phase.sm_clock.map_or(usual, Reading::Measured),
            sm_clock_max: Reading::Measured(Megahertz(1980)),
            temperature: Reading::Measured(phase.temperature),
            clocks_event: Reading::Measured(phase.clocks_event),
            mig: line.mig,
            processes: phase.processes.map(|n| (0..n).map(|k| process(minor, k)).collect()),
        }
    }
}

fn process(minor: u32, k: u32) -> GpuProcess {
    GpuProcess {
        pid: 100_000 + minor * 100 + k,
        kind: ProcessKind::Compute,
        memory: Reading::Absent(Absence::NotSupported),
    }
}

impl GpuSource for Simulated<'_> {
    fn read(&mut self) -> Reading<GpuReport> {
        let failing =
            self.timeline.outages.iter().find(|(from, to, _)| *from <= self.at_ms && self.at_ms <= *to);
        if let Some((_, _, why)) = failing {
            return Reading::Absent(*why);
        }
        let units = (0..self.timeline.gpus).filter_map(|index| self.unit(index)).collect();
        Reading::Measured(GpuReport { driver: Reading::Measured("simulated".to_owned()), units })
    }
}

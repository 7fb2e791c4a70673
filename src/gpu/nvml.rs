//! Reads the GPUs through NVML (nvml-wrapper, and raw calls where it would lose something). It only asks: no
//! setting of any GPU is changed. Each value stands alone, so that one failure hides neither another value
//! nor another GPU. It may hang as long as the driver does and never shuts NVML down (that can hang too): the
//! worker process calls it.

mod codes;
mod few;
mod fields;
mod gpm;
mod lists;
mod ring;
mod states;

use super::wire::{Assembly, GPUS_MOST, Head, Piece};
use super::{GpuSource, driver, unread};
use crate::model::{Gpm, GpuReport, Memory, MigMode, Readings, UnitIdentity, UnitKind, UnitSample};
use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use crate::units::*;
use codes::{Answer, raw, value};
use fields::{Batch, Catalogue};
use gpm::Watch;
use nvml_wrapper::bitmasks::InitFlags;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::{Device, Nvml as Library};
use std::ffi::OsStr;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::time::Instant;

/// The loader's name of the library. Driver packages since 560 ship no unversioned one
/// (rust-nvml/nvml-wrapper#63).
const LIBRARY: &str = "libnvidia-ml.so.1";

/// GPUs through libnvidia-ml.
#[derive(Clone, Debug)]
pub struct Nvml {
    library: Option<PathBuf>,
    gpm: Gpm,
    states: bool,
}

impl Nvml {
    /// `library`: an explicit one, and then no sign of a driver is asked for; else the loader's
    /// `libnvidia-ml.so.1`. `gpm`: whose activity is measured, which takes 100 ms more. `states`: whether the
    /// GPUs are asked for what changes rarely, in calls of its own.
    pub fn new(library: Option<PathBuf>, gpm: Gpm, states: bool) -> Nvml {
        Nvml { library, gpm, states }
    }

    /// The whole look, handed on unit by unit. Nothing that can be left out is begun with less time left than it
    /// takes.
    pub(super) fn stream(&self, until: Option<Instant>, out: &mut dyn FnMut(Piece)) {
        let library = match self.load() {
            Ok(library) => ManuallyDrop::new(library),
            Err(why) => return out(Piece::Begin(Absent(why))),
        };
        let gpus = match value(|| library.device_count()).plausible(|n| *n <= GPUS_MOST) {
            Measured(gpus) => gpus,
            Absent(why) => return out(Piece::Begin(Absent(why))),
        };
        let driver = value(|| library.sys_driver_version());
        let catalogue = Catalogue::of(driver.measured().map(String::as_str));
        out(Piece::Begin(Measured(Head { driver, gpus })));
        let watch = Watch::new(&library, self.gpm);
        let cards = self.states.then(Vec::new);
        let mut look = Look { library: &library, catalogue, watch, told: Vec::new(), cards, out };
        for index in 0..gpus {
            look.gpu(NvmlIndex(index));
        }
        look.end(until);
    }

    fn load(&self) -> Result<Library, Absence> {
        // nvmlInit is no mere question: as root and without a driver it makes /dev/nvidiactl and starts
        // nvidia-modprobe.
        if self.library.is_none() && !driver::loaded() {
            return Err(Absence::DriverNotLoaded);
        }
        let path = self.library.as_deref().map_or(OsStr::new(LIBRARY), |p| p.as_os_str());
        // Without GPUs attached, a card in trouble cannot fail the start for all of them.
        let flags = InitFlags::NO_GPUS | InitFlags::NO_ATTACH;
        let library = Library::builder().lib_path(path).flags(flags).init();
        library.map_err(|e| codes::at_start(&e, driver::loaded()))
    }
}

impl GpuSource for Nvml {
    fn read(&mut self) -> Reading<GpuReport> {
        let mut assembly = Assembly::default();
        let mut garbled = false;
        self.stream(None, &mut |piece| garbled |= assembly.add(piece).is_err());
        if garbled { Absent(Absence::NotUnderstood) } else { assembly.report(Absence::NotAsked) }
    }
}

/// One look under way.
struct Look<'a> {
    library: &'a Library,
    catalogue: Catalogue,
    watch: Watch<'a>,
    /// The units so far: what comes later names them by their place here.
    told: Vec<UnitIdentity>,
    /// The GPUs among them whose states are to be asked; `None`: no GPU's.
    cards: Option<Vec<(usize, Device<'a>)>>,
    out: &'a mut dyn FnMut(Piece),
}

/// A MIG instance whose ids are known.
struct Instance<'a> {
    device: Device<'a>,
    gi: u32,
    ci: u32,
}

impl<'a> Look<'a> {
    fn tell(&mut self, unit: UnitSample) {
        self.told.push(unit.identity.clone());
        (self.out)(Piece::Unit(unit));
    }

    /// One GPU, and its instances where it is split.
    fn gpu(&mut self, index: NvmlIndex) {
        let device = match self.library.device_by_index(index.0) {
            Ok(device) => device,
            Err(e) => return self.tell(unread(index, codes::at_handle(&e))),
        };
        let (uuid, pci) = (uuid(&device), pci(&device));
        if let Absent(why @ (Absence::GpuLost | Absence::ResetRequired)) = uuid {
            let UnitSample { identity, readings } = unread(index, why);
            return self.tell(UnitSample { identity: UnitIdentity { pci, ..identity }, readings });
        }
        let minor = value(|| device.minor_number()).map(DeviceMinor);
        let name = value(|| device.name());
        let identity = UnitIdentity { uuid, kind: UnitKind::Gpu, index, minor, pci, name };
        let gpm = self.watch.gpu(self.told.len(), &device);
        let readings = whole(self.library, &device, self.catalogue.ask(self.library, &device, gpm));
        let split = readings.mig == Measured(MigMode::Enabled);
        let place = self.told.len();
        self.tell(UnitSample { identity: identity.clone(), readings });
        if split {
            self.instances(&device, &identity);
        }
        if let Some(cards) = &mut self.cards {
            cards.push((place, device));
        }
    }

    /// The MIG instances of a GPU. One that cannot be named (UUID of its parent, its own ids) is not made up: it
    /// is not delivered, and a reader who knew it finds it not listed.
    fn instances(&mut self, device: &Device<'a>, gpu: &UnitIdentity) {
        let (Measured(parent), Measured(most)) = (&gpu.uuid, value(|| device.mig_device_count())) else {
            return;
        };
        let (found, all) = self.found_instances(device, most);
        for Instance { device: instance, gi, ci } in &found {
            let identity = UnitIdentity {
                uuid: uuid(instance),
                kind: UnitKind::Mig { parent: parent.clone(), gi: *gi, ci: *ci },
                name: value(|| instance.name()),
                ..gpu.clone()
            };
            // Of a GPU instance that several units share, the activity is none's.
            let alone = all && found.iter().filter(|other| other.gi == *gi).count() == 1;
            let gpm = match alone || !self.watch.wants_instances() {
                true => self.watch.instance(self.told.len(), device, *gi),
                false => Absence::NotSupported,
            };
            let util = if self.watch.wants_instances() { gpm } else { Absence::NotSupported };
            // Power, energy, clocks and temperature are the whole GPU's and belong to no instance; utilization is
            // refused under MIG (utkuozdemir/nvidia_gpu_exporter#203), so that GPM's activity stands for it.
            let memory = memory(self.library, instance);
            let readings = Readings {
                sm_util: Absent(util),
                mem_util: Absent(util),
                memory,
                processes: lists::processes(self.library, instance, &memory),
                mig: Measured(MigMode::Enabled),
                fields: fields::unasked(gpm),
                ..Readings::absent(Absence::NotSupported)
            };
            self.tell(UnitSample { identity, readings });
        }
    }

    /// The instances whose ids could be read, and whether those are all.
    fn found_instances(&self, device: &Device<'a>, most: u32) -> (Vec<Instance<'a>>, bool) {
        let lib = self.library.lib();
        let (mut found, mut all) = (Vec::new(), true);
        for place in 0..most {
            let device = match device.mig_device_by_index(place) {
                Ok(device) => device,
                // Places are not dense: this only says that this one is free.
                Err(NvmlError::NotFound) => continue,
                Err(_) => {
                    all = false;
                    continue;
                }
            };
            // SAFETY: the handle is NVML's own for this instance, used only while the library is loaded.
            let handle = unsafe { device.handle() };
            let gi = value(|| raw(&lib.nvmlDeviceGetGpuInstanceId, handle, 0));
            let ci = value(|| raw(&lib.nvmlDeviceGetComputeInstanceId, handle, 0));
            match (gi, ci) {
                (Measured(gi), Measured(ci)) => found.push(Instance { device, gi, ci }),
                _ => all = false,
            }
        }
        (found, all)
    }

    /// What had to wait until every unit was told.
    fn end(self, until: Option<Instant>) {
        self.watch.finish(until, self.out);
        for (unit, device) in self.cards.into_iter().flatten() {
            let states = states::ask(self.library, &device);
            (self.out)(Piece::States { unit: unit as u32, states });
        }
        for (unit, identity) in driver::names_of_lost(&self.told) {
            (self.out)(Piece::Identity { unit: unit as u32, identity });
        }
        (self.out)(Piece::End);
    }
}

fn uuid(device: &Device) -> Reading<UnitUuid> {
    value(|| device.uuid()).and_then(|text| match UnitUuid::new(&text) {
        Ok(uuid) => Measured(uuid),
        Err(_) => Absent(Absence::NotUnderstood),
    })
}

fn pci(device: &Device) -> Reading<PciAddress> {
    value(|| device.pci_info()).and_then(|p| match PciAddress::parse(&p.bus_id) {
        Ok(pci) => Measured(pci),
        Err(_) => Absent(Absence::NotUnderstood),
    })
}

/// Everything that a whole GPU says of itself.
fn whole(library: &Library, device: &Device, batch: Batch) -> Readings {
    let now = value(|| device.utilization_rates());
    let percent = |n| Percent::new(n).map_or(Absent(Absence::Implausible), Measured);
    let memory = memory(library, device);
    Readings {
        fields: batch.fields,
        sm_util: now.as_ref().and_then(|u| percent(u.gpu)),
        mem_util: now.as_ref().and_then(|u| percent(u.memory)),
        sm_peak: ring::peak(library, device, ring::SM_UTILIZATION),
        mem_peak: ring::peak(library, device, ring::MEMORY_UTILIZATION),
        memory,
        power: power(device, batch.instant_power),
        power_limit: value(|| device.enforced_power_limit())
            .map(|mw| Milliwatts(mw.into()))
            .plausible(can_be_power),
        energy: energy(device, batch.energy),
        sm_clock: value(|| device.clock_info(Clock::SM)).map(Megahertz),
        sm_clock_max: value(|| device.max_clock_info(Clock::SM)).map(Megahertz),
        temperature: value(|| device.temperature(TemperatureSensor::Gpu))
            .map(Celsius)
            .plausible(|c| c.0 <= 150),
        clocks_event: clocks_event(library, device),
        mig: value(|| device.mig_mode()).and_then(|mode| match mode.current {
            0 => Measured(MigMode::Disabled),
            1 => Measured(MigMode::Enabled),
            _ => Absent(Absence::NotUnderstood),
        }),
        processes: lists::processes(library, device, &memory),
    }
}

/// The v2 call, whose `used` leaves out the driver's reservation, and v1 on drivers before 510.
fn memory(library: &Library, device: &Device) -> Reading<Memory> {
    let v2 = value(|| device.memory_info()).map(|m| Memory {
        used: MemoryBytes(m.used),
        total: MemoryBytes(m.total),
        excludes_reserved: true,
    });
    let read = match v2 {
        Absent(Absence::NotSupported) => value(|| memory_v1(library, device)),
        other => other,
    };
    // Unified-memory parts answer zeros on some drivers (leptonai/gpud#1170): a total of 0 is no answer.
    read.plausible(|m| m.total.0 > 0 && m.used <= m.total)
}

/// nvmlMemory_t.
#[repr(C)]
#[derive(Default)]
struct MemoryV1 {
    total: u64,
    free: u64,
    used: u64,
}

fn memory_v1(library: &Library, device: &Device) -> Answer<Memory> {
    let call = codes::symbol(&library.lib().nvmlDeviceGetMemoryInfo)?;
    let mut memory = MemoryV1::default();
    // SAFETY: `MemoryV1` has the layout of nvmlMemory_t, and the handle is NVML's own.
    nvml_try(unsafe { call(device.handle(), (&raw mut memory).cast()) })?;
    Ok(Memory { used: MemoryBytes(memory.used), total: MemoryBytes(memory.total), excludes_reserved: false })
}

/// No card draws ten kilowatts, and none has a limit of zero.
fn can_be_power(power: &Milliwatts) -> bool {
    (1..10_000_000).contains(&power.0)
}

/// The usual call, and the instantaneous field where that is refused (RTX PRO 6000 with driver 580).
fn power(device: &Device, instant: Reading<u64>) -> Reading<Milliwatts> {
    let read = match value(|| device.power_usage()).map(u64::from) {
        Absent(Absence::NotSupported) => instant,
        other => other,
    };
    read.map(Milliwatts).plausible(|power| power.0 == 0 || can_be_power(power))
}

/// The counter as the batch brought it, and the call of its own where the field is refused.
fn energy(device: &Device, by_field: Reading<u64>) -> Reading<Millijoules> {
    match by_field {
        Measured(mj) => Measured(Millijoules(mj)),
        Absent(_) => value(|| device.total_energy_consumption()).map(Millijoules),
    }
}

/// The raw mask: the wrapper would drop bits that it does not know, which newer drivers set.
fn clocks_event(library: &Library, device: &Device) -> Reading<ClocksEventMask> {
    // SAFETY: the handle is NVML's own, used only while the library is loaded.
    let handle = unsafe { device.handle() };
    let read = match value(|| raw(&library.lib().nvmlDeviceGetCurrentClocksEventReasons, handle, 0)) {
        Absent(Absence::NotSupported) => {
            value(|| raw(&library.lib().nvmlDeviceGetCurrentClocksThrottleReasons, handle, 0))
        }
        other => other,
    };
    read.map(ClocksEventMask)
}

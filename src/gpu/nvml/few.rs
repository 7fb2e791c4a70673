//! Who is on a few units: of each its handle, its UUID, its memory and the three process lists, and no other call. A
//! handle by UUID initialises that GPU alone; only where nothing but a device file is known the handles are tried.

use super::{Library, Nvml, codes, lists, memory, uuid};
use crate::gpu::few::Wanted;
use crate::gpu::unread;
use crate::gpu::wire::{GPUS_MOST, Head, Piece};
use crate::model::{Readings, UnitIdentity, UnitSample};
use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use crate::units::{DeviceMinor, NvmlIndex};
use codes::value;
use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;
use std::mem::ManuallyDrop;

impl Nvml {
    /// Tells each unit under its place among the wanted.
    pub(in crate::gpu) fn few(&self, wanted: &[Wanted], out: &mut dyn FnMut(Piece)) {
        let library = match self.load() {
            Ok(library) => ManuallyDrop::new(library),
            Err(why) => return out(Piece::Begin(Absent(why))),
        };
        let wanted = &wanted[..wanted.len().min(GPUS_MOST as usize)];
        let head = Head { driver: Absent(Absence::NotAsked), gpus: wanted.len() as u32 };
        out(Piece::Begin(Measured(head)));
        for (place, wanted) in (0..).map(NvmlIndex).zip(wanted) {
            out(Piece::Unit(match found(&library, wanted) {
                Measured((device, minor)) => occupied(&library, &device, place, minor, wanted),
                Absent(why) => unread(place, why),
            }));
        }
        out(Piece::End);
    }
}

fn occupied(
    library: &Library,
    device: &Device,
    place: NvmlIndex,
    minor: Reading<DeviceMinor>,
    wanted: &Wanted,
) -> UnitSample {
    // A unit that calls itself otherwise than it was asked for is not the one.
    let uuid = uuid(device).plausible(|own| !matches!(wanted, Wanted::Uuid(uuid) if uuid != own));
    if let Absent(why) = uuid {
        return unread(place, why);
    }
    let memory = memory(library, device);
    let processes = lists::processes(library, device, &memory);
    let not_asked = unread(place, Absence::NotAsked).identity;
    UnitSample {
        identity: UnitIdentity { uuid, minor, ..not_asked },
        readings: Readings { memory, processes, ..Readings::absent(Absence::NotAsked) },
    }
}

fn found<'a>(library: &'a Library, wanted: &Wanted) -> Reading<(Device<'a>, Reading<DeviceMinor>)> {
    match wanted {
        Wanted::Uuid(uuid) => match library.device_by_uuid(uuid.as_str()) {
            Ok(device) => Measured((device, Absent(Absence::NotAsked))),
            Err(NvmlError::NotFound | NvmlError::InvalidArg) => Absent(Absence::NotListed),
            Err(e) => Absent(codes::at_handle(&e)),
        },
        Wanted::Minor(minor) => by_minor(library, *minor),
    }
}

/// One bad handle does not end the search, but then it may be the wanted one.
fn by_minor(library: &Library, minor: DeviceMinor) -> Reading<(Device<'_>, Reading<DeviceMinor>)> {
    let gpus = match value(|| library.device_count()).plausible(|n| *n <= GPUS_MOST) {
        Measured(gpus) => gpus,
        Absent(why) => return Absent(why),
    };
    let mut why_not = Absence::NotListed;
    for index in 0..gpus {
        let device = match library.device_by_index(index) {
            Ok(device) => device,
            Err(e) => {
                why_not = codes::at_handle(&e);
                continue;
            }
        };
        match value(|| device.minor_number()) {
            Measured(own) if DeviceMinor(own) == minor => return Measured((device, Measured(minor))),
            Measured(_) => {}
            Absent(why) => why_not = why,
        }
    }
    Absent(why_not)
}

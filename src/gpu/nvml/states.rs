//! States of a GPU that change rarely and take calls of their own: persistence mode, its place in the NVLink fabric,
//! and its links. Asked only in a look that is told to, and after all else: what they cost or hang takes no reading.

use super::codes::{self, Answer, raw, value};
use super::fields::{self, FieldValue};
use crate::gpu::wire::States;
use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::{Device, Nvml as Library};
use std::ffi::{c_uchar, c_uint};

/// NVML_FI_DEV_NVLINK_GET_STATE, with the link as its scope: from 525 on, and never another number's id (nvidia-ml-py
/// 450 to 615).
const LINK_STATE: c_uint = 165;
/// NVML_NVLINK_MAX_LINKS of the newest header. No GPU of today has so many: a link that it lacks is an invalid argument
/// (NVIDIA/TensorRT-LLM#17060).
const LINKS_MOST: c_uint = 36;
/// Probe state "completed" (nvml.h, NVML_GPU_FABRIC_STATE_COMPLETED).
const COMPLETED: u64 = 3;

/// All states of one GPU.
pub(super) fn ask(library: &Library, device: &Device) -> States {
    // SAFETY: the handle is NVML's own, used only while the library is loaded.
    let handle = unsafe { device.handle() };
    let mode = value(|| raw(&library.lib().nvmlDeviceGetPersistenceMode, handle, 0));
    let fabric = value(|| fabric(library, device));
    let links = links(library, device);
    States {
        persistence_mode: mode.map(u64::from).and_then(up_to(1)),
        fabric_state: fabric.map(|f| f.state).and_then(up_to(COMPLETED)),
        // Said only where the state is "completed", else it means nothing (nvml.h).
        fabric_status: fabric.and_then(|f| match f.state {
            COMPLETED => Measured(f.status),
            _ => Absent(Absence::NoData),
        }),
        nvlink_active: links.map(|l| l.active),
        nvlink_inactive: links.map(|l| l.inactive),
    }
}

/// A state by a number that has a meaning.
fn up_to(last: u64) -> impl Fn(u64) -> Reading<u64> {
    move |state| if state <= last { Measured(state) } else { Absent(Absence::NotUnderstood) }
}

// ---------------------------------------------------------------- the fabric

#[derive(Clone, Copy)]
struct Fabric {
    state: u64,
    status: u64,
}

/// nvmlGpuFabricInfo_v3_t, which begins as v2 does and has one number more.
#[repr(C)]
#[derive(Default)]
struct FabricInfo {
    version: c_uint,
    cluster: [c_uchar; 16],
    status: c_uint,
    clique: c_uint,
    state: c_uchar,
    health_mask: c_uint,
    health_summary: c_uchar,
}

/// The length that v2 has of it: up to the number that v3 adds.
const V2_BYTES: usize = std::mem::offset_of!(FabricInfo, health_summary);

/// Version 2, as from 550 on, and 3 where that is taken no more. A structure's version says its length too
/// (NVML_STRUCT_VERSION).
fn fabric(library: &Library, device: &Device) -> Answer<Fabric> {
    let call = codes::symbol(&library.lib().nvmlDeviceGetGpuFabricInfoV)?;
    let ask = |version: usize, bytes: usize| {
        let mut info = FabricInfo { version: (bytes | version << 24) as c_uint, ..FabricInfo::default() };
        // SAFETY: `FabricInfo` has the layout of the version that it announces, or more room than that, and the
        // handle is NVML's own.
        nvml_try(unsafe { call(device.handle(), (&raw mut info).cast()) })?;
        Ok(Fabric { state: info.state.into(), status: info.status.into() })
    };
    match ask(2, V2_BYTES) {
        // 25: argument version mismatch.
        Err(NvmlError::UnexpectedVariant(25)) => ask(3, size_of::<FabricInfo>()),
        answer => answer,
    }
}

// ---------------------------------------------------------------- NVLink

#[derive(Clone, Copy, Default)]
struct Links {
    active: u64,
    inactive: u64,
}

impl Links {
    /// One more, by NVML_NVLINK_STATE_*: inactive, active, asleep, or active and closed to traffic.
    fn with(self, state: u64) -> Reading<Links> {
        match state {
            0 => Measured(Links { inactive: self.inactive + 1, ..self }),
            1..=3 => Measured(Links { active: self.active + 1, ..self }),
            _ => Absent(Absence::NotUnderstood),
        }
    }
}

/// The links that this GPU has, counted by state. All by one call; where that knows none (drivers before 525, and
/// GPUs before Hopper, of which NCCL does not ask it), one by one. Not supported where there are none.
fn links(library: &Library, device: &Device) -> Reading<Links> {
    let questions = || (0..LINKS_MOST).map(|link| FieldValue::asked(LINK_STATE, link)).collect();
    let answers = value(|| fields::call(library, device, questions()));
    let by_itself = |link| by_itself(library, device, link);
    // A link that is down may be a node's fault: it takes the word of both calls.
    let told =
        (0..).zip(answers.measured().into_iter().flatten()).map(|(link, answer)| {
            match fields::number(answer) {
                Measured(0) if by_itself(link) == Measured(1) => Measured(1),
                state => state,
            }
        });
    let not_there = |state: &Reading<u64>| *state == Absent(Absence::NotSupported);
    match counted(told.filter(|state| !not_there(state))) {
        Absent(Absence::NotSupported) => {
            counted((0..LINKS_MOST).map(by_itself).take_while(|state| !not_there(state)))
        }
        counted => counted,
    }
}

/// One that cannot be read leaves both counts absent: it might be either.
fn counted(states: impl Iterator<Item = Reading<u64>>) -> Reading<Links> {
    let mut links: Option<Links> = None;
    for state in states {
        match state.and_then(|state| links.unwrap_or_default().with(state)) {
            Measured(more) => links = Some(more),
            Absent(why) => return Absent(why),
        }
    }
    links.map_or(Absent(Absence::NotSupported), Measured)
}

/// 0 inactive, 1 active; not supported for a link that is not there.
fn by_itself(library: &Library, device: &Device, link: c_uint) -> Reading<u64> {
    let ask = || {
        let call = codes::symbol(&library.lib().nvmlDeviceGetNvLinkState)?;
        let mut active = 0;
        // SAFETY: NVML writes one number, which outlives the call; the handle is its own.
        nvml_try(unsafe { call(device.handle(), link, &mut active) })?;
        Ok(u64::from(active))
    };
    value(|| match ask() {
        Err(NvmlError::InvalidArg) => Err(NvmlError::NotSupported),
        answer => answer,
    })
    .and_then(up_to(1))
}

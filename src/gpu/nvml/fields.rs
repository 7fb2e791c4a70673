//! The numbers that NVML gives by field id: cumulative counters, states, energy and the instant power, all of one
//! GPU in one call. Ids that moved between drivers are taken from the table here, by the driver's version; what a
//! driver cannot mean by an id is not asked.

use super::codes::{self, Answer, absence, value};
use crate::model::{Field, Fields};
use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::{Device, Nvml as Library};
use std::ffi::{c_int, c_uint};

/// A driver's version as far as ids depend on it, `(580, 95)` of `580.95.05`.
type Version = (u32, u32);

fn version(driver: &str) -> Option<Version> {
    let mut parts = driver.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Energy,
    InstantPower,
    Count(Field),
}

/// What one field id means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    what: What,
    id: c_uint,
    scope: c_uint,
}

/// Ids that have meant the same since 450 and longer (nvml.h; nvidia-ml-py from 450 on).
const SETTLED: [(Field, c_uint); 20] = [
    (Field::PowerCapNs, 74),
    (Field::ThermalNs, 75),
    (Field::SyncBoostNs, 76),
    (Field::BoardLimitNs, 77),
    (Field::LowUtilizationNs, 78),
    (Field::ReliabilityNs, 79),
    (Field::NvlinkTxKib, 138),
    (Field::NvlinkRxKib, 139),
    (Field::EccCorrectedVolatile, 3),
    (Field::EccUncorrectedVolatile, 4),
    (Field::EccCorrectedAggregate, 5),
    (Field::EccUncorrectedAggregate, 6),
    (Field::RetiredSingleBit, 29),
    (Field::RetiredDoubleBit, 30),
    (Field::RetiredPending, 31),
    (Field::PcieReplays, 94),
    (Field::RemappedCorrectable, 142),
    (Field::RemappedUncorrectable, 143),
    (Field::RemapPending, 144),
    (Field::RemapFailed, 145),
];

/// Ids that are new or were given out anew, with the first version and the first one beyond (nvidia-ml-py 450 to
/// 615): 251 on a driver 570 is power smoothing and no time.
const MOVED: [(Field, c_uint, Version, Version); 9] = [
    (Field::PcieTxBytes, 197, (555, 0), NEVER),
    (Field::PcieRxBytes, 198, (555, 0), NEVER),
    (Field::RecoveryAction, 230, (570, 0), NEVER),
    (Field::SwThermalNs, 251, (575, 0), (580, 82)),
    (Field::HwThermalNs, 252, (575, 0), (580, 82)),
    (Field::HwPowerBrakeNs, 253, (575, 0), (580, 82)),
    (Field::SwThermalNs, 269, (580, 82), NEVER),
    (Field::HwThermalNs, 270, (580, 82), NEVER),
    (Field::HwPowerBrakeNs, 271, (580, 82), NEVER),
];
const NEVER: Version = (u32::MAX, u32::MAX);

/// The scope of 138 and 139 that means all links together (nvml.h).
const ALL_LINKS: c_uint = c_uint::MAX;

/// What every GPU of a run is asked for.
pub(super) struct Catalogue(Vec<Entry>);

impl Catalogue {
    /// By the driver's version; one that is not understood gets nothing that ever moved.
    pub(super) fn of(driver: Option<&str>) -> Catalogue {
        let entry = |what, id| {
            let scope = if matches!(id, 138 | 139) { ALL_LINKS } else { 0 };
            Entry { what, id, scope }
        };
        let mut entries = vec![entry(What::Energy, 83), entry(What::InstantPower, 186)];
        entries.extend(SETTLED.map(|(field, id)| entry(What::Count(field), id)));
        if let Some(version) = driver.and_then(version) {
            let here = MOVED.iter().filter(|(_, _, from, beyond)| (*from..*beyond).contains(&version));
            entries.extend(here.map(|(field, id, ..)| entry(What::Count(*field), *id)));
        }
        Catalogue(entries)
    }

    /// Asks one GPU for all of it. A field that is not asked is not supported; GPM's and the states are not measured
    /// here.
    pub(super) fn ask(&self, library: &Library, device: &Device, gpm: Absence) -> Batch {
        let blank = |entry: &Entry| FieldValue::asked(entry.id, entry.scope);
        let answers = value(|| call(library, device, self.0.iter().map(blank).collect()));
        let answer = |at: usize| match &answers {
            Measured(values) => number(&values[at]),
            Absent(why) => Absent(*why),
        };
        let not_supported = Absent(Absence::NotSupported);
        let mut batch = Batch { energy: not_supported, instant_power: not_supported, fields: unasked(gpm) };
        for (at, entry) in self.0.iter().enumerate() {
            match entry.what {
                What::Energy => batch.energy = answer(at),
                What::InstantPower => batch.instant_power = answer(at),
                What::Count(field) => batch.fields.set(field, answer(at)),
            }
        }
        batch
    }
}

/// Raw: nvml-wrapper cuts 64-bit values to 32, knows no scopes and translates ids by a table of its own. Answers lie
/// where the questions lay: the id that comes back may be another one. The questions are blank for each call: the
/// driver adds to a value that is not 0 (NVIDIA/go-nvml#46).
pub(super) fn call(
    library: &Library,
    device: &Device,
    mut values: Vec<FieldValue>,
) -> Answer<Vec<FieldValue>> {
    let call = codes::symbol(&library.lib().nvmlDeviceGetFieldValues)?;
    // SAFETY: `FieldValue` has the layout of nvmlFieldValue_t, as many are announced as there are, and the handle is
    // NVML's own.
    nvml_try(unsafe { call(device.handle(), values.len() as c_int, values.as_mut_ptr().cast()) })?;
    Ok(values)
}

/// No field at all: GPM's stand with `gpm`, and the states are not asked.
pub(super) fn unasked(gpm: Absence) -> Fields {
    let none = Fields::absent(Absence::NotSupported);
    let gpm = GPM.iter().fold(none, |all, field| all.with(*field, Absent(gpm)));
    STATES.iter().fold(gpm, |all, field| all.with(*field, Absent(Absence::NotAsked)))
}

const GPM: [Field; 3] = [Field::GpmSmActive, Field::GpmTensorActive, Field::GpmDramActive];
const STATES: [Field; 5] = [
    Field::PersistenceMode,
    Field::FabricState,
    Field::FabricStatus,
    Field::NvlinkActive,
    Field::NvlinkInactive,
];

/// What one call brought.
pub(super) struct Batch {
    /// mJ since the driver was loaded.
    pub(super) energy: Reading<u64>,
    /// mW.
    pub(super) instant_power: Reading<u64>,
    /// The rest.
    pub(super) fields: Fields,
}

/// nvmlFieldValue_t. Its value is a union of 8 bytes, kept here as they come.
#[repr(C)]
#[derive(Default)]
pub(super) struct FieldValue {
    id: c_uint,
    scope: c_uint,
    stamp_us: i64,
    latency_us: i64,
    value_type: c_uint,
    result: c_uint,
    value: [u8; 8],
}

impl FieldValue {
    /// A question.
    pub(super) fn asked(id: c_uint, scope: c_uint) -> FieldValue {
        FieldValue { id, scope, ..FieldValue::default() }
    }
}

pub(super) fn number(field: &FieldValue) -> Reading<u64> {
    match nvml_try(field.result) {
        Ok(()) => codes::count(field.value_type, field.value),
        // All that can be wrong with this question is its id: an older driver does not have it.
        Err(NvmlError::InvalidArg) => Absent(Absence::NotSupported),
        Err(e) => Absent(absence(&e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_moved_are_asked_only_where_they_mean_what_they_should() {
        let table: [(Option<&str>, &[c_uint]); 17] = [
            (Some("450.248.02"), &[]),
            (Some("535.54.03"), &[]),
            (Some("550.163.01"), &[]),
            (Some("555.42.02"), &[197, 198]),
            (Some("560.35.03"), &[197, 198]),
            (Some("570.0"), &[197, 198, 230]),
            (Some("570.211.01"), &[197, 198, 230]),
            (Some("575.51.03"), &[197, 198, 230, 251, 252, 253]),
            (Some("580.65.06"), &[197, 198, 230, 251, 252, 253]),
            (Some("580.81"), &[197, 198, 230, 251, 252, 253]),
            (Some("580.82.07"), &[197, 198, 230, 269, 270, 271]),
            (Some("580.159"), &[197, 198, 230, 269, 270, 271]),
            (Some("615.36"), &[197, 198, 230, 269, 270, 271]),
            (Some("580"), &[]),
            (Some("next.95"), &[]),
            (Some(""), &[]),
            (None, &[]),
        ];
        for (driver, moved) in table {
            let Catalogue(entries) = Catalogue::of(driver);
            let is_settled = |id: c_uint| matches!(id, 83 | 186) || SETTLED.iter().any(|(_, i)| *i == id);
            let found: Vec<c_uint> = entries.iter().map(|e| e.id).filter(|id| !is_settled(*id)).collect();
            assert_eq!(found, moved, "{driver:?}");
            assert_eq!(entries.len(), 2 + SETTLED.len() + moved.len(), "{driver:?}");
        }
    }

    #[test]
    fn a_current_driver_is_asked_for_every_field_but_gpms_and_the_states_once() {
        let Catalogue(entries) = Catalogue::of(Some("580.95.05"));
        for field in Field::ALL {
            let times = entries.iter().filter(|e| e.what == What::Count(*field)).count();
            let other = GPM.contains(field) || STATES.contains(field);
            assert_eq!(times, usize::from(!other), "{}", field.word());
        }
        let wide: Vec<c_uint> = entries.iter().filter(|e| e.scope == ALL_LINKS).map(|e| e.id).collect();
        assert_eq!(wide, [138, 139]);
    }

    #[test]
    fn a_field_that_failed_is_absent_for_its_own_reason() {
        let field = |result, value_type, value: u64| FieldValue {
            result,
            value_type,
            value: value.to_ne_bytes(),
            ..FieldValue::default()
        };
        let table = [
            (field(0, 3, 7), Measured(7)),
            (field(0, 5, 7), Measured(7)),
            (field(0, 4, u64::MAX), Absent(Absence::Implausible)),
            (field(0, 0, 7), Absent(Absence::NotUnderstood)),
            (field(3, 3, 7), Absent(Absence::NotSupported)),
            (field(2, 3, 7), Absent(Absence::NotSupported)),
            (field(4, 3, 7), Absent(Absence::NoPermission)),
            (field(999, 3, 7), Absent(Absence::Transient)),
        ];
        for (field, want) in table {
            assert_eq!(number(&field), want, "result {} type {}", field.result, field.value_type);
        }
    }
}

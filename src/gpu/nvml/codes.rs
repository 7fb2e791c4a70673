//! NVML's answers, turned into readings: the one table from its error codes to our reasons.

use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use nvml_wrapper::error::{NvmlError, nvml_try};
use std::ffi::c_uint;

/// What one call answers.
pub(super) type Answer<T> = Result<T, NvmlError>;

/// Why a failed call leaves its reading absent (nvml.h, nvmlReturn_t). nvml-wrapper 0.13 has no variants for
/// codes 23 to 30: they arrive as `UnexpectedVariant`.
pub(super) fn absence(error: &NvmlError) -> Absence {
    use NvmlError::*;
    match error {
        NotSupported | FunctionNotFound | FailedToLoadSymbol(_) | VgpuEccNotSupported => {
            Absence::NotSupported
        }
        // 24 frequency, 25 structure version, 26 deprecated, 30 reset type.
        UnexpectedVariant(24..=26 | 30) => Absence::NotSupported,
        NoPermission | OperatingSystem => Absence::NoPermission,
        NotFound | NoData => Absence::NoData,
        // 28: GPU not found.
        GpuLost | UnexpectedVariant(28) => Absence::GpuLost,
        ResetRequired => Absence::ResetRequired,
        DriverNotLoaded => Absence::DriverNotLoaded,
        LibraryNotFound | LibloadingError(_) => Absence::LibraryNotFound,
        LibRmVersionMismatch => Absence::VersionMismatch,
        // 23 resources, 27 not ready, 29 state.
        Timeout | InUse | InsufficientMemory | Unknown | UnexpectedVariant(23 | 27 | 29) => {
            Absence::Transient
        }
        InsufficientPower | IrqIssue | CorruptedInfoROM => Absence::SourceFailed,
        _ => Absence::NotUnderstood,
    }
}

/// At the start, code 9 has two meanings: the library also gives it where the driver is there but
/// open(/dev/nvidiactl) is refused.
pub(super) fn at_start(error: &NvmlError, driver_loaded: bool) -> Absence {
    match absence(error) {
        Absence::DriverNotLoaded if driver_loaded => Absence::ControlRefused,
        why => why,
    }
}

/// At a GPU's handle, "unknown error" is how drivers speak of a card that is gone.
pub(super) fn at_handle(error: &NvmlError) -> Absence {
    match error {
        NvmlError::Unknown => Absence::GpuLost,
        other => absence(other),
    }
}

/// A reading by a call, asked a second time where the first failed for now.
pub(super) fn value<T>(ask: impl Fn() -> Answer<T>) -> Reading<T> {
    let first = ask().map_err(|e| absence(&e));
    let settled = match first {
        Err(Absence::Transient) => ask().map_err(|e| absence(&e)),
        other => other,
    };
    settled.map_or_else(Absent, Measured)
}

/// A function of the library, which this driver may lack.
pub(super) fn symbol<F: Copy, E>(found: &Result<F, E>) -> Answer<F> {
    found.as_ref().copied().map_err(|_| NvmlError::FunctionNotFound)
}

/// A raw call that fills in one number. `D` is NVML's device handle, a type that nvml-wrapper does not name.
pub(super) fn raw<D, T, E>(
    call: &Result<unsafe extern "C" fn(D, *mut T) -> c_uint, E>,
    handle: D,
    mut number: T,
) -> Answer<T> {
    let call = symbol(call)?;
    // SAFETY: NVML writes one `T`, which outlives the call; the handle comes from NVML.
    nvml_try(unsafe { call(handle, &mut number) })?;
    Ok(number)
}

/// The number in an nvmlValue_t by its nvmlValueType_t; `None` for kinds that hold no whole number.
fn whole(value_type: c_uint, value: [u8; 8]) -> Option<i128> {
    let [a, b, c, d, ..] = value;
    Some(match value_type {
        1 => u32::from_ne_bytes([a, b, c, d]).into(),
        2 | 3 => u64::from_ne_bytes(value).into(),
        4 => i64::from_ne_bytes(value).into(),
        5 => i32::from_ne_bytes([a, b, c, d]).into(),
        6 => u16::from_ne_bytes([a, b]).into(),
        _ => return None,
    })
}

/// A count in an nvmlValue_t: nothing is counted below zero.
pub(super) fn count(value_type: c_uint, value: [u8; 8]) -> Reading<u64> {
    match whole(value_type, value).map(u64::try_from) {
        Some(Ok(count)) => Measured(count),
        Some(Err(_)) => Absent(Absence::Implausible),
        None => Absent(Absence::NotUnderstood),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn every_code_of_the_driver_has_its_reason() {
        use Absence::*;
        let table = [
            (3, NotSupported),
            (13, NotSupported),
            (24, NotSupported),
            (25, NotSupported),
            (26, NotSupported),
            (6, NoData),
            (21, NoData),
            (4, NoPermission),
            (17, NoPermission),
            (15, GpuLost),
            (28, GpuLost),
            (16, ResetRequired),
            (9, DriverNotLoaded),
            (12, LibraryNotFound),
            (18, VersionMismatch),
            (10, Transient),
            (19, Transient),
            (20, Transient),
            (23, Transient),
            (27, Transient),
            (29, Transient),
            (999, Transient),
            (8, SourceFailed),
            (11, SourceFailed),
            (14, SourceFailed),
            (1, NotUnderstood),
            (2, NotUnderstood),
            (7, NotUnderstood),
            (4711, NotUnderstood),
        ];
        for (code, want) in table {
            assert_eq!(absence(&NvmlError::from(code as c_uint)), want, "code {code}");
        }
    }

    #[test]
    fn code_9_with_a_loaded_driver_is_a_refused_control_device() {
        assert_eq!(at_start(&NvmlError::DriverNotLoaded, false), Absence::DriverNotLoaded);
        assert_eq!(at_start(&NvmlError::DriverNotLoaded, true), Absence::ControlRefused);
        assert_eq!(at_start(&NvmlError::LibRmVersionMismatch, true), Absence::VersionMismatch);
        assert_eq!(at_handle(&NvmlError::Unknown), Absence::GpuLost);
        assert_eq!(at_handle(&NvmlError::NoPermission), Absence::NoPermission);
    }

    #[test]
    fn a_passing_failure_is_asked_about_once_more_and_never_twice() {
        let table: [(&[c_uint], Reading<u32>); 4] = [
            (&[0], Measured(7)),
            (&[999, 0], Measured(7)),
            (&[10, 999], Absent(Absence::Transient)),
            (&[3], Absent(Absence::NotSupported)),
        ];
        for (codes, want) in table {
            let mut calls = Cell::new(0);
            let got = value(|| nvml_try(codes[calls.replace(calls.get() + 1)]).map(|()| 7));
            assert_eq!((got, *calls.get_mut()), (want, codes.len()), "{codes:?}");
        }
    }

    #[test]
    fn a_value_is_read_in_its_own_width_and_sign() {
        let wide = 8_589_934_597u64;
        let table = [
            (1, wide, Measured(5)),
            (2, wide, Measured(wide)),
            (3, wide, Measured(wide)),
            (3, u64::MAX, Measured(u64::MAX)),
            (4, wide, Measured(wide)),
            (4, u64::MAX, Absent(Absence::Implausible)),
            (5, wide, Measured(5)),
            (5, 0xffff_fffe, Absent(Absence::Implausible)),
            (6, 65_537, Measured(1)),
            (0, wide, Absent(Absence::NotUnderstood)),
            (7, wide, Absent(Absence::NotUnderstood)),
        ];
        for (value_type, value, want) in table {
            assert_eq!(count(value_type, value.to_ne_bytes()), want, "type {value_type}");
        }
    }
}

//! Readings of numbers as few bytes, and single ones found again in them. The form is told at [`super::Fields::pack`].
//! Makes no number of bytes that make no sense.

use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};

/// All of them, up to the last that was recorded.
pub(super) fn pack(all: &[Reading<u64>]) -> Vec<u8> {
    let recorded = |reading: &Reading<u64>| *reading != Absent(Absence::NotRecorded);
    let mut left = &all[..all.iter().rposition(recorded).map_or(0, |last| last + 1)];
    let mut bytes = Vec::with_capacity(96);
    while let Some(first) = left.first().map(|first| storable(*first)) {
        let alike = match first {
            Measured(0) | Absent(_) => left.iter().take_while(|r| storable(**r) == first).count(),
            Measured(_) => 1,
        };
        match first {
            Measured(value) => push(&mut bytes, value + 1),
            Absent(why) => {
                push(&mut bytes, 0);
                push(&mut bytes, why.code().unsigned_abs());
            }
        }
        if first.measured().is_none_or(|value| *value == 0) {
            push(&mut bytes, alike as u64);
        }
        left = &left[alike..];
    }
    bytes
}

fn storable(reading: Reading<u64>) -> Reading<u64> {
    reading.plausible(|value| *value < u64::MAX)
}

/// The one at a place.
pub(super) fn find(mut bytes: &[u8], place: usize) -> Reading<u64> {
    let mut before = place as u64;
    while !bytes.is_empty() {
        let Some((reading, alike)) = next(&mut bytes) else {
            return Absent(Absence::NotUnderstood);
        };
        match before.checked_sub(alike) {
            Some(rest) => before = rest,
            None => return reading,
        }
    }
    Absent(Absence::NotRecorded)
}

/// A reading and for how many fields it stands.
fn next(bytes: &mut &[u8]) -> Option<(Reading<u64>, u64)> {
    match pull(bytes)? {
        0 => {
            let code = i64::try_from(pull(bytes)?).ok().filter(|code| *code > 0)?;
            Some((Absent(Absence::from_code(code)), count(bytes)?))
        }
        1 => Some((Measured(0), count(bytes)?)),
        above => Some((Measured(above - 1), 1)),
    }
}

fn count(bytes: &mut &[u8]) -> Option<u64> {
    pull(bytes).filter(|count| *count > 0)
}

fn push(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// `None` where the number does not end, or is larger than any.
fn pull(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for place in 0..10 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        // Of the tenth byte one bit is left.
        if place == 9 && bits > 1 {
            return None;
        }
        number |= bits << (7 * place);
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::{Field, Fields};
    use super::*;

    #[test]
    fn what_was_packed_comes_back_as_itself() {
        let first = |value| Fields::absent(Absence::NotSupported).with(Field::RecoveryAction, value);
        let mixed = Fields::absent(Absence::NotAsked)
            .with(Field::RecoveryAction, Measured(0))
            .with(Field::ThermalNs, Measured(126))
            .with(Field::SwThermalNs, Measured(127))
            .with(Field::LowUtilizationNs, Measured(0))
            .with(Field::ReliabilityNs, Measured(0))
            .with(Field::PcieTxBytes, Measured(u64::MAX - 1))
            .with(Field::RemapFailed, Absent(Absence::GpuLost))
            .with(Field::GpmDramActive, Measured(10_000));
        let absent = Absence::ALL.iter().map(|why| Fields::absent(*why));
        for fields in absent.chain([mixed, first(Measured(1 << 40)), first(Absent(Absence::NotRecorded))]) {
            let bytes = fields.pack();
            assert_eq!(Fields::packed(&bytes), fields, "{bytes:?}");
            assert_eq!(Fields::packed(&bytes).pack(), bytes);
        }
        assert!(Fields::absent(Absence::NotRecorded).pack().is_empty());
        assert!(Fields::absent(Absence::NotSupported).pack().len() < 4);
    }

    #[test]
    fn a_number_that_does_not_fit_is_implausible_and_the_others_stay() {
        let fields = Fields::absent(Absence::NoData)
            .with(Field::RecoveryAction, Measured(u64::MAX))
            .with(Field::ThermalNs, Measured(7));
        let back = Fields::packed(&fields.pack());
        assert_eq!(back.get(Field::RecoveryAction), Absent(Absence::Implausible));
        assert_eq!(back.get(Field::ThermalNs), Measured(7));
        assert_eq!(back.get(Field::HwThermalNs), Absent(Absence::NoData));
    }

    #[test]
    fn a_field_that_an_older_row_does_not_hold_was_not_recorded() {
        let older = Fields::packed(&[8, 0, 1, 2]);
        assert_eq!(older.get(Field::RecoveryAction), Measured(7));
        assert_eq!(older.get(Field::SwThermalNs), Absent(Absence::NotSupported));
        assert_eq!(older.get(Field::HwThermalNs), Absent(Absence::NotRecorded));
        assert_eq!(Fields::packed(&[]), Fields::absent(Absence::NotRecorded));
    }

    #[test]
    fn bytes_that_make_no_sense_are_not_understood_and_never_a_number() {
        let broken: [(&str, &[u8]); 9] = [
            ("a number that does not end", &[8, 0x80]),
            ("an absence without its reason", &[8, 0]),
            ("an absence without its count", &[8, 0, 3]),
            ("no reason", &[8, 0, 0, 1]),
            ("for no field", &[8, 0, 3, 0]),
            ("a nought without its count", &[8, 1]),
            ("a nought for no field", &[8, 1, 0]),
            ("larger than any number", &[8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2]),
            ("longer than any number", &[8, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 0]),
        ];
        for (name, bytes) in broken {
            let fields = Fields::packed(bytes);
            assert_eq!(fields.get(Field::RecoveryAction), Measured(7), "{name}");
            for field in &Field::ALL[1..] {
                assert_eq!(fields.get(*field), Absent(Absence::NotUnderstood), "{name}");
            }
        }
        let later = Fields::packed(&[0, 99, 1]);
        assert_eq!(
            later.get(Field::RecoveryAction),
            Absent(Absence::NotRecorded),
            "a later version's reason"
        );
    }

    #[test]
    fn writing_one_down_keeps_what_was_stored() {
        let stored = Fields::absent(Absence::NoData).with(Field::ThermalNs, Measured(5));
        let changed = Fields::packed(&stored.pack()).with(Field::RecoveryAction, Measured(1));
        assert_eq!(changed, stored.with(Field::RecoveryAction, Measured(1)));
    }
}

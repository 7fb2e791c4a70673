//! Durations and sizes as people spell them, in the configuration and elsewhere: whole numbers with a unit, nothing
//! else. Never guesses a unit: a bare `30` is no duration, and `20M` (months to other readers) is not twenty minutes.

use std::time::Duration;

/// The longest duration that can be said.
pub const LONGEST: Duration = Duration::from_secs(366 * 86_400);

const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3600), ('m', 60), ('s', 1)];
const SIZES: [(&str, u32); 3] = [("GiB", 30), ("MiB", 20), ("KiB", 10)];

/// `30m`, `1h30m`, `0s`: units in falling order, each at most once, [`LONGEST`] in all.
pub fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut secs = 0;
    let mut units = UNITS.iter();
    while !rest.is_empty() || text.is_empty() {
        let (number, after) = leading_number(rest)?;
        let unit = after.chars().next()?;
        let (_, factor) = units.find(|(letter, _)| *letter == unit)?;
        secs += number * factor;
        rest = &after[1..];
    }
    Some(Duration::from_secs(secs)).filter(|d| *d <= LONGEST)
}

/// The one spelling of a duration in whole seconds; [`duration`] reads it back.
pub fn duration_text(duration: Duration) -> String {
    let mut secs = duration.as_secs();
    let mut text = String::new();
    for (letter, factor) in UNITS {
        if secs >= factor {
            text.push_str(&format!("{}{letter}", secs / factor));
            secs %= factor;
        }
    }
    if text.is_empty() {
        text.push_str("0s");
    }
    text
}

/// `64MiB`: bytes.
pub fn size(text: &str) -> Option<u64> {
    let (number, unit) = leading_number(text)?;
    let (_, shift) = SIZES.iter().find(|(name, _)| *name == unit)?;
    Some(number << shift)
}

/// A size in the largest unit that holds it exactly; sizes below 1 KiB do not exist here.
pub fn size_text(bytes: u64) -> String {
    let exact = |(_, shift): &&(&str, u32)| bytes > 0 && bytes.trailing_zeros() >= *shift;
    let (unit, shift) = SIZES.iter().find(exact).unwrap_or(&SIZES[2]);
    format!("{}{unit}", bytes >> shift)
}

/// At most nine digits, so that no product with a unit overflows.
fn leading_number(text: &str) -> Option<(u64, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number = text[..digits].parse().ok()?;
    (digits <= 9).then_some((number, &text[digits..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_duration_is_whole_numbers_with_units_in_falling_order() {
        let table = [
            ("0s", 0),
            ("0m", 0),
            ("90s", 90),
            ("30m", 1800),
            ("1h30m", 5400),
            ("1d2h3m4s", 93_784),
            ("007m", 420),
            ("366d", 31_622_400),
        ];
        for (text, secs) in table {
            assert_eq!(duration(text), Some(Duration::from_secs(secs)), "{text:?}");
        }
    }

    #[test]
    fn what_could_be_misread_is_no_duration() {
        let table = [
            "",
            "0",
            "30",
            "m",
            "20M",
            "1.5h",
            "-5m",
            "+5m",
            " 5m",
            "5m ",
            "5 m",
            "5m30",
            "5m5m",
            "30m1h",
            "1w",
            "1y",
            "5min",
            "1h 30m",
            "1_0m",
            "\u{663}m",
            "5\u{b5}",
            "366d1s",
            "367d",
            "9999999999s",
            "99999999999999999999h",
        ];
        for text in table {
            assert_eq!(duration(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_size_is_a_whole_number_of_kib_mib_or_gib() {
        assert_eq!(size("64MiB"), Some(64 << 20));
        assert_eq!(size("1GiB"), Some(1 << 30));
        for text in ["", "64", "64MB", "64 MiB", "64mib", "1.5GiB", "MiB", "9999999999KiB"] {
            assert_eq!(size(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn every_duration_reads_back_as_it_was_written(secs in 0u64..=31_622_400) {
            let written = Duration::from_secs(secs);
            prop_assert_eq!(duration(&duration_text(written)), Some(written));
        }

        #[test]
        fn every_size_reads_back_as_it_was_written(kib in 1u64..=1 << 40) {
            let text = size_text(kib << 10);
            prop_assert!(size(&text) == Some(kib << 10) || text.len() > "999999999KiB".len());
        }

        #[test]
        fn any_text_is_a_quantity_or_none(text in "\\PC*") {
            let _ = (duration(&text), size(&text));
        }

        #[test]
        fn what_is_read_lies_within_bounds(text in "([0-9]{1,12}[dhms]?){1,4}") {
            if let Some(read) = duration(&text) {
                prop_assert!(read <= LONGEST);
                prop_assert_eq!(duration(&duration_text(read)), Some(read));
            }
        }
    }
}

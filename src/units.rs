//! The words of quantity: each unit and each kind of name is a type of its own, so that no bare number
//! crosses a floor. Nothing here knows where a value came from or what it is for.

pub mod quantity;
pub mod rights;

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $suffix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{}", $suffix), self.0)
            }
        }
    };
}

number!(
    /// Power in milliwatts, NVML's own unit.
    Milliwatts(u64), " mW"
);
number!(
    /// Energy in millijoules since the driver was loaded (a counter).
    Millijoules(u64), " mJ"
);
number!(
    /// Memory in bytes.
    MemoryBytes(u64), " bytes"
);
number!(
    /// A clock in MHz; 0 is a real reading on idle cards.
    Megahertz(u32), " MHz"
);
number!(
    /// A temperature in degrees Celsius.
    Celsius(u32), " C"
);
number!(
    /// NVML's enumeration index. Changes when a card drops out: never a key.
    NvmlIndex(u32), ""
);
number!(
    /// N of `/dev/nvidiaN`.
    DeviceMinor(u32), ""
);
number!(
    /// Position in slurmd's merged gres.conf list, as in `SLURM_JOB_GPUS`.
    GresIndex(u32), ""
);
number!(
    /// NVML's clocks-event reasons as the raw mask: bits that no header names yet are kept.
    ClocksEventMask(u64), ""
);
number!(
    /// An instant on CLOCK_BOOTTIME, in milliseconds since this boot. All arithmetic on time uses it;
    /// it means nothing on another boot.
    BootMs(i64), " ms"
);
number!(
    /// An instant of the wall clock, Unix milliseconds. For showing only: it may jump either way.
    WallMs(i64), " ms"
);

impl BootMs {
    /// Milliseconds from `earlier` to `self`; negative where `earlier` is later.
    pub fn since_ms(self, earlier: BootMs) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl WallMs {
    /// RFC 3339 in UTC to the second; an instant that chrono cannot name is shown as its number.
    pub fn rfc3339(self) -> String {
        match chrono::DateTime::from_timestamp_millis(self.0) {
            Some(at) => at.format("%Y-%m-%dT%H:%M:%SZ").to_string(),
            None => format!("@{}ms", self.0),
        }
    }

    /// Reads RFC 3339 back: a date, a time and a zone. A time without a zone is nobody's.
    pub fn parse(text: &str) -> Option<WallMs> {
        chrono::DateTime::parse_from_rfc3339(text).ok().map(|at| WallMs(at.timestamp_millis()))
    }
}

impl Milliwatts {
    /// Watts with one digit, as people read them.
    pub fn watts(self) -> String {
        format!("{}.{} W", self.0 / 1000, self.0 % 1000 / 100)
    }
}

impl MemoryBytes {
    /// A size as people read it: GiB with one digit from 1 GiB up, else MiB.
    pub fn human(self) -> String {
        const GIB: u64 = 1 << 30;
        if self.0 >= GIB {
            format!("{}.{} GiB", self.0 / GIB, self.0 % GIB * 10 / GIB)
        } else {
            format!("{} MiB", self.0 >> 20)
        }
    }
}

/// A share of a whole, 0 to 100. Made only by [`Percent::new`], so a value above 100 cannot exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Percent(u8);

impl Percent {
    /// `None` above 100: drivers do answer such values (dcgm-exporter#418); the source calls them implausible.
    pub fn new(value: u32) -> Option<Percent> {
        u8::try_from(value).ok().filter(|v| *v <= 100).map(Percent)
    }

    /// The number itself, 0 to 100.
    pub fn get(self) -> u32 {
        u32::from(self.0)
    }
}

impl TryFrom<u32> for Percent {
    type Error = String;
    fn try_from(value: u32) -> Result<Percent, String> {
        Percent::new(value).ok_or_else(|| format!("{value} is no percentage (0 to 100)"))
    }
}

impl From<Percent> for u32 {
    fn from(p: Percent) -> u32 {
        p.get()
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.0)
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $ok:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Refuses what can be no such name; the error says what was found and what is allowed.
            pub fn new(text: &str) -> Result<$name, String> {
                let ok: fn(&str) -> bool = $ok;
                if ok(text) {
                    Ok($name(text.to_owned()))
                } else {
                    Err(format!("`{}` is no {}", text.escape_debug(), $what))
                }
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<$name, D::Error> {
                let text = String::deserialize(d)?;
                $name::new(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

fn plain(text: &str, extra: &[u8], most: usize) -> bool {
    !text.is_empty()
        && text.len() <= most
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || extra.contains(&b))
}

name!(
    /// The identity of an allocation unit: `GPU-...` or `MIG-...` as NVML prints it. The only key.
    UnitUuid,
    "UUID of a GPU or MIG instance (`GPU-` or `MIG-`, then letters, digits, `-` and `/`)",
    |t| (t.starts_with("GPU-") || t.starts_with("MIG-")) && t.len() > 4 && plain(t, b"-/", 96)
);
name!(
    /// Slurm's name of a node (`SLURMD_NODENAME`), never the host name. Safe as a folder name.
    NodeName,
    "node name (letters, digits, `.`, `_`, `-`; at most 255; not starting with `.` or `-`)",
    |t| plain(t, b"._-", 255) && !t.starts_with(['.', '-'])
);

/// A number that differs by name: FNV-1a.
pub fn hash(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, b| (hash ^ u32::from(b)).wrapping_mul(0x0100_0193))
}

impl NodeName {
    /// For a story that no node of a cluster plays in.
    pub fn nowhere() -> NodeName {
        NodeName("nowhere".to_owned())
    }
}

/// A PCI address in one spelling, whichever of the three NVML, the kernel log or /proc used:
/// `0000:9b:00.0`, domain of four digits at least, lower case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PciAddress(String);

impl PciAddress {
    /// Reads `00000000:9B:00.0`, `0000:9b:00.0` and `0000:9b:00` (function 0 assumed).
    pub fn parse(text: &str) -> Result<PciAddress, String> {
        let bad = || {
            format!("`{}` is no PCI address (domain:bus:device.function in hexadecimal)", text.escape_debug())
        };
        let mut parts = text.trim().splitn(3, ':');
        let (Some(domain), Some(bus), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(bad());
        };
        let (device, function) = rest.split_once('.').unwrap_or((rest, "0"));
        let hex = |digits: &str, most: u32| {
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
            u32::from_str_radix(digits, 16).ok().filter(|v| plain && *v <= most).ok_or_else(bad)
        };
        let (domain, bus) = (hex(domain, u32::MAX)?, hex(bus, 0xff)?);
        let (device, function) = (hex(device, 0x1f)?, hex(function, 7)?);
        Ok(PciAddress(format!("{domain:04x}:{bus:02x}:{device:02x}.{function}")))
    }

    /// The one spelling.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// GPU-hours: units times certified breaching time, kept in unit-milliseconds so that sums are exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuHours {
    unit_ms: i64,
}

impl GpuHours {
    /// `units` units for `ms` milliseconds each; negative durations count as none.
    pub fn of(units: usize, ms: i64) -> GpuHours {
        GpuHours { unit_ms: (units as i64).saturating_mul(ms.max(0)) }
    }

    /// The exact sum, in milliseconds of one unit.
    pub fn unit_ms(self) -> i64 {
        self.unit_ms
    }

    /// The figure for people and JSON.
    pub fn hours(self) -> f64 {
        self.unit_ms as f64 / 3_600_000.0
    }
}

/// Milliseconds as people say them: `1 h 12 m`, `9 m 30 s`, `12 s`. Negative ones read as 0 s.
pub fn human_ms(ms: i64) -> String {
    let secs = ms.max(0) / 1000;
    let (days, hours, minutes, seconds) = (secs / 86_400, secs / 3600 % 24, secs / 60 % 60, secs % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) if seconds == 0 => format!("{minutes} m"),
        (0, 0, _) => format!("{minutes} m {seconds} s"),
        (0, _, 0) => format!("{hours} h"),
        (0, _, _) => format!("{hours} h {minutes} m"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_card_has_one_spelling_of_its_address() {
        for text in ["00000000:9B:00.0", "0000:9b:00.0", "0000:9B:00", " 0:9b:0.0 "] {
            assert_eq!(PciAddress::parse(text).unwrap().as_str(), "0000:9b:00.0", "{text:?}");
        }
        for text in
            ["", "9b:00.0", "0000:zz:00.0", "0000:100:00.0", "0000:9b:20.0", "0000:9b:00.8", "0000:+9:00.0"]
        {
            assert!(PciAddress::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_percentage_above_100_cannot_exist() {
        assert_eq!(Percent::new(100).map(Percent::get), Some(100));
        assert_eq!(Percent::new(101), None);
        assert!(serde_json::from_str::<Percent>("101").is_err());
    }

    #[test]
    fn names_that_could_leave_their_folder_or_line_are_refused() {
        for bad in ["", ".", "..", "../x", "a/b", "a b", "a\nb", "-x", "n\u{e9}"] {
            assert!(NodeName::new(bad).is_err(), "{bad:?}");
        }
        assert_eq!(NodeName::new("gpu-a7.rack_2").unwrap().as_str(), "gpu-a7.rack_2");
        assert!(UnitUuid::new("GPU-").is_err());
        assert!(UnitUuid::new("0").is_err());
        assert!(UnitUuid::new("MIG-GPU-1/3/0").is_ok());
    }

    #[test]
    fn durations_read_as_people_say_them() {
        let table = [
            (0, "0 s"),
            (59_999, "59 s"),
            (60_000, "1 m"),
            (570_000, "9 m 30 s"),
            (4_320_000, "1 h 12 m"),
            (180_000_000, "2 d 2 h"),
            (-5, "0 s"),
        ];
        for (ms, want) in table {
            assert_eq!(human_ms(ms), want);
        }
    }
}

//! GPUs that this node should have and the driver does not list: on the PCI bus, or by the number that is expected. What
//! is visible is never what is expected.

use crate::model::{GpuReport, UnitKind, UnitSample};
use crate::policy::Auto;
use crate::policy::attribution::{Configured, Mapping};
use crate::reading::Reading;
use crate::units::PciAddress;
use std::collections::BTreeSet;

/// The subject where only the number tells; else it is the PCI address.
pub const COUNT: &str = "count";

/// Who says so where nobody else does.
const EVER: &str = "it has listed";

/// How many GPUs a node should have, and who says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    gpus: usize,
    says: &'static str,
}

/// What the configuration says, else gres.conf, which is read while a job is registered by GPU index, else the most that
/// this node ever listed, on this boot or an earlier one. gres.conf counts instances as GPUs, so that beside one it says
/// nothing.
pub fn expected(
    said: Auto<u32>,
    gres: &Mapping,
    gpus: &Reading<GpuReport>,
    most: Option<u64>,
) -> Option<Expected> {
    let files = |minors: &[Option<_>]| minors.iter().flatten().collect::<BTreeSet<_>>().len();
    if let Auto::Set(gpus) = said {
        return Some(Expected { gpus: gpus as usize, says: "`gpu.expected` is" });
    }
    let ever = most.map(|gpus| Expected { gpus: gpus as usize, says: EVER });
    let cut = |report: &GpuReport| report.units.iter().any(|u| u.identity.kind != UnitKind::Gpu);
    if gpus.measured().is_none_or(cut) {
        return ever;
    }
    let gpus = match gres {
        Mapping::Minors(minors) | Mapping::AutoDetected(Configured::Minors(minors)) => files(minors),
        Mapping::AutoDetected(Configured::Count(count)) => *count as usize,
        Mapping::AutoDetected(Configured::All) | Mapping::Unknown => 0,
    };
    if gpus > 0 { Some(Expected { gpus, says: "gres.conf names" }) } else { ever }
}

impl Expected {
    /// The same less those that somebody has set aside since, where only this node's own past says how many.
    pub fn without(self, set_aside: usize) -> Expected {
        match self.says == EVER {
            true => Expected { gpus: self.gpus.saturating_sub(set_aside), ..self },
            false => self,
        }
    }

    /// Whether the driver lists too few.
    pub fn is_short(self, listed: &Listed) -> bool {
        listed.gpus() < self.gpus
    }
}

/// The driver's list: its GPUs' addresses, and how many have none that can be read.
#[derive(Debug)]
pub struct Listed {
    /// Those that can be read.
    pub addresses: Vec<PciAddress>,
    /// How many have none.
    pub without: usize,
}

/// The GPUs of a report, without instances.
fn whole(report: &GpuReport) -> impl Iterator<Item = &UnitSample> {
    report.units.iter().filter(|unit| unit.identity.kind == UnitKind::Gpu)
}

impl Listed {
    /// Of a report.
    pub fn of(report: &GpuReport) -> Listed {
        let addresses: Vec<_> =
            whole(report).filter_map(|gpu| gpu.identity.pci.measured().cloned()).collect();
        let without = whole(report).count() - addresses.len();
        Listed { addresses, without }
    }

    /// How many there are.
    pub fn gpus(&self) -> usize {
        self.addresses.len() + self.without
    }
}

/// What is missing: subject and words of each.
pub fn missing(
    listed: &Listed,
    on_bus: &Reading<Vec<PciAddress>>,
    expected: Option<Expected>,
) -> Vec<(String, String)> {
    // A listed GPU without a readable address may be any of those on the bus.
    let on_bus = on_bus.measured().filter(|_| listed.without == 0).map_or(&[][..], Vec::as_slice);
    let by_address = on_bus.iter().map(|address| {
        let detail = format!("GPU {address} is on the PCI bus and the driver does not list it");
        (address.to_string(), detail)
    });
    let mut missing: Vec<_> = by_address.collect();
    let (gpus, told) = (listed.gpus(), missing.len());
    if let Some(Expected { gpus: wanted, says }) = expected.filter(|e| gpus + told < e.gpus) {
        let short = wanted - gpus - told;
        let detail = format!("{short} of {wanted} GPUs missing: the driver lists {gpus}, {says} {wanted}");
        missing.push((COUNT.to_owned(), detail));
    }
    missing
}

/// Whether a fault about this subject that was not seen is over. That nobody says any more how many there should be ends
/// none.
pub fn is_back(subject: &str, listed: &Listed, expected: Option<Expected>) -> bool {
    let complete = expected.is_some_and(|e| listed.gpus() >= e.gpus);
    complete || listed.addresses.iter().any(|address| address.as_str() == subject)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::Absence;
    use crate::units::DeviceMinor;

    fn at(n: usize) -> PciAddress {
        PciAddress::parse(&format!("0000:{:02x}:00.0", 0x1a + n)).unwrap()
    }

    fn listed(gpus: &[usize], without: usize) -> Listed {
        Listed { addresses: gpus.iter().map(|n| at(*n)).collect(), without }
    }

    fn expect(gpus: usize) -> Option<Expected> {
        Some(Expected { gpus, says: "`gpu.expected` is" })
    }

    #[test]
    fn what_is_visible_is_never_what_is_expected() {
        // nebius/soperator check_runner (ID-07): an 8-card node that shows 7 became a class of its own.
        // NVIDIA/NVSentinel#155, #684 (FT-06): four on the bus, three listed, and no error anywhere.
        let none = || Reading::Measured(vec![]);
        let unreadable = Reading::Absent(Absence::SourceFailed);
        let bus = |n: usize| Reading::Measured(vec![at(n)]);
        let table = [
            ("eight of eight", listed(&[0, 1, 2, 3, 4, 5, 6, 7], 0), none(), expect(8), &[][..]),
            ("seven of eight", listed(&[0, 1, 2, 3, 4, 5, 6], 0), none(), expect(8), &["count"]),
            ("seven, nobody says how many", listed(&[0, 1, 2, 3, 4, 5, 6], 0), none(), None, &[]),
            ("three of four on the bus", listed(&[0, 1, 2], 0), bus(3), None, &["0000:1d:00.0"]),
            ("the same is not told twice", listed(&[0, 1, 2], 0), bus(3), expect(4), &["0000:1d:00.0"]),
            ("and one more", listed(&[0, 1, 2], 0), bus(3), expect(5), &["0000:1d:00.0", "count"]),
            ("a bus unreadable", listed(&[0, 1, 2], 0), unreadable, expect(4), &["count"]),
            ("a lost card is listed", listed(&[0, 1, 2], 1), bus(3), expect(4), &[]),
            ("more than expected", listed(&[0, 1, 2], 0), none(), expect(2), &[]),
        ];
        for (name, listed, bus, expected, want) in table {
            let found = missing(&listed, &bus, expected);
            let subjects: Vec<&str> = found.iter().map(|(subject, _)| subject.as_str()).collect();
            assert_eq!(subjects, want, "{name}: {found:?}");
        }
        let (_, words) = missing(&listed(&[0, 1], 0), &none(), expect(4)).remove(0);
        assert_eq!(words, "2 of 4 GPUs missing: the driver lists 2, `gpu.expected` is 4");
    }

    #[test]
    fn a_missing_gpu_is_back_only_where_that_is_seen() {
        let table = [
            ("listed again", at(1).to_string(), listed(&[0, 1], 0), None, true),
            ("not listed, and gone from the bus", at(1).to_string(), listed(&[0], 0), None, false),
            ("as many as there should be", at(1).to_string(), listed(&[0], 0), expect(1), true),
            ("too few", COUNT.to_owned(), listed(&[0], 0), expect(2), false),
            ("nobody says how many any more", COUNT.to_owned(), listed(&[0], 0), None, false),
            ("complete", COUNT.to_owned(), listed(&[0], 1), expect(2), true),
        ];
        for (name, subject, listed, expected, want) in table {
            assert_eq!(is_back(&subject, &listed, expected), want, "{name}");
        }
    }

    #[test]
    fn the_configuration_speaks_before_gres_conf_and_that_before_the_most_ever_listed() {
        let minor = |n: u32| Some(DeviceMinor(n));
        let blind = Reading::Absent(Absence::DeadlinePassed);
        let report = |kinds: Vec<UnitKind>| {
            let unit = |kind| crate::model::UnitSample {
                identity: crate::model::UnitIdentity {
                    uuid: Reading::Absent(Absence::NoData),
                    kind,
                    index: crate::units::NvmlIndex(0),
                    minor: Reading::Absent(Absence::NoData),
                    pci: Reading::Absent(Absence::NoData),
                    name: Reading::Absent(Absence::NoData),
                },
                readings: crate::model::Readings::absent(Absence::NoData),
            };
            let units = kinds.into_iter().map(unit).collect();
            Reading::Measured(GpuReport { driver: Reading::Absent(Absence::NoData), units })
        };
        let parent = crate::units::UnitUuid::new("GPU-0").unwrap();
        let plain = report(vec![UnitKind::Gpu]);
        let cut = report(vec![UnitKind::Gpu, UnitKind::Mig { parent, gi: 1, ci: 0 }]);
        let files = Mapping::Minors(vec![minor(0), minor(1), minor(1), None]);
        let counted = Mapping::AutoDetected(Configured::Count(3));
        let table = [
            (Auto::Set(8), &files, &plain, Some(9), Some(8)),
            (Auto::Set(8), &Mapping::Unknown, &cut, None, Some(8)),
            (Auto::Auto, &files, &plain, Some(9), Some(2)),
            (Auto::Auto, &counted, &plain, None, Some(3)),
            (Auto::Auto, &counted, &cut, None, None),
            (Auto::Auto, &counted, &cut, Some(4), Some(4)),
            (Auto::Auto, &counted, &blind, None, None),
            (Auto::Auto, &Mapping::AutoDetected(Configured::All), &plain, None, None),
            (Auto::Auto, &Mapping::AutoDetected(Configured::All), &plain, Some(8), Some(8)),
            (Auto::Auto, &Mapping::Unknown, &plain, None, None),
        ];
        for (said, gres, gpus, most, want) in table {
            assert_eq!(expected(said, gres, gpus, most).map(|e| e.gpus), want, "{said:?} {gres:?}");
        }
    }
}

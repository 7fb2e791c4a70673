//! The NVIDIA GPUs on this node's PCI bus, whatever the driver says of them. Reads only what the kernel itself keeps
//! of each device: no driver and no device is asked, so none of this hangs with a driver. But for a link's width, which
//! the kernel reads from the device's configuration space.

use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use crate::units::PciAddress;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// One device a line: bus, device and function in one number, then vendor and device id, in hexadecimal
/// (drivers/pci/proc.c). One file for all devices, but without their domain and class.
const LIST: &str = "/proc/bus/pci/devices";
/// A folder a device, named by its whole address.
const DEVICES: &str = "/sys/bus/pci/devices";

/// VGA and 3D controllers (pci_ids.h). NVSwitches (0x0680), audio and USB functions are the same vendor's and no GPUs.
const DISPLAY: [&str; 2] = ["0x0300", "0x0302"];
/// Kernel drivers that hold a device for somebody else: a virtual machine.
const LENT: [&str; 4] = ["vfio-pci", "nvgrace_gpu_vfio_pci", "pci-stub", "pciback"];

/// The GPUs on the bus that are not in the driver's list, by address. Absent where the bus cannot be read, and where
/// not one of the listed GPUs is on it: that is another machine's list.
pub fn unlisted(listed: &[PciAddress]) -> Reading<Vec<PciAddress>> {
    unlisted_in(Path::new(LIST), Path::new(DEVICES), listed)
}

fn unlisted_in(list: &Path, devices: &Path, listed: &[PciAddress]) -> Reading<Vec<PciAddress>> {
    let Ok(text) = whole(list) else {
        return Absent(Absence::SourceFailed);
    };
    let mut others: Vec<u16> = text.split(|b| *b == b'\n').filter_map(nvidia_slot).collect();
    let mut ours = 0;
    for address in listed {
        if let Some(at) = others.iter().position(|slot| Some(*slot) == slot_of(address)) {
            others.swap_remove(at);
            ours += 1;
        }
    }
    match (ours, others.is_empty()) {
        (0, _) if !listed.is_empty() => Absent(Absence::NotUnderstood),
        (_, true) => Measured(Vec::new()),
        _ => among(devices, &others, listed),
    }
}

/// How many lanes a GPU's link to the bus runs on, and how many it could.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkWidth {
    /// Now. Of a GPU at rest it may be less than at work (nvidia-smi(1)).
    pub current: u32,
    /// At most, for this device; its slot may have fewer.
    pub max: u32,
}

/// The width of this GPU's link. Absent with no data where the device is not on the bus, where the kernel does not
/// know, and where the device does not answer: a read of all ones gives 63 (PCI_EXP_LNKSTA_NLW).
pub fn link_width(gpu: &PciAddress) -> Reading<LinkWidth> {
    link_width_in(Path::new(DEVICES), gpu)
}

fn link_width_in(devices: &Path, gpu: &PciAddress) -> Reading<LinkWidth> {
    let folder = devices.join(gpu.as_str());
    let lanes = |file: &str| match std::fs::read_to_string(folder.join(file)) {
        Ok(text) => lanes(text.trim_end()),
        // The second where the device is gone and its folder is not yet (pci-sysfs.c).
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => {
            Absent(Absence::NoData)
        }
        Err(_) => Absent(Absence::SourceFailed),
    };
    // What card and slot can do together: the folder above is the bridge that the card hangs on.
    let slot = match lanes("../max_link_width") {
        Measured(slot) => slot,
        Absent(_) => u32::MAX,
    };
    lanes("current_link_width").and_then(|current| {
        let both = lanes("max_link_width").map(|card| LinkWidth { current, max: card.min(slot) });
        both.plausible(|width| width.current <= width.max)
    })
}

/// "Unknown" where there is no such link (pci-sysfs.c); 255 is the kernel's number for that (PCIE_LNK_WIDTH_UNKNOWN).
fn lanes(text: &str) -> Reading<u32> {
    match text.parse() {
        Ok(0 | 63 | 255) => Absent(Absence::NoData),
        Ok(lanes) => Measured(lanes).plausible(|lanes| *lanes <= 32),
        Err(_) if text == "Unknown" => Absent(Absence::NoData),
        Err(_) => Absent(Absence::NotUnderstood),
    }
}

/// The kernel gives no size and a page a time: with room from the beginning it is asked no more often than that.
fn whole(list: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(16 << 10);
    File::open(list)?.read_to_end(&mut text)?;
    Ok(text)
}

/// The GPUs in these slots, of whatever domain, but those that are listed.
fn among(devices: &Path, slots: &[u16], listed: &[PciAddress]) -> Reading<Vec<PciAddress>> {
    let Ok(folders) = std::fs::read_dir(devices) else {
        return Absent(Absence::SourceFailed);
    };
    let mut found = Vec::new();
    for folder in folders.flatten() {
        let Some(address) = folder.file_name().to_str().and_then(|name| PciAddress::parse(name).ok()) else {
            continue;
        };
        let asked = slot_of(&address).is_some_and(|slot| slots.contains(&slot));
        if asked && !listed.contains(&address) && is_own_gpu(&folder.path()) {
            found.push(address);
        }
    }
    found.sort();
    Measured(found)
}

/// Not lent to a virtual machine.
fn is_own_gpu(device: &Path) -> bool {
    is_gpu(device) && !is_lent(device)
}

/// A display or 3D controller of NVIDIA's that is no virtual function. What cannot be read is none.
fn is_gpu(device: &Path) -> bool {
    let says = |file: &str, wanted: &[&str]| {
        let text = std::fs::read_to_string(device.join(file)).unwrap_or_default();
        wanted.iter().any(|start| text.starts_with(start))
    };
    says("vendor", &["0x10de"]) && says("class", &DISPLAY) && !device.join("physfn").exists()
}

fn is_lent(device: &Path) -> bool {
    let driver = std::fs::read_link(device.join("driver")).ok();
    driver.is_some_and(|path| LENT.iter().any(|name| path.ends_with(name)))
}

/// How many GPUs of this node are lent to virtual machines.
pub fn lent() -> usize {
    lent_in(Path::new(DEVICES))
}

fn lent_in(devices: &Path) -> usize {
    let folders = std::fs::read_dir(devices).into_iter().flatten().flatten();
    folders.filter(|folder| is_gpu(&folder.path()) && is_lent(&folder.path())).count()
}

/// The slot of an NVIDIA device's line.
fn nvidia_slot(line: &[u8]) -> Option<u16> {
    let mut words = line.split(|b| *b == b'\t');
    let (slot, ids) = (words.next()?, words.next()?);
    let slot = u16::from_str_radix(std::str::from_utf8(slot).ok()?, 16).ok()?;
    (ids.len() == 8 && ids.starts_with(b"10de")).then_some(slot)
}

/// Bus, device and function as that list writes them.
fn slot_of(address: &PciAddress) -> Option<u16> {
    let (head, function) = address.as_str().split_once('.')?;
    let mut parts = head.rsplit(':');
    let hex = |digits: &str| u16::from_str_radix(digits, 16).ok();
    let (device, bus) = (hex(parts.next()?)?, hex(parts.next()?)?);
    Some(bus << 8 | device << 3 | hex(function)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A bus with these devices: address, vendor, class, driver.
    fn bus(devices: &[(&str, &str, &str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut list = String::new();
        for (address, vendor, class, driver) in devices {
            let slot = slot_of(&at(address)).unwrap();
            list += &format!("{slot:04x}\t{vendor}2330\t10\t             0\t0\t{driver}\n");
            let folder = dir.path().join("devices").join(address);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("vendor"), format!("0x{vendor}\n")).unwrap();
            fs::write(folder.join("class"), format!("{class}\n")).unwrap();
            match *driver {
                "" => {}
                "physfn" => symlink("../0000:1a:00.0", folder.join("physfn")).unwrap(),
                name => symlink(format!("../../drivers/{name}"), folder.join("driver")).unwrap(),
            }
        }
        fs::write(dir.path().join("list"), list).unwrap();
        dir
    }

    fn at(address: &str) -> PciAddress {
        PciAddress::parse(address).unwrap()
    }

    fn look(devices: &[(&str, &str, &str, &str)], listed: &[&str]) -> Reading<Vec<String>> {
        let dir = bus(devices);
        let listed: Vec<PciAddress> = listed.iter().map(|a| at(a)).collect();
        let found = unlisted_in(&dir.path().join("list"), &dir.path().join("devices"), &listed);
        found.map(|found| found.iter().map(|a| a.to_string()).collect())
    }

    const GPU: &str = "0x030200";

    #[test]
    fn a_gpu_on_the_bus_that_the_driver_does_not_list_is_named() {
        // NVIDIA/NVSentinel#155, #684 (FT-06): cards dropped with an unnumbered message or none.
        let four = ["0000:1a:00.0", "0000:1b:00.0", "0000:1c:00.0", "0001:1a:00.0"];
        let devices = four.map(|address| (address, "10de", GPU, "nvidia"));
        let named = |listed: &[&str]| look(&devices, listed).measured().cloned().unwrap();
        assert_eq!(named(&four), [""; 0]);
        assert_eq!(named(&[four[0], four[1], four[3]]), [four[2]]);
        assert_eq!(named(&four[..3]), [four[3]], "the same slot of another domain");
        assert_eq!(named(&[]), four, "a driver that lists none");
    }

    #[test]
    fn what_is_no_gpu_of_this_node_is_not_missing() {
        let listed = ("0000:1a:00.0", "10de", GPU, "nvidia");
        let table = [
            ("another vendor's", ("0000:02:00.0", "1002", "0x030000", "amdgpu"), false),
            ("an NVSwitch", ("0000:05:00.0", "10de", "0x068000", "nvidia-nvswitch"), false),
            ("an audio function", ("0000:1a:00.1", "10de", "0x040300", "snd_hda_intel"), false),
            ("a virtual function", ("0000:1a:00.4", "10de", GPU, "physfn"), false),
            ("lent to a virtual machine", ("0000:1b:00.0", "10de", GPU, "vfio-pci"), false),
            ("of another driver", ("0000:1b:00.0", "10de", "0x030000", "nouveau"), true),
            ("without a driver", ("0000:1b:00.0", "10de", GPU, ""), true),
        ];
        for (name, device, missing) in table {
            let want = if missing { vec![device.0.to_owned()] } else { vec![] };
            assert_eq!(look(&[listed, device], &[listed.0]), Measured(want), "{name}");
        }
    }

    #[test]
    fn a_bus_that_cannot_be_read_or_is_another_machines_says_nothing() {
        let devices = [("0000:1a:00.0", "10de", GPU, "nvidia")];
        assert_eq!(look(&devices, &["0000:5a:00.0"]), Absent(Absence::NotUnderstood));
        assert_eq!(look(&[], &["0000:5a:00.0"]), Absent(Absence::NotUnderstood));
        assert_eq!(look(&[], &[]), Measured(vec![]));
        let nowhere = Path::new("/nonexistent");
        assert_eq!(unlisted_in(nowhere, nowhere, &[]), Absent(Absence::SourceFailed));
        let dir = bus(&devices);
        assert_eq!(unlisted_in(&dir.path().join("list"), nowhere, &[]), Absent(Absence::SourceFailed));
    }

    #[test]
    fn a_link_is_as_wide_as_the_kernel_says_or_absent() {
        use Absence::*;
        let width = |current, max| Measured(LinkWidth { current, max });
        let table = [
            (Some("16\n"), Some("16\n"), width(16, 16)),
            (Some("8\n"), Some("16\n"), width(8, 16)),
            (Some("1"), Some("32"), width(1, 32)),
            (Some("0\n"), Some("16\n"), Absent(NoData)),
            (Some("63\n"), Some("63\n"), Absent(NoData)),
            (Some("16\n"), Some("255\n"), Absent(NoData)),
            (Some("255\n"), Some("16\n"), Absent(NoData)),
            (Some("Unknown\n"), Some("16\n"), Absent(NoData)),
            (Some("16\n"), Some("Unknown\n"), Absent(NoData)),
            (Some("16\n"), Some("8\n"), Absent(Implausible)),
            (Some("33\n"), Some("33\n"), Absent(Implausible)),
            (Some("\n"), Some("16\n"), Absent(NotUnderstood)),
            (Some("-8\n"), Some("16\n"), Absent(NotUnderstood)),
            (Some("x8\n"), Some("16\n"), Absent(NotUnderstood)),
            (None, Some("16\n"), Absent(NoData)),
            (Some("16\n"), None, Absent(NoData)),
            (None, None, Absent(NoData)),
        ];
        for (current, max, want) in table {
            let dir = tempfile::tempdir().unwrap();
            let folder = dir.path().join("0000:1a:00.0");
            fs::create_dir(&folder).unwrap();
            for (file, text) in [("current_link_width", current), ("max_link_width", max)] {
                text.into_iter().for_each(|text| fs::write(folder.join(file), text).unwrap());
            }
            assert_eq!(link_width_in(dir.path(), &at("00000000:1A:00.0")), want, "{current:?} {max:?}");
        }
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(link_width_in(dir.path(), &at("0000:1a:00.0")), Absent(NoData), "a device that is gone");
        fs::create_dir_all(dir.path().join("0000:1a:00.0/current_link_width")).unwrap();
        assert_eq!(link_width_in(dir.path(), &at("0000:1a:00.0")), Absent(SourceFailed));
    }
}

//! The signs of an NVIDIA driver that can be seen without asking it: on the PCI bus, in /proc and /run. None
//! of these reads loads a module, opens a device or initialises a GPU.

use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use crate::units::{DeviceMinor, PciAddress};
use std::path::Path;
use std::time::Duration;

const PCI_DEVICES: &str = "/proc/bus/pci/devices";
const DRIVER: &str = "/proc/driver/nvidia";
const PERSISTENCED: &str = "/run/nvidia-persistenced/socket";

/// Whether an NVIDIA device sits on this node's PCI bus, driver or not. A bus that cannot be read rules
/// nothing out: then `true`.
pub fn nvidia_on_pci_bus() -> bool {
    nvidia_listed_in(Path::new(PCI_DEVICES))
}

/// [`nvidia_on_pci_bus`] by another list: one device a line, the second column vendor and device id in
/// hexadecimal (drivers/pci/proc.c).
pub fn nvidia_listed_in(devices: &Path) -> bool {
    let Ok(list) = std::fs::read(devices) else {
        return true;
    };
    list.split(|b| *b == b'\n')
        .filter_map(|line| line.split(|b| *b == b'\t').nth(1))
        .any(|ids| ids.len() == 8 && ids.starts_with(b"10de"))
}

/// Whether the kernel module is loaded.
pub fn loaded() -> bool {
    Path::new(DRIVER).join("version").exists()
}

/// How long a look may take where the configuration says `auto`: 10 s where nvidia-persistenced runs, else 35
/// s, since the first touch then initialises each GPU (30 s on eight GPUs, Azure/aks-gpu#105). Persistence
/// mode itself is known to NVML alone; where it was switched on by `nvidia-smi -pm 1` this errs towards
/// patience.
pub fn default_deadline() -> Duration {
    deadline_by(Path::new(PERSISTENCED))
}

fn deadline_by(socket: &Path) -> Duration {
    Duration::from_secs(if socket.exists() { 10 } else { 35 })
}

/// N of `/dev/nvidiaN` of the GPU at this address, by the driver's own file: for sources that cannot say.
pub fn minor_of(pci: &PciAddress) -> Reading<DeviceMinor> {
    minor_in(Path::new(DRIVER), pci)
}

fn minor_in(driver: &Path, pci: &PciAddress) -> Reading<DeviceMinor> {
    let file = driver.join("gpus").join(pci.as_str()).join("information");
    let Ok(text) = std::fs::read_to_string(file) else {
        return Absent(Absence::NoData);
    };
    let minor = text.lines().find_map(|line| line.strip_prefix("Device Minor:"));
    match minor.and_then(|n| n.trim().parse().ok()) {
        Some(n) => Measured(DeviceMinor(n)),
        None => Absent(Absence::NotUnderstood),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_the_vendor_column_makes_a_node_a_gpu_node() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("devices");
        let table = [
            ("", false),
            ("0018\t80861237\t0\t10de2330\n", false),
            ("0018\t80861237\t0\n4900\t10de2330\t10\t0\tnvidia\n", true),
            ("10de\t80861237\t0\n", false),
            ("4900\t10de\n", false),
        ];
        for (text, want) in table {
            fs::write(&file, text).unwrap();
            assert_eq!(nvidia_listed_in(&file), want, "{text:?}");
        }
        assert!(nvidia_listed_in(&dir.path().join("missing")), "unreadable rules nothing out");
    }

    #[test]
    fn without_the_persistence_daemon_the_driver_gets_more_time() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(deadline_by(dir.path()), Duration::from_secs(10));
        assert_eq!(deadline_by(&dir.path().join("socket")), Duration::from_secs(35));
    }

    #[test]
    fn a_minor_is_read_by_address_or_absent() {
        let dir = tempfile::tempdir().unwrap();
        let pci = PciAddress::parse("00000000:9B:00.0").unwrap();
        assert_eq!(minor_in(dir.path(), &pci), Absent(Absence::NoData));
        let folder = dir.path().join("gpus/0000:9b:00.0");
        fs::create_dir_all(&folder).unwrap();
        let table = [
            ("Model: \t NVIDIA\nDevice Minor: \t 3\nGPU Excluded:\t No\n", Measured(DeviceMinor(3))),
            ("Model: \t NVIDIA\n", Absent(Absence::NotUnderstood)),
            ("Device Minor: \t ?\n", Absent(Absence::NotUnderstood)),
        ];
        for (text, want) in table {
            fs::write(folder.join("information"), text).unwrap();
            assert_eq!(minor_in(dir.path(), &pci), want, "{text:?}");
        }
    }
}

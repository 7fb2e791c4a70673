//! The signs of an NVIDIA driver that can be seen without asking it: on the PCI bus, in /proc and /run. None
//! of these reads loads a module, opens a device or initialises a GPU.

use crate::model::{UnitIdentity, UnitKind};
use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use crate::units::{DeviceMinor, PciAddress, UnitUuid};
use serde::{Deserialize, Serialize};
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

/// The GPUs that the driver was told to leave out: no list of its library has them.
pub fn excluded() -> Vec<PciAddress> {
    excluded_in(Path::new(DRIVER))
}

fn excluded_in(driver: &Path) -> Vec<PciAddress> {
    let folders = std::fs::read_dir(driver.join("gpus")).into_iter().flatten().flatten();
    let is_excluded = |folder: &std::fs::DirEntry| {
        let text = std::fs::read_to_string(folder.path().join("information")).unwrap_or_default();
        said(&text, "GPU Excluded:") == Some("Yes")
    };
    let address = |folder: std::fs::DirEntry| PciAddress::parse(folder.file_name().to_str()?).ok();
    folders.filter(is_excluded).filter_map(address).collect()
}

/// Whether nvidia-persistenced runs, which keeps every GPU initialised.
pub fn persistenced() -> bool {
    Path::new(PERSISTENCED).exists()
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
    match std::fs::read_to_string(file) {
        Ok(text) => minor(&text),
        Err(_) => Absent(Absence::NoData),
    }
}

fn said<'a>(information: &'a str, what: &str) -> Option<&'a str> {
    information.lines().find_map(|line| Some(line.strip_prefix(what)?.trim()))
}

fn minor(information: &str) -> Reading<DeviceMinor> {
    match said(information, "Device Minor:").and_then(|n| n.parse().ok()) {
        Some(n) => Measured(DeviceMinor(n)),
        None => Absent(Absence::NotUnderstood),
    }
}

/// Names for GPUs that the driver's library lists and cannot name, by the driver's own files, which outlive the
/// card's handle (nv-procfs.c): places in `units`, each with its identity as it now is. To be asked where the
/// driver may hang, since these files are its answers too.
pub(super) fn names_of_lost(units: &[UnitIdentity]) -> Vec<(usize, UnitIdentity)> {
    names_in(Path::new(DRIVER), units)
}

fn names_in(driver: &Path, units: &[UnitIdentity]) -> Vec<(usize, UnitIdentity)> {
    let gpus = || units.iter().enumerate().filter(|(_, unit)| unit.kind == UnitKind::Gpu);
    let nameless = || gpus().filter(|(_, gpu)| gpu.uuid.measured().is_none());
    if nameless().next().is_none() {
        return Vec::new();
    }
    let Some(mut cards) = cards(driver) else {
        return Vec::new();
    };
    // Only where the files speak of just these GPUs can what is left over be told apart.
    let has = |pci: &PciAddress| cards.iter().any(|card| card.pci == *pci);
    if cards.len() != gpus().count() || !gpus().filter_map(|(_, gpu)| gpu.pci.measured()).all(has) {
        return Vec::new();
    }
    let same = |gpu: &UnitIdentity, card: &Card| gpu.uuid.measured().is_some() && gpu.uuid == card.uuid;
    let taken = |card: &Card| gpus().any(|(_, gpu)| same(gpu, card));
    cards.retain(|card| !taken(card));
    let placed = |card: &Card| gpus().any(|(_, gpu)| gpu.pci.measured() == Some(&card.pci));
    let mut unplaced = cards.iter().filter(|card| !placed(card));
    let left = match (unplaced.next(), unplaced.next()) {
        (Some(card), None) => Some(card),
        _ => None,
    };
    let card_of = |gpu: &UnitIdentity| match gpu.pci.measured() {
        Some(pci) => cards.iter().find(|card| card.pci == *pci),
        None => left,
    };
    nameless().filter_map(|(place, gpu)| Some((place, card_of(gpu)?.names(gpu)))).collect()
}

/// A GPU by the driver's files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// Where it sits.
    pub pci: PciAddress,
    /// Absent for a card that was never initialised: question marks stand in its place.
    pub uuid: Reading<UnitUuid>,
    /// N of its /dev/nvidiaN.
    pub minor: Reading<DeviceMinor>,
    /// Its model.
    pub name: Reading<String>,
}

/// All cards by the driver's own files, in the order of the bus; `None` where one could not be read. To be asked where
/// the driver may hang.
pub fn listed_cards() -> Option<Vec<Card>> {
    let mut cards = cards(Path::new(DRIVER))?;
    cards.sort_by(|a, b| a.pci.cmp(&b.pci));
    Some(cards)
}

/// Whether a card is cut into MIG instances, by the driver's own files.
pub fn has_instances() -> bool {
    has_instances_in(Path::new(DRIVER))
}

fn has_instances_in(driver: &Path) -> bool {
    let inside = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_instance = |name: std::ffi::OsString| name.to_string_lossy().starts_with("gi");
    let is_cut = |gpu: &Path| inside(&gpu.join("mig")).any(|entry| is_instance(entry.file_name()));
    inside(&driver.join("capabilities")).any(|gpu| is_cut(&gpu.path()))
}

impl Card {
    /// Its names in place of those that are absent.
    fn names(&self, gpu: &UnitIdentity) -> UnitIdentity {
        fn or<T: Clone>(own: &Reading<T>, files: &Reading<T>) -> Reading<T> {
            if files.measured().is_some() && own.measured().is_none() { files.clone() } else { own.clone() }
        }
        UnitIdentity {
            uuid: or(&gpu.uuid, &self.uuid),
            minor: or(&gpu.minor, &self.minor),
            pci: Measured(self.pci.clone()),
            name: or(&gpu.name, &self.name),
            ..gpu.clone()
        }
    }
}

/// All cards but those that the driver was told to leave out, which no list of the library has; `None` where one
/// could not be read.
fn cards(driver: &Path) -> Option<Vec<Card>> {
    let mut cards = Vec::new();
    for folder in std::fs::read_dir(driver.join("gpus")).ok()? {
        let folder = folder.ok()?;
        let text = std::fs::read_to_string(folder.path().join("information")).ok()?;
        if said(&text, "GPU Excluded:") == Some("Yes") {
            continue;
        }
        cards.push(Card {
            pci: PciAddress::parse(folder.file_name().to_str()?).ok()?,
            uuid: UnitUuid::new(said(&text, "GPU UUID:")?).map_or(Absent(Absence::NotUnderstood), Measured),
            minor: minor(&text),
            name: said(&text, "Model:").map_or(Absent(Absence::NotUnderstood), |m| Measured(m.to_owned())),
        });
    }
    Some(cards)
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
        // Azure/aks-gpu#105, Azure/AgentBaker#2829 (RT-06): 25 to 30 s from cold, within a run's 45.
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

    /// A folder as /proc/driver/nvidia, with a card at each of these buses: bus, UUID, minor, excluded.
    fn files(cards: &[(&str, &str, u32, bool)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (bus, uuid, minor, excluded) in cards {
            let folder = dir.path().join(format!("gpus/0000:{bus}:00.0"));
            fs::create_dir_all(&folder).unwrap();
            let excluded = if *excluded { "Yes" } else { "No" };
            let text = format!(
                "Model: \t\t NVIDIA H100\nIRQ:   \t\t 18\nGPU UUID: \t {uuid}\nBus Location: \t 0000:{bus}:00.0\n\
                 Device Minor: \t {minor}\nGPU Excluded:\t {excluded}\n"
            );
            fs::write(folder.join("information"), text).unwrap();
        }
        dir
    }

    #[test]
    fn a_card_that_is_cut_into_instances_is_seen_by_its_files() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!has_instances_in(dir.path()));
        fs::create_dir_all(dir.path().join("capabilities/gpu0/mig")).unwrap();
        fs::create_dir_all(dir.path().join("capabilities/mig")).unwrap();
        assert!(!has_instances_in(dir.path()));
        fs::create_dir_all(dir.path().join("capabilities/gpu0/mig/gi7/ci0")).unwrap();
        assert!(has_instances_in(dir.path()));
    }

    fn gpu(index: u32, uuid: &str, bus: &str) -> UnitIdentity {
        let lost = Absence::GpuLost;
        UnitIdentity {
            uuid: UnitUuid::new(uuid).map_or(Absent(lost), Measured),
            pci: PciAddress::parse(&format!("0000:{bus}:00.0")).map_or(Absent(lost), Measured),
            ..crate::gpu::unread(crate::units::NvmlIndex(index), lost).identity
        }
    }

    /// Which place is told which UUID and bus.
    type Told = (usize, &'static str, &'static str);

    #[test]
    fn a_lost_card_is_named_only_where_it_can_be_told_which_it_is() {
        // NVIDIA/dcgm-exporter#46 (FT-02): without its UUID nobody knows whose job sits on the lost card.
        let three = [("1a", "GPU-a", 2, false), ("1b", "GPU-b", 1, false), ("1c", "GPU-c", 0, false)];
        let with = |more: (&'static str, &'static str, u32, bool)| [&three[..], &[more]].concat();
        let (a, c) = (gpu(0, "GPU-a", "1a"), gpu(2, "GPU-c", "1c"));
        let (lost, lost_at) = (gpu(1, "", "?"), gpu(1, "", "1b"));
        let all = [a.clone(), lost.clone(), c.clone()];
        let never_up = [three[0], ("1b", "GPU-????????-????-????-????-????????????", 1, false), three[2]];
        let table: [(&str, Vec<_>, Vec<_>, &[Told]); 11] = [
            ("one left over", three.to_vec(), all.to_vec(), &[(1, "GPU-b", "1b")]),
            (
                "one by its address, so that one is left",
                three.to_vec(),
                vec![lost.clone(), lost_at.clone(), c.clone()],
                &[(0, "GPU-a", "1a"), (1, "GPU-b", "1b")],
            ),
            ("nobody lost", three.to_vec(), vec![a.clone(), gpu(1, "GPU-b", "1b"), c.clone()], &[]),
            ("two lost", three.to_vec(), vec![lost.clone(), lost.clone(), c.clone()], &[]),
            ("one card more in the files", with(("1d", "GPU-d", 3, false)), all.to_vec(), &[]),
            ("one card less in the files", three[..2].to_vec(), all.to_vec(), &[]),
            ("excluded ones", with(("1d", "GPU-d", 3, true)), all.to_vec(), &[(1, "GPU-b", "1b")]),
            ("another machine's files", three.to_vec(), vec![gpu(0, "GPU-x", "5a"), lost, c.clone()], &[]),
            ("a UUID that is another's", three.to_vec(), vec![gpu(0, "GPU-b", "1a"), lost_at, c], &[]),
            ("never initialised", never_up.to_vec(), all.to_vec(), &[(1, "?", "1b")]),
            ("no files", vec![], all.to_vec(), &[]),
        ];
        for (name, cards, units, want) in table {
            let named = |(place, uuid, bus): &Told| {
                let minor = cards.iter().find(|card| card.0 == *bus).map(|card| card.2);
                let identity = UnitIdentity {
                    minor: minor.map_or(Absent(Absence::GpuLost), |n| Measured(DeviceMinor(n))),
                    name: Measured("NVIDIA H100".into()),
                    ..gpu(*place as u32, uuid, bus)
                };
                (*place, identity)
            };
            let want: Vec<_> = want.iter().map(named).collect();
            let mut found = names_in(files(&cards).path(), &units);
            // The place in NVML's list is not the files' to say.
            found.iter_mut().for_each(|(place, unit)| unit.index = crate::units::NvmlIndex(*place as u32));
            assert_eq!(found, want, "{name}");
        }
    }
}

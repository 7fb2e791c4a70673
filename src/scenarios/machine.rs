//! The machine of a story, and what it shows beside its cards' readings: the PCI bus, and processes that are told one by
//! one.

use super::file::{Ago, Bytes, Scenario, Watts};
use crate::gpu::simulated::Timeline;
use crate::model::{GpuProcess, GpuReport, JobId, ProcessKind, Who, Whose};
use crate::reading::{Absence, Reading};
use crate::units::{DeviceMinor, MemoryBytes, PciAddress};
use serde::{Deserialize, Deserializer, de::Error};

/// The node of a story.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Node {
    /// How many GPUs.
    pub gpus: u32,
    /// Product name.
    pub model: String,
    /// Memory of each.
    pub memory: Bytes,
    /// Power limit of each.
    pub limit: Watts,
    /// Whether they count energy.
    pub energy: bool,
    /// Minors by NVML index, where they differ.
    pub minors: Vec<u32>,
    /// MIG mode; absent: no MIG on these cards.
    pub mig: Option<bool>,
    /// How many GPUs are on the PCI bus, whatever the driver lists; absent: nobody can look.
    pub bus: Option<u32>,
    /// Whether the GPUs stay initialised between two looks.
    pub persistent: bool,
}

impl Default for Node {
    fn default() -> Node {
        Node {
            gpus: 8,
            model: "NVIDIA H100 80GB HBM3".to_owned(),
            memory: Bytes(80 << 30),
            limit: Watts(700_000),
            energy: false,
            minors: Vec::new(),
            mig: None,
            bus: None,
            persistent: true,
        }
    }
}

/// A process on a GPU, beside those that the samples count, which are Slurm's.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Its pid; those of the samples begin at 100000.
    pub pid: u32,
    /// When it is first seen.
    pub from: Ago,
    /// When it is last seen.
    pub to: Ago,
    /// On which GPU, by minor.
    pub gpu: u32,
    /// compute or graphics.
    #[serde(default)]
    pub kind: Kind,
    /// What it holds there.
    #[serde(default)]
    pub memory: Option<Bytes>,
    /// Its short name.
    #[serde(default)]
    pub comm: Option<String>,
    /// Its user.
    #[serde(default)]
    pub uid: Option<u32>,
    /// `outside` of Slurm, or of a job: `job 4242`.
    pub of: Owner,
}

/// What it does on the GPU.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Computes.
    #[default]
    Compute,
    /// Draws.
    Graphics,
}

/// Whose a process is.
#[derive(Clone, Copy, Debug)]
pub struct Owner(Whose);

impl<'de> Deserialize<'de> for Owner {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Owner, D::Error> {
        let text = String::deserialize(d)?;
        let whose = match text.strip_prefix("job ") {
            Some(id) => JobId::parse(id).map(Whose::Job),
            None => (text == "outside").then_some(Whose::Outside),
        };
        let bad = || D::Error::custom(format!("`{text}`: a process is of `outside` or of `job NUMBER`"));
        whose.map(Owner).ok_or_else(bad)
    }
}

impl Process {
    fn listed(&self) -> GpuProcess {
        GpuProcess {
            pid: self.pid,
            kind: match self.kind {
                Kind::Compute => ProcessKind::Compute,
                Kind::Graphics => ProcessKind::Graphics,
            },
            memory: told(self.memory.map(|bytes| MemoryBytes(bytes.0))),
        }
    }
}

fn told<T>(value: Option<T>) -> Reading<T> {
    value.map_or(Reading::Absent(Absence::NotSupported), Reading::Measured)
}

impl Scenario {
    /// What the driver lists, with the story's own processes on it.
    pub fn with_processes(&self, gpus: Reading<GpuReport>, at_ms: i64) -> Reading<GpuReport> {
        gpus.map(|mut report| {
            for process in self.processes.iter().filter(|p| p.from.0 <= at_ms && at_ms <= p.to.0) {
                let minor = Reading::Measured(DeviceMinor(process.gpu));
                let unit = report.units.iter_mut().find(|unit| unit.identity.minor == minor);
                if let Some(Reading::Measured(list)) = unit.map(|unit| &mut unit.readings.processes) {
                    list.push(process.listed());
                }
            }
            report
        })
    }

    /// Whose a process of the story's own is.
    pub fn whose(&self, pid: u32) -> Option<Whose> {
        Some(self.processes.iter().find(|process| process.pid == pid)?.of.0)
    }

    /// Who it is.
    pub fn who(&self, pid: u32) -> Who {
        let process = self.processes.iter().find(|process| process.pid == pid);
        Who {
            uid: told(process.and_then(|process| process.uid)),
            comm: told(process.and_then(|process| process.comm.clone())),
        }
    }

    /// The GPUs on the PCI bus that are not among these.
    pub fn unlisted(&self, listed: &[PciAddress]) -> Reading<Vec<PciAddress>> {
        told(self.node.bus).map(|gpus| {
            let on_bus = (0..gpus).filter_map(|minor| Timeline::pci(minor).measured().cloned());
            on_bus.filter(|address| !listed.contains(address)).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuSource;
    use crate::gpu::simulated::Simulated;

    fn story(more: &str) -> Result<Scenario, String> {
        let samples = "samples:\n- { from: -20m, to: 0, every: 1m, gpus: [0], processes: 1 }
- { from: -20m, to: 0, gpus: [1], absent: { processes: no_permission } }";
        Scenario::parse(&format!("about: x\njobs: []\nexpect: []\n{samples}\n{more}\n"))
    }

    #[test]
    fn a_process_is_on_its_card_while_it_is_there_and_nowhere_else() {
        let of = |pid: u32, gpu: u32, more: &str| {
            format!("- {{ pid: {pid}, from: -10m, to: -5m, gpu: {gpu}, {more} }}\n")
        };
        let told = of(7, 0, "of: outside, comm: python, uid: 1001, memory: 1GiB")
            + &of(8, 0, "of: job 4242, kind: graphics")
            + &of(9, 1, "of: outside");
        let scenario = story(&format!("node: {{ gpus: 2 }}\nprocesses:\n{told}")).unwrap();
        let timeline = scenario.timeline().unwrap();
        let listed = |at_ms: i64| {
            let read = Simulated { timeline: &timeline, at_ms }.read();
            let report = scenario.with_processes(read, at_ms).measured().unwrap().clone();
            report.units.into_iter().map(|unit| unit.readings.processes).collect::<Vec<_>>()
        };
        let during = listed(-300_000);
        let [counted, seven, eight] = during[0].measured().unwrap().as_slice() else { panic!("{during:?}") };
        assert_eq!((counted.pid, counted.kind), (100_000, ProcessKind::Compute));
        let gib = Reading::Measured(MemoryBytes(1 << 30));
        assert_eq!((seven.pid, seven.kind, seven.memory), (7, ProcessKind::Compute, gib));
        assert_eq!((eight.pid, eight.kind), (8, ProcessKind::Graphics));
        assert_eq!(during[1], Reading::Absent(Absence::NoPermission), "no list, no process");
        for at_ms in [-601_000, -299_000] {
            assert_eq!(listed(at_ms)[0].measured().unwrap().len(), 1);
        }
        assert_eq!(scenario.whose(7), Some(Whose::Outside));
        assert_eq!(scenario.whose(8), JobId::new(4242).map(Whose::Job));
        assert_eq!(scenario.whose(100_000), None);
        assert_eq!(scenario.who(7).comm, Reading::Measured("python".to_owned()));
        assert_eq!(scenario.who(8).uid, Reading::Absent(Absence::NotSupported));
    }

    #[test]
    fn on_the_bus_are_as_many_as_the_story_says_or_nobody_can_look() {
        let at = |minor| Timeline::pci(minor).measured().unwrap().clone();
        let of = |more: &str, listed: &[PciAddress]| story(more).unwrap().unlisted(listed);
        let bus = "node: { gpus: 2, bus: 3 }";
        assert_eq!(of(bus, &[at(0), at(1)]), Reading::Measured(vec![at(2)]));
        assert_eq!(of(bus, &[at(0), at(1), at(2)]), Reading::Measured(vec![]));
        assert_eq!(of("", &[at(0)]), Reading::Absent(Absence::NotSupported));
    }

    #[test]
    fn a_process_that_is_not_understood_fails_the_story() {
        let told = "pid: 7, from: -10m, to: -5m, gpu: 0, of: outside";
        assert!(story(&format!("processes: [{{ {told} }}]")).is_ok());
        for (good, odd) in [
            ("outside", "nobody"),
            ("outside", "job x"),
            ("outside", "job 0"),
            ("to: -5m", "to: -11m"),
            ("pid: 7, ", ""),
            ("gpu: 0", "gpu: 0, kind: mps"),
            ("gpu: 0", "gpu: 0, name: x"),
        ] {
            let odd = told.replace(good, odd);
            assert!(story(&format!("processes: [{{ {odd} }}]")).is_err(), "{odd}");
        }
    }
}

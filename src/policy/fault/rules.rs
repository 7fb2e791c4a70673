//! The rules, one function each: what this run reads, and when that is faulty. What is not readable is neither faulty
//! nor fine: it opens nothing and ends nothing.

use super::Kind;
use crate::model::{Field, GpuReport, MigMode, UnitSample};
use crate::policy::{Thresholds, level};
use crate::reading::{Absence, Reading};

/// What one rule says of one GPU, or of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Says {
    /// In words.
    Faulty(String),
    /// The same of what a moment's trouble looks like too: told only after several runs, whatever the kind.
    MayBe(String),
    /// It was looked at and is well.
    Fine,
    /// Nothing can be said.
    CannotSay,
}

/// A number that earlier runs left of this GPU.
pub type Earlier<'a> = &'a dyn Fn(Word) -> Option<u64>;

/// What is remembered of a GPU from run to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Word {
    /// Uncorrectable ECC errors since the driver was loaded.
    EccVolatile,
    /// Those of the card's life.
    EccAggregate,
    /// The most NVLinks that were ever up.
    NvlinksUp,
}

impl Word {
    /// The ledger's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Word::EccVolatile => "ecc-volatile",
            Word::EccAggregate => "ecc-aggregate",
            Word::NvlinksUp => "nvlinks-up",
        }
    }
}

/// The width of a PCIe link, in lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Now.
    pub current: u32,
    /// What card and slot can do together.
    pub max: u32,
}

/// One GPU as this run sees it.
pub struct Unit<'a> {
    /// What was read.
    pub sample: &'a UnitSample,
    /// What earlier runs left.
    pub earlier: Earlier<'a>,
    /// Its PCIe link, where it was looked at.
    pub link: Reading<Link>,
    /// Processes of no job on it, in words; empty: none.
    pub foreign: Reading<Vec<String>>,
    /// The numbers.
    pub thresholds: &'a Thresholds,
}

impl Unit<'_> {
    fn field(&self, field: Field) -> Reading<u64> {
        self.sample.readings.fields.get(field)
    }

    /// At this instant, as clocks and links are: a peak of the seconds before says nothing of them.
    fn at_work(&self) -> bool {
        let now = self.sample.readings.sm_util;
        now.measured().is_some_and(|now| now.get() >= self.thresholds.util_pct)
    }

    /// Why it cannot be used at all, where that is so.
    fn trouble(&self) -> Option<Absence> {
        let (id, r) = (&self.sample.identity, &self.sample.readings);
        let absences = [id.uuid.absence(), r.memory.absence(), r.power.absence(), r.sm_util.absence()];
        let of_card = |why: &&Absence| matches!(why, Absence::GpuLost | Absence::ResetRequired);
        absences.iter().flatten().find(of_card).copied()
    }
}

/// One rule.
type Rule = fn(&Unit) -> Says;

/// Every rule of a GPU, with its kind.
pub const OF_UNIT: [(Kind, Rule); 11] = [
    (Kind::GpuLost, gpu_lost),
    (Kind::GpuReset, gpu_reset),
    (Kind::Ecc, ecc),
    (Kind::RowRemapPending, row_remap_pending),
    (Kind::RowRemapFailure, row_remap_failure),
    (Kind::RetiredPages, retired_pages),
    (Kind::HwSlowdown, hw_slowdown),
    (Kind::Nvlink, nvlink),
    (Kind::Fabric, fabric),
    (Kind::PcieWidth, pcie_width),
    (Kind::ForeignProcess, foreign_process),
];

/// What a rule of a GPU says; `None`: this kind is not about one GPU.
pub fn of_unit(kind: Kind, unit: &Unit) -> Option<Says> {
    OF_UNIT.iter().find(|(its, _)| *its == kind).map(|(_, rule)| rule(unit))
}

fn faulty(words: impl Into<String>) -> Says {
    Says::Faulty(words.into())
}

/// 1 is faulty, 0 is fine.
fn flag(reading: Reading<u64>, words: &str) -> Says {
    match reading {
        Reading::Measured(0) => Says::Fine,
        Reading::Measured(_) => faulty(words),
        Reading::Absent(_) => Says::CannotSay,
    }
}

/// Faulty: the driver lists it and says that it is lost. Where it only cannot be opened, or nothing came of it because the
/// worker died, that has to last.
fn gpu_lost(unit: &Unit) -> Says {
    match (unit.trouble(), &unit.sample.identity.uuid) {
        (Some(Absence::GpuLost), _) => faulty("the driver says that it is lost"),
        (None, Reading::Absent(Absence::SourceFailed | Absence::Transient)) => {
            Says::MayBe("the driver lists it and cannot open it".to_owned())
        }
        (_, Reading::Measured(_)) => Says::Fine,
        (_, Reading::Absent(_)) => Says::CannotSay,
    }
}

/// Faulty: the driver refuses it until it is reset, or names a recovery action (NVIDIA/DCGM#263).
fn gpu_reset(unit: &Unit) -> Says {
    if unit.trouble() == Some(Absence::ResetRequired) {
        return faulty("the driver refuses it until it is reset");
    }
    match unit.field(Field::RecoveryAction) {
        Reading::Measured(0) => Says::Fine,
        // A later driver's word: it may be a harmless one.
        Reading::Measured(8..) => Says::CannotSay,
        Reading::Measured(n) => {
            let wanted = match n {
                1 => "a GPU reset",
                2 => "a reboot of the node",
                3 => "peer-to-peer traffic drained",
                4 => "a drain and a GPU reset",
                5 => "a repair of the IMEX domain",
                6 => "a reset of its bus",
                _ => "a power cycle",
            };
            faulty(format!("the driver wants {wanted} ({n})"))
        }
        // Before driver 570 the action itself is not told: absent is not "none", but what is refused is told above.
        Reading::Absent(Absence::NotSupported) if unit.sample.readings.memory.measured().is_some() => {
            Says::Fine
        }
        Reading::Absent(_) => Says::CannotSay,
    }
}

/// Faulty: more uncorrectable errors than an earlier run saw, since the driver was loaded or of the card's life. A count
/// that began anew is no error.
fn ecc(unit: &Unit) -> Says {
    let counted = [
        (Word::EccVolatile, Field::EccUncorrectedVolatile, "since the driver was loaded"),
        (Word::EccAggregate, Field::EccUncorrectedAggregate, "of its life"),
    ];
    let mut says = Says::CannotSay;
    for (word, field, of) in counted {
        match ((unit.earlier)(word), unit.field(field)) {
            (Some(before), Reading::Measured(now)) if now > before => {
                return faulty(format!("{} new uncorrectable ECC errors, {now} {of}", now - before));
            }
            (Some(_), Reading::Measured(_)) => says = Says::Fine,
            _ => {}
        }
    }
    says
}

/// Faulty: a row waits to be remapped, which takes a GPU reset.
fn row_remap_pending(unit: &Unit) -> Says {
    flag(unit.field(Field::RemapPending), "a row of memory waits to be remapped: it takes a GPU reset")
}

/// Faulty: a row could not be remapped; NVIDIA takes such cards back.
fn row_remap_failure(unit: &Unit) -> Says {
    flag(unit.field(Field::RemapFailed), "a row of memory could not be remapped")
}

/// Of the 64 pages that a card can retire.
const RETIRED_MOST: u64 = 60;

/// Faulty: a page waits for retirement, or nearly all that can be are.
fn retired_pages(unit: &Unit) -> Says {
    if let Reading::Measured(1..) = unit.field(Field::RetiredPending) {
        return faulty("a page of memory waits to be retired: it takes a GPU reset");
    }
    let retired =
        unit.field(Field::RetiredSingleBit).and_then(|a| unit.field(Field::RetiredDoubleBit).map(|b| a + b));
    match retired {
        Reading::Measured(n) if n >= RETIRED_MOST => {
            faulty(format!("{n} pages of memory are retired, of 64"))
        }
        Reading::Measured(_) => Says::Fine,
        Reading::Absent(_) => Says::CannotSay,
    }
}

/// Faulty: at work, slowed by hardware or heat, below half its clock and well below its power limit. A temperature by
/// itself is none, nor are the power cap, application clocks and idling.
fn hw_slowdown(unit: &Unit) -> Says {
    let r = &unit.sample.readings;
    if !unit.at_work() {
        return Says::CannotSay;
    }
    match level::is_slowed_by_hardware(r) {
        Reading::Measured(true) => {
            let or = |n: Option<u32>| n.map_or("?".to_owned(), |n| n.to_string());
            let (now, most) = (r.sm_clock.measured().map(|c| c.0), r.sm_clock_max.measured().map(|c| c.0));
            faulty(format!("slowed by hardware or heat while it works: {} of {} MHz", or(now), or(most)))
        }
        Reading::Measured(false) => Says::Fine,
        Reading::Absent(_) => Says::CannotSay,
    }
}

/// Faulty: fewer links are up than were once. A board that never had them connected has none to lose, and a card that is
/// cut into instances uses none.
fn nvlink(unit: &Unit) -> Says {
    if unit.sample.readings.mig == Reading::Measured(MigMode::Enabled) {
        return Says::CannotSay;
    }
    match ((unit.earlier)(Word::NvlinksUp), unit.field(Field::NvlinkActive)) {
        (Some(most), Reading::Measured(up)) if up < most => faulty(format!("{up} of {most} NVLinks are up")),
        (_, Reading::Measured(_)) => Says::Fine,
        (_, Reading::Absent(_)) => Says::CannotSay,
    }
}

/// Faulty: this card has a fabric and it is not up, or came up with an error. 0 is "no fabric", 3 "completed".
fn fabric(unit: &Unit) -> Says {
    match (unit.field(Field::FabricState), unit.field(Field::FabricStatus)) {
        (Reading::Measured(0), _) | (Reading::Measured(3), Reading::Measured(0)) => Says::Fine,
        (Reading::Measured(1), _) => faulty("its NVLink fabric is not started: CUDA does not start on it"),
        (Reading::Measured(2), _) => faulty("its NVLink fabric is not up yet: CUDA does not start on it"),
        (Reading::Measured(3), Reading::Measured(n)) => {
            faulty(format!("its NVLink fabric came up with error {n}"))
        }
        _ => Says::CannotSay,
    }
}

/// Faulty: narrower than it can be while it works. The generation falls at rest, which is no fault; the width does not
/// rise again by itself.
fn pcie_width(unit: &Unit) -> Says {
    match unit.link {
        _ if !unit.at_work() => Says::CannotSay,
        Reading::Measured(link) if link.current < link.max => {
            faulty(format!("its PCIe link has {} lanes of {}", link.current, link.max))
        }
        Reading::Measured(_) => Says::Fine,
        Reading::Absent(_) => Says::CannotSay,
    }
}

/// Faulty: a process of no job computes on a GPU that no job holds.
fn foreign_process(unit: &Unit) -> Says {
    match &unit.foreign {
        Reading::Measured(found) if found.is_empty() => Says::Fine,
        Reading::Measured(found) => faulty(format!("held by no job's {}", found.join(", "))),
        Reading::Absent(_) => Says::CannotSay,
    }
}

/// The node as a whole as this run sees it.
pub struct Node<'a> {
    /// The GPUs, or why there is no reading of them.
    pub gpus: &'a Reading<GpuReport>,
    /// Whether there is an NVIDIA GPU at all, so that a driver is wanted.
    pub has_gpus: bool,
    /// Whether the GPUs stay initialised between two looks; without it the first touch takes tens of seconds.
    pub persistent: bool,
}

/// What a rule of the whole node says; `None`: this kind is not one.
pub fn of_node(kind: Kind, node: &Node) -> Option<Says> {
    let why = node.gpus.absence();
    let says = |is: bool, words: &str| match (is, why) {
        (true, _) => faulty(words),
        (false, None) => Says::Fine,
        (false, Some(_)) => Says::CannotSay,
    };
    Some(match kind {
        Kind::DriverUnresponsive => says(
            why == Some(Absence::WorkerStuck) || (why == Some(Absence::DeadlinePassed) && node.persistent),
            "the driver does not answer: every look at the GPUs hangs in it",
        ),
        Kind::DriverNotLoaded => says(
            why == Some(Absence::DriverNotLoaded) && node.has_gpus,
            "there are NVIDIA GPUs on the bus and no driver is loaded",
        ),
        Kind::DriverMismatch => says(
            why == Some(Absence::VersionMismatch),
            "driver and library are of different versions: reboot, or reload",
        ),
        Kind::PersistenceMode => persistence(node),
        _ => return None,
    })
}

/// Faulty: some GPU has it off: each first look at it then initialises the card, which takes seconds. Or no answer came
/// in time, and it may be that (Azure/aks-gpu#105).
fn persistence(node: &Node) -> Says {
    if node.gpus.absence() == Some(Absence::DeadlinePassed) && !node.persistent {
        return faulty("the GPUs took longer to start than `gpu.deadline`: persistence mode is off?");
    }
    let modes = node.gpus.measured().into_iter().flat_map(|report| &report.units);
    let modes: Vec<Reading<u64>> =
        modes.map(|unit| unit.readings.fields.get(Field::PersistenceMode)).collect();
    let off = modes.iter().filter(|mode| **mode == Reading::Measured(0)).count();
    match modes.iter().any(|mode| mode.measured().is_some()) {
        true if off > 0 => faulty(format!("persistence mode is off on {off} GPUs")),
        true => Says::Fine,
        false => Says::CannotSay,
    }
}

/// What is to be remembered of a GPU for the next run: what this one read, where it is news.
pub fn counters(unit: &UnitSample, earlier: Earlier) -> Vec<(Word, u64)> {
    let read = |field| unit.readings.fields.get(field).measured().copied();
    let counted = [
        (Word::EccVolatile, Field::EccUncorrectedVolatile),
        (Word::EccAggregate, Field::EccUncorrectedAggregate),
    ];
    let mut news: Vec<(Word, u64)> =
        counted.into_iter().filter_map(|(word, field)| Some((word, read(field)?))).collect();
    // A link that is down today was up once.
    let most = read(Field::NvlinkActive).max(earlier(Word::NvlinksUp)).filter(|up| *up > 0);
    news.extend(read(Field::NvlinkActive).and(most).map(|up| (Word::NvlinksUp, up)));
    news.retain(|(word, value)| earlier(*word) != Some(*value));
    news
}

#[cfg(test)]
mod tests;

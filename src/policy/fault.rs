//! Faults of the node itself: what makes it unfit for GPU jobs, whoever runs there. Each is a small rule with a name:
//! what it is, what it reads and when a reading is faulty stand in `rules`. Here: the names, how many runs open and
//! close one, and what may be done about it.

pub mod missing;
mod rules;
pub mod strangers;
mod words;

pub use rules::{Earlier, Link, Node, OF_UNIT, Says, Unit, Word, counters, of_node, of_unit};

pub use words::InWords;

use super::reason::Where;

use crate::mode::NoPermit;
use crate::model::{KnownUnit, UnitKind, UnitRef};
use crate::units::WallMs;
use serde::Serialize;

/// What is done about a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It is not looked for.
    Off,
    /// People are told, once an episode.
    Alert,
    /// The node is drained too.
    Drain,
}

/// How a kind of fault comes and goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    /// A state, true at once and over as soon as it is gone for some runs.
    State,
    /// A state that was looked for over some time already: a second run has to agree.
    Seen,
    /// A state that a boot, a reset or a burst of load passes through: several runs in a row have to see it.
    Slow,
    /// Something that happened. No reading shows that it is over, only that it does not happen again.
    Event,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $word:literal, $course:ident, $whole:literal, $job:literal;)*) => {
        /// A kind of fault; the word is fixed: configuration, Reason, README, journal and `ack` use it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind { $($(#[$doc])* $name,)* }

        impl Kind {
            /// All of them, in README's order.
            pub const ALL: &'static [Kind] = &[$(Kind::$name,)*];

            /// Its fixed name.
            pub const fn word(self) -> &'static str { match self { $(Kind::$name => $word,)* } }

            fn course(self) -> Course { match self { $(Kind::$name => Course::$course,)* } }

            /// Whether an update or a setting can bring it to every node of a cluster at once. Such a one drains only
            /// where the configuration names it.
            pub fn may_be_everywhere(self) -> bool { match self { $(Kind::$name => $whole,)* } }

            /// Whether a GPU with it cannot be told from an idle one: its job is not judged.
            pub fn hides_its_job(self) -> bool { match self { $(Kind::$name => $job,)* } }
        }
    };
}

kinds! {
    /// The driver does not answer.
    DriverUnresponsive = "driver-unresponsive", State, false, false;
    /// There are GPUs and no driver.
    DriverNotLoaded = "driver-not-loaded", Slow, true, false;
    /// Kernel module and library are of different versions.
    DriverMismatch = "driver-mismatch", State, true, false;
    /// Fewer GPUs are listed than there should be.
    GpuMissing = "gpu-missing", Slow, true, false;
    /// The driver has lost a GPU that it lists.
    GpuLost = "gpu-lost", State, false, true;
    /// The driver wants a GPU reset, or more.
    GpuReset = "gpu-reset", State, false, true;
    /// New uncorrectable ECC errors.
    Ecc = "ecc", Event, false, true;
    /// A row of memory waits to be remapped.
    RowRemapPending = "row-remap-pending", State, false, false;
    /// A row of memory could not be remapped.
    RowRemapFailure = "row-remap-failure", State, false, true;
    /// Pages wait for retirement, or too many are retired; cards before Ampere.
    RetiredPages = "retired-pages", State, false, false;
    /// An Xid that means hardware.
    Xid = "xid", Event, false, true;
    /// Slowed by hardware or heat to less than half its clock while it works.
    HwSlowdown = "hw-slowdown", Slow, false, false;
    /// NVLinks that were up are down.
    Nvlink = "nvlink", Slow, true, true;
    /// The NVLink fabric is not up: CUDA does not start.
    Fabric = "fabric", Slow, true, true;
    /// The PCIe link is narrower than it can be, under load.
    PcieWidth = "pcie-width", Slow, false, false;
    /// Persistence mode is off.
    PersistenceMode = "persistence-mode", Slow, true, false;
    /// A process of no job computes on a GPU of this node.
    ForeignProcess = "foreign-process", Slow, false, false;
    /// A process outlived its job, as its Epilog found.
    Leak = "leak", Seen, false, false;
}

impl Kind {
    /// By its word.
    pub fn from_word(word: &str) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|kind| kind.word() == word)
    }

    /// Whether it is something that happened: no later run sees it again.
    pub fn is_event(self) -> bool {
        self.course() == Course::Event
    }

    /// Runs in a row that see what a boot, a reset or a moment's trouble looks like too.
    pub const SLOW: u32 = 5;

    /// So many runs in a row have to see it before it is one.
    pub fn tells_after(self) -> u32 {
        match self.course() {
            Course::State | Course::Event => 1,
            Course::Seen => 2,
            Course::Slow => Kind::SLOW,
        }
    }

    /// So many runs in a row have to see it gone before it is over.
    pub fn ends_after(self) -> u32 {
        match self.course() {
            Course::State | Course::Seen | Course::Slow => 5,
            Course::Event => 60,
        }
    }

    /// What is done where the configuration does not name it.
    pub fn default_action(self) -> Action {
        Action::Alert
    }
}

/// The hardware Xids where the configuration names none: uncorrectable ECC, a failed remapping, fallen off the bus,
/// uncontained memory error, GSP time-out and error, unrecovered ECC. What any user's code can cause (13, 31, 43, 45)
/// is never among the defaults (NVIDIA's Xid catalogue).
pub const HARDWARE_XIDS: [u32; 7] = [48, 64, 79, 95, 119, 120, 140];

/// What the configuration says of faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Law {
    /// What is done about each kind that is named.
    pub actions: Vec<(Kind, Action)>,
    /// The Xids that mean hardware.
    pub xids: Vec<u32>,
}

impl Law {
    /// What is done about this kind.
    pub fn action(&self, kind: Kind) -> Action {
        let named = self.actions.iter().find(|(named, _)| *named == kind);
        named.map_or(kind.default_action(), |(_, action)| *action)
    }
}

/// The words of an open fault of one of these units by which its job is hidden. `open`: kind, subject and words of each;
/// a subject is the unit's UUID, alone or before what tells two of them apart.
pub fn hiding<'a>(
    open: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>,
    units: &[UnitRef],
    known: &[KnownUnit],
) -> Option<String> {
    // Of an instance, its card.
    let card = |unit: &UnitRef| match known.iter().find(|k| k.uuid == unit.uuid).map(|k| &k.kind) {
        Some(UnitKind::Mig { parent, .. }) => parent.clone(),
        Some(UnitKind::Gpu) | None => unit.uuid.clone(),
    };
    let of_its = |subject: &str| {
        let uuid = subject.split(' ').next().unwrap_or_default();
        units.iter().any(|unit| unit.uuid.as_str() == uuid || card(unit).as_str() == uuid)
    };
    let hides = |kind: &str| Kind::from_word(kind).is_some_and(Kind::hides_its_job);
    open.into_iter()
        .find(|(kind, subject, _)| hides(kind) && of_its(subject))
        .map(|(.., words)| words.to_owned())
}

/// Proof that a fault stands, was told, and may drain this node. Only [`escalate`] makes it.
///
/// ```compile_fail,E0451
/// use gpu_reaper_hc::policy::fault::{DrainWarrant, Kind};
/// let forged = DrainWarrant { kind: Kind::Ecc, place: todo!(), since: todo!(), _permit: todo!() };
/// ```
#[derive(Debug)]
pub struct DrainWarrant {
    kind: Kind,
    place: Where,
    since: WallMs,
    _permit: crate::mode::NodePermit,
}

impl DrainWarrant {
    /// The kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The Reason that is written.
    pub fn reason(&self) -> String {
        super::reason::fault(self.kind, &self.place, self.since)
    }
}

/// A fault that counts.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Its kind.
    pub kind: Kind,
    /// Where, as the Reason names it.
    pub place: Where,
    /// Since when.
    pub since: WallMs,
    /// This run saw it, or it is an event that is still open: a state that an earlier run saw alone drains nothing.
    pub seen_now: bool,
}

/// What a drain for a fault depends on beside the fault.
#[derive(Debug)]
pub struct Circumstances {
    /// The configuration's word for this kind.
    pub action: Action,
    /// Whether anything may be done at all.
    pub permit: Result<crate::mode::NodePermit, NoPermit>,
    /// A drain was made for this episode, or is being made: there is no second one, whoever lifted it.
    pub drained: bool,
    /// This node's moment is so far away.
    pub wait_ms: i64,
    /// Whatever about this run, node or site forbids a deed now.
    pub held_by: Option<String>,
}

/// The one step for a fault in this run.
#[derive(Debug)]
pub enum Step {
    /// Nothing is due.
    Rest,
    /// The drain waits for this node's moment.
    Later,
    /// The drain is due and something forbids it.
    Withheld(String),
    /// The node is to be drained.
    Drain(DrainWarrant),
}

/// From a fault that counts to its step.
pub fn escalate(fault: &Standing, c: Circumstances) -> Step {
    if c.action != Action::Drain || c.drained || !fault.seen_now {
        return Step::Rest;
    }
    let permit = match (c.permit, c.held_by) {
        (Err(NoPermit::Observe), _) => return Step::Withheld("the mode is observe".to_owned()),
        (Err(NoPermit::Outside(why)), _) | (Ok(_), Some(why)) => return Step::Withheld(why),
        (Ok(permit), None) => permit,
    };
    if c.wait_ms > 0 {
        return Step::Later;
    }
    Step::Drain(DrainWarrant {
        kind: fault.kind,
        place: fault.place.clone(),
        since: fault.since,
        _permit: permit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mode::{EnforceIn, Mode};
    use crate::units::NodeName;

    fn standing() -> Standing {
        Standing { kind: Kind::GpuLost, place: Where::at("0000:1a:00.0"), since: WallMs(0), seen_now: true }
    }

    fn drains() -> Circumstances {
        let node = NodeName::new("n1").unwrap();
        Circumstances {
            action: Action::Drain,
            permit: Mode::Enforce.node_permit(&EnforceIn::EVERYWHERE, &node),
            drained: false,
            wait_ms: 0,
            held_by: None,
        }
    }

    #[test]
    fn a_fault_drains_only_where_everything_says_so() {
        let word = |c: Circumstances, f: &Standing| match escalate(f, c) {
            Step::Rest => "rest",
            Step::Later => "later",
            Step::Withheld(_) => "withheld",
            Step::Drain(_) => "drain",
        };
        assert_eq!(word(drains(), &standing()), "drain");
        assert_eq!(word(Circumstances { action: Action::Alert, ..drains() }, &standing()), "rest");
        assert_eq!(word(Circumstances { drained: true, ..drains() }, &standing()), "rest");
        assert_eq!(word(drains(), &Standing { seen_now: false, ..standing() }), "rest");
        assert_eq!(word(Circumstances { wait_ms: 1, ..drains() }, &standing()), "later");
        let no = Circumstances { permit: Err(NoPermit::Observe), ..drains() };
        assert_eq!(word(no, &standing()), "withheld");
        let held = Circumstances { held_by: Some("limit".into()), ..drains() };
        assert_eq!(word(held, &standing()), "withheld");
    }

    #[test]
    fn only_a_fault_that_could_be_taken_for_idleness_hides_the_job_on_that_unit() {
        let unit = |uuid: &str| UnitRef {
            uuid: crate::units::UnitUuid::new(uuid).unwrap(),
            index: crate::units::NvmlIndex(0),
            name: crate::reading::Reading::Measured("H100".to_owned()),
        };
        let units = [unit("GPU-1"), unit("GPU-2")];
        let table = [
            ("ecc", "GPU-1", true),
            ("xid", "GPU-2 79", true),
            ("ecc", "GPU-10", false),
            ("ecc", "node", false),
            ("hw-slowdown", "GPU-1", false),
            ("drain", "GPU-1", false),
        ];
        for (kind, subject, hides) in table {
            assert_eq!(hiding([(kind, subject, "x")], &units, &[]).is_some(), hides, "{kind} {subject}");
        }
        let uuid = |text| crate::units::UnitUuid::new(text).unwrap();
        let instance = KnownUnit {
            uuid: uuid("MIG-7"),
            kind: UnitKind::Mig { parent: uuid("GPU-3"), gi: 1, ci: 0 },
            index: crate::units::NvmlIndex(3),
            minor: crate::reading::Reading::Measured(crate::units::DeviceMinor(3)),
            name: crate::reading::Reading::Measured("H100".to_owned()),
        };
        let of_card = hiding([("ecc", "GPU-3", "x")], &[unit("MIG-7")], &[instance]);
        assert_eq!(of_card.as_deref(), Some("x"), "an instance is on a card");
    }

    #[test]
    fn no_kind_drains_by_default_and_each_word_is_read_back() {
        let law = Law { actions: vec![(Kind::Ecc, Action::Drain)], xids: vec![] };
        for kind in Kind::ALL {
            assert_eq!(Kind::from_word(kind.word()), Some(*kind));
            let want = if *kind == Kind::Ecc { Action::Drain } else { Action::Alert };
            assert_eq!(law.action(*kind), want, "{kind:?}");
        }
        assert_eq!(Kind::from_word("ECC"), None);
    }
}

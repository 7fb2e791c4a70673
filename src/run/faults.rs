//! Faults of the node: every rule is asked once a run, and what has begun and what has ended is told once. While nothing is
//! amiss, which the run before has left in the lock file, no fault is read back. [`drains`]: what is done about them.

pub mod drains;

use super::eyes::Eyes;
use super::snapshot::{Snapshot, whole};
use super::{Setting, Trouble, leaks, xids};
use crate::gpu::bus::LinkWidth;
use crate::ledger::{FaultDrain, FaultRow, Ledger, Remembered, SeenFault};
use crate::lock::Before;
use crate::model::*;
use crate::policy::attribution::{Configured, Mapping};
use crate::policy::fault::missing::{self, Expected, Listed};
use crate::policy::fault::{self, Action, Kind, Link, Node, Says, Standing, Unit, Word, strangers};
use crate::policy::reason::Where;
use crate::reading::{Absence, Reading};
use crate::units::{DeviceMinor, PciAddress};
use std::collections::BTreeMap;

/// The bus and the links on it are looked at once in so many runs while nothing is amiss: on a server the kernel's list
/// has hundreds of lines, which it writes anew for each reader.
const EVERY: i64 = 8;
/// Where what is remembered of the node as a whole is kept, and the subject of its faults.
pub const NODE: &str = "node";
/// The most GPUs that the driver ever listed.
pub const MOST_GPUS: &str = "gpus";
/// The kind under which it is kept that the GPUs cannot be read for a reason that is no fault of the node.
const COLLECTOR: &str = "collector";

/// What is wrong with the node now.
#[derive(Default)]
pub struct Amiss {
    /// Told and not acknowledged: for the run's own line.
    pub words: Vec<String>,
    /// A later run has to read the faults back: something is open, suspected or acknowledged.
    pub any: bool,
    /// Those that a drain may be for.
    standing: Vec<(FaultRow, Standing)>,
}

/// A fault as a rule sees it.
struct Sight {
    kind: Kind,
    subject: String,
    /// `None`: nothing that a drain may be for.
    place: Option<String>,
    detail: String,
}

/// What this run looks with.
struct Scene<'a> {
    setting: &'a Setting<'a>,
    run: RunId,
    snapshot: &'a Snapshot,
    remembered: Remembered,
    links: BTreeMap<PciAddress, Reading<Link>>,
    persistent: bool,
    expected: Option<Expected>,
    unlisted: Reading<Vec<PciAddress>>,
}

/// Asks every rule, keeps what they say, and tells what has begun and what has ended.
pub fn look(
    setting: &Setting,
    run: RunId,
    (snapshot, eyes): (&Snapshot, &mut dyn Eyes),
    before: &Before,
    ledger: &mut Ledger,
) -> Result<Amiss, Trouble> {
    let remembered = ledger.remembered()?;
    let left = remembered.get(NODE, leaks::LEFT).is_some();
    let open = if *before == Before::Ended && !left { Vec::new() } else { faults_of_the_node(ledger)? };
    let scene = Scene::set(setting, run, (snapshot, eyes), &open, remembered);
    let (mut seen, fine) = scene.sights(&open, eyes);
    let xids = xids::look(setting, run, snapshot, eyes, (&scene.remembered, !seen.is_empty()), ledger)?;
    seen.extend(xids.into_iter().map(|xid| Sight {
        kind: Kind::Xid,
        subject: xid.subject,
        place: xid.by_kernel.then(|| xid.gpu.to_string()),
        detail: xid.words,
    }));
    seen.retain(|sight| action(setting, sight.kind) != Action::Off);
    scene.remember(ledger)?;
    scene.collector(&seen, before, ledger)?;
    for sight in &seen {
        tell(setting, run, sight, ledger)?;
    }
    if left && !open.iter().any(|row| row.kind == Kind::Leak.word()) {
        ledger.forget(NODE, leaks::LEFT)?;
    }
    if seen.is_empty() && open.is_empty() && *before == Before::Ended {
        return Ok(Amiss::default());
    }
    for row in &open {
        scene.close(row, (&seen, &fine), ledger)?;
    }
    amiss(setting, &seen, ledger)
}

/// Rows of kinds that are rules: the others are notes.
fn faults_of_the_node(ledger: &Ledger) -> Result<Vec<FaultRow>, Trouble> {
    let mut all = ledger.faults()?;
    all.retain(|row| Kind::from_word(&row.kind).is_some() || row.kind == COLLECTOR);
    Ok(all)
}

/// What the configuration says of a kind; a leak is its Epilog's concern.
pub fn action(setting: &Setting, kind: Kind) -> Action {
    match kind {
        Kind::Leak => setting.config.epilog.on_leak,
        _ => setting.config.faults.law.action(kind),
    }
}

fn tell(setting: &Setting, run: RunId, sight: &Sight, ledger: &mut Ledger) -> Result<(), Trouble> {
    let Sight { kind, subject, place, detail, .. } = sight;
    let place = place.as_deref();
    let seen = SeenFault { kind: kind.word(), subject, detail, place, tells_after: kind.tells_after() };
    if ledger.fault_sighted(&seen, run, setting.now)? {
        let mode = if *kind == Kind::Leak { setting.config.mode() } else { setting.config.faults_mode() };
        let done = match action(setting, *kind) {
            Action::Alert | Action::Off => "nothing is done about it",
            Action::Drain if place.is_none() => "nothing is done about it: anybody may have written it",
            Action::Drain if mode.enforces() => "this node is to be drained for it",
            Action::Drain => "the mode is observe: this node is not drained for it",
        };
        tracing::warn!(fault = kind.word(), "fault {}: {detail}; {done}", kind.word());
    }
    Ok(())
}

/// What stands after this run.
fn amiss(setting: &Setting, seen: &[Sight], ledger: &Ledger) -> Result<Amiss, Trouble> {
    let rows = faults_of_the_node(ledger)?;
    let first = ledger.first_run(setting.now)?;
    // A drain whose end is not known, or that was not counted again, is looked after also once its fault is over.
    let unsettled = ledger.fault_drains(setting.now)?.iter().any(FaultDrain::is_unsettled);
    let mut amiss = Amiss { any: !rows.is_empty() || unsettled, ..Amiss::default() };
    for row in rows.into_iter().filter(FaultRow::counts) {
        amiss.words.push(row.detail.clone());
        let Some(kind) = Kind::from_word(&row.kind) else { continue };
        let of_it = |s: &Sight| s.kind == kind && s.subject == row.subject;
        let standing = Standing {
            kind,
            place: row.place.as_deref().and_then(Where::read).unwrap_or_else(|| Where::at(NODE)),
            since: row.opened,
            // An event is seen by one run, which is seldom in the node's moment: it stands while it is open, on its boot.
            seen_now: row.place.is_some()
                && ((kind.is_event() && first.is_some_and(|first| row.last_run >= first))
                    || seen.iter().any(of_it)),
        };
        amiss.standing.push((row, standing));
    }
    Ok(amiss)
}

impl<'a> Scene<'a> {
    fn set(
        setting: &'a Setting,
        run: RunId,
        (snapshot, eyes): (&'a Snapshot, &mut dyn Eyes),
        open: &[FaultRow],
        remembered: Remembered,
    ) -> Scene<'a> {
        let most = remembered.get(NODE, MOST_GPUS);
        let expected =
            missing::expected(setting.config.gpu.expected, &snapshot.mapping, &snapshot.gpus, most);
        let listed = snapshot.gpus.as_ref().map(Listed::of);
        let short = |listed: &Listed| expected.is_some_and(|e| e.is_short(listed));
        let is_open = |kind: Kind| open.iter().any(|row| row.kind == kind.word());
        let turn = run.0 % EVERY == 0;
        let suspect =
            snapshot.list_changed || listed.measured().is_some_and(short) || is_open(Kind::GpuMissing);
        let unlisted = match &listed {
            Reading::Measured(listed) if turn || suspect => eyes.unlisted(&listed.addresses),
            Reading::Measured(_) => Reading::Absent(Absence::NotAsked),
            Reading::Absent(why) => Reading::Absent(*why),
        };
        let mut links = BTreeMap::new();
        if turn || is_open(Kind::PcieWidth) {
            let gpus = snapshot.gpus.measured().into_iter().flat_map(whole);
            for address in gpus.filter_map(|gpu| gpu.identity.pci.measured()) {
                let link = |width: LinkWidth| Link { current: width.current, max: width.max };
                links.insert(address.clone(), eyes.link_width(address).map(link));
            }
        }
        let persistent = remembered.get(NODE, PERSISTENT).map_or_else(|| eyes.persistent(), |n| n == 1);
        Scene { setting, run, snapshot, remembered, links, persistent, expected, unlisted }
    }

    /// Everything that a rule calls faulty; and the open faults of GPUs that a rule calls fine, by row.
    fn sights(&self, open: &[FaultRow], eyes: &mut dyn Eyes) -> (Vec<Sight>, Vec<i64>) {
        let (mut seen, mut fine) = (Vec::new(), Vec::new());
        for (kind, says) in self.of_node() {
            if let Says::Faulty(detail) = says {
                seen.push(Sight { kind, subject: NODE.to_owned(), place: Some(NODE.to_owned()), detail });
            }
        }
        for row in open.iter().filter(|row| row.kind == Kind::Leak.word()) {
            match leaks::is_still_there(&row.subject, self.snapshot) {
                Some(true) => seen.push(self.left(row)),
                Some(false) => fine.push(row.id),
                None => {}
            }
        }
        let Reading::Measured(report) = &self.snapshot.gpus else { return (seen, fine) };
        for (subject, detail) in missing::missing(&Listed::of(report), &self.unlisted, self.expected) {
            let place = if subject == missing::COUNT { NODE.to_owned() } else { subject.clone() };
            seen.push(Sight { kind: Kind::GpuMissing, subject, place: Some(place), detail });
        }
        for sample in whole(report) {
            let foreign = self.foreign(sample, eyes);
            let (subject, place) = names(sample);
            self.with_unit(sample, foreign, |unit| {
                for (kind, rule) in fault::OF_UNIT {
                    let is_it = |row: &&FaultRow| row.kind == kind.word() && row.subject == subject;
                    match rule(unit) {
                        Says::Faulty(what) => {
                            let detail = format!("GPU {} ({place}): {what}", sample.identity.index);
                            let (subject, place) = (subject.clone(), Some(place.clone()));
                            seen.push(Sight { kind, subject, place, detail });
                        }
                        Says::Fine => fine.extend(open.iter().find(is_it).map(|row| row.id)),
                        Says::CannotSay => {}
                    }
                }
            });
        }
        (seen, fine)
    }

    /// What an Epilog found, and is there still.
    fn left(&self, row: &FaultRow) -> Sight {
        Sight {
            kind: Kind::Leak,
            subject: row.subject.clone(),
            place: row.place.clone(),
            detail: row.detail.clone(),
        }
    }

    fn of_node(&self) -> Vec<(Kind, Says)> {
        let node = Node {
            gpus: &self.snapshot.gpus,
            has_gpus: self.remembered.get(NODE, MOST_GPUS).is_some_and(|gpus| gpus > 0)
                || self.setting.config.gpu.library.is_none(),
            persistent: self.persistent,
        };
        Kind::ALL.iter().filter_map(|kind| Some((*kind, fault::of_node(*kind, &node)?))).collect()
    }

    fn with_unit(&self, sample: &UnitSample, foreign: Reading<Vec<String>>, look: impl FnOnce(&Unit)) {
        let (subject, _) = names(sample);
        let earlier = |word: Word| self.remembered.get(&subject, word.name());
        let link = sample.identity.pci.measured().and_then(|pci| self.links.get(pci).copied());
        look(&Unit {
            sample,
            earlier: &earlier,
            link: link.unwrap_or(Reading::Absent(Absence::NotAsked)),
            foreign,
            thresholds: &self.setting.config.rules.thresholds,
        });
    }

    /// Processes of no job on a GPU that no registered job holds and that slurmd gives out, in words. Whatever is of
    /// Slurm, or whose owner is not known, is no stranger: its job may only not be registered yet (mej/nhc#15).
    fn foreign(&self, sample: &UnitSample, eyes: &mut dyn Eyes) -> Reading<Vec<String>> {
        let processes = match &sample.readings.processes {
            Reading::Measured(processes) => processes,
            Reading::Absent(why) => return Reading::Absent(*why),
        };
        let computing = || processes.iter().filter(|p| p.kind != ProcessKind::Graphics);
        if computing().next().is_none() {
            return Reading::Measured(Vec::new());
        }
        if let Some(why) = self.snapshot.held.values().find_map(Reading::absence) {
            return Reading::Absent(why);
        }
        let is_this = |held: &UnitRef| sample.identity.uuid.measured() == Some(&held.uuid);
        if self.snapshot.held.values().filter_map(Reading::measured).flatten().any(is_this) {
            return Reading::Measured(Vec::new());
        }
        if !self.is_given_out(sample) {
            return Reading::Absent(Absence::NotMapped);
        }
        let mut found = Vec::new();
        for process in computing() {
            match self.snapshot.whose(process.pid) {
                Reading::Measured(Whose::Outside) => {}
                Reading::Measured(_) => continue,
                Reading::Absent(Absence::NotListed) => continue,
                Reading::Absent(why) => return Reading::Absent(why),
            }
            let who = eyes.who(process.pid);
            let allow = &self.setting.config.epilog.allow;
            if !who.comm.measured().is_some_and(|comm| strangers::is_service(comm, allow)) {
                found.push(strangers::words(process, &who));
            }
        }
        Reading::Measured(found)
    }

    /// Whether gres.conf gives this GPU to jobs. Read only where a process makes it matter.
    fn is_given_out(&self, sample: &UnitSample) -> bool {
        let listed = |minors: &[Option<DeviceMinor>]| {
            sample.identity.minor.measured().is_some_and(|minor| minors.contains(&Some(*minor)))
        };
        match self.setting.slurm.gres_of_node() {
            Ok(Mapping::Minors(minors) | Mapping::AutoDetected(Configured::Minors(minors))) => {
                listed(&minors)
            }
            Ok(Mapping::AutoDetected(Configured::All)) => true,
            Ok(Mapping::AutoDetected(Configured::Count(_)) | Mapping::Unknown) | Err(_) => false,
        }
    }

    /// Keeps for the next run what this one read.
    fn remember(&self, ledger: &mut Ledger) -> Result<(), Trouble> {
        let Reading::Measured(report) = &self.snapshot.gpus else { return Ok(()) };
        let mut news: Vec<(String, &str, u64)> = Vec::new();
        for sample in whole(report).filter(|sample| sample.identity.uuid.measured().is_some()) {
            let (subject, _) = names(sample);
            let earlier = |word: Word| self.remembered.get(&subject, word.name());
            let counted = fault::counters(sample, &earlier);
            news.extend(counted.into_iter().map(|(word, value)| (subject.clone(), word.name(), value)));
        }
        let gpus = Listed::of(report).gpus() as u64;
        if self.remembered.get(NODE, MOST_GPUS).is_none_or(|most| gpus > most) {
            news.push((NODE.to_owned(), MOST_GPUS, gpus));
        }
        let mode =
            |sample: &UnitSample| sample.readings.fields.get(Field::PersistenceMode).measured().copied();
        if let Some(on) = whole(report).filter_map(mode).min()
            && self.remembered.get(NODE, PERSISTENT) != Some(on)
        {
            news.push((NODE.to_owned(), PERSISTENT, on));
        }
        if news.is_empty() { Ok(()) } else { Ok(ledger.remember(&news)?) }
    }

    /// Says once that the GPUs cannot be read, where no rule has said it, and once that they can again: a fault of the
    /// collector, nobody's idleness.
    fn collector(&self, seen: &[Sight], before: &Before, ledger: &mut Ledger) -> Result<(), Trouble> {
        let of_node = || seen.iter().any(|sight| sight.subject == NODE);
        match &self.snapshot.gpus {
            Reading::Absent(why) if !of_node() => {
                let new = ledger.fault_seen(COLLECTOR, "gpus", why.words(), self.run, self.setting.now)?;
                if new {
                    tracing::warn!(
                        "the GPUs cannot be read: {}; nothing is judged until they can",
                        why.words()
                    );
                }
            }
            Reading::Measured(_) if *before != Before::Ended => {
                for fault in ledger.faults()?.iter().filter(|f| f.kind == COLLECTOR) {
                    ledger.fault_gone(fault.id, self.setting.now)?;
                    tracing::warn!("the GPUs can be read again, after: {}", fault.detail);
                }
            }
            Reading::Absent(_) | Reading::Measured(_) => {}
        }
        Ok(())
    }

    /// One that was open before this run and that it did not see: looked at, it comes nearer to its end.
    fn close(
        &self,
        row: &FaultRow,
        (seen, fine): (&[Sight], &[i64]),
        ledger: &mut Ledger,
    ) -> Result<(), Trouble> {
        let Some(kind) = Kind::from_word(&row.kind) else { return Ok(()) };
        let off = action(self.setting, kind) == Action::Off;
        let is_seen = seen.iter().any(|s| s.kind == kind && s.subject == row.subject);
        if is_seen || !(off || fine.contains(&row.id) || self.is_fine(kind, row)) {
            return Ok(());
        }
        let ends_after = if off { 1 } else { kind.ends_after() };
        if ledger.fault_not_seen(row.id, ends_after, self.setting.now)? && row.told {
            tracing::warn!(fault = row.kind, "fault {} is over: {}", row.kind, row.detail);
        }
        Ok(())
    }

    /// Whether the subject of a fault that is no rule of one GPU was looked at and is well; or is no longer a part of a
    /// node that is complete.
    fn is_fine(&self, kind: Kind, row: &FaultRow) -> bool {
        if let Some((_, says)) = self.of_node().into_iter().find(|(its, _)| *its == kind) {
            return says == Says::Fine;
        }
        let Reading::Measured(report) = &self.snapshot.gpus else { return false };
        let listed = Listed::of(report);
        let sample = whole(report).find(|sample| names(sample).0 == row.subject);
        match (kind, sample) {
            (Kind::GpuMissing, _) => missing::is_back(&row.subject, &listed, self.expected),
            // An event: no reading shows it again.
            (Kind::Xid, _) => true,
            (_, Some(_)) => false,
            // A card that was replaced: every other one is there and has its name.
            (_, None) => listed.without == 0 && self.expected.is_none_or(|e| !e.is_short(&listed)),
        }
    }
}

/// Whether persistence mode was on when it was last read.
const PERSISTENT: &str = "persistence-mode";

/// Whether the GPUs stay initialised between two looks, as a run last read it.
pub fn is_persistent(remembered: &Remembered) -> bool {
    remembered.get(NODE, PERSISTENT) == Some(1)
}

/// What a GPU is called from run to run, and where it is.
fn names(sample: &UnitSample) -> (String, String) {
    let id = &sample.identity;
    let place = id.pci.measured().map_or_else(|| format!("index-{}", id.index), PciAddress::to_string);
    (id.uuid.measured().map_or_else(|| place.clone(), |uuid| uuid.as_str().to_owned()), place)
}

//! Faults of the node: every rule is asked once a run, and what has begun and what has ended is told once. While nothing is
//! amiss, which the run before has left in the lock file, no fault is read back. [`drains`]: what is done about them.

pub mod drains;

use super::eyes::Eyes;
use super::snapshot::{Snapshot, whole};
use super::tell::{ForFault, fault as tell_people, fault_began};
use super::{Setting, Trouble, leaks, xids};
use crate::gpu::bus::LinkWidth;
use crate::ledger::{FaultDrain, FaultRow, Ledger, Remembered, SeenFault};
use crate::lock::Before;
use crate::mode::Mode;
use crate::model::*;
use crate::policy::attribution::{Configured, Mapping};
use crate::policy::fault::missing::{self, Expected, Listed};
use crate::policy::fault::{self, Action, Kind, Link, Node, Says, Standing, Unit, Word, strangers};
use crate::policy::reason::Where;
use crate::reading::{Absence, Reading};
use crate::units::{DeviceMinor, PciAddress, hash};
use std::collections::BTreeMap;

/// The bus and the links on it are looked at once in so many runs while nothing is amiss: on a server the kernel's list
/// has hundreds of lines, which it writes anew for each reader.
const EVERY: i64 = 8;
/// Where what is remembered of the node as a whole is kept, and the subject of its faults.
pub const NODE: &str = "node";
/// The most GPUs that the driver ever listed.
pub const MOST_GPUS: &str = "gpus";
/// The kind under which it is kept that the GPUs cannot be read for a reason that is no fault of the node.
pub(super) const COLLECTOR: &str = "collector";

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
    tells_after: u32,
    /// `None`: nothing that a drain may be for.
    place: Option<String>,
    detail: String,
}

impl Sight {
    fn of(kind: Kind, subject: &str, place: Option<&str>, detail: String) -> Sight {
        let (subject, place) = (subject.to_owned(), place.map(str::to_owned));
        Sight { kind, subject, tells_after: kind.tells_after(), place, detail }
    }
}

/// What this run looks with.
struct Scene<'a> {
    setting: &'a Setting<'a>,
    run: RunId,
    snapshot: &'a Snapshot,
    remembered: Remembered,
    links: BTreeMap<PciAddress, Reading<Link>>,
    persistent: bool,
    has_gpus: bool,
    /// The driver is the one by which the numbers of earlier runs were counted.
    same_driver: bool,
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
    // What was told before has sent for the log already.
    let is_told = |s: &Sight| open.iter().any(|row| row.told && row.is(s.kind.word(), &s.subject));
    let news = !seen.iter().all(is_told);
    let (xids, read_to) = xids::look(setting, run, snapshot, eyes, (&scene.remembered, news), ledger)?;
    seen.extend(xids.into_iter().map(|xid| Sight {
        kind: Kind::Xid,
        subject: xid.subject,
        place: xid.by_kernel.then(|| xid.gpu.to_string()),
        detail: xid.words,
        tells_after: Kind::Xid.tells_after(),
    }));
    seen.retain(|sight| action(setting, sight.kind) != Action::Off);
    scene.collector(&seen, &open, ledger)?;
    for sight in &seen {
        tell(setting, run, sight, &open, ledger)?;
    }
    // Last: what a run has told that is killed here is told again as the same episode, and none is lost.
    scene.remember(read_to, ledger)?;
    if left && !open.iter().any(|row| row.kind == Kind::Leak.word()) {
        ledger.forget(NODE, leaks::LEFT)?;
    }
    if seen.is_empty() && open.is_empty() && *before == Before::Ended {
        return Ok(Amiss::default());
    }
    for row in &open {
        scene.close(row, (&seen, &fine), ledger)?;
    }
    amiss(setting, run, &seen, ledger)
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

/// The mode under which the node is drained for a kind.
fn mode(setting: &Setting, kind: Kind) -> Mode {
    match kind {
        Kind::Leak => setting.config.mode(),
        _ => setting.config.faults_mode(),
    }
}

fn tell(
    setting: &Setting,
    run: RunId,
    sight: &Sight,
    open: &[FaultRow],
    ledger: &mut Ledger,
) -> Result<(), Trouble> {
    let Sight { kind, subject, place, detail, tells_after } = sight;
    // A state that was told and is as it was takes no writing.
    let same = |row: &&FaultRow| row.told && row.clean == 0 && row.detail == *detail && !kind.is_event();
    if open.iter().filter(same).any(|row| row.is(kind.word(), subject)) {
        return Ok(());
    }
    let place = place.as_deref();
    let seen = SeenFault { kind: kind.word(), subject, detail, place, tells_after: *tells_after };
    if ledger.fault_sighted(&seen, run, setting.now)? {
        let done = match action(setting, *kind) {
            Action::Alert | Action::Off => "nothing is done about it",
            Action::Drain if place.is_none() => {
                "nothing is done about it: it is not certain to be this node's"
            }
            Action::Drain if mode(setting, *kind).enforces() => "this node is to be drained for it",
            Action::Drain => "the mode is observe: this node is not drained for it",
        };
        tracing::warn!(fault = kind.word(), "fault {}: {detail}; {done}", kind.word());
        let enforces = mode(setting, *kind).enforces();
        fault_began(setting, (kind.word(), subject), enforces, done, ledger);
    }
    Ok(())
}

/// What stands after this run.
fn amiss(setting: &Setting, run: RunId, seen: &[Sight], ledger: &Ledger) -> Result<Amiss, Trouble> {
    let rows = faults_of_the_node(ledger)?;
    let first = ledger.first_run(setting.now)?;
    // A drain whose end is not known, or that was not counted again, is looked after also once its fault is over.
    let unsettled = ledger.fault_drains(setting.now)?.iter().any(FaultDrain::is_unsettled);
    let mut amiss = Amiss { any: !rows.is_empty() || unsettled, ..Amiss::default() };
    for row in rows.into_iter().filter(FaultRow::counts) {
        amiss.words.push(row.detail.clone());
        let Some(kind) = Kind::from_word(&row.kind) else { continue };
        let of_it = |s: &Sight| row.is(s.kind.word(), &s.subject);
        let standing = Standing {
            kind,
            place: row.place.as_deref().and_then(Where::read).unwrap_or_else(|| Where::at(NODE)),
            since: row.opened,
            // An event is seen by one run, which is seldom in the node's moment: it stands while it is open, on its boot.
            // And two runs agree: what one look alone saw drains nothing.
            seen_now: row.place.is_some()
                && row.opened_run < run
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
        let mut expected =
            missing::expected(setting.config.gpu.expected, &snapshot.mapping, &snapshot.gpus, most);
        let listed = snapshot.gpus.as_ref().map(Listed::of);
        let short = |listed: &Listed| expected.is_some_and(|e| e.is_short(listed));
        let is_open = |kind: Kind| open.iter().any(|row| row.kind == kind.word());
        let turn = run.0 % EVERY == 0;
        let suspect =
            snapshot.list_changed || listed.measured().is_some_and(short) || is_open(Kind::GpuMissing);
        let (excluded, lent) = if turn || suspect { eyes.set_aside() } else { (Vec::new(), 0) };
        expected = expected.map(|e| e.without(excluded.len() + lent));
        let unlisted = match &listed {
            Reading::Measured(listed) if turn || suspect => {
                eyes.unlisted(&listed.addresses).map(|mut all| {
                    all.retain(|address| !excluded.contains(address));
                    all
                })
            }
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
        let driver = driver_of(&snapshot.gpus);
        let same_driver = driver.is_some() && driver == remembered.get(NODE, DRIVER);
        // Asked where no driver is: of the bus itself, else of what there was once.
        let once = || remembered.get(NODE, MOST_GPUS).is_some_and(|gpus| gpus > 0);
        let has_gpus = snapshot.gpus.absence() == Some(Absence::DriverNotLoaded)
            && eyes.unlisted(&[]).measured().map_or_else(once, |gpus| !gpus.is_empty());
        let persistent = remembered.get(NODE, PERSISTENT).map_or_else(|| eyes.persistent(), |n| n == 1);
        Scene {
            setting,
            run,
            snapshot,
            remembered,
            links,
            persistent,
            has_gpus,
            same_driver,
            expected,
            unlisted,
        }
    }

    /// Everything that a rule calls faulty; and the open faults of GPUs that a rule calls fine, by row.
    fn sights(&self, open: &[FaultRow], eyes: &mut dyn Eyes) -> (Vec<Sight>, Vec<i64>) {
        let (mut seen, mut fine) = (Vec::new(), Vec::new());
        for &kind in Kind::ALL {
            if let Some(Says::Faulty(detail)) = self.of_node(kind) {
                seen.push(Sight::of(kind, NODE, Some(NODE), detail));
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
            let place = if subject == missing::COUNT { NODE } else { &subject };
            seen.push(Sight::of(Kind::GpuMissing, &subject, Some(place), detail));
        }
        for sample in whole(report) {
            let foreign = self.foreign(sample, eyes);
            let (subject, place) = names(sample);
            let found = seen.len();
            self.with_unit(sample, foreign, |unit| {
                for (kind, rule) in fault::OF_UNIT {
                    let words = |what: String| format!("GPU {} ({place}): {what}", sample.identity.index);
                    match rule(unit) {
                        Says::Faulty(what) => seen.push(Sight::of(kind, &subject, Some(&place), words(what))),
                        Says::MayBe(what) => {
                            let sight = Sight::of(kind, &subject, Some(&place), words(what));
                            seen.push(Sight { tells_after: Kind::SLOW, ..sight });
                        }
                        Says::Fine => {
                            let row = open.iter().find(|row| row.is(kind.word(), &subject));
                            fine.extend(row.map(|row| row.id));
                        }
                        Says::CannotSay => {}
                    }
                }
            });
            // Another node of this host may have it.
            if seen.len() > found && self.given_out(sample) == Some(false) {
                seen[found..].iter_mut().for_each(|sight| sight.place = None);
            }
        }
        (seen, fine)
    }

    /// What an Epilog found, and is there still.
    fn left(&self, row: &FaultRow) -> Sight {
        Sight::of(Kind::Leak, &row.subject, row.place.as_deref(), row.detail.clone())
    }

    /// What a rule says of the whole node; `None`: it is no rule of that.
    fn of_node(&self, kind: Kind) -> Option<Says> {
        let node = Node { gpus: &self.snapshot.gpus, has_gpus: self.has_gpus, persistent: self.persistent };
        fault::of_node(kind, &node)
    }

    fn with_unit(&self, sample: &UnitSample, foreign: Reading<Vec<String>>, look: impl FnOnce(&Unit)) {
        let (subject, _) = names(sample);
        let earlier = |word: Word| self.earlier(&subject, word);
        let link = sample.identity.pci.measured().and_then(|pci| self.links.get(pci).copied());
        look(&Unit {
            sample,
            earlier: &earlier,
            link: link.unwrap_or(Reading::Absent(Absence::NotAsked)),
            foreign,
            thresholds: &self.setting.config.rules.thresholds,
        });
    }

    /// A number of an earlier run. Another driver may count otherwise: then there is none.
    fn earlier(&self, subject: &str, word: Word) -> Option<u64> {
        self.remembered.get(subject, word.name()).filter(|_| self.same_driver)
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
        // Where Slurm keeps no cgroups a job of its own looks like anybody; and the parts of a split card have holders
        // of their own.
        if let Some(why) = self.snapshot.job_folders().absence() {
            return Reading::Absent(why);
        }
        if sample.readings.mig == Reading::Measured(MigMode::Enabled) {
            return Reading::Absent(Absence::NotSupported);
        }
        let is_this = |held: &UnitRef| sample.identity.uuid.measured() == Some(&held.uuid);
        if self.snapshot.held.values().filter_map(Reading::measured).flatten().any(is_this) {
            return Reading::Measured(Vec::new());
        }
        if self.given_out(sample) != Some(true) {
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

    /// Whether gres.conf gives this GPU to this node's jobs; `None`: it does not say. Read only where something makes it
    /// matter.
    fn given_out(&self, sample: &UnitSample) -> Option<bool> {
        let listed = |minors: &[Option<DeviceMinor>]| {
            sample.identity.minor.measured().map(|minor| minors.contains(&Some(*minor)))
        };
        match self.setting.slurm.gres_of_node() {
            Ok(Mapping::Minors(minors) | Mapping::AutoDetected(Configured::Minors(minors))) => {
                listed(&minors)
            }
            Ok(Mapping::AutoDetected(Configured::All)) => Some(true),
            Ok(Mapping::AutoDetected(Configured::Count(_)) | Mapping::Unknown) | Err(_) => None,
        }
    }

    /// Keeps for the next run what this one read.
    fn remember(&self, mut news: Vec<(String, &str, u64)>, ledger: &mut Ledger) -> Result<(), Trouble> {
        let Reading::Measured(report) = &self.snapshot.gpus else {
            return if news.is_empty() { Ok(()) } else { Ok(ledger.remember(&news)?) };
        };
        let driver = driver_of(&self.snapshot.gpus).filter(|_| !self.same_driver);
        news.extend(driver.map(|driver| (NODE.to_owned(), DRIVER, driver)));
        for sample in whole(report).filter(|sample| sample.identity.uuid.measured().is_some()) {
            let (subject, _) = names(sample);
            let earlier = |word: Word| self.earlier(&subject, word);
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
    fn collector(&self, seen: &[Sight], open: &[FaultRow], ledger: &mut Ledger) -> Result<(), Trouble> {
        let setting = self.setting;
        let of_node = || seen.iter().any(|sight| sight.subject == NODE);
        match &self.snapshot.gpus {
            Reading::Absent(why) if !of_node() => {
                let new = ledger.fault_seen(COLLECTOR, "gpus", why.words(), self.run, setting.now)?;
                if new {
                    tracing::warn!(
                        "the GPUs cannot be read: {}; nothing is judged until they can",
                        why.words()
                    );
                    let enforces = setting.config.mode().enforces();
                    let words = "nothing is judged until they can be read";
                    fault_began(setting, (COLLECTOR, "gpus"), enforces, words, ledger);
                }
            }
            Reading::Measured(_) => {
                for fault in open.iter().filter(|row| row.kind == COLLECTOR) {
                    ledger.fault_gone(fault.id, setting.now)?;
                    tracing::warn!("the GPUs can be read again, after: {}", fault.detail);
                    tell_people(setting, fault, setting.config.mode().enforces(), ForFault::Over, ledger);
                }
            }
            Reading::Absent(_) => {}
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
        let is_seen = seen.iter().any(|s| row.is(s.kind.word(), &s.subject));
        let is_fine = || fine.contains(&row.id) || self.is_fine(kind, row);
        if is_seen || !(off || is_fine()) || (!off && self.waits_for_its_drain(kind, row, ledger)?) {
            return Ok(());
        }
        let ends_after = if off { 1 } else { kind.ends_after() };
        if ledger.fault_not_seen(row.id, ends_after, self.setting.now)? && row.told {
            tracing::warn!(fault = row.kind, "fault {} is over: {}", row.kind, row.detail);
            let setting = self.setting;
            tell_people(setting, row, mode(setting, kind).enforces(), ForFault::Over, ledger);
        }
        Ok(())
    }

    /// An event for which a drain is due that was not made yet, by a limit or somebody's drain: it does not end meanwhile.
    fn waits_for_its_drain(&self, kind: Kind, row: &FaultRow, ledger: &Ledger) -> Result<bool, Trouble> {
        let setting = self.setting;
        let wanted = action(setting, kind) == Action::Drain && mode(setting, kind).enforces();
        if !kind.is_event() || !wanted || !row.counts() || row.place.is_none() {
            return Ok(false);
        }
        let of_this_boot = ledger.first_run(setting.now)?.is_some_and(|first| row.last_run >= first);
        Ok(of_this_boot && !drains::is_covered(row, &ledger.fault_drains(setting.now)?))
    }

    /// Whether the subject of a fault that is no rule of one GPU was looked at and is well; or is no longer a part of a
    /// node that is complete.
    fn is_fine(&self, kind: Kind, row: &FaultRow) -> bool {
        if let Some(says) = self.of_node(kind) {
            return says == Says::Fine;
        }
        let Reading::Measured(report) = &self.snapshot.gpus else { return false };
        let listed = Listed::of(report);
        let sample = whole(report).find(|sample| names(sample).0 == row.subject);
        match (kind, sample) {
            (Kind::GpuMissing, _) => missing::is_back(&row.subject, &listed, self.expected),
            // An event: no reading shows it again.
            (Kind::Xid, _) => true,
            // Only a run that saw it gone ends it.
            (Kind::Leak, _) => false,
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

/// The driver by which numbers were counted, by a hash of its version.
const DRIVER: &str = "driver";

fn driver_of(gpus: &Reading<GpuReport>) -> Option<u64> {
    let version = gpus.measured()?.driver.measured()?;
    Some(u64::from(hash(version)))
}

/// What a GPU is called from run to run, and where it is.
fn names(sample: &UnitSample) -> (String, String) {
    let id = &sample.identity;
    let place = id.pci.measured().map_or_else(|| format!("index-{}", id.index), PciAddress::to_string);
    (id.uuid.measured().map_or_else(|| place.clone(), |uuid| uuid.as_str().to_owned()), place)
}

//! `status`: how this node stands, on one screen. Judges every job again from the ledger as `--explain` does, so the two
//! cannot disagree; reads the ledger and changes nothing; asks Slurm nothing and no GPU. What the newest look could not
//! read is told as that, and how old that look is.

pub mod json;
mod text;

pub use text::page;

use crate::explain::{self, Asked, GAP_UNKNOWN_MS, Told};
use crate::ledger::{FaultDrain, FaultRow, Ledger, LedgerError, NewestLook, OpenDrain, Tally};
use crate::mode::Mode;
use crate::model::*;
use crate::policy::attribution::{self, Holder, Mapping};
use crate::policy::free::{self, Free};
use crate::policy::{Judgement, level, window};
use crate::reading::{Absence, Reading};
use crate::run::{deeds, release};
use crate::units::{GpuHours, NodeName, Percent, UnitUuid, WallMs};
use std::collections::{BTreeMap, BTreeSet};

/// One allocation unit of this node.
#[derive(Debug)]
pub struct Unit {
    /// Its names.
    pub known: KnownUnit,
    /// Whose it is by the registrations.
    pub holder: Holder,
    /// What the newest run read; every reading absent where it could not look.
    pub seen: Observation,
    /// Whether it can be given away; only of one that nobody holds.
    pub free: Option<Free>,
}

/// GPU-hours: certified or measured, never projected.
#[derive(Debug)]
pub struct Hours {
    /// Certified to be wasted, by signature, the most first; counted in this ledger.
    pub wasted: Vec<(String, GpuHours)>,
    /// What the findings that stand now have cost, up to the newest sample; absent where the newest look is stale: then it
    /// is not known what stands.
    pub standing: Option<GpuHours>,
    /// Of GPUs that nobody held while a drain of ours stood; counted in this ledger.
    pub blocked: GpuHours,
}

/// A drain of ours that stands, as far as the ledger knows.
#[derive(Debug)]
pub struct Drain {
    /// What it is for, in words.
    pub what: String,
    /// The node's Reason, byte for byte.
    pub reason: String,
    /// It was seen to be made; else it is not known whether it stands.
    pub certain: bool,
    /// When it was made.
    pub since: WallMs,
    /// Why it was not lifted yet.
    pub stays: String,
}

/// Everything there is to say of a node.
#[derive(Debug)]
pub struct Status {
    /// The node.
    pub node: NodeName,
    /// This moment.
    pub now: Now,
    /// What the configuration allows for jobs.
    pub mode: Mode,
    /// When this ledger was begun.
    pub begun: WallMs,
    /// Why nothing is done while this ledger is new.
    pub too_new: Option<String>,
    /// The newest look of this boot.
    pub newest: Option<NewestLook>,
    /// The newest run of any boot.
    pub last_run: Option<WallMs>,
    /// How often runs come.
    pub cadence: Reading<Cadence>,
    /// A look older than this is stale.
    pub gap_ms: i64,
    /// What was told and is not over: faults of the node and notes of the collector.
    pub faults: Vec<FaultRow>,
    /// The units, by index.
    pub units: Vec<Unit>,
    /// The job runs that hold GPUs here.
    pub jobs: Vec<Told>,
    /// What was wasted and what our own drains blocked.
    pub hours: Hours,
    /// Our drains that stand.
    pub drains: Vec<Drain>,
    /// Drains with our reason that this boot or this ledger did not make, as the last look at the node found them.
    pub orphans: Vec<FaultRow>,
}

/// Looks at the ledger.
///
/// # Errors
///
/// Those of reading it.
pub fn status(asked: &Asked, ledger: &Ledger) -> Result<Status, LedgerError> {
    let (now, config) = (asked.now, asked.config);
    let registered = ledger.open_runs(&now.boot_id)?;
    let cadence = ledger.cadence(now)?;
    let gap_ms = cadence
        .measured()
        .map_or(GAP_UNKNOWN_MS, |cadence| window::limits(&config.rules.thresholds, *cadence).gap_ms);
    let looks = ledger.newest_looks(&now.boot_id, free::LOOKS)?;
    let holding = registered.iter().filter(|run| !run.registration.gpus.is_empty());
    let jobs: Vec<Told> =
        holding.map(|run| explain::tell(asked, ledger, run.clone(), &[])).collect::<Result<_, _>>()?;
    let (notes, faults): (Vec<_>, Vec<_>) = told_faults(ledger)?
        .into_iter()
        .partition(|fault| [release::KIND, release::ORPHAN].contains(&fault.kind.as_str()));
    Ok(Status {
        node: asked.place.node.clone(),
        now: now.clone(),
        mode: config.mode(),
        begun: ledger.created().wall,
        too_new: deeds::too_new(config, ledger, now),
        units: units(asked, ledger, &registered, &looks, gap_ms)?,
        hours: hours(ledger, &jobs, is_stale(looks.first(), gap_ms, now))?,
        drains: drains(asked, ledger, &jobs, &notes)?,
        orphans: notes.into_iter().filter(|note| note.kind == release::ORPHAN).collect(),
        last_run: ledger.newest_run_wall()?,
        newest: looks.into_iter().next(),
        cadence,
        gap_ms,
        faults,
        jobs,
    })
}

fn is_stale(newest: Option<&NewestLook>, gap_ms: i64, now: &Now) -> bool {
    newest.is_none_or(|look| now.boot.since_ms(look.at) > gap_ms)
}

/// What was told and is not over; Xids of jobs are their jobs' concern.
fn told_faults(ledger: &Ledger) -> Result<Vec<FaultRow>, LedgerError> {
    let mut all = ledger.faults()?;
    all.retain(|fault| fault.told && fault.xid_of().is_none());
    Ok(all)
}

fn units(
    asked: &Asked,
    ledger: &Ledger,
    registered: &[JobRun],
    looks: &[NewestLook],
    gap_ms: i64,
) -> Result<Vec<Unit>, LedgerError> {
    let known = ledger.known_units(&asked.now.boot_id)?;
    let mapping = asked.slurm.gres(registered).mapping.unwrap_or(Mapping::Unknown);
    let unit = |(known, holder): (&KnownUnit, Holder)| {
        let free = (holder == Holder::Nobody)
            .then(|| free::free(&looks_at(&known.uuid, looks), gap_ms, asked.now.boot));
        Unit { known: known.clone(), holder, seen: newest(&known.uuid, looks), free }
    };
    let mut units: Vec<Unit> =
        attribution::holders(registered, &known, &mapping).into_iter().map(unit).collect();
    units.sort_by_key(|unit| (unit.known.index, unit.instance()));
    Ok(units)
}

/// One unit in the newest looks. A look that failed, or that has no word of it, is a look that saw nothing.
fn looks_at(uuid: &UnitUuid, looks: &[NewestLook]) -> Vec<free::Look> {
    let look = |look: &NewestLook| match look.units.get(uuid) {
        Some(unit) => free::Look {
            at: look.at,
            was_held: unit.owner.is_some(),
            seen: unit.seen.clone(),
            pids: unit.pids.clone(),
        },
        None => free::Look { at: look.at, was_held: false, seen: unseen(look), pids: Vec::new() },
    };
    looks.iter().map(look).collect()
}

fn newest(uuid: &UnitUuid, looks: &[NewestLook]) -> Observation {
    match looks.first() {
        Some(look) => look.units.get(uuid).map_or_else(|| unseen(look), |unit| unit.seen.clone()),
        None => Observation::absent(Absence::NotRecorded),
    }
}

fn unseen(look: &NewestLook) -> Observation {
    Observation::absent(look.failed.unwrap_or(Absence::NotRecorded))
}

fn hours(ledger: &Ledger, jobs: &[Told], stale: bool) -> Result<Hours, LedgerError> {
    let tallies = ledger.tallies()?;
    let mut by_signature: BTreeMap<&str, u64> = BTreeMap::new();
    for (tally, ms) in tallies.iter() {
        if let Tally::WastedGpuMs { signature, .. } = tally {
            *by_signature.entry(signature).or_default() += ms;
        }
    }
    let of = |ms: u64| GpuHours::of(1, i64::try_from(ms).unwrap_or(i64::MAX));
    let mut wasted: Vec<_> = by_signature.into_iter().map(|(name, ms)| (name.to_owned(), of(ms))).collect();
    wasted.sort_by_key(|(_, hours)| std::cmp::Reverse(*hours));
    let standing = jobs.iter().filter_map(Told::finding).map(|f| f.wasted().unit_ms());
    let standing = (!stale).then(|| GpuHours::of(1, standing.fold(0, i64::saturating_add)));
    Ok(Hours { wasted, standing, blocked: of(tallies.blocked_gpu_ms()) })
}

fn drains(
    asked: &Asked,
    ledger: &Ledger,
    jobs: &[Told],
    notes: &[FaultRow],
) -> Result<Vec<Drain>, LedgerError> {
    let mut drains = Vec::new();
    for drain in ledger.open_drains(asked.now)? {
        let note = notes.iter().find(|n| n.is(release::KIND, &drain.action.id.to_string()));
        let stays = match note {
            Some(note) => note.detail.clone(),
            None => why_it_stays(asked, ledger, jobs, &drain)?,
        };
        let reason = drain.rewritten.last().or(drain.action.reason.as_ref()).cloned().unwrap_or_default();
        let certain = drain.action.outcome == Outcome::Done;
        let (what, since) = (format!("job {}", drain.job), drain.action.wall);
        drains.push(Drain { what, reason, certain, since, stays });
    }
    let for_faults = ledger.fault_drains(asked.now)?;
    drains.extend(for_faults.into_iter().filter(FaultDrain::stands).map(|drain| Drain {
        what: format!("fault {}", drain.fault),
        reason: drain.reason,
        certain: drain.outcome == Outcome::Done,
        since: drain.made,
        stays: match drain.outcome {
            Outcome::Done => "until a person lifts it: gpu-reaper-hc release".to_owned(),
            _ => "how it ended is not known yet".to_owned(),
        },
    }));
    Ok(drains)
}

/// As the run that may lift it decides, as far as the ledger can say.
fn why_it_stays(
    asked: &Asked,
    ledger: &Ledger,
    jobs: &[Told],
    drain: &OpenDrain,
) -> Result<String, LedgerError> {
    if drain.boot_id != asked.now.boot_id {
        return Ok("made before this boot: each node asks Slurm for such a one once a boot".to_owned());
    }
    let job = jobs.iter().find(|told| told.history.job.id == drain.job_run);
    let judgement = job.map(|told| &told.assessment.judgement);
    let kept = release::kept_by_books(asked.config, drain, judgement, ledger)?;
    Ok(kept.unwrap_or_else(|| match drain.release_seen {
        Some(_) => "one run saw it fit to be lifted; a second has to agree".to_owned(),
        None => "nothing in the ledger keeps it; two runs have to look".to_owned(),
    }))
}

impl Unit {
    /// GPU instance and compute instance, of an instance.
    fn instance(&self) -> Option<(u32, u32)> {
        match self.known.kind {
            UnitKind::Gpu => None,
            UnitKind::Mig { gi, ci, .. } => Some((gi, ci)),
        }
    }

    /// The GPU that it is, or is a part of.
    fn gpu(&self) -> &UnitUuid {
        match &self.known.kind {
            UnitKind::Gpu => &self.known.uuid,
            UnitKind::Mig { parent, .. } => parent,
        }
    }

    /// The highest utilization of the newest look.
    fn utilization(&self) -> Reading<Percent> {
        level::peak(self.seen.sm_util, &self.seen.sm_peak)
    }
}

impl Status {
    /// How old the newest look is, milliseconds.
    pub fn age_ms(&self) -> Option<i64> {
        self.newest.as_ref().map(|look| self.now.boot.since_ms(look.at))
    }

    /// Whether what is shown may have changed long ago: no run, or too long since.
    pub fn is_stale(&self) -> bool {
        is_stale(self.newest.as_ref(), self.gap_ms, &self.now)
    }

    /// GPUs that nobody holds, and all that are listed; of one that is cut into instances, where all of it is free. Under
    /// a drain of ours those are what it blocks. `None`: none was seen since this node booted.
    pub fn free_gpus(&self) -> Option<(usize, usize)> {
        let mut gpus: BTreeMap<&UnitUuid, bool> = BTreeMap::new();
        let listed = |unit: &&Unit| unit.seen.memory.absence() != Some(Absence::NotListed);
        for unit in self.units.iter().filter(listed) {
            *gpus.entry(unit.gpu()).or_insert(true) &= unit.holder == Holder::Nobody;
        }
        (!gpus.is_empty()).then(|| (gpus.values().filter(|free| **free).count(), gpus.len()))
    }

    /// How many GPUs the newest look saw.
    pub fn seen_gpus(&self) -> usize {
        let unseen = [Some(Absence::NotListed), Some(Absence::NotRecorded)];
        let seen = self.units.iter().filter(|unit| !unseen.contains(&unit.seen.memory.absence()));
        seen.map(Unit::gpu).collect::<BTreeSet<_>>().len()
    }

    /// The job of a row.
    fn job(&self, id: JobRunId) -> Option<&Told> {
        self.jobs.iter().find(|told| told.history.job.id == id)
    }

    /// The job that alone holds a unit.
    fn holder(&self, unit: &Unit) -> Option<&Told> {
        match &unit.holder {
            Holder::Jobs(ids) if ids.len() == 1 => self.job(ids[0]),
            _ => None,
        }
    }
}

/// A unit's part in the judgement of its job: a word, and for how long it has been quiet.
struct Part {
    /// The signature, or what was judged of the job.
    word: &'static str,
    /// The finding is about it.
    found: bool,
    quiet_ms: i64,
}

fn part(told: &Told, unit: &UnitUuid) -> Part {
    let own = told.assessment.units.iter().find(|assessed| assessed.unit.uuid == *unit);
    let quiet_ms = own.map_or(0, |assessed| assessed.quiet_ms);
    match &told.assessment.judgement {
        Judgement::Breaching(f) if f.units.iter().any(|of_it| of_it.uuid == *unit) => {
            Part { word: f.signature.word(), found: true, quiet_ms: f.evidence().certified_ms() }
        }
        // A finding about some units: the others work.
        Judgement::Breaching(_) => Part { word: "alive", found: false, quiet_ms },
        other => Part { word: other.word(), found: false, quiet_ms },
    }
}

/// The newest reason for which each deed is withheld, while a finding stands.
fn withheld(told: &Told) -> Vec<(&'static str, &str)> {
    let mut newest: BTreeMap<Deed, &crate::ledger::Withheld> = BTreeMap::new();
    for one in told.withheld.iter().filter(|_| told.finding().is_some()) {
        let kept = newest.entry(one.deed).or_insert(one);
        if one.last.0 >= kept.last.0 {
            *kept = one;
        }
    }
    newest.into_iter().map(|(deed, one)| (deed.word(), one.because.as_str())).collect()
}

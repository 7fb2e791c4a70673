//! Which units a job run holds: GRES index to device file to minor to UUID, or the UUIDs that Slurm gave. A mapping
//! that cannot be completed is unknown, never guessed; a unit that two jobs claim belongs to neither.

pub mod ending;

use crate::model::{GpuClaim, GpuReport, JobId, JobRun, JobRunId, KnownUnit, UnitKind, UnitRef};
use crate::policy::Auto;
use crate::reading::{Absence, Reading};
use crate::units::{DeviceMinor, GresIndex, UnitUuid};
use std::collections::HashMap;

/// What slurmd's configuration says of this node's GRES indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// The minors of the device files, in index order; `None` for one that is no device.
    Minors(Vec<Option<DeviceMinor>>),
    /// slurmd detects by itself.
    AutoDetected(Configured),
    /// It could not be found out, or nobody needed it.
    Unknown,
}

/// Which of the GPUs that slurmd detects are configured, as far as gres.conf says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Configured {
    /// Nothing is said: all that there are.
    All,
    /// So many.
    Count(u32),
    /// Those of these device files, as listed; `None` for one that is no device.
    Minors(Vec<Option<DeviceMinor>>),
}

impl Mapping {
    /// How many GPUs it knows of.
    fn gpus(&self) -> u32 {
        match self {
            Mapping::Minors(minors) | Mapping::AutoDetected(Configured::Minors(minors)) => {
                minors.len() as u32
            }
            Mapping::AutoDetected(Configured::Count(count)) => *count,
            Mapping::AutoDetected(Configured::All) | Mapping::Unknown => 0,
        }
    }
}

/// This run's units, completed by those an earlier run of this boot saw: a card that fell off keeps its name.
pub fn known(report: &Reading<GpuReport>, earlier: Vec<KnownUnit>) -> Vec<KnownUnit> {
    let mut all: Vec<KnownUnit> = Vec::new();
    if let Reading::Measured(report) = report {
        for unit in &report.units {
            let id = &unit.identity;
            if let Reading::Measured(uuid) = &id.uuid {
                all.push(KnownUnit {
                    uuid: uuid.clone(),
                    kind: id.kind.clone(),
                    index: id.index,
                    minor: id.minor,
                    name: id.name.clone(),
                });
            }
        }
    }
    for old in earlier {
        if !all.iter().any(|k| k.uuid == old.uuid) {
            all.push(old);
        }
    }
    all
}

/// How many allocation units this node has: of everything that knows of some, the most. Absent where a job that
/// holds all that are seen need not hold all: a card that cannot be read or has gone, or a registration of which
/// a unit is not known (it is of this node, and may be a card that nobody sees). A drain rests on this.
pub fn count(
    report: &Reading<GpuReport>,
    known: &[KnownUnit],
    expected: Auto<u32>,
    mapping: &Mapping,
    held: &HashMap<JobRunId, Reading<Vec<UnitRef>>>,
) -> Reading<u32> {
    let report = match report {
        Reading::Measured(report) => report,
        Reading::Absent(why) => return Reading::Absent(*why),
    };
    let uuids = || report.units.iter().map(|u| &u.identity.uuid);
    if let Some(why) = uuids().find_map(Reading::absence) {
        return Reading::Absent(why);
    }
    let units: Vec<&KnownUnit> = known.iter().filter(|k| is_allocatable(k, known)).collect();
    if units.is_empty() || units.iter().any(|k| !uuids().any(|uuid| uuid.measured() == Some(&k.uuid))) {
        return Reading::Absent(Absence::NotListed);
    }
    let unmapped = |of_job: &Reading<Vec<UnitRef>>| match of_job {
        // A job that names a GPU that is cut into instances holds no allocation unit that is counted here.
        Reading::Measured(held) => {
            let counted = held.iter().all(|h| units.iter().any(|k| k.uuid == h.uuid));
            (!counted).then_some(Absence::NotMapped)
        }
        Reading::Absent(Absence::Shared) => None,
        Reading::Absent(why) => Some(*why),
    };
    if let Some(why) = held.values().find_map(unmapped) {
        return Reading::Absent(why);
    }
    let said = match expected {
        Auto::Set(n) => n,
        Auto::Auto => 0,
    };
    Reading::Measured(said.max(mapping.gpus()).max(units.len() as u32))
}

/// A GPU that is cut into instances is allocated by its instances.
fn is_allocatable(unit: &KnownUnit, all: &[KnownUnit]) -> bool {
    !all.iter().any(|k| matches!(&k.kind, UnitKind::Mig { parent, .. } if *parent == unit.uuid))
}

/// The unit of one claim.
fn unit_of(claim: &GpuClaim, known: &[KnownUnit], mapping: &Mapping) -> Reading<UnitRef> {
    let (found, why) = match claim {
        GpuClaim::Uuid(uuid) => (by_uuid(uuid, known), Absence::NotListed),
        GpuClaim::Index(index) => (by_index(*index, known, mapping), Absence::NotMapped),
    };
    match found {
        Some(k) => Reading::Measured(UnitRef { uuid: k.uuid.clone(), index: k.index, name: k.name.clone() }),
        None => Reading::Absent(why),
    }
}

/// By its own UUID, or, for an instance as drivers before R470 name it, by `MIG-<UUID of the GPU>/<gi>/<ci>`.
fn by_uuid<'a>(uuid: &UnitUuid, known: &'a [KnownUnit]) -> Option<&'a KnownUnit> {
    let older = || {
        let mut parts = uuid.as_str().strip_prefix("MIG-")?.split('/');
        let gpu = UnitUuid::new(parts.next()?).ok()?;
        let (gi, ci): (u32, u32) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let wanted = UnitKind::Mig { parent: gpu, gi, ci };
        parts.next().is_none().then(|| known.iter().find(|k| k.kind == wanted))?
    };
    known.iter().find(|k| k.uuid == *uuid).or_else(older)
}

/// GRES index to unit. Where slurmd detects by itself, only where every order agrees: slurmd sorts what it detects
/// by device file, then by PCI bus (facts of Slurm 2.2), and by type before that where it knows types. So a card
/// whose minor is not its NVML index, a MIG instance, a second model, or files listed in another order leave the
/// mapping unknown; so does a number of GPUs that is not the configured one, for nobody says which are meant.
pub fn by_index<'a>(index: GresIndex, known: &'a [KnownUnit], mapping: &Mapping) -> Option<&'a KnownUnit> {
    let gpus = || known.iter().filter(|k| k.kind == UnitKind::Gpu && is_allocatable(k, known));
    let of_minor = |minor: DeviceMinor| gpus().find(|k| k.minor == Reading::Measured(minor));
    let at = index.0 as usize;
    match mapping {
        Mapping::Minors(minors) => of_minor((*minors.get(at)?)?),
        Mapping::AutoDetected(configured) => {
            let orders_agree = gpus().all(|k| k.minor == Reading::Measured(DeviceMinor(k.index.0)));
            let no_instances = known.iter().all(|k| k.kind == UnitKind::Gpu);
            let contiguous = gpus().count() as u32 == gpus().map(|k| k.index.0 + 1).max().unwrap_or(0);
            let one_model = gpus().zip(gpus().skip(1)).all(|(a, b)| a.name == b.name);
            if !(orders_agree && no_instances && contiguous && one_model) {
                return None;
            }
            match configured {
                Configured::All => of_minor(DeviceMinor(index.0)),
                Configured::Count(count) if gpus().count() as u32 == *count => of_minor(DeviceMinor(index.0)),
                Configured::Count(_) => None,
                Configured::Minors(minors) => {
                    let rising = minors.windows(2).all(|pair| pair[0].is_some() && pair[0] < pair[1]);
                    if rising { of_minor((*minors.get(at)?)?) } else { None }
                }
            }
        }
        Mapping::Unknown => None,
    }
}

/// The units of every job run; a job one of whose units another job claims too is not attributed.
///
/// A job of which one claim cannot be mapped is not attributed, and still holds its other units: those are no other
/// job's alone. The lost claim itself may be any unit, so far as we know. It takes nothing from jobs that name their
/// units by index, for another index is another unit; it does from those that name them by UUID, for nobody
/// can say that the index is not one of these. And nobody holds the whole node then: see [`count`].
pub fn attribute(
    jobs: &[JobRun],
    known: &[KnownUnit],
    mapping: &Mapping,
) -> HashMap<JobRunId, Reading<Vec<UnitRef>>> {
    let mut claims: Vec<(JobRunId, &GpuClaim, Reading<UnitRef>)> = Vec::new();
    for job in jobs {
        claims.extend(job.registration.gpus.iter().map(|c| (job.id, c, unit_of(c, known, mapping))));
    }
    let mut holders: HashMap<&UnitUuid, u32> = HashMap::new();
    for unit in claims.iter().filter_map(|(_, _, unit)| unit.measured()) {
        *holders.entry(&unit.uuid).or_default() += 1;
    }
    let is_lost = |claim: &GpuClaim, unit: &Reading<UnitRef>| {
        matches!((claim, unit), (GpuClaim::Index(_), Reading::Absent(_)))
    };
    let may_be_anothers = |job: JobRunId, claim: &GpuClaim| {
        matches!(claim, GpuClaim::Uuid(_)) && claims.iter().any(|(j, c, unit)| *j != job && is_lost(c, unit))
    };
    let of_job = |job: &JobRun| {
        let mut units = Vec::new();
        let mut shared = false;
        for (_, claim, unit) in claims.iter().filter(|(id, _, _)| *id == job.id) {
            match unit {
                Reading::Absent(why) => return Reading::Absent(*why),
                Reading::Measured(unit) => {
                    shared |= holders.get(&unit.uuid) != Some(&1) || may_be_anothers(job.id, claim);
                    units.push(unit.clone());
                }
            }
        }
        if shared { Reading::Absent(Absence::Shared) } else { Reading::Measured(units) }
    };
    jobs.iter().map(|job| (job.id, of_job(job))).collect()
}

/// Whose a unit is by the registrations alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// No registered job can hold it.
    Nobody,
    /// These claim it: more than one where it is shared, or where a registration is stale.
    Jobs(Vec<JobRunId>),
    /// None of those whose units are known does; these hold units that are not known for certain.
    MayBe(Vec<JobRunId>),
}

/// Whose each allocation unit of this node is. A job that claims a GPU that is cut holds its instances.
pub fn holders<'a>(
    jobs: &[JobRun],
    known: &'a [KnownUnit],
    mapping: &Mapping,
) -> Vec<(&'a KnownUnit, Holder)> {
    let (mut claims, mut lost) = (Vec::new(), Vec::new());
    for job in jobs {
        for claim in &job.registration.gpus {
            match unit_of(claim, known, mapping) {
                Reading::Measured(unit) => claims.push((job.id, unit.uuid)),
                Reading::Absent(_) => lost.push(job.id),
            }
        }
    }
    lost.dedup();
    let of_unit = |unit: &KnownUnit| {
        let is_it = |uuid: &UnitUuid| {
            *uuid == unit.uuid || matches!(&unit.kind, UnitKind::Mig { parent, .. } if parent == uuid)
        };
        let mut ids: Vec<_> = claims.iter().filter(|(_, uuid)| is_it(uuid)).map(|(id, _)| *id).collect();
        ids.dedup();
        match (ids.is_empty(), lost.is_empty()) {
            (false, _) => Holder::Jobs(ids),
            (true, false) => Holder::MayBe(lost.clone()),
            (true, true) => Holder::Nobody,
        }
    };
    known.iter().filter(|unit| is_allocatable(unit, known)).map(|unit| (unit, of_unit(unit))).collect()
}

/// Where processes are seen otherwise than the registrations say, nobody's units are certain: those of a job with
/// another job's process on them, and those of a job with a process on a unit that it does not hold. A wrong
/// mapping shows itself so. `seen`: units that are allocated whole, and the jobs whose cgroups hold processes on
/// them.
pub fn contradict(
    held: &mut HashMap<JobRunId, Reading<Vec<UnitRef>>>,
    jobs: &[JobRun],
    seen: &[(UnitUuid, JobId)],
) {
    for job in jobs {
        let Some(of_job) = held.get_mut(&job.id) else { continue };
        let Reading::Measured(units) = &*of_job else { continue };
        let holds = |uuid: &UnitUuid| units.iter().any(|unit| unit.uuid == *uuid);
        let agrees = |(uuid, owner): &(UnitUuid, JobId)| holds(uuid) == (*owner == job.registration.job);
        let touched = |(uuid, owner): &&(UnitUuid, JobId)| holds(uuid) || *owner == job.registration.job;
        if !seen.iter().filter(touched).all(agrees) {
            *of_job = Reading::Absent(Absence::Shared);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::*;
    use crate::units::*;

    const AUTO: Mapping = Mapping::AutoDetected(Configured::All);

    pub(super) fn unit(minor: u32, index: u32) -> KnownUnit {
        KnownUnit {
            uuid: UnitUuid::new(&format!("GPU-{minor}")).unwrap(),
            kind: UnitKind::Gpu,
            index: NvmlIndex(index),
            minor: Reading::Measured(DeviceMinor(minor)),
            name: Reading::Absent(Absence::NotRecorded),
        }
    }

    pub(super) fn job(id: i64, gpus: &[u32]) -> JobRun {
        let absent = || Reading::Absent(Absence::NotRecorded);
        JobRun {
            id: JobRunId(id),
            registration: Registration {
                cluster: absent(),
                job: JobId::new(id as u64).unwrap(),
                restart: 0,
                sluid: absent(),
                start: JobStart { boot: BootMs(0), wall: WallMs(0), source: StartSource::Slurm },
                user: absent(),
                uid: Reading::Absent(Absence::NotRecorded),
                account: absent(),
                partition: absent(),
                qos: absent(),
                nodes: Reading::Measured(1),
                node_list: absent(),
                het_leader: None,
                limit_end: Reading::Absent(Absence::NotRecorded),
                gpus: gpus.iter().map(|g| GpuClaim::Index(GresIndex(*g))).collect(),
                by: RegisteredBy::Prolog,
            },
            registered: BootMs(0),
            details: None,
            first_activity: None,
            last_activity: None,
        }
    }

    #[test]
    fn a_unit_is_nobodys_only_where_no_registration_can_mean_it() {
        let known = [unit(0, 0), unit(1, 1)];
        let whose = |jobs: &[JobRun], mapping: &Mapping| -> Vec<Holder> {
            holders(jobs, &known, mapping).into_iter().map(|(_, holder)| holder).collect()
        };
        let held_by = |ids: &[i64]| Holder::Jobs(ids.iter().map(|id| JobRunId(*id)).collect());
        assert_eq!(whose(&[], &AUTO), [Holder::Nobody, Holder::Nobody]);
        assert_eq!(whose(&[job(7, &[1])], &AUTO), [Holder::Nobody, held_by(&[7])]);
        assert_eq!(whose(&[job(7, &[1]), job(8, &[1])], &AUTO), [Holder::Nobody, held_by(&[7, 8])]);
        let may_be = || Holder::MayBe(vec![JobRunId(8)]);
        assert_eq!(whose(&[job(7, &[0]), job(8, &[5, 6])], &AUTO), [held_by(&[7]), may_be()]);
        assert_eq!(whose(&[job(8, &[0])], &Mapping::Unknown), [may_be(), may_be()]);
        assert_eq!(whose(&[job(8, &[])], &AUTO), [Holder::Nobody, Holder::Nobody], "a job without a GPU");
    }

    #[test]
    fn a_gpu_that_is_cut_is_held_by_its_instances() {
        let parent = unit(0, 0);
        let instance = KnownUnit {
            uuid: UnitUuid::new("MIG-1").unwrap(),
            kind: UnitKind::Mig { parent: parent.uuid.clone(), gi: 1, ci: 0 },
            ..unit(0, 0)
        };
        let mut whole = job(7, &[]);
        whole.registration.gpus.push(GpuClaim::Uuid(parent.uuid.clone()));
        let known = [parent, instance];
        let found = holders(&[whole], &known, &AUTO);
        assert_eq!(found, [(&known[1], Holder::Jobs(vec![JobRunId(7)]))]);
    }

    fn uuids(held: &Reading<Vec<UnitRef>>) -> Vec<String> {
        held.measured().unwrap().iter().map(|u| u.uuid.to_string()).collect()
    }

    #[test]
    fn slurms_index_is_the_device_minor_not_nvmls_order() {
        // PrincetonUniversity/jobstats#34, NVIDIA/nvidia-docker#1432 (ID-01): /dev/nvidia0 is NVML index 6.
        let known: Vec<KnownUnit> =
            [6, 4, 5, 7, 2, 0, 1, 3].iter().enumerate().map(|(i, m)| unit(*m, i as u32)).collect();
        let by_file = Mapping::Minors((0..8).map(|m| Some(DeviceMinor(m))).collect());
        let jobs = [job(1, &[0])];
        assert_eq!(uuids(&attribute(&jobs, &known, &by_file)[&JobRunId(1)]), ["GPU-0"]);
        // Where slurmd detects by itself nobody can say which order it took.
        assert_eq!(attribute(&jobs, &known, &AUTO)[&JobRunId(1)], Reading::Absent(Absence::NotMapped));
    }

    #[test]
    fn two_jobs_have_two_cards_whatever_their_local_index_is() {
        // guilbaults/slurm-job-exporter#63 (ID-02): the only GPU inside a job is called 0.
        let known: Vec<KnownUnit> = (0..4).map(|i| unit(i, i)).collect();
        let held = attribute(&[job(1, &[0]), job(2, &[1])], &known, &AUTO);
        assert_eq!(uuids(&held[&JobRunId(1)]), ["GPU-0"]);
        assert_eq!(uuids(&held[&JobRunId(2)]), ["GPU-1"]);
    }

    #[test]
    fn a_card_that_fell_off_keeps_its_name_and_renumbers_nobody() {
        // kubernetes-sigs/dra-driver-nvidia-gpu#563 (ID-03): old index 2 is gone, the job's card now is index 4.
        let before: Vec<KnownUnit> = (0..8).map(|i| unit(i, i)).collect();
        let now: Vec<KnownUnit> =
            (0..8).filter(|m| *m != 2).enumerate().map(|(i, m)| unit(m, i as u32)).collect();
        let mut all = now;
        all.extend(before.into_iter().filter(|k| k.minor == Reading::Measured(DeviceMinor(2))));
        let by_file = Mapping::Minors((0..8).map(|m| Some(DeviceMinor(m))).collect());
        let held = attribute(&[job(5, &[5])], &all, &by_file);
        assert_eq!(uuids(&held[&JobRunId(5)]), ["GPU-5"]);
        assert_eq!(
            attribute(&[job(5, &[5])], &all, &AUTO)[&JobRunId(5)],
            Reading::Absent(Absence::NotMapped)
        );
    }

    #[test]
    fn a_card_with_two_holders_has_none() {
        let known: Vec<KnownUnit> = (0..2).map(|i| unit(i, i)).collect();
        let held = attribute(&[job(1, &[0, 1]), job(2, &[1])], &known, &AUTO);
        assert!(held.values().all(|h| *h == Reading::Absent(Absence::Shared)));
    }

    fn instance(uuid: &str, gi: u32, ci: u32) -> KnownUnit {
        let parent = UnitUuid::new("GPU-0").unwrap();
        KnownUnit { uuid: UnitUuid::new(uuid).unwrap(), kind: UnitKind::Mig { parent, gi, ci }, ..unit(0, 0) }
    }

    fn job_by_uuid(id: i64, uuid: &str) -> JobRun {
        let mut job = job(id, &[]);
        job.registration.gpus = vec![GpuClaim::Uuid(UnitUuid::new(uuid).unwrap())];
        job
    }

    #[test]
    fn a_mixed_node_is_decided_device_by_device() {
        // guilbaults/slurm-job-exporter#50 (SH-01): one GPU cut into instances, the other whole.
        let known = [unit(0, 0), unit(1, 1), instance("MIG-a", 7, 0), instance("MIG-b", 8, 0)];
        let named = [("MIG-a", "MIG-a"), ("MIG-GPU-0/8/0", "MIG-b"), ("GPU-1", "GPU-1")];
        let jobs: Vec<JobRun> = (1..).zip(named).map(|(id, (claim, _))| job_by_uuid(id, claim)).collect();
        let held = attribute(&jobs, &known, &Mapping::Unknown);
        for (job, (claim, want)) in jobs.iter().zip(named) {
            assert_eq!(uuids(&held[&job.id]), [want], "{claim}");
        }
        for odd in
            ["MIG-GPU-0/8", "MIG-GPU-0/8/1", "MIG-GPU-0/8/0/0", "MIG-GPU-9/8/0", "MIG-GPU-0/x/0", "GPU-9"]
        {
            let held = attribute(&[job_by_uuid(1, odd)], &known, &Mapping::Unknown);
            assert_eq!(held[&JobRunId(1)], Reading::Absent(Absence::NotListed), "{odd}");
        }
        // An index may count instances too, and nobody says how.
        let by_index = attribute(&[job(1, &[1])], &known, &AUTO);
        assert_eq!(by_index[&JobRunId(1)], Reading::Absent(Absence::NotMapped));
    }

    #[test]
    fn a_process_where_no_registration_expects_it_makes_both_jobs_uncertain() {
        // guilbaults/slurm-job-exporter#63, NVIDIA/nvidia-docker#1432 (ID-01, ID-02): a mapping may be wrong, and
        // the node's own processes say so.
        let known: Vec<KnownUnit> = (0..3).map(|i| unit(i, i)).collect();
        let jobs = [job(1, &[0]), job(2, &[1]), job(3, &[2])];
        let seen = |on: &[(usize, u64)]| -> Vec<(UnitUuid, JobId)> {
            on.iter().map(|(u, j)| (known[*u].uuid.clone(), JobId::new(*j).unwrap())).collect()
        };
        let certain = |on: &[(usize, u64)]| {
            let mut held = attribute(&jobs, &known, &AUTO);
            contradict(&mut held, &jobs, &seen(on));
            [1, 2, 3].map(|id| held[&JobRunId(id)].measured().is_some())
        };
        assert_eq!(certain(&[(0, 1), (1, 2)]), [true, true, true]);
        assert_eq!(certain(&[(0, 2), (1, 1), (2, 3)]), [false, false, true]);
        assert_eq!(certain(&[(0, 77)]), [false, true, true], "a job that nobody registered");
    }

    #[test]
    fn a_job_with_a_claim_that_cannot_be_mapped_still_holds_its_other_cards() {
        let known: Vec<KnownUnit> = (0..2).map(|i| unit(i, i)).collect();
        let held = attribute(&[job(1, &[0]), job(2, &[0, 9]), job(3, &[1])], &known, &AUTO);
        assert_eq!(held[&JobRunId(1)], Reading::Absent(Absence::Shared));
        assert_eq!(held[&JobRunId(2)], Reading::Absent(Absence::NotMapped));
        assert_eq!(uuids(&held[&JobRunId(3)]), ["GPU-1"], "another index is another card");
        let mut by_uuid = job(3, &[]);
        by_uuid.registration.gpus = vec![GpuClaim::Uuid(known[1].uuid.clone())];
        let held = attribute(&[job(2, &[0, 9]), by_uuid.clone()], &known, &AUTO);
        assert_eq!(held[&JobRunId(3)], Reading::Absent(Absence::Shared), "index 9 may be this very card");
        let held = attribute(&[job(2, &[0]), by_uuid], &known, &AUTO);
        assert_eq!(uuids(&held[&JobRunId(3)]), ["GPU-1"]);
    }

    #[test]
    fn detected_cards_are_mapped_only_where_the_configured_ones_are_known() {
        let known: Vec<KnownUnit> = (0..4).map(|i| unit(i, i)).collect();
        let listed = |minors: &[u32]| {
            let minors = minors.iter().map(|m| Some(DeviceMinor(*m))).collect();
            Mapping::AutoDetected(Configured::Minors(minors))
        };
        let count = |n| Mapping::AutoDetected(Configured::Count(n));
        let table = [
            (listed(&[1, 2, 3]), 0, Some("GPU-1")),
            (listed(&[1, 2, 3]), 3, None),
            (listed(&[2, 1]), 0, None),
            (Mapping::AutoDetected(Configured::Minors(vec![Some(DeviceMinor(0)), None])), 0, None),
            (count(4), 3, Some("GPU-3")),
            (count(3), 0, None),
            (AUTO, 3, Some("GPU-3")),
        ];
        for (mapping, index, want) in table {
            let found = by_index(GresIndex(index), &known, &mapping).map(|k| k.uuid.to_string());
            assert_eq!(found.as_deref(), want, "{mapping:?} {index}");
        }
        let mut two_models = known;
        two_models[3].name = Reading::Measured("another".to_owned());
        assert_eq!(by_index(GresIndex(0), &two_models, &AUTO), None, "slurmd sorts by type first");
    }

    /// A report with these cards; `None`: one that cannot be read.
    fn report(minors: &[Option<u32>]) -> Reading<GpuReport> {
        let sample = |(index, minor): (usize, &Option<u32>)| UnitSample {
            identity: UnitIdentity {
                uuid: minor.map_or(Reading::Absent(Absence::GpuLost), |m| Reading::Measured(unit(m, m).uuid)),
                kind: UnitKind::Gpu,
                index: NvmlIndex(index as u32),
                minor: minor.map_or(Reading::Absent(Absence::GpuLost), |m| Reading::Measured(DeviceMinor(m))),
                pci: Reading::Absent(Absence::NoData),
                name: Reading::Absent(Absence::NotRecorded),
            },
            readings: Readings::absent(Absence::NoData),
        };
        let units = minors.iter().enumerate().map(sample).collect();
        Reading::Measured(GpuReport { driver: Reading::Measured("1".to_owned()), units })
    }

    #[test]
    fn a_job_holds_the_whole_node_only_where_nothing_else_can_be_on_it() {
        let files = |n: u32| Mapping::Minors((0..n).map(|m| Some(DeviceMinor(m))).collect());
        let count = |report: &Reading<GpuReport>, expected, mapping: &Mapping, jobs: &[JobRun]| {
            let known = known(report, vec![]);
            super::count(report, &known, expected, mapping, &attribute(jobs, &known, mapping))
        };
        let (both, one) = (report(&[Some(0), Some(1)]), report(&[Some(0)]));
        let not = Reading::Absent;
        assert_eq!(count(&both, Auto::Auto, &AUTO, &[job(1, &[0, 1])]), Reading::Measured(2));
        assert_eq!(count(&both, Auto::Auto, &AUTO, &[job(1, &[0]), job(2, &[1])]), Reading::Measured(2));
        assert_eq!(count(&both, Auto::Set(1), &AUTO, &[]), Reading::Measured(2), "`expected` hides no card");
        assert_eq!(count(&one, Auto::Set(2), &AUTO, &[]), Reading::Measured(2));
        assert_eq!(count(&one, Auto::Auto, &files(2), &[]), Reading::Measured(2), "gres.conf names two");
        // One of two cards has not been listed since boot, and a job is registered on it.
        let two_jobs = [job(1, &[0]), job(2, &[1])];
        assert_eq!(count(&one, Auto::Auto, &files(2), &two_jobs), not(Absence::NotMapped));
        let lost = report(&[Some(0), None]);
        assert_eq!(count(&lost, Auto::Auto, &files(2), &[job(1, &[0])]), not(Absence::GpuLost));
        let earlier = known(&one, vec![unit(1, 1)]);
        assert_eq!(super::count(&one, &earlier, Auto::Auto, &AUTO, &HashMap::new()), not(Absence::NotListed));
        let blind = Reading::Absent(Absence::DeadlinePassed);
        assert_eq!(
            super::count(&blind, &earlier, Auto::Auto, &AUTO, &HashMap::new()),
            not(Absence::DeadlinePassed)
        );
    }
}

//! Which units a job run holds: GRES index to device file to minor to UUID, or the UUIDs that Slurm gave. A mapping
//! that cannot be completed is unknown, never guessed; a unit that two jobs claim belongs to neither.

use crate::model::{GpuClaim, GpuReport, JobRun, JobRunId, KnownUnit, UnitKind, UnitRef};
use crate::policy::Auto;
use crate::reading::{Absence, Reading};
use crate::units::{DeviceMinor, GresIndex, UnitUuid};
use std::collections::HashMap;

/// What slurmd's configuration says of this node's GRES indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// The minors of the device files, in index order; `None` for one that is no device.
    Minors(Vec<Option<DeviceMinor>>),
    /// slurmd asks NVML.
    AutoDetected,
    /// It could not be found out, or nobody needed it.
    Unknown,
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

/// How many allocation units this node has, where every GPU's identity is known.
pub fn count(known: &[KnownUnit], expected: Auto<u32>) -> Reading<u32> {
    match expected {
        Auto::Set(n) => Reading::Measured(n),
        Auto::Auto if known.is_empty() => Reading::Absent(Absence::NotRecorded),
        Auto::Auto => Reading::Measured(known.iter().filter(|k| is_allocatable(k, known)).count() as u32),
    }
}

/// A GPU that is cut into instances is allocated by its instances.
fn is_allocatable(unit: &KnownUnit, all: &[KnownUnit]) -> bool {
    !all.iter().any(|k| matches!(&k.kind, UnitKind::Mig { parent, .. } if *parent == unit.uuid))
}

/// The units of one job run.
fn of(job: &JobRun, known: &[KnownUnit], mapping: &Mapping) -> Reading<Vec<UnitRef>> {
    let mut units = Vec::new();
    for claim in &job.registration.gpus {
        let found = match claim {
            GpuClaim::Uuid(uuid) => known.iter().find(|k| k.uuid == *uuid),
            GpuClaim::Index(index) => by_index(*index, known, mapping),
        };
        let Some(found) = found else {
            return Reading::Absent(match claim {
                GpuClaim::Uuid(_) => Absence::NotListed,
                GpuClaim::Index(_) => Absence::NotMapped,
            });
        };
        units.push(UnitRef { uuid: found.uuid.clone(), index: found.index, name: found.name.clone() });
    }
    Reading::Measured(units)
}

/// GRES index to unit. Where slurmd detects by itself, only where every order agrees: slurmd sorts what it detects
/// by device file, then by PCI bus (facts of Slurm 2.2), so a card whose minor is not its NVML index, or a MIG
/// instance, leaves the mapping unknown.
fn by_index<'a>(index: GresIndex, known: &'a [KnownUnit], mapping: &Mapping) -> Option<&'a KnownUnit> {
    let gpus = || known.iter().filter(|k| k.kind == UnitKind::Gpu && is_allocatable(k, known));
    match mapping {
        Mapping::Minors(minors) => {
            let minor = (*minors.get(index.0 as usize)?)?;
            gpus().find(|k| k.minor == Reading::Measured(minor))
        }
        Mapping::AutoDetected => {
            let orders_agree = gpus().all(|k| k.minor == Reading::Measured(DeviceMinor(k.index.0)));
            let no_instances = known.iter().all(|k| k.kind == UnitKind::Gpu);
            let contiguous = gpus().count() as u32 == gpus().map(|k| k.index.0 + 1).max().unwrap_or(0);
            (orders_agree && no_instances && contiguous)
                .then(|| gpus().find(|k| k.index.0 == index.0))
                .flatten()
        }
        Mapping::Unknown => None,
    }
}

/// The units of every job run; a job one of whose units another job claims too is not attributed.
pub fn attribute(
    jobs: &[JobRun],
    known: &[KnownUnit],
    mapping: &Mapping,
) -> HashMap<JobRunId, Reading<Vec<UnitRef>>> {
    let mut held: HashMap<JobRunId, Reading<Vec<UnitRef>>> =
        jobs.iter().map(|job| (job.id, of(job, known, mapping))).collect();
    let mut holders: HashMap<UnitUuid, u32> = HashMap::new();
    for unit in held.values().filter_map(Reading::measured).flatten() {
        *holders.entry(unit.uuid.clone()).or_default() += 1;
    }
    for units in held.values_mut() {
        let shared =
            matches!(units, Reading::Measured(u) if u.iter().any(|u| holders.get(&u.uuid) != Some(&1)));
        if shared {
            *units = Reading::Absent(Absence::Shared);
        }
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::*;
    use crate::units::*;

    fn unit(minor: u32, index: u32) -> KnownUnit {
        KnownUnit {
            uuid: UnitUuid::new(&format!("GPU-{minor}")).unwrap(),
            kind: UnitKind::Gpu,
            index: NvmlIndex(index),
            minor: Reading::Measured(DeviceMinor(minor)),
            name: Reading::Absent(Absence::NotRecorded),
        }
    }

    fn job(id: i64, gpus: &[u32]) -> JobRun {
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
        assert_eq!(
            attribute(&jobs, &known, &Mapping::AutoDetected)[&JobRunId(1)],
            Reading::Absent(Absence::NotMapped)
        );
    }

    #[test]
    fn two_jobs_have_two_cards_whatever_their_local_index_is() {
        // guilbaults/slurm-job-exporter#63 (ID-02): the only GPU inside a job is called 0.
        let known: Vec<KnownUnit> = (0..4).map(|i| unit(i, i)).collect();
        let held = attribute(&[job(1, &[0]), job(2, &[1])], &known, &Mapping::AutoDetected);
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
            attribute(&[job(5, &[5])], &all, &Mapping::AutoDetected)[&JobRunId(5)],
            Reading::Absent(Absence::NotMapped)
        );
    }

    #[test]
    fn a_card_with_two_holders_has_none() {
        let known: Vec<KnownUnit> = (0..2).map(|i| unit(i, i)).collect();
        let held = attribute(&[job(1, &[0, 1]), job(2, &[1])], &known, &Mapping::AutoDetected);
        assert!(held.values().all(|h| *h == Reading::Absent(Absence::Shared)));
    }
}

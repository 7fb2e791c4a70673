//! Which units the run of a job that has just ended held: its own alone, never all of the node; and whether another
//! job may hold one too. What cannot be mapped is not guessed.

use super::{Mapping, is_allocatable, unit_of};
use crate::model::{GpuClaim, JobRun, KnownUnit, UnitKind};
use crate::reading::{Absence, Reading};
use crate::units::{DeviceMinor, NvmlIndex, UnitUuid};

/// How a unit can be found. At least one of UUID and minor is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The key.
    pub uuid: Reading<UnitUuid>,
    /// NVML index when last seen (of the parent, for an instance).
    pub index: Reading<NvmlIndex>,
    /// N of /dev/nvidiaN. Absent for an instance: its parent's file is open also to who is on the instance beside it.
    pub minor: Reading<DeviceMinor>,
}

/// One unit of an ended run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedUnit {
    /// What Slurm gave.
    pub claim: GpuClaim,
    /// Which unit that is.
    pub name: Reading<Name>,
    /// Whether another job may hold it too: then only what is certainly this job's is its.
    pub shared: bool,
}

/// Where the job stands.
#[derive(Clone, Copy, Debug)]
pub struct Beside<'a> {
    /// The other registered jobs.
    pub others: &'a [JobRun],
    /// What this boot has shown of its units.
    pub known: &'a [KnownUnit],
    /// What slurmd's configuration says of the GRES indices.
    pub mapping: &'a Mapping,
    /// Whether GPUs are given out in shares here.
    pub shares: bool,
}

/// The units of these claims.
pub fn units(claims: &[GpuClaim], beside: &Beside) -> Vec<EndedUnit> {
    let unit = |claim: &GpuClaim| {
        let name = beside.name(claim);
        let shared = name.measured().is_none_or(|name| beside.shared(claim, name));
        EndedUnit { claim: claim.clone(), name, shared }
    };
    claims.iter().map(unit).collect()
}

impl Beside<'_> {
    fn name(&self, claim: &GpuClaim) -> Reading<Name> {
        let unseen = Absence::NotRecorded;
        let known = |uuid: &UnitUuid| self.known.iter().find(|k| k.uuid == *uuid);
        match (unit_of(claim, self.known, self.mapping), claim) {
            (Reading::Measured(unit), _) => Reading::Measured(Name {
                minor: known(&unit.uuid).map_or(Reading::Absent(unseen), own_minor),
                uuid: Reading::Measured(unit.uuid),
                index: Reading::Measured(unit.index),
            }),
            // Slurm names it, and no run has seen it yet.
            (Reading::Absent(_), GpuClaim::Uuid(uuid)) => Reading::Measured(Name {
                uuid: Reading::Measured(uuid.clone()),
                index: Reading::Absent(unseen),
                minor: Reading::Absent(unseen),
            }),
            (Reading::Absent(why), GpuClaim::Index(index)) => match self.mapping {
                Mapping::Minors(minors) => match minors.get(index.0 as usize) {
                    Some(Some(minor)) if !self.is_seen(*minor) => Reading::Measured(Name {
                        uuid: Reading::Absent(unseen),
                        index: Reading::Absent(unseen),
                        minor: Reading::Measured(*minor),
                    }),
                    _ => Reading::Absent(why),
                },
                Mapping::AutoDetected(_) | Mapping::Unknown => Reading::Absent(why),
            },
        }
    }

    fn is_seen(&self, minor: DeviceMinor) -> bool {
        self.known.iter().any(|k| k.minor == Reading::Measured(minor))
    }

    fn shared(&self, claim: &GpuClaim, name: &Name) -> bool {
        let cut =
            |uuid: &UnitUuid| self.known.iter().any(|k| k.uuid == *uuid && !is_allocatable(k, self.known));
        let theirs = || self.others.iter().flat_map(|job| &job.registration.gpus);
        let may_be_it = |other: &GpuClaim| {
            let same_index = matches!(other, GpuClaim::Index(_)) && other == claim;
            let unit = unit_of(other, self.known, self.mapping);
            same_index
                || match (&name.uuid, unit.measured()) {
                    (Reading::Measured(own), Some(unit)) => self.overlap(own, &unit.uuid),
                    // Of two indices each is another unit; a UUID may be any index's that is not mapped.
                    (Reading::Measured(_), None) => {
                        matches!((claim, other), (GpuClaim::Uuid(_), GpuClaim::Index(_)))
                    }
                    (Reading::Absent(_), _) => matches!(other, GpuClaim::Uuid(_)),
                }
        };
        self.shares || name.uuid.measured().is_some_and(cut) || theirs().any(may_be_it)
    }

    /// The same unit, or a GPU and an instance of it.
    fn overlap(&self, a: &UnitUuid, b: &UnitUuid) -> bool {
        let within = |inner: &UnitUuid, outer: &UnitUuid| {
            let of_it = |k: &KnownUnit| {
                k.uuid == *inner && matches!(&k.kind, UnitKind::Mig { parent, .. } if parent == outer)
            };
            self.known.iter().any(of_it)
        };
        a == b || within(a, b) || within(b, a)
    }
}

fn own_minor(unit: &KnownUnit) -> Reading<DeviceMinor> {
    match unit.kind {
        UnitKind::Mig { .. } => Reading::Absent(Absence::NotSupported),
        _ => unit.minor,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{job, unit};
    use super::*;
    use crate::units::GresIndex;

    fn by_index(index: u32) -> GpuClaim {
        GpuClaim::Index(GresIndex(index))
    }

    fn by_uuid(uuid: &str) -> GpuClaim {
        GpuClaim::Uuid(UnitUuid::new(uuid).unwrap())
    }

    fn files(minors: &[u32]) -> Mapping {
        Mapping::Minors(minors.iter().map(|m| Some(DeviceMinor(*m))).collect())
    }

    fn instance(uuid: &str) -> KnownUnit {
        let parent = UnitUuid::new("GPU-0").unwrap();
        let kind = UnitKind::Mig { parent, gi: 1, ci: 0 };
        KnownUnit { uuid: UnitUuid::new(uuid).unwrap(), kind, ..unit(0, 0) }
    }

    /// In words: the UUID or the device file, and a star where it may be another's too.
    fn word(unit: &EndedUnit) -> String {
        let star = if unit.shared { "*" } else { "" };
        match &unit.name {
            Reading::Absent(why) => format!("{why:?}"),
            Reading::Measured(Name { uuid: Reading::Measured(uuid), .. }) => format!("{uuid}{star}"),
            Reading::Measured(Name { minor, .. }) => format!("nvidia{}{star}", minor.measured().unwrap()),
        }
    }

    /// Name, claim, what is known, what gres.conf says, the others, what comes of it.
    type Row<'a> = (&'a str, GpuClaim, &'a [KnownUnit], &'a Mapping, Vec<JobRun>, &'a str);

    #[test]
    fn only_the_units_of_the_job_are_named_and_none_is_guessed() {
        // nebius/soperator#1246, ROCm/spur#836 (PE-03, ND-11)
        let known: Vec<KnownUnit> = (0..8).map(|i| unit(i, i)).collect();
        let (whole, cut) = (&known[..], [unit(0, 0), instance("MIG-a"), unit(1, 1)]);
        let reversed: Vec<KnownUnit> = (0..2).map(|i| unit(1 - i, i)).collect();
        let all = files(&[0, 1, 2, 3, 4, 5, 6, 7]);
        let auto = Mapping::AutoDetected(super::super::Configured::All);
        let busy: Vec<_> = (1..8).map(|n| job(n, &[n as u32])).collect();
        let names_one = |id: i64, uuid: &str| {
            let mut job = job(id, &[]);
            job.registration.gpus = vec![by_uuid(uuid)];
            job
        };
        let table: [Row; 17] = [
            ("seven neighbours at work", by_index(0), whole, &all, busy, "GPU-0"),
            ("by the file's minor", by_index(1), whole, &files(&[3, 5]), vec![], "GPU-5"),
            ("slurmd detects, one order", by_index(2), whole, &auto, vec![], "GPU-2"),
            ("slurmd detects, two orders", by_index(0), &reversed, &auto, vec![], "NotMapped"),
            ("no run has looked yet", by_index(0), &[], &auto, vec![], "NotMapped"),
            ("the same with files", by_index(1), &[], &files(&[3, 5]), vec![], "nvidia5"),
            ("beyond the list", by_index(2), &[], &files(&[3, 5]), vec![], "NotMapped"),
            ("a GPU that is cut", by_index(0), &cut, &files(&[0, 1]), vec![], "NotMapped"),
            ("that by its UUID", by_uuid("GPU-0"), &cut, &Mapping::Unknown, vec![], "GPU-0*"),
            ("an instance", by_uuid("MIG-a"), &cut, &Mapping::Unknown, vec![], "MIG-a"),
            ("its parent is another's", by_uuid("MIG-a"), &cut, &all, vec![names_one(2, "GPU-0")], "MIG-a*"),
            ("a UUID never seen", by_uuid("GPU-x"), whole, &Mapping::Unknown, vec![], "GPU-x"),
            ("shared by index", by_index(0), whole, &all, vec![job(2, &[0])], "GPU-0*"),
            ("shared, not mapped", by_index(0), &[], &files(&[0]), vec![job(2, &[0])], "nvidia0*"),
            ("shared by UUID", by_index(0), whole, &all, vec![names_one(2, "GPU-0")], "GPU-0*"),
            (
                "may be an index of another",
                by_uuid("GPU-0"),
                whole,
                &Mapping::Unknown,
                vec![job(2, &[1])],
                "GPU-0*",
            ),
            (
                "may be another's UUID",
                by_index(1),
                &[],
                &files(&[3, 5]),
                vec![names_one(2, "GPU-5")],
                "nvidia5*",
            ),
        ];
        for (name, claim, known, mapping, others, want) in table {
            let beside = Beside { others: &others, known, mapping, shares: false };
            let units = units(std::slice::from_ref(&claim), &beside);
            assert_eq!(units.iter().map(word).collect::<Vec<_>>(), [want], "{name}");
        }
        let beside = Beside { others: &[], known: whole, mapping: &all, shares: true };
        assert_eq!(word(&units(&[by_index(0)], &beside)[0]), "GPU-0*", "GPUs in shares");
        assert!(units(&[], &beside).is_empty(), "a job without GPUs");
        let beside = Beside { others: &[], known: &cut, mapping: &all, shares: false };
        let minor = |uuid| units(&[by_uuid(uuid)], &beside)[0].name.measured().unwrap().minor;
        assert_eq!(minor("GPU-1"), Reading::Measured(DeviceMinor(1)));
        assert_eq!(minor("MIG-a").measured(), None, "its parent's file is its neighbour's too");
    }
}

//! What this run saw: the GPUs, the registered jobs, whose GPU is whose. A failed source is absent, never empty.

use super::eyes::{Eyes, Resident};
use super::{Setting, Trouble, questions};
use crate::config::SlurmSource;
use crate::ledger::{JobInRun, Keep, Killed, Ledger, NewRun, ProcessFacts};
use crate::lock::Before;
use crate::model::*;
use crate::policy::attribution::{self, Mapping};
use crate::policy::level::is_work;
use crate::reading::{Absence, Reading};
use crate::units::BootMs;
use crate::units::{DeviceMinor, UnitUuid};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// One look at node and jobs.
pub struct Snapshot {
    /// The GPUs, or why there is no reading of them.
    pub gpus: Reading<GpuReport>,
    /// The registered jobs of this boot.
    pub jobs: Vec<JobRun>,
    /// Whose units are whose.
    pub held: HashMap<JobRunId, Reading<Vec<UnitRef>>>,
    /// Allocation units of this node.
    pub node_units: Reading<u32>,
    /// How often runs come.
    pub cadence: Reading<Cadence>,
    /// When the run before this one sampled, on this boot.
    pub previous: Option<BootMs>,
    /// What the set-up lacks, to be said aloud.
    pub note: Option<String>,
    /// What slurmd's configuration says of the GRES indices.
    pub mapping: Mapping,
    /// The driver lists other GPUs than the runs of this boot before.
    pub list_changed: bool,
    /// Jobs that local evidence shows here: their cgroups, and those of processes on the GPUs.
    here: Vec<JobId>,
    /// Whether the cgroups could be looked at for that.
    folders: Reading<()>,
    residents: BTreeMap<u32, Resident>,
    samples: BTreeMap<JobRunId, JobSample>,
}

/// What the ledger already knows when a run begins; read while the worker looks at the GPUs.
pub struct Books {
    jobs: Vec<JobRun>,
    units: Vec<KnownUnit>,
    /// How often runs come.
    pub cadence: Reading<Cadence>,
    /// When the run before this one sampled, on this boot.
    pub previous: Option<BootMs>,
}

impl Books {
    /// Under one lock.
    pub fn read(setting: &Setting, ledger: &Ledger) -> Result<Books, Trouble> {
        let boot = &setting.now.boot_id;
        Ok(ledger.together(|ledger| {
            let (jobs, units) = (ledger.open_runs(boot)?, ledger.known_units(boot)?);
            let (cadence, previous) = (ledger.cadence(setting.now)?, ledger.newest_run(setting.now)?);
            Ok(Books { jobs, units, cadence, previous })
        })?)
    }
}

/// Looks at everything. Jobs that local evidence shows and nobody registered are asked about, a few a run.
pub fn take(
    setting: &Setting,
    eyes: &mut dyn Eyes,
    books: Books,
    ledger: &mut Ledger,
) -> Result<Snapshot, Trouble> {
    eyes.know(setting.now, &books.jobs);
    let gpus = eyes.gpus();
    let residents = residents(&gpus, eyes);
    let (here, folders) = here(eyes, &residents);
    let jobs = with_late_ones(setting, &here, books.jobs, ledger)?;
    let list_changed = list_changed(&gpus, &books.units);
    let known = attribution::known(&gpus, books.units);
    let gres = setting.slurm.gres(&jobs);
    let (mapping, note) = match gres.mapping {
        Ok(mapping) => (mapping, None),
        Err(why) => (Mapping::Unknown, Some(format!("{why}; jobs registered by GPU index are not judged"))),
    };
    let mut held = attribution::attribute(&jobs, &known, &mapping);
    attribution::contradict(&mut held, &jobs, &owners(&gpus, &residents));
    let node_units = match gres.shares {
        // A job on every GPU may hold a share of each.
        true => Reading::Absent(Absence::Shared),
        false => attribution::count(&gpus, &known, setting.config.gpu.expected, &mapping, &held),
    };
    let mut snapshot = Snapshot {
        mapping,
        gpus,
        jobs,
        held,
        node_units,
        cadence: books.cadence,
        previous: books.previous,
        note,
        list_changed,
        here,
        folders,
        residents,
        samples: BTreeMap::new(),
    };
    for job in snapshot.jobs.iter().filter(|j| !j.registration.gpus.is_empty()) {
        let pids = snapshot.pids_of(job);
        let mut sample = eyes.job(job, &pids);
        // Slurm stops processes in ways that not every kernel shows: while its last word is that the job is
        // suspended, that stays in the history, also once it runs again.
        if job.details.as_ref().is_some_and(|d| d.state == JobState::Suspended) {
            sample.frozen = Reading::Measured(true);
        }
        snapshot.samples.insert(job.id, sample);
    }
    Ok(snapshot)
}

/// Whether the GPUs by UUID are others than those that were listed on this boot; their instances aside.
fn list_changed(gpus: &Reading<GpuReport>, earlier: &[KnownUnit]) -> bool {
    let Reading::Measured(report) = gpus else { return false };
    let listed: BTreeSet<_> = whole(report).filter_map(|u| u.identity.uuid.measured()).collect();
    listed != earlier.iter().filter(|k| k.kind == UnitKind::Gpu).map(|k| &k.uuid).collect()
}

/// The GPUs of a report, without instances.
pub fn whole(report: &GpuReport) -> impl Iterator<Item = &UnitSample> {
    report.units.iter().filter(|unit| unit.identity.kind == UnitKind::Gpu)
}

fn residents(gpus: &Reading<GpuReport>, eyes: &mut dyn Eyes) -> BTreeMap<u32, Resident> {
    let mut residents = BTreeMap::new();
    let units = gpus.measured().map_or(&[][..], |report| &report.units);
    for process in units.iter().filter_map(|u| u.readings.processes.measured()).flatten() {
        residents.entry(process.pid).or_insert_with(|| eyes.resident(process.pid));
    }
    residents
}

/// Units that are not cut into instances, with each job that has a process on them.
fn owners(gpus: &Reading<GpuReport>, residents: &BTreeMap<u32, Resident>) -> Vec<(UnitUuid, JobId)> {
    let units = gpus.measured().map_or(&[][..], |report| &report.units);
    let is_cut = |uuid: &UnitUuid| {
        let of_it =
            |u: &UnitSample| matches!(&u.identity.kind, UnitKind::Mig { parent, .. } if parent == uuid);
        units.iter().any(of_it)
    };
    let mut owners = Vec::new();
    for unit in units {
        let Reading::Measured(uuid) = &unit.identity.uuid else { continue };
        let jobs = unit.readings.processes.measured().into_iter().flatten();
        let jobs = jobs.filter_map(|p| residents.get(&p.pid)?.job());
        owners.extend(jobs.filter(|_| !is_cut(uuid)).map(|job| (uuid.clone(), job)));
    }
    owners
}

fn here(eyes: &mut dyn Eyes, residents: &BTreeMap<u32, Resident>) -> (Vec<JobId>, Reading<()>) {
    let folders = eyes.jobs_here();
    let mut here: Vec<JobId> = folders.measured().cloned().unwrap_or_default();
    here.extend(residents.values().filter_map(Resident::job));
    (here, folders.map(drop))
}

/// The registered jobs, with those that only local evidence shows; with `source: squeue` the list too.
fn with_late_ones(
    setting: &Setting,
    here: &[JobId],
    registered: Vec<JobRun>,
    ledger: &mut Ledger,
) -> Result<Vec<JobRun>, Trouble> {
    let mut shown = here.to_vec();
    if setting.config.slurm.source == SlurmSource::Squeue {
        shown.extend(questions::list(setting, ledger)?);
    }
    shown.retain(|id| !registered.iter().any(|j| j.registration.job == *id));
    if shown.is_empty() {
        return Ok(registered);
    }
    shown.sort_unstable();
    shown.dedup();
    questions::discover(setting, &shown, ledger)?;
    Ok(ledger.open_runs(&setting.now.boot_id)?)
}

impl Snapshot {
    /// The processes on the job's GPUs that are not known to be another job's.
    fn pids_of(&self, job: &JobRun) -> Vec<u32> {
        let Some(units) = self.held.get(&job.id).and_then(|h| h.measured()) else {
            return Vec::new();
        };
        let reports = self.gpus.measured().map_or(&[][..], |report| &report.units);
        let on_its_units = reports
            .iter()
            .filter(|u| units.iter().any(|held| u.identity.uuid.measured() == Some(&held.uuid)));
        let mut pids: Vec<u32> = on_its_units
            .filter_map(|u| u.readings.processes.measured())
            .flatten()
            .filter(|p| p.kind != ProcessKind::Graphics)
            .map(|p| p.pid)
            .filter(|pid| {
                let owner = self.residents.get(pid).and_then(Resident::job);
                owner.is_none_or(|owner| owner == job.registration.job)
            })
            .collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Whose a process on a GPU is, by its cgroup.
    pub fn whose(&self, pid: u32) -> Reading<Whose> {
        self.residents.get(&pid).map_or(Reading::Absent(Absence::NotAsked), |resident| resident.whose)
    }

    /// When a process on a GPU started, in clock ticks since boot.
    pub fn start_ticks(&self, pid: u32) -> Reading<u64> {
        self.residents.get(&pid).map_or(Reading::Absent(Absence::NotAsked), |resident| resident.start_ticks)
    }

    /// The job of a process on a GPU, by its cgroup.
    pub fn job_of(&self, pid: u32) -> Option<JobId> {
        self.residents.get(&pid).and_then(Resident::job)
    }

    /// Whether the units of every registered job that holds GPUs are known.
    pub fn knows_all_holders(&self) -> bool {
        let known = |job: &JobRun| self.held.get(&job.id).is_some_and(|held| held.measured().is_some());
        self.jobs.iter().filter(|job| !job.registration.gpus.is_empty()).all(known)
    }

    /// The unit's reading of this run.
    pub fn unit(&self, uuid: &UnitUuid) -> Option<&UnitSample> {
        self.gpus.measured()?.units.iter().find(|u| u.identity.uuid.measured() == Some(uuid))
    }

    /// Who holds these units' device files open, the driver's own list aside: to be asked before one is called idle.
    /// Absent where that cannot be said of one of them. An instance has its GPU's file: its neighbours hold it too.
    pub fn holders(
        &self,
        eyes: &mut dyn Eyes,
        job: &JobRun,
        units: &[UnitUuid],
    ) -> Reading<Vec<(DeviceMinor, u32)>> {
        let mut minors = Vec::new();
        for unit in units {
            match self.unit(unit).map_or(Reading::Absent(Absence::NotListed), |u| u.identity.minor) {
                Reading::Measured(minor) => minors.push(minor),
                Reading::Absent(why) => return Reading::Absent(why),
            }
        }
        eyes.holders(&minors, Some(job))
    }

    /// Whether this node shows that the job still lives: its cgroup, or processes of it that can be counted.
    pub fn lives(&self, job: &JobRun) -> bool {
        // A folder that is named by SLUID gives no job id, but its job's sample.
        let counted = self.samples.get(&job.id).is_some_and(|s| s.cpu_ms.measured().is_some());
        counted || self.here.contains(&job.registration.job)
    }

    /// Whether Slurm's cgroups of jobs can be looked at: without them a job's process looks like anybody's.
    pub fn job_folders(&self) -> Reading<()> {
        self.folders
    }

    /// Whether something of a job is left here: its cgroup, or a process of it on a GPU. Where Slurm keeps no cgroups at
    /// all only the GPUs can say so.
    pub fn holds_on(&self, job: JobId) -> Reading<bool> {
        match self.folders {
            _ if self.here.contains(&job) => Reading::Measured(true),
            Reading::Measured(()) | Reading::Absent(Absence::NoData) => Reading::Measured(false),
            Reading::Absent(why) => Reading::Absent(why),
        }
    }

    /// Whether any GPU of the job is seen at work in this run.
    pub fn works(&self, setting: &Setting, job: &JobRun) -> bool {
        let units = self.held.get(&job.id).and_then(|h| h.measured());
        let works = |uuid: &UnitUuid| {
            self.unit(uuid).is_some_and(|u| is_work(&u.readings, &setting.config.rules.thresholds))
        };
        units.is_some_and(|units| units.iter().any(|u| works(&u.uuid)))
    }

    /// Remembers it all, in one transaction; a killed run of this boot before it too.
    pub fn append(&self, setting: &Setting, ledger: &mut Ledger, before: &Before) -> Result<RunId, Trouble> {
        let killed = match before {
            Before::Killed(k) if k.boot_id == setting.now.boot_id => {
                tracing::warn!(
                    "the run before this one was killed in its phase `{}`; it is recorded",
                    k.phase
                );
                Some(Killed { phase: k.phase.clone(), boot: k.boot, wall: k.wall })
            }
            _ => None,
        };
        let mut owners = BTreeMap::new();
        for (job, units) in &self.held {
            for unit in units.measured().into_iter().flatten() {
                owners.insert(unit.uuid.clone(), *job);
            }
        }
        let job_run = |resident: &Resident| {
            let id = resident.job()?;
            self.jobs.iter().find(|j| j.registration.job == id).map(|j| j.id)
        };
        let facts = |r: &Resident| ProcessFacts { start_ticks: r.start_ticks, job_run: job_run(r) };
        let processes = self.residents.iter().map(|(pid, r)| (*pid, facts(r))).collect();
        let sampled = self.jobs.iter().filter_map(|job| Some((job, self.samples.get(&job.id)?)));
        let jobs: Vec<JobInRun> = sampled
            .map(|(job, sample)| JobInRun {
                run: job.id,
                sample: sample.clone(),
                active: self.works(setting, job),
            })
            .collect();
        let history = &setting.config.history;
        let keep = Keep {
            samples_ms: history.keep.as_millis() as i64,
            archive_ms: history.archive.as_millis() as i64,
            case_files_ms: history.case_files.as_millis() as i64,
            max_bytes: history.max_size_bytes,
        };
        Ok(ledger.append(&NewRun {
            now: setting.now,
            killed,
            overlapped: crate::lock::take_overlaps(&setting.place.dir),
            gpus: self.gpus.as_ref(),
            owners: &owners,
            processes: &processes,
            jobs: &jobs,
            keep: &keep,
        })?)
    }
}

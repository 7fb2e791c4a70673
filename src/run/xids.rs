//! Xids of the kernel's log. Each is told to the job that it is about, for the explanation and nothing else, because any
//! user's kernel can cause one. Those that mean hardware, by a short list, are the node's too: the log's records are
//! numbered, so that each is heard as news once a boot. Any other one that is nobody's is left in the log.

use super::eyes::Eyes;
use super::snapshot::{Snapshot, whole};
use super::{Setting, Trouble};
use crate::host::kernel_log::{Heard, Xid};
use crate::ledger::{Ledger, Remembered};
use crate::model::{Field, JobId, JobRun, RunId, UnitKind, UnitSample};
use crate::reading::Reading;
use crate::units::{PciAddress, hash};
use std::collections::{BTreeMap, BTreeSet};

/// The log is read once in so many runs while nothing is amiss: at each reading every record that the kernel keeps is
/// passed by, thousands on a server, at a microsecond each. Nothing is lost by it while the log holds the time between.
/// Not in the runs that look at the bus.
const EVERY: i64 = 8;
const TURN: i64 = 4;

/// Where it is kept how far the log was read.
const LOG: &str = "kernel-log";
/// The number of the next record.
const NEXT: &str = "next";
/// On which boot, by a hash of its id.
const BOOT: &str = "boot";
/// That the log was once read to its end.
const TO_END: &str = "to end";
/// "Fallen off the bus" without a number is this one.
const OFF_THE_BUS: u32 = 79;

/// An Xid that means hardware, new since the log was last read.
pub struct Hardware {
    /// Which GPU.
    pub gpu: PciAddress,
    /// GPU and number: one episode.
    pub subject: String,
    /// In words.
    pub words: String,
    /// The kernel itself wrote it.
    pub by_kernel: bool,
}

/// How far the log was read, to be remembered once all that was heard is kept.
pub type ReadTo = Vec<(String, &'static str, u64)>;

/// Looks through the log where it is due, keeps with each job what is its, and gives what is new and means hardware.
pub fn look(
    setting: &Setting,
    run: RunId,
    snapshot: &Snapshot,
    eyes: &mut dyn Eyes,
    (remembered, amiss): (&Remembered, bool),
    ledger: &mut Ledger,
) -> Result<(Vec<Hardware>, ReadTo), Trouble> {
    let its_turn = run.0 % EVERY == TURN;
    if !(its_turn || amiss || snapshot.list_changed || in_trouble(snapshot)) {
        return Ok((Vec::new(), Vec::new()));
    }
    let boot = u64::from(hash(&setting.now.boot_id));
    let read_on = remembered.get(LOG, BOOT).filter(|of| *of == boot);
    let cursor = read_on.and_then(|_| remembered.get(LOG, NEXT));
    let Reading::Measured(heard) = eyes.kernel_log(cursor) else { return Ok((Vec::new(), Vec::new())) };
    let knew_all = remembered.get(LOG, TO_END).is_some();
    let mut read_to = match cursor == Some(heard.next) {
        true => Vec::new(),
        false => vec![(LOG.to_owned(), BOOT, boot), (LOG.to_owned(), NEXT, heard.next)],
    };
    if heard.to_end && !knew_all {
        read_to.push((LOG.to_owned(), TO_END, 1));
    }
    if heard.lost > 0 {
        tracing::warn!(
            "{} records of the kernel's log were overwritten before they were read: whether a GPU told of trouble in them \
             is not known",
            heard.lost
        );
    }
    attach(setting, run, snapshot, (&heard, eyes), ledger)?;
    // What the log held before this ledger began was there to be seen by whoever set the node up. A long log, or a slow
    // machine, takes several readings to come to its end.
    let hardware = |xid: &&Xid| setting.config.faults.law.xids.contains(&xid.number.unwrap_or(OFF_THE_BUS));
    let mut found = Vec::new();
    for xid in heard.xids.iter().filter(|_| knew_all).filter(hardware) {
        // Another node of this host, or a virtual machine, may have cards of its own.
        if ledger.has_had_gpu_at(&xid.gpu)? {
            let detail = words(setting, xid, snapshot);
            found.push(Hardware {
                gpu: xid.gpu.clone(),
                subject: format!("{} {}", name(xid, snapshot), xid.number.unwrap_or(OFF_THE_BUS)),
                words: format!("{detail}, record {} of this boot's kernel log", xid.seq),
                by_kernel: xid.by_kernel,
            });
        }
    }
    Ok((found, read_to))
}

/// Keeps with each job what is its. What ended with its job is closed.
fn attach(
    setting: &Setting,
    run: RunId,
    snapshot: &Snapshot,
    (heard, eyes): (&Heard, &mut dyn Eyes),
    ledger: &mut Ledger,
) -> Result<(), Trouble> {
    for fault in ledger.open_faults()? {
        if fault.xid_of().is_some_and(|of| !snapshot.jobs.iter().any(|job| job.id == of)) {
            ledger.fault_gone(fault.id, setting.now)?;
        }
    }
    let holding = snapshot.jobs.iter().filter(|job| !job.registration.gpus.is_empty());
    let Some(first) = holding.map(|job| job.registration.start.boot).min() else { return Ok(()) };
    // A kernel in a loop writes the same a thousand times.
    let (mut seen, mut processes) = (BTreeSet::new(), BTreeMap::new());
    for xid in heard.older.iter().chain(&heard.xids).filter(|xid| xid.at >= first) {
        let mut job_of = |pid| snapshot.job_of(pid).or_else(|| eyes.resident(pid).job());
        let of_process = xid.pid.and_then(|pid| *processes.entry(pid).or_insert_with(|| job_of(pid)));
        let Some(job) = owner(xid, &snapshot.jobs, of_process, |job| holds(snapshot, job, xid)) else {
            continue;
        };
        let what = what(xid);
        if !seen.insert((job.id, what.clone())) {
            continue;
        }
        let detail = words(setting, xid, snapshot);
        if ledger.keep_xid(job.id, &what, &detail, run, setting.now)? {
            let shown = job.shown_id();
            tracing::warn!(
                job = job.registration.job.get(),
                shown,
                "job {shown}: {detail}; kept for --explain"
            );
        }
    }
    Ok(())
}

/// A GPU that cannot be named, or that the driver wants reset.
fn in_trouble(snapshot: &Snapshot) -> bool {
    let wants = |unit: &UnitSample| {
        let action = unit.readings.fields.get(Field::RecoveryAction);
        unit.identity.uuid.measured().is_none() || action.measured().is_some_and(|action| *action != 0)
    };
    snapshot.gpus.measured().is_some_and(|report| whole(report).any(wants))
}

/// The job of the process that it names, else the only one that holds the GPU or the instance; if it ran by then.
fn owner<'s>(
    xid: &Xid,
    jobs: &'s [JobRun],
    of_process: Option<JobId>,
    holds: impl Fn(&JobRun) -> bool,
) -> Option<&'s JobRun> {
    let is_its = |job: &&JobRun| match of_process {
        Some(id) => job.registration.job == id,
        None => holds(job),
    };
    let mut jobs = jobs.iter().filter(is_its);
    let (job, other) = (jobs.next()?, jobs.next());
    (other.is_none() && xid.at >= job.registration.start.boot).then_some(job)
}

fn holds(snapshot: &Snapshot, job: &JobRun, xid: &Xid) -> bool {
    let units = snapshot.held.get(&job.id).and_then(Reading::measured);
    let named = |unit: &UnitSample| {
        let instance = match (&unit.identity.kind, xid.instance) {
            (UnitKind::Gpu, _) | (UnitKind::Mig { .. }, None) => true,
            (UnitKind::Mig { gi, .. }, Some(named)) => *gi == named,
        };
        instance && unit.identity.pci.measured() == Some(&xid.gpu)
    };
    units.into_iter().flatten().any(|held| snapshot.unit(&held.uuid).is_some_and(named))
}

/// What tells one Xid of a job run from another.
fn what(xid: &Xid) -> String {
    let or_none = |n: Option<u32>| n.map_or("-".to_owned(), |n| n.to_string());
    format!("{} {} {}", or_none(xid.number), xid.gpu, or_none(xid.pid))
}

/// The GPU's UUID where it is listed, else its address.
fn name(xid: &Xid, snapshot: &Snapshot) -> String {
    let mut listed = snapshot.gpus.measured().into_iter().flat_map(whole);
    let unit = listed.find(|unit| unit.identity.pci.measured() == Some(&xid.gpu));
    let uuid = unit.and_then(|unit| unit.identity.uuid.measured());
    uuid.map_or_else(|| xid.gpu.to_string(), |uuid| uuid.as_str().to_owned())
}

/// "Xid 31 on GPU 3 (0000:9b:00.0) at 2026-11-29T13:25:38Z, pid 1234 `python`".
fn words(setting: &Setting, xid: &Xid, snapshot: &Snapshot) -> String {
    let listed = snapshot.gpus.measured().into_iter().flat_map(whole);
    let of_it = |unit: &&UnitSample| unit.identity.pci.measured() == Some(&xid.gpu);
    let index = listed.filter(of_it).map(|unit| format!(" {}", unit.identity.index)).next();
    let gpu = format!("GPU{} ({})", index.unwrap_or_default(), xid.gpu);
    let instance = xid.instance.map_or(String::new(), |gi| format!(", instance {gi}"));
    let pid = xid.pid.map_or(String::new(), |pid| format!(", pid {pid}"));
    let name = xid.name.as_ref().map_or(String::new(), |name| format!(" `{}`", name.escape_default()));
    let at = setting.now.wall_of(xid.at).rfc3339();
    match xid.number {
        Some(number) => format!("Xid {number} on {gpu}{instance} at {at}{pid}{name}"),
        None => format!("{gpu} fell off the bus at {at}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::*;
    use crate::reading::Absence;
    use crate::units::{BootMs, PciAddress, WallMs};

    fn job(id: u64, started: i64) -> JobRun {
        let absent = || Reading::Absent(Absence::NotRecorded);
        let start = JobStart { boot: BootMs(started), wall: WallMs(0), source: StartSource::Slurm };
        JobRun {
            id: JobRunId(id as i64),
            registration: Registration {
                cluster: absent(),
                job: JobId::new(id).unwrap(),
                restart: 0,
                sluid: absent(),
                start,
                user: absent(),
                uid: Reading::Absent(Absence::NotRecorded),
                account: absent(),
                partition: absent(),
                qos: absent(),
                nodes: Reading::Measured(1),
                node_list: absent(),
                het_leader: None,
                limit_end: Reading::Absent(Absence::NotRecorded),
                gpus: vec![],
                by: RegisteredBy::Prolog,
            },
            registered: BootMs(started),
            details: None,
            first_activity: None,
            last_activity: None,
        }
    }

    #[test]
    fn an_xid_is_of_its_process_job_else_of_the_only_holder_and_of_nobody_before() {
        // kubernetes-sigs/dra-driver-nvidia-gpu#689 (FT-04)
        let gpu = PciAddress::parse("0000:9b:00").unwrap();
        let (number, pid) = (Some(43), Some(7));
        let at = BootMs(1000);
        let xid = Xid { seq: 1, at, by_kernel: true, gpu, instance: None, number, pid, name: None };
        let jobs = [job(1, 500), job(2, 1000), job(3, 1001)];
        // Whose the process is, who holds the GPU, and whose the Xid then is.
        let table = [
            ("its process's job", Some(1), &[2][..], Some(1)),
            ("the holder", None, &[2], Some(2)),
            ("two holders, as of a split card", None, &[1, 2], None),
            ("nobody's", None, &[], None),
            ("a job that began later", None, &[3], None),
            ("a process of one", Some(3), &[1], None),
            ("a process of a job that nobody registered", Some(9), &[1], None),
        ];
        for (name, process, holders, want) in table {
            let of_process = process.and_then(JobId::new);
            let found = owner(&xid, &jobs, of_process, |job| holders.contains(&job.id.0));
            assert_eq!(found.map(|job| job.id.0), want, "{name}");
        }
    }
}

//! The Prolog: environment in, one row out. No NVML, no Slurm command, a bounded wait, and never a non-zero exit,
//! whatever is broken: a Prolog that fails drains the node and holds the job. A job whose GPUs it cannot be sure of
//! it leaves to the next health-check run, which finds it by its cgroup and asks Slurm.

use crate::host::Proc;
use crate::ledger::{Ledger, Opening};
use crate::model::*;
use crate::place::Place;
use crate::reading::{Absence, Reading};
use crate::slurm::cgroup::{self, JobTag};
use crate::slurm::hostlist;
use crate::units::{GresIndex, NodeName, UnitUuid, WallMs};
use std::time::Duration;

/// How long a Prolog or Epilog waits for the ledger: slurmd tells the user "Prolog hung" after 8 s.
pub const LEDGER_WAIT: Duration = Duration::from_millis(1500);

/// More nodes than this are not told apart.
const MOST_NODES: usize = 64 << 10;

/// A hook's environment; a variable that is not set, empty or not UTF-8 is not there.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The process's own environment.
pub fn process_env(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// What a hook did.
#[derive(Debug)]
pub struct Done {
    /// In words.
    pub words: String,
    /// What had to be done to the ledger first, one line each; empty where all is well.
    pub notes: Vec<String>,
    /// What was found and has to be said aloud, one line each.
    pub found: Vec<String>,
    /// A drain for what a job left was asked for and is not seen to be done: the one thing for which a hook fails.
    pub drain_failed: bool,
}

impl Done {
    /// Nothing was found that has to be said aloud.
    pub fn quietly(words: String, notes: Vec<String>) -> Done {
        Done { words, notes, found: Vec::new(), drain_failed: false }
    }
}

/// Registers the job run of this environment.
pub fn run(place: &Place, opening: Opening, now: &Now, env: Env) -> Result<Done, String> {
    let registration = registration(env, now)?;
    if let Some(why) = doubted(&registration, env, &place.node) {
        let words =
            format!("job {} is not registered: {why}; the next run finds it by itself", registration.job);
        return Ok(Done::quietly(words, Vec::new()));
    }
    let mut ledger = Ledger::open(&place.dir, &place.node, now, opening).map_err(|e| {
        format!("{e}; job {} is not registered, the next run finds it by itself", registration.job)
    })?;
    let job = registration.job;
    ledger
        .register(now, &registration)
        .map_err(|e| format!("{e}; job {job} is not registered, the next run finds it by itself"))?;
    let words = format!("job {job} registered with {} GPUs", registration.gpus.len());
    Ok(Done::quietly(words, ledger.notes().to_vec()))
}

/// What the environment of slurmd's Prolog and Epilog says of a job run (facts of Slurm 2.1, 2.2).
pub fn registration(env: Env, now: &Now) -> Result<Registration, String> {
    let text = |name: &str| match env(name) {
        Some(value) if value != "(null)" => Reading::Measured(value),
        _ => Reading::Absent(Absence::NotRecorded),
    };
    let number = |name: &str| env(name).and_then(|v| v.parse::<u32>().ok());
    let job = job_id(env)?;
    let restart = number("SLURM_JOB_RESTART_COUNT").unwrap_or(0);
    Ok(Registration {
        cluster: text("SLURM_CLUSTER_NAME"),
        job,
        restart,
        sluid: text("SLURM_JOB_SLUID"),
        start: start(env, now),
        user: text("SLURM_JOB_USER"),
        uid: number("SLURM_JOB_UID").map_or(Reading::Absent(Absence::NotRecorded), Reading::Measured),
        account: text("SLURM_JOB_ACCOUNT"),
        partition: text("SLURM_JOB_PARTITION"),
        qos: text("SLURM_JOB_QOS"),
        nodes: number("SLURM_JOB_NUM_NODES").map_or(Reading::Absent(Absence::NotRecorded), Reading::Measured),
        node_list: text("SLURM_NODELIST"),
        het_leader: env("SLURM_HET_JOB_ID").and_then(|v| JobId::parse(&v)),
        limit_end: unix_s(env, "SLURM_JOB_END_TIME")
            .map_or(Reading::Absent(Absence::NotRecorded), Reading::Measured),
        gpus: gpus(env)?,
        by: RegisteredBy::Prolog,
    })
}

/// SLURM_JOB_ID, or an error that says what was found.
pub fn job_id(env: Env) -> Result<JobId, String> {
    let found = env("SLURM_JOB_ID");
    found.as_deref().and_then(JobId::parse).ok_or_else(|| match found {
        Some(found) => format!(
            "SLURM_JOB_ID is `{}`, a job id is a number above 0; nothing was done",
            found.escape_debug()
        ),
        None => "SLURM_JOB_ID is not set; nothing was done".to_owned(),
    })
}

fn unix_s(env: Env, name: &str) -> Option<WallMs> {
    env(name)?.parse::<i64>().ok().filter(|s| *s > 0).and_then(|s| s.checked_mul(1000)).map(WallMs)
}

/// Slurm's start time from 23.02 on; before, the moment of registration.
fn start(env: Env, now: &Now) -> JobStart {
    match unix_s(env, "SLURM_JOB_START_TIME") {
        Some(wall) => {
            // Slurm's clock may be ahead of ours: a run never starts in the future.
            let ago_ms = (now.wall.0 - wall.0).max(0);
            JobStart { boot: crate::units::BootMs(now.boot.0 - ago_ms), wall, source: StartSource::Slurm }
        }
        None => JobStart { boot: now.boot, wall: now.wall, source: StartSource::Registration },
    }
}

/// Why the GPUs of a registration by this environment are not to be believed, if so.
pub fn doubted(r: &Registration, env: Env, node: &NodeName) -> Option<&'static str> {
    doubt(r, env, node, &in_a_job)
}

/// An index in CUDA_VISIBLE_DEVICES alone is job-local.
/// And Slurm before 25.11 (which tells no SLUID) reads past the list of nodes where it runs the hooks inside the job
/// (PrologFlags=RunInJob) and this is not the job's first node: 24.11.5 dies of it before any Prolog, 26.05.5 is
/// right (both measured).
fn doubt(r: &Registration, env: Env, node: &NodeName, in_a_job: &dyn Fn() -> bool) -> Option<&'static str> {
    let visible = env("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let is_index = |entry: &str| entry.trim().parse::<u32>().is_ok();
    if r.gpus.is_empty() && env("SLURM_JOB_GPUS").is_none() && visible.split(',').all(is_index) {
        return Some("its GPUs are told by job-local indices only");
    }
    let tells_sluids = r.sluid.measured().is_some();
    if tells_sluids || r.nodes == Reading::Measured(1) || is_first(r, node) || !in_a_job() {
        return None;
    }
    Some("this Slurm, with PrologFlags=RunInJob, may give another node's list of GPUs")
}

fn is_first(r: &Registration, node: &NodeName) -> bool {
    let nodes = r.node_list.measured().and_then(|list| hostlist::expand(list, MOST_NODES).ok());
    nodes.is_some_and(|nodes| nodes.first().is_some_and(|first| first == node.as_str()))
}

/// Whether this hook runs in a job's own cgroup. One that cannot say so is an ordinary one.
fn in_a_job() -> bool {
    let own = Proc::default().cgroup(std::process::id());
    let tag = own.map(|text| cgroup::place(&text).tag);
    matches!(tag, Reading::Measured(JobTag::Job(_) | JobTag::Sluid(_)))
}

/// UUIDs where CUDA_VISIBLE_DEVICES holds them, else the GRES indices of SLURM_JOB_GPUS; the indices of
/// CUDA_VISIBLE_DEVICES may be job-local and are never used.
fn gpus(env: Env) -> Result<Vec<GpuClaim>, String> {
    let visible = env("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let uuids: Option<Vec<GpuClaim>> =
        visible.split(',').map(|u| UnitUuid::new(u.trim()).ok().map(GpuClaim::Uuid)).collect();
    let Some(list) = env("SLURM_JOB_GPUS") else {
        return Ok(uuids.unwrap_or_default());
    };
    if let Some(uuids) = uuids.filter(|u| u.len() == list.split(',').count()) {
        return Ok(uuids);
    }
    let claims: Result<Vec<GpuClaim>, _> =
        list.split(',').map(|i| i.trim().parse().map(|i| GpuClaim::Index(GresIndex(i)))).collect();
    claims.map_err(|_| {
        format!(
            "SLURM_JOB_GPUS is `{}`, expected GPU indices like `0,1`; the job is not registered",
            list.escape_debug()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::BootMs;

    fn read(env: &[(&str, &str)]) -> Result<Registration, String> {
        let now = Now { boot_id: "b".into(), boot: BootMs(1_000_000), wall: WallMs(1_795_961_850_000) };
        let find = |name: &str| {
            env.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()).filter(|v| !v.is_empty())
        };
        registration(&find, &now)
    }

    #[test]
    fn a_missing_or_odd_variable_is_told_and_a_cpu_job_holds_no_gpu() {
        // nebius/soperator cd043edd (PE-09): strict mode aborted because a variable was not set.
        assert!(read(&[]).unwrap_err().contains("not set"));
        assert!(read(&[("SLURM_JOB_ID", "")]).unwrap_err().contains("not set"));
        for odd in ["0", "-1", "1 2", "x", "99999999999999999999"] {
            assert!(read(&[("SLURM_JOB_ID", odd)]).unwrap_err().contains("a number above 0"), "{odd}");
        }
        let cpu = read(&[("SLURM_JOB_ID", "7"), ("SLURM_JOB_GPUS", "")]).unwrap();
        assert!(cpu.gpus.is_empty());
        assert_eq!(cpu.user, Reading::Absent(Absence::NotRecorded));
    }

    #[test]
    fn uuids_win_and_local_indices_are_never_used() {
        let two = |visible| {
            let env = [("SLURM_JOB_ID", "7"), ("SLURM_JOB_GPUS", "4,5"), ("CUDA_VISIBLE_DEVICES", visible)];
            read(&env).unwrap().gpus
        };
        // guilbaults/slurm-job-exporter#63 (ID-02): the job-local index is always zero.
        assert_eq!(two("0,1"), [GpuClaim::Index(GresIndex(4)), GpuClaim::Index(GresIndex(5))]);
        let uuid = |u| GpuClaim::Uuid(UnitUuid::new(u).unwrap());
        assert_eq!(two("GPU-a1,MIG-b2"), [uuid("GPU-a1"), uuid("MIG-b2")]);
        assert_eq!(two("GPU-a1"), [GpuClaim::Index(GresIndex(4)), GpuClaim::Index(GresIndex(5))]);
        assert!(read(&[("SLURM_JOB_ID", "7"), ("SLURM_JOB_GPUS", "0-3")]).unwrap_err().contains("0-3"));
        let alone = read(&[("SLURM_JOB_ID", "7"), ("CUDA_VISIBLE_DEVICES", "GPU-a1,GPU-a2")]).unwrap();
        assert_eq!(alone.gpus, [uuid("GPU-a1"), uuid("GPU-a2")], "a UUID needs no index beside it");
    }

    #[test]
    fn a_list_that_may_be_another_nodes_or_job_local_is_not_registered() {
        let doubted = |inside: bool, given: &[(&str, &str)]| {
            let env = [&[("SLURM_JOB_ID", "7"), ("SLURM_JOB_NUM_NODES", "2")], given].concat();
            let find = |name: &str| env.iter().rev().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
            let registration = read(&env.iter().rev().copied().collect::<Vec<_>>()).unwrap();
            doubt(&registration, &find, &NodeName::new("n2").unwrap(), &|| inside).is_some()
        };
        // guilbaults/slurm-job-exporter#63, #64 (ID-02): the only GPU inside a job is called 0.
        assert!(doubted(false, &[("CUDA_VISIBLE_DEVICES", "0")]));
        assert!(!doubted(false, &[("CUDA_VISIBLE_DEVICES", "NoDevFiles")]), "a job without a GPU");
        assert!(!doubted(false, &[]));
        let gpus = ("SLURM_JOB_GPUS", "0,1");
        let nodes = |list| ("SLURM_NODELIST", list);
        assert!(!doubted(false, &[gpus, nodes("n[1-2]")]), "hooks of slurmd itself");
        assert!(doubted(true, &[gpus, nodes("n[1-2]")]));
        assert!(doubted(true, &[nodes("n[1-2]")]), "no list at all may be the same mistake");
        assert!(doubted(true, &[gpus, nodes("n[")]), "who is first is not known");
        assert!(!doubted(true, &[gpus, nodes("n[2-3]")]), "the job's first node");
        assert!(!doubted(true, &[gpus, nodes("n2"), ("SLURM_JOB_NUM_NODES", "1")]));
        assert!(!doubted(true, &[gpus, nodes("n[1-2]"), ("SLURM_JOB_SLUID", "s63NM8KTNVBJ00")]), "25.11 on");
    }

    #[test]
    fn slurms_start_time_is_taken_where_it_is_given() {
        let given = read(&[("SLURM_JOB_ID", "7"), ("SLURM_JOB_START_TIME", "1795961844")]).unwrap().start;
        assert_eq!((given.boot, given.source), (BootMs(994_000), StartSource::Slurm));
        let own = read(&[("SLURM_JOB_ID", "7")]).unwrap().start;
        assert_eq!((own.boot, own.source), (BootMs(1_000_000), StartSource::Registration));
        let ahead = read(&[("SLURM_JOB_ID", "7"), ("SLURM_JOB_START_TIME", "1795999999")]).unwrap().start;
        assert_eq!(ahead.boot, BootMs(1_000_000));
    }
}

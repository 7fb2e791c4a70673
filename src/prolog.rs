//! The Prolog: environment in, one row out. No NVML, no Slurm command, a bounded wait, and never a non-zero exit,
//! whatever is broken: a Prolog that fails drains the node and holds the job.

use crate::ledger::{Ledger, Opening};
use crate::model::*;
use crate::place::Place;
use crate::reading::{Absence, Reading};
use crate::units::{GresIndex, UnitUuid, WallMs};
use std::time::Duration;

/// How long a Prolog or Epilog waits for the ledger: slurmd tells the user "Prolog hung" after 8 s.
pub const LEDGER_WAIT: Duration = Duration::from_millis(1500);

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
}

/// Registers the job run of this environment.
pub fn run(place: &Place, opening: Opening, now: &Now, env: Env) -> Result<Done, String> {
    let registration = registration(env, now)?;
    let mut ledger = Ledger::open(&place.dir, &place.node, now, opening).map_err(|e| {
        format!("{e}; job {} is not registered, the next run finds it by itself", registration.job)
    })?;
    let job = registration.job;
    ledger
        .register(now, &registration)
        .map_err(|e| format!("{e}; job {job} is not registered, the next run finds it by itself"))?;
    let words = format!("job {job} registered with {} GPUs", registration.gpus.len());
    Ok(Done { words, notes: ledger.notes().to_vec() })
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

/// UUIDs where CUDA_VISIBLE_DEVICES holds them, else the GRES indices of SLURM_JOB_GPUS; the indices of
/// CUDA_VISIBLE_DEVICES may be job-local and are never used.
fn gpus(env: Env) -> Result<Vec<GpuClaim>, String> {
    let Some(list) = env("SLURM_JOB_GPUS") else {
        return Ok(Vec::new());
    };
    let visible = env("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let uuids: Option<Vec<GpuClaim>> =
        visible.split(',').map(|u| UnitUuid::new(u.trim()).ok().map(GpuClaim::Uuid)).collect();
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
        let local = read(&[("SLURM_JOB_ID", "7"), ("CUDA_VISIBLE_DEVICES", "0")]).unwrap();
        assert!(local.gpus.is_empty(), "a local index alone names no GPU");
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

//! The words we write into Slurm: one line of printable ASCII, ids only, no figure that changes and no user text,
//! so that ownership is a comparison byte for byte and nobody's parser breaks on it.

use crate::model::{JobRun, Now, Verdict};
use crate::policy::Finding;
use crate::units::human_ms;

/// Every reason of ours begins so.
pub const PREFIX: &str = "gpu-reaper: ";

/// `gpu-reaper: job=4242 run=1764422738.0 sig=hung st=drain since=2026-11-29T13:25:38Z`
pub fn waste(job: &JobRun, finding: &Finding, stage: Verdict) -> String {
    let r = &job.registration;
    format!(
        "{PREFIX}job={} run={}.{} sig={} st={stage} since={}",
        r.job,
        r.start.wall.0.div_euclid(1000),
        r.restart,
        finding.signature,
        finding.since_wall.rfc3339()
    )
}

/// What a cancelled job's owner reads in AdminComment. It is written before, since a job that is over may take
/// no comment, and so claims nothing that may yet fail.
pub fn comment(job: &JobRun, finding: &Finding, now: &Now) -> String {
    format!(
        "{PREFIX}cancelling {} by policy: {} on {} GPUs since {} ({}); ask: gpu-reaper-hc --explain {}",
        now.wall.rfc3339(),
        finding.signature,
        finding.units.len(),
        finding.since_wall.rfc3339(),
        human_ms(finding.evidence().certified_ms()),
        job.registration.job
    )
}

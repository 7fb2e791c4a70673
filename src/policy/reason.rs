//! The words we write into Slurm, and how they are read back: one line of printable ASCII, ids only, no figure that
//! changes by itself and no user text, so that ownership is a comparison byte for byte and nobody's parser breaks on it.

use super::signature::Signature;
use crate::model::{Deed, JobId, JobRun, Now};
use crate::policy::Finding;
use crate::units::{WallMs, human_ms};

/// Every reason of ours begins so.
pub const PREFIX: &str = "gpu-reaper: ";

/// How often a vote is written anew at most.
pub const MOST_REFRESHES: u32 = 3;

/// A job run by what every node of the job sees alike: Slurm's own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunKey {
    /// The raw id.
    pub job: JobId,
    /// Slurm's StartTime, Unix seconds.
    pub start_unix_s: i64,
    /// The restart count.
    pub restart: u32,
}

impl RunKey {
    /// `job=4242 run=1764422738.0`
    fn words(&self) -> String {
        format!("job={} run={}.{}", self.job, self.start_unix_s, self.restart)
    }
}

/// What a reason says of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stand {
    /// The node is drained for the job run.
    Drain,
    /// The node agrees that the job be cancelled; written anew so many times.
    Vote(u32),
}

/// A reason of ours, read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ours {
    /// For which job run.
    pub key: RunKey,
    /// What it says.
    pub stand: Stand,
}

/// `gpu-reaper: job=4242 run=1764422738.0 sig=hung st=drain since=2026-11-29T13:25:38Z`, and for a vote `st=cancel`
/// with ` n=0` at its end: slurmctld takes no notice of a text that it has already.
pub fn waste(key: RunKey, signature: Signature, stand: Stand, since: WallMs) -> String {
    let (word, refreshed) = match stand {
        Stand::Drain => ("drain", String::new()),
        Stand::Vote(n) => ("cancel", format!(" n={n}")),
    };
    format!("{PREFIX}{} sig={signature} st={word} since={}{refreshed}", key.words(), since.rfc3339())
}

/// Reads a reason; `None` for anything that [`waste`] could not have written.
pub fn read(reason: &str) -> Option<Ours> {
    let words: Vec<&str> = reason.strip_prefix(PREFIX)?.split(' ').collect();
    let [job, run, signature, stand, since, ref refreshed @ ..] = words[..] else { return None };
    let (start, restart) = run.strip_prefix("run=")?.split_once('.')?;
    let key = RunKey {
        job: JobId::parse(job.strip_prefix("job=")?)?,
        start_unix_s: start.parse().ok()?,
        restart: restart.parse().ok()?,
    };
    let stand = match (stand, refreshed) {
        ("st=drain", []) => Stand::Drain,
        ("st=cancel", [n]) => {
            Stand::Vote(n.strip_prefix("n=")?.parse().ok().filter(|n| *n <= MOST_REFRESHES)?)
        }
        _ => return None,
    };
    let signature = signature.strip_prefix("sig=").and_then(Signature::from_word)?;
    let since = WallMs::parse(since.strip_prefix("since=")?)?;
    // Written again it must be the same text: what somebody changed, added or left out makes it theirs.
    (waste(key, signature, stand, since) == reason).then_some(Ours { key, stand })
}

/// What a cancelled or requeued job's owner reads in AdminComment. It is written before, since a job that is over may
/// take no comment, and so claims nothing that may yet fail.
pub fn comment(deed: Deed, job: &JobRun, finding: &Finding, now: &Now) -> String {
    let doing = if deed == Deed::Requeue { "requeueing" } else { "cancelling" };
    format!(
        "{PREFIX}{doing} {} by policy: {} on {} GPUs since {} ({}); ask: gpu-reaper-hc --explain {}",
        now.wall.rfc3339(),
        finding.signature,
        finding.units.len(),
        finding.since_wall.rfc3339(),
        human_ms(finding.evidence().certified_ms()),
        job.registration.job
    )
}

/// Whether an AdminComment is a [`comment`] of ours and nothing more.
pub fn is_comment(text: &str) -> bool {
    let ours = ["cancelling ", "requeueing "]
        .iter()
        .any(|doing| text.strip_prefix(PREFIX).is_some_and(|rest| rest.starts_with(doing)));
    let end = text.rsplit_once("; ask: gpu-reaper-hc --explain ").map(|(_, job)| job);
    ours && end.is_some_and(|job| JobId::parse(job).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: RunKey = RunKey { job: JobId::FIRST, start_unix_s: 1_764_422_738, restart: 0 };
    const SINCE: WallMs = WallMs(1_764_422_738_000);

    #[test]
    fn a_reason_is_one_short_line_that_reads_back_as_what_it_was() {
        // aws/aws-parallelcluster-node#639 (ND-10): one line, printable, bounded, ids only.
        for stand in [Stand::Drain, Stand::Vote(0), Stand::Vote(3)] {
            let text = waste(KEY, Signature::Hung, stand, SINCE);
            assert_eq!(read(&text), Some(Ours { key: KEY, stand }), "{text}");
            assert!(text.len() < 120 && text.bytes().all(|b| (b' '..=b'~').contains(&b)));
        }
    }

    #[test]
    fn nothing_that_somebody_else_wrote_is_read_as_ours() {
        const KEPT: &str = "gpu-reaper: job=1 run=5.0 sig=hung st=drain since=2026-11-29T13:25:38Z";
        assert!(read(KEPT).is_some());
        let changed = |was: &str, is: &str| KEPT.replace(was, is);
        for text in [
            String::new(),
            "DIMM replaced tomorrow".into(),
            "gpu-reaper: job=1".into(),
            changed("st=drain", "st=resume"),
            changed("job=1", "job=01"),
            changed("run=5.0", "run=5"),
            changed("run=5.0", "run=+5.0"),
            changed("st=drain", "st=cancel"),
            changed("st=drain", "st=cancel") + " n=9",
            changed("st=drain", "st=cancel") + " n=+1",
            changed("hung", "nonsense"),
            changed("sig=hung", "hung"),
            changed("2026-11-29T13:25:38Z", "fan3-dead,ticket-4711,ada"),
            changed("38Z", "38+00:00"),
            changed("38Z", "38.5Z"),
            changed("since=", "since: "),
            changed(" st", "  st"),
            format!("{KEPT} by ada"),
            format!("{KEPT} "),
            format!(" {KEPT}"),
            changed("gpu-reaper:", "gpu-reaper-hc:"),
        ] {
            assert_eq!(read(&text), None, "{text:?}");
        }
    }
}

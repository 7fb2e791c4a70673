//! The words we write into Slurm, and how they are read back: one line of printable ASCII, ids only, no figure that
//! changes by itself and no user text, so that ownership is a comparison byte for byte and nobody's parser breaks on it.

use super::fault::Kind;
use super::signature::Signature;
use crate::model::{Deed, JobId, JobRun, Now, Who};
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

/// Where a fault is, as its Reason says it: a PCI address or `node`, and of a process that outlived its job what an
/// administrator needs (PE-10): `0000:9b:00.0 job=4242 pid=900 uid=1001 comm=python`. No text that a user chose freely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Where(String);

impl Where {
    /// A place and nothing more.
    pub fn at(place: &str) -> Where {
        Where(tame(place))
    }

    /// Where a process outlived its job.
    pub fn left(place: &str, job: JobId, pid: u32, who: &Who) -> Where {
        let uid = who.uid.measured().map_or("_".to_owned(), u32::to_string);
        let comm = who.comm.measured().map_or("", String::as_str);
        Where(format!("{} job={job} pid={pid} uid={uid} comm={}", tame(place), tame(comm)))
    }

    /// Reads what was written down; `None` for anything else.
    pub fn read(text: &str) -> Option<Where> {
        let words: Vec<&str> = text.split(' ').collect();
        let keys: &[&str] = match words.len() {
            1 => &[""],
            5 => &["", "job=", "pid=", "uid=", "comm="],
            _ => return None,
        };
        let is_its =
            |(word, key): (&&str, &&str)| word.strip_prefix(key).is_some_and(|value| tame(value) == value);
        words.iter().zip(keys).all(is_its).then(|| Where(text.to_owned()))
    }

    /// As it is written down.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// `gpu-reaper: fault=gpu-lost at=0000:9b:00.0 since=2026-11-29T13:25:38Z`
pub fn fault(kind: Kind, place: &Where, since: WallMs) -> String {
    format!("{PREFIX}fault={} at={} since={}", kind.word(), place.0, since.rfc3339())
}

/// Letters, digits and a few marks; the rest is replaced, and so is nothing at all.
fn tame(text: &str) -> String {
    let keeps = |c: char| if c.is_ascii_alphanumeric() || "._:-".contains(c) { c } else { '_' };
    let tame: String = text.chars().take(MOST_TAME).map(keeps).collect();
    if tame.is_empty() { "_".to_owned() } else { tame }
}

/// A name or place in a Reason is no longer.
const MOST_TAME: usize = 48;

/// Reads a reason of a drain for a fault; `None` for anything that [`fault`] could not have written.
pub fn read_fault(reason: &str) -> Option<Kind> {
    let rest = reason.strip_prefix(PREFIX)?.strip_prefix("fault=")?;
    let (kind, rest) = rest.split_once(" at=")?;
    let (place, since) = rest.rsplit_once(" since=")?;
    let (kind, place, since) = (Kind::from_word(kind)?, Where::read(place)?, WallMs::parse(since)?);
    (fault(kind, &place, since) == reason).then_some(kind)
}

/// Whether a reason is one that this version writes, for a job run or for a fault.
pub fn is_ours(reason: &str) -> bool {
    read(reason).is_some() || read_fault(reason).is_some()
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
    use crate::reading::Reading;

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
    fn a_reason_for_a_fault_reads_back_and_holds_no_text_that_breaks_a_tool() {
        // jade-hpc-gpu#73 (PE-01): pid, uid, GPU and command; aws/aws-parallelcluster-node#639 (ND-10): one line.
        let left = |comm: &str| {
            let who = Who { uid: Reading::Measured(1001), comm: Reading::Measured(comm.to_owned()) };
            Where::left("0000:9b:00.0", JobId::FIRST, 900, &who)
        };
        assert_eq!(
            fault(Kind::Leak, &left("python"), SINCE),
            "gpu-reaper: fault=leak at=0000:9b:00.0 job=1 pid=900 uid=1001 comm=python since=2025-11-29T13:25:38Z"
        );
        for comm in ["python", "", "a b=c\n\"x", "since=2025", "\u{fc}ber", "aaaaaaaaaaaaaaaa"] {
            let (place, text) = (left(comm), fault(Kind::Leak, &left(comm), SINCE));
            assert_eq!(
                (read_fault(&text), Where::read(place.as_str())),
                (Some(Kind::Leak), Some(place)),
                "{text}"
            );
            assert!(text.len() < 150 && text.bytes().all(|b| (b' '..=b'~').contains(&b)));
        }
        for kind in Kind::ALL {
            let text = fault(*kind, &Where::at("node"), SINCE);
            assert!(read_fault(&text) == Some(*kind) && read(&text).is_none() && is_ours(&text), "{text}");
            for other in
                [format!("{text} by ada"), text.replace("fault=", "fault=x"), text.replace(" at=", " on=")]
            {
                assert_eq!(read_fault(&other), None, "{other}");
            }
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

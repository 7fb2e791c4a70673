//! The few things we do to Slurm: set and lift DRAIN on this node, cancel a job, write its AdminComment;
//! and two looks that only scontrol offers. No other node state is ever written: all others end jobs or
//! undo what somebody else did. Who may call these is decided elsewhere, by warrant.

use super::cgroup::is_sluid;
use super::command::Program;
use super::version::Version;
use super::{Answer, NoAnswer, Slurm, Target, misread};
use crate::policy::keep;
use std::ffi::OsStr;

/// The cluster-wide brake: a reservation of this name stops every node's actions.
const BRAKE: &str = "gpu-reaper-stop";
/// What a job can be warned with. Not KILL, and not STOP: a stopped job is neither warned nor ended.
const SIGNALS: [&str; 8] = ["USR1", "USR2", "TERM", "INT", "HUP", "QUIT", "ALRM", "URG"];

impl Slurm {
    /// Takes this node out of service for new jobs. A Reason that is there already is replaced by slurmctld
    /// without a word: look first. The text arrives byte for byte (no quotes, no shell).
    pub fn drain(&self, reason: &str) -> Answer<()> {
        let reason = reason_text(reason)?;
        let (node, reason) = (format!("NodeName={}", self.node), format!("Reason={reason}"));
        self.change(Program::Scontrol, &["update", &node, "State=DRAIN", &reason])
    }

    /// Replaces the Reason and leaves the state alone: a node that somebody resumed meanwhile is not drained by it
    /// (measured on 22.05.8, 24.11.5 and 26.05.5).
    pub fn set_reason(&self, reason: &str) -> Answer<()> {
        let reason = reason_text(reason)?;
        let (node, reason) = (format!("NodeName={}", self.node), format!("Reason={reason}"));
        self.change(Program::Scontrol, &["update", &node, &reason])
    }

    /// Lifts DRAIN and nothing else; the Reason goes with it. The node does not respond for some seconds
    /// after (measured on 22.05.8). Whose drain it is must be known before.
    pub fn undrain(&self) -> Answer<()> {
        let node = format!("NodeName={}", self.node);
        self.change(Program::Scontrol, &["update", &node, "State=UNDRAIN"])
    }

    /// Cancels one job, by the id that people know it by: an array's leader id would end the whole array.
    /// Only while it is RUNNING: a requeued one that waits is left alone. `Ok` proves nothing: scancel ends well
    /// for a job that it does not know (measured).
    pub fn cancel(&self, target: &Target) -> Answer<()> {
        self.scancel(target, &[])
    }

    /// Puts a batch job back into the queue. Until 26.05, which takes the run's SLUID, a run that began since the
    /// last look is not told from this one.
    pub fn requeue(&self, target: &Target) -> Answer<()> {
        let (id, _) = self.bound(Program::Scontrol, target)?;
        self.change(Program::Scontrol, &["requeue", id])
    }

    /// Signals a job's steps and its batch script: `--full` alone reaches both (measured).
    pub fn signal(&self, target: &Target, signal: &str) -> Answer<()> {
        if !SIGNALS.contains(&signal) {
            let why =
                format!("`{}` is no signal that is sent ({})", signal.escape_debug(), SIGNALS.join(", "));
            return Err(NoAnswer::Unavailable { program: Program::Scancel.name(), why });
        }
        self.scancel(target, &["--full", &format!("--signal={signal}")])
    }

    /// To this run alone, as far as this Slurm compares. State, node and user must fit: until 23.11 scancel looks
    /// itself, just before; from then on slurmctld does, under its lock, and finds nothing to do for a job that was
    /// requeued elsewhere; from 26.05 on the SLUID names the run itself (all measured).
    fn scancel(&self, target: &Target, what: &[&str]) -> Answer<()> {
        let (id, version) = self.bound(Program::Scancel, target)?;
        let mut args = vec!["--state=RUNNING".to_owned(), format!("--nodelist={}", target.node)];
        args.extend(target.user.measured().map(|user| format!("--user={user}")));
        if version.filters_at_slurmctld() {
            args.push("--ctld".to_owned());
        }
        args.extend(what.iter().map(|&arg| arg.to_owned()));
        args.push(id.to_owned());
        self.change(Program::Scancel, &args)
    }

    /// Its SLUID where commands take one, else its id as people know it; and the version, which says what else binds a
    /// deed to the run. Where that is not known nothing is done.
    fn bound<'a>(&self, program: Program, target: &'a Target) -> Answer<(&'a str, Version)> {
        let id = exact_id(program, &target.display_id)?;
        let version = self.version().map_err(|silence| NoAnswer::Unavailable {
            program: program.name(),
            why: format!("which Slurm this is could not be told: {silence}"),
        })?;
        let sluid = target.sluid.measured().filter(|sluid| version.takes_sluids() && is_sluid(sluid));
        Ok((sluid.map_or(id, String::as_str), version))
    }

    /// Writes the job's AdminComment, replacing one that is there.
    pub fn set_admin_comment(&self, display_id: &str, text: &str) -> Answer<()> {
        let id = format!("JobId={}", exact_id(Program::Scontrol, display_id)?);
        let comment = format!("AdminComment={}", comment_text(text)?);
        self.change(Program::Scontrol, &["update", &id, &comment])
    }

    /// Writes one line into the job's own output (scontrol(1) notify): of printable ASCII alone, as a Reason is.
    pub fn notify(&self, display_id: &str, text: &str) -> Answer<()> {
        let (id, text) = (exact_id(Program::Scontrol, display_id)?, reason_text(text)?);
        self.change(Program::Scontrol, &["notify", id, text])
    }

    /// Whether somebody has pulled the brake. Only a plain "not found" is a no.
    pub fn brake(&self) -> Answer<bool> {
        let answer = self.commands.run(Program::Scontrol, &["--local", "-o", "show", "res", BRAKE]);
        match answer {
            Ok(text) if text.starts_with(&format!("ReservationName={BRAKE} ")) => Ok(true),
            Ok(text) => Err(misread(Program::Scontrol, format!("reservation: `{text}`"))),
            Err(NoAnswer::Refused { text, .. }) if text == format!("Reservation {BRAKE} not found") => {
                Ok(false)
            }
            Err(silence) => Err(silence),
        }
    }

    fn change<A: AsRef<OsStr>>(&self, program: Program, args: &[A]) -> Answer<()> {
        self.commands.run(program, args).map(drop).map_err(|silence| self.known_node(silence))
    }
}

/// A Reason: one line of printable ASCII that comes back as it was written. Other tools read it line by line and key by
/// key, and slurmdbd keeps 255 bytes of it in the node's event.
fn reason_text(text: &str) -> Answer<&str> {
    const MOST_BYTES: usize = 200;
    let ascii = text.bytes().all(|b| (b' '..=b'~').contains(&b));
    if !text.is_empty() && text.len() <= MOST_BYTES && ascii && keep::comes_back(text) {
        return Ok(text);
    }
    Err(not_passed_on("a Reason", MOST_BYTES, "printable ASCII"))
}

/// An AdminComment: others' words in it are written back as they stand.
fn comment_text(text: &str) -> Answer<&str> {
    if !text.is_empty() && text.len() <= keep::MOST_BYTES && keep::comes_back(text) {
        return Ok(text);
    }
    Err(not_passed_on("an AdminComment", keep::MOST_BYTES, "printable text"))
}

fn not_passed_on(what: &str, most: usize, of: &str) -> NoAnswer {
    let why =
        format!("{what} is 1 to {most} bytes of {of} on one line, without quotes or blanks at its ends");
    NoAnswer::Unavailable { program: Program::Scontrol.name(), why }
}

/// `130`, `123_4` or `200+1`: one job, never a range of tasks.
pub(super) fn is_exact_id(id: &str) -> bool {
    let number = |t: &str| !t.is_empty() && t.len() <= 10 && t.bytes().all(|b| b.is_ascii_digit());
    match id.split_once(['_', '+']) {
        Some((job, part)) => number(job) && number(part),
        None => number(id),
    }
}

pub(super) fn exact_id(program: Program, id: &str) -> Answer<&str> {
    if is_exact_id(id) {
        return Ok(id);
    }
    let why = format!("`{}` is no id of one job (130, 123_4 or 200+1)", id.escape_debug());
    Err(NoAnswer::Unavailable { program: program.name(), why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_plain_line_that_comes_back_as_written() {
        // nebius/soperator#2954 (ND-06), aws/aws-parallelcluster-node#639 (ND-10).
        let ours = "gpu-reaper: job=4242 run=1764422738.0 sig=hung st=drain since=2026-11-29T13:25:38Z";
        assert_eq!(reason_text(ours), Ok(ours));
        let long = "x".repeat(201);
        for bad in ["", " ", "a\nb", "a\tb", "caf\u{e9}", "\"a\"", "a\"", "a ", " a", "\x1b[0m", &long] {
            assert!(reason_text(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_admin_comment_holds_others_words_in_their_language() {
        let long = "x".repeat(1024);
        for good in [&long, "f\u{fc}r Ada's \u{8ad6}\u{6587}"] {
            assert_eq!(comment_text(good), Ok(good));
        }
        for bad in
            ["", " ", "a\nb", "a\tb", "\"a\"", "a'", " a", "\x1b[0m", "a\u{fffd}b", &format!("{long}x")]
        {
            assert!(comment_text(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_one_job_can_be_named() {
        for good in ["130", "123_4", "200+1"] {
            assert!(exact_id(Program::Scancel, good).is_ok());
        }
        for bad in
            ["", "-u root", "--ctld", "123_[1-3]", "1,2", "1_", "_1", "1.0", "1_2_3", "1 2", "12345678901"]
        {
            assert!(exact_id(Program::Scancel, bad).is_err(), "{bad:?}");
        }
    }
}

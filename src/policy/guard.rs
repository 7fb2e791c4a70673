//! The guards by their fixed names, what each saw and what it compared with. A guard that holds keeps a job
//! from being judged or a step from being taken.

use super::{Exemptions, keep};
use crate::model::{JobRun, JobState, NearDeed, Now};
use crate::reading::{Absence, Reading};
use crate::units::human_ms;
use regex_lite::Regex;
use serde::Serialize;

macro_rules! guards {
    ($($(#[$doc:meta])* $name:ident = $word:literal;)*) => {
        /// A guard; the word is fixed: scenarios, README, JSON and journal use it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Guard { $($(#[$doc])* $name,)* }

        impl Guard {
            /// Every guard, in README's order.
            pub const ALL: &'static [Guard] = &[$(Guard::$name,)*];

            /// Its fixed name.
            pub fn word(self) -> &'static str { match self { $(Guard::$name => $word,)* } }
        }
    };
}

guards! {
    /// `mode: observe` never drains or cancels.
    Observe = "observe";
    /// Young jobs are never judged; a job never active yet is only alerted on for longer.
    Warmup = "warmup";
    /// A breach holds for the whole certified window.
    Window = "window";
    /// Judged on the highest utilization seen.
    Peak = "peak";
    /// A slow cadence without gap-free evidence is not judged.
    Sparse = "sparse";
    /// An interval whose mean power lies well above the floor was work.
    Energy = "energy";
    /// A hole is a collector fault, not idleness.
    Gap = "gap";
    /// Suspended, frozen, completing, configuring: not judged.
    JobState = "job-state";
    /// Wasteful only if all its units are.
    WholeJob = "whole-job";
    /// A unit of uncertain owner is not judged.
    Attribution = "attribution";
    /// A GPU with a fault of its own cannot be told from an idle one.
    Fault = "fault";
    /// A CPU phase caps at alert.
    HostActivity = "host-activity";
    /// The most a signature may ask for.
    SignatureCap = "signature-cap";
    /// Cancel only after an earlier alert and an earlier drain.
    CancelHistory = "cancel-history";
    /// Who the configuration leaves alone.
    Exemption = "exemption";
}

impl Serialize for Guard {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.word())
    }
}

/// What one guard saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GuardReport {
    /// Which guard.
    pub name: Guard,
    /// What it saw, in words with units.
    pub saw: String,
    /// What it compared with.
    pub limit: String,
    /// Whether it keeps the job from being judged or acted on.
    pub held: bool,
}

impl GuardReport {
    /// A line of the table.
    pub fn new(name: Guard, saw: impl Into<String>, limit: impl Into<String>, held: bool) -> GuardReport {
        GuardReport { name, saw: saw.into(), limit: limit.into(), held }
    }
}

/// What the exemptions say of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exempt {
    /// It matches, and the bounds hold: this is why.
    Yes(String),
    /// It matches nothing, or a bound does not hold.
    No(String),
    /// A configured exemption needs something that is not known.
    CannotSay(String),
}

/// One exemption that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looked {
    /// What was seen, printable.
    pub saw: String,
    /// What it was compared with.
    pub limit: String,
    /// What follows.
    pub says: Exempt,
}

impl Looked {
    fn new(saw: impl Into<String>, limit: &str, says: Exempt) -> Looked {
        Looked { saw: saw.into(), limit: limit.to_owned(), says }
    }

    /// As a line of the table. `near`: whether a deed is near, which what is not known would stop.
    pub fn report(self, near: bool) -> GuardReport {
        let (saw, held) = match self.says {
            Exempt::Yes(_) => (self.saw, true),
            Exempt::CannotSay(why) => (why, near),
            Exempt::No(why) if why.is_empty() => (self.saw, false),
            Exempt::No(why) => (why, false),
        };
        GuardReport::new(Guard::Exemption, saw, self.limit, held)
    }
}

/// Whether this job run is left alone, before a deed: by the configuration, or by what people wrote at Slurm.
/// `job.details` is Slurm's answer of this moment, [`crate::model::NearDeed`] and all: what it lacks is not known,
/// and what is not known is a doubt. `gpus`: its units on this node.
pub fn exempt_before_deed(rules: &Exemptions, job: &JobRun, gpus: u32, now: &Now) -> Exempt {
    let age_ms = now.boot.since_ms(job.registration.start.boot);
    let not_asked = NearDeed::absent(Absence::NotAsked);
    let near = job.details.as_ref().map_or(&not_asked, |d| &d.near);
    let mut looked = configured(rules, job, gpus, age_ms);
    looked.extend(written(rules, near, gpus, age_ms, now));
    decide(&looked)
}

/// One that holds is enough; else one that is not known is a doubt.
pub fn decide(looked: &[Looked]) -> Exempt {
    let rank = |says: &&Exempt| match says {
        Exempt::Yes(_) => 0,
        Exempt::CannotSay(_) => 1,
        Exempt::No(why) if !why.is_empty() => 2,
        Exempt::No(_) => 3,
    };
    match looked.iter().map(|one| &one.says).min_by_key(rank) {
        Some(says) if rank(&says) < 3 => says.clone(),
        _ => Exempt::No("matches no exemption".to_owned()),
    }
}

/// The configured exemptions, each with what it says of this job run. `gpus`: its units on this node.
/// For judging there are no others: what may be written and taken back at any moment is asked before a deed, so that
/// no answer of an hour ago spares a job or fails to.
pub fn configured(rules: &Exemptions, job: &JobRun, gpus: u32, age_ms: i64) -> Vec<Looked> {
    let (r, d) = (&job.registration, job.details.as_ref());
    let not_asked = Reading::Absent(Absence::NotAsked);
    let name = d.map_or(&not_asked, |d| &d.name);
    let lists = [
        one_of("user", "users", &rules.users, always(d.map(|d| &d.user), &r.user)),
        one_of("account", "accounts", &rules.accounts, known(d.map(|d| &d.account), &r.account)),
        one_of("partition", "partitions", &rules.partitions, always(d.map(|d| &d.partition), &r.partition)),
        one_of("QOS", "qos", &rules.qos, known(d.map(|d| &d.qos), &r.qos)),
        rules.name_pattern.as_ref().map(|pattern| by_name(pattern, name)),
    ];
    let looked = lists.into_iter().flatten().map(|looked| bounded(rules, looked, gpus, age_ms));
    let looked: Vec<Looked> = looked.collect();
    match looked.is_empty() {
        true => vec![Looked::new("nobody is exempt", "`exemptions`", Exempt::No(String::new()))],
        false => looked,
    }
}

/// What people wrote at Slurm, each with what it says now. An administrator's keep has its own end and no other
/// bound. A job's own comment is its user's, who may write a new one at any moment: its time counts from the job's
/// start, or it would have no end, and the bounds of the other exemptions hold for it too.
pub fn written(rules: &Exemptions, near: &NearDeed, gpus: u32, age_ms: i64, now: &Now) -> Vec<Looked> {
    let comment = rules.job_comment_ms.map(|most_ms| {
        let looked = by_comment(&near.comment, most_ms, age_ms);
        bounded(rules, looked, gpus, age_ms)
    });
    [Some(by_keep(&near.admin_comment, now)), comment].into_iter().flatten().collect()
}

/// An exemption by name; `None` where the configuration names nobody.
fn one_of(what: &str, key: &str, list: &[String], value: &Reading<String>) -> Option<Looked> {
    const SHOWN: usize = 5;
    let first = list.get(..SHOWN).unwrap_or(list).join(", ");
    let more = list.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let limit = format!("`exemptions.{key}`: {first}{more}");
    let looked = match value {
        Reading::Measured(value) => {
            let saw = format!("{what} `{}`", value.escape_debug());
            // slurmdbd keeps accounts and QOS in lower case; to spare one too many harms nobody.
            let says = match list.iter().any(|item| item.eq_ignore_ascii_case(value)) {
                true => Exempt::Yes(saw.clone()),
                false => Exempt::No(String::new()),
            };
            Looked::new(saw, &limit, says)
        }
        Reading::Absent(Absence::NoData) => {
            Looked::new(format!("no {what}"), &limit, Exempt::No(String::new()))
        }
        Reading::Absent(_) => unknown(what, &limit),
    };
    (!list.is_empty()).then_some(looked)
}

fn unknown(what: &str, limit: &str) -> Looked {
    let why = format!("its {what} is not known");
    Looked::new(why.clone(), limit, Exempt::CannotSay(why))
}

fn by_name(pattern: &Regex, name: &Reading<String>) -> Looked {
    let limit = format!("`exemptions.name_pattern`: {pattern}");
    let Reading::Measured(name) = name else {
        return unknown("name", &limit);
    };
    let says = match pattern.is_match(name) {
        true => Exempt::Yes("its name".to_owned()),
        false => Exempt::No(String::new()),
    };
    Looked::new(format!("name `{}`", name.escape_debug()), &limit, says)
}

/// The better-known of two readings: Slurm's answer where there is one, else the registration's.
fn known<'a>(told: Option<&'a Reading<String>>, registered: &'a Reading<String>) -> &'a Reading<String> {
    match told {
        Some(told @ (Reading::Measured(_) | Reading::Absent(Absence::NoData))) => told,
        _ => registered,
    }
}

/// The same of what every job has, so that "none" is no answer: squeue shows no name for a uid that this node cannot
/// look up.
fn always<'a>(told: Option<&'a Reading<String>>, registered: &'a Reading<String>) -> &'a Reading<String> {
    const NOT_KNOWN: &Reading<String> = &Reading::Absent(Absence::NotUnderstood);
    let answers = [told, Some(registered)].into_iter().flatten();
    answers.into_iter().find(|reading| reading.measured().is_some()).unwrap_or(NOT_KNOWN)
}

/// What an administrator wrote with `gpu-reaper-hc keep`.
fn by_keep(admin_comment: &Reading<String>, now: &Now) -> Looked {
    let limit = format!("a keep in its AdminComment, at {}", now.wall.rfc3339());
    let said = match admin_comment {
        Reading::Measured(text) => keep::admin(text),
        Reading::Absent(Absence::NoData) => keep::Said::default(),
        Reading::Absent(why) => {
            let why = format!("its AdminComment is not known: {}", why.words());
            return Looked::new(why.clone(), &limit, Exempt::CannotSay(why));
        }
    };
    match (said.keep, said.doubt) {
        (Some(keep), _) if now.wall < keep.until => {
            let saw = format!("a keep {}", keep.words());
            Looked::new(saw.clone(), &limit, Exempt::Yes(saw))
        }
        (_, Some(doubt)) => {
            let why = format!("its AdminComment says `{}`, which is no keep", doubt.escape_debug());
            Looked::new(why.clone(), &limit, Exempt::CannotSay(why))
        }
        (Some(keep), None) => {
            let saw = format!("a keep that has ended, {}", keep.words());
            Looked::new(saw, &limit, Exempt::No(String::new()))
        }
        (None, None) => Looked::new("no keep", &limit, Exempt::No(String::new())),
    }
}

/// What the job's user wrote, with the site's leave.
fn by_comment(comment: &Reading<String>, most_ms: i64, age_ms: i64) -> Looked {
    let limit = format!("`exemptions.job_comment`: {} from its start", human_ms(most_ms));
    let no = |saw: &str| Looked::new(saw, &limit, Exempt::No(String::new()));
    let asked = match comment {
        Reading::Measured(text) => keep::comment(text),
        Reading::Absent(Absence::NoData) => None,
        Reading::Absent(_) if age_ms >= most_ms => return no("its comment cannot hold any longer"),
        Reading::Absent(_) => return unknown("comment", &limit),
    };
    match asked {
        None => no("its comment asks for nothing"),
        Some(Err(word)) => {
            no(&format!("its comment says `{}`, which names no duration", word.escape_debug()))
        }
        Some(Ok(asked_ms)) => {
            let holds_ms = asked_ms.min(most_ms);
            let (word, until) = (keep::comment_word(asked_ms), human_ms(holds_ms));
            if age_ms >= holds_ms {
                return no(&format!("its comment `{word}` held until it was {until} old"));
            }
            let saw = format!("its comment `{word}`, until it is {until} old");
            Looked::new(saw.clone(), &limit, Exempt::Yes(saw))
        }
    }
}

/// An exemption holds only within its bounds: a name is user-chosen and can be used to hide. What is not known of one
/// that could not hold anyway is no doubt.
fn bounded(rules: &Exemptions, looked: Looked, gpus: u32, age_ms: i64) -> Looked {
    let broken = match (rules.max_gpus, rules.max_age_ms) {
        (Some(most), _) if gpus > most => format!("only up to {most} GPUs; it holds {gpus}"),
        (_, Some(most)) if age_ms > most => {
            format!("only for {}; it runs for {}", human_ms(most), human_ms(age_ms))
        }
        _ => return looked,
    };
    let says = match &looked.says {
        Exempt::Yes(why) => Exempt::No(format!("{why} is exempt, but {broken}")),
        Exempt::CannotSay(why) => Exempt::No(format!("{why}, and exemptions hold {broken}")),
        Exempt::No(why) => Exempt::No(why.clone()),
    };
    Looked { says, ..looked }
}

/// What Slurm's last word on the job's state says about judging it.
pub fn state_forbids(state: JobState) -> Option<String> {
    (state != JobState::Running).then(|| format!("Slurm says it is {}", state.word()))
}

//! The guards by their fixed names, what each saw and what it compared with. A guard that holds keeps a job
//! from being judged or a step from being taken.

use super::Exemptions;
use crate::model::{JobRun, JobState};
use crate::reading::{Absence, Reading};
use crate::units::human_ms;
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

fn one_of(list: &[String], value: &Reading<String>, what: &str) -> Exempt {
    match value {
        _ if list.is_empty() => Exempt::No(String::new()),
        Reading::Measured(value) if list.contains(value) => Exempt::Yes(format!("{what} `{value}`")),
        Reading::Measured(_) | Reading::Absent(Absence::NoData) => Exempt::No(String::new()),
        Reading::Absent(_) => Exempt::CannotSay(format!("its {what} is not known")),
    }
}

/// The better-known of two readings: Slurm's answer where there is one, else the registration's.
fn known<'a>(told: Option<&'a Reading<String>>, registered: &'a Reading<String>) -> &'a Reading<String> {
    match told {
        Some(told @ (Reading::Measured(_) | Reading::Absent(Absence::NoData))) => told,
        _ => registered,
    }
}

/// Whether the configuration leaves this job run alone. `gpus`: its units on this node.
pub fn exempt(rules: &Exemptions, job: &JobRun, gpus: u32, age_ms: i64) -> Exempt {
    let (r, d) = (&job.registration, job.details.as_ref());
    let not_asked = Reading::Absent(Absence::NotAsked);
    let name = known(d.map(|d| &d.name), &not_asked);
    let by_name = match (&rules.name_pattern, name) {
        (None, _) => Exempt::No(String::new()),
        (Some(pattern), Reading::Measured(name)) if pattern.is_match(name) => {
            Exempt::Yes("its name".to_owned())
        }
        (Some(_), Reading::Measured(_)) => Exempt::No(String::new()),
        (Some(_), Reading::Absent(_)) => Exempt::CannotSay("its name is not known".to_owned()),
    };
    let all = [
        one_of(&rules.users, known(d.map(|d| &d.user), &r.user), "user"),
        one_of(&rules.accounts, known(d.map(|d| &d.account), &r.account), "account"),
        one_of(&rules.partitions, known(d.map(|d| &d.partition), &r.partition), "partition"),
        one_of(&rules.qos, known(d.map(|d| &d.qos), &r.qos), "QOS"),
        by_name,
    ];
    let mut cannot_say = None;
    for one in all {
        match one {
            Exempt::Yes(why) => return bounded(rules, why, gpus, age_ms),
            Exempt::CannotSay(why) => cannot_say = Some(why),
            Exempt::No(_) => {}
        }
    }
    match cannot_say {
        Some(why) => Exempt::CannotSay(why),
        None => Exempt::No("matches no exemption".to_owned()),
    }
}

/// An exemption holds only within its bounds: a name is user-chosen and can be used to hide.
fn bounded(rules: &Exemptions, why: String, gpus: u32, age_ms: i64) -> Exempt {
    match (rules.max_gpus, rules.max_age_ms) {
        (Some(most), _) if gpus > most => {
            Exempt::No(format!("{why} is exempt, but only up to {most} GPUs; it holds {gpus}"))
        }
        (_, Some(most)) if age_ms > most => Exempt::No(format!(
            "{why} is exempt, but only for {}; it runs for {}",
            human_ms(most),
            human_ms(age_ms)
        )),
        _ => Exempt::Yes(why),
    }
}

/// What Slurm's last word on the job's state says about judging it.
pub fn state_forbids(state: JobState) -> Option<String> {
    (state != JobState::Running).then(|| format!("Slurm says it is {}", state.word()))
}

//! What was found: a certified breach, with the facts for people.

use crate::model::{Now, RunId, UnitRef, Verdict};
use crate::policy::guard::Guard;
use crate::policy::signature::Signature;
use crate::policy::window::Evidence;
use crate::units::{BootMs, GpuHours, WallMs, human_ms};

/// Which of the job's units a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every unit of the job on this node.
    Whole,
    /// Some idle units among busy ones: alert only.
    Part,
}

impl Scope {
    /// The word in JSON and the ledger.
    pub fn word(self) -> &'static str {
        match self {
            Scope::Whole => "whole",
            Scope::Part => "part",
        }
    }
}

/// A certified breach. Only [`crate::policy::judge()`] makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The look.
    pub signature: Signature,
    /// Whole job or part of it.
    pub scope: Scope,
    /// The units it is about.
    pub units: Vec<UnitRef>,
    /// First sample of the breach.
    pub since: BootMs,
    /// The same, for showing.
    pub since_wall: WallMs,
    /// The run of that sample.
    pub since_run: RunId,
    /// Certified time since it was established; the `after` of an alert counts against it.
    pub established_for_ms: i64,
    /// Of that, the time since it last could ask for an alert only; the `after` of a drain and of a cancel counts
    /// against it: hours in which a guard held are no hours of certainty.
    pub acting_for_ms: i64,
    /// The most it may ask for.
    pub cap: Verdict,
    /// The guard that set the cap, where it lies below what stages may ask.
    pub capped_by: Option<(Guard, String)>,
    /// What was seen of its units in particular, in words; may be empty.
    pub particulars: String,
    /// Certified breaching time, summed over its units: in a part each has its own.
    pub(super) spent_ms: i64,
    pub(super) evidence: Evidence,
}

impl Finding {
    /// What it rests on.
    pub fn evidence(&self) -> &Evidence {
        &self.evidence
    }

    /// Units times certified breaching time; none for work that is slowed.
    pub fn wasted(&self) -> GpuHours {
        match self.signature {
            // Slow work is work.
            Signature::Throttled => GpuHours::of(0, 0),
            _ => GpuHours::of(1, self.spent_ms),
        }
    }

    /// "hung on GPU 0,1 (whole): no compute for 1 h 12 m, ...".
    pub fn facts(&self) -> String {
        let cost = match self.signature {
            Signature::Throttled => "the node's trouble, not the job's".to_owned(),
            _ => format!("{:.1} GPU-hours", self.wasted().hours()),
        };
        let (gpus, scope) = (self.gpus_words(), self.scope.word());
        format!("{} on {gpus} ({scope}): {}; {cost}", self.signature, self.seen())
    }

    /// What was seen and for how long, no verdict, and not more than was seen.
    pub fn seen(&self) -> String {
        let look = match self.signature {
            Signature::Throttled => "at work, slowed by hardware or heat below half its clock",
            Signature::Spinning => {
                "kernels resident at full utilization, no memory traffic, power as at rest"
            }
            Signature::Hung => "processes resident or memory held, no compute",
            Signature::Idle => "no process, memory empty, no compute",
            Signature::Starved => "little compute and never busy",
            Signature::Unknown => "no plain work seen, and no plain waste",
        };
        let quiet = human_ms(self.evidence.certified_ms());
        let particulars =
            if self.particulars.is_empty() { String::new() } else { format!(" ({})", self.particulars) };
        format!("{look} for {quiet}{particulars}")
    }

    /// Its units by their index of now.
    pub fn gpus_words(&self) -> String {
        let list: Vec<String> = self.units.iter().map(|u| u.index.to_string()).collect();
        format!("GPU {}", list.join(","))
    }

    /// When it was established, on the wall clock: its first sample plus a window of certified time. `newest`: the sample
    /// up to which it was judged, whenever that is asked.
    pub fn established_wall(&self, newest: BootMs, now: &Now) -> WallMs {
        WallMs(now.wall_of(newest).0.saturating_sub(self.established_for_ms))
    }
}

//! What must have come of the node's faults at the end of a story, and how that is looked up: in the ledger, and at the
//! node as Slurm shows it.

use super::Verdict;
use super::file::{Ago, Scenario};
use super::stage::Stage;
use crate::ledger::{FaultDrain, FaultRow};
use crate::model::Outcome;
use crate::policy::fault::Kind;
use crate::policy::reason::PREFIX;
use serde::{Deserialize, Deserializer, de::Error};

/// What must have come of one fault.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// Its kind.
    #[serde(deserialize_with = "kind")]
    pub kind: Kind,
    /// Whole words of what it says, where several are of its kind: `GPU 1`.
    #[serde(default)]
    pub about: String,
    /// What became of it: of several episodes the newest counts.
    pub state: State,
    /// Whether the node is drained for it now, with its Reason; absent: either.
    #[serde(default)]
    pub drained: Option<bool>,
    /// How many drains were made for it; absent: any.
    #[serde(default)]
    pub drains: Option<usize>,
    /// Why a drain for it was withheld last, in part.
    #[serde(default)]
    pub withheld: Option<String>,
    /// Parts of its words.
    #[serde(default)]
    pub says: Vec<String>,
}

/// What became of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Told and not over.
    Open,
    /// Told and over.
    Over,
    /// Told, not over, and a person has taken it on.
    Acked,
    /// Never told.
    None,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            State::Open => "open",
            State::Over => "over",
            State::Acked => "acked",
            State::None => "none",
        }
    }
}

/// A person takes a fault on.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Acknowledged {
    /// When.
    pub at: Ago,
    /// Its kind.
    #[serde(deserialize_with = "kind")]
    pub kind: Kind,
}

fn kind<'de, D: Deserializer<'de>>(d: D) -> Result<Kind, D::Error> {
    let word = String::deserialize(d)?;
    Kind::from_word(&word).ok_or_else(|| D::Error::custom(format!("`{word}` is no kind of fault")))
}

/// What a stage knows of faults at the end of its story.
pub struct Known {
    /// Every episode that was told, oldest first; and whether it is over.
    pub episodes: Vec<(FaultRow, bool)>,
    /// Every drain that was made for one.
    pub drains: Vec<FaultDrain>,
    /// The node's state, as Slurm shows it.
    pub node_state: String,
    /// Its Reason.
    pub node_reason: String,
}

/// What became of one fault.
struct Found {
    state: State,
    words: String,
    withheld: Option<String>,
    drains: usize,
    drained: bool,
}

impl Known {
    fn find(&self, expect: &Expect) -> Found {
        let words = |row: &FaultRow| format!("{} ", row.detail).contains(&format!("{} ", expect.about));
        let is_meant =
            |row: &FaultRow| row.kind == expect.kind.word() && (expect.about.is_empty() || words(row));
        let meant = || self.episodes.iter().filter(|(row, _)| is_meant(row));
        let drains = || self.drains.iter().filter(|drain| meant().any(|(row, _)| row.id == drain.fault));
        let begins = format!("{PREFIX}fault={} at=", expect.kind.word());
        let shown = self.node_state.contains("drain") && self.node_reason.starts_with(&begins);
        let newest = meant().next_back();
        let row = newest.map(|(row, _)| row);
        Found {
            state: match newest {
                None => State::None,
                Some((_, true)) => State::Over,
                Some((row, false)) if row.acked_by.is_some() => State::Acked,
                Some((_, false)) => State::Open,
            },
            words: row.map_or(String::new(), |row| row.detail.clone()),
            withheld: row.and_then(|row| row.withheld.clone()),
            drains: drains().count(),
            drained: shown && drains().any(|it| it.outcome == Outcome::Done && it.reason == self.node_reason),
        }
    }
}

fn differences(found: &Found, expect: &Expect, known: &Known) -> Vec<String> {
    let mut differs = Vec::new();
    if found.state != expect.state {
        differs.push(format!("state is {}, expected {}", found.state.word(), expect.state.word()));
    }
    if let Some(wanted) = expect.drained.filter(|wanted| *wanted != found.drained) {
        let node = format!("the node is {} ({})", known.node_state, known.node_reason);
        differs.push(format!("drained is {}, expected {wanted}: {node}", found.drained));
    }
    if let Some(wanted) = expect.drains.filter(|wanted| *wanted != found.drains) {
        differs.push(format!("{} drains were made, expected {wanted}", found.drains));
    }
    let because = found.withheld.as_deref();
    if let Some(wanted) = expect.withheld.as_deref()
        && !because.is_some_and(|because| because.contains(wanted))
    {
        differs.push(format!("drain was not withheld because of `{wanted}`: {because:?}"));
    }
    for says in expect.says.iter().filter(|says| !found.words.contains(says.as_str())) {
        differs.push(format!("its words do not say `{says}`: {}", found.words));
    }
    differs
}

/// What came of one expectation.
pub fn verdict(name: &str, scenario: &Scenario, stage: &Stage, expect: &Expect) -> Result<Verdict, String> {
    let known = stage.faults()?;
    let found = known.find(expect);
    let differs = differences(&found, expect, &known);
    Ok(Verdict {
        scenario: name.to_owned(),
        about: scenario.about.clone(),
        job: None,
        fault: Some(format!("{} {}", expect.kind.word(), expect.about).trim_end().to_owned()),
        judgement: found.state.word().to_owned(),
        signature: None,
        guard: None,
        done: if found.drained { vec!["drain".to_owned()] } else { Vec::new() },
        withheld: found.withheld.map(|because| ("drain".to_owned(), because)).into_iter().collect(),
        differs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::{play, table};
    use crate::screen::Screen;

    /// A story of a card that is lost for its last ten minutes.
    fn story(more: &str) -> String {
        let lost = "- { from: -9m, to: 0, gpus: [1], lost: true }";
        let samples = format!("samples:\n- {{ from: -20m, to: 0, every: 1m }}\n{lost}");
        format!("about: x\nnode: {{ gpus: 2 }}\njobs: []\nexpect: []\n{samples}\n{more}\n")
    }

    #[test]
    fn a_row_shows_the_fault_and_where_it_is_not_as_expected() {
        let wrong = "faults:
- { kind: gpu-lost, about: GPU 1, state: open, drained: false, drains: 0, says: [it is lost] }
- { kind: gpu-lost, about: GPU 1 (index, state: none }
- { kind: gpu-lost, state: over, drained: true, drains: 1, withheld: observe, says: [NVLink] }
- { kind: ecc, state: acked }";
        let verdicts = play("a-lost-card", &story(wrong)).unwrap();
        let differs: Vec<usize> = verdicts.iter().map(|v| v.differs.len()).collect();
        assert_eq!(differs, [0, 0, 5, 1], "`index` is no whole word of it: {verdicts:?}");
        let shown = table(&verdicts, &Screen::UNBROKEN);
        assert!(shown.contains("NO  a-lost-card\n    gpu-lost GPU 1: open"), "{shown}");
        let end = "differs: state is none, expected acked\n\n1 scenarios, 1 not as they say: a-lost-card\n";
        assert!(shown.ends_with(end), "{shown}");
    }

    #[test]
    fn a_fault_is_taken_on_at_its_moment_and_one_that_is_not_there_fails_the_story() {
        let acked = |at: &str| {
            let taken = format!("acknowledged: [{{ at: {at}, kind: gpu-lost }}]");
            play("a-lost-card", &story(&format!("{taken}\nfaults: [{{ kind: gpu-lost, state: acked }}]")))
        };
        assert_eq!(acked("-5m").unwrap()[0].differs, [""; 0]);
        assert!(acked("-12m").unwrap_err().contains("no open fault is called"));
    }

    #[test]
    fn a_word_that_is_not_understood_fails_the_story() {
        for odd in [
            "faults: [{ kind: broken, state: open }]",
            "faults: [{ kind: ecc, state: closed }]",
            "faults: [{ kind: ecc }]",
            "faults: [{ kind: ecc, state: open, drain: true }]",
            "faults: [{ kind: ecc, state: open, drained: maybe }]",
            "acknowledged: [{ at: -5m, kind: broken }]",
            "acknowledged: [{ at: -5m, kind: ecc, by: ada }]",
        ] {
            assert!(Scenario::parse(&story(odd)).is_err(), "{odd}");
        }
    }
}

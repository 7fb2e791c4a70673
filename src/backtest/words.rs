//! A report for people and as JSON. It says what would have been asked for and when, never that it was done.

use super::player::{Asked, Found};
use super::{Report, Subject};
use crate::model::Verdict;
use crate::reading::Reading;
use crate::screen::ascii;
use crate::units::{BootMs, WallMs, human_ms};
use serde::Serialize;

#[derive(Serialize)]
#[serde(untagged)]
enum Head<'a> {
    File { file: &'a str },
    Job { job: &'a str, user: &'a Reading<String>, first: String },
}

#[derive(Serialize)]
struct Page<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    gpus: usize,
    seconds: i64,
    judged_seconds: i64,
    most_asked: &'static str,
    findings: Vec<FindingPage>,
    not_judged: Vec<NotJudged>,
}

#[derive(Serialize)]
struct FindingPage {
    signature: &'static str,
    scope: &'static str,
    since_s: i64,
    established_s: i64,
    last_s: i64,
    most_asked: &'static str,
    gpus: Vec<u32>,
}

#[derive(Serialize)]
struct NotJudged {
    why: &'static str,
    seconds: i64,
}

fn asked_word(most: Option<Verdict>) -> &'static str {
    most.map_or("none", Verdict::word)
}

impl Report {
    fn most(&self) -> Option<Verdict> {
        self.played.findings.iter().filter_map(|f| f.most).max()
    }

    /// An instant of the recording, in milliseconds from its first row.
    pub fn since_first_ms(&self, at: BootMs) -> i64 {
        at.since_ms(self.first)
    }

    /// One object on one line.
    pub fn json(&self) -> String {
        let page = Page {
            head: match &self.subject {
                Subject::File(file) => Head::File { file },
                Subject::Job { job, user, first } => Head::Job { job, user, first: first.rfc3339() },
            },
            gpus: self.gpus,
            seconds: self.recorded_ms / 1000,
            judged_seconds: self.played.judged_ms / 1000,
            most_asked: asked_word(self.most()),
            findings: self.played.findings.iter().map(|f| self.finding(f)).collect(),
            not_judged: self
                .played
                .not_judged_ms
                .iter()
                .map(|(guard, ms)| NotJudged { why: guard.word(), seconds: ms / 1000 })
                .collect(),
        };
        // Numbers and texts alone: there is nothing in it that cannot be written.
        serde_json::to_string(&page).map_or(String::new(), |line| ascii(&(line + "\n")))
    }

    fn finding(&self, f: &Found) -> FindingPage {
        let seconds = |at: BootMs| self.since_first_ms(at) / 1000;
        FindingPage {
            signature: f.signature.word(),
            scope: f.scope.word(),
            since_s: seconds(f.since),
            established_s: seconds(f.established),
            last_s: seconds(f.last),
            most_asked: asked_word(f.most),
            gpus: f.gpus.clone(),
        }
    }

    /// A short table: when, what and for which look, and one line of summary.
    pub fn text(&self) -> String {
        let (gpus, recorded) = (self.gpus, human_ms(self.recorded_ms));
        let mut out = format!("{}: {gpus} GPUs, {recorded} recorded\n", self.name());
        for asked in &self.played.asked {
            out += &self.row(asked);
        }
        let share = self.played.judged_ms.saturating_mul(100) / self.recorded_ms.max(1);
        out += &format!("  judged {} ({share} %)", human_ms(self.played.judged_ms));
        let lacking = self.played.not_judged_ms.iter().filter(|(_, ms)| **ms > 0);
        let lacking: Vec<String> =
            lacking.map(|(guard, ms)| format!("{} {}", guard.word(), human_ms(*ms))).collect();
        if !lacking.is_empty() {
            out += &format!("; not judged: {}", lacking.join(", "));
        }
        out += &format!("; most asked: {}\n", asked_word(self.most()));
        for (guard, because) in &self.played.because {
            out += &format!("  not judged ({}), for example: {because}\n", guard.word());
        }
        out
    }

    fn name(&self) -> String {
        match &self.subject {
            Subject::File(file) => file.escape_debug().to_string(),
            Subject::Job { job, user, .. } => {
                let user = user.measured().map_or("user not known", String::as_str);
                format!("job {} ({})", job.escape_debug(), user.escape_debug())
            }
        }
    }

    fn row(&self, asked: &Asked) -> String {
        let since_ms = self.since_first_ms(asked.at);
        let at = match &self.subject {
            Subject::File(_) => human_ms(since_ms),
            Subject::Job { first, .. } => WallMs(first.0 + since_ms).rfc3339(),
        };
        let (verdict, why) = match &asked.withheld {
            Some(why) => (format!("{} withheld", asked.verdict), format!(" (withheld: {why})")),
            None => (asked.verdict.to_string(), String::new()),
        };
        format!("  {at:<10} {verdict:<15} {}{why}\n", asked.facts)
    }
}

//! Every scenario's verdict side by side with the sentence that it proves, for people: in groups by what came of it, the
//! harmless first.

use super::Verdict;
use crate::screen::{Ink, Screen};

/// Columns of a verdict, and before it.
const VERDICT: usize = 26;
const MARK: usize = 4;

/// What came of a scenario, by the most that was done in it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Came {
    Nothing,
    NotJudged,
    Told,
    Acted,
    Fault,
}

impl Came {
    const ALL: [Came; 5] = [Came::Nothing, Came::NotJudged, Came::Told, Came::Acted, Came::Fault];

    fn heading(self) -> &'static str {
        match self {
            Came::Nothing => "Jobs left alone: they work, are young, or are exempt",
            Came::NotJudged => "Jobs not judged: the evidence does not suffice, so nothing is done",
            Came::Told => "Findings that are told, and no more",
            Came::Acted => "Nodes drained, drains lifted, jobs cancelled",
            Came::Fault => "Faults of the node itself",
        }
    }

    fn of(verdicts: &[Verdict]) -> Came {
        let any = |is: fn(&Verdict) -> bool| verdicts.iter().any(is);
        if any(|v| v.fault.is_some()) {
            Came::Fault
        } else if any(|v| v.done.iter().any(|deed| deed != "alert")) {
            Came::Acted
        } else if any(|v| v.judgement == "breaching" || !v.done.is_empty()) {
            Came::Told
        } else if any(|v| v.judgement == "unjudged") {
            Came::NotJudged
        } else {
            Came::Nothing
        }
    }
}

/// The table, with a line of numbers at its end. What differs from what a scenario expects stands beneath it.
pub fn table(verdicts: &[Verdict], screen: &Screen) -> String {
    let scenarios: Vec<&[Verdict]> = verdicts.chunk_by(|a, b| a.scenario == b.scenario).collect();
    let mut out = String::new();
    for came in Came::ALL {
        let group: Vec<_> = scenarios.iter().filter(|them| Came::of(them) == came).collect();
        if group.is_empty() {
            continue;
        }
        out += &screen.paragraph(Ink::Strong, "", &format!("{} ({})", came.heading(), group.len()));
        out += "\n";
        group.iter().for_each(|them| one(&mut out, them, screen));
    }
    let wrong: Vec<&str> = scenarios.iter().filter(|s| differs(s)).map(|s| s[0].scenario.as_str()).collect();
    let many = scenarios.len();
    out + &match wrong[..] {
        [] => screen.paragraph(Ink::Good, "", &format!("{many} scenarios, all as they say")),
        _ => {
            let words = format!("{many} scenarios, {} not as they say: {}", wrong.len(), wrong.join(", "));
            screen.paragraph(Ink::Bad, "", &words)
        }
    }
}

fn differs(verdicts: &[Verdict]) -> bool {
    verdicts.iter().any(|v| !v.differs.is_empty())
}

/// One scenario: its name, then its verdicts beside its sentence.
fn one(out: &mut String, verdicts: &[Verdict], screen: &Screen) {
    let (mark, ink) = if differs(verdicts) { ("NO  ", Ink::Bad) } else { ("ok  ", Ink::Good) };
    let [first, ..] = verdicts else { return };
    out.push_str(&screen.paint(ink, mark));
    out.push_str(&screen.paragraph(Ink::Strong, "", &first.scenario));
    let left = Screen { width: VERDICT, ..*screen };
    let right = Screen { width: screen.width.saturating_sub(MARK + VERDICT + 2), ..*screen };
    let said: String = verdicts.iter().map(|v| left.paragraph(Ink::Plain, "", &words(v))).collect();
    let about = right.paragraph(Ink::Plain, "", &first.about);
    let (mut said, mut about) = (said.lines(), about.lines());
    loop {
        let (verdict, sentence) = (said.next(), about.next());
        if verdict.is_none() && sentence.is_none() {
            break;
        }
        let (verdict, sentence) = (verdict.unwrap_or(""), sentence.unwrap_or(""));
        out.push_str(format!("    {verdict:<VERDICT$}  {sentence}").trim_end());
        out.push('\n');
    }
    for differs in verdicts.iter().flat_map(|v| &v.differs) {
        for line in differs.lines() {
            out.push_str(&screen.paragraph(Ink::Bad, "    differs: ", line));
        }
    }
    out.push('\n');
}

/// `hung: alert; drain withheld`: what was judged, what was done, and the most that was asked for and not done.
fn words(v: &Verdict) -> String {
    let judged = match (&v.fault, v.judgement.as_str(), &v.signature, &v.guard) {
        (Some(fault), "none", _, _) => format!("{fault}: no fault"),
        (Some(fault), state, _, _) => format!("{fault}: {state}"),
        (None, "breaching", Some(signature), _) => signature.clone(),
        (None, "unjudged", _, Some(guard)) => format!("not judged ({guard})"),
        (None, judgement, _, Some(guard)) => format!("{judgement} ({guard})"),
        (None, judgement, _, None) => judgement.to_owned(),
    };
    let done = if v.done.is_empty() { String::new() } else { format!(": {}", v.done.join(", ")) };
    // The latest comes first: what is held back now, and not what an earlier doubt held back that was done since.
    let held = v.withheld.first().filter(|(asked, _)| !v.done.contains(asked));
    let held = held.map_or(String::new(), |(asked, _)| format!("; {asked} withheld"));
    format!("{judged}{done}{held}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(scenario: &str, judgement: &str, done: &[&str]) -> Verdict {
        Verdict {
            scenario: scenario.to_owned(),
            about: "A sentence that is long enough to be broken into two lines beside what came of it."
                .to_owned(),
            job: Some(4242),
            fault: None,
            judgement: judgement.to_owned(),
            signature: (judgement == "breaching").then(|| "hung".to_owned()),
            guard: None,
            done: done.iter().map(|deed| (*deed).to_owned()).collect(),
            withheld: Vec::new(),
            differs: Vec::new(),
        }
    }

    #[test]
    fn each_scenario_stands_once_in_the_group_of_the_most_that_was_done_in_it() {
        let all = [
            verdict("a-job-at-work", "alive", &[]),
            verdict("two-jobs", "alive", &[]),
            verdict("two-jobs", "breaching", &["alert", "drain"]),
        ];
        let shown = table(&all, &Screen::PLAIN);
        let at = |text: &str| shown.find(text).unwrap_or_else(|| panic!("`{text}`: {shown}"));
        assert!(
            at("Jobs left alone") < at("ok  a-job-at-work") && at("ok  a-job-at-work") < at("Nodes drained")
        );
        assert!(at("Nodes drained") < at("ok  two-jobs") && !shown.contains("not judged"));
        assert!(
            shown.contains("    alive                       A sentence that is long enough to"),
            "{shown}"
        );
        assert!(shown.contains("    hung: alert, drain"), "{shown}");
        assert!(
            shown.lines().all(|line| line.len() <= 80) && shown.ends_with("2 scenarios, all as they say\n")
        );
    }

    #[test]
    fn what_differs_stands_beneath_its_scenario_and_in_the_last_line() {
        let mut wrong = verdict("a-job-at-work", "breaching", &["alert"]);
        wrong.withheld = vec![("drain".to_owned(), "mode is observe".to_owned())];
        wrong.differs = vec!["judgement is breaching, expected alive\nin two lines".to_owned()];
        let shown = table(&[wrong, verdict("another", "alive", &[])], &Screen::PLAIN);
        assert!(shown.contains("hung: alert; drain"), "{shown}");
        assert!(
            shown
                .contains("    differs: judgement is breaching, expected alive\n    differs: in two lines\n")
        );
        assert!(shown.ends_with("2 scenarios, 1 not as they say: a-job-at-work\n"), "{shown}");
    }
}

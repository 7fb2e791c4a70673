//! What a look at a site has come to: a line for each thing that was looked at, as text and as JSON. What could not be
//! looked at has a word of its own: it is never `ok`.

use crate::screen::{Ink, Screen};
use serde_json::{Value, json};
use std::fmt;
use std::path::Path;

/// How a thing stands. In the order of how bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Ok,
    /// It could not be looked at: it may be a fault.
    Unknown,
    /// It works, and less than it could or not for long.
    Warning,
    /// It does not work.
    Fault,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Unknown => "unknown",
            Level::Warning => "warning",
            Level::Fault => "fault",
        }
    }
}

/// What mends it, word for word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A line of a file.
    Write {
        /// The file.
        file: String,
        /// Which line it replaces, from 1; `None`: it is a new one.
        line: Option<usize>,
        /// What it says.
        text: String,
    },
    /// A part of a line of a file: the rest of the line stays.
    Edit {
        /// The file.
        file: String,
        /// Which line, from 1; `None`: the words say which.
        line: Option<usize>,
        /// What is changed, in words.
        how: String,
    },
    /// A command for root.
    Run(String),
}

impl Change {
    /// A new line of a file.
    pub fn add(file: &Path, text: impl Into<String>) -> Change {
        Change::new_line(file.display().to_string(), text)
    }

    /// The same of a file that only its name tells.
    pub fn new_line(file: impl Into<String>, text: impl Into<String>) -> Change {
        Change::Write { file: file.into(), line: None, text: text.into() }
    }

    /// A command.
    pub fn run(command: impl Into<String>) -> Change {
        Change::Run(command.into())
    }

    fn json(&self) -> Value {
        match self {
            Change::Write { file, line, text } => json!({ "file": file, "line": line, "write": text }),
            Change::Edit { file, line, how } => json!({ "file": file, "line": line, "edit": how }),
            Change::Run(command) => json!({ "run": command }),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Write { file, line: Some(line), text } => write!(f, "in {file}, line {line}: {text}"),
            Change::Write { file, line: None, text } => write!(f, "in {file}, a new line: {text}"),
            Change::Edit { file, line: Some(line), how } => write!(f, "in {file}, line {line}: {how}"),
            Change::Edit { file, line: None, how } => write!(f, "in {file}: {how}"),
            Change::Run(command) => write!(f, "run: {command}"),
        }
    }
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// What was looked at.
    pub check: &'static str,
    /// How it stands.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What that means.
    pub means: String,
    /// What mends it: any of these where there are several ways, which [`Line::means`] says.
    pub change: Vec<Change>,
}

impl Line {
    fn new(check: &'static str, level: Level, found: impl Into<String>, means: impl Into<String>) -> Line {
        Line { check, level, found: found.into(), means: means.into(), change: vec![] }
    }

    /// As it should be.
    pub fn ok(check: &'static str, found: impl Into<String>, means: impl Into<String>) -> Line {
        Line::new(check, Level::Ok, found, means)
    }

    /// It works, and less than it could.
    pub fn warning(check: &'static str, found: impl Into<String>, means: impl Into<String>) -> Line {
        Line::new(check, Level::Warning, found, means)
    }

    /// It does not work.
    pub fn fault(check: &'static str, found: impl Into<String>, means: impl Into<String>) -> Line {
        Line::new(check, Level::Fault, found, means)
    }

    /// It could not be looked at; `why` says what stood in the way.
    pub fn unknown(check: &'static str, why: impl Into<String>, means: impl Into<String>) -> Line {
        Line::new(check, Level::Unknown, why, means)
    }

    /// Whether both could not be looked at, for one cause, and nothing mends one alone.
    fn is_told_with(&self, other: &Line) -> bool {
        let unknown = |line: &Line| line.level == Level::Unknown && line.change.is_empty();
        unknown(self) && unknown(other) && self.found == other.found
    }

    /// The same with what mends it.
    pub fn mended_by(mut self, change: impl IntoIterator<Item = Change>) -> Line {
        self.change.extend(change);
        self
    }
}

/// From so many on, lines that could not be looked at for one cause are told as one.
const ONE_CAUSE: usize = 3;

/// All of them, in the order of the checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The node.
    pub node: String,
    /// What was looked at.
    pub lines: Vec<Line>,
}

impl Report {
    /// 0: all ok; 1: something could be better, or could not be looked at; 2: a fault.
    pub fn exit_status(&self) -> u8 {
        match self.lines.iter().map(|line| line.level).max() {
            None | Some(Level::Ok) => 0,
            Some(Level::Unknown | Level::Warning) => 1,
            Some(Level::Fault) => 2,
        }
    }

    fn count(&self, wanted: Level) -> usize {
        self.lines.iter().filter(|line| line.level == wanted).count()
    }

    /// For people: a line each, what mends it beneath, and a line of numbers. What could not be looked at for one cause is
    /// one line.
    pub fn text(&self, screen: &Screen) -> String {
        let mut text = String::new();
        for (n, line) in self.lines.iter().enumerate() {
            let same: Vec<&Line> = self.lines.iter().filter(|other| line.is_told_with(other)).collect();
            if same.len() >= ONE_CAUSE {
                if !self.lines[..n].iter().any(|earlier| line.is_told_with(earlier)) {
                    let checks: Vec<&str> = same.iter().map(|line| line.check).collect();
                    let words = format!("{}; not looked at: {}", line.found, checks.join(", "));
                    text += &told(screen, line.level, &words);
                }
                continue;
            }
            let Line { check, level, found, means, change } = line;
            let means = if means.is_empty() { String::new() } else { format!("; {means}") };
            text += &told(screen, *level, &format!("{check}: {found}{means}"));
            for change in change {
                text += &printable(&format!("         {change}"));
            }
        }
        let many = |level, word: &str| match self.count(level) {
            1 => format!("1 {word}"),
            n => format!("{n} {word}s"),
        };
        let (warnings, faults) = (many(Level::Warning, "warning"), many(Level::Fault, "fault"));
        text + &format!(
            "{} ok, {} unknown, {warnings}, {faults}\n",
            self.count(Level::Ok),
            self.count(Level::Unknown)
        )
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let line = |line: &Line| {
            json!({
                "check": line.check,
                "level": line.level.word(),
                "found": line.found,
                "means": line.means,
                "change": line.change.iter().map(Change::json).collect::<Vec<_>>(),
            })
        };
        let lines: Vec<_> = self.lines.iter().map(line).collect();
        json!({ "schema": "gpu-reaper-hc/doctor/1", "node": self.node, "lines": lines })
    }
}

/// What was found, beside how it stands.
fn told(screen: &Screen, level: Level, words: &str) -> String {
    let ink = match level {
        Level::Ok => Ink::Plain,
        Level::Unknown | Level::Warning => Ink::Notice,
        Level::Fault => Ink::Bad,
    };
    screen.paragraph(ink, &format!("{:<9}", level.word()), words)
}

/// One line for a terminal, unbroken, for it is to be copied: what files say may hold anything.
fn printable(line: &str) -> String {
    let shown =
        |c: char| if (' '..='~').contains(&c) { c.to_string() } else { c.escape_default().to_string() };
    line.chars().map(shown).collect::<String>() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(levels: &[Level]) -> Report {
        let lines = levels.iter().map(|level| Line::new("a", *level, "b", "c")).collect();
        Report { node: "n1".into(), lines }
    }

    #[test]
    fn the_worst_line_is_the_exit_status_and_what_is_unknown_is_never_ok() {
        use Level::*;
        for (levels, want) in [
            (&[][..], 0),
            (&[Ok, Ok], 0),
            (&[Ok, Unknown], 1),
            (&[Warning, Unknown, Ok], 1),
            (&[Fault, Unknown], 2),
            (&[Ok, Fault, Warning], 2),
        ] {
            assert_eq!(report(levels).exit_status(), want, "{levels:?}");
        }
        let text = report(&[Ok, Warning, Unknown, Fault]).text(&Screen::UNBROKEN);
        assert!(text.ends_with("1 ok, 1 unknown, 1 warning, 1 fault\n"), "{text}");
        let text = report(&[Warning, Fault, Fault]).text(&Screen::UNBROKEN);
        assert!(text.ends_with("0 ok, 0 unknown, 1 warning, 2 faults\n"), "{text}");
    }

    #[test]
    fn what_could_not_be_looked_at_for_one_cause_is_told_once_and_counted_each() {
        let unknown = |check: &'static str, why: &str| Line::unknown(check, why, "it is not known");
        let mended = unknown("d", "no file").mended_by([Change::run("true")]);
        let lines = vec![
            unknown("a", "no file"),
            Line::ok("x", "here", ""),
            unknown("b", "no file"),
            unknown("c", "no answer"),
            unknown("e", "no answer"),
            mended,
            unknown("f", "no file"),
        ];
        let report = Report { node: "n1".into(), lines };
        let want = "unknown  no file; not looked at: a, b, f\nok       x: here\n\
                    unknown  c: no answer; it is not known\nunknown  e: no answer; it is not known\n\
                    unknown  d: no file; it is not known\n         run: true\n\
                    1 ok, 6 unknown, 0 warnings, 0 faults\n";
        assert_eq!(report.text(&Screen::UNBROKEN), want);
        assert_eq!(report.json()["lines"].as_array().map(Vec::len), Some(7));
    }

    #[test]
    fn each_line_says_what_was_found_what_it_means_and_what_to_write() {
        let file = Path::new("/etc/slurm/slurm.conf");
        let line = Line::fault("slot", "not \u{1b}[31mset\n", "nothing runs").mended_by([
            Change::Write { file: file.display().to_string(), line: Some(7), text: "A=1".into() },
            Change::add(file, "B=2"),
            Change::Edit { file: "x".into(), line: Some(3), how: "C=3 in place of C=4".into() },
            Change::run("true"),
        ]);
        let report = Report { node: "n1".into(), lines: vec![line, Line::ok("b", "c", "")] };
        let want = "fault    slot: not \\u{1b}[31mset\\n; nothing runs\n         in /etc/slurm/slurm.conf, line 7: A=1\n\
                    \x20        in /etc/slurm/slurm.conf, a new line: B=2\n\
                    \x20        in x, line 3: C=3 in place of C=4\n         run: true\nok       b: c\n1 ok, 0 unknown, 0 warnings, 1 fault\n";
        assert_eq!(report.text(&Screen::UNBROKEN), want);
        let json = report.json();
        assert_eq!(json["schema"], "gpu-reaper-hc/doctor/1");
        assert_eq!(json["lines"][0]["change"][0]["line"], 7);
        assert_eq!(json["lines"][0]["change"][2]["edit"], "C=3 in place of C=4");
        assert_eq!(json["lines"][0]["change"][3]["run"], "true");
        assert_eq!(json["lines"][1]["level"], "ok");
    }
}

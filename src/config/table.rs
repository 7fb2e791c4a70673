//! One table of keys under check: what is asked for is read and judged, what is left over is an unknown key,
//! what is said twice is an error. Collects every error; a reader that fails answers the default, so that
//! the next key can be judged too. Knows no key by name.

use super::ConfigError;
use super::tree::{self, Entry, Node, Value};
use super::values::{Bad, found, shown};
use std::collections::BTreeMap;

/// Each error's position costs one more reading of the text; a file of errors is not worth more than these.
const MOST_ERRORS: usize = 50;

/// The text under check and what was found out about it.
pub(super) struct Check<'t> {
    text: &'t str,
    file: &'t str,
    errors: Vec<ConfigError>,
    left_out: usize,
    /// One line each: accepted, but worth saying.
    pub notes: Vec<String>,
}

impl<'t> Check<'t> {
    /// Nothing is known yet.
    pub fn new(text: &'t str, file: &'t str) -> Check<'t> {
        Check { text, file, errors: Vec::new(), left_out: 0, notes: Vec::new() }
    }

    /// Records an error of `key`, positioned at the value or key of number `at`.
    pub fn fail(&mut self, at: Option<usize>, key: &str, what: String, hint: String) {
        if self.errors.len() == MOST_ERRORS {
            self.left_out += 1;
            return;
        }
        let position = at.and_then(|at| tree::locate(self.text, at));
        self.errors.push(ConfigError {
            file: self.file.to_owned(),
            key: key.to_owned(),
            what,
            position,
            hint,
        });
    }

    /// The line of this key or value, where there is room for another error to name it.
    fn line(&self, at: usize) -> Option<usize> {
        let room = self.errors.len() < MOST_ERRORS;
        room.then(|| tree::locate(self.text, at)).flatten().map(|(line, _)| line)
    }

    /// Whether nothing under these keys failed: a comparison of values that do is no news.
    pub fn sound(&self, keys: &[&str]) -> bool {
        !self.errors.iter().any(|e| keys.iter().any(|k| e.key.starts_with(k) || k.starts_with(&e.key)))
    }

    /// The errors in the order of the file.
    pub fn errors(mut self) -> Vec<ConfigError> {
        self.errors.sort_by_key(|e| e.position.unwrap_or((usize::MAX, 0)));
        if self.left_out > 0 {
            let what = format!("{} more errors", self.left_out);
            self.errors.push(ConfigError { what, ..ConfigError::of_file(self.file) });
        }
        self.errors
    }
}

/// A table of the file, or one that it leaves out.
pub(super) struct Table<'t, 'c> {
    /// Where errors and notes go.
    pub check: &'c mut Check<'t>,
    path: String,
    at: Option<usize>,
    entries: &'t [Entry<'t>],
    asked: Vec<&'static str>,
    /// Those of them that mean nothing any more: no hint names them.
    ignored: Vec<&'static str>,
    /// Those of them that are tables.
    tables: Vec<&'static str>,
}

impl<'t, 'c> Table<'t, 'c> {
    /// The table at `path`, empty for the file itself; a value that is no table is an error.
    pub fn new(check: &'c mut Check<'t>, path: String, node: Option<&'t Node<'t>>) -> Table<'t, 'c> {
        let mut entries: &[Entry<'t>] = &[];
        match node.map(|n| &n.value) {
            None => {}
            Some(Value::Table(said)) => entries = said,
            Some(other) => {
                let leave = matches!(other, Value::Null).then_some("; leave it out for its defaults");
                let hint = format!("allowed: a table of keys{}", leave.unwrap_or_default());
                check.fail(node.map(|n| n.at), &path, format!("found {}", found(other)), hint);
            }
        }
        let mut first: BTreeMap<&str, usize> = BTreeMap::new();
        for entry in entries {
            if let Some(earlier) = first.insert(&entry.key, entry.at) {
                let hint = match check.line(earlier) {
                    Some(line) => format!("first said at line {line}; keep one of them"),
                    None => "keep one of them".to_owned(),
                };
                check.fail(Some(entry.at), &join(&path, &shown(&entry.key)), "said twice".to_owned(), hint);
            }
        }
        Table {
            check,
            path,
            at: node.map(|n| n.at),
            entries,
            asked: Vec::new(),
            ignored: Vec::new(),
            tables: Vec::new(),
        }
    }

    /// The value said for `key`, if any; the key counts as known from here on.
    fn get(&mut self, key: &'static str) -> Option<&'t Node<'t>> {
        self.asked.push(key);
        self.entries.iter().find(|e| e.key == key).map(|e| &e.value)
    }

    /// The value of `key` as `reader` understands it, else `default`.
    pub fn read<T>(
        &mut self,
        key: &'static str,
        default: T,
        reader: impl Fn(&Node<'t>) -> Result<T, Bad>,
    ) -> T {
        self.said(key, reader).unwrap_or(default)
    }

    /// The value of `key`, where it is said and sound.
    pub fn said<T>(&mut self, key: &'static str, reader: impl Fn(&Node<'t>) -> Result<T, Bad>) -> Option<T> {
        let node = self.get(key)?;
        match reader(node) {
            Ok(value) => Some(value),
            Err(bad) => {
                tell(self.check, &join(&self.path, key), bad);
                None
            }
        }
    }

    /// A key that means nothing here any more, and why; where it is said its value is looked at as any.
    pub fn ignored<T>(
        &mut self,
        key: &'static str,
        reader: impl Fn(&Node<'t>) -> Result<Option<T>, Bad>,
        why: &str,
    ) {
        self.ignored.push(key);
        if self.said(key, reader).flatten().is_some() {
            self.note(key, why);
        }
    }

    /// A key that one may look for here, and that another one holds.
    pub fn elsewhere(&mut self, key: &'static str, hint: &str) {
        if let Some(entry) = self.entries.iter().find(|e| e.key == key) {
            self.asked.push(key);
            self.check.fail(
                Some(entry.at),
                &join(&self.path, key),
                "unknown key".to_owned(),
                hint.to_owned(),
            );
        }
    }

    /// As [`Table::said`]; a key that is not said is an error.
    pub fn must<T>(&mut self, key: &'static str, reader: impl Fn(&Node<'t>) -> Result<T, Bad>) -> Option<T> {
        if !self.entries.iter().any(|e| e.key == key) {
            let hint = "it has no default".to_owned();
            self.check.fail(self.at, &join(&self.path, key), "missing".to_owned(), hint);
        }
        self.said(key, reader)
    }

    /// The table under `key`, empty where the file leaves it out.
    pub fn table(&mut self, key: &'static str) -> Table<'t, '_> {
        let node = self.get(key);
        self.tables.push(key);
        Table::new(self.check, join(&self.path, key), node)
    }

    /// The items of a list of tables, where one is said.
    pub fn items(&mut self, key: &'static str, allowed: &str) -> Option<&'t [Node<'t>]> {
        let node = self.get(key)?;
        match &node.value {
            Value::List(items) => Some(items),
            other => {
                let (what, hint) = (format!("found {}", found(other)), format!("allowed: {allowed}"));
                self.check.fail(Some(node.at), &join(&self.path, key), what, hint);
                None
            }
        }
    }

    /// Records an error of this table as a whole.
    pub fn fail(&mut self, what: String, hint: String) {
        self.check.fail(self.at, &self.path, what, hint);
    }

    /// Notes that what `key` says has no effect, and why.
    pub fn note(&mut self, key: &str, why: &str) {
        self.check.notes.push(format!("`{}`: {why}", join(&self.path, key)));
    }

    /// Every key that nobody asked for is unknown.
    pub fn finish(self) {
        let named: Vec<_> = self.asked.iter().copied().filter(|key| !self.ignored.contains(key)).collect();
        for entry in self.entries.iter().filter(|e| !self.asked.contains(&e.key.as_ref())) {
            let allowed = format!("allowed: {}", named.join(", "));
            let dotted = entry.key.split_once('.').filter(|(first, _)| self.tables.contains(first));
            let hint = match (dotted, closest(&entry.key, &named)) {
                _ if entry.key == "<<" => "merge keys are not read; write the keys out".to_owned(),
                (Some((table, rest)), _) => {
                    format!("write it as a table: `{table}: {{ {}: ... }}`", shown(rest))
                }
                (None, Some(meant)) => format!("did you mean `{meant}`? {allowed}"),
                (None, None) => allowed,
            };
            self.check.fail(
                Some(entry.at),
                &join(&self.path, &shown(&entry.key)),
                "unknown key".to_owned(),
                hint,
            );
        }
    }
}

fn tell(check: &mut Check<'_>, path: &str, bad: Bad) {
    for wrong in bad {
        let index = wrong.index.map_or(String::new(), |i| format!("[{i}]"));
        let (what, hint) = (format!("found {}", wrong.found), format!("allowed: {}", wrong.allowed));
        check.fail(Some(wrong.at), &format!("{path}{index}"), what, hint);
    }
}

fn join(path: &str, key: &str) -> String {
    let dot = if path.is_empty() { "" } else { "." };
    format!("{path}{dot}{key}")
}

/// The known key at most two slips away, if what was typed still resembles it.
fn closest(typed: &str, known: &[&'static str]) -> Option<&'static str> {
    let slips = |key: &&'static str| (distance(typed, key), *key);
    let (fewest, key) = known.iter().filter(|k| k.len().abs_diff(typed.len()) <= 2).map(slips).min()?;
    (fewest <= 2 && fewest < key.len().min(typed.len())).then_some(key)
}

/// Letters to insert, drop, change, or swap with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_recognised() {
        let known = ["window", "warmup", "util_pct", "mode"];
        let table = [
            ("windw", Some("window")),
            ("widnow", Some("window")),
            ("Window", Some("window")),
            ("utilpct", Some("util_pct")),
            ("mdoe", Some("mode")),
            ("colour", None),
            ("x", None),
            ("", None),
        ];
        for (typed, meant) in table {
            assert_eq!(closest(typed, &known), meant, "{typed:?}");
        }
    }
}

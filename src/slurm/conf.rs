//! slurm.conf, and cgroup.conf which is written alike, as far as single keys are asked for: who says what, in which file
//! and line. Knows no default of Slurm's, and judges nothing.

use super::hostlist;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// Lines that begin with one of these describe something: their other keys are no keys of the file.
const RECORDS: [&str; 5] = ["nodename", "partitionname", "nodeset", "downnodes", "frontendname"];
/// No site's file is longer, and none includes more.
const MOST_BYTES: u64 = 4 << 20;
const MOST_FILES: usize = 256;

/// One `Key=Value`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// In lower case.
    pub key: String,
    /// Without its quotes.
    pub value: String,
    /// Where it stands.
    pub file: PathBuf,
    /// In which line, from 1; of a continued one, in its first.
    pub line: usize,
}

/// A file with all that it includes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conf {
    /// The file that includes the others.
    pub file: PathBuf,
    /// Files it includes that could not be read, with the reason: what they say is not known.
    pub unread: Vec<String>,
    entries: Vec<Entry>,
    records: Vec<Vec<Entry>>,
    files: usize,
}

impl Conf {
    /// Reads it, and what it includes.
    pub fn read(file: &Path) -> io::Result<Conf> {
        text_of(file).map(|text| Conf::of(file, &text))
    }

    /// The same by its text.
    pub fn of(file: &Path, text: &str) -> Conf {
        let mut conf =
            Conf { file: file.to_owned(), unread: vec![], entries: vec![], records: vec![], files: 1 };
        conf.add(file, text);
        conf
    }

    fn add(&mut self, file: &Path, text: &str) {
        for (line, text) in logical_lines(text) {
            if let Some(name) = included(&text) {
                self.include(name);
                continue;
            }
            let of_line: Vec<Entry> = pairs(&text)
                .into_iter()
                .map(|(key, value)| Entry { key, value, file: file.to_owned(), line })
                .collect();
            match of_line.first() {
                Some(first) if RECORDS.contains(&first.key.as_str()) => self.records.push(of_line),
                _ => self.entries.extend(of_line),
            }
        }
    }

    /// A relative name is one beside the main file; `%c` is the name of the cluster as said so far.
    fn include(&mut self, name: &str) {
        let cluster = self.value("clustername").map_or("", |entry| &entry.value);
        let name = name.replace("%c", cluster);
        let path = self.file.parent().unwrap_or(Path::new("/")).join(name);
        self.files += 1;
        if self.files > MOST_FILES {
            self.unread.push(format!("`{}`: more than {MOST_FILES} files are included", path.display()));
            return;
        }
        match text_of(&path) {
            Ok(text) => self.add(&path, &text),
            Err(e) => self.unread.push(format!("`{}`: {e}", path.display())),
        }
    }

    /// What a key says; of several the last, which is what Slurm takes.
    pub fn value(&self, key: &str) -> Option<&Entry> {
        self.all(key).last().copied()
    }

    /// Each time that a key is said.
    pub fn all(&self, key: &str) -> Vec<&Entry> {
        self.entries.iter().filter(|entry| entry.key.eq_ignore_ascii_case(key)).collect()
    }

    /// Whether a line names this node, and what it says of one key, else the DEFAULT line before it. An error where a
    /// list of nodes is not understood.
    pub fn node(&self, node: &str, key: &str) -> Result<Option<Option<&Entry>>, String> {
        let (mut default, mut found) = (None, None);
        for record in &self.records {
            let Some(first) = record.first().filter(|first| first.key == "nodename") else { continue };
            let said = record.iter().rfind(|entry| entry.key == key);
            if first.value.eq_ignore_ascii_case("default") {
                default = said.or(default);
            } else if hostlist::names(&first.value, node)? {
                found = Some(said.or(default));
            }
        }
        Ok(found)
    }
}

fn text_of(file: &Path) -> io::Result<String> {
    let meta = std::fs::metadata(file)?;
    if !meta.is_file() || meta.len() > MOST_BYTES {
        return Err(io::Error::other("no regular file of a usual size"));
    }
    std::fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The name that an `Include` line names.
fn included(line: &str) -> Option<&str> {
    let (word, name) = line.trim().split_once(char::is_whitespace)?;
    word.eq_ignore_ascii_case("include").then_some(name.trim().trim_matches('"'))
}

/// The pairs of a line. A word that is none belongs to the value before it: `Program=/usr/sbin/x -a`.
fn pairs(line: &str) -> Vec<(String, String)> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() {
        let (before, after) = rest.split_once('=').unwrap_or((rest, ""));
        let is_pair = rest.contains('=');
        let mut words: Vec<&str> = before.split_whitespace().collect();
        let key = if is_pair { words.pop() } else { None };
        if let (Some((_, value)), false) = (pairs.last_mut(), words.is_empty()) {
            *value = format!("{value} {}", words.join(" "));
        }
        let (value, left) = value_of(after.trim_start());
        if let Some(key) = key {
            // `TaskPlugin+=...` adds; which of the two it is does not matter here.
            let key = key.trim_end_matches(['+', '-', '*', '/']).to_ascii_lowercase();
            pairs.push((key, value.to_owned()));
        }
        rest = left.trim_start();
    }
    pairs
}

/// A value, and what stands after it.
fn value_of(text: &str) -> (&str, &str) {
    match text.strip_prefix('"') {
        Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
        None => text.split_at(text.find(char::is_whitespace).unwrap_or(text.len())),
    }
}

/// Lines without comments, continued ones joined, each with the number of its first (slurm.conf(5)).
pub(super) fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or("").trim_end();
        let (first, mut joined) = open.take().unwrap_or((number, String::new()));
        match line.strip_suffix('\\') {
            Some(part) => {
                joined.push_str(part);
                open = Some((first, joined));
            }
            None => {
                joined.push_str(line);
                lines.push((first, joined));
            }
        }
    }
    lines.extend(open);
    lines.retain(|(_, line)| !line.trim().is_empty());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(text: &str) -> Conf {
        Conf::of(Path::new("/etc/slurm/slurm.conf"), text)
    }

    #[test]
    fn a_key_is_found_however_it_is_written_and_the_last_one_holds() {
        let table = [
            ("HealthCheckInterval=60\n", Some("60")),
            ("healthcheckinterval = 60 # each minute\n", Some("60")),
            ("HealthCheckInterval=\"60\"\n", Some("60")),
            ("HealthCheckInterval=30\nHealthCheckInterval=60\n", Some("60")),
            ("ClusterName=a HealthCheckInterval=60 SlurmUser=slurm\n", Some("60")),
            ("HealthCheck\\\nInterval=60\n", Some("60")),
            ("#HealthCheckInterval=60\n", None),
            ("NodeName=n1 HealthCheckInterval=60\n", None),
            ("", None),
        ];
        for (text, want) in table {
            let conf = conf(text);
            let found = conf.value("HealthCheckInterval").map(|entry| entry.value.as_str());
            assert_eq!(found, want, "{text}");
        }
    }

    #[test]
    fn words_that_are_no_pair_stay_with_the_value_before_them() {
        let table = [
            ("HealthCheckProgram=/usr/sbin/x -a b\n", "/usr/sbin/x -a b"),
            ("HealthCheckProgram=\"/usr/sbin/x -a\" SlurmUser=root\n", "/usr/sbin/x -a"),
            ("HealthCheckProgram=/usr/sbin/x -a SlurmUser=root\n", "/usr/sbin/x -a"),
        ];
        for (text, want) in table {
            assert_eq!(conf(text).value("healthcheckprogram").unwrap().value, want, "{text}");
        }
    }

    #[test]
    fn a_key_is_told_with_its_file_and_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        std::fs::write(file("slurm.conf"), "ClusterName=c1\n\ninclude c1.%c.conf\nInclude none\n").unwrap();
        std::fs::write(file("c1.c1.conf"), "# ours\nProlog=a \\\n\nProlog=b\n").unwrap();
        let conf = Conf::read(&file("slurm.conf")).unwrap();
        let at: Vec<_> = conf.all("prolog").iter().map(|e| (e.value.as_str(), e.line)).collect();
        assert_eq!(at, [("a", 2), ("b", 4)]);
        assert_eq!(conf.value("prolog").unwrap().file, file("c1.c1.conf"));
        assert!(conf.unread.len() == 1 && conf.unread[0].contains("none"), "{:?}", conf.unread);
        assert_eq!(Conf::read(&file("other")).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::write(file("round"), "Include round\n").unwrap();
        assert!(Conf::read(&file("round")).unwrap().unread[0].contains("more than"));
    }

    #[test]
    fn a_node_is_found_by_its_line_and_takes_what_default_says() {
        let text = "NodeName=DEFAULT Gres=gpu:8 CPUs=4\nNodeName=n[1-2]\nNodeName=n3 Gres=gpu:h100:2\n\
                    NodeName=DEFAULT CPUs=8\nNodeName=n4\nSlurmctldHost=a(10.0.0.1)\nSlurmctldHost=b\n";
        let conf = conf(text);
        let gres =
            |node: &str| conf.node(node, "gres").unwrap().map(|said| said.map(|entry| entry.value.as_str()));
        assert_eq!(gres("n2"), Some(Some("gpu:8")));
        assert_eq!(gres("n3"), Some(Some("gpu:h100:2")));
        assert_eq!(gres("n4"), Some(Some("gpu:8")));
        assert_eq!(gres("n9"), None);
        assert_eq!(conf.all("slurmctldhost").len(), 2);
        assert!(Conf::node(&self::conf("NodeName=n[\n"), "n1", "gres").is_err());
    }
}

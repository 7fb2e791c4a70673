//! What a key of slurm.conf is: as slurmctld works by it, else as slurmd's file says. And where to write another value.

use super::look::{CONFIGLESS, Found};
use super::report::{Change, Line};
use crate::config::{self, DEFAULT_FILE};
use crate::slurm::conf::Entry;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A value and who says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Without its quotes.
    pub value: String,
    /// `slurmctld`, or a file and its line.
    pub by: String,
}

/// What is known of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// Neither slurmctld answered nor could the file be read; with the reason.
    Unknown(String),
    /// Nobody says it: Slurm's default holds.
    Unset,
    /// It is said.
    Said(Said),
}

impl Key {
    /// The value, where one is said.
    pub fn value(&self) -> Option<&str> {
        match self {
            Key::Said(said) => Some(&said.value),
            Key::Unset | Key::Unknown(_) => None,
        }
    }
}

impl Found {
    /// One key. slurmctld's word wins; a key that its version does not show is asked of the file.
    pub fn key(&self, key: &str) -> Key {
        if let Ok(shown) = &self.shown
            && let Some(value) = shown.value(key)
        {
            let said = Said { value: value.to_owned(), by: "slurmctld".to_owned() };
            return if value.is_empty() { Key::Unset } else { Key::Said(said) };
        }
        match (self.said_in_file(key), &self.shown) {
            (Ok(mut all), _) if !all.is_empty() => Key::Said(all.remove(all.len() - 1)),
            (Ok(_), _) | (Err(_), Ok(_)) => Key::Unset,
            (Err(why), Err(_)) => Key::Unknown(why),
        }
    }

    /// A key that may be said several times, in the order in which it is said.
    pub fn keys(&self, key: &str) -> Result<Vec<Said>, String> {
        match &self.shown {
            Ok(shown) => {
                let said = |value: &str| Said { value: value.to_owned(), by: "slurmctld".to_owned() };
                Ok(shown.all(key).into_iter().map(said).collect())
            }
            Err(_) => self.said_in_file(key),
        }
    }

    /// The same by the file alone. What an included file that could not be read says is not known.
    fn said_in_file(&self, key: &str) -> Result<Vec<Said>, String> {
        // Why it is so stands in a line of its own.
        let conf = self
            .confs
            .conf()
            .map_err(|_| "neither slurmctld answered nor could a slurm.conf be read".to_owned())?;
        let by = |file: &Path, line| format!("{}, line {line}", file.display());
        let said: Vec<Said> = conf
            .all(key)
            .into_iter()
            .filter(|entry| !entry.value.is_empty())
            .map(|entry| Said { value: entry.value.clone(), by: by(&entry.file, entry.line) })
            .collect();
        match conf.unread.first() {
            Some(unread) if said.is_empty() => Err(format!("slurmctld did not answer, and {unread}")),
            _ => Ok(said),
        }
    }

    /// Where a new value of a key is written: in place of what says it now, beside which other keys may stand, else as a
    /// new line.
    pub fn write(&self, key: &str, value: &str) -> Change {
        let text = format!("{key}={value}");
        match self.confs.conf().ok().and_then(|conf| conf.value(key)) {
            Some(entry) => self.edit(entry, format!("{text} in place of {key}={}", entry.value)),
            None => Change::new_line(self.conf_name(), text),
        }
    }

    /// A change of the line where an entry stands. Of a copy only the original is edited, whose lines are not known.
    pub fn edit(&self, entry: &Entry, how: String) -> Change {
        let is_main = self.confs.used.as_ref().is_some_and(|named| named.path == entry.file);
        let name = entry.file.file_name().unwrap_or_default().to_string_lossy();
        match self.is_a_copy() {
            false => Change::Edit { file: entry.file.display().to_string(), line: Some(entry.line), how },
            true if is_main => Change::Edit { file: self.conf_name(), line: None, how },
            true => Change::Edit { file: self.beside_conf(&name), line: None, how },
        }
    }

    /// A change of slurm.conf is no change yet.
    pub fn rewrite(&self, key: &str, value: &str) -> [Change; 2] {
        [self.write(key, value), Change::run("scontrol reconfigure")]
    }

    /// A key of our own configuration.
    pub fn configure(&self, key: &str, value: &str) -> Change {
        let file = self.config.file.as_deref().unwrap_or(Path::new(DEFAULT_FILE)).display().to_string();
        let (line, text) = config::change(&self.config, key, value);
        Change::Write { file, line, text }
    }

    /// The file that an administrator edits.
    pub fn conf_name(&self) -> String {
        let at_slurmctld = || {
            let shown = self.shown.as_ref().ok().and_then(|shown| shown.value("SLURM_CONF"));
            format!("{} on slurmctld's host", shown.unwrap_or("slurm.conf"))
        };
        match &self.confs.used {
            Some(named) if !self.is_a_copy() => named.path.display().to_string(),
            Some(_) => at_slurmctld(),
            None if self.shown.is_ok() => at_slurmctld(),
            None => "/etc/slurm/slurm.conf".to_owned(),
        }
    }

    /// A file beside slurm.conf.
    pub fn beside_conf(&self, name: &str) -> String {
        let conf = self.conf_name();
        match conf.strip_suffix("slurm.conf") {
            Some(folder) => format!("{folder}{name}"),
            None => format!("{name} beside {conf}"),
        }
    }

    /// Whether slurmd's file is a copy that slurmctld sends: written anew whenever it pleases.
    pub fn is_a_copy(&self) -> bool {
        let used = self.confs.used.as_ref().map(|named| &named.path);
        let by_name = |path: &PathBuf| {
            path == Path::new(CONFIGLESS) || path.components().any(|part| part.as_os_str() == "conf-cache")
        };
        self.slurmd.is_configless() || used.is_some_and(by_name)
    }

    /// Which Slurm runs here: slurmctld's word, else the commands'.
    pub fn version(&self) -> Option<(u16, u16)> {
        let shown = self.shown.as_ref().ok().and_then(|shown| shown.value("SLURM_VERSION"));
        shown.and_then(crate::slurm::release_of).or(self.release.as_ref().ok().copied())
    }

    /// The user that slurmd runs as: as it is, else as it is said to be. `None`: not known.
    pub fn slurmd_uid(&self) -> Option<u32> {
        let by_setting = || match self.key("SlurmdUser") {
            Key::Unset => Some(0),
            Key::Said(said) => uid_of(&said.value),
            Key::Unknown(_) => None,
        };
        self.slurmd.uid().or_else(by_setting)
    }
}

/// `root(0)` as slurmctld shows a user, `root` or `0` as a file says one. Another name is a number that is not known.
pub fn uid_of(user: &str) -> Option<u32> {
    let (name, number) = user.trim_end_matches(')').split_once('(').unwrap_or((user, user));
    if name == "root" { Some(0) } else { number.parse().ok() }
}

/// The words of a list, in lower case: `Alloc,Contain`.
pub fn words(list: &str) -> BTreeSet<String> {
    let words = list.split(',').map(|word| word.trim().to_ascii_lowercase());
    words.filter(|word| !word.is_empty()).collect()
}

/// PrologFlags with those that each brings along (slurm.conf(5)).
pub fn prolog_flags(list: &str) -> BTreeSet<String> {
    let mut flags = words(list);
    flags.remove("none");
    let mut brings = |flag: &str, more: &[&str]| {
        if flags.contains(flag) {
            flags.extend(more.iter().map(|word| (*word).to_owned()));
        }
    };
    brings("runinjob", &["contain", "alloc"]);
    brings("x11", &["contain", "alloc"]);
    brings("contain", &["alloc"]);
    brings("nohold", &["alloc"]);
    flags
}

/// Seconds of `60`, and of `60 sec` as slurmctld shows them.
pub fn seconds(value: &str) -> Option<u64> {
    value.split_whitespace().next()?.parse().ok()
}

/// Names of plugins without the kind that newer versions leave out: `task/cgroup`, `cgroup`.
fn plugins(list: &str) -> BTreeSet<String> {
    let bare = |word: String| word.rsplit('/').next().unwrap_or("").to_owned();
    words(list).into_iter().map(bare).collect()
}

/// What a key says, however it is written, so that two ways of saying the same are the same.
fn sense(key: &str, values: &[String]) -> BTreeSet<String> {
    let one = |value: &String| match key {
        "HealthCheckInterval" => BTreeSet::from([seconds(value).unwrap_or(0).to_string()]),
        "HealthCheckNodeState" => super::interval::states(value),
        "PrologFlags" => prolog_flags(value),
        "TaskPlugin" | "ProctrackType" => plugins(value),
        "SlurmdUser" => BTreeSet::from([value.split('(').next().unwrap_or("").to_owned()]),
        _ => BTreeSet::from([value.clone()]),
    };
    values.iter().flat_map(one).collect()
}

/// The keys that what follows rests on.
const COMPARED: [&str; 9] = [
    "HealthCheckProgram",
    "HealthCheckInterval",
    "HealthCheckNodeState",
    "Prolog",
    "Epilog",
    "PrologFlags",
    "TaskPlugin",
    "ProctrackType",
    "SlurmdUser",
];

/// Where slurmctld and slurmd's file differ: each is believed by one of the two.
pub fn drift(found: &Found) -> Vec<Line> {
    const CHECK: &str = "slurm.conf";
    let (Ok(shown), Ok(conf)) = (&found.shown, found.confs.conf()) else { return silence(found, CHECK) };
    let mut lines = Vec::new();
    for key in COMPARED {
        let live: Vec<String> = shown.all(key).into_iter().map(str::to_owned).collect();
        let mut entries: Vec<_> = conf.all(key).into_iter().filter(|entry| !entry.value.is_empty()).collect();
        if !["Prolog", "Epilog"].contains(&key) || live.len() < entries.len() {
            // Of a key that may stand once the last holds; Prolog may stand several times from 24.05 on.
            entries = entries.pop().into_iter().collect();
        }
        let file: Vec<String> = entries.iter().map(|entry| entry.value.clone()).collect();
        let by_default = file.is_empty() && !["HealthCheckProgram", "Prolog", "Epilog"].contains(&key);
        if by_default || sense(key, &live) == sense(key, &file) {
            continue;
        }
        let say =
            |values: &[String]| if values.is_empty() { "nothing".to_owned() } else { values.join(", ") };
        let place = entries.last().map_or(conf.file.display().to_string(), |entry| {
            format!("{}, line {}", entry.file.display(), entry.line)
        });
        let what = format!("{key} is {} at slurmctld and {} in {place}", say(&live), say(&file));
        let means = "slurmctld goes by the first, slurmd by the file: it was changed since, or differs from slurmctld's";
        lines.push(Line::warning(CHECK, what, means).mended_by([Change::run("scontrol reconfigure")]));
    }
    if lines.is_empty() {
        let what = format!("{} says what slurmctld works by", conf.file.display());
        lines.push(Line::ok(CHECK, what, ""));
    }
    lines
}

/// Which of the two could not be asked.
fn silence(found: &Found, check: &'static str) -> Vec<Line> {
    match (&found.shown, found.confs.conf()) {
        (Err(silence), Ok(conf)) => {
            let means = format!(
                "what follows is as {} says it, which slurmctld may see otherwise",
                conf.file.display()
            );
            vec![Line::unknown(check, silence.to_string(), means).mended_by([Change::run("scontrol ping")])]
        }
        (Err(silence), Err(why)) => {
            let means = "nothing of slurm.conf is known: name it by `slurm.conf` in our configuration (a run has no SLURM_CONF), or look as \
                 root where slurmd runs";
            vec![Line::unknown(check, format!("{why}, and {silence}"), means)]
        }
        (Ok(_), Err(why)) => {
            let means = "what follows is slurmctld's word; what slurmd itself reads is not known";
            vec![Line::unknown(check, why, means)]
        }
        (Ok(_), Ok(_)) => vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::silent;

    #[test]
    fn what_shares_a_line_with_a_key_stays() {
        let found = silent("ClusterName=c1 HealthCheckInterval=30\nSlurmUser=root\n");
        let change = |key: &str| found.write(key, "60").to_string();
        assert_eq!(
            change("HealthCheckInterval"),
            "in /etc/slurm/slurm.conf, line 1: HealthCheckInterval=60 in place of HealthCheckInterval=30"
        );
        assert_eq!(change("Other"), "in /etc/slurm/slurm.conf, a new line: Other=60");
    }
}

//! slurmd as it runs here: as whom, and which slurm.conf it was told to read. By /proc alone; asks it nothing.

use crate::host::Proc;
use crate::reading::Reading;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Options of slurmd(8) that a value follows.
const WITH_VALUE: &str = "dfLnN";

/// The daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Slurmd {
    /// It runs.
    Running(Daemon),
    /// No process is one.
    NotRunning,
    /// So many run, and which of them this node's is cannot be told.
    Several(usize),
    /// Processes could not be looked at, with the reason.
    Unknown(String),
}

/// A slurmd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Daemon {
    /// Its pid.
    pub pid: u32,
    /// Its user.
    pub uid: Reading<u32>,
    /// The file of `-f`.
    pub by_option: Option<PathBuf>,
    /// Its SLURM_CONF.
    pub by_variable: Reading<Option<String>>,
    /// Whether it fetches its configuration from slurmctld: `--conf-server`, or SLURM_CONF_SERVER.
    pub configless: Reading<bool>,
}

impl Slurmd {
    fn daemon(&self) -> Option<&Daemon> {
        match self {
            Slurmd::Running(daemon) => Some(daemon),
            _ => None,
        }
    }

    /// The slurm.conf that it was told to read.
    pub fn told(&self) -> Option<PathBuf> {
        let daemon = self.daemon()?;
        let variable = daemon.by_variable.measured().cloned().flatten().filter(|path| !path.is_empty());
        daemon.by_option.clone().or(variable.map(PathBuf::from))
    }

    /// Whether it certainly looks where the commands look.
    pub fn was_told_nothing(&self) -> bool {
        let daemon = self.daemon();
        let silent = daemon.is_some_and(|daemon| {
            daemon.by_variable.measured().is_some() && daemon.configless == Reading::Measured(false)
        });
        silent && self.told().is_none()
    }

    /// Whether it fetches its configuration from slurmctld.
    pub fn is_configless(&self) -> bool {
        self.daemon().is_some_and(|daemon| daemon.configless == Reading::Measured(true))
    }

    /// As whom it runs, if that is known.
    pub fn uid(&self) -> Option<u32> {
        self.daemon()?.uid.measured().copied()
    }
}

/// Finds the slurmd of a node.
pub fn find(proc: &Proc, node: &str) -> Slurmd {
    let all = match proc.all() {
        Reading::Measured(all) => all,
        Reading::Absent(why) => return Slurmd::Unknown(why.words().to_owned()),
    };
    // Mounted with hidepid, /proc shows others none of root's.
    if !all.contains(&1) {
        return Slurmd::Unknown("processes of others are hidden".to_owned());
    }
    let is_slurmd = |pid: u32| match proc.facts(pid) {
        Reading::Measured(facts) => facts.comm.starts_with("slurmd").then_some(facts.parent),
        Reading::Absent(_) => None,
    };
    // One that it has just started to run something is its child.
    let tops = all.into_iter().filter(|pid| is_slurmd(*pid).is_some_and(|up| is_slurmd(up).is_none()));
    let mut tops: Vec<(Daemon, Option<String>)> = tops.map(|pid| daemon(proc, pid)).collect();
    // Anybody may call a process so; where root has one, that is it.
    let of_root = |daemon: &Daemon| daemon.uid == Reading::Measured(0);
    if tops.iter().any(|(daemon, _)| of_root(daemon)) {
        tops.retain(|(daemon, _)| of_root(daemon));
    }
    if tops.len() > 1 {
        let of_node = |name: &Option<String>| name.as_deref() == Some(node);
        let count = tops.len();
        tops.retain(|(_, name)| of_node(name));
        if tops.len() != 1 {
            return Slurmd::Several(count);
        }
    }
    match tops.pop() {
        Some((daemon, _)) => Slurmd::Running(daemon),
        None => Slurmd::NotRunning,
    }
}

/// A slurmd, and the node's name that it was given.
fn daemon(proc: &Proc, pid: u32) -> (Daemon, Option<String>) {
    let arguments = proc.arguments(pid);
    let words = arguments.measured().map_or(&[][..], |words| words.get(1..).unwrap_or(&[]));
    let server = proc.variable(pid, "SLURM_CONF_SERVER").map(|server| server.is_some());
    let configless = match words.iter().any(|word| word.starts_with("--conf-server")) {
        true => Reading::Measured(true),
        false => server,
    };
    let daemon = Daemon {
        pid,
        uid: proc.real_uid(pid),
        by_option: option(words, 'f').map(PathBuf::from),
        by_variable: proc.variable(pid, "SLURM_CONF"),
        configless,
    };
    (daemon, option(words, 'N'))
}

/// The value of a short option, as getopt(3) reads it: `-f x`, `-fx`, `-Df x`.
fn option(words: &[String], wanted: char) -> Option<String> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.starts_with('-')) else {
            continue;
        };
        let Some(at) = letters.find(|letter| WITH_VALUE.contains(letter)) else { continue };
        let (_, from) = letters.split_at(at);
        let (letter, joined) = from.split_at(1);
        let value = match joined.is_empty() {
            true => words.next().cloned(),
            false => Some(joined.to_owned()),
        };
        if letter.starts_with(wanted) {
            return value;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A process: pid, name, parent, uid, command line, environment (`None`: not to be read).
    type Process = (u32, &'static str, u32, u32, &'static str, Option<&'static str>);

    fn proc(processes: &[Process]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("1")).unwrap();
        for (pid, comm, parent, uid, words, environment) in processes {
            let dir = folder.path().join(pid.to_string());
            fs::create_dir(&dir).unwrap();
            let stat =
                format!("{pid} ({comm}) S {parent} 1 1 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 7 1 2\n");
            fs::write(dir.join("stat"), stat).unwrap();
            fs::write(dir.join("status"), format!("Name:\t{comm}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"))
                .unwrap();
            fs::write(dir.join("cmdline"), words.replace(' ', "\0") + "\0").unwrap();
            if let Some(environment) = environment {
                fs::write(dir.join("environ"), environment.replace(' ', "\0")).unwrap();
            }
        }
        folder
    }

    #[test]
    fn the_daemon_is_told_from_its_children_and_from_those_who_only_call_themselves_so() {
        let table: [(&str, &[Process], Option<u32>); 6] = [
            ("alone", &[(9, "slurmd", 1, 0, "slurmd -D", Some(""))], Some(9)),
            (
                "with a child, and steps",
                &[
                    (9, "slurmd-wlm", 1, 0, "slurmd", Some("")),
                    (12, "slurmd", 9, 0, "slurmd", Some("")),
                    (13, "slurmstepd", 1, 0, "slurmstepd: [1.0]", Some("")),
                ],
                Some(9),
            ),
            (
                "a user's process of that name",
                &[
                    (9, "slurmd", 1, 0, "slurmd", Some("")),
                    (10, "slurmd", 1, 1001, "slurmd -f /tmp/x", Some("")),
                ],
                Some(9),
            ),
            ("of another user", &[(9, "slurmd", 1, 64030, "slurmd", Some(""))], Some(9)),
            ("none", &[(13, "slurmstepd", 1, 0, "slurmstepd: [1.0]", Some(""))], None),
            (
                "several on one host",
                &[
                    (9, "slurmd", 1, 0, "slurmd -N n2", Some("")),
                    (10, "slurmd", 1, 0, "slurmd -Nn1", Some("")),
                ],
                Some(10),
            ),
        ];
        for (name, processes, want) in table {
            let folder = proc(processes);
            let found = find(&Proc::at(folder.path()), "n1");
            assert_eq!(found.daemon().map(|daemon| daemon.pid), want, "{name}");
        }
        let hidden = tempfile::tempdir().unwrap();
        fs::create_dir(hidden.path().join("99")).unwrap();
        assert!(matches!(find(&Proc::at(hidden.path()), "n1"), Slurmd::Unknown(_)));
        let two = proc(&[(9, "slurmd", 1, 0, "slurmd", Some("")), (10, "slurmd", 1, 0, "slurmd", Some(""))]);
        assert_eq!(find(&Proc::at(two.path()), "n1"), Slurmd::Several(2));
    }

    #[test]
    fn which_file_it_was_told_to_read_is_known_or_said_to_be_unknown() {
        let told = |words, environment| {
            let folder = proc(&[(9, "slurmd", 1, 0, words, environment)]);
            let found = find(&Proc::at(folder.path()), "n1");
            (found.told(), found.was_told_nothing(), found.is_configless())
        };
        let file = |name: &str| Some(PathBuf::from(name));
        assert_eq!(told("slurmd -D -f /opt/a.conf", Some("")), (file("/opt/a.conf"), false, false));
        assert_eq!(
            told("slurmd -Df /opt/a.conf", Some("SLURM_CONF=/b")),
            (file("/opt/a.conf"), false, false)
        );
        assert_eq!(told("slurmd -f/opt/a.conf", None), (file("/opt/a.conf"), false, false));
        assert_eq!(told("slurmd -L f -N nf", Some("A= SLURM_CONF=/b")), (file("/b"), false, false));
        assert_eq!(told("slurmd -s --systemd", Some("A=1")), (None, true, false));
        assert_eq!(told("slurmd -s --systemd", None), (None, false, false));
        assert_eq!(told("slurmd --conf-server ctl", Some("")), (None, false, true));
        assert_eq!(told("slurmd", Some("SLURM_CONF_SERVER=ctl")), (None, false, true));
    }
}

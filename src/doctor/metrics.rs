//! The file for Prometheus: whether runs can write it, whether they do, and whether anybody reads it.

use super::look::Found;
use super::report::{Change, Line};
use super::state::{LATE, interval_ms};
use crate::deliver::metrics::{Name, PREFIX};
use crate::host::Proc;
use crate::host::files::{self, Disk, DiskKind, Look};
use crate::reading::Reading;
use crate::units::{WallMs, human_ms};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const CHECK: &str = "metrics";
/// node_exporter's kernel names: upstream's, and that of Debian's package, cut as the kernel cuts it.
const EXPORTERS: [&str; 3] = ["node_exporter", "node-exporter", "prometheus-node"];
const OPTION: &str = "--collector.textfile.directory";
/// What Debian's package reads where nothing is said.
const DEBIANS: &str = "/var/lib/prometheus/node-exporter";

/// What was found about the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Textfile {
    /// Its folder is there.
    pub made: bool,
    /// The disk of that folder, or of the nearest above it.
    pub disk: Look<Disk>,
    /// How old its own timestamp is, milliseconds.
    pub age_ms: Look<i64>,
    /// The folders that each running node_exporter reads.
    pub readers: Reading<Vec<Vec<PathBuf>>>,
}

impl Textfile {
    /// Looks. Of processes only those that are called like node_exporter are asked for their arguments.
    pub fn look(file: &Path, proc: &Proc, now: WallMs) -> Textfile {
        let folder = file.parent().unwrap_or(Path::new("/"));
        let age_ms = match files::head(file, 1 << 20) {
            Look::Is(text) => match written(&text) {
                Some(at_ms) => Look::Is(now.0 - at_ms),
                None => Look::Unknown("it holds no time of a run".to_owned()),
            },
            Look::NotThere => Look::NotThere,
            Look::Unknown(why) => Look::Unknown(why),
        };
        Textfile {
            made: files::nearest(folder) == folder,
            disk: files::disk(folder),
            age_ms,
            readers: readers(proc),
        }
    }
}

/// When the run ended that wrote such a text.
fn written(text: &str) -> Option<i64> {
    let name = Name::LastRun.metric().name;
    let line = text.lines().find_map(|line| line.strip_prefix(PREFIX)?.strip_prefix(name)?.strip_prefix(' '));
    let seconds: f64 = line?.trim().parse().ok()?;
    Some((seconds * 1000.0) as i64)
}

fn readers(proc: &Proc) -> Reading<Vec<Vec<PathBuf>>> {
    proc.all().map(|pids| {
        let is_one = |pid: &u32| {
            proc.facts(*pid).measured().is_some_and(|facts| EXPORTERS.contains(&facts.comm.as_str()))
        };
        let ours = pids.into_iter().filter(is_one);
        ours.filter_map(|pid| proc.arguments(pid).measured().map(|words| folders(words))).collect()
    })
}

/// The folders of a command line: `--option=FOLDER` or `--option FOLDER`, with one dash or two, more than once.
fn folders(words: &[String]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let Some(rest) = word.strip_prefix(OPTION).or_else(|| word.strip_prefix(&OPTION[1..])) else {
            continue;
        };
        let value =
            if rest.is_empty() { words.get(at + 1).map(String::as_str) } else { rest.strip_prefix('=') };
        found.extend(value.map(PathBuf::from));
    }
    if found.is_empty() && words.first().is_some_and(|program| program.ends_with("prometheus-node-exporter"))
    {
        found.push(DEBIANS.into());
    }
    found
}

/// The file for Prometheus, where one is named.
pub fn metrics(found: &Found) -> Vec<Line> {
    let Some(file) = &found.config.metrics.textfile else {
        let means = "no file is written for Prometheus";
        return vec![Line::ok(CHECK, "`metrics.textfile` is not set", means)];
    };
    let what = format!("`{}`", file.display());
    let Some(seen) = &found.textfile else {
        return vec![Line::unknown(
            CHECK,
            format!("{what} did not answer"),
            "whether runs write it is not known",
        )];
    };
    let folder = file.parent().unwrap_or(Path::new("/"));
    let lines =
        [cannot_be_written(folder, seen), is_old(found, &what, seen), is_read(found, &what, folder, seen)];
    let mut lines: Vec<Line> = lines.into_iter().flatten().collect();
    if lines.is_empty() {
        lines.push(Line::ok(CHECK, what, "written by the last run, in the folder that node_exporter reads"));
    }
    lines
}

fn cannot_be_written(folder: &Path, seen: &Textfile) -> Option<Line> {
    let what = format!("its folder `{}`", folder.display());
    if !seen.made {
        let mend = Change::run(format!("install -d -m 0755 {}", folder.display()));
        return Some(
            Line::warning(CHECK, format!("{what} is not there"), "no run can write the file")
                .mended_by([mend]),
        );
    }
    match &seen.disk {
        Look::Is(disk) if disk.read_only => {
            let mend = Change::run(format!("mount -o remount,rw {}", folder.display()));
            Some(
                Line::warning(CHECK, format!("{what} is read-only"), "no run can write the file")
                    .mended_by([mend]),
            )
        }
        Look::Is(disk) => match disk.kind() {
            Some((name, DiskKind::Network)) => {
                let means = "nodes would write over each other's file, and a file server that is gone holds every run";
                let mend = Change::run(format!("ls -ld {DEBIANS}"));
                Some(Line::warning(CHECK, format!("{what} is on {name}"), means).mended_by([mend]))
            }
            _ => None,
        },
        Look::NotThere => None,
        Look::Unknown(why) => {
            Some(Line::unknown(CHECK, format!("{what}: {why}"), "whether runs can write there is not known"))
        }
    }
}

fn is_old(found: &Found, what: &str, seen: &Textfile) -> Option<Line> {
    let look = || [Change::run("journalctl -t gpu-reaper-hc -n 20")];
    match &seen.age_ms {
        Look::Is(age_ms) if *age_ms > LATE * interval_ms(found) => {
            let means = "no later run has come to its end and could write it";
            Some(
                Line::warning(CHECK, format!("{what} is {} old", human_ms(*age_ms)), means).mended_by(look()),
            )
        }
        Look::Is(_) => None,
        Look::NotThere if !seen.made => None,
        Look::NotThere => {
            let means = "no run has written it yet; slurmd starts one within an interval, or do it now";
            let mend = [Change::run("gpu-reaper-hc")];
            Some(Line::warning(CHECK, format!("{what} is not there"), means).mended_by(mend))
        }
        Look::Unknown(why) => {
            Some(Line::unknown(CHECK, format!("{what}: {why}"), "how old it is is not known"))
        }
    }
}

fn is_read(found: &Found, what: &str, folder: &Path, seen: &Textfile) -> Option<Line> {
    let is_ours = |read: &PathBuf| read.components().eq(folder.components());
    match &seen.readers {
        Reading::Measured(all) if all.iter().flatten().any(is_ours) => None,
        Reading::Measured(all) => match all.iter().flatten().next() {
            Some(other) => {
                let file = other.join("gpu_reaper.prom");
                let means = format!("node_exporter reads `{}`, and not this folder", other.display());
                let mend = found.configure("metrics.textfile", &file.display().to_string());
                Some(Line::warning(CHECK, what, means).mended_by([mend]))
            }
            None => {
                let why = match all.is_empty() {
                    true => "no node_exporter is seen here",
                    false => "node_exporter says no folder for its textfile collector",
                };
                Some(Line::unknown(CHECK, why, format!("whether {what} is read by anybody is not known")))
            }
        },
        Reading::Absent(why) => {
            Some(Line::unknown(CHECK, why.words(), format!("whether {what} is read by anybody is not known")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Level;
    use super::super::testing::*;
    use super::*;
    use crate::reading::Absence;

    fn seen() -> Textfile {
        let disk = Disk { folder: DEBIANS.into(), magic: 0xEF53, free_bytes: 1 << 30, read_only: false };
        let readers = Reading::Measured(vec![vec![PathBuf::from(DEBIANS)]]);
        Textfile { made: true, disk: Look::Is(disk), age_ms: Look::Is(50_000), readers }
    }

    fn found(change: impl Fn(&mut Textfile)) -> Found {
        let mut found = right();
        found.config.metrics.textfile = Some(Path::new(DEBIANS).join("gpu_reaper.prom"));
        let mut seen = seen();
        change(&mut seen);
        found.textfile = Some(seen);
        found
    }

    #[test]
    fn a_file_that_nobody_writes_or_reads_is_told() {
        let on = |magic: u64| {
            move |seen: &mut Textfile| {
                if let Look::Is(disk) = &mut seen.disk {
                    disk.magic = magic;
                }
            }
        };
        type Case<'a> = (&'a dyn Fn(&mut Textfile), Level, &'a str);
        let table: &[Case] = &[
            (&|_| {}, Level::Ok, "written by the last run"),
            (&|s| (s.made, s.age_ms) = (false, Look::NotThere), Level::Warning, "no run can write"),
            (&on(0x6969), Level::Warning, "over each other's file"),
            (&|s| s.age_ms = Look::Is(200_000), Level::Warning, "no later run"),
            (&|s| s.age_ms = Look::NotThere, Level::Warning, "no run has written it yet"),
            (&|s| s.age_ms = Look::Unknown("no".into()), Level::Unknown, "how old"),
            (&|s| s.readers = Reading::Measured(vec![]), Level::Unknown, "read by anybody"),
            (&|s| s.readers = Reading::Measured(vec![vec![]]), Level::Unknown, "read by anybody"),
            (&|s| s.readers = Reading::Absent(Absence::NoPermission), Level::Unknown, "read by anybody"),
            (&|s| s.readers = Reading::Measured(vec![vec!["/x".into()]]), Level::Warning, "reads `/x`"),
            (
                &|s| {
                    s.readers =
                        Reading::Measured(vec![vec![], vec!["/x".into(), format!("{DEBIANS}/").into()]])
                },
                Level::Ok,
                "",
            ),
        ];
        for (change, level, means) in table {
            let lines = metrics(&found(change));
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert_eq!(lines[0].level, *level, "{lines:?}");
            assert!(lines[0].means.contains(means), "{means}: {lines:?}");
            assert!(*level != Level::Warning || !lines[0].change.is_empty(), "{lines:?}");
        }
        assert_eq!(metrics(&right())[0].level, Level::Ok);
        assert_eq!(metrics(&Found { textfile: None, ..found(|_| {}) })[0].level, Level::Unknown);
    }

    #[test]
    fn only_what_is_called_like_node_exporter_is_asked_what_it_reads() {
        let dir = tempfile::tempdir().unwrap();
        let process = |pid: u32, comm: &str, words: &str| {
            let folder = dir.path().join(pid.to_string());
            std::fs::create_dir(&folder).unwrap();
            let rest = "S 1 1 1 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 1 0 100 1 1 0";
            std::fs::write(folder.join("stat"), format!("{pid} ({comm}) {rest}\n")).unwrap();
            std::fs::write(folder.join("cmdline"), words.replace(' ', "\0") + "\0").unwrap();
        };
        process(7, "node_exporter", "/usr/bin/node_exporter --web.x=1 --collector.textfile.directory=/a");
        process(8, "prometheus-node", "/usr/bin/prometheus-node-exporter");
        process(9, "python", "python train.py --collector.textfile.directory=/secret");
        process(
            10,
            "node_exporter",
            "node_exporter -collector.textfile.directory /b --collector.textfile.directory=/c",
        );
        let Reading::Measured(mut all) = readers(&Proc::at(dir.path())) else { panic!("not readable") };
        all.sort();
        let folders = |all: &[&str]| all.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(all, [folders(&["/a"]), folders(&["/b", "/c"]), folders(&[DEBIANS])]);
    }

    #[test]
    fn a_file_says_itself_when_it_was_written() {
        let page = crate::deliver::metrics::Page {
            samples: vec![(
                Name::LastRun,
                vec![],
                crate::deliver::metrics::Number::Seconds(1_764_422_738_123),
            )],
            ..Default::default()
        };
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.prom");
        std::fs::write(&file, page.text()).unwrap();
        let look = |file: &Path| Textfile::look(file, &Proc::at(dir.path()), WallMs(1_764_422_740_123));
        assert_eq!(look(&file).age_ms, Look::Is(2000));
        assert!(look(&file).made);
        let gone = look(&dir.path().join("gone/x.prom"));
        assert!(!gone.made && gone.age_ms == Look::NotThere);
    }
}

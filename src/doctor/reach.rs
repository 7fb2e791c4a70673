//! Whether a run reaches Slurm: its commands, the cluster that they talk to, the node's name, the user that slurmd is.

use super::daemon::Slurmd;
use super::look::{DEFAULT_CONFS, Found, Named};
use super::report::{Change, Line};
use crate::host::files::Look;
use crate::slurm::NoAnswer;
use std::path::Path;

/// The releases that this version was tried with.
const OLDEST: (u16, u16) = (22, 5);
const NEWEST: (u16, u16) = (26, 5);

/// As whom slurmd runs, and whether it runs at all.
pub fn slurmd(found: &Found) -> Vec<Line> {
    const CHECK: &str = "slurmd";
    let root = "needed to drain, to read other users' processes, and to keep the ledger";
    let line = match (&found.slurmd, found.slurmd_uid()) {
        (_, Some(uid)) if uid != 0 => {
            let means = format!("it starts us as that user; root is {root}");
            Line::fault(CHECK, format!("slurmd runs as uid {uid}"), means)
                .mended_by([found.write("SlurmdUser", "root"), Change::run("systemctl restart slurmd")])
        }
        (Slurmd::Running(_), Some(_)) => Line::ok(CHECK, "slurmd runs as root", "and so do we"),
        (Slurmd::NotRunning, _) => {
            Line::warning(CHECK, "no slurmd runs", "nobody starts us, and what it would read is guessed")
                .mended_by([Change::run("systemctl enable --now slurmd")])
        }
        (Slurmd::Several(n), _) => {
            let why = format!("{n} slurmd run, and which is this node's cannot be told");
            Line::unknown(CHECK, why, "name the node as slurmd's -N does: gpu-reaper-hc --node NAME doctor")
        }
        (Slurmd::Unknown(why), _) => {
            Line::unknown(CHECK, why, "whether slurmd runs, and as whom, is not known")
        }
        (Slurmd::Running(_), None) => {
            Line::unknown(CHECK, "the user that slurmd runs as cannot be read", format!("root is {root}"))
        }
    };
    vec![line]
}

/// slurmd passes its SLURM_CONF on to hooks and not to us: whether the commands find the same file by themselves.
pub fn conf_for_commands(found: &Found) -> Vec<Line> {
    const CHECK: &str = "commands-conf";
    let confs = &found.confs;
    let key = |path: &Path| found.configure("slurm.conf", &path.display().to_string());
    let Some(told) = told(found) else {
        return match (&found.slurmd, &confs.key) {
            (Slurmd::Running(_), None) if found.slurmd.was_told_nothing() => {
                vec![Line::ok(
                    CHECK,
                    "slurmd was told no slurm.conf",
                    "it and the commands look in the same places",
                )]
            }
            (_, Some(named)) => {
                let what = format!("the commands are given {}", named.path.display());
                match named.facts {
                    Look::NotThere => {
                        let means = "that does not exist: each command hangs for a minute and says nothing";
                        vec![
                            Line::fault(CHECK, what, means)
                                .mended_by(found.confs.default.as_ref().map(|d| key(&d.path))),
                        ]
                    }
                    _ if found.slurmd.was_told_nothing() => default_or_key(found, named, what),
                    _ => vec![Line::unknown(CHECK, what, "which slurm.conf slurmd reads cannot be seen")],
                }
            }
            (_, None) => {
                let why = "which slurm.conf slurmd reads cannot be seen";
                vec![Line::unknown(
                    CHECK,
                    why,
                    "whether the commands of a run find the same one is not known",
                )]
            }
        };
    };
    let what = format!("slurmd reads {}", told.path.display());
    match (&confs.key, &confs.default) {
        (Some(given), _) if given.is_same_as(told) => {
            vec![Line::ok(CHECK, what, "and the commands are given it")]
        }
        (Some(given), _) => {
            let means = format!(
                "slurmd passes no SLURM_CONF on to a health check, and `slurm.conf` gives the commands {}{}",
                given.path.display(),
                other_cluster(told, given)
            );
            vec![Line::fault(CHECK, what, means).mended_by([key(&told.path)])]
        }
        (None, Some(default)) if default.is_same_as(told) => {
            vec![Line::ok(CHECK, what, "and the commands find it by themselves")]
        }
        (None, Some(default)) => {
            let means = format!(
                "slurmd passes no SLURM_CONF on to a health check, and the commands find {}, which stands there \
                 still{}",
                default.path.display(),
                other_cluster(told, default)
            );
            vec![Line::fault(CHECK, what, means).mended_by([key(&told.path)])]
        }
        (None, None) => by_answer(found, told, what, key(&told.path)),
    }
}

/// The file that slurmd was told to read, or that slurmctld sends it.
fn told(found: &Found) -> Option<&Named> {
    let configless = found.slurmd.is_configless();
    found.confs.told.as_ref().or(found.confs.used.as_ref().filter(|_| configless))
}

/// slurmd was told nothing, and the commands are given a file: it had better be the one that slurmd finds.
fn default_or_key(found: &Found, given: &Named, what: String) -> Vec<Line> {
    const CHECK: &str = "commands-conf";
    match &found.confs.default {
        Some(default) if !default.is_same_as(given) => {
            let means = format!("slurmd reads {}{}", default.path.display(), other_cluster(default, given));
            let mend = found.configure("slurm.conf", "null");
            vec![Line::fault(CHECK, what, means).mended_by([mend])]
        }
        _ => vec![Line::ok(CHECK, what, "which is what slurmd reads")],
    }
}

/// Where neither usual place has a file: the commands may have been built with another one. Their answer tells.
fn by_answer(found: &Found, told: &Named, what: String, mend: Change) -> Vec<Line> {
    const CHECK: &str = "commands-conf";
    let answered = found.shown.as_ref().ok().and_then(|shown| shown.value("ClusterName"));
    match (answered, cluster(told)) {
        (Some(one), Some(two)) if one == two => {
            vec![Line::ok(CHECK, what, format!("and the commands reach cluster `{one}` by themselves"))]
        }
        (Some(one), Some(two)) => {
            let means = format!("the commands by themselves reach cluster `{one}`, slurmd's is `{two}`");
            vec![Line::fault(CHECK, what, means).mended_by([mend])]
        }
        _ => {
            let means = format!(
                "slurmd passes no SLURM_CONF on to a health check, and there is none in {}: each command hangs for a \
                 minute and says nothing",
                DEFAULT_CONFS.join(" or ")
            );
            vec![Line::fault(CHECK, what, means).mended_by([mend])]
        }
    }
}

fn cluster(named: &Named) -> Option<&str> {
    Some(&named.conf.is()?.value("ClusterName")?.value)
}

fn other_cluster(told: &Named, other: &Named) -> String {
    match (cluster(told), cluster(other)) {
        (Some(one), Some(two)) if one != two => format!(": they talk to cluster `{two}` in place of `{one}`"),
        _ => String::new(),
    }
}

/// The four commands: where they lie, and whether root may run them.
pub fn commands(found: &Found) -> Vec<Line> {
    const CHECK: &str = "commands";
    let missing = found.commands.iter().filter_map(|(name, at)| Some((*name, at.as_ref().err()?)));
    let mut lines = Vec::new();
    for (name, why) in missing {
        let unseen = !found.root && why.contains("Permission denied");
        if unseen || why.starts_with("no answer") {
            lines.push(Line::unknown(
                CHECK,
                format!("{name}: {why}"),
                "whether root can run it is not known",
            ));
            continue;
        }
        // The usual text of a folder that belongs to a user `slurm`, or that a group may write.
        let mend = match why.split("its folder `").nth(1).and_then(|rest| rest.split('`').next()) {
            Some(folder) => Change::run(format!("chown root:root {folder} && chmod go-w {folder}")),
            None if why.contains("no program") => found.configure("slurm.bin_dir", "/PATH/TO/SLURM/bin"),
            None => Change::run(format!(
                "chown root:root $(command -v {name}) && chmod go-w $(command -v {name})"
            )),
        };
        let means = match name {
            "scontrol" | "scancel" => "nothing can be drained, lifted or cancelled",
            _ => "no job and no node can be asked for",
        };
        lines.push(
            Line::fault(CHECK, format!("{name}: {why}"), format!("root does not run it: {means}"))
                .mended_by([mend]),
        );
    }
    if lines.is_empty() {
        let mut folders: Vec<String> = found
            .commands
            .iter()
            .filter_map(|(_, at)| Some(at.as_ref().ok()?.parent()?.display().to_string()))
            .collect();
        folders.dedup();
        let names: Vec<&str> = found.commands.iter().map(|(name, _)| *name).collect();
        let what = format!("{} in {}", names.join(", "), folders.join(", "));
        lines.push(Line::ok(CHECK, what, "and nobody but root can change them"));
    }
    lines.push(version(found));
    lines
}

fn version(found: &Found) -> Line {
    const CHECK: &str = "version";
    let show = |(year, month): (u16, u16)| format!("{year}.{month:02}");
    let (commands, daemon) = (found.release.as_ref().ok().copied(), found.version());
    let Some(version) = daemon.or(commands) else {
        let why = match &found.release {
            Err(silence) => silence.to_string(),
            Ok(_) => "it is not known".to_owned(),
        };
        return Line::unknown(
            CHECK,
            why,
            "how a cancel is tied to one job run depends on the version: while it is not known nothing is cancelled",
        );
    };
    let what = format!("Slurm {}", show(version));
    let known = format!("{} to {}", show(OLDEST), show(NEWEST));
    if version < OLDEST || version > NEWEST {
        let means =
            format!("this version was tried with {known}: watch it under `mode: observe` before it acts");
        let mend = found.configure("mode", "observe");
        return Line::warning(CHECK, what, means).mended_by([mend]);
    }
    if let Some(commands) = commands.filter(|commands| *commands > version) {
        let means = format!(
            "the commands are of {}: slurmctld understands none that is newer than itself",
            show(commands)
        );
        let mend = found.configure("slurm.bin_dir", "/PATH/TO/SLURM/bin");
        return Line::warning(CHECK, what, means).mended_by([mend]);
    }
    Line::ok(CHECK, what, format!("one of {known}, which were tried"))
}

/// Whether Slurm knows the node by the name that we have for it.
pub fn node_name(found: &Found) -> Vec<Line> {
    const CHECK: &str = "node";
    let what = format!("node `{}`", found.node);
    let means = "every question about it and every deed is answered `Invalid node name`, silently under slurmd; here, name \
                 it as slurm.conf does";
    let rename = || Change::run("gpu-reaper-hc --node NAME doctor");
    let line = match &found.shown_node {
        Ok(_) => Line::ok(CHECK, what, "slurmctld knows it"),
        Err(NoAnswer::UnknownNode(_)) => {
            Line::fault(CHECK, what, format!("slurmctld knows no such node: {means}")).mended_by([rename()])
        }
        Err(silence) => match found.confs.conf().map(|conf| conf.node(&found.node, "gres")) {
            Ok(Ok(Some(_))) => Line::ok(CHECK, what, "slurm.conf names it; slurmctld was not asked"),
            Ok(Ok(None)) => Line::fault(CHECK, what, format!("slurm.conf names no such node: {means}"))
                .mended_by([rename()]),
            Ok(Err(why)) | Err(why) => Line::unknown(
                CHECK,
                format!("{what}: {silence}; {why}"),
                "whether Slurm knows it is not known",
            ),
        },
    };
    vec![line]
}

#[cfg(test)]
mod tests {
    use super::super::report::Level;
    use super::super::testing::{level_of, levels_of, named, right, shown, silent, slurmd as daemon};
    use super::*;

    #[test]
    fn slurmd_is_root_and_runs() {
        let mut found = right();
        assert_eq!(level_of(slurmd(&found)), Level::Ok);
        found.slurmd = daemon(64030, "");
        assert_eq!(level_of(slurmd(&found)), Level::Fault);
        for (slurmd_is, want) in [
            (Slurmd::NotRunning, Level::Warning),
            (Slurmd::Several(2), Level::Unknown),
            (Slurmd::Unknown("not permitted".into()), Level::Unknown),
        ] {
            found.slurmd = slurmd_is;
            assert_eq!(level_of(slurmd(&found)), want);
        }
        found.shown = shown("SlurmdUser", "slurm(64030)", "24.11.5");
        assert_eq!(level_of(slurmd(&found)), Level::Fault, "said, though none runs");
    }

    #[test]
    fn a_slurm_conf_elsewhere_must_be_given_to_the_commands() {
        // told, key, default: which cluster each file is of.
        type Files = (
            Option<(&'static str, &'static str)>,
            Option<(&'static str, &'static str)>,
            Option<&'static str>,
        );
        let table: [(&str, Files, Level, &str); 8] = [
            ("the usual place", (None, None, Some("c1")), Level::Ok, "same places"),
            (
                "the usual place, told",
                (Some(("/etc/slurm/slurm.conf", "c1")), None, Some("c1")),
                Level::Ok,
                "by themselves",
            ),
            (
                "elsewhere, given",
                (Some(("/opt/s.conf", "c1")), Some(("/opt/s.conf", "c1")), None),
                Level::Ok,
                "are given it",
            ),
            (
                "elsewhere, with a stale one",
                (Some(("/opt/s.conf", "c1")), None, Some("old")),
                Level::Fault,
                "cluster `old` in place of `c1`",
            ),
            (
                "elsewhere, built so",
                (Some(("/opt/s.conf", "c1")), None, None),
                Level::Ok,
                "reach cluster `c1`",
            ),
            (
                "elsewhere, another given",
                (Some(("/opt/s.conf", "c1")), Some(("/opt/t.conf", "c2")), None),
                Level::Fault,
                "gives the commands /opt/t.conf",
            ),
            (
                "elsewhere, another answers",
                (Some(("/opt/s.conf", "c3")), None, None),
                Level::Fault,
                "reach cluster `c1`, slurmd's is `c3`",
            ),
            (
                "the usual place, another given",
                (None, Some(("/opt/t.conf", "c2")), Some("c1")),
                Level::Fault,
                "slurmd reads /etc/slurm/slurm.conf",
            ),
        ];
        for (name, (told, key, default), want, words) in table {
            let mut found = right();
            let file = |(path, cluster): (&str, &str)| named(path, &format!("ClusterName={cluster}\n"));
            found.slurmd = daemon(0, told.map_or("", |(path, _)| path));
            found.confs.told = told.map(file);
            found.confs.key = key.map(file);
            found.confs.default = default.map(|cluster| file(("/etc/slurm/slurm.conf", cluster)));
            let lines = conf_for_commands(&found);
            assert!(lines[0].means.contains(words), "{name}: {lines:?}");
            if want == Level::Fault {
                assert!(lines[0].change[0].to_string().contains("slurm: { conf: "), "{name}: {lines:?}");
            }
            assert_eq!(level_of(lines), want, "{name}");
        }
    }

    #[test]
    fn nowhere_and_silent_is_a_fault_and_unseen_is_unknown() {
        let mut found = silent("NodeName=n1\n");
        found.slurmd = daemon(0, "/opt/s.conf");
        found.confs.told = Some(named("/opt/s.conf", "ClusterName=c1\n"));
        found.confs.default = None;
        assert_eq!(level_of(conf_for_commands(&found)), Level::Fault);
        found.confs.told = None;
        found.slurmd = Slurmd::NotRunning;
        assert_eq!(level_of(conf_for_commands(&found)), Level::Unknown);
    }

    #[test]
    fn a_command_that_root_does_not_run_is_told_with_what_to_do() {
        let mut found = right();
        assert_eq!(levels_of(&commands(&found)), [Level::Ok, Level::Ok]);
        let why = "`/opt/slurm/bin/scontrol`: its folder `/opt/slurm` belongs to uid 64030, not to root";
        found.commands[0].1 = Err(why.to_owned());
        let lines = commands(&found);
        assert_eq!(levels_of(&lines), [Level::Fault, Level::Ok]);
        assert_eq!(
            lines[0].change[0].to_string(),
            "run: chown root:root /opt/slurm && chmod go-w /opt/slurm"
        );
        found.commands[0].1 = Err("no program `scontrol` in PATH or /usr/bin".to_owned());
        assert!(commands(&found)[0].change[0].to_string().contains("bin_dir"));
    }

    #[test]
    fn a_release_that_was_not_tried_is_told() {
        for (number, commands_are, want) in [
            ("22.05.8", (22, 5), Level::Ok),
            ("26.05.5", (26, 5), Level::Ok),
            ("26.11.0", (26, 5), Level::Warning),
            ("21.08.8", (21, 8), Level::Warning),
            ("24.11.5", (25, 5), Level::Warning),
        ] {
            let mut found = right();
            found.shown = shown("PrologFlags", "Alloc", number);
            found.release = Ok(commands_are);
            assert_eq!(version(&found).level, want, "{number}");
        }
        let mut found = silent("NodeName=n1\n");
        found.release = Err(NoAnswer::TimedOut { program: "scontrol", limit_ms: 6000 });
        assert_eq!(version(&found).level, Level::Unknown);
    }

    #[test]
    fn the_name_must_be_slurms() {
        // mej/nhc#19, #110 (ND-01)
        let mut found = right();
        assert_eq!(level_of(node_name(&found)), Level::Ok);
        let name = crate::units::NodeName::new("n1").unwrap();
        found.shown_node = Err(NoAnswer::UnknownNode(name));
        assert_eq!(level_of(node_name(&found)), Level::Fault);
        assert_eq!(level_of(node_name(&silent("NodeName=n[1-2]\n"))), Level::Ok);
        assert_eq!(level_of(node_name(&silent("NodeName=n2\n"))), Level::Fault);
        assert_eq!(level_of(node_name(&silent("NodeName=n[\n"))), Level::Unknown);
    }
}

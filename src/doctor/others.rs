//! Others on this node that bring nodes back: what lifts a drain without asking whose it is would lift ours.

use super::look::{Found, Others};
use super::report::{Change, Line};
use super::settings::Key;
use super::slot::{self, assigned};
use crate::host::files::Look;
use crate::policy::reason::PREFIX;
use std::path::Path;

const CHECK: &str = "others";

/// NHC, cron, and what stands in the slot.
pub fn others(found: &Found) -> Vec<Line> {
    let Some(others) = &found.others else {
        return vec![Line::unknown(
            CHECK,
            "NHC's and cron's files did not answer",
            "whether others lift drains is not known",
        )];
    };
    let mut lines: Vec<Line> = in_slot(found).into_iter().collect();
    let crons = others.crons.iter().filter_map(|(path, text)| Some((path.as_path(), text.is()?)));
    lines.extend(crons.filter_map(|(path, text)| {
        let off = |line: &str, number| Change::Write {
            file: path.display().to_string(),
            line: Some(number),
            text: format!("# {line}"),
        };
        resumes(path, text, off)
    }));
    for (path, text) in &others.crons {
        if let Look::Unknown(why) = text {
            let what = format!("`{}`: {why}", path.display());
            lines.push(Line::unknown(CHECK, what, "whether cron brings nodes back is not known"));
        }
    }
    if lines.is_empty() {
        let what = "neither what stands in the slot nor /etc/crontab, /etc/cron.d and root's crontab bring nodes back";
        let means = "not looked at: crontabs of other users, cron.hourly and its like, systemd's timers, what those call, \
                     other hosts";
        lines.push(Line::ok(CHECK, what, means));
    }
    nhc(others).into_iter().chain(lines).collect()
}

/// The program in the slot, where it is a script.
fn in_slot(found: &Found) -> Option<Line> {
    const MEANS: &str = "whether what stands in the slot brings nodes back is not known";
    let unknown = |why: String| Some(Line::unknown(CHECK, why, MEANS));
    let script = match (found.key("HealthCheckProgram"), &found.program) {
        (Key::Unset, _) => return None,
        (Key::Unknown(why), _) => return unknown(why),
        (Key::Said(said), None) => return unknown(format!("`{}` was not looked at", said.value)),
        (Key::Said(_), Some(script)) => script,
    };
    let path = script.path.as_path();
    match &script.text {
        Look::NotThere => None,
        Look::Unknown(why) => unknown(format!("`{}`: {why}", path.display())),
        Look::Is(text) if text.contains('\0') => match slot::is_us(script, &found.us_facts) {
            true => None,
            false => unknown(format!("`{}` is no script", path.display())),
        },
        Look::Is(text) => {
            let how = format!(
                "only where the node has no Reason of ours and sinfo says so: `if {}; then` before it and `fi` after it, NODE \
                 being the one that it brings back",
                guard()
            );
            let file = path.display().to_string();
            resumes(path, text, |_, number| Change::Edit { file, line: Some(number), how })
        }
    }
}

/// True in a shell where sinfo answers, and not with a Reason of ours.
fn guard() -> String {
    format!("r=$(sinfo -h -n NODE -o %E) && case $r in ''|*{}*) false;; esac", PREFIX.trim_end())
}

/// Whether a line sets a node to RESUME, which lifts every drain.
fn sets_resume(line: &str) -> bool {
    let lower = line.to_ascii_lowercase();
    let said = |rest: &str| rest.trim_start_matches(['"', '\'', ' ']).starts_with("resume");
    !line.contains('\0')
        && !line.trim_start().starts_with('#')
        && lower.contains("scontrol")
        && lower.split("state=").skip(1).any(said)
}

fn resumes(path: &Path, text: &str, mend: impl FnOnce(&str, usize) -> Change) -> Option<Line> {
    let (number, line) = (1..).zip(text.lines()).find(|(_, line)| sets_resume(line))?;
    let what = format!("{}, line {number}: {}", path.display(), line.trim());
    let means = "it brings nodes back; where it does not look whose Reason stands there it lifts our drains, and such a drain \
                 is not made again for that job";
    Some(Line::warning(CHECK, what, means).mended_by([mend(line.trim(), number)]))
}

/// NHC drains and brings back by itself unless it is told not to. Its own helper leaves a node alone whose Reason does not
/// begin with `NHC:` (node-mark-online of mej/nhc); ours begins otherwise.
fn nhc(others: &Others) -> Option<Line> {
    let program = others.nhc.as_ref()?.display();
    let said = |name: &str| {
        let lines = others.nhc_texts.iter().filter_map(|(path, text)| Some((path, text.is()?)));
        let all =
            lines.flat_map(|(path, text)| (1..).zip(text.lines()).map(move |(n, line)| (path, n, line)));
        let code = all.filter(|(_, _, line)| !line.trim_start().starts_with('#'));
        code.filter_map(|(path, n, line)| Some((path, n, line, assigned(line, name)?))).last()
    };
    let what = format!("NHC is installed ({program})");
    if let Some((path, why)) = others.nhc_texts.iter().find_map(|(path, text)| match text {
        Look::Unknown(why) => Some((path, why)),
        Look::Is(_) | Look::NotThere => None,
    }) {
        let why = format!("{what}; `{}`: {why}", path.display());
        return Some(Line::unknown(CHECK, why, "whether it lifts drains of others is not known"));
    }
    if said("MARK_OFFLINE").is_some_and(|(.., value)| value == "0") {
        return Some(Line::ok(CHECK, what, "it neither drains nor brings back (MARK_OFFLINE=0)"));
    }
    let odd = ["ONLINE_NODE", "SLURM_SC_ONLINE_ARGS"].into_iter().find_map(|name| Some((name, said(name)?)));
    if let Some((name, (path, n, line, _))) = odd {
        let means = format!(
            "`{name}` replaces what NHC brings a node back with: NHC's own leaves alone what it did not drain"
        );
        let mend = Change::Write {
            file: path.display().to_string(),
            line: Some(n),
            text: format!("# {}", line.trim()),
        };
        return Some(Line::warning(CHECK, what, means).mended_by([mend]));
    }
    let (helper, text) = match &others.nhc_helper {
        Some((path, Look::Is(text))) => (path.display(), text),
        Some((path, Look::Unknown(why))) => {
            let why = format!("{what}; `{}`: {why}", path.display());
            return Some(Line::unknown(CHECK, why, "whether it lifts drains of others is not known"));
        }
        Some((_, Look::NotThere)) | None => {
            let why = format!("{what}, its node-mark-online was not found");
            return Some(Line::unknown(CHECK, why, "whether it lifts drains of others is not known"));
        }
    };
    if text.contains("NHC:") && text.contains("OLD_NOTE_LEADER") {
        let means =
            format!("{helper} brings back only what begins with `NHC:`, which no Reason of ours does");
        return Some(Line::ok(CHECK, what, means));
    }
    let means = format!(
        "{helper} does not look whose Reason stands on the node: it lifts our drains, and such a drain is not made again for that job"
    );
    let file = others.nhc_confs().next().map_or(Path::new("/etc/nhc/nhc.conf"), |(path, _)| path);
    Some(Line::warning(CHECK, what, means).mended_by([Change::add(file, "* || export MARK_OFFLINE=0")]))
}

#[cfg(test)]
mod tests {
    use super::super::report::Level;
    use super::super::scripts::Script;
    use super::super::testing::{level_of, right, script, shown_with, silent};
    use super::*;

    const HELPER: &str = "LEADER=\"NHC:\"\n[[ \"$OLD_NOTE_LEADER\" != \"$LEADER\" ]] && exit 0\n";

    /// `BACK` stands for what brings a node back, which stands nowhere in these sources.
    fn text(text: &str) -> Look<String> {
        Look::Is(text.replace("BACK", concat!("State=", "RESUME")))
    }

    fn with(nhc: Option<&str>, conf: &str, helper: Option<&str>, cron: &str) -> Vec<Line> {
        let mut found = right();
        let named = |name: &str, said: &str| (name.into(), text(said));
        found.others = Some(Others {
            nhc: nhc.map(Into::into),
            nhc_texts: vec![named("/etc/nhc/nhc.conf", conf)],
            nhc_helper: helper.map(|helper| named("/usr/libexec/nhc/node-mark-online", helper)),
            crons: vec![named("/etc/crontab", cron)],
        });
        others(&found)
    }

    #[test]
    fn whoever_lifts_drains_that_are_not_its_own_is_told() {
        // mej/nhc#134, #95 (ND-04)
        let nhc = Some("/usr/sbin/nhc");
        let table = [
            (None, "", None, "", Level::Ok),
            (nhc, "", Some(HELPER), "", Level::Ok),
            (nhc, "* || export MARK_OFFLINE=0\n", None, "", Level::Ok),
            (nhc, "# * || export MARK_OFFLINE=0\n", Some("scontrol update\n"), "", Level::Warning),
            (nhc, "* || export ONLINE_NODE=/opt/online\n", Some(HELPER), "", Level::Warning),
            (nhc, "", Some("exec scontrol update\n"), "", Level::Warning),
            (nhc, "", None, "", Level::Unknown),
            (None, "", None, "* * * * * root scontrol update nodename=$n BACK\n", Level::Warning),
            (None, "", None, "* * * * * root scontrol update nodename=n1 BACK reason=x\n", Level::Warning),
            (None, "", None, "# scontrol update nodename=n1 BACK\n", Level::Ok),
            (None, "", None, "scontrol update nodename=n1 state=drain reason=resume\n", Level::Ok),
        ];
        for (program, conf, helper, cron, want) in table {
            let lines = with(program, conf, helper, cron);
            assert_eq!(level_of(lines.clone()), want, "{conf:?} {cron:?}: {lines:?}");
        }
    }

    #[test]
    fn what_stands_in_the_slot_and_was_not_read_is_not_ok() {
        let with = |change: &dyn Fn(&mut Found)| {
            let mut found = right();
            change(&mut found);
            level_of(others(&found))
        };
        assert_eq!(with(&|_| {}), Level::Ok);
        assert_eq!(with(&|f| f.program = None), Level::Unknown);
        assert_eq!(
            with(&|f| f.shown = shown_with(&[("HealthCheckProgram", "/x/nhc")])),
            Level::Ok,
            "by its file"
        );
        assert_eq!(with(&|f| f.program.as_mut().unwrap().text = Look::Unknown("no".into())), Level::Unknown);
        let binary = |f: &mut Found| {
            f.program = Some(Script { text: text("\u{7f}ELF\0"), ..script("/x/check") });
            f.us_facts = Look::NotThere;
        };
        assert_eq!(with(&binary), Level::Unknown, "a program that is none of ours");
        let unset = |f: &mut Found| {
            *f = silent("ClusterName=c1\n");
            f.program = None;
        };
        assert_eq!(with(&unset), Level::Ok, "nothing stands there");
    }

    #[test]
    fn the_guard_lets_a_line_run_only_where_no_drain_of_ours_stands() {
        let guard = guard().replace("NODE", "n1");
        for (shell, line) in [
            ("dash", "true && echo ran"),
            ("bash", "true && echo ran"),
            ("dash", "echo ran # so"),
            ("bash", "echo ran;"),
        ] {
            for (says, status, want) in [
                ("none", 0, "ran\n"),
                ("NHC: disk", 0, "ran\n"),
                ("gpu-reaper: idle job=7", 0, ""),
                ("", 0, ""),
                ("none", 1, ""),
            ] {
                let text = format!(
                    "set -e\nsinfo() {{ [ \"$*\" = '-h -n n1 -o %E' ] && echo '{says}'; return {status}; }}\n\
                     if {guard}; then\n{line}\nfi\n"
                );
                let Ok(said) = std::process::Command::new(shell).args(["-c", &text]).output() else {
                    println!("SKIPPED: {shell} is not there");
                    continue;
                };
                let out = String::from_utf8_lossy(&said.stdout).into_owned();
                assert_eq!((out.as_str(), said.status.code()), (want, Some(0)), "{shell}: {text} {said:?}");
            }
        }
    }

    #[test]
    fn a_script_in_the_slot_is_read_too_and_what_is_unread_is_not_ok() {
        let mut found = right();
        found.program.as_mut().unwrap().text = text("#!/bin/sh\n/x/scontrol update NodeName=$n BACK\n");
        let lines = others(&found);
        assert!(lines[0].found.contains("line 2"), "{lines:?}");
        let mend = lines[0].change[0].to_string();
        assert!(
            mend.contains("line 2: only where") && mend.contains("case $r in ''|*gpu-reaper:*)"),
            "{mend}"
        );
        assert_eq!(level_of(lines), Level::Warning);
        found = right();
        found.others.as_mut().unwrap().crons =
            vec![("/var/spool/cron/root".into(), Look::Unknown("no".into()))];
        assert_eq!(level_of(others(&found)), Level::Unknown);
        found.others = None;
        assert_eq!(level_of(others(&found)), Level::Unknown);
    }
}

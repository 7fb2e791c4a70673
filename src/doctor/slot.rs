//! The one slot that Slurm has for a health check: who stands in it, and whether slurmd can start that.

use super::look::{Found, Others};
use super::report::{Change, Line};
use super::scripts::Script;
use super::settings::Key;
use crate::host::files::{FileFacts, Look};
use std::path::Path;

const CHECK: &str = "slot";
const KEY: &str = "HealthCheckProgram";
/// How long NHC lets its checks go on, all together, where nobody says otherwise.
const NHC_LIMIT_S: u64 = 30;
/// The check of hooks/nhc/.
const NHC_CHECK: &str = "check_gpu_reaper";

/// Who stands there.
#[derive(Debug, PartialEq, Eq)]
enum Who {
    /// This very file.
    Us,
    /// Another file of our name.
    OfOurName,
    /// A script that calls us.
    Wrapper,
    /// LBNL NHC, or a script that calls it and not us.
    Nhc,
    /// Something else.
    Other,
    /// It could not be read.
    Unread(String),
}

fn who(script: &Script, us: &Look<FileFacts>) -> Who {
    let name = script.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if let (Some(there), Some(us)) = (script.facts.is(), us.is())
        && there.id == us.id
    {
        return Who::Us;
    }
    let words = match (&script.text, script.words()) {
        (Look::Unknown(why), _) => return Who::Unread(why.clone()),
        (_, None) if name.starts_with("gpu-reaper-hc") => return Who::OfOurName,
        (_, words) => words.unwrap_or_default(),
    };
    if words.contains("gpu-reaper-hc") {
        return Who::Wrapper;
    }
    let in_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let names_nhc = words.split(|c| !in_word(c)).any(|word| word == "nhc" || word == "nhc-wrapper");
    match name.starts_with("nhc") || names_nhc {
        true => Who::Nhc,
        false => Who::Other,
    }
}

/// Whether it is this program, by its file or by its name.
pub fn is_us(script: &Script, us: &Look<FileFacts>) -> bool {
    matches!(who(script, us), Who::Us | Who::OfOurName)
}

/// Where slurmd is to find us: where this file lies, if that is no place of a build or of somebody's home.
fn installed(us: &Path) -> String {
    let is_installed = ["/usr", "/opt", "/sbin"].iter().any(|folder| us.starts_with(folder));
    let named_so = us.file_name().is_some_and(|name| name == "gpu-reaper-hc");
    let path = if is_installed && named_so { us } else { Path::new("/usr/sbin/gpu-reaper-hc") };
    path.display().to_string()
}

/// Whether slurmd starts us.
pub fn slot(found: &Found) -> Vec<Line> {
    let us = installed(&found.us);
    let mend = || found.rewrite(KEY, &us);
    let said = match found.key(KEY) {
        Key::Unknown(why) => return vec![Line::unknown(CHECK, why, "whether slurmd starts us is not known")],
        Key::Unset => {
            let means = "slurmd starts no health check: nothing is ever seen";
            return vec![Line::fault(CHECK, format!("{KEY} is not set"), means).mended_by(mend())];
        }
        Key::Said(said) => said,
    };
    let what = format!("{KEY}={} ({})", said.value, said.by);
    let fault = |means: &str| vec![Line::fault(CHECK, &what, means).mended_by(mend())];
    if said.value.contains(char::is_whitespace) {
        return fault(
            "it can have no arguments: slurmd takes all of it for a file name, and logs status 127",
        );
    }
    if !said.value.starts_with('/') {
        return fault("it must begin with `/`: slurmd runs nothing else, and logs status 127");
    }
    let Some(script) = &found.program else {
        return vec![Line::unknown(CHECK, what, "the file was not looked at")];
    };
    let mut lines = match &script.facts {
        Look::NotThere => {
            let means = "there is no such file: slurmd logs status 127 and runs nothing";
            let install = Change::run(format!("install -m 0755 target/release/gpu-reaper-hc {us}"));
            let ways = if said.value == us { vec![install] } else { mend().into() };
            return vec![Line::fault(CHECK, &what, means).mended_by(ways)];
        }
        Look::Unknown(why) => {
            return vec![Line::unknown(
                CHECK,
                format!("{what}: {why}"),
                "whether slurmd can start it is not known",
            )];
        }
        Look::Is(facts) => rights(found, script, facts, &what),
    };
    lines.extend(calls(script, &what));
    lines.extend(match who(script, &found.us_facts) {
        Who::Us if lines.is_empty() => vec![Line::ok(CHECK, what, "slurmd starts this program")],
        Who::OfOurName if lines.is_empty() => {
            let means = format!(
                "slurmd starts a file of our name, which is not the one that runs now, {}",
                found.us.display()
            );
            vec![Line::ok(CHECK, what, means)]
        }
        Who::Wrapper if lines.is_empty() => {
            vec![Line::ok(
                CHECK,
                what,
                "a script that names gpu-reaper-hc: whether it always calls it is not known",
            )]
        }
        Who::Us | Who::OfOurName | Who::Wrapper => vec![],
        Who::Nhc => nhc(found, found.others.as_ref(), &what),
        Who::Other => fault("that is neither gpu-reaper-hc nor a script that names it: we are never started"),
        Who::Unread(why) => {
            vec![Line::unknown(CHECK, format!("{what}: {why}"), "whether it calls us is not known")]
        }
    });
    lines
}

/// Whether slurmd may start it, and nobody else may change it: root runs it.
fn rights(found: &Found, script: &Script, facts: &FileFacts, what: &str) -> Vec<Line> {
    let path = script.path.display();
    let chmod = || [Change::run(format!("chmod 0755 {path}"))];
    if !facts.regular {
        return vec![
            Line::fault(CHECK, what, "that is no regular file")
                .mended_by(found.rewrite(KEY, "/usr/sbin/gpu-reaper-hc")),
        ];
    }
    let mut lines = Vec::new();
    let mode = format!("{what}, mode {:04o}", facts.mode);
    if !facts.runs_for(found.slurmd_uid().unwrap_or(0)) {
        let means = "slurmd must be able to read and to execute it, else it logs status 127 and runs nothing";
        lines.push(Line::fault(CHECK, mode, means).mended_by(chmod()));
    } else if facts.mode & 0o005 != 0o005 {
        let means = "slurmd asks to read and to execute it, which here root alone may: not over a file server that \
                     takes root for nobody";
        lines.push(Line::warning(CHECK, mode, means).mended_by(chmod()));
    }
    match &script.changeable {
        Look::Is(None) | Look::NotThere => {}
        Look::Is(Some(why)) => {
            let mend = Change::run(format!("chown root:root {path} && chmod go-w {path}"));
            let means = format!("root runs it, and {why}: whoever can put another in its place is root");
            lines.push(Line::fault(CHECK, what, means).mended_by([mend]));
        }
        Look::Unknown(why) => {
            lines.push(Line::unknown(
                CHECK,
                format!("{what}: {why}"),
                "whether others can change it is not known",
            ));
        }
    }
    lines
}

/// Whether what a script calls is there.
fn calls(script: &Script, what: &str) -> Option<Line> {
    let gone = !script.names.is_empty() && script.names.iter().all(|(_, there)| !there);
    let (program, _) = script.names.first().filter(|_| gone)?;
    let program = program.display();
    let means = format!("it calls `{program}`, which does not exist");
    let install = Change::run(format!("install -m 0755 target/release/gpu-reaper-hc {program}"));
    Some(Line::fault(CHECK, what, means).mended_by([install]))
}

/// NHC has the slot. There are two ways to live with it.
fn nhc(found: &Found, others: Option<&Others>, what: &str) -> Vec<Line> {
    let Some(others) = others else {
        let means = "NHC has the slot; whether it calls us is not known";
        return vec![Line::unknown(CHECK, what, means)];
    };
    let calls: Vec<&str> =
        others.nhc_confs().filter_map(|(_, text)| text.is()).flat_map(|text| calls_in(text)).collect();
    if calls.is_empty() {
        if let Some((path, Look::Unknown(why))) =
            others.nhc_confs().find(|(_, text)| matches!(text, Look::Unknown(_)))
        {
            let why = format!("{what}; `{}`: {why}", path.display());
            return vec![Line::unknown(CHECK, why, "NHC has the slot; whether it calls us is not known")];
        }
        let means = "NHC has the only slot and its nhc.conf names us nowhere: have NHC call us as one of its checks, or put a \
                     script in the slot that calls both; hooks/nhc/ has both ways";
        let both = found.rewrite(KEY, "/usr/sbin/gpu-reaper-hc");
        return vec![Line::warning(CHECK, what, means).mended_by(both)];
    }
    if calls.iter().any(|line| line.contains(NHC_CHECK)) {
        let means =
            format!("NHC has the slot, and its nhc.conf runs {NHC_CHECK}, which has a time of its own");
        return vec![Line::ok(CHECK, what, means)];
    }
    vec![watchdog(found, others, what)]
}

/// Lines of nhc.conf that run us.
fn calls_in(text: &str) -> impl Iterator<Item = &str> {
    let said = |line: &&str| !line.trim_start().starts_with('#');
    text.lines().filter(said).filter(|line| line.contains("gpu-reaper-hc") || line.contains(NHC_CHECK))
}

/// Whether NHC's watchdog leaves time for a run that NHC calls without a limit. It starts before nhc.conf is read.
fn watchdog(found: &Found, others: &Others, what: &str) -> Line {
    if let Some((path, Look::Unknown(why))) =
        others.nhc_settings().find(|(_, text)| matches!(text, Look::Unknown(_)))
    {
        let why = format!("{what}; `{}`: {why}", path.display());
        return Line::unknown(CHECK, why, "NHC calls us; when its watchdog ends it is not known");
    }
    let lines = others.nhc_settings().filter_map(|(path, text)| Some((path, text.is()?)));
    let all = lines.flat_map(|(path, text)| (1..).zip(text.lines()).map(move |(n, line)| (path, n, line)));
    let code = all.filter(|(_, _, line)| !line.trim_start().starts_with('#'));
    let said = code.filter_map(|(path, n, line)| Some((path, n, assigned(line, "TIMEOUT")?))).last();
    let limit: u64 = said.and_then(|(.., value)| value.parse().ok()).unwrap_or(NHC_LIMIT_S);
    let deadline = found.config.deadline.as_secs();
    if limit == 0 || limit > deadline {
        return Line::ok(CHECK, what, "NHC has the slot, and its nhc.conf names us");
    }
    let mend = match said {
        Some((path, n, value)) => Change::Edit {
            file: path.display().to_string(),
            line: Some(n),
            how: format!("TIMEOUT=55 in place of TIMEOUT={value}"),
        },
        None => {
            let first = others.nhc_settings().next();
            Change::add(first.map_or(Path::new("/etc/sysconfig/nhc"), |(path, _)| path), "TIMEOUT=55")
        }
    };
    let means = format!(
        "NHC calls us and ends all its checks after {limit} s, where a run may take {deadline} s: NHC then drains the node \
         for a check that hangs; {NHC_CHECK} of hooks/nhc/ would be over in time"
    );
    Line::warning(CHECK, what, means).mended_by([mend])
}

/// The value of a shell's assignment in a line: `* || export TIMEOUT=55`, `TIMEOUT="55"`.
pub fn assigned<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (before, after) = line.split_once(&format!("{name}="))?;
    if before.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
        return None;
    }
    let value = after.trim_start_matches(['"', '\'']);
    Some(
        &value[..value
            .find(|c: char| !c.is_ascii_alphanumeric() && !"/._-".contains(c))
            .unwrap_or(value.len())],
    )
}

#[cfg(test)]
mod tests {
    use super::super::report::Level;
    use super::super::testing::{levels_of, right, said, script};
    use super::*;

    /// Its name, the key's value, what is odd about the file, how the slot then stands.
    type InSlot<'a> = (&'a str, &'a str, &'a dyn Fn(&mut Script), &'a [Level]);

    #[test]
    fn the_slot_is_looked_at_as_slurmd_would() {
        let table: [InSlot; 12] = [
            ("ours", "/usr/sbin/gpu-reaper-hc", &|_| {}, &[Level::Ok]),
            ("arguments", "/usr/sbin/gpu-reaper-hc -v", &|_| {}, &[Level::Fault]),
            ("a relative name", "gpu-reaper-hc", &|_| {}, &[Level::Fault]),
            ("not there", "/usr/sbin/gpu-reaper-hc", &|s| s.facts = Look::NotThere, &[Level::Fault]),
            ("unseen", "/x/gpu-reaper-hc", &|s| s.facts = Look::Unknown("no".into()), &[Level::Unknown]),
            ("not executable", "/usr/sbin/gpu-reaper-hc", &|s| mode(s, 0o644), &[Level::Fault]),
            ("for root alone", "/usr/sbin/gpu-reaper-hc", &|s| mode(s, 0o711), &[Level::Warning]),
            (
                "others can change it",
                "/usr/sbin/gpu-reaper-hc",
                &|s| s.changeable = Look::Is(Some("it is writable by others (mode 777)".into())),
                &[Level::Fault],
            ),
            ("a wrapper", "/x/both", &|s| text(s, "#!/bin/sh\n/usr/sbin/gpu-reaper-hc\n"), &[Level::Ok]),
            (
                "a comment is no wrapper",
                "/x/both",
                &|s| text(s, "#!/bin/sh\n# gpu-reaper-hc\n"),
                &[Level::Fault],
            ),
            ("somebody else", "/x/check", &|s| text(s, "\u{7f}ELF\0nhc"), &[Level::Fault]),
            ("a script of one's own", "/x/check", &|s| text(s, "#!/bin/sh\nexit 0\n"), &[Level::Fault]),
        ];
        for (name, value, change, want) in table {
            let mut found = said(KEY, value);
            let mut program = script(value);
            program.facts = found.us_facts.clone();
            change(&mut program);
            found.program = Some(program);
            assert_eq!(levels_of(&slot(&found)), want, "{name}: {:?}", slot(&found));
        }
        assert_eq!(levels_of(&slot(&said(KEY, ""))), [Level::Fault], "nothing in the slot");
    }

    fn mode(script: &mut Script, mode: u32) {
        if let Look::Is(facts) = &mut script.facts {
            facts.mode = mode;
        }
    }

    /// Another file, with this text.
    fn text(script: &mut Script, text: &str) {
        if let Look::Is(facts) = &mut script.facts {
            facts.id = (9, 9);
        }
        script.text = Look::Is(text.to_owned());
    }

    #[test]
    fn a_wrapper_that_calls_what_is_not_there_is_a_fault() {
        let mut found = said(KEY, "/x/both");
        let mut program = script("/x/both");
        text(&mut program, "#!/bin/sh\n/usr/sbin/gpu-reaper-hc\n");
        program.names = vec![("/usr/sbin/gpu-reaper-hc".into(), false)];
        found.program = Some(program);
        let lines = slot(&found);
        assert_eq!(levels_of(&lines), [Level::Fault]);
        assert!(lines[0].change[0].to_string().contains("install -m 0755"), "{lines:?}");
    }

    fn with_nhc(texts: &[(&str, Look<String>)]) -> Vec<Line> {
        let mut found = said(KEY, "/usr/sbin/nhc");
        let mut program = script("/usr/sbin/nhc");
        text(&mut program, "#!/bin/bash\nNHC_VERSION=1.5\n");
        found.program = Some(program);
        let nhc_texts = texts.iter().map(|(path, text)| (path.into(), text.clone())).collect();
        found.others = Some(Others { nhc_texts, ..Others::default() });
        slot(&found)
    }

    fn is(text: &str) -> Look<String> {
        Look::Is(text.to_owned())
    }

    const CONF: &str = "/etc/nhc/nhc.conf";
    const CALLS: &str = "* || check_cmd_status /usr/sbin/gpu-reaper-hc\n";

    #[test]
    fn nhc_in_the_slot_is_told_both_ways_out() {
        let with = |conf: &str| with_nhc(&[(CONF, is(conf))]);
        let alone = with("* || check_ps_service munged\n");
        assert_eq!(levels_of(&alone), [Level::Warning]);
        assert!(alone[0].means.contains("hooks/nhc/"), "{alone:?}");
        assert_eq!(levels_of(&with("# gpu-reaper-hc\n")), [Level::Warning]);
        let set = with_nhc(&[("/etc/sysconfig/nhc", is("GPU_REAPER_HC=/opt/gpu-reaper-hc\n"))]);
        assert_eq!(levels_of(&set), [Level::Warning], "a setting calls nobody");
        let unread = with_nhc(&[(CONF, Look::Unknown("Permission denied".into()))]);
        assert_eq!(levels_of(&unread), [Level::Unknown]);
        let shipped = include_str!("../../hooks/nhc/gpu-reaper-hc.nhc");
        let line = shipped.lines().find_map(|line| line.strip_prefix("#   ").filter(|l| l.contains("||")));
        assert_eq!(levels_of(&with(line.unwrap())), [Level::Ok], "{line:?}: it has a time of its own");
        assert!(shipped.contains(&format!("function {NHC_CHECK}()")));
    }

    #[test]
    fn nhcs_watchdog_is_set_where_it_is_read_in_time() {
        let with = |place: &str, settings: &str| {
            let lines = with_nhc(&[(CONF, is(CALLS)), (place, is(settings))]);
            let mend = lines[0].change.first().map(Change::to_string).unwrap_or_default();
            (lines[0].level, mend)
        };
        let alone = with_nhc(&[(CONF, is(CALLS))]);
        assert!(alone[0].means.contains("after 30 s"), "{alone:?}");
        assert_eq!(alone[0].change[0].to_string(), "in /etc/sysconfig/nhc, a new line: TIMEOUT=55");
        let late = with_nhc(&[(CONF, is(&format!("* || export TIMEOUT=55\n{CALLS}")))]);
        assert_eq!(levels_of(&late), [Level::Warning], "nhc.conf comes too late");
        let (sysconfig, default) = ("/etc/sysconfig/nhc", "/etc/default/nhc");
        assert_eq!(with(sysconfig, "TIMEOUT=55\n").0, Level::Ok);
        assert_eq!(with(default, "export TIMEOUT=\"55\"\n").0, Level::Ok);
        assert_eq!(with(default, "TIMEOUT=0\n").0, Level::Ok, "none");
        let new = (Level::Warning, format!("in {default}, a new line: TIMEOUT=55"));
        assert_eq!(with(default, "NO_TIMEOUT=55\n# TIMEOUT=55\n"), new);
        let changed = format!("in {sysconfig}, line 2: TIMEOUT=55 in place of TIMEOUT=20");
        assert_eq!(with(sysconfig, "NAME=nhc\nTIMEOUT=20\n"), (Level::Warning, changed));
        let unread = with_nhc(&[(CONF, is(CALLS)), (sysconfig, Look::Unknown("no".into()))]);
        assert_eq!(levels_of(&unread), [Level::Unknown]);
    }

    #[test]
    fn a_slurmd_of_another_user_needs_more_rights() {
        let mut found = right();
        found.slurmd = super::super::testing::slurmd(64030, "");
        assert_eq!(levels_of(&slot(&found)), [Level::Ok]);
        mode(found.program.as_mut().unwrap(), 0o711);
        assert_eq!(levels_of(&slot(&found)), [Level::Fault]);
    }
}

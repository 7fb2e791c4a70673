//! Prolog and Epilog: whether ours are among what slurmd runs, in the right place, and whether all of it can be run: one
//! file that cannot ends the others, and drains the node.

use super::look::Found;
use super::report::{Change, Line};
use super::scripts::{Matched, Script};
use super::settings::{Key, prolog_flags};
use crate::host::files::{FileFacts, Look};
use std::path::Path;

/// The release from which RunInJob tells the right node's GPUs.
const RUN_IN_JOB_IS_RIGHT: (u16, u16) = (25, 11);

/// Where hooks/single-script/ says that its script goes.
const ONE_SCRIPT: &str = "/etc/slurm/site-then-gpu-reaper-hc.sh";

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Prolog,
    Epilog,
}

impl Which {
    fn key(self) -> &'static str {
        match self {
            Which::Prolog => "Prolog",
            Which::Epilog => "Epilog",
        }
    }

    fn check(self) -> &'static str {
        match self {
            Which::Prolog => "prolog",
            Which::Epilog => "epilog",
        }
    }

    /// With its article.
    fn one(self) -> &'static str {
        match self {
            Which::Prolog => "a Prolog",
            Which::Epilog => "an Epilog",
        }
    }

    /// Our file's name.
    fn file(self) -> &'static str {
        match self {
            Which::Prolog => "50-gpu-reaper-hc.sh",
            Which::Epilog => "00-gpu-reaper-hc.sh",
        }
    }

    fn without(self) -> &'static str {
        match self {
            Which::Prolog => {
                "jobs are found by their cgroups, a run later, and Slurm is asked once about each"
            }
            Which::Epilog => {
                "a job that ended is known only once Slurm no longer lists it, and its drain stays so long"
            }
        }
    }

    fn patterns(self, found: &Found) -> &[Matched] {
        match self {
            Which::Prolog => &found.prolog,
            Which::Epilog => &found.epilog,
        }
    }

    /// Whether a script is ours: it names us and this hook.
    fn is_ours(self, script: &Script) -> bool {
        let words = script.words().unwrap_or_default();
        words.contains("gpu-reaper-hc") && words.contains(self.check())
    }
}

/// The Prolog.
pub fn prolog(found: &Found) -> Vec<Line> {
    hook(found, Which::Prolog)
}

/// The Epilog.
pub fn epilog(found: &Found) -> Vec<Line> {
    hook(found, Which::Epilog)
}

fn hook(found: &Found, which: Which) -> Vec<Line> {
    let (check, key) = (which.check(), which.key());
    let said = match found.keys(key) {
        Err(why) => return vec![Line::unknown(check, why, format!("whether {key} calls us is not known"))],
        Ok(said) => said,
    };
    let folder = format!("/etc/slurm/{check}.d");
    if said.is_empty() {
        let install = install(which, &folder);
        let mend = install.into_iter().chain(found.rewrite(key, &format!("{folder}/*")));
        return vec![Line::warning(check, format!("{key} is not set"), which.without()).mended_by(mend)];
    }
    let mut lines = Vec::new();
    let mut order: Vec<&Script> = Vec::new();
    let mut unread = false;
    for Matched { pattern, scripts } in which.patterns(found) {
        let what = format!("{key}={pattern}");
        match scripts {
            Err(why) => {
                unread = true;
                lines.push(Line::unknown(check, format!("{what}: {why}"), "what slurmd runs is not known"));
            }
            Ok(scripts) if scripts.is_empty() => {
                let means = format!(
                    "no file has such a name: slurmd takes that for {} that failed, and drains the node",
                    which.one()
                );
                lines.push(Line::fault(check, what, means).mended_by(put(found, which, pattern, false)));
            }
            Ok(scripts) => {
                lines.extend(scripts.iter().filter_map(|script| runnable(found, which, script)));
                order.extend(scripts);
            }
        }
    }
    lines.extend(ours(found, which, &order, unread));
    lines
}

/// The pattern whose folder a file of ours goes to; where each names one file, the last, which stands for the site's.
fn place(found: &Found, which: Which) -> &str {
    let patterns = || which.patterns(found).iter().map(|matched| matched.pattern.as_str());
    patterns().find(|pattern| !is_one_file(pattern)).or(patterns().next_back()).unwrap_or("/etc/slurm/*")
}

fn is_one_file(pattern: &str) -> bool {
    !pattern.contains(['*', '?', '['])
}

/// Puts ours where slurmd runs it by this pattern. Of one file nothing beside it is run: a script in its place runs both.
fn put(found: &Found, which: Which, pattern: &str, is_there: bool) -> Vec<Change> {
    if !is_one_file(pattern) {
        return install(which, &folder_of(pattern)).to_vec();
    }
    let (check, key) = (which.check(), which.key());
    let mut changes = install(which, &format!("/etc/slurm/{check}.d")).to_vec();
    // Both hooks are this one script, which may have been given the other's name already.
    changes.push(Change::run(format!(
        "[ -e {ONE_SCRIPT} ] || install -D -m 0755 hooks/single-script/site-then-gpu-reaper-hc.sh {ONE_SCRIPT}"
    )));
    if is_there {
        let how = format!("site_{check}={pattern} in place of site_{check}=");
        changes.push(Change::Edit { file: ONE_SCRIPT.to_owned(), line: None, how });
    }
    if pattern != ONE_SCRIPT {
        changes.extend(found.rewrite(key, ONE_SCRIPT));
    }
    changes
}

fn folder_of(pattern: &str) -> String {
    Path::new(pattern).parent().unwrap_or(Path::new("/")).display().to_string()
}

fn install(which: Which, folder: &str) -> [Change; 1] {
    let (check, file) = (which.check(), which.file());
    [Change::run(format!("install -D -m 0755 hooks/{check}.d/{file} {folder}/{file}"))]
}

/// Out of the folder of hooks.
fn above(path: &Path) -> String {
    format!("{}/", path.ancestors().nth(2).unwrap_or(Path::new("/")).display())
}

/// Why slurmd cannot run a file that it will try to run, or must not.
fn runnable(found: &Found, which: Which, script: &Script) -> Option<Line> {
    let (check, path) = (which.check(), script.path.display());
    let what = format!("`{path}`");
    let failed = format!(
        "slurmd counts that as {} that failed: those after it do not run, and the node is drained",
        which.one()
    );
    let facts = match &script.facts {
        Look::Is(facts) => facts,
        Look::NotThere => {
            let mend = Change::run(format!("rm {path}"));
            return Some(
                Line::fault(check, format!("{what} is a link to nothing"), failed).mended_by([mend]),
            );
        }
        Look::Unknown(why) => {
            return Some(Line::unknown(
                check,
                format!("{what}: {why}"),
                "whether slurmd can run it is not known",
            ));
        }
    };
    if !facts.regular {
        let mend = Change::run(format!("mv {path} {}", above(&script.path)));
        return Some(Line::fault(check, format!("{what} is no regular file"), failed).mended_by([mend]));
    }
    if !facts.runs_for(found.slurmd_uid().unwrap_or(0)) {
        let is_script = script.text.is().is_some_and(|text| text.starts_with("#!"));
        let mend = match is_script {
            true => Change::run(format!("chmod 0755 {path}")),
            false => Change::run(format!("mv {path} {}", above(&script.path))),
        };
        let what = format!("{what} has mode {:04o}", facts.mode);
        return Some(Line::fault(check, what, format!("it cannot be executed; {failed}")).mended_by([mend]));
    }
    match &script.changeable {
        Look::Is(None) | Look::NotThere => None,
        Look::Is(Some(why)) => {
            let mend = Change::run(format!("chown root:root {path} && chmod go-w {path}"));
            let means = format!("root runs it, and {why}: whoever can put another in its place is root");
            Some(Line::fault(check, what, means).mended_by([mend]))
        }
        Look::Unknown(why) => {
            Some(Line::unknown(check, format!("{what}: {why}"), "whether others can change it is not known"))
        }
    }
}

/// Ours among all that run, in their order.
fn ours(found: &Found, which: Which, order: &[&Script], unread: bool) -> Vec<Line> {
    if order.is_empty() && !unread {
        // That no file has the name is a fault already.
        return vec![];
    }
    let (check, key) = (which.check(), which.key());
    let places: Vec<usize> = (0..order.len()).filter(|at| which.is_ours(order[*at])).collect();
    let (Some(first), Some(last)) = (places.first(), places.last()) else {
        let unseen = order.iter().any(|script| matches!(script.text, Look::Unknown(_)));
        if unread || unseen {
            let means = format!("whether {key} calls gpu-reaper-hc is not known");
            return vec![Line::unknown(check, format!("not every file of {key} could be read"), means)];
        }
        let what = format!("none of the {} files of {key} names gpu-reaper-hc", order.len());
        let pattern = place(found, which);
        let means = match is_one_file(pattern) {
            true => format!(
                "{}; slurmd runs nothing beside `{pattern}`: hooks/single-script/ has a script that runs it and then ours",
                which.without()
            ),
            false => which.without().to_owned(),
        };
        return vec![Line::warning(check, what, means).mended_by(put(found, which, pattern, true))];
    };
    let script = order[*last];
    let path = script.path.display();
    let mut lines = Vec::new();
    if first != last {
        let other = order[*first].path.display();
        let what = format!("`{other}` and `{path}` both call us");
        let mend = Change::run(format!("rm {other}"));
        lines.push(Line::warning(check, what, "once is enough").mended_by([mend]));
    }
    if !script.names.is_empty() && script.names.iter().all(|(_, there)| !there) {
        let program = script.names[0].0.display();
        let means = format!(
            "it calls `{program}`, which does not exist, and says nothing of it: {}",
            which.without()
        );
        let mend = Change::run(format!("install -m 0755 target/release/gpu-reaper-hc {program}"));
        lines.push(Line::fault(check, format!("`{path}`"), means).mended_by([mend]));
    }
    lines.extend(called(found, which, script));
    lines.extend(after(found, which, script, &order[last + 1..]));
    if lines.is_empty() {
        let others = order.len() - places.len();
        let means = match (which, others) {
            (_, 0) => "slurmd runs it, and nothing else".to_owned(),
            (Which::Prolog, n) => format!("slurmd runs it among {n} others"),
            (Which::Epilog, n) => {
                format!("slurmd runs it last, after {n} others: that it came says that they ended well")
            }
        };
        lines.push(Line::ok(check, format!("`{path}`"), means));
    }
    lines
}

/// The hooks that a script of the site's calls: whether one of them can be run.
fn called(found: &Found, which: Which, script: &Script) -> Option<Line> {
    let check = which.check();
    let uid = found.slurmd_uid().unwrap_or(0);
    let is_this = |(path, _): &&(_, _)| {
        let path: &std::path::PathBuf = path;
        path.display().to_string().contains(check)
    };
    let hooks: Vec<_> = script.hooks.iter().filter(is_this).collect();
    let runs = |facts: &Look<FileFacts>| facts.is().is_some_and(|file| file.regular && file.runs_for(uid));
    if hooks.iter().any(|(_, facts)| runs(facts)) {
        return None;
    }
    let (hook, facts) = hooks.first()?;
    let (what, hook) = (format!("`{}`", script.path.display()), hook.display());
    Some(match facts {
        Look::Unknown(why) => {
            let why = format!("{what} calls `{hook}`: {why}");
            Line::unknown(check, why, "whether that is there is not known")
        }
        Look::NotThere => {
            let means = format!("it calls `{hook}`, which does not exist: {}", which.without());
            let mend = format!("install -D -m 0755 hooks/{check}.d/{} {hook}", which.file());
            Line::fault(check, what, means).mended_by([Change::run(mend)])
        }
        Look::Is(_) => {
            let means = format!("it calls `{hook}`, which cannot be executed: {}", which.without());
            Line::fault(check, what, means).mended_by([Change::run(format!("chmod 0755 {hook}"))])
        }
    })
}

/// What runs after our Epilog.
fn after(found: &Found, which: Which, script: &Script, rest: &[&Script]) -> Option<Line> {
    if which != Which::Epilog || rest.is_empty() {
        return None;
    }
    let names: Vec<String> = rest.iter().map(|s| format!("`{}`", s.path.display())).collect();
    let means = format!(
        "slurmd runs {} after it: that ours came says nothing of those, and a drain is lifted though one of them failed",
        names.join(", ")
    );
    let path = script.path.display();
    let line = Line::warning(which.check(), format!("`{path}`"), means);
    let pattern = place(found, which);
    if is_one_file(pattern) {
        let how = format!("the line Epilog={path} below every other Epilog=");
        return Some(line.mended_by([Change::Edit { file: found.conf_name(), line: None, how }]));
    }
    let folder = folder_of(pattern);
    let to = Path::new(&folder).join(which.file());
    let first = Some(Change::run(format!("mv {path} {}", to.display()))).filter(|_| script.path != to);
    let others = rest.iter().filter(|s| s.path <= to).map(|s| {
        let name = s.path.file_name().unwrap_or_default().to_string_lossy();
        Change::run(format!("mv {} {folder}/10-{name}", s.path.display()))
    });
    Some(line.mended_by(others.chain(first)))
}

/// When the Prolog runs, and where.
pub fn flags(found: &Found) -> Vec<Line> {
    const CHECK: &str = "prolog-flags";
    let (value, by) = match found.key("PrologFlags") {
        Key::Unknown(why) => {
            return vec![Line::unknown(CHECK, why, "it decides on which nodes the Prolog runs")];
        }
        Key::Unset => (String::new(), String::new()),
        Key::Said(said) => (said.value, said.by),
    };
    let what = match value.is_empty() {
        true => "PrologFlags is not set".to_owned(),
        false => format!("PrologFlags={value} ({by})"),
    };
    let flags = prolog_flags(&value);
    let has = |flag: &str| flags.contains(flag);
    if !has("alloc") {
        let means = "the Prolog runs only where a step starts, when it starts: of a job on several nodes the others are \
                     found by their cgroups, a run later";
        let value = if value.is_empty() || value.eq_ignore_ascii_case("none") {
            "Alloc".to_owned()
        } else {
            format!("{value},Alloc")
        };
        return vec![Line::warning(CHECK, what, means).mended_by(found.rewrite("PrologFlags", &value))];
    }
    if has("runinjob") && found.version().is_none_or(|version| version < RUN_IN_JOB_IS_RIGHT) {
        let means = "until Slurm 25.11 a Prolog inside a job may be given another node's list of GPUs: on every node but \
                     the job's first ours registers nothing, and the next run finds the job by its cgroup";
        let without: Vec<&str> =
            value.split(',').filter(|f| !f.trim().eq_ignore_ascii_case("runinjob")).collect();
        let rest = without.join(",");
        let value = if rest.is_empty() { "Contain" } else { &rest };
        return vec![Line::warning(CHECK, what, means).mended_by(found.rewrite("PrologFlags", value))];
    }
    vec![Line::ok(CHECK, what, "the Prolog runs on every node of a job, when it is given its GPUs")]
}

#[cfg(test)]
mod tests {
    use super::super::report::Level;
    use super::super::testing::{hook_script, level_of, levels_of, named, right, said, script};
    use super::*;

    fn with(which: Which, scripts: Vec<Script>) -> Vec<Line> {
        let mut found = right();
        let matched = Matched { pattern: format!("/etc/slurm/{}.d/*", which.check()), scripts: Ok(scripts) };
        match which {
            Which::Prolog => found.prolog = vec![matched],
            Which::Epilog => found.epilog = vec![matched],
        }
        hook(&found, which)
    }

    fn other(name: &str) -> Script {
        let mut other = script(&format!("/etc/slurm/epilog.d/{name}"));
        other.text = Look::Is("#!/bin/sh\nexit 0\n".to_owned());
        other
    }

    fn changed(mut script: Script, change: impl Fn(&mut Script)) -> Script {
        change(&mut script);
        script
    }

    fn mode(mode: u32) -> impl Fn(&mut Script) {
        move |script| {
            if let Look::Is(facts) = &mut script.facts {
                facts.mode = mode;
            }
        }
    }

    #[test]
    fn an_epilog_of_ours_runs_last_and_every_file_can_be_run() {
        let ours = || hook_script("epilog");
        let none: &[Level] = &[Level::Warning];
        let table = [
            ("alone", vec![ours()], &[Level::Ok][..]),
            ("after others", vec![other("99-a"), other("50-b"), ours()], &[Level::Ok]),
            ("before another", vec![other("99-a"), ours(), other("-early")], &[Level::Warning]),
            ("twice", vec![ours(), ours()], &[Level::Warning]),
            ("none of ours", vec![other("99-a")], none),
            ("no file at all", vec![], &[Level::Fault]),
            ("ours cannot be run", vec![changed(ours(), mode(0o644))], &[Level::Fault]),
            ("another cannot be run", vec![changed(other("README"), mode(0o644)), ours()], &[Level::Fault]),
            (
                "a folder",
                vec![
                    changed(other("old"), |s| {
                        if let Look::Is(f) = &mut s.facts {
                            f.regular = false
                        }
                    }),
                    ours(),
                ],
                &[Level::Fault],
            ),
            (
                "a dead link",
                vec![changed(other("old"), |s| s.facts = Look::NotThere), ours()],
                &[Level::Fault],
            ),
            (
                "a file of somebody's",
                vec![
                    changed(other("a"), |s| s.changeable = Look::Is(Some("it belongs to uid 5".into()))),
                    ours(),
                ],
                &[Level::Fault],
            ),
            (
                "the program is gone",
                vec![changed(ours(), |s| s.names = vec![("/usr/sbin/gpu-reaper-hc".into(), false)])],
                &[Level::Fault],
            ),
            (
                "one that cannot be read",
                vec![changed(other("a"), |s| s.text = Look::Unknown("Permission denied".into()))],
                &[Level::Unknown],
            ),
        ];
        for (name, scripts, want) in table {
            let lines = with(Which::Epilog, scripts);
            let found: Vec<Level> = levels_of(&lines);
            assert!(found.iter().max() == want.iter().max(), "{name}: {lines:?}");
            let bad = lines.iter().filter(|line| line.level > Level::Unknown);
            assert!(bad.clone().all(|line| !line.change.is_empty()), "{name}: {lines:?}");
        }
    }

    #[test]
    fn what_comes_after_ours_is_named_with_the_moves_that_mend_it() {
        let lines = with(Which::Epilog, vec![hook_script("epilog"), other("-early"), other("00-a")]);
        assert!(
            lines[0].means.contains("`/etc/slurm/epilog.d/-early`, `/etc/slurm/epilog.d/00-a`"),
            "{lines:?}"
        );
        let kept = with(Which::Epilog, vec![hook_script("epilog"), other("-early")]);
        assert_eq!(kept[0].change.len(), 1, "ours has its name already: {kept:?}");
        let note = changed(other("README"), |s| s.text = Look::Is("read me".into()));
        let note = with(Which::Epilog, vec![changed(note, mode(0o644)), hook_script("epilog")]);
        assert_eq!(note[0].change[0].to_string(), "run: mv /etc/slurm/epilog.d/README /etc/slurm/");
        let mends: Vec<String> = lines[0].change.iter().map(Change::to_string).collect();
        assert_eq!(mends[0], "run: mv /etc/slurm/epilog.d/-early /etc/slurm/epilog.d/10--early");
        assert!(mends[1].starts_with("run: mv /etc/slurm/epilog.d/00-a "), "{mends:?}");
        // A Prolog may stand anywhere.
        let anywhere = with(Which::Prolog, vec![hook_script("prolog"), other("00-a")]);
        assert_eq!(levels_of(&anywhere), [Level::Ok]);
    }

    /// A site whose Prolog is this one file.
    fn one_file(scripts: Vec<Script>) -> Vec<Line> {
        let mut found = right();
        found.confs.used = Some(named("/etc/slurm/slurm.conf", "Prolog=/etc/slurm/prolog.sh\n"));
        found.prolog = vec![Matched { pattern: "/etc/slurm/prolog.sh".into(), scripts: Ok(scripts) }];
        prolog(&found)
    }

    #[test]
    fn beside_one_file_nothing_is_run_so_that_a_script_runs_both() {
        let mends = |lines: &[Line]| lines[0].change.iter().map(Change::to_string).collect::<Vec<_>>();
        let theirs = one_file(vec![script("/etc/slurm/prolog.sh")]);
        assert_eq!(levels_of(&theirs), [Level::Warning]);
        assert!(theirs[0].means.contains("hooks/single-script/"), "{theirs:?}");
        let put = [
            "run: install -D -m 0755 hooks/prolog.d/50-gpu-reaper-hc.sh /etc/slurm/prolog.d/50-gpu-reaper-hc.sh",
            "run: [ -e /etc/slurm/site-then-gpu-reaper-hc.sh ] || install -D -m 0755 \
             hooks/single-script/site-then-gpu-reaper-hc.sh /etc/slurm/site-then-gpu-reaper-hc.sh",
            "in /etc/slurm/site-then-gpu-reaper-hc.sh: site_prolog=/etc/slurm/prolog.sh in place of site_prolog=",
            "in /etc/slurm/slurm.conf, line 1: Prolog=/etc/slurm/site-then-gpu-reaper-hc.sh in place of \
             Prolog=/etc/slurm/prolog.sh",
            "run: scontrol reconfigure",
        ];
        assert_eq!(mends(&theirs), put);
        let gone = one_file(vec![]);
        assert_eq!(levels_of(&gone), [Level::Fault]);
        assert_eq!(mends(&gone), [&put[..2], &put[3..]].concat(), "no script of the site's to run");
    }

    #[test]
    fn a_script_that_calls_our_hook_is_no_better_than_that_hook() {
        let hook = "/etc/slurm/prolog.d/50-gpu-reaper-hc.sh";
        let with = |facts: Look<FileFacts>| {
            let mut one = script("/etc/slurm/prolog.sh");
            one.text =
                Look::Is(include_str!("../../hooks/single-script/site-then-gpu-reaper-hc.sh").to_owned());
            let other = ("/etc/slurm/epilog.d/00-gpu-reaper-hc.sh".into(), Look::NotThere);
            one.hooks = vec![other, (hook.into(), facts)];
            one_file(vec![one])
        };
        let there = script(hook).facts;
        assert_eq!(levels_of(&with(there.clone())), [Level::Ok]);
        let gone = with(Look::NotThere);
        assert_eq!(levels_of(&gone), [Level::Fault]);
        let mend = format!("run: install -D -m 0755 hooks/prolog.d/50-gpu-reaper-hc.sh {hook}");
        assert_eq!(gone[0].change[0].to_string(), mend);
        assert_eq!(levels_of(&with(Look::Unknown("no".into()))), [Level::Unknown]);
        let Look::Is(file) = there else { panic!("a file") };
        let dull = with(Look::Is(FileFacts { mode: 0o644, ..file }));
        assert_eq!(dull[0].change[0].to_string(), format!("run: chmod 0755 {hook}"));
    }

    #[test]
    fn several_entries_are_one_list_and_an_epilog_is_no_prolog() {
        let mut found = right();
        let first = Matched { pattern: "/a/*".into(), scripts: Ok(vec![hook_script("epilog")]) };
        let second = Matched { pattern: "/b/*".into(), scripts: Ok(vec![other("x")]) };
        found.epilog = vec![first.clone(), second.clone()];
        assert_eq!(level_of(epilog(&found)), Level::Warning, "the second entry runs after the first");
        found.epilog = vec![second, first];
        assert_eq!(level_of(epilog(&found)), Level::Ok);
        let crossed = with(Which::Epilog, vec![hook_script("prolog")]);
        assert_eq!(levels_of(&crossed), [Level::Warning], "a Prolog of ours in the Epilog's folder");
    }

    #[test]
    fn the_flags_say_where_a_prolog_runs() {
        let table = [
            ("Alloc", Level::Ok),
            ("Contain", Level::Ok),
            ("X11,Serial", Level::Ok),
            ("", Level::Warning),
            ("None", Level::Warning),
            ("Serial", Level::Warning),
        ];
        for (value, want) in table {
            assert_eq!(level_of(flags(&said("PrologFlags", value))), want, "{value}");
        }
        let mut found = said("PrologFlags", "RunInJob");
        assert_eq!(level_of(flags(&found)), Level::Warning, "24.11");
        found.shown = super::super::testing::shown("PrologFlags", "RunInJob", "26.05.5");
        assert_eq!(level_of(flags(&found)), Level::Ok);
    }
}

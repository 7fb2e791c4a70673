//! The programs and scripts that slurmd starts: what they are as files, and what of ours they call.

use super::slot::assigned;
use crate::host::files::{self, FileFacts, Look};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// So much of a script is read.
pub const SCRIPT_BYTES: u64 = 256 << 10;

/// A program or script that slurmd starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Script {
    /// Its name.
    pub path: PathBuf,
    /// The file.
    pub facts: Look<FileFacts>,
    /// Its text, where it is one; a program's holds a NUL.
    pub text: Look<String>,
    /// Who could put something else in its place.
    pub changeable: Look<Option<String>>,
    /// The programs of ours that it names, itself or in a hook of ours that it calls, and whether each may be there:
    /// `false` is certain.
    pub names: Vec<(PathBuf, bool)>,
    /// The hooks of ours that it calls.
    pub hooks: Vec<(PathBuf, Look<FileFacts>)>,
}

impl Script {
    /// Looks at one.
    pub fn look(path: &Path) -> Script {
        let text = files::head(path, SCRIPT_BYTES);
        let hooks: Vec<PathBuf> = text.is().map_or(vec![], |text| hooks_in(text));
        let texts = hooks.iter().map(|hook| files::head(hook, SCRIPT_BYTES));
        let mut names: Vec<PathBuf> =
            texts.chain([text.clone()]).filter_map(|text| Some(programs_in(text.is()?))).flatten().collect();
        names.sort();
        names.dedup();
        let there = |path: PathBuf| {
            let may_be_there = files::facts(&path) != Look::NotThere;
            (path, may_be_there)
        };
        let hook = |path: PathBuf| {
            let facts = match path.is_absolute() {
                true => files::facts(&path),
                false => Look::Unknown("its folder is not known".to_owned()),
            };
            (path, facts)
        };
        Script {
            path: path.to_owned(),
            facts: files::facts(path),
            names: names.into_iter().map(there).collect(),
            hooks: hooks.into_iter().map(hook).collect(),
            text,
            changeable: files::changeable(path),
        }
    }

    /// One that gave no answer.
    pub fn unseen(path: &Path, why: &str) -> Script {
        Script {
            path: path.to_owned(),
            facts: Look::Unknown(why.to_owned()),
            text: Look::Unknown(why.to_owned()),
            changeable: Look::Unknown(why.to_owned()),
            names: vec![],
            hooks: vec![],
        }
    }

    /// Its text, where it is a script: lines that are no comment.
    pub fn words(&self) -> Option<String> {
        let text = self.text.is().filter(|text| !text.contains('\0'))?;
        let said = |line: &&str| !line.trim_start().starts_with('#');
        Some(text.lines().filter(said).collect::<Vec<_>>().join("\n"))
    }
}

/// Absolute names of this program in a script.
pub fn programs_in(text: &str) -> Vec<PathBuf> {
    if text.contains('\0') {
        return vec![];
    }
    let in_name = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    let words = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let words = words.flat_map(|line| line.split(move |c| !in_name(c)));
    let ours = |word: &&str| {
        let word = word.trim_start_matches('-');
        word.starts_with('/') && word.ends_with("/gpu-reaper-hc")
    };
    let mut found: Vec<PathBuf> = words.filter(ours).map(|w| w.trim_start_matches('-').into()).collect();
    found.sort();
    found.dedup();
    found
}

/// Names of our hooks in a script. A variable that they begin with is replaced by what the script sets it to, if it does.
pub fn hooks_in(text: &str) -> Vec<PathBuf> {
    if text.contains('\0') {
        return vec![];
    }
    let in_name = |c: char| c.is_ascii_alphanumeric() || "/._-+${}".contains(c);
    let code = || text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let whole = |word: &str| {
        let (variable, rest) = word.split_once('/')?;
        let name = variable.trim_start_matches(['$', '{']).trim_end_matches('}');
        let value = code().find_map(|line| assigned(line, name)).filter(|_| variable.starts_with('$'))?;
        Some(format!("{value}/{rest}"))
    };
    let words = code().flat_map(|line| line.split(move |c| !in_name(c)));
    let ours = words.filter(|word| word.ends_with("-gpu-reaper-hc.sh") && word.contains('/'));
    let mut found: Vec<PathBuf> = ours.map(|word| whole(word).unwrap_or(word.to_owned()).into()).collect();
    found.sort();
    found.dedup();
    found
}

/// The files of one Prolog= or Epilog=.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Matched {
    /// As it is written.
    pub pattern: String,
    /// In the order in which slurmd runs them: the last name first.
    pub scripts: Result<Vec<Script>, String>,
}

/// slurmd takes a pattern without a folder from beside slurm.conf. It runs what glob(3) gives from the end
/// (slurm's prep_script_slurmd.c).
pub fn matched(pattern: &str, beside: Option<&Path>) -> Matched {
    let whole = beside.unwrap_or(Path::new("/")).join(pattern);
    let files = match (files::matching(&whole.display().to_string()), files::facts(&whole)) {
        (Ok(none), Look::Unknown(why)) if none.is_empty() => Err(why),
        (files, _) => files,
    };
    let scripts = files.map(|files| files.iter().rev().map(|file| Script::look(file)).collect());
    Matched { pattern: pattern.to_owned(), scripts }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_that_a_hook_calls_is_found_in_its_text() {
        let table: [(&str, &[&str]); 6] = [
            (include_str!("../../hooks/prolog.d/50-gpu-reaper-hc.sh"), &["/usr/sbin/gpu-reaper-hc"]),
            ("exec \"/opt/a b/gpu-reaper-hc\" prolog\n", &[]),
            ("/opt/x/gpu-reaper-hc epilog; /opt/x/gpu-reaper-hc epilog\n", &["/opt/x/gpu-reaper-hc"]),
            ("# /opt/x/gpu-reaper-hc\ngpu-reaper-hc prolog\n", &[]),
            ("/etc/slurm/prolog.d/50-gpu-reaper-hc.sh\n", &[]),
            ("\u{7f}ELF\0/usr/sbin/gpu-reaper-hc", &[]),
        ];
        for (text, want) in table {
            let want: Vec<PathBuf> = want.iter().map(PathBuf::from).collect();
            assert_eq!(programs_in(text), want, "{text}");
        }
    }

    #[test]
    fn the_hook_that_a_script_calls_is_found_in_its_text() {
        let one = include_str!("../../hooks/single-script/site-then-gpu-reaper-hc.sh");
        let both = ["/etc/slurm/epilog.d/00-gpu-reaper-hc.sh", "/etc/slurm/prolog.d/50-gpu-reaper-hc.sh"];
        let table: [(&str, &[&str]); 6] = [
            (one, &both),
            ("/etc/slurm/prolog.d/50-gpu-reaper-hc.sh || :\n", &both[1..]),
            ("d=\"/opt\"\n\"${d}/prolog.d/50-gpu-reaper-hc.sh\"\n", &["/opt/prolog.d/50-gpu-reaper-hc.sh"]),
            ("$d/prolog.d/50-gpu-reaper-hc.sh\n", &["$d/prolog.d/50-gpu-reaper-hc.sh"]),
            ("# /etc/slurm/prolog.d/50-gpu-reaper-hc.sh\n/usr/sbin/gpu-reaper-hc prolog\n", &[]),
            ("\u{7f}ELF\0/etc/50-gpu-reaper-hc.sh", &[]),
        ];
        for (text, want) in table {
            let want: Vec<PathBuf> = want.iter().map(PathBuf::from).collect();
            assert_eq!(hooks_in(text), want, "{text}");
        }
    }

    #[test]
    fn a_script_is_looked_at_with_the_hook_behind_it_and_the_program_behind_that() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let text = |name: &str| format!("{}\n", at(name).display());
        std::fs::write(at("one"), format!("{}$no/a-gpu-reaper-hc.sh\n", text("50-gpu-reaper-hc.sh")))
            .unwrap();
        let [unknown, gone] = [PathBuf::from("$no/a-gpu-reaper-hc.sh"), at("50-gpu-reaper-hc.sh")];
        let script = Script::look(&at("one"));
        let mut hooks = script.hooks;
        hooks.sort_by_key(|(path, _)| path != &unknown);
        assert!(matches!(&hooks[0], (path, Look::Unknown(_)) if *path == unknown), "{hooks:?}");
        assert_eq!((&hooks[1], script.names.len()), (&(gone.clone(), Look::NotThere), 0));
        std::fs::write(&gone, text("gpu-reaper-hc")).unwrap();
        let script = Script::look(&at("one"));
        assert!(script.hooks.iter().any(|(path, facts)| *path == gone && facts.is().is_some()));
        assert_eq!(script.names, [(at("gpu-reaper-hc"), false)]);
    }

    #[test]
    fn scripts_are_run_from_the_last_name_to_the_first() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("epilog.d")).unwrap();
        for name in ["00-a", "50-b", "9-c"] {
            std::fs::write(folder.path().join("epilog.d").join(name), "#!/bin/sh\n").unwrap();
        }
        let names = |matched: &Matched| -> Vec<String> {
            let scripts = matched.scripts.as_ref().unwrap().iter();
            scripts.map(|s| s.path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
        };
        let whole = matched(&format!("{}/epilog.d/*", folder.path().display()), None);
        assert_eq!(names(&whole), ["9-c", "50-b", "00-a"]);
        let beside = matched("epilog.d/5*", Some(folder.path()));
        assert_eq!(names(&beside), ["50-b"]);
    }
}

//! The house keeps its own rules: who may name whom, what stays pure, how long a thing may be, what is said
//! nowhere. README's table of floors and the one below are the same. The scanner itself is tried on small
//! bad examples at the foot, so that a rule that cannot fail is not mistaken for one that holds.

#[path = "house/scan.rs"]
mod scan;

use scan::{Path, functions, paths, tokens, within_crate, without_tests};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path as FilePath, PathBuf};

/// The floors, lowest first. A module may name modules of lower floors only.
const FLOORS: &[(&str, &[&str])] = &[
    ("words", &["units", "reading", "screen"]),
    ("facts", &["model"]),
    ("rules", &["mode", "policy"]),
    ("wire", &["http", "program"]),
    ("edges", &["config", "gpu", "slurm", "host", "lock", "place", "ledger", "deliver"]),
    ("act", &["act"]),
    (
        "stories",
        &[
            "run",
            "prolog",
            "epilog",
            "explain",
            "ack",
            "keep",
            "release",
            "doctor",
            "backtest",
            "cases",
            "status",
            "scenarios",
            "demo",
        ],
    ),
    ("door", &["cli", "main"]),
];

/// Who may name a room of the same floor; whatever is not here may not. Edges never may.
const NEIGHBOURS: &[(&str, &str)] = &[
    ("policy", "mode"),      // a warrant takes a permit
    ("run", "explain"),      // a run that no Epilog ended leaves the same case file
    ("epilog", "explain"),   // a case file is the explanation as it stood
    ("epilog", "prolog"),    // the same environment
    ("epilog", "run"),       // the same ledger
    ("ack", "run"),          // what a run remembers of the node
    ("release", "run"),      // the notes that a run leaves of a drain
    ("status", "explain"),   // the same judgement
    ("status", "run"),       // what keeps a drain
    ("scenarios", "run"),    // a scenario is the real run, repeated
    ("scenarios", "prolog"), // between the real hooks
    ("scenarios", "epilog"),
    ("scenarios", "explain"), // and its end is explained
    ("scenarios", "ack"),
    ("demo", "scenarios"), // the demo is one of them, told slowly
    ("main", "cli"),
];

/// Modules that are pure: no clock, no I/O, no logging.
const PURE: &[&str] = &["units", "reading", "screen", "model", "mode", "policy"];

/// What a pure module may not name.
const IMPURE: &[&str] = &[
    "std::fs",
    "std::io",
    "std::env",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "std::time::SystemTime",
    "std::time::Instant",
    "chrono::Utc",
    "libc",
    "nvml_wrapper",
    "rusqlite",
    "tracing",
];

/// What stands nowhere in `src`, in any case. RESUME and DOWN would lift or break what is not ours.
const NEVER: &[&str] = &["State=RESUME", "State=DOWN"];

/// What looks for leftover processes; it finds them and leaves them alone.
const FINDERS: &[&str] =
    &["epilog", "host::holders", "host::processes", "policy", "run::owners", "gpu::few", "gpu::nvml::few"];

/// The ways to end or signal a process.
const SIGNALS: &[&str] = &[
    "kill",
    "killpg",
    "tgkill",
    "tkill",
    "sigqueue",
    "pthread_kill",
    "pidfd_open",
    "pidfd_send_signal",
    "SYS_kill",
    "SYS_tgkill",
    "SYS_pidfd_send_signal",
    "Command",
];

/// Work left lying about.
const UNFINISHED: &[&str] = &["TODO", "FIXME", "XXX"];

/// Macros that are scaffolding.
const SCAFFOLDING: &[&str] = &["dbg", "todo", "unimplemented"];

const TOP_LEVEL: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "LICENSE",
    "README.md",
    "fixtures",
    "hooks",
    "man",
    "src",
    "target",
    "tests",
];

const FILE_LINES: usize = 600;
const FUNCTION_LINES: usize = 70;
const CRATE: &str = "gpu_reaper_hc";

/// One source file: its place in the crate (`["gpu", "worker"]`) and its text.
struct Source {
    file: String,
    module: Vec<String>,
    text: String,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> Vec<Source> {
    fn walk(folder: &FilePath, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    let src = root().join("src");
    let mut files = Vec::new();
    walk(&src, &mut files);
    files.sort();
    let read = |path: PathBuf| {
        let inside = path.strip_prefix(&src).unwrap().with_extension("");
        let mut module: Vec<String> = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        if module.last().is_some_and(|last| last == "mod") {
            module.pop();
        }
        Source {
            file: path.strip_prefix(root()).unwrap().display().to_string(),
            module,
            text: fs::read_to_string(&path).unwrap(),
        }
    };
    files.into_iter().map(read).collect()
}

fn floor(module: &str) -> Option<usize> {
    FLOORS.iter().position(|(_, rooms)| rooms.contains(&module))
}

/// What one file names against the floors. `module` is its place; `lib.rs` only says which modules there are.
fn climbs(module: &[String], text: &str) -> Vec<(usize, String)> {
    let room = module[0].as_str();
    let (code, _) = without_tests(&tokens(text));
    let mut wrong = Vec::new();
    for path in paths(&code) {
        let Some(inside) = within_crate(&path, module, CRATE) else {
            continue;
        };
        let Some(named) = inside.first() else {
            continue;
        };
        if named == room {
            continue;
        }
        let complaint = match (floor(room), floor(named)) {
            _ if named == "*" => Some("names the whole crate; name what is meant".to_string()),
            (None, _) => Some(format!("`{room}` stands on no floor of the table")),
            (_, None) => Some(format!("names `{named}`, which stands on no floor of the table")),
            (Some(own), Some(other)) if other < own => None,
            (Some(own), Some(other)) if other == own && NEIGHBOURS.contains(&(room, named.as_str())) => None,
            (Some(own), Some(_)) => {
                Some(format!("`{room}` (floor {own}, {}) may not name `{named}`", FLOORS[own].0))
            }
        };
        wrong.extend(complaint.map(|complaint| (path.line, complaint)));
    }
    wrong.dedup();
    wrong
}

fn impure(text: &str) -> Vec<(usize, String)> {
    let (code, _) = without_tests(&tokens(text));
    let named = |path: &Path| {
        let parts = &path.parts;
        let whole = parts.join("::");
        let beneath = |bad: &&&str| whole == **bad || whole.starts_with(&format!("{bad}::"));
        // `use std::time;` opens the way to what lies beneath it, `use std::*` to everything.
        let above = |bad: &&&str| bad.starts_with(&format!("{}::", whole.trim_end_matches("::*")));
        IMPURE
            .iter()
            .find(|bad| beneath(bad) || above(bad))
            .map(|bad| (path.line, format!("names `{whole}` (`{bad}`)")))
    };
    let alone = |at: usize| {
        let (word, next) = (&code[at], code.get(at + 1)?);
        let used = at > 0 && code[at - 1].text == "use" && matches!(next.text.as_str(), ";" | "as");
        (used && IMPURE.contains(&word.text.as_str())).then(|| (word.line, format!("names `{}`", word.text)))
    };
    paths(&code).iter().filter_map(named).chain((0..code.len()).filter_map(alone)).collect()
}

fn complain(heading: &str, wrong: &[String]) {
    assert!(wrong.is_empty(), "{heading}:\n  {}", wrong.join("\n  "));
}

/// Files that are test modules as a whole (`#[cfg(test)] mod tests;` beside them).
fn test_files(all: &[Source]) -> Vec<Vec<String>> {
    let inside = |source: &Source| {
        let base = if source.module == ["lib"] { Vec::new() } else { source.module.clone() };
        let (_, names) = without_tests(&tokens(&source.text));
        names.into_iter().map(move |name| base.iter().cloned().chain([name]).collect()).collect::<Vec<_>>()
    };
    all.iter().flat_map(inside).collect()
}

fn real_sources() -> Vec<Source> {
    let all = sources();
    let tests = test_files(&all);
    all.into_iter().filter(|s| !tests.iter().any(|t| s.module.starts_with(t))).collect()
}

#[test]
fn each_floor_names_only_floors_below_it() {
    let mut wrong = Vec::new();
    for source in real_sources().iter().filter(|s| s.module != ["lib"]) {
        if floor(&source.module[0]).is_none() {
            wrong.push(format!("{}: stands on no floor of the table in tests/house.rs", source.file));
        }
        wrong.extend(
            climbs(&source.module, &source.text)
                .into_iter()
                .map(|(line, what)| format!("{}:{line}: {what}", source.file)),
        );
    }
    complain("the floors are not kept", &wrong);
}

#[test]
fn the_library_root_holds_modules_and_nothing_else() {
    let text = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let words: Vec<String> = tokens(&text).into_iter().map(|t| t.text).collect();
    let mut wrong: Vec<String> = Vec::new();
    for word in ["fn", "use", "struct", "enum", "trait", "impl", "static", "const", "macro_rules"] {
        wrong.extend(
            words
                .iter()
                .any(|w| w == word)
                .then(|| format!("src/lib.rs: `{word}`: put it in a module on a floor")),
        );
    }
    complain("an item in the root would stand on no floor", &wrong);
}

#[test]
fn a_neighbour_that_nobody_needs_is_struck_from_the_list() {
    let all = real_sources();
    let exists = |room: &str| all.iter().any(|s| s.module[0] == room);
    let needs = |room: &str, other: &str| {
        all.iter().filter(|s| s.module[0] == room).any(|s| {
            let (code, _) = without_tests(&tokens(&s.text));
            paths(&code).iter().any(|p| {
                within_crate(p, &s.module, CRATE).is_some_and(|i| i.first().is_some_and(|f| f == other))
            })
        })
    };
    let idle = |(room, other): &&(&str, &str)| exists(room) && exists(other) && !needs(room, other);
    let wrong: Vec<String> =
        NEIGHBOURS.iter().filter(idle).map(|(a, b)| format!("`{a}` does not name `{b}`")).collect();
    complain("NEIGHBOURS in tests/house.rs allows more than is used", &wrong);
}

#[test]
fn edges_never_name_each_other() {
    let edges = FLOORS.iter().find(|(name, _)| *name == "edges").unwrap().1;
    assert!(NEIGHBOURS.iter().all(|(a, b)| !edges.contains(a) && !edges.contains(b)));
}

#[test]
fn the_rules_know_no_clock_no_files_and_no_log() {
    let mut wrong = Vec::new();
    for source in real_sources().iter().filter(|s| PURE.contains(&s.module[0].as_str())) {
        wrong.extend(
            impure(&source.text).into_iter().map(|(line, what)| format!("{}:{line}: {what}", source.file)),
        );
    }
    complain("a pure module is not pure", &wrong);
}

#[test]
fn files_and_functions_can_be_read_at_a_sitting() {
    let mut wrong = Vec::new();
    for source in sources() {
        let lines = source.text.lines().filter(|line| !line.trim().is_empty()).count();
        if lines > FILE_LINES {
            wrong.push(format!("{}: {lines} lines that are not blank; at most {FILE_LINES}", source.file));
        }
        for long in functions(&tokens(&source.text)).iter().filter(|f| f.lines > FUNCTION_LINES) {
            wrong.push(format!(
                "{}:{}: `{}` takes {} lines; at most {FUNCTION_LINES}",
                source.file, long.line, long.name, long.lines
            ));
        }
    }
    complain("too long", &wrong);
}

#[test]
fn what_must_never_be_said_is_said_nowhere() {
    let mut wrong = Vec::new();
    for source in sources() {
        for (number, line) in source.text.lines().enumerate() {
            let loud = line.to_uppercase();
            let never = NEVER.iter().find(|never| loud.contains(&never.to_uppercase()));
            let words = || line.split(|c: char| !c.is_alphanumeric());
            let unfinished = UNFINISHED.iter().find(|word| words().any(|w| w == **word));
            wrong
                .extend(never.or(unfinished).map(|what| format!("{}:{}: `{what}`", source.file, number + 1)));
        }
        let code = tokens(&source.text);
        let scaffold =
            |pair: &&[scan::Token]| SCAFFOLDING.contains(&pair[0].text.as_str()) && pair[1].text == "!";
        wrong.extend(
            code.windows(2)
                .filter(scaffold)
                .map(|pair| format!("{}:{}: `{}!`", source.file, pair[0].line, pair[0].text)),
        );
    }
    complain("this does not belong in src", &wrong);
}

/// The words of a source that signal somebody.
fn signals(text: &str) -> Vec<(usize, String)> {
    let (code, _) = without_tests(&tokens(text));
    let words = code.iter().filter(|token| SIGNALS.contains(&token.text.as_str()));
    words.map(|token| (token.line, format!("`{}`", token.text))).collect()
}

#[test]
fn who_looks_for_leftover_processes_signals_none() {
    // NVIDIA/deepops#1315, NVIDIA/deepops#992 (PE-05, PE-06): root's Epilogs have killed the wrong ones.
    let mut wrong = Vec::new();
    for finder in FINDERS {
        let within = |s: &&Source| format!("{}::", s.module.join("::")).starts_with(&format!("{finder}::"));
        let all = real_sources();
        let of_it: Vec<&Source> = all.iter().filter(within).collect();
        assert!(!of_it.is_empty(), "no source is called {finder}");
        for source in of_it {
            let found = signals(&source.text);
            wrong.extend(found.into_iter().map(|(line, what)| format!("{}:{line}: {what}", source.file)));
        }
    }
    complain("an Epilog sends no signal and starts no program", &wrong);
}

#[test]
fn every_file_of_src_opens_with_what_it_is() {
    let bare = |s: &Source| !s.text.starts_with("//!");
    let wrong: Vec<String> = sources().iter().filter(|s| bare(s)).map(|s| s.file.clone()).collect();
    complain("no module doc at the top", &wrong);
}

#[test]
fn the_top_level_holds_what_a_stranger_expects() {
    let names = fs::read_dir(root()).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned());
    let wrong: Vec<String> =
        names.filter(|n| !n.starts_with('.') && !TOP_LEVEL.contains(&n.as_str())).collect();
    complain("not at the top level", &wrong);
}

#[test]
fn readme_shows_the_same_floors() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let architecture = readme.split("\n## Architecture").nth(1).expect("README has a section Architecture");
    let mut shown = BTreeMap::new();
    for line in architecture.lines().take_while(|line| !line.starts_with("## ")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let Some(number) = cells.first().and_then(|cell| cell.parse::<usize>().ok()) else {
            continue;
        };
        let rooms: Vec<&str> = cells[2].split('`').skip(1).step_by(2).collect();
        shown.insert(number, (cells[1], rooms));
    }
    let kept: BTreeMap<_, _> =
        FLOORS.iter().map(|(name, rooms)| (*name, rooms.to_vec())).enumerate().collect();
    assert_eq!(shown, kept, "README's table of floors (left) and the one that is kept (right)");
}

/// The scanner against small bad examples.
mod the_scanner {
    use super::*;

    fn module(path: &str) -> Vec<String> {
        path.split("::").map(str::to_string).collect()
    }

    fn named(text: &str) -> Vec<String> {
        paths(&tokens(text)).into_iter().map(|p| p.parts.join("::")).collect()
    }

    #[test]
    fn multiplies_groups_out() {
        let text = "use crate::{gpu::{self, worker as w}, ledger::Row, units::*}; use std::fs;";
        assert_eq!(
            named(text),
            ["crate::gpu", "crate::gpu::worker", "crate::ledger::Row", "crate::units::*", "std::fs"]
        );
        assert_eq!(
            named("let x = crate::gpu::Source::<u8>::new(a::B { c: d::e() });"),
            ["crate::gpu::Source", "a::B", "d::e"]
        );
    }

    #[test]
    fn finds_a_climb_wherever_it_hides() {
        let climbing: &[(&str, &str)] = &[
            ("gpu", "use crate::ledger::Ledger;"),
            ("gpu", "use crate::{units::Percent, ledger::{self, Row}};"),
            ("gpu::worker", "fn f() { super::super::ledger::open() }"),
            ("gpu::worker", "use super::super::{ledger};"),
            ("policy::stage", "use crate::act;"),
            ("policy", "fn f() -> Option<crate::config::Config> { None }"),
            ("policy", "use super::*;"),
            ("slurm", "use crate as all; use all::gpu;"),
            ("slurm", "macro_rules! m { () => { $crate::gpu::open() } }"),
            ("run", "pub use gpu_reaper_hc::cli::command;"),
            ("model", "use crate::mode::Mode;"),
            ("mode", "use crate::policy::judge;"),
            ("gpu", "use crate::attic::old;"),
            ("attic", "use crate::units::Percent;"),
        ];
        for (place, text) in climbing {
            assert_eq!(
                climbs(&module(place), text).len(),
                1,
                "{place}: {text}: {:?}",
                climbs(&module(place), text)
            );
        }
    }

    #[test]
    fn leaves_alone_what_keeps_the_floors() {
        let kept: &[(&str, &str)] = &[
            ("gpu", "use crate::{units::*, reading::{Reading, Absence}, gpu::worker};"),
            ("gpu::worker", "use super::nvml; use super::super::units::Percent; use self::inner::x;"),
            ("policy::stage", "use crate::mode::EnforcePermit; use super::window;"),
            (
                "policy",
                "// crate::ledger is where it comes from\nconst A: &str = \"crate::ledger::X\"; const B: char = '\"';",
            ),
            ("policy", "#[cfg(test)]\nmod tests { use super::*; use crate::ledger::Row; }"),
            ("policy", "#[cfg(test)] #[path = \"x.rs\"] mod tests; /* crate::gpu /* nested */ crate::gpu */"),
            (
                "reading",
                "let a: &'static str = r#\"crate::ledger \"quoted\" \"#; let b = b'\\''; let c = '\\n';",
            ),
            ("main", "use gpu_reaper_hc::cli; fn main() { gpu_reaper_hc::run::run() }"),
            ("act", "use crate::{config, slurm::scontrol, ledger::Ledger}; use std::slurm::cli;"),
        ];
        for (place, text) in kept {
            assert_eq!(climbs(&module(place), text), [], "{place}: {text}");
        }
    }

    #[test]
    fn finds_what_is_not_pure() {
        let dirty = [
            "use std::fs;",
            "use std::{collections::BTreeMap, time::{Duration, Instant}};",
            "use std::time;",
            "use std::*;",
            "let now = std::time::SystemTime::now();",
            "tracing::info!(\"judged\");",
            "use tracing;",
            "fn f(c: &rusqlite::Connection) {}",
            "let p = std::process::id();",
        ];
        for text in dirty {
            assert_eq!(impure(text).len(), 1, "{text}: {:?}", impure(text));
        }
        assert_eq!(
            impure("use std::time::Duration; use std::fmt; // std::fs\n#[cfg(test)] mod t { use std::fs; }"),
            []
        );
    }

    #[test]
    fn finds_what_signals_a_process() {
        for text in ["unsafe { libc::kill(pid, 9) }", "child.kill()", "std::process::Command::new(\"x\")"] {
            assert_eq!(signals(text).len(), 1, "{text}");
        }
        assert_eq!(signals("// kill\nlet killed = \"kill\"; #[cfg(test)] mod t { fn f() { kill() } }"), []);
    }

    #[test]
    fn measures_functions_and_not_declarations() {
        let text = "trait T { fn declared(&self, x: [u8; 4]) -> u8; }\nfn long(\n  a: u8,\n) -> u8\nwhere u8: Copy {\n  { a }\n}\n";
        let found = functions(&tokens(text));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].name.as_str(), found[0].line, found[0].lines), ("long", 2, 6));
    }

    #[test]
    fn knows_a_test_module_kept_in_a_file_of_its_own() {
        let (code, tests) = without_tests(&tokens("pub mod a;\n#[cfg(test)]\nmod tests;\nfn f() {}"));
        assert_eq!(tests, ["tests"]);
        assert_eq!(code.iter().map(|t| t.text.as_str()).collect::<String>(), "pubmoda;fnf(){}");
    }
}

//! The manual page says what the command line says: its options and commands are rendered from clap, the rest
//! is `man/gpu-reaper-hc.8.in`. `UPDATE_MAN=1 cargo test --test man` writes it anew.

use clap::{Arg, Command};
use clap_mangen::Man;
use gpu_reaper_hc::deliver::metrics::{METRICS, Metric};
use gpu_reaper_hc::policy::Signature;
use std::fs;
use std::path::PathBuf;
use std::process::{Command as Process, Stdio};

fn page() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("man/gpu-reaper-hc.8")
}

/// The command with everything that clap adds to it at parsing (help, global options).
fn command() -> Command {
    let mut command = gpu_reaper_hc::cli::command();
    command.build();
    command
}

fn own_arguments(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| !arg.is_global_set() && !arg.is_hide_set() && arg.get_id() != "help")
}

fn shown_subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
}

/// The body of one of clap_mangen's sections: without its heading and the two lines that only set up quotes.
fn body(render: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) -> String {
    let mut text = Vec::new();
    render(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    text.lines()
        .filter(|line| !line.starts_with(".SH") && !line.starts_with(".ie") && !line.starts_with(".el"))
        .fold(String::new(), |mut all, line| {
            all.push_str(line);
            all.push('\n');
            all
        })
}

/// `.SS` with the words that lead to a command, what it is for, its own options; then those beneath it.
fn describe(command: &Command, path: &str, into: &mut String) {
    for sub in shown_subcommands(command) {
        let path = format!("{path}{}", sub.get_name());
        let arguments: Vec<Arg> = own_arguments(sub).cloned().collect();
        let takes: String =
            arguments.iter().filter(|arg| arg.is_positional()).map(|arg| format!(" {arg}")).collect();
        into.push_str(&format!(".SS {}\n", format!("{path}{takes}").replace('-', "\\-")));
        into.push_str(&body(|w| Man::new(bare(sub)).render_description_section(w)));
        if !arguments.is_empty() {
            into.push_str(&body(|w| Man::new(bare(sub).args(arguments)).render_options_section(w)));
        }
        describe(sub, &format!("{path} "), into);
    }
}

/// A command of the same purpose with nothing else to it.
fn bare(command: &Command) -> Command {
    let mut bare = Command::new("gpu-reaper-hc").disable_help_flag(true).disable_help_subcommand(true);
    if let Some(about) = command.get_about() {
        let more = command.get_after_help().map(|more| more.to_string().replace('\n', " "));
        let more = more.map(|more| format!("\n\n{more}")).unwrap_or_default();
        bare = bare.about(format!("{about}{more}"));
    }
    bare
}

/// The command with its options and what each takes, which clap_mangen leaves out.
fn synopsis(command: &Command) -> String {
    let option = |arg: &Arg| {
        let short = arg.get_short().map(|short| format!("\\fB\\-{short}\\fR"));
        let long = arg.get_long().map(|long| format!("\\fB\\-\\-{}\\fR", long.replace('-', "\\-")));
        let names: Vec<String> = short.into_iter().chain(long).collect();
        let takes = arg.get_value_names().filter(|_| arg.get_action().takes_values()).unwrap_or_default();
        let takes: String = takes.iter().map(|value| format!(" \\fI{value}\\fR")).collect();
        format!(" [{}{takes}]", names.join("|"))
    };
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set() && !arg.is_positional());
    let options: String = shown.map(option).collect();
    format!("\\fBgpu\\-reaper\\-hc\\fR{options} [\\fICOMMAND\\fR]\n")
}

/// Each signature's rule in its reference form.
fn signatures() -> String {
    let safe = |text: &str| text.replace('-', "\\-").replace('`', "");
    let rule = |signature: Signature| {
        let rule = signature.rule();
        format!(
            ".TP\n\\fB{signature}\\fR\nBreaches if: {}.\n.br\nReads: {}.\n.br\nAt most: {}.\n",
            safe(rule.breaches_if),
            safe(rule.inputs),
            safe(rule.most)
        )
    };
    Signature::ALL.map(rule).concat()
}

/// The metrics as the file says them: name, type, labels, meaning.
fn metrics() -> String {
    let entry = |metric: &Metric| {
        let labels = match metric.labels {
            [] => String::new(),
            labels => format!("{{{}}}", labels.join(", ")),
        };
        let name = format!("gpu_reaper_{}", metric.name);
        let help = metric.help.replace('-', "\\-");
        format!(".TP\n\\fB{name}\\fR{labels} ({})\n{help}\n", metric.kind)
    };
    METRICS.iter().map(entry).collect()
}

fn rendered() -> String {
    let command = command();
    let man = Man::new(command.clone());
    let mut commands = String::new();
    describe(&command, "", &mut commands);
    let template = fs::read_to_string(page().with_extension("8.in")).unwrap();
    let (_, template) = template.split_once("\n.TH").expect("the template has a title line");
    format!(".\\\" Rendered by tests/man.rs from gpu-reaper-hc.8.in and the command line.\n.TH{template}")
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"))
        .replace("@SYNOPSIS@\n", &synopsis(&command))
        .replace("@SIGNATURES@\n", &signatures())
        .replace("@METRICS@\n", &metrics())
        .replace("@OPTIONS@\n", &body(|w| man.render_options_section(w)))
        .replace("@COMMANDS@\n", &commands)
}

#[test]
fn the_manual_page_is_the_one_that_the_command_line_renders() {
    let rendered = rendered();
    if std::env::var_os("UPDATE_MAN").is_some() {
        fs::write(page(), &rendered).unwrap();
    }
    let committed = fs::read_to_string(page()).unwrap_or_default();
    assert!(committed == rendered, "man/gpu-reaper-hc.8 is not current: UPDATE_MAN=1 cargo test --test man");
}

/// Every command of the tree, with the words that lead to it.
fn all_commands() -> Vec<(Vec<String>, Command)> {
    fn walk(command: &Command, path: &[String], all: &mut Vec<(Vec<String>, Command)>) {
        all.push((path.to_vec(), command.clone()));
        for sub in shown_subcommands(command) {
            let path: Vec<String> = path.iter().cloned().chain([sub.get_name().to_string()]).collect();
            walk(sub, &path, all);
        }
    }
    let mut all = Vec::new();
    walk(&command(), &[], &mut all);
    all
}

#[test]
fn whatever_help_names_is_in_the_manual_page() {
    let page = fs::read_to_string(page()).unwrap().replace("\\-", "-");
    for (path, _) in all_commands() {
        let mut asked = Process::new(env!("CARGO_BIN_EXE_gpu-reaper-hc"));
        let output = asked.args(&path).arg("--help").stdin(Stdio::null()).output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && !help.is_empty(), "`{} --help`", path.join(" "));
        let words = help.split(|c: char| !c.is_alphanumeric() && c != '-' && c != '_');
        for option in words.filter(|word| word.starts_with("--") && word.len() > 2) {
            assert!(page.contains(option), "`{option}` of `{} --help` is not in the page", path.join(" "));
        }
        if !path.is_empty() {
            let heading = format!("\n.SS {}", path.join(" "));
            assert!(page.contains(&heading), "`{}` has no heading in the page", path.join(" "));
        }
    }
}

/// Both pages through a checker; `true` of what it answers is a clean page.
fn check(program: &str, arguments: &[&str], clean: fn(&std::process::Output) -> bool) {
    for page in [page(), page().with_file_name("gpu-reaper-hc.yaml.5")] {
        let mut asked = Process::new(program);
        asked.env("LC_ALL", "C.UTF-8").args(arguments).arg(&page).stdin(Stdio::null());
        let Ok(output) = asked.output() else {
            return eprintln!("SKIPPED: {program} is not installed");
        };
        let said = [&output.stdout[..2000.min(output.stdout.len())], &output.stderr].concat();
        assert!(clean(&output), "{program} on {}: {}", page.display(), String::from_utf8_lossy(&said));
    }
}

#[test]
fn the_manual_pages_are_sound_for_groff() {
    check("groff", &["-man", "-ww", "-Tutf8", "-z"], |o| o.status.success() && o.stderr.is_empty());
}

#[test]
fn the_manual_pages_are_sound_for_man() {
    check("man", &["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"], |o| {
        o.status.success() && o.stderr.is_empty()
    });
}

#[test]
fn the_manual_pages_are_sound_for_mandoc() {
    // Its remarks of style are of the source's line lengths.
    check("mandoc", &["-T", "lint", "-W", "warning"], |o| o.status.success() && o.stdout.is_empty());
}

/// The words that follow the program's name wherever a file calls it, up to the first that is no word.
fn calls(text: &str) -> Vec<Vec<&str>> {
    let word = |word: &&str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase());
    let after = text.split("`gpu-reaper-hc ").skip(1).chain(text.split("\ngpu-reaper-hc ").skip(1));
    after
        .map(|rest| {
            let call = rest.split(['`', '\n']).next().unwrap_or_default();
            call.split(' ').take_while(word).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn each_command_that_readme_names_exists() {
    let readme = fs::read_to_string(page().with_file_name("../README.md")).unwrap();
    let known = all_commands();
    let calls = calls(&readme);
    assert!(calls.len() > 3, "{calls:?}");
    for call in calls.iter().filter(|call| !call.is_empty()) {
        let named = known.iter().any(|(path, _)| !path.is_empty() && path[0] == call[0]);
        assert!(named, "README calls `gpu-reaper-hc {}`, which is no command", call.join(" "));
    }
}

/// A terminal of 80 columns and 24 lines.
#[test]
fn each_help_fits_a_screen() {
    for (path, _) in all_commands() {
        for flag in ["-h", "--help"] {
            let mut asked = Process::new(env!("CARGO_BIN_EXE_gpu-reaper-hc"));
            let output = asked.args(&path).arg(flag).stdin(Stdio::null()).output().unwrap();
            let help = String::from_utf8(output.stdout).unwrap();
            let what = format!("`{} {flag}`", path.join(" "));
            for line in help.lines() {
                assert!(line.chars().count() <= 80, "{what}: wider than 80 columns: {line}");
            }
            assert!(help.lines().count() <= 24, "{what}: {} lines:\n{help}", help.lines().count());
        }
    }
}

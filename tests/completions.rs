//! The completions of the shells say what the command line says. `UPDATE_MAN=1 cargo test --test completions` writes them
//! anew; bash's is tried in a bash.

use clap_complete::{Shell, generate};
use gpu_reaper_hc::cli::command;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Each shell and the name under which it looks for the file.
const FILES: [(Shell, &str); 3] = [
    (Shell::Bash, "gpu-reaper-hc.bash"),
    (Shell::Zsh, "_gpu-reaper-hc"),
    (Shell::Fish, "gpu-reaper-hc.fish"),
];

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("man/completions").join(name)
}

#[test]
fn the_completions_are_those_that_the_command_line_renders() {
    for (shell, name) in FILES {
        let mut rendered = Vec::new();
        generate(shell, &mut command(), "gpu-reaper-hc", &mut rendered);
        // clap_complete 4.6.12 names a command with hyphens in two ways, so that bash completes nothing beneath it.
        let rendered = String::from_utf8(rendered).unwrap();
        let rendered = rendered.replace("gpu__subcmd__reaper__subcmd__hc", "gpu__reaper__hc").into_bytes();
        if std::env::var_os("UPDATE_MAN").is_some() {
            fs::create_dir_all(file("")).unwrap();
            fs::write(file(name), &rendered).unwrap();
        }
        let current = fs::read(file(name)).unwrap_or_default() == rendered;
        assert!(current, "man/completions/{name} is not current: UPDATE_MAN=1 cargo test --test completions");
    }
}

/// What bash would offer for the last of these words.
fn offered(words: &[&str]) -> Option<Vec<String>> {
    let script = r#"
        source "$1" || exit
        complete -p gpu-reaper-hc | grep -q -- '-F _gpu__reaper__hc' || exit
        shift
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_TYPE=9 COMPREPLY=()
        compopt() { :; }
        _gpu__reaper__hc gpu-reaper-hc "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", script, "bash"]).arg(file("gpu-reaper-hc.bash")).args(words);
    let output = bash.stdin(Stdio::null()).output().ok()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{words:?}: {said}");
    Some(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect())
}

#[test]
fn bash_completes_commands_and_options() {
    let cases: [(&[&str], &[&str]); 4] = [
        (&["gpu-reaper-hc", "ep"], &["epilog"]),
        (&["gpu-reaper-hc", "config", "c"], &["check"]),
        (&["gpu-reaper-hc", "backtest", "--tr"], &["--trace"]),
        (&["gpu-reaper-hc", "--exp"], &["--explain"]),
    ];
    for (words, wanted) in cases {
        let Some(offered) = offered(words) else {
            return eprintln!("SKIPPED: bash is not installed");
        };
        assert_eq!(offered, wanted, "{words:?}");
    }
}

#[test]
fn the_other_shells_can_read_theirs() {
    for (shell, flag, name) in [("zsh", "-n", "_gpu-reaper-hc"), ("fish", "-n", "gpu-reaper-hc.fish")] {
        match Command::new(shell).arg(flag).arg(file(name)).stdin(Stdio::null()).output() {
            Ok(output) => {
                assert!(output.status.success(), "{shell}: {}", String::from_utf8_lossy(&output.stderr))
            }
            Err(_) => eprintln!("SKIPPED: {shell} is not installed"),
        }
    }
}

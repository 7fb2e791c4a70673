//! `config check`, `show` and `example`, and the older daemon's file under a real run.

use crate::*;

fn with_file(text: &str, args: &[&str]) -> Said {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    said(Command::new(PROGRAM).args(args).arg("--config").arg(file.path()).env_clear())
}

#[test]
fn the_shipped_example_passes_its_own_check() {
    // PrincetonUniversity/jobstats#22 (CF-03): the guide's first example failed.
    let example = said(Command::new(PROGRAM).args(["config", "example"]).env_clear());
    assert_eq!((example.status, example.err.as_str()), (Some(0), ""));
    let check = with_file(&example.out, &["config", "check"]);
    assert_eq!((check.status, check.err.as_str(), check.out.lines().count()), (Some(0), "", 1));
    assert!(check.out.starts_with("ok: "), "{check:?}");
    let shown = with_file(&example.out, &["config", "show"]);
    assert_eq!((shown.status, shown.err.as_str()), (Some(0), ""));
    assert!(shown.out.contains("mode: observe") && shown.out.contains("# line "), "{shown:?}");
    assert_eq!(with_file(&shown.out, &["config", "check"]).status, Some(0), "what is shown loads again");
}

#[test]
fn every_error_is_told_at_once_and_notes_are_no_errors() {
    // PrincetonUniversity/jobstats#22 (CF-03): `windw` silently disabled a guard.
    let wrong = "thresholds: { windw: 20m, warmup: 15 }\nmode: enforced\n";
    for what in ["check", "show"] {
        let told = with_file(wrong, &["config", what]);
        assert_eq!((told.status, told.out.as_str(), told.err.lines().count()), (Some(1), "", 3), "{told:?}");
        for key in ["`thresholds.windw`", "`thresholds.warmup`", "`mode`"] {
            assert!(told.err.contains(key), "{told:?}");
        }
    }
    // epfLLM/Megatron-LLM#69 (FP-01): a window that a checkpoint save outlasts is warned about.
    let short = "thresholds: { window: 10m }\n";
    let told = with_file(short, &["config", "check"]);
    assert_eq!((told.status, told.err.as_str()), (Some(0), ""));
    assert!(
        told.out.starts_with("note: `thresholds.window` 10m: short windows raise false alarms"),
        "{told:?}"
    );
    // zellij-org/zellij#716, vectordotdev/vector#25981 (CF-01)
    for (text, status) in [("", 0), ("# nothing\n", 0), ("null\n", 1), ("~\n", 1), ("[]\n", 1)] {
        assert_eq!(with_file(text, &["config", "check"]).status, Some(status), "{text:?}");
    }
    assert_eq!(with_file("", &["config"]).status, Some(2), "a usage error");
}

#[test]
fn an_unusable_configuration_judges_nothing_and_leaves_nothing() {
    // euzu/tuliprox#4 (CF-02): an empty value became a file named `~`. vectordotdev/vector#25981 (CF-01)
    let node = Node::without_driver();
    for text in ["slack:\n  webhook_env:\nexemptions:\n  users:\n", "history:\n"] {
        node.configure(text);
        let run = said(node.command(&[]).current_dir(node.path("")));
        assert_eq!((run.status, run.out.as_str()), (Some(1), ""), "{text:?}");
        assert!(run.line().ends_with("; nothing was judged or done"), "{run:?}");
    }
    let mut left: Vec<_> = fs::read_dir(node.path("")).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["config.yaml", "site"], "no file named `~`, no state");
}

/// What the older daemon asked of nvidia-smi, answered for two GPUs.
const NVIDIA_SMI: &str = "#!/bin/sh
case \"$*\" in
  *--query-gpu=*) cat <<'ROWS'
535.104.05, 0, GPU-a, 00000000:1A:00.0, [N/A], 0, 0, 0, 16384, 26.10, 70.00, 300, 1590, 31, 0x1, Tesla T4
535.104.05, 1, GPU-b, 00000000:1B:00.0, [N/A], [N/A], [N/A], 8192, 16384, [N/A], 70.00, 1590, 1590, 60, 0x0, Tesla T4
ROWS
  ;;
esac
";

#[test]
fn the_older_daemons_file_runs_unchanged() {
    // The older daemon's file names no state folder: it gets a /var/lib of its own here, and its nvidia-smi.
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/config/daemon-style.yaml");
    let script = "mount -t tmpfs tmpfs /var/lib; mount -t tmpfs tmpfs /usr/local/bin
        \"$PROGRAM\"; echo \"absent: $?\" >&2
        printf %s \"$SMI\" >/usr/local/bin/nvidia-smi; chmod 755 /usr/local/bin/nvidia-smi
        \"$PROGRAM\"; echo \"there: $?\" >&2; ls /var/lib/gpu-reaper-hc/n1";
    if Path::new("/usr/bin/nvidia-smi").exists() {
        return println!("skipped: this machine has an nvidia-smi of its own");
    }
    let Some(mut command) = with_own_mounts(script) else { return };
    command.env("GPU_REAPER_CONFIG", file).env("SLURMD_NODENAME", "n1").env("SMI", NVIDIA_SMI);
    // No Slurm here, and no harm: this machine may have its commands.
    command.env("SLURM_CONF", "/nonexistent/slurm.conf");
    let run = said(&mut command);
    assert_eq!(run.status, Some(0), "{run:?}");
    assert!(
        run.err.contains("GPUs not read: the source failed; 0 jobs") && run.err.contains("absent: 0"),
        "{run:?}"
    );
    assert!(run.err.contains("2 GPUs read; 0 jobs") && run.err.contains("there: 0"), "{run:?}");
    assert!(
        run.err.contains("WARN squeue: ") && run.err.contains("jobs without a registration are unknown"),
        "{run:?}"
    );
    assert!(run.out.contains("ledger.db"), "{run:?}");
    let check = said(Command::new(PROGRAM).args(["config", "check", "--config", file]).env_clear());
    assert_eq!((check.status, check.err.as_str()), (Some(0), ""));
    assert_eq!(check.out.lines().filter(|l| l.starts_with("note: ")).count(), 4, "{check:?}");
}

//! Commands that hang, hold their pipe, or say too much: none of them holds us up, none is an answer.

use super::{ROW, StandIns, install, job, slurm};
use gpu_reaper_hc::slurm::{Ask, NoAnswer, Site};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn a_command_that_hangs_is_killed_at_its_limit_with_all_its_children() {
    // mej/nhc#159 (CT-05), hniksic/rust-subprocess#12, stemdeckapp/stemdeck#583 (RT-05).
    let mark = |folder: &StandIns| folder.folder.path().join("pids");
    for body in
        ["trap '' TERM; echo $$ >> pids; sleep 300", "sleep 300 & echo $! >> pids; echo $$ >> pids; wait"]
    {
        let stand_ins = StandIns::new(&[]);
        let script = format!("#!/bin/sh\ncd {}\n{body}\n", stand_ins.folder.path().display());
        install(&stand_ins.folder.path().join("squeue"), &script);
        let began = Instant::now();
        let limit = Duration::from_millis(400);
        let answer = slurm(Site { limit, ..stand_ins.site() }).job(job(1), Ask::NOTHING_MORE);
        assert_eq!(answer, Err(NoAnswer::TimedOut { program: "squeue", limit_ms: 400 }), "{body}");
        assert!(began.elapsed() < limit + Duration::from_secs(1), "{:?}", began.elapsed());
        for pid in fs::read_to_string(mark(&stand_ins)).unwrap().lines() {
            assert!(gone(pid), "{body}: {pid} lives");
        }
    }
}

/// Gone, or killed and waiting for init to reap it.
fn gone(pid: &str) -> bool {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        match fs::read_to_string(format!("/proc/{pid}/stat")) {
            Err(_) => return true,
            Ok(stat) if stat.contains(") Z ") => return true,
            Ok(_) if Instant::now() > until => return false,
            Ok(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Set for the process that the next test kills: where its squeue lies.
const KILLED: &str = "GPU_REAPER_TEST_IS_KILLED";

#[test]
fn a_command_does_not_outlive_the_run_that_asked() {
    // A run that is given up at its deadline ends at once, with a command still asking.
    if let Some(folder) = std::env::var_os(KILLED) {
        let site = Site::here(Some(PathBuf::from(folder)), None);
        drop(slurm(site).job(job(1), Ask::NOTHING_MORE));
        return;
    }
    let stand_ins = StandIns::new(&[]);
    let (folder, pid) = (stand_ins.folder.path(), stand_ins.folder.path().join("pid"));
    let script = format!("#!/bin/sh\ncd {}\necho $$ > new && mv new pid\nexec sleep 300\n", folder.display());
    install(&folder.join("squeue"), &script);
    let mut run = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "deadlines::a_command_does_not_outlive_the_run_that_asked"])
        .env(KILLED, folder)
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(5);
    while !pid.exists() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    run.kill().unwrap();
    run.wait().unwrap();
    let command = fs::read_to_string(pid).expect("it was asked");
    assert!(gone(command.trim()), "{} lives", command.trim());
}

#[test]
fn a_grandchild_that_holds_the_pipe_holds_nobody_up() {
    // hniksic/rust-subprocess#12 (RT-05): waiting for the pipe's end would wait for the grandchild.
    let stand_ins = StandIns::new(&[("squeue", &format!("sleep 300 & echo '{ROW}'"))]);
    let began = Instant::now();
    assert!(stand_ins.slurm().job(job(4242), Ask::NOTHING_MORE).unwrap().is_some());
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    // One that left the group cannot be killed, and is not waited for either.
    let escaped = StandIns::new(&[("squeue", &format!("setsid sleep 5 & echo '{ROW}'"))]);
    let began = Instant::now();
    assert!(escaped.slurm().job(job(4242), Ask::NOTHING_MORE).unwrap().is_some());
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}

#[test]
fn endless_output_is_neither_kept_nor_waited_for() {
    let twenty_mib = StandIns::new(&[("squeue", "head -c 20971520 /dev/zero")]);
    let answer = twenty_mib.slurm().job(job(1), Ask::NOTHING_MORE);
    assert!(
        matches!(&answer, Err(NoAnswer::NotUnderstood { text, .. }) if text.contains("more than")),
        "{answer:?}"
    );
    let endless = StandIns::new(&[("squeue", "exec cat /dev/zero")]);
    let limit = Duration::from_millis(400);
    let began = Instant::now();
    let answer = slurm(Site { limit, ..endless.site() }).job(job(1), Ask::NOTHING_MORE);
    assert!(matches!(answer, Err(NoAnswer::TimedOut { .. })), "{answer:?}");
    assert!(began.elapsed() < limit + Duration::from_secs(1));
    let chatty = StandIns::new(&[("squeue", &format!("head -c 5242880 /dev/zero >&2; echo '{ROW}'"))]);
    assert!(
        chatty.slurm().job(job(4242), Ask::NOTHING_MORE).unwrap().is_some(),
        "a long stderr does not block the answer"
    );
}

#[test]
fn bytes_that_are_no_text_are_an_answer_not_understood_never_a_panic() {
    let stand_ins =
        StandIns::new(&[("squeue", "printf '\\377\\376|\\000\\n'"), ("sinfo", "printf '\\377|x\\n'")]);
    let answer = stand_ins.slurm().job(job(1), Ask::NOTHING_MORE);
    assert!(
        answer.as_ref().unwrap_err().to_string().bytes().all(|b| b.is_ascii_graphic() || b == b' '),
        "{answer:?}"
    );
    assert!(stand_ins.slurm().node().is_err());
}

//! The journal where it listens, and standard error where it does not.

use crate::ladder::SECONDS;
use crate::slurm::Cluster;
use crate::*;
use regex_lite::Regex;
use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;

/// The program with `args` where /run/systemd/journal is `folder`.
pub fn beside(node: &Node, folder: &Path, args: &[&str]) -> Option<Command> {
    let script = "mount -t tmpfs tmpfs /run; mkdir -p /run/systemd/journal
        mount --bind \"$JOURNAL\" /run/systemd/journal; exec \"$PROGRAM\" \"$@\"";
    let mut command = with_own_mounts(script)?;
    command.arg("sh").args(args).env("JOURNAL", folder).env("SLURMD_NODENAME", "n1");
    command.env("GPU_REAPER_CONFIG", node.path("config.yaml"));
    Some(command)
}

pub fn heard(journal: &UnixDatagram) -> Vec<String> {
    journal.set_nonblocking(true).unwrap();
    let mut datagram = vec![0; 64 << 10];
    let mut all = Vec::new();
    while let Ok(n) = journal.recv(&mut datagram) {
        all.push(String::from_utf8_lossy(&datagram[..n]).into_owned());
    }
    all.retain(|text| !text.is_empty());
    all
}

/// The fields of ours that the man page names.
fn documented() -> BTreeSet<String> {
    let page = include_str!("../../man/gpu-reaper-hc.8.in").split("\n.SH JOURNAL\n").nth(1).unwrap();
    let section = page.split("\n.SH ").next().unwrap();
    let heads = section.lines().filter(|line| line.starts_with(".B ") || line.starts_with(".BR "));
    heads.flat_map(fields).collect()
}

fn fields(text: &str) -> Vec<String> {
    let name = Regex::new("GPU_REAPER_[A-Z]+").unwrap();
    name.find_iter(text).map(|found| found.as_str().to_owned()).collect()
}

/// The names of the fields in every call of a tracing macro in `folder`.
fn in_sources(folder: &Path, all: &mut BTreeSet<String>) {
    let call = Regex::new(r#"tracing::(?:warn|info)!\(([^"]*)"#).unwrap();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        if entry.path().is_dir() {
            in_sources(&entry.path(), all);
            continue;
        }
        let text = fs::read_to_string(entry.path()).unwrap();
        for found in call.captures_iter(&text) {
            let named = found[1]
                .split(",\n")
                .flat_map(|part| part.split(", "))
                .map(|part| part.split('=').next().unwrap());
            let named = named
                .map(|name| name.trim().trim_end_matches(',').to_uppercase())
                .filter(|name| !name.is_empty());
            all.extend(named.map(|name| format!("GPU_REAPER_{name}")));
        }
    }
}

#[test]
fn the_man_page_names_every_field_that_the_code_gives_and_no_other() {
    let mut given = BTreeSet::from(["GPU_REAPER_NODE".to_owned()]);
    in_sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut given);
    assert_eq!(given, documented());
}

#[test]
fn what_arrives_names_job_node_and_deed_as_the_man_page_says_and_the_ledger_needs_no_journal() {
    let cluster = Cluster::new(SECONDS);
    cluster.job(4242, "4240_2", "train");
    assert_eq!(cluster.prolog(4242, &[]).err, "");
    let folder = tempfile::tempdir().unwrap();
    let journal = UnixDatagram::bind(folder.path().join("socket")).unwrap();
    let mut told = Vec::new();
    let drained = "SELECT count(*) FROM action WHERE verdict = 'drain' AND outcome = 'done'";
    for _ in 0..200 {
        let Some(mut run) = beside(&cluster.node, folder.path(), &[]) else { return };
        assert_eq!(said(&mut run).status, Some(0));
        told.extend(heard(&journal));
        if cluster.node.ledger(drained) == "1" {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let known = documented();
    for line in &told {
        let found: BTreeSet<String> = line.lines().flat_map(fields).collect();
        assert!(found.is_subset(&known), "{found:?}");
        let node = line.split("GPU_REAPER_NODE").nth(1).and_then(|rest| rest.lines().nth(1));
        assert!(node.is_some_and(|node| node.ends_with("n1")), "{line:?}");
    }
    let has = |line: &&String, wanted: &[&str]| wanted.iter().all(|field| line.contains(field));
    let of_job = ["GPU_REAPER_JOB", "4242", "GPU_REAPER_SHOWN", "4240_2", "GPU_REAPER_PARTITION", "h100"];
    for more in [
        &["GPU_REAPER_SIGNATURE", "hung", "GPU_REAPER_USER", "ada", "GPU_REAPER_GPUS", "GPU 0"][..],
        &["GPU_REAPER_VERDICT", "drain", "GPU_REAPER_OUTCOME", "done"],
    ] {
        let wanted: Vec<&str> = of_job.iter().chain(more).copied().collect();
        assert!(told.iter().any(|line| has(&line, &wanted)), "{wanted:?}: {told:#?}");
    }
    // docker/docs#670, kata-containers/documentation#182 (LG-04): a journal that takes nothing any more.
    let full = UnixDatagram::unbound().unwrap();
    full.set_nonblocking(true).unwrap();
    while full.send_to(b"x", folder.path().join("socket")).is_ok() {}
    let run = said(&mut beside(&cluster.node, folder.path(), &[]).unwrap());
    assert!(run.status == Some(0) && run.err.contains("1 GPUs read"), "on standard error instead: {run:?}");
    assert!(run.took < Duration::from_secs(5), "{run:?}");
    let page = cluster.node.call(&["--explain", "4242"]);
    assert!(page.out.contains("drain"), "{page:?}");
}

#[test]
fn a_run_speaks_to_the_journal_or_to_standard_error_and_ends_the_same() {
    // tokio-rs/tracing#2079 (LG-01): an expect() ended the program where no socket was.
    let cluster = Cluster::new("gpu: { library: LIBRARY }\nslurm: { COMMANDS }\n");
    assert_eq!(cluster.prolog(7, &[]).err, "");
    let folder = tempfile::tempdir().unwrap();
    let run = || beside(&cluster.node, folder.path(), &[]).map(|mut command| said(&mut command));
    let Some(without) = run() else { return };
    assert_eq!((without.status, without.out.as_str()), (Some(0), ""));
    assert!(without.line().contains("1 GPUs read; 1 jobs; 7 "), "{without:?}");
    // Somebody has left a socket that nobody listens at, as a journald that has gone.
    drop(UnixDatagram::bind(folder.path().join("socket")).unwrap());
    let gone = run().unwrap();
    assert!(gone.status == Some(0) && gone.line().contains("1 GPUs read"), "{gone:?}");
    fs::remove_file(folder.path().join("socket")).unwrap();
    let journal = UnixDatagram::bind(folder.path().join("socket")).unwrap();
    let listening = run().unwrap();
    assert_eq!((listening.status, listening.out.as_str(), listening.err.as_str()), (Some(0), "", ""));
    let told = heard(&journal);
    let summary =
        told.iter().find(|t| t.contains("1 GPUs read; 1 jobs; 7 ")).unwrap_or_else(|| panic!("{told:?}"));
    assert!(summary.contains("SYSLOG_IDENTIFIER") && summary.contains("gpu-reaper-hc\n"), "{summary}");
    // mknoxnv/ubuntu-slurm#4 (PE-08): slurmd does not log what a hook that ends well has said.
    let hook = said(&mut beside(&cluster.node, folder.path(), &["prolog"]).unwrap());
    assert_eq!(hook.status, Some(0));
    assert!(hook.line().contains("SLURM_JOB_ID is not set"), "{hook:?}");
    let told = heard(&journal);
    assert!(told.len() == 1 && told[0].contains("prolog: SLURM_JOB_ID is not set"), "{told:?}");
}

//! The journal where it listens, and standard error where it does not.

use crate::slurm::Cluster;
use crate::*;
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

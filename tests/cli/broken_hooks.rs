//! Hooks on a node in trouble: always exit status 0, always in time, one line that says what was found and what
//! was done instead. Once the trouble is over the job is found by a later run.

use crate::slurm::Cluster;
use crate::*;

const PROLOG_LIMIT: Duration = Duration::from_secs(8);
const EPILOG_LIMIT: Duration = Duration::from_secs(10);
/// A run that finds jobs by asking Slurm which of them run here.
const ASKING: &str =
    "gpu: { library: /nonexistent/libnvidia-ml.so.1 }\nslurm: { source: squeue, COMMANDS }\n";

fn cluster() -> Cluster {
    let cluster = Cluster::new(ASKING);
    cluster.job(7, "7", "train");
    cluster
}

/// Both hooks of job 7 in trouble. `found`: what their line must name.
fn both_hooks_bear(cluster: &Cluster, found: &str) {
    let prolog = cluster.prolog(7, &[]);
    assert!(prolog.status == Some(0) && prolog.took < PROLOG_LIMIT, "{prolog:?}");
    assert!(
        prolog.line().starts_with("gpu-reaper-hc: prolog: ") && prolog.line().contains(found),
        "{prolog:?}"
    );
    assert!(
        prolog.line().ends_with("; job 7 is not registered, the next run finds it by itself"),
        "{prolog:?}"
    );
    let epilog = cluster.node.hook("epilog", "7", &[]);
    assert!(epilog.status == Some(0) && epilog.took < EPILOG_LIMIT, "{epilog:?}");
    assert!(
        epilog.line().starts_with("gpu-reaper-hc: epilog: ") && epilog.line().contains(found),
        "{epilog:?}"
    );
    assert!(epilog.line().contains("; job 7 is not cleared"), "{epilog:?}");
}

/// The trouble is over: the next run finds the job of the Prolog that could not register it.
fn the_job_is_found_later(cluster: &Cluster) {
    let run = cluster.node.health_check();
    assert_eq!(run.status, Some(0), "{run:?}");
    assert_eq!(
        cluster.node.ledger("SELECT registered_by FROM job_run WHERE job_id = 7"),
        "discovery",
        "{run:?}"
    );
    assert_eq!(cluster.node.call(&["--explain", "7"]).status, Some(13), "registered, no sample yet");
}

#[test]
fn a_missing_state_folder_is_made() {
    // mknoxnv/ubuntu-slurm#4 (PE-08): a missing directory made the prolog fail and drained the node on every launch.
    let cluster = cluster();
    assert!(!cluster.node.state_dir().exists());
    let said = cluster.prolog(7, &[]);
    assert_eq!((said.status, said.err.as_str()), (Some(0), ""));
    assert_eq!(cluster.node.ledger("SELECT registered_by FROM job_run"), "prolog");
    fs::remove_dir_all(cluster.node.state_dir()).unwrap();
    let said = cluster.node.hook("epilog", "7", &[]);
    assert_eq!((said.status, said.err.as_str()), (Some(0), ""));
    // And the ledger alone.
    fs::remove_file(cluster.node.state().join("ledger.db")).unwrap();
    let said = cluster.prolog(8, &[]);
    assert_eq!((said.status, said.err.as_str()), (Some(0), ""));
    assert_eq!(cluster.node.ledger("SELECT job_id FROM job_run"), "8");
}

#[test]
fn a_state_folder_that_nobody_may_write_to_fails_no_hook() {
    // mknoxnv/ubuntu-slurm#4, AMDResearch/hpcfund#69 (PE-08). Not even root may make a folder in sysfs.
    let cluster = cluster();
    std::os::unix::fs::symlink("/sys", cluster.node.state_dir()).unwrap();
    both_hooks_bear(&cluster, "state");
    fs::remove_file(cluster.node.state_dir()).unwrap();
    the_job_is_found_later(&cluster);
}

#[test]
fn a_process_that_hangs_while_it_puts_a_damaged_ledger_aside_holds_up_no_hook() {
    let cluster = cluster();
    assert_eq!(cluster.prolog(1, &[]).err, "");
    let ledger = cluster.node.state().join("ledger.db");
    fs::write(&ledger, "this is no ledger at all\n".repeat(200)).unwrap();
    let folder = fs::File::open(cluster.node.state()).unwrap();
    folder.lock().unwrap();
    both_hooks_bear(&cluster, "locked for all of");
    drop(folder);
    the_job_is_found_later(&cluster);
}

#[test]
fn a_state_folder_that_is_none_fails_no_hook() {
    // mknoxnv/ubuntu-slurm#4, AMDResearch/hpcfund#69 (PE-08)
    let cluster = cluster();
    fs::write(cluster.node.state_dir(), "a file").unwrap();
    both_hooks_bear(&cluster, "Not a directory");
    let run = cluster.node.health_check();
    assert_eq!(run.status, Some(1));
    assert!(
        run.line().contains("Not a directory") && run.line().ends_with("; nothing was judged"),
        "{run:?}"
    );
    fs::remove_file(cluster.node.state_dir()).unwrap();
    the_job_is_found_later(&cluster);
}

#[test]
fn a_read_only_state_folder_fails_no_hook() {
    // mknoxnv/ubuntu-slurm#4, AMDResearch/hpcfund#69 (PE-08)
    let Some(disk) = SmallDisk::mount("4m") else { return };
    let cluster = cluster();
    std::os::unix::fs::symlink(disk.path(), cluster.node.state_dir()).unwrap();
    disk.remount("ro");
    both_hooks_bear(&cluster, "Read-only file system");
    disk.remount("rw");
    // The same with a ledger that is there.
    the_job_is_found_later(&cluster);
    assert_eq!(cluster.node.hook("epilog", "7", &[]).status, Some(0));
    disk.remount("ro");
    both_hooks_bear(&cluster, "readonly database");
    disk.remount("rw");
}

#[test]
fn a_full_disk_fails_no_hook() {
    // mknoxnv/ubuntu-slurm#4 (PE-08), louislam/uptime-kuma#4581, strongloop/strong-pm#368 (DB-04)
    let Some(disk) = SmallDisk::mount("1m") else { return };
    let cluster = cluster();
    std::os::unix::fs::symlink(disk.path(), cluster.node.state_dir()).unwrap();
    disk.fill();
    both_hooks_bear(&cluster, "database or disk is full");
    disk.empty();
    the_job_is_found_later(&cluster);
}

#[test]
fn a_write_that_never_ends_holds_no_prolog_for_ever() {
    // A disk that stalls (PE-07); here a standard error that nobody reads, and full already.
    let cluster = cluster();
    let (mut full, _unread) = std::os::unix::net::UnixStream::pair().unwrap();
    full.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut full, &[b'x'; 4096]).is_ok() {}
    full.set_nonblocking(false).unwrap();
    let mut prolog = cluster.node.hook_command("prolog", "none");
    let from = Instant::now();
    let mut prolog = prolog.stderr(std::os::fd::OwnedFd::from(full)).spawn().unwrap();
    while prolog.try_wait().unwrap().is_none() && from.elapsed() < PROLOG_LIMIT {
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = prolog.kill();
    assert_eq!(prolog.wait().unwrap().code(), Some(0));
    assert!(from.elapsed() > Duration::from_secs(4), "it was held: {:?}", from.elapsed());
}

#[test]
fn a_locked_ledger_fails_no_hook() {
    // mknoxnv/ubuntu-slurm#4, nebius/nebius-solutions-library#265 (PE-08): locked for longer than anybody waits.
    let cluster = cluster();
    assert_eq!(cluster.node.hook("prolog", "1", &[]).status, Some(0));
    let holder = rusqlite::Connection::open(cluster.node.state().join("ledger.db")).unwrap();
    holder.execute_batch("BEGIN EXCLUSIVE").unwrap();
    both_hooks_bear(&cluster, "database is locked");
    holder.execute_batch("ROLLBACK").unwrap();
    the_job_is_found_later(&cluster);
}

#[test]
fn a_corrupt_ledger_is_put_aside_by_whoever_finds_it_and_said() {
    // mknoxnv/ubuntu-slurm#4, AMDResearch/hpcfund#69 (PE-08)
    let cluster = cluster();
    let ledger = cluster.node.state().join("ledger.db");
    fs::create_dir_all(cluster.node.state()).unwrap();
    for which in ["prolog", "epilog"] {
        fs::write(&ledger, "no ledger at all\n".repeat(500)).unwrap();
        let said = cluster.node.hook(which, "7", &[]);
        assert!(said.status == Some(0) && said.took < PROLOG_LIMIT, "{said:?}");
        let line = said.line();
        assert!(line.starts_with(&format!("gpu-reaper-hc: {which}: ledger ")), "{said:?}");
        assert!(
            line.contains("file is not a database; moved to ")
                && line.contains("a new one was begun; job 7 "),
            "{said:?}"
        );
    }
    // Half a ledger: found only while it is written to.
    assert_eq!(cluster.prolog(8, &[]).err, "");
    let whole = fs::read(&ledger).unwrap();
    fs::write(&ledger, &whole[..whole.len() / 2]).unwrap();
    let said = cluster.prolog(7, &[]);
    assert!(said.status == Some(0) && said.line().contains("a new one was begun"), "{said:?}");
    assert_eq!(cluster.node.ledger("SELECT count(*) FROM job_run WHERE job_id = 7"), "1");
}

#[test]
fn a_broken_configuration_fails_no_hook_and_says_all_on_one_line() {
    // dtolnay/serde-yaml#86, vectordotdev/vector#25981 (CF-01); mknoxnv/ubuntu-slurm#4 (PE-08).
    let broken = [
        "null\n",
        "- mode: observe\n",
        "mode: observe\nwindw: 20m\nstages: 7\ngpu: [\n",
        "a: 1\nb: 2\nc: 3\n",
    ];
    for text in broken {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        for which in ["prolog", "epilog"] {
            let script = "mount -t tmpfs tmpfs /var/lib; \"$PROGRAM\" $0; ls /var/lib/gpu-reaper-hc";
            let Some(mut command) = with_own_mounts(script) else { return };
            command
                .arg(which)
                .env("GPU_REAPER_CONFIG", file.path())
                .env("SLURM_JOB_ID", "7")
                .env("SLURM_JOB_GPUS", "0")
                .env("SLURMD_NODENAME", "n1");
            let said = said(&mut command);
            assert_eq!((said.status, said.out.as_str()), (Some(0), "n1\n"), "{which} {text:?}: {said:?}");
            assert!(said.line().starts_with(&format!("gpu-reaper-hc: {which}: config `")), "{said:?}");
            assert!(said.line().contains("; the defaults were used; job 7 "), "{said:?}");
            assert_eq!(text.starts_with("a: 1"), said.line().contains("; 2 more errors; "), "{said:?}");
        }
    }
}

//! What becomes of a leak: the drain that the site asked for, the Epilog's own status where it fails, and the runs that
//! finish what an Epilog had no time for.

use crate::leak::Survivor;
use crate::slurm::{Cluster, install, quiet};
use crate::*;

const CONFIG: &str = "
mode: enforce
gpu: { library: LIBRARY }
slurm: { COMMANDS }
limits: { spread: 10m }
thresholds: { window: 1s, warmup: 0s }
epilog: { verify: 1s, on_leak: drain }
faults: { actions: { foreign-process: off } }
";

/// The driver's only GPU with this on it.
fn with(processes: &str) -> String {
    let node = quiet();
    let without: Vec<&str> = node.lines().filter(|line| !line.trim().starts_with("proc ")).collect();
    format!("{}\n{processes}\n", without.join("\n"))
}

/// A node whose job 4242 is about to end; its GPU was seen.
fn stage(config: &str) -> Cluster {
    let cluster = Cluster::new(config);
    cluster.show(&with(""));
    assert_eq!(cluster.node.health_check().status, Some(0));
    std::thread::sleep(Duration::from_millis(1100));
    cluster.job(4242, "4242", "train");
    assert_eq!(cluster.prolog(4242, &[]).err, "");
    cluster
}

fn epilog(cluster: &Cluster, left: &Survivor) -> Said {
    cluster.show(&with(&format!("proc compute = {} 21474836480 alive", left.pid())));
    cluster.node.hook("epilog", "4242", &[("SLURM_JOB_GPUS", "0")])
}

/// What happened to the node, and what the Epilog ended with.
fn ends(cluster: &Cluster, said: &Said) -> (Option<i32>, bool) {
    (said.status, cluster.read("node.state").contains("drain"))
}

#[test]
fn a_confirmed_leak_drains_with_a_specific_reason_where_the_site_says_so() {
    // jade-hpc-gpu/jade-hpc-gpu.github.io#73 (PE-01), flux-framework/flux-core#5391 (PE-10): who, where, and of which job.
    let (cluster, left) = (stage(CONFIG), Survivor::new());
    // What the node of a job whose Epilog runs shows.
    cluster.write("node.state", "allocated+completing");
    let said = epilog(&cluster, &left);
    assert_eq!(ends(&cluster, &said), (Some(0), true), "{said:?}");
    let reason = cluster.read("node.reason");
    // SAFETY: getuid has no preconditions.
    let uid = unsafe { libc::getuid() };
    let whose = format!(" job=4242 pid={} uid={uid} comm=sh since=20", left.pid());
    assert!(reason.starts_with("gpu-reaper: fault=leak at=GPU-") && reason.contains(&whose), "{reason}");
    // The runs after it see it still, and end with it: the drain stays.
    let run = cluster.node.health_check();
    assert!(run.err.contains("job 4242 ended and left on GPU 0"), "in every summary: {run:?}");
    drop(left);
    cluster.show(&with(""));
    let over: String = (0..6).map(|_| cluster.node.health_check().err).collect();
    assert!(over.contains("fault leak is over"), "{over}");
    assert!(cluster.read("node.state").contains("drain"));
    assert_eq!(cluster.node.ledger("SELECT count(*) FROM remembered WHERE what = 'left'"), "0");
}

#[test]
fn the_epilog_fails_only_where_the_drain_call_did() {
    let left = Survivor::new();
    let observe = CONFIG.replace("mode: enforce", "mode: observe");
    let alert = CONFIG.replace("on_leak: drain", "on_leak: alert");
    for config in [&observe, &alert] {
        let cluster = stage(config);
        let said = epilog(&cluster, &left);
        assert_eq!(ends(&cluster, &said), (Some(0), false), "{said:?}");
    }
    // Somebody was there before: withheld, and no failure.
    let cluster = stage(CONFIG);
    cluster.write("node.state", "allocated+drain");
    cluster.write("node.reason", "DIMM replaced tomorrow");
    let said = epilog(&cluster, &left);
    assert_eq!(said.status, Some(0), "{said:?}");
    assert!(
        said.err.contains("withheld") && cluster.read("node.reason") == "DIMM replaced tomorrow",
        "{said:?}"
    );
    // The safety net: slurmd drains the node for a failed Epilog.
    let cluster = stage(CONFIG);
    let scontrol = cluster.node.path("bin/scontrol");
    let refuses = "#!/bin/sh\ncase \"$*\" in *update*) echo 'Invalid user id' >&2; exit 1 ;; esac\n";
    install(&scontrol, &fs::read_to_string(&scontrol).unwrap().replacen("#!/bin/sh\n", refuses, 1));
    let said = epilog(&cluster, &left);
    assert_eq!(ends(&cluster, &said), (Some(75), false), "{said:?}");
    assert!(said.err.contains("drain for what job 4242 left failed: "), "{said:?}");
}

#[test]
fn what_the_epilog_had_no_time_for_the_next_runs_decide() {
    let config = CONFIG.replace("verify: 1s", "verify: 0s").replace("spread: 10m", "spread: 0s");
    let (cluster, left) = (stage(&config), Survivor::new());
    let said = epilog(&cluster, &left);
    assert_eq!(ends(&cluster, &said), (Some(0), false), "one look proves nothing: {said:?}");
    assert!(said.err.contains("still in use"), "{said:?}");
    assert_eq!(cluster.node.ledger("SELECT count(*) FROM fault WHERE told"), "0");
    let run = cluster.node.health_check();
    assert!(run.err.contains("fault leak: job 4242 ended and left on GPU 0"), "{run:?}");
    assert!(cluster.read("node.reason").starts_with("gpu-reaper: fault=leak at=GPU-"), "{run:?}");
    // Gone by then: nothing was ever told.
    let (cluster, left) = (stage(&config), Survivor::new());
    epilog(&cluster, &left);
    drop(left);
    cluster.show(&with(""));
    let runs: String = (0..2).map(|_| cluster.node.health_check().err).collect();
    assert!(!runs.contains("leak"), "{runs}");
    assert_eq!(cluster.node.ledger("SELECT count(*) FROM fault"), "0");
}

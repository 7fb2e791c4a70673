//! Faults of the node on a real Slurm: an Xid in the real kernel's log, a card that wants a reset, and slurmd that calls
//! both health checks of a node that has another one.

use super::lab::lease;
use super::node::{Job, Node};
use super::settings::{ENFORCE, SOON, Settings};
use super::stand_in::Look;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// This node's GPUs, with a change to the text of the first.
fn show_first(node: &Node, change: &str) {
    let scenario = node.folder("gpu").join("scenario.txt");
    let text = fs::read_to_string(&scenario).expect("the scenario");
    node.show_text(&text.replacen("\ngpu 0\n", &format!("\ngpu 0\n{change}\n"), 1));
}

/// What is told of a kind of fault.
fn told(node: &Node, kind: &str) -> Vec<String> {
    node.ledger().faults(kind)
}

const DRAINS: &str = "faults: { mode: enforce, actions: { gpu-reset: drain, xid: drain } }\n";
/// So long must a ledger be old before anything is done.
const OLD_ENOUGH_RUNS: i64 = 5;

#[test]
fn an_xid_of_the_kernels_log_is_read_with_its_record_by_a_run_of_slurmds() {
    let Some(node) = lease(&ENFORCE) else { return };
    node.configure_with(&ENFORCE, DRAINS);
    // The log is the whole machine's: this card's address is no other test's.
    let place = format!("{:04x}:e3:00", 0x8000 + std::process::id() % 0x7fff);
    let scenario = fs::read_to_string(node.folder("gpu").join("scenario.txt")).expect("the scenario");
    let (head, rest) = scenario.split_once("nvmlDeviceGetPciInfo_v3 = ").expect("a card's address");
    let (_, rest) = rest.split_once('\n').expect("more lines");
    node.show_text(&format!("{head}nvmlDeviceGetPciInfo_v3 = 0000{}.0\n{rest}", place.to_uppercase()));
    let before = node.standing();
    node.wait_for_runs(9);
    let marked = format!("NVRM: Xid (PCI:{place}): 79, pid=4194303, name={}, GPU has fallen off", node.name);
    for line in [&marked, "gpu-reaper-hc: a record after it"] {
        let mut log = fs::OpenOptions::new().write(true).open("/dev/kmsg").expect("the kernel's log");
        log.write_all(format!("<4>{line}").as_bytes()).expect("a record");
    }
    node.wait_until("a run tells it", || !told(&node, "xid").is_empty());
    let words = &told(&node, "xid")[0];
    assert!(words.starts_with("Xid 79 on GPU 0 (") && words.contains(", record "), "{words}");
    // Root wrote it, not the kernel: told, and nothing more.
    node.nothing_happens(6, &before);
    assert_eq!(told(&node, "xid").len(), 1, "one record an episode");
}

#[test]
fn a_card_that_wants_a_reset_drains_its_node_once_and_only_a_person_lifts_it() {
    let Some(node) = lease(&SOON) else { return };
    node.configure_with(&SOON, DRAINS);
    let job = node.submit(1);
    node.show(&job.busy());
    node.wait_for_runs(OLD_ENOUGH_RUNS);
    show_first(&node, "field 230 = u 1");
    node.wait_until("the drain", || node.reason().starts_with("gpu-reaper: fault=gpu-reset at=0000:"));
    let running = node.slurm(&["squeue", "-h", "-j", &job.id.to_string(), "-o", "%T"]);
    assert_eq!(running, "RUNNING", "a drain touches no job");
    node.cancel(&job);
    node.wait_until("it is over", || {
        let open = "SELECT detail FROM fault WHERE kind = 'gpu-reset' AND closed_wall_ms IS NULL";
        node.ledger().rows(open).is_empty()
    });
    node.wait_for_runs(2);
    assert!(node.state_with_flags().contains("drain"), "a fault's drain stays: {}", node.state_with_flags());
    let name = format!("SLURMD_NODENAME={}", node.name);
    let lifted = node.exec(&["env", &name, "/usr/sbin/gpu-reaper-hc", "release"]);
    assert!(lifted.status.success(), "{lifted:?}");
    node.wait_until("it is lifted", || !node.state_with_flags().contains("drain"));
    assert_eq!(node.ledger().rows("SELECT outcome FROM fault_drain"), ["lifted"]);
}

/// A process of no job, as one that a daemon started for it in a container; ended when dropped.
struct Survivor(std::process::Child);

impl Drop for Survivor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_that_outlives_its_job_is_found_by_the_epilog_of_slurmds_and_its_neighbours_are_not_touched() {
    // jade-hpc-gpu/jade-hpc-gpu.github.io#73 (PE-01); ROCm/spur#836 (ND-11), nebius/soperator#1246 (PE-03): three others
    // work on.
    let Some(node) = lease(&Settings { verify: "2s", ..SOON }) else { return };
    node.configure_with(&Settings { verify: "2s", on_leak: "drain", ..SOON }, "");
    node.wait_for_runs(OLD_ENOUGH_RUNS);
    let jobs: Vec<Job> = (0..4).map(|_| node.submit(1)).collect();
    let [clean, leaving, others @ ..] = &jobs[..] else { panic!("four jobs") };
    let left = Survivor(Command::new("/bin/sleep").arg("600").spawn().expect("a process"));
    let looks = |job: &Job| job.busy();
    node.show(&jobs.iter().flat_map(looks).collect::<Vec<_>>());
    // A clean one ends: nobody says anything of it.
    node.cancel(clean);
    node.wait_until("its Epilog came", || node.ledger().registration(clean.id).is_none());
    assert_eq!(node.ledger().faults("leak"), [""; 0]);
    // Another one ends and leaves a process on its GPU.
    node.show(&[(leaving.gpus[0], Look::Hung(left.0.id()))]);
    node.slurm(&["scancel", &leaving.id.to_string()]);
    node.wait_until("the drain", || node.reason().starts_with("gpu-reaper: fault=leak at=GPU-"));
    let whose = format!(" job={} pid={} uid=0 comm=sleep since=", leaving.id, left.0.id());
    assert!(node.reason().contains(&whose), "{}", node.reason());
    let alive = fs::read_to_string(format!("/proc/{}/comm", left.0.id()));
    assert_eq!(alive.expect("nobody signalled it"), "sleep\n");
    for job in others {
        let state = node.slurm(&["squeue", "-h", "-j", &job.id.to_string(), "-o", "%T"]);
        assert_eq!(state, "RUNNING", "a neighbour");
    }
    assert_eq!(node.ledger().faults("leak").len(), 1, "{:?}", node.ledger().faults("leak"));
    drop(left);
    node.show(&[(leaving.gpus[0], Look::Free)]);
    let open = "SELECT detail FROM fault WHERE kind = 'leak' AND closed_wall_ms IS NULL";
    node.wait_until("it is over", || node.ledger().rows(open).is_empty());
    assert!(node.reason().starts_with("gpu-reaper: fault=leak"), "its drain stays until a person lifts it");
}

/// slurmd of this node starts another program in place of ours, until this is dropped.
struct Slot {
    pid: String,
    path: String,
}

impl Slot {
    fn taken_by(node: &Node, program: &str) -> Slot {
        let is_it = |pid: &String| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<_> = words.split(|b| *b == 0).map(String::from_utf8_lossy).collect();
            words[0].ends_with("slurmd") && words.windows(2).any(|w| w[0] == "-N" && w[1] == node.name)
        };
        let all = fs::read_dir("/proc").expect("/proc");
        let pid = all.filter_map(|e| e.ok()?.file_name().into_string().ok()).find(is_it).expect("its slurmd");
        // Its root may be a private one without a mount program, so ours binds, by names that begin there.
        let root = fs::read_link(format!("/proc/{pid}/root")).expect("its root");
        let within = |path: &str| root.join(path.trim_start_matches('/')).display().to_string();
        let slot = Slot { pid, path: within("/usr/sbin/gpu-reaper-hc") };
        let status = slot.enter("mount").args(["--bind", &within(program), &slot.path]).status();
        assert!(status.is_ok_and(|status| status.success()), "{program} onto {}", slot.path);
        slot
    }

    fn enter(&self, command: &str) -> Command {
        let mut enter = Command::new("nsenter");
        enter.args(["-t", &self.pid, "-m", command]);
        enter
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let _ = self.enter("umount").arg(&self.path).status();
    }
}

/// A file of the project, changed, beside the stand-in GPUs of this node.
fn install(node: &Node, file: &str, name: &str, change: impl Fn(String) -> String) {
    use std::os::unix::fs::PermissionsExt;
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).expect(file);
    let path = node.folder("gpu").join(name);
    fs::write(&path, change(text)).expect(name);
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect(name);
}

/// Where a node sees its own files.
const HERE: &str = "/var/lib/stand-in";

/// NHC stands in for itself: a check of the site's, which fails while a file is there, and those of `conf`.
fn install_nhc(node: &Node, conf: &str) {
    let theirs = node.folder("gpu").join("nhc.d");
    fs::create_dir_all(theirs.join("scripts")).expect("a folder");
    fs::create_dir_all(theirs.join("bin")).expect("a folder");
    let check = format!(
        "check_dimm() {{ [[ ! -e {HERE}/nhc.fails ]] || {{ die 1 \"1 DIMM is missing\"; return 1; }}; }}\n"
    );
    fs::write(theirs.join("scripts/site.nhc"), check).expect("a check");
    fs::write(theirs.join("conf"), conf).expect("nhc.conf");
    install(node, "fixtures/stand-in/nhc", "nhc", |text| {
        text.replace("@HERE@", &format!("{HERE}/nhc.d")).replace("@TIMEOUT@", "30")
    });
    install(node, "hooks/nhc/gpu-reaper-hc.nhc", "nhc.d/scripts/gpu-reaper-hc.nhc", |text| {
        text.replace("/usr/sbin/gpu-reaper-hc", &format!("{HERE}/gpu-reaper-hc"))
    });
}

/// How often NHC ended well.
fn nhc_passed(node: &Node) -> usize {
    let log = fs::read_to_string(node.folder("gpu").join("nhc.d/log")).unwrap_or_default();
    log.lines().filter(|line| line.contains("completed successfully")).count()
}

#[test]
fn slurmd_runs_nhc_that_runs_us_or_both_side_by_side_and_neither_lifts_what_the_other_drained() {
    // mej/nhc#134 (ND-04): one resumed what another had drained.
    let Some(node) = lease(&Settings { stages: ["1s", "1h"], ..SOON }) else { return };
    fs::copy(&node.lab.program, node.folder("gpu").join("gpu-reaper-hc")).expect("the program");
    install_nhc(&node, "* || check_dimm\n* || check_gpu_reaper\n");
    // From 24.11 on Slurm keeps the Reason of a drain that was lifted: an earlier test's, which NHC would keep too.
    node.slurm(&["scontrol", "update", &format!("nodename={}", node.name), "reason=NHC: of an earlier day"]);
    {
        let _slot = Slot::taken_by(&node, &format!("{HERE}/nhc"));
        let passed = nhc_passed(&node);
        node.wait_for_runs(3);
        node.wait_until("NHC that called us has ended well", || nhc_passed(&node) >= passed + 2);
    }
    install_nhc(&node, "* || check_dimm\n");
    install(&node, "hooks/nhc/health-check-both.sh", "both.sh", |text| {
        text.replace("=/usr/sbin/gpu-reaper-hc\n", &format!("={HERE}/gpu-reaper-hc\n"))
            .replace("=/usr/sbin/nhc\n", &format!("={HERE}/nhc\n"))
    });
    let _slot = Slot::taken_by(&node, &format!("{HERE}/both.sh"));
    let passed = nhc_passed(&node);
    node.wait_for_runs(2);
    node.wait_until("NHC runs beside us", || nhc_passed(&node) >= passed + 2);
    // Its check fails: it drains; ours goes on, and leaves that drain alone.
    let failing = node.folder("gpu").join("nhc.fails");
    fs::write(&failing, "").expect("a check that fails");
    let is_nhcs = || node.reason() == "NHC: 1 DIMM is missing" && node.state_with_flags().contains("drain");
    node.wait_until("NHC drains", is_nhcs);
    node.wait_for_runs(3);
    assert!(is_nhcs(), "{} {}", node.state_with_flags(), node.reason());
    fs::remove_file(&failing).expect("mended");
    node.wait_until("NHC resumes what it drained", || !node.state_with_flags().contains("drain"));
    // Ours drains: NHC, which finds nothing, does not lift it.
    let job = node.submit(4);
    node.show(&job.hung());
    node.wait_until("our drain", || node.reason().starts_with("gpu-reaper: job="));
    let (reason, passed) = (node.reason(), nhc_passed(&node));
    node.wait_until("NHC passed thrice more", || nhc_passed(&node) >= passed + 3);
    assert_eq!((node.reason(), node.state_with_flags().contains("drain")), (reason, true));
    node.cancel(&job);
    node.wait_until("the node is released", || node.standing().sinfo.starts_with("up "));
}

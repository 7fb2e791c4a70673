//! What is the node's trouble and nobody's idleness: a GPU that is missing or lost, errors of its memory, and Xids in the
//! kernel's log.

use crate::fake_nvml::{self, FakeNvml};
use crate::*;
use serde_json::Value;
use std::io::Write;

/// A PCI bus as /proc and /sys show it, with these GPUs of NVIDIA's and an NVSwitch.
struct Bus(tempfile::TempDir);

impl Bus {
    fn new(buses: &[u8]) -> Bus {
        let bus = Bus(tempfile::tempdir().unwrap());
        let mut list = String::new();
        let devices = buses.iter().map(|number| (*number, "0x030200")).chain([(0x05, "0x068000")]);
        for (number, class) in devices {
            list += &format!("{number:02x}00\t10de2330\t10\t0\t0\n");
            let folder = bus.0.path().join(format!("devices/0000:{number:02x}:00.0"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("vendor"), "0x10de\n").unwrap();
            fs::write(folder.join("class"), format!("{class}\n")).unwrap();
        }
        fs::write(bus.0.path().join("list"), list).unwrap();
        bus
    }

    /// A health-check run on a machine with this bus.
    fn run(&self, node: &Node) -> Option<Said> {
        let script = "mount --bind \"$BUS/list\" /proc/bus/pci/devices
            mount --bind \"$BUS/devices\" /sys/bus/pci/devices; exec \"$PROGRAM\"";
        let mut command = with_own_mounts(script)?;
        command.env("BUS", self.0.path()).env("SLURMD_NODENAME", "n1");
        Some(said(command.env("GPU_REAPER_CONFIG", node.path("config.yaml"))))
    }
}

/// These GPUs. This test's own process is on each of them and of no job.
fn of(driver: &FakeNvml) -> String {
    let library = driver.library();
    let faults = "faults:\n  actions:\n    foreign-process: off\n";
    format!("gpu: {{ library: {} }}\n{faults}", library.display())
}

fn warned(said: &Said) -> Vec<&str> {
    assert_eq!(said.status, Some(0), "{said:?}");
    said.err.lines().filter(|line| line.contains("WARN")).collect()
}

fn summary(said: &Said) -> &str {
    said.err.lines().find(|line| line.contains("GPUs read")).unwrap_or_else(|| panic!("{said:?}"))
}

#[test]
fn a_gpu_on_the_bus_that_the_driver_does_not_list_is_told_once_by_its_address() {
    // NVIDIA/NVSentinel#155, #684 (FT-06): four on the bus, three listed, no Xid, no error. nebius/soperator
    // check_runner (ID-07): the fault would remove its own check.
    let driver = FakeNvml::new(&fake_nvml::node(3));
    let node = Node::new(&of(&driver));
    let bus = Bus::new(&[0x1a, 0x1b, 0x1c, 0x1d]);
    let Some(first) = bus.run(&node) else { return };
    assert_eq!(warned(&first), [""; 0], "a driver that is still starting lists fewer, too");
    let missing = "GPU 0000:1d:00.0 is on the PCI bus and the driver does not list it";
    let told: Vec<Said> = (0..12).map(|_| bus.run(&node).unwrap()).collect();
    let lines: Vec<&str> = told.iter().flat_map(warned).collect();
    assert!(lines.len() == 1 && lines[0].contains(missing), "told once: {lines:?}");
    assert!(summary(&told[11]).contains(&format!("; {missing}")), "and in every summary: {told:?}");
    let open = "SELECT kind || ' ' || subject FROM fault WHERE told AND closed_wall_ms IS NULL";
    assert_eq!(node.ledger(open), "gpu-missing 0000:1d:00.0");
    driver.play("nvmlInit_v2 ! 9\n");
    let blind = bus.run(&node).unwrap();
    assert!(
        blind.err.contains(&format!("; {missing}")),
        "a run that cannot see the GPUs ends nothing: {blind:?}"
    );
    driver.play(&fake_nvml::node(4));
    let back: Vec<Said> = (0..5).map(|_| bus.run(&node).unwrap()).collect();
    let over = |said: &Said| {
        warned(said).iter().any(|w| w.contains(&format!("fault gpu-missing is over: {missing}")))
    };
    assert_eq!(back.iter().map(over).collect::<Vec<_>>(), [false, false, false, false, true], "{back:?}");
    assert!(!summary(&back[4]).contains("0000:1d:00.0"), "{back:?}");
    assert_eq!(node.ledger("SELECT count(*) FROM fault WHERE closed_wall_ms IS NULL"), "0");
}

/// What so many runs warn of.
fn warned_in(runs: usize, node: &Node) -> Vec<String> {
    let one = |_| warned(&node.health_check()).iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    (0..runs).flat_map(one).collect()
}

#[test]
fn fewer_gpus_than_expected_are_told_once_and_expected_is_not_what_is_seen() {
    // nebius/soperator check_runner (ID-07): eight configured, seven listed, no error.
    let driver = FakeNvml::new(&fake_nvml::node(7));
    let node = Node::new(&of(&driver).replace(" }", ", expected: 8 }"));
    let words = "1 of 8 GPUs missing: the driver lists 7, `gpu.expected` is 8";
    assert_eq!(warned_in(4, &node), [""; 0]);
    let fifth = node.health_check();
    assert!(warned(&fifth).len() == 1 && warned(&fifth)[0].contains(words), "{fifth:?}");
    let again = node.health_check();
    assert!(warned(&again).is_empty() && summary(&again).contains(words), "{again:?}");
    assert_eq!(node.ledger("SELECT kind || ' ' || subject FROM fault"), "gpu-missing count");
    driver.play(&fake_nvml::node(8));
    let back = warned_in(6, &node);
    assert!(back.len() == 1 && back[0].contains("fault gpu-missing is over"), "{back:?}");
}

#[test]
fn what_gres_conf_names_is_expected_while_a_job_holds_some() {
    // nebius/soperator check_runner (ID-07)
    let driver = FakeNvml::new(&fake_nvml::node(3));
    let node = Node::new(&of(&driver));
    fs::write(node.path("site/gres.conf"), "AutoDetect=nvml\nName=gpu Count=4\n").unwrap();
    assert_eq!(warned_in(6, &node), [""; 0], "nobody says how many");
    node.prolog("7");
    let told = warned_in(5, &node);
    let words = "1 of 4 GPUs missing: the driver lists 3, gres.conf names 4";
    assert!(told.iter().any(|w| w.contains(words)), "{told:?}");
}

#[test]
fn a_card_that_this_node_had_is_missing_until_a_person_says_that_it_is_gone() {
    // kubernetes-sigs/dra-driver-nvidia-gpu#563 (ID-03), NVIDIA/NVSentinel#155 (FT-06): a card less, and no word of it.
    let driver = FakeNvml::new(&fake_nvml::node(4));
    let node = Node::new(&of(&driver));
    assert_eq!(warned_in(2, &node), [""; 0]);
    driver.play(&fake_nvml::node(3));
    let told = warned_in(6, &node);
    let words = "1 of 4 GPUs missing: the driver lists 3, it has listed 4";
    assert!(told.len() == 1 && told[0].contains(words), "{told:?}");
    let list = node.call(&["ack"]);
    assert!(
        list.status == Some(0) && list.out.contains("gpu-missing since 20") && list.out.contains(words),
        "{list:?}"
    );
    let nobodys = node.call(&["ack", "gpu-lost"]);
    assert!(nobodys.status == Some(1) && nobodys.err.contains("nothing was acknowledged"), "{nobodys:?}");
    let acked = node.call(&["ack", "gpu-missing"]);
    assert!(
        acked.status == Some(0) && acked.out.starts_with("acknowledged 1 gpu-missing since 20"),
        "{acked:?}"
    );
    for named in ["gpu-missing", "1"] {
        let again = said(node.command(&["ack", named]).env("SUDO_USER", "eve"));
        assert!(again.status == Some(0) && again.out.starts_with("already acknowledged by "), "{again:?}");
        assert!(!again.out.contains("eve"), "the first one stands: {again:?}");
    }
    let list = node.call(&["ack"]);
    assert!(
        list.out.starts_with("1 gpu-missing since 20") && list.out.contains("Z (acknowledged by "),
        "{list:?}"
    );
    assert!(!list.out.contains("to take one on"), "{list:?}");
    let after = warned_in(7, &node);
    assert!(after.len() == 1 && after[0].contains("is over"), "three are what there is now: {after:?}");
    assert_eq!(node.call(&["ack"]).out, "no fault of this node is open\n");
}

#[test]
fn one_lost_card_leaves_the_others_and_is_told_with_its_address() {
    // NVIDIA/dcgm-exporter#46, #348 (FT-02): one lost card blinded the other seven.
    let driver = FakeNvml::new(&fake_nvml::node(3));
    let node = Node::new(&of(&driver));
    assert_eq!(warned_in(1, &node), [""; 0]);
    let one = fake_nvml::node(3).replace("gpu 1\n", "gpu 1\n nvmlDeviceGetUUID ! 15\n");
    let uuid = "nvmlDeviceGetUUID = GPU-00000001-1111-2222-3333-444444444444";
    driver.play(&one.replace(uuid, ""));
    let told = warned_in(3, &node);
    assert!(told.len() == 1 && told[0].contains("fault gpu-lost: GPU 1 ("), "{told:?}");
    assert!(summary(&node.health_check()).contains("3 GPUs read"));
    driver.play(&fake_nvml::node(3));
    let over = warned_in(5, &node);
    assert!(over.len() == 1 && over[0].contains("fault gpu-lost is over"), "{over:?}");
}

#[test]
fn new_uncorrectable_errors_are_an_episode_and_old_ones_are_not() {
    let driver = FakeNvml::new(&fake_nvml::node(2));
    let node = Node::new(&of(&driver));
    assert_eq!(warned_in(3, &node), [""; 0], "what a card brings with it is no news");
    let counted = fake_nvml::field_value(1, 9);
    let field = |n: u64| format!("field 4 = ul {n}\n");
    driver.play(&fake_nvml::node(2).replace(&field(counted), &field(counted + 2)));
    let told = warned_in(60, &node);
    assert!(
        told.len() == 1
            && told[0].contains("fault ecc: GPU 1 (0000:1b:00.0): 2 new uncorrectable ECC errors"),
        "{told:?}"
    );
    let over = warned_in(1, &node);
    assert!(over.len() == 1 && over[0].contains("fault ecc is over"), "{over:?}");
    // The driver is loaded anew and counts from nought: no error.
    driver.play(&fake_nvml::node(2).replace(&field(counted), &field(0)));
    assert_eq!(warned_in(2, &node), [""; 0]);
}

/// A word in the kernel's log, where that is allowed.
fn kernel_says(line: &str) -> bool {
    let log = fs::OpenOptions::new().write(true).open("/dev/kmsg");
    let said = log.and_then(|mut log| log.write_all(format!("<4>{line}").as_bytes()));
    if said.is_err() || gpu_reaper_hc::host::kernel_log::since(None).measured().is_none() {
        println!("skipped: the kernel's log can not be written and read here (needs root)");
        return false;
    }
    true
}

#[test]
fn an_xid_is_told_to_the_job_whose_gpu_it_names_and_asks_for_nothing() {
    // kubernetes-sigs/dra-driver-nvidia-gpu#689, NVIDIA/k8s-device-plugin#268 (FT-04): 13, 31 and 43 are made by
    // users' code, and marked healthy cards as broken.
    // The log is the whole machine's: this card's address is no other test's, and no pid lives that is named.
    let place = format!("{:04x}:e1:00", 0x8000 + std::process::id() % 0x7fff);
    let scenario = fake_nvml::node(2).replace("00000000:1A:00.0", &format!("0000{place}.0"));
    let driver = FakeNvml::new(&scenario);
    let stages = "stages: [{ after: 0s, verdict: alert }, { after: 0s, verdict: drain }]";
    let node = Node::new(&format!("mode: enforce\n{}{stages}\n", of(&driver)));
    let uuids = [0, 1].map(|i| format!("GPU-{i:08}-1111-2222-3333-444444444444"));
    for (job, uuid) in [("7", &uuids[0]), ("8", &uuids[1])] {
        // Long ago: the kernel's log has a clock of its own.
        let environment = [
            ("SLURM_JOB_GPUS", "0"),
            ("CUDA_VISIBLE_DEVICES", uuid),
            ("SLURM_JOB_NUM_NODES", "1"),
            ("SLURM_JOB_START_TIME", "1700000000"),
        ];
        assert_eq!(node.hook("prolog", job, &environment).err, "");
    }
    for (number, pid, name) in [(13, 4194301, "python"), (31, 4194302, "x\u{1b}[2J"), (43, 4194301, "python")]
    {
        for _ in 0..3 {
            if !kernel_says(&format!("NVRM: Xid (PCI:{place}): {number}, pid={pid}, name={name}, Ch 1")) {
                return;
            }
        }
    }
    let told: Vec<String> = (0..9)
        .flat_map(|_| warned(&node.health_check()).iter().map(|w| w.to_string()).collect::<Vec<_>>())
        .collect();
    let xids: Vec<&String> = told.iter().filter(|w| w.contains("Xid")).collect();
    assert_eq!(xids.len(), 3, "each once: {told:?}");
    assert!(xids[0].contains(&format!("job 7: Xid 13 on GPU 0 ({place}.0) at 20")), "{xids:?}");
    assert!(xids[0].contains("pid 4194301 `python`; kept for --explain"), "{xids:?}");
    let page = node.call(&["--explain", "7"]);
    for words in ["Xid 13 on GPU 0", "Xid 31 on GPU 0", "Xid 43 on GPU 0", "pid 4194302 `x\\"] {
        assert!(page.out.contains(words), "{words}: {}", page.out);
    }
    assert!(!page.out.contains('\u{1b}'), "{}", page.out);
    let json: Value = serde_json::from_str(&node.call(&["--explain", "7", "--json"]).out).unwrap();
    assert_eq!(json["xids"].as_array().map(Vec::len), Some(3), "{json:#}");
    assert!(!node.call(&["--explain", "8"]).out.contains("Xid"), "its neighbour has none");
    assert_eq!(node.ledger("SELECT count(*) FROM action"), "0", "no number asks for anything");
    // With the job its rows are closed; what is known of a job stays known.
    assert_eq!(
        node.ledger("SELECT count(*) FROM fault WHERE kind = 'job-xid' AND closed_wall_ms IS NULL"),
        "3"
    );
    let nobody: Vec<&str> = scenario.lines().filter(|line| !line.trim().starts_with("proc ")).collect();
    driver.play(&nobody.join("\n"));
    assert_eq!(node.hook("epilog", "7", &[("SLURM_JOB_GPUS", "0")]).status, Some(0));
    for _ in 0..32 {
        assert_eq!(warned(&node.health_check()), [""; 0]);
    }
    assert_eq!(
        node.ledger("SELECT count(*) FROM fault WHERE kind = 'job-xid' AND closed_wall_ms IS NULL"),
        "0"
    );
}

#[test]
fn an_xid_that_means_hardware_is_the_nodes_fault_once_a_boot_and_what_a_process_wrote_drains_nothing() {
    // kubernetes-sigs/dra-driver-nvidia-gpu#689 (FT-04): only a short list counts as hardware.
    let place = format!("{:04x}:e2:00", 0x8000 + std::process::id() % 0x7fff);
    let scenario = fake_nvml::node(2).replace("00000000:1A:00.0", &format!("0000{place}.0"));
    let driver = FakeNvml::new(&scenario);
    let drains = of(&driver).replace("actions:", "mode: enforce\n  actions:\n    xid: drain");
    let node = Node::new(&format!("{drains}limits: {{ spread: 0s }}\n"));
    if !kernel_says(&format!("NVRM: Xid (PCI:{place}): 79, pid=4194303, name=early, GPU has fallen off")) {
        return;
    }
    assert_eq!(
        warned_in(4, &node),
        [""; 0],
        "what stood in the log before the ledger began was there to be seen"
    );
    kernel_says(&format!("NVRM: Xid (PCI:{place}): 31, pid=4194303, name=x, Ch 1"));
    kernel_says(&format!("NVRM: Xid (PCI:{place}): 79, pid=4194303, name=late, GPU has fallen off"));
    kernel_says("one record more, so that the last one can be read");
    let told = warned_in(8, &node);
    assert_eq!(told.iter().filter(|w| w.contains("fault xid: ")).count(), 1, "{told:?}");
    let words = format!("fault xid: Xid 79 on GPU 0 ({place}.0) at 20");
    assert!(told[0].contains(&words) && told[0].contains(" of this boot's kernel log"), "{told:?}");
    let kept = "SELECT count(*) FROM remembered WHERE subject = 'kernel-log' AND value > 0";
    assert_eq!(node.ledger(kept), "3", "how far it was read, on which boot, and that its end was reached");
    assert_eq!(node.ledger("SELECT count(*) FROM fault_drain"), "0", "the kernel itself did not say it");
    let over = warned_in(60, &node);
    assert!(over.len() == 1 && over[0].contains("fault xid is over"), "{over:?}");
}

#[test]
fn a_node_with_nothing_but_a_bridge_of_nvidias_has_no_gpus() {
    // A Grace CPU's root ports are NVIDIA's, and no GPUs.
    let node = Node::new("thresholds: { window: 30m }\n");
    let bus = Bus::new(&[]);
    let Some(first) = bus.run(&node) else { return };
    assert!(first.err.contains("the NVIDIA driver is not loaded"), "{first:?}");
    (0..6).for_each(|_| assert_eq!(warned(&bus.run(&node).unwrap()), [""; 0]));
    assert_eq!(node.ledger("SELECT count(*) FROM fault WHERE kind = 'driver-not-loaded'"), "0");
}

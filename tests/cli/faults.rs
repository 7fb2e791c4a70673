//! What is the node's trouble and nobody's idleness: a GPU that is missing, and Xids in the kernel's log. Both are told;
//! neither drains a node.

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
    let node = Node::new(&format!("gpu: {{ library: {} }}\n", driver.library().display()));
    let bus = Bus::new(&[0x1a, 0x1b, 0x1c, 0x1d]);
    let Some(first) = bus.run(&node) else { return };
    let missing = "GPU 0000:1d:00.0 is on the PCI bus and the driver does not list it";
    assert!(warned(&first).len() == 1 && warned(&first)[0].contains(missing), "{first:?}");
    for _ in 0..9 {
        let run = bus.run(&node).unwrap();
        assert_eq!(warned(&run), [""; 0], "told once");
        assert!(summary(&run).contains(&format!("; {missing}")), "and in every summary: {run:?}");
    }
    let open = "SELECT kind || ' ' || subject FROM fault WHERE closed_wall_ms IS NULL";
    assert_eq!(node.ledger(open), "gpu-missing 0000:1d:00.0");
    driver.play(&fake_nvml::node(4));
    let back = bus.run(&node).unwrap();
    assert!(
        warned(&back).len() == 1 && warned(&back)[0].contains("lists 4 GPUs again, after: GPU 0000:1d:00.0")
    );
    assert!(!summary(&back).contains("0000:1d:00.0"), "{back:?}");
    assert_eq!(node.ledger("SELECT count(*) FROM fault WHERE closed_wall_ms IS NULL"), "0");
    // One that drops out later is seen at once; a run that cannot see the GPUs ends nothing.
    driver.play(&fake_nvml::node(3));
    assert_eq!(warned(&bus.run(&node).unwrap()).len(), 1);
    driver.play("nvmlInit_v2 ! 9\n");
    let blind = bus.run(&node).unwrap();
    assert!(blind.err.contains(&format!("; {missing}")), "{blind:?}");
    assert_eq!(node.ledger(open), "gpu-missing 0000:1d:00.0");
}

#[test]
fn fewer_gpus_than_expected_are_told_once_and_expected_is_not_what_is_seen() {
    // nebius/soperator check_runner (ID-07): eight configured, seven listed, no error.
    let driver = FakeNvml::new(&fake_nvml::node(7));
    let config = format!("gpu: {{ library: {}, expected: 8 }}\n", driver.library().display());
    let node = Node::new(&config);
    let first = node.health_check();
    let words = "1 of 8 GPUs missing: the driver lists 7, `gpu.expected` is 8";
    assert!(warned(&first).len() == 1 && warned(&first)[0].contains(words), "{first:?}");
    let again = node.health_check();
    assert!(warned(&again).is_empty() && summary(&again).contains(words), "{again:?}");
    assert_eq!(node.ledger("SELECT kind || ' ' || subject FROM fault"), "gpu-missing count");
    driver.play(&fake_nvml::node(8));
    let back = node.health_check();
    assert!(warned(&back).len() == 1 && warned(&back)[0].contains("lists 8 GPUs again"), "{back:?}");
    assert_eq!(warned(&node.health_check()), [""; 0]);
}

#[test]
fn what_gres_conf_names_is_expected_while_a_job_holds_some() {
    // nebius/soperator check_runner (ID-07)
    let driver = FakeNvml::new(&fake_nvml::node(3));
    let node = Node::new(&format!("gpu: {{ library: {} }}\n", driver.library().display()));
    fs::write(node.path("site/gres.conf"), "AutoDetect=nvml\nName=gpu Count=4\n").unwrap();
    assert_eq!(warned(&node.health_check()), [""; 0], "nobody says how many");
    node.prolog("7");
    let run = node.health_check();
    assert!(
        warned(&run).iter().any(|w| w.contains("1 of 4 GPUs missing: the driver lists 3, gres.conf names 4"))
    );
    assert_eq!(node.hook("epilog", "7", &[("SLURM_JOB_GPUS", "0")]).status, Some(0));
    let after = node.health_check();
    assert!(
        warned(&after).is_empty() && summary(&after).contains("1 of 4 GPUs missing"),
        "not over: {after:?}"
    );
}

/// A word in the kernel's log, where that is allowed.
fn kernel_says(line: &str) -> bool {
    let log = fs::OpenOptions::new().write(true).open("/dev/kmsg");
    let said = log.and_then(|mut log| log.write_all(format!("<4>{line}").as_bytes()));
    if said.is_err() || gpu_reaper_hc::host::kernel_log::xids().measured().is_none() {
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
    let node = Node::new(&format!(
        "mode: enforce\ngpu: {{ library: {} }}\nstages: [{{ after: 0s, verdict: alert }}, {{ after: 0s, verdict: drain }}]\n",
        driver.library().display()
    ));
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
    assert!(
        xids[0].contains("pid 4194301 `python`; kept for --explain, nothing is done about it"),
        "{xids:?}"
    );
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
    assert_eq!(node.ledger("SELECT count(*) FROM fault WHERE kind = 'xid' AND closed_wall_ms IS NULL"), "3");
    assert_eq!(node.hook("epilog", "7", &[("SLURM_JOB_GPUS", "0")]).status, Some(0));
    for _ in 0..32 {
        assert_eq!(warned(&node.health_check()), [""; 0]);
    }
    assert_eq!(node.ledger("SELECT count(*) FROM fault WHERE kind = 'xid' AND closed_wall_ms IS NULL"), "0");
}

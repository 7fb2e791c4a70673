//! A node beside the stand-in for squeue, sinfo, scontrol and scancel (`fixtures/stand-in/slurm`), and a driver
//! whose only GPU holds memory and computes nothing.

use crate::fake_nvml::{self, FakeNvml};
use crate::{Node, Said};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

const STAND_IN: &str = include_str!("../../fixtures/stand-in/slurm");

/// When every job here began, in Slurm's words: any second of the past.
pub const START_S: i64 = 1_795_953_600;

/// A node with the configuration in `config`, its Slurm and, where it asks for one, its driver.
pub struct Cluster {
    pub node: Node,
    driver: FakeNvml,
}

impl Cluster {
    pub fn new(config: &str) -> Cluster {
        let cluster = Cluster { node: Node::new(""), driver: FakeNvml::new(&quiet()) };
        for folder in ["bin", "etc", "cluster", "cluster/jobs"] {
            fs::create_dir(cluster.node.path(folder)).unwrap();
        }
        for program in ["squeue", "sinfo", "scontrol", "scancel"] {
            install(&cluster.node.path("bin").join(program), STAND_IN);
        }
        cluster.write("node.state", "allocated");
        cluster.write("node.reason", "none");
        fs::write(cluster.node.path("etc/gres.conf"), "AutoDetect=off\nName=gpu File=/dev/nvidia0\n")
            .unwrap();
        cluster.configure(config);
        cluster
    }

    pub fn configure(&self, config: &str) {
        let (bin, conf) = (self.node.path("bin"), self.node.path("etc/slurm.conf"));
        let library = self.driver.library();
        let text = config
            .replace("LIBRARY", &library.display().to_string())
            .replace("COMMANDS", &format!("bin_dir: {}, conf: {}", bin.display(), conf.display()));
        self.node.configure(&text);
    }

    /// What the driver shows from now on.
    pub fn show(&self, scenario: &str) {
        self.driver.play(scenario);
    }

    /// Something that only time or a reboot would do to the ledger.
    pub fn change(&self, sql: &str) {
        let ledger = rusqlite::Connection::open(self.node.state().join("ledger.db")).unwrap();
        ledger.execute_batch(sql).unwrap();
    }

    fn cluster(&self, name: &str) -> PathBuf {
        self.node.path("cluster").join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.cluster(name), text).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.cluster(name)).unwrap_or_default()
    }

    /// What was asked of Slurm so far, a line each.
    pub fn calls(&self) -> Vec<String> {
        self.read("calls").lines().map(str::to_owned).collect()
    }

    /// A running job of ada's with GPU 0, as Slurm knows it.
    pub fn job(&self, id: u64, shown: &str, name: &str) {
        let row = format!("{id}|{shown}|RUNNING|{START_S}|1|n1|1001|ada|h100|0|normal|lab\n");
        self.write(&format!("jobs/{id}"), &row);
        self.write(&format!("jobs/{id}.state"), "RUNNING");
        self.write(&format!("jobs/{id}.name"), name);
        let show = format!(
            "JobId={id} JobName=x\n   UserId=ada(1001) GroupId=x\n   JobState=RUNNING Reason=None\n   NodeList=n1\n   \
             NumNodes=1 NumCPUs=1\n   JOB_GRES=gpu:1\n     Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0)\n"
        );
        self.write(&format!("jobs/{id}.show"), &show);
    }

    /// Its Prolog, with these instead of what is usual.
    pub fn prolog(&self, id: u64, odd: &[(&str, &str)]) -> Said {
        let start = START_S.to_string();
        let mut environment = vec![
            ("SLURM_JOB_GPUS", "0"),
            ("SLURM_JOB_NUM_NODES", "1"),
            ("SLURM_JOB_RESTART_COUNT", "0"),
            ("SLURM_JOB_START_TIME", &start),
            ("SLURM_JOB_PARTITION", "h100"),
        ];
        environment.extend(odd);
        self.node.hook("prolog", &id.to_string(), &environment)
    }
}

/// One GPU at rest with a process and memory on it.
pub fn quiet() -> String {
    fake_nvml::node(1)
        + "gpu 0
             nvmlDeviceGetUtilizationRates = 0 0
             sample 1 = 100000:0 9900000:0
             sample 2 = 100000:0 9900000:0
             nvmlDeviceGetPowerUsage = 118000
             nvmlDeviceGetTotalEnergyConsumption ! 3\n"
}

/// By a shell, so that this process never holds the file open for writing: a child of another test's thread would
/// inherit that for a moment, and the kernel refuses to run such a file (ETXTBSY).
pub fn install(path: &std::path::Path, text: &str) {
    let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    let status = Command::new("/bin/sh").args(["-c", write]).arg(path).arg(text).status();
    assert!(status.unwrap().success());
}

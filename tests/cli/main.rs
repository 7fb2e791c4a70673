//! The real program, called as slurmd and administrators call it: a bare environment, a configuration file, a
//! state folder of its own, stand-ins for the driver and for Slurm's commands. No GPU, no Slurm, no network.

mod alerts;
mod broken_hooks;
mod cases;
mod config;
mod disk;
mod doctor;
mod explain;
#[path = "../common/fake_nvml.rs"]
mod fake_nvml;
mod fault_doubts;
mod fault_drain;
mod faults;
mod hooks;
mod journal;
mod keep;
#[path = "../common/kill_shim.rs"]
mod kill_shim;
mod killed;
mod ladder;
mod leak;
mod leak_drain;
mod looks;
mod metrics;
mod nhc;
mod readings;
mod release;
mod runs;
mod slurm;
mod status;
mod told;
#[path = "../common/webhook.rs"]
mod webhook;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_gpu-reaper-hc");

/// A node with its configuration file and its state, in a throw-away folder.
struct Node {
    folder: tempfile::TempDir,
}

/// What a call said.
#[derive(Debug)]
struct Said {
    status: Option<i32>,
    out: String,
    err: String,
    took: Duration,
}

impl Node {
    /// `config`: everything of the configuration but `state_dir`.
    fn new(config: &str) -> Node {
        let node = Node { folder: tempfile::tempdir().unwrap() };
        node.configure(config);
        node
    }

    /// A node whose driver's library is missing: the cheapest run there is.
    fn without_driver() -> Node {
        Node::new("gpu: { library: /nonexistent/libnvidia-ml.so.1 }\n")
    }

    fn configure(&self, config: &str) {
        let slurm = match config.contains("slurm:") {
            true => String::new(),
            false => format!("slurm: {{ conf: {} }}\n", self.path("site/slurm.conf").display()),
        };
        // One look and no waiting, but for tests of just that.
        let epilog = if config.contains("epilog:") { "" } else { "epilog: { verify: 0s }\n" };
        fs::create_dir_all(self.path("site")).unwrap();
        fs::write(self.path("site/gres.conf"), "AutoDetect=nvml\nName=gpu\n").unwrap();
        let text = format!("state_dir: {}\n{slurm}{epilog}{config}", self.state_dir().display());
        fs::write(self.path("config.yaml"), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn state_dir(&self) -> PathBuf {
        self.path("state")
    }

    /// Where lock and ledger lie.
    fn state(&self) -> PathBuf {
        self.state_dir().join("n1")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(args).env_clear().stdin(Stdio::null());
        command.env("SLURMD_NODENAME", "n1").env("GPU_REAPER_CONFIG", self.path("config.yaml"));
        // Pages of a job so wide that hardly a line of them is broken.
        if args.iter().any(|arg| arg.ends_with("explain")) {
            command.env("COLUMNS", "200");
        }
        command
    }

    fn call(&self, args: &[&str]) -> Said {
        said(&mut self.command(args))
    }

    /// One health-check run.
    fn health_check(&self) -> Said {
        self.call(&[])
    }

    /// A hook for job `id` with what slurmd always gives, and `more`.
    fn hook(&self, which: &str, id: &str, more: &[(&str, &str)]) -> Said {
        said(self.hook_command(which, id).envs(more.iter().copied()))
    }

    fn hook_command(&self, which: &str, id: &str) -> Command {
        let mut command = self.command(&[which]);
        command.env("SLURM_JOB_ID", id).env("SLURM_JOB_USER", "ada").env("SLURM_JOB_UID", "1001");
        command
    }

    /// A Prolog that gives the job GPU 0.
    fn prolog(&self, id: &str) {
        let said = self.hook("prolog", id, &[("SLURM_JOB_GPUS", "0"), ("SLURM_JOB_NUM_NODES", "1")]);
        assert_eq!((said.status, said.err.as_str()), (Some(0), ""));
    }

    /// One value of the ledger, as text.
    fn ledger(&self, sql: &str) -> String {
        let ledger = rusqlite::Connection::open(self.state().join("ledger.db")).unwrap();
        let value: rusqlite::types::Value = ledger.query_row(sql, [], |row| row.get(0)).unwrap();
        match value {
            rusqlite::types::Value::Integer(n) => n.to_string(),
            rusqlite::types::Value::Text(text) => text,
            other => format!("{other:?}"),
        }
    }

    /// The phase in the lock file.
    fn phase(&self) -> Option<String> {
        let mark = fs::read_to_string(self.state().join("run.lock")).ok()?;
        mark.split_whitespace().nth(3).map(str::to_owned)
    }
}

fn said(command: &mut Command) -> Said {
    let began = Instant::now();
    let output = command.output().expect("the program starts");
    of(output, began.elapsed())
}

fn of(output: Output, took: Duration) -> Said {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Said { status: output.status.code(), out: text(output.stdout), err: text(output.stderr), took }
}

fn started(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
}

fn ended(child: Child) -> Said {
    let began = Instant::now();
    let output = child.wait_with_output().unwrap();
    of(output, began.elapsed())
}

impl Said {
    /// Standard output without its line breaks.
    fn words(&self) -> String {
        self.out.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The only line on standard error.
    fn line(&self) -> &str {
        assert_eq!(self.err.lines().count(), 1, "one line: {self:?}");
        self.err.trim_end()
    }
}

/// Waits for something that another process is about to do.
fn eventually(what: &str, done: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < until, "never came: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A file system of its own, so small that it is soon full; unmounted at the end. `None`, said aloud, where
/// nothing can be mounted.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(size: &str) -> Option<SmallDisk> {
        let folder = tempfile::tempdir().unwrap();
        let option = format!("size={size}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &option, "tmpfs"]).arg(folder.path()).stderr(Stdio::null());
        match mount.status() {
            Ok(status) if status.success() => Some(SmallDisk(folder)),
            _ => {
                println!("skipped: no file system can be mounted here (needs root)");
                None
            }
        }
    }

    fn remount(&self, how: &str) {
        let option = format!("remount,{how}");
        let status = Command::new("mount").args(["-o", &option]).arg(self.path()).status();
        assert!(status.unwrap().success());
    }

    fn fill(&self) {
        let mut file = fs::File::create(self.path().join("somebody-elses")).unwrap();
        while std::io::Write::write_all(&mut file, &[7; 512]).is_ok() {}
    }

    fn empty(&self) {
        fs::remove_file(self.path().join("somebody-elses")).unwrap();
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

/// A shell script with mounts of its own, for what has a fixed path. `None`, said aloud, where that is not allowed.
fn with_own_mounts(script: &str) -> Option<Command> {
    let unshare = || {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation", "private", "--", "/bin/sh", "-ec"]);
        unshare
    };
    let allowed = unshare().arg("mount -t tmpfs tmpfs /var/lib").stderr(Stdio::null()).status();
    if !allowed.is_ok_and(|status| status.success()) {
        println!("skipped: no mounts of one's own here (needs root)");
        return None;
    }
    let mut command = unshare();
    command.arg(script).env_clear().env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").env("PROGRAM", PROGRAM);
    Some(command)
}

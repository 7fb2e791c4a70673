//! One node of the lab, on lease: its configuration and GPUs, its jobs, what Slurm and the ledger say of it.
//! Given back clean: no job, no drain, no configuration.

use super::lab::{Lab, Place, comes_to_be};
use super::ledger::Ledger;
use super::settings::Settings;
use super::stand_in::{Gpus, Look};
use std::cell::RefCell;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest that anything in here may take.
pub const CEILING: Duration = Duration::from_secs(75);

/// A leased node.
pub struct Node {
    /// `node1` to `node4`.
    pub name: String,
    /// The lab it is a part of.
    pub lab: &'static Lab,
    gpus: RefCell<Gpus>,
    _place: Place,
}

/// A running job of a node.
pub struct Job {
    /// Its raw id.
    pub id: u32,
    /// A process of its batch step, or of its first one.
    pub pid: u32,
    /// Its GPUs on this node.
    pub gpus: Vec<usize>,
}

impl Job {
    /// All its GPUs at work.
    pub fn busy(&self) -> Vec<(usize, Look)> {
        self.gpus.iter().map(|&gpu| (gpu, Look::Busy(self.pid))).collect()
    }

    /// All its GPUs held, and quiet.
    pub fn hung(&self) -> Vec<(usize, Look)> {
        self.gpus.iter().map(|&gpu| (gpu, Look::Hung(self.pid))).collect()
    }
}

/// What a person at the cluster sees of a node and its jobs; no times in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// State and Reason, as sinfo shows them.
    pub sinfo: String,
    /// Jobs with their states.
    pub squeue: String,
}

impl Standing {
    /// In service, no drain, no job. A Reason may be left over: from 24.11 on, Slurm keeps it when a drain is lifted.
    pub fn is_unused(&self) -> bool {
        self.sinfo.starts_with("up ") && self.squeue.is_empty()
    }
}

/// The id of a new job.
pub fn sbatch(lab: &Lab, options: &[&str]) -> u32 {
    let command = ["sbatch", "--parsable", "--chdir=/", "--output=/dev/null"];
    let said = lab.slurm(&[&command[..], options].concat()).unwrap_or_else(|e| panic!("{e}"));
    // Of a heterogeneous job and of an array, the first id is the one of all.
    said.parse().unwrap_or_else(|_| panic!("sbatch: {said}"))
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_micros() as u64
}

/// Written beside and renamed, so that a reader sees the old text or the new one.
fn replace(path: &Path, text: impl AsRef<[u8]>) {
    let new = path.with_extension("new");
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, path))
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

fn executable(path: &Path, text: impl AsRef<[u8]>) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, text)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)))
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

impl Node {
    /// A clean node with a new ledger, free GPUs, both hooks and this configuration.
    pub fn prepare(place: Place, settings: &Settings) -> Node {
        let node = Node {
            name: format!("node{}", place.index + 1),
            lab: place.lab,
            gpus: RefCell::new(Gpus::new(place.index, now_us())),
            _place: place,
        };
        node.wait_until("the node is idle", || node.standing().is_unused());
        let old = node.folder("state.of-earlier-tests").join(format!("{}", now_us()));
        fs::create_dir_all(&old).expect("a folder for earlier state");
        // A run that still writes keeps its open files; it cannot reach the new ledger.
        let _ = fs::rename(node.state(), old.join(&node.name));
        fs::copy(&node.lab.library, node.folder("gpu").join("libnvidia-ml.so.1"))
            .expect("the stand-in library");
        node.write_scenario();
        let hooks = Path::new(env!("CARGO_MANIFEST_DIR")).join("hooks");
        for (dir, hook) in [("prolog.d", "50-gpu-reaper-hc.sh"), ("epilog.d", "00-gpu-reaper-hc.sh")] {
            // A site has hooks of its own; Slurm 22.05 fails every job whose Prolog pattern matches nothing.
            executable(&node.folder(dir).join("10-site.sh"), "#!/bin/sh\nexit 0\n");
            let text = fs::read(hooks.join(dir).join(hook)).expect("the hook");
            executable(&node.folder(dir).join(hook), text);
        }
        node.configure(settings);
        node
    }

    /// D/node/nodeK/`which` on this machine.
    pub fn folder(&self, which: &str) -> PathBuf {
        self.lab.dir.join("node").join(&self.name).join(which)
    }

    /// Where the program keeps this node's ledger and lock.
    pub fn state(&self) -> PathBuf {
        self.folder("state").join(&self.name)
    }

    /// Another configuration from now on.
    pub fn configure(&self, settings: &Settings) {
        replace(&self.folder("etc").join("config.yaml"), settings.yaml());
    }

    /// The same with sections that [`Settings`] has no field for.
    pub fn configure_with(&self, settings: &Settings, sections: &str) {
        replace(&self.folder("etc").join("config.yaml"), settings.yaml() + sections);
    }

    /// A new ledger, as after a lost disk.
    pub fn loses_its_ledger(&self) {
        fs::remove_dir_all(self.state()).expect("the node's state");
    }

    /// Slurm's commands come from a folder of this node's own, where this one is a script of the test's.
    pub fn slurm_commands_but(&self, settings: &Settings, program: &str, script: &str) {
        let bin = self.folder("gpu").join("bin");
        fs::create_dir_all(&bin).expect("a folder for commands");
        for name in ["squeue", "sinfo", "scontrol", "scancel"] {
            let through = format!("#!/bin/sh\nexec /usr/bin/{name} \"$@\"\n");
            executable(&bin.join(name), if name == program { script } else { &through });
        }
        self.configure_with(settings, "slurm: { bin_dir: /var/lib/stand-in/bin }\n");
    }

    /// As on a node whose jobs began before the hooks were installed.
    pub fn without_prolog(&self) {
        fs::remove_file(self.folder("prolog.d").join("50-gpu-reaper-hc.sh")).expect("the hook was there");
    }

    /// The GPUs look like this from now on.
    pub fn show(&self, looks: &[(usize, Look)]) {
        self.gpus.borrow_mut().change(looks, now_us());
        self.write_scenario();
    }

    /// As on cards without an energy counter: nothing speaks for the time between two runs.
    pub fn without_energy_counter(&self) {
        self.gpus.borrow_mut().counts_energy = false;
        self.write_scenario();
    }

    /// The driver answers with this text from now on.
    pub fn show_text(&self, scenario: &str) {
        replace(&self.folder("gpu").join("scenario.txt"), scenario);
    }

    fn write_scenario(&self) {
        self.show_text(&self.gpus.borrow().text());
    }

    /// A job of this many GPUs on this node, for `games`, once it runs.
    pub fn submit(&self, gpus: usize) -> Job {
        self.submit_as("games", gpus)
    }

    /// The same for another user.
    pub fn submit_as(&self, user: &str, gpus: usize) -> Job {
        self.submit_with(gpus, &["--requeue", &format!("--uid={user}")])
    }

    /// The same with options of sbatch's.
    pub fn submit_with(&self, gpus: usize, options: &[&str]) -> Job {
        let gres = format!("--gres=gpu:{gpus}");
        let ours = ["-w", &self.name, &gres, "--wrap", "sleep 3600"];
        self.running(sbatch(self.lab, &[options, &ours].concat()))
    }

    /// A script of the site's own in this node's Epilog, run before ours, that fails from now on.
    pub fn epilog_fails(&self) {
        executable(&self.folder("epilog.d").join("10-site.sh"), "#!/bin/sh\nexit 1\n");
    }

    /// The job once it runs (again): pid from its own cgroup, by way of its slurmstepd; GPUs from that process.
    pub fn running(&self, id: u32) -> Job {
        let mut job = None;
        self.wait_until(&format!("job {id} runs"), || {
            job = self.look_for(id);
            job.is_some()
        });
        job.expect("waited for")
    }

    fn look_for(&self, id: u32) -> Option<Job> {
        let output = self.exec(&["scontrol", "listpids", &id.to_string(), &self.name]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let pids = text.lines().filter_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
            [_, _, "extern", ..] => None,
            [pid, ..] => pid.parse::<u32>().ok(),
            _ => None,
        });
        pids.filter_map(|pid| {
            let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let comm = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            // A batch script has the first, a step's task the second.
            let names: [&[u8]; 2] = [b"SLURM_JOB_GPUS=", b"SLURM_STEP_GPUS="];
            let value = |name| environ.split(|b| *b == 0).find_map(|v| v.strip_prefix(name));
            let list = names.into_iter().find_map(value)?;
            let gpus =
                std::str::from_utf8(list).ok()?.split(',').map(|g| g.parse().ok()).collect::<Option<_>>()?;
            (comm.trim() == "sleep").then_some(Job { id, pid, gpus })
        })
        .next()
    }

    /// Ends a job, and shows its GPUs free as soon as its process is gone.
    pub fn cancel(&self, job: &Job) {
        self.slurm(&["scancel", &job.id.to_string()]);
        self.freed_by(job);
    }

    /// Waits for the job's process to be gone and shows its GPUs free.
    pub fn freed_by(&self, job: &Job) {
        self.wait_until("the job's process is gone", || !Path::new(&format!("/proc/{}", job.pid)).exists());
        self.show(&job.gpus.iter().map(|&gpu| (gpu, Look::Free)).collect::<Vec<_>>());
    }

    /// One of Slurm's commands; it must succeed.
    pub fn slurm(&self, command: &[&str]) -> String {
        self.lab.slurm(command).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Runs a command in this node's view of the machine.
    pub fn exec(&self, command: &[&str]) -> Output {
        self.lab.tool(&[&["exec", "--node", &self.name, "--"], command].concat())
    }

    /// The health check by hand, with what slurmd would give it.
    pub fn health_check(&self) -> Output {
        let name = format!("SLURMD_NODENAME={}", self.name);
        self.exec(&["env", "-i", &name, "/usr/sbin/gpu-reaper-hc"])
    }

    /// `--explain JOBID` by an administrator on this node: exit status and text.
    pub fn explain(&self, job: u32) -> (i32, String) {
        let (node, job) = (format!("SLURMD_NODENAME={}", self.name), job.to_string());
        let output = self.exec(&["env", &node, "/usr/sbin/gpu-reaper-hc", "--explain", &job]);
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
    }

    /// What a person sees now. A node in service is `up`, whatever its jobs: which of the words idle, mixed and
    /// allocated sinfo shows follows a job's start or suspension by some seconds.
    pub fn standing(&self) -> Standing {
        let state = self.slurm(&["sinfo", "-h", "-N", "-n", &self.name, "-o", "%T"]);
        // Backfill plans jobs for it, whatever becomes of them: `mixed-`.
        let word = state.trim_end_matches('-');
        let state = if ["idle", "mixed", "allocated"].contains(&word) { "up" } else { &state };
        let reason = self.slurm(&["sinfo", "-h", "-N", "-n", &self.name, "-o", "%E"]);
        Standing {
            sinfo: format!("{state} {reason}"),
            squeue: self.slurm(&["squeue", "-h", "-w", &self.name, "-o", "%i %T %r"]),
        }
    }

    /// The node's state with every flag: `allocated+drain+maintenance+reserved`.
    pub fn state_with_flags(&self) -> String {
        self.slurm(&["sinfo", "-h", "-n", &self.name, "-O", "StateComplete:"])
    }

    /// The node's Reason, as Slurm keeps it; empty where there is none.
    pub fn reason(&self) -> String {
        let text = self.slurm(&["scontrol", "-o", "show", "node", &self.name]);
        let Some((_, reason)) = text.split_once(" Reason=") else {
            return String::new();
        };
        reason.split(" [").next().unwrap_or_default().trim_end().to_owned()
    }

    /// This node's ledger.
    pub fn ledger(&self) -> Ledger {
        Ledger::at(self.state().join("ledger.db"))
    }

    /// Waits for `what`; fails after the ceiling, with `what`.
    pub fn wait_until(&self, what: &str, held: impl FnMut() -> bool) {
        assert!(
            comes_to_be(CEILING, held),
            "{}: after {} s, still not so: {what}",
            self.name,
            CEILING.as_secs()
        );
    }

    /// Waits for this many more health-check runs to be in the ledger.
    pub fn wait_for_runs(&self, more: i64) {
        let want = self.ledger().runs() + more;
        self.wait_until(&format!("{more} more runs"), || self.ledger().runs() >= want);
    }

    /// Nothing happens: so many more runs, and sinfo and squeue are as `before`.
    pub fn nothing_happens(&self, runs: i64, before: &Standing) {
        self.wait_for_runs(runs);
        assert_eq!(&self.standing(), before, "sinfo and squeue of {} after {runs} more runs", self.name);
    }

    /// What happened here, for somebody who reads a failed test.
    fn story(&self) -> String {
        let mut text = format!("\n==== {}: ledger\n{}", self.name, self.ledger().summary());
        for log in [format!("slurmd.{}.log", self.name), "slurmctld.log".to_owned()] {
            let log = self.lab.dir.join("log").join(log);
            let lines = fs::read_to_string(&log).unwrap_or_default();
            let lines: Vec<_> =
                lines.lines().filter(|l| !l.contains("debug2:") || l.contains("health_check")).collect();
            let tail = lines[lines.len().saturating_sub(25)..].join("\n");
            text += &format!("==== end of {}\n{tail}\n", log.display());
        }
        text
    }

    fn clean_up(&self) {
        // Without a configuration the next runs do nothing.
        let _ = fs::remove_file(self.folder("etc").join("config.yaml"));
        let _ = self.lab.slurm(&["scancel", "-w", &self.name, "--state=RUNNING"]);
        let _ = self.lab.slurm(&["scancel", "-w", &self.name, "--state=SUSPENDED"]);
        let gone = || self.lab.slurm(&["squeue", "-h", "-w", &self.name]).is_ok_and(|jobs| jobs.is_empty());
        let freed = comes_to_be(Duration::from_secs(20), gone);
        let drained =
            self.lab.slurm(&["sinfo", "-h", "-n", &self.name, "-o", "%T"]).is_ok_and(|s| s.contains("drain"));
        if drained {
            let _ =
                self.lab.slurm(&["scontrol", "update", &format!("nodename={}", self.name), "state=undrain"]);
        }
        if !freed {
            let _ = writeln!(std::io::stderr(), "{}: a job does not end", self.name);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.story());
        }
        self.clean_up();
    }
}

//! What a job leaves on its GPUs, seen by its Epilog: the real program, the stand-in driver, and real processes that
//! outlive their job. The job's GPU is `/dev/nvidia0`, which NVML calls 1; a neighbour is at work on the other.

use crate::fake_nvml::{self, FakeNvml};
use crate::*;

const VERIFY: Duration = Duration::from_secs(1);
const OURS: &str = "GPU-00000001-1111-2222-3333-444444444444";
const GIB: u64 = 1 << 30;

/// Two GPUs; what is on ours is `ours`.
fn cards(ours: &str) -> String {
    let node = fake_nvml::node(2);
    let (neighbour, own) = node.split_once("gpu 1").unwrap();
    let own: Vec<&str> = own.lines().filter(|line| !line.trim().starts_with("proc ")).collect();
    let empty = format!("nvmlDeviceGetMemoryInfo_v2 = {} 0 0", fake_nvml::TOTAL_BYTES);
    format!("log\n{neighbour}gpu 1{}\n{empty}\n{ours}\n", own.join("\n"))
}

fn memory(used: u64) -> String {
    format!("nvmlDeviceGetMemoryInfo_v2 = {} {used} 0\n", fake_nvml::TOTAL_BYTES)
}

/// A process that holds this much of our GPU for as long as it lives.
fn held_by(pid: u32, bytes: u64) -> String {
    format!("{}proc compute = {pid} {bytes} alive\n", memory(bytes))
}

struct Site {
    node: Node,
    driver: FakeNvml,
}

impl Site {
    /// Job 7 began on our GPU, job 8 on the other, and a run has seen both GPUs.
    fn new(epilog: &str) -> Site {
        let site = Site::bare(epilog);
        assert_eq!(site.node.health_check().status, Some(0));
        site.node.prolog("7");
        assert_eq!(
            site.node.hook("prolog", "8", &[("SLURM_JOB_GPUS", "1"), ("SLURM_JOB_NUM_NODES", "1")]).err,
            ""
        );
        site
    }

    fn bare(epilog: &str) -> Site {
        let driver = FakeNvml::new(&cards(""));
        let node =
            Node::new(&format!("gpu: {{ library: {} }}\nepilog: {epilog}\n", driver.library().display()));
        fs::write(node.path("site/gres.conf"), "AutoDetect=off\nName=gpu File=/dev/nvidia[0-1]\n").unwrap();
        Site { node, driver }
    }

    /// The Epilog of job 7, and how often it looked.
    fn epilog(&self, on_ours: &str) -> (Said, usize) {
        self.driver.play(&cards(on_ours));
        let _ = fs::remove_file(self.driver.dir().join("calls.log"));
        let said = self.node.hook("epilog", "7", &[("SLURM_JOB_GPUS", "0")]);
        assert_eq!((said.status, said.out.as_str()), (Some(0), ""), "{said:?}");
        let calls = self.driver.calls();
        let elsewhere = calls.iter().filter(|call| call.ends_with(" 0")).collect::<Vec<_>>();
        assert!(elsewhere.is_empty(), "the neighbour's GPU was touched: {elsewhere:?}");
        assert_eq!(self.node.ledger("SELECT closed_how FROM job_run WHERE job_id = 7"), "ended");
        (said, calls.iter().filter(|call| call.starts_with("nvmlInit")).count())
    }
}

/// A process with a secret in its command line that outlives its job.
pub struct Survivor(Child);

impl Survivor {
    pub fn new() -> Survivor {
        let mut command = Command::new("/bin/sh");
        Survivor(command.args(["-c", "read x; : hunter2"]).stdin(Stdio::piped()).spawn().unwrap())
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn lives(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Survivor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_clean_job_ends_after_one_look_at_its_own_gpu() {
    // nebius/soperator#1246, ROCm/spur#836 (PE-03, ND-11): a neighbour at work is no evidence.
    let site = Site::new("{ verify: 1s }");
    let (said, looks) = site.epilog("");
    assert_eq!((said.err.as_str(), looks), ("", 1));
    assert!(said.took < VERIFY / 2, "{said:?}");
    // A display, and what the card itself uses.
    let display = format!("{}proc graphics = {} 4194304\n", memory(500 << 20), fake_nvml::INIT);
    let (said, looks) = Site::new("{ verify: 1s }").epilog(&display);
    assert_eq!((said.err.as_str(), looks), ("", 1));
}

#[test]
fn a_process_that_outlives_its_job_is_told_with_who_and_where_and_how_much() {
    // jade-hpc-gpu/jade-hpc-gpu.github.io#73, nebius/soperator#1161 (PE-01): the next jobs failed on such cards.
    let site = Site::new("{ verify: 1s }");
    let mut left = Survivor::new();
    let (said, looks) = site.epilog(&held_by(left.pid(), 20 * GIB));
    // SAFETY: getuid has no preconditions.
    let uid = unsafe { libc::getuid() };
    let want = format!(
        "gpu-reaper-hc: epilog: job 7 ended and left on GPU 1 ({OURS}): pid {} (`sh`, uid {uid}, 20.0 GiB)",
        left.pid()
    );
    assert_eq!(said.line(), want);
    assert!(!said.err.contains("hunter2"), "a command line can hold secrets");
    assert!(looks >= 3 && said.took >= VERIFY && said.took < VERIFY * 3, "{looks} looks: {said:?}");
    // NVIDIA/deepops#1315 (PE-05)
    assert!(left.lives(), "nobody is signalled");
}

#[test]
fn a_process_that_is_still_ending_is_no_leak() {
    // NVIDIA/deepops#1317, facebookincubator/submitit#1780 (PE-02): teardown takes time.
    let site = Site::new("{ verify: 4s }");
    let mut ending = Survivor::new();
    let on_ours = format!("{}proc compute = {} {GIB} alive\n", memory(100 << 20), ending.pid());
    let (said, looks) = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            drop(ending.0.stdin.take());
            ending.0.wait().unwrap();
        });
        site.epilog(&on_ours)
    });
    assert_eq!(said.err, "");
    assert!(looks >= 2 && said.took < Duration::from_secs(4), "{looks} looks: {said:?}");
}

#[test]
fn what_cannot_be_seen_is_said_and_never_clean() {
    // nebius/soperator#1161 and a4a87755 (PE-12)
    let table = [
        ("nvmlDeviceGetComputeRunningProcesses_v3 ! 999\n".to_owned(), "the driver could not say this time"),
        (memory(30 * GIB), "30.0 GiB of its memory are held, and no process is listed for them"),
        ("gone\n".to_owned(), "the GPU is lost"),
    ];
    for (on_ours, why) in table {
        let (said, _) = Site::new("{ verify: 1s }").epilog(&on_ours);
        let want = format!(
            "gpu-reaper-hc: epilog: job 7: GPU 1 ({OURS}) could not be looked at: {why}; it may not be clean"
        );
        assert_eq!(said.line(), want);
    }
}

#[test]
fn epilogs_that_look_at_once_wait_for_each_other() {
    // Initialising NVML takes its time, and eight jobs of an array end together.
    let site = Site::bare("{ verify: 20s }");
    site.driver.play(&format!("{}nvmlInit_v2 ~ 300\n", cards("")));
    let clean = |job: u32| {
        let node = &site.node;
        let gpus = [("SLURM_JOB_GPUS", "0"), ("CUDA_VISIBLE_DEVICES", OURS)];
        move || node.hook("epilog", &job.to_string(), &gpus)
    };
    let said: Vec<Said> = std::thread::scope(|scope| {
        let all: Vec<_> = (1..=8).map(|job| scope.spawn(clean(job))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    for said in said {
        assert_eq!((said.status, said.err.as_str()), (Some(0), ""), "{said:?}");
    }
}

#[test]
fn a_driver_that_hangs_costs_the_epilog_its_time_and_no_more() {
    // leptonai/gpud#117, NVIDIA/go-nvml#152 (FT-01)
    let site = Site::new("{ verify: 1s }");
    for hang in ["nvmlDeviceGetMemoryInfo_v2 ~ forever", "nvmlDeviceGetHandleByUUID ~ stop"] {
        let again = site.node.hook("prolog", "7", &[("SLURM_JOB_GPUS", "0"), ("SLURM_JOB_NUM_NODES", "1")]);
        assert_eq!(again.err, "");
        let (said, looks) = site.epilog(&format!("{hang}\n"));
        assert!(said.line().ends_with("no answer within the deadline; it may not be clean"), "{said:?}");
        assert_eq!(looks, 1, "{hang}");
        assert!(said.took >= VERIFY && said.took < VERIFY * 2, "{hang}: {said:?}");
    }
}

#[test]
fn each_gpu_has_a_line_of_its_own_also_in_the_journal() {
    // mknoxnv/ubuntu-slurm#4 (PE-08): slurmd does not log what a hook that ends well has said.
    let site = Site::bare("{ verify: 0s }");
    assert_eq!(site.node.health_check().status, Some(0));
    assert_eq!(site.node.hook("prolog", "7", &[("SLURM_JOB_GPUS", "0,1")]).err, "");
    let left = Survivor::new();
    site.driver.play(&format!("{}gpu 0\n{}", cards(&held_by(left.pid(), GIB)), held_by(left.pid(), 2 * GIB)));
    let folder = tempfile::tempdir().unwrap();
    let journal = std::os::unix::net::UnixDatagram::bind(folder.path().join("socket")).unwrap();
    let Some(mut epilog) = crate::journal::beside(&site.node, folder.path(), &["epilog"]) else { return };
    let said = said(epilog.envs([("SLURM_JOB_ID", "7"), ("SLURM_JOB_GPUS", "0,1")]));
    assert_eq!((said.status, said.err.lines().count()), (Some(0), 2), "{said:?}");
    let told = crate::journal::heard(&journal);
    assert_eq!(told.len(), 2, "{told:?}");
    for (gpu, holds) in [("GPU 1 (", "1.0 GiB"), ("GPU 0 (", "2.0 GiB")] {
        let of_it = |text: &&String| text.contains(gpu) && text.contains(holds);
        assert!(told.iter().any(|text| of_it(&text)), "{gpu}: {told:?}");
    }
}

#[test]
fn a_ledger_that_cannot_be_had_hides_nothing_that_was_left() {
    // mknoxnv/ubuntu-slurm#4 (PE-08): locked for longer than anybody waits.
    let site = Site::new("{ verify: 1s }");
    let left = Survivor::new();
    site.driver.play(&cards(&held_by(left.pid(), GIB)));
    let holder = rusqlite::Connection::open(site.node.state().join("ledger.db")).unwrap();
    holder.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let by_uuid = [("SLURM_JOB_GPUS", "0"), ("CUDA_VISIBLE_DEVICES", OURS), ("SLURM_JOB_START_TIME", "1")];
    let said = site.node.hook("epilog", "7", &by_uuid);
    holder.execute_batch("ROLLBACK").unwrap();
    let lines: Vec<&str> = said.err.lines().collect();
    assert!(said.status == Some(0) && lines.len() == 3, "{said:?}");
    assert!(
        lines[0].contains("database is locked; job 7 is not cleared, it is withheld from")
            && lines[0].ends_with("; its GPUs were looked at all the same"),
        "{said:?}"
    );
    let told = format!("job 7 ended and left on GPU {OURS}: pid {} (", left.pid());
    assert!(lines[1].contains(&told) && lines[2].ends_with("what job 7 left is not kept"), "{said:?}");
}

#[test]
fn services_of_the_site_are_no_leak() {
    // XuehaiPan/nvitop#152, beclab/Olares#3803 (PE-14): exporters and power daemons are on every GPU for ever.
    let earlier = Survivor::new();
    let (said, looks) = Site::new("{ verify: 1s }").epilog(&held_by(earlier.pid(), GIB));
    assert_eq!((said.err.as_str(), looks), ("", 1), "it was there before the job");
    let site = Site::new("{ verify: 1s, allow: [dcgm-exporter, sh] }");
    let restarted = Survivor::new();
    let (said, looks) = site.epilog(&held_by(restarted.pid(), GIB));
    assert_eq!((said.err.as_str(), looks), ("", 1), "it is allowed by name");
}

#[test]
fn one_look_confirms_nothing_but_a_clean_gpu() {
    let site = Site::new("{ verify: 0s }");
    let left = Survivor::new();
    let (said, looks) = site.epilog(&held_by(left.pid(), GIB));
    assert_eq!(looks, 1);
    assert!(
        said.line().contains(&format!("({OURS}) was still in use after 0s: pid {} (", left.pid())),
        "{said:?}"
    );
}

#[test]
fn a_job_that_nobody_registered_is_looked_at_where_slurm_names_its_gpus() {
    let left = Survivor::new();
    let by_uuid = [("SLURM_JOB_GPUS", "0"), ("CUDA_VISIBLE_DEVICES", OURS)];
    let by_index = [("SLURM_JOB_GPUS", "0"), ("SLURM_JOB_START_TIME", "1")];
    for (named, began, label) in
        [(&by_uuid, false, format!("GPU {OURS}")), (&by_index, true, format!("/dev/nvidia0 ({OURS})"))]
    {
        let site = Site::bare("{ verify: 1s }");
        site.driver.play(&cards(&held_by(left.pid(), GIB)));
        let said = site.node.hook("epilog", "7", named);
        let want = match began {
            true => format!("job 7 ended and left on {label}: pid {} (", left.pid()),
            // It may be older than the job, whose beginning this Slurm does not tell.
            false => format!(
                "job 7: {label} could not be looked at: whose process {} is, is not known",
                left.pid()
            ),
        };
        assert!(said.status == Some(0) && said.line().contains(&want), "{want}: {said:?}");
    }
}

#[test]
fn without_persistence_no_driver_is_initialised_for_a_look() {
    // Azure/aks-gpu#105, NVIDIA/nvidia-docker#628 (RT-06): 25 to 30 s at every job's end.
    if Path::new("/run/nvidia-persistenced/socket").exists() {
        return println!("skipped: nvidia-persistenced runs here");
    }
    let node = Node::new("epilog: { verify: 10s }\n");
    let gpus = [("SLURM_JOB_GPUS", "0")];
    assert_eq!(node.hook("prolog", "7", &gpus).err, "");
    let said = node.hook("epilog", "7", &gpus);
    assert_eq!((said.status, said.err.as_str()), (Some(0), ""), "no trouble is known");
    fs::write(node.state().join("ledger.db"), "no ledger at all\n".repeat(500)).unwrap();
    let said = node.hook("epilog", "7", &gpus);
    let why = "was not checked: without persistence mode the driver is not initialised for a look";
    assert!(said.line().ends_with(why) && said.took < Duration::from_secs(2), "{said:?}");
}

#[test]
fn one_of_eight_jobs_ends_and_the_seven_others_are_neither_looked_at_nor_cleared() {
    // ROCm/spur#836, nebius/soperator#1246 (ND-11, PE-03): whoever looks at the whole node takes neighbours for leaks.
    let mut others: Vec<Survivor> = (0..8).map(|_| Survivor::new()).collect();
    let at_work = |ended: Option<u64>| {
        let node = fake_nvml::node(8);
        let (head, gpus) = node.split_once("gpu 0").unwrap();
        let mut played = format!("log\n{head}");
        for (index, gpu) in format!(" 0{gpus}").split("gpu").enumerate() {
            let lines: Vec<&str> = gpu.lines().filter(|line| !line.trim().starts_with("proc ")).collect();
            let held = match ended == Some(index as u64) {
                true => memory(0),
                false => held_by(others[index].pid(), GIB),
            };
            played += &format!("gpu{}\n{held}", lines.join("\n"));
        }
        played
    };
    let driver = FakeNvml::new(&at_work(None));
    let node =
        Node::new(&format!("gpu: {{ library: {} }}\nepilog: {{ verify: 1s }}\n", driver.library().display()));
    fs::write(node.path("site/gres.conf"), "AutoDetect=off\nName=gpu File=/dev/nvidia[0-7]\n").unwrap();
    assert_eq!(node.health_check().status, Some(0));
    for minor in 0..8 {
        let gpus = minor.to_string();
        let said = node.hook(
            "prolog",
            &format!("{}", 10 + minor),
            &[("SLURM_JOB_GPUS", &gpus), ("SLURM_JOB_NUM_NODES", "1")],
        );
        assert_eq!((said.status, said.err.as_str()), (Some(0), ""));
    }
    // The GPU of minor 5 is the driver's third.
    driver.play(&at_work(Some(2)));
    let _ = fs::remove_file(driver.dir().join("calls.log"));
    let said = node.hook("epilog", "15", &[("SLURM_JOB_GPUS", "5")]);
    assert_eq!((said.status, said.out.as_str(), said.err.as_str()), (Some(0), "", ""), "{said:?}");
    let calls = driver.calls();
    let of_gpu =
        |call: &&String| call.starts_with("nvmlDeviceGet") && !call.starts_with("nvmlDeviceGetHandle");
    let elsewhere: Vec<&String> = calls.iter().filter(of_gpu).filter(|call| !call.ends_with(" 2")).collect();
    assert!(elsewhere.is_empty() && calls.iter().any(|call| call.ends_with(" 2")), "{calls:?}");
    let open = "SELECT group_concat(job_id) FROM (SELECT job_id FROM job_run WHERE closed_how IS NULL ORDER BY job_id)";
    assert_eq!(node.ledger(open), "10,11,12,13,14,16,17");
    assert_eq!(node.ledger("SELECT count(*) FROM fault"), "0");
    assert!(others.iter_mut().all(Survivor::lives), "nobody was signalled");
}

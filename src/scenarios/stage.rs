//! Where a scenario is played: a throw-away folder with a ledger, stand-ins for Slurm's commands, a clock of its own
//! and eyes that see the timeline. Everything else is the real thing.

use super::afterwards::Afterwards;
use super::faults;
use super::file::{Job, Samples, Scenario};
use crate::config::{self, Config};
use crate::explain::{self, Answer, Asked};
use crate::gpu::GpuSource;
use crate::gpu::bus::LinkWidth;
use crate::gpu::simulated::{Simulated, Timeline};
use crate::host::kernel_log::Heard;
use crate::ledger::{Ledger, LedgerError, Withheld};
use crate::model::{ActionRecord, GpuReport, JobId, JobRun, JobSample, Now, Registration, Who, Whose};
use crate::place::Place;
use crate::policy::Finding;
use crate::policy::keep::Keep;
use crate::policy::reason::PREFIX;
use crate::reading::{Absence, Reading};
use crate::run::eyes::{Eyes, Resident};
use crate::run::{self, Ended, Setting};
use crate::screen::Screen;
use crate::slurm::{Site, Slurm};
use crate::units::{BootMs, DeviceMinor, NodeName, PciAddress, WallMs};
use crate::{ack, epilog, prolog};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The end of every story, on the wall: 2026-11-29T12:00:00Z.
const END_WALL_MS: i64 = 1_795_953_600_000;
/// The same since boot: long enough ago for every story.
const END_BOOT_MS: i64 = 30 * 86_400_000;
const NODE: &str = "n1";
const STAND_IN: &str = include_str!("../../fixtures/stand-in/slurm");
const PROGRAMS: [&str; 4] = ["squeue", "sinfo", "scontrol", "scancel"];

/// A set stage.
pub struct Stage<'a> {
    scenario: &'a Scenario,
    timeline: Timeline,
    folder: Folder,
    config: Config,
    place: Place,
    slurm: Slurm,
    /// What is still to happen, the next one last.
    pending: Vec<(i64, Happening<'a>)>,
    now_ms: i64,
}

enum Happening<'a> {
    Starts(&'a Job),
    Ends(&'a Job),
    Slurm(&'a super::file::SlurmEvent),
    Acknowledged(&'a faults::Acknowledged),
}

/// A folder that goes with its owner.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder, String> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("gpu-reaper-hc.{}.{n}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => Ok(Folder(path)),
            Err(e) => Err(format!("`{}`: {e}", path.display())),
        }
    }
}

/// Takes away what a process that is interrupted leaves of its folders.
pub fn sweep() {
    let prefix = format!("gpu-reaper-hc.{}.", std::process::id());
    let all = fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    let own = all.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
    own.for_each(|entry| {
        // A step that is still at work may write while it goes.
        let _ = (0..3).find(|_| fs::remove_dir_all(entry.path()).is_ok());
    });
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn io(path: &Path) -> impl Fn(std::io::Error) -> String + '_ {
    move |e| format!("`{}`: {e}", path.display())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(io(path))
}

impl<'a> Stage<'a> {
    /// Builds the folder; nothing has happened yet.
    pub fn set(scenario: &'a Scenario) -> Result<Stage<'a>, String> {
        let folder = Folder::new()?;
        let (bin, cluster) = (folder.0.join("bin"), folder.0.join("cluster"));
        for dir in [&bin, &cluster, &cluster.join("jobs"), &cluster.join("nodes"), &folder.0.join("etc")] {
            fs::create_dir(dir).map_err(io(dir))?;
        }
        for program in PROGRAMS {
            let path = bin.join(program);
            write(&path, STAND_IN)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(io(&path))?;
        }
        write(&cluster.join("node.state"), "allocated")?;
        write(&cluster.join("node.reason"), "none")?;
        let last = scenario.node.gpus.saturating_sub(1);
        let gres = format!("AutoDetect=off\nName=gpu Type=h100 File=/dev/nvidia[0-{last}]\n");
        write(&folder.0.join("etc/gres.conf"), &gres)?;
        let config = configure(scenario, &folder.0)?;
        let node = NodeName::new(NODE)?;
        let place = Place::new(&config.state_dir, node.clone());
        let conf = Some(folder.0.join("etc/slurm.conf"));
        let site = Site { bin_dir: Some(bin), conf, path: None, limit: Duration::from_secs(6) };
        let mut pending: Vec<(i64, Happening)> = Vec::new();
        for job in &scenario.jobs {
            pending.push((job.started.0, Happening::Starts(job)));
            pending.extend(job.ended.map(|at| (at.0, Happening::Ends(job))));
        }
        pending.extend(scenario.slurm.iter().map(|e| (e.at.0, Happening::Slurm(e))));
        pending.extend(scenario.acknowledged.iter().map(|a| (a.at.0, Happening::Acknowledged(a))));
        pending.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        let timeline = scenario.timeline()?;
        let slurm = Slurm::new(node, site);
        Ok(Stage { scenario, timeline, folder, config, place, slurm, pending, now_ms: i64::MIN })
    }

    /// An instant of the story.
    pub fn now_at(at_ms: i64) -> Now {
        Now {
            boot_id: "3d1a0cf5-0000-4000-8000-5ce1a1105ce0".to_owned(),
            boot: BootMs(END_BOOT_MS + at_ms),
            wall: WallMs(END_WALL_MS + at_ms),
        }
    }

    /// Lets happen what is due, then makes one run.
    pub fn run_at(&mut self, at_ms: i64) -> Result<String, String> {
        while self.pending.last().is_some_and(|(at, _)| *at <= at_ms) {
            if let Some((at, happening)) = self.pending.pop() {
                self.happen(at, &happening)?;
            }
        }
        self.now_ms = at_ms;
        let now = Stage::now_at(at_ms);
        write(&self.folder.0.join("cluster/now"), &now.wall.0.div_euclid(1000).to_string())?;
        let setting = Setting {
            config: &self.config,
            place: &self.place,
            now: &now,
            slurm: &self.slurm,
            slurmd_is_younger: &|_| false,
            interval_ms: None,
            until: Instant::now() + Duration::from_secs(45),
        };
        let mut eyes = Imagined { scenario: self.scenario, timeline: &self.timeline, at_ms };
        match run::run(&setting, &mut eyes) {
            Ok(Ended::Ran(line)) => Ok(line),
            Ok(Ended::Overlapped) => Err("another run holds the lock".to_owned()),
            Err(trouble) => Err(trouble.to_string()),
        }
    }

    fn happen(&self, at_ms: i64, happening: &Happening) -> Result<(), String> {
        let cluster = self.folder.0.join("cluster");
        match happening {
            Happening::Starts(job) => self.start(at_ms, job, &cluster),
            Happening::Ends(job) => {
                write(&cluster.join(format!("jobs/{}.state", job.id)), "COMPLETING")?;
                if !job.epilog {
                    return write(&cluster.join(format!("jobs/{}.state", job.id)), "COMPLETED");
                }
                let env = environment(self.scenario, job);
                let (config, place, slurm) = (&self.config, &self.place, &self.slurm);
                let asked = Asked { config, place, now: &Stage::now_at(at_ms), slurm };
                let sight = || Afterwards::new(self.timeline.clone(), at_ms);
                epilog::run(&asked, &env, &mut |_| Ok(Box::new(sight())))?;
                write(&cluster.join(format!("jobs/{}.state", job.id)), "COMPLETED")
            }
            Happening::Slurm(event) => slurm_happens(event, &cluster),
            Happening::Acknowledged(it) => {
                let now = Stage::now_at(at_ms);
                ack::ack(&mut self.ledger(&now)?, Some(it.kind.word()), "root", &now).map(drop)
            }
        }
    }

    fn start(&self, at_ms: i64, job: &Job, cluster: &Path) -> Result<(), String> {
        let shown = job.shown_as.clone().unwrap_or_else(|| job.id.to_string());
        let start_s = (END_WALL_MS + job.started.0).div_euclid(1000);
        let null = || "(null)".to_owned();
        let row = format!(
            "{}|{shown}|RUNNING|{start_s}|{}|{}|1001|{}|{}|{}|{}|{}\n",
            job.id,
            job.nodes,
            job.node_list,
            job.user,
            job.partition,
            job.restart,
            job.qos.clone().unwrap_or_else(null),
            job.account.clone().unwrap_or_else(null),
        );
        let file = |suffix: &str| cluster.join(format!("jobs/{}{suffix}", job.id));
        write(&file(""), &row)?;
        write(&file(".state"), "RUNNING")?;
        write(&file(".name"), &job.name)?;
        if let Some(comment) = &job.comment {
            write(&file(".user-comment"), comment)?;
        }
        write(&file(".show"), &shown_job(job))?;
        if !job.prolog {
            return Ok(());
        }
        let env = environment(self.scenario, job);
        let opening = run::opening(&self.config, prolog::LEDGER_WAIT);
        prolog::run(&self.place, opening, &Stage::now_at(at_ms), &env).map(drop)
    }

    /// What `--explain` would say now.
    pub fn explain(&self, job: JobId) -> Result<Answer, String> {
        let now = Stage::now_at(self.now_ms);
        let asked = Asked { config: &self.config, place: &self.place, now: &now, slurm: &self.slurm };
        let ledger = self.ledger(&now)?;
        explain::explain(&asked, &ledger, &job.to_string()).map_err(|e| e.to_string())
    }

    /// The page of one job, as written for this screen.
    pub fn page(&self, job: u64, screen: &Screen) -> Result<String, String> {
        let answer = self.explain(JobId::new(job).ok_or("job id 0")?)?;
        Ok(explain::text::answer(&answer, &job.to_string(), screen))
    }

    /// What is found of a job now, and how it is registered.
    pub fn found(&self, job: JobId) -> Result<Option<(Finding, Registration)>, String> {
        let Answer::Told(told) = self.explain(job)? else { return Ok(None) };
        let registration = told.history.job.registration.clone();
        Ok(told.finding().map(|finding| (finding.clone(), registration)))
    }

    /// What was done for the latest run of a job, and what was withheld; also after its Epilog.
    pub fn record(&self, job: JobId) -> Result<(Vec<ActionRecord>, Vec<Withheld>), String> {
        let ledger = self.ledger(&Stage::now_at(self.now_ms))?;
        let read = || {
            let Some(latest) = ledger.find_runs(job)?.into_iter().next() else {
                return Ok(Default::default());
            };
            Ok((ledger.actions_of(latest.run.id)?, ledger.withheld_of(latest.run.id)?))
        };
        read().map_err(|e: LedgerError| e.to_string())
    }

    /// Everything done for the latest run of a job, also after its Epilog, in words.
    pub fn done(&self, job: JobId) -> Result<Vec<String>, String> {
        self.record(job).map(|(actions, _)| explain::done_words(&actions))
    }

    /// Faults of the node, as far as they were told, and what was done for them.
    pub fn faults(&self) -> Result<faults::Known, String> {
        let now = Stage::now_at(self.now_ms);
        let ledger = self.ledger(&now)?;
        let episodes = ledger.episodes().map_err(|e| e.to_string())?;
        let drains = ledger.fault_drains(&now).map_err(|e| e.to_string())?;
        let (node_state, node_reason) = self.node();
        Ok(faults::Known { episodes, drains, node_state, node_reason })
    }

    fn ledger(&self, now: &Now) -> Result<Ledger, String> {
        let opening = run::opening(&self.config, Duration::from_secs(1));
        Ledger::open(&self.place.dir, &self.place.node, now, opening).map_err(|e| e.to_string())
    }

    /// Where its ledger lies.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Which of Slurm's commands were run so far, with their arguments.
    pub fn slurm_commands(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.folder.0.join("cluster/calls"));
        calls.map_or(Vec::new(), |calls| calls.lines().map(str::to_owned).collect())
    }

    /// The node's state and Reason now.
    pub fn node(&self) -> (String, String) {
        let says = |name: &str| fs::read_to_string(self.folder.0.join("cluster").join(name));
        (says("node.state").unwrap_or_default(), says("node.reason").unwrap_or_default())
    }

    /// The node's Reason now, and the one that somebody else had set in the story.
    pub fn reasons(&self) -> (String, Option<String>) {
        let (_, now) = self.node();
        let set = self.scenario.slurm.iter().rev().find_map(|e| e.node_reason.clone());
        (now, set.filter(|reason| !reason.starts_with(PREFIX)))
    }
}

/// The story's configuration on top of what a stage needs.
fn configure(scenario: &Scenario, folder: &Path) -> Result<Config, String> {
    use serde_yaml::{Mapping, Value};
    let mut root = match &scenario.config {
        Some(Value::Mapping(map)) => map.clone(),
        Some(_) => return Err("`config` is no mapping".to_owned()),
        None => Mapping::new(),
    };
    let text = |path: PathBuf| Value::from(path.display().to_string());
    let section = |pairs: &[(&str, Value)]| {
        Value::Mapping(pairs.iter().map(|(k, v)| (Value::from(*k), v.clone())).collect())
    };
    root.insert("state_dir".into(), text(folder.join("state")));
    let bin_dir = ("bin_dir", text(folder.join("bin")));
    root.insert("slurm".into(), section(&[bin_dir, ("conf", text(folder.join("etc/slurm.conf")))]));
    let gpu = root.entry("gpu".into()).or_insert_with(|| Value::Mapping(Mapping::new()));
    gpu.as_mapping_mut().ok_or("`config: gpu` is no mapping")?.insert("source".into(), "simulator".into());
    let yaml = serde_yaml::to_string(&root).map_err(|e| e.to_string())?;
    config::parse(&yaml, "scenario")
        .map_err(|errors| errors.iter().map(|e| e.to_string()).collect::<Vec<_>>().join("\n"))
}

/// What slurmd would give the hooks.
fn environment<'a>(scenario: &Scenario, job: &'a Job) -> impl Fn(&str) -> Option<String> + use<'a> {
    let start_s = (END_WALL_MS + job.started.0).div_euclid(1000);
    let limit_s = job.limit.map(|limit| start_s + limit.0 / 1000);
    let gpus: Vec<String> = job.gpus.indices().iter().map(u32::to_string).collect();
    let many = scenario.node.gpus > 0;
    move |name| match name {
        "SLURM_CLUSTER_NAME" => Some("story".to_owned()),
        "SLURM_JOB_ID" => Some(job.id.to_string()),
        "SLURM_JOB_RESTART_COUNT" => Some(job.restart.to_string()),
        "SLURM_JOB_START_TIME" => Some(start_s.to_string()),
        "SLURM_JOB_END_TIME" => limit_s.map(|s| s.to_string()),
        "SLURM_JOB_USER" => Some(job.user.clone()),
        "SLURM_JOB_UID" => Some("1001".to_owned()),
        "SLURM_JOB_PARTITION" => Some(job.partition.clone()),
        "SLURM_JOB_ACCOUNT" => job.account.clone(),
        "SLURM_JOB_NUM_NODES" => Some(job.nodes.to_string()),
        "SLURM_NODELIST" => Some(job.node_list.clone()),
        "SLURM_JOB_GPUS" if many && !gpus.is_empty() => Some(gpus.join(",")),
        _ => None,
    }
}

/// The lines of `scontrol -d show job` that are read.
fn shown_job(job: &Job) -> String {
    let gpus = job.gpus.indices();
    let list: Vec<String> = gpus.iter().map(u32::to_string).collect();
    format!(
        "JobId={} JobName=x\n   UserId={}(1001) GroupId=x\n   JobState=RUNNING Reason=None\n   NodeList={NODE}\n   \
         NumNodes={} NumCPUs=1\n   JOB_GRES=gpu:{n}\n     Nodes={NODE} CPU_IDs=0 Mem=0 GRES=gpu:{n}(IDX:{})\n",
        job.id,
        job.user,
        job.nodes,
        list.join(","),
        n = gpus.len(),
    )
}

fn slurm_happens(event: &super::file::SlurmEvent, cluster: &Path) -> Result<(), String> {
    let mark = |name: &str, set: Option<bool>| match set {
        Some(true) => write(&cluster.join(name), ""),
        Some(false) => {
            drop(fs::remove_file(cluster.join(name)));
            Ok(())
        }
        None => Ok(()),
    };
    mark("down", event.down)?;
    mark("refuses", event.refuses)?;
    mark("brake", event.brake)?;
    for (job, state) in &event.job_state {
        write(&cluster.join(format!("jobs/{job}.state")), state)?;
    }
    for (name, node) in &event.other_nodes {
        let set = node.reason_set.as_ref().unwrap_or(&event.at);
        let at_s = (END_WALL_MS + set.0).div_euclid(1000);
        let lines = format!("{}\n{}\n{at_s}\n", node.state, node.reason);
        write(&cluster.join("nodes").join(name), &lines)?;
    }
    for (job, length) in &event.keep {
        let until = WallMs(END_WALL_MS + event.at.0 + length.0);
        let keep = Keep { until, by: "root".to_owned(), reason: "paper deadline".to_owned() };
        write(&cluster.join(format!("jobs/{job}.comment")), &keep.line())?;
    }
    if let Some(state) = &event.node_state {
        write(&cluster.join("node.state"), state)?;
    }
    if let Some(reason) = &event.node_reason {
        write(&cluster.join("node.reason"), reason)?;
    }
    Ok(())
}

/// Eyes that see the story.
struct Imagined<'a> {
    scenario: &'a Scenario,
    timeline: &'a Timeline,
    at_ms: i64,
}

impl Imagined<'_> {
    fn here(&self, job: &Job) -> bool {
        job.started.0 <= self.at_ms && job.ended.is_none_or(|end| self.at_ms < end.0)
    }

    /// What a rate of the samples adds up to since the job began.
    fn total(&self, job: &Job, rate: impl Fn(&Samples) -> Option<f64>) -> Reading<u64> {
        if !self.scenario.samples.iter().any(|s| rate(s).is_some()) {
            return Reading::Absent(Absence::NoData);
        }
        let entries = self.scenario.samples.iter().filter_map(|s| Some((s, rate(s)?)));
        let spans = entries.map(|(s, rate)| {
            let (from, to) = (s.from.0.max(job.started.0), s.to.0.min(self.at_ms));
            rate * (to - from).max(0) as f64
        });
        Reading::Measured(spans.sum::<f64>() as u64)
    }
}

impl Eyes for Imagined<'_> {
    fn start(&mut self, _states: bool) {}

    fn know(&mut self, _now: &Now, _jobs: &[JobRun]) {}

    fn gpus(&mut self) -> Reading<GpuReport> {
        let listed = Simulated { timeline: self.timeline, at_ms: self.at_ms }.read();
        self.scenario.with_processes(listed, self.at_ms)
    }

    fn jobs_here(&mut self) -> Reading<Vec<JobId>> {
        let here = self.scenario.jobs.iter().filter(|j| self.here(j));
        Reading::Measured(here.filter_map(|j| JobId::new(j.id)).collect())
    }

    fn resident(&mut self, pid: u32) -> Resident {
        let whose = self.scenario.whose(pid).unwrap_or(Whose::Slurms);
        Resident { start_ticks: Reading::Measured(1), whose: Reading::Measured(whose) }
    }

    fn job(&mut self, job: &JobRun, _pids: &[u32]) -> JobSample {
        let id = job.registration.job.get();
        let told = self.scenario.jobs.iter().find(|j| j.id == id && self.here(j));
        let Some(told) = told else {
            return JobSample::absent(Absence::NoData);
        };
        let frozen = self.scenario.host_at(self.at_ms).is_some_and(|s| s.frozen.contains(&id));
        JobSample {
            working_set_bytes: Reading::Absent(Absence::NotSupported),
            holders: Reading::Absent(Absence::NotAsked),
            frozen: Reading::Measured(frozen),
            cpu_ms: self.total(told, |s| s.cores),
            written_bytes: self.total(told, |s| s.writes.map(|b| b.0 as f64 / 1000.0)),
            read_bytes: Reading::Absent(Absence::NoData),
        }
    }

    fn holders(&mut self, _: &[DeviceMinor], _: Option<&JobRun>) -> Reading<Vec<(DeviceMinor, u32)>> {
        Reading::Measured(Vec::new())
    }

    fn unlisted(&mut self, listed: &[PciAddress]) -> Reading<Vec<PciAddress>> {
        self.scenario.unlisted(listed)
    }

    fn who(&mut self, pid: u32) -> Who {
        self.scenario.who(pid)
    }

    fn persistent(&mut self) -> bool {
        self.scenario.node.persistent
    }

    fn link_width(&mut self, gpu: &PciAddress) -> Reading<LinkWidth> {
        Simulated { timeline: self.timeline, at_ms: self.at_ms }.link_width(gpu)
    }

    fn kernel_log(&mut self, since: Option<u64>) -> Reading<Heard> {
        self.scenario.kernel_log(self.at_ms, since, |at_ms| Stage::now_at(at_ms).boot)
    }
}

//! The fleet: its nodes, a tick for all of them at once, and what each tick brought. Knows nothing of what a story
//! promises.

use super::finding;
use super::node::{Done, Node, Tick};
use super::slurmctld::{Asked, Slurmctld};
use gpu_reaper_hc::act::look::Look;
use gpu_reaper_hc::config::{self, Config};
use gpu_reaper_hc::ledger::Opening;
use gpu_reaper_hc::mode::Mode;
use gpu_reaper_hc::model::*;
use gpu_reaper_hc::policy::cap::Cap;
use gpu_reaper_hc::policy::nodes::Nodes;
use gpu_reaper_hc::reading::{Absence, Reading};
use gpu_reaper_hc::units::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// slurmctld starts a run on every node at once, so often.
const TICK_MS: i64 = 60_000;
/// Tick 0: every node has been up for long.
const BASE_BOOT_MS: i64 = 30 * 86_400_000;
const BASE_WALL_MS: i64 = 1_795_953_600_000;
/// Every job and every ledger began so many ticks before tick 0.
const BEGINNING: i64 = -1500;

/// What holds on every node.
pub struct Site {
    /// The law.
    pub config: Config,
    /// What every GPU shows.
    pub quiet: GpuReport,
    folder: tempfile::TempDir,
}

impl Site {
    /// Under this configuration.
    pub fn new(yaml: &str) -> Site {
        // In memory where the system has such a place: deeds are synced to the disk, and there are thousands.
        let shm = Path::new("/dev/shm");
        let folder = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() };
        let config = config::parse(yaml, "fleet").unwrap();
        Site { config, quiet: finding::quiet(), folder: folder.unwrap() }
    }

    /// The instant of a tick, alike on all nodes.
    pub fn moment(&self, tick: i64) -> Now {
        Now {
            boot_id: "3d1a0cf5-0000-4000-8000-5ce1a1105ce0".to_owned(),
            boot: BootMs(BASE_BOOT_MS + tick * TICK_MS),
            wall: WallMs(BASE_WALL_MS + tick * TICK_MS),
        }
    }

    /// When jobs and ledgers began.
    pub fn beginning(&self) -> Now {
        self.moment(BEGINNING)
    }

    /// A node's own folder.
    pub fn folder(&self, node: &NodeName) -> PathBuf {
        self.folder.path().join(node.as_str())
    }

    /// How ledgers are opened.
    pub fn opening(&self) -> Opening {
        Opening { wait: Duration::from_secs(5), max_bytes: self.config.history.max_size_bytes }
    }

    /// What looks before a deed on a node.
    pub fn look<'a>(&'a self, gpus: &'a mut dyn FnMut() -> Reading<GpuReport>) -> Look<'a> {
        Look {
            rules: &self.config.rules,
            cap: self.cap(),
            gpus,
            admin_comment: false,
            notify_job: false,
            in_epilog: false,
        }
    }

    /// The limit over the cluster.
    pub fn cap(&self) -> Cap {
        let limits = &self.config.limits;
        Cap { fraction: limits.max_drained_fraction, most: limits.max_drained_nodes }
    }

    /// `limits.spread`
    pub fn spread_ms(&self) -> i64 {
        self.config.limits.spread.as_millis() as i64
    }
}

/// How it comes about that nodes are to be drained.
#[derive(Clone, Copy, Debug)]
pub struct Story {
    /// In the table.
    pub name: &'static str,
    /// Every so many nodes has a finding; 0: none.
    pub one_in: usize,
    /// Nodes of each job.
    pub job_nodes: usize,
    /// Since which tick it is a finding, on all of them; before tick 0 for one that was told of long ago.
    pub found: i64,
    /// `mode: observe` before this tick.
    pub enforced: i64,
    /// The brake is pulled before this tick.
    pub let_go: i64,
    /// slurmctld is away before this tick.
    pub back: i64,
    /// How many ticks are played.
    pub ticks: i64,
    /// The configuration.
    pub yaml: &'static str,
    /// Runs in which nothing can happen are skipped.
    pub skips: bool,
}

/// What one tick of all nodes brought.
#[derive(Clone, Copy, Debug, Default)]
pub struct Minute {
    pub drained: usize,
    pub withdrew: usize,
    pub cancelled: usize,
    pub released: usize,
    /// Nodes that carry our drains at its end.
    pub standing: usize,
    /// What was asked of slurmctld.
    pub asked: Asked,
}

/// All that a story brought.
pub struct Told {
    /// Nodes of the cluster.
    pub nodes: usize,
    /// How many of them may be drained.
    pub cap: usize,
    /// By tick.
    pub minutes: Vec<Minute>,
    /// The most RPCs that one node caused within any hour.
    pub node_hour: u32,
}

/// Plays a story on so many nodes.
pub fn play(story: &Story, nodes: usize) -> Told {
    let site = Site::new(story.yaml);
    let (mut hung, mut slurmctld) = cluster(story, nodes, &site);
    let first = sample_job(&site, 0, story.job_nodes, &names(nodes));
    let mut finding = finding::hung(&first, &site.config.rules, &site.moment(0));
    finding.since = BootMs(site.moment(story.found).boot.0 - site.config.rules.thresholds.window_ms);
    finding.since_wall = WallMs(site.moment(story.found).wall.0 - site.config.rules.thresholds.window_ms);
    finding.since_run = RunId(story.found);
    let mut caused: Vec<Vec<u32>> = hung.iter().map(|_| Vec::new()).collect();
    let mut minutes = Vec::new();
    for t in 0..story.ticks {
        let now = site.moment(t);
        finding.established_for_ms = (t - story.found) * TICK_MS;
        finding.acting_for_ms = finding.established_for_ms;
        (slurmctld.down, slurmctld.brake) = (t < story.back, t < story.let_go);
        slurmctld.begin(now.wall.0 / 1000);
        let tick = Tick {
            previous: site.moment(t - 1).boot,
            run: RunId(t),
            mode: if t < story.enforced { Mode::Observe } else { Mode::Enforce },
            finding: &finding,
            alerted: RunId(story.found),
            now: &now,
            skips: story.skips,
        };
        let mut minute = Minute::default();
        for (done, caused) in all_at_once(&mut hung, &tick, &site, &slurmctld).iter().zip(&mut caused) {
            minute.add(done);
            caused.push(done.asked.rpcs() as u32);
        }
        slurmctld.end();
        minute.standing = slurmctld.standing();
        minutes.push(minute);
    }
    let hours = caused.iter().flat_map(|of_one| of_one.windows(60).map(|hour| hour.iter().sum::<u32>()));
    let cap = site.cap().nodes(nodes as u32) as usize;
    Told { nodes, cap, minutes, node_hour: hours.max().unwrap_or(0) }
}

/// A run of every node. Their order tells nothing: none sees what another does in the same tick.
fn all_at_once(hung: &mut [Node], tick: &Tick, site: &Site, slurmctld: &Slurmctld) -> Vec<Done> {
    let threads = thread::available_parallelism().map_or(1, |n| n.get());
    let share = hung.len().div_ceil(threads).max(1);
    let of_some = |nodes: &mut [Node]| -> Vec<Done> {
        nodes.iter_mut().map(|node| node.run(tick, site, slurmctld)).collect()
    };
    thread::scope(|scope| {
        let parts: Vec<_> = hung.chunks_mut(share).map(|nodes| scope.spawn(move || of_some(nodes))).collect();
        parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
    })
}

impl Minute {
    /// What one node's run brought too.
    pub fn add(&mut self, done: &Done) {
        self.asked += done.asked;
        self.drained += usize::from(done.drained);
        self.withdrew += usize::from(done.withdrew);
        self.cancelled += usize::from(done.cancelled);
        self.released += usize::from(done.released);
    }
}

/// The cluster's nodes.
pub fn names(nodes: usize) -> Vec<NodeName> {
    (0..nodes).map(|n| NodeName::new(&format!("gpu{n:05}")).unwrap()).collect()
}

/// The nodes with a finding, and a slurmctld that knows all of them and their jobs.
fn cluster(story: &Story, nodes: usize, site: &Site) -> (Vec<Node>, Slurmctld) {
    let names = names(nodes);
    let mut hung = Vec::new();
    let mut jobs = BTreeMap::new();
    for (j, members) in names.chunks(story.job_nodes).enumerate() {
        if story.one_in == 0 || j % story.one_in != 0 {
            continue;
        }
        let job = sample_job(site, j, story.job_nodes, members);
        let details = job.details.clone().unwrap();
        jobs.insert(job.registration.job, details);
        for (m, name) in members.iter().enumerate() {
            let of_job = Nodes::new(members.to_vec(), name).unwrap();
            hung.push(Node::new(j * story.job_nodes + m, name.clone(), of_job, job.clone()));
        }
    }
    (hung, Slurmctld::new(&names, jobs))
}

/// The `j`th job, on these nodes.
fn sample_job(site: &Site, j: usize, size: usize, members: &[NodeName]) -> JobRun {
    let none = || Reading::Absent(Absence::NotRecorded);
    let begun = site.beginning();
    let members = &members[..size.min(members.len())];
    let (nodes, list) = (Reading::Measured(members.len() as u32), members.iter().map(|n| n.as_str()));
    let list = Reading::Measured(list.collect::<Vec<_>>().join(","));
    let user = Reading::Measured("ada".to_owned());
    let job = JobId::new(j as u64 + 1).unwrap();
    let details = JobDetails {
        state: JobState::Running,
        start_unix_s: begun.wall.0 / 1000,
        restart: Reading::Measured(0),
        display_id: job.to_string(),
        name: none(),
        user: user.clone(),
        account: none(),
        partition: none(),
        qos: none(),
        nodes,
        node_list: list.clone(),
        shares: Reading::Measured(false),
        near: NearDeed { suspended_unix_s: Reading::Measured(0), ..NearDeed::absent(Absence::NoData) },
    };
    let registration = Registration {
        cluster: none(),
        job,
        restart: 0,
        sluid: none(),
        start: JobStart { boot: begun.boot, wall: begun.wall, source: StartSource::Slurm },
        user,
        uid: Reading::Measured(1001),
        account: none(),
        partition: none(),
        qos: none(),
        nodes,
        node_list: list,
        het_leader: None,
        limit_end: Reading::Absent(Absence::NotRecorded),
        gpus: vec![GpuClaim::Index(GresIndex(0))],
        by: RegisteredBy::Prolog,
    };
    JobRun {
        id: JobRunId(1),
        registration,
        registered: begun.boot,
        details: Some(details),
        first_activity: Some(begun.boot),
        last_activity: Some(begun.boot),
    }
}

/// A healthy node's run asks nothing: the rules call its job alive, and want to know nothing of Slurm.
pub fn healthy_asks_nothing() -> bool {
    let site = Site::new("");
    let job = JobRun { details: None, ..sample_job(&site, 0, 1, &names(1)) };
    let assessment = finding::judged(97, &job, &site.config.rules, &site.moment(0));
    assessment.judgement.word() == "alive" && !assessment.wants_details && !assessment.wants_witness
}

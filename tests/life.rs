//! Job lives that no scenario can tell: another boot, clocks that step, two nodes on one host, processes that are
//! not where a registration expects them. The real Prolog, run and explanation, with eyes that see what a test says.

use gpu_reaper_hc::config::{self, Config};
use gpu_reaper_hc::explain::{self, Answer, Asked};
use gpu_reaper_hc::host::kernel_log::{Heard, Xid};
use gpu_reaper_hc::ledger::Ledger;
use gpu_reaper_hc::model::*;
use gpu_reaper_hc::place::Place;
use gpu_reaper_hc::policy::Judgement;
use gpu_reaper_hc::prolog;
use gpu_reaper_hc::reading::{Absence, Reading};
use gpu_reaper_hc::run::eyes::{Eyes, Resident};
use gpu_reaper_hc::run::{self, Ended, Setting};
use gpu_reaper_hc::slurm::{Site, Slurm};
use gpu_reaper_hc::units::*;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const EVERY_MS: i64 = 30_000;
const DAY_MS: i64 = 86_400_000;

/// GPUs that hold memory and a process each, and do nothing.
struct Seen {
    /// Whose the process on each GPU is.
    whose: Vec<Whose>,
    /// What one reading of the kernel's log brings.
    heard: Option<Heard>,
}

fn address(index: u32) -> PciAddress {
    PciAddress::parse(&format!("0000:{:x}:00", 0x1a + index)).unwrap()
}

fn card(index: u32) -> UnitSample {
    let percent = || Reading::Measured(Percent::new(0).unwrap());
    let peak = Peak { percent: Percent::new(0).unwrap(), covered_ms: 30_000 };
    let memory =
        Memory { used: MemoryBytes(60 << 30), total: MemoryBytes(80 << 30), excludes_reserved: true };
    UnitSample {
        identity: UnitIdentity {
            uuid: Reading::Measured(UnitUuid::new(&format!("GPU-{index}")).unwrap()),
            kind: UnitKind::Gpu,
            index: NvmlIndex(index),
            minor: Reading::Measured(DeviceMinor(index)),
            pci: Reading::Measured(address(index)),
            name: Reading::Measured("H100".to_owned()),
        },
        readings: Readings {
            sm_util: percent(),
            mem_util: percent(),
            sm_peak: Reading::Measured(peak),
            mem_peak: Reading::Measured(peak),
            memory: Reading::Measured(memory),
            power: Reading::Measured(Milliwatts(118_000)),
            power_limit: Reading::Measured(Milliwatts(700_000)),
            processes: Reading::Measured(vec![GpuProcess {
                pid: 100 + index,
                kind: ProcessKind::Compute,
                memory: Reading::Measured(MemoryBytes(60 << 30)),
            }]),
            ..Readings::absent(Absence::NotSupported)
        },
    }
}

impl Eyes for Seen {
    fn start(&mut self, _states: bool) {}

    fn know(&mut self, _now: &Now, _jobs: &[JobRun]) {}

    fn gpus(&mut self) -> Reading<GpuReport> {
        let units = (0..self.whose.len() as u32).map(card).collect();
        Reading::Measured(GpuReport { driver: Reading::Measured("580.95.05".to_owned()), units })
    }

    fn jobs_here(&mut self) -> Reading<Vec<JobId>> {
        Reading::Measured(Vec::new())
    }

    fn resident(&mut self, pid: u32) -> Resident {
        let whose = self.whose[pid as usize - 100];
        Resident { start_ticks: Reading::Measured(1), whose: Reading::Measured(whose) }
    }

    fn job(&mut self, _job: &JobRun, _pids: &[u32]) -> JobSample {
        let quiet = Reading::Measured(1000);
        JobSample {
            frozen: Reading::Measured(false),
            cpu_ms: quiet,
            written_bytes: quiet,
            read_bytes: quiet,
            working_set_bytes: quiet,
            holders: Reading::Absent(Absence::NotAsked),
        }
    }

    fn holders(&mut self, _: &[DeviceMinor], _: Option<&JobRun>) -> Reading<Vec<(DeviceMinor, u32)>> {
        Reading::Measured(Vec::new())
    }

    fn kernel_log(&mut self, _since: Option<u64>) -> Reading<Heard> {
        self.heard.clone().map_or(Reading::Absent(Absence::NotSupported), Reading::Measured)
    }
}

/// A node whose clocks a test sets. Slurm answers nothing.
struct Node {
    folder: tempfile::TempDir,
    config: Config,
    place: Place,
    slurm: Slurm,
    now: Now,
    heard: Option<Heard>,
}

fn node() -> Node {
    beside(tempfile::tempdir().unwrap(), "n1")
}

/// The node of this name, in a folder that others may share.
fn beside(folder: tempfile::TempDir, name: &str) -> Node {
    let at = |sub: &str| folder.path().join(sub);
    std::fs::write(at("gres.conf"), "AutoDetect=off\nName=gpu File=/dev/nvidia[0-1]\n").unwrap();
    let yaml = format!(
        "state_dir: {}\ngpu: {{ source: simulator }}\nthresholds: {{ window: 10m, warmup: 2m, \
         first_activity_grace: 2m }}\nstages: [{{ after: 0m, verdict: alert }}]\n",
        at("state").display()
    );
    let config = config::parse(&yaml, "test").unwrap_or_else(|e| panic!("{e:?}"));
    let name = NodeName::new(name).unwrap();
    let site = Site {
        bin_dir: Some(at("nothing")),
        conf: Some(at("slurm.conf")),
        path: None,
        limit: Duration::from_secs(1),
    };
    Node {
        place: Place::new(&config.state_dir, name.clone()),
        slurm: Slurm::new(name, site),
        now: Now { boot_id: "one".into(), boot: BootMs(10 * DAY_MS), wall: WallMs(20_000 * DAY_MS) },
        folder,
        config,
        heard: None,
    }
}

impl Node {
    fn prolog(&self, job: u64, gpus: &str) {
        let start_s = (self.now.wall.0 / 1000).to_string();
        let env = BTreeMap::from([
            ("SLURM_JOB_ID", job.to_string()),
            ("SLURM_JOB_NUM_NODES", "1".to_owned()),
            ("SLURM_JOB_START_TIME", start_s),
            ("SLURM_JOB_GPUS", gpus.to_owned()),
        ]);
        let opening = run::opening(&self.config, Duration::from_secs(1));
        prolog::run(&self.place, opening, &self.now, &|name| env.get(name).cloned()).unwrap();
    }

    /// So many runs, half a minute apart, the first one half a minute from now. The last one's summary.
    fn runs(&mut self, count: u32, whose: &[Whose]) -> String {
        let mut summary = String::new();
        for _ in 0..count {
            self.now.boot.0 += EVERY_MS;
            self.now.wall.0 += EVERY_MS;
            let setting = Setting {
                config: &self.config,
                place: &self.place,
                now: &self.now,
                slurm: &self.slurm,
                slurmd_is_younger: &|_| false,
                interval_ms: None,
                until: Instant::now() + Duration::from_secs(45),
            };
            summary = match run::run(&setting, &mut Seen { whose: whose.to_vec(), heard: self.heard.clone() })
                .unwrap()
            {
                Ended::Ran(line) => line,
                Ended::Overlapped => panic!("no other run is there"),
            };
        }
        summary
    }

    fn ledger(&self) -> Ledger {
        let opening = run::opening(&self.config, Duration::from_secs(1));
        Ledger::open(&self.place.dir, &self.place.node, &self.now, opening).unwrap()
    }

    fn explain(&self, id: &str) -> Answer {
        let (config, place, now, slurm) = (&self.config, &self.place, &self.now, &self.slurm);
        explain::explain(&Asked { config, place, now, slurm }, &self.ledger(), id).unwrap()
    }

    /// For how long a job's finding stands, in minutes; `None` where it is not judged.
    fn breaching_min(&self, job: u64) -> Option<i64> {
        match self.explain(&job.to_string()) {
            Answer::Told(told) => match &told.assessment.judgement {
                Judgement::Breaching(finding) => Some(self.now.boot.since_ms(finding.since) / 60_000),
                _ => None,
            },
            other => panic!("{other:?}"),
        }
    }

    fn not_judged_for(&self, job: u64) -> String {
        match self.explain(&job.to_string()) {
            Answer::Told(told) => match &told.assessment.judgement {
                Judgement::Unjudged { because, .. } | Judgement::Spared { because, .. } => because.clone(),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }
}

fn of(job: u64) -> Whose {
    Whose::Job(JobId::new(job).unwrap())
}

#[test]
fn two_jobs_beside_each_other_are_each_judged_on_their_own_gpus() {
    // nebius/soperator#2923 (SH-06): a join by node gives each job the other's load.
    let mut node = node();
    node.prolog(50, "0");
    node.runs(14, &[of(50), Whose::Outside]);
    node.prolog(60, "1");
    node.runs(14, &[of(50), of(60)]);
    assert_eq!(node.breaching_min(50), Some(12), "since its warm-up");
    assert_eq!(node.breaching_min(60), None, "its window is its own");
    node.runs(14, &[of(50), of(60)]);
    assert_eq!(node.breaching_min(60), Some(12));
}

#[test]
fn a_container_on_a_jobs_gpu_is_the_jobs_and_another_jobs_process_makes_it_uncertain() {
    // NVIDIA/nvidia-docker#1227, nebius/soperator#563 (CG-04).
    let mut node = node();
    node.prolog(50, "0,1");
    node.runs(28, &[of(50), Whose::Outside]);
    assert_eq!(node.breaching_min(50), Some(12), "weakly attributed, it counts as a process of the job");
    let summary = node.runs(1, &[of(50), of(77)]);
    assert!(summary.contains("50 not judged (attribution)"), "{summary}");
}

#[test]
fn an_array_task_answers_to_both_of_its_ids() {
    // PrincetonUniversity/jobstats#23, reframe-hpc/reframe#3737 (JL-04): people copy what squeue shows.
    let mut node = node();
    node.prolog(130, "0,1");
    node.runs(2, &[of(130), of(130)]);
    let told = |id: &str| match node.explain(id) {
        Answer::Told(told) => Some(told.history.job),
        _ => None,
    };
    let by_raw_id = told("130").expect("registered");
    assert!(told("123_4").is_none(), "nobody has said so yet");
    node.ledger().set_details(by_raw_id.id, &shown(&by_raw_id, "123_4")).unwrap();
    assert_eq!(told("123_4").map(|job| job.id), Some(by_raw_id.id));
    assert_eq!(told("130").map(|job| job.shown_id()).as_deref(), Some("123_4"));
}

/// What Slurm says of a job that it shows so.
fn shown(job: &JobRun, display_id: &str) -> JobDetails {
    let r = &job.registration;
    JobDetails {
        state: JobState::Running,
        start_unix_s: r.start.wall.0 / 1000,
        restart: Reading::Measured(0),
        display_id: display_id.to_owned(),
        name: Reading::Absent(Absence::NotRecorded),
        user: r.user.clone(),
        account: r.account.clone(),
        partition: r.partition.clone(),
        qos: r.qos.clone(),
        nodes: r.nodes,
        node_list: r.node_list.clone(),
        shares: Reading::Absent(Absence::NotAsked),
        near: NearDeed::absent(Absence::NotAsked),
    }
}

#[test]
fn registrations_of_a_boot_that_a_crash_ended_claim_nothing() {
    // nebius/soperator#1316 (JL-11): power loss, no Epilog, and another job on the same GPUs.
    let mut node = node();
    node.prolog(50, "0,1");
    node.runs(28, &[of(50), of(50)]);
    assert!(node.breaching_min(50).is_some());
    let last_seen = node.now.wall;
    node.now = Now { boot_id: "two".into(), boot: BootMs(60_000), wall: WallMs(node.now.wall.0 + 300_000) };
    node.prolog(60, "0,1");
    node.runs(10, &[of(60), of(60)]);
    assert_eq!(node.breaching_min(60), None, "nothing from before the boot is in its window");
    // What was found of it is kept as of any run that ended: at its last sample, not now.
    let Answer::Ended { when, case: Some(case), .. } = node.explain("50") else { panic!("void") };
    assert!(when.starts_with("ended ") && case.created == last_seen, "{when} {case:?}");
    assert!(case.body.contains("the node booted") && case.body.contains("GPU-hours"), "{}", case.body);
    assert!(!case.body.contains("to spare") && !case.body.contains("next      "), "{}", case.body);
    node.runs(18, &[of(60), of(60)]);
    assert_eq!(node.breaching_min(60), Some(12), "the only holder of its GPUs");
}

#[test]
fn what_a_page_says_of_a_finding_does_not_move_with_the_moment_at_which_it_is_asked() {
    let mut node = node();
    node.config.rules.stages = config::defaults().rules.stages;
    node.prolog(50, "0,1");
    node.runs(30, &[of(50), of(50)]);
    let says = |node: &Node| explain::json::answer(&node.explain("50"), "50");
    let first = says(&node);
    node.now =
        Now { boot: BootMs(node.now.boot.0 + 20_000), wall: WallMs(node.now.wall.0 + 20_000), ..node.now };
    let later = says(&node);
    for field in ["since", "established", "wasted_gpu_hours"] {
        assert!(first[field].is_string() || first[field].is_number(), "{field}: {first}");
        assert_eq!(first[field], later[field], "{field}");
    }
    assert_eq!(first["findings"][0]["established"], first["established"], "as the ledger has it");
    let in_s = |page: &serde_json::Value| page["next"]["in_s"].as_i64().unwrap();
    assert_eq!(in_s(&first) - in_s(&later), 20, "the moment of the next stage stays");
    assert_eq!(first["next"]["withheld_by"], "mode is observe");
    let narrow = "mode: enforce\nenforce_in: { partitions: [other] }\n\
                  thresholds: { window: 10m, warmup: 2m, first_activity_grace: 2m }\n";
    let narrow = config::parse(narrow, "test").unwrap_or_else(|e| panic!("{e:?}"));
    let observing = std::mem::replace(&mut node.config, narrow);
    let withheld = says(&node)["next"]["withheld_by"].as_str().map(str::to_owned);
    assert!(withheld.as_ref().is_some_and(|why| why.contains("enforce_in.partitions")), "{withheld:?}");
    node.config = observing;
    // Once it is over the page still tells of it.
    node.now = Now {
        boot: BootMs(node.now.boot.0 + 3_600_000),
        wall: WallMs(node.now.wall.0 + 3_600_000),
        ..node.now
    };
    node.runs(2, &[of(50), of(50)]);
    let Answer::Told(told) = node.explain("50") else { panic!("registered") };
    let page = explain::text::page(&told, &gpu_reaper_hc::screen::Screen::UNBROKEN);
    let line = page.lines().find(|line| line.starts_with("earlier ")).unwrap_or_else(|| panic!("{page}"));
    assert!(line.contains("hung, ") && line.contains(", ended: samples were missing"), "{line}");
}

#[test]
fn a_clock_that_steps_changes_neither_ages_nor_windows() {
    // prometheus/blackbox_exporter#38 (CK-01), rdkcentral/rdkservices#3918 (CK-02), eomnl/sas-jobmon#6 (CK-03).
    for step_ms in [3 * 3_600_000, -7 * 3_600_000, -20_000 * DAY_MS] {
        let mut node = node();
        node.prolog(50, "0,1");
        node.runs(2, &[of(50), of(50)]);
        node.now.wall.0 += step_ms;
        node.runs(1, &[of(50), of(50)]);
        let because = node.not_judged_for(50);
        assert!(because.contains("warm-up"), "{step_ms}: one minute and a half old: {because}");
        node.runs(25, &[of(50), of(50)]);
        assert_eq!(node.breaching_min(50), Some(12), "{step_ms}");
        node.now.wall.0 -= 2 * step_ms;
        node.runs(10, &[of(50), of(50)]);
        assert_eq!(node.breaching_min(50), Some(17), "{step_ms}: it goes on");
    }
}

#[test]
fn two_nodes_of_one_host_know_nothing_of_each_others_jobs() {
    let one = node();
    let folder = tempfile::tempdir_in(one.folder.path()).unwrap();
    let mut other = beside(folder, "n2");
    other.place = Place::new(one.place.dir.parent().unwrap(), other.place.node.clone());
    let mut one = one;
    one.prolog(50, "0,1");
    other.prolog(60, "0,1");
    one.runs(28, &[of(50), of(50)]);
    other.runs(28, &[of(60), of(60)]);
    assert_eq!((one.breaching_min(50), other.breaching_min(60)), (Some(12), Some(12)));
    assert!(matches!(other.explain("50"), Answer::OtherNode(node) if node == "n1"));
}

#[test]
fn the_explanation_doubts_what_the_run_doubted() {
    // guilbaults/slurm-job-exporter#63 (ID-02): two jobs swapped; only a run sees whose processes are where.
    let mut node = node();
    node.prolog(50, "0");
    node.prolog(60, "1");
    let summary = node.runs(28, &[of(60), of(50)]);
    assert!(summary.contains("50 not judged (attribution)"), "{summary}");
    assert!(node.not_judged_for(50).contains("not known for certain"), "{}", node.not_judged_for(50));
    node.runs(28, &[of(50), of(60)]);
    assert!(node.breaching_min(50).is_some(), "the processes are where they belong");
}

#[test]
fn what_the_kernels_log_held_before_the_ledger_began_is_no_news_however_long_it_takes_to_read() {
    // A slow machine reads a long log in pieces: the second piece is as old as the first.
    let xid = |seq| Xid {
        seq,
        at: BootMs(DAY_MS),
        by_kernel: true,
        gpu: address(0),
        instance: None,
        number: Some(79),
        pid: None,
        name: None,
    };
    let piece =
        |seq, to_end| Some(Heard { xids: vec![xid(seq)], older: vec![], next: seq + 1, lost: 0, to_end });
    let mut node = node();
    for (seq, to_end) in [(10, false), (20, false), (30, true)] {
        node.heard = piece(seq, to_end);
        node.runs(8, &[Whose::Outside; 2]);
        let told = node.ledger().open_faults().unwrap().into_iter().filter(|f| f.kind == "xid");
        assert_eq!(told.count(), 0, "record {seq}");
    }
    node.heard = piece(40, true);
    node.runs(8, &[Whose::Outside; 2]);
    let told = node.ledger().open_faults().unwrap();
    assert!(
        told.iter().any(|fault| fault.detail.contains("record 40 of this boot's kernel log")),
        "{told:?}"
    );
}

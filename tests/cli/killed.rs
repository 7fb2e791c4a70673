//! The program killed at every touch of the world outside: before each change under its state folder and before each
//! command of Slurm's, in every run that does something, from the alert to the release. Whatever the moment, what
//! comes after is the same story: each deed once, each rung in a run of its own, the ledger whole.
//!
//! `tests/kill-shim/kill_at.c` counts and kills. It sets the clocks too: nobody waits.

use crate::slurm::{Cluster, quiet};
use crate::*;
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;

const MINUTES: &str = "
mode: enforce
gpu: { library: LIBRARY }
slurm: { COMMANDS }
thresholds: { window: 2m50s, warmup: 0s, first_activity_grace: 0s, min_samples: 3, max_sample_gap: 1m15s }
stages: [{ after: 0s, verdict: alert }, { after: 0s, verdict: drain }, { after: 0s, verdict: cancel }]
limits: { spread: 0s, max_drained_fraction: 1.0, max_actions_per_hour: 100 }
";

/// Between two runs. No limit is a multiple of it: a run comes some milliseconds sooner or later.
const INTERVAL_MS: i64 = 30_000;
/// Later than anything that is there.
const TOMORROW_MS: i64 = 86_400_000;

/// Far more than the story takes, killed once or not.
const MOST_RUNS: u64 = 40;

/// So many stories are played side by side.
const STAGES: usize = 4;

/// A node with a job that hangs.
struct Stage {
    cluster: Cluster,
    /// So many so far.
    runs: u64,
    began: Instant,
}

impl Stage {
    fn set() -> Stage {
        let stage = Stage { cluster: Cluster::new(MINUTES), runs: 0, began: Instant::now() };
        stage.cluster.job(4242, "4242", "train");
        assert_eq!(stage.cluster.prolog(4242, &[]).err, "");
        stage
    }

    /// However long it took in truth, the runs are an interval apart.
    fn in_time(&self, mut command: Command) -> Command {
        let later_ms = TOMORROW_MS + INTERVAL_MS * self.runs as i64 - self.began.elapsed().as_millis() as i64;
        command.env("LD_PRELOAD", kill_shim::built()).env("KILL_LATER_MS", later_ms.to_string());
        command
    }

    /// The next run, killed before this touch of it, from 1. Gives the touches that it made; `None`: it was killed.
    fn run(&mut self, kill: Option<usize>) -> Option<String> {
        self.runs += 1;
        self.slurm_goes_on();
        let calls = self.cluster.read("calls") + &format!("run {}\n", self.runs);
        self.cluster.write("calls", &calls);
        let (mut command, log) =
            (self.in_time(self.cluster.node.command(&[])), self.cluster.node.path("touches"));
        command.env("KILL_UNDER", self.cluster.node.state_dir()).env("KILL_LOG", &log);
        command.env("KILL_AT", kill.unwrap_or(0).to_string());
        let output = command.output().expect("the program starts");
        let touches = fs::read_to_string(log).expect("the touches");
        match output.status.signal() {
            Some(libc::SIGKILL) if kill.is_some() => None,
            _ => {
                assert_eq!(output.status.code(), Some(0), "{output:?}");
                Some(touches)
            }
        }
    }

    /// What a cluster does by itself between two runs: the Epilog of a job that was cancelled, after which its GPUs
    /// are free and the node has no job.
    fn slurm_goes_on(&self) {
        if self.cluster.read("jobs/4242.state") != "COMPLETING" {
            return;
        }
        let mut epilog = self.in_time(self.cluster.node.hook_command("epilog", "4242"));
        assert_eq!(said(epilog.env("SLURM_JOB_GPUS", "0")).status, Some(0));
        self.cluster.write("jobs/4242.state", "COMPLETED");
        self.cluster.write("node.state", &self.cluster.read("node.state").replace("allocated", "idle"));
        self.show_gpus();
    }

    /// Held by the job's process until it has gone.
    fn show_gpus(&self) {
        let held = self.cluster.read("jobs/4242.state") == "RUNNING";
        let lines: Vec<_> =
            quiet().lines().filter(|line| held || !line.contains("proc ")).map(str::to_owned).collect();
        self.cluster.show(&lines.join("\n"));
    }

    fn explained(&self) -> String {
        said(&mut self.in_time(self.cluster.node.command(&["--explain", "4242"]))).out
    }

    /// Runs to the end of the story.
    fn play_on(&mut self, killed: &str) {
        while !self.over() {
            assert!(
                self.runs < MOST_RUNS,
                "no end, {killed}: {} {}",
                self.cluster.read("calls"),
                self.explained()
            );
            self.run(None);
        }
        self.all_is_well(killed);
    }

    /// The job was cancelled, and the node is back.
    fn over(&self) -> bool {
        self.cluster.read("jobs/4242.state") == "COMPLETED"
            && !self.cluster.read("node.state").contains("drain")
    }

    /// Runs in which Slurm was told something that begins so.
    fn told(&self, words: &str) -> Vec<u64> {
        let (mut run, mut told) = (0, Vec::new());
        for call in self.cluster.calls() {
            match call.strip_prefix("run ") {
                Some(number) => run = number.parse().expect("a number"),
                None if call.starts_with(words) => told.push(run),
                None => {}
            }
        }
        told
    }

    /// The runs of deeds that did not fail, by the ledger.
    fn done(&self, verdict: &str) -> Vec<i64> {
        let ledger = rusqlite::Connection::open(self.cluster.node.state().join("ledger.db")).unwrap();
        let sql = "SELECT run FROM action WHERE verdict = ?1 AND outcome <> 'failed' ORDER BY id";
        let mut rows = ledger.prepare(sql).unwrap();
        rows.query_map([verdict], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    fn all_is_well(&self, killed: &str) {
        let story = || format!("{killed}: {}", self.cluster.read("calls"));
        let [drain, cancel, release] = [
            "scontrol update NodeName=n1 State=DRAIN",
            "scancel",
            "scontrol update NodeName=n1 State=UNDRAIN",
        ]
        .map(|words| self.told(words));
        for once in [&drain, &cancel, &release] {
            assert_eq!(once.len(), 1, "told once, {}", story());
        }
        assert!(drain[0] < cancel[0] && cancel[0] < release[0], "{}", story());
        let rungs = ["alert", "drain", "cancel"].map(|verdict| self.done(verdict));
        assert!(!rungs[0].is_empty() && rungs[1].len() == 1 && rungs[2].len() == 1, "{rungs:?} {}", story());
        assert!(rungs[0][0] < rungs[1][0] && rungs[1][0] < rungs[2][0], "{rungs:?} {}", story());
        assert_eq!(self.cluster.node.ledger("PRAGMA integrity_check"), "ok", "{}", story());
        let unsettled =
            "SELECT count(*) FROM action WHERE outcome IN ('begun', 'unknown') AND verdict = 'drain'";
        assert_eq!(self.cluster.node.ledger(unsettled), "0", "{}", story());
        // Set aside as damaged, it would have begun anew.
        assert_eq!(self.cluster.node.ledger("SELECT count(*) FROM job_run"), "1", "{}", story());
    }

    /// All that a run can read, to be taken back to.
    fn keep(&self, as_name: &str) -> Kept {
        let kept = self.cluster.node.path(as_name);
        fs::create_dir(&kept).unwrap();
        copy(&[self.cluster.node.state_dir(), self.cluster.node.path("cluster")], &kept);
        Kept { folder: kept, runs: self.runs }
    }

    fn back_to(&mut self, kept: &Kept) {
        for name in ["state", "cluster"] {
            fs::remove_dir_all(self.cluster.node.path(name)).unwrap();
            copy(&[kept.folder.join(name)], &self.cluster.node.path(""));
        }
        self.show_gpus();
        self.runs = kept.runs;
    }
}

/// How things stood before a run.
struct Kept {
    folder: PathBuf,
    runs: u64,
}

fn copy(from: &[PathBuf], to: &Path) {
    assert!(Command::new("cp").arg("-a").args(from).arg(to).status().unwrap().success());
}

/// The touches to be killed before: in the first scene each of them; in others, of many writes in a row, all of which
/// are undone or none, the first and the last.
fn moments(touches: &str, first: bool) -> Vec<(usize, char)> {
    let kinds: Vec<char> = touches.chars().collect();
    let inside = |n: usize| kinds[n] == 'w' && n > 0 && kinds[n - 1] == 'w' && kinds.get(n + 1) == Some(&'w');
    let chosen = |n: &usize| first || !inside(*n);
    (0..kinds.len()).filter(chosen).map(|n| (n + 1, kinds[n])).collect()
}

/// Plays the story once undisturbed, then again for each moment of each run that asks Slurm or acts, as far as it is
/// this stage's turn. Gives the kinds of touches before which it was killed.
fn play(turn: usize) -> (usize, BTreeSet<char>) {
    let mut stage = Stage::set();
    let mut scenes = Vec::new();
    while !stage.over() {
        assert!(stage.runs < MOST_RUNS, "no end: {} {}", stage.cluster.read("calls"), stage.explained());
        let before = stage.keep(&format!("before-{}", stage.runs + 1));
        let actions = stage.done("alert");
        let touches = stage.run(None).expect("nobody kills it");
        if touches.contains('x') || stage.done("alert") != actions {
            scenes.push((before, touches));
        }
    }
    stage.all_is_well("no kill");
    let (mut kills, mut kinds) = (0, BTreeSet::new());
    for (scene, (before, touches)) in scenes.iter().enumerate() {
        let chosen = moments(touches, scene == 0).into_iter();
        for (touch, kind) in chosen.skip(turn).step_by(STAGES) {
            let story = format!("run {} killed before touch {touch} of {touches}", before.runs + 1);
            stage.back_to(before);
            assert_eq!(stage.run(Some(touch)), None, "{story}: {}", stage.explained());
            stage.play_on(&story);
            (kills, _) = (kills + 1, kinds.insert(kind));
        }
    }
    (kills, kinds)
}

#[test]
fn killed_at_any_moment_it_does_every_deed_once_and_each_rung_in_a_run_of_its_own() {
    let began = Instant::now();
    let played: Vec<_> = std::thread::scope(|scope| {
        let stages: Vec<_> = (0..STAGES).map(|turn| scope.spawn(move || play(turn))).collect();
        stages.into_iter().map(|stage| stage.join().expect("a story that ends well")).collect()
    });
    let kills: usize = played.iter().map(|(kills, _)| kills).sum();
    let kinds: BTreeSet<char> = played.into_iter().flat_map(|(_, kinds)| kinds).collect();
    println!("{kills} kills, before {kinds:?}, in {:?}", began.elapsed());
    assert!(['w', 's', 't', 'x'].iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
}

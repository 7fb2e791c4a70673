//! Scenario files are the reference of what the tool will and will not do: each is played through the real run,
//! on a simulated clock, with simulated GPUs and stand-ins for Slurm's commands, and compared with what it expects.

pub mod afterwards;
pub mod all;
pub mod faults;
pub mod file;
pub mod kernel_log;
pub mod machine;
pub mod replay;
pub mod stage;
mod table;

pub use table::table;

use crate::explain::{self, Answer};
use crate::model::JobId;
use crate::screen::Screen;
use all::ALL;
use file::{Expect, Scenario};
use serde::Serialize;
use stage::Stage;

/// A scenario by its folder's name, which is its sentence.
pub struct Named {
    /// The folder.
    pub name: &'static str,
    /// The file's text.
    pub text: &'static str,
}

/// What came of one expectation.
#[derive(Debug, Serialize)]
pub struct Verdict {
    /// The scenario.
    pub scenario: String,
    /// The sentence.
    pub about: String,
    /// The job; `None` for a fault of the node.
    pub job: Option<u64>,
    /// The fault of the node that it is about: its kind, and where.
    pub fault: Option<String>,
    /// What was judged in the end, or what became of the fault.
    pub judgement: String,
    /// The signature, for a finding.
    pub signature: Option<String>,
    /// The guard, where one held.
    pub guard: Option<String>,
    /// What was done, in order.
    pub done: Vec<String>,
    /// What was withheld, and why.
    pub withheld: Vec<(String, String)>,
    /// Where this differs from what the scenario expects; empty: as expected.
    pub differs: Vec<String>,
}

/// Plays one scenario to its end.
pub fn play(name: &str, text: &str) -> Result<Vec<Verdict>, String> {
    let scenario = Scenario::parse(text).map_err(|e| format!("scenario `{name}`: {e}"))?;
    let mut stage = Stage::set(&scenario).map_err(|e| format!("scenario `{name}`: {e}"))?;
    for at_ms in scenario.runs() {
        stage.run_at(at_ms).map_err(|e| format!("scenario `{name}` at {at_ms} ms: {e}"))?;
    }
    let jobs = scenario.expect.iter().map(|expect| verdict(name, &scenario, &stage, expect));
    let faults = scenario.faults.iter().map(|expect| faults::verdict(name, &scenario, &stage, expect));
    let mut verdicts = jobs.chain(faults).collect::<Result<Vec<_>, _>>()?;
    if let Some(first) = verdicts.first_mut() {
        first.differs.extend(of_slurm(&scenario, &stage));
    }
    Ok(verdicts)
}

/// What is not as it should be at Slurm's side, whatever the job.
fn of_slurm(scenario: &Scenario, stage: &Stage) -> Vec<String> {
    let mut differs = Vec::new();
    if let (now, Some(theirs)) = stage.reasons()
        && now != theirs
    {
        differs.push(format!("somebody else's reason `{theirs}` became `{now}`"));
    }
    let ran = stage.slurm_commands().len();
    if let Some(wanted) = scenario.slurm_commands.filter(|wanted| *wanted != ran) {
        differs.push(format!("{ran} of Slurm's commands were run, expected {wanted}"));
    }
    differs
}

fn verdict(name: &str, scenario: &Scenario, stage: &Stage, expect: &Expect) -> Result<Verdict, String> {
    let job = JobId::new(expect.job).ok_or("job id 0")?;
    let answer = stage.explain(job)?;
    let told = match &answer {
        Answer::Told(told) => Some(told),
        _ => None,
    };
    let finding = told.and_then(|t| t.finding());
    let mut verdict = Verdict {
        scenario: name.to_owned(),
        about: scenario.about.clone(),
        job: Some(expect.job),
        fault: None,
        judgement: told.map_or("ended", |t| t.judgement_word()).to_owned(),
        signature: finding.map(|f| f.signature.word().to_owned()),
        guard: told.and_then(|t| t.guard()).map(|g| g.word().to_owned()),
        done: stage.done(job)?,
        withheld: told.map_or(Vec::new(), |t| t.withheld_pairs()),
        differs: Vec::new(),
    };
    let text = explain::text::answer(&answer, &job.to_string(), &Screen::UNBROKEN);
    verdict.differs = differences(&verdict, expect, finding.map(|f| f.scope.word()), &text);
    Ok(verdict)
}

fn differences(v: &Verdict, expect: &Expect, scope: Option<&str>, text: &str) -> Vec<String> {
    let mut differs = Vec::new();
    let mut check = |what: &str, found: Option<&str>, wanted: Option<&str>| {
        if wanted.is_some() && found != wanted {
            differs.push(format!(
                "{what} is {}, expected {}",
                found.unwrap_or("none"),
                wanted.unwrap_or("none")
            ));
        }
    };
    check("judgement", Some(&v.judgement), Some(&expect.judgement));
    check("signature", v.signature.as_deref(), expect.signature.as_deref());
    check("guard", v.guard.as_deref(), expect.guard.as_deref());
    check("scope", scope, expect.scope.as_deref());
    if v.done != expect.done {
        differs.push(format!("done is {:?}, expected {:?}", v.done, expect.done));
    }
    for (asked, because) in &expect.withheld {
        if !v.withheld.iter().any(|(a, b)| a == asked && b.contains(because.as_str())) {
            differs.push(format!("{asked} was not withheld because of `{because}`: {:?}", v.withheld));
        }
    }
    for says in expect.says.iter().filter(|s| !text.contains(s.as_str())) {
        differs.push(format!("--explain does not say `{says}`:\n{text}"));
    }
    differs
}

/// Plays all scenarios.
pub fn play_all() -> Result<Vec<Verdict>, String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = ALL.len().div_ceil(threads).max(1);
    let play_share = |share: &'static [Named]| {
        share.iter().map(|named| play(named.name, named.text)).collect::<Result<Vec<_>, _>>()
    };
    let played = std::thread::scope(|scope| {
        let playing: Vec<_> = ALL.chunks(share).map(|s| scope.spawn(move || play_share(s))).collect();
        playing
            .into_iter()
            .map(|p| p.join().unwrap_or_else(|_| Err("a scenario panicked".to_owned())))
            .collect::<Vec<_>>()
    });
    let mut all = Vec::new();
    for share in played {
        all.extend(share?.into_iter().flatten());
    }
    Ok(all)
}

/// All of it for programs.
pub fn json(verdicts: &[Verdict]) -> serde_json::Value {
    serde_json::json!({ "schema": "gpu-reaper-hc/scenarios/1", "verdicts": verdicts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuSource;
    use crate::gpu::bus::LinkWidth;
    use crate::gpu::simulated::Simulated;
    use crate::model::{Field, GpuReport};
    use crate::policy::{self, Judgement};
    use crate::reading::Absence;
    use crate::reading::Reading::{self, Absent, Measured};
    use crate::run::eyes::Eyes;
    use crate::units::{BootMs, PciAddress};

    #[test]
    fn inside_the_horizon_replay_reproduces_every_folded_row() {
        let named = ALL.iter().find(|s| s.name == "observe-never-drains").unwrap();
        let scenario = Scenario::parse(named.text).unwrap();
        let mut stage = Stage::set(&scenario).unwrap();
        let mut compared = 0;
        for at_ms in scenario.runs() {
            stage.run_at(at_ms).unwrap();
            let Answer::Told(told) = stage.explain(JobId::new(4242).unwrap()).unwrap() else { panic!() };
            let thresholds = &crate::config::defaults().rules.thresholds;
            let works = |t: &&crate::model::Tick| t.units.iter().any(|o| policy::is_work(o, thresholds));
            let (job, ticks) = (&told.history.job, &told.history.ticks);
            assert_eq!(job.first_activity, ticks.iter().find(works).map(|t| t.at));
            assert_eq!(job.last_activity, ticks.iter().rev().find(works).map(|t| t.at));
            if let (Judgement::Breaching(found), Some(row)) =
                (&told.assessment.judgement, told.findings.last())
            {
                assert_eq!((row.since, row.certified_ms), (found.since, found.evidence().certified_ms()));
                assert_eq!(row.established.0, Stage::now_at(at_ms).boot.0 - found.established_for_ms);
                compared += 1;
            }
        }
        assert!(compared > 60, "{compared} runs with a finding");
    }

    /// A story of two cards with this beside their usual samples.
    fn story(more: &str) -> Result<Scenario, String> {
        let usual = "samples:\n- { from: -2h, to: 0, every: 1m, util: 90%, power: 600W, memory: 61GiB, processes: 2 }";
        let scenario = Scenario::parse(&format!(
            "about: x\nnode: {{ gpus: 2 }}\njobs: [{{ id: 7, started: -2h, gpus: [0] }}]\nexpect: []\n{usual}\n{more}\n"
        ))?;
        scenario.timeline().map(|_| scenario)
    }

    fn seen(scenario: &Scenario, at_ms: i64) -> Reading<GpuReport> {
        Simulated { timeline: &scenario.timeline().unwrap(), at_ms }.read()
    }

    #[test]
    fn a_story_says_every_field_of_a_card_by_its_word_from_one_instant_to_another() {
        let words: Vec<String> = (5..).zip(Field::ALL).map(|(n, f)| format!("{}: {n}", f.word())).collect();
        let told = format!("- {{ from: -1h, to: -30m, gpus: [1], fields: {{ {} }} }}", words.join(", "));
        let scenario = story(&told).unwrap();
        let fields = |at_ms: i64, gpu: usize| {
            let report = seen(&scenario, at_ms).measured().unwrap().clone();
            Field::ALL.iter().map(|f| report.units[gpu].readings.fields.get(*f)).collect::<Vec<_>>()
        };
        let minute = 60_000;
        let all: Vec<_> = (5..).zip(Field::ALL).map(|(n, _)| Measured(n)).collect();
        assert_eq!(fields(-40 * minute, 1), all);
        for (at_ms, gpu) in [(-40 * minute, 0), (-61 * minute, 1), (-29 * minute, 1)] {
            let usual = fields(at_ms, gpu);
            assert_eq!(usual[0], Measured(0), "the driver wants nothing");
            assert!(usual[1..].iter().all(|value| *value == Absent(Absence::NotSupported)));
        }
        let some =
            "- { from: 0, to: 0, recovery_action: 2, fields: { fabric_state: not_asked, remap_pending: 1 } }";
        let report = seen(&story(some).unwrap(), 0).measured().unwrap().clone();
        let get = |field| report.units[0].readings.fields.get(field);
        let [action, state, pending] =
            [Field::RecoveryAction, Field::FabricState, Field::RemapPending].map(get);
        assert_eq!((action, state, pending), (Measured(2), Absent(Absence::NotAsked), Measured(1)));
        for odd in
            ["fields: { remapped: 1 }", "fields: { remap_pending: broken }", "fields: { remap_pending: -1 }"]
        {
            assert!(story(&format!("- {{ from: 0, to: 0, {odd} }}")).is_err(), "{odd}");
        }
    }

    #[test]
    fn in_a_story_a_driver_may_be_gone_and_a_card_lost_for_any_reason() {
        for why in Absence::ALL {
            let scenario = story(&format!("- {{ from: -1h, to: 0, outage: {} }}", why.key())).unwrap();
            assert_eq!(seen(&scenario, 0), Absent(*why));
            assert!(seen(&scenario, -3_700_000).measured().is_some());
            let lost = story(&format!("- {{ from: -1h, to: 0, gpus: [1], lost: {} }}", why.key())).unwrap();
            let units = seen(&lost, 0).measured().unwrap().units.clone();
            assert!(units[0].identity.uuid.measured().is_some());
            assert_eq!(units[1].identity.uuid.as_ref().map(drop), Absent(*why));
        }
        let plainly = story("- { from: 0, to: 0, gpus: [1], lost: true }").unwrap();
        let units = seen(&plainly, 0).measured().unwrap().units.clone();
        assert_eq!(units[1].readings.power, Absent(Absence::GpuLost));
        assert!(story("- { from: 0, to: 0, lost: broken }").is_err());
        assert!(story("- { from: 0, to: 0, outage: broken }").is_err());
    }

    /// What the eyes of a run with `gpu.source: simulator` see at the end of a story.
    fn eyes(more: &str) -> replay::Replay {
        story(more).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("story.yaml");
        let usual = "samples:\n- { from: -2h, to: 0, every: 1m }";
        let text = format!("about: x\nnode: {{ gpus: 2 }}\njobs: []\nexpect: []\n{usual}\n{more}\n");
        std::fs::write(&file, text).unwrap();
        let mut eyes = replay::Replay::open(Some(&file)).unwrap();
        eyes.know(&Stage::now_at(0), &[]);
        eyes
    }

    #[test]
    fn a_storys_cards_have_links_of_some_width() {
        let width = |more: &str, place: &str| eyes(more).link_width(&PciAddress::parse(place).unwrap());
        let told = "- { from: -1h, to: 0, gpus: [1], link_width: 8/16 }";
        assert_eq!(width(told, "0000:1b:00.0"), Measured(LinkWidth { current: 8, max: 16 }));
        assert_eq!(width(told, "0000:1a:00.0"), Absent(Absence::NotSupported));
        assert_eq!(width(told, "0000:5a:00.0"), Absent(Absence::NoData), "no card of the story's");
        let gone = "- { from: -1h, to: 0, gpus: [1], absent: { link_width: no_data } }";
        assert_eq!(width(gone, "0000:1b:00.0"), Absent(Absence::NoData));
        for odd in ["8", "8/", "a/16", "8/16/32"] {
            assert!(story(&format!("- {{ from: 0, to: 0, link_width: {odd} }}")).is_err(), "{odd}");
        }
    }

    const LOG: &str = "kernel_log:
- { at: -90m, says: 'NVRM: Xid (PCI:0000:1a:00): 31, pid=9, name=x, Ch 1' }
- { at: -80m, says: 'NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.' }
- { at: -70m, says: 'NVRM: Xid (PCI:0000:1a:00): 79', by_process: true }
- { at: -60m, says: Linux, overwrites: true }
- { at: -50m, says: \"NVRM: The NVIDIA GPU 0000:1b:00.0\\nNVRM: (PCI ID: 1) in this\\nNVRM: fallen off the bus\" }";

    #[test]
    fn a_storys_kernel_log_is_read_on_from_a_record_and_may_lose_some() {
        let scenario =
            story(&format!("- {{ from: -5m, to: 0, absent: {{ kernel_log: no_permission }} }}\n{LOG}"));
        let scenario = scenario.unwrap();
        let at = |minutes: i64, since| {
            let heard = scenario.kernel_log(-60_000 * minutes, since, |at_ms| Stage::now_at(at_ms).boot);
            let heard = heard.measured().unwrap().clone();
            let numbers = heard.xids.iter().map(|x| (x.seq, x.number)).collect::<Vec<_>>();
            (numbers, heard.next, heard.lost)
        };
        assert_eq!(at(100, None), (vec![], 0, 0));
        assert_eq!(at(75, None), (vec![(1, Some(31)), (2, None)], 3, 0));
        assert_eq!(at(65, Some(3)), (vec![(3, Some(79))], 4, 0));
        assert_eq!(at(55, Some(3)), (vec![], 5, 1), "nobody read it in time");
        assert_eq!(at(40, Some(2)), (vec![(5, None)], 6, 2));
        assert_eq!(at(40, Some(6)), (vec![], 6, 0));
        let now = scenario.kernel_log(0, None, |at_ms| Stage::now_at(at_ms).boot);
        assert_eq!(now, Absent(Absence::NoPermission));
        let heard = scenario.kernel_log(-4_200_000, None, |at_ms| Stage::now_at(at_ms).boot);
        let heard = heard.measured().unwrap().clone();
        assert_eq!(heard.xids[0].at, Stage::now_at(-5_400_000).boot);
        assert_eq!(heard.xids.iter().map(|x| x.by_kernel).collect::<Vec<_>>(), [true, true, false]);
        assert!(story("- { from: 0, to: 0, absent: { kernel_log: broken } }").is_err());
        assert!(story("kernel_log: [{ at: 0, say: x }]").is_err());
    }

    #[test]
    fn the_eyes_of_a_simulated_run_hear_the_storys_log() {
        assert_eq!(eyes("").kernel_log(None), Absent(Absence::NotSupported), "a story that has none");
        let mut eyes = eyes(LOG);
        let heard = eyes.kernel_log(Some(5)).measured().unwrap().clone();
        assert_eq!((heard.xids.len(), heard.next, heard.lost), (1, 6, 0));
        assert_eq!(heard.xids[0].at, BootMs(Stage::now_at(0).boot.0 - 3_000_000));
        assert_eq!(eyes.kernel_log(Some(6)).measured().unwrap().xids, []);
    }

    #[test]
    fn an_xid_of_a_story_is_told_to_the_job_that_holds_the_card() {
        // kubernetes-sigs/dra-driver-nvidia-gpu#689 (FT-04)
        let says = "NVRM: Xid (PCI:0000:1a:00): 31, pid=9, name=python, Ch 1";
        let text = format!(
            "about: x
jobs: [{{ id: 7, started: -40m, gpus: [0] }}, {{ id: 8, started: -40m, gpus: [1] }}]
samples: [{{ from: -40m, to: 0, every: 1m, util: 90%, memctl: 40%, memory: 61GiB, processes: 8, power: 600W }}]
kernel_log: [{{ at: -30m, says: '{says}' }}]
expect: [{{ job: 7, judgement: alive, says: ['Xid 31 on GPU 0 (0000:1a:00.0)', 'pid 9 `python`'] }}]
"
        );
        let verdict = play("an-xid", &text).unwrap().remove(0);
        assert_eq!(verdict.differs, [""; 0], "{verdict:?}");
        let other = text.replace("expect: [{ job: 7", "expect: [{ job: 8");
        let verdict = play("an-xid", &other).unwrap().remove(0);
        assert_eq!(verdict.differs.len(), 2, "its neighbour has none: {verdict:?}");
    }
}

//! Scenario files are the reference of what the tool will and will not do: each is played through the real run,
//! on a simulated clock, with simulated GPUs and stand-ins for Slurm's commands, and compared with what it expects.

pub mod all;
pub mod file;
pub mod replay;
pub mod stage;

use crate::explain::{self, Answer};
use crate::model::JobId;
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
    /// The job.
    pub job: u64,
    /// What was judged in the end.
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
    scenario.expect.iter().map(|expect| verdict(name, &scenario, &stage, expect)).collect()
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
        job: expect.job,
        judgement: told.map_or("ended", |t| t.judgement_word()).to_owned(),
        signature: finding.map(|f| f.signature.word().to_owned()),
        guard: told.and_then(|t| t.guard()).map(|g| g.word().to_owned()),
        done: stage.done(job)?,
        withheld: told.map_or(Vec::new(), |t| t.withheld_pairs()),
        differs: Vec::new(),
    };
    let text = explain::text::answer(&answer, &job.to_string());
    verdict.differs = differences(&verdict, expect, finding.map(|f| f.scope.word()), &text);
    if let (now, Some(theirs)) = stage.reasons()
        && now != theirs
    {
        verdict.differs.push(format!("somebody else's reason `{theirs}` became `{now}`"));
    }
    let ran = stage.slurm_commands();
    if let Some(wanted) = scenario.slurm_commands.filter(|wanted| *wanted != ran) {
        verdict.differs.push(format!("{ran} of Slurm's commands were run, expected {wanted}"));
    }
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

/// The table of every scenario's verdict.
pub fn table(verdicts: &[Verdict]) -> String {
    let mut out = String::new();
    let mut last = "";
    for v in verdicts {
        if v.scenario != last {
            out += &format!("{}\n", v.scenario);
            last = &v.scenario;
        }
        let mark = if v.differs.is_empty() { "ok  " } else { "FAIL" };
        let look = v.signature.as_deref().or(v.guard.as_deref()).unwrap_or("");
        let done = if v.done.is_empty() { "nothing done".to_owned() } else { v.done.join(", ") };
        out += &format!("{mark} {:<9} {look:<14} {done:<22} {}\n", v.judgement, v.about);
        for differs in &v.differs {
            out += &format!("     differs: {differs}\n");
        }
    }
    let wrong = verdicts.iter().filter(|v| !v.differs.is_empty()).count();
    out + &format!("{} verdicts, {wrong} not as expected\n", verdicts.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{self, Judgement};

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
}

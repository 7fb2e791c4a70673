//! Thirty seconds that show the main job: one hung, one idle and one healthy job on a simulated node, seen through
//! the real run in observe mode. No cluster, no GPU, no root, no risk.

use crate::scenarios::file::Scenario;
use crate::scenarios::stage::Stage;
use crate::units::human_ms;
use std::time::Duration;

const STORY: &str = include_str!("../fixtures/demo.yaml");

/// How long the demo rests after each thing that happens, for people to read.
pub const PACE: Duration = Duration::from_millis(350);

/// The jobs of the story, with the words that introduce them.
const JOBS: [(u64, &str); 3] = [
    (4242, "training, 4 GPUs; deadlocks after two hours"),
    (4243, "2 GPUs held since the start by nothing at all"),
    (4244, "training, 2 GPUs, healthy"),
];

/// Plays the story; `say` gets the text, `pace` is zero in tests.
pub fn play(say: &mut dyn FnMut(&str), pace: Duration) -> Result<(), String> {
    let scenario = Scenario::parse(STORY)?;
    let mut stage = Stage::set(&scenario)?;
    let runs = scenario.runs();
    let first_ms = runs.first().copied().unwrap_or(0);
    say(
        "A node with 8 GPUs, three jobs. mode: observe, and drain_shared: true, else a node with other jobs on it is never\n\
         drained. Simulated GPUs and clock; everything else is the real run.\n\n",
    );
    for (job, about) in JOBS {
        say(&format!("  job {job}: {about}\n"));
    }
    say("\n   time  what a run every minute sees and does\n");
    let mut before: Vec<String> = vec![String::new(); JOBS.len()];
    for at_ms in runs {
        stage.run_at(at_ms)?;
        for ((job, _), last) in JOBS.iter().zip(&mut before) {
            let state = stage.in_short(*job)?;
            if state.kind != *last {
                let clock = (at_ms - first_ms) / 60_000;
                say(&format!("  {:02}:{:02}  {job}  {}\n", clock / 60, clock % 60, state.words));
                *last = state.kind;
                std::thread::sleep(pace);
            }
        }
    }
    let (told, hours) = (runs_words(&scenario), stage.wasted()?);
    say(&format!(
        "\n{told}. {hours:.1} GPU-hours certified as wasted; observe mode drained and cancelled nothing.\n"
    ));
    say("Why, for the deadlocked one, as `gpu-reaper-hc --explain 4242` says it on a node:\n\n");
    say(&stage.page(4242)?);
    Ok(())
}

fn runs_words(scenario: &Scenario) -> String {
    let runs = scenario.runs();
    let length_ms = runs.last().unwrap_or(&0) - runs.first().unwrap_or(&0);
    format!("{} runs over {} of a node's time", runs.len(), human_ms(length_ms))
}

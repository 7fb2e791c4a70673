//! Thirty seconds that show the main job: one hung, one idle and one healthy job on a simulated node, seen through the
//! real run; first as it is installed (observe), then under enforce. No cluster, no GPU, no root, no risk: nothing outside a
//! temporary folder is touched, and Slurm's commands are stand-ins.

use crate::gpu::GpuSource;
use crate::gpu::simulated::Simulated;
use crate::ledger::Withheld;
use crate::model::{ActionRecord, Deed, JobId, Outcome};
use crate::reading::Reading;
use crate::scenarios::file::{Job, Scenario};
use crate::scenarios::stage::Stage;
use crate::screen::{Ink, Screen};
use crate::units::human_ms;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const OBSERVE: &str = include_str!("../fixtures/demo/observe.yaml");
const ENFORCE: &str = include_str!("../fixtures/demo/enforce.yaml");

/// How long a beat lasts where a person reads along: the whole takes some 25 seconds.
pub const BEAT: Duration = Duration::from_millis(100);
/// Beats for a line of readings, for something that happened, and between scenes.
const LINE: u32 = 3;
const EVENT: u32 = 10;
const SCENE: u32 = 18;

const MINUTE_MS: i64 = 60_000;
const HALF_HOUR_MS: i64 = 30 * MINUTE_MS;

/// The jobs of the story, with the words that introduce them.
const JOBS: [(u64, &str); 3] = [
    (4242, "trains, and deadlocks after two hours"),
    (4243, "holds its GPUs from the start and never uses them"),
    (4244, "trains, and is well"),
];

/// Who tells the story: on which screen, to whom, how fast.
struct Teller<'a> {
    screen: Screen,
    say: &'a mut dyn FnMut(&str),
    beat: Duration,
    /// When the next line is due: the time that the runs take is no time to wait beside.
    due: Instant,
}

impl Teller<'_> {
    fn rest(&mut self, beats: u32) {
        self.due += self.beat * beats;
        std::thread::sleep(self.due.saturating_duration_since(Instant::now()));
    }

    fn text(&mut self, ink: Ink, text: &str) {
        let told = self.screen.paragraph(ink, "", text);
        (self.say)(&told);
    }

    /// A line that begins with what happened, in its colour.
    fn event(&mut self, at: &str, (ink, what): (Ink, &str), text: &str) {
        let told = self.screen.paragraph(Ink::Plain, &format!(" {at:>4}  {what:<9} "), text);
        (self.say)(&told.replacen(what, &self.screen.paint(ink, what), 1));
        self.rest(EVENT);
    }
}

/// One act: a story on its stage, and what was told of it.
struct Act<'a> {
    scenario: &'a Scenario,
    stage: Stage<'a>,
    told: BTreeSet<String>,
}

/// Plays both acts; `say` gets the text, a `beat` of zero waits nowhere.
pub fn play(screen: &Screen, beat: Duration, say: &mut dyn FnMut(&str)) -> Result<(), String> {
    let mut teller = Teller { screen: *screen, say, beat, due: Instant::now() };
    let scenario = Scenario::parse(OBSERVE)?;
    opening(&mut teller, &scenario);
    observe(&mut teller, &scenario)?;
    let scenario = Scenario::parse(ENFORCE)?;
    enforce(&mut teller, &scenario)?;
    (teller.say)("\n");
    teller.text(
        Ink::Plain,
        "Everything lay in a temporary folder, which is gone; nothing else was touched. What next:",
    );
    for (call, does) in [
        ("gpu-reaper-hc scenarios  ", "what it does and leaves alone, case by case, each played like this"),
        ("README.md                ", "install it, let it observe for a week, then decide"),
    ] {
        let told = teller.screen.paragraph(Ink::Plain, &format!("  {call}"), does);
        (teller.say)(&told);
    }
    Ok(())
}

fn opening(teller: &mut Teller, scenario: &Scenario) {
    teller.text(
        Ink::Plain,
        "A node with 8 GPUs and three jobs. The GPUs, the clock and Slurm's commands are stand-ins; everything else is \
         real: once a simulated minute the program runs as slurmd would start it.",
    );
    (teller.say)("\n");
    for (job, (_, about)) in scenario.jobs.iter().zip(JOBS) {
        let line = format!("  job {}  {}  {}  {about}\n", job.id, job.user, gpus(job));
        (teller.say)(&line);
    }
    teller.rest(SCENE);
}

fn observe(teller: &mut Teller, scenario: &Scenario) -> Result<(), String> {
    (teller.say)("\n");
    teller.text(Ink::Strong, "Act 1: as it is installed, under `mode: observe`. It tells, and does nothing.");
    teller.text(
        Ink::Plain,
        "Defaults: a job's first 15 minutes are not judged; an alert after 30 minutes without compute, a drain 60 \
         minutes later.",
    );
    (teller.say)("\n");
    teller.rest(SCENE);
    let jobs = scenario.jobs.iter().map(|job| format!("{:<17}", format!("{} {}", job.id, gpus(job))));
    (teller.say)(&format!(" h:mm  {}\n", jobs.collect::<String>().trim_end()));
    let mut act = Act { scenario, stage: Stage::set(scenario)?, told: BTreeSet::new() };
    act.play(teller, true)?;
    act.cost(teller)?;
    (teller.say)("\n");
    teller.text(
        Ink::Plain,
        "Why 4242? On a node `gpu-reaper-hc --explain 4242` says all of it. That page begins:",
    );
    (teller.say)("\n");
    let indented = Screen { width: teller.screen.width - 2, ..teller.screen };
    for line in act.stage.page(JOBS[0].0, &indented)?.lines().take_while(|line| !line.is_empty()) {
        (teller.say)(&format!("  {line}\n"));
    }
    teller.rest(SCENE);
    Ok(())
}

fn enforce(teller: &mut Teller, scenario: &Scenario) -> Result<(), String> {
    (teller.say)("\n");
    teller
        .text(Ink::Strong, "Act 2: the same jobs, and two lines of configuration. Now the drains are made.");
    teller.text(
        Ink::Plain,
        "`mode: enforce`; and `act: { drain_shared: true }`, without which no node is drained where others run too.",
    );
    (teller.say)("\n");
    teller.rest(SCENE);
    let mut act = Act { scenario, stage: Stage::set(scenario)?, told: BTreeSet::new() };
    act.play(teller, false)?;
    let commands = act.stage.slurm_commands();
    let many = |part: &str| commands.iter().filter(|command| command.contains(part)).count();
    let (drains, lifts, cancels) = (many("State=DRAIN"), many("State=UNDRAIN"), many("scancel "));
    (teller.say)("\n");
    teller.text(
        Ink::Plain,
        &format!(
            "scontrol was told to drain {drains} times and to undrain {lifts} times, scancel was called {cancels} \
             times. Job 4244 ran on through all of it."
        ),
    );
    teller.rest(EVENT);
    Ok(())
}

impl Act<'_> {
    /// Runs from the first minute to the last; `shows`: also what the GPUs read, each half hour.
    fn play(&mut self, teller: &mut Teller, shows: bool) -> Result<(), String> {
        let scenario = self.scenario;
        let runs = scenario.runs();
        let first_ms = runs.first().copied().unwrap_or(0);
        for at_ms in runs {
            self.stage.run_at(at_ms)?;
            let minutes = (at_ms - first_ms) / MINUTE_MS;
            let at = format!("{}:{:02}", minutes / 60, minutes % 60);
            if shows && (at_ms - first_ms) % HALF_HOUR_MS == 0 {
                let row = self.readings(teller.screen, at_ms)?;
                (teller.say)(&format!(" {at}  {row}\n"));
                teller.rest(LINE);
            }
            for job in &scenario.jobs {
                self.tell_of(teller, job, at_ms, &at)?;
            }
        }
        Ok(())
    }

    /// What each job's first GPU reads.
    fn readings(&self, screen: Screen, at_ms: i64) -> Result<String, String> {
        let timeline = self.scenario.timeline()?;
        let Reading::Measured(seen) = (Simulated { timeline: &timeline, at_ms }).read() else {
            return Err("the story has no GPUs".to_owned());
        };
        let cell = |job: &Job| {
            let unit = job.gpus.indices().first().and_then(|index| seen.units.get(*index as usize))?;
            let readings = &unit.readings;
            let (util, power) = (readings.sm_util.measured()?, readings.power.measured()?);
            let ink = if util.get() == 0 { Ink::Bad } else { Ink::Good };
            let shown = format!("{:>4} % {:>5} W", util.get(), power.0 / 1000);
            Some(format!("{}    ", screen.paint(ink, &shown)))
        };
        let cells: Vec<String> = self.scenario.jobs.iter().filter_map(cell).collect();
        Ok(cells.concat().trim_end().to_owned())
    }

    fn is_new(&mut self, what: String) -> bool {
        self.told.insert(what)
    }

    fn tell_of(&mut self, teller: &mut Teller, job: &Job, at_ms: i64, at: &str) -> Result<(), String> {
        if job.ended.is_some_and(|end| end.0 <= at_ms) && self.is_new(format!("{} ended", job.id)) {
            let text = format!("{} ends job {}; Slurm runs its Epilog", job.user, job.id);
            teller.event(at, (Ink::Plain, "job ends"), &text);
        }
        let (actions, withheld) = self.stage.record(id(job)?)?;
        for action in &actions {
            if self.is_new(format!("{} {}", action.id, action.outcome.word())) {
                self.tell_deed(teller, job, action, at)?;
            }
        }
        for held in &withheld {
            if self.is_new(format!("{} {} {}", job.id, held.deed.word(), held.because)) {
                self.tell_withheld(teller, job, held, at);
            }
        }
        Ok(())
    }

    fn tell_deed(
        &mut self,
        teller: &mut Teller,
        job: &Job,
        action: &ActionRecord,
        at: &str,
    ) -> Result<(), String> {
        match (action.deed, action.outcome) {
            (Deed::Alert, Outcome::Done) => {
                let text = format!("job {} of {}: {}", job.id, job.user, self.facts(job)?);
                teller.event(at, (Ink::Notice, "ALERT"), &text);
            }
            (Deed::Drain, Outcome::Done) => {
                let mut text =
                    format!("for job {}: this node takes no new job; whoever runs here goes on", job.id);
                if self.is_new("a drain".to_owned()) {
                    text += ". It was due 60 minutes after the alert; nodes take turns, within 10 minutes";
                }
                teller.event(at, (Ink::Bad, "DRAIN"), &text);
                let command =
                    self.stage.slurm_commands().into_iter().rev().find(|c| c.contains("State=DRAIN"));
                let told = teller.screen.paragraph(Ink::Plain, "         ", &command.unwrap_or_default());
                (teller.say)(&told);
            }
            (Deed::Drain, Outcome::Released) => {
                let text = format!(
                    "job {} has gone, its GPUs are clean, two runs agree: the node takes jobs again",
                    job.id
                );
                teller.event(at, (Ink::Good, "LIFTED"), &text);
            }
            (deed, outcome) => {
                let text = format!("for job {}: {} {}", job.id, outcome.word(), action.detail);
                teller.event(at, (Ink::Plain, deed.word()), &text);
            }
        }
        Ok(())
    }

    fn tell_withheld(&mut self, teller: &mut Teller, job: &Job, held: &Withheld, at: &str) {
        let mut text = format!("the {} for job {}: {}", held.deed.word(), job.id, held.because);
        if held.deed == Deed::Drain && self.is_new("a withheld drain".to_owned()) {
            text += ". Under `mode: enforce` this node would take no new job from now on";
        }
        teller.event(at, (Ink::Notice, "WITHHELD"), &text);
    }

    /// The facts that an alert tells; here each finding is about the whole job.
    fn facts(&self, job: &Job) -> Result<String, String> {
        let found = self.stage.found(id(job)?)?;
        Ok(found.map_or(String::new(), |(finding, _)| finding.facts().replace(" (whole)", "")))
    }

    /// What was wasted for certain, and what would be: two figures that are never one.
    fn cost(&self, teller: &mut Teller) -> Result<(), String> {
        let runs = self.scenario.runs();
        let (first_ms, last_ms) = (runs.first().copied().unwrap_or(0), runs.last().copied().unwrap_or(0));
        let (mut spent, mut ahead, mut each) = (0.0, 0.0, Vec::new());
        for job in &self.scenario.jobs {
            let Some((finding, registration)) = self.stage.found(id(job)?)? else { continue };
            let hours = finding.wasted().hours();
            spent += hours;
            each.push(format!("job {} {hours:.1}", job.id));
            if let Reading::Measured(end) = registration.limit_end {
                let left_ms = (end.0 - Stage::now_at(last_ms).wall.0).max(0);
                ahead += finding.units.len() as f64 * left_ms as f64 / 3_600_000.0;
            }
        }
        let length = human_ms(last_ms - first_ms);
        (teller.say)("\n");
        teller.text(
            Ink::Plain,
            &format!(
                "{} runs in {length}; no job was touched. Wasted for certain: {spent:.1} GPU-hours ({}). A projection: if \
                 both went on like this to their time limits, {ahead:.0} more.",
                runs.len(),
                each.join(", "),
            ),
        );
        teller.rest(SCENE);
        Ok(())
    }
}

fn id(job: &Job) -> Result<JobId, String> {
    JobId::new(job.id).ok_or_else(|| "job id 0".to_owned())
}

/// `GPU 0-3`: of these jobs' GPUs, which lie side by side.
fn gpus(job: &Job) -> String {
    let of = job.gpus.indices();
    format!("GPU {}-{}", of.first().unwrap_or(&0), of.last().unwrap_or(&0))
}

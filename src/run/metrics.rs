//! What a run says to Prometheus, where the site wants that: at its end, once. Whatever fails here fails no run.

use super::Setting;
use super::cases::Case;
use super::release::ORPHAN;
use super::snapshot::Snapshot;
use crate::deliver::metrics::{self, Histogram, Name, Number, Page};
use crate::ledger::{Actor, Ledger, LedgerError, Question, RUN_BOUNDS_MS, Source, Tallies, Tally, partition};
use crate::model::{Deed, Verdict};
use crate::policy::fault::Kind;
use crate::policy::{Finding, Signature, stage};
use crate::reading::{Absence, Reading};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

/// Where it is kept why the file could not be written, so that it is told once.
const SUBJECT: &str = "metrics file";
/// The stage of a finding that is younger than the first of them.
const NONE_YET: &str = "none";

/// Writes the file, where one is named.
pub fn write(setting: &Setting, snapshot: &Snapshot, cases: &[Case], ledger: &mut Ledger) {
    let Some(file) = &setting.config.metrics.textfile else { return };
    if let Err(why) = write_to(file, setting, (snapshot, cases), ledger) {
        tracing::warn!(
            "metrics `{}`: {why}; nothing was written there, the run did all else",
            file.display()
        );
    }
}

/// Errors are the ledger's alone.
fn write_to(
    file: &Path,
    setting: &Setting,
    (snapshot, cases): (&Snapshot, &[Case]),
    ledger: &mut Ledger,
) -> Result<(), LedgerError> {
    ledger.count(&of_this_run(setting, snapshot))?;
    let tallies = ledger.tallies()?;
    let mut page = Page { took: took(&tallies), ..Page::default() };
    about_the_run(setting, snapshot, cases, &mut page);
    findings(setting, cases, &tallies, &mut page);
    deeds(&tallies, &mut page);
    troubles(ledger, &tallies, &mut page)?;
    put(setting, file, &page.text(), ledger)
}

/// What this run adds to the counts: how long it took, and what it could not read.
fn of_this_run(setting: &Setting, snapshot: &Snapshot) -> Vec<(Tally, i64)> {
    let took = taken(setting);
    let class = RUN_BOUNDS_MS.iter().position(|bound| took.as_millis() <= u128::from(*bound));
    let mut more = vec![
        (Tally::RunsTook(class.unwrap_or(RUN_BOUNDS_MS.len())), 1),
        (Tally::RunUs, took.as_micros() as i64),
    ];
    // A site without Slurm's cgroups lacks nothing that could be read.
    let cgroup = snapshot.job_folders().absence().is_some_and(|why| why != Absence::NoData);
    let silences = [
        (Source::Gpu, i64::from(snapshot.gpus.absence().is_some())),
        (Source::Slurm, i64::from(setting.slurm.silences())),
        (Source::Cgroup, i64::from(cgroup)),
    ];
    more.extend(
        silences.into_iter().filter(|(_, n)| *n > 0).map(|(source, n)| (Tally::SourceError(source), n)),
    );
    more
}

/// What the run took up to now.
fn taken(setting: &Setting) -> Duration {
    setting.config.deadline.saturating_sub(setting.left())
}

fn took(tallies: &Tallies) -> Histogram {
    let runs = |class| tallies.of(&Tally::RunsTook(class));
    Histogram {
        classes: RUN_BOUNDS_MS.iter().enumerate().map(|(class, bound)| (*bound, runs(class))).collect(),
        beyond: runs(RUN_BOUNDS_MS.len()),
        sum_us: tallies.of(&Tally::RunUs),
    }
}

fn about_the_run(setting: &Setting, snapshot: &Snapshot, cases: &[Case], page: &mut Page) {
    let mode = if setting.config.mode().enforces() { "enforce" } else { "observe" };
    page.say(Name::Info, &[env!("CARGO_PKG_VERSION"), mode], Number::Whole(1));
    page.say(Name::LastRun, &[], Number::Seconds(setting.now.wall.0 + taken(setting).as_millis() as i64));
    if let Reading::Measured(cadence) = snapshot.cadence {
        page.say(Name::Interval, &[], Number::Seconds(cadence.median_ms));
    }
    page.say(Name::JobsEvaluated, &[], Number::Whole(cases.len() as u64));
}

/// The stage that time has made due, as far as the finding may ask for it.
fn stage_of(setting: &Setting, finding: &Finding) -> &'static str {
    let due = stage::due(finding, &setting.config.rules.stages);
    due.map_or(NONE_YET, |verdict| verdict.min(finding.cap).word())
}

/// What is found now in one partition under one signature.
#[derive(Default)]
struct Found {
    gpus: u64,
    by_stage: BTreeMap<&'static str, u64>,
}

/// What is found now, and what it has cost; for each partition and signature that ever had a finding, also where there is
/// none now.
fn findings(setting: &Setting, cases: &[Case], tallies: &Tallies, page: &mut Page) {
    let mut now: BTreeMap<(String, &str), Found> = BTreeMap::new();
    for (case, finding) in cases.iter().filter_map(|case| Some((case, case.finding()?))) {
        let partition = tallies.partition_of(case.job(), finding.signature.word());
        let found = now.entry((partition, finding.signature.word())).or_default();
        found.gpus += finding.units.len() as u64;
        *found.by_stage.entry(stage_of(setting, finding)).or_default() += 1;
    }
    for (tally, ms) in tallies.iter() {
        let Tally::WastedGpuMs { partition, signature } = tally else { continue };
        page.say(Name::Wasted, &[partition, signature], Number::Hours(ms));
        let Found { gpus, by_stage } =
            now.remove(&(partition.clone(), signature.as_str())).unwrap_or_default();
        page.say(Name::HeldBreaching, &[partition, signature], Number::Whole(gpus));
        let stages = [Verdict::Alert, Verdict::Drain, Verdict::Cancel].map(Verdict::word);
        for stage in [NONE_YET].iter().chain(&stages) {
            let jobs = by_stage.get(stage).copied().unwrap_or(0);
            page.say(Name::Findings, &[stage, signature, partition], Number::Whole(jobs));
        }
    }
    // There before its first finding: `increase()` sees no growth where a series only begins.
    let partitions: BTreeSet<&str> = cases.iter().map(|case| partition(case.job())).collect();
    for (partition, signature) in partitions.iter().flat_map(|p| Signature::ALL.map(|s| (*p, s.word()))) {
        let tally = Tally::WastedGpuMs { partition: partition.to_owned(), signature: signature.to_owned() };
        if !tallies.knows(&tally) && tallies.tells_apart(partition) {
            page.say(Name::Wasted, &[partition, signature], Number::Hours(0));
        }
    }
    page.say(Name::Blocked, &[], Number::Hours(tallies.blocked_gpu_ms()));
}

/// Deeds that can be: those of each deed's own actor, messages that carry an alert, and whatever else was counted.
fn deeds(tallies: &Tallies, page: &mut Page) {
    let withheld = [Deed::Drain, Deed::Warn, Deed::Cancel].map(|deed| (Actor::of(deed), deed, false));
    let done = Deed::ALL.map(|deed| (Actor::of(deed), deed, true));
    let known = done.into_iter().chain(withheld);
    let mut all: BTreeMap<_, u64> = known.map(|it| (it, 0)).collect();
    for (tally, n) in tallies.iter() {
        if let Tally::Deed { actor, deed, enforced } = tally {
            all.insert((*actor, *deed, *enforced), n);
        }
    }
    for ((actor, deed, enforced), n) in all {
        let enforced = if enforced { "true" } else { "false" };
        page.say(Name::Actions, &[actor.word(), deed.word(), enforced], Number::Whole(n));
    }
    for actor in Actor::ALL {
        page.say(Name::ActionErrors, &[actor.word()], Number::Whole(tallies.of(&Tally::DeedError(actor))));
    }
    page.say(Name::SharedNode, &[], Number::Whole(tallies.of(&Tally::SharedNode)));
}

fn troubles(ledger: &Ledger, tallies: &Tallies, page: &mut Page) -> Result<(), LedgerError> {
    for source in Source::ALL {
        page.say(
            Name::ScrapeErrors,
            &[source.word()],
            Number::Whole(tallies.of(&Tally::SourceError(source))),
        );
    }
    let open = ledger.faults()?;
    let told =
        |kind: &str| Number::Whole(open.iter().filter(|row| row.told && row.kind == kind).count() as u64);
    page.say(Name::OrphanDrains, &[], told(ORPHAN));
    for kind in Kind::ALL {
        page.say(Name::Faults, &[kind.word()], told(kind.word()));
    }
    Ok(())
}

/// A file that cannot be written is told once, and once that it can be again.
fn put(setting: &Setting, file: &Path, text: &str, ledger: &mut Ledger) -> Result<(), LedgerError> {
    let told = match ledger.question(SUBJECT, setting.now)? {
        Question::Answered { answer, .. } => Some(answer),
        Question::Ask | Question::Wait { .. } => None,
    };
    match (metrics::put(file, text), told) {
        (Ok(()), None) => {}
        (Ok(()), Some(_)) => {
            ledger.forget_answer(SUBJECT)?;
            tracing::info!("metrics `{}`: written again", file.display());
        }
        (Err(why), Some(told)) if why == told => {}
        (Err(why), _) => {
            ledger.answered(SUBJECT, &why, setting.now)?;
            tracing::warn!("metrics {why}; nothing was written there, the run did all else");
        }
    }
    Ok(())
}

//! One job run in this run: judged, its finding recorded, one step taken, and the line that tells people.

use super::eyes::Eyes;
use super::snapshot::Snapshot;
use super::{Setting, Trouble, questions, tell};
use crate::explain::{self, Asked};
use crate::ledger::{self, Closing, FindingRow, JobAsked, Ledger, NewAction, NewFinding, Reach};
use crate::lock::RunLock;
use crate::model::*;
use crate::policy::stage::{self, Step};
use crate::policy::{self, Assessment, Finding, Guard, Judgement, Rules, Signature, judge};
use crate::reading::{Absence, Reading};
use crate::units::BootMs;
use std::collections::BTreeSet;

/// A job run with its history and judgement.
pub struct Case {
    /// What replay gave.
    pub history: JobHistory,
    /// What was judged of it.
    pub assessment: Assessment,
    pub(super) cadence: Reading<Cadence>,
    /// This node shows that the job still lives.
    lives: bool,
    /// The finding's row, once it is recorded.
    row: i64,
}

/// Replays and judges every registered job that holds GPUs here.
/// `amiss`: some fault is open.
pub fn open(
    setting: &Setting,
    snapshot: &Snapshot,
    amiss: bool,
    ledger: &mut Ledger,
) -> Result<Vec<Case>, Trouble> {
    let (rules, boot, cadence) = (&setting.config.rules, &setting.now.boot_id, snapshot.cadence);
    let holding = snapshot.jobs.iter().filter(|j| !j.registration.gpus.is_empty());
    let mut enough = |seen: &Observation| policy::settles(seen, &rules.thresholds);
    let (faults, known) = match amiss {
        true => (ledger.open_faults()?, ledger.known_units(boot)?),
        false => (Vec::new(), Vec::new()),
    };
    let (histories, mut open) = ledger.together(|ledger| {
        let open = ledger.open_findings()?;
        let asked = holding.map(|run| JobAsked {
            units: snapshot.held.get(&run.id).cloned().unwrap_or(Reading::Absent(Absence::NotRecorded)),
            reach: reach(rules, cadence, open.iter().find(|row| row.job_run == run.id)),
            run: run.clone(),
        });
        let histories = ledger.replay(boot, asked.collect(), snapshot.node_units, &mut enough, false)?;
        Ok((histories, open))
    })?;
    let judged = histories.into_iter().map(|mut history| {
        let at = open.iter().position(|row| row.job_run == history.job.id);
        history.open_finding = at.map(|at| open.swap_remove(at).into());
        history.fault = explain::hiding(&faults, &history, &known);
        let assessment = judge(&history, rules, cadence, setting.now);
        let lives = snapshot.lives(&history.job);
        Case { history, assessment, cadence, lives, row: 0 }
    });
    let mut cases: Vec<Case> = judged.collect();
    if cases.iter().any(|c| c.finding().is_some()) {
        // An Epilog may have cleared a run since the snapshot: nothing is recorded or done for it.
        let still = ledger.open_runs(boot)?;
        cases.retain(|c| still.iter().any(|j| j.id == c.history.job.id));
    }
    Ok(cases)
}

/// How far back a job's history must reach: where a breach without any compute stands open, no further than the last
/// stage asks, and two windows. Beyond that every stage is due, and since when it stands is in the finding's own row.
fn reach(rules: &Rules, cadence: Reading<Cadence>, open: Option<&FindingRow>) -> Option<Reach> {
    const AT_ZERO: [Signature; 2] = [Signature::Idle, Signature::Hung];
    let limits = policy::window::limits(&rules.thresholds, *cadence.measured()?);
    let last_ms = rules.stages.iter().map(|stage| stage.after_ms).max()?;
    let zero = open.is_some_and(|row| AT_ZERO.iter().any(|s| s.word() == row.signature));
    zero.then_some(Reach { time_ms: last_ms + 2 * limits.window_ms, gap_ms: limits.gap_ms })
}

impl Case {
    pub(super) fn job(&self) -> &JobRun {
        &self.history.job
    }

    /// As every line of the journal names it: the id under which it is known from its first moment on.
    pub(super) fn raw_id(&self) -> u64 {
        self.job().registration.job.get()
    }

    /// Its partition, printable; empty where it is not known.
    pub(super) fn partition(&self) -> String {
        self.job().registration.partition.measured().map_or(String::new(), |p| p.escape_debug().to_string())
    }

    /// The finding, where there is one.
    pub fn finding(&self) -> Option<&Finding> {
        match &self.assessment.judgement {
            Judgement::Breaching(finding) => Some(finding),
            _ => None,
        }
    }

    /// Records the finding, takes one step for it, and tells people what changed.
    pub fn settle(
        &mut self,
        setting: &Setting,
        run: RunId,
        (snapshot, eyes): (&Snapshot, &mut dyn Eyes),
        ledger: &mut Ledger,
        lock: &mut RunLock,
    ) -> Result<(), Trouble> {
        self.ask(setting, ledger)?;
        self.call_witness(setting, run, (snapshot, eyes), ledger)?;
        let Some(finding) = self.finding().cloned() else {
            return self.close_finding(setting, run, ledger);
        };
        let row = self.record(setting, run, &finding, ledger)?;
        self.row = row;
        let circumstances = self.circumstances(setting, run, snapshot.previous, ledger)?;
        let passing = circumstances.held_by.clone();
        let tried_again = !circumstances.backing_off.is_empty();
        match stage::escalate(&finding, &setting.config.rules, circumstances) {
            Step::Rest | Step::Later { .. } | Step::Unclear => {}
            Step::Alert => self.alert(setting, run, row, &finding, ledger)?,
            Step::Withheld { asked, guard, because } => {
                let passes = guard.is_none() && (tried_again || passing.as_ref() == Some(&because));
                self.withhold(setting, run, (asked.into(), passes), guard, &because, ledger)?
            }
            step => {
                lock.phase("act");
                self.perform(setting, run, row, step, eyes, ledger)?;
                lock.phase("judge");
            }
        }
        Ok(())
    }

    /// What only Slurm can say, once a finding makes it matter, or while its last word was that the job does not run.
    fn ask(&mut self, setting: &Setting, ledger: &mut Ledger) -> Result<(), Trouble> {
        if self.may_be_stale()
            && let Some(details) = questions::ended(setting, self.job(), ledger)?
        {
            return self.end(setting, details, ledger);
        }
        let not_running = self.job().details.as_ref().is_some_and(|d| d.state != JobState::Running);
        if !self.assessment.wants_details && !not_running {
            return Ok(());
        }
        if let Some(details) = questions::details(setting, self.job(), ledger)? {
            if details.state == JobState::Ended {
                return self.end(setting, details, ledger);
            }
            self.history.job.details = Some(details);
            self.assessment = judge(&self.history, &setting.config.rules, self.cadence, setting.now);
        }
        Ok(())
    }

    /// Before units are called idle, /proc is asked who holds their device files open, and it is judged again.
    fn call_witness(
        &mut self,
        setting: &Setting,
        run: RunId,
        (snapshot, eyes): (&Snapshot, &mut dyn Eyes),
        ledger: &mut Ledger,
    ) -> Result<(), Trouble> {
        let (true, Some(finding)) = (self.assessment.wants_witness, self.finding()) else { return Ok(()) };
        let units: Vec<_> = finding.units.iter().map(|u| u.uuid.clone()).collect();
        let holders = snapshot.holders(eyes, self.job(), &units).map(|held| {
            let pids: BTreeSet<u32> = held.into_iter().map(|(_, pid)| pid).collect();
            pids.len() as u32
        });
        ledger.keep_holders(run, self.job().id, &holders)?;
        if let Some(tick) = self.history.ticks.last_mut().filter(|tick| tick.run == run) {
            tick.job.holders = holders;
        }
        self.assessment = judge(&self.history, &setting.config.rules, self.cadence, setting.now);
        Ok(())
    }

    /// Whether only Slurm can tell this registration from one whose Epilog failed: another job claims a unit of it
    /// too and nothing on this node shows that it lives (shards and MPS share for good, and nobody need be asked),
    /// or a drain of ours stands for it.
    fn may_be_stale(&self) -> bool {
        let drained = |a: &ActionRecord| a.deed == Deed::Drain && a.outcome == Outcome::Done;
        let shared = self.history.units == Reading::Absent(Absence::Shared);
        (shared && !self.lives) || self.history.actions.iter().any(drained)
    }

    /// Slurm says that the run is over, which it says only after its Epilog: ours never ran here. So this run does
    /// what the Epilog would have done.
    fn end(&mut self, setting: &Setting, details: JobDetails, ledger: &mut Ledger) -> Result<(), Trouble> {
        let job = self.job().clone();
        let asked =
            Asked { config: setting.config, place: setting.place, now: setting.now, slurm: setting.slurm };
        let case = explain::case_file(&asked, ledger, job.clone(), "Slurm says so, no Epilog of ours came")?;
        tell::over(setting, &job, "the job has ended", ledger);
        let archive = !setting.config.mode().enforces();
        ledger.clear_without_epilog(&job, setting.now, archive, case.as_ref())?;
        let id = job.registration.job;
        tracing::info!(job = id.get(), "job {} has ended and no Epilog told: cleared", job.shown_id());
        self.history.job.details = Some(details);
        self.history.open_finding = None;
        self.assessment = judge(&self.history, &setting.config.rules, self.cadence, setting.now);
        Ok(())
    }

    fn record(
        &self,
        setting: &Setting,
        run: RunId,
        finding: &Finding,
        ledger: &mut Ledger,
    ) -> Result<i64, Trouble> {
        // Another start is another breach: new clocks.
        if self.history.open_finding.as_ref().is_some_and(|open| open.since != finding.since) {
            ledger.close_finding(self.job().id, Closing::Lost, run, setting.now)?;
        }
        let units: Vec<_> = finding.units.iter().map(|u| u.uuid.as_str()).collect();
        let seen = NewFinding {
            job: self.job(),
            signature: finding.signature.word(),
            scope: finding.scope.word(),
            units: &units.join(","),
            since: finding.since,
            established: BootMs(setting.now.boot.0 - finding.established_for_ms),
            certified_ms: finding.evidence().certified_ms(),
            wasted: finding.wasted(),
            gpus: finding.units.len(),
        };
        Ok(ledger.record_finding(&seen, run, setting.now)?)
    }

    fn close_finding(&self, setting: &Setting, run: RunId, ledger: &mut Ledger) -> Result<(), Trouble> {
        if self.history.open_finding.is_none() {
            return Ok(());
        }
        let over = self
            .job()
            .details
            .as_ref()
            .is_some_and(|d| matches!(d.state, JobState::Completing | JobState::Ended));
        let how = match &self.assessment.judgement {
            Judgement::Alive { .. } => Closing::Alive,
            Judgement::Spared { guard: Guard::Exemption, .. } => Closing::Exempt,
            _ if over => Closing::Ended,
            _ => Closing::Lost,
        };
        if how != Closing::Lost {
            tell::over(setting, self.job(), &self.words(), ledger);
        }
        ledger.close_finding(self.job().id, how, run, setting.now)?;
        let job = self.job().shown_id();
        tracing::info!(
            job = self.raw_id(),
            shown = job,
            judgement = self.assessment.judgement.word(),
            "job {job}: {}",
            self.words()
        );
        Ok(())
    }

    fn alert(
        &self,
        setting: &Setting,
        run: RunId,
        row: i64,
        f: &Finding,
        ledger: &mut Ledger,
    ) -> Result<(), Trouble> {
        let action = ledger.begin_action(&self.action(Verdict::Alert, run, row, f), setting.now)?;
        // Of a job on several nodes the first one tells people, once.
        if let Ok(nodes) = questions::nodes_of(self.job(), &setting.place.node)
            && !nodes.is_first()
        {
            let (job, first) = (self.job().shown_id(), nodes.first());
            let raw = self.raw_id();
            tracing::info!(
                job = raw,
                shown = job,
                "job {job}: {}; to tell of it is left to node {first}",
                self.words()
            );
            return Ok(ledger.end_action(action, Outcome::Done, &format!("left to node {first}"), false)?);
        }
        let (job, gpus) = (self.job().shown_id(), f.gpus_words());
        let user = self.job().registration.user.measured().map_or("", |u| u.as_str());
        tracing::warn!(
            job = self.raw_id(),
            shown = job,
            partition = self.partition(),
            user = %user.escape_debug(),
            gpus,
            verdict = Verdict::Alert.word(),
            signature = f.signature.word(),
            "job {job}: {}",
            self.words()
        );
        self.tell_finding(setting, row, f, ledger);
        Ok(ledger.end_action(action, Outcome::Done, "journal", false)?)
    }

    fn action<'a>(&'a self, verdict: Verdict, run: RunId, row: i64, f: &'a Finding) -> NewAction<'a> {
        NewAction {
            deed: Deed::from(verdict),
            finding: Some(row),
            job: self.job(),
            run,
            signature: f.signature.word(),
            seen_before: "",
            reason: None,
        }
    }

    pub(super) fn withhold(
        &self,
        setting: &Setting,
        run: RunId,
        (asked, passes): (Deed, bool),
        guard: Option<Guard>,
        because: &str,
        ledger: &mut Ledger,
    ) -> Result<(), Trouble> {
        let (deed, by) = (asked, guard);
        if ledger.withhold(self.job().id, asked, because, run, setting.now)? {
            let (job, asked) = (self.job().shown_id(), asked.word());
            let guard = guard.map_or("", Guard::word);
            tracing::warn!(
                job = self.raw_id(),
                shown = job,
                partition = self.partition(),
                verdict = asked,
                guard,
                "job {job}: {asked} withheld: {because}"
            );
        }
        // What passes by itself is no news to anybody far away.
        if !passes {
            self.tell_withheld(setting, self.row, (deed, by, because), ledger);
        }
        Ok(())
    }

    /// The judgement in one line of facts.
    pub fn words(&self) -> String {
        match &self.assessment.judgement {
            Judgement::Spared { guard, because } => format!("spared ({}): {because}", guard.word()),
            Judgement::Unjudged { guard, because } => {
                format!("not judged ({}): {because}", guard.word())
            }
            Judgement::Alive { because } => format!("alive: {because}"),
            Judgement::Breaching(f) => f.facts(),
        }
    }
}

/// One line for people: every job with its judgement, also those that are no candidates; and what is `amiss`.
pub fn summary(snapshot: &Snapshot, cases: &[Case], amiss: &[String], ledger: &Ledger) -> String {
    let gpus = match &snapshot.gpus {
        Reading::Measured(report) => format!("{} GPUs read", report.units.len()),
        Reading::Absent(why) => format!("GPUs not read: {}", why.words()),
    };
    let mut line = format!("{gpus}; {} jobs", cases.len());
    for case in cases {
        line += &format!("; {} {}", case.job().shown_id(), case.words());
    }
    let adapted = cases.iter().filter_map(|c| c.assessment.limits.as_ref()).flat_map(|l| &l.adapted).next();
    if let Some(adapted) = adapted {
        line += &format!("; {adapted}");
    }
    for note in ledger.notes() {
        tracing::warn!("{note}");
    }
    // The reason that the GPUs were not read may be the fault itself.
    let amiss = amiss.iter().filter(|words| !gpus.ends_with(words.as_str()));
    for note in amiss.chain(ledger.notes()).chain(&snapshot.note) {
        line += &format!("; {note}");
    }
    line
}

impl From<ledger::FindingRow> for OpenFinding {
    fn from(row: ledger::FindingRow) -> OpenFinding {
        OpenFinding {
            since: row.since,
            opened_run: row.opened_run,
            last_run: row.last_run,
            certified_ms: row.certified_ms,
            signature: row.signature,
        }
    }
}

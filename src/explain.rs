//! `--explain JOBID`: why a job is or is not judged. It judges again from the ledger with the very functions that
//! decide, so it cannot disagree with them, and changes nothing. Slurm is asked one thing, and only by [`written`].

mod drawn;
pub mod elsewhere;
pub mod json;
pub mod text;
pub mod timeline;
pub mod written;

use crate::config::Config;
use crate::ledger::{
    CaseFile, FaultRow, FindingRow, JobAsked, JobRecord, Ledger, LedgerError, Life, StoredCase, Withheld,
};
use crate::model::*;
use crate::place::Place;
use crate::policy::fault;
use crate::policy::slot::Slot;
use crate::policy::stage::{self, Next};
use crate::policy::{self, Assessment, Finding, Guard, GuardReport, Judgement, attribution, judge, window};
use crate::reading::{Absence, Reading};
use crate::screen::Screen;
use crate::slurm::Slurm;
use crate::units::{BootMs, WallMs};

/// Two samples so far apart are not in a row while it is not known how often runs come: three times Slurm's own limit for
/// a health check.
pub const GAP_UNKNOWN_MS: i64 = 180_000;

/// Where and by which law a job is explained.
pub struct Asked<'a> {
    /// The law.
    pub config: &'a Config,
    /// This node.
    pub place: &'a Place,
    /// This moment.
    pub now: &'a Now,
    /// For gres.conf only: no command is run.
    pub slurm: &'a Slurm,
}

/// Everything there is to say of a registered job run.
#[derive(Debug)]
pub struct Told {
    /// The node.
    pub node: String,
    /// This moment.
    pub now: Now,
    /// What replay gave.
    pub history: JobHistory,
    /// What was judged of it.
    pub assessment: Assessment,
    /// What was done for it.
    pub actions: Vec<ActionRecord>,
    /// What was withheld.
    pub withheld: Vec<Withheld>,
    /// Its findings so far, the last one open or not.
    pub findings: Vec<FindingRow>,
    /// What the driver wrote to the kernel's log about it, in words.
    pub xids: Vec<String>,
    /// What comes next; `in_ms` from `now` on.
    pub next: Option<Next>,
    /// Why nothing but an alert is done for this job run, whatever it does: the mode, or `enforce_in`.
    pub not_enforced: Option<String>,
    /// How the job run ended, in words, where this is its case file.
    pub ended: Option<&'static str>,
    /// Other runs of the same job that the ledger knows.
    pub other_runs: Vec<String>,
    /// The longest step between two samples that is no hole.
    pub gap_ms: i64,
    /// How long a finding needs.
    pub window_ms: i64,
    /// Until this age it is not judged.
    pub warmup_ms: i64,
    /// From this utilization on a GPU works, percent.
    pub util_pct: u32,
}

/// Every answer there is, each with its own exit status.
#[derive(Debug)]
pub enum Answer {
    /// The job run is registered here.
    Told(Box<Told>),
    /// It has ended; its case file, where one was kept.
    Ended {
        /// When, in words.
        when: String,
        /// The case file.
        case: Option<StoredCase>,
        /// What the ledger still has of it, a line each, where there is no case file.
        left: Vec<String>,
    },
    /// Another node's ledger on this host knows it.
    OtherNode(String),
    /// Nobody here knows it.
    Unknown {
        /// This node.
        node: String,
        /// The ledger that was looked into.
        ledger: String,
        /// When that was begun.
        begun: WallMs,
    },
}

impl Answer {
    /// The exit status, as documented.
    pub fn exit_status(&self) -> u8 {
        match self {
            Answer::Told(told) => match &told.assessment.judgement {
                Judgement::Breaching(_) => 0,
                Judgement::Alive { .. } => 10,
                Judgement::Spared { guard: Guard::Exemption, .. } => 11,
                // Where a unit may be another job's, which samples are its own is not certain either.
                _ if told.history.ticks.is_empty() && !told.units_are_shared() => 13,
                Judgement::Spared { .. } | Judgement::Unjudged { .. } => 12,
            },
            Answer::Ended { .. } => 15,
            Answer::OtherNode(_) => 16,
            Answer::Unknown { .. } => 14,
        }
    }
}

/// Explains a job by any id that Slurm prints.
pub fn explain(asked: &Asked, ledger: &Ledger, id: &str) -> Result<Answer, LedgerError> {
    let records = find(ledger, id)?;
    let open = |r: &&JobRecord| r.life == Life::Open && r.boot_id == asked.now.boot_id;
    if let Some(record) = records.iter().find(open) {
        return Ok(Answer::Told(Box::new(tell(asked, ledger, record.run.clone(), &records)?)));
    }
    let case = ledger.cases_of(id)?.into_iter().next();
    if case.is_some() || !records.is_empty() {
        let left = match (&case, records.first()) {
            (None, Some(record)) => left_of(ledger, record.run.id)?,
            _ => Vec::new(),
        };
        return Ok(Answer::Ended { when: ended_when(&records, case.as_ref()), case, left });
    }
    Ok(match other_node(asked.place, id) {
        Some(node) => Answer::OtherNode(node),
        None => Answer::Unknown {
            node: asked.place.node.to_string(),
            ledger: ledger.path().display().to_string(),
            begun: ledger.created().wall,
        },
    })
}

fn find(ledger: &Ledger, id: &str) -> Result<Vec<JobRecord>, LedgerError> {
    match JobId::parse(id) {
        Some(job) => {
            let mut records = ledger.find_runs(job)?;
            if records.is_empty() {
                records = ledger.find_shown(id)?;
            }
            Ok(records)
        }
        None => ledger.find_shown(id),
    }
}

fn ended_when(records: &[JobRecord], case: Option<&StoredCase>) -> String {
    let closed = records.first().map(|r| match r.life {
        Life::Ended(at) => format!("ended {}", at.rfc3339()),
        Life::Requeued(at) => format!("requeued {}", at.rfc3339()),
        Life::Replaced(at) => format!("replaced {}", at.rfc3339()),
        Life::Open => "was registered before this boot, and is over".to_owned(),
    });
    closed.or(case.map(|c| format!("ended {}", c.created.rfc3339()))).unwrap_or_default()
}

/// What is kept of a run that has no case file: its findings and what was done.
fn left_of(ledger: &Ledger, run: JobRunId) -> Result<Vec<String>, LedgerError> {
    let found = |row: &FindingRow| {
        let hours = row.wasted.measured();
        let cost = hours.map_or("hours not kept".to_owned(), |h| format!("{:.1} GPU-hours", h.hours()));
        format!("{} since {}; {cost}", row.signature, row.since_wall.rfc3339())
    };
    let done = |a: &ActionRecord| format!("{} {} {}", a.deed.word(), a.wall.rfc3339(), a.outcome.word());
    let (findings, actions) = (ledger.findings_of(run)?, ledger.actions_of(run)?);
    Ok(findings.iter().map(found).chain(actions.iter().map(done)).collect())
}

/// Several slurmd on one host have a ledger each.
fn other_node(place: &Place, id: &str) -> Option<String> {
    let knows = |other: Place| {
        let ledger = Ledger::open_read_only(&other.dir, std::time::Duration::from_millis(200)).ok()?;
        (!find(&ledger, id).ok()?.is_empty()).then(|| ledger.node().to_string())
    };
    place.others().into_iter().find_map(knows)
}

/// Judges one registered run again.
pub fn tell(asked: &Asked, ledger: &Ledger, run: JobRun, records: &[JobRecord]) -> Result<Told, LedgerError> {
    let rules = &asked.config.rules;
    let jobs = ledger.open_runs(&asked.now.boot_id)?;
    let known = ledger.known_units(&asked.now.boot_id)?;
    let gres = asked.slurm.gres(&jobs);
    let mapping = gres.mapping.unwrap_or(attribution::Mapping::Unknown);
    let held = attribution::attribute(&jobs, &known, &mapping);
    let mut units = held.get(&run.id).cloned().unwrap_or(Reading::Absent(Absence::NotRecorded));
    if doubted(ledger, asked.now, &run, &units)? {
        units = Reading::Absent(Absence::Shared);
    }
    // Whether a job holds the whole node only a run can say, which sees the cards; here nothing escalates.
    let node_units = Reading::Absent(if gres.shares { Absence::Shared } else { Absence::NotRecorded });
    let id = run.id;
    let everything = vec![JobAsked { run: run.clone(), units, reach: None }];
    let mut history = match ledger
        .replay(
            &asked.now.boot_id,
            everything,
            node_units,
            &mut |seen| policy::settles(seen, &rules.thresholds),
            true,
        )?
        .pop()
    {
        Some(history) => history,
        None => empty(run),
    };
    history.open_finding = ledger.open_findings()?.into_iter().find(|f| f.job_run == id).map(Into::into);
    history.fault = hiding(&ledger.open_faults()?, &history, &ledger.known_units(&asked.now.boot_id)?);
    let cadence = ledger.cadence(asked.now)?;
    let limits = cadence.measured().map(|cadence| window::limits(&rules.thresholds, *cadence));
    let assessment = judge(&history, rules, cadence, asked.now);
    let mut told = Told {
        node: asked.place.node.to_string(),
        now: asked.now.clone(),
        actions: ledger.actions_of(id)?,
        withheld: ledger.withheld_of(id)?,
        findings: ledger.findings_of(id)?,
        xids: ledger.xids_of(id)?.into_iter().map(|row| row.detail).collect(),
        next: None,
        not_enforced: not_enforced(asked, &history.job),
        ended: None,
        other_runs: records.iter().filter(|r| r.run.id != id).map(other_run).collect(),
        gap_ms: limits.as_ref().map_or(GAP_UNKNOWN_MS, |limits| limits.gap_ms),
        window_ms: limits.map_or(rules.thresholds.window_ms, |limits| limits.window_ms),
        warmup_ms: rules.thresholds.warmup_ms,
        util_pct: rules.thresholds.util_pct,
        history,
        assessment,
    };
    told.next = told.finding().and_then(|f| told.due(f, asked).or(told.ahead(f, asked)));
    told.add_stage_guards(asked);
    Ok(told)
}

/// Why the configuration lets nothing be done for a job run.
fn not_enforced(asked: &Asked, job: &JobRun) -> Option<String> {
    let (config, node) = (asked.config, &asked.place.node);
    config.mode().permit(&config.enforce_in, job, node).err().map(|why| why.to_string())
}

/// Whether the last run, which saw the processes on the cards, did not take these units for this job's alone.
fn doubted(
    ledger: &Ledger,
    now: &Now,
    job: &JobRun,
    units: &Reading<Vec<UnitRef>>,
) -> Result<bool, LedgerError> {
    let (Some(units), Some((at, owners))) = (units.measured(), ledger.last_owners(&now.boot_id)?) else {
        return Ok(false);
    };
    let is_another = |unit: &UnitRef| owners.iter().any(|(uuid, o)| *uuid == unit.uuid && *o != Some(job.id));
    Ok(at >= job.registered && units.iter().any(is_another))
}

/// The explanation as it stands, for a run that had a finding or an action. `ended`: how it ended, in words.
pub fn case_file(
    asked: &Asked,
    ledger: &Ledger,
    job: JobRun,
    ended: &'static str,
) -> Result<Option<CaseFile>, LedgerError> {
    let nothing = ledger.findings_of(job.id)?.is_empty() && ledger.actions_of(job.id)?.is_empty();
    if nothing {
        return Ok(None);
    }
    let display_id = job.shown_id();
    let told = Told { ended: Some(ended), next: None, ..tell(asked, ledger, job, &[])? };
    let mut body = json::page(&told);
    body["page"] = text::page(&told, &Screen::PLAIN).into();
    Ok(Some(CaseFile { display_id, body: body.to_string() }))
}

/// The open fault, in words, by which what this job does is hidden.
pub fn hiding(open: &[FaultRow], history: &JobHistory, known: &[KnownUnit]) -> Option<String> {
    let open = open.iter().map(|f| (f.kind.as_str(), f.subject.as_str(), f.detail.as_str()));
    fault::hiding(open, history.units.measured()?, known)
}

fn empty(run: JobRun) -> JobHistory {
    JobHistory {
        floors: Vec::new(),
        job: run,
        units: Reading::Absent(Absence::NotRecorded),
        node_units: Reading::Absent(Absence::NotRecorded),
        ticks: Vec::new(),
        actions: Vec::new(),
        open_finding: None,
        fault: None,
    }
}

fn other_run(record: &JobRecord) -> String {
    let r = &record.run.registration;
    format!("restart {}, started {}", r.restart, r.start.wall.rfc3339())
}

impl Told {
    /// Whether a unit of it may be another job's.
    fn units_are_shared(&self) -> bool {
        self.history.units == Reading::Absent(Absence::Shared)
    }

    /// The finding, where there is one.
    pub fn finding(&self) -> Option<&Finding> {
        match &self.assessment.judgement {
            Judgement::Breaching(finding) => Some(finding),
            _ => None,
        }
    }

    /// spared, unjudged, alive or breaching.
    pub fn judgement_word(&self) -> &'static str {
        self.assessment.judgement.word()
    }

    /// The guard that spared it or found the evidence lacking.
    pub fn guard(&self) -> Option<Guard> {
        match &self.assessment.judgement {
            Judgement::Spared { guard, .. } | Judgement::Unjudged { guard, .. } => Some(*guard),
            _ => None,
        }
    }

    /// The moment up to which it was judged: that of its newest sample.
    fn newest(&self) -> BootMs {
        self.history.ticks.last().map_or(self.now.boot, |tick| tick.at)
    }

    /// The next stage. What was judged ends with the newest sample, and the time since then has passed.
    fn ahead(&self, finding: &Finding, asked: &Asked) -> Option<Next> {
        let next = stage::next(finding, &asked.config.rules.stages)?;
        let since_ms = self.now.boot.since_ms(self.newest()).max(0);
        Some(Next { in_ms: next.in_ms.saturating_sub(since_ms).max(0), ..next })
    }

    /// Why what comes next will not be done, where that is certain already.
    pub fn next_is_withheld(&self) -> Option<&str> {
        self.next.as_ref().filter(|next| next.verdict > Verdict::Alert)?;
        self.not_enforced.as_deref()
    }

    /// The deed that is due and only waits for this node's moment.
    fn due(&self, finding: &Finding, asked: &Asked) -> Option<Next> {
        let config = asked.config;
        let done = |deed: Deed| self.actions.iter().any(|a| a.deed == deed && a.outcome == Outcome::Done);
        let due = stage::due(finding, &config.rules.stages)?.min(finding.cap);
        let verdict = match due {
            Verdict::Alert => return None,
            Verdict::Drain | Verdict::Cancel if !done(Deed::Drain) => Verdict::Drain,
            Verdict::Cancel if !done(Deed::Cancel) && !done(Deed::Requeue) => Verdict::Cancel,
            Verdict::Drain | Verdict::Cancel => return None,
        };
        let spread_ms = config.limits.spread.as_millis() as i64;
        let (node, job) = (&asked.place.node, self.history.job.registration.job);
        let cadence = self.assessment.limits.as_ref().map(|limits| limits.cadence);
        let slot = Slot::of_deed(node, job, spread_ms, cadence, &self.actions);
        let in_ms = slot.next_in_ms(asked.now.boot);
        (config.mode().enforces() && done(Deed::Alert)).then_some(Next { verdict, in_ms })
    }

    /// The two guards of acting: what the mode allows, and the rungs below a cancel.
    fn add_stage_guards(&mut self, asked: &Asked) {
        let observe = !asked.config.mode().enforces();
        let saw = if observe { "mode is observe" } else { "mode is enforce" };
        let done = |deed: Deed| {
            let runs = self.actions.iter().filter(|a| a.deed == deed && a.outcome == Outcome::Done);
            runs.map(|a| format!("{} in run {}", deed.word(), a.run.0)).next_back()
        };
        let rungs = [done(Deed::Alert), done(Deed::Drain)];
        let both = rungs.iter().all(Option::is_some);
        let rungs: Vec<String> = rungs.into_iter().flatten().collect();
        let rungs =
            if rungs.is_empty() { "neither alerted nor drained".to_owned() } else { rungs.join(", ") };
        self.assessment
            .guards
            .insert(0, GuardReport::new(Guard::Observe, saw, "enforce, to drain or cancel", observe));
        let limit = "alert and drain, each done in an earlier run";
        self.assessment.guards.push(GuardReport::new(Guard::CancelHistory, rungs, limit, !both));
    }

    /// What was withheld, as pairs of verdict and reason.
    pub fn withheld_pairs(&self) -> Vec<(String, String)> {
        let word = |deed: &Deed| deed.word().to_owned();
        self.withheld.iter().map(|w| (word(&w.deed), w.because.clone())).collect()
    }
}

/// What was done, in order, as words; a drain that we lifted again is `drain`, `release`.
pub fn done_words(actions: &[ActionRecord]) -> Vec<String> {
    let mut words = Vec::new();
    for action in actions {
        match action.outcome {
            Outcome::Done => words.push(action.deed.word().to_owned()),
            Outcome::Released => {
                words.extend([action.deed.word().to_owned(), "release".to_owned()]);
            }
            Outcome::Lifted => words.push(action.deed.word().to_owned()),
            Outcome::Begun | Outcome::Failed | Outcome::Unknown => {}
        }
    }
    words
}

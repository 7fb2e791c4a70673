//! What only Slurm can say, asked once and bounded: a job that nobody registered, and what a Prolog cannot know of
//! one that a finding makes matter. Answers and failures are kept, with back-off: a healthy node asks nothing.

use super::{Setting, Trouble};
use crate::ledger::{Ledger, LedgerErrorKind, Question};
use crate::model::*;
use crate::policy::nodes::Nodes;
use crate::reading::{Absence, Reading};
use crate::slurm::{Ask, Listed, hostlist};
use crate::units::{BootMs, NodeName, WallMs, hash};

/// Slurm's own limit for one list.
const MOST_NODES: usize = 64 << 10;

/// Jobs asked about in one run; others wait for the next.
const DISCOVERIES_A_RUN: usize = 2;
/// `slurm.source: squeue` loads every job of the cluster at the controller: at most so often.
const LIST_EVERY_MS: i64 = 15 * 60_000;

/// Registers jobs that local evidence shows and no Prolog told of.
pub fn discover(setting: &Setting, shown: &[JobId], ledger: &mut Ledger) -> Result<(), Trouble> {
    let mut asked = 0;
    for job in shown {
        let subject = format!("discover {job}");
        if asked == DISCOVERIES_A_RUN || !setting.may_ask() || !ledger.ask_allowed(&subject, setting.now)? {
            continue;
        }
        asked += 1;
        match found(setting, *job) {
            Ok(registration) => {
                match ledger.register(setting.now, &registration) {
                    Ok(_) => tracing::info!(job = job.get(), "job {job} found: no Prolog had registered it"),
                    // Its Epilog came between our look and this moment.
                    Err(e) if e.kind == LedgerErrorKind::Refused => {}
                    Err(e) => return Err(e.into()),
                }
                ledger.answered(&subject, "registered", setting.now)?;
            }
            Err(why) => {
                tracing::warn!(job = job.get(), "job {job} is not registered: {why}; it is not judged");
                ledger.unanswered(&subject, setting.now)?;
            }
        }
    }
    Ok(())
}

/// The registration of a job as Slurm tells it: running here, with its GPUs.
fn found(setting: &Setting, job: JobId) -> Result<Registration, String> {
    let listed = setting.slurm.job(job, Ask::NOTHING_MORE).map_err(|silence| silence.to_string())?;
    let Some(Listed { uid, details: Some(details), .. }) = listed else {
        return Err("Slurm does not say that it runs".to_owned());
    };
    if details.state != JobState::Running {
        return Err(format!("Slurm says it is {}", details.state.word()));
    }
    let gpus = setting.slurm.gpus_of(job, &details.display_id).map_err(|silence| silence.to_string())?;
    let wall = WallMs(details.start_unix_s.saturating_mul(1000));
    let ago_ms = (setting.now.wall.0 - wall.0).max(0);
    let start = JobStart { boot: BootMs(setting.now.boot.0 - ago_ms), wall, source: StartSource::Slurm };
    let not_told = Reading::Absent(Absence::NotRecorded);
    Ok(Registration {
        cluster: Reading::Absent(Absence::NotRecorded),
        job,
        restart: details.restart.measured().copied().ok_or("its restart count is not known")?,
        sluid: Reading::Absent(Absence::NotRecorded),
        start,
        user: details.user,
        uid: Reading::Measured(uid),
        account: details.account,
        partition: details.partition,
        qos: details.qos,
        nodes: details.nodes,
        node_list: details.node_list,
        het_leader: details.display_id.split_once('+').and_then(|(leader, _)| JobId::parse(leader)),
        limit_end: not_told,
        gpus: gpus.into_iter().map(GpuClaim::Index).collect(),
        by: RegisteredBy::Discovery,
    })
}

/// Every job that Slurm sees running here, at most every 15 minutes, at a moment that differs by node name.
pub fn list(setting: &Setting, ledger: &mut Ledger) -> Result<Vec<JobId>, Trouble> {
    const SUBJECT: &str = "list";
    let offset_ms = i64::from(hash(setting.place.node.as_str())) % LIST_EVERY_MS;
    let slot = (setting.now.boot.0 + offset_ms).div_euclid(LIST_EVERY_MS).to_string();
    let due = match ledger.question(SUBJECT, setting.now)? {
        Question::Ask => true,
        Question::Answered { answer, .. } => answer != slot,
        Question::Wait { .. } => false,
    };
    if !due || !setting.may_ask() {
        return Ok(Vec::new());
    }
    match setting.slurm.jobs_here() {
        Ok(jobs) => {
            ledger.answered(SUBJECT, &slot, setting.now)?;
            Ok(jobs.iter().filter(|j| j.state == JobState::Running).map(|j| j.job).collect())
        }
        Err(silence) => {
            tracing::warn!(
                "{silence}; jobs without a registration are unknown this run, nothing was judged on it"
            );
            ledger.unanswered(SUBJECT, setting.now)?;
            Ok(Vec::new())
        }
    }
}

/// Asks once for what a finding makes matter (name, QOS, shown id, nodes, state), and keeps it.
pub fn details(setting: &Setting, job: &JobRun, ledger: &mut Ledger) -> Result<Option<JobDetails>, Trouble> {
    let subject = format!("details {}", job.id.0);
    if !setting.may_ask() || !ledger.ask_allowed(&subject, setting.now)? {
        return Ok(None);
    }
    let told = told(setting, job);
    match told {
        Ok(details) => {
            ledger.set_details(job.id, &details)?;
            // A job that does not run is asked about again, with back-off: it may go on.
            match details.state {
                JobState::Running => ledger.answered(&subject, details.state.word(), setting.now)?,
                _ => ledger.unanswered(&subject, setting.now)?,
            }
            Ok(Some(details))
        }
        Err(why) => {
            tracing::warn!(
                job = job.registration.job.get(),
                "{why}; nothing is done to job {}",
                job.shown_id()
            );
            ledger.unanswered(&subject, setting.now)?;
            Ok(None)
        }
    }
}

/// Whether Slurm says that this run is over; asked again and again, with back-off, while somebody needs to know.
pub fn ended(setting: &Setting, job: &JobRun, ledger: &mut Ledger) -> Result<Option<JobDetails>, Trouble> {
    let subject = format!("ended {}", job.id.0);
    if !setting.may_ask() || !ledger.ask_allowed(&subject, setting.now)? {
        return Ok(None);
    }
    ledger.unanswered(&subject, setting.now)?;
    Ok(told(setting, job).ok().filter(|details| details.state == JobState::Ended))
}

fn told(setting: &Setting, job: &JobRun) -> Result<JobDetails, String> {
    let id = job.registration.job;
    let ask = Ask { name: setting.config.rules.exemptions.name_pattern.is_some(), ..Ask::NOTHING_MORE };
    let mut details = match setting.slurm.job(id, ask).map_err(|silence| silence.to_string())? {
        Some(Listed { details: Some(details), .. }) => details,
        Some(Listed { state, .. }) => over(job, state),
        None => over(job, JobState::Ended),
    };
    if details.state == JobState::Running && setting.slurm.gres(std::slice::from_ref(job)).shares {
        let shares = setting.slurm.holds_shares(id, &details.display_id);
        details.shares = shares.map_or_else(|silence| Reading::Absent(silence.absence()), Reading::Measured);
    }
    Ok(details)
}

/// The job's nodes by Slurm's own list; without an answer of Slurm, only a job that its registration places on one
/// node is known to be alone.
pub(super) fn nodes_of(job: &JobRun, me: &NodeName) -> Result<Nodes, String> {
    let count = job.details.as_ref().map_or(job.registration.nodes, |details| details.nodes);
    match count {
        Reading::Measured(1) => return Ok(Nodes::alone(me)),
        Reading::Measured(_) => {}
        Reading::Absent(_) => return Err("on how many nodes the job runs is not known".to_owned()),
    }
    let list = job.details.as_ref().and_then(|details| details.node_list.measured());
    let list = list.ok_or("on which nodes the job runs is not known")?;
    let names = hostlist::expand(list, MOST_NODES)?;
    let names = names.iter().map(|name| NodeName::new(name)).collect::<Result<Vec<_>, _>>()?;
    if count != Reading::Measured(names.len() as u32) {
        return Err("Slurm's list of the job's nodes is not as long as it says".to_owned());
    }
    Nodes::new(names, me)
}

/// What is left to say of a run that Slurm no longer sees here.
pub fn over(job: &JobRun, state: JobState) -> JobDetails {
    let r = &job.registration;
    JobDetails {
        state,
        start_unix_s: r.start.wall.0.div_euclid(1000),
        restart: Reading::Absent(Absence::NotRecorded),
        display_id: job.shown_id(),
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

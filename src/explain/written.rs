//! The one thing that `--explain` asks Slurm: what people wrote for the job, a keep or a comment of its own. It is
//! looked at before each deed and kept in no ledger, so only Slurm has it. Asked only while a finding stands, for
//! nothing else leads to a deed; silence is told and changes nothing.

use super::{Answer, Asked};
use crate::policy::guard::{Guard, GuardReport, written};
use crate::slurm::{Ask, Controller, Listed};
use std::time::Duration;

/// So long somebody who asks by hand waits for a word of Slurm's.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Adds what each says, as guards of the page.
pub fn add(answer: &mut Answer, asked: &Asked, slurm: &dyn Controller) {
    let Answer::Told(told) = answer else { return };
    if told.finding().is_none() {
        return;
    }
    let rules = &asked.config.rules.exemptions;
    let r = &told.history.job.registration;
    let ask = Ask { near_deed: true, comment: rules.job_comment_ms.is_some(), ..Ask::NOTHING_MORE };
    let not_known = |why: String| {
        vec![GuardReport::new(Guard::Exemption, why, "a keep, or a comment of its own, before a deed", true)]
    };
    let rows = match slurm.job(r.job, ask) {
        Ok(Some(Listed { details: Some(details), .. })) => {
            let (gpus, age_ms) = (r.gpus.len() as u32, asked.now.boot.since_ms(r.start.boot));
            let looked = written(rules, &details.near, gpus, age_ms, asked.now);
            looked.into_iter().map(|one| one.report(true)).collect()
        }
        Ok(_) => not_known("Slurm does not list the job as running".to_owned()),
        Err(silence) => not_known(silence.to_string()),
    };
    told.assessment.guards.extend(rows);
}

//! From a job's id as Slurm prints it to the raw one, for ids that people type.

use super::command::Program;
use super::scontrol::{exact_id, is_exact_id};
use super::squeue::known;
use super::{Answer, Slurm, cgroup, misread};
use crate::model::JobId;

/// Whether a text can name one job, by a form that Slurm prints: `130`, `123_4`, `200+1`, or a SLUID. None has the number 0.
pub fn is_one_job(id: &str) -> bool {
    let zero = || matches!(id.trim_start_matches('0').bytes().next(), None | Some(b'_' | b'+'));
    cgroup::is_sluid(id) || (is_exact_id(id) && !zero())
}

impl Slurm {
    /// The raw id of `130`, which costs no question, of `123_4` or of a SLUID; `None`: not known to Slurm (any more).
    pub fn job_named(&self, id: &str) -> Answer<Option<JobId>> {
        if let Some(job) = JobId::parse(id) {
            return Ok(Some(job));
        }
        if cgroup::is_sluid(id) {
            return self.job_of_sluid(id);
        }
        let id = exact_id(Program::Squeue, id)?;
        match known(self.squeue(&["-j", id, "-O", "JobID:|,JobArrayID:"]))? {
            Some(text) => named(&text, id),
            None => Ok(None),
        }
    }
}

/// Tasks that still wait share a row under another name, `123_[5-9]`: those are not this one.
fn named(text: &str, id: &str) -> Answer<Option<JobId>> {
    for line in text.lines() {
        let mut fields = line.split('|');
        match (fields.next().and_then(JobId::parse), fields.next()) {
            (Some(job), Some(shown)) if shown == id => return Ok(Some(job)),
            (Some(_), Some(_)) => {}
            _ => return Err(misread(Program::Squeue, format!("row `{line}`"))),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_found_by_the_name_that_people_know() {
        let text = "130|123_4\n123|123_[5-9]\n";
        assert_eq!(named(text, "123_4"), Ok(JobId::new(130)));
        assert_eq!(named(text, "123_7"), Ok(None), "it waits");
        assert_eq!(named("", "123_4"), Ok(None));
        assert!(named("x\n", "123_4").is_err());
    }
}

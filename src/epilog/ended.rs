//! The run that ended, and those beside it: which units were its own, since when, and whose else they may be. By the
//! ledger first, since the controller has let the GPUs go by now; nothing is asked of it.

use super::verify::{self, Checked, Sight};
use crate::explain::Asked;
use crate::ledger::Ledger;
use crate::model::{GpuClaim, JobId, JobRun, JobRunId, StartSource};
use crate::policy::attribution::Mapping;
use crate::policy::attribution::ending::{Beside, EndedUnit, units};
use crate::policy::leak::Case;
use crate::prolog::{self, Env};
use crate::reading::{Absence, Reading};
use crate::units::BootMs;

/// A run that ended.
pub struct Ended {
    /// Its units; none for a job without GPUs here.
    pub units: Vec<EndedUnit>,
    run: JobRun,
    began: Reading<BootMs>,
    others: Vec<JobRun>,
}

impl Ended {
    /// `ending`: as it was registered, if it was. An error: it held GPUs here, and nobody can say which. `ledger`: none
    /// where it cannot be read, then nothing is known of neighbours but what this environment and slurmd's files say.
    pub fn find(
        asked: &Asked,
        env: Env,
        ending: Option<JobRun>,
        ledger: Option<&Ledger>,
    ) -> Result<Ended, String> {
        let own_row = ending.as_ref().map(|run| run.id);
        let (mut run, began) = match ending {
            Some(run) if !run.registration.gpus.is_empty() => {
                let began = Reading::Measured(run.registration.start.boot);
                (run, began)
            }
            ending => by_environment(asked, env, ending)?,
        };
        learn_sluid(&mut run, env);
        if run.registration.gpus.is_empty() {
            return Ok(Ended { units: Vec::new(), run, began, others: Vec::new() });
        }
        let boot = &asked.now.boot_id;
        let read = |ledger: &Ledger| {
            ledger.together(|ledger| Ok((ledger.open_runs(boot)?, ledger.known_units(boot)?)))
        };
        let (mut others, known) =
            ledger.map(read).transpose().map_err(|e| e.to_string())?.unwrap_or_default();
        // One that could not be cleared.
        others.retain(|other| Some(other.id) != own_row);
        if others.iter().any(|other| other.registration.job == run.registration.job) {
            return Err("another run of the job has begun here".to_owned());
        }
        let all: Vec<JobRun> = others.iter().chain([&run]).cloned().collect();
        let gres = asked.slurm.gres(&all);
        let by_index = |claim: &GpuClaim| matches!(claim, GpuClaim::Index(_));
        let mapping = match gres.mapping {
            Ok(mapping) => mapping,
            Err(why) if run.registration.gpus.iter().any(by_index) => return Err(why),
            // Only a neighbour's index needed it.
            Err(_) => Mapping::Unknown,
        };
        let beside = Beside { others: &others, known: &known, mapping: &mapping, shares: gres.shares };
        let units = units(&run.registration.gpus, &beside);
        Ok(Ended { units, run, began, others })
    }

    /// Looks at its units, and at no others.
    pub fn look(self, asked: &Asked, sight: &mut dyn Sight) -> Vec<Checked> {
        sight.know(&self.others);
        sight.know(std::slice::from_ref(&self.run));
        let elsewhere: Vec<JobId> = self.others.iter().map(|other| other.registration.job).collect();
        let case = Case {
            job: self.run.registration.job,
            began: self.began,
            shared: false,
            elsewhere: &elsewhere,
            verify: asked.config.epilog.verify,
            allow: &asked.config.epilog.allow,
        };
        verify::verify(&case, self.units, sight)
    }
}

/// Whoever found the job by its cgroup could not know its SLUID, and without that its own processes are nobody's.
fn learn_sluid(run: &mut JobRun, env: Env) {
    let told = env("SLURM_JOB_SLUID").filter(|sluid| sluid != "(null)");
    if let (None, Some(sluid)) = (run.registration.sluid.measured(), told) {
        run.registration.sluid = Reading::Measured(sluid);
    }
}

/// What slurmd says at the job's end, where the ledger does not know its GPUs. When it began is not known then, unless
/// this Slurm tells.
fn by_environment(
    asked: &Asked,
    env: Env,
    ending: Option<JobRun>,
) -> Result<(JobRun, Reading<BootMs>), String> {
    let told = prolog::registration(env, asked.now)?;
    if let Some(why) = prolog::doubted(&told, env, &asked.place.node) {
        return Err(why.to_owned());
    }
    let began = match (&ending, told.start.source) {
        (Some(run), _) => Reading::Measured(run.registration.start.boot),
        (None, StartSource::Slurm) => Reading::Measured(told.start.boot),
        (None, StartSource::Registration) => Reading::Absent(Absence::NotRecorded),
    };
    let run = match ending {
        Some(mut run) => {
            run.registration.gpus = told.gpus;
            run
        }
        None => JobRun {
            id: JobRunId(0),
            registration: told,
            registered: asked.now.boot,
            details: None,
            first_activity: None,
            last_activity: None,
        },
    };
    Ok((run, began))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Now;
    use crate::units::WallMs;

    #[test]
    fn a_run_that_was_registered_without_its_sluid_gets_that_of_this_environment() {
        let now = Now { boot_id: "b".into(), boot: BootMs(1_000_000), wall: WallMs(1_795_961_850_000) };
        let run = |sluid: Option<&str>| {
            let env = |name: &str| match name {
                "SLURM_JOB_ID" => Some("7".to_owned()),
                "SLURM_JOB_SLUID" => sluid.map(str::to_owned),
                _ => None,
            };
            let registration = prolog::registration(&env, &now).unwrap();
            let (details, first_activity, last_activity) = (None, None, None);
            JobRun {
                id: JobRunId(1),
                registration,
                registered: now.boot,
                details,
                first_activity,
                last_activity,
            }
        };
        for (registered, told, want) in [
            (None, Some("s63NM8KTNVBJ00"), Some("s63NM8KTNVBJ00")),
            (Some("s63NM8KTNVBJ00"), Some("s5K1KKYAYG5D00"), Some("s63NM8KTNVBJ00")),
            (None, Some("(null)"), None),
            (None, None, None),
        ] {
            let mut run = run(registered);
            learn_sluid(&mut run, &|name| {
                (name == "SLURM_JOB_SLUID").then_some(told).flatten().map(str::to_owned)
            });
            assert_eq!(run.registration.sluid.measured().map(String::as_str), want, "{told:?}");
        }
    }
}

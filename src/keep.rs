//! `keep JOBID`: an administrator has one job left alone for a time. The word is written to the job's AdminComment,
//! where every node finds it before a deed, so this works from any node: no ledger, no GPU. It looks before it writes,
//! loses nothing that others wrote there, and believes only what reads back.

use crate::model::{JobDetails, JobId, JobState, Outcome};
use crate::policy::keep::{Keep, admin};
use crate::reading::{Absence, Reading};
use crate::slurm::{Answer, Ask, Controller, Listed};
use crate::units::WallMs;
use std::time::Duration;

/// What is wished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// That it be left alone for so long from now.
    For(Duration),
    /// That a keep end now.
    End,
}

/// A wish for one job.
pub struct Order<'a> {
    /// The job as it was typed.
    pub id: &'a str,
    /// What is wished.
    pub wish: Wish,
    /// Who wishes it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// This moment.
    pub now: WallMs,
}

/// What is asked of Slurm.
pub struct Desk<'a> {
    /// Asked and told about the job.
    pub slurm: &'a dyn Controller,
    /// The raw id of a job as Slurm prints it: `130`, `123_4`, a SLUID.
    pub find: &'a dyn Fn(&str) -> Answer<Option<JobId>>,
}

/// Writes the keep and reads it back; what was done, in words.
///
/// # Errors
///
/// One line: what failed, the cause, and that nothing was written; or what is not certain.
pub fn keep(order: &Order, desk: &Desk) -> Result<String, String> {
    let id = order.id.escape_debug();
    let nothing = |why: String| format!("job {id}: {why}; nothing was written");
    let (job, details) = find(order, desk).map_err(nothing)?;
    let there = admin_comment(&details).map_err(nothing)?;
    let said = there.map(admin).unwrap_or_default();
    let before = said.keep.filter(|keep| order.now < keep.until);
    let in_force = said.doubt.is_some() || before.is_some();
    let keep = match order.wish {
        Wish::For(length) => order.keep(WallMs(order.now.0.saturating_add(length.as_millis() as i64))),
        Wish::End if in_force => order.keep(order.now),
        Wish::End => return Err(nothing("no keep of it is in force".to_owned())),
    };
    let shown = &details.display_id;
    let text = keep.beside(there).map_err(|why| in_its_place(&nothing(why), shown, &keep))?;
    if let Err(silence) = desk.slurm.set_admin_comment(shown, &text) {
        return Err(match silence.outcome() {
            Outcome::Failed => nothing(silence.to_string()),
            _ => format!("job {shown}: {silence}; whether it was written is not known; look: {}", see(shown)),
        });
    }
    let (_, after) = found(job, desk).map_err(|why| unsure(shown, &why))?;
    match admin_comment(&after) {
        Ok(Some(read)) if read == text => {}
        Ok(read) => {
            let read = read.unwrap_or("").escape_debug();
            return Err(unsure(shown, &format!("its AdminComment reads back as `{read}`")));
        }
        Err(why) => return Err(unsure(shown, &why)),
    }
    let in_place_of = before.map_or(String::new(), |before| format!("; the one before: {}", before.words()));
    Ok(match order.wish {
        Wish::For(_) => format!(
            "job {shown} is kept {}: no node drains for it or cancels it until then; alerts go on{in_place_of}\n\
             see it: {}; end it: gpu-reaper-hc keep {shown} --end\n",
            keep.words(),
            see(shown)
        ),
        Wish::End => format!("job {shown}: its keep has ended{in_place_of}\n"),
    })
}

/// How to see it without us.
fn see(shown: &str) -> String {
    format!("scontrol show job {shown} (AdminComment)")
}

/// What only a person may decide: our line instead of what stands there. It holds no quote.
fn in_its_place(refused: &str, shown: &str, keep: &Keep) -> String {
    format!("{refused}; to replace it: scontrol update JobId={shown} AdminComment='{}'", keep.line())
}

fn unsure(shown: &str, why: &str) -> String {
    format!("job {shown}: written, and not seen to be there: {why}; look: {}", see(shown))
}

impl Order<'_> {
    /// To the second, as it will be read back.
    fn keep(&self, until: WallMs) -> Keep {
        let until = WallMs(until.0 - until.0.rem_euclid(1000));
        Keep { until, by: self.by.clone(), reason: self.reason.clone() }
    }
}

/// The one job that is meant, if it can be kept.
fn find(order: &Order, desk: &Desk) -> Result<(JobId, JobDetails), String> {
    const HET: &str =
        "a component of a heterogeneous job is never cancelled, and a drain touches no running job";
    if order.id.contains('+') {
        return Err(HET.to_owned());
    }
    let unknown = "Slurm knows no such job, or no longer; of an array name one task, as 123_4";
    let job = (desk.find)(order.id).map_err(|silence| silence.to_string())?.ok_or(unknown)?;
    let (state, details) = found(job, desk)?;
    let typed = JobId::parse(order.id);
    let array = details.display_id.split_once('_').and_then(|(array, _)| JobId::parse(array));
    match state {
        // The text would go to every task, over what stands at each.
        _ if array.is_some() && array == typed => Err(format!(
            "it is an array, whose tasks have an AdminComment each; name one, as {}",
            details.display_id
        )),
        _ if details.is_het() => Err(HET.to_owned()),
        JobState::Running | JobState::Suspended | JobState::Configuring => Ok((job, details)),
        JobState::Pending | JobState::Completing | JobState::Ended | JobState::Other => {
            Err(format!("Slurm says it is {}; only one that runs can be kept", state.word()))
        }
    }
}

fn found(job: JobId, desk: &Desk) -> Result<(JobState, JobDetails), String> {
    let ask = Ask { near_deed: true, ..Ask::NOTHING_MORE };
    match desk.slurm.job(job, ask).map_err(|silence| silence.to_string())? {
        Some(Listed { state, details: Some(details), .. }) => Ok((state, details)),
        Some(Listed { state, .. }) => {
            Err(format!("Slurm says it is {}; only one that runs can be kept", state.word()))
        }
        None => Err("Slurm knows no such job, or no longer".to_owned()),
    }
}

/// What stands there now.
fn admin_comment(details: &JobDetails) -> Result<Option<&str>, String> {
    match &details.near.admin_comment {
        Reading::Measured(text) => Ok(Some(text)),
        Reading::Absent(Absence::NoData) => Ok(None),
        Reading::Absent(why) => Err(format!("its AdminComment could not be read: {}", why.words())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{NearDeed, NodeRow, NodeStatus};
    use crate::slurm::{NoAnswer, Target};
    use std::cell::RefCell;

    const NOW: WallMs = WallMs(1_795_960_800_500);

    /// A slurmctld that knows one job, and how it takes an update.
    struct Ctld {
        listed: Option<Listed>,
        takes: Takes,
        written: RefCell<Vec<(String, String)>>,
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Takes {
        Well,
        Refuses,
        TimesOut,
        Forgets,
    }

    impl Ctld {
        fn with(shown: &str, state: JobState, admin_comment: Reading<&str>) -> Ctld {
            let not_asked = || Reading::Absent(Absence::NotAsked);
            let near = NearDeed {
                admin_comment: admin_comment.map(str::to_owned),
                ..NearDeed::absent(Absence::NotAsked)
            };
            let details = JobDetails {
                state,
                start_unix_s: 1,
                restart: Reading::Measured(0),
                display_id: shown.to_owned(),
                name: not_asked(),
                user: not_asked(),
                account: not_asked(),
                partition: not_asked(),
                qos: not_asked(),
                nodes: Reading::Measured(1),
                node_list: not_asked(),
                shares: Reading::Absent(Absence::NotAsked),
                near,
            };
            let details = (state != JobState::Pending).then_some(details);
            let job = JobId::new(130).unwrap();
            let listed = Some(Listed { job, uid: 1001, state, details });
            Ctld { listed, takes: Takes::Well, written: RefCell::default() }
        }

        fn order(&self, id: &str, wish: Wish) -> Result<String, String> {
            let order = Order { id, wish, by: "root".into(), reason: "paper deadline".into(), now: NOW };
            let find = |id: &str| Ok(JobId::parse(id).or(JobId::new(130).filter(|_| id == "123_4")));
            keep(&order, &Desk { slurm: self, find: &find })
        }

        fn last(&self) -> Option<(String, String)> {
            self.written.borrow().last().cloned()
        }
    }

    impl Controller for Ctld {
        fn job(&self, job: JobId, ask: Ask) -> Answer<Option<Listed>> {
            assert!(ask.near_deed);
            let mut listed = self.listed.clone().filter(|listed| listed.job == job);
            let forgets = self.takes == Takes::Forgets;
            let details = listed.as_mut().and_then(|listed| listed.details.as_mut());
            if let (Some(details), Some((_, text)), false) = (details, self.last(), forgets) {
                details.near.admin_comment = Reading::Measured(text);
            }
            Ok(listed)
        }

        fn set_admin_comment(&self, display_id: &str, text: &str) -> Answer<()> {
            let program = "scontrol";
            let refused = "slurm_update error: Access/permission denied".to_owned();
            match self.takes {
                Takes::Refuses => Err(NoAnswer::Refused { program, code: 1, text: refused }),
                Takes::TimesOut => Err(NoAnswer::TimedOut { program, limit_ms: 6000 }),
                Takes::Well | Takes::Forgets => {
                    self.written.borrow_mut().push((display_id.to_owned(), text.to_owned()));
                    Ok(())
                }
            }
        }

        fn node(&self) -> Answer<NodeStatus> {
            unreachable!("no node is asked")
        }
        fn survey(&self) -> Answer<Vec<NodeRow>> {
            unreachable!("no node is asked")
        }
        fn brake(&self) -> Answer<bool> {
            unreachable!("nothing is stopped")
        }
        fn drain(&self, _: &str) -> Answer<()> {
            unreachable!("nothing is drained")
        }
        fn set_reason(&self, _: &str) -> Answer<()> {
            unreachable!("nothing is drained")
        }
        fn undrain(&self) -> Answer<()> {
            unreachable!("nothing is drained")
        }
        fn cancel(&self, _: &Target) -> Answer<()> {
            unreachable!("nothing is cancelled")
        }
        fn requeue(&self, _: &Target) -> Answer<()> {
            unreachable!("nothing is requeued")
        }
        fn signal(&self, _: &Target, _: &str) -> Answer<()> {
            unreachable!("nothing is signalled")
        }
        fn notify(&self, _: &str, _: &str) -> Answer<()> {
            unreachable!("no job is told")
        }
    }

    const HOURS: Wish = Wish::For(Duration::from_secs(4 * 3600));
    const NONE: Reading<&str> = Reading::Absent(Absence::NoData);
    const LINE: &str = "gpu-reaper: keep until=2026-11-29T18:00:00Z by=root: paper deadline";

    #[test]
    fn a_job_is_kept_under_the_name_that_means_it_alone() {
        for (typed, shown) in [("130", "130"), ("130", "123_4"), ("123_4", "123_4")] {
            let ctld = Ctld::with(shown, JobState::Running, NONE);
            let said = ctld.order(typed, HOURS).unwrap();
            assert_eq!(ctld.last(), Some((shown.to_owned(), LINE.to_owned())), "{typed}");
            assert!(said.contains("until 2026-11-29T18:00:00Z by root: `paper deadline`"), "{said}");
            assert!(said.contains(&format!("scontrol show job {shown}")), "{said}");
        }
    }

    #[test]
    fn what_others_wrote_is_kept_too_and_a_later_word_replaces_ours() {
        let earlier = "gpu-reaper: keep until=2026-11-29T15:00:00Z by=eve: x";
        for (there, want) in [
            ("ticket 42".to_owned(), format!("ticket 42 | {LINE}")),
            (format!("ticket 42 | {earlier}"), format!("ticket 42 | {LINE}")),
            ("gpu-reaper: keep until=broken".to_owned(), LINE.to_owned()),
        ] {
            let ctld = Ctld::with("130", JobState::Running, Reading::Measured(&there));
            ctld.order("130", HOURS).unwrap();
            assert_eq!(ctld.last().map(|written| written.1), Some(want));
        }
        let ctld = Ctld::with("130", JobState::Running, Reading::Measured("two\nlines"));
        let why = ctld.order("130", HOURS).unwrap_err();
        let by_hand = format!("scontrol update JobId=130 AdminComment='{LINE}'");
        let want = format!(
            "`two\\nlines` cannot be written back as it is; nothing was written; to replace it: {by_hand}"
        );
        assert!(why.ends_with(&want) && ctld.last().is_none(), "{why}");
        let long = "x".repeat(1000);
        let ctld = Ctld::with("130", JobState::Running, Reading::Measured(&long));
        let why = ctld.order("130", HOURS).unwrap_err();
        assert!(why.contains("of 1024 in all; nothing was written; to replace it: "), "{why}");
    }

    #[test]
    fn a_keep_is_ended_by_one_that_ends_now() {
        let running = |there| Ctld::with("130", JobState::Running, there);
        let ctld = running(Reading::Measured(LINE));
        let said = ctld.order("130", Wish::End).unwrap();
        assert!(said.starts_with("job 130: its keep has ended; the one before: until 2026-"), "{said}");
        let written = "gpu-reaper: keep until=2026-11-29T14:00:00Z by=root: paper deadline";
        assert_eq!(ctld.last().map(|w| w.1).as_deref(), Some(written));
        assert!(running(Reading::Measured("gpu-reaper: keep until=x")).order("130", Wish::End).is_ok());
        for there in [NONE, Reading::Measured("ticket 42"), Reading::Measured(written)] {
            let why = running(there).order("130", Wish::End).unwrap_err();
            assert_eq!(why, "job 130: no keep of it is in force; nothing was written");
        }
    }

    #[test]
    fn each_job_that_cannot_be_kept_is_refused_in_its_own_words() {
        let table = [
            ("130", "130", JobState::Ended, NONE, "it is ended; only one that runs"),
            ("130", "130", JobState::Pending, NONE, "it is pending"),
            ("130", "130", JobState::Completing, NONE, "it is completing"),
            ("131", "130", JobState::Running, NONE, "knows no such job"),
            ("130", "130_4", JobState::Running, NONE, "it is an array"),
            ("0130", "130_4", JobState::Running, NONE, "it is an array"),
            ("130", "129+1", JobState::Running, NONE, "heterogeneous job is never cancelled"),
            ("129+1", "129+1", JobState::Running, NONE, "heterogeneous job is never cancelled"),
            ("x\u{1b}", "130", JobState::Running, NONE, "job x\\u{1b}: Slurm knows no such job"),
            ("130", "130", JobState::Running, Reading::Absent(Absence::SourceFailed), "could not be read"),
        ];
        for (typed, shown, state, there, want) in table {
            let ctld = Ctld::with(shown, state, there);
            let why = ctld.order(typed, HOURS).unwrap_err();
            assert!(why.contains(want) && why.ends_with("; nothing was written"), "{want}: {why}");
            assert_eq!((ctld.last(), why.lines().count()), (None, 1));
        }
    }

    #[test]
    fn only_what_reads_back_is_believed() {
        let table = [
            (Takes::Refuses, "Access/permission denied` (exit status 1); nothing was written"),
            (Takes::TimesOut, "no answer within 6 s; whether it was written is not known"),
            (Takes::Forgets, "written, and not seen to be there: its AdminComment reads back as ``"),
        ];
        for (takes, want) in table {
            let ctld = Ctld { takes, ..Ctld::with("130", JobState::Running, NONE) };
            let why = ctld.order("130", HOURS).unwrap_err();
            assert!(why.contains(want), "{why}");
        }
    }
}

//! Questions about jobs, to squeue. Only machine fields are parsed, one query a job; the user's own text is
//! asked alone, so that it can shift no column and invent no row. A row that does not fit spoils the answer:
//! a skipped one would turn a job's processes into strangers.

use super::command::Program;
use super::listed::{Listed, job_state, user, word};
use super::version::Version;
use super::{Answer, Ask, NoAnswer, Slurm, json, misread};
use crate::model::{JobDetails, JobId, JobState, NearDeed};
use crate::reading::{Absence, Reading};

/// `type:suffix` prints a field at its full length and then the suffix (22.05 on); a width would cut it.
/// In `JobArrayID` squeue prints the id as people know it: `9_1`, `11+0` (measured on 22.05.8).
const MACHINE_FIELDS: &str = "JobID:|,JobArrayID:|,State:|,StartTime:|,NumNodes:|,NodeList:|,UserID:|,UserName:|,\
                              Partition:|,RestartCnt:|,QOS:";
/// For one job. Where nothing checks accounts, a job's account is any text its user gave: last.
const WITH_ACCOUNT: &str = "JobID:|,JobArrayID:|,State:|,StartTime:|,NumNodes:|,NodeList:|,UserID:|,UserName:|,\
                            Partition:|,RestartCnt:|,QOS:|,Account:";
/// All states, all partitions also hidden ones, this cluster alone.
const ALWAYS: [&str; 5] = ["-h", "-a", "--local", "-t", "all"];

impl Slurm {
    /// One job; `None`: Slurm does not know it (any more). One JOB_INFO_SINGLE at the controller; before 23.02 one
    /// more for each thing that is asked beside.
    pub fn job(&self, job: JobId, ask: Ask) -> Answer<Option<Listed>> {
        if let Some(rest) = &self.rest {
            return rest.job(job);
        }
        if self.version().is_ok_and(Version::shows_jobs_in_json) {
            match self.in_json(job) {
                // Of a job that is unknown and of a slurmctld that is down scontrol says the same: an empty list,
                // no error, exit status 0 (measured on 24.11.5). squeue tells the two apart.
                Ok(rows) if rows.is_empty() => {}
                Ok(rows) => return one_of(Program::Scontrol, rows, job),
                Err(silence) if has_no_json(&silence) => {}
                Err(silence) => return Err(silence),
            }
        }
        self.in_text(job, ask)
    }

    /// As with squeue, the leader id of an array or of a heterogeneous job brings all of it (measured).
    fn in_json(&self, job: JobId) -> Answer<Vec<Listed>> {
        let id = job.to_string();
        let ask = ["--local", "--json", "show", "job", &id];
        let answer = self.commands.run_for_a_long_list(Program::Scontrol, &ask);
        match known(answer)? {
            Some(text) => json::jobs(&text).map_err(|why| misread(Program::Scontrol, why)),
            None => Ok(Vec::new()),
        }
    }

    fn in_text(&self, job: JobId, ask: Ask) -> Answer<Option<Listed>> {
        let id = job.to_string();
        let args = [&ALWAYS[..], &["-j", &id, "-O", WITH_ACCOUNT]].concat();
        let answer = self.commands.run_for_a_long_list(Program::Squeue, &args);
        let Some(text) = known(answer)? else { return Ok(None) };
        let mut listed = one_of(Program::Squeue, parse(&text, 12)?, job)?;
        let Some(details) = listed.as_mut().and_then(|listed| listed.details.as_mut()) else {
            return Ok(listed);
        };
        let shown = details.display_id.clone();
        if ask.name {
            details.name = Reading::Measured(self.text_of(job, &shown, "Name")?);
        }
        if ask.comment {
            details.near.comment = word(&self.text_of(job, &shown, "Comment")?);
        }
        if ask.near_deed {
            // Until 24.11 at least `AdminComment` is no field.
            let text = self.text_of(job, &shown, "BatchFlag:|,Requeue:|,admin_comment")?;
            let flags = parse_near(&text).ok_or_else(|| misread(Program::Squeue, format!("row `{text}`")))?;
            let comment = details.near.comment.clone();
            let suspended_unix_s = Reading::Measured(self.suspended(job, &shown)?);
            details.near = NearDeed { comment, suspended_unix_s, ..flags };
        }
        Ok(listed)
    }

    /// Every job that Slurm sees on this node, ended ones included while it remembers them; without name and
    /// account. Loads all jobs of the cluster at the controller: for `slurm.source: squeue` only.
    pub fn jobs_here(&self) -> Answer<Vec<Listed>> {
        let text = self
            .squeue(&["-w", self.node.as_str(), "-O", MACHINE_FIELDS])
            .map_err(|silence| self.known_node(silence))?;
        let jobs = parse(&text, 11)?;
        let mut ids: Vec<JobId> = jobs.iter().map(|listed| listed.job).collect();
        ids.sort_unstable();
        match ids.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(misread(Program::Squeue, format!("two rows for job {}", pair[0]))),
            None => Ok(jobs),
        }
    }

    /// A job's name or another text of people's, which may hold anything: newlines, separators, terminal escapes.
    /// The first component of a heterogeneous job cannot be asked alone, and where texts hold newlines its rows
    /// cannot be told apart.
    fn text_of(&self, job: JobId, display_id: &str, field: &str) -> Answer<String> {
        if display_id.ends_with("+0") {
            return Err(misread(Program::Squeue, format!("`{display_id}` names a whole heterogeneous job")));
        }
        // `-j 11+1` prints every component, the raw id 12 only its own; an array's leader id prints every
        // task, `9_2` one (measured on 22.05.8).
        let id = if display_id.contains('_') { display_id.to_owned() } else { job.to_string() };
        let text = self.squeue(&["-j", &id, "-O", &format!("JobID:|,{field}:")])?;
        let said = text.strip_prefix(&format!("{job}|")).and_then(|t| t.strip_suffix('\n'));
        said.map(str::to_owned)
            .ok_or_else(|| misread(Program::Squeue, format!("no row of job {job}: `{text}`")))
    }

    /// The raw id of the job whose cgroup is named by a SLUID (26.05 on); `None`: not known.
    pub fn job_of_sluid(&self, sluid: &str) -> Answer<Option<JobId>> {
        if !super::cgroup::is_sluid(sluid) {
            return Err(misread(Program::Squeue, format!("`{sluid}` is no SLUID")));
        }
        let answer = self.squeue(&["-j", sluid, "-O", "JobID:|,SLUID:"]);
        let Some(text) = known(answer)? else { return Ok(None) };
        let (id, said) = text.trim_end_matches('\n').split_once('|').unwrap_or_default();
        match JobId::parse(id) {
            Some(job) if said == sluid => Ok(Some(job)),
            _ => Err(misread(Program::Squeue, format!("asked for `{sluid}`, got `{text}`"))),
        }
    }

    pub(super) fn squeue(&self, args: &[&str]) -> Answer<String> {
        self.commands.run(Program::Squeue, &[&ALWAYS, args].concat())
    }
}

/// `None`: an error that says that Slurm knows no such job.
pub(super) fn known(answer: Answer<String>) -> Answer<Option<String>> {
    match answer {
        Err(NoAnswer::Refused { text, .. }) if text.contains("Invalid job id specified") => Ok(None),
        answer => answer.map(Some),
    }
}

/// Whether this scontrol was built without JSON, or its plugin is not installed.
fn has_no_json(silence: &NoAnswer) -> bool {
    const WORDS: [&str; 4] = ["unrecognized option", "plugin", "serializer", "data_parser"];
    matches!(silence, NoAnswer::Refused { text, .. } if WORDS.iter().any(|word| text.contains(word)))
}

/// The row of this job among those of its array or of its heterogeneous job.
fn one_of(program: Program, rows: Vec<Listed>, job: JobId) -> Answer<Option<Listed>> {
    let none_at_all = rows.is_empty();
    let mut ours = rows.into_iter().filter(|row| row.job == job);
    match (ours.next(), ours.next()) {
        (_, Some(_)) => Err(misread(program, format!("two rows for job {job}"))),
        // A known job has a row with these options: an empty answer is something else.
        (None, _) if none_at_all => Err(misread(program, format!("no row for job {job}, and no error"))),
        (row, None) => Ok(row),
    }
}

fn parse(text: &str, fields: usize) -> Answer<Vec<Listed>> {
    let row =
        |line: &str| parse_row(line, fields).ok_or_else(|| misread(Program::Squeue, format!("row `{line}`")));
    text.lines().map(row).collect()
}

fn parse_row(line: &str, fields: usize) -> Option<Listed> {
    let f: Vec<&str> = line.splitn(fields, '|').collect();
    if f.len() != fields || (fields == 11 && f[10].contains('|')) {
        return None;
    }
    let job = JobId::parse(f[0])?;
    let display_id = Some(f[1]).filter(|id| fits_display_id(id))?.to_owned();
    let state = job_state(f[2].split(['+', ',']));
    let uid: u32 = f[6].parse().ok()?;
    let restart: u32 = f[9].parse().ok()?;
    let nodes = count(f[4])?;
    let start_unix_s = match f[3] {
        "N/A" | "Unknown" | "None" => None,
        text => Some(text.parse().ok().filter(|s| *s > 0)?),
    };
    // A waiting job's start is one that Slurm expects.
    let started = start_unix_s.filter(|_| state != JobState::Pending);
    let details = started.map(|start_unix_s| JobDetails {
        state,
        start_unix_s,
        restart: Reading::Measured(restart),
        display_id,
        name: Reading::Absent(Absence::NotAsked),
        user: user(f[7], uid),
        account: f.get(11).map_or(Reading::Absent(Absence::NotAsked), |text| word(text)),
        partition: word(f[8]),
        qos: word(f[10]),
        nodes: Reading::Measured(nodes),
        node_list: word(f[5]),
        shares: Reading::Absent(Absence::NotAsked),
        near: NearDeed::absent(Absence::NotAsked),
    });
    Some(Listed { job, uid, state, details })
}

/// Two flags and the administrators' comment. BatchFlag is `2` once a job was requeued (measured on 24.11.5).
fn parse_near(text: &str) -> Option<NearDeed> {
    let f: Vec<&str> = text.splitn(3, '|').collect();
    let [batch, requeue, admin_comment] = f[..] else { return None };
    let flag = |text: &str| match text {
        "0" => Some(Reading::Measured(false)),
        "1" | "2" => Some(Reading::Measured(true)),
        _ => None,
    };
    let (batch, requeue) = (flag(batch)?, flag(requeue)?);
    // A Slurm that is asked in text knows no SLUID, or does not tell it.
    let nothing = NearDeed::absent(Absence::NoData);
    Some(NearDeed { batch, requeue, admin_comment: word(admin_comment), ..nothing })
}

/// `130`, `123_4`, `123_[5-9]` for the tasks that still wait, `200+1`.
fn fits_display_id(id: &str) -> bool {
    let rest = id.trim_start_matches(|c: char| c.is_ascii_digit());
    rest.len() < id.len()
        && (rest.is_empty() || rest.starts_with(['_', '+']))
        && rest.bytes().skip(1).all(|b| b.is_ascii_digit() || b"[]-,%.:".contains(&b))
}

/// squeue may shorten an exact multiple of 1024: `2K`.
fn count(text: &str) -> Option<u32> {
    match text.strip_suffix('K') {
        Some(thousands) => thousands.parse::<u32>().ok()?.checked_mul(1024),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u64) -> JobId {
        JobId::new(n).unwrap()
    }

    fn started(listed: &Listed) -> &JobDetails {
        listed.details.as_ref().expect("a start")
    }

    #[test]
    fn a_row_of_every_version_becomes_a_job() {
        for version in ["22.05.8", "24.11.5", "26.05.5"] {
            let path = format!("{}/fixtures/slurm/{version}/squeue-array.out", env!("CARGO_MANIFEST_DIR"));
            let rows = parse(&std::fs::read_to_string(path).unwrap(), 12).unwrap();
            let listed = one_of(Program::Squeue, rows, id(2)).unwrap().unwrap();
            let details = started(&listed);
            assert_eq!(details.state, JobState::Running);
            assert_eq!(details.display_id, "2_2", "{version}");
            assert!(details.start_unix_s > 1_700_000_000);
            assert_eq!(details.restart, Reading::Measured(0));
            assert_eq!(details.account, Reading::Absent(Absence::NoData), "`(null)` is no account");
            assert_eq!(details.user, Reading::Measured("labuser".into()));
            assert_eq!(details.node_list, Reading::Measured("node1".into()));
        }
    }

    #[test]
    fn array_tasks_and_components_are_told_apart_by_the_raw_id() {
        // birc-aeh/slurm-utils#10, reframe-hpc/reframe#2376 (JL-06): `200+1` is one component.
        let text = "200|200+0|RUNNING|1795966699|1|n1|1001|u|gpu|0|normal|a\n201|200+1|RUNNING|1795966699|1|n2|1001|u|gpu|2|normal|a\n";
        let one = one_of(Program::Squeue, parse(text, 12).unwrap(), id(201)).unwrap().unwrap();
        assert!(started(&one).is_het() && !started(&one).is_array_task());
        assert_eq!(started(&one).restart, Reading::Measured(2));
        assert_eq!(
            one_of(Program::Squeue, parse(text, 12).unwrap(), id(199)),
            Ok(None),
            "an ended leader of living tasks"
        );
    }

    #[test]
    fn text_of_a_user_neither_shifts_a_column_nor_invents_a_job() {
        // eth-cscs/firecrest-v2#148, aiidateam/aiida-core#7554 (SP-01): measured on 22.05.8 with an account
        // of `acc|x` + newline + `9|9`, which is any text where accounting is not enforced.
        let row = "1|1|RUNNING|1795966699|1|node1|1001|labuser|gpu|0|(null)|";
        let account = |text: &str| {
            parse(&format!("{row}{text}\n"), 12).and_then(|rows| one_of(Program::Squeue, rows, id(1)))
        };
        let with_bar = account("acc|x").unwrap().unwrap();
        assert_eq!(started(&with_bar).account, Reading::Measured("acc|x".into()));
        assert_eq!(started(&with_bar).qos, Reading::Absent(Absence::NoData));
        assert!(account("acc|x\n9|9").is_err(), "a row that does not fit");
        assert!(account(&format!("x\n{row}exempt")).is_err(), "two rows of one job");
        let forged = account("x\n7|7|RUNNING|1|1|n|0|root|p|0|q|a").unwrap().unwrap();
        assert_eq!((forged.job, &started(&forged).account), (id(1), &Reading::Measured("x".into())));
    }

    #[test]
    fn a_row_that_does_not_fit_is_never_skipped() {
        let good = "1|1|RUNNING|1795966699|1|node1|1001|labuser|gpu|0|normal";
        assert_eq!(parse(&format!("{good}\n"), 11).map(|r| r.len()), Ok(1));
        let bad = [
            "",
            "1|1|RUNNING|1795966699|1|node1|1001|labuser|gpu|0",
            "1|1|RUNNING|1795966699|1|node1|1001|labuser|gpu|0|normal|more",
            "0|0|RUNNING|1795966699|1|node1|1001|labuser|gpu|0|normal",
            "1|x|RUNNING|1795966699|1|node1|1001|labuser|gpu|0|normal",
            "1|1|RUNNING|2026-11-29T14:00:28|1|node1|1001|labuser|gpu|0|normal",
            "1|1|RUNNING|0|1|node1|1001|labuser|gpu|0|normal",
            "1|1|RUNNING|1795966699|1|node1|uid|labuser|gpu|0|normal",
            "1|1|RUNNING|1795966699|1|node1|1001|labuser|gpu||normal",
            "1|1|RUNNING|1795966699|one|node1|1001|labuser|gpu|0|normal",
        ];
        for line in bad {
            assert!(parse(&format!("{good}\n{line}\n"), 11).is_err(), "{line:?}");
        }
    }

    #[test]
    fn a_list_of_partitions_and_a_long_node_list_stay_whole() {
        // SckyzO/slurm_exporter#1 (SP-03), Azure/cyclecloud-slurm#127 (SP-06).
        let nodes: String = (0..150).map(|n| format!("n{n},")).collect::<String>() + "n999";
        let text = format!("1|1|RUNNING|1795966699|151|{nodes}|1001|labuser|foo,bar|0|normal\n");
        let rows = parse(&text, 11).unwrap();
        assert_eq!(started(&rows[0]).partition, Reading::Measured("foo,bar".into()));
        assert_eq!(started(&rows[0]).node_list, Reading::Measured(nodes));
    }

    #[test]
    fn a_job_without_a_start_has_none() {
        let waiting =
            |state: &str, start: &str| format!("3|3+0|{state}|{start}|1||1001|u|gpu|0|(null)|(null)\n");
        for (state, start, want) in [
            ("PENDING", "N/A", JobState::Pending),
            ("PENDING", "1795966699", JobState::Pending),
            ("CANCELLED", "N/A", JobState::Ended),
        ] {
            let rows = parse(&waiting(state, start), 12).unwrap();
            assert_eq!((rows[0].state, &rows[0].details), (want, &None), "{state} {start}");
        }
    }

    #[test]
    fn a_uid_that_this_node_cannot_name_is_no_user_name() {
        assert_eq!(user("1001", 1001), Reading::Absent(Absence::NoData));
        assert_eq!(user("nobody", 1001), Reading::Absent(Absence::NoData));
        assert_eq!(user("nobody", 65534), Reading::Measured("nobody".into()));
        assert_eq!(user("ada", 1001), Reading::Measured("ada".into()));
    }

    #[test]
    fn completing_and_configuring_jobs_are_not_running() {
        // qtop/qtop#288, nebius/soperator#556 (JL-07); omnivector-solutions/jobbergate#722 (SP-10): flags
        // come in lists since data_parser v0.0.40.
        let table: [(&[&str], JobState); 10] = [
            (&["RUNNING"], JobState::Running),
            (&["RUNNING", "COMPLETING"], JobState::Completing),
            (&["COMPLETED", "COMPLETING"], JobState::Completing),
            (&["RUNNING", "CONFIGURING"], JobState::Configuring),
            (&["PENDING", "REQUEUED"], JobState::Pending),
            (&["SUSPENDED"], JobState::Suspended),
            (&["OUT_OF_MEMORY"], JobState::Ended),
            (&["RUNNING", "A_WORD_OF_2030"], JobState::Other),
            (&["running"], JobState::Other),
            (&[], JobState::Other),
        ];
        for (words, want) in table {
            assert_eq!(job_state(words.iter().copied()), want, "{words:?}");
        }
    }

    #[test]
    fn flags_stand_before_the_comment_and_cannot_be_forged_by_it() {
        let near = |text: &str| parse_near(text).map(|near| (near.batch, near.requeue, near.admin_comment));
        let said = |text: &str| Reading::Measured(text.to_owned());
        let (yes, no) = (Reading::Measured(true), Reading::Measured(false));
        assert_eq!(near("1|1|keep a|b\n0|0"), Some((yes, yes, said("keep a|b\n0|0"))));
        assert_eq!(near("2|0|(null)"), Some((yes, no, Reading::Absent(Absence::NoData))));
        for bad in ["", "1|1", "3|1|x", "|1|x", "1||x", "1|no|x"] {
            assert_eq!(near(bad), None, "{bad:?}");
        }
    }
}

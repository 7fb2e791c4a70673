//! Jobs and nodes as Slurm writes them in JSON: `scontrol --json` (23.02 on) and slurmrestd, in the shapes of
//! v0.0.38 (22.05) to v0.0.45 (26.05). Only the fields that are used must be there and be understood; one that is
//! not spoils the whole answer, and nothing is taken for its absence. Only a SLUID may be missing.

use super::cgroup::is_sluid;
use super::listed::{Listed, job_state, user, word};
use super::node::status_of_words;
use crate::model::{JobDetails, JobId, JobState, NearDeed, NodeRow};
use crate::reading::{Absence, Reading};
use crate::units::NodeName;
use serde::Deserialize;

/// All jobs of one answer, in its order, with everything that [`crate::slurm::Ask`] can ask for. An array's leader id
/// brings all its tasks.
///
/// # Errors
/// What was not understood, or what the answer itself complains of; one line, not yet cut to length.
pub fn jobs(text: &str) -> Result<Vec<Listed>, String> {
    let answer: JobsAnswer = serde_json::from_str(text).map_err(|e| e.to_string())?;
    complaints(&answer.errors)?;
    answer.jobs.into_iter().map(listed).collect()
}

/// All nodes of one answer, in its order.
///
/// # Errors
/// As [`jobs`].
pub fn nodes(text: &str) -> Result<Vec<NodeRow>, String> {
    let answer: NodesAnswer = serde_json::from_str(text).map_err(|e| e.to_string())?;
    complaints(&answer.errors)?;
    answer.nodes.into_iter().map(node_row).collect()
}

#[derive(Deserialize)]
struct JobsAnswer {
    jobs: Vec<Job>,
    #[serde(default)]
    errors: Vec<Complaint>,
}

#[derive(Deserialize)]
struct NodesAnswer {
    nodes: Vec<Node>,
    #[serde(default)]
    errors: Vec<Complaint>,
}

/// v0.0.38 says `error`, `errno` of nodes, and no description; later ones `error` in a word and `description` in words.
#[derive(Deserialize)]
pub(super) struct Complaint {
    #[serde(default)]
    pub(super) description: String,
    #[serde(default)]
    pub(super) error: String,
    #[serde(default, alias = "errno")]
    pub(super) error_number: Option<i64>,
}

fn complaints(errors: &[Complaint]) -> Result<(), String> {
    match errors {
        [] => Ok(()),
        [first, ..] if first.description.is_empty() => Err(first.error.clone()),
        [first, ..] if first.error.is_empty() => Err(first.description.clone()),
        [first, ..] => Err(format!("{}: {}", first.error, first.description)),
    }
}

#[derive(Deserialize)]
struct Job {
    job_id: Number,
    job_state: Words,
    start_time: Option<Number>,
    restart_cnt: Option<Number>,
    node_count: Option<Number>,
    nodes: Option<String>,
    user_id: Number,
    user_name: Option<String>,
    account: Option<String>,
    partition: Option<String>,
    qos: Option<String>,
    name: Option<String>,
    array_job_id: Option<Number>,
    array_task_id: Option<Number>,
    het_job_id: Option<Number>,
    het_job_offset: Option<Number>,
    suspend_time: Option<Number>,
    admin_comment: Option<String>,
    comment: Option<String>,
    batch_flag: Option<Flag>,
    requeue: Option<Flag>,
    /// v0.0.44 on, with `sluid` in it.
    #[serde(default)]
    step_id: serde_json::Value,
}

#[derive(Deserialize)]
struct Node {
    name: String,
    state: Words,
    /// Beside a state of one word (v0.0.38).
    #[serde(default)]
    state_flags: Vec<String>,
    gres: Option<String>,
    reason: Option<String>,
    reason_changed_at: Option<Number>,
}

/// `4`, `null`, or since v0.0.40 `{"set": true, "infinite": false, "number": 4}`.
#[derive(Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Number {
    Plain(i64),
    Told { set: bool, infinite: bool, number: i64 },
}

/// Slurm's "no value" and its kin as plain 32-bit numbers (NO_VAL, INFINITE and their neighbours).
const NO_NUMBER: std::ops::RangeInclusive<i64> = 0xffff_fffc..=0xffff_ffff;

impl Number {
    fn get(self) -> Option<i64> {
        match self {
            Number::Plain(number) => Some(number).filter(|n| !NO_NUMBER.contains(n)),
            Number::Told { set: true, infinite: false, number } => Some(number),
            Number::Told { .. } => None,
        }
    }
}

/// `"RUNNING"`, or since v0.0.39 (nodes) and v0.0.40 (jobs) a list that holds flags too.
#[derive(Deserialize)]
#[serde(untagged)]
enum Words {
    One(String),
    Many(Vec<String>),
}

impl Words {
    fn list(&self) -> Vec<&str> {
        match self {
            Words::One(text) => text.split(['+', ',', ' ']).collect(),
            Words::Many(words) => words.iter().map(String::as_str).collect(),
        }
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Flag {
    Bool(bool),
    Number(Number),
}

impl Flag {
    fn get(self) -> Option<bool> {
        match self {
            Flag::Bool(flag) => Some(flag),
            Flag::Number(number) => match number.get()? {
                0 => Some(false),
                // BatchFlag is 2 once a job was requeued.
                1 | 2 => Some(true),
                _ => None,
            },
        }
    }
}

fn listed(job: Job) -> Result<Listed, String> {
    let id = job.job_id.get().and_then(|id| JobId::new(id.try_into().ok()?));
    let id = id.ok_or("a job without a raw id")?;
    let bad = |field: &str| format!("job {id}: `{field}`");
    let uid: u32 = job.user_id.get().and_then(|n| n.try_into().ok()).ok_or_else(|| bad("user_id"))?;
    let state = job_state(job.job_state.list());
    let start_unix_s = match number(job.start_time) {
        None | Some(0) => None,
        Some(start) => Some(start).filter(|s| *s > 0).ok_or_else(|| bad("start_time")).map(Some)?,
    };
    // A waiting job's start is one that Slurm expects.
    let Some(start_unix_s) = start_unix_s.filter(|_| state != JobState::Pending) else {
        return Ok(Listed { job: id, uid, state, details: None });
    };
    let small = |field: Option<Number>, name: &str| -> Result<u32, String> {
        number(field).and_then(|n| n.try_into().ok()).ok_or_else(|| bad(name))
    };
    let details = JobDetails {
        state,
        start_unix_s,
        restart: Reading::Measured(small(job.restart_cnt, "restart_cnt")?),
        display_id: display_id(&job, id).ok_or_else(|| bad("array_task_id"))?,
        name: Reading::Measured(there(&job.name, "name").map_err(bad)?.to_owned()),
        user: user(job.user_name.as_deref().unwrap_or(""), uid),
        account: word(there(&job.account, "account").map_err(bad)?),
        partition: word(there(&job.partition, "partition").map_err(bad)?),
        qos: word(there(&job.qos, "qos").map_err(bad)?),
        nodes: Reading::Measured(small(job.node_count, "node_count")?),
        node_list: word(there(&job.nodes, "nodes").map_err(bad)?),
        shares: Reading::Absent(Absence::NotAsked),
        near: near(&job).map_err(bad)?,
    };
    Ok(Listed { job: id, uid, state, details: Some(details) })
}

fn near(job: &Job) -> Result<NearDeed, &'static str> {
    // The one field that may be anything: v0.0.44 (25.11) is not measured, and a run without it is named by its id.
    let sluid = match &job.step_id["sluid"] {
        serde_json::Value::String(text) if is_sluid(text) => Reading::Measured(text.clone()),
        serde_json::Value::String(text) if !text.is_empty() => Reading::Absent(Absence::NotUnderstood),
        serde_json::Value::String(_) | serde_json::Value::Null => Reading::Absent(Absence::NoData),
        _ => Reading::Absent(Absence::NotUnderstood),
    };
    let suspended = job.suspend_time.and_then(Number::get).filter(|s| *s >= 0).ok_or("suspend_time")?;
    // Free text: `N/A` is a comment that somebody wrote, only the empty one is none.
    let comment = |text: &str| match text {
        "" => Reading::Absent(Absence::NoData),
        text => Reading::Measured(text.to_owned()),
    };
    Ok(NearDeed {
        sluid,
        suspended_unix_s: Reading::Measured(suspended),
        admin_comment: comment(there(&job.admin_comment, "admin_comment")?),
        comment: comment(there(&job.comment, "comment")?),
        batch: Reading::Measured(job.batch_flag.and_then(Flag::get).ok_or("batch_flag")?),
        requeue: Reading::Measured(job.requeue.and_then(Flag::get).ok_or("requeue")?),
    })
}

/// As squeue shows it: `9_1`, `11+0`, or the raw id. A job on a node is one task, never a range of them.
fn display_id(job: &Job, id: JobId) -> Option<String> {
    let above_0 = |field: Option<Number>| number(field).filter(|n| *n > 0);
    match (above_0(job.array_job_id), above_0(job.het_job_id)) {
        (None, None) => Some(id.to_string()),
        (Some(array), None) => Some(format!("{array}_{}", number(job.array_task_id).filter(|n| *n >= 0)?)),
        (None, Some(het)) => Some(format!("{het}+{}", number(job.het_job_offset).filter(|n| *n >= 0)?)),
        (Some(_), Some(_)) => None,
    }
}

fn node_row(node: Node) -> Result<NodeRow, String> {
    let name = NodeName::new(&node.name)?;
    let mut words = node.state.list();
    words.extend(node.state_flags.iter().map(String::as_str));
    let reason = node.reason.filter(|reason| !reason.is_empty());
    let reason_unix_s = match reason {
        Some(_) => number(node.reason_changed_at).filter(|s| *s > 0),
        None => None,
    };
    let status = status_of_words(&words, reason)
        .ok_or_else(|| format!("node `{name}`: state `{}`", words.join("+").escape_debug()))?;
    let gres = node.gres.ok_or_else(|| format!("node `{name}`: no `gres`"))?;
    Ok(NodeRow { name, status, gpus: super::gres::names_gpus(&gres), reason_unix_s })
}

fn number(field: Option<Number>) -> Option<i64> {
    field.and_then(Number::get)
}

/// Only the empty text means that there is none (recorded of every version from v0.0.38 to v0.0.45): a key that is not
/// there, or says null, would void the exemption that asks for it.
fn there<'a>(field: &'a Option<String>, name: &'static str) -> Result<&'a str, &'static str> {
    field.as_deref().ok_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NodeBase;

    fn recorded(name: &str) -> String {
        let path = format!("{}/fixtures/slurm/{name}", env!("CARGO_MANIFEST_DIR"));
        String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned()
    }

    #[test]
    fn every_shape_of_a_job_reads_the_same() {
        // omnivector-solutions/jobbergate#722, #739, clemsonciti/jobperf#4 (SP-10).
        for name in [
            "22.05.8/rest.v0.0.38.job.json",
            "24.11.5/rest.v0.0.40.job.json",
            "24.11.5/show-job-json.out",
            "26.05.5/rest.v0.0.42.job.json",
            "26.05.5/show-job-json.out",
        ] {
            let jobs = jobs(&recorded(name)).unwrap_or_else(|why| panic!("{name}: {why}"));
            let [Listed { job, uid: 1001, state: JobState::Running, details: Some(details) }] = &jobs[..]
            else {
                panic!("{name}: {jobs:?}");
            };
            assert_eq!((job.get(), details.display_id.as_str()), (1, "1"), "{name}");
            assert!(details.start_unix_s > 1_700_000_000, "{name}");
            assert_eq!(details.restart, Reading::Measured(0), "{name}");
            assert_eq!(details.user, Reading::Measured("labuser".into()), "{name}");
            assert_eq!(details.account, Reading::Absent(Absence::NoData), "{name}");
            assert_eq!(details.nodes, Reading::Measured(1), "{name}");
            assert_eq!(details.node_list, Reading::Measured("node1".into()), "{name}");
            let near = &details.near;
            assert_eq!(
                near.sluid.measured().is_some(),
                name.starts_with("26.05.5/show"),
                "{name}: {:?}",
                near.sluid
            );
            assert_eq!(near.suspended_unix_s, Reading::Measured(0), "{name}");
            assert_eq!(near.admin_comment, Reading::Absent(Absence::NoData), "{name}");
            assert_eq!((&near.batch, &near.requeue), (&Reading::Measured(true), &Reading::Measured(true)));
        }
    }

    #[test]
    fn every_shape_of_a_node_reads_the_same() {
        for name in [
            "22.05.8/rest.v0.0.38.nodes.json",
            "24.11.5/rest.v0.0.40.nodes.json",
            "26.05.5/rest.v0.0.45.nodes.json",
        ] {
            let rows = nodes(&recorded(name)).unwrap_or_else(|why| panic!("{name}: {why}"));
            let [one, two] = &rows[..] else { panic!("{name}: {rows:?}") };
            assert_eq!((one.name.as_str(), two.name.as_str()), ("node1", "node2"));
            assert_eq!((&one.status.base, &two.status.base), (&NodeBase::Mixed, &NodeBase::Idle), "{name}");
            assert!(one.gpus && one.status.plain() && !one.status.drained(), "{name}");
            assert_eq!((&one.status.reason, one.reason_unix_s), (&None, None), "{name}");
        }
    }

    fn one(text: &str) -> Result<Listed, String> {
        jobs(text).map(|mut jobs| jobs.remove(0))
    }

    #[test]
    fn an_array_and_a_text_of_a_user_are_read_whole() {
        // reframe-hpc/reframe#3737 (JL-04); eth-cscs/firecrest-v2#148, neilmunday/slurm-mail#100 (SP-01);
        // skypilot-org/skypilot#10839 (SP-12): the user's lines that look like Slurm's own change nothing.
        for version in ["24.11.5", "26.05.5"] {
            let tasks = jobs(&recorded(&format!("{version}/show-job-json.array.out"))).unwrap();
            let shown: Vec<_> =
                tasks.iter().map(|t| (t.job.get(), &*t.details.as_ref().unwrap().display_id)).collect();
            assert_eq!(shown, [(2, "2_1"), (7, "2_0")], "{version}: the leader's id is a task's own");
            let odd = one(&recorded(&format!("{version}/show-job-json.odd-suspended.out"))).unwrap();
            assert_eq!(odd.state, JobState::Suspended, "{version}");
            let details = odd.details.unwrap();
            let name = "ev|il\nJobState=FAILED\n   SuspendTime=5\n\u{fffd} x";
            assert_eq!(details.name, Reading::Measured(name.into()), "{version}");
            assert_eq!(details.account, Reading::Measured("acc|x".into()), "{version}");
            let near = details.near;
            let comment = "c|x\n   AdminComment=forged\n   SuspendTime=7";
            assert_eq!(near.comment, Reading::Measured(comment.into()), "{version}");
            assert_eq!(near.admin_comment, Reading::Absent(Absence::NoData), "{version}");
            assert!(near.suspended_unix_s.measured() > Some(&1_795_980_000), "{version}");
        }
    }

    #[test]
    fn a_field_that_changed_its_type_is_still_read_and_an_unknown_shape_is_an_error() {
        // omnivector-solutions/jobbergate#722 (SP-10), CLIP-HPC/SlurmCommander#31.
        let text = recorded("26.05.5/show-job-json.odd-suspended.out");
        let with = |field: &str, is: serde_json::Value| {
            let mut answer: serde_json::Value = serde_json::from_str(&text).unwrap();
            answer["jobs"][0][field] = is;
            one(&answer.to_string())
        };
        let number = |number: i64| serde_json::json!({"set": true, "infinite": false, "number": number});
        let state = |is| with("job_state", is).map(|listed| listed.state);
        assert_eq!(state(serde_json::json!("RUNNING")), Ok(JobState::Running));
        assert_eq!(state(serde_json::json!(["RUNNING"])), Ok(JobState::Running));
        assert_eq!(state(serde_json::json!(["RUNNING", "COMPLETING"])), Ok(JobState::Completing));
        assert_eq!(state(serde_json::json!("RUNNING,COMPLETING")), Ok(JobState::Completing));
        assert_eq!(state(serde_json::json!(["RUNNING", "A_WORD_OF_2030"])), Ok(JobState::Other));
        assert_eq!(state(serde_json::json!([])), Ok(JobState::Other));
        for requeue in [serde_json::json!(true), serde_json::json!(1), number(1)] {
            let near = with("requeue", requeue).unwrap().details.unwrap().near;
            assert_eq!(near.requeue, Reading::Measured(true));
        }
        for (field, is) in [
            ("restart_cnt", serde_json::json!(4)),
            ("restart_cnt", number(4)),
            ("suspend_time", serde_json::json!(4)),
            ("node_count", serde_json::json!(4)),
            ("array_task_id", serde_json::json!(null)),
            ("array_job_id", serde_json::json!(0)),
            ("start_time", serde_json::json!(1_795_980_000)),
        ] {
            assert!(with(field, is.clone()).is_ok(), "{field} {is}");
        }
        for (field, is) in [
            ("job_state", serde_json::json!({"current": ["RUNNING"]})),
            ("job_state", serde_json::json!(5)),
            ("job_id", serde_json::json!(0)),
            ("job_id", serde_json::json!("1")),
            ("user_id", serde_json::json!(null)),
            ("user_id", serde_json::json!("labuser")),
            ("start_time", serde_json::json!("2026-11-29T14:00:28")),
            ("start_time", serde_json::json!(-5)),
            ("restart_cnt", serde_json::json!(null)),
            ("node_count", serde_json::json!(null)),
            ("nodes", serde_json::json!({"list": "node1"})),
            ("name", serde_json::json!(null)),
            ("array_job_id", number(9)),
            ("array_job_id", serde_json::json!("9")),
            ("suspend_time", serde_json::json!(null)),
            ("admin_comment", serde_json::json!(null)),
            ("comment", serde_json::json!({"user": "x"})),
            ("batch_flag", serde_json::json!("1")),
            ("batch_flag", serde_json::json!(7)),
        ] {
            assert!(with(field, is.clone()).is_err(), "{field} {is}");
        }
    }

    #[test]
    fn a_sluid_of_another_form_is_none_and_spoils_nothing() {
        let text = recorded("26.05.5/show-job-json.out");
        let with = |is: serde_json::Value| {
            let mut answer: serde_json::Value = serde_json::from_str(&text).unwrap();
            answer["jobs"][0]["step_id"] = is;
            one(&answer.to_string()).map(|listed| listed.details.unwrap().near.sluid)
        };
        let odd = serde_json::json!([{"sluid": "7"}, {"sluid": 7}, {"sluid": {"number": 7}}]);
        for is in odd.as_array().unwrap() {
            assert_eq!(with(is.clone()), Ok(Reading::Absent(Absence::NotUnderstood)), "{is}");
        }
        for is in [serde_json::json!({}), serde_json::json!(7), serde_json::json!({"sluid": ""})] {
            assert_eq!(with(is.clone()), Ok(Reading::Absent(Absence::NoData)), "{is}");
        }
    }

    #[test]
    fn a_key_that_is_not_there_is_no_word_that_there_is_none() {
        // An exemption by QOS or account would be void: "none" is a word that is believed.
        let text = recorded("26.05.5/show-job-json.odd-suspended.out");
        let whole: serde_json::Value = serde_json::from_str(&text).unwrap();
        for field in ["account", "partition", "qos", "nodes", "name", "admin_comment", "comment"] {
            let with = |change: &dyn Fn(&mut serde_json::Map<String, serde_json::Value>)| {
                let mut answer = whole.clone();
                change(answer["jobs"][0].as_object_mut().unwrap());
                one(&answer.to_string())
            };
            assert!(with(&|job| drop(job.remove(field))).is_err_and(|why| why.contains(field)), "{field}");
            assert!(with(&|job| job[field] = serde_json::Value::Null).is_err(), "{field}");
            assert!(with(&|job| job[field] = "".into()).is_ok(), "{field}");
        }
    }

    #[test]
    fn a_component_of_a_heterogeneous_job_is_shown_as_one() {
        // birc-aeh/slurm-utils#10, reframe-hpc/reframe#2376 (JL-06).
        for version in ["24.11.5", "26.05.5"] {
            let components = jobs(&recorded(&format!("{version}/show-job-json.het.out"))).unwrap();
            let shown: Vec<_> =
                components.iter().map(|c| (c.job.get(), &*c.details.as_ref().unwrap().display_id)).collect();
            assert_eq!(shown, [(1, "1+0"), (2, "1+1")], "{version}");
        }
    }

    #[test]
    fn an_answer_that_complains_or_breaks_off_is_no_answer() {
        // SchedMD/slurm#171 (CT-01).
        assert_eq!(jobs(r#"{"jobs": [], "errors": []}"#), Ok(vec![]));
        let complains =
            r#"{"jobs": [], "errors": [{"error": "Invalid job id specified", "error_number": 2017}]}"#;
        assert_eq!(jobs(complains), Err("Invalid job id specified".to_owned()));
        let described = r#"{"jobs": [], "errors": [{"error": "x", "description": "y", "source": "z"}]}"#;
        assert_eq!(jobs(described), Err("x: y".to_owned()));
        let whole = recorded("26.05.5/show-job-json.out");
        for broken in ["", "{}", "[]", "{\"jobs\": null}", "{\"jobs\": [{}]}", &whole[..whole.len() / 2]] {
            assert!(jobs(broken).is_err(), "{broken}");
        }
        assert!(nodes("{\"jobs\": []}").is_err());
    }

    #[test]
    fn a_nodes_flags_are_kept_and_its_reason_is_whole() {
        // mej/nhc#82 (ND-08), aws/aws-parallelcluster-node#639 (SP-12), PrincetonUniversity/jobstats#53 (SP-08).
        let row = |state: &str, more: &str| {
            nodes(&format!(
                r#"{{"nodes": [{{"name": "n1", "state": {state}, "gres": "gpu:a:4(S:0-1)", {more}}}]}}"#
            ))
        };
        let reason =
            r#""reason": "a\nb|State=IDLE", "reason_changed_at": {"set":true,"infinite":false,"number":5}"#;
        let rows = row(r#"["IDLE", "DRAIN", "REBOOT_REQUESTED"]"#, reason).unwrap();
        assert_eq!(rows[0].status.flags, ["drain", "reboot_requested"]);
        assert_eq!(rows[0].status.reason.as_deref(), Some("a\nb|State=IDLE"));
        assert_eq!((rows[0].reason_unix_s, rows[0].gpus), (Some(5), true));
        let none = r#""reason": "", "reason_changed_at": 0"#;
        assert!(
            row("\"mixed\"", &format!(r#""state_flags": ["DRAIN"], {none}"#)).unwrap()[0].status.drained()
        );
        let unknown = row(r#"["DRAIN", "A_WORD_OF_2030"]"#, none).unwrap();
        assert!(unknown[0].status.drained() && !unknown[0].status.plain());
        for bad in ["[]", "\"\"", "null", "5", r#"["ID LE"]"#] {
            assert!(row(bad, none).is_err(), "{bad}");
        }
    }
}

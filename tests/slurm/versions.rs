//! What is asked of which version, and that all of them come to the same answer or to none.

use super::*;
use gpu_reaper_hc::model::{JobDetails, NodeRow};
use gpu_reaper_hc::slurm::Listed;

pub(super) const ALL: Ask = Ask { name: true, comment: true, near_deed: true };

/// A scontrol that is of this version, and else does this.
pub(super) fn scontrol(version: &str, body: &str) -> String {
    format!("case $1 in --version) echo 'slurm-wlm {version}' ; exit 0 ;; esac\n{body}")
}

fn fixture(name: &str) -> String {
    format!("cat {}/fixtures/slurm/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn started(listed: Listed) -> JobDetails {
    listed.details.expect("a start")
}

#[test]
fn from_23_02_on_one_question_tells_everything() {
    // omnivector-solutions/jobbergate#722 (SP-10), skypilot-org/skypilot#10839 (SP-12).
    for version in ["24.11.5", "26.05.5"] {
        let said = fixture(&format!("{version}/show-job-json.odd-suspended.out"));
        let stand_ins = StandIns::new(&[("scontrol", &scontrol(version, &said))]);
        let details = started(stand_ins.slurm().job(job(1), ALL).unwrap().unwrap());
        assert!(details.name.measured().is_some_and(|name| name.starts_with("ev|il\n")), "{version}");
        assert!(details.near.suspended_unix_s.measured() > Some(&0), "{version}");
        assert_eq!(details.near.sluid.measured().is_some(), version == "26.05.5");
        assert_eq!(stand_ins.args("scontrol"), ["--local", "--json", "show", "job", "1"]);
    }
}

#[test]
fn a_task_that_has_its_arrays_id_is_told_from_the_others() {
    // PrincetonUniversity/jobstats#23, reframe-hpc/reframe#3737 (JL-04): a leader's id brings every task.
    let said = scontrol("26.05.5", &fixture("26.05.5/show-job-json.array.out"));
    let stand_ins = StandIns::new(&[("scontrol", &said)]);
    let shown =
        |id| stand_ins.slurm().job(job(id), Ask::NOTHING_MORE).map(|l| l.map(|l| started(l).display_id));
    assert_eq!(shown(2), Ok(Some("2_1".to_owned())));
    assert_eq!(shown(7), Ok(Some("2_0".to_owned())));
    assert_eq!(shown(3), Ok(None), "an ended leader of living tasks");
}

#[test]
fn a_task_is_found_among_hundreds_of_its_array() {
    // 140 tasks that Slurm remembers are more than a MiB.
    let recorded = format!("{}/fixtures/slurm/26.05.5/show-job-json.array.out", env!("CARGO_MANIFEST_DIR"));
    let mut answer: serde_json::Value = serde_json::from_str(&fs::read_to_string(recorded).unwrap()).unwrap();
    let task = answer["jobs"][0].clone();
    let tasks = (1000..1300).map(|id| {
        let mut task = task.clone();
        task["job_id"] = id.into();
        task
    });
    answer["jobs"] = tasks.collect();
    let long = serde_json::to_string_pretty(&answer).unwrap();
    assert!(long.len() > 2 << 20, "{}", long.len());
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), long).unwrap();
    let said = scontrol("26.05.5", &format!("cat {}", file.path().display()));
    let stand_ins = StandIns::new(&[("scontrol", &said)]);
    let listed = stand_ins.slurm().job(job(1299), Ask::NOTHING_MORE);
    assert_eq!(listed.map(|listed| listed.map(|listed| listed.job)), Ok(Some(job(1299))));
}

#[test]
fn an_empty_list_without_an_error_is_no_answer_yet() {
    // SchedMD/slurm#171, broadinstitute/cromwell#5400 (CT-01): recorded of a slurmctld that is down, and of a job
    // that is unknown; the two differ in nothing.
    for recorded in ["24.11.5/show-job-json.ctld-down.out", "26.05.5/show-job-json.unknown.out"] {
        let said = scontrol("24.11.5", &fixture(recorded));
        let ask = |squeue: &str| {
            StandIns::new(&[("scontrol", &said), ("squeue", squeue)])
                .slurm()
                .job(job(4242), Ask::NOTHING_MORE)
        };
        assert_eq!(ask("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"), Ok(None));
        let down = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)";
        assert!(ask(&format!("echo '{down}' >&2; exit 1")).is_err());
        assert!(ask("true").is_err());
        assert_eq!(ask(&format!("echo '{ROW}'")).map(|listed| listed.is_some()), Ok(true));
    }
}

#[test]
fn what_json_cannot_be_understood_blocks_and_only_a_scontrol_without_json_is_asked_in_text() {
    // clemsonciti/jobperf#4 (SP-10); dun/munge#124 (CT-08).
    let ask = |said: &str| {
        let squeue = format!("echo '{ROW}'");
        let scripts = [("scontrol", &*scontrol("25.11.3", said)), ("squeue", &squeue)];
        StandIns::new(&scripts).slurm().job(job(4242), Ask::NOTHING_MORE)
    };
    for without in [
        "echo \"scontrol: unrecognized option '--json'\" >&2; exit 1",
        "echo 'scontrol: fatal: Unable to find plugin: serializer/json' >&2; exit 1",
    ] {
        assert!(ask(without).unwrap().is_some(), "{without}");
    }
    for odd in [
        "true",
        "echo '{}'",
        "echo '{\"jobs\": [{\"job_id\": 4242}]}'",
        "echo '{\"jobs\": [], \"errors\": [{\"error\": \"Protocol authentication error\"}]}'",
        "echo 'slurm_load_jobs error: Protocol authentication error' >&2; exit 1",
        "echo 'slurm_load_jobs error: Socket timed out on send/recv operation' >&2; exit 1",
        "kill -9 $$",
    ] {
        assert!(ask(odd).is_err(), "{odd}");
    }
}

/// squeue and scontrol of 22.05, with these texts of people's.
fn old(name: &str, comment: &str, admin_comment: &str) -> StandIns {
    let squeue = format!(
        "case $* in *,Name:*) printf '3|%s\\n' '{name}' ;; *,Comment:*) printf '3|%s\\n' '{comment}' ;;
         *admin_comment:*) printf '3|1|0|%s\\n' '{admin_comment}' ;;
         *) echo '3|3|RUNNING|1795966699|1|node1|1001|ada|gpu|0|normal|lab' ;; esac"
    );
    let shown = scontrol("22.05.8", &fixture("22.05.8/show-job.suspended.out"));
    StandIns::new(&[("squeue", &squeue), ("scontrol", &shown)])
}

#[test]
fn before_23_02_each_thing_is_asked_so_that_no_users_text_can_forge_it() {
    let forging = "x\n3|1|1|keep\n   SuspendTime=5";
    let stand_ins = old(forging, forging, "keep a|b");
    let details = started(stand_ins.slurm().job(job(3), ALL).unwrap().unwrap());
    assert_eq!(details.name.measured().map(String::as_str), Some(forging));
    let near = details.near;
    assert_eq!(near.comment.measured().map(String::as_str), Some(forging));
    assert_eq!(near.admin_comment.measured().map(String::as_str), Some("keep a|b"));
    assert_eq!((near.batch, near.requeue), (Reading::Measured(true), Reading::Measured(false)));
    assert_eq!(near.suspended_unix_s, Reading::Measured(1_795_985_772));
    assert_eq!(near.sluid, Reading::Absent(Absence::NoData));
    assert_eq!(stand_ins.args("scontrol"), ["--local", "show", "job", "3"]);

    let plain = old("n", "(null)", "(null)").slurm().job(job(3), ALL).unwrap().unwrap();
    let near = started(plain).near;
    assert_eq!(near.comment, Reading::Absent(Absence::NoData));
    assert_eq!(near.admin_comment, Reading::Absent(Absence::NoData));
    let nothing_more = old("n", "c", "a").slurm().job(job(3), Ask::NOTHING_MORE).unwrap().unwrap();
    assert_eq!(started(nothing_more).near.admin_comment, Reading::Absent(Absence::NotAsked));
}

#[test]
fn a_name_is_kept_exactly_whatever_it_holds() {
    // eth-cscs/firecrest-v2#148, neilmunday/slurm-mail#100 (SP-01).
    let ask = Ask { name: true, ..Ask::NOTHING_MORE };
    for name in ["a|b", "c^^^d", "e,f", "  x ", "", "n\nJobId=1 x", "tail\n"] {
        let details = started(old(name, "", "").slurm().job(job(3), ask).unwrap().unwrap());
        assert_eq!(details.name.measured().map(String::as_str), Some(name));
    }
    let named = |shown: &str, row: &str| {
        let first = format!("10|{shown}|RUNNING|1795966699|1|node1|1001|ada|gpu|0|normal|lab");
        let body = format!("case $* in *,Name:*) printf '{row}' ;; *) echo '{first}' ;; esac");
        let stand_ins = StandIns::new(&[("squeue", &body)]);
        let details = stand_ins.slurm().job(job(10), ask).map(|listed| started(listed.unwrap()));
        (details.map(|details| details.name), stand_ins.args("squeue"))
    };
    assert_eq!(named("10", "10|caf\\351\\n").0, Ok(Reading::Measured("caf\u{fffd}".into())));
    let (task, args) = named("9_1", "10|arr\\n");
    assert_eq!(task, Ok(Reading::Measured("arr".into())));
    assert!(args.contains(&"9_1".to_owned()), "{args:?}");
    assert!(named("10", "11|another\\n").0.is_err(), "another job's row");
    assert!(named("10+0", "10|x\\n").0.is_err(), "a whole heterogeneous job");
}

#[test]
fn every_node_is_seen_in_one_look() {
    // vpenso/prometheus-slurm-exporter#20 (SP-14): hidden partitions too.
    let groups = fixture("24.11.5/sinfo-groups.odd-reason.out");
    let stand_ins = StandIns::new(&[("sinfo", &groups)]);
    let names = |rows: Vec<NodeRow>| rows.iter().map(|row| row.name.to_string()).collect::<Vec<_>>();
    let fields = "NodeList:|,StateComplete:|,Gres:|,Timestamp:|,Reason:\u{1e}";
    let slurm = stand_ins.slurm();
    assert_eq!(slurm.survey().map(names), Ok(vec!["node1".into(), "node2".into(), "node3".into()]));
    assert_eq!(stand_ins.args("sinfo"), ["-h", "-a", "--local", "-O", fields]);
}

#[test]
fn a_survey_that_failed_is_no_survey_and_a_large_one_is_whole() {
    // SchedMD/slurm#171 (CT-01), Azure/cyclecloud-slurm#127 (SP-06).
    let survey = |body: &str| StandIns::new(&[("sinfo", body)]).slurm().survey();
    for silent in [
        "exit 1",
        "true",
        "echo nonsense",
        "printf 'n1|idle|gpu:1|Unknown|none\\036\\n'; exit 1",
        "printf 'n1|idle|gpu:1|Unknown|none\\036\\nn2|idle'",
        "echo 'sinfo: error: Invalid job format specification: Gres' >&2; printf 'n1|idle|Unknown|none\\036\\n'",
        "yes 'n1|idle|gpu:1|Unknown|none' | head -c 20000000",
    ] {
        assert!(survey(silent).is_err(), "{silent}");
    }
    let body = "i=10000; while [ $i -lt 20000 ]; do i=$((i + 1)); for p in 1 2 3 4 5; do
         printf 'a-rather-long-name-of-a-node-%s|mixed+drain+planned|gpu:h100:4(S:0-1)|1795985775|%0199d\\036\\n' $i 7
         done; done; printf 'node1|idle|gpu:h100:4|Unknown|none\\036\\n'";
    assert_eq!(survey(body).map(|rows| rows.len()), Ok(10_001));
    let elsewhere = survey("printf 'n1|idle|gpu:1|Unknown|none\\036\\n'");
    assert!(matches!(elsewhere, Err(NoAnswer::UnknownNode(_))), "{elsewhere:?}");
}

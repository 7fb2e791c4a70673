//! Who is left alone, by whose word, and for how long.

use super::*;
use crate::policy::guard::{Exempt, Looked, configured, decide, exempt_before_deed, written};
use crate::policy::keep::Keep;

const ABSENT: [Absence; 3] = [Absence::NotAsked, Absence::SourceFailed, Absence::NotUnderstood];

fn none() -> Reading<String> {
    Reading::Absent(Absence::NoData)
}

fn text(text: &str) -> Reading<String> {
    Reading::Measured(text.to_owned())
}

/// Slurm's answer of now about a job five hours old: nothing was written for it.
fn told(age_ms: i64) -> JobRun {
    let mut job = job(NOW - age_ms, 2);
    job.details = Some(JobDetails {
        state: JobState::Running,
        start_unix_s: 1,
        restart: Reading::Measured(0),
        display_id: "4242".into(),
        name: text("train"),
        user: text("ada"),
        account: none(),
        partition: text("h100"),
        qos: none(),
        nodes: Reading::Measured(1),
        node_list: none(),
        shares: Reading::Absent(Absence::NotAsked),
        near: NearDeed { admin_comment: none(), comment: none(), ..NearDeed::absent(Absence::NotAsked) },
    });
    job
}

fn details(job: &mut JobRun) -> &mut JobDetails {
    job.details.as_mut().expect("asked")
}

fn word(exempt: Exempt) -> &'static str {
    match exempt {
        Exempt::Yes(_) => "yes",
        Exempt::No(_) => "no",
        Exempt::CannotSay(_) => "doubt",
    }
}

fn before_deed(rules: &Exemptions, job: &JobRun) -> &'static str {
    word(exempt_before_deed(rules, job, 2, &now()))
}

fn until(in_ms: i64) -> Keep {
    Keep { until: WallMs(now().wall.0 + in_ms), by: "root".into(), reason: "paper deadline".into() }
}

#[test]
fn a_keep_holds_until_its_end_and_no_longer() {
    let nobody = Exemptions::default();
    for (in_ms, want) in [(HOUR, "yes"), (1000, "yes"), (0, "no"), (-HOUR, "no")] {
        let mut job = told(5 * HOUR);
        details(&mut job).near.admin_comment = text(&until(in_ms).line());
        assert_eq!(before_deed(&nobody, &job), want, "{in_ms}");
    }
    let mut job = told(5 * HOUR);
    details(&mut job).near.admin_comment = text(&until(HOUR).line());
    let Exempt::Yes(why) = exempt_before_deed(&nobody, &job, 2, &now()) else { panic!("kept") };
    assert_eq!(why, format!("a keep until {} by root: `paper deadline`", until(HOUR).until.rfc3339()));
    // It is an administrator's word with an end of its own: what bounds user-chosen names does not bound it.
    let bounds = Exemptions { max_gpus: Some(1), max_age_ms: Some(HOUR), ..Exemptions::default() };
    assert_eq!(before_deed(&bounds, &job), "yes");
}

#[test]
fn what_is_not_known_before_a_deed_is_a_doubt() {
    let nobody = Exemptions::default();
    let asks = Exemptions { job_comment_ms: Some(24 * HOUR), ..Exemptions::default() };
    for why in ABSENT {
        let mut job = told(5 * HOUR);
        details(&mut job).near.admin_comment = Reading::Absent(why);
        assert_eq!(before_deed(&nobody, &job), "doubt", "{why:?}");
        let mut job = told(5 * HOUR);
        details(&mut job).near.comment = Reading::Absent(why);
        assert_eq!(before_deed(&nobody, &job), "no", "{why:?}: nobody looks at comments here");
        assert_eq!(before_deed(&asks, &job), "doubt", "{why:?}");
        job.registration.start.boot = BootMs(NOW - 25 * HOUR);
        assert_eq!(before_deed(&asks, &job), "no", "{why:?}: it could not hold any longer");
    }
    let mut job = told(5 * HOUR);
    job.details = None;
    assert_eq!(before_deed(&nobody, &job), "doubt");
    let mut job = told(5 * HOUR);
    details(&mut job).near.admin_comment = text("gpu-reaper: keep until=tomorrow");
    assert_eq!(before_deed(&nobody, &job), "doubt");
    details(&mut job).near.admin_comment = text("ticket 42; set by job_submit/lua");
    assert_eq!(before_deed(&nobody, &job), "no");
}

#[test]
fn a_jobs_own_comment_holds_from_its_start_and_only_as_long_as_the_site_allows() {
    let table = [
        (None, "gpu-reaper:keep=4h", HOUR, "no"),
        (Some(4 * HOUR), "gpu-reaper:keep=2h", HOUR, "yes"),
        (Some(4 * HOUR), "gpu-reaper:keep=2h", 2 * HOUR, "no"),
        (Some(4 * HOUR), "gpu-reaper:keep=100d", 4 * HOUR - 1, "yes"),
        (Some(4 * HOUR), "gpu-reaper:keep=100d", 4 * HOUR, "no"),
        (Some(4 * HOUR), "gpu-reaper:keep=x", HOUR, "no"),
        (Some(4 * HOUR), "gpu-reaper:keep", HOUR, "no"),
        (Some(4 * HOUR), "gpu-reaper: keep until=2099-01-01T00:00:00Z", HOUR, "no"),
        (Some(4 * HOUR), "\u{1b}[2J\n\u{202e}", HOUR, "no"),
    ];
    for (job_comment_ms, comment, age_ms, want) in table {
        let mut job = told(age_ms);
        details(&mut job).near.comment = text(comment);
        let rules = Exemptions { job_comment_ms, ..Exemptions::default() };
        assert_eq!(before_deed(&rules, &job), want, "{job_comment_ms:?} {comment:?} {age_ms}");
        let few = Exemptions { max_gpus: Some(1), ..rules };
        assert_eq!(before_deed(&few, &job), "no", "two GPUs, and one is the bound");
    }
}

#[test]
fn the_bounds_hold_for_whatever_a_user_can_choose() {
    // PrincetonUniversity/job_defense_shield, jobstats#22 (FP-09): a name is user-chosen and can be used to hide.
    let lists = Exemptions { users: vec!["ada".into()], qos: vec!["debug".into()], ..Exemptions::default() };
    let of = |rules: &Exemptions, gpus, age_ms| decide(&configured(rules, &told(age_ms), gpus, age_ms));
    assert_eq!(of(&lists, 8, 5 * HOUR), Exempt::Yes("user `ada`".into()));
    let bounds = Exemptions { max_gpus: Some(4), max_age_ms: Some(5 * HOUR), ..lists };
    assert_eq!(of(&bounds, 4, 5 * HOUR), Exempt::Yes("user `ada`".into()));
    assert!(matches!(of(&bounds, 5, 5 * HOUR), Exempt::No(why) if why.contains("up to 4 GPUs; it holds 5")));
    assert!(matches!(of(&bounds, 4, 5 * HOUR + 1), Exempt::No(why) if why.contains("only for 5 h")));
    // What is not known of an exemption that could not hold anyway is no doubt.
    let mut job = told(5 * HOUR);
    details(&mut job).qos = Reading::Absent(Absence::NotAsked);
    let by_qos = Exemptions { users: vec![], ..bounds };
    assert_eq!(word(decide(&configured(&by_qos, &job, 4, HOUR))), "doubt");
    assert_eq!(word(decide(&configured(&by_qos, &job, 5, HOUR))), "no");
}

#[test]
fn a_job_always_has_a_user_and_a_partition_and_may_have_no_account() {
    let rules = Exemptions {
        users: vec!["ada".into()],
        partitions: vec!["interactive".into()],
        accounts: vec!["teaching".into()],
        ..Exemptions::default()
    };
    let users = Exemptions { partitions: vec![], accounts: vec![], ..rules.clone() };
    // squeue shows no name where this node cannot look up the uid; the Prolog's word still stands.
    let mut job = told(HOUR);
    details(&mut job).user = none();
    assert_eq!(word(decide(&configured(&users, &job, 2, HOUR))), "yes");
    job.registration.user = none();
    assert_eq!(word(decide(&configured(&users, &job, 2, HOUR))), "doubt");
    let others = Exemptions { users: vec![], ..rules };
    let mut job = told(HOUR);
    job.registration.account = text("teaching");
    assert_eq!(word(decide(&configured(&others, &job, 2, HOUR))), "no", "Slurm says that it has no account");
    details(&mut job).partition = none();
    job.registration.partition = none();
    assert_eq!(word(decide(&configured(&others, &job, 2, HOUR))), "doubt");
}

#[test]
fn each_exemption_says_what_it_saw_and_what_it_compared_with() {
    let rules = Exemptions {
        users: ["a", "b", "c", "d", "e", "f", "g"].map(String::from).to_vec(),
        name_pattern: Some(Regex::new("^jupyter-").unwrap()),
        job_comment_ms: Some(4 * HOUR),
        ..Exemptions::default()
    };
    let mut job = told(HOUR);
    details(&mut job).name = text("x\u{1b}[2J");
    details(&mut job).near.comment = text("gpu-reaper:keep=8h");
    details(&mut job).near.admin_comment = text(&until(-HOUR).line());
    let near = &details(&mut job).near.clone();
    let looked: Vec<Looked> =
        [configured(&rules, &job, 2, HOUR), written(&rules, near, 2, HOUR, &now())].concat();
    let rows: Vec<GuardReport> = looked.into_iter().map(|one| one.report(true)).collect();
    let said: Vec<(&str, &str, bool)> =
        rows.iter().map(|r| (r.saw.as_str(), r.limit.as_str(), r.held)).collect();
    let ended =
        format!("a keep that has ended, until {} by root: `paper deadline`", until(-HOUR).until.rfc3339());
    let at = format!("a keep in its AdminComment, at {}", now().wall.rfc3339());
    let want = [
        ("user `ada`", "`exemptions.users`: a, b, c, d, e and 2 more", false),
        ("name `x\\u{1b}[2J`", "`exemptions.name_pattern`: ^jupyter-", false),
        (&ended, &at, false),
        (
            "its comment `gpu-reaper:keep=8h`, until it is 4 h old",
            "`exemptions.job_comment`: 4 h from its start",
            true,
        ),
    ];
    assert_eq!(said, want);
}

proptest! {
    /// Whatever is written, the words about it are one printable line, and a comment never outlasts the site's limit.
    #[test]
    fn any_comment_is_one_printable_line_and_never_outlasts_the_limit(
        comment in "(gpu-reaper:keep=[0-9]{1,9}[smhd])?\\PC{0,30}\n?",
        admin_comment in "(gpu-reaper: keep until=)?\\PC{0,40}\n?",
        age_ms in 0i64..8 * HOUR,
    ) {
        let rules = Exemptions { job_comment_ms: Some(4 * HOUR), ..Exemptions::default() };
        let near = NearDeed {
            comment: text(&comment), admin_comment: text(&admin_comment), ..NearDeed::absent(Absence::NotAsked)
        };
        let looked = written(&rules, &near, 2, age_ms, &now());
        prop_assert!(age_ms < 4 * HOUR || !matches!(looked[1].says, Exempt::Yes(_)));
        for one in looked {
            prop_assert!(one.report(true).saw.chars().all(|c| !c.is_control()));
        }
    }
}

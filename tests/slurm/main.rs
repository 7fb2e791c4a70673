//! The real argument lists, environment and deadlines, against small stand-ins for Slurm's commands.

mod deadlines;
mod deeds;
mod stand_in;
mod versions;

use gpu_reaper_hc::model::NodeBase;
use gpu_reaper_hc::model::{JobId, JobState, Outcome};
use gpu_reaper_hc::reading::{Absence, Reading};
use gpu_reaper_hc::slurm::{Ask, NoAnswer, Site, Slurm, Target};
use gpu_reaper_hc::units::NodeName;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A folder of stand-ins; each call's arguments and environment are kept beside them.
struct StandIns {
    folder: tempfile::TempDir,
}

impl StandIns {
    fn new(scripts: &[(&str, &str)]) -> StandIns {
        let folder = tempfile::tempdir().unwrap();
        for (name, body) in scripts {
            let said = folder.path().join(format!("{name}.args"));
            let record = format!("for a in \"$@\"; do printf '%s\\n' \"$a\"; done > {}", said.display());
            install(&folder.path().join(name), &format!("#!/bin/sh\n{record}\n{body}\n"));
        }
        StandIns { folder }
    }

    fn site(&self) -> Site {
        Site {
            bin_dir: Some(self.folder.path().to_path_buf()),
            conf: None,
            path: None,
            limit: Duration::from_secs(10),
        }
    }

    fn slurm(&self) -> Slurm {
        slurm(self.site())
    }

    fn args(&self, program: &str) -> Vec<String> {
        let text = fs::read_to_string(self.folder.path().join(format!("{program}.args"))).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

/// By a shell, so that this process never holds the file open for writing: a child of another test's thread
/// would inherit that for a moment, and the kernel refuses to run such a file (ETXTBSY).
fn install(path: &Path, text: &str) {
    let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    let status = Command::new("/bin/sh").args(["-c", write]).arg(path).arg(text).status();
    assert!(status.unwrap().success());
}

fn slurm(site: Site) -> Slurm {
    Slurm::new(NodeName::new("node1").unwrap(), site)
}

fn job(id: u64) -> JobId {
    JobId::new(id).unwrap()
}

fn target(display_id: &str) -> Target {
    let absent = Reading::Absent(Absence::NotAsked);
    let node = NodeName::new("node1").unwrap();
    Target { display_id: display_id.to_owned(), sluid: absent.clone(), user: absent, node }
}

fn we_are_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0)
}

const ROW: &str = "4242|4242|RUNNING|1795966699|1|node1|1001|ada|gpu|0|normal|lab";

#[test]
fn a_job_is_asked_with_machine_fields_and_all_partitions() {
    // vpenso/prometheus-slurm-exporter#20 (SP-14): without -a a job in a hidden partition is missing.
    let stand_ins = StandIns::new(&[("squeue", &format!("echo '{ROW}'"))]);
    let listed = stand_ins.slurm().job(job(4242), Ask::NOTHING_MORE).unwrap().unwrap();
    assert_eq!((listed.uid, listed.state), (1001, JobState::Running));
    assert!(listed.details.is_some_and(|details| details.display_id == "4242"));
    let args = stand_ins.args("squeue");
    assert_eq!(&args[..8], ["-h", "-a", "--local", "-t", "all", "-j", "4242", "-O"]);
    assert!(!args[8].contains(",Name:") && args[8].ends_with("Account:"), "{args:?}");
}

#[test]
fn an_unknown_job_is_none_and_a_failed_squeue_is_no_answer() {
    // SchedMD/slurm#171, broadinstitute/cromwell#5400 (CT-01): absence of an answer is not an answer.
    let said = |body: &str| StandIns::new(&[("squeue", body)]).slurm().job(job(4242), Ask::NOTHING_MORE);
    assert_eq!(said("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"), Ok(None));
    let timed_out = "slurm_load_jobs error: Socket timed out on send/recv operation";
    match said(&format!("echo '{timed_out}' >&2; exit 1")) {
        Err(NoAnswer::Refused { program: "squeue", code: 1, text }) => assert_eq!(text, timed_out),
        other => panic!("{other:?}"),
    }
    for silent in ["true", "exit 3", "kill -9 $$", "echo nonsense", "echo"] {
        assert!(said(silent).is_err(), "{silent}: {:?}", said(silent));
    }
}

#[test]
fn no_jobs_here_is_told_by_an_empty_list_alone() {
    let said = |body: &str| StandIns::new(&[("squeue", body)]).slurm().jobs_here();
    assert_eq!(said("true"), Ok(vec![]));
    assert!(said("exit 1").is_err());
    let row = "7|7|RUNNING|1795966699|1|node1|1001|ada|gpu|0|normal";
    assert_eq!(said(&format!("echo '{row}'")).map(|jobs| jobs.len()), Ok(1));
    assert!(said(&format!("echo '{row}'; echo '7|7'")).is_err(), "a row that does not fit");
    assert!(said(&format!("echo '{row}'; echo '{row}'")).is_err(), "one job twice");
    let unknown = said("echo 'squeue: error: Invalid node name node1' >&2; exit 1");
    assert!(matches!(unknown, Err(NoAnswer::UnknownNode(_))), "{unknown:?}");
}

#[test]
fn a_field_that_this_squeue_does_not_know_is_an_unsupported_version() {
    // albanie/slurm_gpustat#7 (SP-13): such a field is dropped, with exit status 0.
    let body = format!("echo 'squeue: error: Invalid job format specification: X' >&2; echo '{ROW}'");
    let answer = StandIns::new(&[("squeue", &body)]).slurm().job(job(4242), Ask::NOTHING_MORE);
    assert!(
        matches!(&answer, Err(NoAnswer::NotUnderstood { text, .. }) if text.contains("version")),
        "{answer:?}"
    );
}

#[test]
fn a_sluid_is_looked_up_and_its_echo_is_checked() {
    // guilbaults/slurm-job-exporter#66 (CG-01).
    let stand_ins = StandIns::new(&[("squeue", "echo '3385|s5K1KKYAYG5D00'")]);
    assert_eq!(stand_ins.slurm().job_of_sluid("s5K1KKYAYG5D00"), Ok(Some(job(3385))));
    assert!(stand_ins.slurm().job_of_sluid("s63NM8KTNVBJ00").is_err(), "another job's row");
    assert!(stand_ins.slurm().job_of_sluid("job_1").is_err());
}

#[test]
fn the_node_is_known_by_slurms_name_or_it_is_a_fault_of_the_set_up() {
    // mej/nhc#19, #110 (ND-01): an unknown name was answered with silence for five years.
    let said = |body: &str| StandIns::new(&[("sinfo", body)]).slurm().node();
    let status = said("echo 'allocated+drain|gpu-reaper: job=1 a=b'").unwrap();
    assert_eq!((status.base.clone(), status.drained(), status.plain()), (NodeBase::Allocated, true, true));
    assert_eq!(status.reason.as_deref(), Some("gpu-reaper: job=1 a=b"));
    match said("true") {
        Err(unknown @ NoAnswer::UnknownNode(_)) => assert!(unknown.to_string().contains("`node1`")),
        other => panic!("{other:?}"),
    }
    assert!(said("echo 'idle|none'; exit 1").is_err(), "an answer with an error is none");
}

#[test]
fn a_drain_is_one_exact_command_and_its_reason_arrives_byte_for_byte() {
    // nebius/soperator#2954, #2955 (ND-06), mej/nhc commit 95b4c9e (ND-07).
    let stand_ins = StandIns::new(&[("scontrol", ""), ("scancel", "")]);
    let reason =
        "gpu-reaper: job=4242 run=1764422738.0 sig=hung st=drain since=2026-11-29T13:25:38Z $HOME `id` \\ 'x";
    let slurm = stand_ins.slurm();
    slurm.drain(reason).unwrap();
    let want = ["update", "NodeName=node1", "State=DRAIN", &format!("Reason={reason}")];
    assert_eq!(stand_ins.args("scontrol"), want);
    slurm.undrain().unwrap();
    assert_eq!(stand_ins.args("scontrol"), ["update", "NodeName=node1", "State=UNDRAIN"]);
    slurm.set_admin_comment("9_2", "gpu-reaper: cancelling, idle for 5 h").unwrap();
    let comment = "AdminComment=gpu-reaper: cancelling, idle for 5 h";
    assert_eq!(stand_ins.args("scontrol"), ["update", "JobId=9_2", comment]);
}

#[test]
fn a_text_or_an_id_that_must_not_be_passed_on_runs_nothing() {
    // aws/aws-parallelcluster-node#639 (ND-10).
    let stand_ins = StandIns::new(&[("scontrol", ""), ("scancel", "")]);
    let slurm = stand_ins.slurm();
    for refused in [
        slurm.drain("a\nb"),
        slurm.drain(&"x".repeat(201)),
        slurm.cancel(&target("-u ada")),
        slurm.cancel(&target("9_[1-3]")),
    ] {
        assert_eq!(refused.unwrap_err().outcome(), Outcome::Failed);
    }
    assert!(!stand_ins.folder.path().join("scontrol.args").exists());
    assert!(!stand_ins.folder.path().join("scancel.args").exists());
}

#[test]
fn a_refused_action_says_so_in_slurms_words() {
    // aws/aws-parallelcluster#2467 (CT-07), ComputeCanada/puppet-magic_castle#177 (CT-08).
    let drain = |body: &str| StandIns::new(&[("scontrol", body)]).slurm().drain("x").unwrap_err();
    let denied = drain("echo 'slurm_update error: Invalid user id' >&2; exit 1");
    assert_eq!(denied.to_string(), "scontrol: `slurm_update error: Invalid user id` (exit status 1)");
    assert_eq!(denied.outcome(), Outcome::Failed);
    let munge =
        drain("echo 'a: b' >&2; echo 'slurm_update error: Protocol authentication error' >&2; exit 1");
    assert_eq!(munge.outcome(), Outcome::Failed);
    let late = drain("echo 'slurm_update error: Socket timed out on send/recv operation' >&2; exit 1");
    assert_eq!(late.outcome(), Outcome::Unknown);
    let elsewhere = drain("echo 'slurm_update error: Invalid node name specified' >&2; exit 1");
    assert!(matches!(elsewhere, NoAnswer::UnknownNode(_)));
    assert_eq!(drain("kill -9 $$").outcome(), Outcome::Unknown);
}

#[test]
fn the_brake_is_pulled_free_or_unknown() {
    let said = |body: &str| StandIns::new(&[("scontrol", body)]).slurm().brake();
    let pulled = "echo 'ReservationName=gpu-reaper-stop StartTime=1795966700 State=ACTIVE'";
    assert_eq!(said(pulled), Ok(true));
    assert_eq!(said("echo 'Reservation gpu-reaper-stop not found'; exit 1"), Ok(false));
    for unknown in [
        "true",
        "exit 1",
        "echo 'Reservation gpu-reaper-stop not found'",
        "echo 'Reservation gpu-reaper-stop not found'; echo 'connect failure' >&2; exit 1",
        "echo 'ReservationName=gpu-reaper-stop-not StartTime=1'",
    ] {
        assert!(said(unknown).is_err(), "{unknown}: {:?}", said(unknown));
    }
}

#[test]
fn gpus_of_an_unregistered_job_come_from_its_own_record() {
    let recorded = format!("{}/fixtures/slurm/24.11.5/show-job-d.uneven.out", env!("CARGO_MANIFEST_DIR"));
    let stand_ins = StandIns::new(&[("scontrol", &format!("cat {recorded}"))]);
    let held = stand_ins.slurm().gpus_of(job(8), "8").unwrap();
    assert_eq!(held.iter().map(|index| index.0).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(stand_ins.args("scontrol"), ["--local", "-d", "show", "job", "8"]);
    assert!(stand_ins.slurm().gpus_of(job(9), "9").is_err());
}

#[test]
fn commands_are_looked_for_in_the_configured_folder_then_path_then_nowhere() {
    // PrincetonUniversity/jobstats#26, NVIDIA/deepops#919 (CT-09): works by hand, fails under slurmd.
    let stand_ins = StandIns::new(&[("squeue", &format!("echo '{ROW}'"))]);
    let folder = stand_ins.folder.path().to_path_buf();
    let by_path = Site {
        bin_dir: None,
        path: Some(format!("relative:/nowhere:{}", folder.display()).into()),
        ..stand_ins.site()
    };
    assert!(slurm(by_path).job(job(4242), Ask::NOTHING_MORE).unwrap().is_some());
    let empty = tempfile::tempdir().unwrap();
    let site =
        Site { bin_dir: Some(empty.path().to_path_buf()), path: Some(folder.into()), ..stand_ins.site() };
    match slurm(site).job(job(4242), Ask::NOTHING_MORE) {
        Err(silence @ NoAnswer::Unavailable { program: "squeue", .. }) => {
            assert!(silence.to_string().contains("`slurm.bin_dir`") && silence.outcome() == Outcome::Failed)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn root_runs_nothing_that_others_can_change() {
    let stand_ins = StandIns::new(&[("squeue", &format!("echo '{ROW}'"))]);
    fs::set_permissions(stand_ins.folder.path().join("squeue"), fs::Permissions::from_mode(0o777)).unwrap();
    match (we_are_root(), stand_ins.slurm().job(job(4242), Ask::NOTHING_MORE)) {
        (true, Err(NoAnswer::Unavailable { why, .. })) => {
            assert!(why.contains("is writable by others (mode 777)"), "{why}")
        }
        (false, Ok(Some(_))) => {}
        other => panic!("{other:?}"),
    }
    // Nor what others can put another in the place of: in its own folder, or in that of a link to it.
    let [open, apart] = [(); 2].map(|()| StandIns::new(&[("squeue", &format!("echo '{ROW}'"))]));
    let folder = apart.folder.path().join("open");
    fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink(apart.folder.path().join("squeue"), folder.join("squeue")).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(open.folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let by_link = Site { bin_dir: Some(folder), ..apart.site() };
    for site in [open.site(), by_link.clone()] {
        match (we_are_root(), slurm(site).job(job(4242), Ask::NOTHING_MORE)) {
            (true, Err(NoAnswer::Unavailable { why, .. })) => {
                assert!(why.contains(": its folder `"), "{why}")
            }
            (false, Ok(Some(_))) => {}
            other => panic!("{other:?}"),
        }
    }
    for (folder, mode) in [(open.folder.path(), 0o1777), (by_link.bin_dir.as_deref().unwrap(), 0o755)] {
        fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
        let site = Site { bin_dir: Some(folder.to_path_buf()), ..stand_ins.site() };
        assert!(slurm(site).job(job(4242), Ask::NOTHING_MORE).unwrap().is_some(), "{mode:o}");
    }
    let relative = Site { bin_dir: Some(PathBuf::from("tests")), ..stand_ins.site() };
    assert!(slurm(relative).job(job(1), Ask::NOTHING_MORE).is_err());
}

/// Set for the second half of the next test, which runs in an odd environment of its own.
const ODD: &str = "GPU_REAPER_TEST_ODD_ENVIRONMENT";

#[test]
fn an_odd_environment_does_not_reach_slurm() {
    // Parsl/parsl#2293, amq92/simple_slurm#18 (SP-05).
    if std::env::var_os(ODD).is_some() {
        return odd_environment();
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "an_odd_environment_does_not_reach_slurm"])
        .envs([(ODD, "1"), ("SQUEUE_FORMAT", "%j"), ("SQUEUE_SORT", "x"), ("SLURM_TIME_FORMAT", "relative")])
        .envs([
            ("SLURM_CLUSTERS", "other"),
            ("LANG", "de_DE"),
            ("TZ", "Asia/Tokyo"),
            ("SLURM_CONF", "/etc/x.conf"),
        ])
        .envs([("LD_PRELOAD", ""), ("SINFO_FORMAT", "%n")])
        .status();
    assert!(status.unwrap().success());
}

fn odd_environment() {
    let stand_ins = StandIns::new(&[]);
    let seen = stand_ins.folder.path().join("environment");
    let script = format!("#!/bin/sh\ntr '\\0' '\\n' < /proc/$$/environ > {}\necho '{ROW}'\n", seen.display());
    install(&stand_ins.folder.path().join("squeue"), &script);
    let here = Site::here(Some(stand_ins.folder.path().to_path_buf()), None);
    assert!(slurm(here.clone()).job(job(4242), Ask::NOTHING_MORE).unwrap().is_some());
    let environment = |path: &Path| {
        let mut lines: Vec<String> = fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let want = ["LC_ALL=C", "PATH=/usr/bin:/bin", "SLURM_CONF=/etc/x.conf", "SLURM_TIME_FORMAT=%s"];
    assert_eq!(environment(&seen), want);
    let configured = Site::here(here.bin_dir, Some(PathBuf::from("/etc/slurm/slurm.conf")));
    assert!(slurm(configured).job(job(4242), Ask::NOTHING_MORE).unwrap().is_some());
    assert!(environment(&seen).contains(&"SLURM_CONF=/etc/slurm/slurm.conf".to_owned()));
}

//! A scripted nvidia-smi.

use crate::*;
use std::os::unix::fs::PermissionsExt;

/// A stand-in nvidia-smi: a shell script.
fn smi(script: &str) -> (tempfile::TempDir, Plan) {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("nvidia-smi");
    fs::write(&program, format!("#!/bin/sh\n{script}")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let plan = Plan {
        source: SourcePlan::NvidiaSmi { program },
        states: false,
        deadline: PATIENT,
        lock: dir.path().join("probe.lock"),
    };
    (dir, plan)
}

const SMI_GPUS: &str = "\
535.104.05, 0, GPU-a, 00000000:1A:00.0, [N/A], 0, 0, 0, 16384, 26.10, 70.00, 300, 1590, 31, 0x1, Tesla T4
535.104.05, 1, GPU-b, 00000000:1B:00.0, [N/A], [N/A], [N/A], 8192, 16384, [N/A], 70.00, \
1590, 1590, 60, 0x0, Tesla T4";

#[test]
fn nvidia_smi_is_asked_in_its_own_words_and_with_a_clean_environment() {
    let (_dir, plan) = smi(&format!(
        r#"[ "$(env | grep -v -e ^PWD= -e ^_= -e ^SHLVL=)" = LC_ALL=C ] || exit 2
case "$*" in
  *clocks_event_reasons*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2;;
  *--query-gpu=*clocks_throttle_reasons.active,name*) cat <<'ROWS'
{SMI_GPUS}
ROWS
  ;;
  *--query-compute-apps=*) echo 'GPU-b, {INIT}, 8000';;
esac
"#
    ));
    let Measured(report) = worker::start(&plan).finish() else { panic!("a report") };
    assert_eq!(report.driver, Measured("535.104.05".into()));
    let [a, b] = &report.units[..] else { panic!("two units") };
    assert_eq!(a.readings.sm_util, percent(0));
    assert_eq!(a.readings.power, Measured(Milliwatts(26_100)));
    assert_eq!(a.readings.processes, Measured(vec![]));
    assert_eq!(b.readings.sm_util, Absent(Absence::NotSupported));
    assert_eq!(b.readings.power, Absent(Absence::NotSupported));
    assert_eq!(b.readings.mig, Absent(Absence::NotSupported));
    let memory = Measured(MemoryBytes(8000 << 20));
    assert_eq!(
        b.readings.processes,
        Measured(vec![GpuProcess { pid: INIT, kind: ProcessKind::Compute, memory }])
    );
}

#[test]
fn an_nvidia_smi_that_fails_is_no_empty_node() {
    let table = [
        ("exit 12", Absent(Absence::LibraryNotFound)),
        ("echo 'Unable to determine the device handle'; exit 15", Absent(Absence::GpuLost)),
        ("exit 18", Absent(Absence::VersionMismatch)),
        ("kill -9 $$", Absent(Absence::SourceFailed)),
        ("echo nonsense", Absent(Absence::NotUnderstood)),
        ("echo 'No devices were found'; exit 6", Measured(0)),
        ("yes", Absent(Absence::NotUnderstood)),
    ];
    for (script, want) in table {
        let (_dir, plan) = smi(script);
        assert_eq!(worker::start(&plan).finish().map(|r| r.units.len()), want, "{script}");
    }
    let (dir, mut plan) = smi("");
    plan.source = SourcePlan::NvidiaSmi { program: dir.path().join("missing") };
    assert_eq!(worker::start(&plan).finish(), Absent(Absence::SourceFailed));
}

#[test]
fn an_nvidia_smi_that_hangs_keeps_the_lock_until_it_is_gone() {
    let (dir, mut plan) = smi("echo $$ > \"${0%/*}/pid\"; exec sleep 1000");
    plan.deadline = SHORT;
    let pending = worker::start(&plan);
    let pid = || fs::read_to_string(dir.path().join("pid")).ok()?.trim().parse::<u32>().ok();
    eventually("the program runs", || pid().is_some());
    let program = pid().unwrap();
    let open = fs::read_dir(format!("/proc/{program}/fd")).unwrap();
    let lock = plan.lock.canonicalize().unwrap();
    assert!(
        open.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok()).any(|to| to == lock),
        "it holds the lock"
    );
    let (answer, took) = timed(pending);
    assert_eq!(answer, Absent(Absence::DeadlinePassed));
    assert!(took < SHORT + SLACK, "{took:?}");
    eventually("the program died with its worker", || matches!(state(program), None | Some('Z')));
}

//! The stand-in of the scenarios and the demo (`fixtures/stand-in/slurm`) answers whatever is asked of Slurm.

use super::versions::ALL;
use super::*;

const STAND_IN: &str = include_str!("../../fixtures/stand-in/slurm");

/// Node n1 with job 7, which is task 2 of the array 6.
fn cluster() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for sub in ["bin", "cluster", "cluster/jobs", "cluster/nodes"] {
        fs::create_dir(folder.path().join(sub)).unwrap();
    }
    for program in ["squeue", "sinfo", "scontrol", "scancel"] {
        install(&folder.path().join("bin").join(program), STAND_IN);
    }
    for (file, text) in [
        ("node.state", "allocated"),
        ("node.reason", "none"),
        ("jobs/7", "7|6_2|RUNNING|1795966699|2|n[1-2]|1001|ada|gpu|0|normal|lab\n"),
        ("jobs/7.state", "RUNNING"),
        ("jobs/7.name", "a|b"),
        ("jobs/7.show", "JobId=7 ArrayJobId=6\n   JobState=RUNNING\n"),
        ("nodes/n2", "allocated+drain\ngpu-reaper: job=7\n1795966700\n"),
    ] {
        fs::write(folder.path().join("cluster").join(file), text).unwrap();
    }
    folder
}

#[test]
fn the_stand_in_answers_whatever_is_asked() {
    let folder = cluster();
    let write = |file: &str, text: &str| fs::write(folder.path().join("cluster").join(file), text).unwrap();
    let read = |file: &str| fs::read_to_string(folder.path().join("cluster").join(file)).unwrap();
    let site = Site {
        bin_dir: Some(folder.path().join("bin")),
        conf: None,
        path: None,
        limit: Duration::from_secs(10),
    };
    let slurm = Slurm::new(NodeName::new("n1").unwrap(), site);
    let near = || slurm.job(job(7), ALL).unwrap().unwrap().details.unwrap().near;
    assert_eq!(near().suspended_unix_s, Reading::Measured(0));
    assert_eq!(near().comment, Reading::Absent(Absence::NoData));
    write("jobs/7.suspended", "1795966800");
    write("jobs/7.user-comment", "please keep");
    slurm.set_admin_comment("6_2", "keep").unwrap();
    assert_eq!(near().suspended_unix_s, Reading::Measured(1_795_966_800));
    assert_eq!(near().comment, Reading::Measured("please keep".into()));
    assert_eq!(near().admin_comment, Reading::Measured("keep".into()));

    let rows = slurm.survey().unwrap();
    assert_eq!(rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["n1", "n2"]);
    assert_eq!((rows[0].reason_unix_s, rows[1].reason_unix_s), (None, Some(1_795_966_700)));

    slurm.signal(&target("6_2"), "USR1").unwrap();
    assert_eq!((read("jobs/7.signals").as_str(), read("jobs/7.state").as_str()), ("USR1\n", "RUNNING"));
    slurm.requeue(&target("6_2")).unwrap();
    slurm.cancel(&target("6_2")).unwrap();
    assert_eq!(read("jobs/7.state"), "PENDING", "what waits is not cancelled");
    write("jobs/7.requeue", "0");
    assert!(slurm.requeue(&target("6_2")).is_err());
    assert!(read("calls").lines().all(|call| !call.contains("--version")));
}

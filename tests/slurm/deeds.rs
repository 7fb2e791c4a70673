//! What each version is told: exactly one run, bound as tightly as it can be.

use super::versions::scontrol;
use super::*;
use gpu_reaper_hc::slurm::Answer;

const SLUID: &str = "s5K1KKYAYG5D00";
const FILTERS: [&str; 3] = ["--state=RUNNING", "--nodelist=node1", "--user=ada"];

fn run(display_id: &str) -> Target {
    Target {
        sluid: Reading::Measured(SLUID.to_owned()),
        user: Reading::Measured("ada".to_owned()),
        ..target(display_id)
    }
}

/// What scancel was given by this version of Slurm.
fn told(version: &str, deed: impl Fn(&Slurm) -> Answer<()>) -> Vec<String> {
    let stand_ins = StandIns::new(&[("scontrol", &scontrol(version, "true")), ("scancel", "true")]);
    deed(&stand_ins.slurm()).unwrap();
    stand_ins.args("scancel")
}

#[test]
fn a_cancel_is_bound_to_the_run_as_tightly_as_this_slurm_can() {
    // Measured: what differs in state, node or user is left alone; from 23.11 on slurmctld itself compares; from
    // 26.05 on the SLUID of a run that was requeued names nothing.
    let cancel = |version| told(version, |slurm| slurm.cancel(&run("9_2")));
    for old in ["22.05.8", "23.02.7"] {
        assert_eq!(cancel(old), [&FILTERS[..], &["9_2"]].concat(), "{old}");
    }
    for filtered in ["23.11.0", "24.11.5", "25.11.1"] {
        assert_eq!(cancel(filtered), [&FILTERS[..], &["--ctld", "9_2"]].concat(), "{filtered}");
    }
    assert_eq!(cancel("26.05.5"), [&FILTERS[..], &["--ctld", SLUID]].concat());
    let nameless = told("26.05.5", |slurm| slurm.cancel(&target("130")));
    assert_eq!(nameless, ["--state=RUNNING", "--nodelist=node1", "--ctld", "130"]);
}

#[test]
fn without_its_version_a_slurm_is_asked_but_told_nothing() {
    // One scontrol that fails must not take from a cancel what binds it to its run.
    let row = format!("echo '{ROW}'");
    for version in ["exit 1", "kill -9 $$", "sleep 300", "true", "echo 'slurm next'"] {
        let scontrol = format!("case $1 in --version) {version} ;; esac");
        let scripts = [("scontrol", &*scontrol), ("scancel", "true"), ("squeue", &row)];
        let stand_ins = StandIns::new(&scripts);
        let slurm = slurm(Site { limit: Duration::from_secs(2), ..stand_ins.site() });
        assert!(slurm.job(job(4242), Ask::NOTHING_MORE).unwrap().is_some(), "{version}");
        for deed in [slurm.cancel(&run("130")), slurm.requeue(&run("130")), slurm.signal(&run("130"), "USR1")]
        {
            let silence = deed.unwrap_err();
            assert_eq!(silence.outcome(), Outcome::Failed, "{version}: {silence}");
            let words = silence.to_string();
            assert!(
                words.contains(": not run: which Slurm this is could not be told: scontrol: "),
                "{words}"
            );
        }
        assert!(!stand_ins.folder.path().join("scancel.args").exists(), "{version}");
        assert_eq!(stand_ins.args("scontrol"), ["--version"], "asked once, and nothing else");
    }
}

#[test]
fn a_warning_reaches_steps_and_batch_script_and_is_one_of_a_few_signals() {
    let signal = |word: &'static str| move |slurm: &Slurm| slurm.signal(&run("130"), word);
    let old = told("22.05.8", signal("USR1"));
    assert_eq!(old, [&FILTERS[..], &["--full", "--signal=USR1", "130"]].concat());
    let new = told("26.05.5", signal("TERM"));
    assert_eq!(new, [&FILTERS[..], &["--ctld", "--full", "--signal=TERM", SLUID]].concat());
    let stand_ins = StandIns::new(&[("scancel", "")]);
    for word in ["KILL", "STOP", "9", "usr1", "", "USR1 -u root", "SIGUSR1"] {
        let refused = stand_ins.slurm().signal(&run("130"), word).unwrap_err();
        assert_eq!(refused.outcome(), Outcome::Failed, "{word}");
    }
    assert!(!stand_ins.folder.path().join("scancel.args").exists());
}

#[test]
fn a_requeue_names_the_run_where_this_slurm_takes_its_sluid() {
    for (version, id) in [("22.05.8", "9_2"), ("24.11.5", "9_2"), ("26.05.5", SLUID)] {
        let stand_ins = StandIns::new(&[("scontrol", &scontrol(version, "true"))]);
        stand_ins.slurm().requeue(&run("9_2")).unwrap();
        assert_eq!(stand_ins.args("scontrol"), ["requeue", id], "{version}");
    }
    let refuses = "echo 'Requested operation is presently disabled for job 6' >&2; exit 1";
    let stand_ins = StandIns::new(&[("scontrol", &scontrol("24.11.5", refuses))]);
    assert!(stand_ins.slurm().requeue(&run("6")).is_err());
}

#[test]
fn a_name_that_is_no_run_is_never_passed_on() {
    let stand_ins = StandIns::new(&[("scontrol", &scontrol("26.05.5", "true")), ("scancel", "")]);
    for id in ["9_[1-3]", "-u ada", "", "9_"] {
        assert!(stand_ins.slurm().cancel(&run(id)).is_err(), "{id}");
        assert!(stand_ins.slurm().requeue(&run(id)).is_err(), "{id}");
    }
    let odd = Target { sluid: Reading::Measured("--ctld".into()), ..run("130") };
    stand_ins.slurm().cancel(&odd).unwrap();
    assert_eq!(stand_ins.args("scancel").last().map(String::as_str), Some("130"));
}

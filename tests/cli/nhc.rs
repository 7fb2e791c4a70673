//! LBNL Node Health Check in the one HealthCheckProgram slot beside us: it calls us as a check, or one script calls
//! both. Each keeps its time and its status, and neither touches the other's drain. NHC is a stand-in
//! (`fixtures/stand-in/nhc`) with a watchdog of seconds.

use crate::hooks::shells;
use crate::ladder::{SECONDS, run_until};
use crate::slurm::{Cluster, install};
use crate::*;
use std::os::unix::process::CommandExt;

const NHC: &str = include_str!("../../fixtures/stand-in/nhc");
const CHECK: &str = include_str!("../../hooks/nhc/gpu-reaper-hc.nhc");
const BOTH: &str = include_str!("../../hooks/nhc/health-check-both.sh");
const NO_DRIVER: &str = "gpu: { library: /nonexistent/libnvidia-ml.so.1 }\nslurm: { COMMANDS }\n";

/// `sinfo -o '%t %E'` and `scontrol update State=RESUME`, which are NHC's questions and not ours.
const NHCS_SINFO: &str = "#!/bin/sh
case $(cat CLUSTER/node.state) in
  allocated+drain) t=drng ;; idle+drain) t=drain ;; allocated) t=alloc ;; *) t=idle ;;
esac
printf '%s %s\\n' $t \"$(cat CLUSTER/node.reason)\"
";
const NHCS_SCONTROL: &str = "#!/bin/sh
case $* in *State=RESUME*) ;; *) exec CLUSTER/../bin/scontrol \"$@\" ;; esac
echo \"scontrol $*\" >>CLUSTER/calls
sed -i 's/+drain//' CLUSTER/node.state
printf none >CLUSTER/node.reason
";

/// A node with NHC, whose watchdog ends it after so many seconds.
struct Site {
    cluster: Cluster,
}

impl Site {
    fn new(config: &str, watchdog_s: u32) -> Site {
        let site = Site { cluster: Cluster::new(config) };
        for folder in ["nhc", "nhc/bin", "nhc/scripts"] {
            fs::create_dir(site.path(folder)).unwrap();
        }
        let here = site.path("nhc").display().to_string();
        install(
            &site.path("nhc/nhc"),
            &NHC.replace("@HERE@", &here).replace("@TIMEOUT@", &watchdog_s.to_string()),
        );
        let cluster = site.path("cluster").display().to_string();
        install(&site.path("nhc/bin/sinfo"), &NHCS_SINFO.replace("CLUSTER", &cluster));
        install(&site.path("nhc/bin/scontrol"), &NHCS_SCONTROL.replace("CLUSTER", &cluster));
        // A program that hangs in a way that its name tells.
        std::os::unix::fs::symlink("/bin/sleep", site.path("hang")).unwrap();
        site.cluster.write("node.state", "idle");
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.cluster.node.path(name)
    }

    /// What nhc.conf lists; each line for all nodes.
    fn checks(&self, lines: &[&str]) {
        let lines: String = lines.iter().map(|line| format!("* || {line}\n")).collect();
        fs::write(self.path("nhc/conf"), lines).unwrap();
    }

    /// A program of the site's that does this.
    fn program(&self, text: &str) -> PathBuf {
        let program = self.path("program");
        let hang = self.path("hang").display().to_string();
        install(&program, &format!("#!/bin/sh\n{}\n", text.replace("HANG", &hang)));
        program
    }

    /// A command as slurmd starts a HealthCheckProgram, but for where the configuration lies.
    fn slurmd(&self, command: &mut Command) -> Said {
        command.env_clear().env("SLURMD_NODENAME", "n1").stdin(Stdio::null()).process_group(0);
        command.env("GPU_REAPER_CONFIG", self.path("config.yaml"));
        let said = said(command);
        self.nothing_is_left();
        said
    }

    /// NHC alone, with our check before `more`.
    fn nhc(&self, program: &Path, options: &str, more: &[&str]) -> Said {
        fs::write(self.path("nhc/scripts/gpu-reaper-hc.nhc"), CHECK).unwrap();
        let ours =
            [format!("export GPU_REAPER_HC={}", program.display()), format!("check_gpu_reaper {options}")];
        let lines: Vec<&str> = ours.iter().map(String::as_str).chain(more.iter().copied()).collect();
        self.checks(&lines);
        self.slurmd(&mut Command::new(self.path("nhc/nhc")))
    }

    /// The script that calls both, run by a shell, with so many seconds for each.
    fn both(&self, shell: &[&str], reaper: &Path, nhc: &Path, seconds: u32) -> Said {
        self.slurmd(&mut self.both_command(shell, reaper, nhc, seconds))
    }

    fn both_command(&self, shell: &[&str], reaper: &Path, nhc: &Path, seconds: u32) -> Command {
        let set = |text: String, old: &str, new: &str| {
            assert!(text.contains(old), "{old}");
            text.replace(old, new)
        };
        let text = set(
            BOTH.to_owned(),
            "\nreaper=/usr/sbin/gpu-reaper-hc\n",
            &format!("\nreaper={}\n", reaper.display()),
        );
        let text = set(text, "\nnhc=/usr/sbin/nhc\n", &format!("\nnhc={}\n", nhc.display()));
        install(&self.path("both.sh"), &set(text, "\nseconds=55 ", &format!("\nseconds={seconds} ")));
        let mut command = Command::new(shell[0]);
        command.args(&shell[1..]).arg(self.path("both.sh"));
        command
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("nhc/log")).unwrap_or_default()
    }

    fn node_is(&self, state: &str, reason: &str) {
        let found = (self.cluster.read("node.state"), self.cluster.read("node.reason"));
        assert_eq!(found, (state.to_owned(), reason.to_owned()), "{}", self.log());
    }

    /// No process of this node lives on: each has its folder among its words or its variables.
    fn nothing_is_left(&self) {
        let folder = self.path("").display().to_string();
        let lives = || {
            let processes = fs::read_dir("/proc").unwrap().flatten();
            let of = |process: &Path, what: &str| {
                String::from_utf8_lossy(&fs::read(process.join(what)).unwrap_or_default()).replace('\0', " ")
            };
            let mine = processes.filter(|p| {
                of(&p.path(), "cmdline").contains(&folder) || of(&p.path(), "environ").contains(&folder)
            });
            mine.map(|p| of(&p.path(), "cmdline")).collect::<Vec<_>>()
        };
        let until = Instant::now() + Duration::from_secs(1);
        while !lives().is_empty() {
            assert!(Instant::now() < until, "left behind: {:?}", lives());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Ways in which a run may not do its work, and what the check says of each.
const TROUBLE: [(&str, &str); 4] = [
    ("exit 1", "ended with status 1"),
    ("kill -ABRT $$", "ended with status 134"),
    ("exec HANG 300", "was not over after 2 s and is killed"),
    ("rm $0; exit 0", "is not there"),
];

#[test]
fn a_check_of_nhc_is_a_whole_run_and_passes() {
    let site = Site::new(NO_DRIVER, 20);
    let said = site.nhc(Path::new(PROGRAM), "", &[]);
    assert_eq!((said.status, said.out.as_str(), said.err.as_str()), (Some(0), "", ""));
    assert_eq!(site.cluster.node.ledger("SELECT count(*) FROM run"), "1");
    assert!(site.log().contains("check_gpu_reaper:  WARN the GPUs cannot be read"), "{}", site.log());
    site.node_is("idle", "none");
}

#[test]
fn whatever_becomes_of_the_run_its_check_drains_no_node() {
    // mej/nhc#95 (ND-04): a time-out alone drained and resumed nodes in turn. NHC's own check_cmd_status would drain for
    // each of these.
    let site = Site::new(NO_DRIVER, 20);
    for (does, why) in TROUBLE {
        let program = site.program(does);
        if why == "is not there" {
            fs::remove_file(&program).unwrap();
        }
        let said = site.nhc(&program, "-t 2", &[]);
        assert_eq!((said.status, said.out.as_str(), said.err.as_str()), (Some(0), "", ""), "{does}");
        assert!(said.took < Duration::from_secs(4), "{does}: {said:?}");
        assert!(site.log().contains(&format!("program {why}; the check passes\n")), "{does}: {}", site.log());
        site.node_is("idle", "none");
    }
}

#[test]
fn a_site_that_wants_it_has_the_check_fail() {
    for (does, why) in TROUBLE {
        let site = Site::new(NO_DRIVER, 20);
        let program = site.program(does);
        if why == "is not there" {
            fs::remove_file(&program).unwrap();
        }
        let said = site.nhc(&program, "-f -t 2", &["touch /nonexistent/reached"]);
        let words = format!("check_gpu_reaper: {} {why}", program.display());
        assert_eq!((said.status, said.err.as_str()), (Some(1), ""), "{does}");
        assert_eq!(said.out, format!("ERROR:  nhc:  Health check failed:  {words}\n"));
        site.node_is("idle+drain", &format!("NHC: {words}"));
    }
}

#[test]
fn a_run_that_hangs_never_reaches_nhcs_watchdog() {
    // mej/nhc#161 (RT-01): the watchdog blamed the wrong check, and drained.
    let hangs = "trap '' ALRM TERM\nHANG 300 & wait; HANG 300";
    let late = ["sleep 2", "check_gpu_reaper -t 30"];
    let (site, near) = (Site::new(NO_DRIVER, 9), Site::new(NO_DRIVER, 6));
    let program = site.program("exec HANG 300");
    let said = site.nhc(
        Path::new("/bin/true"),
        "",
        &[&format!("GPU_REAPER_HC={}", program.display()), late[0], late[1]],
    );
    assert_eq!(said.status, Some(0), "{}", site.log());
    assert!(said.took < Duration::from_secs(6), "{said:?}");
    assert!(site.log().contains("was not over after 2 s and is killed"), "{}", site.log());
    site.node_is("idle", "none");
    let said = near.nhc(&near.program(hangs), "", &[]);
    assert!(said.status == Some(0) && said.took < Duration::from_secs(1), "{said:?}");
    assert!(
        near.log().contains("was not run: NHC's watchdog is too near; put the check first"),
        "{}",
        near.log()
    );
}

#[test]
fn under_the_check_a_run_has_what_slurmd_would_give_it() {
    let site = Site::new(NO_DRIVER, 20);
    let (seen, pipe) = (site.path("seen"), site.path("pipe"));
    let text = "cat /proc/$$/environ | tr '\\0' '\\n' >SEEN; ls -l /proc/$$/fd | sed 's/.*-> //' >>SEEN";
    let program = site.program(&text.replace("SEEN", &seen.display().to_string()));
    let kept = format!("readlink /proc/$$/fd/3 >{}", pipe.display());
    assert_eq!(site.nhc(&program, "", &[&kept, "check_gpu_reaper -x -t"]).status, Some(0));
    let (seen, pipe) = (fs::read_to_string(&seen).unwrap(), fs::read_to_string(&pipe).unwrap());
    let (environment, descriptors): (Vec<&str>, Vec<&str>) =
        seen.lines().partition(|line| line.contains('='));
    let names: Vec<&str> = environment.iter().filter_map(|line| line.split('=').next()).collect();
    assert_eq!(names, ["PATH", "SLURMD_NODENAME", "GPU_REAPER_CONFIG"], "{seen}");
    // slurmd waits until nobody holds its pipe, which NHC keeps as descriptors 3 and 4.
    assert!(pipe.starts_with("pipe:") && !descriptors.contains(&pipe.trim()), "{pipe}{seen}");
    for odd in ["-x", "-t"] {
        let told = format!("check_gpu_reaper: {odd} is no option, or lacks its seconds; left out\n");
        assert!(site.log().contains(&told), "{}", site.log());
    }
}

#[test]
fn one_script_runs_both_and_passes_on_the_status_of_nhc_first() {
    let site = Site::new(NO_DRIVER, 20);
    let nhc = site.path("nhc/nhc");
    let statuses =
        [("true", 0, 0), ("true", 1, 1), ("die 3 bad disk", 0, 3), ("die 3 bad disk", 1, 3), ("false", 0, 1)];
    for shell in shells() {
        for (check, ours, want) in statuses {
            site.checks(&[check]);
            let program = site.program(&format!("echo said on 1; echo said on 2 >&2; exit {ours}"));
            let said = site.both(shell, &program, &nhc, 5);
            assert_eq!(
                (said.status, said.err.as_str()),
                (Some(want), ""),
                "{shell:?} {check} {ours}: {said:?}"
            );
            assert!(said.out.contains("said on 1\n") && said.out.contains("said on 2\n"), "{said:?}");
            assert_eq!(said.out.contains("Health check failed"), check != "true", "{said:?}");
            assert!(said.took < Duration::from_secs(2), "{shell:?}: {said:?}");
        }
        site.cluster.write("node.state", "idle");
        site.cluster.write("node.reason", "none");
    }
    site.checks(&["true"]);
    let said = site.both(&["/bin/sh"], Path::new(PROGRAM), &nhc, 20);
    assert_eq!((said.status, site.cluster.node.ledger("SELECT count(*) FROM run").as_str()), (Some(0), "1"));
}

#[test]
fn a_run_finds_the_slurmd_that_started_it() {
    // mej/nhc#159 (CT-05): while a slurmd that has just started waits for its first check, no run may wait for Slurm.
    // It is known by the run's parents, eight of them at most; here this process stands for it.
    let site = Site::new(NO_DRIVER, 20);
    let seen = site.path("seen");
    let walk =
        "p=$$; while [ \"$p\" -gt 1 ]; do echo $p; p=$(sed 's/.*) . //; s/ .*//' /proc/$p/stat); done >SEEN";
    let program = site.program(&walk.replace("SEEN", &seen.display().to_string()));
    let found = |how: &str| {
        let parents = fs::read_to_string(&seen).unwrap();
        let me = std::process::id().to_string();
        assert!(parents.lines().skip(1).take(8).any(|pid| pid == me), "{how}: {me} among {parents}");
        fs::remove_file(&seen).unwrap();
    };
    assert_eq!(site.nhc(&program, "", &[]).status, Some(0));
    found("check");
    site.checks(&["true"]);
    for shell in shells() {
        assert_eq!(site.both(shell, &program, &site.path("nhc/nhc"), 5).status, Some(0));
        found(shell[0]);
    }
}

#[test]
fn neither_of_both_starves_the_other() {
    // mej/nhc#161, #9 (RT-01): killed at the time limit with no clue.
    let site = Site::new(NO_DRIVER, 1);
    let (nhc, done) = (site.path("nhc/nhc"), site.path("done"));
    let absent = site.path("absent");
    let works = format!("echo done >{}", done.display());
    let killed = |what: &Path| format!("{} was not over after 2 s and is killed\n", what.display());
    for shell in shells() {
        // NHC's own watchdog ends it, and drains: that is its affair.
        site.checks(&[&format!("{} 300", site.path("hang").display())]);
        let said = site.both(shell, &site.program(&works), &nhc, 5);
        assert_eq!(said.status, Some(142), "{shell:?}: {said:?}");
        assert!(done.exists() && said.took < Duration::from_secs(4), "{shell:?}: {said:?}");
        assert!(said.out.contains("Script timed out while executing"), "{said:?}");
        fs::remove_file(&done).unwrap();
        site.cluster.write("node.state", "idle");
        site.cluster.write("node.reason", "none");
        // An NHC that nothing ends, with a child that hangs: killed, and not asked, which would drain the node.
        let stuck = site.path("stuck");
        let text = format!(
            "#!/bin/sh\ntrap 'echo drained >{}' TERM\n{} 300",
            done.display(),
            site.path("hang").display()
        );
        install(&stuck, &text);
        let said = site.both(shell, &site.program("exit 1"), &stuck, 2);
        assert_eq!(said.status, Some(124), "{shell:?}: {said:?}");
        assert!(!done.exists() && said.out.contains(&killed(&stuck)), "{shell:?}: {said:?}");
        assert!(said.took < Duration::from_secs(4), "{shell:?}: {said:?}");
        // Ours hangs, and NHC is done.
        site.checks(&["true"]);
        let program = site.program("exec HANG 300");
        let said = site.both(shell, &program, &nhc, 2);
        assert_eq!(said.status, Some(124), "{shell:?}: {said:?}");
        assert!(said.out.contains(&killed(&program)) && said.took < Duration::from_secs(4), "{said:?}");
        assert!(site.log().contains("completed successfully\n"), "{}", site.log());
        // One of them is not there.
        let said = site.both(shell, &site.program(&works), &absent, 5);
        assert!(said.status == Some(127) && done.exists(), "{shell:?}: {said:?}");
        assert!(said.out.contains(&format!("{} is not there\n", absent.display())), "{said:?}");
        fs::remove_file(&done).unwrap();
        let said = site.both(shell, &absent, &nhc, 5);
        assert_eq!(
            (said.status, said.took < Duration::from_secs(2)),
            (Some(127), true),
            "{shell:?}: {said:?}"
        );
    }
}

#[test]
fn a_detached_child_of_either_holds_nobody_up_and_lives() {
    // NHC's detached mode: the checks go on behind the caller's back. slurmd waits for the end of its pipe.
    let site = Site::new(NO_DRIVER, 20);
    let done = site.path("done");
    let text = format!("#!/bin/bash\nset -m\n(sleep 1.5; echo done >{}) &\nexit 0", done.display());
    let nhc = site.path("detaching");
    install(&nhc, &text);
    for shell in shells() {
        let mut command = site.both_command(shell, Path::new("/bin/true"), &nhc, 5);
        let said = said(command.env_clear().process_group(0));
        assert!(said.status == Some(0) && said.took < Duration::from_millis(1400), "{shell:?}: {said:?}");
        eventually("the detached checks are done", || done.exists());
        fs::remove_file(&done).unwrap();
    }
}

#[test]
fn with_no_room_for_the_answers_nhc_runs_alone() {
    let site = Site::new(NO_DRIVER, 20);
    site.checks(&["die 3 bad disk"]);
    for shell in shells() {
        let mut command = site.both_command(shell, Path::new(PROGRAM), &site.path("nhc/nhc"), 5);
        let text = fs::read_to_string(site.path("both.sh")).unwrap();
        let full = text
            .replace("/run/health-check.", "/nonexistent/")
            .replace("/tmp/health-check.", "/nonexistent/");
        install(&site.path("both.sh"), &full);
        let said = site.slurmd(&mut command);
        assert_eq!(said.status, Some(3), "{shell:?}: {said:?}");
        assert!(said.err.ends_with("no room for a pipe in /run and /tmp; NHC runs alone\n"), "{said:?}");
        assert!(!site.cluster.node.state().exists());
    }
}

#[test]
fn nhc_lifts_no_drain_of_ours_and_we_none_of_nhcs() {
    // mej/nhc#134 (ND-04): a clean run resumed a node that somebody else had drained.
    let config = SECONDS.replace(", { after: 0s, verdict: cancel }", "");
    let site = Site::new(&config, 20);
    let cluster = &site.cluster;
    let both = |check: &str| {
        site.checks(&[check]);
        site.both(&["/bin/sh"], Path::new(PROGRAM), &site.path("nhc/nhc"), 20).status
    };
    cluster.write("node.state", "allocated");
    cluster.job(4242, "4242", "train");
    assert_eq!(cluster.prolog(4242, &[]).err, "");

    // NHC's stands: what we would do is withheld, run after run.
    assert_eq!(both("die 1 bad disk"), Some(1));
    site.node_is("allocated+drain", "NHC: bad disk");
    run_until(cluster, "alert");
    eventually("the drain is withheld", || {
        assert_eq!(both("die 1 bad disk"), Some(1));
        cluster.node.call(&["--explain", "4242"]).out.contains("the node is already drained by somebody else")
    });
    site.node_is("allocated+drain", "NHC: bad disk");

    // The disk is well: NHC resumes what was its own, and now the drain is ours.
    assert_eq!(both("true"), Some(0));
    run_until(cluster, "drain");
    let ours = cluster.read("node.reason");
    assert!(ours.starts_with("gpu-reaper: job=4242 "), "{ours}");
    for (check, status) in [("true", 0), ("die 1 bad disk", 1), ("true", 0)] {
        assert_eq!(both(check), Some(status));
        site.node_is("allocated+drain", &ours);
    }
    assert!(site.log().contains(&format!("mark_online: not ours: {ours}\n")), "{}", site.log());
    // A failed check writes a note that is not NHC's again, word by word: to the byte what it was.
    let again = format!("scontrol update State=DRAIN NodeName=n1 Reason={ours}");
    assert!(cluster.calls().contains(&again), "{:?}", cluster.calls());
}

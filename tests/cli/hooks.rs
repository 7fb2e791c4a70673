//! Prolog and Epilog where all is well, or where only their environment is odd.

use crate::slurm::install;
use crate::*;

const PROLOG_LIMIT: Duration = Duration::from_secs(4);

#[test]
fn a_prolog_needs_neither_driver_nor_slurm() {
    // nebius/nebius-solutions-library#265, aws/aws-parallelcluster#6777 (PE-07): commands and diagnostics in
    // prologs hung launches.
    let driver = fake_nvml::FakeNvml::new("log\nnvmlInit_v2 ~ forever\n");
    let node = Node::new("");
    fs::create_dir(node.path("bin")).unwrap();
    for program in ["squeue", "sinfo", "scontrol", "scancel"] {
        let text = format!("#!/bin/sh\necho called >>{}\nsleep 300\n", node.path("calls").display());
        install(&node.path("bin").join(program), &text);
    }
    let (library, bin) = (driver.library(), node.path("bin"));
    let sources = format!(
        "gpu: {{ library: {} }}\nslurm: {{ source: squeue, bin_dir: {} }}\n",
        library.display(),
        bin.display()
    );
    node.configure(&sources);
    for which in ["prolog", "epilog"] {
        let said = node.hook(which, "7", &[("SLURM_JOB_GPUS", "0,1")]);
        assert_eq!((said.status, said.err.as_str(), said.out.as_str()), (Some(0), "", ""), "{which}");
        assert!(said.took < Duration::from_secs(1), "{which}: {said:?}");
    }
    assert_eq!(node.ledger("SELECT count(*) FROM job_run WHERE closed_how = 'ended'"), "1");
    assert!(driver.calls().is_empty() && !node.path("calls").exists());
}

#[test]
fn a_hook_without_its_variables_ends_well_and_says_so() {
    // nebius/soperator cd043edd (PE-09): strict mode aborted because a variable was not set.
    let node = Node::without_driver();
    for which in ["prolog", "epilog"] {
        for id in [None, Some(""), Some("x"), Some("0")] {
            let mut command = node.command(&[which]);
            command.envs(id.map(|id| ("SLURM_JOB_ID", id)));
            let said = said(&mut command);
            let found =
                if id.is_none_or(str::is_empty) { "SLURM_JOB_ID is not set" } else { "a job id is a number" };
            assert_eq!(said.status, Some(0), "{which} {id:?}");
            assert!(said.line().starts_with(&format!("gpu-reaper-hc: {which}: SLURM_JOB_ID ")), "{said:?}");
            assert!(said.line().contains(found) && said.line().ends_with("; nothing was done"), "{said:?}");
        }
        // Nothing at all, not even which node or which configuration.
        let said = said(Command::new(PROGRAM).arg(which).env_clear());
        assert_eq!(said.status, Some(0));
        assert!(said.line().ends_with("SLURM_JOB_ID is not set; nothing was done"), "{said:?}");
    }
    assert!(!node.state_dir().exists(), "nothing to remember, nothing made");
}

#[test]
fn a_cpu_job_is_registered_and_ignored() {
    // nebius/soperator cd043edd (PE-09): CPU-only jobs on GPU nodes are common.
    let node = Node::without_driver();
    for (id, gpus) in [("7", &[][..]), ("8", &[("SLURM_JOB_GPUS", ""), ("CUDA_VISIBLE_DEVICES", "")])] {
        let said = node.hook("prolog", id, gpus);
        assert_eq!((said.status, said.err.as_str()), (Some(0), ""), "{said:?}");
    }
    assert_eq!(node.ledger("SELECT count(*) FROM job_run"), "2");
    let run = node.health_check();
    assert_eq!(run.status, Some(0));
    assert!(run.err.contains("; 0 jobs"), "no CPU job is judged: {run:?}");
    for id in ["7", "8"] {
        assert_eq!(node.hook("epilog", id, &[]).status, Some(0));
        assert_eq!(node.call(&["--explain", id]).status, Some(15));
    }
}

#[test]
fn empty_variables_are_as_if_they_were_not_set() {
    // nebius/soperator cd043edd (PE-09)
    let node = Node::without_driver();
    let names = [
        "SLURM_JOB_GPUS",
        "CUDA_VISIBLE_DEVICES",
        "SLURM_JOB_RESTART_COUNT",
        "SLURM_JOB_START_TIME",
        "SLURM_JOB_END_TIME",
        "SLURM_JOB_USER",
        "SLURM_JOB_UID",
        "SLURM_JOB_ACCOUNT",
        "SLURM_JOB_PARTITION",
        "SLURM_JOB_QOS",
        "SLURM_JOB_NUM_NODES",
        "SLURM_HET_JOB_ID",
        "SLURM_JOB_SLUID",
        "SLURM_CLUSTER_NAME",
    ];
    let empty: Vec<_> = names.iter().map(|name| (*name, "")).collect();
    let said = node.hook("prolog", "7", &empty);
    assert_eq!((said.status, said.err.as_str()), (Some(0), ""));
    let texts = "SELECT count(*) FROM job_fact WHERE value = ''";
    assert_eq!(node.ledger(texts), "0", "an empty text is no answer");
    assert_eq!(node.hook("epilog", "7", &empty).status, Some(0));
    assert_eq!(node.ledger("SELECT closed_how FROM job_run"), "ended");
}

#[test]
fn a_first_open_by_eleven_at_once_loses_nobody() {
    // russellromney/honker#102, elixir-sqlite/exqlite#138 (DB-02): the first boot after installation.
    for round in 0..4 {
        let node = Node::without_driver();
        let job = |n: u32| node.hook_command("prolog", &n.to_string());
        let mut all: Vec<Command> = (1..=8).map(job).collect();
        all.extend([101, 102].map(|n: u32| node.hook_command("epilog", &n.to_string())));
        all.push(node.command(&[]));
        let children: Vec<Child> = all.into_iter().map(started).collect();
        for said in children.into_iter().map(ended) {
            assert_eq!(said.status, Some(0), "round {round}: {said:?}");
            let fine = said.err.is_empty() || said.err.starts_with(" WARN the GPUs cannot be read");
            assert!(fine && said.took < PROLOG_LIMIT, "round {round}: {said:?}");
        }
        assert_eq!(
            node.ledger("SELECT count(*) FROM job_run WHERE closed_how IS NULL"),
            "8",
            "round {round}"
        );
        assert_eq!(node.ledger("SELECT count(*) FROM ended"), "2", "round {round}");
        assert_eq!(node.ledger("SELECT count(*) FROM run"), "1", "round {round}");
        assert_eq!(node.ledger("PRAGMA integrity_check"), "ok", "round {round}");
    }
}

/// The installed shell file around a program of the test's own.
fn shell_file(which: &str, program: &Path) -> Command {
    // The Epilog's name sorts first, so that slurmd runs it last.
    let turn = if which == "epilog" { "00" } else { "50" };
    let file = format!("{}/hooks/{which}.d/{turn}-gpu-reaper-hc.sh", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new("/bin/sh");
    command.arg(file).env_clear().env("GPU_REAPER_HC", program);
    command
}

#[test]
fn the_shell_files_pass_on_what_they_must_byte_for_byte() {
    // nebius/soperator cd043edd (PE-09); values are not a shell's to read.
    let node = Node::without_driver();
    let seen = node.path("seen");
    let program = node.path("program");
    install(&program, &format!("#!/bin/sh\ncat /proc/$$/environ >{}\n", seen.display()));
    let odd = "a\"b' $(touch x) `id` \\ ;\n*";
    for which in ["prolog", "epilog"] {
        let mut command = shell_file(which, &program);
        command.envs([("SLURM_JOB_ID", "7"), ("SLURM_JOB_USER", odd), ("SLURM_JOB_GPUS", "")]);
        let said = said(command.env("SLURM_JOB_COMMENT", odd).env("SPANK_X", odd).env("LD_PRELOAD", ""));
        assert_eq!((said.status, said.out.as_str(), said.err.as_str()), (Some(0), "", ""), "{which}");
        let environment = String::from_utf8(fs::read(&seen).unwrap()).unwrap();
        let given: Vec<&str> = environment.split_terminator('\0').collect();
        assert_eq!(given, ["SLURM_JOB_ID=7", &format!("SLURM_JOB_USER={odd}"), "SLURM_JOB_GPUS="], "{which}");
    }
    let mut real = shell_file("prolog", Path::new(PROGRAM));
    real.envs([("SLURM_JOB_ID", "7"), ("SLURM_JOB_GPUS", "0"), ("SLURMD_NODENAME", "n1")]);
    real.env("GPU_REAPER_CONFIG", node.path("config.yaml"));
    assert_eq!(said(&mut real).status, Some(0));
    assert_eq!(node.ledger("SELECT job_id FROM job_run"), "7");
}

#[test]
fn whatever_becomes_of_the_program_the_shell_files_drain_no_node() {
    // mknoxnv/ubuntu-slurm#4, AMDResearch/hpcfund#69 (PE-08): a failing hook drains the node.
    let node = Node::without_driver();
    let program = node.path("program");
    for which in ["prolog", "epilog"] {
        assert_eq!(said(&mut shell_file(which, &program)).status, Some(0), "{which}: no program");
    }
    for ends in ["exit 0", "exit 2", "exit 101", "kill -ABRT $$", "kill -KILL $$", "exit 1"] {
        install(&program, &format!("#!/bin/sh\n{ends}\n"));
        for which in ["prolog", "epilog"] {
            // Status 1 of an Epilog says: a drain was asked for, and could not be made.
            let want = i32::from(which == "epilog" && ends == "exit 1");
            assert_eq!(said(&mut shell_file(which, &program)).status, Some(want), "{which}: {ends}");
        }
    }
}

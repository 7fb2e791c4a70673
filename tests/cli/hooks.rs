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
        assert_eq!((said.status, said.out.as_str()), (Some(0), ""), "{which}");
        // Which GPUs its indices are nobody knows yet: an Epilog says so, and asks no driver for it.
        assert_eq!(said.err.is_empty(), which == "prolog", "{said:?}");
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
fn tasks_components_and_sharers_are_registered_each_under_its_raw_id() {
    // PrincetonUniversity/jobstats#23 (JL-04), birc-aeh/slurm-utils#10 (JL-06): the raw id is one job's alone, the id
    // that is shown is not. Two jobs on one device (SH-02) are two registrations.
    let node = Node::without_driver();
    let shown = [("SLURM_ARRAY_JOB_ID", "123"), ("SLURM_ARRAY_TASK_ID", "4")];
    let gpu = ("SLURM_JOB_GPUS", "3");
    let jobs: [(&str, &[(&str, &str)]); 4] = [
        ("130", &[gpu, shown[0], shown[1]]),
        ("201", &[gpu, ("SLURM_HET_JOB_ID", "200")]),
        ("200", &[("SLURM_HET_JOB_ID", "200")]),
        ("300", &[("SLURM_JOB_GPUS", "3,4"), ("SLURM_JOB_OVERSUBSCRIBE", "1")]),
    ];
    for (id, more) in jobs {
        let said = node.hook("prolog", id, more);
        assert_eq!((said.status, said.err.as_str()), (Some(0), ""), "{id}");
        assert!(said.took < PROLOG_LIMIT, "{said:?}");
    }
    let all = "SELECT group_concat(job_id || coalesce(':' || het_leader, ''), ' ') FROM (SELECT * FROM job_run ORDER BY id)";
    assert_eq!(node.ledger(all), "130 201:200 200:200 300");
    // Each Epilog ends its own.
    assert_eq!(node.hook("epilog", "201", &[("SLURM_HET_JOB_ID", "200")]).status, Some(0));
    assert_eq!(node.ledger("SELECT group_concat(job_id) FROM job_run WHERE closed_how IS NOT NULL"), "201");
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

/// The shells that may be /bin/sh on a node.
pub fn shells() -> impl Iterator<Item = &'static [&'static str]> {
    let all: [&[&str]; 3] = [&["/bin/dash"], &["/bin/bash", "--posix"], &["/bin/busybox", "sh"]];
    all.into_iter().filter(|shell| {
        let there = Path::new(shell[0]).exists();
        if !there {
            println!("SKIPPED: {} is not there", shell[0]);
        }
        there
    })
}

fn hook_file(which: &str) -> String {
    // The Epilog's name sorts first, so that slurmd runs it last.
    let turn = if which == "epilog" { "00" } else { "50" };
    format!("{}/hooks/{which}.d/{turn}-gpu-reaper-hc.sh", env!("CARGO_MANIFEST_DIR"))
}

/// The installed shell file around a program of the test's own.
fn shell_file(shell: &[&str], which: &str, program: &Path) -> Command {
    let mut command = Command::new(shell[0]);
    command.args(&shell[1..]).arg(hook_file(which)).env_clear().env("GPU_REAPER_HC", program);
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
    for (shell, which) in shells().flat_map(|shell| ["prolog", "epilog"].map(|which| (shell, which))) {
        let mut command = shell_file(shell, which, &program);
        command.envs([("SLURM_JOB_ID", "7"), ("SLURM_JOB_USER", odd), ("SLURM_JOB_GPUS", "")]);
        let said = said(command.env("SLURM_JOB_COMMENT", odd).env("SPANK_X", odd).env("LD_PRELOAD", ""));
        let want = (Some(0), "", "");
        assert_eq!((said.status, said.out.as_str(), said.err.as_str()), want, "{shell:?} {which}");
        let environment = String::from_utf8(fs::read(&seen).unwrap()).unwrap();
        let given: Vec<&str> = environment.split_terminator('\0').collect();
        assert_eq!(given, ["SLURM_JOB_ID=7", &format!("SLURM_JOB_USER={odd}"), "SLURM_JOB_GPUS="], "{which}");
    }
    let mut real = shell_file(&["/bin/sh"], "prolog", Path::new(PROGRAM));
    real.envs([("SLURM_JOB_ID", "7"), ("SLURM_JOB_GPUS", "0"), ("SLURMD_NODENAME", "n1")]);
    real.env("GPU_REAPER_CONFIG", node.path("config.yaml"));
    assert_eq!(said(&mut real).status, Some(0));
    assert_eq!(node.ledger("SELECT job_id FROM job_run"), "7");
}

#[test]
fn the_shell_files_pass_on_every_variable_that_the_program_reads() {
    let sources = [
        include_str!("../../src/prolog.rs"),
        include_str!("../../src/epilog.rs"),
        include_str!("../../src/main.rs"),
    ];
    let name = regex_lite::Regex::new(r#""((?:SLURM|CUDA|GPU_REAPER)[A-Z]*_[A-Z_]+)""#).unwrap();
    let read: std::collections::BTreeSet<&str> = sources
        .iter()
        .flat_map(|text| {
            name.captures_iter(text).filter_map(|found| found.get(1)).map(|found| found.as_str())
        })
        .collect();
    assert!(read.len() > 15 && read.contains("SLURMD_NODENAME"), "{read:?}");
    let prolog = fs::read_to_string(hook_file("prolog")).unwrap();
    let lacks = |hook: &str| read.iter().filter(|name| !hook.split([' ', ';']).any(|w| w == **name)).count();
    assert_eq!(lacks(&prolog), 0, "{read:?}");
    assert_eq!(lacks(&fs::read_to_string(hook_file("epilog")).unwrap()), 0, "{read:?}");
}

#[test]
fn whatever_becomes_of_the_program_the_shell_files_drain_no_node() {
    // mknoxnv/ubuntu-slurm#4, AMDResearch/hpcfund#69 (PE-08): a failing hook drains the node.
    let node = Node::without_driver();
    let program = node.path("program");
    for (shell, which) in shells().flat_map(|shell| ["prolog", "epilog"].map(|which| (shell, which))) {
        assert_eq!(said(&mut shell_file(shell, which, &program)).status, Some(0), "{which}: no program");
    }
    // 1 is what a loader ends with that misses a library's version.
    for ends in ["exit 0", "exit 1", "exit 2", "exit 101", "kill -ABRT $$", "kill -KILL $$", "exit 75"] {
        install(&program, &format!("#!/bin/sh\n{ends}\n"));
        for (shell, which) in shells().flat_map(|shell| ["prolog", "epilog"].map(|which| (shell, which))) {
            // 75 of an Epilog says: a drain was asked for, and could not be made.
            let want = i32::from(which == "epilog" && ends == "exit 75");
            let said = said(&mut shell_file(shell, which, &program));
            assert_eq!(said.status, Some(want), "{shell:?} {which}: {ends}");
        }
    }
}

/// The one script of a site that has its own Prolog and Epilog, which do `site`, are missing (`gone`) or are not named
/// (nothing); ours end with `ours`.
fn one_script(node: &Node, shell: &[&str], context: Option<&str>, site: &str, ours: Option<&str>) -> Said {
    let folder = node.path("etc-slurm");
    let _ = fs::remove_dir_all(&folder);
    let script = include_str!("../../hooks/single-script/site-then-gpu-reaper-hc.sh");
    let (etc, here) = ("=/etc/slurm", format!("={}", folder.display()));
    assert_eq!(script.matches(etc).count(), 1 + 2, "the folder of the hooks, and two lines for slurm.conf");
    let mut script = script.replace(etc, &here);
    for which in ["prolog", "epilog"] {
        fs::create_dir_all(folder.join(format!("{which}.d"))).unwrap();
        let own = folder.join(format!("{which}.sh"));
        let setting = format!("\nsite_{which}=");
        assert!(script.contains(&format!("{setting}\n")), "as it comes it names no script of a site");
        if !site.is_empty() {
            script = script.replace(&setting, &format!("{setting}{}", own.display()));
        }
        if !["", "gone"].contains(&site) {
            install(&own, &format!("#!/bin/sh\necho site {which} $SPANK_X\n{site}\n"));
        }
        let name = Path::new(&hook_file(which)).file_name().unwrap().to_owned();
        if let Some(ours) = ours {
            let text = format!("#!/bin/sh\necho ours {which}\n{ours}\n");
            install(&folder.join(format!("{which}.d")).join(name), &text);
        }
    }
    install(&folder.join("one.sh"), &script);
    let mut command = Command::new(shell[0]);
    command.args(&shell[1..]).arg(folder.join("one.sh")).env_clear().env("SPANK_X", "sees all");
    command.envs(context.map(|context| ("SLURM_SCRIPT_CONTEXT", context)));
    said(&mut command)
}

#[test]
fn a_site_with_one_script_has_its_status_as_it_was_and_ours_after_it() {
    let node = Node::without_driver();
    for (shell, which) in shells().flat_map(|shell| ["prolog", "epilog"].map(|which| (shell, which))) {
        let context = format!("{which}_slurmd");
        let call = |site, ours| one_script(&node, shell, Some(&context), site, ours);
        let both = format!("site {which} sees all\nours {which}\n");
        // A failure of the site's is the site's, and ours does not come: its coming would say that all went well.
        for (site, status) in [("exit 1", 1), ("exit 77", 77), ("kill -TERM $$", 143)] {
            let said = call(site, Some("exit 0"));
            let alone = format!("site {which} sees all\n");
            assert_eq!((said.status, said.out), (Some(status), alone), "{shell:?} {which} {site}");
        }
        for (ours, status) in [("exit 0", 0), ("exit 2", 0), ("kill -KILL $$", 0), ("exit 1", 1)] {
            let want = if which == "epilog" { status } else { 0 };
            let said = call("exit 0", Some(ours));
            assert_eq!(
                (said.status, said.out.as_str()),
                (Some(want), both.as_str()),
                "{shell:?} {which} {ours}"
            );
        }
        assert_eq!(call("exit 0", None).status, Some(0), "ours is not installed");
        let named_none = call("", Some("exit 0"));
        let ours_alone = format!("ours {which}\n");
        assert_eq!((named_none.status, named_none.out), (Some(0), ours_alone), "{shell:?} {which}");
        let gone = call("gone", Some("exit 0"));
        assert_eq!((gone.status, gone.out.as_str()), (Some(127), ""), "{shell:?} {which}: as slurmd would");
        let elsewhere = one_script(&node, shell, Some("prolog_slurmctld"), "exit 1", Some("exit 1"));
        assert_eq!((elsewhere.status, elsewhere.out.as_str()), (Some(0), ""), "neither of the two");
        assert_eq!(one_script(&node, shell, None, "exit 1", Some("exit 1")).status, Some(0));
    }
}

#[test]
fn without_a_journal_a_runs_lines_can_go_to_a_file() {
    let node = Node::without_driver();
    let text = include_str!("../../hooks/logging/health-check-to-file.sh");
    for (shell, log) in shells().flat_map(|shell| ["run.log", "absent/run.log"].map(|log| (shell, log))) {
        let _ = fs::remove_file(node.path(log));
        let text = text.replace("=/var/log/gpu-reaper-hc.log", &format!("={}", node.path(log).display()));
        install(
            &node.path("check.sh"),
            &text.replace("=/usr/sbin/gpu-reaper-hc", &format!("={}", node.path("p").display())),
        );
        install(&node.path("p"), "#!/bin/sh\necho a line >&2\nexit 1\n");
        let mut command = Command::new(shell[0]);
        command.args(&shell[1..]).arg(node.path("check.sh")).env_clear();
        let (first, second) = (said(&mut command), said(&mut command));
        let kept = fs::read_to_string(node.path(log)).unwrap_or_default();
        let told = format!("{}{}", first.err, second.err);
        assert_eq!((first.status, second.status), (Some(1), Some(1)), "{shell:?} {log}");
        assert_eq!(format!("{kept}{told}"), "a line\na line\n", "{shell:?} {log}");
        assert_eq!(kept.is_empty(), log.starts_with("absent"), "{shell:?} {log}");
    }
}

/// What a file of settings sets, a comment mark before a setting aside.
fn set(file: &str) -> Vec<(String, String)> {
    let path = format!("{}/hooks/slurm/{file}.snippet", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(path).unwrap();
    let settings = text.lines().filter(|line| !line.starts_with("# ") && !line.is_empty());
    let words = settings.flat_map(|line| line.trim_start_matches('#').split_whitespace());
    words
        .map(|word| word.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())).unwrap())
        .collect()
}

#[test]
fn the_settings_that_we_show_are_slurms() {
    // Of gres.conf no command prints the keys: these are gres.conf(5)'s.
    let gres = ["AutoDetect", "Name", "Type", "File"].map(str::to_owned);
    assert!(set("gres.conf").iter().all(|(key, _)| gres.contains(key)));
    for version in ["22.05.8", "24.11.5", "26.05.5"] {
        let path = format!("{}/fixtures/slurm/{version}/config-keys.txt", env!("CARGO_MANIFEST_DIR"));
        let keys = fs::read_to_string(path).unwrap();
        for file in ["slurm.conf", "cgroup.conf"] {
            let unknown: Vec<String> = set(file)
                .into_iter()
                .map(|(key, _)| format!("{file} {key}"))
                .filter(|key| !keys.lines().any(|line| line == key))
                .collect();
            assert!(unknown.is_empty(), "{version}: {unknown:?}");
        }
    }
    let shown = set("slurm.conf");
    let readme = include_str!("../../README.md");
    for line in readme.lines().filter(|line| line.starts_with("HealthCheck") || line.starts_with("Prolog")) {
        let (key, value) = line.split_once('=').unwrap();
        assert!(shown.contains(&(key.to_owned(), value.to_owned())), "README says {line}");
    }
}

#[test]
fn the_shell_files_are_clean_for_shellcheck() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = vec![root.join("fixtures/stand-in/nhc"), root.join("fixtures/stand-in/slurm")];
    files.extend(["postinst", "prerm", "postrm"].map(|name| root.join("hooks/packages").join(name)));
    for folder in fs::read_dir(root.join("hooks")).unwrap() {
        let inside = fs::read_dir(folder.unwrap().path()).unwrap().map(|file| file.unwrap().path());
        files.extend(inside.filter(|file| file.extension().is_some_and(|e| e == "sh" || e == "nhc")));
    }
    assert!(files.len() >= 8, "{files:?}");
    match Command::new("shellcheck").args(&files).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout)),
        Err(_) => println!("SKIPPED: shellcheck is not installed"),
    }
}

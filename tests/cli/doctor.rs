//! `doctor` on a whole site that is made up: its own /etc, /run, /var/lib, PCI bus, driver's files and processes, and a
//! stand-in for Slurm's commands with answers recorded from three releases. Needs root; says aloud where it is skipped.

use crate::slurm::install;
use crate::*;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;

const STAND_IN: &str = include_str!("../../fixtures/stand-in/slurm");
const VERSIONS: [&str; 3] = ["22.05.8", "24.11.5", "26.05.5"];
/// A system's folders in their places, and the daemon: a program of that name that never ends.
const SITE: &str = r#"
mount --bind "$SITE/etc" /etc
mount --bind "$SITE/run" /run
mount --bind "$SITE/lib" /var/lib
mount --bind "$SITE/spool" /var/spool
mount --bind "$SITE/pci" /proc/bus/pci/devices
mount -t tmpfs tmpfs /proc/driver
cp -r "$SITE/driver/." /proc/driver/
if [ -n "$SLURMD" ]; then
  # shellcheck disable=SC2086
  env -i $SLURMD_ENV "$SITE/slurmd" $SLURMD >/dev/null 2>&1 </dev/null &
  until grep -qs '^slurmd$' /proc/[0-9]*/comm; do sleep 0.01; done
fi
exec "$@"
"#;

/// A site in a throw-away folder. Everything is right until something is changed.
struct Site {
    folder: tempfile::TempDir,
    _journal: UnixDatagram,
    /// slurmd's arguments; none: it does not run.
    slurmd: String,
    slurmd_env: String,
}

impl Site {
    fn new(version: &str) -> Site {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in [
            "bin",
            "by-hand",
            "cluster",
            "driver/nvidia/gpus",
            "etc/gpu-reaper-hc",
            "etc/slurm/prolog.d",
            "etc/slurm/epilog.d",
            "lib",
            "run/nvidia-persistenced",
            "run/systemd/journal",
            "sbin",
            "spool/cron",
        ] {
            fs::create_dir_all(at(name)).unwrap();
        }
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // What is installed is never started here, and has its mode changed; the one that looks is the real one.
        fs::write(at("sbin/gpu-reaper-hc"), "\u{7f}ELF\0").unwrap();
        fs::set_permissions(at("sbin/gpu-reaper-hc"), fs::Permissions::from_mode(0o755)).unwrap();
        let by_hand = at("by-hand/gpu-reaper-hc");
        fs::hard_link(PROGRAM, &by_hand).or_else(|_| fs::copy(PROGRAM, &by_hand).map(drop)).unwrap();
        symlink("/usr/bin/tail", at("slurmd")).unwrap();
        fs::write(at("run/nvidia-persistenced/socket"), "").unwrap();
        let journal = UnixDatagram::bind(at("run/systemd/journal/socket")).unwrap();
        let slurmd = "-F /nonexistent".to_owned();
        let site = Site { folder, _journal: journal, slurmd, slurmd_env: String::new() };
        site.slurm(version);
        site.gpus(4);
        site.write(
            "etc/gpu-reaper-hc/config.yaml",
            &format!("slurm: {{ bin_dir: {} }}\n", site.shown("bin")),
        );
        site
    }

    /// Commands, files and slurmctld's answers of a release, with our lines in them.
    fn slurm(&self, version: &str) {
        for program in ["squeue", "sinfo", "scontrol", "scancel"] {
            install(&self.path("bin").join(program), STAND_IN);
        }
        for (which, name) in [("prolog", "50-gpu-reaper-hc.sh"), ("epilog", "00-gpu-reaper-hc.sh")] {
            let hook = fs::read_to_string(format!("{}/hooks/{which}.d/{name}", env!("CARGO_MANIFEST_DIR")));
            let hook = hook.unwrap().replace("/usr/sbin/gpu-reaper-hc", &self.shown("sbin/gpu-reaper-hc"));
            install(&self.path(&format!("etc/slurm/{which}.d/{name}")), &hook);
        }
        let ours = |text: String| {
            text.replace("/CAP/hook/hc", &self.shown("sbin/gpu-reaper-hc"))
                .replace("/CAP/hook/prolog", "/etc/slurm/prolog.d/*")
                .replace("/CAP/hook/epilog", "/etc/slurm/epilog.d/*")
                .replace("HealthCheckInterval=5", "HealthCheckInterval=60")
                .replace("HealthCheckInterval     = 5 sec", "HealthCheckInterval     = 60 sec")
                .replace("/LAB/dev/", "/dev/")
        };
        let recorded = |name: &str| {
            let folder = format!("{}/fixtures/slurm/{version}", env!("CARGO_MANIFEST_DIR"));
            ours(fs::read_to_string(format!("{folder}/{name}")).unwrap())
        };
        for name in ["slurm.conf", "gres.conf", "cgroup.conf"] {
            self.write(&format!("etc/slurm/{name}"), &recorded(name));
        }
        self.write("cluster/config", &recorded("show-config.out"));
        self.write("cluster/node.show", &recorded("show-node.out"));
        self.write("cluster/node.name", "node1");
        self.write("cluster/version", &format!("slurm-wlm {version}\n"));
    }

    fn gpus(&self, count: u32) {
        let _ = fs::remove_dir_all(self.path("driver/nvidia/gpus"));
        fs::create_dir_all(self.path("driver/nvidia/gpus")).unwrap();
        self.write("driver/nvidia/version", "NVRM version: x\n");
        self.write("pci", "0018\t10de2330\t0\n");
        for minor in 0..count {
            let folder = format!("driver/nvidia/gpus/0000:1{minor}:00.0");
            fs::create_dir(self.path(&folder)).unwrap();
            let text = format!(
                "Model: \t NVIDIA H100\nGPU UUID: \t GPU-0000000{minor}\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
            );
            self.write(&format!("{folder}/information"), &text);
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn shown(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Replaces a text in a file, which holds it.
    fn edit(&self, name: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.path(name)).unwrap();
        assert!(text.contains(from), "{name} holds no `{from}`: {text}");
        self.write(name, &text.replace(from, to));
    }

    /// The same in slurm.conf and in slurmctld's answer.
    fn set(&self, key: &str, from: &str, to: &str) {
        self.edit("etc/slurm/slurm.conf", &format!("{key}={from}"), &format!("{key}={to}"));
        let text = fs::read_to_string(self.path("cluster/config")).unwrap();
        let line = text.lines().find(|line| line.split(['[', ' ']).next() == Some(key)).unwrap();
        let changed = match line.rsplit_once(" = ").unwrap() {
            (name, _) if to.is_empty() => format!("{name} = (null)"),
            (name, _) => format!("{name} = {to}"),
        };
        self.edit("cluster/config", line, &changed);
    }

    /// As `user` (0: root); `None`, said aloud, where nobody may have mounts and processes of one's own.
    fn doctor_as(&self, user: &str, args: &[&str]) -> Option<Said> {
        let alone = ["--mount", "--pid", "--fork", "--mount-proc", "--propagation", "private", "--"];
        let unshare = |script: &str| {
            let mut unshare = Command::new("unshare");
            unshare.args(alone).args(["/bin/sh", "-ec", script, "sh"]).env_clear().stdin(Stdio::null());
            unshare.env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin");
            unshare
        };
        let probe = unshare("mount -t tmpfs tmpfs /proc/driver && test -e /proc/bus/pci/devices");
        let allowed = { probe }.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        if !allowed {
            println!("skipped: no mounts and processes of one's own here (needs root)");
            return None;
        }
        let mut command = unshare(SITE);
        if user != "0" {
            command.args(["setpriv", "--reuid", user, "--regid", user, "--clear-groups"]);
        }
        command.arg(self.path("by-hand/gpu-reaper-hc")).args(["--node", "node1", "doctor"]).args(args);
        command.env("SITE", self.folder.path());
        command.env("SLURMD", &self.slurmd).env("SLURMD_ENV", &self.slurmd_env);
        Some(said(&mut command))
    }

    fn doctor(&self) -> Option<Looked> {
        let said = self.doctor_as("0", &["--json"])?;
        Some(Looked::of(&said))
    }

    /// After a health-check run has sampled, which a site that is right has.
    fn with_a_run(self) -> Site {
        let dir = self.path("lib/gpu-reaper-hc");
        let config = format!("state_dir: {}\nslurm: {{ bin_dir: /nonexistent }}\n", dir.display());
        self.write("run.yaml", &config);
        let run = said(
            Command::new(PROGRAM)
                .env_clear()
                .env("SLURMD_NODENAME", "node1")
                .arg("--config")
                .arg(self.path("run.yaml"))
                .args(["prolog"])
                .env("SLURM_JOB_ID", "7")
                .env("SLURM_JOB_GPUS", "0"),
        );
        assert_eq!((run.status, run.err.as_str()), (Some(0), ""));
        let run = said(
            Command::new(PROGRAM)
                .env_clear()
                .env("SLURMD_NODENAME", "node1")
                .arg("--config")
                .arg(self.path("run.yaml")),
        );
        assert_eq!(run.status, Some(0), "{run:?}");
        // Its driver was not there, which is no fault of the site's.
        let lock = self.path("lib/gpu-reaper-hc/node1/run.lock");
        let mark = fs::read_to_string(&lock).unwrap();
        fs::write(&lock, mark.replace("done-amiss", "done      ")).unwrap();
        self
    }
}

/// What it found.
#[derive(Debug)]
struct Looked {
    status: Option<i32>,
    /// Check, level, and the whole line, of those that are no `ok`.
    amiss: Vec<(String, String, serde_json::Value)>,
    lines: usize,
}

impl Looked {
    fn of(said: &Said) -> Looked {
        let value: serde_json::Value =
            serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"));
        assert_eq!(value["schema"], "gpu-reaper-hc/doctor/1");
        assert_eq!(value["node"], "node1");
        let lines = value["lines"].as_array().unwrap();
        let text = |line: &serde_json::Value, key: &str| line[key].as_str().unwrap().to_owned();
        let amiss = lines
            .iter()
            .filter(|line| line["level"] != "ok" && line["check"] != "state")
            .map(|line| (text(line, "check"), text(line, "level"), line.clone()));
        Looked { status: said.status, amiss: amiss.collect(), lines: lines.len() }
    }

    fn has(&self, check: &str, level: &str) -> bool {
        self.amiss.iter().any(|(of, how, _)| of == check && how == level)
    }
}

/// Whether throw-away folders lie on a disk that a ledger may lie on: else `state` is amiss, and rightly.
fn on_a_local_disk() -> bool {
    let kind = Command::new("stat").args(["-f", "-c", "%T"]).arg(std::env::temp_dir()).output().unwrap();
    ["ext2/ext3", "xfs", "btrfs", "zfs"].contains(&String::from_utf8_lossy(&kind.stdout).trim())
}

#[test]
fn where_everything_is_right_it_says_so() {
    for version in VERSIONS {
        let site = Site::new(version).with_a_run();
        let Some(looked) = site.doctor() else { return };
        assert!(looked.amiss.is_empty() && looked.lines > 20, "{version}: {looked:#?}");
        assert!(looked.status == Some(0) || !on_a_local_disk(), "{version}: {looked:?}");
        let text = site.doctor_as("0", &[]).unwrap();
        let last = text.out.lines().last().unwrap();
        assert!(last.contains(" warning") && last.ends_with(", 0 faults"), "{text:?}");
        assert!(text.err.is_empty() && text.took < Duration::from_secs(20), "{text:?}");
    }
}

/// What is wrong: its name, how it comes about, the check that tells it, how it stands, words of what mends it.
type Wrong<'a> = (&'a str, &'a dyn Fn(&mut Site), &'a str, &'a str, &'a str);

#[test]
fn one_thing_that_is_wrong_is_told_with_the_line_that_mends_it() {
    let table: [Wrong; 22] = [
        (
            "nothing in the slot",
            &|s| s.set("HealthCheckProgram", &s.shown("sbin/gpu-reaper-hc"), ""),
            "slot",
            "fault",
            "HealthCheckProgram=/",
        ),
        (
            "arguments",
            &|s| s.set("HealthCheckProgram", &s.shown("sbin/gpu-reaper-hc"), "/usr/sbin/gpu-reaper-hc -v"),
            "slot",
            "fault",
            "HealthCheckProgram=/",
        ),
        ("not executable", &|s| mode(s, "sbin/gpu-reaper-hc", 0o644), "slot", "fault", "chmod 0755"),
        ("others may write it", &|s| mode(s, "sbin/gpu-reaper-hc", 0o777), "slot", "fault", "chmod go-w"),
        (
            "blind to jobs",
            &|s| s.set("HealthCheckNodeState", "ANY", "IDLE"),
            "node-state",
            "fault",
            "HealthCheckNodeState=ANY",
        ),
        (
            "never",
            &|s| s.set("HealthCheckInterval", "60", "0"),
            "interval",
            "fault",
            "HealthCheckInterval=60",
        ),
        (
            "no prolog of ours",
            &|s| fs::remove_file(s.path("etc/slurm/prolog.d/50-gpu-reaper-hc.sh")).unwrap(),
            "prolog",
            "fault",
            "install -D -m 0755 hooks/prolog.d",
        ),
        (
            "one script, and no hook behind it",
            &|s| {
                let one = include_str!("../../hooks/single-script/site-then-gpu-reaper-hc.sh");
                install(&s.path("etc/slurm/one.sh"), one);
                fs::remove_file(s.path("etc/slurm/prolog.d/50-gpu-reaper-hc.sh")).unwrap();
                s.set("Prolog", "/etc/slurm/prolog.d/*", "/etc/slurm/one.sh");
            },
            "prolog",
            "fault",
            "install -D -m 0755 hooks/prolog.d/50-gpu-reaper-hc.sh /etc/slurm/prolog.d/",
        ),
        (
            "cron lifts every drain",
            &|s| s.write("spool/cron/root", "* * * * * scontrol update nodename=node1 state=resume\n"),
            "others",
            "warning",
            "# * * * * *",
        ),
        (
            "an epilog that runs last",
            &|s| install(&s.path("etc/slurm/epilog.d/-a"), "#!/bin/sh\n"),
            "epilog",
            "warning",
            "mv /etc/slurm/epilog.d/-a",
        ),
        (
            "a note among the hooks",
            &|s| s.write("etc/slurm/epilog.d/README", "read me\n"),
            "epilog",
            "fault",
            "mv /etc/slurm/epilog.d/README /etc/slurm/",
        ),
        ("no Alloc", &|s| s.set("PrologFlags", "Alloc", ""), "prolog-flags", "warning", "PrologFlags=Alloc"),
        ("a card is gone", &|s| s.gpus(3), "gpus", "fault", "nvidia-smi -L"),
        (
            "no gres.conf",
            &|s| fs::remove_file(s.path("etc/slurm/gres.conf")).unwrap(),
            "gres",
            "fault",
            "AutoDetect=nvml",
        ),
        (
            "devices for all",
            &|s| s.edit("etc/slurm/cgroup.conf", "ConstrainDevices=yes", "ConstrainDevices=no"),
            "devices",
            "warning",
            "ConstrainDevices=yes",
        ),
        (
            "no cgroups",
            &|s| s.set("ProctrackType", "proctrack/cgroup", "proctrack/linuxproc"),
            "tracking",
            "warning",
            "ProctrackType=proctrack/cgroup",
        ),
        (
            "no persistence",
            &|s| fs::remove_dir_all(s.path("run/nvidia-persistenced")).unwrap(),
            "persistence",
            "warning",
            "systemctl enable --now nvidia-persistenced",
        ),
        (
            "no journal",
            &|s| fs::remove_dir_all(s.path("run/systemd")).unwrap(),
            "journal",
            "warning",
            "systemd-journald",
        ),
        (
            "a bad configuration",
            &|s| {
                s.write(
                    "etc/gpu-reaper-hc/config.yaml",
                    &format!("windw: 1\nslurm: {{ bin_dir: {} }}\n", s.shown("bin")),
                )
            },
            "configuration",
            "fault",
            "gpu-reaper-hc config check",
        ),
        (
            "no run yet",
            &|s| fs::remove_dir_all(s.path("lib/gpu-reaper-hc")).unwrap(),
            "last-run",
            "warning",
            "gpu-reaper-hc",
        ),
        (
            "the file was changed",
            &|s| s.edit("etc/slurm/slurm.conf", "HealthCheckInterval=60", "HealthCheckInterval=30"),
            "slurm.conf",
            "warning",
            "scontrol reconfigure",
        ),
        ("another node", &|s| s.write("cluster/node.name", "gpu-a7"), "node", "fault", "--node"),
    ];
    for (name, change, check, level, mend) in table {
        let mut site = Site::new("26.05.5").with_a_run();
        change(&mut site);
        let Some(looked) = site.doctor() else { return };
        assert!(looked.has(check, level), "{name}: {looked:#?}");
        let line = &looked.amiss.iter().find(|(of, ..)| of == check).unwrap().2;
        assert!(line["change"].to_string().contains(mend), "{name}: {line}");
        let want = if level == "fault" { 2 } else { 1 };
        assert!(looked.status >= Some(want), "{name}: {looked:?}");
    }
}

fn mode(site: &Site, name: &str, mode: u32) {
    fs::set_permissions(site.path(name), fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_slurm_conf_that_only_slurmd_knows_is_a_fault_with_the_line_to_write() {
    let mut site = Site::new("24.11.5").with_a_run();
    fs::create_dir(site.path("elsewhere")).unwrap();
    for name in ["slurm.conf", "gres.conf", "cgroup.conf"] {
        fs::copy(site.path("etc/slurm").join(name), site.path("elsewhere").join(name)).unwrap();
    }
    let conf = site.shown("elsewhere/slurm.conf");
    let line = format!("conf: {conf} }}");
    site.edit("etc/slurm/slurm.conf", "ClusterName=lab", "ClusterName=old");
    for (words, variable) in
        [(format!("-f {conf}"), String::new()), ("-F /nonexistent".into(), format!("SLURM_CONF={conf}"))]
    {
        (site.slurmd, site.slurmd_env) = (words, variable);
        // `tail -f` is what stands in for the daemon here, so that the option is the real one.
        let Some(looked) = site.doctor() else { return };
        let (.., told) = looked
            .amiss
            .iter()
            .find(|(check, ..)| check == "commands-conf")
            .unwrap_or_else(|| panic!("{looked:#?}"));
        assert!(told["means"].as_str().unwrap().contains("cluster `old` in place of `lab`"), "{told}");
        assert!(told["change"][0]["write"].as_str().unwrap().contains(&line), "{told}");
        assert_eq!(looked.status, Some(2));
    }
    site.edit("etc/gpu-reaper-hc/config.yaml", " }", &format!(", conf: {conf} }}"));
    let looked = site.doctor().unwrap();
    assert!(looked.amiss.is_empty(), "{looked:#?}");
}

#[test]
fn a_slurmctld_that_is_silent_leaves_the_files_and_bounds_the_time() {
    for (how, most) in [("down", 5), ("hangs", 12)] {
        let site = Site::new("24.11.5").with_a_run();
        site.write(&format!("cluster/{how}"), "");
        let Some(looked) = site.doctor() else { return };
        assert_eq!(looked.status, Some(1), "{looked:?}");
        let amiss: Vec<_> =
            looked.amiss.iter().map(|(check, level, _)| (check.as_str(), level.as_str())).collect();
        assert_eq!(amiss, [("slurm.conf", "unknown")], "{how}: {looked:#?}");
        let asked = fs::read_to_string(site.path("cluster/calls")).unwrap();
        assert_eq!(asked, "scontrol show config\n", "one question is enough");
        // A fault that only the file shows is found all the same.
        site.edit("etc/slurm/slurm.conf", "HealthCheckNodeState=ANY", "HealthCheckNodeState=IDLE");
        let said = site.doctor_as("0", &["--json"]).unwrap();
        assert!(
            Looked::of(&said).has("node-state", "fault") && said.took < Duration::from_secs(most),
            "{said:?}"
        );
    }
}

#[test]
fn whoever_may_read_little_is_told_what_is_not_known_and_never_that_it_is_well() {
    let site = Site::new("24.11.5").with_a_run();
    site.write("cluster/down", "");
    for name in ["etc/slurm", "lib/gpu-reaper-hc", "spool/cron", "cluster"] {
        mode(&site, name, 0o700);
    }
    mode(&site, "etc/gpu-reaper-hc/config.yaml", 0o600);
    let Some(said) = site.doctor_as("65534", &["--json"]) else { return };
    let looked = Looked::of(&said);
    assert_eq!(looked.status, Some(1), "no fault is made of what cannot be seen: {looked:#?}");
    for check in [
        "slurm.conf",
        "slot",
        "node-state",
        "interval",
        "prolog",
        "epilog",
        "tracking",
        "configuration",
        "last-run",
    ] {
        assert!(looked.has(check, "unknown"), "{check}: {looked:#?}");
    }
    assert!(said.took < Duration::from_secs(30) && said.err.is_empty(), "{said:?}");
}

#[test]
fn it_changes_nothing() {
    let site = Site::new("24.11.5").with_a_run();
    let all = || -> Vec<String> {
        let mut find = Command::new("find");
        let listed = find.arg(site.folder.path()).args(["-printf", "%p %m %s %T@ %C@\n"]).output();
        let text = String::from_utf8(listed.unwrap().stdout).unwrap();
        // mount(8) itself makes a folder in /run; the stand-in counts its calls.
        let others = |line: &str| {
            ["/run ", "/run/mount", "/calls ", "/by-hand/"].iter().any(|name| line.contains(name))
        };
        let mut lines: Vec<_> = text.lines().filter(|line| !others(line)).map(str::to_owned).collect();
        lines.sort();
        lines
    };
    site.write("cluster/calls", "");
    let before = all();
    if site.doctor().is_none() {
        return;
    }
    let changed: Vec<_> = all().into_iter().filter(|line| !before.contains(line)).collect();
    assert!(changed.is_empty() && all().len() == before.len(), "{changed:#?}");
    assert_eq!(
        fs::read_to_string(site.path("cluster/calls")).unwrap(),
        "scontrol show config\nscontrol show node node1\n"
    );
}

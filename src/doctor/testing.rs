//! A site where everything is right, and the small changes that tests make to it.

use super::daemon::{Daemon, Slurmd};
use super::look::*;
use super::report::{Level, Line};
use super::scripts::{Matched, Script};
use crate::config;
use crate::gpu::driver::Card;
use crate::host::files::{Disk, FileFacts, Look};
use crate::reading::Reading::Measured;
use crate::slurm::conf::Conf;
use crate::slurm::shown::{Shown, ShownNode};
use crate::slurm::{Answer, NoAnswer};
use crate::units::{DeviceMinor, PciAddress, UnitUuid};
use std::path::{Path, PathBuf};

/// One thing that is changed in a site: its name, the change, how the check then stands, words of what it means.
pub type Case<'a> = (&'a str, &'a dyn Fn(&mut Found), Level, &'a str);

const US: &str = "/usr/sbin/gpu-reaper-hc";

/// What slurmctld says where all is well.
const SETTINGS: [(&str, &str); 12] = [
    ("AccountingStorageType", "(null)"),
    ("ClusterName", "c1"),
    ("Epilog[0]", "/etc/slurm/epilog.d/*"),
    ("HealthCheckInterval", "60 sec"),
    ("HealthCheckNodeState", "ANY"),
    ("HealthCheckProgram", US),
    ("ProctrackType", "proctrack/cgroup"),
    ("Prolog[0]", "/etc/slurm/prolog.d/*"),
    ("PrologFlags", "Alloc"),
    ("SlurmdUser", "root(0)"),
    ("TaskPlugin", "task/affinity,task/cgroup"),
    ("SLURM_VERSION", "24.11.5"),
];

/// The same in its file.
const CONF: &str = "ClusterName=c1\nSlurmctldHost=ctl\nHealthCheckProgram=/usr/sbin/gpu-reaper-hc\n\
    HealthCheckInterval=60\nHealthCheckNodeState=ANY\nProlog=/etc/slurm/prolog.d/*\n\
    Epilog=/etc/slurm/epilog.d/*\nPrologFlags=Alloc\nTaskPlugin=task/affinity,task/cgroup\n\
    NodeName=n[1-2] Gres=gpu:h100:4\n";

pub fn right() -> Found {
    let used = named("/etc/slurm/slurm.conf", CONF);
    let commands = ["scontrol", "squeue", "sinfo", "scancel"];
    Found {
        node: "n1".into(),
        config: config::defaults(),
        errors: vec![],
        config_file: config::DEFAULT_FILE.into(),
        config_changeable: Look::NotThere,
        us: US.into(),
        us_facts: script(US).facts,
        root: true,
        slurmd: slurmd(0, ""),
        confs: Confs {
            told: None,
            key: None,
            default: Some(used.clone()),
            used: Some(used),
            cgroup: Look::Is(Conf::of(Path::new("/etc/slurm/cgroup.conf"), "ConstrainDevices=yes\n")),
            gres: Look::Is(("/etc/slurm/gres.conf".into(), "Name=gpu File=/dev/nvidia[0-3]\n".into())),
        },
        shown: shown_with(&[]),
        shown_node: Ok(ShownNode { gres: Some("gpu:h100:4".into()) }),
        commands: commands.map(|name| (name, Ok(PathBuf::from("/usr/bin").join(name)))).to_vec(),
        release: Ok((24, 11)),
        program: Some(Script { text: Look::Is("\u{7f}ELF\0".into()), names: vec![], ..script(US) }),
        prolog: vec![Matched {
            pattern: "/etc/slurm/prolog.d/*".into(),
            scripts: Ok(vec![hook_script("prolog")]),
        }],
        epilog: vec![Matched {
            pattern: "/etc/slurm/epilog.d/*".into(),
            scripts: Ok(vec![hook_script("epilog")]),
        }],
        gpus: Some(Gpus {
            on_bus: true,
            loaded: true,
            cards: Some(cards(&[0, 1, 2, 3])),
            cut: false,
            persistenced: true,
        }),
        state: Some(State {
            folder: "/var/lib/gpu-reaper-hc/n1".into(),
            made: true,
            is_folder: true,
            changeable: Look::Is(None),
            disk: Look::Is(Disk {
                folder: "/var/lib/gpu-reaper-hc/n1".into(),
                magic: 0xEF53,
                free_bytes: 10 << 30,
                read_only: false,
            }),
            ledger_bytes: 1 << 20,
            runs: Runs::Seen {
                newest_ms: Some(30_000),
                cadence: Some((60_000, 61_000)),
                killed_in: None,
                amiss: false,
                running: false,
                persistent: false,
            },
        }),
        others: Some(Others::default()),
        token: None,
        channels: vec![],
        journal: true,
        textfile: None,
    }
}

/// The same, with slurmctld saying this of one key.
pub fn said(key: &str, value: &str) -> Found {
    Found { shown: shown_with(&[(key, value)]), ..right() }
}

/// The same, by a Slurm of this release.
pub fn shown(key: &str, value: &str, version: &str) -> Answer<Shown> {
    shown_with(&[(key, value), ("SLURM_VERSION", version)])
}

/// What slurmctld says, with these in place of the same key, or added.
pub fn shown_with(changes: &[(&str, &str)]) -> Answer<Shown> {
    let base = |key: &str| key.split('[').next().unwrap_or("").to_owned();
    let changed = |key: &str| changes.iter().any(|(other, _)| base(other) == base(key));
    let kept = SETTINGS.iter().filter(|(key, _)| !changed(key));
    let lines: String = kept.chain(changes).map(|(key, value)| format!("{key:<23} = {value}\n")).collect();
    Ok(Shown::parse(&format!("Configuration data as of now\n{lines}\n")).expect("a configuration"))
}

/// slurmctld does not answer, and the file says this alone.
pub fn silent(conf: &str) -> Found {
    let silence = NoAnswer::TimedOut { program: "scontrol", limit_ms: 6000 };
    let used = named("/etc/slurm/slurm.conf", conf);
    let mut found = Found { shown: Err(silence.clone()), shown_node: Err(silence), ..right() };
    found.confs.default = Some(used.clone());
    found.confs.used = Some(used);
    found
}

/// A slurmd that was told to read a file; "": none.
pub fn slurmd(uid: u32, told: &str) -> Slurmd {
    Slurmd::Running(Daemon {
        pid: 7,
        uid: Measured(uid),
        by_option: (!told.is_empty()).then(|| told.into()),
        by_variable: Measured(None),
        configless: Measured(false),
    })
}

/// A slurm.conf; the same name is the same file.
pub fn named(path: &str, text: &str) -> Named {
    let inode = path.bytes().fold(0, |sum, byte| sum * 31 % 1_000_003 + u64::from(byte));
    let facts = FileFacts { regular: true, uid: 0, gid: 0, mode: 0o644, size: 1, id: (1, inode) };
    Named { path: path.into(), facts: Look::Is(facts), conf: Look::Is(Conf::of(Path::new(path), text)) }
}

/// A script of root's that anybody may run and that does nothing.
pub fn script(path: &str) -> Script {
    Script {
        path: path.into(),
        facts: Look::Is(FileFacts { regular: true, uid: 0, gid: 0, mode: 0o755, size: 9, id: (1, 1) }),
        text: Look::Is("#!/bin/sh\n".into()),
        changeable: Look::Is(None),
        names: vec![],
        hooks: vec![],
    }
}

/// Ours.
pub fn hook_script(which: &str) -> Script {
    let (name, text) = match which {
        "prolog" => ("50-gpu-reaper-hc.sh", include_str!("../../hooks/prolog.d/50-gpu-reaper-hc.sh")),
        _ => ("00-gpu-reaper-hc.sh", include_str!("../../hooks/epilog.d/00-gpu-reaper-hc.sh")),
    };
    Script {
        text: Look::Is(text.into()),
        names: vec![(US.into(), true)],
        ..script(&format!("/etc/slurm/{which}.d/{name}"))
    }
}

/// A card with this minor.
pub fn card(minor: u32) -> Card {
    Card {
        pci: PciAddress::parse(&format!("0000:1{minor}:00.0")).expect("an address"),
        uuid: Measured(UnitUuid::new(&format!("GPU-{minor}")).expect("a UUID")),
        minor: Measured(DeviceMinor(minor)),
        name: Measured("NVIDIA H100".into()),
    }
}

/// Cards in the order of the bus, with these minors.
pub fn cards(minors: &[u32]) -> Vec<Card> {
    minors.iter().map(|minor| card(*minor)).collect()
}

/// The worst of them.
pub fn level_of(lines: Vec<Line>) -> Level {
    lines.iter().map(|line| line.level).max().expect("a line")
}

/// Each of them.
pub fn levels_of(lines: &[Line]) -> Vec<Level> {
    lines.iter().map(|line| line.level).collect()
}

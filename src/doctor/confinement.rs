//! What Slurm itself does on the node that we rest on: jobs in cgroups of their own, devices kept apart, GPUs counted.

use super::look::Found;
use super::report::{Change, Line};
use super::settings::{Key, words};
use crate::host::files::Look;

/// Whether a job can use GPUs that are not its own.
pub fn devices(found: &Found) -> Vec<Line> {
    const CHECK: &str = "devices";
    let file = found.beside_conf("cgroup.conf");
    let means = "a job can use GPUs that are not its own: one with another job's process on it is nobody's, and no job is \
                 judged by it";
    let add = || Change::Write { file: file.clone(), line: None, text: "ConstrainDevices=yes".to_owned() };
    let mut lines = match &found.confs.cgroup {
        Look::Unknown(why) => vec![Line::unknown(CHECK, why, "whether devices are kept apart is not known")],
        Look::NotThere => {
            vec![Line::warning(CHECK, format!("{file} does not exist"), means).mended_by([add()])]
        }
        Look::Is(conf) => match conf.value("ConstrainDevices") {
            Some(entry) if entry.value.eq_ignore_ascii_case("yes") => {
                vec![Line::ok(
                    CHECK,
                    format!("ConstrainDevices={} ({file})", entry.value),
                    "a job sees its own GPUs",
                )]
            }
            Some(entry) => {
                let how = format!("ConstrainDevices=yes in place of ConstrainDevices={}", entry.value);
                let mend = Change::Edit { file: file.clone(), line: Some(entry.line), how };
                let what = format!("ConstrainDevices={} ({file}, line {})", entry.value, entry.line);
                vec![Line::warning(CHECK, what, means).mended_by([mend])]
            }
            None => vec![
                Line::warning(CHECK, format!("{file} does not say ConstrainDevices"), means)
                    .mended_by([add()]),
            ],
        },
    };
    // Without the plugin the key has no effect, whatever it says.
    lines.extend(task_plugin(found));
    lines
}

fn task_plugin(found: &Found) -> Option<Line> {
    const CHECK: &str = "task-plugin";
    let (value, by) = match found.key("TaskPlugin") {
        Key::Unknown(why) => {
            return Some(Line::unknown(CHECK, why, "whether devices are kept apart is not known"));
        }
        Key::Unset => (String::new(), String::new()),
        Key::Said(said) => (said.value, said.by),
    };
    let plugins = words(&value);
    let what = match value.is_empty() {
        true => "TaskPlugin is not set".to_owned(),
        false => format!("TaskPlugin={value} ({by})"),
    };
    if plugins.contains("task/cgroup") || plugins.contains("cgroup") {
        return Some(Line::ok(CHECK, what, "cgroup.conf has its effect"));
    }
    let means = "without task/cgroup ConstrainDevices has no effect: a job can use every GPU of the node";
    let rest = if value.is_empty() || plugins.contains("task/none") || plugins.contains("none") {
        String::new()
    } else {
        format!(",{value}")
    };
    let mend = found.write("TaskPlugin", &format!("task/cgroup{rest}"));
    // A reconfiguration does not load another plugin.
    Some(Line::warning(CHECK, what, means).mended_by([mend, Change::run("systemctl restart slurmd")]))
}

/// Whether processes can be told to be a job's.
pub fn tracking(found: &Found) -> Vec<Line> {
    const CHECK: &str = "tracking";
    let (value, by) = match found.key("ProctrackType") {
        Key::Unknown(why) => {
            return vec![Line::unknown(CHECK, why, "whether a process shows its job is not known")];
        }
        Key::Unset => ("proctrack/cgroup".to_owned(), "by default".to_owned()),
        Key::Said(said) => (said.value, said.by),
    };
    let what = format!("ProctrackType={value} ({by})");
    if value == "proctrack/cgroup" || value == "cgroup" {
        return vec![Line::ok(CHECK, what, "each process shows in its cgroup whose it is")];
    }
    let means = "no process shows whose it is: a job that no Prolog registered is not found, whether a job still has a \
                 process is not seen, nor what its processes do beside the GPU";
    let mend = [found.write("ProctrackType", "proctrack/cgroup"), Change::run("systemctl restart slurmd")];
    vec![Line::warning(CHECK, what, means).mended_by(mend)]
}

/// Whether Slurm counts GPU hours. We do not need it; who compares our numbers with sacct does.
pub fn accounting(found: &Found) -> Vec<Line> {
    const CHECK: &str = "accounting";
    let storage = match found.key("AccountingStorageType") {
        Key::Unknown(why) => {
            return vec![Line::unknown(CHECK, why, "we do not need it: Slurm's own count of GPU hours does")];
        }
        other => other.value().unwrap_or("").to_owned(),
    };
    if storage.is_empty() || storage.ends_with("none") {
        return vec![Line::ok(
            CHECK,
            "no accounting storage",
            "nothing but this program counts GPU hours here",
        )];
    }
    let key = found.key("AccountingStorageTRES");
    let value = key.value().unwrap_or("").to_owned();
    let what = format!("AccountingStorageTRES={value}");
    if words(&value).iter().any(|tres| tres == "gres/gpu" || tres.starts_with("gres/gpu:")) {
        return vec![Line::ok(CHECK, what, "sacct counts GPUs")];
    }
    let means = "we do not need it, but Slurm's accounting counts no GPU hours to compare ours with";
    // slurmctld shows what it always counts besides; that need not be said.
    let always = ["cpu", "mem", "energy", "node", "billing", "fs/disk", "vmem", "pages"];
    let own = value.split(',').map(str::trim).filter(|tres| !tres.is_empty() && !always.contains(tres));
    let all: Vec<&str> = own.chain(["gres/gpu"]).collect();
    let mend =
        [found.write("AccountingStorageTRES", &all.join(",")), Change::run("systemctl restart slurmctld")];
    vec![Line::warning(CHECK, what, means).mended_by(mend)]
}

#[cfg(test)]
mod tests {
    use super::super::report::Level;
    use super::super::testing::{level_of, right, said};
    use super::*;
    use crate::slurm::conf::Conf;
    use std::path::Path;

    #[test]
    fn devices_are_kept_apart_by_the_key_and_the_plugin_together() {
        let conf = |text: &str| Look::Is(Conf::of(Path::new("/etc/slurm/cgroup.conf"), text));
        let table = [
            (conf("ConstrainDevices=yes\n"), Level::Ok),
            (conf("CgroupPlugin=autodetect\nconstraindevices = YES\n"), Level::Ok),
            (conf("ConstrainDevices=no\n"), Level::Warning),
            (conf("ConstrainCores=yes\n"), Level::Warning),
            (Look::NotThere, Level::Warning),
            (Look::Unknown("Permission denied".to_owned()), Level::Unknown),
        ];
        for (cgroup, want) in table {
            let mut found = right();
            found.confs.cgroup = cgroup.clone();
            assert_eq!(level_of(devices(&found)), want, "{cgroup:?}");
        }
        for (value, want) in [
            ("task/cgroup", Level::Ok),
            ("task/affinity,task/cgroup", Level::Ok),
            ("cgroup", Level::Ok),
            ("task/affinity", Level::Warning),
            ("task/none", Level::Warning),
            ("", Level::Warning),
        ] {
            assert_eq!(level_of(devices(&said("TaskPlugin", value))), want, "{value}");
        }
        let lines = devices(&said("TaskPlugin", "task/affinity"));
        assert!(
            lines[1].change[0].to_string().contains(": TaskPlugin=task/cgroup,task/affinity in place"),
            "{lines:?}"
        );
    }

    #[test]
    fn processes_show_their_job_only_in_a_cgroup() {
        for (value, want) in [
            ("proctrack/cgroup", Level::Ok),
            ("", Level::Ok),
            ("proctrack/linuxproc", Level::Warning),
            ("proctrack/pgid", Level::Warning),
        ] {
            assert_eq!(level_of(tracking(&said("ProctrackType", value))), want, "{value}");
        }
    }

    #[test]
    fn gpu_hours_are_missed_only_where_anything_is_counted() {
        let mut found = said("AccountingStorageTRES", "cpu,mem,gres/nic");
        assert_eq!(level_of(accounting(&found)), Level::Ok, "no storage");
        let both = |tres: &str| {
            super::super::testing::shown_with(&[
                ("AccountingStorageType", "accounting_storage/slurmdbd"),
                ("AccountingStorageTRES", tres),
            ])
        };
        found.shown = both("cpu,mem,gres/nic");
        let lines = accounting(&found);
        assert!(
            lines[0].change[0].to_string().ends_with("AccountingStorageTRES=gres/nic,gres/gpu"),
            "{lines:?}"
        );
        assert_eq!(level_of(lines), Level::Warning);
        found.shown = both("cpu,gres/gpu:h100");
        assert_eq!(level_of(accounting(&found)), Level::Ok);
    }
}

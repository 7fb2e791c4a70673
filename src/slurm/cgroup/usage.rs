//! What the kernel itself counts for a job's cgroup: CPU time, which keeps what ended processes used, and memory.
//! Never its io.stat: that knows block devices alone, and a checkpoint on a network file system would not show.

use super::Roots;
use super::folders::absence_of;
use crate::reading::{Absence, Reading};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

impl Roots {
    /// CPU time of everything that ever ran in the job, milliseconds. Absent with `NotSupported` where it is not
    /// counted: cgroup v1 without jobacct_gather/cgroup.
    pub fn cpu_ms(&self, job: &Path) -> Reading<u64> {
        match self.in_v1(job, &self.cpuacct) {
            Some(folder) => number(&folder.join("cpuacct.usage")).map(|ns| ns / 1_000_000),
            None => field(&job.join("cpu.stat"), "usage_usec").map(|us| us / 1000),
        }
    }

    /// The cgroup that the lines of a `/proc/PID/cgroup` name, where CPU time is counted, and that count,
    /// milliseconds: for a container that no job's cgroup holds. `None` where no such count can be read.
    pub fn cpu_ms_beside(&self, lines: &str) -> Option<(PathBuf, u64)> {
        let named = |line: &str| {
            let [_, controllers, path] = line.splitn(3, ':').collect::<Vec<_>>()[..] else { return None };
            let below = path.trim_start_matches('/');
            // The root's own count is the whole machine's.
            if below.is_empty() {
                return None;
            }
            if controllers.split(',').any(|controller| controller == "cpuacct") {
                let folder = self.cpuacct.join(below);
                let ns = number(&folder.join("cpuacct.usage")).measured().copied()?;
                return Some((folder, ns / 1_000_000));
            }
            let counted = |mount: &PathBuf| {
                let folder = mount.join(below);
                let us = field(&folder.join("cpu.stat"), "usage_usec").measured().copied()?;
                Some((folder, us / 1000))
            };
            if controllers.is_empty() { self.unified.iter().find_map(counted) } else { None }
        };
        lines.lines().find_map(named)
    }

    /// Memory in use by the job without file pages that nobody used lately, bytes. Absent with `NotSupported`
    /// where there is no memory controller, or Slurm does not use it.
    pub fn working_set_bytes(&self, job: &Path) -> Reading<u64> {
        let (used, idle) = match self.in_v1(job, &self.memory) {
            Some(folder) => (
                number(&folder.join("memory.usage_in_bytes")),
                (folder.join("memory.stat"), "total_inactive_file"),
            ),
            None => (number(&job.join("memory.current")), (job.join("memory.stat"), "inactive_file")),
        };
        used.and_then(|used| {
            let working = |idle: u64| match used.checked_sub(idle) {
                Some(bytes) => Reading::Measured(bytes),
                // The two are not read at one instant.
                None => Reading::Absent(Absence::Implausible),
            };
            field(&idle.0, idle.1).and_then(working)
        })
    }

    /// The job's folder in another v1 hierarchy; `None` for a job of v2, whose files are all in one place.
    fn in_v1(&self, job: &Path, hierarchy: &Path) -> Option<PathBuf> {
        Some(hierarchy.join(job.strip_prefix(&self.freezer).ok()?))
    }
}

fn text(path: &Path) -> Reading<String> {
    match fs::read_to_string(path) {
        Ok(text) => Reading::Measured(text),
        Err(e) if e.kind() == ErrorKind::NotFound => Reading::Absent(Absence::NotSupported),
        Err(e) => Reading::Absent(absence_of(&e)),
    }
}

fn understood(value: Option<u64>) -> Reading<u64> {
    value.map_or(Reading::Absent(Absence::NotUnderstood), Reading::Measured)
}

fn number(path: &Path) -> Reading<u64> {
    text(path).and_then(|text| understood(text.trim().parse().ok()))
}

fn field(path: &Path, key: &str) -> Reading<u64> {
    let value = |line: &str| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok();
    text(path).and_then(|text| understood(text.lines().find_map(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(folder: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn both_hierarchies_tell_a_jobs_cpu_time_and_working_set() {
        let temp = tempfile::tempdir().unwrap();
        let roots = Roots::under(temp.path());
        let (v1, v2) = ("slurm/uid_5/job_7", "system.slice/slurmstepd.scope/job_8");
        let (of_v1, of_v2) = (temp.path().join("freezer").join(v1), temp.path().join(v2));
        make(temp.path(), &[(&format!("freezer/{v1}/x"), ""), (&format!("{v2}/x"), "")]);
        for job in [&of_v1, &of_v2] {
            assert_eq!(roots.cpu_ms(job), Reading::Absent(Absence::NotSupported));
            assert_eq!(roots.working_set_bytes(job), Reading::Absent(Absence::NotSupported));
        }
        make(
            temp.path(),
            &[
                (&format!("cpuacct/{v1}/cpuacct.usage"), "5000000000\n"),
                (&format!("memory/{v1}/memory.usage_in_bytes"), "900\n"),
                (&format!("memory/{v1}/memory.stat"), "inactive_file 1\ntotal_inactive_file 400\n"),
                (&format!("{v2}/cpu.stat"), "usage_usec 7000000\nuser_usec 1\n"),
                (&format!("{v2}/memory.current"), "1000\n"),
                (&format!("{v2}/memory.stat"), "anon 5\ninactive_file 300\n"),
            ],
        );
        assert_eq!(
            (roots.cpu_ms(&of_v1), roots.cpu_ms(&of_v2)),
            (Reading::Measured(5000), Reading::Measured(7000))
        );
        assert_eq!(roots.working_set_bytes(&of_v1), Reading::Measured(500));
        assert_eq!(roots.working_set_bytes(&of_v2), Reading::Measured(700));
        make(
            temp.path(),
            &[(&format!("{v2}/memory.current"), "200\n"), (&format!("{v2}/cpu.stat"), "other 1\n")],
        );
        assert_eq!(roots.working_set_bytes(&of_v2), Reading::Absent(Absence::Implausible));
        assert_eq!(roots.cpu_ms(&of_v2), Reading::Absent(Absence::NotUnderstood));
    }
}

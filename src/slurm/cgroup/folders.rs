//! Which jobs have a cgroup on this host, whether one is frozen, and its processes. Reads folders and small
//! files, few of them; what is gone meanwhile has ended, and a part is never given for the whole.

use super::{JobTag, tag_of_folder};
use crate::reading::{Absence, Reading};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// More processes than this are not added up.
const MOST_PROCESSES: usize = 4096;
/// More folders than this are not walked.
const MOST_FOLDERS: usize = 4096;

/// Where the hierarchies are mounted.
#[derive(Clone, Debug)]
pub struct Roots {
    /// The v1 freezer hierarchy.
    pub freezer: PathBuf,
    /// The v1 cpuacct hierarchy.
    pub cpuacct: PathBuf,
    /// The v1 memory hierarchy.
    pub memory: PathBuf,
    /// Where a v2 hierarchy may be.
    pub unified: Vec<PathBuf>,
}

impl Default for Roots {
    fn default() -> Roots {
        Roots::under(Path::new("/sys/fs/cgroup"))
    }
}

impl Roots {
    /// All hierarchies as they are usually mounted under one folder: v1 ones each in its own, v2 in it or beside them.
    pub fn under(folder: &Path) -> Roots {
        let at = |name: &str| folder.join(name);
        let unified = vec![folder.to_path_buf(), at("unified")];
        Roots { freezer: at("freezer"), cpuacct: at("cpuacct"), memory: at("memory"), unified }
    }
}

/// A job's cgroup on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFolder {
    /// A [`JobTag::Job`] or a [`JobTag::Sluid`].
    pub tag: JobTag,
    /// Its folder, to be given to [`frozen`] and [`processes`].
    pub path: PathBuf,
}

impl Roots {
    /// The jobs that have a cgroup for this node. Absent where Slurm keeps none (proctrack/linuxproc, or no
    /// job since boot): that is not "no jobs".
    pub fn jobs(&self, node: &str) -> Reading<Vec<JobFolder>> {
        let found = match self.first_freezer_root(node) {
            Some(root) => jobs_by_user(&root),
            None => match self.first_scope(node) {
                Some(scope) => jobs_in(&scope),
                None => return Reading::Absent(Absence::NoData),
            },
        };
        found.map_or_else(|e| Reading::Absent(absence_of(&e)), Reading::Measured)
    }

    fn first_freezer_root(&self, node: &str) -> Option<PathBuf> {
        let names = [format!("slurm_{node}"), "slurm".to_owned()];
        names.iter().map(|name| self.freezer.join(name)).find(|root| root.is_dir())
    }

    /// In system.slice, or in the slice that CgroupSlice= names (25.11 on).
    fn first_scope(&self, node: &str) -> Option<PathBuf> {
        let names = [format!("{node}_slurmstepd.scope"), "slurmstepd.scope".to_owned()];
        let in_slice =
            |slice: PathBuf| names.iter().map(|name| slice.join(name)).find(|scope| scope.is_dir());
        let system = self.unified.iter().find_map(|mount| in_slice(mount.join("system.slice")));
        system.or_else(|| {
            let slices = self.unified.iter().filter_map(|mount| folders(mount).ok()).flatten();
            slices
                .filter(|path| name_of(path).ends_with(".slice") && name_of(path) != "user.slice")
                .find_map(in_slice)
        })
    }
}

fn jobs_by_user(root: &Path) -> std::io::Result<Vec<JobFolder>> {
    let mut jobs = Vec::new();
    for user in folders(root)?.into_iter().filter(|path| name_of(path).starts_with("uid_")) {
        match jobs_in(&user) {
            Ok(found) => jobs.extend(found),
            // Its last job ended between the two looks.
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        }
    }
    Ok(jobs)
}

fn jobs_in(folder: &Path) -> std::io::Result<Vec<JobFolder>> {
    let job = |path: PathBuf| match tag_of_folder(name_of(&path)) {
        tag @ (JobTag::Job(_) | JobTag::Sluid(_)) => Some(JobFolder { tag, path }),
        _ => None,
    };
    Ok(folders(folder)?.into_iter().filter_map(job).collect())
}

fn folders(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or("")
}

pub(super) fn absence_of(error: &std::io::Error) -> Absence {
    match error.kind() {
        ErrorKind::NotFound => Absence::NotListed,
        ErrorKind::PermissionDenied => Absence::NoPermission,
        _ => Absence::SourceFailed,
    }
}

/// Whether the job or any step of it is frozen. The kernel's files tell the effective state, parents
/// included (cgroup-v1/freezer-subsystem and cgroup-v2, "cgroup.freeze"); Slurm freezes step by step.
pub fn frozen(job: &Path) -> Reading<bool> {
    let mut places = vec![job.to_path_buf()];
    match folders(job) {
        Ok(steps) => places.extend(steps.into_iter().flat_map(|step| [step.join("user"), step])),
        Err(e) => return Reading::Absent(absence_of(&e)),
    }
    let mut known = false;
    for place in places {
        match state_of(&place) {
            Some(Reading::Measured(true)) => return Reading::Measured(true),
            Some(Reading::Measured(false)) => known = true,
            Some(absent) => return absent,
            // A step that ended meanwhile, or a level that this version does not have.
            None => {}
        }
    }
    if known { Reading::Measured(false) } else { Reading::Absent(Absence::NoData) }
}

fn state_of(place: &Path) -> Option<Reading<bool>> {
    for (file, is_frozen) in
        [("freezer.state", frozen_v1 as fn(&str) -> Option<bool>), ("cgroup.events", frozen_v2)]
    {
        match fs::read_to_string(place.join(file)) {
            Ok(text) => {
                let state = is_frozen(&text);
                return Some(state.map_or(Reading::Absent(Absence::NotUnderstood), Reading::Measured));
            }
            // ENODEV: the cgroup was removed between open and read.
            Err(e) if e.kind() == ErrorKind::NotFound || e.raw_os_error() == Some(libc::ENODEV) => {
                continue;
            }
            Err(e) => return Some(Reading::Absent(absence_of(&e))),
        }
    }
    None
}

fn frozen_v1(text: &str) -> Option<bool> {
    match text.trim() {
        "FROZEN" | "FREEZING" => Some(true),
        "THAWED" => Some(false),
        _ => None,
    }
}

fn frozen_v2(text: &str) -> Option<bool> {
    match text.lines().find_map(|line| line.strip_prefix("frozen "))? {
        "1" => Some(true),
        "0" => Some(false),
        _ => None,
    }
}

/// Every process of a job. Absent where there are more than 4096: a part of them would add up to less than
/// the job did.
pub fn processes(job: &Path) -> Reading<Vec<u32>> {
    let (mut pids, mut open, mut walked) = (Vec::new(), vec![job.to_path_buf()], 0);
    while let Some(folder) = open.pop() {
        walked += 1;
        let read =
            fs::read_to_string(folder.join("cgroup.procs")).and_then(|text| Ok((text, folders(&folder)?)));
        let (text, below) = match read {
            Ok(read) => read,
            // A step that ended meanwhile; the job itself must be there.
            Err(e) if walked > 1 && [Some(libc::ENOENT), Some(libc::ENODEV)].contains(&e.raw_os_error()) => {
                continue;
            }
            Err(e) => return Reading::Absent(absence_of(&e)),
        };
        open.extend(below);
        for line in text.lines() {
            // 0: a process of another namespace, which cannot be looked at from here.
            match line.trim().parse() {
                Ok(pid) if pid > 0 => pids.push(pid),
                _ => return Reading::Absent(Absence::NotUnderstood),
            }
        }
        if pids.len() > MOST_PROCESSES || walked > MOST_FOLDERS {
            return Reading::Absent(Absence::NotAsked);
        }
    }
    pids.sort_unstable();
    pids.dedup();
    Reading::Measured(pids)
}

/// What may be slurmstepd in each of a job's steps: v2 keeps it, and what it starts, apart from the tasks.
pub fn stewards(job: &Path) -> Vec<u32> {
    let steps = folders(job).unwrap_or_default();
    let of_step = |step: PathBuf| fs::read_to_string(step.join("slurm/cgroup.procs")).unwrap_or_default();
    let pids = |text: String| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<u32>>();
    let all =
        steps.into_iter().filter(|step| name_of(step).starts_with("step_")).flat_map(|s| pids(of_step(s)));
    all.filter(|pid| *pid > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::JobId;

    fn job(id: u64) -> JobTag {
        JobTag::Job(JobId::new(id).unwrap())
    }

    fn sluid(text: &str) -> JobTag {
        JobTag::Sluid(text.to_owned())
    }

    fn roots(folder: &Path) -> Roots {
        Roots { unified: vec![folder.join("v2")], ..Roots::under(folder) }
    }

    fn make(folder: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn jobs_of_this_node_are_listed_from_either_hierarchy() {
        let temp = tempfile::tempdir().unwrap();
        let roots = roots(temp.path());
        assert_eq!(roots.jobs("n1"), Reading::Absent(Absence::NoData), "no hierarchy is not no jobs");
        make(
            temp.path(),
            &[
                ("v2/system.slice/n1_slurmstepd.scope/s5K1KKYAYG5D00/cgroup.procs", ""),
                ("v2/system.slice/n1_slurmstepd.scope/system/x", ""),
            ],
        );
        let tags =
            |node: &str| roots.jobs(node).map(|jobs| jobs.into_iter().map(|job| job.tag).collect::<Vec<_>>());
        assert_eq!(tags("n1"), Reading::Measured(vec![sluid("s5K1KKYAYG5D00")]));
        assert_eq!(tags("n2"), Reading::Absent(Absence::NoData), "another node of this host");
        make(
            temp.path(),
            &[("freezer/slurm_n1/uid_5/job_7/cgroup.procs", ""), ("freezer/slurm_n1/cgroup.procs", "")],
        );
        assert_eq!(tags("n1"), Reading::Measured(vec![job(7)]), "v1 first");
        make(temp.path(), &[("v2/gpu.slice/slurmstepd.scope/job_8/cgroup.procs", "")]);
        assert_eq!(tags("n3"), Reading::Measured(vec![job(8)]), "CgroupSlice=gpu.slice");
        fs::remove_dir_all(temp.path().join("freezer/slurm_n1/uid_5")).unwrap();
        assert_eq!(tags("n1"), Reading::Measured(vec![]), "a hierarchy without jobs is no jobs");
    }

    #[test]
    fn a_job_is_frozen_if_any_step_is() {
        let temp = tempfile::tempdir().unwrap();
        let at = temp.path();
        make(at, &[("v1/freezer.state", "THAWED\n"), ("v1/step_0/freezer.state", "THAWED\n")]);
        make(
            at,
            &[
                ("v2/cgroup.events", "populated 1\nfrozen 0\n"),
                ("v2/step_0/user/cgroup.events", "populated 1\nfrozen 1\n"),
            ],
        );
        make(at, &[("odd/freezer.state", "MELTING\n"), ("old/step_0/cgroup.procs", "")]);
        assert_eq!(frozen(&at.join("v1")), Reading::Measured(false));
        assert_eq!(frozen(&at.join("v2")), Reading::Measured(true));
        make(at, &[("v1/step_0/freezer.state", "FREEZING\n")]);
        assert_eq!(frozen(&at.join("v1")), Reading::Measured(true));
        assert_eq!(frozen(&at.join("odd")), Reading::Absent(Absence::NotUnderstood));
        assert_eq!(frozen(&at.join("old")), Reading::Absent(Absence::NoData));
        assert_eq!(frozen(&at.join("gone")), Reading::Absent(Absence::NotListed));
    }

    #[test]
    fn a_steps_steward_is_looked_for_beside_the_tasks() {
        let temp = tempfile::tempdir().unwrap();
        make(
            temp.path(),
            &[
                ("step_0/slurm/cgroup.procs", "12\n13\n"),
                ("step_0/user/task_0/cgroup.procs", "14\n"),
                ("step_extern/slurm/cgroup.procs", "15\n0\n"),
                ("other/slurm/cgroup.procs", "16\n"),
            ],
        );
        let mut found = stewards(temp.path());
        found.sort_unstable();
        assert_eq!(found, [12, 13, 15]);
        assert!(stewards(&temp.path().join("gone")).is_empty());
    }

    #[test]
    fn a_jobs_processes_are_all_of_them_or_none() {
        let temp = tempfile::tempdir().unwrap();
        let at = temp.path();
        make(
            at,
            &[
                ("cgroup.procs", "10\n"),
                ("step_0/cgroup.procs", "12\n11\n"),
                ("step_0/task_0/cgroup.procs", "12\n"),
            ],
        );
        assert_eq!(processes(at), Reading::Measured(vec![10, 11, 12]));
        make(at, &[("step_0/cgroup.procs", "0\n")]);
        assert_eq!(processes(at), Reading::Absent(Absence::NotUnderstood));
        let many: String = (1..=5000).map(|pid| format!("{pid}\n")).collect();
        make(at, &[("step_0/cgroup.procs", &many)]);
        assert_eq!(processes(at), Reading::Absent(Absence::NotAsked));
        assert_eq!(processes(&at.join("gone")), Reading::Absent(Absence::NotListed));
    }
}

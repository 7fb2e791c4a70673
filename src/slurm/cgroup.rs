//! Which job a process belongs to, from the text of `/proc/PID/cgroup`. Five layouts are known: v1 and v2,
//! each with and without the node's name in the path, and the SLUID folders of 26.05. A path that is Slurm's
//! and not understood stays Slurm's: it names no job, and it is nobody else's either.

mod folders;
mod usage;

pub use folders::{JobFolder, Roots, frozen, processes, stewards};

use crate::model::JobId;

/// What a cgroup path says of a process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum JobTag {
    /// Of this job.
    Job(JobId),
    /// Of the job that has this SLUID (26.05 on, cgroup v2): a registration knows its id, or Slurm.
    Sluid(String),
    /// Slurm's, with no job that could be read: slurmd, any job under proctrack/linuxproc, a new layout.
    Slurm,
    /// Not Slurm's.
    NotSlurm,
}

/// A process's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whose it is.
    pub tag: JobTag,
    /// The node's name in the path, where it stands there: several slurmd on one host are several nodes.
    pub node: Option<String>,
}

/// The place that the lines of `/proc/PID/cgroup` tell. Two jobs in one text are none.
pub fn place(text: &str) -> Place {
    let nowhere = Place { tag: JobTag::NotSlurm, node: None };
    let rank = |place: &Place| match place.tag {
        JobTag::Job(_) => 3,
        JobTag::Sluid(_) => 2,
        JobTag::Slurm => 1,
        JobTag::NotSlurm => 0,
    };
    let places = text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).map(place_of_path);
    places.fold(nowhere, |best, next| match (&best.tag, &next.tag) {
        (JobTag::Job(a), JobTag::Job(b)) if a != b => Place { tag: JobTag::Slurm, node: None },
        _ if rank(&next) > rank(&best) => next,
        _ => best,
    })
}

fn place_of_path(path: &str) -> Place {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let of = |tag, node: Option<&str>| Place { tag, node: node.map(str::to_owned) };
    // v1: /slurm/uid_U/job_N/..., or /slurm_NODE/... where slurmd was built for several on one host (Debian).
    if let Some(root) = parts.first().filter(|part| **part == "slurm" || part.starts_with("slurm_")) {
        let node = root.strip_prefix("slurm_");
        let job = parts.get(1).filter(|part| part.starts_with("uid_")).and(parts.get(2));
        return of(job.map_or(JobTag::Slurm, |folder| tag_of_folder(folder)), node);
    }
    // v2: .../[NODE_]slurmstepd.scope/<job>/step_S/... A user may make folders below a session of theirs.
    for (at, part) in parts.iter().enumerate() {
        if *part == "user.slice" {
            break;
        }
        if let Some(node) = scope(part) {
            return of(parts.get(at + 1).map_or(JobTag::Slurm, |folder| tag_of_folder(folder)), node);
        }
        if part.starts_with("slurm") {
            return of(JobTag::Slurm, None);
        }
    }
    of(JobTag::NotSlurm, None)
}

/// `slurmstepd.scope` and `NODE_slurmstepd.scope`; the inner value is the node, if any.
fn scope(part: &str) -> Option<Option<&str>> {
    match part.strip_suffix("slurmstepd.scope")? {
        "" => Some(None),
        node => node.strip_suffix('_').filter(|n| !n.is_empty()).map(Some),
    }
}

/// By its shape, not by Slurm's version: `CgroupJobIdPaths=yes` brings `job_N` back in 26.05.
fn tag_of_folder(name: &str) -> JobTag {
    match name.strip_prefix("job_") {
        Some(id) => JobId::parse(id).map_or(JobTag::Slurm, JobTag::Job),
        None if is_sluid(name) => JobTag::Sluid(name.to_owned()),
        None => JobTag::Slurm,
    }
}

/// `s` and 13 of Crockford's 32 digits (slurm's sluid.c).
pub(super) fn is_sluid(name: &str) -> bool {
    let digit = |b: u8| b.is_ascii_digit() || (b.is_ascii_uppercase() && !b"ILOU".contains(&b));
    name.len() == 14 && name.strip_prefix('s').is_some_and(|rest| rest.bytes().all(digit))
}

/// The job of a slurmstepd by the title it gives itself (`slurmstepd: [3385.batch]`), in all versions. Any process
/// can take such a title: only of one that is known to be slurmstepd, and root's.
pub fn job_of_title(title: &str) -> Option<JobId> {
    let step = title.strip_prefix("slurmstepd: [")?;
    JobId::parse(step.split_once('.')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: u64) -> JobTag {
        JobTag::Job(JobId::new(id).unwrap())
    }

    fn sluid(text: &str) -> JobTag {
        JobTag::Sluid(text.to_owned())
    }

    #[test]
    fn every_layout_gives_its_job_and_never_a_wrong_one() {
        // guilbaults/slurm-job-exporter#66 (CG-01), plazonic/cgroup_exporter#8, #14 (CG-02),
        // PrincetonUniversity/jobstats#61 (CG-08).
        let table = [
            ("/slurm/uid_1000/job_55/step_0/task_0", job(55), None),
            ("/slurm_gpu07/uid_1000/job_55", job(55), Some("gpu07")),
            ("/system.slice/slurmstepd.scope/job_1234/step_0/user/task_0", job(1234), None),
            ("/system.slice/gpu07_slurmstepd.scope/job_55/step_batch/slurm", job(55), Some("gpu07")),
            ("/lxc/x/system.slice/slurmstepd.scope/job_7", job(7), None),
            ("/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0", sluid("s5K1KKYAYG5D00"), None),
            ("/system.slice/n1_slurmstepd.scope/s63NM8KTNVBJ00", sluid("s63NM8KTNVBJ00"), Some("n1")),
            (
                "/system.slice/slurmstepd.scope/job_5/step_0/user/task_0/x_slurmstepd.scope/job_6",
                job(5),
                None,
            ),
            ("/system.slice/slurmstepd.scope/system", JobTag::Slurm, None),
            ("/system.slice/slurmstepd.scope/slurmd", JobTag::Slurm, None),
            ("/system.slice/slurmstepd.scope/job_", JobTag::Slurm, None),
            ("/system.slice/slurmstepd.scope/job_0", JobTag::Slurm, None),
            ("/system.slice/slurmstepd.scope/job_5x", JobTag::Slurm, None),
            ("/system.slice/slurmstepd.scope/s5k1kkyayg5d00", JobTag::Slurm, None),
            ("/system.slice/slurmstepd.scope", JobTag::Slurm, None),
            ("/slurm/system", JobTag::Slurm, None),
            ("/slurm/uid_0/job_99999999999999999999", JobTag::Slurm, None),
            ("/system.slice/slurmd.service", JobTag::Slurm, None),
            (
                "/user.slice/user-1000.slice/user@1000.service/a_slurmstepd.scope/job_9",
                JobTag::NotSlurm,
                None,
            ),
            ("/docker/879c/job_9", JobTag::NotSlurm, None),
            ("/system.slice/sshd.service", JobTag::NotSlurm, None),
            ("/", JobTag::NotSlurm, None),
        ];
        for (path, tag, node) in table {
            let want = Place { tag, node: node.map(str::to_owned) };
            assert_eq!(place(&format!("8:pids:/\n0::{path}\n")), want, "{path}");
        }
    }

    #[test]
    fn recorded_processes_are_found_in_every_version() {
        let of_file = |name: &str| {
            let path = format!("{}/fixtures/slurm/{name}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path).unwrap();
            text.split("# pid ")
                .skip(1)
                .map(|process| (process.to_owned(), place(process)))
                .collect::<Vec<_>>()
        };
        for version in ["22.05.8", "24.11.5", "26.05.5"] {
            for layout in ["v1", "v2"] {
                let name = format!("{version}/proc-cgroups.contain.{layout}.txt");
                let processes = of_file(&name);
                let scripts: Vec<_> =
                    processes.iter().filter(|(text, _)| text.contains("slurm_script")).collect();
                assert!(!scripts.is_empty(), "{name}");
                for (text, place) in scripts {
                    let by_sluid = version == "26.05.5" && layout == "v2";
                    let want = if by_sluid { sluid("sDQNM8KVEZRP00") } else { job(1) };
                    assert_eq!((&place.tag, place.node.as_deref()), (&want, Some("node1")), "{name}: {text}");
                }
            }
        }
        let by_id = of_file("26.05.5/proc-cgroups.jobidpaths.v2.txt");
        assert!(by_id.iter().any(|(_, place)| place.tag == job(1)), "CgroupJobIdPaths=yes");
        let unconfined = of_file("22.05.8/proc-cgroups.linuxproc.txt");
        assert!(unconfined.iter().all(|(_, place)| !matches!(place.tag, JobTag::Job(_) | JobTag::Sluid(_))));
    }

    #[test]
    fn a_stewards_title_names_its_job_and_no_other_text_does() {
        let table = [
            ("slurmstepd: [3385.0]", Some(3385)),
            ("slurmstepd: [3385.extern]", Some(3385)),
            ("slurmstepd: [3385.batch]  ", Some(3385)),
            ("slurmstepd: [201.0+1]", Some(201)),
            ("slurmstepd: [s5K1KKYAYG5D00.0]", None),
            ("slurmstepd: [3385]", None),
            ("slurmstepd: [0.0]", None),
            ("slurmstepd: ", None),
            ("/usr/sbin/slurmstepd infinity", None),
            ("bash slurmstepd: [3385.0]", None),
        ];
        for (title, want) in table {
            assert_eq!(job_of_title(title).map(JobId::get), want, "{title}");
        }
    }

    #[test]
    fn two_jobs_in_one_text_are_none() {
        let text = "6:freezer:/slurm/uid_1/job_1\n0::/system.slice/slurmstepd.scope/job_2\n";
        assert_eq!(place(text).tag, JobTag::Slurm);
        assert_eq!(place("").tag, JobTag::NotSlurm);
        assert_eq!(place("nonsense").tag, JobTag::NotSlurm);
    }
}

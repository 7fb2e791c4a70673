//! Which GPUs a job holds on this node, from the text of `scontrol -d show job`: the only place where Slurm
//! before 23.02 says it. The text is full of the user's own, which may hold newlines and so whole lines that
//! look like Slurm's; but each of Slurm's own lines is there once, so one that is there twice spoils it all.

use super::command::Program;
use super::scontrol::exact_id;
use super::{Answer, Slurm, gres, hostlist, misread};
use crate::model::JobId;
use crate::units::GresIndex;

/// Lines of Slurm's own that must stand in the text exactly once.
const ONCE: [&str; 6] = ["JobId=", "UserId=", "JobState=", "NodeList=", "NumNodes=", "JOB_GRES="];
const MOST_NODES: usize = 64 << 10;

impl Slurm {
    /// The GPUs of a running job on this node; empty for a job that holds none here. Loads all nodes at the
    /// controller: once, for a job that no Prolog registered. `display_id` keeps an array's other tasks and the
    /// other components out, for which the raw id of a leader would bring them all (measured on 22.05.8).
    pub fn gpus_of(&self, job: JobId, display_id: &str) -> Answer<Vec<GresIndex>> {
        match self.held_by(job, display_id)? {
            Held::Whole(indices) => Ok(indices),
            Held::Shares => {
                Err(misread(Program::Scontrol, format!("GPUs of job {job}: it holds shares of a GPU")))
            }
        }
    }

    /// Whether a running job holds shares of GPUs on this node (`gres/shard`, `gres/mps`): no Prolog can tell them
    /// from whole ones. The same question at the controller: only where GPUs are given out in shares at all.
    pub fn holds_shares(&self, job: JobId, display_id: &str) -> Answer<bool> {
        Ok(self.held_by(job, display_id)? == Held::Shares)
    }

    /// When Slurm last suspended or resumed it, Unix seconds; 0: never. Only scontrol's text says it before 23.02: a
    /// user who writes a line of that kind into a text of theirs spoils the answer.
    pub(super) fn suspended(&self, job: JobId, display_id: &str) -> Answer<i64> {
        let id = exact_id(Program::Scontrol, display_id)?;
        let text = self.commands.run(Program::Scontrol, &["--local", "show", "job", id])?;
        suspended_in(&text, job)
            .map_err(|why| misread(Program::Scontrol, format!("suspension of job {job}: {why}")))
    }

    fn held_by(&self, job: JobId, display_id: &str) -> Answer<Held> {
        let id = exact_id(Program::Scontrol, display_id)?;
        let text = self.commands.run(Program::Scontrol, &["--local", "-d", "show", "job", id])?;
        gpus_here(&text, job, self.node.as_str())
            .map_err(|why| misread(Program::Scontrol, format!("GPUs of job {job}: {why}")))
    }
}

/// What a job holds of this node's GPUs.
#[derive(Debug, PartialEq, Eq)]
enum Held {
    /// These, whole; none for a job that holds none here.
    Whole(Vec<GresIndex>),
    /// Shares of some.
    Shares,
}

fn suspended_in(text: &str, job: JobId) -> Result<i64, String> {
    let [id, time] = own_lines(text, ["JobId=", "SuspendTime="])?;
    if JobId::parse(id) != Some(job) {
        return Err(format!("the text is about job `{id}`"));
    }
    match time {
        "None" => Ok(0),
        time => time.parse().ok().filter(|s| *s > 0).ok_or_else(|| format!("SuspendTime={time}")),
    }
}

fn gpus_here(text: &str, job: JobId, node: &str) -> Result<Held, String> {
    let own = own_lines(text, ONCE)?;
    let [id, _, state, node_list, num_nodes, job_gres] = own;
    if JobId::parse(id) != Some(job) {
        return Err(format!("the text is about job `{id}`"));
    }
    // While it completes, the GPUs have been given back and GRES= is empty (measured on all three versions).
    if !["RUNNING", "SUSPENDED"].contains(&state) {
        return Err(format!("it is {state}"));
    }
    let mut nodes = hostlist::expand(node_list, MOST_NODES)?;
    if num_nodes.parse() != Ok(nodes.len()) {
        return Err(format!("NumNodes={num_nodes} beside NodeList={node_list}"));
    }
    let (mut total, mut named, mut here) = (0usize, Vec::new(), None);
    for line in text.lines().map(str::trim_start).filter(|line| line.starts_with("Nodes=")) {
        let (list, gres) = allocation(line).ok_or_else(|| format!("line `{line}`"))?;
        let (group, held) = (hostlist::expand(list, MOST_NODES)?, gres::gpus(gres)?);
        total += group.len() * held.count as usize;
        if group.iter().any(|name| name == node) {
            here = Some(held);
        }
        named.extend(group);
    }
    nodes.sort();
    named.sort();
    if nodes != named {
        return Err("its Nodes= lines are not the nodes of its NodeList".to_owned());
    }
    let promised = gres::gpus(job_gres)?;
    if promised.count as usize != total {
        return Err(format!("JOB_GRES={job_gres}, but its lines hold {total}"));
    }
    let here = here.ok_or_else(|| format!("it is not on `{node}`"))?;
    match here.indices {
        Some(_) if here.shares => Ok(Held::Shares),
        // Shares on another node of the job: what its lines hold here is no longer certain.
        Some(_) if promised.shares => Err("it holds shares of a GPU elsewhere".to_owned()),
        Some(indices) => Ok(Held::Whole(indices)),
        None => Err("its GPUs have no index".to_owned()),
    }
}

/// The first word of each of these lines, which must stand in the text exactly once.
fn own_lines<'a, const N: usize>(text: &'a str, once: [&str; N]) -> Result<[&'a str; N], String> {
    let mut found = [None; N];
    for line in text.lines().map(str::trim_start) {
        for (slot, key) in found.iter_mut().zip(once) {
            if let Some(rest) = line.strip_prefix(key) {
                let value = rest.split_whitespace().next().unwrap_or("");
                if slot.replace(value).is_some() {
                    return Err(format!("`{key}` is there twice"));
                }
            }
        }
    }
    let mut values = [""; N];
    for (value, (slot, key)) in values.iter_mut().zip(found.into_iter().zip(once)) {
        *value = slot.ok_or_else(|| format!("`{key}` is not there"))?;
    }
    Ok(values)
}

/// `Nodes=node[1-2] CPU_IDs=15 Mem=0 GRES=gpu:h100:2(IDX:0-1)`: the nodes and what each of them gives.
fn allocation(line: &str) -> Option<(&str, &str)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [nodes, cpus, memory, gres] = words[..] else {
        return None;
    };
    let rest_ok = cpus.starts_with("CPU_IDs=") && memory.starts_with("Mem=");
    rest_ok.then_some((nodes.strip_prefix("Nodes=")?, gres.strip_prefix("GRES=")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(version: &str, name: &str) -> String {
        let path = format!("{}/fixtures/slurm/{version}/show-job-d.{name}.out", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    }

    fn held(text: &str, job: u64, node: &str) -> Result<Vec<u32>, String> {
        match gpus_here(text, JobId::new(job).unwrap(), node)? {
            Held::Whole(set) => Ok(set.iter().map(|i| i.0).collect()),
            Held::Shares => Err("shares".to_owned()),
        }
    }

    #[test]
    fn a_share_of_a_gpu_is_told_from_a_whole_one() {
        // dsx-ai-factory/fleet-intelligence-agent#258 (SH-02). The form is slurm's gres_ctld.c, 23.11 on.
        let text = recorded("26.05.5", "uneven")
            .replace("JOB_GRES=gpu:h100:3", "JOB_GRES=shard:h100:3")
            .replace("GRES=gpu:h100:2(IDX:0-1)", "GRES=shard:h100:2(2/4,0/4)")
            .replace("GRES=gpu:h100:1(IDX:0)", "GRES=shard:h100:1(1/4)");
        let job = JobId::new(8).unwrap();
        assert_eq!(gpus_here(&text, job, "node2"), Ok(Held::Shares), "{text}");
    }

    #[test]
    fn every_version_says_which_gpus_a_job_holds_here() {
        for version in ["22.05.8", "24.11.5", "26.05.5"] {
            let uneven = recorded(version, "uneven");
            assert_eq!(held(&uneven, 8, "node1"), Ok(vec![0, 1]), "{version}");
            assert_eq!(held(&uneven, 8, "node2"), Ok(vec![0]), "{version}");
            assert!(held(&uneven, 8, "node3").is_err(), "{version}: not its node");
            assert!(held(&uneven, 9, "node1").is_err(), "{version}: not this job");
            assert_eq!(
                held(&recorded(version, "shared-E"), 6, "node1"),
                Ok(vec![1, 3]),
                "{version}: IDX:1,3"
            );
            assert_eq!(held(&recorded(version, "shared-N"), 5, "node1"), Ok(vec![]), "{version}: no GPU");
            assert!(held(&recorded(version, "completing"), 1, "node1").is_err(), "{version}: given back");
            assert!(held(&recorded(version, "array"), 9, "node1").is_err(), "{version}: two tasks");
        }
    }

    #[test]
    fn lines_that_a_user_wrote_spoil_the_answer_and_never_change_it() {
        // skypilot-org/skypilot#10839 (SP-12), eth-cscs/firecrest-v2#148 (SP-01): a job name is any text,
        // newlines included (measured on 22.05.8).
        let named =
            |name: &str| recorded("22.05.8", "uneven").replace("JobName=uneven", &format!("JobName={name}"));
        for harmless in ["a=b JobState=FAILED GRES=gpu:9(IDX:9)", "a|b", "a\nb", "a\n   Comment=JobId=5"] {
            assert_eq!(held(&named(harmless), 8, "node2"), Ok(vec![0]), "{harmless:?}");
        }
        for forged in [
            "x\n   JobState=RUNNING Reason=None",
            "x\n     Nodes=node2 CPU_IDs=1 Mem=0 GRES=gpu:h100:1(IDX:3)",
            "x\n     Nodes=node3 CPU_IDs=1 Mem=0 GRES=gpu:h100:1(IDX:3)",
            "x\n     Nodes=node2",
            "x\n   JOB_GRES=gpu:h100:1",
            "x\nNodeList=node2",
            "x\n\nJobId=77 JobName=y",
        ] {
            assert!(held(&named(forged), 8, "node2").is_err(), "{forged:?}");
        }
    }

    #[test]
    fn lines_that_contradict_each_other_are_not_understood() {
        let text = recorded("26.05.5", "uneven");
        for (was, is) in [
            ("GRES=gpu:h100:1(IDX:0)", "GRES=gpu:h100:2(IDX:0)"),
            ("GRES=gpu:h100:1(IDX:0)", "GRES=gpu:h100:2(IDX:0-1)"),
            ("GRES=gpu:h100:1(IDX:0)", "GRES=gpu:h100:1"),
            ("GRES=gpu:h100:1(IDX:0)", "GRES="),
            ("JOB_GRES=gpu:h100:3", "JOB_GRES=(null)"),
            ("JOB_GRES=gpu:h100:3", "JOB_GRES=gpu:h100:3,shard:1"),
            ("NumNodes=2", "NumNodes=3"),
            ("   NodeList=node[1-2]", "   NodeList=node[1-3]"),
            ("   NodeList=node[1-2]", "   NodeList=(null)"),
            ("   JobState=RUNNING", "   JobState=PENDING"),
            ("   JobState=RUNNING", "   Jobstate=RUNNING"),
        ] {
            assert!(text.contains(was), "{was}");
            assert!(held(&text.replace(was, is), 8, "node2").is_err(), "{is}");
        }
    }

    #[test]
    fn a_suspension_is_told_by_slurms_own_line_alone() {
        // skypilot-org/skypilot#10839 (SP-12): measured on 22.05.8 with such lines in a job's name and comment.
        let read = |name: &str| {
            let path = format!("{}/fixtures/slurm/22.05.8/show-job.{name}.out", env!("CARGO_MANIFEST_DIR"));
            String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned()
        };
        let at = |text: &str, job: u64| suspended_in(text, JobId::new(job).unwrap());
        assert_eq!(at(&read("plain"), 3), Ok(0));
        assert_eq!(at(&read("suspended"), 3), Ok(1_795_985_772));
        assert!(at(&read("odd-suspended"), 1).is_err(), "the user's line and Slurm's");
        assert!(at(&read("plain"), 4).is_err(), "another job");
        assert!(at(&read("array"), 2).is_err(), "two tasks");
        for bad in ["", "SuspendTime=x", "SuspendTime=2026-11-29T13:25:38", "SuspendTime=-5", "Suspendtime=5"]
        {
            assert!(at(&read("plain").replace("SuspendTime=None", bad), 3).is_err(), "{bad}");
        }
    }
}

//! How many of the cluster's nodes may carry our drains at once. Every node counts for itself, in its own slot; what
//! nodes that came at the same instant took too much is withdrawn by those that came last, by slurmctld's clock, and
//! of one second by those whose names sort last. By name alone a late one would stay in place of one that counted
//! again long before and never will any more.

use super::reason::{self, PREFIX, RunKey, Stand};
use crate::model::NodeRow;
use crate::units::NodeName;

/// The limit as the configuration gives it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cap {
    /// Share of the cluster's GPU nodes, 0 to 1.
    pub fraction: f64,
    /// The same as a number; `None`: the share alone.
    pub most: Option<u32>,
}

/// What one look at all nodes shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Census {
    /// Nodes with GPUs.
    pub gpu_nodes: u32,
    /// Nodes that carry a drain of ours for another job run, or for a fault.
    pub others: u32,
    /// Of those, the ones that were drained before this node was.
    pub others_before: u32,
}

impl Census {
    /// Counts, for a job run, or for a fault of the node `me` (`None`). Drains for the same job run do not count against
    /// each other.
    pub fn of(nodes: &[NodeRow], me: &NodeName, key: Option<RunKey>) -> Census {
        let is_others = |row: &&NodeRow| {
            let ours = row.status.reason.as_deref().filter(|r| row.status.drained() && r.starts_with(PREFIX));
            row.name != *me
                && ours.is_some_and(|text| {
                    reason::read(text).map(|it| it.key).is_none_or(|its| Some(its) != key)
                })
        };
        let others: Vec<&NodeRow> = nodes.iter().filter(is_others).collect();
        let mine = nodes.iter().find(|row| row.name == *me).and_then(Census::place);
        // Whose place is not known came before, and all of them did where this node's own is not: it withdraws.
        let is_before = |row: &&&NodeRow| match (Census::place(row), mine) {
            (Some(theirs), Some(mine)) => theirs < mine,
            _ => true,
        };
        Census {
            gpu_nodes: nodes.iter().filter(|row| row.gpus).count() as u32,
            others: others.len() as u32,
            others_before: others.iter().filter(is_before).count() as u32,
        }
    }

    /// When a node was drained, and its name. A vote has a new time and an old drain: one of an earlier hour, that
    /// comes before all.
    fn place(row: &NodeRow) -> Option<(i64, &str)> {
        let ours = row.status.reason.as_deref().and_then(reason::read);
        match ours.map(|ours| ours.stand) {
            Some(Stand::Vote(_)) => Some((i64::MIN, row.name.as_str())),
            _ => row.reason_unix_s.map(|at| (at, row.name.as_str())),
        }
    }
}

impl Cap {
    /// The number of nodes, in a cluster with so many GPU nodes.
    pub fn nodes(&self, gpu_nodes: u32) -> u32 {
        let share = ((f64::from(gpu_nodes) * self.fraction) as u32).max(1);
        self.most.map_or(share, |most| share.min(most))
    }

    /// Whether `job_nodes` nodes more may be drained for one job run.
    ///
    /// Errors: the words for `withheld`, with the limit.
    pub fn room(&self, census: Census, job_nodes: u32) -> Result<(), String> {
        let cap = self.nodes(census.gpu_nodes);
        let limit = format!("the limit is {cap} of {} GPU nodes (`limits`)", census.gpu_nodes);
        if job_nodes > cap {
            return Err(format!("the job runs on {job_nodes} nodes; {limit}"));
        }
        match census.others + job_nodes <= cap {
            true => Ok(()),
            false => Err(format!("{} nodes are drained by us already; {limit}", census.others)),
        }
    }

    /// Whether a job on `job_nodes` drained nodes may be cancelled: not while the cap is full, and not of this job
    /// alone. So many findings at once are hardly the jobs' doing, and each cancel would make room for the next drain,
    /// until no job of the cluster is left.
    ///
    /// Errors: the words for `withheld`, with the limit.
    pub fn not_full_of_others(&self, census: Census, job_nodes: u32) -> Result<(), String> {
        let (cap, others) = (self.nodes(census.gpu_nodes), census.others);
        if others == 0 || others + job_nodes < cap {
            return Ok(());
        }
        Err(format!(
            "{others} nodes more are drained by us, and with them the limit of {cap} of {} GPU nodes is full (`limits`): \
             so much at once is hardly the jobs' doing",
            census.gpu_nodes
        ))
    }

    /// Whether this node, drained for a job run on `job_nodes` nodes, is one too many: the cap is overshot and it came
    /// past it.
    pub fn overshot(&self, census: Census, job_nodes: u32) -> bool {
        let cap = self.nodes(census.gpu_nodes);
        census.others + job_nodes > cap && census.others_before + job_nodes > cap
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::reason::{Stand, waste};
    use super::*;
    use crate::model::{JobId, NodeBase, NodeStatus};
    use crate::policy::Signature;
    use crate::units::WallMs;

    pub(crate) fn key(job: u64) -> RunKey {
        RunKey { job: JobId::new(job).unwrap(), start_unix_s: 1_764_422_738, restart: 0 }
    }

    pub(crate) fn row(name: &str, reason: Option<&str>) -> NodeRow {
        let flags = reason.map(|_| "drain".to_owned()).into_iter().collect();
        let status = NodeStatus { base: NodeBase::Allocated, flags, reason: reason.map(str::to_owned) };
        let reason_unix_s = reason.map(|_| 1_764_430_000);
        NodeRow { name: NodeName::new(name).unwrap(), status, gpus: true, reason_unix_s }
    }

    fn ours(job: u64) -> String {
        waste(key(job), Signature::Hung, Stand::Drain, WallMs(0))
    }

    #[test]
    fn what_counts_is_a_drain_of_ours_for_another_job_run() {
        let (one, two) = (ours(1), ours(2));
        let mut rows = vec![
            row("n1", Some(&one)),
            row("n2", Some(&two)),
            row("n4", Some("gpu-reaper: fault=ecc since=x")),
            row("n5", Some("DIMM replaced tomorrow")),
            row("n6", None),
        ];
        // 24.11 keeps the Reason of a node that is drained no more.
        rows.push(NodeRow {
            status: NodeStatus { flags: vec![], ..rows[1].status.clone() },
            ..row("n7", None)
        });
        let census = |me: &str, job: u64| Census::of(&rows, &NodeName::new(me).unwrap(), Some(key(job)));
        // `n3` is not drained: all came before.
        assert_eq!(census("n3", 1), Census { gpu_nodes: 6, others: 2, others_before: 2 });
        assert_eq!(census("n3", 9), Census { gpu_nodes: 6, others: 3, others_before: 3 });
        assert_eq!(census("n2", 2), Census { gpu_nodes: 6, others: 2, others_before: 1 });
    }

    #[test]
    fn of_two_drains_the_later_one_is_too_many_whatever_its_name() {
        let drained_at = |name: &str, job: u64, stand: Stand, at: Option<i64>| {
            let text = waste(key(job), Signature::Hung, stand, WallMs(0));
            NodeRow { reason_unix_s: at, ..row(name, Some(&text)) }
        };
        let table = [
            // The other node's time and what it stands for, this node's time, and whether the other came before.
            (Some(100), Stand::Drain, Some(160), 1),
            (Some(160), Stand::Drain, Some(100), 0),
            (Some(160), Stand::Vote(0), Some(100), 1),
            (None, Stand::Drain, Some(100), 1),
            (Some(160), Stand::Drain, None, 1),
        ];
        for (theirs, stand, mine, before) in table {
            for (me, other) in [("n1", "n2"), ("n2", "n1")] {
                let rows = [drained_at(other, 2, stand, theirs), drained_at(me, 1, Stand::Drain, mine)];
                let census = Census::of(&rows, &NodeName::new(me).unwrap(), Some(key(1)));
                assert_eq!((census.others, census.others_before), (1, before), "{me} {theirs:?} {mine:?}");
            }
        }
    }

    #[test]
    fn a_cap_is_a_share_of_at_least_one_and_never_more_than_the_number() {
        let cap = |fraction, most| Cap { fraction, most };
        let table = [
            (4, 0.1, None, 1),
            (100, 0.1, None, 10),
            (100, 0.1, Some(3), 3),
            (100, 0.1, Some(0), 0),
            (0, 1.0, None, 1),
        ];
        for (nodes, fraction, most, want) in table {
            assert_eq!(cap(fraction, most).nodes(nodes), want, "{nodes} {fraction} {most:?}");
        }
    }

    #[test]
    fn a_job_on_more_nodes_than_the_cap_is_told_the_limit() {
        let cap = Cap { fraction: 0.1, most: None };
        let census = |others, before| Census { gpu_nodes: 40, others, others_before: before };
        assert_eq!(cap.room(census(0, 0), 4), Ok(()));
        assert_eq!(cap.room(census(3, 0), 1), Ok(()));
        assert!(cap.room(census(4, 0), 1).unwrap_err().contains("4 nodes are drained by us already"));
        assert!(
            cap.room(census(0, 0), 5).unwrap_err().contains("the job runs on 5 nodes; the limit is 4 of 40")
        );
    }

    #[test]
    fn nothing_is_cancelled_while_other_jobs_fill_the_cap() {
        let census = |others| Census { gpu_nodes: 40, others, others_before: 0 };
        // (share, others, nodes of this job, may be cancelled): 4 of 40 nodes, or 1 of them.
        let table = [
            (0.1, 0, 1, true),
            (0.1, 0, 4, true),
            (0.1, 2, 1, true),
            (0.1, 3, 1, false),
            (0.1, 1, 3, false),
            (0.02, 0, 1, true),
        ];
        for (fraction, others, job_nodes, may) in table {
            let cap = Cap { fraction, most: None };
            let said = cap.not_full_of_others(census(others), job_nodes);
            assert_eq!(said.is_ok(), may, "{fraction} {others} {job_nodes}: {said:?}");
        }
    }

    #[test]
    fn of_nodes_that_overshot_together_exactly_the_cap_stays() {
        let cap = Cap { fraction: 0.1, most: None };
        for (nodes, all) in [(40u32, 4u32), (40, 9), (40, 40), (10, 3), (1000, 1000)] {
            let stays = |nth: &u32| {
                let census = Census { gpu_nodes: nodes, others: all - 1, others_before: *nth };
                !cap.overshot(census, 1)
            };
            assert_eq!((0..all).filter(stays).count() as u32, cap.nodes(nodes).min(all), "{all} of {nodes}");
        }
    }
}

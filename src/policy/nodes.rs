//! A job on several nodes. A node sees only its own GPUs, so none drains alone and none alone cancels. A node's vote is
//! its own drain with our reason for that very job run, where slurmctld shows it: the first node drains first, the
//! others follow it, and the first one alone cancels, once every node has voted.

use super::reason::{self, RunKey, Stand};
use crate::model::NodeRow;
use crate::units::{NodeName, human_ms};

/// A vote is none any more after so long, by slurmctld's own time of the reason.
pub const VOTE_HOLDS_S: i64 = 15 * 60;
/// A vote is written anew after so long.
pub const REFRESH_MS: i64 = 10 * 60_000;
/// Clocks of node and controller may differ by so much before it is a doubt.
pub const SKEW_S: i64 = 60;

/// The nodes of one job, in Slurm's order, and which of them this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    names: Vec<NodeName>,
    me: usize,
}

impl Nodes {
    /// Errors: this node is not among them.
    pub fn new(names: Vec<NodeName>, me: &NodeName) -> Result<Nodes, String> {
        match names.iter().position(|name| name == me) {
            Some(me) => Ok(Nodes { names, me }),
            None => Err(format!("Slurm does not name `{me}` among the job's nodes")),
        }
    }

    /// A job on this node alone.
    pub fn alone(me: &NodeName) -> Nodes {
        Nodes { names: vec![me.clone()], me: 0 }
    }

    /// How many.
    pub fn count(&self) -> u32 {
        self.names.len() as u32
    }

    /// More than one.
    pub fn are_several(&self) -> bool {
        self.names.len() > 1
    }

    /// Whether this is the node that drains first, counts and cancels.
    pub fn is_first(&self) -> bool {
        self.me == 0
    }

    /// The first node.
    pub fn first(&self) -> &NodeName {
        &self.names[0]
    }

    /// All of them.
    pub fn names(&self) -> &[NodeName] {
        &self.names
    }
}

/// Proof that every node of a job agrees, read from slurmctld. Only [`count`] makes it.
///
/// ```compile_fail,E0423
/// let forged = gpu_reaper_hc::policy::nodes::Votes(2);
/// ```
#[derive(Debug)]
pub struct Votes(u32);

impl Votes {
    /// Of how many nodes.
    pub fn nodes(&self) -> u32 {
        self.0
    }
}

fn of<'a>(rows: &'a [NodeRow], name: &NodeName) -> Result<&'a NodeRow, String> {
    rows.iter().find(|row| row.name == *name).ok_or_else(|| format!("Slurm does not show node `{name}`"))
}

/// What a node says of this run by its drain.
fn stands(row: &NodeRow, key: RunKey) -> Result<Stand, String> {
    let name = &row.name;
    if !row.status.drained() {
        return Err(format!("node `{name}` is not drained"));
    }
    let ours = row.status.reason.as_deref().and_then(reason::read);
    match ours {
        Some(ours) if ours.key == key => Ok(ours.stand),
        Some(_) => Err(format!("node `{name}` is drained for another job run")),
        None => Err(format!("node `{name}` is drained by somebody else")),
    }
}

/// Whether this node may drain after the first one: that one's reason names this very run.
///
/// Errors: the words for `withheld`.
pub fn follow(rows: &[NodeRow], nodes: &Nodes, key: RunKey) -> Result<(), String> {
    if nodes.is_first() {
        return Ok(());
    }
    let first = of(rows, nodes.first())?;
    match stands(first, key) {
        Ok(Stand::Drain | Stand::Vote(_)) => Ok(()),
        Err(why) => Err(format!("the job's first node has not drained for it: {why}")),
    }
}

/// Counts the votes. A node that is down, silent, drained by somebody else, or in any state but plainly IDLE, MIXED or
/// ALLOCATED beside its drain has not voted, and an old vote is none. Of a job on one node its drain is the vote.
/// `since_own_s`: for how long this node's own vote stands, by no clock that steps; how old the others are beside it,
/// slurmctld's times of all the reasons say, so that no clock of a node makes an old vote young.
///
/// Errors: the words for `withheld`, with the first node that is missing.
pub fn count(rows: &[NodeRow], nodes: &Nodes, key: RunKey, since_own_s: i64) -> Result<Votes, String> {
    if !nodes.is_first() {
        return Err("only the job's first node counts the votes".to_owned());
    }
    let own_unix_s = of(rows, nodes.first())?.reason_unix_s;
    let now_unix_s = own_unix_s.map(|at| at + since_own_s);
    for name in nodes.names() {
        let row = of(rows, name)?;
        let stand = stands(row, key)?;
        if !row.status.plain() {
            return Err(format!("node `{name}` is {}", row.status));
        }
        if nodes.are_several() {
            let now_unix_s = now_unix_s.ok_or("when this node voted is not known")?;
            voted(row, stand, now_unix_s)?;
        }
    }
    Ok(Votes(nodes.count()))
}

fn voted(row: &NodeRow, stand: Stand, now_unix_s: i64) -> Result<(), String> {
    let name = &row.name;
    let Stand::Vote(_) = stand else { return Err(format!("node `{name}` has not voted yet")) };
    let at = row.reason_unix_s.ok_or_else(|| format!("when node `{name}` voted is not known"))?;
    match now_unix_s - at {
        age if age < -SKEW_S => Err(format!("node `{name}` voted in the future: slurmctld's clock was set")),
        age if age > VOTE_HOLDS_S => {
            Err(format!("the vote of node `{name}` is {} old", human_ms(age * 1000)))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::cap::tests::{key, row};
    use super::*;
    use crate::policy::Signature;
    use crate::policy::reason::waste;
    use crate::units::WallMs;

    const NOW: i64 = 1_764_430_000;

    fn name(text: &str) -> NodeName {
        NodeName::new(text).unwrap()
    }

    fn three(me: &str) -> Nodes {
        Nodes::new(["n1", "n2", "n3"].map(name).to_vec(), &name(me)).unwrap()
    }

    fn reason(job: u64, stand: Stand) -> String {
        waste(key(job), Signature::Hung, stand, WallMs(0))
    }

    /// Every node as it should be for a cancel.
    fn agreed() -> Vec<NodeRow> {
        ["n1", "n2", "n3"].map(|n| row(n, Some(&reason(1, Stand::Vote(0))))).to_vec()
    }

    #[test]
    fn a_cancel_needs_a_vote_of_every_node_for_this_very_run() {
        let count = |rows: &[NodeRow], me: &str| count(rows, &three(me), key(1), 5).map(|v| v.nodes());
        assert_eq!(count(&agreed(), "n1"), Ok(3));
        assert!(count(&agreed(), "n2").is_err(), "the first node alone counts");
        let (drain, other) = (reason(1, Stand::Drain), reason(2, Stand::Vote(0)));
        let doubts = [
            row("n2", None),
            row("n2", Some(&drain)),
            row("n2", Some(&other)),
            row("n2", Some("DIMM replaced tomorrow")),
            row("n4", Some(&reason(1, Stand::Vote(0)))),
        ];
        for doubt in doubts {
            let mut rows = agreed();
            rows[1] = doubt;
            assert!(count(&rows, "n1").is_err(), "{:?}", rows[1]);
        }
        for flag in ["not_responding", "completing", "maintenance", "reboot_requested", "powering_down"] {
            let mut rows = agreed();
            rows[2].status.flags.push(flag.to_owned());
            assert!(count(&rows, "n1").is_err(), "{flag}");
        }
    }

    #[test]
    fn a_vote_gone_stale_or_from_the_future_is_none() {
        for (age_s, want) in [(0, true), (15 * 60, true), (15 * 60 + 1, false), (-60, true), (-61, false)] {
            // This node voted 200 s ago, by its boot clock; whatever its wall clock says.
            let mut rows = agreed();
            rows[0].reason_unix_s = Some(NOW - 200);
            rows[1].reason_unix_s = Some(NOW - age_s);
            rows[2].reason_unix_s = Some(NOW - 100);
            assert_eq!(count(&rows, &three("n1"), key(1), 200).is_ok(), want, "{age_s}");
        }
        for of in [0, 1] {
            let mut rows = agreed();
            rows[of].reason_unix_s = None;
            assert!(count(&rows, &three("n1"), key(1), 0).is_err());
        }
    }

    #[test]
    fn the_others_follow_only_where_the_first_node_drained_for_this_run() {
        let follow = |first: Option<&str>, me: &str| follow(&[row("n1", first)], &three(me), key(1));
        assert_eq!(follow(None, "n1"), Ok(()), "nobody goes before the first");
        assert!(follow(None, "n2").is_err());
        assert_eq!(follow(Some(&reason(1, Stand::Drain)), "n2"), Ok(()));
        assert_eq!(follow(Some(&reason(1, Stand::Vote(2))), "n3"), Ok(()));
        assert!(follow(Some(&reason(2, Stand::Drain)), "n2").is_err());
        assert!(follow(Some("ada: broken"), "n2").is_err());
    }

    #[test]
    fn on_one_node_its_drain_is_the_vote() {
        let alone = Nodes::alone(&name("n1"));
        let drained = [row("n1", Some(&reason(1, Stand::Drain)))];
        assert_eq!(count(&drained, &alone, key(1), 86_400).map(|v| v.nodes()), Ok(1));
        assert!(count(&[row("n1", None)], &alone, key(1), 0).is_err());
        assert!(Nodes::new(vec![name("n2")], &name("n1")).is_err());
    }
}

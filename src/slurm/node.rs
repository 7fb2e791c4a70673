//! Nodes' states and Reasons, from sinfo: the base state and every flag in words. A Reason is anybody's text: it is
//! compared and shown, and cannot change the state that stands before it. A row that does not fit is never skipped:
//! it could be one of our drains.

use super::command::Program;
use super::{Answer, NoAnswer, Slurm, gres, hostlist, misread};
use crate::model::{NodeBase, NodeRow, NodeStatus};
use crate::units::NodeName;
use std::collections::BTreeMap;

/// Full length, separator behind the state, Reason last. One REQUEST_NODE_INFO_SINGLE at the controller.
const FIELDS: &str = "StateComplete:|,Reason:";

impl Slurm {
    /// This node's state now.
    pub fn node(&self) -> Answer<NodeStatus> {
        if let Some(rest) = &self.rest {
            let row = rest.node(&self.node).map_err(|silence| self.known_node(silence))?;
            return Ok(row.status);
        }
        let args = ["-h", "-a", "--local", "-N", "-n", self.node.as_str(), "-O", FIELDS];
        let text = self.commands.run(Program::Sinfo, &args).map_err(|silence| self.known_node(silence))?;
        // sinfo prints nothing for a node that Slurm does not know, with exit status 0 (measured on 22.05.8).
        if text.trim().is_empty() {
            return Err(NoAnswer::UnknownNode(self.node.clone()));
        }
        parse(&text).map_err(|why| misread(Program::Sinfo, why))
    }
}

/// Nodes that say the same share one row, so that 10,000 nodes are a few rows (0.1 s on 22.05.8, with `-N` 1.1 s). A
/// Reason may hold newlines and separators: it stands last, before a character that no text holds, so that one odd
/// Reason somewhere in the cluster spoils nothing and adds no row.
const GROUPS: &str = "NodeList:|,StateComplete:|,Gres:|,Timestamp:|,Reason:\u{1e}";
const END_OF_ROW: &str = "\u{1e}\n";
/// No cluster has more.
const MOST_NODES: usize = 64 << 10;

impl Slurm {
    /// Every node of the cluster, this one among them: a list that lacks it is another cluster's, or none.
    pub fn survey(&self) -> Answer<Vec<NodeRow>> {
        let nodes = self.all_nodes()?;
        match nodes.iter().any(|row| row.name == self.node) {
            true => Ok(nodes),
            false => Err(NoAnswer::UnknownNode(self.node.clone())),
        }
    }

    fn all_nodes(&self) -> Answer<Vec<NodeRow>> {
        if let Some(rest) = &self.rest {
            return rest.survey();
        }
        let text =
            self.commands.run_for_a_long_list(Program::Sinfo, &["-h", "-a", "--local", "-O", GROUPS])?;
        parse_groups(&text).map_err(|why| misread(Program::Sinfo, why))
    }
}

/// Sorted by name. A node in three partitions may be there three times, with the same said of it.
fn parse_groups(text: &str) -> Result<Vec<NodeRow>, String> {
    // Silence with exit status 0: an empty cluster would have room for every drain.
    if text.is_empty() {
        return Err("no node at all".to_owned());
    }
    let mut nodes: BTreeMap<NodeName, NodeRow> = BTreeMap::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (group, after) = rest.split_once(END_OF_ROW).ok_or_else(|| format!("row `{rest}` has no end"))?;
        rest = after;
        for row in parse_group(group)? {
            let known = nodes.entry(row.name.clone()).or_insert_with(|| row.clone());
            if *known != row {
                return Err(format!("two different rows of `{}`", row.name));
            }
        }
    }
    Ok(nodes.into_values().collect())
}

fn parse_group(group: &str) -> Result<Vec<NodeRow>, String> {
    let bad = |what: &str| format!("{what} of row `{}`", group.escape_debug());
    let fields: Vec<&str> = group.splitn(5, '|').collect();
    let [list, state, gres, time, reason] = fields[..] else { return Err(bad("the fields")) };
    let (base, flags) = parse_state(state).ok_or_else(|| bad("the state"))?;
    let reason = said(reason);
    let time = match time {
        "Unknown" | "None" | "N/A" => None,
        text => Some(text.parse::<i64>().ok().filter(|s| *s > 0).ok_or_else(|| bad("the time"))?),
    };
    let reason_unix_s = time.filter(|_| reason.is_some());
    let status = NodeStatus { base, flags, reason };
    let gpus = gres::names_gpus(gres);
    let row = |name: String| {
        let name = NodeName::new(&name)?;
        Ok(NodeRow { name, status: status.clone(), gpus, reason_unix_s })
    };
    hostlist::expand(list, MOST_NODES)?.into_iter().map(row).collect()
}

/// `none` where there is no Reason.
fn said(reason: &str) -> Option<String> {
    Some(reason).filter(|r| !["", "none"].contains(r)).map(str::to_owned)
}

/// One line, or the same line for each partition that holds the node.
fn parse(text: &str) -> Result<NodeStatus, String> {
    let mut lines = text.lines();
    let line = lines.next().unwrap_or("");
    if let Some(other) = lines.find(|other| *other != line) {
        return Err(format!("two different lines, `{line}` and `{other}`"));
    }
    let (state, reason) = line.split_once('|').ok_or_else(|| format!("line `{line}`"))?;
    let (base, flags) = parse_state(state).ok_or_else(|| format!("state `{state}`"))?;
    Ok(NodeStatus { base, flags, reason: said(reason) })
}

/// `allocated+drain`; also the short forms with a suffix (`IDLE~`, `ALLOC#`), whose signs are flags
/// (sinfo(1), "NODE STATE CODES").
fn parse_state(text: &str) -> Option<(NodeBase, Vec<String>)> {
    let lower = text.to_ascii_lowercase();
    let sign = match lower.chars().last()? {
        '*' => Some("not_responding"),
        '~' => Some("powered_off"),
        '#' => Some("powering_up"),
        '!' => Some("power_off_pending"),
        '%' => Some("powering_off"),
        '$' => Some("maintenance"),
        '@' => Some("reboot_requested"),
        '^' => Some("reboot_issued"),
        '-' => Some("planned"),
        _ => None,
    };
    let words = if sign.is_some() { &lower[..lower.len() - 1] } else { &lower[..] };
    let mut words = words.split('+');
    let base = match words.next()? {
        "idle" => NodeBase::Idle,
        "mixed" | "mix" => NodeBase::Mixed,
        "allocated" | "alloc" => NodeBase::Allocated,
        other => NodeBase::Other(other.to_owned()),
    };
    let mut flags: Vec<String> = words.map(str::to_owned).collect();
    flags.extend(sign.map(str::to_owned));
    let base_ok = match &base {
        NodeBase::Other(word) => is_word(word),
        _ => true,
    };
    (base_ok && flags.iter().all(|f| is_word(f))).then_some((base, flags))
}

/// From the words of JSON: a base among the flags, whichever comes first (`IDLE`, `DRAIN`).
pub(super) fn status_of_words(words: &[&str], reason: Option<String>) -> Option<NodeStatus> {
    const BASES: [&str; 8] = ["idle", "mixed", "allocated", "down", "unknown", "error", "future", "invalid"];
    let mut words: Vec<String> = words.iter().map(|word| word.to_ascii_lowercase()).collect();
    // With no base that is known the first word stands for it and stays among the flags: it may be one of them.
    let at = words.iter().position(|word| BASES.contains(&word.as_str()));
    let base = match at {
        Some(at) => words.remove(at),
        None => words.first()?.clone(),
    };
    let (base, _) = parse_state(&base)?;
    let all_words = words.iter().all(|word| is_word(word));
    all_words.then_some(NodeStatus { base, flags: words, reason })
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(text: &str) -> NodeStatus {
        parse(&format!("{text}|none\n")).unwrap()
    }

    #[test]
    fn a_state_is_a_base_and_flags_and_only_a_plain_one_is_acted_on() {
        // mej/nhc#82, #36, clustershell#362 (ND-08).
        let table = [
            ("idle", true, false),
            ("mixed", true, false),
            ("allocated", true, false),
            ("allocated+drain", true, true),
            ("MIXED+PLANNED", true, false),
            ("IDLE~", false, false),
            ("ALLOC#", false, false),
            ("idle+drain+reboot_requested", false, true),
            ("reserved", false, false),
            ("down*", false, false),
            ("drng@", false, false),
            ("allocated+not_responding", false, false),
            ("mixed+completing", false, false),
            ("idle+maintenance+reserved", false, false),
            ("idle+drain+invalid_reg", false, true),
            ("idle+powering_down", false, false),
            ("unknown", false, false),
            ("idle+a_word_of_2030", false, false),
        ];
        for (text, plain, drained) in table {
            let status = state(text);
            assert_eq!((status.plain(), status.drained()), (plain, drained), "{text}: {status:?}");
        }
    }

    #[test]
    fn text_in_a_reason_changes_no_state() {
        // aws/aws-parallelcluster-node#639, skypilot-org/skypilot#10839 (SP-12).
        let status =
            parse("mixed+drain|maint ticket=42 State=IDLE because x | idle|none [root@...]\n").unwrap();
        assert_eq!(status.base, NodeBase::Mixed);
        assert_eq!(
            status.reason.as_deref(),
            Some("maint ticket=42 State=IDLE because x | idle|none [root@...]")
        );
    }

    #[test]
    fn one_node_in_three_partitions_is_one_answer_and_two_answers_are_none() {
        let line = "allocated+drain|gpu-reaper: job=1\n";
        assert_eq!(parse(&line.repeat(3)), parse(line));
        assert!(parse("idle|none\nidle|x\n").is_err());
        assert!(parse("idle+drain|first\nidle|none\n").is_err(), "a Reason with a newline in it");
        for text in ["|none\n", "idle\n", "idle+|x\n", "+drain|x\n", "id le|x\n"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_node_without_a_reason_has_none() {
        assert_eq!(parse("idle|none\n").unwrap().reason, None);
        assert_eq!(parse("idle|\n").unwrap().reason, None);
        assert_eq!(parse("idle|x").unwrap().reason.as_deref(), Some("x"));
    }

    #[test]
    fn one_odd_reason_in_the_cluster_neither_stops_a_survey_nor_adds_a_node() {
        // aws/aws-parallelcluster-node#639 (ND-10): recorded with a Reason of two lines, the second a forged row.
        for version in ["22.05.8", "24.11.5", "26.05.5"] {
            let name = "sinfo-groups.odd-reason.out";
            let path = format!("{}/fixtures/slurm/{version}/{name}", env!("CARGO_MANIFEST_DIR"));
            let rows = parse_groups(&std::fs::read_to_string(path).unwrap()).unwrap();
            let reasons: Vec<_> = rows.iter().map(|row| row.status.reason.as_deref()).collect();
            let ours = "gpu-reaper: job=1 run=1.0 sig=hung st=drain since=2026-11-29T13:25:38Z";
            let odd = "odd a|b\nnode3|idle+drain|gpu:h100:4|1|gpu-reaper: job=9 forged";
            assert_eq!(reasons, [Some(ours), Some(odd), None], "{version}");
            assert!(rows.iter().all(|row| row.gpus), "{version}");
            assert!(
                rows[0].reason_unix_s > Some(1_795_980_000) && rows[2].reason_unix_s.is_none(),
                "{version}"
            );
            assert!(rows[1].status.drained() && !rows[2].status.drained(), "{version}");
        }
    }

    #[test]
    fn a_group_is_written_out_and_a_node_in_three_partitions_is_one() {
        // Azure/cyclecloud-slurm#127 (SP-06), SckyzO/slurm_exporter#35 (SP-07): full lists, `(null)` is no GPU.
        let text =
            "n[001-150],x9|mixed|gpu:a100:4(S:0-1)|Unknown|none\u{1e}\nc1|down*|(null)|Unknown|\u{1e}\n";
        let rows = parse_groups(text).unwrap();
        assert_eq!(rows.len(), 152);
        assert_eq!(rows.iter().filter(|row| row.gpus).count(), 151);
        assert!(!rows[0].gpus && !rows[0].status.plain() && rows[0].name.as_str() == "c1");
        assert_eq!(parse_groups(&text.repeat(3)), Ok(rows));
        assert!(parse_groups("").is_err(), "no cluster has no node");
    }

    #[test]
    fn a_row_that_does_not_fit_spoils_the_survey_and_is_never_skipped() {
        let good = "n1|idle+drain|gpu:4|1795985775|gpu-reaper: job=1\u{1e}\n";
        assert!(parse_groups(good).is_ok());
        for bad in [
            "n2|idle|gpu:4|Unknown\u{1e}\n",
            "n2|idle|gpu:4|Unknown|none",
            "n2|idle|gpu:4|Unknown|none\n",
            "n1|idle|gpu:4|Unknown|none\u{1e}\n",
            "n1|idle+drain|gpu:4|1795985776|gpu-reaper: job=1\u{1e}\n",
            "n2|id le|gpu:4|Unknown|none\u{1e}\n",
            "n2|idle|gpu:4|2026-11-29T13:25:38|x\u{1e}\n",
            "n2|idle|gpu:4|-1|x\u{1e}\n",
            "n[1-|idle|gpu:4|Unknown|none\u{1e}\n",
            "|idle|gpu:4|Unknown|none\u{1e}\n",
            "n/2|idle|gpu:4|Unknown|none\u{1e}\n",
            "-n2|idle|gpu:4|Unknown|none\u{1e}\n",
        ] {
            assert!(parse_groups(&format!("{good}{bad}")).is_err(), "{bad:?}");
        }
    }
}

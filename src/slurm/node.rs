//! The node's own state and Reason, from sinfo: the base state and every flag in words, in one line. A
//! Reason is anybody's text: it is compared and shown, and cannot change the state that stands before it.

use super::command::Program;
use super::{Answer, NoAnswer, Slurm, misread};
use crate::model::{NodeBase, NodeRow, NodeStatus};
use crate::units::NodeName;

/// Full length, separator behind the state, Reason last. One REQUEST_NODE_INFO_SINGLE at the controller.
const FIELDS: &str = "StateComplete:|,Reason:";
impl Slurm {
    /// This node's state now.
    pub fn node(&self) -> Answer<NodeStatus> {
        if let Some(rest) = &self.rest {
            return rest.node(&self.node).map_err(|silence| self.known_node(silence));
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

impl Slurm {
    /// These nodes; one that Slurm does not list is left out.
    pub fn nodes(&self, names: &[NodeName]) -> Answer<Vec<NodeRow>> {
        let mut rows = self.survey()?;
        rows.retain(|row| names.contains(&row.name));
        Ok(rows)
    }

    /// Every node of the cluster.
    pub fn survey(&self) -> Answer<Vec<NodeRow>> {
        if let Some(rest) = &self.rest {
            return rest.survey();
        }
        Err(misread(Program::Sinfo, "not asked"))
    }
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
    let reason = Some(reason).filter(|r| !["", "none"].contains(r)).map(str::to_owned);
    Ok(NodeStatus { base, flags, reason })
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
}

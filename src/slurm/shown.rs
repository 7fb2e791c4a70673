//! What slurmctld works by and what it knows of this node, as `scontrol show` prints them: for people who look at a
//! site's set-up. A run asks for neither.

use super::command::Program;
use super::{Answer, NoAnswer, Slurm, misread};

/// `scontrol show config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown(Vec<(String, String)>);

impl Shown {
    /// Its first section, which is slurm.conf's; those after it are of other files, as they are on slurmctld's host.
    pub fn parse(text: &str) -> Result<Shown, String> {
        let mut lines = text.lines();
        if !lines.next().is_some_and(|line| line.starts_with("Configuration data as of ")) {
            return Err(format!("first line `{}`", text.lines().next().unwrap_or("")));
        }
        let pair = |line: &str| {
            let (key, value) = line.split_once('=')?;
            Some((key.trim().to_ascii_lowercase(), value.trim().to_owned()))
        };
        let keys: Vec<_> = lines.take_while(|line| !line.trim().is_empty()).filter_map(pair).collect();
        let shown = Shown(keys);
        match shown.value("SLURM_VERSION") {
            Some(_) => Ok(shown),
            None => Err("it names no SLURM_VERSION".to_owned()),
        }
    }

    /// What a key is, word for word: `(null)` and the empty text are nothing. `None`: this Slurm has no such key.
    pub fn value(&self, key: &str) -> Option<&str> {
        let found = self.0.iter().find(|(name, _)| name.eq_ignore_ascii_case(key))?;
        Some(if found.1 == "(null)" { "" } else { &found.1 })
    }

    /// The values of a key that may stand several times: `Epilog`, from 24.05 on `Epilog[0]`, `Epilog[1]`.
    pub fn all(&self, key: &str) -> Vec<&str> {
        let named = |name: &str| {
            let base = name.split_once('[').map_or(name, |(base, _)| base);
            base.eq_ignore_ascii_case(key)
        };
        let said = self.0.iter().filter(|(name, _)| named(name)).map(|(_, value)| value.as_str());
        said.filter(|value| !["", "(null)"].contains(value)).collect()
    }
}

/// What `scontrol show node` says of one node before any text of people's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownNode {
    /// `gpu:h100:4`; `None` where it has no GRES.
    pub gres: Option<String>,
}

impl ShownNode {
    /// Up to State: comments and reasons, which may hold anything, stand after it.
    pub fn parse(text: &str, node: &str) -> Result<ShownNode, String> {
        let mut words = text.split_whitespace();
        if words.next() != Some(&format!("NodeName={node}")) {
            return Err(format!("it begins with `{}`", text.lines().next().unwrap_or("")));
        }
        let before_state = || text.split_whitespace().take_while(|word| !word.starts_with("State="));
        if before_state().count() == text.split_whitespace().count() {
            return Err("it names no State".to_owned());
        }
        let gres = before_state().find_map(|word| word.strip_prefix("Gres="));
        let gres = gres.filter(|gres| !["", "(null)"].contains(gres)).map(str::to_owned);
        Ok(ShownNode { gres })
    }
}

impl Slurm {
    /// What slurmctld works by. One question.
    pub fn shown_config(&self) -> Answer<Shown> {
        let text = self.commands.run(Program::Scontrol, &["show", "config"])?;
        Shown::parse(&text).map_err(|why| misread(Program::Scontrol, format!("show config: {why}")))
    }

    /// What slurmctld knows of this node. One question, which slurmctld answers with all nodes.
    pub fn shown_node(&self) -> Answer<ShownNode> {
        let node = self.node.as_str();
        let unknown = |silence: NoAnswer| match &silence {
            NoAnswer::Refused { text, .. } if text.ends_with(" not found") => {
                NoAnswer::UnknownNode(self.node.clone())
            }
            _ => self.known_node(silence),
        };
        let text = self.commands.run(Program::Scontrol, &["show", "node", node]).map_err(unknown)?;
        ShownNode::parse(&text, node).map_err(|why| misread(Program::Scontrol, format!("show node: {why}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(version: &str, name: &str) -> String {
        let path = format!("{}/fixtures/slurm/{version}/{name}.out", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn the_recorded_configurations_are_read() {
        for version in ["22.05.8", "24.11.5", "26.05.5"] {
            let shown = Shown::parse(&recorded(version, "show-config")).unwrap();
            assert_eq!(shown.value("SLURM_VERSION"), Some(version));
            assert_eq!(shown.value("healthcheckprogram"), Some("/CAP/hook/hc"));
            assert_eq!(shown.value("HealthCheckInterval"), Some("5 sec"));
            assert_eq!(shown.all("Epilog"), ["/CAP/hook/epilog"], "{version}");
            assert_eq!(shown.all("SrunProlog"), [""; 0], "{version}");
            assert_eq!(shown.value("JobSubmitPlugins"), Some(""));
            assert_eq!(shown.value("ConstrainDevices"), None, "that is slurmctld's own cgroup.conf");
            let timeout = shown.value("HealthCheckTimeout");
            assert_eq!(timeout, (version == "26.05.5").then_some("0 sec"));
        }
        for text in ["", "slurm_load_ctl_conf error: x", "Configuration data as of now\nProlog = a\n"] {
            assert!(Shown::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_recorded_nodes_are_read_and_no_text_of_peoples() {
        for version in ["22.05.8", "24.11.5", "26.05.5"] {
            let node = ShownNode::parse(&recorded(version, "show-node"), "node1").unwrap();
            assert_eq!(node, ShownNode { gres: Some("gpu:h100:4".into()) });
        }
        // nebius/soperator#2954 (ND-06), aws/aws-parallelcluster-node#639 (ND-10).
        let odd = recorded("22.05.8", "show-node.odd-reason");
        let lies = odd.replace("Gres=gpu:h100:4", "Gres=(null)").replace("pipe|", "pipe| Gres=gpu:9");
        assert_eq!(ShownNode::parse(&lies, "node1").unwrap().gres, None);
        assert!(ShownNode::parse(&odd, "node2").is_err());
        assert!(ShownNode::parse("Node node1 not found", "node1").is_err());
        assert!(ShownNode::parse("NodeName=node1 Gres=gpu:1", "node1").is_err());
    }
}

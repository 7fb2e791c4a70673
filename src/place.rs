//! Where one node's state lies: `state_dir/<node name>/`, so that several slurmd on one host are several nodes.

use crate::units::NodeName;
use std::path::{Path, PathBuf};

/// One node's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Slurm's name of the node.
    pub node: NodeName,
    /// Its folder.
    pub dir: PathBuf,
}

impl Place {
    /// The folder of `node` under `state_dir`.
    pub fn new(state_dir: &Path, node: NodeName) -> Place {
        let dir = state_dir.join(node.as_str());
        Place { node, dir }
    }

    /// Finds out which node this is: what was said (`--node`, SLURMD_NODENAME), else the only node that has a
    /// folder here, else the host's short name. The look before a deed has Slurm confirm it: an unknown node
    /// answers nothing.
    pub fn find(state_dir: &Path, said: Option<&str>, hostname: Option<String>) -> Result<Place, String> {
        if let Some(said) = said {
            return NodeName::new(said).map(|node| Place::new(state_dir, node));
        }
        let folders = std::fs::read_dir(state_dir).into_iter().flatten().flatten();
        let mut nodes = folders.filter_map(|f| f.file_name().to_str().and_then(|n| NodeName::new(n).ok()));
        if let (Some(only), None) = (nodes.next(), nodes.next()) {
            return Ok(Place::new(state_dir, only));
        }
        let host = hostname.ok_or("which node this is cannot be told; give --node NAME")?;
        let short = host.split('.').next().unwrap_or(&host);
        NodeName::new(short).map(|node| Place::new(state_dir, node))
    }

    /// What is said where none has.
    pub fn no_ledger(&self) -> String {
        let (node, dir) = (&self.node, self.dir.display());
        let none = format!("no run has left a ledger of node {node} in `{dir}`");
        match self.others().as_slice() {
            [] => format!("{none}: is HealthCheckProgram set? (`gpu-reaper-hc doctor`)"),
            [Place { node, .. }, ..] => format!("{none}; there is one of node {node}: `--node {node}`"),
        }
    }

    /// Other nodes of this host that have a ledger: several slurmd on one host have one each.
    pub fn others(&self) -> Vec<Place> {
        let folders =
            self.dir.parent().and_then(|dir| std::fs::read_dir(dir).ok()).into_iter().flatten().flatten();
        let place = |folder: std::fs::DirEntry| {
            let node = NodeName::new(folder.file_name().to_str()?).ok()?;
            Some(Place { node, dir: folder.path() })
        };
        let other = |place: &Place| place.dir != self.dir && place.dir.join("ledger.db").exists();
        folders.filter_map(place).filter(other).collect()
    }

    /// Whether a run or a Prolog has ever left something here; also where that cannot be seen.
    pub fn has_ledger(&self) -> bool {
        self.dir.join("ledger.db").try_exists().unwrap_or(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurms_name_wins_over_the_hosts() {
        // mej/nhc#19, #110 (ND-01): the host name is not the node name.
        let dir = tempfile::tempdir().unwrap();
        let find = |said: Option<&str>| {
            Place::find(dir.path(), said, Some("node838.example.org".into())).map(|p| p.node.to_string())
        };
        assert_eq!(find(Some("gpu-a7")).unwrap(), "gpu-a7");
        assert_eq!(find(None).unwrap(), "node838");
        std::fs::create_dir(dir.path().join("gpu-a7")).unwrap();
        assert_eq!(find(None).unwrap(), "gpu-a7");
        assert!(find(Some("../etc")).is_err());
    }
}

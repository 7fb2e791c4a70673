//! The keys that are read and mean nothing yet. A key that promises a limit nobody keeps is worse than none, so
//! whoever sets one is told. A key leaves this list in the change that gives it an effect, and no other.

use super::table::Check;
use super::tree::{self, Node};

/// Each key, and what it does not do. A test holds that no code outside of `config` reads one.
pub const NOT_YET: [(&str, &str); 1] = [("act.notify_job", "tells no job")];

/// One note for each of them that the file sets.
pub(super) fn check(check: &mut Check<'_>, root: &Node<'_>) {
    for (key, lacks) in NOT_YET.iter().filter(|(key, _)| tree::find(root, key).is_some()) {
        check.notes.push(format!("`{key}` is not in this version: it {lacks}"));
    }
}

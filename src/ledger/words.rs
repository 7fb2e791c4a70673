//! The words that columns hold for what is one of a few, and what else can only be damage.

use crate::model::{JobState, RegisteredBy, StartSource};
use rusqlite::ffi;

/// A value that its column's CHECK forbids can only be damage.
pub(super) fn known<T>(value: Option<T>, column: &str) -> rusqlite::Result<T> {
    value.ok_or_else(|| damage(column))
}

/// Of a column that holds what its CHECK forbids.
pub(super) fn damage(column: &str) -> rusqlite::Error {
    let code = ffi::Error::new(ffi::SQLITE_CORRUPT);
    rusqlite::Error::SqliteFailure(code, Some(format!("`{column}` holds a value that cannot be")))
}

macro_rules! words {
    ($write:ident, $read:ident, $type:ident { $($name:ident = $word:literal),* $(,)? }) => {
        pub(super) fn $write(value: $type) -> &'static str {
            match value { $($type::$name => $word),* }
        }
        pub(super) fn $read(word: &str) -> Option<$type> {
            match word { $($word => Some($type::$name),)* _ => None }
        }
    };
}

words!(by_word, by_from, RegisteredBy { Prolog = "prolog", Discovery = "discovery" });
words!(source_word, source_from, StartSource { Slurm = "slurm", Registration = "registration" });
words!(state_word, state_from, JobState {
    Running = "running",
    Suspended = "suspended",
    Completing = "completing",
    Configuring = "configuring",
    Pending = "pending",
    Ended = "ended",
    Other = "other",
});

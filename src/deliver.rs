//! Telling people. Nothing here decides, and nothing here may hang or fail a run.

pub mod event;
pub mod exec;
pub mod journal;
pub mod metrics;
pub mod slack;

/// What became of one attempt to deliver a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It was taken.
    Arrived,
    /// It may be taken another time.
    Later {
        /// Why not now, in one line that holds no secret and no figure that changes.
        why: String,
        /// How long the receiver wants to be left alone.
        wanted_ms: Option<i64>,
    },
    /// It was refused, and would be again.
    Never(String),
}

impl Delivery {
    fn later(why: String) -> Delivery {
        Delivery::Later { why, wanted_ms: None }
    }
}

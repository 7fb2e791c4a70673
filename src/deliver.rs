//! Telling people. Nothing here decides, and nothing here may hang or fail a run.

pub mod journal;
pub mod metrics;

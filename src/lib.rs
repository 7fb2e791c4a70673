//! Finds wasted and sick GPU allocations on a Slurm node and alerts on them, drains the node or cancels the
//! job, in that order and only as far as its configuration says. Never acts on absent evidence.
//!
//! The floors, and who may name whom, are in README's section "Architecture"; `tests/house.rs` keeps them true.

#![warn(missing_docs)]

pub mod config;
pub mod ledger;
pub mod mode;
pub mod model;
pub mod policy;
pub mod reading;
pub mod units;

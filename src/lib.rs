//! Finds wasted and sick GPU allocations on a Slurm node and alerts on them, drains the node or cancels the
//! job, in that order and only as far as its configuration says. Never acts on absent evidence.
//!
//! The floors, and who may name whom, are in README's section "Architecture"; `tests/house.rs` keeps them true.

#![warn(missing_docs)]

pub mod ack;
pub mod act;
pub mod backtest;
pub mod cases;
pub mod cli;
pub mod config;
pub mod deliver;
pub mod demo;
pub mod doctor;
pub mod epilog;
pub mod explain;
pub mod gpu;
pub mod host;
pub mod http;
pub mod keep;
pub mod ledger;
pub mod lock;
pub mod mode;
pub mod model;
pub mod place;
pub mod policy;
pub mod program;
pub mod prolog;
pub mod reading;
pub mod release;
pub mod run;
pub mod scenarios;
pub mod screen;
pub mod slurm;
pub mod status;
pub mod units;

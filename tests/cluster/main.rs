//! The main job on a real Slurm: slurmd itself starts the program, on a lab of four nodes with stand-in GPUs.
//! Each test leases a node (or all of them) and is a story of its own; none depends on another or on order.
//! No test sleeps for luck: it waits for what the ledger or Slurm says, with a ceiling. "Nothing happens" means
//! so many more runs, and sinfo and squeue as before.
//!
//! Needs root and mount namespaces; elsewhere the tests say so and pass, unless GPU_REAPER_REQUIRE_CLUSTER=1.
//! GPU_REAPER_PROGRAM names another build to test; GPU_REAPER_SUITE another Debian suite, hence Slurm version;
//! GPU_REAPER_CGROUP the hierarchy, `v1` or `v2`: `sid` with `v2` is a Slurm whose job cgroups are named by SLUID.

#[path = "../common/fake_nvml.rs"]
mod fake_nvml;
mod lab;
mod ledger;
mod node;
mod settings;
mod stand_in;

mod acting;
mod bare;
mod cost;
mod driver;
mod exactly;
mod faults;
mod finding;
mod leaving_alone;
mod others;
mod outage;
mod rest;
mod several;
mod whose;

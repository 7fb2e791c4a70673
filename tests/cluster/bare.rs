//! HealthCheckProgram is cluster-wide: most nodes may have no GPU at all. This needs no lab and no root.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn has_nvidia_hardware() -> bool {
    let Ok(devices) = fs::read_dir("/sys/bus/pci/devices") else {
        return false;
    };
    devices.flatten().any(|d| fs::read_to_string(d.path().join("vendor")).is_ok_and(|v| v.trim() == "0x10de"))
}

#[test]
fn a_node_without_nvidia_hardware_or_configuration_costs_nothing() {
    if has_nvidia_hardware() || Path::new("/etc/gpu-reaper-hc/config.yaml").exists() {
        eprintln!("SKIPPED: this machine has a GPU or a configuration of its own");
        return;
    }
    let node = format!("bare-{}", std::process::id());
    let mut call = Command::new(env!("CARGO_BIN_EXE_gpu-reaper-hc"));
    call.env_clear().env("SLURMD_NODENAME", &node).current_dir("/");
    let begun = Instant::now();
    let output = call.output().expect("the program");
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    assert!(!Path::new("/var/lib/gpu-reaper-hc").join(&node).exists(), "nothing was made");
}

//! The script for a machine with a real GPU, on the stand-in: that it runs to its end, understands both readers and
//! tells where they differ. Its loads need a GPU and are skipped.

use crate::fake_nvml::{FakeNvml, node};
use crate::ml_py::binding_is_there;
use std::process::{Command, Output};

fn look(fake: &FakeNvml) -> Output {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gpu/real/look.py");
    let mut python = Command::new("python3");
    python
        .args(["-B", script, "--settle", "0", "--seconds", "0", "--dump"])
        .arg(std::env::current_exe().unwrap());
    python.env("GPU_REAPER_LIBRARY", fake.library()).env("LD_LIBRARY_PATH", fake.dir());
    python.output().unwrap()
}

#[test]
fn the_script_for_a_real_gpu_runs_on_the_stand_in() {
    if !binding_is_there() {
        return;
    }
    let out = look(&FakeNvml::new(&format!("{}gpu 0\nfield 83 = ull 5000000000 + 690000000\n", node(2))));
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    let row = |name: &str| {
        text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"))
    };
    assert!(row("readings/sm_peak/percent").ends_with("20                       20  "), "{text}");
    assert!(row("readings/energy ").contains(" a second"), "{text}");
    assert!(row("readings/fields/gpm_sm_active").contains("[not_supported]"), "{text}");
    let loads = [row("=== busy: "), row("=== spin: ")];
    if loads.iter().any(|load| load.contains("two looks")) {
        return println!("the loads ran: this machine has a GPU");
    }
    assert!(loads.iter().all(|load| load.contains("skipped: libcuda.so.1")), "{text}");
    assert!(text.ends_with("the readers agree in all that is steady\n"), "{text}");
}

#[test]
fn the_script_for_a_real_gpu_tells_where_the_readers_differ() {
    if !binding_is_there() {
        return;
    }
    // A limit that cannot be: we do not believe it, the binding repeats it.
    let out = look(&FakeNvml::new(&format!("{}nvmlDeviceGetEnforcedPowerLimit = 0\n", node(1))));
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.contains("idle: unit 0: readings/power_limit: [implausible] and 0"), "{text}");
}

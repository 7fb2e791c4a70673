//! The library of `tests/kill-shim/`, to be preloaded: kills a run at a moment, and sets its clocks. Compiled once per
//! test binary.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Where it lies.
pub fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kill-shim/kill_at.c");
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kill-at-{}.so", std::process::id()));
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).arg(&out);
        assert!(cc.arg(source).arg("-ldl").status().unwrap().success(), "the shim did not compile");
        out
    })
}

//! A program of the site's own (`notify.exec`) that gets one event as JSON on its standard input: mail, a pager, a ticket.
//! Run as everything is that root runs: by its absolute path, root's alone, in a group of its own, killed at its limit.

use super::Delivery;
use crate::program::{is_root, one_line, run_within, trusted};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What is kept of each of its outputs; the last line of it may be shown.
const KEPT_BYTES: usize = 4 << 10;

/// Whether it may be run; `root`: by root, who runs only what root alone can write.
///
/// # Errors
/// Why not.
pub fn runnable(program: &str, root: bool) -> Result<PathBuf, String> {
    let path = Path::new(program);
    let meta = std::fs::metadata(path).map_err(|e| format!("`{program}`: {e}"))?;
    let executable = std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & 0o111 != 0;
    if !meta.is_file() || !executable {
        return Err(format!("`{program}` is no file that can be run"));
    }
    trusted(path.to_owned(), &meta, root)
}

/// Tells it one event.
pub fn tell(argv: &[String], json: &str, limit: Duration) -> Delivery {
    let [program, args @ ..] = argv else { return Delivery::Never("no program is named".to_owned()) };
    let path = match runnable(program, is_root()) {
        Ok(path) => path,
        Err(why) => return Delivery::later(format!("not run: {why}")),
    };
    let mut command = Command::new(path);
    command.args(args).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C");
    command.current_dir("/");
    match run_within(command, Some(json.as_bytes()), limit, KEPT_BYTES) {
        Ok(Some(ended)) if ended.status.success() => Delivery::Arrived,
        Ok(Some(ended)) => {
            let words = one_line(if ended.err.kept.is_empty() { &ended.out.kept } else { &ended.err.kept });
            let words = if words.is_empty() { words } else { format!(": `{words}`") };
            Delivery::later(format!("`{program}` ended with {}{words}", ended.status))
        }
        Ok(None) => Delivery::later(format!("`{program}` did not end in time and was killed")),
        Err(why) => Delivery::later(format!("`{program}`: {why}")),
    }
}

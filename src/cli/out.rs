//! What a command says: pages on standard output, one line of trouble on standard error.

use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Something that was to be said did not arrive.
static UNSAID: AtomicBool = AtomicBool::new(false);

/// On standard output. A reader that went away is no error of ours; a full disk is, and is told once.
pub fn say(text: &str) {
    let mut out = std::io::stdout();
    let said = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    if let Err(why) = said
        && why.kind() != ErrorKind::BrokenPipe
        && !UNSAID.swap(true, Relaxed)
    {
        complain(&format!("standard output: {why}; what was to be said is not all there"));
    }
}

/// Whether the process has to end with an error for what it could not say.
pub fn something_is_unsaid() -> bool {
    UNSAID.load(Relaxed)
}

/// One line on standard error, which slurmd keeps where a run fails.
pub fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "gpu-reaper-hc: {text}");
}

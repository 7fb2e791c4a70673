//! What a command says: pages on standard output, one line of trouble on standard error.

use crate::screen::Screen;
use crate::{host, prolog};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Something that was to be said did not arrive.
static UNSAID: AtomicBool = AtomicBool::new(false);

/// On standard output. A reader that went away is no error of ours; a full disk is, and is told once.
pub fn say(text: &str) {
    if let Err(why) = write_all(text.as_bytes())
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

/// All of it, also into a pipe or terminal that whoever started us reads without waiting: then it is we who wait.
fn write_all(mut left: &[u8]) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as the process lives, and is not closed here.
    let mut out = ManuallyDrop::new(unsafe { File::from_raw_fd(libc::STDOUT_FILENO) });
    while !left.is_empty() {
        match out.write(left) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => left = &left[written..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                let mut room = libc::pollfd { fd: libc::STDOUT_FILENO, events: libc::POLLOUT, revents: 0 };
                // SAFETY: one entry, alive for the call.
                unsafe { libc::poll(&mut room, 1, -1) };
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// One line on standard error, which slurmd keeps where a run fails.
pub fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "gpu-reaper-hc: {text}");
}

/// What standard output is written for.
pub fn page() -> Screen {
    Screen::find(host::terminal_columns(), &prolog::process_env)
}

/// The same where what is searched or filtered is better left on its line.
pub fn lines() -> Screen {
    match host::terminal_columns() {
        None => Screen { width: Screen::UNBROKEN.width, ..page() },
        Some(_) => page(),
    }
}

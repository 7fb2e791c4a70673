//! Structured events for the journal (`journalctl -t gpu-reaper-hc GPU_REAPER_JOB=4242`), standard error where
//! there is no journal. A wedged journald can never hang a run: its socket is probed without blocking first.

use crate::units::NodeName;
use std::io::Write;
use std::ops::Range;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

const SOCKET: &str = "/run/systemd/journal/socket";

/// Whether journald listens, as a run finds out.
pub fn listens() -> bool {
    takes_datagrams(Path::new(SOCKET))
}

/// Whether journald takes datagrams now. tracing-journald's own socket blocks, and one that is bound but not read
/// would hang every run from the eleventh on (measured; facts of the crates).
fn takes_datagrams(socket: &Path) -> bool {
    let Ok(probe) = UnixDatagram::unbound() else {
        return false;
    };
    probe.set_nonblocking(true).is_ok() && probe.send_to(&[], socket).is_ok()
}

/// tracing-journald keeps its socket to itself, and it blocks: a journald that stops reading in mid-run would hold
/// the run at its next event. Of the few descriptors there are at this moment, those that are datagram sockets are
/// set not to wait; an event that finds the queue full is lost, the ledger has it all the same.
fn never_wait_for_datagrams(descriptors: Range<libc::c_int>) {
    for fd in descriptors {
        let mut kind: libc::c_int = 0;
        let mut size = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: both pointers live through the call; a descriptor that is not open or no socket is an error.
        let asked = unsafe {
            libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, (&raw mut kind).cast(), &mut size)
        };
        if asked == 0 && kind == libc::SOCK_DGRAM {
            // SAFETY: sets a flag of an open descriptor.
            unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
        }
    }
}

/// Standard error whose every failure is ignored: under slurmd it may be a pipe without a reader.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let _ = std::io::stderr().write_all(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Sets the process's subscriber up: the journal where it listens, each line with this node's name; else standard error.
pub fn init(node: &NodeName) {
    if init_journal(Some(node)) {
        return;
    }
    let to_stderr = tracing_subscriber::fmt::layer()
        .with_writer(|| Stderr)
        .without_time()
        .with_target(false)
        .with_ansi(false);
    let _ = tracing_subscriber::registry().with(to_stderr).try_init();
}

/// Lines for the journal alone, of somebody who has said them on standard error already.
pub fn tell(lines: &[String]) {
    if !lines.is_empty() && init_journal(None) {
        lines.iter().for_each(|line| tracing::warn!("{line}"));
    }
}

/// Whether the journal listens; the process's subscriber is then set to it.
fn init_journal(node: Option<&NodeName>) -> bool {
    if !takes_datagrams(Path::new(SOCKET)) {
        return false;
    }
    let Ok(layer) = tracing_journald::layer() else {
        return false;
    };
    let layer = layer
        .with_syslog_identifier("gpu-reaper-hc".to_owned())
        .with_field_prefix(Some("GPU_REAPER".to_owned()))
        .with_custom_fields(node.map(|node| ("GPU_REAPER_NODE", node.as_str())));
    never_wait_for_datagrams(3..32);
    tracing_subscriber::registry().with(layer).try_init().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn no_journal_and_a_journal_that_nobody_reads_are_told_without_waiting() {
        // tokio-rs/tracing#2079 (LG-01): no journald socket.
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        assert!(!takes_datagrams(&socket));
        let unread = UnixDatagram::bind(&socket).unwrap();
        let taken = (0..10_000).take_while(|_| takes_datagrams(&socket)).count();
        assert!(taken > 0 && taken < 10_000, "the queue of an unread socket fills: {taken}");
        // The same from inside: a socket that blocks by birth is made not to.
        let blocking = UnixDatagram::unbound().unwrap();
        blocking.connect(&socket).unwrap();
        let fd = blocking.as_raw_fd();
        never_wait_for_datagrams(fd..fd + 1);
        assert_eq!(blocking.send(b"x").unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        drop(unread);
        assert!(!takes_datagrams(&socket));
    }
}

//! A question to a file system or to a driver's files that may never be answered: a dead file server holds whoever asks
//! in the kernel. So a forked process asks, and is left where it hangs. Never waits longer than it was told.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// How long a process that has answered may take to be gone.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// The answer, or `None` where none came within `limit`. To be called while this process has one thread.
pub fn aside<T: Serialize + DeserializeOwned>(limit: Duration, work: impl FnOnce() -> T) -> Option<T> {
    let until = Instant::now() + limit;
    let mut ends = [0; 2];
    // SAFETY: pipe2 writes two descriptors, which the two Files then own.
    let (reader, writer) = unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return None;
        }
        (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
    };
    // SAFETY: one thread, so the child may do whatever a process may. It never returns.
    match unsafe { libc::fork() } {
        -1 => None,
        0 => answer(writer, work),
        child => {
            drop(writer);
            let heard = hear(reader, until);
            leave(child, if heard.is_some() { Instant::now() + LAST_WORDS } else { until });
            postcard::from_bytes(&heard?).ok()
        }
    }
}

/// The child's whole life.
fn answer<T: Serialize>(mut pipe: File, work: impl FnOnce() -> T) -> ! {
    let done = catch_unwind(AssertUnwindSafe(|| {
        // Whoever waits for the end of our output shall not wait for this process too.
        // SAFETY: plain system calls on this process alone.
        unsafe {
            let nowhere = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            for fd in 0..=2 {
                libc::dup2(nowhere, fd);
            }
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        }
        postcard::to_allocvec(&work()).map_err(io::Error::other).and_then(|bytes| pipe.write_all(&bytes))
    }));
    // SAFETY: ends this process; what belongs to the parent is left alone.
    unsafe { libc::_exit(if matches!(done, Ok(Ok(()))) { 0 } else { 1 }) }
}

/// All that is said, to its end; `None`: it did not come to its end in time.
fn hear(mut pipe: File, until: Instant) -> Option<Vec<u8>> {
    let (mut said, mut chunk) = (Vec::new(), vec![0; 16 << 10]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let ms = left.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32;
        let mut wait = libc::pollfd { fd: pipe.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd that outlives the call.
        match unsafe { libc::poll(&mut wait, 1, ms) } {
            0 => return None,
            -1 if io::Error::last_os_error().kind() == ErrorKind::Interrupted => {}
            -1 => return None,
            _ => match pipe.read(&mut chunk) {
                Ok(0) => return Some(said),
                Ok(n) => said.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return None,
            },
        }
    }
}

/// Reaps the child, kills it where it is late, and leaves it where even that does not end it.
fn leave(child: libc::pid_t, until: Instant) {
    loop {
        // SAFETY: our own child, not yet reaped: its id names nobody else.
        match unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::WNOHANG) } {
            0 if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            0 => break,
            _ => return,
        }
    }
    // SAFETY: as above.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), libc::WNOHANG);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::{Absence, Reading};

    #[test]
    fn an_answer_comes_back_whole_and_silence_has_an_end() {
        let long: Vec<u32> = (0..50_000).collect();
        assert_eq!(aside(Duration::from_secs(20), || long.clone()), Some(long.clone()));
        let absent: Reading<u8> = Reading::Absent(Absence::NoPermission);
        assert_eq!(aside(Duration::from_secs(20), || absent), Some(absent), "with its reason");
        let began = Instant::now();
        let never = aside(Duration::from_millis(50), || {
            std::thread::sleep(Duration::from_secs(60));
            1
        });
        assert!(never.is_none() && began.elapsed() < Duration::from_secs(10));
        // SAFETY: ends the child that asks.
        assert_eq!(aside(Duration::from_secs(20), || -> u8 { unsafe { libc::_exit(0) } }), None);
    }
}

//! A unix socket for the HTTP client: what it needs to connect, write and read there. Every wait ends at
//! the client's deadline, also the one for a listener whose queue is full.

use std::io::{Error as IoError, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};

/// Connects to this path, whatever address is asked for.
#[derive(Debug)]
pub(super) struct Socket(pub PathBuf);

impl Connector for Socket {
    type Out = Connection;

    fn connect(&self, details: &ConnectionDetails, _: Option<()>) -> Result<Option<Connection>, Error> {
        let stream = within(details.timeout, |left| connect(&self.0, left))?;
        let buffers =
            LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(Connection { stream, buffers }))
    }
}

/// There is nothing to look up: an address that nobody connects to.
#[derive(Debug)]
pub(super) struct NoLookup;

impl Resolver for NoLookup {
    fn resolve(&self, _: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let mut addresses = self.empty();
        addresses.push(([127, 0, 0, 1], 0).into());
        Ok(addresses)
    }
}

/// A connection over the socket.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    buffers: LazyBuffers,
}

impl Transport for Connection {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        within(timeout, |left| {
            self.stream.set_write_timeout(Some(left))?;
            self.stream.write_all(&self.buffers.output()[..amount])
        })
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let buffer = self.buffers.input_append_buf();
        let read = within(timeout, |left| {
            self.stream.set_read_timeout(Some(left))?;
            loop {
                match self.stream.read(buffer) {
                    Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                    read => return read,
                }
            }
        })?;
        self.buffers.input_appended(read);
        Ok(read > 0)
    }

    /// Never used for a second question.
    fn is_open(&mut self) -> bool {
        false
    }
}

/// Does something that may wait until the deadline and no longer.
fn within<T>(timeout: NextTimeout, wait: impl FnOnce(Duration) -> Result<T, IoError>) -> Result<T, Error> {
    let left = *timeout.after;
    if left.is_zero() {
        return Err(Error::Timeout(timeout.reason));
    }
    match wait(left) {
        Err(e) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&e.kind()) => {
            Err(Error::Timeout(timeout.reason))
        }
        done => Ok(done?),
    }
}

/// As [`UnixStream::connect`], which waits for ever where nobody takes connections off a full queue.
fn connect(path: &Path, left: Duration) -> Result<UnixStream, IoError> {
    // SAFETY: plain system calls on a descriptor of our own, with structures that live through them; sun_path ends
    // with a zero byte because the path is shorter than it.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(IoError::last_os_error());
        }
        let stream = UnixStream::from_raw_fd(fd);
        // Linux lets a send timeout bound connect, too (unix(7) does not say so; socket(7): SO_SNDTIMEO).
        stream.set_write_timeout(Some(left))?;
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let path = path.as_os_str().as_bytes();
        if path.len() >= address.sun_path.len() {
            return Err(IoError::from(ErrorKind::InvalidFilename));
        }
        for (slot, byte) in address.sun_path.iter_mut().zip(path) {
            *slot = *byte as libc::c_char;
        }
        let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        match libc::connect(stream.as_raw_fd(), (&raw const address).cast(), length) {
            0 => Ok(stream),
            _ => Err(IoError::last_os_error()),
        }
    }
}

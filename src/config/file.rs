//! The file itself: read whole, bounded, without ever waiting on it; and whether it may be believed when it
//! says `enforce`. Never follows what it says.

use super::tree::MOST_BYTES;
use crate::units::rights::writable_by_others;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The text of the file, `None` where there is none by that name. The error is a cause in words.
pub(super) fn read(path: &Path) -> Result<Option<(String, File)>, String> {
    // O_NONBLOCK: opening a FIFO would wait for a writer.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.symlink_metadata().is_err() => {
            return Ok(None);
        }
        Err(error) => return Err(format!("cannot be opened: {error}")),
    };
    let meta = file.metadata().map_err(|error| format!("cannot be examined: {error}"))?;
    if !meta.is_file() {
        return Err("is no regular file".to_owned());
    }
    let mut bytes = Vec::with_capacity((meta.len() as usize).min(MOST_BYTES) + 1);
    // One byte more than is allowed, so that the tree can refuse what is longer.
    let mut bounded = (&file).take(MOST_BYTES as u64 + 1);
    bounded.read_to_end(&mut bytes).map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() > MOST_BYTES {
        return Err(format!("is larger than {} KiB", MOST_BYTES >> 10));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Some((text, file))),
        Err(error) => Err(format!("is no UTF-8 text from byte {} on", error.utf8_error().valid_up_to())),
    }
}

/// Why nobody but root can be assumed to have written this file; `None`: it may be believed. The file as it
/// was opened, then each folder on the way to it: whoever can write a folder can put another file there.
pub(super) fn doubt(path: &Path, file: &File) -> Option<String> {
    // SAFETY: geteuid(2) takes nothing, touches nothing and cannot fail.
    let euid = unsafe { libc::geteuid() };
    let checked = || -> io::Result<Option<String>> {
        let meta = file.metadata()?;
        if let Some(why) = writable_by_others(meta.uid(), meta.gid(), meta.mode(), euid) {
            return Ok(Some(format!("the file {why}")));
        }
        for folder in path.canonicalize()?.ancestors().skip(1) {
            let meta = folder.metadata()?;
            if let Some(why) = writable_by_others(meta.uid(), meta.gid(), meta.mode(), euid) {
                return Ok(Some(format!("its folder `{}` {why}", folder.display())));
            }
        }
        Ok(None)
    };
    checked().unwrap_or_else(|error| Some(format!("its rights cannot be read: {error}")))
}

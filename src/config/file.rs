//! The file itself: read whole, bounded, without ever waiting on it; and whether it may be believed when it
//! says `enforce`. Never follows what it says.

use super::tree::MOST_BYTES;
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

/// Root's own, or, where not root runs, that user's own; writable by neither group nor others. A folder with
/// the sticky bit (`/tmp`) lets nobody replace what is not theirs.
fn writable_by_others(uid: u32, gid: u32, mode: u32, euid: u32) -> Option<String> {
    if uid != 0 && uid != euid {
        return Some(format!("belongs to uid {uid}, not to root"));
    }
    let sticky_folder = mode & libc::S_IFMT == libc::S_IFDIR && mode & libc::S_ISVTX != 0;
    let by_group = mode & 0o020 != 0 && gid != 0;
    let by_others = mode & 0o002 != 0;
    ((by_group || by_others) && !sticky_folder)
        .then(|| format!("is writable by others (mode {:o})", mode & 0o7777))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_root_alone_can_write_is_believed() {
        const FILE: u32 = libc::S_IFREG;
        const FOLDER: u32 = libc::S_IFDIR;
        let table = [
            ((0, 0, FILE | 0o644, 0), true),
            ((0, 0, FILE | 0o600, 0), true),
            ((0, 0, FILE | 0o664, 0), true),
            ((0, 50, FILE | 0o664, 0), false),
            ((0, 0, FILE | 0o646, 0), false),
            ((1000, 1000, FILE | 0o600, 0), false),
            ((1000, 1000, FILE | 0o600, 1000), true),
            ((0, 0, FILE | 0o644, 1000), true),
            ((1001, 1001, FILE | 0o600, 1000), false),
            ((0, 0, FILE | 0o1646, 0), false),
            ((0, 0, FOLDER | 0o1777, 0), true),
            ((0, 0, FOLDER | 0o777, 0), false),
        ];
        for ((uid, gid, mode, euid), believed) in table {
            let doubt = writable_by_others(uid, gid, mode, euid);
            assert_eq!(doubt.is_none(), believed, "{uid} {gid} {mode:o} as {euid}: {doubt:?}");
        }
    }
}

//! A secret that lies in a file: a token, or the address of a web hook. It opens something to whoever holds it, so the
//! file is one that only its owner can read, it is read anew each time (it may be renewed under us), and shown nowhere,
//! not even by `Debug`.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Longer is none: Slurm's tokens have some 150 bytes, web hooks as many.
const MOST_BYTES: u64 = 16 << 10;

/// One word.
pub struct Secret(String);

impl Secret {
    /// The file's text without blanks and line ends around it. `what`: as the errors call it.
    ///
    /// # Errors
    /// What is wrong with the file, never what is in it.
    pub fn read(path: &Path, what: &str) -> Result<Secret, String> {
        let shown = path.display();
        // A pipe of that name must not hold the run up.
        let mut options = File::options();
        let opened = options.read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = opened.map_err(|e| format!("{what} file `{shown}`: {e}"))?;
        private(&file).map_err(|why| format!("{what} file `{shown}` {why}"))?;
        let mut text = String::new();
        // An error of std's would say no more than this, and nothing of the text.
        let read = file.take(MOST_BYTES + 1).read_to_string(&mut text);
        let word = text.trim();
        let printable = !word.is_empty() && word.bytes().all(|b| b.is_ascii_graphic());
        if read.is_err() || !printable || word.len() as u64 > MOST_BYTES {
            return Err(format!("{what} file `{shown}` holds no {what}: one word is expected"));
        }
        Ok(Secret(word.to_owned()))
    }

    /// For where it is sent to, and nowhere else.
    pub fn word(&self) -> &str {
        &self.0
    }
}

/// A file of root's own (or of whoever runs us, where that is not root) that nobody else can read.
fn private(file: &File) -> Result<(), String> {
    let meta = file.metadata().map_err(|e| e.to_string())?;
    let us = us();
    match (meta.is_file(), meta.uid(), meta.permissions().mode() & 0o7777) {
        (false, ..) => Err("is no file".to_owned()),
        (_, uid, _) if uid != us => Err(format!("is owned by uid {uid}, not by uid {us}")),
        (_, _, mode) if mode & 0o077 != 0 => {
            Err(format!("can be read or written by others (mode {mode:04o}); allowed: 0600 or 0400"))
        }
        _ => Ok(()),
    }
}

/// Who runs us.
pub(super) fn us() -> u32 {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};

    fn read(text: &[u8], mode: u32) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        Secret::read(&path, "token").map(|secret| secret.0)
    }

    #[test]
    fn a_secret_is_one_word_of_a_private_file() {
        let secret = "eyJhbGciOi.eyJleHAiOi.s3cr3t-_";
        for text in [secret.to_owned(), format!("{secret}\n")] {
            assert_eq!(read(text.as_bytes(), 0o600).as_deref(), Ok(secret));
        }
        assert_eq!(read(secret.as_bytes(), 0o400).as_deref(), Ok(secret));
        let long = "x".repeat(MOST_BYTES as usize + 1);
        let bad: [&[u8]; 6] =
            [b"", b" \n", b"s3cr3t two", b"s3cr3t\r\nX-Other: 1", b"s3cr3t\xff", long.as_bytes()];
        for text in bad {
            let why = read(text, 0o600).unwrap_err();
            assert!(why.ends_with("holds no token: one word is expected"), "{why}");
            assert!(!why.contains("s3cr3t"), "{why}");
        }
    }

    #[test]
    fn a_secret_that_others_can_read_is_not_used() {
        for mode in [0o644, 0o640, 0o604, 0o620, 0o601] {
            let why = read(b"s3cr3t", mode).unwrap_err();
            assert!(why.contains(&format!("(mode {mode:04o}); allowed: 0600 or 0400")), "{why}");
        }
        let folder = tempfile::tempdir().unwrap();
        let why = Secret::read(&folder.path().join("none"), "token").err().unwrap();
        assert!(why.contains("No such file"), "{why}");
        assert!(Secret::read(folder.path(), "token").err().unwrap().ends_with("is no file"));
    }
}

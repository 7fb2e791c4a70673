//! The token that slurmrestd asks for. It opens Slurm to whoever holds it: it is read from a file that only its owner
//! can read, anew for each question (it may be renewed under us), and shown nowhere, not even by `Debug`.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Longer is no token: Slurm's own have some 150 bytes.
const MOST_BYTES: u64 = 16 << 10;

/// A token.
pub(super) struct Token(String);

impl Token {
    /// The file's text without blanks and line ends around it; `SLURM_JWT=` before it is left out, for that is what
    /// `scontrol token` prints.
    ///
    /// # Errors
    /// What is wrong with the file, never what is in it.
    pub fn read(path: &Path) -> Result<Token, String> {
        let shown = path.display();
        // A pipe of that name must not hold the run up.
        let mut options = File::options();
        let opened = options.read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = opened.map_err(|e| format!("token file `{shown}`: {e}"))?;
        private(&file).map_err(|why| format!("token file `{shown}` {why}"))?;
        let mut text = String::new();
        // An error of std's would say no more than this, and nothing of the text.
        let read = file.take(MOST_BYTES + 1).read_to_string(&mut text);
        let text = text.trim();
        let token = text.strip_prefix("SLURM_JWT=").unwrap_or(text);
        let printable = !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
        if read.is_err() || !printable || token.len() as u64 > MOST_BYTES {
            return Err(format!("token file `{shown}` holds no token: one word is expected"));
        }
        Ok(Token(token.to_owned()))
    }

    /// For the header that it goes into.
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// A text of the server's without the token in it.
    pub fn hidden_in(&self, text: String) -> String {
        // An answer may have many MB, and none has ever held one.
        if text.contains(&self.0) { text.replace(&self.0, "(token)") } else { text }
    }
}

/// A file of root's own (or of whoever runs us, where that is not root) that nobody else can read.
fn private(file: &File) -> Result<(), String> {
    let meta = file.metadata().map_err(|e| e.to_string())?;
    // SAFETY: geteuid takes nothing and cannot fail.
    let us = unsafe { libc::geteuid() };
    match (meta.is_file(), meta.uid(), meta.permissions().mode() & 0o7777) {
        (false, ..) => Err("is no file".to_owned()),
        (_, uid, _) if uid != us => Err(format!("is owned by uid {uid}, not by uid {us}")),
        (_, _, mode) if mode & 0o077 != 0 => {
            Err(format!("can be read or written by others (mode {mode:04o}); allowed: 0600 or 0400"))
        }
        _ => Ok(()),
    }
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
        Token::read(&path).map(|token| token.0)
    }

    #[test]
    fn a_token_is_one_word_of_a_private_file() {
        let secret = "eyJhbGciOi.eyJleHAiOi.s3cr3t-_";
        for text in [secret.to_owned(), format!("{secret}\n"), format!("SLURM_JWT={secret}\n")] {
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
    fn a_token_that_others_can_read_is_not_used() {
        for mode in [0o644, 0o640, 0o604, 0o620, 0o601] {
            let why = read(b"s3cr3t", mode).unwrap_err();
            assert!(why.contains(&format!("(mode {mode:04o}); allowed: 0600 or 0400")), "{why}");
        }
        let folder = tempfile::tempdir().unwrap();
        let why = Token::read(&folder.path().join("none")).err().unwrap();
        assert!(why.contains("No such file"), "{why}");
        assert!(Token::read(folder.path()).err().unwrap().ends_with("is no file"));
    }
}

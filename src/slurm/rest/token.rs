//! The token that slurmrestd asks for. It opens Slurm to whoever holds it: see [`Secret`].

use crate::http::Secret;
use std::path::Path;

/// A token.
pub(super) struct Token(String);

impl Token {
    /// The file's word; `SLURM_JWT=` before it is left out, for that is what `scontrol token` prints.
    ///
    /// # Errors
    /// What is wrong with the file, never what is in it.
    pub fn read(path: &Path) -> Result<Token, String> {
        let secret = Secret::read(path, "token")?;
        let word = secret.word();
        match word.strip_prefix("SLURM_JWT=").unwrap_or(word) {
            "" => Err(format!("token file `{}` holds no token: one word is expected", path.display())),
            token => Ok(Token(token.to_owned())),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_is_what_scontrol_prints_with_or_without_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            Token::read(&path).map(|token| token.0)
        };
        for text in ["s3cr3t", "s3cr3t\n", "SLURM_JWT=s3cr3t\n"] {
            assert_eq!(read(text).as_deref(), Ok("s3cr3t"));
        }
        for text in ["SLURM_JWT=\n", ""] {
            assert!(read(text).unwrap_err().ends_with("holds no token: one word is expected"));
        }
    }
}

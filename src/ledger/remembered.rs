//! Numbers that a look leaves for the next one, by subject: a GPU's error counters, the most GPUs that were ever listed,
//! how far the kernel's log was read. They outlive the boot; whose they are is in the subject.

use super::{Ledger, LedgerError};
use std::collections::BTreeMap;

/// What earlier looks left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remembered(BTreeMap<(String, String), u64>);

impl Remembered {
    /// One number.
    pub fn get(&self, subject: &str, what: &str) -> Option<u64> {
        self.0.get(&(subject.to_owned(), what.to_owned())).copied()
    }
}

impl Ledger {
    /// All of them: a few for each GPU.
    pub fn remembered(&self) -> Result<Remembered, LedgerError> {
        self.read("read what is remembered", |conn| {
            let mut all = conn.prepare("SELECT subject, what, value FROM remembered")?;
            let row = |r: &rusqlite::Row| Ok(((r.get(0)?, r.get(1)?), r.get::<_, i64>(2)? as u64));
            all.query_map([], row)?.collect::<Result<_, _>>().map(Remembered)
        })
    }

    /// Keeps these, in place of what was kept under the same names.
    pub fn remember(&mut self, new: &[(String, &str, u64)]) -> Result<(), LedgerError> {
        self.write("remember for the next run", |tx| {
            let mut keep = tx.prepare("INSERT OR REPLACE INTO remembered VALUES (?1, ?2, ?3)")?;
            for (subject, what, value) in new {
                keep.execute((subject, what, *value as i64))?;
            }
            Ok(())
        })
    }

    /// Forgets one.
    pub fn forget(&mut self, subject: &str, what: &str) -> Result<(), LedgerError> {
        self.write("forget", |tx| {
            let sql = "DELETE FROM remembered WHERE subject = ?1 AND what = ?2";
            tx.execute(sql, (subject, what)).map(|_| ())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;

    #[test]
    fn a_number_is_kept_until_another_one_replaces_it() {
        let (_dir, mut ledger) = fresh();
        assert_eq!(ledger.remembered().unwrap().get("GPU-1", "ecc"), None);
        ledger.remember(&[("GPU-1".to_owned(), "ecc", 3), ("GPU-2".to_owned(), "ecc", u64::MAX)]).unwrap();
        ledger.remember(&[("GPU-1".to_owned(), "ecc", 4)]).unwrap();
        let kept = ledger.remembered().unwrap();
        assert_eq!((kept.get("GPU-1", "ecc"), kept.get("GPU-2", "ecc")), (Some(4), Some(u64::MAX)));
        ledger.forget("GPU-1", "ecc").unwrap();
        assert_eq!(ledger.remembered().unwrap().get("GPU-1", "ecc"), None);
    }
}

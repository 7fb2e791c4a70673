//! Version 5: counts that outlive what was counted.
//!
//! - **`tally` holds whole numbers in small units** (milliseconds of a GPU, deeds, failures): what is pruned, cleared or
//!   ended takes nothing away from them, and sums of integers do not drift. They begin anew only with the ledger.
//! - **Name and labels are two texts**, the key and nothing else: the names are a closed list of
//!   [`super::super::tally::Tally`], which alone writes and reads them. A row that it does not know, of a version that was
//!   here before, is passed over and stays.
//! - **`finding.wasted_gpu_ms`** is what was counted of a finding when it was last kept: the next run adds the growth, in
//!   the transaction that keeps the finding. A run that is killed and repeated counts nothing twice. Of a finding that
//!   stood when version 5 came, only what follows is counted.

/// From version 4.
pub(super) const V5: &str = "
CREATE TABLE tally (
  name TEXT,
  labels TEXT,
  value INTEGER NOT NULL,
  PRIMARY KEY (name, labels)
) STRICT, WITHOUT ROWID;
ALTER TABLE finding ADD COLUMN wasted_gpu_ms INTEGER NOT NULL DEFAULT 0;
";

#[cfg(test)]
mod tests {
    use super::super::MIGRATIONS;
    use crate::ledger::testing::*;
    use crate::ledger::{Ledger, Tally};
    use rusqlite::Connection;

    #[test]
    fn a_ledger_of_version_4_keeps_its_findings_and_counts_what_follows() {
        let dir = tempfile::tempdir().unwrap();
        let conn = Connection::open(dir.path().join("ledger.db")).unwrap();
        MIGRATIONS[..4].iter().for_each(|step| conn.execute_batch(step).unwrap());
        let rows = format!(
            "INSERT INTO meta VALUES (1, '{}', '{BOOT}', 0, 0, 0, NULL, NULL, NULL);
             INSERT INTO boot VALUES (1, '{BOOT}', 1);
             INSERT INTO finding VALUES (7, 4242, 0, '4242', 5, 'hung', 'whole', 'GPU-1', 1, 10, 20, 30, 40, 2, 3, NULL,
                 NULL, NULL);
             PRAGMA user_version = 4;",
            node()
        );
        conn.execute_batch(&rows).unwrap();
        drop(conn);
        let mut ledger = Ledger::open(dir.path(), &node(), &at(0), OPENING).unwrap();
        let found = ledger.open_findings().unwrap().remove(0);
        assert_eq!((found.id, found.certified_ms, found.units.as_str()), (7, 40, "GPU-1"));
        assert_eq!(count(&ledger, "finding WHERE wasted_gpu_ms = 0"), 1);
        assert_eq!(ledger.tallies().unwrap().iter().count(), 0);
        ledger.count(&[(Tally::BlockedGpuMs, 7)]).unwrap();
        assert_eq!(ledger.tallies().unwrap().blocked_gpu_ms(), 7);
    }
}

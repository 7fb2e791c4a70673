//! What the ledger looks like: an append-only list of migrations, each argued in a file of its own. Never edited
//! once released: a change is a further entry. `PRAGMA user_version` is the number of entries applied.

/// A trigger that lets only open registrations own rows of a table.
macro_rules! owned {
    ($table:literal) => {
        concat!(
            "CREATE TRIGGER ",
            $table,
            "_owner BEFORE INSERT ON ",
            $table,
            " WHEN NEW.job_run NOTNULL AND NOT EXISTS
  (SELECT 1 FROM job_run WHERE id = NEW.job_run AND closed_how ISNULL)
BEGIN SELECT RAISE(FAIL, 'no open registration of this job run'); END;\n"
        )
    };
}

mod v1;
mod v2;
mod v3;
mod v4;
mod v5;

/// The migrations, oldest first.
pub(super) const MIGRATIONS: &[&str] = &[v1::V1, v2::V2, v3::V3, v4::V4, v5::V5];

//! Version 2: energy and the driver's fields beside the other readings, a job's working set, what cards were
//! learnt to draw at rest.
//!
//! - **Energy is a pair of columns of `sample`** and no longer rows of `counter`, which is gone: eight insertions
//!   and a query less in each run of eight GPUs.
//! - **The processes of a unit are a text in its sample** and no longer rows of `proc`, which is gone too: no rule
//!   reads them, only people do, by `SELECT processes`. They cost a table, a trigger, an insertion each, a page in
//!   every run and a fifth of the file. One is `pid C|G|M start memory` (compute, graphics, MPS; ticks since boot;
//!   MiB, or bytes without an `M`); `?` and the code of its absence stand for a number that was not read. Its job
//!   run follows where that is not the unit's, `-` for none. They belong to an open registration as their sample
//!   does, and are left out when it is packed.
//! - **[`crate::model::Fields`] are one column, packed** ([`crate::model::Fields::pack`]). As columns they would be
//!   sixty, which SQLite parses at every opening and checks at every insertion; as rows, two hundred insertions a
//!   run. Each is a value or a code by the form itself, as the pairs of columns are by CHECK; the form grows at its
//!   end, so that a new field needs no migration: what an older row does not hold was not recorded. Nobody selects
//!   by them.
//! - **Samples that are no longer the newest are packed**, those of a job run in one run into one row of `past`: they
//!   were checked when they came and belong to whom they belong. A unit's 38 columns take 13 000 instructions to be
//!   read, packed 2 000, and the history of a job that hangs is read whole in every run. Rows for people are the
//!   newest, and those of units that no job held.
//! - **What a card draws at rest stands in its row of `unit`**: as a table it would be parsed at every opening and
//!   pruned with the units. Each is NULL until it was learnt; none has a CHECK, because nothing but a number above
//!   0 is ever written or believed. They only ever veto.
//! - **One comparison of two rows says of all pairs that exactly one half is there**: a comparison a pair took SQLite
//!   a fifth longer to parse, to compile and to check.
//! - **`sample` and `job_sample` are built anew** and filled from what was there: a CHECK cannot be changed, and a
//!   default that stood in for the reason of an absence would stay for good. A row that breaks the CHECK can only
//!   be damage and is left behind. The file may need the space of both for as long as that takes.

/// From version 1. Absence 14 is "not recorded".
pub(super) const V2: &str = concat!(
    "
DROP TRIGGER sample_owner;
DROP TRIGGER job_sample_owner;
ALTER TABLE sample RENAME TO sample_1;
ALTER TABLE job_sample RENAME TO job_sample_1;

CREATE TABLE sample (
  run INTEGER,
  unit INTEGER,
  job_run INTEGER,
  sm_util INTEGER,
  sm_util_absent INTEGER,
  mem_util INTEGER,
  mem_util_absent INTEGER,
  sm_peak INTEGER,
  sm_peak_covered_ms INTEGER,
  sm_peak_absent INTEGER,
  mem_peak INTEGER,
  mem_peak_covered_ms INTEGER,
  mem_peak_absent INTEGER,
  mem_used INTEGER,
  mem_total INTEGER,
  mem_excludes_reserved INTEGER,
  mem_absent INTEGER,
  power_mw INTEGER,
  power_absent INTEGER,
  power_limit_mw INTEGER,
  power_limit_absent INTEGER,
  energy_mj INTEGER,
  energy_absent INTEGER,
  sm_clock_mhz INTEGER,
  sm_clock_absent INTEGER,
  sm_clock_max_mhz INTEGER,
  sm_clock_max_absent INTEGER,
  temperature_c INTEGER,
  temperature_absent INTEGER,
  clocks_event INTEGER,
  clocks_event_absent INTEGER,
  mig INTEGER,
  mig_absent INTEGER,
  processes_compute INTEGER,
  processes_graphics INTEGER,
  processes_absent INTEGER,
  processes TEXT NOT NULL,
  fields BLOB NOT NULL,
  PRIMARY KEY (run, unit),
  CHECK (sm_util BETWEEN 0 AND 100
    AND mem_util BETWEEN 0 AND 100
    AND sm_peak BETWEEN 0 AND 100
    AND mem_peak BETWEEN 0 AND 100
    AND mem_used BETWEEN 0 AND mem_total
    AND energy_mj >= 0
    AND (sm_util ISNULL, mem_util ISNULL, sm_peak ISNULL, mem_peak ISNULL, mem_used ISNULL,
        power_mw ISNULL, power_limit_mw ISNULL, energy_mj ISNULL, sm_clock_mhz ISNULL,
        sm_clock_max_mhz ISNULL, temperature_c ISNULL, clocks_event ISNULL, mig ISNULL,
        processes_compute ISNULL)
      = (sm_util_absent NOTNULL, mem_util_absent NOTNULL, sm_peak_absent NOTNULL, mem_peak_absent NOTNULL,
        mem_absent NOTNULL, power_absent NOTNULL, power_limit_absent NOTNULL, energy_absent NOTNULL,
        sm_clock_absent NOTNULL, sm_clock_max_absent NOTNULL, temperature_absent NOTNULL,
        clocks_event_absent NOTNULL, mig_absent NOTNULL, processes_absent NOTNULL)
    AND (sm_peak ISNULL, mem_peak ISNULL, mem_used ISNULL, mem_used ISNULL, processes_compute ISNULL)
      = (sm_peak_covered_ms ISNULL, mem_peak_covered_ms ISNULL, mem_total ISNULL,
        mem_excludes_reserved ISNULL, processes_graphics ISNULL))
) STRICT, WITHOUT ROWID;

CREATE TABLE job_sample (
  run INTEGER,
  job_run INTEGER,
  frozen INTEGER,
  frozen_absent INTEGER,
  cpu_ms INTEGER,
  cpu_absent INTEGER,
  written_bytes INTEGER,
  written_absent INTEGER,
  read_bytes INTEGER,
  read_absent INTEGER,
  working_set_bytes INTEGER,
  working_set_absent INTEGER,
  holders INTEGER,
  holders_absent INTEGER,
  PRIMARY KEY (run, job_run),
  CHECK (frozen IN (0, 1)
    AND (frozen ISNULL, cpu_ms ISNULL, written_bytes ISNULL, read_bytes ISNULL, working_set_bytes ISNULL,
        holders ISNULL)
      = (frozen_absent NOTNULL, cpu_absent NOTNULL, written_absent NOTNULL, read_absent NOTNULL,
        working_set_absent NOTNULL, holders_absent NOTNULL))
) STRICT, WITHOUT ROWID;

CREATE TABLE past (
  run INTEGER,
  job_run INTEGER,
  units INTEGER NOT NULL,
  readings BLOB NOT NULL,
  PRIMARY KEY (run, job_run)
) STRICT, WITHOUT ROWID;

INSERT OR IGNORE INTO sample
  SELECT s.run, s.unit, job_run, sm_util, sm_util_absent, mem_util, mem_util_absent,
    sm_peak, sm_peak_covered_ms, sm_peak_absent, mem_peak, mem_peak_covered_ms, mem_peak_absent,
    mem_used, mem_total, mem_excludes_reserved, mem_absent,
    power_mw, power_absent, power_limit_mw, power_limit_absent,
    c.value, iif(c.run ISNULL, 14, c.value_absent),
    sm_clock_mhz, sm_clock_absent, sm_clock_max_mhz, sm_clock_max_absent,
    temperature_c, temperature_absent, clocks_event, clocks_event_absent, mig, mig_absent,
    processes_compute, processes_graphics, processes_absent,
    (SELECT ifnull(group_concat(pid || ' ' || substr('CGM', kind, 1)
         || ' ' || ifnull(start_ticks, '?' || start_absent)
         || ' ' || CASE WHEN memory_bytes ISNULL THEN '?' || memory_absent
             WHEN memory_bytes % 1048576 = 0 THEN (memory_bytes / 1048576) || 'M' ELSE memory_bytes END
         || iif(p.job_run IS s.job_run, '', ' ' || ifnull(p.job_run, '-')), ', '), '')
     FROM proc p WHERE p.run = s.run AND p.unit = s.unit),
    x''
  FROM sample_1 s
  LEFT JOIN counter c ON c.run = s.run AND c.unit = s.unit AND c.kind = 1 AND c.scope = 0;
INSERT OR IGNORE INTO job_sample SELECT *, NULL, 14, NULL, 14 FROM job_sample_1;

DROP TABLE sample_1;
DROP TABLE job_sample_1;
DROP TABLE counter;
DROP TABLE proc;
",
    owned!("sample"),
    owned!("job_sample"),
    "
ALTER TABLE unit ADD COLUMN empty_low_mw INTEGER;
ALTER TABLE unit ADD COLUMN empty_high_mw INTEGER;
ALTER TABLE unit ADD COLUMN context_low_mw INTEGER;
ALTER TABLE unit ADD COLUMN context_high_mw INTEGER;
ALTER TABLE unit ADD COLUMN learnt_wall_ms INTEGER;
"
);

#[cfg(test)]
mod tests {
    use super::super::super::testing::*;
    use super::super::super::{JobAsked, Ledger, Opening};
    use super::super::v1::V1;
    use crate::model::*;
    use crate::reading::Absence;
    use crate::reading::Reading::{Absent, Measured};
    use crate::units::*;
    use rusqlite::Connection;
    use rusqlite::types::Value;
    use std::path::Path;

    /// A ledger as version 1 left it: a row in every table, and of the samples one with an energy, one whose energy
    /// could not be read, one without, and one of a job run that is over.
    const ROWS: &str = "
        INSERT INTO meta VALUES (1, 'gpu-a7', 'boot-1', 1000, 2000, 1, 60000, 61000, 3);
        INSERT INTO boot VALUES (1, 'boot-1', 1);
        INSERT INTO run VALUES
            (1, 1, 60000, 70000, 'ok', NULL, '580.65.06', NULL, NULL, 0),
            (2, 1, 120000, 130000, 'killed', 'gpus', NULL, 14, 14, 0),
            (3, 1, 180000, 190000, 'ok', NULL, '580.65.06', NULL, NULL, 2);
        INSERT INTO unit VALUES
            (1, 'GPU-1', NULL, NULL, NULL, 0, 0, NULL, '0000:01:00.0', NULL, 'NVIDIA H100', NULL, 3),
            (2, 'MIG-2', 'GPU-9', 3, 0, 1, NULL, 1, NULL, 2, NULL, 7, 3);
        INSERT INTO job_run VALUES
            (5, 1, 4242, 0, 'prolog', 500, 0, 400, 410, 'slurm', NULL, NULL, NULL, 0, NULL, NULL),
            (6, 1, 77, 1, 'discovery', 500, 0, 400, 410, 'registration', 70, 600, 700, 1, 'ended', 800);
        INSERT INTO job_fact VALUES (5, 'user', 'ada', NULL), (5, 'qos', NULL, 8);
        INSERT INTO proc VALUES
            (3, 1, 1000, 1, 5, 77, NULL, NULL, 3), (3, 1, 1001, 3, NULL, NULL, 8, 4096, NULL),
            (1, 1, 1000, 2, 5, 77, NULL, 64424509440, NULL);
        INSERT INTO job_sample VALUES (3, 5, 0, NULL, 17, NULL, NULL, 3, 9, NULL);
        INSERT INTO ended VALUES (1, 77, 1, 800, 6);
        INSERT INTO finding VALUES
            (1, 4242, 0, '4242', 5, 'hung', 'whole', '0', 1, 600, 610, 700, 50, 1, 3, NULL, NULL, NULL);
        INSERT INTO action VALUES (1, 1, 'drain', 'gpu-a7', 4242, 0, 410, 5, 1, 900, 3, 910, 'hung',
            'State=IDLE', 'gpu-reaper: job=4242', 'done', 'ok', NULL);
        INSERT INTO withheld VALUES (5, 'cancel', 'no', 1, 2, 3, 4, 5);
        INSERT INTO outbox VALUES (1, 's', 'b', 1, 1, 2, 3, NULL);
        INSERT INTO fault VALUES (1, 'collector', 'gpus', 'd', 1, 2, 3, NULL);
        INSERT INTO case_file VALUES (1, 77, 1, '77', 800, '{}');
        INSERT INTO question VALUES ('list', 1, 2, 0, 3, 'x');
        INSERT INTO counter VALUES (1, 1, 1, 0, 5000, NULL), (1, 2, 1, 0, NULL, 4);";

    /// Of run, unit, owner: 30 % and every other reading absent but a few.
    fn sample(run: i64, unit: i64, owner: &str) -> String {
        format!(
            "INSERT INTO sample VALUES ({run}, {unit}, {owner}, 30, NULL, NULL, 1, 40, 16000, NULL, NULL, NULL, 2,
                 7, 80, 1, NULL, 92000, NULL, NULL, 3, NULL, 4, 1980, NULL, 64, NULL, -1, NULL, 1, NULL, 2, 1, NULL);"
        )
    }

    fn version_1(path: &Path) -> Connection {
        let conn = Connection::open(path).unwrap();
        conn.execute_batch(V1).unwrap();
        conn.execute_batch(ROWS).unwrap();
        conn.execute_batch("UPDATE job_run SET closed_how = NULL, closed_wall_ms = NULL").unwrap();
        let samples = [sample(1, 1, "5"), sample(1, 2, "6"), sample(3, 1, "5"), sample(3, 2, "NULL")];
        conn.execute_batch(&samples.concat()).unwrap();
        conn.execute_batch("UPDATE job_run SET closed_how = 'ended', closed_wall_ms = 800 WHERE id = 6")
            .unwrap();
        conn.pragma_update(None, "user_version", 1).unwrap();
        conn
    }

    fn names(conn: &Connection, sql: &str) -> Vec<String> {
        conn.prepare(sql).unwrap().query_map([], |r| r.get(0)).unwrap().map(Result::unwrap).collect()
    }

    /// These columns of a table, in its order.
    fn rows(conn: &Connection, table: &str, columns: &[String]) -> Vec<Vec<Value>> {
        let list = columns.join(", ");
        let mut all = conn.prepare(&format!("SELECT {list} FROM {table} ORDER BY 1, 2")).unwrap();
        let row = |r: &rusqlite::Row| (0..columns.len()).map(|c| r.get(c)).collect();
        all.query_map([], row).unwrap().map(Result::unwrap).collect()
    }

    fn opened(dir: &Path, max_bytes: u64) -> Ledger {
        let now = Now { boot_id: "boot-1".to_owned(), boot: BootMs(240_000), wall: WallMs(250_000) };
        Ledger::open(dir, &node(), &now, Opening { max_bytes, ..OPENING }).unwrap()
    }

    #[test]
    fn a_ledger_of_version_1_opens_and_keeps_everything() {
        let dir = tempfile::tempdir().unwrap();
        let conn = version_1(&dir.path().join("ledger.db"));
        let tables = names(
            &conn,
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT IN ('counter', 'proc')",
        );
        let before: Vec<_> = tables
            .iter()
            .map(|table| {
                let columns = names(&conn, &format!("SELECT name FROM pragma_table_info('{table}')"));
                let all = rows(&conn, table, &columns);
                assert!(!all.is_empty(), "{table}");
                (table, columns, all)
            })
            .collect();
        drop(conn);
        let ledger = opened(dir.path(), 64 << 20);
        for (table, columns, all) in before {
            assert_eq!(rows(&ledger.conn, table, &columns), all, "{table}");
        }
        let of_version_1 =
            "sqlite_schema WHERE name IN ('counter', 'proc', 'proc_owner', 'sample_1', 'job_sample_1')";
        assert_eq!(count(&ledger, of_version_1), 0);
        let sound: String = ledger.conn.query_row("PRAGMA integrity_check", [], |r| r.get(0)).unwrap();
        assert_eq!(sound, "ok");
    }

    #[test]
    fn what_version_1_recorded_is_replayed_and_what_it_did_not_is_not_recorded() {
        let dir = tempfile::tempdir().unwrap();
        drop(version_1(&dir.path().join("ledger.db")));
        let ledger = opened(dir.path(), 64 << 20);
        let run = ledger.open_runs("boot-1").unwrap().remove(0);
        let units = Measured(ledger.units_of(run.id).unwrap());
        let asked = vec![JobAsked { run, units, reach: None }];
        let history = ledger.replay("boot-1", asked, Measured(2), &mut |_| false, true).unwrap().remove(0);
        let [old, killed, new] = &history.ticks[..] else { panic!("{:?}", history.ticks) };
        assert_eq!(killed.units, [Observation::absent(Absence::NotRecorded)]);
        let unrecorded = Absent(Absence::NotRecorded);
        assert_eq!(old.units[0].energy, Measured(Millijoules(5000)));
        assert_eq!(new.units[0].energy, Absent(Absence::NotRecorded));
        assert_eq!(new.units[0].fields, Fields::absent(Absence::NotRecorded));
        assert_eq!(new.units[0].clocks_event, Measured(ClocksEventMask(u64::MAX)));
        assert_eq!((new.job.cpu_ms, new.job.working_set_bytes), (Measured(17), unrecorded));
        assert_eq!(history.floors, [LearntFloors::none()]);
        let lost =
            format!("sample WHERE run = 1 AND unit = 2 AND energy_absent = {}", Absence::GpuLost.code());
        assert_eq!(count(&ledger, &lost), 1);
        let listed = "sample WHERE processes = '1000 C 77 ?3, 1001 M ?8 4096 -' AND run = 3 AND unit = 1";
        assert_eq!((count(&ledger, listed), count(&ledger, "sample WHERE processes = ''")), (1, 2));
        assert_eq!(count(&ledger, "sample WHERE processes = '1000 G 77 61440M'"), 1);
    }

    #[test]
    fn only_open_registrations_own_rows_after_the_migration_too() {
        let dir = tempfile::tempdir().unwrap();
        drop(version_1(&dir.path().join("ledger.db")));
        let ledger = opened(dir.path(), 64 << 20);
        for table in ["sample", "job_sample"] {
            let sql = format!("INSERT INTO {table} (run, job_run) VALUES (9, 6)");
            let error = ledger.conn.execute(&sql, []).unwrap_err().to_string();
            assert!(error.contains("no open registration"), "{table}: {error}");
        }
    }

    #[test]
    fn a_full_ledger_is_migrated_and_a_damaged_row_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.db");
        let conn = version_1(&path);
        conn.execute_batch(
            "PRAGMA ignore_check_constraints = ON; UPDATE sample SET sm_util = 120 WHERE run = 3 AND unit = 2;
             WITH RECURSIVE n(i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n WHERE i < 6000)
             INSERT INTO counter SELECT i, 1, 1, 0, i, NULL FROM n",
        )
        .unwrap();
        let copies = "WITH RECURSIVE n(i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n WHERE i < 6000)
                      INSERT INTO sample SELECT n.i, s.* FROM n, (SELECT * FROM sample WHERE run = 1 AND unit = 1) s";
        let columns = names(&conn, "SELECT name FROM pragma_table_info('sample') WHERE cid > 0").join(", ");
        conn.execute_batch(&copies.replace("s.*", &columns)).unwrap();
        drop(conn);
        let size = std::fs::metadata(&path).unwrap().len();
        let ledger = opened(dir.path(), size);
        assert_eq!(count(&ledger, "sample"), 3 + 5991);
        assert_eq!(count(&ledger, "sample WHERE energy_mj = run"), 5991);
    }
}

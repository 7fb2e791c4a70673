//! Forgetting: a little at a time, bounded, so that the file reaches its size and stays there. Rows of this
//! boot go by its clock; rows of other boots by the wall clock, which may have stepped: such a row that
//! claims to be of the future is of no use to anybody and goes too.

use super::unit::LAG_RUNS;
use crate::model::Now;
use rusqlite::{Statement, Transaction};

/// Pruning by age comes every so many runs of a boot: a dozen statements have to be prepared for it.
pub(super) const EVERY: i64 = 16;
/// The most runs that are forgotten at once; more than come in between, so that a backlog shrinks.
const MOST_RUNS: i64 = 64;
/// Actions are few, and somebody may ask a quarter later.
const ACTIONS_MS: i64 = 90 * 86_400_000;
/// Tombstones and questions: longer than any run or Epilog can still be on its way.
const SHORT_MS: i64 = 86_400_000;
/// The most case files, whatever their age.
pub const MOST_CASE_FILES: usize = 200;
/// The most letters about what is over, whatever their age.
const MOST_LETTERS: usize = 200;

/// How long things are kept, and how large the file may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Samples.
    pub samples_ms: i64,
    /// Archived samples of ended job runs, and the rows of runs.
    pub archive_ms: i64,
    /// Case files.
    pub case_files_ms: i64,
    /// The ceiling of the file. Pruning by size begins at seven eighths of it: before the cap, not at it,
    /// because at it even a deletion can fail (louislam/uptime-kuma#4581).
    pub max_bytes: u64,
}

/// Before each append: room for it, where the ceiling is near. The oldest samples go first, which are archived
/// ones as long as there are any beyond their own time.
pub(super) fn make_room(tx: &Transaction, keep: &Keep) -> rusqlite::Result<()> {
    let number = |pragma: &str| tx.query_row(pragma, [], |r| r.get::<_, i64>(0));
    let pages = number("PRAGMA page_count")?;
    let limit = i64::try_from(keep.max_bytes / 4096 / 8 * 7).unwrap_or(i64::MAX);
    // The file itself never shrinks: what counts are the pages in use.
    if pages <= limit || pages - number("PRAGMA freelist_count")? <= limit {
        return Ok(());
    }
    let oldest: Option<i64> = tx.query_row(
        "SELECT min(run) FROM (SELECT min(run) AS run FROM sample UNION ALL SELECT min(run) FROM past)",
        [],
        |r| r.get(0),
    )?;
    oldest.map_or(Ok(()), |run| forget_runs(tx, run + MOST_RUNS))
}

/// Every so many runs: what has aged.
pub(super) fn aged(tx: &Transaction, boot: i64, now: &Now, keep: &Keep) -> rusqlite::Result<()> {
    let thinned: i64 = tx.query_row("SELECT thinned_run FROM meta", [], |r| r.get(0))?;
    let mut oldest =
        tx.prepare("SELECT id, boot, boottime_ms, wall_ms FROM run WHERE id > ?1 ORDER BY id LIMIT ?2")?;
    if let Some(run) = last_aged(&mut oldest, boot, now, thinned, keep.samples_ms)? {
        thin(tx, thinned, run)?;
    }
    let archive_ms = keep.archive_ms.max(keep.samples_ms);
    if let Some(run) = last_aged(&mut oldest, boot, now, 0, archive_ms)? {
        forget_runs(tx, run)?;
    }
    small_tables(tx, boot, now, keep)
}

/// Of the oldest runs after `after`, the newest that is older than `keep_ms`.
fn last_aged(
    oldest: &mut Statement,
    boot: i64,
    now: &Now,
    after: i64,
    keep_ms: i64,
) -> rusqlite::Result<Option<i64>> {
    let mut rows = oldest.query([after, MOST_RUNS])?;
    let mut last = None;
    while let Some(row) = rows.next()? {
        let age_ms = match row.get::<_, i64>(1)? == boot {
            true => now.boot.0.saturating_sub(row.get(2)?),
            false => match now.wall.0.saturating_sub(row.get(3)?) {
                future if future < 0 => i64::MAX,
                age_ms => age_ms,
            },
        };
        if age_ms <= keep_ms {
            break;
        }
        last = Some(row.get(0)?);
    }
    Ok(last)
}

/// Takes from the runs after `after` up to `run` what is of no archived job run.
fn thin(tx: &Transaction, after: i64, run: i64) -> rusqlite::Result<()> {
    let aged = "run > ?1 AND run <= ?2";
    for table in ["sample", "past", "job_sample"] {
        let sql = format!(
            "DELETE FROM {table} WHERE {aged} AND NOT EXISTS
                 (SELECT 1 FROM job_run j WHERE j.id = {table}.job_run AND j.archived)"
        );
        tx.execute(&sql, [after, run])?;
    }
    tx.execute("UPDATE meta SET thinned_run = ?1", [run])?;
    Ok(())
}

fn forget_runs(tx: &Transaction, run: i64) -> rusqlite::Result<()> {
    for table in ["sample", "past", "job_sample"] {
        tx.execute(&format!("DELETE FROM {table} WHERE run <= ?1"), [run])?;
    }
    // The newest row stays: by it the next number is told, and no number returns.
    tx.execute("DELETE FROM run WHERE id <= ?1 AND id < (SELECT max(id) FROM run)", [run])?;
    Ok(())
}

/// Each statement is a scan of few rows.
fn small_tables(tx: &Transaction, boot: i64, now: &Now, keep: &Keep) -> rusqlite::Result<()> {
    let wall = now.wall.0;
    let long = wall.saturating_sub(keep.archive_ms.max(keep.samples_ms));
    let short = wall.saturating_sub(SHORT_MS);
    tx.execute(
        "DELETE FROM job_run WHERE (closed_how IS NOT NULL OR boot <> ?1)
         AND coalesce(closed_wall_ms, start_wall_ms) < ?2",
        (boot, long),
    )?;
    // Nothing else closes what a run of an earlier boot left open.
    tx.execute(
        "UPDATE finding SET closed_how = 'lost', closed_wall_ms = ?1
         WHERE closed_wall_ms ISNULL AND job_run NOT IN (SELECT id FROM job_run)",
        [wall],
    )?;
    for table in ["job_fact", "withheld"] {
        let sql = format!("DELETE FROM {table} WHERE job_run NOT IN (SELECT id FROM job_run)");
        tx.execute(&sql, [])?;
    }
    tx.execute("DELETE FROM ended WHERE boot <> ?1 OR ended_wall_ms < ?2", (boot, short))?;
    // What is asked once a boot keeps its answer as long.
    tx.execute(
        "DELETE FROM question WHERE boot <> ?1 OR (asked_boot_ms < ?2 AND answer IS NOT 'for this boot')",
        (boot, now.boot.0.saturating_sub(SHORT_MS)),
    )?;
    let actions = wall.saturating_sub(ACTIONS_MS);
    // As long as it stands: that somebody was told of it is why its end is told, and it is told no second time.
    let newest = format!("SELECT id FROM outbox ORDER BY id DESC LIMIT 1 OFFSET {MOST_LETTERS}");
    let letters = format!(
        "DELETE FROM outbox WHERE (coalesce(sent_wall_ms, queued_wall_ms) < ?1 OR id <= ({newest}))
         AND NOT EXISTS (SELECT 1 FROM finding f WHERE f.closed_wall_ms ISNULL
             AND outbox.subject LIKE '% finding ' || f.id || ' %')
         AND NOT EXISTS (SELECT 1 FROM fault f WHERE f.closed_wall_ms ISNULL
             AND outbox.subject LIKE '% fault ' || f.id || ' %')"
    );
    tx.execute(&letters, [actions])?;
    // Our drain that still stands is remembered as long as it stands. The newest of each stays: by it the next number is
    // told, and none comes again that a message names.
    tx.execute(
        "DELETE FROM action WHERE wall_ms < ?1 AND id < (SELECT max(id) FROM action)
         AND NOT (verdict = 'drain' AND outcome IN ('begun', 'done', 'unknown'))",
        [actions],
    )?;
    tx.execute(
        "DELETE FROM finding WHERE closed_wall_ms < ?1 AND id < (SELECT max(id) FROM finding)",
        [actions],
    )?;
    tx.execute("DELETE FROM fault_drain WHERE wall_ms < ?1 AND outcome IN ('failed', 'lifted')", [actions])?;
    // A number that a drain names must not come again.
    tx.execute(
        "DELETE FROM fault WHERE closed_wall_ms < ?1 AND id < (SELECT max(id) FROM fault)
         AND id NOT IN (SELECT fault FROM fault_drain)",
        [actions],
    )?;
    let files = wall.saturating_sub(keep.case_files_ms);
    tx.execute("DELETE FROM case_file WHERE created_wall_ms < ?1", [files])?;
    let newest = format!("SELECT id FROM case_file ORDER BY id DESC LIMIT 1 OFFSET {MOST_CASE_FILES}");
    tx.execute(&format!("DELETE FROM case_file WHERE id <= ({newest})"), [])?;
    let forgotten = "DELETE FROM unit WHERE last_run < (SELECT min(id) FROM run) - ?1";
    tx.execute(forgotten, [LAG_RUNS])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Ledger;
    use super::super::testing::*;
    use super::*;
    use crate::model::RunId;

    #[test]
    fn who_was_told_of_what_stands_is_known_as_long_as_it_stands() {
        // Else its end would be told to nobody, and its beginning a second time.
        let (_dir, mut ledger) = fresh();
        for (kind, minute) in [("ecc", 0), ("fabric", 1)] {
            ledger.fault_seen(kind, "GPU-1", "x", RunId(1), &at(minute)).unwrap();
        }
        ledger.fault_gone(2, &at(2)).unwrap();
        for letter in
            ["slack fault 1 alert", "exec fault 1 alert", "slack fault 2 alert", "slack fault 12 alert"]
        {
            ledger.queue_letter(letter, "text", at(3).boot, &at(3)).unwrap();
        }
        for n in 0..MOST_LETTERS {
            ledger.queue_letter(&format!("slack drain {n} stays"), "text", at(4).boot, &at(4)).unwrap();
        }
        let prune = |ledger: &mut Ledger, now: &Now| {
            ledger.write("prune", |tx| small_tables(tx, 1, now, &KEEP)).unwrap();
        };
        let known = |ledger: &Ledger| -> Vec<String> {
            let sql = "SELECT subject FROM outbox WHERE subject LIKE '% fault %' ORDER BY id";
            let mut found = ledger.conn.prepare(sql).unwrap();
            found.query_map([], |r| r.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
        };
        prune(&mut ledger, &at(5));
        assert_eq!(known(&ledger), ["slack fault 1 alert", "exec fault 1 alert"]);
        prune(&mut ledger, &at(200 * 24 * 60));
        assert_eq!(known(&ledger).len(), 2, "however long it stands");
        ledger.fault_gone(1, &at(200 * 24 * 60)).unwrap();
        prune(&mut ledger, &at(200 * 24 * 60));
        assert_eq!(known(&ledger), [""; 0]);
    }
}

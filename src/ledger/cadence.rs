//! How often runs really come: measured from the runs themselves and kept in `meta`, so that most runs only
//! read two numbers. Says nothing where too little is known, never a usual value.

use super::{Boot, Ledger, LedgerError};
use crate::model::{Cadence, Now, RunId};
use crate::reading::Reading::{Absent, Measured};
use crate::reading::{Absence, Reading};
use crate::units::BootMs;
use rusqlite::{OptionalExtension, Transaction};

/// How far back spacings count.
const SPAN_MS: i64 = 24 * 3_600_000;
/// Measured anew after so many runs; early in a boot, when each one tells, at every run.
const RENEW: i64 = 30;
/// What is measured at once: so many stretches of so many runs.
const STRETCHES: i64 = 8;
const STRETCH: i64 = 20;

impl Ledger {
    /// The spacing of this boot's runs over the last 24 h, as last measured: at most 30 runs ago.
    /// `NoData` with fewer than three spacings.
    pub fn cadence(&self, now: &Now) -> Result<Reading<Cadence>, LedgerError> {
        self.read("read the cadence", |conn| {
            let Some(Boot { first_run: Some(first), .. }) = self.boot(&now.boot_id)? else {
                return Ok(Absent(Absence::NoData));
            };
            let kept = conn
                .query_row(
                    "SELECT cadence_median_ms, cadence_p90_ms FROM meta
                     WHERE cadence_run >= ?1 AND cadence_median_ms NOT NULL",
                    [first],
                    |r| Ok(Cadence { median_ms: r.get(0)?, p90_ms: r.get(1)? }),
                )
                .optional()?;
            Ok(kept.map_or(Absent(Absence::NoData), Measured))
        })
    }

    /// The first run of this boot.
    pub fn first_run(&self, now: &Now) -> Result<Option<RunId>, LedgerError> {
        self.read("look for the first run of this boot", |_| {
            Ok(self.boot(&now.boot_id)?.and_then(|boot| boot.first_run).map(RunId))
        })
    }

    /// The newest run; 0 before the first.
    pub fn newest_run_id(&self) -> Result<RunId, LedgerError> {
        self.read("look for the newest run", |conn| {
            conn.query_row("SELECT coalesce(max(id), 0) FROM run", [], |r| r.get(0).map(RunId))
        })
    }

    /// When the newest run of this boot sampled.
    pub fn newest_run(&self, now: &Now) -> Result<Option<BootMs>, LedgerError> {
        self.read("look for the newest run", |conn| {
            let boot = self.boot(&now.boot_id)?.map(|b| b.id);
            let sql = "SELECT boottime_ms FROM run WHERE boot = ?1 ORDER BY id DESC LIMIT 1";
            conn.query_row(sql, [boot], |r| r.get(0).map(BootMs)).optional()
        })
    }
}

/// Renews the cadence where it is due. Gives the number of this run within its boot, from 0.
pub(super) fn keep(tx: &Transaction, boot: Boot, run: RunId, now: &Now) -> rusqlite::Result<i64> {
    let number = match boot.first_run {
        Some(first) => run.0 - first,
        None => {
            tx.execute("UPDATE boot SET first_run = ?2 WHERE id = ?1", (boot.id, run.0))?;
            0
        }
    };
    if number < RENEW || number % RENEW == 0 {
        let first = boot.first_run.unwrap_or(run.0);
        let measured = measure(tx, boot.id, run, first, now)?;
        let (median, p90) = (measured.map(|c| c.median_ms), measured.map(|c| c.p90_ms));
        tx.execute(
            "UPDATE meta SET cadence_median_ms = ?1, cadence_p90_ms = ?2, cadence_run = ?3",
            (median, p90, run.0),
        )?;
    }
    Ok(number)
}

/// From a bounded part of the span: stretches of runs that follow one another, so that a rhythm of several runs
/// shows in each, spread evenly over it.
fn measure(
    tx: &Transaction,
    boot: i64,
    run: RunId,
    first_run: i64,
    now: &Now,
) -> rusqlite::Result<Option<Cadence>> {
    let mut spacings = Vec::new();
    let oldest = oldest_within(tx, first_run, run.0, now.boot.0 - SPAN_MS)?;
    let mut stretch =
        tx.prepare("SELECT boottime_ms FROM run WHERE id > ?1 AND id <= ?2 AND boot = ?3 ORDER BY id")?;
    let runs = run.0 - oldest + 1;
    let (stretches, length) = if runs <= STRETCHES * STRETCH { (1, runs) } else { (STRETCHES, STRETCH) };
    for n in 0..stretches {
        let last = run.0 - (runs - length) * n / (stretches - 1).max(1);
        let mut rows = stretch.query((last - length, last, boot))?;
        let mut earlier: Option<i64> = None;
        while let Some(row) = rows.next()? {
            let at: i64 = row.get(0)?;
            // Two runs of one instant, or damage: no spacing.
            spacings.extend(earlier.map(|earlier| at - earlier).filter(|ms| *ms > 0));
            earlier = Some(at);
        }
    }
    Ok(Cadence::of(spacings))
}

/// The oldest of a boot's runs that was not before `since`, found by halving: their time only grows. Where rows
/// are missing the next older one speaks for them.
fn oldest_within(tx: &Transaction, first: i64, newest: i64, since: i64) -> rusqlite::Result<i64> {
    let mut time = tx.prepare("SELECT boottime_ms FROM run WHERE id <= ?1 ORDER BY id DESC LIMIT 1")?;
    let (mut before, mut within) = (first - 1, newest);
    while within - before > 1 {
        let middle = before + (within - before) / 2;
        let at: Option<i64> = time.query_row([middle], |r| r.get(0)).optional()?;
        match at.is_some_and(|at| at >= since) {
            true => within = middle,
            false => before = middle,
        }
    }
    Ok(within)
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    #[test]
    fn the_cadence_is_measured_and_absent_where_too_little_is_known() {
        let (_dir, mut ledger) = fresh();
        for minute in 0..3 {
            Brought::at(minute, report(1, 0)).append(&mut ledger);
            assert_eq!(ledger.cadence(&at(minute)).unwrap(), Absent(Absence::NoData));
        }
        // One hole among spacings of a minute moves neither the median nor, among twelve, the 90th percentile.
        for minute in [3, 4, 5, 6, 26, 27, 28, 29, 30, 31] {
            Brought::at(minute, report(1, 0)).append(&mut ledger);
        }
        let minute = Cadence { median_ms: 60_000, p90_ms: 60_000 };
        assert_eq!(ledger.cadence(&at(31)).unwrap(), Measured(minute));
    }

    #[test]
    fn the_cadence_of_another_boot_is_not_this_one_s() {
        let (_dir, mut ledger) = fresh();
        for minute in 0..10 {
            Brought::at(minute, report(1, 0)).append(&mut ledger);
        }
        let mut now = at(20);
        now.boot_id = "another".to_owned();
        assert_eq!(ledger.cadence(&now).unwrap(), Absent(Absence::NoData));
        let mut brought = Brought::at(20, report(1, 0));
        brought.now = now.clone();
        brought.append(&mut ledger);
        assert_eq!(ledger.cadence(&now).unwrap(), Absent(Absence::NoData));
    }

    #[test]
    fn a_new_cadence_is_noticed_within_a_day_and_thirty_runs() {
        let (_dir, mut ledger) = fresh();
        for minute in 0..40 {
            Brought::at(minute, report(1, 0)).append(&mut ledger);
        }
        for run in 1..=130 {
            Brought::at(40 + run * 5, report(1, 0)).append(&mut ledger);
        }
        let now = at(40 + 650);
        let Measured(cadence) = ledger.cadence(&now).unwrap() else { panic!("absent") };
        assert_eq!(cadence.median_ms, 300_000);
    }
}

//! How often runs really come: measured from the runs themselves and kept in `meta`, so that most runs only
//! read two numbers. Says nothing where too little is known, never a usual value.

use super::{Boot, Ledger, LedgerError};
use crate::model::{Cadence, Now, RunId};
use crate::reading::Reading::{Absent, Measured};
use crate::reading::{Absence, Reading};
use rusqlite::{OptionalExtension, Transaction};

/// How far back spacings count.
const SPAN_MS: i64 = 24 * 3_600_000;
/// Fewer spacings say nothing.
const FEWEST: usize = 3;
/// Measured anew after so many runs; early in a boot, when each one tells, at every run.
const RENEW: i64 = 30;

impl Ledger {
    /// The spacing of this boot's runs over the last 24 h, as last measured: at most 30 runs ago.
    /// `NoData` with fewer than three spacings.
    pub fn cadence(&self, now: &Now) -> Result<Reading<Cadence>, LedgerError> {
        self.read("read the cadence", |conn| {
            let kept = conn
                .query_row(
                    "SELECT m.cadence_median_ms, m.cadence_p90_ms FROM meta m JOIN boot b
                     ON b.boot_id = ?1 AND m.cadence_run >= b.first_run
                     WHERE m.cadence_median_ms IS NOT NULL",
                    [&now.boot_id],
                    |r| Ok(Cadence { median_ms: r.get(0)?, p90_ms: r.get(1)? }),
                )
                .optional()?;
            Ok(kept.map_or(Absent(Absence::NoData), Measured))
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
        let measured = measure(tx, boot.id, now)?;
        let (median, p90) = (measured.map(|c| c.median_ms), measured.map(|c| c.p90_ms));
        tx.execute(
            "UPDATE meta SET cadence_median_ms = ?1, cadence_p90_ms = ?2, cadence_run = ?3",
            (median, p90, run.0),
        )?;
    }
    Ok(number)
}

fn measure(tx: &Transaction, boot: i64, now: &Now) -> rusqlite::Result<Option<Cadence>> {
    let mut newest_first = tx.prepare("SELECT boot, boottime_ms FROM run ORDER BY id DESC")?;
    let mut rows = newest_first.query([])?;
    let mut later: Option<i64> = None;
    let mut spacings = Vec::new();
    while let Some(row) = rows.next()? {
        let at: i64 = row.get(1)?;
        if row.get::<_, i64>(0)? != boot || now.boot.0 - at > SPAN_MS {
            break;
        }
        // Two runs of one instant, or damage: no spacing.
        spacings.extend(later.map(|later| later - at).filter(|ms| *ms > 0));
        later = Some(at);
    }
    if spacings.len() < FEWEST {
        return Ok(None);
    }
    spacings.sort_unstable();
    let rank = |percent: usize| spacings[(spacings.len() - 1) * percent / 100];
    Ok(Some(Cadence { median_ms: rank(50), p90_ms: rank(90) }))
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

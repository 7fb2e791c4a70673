//! Drains for a fault of the node: written down before they are done and again when their outcome is known. They outlive
//! fault and boot, and stay until a person lifts them.

use super::tally;
use super::words::known;
use super::{Ledger, LedgerError, boot_row_made};
use crate::model::{Deed, NodeStatus, Now, Outcome, RunId};
use crate::units::WallMs;
use rusqlite::{OptionalExtension, Row};

/// A drain of this node for a fault, by its newest record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultDrain {
    /// Its row.
    pub id: i64,
    /// The fault's row.
    pub fault: i64,
    /// The run that began it.
    pub run: RunId,
    /// The Reason, byte for byte.
    pub reason: String,
    /// How it ended.
    pub outcome: Outcome,
    /// With Slurm's words.
    pub detail: String,
    /// Whether the cluster's drains were counted once more after it.
    pub counted_again: bool,
    /// When it was begun.
    pub made: WallMs,
    /// Whether it was made on this boot.
    pub of_this_boot: bool,
    /// How long ago, by the boot's clock: of an earlier boot, the age of this one.
    pub age_ms: i64,
}

impl FaultDrain {
    /// The node shows it as it was made.
    pub fn shows(&self, node: &NodeStatus) -> bool {
        node.drained_as(&self.reason)
    }

    /// How it ended is not known, or the cluster's drains are to be counted once more after it.
    pub fn is_unsettled(&self) -> bool {
        let uncounted = self.outcome == Outcome::Done && !self.counted_again && self.of_this_boot;
        matches!(self.outcome, Outcome::Begun | Outcome::Unknown) || uncounted
    }

    /// It stands, or may.
    pub fn stands(&self) -> bool {
        matches!(self.outcome, Outcome::Begun | Outcome::Done | Outcome::Unknown)
    }
}

fn drain(r: &Row) -> rusqlite::Result<FaultDrain> {
    Ok(FaultDrain {
        id: r.get(0)?,
        fault: r.get(1)?,
        run: RunId(r.get(2)?),
        reason: r.get(3)?,
        outcome: known(Outcome::from_word(&r.get::<_, String>(4)?), "fault_drain.outcome")?,
        detail: r.get(5)?,
        counted_again: r.get(6)?,
        of_this_boot: r.get(7)?,
        age_ms: r.get(8)?,
        made: WallMs(r.get(9)?),
    })
}

impl Ledger {
    /// Writes a drain down, on the disk before it is done.
    pub fn begin_fault_drain(
        &mut self,
        fault: i64,
        (seen_before, reason): (&str, &str),
        run: RunId,
        now: &Now,
    ) -> Result<i64, LedgerError> {
        self.durably(true, "write a drain down", |tx| {
            let boot = boot_row_made(tx, &now.boot_id)?.id;
            tx.query_row(
                "INSERT INTO fault_drain
                     (fault, boot, boottime_ms, run, wall_ms, seen_before, reason, outcome, detail)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'begun', '') RETURNING id",
                (fault, boot, now.boot.0, run.0, now.wall.0, seen_before, reason),
                |r| r.get(0),
            )
        })
    }

    /// Writes its outcome down.
    pub fn end_fault_drain(&mut self, id: i64, outcome: Outcome, detail: &str) -> Result<(), LedgerError> {
        self.durably(true, "write a drain's outcome down", |tx| {
            let sql = "SELECT outcome FROM fault_drain WHERE id = ?1";
            let before: Option<String> = tx.query_row(sql, [id], |r| r.get(0)).optional()?;
            if let Some(before) = before.as_deref().and_then(Outcome::from_word) {
                tally::add_ended(tx, Deed::Drain, before, outcome)?;
            }
            let sql = "UPDATE fault_drain SET outcome = ?2, detail = ?3 WHERE id = ?1";
            tx.execute(sql, (id, outcome.word(), detail)).map(|_| ())
        })
    }

    /// The cluster's drains were counted once more after it.
    pub fn note_fault_drain_counted(&mut self, id: i64) -> Result<(), LedgerError> {
        self.write("note that the cluster's drains were counted again", |tx| {
            tx.execute("UPDATE fault_drain SET counted_again = 1 WHERE id = ?1", [id]).map(|_| ())
        })
    }

    /// Every one that was ever made and is still kept, oldest first. Few nodes have any.
    pub fn fault_drains(&self, now: &Now) -> Result<Vec<FaultDrain>, LedgerError> {
        self.read("read drains for faults", |conn| {
            let boot = self.boot(&now.boot_id)?.map(|b| b.id);
            let mut all = conn.prepare(
                "SELECT id, fault, run, reason, outcome, detail, counted_again NOTNULL, boot IS ?1,
                     CASE WHEN boot IS ?1 THEN ?2 - boottime_ms ELSE ?2 END, wall_ms
                 FROM fault_drain ORDER BY id",
            )?;
            all.query_map((boot, now.boot.0), drain)?.collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::LedgerErrorKind;
    use super::super::testing::*;
    use super::*;

    const REASON: &str = "gpu-reaper: fault=gpu-lost at=0000:1a:00.0 since=2026-11-29T13:25:38Z";

    #[test]
    fn a_drain_is_known_before_it_is_done_and_outlives_the_boot() {
        let (_dir, mut ledger) = fresh();
        let id = ledger.begin_fault_drain(7, ("idle", REASON), RunId(3), &at(1)).unwrap();
        let of = |ledger: &Ledger, now: &Now| ledger.fault_drains(now).unwrap().remove(0);
        let begun = of(&ledger, &at(2));
        assert_eq!((begun.fault, begun.outcome, begun.age_ms), (7, Outcome::Begun, 60_000));
        ledger.end_fault_drain(id, Outcome::Done, "idle+drain").unwrap();
        ledger.note_fault_drain_counted(id).unwrap();
        let mut rebooted = at(3);
        rebooted.boot_id = "another".to_owned();
        let done = of(&ledger, &rebooted);
        assert!(done.stands() && done.counted_again && !done.of_this_boot && done.reason == REASON);
        ledger.end_fault_drain(id, Outcome::Lifted, "by hand").unwrap();
        assert!(!of(&ledger, &rebooted).stands());
    }

    #[test]
    fn a_reason_is_one_line_of_printable_ascii() {
        let (_dir, mut ledger) = fresh();
        for bad in ["two\nlines", "a\ttab", "\u{fc}ber"] {
            let error = ledger.begin_fault_drain(1, ("idle", bad), RunId(1), &at(1)).unwrap_err();
            assert_eq!(error.kind, LedgerErrorKind::Refused, "{bad:?}");
        }
    }
}

//! Faults: of the node, and notes beside them that a run keeps under kinds of their own. A row is one episode: first a
//! suspicion, told once enough runs in a row saw it, closed once enough runs saw it gone. Knows no kind and no rule.

use super::{Ledger, LedgerError, boot_row_made};
use crate::model::{Now, RunId};
use crate::units::{PciAddress, WallMs};
use rusqlite::{OptionalExtension, Row};

/// A fault that is not over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRow {
    /// Its row.
    pub id: i64,
    /// What kind of fault.
    pub kind: String,
    /// Of which unit or part.
    pub subject: String,
    /// In words, as last seen.
    pub detail: String,
    /// When it was first seen.
    pub opened: WallMs,
    /// The first run that saw it.
    pub opened_run: RunId,
    /// The last run that saw it.
    pub last_run: RunId,
    /// So many runs since saw it gone.
    pub clean: u32,
    /// Enough runs saw it; before, it is a suspicion that nobody is told of.
    pub told: bool,
    /// Where it is, as a Reason names it: a PCI address or `node`; none: nothing that a Reason could be for.
    pub place: Option<String>,
    /// Why a drain for it was last withheld.
    pub withheld: Option<String>,
    /// Who acknowledged it.
    pub acked_by: Option<String>,
}

impl FaultRow {
    /// Whether it is of this kind and about this.
    pub fn is(&self, kind: &str, subject: &str) -> bool {
        self.kind == kind && self.subject == subject
    }

    /// Told, and nobody has taken it on: it counts.
    pub fn counts(&self) -> bool {
        self.told && self.acked_by.is_none()
    }
}

/// Sights further apart than so many runs are not in a row.
const IN_A_ROW: i64 = 16;

/// The columns of a [`FaultRow`].
pub(super) const COLUMNS: &str =
    "id, kind, subject, detail, opened_wall_ms, last_run, told, place, withheld, acked_by, opened_run, clean";

pub(super) fn fault(r: &Row) -> rusqlite::Result<FaultRow> {
    Ok(FaultRow {
        id: r.get(0)?,
        kind: r.get(1)?,
        subject: r.get(2)?,
        detail: r.get(3)?,
        opened: WallMs(r.get(4)?),
        last_run: RunId(r.get(5)?),
        told: r.get(6)?,
        place: r.get(7)?,
        withheld: r.get(8)?,
        acked_by: r.get(9)?,
        opened_run: RunId(r.get(10)?),
        clean: r.get(11)?,
    })
}

/// A fault as a run sees it.
#[derive(Clone, Copy, Debug)]
pub struct SeenFault<'a> {
    /// What kind of fault.
    pub kind: &'a str,
    /// Of which unit or part.
    pub subject: &'a str,
    /// In words.
    pub detail: &'a str,
    /// Where it is, as a Reason names it.
    pub place: Option<&'a str>,
    /// So many runs have to see it before it is told.
    pub tells_after: u32,
}

impl Ledger {
    /// Keeps that a fault was seen; `true` if it is to be told now: once an episode.
    pub fn fault_seen(
        &mut self,
        kind: &str,
        subject: &str,
        detail: &str,
        run: RunId,
        now: &Now,
    ) -> Result<bool, LedgerError> {
        self.fault_sighted(&SeenFault { kind, subject, detail, place: None, tells_after: 1 }, run, now)
    }

    /// The same of one that so many runs in a row have to see first.
    pub fn fault_sighted(&mut self, seen: &SeenFault, run: RunId, now: &Now) -> Result<bool, LedgerError> {
        self.write("keep a fault", |tx| {
            // A suspicion of an earlier boot, or of long ago, is none: its runs were not in a row with this one.
            let first = boot_row_made(tx, &now.boot_id)?.first_run.unwrap_or(0).max(run.0 - IN_A_ROW);
            let sql = "UPDATE fault SET detail = ?4, clean = 0, last_run = ?3, place = coalesce(place, ?6),
                           seen = CASE WHEN last_run < ?5 THEN 1 ELSE seen + (last_run < ?3) END
                       WHERE kind = ?1 AND subject = ?2 AND closed_wall_ms IS NULL RETURNING id, seen, told";
            let key = (seen.kind, seen.subject, run.0, seen.detail, first, seen.place);
            let known: Option<(i64, u32, bool)> =
                tx.query_row(sql, key, |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?))).optional()?;
            let Some((id, times, told)) = known else {
                let tell = seen.tells_after <= 1;
                tx.execute(
                    "INSERT INTO fault (kind, subject, detail, place, opened_run, opened_wall_ms, last_run, told)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?5, ?7)",
                    (seen.kind, seen.subject, seen.detail, seen.place, run.0, now.wall.0, tell),
                )?;
                return Ok(tell);
            };
            let tell = !told && times >= seen.tells_after;
            if tell {
                tx.execute("UPDATE fault SET told = 1 WHERE id = ?1", [id])?;
            }
            Ok(tell)
        })
    }

    /// A run saw that it is gone: a mere suspicion ends at once, a fault after so many such runs. `true`: it is over.
    pub fn fault_not_seen(&mut self, id: i64, ends_after: u32, now: &Now) -> Result<bool, LedgerError> {
        self.write("keep that a fault was not seen", |tx| {
            if tx.execute("DELETE FROM fault WHERE id = ?1 AND told = 0", [id])? > 0 {
                return Ok(true);
            }
            let sql = "UPDATE fault SET clean = clean + 1,
                           closed_wall_ms = CASE WHEN clean + 1 >= ?2 THEN ?3 END
                       WHERE id = ?1 AND closed_wall_ms IS NULL";
            tx.execute(sql, (id, ends_after, now.wall.0))?;
            tx.query_row("SELECT closed_wall_ms NOTNULL FROM fault WHERE id = ?1", [id], |r| r.get(0))
        })
    }

    /// Closes a fault.
    pub fn fault_gone(&mut self, id: i64, now: &Now) -> Result<(), LedgerError> {
        self.write("close a fault", |tx| {
            let sql = "UPDATE fault SET closed_wall_ms = ?2 WHERE id = ?1 AND closed_wall_ms IS NULL";
            tx.execute(sql, (id, now.wall.0)).map(|_| ())
        })
    }

    /// Closes whatever is open of one kind about one subject.
    pub fn faults_gone(&mut self, kind: &str, subject: &str, now: &Now) -> Result<(), LedgerError> {
        self.write("close faults", |tx| {
            let sql = "UPDATE fault SET closed_wall_ms = ?3
                 WHERE kind = ?1 AND subject = ?2 AND closed_wall_ms IS NULL";
            tx.execute(sql, (kind, subject, now.wall.0)).map(|_| ())
        })
    }

    /// A person has taken it on: it stays known until it is over, and speaks no more.
    pub fn acknowledge(&mut self, id: i64, by: &str, now: &Now) -> Result<(), LedgerError> {
        self.write("acknowledge a fault", |tx| {
            let sql = "UPDATE fault SET acked_by = ?2, acked_wall_ms = ?3, told = 1
                       WHERE id = ?1 AND closed_wall_ms IS NULL";
            tx.execute(sql, (id, by, now.wall.0)).map(|_| ())
        })
    }

    /// Keeps why a drain for a fault is withheld; `true` if that is another cause than before.
    pub fn fault_withheld(&mut self, id: i64, because: &str) -> Result<bool, LedgerError> {
        self.write("keep why a drain is withheld", |tx| {
            let sql = "UPDATE fault SET withheld = ?2 WHERE id = ?1 AND withheld IS NOT ?2";
            Ok(tx.execute(sql, (id, because))? > 0)
        })
    }

    /// Everything that is not over, oldest first: suspicions and acknowledged ones too.
    pub fn faults(&self) -> Result<Vec<FaultRow>, LedgerError> {
        self.read("read faults", |conn| {
            let sql = format!("SELECT {COLUMNS} FROM fault WHERE closed_wall_ms IS NULL ORDER BY id");
            conn.prepare(&sql)?.query_map([], fault)?.collect()
        })
    }

    /// Whether a GPU of this node was ever seen at this address.
    pub fn has_had_gpu_at(&self, pci: &PciAddress) -> Result<bool, LedgerError> {
        self.read("look for a GPU", |conn| {
            conn.prepare("SELECT 1 FROM unit WHERE pci = ?1")?.exists([pci.as_str()])
        })
    }

    /// Every episode that was told and is still kept, oldest first, with whether it is over.
    pub fn episodes(&self) -> Result<Vec<(FaultRow, bool)>, LedgerError> {
        self.read("read faults", |conn| {
            let sql = format!("SELECT {COLUMNS}, closed_wall_ms NOTNULL FROM fault WHERE told ORDER BY id");
            conn.prepare(&sql)?.query_map([], |r| Ok((fault(r)?, r.get(12)?)))?.collect()
        })
    }

    /// Those that count, oldest first.
    pub fn open_faults(&self) -> Result<Vec<FaultRow>, LedgerError> {
        Ok(self.faults()?.into_iter().filter(FaultRow::counts).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    fn sighted(ledger: &mut Ledger, tells_after: u32, minute: i64) -> bool {
        let seen = SeenFault {
            kind: "fabric",
            subject: "GPU-1",
            detail: "not up",
            place: Some("0000:1a:00.0"),
            tells_after,
        };
        ledger.fault_sighted(&seen, RunId(minute), &at(minute)).unwrap()
    }

    #[test]
    fn a_fault_is_open_until_it_is_gone() {
        let (_dir, mut ledger) = fresh();
        assert!(ledger.fault_seen("gpu-lost", "GPU-1", "lost", RunId(1), &at(1)).unwrap());
        assert!(!ledger.fault_seen("gpu-lost", "GPU-1", "still lost", RunId(2), &at(2)).unwrap());
        let open = ledger.open_faults().unwrap();
        assert_eq!((open.len(), open[0].last_run, open[0].opened), (1, RunId(2), at(1).wall));
        ledger.fault_gone(open[0].id, &at(3)).unwrap();
        assert!(ledger.open_faults().unwrap().is_empty());
        assert!(ledger.fault_seen("gpu-lost", "GPU-1", "again", RunId(4), &at(4)).unwrap());
    }

    #[test]
    fn a_suspicion_is_told_after_enough_runs_in_a_row_and_forgotten_by_one_that_sees_it_gone() {
        let (_dir, mut ledger) = fresh();
        assert!(!sighted(&mut ledger, 3, 1) && !sighted(&mut ledger, 3, 2) && !sighted(&mut ledger, 3, 2));
        assert!(ledger.open_faults().unwrap().is_empty());
        let id = ledger.faults().unwrap()[0].id;
        assert!(ledger.fault_not_seen(id, 5, &at(3)).unwrap());
        assert!(ledger.faults().unwrap().is_empty());
        let told: Vec<bool> = (4..9).map(|minute| sighted(&mut ledger, 3, minute)).collect();
        assert_eq!(told, [false, false, true, false, false], "told once");
    }

    #[test]
    fn sights_before_a_boot_or_of_long_ago_are_not_in_a_row_with_this_one() {
        let (_dir, mut ledger) = fresh();
        (1..5).for_each(|minute| assert!(!sighted(&mut ledger, 5, minute)));
        assert!(!sighted(&mut ledger, 5, 5 + IN_A_ROW), "long ago");
        let told: Vec<bool> = (22..26).map(|minute| sighted(&mut ledger, 5, minute)).collect();
        assert_eq!(told, [false, false, false, true]);
    }

    #[test]
    fn a_fault_ends_after_enough_clean_runs_in_a_row() {
        // leptonai/gpud#1072, #1075 (FT-09): after the repair nothing closed it.
        let (_dir, mut ledger) = fresh();
        assert!(sighted(&mut ledger, 1, 1));
        let id = ledger.faults().unwrap()[0].id;
        assert!(
            !ledger.fault_not_seen(id, 3, &at(2)).unwrap() && !ledger.fault_not_seen(id, 3, &at(3)).unwrap()
        );
        assert!(!sighted(&mut ledger, 1, 4), "the same episode");
        let ends: Vec<bool> = (5..8).map(|m| ledger.fault_not_seen(id, 3, &at(m)).unwrap()).collect();
        assert_eq!(ends, [false, false, true]);
        assert!(sighted(&mut ledger, 1, 9), "another episode");
    }

    #[test]
    fn an_episode_has_a_place_from_the_first_sight_on_that_gives_one() {
        let (_dir, mut ledger) = fresh();
        let mut see = |place, minute: i64| {
            let seen = SeenFault { kind: "xid", subject: "GPU-1 79", detail: "79", place, tells_after: 1 };
            ledger.fault_sighted(&seen, RunId(minute), &at(minute)).unwrap();
            ledger.episodes().unwrap()[0].0.place.clone()
        };
        let here = Some("0000:1a:00.0");
        let places = [see(None, 1), see(here, 2), see(None, 3)];
        assert_eq!(places.each_ref().map(Option::as_deref), [None, here, here]);
    }

    #[test]
    fn an_acknowledged_fault_counts_no_more_and_is_told_again_only_as_another_episode() {
        let (_dir, mut ledger) = fresh();
        sighted(&mut ledger, 1, 1);
        let id = ledger.faults().unwrap()[0].id;
        ledger.acknowledge(id, "ada", &at(2)).unwrap();
        assert!(ledger.open_faults().unwrap().is_empty() && !sighted(&mut ledger, 1, 3));
        assert_eq!(ledger.faults().unwrap()[0].acked_by.as_deref(), Some("ada"));
        assert!(ledger.fault_not_seen(id, 1, &at(4)).unwrap());
        assert!(sighted(&mut ledger, 1, 5));
        assert!(ledger.fault_withheld(id + 1, "observe").unwrap());
        assert!(!ledger.fault_withheld(id + 1, "observe").unwrap());
    }
}

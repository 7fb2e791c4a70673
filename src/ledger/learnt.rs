//! What each card was learnt to draw at rest. Only ever lowered, by a measure that says something; the rules use
//! it to veto, never to accuse. Learns nothing itself.

use super::{Ledger, LedgerError};
use crate::model::{LearntFloors, Now, Rest};
use crate::reading::Reading::Measured;
use crate::units::{Milliwatts, UnitUuid, WallMs};
use rusqlite::{Connection, OptionalExtension, Row, Statement};

/// A floor moves only for a power that is at most so many hundredths of it: below that it is the sensor that moves,
/// and each time would cost a writing transaction.
const LOWER_PCT: u64 = 99;

/// The columns of [`Rest::ALL`], in its order.
const COLUMNS: [&str; 4] = ["empty_low_mw", "empty_high_mw", "context_low_mw", "context_high_mw"];

/// A unit by its UUID, for [`Known::of`].
const KNOWN: &str =
    "SELECT id, empty_low_mw, empty_high_mw, context_low_mw, context_high_mw, learnt_wall_ms FROM unit
     WHERE uuid = ?1";

/// What one unit was learnt to draw at rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FloorRow {
    /// The unit.
    pub uuid: UnitUuid,
    /// Its floors, as far as any was learnt.
    pub floors: LearntFloors,
    /// When one of them was lowered last, for showing.
    pub learnt: WallMs,
}

/// What the ledger knows of a unit.
pub(super) struct Known {
    /// Its row.
    pub(super) id: i64,
    /// Its floors.
    pub(super) floors: LearntFloors,
    learnt: Option<i64>,
}

impl Known {
    /// Finds a unit with a statement of [`Known::statement`].
    pub(super) fn of(statement: &mut Statement, uuid: &UnitUuid) -> rusqlite::Result<Option<Known>> {
        statement.query_row([uuid.as_str()], known).optional()
    }

    pub(super) fn statement(conn: &Connection) -> rusqlite::Result<Statement<'_>> {
        conn.prepare(KNOWN)
    }
}

fn known(row: &Row) -> rusqlite::Result<Known> {
    let mut floors = LearntFloors::none();
    for (rest, column) in Rest::ALL.into_iter().zip(1..) {
        // Only a number above 0 is ever written: another one is damage, and then nothing was learnt.
        let power = row.get::<_, Option<i64>>(column)?.and_then(|mw| u64::try_from(mw).ok());
        if let Some(power) = power.filter(|power| *power > 0) {
            floors.set(rest, Milliwatts(power));
        }
    }
    Ok(Known { id: row.get(0)?, floors, learnt: row.get(5)? })
}

impl Ledger {
    /// Lowers the floor of each unit that was now seen to rest at 1 % less, or for the first time; a power of 0 is
    /// none. Writes nothing, and waits for nobody's lock, where no floor moves. Units of no row are left out.
    pub fn learn(&mut self, seen: &[(UnitUuid, Rest, Milliwatts)], now: &Now) -> Result<(), LedgerError> {
        let lower = self.read("read what was learnt", |conn| lower(conn, seen))?;
        if lower.is_empty() {
            return Ok(());
        }
        self.write("keep what was learnt", |tx| {
            for (id, rest, power) in lower {
                let column = COLUMNS[rest as usize];
                // Another run may have come between.
                tx.execute(
                    &format!(
                        "UPDATE unit SET {column} = ?2, learnt_wall_ms = ?3
                         WHERE id = ?1 AND ({column} ISNULL OR {column} > ?2)"
                    ),
                    (id, power, now.wall.0),
                )?;
            }
            Ok(())
        })
    }

    /// What these units were learnt to draw at rest, in the order asked; one of which nothing was learnt is left
    /// out.
    pub fn floors(&self, units: &[UnitUuid]) -> Result<Vec<FloorRow>, LedgerError> {
        self.read("read what was learnt", |conn| {
            let mut statement = Known::statement(conn)?;
            let mut found = Vec::new();
            for uuid in units {
                if let Some(Known { floors, learnt: Some(wall), .. }) = Known::of(&mut statement, uuid)? {
                    found.push(FloorRow { uuid: uuid.clone(), floors, learnt: WallMs(wall) });
                }
            }
            Ok(found)
        })
    }
}

/// Row, rest and power of each floor that moves, the lowest of several.
fn lower(
    conn: &Connection,
    seen: &[(UnitUuid, Rest, Milliwatts)],
) -> rusqlite::Result<Vec<(i64, Rest, i64)>> {
    let mut lower = Vec::new();
    if seen.is_empty() {
        return Ok(lower);
    }
    let mut statement = Known::statement(conn)?;
    for (uuid, rest, power) in seen {
        let Some(known) = Known::of(&mut statement, uuid)? else { continue };
        let moves = match known.floors.get(*rest) {
            Measured(floor) => power.0.saturating_mul(100) <= floor.0.saturating_mul(LOWER_PCT),
            _ => true,
        };
        match i64::try_from(power.0) {
            Ok(mw) if moves && mw > 0 => lower.push((known.id, *rest, mw)),
            _ => {}
        }
    }
    Ok(lower)
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crate::reading::Absence;
    use crate::reading::Reading::Absent;

    fn rested(n: u32, rest: Rest, watts: u64) -> (UnitUuid, Rest, Milliwatts) {
        (uuid(n), rest, Milliwatts(watts * 1000))
    }

    fn changes(ledger: &Ledger) -> i64 {
        ledger.conn.query_row("SELECT total_changes()", [], |r| r.get(0)).unwrap()
    }

    #[test]
    fn a_floor_only_falls_and_only_by_what_says_something() {
        let (_dir, mut ledger) = fresh();
        Brought::at(1, report(2, 0)).append(&mut ledger);
        let steps = [
            (118, true, 118),
            (118, false, 118),
            (117, false, 118),
            (130, false, 118),
            (116, true, 116),
            (0, false, 116),
        ];
        for (minute, (watts, moves, want)) in (2..).zip(steps) {
            let before = changes(&ledger);
            ledger.learn(&[rested(1, Rest::ContextLow, watts)], &at(minute)).unwrap();
            assert_eq!(changes(&ledger) > before, moves, "{watts} W");
            let kept = ledger.floors(&[uuid(0), uuid(1)]).unwrap();
            assert_eq!(kept.len(), 1, "the other unit learnt nothing");
            assert_eq!(kept[0].floors.get(Rest::ContextLow), Measured(Milliwatts(want * 1000)));
            assert_eq!(kept[0].floors.get(Rest::EmptyLow), Absent(Absence::NotRecorded));
        }
        assert_eq!(ledger.floors(&[uuid(1)]).unwrap()[0].learnt, at(6).wall);
    }

    #[test]
    fn the_lowest_of_several_counts_and_an_unknown_unit_is_nobody() {
        let (_dir, mut ledger) = fresh();
        Brought::at(1, report(1, 0)).append(&mut ledger);
        let seen = [74, 70, 72].map(|watts| rested(0, Rest::EmptyLow, watts));
        ledger.learn(&seen, &at(2)).unwrap();
        ledger.learn(&[rested(9, Rest::EmptyLow, 50)], &at(3)).unwrap();
        let kept = ledger.floors(&[uuid(9), uuid(0)]).unwrap();
        assert_eq!(kept.len(), 1);
        assert_eq!(kept[0].floors.get(Rest::EmptyLow), Measured(Milliwatts(70_000)));
    }

    #[test]
    fn nothing_new_waits_for_nobody() {
        let (dir, mut ledger) = fresh();
        Brought::at(1, report(1, 0)).append(&mut ledger);
        ledger.learn(&[rested(0, Rest::EmptyHigh, 70)], &at(2)).unwrap();
        let other = rusqlite::Connection::open(dir.path().join("ledger.db")).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        ledger.learn(&[rested(0, Rest::EmptyHigh, 70)], &at(3)).unwrap();
        ledger.learn(&[], &at(3)).unwrap();
    }

    #[test]
    fn damaged_floors_were_not_learnt() {
        let (_dir, mut ledger) = fresh();
        Brought::at(1, report(1, 0)).append(&mut ledger);
        let sql = "UPDATE unit SET empty_low_mw = -5, context_low_mw = 0, learnt_wall_ms = 1";
        ledger.conn.execute(sql, []).unwrap();
        assert_eq!(ledger.floors(&[uuid(0)]).unwrap()[0].floors, LearntFloors::none());
    }
}

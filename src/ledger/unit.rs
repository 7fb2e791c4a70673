//! The units of this node: the row of each UUID, and which of them the driver has stopped listing. Only the
//! UUID finds a row; index, minor and address are written down as they were last seen.

use crate::model::*;
use crate::reading::Reading::Measured;
use crate::units::UnitUuid;
use rusqlite::Transaction;
use std::collections::BTreeMap;

use super::Boot;
use super::columns::{Cells, Sink};

/// A unit that the driver no longer lists is noted as absent for so long after it was last listed.
const REMEMBER_MS: i64 = 24 * 3_600_000;

/// By so many runs the last run of a unit may lag behind while nothing else of it changes: that a card is there
/// need not be written down each time.
pub(super) const LAG_RUNS: i64 = 8;

/// The units that one run has something to say of.
pub(super) struct Units {
    /// The rows of a report's units, in its order; `None` for one that cannot be told from another.
    pub(super) listed: Vec<Option<i64>>,
    /// Units of this boot that were listed within a day and are not now.
    pub(super) missing: Vec<(i64, UnitUuid)>,
}

/// Finds or makes the rows of a report's units.
pub(super) fn keep(
    tx: &Transaction,
    run: RunId,
    boot: Boot,
    now: &Now,
    report: &GpuReport,
) -> rusqlite::Result<Units> {
    let Known { places, mut listed, same, mut unlisted } = look_up(tx, report)?;
    for (uuid, place) in places {
        let row = match listed[place] {
            Some(row) => row,
            None => made(tx, uuid)?,
        };
        listed[place] = Some(row);
        let fresh =
            |last: &i64| boot.first_run.is_some_and(|first| *last >= first) && run.0 - last < LAG_RUNS;
        if !same.get(&row).is_some_and(fresh) {
            write(tx, row, &report.units[place].identity, run)?;
        }
    }
    // A GPU that was split since is still there, as the parent of its instances.
    for unit in &report.units {
        if let UnitKind::Mig { parent, .. } = &unit.identity.kind {
            unlisted.retain(|(_, uuid, _)| uuid != parent);
        }
    }
    Ok(Units { listed, missing: recent(tx, boot.id, now, unlisted)? })
}

/// What the table says of a report.
struct Known<'r> {
    /// The report's UUIDs and the place of each. Of two entries with one UUID the second says nothing.
    places: BTreeMap<&'r UnitUuid, usize>,
    /// The rows there are, by place.
    listed: Vec<Option<i64>>,
    /// Rows whose names are what the driver says now, and the run of each.
    same: BTreeMap<i64, i64>,
    /// Row, UUID and last run of each unit that the report lacks.
    unlisted: Vec<(i64, UnitUuid, i64)>,
}

fn look_up<'r>(tx: &Transaction, report: &'r GpuReport) -> rusqlite::Result<Known<'r>> {
    let mut places = BTreeMap::new();
    for (place, unit) in report.units.iter().enumerate() {
        if let Measured(uuid) = &unit.identity.uuid {
            places.entry(uuid).or_insert(place);
        }
    }
    let mut listed = vec![None; report.units.len()];
    let (mut same, mut unlisted) = (BTreeMap::new(), Vec::new());
    // Whole rows: id, uuid, the names, last run.
    let mut all = tx.prepare("SELECT * FROM unit")?;
    let mut rows = all.query([])?;
    while let Some(row) = rows.next()? {
        // A row whose UUID is none any more is found by nobody.
        let Ok(uuid) = UnitUuid::new(row.get_ref(1)?.as_str()?) else {
            continue;
        };
        let (id, last_run) = (row.get(0)?, row.get(12)?);
        match places.get(&uuid) {
            Some(&place) => {
                listed[place] = Some(id);
                if identity(&report.units[place].identity).equal(row, 2)? {
                    same.insert(id, last_run);
                }
            }
            None => unlisted.push((id, uuid, last_run)),
        }
    }
    Ok(Known { places, listed, same, unlisted })
}

/// Those that were listed on this boot within a day.
fn recent(
    tx: &Transaction,
    boot: i64,
    now: &Now,
    unlisted: Vec<(i64, UnitUuid, i64)>,
) -> rusqlite::Result<Vec<(i64, UnitUuid)>> {
    if unlisted.is_empty() {
        return Ok(Vec::new());
    }
    let mut run = tx.prepare("SELECT 1 FROM run WHERE id = ?1 AND boot = ?2 AND boottime_ms >= ?3")?;
    let mut recent = Vec::new();
    for (row, uuid, last_run) in unlisted {
        if run.exists([last_run, boot, now.boot.0 - REMEMBER_MS])? {
            recent.push((row, uuid));
        }
    }
    Ok(recent)
}

/// Writes down how a unit is called now, and that it was listed.
fn write(tx: &Transaction, row: i64, names: &UnitIdentity, run: RunId) -> rusqlite::Result<()> {
    let mut update = tx.prepare(
        "UPDATE unit SET parent = ?, gi = ?, ci = ?, nvml_index = ?, minor = ?, minor_absent = ?,
             pci = ?, pci_absent = ?, name = ?, name_absent = ?, last_run = ? WHERE id = ?",
    )?;
    identity(names).int(run.0).int(row).execute(&mut update).map(|_| ())
}

/// A new unit's row; what else is known of it is written right after.
fn made(tx: &Transaction, uuid: &UnitUuid) -> rusqlite::Result<i64> {
    tx.execute(
        "INSERT INTO unit (uuid, nvml_index, minor_absent, pci_absent, name_absent, last_run)
         VALUES (?1, 0, ?2, ?2, ?2, 0)",
        (uuid.as_str(), crate::reading::Absence::NotRecorded.code()),
    )?;
    Ok(tx.last_insert_rowid())
}

fn identity(identity: &UnitIdentity) -> Cells<'_> {
    let (parent, gi, ci) = match &identity.kind {
        UnitKind::Gpu => (None, None, None),
        UnitKind::Mig { parent, gi, ci } => (Some(parent.as_str()), Some(*gi), Some(*ci)),
    };
    let mut cells = Cells::new();
    cells
        .text_if(parent)
        .int_if(gi.map(i64::from))
        .int_if(ci.map(i64::from))
        .int(i64::from(identity.index.0))
        .pair(&identity.minor, |m| Some(i64::from(m.0)))
        .str_pair(identity.pci.as_ref().map(|p| p.as_str()))
        .text_pair(&identity.name);
    cells
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crate::reading::Absence;
    use crate::reading::Reading::Absent;
    use crate::units::NvmlIndex;

    #[test]
    fn a_card_that_drops_out_is_absent_and_nobody_inherits_its_past() {
        // kubernetes-sigs/dra-driver-nvidia-gpu#563 (ID-03): the cards behind a lost one move up.
        let (_dir, mut ledger) = fresh();
        let run = ledger.register(&at(0), &registration(1, 0, RegisteredBy::Prolog)).unwrap();
        let mut brought = Brought::at(1, report(8, 0));
        brought.owners.insert(uuid(5), run);
        brought.append(&mut ledger);
        brought.now = at(2);
        brought.report.units.remove(2);
        for (index, unit) in (0..).zip(&mut brought.report.units) {
            unit.identity.index = NvmlIndex(index);
        }
        let second = brought.append(&mut ledger);
        let of = |n: u32| format!("sample s JOIN unit u ON u.id = s.unit WHERE u.uuid = '{}'", uuid(n));
        assert_eq!(count(&ledger, &format!("{} AND s.job_run = {}", of(5), run.0)), 2);
        assert_eq!(count(&ledger, &format!("unit WHERE uuid = '{}' AND nvml_index = 4", uuid(5))), 1);
        let gone = Absence::NotListed.code();
        let lost = format!("{} AND s.run = {} AND s.sm_util_absent = {gone}", of(2), second.0);
        assert_eq!(count(&ledger, &lost), 1);
        // A day later it is no longer expected.
        brought.now = at(2 + 24 * 60);
        let last = brought.append(&mut ledger);
        assert_eq!(count(&ledger, &format!("sample WHERE run = {}", last.0)), 7);
    }

    #[test]
    fn a_unit_without_identity_or_named_twice_harms_no_other() {
        let (_dir, mut ledger) = fresh();
        let mut brought = Brought::at(1, report(3, 0));
        brought.report.units[0].identity.uuid = Absent(Absence::GpuLost);
        brought.report.units[1].identity.uuid = Measured(uuid(2));
        let processes = brought.report.units[2].readings.processes.clone();
        let doubled = processes.map(|list| [list.clone(), list].concat());
        brought.report.units[1].readings.processes = doubled;
        brought.append(&mut ledger);
        assert_eq!(count(&ledger, "sample"), 1);
        assert_eq!(count(&ledger, "sample WHERE processes = '1002 C ?8 61440M'"), 1);
    }

    #[test]
    fn a_gpu_that_was_split_is_not_missing_but_a_destroyed_instance_is() {
        let (_dir, mut ledger) = fresh();
        let mut brought = Brought::at(1, report(2, 0));
        brought.append(&mut ledger);
        let parent = uuid(1);
        let instance = |n: u32, gi| {
            let mut unit = unit(n, 0);
            unit.identity.kind = UnitKind::Mig { parent: parent.clone(), gi, ci: 0 };
            unit
        };
        brought.report.units = vec![unit(0, 0), instance(11, 1), instance(12, 2)];
        let split = brought.append(&mut ledger);
        assert_eq!(count(&ledger, &format!("sample WHERE run = {}", split.0)), 3);
        brought.report.units.pop();
        let destroyed = brought.append(&mut ledger);
        let gone = Absence::NotListed.code();
        let absent = format!("sample WHERE run = {} AND sm_util_absent = {gone}", destroyed.0);
        assert_eq!(count(&ledger, &absent), 1);
        assert_eq!(count(&ledger, &format!("unit WHERE parent = '{parent}' AND ci = 0")), 2);
    }
}

//! The units that this node has shown since it booted. A card that fell off keeps its names here; nothing is
//! guessed of one that never gave its UUID.

use super::columns::Cursor;
use super::{Ledger, LedgerError, boot_row, jobs};
use crate::model::{KnownUnit, UnitKind};
use crate::units::{DeviceMinor, NvmlIndex, UnitUuid};
use rusqlite::Row;

impl Ledger {
    /// Every unit that the driver has listed on this boot, with the names it had last.
    pub fn known_units(&self, boot_id: &str) -> Result<Vec<KnownUnit>, LedgerError> {
        self.read("read the units", |conn| {
            let Some(boot) = boot_row(conn, boot_id)? else {
                return Ok(Vec::new());
            };
            let mut found = conn.prepare(
                "SELECT u.uuid, u.parent, u.gi, u.ci, u.nvml_index, u.minor, u.minor_absent, u.name, u.name_absent
                 FROM unit u JOIN run r ON r.id = u.last_run WHERE r.boot = ?1 ORDER BY u.nvml_index, u.id",
            )?;
            found.query_map([boot.id], known_unit)?.collect()
        })
    }
}

fn known_unit(row: &Row) -> rusqlite::Result<KnownUnit> {
    let c = &mut Cursor::from(row, 0);
    let uuid = jobs::known(UnitUuid::new(&c.get::<String>()?).ok(), "unit.uuid")?;
    let parent: Option<String> = c.get()?;
    let (gi, ci): (Option<u32>, Option<u32>) = (c.get()?, c.get()?);
    let kind = match (parent.map(|p| UnitUuid::new(&p)), gi, ci) {
        (Some(Ok(parent)), Some(gi), Some(ci)) => UnitKind::Mig { parent, gi, ci },
        _ => UnitKind::Gpu,
    };
    Ok(KnownUnit {
        uuid,
        kind,
        index: NvmlIndex(c.get()?),
        minor: c.pair(|n| super::columns::small(n).map(DeviceMinor))?,
        name: c.text_pair()?,
    })
}

//! The units that this node has shown since it booted. A card that fell off keeps its names here; nothing is
//! guessed of one that never gave its UUID.

use super::columns::{Cursor, Source};
use super::{Boot, Ledger, LedgerError, words};
use crate::model::{KnownUnit, UnitKind};
use crate::units::{DeviceMinor, NvmlIndex, UnitUuid};
use rusqlite::Row;

impl Ledger {
    /// Every unit that the driver has listed on this boot, with the names it had last.
    pub fn known_units(&self, boot_id: &str) -> Result<Vec<KnownUnit>, LedgerError> {
        self.read("read the units", |conn| {
            let Some(Boot { first_run: Some(first), .. }) = self.boot(boot_id)? else {
                return Ok(Vec::new());
            };
            let mut found = conn.prepare(
                "SELECT uuid, parent, gi, ci, nvml_index, minor, minor_absent, name, name_absent
                 FROM unit WHERE last_run >= ?1",
            )?;
            let mut units: Vec<KnownUnit> =
                found.query_map([first], known_unit)?.collect::<rusqlite::Result<_>>()?;
            units.sort_by_key(|unit| unit.index);
            Ok(units)
        })
    }
}

fn known_unit(row: &Row) -> rusqlite::Result<KnownUnit> {
    let c = &mut Cursor::from(row, 0);
    let uuid = words::known(UnitUuid::new(&c.get::<String>()?).ok(), "unit.uuid")?;
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

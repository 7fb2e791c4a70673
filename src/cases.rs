//! `cases`: what this node keeps of job runs that are over and had a finding or an action, as a table for people, as
//! CSV for a spreadsheet and as JSON lines for a central tool. Reads the ledger and changes nothing; Slurm is not asked.
//! Hours are certified ones; nothing here is a projection.

mod csv;
mod row;
mod table;

pub use row::{Hours, Row};

use crate::ledger::{Ledger, LedgerError};
use crate::screen::{self, Screen};
use crate::units::WallMs;

/// How they are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// For people.
    Table(Screen),
    /// A header and a line each, RFC 4180.
    Csv,
    /// An object on a line each.
    Json,
}

/// The case files of runs that ended at `from` or later, newest first.
pub fn kept(ledger: &Ledger, from: Option<WallMs>) -> Result<Vec<Row>, LedgerError> {
    let node = ledger.node();
    let mut all = ledger.all_cases()?;
    all.retain(|case| from.is_none_or(|from| case.created >= from));
    all.sort_by_key(|case| std::cmp::Reverse(case.created));
    Ok(all.iter().map(|case| Row::of(node, case)).collect())
}

/// The text of it.
pub fn print(rows: &[Row], form: Form) -> String {
    match form {
        Form::Table(screen) => table::print(rows, &screen),
        Form::Csv => csv::print(rows),
        Form::Json => rows.iter().map(|row| screen::ascii(&format!("{}\n", row.json()))).collect(),
    }
}

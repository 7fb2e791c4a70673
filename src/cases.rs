//! `cases`: what this node keeps of job runs that are over and had a finding or an action, as a table for people, as
//! CSV for a spreadsheet and as JSON lines for a central tool. Reads the ledger and changes nothing; Slurm is not asked.
//! Hours are certified ones; nothing here is a projection.

mod csv;
mod row;
mod table;

pub use row::{Hours, Row};

use crate::ledger::{Ledger, LedgerError, MOST_CASE_FILES};
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

/// What was asked for of what is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// The case files of job runs that ended at `from` or later, newest first.
    pub rows: Vec<Row>,
    /// Since when they were asked for.
    pub from: Option<WallMs>,
    /// So many ended before that.
    pub older: usize,
    /// What ended before this moment may be kept no more, or was never seen: the ledger began, files are forgotten after a
    /// time, or so many are kept and no more.
    pub reaches_back_to: WallMs,
}

/// The case files of job runs that ended at `from` or later. `keep_ms`: so long they are kept.
pub fn kept(ledger: &Ledger, from: Option<WallMs>, keep_ms: i64, now: WallMs) -> Result<Kept, LedgerError> {
    let node = ledger.node();
    let mut all = ledger.all_cases()?;
    all.sort_by_key(|case| std::cmp::Reverse(case.created));
    let mut reaches_back_to = ledger.created().wall.max(WallMs(now.0.saturating_sub(keep_ms)));
    if let Some(oldest) = all.last().filter(|_| all.len() >= MOST_CASE_FILES) {
        reaches_back_to = reaches_back_to.max(oldest.created);
    }
    let count = all.len();
    all.retain(|case| from.is_none_or(|from| case.created >= from));
    let rows: Vec<_> = all.iter().map(|case| Row::of(node, case)).collect();
    Ok(Kept { older: count - rows.len(), rows, from, reaches_back_to })
}

/// The text of it.
pub fn print(kept: &Kept, form: Form) -> String {
    match form {
        Form::Table(screen) => table::print(kept, &screen),
        Form::Csv => csv::print(&kept.rows),
        Form::Json => kept.rows.iter().map(|row| screen::ascii(&format!("{}\n", row.json()))).collect(),
    }
}

//! Readings as columns: how the two halves of a reading are bound, and how they are read back. Knows no table.
//! What does not fit a column is stored as implausible, never cut or wrapped; what comes back damaged (SQLite
//! has no checksums) is implausible too, never a number.

use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Row, ToSql};

/// One bound value.
pub(super) enum Cell<'a> {
    Int(i64),
    Text(&'a str),
    Words(String),
    Bytes(Vec<u8>),
    Nothing,
}

impl ToSql for Cell<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Cell::Int(n) => ToSqlOutput::Owned(Value::Integer(*n)),
            Cell::Text(t) => ToSqlOutput::Borrowed(ValueRef::Text(t.as_bytes())),
            Cell::Words(t) => ToSqlOutput::Borrowed(ValueRef::Text(t.as_bytes())),
            Cell::Bytes(b) => ToSqlOutput::Borrowed(ValueRef::Blob(b)),
            Cell::Nothing => ToSqlOutput::Owned(Value::Null),
        })
    }
}

/// Where the two halves of a reading are written to.
pub(super) trait Sink {
    /// A reading of `N` integers under one absence.
    fn numbers<const N: usize>(&mut self, numbers: Reading<[i64; N]>);

    /// A reading of one integer.
    fn pair<T>(&mut self, reading: &Reading<T>, number: impl Fn(&T) -> Option<i64>) -> &mut Self {
        self.group(reading, |value| number(value).map(|n| [n]))
    }

    /// A reading as `N` integers; `None` for what cannot be stored.
    fn group<T, const N: usize>(
        &mut self,
        reading: &Reading<T>,
        numbers: impl Fn(&T) -> Option<[i64; N]>,
    ) -> &mut Self {
        let stored = |value| numbers(value).map_or(Absent(Absence::Implausible), Measured);
        self.numbers(reading.as_ref().and_then(stored));
        self
    }
}

/// Where they are read from.
pub(super) trait Source {
    /// A reading of `N` integers under one absence.
    fn numbers<const N: usize>(&mut self) -> rusqlite::Result<Reading<[i64; N]>>;

    /// A reading of one integer; `value` says whether it can be.
    fn pair<T>(&mut self, value: impl Fn(i64) -> Option<T>) -> rusqlite::Result<Reading<T>> {
        self.group(|[n]| value(n))
    }

    /// A reading of `N` integers; `value` says whether they can be.
    fn group<T, const N: usize>(
        &mut self,
        value: impl Fn([i64; N]) -> Option<T>,
    ) -> rusqlite::Result<Reading<T>> {
        let can_be = |numbers| value(numbers).map_or(Absent(Absence::Implausible), Measured);
        Ok(self.numbers()?.and_then(can_be))
    }
}

/// The values of one row, in the order of its columns.
#[derive(Default)]
pub(super) struct Cells<'a>(Vec<Cell<'a>>);

impl<'a> Cells<'a> {
    pub(super) fn new() -> Cells<'a> {
        Cells(Vec::with_capacity(48))
    }

    pub(super) fn int(&mut self, value: i64) -> &mut Self {
        self.0.push(Cell::Int(value));
        self
    }

    pub(super) fn text(&mut self, value: &'a str) -> &mut Self {
        self.0.push(Cell::Text(value));
        self
    }

    /// Text that was made for this row.
    pub(super) fn words(&mut self, value: String) -> &mut Self {
        self.0.push(Cell::Words(value));
        self
    }

    pub(super) fn bytes(&mut self, value: Vec<u8>) -> &mut Self {
        self.0.push(Cell::Bytes(value));
        self
    }

    pub(super) fn int_if(&mut self, value: Option<i64>) -> &mut Self {
        self.0.push(value.map_or(Cell::Nothing, Cell::Int));
        self
    }

    pub(super) fn text_if(&mut self, value: Option<&'a str>) -> &mut Self {
        self.0.push(value.map_or(Cell::Nothing, Cell::Text));
        self
    }

    /// A reading of text.
    pub(super) fn text_pair(&mut self, reading: &'a Reading<String>) -> &mut Self {
        self.str_pair(reading.as_ref().map(String::as_str))
    }

    /// The same where the text is borrowed already.
    pub(super) fn str_pair(&mut self, reading: Reading<&'a str>) -> &mut Self {
        match reading {
            Measured(text) => self.text(text).int_if(None),
            Absent(why) => self.text_if(None).int(why.code()),
        }
    }

    /// Whether a row holds these values from its column `at` on.
    pub(super) fn equal(&self, row: &Row, at: usize) -> rusqlite::Result<bool> {
        for (cell, column) in self.0.iter().zip(at..) {
            let stored = row.get_ref(column)?;
            let equal = match cell {
                Cell::Int(n) => stored == ValueRef::Integer(*n),
                Cell::Text(t) => stored == ValueRef::Text(t.as_bytes()),
                Cell::Words(t) => stored == ValueRef::Text(t.as_bytes()),
                Cell::Bytes(b) => stored == ValueRef::Blob(b),
                Cell::Nothing => stored == ValueRef::Null,
            };
            if !equal {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// To be handed to a statement; leaves the row empty and its memory to the next one.
    pub(super) fn execute(&mut self, statement: &mut rusqlite::Statement) -> rusqlite::Result<usize> {
        let changed = statement.execute(rusqlite::params_from_iter(self.0.iter()));
        self.0.clear();
        changed
    }

    /// The same for a statement that answers with one number.
    pub(super) fn query_row(&mut self, statement: &mut rusqlite::Statement) -> rusqlite::Result<i64> {
        let found = statement.query_row(rusqlite::params_from_iter(self.0.iter()), |r| r.get(0));
        self.0.clear();
        found
    }
}

impl Sink for Cells<'_> {
    fn numbers<const N: usize>(&mut self, numbers: Reading<[i64; N]>) {
        match numbers {
            Measured(numbers) => {
                self.0.extend(numbers.map(Cell::Int));
                self.int_if(None);
            }
            Absent(why) => {
                self.0.extend((0..N).map(|_| Cell::Nothing));
                self.int(why.code());
            }
        }
    }
}

/// Reads the columns of a row from left to right.
pub(super) struct Cursor<'r, 's> {
    row: &'r Row<'s>,
    at: usize,
}

impl<'r, 's> Cursor<'r, 's> {
    pub(super) fn from(row: &'r Row<'s>, at: usize) -> Cursor<'r, 's> {
        Cursor { row, at }
    }

    pub(super) fn get<T: rusqlite::types::FromSql>(&mut self) -> rusqlite::Result<T> {
        self.at += 1;
        self.row.get(self.at - 1)
    }

    pub(super) fn skip(&mut self) {
        self.at += 1;
    }

    /// An integer or nothing, as nearly every column is: the way for all types would be half as dear again.
    fn number(&mut self) -> rusqlite::Result<Option<i64>> {
        match self.row.get_ref(self.at)? {
            ValueRef::Integer(number) => {
                self.at += 1;
                Ok(Some(number))
            }
            ValueRef::Null => {
                self.at += 1;
                Ok(None)
            }
            _ => self.get(),
        }
    }

    /// Bytes; what are none any more are none.
    pub(super) fn bytes(&mut self) -> rusqlite::Result<&'r [u8]> {
        self.at += 1;
        let stored = self.row.get_ref(self.at - 1)?;
        Ok(stored.as_blob().unwrap_or_default())
    }

    pub(super) fn text_pair(&mut self) -> rusqlite::Result<Reading<String>> {
        let text: Option<String> = self.get()?;
        Ok(match (text, self.get::<Option<i64>>()?) {
            (Some(text), None) => Measured(text),
            (None, Some(code)) => Absent(Absence::from_code(code)),
            _ => Absent(Absence::Implausible),
        })
    }
}

impl Source for Cursor<'_, '_> {
    fn numbers<const N: usize>(&mut self) -> rusqlite::Result<Reading<[i64; N]>> {
        let mut numbers = [0; N];
        let mut present = 0;
        for slot in &mut numbers {
            if let Some(number) = self.number()? {
                *slot = number;
                present += 1;
            }
        }
        Ok(match self.number()? {
            None if present == N => Measured(numbers),
            Some(code) if present == 0 => Absent(Absence::from_code(code)),
            _ => Absent(Absence::Implausible),
        })
    }
}

/// Places for so many values.
pub(super) fn blanks(count: usize) -> String {
    vec!["?"; count].join(", ")
}

/// An unsigned number as a column, where it fits.
pub(super) fn fits(value: u64) -> Option<i64> {
    i64::try_from(value).ok()
}

/// A `u32` column back.
pub(super) fn small(value: i64) -> Option<u32> {
    u32::try_from(value).ok()
}

/// A `u64` column back.
pub(super) fn large(value: i64) -> Option<u64> {
    u64::try_from(value).ok()
}

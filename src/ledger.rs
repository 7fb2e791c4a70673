//! The ledger: one SQLite file per node in which runs, Prologs and Epilogs remember what they saw and did.
//! Edges meet only in the story: this one never asks the clock, a GPU or Slurm, and never judges.
//!
//! Why it is as it is (measured on a short-lived program with one connection per process):
//!
//! - **A rollback journal, TRUNCATE.** WAL's gain is that readers and a long-lived writer share; here every
//!   close would be the last one, hence a checkpoint with fsyncs. A WAL file also cannot be read by somebody
//!   who may not write its folder, and `--explain` is for such people too.
//! - **`synchronous=OFF`**, but for the one transaction before an act. A killed process is rolled back by the
//!   journal all the same. Only a dead machine can tear the file, and then its jobs are dead and its windows
//!   void; an fsync, on the other hand, waits behind the checkpoints of the very jobs that are watched
//!   (0.6 s at the 90th percentile beside one writer, and in uninterruptible sleep). The first append of a
//!   boot checks the whole file.
//! - **BEGIN IMMEDIATE for whatever writes.** A transaction that has read cannot wait for the write lock:
//!   it fails at once (rusqlite/rusqlite#767); of 360 deferred ones, 258 did.
//! - **One allowance of waiting per connection**, not per statement, where it would add up.
//! - **No VACUUM, ANALYZE, optimize**: 1 million rows make them 0.6 s each. Pruning frees pages, later runs
//!   fill them, and `max_page_count` is the ceiling.
//! - **A damaged file is put aside, an unusable one is left alone**: see [`LedgerError`].
//!
//! What it keeps and promises:
//!
//! 1. One SQLite file a node, in `state_dir/<node name>/`, readable by root.
//! 2. A reading is two columns, value and why absent; a CHECK wants exactly one. Tables are STRICT, units integers. The
//!    driver's counters, and samples that are no longer the newest, are packed in a form that can only hold one of both.
//! 3. One transaction a run, no fsync; a run that acts writes the deed durably before it is done, its outcome after.
//! 4. Nothing else is remembered: state is what replaying the rows gives, and `--explain` replays them with the same code.
//! 5. Rows belong to one boot: instants of another boot are no evidence. Actions outlive the boot.
//! 6. A job run is a row that never returns; samples may only be added while its registration is open.
//! 7. The Epilog clears the job run; under `observe` its samples move to the archive, a finding leaves a case file.
//! 8. Older than `history.keep` is pruned; the file has a ceiling and stays at its size.
//! 9. Damaged, it is set aside and a new one begun; nothing is acted on until a window has passed.
//! 10. Written by a newer version, it is refused and left untouched.

mod actions;
mod append;
mod cadence;
mod clear;
mod columns;
mod earlier;
mod facts;
mod fault_drains;
mod faults;
mod findings;
mod jobs;
mod learnt;
mod newest;
mod open;
mod outbox;
mod past;
mod prune;
mod questions;
mod remembered;
mod replay;
mod sample;
mod schema;
mod tally;
#[cfg(test)]
mod testing;
mod unit;
mod units;
mod words;
mod xids;

pub use actions::{NewAction, OpenDrain, Unsettled};
pub use append::{JobInRun, Killed, NewRun, ProcessFacts};
pub use clear::{CaseFile, Cleared, EpilogOf, StoredCase};
pub use earlier::Earlier;
pub use fault_drains::FaultDrain;
pub use faults::{FaultRow, SeenFault};
pub use findings::{Closing, FindingRow, NewFinding, Withheld, partition};
pub use jobs::{JobRecord, Life};
pub use learnt::FloorRow;
pub use newest::{NewestLook, SeenUnit};
pub use outbox::{Letter, MOST_WAITING, Queued};
pub use prune::{Keep, MOST_CASE_FILES};
pub use questions::Question;
pub use remembered::Remembered;
pub use replay::{JobAsked, Reach};
pub use tally::{Actor, NOT_KNOWN, OTHERS, RUN_BOUNDS_MS, Source, Tallies, Tally};

use crate::model::Now;
use crate::units::{BootMs, NodeName, WallMs};
use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior};
use std::cell::RefCell;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a connection to the ledger is opened with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// How long this connection may wait for others in all, over all its statements.
    pub wait: Duration,
    /// The file's hard ceiling in bytes; a file that is larger already stays, but grows no further.
    pub max_bytes: u64,
}

/// When and where a ledger was begun. Until a window and a warm-up have passed since, on this boot, it cannot
/// know what was done before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// On which boot.
    pub boot_id: String,
    /// When, on that boot.
    pub boot: BootMs,
    /// The same, for showing.
    pub wall: WallMs,
}

/// An open ledger of one node.
#[derive(Debug)]
pub struct Ledger {
    conn: Connection,
    path: PathBuf,
    node: NodeName,
    created: Created,
    opened: Option<(Now, Opening)>,
    notes: Vec<String>,
    /// The boot that was last looked for, once it has had its first run: that never changes again.
    boot: RefCell<Option<(String, Boot)>>,
}

impl Ledger {
    /// Opens the ledger in `dir`, the node's own folder, and creates what is missing: the folder (0750), the
    /// file (0640), the tables. A damaged file is put aside and a new one begun; [`Ledger::notes`] says so.
    ///
    /// Errors: any [`LedgerErrorKind`] but `Corrupt` and `Refused`; also a ledger of another node.
    pub fn open(dir: &Path, node: &NodeName, now: &Now, opening: Opening) -> Result<Ledger, LedgerError> {
        open::open(dir, node, now, opening)
    }

    /// Opens the ledger in `dir` to read only, as somebody who may not write there can. Creates nothing.
    pub fn open_read_only(dir: &Path, wait: Duration) -> Result<Ledger, LedgerError> {
        open::open_read_only(dir, wait)
    }

    /// The node whose ledger this is.
    pub fn node(&self) -> &NodeName {
        &self.node
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// When it was begun.
    pub fn created(&self) -> &Created {
        &self.created
    }

    /// Milliseconds since this ledger was begun; `None` if that was on another boot: then it is older than
    /// anything on this one.
    pub fn age_ms(&self, now: &Now) -> Option<i64> {
        (self.created.boot_id == now.boot_id).then(|| now.boot.since_ms(self.created.boot))
    }

    /// What was done to the file itself since it was opened, one line each, to be said aloud.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Puts a damaged file aside and begins a new one. For a reader that met [`LedgerErrorKind::Corrupt`];
    /// whatever writes does so by itself.
    pub fn start_anew(&mut self, why: &LedgerError) -> Result<(), LedgerError> {
        open::start_anew(self, &why.text)
    }

    /// One writing transaction. Damage found in it puts the file aside; the caller still gets the error.
    fn write<T>(
        &mut self,
        doing: &'static str,
        work: impl FnOnce(&Transaction) -> rusqlite::Result<T>,
    ) -> Result<T, LedgerError> {
        let done = transaction(&mut self.conn, work).map_err(|e| self.error(doing, e));
        if let Err(error) = &done
            && error.kind == LedgerErrorKind::Corrupt
        {
            let text = error.text.clone();
            open::start_anew(self, &text)?;
        }
        done
    }

    /// One writing transaction that makes sense in an empty ledger too: after damage it is done once more
    /// there. `work` is told whether it is.
    fn write_or_anew<T>(
        &mut self,
        doing: &'static str,
        mut work: impl FnMut(&Transaction, bool) -> rusqlite::Result<T>,
    ) -> Result<T, LedgerError> {
        match self.write(doing, |tx| work(tx, false)) {
            Err(error) if error.kind == LedgerErrorKind::Corrupt => self.write(doing, |tx| work(tx, true)),
            done => done,
        }
    }

    /// Several reads of one state, under one lock: each alone would look for a journal and take and leave the
    /// lock anew, which is most of what a read costs.
    pub fn together<T>(
        &self,
        work: impl FnOnce(&Ledger) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let reading = self.conn.unchecked_transaction().map_err(|e| self.error("read", e))?;
        let done = work(self);
        drop(reading);
        done
    }

    /// The row of a boot.
    fn boot(&self, boot_id: &str) -> rusqlite::Result<Option<Boot>> {
        if let Some((id, boot)) = &*self.boot.borrow()
            && id == boot_id
        {
            return Ok(Some(*boot));
        }
        let found = boot_row(&self.conn, boot_id)?;
        let lasting = found.filter(|boot| boot.first_run.is_some());
        *self.boot.borrow_mut() = lasting.map(|boot| (boot_id.to_owned(), boot));
        Ok(found)
    }

    fn read<T>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, LedgerError> {
        work(&self.conn).map_err(|e| self.error(doing, e))
    }

    fn error(&self, doing: &str, cause: rusqlite::Error) -> LedgerError {
        LedgerError::of(&self.path, doing, cause)
    }
}

fn transaction<T>(
    conn: &mut Connection,
    work: impl FnOnce(&Transaction) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let done = work(&tx)?;
    tx.commit()?;
    Ok(done)
}

/// The row of a boot. Never deleted: there are as many as there were boots.
#[derive(Clone, Copy, Debug)]
struct Boot {
    id: i64,
    /// Its first health-check run, once there was one.
    first_run: Option<i64>,
}

fn boot_row(conn: &Connection, boot_id: &str) -> rusqlite::Result<Option<Boot>> {
    conn.query_row("SELECT id, first_run FROM boot WHERE boot_id = ?1", [boot_id], |r| {
        Ok(Boot { id: r.get(0)?, first_run: r.get(1)? })
    })
    .optional()
}

/// The row of a boot, made if there is none.
fn boot_row_made(tx: &Transaction, boot_id: &str) -> rusqlite::Result<Boot> {
    match boot_row(tx, boot_id)? {
        Some(boot) => Ok(boot),
        None => {
            tx.execute("INSERT INTO boot (boot_id) VALUES (?1)", [boot_id])?;
            Ok(Boot { id: tx.last_insert_rowid(), first_run: None })
        }
    }
}

/// What kind of trouble a ledger is in. Only `Corrupt` is ever put aside; the others heal from outside, and a
/// file that is moved for them would be evidence lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerErrorKind {
    /// Locked by others for longer than the connection may wait.
    Busy,
    /// The disk or the ceiling is reached; reading still works.
    Full,
    /// The file system or the permissions allow no writing; reading still works.
    ReadOnly,
    /// No file, no folder, no permission, or a symbolic link.
    CannotOpen,
    /// The disk failed.
    Io,
    /// Not a database, or a damaged one.
    Corrupt,
    /// Written by a later version: refused, the data are untouched.
    NewerSchema,
    /// Of an earlier version, or begun and never written; whoever may write brings it up to date.
    OlderSchema,
    /// A constraint said no: the row would have been a lie.
    Refused,
    /// Anything else.
    Other,
}

/// Why the ledger could not be used: one line for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerError {
    /// For those who decide what to do instead.
    pub kind: LedgerErrorKind,
    /// What failed and its cause.
    pub text: String,
}

impl LedgerError {
    fn new(kind: LedgerErrorKind, path: &Path, text: impl fmt::Display) -> LedgerError {
        LedgerError { kind, text: format!("ledger `{}`: {text}", path.display()) }
    }

    fn of(path: &Path, doing: &str, cause: rusqlite::Error) -> LedgerError {
        let kind = match cause.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => LedgerErrorKind::Busy,
            Some(ErrorCode::DiskFull) => LedgerErrorKind::Full,
            Some(ErrorCode::ReadOnly) => LedgerErrorKind::ReadOnly,
            Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => LedgerErrorKind::CannotOpen,
            Some(ErrorCode::SystemIoFailure) => LedgerErrorKind::Io,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => LedgerErrorKind::Corrupt,
            Some(ErrorCode::ConstraintViolation) => LedgerErrorKind::Refused,
            _ => LedgerErrorKind::Other,
        };
        LedgerError::new(kind, path, format_args!("{doing}: {}", one_line(&cause.to_string())))
    }
}

fn one_line(text: &str) -> String {
    text.replace(|c: char| c.is_control(), " ")
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for LedgerError {}

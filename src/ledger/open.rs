//! Opening: the folder and the file, the settings of a connection, migrations, and what happens to a damaged
//! file. Never moves a file for any reason but damage, and never touches one of a later version.

use super::schema::MIGRATIONS;
use super::{Created, Ledger, LedgerError, LedgerErrorKind, Opening, transaction};
use crate::model::Now;
use crate::units::{BootMs, NodeName, WallMs};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, FileControl, OpenFlags};
use std::cell::RefCell;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

const FILE: &str = "ledger.db";
/// Damaged files kept for whoever wants to know; older ones are deleted.
const DAMAGED_KEPT: usize = 2;
/// SQLite's page size unless told otherwise; smaller and larger ones measured slower.
const PAGE_BYTES: u64 = 4096;
/// How long one wait for a lock lasts before it is tried again.
const NAP: Duration = Duration::from_millis(2);

/// What SQLite touches of fresh memory in a usual run.
const MEMORY_BYTES: usize = 320 << 10;
static MEMORY: Once = Once::new();

/// Has the kernel make that memory present in one call. At each page's first touch instead it would interrupt the
/// process a hundred times, which costs ten times as much: a tenth of a run. Not before the worker was forked,
/// since then each page is copied besides; and where the kernel cannot (before 5.14), nothing is lost.
fn memory_at_once() {
    // SAFETY: the block is ours between malloc and free; the advice is for whole pages inside it and changes no
    // content.
    unsafe {
        let block = libc::malloc(MEMORY_BYTES);
        let page = PAGE_BYTES as usize;
        if !block.is_null() {
            let start = block.wrapping_byte_add(block.align_offset(page));
            libc::madvise(start, MEMORY_BYTES - page, libc::MADV_POPULATE_WRITE);
            libc::free(block);
        }
    }
}

/// No URI file names, no following of links: the path is ours, and root opens it.
fn flags(write: bool) -> OpenFlags {
    let mode = match write {
        true => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
        false => OpenFlags::SQLITE_OPEN_READ_ONLY,
    };
    mode | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW
}

pub(super) fn open(dir: &Path, node: &NodeName, now: &Now, opening: Opening) -> Result<Ledger, LedgerError> {
    MEMORY.call_once(memory_at_once);
    let path = prepare_file(dir)?;
    let mut notes = Vec::new();
    let (conn, (owner, created)) = match connect(&path, node, now, opening) {
        Err(error) if error.kind == LedgerErrorKind::Corrupt => {
            let _only_one = lock_folder(&path, opening.wait)?;
            // Once more under the lock: another process may have begun a new file meanwhile.
            match connect(&path, node, now, opening) {
                Err(error) if error.kind == LedgerErrorKind::Corrupt => {
                    notes.push(put_aside(&path, now, &error.text)?);
                    connect(&path, node, now, opening)?
                }
                other => other?,
            }
        }
        other => other?,
    };
    if owner != *node {
        let text = format_args!("it belongs to node `{owner}`, this is `{node}`; it was left as it is");
        return Err(LedgerError::new(LedgerErrorKind::Other, &path, text));
    }
    Ok(Ledger {
        conn,
        path,
        node: owner,
        created,
        opened: Some((now.clone(), opening)),
        notes,
        boot: RefCell::default(),
    })
}

pub(super) fn open_read_only(dir: &Path, wait: Duration) -> Result<Ledger, LedgerError> {
    let path = plain_path(dir)?;
    let told = |e| LedgerError::of(&path, "open to read", e);
    let mut conn = Connection::open_with_flags(&path, flags(false)).map_err(told)?;
    settle(&mut conn, wait).map_err(told)?;
    let found = version(&conn, &path)?;
    if found < MIGRATIONS.len() {
        let text = format_args!("holds no ledger of this version yet (schema {found})");
        return Err(LedgerError::new(LedgerErrorKind::OlderSchema, &path, text));
    }
    let (node, created) = meta(&conn, &path)?;
    Ok(Ledger { conn, path, node, created, opened: None, notes: Vec::new(), boot: RefCell::default() })
}

/// SQLITE_OPEN_NOFOLLOW refuses a link anywhere in the path, and `/var` is one on some systems: the folder's
/// links are resolved here, so that only a link in the place of the file itself is refused.
fn plain_path(dir: &Path) -> Result<PathBuf, LedgerError> {
    match fs::canonicalize(dir) {
        Ok(dir) => Ok(dir.join(FILE)),
        Err(e) => Err(LedgerError::new(LedgerErrorKind::CannotOpen, &dir.join(FILE), e)),
    }
}

/// The file's path; folder and file exist afterwards. SQLite gives its journal the file's own mode.
fn prepare_file(dir: &Path) -> Result<PathBuf, LedgerError> {
    let told = |e: std::io::Error| {
        let kind = match e.kind() {
            ErrorKind::ReadOnlyFilesystem => LedgerErrorKind::ReadOnly,
            ErrorKind::StorageFull => LedgerErrorKind::Full,
            _ => LedgerErrorKind::CannotOpen,
        };
        LedgerError::new(kind, &dir.join(FILE), format_args!("create: {e}"))
    };
    if !dir.is_dir() {
        fs::DirBuilder::new().recursive(true).mode(0o750).create(dir).map_err(told)?;
    }
    let path = plain_path(dir)?;
    match create(&path) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        Err(e) if e.kind() == ErrorKind::ReadOnlyFilesystem && path.exists() => {}
        Err(e) => return Err(told(e)),
    }
    Ok(path)
}

type Meta = (NodeName, Created);

fn connect(
    path: &Path,
    node: &NodeName,
    now: &Now,
    opening: Opening,
) -> Result<(Connection, Meta), LedgerError> {
    let told = |e| LedgerError::of(path, "open", e);
    let mut conn = Connection::open_with_flags(path, flags(true)).map_err(told)?;
    settle(&mut conn, opening.wait).map_err(told)?;
    conn.execute_batch("PRAGMA journal_mode = TRUNCATE; PRAGMA synchronous = OFF;").map_err(told)?;
    let ceiling = format!("PRAGMA max_page_count = {};", opening.max_bytes.div_ceil(PAGE_BYTES).max(64));
    let ready = |conn: &Connection| {
        conn.execute_batch(&ceiling).map_err(told)?;
        meta(conn, path)
    };
    // The usual open has nothing to migrate, writes nothing, and takes the lock once for all that it reads.
    let reading = conn.unchecked_transaction().map_err(told)?;
    if version(&conn, path)? == MIGRATIONS.len() {
        let meta = ready(&conn)?;
        drop(reading);
        return Ok((conn, meta));
    }
    drop(reading);
    // Without the ceiling: a table that is built anew stands twice for a moment, and a ledger that is nearly full
    // could never be migrated.
    migrate(&mut conn, node, now).map_err(|e| LedgerError::of(path, "create tables", e))?;
    let meta = ready(&conn)?;
    Ok((conn, meta))
}

/// What every connection gets, whatever it is for.
fn settle(conn: &mut Connection, wait: Duration) -> rusqlite::Result<()> {
    // Counted as time asleep, over all statements: `busy_timeout` would start anew with each of them.
    let mut left = wait;
    conn.busy_handler(Some(move |_| {
        let Some(rest) = left.checked_sub(NAP) else {
            return false;
        };
        left = rest;
        std::thread::sleep(NAP);
        true
    }))?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    // Plans that depend on bound values are made twice, once without and once with them: a tenth of a run.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

/// The schema's version. A later one than ours is refused.
fn version(conn: &Connection, path: &Path) -> Result<usize, LedgerError> {
    let known = MIGRATIONS.len();
    let found: i64 = conn
        .query_row("PRAGMA user_version", [], |r| r.get(0))
        .map_err(|e| LedgerError::of(path, "read the schema's version", e))?;
    match usize::try_from(found) {
        Ok(version) if version <= known => Ok(version),
        _ => {
            let text = format_args!(
                "written by a later version (schema {found}, known up to {known}); it was left as it is"
            );
            Err(LedgerError::new(LedgerErrorKind::NewerSchema, path, text))
        }
    }
}

fn migrate(conn: &mut Connection, node: &NodeName, now: &Now) -> rusqlite::Result<()> {
    transaction(conn, |tx| {
        // Once more under the lock: of sixteen first openers fifteen find the work done.
        let found: u32 = tx.query_row("PRAGMA user_version", [], |r| r.get(0))?;
        for step in MIGRATIONS.iter().skip(found as usize) {
            tx.execute_batch(step)?;
        }
        if found == 0 {
            tx.execute(
                "INSERT INTO meta (one, node, created_boot, created_boot_ms, created_wall_ms, thinned_run)
                 VALUES (1, ?1, ?2, ?3, ?4, 0)",
                (node.as_str(), &now.boot_id, now.boot.0, now.wall.0),
            )?;
        }
        tx.pragma_update(None, "user_version", MIGRATIONS.len() as u32)
    })
}

fn meta(conn: &Connection, path: &Path) -> Result<Meta, LedgerError> {
    let sql = "SELECT node, created_boot, created_boot_ms, created_wall_ms FROM meta";
    let (node, created) = conn
        .query_row(sql, [], |r| {
            let created = Created { boot_id: r.get(1)?, boot: BootMs(r.get(2)?), wall: WallMs(r.get(3)?) };
            Ok((r.get::<_, String>(0)?, created))
        })
        .map_err(|e| LedgerError::of(path, "read whose ledger this is", e))?;
    let node = NodeName::new(&node).map_err(|e| LedgerError::new(LedgerErrorKind::Other, path, e))?;
    Ok((node, created))
}

/// Checks every page and index entry. Seconds on a large file: only for the first run of a boot.
pub(super) fn check(conn: &Connection) -> rusqlite::Result<()> {
    let answer: String = conn.query_row("PRAGMA quick_check(1)", [], |r| r.get(0))?;
    match answer.as_str() {
        "ok" => Ok(()),
        found => Err(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT),
            Some(format!("quick_check: {found}")),
        )),
    }
}

/// Puts the file behind an open ledger aside and begins a new one, unless another process already has.
pub(super) fn start_anew(ledger: &mut Ledger, cause: &str) -> Result<(), LedgerError> {
    let Some((now, opening)) = ledger.opened.clone() else {
        let text = format_args!("opened to read only, a damaged file is not put aside ({cause})");
        return Err(LedgerError::new(LedgerErrorKind::ReadOnly, &ledger.path, text));
    };
    let _only_one = lock_folder(&ledger.path, opening.wait)?;
    let mut moved = 0;
    ledger
        .conn
        .file_control(Some("main"), FileControl::HasMoved(&mut moved))
        .map_err(|e| LedgerError::of(&ledger.path, "look whether it was moved", e))?;
    let note = match moved {
        0 => put_aside(&ledger.path, &now, cause)?,
        _ => format!("{cause}; another process has begun a new one"),
    };
    let (conn, (_, created)) = connect(&ledger.path, &ledger.node, &now, opening)?;
    ledger.conn = conn;
    ledger.boot = RefCell::default();
    ledger.created = created;
    ledger.notes.push(note);
    Ok(())
}

/// Of several processes that find the damage only one may move the file, and none the new one. Held only
/// while files are renamed and tables made; gone with the process. A holder that hangs is waited for no longer
/// than any other lock: a Prolog's time is bounded.
fn lock_folder(path: &Path, wait: Duration) -> Result<File, LedgerError> {
    let told = |e| LedgerError::new(LedgerErrorKind::CannotOpen, path, format_args!("lock its folder: {e}"));
    let lock = File::open(folder(path)).map_err(told)?;
    let mut left = wait;
    loop {
        match (lock.try_lock(), left.checked_sub(NAP)) {
            (Ok(()), _) => return Ok(lock),
            (Err(TryLockError::Error(e)), _) => return Err(told(e)),
            (Err(TryLockError::WouldBlock), Some(rest)) => left = rest,
            (Err(TryLockError::WouldBlock), None) => {
                let why = format_args!("its folder was locked for all of {} ms", wait.as_millis());
                return Err(LedgerError::new(LedgerErrorKind::Busy, path, why));
            }
        }
        std::thread::sleep(NAP);
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

/// Moves the file, under the lock of [`lock_folder`].
fn put_aside(path: &Path, now: &Now, cause: &str) -> Result<String, LedgerError> {
    let told = |e: std::io::Error| {
        LedgerError::new(LedgerErrorKind::Corrupt, path, format_args!("{cause}; not moved: {e}"))
    };
    let name = format!("{FILE}.corrupt-{}", now.wall.0.div_euclid(1000));
    let aside = path.with_file_name(&name);
    let journal = |name: &str| path.with_file_name(format!("{name}-journal"));
    // The journal first: beside a new file it would be played back into it.
    rename_if_there(&journal(FILE), &journal(&name))
        .and_then(|()| fs::rename(path, &aside))
        .and_then(|()| create(path))
        .map_err(told)?;
    drop_older(path);
    Ok(format!("{cause}; moved to `{}`, a new one was begun", aside.display()))
}

/// Makes the empty file, readable by an administrator's group whatever the umask.
fn create(path: &Path) -> std::io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o640).open(path)?;
    file.set_permissions(Permissions::from_mode(0o640))
}

fn rename_if_there(from: &Path, to: &Path) -> std::io::Result<()> {
    match fs::rename(from, to) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Keeps the newest damaged files. One that cannot be deleted stays: it harms nobody.
fn drop_older(path: &Path) {
    let Ok(entries) = fs::read_dir(folder(path)) else {
        return;
    };
    let mut found: Vec<(i64, PathBuf)> = entries
        .flatten()
        .filter_map(|e| {
            let name = e.file_name().into_string().ok()?;
            let second = name.strip_prefix(FILE)?.strip_prefix(".corrupt-")?.parse().ok()?;
            Some((second, e.path()))
        })
        .collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    for (_, path) in found.into_iter().skip(DAMAGED_KEPT) {
        let mut journal = path.clone().into_os_string();
        journal.push("-journal");
        let _ = fs::remove_file(journal);
        let _ = fs::remove_file(path);
    }
}

//! Several processes at once, and processes that die.

use super::damage::put_aside;
use super::*;

#[test]
#[ignore = "a step of other tests"]
fn step_open_register_clear() {
    let Some(dir) = step_dir() else { return };
    let id = u64::from(std::process::id());
    let mut ledger = open(&dir).unwrap();
    let run = ledger.register(&at(0), &registration(id)).unwrap();
    append(&mut ledger, 1, &report(2), Some(run), &keep(64 * MIB)).unwrap();
    ledger.clear(JobId::new(id).unwrap(), Some(0), &at(2), true, None).unwrap();
}

#[test]
fn sixteen_first_openers_all_succeed() {
    // russellromney/honker#102, elixir-sqlite/exqlite#138 (DB-02): every node's first boot after installation.
    // rusqlite/rusqlite#767 (DB-01): and each of them reads before it writes.
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("state/gpu-a7");
    let openers: Vec<_> = (0..16).map(|_| step("crowd::step_open_register_clear", &place)).collect();
    openers.into_iter().for_each(finished);
    assert_eq!(sqlite(&place, "SELECT count(*) FROM run"), "Integer(16)");
    assert_eq!(sqlite(&place, "SELECT count(*) FROM sample WHERE job_run > 0"), "Integer(32)");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&place), mode(&place.join("ledger.db"))), (0o750, 0o640));
}

#[test]
#[ignore = "a step of other tests"]
fn step_append_many() {
    let Some(dir) = step_dir() else { return };
    for minute in 0..20 {
        let mut ledger = open(&dir).unwrap();
        let run = ledger.open_runs(BOOT).unwrap()[0].id;
        append(&mut ledger, minute, &report(4), Some(run), &keep(64 * MIB)).unwrap();
    }
}

#[test]
fn six_writers_at_once_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).unwrap().register(&at(0), &registration(1)).unwrap();
    let writers: Vec<_> = (0..6).map(|_| step("crowd::step_append_many", dir.path())).collect();
    writers.into_iter().for_each(finished);
    assert_eq!(sqlite(dir.path(), "SELECT count(*) FROM run"), "Integer(120)");
    let samples = "SELECT (SELECT count(*) FROM sample WHERE job_run = 1) + (SELECT sum(units) FROM past)";
    assert_eq!(sqlite(dir.path(), samples), "Integer(480)");
    assert_eq!(sqlite(dir.path(), "PRAGMA integrity_check"), "Text(\"ok\")");
}

#[test]
fn waiting_is_bounded_over_all_statements_together() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).unwrap());
    let holder = rusqlite::Connection::open(dir.path().join("ledger.db")).unwrap();
    let opening = opening(300, 64 * MIB);
    let mut ledger = Ledger::open(dir.path(), &node(), &at(0), opening).unwrap();
    holder.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let begun = std::time::Instant::now();
    for _ in 0..5 {
        let error = append(&mut ledger, 1, &report(1), None, &keep(64 * MIB)).unwrap_err();
        assert_eq!(error.kind, LedgerErrorKind::Busy, "{error}");
    }
    assert!(begun.elapsed() < Duration::from_millis(1400), "{:?}", begun.elapsed());
    holder.execute_batch("ROLLBACK").unwrap();
    append(&mut ledger, 1, &report(1), None, &keep(64 * MIB)).unwrap();
}

#[test]
#[ignore = "a step of other tests"]
fn step_die_in_a_transaction() {
    let Some(dir) = step_dir() else { return };
    let conn = rusqlite::Connection::open(dir.join("ledger.db")).unwrap();
    // A cache of one page: the change is in the file, half of it, when the process dies.
    conn.execute_batch(
        "PRAGMA journal_mode = TRUNCATE; PRAGMA synchronous = OFF; PRAGMA cache_size = 1; BEGIN IMMEDIATE;
         UPDATE sample SET sm_util = 99; UPDATE unit SET name = 'wrong'; DELETE FROM job_run;",
    )
    .unwrap();
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

#[test]
fn a_writer_killed_in_mid_transaction_leaves_the_ledger_as_it_was() {
    // crawshaw/sqlite#113 (DB-03): two processes open at once after the kill. celerity/slurmactiond#4 (RT-04):
    // nothing that outlives a killed process blocks the next run.
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path()).unwrap();
    let run = ledger.register(&at(0), &registration(1)).unwrap();
    for minute in 1..=200 {
        append(&mut ledger, minute, &report(8), Some(run), &keep(64 * MIB)).unwrap();
    }
    drop(ledger);
    assert!(!step("crowd::step_die_in_a_transaction", dir.path()).wait().unwrap().success());
    let journal = fs::metadata(dir.path().join("ledger.db-journal")).unwrap().len();
    assert!(journal > 0, "the journal is hot");
    let openers: Vec<_> = (0..2)
        .map(|_| {
            let dir = dir.path().to_owned();
            std::thread::spawn(move || ticks(&open(&dir).unwrap(), 8))
        })
        .collect();
    for opener in openers {
        assert_eq!(opener.join().unwrap(), [200]);
    }
    assert_eq!(sqlite(dir.path(), "SELECT max(sm_util) FROM sample"), "Integer(0)");
    assert_eq!(sqlite(dir.path(), "PRAGMA integrity_check"), "Text(\"ok\")");
}

#[test]
#[ignore = "a step of other tests"]
fn step_open_damaged() {
    let Some(dir) = step_dir() else { return };
    let mut ledger = open(&dir).unwrap();
    append(&mut ledger, 1, &report(1), None, &keep(64 * MIB)).unwrap();
}

#[test]
fn of_many_that_find_the_damage_one_moves_the_file() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("ledger.db"), "no ledger".repeat(999)).unwrap();
    let openers: Vec<_> = (0..8).map(|_| step("crowd::step_open_damaged", dir.path())).collect();
    openers.into_iter().for_each(finished);
    assert_eq!(put_aside(dir.path()).len(), 1);
    let aside = dir.path().join(&put_aside(dir.path())[0]);
    assert!(fs::read(aside).unwrap().starts_with(b"no ledger"));
    assert_eq!(sqlite(dir.path(), "SELECT count(*) FROM run"), "Integer(8)");
}

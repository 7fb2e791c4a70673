//! Files that are not what was written: put aside, refused, or new.

use super::*;

pub fn put_aside(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|n| n.contains("corrupt") && !n.ends_with("-journal")).collect();
    names.sort();
    names
}

type Damage = fn(&mut Vec<u8>);

#[test]
fn a_damaged_file_is_put_aside_once_and_a_new_ledger_knows_it_is_new() {
    let filled = || {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = open(dir.path()).unwrap();
        let run = ledger.register(&at(0), &registration(1)).unwrap();
        for minute in 1..=50 {
            append(&mut ledger, minute, &report(8), Some(run), &keep(64 * MIB)).unwrap();
        }
        dir
    };
    let damage: [(&str, Damage); 4] = [
        ("a garbled header", |file| file[..64].fill(0x5a)),
        ("zeros", |file| file.fill(0)),
        ("a text file", |file| *file = b"this is no ledger at all\n".repeat(200)),
        ("a truncated file", |file| file.truncate(file.len() / 2)),
    ];
    for (name, damage) in damage {
        let dir = filled();
        let path = dir.path().join("ledger.db");
        let mut file = fs::read(&path).unwrap();
        damage(&mut file);
        fs::write(&path, file).unwrap();
        let later = at(60);
        let opening = opening(2000, 64 * MIB);
        let mut ledger = Ledger::open(dir.path(), &node(), &later, opening).unwrap();
        let aside = format!("ledger.db.corrupt-{}", later.wall.0 / 1000);
        assert_eq!(put_aside(dir.path()), [aside.as_str()], "{name}");
        assert!(ledger.notes()[0].contains(&aside), "{name}: {:?}", ledger.notes());
        assert_eq!(ledger.age_ms(&at(70)), Some(600_000), "{name}");
        append(&mut ledger, 61, &report(8), None, &keep(64 * MIB)).unwrap();
        assert!(Ledger::open(dir.path(), &node(), &later, opening).unwrap().notes().is_empty(), "{name}");
    }
}

#[test]
fn damage_that_shows_only_while_pruning_is_put_aside_too() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path()).unwrap();
    let run = ledger.register(&at(0), &registration(1)).unwrap();
    for minute in 1..=300 {
        append(&mut ledger, minute, &report(8), Some(run), &keep(64 * MIB)).unwrap();
    }
    drop(ledger);
    let path = dir.path().join("ledger.db");
    let mut file = fs::read(&path).unwrap();
    let pages = file.len() / 4096;
    // The middle of the file: old samples, which no open and no append of a young ledger looks at.
    file[pages / 8 * 3 * 4096..pages / 8 * 5 * 4096].fill(0x5a);
    fs::write(&path, file).unwrap();
    let mut ledger = open(dir.path()).unwrap();
    let hurried = Keep { samples_ms: 60_000, archive_ms: 60_000, ..keep(64 * MIB) };
    // Pruning comes every few runs.
    for minute in 301..=330 {
        append(&mut ledger, minute, &report(8), Some(run), &hurried).unwrap();
    }
    assert_eq!(put_aside(dir.path()).len(), 1);
    assert_eq!(ledger.notes().len(), 1, "{:?}", ledger.notes());
    assert_eq!(sqlite(dir.path(), "SELECT count(*) FROM sample WHERE job_run IS NOT NULL"), "Integer(0)");
    assert_eq!(sqlite(dir.path(), "SELECT count(*) > 8 FROM sample"), "Integer(1)");
}

#[test]
fn the_first_run_of_a_boot_checks_the_whole_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path()).unwrap();
    for minute in 1..=300 {
        append(&mut ledger, minute, &report(8), None, &keep(64 * MIB)).unwrap();
    }
    drop(ledger);
    let path = dir.path().join("ledger.db");
    let mut file = fs::read(&path).unwrap();
    let page = file.len() / 4096 / 2 * 4096;
    file[page..page + 4096].fill(0x5a);
    fs::write(&path, file).unwrap();
    let mut ledger = open(dir.path()).unwrap();
    append(&mut ledger, 301, &report(8), None, &keep(64 * MIB)).unwrap();
    assert!(put_aside(dir.path()).is_empty(), "not looked at in a usual run");
    let now = Now { boot_id: "another".to_owned(), boot: BootMs(60_000), wall: at(400).wall };
    let report = report(8);
    let none = (BTreeMap::new(), BTreeMap::new());
    let run = NewRun {
        now: &now,
        killed: None,
        overlapped: 0,
        gpus: Measured(&report),
        owners: &none.0,
        processes: &none.1,
        jobs: &[],
        keep: &keep(64 * MIB),
    };
    ledger.append(&run).unwrap();
    assert_eq!(put_aside(dir.path()).len(), 1, "{:?}", ledger.notes());
}

#[test]
fn at_most_two_damaged_files_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let opening = opening(2000, 64 * MIB);
    for minute in 1..=4 {
        fs::write(dir.path().join("ledger.db"), "no ledger".repeat(999)).unwrap();
        Ledger::open(dir.path(), &node(), &at(minute), opening).unwrap();
    }
    let kept: Vec<_> = [3, 4].iter().map(|m| format!("ledger.db.corrupt-{}", at(*m).wall.0 / 1000)).collect();
    assert_eq!(put_aside(dir.path()), kept);
}

#[test]
fn an_empty_file_is_a_new_ledger_and_says_how_young_it_is() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("ledger.db"), "").unwrap();
    let ledger = open(dir.path()).unwrap();
    assert_eq!(ledger.age_ms(&at(5)), Some(300_000));
    assert!(ledger.notes().is_empty() && put_aside(dir.path()).is_empty());
    let mut rebooted = at(5);
    rebooted.boot_id = "another".to_owned();
    assert_eq!(ledger.age_ms(&rebooted), None);
}

#[test]
fn a_later_version_and_another_nodes_ledger_are_left_untouched() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).unwrap());
    let other = NodeName::new("gpu-a8").unwrap();
    let opening = opening(2000, 64 * MIB);
    let error = Ledger::open(dir.path(), &other, &at(1), opening).unwrap_err();
    assert!(error.text.contains("`gpu-a7`") && error.text.contains("`gpu-a8`"), "{error}");
    let path = dir.path().join("ledger.db");
    rusqlite::Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let before = fs::read(&path).unwrap();
    let errors = [
        open(dir.path()).unwrap_err(),
        Ledger::open_read_only(dir.path(), Duration::from_millis(100)).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind, LedgerErrorKind::NewerSchema, "{error}");
        assert!(error.text.contains("schema 99"), "{error}");
    }
    assert_eq!(fs::read(&path).unwrap(), before);
    assert!(put_aside(dir.path()).is_empty());
}

#[test]
fn a_link_in_the_place_of_the_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = dir.path().join("elsewhere.db");
    fs::write(&elsewhere, "").unwrap();
    let real = dir.path().join("state");
    fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&elsewhere, real.join("ledger.db")).unwrap();
    assert_eq!(open(&real).unwrap_err().kind, LedgerErrorKind::CannotOpen);
    assert_eq!(fs::read(&elsewhere).unwrap(), b"");
    // A link on the way is an administrator's choice.
    let linked = dir.path().join("linked");
    std::os::unix::fs::symlink(dir.path().join("real"), &linked).unwrap();
    fs::create_dir(dir.path().join("real")).unwrap();
    open(&linked).unwrap();
}

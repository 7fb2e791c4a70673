//! Disks that are full, small or read-only.

use super::*;

/// A small file system of its own, unmounted at the end.
struct Small(tempfile::TempDir);

impl Small {
    fn mount(size: &str) -> Option<Small> {
        let dir = tempfile::tempdir().unwrap();
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(dir.path())
            .stderr(Stdio::null())
            .status();
        match done {
            Ok(status) if status.success() => Some(Small(dir)),
            _ => {
                println!("skipped: no file system can be mounted here (needs root)");
                None
            }
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_is_a_gap_and_heals_by_itself() {
    // louislam/uptime-kuma#4581, strongloop/strong-pm#368 (DB-04); osm-fr/infrastructure#149 (DB-12): the
    // state in memory.
    let Some(disk) = Small::mount("2m") else {
        return;
    };
    let dir = disk.0.path().join("gpu-a7");
    let mut ledger = open(&dir).unwrap();
    let run = ledger.register(&at(0), &registration(1)).unwrap();
    append(&mut ledger, 1, &report(8), Some(run), &keep(64 * MIB)).unwrap();
    let filler = disk.0.path().join("somebody-elses");
    let mut file = fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[7; 4096]).is_ok() {}
    drop(file);
    let mut failed = 0;
    for minute in 2..=40 {
        if let Err(error) = append(&mut ledger, minute, &report(8), Some(run), &keep(64 * MIB)) {
            assert_eq!(error.kind, LedgerErrorKind::Full, "{error}");
            failed += 1;
        }
    }
    assert!(failed > 30, "{failed}");
    let before = ticks(&ledger, 8)[0];
    assert_eq!(before, 40 - failed, "what is there is still read");
    drop(ledger);
    let mut ledger = open(&dir).unwrap();
    assert_eq!(ticks(&ledger, 8), [before], "and by the next run");
    fs::remove_file(filler).unwrap();
    append(&mut ledger, 41, &report(8), Some(run), &keep(64 * MIB)).unwrap();
    assert_eq!(ticks(&ledger, 8), [before + 1]);
    assert_eq!(sqlite(&dir, "PRAGMA integrity_check"), "Text(\"ok\")");
}

#[test]
fn the_first_open_on_a_full_disk_is_an_error_and_nothing_more() {
    let Some(disk) = Small::mount("64k") else {
        return;
    };
    fs::write(disk.0.path().join("filler"), vec![7; 60 << 10]).unwrap();
    let dir = disk.0.path().join("gpu-a7");
    let error = open(&dir).unwrap_err();
    assert_eq!(error.kind, LedgerErrorKind::Full, "{error}");
    fs::remove_file(disk.0.path().join("filler")).unwrap();
    // 64 KiB hold no ledger, but a later run says so again rather than take half a ledger for one.
    assert_eq!(open(&dir).unwrap_err().kind, LedgerErrorKind::Full);
}

#[test]
fn a_read_only_file_system_is_still_read() {
    let Some(disk) = Small::mount("4m") else {
        return;
    };
    let dir = disk.0.path().join("gpu-a7");
    let mut ledger = open(&dir).unwrap();
    let run = ledger.register(&at(0), &registration(1)).unwrap();
    append(&mut ledger, 1, &report(2), Some(run), &keep(64 * MIB)).unwrap();
    drop(ledger);
    let remount = |how: &str| {
        let status = Command::new("mount").args(["-o", how]).arg(disk.0.path()).status().unwrap();
        assert!(status.success());
    };
    remount("remount,ro");
    let mut ledger = open(&dir).unwrap();
    let error = append(&mut ledger, 2, &report(2), Some(run), &keep(64 * MIB)).unwrap_err();
    assert_eq!(error.kind, LedgerErrorKind::ReadOnly, "{error}");
    assert_eq!(ticks(&ledger, 2), [1]);
    let reader = Ledger::open_read_only(&dir, Duration::from_millis(100)).unwrap();
    assert_eq!(ticks(&reader, 2), [1]);
    assert_eq!(reader.node(), &node());
    remount("remount,rw");
}

#[test]
fn a_reader_creates_nothing_and_says_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let wait = Duration::from_millis(100);
    let error = Ledger::open_read_only(dir.path(), wait).unwrap_err();
    assert_eq!(error.kind, LedgerErrorKind::CannotOpen, "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    let error = Ledger::open_read_only(&dir.path().join("none"), wait).unwrap_err();
    assert_eq!(error.kind, LedgerErrorKind::CannotOpen, "{error}");
}

#[test]
#[ignore = "a step of other tests"]
fn step_read() {
    let Some(dir) = step_dir() else { return };
    let ledger = Ledger::open_read_only(&dir, Duration::from_millis(100)).unwrap();
    assert_eq!(ticks(&ledger, 2), [1]);
}

#[test]
fn somebody_who_may_not_write_there_can_read() {
    // fr-ser/grafana-sqlite-datasource#167, sifiveinc/wake#501 (DB-07).
    use std::os::unix::process::CommandExt;
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path()).unwrap();
    let run = ledger.register(&at(0), &registration(1)).unwrap();
    append(&mut ledger, 1, &report(2), Some(run), &keep(64 * MIB)).unwrap();
    let readable = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    readable(dir.path(), 0o755);
    for file in ["ledger.db", "ledger.db-journal"] {
        readable(&dir.path().join(file), 0o644);
    }
    let mut reader = Command::new(std::env::current_exe().unwrap());
    reader.args(["--exact", "disk::step_read", "--ignored"]).env("LEDGER_STEP_DIR", dir.path());
    match reader.uid(65534).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout)),
        Err(e) => println!("skipped: cannot become another user ({e})"),
    }
}

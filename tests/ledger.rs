//! The ledger against the world: several processes at once, kills, full and read-only disks, damaged files.
//! Every trouble is an error value or a new file that says so; none is a panic, and none loses what was good.

use gpu_reaper_hc::ledger::*;
use gpu_reaper_hc::model::*;
use gpu_reaper_hc::reading::Absence;
use gpu_reaper_hc::reading::Reading::{Absent, Measured};
use gpu_reaper_hc::units::*;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const BOOT: &str = "b6c9d2f0-3b1e-4f0e-9a51-0c4f5a2f7d11";
const MIB: u64 = 1 << 20;

fn at(minutes: i64) -> Now {
    Now {
        boot_id: BOOT.to_owned(),
        boot: BootMs(3_600_000 + minutes * 60_000),
        wall: WallMs(1_764_422_738_000 + minutes * 60_000),
    }
}

fn node() -> NodeName {
    NodeName::new("gpu-a7").unwrap()
}

fn keep(max_bytes: u64) -> Keep {
    Keep {
        samples_ms: 24 * 3_600_000,
        archive_ms: 14 * 86_400_000,
        case_files_ms: 30 * 86_400_000,
        max_bytes,
    }
}

fn open(dir: &Path) -> Result<Ledger, LedgerError> {
    let opening = Opening {
        wait: Duration::from_secs(10),
        max_bytes: 64 * MIB,
    };
    Ledger::open(dir, &node(), &at(0), opening)
}

fn uuid(n: u32) -> UnitUuid {
    UnitUuid::new(&format!("GPU-{n:08}-0000-0000-0000-000000000000")).unwrap()
}

fn report(units: u32) -> GpuReport {
    let unit = |n| UnitSample {
        identity: UnitIdentity {
            uuid: Measured(uuid(n)),
            kind: UnitKind::Gpu,
            index: NvmlIndex(n),
            minor: Measured(DeviceMinor(n)),
            pci: Measured(PciAddress::parse(&format!("0000:{n:02x}:00.0")).unwrap()),
            name: Measured("NVIDIA H100".to_owned()),
        },
        readings: Readings {
            sm_util: Measured(Percent::new(0).unwrap()),
            mem_util: Measured(Percent::new(0).unwrap()),
            memory: Measured(Memory {
                used: MemoryBytes(61 << 30),
                total: MemoryBytes(80 << 30),
                excludes_reserved: true,
            }),
            power: Measured(Milliwatts(92_000)),
            energy: Measured(Millijoules(7_000_000)),
            processes: Measured(vec![GpuProcess {
                pid: 1000 + n,
                kind: ProcessKind::Compute,
                memory: Measured(MemoryBytes(60 << 30)),
            }]),
            ..Readings::absent(Absence::NotSupported)
        },
    };
    GpuReport {
        driver: Measured("580.65.06".to_owned()),
        units: (0..units).map(unit).collect(),
    }
}

fn registration(id: u64) -> Registration {
    Registration {
        cluster: Measured("lab".to_owned()),
        job: JobId::new(id).unwrap(),
        restart: 0,
        sluid: Absent(Absence::NotSupported),
        start: JobStart {
            boot: at(0).boot,
            wall: at(0).wall,
            source: StartSource::Registration,
        },
        user: Measured("ada".to_owned()),
        uid: Measured(1000),
        account: Absent(Absence::NoData),
        partition: Measured("h100".to_owned()),
        qos: Absent(Absence::NotAsked),
        nodes: Measured(1),
        node_list: Measured("gpu-a7".to_owned()),
        het_leader: None,
        limit_end: Absent(Absence::NoData),
        gpus: vec![GpuClaim::Index(GresIndex(0))],
        by: RegisteredBy::Prolog,
    }
}

/// A run that sees `report` for one job run that holds everything.
fn append(
    ledger: &mut Ledger,
    minutes: i64,
    report: &GpuReport,
    job: Option<JobRunId>,
    keep: &Keep,
) -> Result<RunId, LedgerError> {
    let units = report
        .units
        .iter()
        .filter_map(|u| u.identity.uuid.measured());
    let owners: BTreeMap<_, _> = job
        .into_iter()
        .flat_map(|j| units.clone().map(move |u| (u.clone(), j)))
        .collect();
    let sample = JobSample::absent(Absence::NotAsked);
    let jobs: Vec<_> = job
        .into_iter()
        .map(|run| JobInRun {
            run,
            sample: sample.clone(),
            active: false,
        })
        .collect();
    ledger.append(&NewRun {
        now: &at(minutes),
        killed: None,
        overlapped: 0,
        gpus: Measured(report),
        owners: &owners,
        processes: &BTreeMap::new(),
        jobs: &jobs,
        keep,
    })
}

fn ticks(ledger: &Ledger, units: u32) -> Vec<usize> {
    let name = Absent(Absence::NoData);
    let units = (0..units).map(|n| UnitRef {
        uuid: uuid(n),
        index: NvmlIndex(n),
        name: name.clone(),
    });
    let units: Vec<_> = units.collect();
    let asked = |run| JobAsked {
        run,
        units: Measured(units.clone()),
    };
    let asked = ledger
        .open_runs(BOOT)
        .unwrap()
        .into_iter()
        .map(asked)
        .collect();
    let histories = ledger
        .replay(BOOT, asked, Measured(8), &mut |_| false, true)
        .unwrap();
    histories.iter().map(|h| h.ticks.len()).collect()
}

fn sqlite(dir: &Path, sql: &str) -> String {
    let conn = rusqlite::Connection::open(dir.join("ledger.db")).unwrap();
    conn.query_row(sql, [], |r| {
        r.get::<_, rusqlite::types::Value>(0)
            .map(|v| format!("{v:?}"))
    })
    .unwrap()
}

/// Runs one of this file's own steps in a process of its own.
fn step(name: &str, dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            name,
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("LEDGER_STEP_DIR", dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn step_dir() -> Option<PathBuf> {
    std::env::var_os("LEDGER_STEP_DIR").map(PathBuf::from)
}

fn finished(child: Child) {
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

#[test]
#[ignore = "a step of other tests"]
fn step_open_register_clear() {
    let Some(dir) = step_dir() else { return };
    let id = u64::from(std::process::id());
    let mut ledger = open(&dir).unwrap();
    let run = ledger.register(&at(0), &registration(id)).unwrap();
    append(&mut ledger, 1, &report(2), Some(run), &keep(64 * MIB)).unwrap();
    ledger
        .clear(JobId::new(id).unwrap(), Some(0), &at(2), true, None)
        .unwrap();
}

#[test]
fn sixteen_first_openers_all_succeed() {
    // russellromney/honker#102, elixir-sqlite/exqlite#138 (DB-02): every node's first boot after installation.
    // rusqlite/rusqlite#767 (DB-01): and each of them reads before it writes.
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("state/gpu-a7");
    let openers: Vec<_> = (0..16)
        .map(|_| step("step_open_register_clear", &place))
        .collect();
    openers.into_iter().for_each(finished);
    assert_eq!(sqlite(&place, "SELECT count(*) FROM run"), "Integer(16)");
    assert_eq!(
        sqlite(&place, "SELECT count(*) FROM sample WHERE job_run > 0"),
        "Integer(32)"
    );
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (mode(&place), mode(&place.join("ledger.db"))),
        (0o750, 0o640)
    );
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
    open(dir.path())
        .unwrap()
        .register(&at(0), &registration(1))
        .unwrap();
    let writers: Vec<_> = (0..6)
        .map(|_| step("step_append_many", dir.path()))
        .collect();
    writers.into_iter().for_each(finished);
    assert_eq!(
        sqlite(dir.path(), "SELECT count(*) FROM run"),
        "Integer(120)"
    );
    assert_eq!(
        sqlite(dir.path(), "SELECT count(*) FROM sample WHERE job_run = 1"),
        "Integer(480)"
    );
    assert_eq!(sqlite(dir.path(), "PRAGMA integrity_check"), "Text(\"ok\")");
}

#[test]
fn waiting_is_bounded_over_all_statements_together() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).unwrap());
    let holder = rusqlite::Connection::open(dir.path().join("ledger.db")).unwrap();
    let opening = Opening {
        wait: Duration::from_millis(300),
        max_bytes: 64 * MIB,
    };
    let mut ledger = Ledger::open(dir.path(), &node(), &at(0), opening).unwrap();
    holder.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let begun = std::time::Instant::now();
    for _ in 0..5 {
        let error = append(&mut ledger, 1, &report(1), None, &keep(64 * MIB)).unwrap_err();
        assert_eq!(error.kind, LedgerErrorKind::Busy, "{error}");
    }
    assert!(
        begun.elapsed() < Duration::from_millis(1400),
        "{:?}",
        begun.elapsed()
    );
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
    assert!(
        !step("step_die_in_a_transaction", dir.path())
            .wait()
            .unwrap()
            .success()
    );
    let journal = fs::metadata(dir.path().join("ledger.db-journal"))
        .unwrap()
        .len();
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
    assert_eq!(
        sqlite(dir.path(), "SELECT max(sm_util) FROM sample"),
        "Integer(0)"
    );
    assert_eq!(sqlite(dir.path(), "PRAGMA integrity_check"), "Text(\"ok\")");
}

/// A small file system of its own, unmounted at the end; `None` where that is not allowed.
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
        let status = Command::new("mount")
            .args(["-o", how])
            .arg(disk.0.path())
            .status()
            .unwrap();
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

fn put_aside(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names
        .filter(|n| n.contains("corrupt") && !n.ends_with("-journal"))
        .collect();
    names.sort();
    names
}

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
    let damage: [(&str, fn(&mut Vec<u8>)); 4] = [
        ("a garbled header", |file| file[..64].fill(0x5a)),
        ("zeros", |file| file.fill(0)),
        ("a text file", |file| {
            *file = b"this is no ledger at all\n".repeat(200)
        }),
        ("a truncated file", |file| file.truncate(file.len() / 2)),
    ];
    for (name, damage) in damage {
        let dir = filled();
        let path = dir.path().join("ledger.db");
        let mut file = fs::read(&path).unwrap();
        damage(&mut file);
        fs::write(&path, file).unwrap();
        let later = at(60);
        let opening = Opening {
            wait: Duration::from_secs(2),
            max_bytes: 64 * MIB,
        };
        let mut ledger = Ledger::open(dir.path(), &node(), &later, opening).unwrap();
        let aside = format!("ledger.db.corrupt-{}", later.wall.0 / 1000);
        assert_eq!(put_aside(dir.path()), [aside.as_str()], "{name}");
        assert!(
            ledger.notes()[0].contains(&aside),
            "{name}: {:?}",
            ledger.notes()
        );
        assert_eq!(ledger.age_ms(&at(70)), Some(600_000), "{name}");
        append(&mut ledger, 61, &report(8), None, &keep(64 * MIB)).unwrap();
        assert!(
            Ledger::open(dir.path(), &node(), &later, opening)
                .unwrap()
                .notes()
                .is_empty(),
            "{name}"
        );
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
    let hurried = Keep {
        samples_ms: 60_000,
        archive_ms: 60_000,
        ..keep(64 * MIB)
    };
    append(&mut ledger, 301, &report(8), Some(run), &hurried).unwrap();
    assert_eq!(put_aside(dir.path()).len(), 1);
    assert_eq!(ledger.notes().len(), 1, "{:?}", ledger.notes());
    assert_eq!(
        sqlite(
            dir.path(),
            "SELECT count(*) FROM sample WHERE job_run IS NOT NULL"
        ),
        "Integer(0)"
    );
    assert_eq!(
        sqlite(dir.path(), "SELECT count(*) FROM sample"),
        "Integer(8)"
    );
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
    assert!(
        put_aside(dir.path()).is_empty(),
        "not looked at in a usual run"
    );
    let now = Now {
        boot_id: "another".to_owned(),
        boot: BootMs(60_000),
        wall: at(400).wall,
    };
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
    let opening = Opening {
        wait: Duration::from_secs(2),
        max_bytes: 64 * MIB,
    };
    for minute in 1..=4 {
        fs::write(dir.path().join("ledger.db"), "no ledger".repeat(999)).unwrap();
        Ledger::open(dir.path(), &node(), &at(minute), opening).unwrap();
    }
    let kept: Vec<_> = [3, 4]
        .iter()
        .map(|m| format!("ledger.db.corrupt-{}", at(*m).wall.0 / 1000))
        .collect();
    assert_eq!(put_aside(dir.path()), kept);
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
    let openers: Vec<_> = (0..8)
        .map(|_| step("step_open_damaged", dir.path()))
        .collect();
    openers.into_iter().for_each(finished);
    assert_eq!(put_aside(dir.path()).len(), 1);
    let aside = dir.path().join(&put_aside(dir.path())[0]);
    assert!(fs::read(aside).unwrap().starts_with(b"no ledger"));
    assert_eq!(sqlite(dir.path(), "SELECT count(*) FROM run"), "Integer(8)");
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
    let opening = Opening {
        wait: Duration::from_secs(2),
        max_bytes: 64 * MIB,
    };
    let error = Ledger::open(dir.path(), &other, &at(1), opening).unwrap_err();
    assert!(
        error.text.contains("`gpu-a7`") && error.text.contains("`gpu-a8`"),
        "{error}"
    );
    let path = dir.path().join("ledger.db");
    rusqlite::Connection::open(&path)
        .unwrap()
        .pragma_update(None, "user_version", 99)
        .unwrap();
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

#[test]
fn the_file_stays_its_size_after_one_retention_period() {
    // Signet-AI/signetai#1139, n8n-io/n8n#37926, leptonai/gpud#710 (DB-06).
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path()).unwrap();
    let kept = Keep {
        samples_ms: 3_600_000,
        archive_ms: 2 * 3_600_000,
        ..keep(64 * MIB)
    };
    let report = report(8);
    let size = || fs::metadata(dir.path().join("ledger.db")).unwrap().len();
    let mut after_one = 0;
    for hour in 0..8 {
        let job = JobId::new(hour as u64 + 1).unwrap();
        let mut registration = registration(job.get());
        registration.start.wall = at(hour * 60).wall;
        let run = ledger.register(&at(hour * 60), &registration).unwrap();
        for minute in 0..60 {
            append(&mut ledger, hour * 60 + minute, &report, Some(run), &kept).unwrap();
        }
        ledger
            .clear(job, Some(0), &at(hour * 60 + 59), true, None)
            .unwrap();
        if hour == 3 {
            after_one = size();
        }
    }
    println!(
        "after one retention period {after_one} bytes, after two {}",
        size()
    );
    assert!(size() <= after_one * 21 / 20, "{after_one} -> {}", size());
    assert_eq!(
        sqlite(dir.path(), "SELECT count(*) FROM job_run"),
        "Integer(3)"
    );
}

#[test]
fn the_ceiling_holds_and_the_archive_gives_way_first() {
    let dir = tempfile::tempdir().unwrap();
    let ceiling = 2 * MIB;
    let opening = Opening {
        wait: Duration::from_secs(2),
        max_bytes: ceiling,
    };
    let mut ledger = Ledger::open(dir.path(), &node(), &at(0), opening).unwrap();
    let report = report(16);
    for hour in 0..20 {
        let job = JobId::new(hour as u64 + 1).unwrap();
        let run = ledger
            .register(&at(hour * 60), &registration(job.get()))
            .unwrap();
        for minute in 0..60 {
            append(
                &mut ledger,
                hour * 60 + minute,
                &report,
                Some(run),
                &keep(ceiling),
            )
            .unwrap();
        }
        // The last job stays.
        if hour < 19 {
            ledger
                .clear(job, Some(0), &at(hour * 60 + 59), true, None)
                .unwrap();
        }
    }
    let size = fs::metadata(dir.path().join("ledger.db")).unwrap().len();
    println!("{size} bytes of {ceiling}");
    assert!(size <= ceiling, "{size}");
    assert_eq!(ticks(&ledger, 16), [60], "the open job lost nothing");
}

#[test]
fn rows_that_claim_another_boots_future_are_pruned() {
    // prometheus/blackbox_exporter#38 (CK-01): a boot with a wrong clock, then time sync.
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path()).unwrap();
    append(&mut ledger, 600_000, &report(1), None, &keep(64 * MIB)).unwrap();
    rusqlite::Connection::open(dir.path().join("ledger.db"))
        .unwrap()
        .execute_batch("UPDATE boot SET boot_id = 'an earlier boot'")
        .unwrap();
    append(&mut ledger, 1, &report(1), None, &keep(64 * MIB)).unwrap();
    assert_eq!(sqlite(dir.path(), "SELECT count(*) FROM run"), "Integer(1)");
    // The same step within a boot prunes nothing: CLOCK_BOOTTIME did not move.
    let mut back = at(2);
    back.wall.0 -= 7 * 3_600_000;
    append(&mut ledger, 2, &report(1), None, &keep(64 * MIB)).unwrap();
    assert_eq!(sqlite(dir.path(), "SELECT count(*) FROM run"), "Integer(2)");
}

#[test]
#[ignore = "a step of other tests"]
fn step_append_one() {
    let Some(dir) = step_dir() else { return };
    let mut ledger = open(&dir).unwrap();
    append(&mut ledger, 1, &report(8), None, &keep(64 * MIB)).unwrap();
}

#[test]
#[ignore = "a step of other tests"]
fn step_begin_action() {
    let Some(dir) = step_dir() else { return };
    let mut ledger = open(&dir).unwrap();
    let job = ledger.open_runs(BOOT).unwrap().remove(0);
    let action = NewAction {
        deed: Deed::Of(Verdict::Drain),
        finding: None,
        job: &job,
        run: RunId(1),
        signature: "hung",
        seen_before: "State=ALLOCATED",
        reason: Some("gpu-reaper: job=1"),
    };
    ledger.begin_action(&action, &at(1)).unwrap();
}

#[test]
fn a_plain_append_syncs_nothing_and_an_act_does() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path())
        .unwrap()
        .register(&at(0), &registration(1))
        .unwrap();
    let syncs = |name: &str| {
        let trace = dir.path().join("trace");
        let status = Command::new("strace")
            .args(["-f", "-e", "trace=fsync,fdatasync,sync_file_range", "-o"])
            .arg(&trace)
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name, "--ignored"])
            .env("LEDGER_STEP_DIR", dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let ran = status.is_ok_and(|s| s.success());
        ran.then(|| fs::read_to_string(trace).unwrap().matches("sync(").count())
    };
    match (syncs("step_append_one"), syncs("step_begin_action")) {
        (Some(append), Some(act)) => {
            println!("fsyncs: append {append}, act {act}");
            assert_eq!(append, 0);
            assert!(act > 0);
        }
        _ => println!("skipped: strace cannot be used here"),
    }
}

#[test]
#[ignore = "a step of other tests"]
fn step_open_only() {
    let Some(dir) = step_dir() else { return };
    open(&dir).unwrap();
}

#[test]
#[ignore = "a step of other tests"]
fn step_usual_run() {
    let Some(dir) = step_dir() else { return };
    let mut ledger = open(&dir).unwrap();
    let run = ledger.open_runs(BOOT).unwrap().remove(0);
    append(&mut ledger, 1, &report(8), Some(run.id), &keep(64 * MIB)).unwrap();
    let name = Absent(Absence::NoData);
    let units = (0..8).map(|n| UnitRef {
        uuid: uuid(n),
        index: NvmlIndex(n),
        name: name.clone(),
    });
    let asked = vec![JobAsked {
        run,
        units: Measured(units.collect()),
    }];
    ledger
        .replay(BOOT, asked, Measured(8), &mut |_| true, false)
        .unwrap();
}
#[test]
#[ignore = "a step of other tests"]
fn step_fill() {
    let Some(dir) = step_dir() else { return };
    let mut ledger = open(&dir).unwrap();
    ledger.register(&at(0), &registration(1)).unwrap();
    let run = ledger.open_runs(BOOT).unwrap()[0].id;
    for m in -101..0 {
        append(&mut ledger, m, &report(8), Some(run), &keep(64 * MIB)).unwrap();
    }
}

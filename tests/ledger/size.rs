//! How large the file becomes, what an append costs, and what is synced to the disk.

use super::*;

#[test]
fn the_file_stays_its_size_after_one_retention_period() {
    // Signet-AI/signetai#1139, n8n-io/n8n#37926, leptonai/gpud#710 (DB-06).
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path()).unwrap();
    let kept = Keep { samples_ms: 3_600_000, archive_ms: 2 * 3_600_000, ..keep(64 * MIB) };
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
        ledger.clear(job, Some(0), &at(hour * 60 + 59), true, None).unwrap();
        if hour == 3 {
            after_one = size();
        }
    }
    println!("after one retention period {after_one} bytes, after two {}", size());
    assert!(size() <= after_one * 21 / 20, "{after_one} -> {}", size());
    assert_eq!(sqlite(dir.path(), "SELECT count(*) FROM job_run"), "Integer(3)");
}

#[test]
fn the_ceiling_holds_and_the_archive_gives_way_first() {
    let dir = tempfile::tempdir().unwrap();
    let ceiling = 2 * MIB;
    let opening = opening(2000, ceiling);
    let mut ledger = Ledger::open(dir.path(), &node(), &at(0), opening).unwrap();
    let report = report(16);
    for hour in 0..20 {
        let job = JobId::new(hour as u64 + 1).unwrap();
        let run = ledger.register(&at(hour * 60), &registration(job.get())).unwrap();
        for minute in 0..60 {
            append(&mut ledger, hour * 60 + minute, &report, Some(run), &keep(ceiling)).unwrap();
        }
        // The last job stays.
        if hour < 19 {
            ledger.clear(job, Some(0), &at(hour * 60 + 59), true, None).unwrap();
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
        deed: Deed::Drain,
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
    open(dir.path()).unwrap().register(&at(0), &registration(1)).unwrap();
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
    match (syncs("size::step_append_one"), syncs("size::step_begin_action")) {
        (Some(append), Some(act)) => {
            println!("fsyncs: append {append}, act {act}");
            assert_eq!(append, 0);
            assert!(act > 0);
        }
        _ => println!("skipped: strace cannot be used here"),
    }
}

#[test]
#[ignore = "fills a million rows; prints a ratio"]
fn an_append_does_not_depend_on_the_rows_that_are_there() {
    let report = report(8);
    let medians = [10_000, 1_000_000].map(|rows| {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(dir.path(), &node(), &at(0), opening(10_000, 1024 * MIB)).unwrap();
        let run = ledger.register(&at(0), &registration(1)).unwrap();
        let filled = append(&mut ledger, 1, &report, Some(run), &keep(1024 * MIB)).unwrap();
        fill(dir.path(), filled, rows / 8);
        let mut spent: Vec<_> = (0..200)
            .map(|n| {
                let begun = std::time::Instant::now();
                append(&mut ledger, 2 + n, &report, Some(run), &keep(1024 * MIB)).unwrap();
                begun.elapsed()
            })
            .collect();
        spent.sort();
        spent[100]
    });
    let ratio = medians[1].as_secs_f64() / medians[0].as_secs_f64();
    println!("append: {medians:?} with 10 k and 1 M rows, ratio {ratio:.2}");
    assert!(ratio < 3.0, "{ratio}");
}

/// Repeats a run's rows under later numbers, all of the same instant, so that none is old.
fn fill(dir: &Path, run: RunId, runs: i64) {
    let conn = rusqlite::Connection::open(dir.join("ledger.db")).unwrap();
    conn.execute_batch("PRAGMA synchronous = OFF; BEGIN; CREATE TEMP TABLE one AS SELECT * FROM sample")
        .unwrap();
    let last = run.0 + runs;
    let numbers = format!(
        "WITH RECURSIVE n(i) AS (SELECT {} UNION ALL SELECT i + 1 FROM n WHERE i < {last})",
        run.0 + 1
    );
    conn.execute_batch(&format!(
        "INSERT INTO run SELECT * FROM ({numbers} SELECT i, boot, boottime_ms, wall_ms, outcome, phase, driver,
             driver_absent, gpus_absent, overlapped FROM n, (SELECT * FROM run WHERE id = {0}));",
        run.0
    ))
    .unwrap();
    let columns: Vec<String> = {
        let mut names = conn.prepare("SELECT name FROM pragma_table_info('sample') WHERE cid > 0").unwrap();
        names.query_map([], |r| r.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
    };
    conn.execute_batch(&format!(
        "INSERT INTO sample SELECT i, {} FROM ({numbers} SELECT i FROM n), one; COMMIT;",
        columns.join(", ")
    ))
    .unwrap();
}

#[test]
#[ignore = "a step: for counting instructions, to be taken off those of step_usual_run"]
fn step_open_only() {
    let Some(dir) = step_dir() else { return };
    open(&dir).unwrap();
}

#[test]
#[ignore = "a step: for counting instructions; its folder holds a registered job of 8 GPUs, all at work"]
fn step_usual_run() {
    let Some(dir) = step_dir() else { return };
    let mut ledger = open(&dir).unwrap();
    let run = ledger.open_runs(BOOT).unwrap().remove(0);
    append(&mut ledger, 1, &report(8), Some(run.id), &keep(64 * MIB)).unwrap();
    let name = Absent(Absence::NoData);
    let units = (0..8).map(|n| UnitRef { uuid: uuid(n), index: NvmlIndex(n), name: name.clone() });
    let asked = vec![JobAsked { run, units: Measured(units.collect()), reach: None }];
    ledger.replay(BOOT, asked, Measured(8), &mut |_| true, false).unwrap();
}

#[test]
#[ignore = "a step: makes the folder of step_usual_run"]
fn step_fill() {
    let Some(dir) = step_dir() else { return };
    let mut ledger = open(&dir).unwrap();
    let run = ledger.register(&at(-101), &registration(1)).unwrap();
    for minute in -100..=0 {
        append(&mut ledger, minute, &report(8), Some(run), &keep(64 * MIB)).unwrap();
    }
}

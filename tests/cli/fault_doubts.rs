//! Faults in odd circumstances: runs that fail or are killed in between, several faults at once, another drain on the node.

use gpu_reaper_hc::scenarios::file::Scenario;
use gpu_reaper_hc::scenarios::stage::Stage;

const ENFORCE: &str = "config: { mode: enforce, faults: { mode: enforce, actions: { gpu-lost: drain, ecc: drain } }, \
                       limits: { spread: 0s }, thresholds: { window: 2m, warmup: 1m } }\n";

fn ledger(stage: &Stage) -> rusqlite::Connection {
    rusqlite::Connection::open(stage.place().dir.join("ledger.db")).unwrap()
}

fn rows(stage: &Stage, sql: &str) -> Vec<String> {
    let conn = ledger(stage);
    let mut asked = conn.prepare(sql).unwrap();
    asked.query_map([], |r| r.get(0)).unwrap().map(Result::unwrap).collect()
}

fn story(more: &str) -> Scenario {
    Scenario::parse(&format!("about: x\nexpect: []\n{more}")).unwrap()
}

#[test]
fn a_run_that_could_not_do_its_work_forgets_no_fault() {
    let scenario = story(
        "node: { gpus: 2 }\njobs: []\nsamples:\n- { from: -40m, to: 0, every: 1m }\n- { from: -30m, to: -28m, gpus: [1], lost: true }\n",
    );
    let mut stage = Stage::set(&scenario).unwrap();
    for minute in -40..=0 {
        if minute == -27 {
            let held = ledger(&stage);
            held.execute_batch("BEGIN IMMEDIATE").unwrap();
            assert!(stage.run_at(minute * 60_000).is_err(), "the ledger is held");
            continue;
        }
        stage.run_at(minute * 60_000).unwrap();
    }
    let fault = "SELECT told || ' ' || (closed_wall_ms NOTNULL) FROM fault WHERE kind = 'gpu-lost'";
    assert_eq!(rows(&stage, fault), ["1 1"], "told, and over");
}

#[test]
fn an_event_whose_run_is_killed_before_it_is_kept_is_news_to_the_next() {
    let scenario = story(&format!(
        "{ENFORCE}node: {{ gpus: 2 }}\njobs: []\nsamples:\n\
         - {{ from: -40m, to: 0, every: 1m, fields: {{ ecc_uncorrected_aggregate: 3 }} }}\n\
         - {{ from: -20m, to: 0, gpus: [1], fields: {{ ecc_uncorrected_aggregate: 5 }} }}\n"
    ));
    let mut stage = Stage::set(&scenario).unwrap();
    for minute in -40..=0 {
        let trigger = "CREATE TRIGGER killed BEFORE INSERT ON fault BEGIN SELECT RAISE(ABORT, 'here'); END";
        if minute == -20 {
            ledger(&stage).execute_batch(trigger).unwrap();
        }
        if minute == -19 {
            ledger(&stage).execute_batch("DROP TRIGGER killed").unwrap();
        }
        assert_eq!(stage.run_at(minute * 60_000).is_err(), minute == -20);
    }
    assert_eq!(rows(&stage, "SELECT kind FROM fault WHERE told"), ["ecc"]);
    assert_eq!(rows(&stage, "SELECT outcome FROM fault_drain"), ["done"]);
}

#[test]
fn who_resumes_the_node_is_not_overruled_by_another_fault_that_was_open_too() {
    let scenario = story(&format!(
        "{ENFORCE}node: {{ gpus: 3 }}\njobs: []\nslurm: [{{ at: -60m, node_state: idle, node_reason: none }}]\nsamples:\n\
         - {{ from: -90m, to: 0, every: 1m }}\n- {{ from: -80m, to: 0, gpus: [1, 2], lost: true }}\n"
    ));
    let mut stage = Stage::set(&scenario).unwrap();
    (-90..=0).for_each(|minute| drop(stage.run_at(minute * 60_000).unwrap()));
    assert_eq!(rows(&stage, "SELECT outcome FROM fault_drain").len(), 1);
}

#[test]
fn why_nothing_is_done_on_a_new_ledger_is_told_once() {
    let long = ENFORCE.replace("2m", "30m").replace("warmup: 1m", "warmup: 15m");
    let scenario = story(&format!(
        "{long}node: {{ gpus: 2 }}\njobs: []\nsamples:\n- {{ from: -40m, to: 0, every: 1m }}\n\
         - {{ from: -39m, to: 0, gpus: [1], lost: true }}\n"
    ));
    let mut stage = Stage::set(&scenario).unwrap();
    let mut words = Vec::new();
    for minute in -40..=-20 {
        stage.run_at(minute * 60_000).unwrap();
        words.extend(rows(&stage, "SELECT withheld FROM fault WHERE withheld NOTNULL"));
    }
    words.dedup();
    assert_eq!(words, ["the ledger is new: nothing is done before it is 30 m old"]);
}

#[test]
fn a_drain_for_a_job_is_not_lifted_over_a_fault_for_which_one_is_due() {
    let config = "config: { mode: enforce, faults: { mode: enforce, actions: { ecc: drain } }, limits: { spread: 0s }, \
                  thresholds: { window: 5m, warmup: 1m, first_activity_grace: 1m }, \
                  stages: [{ after: 0m, verdict: alert }, { after: 5m, verdict: drain }] }\n";
    let ecc = |n: u64| format!("fields: {{ ecc_uncorrected_aggregate: {n} }}");
    let (before, after) = (ecc(3), ecc(9));
    let held = "processes: 2, memory: 20GiB";
    let scenario = story(&format!(
        "{config}node: {{ gpus: 2, energy: true }}\njobs: [{{ id: 7, started: -300m, gpus: 2, ended: -120m }}]\nsamples:\n\
         - {{ from: -300m, to: 0, every: 1m, {before} }}\n\
         - {{ from: -300m, to: -290m, util: 90%, memctl: 40%, power: 500W, {held}, {before} }}\n\
         - {{ from: -289m, to: -121m, util: 0%, {held}, {before} }}\n\
         - {{ from: -200m, to: -121m, gpus: [1], util: 0%, {held}, {after} }}\n\
         - {{ from: -120m, to: 0, gpus: [1], {after} }}\n"
    ));
    let mut stage = Stage::set(&scenario).unwrap();
    (-300..=0).for_each(|minute| drop(stage.run_at(minute * 60_000).unwrap()));
    assert_eq!(
        rows(&stage, "SELECT verdict || ' ' || outcome FROM action WHERE verdict = 'drain'"),
        ["drain done"]
    );
    let open = "SELECT kind FROM fault WHERE told AND closed_wall_ms ISNULL AND kind = 'ecc'";
    assert_eq!(rows(&stage, open), ["ecc"], "it waits for its drain");
    assert!(stage.node().0.contains("drain"), "{:?}", stage.node());
}

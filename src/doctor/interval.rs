//! When slurmd is told to run us: on nodes in which state, how often, and for how long it lets us.

use super::look::Found;
use super::report::Line;
use super::settings::{Key, seconds, words};
use crate::mode::Mode;
use crate::model::Cadence;
use crate::policy::window;
use crate::units::human_ms;
use crate::units::quantity::duration_text;
use std::collections::BTreeSet;

/// slurmd's limit where nobody says another, and everywhere before 26.05.
const USUAL_LIMIT_S: u64 = 60;
/// What README recommends.
const USUAL_INTERVAL_S: &str = "60";

/// The words of HealthCheckNodeState, those of ANY written out; CYCLE stands beside states, and alone it means ANY.
pub fn states(value: &str) -> BTreeSet<String> {
    let mut states = words(value);
    let cycle = states.remove("cycle");
    if states.remove("any") || states.is_empty() {
        states.extend(["idle", "mixed", "alloc"].map(str::to_owned));
    }
    if cycle {
        states.insert("cycle".to_owned());
    }
    states
}

/// Which nodes are looked at.
pub fn node_state(found: &Found) -> Vec<Line> {
    const CHECK: &str = "node-state";
    let (value, by) = match found.key("HealthCheckNodeState") {
        Key::Unknown(why) => return vec![Line::unknown(CHECK, why, "it decides which nodes are looked at")],
        Key::Unset => ("ANY".to_owned(), "by default".to_owned()),
        Key::Said(said) => (said.value, said.by),
    };
    let states = states(&value);
    let has = |state: &str| states.contains(state);
    let what = format!("HealthCheckNodeState={value} ({by})");
    let blind = |means: &str| {
        vec![Line::fault(CHECK, &what, means).mended_by(found.rewrite("HealthCheckNodeState", "ANY"))]
    };
    if has("start_only") || has("reboot_only") {
        return blind("it runs once, when slurmd starts or the node has booted: no job is ever seen twice");
    }
    match (has("alloc"), has("mixed")) {
        (false, false) => {
            return blind("slurmd looks only at nodes without an allocated CPU: no running job is ever seen");
        }
        (true, false) => {
            return blind("a GPU job that leaves a CPU free makes its node MIXED, and is never seen");
        }
        (false, true) => {
            return blind("a node whose CPUs are all allocated is ALLOC: its jobs are never seen");
        }
        (true, true) => {}
    }
    if !has("idle") {
        let means =
            "jobs are seen, but a node of ours that is drained and empty is not: its drain is never lifted";
        let line = match found.config.mode() {
            Mode::Enforce => Line::fault(CHECK, &what, means),
            Mode::Observe => Line::warning(CHECK, &what, means),
        };
        return vec![line.mended_by(found.rewrite("HealthCheckNodeState", "ANY"))];
    }
    let means = match has("cycle") {
        true => "every node, one after another: an interval is HealthCheckInterval and the length of a sweep",
        false => "every node, whatever runs on it",
    };
    vec![Line::ok(CHECK, what, means)]
}

/// How often it runs, against the window.
pub fn interval(found: &Found) -> Vec<Line> {
    const CHECK: &str = "interval";
    let mend = || found.rewrite("HealthCheckInterval", USUAL_INTERVAL_S);
    let (value, by) = match found.key("HealthCheckInterval") {
        Key::Unknown(why) => return vec![Line::unknown(CHECK, why, "it decides how often we run")],
        Key::Unset => ("0".to_owned(), "by default".to_owned()),
        Key::Said(said) => (said.value, said.by),
    };
    let what = format!("HealthCheckInterval={value} ({by})");
    let Some(seconds) = seconds(&value) else {
        return vec![Line::fault(CHECK, what, "that is no number of seconds").mended_by(mend())];
    };
    if seconds == 0 {
        return vec![Line::fault(CHECK, what, "0 is never: no health check runs").mended_by(mend())];
    }
    let interval_ms = i64::try_from(seconds.saturating_mul(1000)).unwrap_or(i64::MAX / 16).min(i64::MAX / 16);
    let thresholds = &found.config.rules.thresholds;
    let limits = window::limits(thresholds, Cadence { median_ms: interval_ms, p90_ms: interval_ms });
    let window = human_ms(thresholds.window_ms);
    if interval_ms > thresholds.window_ms / 2 {
        let means =
            format!("a window of {window} would hold no more than one run: nothing could be judged by it");
        return vec![Line::fault(CHECK, what, means).mended_by(mend())];
    }
    if !limits.adapted.is_empty() {
        return vec![Line::warning(CHECK, what, limits.adapted.join("; ")).mended_by(mend())];
    }
    let runs = thresholds.window_ms / interval_ms;
    let holds = format!("{runs} runs in a window of {window}, {} are needed", limits.min_samples);
    let evidence = match window::instants_suffice(interval_ms) {
        true => "so often an instant alone is evidence",
        false => "so slowly the driver's ring or the energy counter must agree, which data-centre GPUs have",
    };
    vec![Line::ok(CHECK, what, format!("{holds}; {evidence}"))]
}

/// How long slurmd lets a run go on, against our own limit.
pub fn time_limit(found: &Found) -> Vec<Line> {
    const CHECK: &str = "time-limit";
    let (said, by) = match found.key("HealthCheckTimeout") {
        Key::Unknown(why) => return vec![Line::unknown(CHECK, why, "it decides when slurmd kills a run")],
        Key::Unset => (None, "by default"),
        Key::Said(said) if seconds(&said.value) == Some(0) => (None, "by default"),
        Key::Said(said) => (Some(said.value), "set"),
    };
    let limit = said.as_deref().map_or(Some(USUAL_LIMIT_S), seconds).unwrap_or(0);
    let deadline = found.config.deadline;
    let what =
        format!("slurmd kills a run after {limit} s ({by}); `deadline` is {}", duration_text(deadline));
    if limit > deadline.as_secs() {
        return vec![Line::ok(CHECK, what, "a run gives up by itself before")];
    }
    let means = "a run is killed before it gives up by itself, perhaps in a deed; either of these mends it";
    let shorter = limit.saturating_sub(5).max(5);
    let ours = found.configure("deadline", &format!("{shorter}s"));
    let theirs = found.rewrite("HealthCheckTimeout", "60");
    vec![Line::fault(CHECK, what, means).mended_by(theirs.into_iter().chain([ours]))]
}

#[cfg(test)]
mod tests {
    use super::super::report::Level;
    use super::super::testing::{level_of, said};
    use super::*;

    #[test]
    fn a_node_state_that_is_blind_to_jobs_is_a_fault() {
        let table = [
            ("ANY", Level::Ok),
            ("CYCLE", Level::Ok),
            ("ANY,CYCLE", Level::Ok),
            ("idle,alloc,mixed", Level::Ok),
            ("IDLE", Level::Fault),
            ("NONDRAINED_IDLE", Level::Fault),
            ("CYCLE,IDLE", Level::Fault),
            ("START_ONLY", Level::Fault),
            ("REBOOT_ONLY", Level::Fault),
            ("ALLOC", Level::Fault),
            ("MIXED", Level::Fault),
            ("IDLE,MIXED", Level::Fault),
            ("ALLOC,MIXED", Level::Warning),
            ("ALLOC,MIXED,NONDRAINED_IDLE", Level::Warning),
        ];
        for (value, want) in table {
            assert_eq!(level_of(node_state(&said("HealthCheckNodeState", value))), want, "{value}");
        }
        let mut found = said("HealthCheckNodeState", "ALLOC,MIXED");
        found.config = crate::config::parse("mode: enforce\n", "c").unwrap();
        assert_eq!(level_of(node_state(&found)), Level::Fault, "its own drains stay for good");
    }

    #[test]
    fn the_interval_is_held_against_the_window_by_the_rules_own_functions() {
        let table = [
            ("60", Level::Ok, "the energy counter must agree"),
            ("60 sec", Level::Ok, "30 runs in a window of 30 m"),
            ("45", Level::Ok, "an instant alone is evidence"),
            ("0", Level::Fault, "never"),
            ("0 sec", Level::Fault, "never"),
            ("many", Level::Fault, "no number"),
            ("400", Level::Warning, "judged over 40 m"),
            ("901", Level::Fault, "no more than one run"),
            ("99999999999999", Level::Fault, "no more than one run"),
        ];
        for (value, want, words) in table {
            let lines = interval(&said("HealthCheckInterval", value));
            assert!(lines[0].means.contains(words), "{value}: {lines:?}");
            assert_eq!(level_of(lines), want, "{value}");
        }
    }

    #[test]
    fn a_run_must_give_up_before_slurmd_kills_it() {
        let table = [
            ("0 sec", Level::Ok),
            ("60", Level::Ok),
            ("46", Level::Ok),
            ("45", Level::Fault),
            ("8 sec", Level::Fault),
        ];
        for (value, want) in table {
            let lines = time_limit(&said("HealthCheckTimeout", value));
            assert_eq!(lines[0].change.is_empty(), want == Level::Ok, "{lines:?}");
            assert_eq!(level_of(lines), want, "{value}");
        }
    }
}

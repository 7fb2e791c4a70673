//! What only two keys together can show: errors where they contradict each other, notes where they are
//! allowed and yet probably not what was meant. Refuses nothing that is merely cautious or bold.

use super::table::Check;
use super::tree::{self, Node};
use super::values::shown;
use super::{ACT_NEEDS, Config, GpuSourceKind};
use crate::mode::Mode;
use crate::model::Verdict;
use crate::policy::Auto;
use crate::policy::fault::{Action, Kind};
use crate::units::quantity::duration_text;
use std::time::Duration;

/// Adds the errors and notes of this configuration as a whole.
pub(super) fn check(check: &mut Check<'_>, root: &Node<'_>, config: &Config) {
    deadlines(check, root, config);
    horizon(check, root, config);
    gap(check, root, config);
    bold(check, config);
    ladder(check, config);
    dead_drains(check, config);
}

/// Drains that were asked for and cannot come, and one that any user can bring about.
fn dead_drains(check: &mut Check<'_>, config: &Config) {
    let law = &config.faults.law;
    let drains = |kind: &Kind| law.actions.iter().any(|(of, action)| of == kind && *action == Action::Drain);
    if config.faults.mode == Mode::Observe && Kind::ALL.iter().any(drains) {
        check
            .notes
            .push("`faults.actions`: drain under `faults.mode: observe` is shown as withheld".to_owned());
    }
    if config.epilog.on_leak == Action::Drain && config.mode == Mode::Observe {
        check.notes.push("`epilog.on_leak`: drain under `mode: observe` is shown as withheld".to_owned());
    }
    let by_users = law.xids.iter().find(|xid| XIDS_OF_USERS.contains(xid));
    if let Some(xid) = by_users.filter(|_| drains(&Kind::Xid)) {
        let why = "any user's code can cause it, and drain the node by it";
        check.notes.push(format!("`faults.xids`: {xid}: {why}"));
    }
}

/// Xids that an application's own mistake causes (NVIDIA's table of Xid errors).
const XIDS_OF_USERS: [u32; 4] = [13, 31, 43, 45];

fn deadlines(check: &mut Check<'_>, root: &Node<'_>, config: &Config) {
    if config.deadline <= ACT_NEEDS {
        let (deadline, needs) = (duration_text(config.deadline), duration_text(ACT_NEEDS));
        let why = format!(
            "no action begins with less than {needs} left: nothing is drained, cancelled or released"
        );
        check.notes.push(format!("`deadline` {deadline}: {why}"));
    }
    let Auto::Set(gpu) = config.gpu.deadline else {
        return;
    };
    if gpu >= config.deadline && check.sound(&["deadline", "gpu.deadline"]) {
        let (what, most) = (duration_text(gpu), duration_text(config.deadline));
        fail(check, root, &["gpu.deadline"], what, format!("less than `deadline`, {most}"));
    }
}

/// What is older than `history.keep` is folded: a stage that falls due later than that could never be proved.
fn horizon(check: &mut Check<'_>, root: &Node<'_>, config: &Config) {
    let Some(last) = config.rules.stages.last() else {
        return;
    };
    let t = &config.rules.thresholds;
    let least = millis(last.after_ms + t.window_ms + t.warmup_ms);
    let keys = ["history.keep", "stages", "thresholds.window", "thresholds.warmup"];
    if config.history.keep < least && check.sound(&keys) {
        let allowed = format!(
            "at least {}, the last stage's `after` + `thresholds.window` + `thresholds.warmup`",
            duration_text(least)
        );
        fail(check, root, &keys, duration_text(config.history.keep), allowed);
    }
}

fn gap(check: &mut Check<'_>, root: &Node<'_>, config: &Config) {
    let t = &config.rules.thresholds;
    let Auto::Set(gap) = t.max_sample_gap else {
        return;
    };
    if gap > t.window_ms && check.sound(&["thresholds.max_sample_gap", "thresholds.window"]) {
        let allowed = format!("at most `thresholds.window`, {}", duration_text(millis(t.window_ms)));
        fail(check, root, &["thresholds.max_sample_gap"], duration_text(millis(gap)), allowed);
    }
}

fn bold(check: &mut Check<'_>, config: &Config) {
    let t = &config.rules.thresholds;
    if t.window_ms < 30 * 60_000 {
        let window = duration_text(millis(t.window_ms));
        let why = "short windows raise false alarms on healthy jobs; the default is 30m";
        check.notes.push(format!("`thresholds.window` {window}: {why}"));
    }
    if matches!(t.min_samples, Auto::Set(n) if n < 3) {
        check.notes.push("`thresholds.min_samples`: fewer than 3 samples prove little".to_owned());
    }
    // A pattern that fits no text at all and any text is hardly meant for some jobs only.
    if config.rules.exemptions.name_pattern.as_ref().is_some_and(|p| p.is_match("") && p.is_match("\u{1}")) {
        check.notes.push("`exemptions.name_pattern` fits every name: no job is ever judged".to_owned());
    }
    let pattern = config.rules.exemptions.name_pattern.as_ref().map(|p| p.as_str());
    let is_glob = |p: &&str| {
        p.ends_with('*')
            && ![".*", "]*", ")*", "\\d*", "\\w*", "\\s*", "\\*"].iter().any(|end| p.ends_with(end))
    };
    if let Some(p) = pattern.filter(is_glob) {
        let why = "it is a regular expression, in which `*` repeats the sign before it; `.*` is any text";
        check.notes.push(format!("`exemptions.name_pattern` {}: {why}", shown(p)));
    }
    if config.mode == Mode::Enforce && config.limits.max_actions_per_hour == 0 {
        check.notes.push("`limits.max_actions_per_hour: 0`: nothing is ever drained or cancelled".to_owned());
    }
    if config.limits.max_drained_fraction == 0.0 && config.limits.max_drained_nodes != Some(0) {
        let none = "`limits.max_drained_nodes: 0` is none";
        check.notes.push(format!("`limits.max_drained_fraction` 0: one node may still be drained; {none}"));
    }
    let simulates = config.gpu.source == GpuSourceKind::Simulator;
    if simulates && config.gpu.scenario.is_none() {
        check.notes.push("`gpu.source: simulator` without `gpu.scenario`: no run judges anything".to_owned());
    }
    if config.mode == Mode::Enforce && simulates {
        check.notes.push("`mode: enforce` with `gpu.source: simulator` acts on made-up readings".to_owned());
    }
}

fn ladder(check: &mut Check<'_>, config: &Config) {
    let has = |verdict| config.rules.stages.iter().any(|s| s.verdict == verdict);
    if config.rules.stages.is_empty() {
        check.notes.push("`stages` is empty: nothing is ever alerted on".to_owned());
    }
    if has(Verdict::Cancel) && !has(Verdict::Drain) {
        check.notes.push("`stages`: cancel is never reached: cancel needs an earlier drain".to_owned());
    }
    if has(Verdict::Cancel) && config.mode == Mode::Observe {
        check.notes.push("`stages`: cancel under `mode: observe` is shown as withheld".to_owned());
    }
}

/// An error of the first of these keys, at the first that the file says.
fn fail(check: &mut Check<'_>, root: &Node<'_>, keys: &[&str], found: String, allowed: String) {
    let at = keys.iter().find_map(|key| tree::find(root, key));
    check.fail(at, keys[0], format!("is {found}"), format!("allowed: {allowed}"));
}

fn millis(ms: i64) -> Duration {
    Duration::from_millis(ms.unsigned_abs())
}

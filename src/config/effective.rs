//! The effective configuration as text: one line a key, each with where its value came from. What it prints
//! is itself a configuration file that means the same. Keys that are parsed and ignored have no effect and
//! are not shown.

use super::tree;
use super::{Config, GpuSourceKind, Release, SlurmSource};
use crate::mode::Mode;
use crate::model::Gpm;
use crate::policy::Auto;
use crate::policy::fault::Action;
use crate::units::quantity::{duration_text, size_text};
use std::path::Path;
use std::time::Duration;

/// A dotted key and its value as YAML.
type Row = (&'static str, String);

/// Every key that has an effect, with `# default` or the line that says it.
pub fn show(config: &Config) -> String {
    let root = tree::read(&config.text).ok().flatten();
    let line = |key: &str| {
        let at = tree::find(root.as_ref()?, key)?;
        tree::locate(&config.text, at).map(|(line, _)| line)
    };
    let mut shown = String::new();
    let mut open = "";
    for (key, value) in rows(config) {
        let (section, name) = key.split_once('.').unwrap_or(("", key));
        if section != open && !section.is_empty() {
            shown.push_str(&format!("{section}:\n"));
        }
        open = section;
        let indent = if section.is_empty() { "" } else { "  " };
        let origin = line(key).map_or("default".to_owned(), |line| format!("line {line}"));
        shown.push_str(&format!("{:<44} # {origin}\n", format!("{indent}{name}: {value}")));
    }
    shown
}

/// What to write in the file so that a key says `value`, and over which line; `None`: as a new one. A section is written
/// whole, with what the file says in it already.
pub fn change(config: &Config, key: &str, value: &str) -> (Option<usize>, String) {
    let root = tree::read(&config.text).ok().flatten();
    let said = |key: &str| tree::find(root.as_ref()?, key);
    let line = |key: &str| tree::locate(&config.text, said(key)?).map(|(line, _)| line);
    let Some((section, name)) = key.split_once('.') else {
        return (line(key), format!("{key}: {value}"));
    };
    let beside = rows(config).into_iter().filter(|(other, _)| *other != key && said(other).is_some());
    let of_section = |(other, value): Row| {
        let name = other.strip_prefix(section)?.strip_prefix('.')?;
        Some(format!("{name}: {value}"))
    };
    let pairs: Vec<String> = beside.filter_map(of_section).chain([format!("{name}: {value}")]).collect();
    (line(section), format!("{section}: {{ {} }}", pairs.join(", ")))
}

fn rows(config: &Config) -> Vec<Row> {
    let mut rows = general(config);
    rows.extend(thresholds(config));
    rows.extend(acting(config));
    rows.extend(exemptions(config));
    rows.extend(keeping(config));
    rows.extend(faults(config));
    rows.extend(telling(config));
    rows
}

fn mode(mode: Mode) -> String {
    match mode {
        Mode::Observe => "observe",
        Mode::Enforce => "enforce",
    }
    .to_owned()
}

fn faults(config: &Config) -> Vec<Row> {
    let (law, epilog) = (&config.faults.law, &config.epilog);
    let word = |action: Action| match action {
        Action::Off => "off",
        Action::Alert => "alert",
        Action::Drain => "drain",
    };
    let named: Vec<String> = law.actions.iter().map(|(k, a)| format!("{}: {}", k.word(), word(*a))).collect();
    let xids: Vec<String> = law.xids.iter().map(u32::to_string).collect();
    let actions = if named.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", named.join(", ")) };
    vec![
        ("faults.mode", mode(config.faults.mode)),
        ("faults.actions", actions),
        ("faults.xids", format!("[{}]", xids.join(", "))),
        ("epilog.verify", duration_text(epilog.verify)),
        ("epilog.on_leak", word(epilog.on_leak).to_owned()),
        ("epilog.allow", texts(&epilog.allow)),
        ("metrics.textfile", maybe(&config.metrics.textfile, |p| path(p))),
    ]
}

fn telling(config: &Config) -> Vec<Row> {
    let (slack, notify) = (&config.slack, &config.notify);
    vec![
        ("slack.webhook_file", maybe(&slack.webhook_file, |p| path(p))),
        ("slack.ca_file", maybe(&slack.ca_file, |p| path(p))),
        ("slack.min_verdict", slack.min_verdict.to_string()),
        ("notify.exec", texts(&notify.exec)),
        ("notify.min_verdict", notify.min_verdict.to_string()),
        ("notify.node_faults", notify.node_faults.to_string()),
    ]
}

fn general(config: &Config) -> Vec<Row> {
    let (gpu, slurm, scope) = (&config.gpu, &config.slurm, &config.enforce_in);
    let gpu_source = match gpu.source {
        GpuSourceKind::Nvml => "nvml",
        GpuSourceKind::NvidiaSmi => "nvidia-smi",
        GpuSourceKind::Simulator => "simulator",
    };
    let slurm_source = match slurm.source {
        SlurmSource::Auto => "auto",
        SlurmSource::Squeue => "squeue",
        SlurmSource::Rest => "rest",
    };
    let gpm = match gpu.gpm {
        Gpm::Off => "off",
        Gpm::Mig => "mig",
        Gpm::On => "on",
    };
    vec![
        ("mode", mode(config.mode)),
        ("enforce_in.partitions", texts(&scope.partitions)),
        ("enforce_in.accounts", texts(&scope.accounts)),
        ("enforce_in.qos", texts(&scope.qos)),
        ("enforce_in.node_share", scope.node_share.to_string()),
        ("state_dir", path(&config.state_dir)),
        ("deadline", duration_text(config.deadline)),
        ("gpu.source", gpu_source.to_owned()),
        ("gpu.library", maybe(&gpu.library, |p| path(p))),
        ("gpu.deadline", auto(&gpu.deadline, |d| duration_text(*d))),
        ("gpu.scenario", maybe(&gpu.scenario, |p| path(p))),
        ("gpu.expected", auto(&gpu.expected, u32::to_string)),
        ("gpu.gpm", gpm.to_owned()),
        ("slurm.source", slurm_source.to_owned()),
        ("slurm.bin_dir", maybe(&slurm.bin_dir, |p| path(p))),
        ("slurm.conf", maybe(&slurm.conf, |p| path(p))),
        ("slurm.rest_url", maybe(&slurm.rest_url, |url| quoted(url))),
        ("slurm.rest_version", maybe(&slurm.rest_version, |v| format!("v0.0.{v}"))),
        ("slurm.username", maybe(&slurm.username, |name| quoted(name))),
        ("slurm.token_file", maybe(&slurm.token_file, |p| path(p))),
    ]
}

fn thresholds(config: &Config) -> Vec<Row> {
    let t = &config.rules.thresholds;
    let stages: Vec<String> = config.rules.stages.iter().map(stage).collect();
    vec![
        ("thresholds.util_pct", t.util_pct.to_string()),
        ("thresholds.mem_held_fraction", t.mem_held_fraction.to_string()),
        ("thresholds.idle_power_watts", auto(&t.idle_power, |mw| (*mw as f64 / 1000.0).to_string())),
        ("thresholds.window", millis(&t.window_ms)),
        ("thresholds.warmup", millis(&t.warmup_ms)),
        ("thresholds.first_activity_grace", millis(&t.first_activity_grace_ms)),
        ("thresholds.min_samples", auto(&t.min_samples, u32::to_string)),
        ("thresholds.max_sample_gap", auto(&t.max_sample_gap, millis)),
        ("stages", format!("[{}]", stages.join(", "))),
        ("signatures.spinning", config.rules.spinning.to_string()),
    ]
}

fn acting(config: &Config) -> Vec<Row> {
    let (act, limits) = (&config.act, &config.limits);
    let release = match act.release {
        Release::JobEnd => "job-end",
        Release::Never => "never",
    };
    vec![
        ("act.drain_shared", config.rules.drain_shared.to_string()),
        ("act.release", release.to_owned()),
        ("act.release_orphans", act.release_orphans.to_string()),
        ("act.terminate", if act.requeue { "requeue" } else { "cancel" }.to_owned()),
        ("act.admin_comment", act.admin_comment.to_string()),
        ("act.notify_job", act.notify_job.to_string()),
        ("act.warn", maybe(&config.rules.warn, |w| format!("{}@{}", w.signal, millis(&w.ahead_ms)))),
        ("limits.max_drained_fraction", limits.max_drained_fraction.to_string()),
        ("limits.max_drained_nodes", maybe(&limits.max_drained_nodes, u32::to_string)),
        ("limits.spread", duration_text(limits.spread)),
        ("limits.max_actions_per_hour", limits.max_actions_per_hour.to_string()),
    ]
}

fn exemptions(config: &Config) -> Vec<Row> {
    let e = &config.rules.exemptions;
    vec![
        ("exemptions.users", texts(&e.users)),
        ("exemptions.accounts", texts(&e.accounts)),
        ("exemptions.partitions", texts(&e.partitions)),
        ("exemptions.qos", texts(&e.qos)),
        ("exemptions.name_pattern", maybe(&e.name_pattern, |p| quoted(p.as_str()))),
        ("exemptions.max_gpus", maybe(&e.max_gpus, u32::to_string)),
        ("exemptions.max_age", maybe(&e.max_age_ms, millis)),
        ("exemptions.job_comment", maybe(&e.job_comment_ms, millis)),
    ]
}

fn keeping(config: &Config) -> Vec<Row> {
    let history = &config.history;
    vec![
        ("history.keep", duration_text(history.keep)),
        ("history.archive", duration_text(history.archive)),
        ("history.max_size", size_text(history.max_size_bytes)),
        ("history.case_files", duration_text(history.case_files)),
    ]
}

fn stage(stage: &crate::policy::Stage) -> String {
    format!("{{ after: {}, verdict: {} }}", millis(&stage.after_ms), stage.verdict)
}

fn auto<T>(value: &Auto<T>, text: impl Fn(&T) -> String) -> String {
    match value {
        Auto::Auto => "auto".to_owned(),
        Auto::Set(value) => text(value),
    }
}

fn maybe<T>(value: &Option<T>, text: impl Fn(&T) -> String) -> String {
    value.as_ref().map_or("null".to_owned(), text)
}

fn millis(ms: &i64) -> String {
    duration_text(Duration::from_millis(ms.unsigned_abs()))
}

fn path(path: &Path) -> String {
    quoted(&path.display().to_string())
}

fn texts(texts: &[String]) -> String {
    let quoted: Vec<String> = texts.iter().map(|t| quoted(t)).collect();
    format!("[{}]", quoted.join(", "))
}

/// A JSON string is a YAML string; a plain path or word needs no quotes.
fn quoted(text: &str) -> String {
    let plain =
        text.starts_with('/') && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-".contains(&b));
    if plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

//! The keys: what each may say and what it means. One function a section, each key named once: what an error
//! calls allowed is what is read here. Compares no two sections: that is `cross`.

use super::table::Table;
use super::tree::Value;
use super::values::*;
use super::{
    Act, Config, Epilog, Faults, Gpu, GpuSourceKind, History, Limits, Metrics, Notify, Release, Slack, Slurm,
    SlurmSource,
};
use crate::http::is_this_host;
use crate::mode::{EnforceIn, Mode};
use crate::model::{Gpm, Verdict};
use crate::policy::fault::{Action, Kind, Law};
use crate::policy::{Exemptions, Rules, Stage, Thresholds, Warn};
use crate::units::quantity::LONGEST;
use std::ops::RangeInclusive;
use std::time::Duration;

type Words<T> = &'static [(&'static str, T)];

const MODES: Words<Mode> = &[("observe", Mode::Observe), ("enforce", Mode::Enforce)];
const VERDICTS: Words<Verdict> =
    &[("alert", Verdict::Alert), ("drain", Verdict::Drain), ("cancel", Verdict::Cancel)];
const GPU_SOURCES: Words<GpuSourceKind> = &[
    ("nvml", GpuSourceKind::Nvml),
    ("nvidia-smi", GpuSourceKind::NvidiaSmi),
    ("simulator", GpuSourceKind::Simulator),
];
const GPMS: Words<Gpm> = &[("off", Gpm::Off), ("mig", Gpm::Mig), ("on", Gpm::On)];
const SLURM_SOURCES: Words<SlurmSource> =
    &[("auto", SlurmSource::Auto), ("squeue", SlurmSource::Squeue), ("rest", SlurmSource::Rest)];
const REST_VERSIONS: Words<u8> = &[
    ("v0.0.38", 38),
    ("v0.0.39", 39),
    ("v0.0.40", 40),
    ("v0.0.41", 41),
    ("v0.0.42", 42),
    ("v0.0.43", 43),
    ("v0.0.44", 44),
    ("v0.0.45", 45),
];
const ACTIONS: Words<Action> = &[("off", Action::Off), ("alert", Action::Alert), ("drain", Action::Drain)];
const RELEASES: Words<Release> = &[("job-end", Release::JobEnd), ("never", Release::Never)];

const SECOND: Duration = Duration::from_secs(1);
const ANY: RangeInclusive<Duration> = Duration::ZERO..=LONGEST;
const SHARE: RangeInclusive<f64> = 0.0..=1.0;

/// The whole file; what it does not say is as in `d`.
pub(super) fn config(mut t: Table<'_, '_>, d: Config) -> Config {
    let mode = t.read("mode", d.mode, word(MODES));
    let enforce_in = enforce_in(t.table("enforce_in"), d.enforce_in);
    let state_dir = t.read("state_dir", d.state_dir, path);
    let deadline = t.read("deadline", d.deadline, duration(SECOND * 5..=SECOND * 55));
    let gpu = gpu(t.table("gpu"), d.gpu);
    let slurm = slurm(t.table("slurm"), d.slurm);
    let thresholds = thresholds(t.table("thresholds"), d.rules.thresholds);
    let stages = stages(&mut t, d.rules.stages);
    let spinning = signatures(t.table("signatures"), d.rules.spinning);
    let (act, drain_shared, warn) = act(t.table("act"), d.act, d.rules.drain_shared);
    let limits = limits(t.table("limits"), d.limits);
    let exemptions = exemptions(t.table("exemptions"), d.rules.exemptions);
    let history = history(t.table("history"), d.history);
    let faults = faults(t.table("faults"), d.faults);
    let epilog = epilog(t.table("epilog"), d.epilog);
    let slack = slack(t.table("slack"), d.slack);
    let notify = notify(t.table("notify"), d.notify);
    let metrics = metrics(t.table("metrics"), d.metrics);
    daemon(&mut t);
    t.finish();
    let rules = Rules { thresholds, stages, spinning, exemptions, drain_shared, warn };
    Config {
        mode,
        enforce_in,
        state_dir,
        deadline,
        gpu,
        slurm,
        rules,
        act,
        limits,
        history,
        faults,
        epilog,
        metrics,
        slack,
        notify,
        ..d
    }
}

fn enforce_in(mut t: Table<'_, '_>, d: EnforceIn) -> EnforceIn {
    let enforce_in = EnforceIn {
        partitions: t.read("partitions", d.partitions, list(whole_name)),
        accounts: t.read("accounts", d.accounts, list(whole_name)),
        qos: t.read("qos", d.qos, list(whole_name)),
        node_share: t.read("node_share", d.node_share, real(SHARE)),
    };
    t.finish();
    enforce_in
}

fn gpu(mut t: Table<'_, '_>, d: Gpu) -> Gpu {
    let gpu = Gpu {
        source: t.read("source", d.source, word(GPU_SOURCES)),
        library: t.read("library", d.library, maybe(file)),
        deadline: t.read("deadline", d.deadline, auto(duration(SECOND..=SECOND * 55))),
        scenario: t.read("scenario", d.scenario, maybe(file)),
        expected: t.read("expected", d.expected, auto(whole(0..=1024))),
        gpm: t.read("gpm", d.gpm, word(GPMS)),
    };
    if gpu.gpm != Gpm::Off && gpu.source != GpuSourceKind::Nvml {
        t.note("gpm", "has no effect; only `gpu.source: nvml` can measure it");
    }
    t.finish();
    gpu
}

fn slurm(mut t: Table<'_, '_>, d: Slurm) -> Slurm {
    let source = t.read("source", d.source, word(SLURM_SOURCES));
    let slurm = Slurm {
        source,
        bin_dir: t.read("bin_dir", d.bin_dir, maybe(path)),
        conf: t.read("conf", d.conf, maybe(file)),
        rest_url: match source {
            SlurmSource::Rest => t.must("rest_url", rest_url),
            SlurmSource::Auto | SlurmSource::Squeue => t.said("rest_url", maybe(rest_url)).flatten(),
        },
        rest_version: t.read("rest_version", d.rest_version, maybe(word(REST_VERSIONS))),
        username: t.read("username", d.username, maybe(name)),
        token_file: t.read("token_file", d.token_file, maybe(secret_file)),
    };
    let why = "ignored, for slurmd passes no environment; `slurm.token_file` names a file instead";
    t.ignored("token_env", maybe(name), why);
    rest_notes(&mut t, &slurm);
    t.finish();
    slurm
}

/// What slurmrestd's keys do not do, or do in the open.
fn rest_notes(t: &mut Table<'_, '_>, slurm: &Slurm) {
    let said = [
        ("rest_url", slurm.rest_url.is_some()),
        ("rest_version", slurm.rest_version.is_some()),
        ("username", slurm.username.is_some()),
        ("token_file", slurm.token_file.is_some()),
    ];
    if slurm.source != SlurmSource::Rest {
        for (key, _) in said.iter().filter(|(_, said)| *said) {
            t.note(key, "has no effect without `slurm.source: rest`");
        }
        return;
    }
    let open = |url: &String| url.strip_prefix("http://").is_some_and(|rest| !is_this_host(rest));
    if slurm.token_file.is_some() && slurm.rest_url.as_ref().is_some_and(open) {
        t.note("rest_url", "the token crosses the network as plain text; `https://` would hide it");
    }
}

fn thresholds(mut t: Table<'_, '_>, d: Thresholds) -> Thresholds {
    let thresholds = Thresholds {
        util_pct: t.read("util_pct", d.util_pct, whole(1..=100)),
        mem_held_fraction: t.read("mem_held_fraction", d.mem_held_fraction, real(SHARE)),
        idle_power: t.read("idle_power_watts", d.idle_power, auto(milliwatts(1.0..=2000.0))),
        window_ms: t.read("window", d.window_ms, millis(SECOND..=LONGEST)),
        warmup_ms: t.read("warmup", d.warmup_ms, millis(ANY)),
        first_activity_grace_ms: t.read("first_activity_grace", d.first_activity_grace_ms, millis(ANY)),
        min_samples: t.read("min_samples", d.min_samples, auto(whole(1..=100_000))),
        max_sample_gap: t.read("max_sample_gap", d.max_sample_gap, auto(millis(SECOND..=LONGEST))),
    };
    t.finish();
    thresholds
}

/// The ladder, where every rung is sound and they rise.
fn stages(t: &mut Table<'_, '_>, d: Vec<Stage>) -> Vec<Stage> {
    let Some(items) = t.items("stages", "a list of stages, like { after: 60m, verdict: drain }; [] for none")
    else {
        return d;
    };
    let mut stages: Vec<Stage> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let mut t = Table::new(t.check, format!("stages[{index}]"), Some(item));
        if !matches!(item.value, Value::Table(_)) {
            continue;
        }
        let (after, verdict) = (t.must("after", millis(ANY)), t.must("verdict", word(VERDICTS)));
        if let (Some(after_ms), Some(verdict)) = (after, verdict) {
            let stage = Stage { after_ms, verdict };
            if let Some(before) = stages.last() {
                rises(&mut t, *before, stage);
            }
            stages.push(stage);
        }
        t.finish();
    }
    stages
}

fn rises(t: &mut Table<'_, '_>, before: Stage, stage: Stage) {
    if stage.verdict <= before.verdict {
        let what = format!("{} follows {}", stage.verdict, before.verdict);
        t.fail(what, "allowed: alert, drain, cancel in this order, each at most once".to_owned());
    }
    if stage.after_ms < before.after_ms {
        t.fail("`after` falls".to_owned(), "allowed: no earlier than the stage before it".to_owned());
    }
}

fn signatures(mut t: Table<'_, '_>, spinning: Verdict) -> Verdict {
    let spinning = t.read("spinning", spinning, word(VERDICTS));
    t.finish();
    spinning
}

fn act(mut t: Table<'_, '_>, d: Act, drain_shared: bool) -> (Act, bool, Option<Warn>) {
    let drain_shared = t.read("drain_shared", drain_shared, truth);
    let act = Act {
        release: t.read("release", d.release, word(RELEASES)),
        release_orphans: t.read("release_orphans", d.release_orphans, truth),
        requeue: t.read("terminate", d.requeue, word(&[("cancel", false), ("requeue", true)])),
        admin_comment: t.read("admin_comment", d.admin_comment, truth),
        notify_job: t.read("notify_job", d.notify_job, truth),
    };
    let warn = t.read("warn", None, maybe(warn));
    t.finish();
    (act, drain_shared, warn)
}

fn limits(mut t: Table<'_, '_>, d: Limits) -> Limits {
    let limits = Limits {
        max_drained_fraction: t.read("max_drained_fraction", d.max_drained_fraction, real(SHARE)),
        max_drained_nodes: t.read("max_drained_nodes", d.max_drained_nodes, maybe(whole(0..=1_000_000))),
        spread: t.read("spread", d.spread, duration(Duration::ZERO..=SECOND * 86_400)),
        max_actions_per_hour: t.read("max_actions_per_hour", d.max_actions_per_hour, whole(0..=1000)),
    };
    t.finish();
    limits
}

fn exemptions(mut t: Table<'_, '_>, d: Exemptions) -> Exemptions {
    let exemptions = Exemptions {
        users: t.read("users", d.users, list(whole_name)),
        accounts: t.read("accounts", d.accounts, list(whole_name)),
        partitions: t.read("partitions", d.partitions, list(whole_name)),
        qos: t.read("qos", d.qos, list(whole_name)),
        name_pattern: t.read("name_pattern", d.name_pattern, maybe(pattern)),
        max_gpus: t.read("max_gpus", d.max_gpus, maybe(whole(1..=1_000_000))),
        max_age_ms: t.read("max_age", d.max_age_ms, maybe(millis(SECOND..=LONGEST))),
        job_comment_ms: t.read("job_comment", d.job_comment_ms, maybe(millis(SECOND..=LONGEST))),
    };
    t.finish();
    exemptions
}

fn history(mut t: Table<'_, '_>, d: History) -> History {
    const MIB: u64 = 1 << 20;
    let history = History {
        keep: t.read("keep", d.keep, duration(SECOND..=LONGEST)),
        archive: t.read("archive", d.archive, duration(ANY)),
        max_size_bytes: t.read("max_size", d.max_size_bytes, size(MIB..=64 << 30)),
        case_files: t.read("case_files", d.case_files, duration(ANY)),
    };
    t.finish();
    history
}

fn epilog(mut t: Table<'_, '_>, d: Epilog) -> Epilog {
    let epilog = Epilog {
        verify: t.read("verify", d.verify, duration(Duration::ZERO..=SECOND * 60)),
        allow: t.read("allow", d.allow, list(text)),
        on_leak: t.read("on_leak", d.on_leak, word(&[("alert", Action::Alert), ("drain", Action::Drain)])),
    };
    t.finish();
    epilog
}

fn faults(mut t: Table<'_, '_>, d: Faults) -> Faults {
    let mode = t.read("mode", d.mode, word(MODES));
    let xids = t.read("xids", d.law.xids, list(whole(1..=10_000)));
    let mut actions = t.table("actions");
    let mut said = Vec::new();
    // What is done about a leak is the Epilog's own key.
    for kind in Kind::ALL.iter().filter(|kind| **kind != Kind::Leak) {
        said.extend(actions.said(kind.word(), word(ACTIONS)).map(|action| (*kind, action)));
    }
    actions.elsewhere(Kind::Leak.word(), "`epilog.on_leak` says what is done about a leak");
    for (kind, _) in said.iter().filter(|(kind, action)| kind.may_be_everywhere() && *action == Action::Drain)
    {
        let why = "can come to every node at once, by an update or a setting; `limits` hold then";
        actions.note(kind.word(), why);
    }
    actions.finish();
    t.finish();
    Faults { mode, law: Law { actions: said, xids } }
}

fn slack(mut t: Table<'_, '_>, d: Slack) -> Slack {
    let slack = Slack {
        webhook_file: t.read("webhook_file", d.webhook_file, maybe(secret_file)),
        ca_file: t.read("ca_file", d.ca_file, maybe(file)),
        min_verdict: t.read("min_verdict", d.min_verdict, word(VERDICTS)),
    };
    let why = "ignored, for slurmd passes no environment; `slack.webhook_file` names a file instead";
    t.ignored("webhook_env", maybe(name), why);
    t.finish();
    slack
}

fn notify(mut t: Table<'_, '_>, d: Notify) -> Notify {
    let notify = Notify {
        exec: t.read("exec", d.exec, program),
        min_verdict: t.read("min_verdict", d.min_verdict, word(VERDICTS)),
        node_faults: t.read("node_faults", d.node_faults, truth),
    };
    t.finish();
    notify
}

fn metrics(mut t: Table<'_, '_>, d: Metrics) -> Metrics {
    let metrics = Metrics { textfile: t.read("textfile", d.textfile, maybe(file)) };
    if metrics.textfile.as_ref().is_some_and(|file| file.extension().is_none_or(|end| end != "prom")) {
        t.note("textfile", "does not end in `.prom`; node_exporter's textfile collector reads no other file");
    }
    t.finish();
    metrics
}

/// Keys of the older daemon that mean nothing to a program slurmd starts anew each time.
fn daemon(t: &mut Table<'_, '_>) {
    let why = "ignored; the cadence is `HealthCheckInterval` in slurm.conf";
    t.ignored("interval", |node| duration(SECOND..=LONGEST)(node).map(Some), why);
    let why = "ignored, for nothing listens; `metrics.textfile` names a file instead";
    t.ignored("metrics_addr", maybe(text), why);
}

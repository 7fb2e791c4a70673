//! The page for a terminal. User text is escaped: a job name can hold newlines and terminal escapes.

use super::{Answer, Told};
use crate::model::*;
use crate::policy::{Judgement, Level, interval, level};
use crate::reading::{Absence, Reading};
use crate::units::{MemoryBytes, human_ms};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Text of a user's choice on a terminal.
fn safe(reading: &Reading<String>) -> String {
    match reading {
        Reading::Measured(text) => text.escape_debug().to_string(),
        Reading::Absent(why) => format!("({})", why.words()),
    }
}

/// The answer as people read it.
pub fn answer(answer: &Answer, id: &str) -> String {
    let id = id.escape_debug();
    match answer {
        Answer::Told(told) => page(told),
        Answer::Ended { when, case: Some(case) } => {
            match serde_json::from_str::<serde_json::Value>(&case.body) {
                Ok(body) => format!(
                    "job {id} {when}; as it stood then:\n\n{}",
                    body["page"].as_str().unwrap_or(&case.body)
                ),
                Err(_) => format!("job {id} {when}; its case file is not readable\n"),
            }
        }
        Answer::Ended { when, case: None } => {
            format!(
                "job {id} {when}; no finding and no action was recorded for it, so no case file was kept\n"
            )
        }
        Answer::OtherNode(node) => {
            format!("job {id} is known to node {node} of this host: ask with --node {node}\n")
        }
        Answer::Unknown if id.to_string().contains(['_', '+']) => {
            format!("job {id} is not known here by this form of its id: give the raw job id (squeue -o %A)\n")
        }
        Answer::Unknown => {
            format!(
                "job {id} is not known here: never registered on this node, or before this ledger was begun\n"
            )
        }
    }
}

/// One page about a registered job run.
pub fn page(told: &Told) -> String {
    let mut out = String::new();
    head(&mut out, told);
    let _ = writeln!(out, "verdict   {}", verdict(told));
    if let Some(f) = told.finding() {
        let established = f.established_wall(&told.now).rfc3339();
        let _ = writeln!(out, "since     {}, established {established}", f.since_wall.rfc3339());
        let by = f
            .capped_by
            .as_ref()
            .map_or(String::new(), |(guard, why)| format!(" (`{}`: {why})", guard.word()));
        let _ = writeln!(out, "may ask   {} at most{by}", f.cap);
        let rule = f.signature.rule();
        let _ = writeln!(
            out,
            "rule      {}: {} (reads {}; asks for {})",
            f.signature, rule.breaches_if, rule.inputs, rule.most
        );
    }
    guards(&mut out, told);
    units(&mut out, told);
    for xid in &told.xids {
        let _ = writeln!(out, "{xid}");
    }
    beside(&mut out, told);
    deeds(&mut out, told);
    out
}

/// The judgement in one line of facts.
pub fn verdict(told: &Told) -> String {
    match &told.assessment.judgement {
        Judgement::Spared { guard, because } => format!("spared by `{}`: {because}", guard.word()),
        Judgement::Unjudged { guard, because } => {
            format!("not judged (`{}`): {because}", guard.word())
        }
        Judgement::Alive { because } => format!("alive: {because}"),
        Judgement::Breaching(finding) => finding.facts(),
    }
}

fn head(out: &mut String, told: &Told) {
    let (job, r) = (&told.history.job, &told.history.job.registration);
    let age_ms = told.now.boot.since_ms(r.start.boot);
    let _ = writeln!(
        out,
        "job       {} of user {}, partition {}, on node {}",
        job.shown_id(),
        safe(&r.user),
        safe(&r.partition),
        told.node
    );
    if let Some(Reading::Measured(name)) = job.details.as_ref().map(|d| &d.name) {
        let _ = writeln!(out, "name      {}", name.escape_debug());
    }
    let started = r.start.wall.rfc3339();
    let _ = writeln!(out, "run       restart {}, started {started}, {} ago", r.restart, human_ms(age_ms));
    for other in &told.other_runs {
        let _ = writeln!(out, "          another run of this job: {other}");
    }
}

fn guards(out: &mut String, told: &Told) {
    let _ = writeln!(out, "\n{:<15} {:<6} {:<52}  limit", "guard", "holds", "saw");
    for g in &told.assessment.guards {
        let holds = if g.held { "yes" } else { "no" };
        let _ = writeln!(out, "{:<15} {holds:<6} {:<52}  {}", g.name.word(), g.saw, g.limit);
    }
    if let Some(limits) = &told.assessment.limits {
        for adapted in &limits.adapted {
            let _ = writeln!(out, "note: {adapted}");
        }
    }
}

fn units(out: &mut String, told: &Told) {
    if told.units_are_shared() {
        let _ = writeln!(out, "\nwhose its units are is not certain; no sample is shown as its own");
        return;
    }
    let Some(newest) = told.history.ticks.last() else {
        let _ = writeln!(out, "\nno sample of this job run yet");
        return;
    };
    let _ =
        writeln!(out, "\nunits, as of {} ({} samples kept)", newest.wall.rfc3339(), told.history.ticks.len());
    for (u, unit) in told.assessment.units.iter().enumerate() {
        let seen = &newest.units[u];
        let _ = writeln!(
            out,
            "GPU {:<3} {}  quiet for {}",
            unit.unit.index,
            unit.unit.uuid,
            human_ms(unit.quiet_ms)
        );
        let _ = writeln!(out, "        {}", readings(seen));
        let _ = writeln!(out, "        {}", counted(told, u));
        let _ = writeln!(out, "        {}", learnt(told, u));
        let _ = writeln!(out, "        {}", timeline(told, u, &unit.levels));
    }
    let _ = writeln!(
        out,
        "        oldest left, newest right: # busy  : low  . zero  ~ spin-shaped  ! throttled  ? not readable  | a hole"
    );
}

/// What the job's processes did beside their GPUs, over the last hour or as much of it as is kept.
fn beside(out: &mut String, told: &Told) {
    const BACK_MS: i64 = 3_600_000;
    let ticks = &told.history.ticks;
    let Some(now) = ticks.last() else { return };
    let Some(then) = ticks.iter().find(|tick| now.at.since_ms(tick.at) <= BACK_MS) else { return };
    let over_ms = now.at.since_ms(then.at);
    let reset = Reading::Absent(Absence::CounterReset);
    let rate = |from: Reading<u64>, to: Reading<u64>, unit: f64| {
        let rise = from.and_then(|from| {
            to.and_then(|to| to.checked_sub(from).filter(|_| over_ms > 0).map_or(reset, Reading::Measured))
        });
        rise.map(|n| format!("{:.1}", n as f64 / over_ms as f64 / unit))
    };
    let mib_a_ms = 1_048_576.0 / 1000.0;
    let parts = [
        ("cores", rate(then.job.cpu_ms, now.job.cpu_ms, 1.0)),
        ("MiB/s written", rate(then.job.written_bytes, now.job.written_bytes, mib_a_ms)),
        ("MiB/s read", rate(then.job.read_bytes, now.job.read_bytes, mib_a_ms)),
        ("working set", now.job.working_set_bytes.map(|n| MemoryBytes(n).human())),
        ("frozen", now.job.frozen.map(|f| if f { "yes" } else { "no" }.to_owned())),
    ];
    let _ = writeln!(out, "host      over {}: {}", human_ms(over_ms), grouped(&parts));
}

fn or_why<T>(reading: &Reading<T>, words: impl Fn(&T) -> String) -> String {
    match reading {
        Reading::Measured(value) => words(value),
        Reading::Absent(why) => format!("not readable: {}", why.words()),
    }
}

fn readings(seen: &Observation) -> String {
    format!(
        "utilization {} (memory controller {}); memory {}; power {}; processes {}",
        or_why(&level::peak(seen.sm_util, &seen.sm_peak), |p| p.to_string()),
        or_why(&seen.mem_util, |p| p.to_string()),
        or_why(&seen.memory, |m| format!("{} of {}", m.used.human(), m.total.human())),
        or_why(&seen.power, |p| p.watts()),
        or_why(&seen.processes, |p| p.compute.to_string()),
    )
}

/// What could be read, one after the other; then what could not, by its reason: nothing is left out.
fn grouped(parts: &[(&str, Reading<String>)]) -> String {
    let mut said: Vec<String> = Vec::new();
    let mut absent: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, reading) in parts {
        match reading {
            Reading::Measured(value) => said.push(format!("{name} {value}")),
            Reading::Absent(why) => absent.entry(why.words()).or_default().push(name),
        }
    }
    said.extend(absent.into_iter().map(|(why, names)| format!("{}: {why}", names.join(", "))));
    said.join("; ")
}

/// What the counters say of the time since the run before.
fn counted(told: &Told, unit: usize) -> String {
    let [.., before, now] = &told.history.ticks[..] else { return "no interval yet".to_owned() };
    let (then, at) = (before.moment(unit), now.moment(unit));
    let gpm = now.units[unit].fields.get(Field::GpmSmActive);
    let parts = [
        ("mean power", interval::mean_power(then, at).map(|p| p.watts())),
        ("slowed", interval::slowed_permille(then, at).map(|n| format!("{}.{} %", n / 10, n % 10))),
        ("traffic", interval::traffic(then, at).map(|moved| if moved { "yes" } else { "none" }.to_owned())),
        ("GPM SM", gpm.map(|n| format!("{}.{:02} %", n / 100, n % 100))),
    ];
    format!("since the run before: {}", grouped(&parts))
}

/// What this node learnt of the card at rest; it vetoes what draws a quarter more.
fn learnt(told: &Told, unit: usize) -> String {
    let floors = told.history.floors.get(unit).copied().unwrap_or_else(LearntFloors::none);
    let of = |name, rest| (name, floors.get(rest).map(|p| p.watts()));
    let parts = [
        of("empty", Rest::EmptyLow),
        of("empty at high clocks", Rest::EmptyHigh),
        of("with a context", Rest::ContextLow),
        of("with a context at high clocks", Rest::ContextHigh),
    ];
    format!("learnt at rest: {}", grouped(&parts))
}

/// At most 64 signs for the newest ticks, as they were judged; a hole wherever two lie further apart than the gap.
fn timeline(told: &Told, unit: usize, levels: &[Level]) -> String {
    const WIDTH: usize = 64;
    let ticks = &told.history.ticks;
    let gap_ms = told.assessment.limits.as_ref().map_or(i64::MAX, |l| l.gap_ms);
    let first = ticks.len().saturating_sub(WIDTH);
    let mut line = String::new();
    for (t, tick) in ticks.iter().enumerate().skip(first) {
        if t > first && tick.at.since_ms(ticks[t - 1].at) > gap_ms {
            line.push('|');
        }
        line.push(levels.get(t).map_or_else(|| unjudged_sign(&tick.units[unit]), |level| sign(*level)));
    }
    line
}

fn sign(level: Level) -> char {
    match level {
        Level::Zero => '.',
        Level::Low => ':',
        Level::Busy => '#',
        Level::Spin => '~',
        Level::Throttled => '!',
        Level::Unreadable(_) => '?',
    }
}

/// Where nothing was weighed, at least whether something was read.
fn unjudged_sign(seen: &Observation) -> char {
    match level::peak(seen.sm_util, &seen.sm_peak) {
        Reading::Absent(_) => '?',
        Reading::Measured(p) if p.get() == 0 => '.',
        Reading::Measured(_) => '+',
    }
}

/// Our own words around what others wrote: whatever moves a terminal is spelled out, quotes are left alone.
fn harmless(text: &str) -> String {
    let spelled =
        |c: char| if matches!(c, '\'' | '"') { c.to_string() } else { c.escape_debug().to_string() };
    text.chars().map(spelled).collect()
}

fn deeds(out: &mut String, told: &Told) {
    let _ = writeln!(out);
    for a in &told.actions {
        let detail = if a.detail.is_empty() { String::new() } else { format!(": {}", harmless(&a.detail)) };
        let outcome = a.outcome.word();
        let _ =
            writeln!(out, "{:<8} {} {outcome} (run {}){detail}", a.deed.word(), a.wall.rfc3339(), a.run.0);
        if let Some(reason) = &a.reason {
            let _ = writeln!(out, "         reason: {reason}");
        }
    }
    for w in &told.withheld {
        let because = harmless(&w.because);
        let _ = writeln!(
            out,
            "withheld {} since {} ({} runs): {because}",
            w.deed.word(),
            w.first.1.rfc3339(),
            w.count
        );
    }
    match (&told.next, told.finding()) {
        (Some(next), _) if next.in_ms == 0 && told.withheld.iter().any(|w| w.deed == next.verdict.into()) => {
            let _ = writeln!(out, "next     {}, as soon as nothing withholds it", next.verdict);
        }
        (Some(next), _) => {
            let _ = writeln!(out, "next     {} in {}, if this goes on", next.verdict, human_ms(next.in_ms));
        }
        (None, Some(_)) => {
            let _ = writeln!(out, "next     no further stage");
        }
        (None, None) => {}
    }
}

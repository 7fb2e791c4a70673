//! The same as a value: `schema` 1. What is absent is null with its reason.

use super::elsewhere::page_of;
use super::timeline::{self, Seen};
use super::{Answer, Told, done_words};
use crate::ledger::FindingRow;
use crate::model::*;
use crate::policy::{Finding, Judgement};
use crate::units::{GpuHours, WallMs};
use serde_json::{Value, json};

/// The answer as JSON.
pub fn answer(answer: &Answer, id: &str) -> Value {
    match answer {
        Answer::Told(told) => {
            let mut page = page(told);
            page["timeline"] = timeline(told);
            page
        }
        Answer::Ended { when, case, left } => {
            let body = case.as_ref().and_then(|c| serde_json::from_str::<Value>(&c.body).ok());
            let readable = case.as_ref().map(|case| page_of(case).is_some());
            json!({
                "schema": 1,
                "job": id,
                "judgement": "ended",
                "because": when,
                "case_file": body,
                "case_file_readable": readable,
                "left": left,
            })
        }
        Answer::OtherNode(node) => json!({
            "schema": 1,
            "job": id,
            "judgement": "other_node",
            "because": format!("it is known to node {node} of this host"),
            "node": node,
        }),
        Answer::Unknown { node, ledger, begun } => json!({
            "schema": 1,
            "job": id,
            "judgement": "unknown_job",
            "because": format!("it is not known to node {node}"),
            "node": node,
            "ledger": ledger,
            "begun": begun.rfc3339(),
        }),
    }
}

/// One registered job run.
pub fn page(told: &Told) -> Value {
    let job = &told.history.job;
    let because = match &told.assessment.judgement {
        Judgement::Spared { because, .. }
        | Judgement::Unjudged { because, .. }
        | Judgement::Alive { because } => Some(because.clone()),
        Judgement::Breaching(f) => Some(f.facts()),
    };
    let finding = told.finding();
    json!({
        "schema": 1,
        "node": told.node,
        "job": {
            "id": job.registration.job,
            "shown_id": job.shown_id(),
            "restart": job.registration.restart,
            "registration": job.registration,
            "details": job.details,
        },
        "judgement": told.judgement_word(),
        "guard": told.guard(),
        "because": because,
        "signature": finding.map(|f| f.signature.word()),
        "scope": finding.map(|f| f.scope.word()),
        "guards": told.assessment.guards,
        "units": units(told),
        "xids": told.xids,
        "host": told.history.ticks.last().map(|tick| beside(&tick.job)),
        "actions": told.actions,
        "done": done_words(&told.actions),
        "withheld": told.withheld_pairs().iter().map(|(asked, because)| json!({ "asked": asked, "because": because })).collect::<Vec<_>>(),
        "findings": told.findings.iter().map(|row| kept_finding(told, row)).collect::<Vec<_>>(),
        "next": next(told),
        "ended": told.ended,
        "since": finding.map(|f| f.since_wall.rfc3339()),
        "established": finding.map(|f| f.established_wall(told.newest(), &told.now).rfc3339()),
        "wasted_gpu_hours": finding.map(|f| f.wasted().hours()),
        "most": finding.map(|f| f.cap),
        "rule": finding.map(|f| {
            let rule = f.signature.rule();
            json!({ "inputs": rule.inputs, "breaches_if": rule.breaches_if, "most": rule.most })
        }),
    })
}

/// What comes next and when.
pub fn next(told: &Told) -> Value {
    told.next.as_ref().map_or(Value::Null, |next| {
        let (verdict, in_s) = (next.verdict, next.in_ms / 1000);
        json!({ "verdict": verdict, "in_s": in_s, "withheld_by": told.next_is_withheld() })
    })
}

/// One finding of the job run as the ledger keeps it; that which stands as it was judged now.
fn kept_finding(told: &Told, row: &FindingRow) -> Value {
    let stands = told.finding().filter(|_| row.closed.is_none());
    let wasted = stands.map(Finding::wasted).or(row.wasted.measured().copied());
    let established = WallMs(row.since_wall.0.saturating_add(row.established.since_ms(row.since)));
    json!({
        "signature": stands.map_or(row.signature.as_str(), |f| f.signature.word()),
        "scope": stands.map_or(row.scope.as_str(), |f| f.scope.word()),
        "since": row.since_wall.rfc3339(),
        "established": established.rfc3339(),
        "wasted_gpu_hours": wasted.map(GpuHours::hours),
        "closed": row.closed.as_ref().map(|(how, at)| json!({ "how": how, "at": at.rfc3339() })),
    })
}

/// So many columns, whatever the time: a bounded answer.
const COLUMNS: usize = 120;

/// The job run over time, in columns: a number, null where there is a hole in the samples, or the reason why it was not
/// readable. Null as a whole where there is no sample.
fn timeline(told: &Told) -> Value {
    let shown = (!told.units_are_shared()).then(|| timeline::of(told, COLUMNS)).flatten();
    let Some(drawn) = shown else { return Value::Null };
    let value = |seen: &Seen| match seen {
        Seen::Value(value) => json!(value),
        Seen::Absent(why) => json!(why.key()),
        Seen::Hole => Value::Null,
    };
    let row = |row: &[Seen]| row.iter().map(value).collect::<Vec<_>>();
    let unit = |(rows, a): (&timeline::Rows, &crate::policy::judge::UnitAssessment)| {
        json!({
            "uuid": a.unit.uuid,
            "util_pct": row(&rows.util),
            "power_mw": row(&rows.power),
            "memory_bytes": row(&rows.memory),
        })
    };
    let units: Vec<Value> = drawn.units.iter().zip(&told.assessment.units).map(unit).collect();
    json!({
        "from": drawn.from.rfc3339(),
        "to": drawn.to.rfc3339(),
        "whole": drawn.whole,
        "columns": COLUMNS,
        "column_s": (drawn.to.0 - drawn.from.0) as f64 / 1000.0 / COLUMNS as f64,
        "units": units,
    })
}

fn units(told: &Told) -> Vec<Value> {
    let newest = told.history.ticks.last();
    let unit = |(u, a): (usize, &crate::policy::judge::UnitAssessment)| {
        let seen = newest.map(|tick| observation(&tick.units[u]));
        json!({ "uuid": a.unit.uuid, "index": a.unit.index, "quiet_s": a.quiet_ms / 1000, "newest": seen })
    };
    told.assessment.units.iter().enumerate().map(unit).collect()
}

fn observation(o: &Observation) -> Value {
    json!({
        "sm_util_pct": o.sm_util,
        "mem_util_pct": o.mem_util,
        "sm_peak": o.sm_peak,
        "memory": o.memory,
        "power_mw": o.power,
        "power_limit_mw": o.power_limit,
        "energy_mj": o.energy,
        "sm_clock_mhz": o.sm_clock,
        "temperature_c": o.temperature,
        "clocks_event": o.clocks_event,
        "mig": o.mig,
        "compute_processes": o.processes.map(|p| p.compute),
        "fields": fields(&o.fields),
    })
}

/// Counters, states and GPM's activity, by name.
fn fields(fields: &Fields) -> Value {
    Field::ALL
        .iter()
        .map(|f| (f.word().to_owned(), json!(fields.get(*f))))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// What the job's processes did beside its GPUs, as the newest run saw it: sums since they began, and levels.
fn beside(job: &JobSample) -> Value {
    json!({
        "cpu_ms": job.cpu_ms,
        "written_bytes": job.written_bytes,
        "read_bytes": job.read_bytes,
        "working_set_bytes": job.working_set_bytes,
        "frozen": job.frozen,
        "holders": job.holders,
    })
}

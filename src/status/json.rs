//! The same as a value: `schema` 1. What is absent is null with its reason; hours are certified or measured, and nothing
//! is a projection.

use super::{Drain, Hours, Status, Unit, part, withheld};
use crate::explain::json::next;
use crate::explain::{Told, done_words};
use crate::ledger::FaultRow;
use crate::model::*;
use crate::policy::Judgement;
use crate::policy::attribution::Holder;
use crate::policy::free::{Doubt, Free};
use crate::units::GpuHours;
use serde_json::{Value, json};

/// The page.
pub fn page(status: &Status) -> Value {
    let run = status.newest.as_ref().map(|look| {
        json!({
            "id": look.run,
            "at": look.wall.rfc3339(),
            "age_s": status.age_ms().map(|ms| ms / 1000),
            "gpus_not_read": look.failed.map(|why| why.key()),
        })
    });
    json!({
        "schema": 1,
        "node": status.node,
        "at": status.now.wall.rfc3339(),
        "mode": status.mode,
        "ledger_begun": status.begun.rfc3339(),
        "too_new": status.too_new,
        "run": run,
        "stale": status.is_stale(),
        "every_s": status.cadence.map(|cadence| cadence.median_ms / 1000),
        "faults": status.faults.iter().map(fault).collect::<Vec<_>>(),
        "gpus": status.units.iter().map(|unit| gpu(status, unit)).collect::<Vec<_>>(),
        "jobs": status.jobs.iter().map(job).collect::<Vec<_>>(),
        "gpu_hours": hours(&status.hours),
        "drains": status.drains.iter().map(|drain| drained(status, drain)).collect::<Vec<_>>(),
        "orphans": status.orphans.iter().map(fault).collect::<Vec<_>>(),
    })
}

fn fault(row: &FaultRow) -> Value {
    json!({
        "number": row.id,
        "kind": row.kind,
        "since": row.opened.rfc3339(),
        "detail": row.detail,
        "acknowledged_by": row.acked_by,
    })
}

fn gpu(status: &Status, unit: &Unit) -> Value {
    let seen = &unit.seen;
    let parent = match &unit.known.kind {
        UnitKind::Gpu => None,
        UnitKind::Mig { parent, .. } => Some(parent),
    };
    let (held, ids) = match &unit.holder {
        Holder::Nobody => ("nobody", &[][..]),
        Holder::Jobs(ids) if ids.len() == 1 => ("job", &ids[..]),
        Holder::Jobs(ids) => ("shared", &ids[..]),
        Holder::MayBe(ids) => ("not_known", &ids[..]),
    };
    let shown = |id: &JobRunId| status.job(*id).map(|told| told.history.job.shown_id());
    let mut gpu = json!({
        "index": unit.known.index,
        "instance": unit.instance().map(|(gi, ci)| json!({ "parent": parent, "gi": gi, "ci": ci })),
        "uuid": unit.known.uuid,
        "held": held,
        "jobs": ids.iter().filter_map(shown).collect::<Vec<_>>(),
        "utilization_pct": unit.utilization(),
        "memory_used_bytes": seen.memory.map(|memory| memory.used),
        "power_mw": seen.power,
        "compute_processes": seen.processes.map(|count| count.compute),
    });
    if let Some(told) = status.holder(unit) {
        let part = part(told, &unit.known.uuid);
        gpu["verdict"] = json!(part.word);
        gpu["quiet_s"] = json!(part.quiet_ms / 1000);
        gpu["next"] = next(told);
    }
    if let Some(free) = &unit.free {
        gpu["free"] = json!({ "state": free.word(), "looks": looks(free), "because": free.words(), "pids": pids(free) });
    }
    gpu
}

/// So many looks in a row showed it empty.
fn looks(free: &Free) -> usize {
    match free {
        Free::Reclaimable => crate::policy::free::LOOKS,
        Free::NotSettled(looks) => *looks,
        Free::Doubted(_) => 0,
    }
}

fn pids(free: &Free) -> &[u32] {
    match free {
        Free::Doubted(Doubt::Processes(pids, _)) => pids,
        _ => &[],
    }
}

fn job(told: &Told) -> Value {
    let (run, finding) = (&told.history.job, told.finding());
    let withheld =
        withheld(told).into_iter().map(|(asked, because)| json!({ "asked": asked, "because": because }));
    json!({
        "job": run.shown_id(),
        "id": run.registration.job,
        "restart": run.registration.restart,
        "user": run.registration.user,
        "partition": run.registration.partition,
        "gpus": run.registration.gpus.len(),
        "judgement": told.judgement_word(),
        "guard": told.guard(),
        "because": because(told),
        "signature": finding.map(|f| f.signature.word()),
        "scope": finding.map(|f| f.scope.word()),
        "since": finding.map(|f| f.since_wall.rfc3339()),
        "certified_gpu_hours": finding.map(|f| f.wasted().hours()),
        "done": done_words(&told.actions),
        "withheld": withheld.collect::<Vec<_>>(),
        "next": next(told),
    })
}

/// As `--explain --json` says it.
fn because(told: &Told) -> String {
    match &told.assessment.judgement {
        Judgement::Spared { because, .. }
        | Judgement::Unjudged { because, .. }
        | Judgement::Alive { because } => because.clone(),
        Judgement::Breaching(finding) => finding.facts(),
    }
}

fn hours(hours: &Hours) -> Value {
    let by_signature: serde_json::Map<String, Value> =
        hours.wasted.iter().map(|(name, hours)| (name.clone(), json!(hours.hours()))).collect();
    json!({
        "wasted_certified_by_signature": by_signature,
        "wasted_certified_standing": hours.standing.map(GpuHours::hours),
        "blocked_by_our_drains": hours.blocked.hours(),
    })
}

fn drained(status: &Status, drain: &Drain) -> Value {
    json!({
        "for": drain.what,
        "reason": drain.reason,
        "since": drain.since.rfc3339(),
        "certain": drain.certain,
        "blocks_gpus": status.free_gpus().map(|(free, _)| free),
        "stays": drain.stays,
    })
}

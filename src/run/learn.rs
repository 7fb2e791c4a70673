//! What cards draw at rest, learnt while they rest, held by a job or by nobody. It only ever vetoes, so it may be
//! learnt late: one run in eight looks.

use super::snapshot::Snapshot;
use super::{Setting, Trouble};
use crate::ledger::Ledger;
use crate::model::{Observation, RunId};
use crate::policy::floor;
use crate::policy::interval::Moment;
use crate::units::UnitUuid;

/// One run in so many: on an idle node, where every card rests, each look is two queries.
const EVERY: i64 = 8;

/// Learns from the interval before this run, for each unit that certainly rested over it.
pub fn at_rest(
    setting: &Setting,
    run: RunId,
    snapshot: &Snapshot,
    ledger: &mut Ledger,
) -> Result<(), Trouble> {
    let Some(report) = snapshot.gpus.measured().filter(|_| run.0 % EVERY == 0) else { return Ok(()) };
    let mut resting: Vec<(UnitUuid, Observation)> = Vec::new();
    for unit in &report.units {
        let seen = unit.readings.counted();
        if let (Some(uuid), true) = (unit.identity.uuid.measured(), floor::may_be_learnt(&seen)) {
            resting.push((uuid.clone(), seen));
        }
    }
    if resting.is_empty() {
        return Ok(());
    }
    let uuids: Vec<UnitUuid> = resting.iter().map(|(uuid, _)| uuid.clone()).collect();
    let Some(before) = ledger.before(&setting.now.boot_id, run, &uuids)? else { return Ok(()) };
    let learnt = resting.into_iter().zip(&before.units).filter_map(|((uuid, seen), was)| {
        let then = Moment { at: before.at, driver: &before.driver, seen: was };
        let now = Moment { at: setting.now.boot, driver: &report.driver, seen: &seen };
        let (rest, power) = floor::rested(then, now)?;
        Some((uuid, rest, power))
    });
    let learnt: Vec<_> = learnt.collect();
    Ok(ledger.learn(&learnt, setting.now)?)
}

//! What was seen of a finding's units in particular, in words: which one stands out, whether the hardware complained,
//! what leaves a look unknown. Facts only; nothing is decided here.

use crate::model::{Field, Observation, UnitRef};
use crate::policy::level::{self, Level};
use crate::policy::signature::{Scene, Signature};
use crate::policy::window::Evidence;

/// The particulars of a finding on these units, in the order of the scene's.
pub(super) fn words(scene: &Scene, named: &[UnitRef], signature: Signature, evidence: &Evidence) -> String {
    let mut all = match signature {
        Signature::Throttled => clocks(scene, named),
        Signature::Spinning => sides(scene, named),
        Signature::Unknown => scene.doubts(evidence).into_iter().collect(),
        Signature::Idle | Signature::Hung | Signature::Starved => Vec::new(),
    };
    if matches!(signature, Signature::Spinning | Signature::Hung) {
        all.extend(hardware(scene, evidence));
    }
    all.join(", ")
}

fn newest<'a>(scene: &'a Scene, unit: usize) -> Option<&'a Observation> {
    scene.series.ticks.last().map(|tick| &tick.units[unit])
}

fn gpus(list: &[String]) -> String {
    format!("GPU {}", list.join(","))
}

/// Which spin and which stand still: the odd one is where the trouble began (NVIDIA/nccl#1063).
fn sides(scene: &Scene, named: &[UnitRef]) -> Vec<String> {
    let Some(levels) = scene.series.levels.last() else { return Vec::new() };
    let of = |wanted: Level| -> Vec<String> {
        let units = scene.units.iter().zip(named);
        units.filter(|(u, _)| levels[**u] == wanted).map(|(_, unit)| unit.index.to_string()).collect()
    };
    let (spin, zero) = (of(Level::Spin), of(Level::Zero));
    let util = scene
        .units
        .iter()
        .filter(|u| levels[**u] == Level::Spin)
        .filter_map(|u| {
            level::peak(newest(scene, *u)?.sm_util, &newest(scene, *u)?.sm_peak).measured().copied()
        })
        .min();
    let mut sides = Vec::new();
    if let (false, Some(util)) = (spin.is_empty(), util) {
        sides.push(format!("{} at {util}", gpus(&spin)));
    }
    if !zero.is_empty() {
        sides.push(format!("{} at 0 %", gpus(&zero)));
    }
    sides
}

fn clocks(scene: &Scene, named: &[UnitRef]) -> Vec<String> {
    let of = |(u, unit): (&usize, &UnitRef)| {
        let seen = newest(scene, *u)?;
        let (clock, most) = (seen.sm_clock.measured()?, seen.sm_clock_max.measured()?);
        let (power, limit) = (seen.power.measured()?, seen.power_limit.measured()?);
        let (power, limit) = (power.watts(), limit.watts());
        Some(format!("GPU {}: {clock} of {most}, {power} of {limit}", unit.index))
    };
    scene.units.iter().zip(named).filter_map(of).collect()
}

/// Whether uncorrected errors rose since the breach began; nothing where a card cannot say.
fn hardware(scene: &Scene, evidence: &Evidence) -> Option<String> {
    let first = scene.series.ticks.get(evidence.since_tick())?;
    let mut rose = false;
    for &u in scene.units {
        let errors = |seen: &Observation| seen.fields.get(Field::EccUncorrectedVolatile).measured().copied();
        rose |= errors(newest(scene, u)?)? > errors(&first.units[u])?;
    }
    Some(if rose { "uncorrected ECC errors rose" } else { "no hardware error seen" }.to_owned())
}

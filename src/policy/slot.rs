//! The moment of a node: slurmctld starts all nodes' runs at the same instant, so no run touches Slurm in the tick its
//! stage falls due. Time is cut into periods of `limits.spread` or a multiple of it, and each node and job has its own
//! cut. A run may look and act for a job only if it is the first one in a period. Nothing is remembered for it, so a
//! switch to `enforce`, a brake let go and a slurmctld that is back bring no two nodes to the same instant either.

use crate::model::{ActionRecord, Cadence, Deed, JobId, Outcome};
use crate::units::{BootMs, NodeName, hash};

/// The cut of one node and job run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    offset_ms: i64,
    spread_ms: i64,
}

/// Periods hold so many runs at least: were there one run in each, every node would act in the tick its stage falls due.
const FEWEST_RUNS: i64 = 5;

/// The period for a node whose runs come at this cadence: `limits.spread`, or the smallest multiple of it that holds five
/// runs.
fn period_ms(spread_ms: i64, cadence: Option<Cadence>) -> i64 {
    let runs_ms = cadence.map_or(0, |cadence| FEWEST_RUNS * cadence.p90_ms);
    if spread_ms <= 0 { 0 } else { spread_ms * (runs_ms + spread_ms - 1).div_euclid(spread_ms).max(1) }
}

impl Slot {
    /// `spread_ms` 0: every run is in its slot.
    pub fn of(node: &NodeName, job: JobId, spread_ms: i64) -> Slot {
        Slot::named(&format!("{node} {job}"), spread_ms)
    }

    /// The cut by which a node drains, votes and cancels for a job run of which so much was done. Once it is drained its
    /// votes wait for no longer period than `limits.spread`: they would be none when they are counted.
    pub fn of_deed(
        node: &NodeName,
        job: JobId,
        spread_ms: i64,
        cadence: Option<Cadence>,
        actions: &[ActionRecord],
    ) -> Slot {
        let drained = actions.iter().any(|a| a.deed == Deed::Drain && a.outcome == Outcome::Done);
        Slot::of(node, job, period_ms(spread_ms, cadence.filter(|_| !drained)))
    }

    /// The cut by which a node drains itself for a kind of fault, which may come to all of them at once.
    pub fn of_fault(node: &NodeName, kind: &str, spread_ms: i64, cadence: Option<Cadence>) -> Slot {
        Slot::named(&format!("{node} {kind}"), period_ms(spread_ms, cadence))
    }

    /// The cut of a node, whatever runs there.
    pub fn of_node(node: &NodeName, spread_ms: i64) -> Slot {
        Slot::named(node.as_str(), spread_ms)
    }

    fn named(name: &str, spread_ms: i64) -> Slot {
        let hash = i64::from(hash(name));
        // Of all of the hash: its last digits alone are much alike for names that differ in their end.
        let offset_ms =
            if spread_ms > 0 { hash.wrapping_mul(2_654_435_761).rem_euclid(spread_ms) } else { 0 };
        Slot { offset_ms, spread_ms }
    }

    /// Whether a run at `now` is the first in its period; `previous` is this node's run before it, on this boot.
    /// Without one it is not: what a node did before is then not known.
    pub fn is_open(&self, previous: Option<BootMs>, now: BootMs) -> bool {
        self.spread_ms <= 0 || previous.is_some_and(|before| self.period(before) != self.period(now))
    }

    /// How long until the next period begins.
    pub fn next_in_ms(&self, now: BootMs) -> i64 {
        match self.spread_ms {
            spread if spread <= 0 => 0,
            spread => spread - (now.0 + self.offset_ms).rem_euclid(spread),
        }
    }

    fn period(&self, at: BootMs) -> i64 {
        (at.0 + self.offset_ms).div_euclid(self.spread_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60_000;

    fn slot(node: &str, spread_ms: i64) -> Slot {
        Slot::of(&NodeName::new(node).unwrap(), JobId::FIRST, spread_ms)
    }

    #[test]
    fn each_node_has_one_run_in_every_period_and_none_without_a_run_before() {
        let slot = slot("n1", 10 * MINUTE);
        let open = |tick: i64| slot.is_open(Some(BootMs((tick - 1) * MINUTE)), BootMs(tick * MINUTE));
        for first in [1000, 1003, 1007] {
            assert_eq!((first..first + 10).filter(|tick| open(*tick)).count(), 1);
        }
        assert!(!slot.is_open(None, BootMs(MINUTE)));
        let late = slot.is_open(Some(BootMs(0)), BootMs(25 * MINUTE));
        assert!(late, "runs that stayed away do not lose it");
    }

    #[test]
    fn a_period_holds_five_runs_however_slow_they_come() {
        let cadence = |minutes: i64| Some(Cadence { median_ms: minutes * MINUTE, p90_ms: minutes * MINUTE });
        for (spread, minutes, want) in
            [(10, 1, 10), (10, 2, 10), (10, 3, 20), (10, 10, 50), (1, 1, 5), (0, 1, 0)]
        {
            assert_eq!(period_ms(spread * MINUTE, cadence(minutes)), want * MINUTE, "{spread} {minutes}");
        }
        assert_eq!(period_ms(10 * MINUTE, None), 10 * MINUTE);
    }

    #[test]
    fn nodes_of_any_names_come_at_all_moments_alike() {
        // nebius/soperator#2719, rwth-i6/sisyphus#108 (CT-03): every node at the same second.
        for form in ["n", "gpu-a", "node0"] {
            let mut ticks = [0; 10];
            for n in 0..10_000 {
                let next = slot(&format!("{form}{n:04}"), 10 * MINUTE).next_in_ms(BootMs(0));
                ticks[(next - 1).div_euclid(MINUTE) as usize] += 1;
            }
            assert!(ticks.iter().all(|n| (800..1200).contains(n)), "{form}: {ticks:?}");
        }
    }

    #[test]
    fn without_a_spread_every_run_may() {
        assert!(slot("n1", 0).is_open(None, BootMs(0)));
        assert_eq!(slot("n1", 0).next_in_ms(BootMs(5)), 0);
    }
}

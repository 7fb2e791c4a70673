//! What one unit's cumulative counters say of the time between two runs: no sample sees that time, they do. A
//! counter that went back, another driver, or a step that cannot be leave the interval unknown, never empty.

use crate::model::{Field, Observation, Peak, Tick};
use crate::reading::{Absence, Reading};
use crate::units::{BootMs, Milliwatts, Percent};

/// The highest utilization seen by instant or ring; absent only where the instant is.
pub fn peak(instant: Reading<Percent>, ring: &Reading<Peak>) -> Reading<Percent> {
    instant.map(|now| match ring {
        Reading::Measured(ring) => now.max(ring.percent),
        Reading::Absent(_) => now,
    })
}

/// One unit at one instant of a boot.
#[derive(Clone, Copy)]
pub struct Moment<'a> {
    /// When.
    pub at: BootMs,
    /// The driver's version then.
    pub driver: &'a Reading<String>,
    /// What the unit said.
    pub seen: &'a Observation,
}

impl Tick {
    /// One of its units.
    pub fn moment(&self, unit: usize) -> Moment<'_> {
        Moment { at: self.at, driver: &self.driver, seen: &self.units[unit] }
    }
}

/// What slowed a card and is no normal operation: hardware slow-down, heat, power brake. Not the power limit, sync
/// boost or application clocks, which healthy cards at work reach every day (Azure/azurehpc#595).
const SLOWED_BY: [Field; 4] =
    [Field::ThermalNs, Field::SwThermalNs, Field::HwThermalNs, Field::HwPowerBrakeNs];

/// Traffic of the card with host and peers.
const TRAFFIC: [(Field, u64); 4] = [
    (Field::PcieTxBytes, 1),
    (Field::PcieRxBytes, 1),
    (Field::NvlinkTxKib, 1024),
    (Field::NvlinkRxKib, 1024),
];

/// Below so many bytes a second a counter counts as flat: looking at a card is traffic too.
const FLAT_BYTES_PER_S: u64 = 64 << 10;

/// And above so many nobody only looks. Not measured on a GPU; it only ever keeps a slow cadence from being evidence.
const FED_BYTES_PER_S: u64 = 64 << 20;

fn elapsed_ms(before: Moment, after: Moment) -> Reading<u64> {
    let elapsed_ms = after.at.since_ms(before.at);
    let same_driver = before.driver.measured().is_some_and(|then| after.driver.measured() == Some(then));
    match u64::try_from(elapsed_ms) {
        Ok(ms) if ms > 0 && same_driver => Reading::Measured(ms),
        _ => Reading::Absent(Absence::CounterReset),
    }
}

fn rise(from: Reading<u64>, to: Reading<u64>) -> Reading<u64> {
    from.and_then(|from| {
        to.and_then(|to| {
            to.checked_sub(from).map_or(Reading::Absent(Absence::CounterReset), Reading::Measured)
        })
    })
}

/// Mean power over the whole interval, from the energy counter. Implausible above 1.5 times the limit.
pub fn mean_power(before: Moment, after: Moment) -> Reading<Milliwatts> {
    let energy = |m: Moment| m.seen.energy.map(|e| e.0);
    elapsed_ms(before, after).and_then(|ms| {
        // mJ per ms is W.
        let mean = rise(energy(before), energy(after)).map(|mj| Milliwatts(mj.saturating_mul(1000) / ms));
        match after.seen.power_limit {
            Reading::Measured(limit) => mean.plausible(|mean| mean.0 <= limit.0 + limit.0 / 2),
            Reading::Absent(_) => mean,
        }
    })
}

/// The share of the interval, in thousandths, in which the cause that slowed the card most did so. Absent where no
/// cause can be read. More time than there was is implausible.
pub fn slowed_permille(before: Moment, after: Moment) -> Reading<u64> {
    elapsed_ms(before, after).and_then(|ms| {
        let mut most: Reading<u64> = Reading::Absent(Absence::NotSupported);
        for cause in SLOWED_BY {
            let ns = rise(before.seen.fields.get(cause), after.seen.fields.get(cause));
            let share = ns.map(|ns| ns / 1000 / ms).plausible(|share| *share <= 1100);
            most = match (most, share) {
                (Reading::Measured(a), Reading::Measured(b)) => Reading::Measured(a.max(b)),
                (Reading::Absent(_), measured @ Reading::Measured(_)) => measured,
                (kept, Reading::Absent(_)) => kept,
            };
        }
        most
    })
}

/// Bytes a second between this card and host or peers, by the busiest counter. Absent where no counter can be read; a
/// counter that went back (it may have wrapped), or that could be read at one end only, spoils the answer.
fn bytes_per_s(before: Moment, after: Moment) -> Reading<u64> {
    elapsed_ms(before, after).and_then(|ms| {
        let mut busiest: Reading<u64> = Reading::Absent(Absence::NotSupported);
        for (counter, bytes) in TRAFFIC {
            let rose = rise(before.seen.fields.get(counter), after.seen.fields.get(counter));
            let rate = rose.map(|n| n.saturating_mul(bytes).saturating_mul(1000) / ms);
            busiest = match (busiest, rate) {
                (Reading::Measured(a), Reading::Measured(b)) => Reading::Measured(a.max(b)),
                (kept, Reading::Absent(Absence::NotSupported | Absence::NotRecorded)) => kept,
                (Reading::Absent(Absence::NotSupported), other) => other,
                (Reading::Absent(why), _) | (_, Reading::Absent(why)) => Reading::Absent(why),
            };
        }
        busiest
    })
}

/// Whether anything to speak of moved.
pub fn traffic(before: Moment, after: Moment) -> Reading<bool> {
    bytes_per_s(before, after).map(|rate| rate > FLAT_BYTES_PER_S)
}

/// Whether so much moved that somebody works with this card, whatever its instants say.
pub fn is_fed(before: Moment, after: Moment) -> bool {
    matches!(bytes_per_s(before, after), Reading::Measured(rate) if rate > FED_BYTES_PER_S)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Fields;
    use crate::units::Millijoules;

    fn seen(fields: &[(Field, u64)]) -> Observation {
        let mut all = Fields::absent(Absence::NotSupported);
        for (field, value) in fields {
            all.set(*field, Reading::Measured(*value));
        }
        Observation { fields: all, ..Observation::absent(Absence::NotSupported) }
    }

    /// Asks over one minute of one driver.
    fn over_a_minute<T>(
        ask: fn(Moment, Moment) -> Reading<T>,
        before: &Observation,
        after: &Observation,
    ) -> Reading<T> {
        let driver = Reading::Measured("580.95".to_owned());
        let at = |ms, seen| Moment { at: BootMs(ms), driver: &driver, seen };
        ask(at(1_000, before), at(61_000, after))
    }

    #[test]
    fn the_mean_speaks_for_the_whole_interval_or_not_at_all() {
        let energy = |mj| Observation { energy: Reading::Measured(Millijoules(mj)), ..seen(&[]) };
        let limited = |mj| Observation { power_limit: Reading::Measured(Milliwatts(700_000)), ..energy(mj) };
        let mean = |a: &Observation, b: &Observation| over_a_minute(mean_power, a, b);
        assert_eq!(mean(&energy(0), &energy(60 * 118_000)), Reading::Measured(Milliwatts(118_000)));
        assert_eq!(mean(&energy(9), &energy(8)), Reading::Absent(Absence::CounterReset));
        assert_eq!(mean(&energy(0), &limited(60 * 1_051_000)), Reading::Absent(Absence::Implausible));
        assert_eq!(mean(&energy(0), &seen(&[])), Reading::Absent(Absence::NotSupported));
        let (a, b) = (Reading::Measured("570.1".to_owned()), Reading::Measured("580.1".to_owned()));
        let (x, y) = (energy(0), energy(60_000));
        let of = |at, driver, seen| Moment { at: BootMs(at), driver, seen };
        assert_eq!(mean_power(of(0, &a, &x), of(1, &b, &y)), Reading::Absent(Absence::CounterReset));
        assert_eq!(mean_power(of(5, &a, &x), of(5, &a, &y)), Reading::Absent(Absence::CounterReset));
    }

    #[test]
    fn the_power_limit_slows_nobody_and_heat_does() {
        // Azure/azurehpc#595 (TH-02): the power cap, idle and application clocks are normal.
        const SECOND: u64 = 1_000_000_000;
        let table = [
            (vec![(Field::PowerCapNs, 60 * SECOND)], Reading::Absent(Absence::NotSupported)),
            (vec![(Field::SyncBoostNs, 60 * SECOND)], Reading::Absent(Absence::NotSupported)),
            (vec![(Field::HwPowerBrakeNs, 60 * SECOND)], Reading::Measured(1000)),
            (vec![(Field::HwThermalNs, 6 * SECOND), (Field::ThermalNs, 30 * SECOND)], Reading::Measured(500)),
            (vec![(Field::HwThermalNs, 0)], Reading::Measured(0)),
            (vec![(Field::HwThermalNs, 70 * SECOND)], Reading::Absent(Absence::NotSupported)),
        ];
        for (fields, want) in table {
            let start: Vec<_> = fields.iter().map(|(f, _)| (*f, 0)).collect();
            let got = over_a_minute(slowed_permille, &seen(&start), &seen(&fields));
            assert_eq!(got, want, "{fields:?}");
        }
    }

    #[test]
    fn a_counter_that_went_back_is_no_silence_on_the_wires() {
        let traffic = |before: &[(Field, u64)], after: &[(Field, u64)]| {
            over_a_minute(super::traffic, &seen(before), &seen(after))
        };
        let (tx, rx) = (Field::PcieTxBytes, Field::NvlinkRxKib);
        assert_eq!(traffic(&[], &[]), Reading::Absent(Absence::NotSupported));
        assert_eq!(traffic(&[(tx, 5)], &[(tx, 1_000_005)]), Reading::Measured(false), "16 kB/s");
        assert_eq!(traffic(&[(tx, 5)], &[(tx, 10_000_005)]), Reading::Measured(true));
        assert_eq!(traffic(&[(tx, 5), (rx, 5)], &[(tx, 5), (rx, 10_005)]), Reading::Measured(true));
        assert_eq!(traffic(&[(tx, 5), (rx, 5)], &[(tx, 4), (rx, 5)]), Reading::Absent(Absence::CounterReset));
        assert_eq!(traffic(&[(rx, 5)], &[(tx, 5), (rx, 5)]), Reading::Measured(false));
    }
}

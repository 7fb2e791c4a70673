//! What is said where no full window of waste is certified: alive if work was seen, else what is lacking.

use super::*;

impl Bench<'_> {
    /// No full window: alive where work was seen, else not judged, with what is lacking.
    pub(super) fn not_established(
        &self,
        series: &Series,
        quiet: &[Stretch],
        units: &[UnitRef],
        limits: &Limits,
    ) -> Judgement {
        let newest = quiet.iter().enumerate().filter_map(|(u, s)| match s.ended {
            Ended::Work { at, peak_pct } => Some((at, peak_pct, u)),
            _ => None,
        });
        let window_ms = limits.window_ms;
        if let Some((at, peak_pct, u)) = newest.max_by_key(|(at, _, _)| *at) {
            let ago_ms = self.now.boot.since_ms(at);
            if ago_ms <= window_ms {
                let by_energy = "power well above rest".to_owned();
                let how = match peak_pct {
                    Reading::Measured(p) if p >= self.rules.thresholds.util_pct => format!("{p} %"),
                    _ => by_energy,
                };
                let when = if ago_ms == 0 { "now".to_owned() } else { format!("{} ago", human_ms(ago_ms)) };
                return Judgement::Alive { because: format!("GPU {} at {how} {when}", units[u].index) };
            }
        }
        let from = quiet.iter().map(|s| s.from).max().unwrap_or(usize::MAX);
        let culprit = quiet.iter().position(|s| s.from == from);
        let lacking = window::certify(series, from, self.now.boot).err();
        self.lacking(lacking, culprit.map(|u| (&quiet[u].ended, &units[u])), limits)
    }

    fn lacking(
        &self,
        lacking: Option<Lacking>,
        ended: Option<(&Ended, &UnitRef)>,
        limits: &Limits,
    ) -> Judgement {
        let window = human_ms(limits.window_ms);
        match (lacking, ended) {
            (Some(Lacking::Stale(i64::MAX)), _) => {
                unjudged(Guard::Gap, "no sample of this job run yet".to_owned())
            }
            (_, Some((Ended::Unreadable(why), _))) if why.is_collector_fault() => {
                let window = human_ms(limits.window_ms);
                unjudged(
                    Guard::Gap,
                    format!("a collector fault: {}; a new window of {window} is needed", why.words()),
                )
            }
            (_, Some((Ended::Unreadable(why), unit))) => unjudged(
                Guard::Peak,
                format!("utilization of GPU {} not readable: {}", unit.index, self.why_unreadable(*why)),
            ),
            (Some(Lacking::Stale(ms)), _) => {
                unjudged(Guard::Gap, format!("the last sample is {} old", human_ms(ms)))
            }
            (_, Some((Ended::Hole(ms), _))) => unjudged(
                Guard::Gap,
                format!("a hole of {} in the samples; a new window of {window} has begun", human_ms(*ms)),
            ),
            (_, Some((Ended::Frozen, _))) => unjudged(
                Guard::JobState,
                format!("was suspended or frozen; a new window of {window} has begun"),
            ),
            (_, Some((Ended::Sparse, _))) => unjudged(
                Guard::Sparse,
                "runs come too rarely, and neither the driver's own samples nor the energy counter cover the time between"
                    .to_owned(),
            ),
            (Some(Lacking::Few(n)), _) => {
                unjudged(Guard::Window, format!("{n} samples, a window needs {}", limits.min_samples))
            }
            (Some(Lacking::Short(ms)), _) => {
                unjudged(Guard::Window, format!("{} of a window of {window} so far", human_ms(ms)))
            }
            (None, _) => unjudged(Guard::Window, "no full window".to_owned()),
        }
    }

    fn why_unreadable(&self, why: Absence) -> String {
        let mig = self.history.ticks.last().is_some_and(|t| {
            t.units.iter().any(|o| o.mig == Reading::Measured(crate::model::MigMode::Enabled))
        });
        if mig && why == Absence::NotSupported {
            "not supported under MIG".to_owned()
        } else {
            why.words().to_owned()
        }
    }
}

//! The most that a finding may ask for, and the guard that says so.

use super::*;
use crate::model::{MigMode, Observation};

impl Bench<'_> {
    /// The most this finding may ask for, and who says so.
    pub(super) fn cap(
        &mut self,
        series: &Series,
        units: &[usize],
        scope: Scope,
        signature: Signature,
    ) -> (Verdict, Option<(Guard, String)>) {
        let mut capped = None;
        let most = signature.most(self.rules);
        let by_signature = format!("`{signature}` may ask for {most} at most");
        self.note(Guard::SignatureCap, signature.word(), format!("at most {most}"), most == Verdict::Alert);
        if most == Verdict::Alert {
            capped = Some((Guard::SignatureCap, by_signature));
        }
        if scope == Scope::Part {
            capped = Some((Guard::WholeJob, "other units of the job work".to_owned()));
        }
        if let Some(because) = self.never_active(series) {
            capped = Some((Guard::Warmup, because));
        }
        if matches!(signature, Signature::Hung | Signature::Spinning)
            && let Some(because) = self.host_activity(series, units)
        {
            capped = Some((Guard::HostActivity, because));
        }
        if let Some(because) = self.blind_spot(series, units) {
            capped = Some(because);
        }
        (if capped.is_some() { Verdict::Alert } else { most }, capped)
    }

    /// What nobody could see over the newest window, and what a deed must not rest on.
    fn blind_spot(&mut self, series: &Series, units: &[usize]) -> Option<(Guard, String)> {
        let window = &series.ticks[series.window_start()..];
        if let Some(why) = window.iter().find_map(|tick| tick.job.frozen.absence()) {
            let because = format!("whether its processes were frozen is not known: {}", why.words());
            self.note(Guard::JobState, because.clone(), "running, not frozen, all the time", true);
            return Some((Guard::JobState, because));
        }
        let is_instance = |u: &usize| window.last().is_some_and(|tick| is_split(&tick.units[*u]));
        units.iter().any(is_instance).then(|| {
            // No ring, no energy and no power can veto what GPM says (NVIDIA/dcgm-exporter#216: 0 under MIG).
            let because = "an instance is seen by GPM alone, a tenth of a second a run".to_owned();
            self.note(Guard::Peak, because.clone(), "more than one instrument", true);
            (Guard::Peak, because)
        })
    }

    /// Whether this job run has ever been seen at work.
    pub(super) fn was_active(&self, series: &Series) -> bool {
        let works = |l: &Level| matches!(l, Level::Busy | Level::Throttled);
        self.history.job.first_activity.is_some() || series.levels.iter().flatten().any(works)
    }

    fn never_active(&mut self, series: &Series) -> Option<String> {
        let active = self.was_active(series);
        let grace_ms = self.rules.thresholds.first_activity_grace_ms;
        let holds = !active && self.age_ms() < grace_ms;
        holds.then(|| {
            let because = format!("never active yet, and only {} old", human_ms(self.age_ms()));
            self.note(
                Guard::Warmup,
                because.clone(),
                format!("only alerted on until {}", human_ms(grace_ms)),
                true,
            );
            because
        })
    }

    fn host_activity(&mut self, series: &Series, units: &[usize]) -> Option<String> {
        let activity = host_activity::over_window(series, series.ticks.len() - 1, units);
        let (saw, held) = match &activity {
            Reading::Measured(a) => (a.words(), a.works()),
            Reading::Absent(why) => (format!("not readable: {}", why.words()), false),
        };
        self.note(Guard::HostActivity, saw.clone(), "1.5 cores per GPU process, 1 MiB/s written", held);
        held.then(|| format!("a CPU phase: {saw}"))
    }
}

fn is_split(seen: &Observation) -> bool {
    seen.mig == Reading::Measured(MigMode::Enabled)
}

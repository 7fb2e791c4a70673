//! The configuration that the nodes of the lab run with: the real ladder, shortened to seconds. Intervals are
//! 3 s, so a hung job is found after some 24 s, and its node drained 6 s later.

/// Longer than any gap between two runs that is no hole, by [`ENFORCE`].
pub const MAX_SAMPLE_GAP_MS: i64 = 9_000;

/// After so many runs of a job the whole ladder would have been climbed, had nothing kept the program from it:
/// (warm-up 3 s + window 18 s + last stage 12 s) / 3 s, and two more.
pub const RUNS_TO_CANCEL: i64 = 13;

/// What a test may change.
pub struct Settings {
    /// `observe` or `enforce`.
    pub mode: &'static str,
    /// `thresholds.window`: at least twice the allowed gap, else the program shortens that.
    pub window: &'static str,
    /// `thresholds.max_sample_gap`.
    pub max_sample_gap: &'static str,
    /// How long after it is found a job's node is drained, and the job cancelled.
    pub stages: [&'static str; 2],
    /// `thresholds.warmup`.
    pub warmup: &'static str,
    /// `gpu.deadline`.
    pub deadline: &'static str,
    /// `exemptions.users`, the text between the brackets.
    pub exempt_users: &'static str,
    /// `epilog.verify`: how long an Epilog looks again.
    pub verify: &'static str,
    /// `epilog.on_leak`.
    pub on_leak: &'static str,
}

/// Says what it would do.
pub const OBSERVE: Settings = Settings {
    mode: "observe",
    window: "18s",
    max_sample_gap: "9s",
    stages: ["6s", "12s"],
    warmup: "3s",
    deadline: "10s",
    exempt_users: "",
    verify: "0s",
    on_leak: "alert",
};

/// Does it.
pub const ENFORCE: Settings = Settings { mode: "enforce", ..OBSERVE };

/// Does it soon: found after some 13 s, drained and cancelled in the runs after that.
pub const SOON: Settings = Settings { window: "10s", max_sample_gap: "5s", stages: ["1s", "2s"], ..ENFORCE };

impl Settings {
    /// config.yaml.
    pub fn yaml(&self) -> String {
        let Settings {
            mode,
            window,
            max_sample_gap,
            stages: [drain, cancel],
            warmup,
            deadline,
            exempt_users,
            verify,
            on_leak,
        } = self;
        format!(
            "mode: {mode}
gpu: {{ library: /var/lib/stand-in/libnvidia-ml.so.1, deadline: {deadline} }}
thresholds:
  window: {window}
  warmup: {warmup}
  first_activity_grace: 3s
  min_samples: 3
  max_sample_gap: {max_sample_gap}
stages:
  - {{ after: 0s, verdict: alert }}
  - {{ after: {drain}, verdict: drain }}
  - {{ after: {cancel}, verdict: cancel }}
exemptions: {{ users: [{exempt_users}] }}
limits: {{ spread: 0s, max_drained_fraction: 1.0, max_actions_per_hour: 100 }}
epilog: {{ verify: {verify}, on_leak: {on_leak} }}
"
        )
    }
}

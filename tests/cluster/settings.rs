//! The configuration that the nodes of the lab run with: the real ladder, shortened to seconds. Intervals are
//! 3 s, so a hung job is found after some 24 s, and its node drained 6 s later.

/// Longer than any gap between two runs that is no hole, by this configuration.
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
    /// `thresholds.warmup`.
    pub warmup: &'static str,
    /// `gpu.deadline`.
    pub deadline: &'static str,
    /// `exemptions.users`, the text between the brackets.
    pub exempt_users: &'static str,
}

/// Says what it would do.
pub const OBSERVE: Settings =
    Settings { mode: "observe", window: "18s", warmup: "3s", deadline: "10s", exempt_users: "" };

/// Does it.
pub const ENFORCE: Settings = Settings { mode: "enforce", ..OBSERVE };

impl Settings {
    /// config.yaml.
    pub fn yaml(&self) -> String {
        let Settings { mode, window, warmup, deadline, exempt_users } = self;
        format!(
            "mode: {mode}
gpu: {{ library: /var/lib/stand-in/libnvidia-ml.so.1, deadline: {deadline} }}
thresholds:
  window: {window}
  warmup: {warmup}
  first_activity_grace: 3s
  min_samples: 3
  max_sample_gap: {}s
stages:
  - {{ after: 0s, verdict: alert }}
  - {{ after: 6s, verdict: drain }}
  - {{ after: 12s, verdict: cancel }}
exemptions: {{ users: [{exempt_users}] }}
limits: {{ spread: 0s, max_drained_fraction: 1.0, max_actions_per_hour: 100 }}
",
            MAX_SAMPLE_GAP_MS / 1000
        )
    }
}

//! The text file for node_exporter's textfile collector: what is in it, how it is written, and how it takes the place of
//! the last one. Decides nothing, and names no job, user or GPU: a label that grows without end costs a site its
//! Prometheus.
//!
//! - **Types.** `gpu_reaper_wasted_gpu_hours` and `gpu_reaper_blocked_gpu_hours` only grow, as a counter does. `promtool
//!   check metrics` refuses a counter whose name does not end in `_total`, and a gauge would say that `rate()` makes no
//!   sense: they are `untyped`, which says nothing wrong. That hours are no base unit is what it says of these two, and
//!   all that it says.
//! - **Series stay.** What is of a closed list (deeds, sources, kinds of faults) is there from the first file on, as 0.
//!   Partitions and signatures cannot be known before: each pair that ever had a finding in this ledger stays, with 0 while
//!   it has none. Counters begin anew with a new ledger.
//! - **No fsync.** After a power cut the file is old or empty, and its timestamp is the alarm, as after a run that was
//!   killed.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// A metric: its name without [`PREFIX`], type, labels, and what it says.
pub struct Metric {
    /// The name without its prefix.
    pub name: &'static str,
    /// Prometheus' type.
    pub kind: &'static str,
    /// Its labels, in order.
    pub labels: &'static [&'static str],
    /// The HELP line.
    pub help: &'static str,
}

/// How every name begins.
pub const PREFIX: &str = "gpu_reaper_";

macro_rules! metrics {
    ($($name:ident: $text:literal $kind:literal [$($label:literal)*] $help:literal;)*) => {
        /// Which metric.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each says in its HELP what it is")]
        pub enum Name { $($name),* }
        /// Every metric, in the order of the file.
        pub const METRICS: &[Metric] = &[
            $(Metric { name: $text, kind: $kind, labels: &[$($label),*], help: $help }),*
        ];
    };
}

metrics! {
    Info: "info" "gauge" ["version" "mode"] "The program that wrote this file, and its mode.";
    LastRun: "last_run_timestamp_seconds" "gauge" [] "When the last run came to its end: an old one is the alarm.";
    Interval: "run_interval_seconds" "gauge" [] "How often runs come, their median; absent while that is not known.";
    Duration: "scrape_duration_seconds" "histogram" [] "What each run took, up to this file.";
    ScrapeErrors: "scrape_errors_total" "counter" ["source"] "Times that a source could not be read.";
    JobsEvaluated: "jobs_evaluated" "gauge" [] "Jobs that hold GPUs here and were looked at by the last run.";
    Findings: "findings" "gauge" ["verdict" "signature" "partition"]
        "Jobs found to be wasted now, by the stage that is due as far as their signature may ask.";
    HeldBreaching: "gpus_held_breaching" "gauge" ["partition" "signature"] "GPUs that such jobs hold now.";
    Wasted: "wasted_gpu_hours" "untyped" ["partition" "signature"]
        "Certified wasted GPU-hours since the ledger began; only grows, and is never projected.";
    Blocked: "blocked_gpu_hours" "untyped" []
        "GPU-hours that nobody could use under our own drains since the ledger began; only grows.";
    Actions: "actions_total" "counter" ["actor" "verdict" "enforced"]
        "Deeds seen to be done (enforced), and those withheld, once a job run.";
    ActionErrors: "action_errors_total" "counter" ["actor"]
        "Deeds and messages that failed, or of which it is not known how they ended.";
    SharedNode: "skipped_shared_node_total" "counter" [] "Drains that `mode: enforce` withheld because the job shares its node, once a job run.";
    OrphanDrains: "orphan_drains" "gauge" [] "Drains of ours here that this boot or ledger does not know.";
    Faults: "faults" "gauge" ["kind"] "Faults of the node that are open, acknowledged ones too.";
}

impl Name {
    /// What is said of it.
    pub fn metric(self) -> &'static Metric {
        &METRICS[self as usize]
    }
}

/// A number as it is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// As it is.
    Whole(u64),
    /// Milliseconds, shown as seconds.
    Seconds(i64),
    /// Milliseconds, shown as hours.
    Hours(u64),
}

/// Runs by what they took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Upper bound of each class, milliseconds, and how many runs lie in it alone.
    pub classes: Vec<(u32, u64)>,
    /// How many lie beyond the last.
    pub beyond: u64,
    /// What they took in all, microseconds.
    pub sum_us: u64,
}

/// What the file says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// Every sample but the histogram's: its metric, its labels' values in the metric's order, its number.
    pub samples: Vec<(Name, Vec<String>, Number)>,
    /// [`Name::Duration`].
    pub took: Histogram,
}

impl Page {
    /// Adds a sample.
    pub fn say(&mut self, name: Name, labels: &[&str], number: Number) {
        debug_assert_eq!(labels.len(), name.metric().labels.len(), "{name:?}");
        self.samples.push((name, labels.iter().map(|label| (*label).to_owned()).collect(), number));
    }

    /// The whole file, in Prometheus' text format.
    pub fn text(&self) -> String {
        let mut text = String::with_capacity(8 << 10);
        for (at, metric) in METRICS.iter().enumerate() {
            let Metric { name, kind, help, .. } = metric;
            text += &format!("# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} {kind}\n");
            if at == Name::Duration as usize {
                text += &self.took.text(name);
            }
            for (_, labels, number) in self.samples.iter().filter(|(name, ..)| *name as usize == at) {
                text += PREFIX;
                text += name;
                let pairs = metric.labels.iter().zip(labels);
                let pairs: Vec<String> =
                    pairs.map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
                if !pairs.is_empty() {
                    text += &format!("{{{}}}", pairs.join(","));
                }
                text += &match number {
                    Number::Whole(n) => format!(" {n}\n"),
                    Number::Seconds(ms) => format!(" {}\n", *ms as f64 / 1000.0),
                    Number::Hours(ms) => format!(" {}\n", *ms as f64 / 3_600_000.0),
                };
            }
        }
        text
    }
}

impl Histogram {
    fn text(&self, name: &str) -> String {
        let (mut text, mut runs) = (String::new(), 0);
        for (bound_ms, count) in &self.classes {
            runs += count;
            let bound = f64::from(*bound_ms) / 1000.0;
            text += &format!("{PREFIX}{name}_bucket{{le=\"{bound}\"}} {runs}\n");
        }
        runs += self.beyond;
        let sum = self.sum_us as f64 / 1e6;
        text + &format!(
            "{PREFIX}{name}_bucket{{le=\"+Inf\"}} {runs}\n{PREFIX}{name}_sum {sum}\n{PREFIX}{name}_count {runs}\n"
        )
    }
}

/// A label's value: the three characters that the format cannot hold as they are.
fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '\\' => text += "\\\\",
            '"' => text += "\\\"",
            '\n' => text += "\\n",
            c => text.push(c),
        }
    }
    text
}

/// Puts a text in a file's place, whole or not at all, readable by everybody. What a killed run left goes with the next
/// one: the name in between is always the same, and no `.prom`, which alone the collector reads. In a folder of somebody
/// else's nothing is written through a link that lies there.
///
/// # Errors
///
/// One line, with the file's name; the file is then what it was before.
pub fn put(file: &Path, text: &str) -> Result<(), String> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let new = file.with_file_name(format!(".{name}.new"));
    let done = write_new(&new, text).and_then(|()| fs::rename(&new, file));
    if done.is_err() {
        let _ = fs::remove_file(&new);
    }
    done.map_err(|e| format!("`{}`: {e}", file.display()))
}

fn write_new(new: &Path, text: &str) -> io::Result<()> {
    let create = || OpenOptions::new().write(true).create_new(true).mode(0o644).open(new);
    let mut file = match create() {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            fs::remove_file(new)?;
            create()?
        }
        other => other?,
    };
    file.write_all(text.as_bytes())?;
    // Whatever the umask: node_exporter is nobody's group.
    file.set_permissions(Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_its_help_and_type_and_labels_are_escaped() {
        let mut page = Page::default();
        page.say(Name::Wasted, &["a\\b\"c\nd{}=,", "hung"], Number::Hours(5_400_000));
        page.say(Name::LastRun, &[], Number::Seconds(1_764_422_738_123));
        let text = page.text();
        assert!(text.contains(
            "gpu_reaper_wasted_gpu_hours{partition=\"a\\\\b\\\"c\\nd{}=,\",signature=\"hung\"} 1.5\n"
        ));
        assert!(text.contains("\ngpu_reaper_last_run_timestamp_seconds 1764422738.123\n"));
        for Metric { name, kind, .. } in METRICS {
            assert!(text.contains(&format!("\n# TYPE gpu_reaper_{name} {kind}\n")), "{name}");
        }
        assert!(text.ends_with('\n'));
    }

    #[test]
    fn classes_of_a_histogram_are_summed_up() {
        let took = Histogram { classes: vec![(25, 3), (50, 0), (1000, 2)], beyond: 1, sum_us: 61_500_000 };
        let text = Page { took, ..Page::default() }.text();
        let lines: Vec<&str> =
            text.lines().filter(|line| line.starts_with("gpu_reaper_scrape_duration")).collect();
        let want = [
            "_bucket{le=\"0.025\"} 3",
            "_bucket{le=\"0.05\"} 3",
            "_bucket{le=\"1\"} 5",
            "_bucket{le=\"+Inf\"} 6",
        ];
        let want = want.iter().chain(["_sum 61.5", "_count 6"].iter());
        let want: Vec<String> = want.map(|end| format!("gpu_reaper_scrape_duration_seconds{end}")).collect();
        assert_eq!(lines, want);
    }

    #[test]
    fn the_file_is_replaced_whole_whatever_lies_in_its_way() {
        let dir = tempfile::tempdir().unwrap();
        let (file, new) = (dir.path().join("gpu_reaper.prom"), dir.path().join(".gpu_reaper.prom.new"));
        let elsewhere = dir.path().join("elsewhere");
        fs::write(&elsewhere, "somebody's").unwrap();
        // What a killed run left, and a link that somebody laid there.
        fs::write(&new, "half").unwrap();
        put(&file, "one\n").unwrap();
        std::os::unix::fs::symlink(&elsewhere, &new).unwrap();
        put(&file, "two\n").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "two\n");
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "somebody's");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing else is left");
        let error = put(&dir.path().join("gone/x.prom"), "").unwrap_err();
        assert!(error.contains("gone/x.prom`: No such file"), "{error}");
    }
}

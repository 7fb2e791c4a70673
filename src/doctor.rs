//! `doctor`: looks at a site's set-up at installation and says what is wrong and which line mends it. The whole look comes
//! first, then each check says what it means; no check looks anything up. Changes nothing, starts nothing but Slurm's own
//! questions, initialises no GPU, and what could not be looked at is never `ok`.

mod confinement;
mod daemon;
mod gpus;
mod gres;
mod hooks;
mod interval;
mod look;
mod metrics;
mod others;
mod reach;
mod report;
mod scripts;
mod settings;
mod slot;
mod state;
#[cfg(test)]
mod testing;

pub use look::Asked;
pub use report::Report;

use look::Found;
use report::Line;

/// The checks, in the order in which they are told.
const CHECKS: [fn(&Found) -> Vec<Line>; 25] = [
    reach::slurmd,
    settings::drift,
    slot::slot,
    interval::node_state,
    interval::interval,
    interval::time_limit,
    hooks::prolog,
    hooks::epilog,
    hooks::flags,
    gpus::gpus,
    gpus::persistence,
    confinement::devices,
    confinement::tracking,
    confinement::accounting,
    reach::node_name,
    reach::conf_for_commands,
    reach::commands,
    others::others,
    state::configuration,
    state::folder,
    state::last_run,
    state::journal,
    state::channels,
    metrics::metrics,
    included,
];

/// Looks at the site and says how it stands.
pub fn doctor(asked: &Asked) -> Report {
    examine(&look::look(asked))
}

fn examine(found: &Found) -> Report {
    Report { node: found.node.clone(), lines: CHECKS.iter().flat_map(|check| check(found)).collect() }
}

/// Files that slurm.conf includes and that could not be read: what they say of anything is not known.
fn included(found: &Found) -> Vec<Line> {
    let unread = found.confs.conf().map(|conf| conf.unread.clone()).unwrap_or_default();
    let line =
        |what: String| Line::unknown("include", what, "what that file says of any of the above is not known");
    unread.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::report::Level;
    use super::testing::{right, shown_with, silent};
    use super::*;
    use crate::slurm::conf::Conf;
    use crate::slurm::shown::Shown;
    use std::path::Path;

    #[test]
    fn where_everything_is_right_everything_is_ok() {
        let report = examine(&right());
        let amiss: Vec<_> = report.lines.iter().filter(|line| line.level != Level::Ok).collect();
        assert!(amiss.is_empty(), "{amiss:#?}");
        assert_eq!(report.exit_status(), 0);
    }

    #[test]
    fn nothing_is_ok_where_nothing_could_be_looked_at() {
        let mut found = silent("");
        found.confs.used = None;
        found.confs.default = None;
        found.confs.cgroup = crate::host::files::Look::Unknown("Permission denied".to_owned());
        found.slurmd = daemon::Slurmd::Unknown("not permitted".to_owned());
        (found.gpus, found.state, found.others, found.program) = (None, None, None, None);
        found.root = false;
        for check in CHECKS {
            for line in check(&found) {
                let own = ["journal", "metrics", "configuration", "commands"].contains(&line.check);
                let by_commands = line.check == "version";
                assert!(own || by_commands || line.level != Level::Ok, "{line:?}");
            }
        }
    }

    #[test]
    fn every_line_that_is_no_ok_says_what_it_means_and_a_fault_how_to_mend_it() {
        let silent = examine(&silent("NodeName=n1\n"));
        let odd = |key: &str, value: &str| {
            let mut found = right();
            found.shown = shown_with(&[(key, value)]);
            examine(&found)
        };
        let reports = [
            silent,
            odd("HealthCheckProgram", "(null)"),
            odd("HealthCheckInterval", "0 sec"),
            odd("HealthCheckNodeState", "IDLE"),
            odd("TaskPlugin", "task/none"),
            odd("ProctrackType", "proctrack/linuxproc"),
        ];
        for line in reports.iter().flat_map(|report| &report.lines) {
            assert!(line.level == Level::Ok || !line.means.is_empty(), "{line:?}");
            let named = [Level::Fault, Level::Warning].contains(&line.level);
            assert!(!named || !line.change.is_empty(), "{line:?}");
        }
        assert!(reports.iter().skip(1).all(|report| report.exit_status() > 0));
    }

    #[test]
    fn the_recorded_files_say_what_the_recorded_slurmctld_says() {
        for version in ["22.05.8", "24.11.5", "26.05.5"] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/slurm").join(version);
            let mut found = right();
            let text = std::fs::read_to_string(folder.join("show-config.out")).unwrap();
            found.shown = Ok(Shown::parse(&text).unwrap());
            let used = found.confs.used.as_mut().unwrap();
            used.conf = crate::host::files::Look::Is(Conf::read(&folder.join("slurm.conf")).unwrap());
            let lines = settings::drift(&found);
            assert_eq!(testing::levels_of(&lines), [Level::Ok], "{version}: {lines:?}");
            // Where the file was changed since.
            let changed = std::fs::read_to_string(folder.join("slurm.conf")).unwrap();
            let changed = changed.replace("HealthCheckInterval=5", "HealthCheckInterval=60");
            let used = found.confs.used.as_mut().unwrap();
            used.conf = crate::host::files::Look::Is(Conf::of(&folder.join("slurm.conf"), &changed));
            let lines = settings::drift(&found);
            assert_eq!(testing::levels_of(&lines), [Level::Warning], "{version}: {lines:?}");
            assert!(
                lines[0].found.contains("HealthCheckInterval is 5 sec at slurmctld and 60 in"),
                "{lines:?}"
            );
        }
    }
}

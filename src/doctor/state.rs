//! Where a run keeps what it knows, and whether runs come.

use super::look::{Channel, Found, Runs, State};
use super::report::{Change, Line};
use super::settings::{Key, seconds};
use crate::host::files::{Disk, DiskKind, Look};
use crate::model::Cadence;
use crate::policy::window;
use crate::units::human_ms;
use crate::units::quantity::size_text;
use std::path::Path;

/// So many times its interval a run may be late before it counts as missing.
pub(super) const LATE: i64 = 3;
/// The interval where nobody says one.
const USUAL_INTERVAL_MS: i64 = 60_000;

/// The state folder: on a disk of this host's, root's alone, with room.
pub fn folder(found: &Found) -> Vec<Line> {
    const CHECK: &str = "state";
    let asked = found.config.state_dir.display();
    let Some(state) = &found.state else {
        let means =
            "a file server that is gone holds every run that touches it: keep the ledger on a local disk";
        let mend = found.configure("state_dir", "/var/lib/gpu-reaper-hc");
        return vec![
            Line::fault(CHECK, format!("`{asked}` did not answer within 5 s"), means).mended_by([mend]),
        ];
    };
    let shown = state.folder.display();
    let what = match state.made || matches!(state.disk, Look::Unknown(_)) {
        true => format!("`{shown}`"),
        false if state.folder == found.config.state_dir => {
            format!("`{asked}`; this node's folder is to be made in it")
        }
        false => format!("`{asked}`, to be made in `{shown}`"),
    };
    if !state.is_folder {
        let mend = Change::run(format!("mv {shown} {shown}.old"));
        let what = format!("`{shown}`");
        return vec![
            Line::fault(
                CHECK,
                what,
                "it is no folder: no run can keep anything, and none judges or does anything",
            )
            .mended_by([mend]),
        ];
    }
    let disk = match &state.disk {
        Look::Is(disk) => disk,
        Look::NotThere => return vec![Line::unknown(CHECK, what, "its disk could not be looked at")],
        Look::Unknown(why) => {
            return vec![Line::unknown(CHECK, format!("{what}: {why}"), "its disk could not be looked at")];
        }
    };
    let mut lines: Vec<Line> =
        kind(found, disk, &what).into_iter().chain(room(found, state, disk, &what)).collect();
    match &state.changeable {
        Look::Is(None) | Look::NotThere => {}
        Look::Is(Some(why)) => {
            let means = format!(
                "{why}: whoever can write there decides what is judged, and root opens what they put there"
            );
            let mend = Change::run(format!("chown root:root {shown} && chmod go-w {shown}"));
            lines.push(Line::fault(CHECK, &what, means).mended_by([mend]));
        }
        Look::Unknown(why) => {
            lines.push(Line::unknown(
                CHECK,
                format!("{what}: {why}"),
                "whether others can change it is not known",
            ));
        }
    }
    if lines.is_empty() {
        let name = disk.kind().map_or("", |(name, _)| name);
        let free = free_text(disk);
        lines.push(Line::ok(CHECK, what, format!("on {name}, {free} free, root's alone")));
    }
    lines
}

/// The kind of disk, where it is not a local one.
fn kind(found: &Found, disk: &Disk, what: &str) -> Option<Line> {
    const CHECK: &str = "state";
    let mend = || [found.configure("state_dir", "/var/lib/gpu-reaper-hc")];
    Some(match disk.kind() {
        Some((_, DiskKind::Local)) => return None,
        Some((name, DiskKind::Network)) => {
            let means = "a file server that is gone holds every run in the kernel, past every limit, and its locks are not \
                         this node's alone: a local disk is needed";
            Line::fault(CHECK, format!("{what} is on {name}"), means).mended_by(mend())
        }
        Some((name, DiskKind::Memory)) => {
            let means = "it is lost at each boot, with the drains that we made: those are then lifted by hand, or with \
                         act.release_orphans; and it takes memory from jobs";
            Line::warning(CHECK, format!("{what} is on {name}"), means).mended_by(mend())
        }
        Some((name, DiskKind::Layered)) => {
            let means =
                "what lies beneath decides whether it outlives a boot, and that cannot be seen from here";
            Line::unknown(CHECK, format!("{what} is on {name}"), means)
        }
        None => {
            let means = "whether that is a disk of this host's is not known";
            Line::unknown(CHECK, format!("{what} is on a file system of type 0x{:x}", disk.magic), means)
        }
    })
}

/// Rounded down: half a MiB more or less says nothing.
fn free_text(disk: &Disk) -> String {
    let unit = if disk.free_bytes >= 10 << 30 { 30 } else { 20 };
    size_text(disk.free_bytes >> unit << unit)
}

/// Whether the ledger can grow to what it may hold.
fn room(found: &Found, state: &State, disk: &Disk, what: &str) -> Option<Line> {
    const CHECK: &str = "state";
    if disk.read_only {
        let mend = Change::run(format!("mount -o remount,rw {}", state.folder.display()));
        let means = "it is mounted read-only: no run can keep anything";
        return Some(Line::fault(CHECK, what, means).mended_by([mend]));
    }
    let most = found.config.history.max_size_bytes;
    let wanted = most.saturating_sub(state.ledger_bytes);
    if disk.free_bytes >= wanted {
        return None;
    }
    let free = size_text(disk.free_bytes >> 20 << 20);
    let means = format!(
        "{free} are free, the ledger may grow to {}: once the disk is full nothing is judged",
        size_text(most)
    );
    Some(Line::warning(CHECK, what, means).mended_by([found.configure("history.max_size", "16MiB")]))
}

/// How often slurmd starts a run.
pub(super) fn interval_ms(found: &Found) -> i64 {
    let said_ms = found.key("HealthCheckInterval").value().and_then(seconds).map(|s| s as i64 * 1000);
    said_ms.filter(|ms| *ms > 0).unwrap_or(USUAL_INTERVAL_MS)
}

/// Whether runs come, and how the last one ended.
pub fn last_run(found: &Found) -> Vec<Line> {
    const CHECK: &str = "last-run";
    let Some(state) = &found.state else {
        return vec![Line::unknown(
            CHECK,
            "the state folder did not answer",
            "whether runs come is not known",
        )];
    };
    let begin = || [Change::run("gpu-reaper-hc")];
    let (newest_ms, cadence, killed_in, amiss, running) = match &state.runs {
        Runs::Unknown(why) => return vec![Line::unknown(CHECK, why, "whether runs come is not known")],
        Runs::None if found.gpus.as_ref().is_some_and(|gpus| !gpus.on_bus) => {
            return vec![Line::ok(CHECK, "no ledger", "a node without an NVIDIA device needs none")];
        }
        Runs::None => {
            let means = "there is no ledger: slurmd starts one within an interval, or do it now";
            return vec![Line::warning(CHECK, "no run at all so far", means).mended_by(begin())];
        }
        Runs::Seen { newest_ms, cadence, killed_in, amiss, running, .. } => {
            (newest_ms, cadence, killed_in, *amiss, *running)
        }
    };
    let interval_ms = interval_ms(found);
    let Some(newest_ms) = newest_ms else {
        let means = "the ledger is of an earlier boot: slurmd has started none on this one";
        return vec![Line::warning(CHECK, "no run since this boot", means).mended_by(begin())];
    };
    let (ago, newest) = (human_ms(*newest_ms), format!("the newest run was {} ago", human_ms(*newest_ms)));
    let mut lines = Vec::new();
    if let Some(phase) = killed_in {
        let means =
            format!("it did not get beyond its phase `{phase}`: the journal and slurmd's log say more");
        let mend = Change::run("journalctl -t gpu-reaper-hc -n 50");
        let what = format!("a run was killed, {ago} ago or since");
        lines.push(Line::warning(CHECK, what, means).mended_by([mend]));
    } else if *newest_ms > LATE * interval_ms && !running {
        let means = format!("one is due every {}: slurmd starts none any more", human_ms(interval_ms));
        lines.push(Line::warning(CHECK, format!("no run for {ago}"), means).mended_by(begin()));
    } else if amiss {
        let means =
            "one of these: no reading of the GPUs, a GPU that is missing, or a drain that nobody knows";
        let mend = Change::run("journalctl -t gpu-reaper-hc -n 5");
        let what = format!("the newest run, {ago} ago, found something amiss");
        lines.push(Line::warning(CHECK, what, means).mended_by([mend]));
    }
    lines.extend(cadence.and_then(|cadence| pace(found, cadence, interval_ms)));
    if lines.is_empty() {
        lines.push(Line::ok(
            CHECK,
            newest,
            if running { "another goes on now" } else { "it ended by itself" },
        ));
    }
    lines
}

/// How often runs really come, against what was asked for and against the window.
fn pace(found: &Found, (median_ms, p90_ms): (i64, i64), interval_ms: i64) -> Option<Line> {
    const CHECK: &str = "last-run";
    let thresholds = &found.config.rules.thresholds;
    let limits = window::limits(thresholds, Cadence { median_ms, p90_ms });
    let what = format!("runs come every {}, nine of ten within {}", human_ms(median_ms), human_ms(p90_ms));
    if !limits.adapted.is_empty() {
        let mend = found.rewrite("HealthCheckInterval", "60");
        return Some(Line::warning(CHECK, what, limits.adapted.join("; ")).mended_by(mend));
    }
    let cycle = match found.key("HealthCheckNodeState") {
        Key::Said(said) => said.value.to_ascii_uppercase().contains("CYCLE"),
        Key::Unset | Key::Unknown(_) => false,
    };
    if 2 * median_ms > 3 * interval_ms && !cycle {
        let means = format!(
            "HealthCheckInterval asks for one every {}: slurmctld is late, or away at times",
            human_ms(interval_ms)
        );
        let mend = Change::run("sdiag");
        return Some(Line::warning(CHECK, what, means).mended_by([mend]));
    }
    None
}

/// Whether what we say is kept.
pub fn journal(found: &Found) -> Vec<Line> {
    const CHECK: &str = "journal";
    if found.journal {
        return vec![Line::ok(
            CHECK,
            "journald listens",
            "journalctl -t gpu-reaper-hc shows each alert and deed",
        )];
    }
    let means = "our lines go to standard error, of which slurmd keeps nothing while a run ends well: alerts are only in the \
                 ledger";
    let mend = Change::run("systemctl start systemd-journald.socket");
    vec![Line::warning(CHECK, "nobody listens at /run/systemd/journal/socket", means).mended_by([mend])]
}

/// The configuration, as `config check` reads it, and who can change it.
pub fn configuration(found: &Found) -> Vec<Line> {
    const CHECK: &str = "configuration";
    let file = found.config_file.display();
    let mut lines = Vec::new();
    let unseen = |text: &str| !found.root && text.contains("Permission denied");
    // All of them at once: the first line says it.
    let mut mend = Some(Change::run(format!("gpu-reaper-hc config check --config {file}")));
    for error in &found.errors {
        let text = error.to_string();
        lines.push(match unseen(&text) {
            true => Line::unknown(CHECK, text, "what follows is by the defaults"),
            false => Line::fault(CHECK, text, "no run does anything; what follows is by the defaults")
                .mended_by(mend.take()),
        });
    }
    for note in &found.config.notes {
        lines.push(
            Line::warning(CHECK, note, "the file says something that is probably not meant")
                .mended_by(mend.take()),
        );
    }
    match &found.config_changeable {
        Look::Is(Some(why)) => {
            let means = format!("{why}: with `mode: enforce` it is refused");
            let mend = Change::run(format!("chown root:root {file} && chmod go-w {file}"));
            lines.push(Line::warning(CHECK, format!("{file}"), means).mended_by([mend]));
        }
        Look::Unknown(why) if found.errors.is_empty() => {
            lines.push(Line::unknown(
                CHECK,
                format!("{file}: {why}"),
                "whether others can change it is not known",
            ));
        }
        Look::Is(None) | Look::NotThere | Look::Unknown(_) => {}
    }
    if lines.is_empty() {
        let what = match &found.config.file {
            Some(_) => format!("{file}"),
            None => format!("{file} does not exist"),
        };
        let means = match (
            &found.config.file,
            found.config_file.as_path() == Path::new(crate::config::DEFAULT_FILE),
        ) {
            (None, _) => "the defaults hold: nothing is drained or cancelled",
            (Some(_), true) => "valid",
            (Some(_), false) => {
                "valid; slurmd's own runs read /etc/gpu-reaper-hc/config.yaml, unless a script names this one"
            }
        };
        lines.push(Line::ok(CHECK, what, means));
    }
    lines.extend(token(found));
    lines
}

/// Where messages go: no message is sent to find out.
pub fn channels(found: &Found) -> Vec<Line> {
    const CHECK: &str = "alerts";
    let line = |channel: &Channel| {
        let (key, file) = (&channel.key, channel.file.display());
        match &channel.sound {
            Ok(()) => {
                Line::ok(CHECK, format!("`{key}`: `{file}`"), "as a run needs it; nothing was sent to it")
            }
            Err(why) if !found.root => {
                Line::unknown(CHECK, format!("`{key}`: {why}"), "whether root may use it is not known")
            }
            Err(why) => {
                if !channel.file.exists() {
                    let means = "no message goes there until it is";
                    let write = format!("write it, then: chown root:root {file}");
                    return Line::fault(CHECK, format!("`{key}`: {why}"), means)
                        .mended_by([Change::run(write)]);
                }
                let mode = if key.starts_with("slack") { "0600" } else { "0755" };
                let mend = Change::run(format!("chown root:root {file} && chmod {mode} {file}"));
                Line::fault(CHECK, format!("`{key}`: {why}"), "no message goes there until it is mended")
                    .mended_by([mend])
            }
        }
    };
    found.channels.iter().map(line).collect()
}

/// The token that slurmrestd asks for.
fn token(found: &Found) -> Option<Line> {
    const CHECK: &str = "token";
    let (path, facts) = found.token.as_ref()?;
    let what = format!("`{}`", path.display());
    let mint =
        || [Change::run(format!("(umask 077; scontrol token lifespan=infinite > {})", path.display()))];
    Some(match facts {
        Look::NotThere => {
            Line::fault(CHECK, what, "it does not exist: slurmrestd tells us nothing").mended_by(mint())
        }
        Look::Unknown(why) => {
            Line::unknown(CHECK, format!("{what}: {why}"), "whether slurmrestd can be asked is not known")
        }
        Look::Is(file) if file.uid != 0 || file.mode & 0o077 != 0 => {
            let what = format!("{what} is owned by uid {} with mode {:04o}", file.uid, file.mode);
            let mend = Change::run(format!("chown root:root {0} && chmod 0600 {0}", path.display()));
            Line::fault(CHECK, what, "a token that others can read is not used: slurmrestd tells us nothing")
                .mended_by([mend])
        }
        Look::Is(_) => Line::ok(CHECK, what, "root's alone"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::report::Level;
    use super::super::testing::{Case, level_of, levels_of, right};
    use super::*;
    use crate::config;
    use crate::host::files::FileFacts;

    fn state(found: &mut Found) -> &mut State {
        found.state.as_mut().unwrap()
    }

    fn disk(found: &mut Found) -> &mut Disk {
        match &mut state(found).disk {
            Look::Is(disk) => disk,
            _ => panic!("no disk"),
        }
    }

    #[test]
    fn the_ledger_wants_a_local_disk_of_roots_with_room() {
        let table: [Case; 12] = [
            ("right", &|_| {}, Level::Ok, "ext4"),
            ("to be made", &|f| state(f).made = false, Level::Ok, "root's alone"),
            ("a file", &|f| state(f).is_folder = false, Level::Fault, "is no folder"),
            ("nfs", &|f| disk(f).magic = 0x6969, Level::Fault, "a local disk is needed"),
            ("lustre", &|f| disk(f).magic = 0x0BD0_0BD0, Level::Fault, "a local disk is needed"),
            ("memory", &|f| disk(f).magic = 0x0102_1994, Level::Warning, "lost at each boot"),
            ("layered", &|f| disk(f).magic = 0x794C_7630, Level::Unknown, "beneath decides"),
            ("odd", &|f| disk(f).magic = 0x1234, Level::Unknown, "not known"),
            (
                "full",
                &|f| disk(f).free_bytes = 1 << 20,
                Level::Warning,
                "1MiB are free, the ledger may grow to 64MiB",
            ),
            ("read-only", &|f| disk(f).read_only = true, Level::Fault, "read-only"),
            (
                "somebody's",
                &|f| state(f).changeable = Look::Is(Some("it belongs to uid 5".into())),
                Level::Fault,
                "decides what is judged",
            ),
            ("hangs", &|f| f.state = None, Level::Fault, "a file server that is gone"),
        ];
        for (name, change, want, words) in table {
            let mut found = right();
            change(&mut found);
            let lines = folder(&found);
            assert!(lines[0].means.contains(words), "{name}: {lines:?}");
            assert_eq!(level_of(lines), want, "{name}");
        }
        let mut found = right();
        disk(&mut found).free_bytes = 1 << 20;
        state(&mut found).ledger_bytes = 64 << 20;
        assert_eq!(level_of(folder(&found)), Level::Ok, "it has all that it may have");
    }

    #[test]
    fn a_run_that_never_came_or_was_killed_is_told() {
        let seen = |newest_ms, cadence, killed_in: Option<&str>, amiss, running| Runs::Seen {
            newest_ms,
            cadence,
            killed_in: killed_in.map(str::to_owned),
            amiss,
            running,
            persistent: false,
        };
        let minute = Some((60_000, 61_000));
        let table = [
            (seen(Some(30_000), minute, None, false, false), Level::Ok, "the newest run was 30 s ago"),
            (seen(Some(30_000), None, None, false, true), Level::Ok, "the newest run was 30 s ago"),
            (Runs::None, Level::Warning, "no run at all so far"),
            (Runs::Unknown("Permission denied".into()), Level::Unknown, "Permission denied"),
            (seen(None, None, None, false, false), Level::Warning, "no run since this boot"),
            (seen(Some(600_000), minute, None, false, false), Level::Warning, "no run for 10 m"),
            (seen(Some(30_000), minute, Some("observe"), false, false), Level::Warning, "a run was killed"),
            (seen(Some(30_000), minute, None, true, false), Level::Warning, "found something amiss"),
            (
                seen(Some(30_000), Some((150_000, 160_000)), None, false, false),
                Level::Warning,
                "runs come every",
            ),
            (
                seen(Some(30_000), Some((900_000, 900_000)), None, false, false),
                Level::Warning,
                "runs come every",
            ),
        ];
        for (runs, want, words) in table {
            let mut found = right();
            state(&mut found).runs = runs.clone();
            let lines = last_run(&found);
            assert!(lines[0].found.contains(words), "{lines:?}");
            assert_eq!(level_of(lines), want, "{runs:?}");
        }
        let mut found = right();
        state(&mut found).runs = Runs::None;
        found.gpus.as_mut().unwrap().on_bus = false;
        assert_eq!(level_of(last_run(&found)), Level::Ok, "no GPU, no ledger");
    }

    #[test]
    fn the_configuration_is_told_as_its_check_tells_it() {
        let mut found = right();
        assert_eq!(level_of(configuration(&found)), Level::Ok);
        found.config = config::parse("thresholds: { window: 10m }\n", "c").unwrap();
        assert_eq!(level_of(configuration(&found)), Level::Warning);
        found.config = config::defaults();
        found.errors = config::parse("windw: 1\nmode: x\n", "c").unwrap_err();
        assert_eq!(levels_of(&configuration(&found)), [Level::Fault, Level::Fault]);
        found.errors = vec![config::ConfigError {
            file: "c".into(),
            key: String::new(),
            what: "cannot be opened: Permission denied (os error 13)".into(),
            position: None,
            hint: String::new(),
        }];
        assert_eq!(level_of(configuration(&found)), Level::Fault, "as root");
        found.root = false;
        assert_eq!(level_of(configuration(&found)), Level::Unknown, "what others may not read is no fault");
        let mut found = right();
        found.config_changeable = Look::Is(Some("it is writable by others (mode 666)".into()));
        assert_eq!(level_of(configuration(&found)), Level::Warning);
    }

    #[test]
    fn a_token_is_roots_alone() {
        let file = |uid, mode| FileFacts { regular: true, uid, gid: 0, mode, size: 9, id: (1, 1) };
        for (look, want) in [
            (Look::Is(file(0, 0o600)), Level::Ok),
            (Look::Is(file(0, 0o400)), Level::Ok),
            (Look::Is(file(0, 0o640)), Level::Fault),
            (Look::Is(file(5, 0o600)), Level::Fault),
            (Look::NotThere, Level::Fault),
            (Look::Unknown("no".into()), Level::Unknown),
        ] {
            let mut found = right();
            found.token = Some(("/etc/token".into(), look.clone()));
            assert_eq!(token(&found).unwrap().level, want, "{look:?}");
        }
    }

    #[test]
    fn a_channel_that_no_run_could_use_is_a_fault() {
        let with = |sound: Result<(), String>, root| {
            let mut found = right();
            found.root = root;
            let (key, file) = ("slack.webhook_file".to_owned(), "/etc/hook".into());
            found.channels = vec![Channel { key, file, sound }];
            level_of(channels(&found))
        };
        assert_eq!(with(Ok(()), true), Level::Ok);
        assert_eq!(with(Err("is no file".to_owned()), true), Level::Fault);
        assert_eq!(with(Err("Permission denied".to_owned()), false), Level::Unknown);
        assert!(channels(&right()).is_empty(), "what is not configured is not looked at");
    }

    #[test]
    fn lines_without_a_journal_are_lost_on_slurmd() {
        let mut found = right();
        assert_eq!(level_of(journal(&found)), Level::Ok);
        found.journal = false;
        assert_eq!(level_of(journal(&found)), Level::Warning);
    }
}

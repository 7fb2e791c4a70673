//! The configuration as its reader meets it: what loads, what is refused and in which words. Fixtures lie in
//! `fixtures/config`.

use gpu_reaper_hc::config::{
    self, Config, ConfigError, GpuSourceKind, SlurmSource, defaults, example, parse, show,
};
use gpu_reaper_hc::mode::Mode;
use gpu_reaper_hc::model::Gpm;
use gpu_reaper_hc::policy::Auto;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

fn fixture(name: &str) -> String {
    fs::read_to_string(format!("{}/fixtures/config/{name}", env!("CARGO_MANIFEST_DIR"))).expect(name)
}

fn errors(text: &str) -> Vec<String> {
    let told = |errors: Vec<ConfigError>| errors.iter().map(ConfigError::to_string).collect();
    parse(text, "c.yaml").err().map(told).unwrap_or_default()
}

/// The effective configuration without where it came from.
fn meaning(config: &Config) -> Vec<String> {
    let value = |line: &str| line.rsplit_once(" # ").expect("an origin").0.trim_end().to_owned();
    show(config).lines().filter(|l| !l.ends_with(':')).map(value).collect()
}

#[test]
fn nothing_said_means_the_harmless_defaults() {
    // dtolnay/serde-yaml#86, zellij-org/zellij#716 (CF-01): empty files errored or panicked.
    for text in ["", "\n", "# only a comment\n", "---\n", "--- # nothing\n...\n"] {
        let config = parse(text, "c.yaml").expect(text);
        assert_eq!(config.mode(), Mode::Observe);
        assert_eq!(meaning(&config), meaning(&defaults()), "{text:?}");
    }
}

#[test]
fn a_null_or_a_list_at_the_top_is_no_configuration() {
    // vectordotdev/vector#25981 (CF-01): an explicit null was taken as an empty map and ignored.
    for text in ["null", "~", "--- ~\n", "[]", "- mode: observe\n", "observe", "5"] {
        assert_eq!(errors(text).len(), 1, "{text:?}: {:?}", errors(text));
    }
}

#[test]
fn an_empty_value_is_neither_a_default_nor_a_tilde() {
    // euzu/tuliprox#4 (CF-02): an empty value became a file named `~`.
    for key in ["state_dir", "deadline", "mode", "thresholds", "stages", "history"] {
        let told = errors(&format!("{key}:\n"));
        assert_eq!(told.len(), 1, "{key}: {told:?}");
        let found = format!("config `c.yaml`: `{key}`: found nothing (null) at line 1 column ");
        assert!(told[0].starts_with(&found), "{told:?}");
    }
    for text in ["exemptions: { users: }", "exemptions:\n  users:\n", "thresholds: { window: ~ }"] {
        assert_eq!(errors(text).len(), 1, "{text:?}");
    }
    for text in ["slack: { webhook_file: }", "slack:\n  webhook_env:\n", "gpu: { library: null }"] {
        let config = parse(text, "c.yaml").expect(text);
        assert_eq!(config.notes, Vec::<String>::new(), "{text:?}");
    }
}

#[test]
fn the_example_loads_and_says_the_defaults() {
    // PrincetonUniversity/jobstats#22 (CF-03): the guide's first example failed.
    let config = parse(example(), "example").expect("the example");
    assert_eq!(config.notes, Vec::<String>::new());
    assert_eq!(meaning(&config), meaning(&defaults()));
    assert_eq!(format!("{:?}", config.rules), format!("{:?}", defaults().rules));
}

#[test]
fn the_example_says_every_key_that_has_an_effect() {
    let shown = show(&parse(example(), "example").expect("the example"));
    assert!(!shown.contains("# default"), "{shown}");
}

#[test]
fn the_daemons_file_loads_unchanged() {
    let config = parse(&fixture("daemon-style.yaml"), "c.yaml").expect("the older file");
    assert_eq!(config.mode(), Mode::Observe);
    assert_eq!(config.slurm.source, SlurmSource::Squeue);
    assert_eq!(config.gpu.source, GpuSourceKind::NvidiaSmi);
    assert_eq!(config.rules.thresholds.idle_power, Auto::Set(60_000));
    assert_eq!(config.rules.thresholds.max_sample_gap, Auto::Set(180_000));
    assert!(config.rules.exemptions.name_pattern.as_ref().is_some_and(|p| p.is_match("debug-1")));
    let subjects: Vec<&str> = config.notes.iter().filter_map(|n| n.split('`').nth(1)).collect();
    assert_eq!(subjects, ["slack.webhook_env", "interval", "metrics_addr", "thresholds.window"]);
    for (note, replacement) in
        config.notes.iter().zip(["slack.webhook_file", "HealthCheckInterval", "metrics.textfile", "30m"])
    {
        assert!(note.contains(replacement), "{note}");
    }
}

#[test]
fn gpm_is_read_and_where_nobody_can_measure_it_that_is_said() {
    let table = [
        ("{}", Gpm::Off, false),
        ("{ gpm: off, source: nvidia-smi }", Gpm::Off, false),
        ("{ gpm: mig }", Gpm::Mig, false),
        ("{ gpm: on }", Gpm::On, false),
        ("{ gpm: on, source: nvidia-smi }", Gpm::On, true),
        ("{ gpm: mig, source: simulator, scenario: /srv/s.yaml }", Gpm::Mig, true),
    ];
    for (gpu, gpm, noted) in table {
        let config = parse(&format!("gpu: {gpu}"), "c.yaml").expect(gpu);
        assert_eq!(config.gpu.gpm, gpm, "{gpu}");
        assert_eq!(config.notes.iter().any(|n| n.starts_with("`gpu.gpm`: has no effect")), noted, "{gpu}");
    }
    assert!(parse("gpu: { gpm: yes }", "c.yaml").is_err());
}

#[test]
fn slurmrestd_needs_an_address_and_what_it_would_not_use_is_told() {
    let missing = "config `c.yaml`: `slurm.rest_url`: missing at line 1 column 8; it has no default";
    assert_eq!(errors("slurm: { source: rest, username: reaper }"), [missing]);
    assert_eq!(errors("slurm: { source: rest, rest_url: null }").len(), 1);
    assert_eq!(errors("slurm: { rest_version: v0.0.46, rest_url: x }").len(), 2);

    let read = |text: &str| parse(&format!("slurm: {{ {text} }}"), "c.yaml").expect(text);
    let unix = read("source: rest, rest_url: \"unix:/run/slurmrestd/sock\", rest_version: v0.0.40");
    assert_eq!((unix.slurm.rest_version, unix.notes.len()), (Some(40), 0));
    let notes = [
        ("rest_url: \"http://h:6820\"", "`slurm.rest_url`: has no effect without `slurm.source: rest`"),
        ("token_file: /a/b", "`slurm.token_file`: has no effect without `slurm.source: rest`"),
        ("token_env: X", "`slurm.token_env`: ignored, for slurmd passes no environment"),
        (
            "source: rest, token_file: /a/b, rest_url: \"http://h:6820\"",
            "`slurm.rest_url`: the token crosses the network as plain text",
        ),
        (
            "source: rest, token_file: /a/b, rest_url: \"http://127.evil.example:6820\"",
            "`slurm.rest_url`: the token crosses the network as plain text",
        ),
        (
            "source: rest, token_file: /a/b, rest_url: \"http://localhost.example:6820\"",
            "`slurm.rest_url`: the token crosses the network as plain text",
        ),
    ];
    for (text, note) in notes {
        let told = read(text).notes;
        assert!(told.len() == 1 && told[0].starts_with(note), "{text}: {told:?}");
    }
    for url in
        ["http://127.0.0.1:6820", "http://[::1]:6820/", "https://h-1.example:6820", "http://localhost:1"]
    {
        let config = read(&format!("source: rest, token_file: /a/b, rest_url: \"{url}\""));
        assert_eq!((config.slurm.rest_url.as_deref(), config.notes.len()), (Some(url), 0), "{url}");
    }
    let long = format!("unix:/{}", "x".repeat(107));
    for url in [
        "http://h",
        "h:6820",
        "http://:1",
        "http://h:0",
        "http://h:65536",
        "ftp://h:1",
        "http://h:1/v1",
        "http://[::g]:1",
        "unix:run/sock",
        "http://a b:1",
        long.as_str(),
    ] {
        let told = errors(&format!("slurm: {{ source: rest, rest_url: \"{url}\" }}"));
        assert!(
            told.len() == 1
                && told[0].ends_with("allowed: http://host:port, https://host:port or unix:/path"),
            "{told:?}"
        );
    }
}

#[test]
fn every_key_is_accepted_and_what_has_no_effect_is_noted() {
    let config = parse(&fixture("every-key.yaml"), "c.yaml").expect("every key");
    let mut ours = meaning(&config);
    ours.retain(|line| meaning(&defaults()).contains(line));
    assert_eq!(ours, Vec::<String>::new(), "still at the default");
    let later: Vec<&String> = config.notes.iter().filter(|n| n.contains("not in this version")).collect();
    assert!(later.is_empty(), "{later:?}");
}

#[test]
fn every_key_is_either_shown_or_told_to_have_no_effect() {
    let text = fixture("every-key.yaml");
    let config = parse(&text, "c.yaml").expect("every key");
    let keys = |text: &str| {
        let root: serde_yaml::Value = serde_yaml::from_str(text).unwrap();
        let mut keys: Vec<String> = Vec::new();
        for (section, value) in root.as_mapping().unwrap() {
            let section = section.as_str().unwrap();
            match value.as_mapping() {
                Some(table) => {
                    keys.extend(table.keys().map(|k| format!("{section}.{}", k.as_str().unwrap())))
                }
                None => keys.push(section.to_owned()),
            }
        }
        keys
    };
    let shown = keys(&show(&config));
    let told = |of: &str| config.notes.iter().any(|note| note.starts_with(&format!("`{of}")));
    for key in keys(&text).iter().filter(|key| !shown.contains(key)) {
        let section = key.split_once('.').map_or("", |(section, _)| section).to_owned() + ".";
        let none_of_it = !shown.iter().any(|shown| shown.starts_with(&section));
        assert!(told(key) || (none_of_it && told(&section)), "`{key}` is neither shown nor told of");
    }
}

#[test]
fn a_key_without_an_effect_is_told_where_it_is_set_and_nowhere_else() {
    let notes = |text: &str| parse(text, "c.yaml").expect(text).notes;
    let tells = "`metrics_addr`: ignored, for nothing listens; `metrics.textfile` names a file instead";
    assert_eq!(notes("metrics_addr: ':9835'"), [tells]);
    assert_eq!(notes("act: { notify_job: true }"), Vec::<String>::new());
    assert_eq!(notes("exemptions: { job_comment: 4h, users: [ci] }"), Vec::<String>::new());
    assert_eq!(notes("limits: { max_actions_per_hour: 2 }"), Vec::<String>::new());
}

#[test]
fn where_and_what_people_are_told_is_read_strictly() {
    for text in [
        "slack: { min_verdict: page }",
        "slack: { webhook_file: webhook }",
        "slack: { ca_file: ca.pem }",
        "notify: { exec: [page] }",
        "notify: { exec: /usr/local/bin/page }",
        "notify: { min_verdict: none }",
        "notify: { node_faults: 1 }",
        "act: { notify_job: yes }",
    ] {
        assert_eq!(errors(text).len(), 1, "{text}");
    }
    let said = "slack: { webhook_file: /etc/hook, min_verdict: drain }\nnotify: { exec: [/bin/page, -x] }";
    let config = parse(said, "c.yaml").expect(said);
    assert_eq!((config.notes.len(), config.slack.min_verdict), (0, gpu_reaper_hc::model::Verdict::Drain));
    assert!(show(&config).contains("  exec: [/bin/page, \"-x\"]"), "{}", show(&config));
}

#[test]
fn a_deadline_that_leaves_no_time_to_act_is_told() {
    let notes = |text: &str| parse(text, "c.yaml").expect(text).notes;
    let told = notes("deadline: 20s");
    assert!(told.len() == 1 && told[0].starts_with("`deadline` 20s: no action begins"), "{told:?}");
    assert_eq!(notes("deadline: 21s"), Vec::<String>::new());
}

#[test]
fn all_mistakes_are_told_at_once_each_with_its_place() {
    let told = errors(&fixture("many-mistakes.yaml"));
    let told =
        told.iter().map(|e| e.strip_prefix("config `c.yaml`: ").unwrap()).collect::<Vec<_>>().join("\n")
            + "\n";
    assert_eq!(told, fixture("many-mistakes.txt"));
}

#[test]
fn a_secret_in_the_wrong_place_is_not_repeated() {
    for text in [
        "slack: { webhook_file: \"https://hooks.example/T0/s3cret\" }",
        "slack: { webhook_file: s3cret }",
        "slack: https://hooks.example/s3cret",
        "slack: { url: https://hooks.example/s3cret }",
        "slurm: { token_file: s3cret }",
        "slurm: { rest_url: \"https://root:s3cret@slurm.example:6820\" }",
        "slurm: { rest_url: \"https://slurm.example:6820/?token=s3cret\" }",
        "mode: https://hooks.example/s3cret",
    ] {
        let told = errors(text);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(!told[0].contains("s3cret"), "{told:?}");
    }
}

#[test]
fn an_error_stays_on_its_line_whatever_the_file_holds() {
    for text in [
        "\"a\\nb\": 1",
        "mode: \"x\\u001b[31m\\r\\n\"",
        "exemptions: { users: [\"a\\u2028b\"] }",
        "faults: { actions: { \"a\\tb\": 1 } }",
    ] {
        let told = errors(text);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(!told[0].contains(|c: char| c.is_control() || c == '\u{2028}'), "{told:?}");
    }
}

#[test]
fn keys_that_contradict_each_other_are_told() {
    let table = [
        ("gpu: { deadline: 45s }", "`gpu.deadline`: is 45s at line 1"),
        ("history: { keep: 1h }", "`history.keep`: is 1h at line 1 column 12; allowed: at least 1h45m"),
        (
            "stages: [{ after: 3d, verdict: alert }]",
            "`history.keep`: is 1d at line 1 column 1; allowed: at least 3d45m",
        ),
        ("thresholds: { max_sample_gap: 31m }", "`thresholds.max_sample_gap`: is 31m"),
        ("faults: { actions: { leak: drain } }", "unknown key at line 1 column 22; `epilog.on_leak` says"),
    ];
    for (text, want) in table {
        let told = errors(text);
        assert_eq!(told.len(), 1, "{text}: {told:?}");
        assert!(told[0].contains(want), "{told:?}");
    }
}

#[test]
fn what_is_bold_is_noted_not_refused() {
    let table = [
        ("thresholds: { window: 5m }", "short windows"),
        ("thresholds: { min_samples: 2 }", "prove little"),
        ("stages: []", "nothing is ever alerted on"),
        ("mode: enforce\nstages: [{ after: 1h, verdict: cancel }]", "never reached"),
        ("stages: [{ after: 0m, verdict: drain }, { after: 1h, verdict: cancel }]", "withheld"),
        ("exemptions: { name_pattern: \".*\" }", "no job is ever judged"),
        ("mode: enforce\ngpu: { source: simulator, scenario: /a }", "made-up readings"),
        ("gpu: { source: simulator }", "without `gpu.scenario`"),
        ("faults: { actions: { gpu-lost: drain } }", "`faults.actions`: drain under `faults.mode: observe`"),
        ("epilog: { on_leak: drain }", "`epilog.on_leak`: drain under `mode: observe`"),
        ("faults: { mode: enforce, actions: { xid: drain }, xids: [79, 31] }", "31: any user's code"),
    ];
    for (text, want) in table {
        let notes = parse(text, "c.yaml").expect(text).notes;
        assert_eq!(notes.len(), 1, "{text}: {notes:?}");
        assert!(notes[0].contains(want), "{notes:?}");
    }
}

#[test]
fn a_pattern_that_matches_only_some_names_is_not_noted() {
    for pattern in ["^$", "^(debug)?$", "debug"] {
        let config = parse(&format!("exemptions: {{ name_pattern: \"{pattern}\" }}"), "c").expect(pattern);
        assert_eq!(config.notes, Vec::<String>::new());
    }
    assert_eq!(errors("exemptions: { name_pattern: \"(a{1000}){1000}\" }").len(), 1);
    assert_eq!(errors("exemptions: { name_pattern: \"\" }").len(), 1);
}

#[test]
fn a_file_of_nothing_but_mistakes_is_told_in_bounds() {
    let text: String = (0..5000).map(|n| format!("k{n}: 1\n")).collect();
    let told = errors(&text);
    assert_eq!(told.len(), 51);
    assert_eq!(told[50], "config `c.yaml`: 4950 more errors");
    let told = errors(&"mode: observe\n".repeat(4000));
    assert_eq!(told[50], "config `c.yaml`: 3949 more errors");
}

#[test]
fn a_file_that_was_named_must_exist_and_be_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    let told = config::load(Some(&path)).unwrap_err();
    assert_eq!(told[0].what, "does not exist");
    assert_eq!(config::load(Some(folder.path())).unwrap_err()[0].what, "is no regular file");
    fs::write(&path, b"mode: \xff\n").unwrap();
    assert_eq!(config::load(Some(&path)).unwrap_err()[0].what, "is no UTF-8 text from byte 6 on");
    fs::write(&path, "#".repeat(64 << 10)).unwrap();
    assert!(config::load(Some(&path)).is_ok());
    fs::write(&path, "#".repeat((64 << 10) + 1)).unwrap();
    assert_eq!(config::load(Some(&path)).unwrap_err()[0].what, "is larger than 64 KiB");
}

#[test]
fn a_fifo_is_refused_without_waiting_for_a_writer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fifo");
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: `name` is a C string that outlives the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    assert_eq!(config::load(Some(&path)).unwrap_err()[0].what, "is no regular file");
}

fn written(folder: &Path, text: &str, file_mode: u32, folder_mode: u32) -> Result<Config, Vec<ConfigError>> {
    let path = folder.join("config.yaml");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(file_mode)).unwrap();
    fs::set_permissions(folder, fs::Permissions::from_mode(folder_mode)).unwrap();
    config::load(Some(&path))
}

#[test]
fn a_file_that_others_can_write_cannot_say_enforce() {
    let folder = tempfile::tempdir().unwrap();
    let enforce = |file, dir| written(folder.path(), "mode: enforce\n", file, dir);
    assert_eq!(enforce(0o644, 0o755).unwrap().mode(), Mode::Enforce);
    assert!(enforce(0o646, 0o755).unwrap_err()[0].to_string().contains("writable by others (mode 646)"));
    assert!(enforce(0o644, 0o757).unwrap_err()[0].what.contains("its folder"));
    assert_eq!(written(folder.path(), "mode: observe\n", 0o666, 0o777).unwrap().mode(), Mode::Observe);
}

#[test]
fn a_link_is_judged_by_the_file_it_names() {
    let folder = tempfile::tempdir().unwrap();
    let open = folder.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::write(open.join("real.yaml"), "mode: enforce\n").unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let link = folder.path().join("config.yaml");
    std::os::unix::fs::symlink(open.join("real.yaml"), &link).unwrap();
    assert!(config::load(Some(&link)).unwrap_err()[0].what.contains("its folder"));
}

#[test]
fn the_effective_values_name_their_origin_and_load_again() {
    let text = "# why\nthresholds: { window: 45m }\nstages:\n  - { after: 0s, verdict: alert }\n\
                gpu:\n  library: /opt/a b/lib.so\n";
    let shown = show(&parse(text, "c.yaml").unwrap());
    for (value, origin) in [
        ("window: 45m", "line 2"),
        ("stages: [{ after: 0s", "line 3"),
        ("library: \"/opt/a b/lib.so\"", "line 6"),
        ("warmup: 15m", "default"),
    ] {
        let line = shown.lines().find(|l| l.trim().starts_with(value)).expect(value);
        assert!(line.ends_with(&format!("# {origin}")), "{line}");
    }
    for text in [text.to_owned(), fixture("daemon-style.yaml"), fixture("every-key.yaml"), String::new()] {
        let config = parse(&text, "c.yaml").unwrap();
        let again = parse(&show(&config), "shown").unwrap();
        assert_eq!(meaning(&again), meaning(&config));
    }
}

#[test]
fn defaults_are_harmless() {
    let d = defaults();
    assert_eq!(d.mode(), Mode::Observe);
    assert!(!d.mode().enforces());
    assert_eq!(d.deadline, Duration::from_secs(45));
    assert_eq!(d.enforce_in.node_share, 1.0);
}

/// Where the keys of a file stand, those of flow tables too; comments and values are not keys.
fn keys_of(text: &str) -> Vec<Range<usize>> {
    let mut keys = Vec::new();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let code = line.split('#').next().unwrap_or("");
        for (colon, _) in code.match_indices(": ").chain(code.match_indices(":\n")) {
            let letters = code[..colon].bytes().rev();
            let word = letters.take_while(|b| b.is_ascii_alphanumeric() || b"_-".contains(b)).count();
            keys.push(start + colon - word..start + colon);
        }
        start += line.len();
    }
    keys
}

/// Every way to drop a letter, a letter too many, and the word in capitals.
fn typos_of(word: &str) -> Vec<String> {
    let dropped = (0..word.len()).map(|i| format!("{}{}", &word[..i], &word[i + 1..]));
    let all = dropped.chain([format!("{word}s"), word.to_uppercase()]);
    all.filter(|typo| !typo.is_empty() && typo != word).collect()
}

#[test]
fn no_typo_in_any_key_goes_unseen() {
    // PrincetonUniversity/jobstats#22 (CF-03): a typo in a guard silently disables it.
    for text in [example().to_owned(), fixture("every-key.yaml"), fixture("daemon-style.yaml")] {
        let keys = keys_of(&text);
        assert!(keys.len() > 20);
        for key in keys {
            let line = text[..key.start].matches('\n').count() + 1;
            for typo in typos_of(&text[key.clone()]) {
                let mut mistyped = text.clone();
                mistyped.replace_range(key.clone(), &typo);
                let told = parse(&mistyped, "c.yaml").err().unwrap_or_default();
                let there = |e: &ConfigError| e.position.is_some_and(|(l, _)| l == line);
                assert!(told.iter().any(there), "`{typo}` at line {line}: {told:?}");
            }
        }
    }
}

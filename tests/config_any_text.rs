//! The configuration's reader against any text: it never panics, never answers more than was said, and what
//! it shows means what it read.

use gpu_reaper_hc::config::{Config, ConfigError, example, parse, show};
use gpu_reaper_hc::mode::Mode;
use proptest::prelude::*;

/// The effective configuration without where it came from.
fn meaning(config: &Config) -> Vec<String> {
    let value = |line: &str| line.rsplit_once(" # ").expect("an origin").0.trim_end().to_owned();
    show(config).lines().filter(|l| !l.ends_with(':')).map(value).collect()
}

fn on_one_line(errors: &[ConfigError]) -> bool {
    errors.iter().all(|e| !e.to_string().contains(|c: char| c.is_control()))
}

/// What YAML is made of, and what our files are.
const PIECES: &[&str] = &[
    "mode",
    ":",
    ": ",
    "\n",
    "\n  ",
    "- ",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "observe",
    "stages",
    "after",
    "30m",
    "~",
    "&a ",
    "*a",
    "!x ",
    "<<",
    "? ",
    "'",
    "\"",
    "|\n",
    ">\n",
    "# ",
    "---\n",
    "...\n",
    "%YAML 1.2\n",
    "thresholds",
    "window",
    "1e999",
    ".nan",
    "\t",
    "\u{feff}",
    "\\",
    "exemptions",
    "users",
    "\r\n",
    "\u{85}",
    "0x1f",
    "-0",
    "@",
    "`",
];

#[test]
fn what_the_parser_repeats_of_a_file_stays_on_one_line() {
    let Err(errors) = parse("thresholds\tx: !y ", "c") else { panic!("a tag was taken") };
    assert!(on_one_line(&errors) && errors[0].to_string().contains("thresholds\\tx"), "{errors:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_text_is_a_configuration_or_errors_with_words(text in "(?s).{0,200}") {
        if let Err(errors) = parse(&text, "c") {
            prop_assert!(on_one_line(&errors), "{errors:?}");
        }
    }

    #[test]
    fn any_yaml_looking_text_is_a_configuration_or_errors(
        words in prop::collection::vec(
            prop::sample::select(PIECES),
            0..40,
        )
    ) {
        let text = words.concat();
        match parse(&text, "c") {
            Ok(config) => prop_assert_eq!(config.mode(), Mode::Observe),
            Err(errors) => prop_assert!(!errors.is_empty() && on_one_line(&errors)),
        }
    }

    #[test]
    fn a_broken_example_never_turns_into_enforce(
        cut in 0..example().len(),
        len in 0usize..40,
        put in "\\PC{0,8}",
    ) {
        let mut text = example().as_bytes().to_vec();
        let end = (cut + len).min(text.len());
        text.splice(cut..end, put.bytes());
        if let Ok(config) = parse(&String::from_utf8_lossy(&text), "c") {
            prop_assert_eq!(config.mode(), Mode::Observe);
        }
    }

    #[test]
    fn what_loads_shows_as_a_file_that_means_the_same(
        users in prop::collection::vec("\\PC{1,12}", 0..4),
        pattern in "\\PC{1,12}",
        folder in "/\\PC{0,12}",
        watts in 1.0f64..2000.0,
        share in 0.0f64..=1.0,
        secs in 1800u64..80_000,
    ) {
        let json = serde_json::to_string(&serde_json::json!({
            "state_dir": folder,
            "enforce_in": { "node_share": share },
            "thresholds": { "idle_power_watts": watts, "window": format!("{secs}s"), "warmup": "0s" },
            "stages": [],
            "exemptions": { "users": users, "name_pattern": pattern },
        }))
        .unwrap();
        if let Ok(config) = parse(&json, "c") {
            let again = parse(&show(&config), "shown").expect("what is shown");
            prop_assert_eq!(meaning(&again), meaning(&config));
            prop_assert_eq!(format!("{:?}", again.rules), format!("{:?}", config.rules));
        }
    }
}

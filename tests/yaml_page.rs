//! The manual page of the configuration says what the example file and the configuration's own checks say: each key's
//! default and meaning are the example's, what it allows is what an error about it calls allowed.
//! `UPDATE_MAN=1 cargo test --test yaml_page` writes it anew from `man/gpu-reaper-hc.yaml.5.in`.

use gpu_reaper_hc::config::{defaults, example, parse, show};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

/// A section of the example file, or a key that stands alone.
#[derive(Default)]
struct Section {
    name: String,
    words: String,
    keys: Vec<Key>,
}

/// A key with its whole name.
#[derive(Default)]
struct Key {
    name: String,
    default: String,
    words: String,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn page() -> String {
    fs::read_to_string(root().join("man/gpu-reaper-hc.yaml.5")).unwrap_or_default()
}

fn add(words: &mut String, more: &str) {
    if !words.is_empty() && !more.is_empty() {
        words.push(' ');
    }
    words.push_str(more);
}

/// The pairs of `{ a: 1, b: [2, 3] }`, which no nested comma ends.
fn pairs(inline: &str) -> Vec<(&str, &str)> {
    let inside = inline.trim().trim_start_matches('{').trim_end_matches('}');
    let mut depth = 0;
    let comma = |c: char| {
        depth += i32::from(matches!(c, '[' | '{')) - i32::from(matches!(c, ']' | '}'));
        c == ',' && depth == 0
    };
    let parts = inside.split(comma).filter_map(|pair| pair.split_once(": "));
    parts.map(|(key, value)| (key.trim(), value.trim())).collect()
}

/// `value   # words`: what stands before and after the mark.
fn with_words(text: &str) -> (&str, &str) {
    text.split_once(" # ").map_or((text.trim(), ""), |(value, words)| (value.trim(), words.trim()))
}

/// What the example file says of the file itself, and its sections.
fn read() -> (String, Vec<Section>) {
    let mut lines = example().lines();
    let mut file = String::new();
    for line in lines.by_ref().skip(1).take_while(|line| !line.is_empty()) {
        add(&mut file, line.trim_start_matches('#').trim());
    }
    let mut sections: Vec<Section> = Vec::new();
    let mut pending = String::new();
    for line in lines {
        let text = line.trim_start();
        let comment = text.strip_prefix("# ");
        if let Some(words) = comment.filter(|_| text.len() == line.len()) {
            add(&mut pending, words);
        } else if text.len() == line.len() && !line.is_empty() {
            let (name, value) = text.split_once(':').expect("a key");
            sections.push(section(name, with_words(value), std::mem::take(&mut pending)));
        } else if let Some(section) = sections.last_mut() {
            inside(section, line, text, comment, &mut pending);
        }
    }
    (file, sections)
}

fn section(name: &str, (value, words): (&str, &str), mut before: String) -> Section {
    add(&mut before, words);
    let key = |name: String, default: &str| Key { name, default: default.to_owned(), words: String::new() };
    let keys = match value {
        "" => Vec::new(),
        inline if inline.starts_with('{') => {
            pairs(inline).into_iter().map(|(k, v)| key(format!("{name}.{k}"), v)).collect()
        }
        value => vec![key(name.to_owned(), value)],
    };
    Section { name: name.to_owned(), words: before, keys }
}

/// A line beneath a section: a key, one that is only shown, words before a key or after it, a stage.
fn inside(section: &mut Section, line: &str, text: &str, comment: Option<&str>, pending: &mut String) {
    let only_shown = comment.is_some_and(|words| {
        words.split_once(": ").is_some_and(|(name, rest)| {
            name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_') && rest.contains(" # ")
        })
    });
    match comment.filter(|_| !only_shown) {
        Some(words) if line.len() - text.len() > 4 => {
            add(&mut section.keys.last_mut().expect("a key before its words").words, words);
        }
        Some(words) => add(pending, words),
        None if text.is_empty() => pending.clear(),
        None if text.starts_with('-') => pending.clear(),
        None => {
            let (name, rest) = text.trim_start_matches("# ").split_once(':').expect("a key");
            let (default, words) = with_words(rest);
            let mut key = Key { name: format!("{}.{name}", section.name), ..Key::default() };
            (key.default, key.words) = (default.to_owned(), std::mem::take(pending));
            add(&mut key.words, words);
            section.keys.push(key);
        }
    }
}

/// What an error about this key calls allowed; `None`: nothing is refused, it is not read.
fn allowed(key: &str) -> Option<String> {
    let nested =
        |value: &str| key.rsplit('.').fold(value.to_owned(), |inner, name| format!("{{ {name}: {inner} }}"));
    let errors = parse(&nested("[[1]]"), "c").err()?;
    errors[0].to_string().split_once("; allowed: ").map(|(_, allowed)| allowed.to_owned())
}

/// The stages and the actions are tables of their own.
fn in_words(key: &str, allowed: String) -> String {
    match key {
        "stages" => "a list of stages { after: DURATION, verdict: alert or drain or cancel }".to_owned(),
        "faults.actions" => "a table of kinds, each with off or alert or drain".to_owned(),
        "faults.xids" => format!("a list, each {allowed}"),
        "notify.exec" => "a list: the absolute path of a program, then its arguments".to_owned(),
        _ if allowed.starts_with("one name") || key == "epilog.allow" => {
            let nullable = parse(&format!("{}: {{ {}: x }}", split(key).0, split(key).1), "c").is_ok();
            if nullable { allowed } else { format!("a list, each {allowed}") }
        }
        _ => allowed,
    }
}

fn split(key: &str) -> (&str, &str) {
    key.split_once('.').expect("a key of a section")
}

/// Plain words as roff, no line longer than 80 columns.
fn roff(words: &str) -> String {
    let mut bold = false;
    let mut safe = String::new();
    for c in words.chars() {
        match c {
            '`' => {
                bold = !bold;
                safe.push_str(if bold { "\\fB" } else { "\\fR" });
            }
            '-' => safe.push_str("\\-"),
            '\\' => safe.push_str("\\e"),
            '\'' => safe.push_str("\\(aq"),
            '^' => safe.push_str("\\(ha"),
            '~' => safe.push_str("\\(ti"),
            c => safe.push(c),
        }
    }
    let mut lines = vec![String::new()];
    for word in safe.split_whitespace() {
        if lines.last().is_some_and(|line| line.len() + word.len() > 76) {
            lines.push(String::new());
        }
        let line = lines.last_mut().expect("one line at least");
        if line.is_empty() && word.starts_with('.') {
            line.push_str("\\&");
        }
        add(line, word);
    }
    lines.join("\n") + "\n"
}

fn sentence(words: &str) -> String {
    match words.ends_with(['.', ':', ';']) {
        true => words.to_owned(),
        false => format!("{words}."),
    }
}

fn keys(sections: &[Section]) -> String {
    let mut text = String::new();
    for section in sections {
        text.push_str(&format!(".SS {}", roff(&section.name)));
        if !section.words.is_empty() {
            text.push_str(&roff(&sentence(&section.words)));
        }
        let stages = [Key { name: "stages".to_owned(), default: stages(), words: String::new() }];
        for key in if section.name == "stages" { stages.iter() } else { section.keys.iter() } {
            let allowed = allowed(&key.name).map_or("nothing yet".to_owned(), |a| in_words(&key.name, a));
            text.push_str(&format!(".TP\n\\fB{}\\fR\n", key.name.replace('-', "\\-")));
            text.push_str(&roff(&format!(
                "Default: {}. Allowed: {}.",
                key.default,
                allowed.trim_end_matches('.')
            )));
            let words = if key.words.starts_with(['[', '"']) {
                format!("For example {}", key.words)
            } else {
                key.words.clone()
            };
            if !words.is_empty() {
                text.push_str(".br\n");
                text.push_str(&roff(&sentence(&words)));
            }
        }
    }
    text
}

/// The default ladder in one line.
fn stages() -> String {
    let rows = example().lines().skip_while(|line| *line != "stages:").skip(1);
    let rows: Vec<&str> = rows.map_while(|line| line.strip_prefix("  - ")).collect();
    format!("[{}]", rows.join(", "))
}

#[test]
fn the_configurations_page_is_the_one_that_the_example_renders() {
    let (file, sections) = read();
    let template = fs::read_to_string(root().join("man/gpu-reaper-hc.yaml.5.in")).unwrap();
    let (_, template) = template.split_once("\n.TH").expect("the template has a title line");
    let rendered =
        format!(".\\\" Rendered by tests/yaml_page.rs from gpu-reaper-hc.yaml.5.in and the example file.\n.TH{template}")
            .replace("@VERSION@", env!("CARGO_PKG_VERSION"))
            .replace("@FILE@\n", &roff(&file))
            .replace("@KEYS@\n", &keys(&sections));
    if std::env::var_os("UPDATE_MAN").is_some() {
        fs::write(root().join("man/gpu-reaper-hc.yaml.5"), &rendered).unwrap();
    }
    assert!(
        page() == rendered,
        "man/gpu-reaper-hc.yaml.5 is not current: UPDATE_MAN=1 cargo test --test yaml_page"
    );
}

/// Every key of the example, and what is said of it: its own words and its section's.
fn said() -> BTreeMap<String, String> {
    let (_, sections) = read();
    let of = |section: Section| {
        let own = section.name == "stages";
        let stages = own.then(|| ("stages".to_owned(), section.words.clone()));
        let keys =
            section.keys.into_iter().map(move |key| (key.name, format!("{} {}", section.words, key.words)));
        keys.chain(stages).collect::<Vec<_>>()
    };
    sections.into_iter().flat_map(of).collect()
}

/// Every key that `config show` prints.
fn shown() -> BTreeSet<String> {
    let mut section = String::new();
    let mut keys = BTreeSet::new();
    for line in show(&defaults()).lines() {
        let (name, value) = line.split_once(':').expect("a key");
        if value.trim().is_empty() {
            section = name.to_owned();
        } else if let Some(name) = name.strip_prefix("  ") {
            keys.insert(format!("{section}.{name}"));
        } else {
            keys.insert(name.to_owned());
        }
    }
    keys
}

#[test]
fn what_is_shown_is_explained_and_what_is_explained_is_shown_or_said_to_have_no_effect() {
    let (said, shown) = (said(), shown());
    let unexplained: Vec<&String> = shown.iter().filter(|key| !said.contains_key(*key)).collect();
    assert!(unexplained.is_empty(), "not in the example: {unexplained:?}");
    for (key, words) in said.iter().filter(|(key, _)| !shown.contains(*key)) {
        let promised = words.to_lowercase().contains("not in this version");
        assert!(promised, "`{key}` is in the example and not shown, and nothing says that it has no effect");
    }
    let page = page().replace("\\-", "-");
    for key in said.keys() {
        assert!(page.contains(&format!("\n\\fB{key}\\fR\n")), "`{key}` has no entry in the page");
    }
}

#[test]
fn each_key_that_readme_and_the_manual_name_exists() {
    let sections: BTreeSet<String> = read().1.into_iter().map(|section| section.name).collect();
    let said = said();
    for file in ["README.md", "man/gpu-reaper-hc.8.in"] {
        let text = fs::read_to_string(root().join(file)).unwrap().replace("\\-", "-");
        for word in text.split(|c: char| !c.is_ascii_lowercase() && !matches!(c, '.' | '_')) {
            let word = word.trim_matches('.');
            let Some((section, name)) = word.split_once('.') else { continue };
            if sections.contains(section)
                && !name.contains('.')
                && !matches!(name, "d" | "conf" | "yaml" | "log" | "rs")
            {
                assert!(said.contains_key(word), "{file} names `{word}`, which is no key");
            }
        }
    }
}

//! Readers of single values: each says what it found and what is allowed. None converts: a number is no text,
//! a text is no number, null is neither, and a number without a unit is no duration.

use super::tree::{Node, Value};
use crate::policy::{Auto, Warn};
use crate::units::quantity;
use regex_lite::{Regex, RegexBuilder};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// What is wrong with one value, or with one item of a list.
pub(super) struct Wrong {
    pub at: usize,
    pub index: Option<usize>,
    pub found: String,
    pub allowed: String,
}

/// Everything that is wrong with a value.
pub(super) type Bad = Vec<Wrong>;

/// A value as an error names it: short, on one line, and without what follows `://`, for a web hook's
/// address is a secret and errors go to logs.
pub(super) fn found(value: &Value<'_>) -> String {
    match value {
        Value::Null => "nothing (null)".to_owned(),
        Value::Bool(value) => format!("`{value}`"),
        Value::Whole(number) => format!("the number {number}"),
        Value::Real(number) => format!("the number {number:?}"),
        Value::List(_) => "a list".to_owned(),
        Value::Table(_) => "a table of keys".to_owned(),
        Value::Text(text) => match text.find("://") {
            Some(at) => format!("`{}://...`", shown(&text[..at])),
            None => format!("`{}`", shown(text)),
        },
    }
}

/// Text from the file, fit for one line of a log.
pub(super) fn shown(text: &str) -> String {
    const MOST: usize = 60;
    let mut line = String::new();
    for (index, c) in text.chars().enumerate() {
        match c {
            _ if index == MOST => return line + "...",
            '"' | '\'' => line.push(c),
            _ => line.extend(c.escape_debug()),
        }
    }
    line
}

/// Whether a character could break a line.
fn breaks(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// Text on one line, none of it lost.
pub(super) fn on_one_line(text: &str) -> String {
    text.chars().map(|c| if breaks(c) { c.escape_default().to_string() } else { c.to_string() }).collect()
}

fn wrong<T>(node: &Node<'_>, allowed: impl Into<String>) -> Result<T, Bad> {
    Err(vec![Wrong { at: node.at, index: None, found: found(&node.value), allowed: allowed.into() }])
}

/// The same of what is no text: where the file has a text that `fits`, it is the quotes that are too much.
fn wrong_or_quoted<T>(node: &Node<'_>, allowed: String, fits: impl Fn(&str) -> bool) -> Result<T, Bad> {
    match &node.value {
        Value::Text(text) if fits(text) => wrong(node, format!("{allowed}, without quotes")),
        _ => wrong(node, allowed),
    }
}

/// One of some words.
pub(super) fn word<'w, T: Copy>(words: &'w [(&'static str, T)]) -> impl Fn(&Node<'_>) -> Result<T, Bad> + 'w {
    move |node| {
        if let Value::Text(text) = &node.value
            && let Some((_, meant)) = words.iter().find(|(word, _)| word == text)
        {
            return Ok(*meant);
        }
        wrong(node, words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" or "))
    }
}

/// `true` or `false`; `yes` and `on` are text in YAML 1.2.
pub(super) fn truth(node: &Node<'_>) -> Result<bool, Bad> {
    match node.value {
        Value::Bool(value) => Ok(value),
        _ => wrong_or_quoted(node, "true or false".to_owned(), |text| ["true", "false"].contains(&text)),
    }
}

/// A whole number.
pub(super) fn whole(range: RangeInclusive<u32>) -> impl Fn(&Node<'_>) -> Result<u32, Bad> {
    move |node| {
        let number = match node.value {
            Value::Whole(number) => u32::try_from(number).ok(),
            _ => None,
        };
        match number.filter(|n| range.contains(n)) {
            Some(number) => Ok(number),
            None => {
                let allowed = format!("a whole number from {} to {}", range.start(), range.end());
                wrong_or_quoted(node, allowed, |text| text.parse().is_ok_and(|n| range.contains(&n)))
            }
        }
    }
}

/// A number with or without a fraction; never NaN or infinite, with which every comparison is false.
pub(super) fn real(range: RangeInclusive<f64>) -> impl Fn(&Node<'_>) -> Result<f64, Bad> {
    move |node| {
        let number = match node.value {
            Value::Whole(number) => Some(number as f64),
            Value::Real(number) => Some(number),
            _ => None,
        };
        match number.filter(|n| range.contains(n)) {
            Some(number) => Ok(number),
            None => {
                let allowed = format!("a number from {} to {}", range.start(), range.end());
                wrong_or_quoted(node, allowed, |text| text.parse().is_ok_and(|n| range.contains(&n)))
            }
        }
    }
}

/// Power said in watts, kept in milliwatts.
pub(super) fn milliwatts(range: RangeInclusive<f64>) -> impl Fn(&Node<'_>) -> Result<u64, Bad> {
    let watts = real(range);
    move |node| watts(node).map(|w| (w * 1000.0).round() as u64)
}

/// A duration with its unit.
pub(super) fn duration(range: RangeInclusive<Duration>) -> impl Fn(&Node<'_>) -> Result<Duration, Bad> {
    move |node| {
        let said = match &node.value {
            Value::Text(text) => quantity::duration(text),
            _ => None,
        };
        match said.filter(|d| range.contains(d)) {
            Some(duration) => Ok(duration),
            None => {
                let [least, most] = [range.start(), range.end()].map(|d| quantity::duration_text(*d));
                wrong(node, format!("a duration with a unit, like 30m or 1h30m, from {least} to {most}"))
            }
        }
    }
}

/// A duration as the rules count: milliseconds.
pub(super) fn millis(range: RangeInclusive<Duration>) -> impl Fn(&Node<'_>) -> Result<i64, Bad> {
    let duration = duration(range);
    move |node| duration(node).map(|d| d.as_secs() as i64 * 1000)
}

/// A size with its unit, in bytes.
pub(super) fn size(range: RangeInclusive<u64>) -> impl Fn(&Node<'_>) -> Result<u64, Bad> {
    move |node| {
        let said = match &node.value {
            Value::Text(text) => quantity::size(text),
            _ => None,
        };
        match said.filter(|bytes| range.contains(bytes)) {
            Some(bytes) => Ok(bytes),
            None => {
                let [least, most] = [range.start(), range.end()].map(|b| quantity::size_text(*b));
                wrong(node, format!("a size with a unit (KiB, MiB, GiB), like 64MiB, from {least} to {most}"))
            }
        }
    }
}

/// `auto`, or what the inner reader understands.
pub(super) fn auto<T>(
    inner: impl Fn(&Node<'_>) -> Result<T, Bad>,
) -> impl Fn(&Node<'_>) -> Result<Auto<T>, Bad> {
    move |node| match &node.value {
        Value::Text(text) if text == "auto" => Ok(Auto::Auto),
        _ => inner(node).map(Auto::Set).map_err(|bad| or_else("auto", bad)),
    }
}

/// Null, or what the inner reader understands.
pub(super) fn maybe<T>(
    inner: impl Fn(&Node<'_>) -> Result<T, Bad>,
) -> impl Fn(&Node<'_>) -> Result<Option<T>, Bad> {
    move |node| match node.value {
        Value::Null => Ok(None),
        _ => inner(node).map(Some).map_err(|bad| or_else("null", bad)),
    }
}

fn or_else(other: &str, bad: Bad) -> Bad {
    let named = |w: Wrong| Wrong { allowed: format!("{other}, or {}", w.allowed), ..w };
    bad.into_iter().map(named).collect()
}

/// An absolute path: slurmd starts us in a folder of its own choosing.
pub(super) fn path(node: &Node<'_>) -> Result<PathBuf, Bad> {
    match &node.value {
        Value::Text(text) if text.starts_with('/') && one_line(text) => Ok(PathBuf::from(text.as_ref())),
        _ => wrong(node, "an absolute path"),
    }
}

/// The absolute path of a file, never of its folder alone.
pub(super) fn file(node: &Node<'_>) -> Result<PathBuf, Bad> {
    match path(node) {
        Ok(path) if path.file_name().is_some() && !path.as_os_str().as_encoded_bytes().ends_with(b"/") => {
            Ok(path)
        }
        _ => wrong(node, "the absolute path of a file"),
    }
}

/// The absolute path of a file that holds a secret. What stands there instead may be the secret itself:
/// it is not shown.
pub(super) fn secret_file(node: &Node<'_>) -> Result<PathBuf, Bad> {
    file(node).map_err(|bad| bad.into_iter().map(hidden).collect())
}

fn hidden(wrong: Wrong) -> Wrong {
    Wrong { found: "something else (not shown)".to_owned(), ..wrong }
}

/// Where slurmrestd listens: nothing but a scheme, a host and a port, or a socket's path. Whoever writes a user, a
/// path or a token into it is told, and it is not shown.
pub(super) fn rest_url(node: &Node<'_>) -> Result<String, Bad> {
    let host = |c: u8| c.is_ascii_alphanumeric() || b".-_".contains(&c);
    let place = |text: &str| {
        let (name, port) = text.rsplit_once(':')?;
        let bracketed = name.strip_prefix('[').and_then(|n| n.strip_suffix(']'));
        let named = match bracketed {
            Some(ip) => ip.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !name.is_empty() && name.bytes().all(host),
        };
        (named && port.parse::<u16>().is_ok_and(|port| port > 0)).then_some(())
    };
    // The kernel's limit: sun_path holds 108 bytes, one of them the end.
    let socket = |path: &str| (path.starts_with('/') && path.len() < 108).then_some(());
    let sound = |text: &str| match text.split_once(':')? {
        ("http" | "https", rest) => place(rest.strip_prefix("//")?.trim_end_matches('/')),
        ("unix", path) => socket(path),
        _ => None,
    };
    match &node.value {
        Value::Text(text) if one_line(text) && sound(text).is_some() => Ok(text.to_string()),
        _ => wrong::<String>(node, "http://host:port, https://host:port or unix:/path")
            .map_err(|bad| bad.into_iter().map(hidden).collect()),
    }
}

/// A program and its arguments; [] for none.
pub(super) fn program(node: &Node<'_>) -> Result<Vec<String>, Bad> {
    let argv = list(text)(node)?;
    match argv.first() {
        Some(program) if !program.starts_with('/') => wrong(node, "a list that begins with an absolute path"),
        _ => Ok(argv),
    }
}

/// Signals that a job may be warned by.
const SIGNALS: [&str; 5] = ["USR1", "USR2", "HUP", "INT", "TERM"];

/// `USR1`, `USR1@5m`: a signal, and how long before the cancel at least.
pub(super) fn warn(node: &Node<'_>) -> Result<Warn, Bad> {
    let said = text(node)?;
    let (signal, ahead) = said.split_once('@').unwrap_or((&said, "0s"));
    let signal = SIGNALS.into_iter().find(|known| *known == signal);
    match (signal, quantity::duration(ahead).filter(|ahead| *ahead <= Duration::from_secs(86_400))) {
        (Some(signal), Some(ahead)) => Ok(Warn { signal, ahead_ms: ahead.as_millis() as i64 }),
        _ => wrong(
            node,
            format!("one of {}, and how long before the cancel, at most 24h: USR1@5m", SIGNALS.join(", ")),
        ),
    }
}

/// Text on one line.
pub(super) fn text(node: &Node<'_>) -> Result<String, Bad> {
    match &node.value {
        Value::Text(text) if one_line(text) => Ok(text.to_string()),
        _ => wrong(node, "text on one line; a number needs quotes"),
    }
}

/// One name as Slurm knows users, accounts, partitions and QOS. `[a,b]` in quotes is a slip, not a name.
pub(super) fn name(node: &Node<'_>) -> Result<String, Bad> {
    match &node.value {
        Value::Text(text) if one_line(text) && !text.contains([' ', ',']) => Ok(text.to_string()),
        _ => wrong(node, "one name, without spaces or commas; a number needs quotes"),
    }
}

/// A name as Slurm has it, compared as a whole: a pattern would fit nothing, and spare nobody.
pub(super) fn whole_name(node: &Node<'_>) -> Result<String, Bad> {
    let found = name(node)?;
    match found.contains(['*', '?', '[', ']']) {
        false => Ok(found),
        true => {
            wrong(node, "one whole name, no pattern; `exemptions.name_pattern` is one, for the names of jobs")
        }
    }
}

/// A list, each item as the inner reader understands it; every bad item is told.
pub(super) fn list<T>(
    inner: impl Fn(&Node<'_>) -> Result<T, Bad>,
) -> impl Fn(&Node<'_>) -> Result<Vec<T>, Bad> {
    move |node| {
        let Value::List(items) = &node.value else {
            return wrong(node, "a list, like [first, second]; [] for none");
        };
        let (mut values, mut bad) = (Vec::new(), Vec::new());
        for (index, item) in items.iter().enumerate() {
            match inner(item) {
                Ok(value) => values.push(value),
                Err(wrongs) => bad.extend(wrongs.into_iter().map(|w| Wrong { index: Some(index), ..w })),
            }
        }
        if bad.is_empty() { Ok(values) } else { Err(bad) }
    }
}

/// A regular expression. Compiled here, once, and only where one is said; bounded, for it may be anybody's.
pub(super) fn pattern(node: &Node<'_>) -> Result<Regex, Bad> {
    const MOST_PROGRAM_BYTES: usize = 256 << 10;
    let said = match &node.value {
        Value::Text(text) if printable(text) => text,
        _ => return wrong(node, "a regular expression in quotes"),
    };
    match RegexBuilder::new(said).size_limit(MOST_PROGRAM_BYTES).build() {
        Ok(regex) => Ok(regex),
        Err(error) => wrong(node, format!("a regular expression ({})", shown(&error.to_string()))),
    }
}

/// Not empty, no control or separator character that could break a line of a log or of `config show`.
fn printable(text: &str) -> bool {
    !text.is_empty() && !text.contains(breaks)
}

/// Printable, without spaces at its ends.
fn one_line(text: &str) -> bool {
    printable(text) && text.trim() == text
}

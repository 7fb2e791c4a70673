//! What people write at Slurm so that one job is left alone for a time: an administrator's keep in the job's
//! AdminComment, and the user's own word in its Comment. The two forms are read and written here and nowhere else.
//! Everything read is somebody's text: it is compared and shown, can panic nothing, and never carries a command.
//!
//! A keep that is not understood is a doubt, and a doubt stops every deed: whoever wrote it may write there. A word of
//! the user's that is not understood is nothing, or any garbage would be an exemption without an end.

use crate::units::WallMs;
use crate::units::quantity::{duration, duration_text};
use std::time::Duration;

/// So much of an AdminComment. No limit of its own is documented for it; this is what slurmctld takes of a Comment.
pub const MOST_BYTES: usize = 1024;
/// So much of a reason; it leaves room for what stands there already.
pub const MOST_REASON: usize = 80;
/// So much of a name; Linux allows 32.
const MOST_NAME: usize = 32;
/// Every text of ours begins so.
const OURS: &str = "gpu-reaper:";
/// Between texts of different writers.
const BETWEEN: char = '|';
/// The user's word, before its duration.
const WORD: &str = "gpu-reaper:keep";

/// An administrator's word that a job be left alone until then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Until when.
    pub until: WallMs,
    /// Who said so, as that person's shell named them: for people, no proof of anything.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// What an AdminComment says of keeping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// The keep that lasts longest.
    pub keep: Option<Keep>,
    /// What begins as a keep and is none, as it stands there.
    pub doubt: Option<String>,
}

/// Whether Slurm gives a text back as it was written, in whatever language: nothing that ends a line or that a terminal
/// obeys, nothing that stands for bytes that are no text (U+FFFD), and at its ends no blank and no quote: scontrol takes
/// one off.
pub fn comes_back(text: &str) -> bool {
    const QUOTES: [char; 2] = ['"', '\''];
    let shown = |c: char| !c.is_control() && !['\u{2028}', '\u{2029}', '\u{fffd}'].contains(&c);
    text.chars().all(shown) && text.trim() == text && !text.starts_with(QUOTES) && !text.ends_with(QUOTES)
}

/// A reason as it may stand in a keep: one line of printable ASCII without the two things that could end it.
///
/// # Errors
///
/// What is allowed.
pub fn reason(text: &str) -> Result<String, String> {
    let text = text.trim();
    let plain = text.bytes().all(|b| (b' '..=b'~').contains(&b)) && !text.contains([BETWEEN, '"', '\'']);
    if !text.is_empty() && text.len() <= MOST_REASON && plain && !text.contains(OURS) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "expected 1 to {MOST_REASON} characters of printable ASCII, without `{BETWEEN}`, quotes and `{OURS}`"
    ))
}

/// A name as it may stand in a keep.
pub fn name(text: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._@-".contains(c);
    let name: String = text.chars().map(|c| if fits(c) { c } else { '_' }).take(MOST_NAME).collect();
    if name.is_empty() { "unknown".to_owned() } else { name }
}

impl Keep {
    /// The text in AdminComment: `gpu-reaper: keep until=2026-11-29T18:00:00Z by=root: paper deadline`
    pub fn line(&self) -> String {
        format!("{OURS} keep until={} by={}: {}", self.until.rfc3339(), self.by, self.reason)
    }

    /// As people read it; the reason is somebody's text.
    pub fn words(&self) -> String {
        let (by, reason) = (self.by.escape_debug(), self.reason.escape_debug());
        match self.reason.is_empty() {
            true => format!("until {} by {by}", self.until.rfc3339()),
            false => format!("until {} by {by}: `{reason}`", self.until.rfc3339()),
        }
    }

    /// The AdminComment with this keep in it: an earlier one of ours is replaced, whatever else stands there stays.
    ///
    /// # Errors
    ///
    /// Why the two cannot stand in one text of Slurm's.
    pub fn beside(&self, there: Option<&str>) -> Result<String, String> {
        let theirs = there.map(others).unwrap_or_default();
        let text = match theirs.as_str() {
            "" => self.line(),
            theirs => format!("{theirs} {BETWEEN} {}", self.line()),
        };
        let shown = theirs.escape_debug();
        if !comes_back(&text) {
            return Err(format!("its AdminComment `{shown}` cannot be written back as it is"));
        }
        if text.len() > MOST_BYTES {
            return Err(format!(
                "its AdminComment `{shown}` takes {} bytes and the keep {}, of {MOST_BYTES} in all",
                theirs.len(),
                self.line().len()
            ));
        }
        Ok(text)
    }
}

/// What an AdminComment says.
pub fn admin(text: &str) -> Said {
    let mut said = Said::default();
    for (from, to) in keeps_in(text) {
        match parse(&text[from..to]) {
            Some(keep) if said.keep.as_ref().is_none_or(|k| k.until < keep.until) => said.keep = Some(keep),
            Some(_) => {}
            None => said.doubt = Some(text[from..to].trim_end().to_owned()),
        }
    }
    said
}

/// Where a text holds keeps, well formed or not: from `gpu-reaper: keep` to the next writer's text.
fn keeps_in(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = text[from..].find(OURS) {
        let (start, after) = (from + at, from + at + OURS.len());
        let rest = &text[after..];
        let ends = [rest.find([BETWEEN, '\n']), rest.find(OURS)];
        from = after + ends.into_iter().flatten().min().unwrap_or(rest.len());
        let word = rest.trim_start().strip_prefix("keep");
        if word.is_some_and(|more| !more.starts_with(|c: char| c.is_alphanumeric() || c == '_')) {
            found.push((start, from));
        }
    }
    found
}

/// `gpu-reaper: keep until=2026-11-29T18:00:00Z by=root: paper deadline`; what follows the instant may be left out.
fn parse(text: &str) -> Option<Keep> {
    let rest =
        text.strip_prefix(OURS)?.trim_start().strip_prefix("keep")?.trim_start().strip_prefix("until=")?;
    let (until, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let until = WallMs::parse(until)?;
    let rest = rest.trim();
    let (by, reason) = match rest.strip_prefix("by=") {
        Some(rest) => rest.split_once(':').unwrap_or((rest, "")),
        None => ("unknown", rest),
    };
    Some(Keep { until, by: by.trim().to_owned(), reason: reason.trim().to_owned() })
}

/// An AdminComment without the keeps in it: what others wrote, and our other words.
pub fn others(text: &str) -> String {
    let keeps = keeps_in(text);
    let starts = keeps.iter().map(|keep| keep.0).chain([text.len()]);
    let ends = [0].into_iter().chain(keeps.iter().map(|keep| keep.1));
    let between = ends.zip(starts).enumerate().map(|(n, (from, to))| {
        let mut part = text[from..to].trim();
        if n > 0 {
            part = part.strip_prefix(BETWEEN).unwrap_or(part);
        }
        if n < keeps.len() {
            part = part.strip_suffix(BETWEEN).unwrap_or(part);
        }
        part.trim()
    });
    between.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" | ")
}

/// How long a job's own comment asks that it be left alone, in milliseconds from the job's start, and the word itself.
/// `gpu-reaper:keep=4h`, anywhere between blanks, commas, semicolons or bars; of several the longest. An error: there
/// is such a word and it names no duration.
pub fn comment(text: &str) -> Option<Result<i64, String>> {
    let words = text.split(|c: char| c.is_whitespace() || ",;|".contains(c));
    let mut asked: Option<Result<i64, String>> = None;
    for rest in words.filter_map(|word| word.strip_prefix(WORD)) {
        let read = match rest.strip_prefix('=').map(duration) {
            Some(Some(read)) => Ok(read.as_millis() as i64),
            _ => Err(format!("{WORD}{}", rest.chars().take(MOST_NAME).collect::<String>())),
        };
        asked = match (asked, read) {
            (Some(Ok(one)), Ok(other)) => Some(Ok(one.max(other))),
            (Some(Ok(one)), Err(_)) => Some(Ok(one)),
            (_, read) => Some(read),
        };
    }
    asked
}

/// The user's word for so long.
pub fn comment_word(ms: i64) -> String {
    format!("{WORD}={}", duration_text(Duration::from_millis(ms.unsigned_abs())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UNTIL: WallMs = WallMs(1_795_975_200_000);

    fn kept(reason: &str) -> Keep {
        Keep { until: UNTIL, by: "root".into(), reason: reason.into() }
    }

    #[test]
    fn a_keep_reads_back_as_it_was_written() {
        let keep = kept("paper deadline");
        assert_eq!(keep.line(), "gpu-reaper: keep until=2026-11-29T18:00:00Z by=root: paper deadline");
        assert_eq!(admin(&keep.line()), Said { keep: Some(keep), doubt: None });
    }

    #[test]
    fn what_begins_as_a_keep_and_is_none_is_a_doubt() {
        let table = [
            ("", false),
            ("ticket 42", false),
            ("gpu-reaper: cancelling 2026-11-29T18:00:00Z by policy: hung on 8 GPUs", false),
            ("gpu-reaper: keeper until=never", false),
            ("gpu-reaper: keep", true),
            ("gpu-reaper:keep=4h", true),
            ("gpu-reaper: keep until=2026-11-29T18:00:00 by=root: no zone", true),
            ("gpu-reaper: keep until=tomorrow by=root: x", true),
            ("gpu-reaper: keep by=root: until=2026-11-29T18:00:00Z", true),
            ("x | gpu-reaper: keep until= by=root", true),
        ];
        for (text, doubt) in table {
            let said = admin(text);
            assert_eq!((said.keep, said.doubt.is_some()), (None, doubt), "{text:?}");
        }
    }

    #[test]
    fn of_several_the_latest_counts_and_a_broken_one_is_not_forgotten() {
        let text = "gpu-reaper: keep until=2026-11-29T18:00:00Z by=root: a | \
                    gpu-reaper: keep until=2026-11-30T00:00:00+01:00 by=eve: b | gpu-reaper: keep until=x";
        let said = admin(text);
        let keep = said.keep.expect("a keep");
        assert_eq!((keep.until.rfc3339().as_str(), keep.by.as_str()), ("2026-11-29T23:00:00Z", "eve"));
        assert_eq!(said.doubt.as_deref(), Some("gpu-reaper: keep until=x"));
    }

    #[test]
    fn who_and_why_may_be_left_out_by_hand() {
        let said = |text: &str| admin(text).keep.map(|k| (k.by, k.reason));
        let two = |by: &str, reason: &str| Some((by.to_owned(), reason.to_owned()));
        assert_eq!(said("gpu-reaper: keep until=2026-11-29T18:00:00Z"), two("unknown", ""));
        assert_eq!(said("gpu-reaper: keep until=2026-11-29T18:00:00Z by=eve"), two("eve", ""));
        assert_eq!(said("gpu-reaper: keep until=2026-11-29T18:00:00Z x by=y"), two("unknown", "x by=y"));
    }

    #[test]
    fn what_others_wrote_stays_and_our_earlier_word_goes() {
        let line = kept("now").line();
        let earlier = kept("earlier").line();
        let table = [
            (None, line.clone()),
            (Some(String::new()), line.clone()),
            (Some(earlier.clone()), line.clone()),
            (Some("ticket 42".into()), format!("ticket 42 | {line}")),
            (Some("a||b|".into()), format!("a||b| | {line}")),
            (
                Some("f\u{fc}r Ada's \u{8ad6}\u{6587}".into()),
                format!("f\u{fc}r Ada's \u{8ad6}\u{6587} | {line}"),
            ),
            (Some(format!("a||b | {earlier} | c|| | {earlier}")), format!("a||b | c|| | {line}")),
            (Some(format!("ticket 42 | {earlier}")), format!("ticket 42 | {line}")),
            (Some(format!("{earlier} | ticket 42")), format!("ticket 42 | {line}")),
            (Some("gpu-reaper: keep until=broken".to_owned()), line.clone()),
        ];
        for (there, want) in table {
            assert_eq!(kept("now").beside(there.as_deref()), Ok(want), "{there:?}");
        }
        let ours = "gpu-reaper: cancelling by policy";
        assert_eq!(kept("now").beside(Some(ours)), Ok(format!("{ours} | {line}")));
        let long = "x".repeat(MOST_BYTES - line.len() - 3);
        assert_eq!(kept("now").beside(Some(&long)).map(|text| text.len()), Ok(MOST_BYTES));
        let longer = format!("{long}x");
        for cannot in [&longer, "bytes \u{fffd}", "two\nlines", "two\u{2028}lines", "\u{1b}[2J", "\"quoted"] {
            assert!(kept("now").beside(Some(cannot)).is_err(), "{cannot:?}");
        }
    }

    #[test]
    fn a_reason_cannot_forge_what_stands_before_it() {
        for good in ["paper deadline", "until=2099-01-01T00:00:00Z by=eve: x", " x "] {
            let reason = reason(good).expect(good);
            assert_eq!(admin(&kept(&reason).line()), Said { keep: Some(kept(&reason)), doubt: None });
        }
        let long = "x".repeat(MOST_REASON + 1);
        for bad in ["", " ", "a|b", "a\nb", "caf\u{e9}", "\"x\"", "x gpu-reaper: keep until=2099", &long] {
            assert!(reason(bad).is_err(), "{bad:?}");
        }
        assert_eq!(name("eve: until=2099"), "eve__until_2099");
        assert_eq!((name(""), name(&long).len()), ("unknown".to_owned(), MOST_NAME));
    }

    #[test]
    fn a_comment_asks_by_one_word_with_a_duration() {
        const HOUR: i64 = 3_600_000;
        let table = [
            ("", None),
            ("nothing of ours", None),
            ("xgpu-reaper:keep=4h", None),
            ("gpu-reaper:keep=4h", Some(Ok(4 * HOUR))),
            ("ticket 42, gpu-reaper:keep=1h30m;x", Some(Ok(HOUR * 3 / 2))),
            ("gpu-reaper:keep=1h gpu-reaper:keep=2h gpu-reaper:keep=x", Some(Ok(2 * HOUR))),
            ("gpu-reaper:keep=x gpu-reaper:keep=1h", Some(Ok(HOUR))),
            ("gpu-reaper:keep", Some(Err("gpu-reaper:keep".into()))),
            ("gpu-reaper:keep=forever", Some(Err("gpu-reaper:keep=forever".into()))),
            ("gpu-reaper:keep=9999999999h", Some(Err("gpu-reaper:keep=9999999999h".into()))),
        ];
        for (text, want) in table {
            assert_eq!(comment(text), want, "{text:?}");
        }
        assert_eq!(comment_word(HOUR * 3 / 2), "gpu-reaper:keep=1h30m");
    }

    proptest! {
        /// eth-cscs/firecrest-v2#148, skypilot-org/skypilot#10839 (SP-01, SP-12): a comment is any text.
        #[test]
        fn any_text_is_a_keep_a_doubt_or_nothing(
            parts in prop::collection::vec(prop_oneof![
                "\\PC{0,12}", Just("gpu-reaper:".to_owned()), Just(" keep ".to_owned()), Just("until=".to_owned()),
                Just("2026-11-29T18:00:00Z".to_owned()), Just(" by=".to_owned()), Just(" | ".to_owned()),
                Just("gpu-reaper:keep=".to_owned()), Just("4h".to_owned()), Just("\n\u{e9}\u{1b}".to_owned()),
            ], 0..12)
        ) {
            let text = parts.concat();
            let (said, asked) = (admin(&text), comment(&text));
            prop_assert!(said.keep.is_none() || text.contains("until="));
            prop_assert!(asked.is_none() || text.contains(WORD));
            prop_assert!(asked.and_then(Result::ok).is_none_or(|ms| (0..=31_622_400_000).contains(&ms)));
            if let Ok(written) = kept("now").beside(Some(&text)) {
                prop_assert!(written.len() <= MOST_BYTES);
                let ours = Said { keep: Some(kept("now")), doubt: None };
                prop_assert_eq!(admin(&written), ours, "{}", written);
            }
        }

        #[test]
        fn a_reason_that_is_taken_comes_back(text in "\\PC{0,90}") {
            if let Ok(reason) = reason(&text) {
                prop_assert_eq!(admin(&kept(&reason).line()).keep, Some(kept(&reason)));
            }
        }
    }
}

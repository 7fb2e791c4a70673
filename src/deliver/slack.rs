//! A message to a Slack web hook, or any of that form: the words of it, and the one POST that carries it. The address is
//! a secret: it is in no text that leaves this module. Texts of a user's choice make no mention, no link and no markup.

use super::Delivery;
use super::event::{Event, Job, Next, What};
use crate::http::{Failure, Reply, Secret, Server, is_this_host};
use crate::program::one_line;
use crate::units::{WallMs, human_ms};
use std::path::Path;
use std::time::Duration;

/// More of one text is cut off.
const MOST_CHARS: usize = 64;
/// The same of a line that is ours, or Slurm's.
const MOST_WORDS: usize = 500;

/// Sends a text, once.
pub fn send(file: &Path, ca_file: Option<&Path>, text: &str, limit: Duration, now: WallMs) -> Delivery {
    let address = match address(file) {
        Ok(address) => address,
        Err(why) => return Delivery::later(format!("not sent: {why}")),
    };
    let server = match ca_file {
        Some(ca_file) => Server::known_by(address.word(), ca_file),
        None => Server::at(address.word()),
    };
    let body = serde_json::json!({ "text": text }).to_string();
    match server.map(|server| server.post(&body, limit)) {
        Ok(Ok(reply)) => answered(&reply, &address, now),
        Ok(Err(Failure::TimedOut)) => Delivery::later("no answer in time".to_owned()),
        Ok(Err(Failure::Unreachable(why))) => {
            Delivery::later(format!("not reached: {}", hidden(&address, &why)))
        }
        Ok(Err(Failure::Broken(why))) => Delivery::later(format!("no answer: {}", hidden(&address, &why))),
        Err(why) => Delivery::later(format!("not sent: {}", hidden(&address, &why))),
    }
}

/// The address in a file, which must be private and hold one that may be used. Nothing is connected.
///
/// # Errors
/// What is wrong, never the address.
pub fn address(file: &Path) -> Result<Secret, String> {
    let secret = Secret::read(file, "webhook")?;
    let sound = match secret.word().split_once("://") {
        Some(("https", rest)) => is_place(rest),
        Some(("http", rest)) => is_place(rest) && is_this_host(authority(rest)),
        _ => false,
    };
    match sound {
        true => Ok(secret),
        false => Err(format!(
            "webhook file `{}` holds no https:// address (http:// only to this host)",
            file.display()
        )),
    }
}

fn authority(rest: &str) -> &str {
    rest.split(['/', '?', '#']).next().unwrap_or("")
}

/// A host and no user before it.
fn is_place(rest: &str) -> bool {
    let authority = authority(rest);
    !authority.is_empty() && !authority.contains('@')
}

fn answered(reply: &Reply, address: &Secret, now: WallMs) -> Delivery {
    let words = hidden(address, &String::from_utf8_lossy(&reply.body));
    let words: String = words.chars().take(80).collect();
    let words = if words.is_empty() { words } else { format!(": `{words}`") };
    let why = format!("HTTP status {}{words}", reply.status);
    match reply.status {
        200..=299 => Delivery::Arrived,
        300..=399 => Delivery::later(format!("HTTP status {}: no redirect is followed", reply.status)),
        // The first of them say that the address is not, or no longer, the right one: somebody may mend the file.
        401 | 403 | 404 | 407 | 410 | 408 | 429 | 500.. => {
            let wanted_ms = reply.retry_after.as_deref().and_then(|said| wait_ms(said, now));
            Delivery::Later { why, wanted_ms }
        }
        _ => Delivery::Never(why),
    }
}

/// Retry-After: seconds, or a date (RFC 9110, 10.2.3).
fn wait_ms(said: &str, now: WallMs) -> Option<i64> {
    if let Ok(seconds) = said.trim().parse::<u32>() {
        return Some(i64::from(seconds) * 1000);
    }
    let at = chrono::DateTime::parse_from_rfc2822(said.trim()).ok()?;
    Some((at.timestamp_millis() - now.0).max(0))
}

/// A text that may repeat the address, or a part of it, without any.
fn hidden(address: &Secret, text: &str) -> String {
    let (_, rest) = address.word().split_once("://").unwrap_or(("", address.word()));
    let host = authority(rest).rsplit_once(':').map_or(authority(rest), |(host, _)| host);
    let parts = rest.split(['/', '?', '#', '&', '=']).filter(|part| part.len() > 3);
    let mut shown = text.to_owned();
    for part in [address.word(), rest].into_iter().chain(parts).chain([host]) {
        if !part.is_empty() {
            shown = shown.replace(part, "(address)");
        }
    }
    one_line(shown.as_bytes())
}

/// The message that a person reads.
pub fn text(event: &Event) -> String {
    let mut lines = vec![format!("*{}*: {}", headline(event), subject(event))];
    let facts = event.finding.as_ref().and_then(|seen| seen.facts.as_deref());
    for words in [facts, Some(event.words.as_str())].into_iter().flatten() {
        if !words.is_empty() && !lines.contains(&plain(words)) {
            lines.push(plain(words));
        }
    }
    lines.extend(event.finding.as_ref().map(|seen| match event.event {
        What::Recovered => format!("It was {} from {} on.", plain(&seen.signature), seen.since),
        _ => format!("Since {}.", seen.since),
    }));
    lines.extend(next(event));
    if event.event != What::Recovered && event.event != What::FaultOver {
        lines.push(commands(event));
    }
    lines.join("\n")
}

fn headline(event: &Event) -> String {
    let verdict = match event.verdict {
        "drain" => "Drain",
        "warn" => "Warning signal",
        "cancel" => "Cancel",
        "requeue" => "Requeue",
        _ => "Alert",
    };
    match (event.event, event.verdict, event.outcome) {
        (What::Finding, ..) => verdict.to_owned(),
        (What::Withheld, ..) => format!("{verdict} withheld"),
        (What::Recovered, ..) => "Over".to_owned(),
        (What::Fault, "alert", _) => "Node fault".to_owned(),
        (What::FaultOver, ..) => "Node fault over".to_owned(),
        (_, "drain", Some("done")) => "Node drained".to_owned(),
        (_, "drain", Some("lifted")) => "Drain lifted".to_owned(),
        (_, "cancel", Some("done")) => "Job cancelled".to_owned(),
        (_, "requeue", Some("done")) => "Job requeued".to_owned(),
        (_, _, Some("unknown")) => format!("{verdict} asked for, not seen to be done"),
        (_, _, Some(outcome)) => format!("{verdict} {outcome}"),
        (_, _, None) => format!("{verdict} withheld"),
    }
}

/// Whom and what it is about.
fn subject(event: &Event) -> String {
    let node = code(&event.node);
    if let Some(fault) = &event.fault {
        return format!("{} on node {node}", plain(&fault.kind));
    }
    let Some(job) = &event.job else { return format!("node {node}") };
    let known = |before: &str, text: &Option<String>| {
        text.as_ref().map_or(String::new(), |text| format!("{before}{}", code(text)))
    };
    let name = job.name.as_ref().map_or(String::new(), |name| format!(" ({})", code(name)));
    let place = match job.nodes {
        Some(nodes) if nodes > 1 => format!("node {node}, the first of its {nodes}"),
        _ => format!("node {node}"),
    };
    let gpus: Vec<String> = event
        .finding
        .iter()
        .flat_map(|seen| &seen.units)
        .filter_map(|unit| Some(unit.index?.to_string()))
        .collect();
    let gpus = if gpus.is_empty() { String::new() } else { format!(", GPU {}", gpus.join(",")) };
    let Job { user, partition, shown, .. } = job;
    format!(
        "job {}{name}{}{}, {place}{gpus}",
        code(shown),
        known(" of user ", user),
        known(", partition ", partition)
    )
}

/// What comes next and when.
fn next(event: &Event) -> Option<String> {
    let told = match (event.event, &event.next) {
        (What::Finding | What::Deed | What::Withheld, Some(next)) => next,
        (What::Finding, None) => return Some("Next: nothing; this is alerted on and no more.".to_owned()),
        _ => return None,
    };
    let Next { verdict, in_s, at } = told;
    let what = match *verdict {
        "drain" => "the node is drained",
        "cancel" => "the job is cancelled",
        _ => "an alert",
    };
    let when = format!("in {} ({at}) at the earliest", human_ms(in_s.saturating_mul(1000)));
    Some(match event.mode {
        "observe" => {
            format!(
                "Next: a {verdict} falls due {when}, if it goes on; mode is observe, so it will be withheld."
            )
        }
        _ => format!("Next: {what} {when}, if it goes on."),
    })
}

/// What to type.
fn commands(event: &Event) -> String {
    let what = if event.outcome == Some("stays") { "To lift it" } else { "Why" };
    let explain = format!("{what}: {} on {}", code(&event.explain), code(&event.node));
    match &event.job {
        Some(job) if event.event != What::Deed || event.verdict == "drain" || event.verdict == "warn" => {
            let keep = format!("gpu-reaper-hc keep {} --for 4h --reason ...", job.shown);
            format!("{explain}. To spare the job: {}", code(&keep))
        }
        _ => explain,
    }
}

/// A text of others as code, in which nothing is markup; entities as Slack wants them. A word that some service of this
/// form takes for a mention loses its sign, an address what would make it a link.
fn code(text: &str) -> String {
    let mut shown: String =
        text.chars().map(|c| if is_unseen(c) { ' ' } else { c }).take(MOST_CHARS).collect();
    if text.chars().count() > MOST_CHARS {
        shown += "...";
    }
    let shown = shown.replace('`', "'").replace('@', "\u{ff20}").replace("://", ": //");
    let shown = shown.trim();
    format!("`{}`", if shown.is_empty() { "?".to_owned() } else { entities(shown) })
}

/// A line of ours or of Slurm's, without markup.
fn plain(text: &str) -> String {
    let one_line = text.chars().map(|c| match c {
        '`' | '*' | '~' => '\'',
        '@' => '\u{ff20}',
        c if is_unseen(c) => ' ',
        c => c,
    });
    let cut: Vec<char> = one_line.take(MOST_WORDS).collect();
    let within = |at: usize| cut.get(at).is_some_and(|c| c.is_alphanumeric());
    let inert = cut.iter().enumerate().map(|(at, c)| match c {
        // Inside a word it emphasises nothing.
        '_' if at == 0 || !within(at - 1) || !within(at + 1) => '-',
        c => *c,
    });
    entities(&inert.collect::<String>().replace("://", ": //"))
}

/// Slack's three control characters.
fn entities(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Whatever is not seen, or turns the order of what is: control, zero-width and bidirectional characters, tags.
fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}')
        || matches!(c, '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}')
        || matches!(c, '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deliver::event::{Seen, Unit};
    use crate::model::Now;
    use crate::units::{BootMs, NodeName};

    fn event() -> Event {
        let now = Now { boot_id: "b".to_owned(), boot: BootMs(0), wall: WallMs(1_795_953_600_000) };
        let event = Event::of(What::Finding, &NodeName::new("n1").unwrap(), true, &now);
        let unit = |index| Unit { uuid: format!("GPU-{index}"), index: Some(index), name: None };
        Event {
            job: Some(Job {
                id: 4242,
                shown: "4240_2".to_owned(),
                restart: 0,
                user: Some("ada".to_owned()),
                account: None,
                partition: Some("h100".to_owned()),
                qos: None,
                name: None,
                nodes: Some(4),
                started: String::new(),
            }),
            finding: Some(Seen {
                signature: "hung".to_owned(),
                scope: "whole".to_owned(),
                units: vec![unit(0), unit(1)],
                since: "2026-11-29T10:48:00Z".to_owned(),
                certified_s: 4320,
                wasted_gpu_hours: Some(2.4),
                facts: Some(
                    "hung on GPU 0,1 (whole): memory held, no compute for 1 h 12 m; 2.4 GPU-hours".to_owned(),
                ),
            }),
            next: Some(Next { verdict: "drain", in_s: 2880, at: "2026-11-29T12:48:00Z".to_owned() }),
            explain: "gpu-reaper-hc --explain 4240_2".to_owned(),
            ..event
        }
    }

    #[test]
    fn a_message_says_who_what_since_when_and_what_comes_next() {
        let want = "*Alert*: job `4240_2` of user `ada`, partition `h100`, node `n1`, the first of its 4, GPU 0,1\n\
                    hung on GPU 0,1 (whole): memory held, no compute for 1 h 12 m; 2.4 GPU-hours\n\
                    Since 2026-11-29T10:48:00Z.\n\
                    Next: the node is drained in 48 m (2026-11-29T12:48:00Z) at the earliest, if it goes on.\n\
                    Why: `gpu-reaper-hc --explain 4240_2` on `n1`. \
                    To spare the job: `gpu-reaper-hc keep 4240_2 --for 4h --reason ...`";
        assert_eq!(text(&event()), want);
        let observed = text(&Event { mode: "observe", ..event() });
        assert!(observed.contains("mode is observe, so it will be withheld."), "{observed}");
        let over =
            text(&Event { event: What::Recovered, words: "alive: GPU 0 works again".into(), ..event() });
        assert!(over.starts_with("*Over*: job `4240_2`") && !over.contains("keep"), "{over}");
    }

    #[test]
    fn a_users_text_makes_no_mention_no_link_and_no_markup() {
        // google/cybernetic-agent-governance-engine#26, 8398a7/action-slack#158 (AL-06).
        let hostile = [
            "<!channel> <https://evil.example|click> &<>",
            "@channel @here <@U123> <#C1>",
            "`*bold*` _it_ ~no~",
            "a\nb\r\u{2028}c\u{202e}d\u{200b}e\u{feff}f\u{1b}[2J",
            "",
            "   ",
            &"x".repeat(5000),
        ];
        for name in hostile {
            let mut event = event();
            let job = event.job.as_mut().unwrap();
            (job.name, job.user, job.partition) = (Some(name.into()), Some(name.into()), Some(name.into()));
            let said = text(&Event { words: format!("node: {name}"), ..event });
            assert_eq!(said.lines().count(), 6, "{said}");
            assert!(!said.contains(['<', '>', '@']) && !said.contains("://"), "{said}");
            assert!(!said.chars().any(|c| is_unseen(c) && c != '\n') && said.len() < 2500, "{said}");
            // Outside of code nothing but our own headline is marked up.
            for line in said.lines() {
                let parts: Vec<&str> = line.split('`').collect();
                assert!(parts.len() % 2 == 1, "every code ends: {line}");
                let bare: String = parts.iter().step_by(2).copied().collect();
                assert!(bare.matches('*').count() <= 2 && !bare.contains(['_', '~']), "{line}");
            }
        }
        assert_eq!(code("<!channel> &"), "`&lt;!channel&gt; &amp;`");
    }

    #[test]
    fn a_server_says_when_it_wants_to_hear_again() {
        // YelpArchive/elastalert#1345 (AL-01)
        let now = WallMs(1_445_412_420_000);
        for (said, want) in [
            ("120", Some(120_000)),
            (" 0 ", Some(0)),
            ("Wed, 21 Oct 2015 07:28:00 GMT", Some(60_000)),
            ("Wed, 21 Oct 2015 07:20:00 GMT", Some(0)),
            ("soon", None),
            ("-5", None),
            ("99999999999", None),
        ] {
            assert_eq!(wait_ms(said, now), want, "{said}");
        }
    }

    #[test]
    fn only_an_address_that_hides_its_secret_on_the_way_is_used() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("webhook");
        for (word, sound) in [
            ("https://hooks.slack.com/services/T0/B0/s3cr3t", true),
            ("https://relay.example:8443/?key=s3cr3t", true),
            ("http://127.0.0.1:9000/s3cr3t", true),
            ("http://[::1]/s3cr3t", true),
            ("http://localhost:80/s3cr3t", true),
            ("http://hooks.example/s3cr3t", false),
            ("http://127.0.0.1.evil.example/s3cr3t", false),
            ("http://127.0.0.1@evil.example/s3cr3t", false),
            ("https://user:s3cr3t@hooks.example/", false),
            ("https:///s3cr3t", false),
            ("ftp://hooks.example/s3cr3t", false),
            ("s3cr3t", false),
        ] {
            std::fs::write(&file, word).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
            let found = address(&file);
            assert_eq!(found.is_ok(), sound, "{word}");
            // DependencyTrack/dependency-track#1159 (AL-07)
            assert!(found.err().is_none_or(|why| !why.contains("s3cr3t")), "{word}");
        }
    }

    #[test]
    fn what_repeats_the_address_is_shown_without_it() {
        // DependencyTrack/dependency-track#1159 (AL-07)
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("webhook");
        std::fs::write(&file, "https://hooks.slack.com:443/services/T0AAA/B0BBB/s3cr3t?key=othersecret")
            .unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let address = address(&file).unwrap();
        let said = "no route https://hooks.slack.com:443/services/T0AAA/B0BBB/s3cr3t?key=othersecret, \
                    /services/T0AAA/B0BBB/s3cr3t, B0BBB, othersecret, hooks.slack.com";
        let shown = hidden(&address, said);
        for part in ["hooks", "T0AAA", "B0BBB", "s3cr3t", "othersecret"] {
            assert!(!shown.contains(part), "{shown}");
        }
    }
}

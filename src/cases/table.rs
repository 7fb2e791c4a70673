//! The table for people, newest first, and beneath it what it sums up to by signature.

use super::{Hours, Kept, Row};
use crate::screen::{Ink, Screen};

const HEADING: [&str; 8] =
    ["JOB", "USER", "PARTITION", "GPUS", "FINDING", "ENDED (UTC)", "GPU-H", "DONE (WITHHELD)"];
/// Right-aligned.
const NUMBERS: [usize; 2] = [3, 6];

pub(super) fn print(kept: &Kept, screen: &Screen) -> String {
    let rows = &kept.rows;
    let line = |text: &str| screen.paragraph(Ink::Plain, "", text);
    let reach = reach(kept).map_or(String::new(), |words| line(&words));
    if rows.is_empty() {
        let none = match (kept.from, kept.older) {
            (Some(from), 1..) => {
                format!("none ended since {}; {} older are kept", from.rfc3339(), kept.older)
            }
            _ => "no case file here: one is kept of each job run that ended after a finding or an action"
                .to_owned(),
        };
        return line(&none) + &reach;
    }
    let mut lines = vec![(Ink::Strong, HEADING.map(str::to_owned).to_vec())];
    lines.extend(rows.iter().map(|row| (ink(row), cells(row).to_vec())));
    screen.table_with_numbers(&lines, &NUMBERS) + "\n" + &line(&total(rows)) + &reach
}

/// Where more is asked for than can be told.
fn reach(kept: &Kept) -> Option<String> {
    let back_to = kept.reaches_back_to;
    (kept.from? < back_to).then(|| {
        format!(
            "what ended before {} is not known, or kept no more: `--since` asks for more",
            back_to.rfc3339()
        )
    })
}

fn ink(row: &Row) -> Ink {
    if row.body.is_some() { Ink::Plain } else { Ink::Notice }
}

fn cells(row: &Row) -> [String; 8] {
    let ended = row.ended.rfc3339();
    let ended = ended.get(..16).unwrap_or(&ended).replace('T', " ");
    let text = |text: &Option<String>| text.as_deref().unwrap_or("-").to_owned();
    let job = match row.restart {
        0 => row.job.clone(),
        n => format!("{} r{n}", row.job),
    };
    let Some(body) = &row.body else {
        let nothing = || "-".to_owned();
        let why = "not readable".to_owned();
        return [job, nothing(), nothing(), nothing(), nothing(), ended, nothing(), why];
    };
    let withheld = body.withheld.iter().map(|(asked, _)| format!("({asked})"));
    let mut done: Vec<String> = body.done.clone();
    for word in withheld {
        if !done.contains(&word) {
            done.push(word);
        }
    }
    let finding = match (&body.signature, body.scope.as_deref()) {
        (Some(signature), Some("part")) => format!("{signature} part"),
        (signature, _) => text(signature),
    };
    [
        job,
        text(&body.user),
        text(&body.partition),
        body.gpus.to_string(),
        finding,
        ended,
        hours(&body.hours),
        done.join(" "),
    ]
}

/// A sum from which something lacks is no less than it says.
fn hours(hours: &Hours) -> String {
    let more = if hours.some_lacking { ">" } else { "" };
    hours.sum().map_or("-".to_owned(), |sum| format!("{more}{sum:.1}"))
}

fn total(rows: &[Row]) -> String {
    let mut sum = Hours::default();
    let (mut unreadable, mut lacking) = (0, 0);
    for row in rows {
        let Some(body) = &row.body else {
            unreadable += 1;
            continue;
        };
        lacking += usize::from(body.hours.some_lacking);
        for (signature, hours) in &body.hours.by_signature {
            sum.add(signature, *hours);
        }
    }
    sum.by_signature.sort_by(|a, b| b.1.total_cmp(&a.1));
    let each: Vec<String> =
        sum.by_signature.iter().map(|(signature, hours)| format!("{signature} {hours:.1}")).collect();
    let files = if rows.len() == 1 { "1 job run".to_owned() } else { format!("{} job runs", rows.len()) };
    sum.some_lacking = lacking + unreadable > 0;
    let mut line = format!("{files} that ended: {} certified GPU-hours", hours(&sum));
    if !each.is_empty() {
        line += &format!(" ({})", each.join(", "));
    }
    if lacking > 0 {
        line += &format!("; of {lacking} not all hours were kept");
    }
    if unreadable > 0 {
        line += &format!("; the case files of {unreadable} are not readable");
    }
    line
}

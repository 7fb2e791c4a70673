//! The table for people, newest first, and beneath it what it sums up to by signature.

use super::{Hours, Row};
use crate::screen::{Ink, Screen};

const HEADING: [&str; 8] =
    ["JOB", "USER", "PARTITION", "GPUS", "FINDING", "ENDED (UTC)", "GPU-H", "DONE (WITHHELD)"];
/// Right-aligned.
const NUMBERS: [usize; 2] = [3, 6];

pub(super) fn print(rows: &[Row], screen: &Screen) -> String {
    if rows.is_empty() {
        return screen.paragraph(
            Ink::Plain,
            "",
            "no case file here: one is kept of each job run that ended after a finding or an action",
        );
    }
    let mut lines = vec![(Ink::Strong, HEADING.map(str::to_owned).to_vec())];
    lines.extend(rows.iter().map(|row| (ink(row), cells(row).to_vec())));
    screen.table_with_numbers(&lines, &NUMBERS) + "\n" + &screen.paragraph(Ink::Plain, "", &total(rows))
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
    match (hours.by_signature.is_empty(), hours.some_lacking) {
        (true, true) => "-".to_owned(),
        (_, true) => format!(">{:.1}", hours.sum()),
        (_, false) => format!("{:.1}", hours.sum()),
    }
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
    let files = if rows.len() == 1 { "1 case file".to_owned() } else { format!("{} case files", rows.len()) };
    let mut line = format!("{files}: {:.1} certified GPU-hours", sum.sum());
    if !each.is_empty() {
        line += &format!(" ({})", each.join(", "));
    }
    if lacking > 0 {
        line += &format!("; of {lacking} not all hours were kept");
    }
    if unreadable > 0 {
        line += &format!("; {unreadable} not readable");
    }
    line
}

//! CSV by RFC 4180, that neither a terminal nor a spreadsheet obeys: control characters are spelled out, and a cell that a
//! spreadsheet would take for a formula begins with an apostrophe.

use super::Row;

const COLUMNS: [&str; 19] = [
    "node",
    "job",
    "restart",
    "user",
    "account",
    "partition",
    "nodes",
    "gpus",
    "signature",
    "scope",
    "since",
    "established",
    "ended",
    "certified_gpu_hours",
    "certified_by_signature",
    "hours_complete",
    "done",
    "withheld",
    "readable",
];

pub(super) fn print(rows: &[Row]) -> String {
    let mut out = line(COLUMNS.iter().map(|name| (*name).to_owned()));
    for row in rows {
        out += &line(cells(row).into_iter());
    }
    out
}

fn cells(row: &Row) -> [String; 19] {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (node, job, restart) = (row.node.to_string(), row.job.clone(), row.restart.to_string());
    let ended = row.ended.rfc3339();
    let mut cells = [const { String::new() }; 19];
    let Some(body) = &row.body else {
        [cells[0], cells[1], cells[2], cells[12], cells[18]] =
            [node, job, restart, ended, "false".to_owned()];
        return cells;
    };
    let by_signature =
        body.hours.by_signature.iter().map(|(signature, hours)| format!("{signature} {hours:.3}"));
    let withheld = body.withheld.iter().map(|(asked, because)| format!("{asked}: {because}"));
    [
        node,
        job,
        restart,
        text(&body.user),
        text(&body.account),
        text(&body.partition),
        body.nodes.map_or(String::new(), |nodes| nodes.to_string()),
        body.gpus.to_string(),
        text(&body.signature),
        text(&body.scope),
        text(&body.since),
        text(&body.established),
        ended,
        body.hours.sum().map_or(String::new(), |hours| format!("{hours:.3}")),
        by_signature.collect::<Vec<_>>().join("; "),
        (!body.hours.some_lacking).to_string(),
        body.done.join("; "),
        withheld.collect::<Vec<_>>().join("; "),
        "true".to_owned(),
    ]
}

fn line(cells: impl Iterator<Item = String>) -> String {
    cells.map(|text| cell(&text)).collect::<Vec<_>>().join(",") + "\r\n"
}

/// One cell. A quote is doubled; what may end it, or is a blank at its edge, stands in quotes.
fn cell(text: &str) -> String {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠']);
    let spelled: String = text.chars().map(spelled).collect();
    let harmless = if formula { format!("'{spelled}") } else { spelled };
    match harmless.contains([',', '"', ' ', ';', '\'']) {
        true => format!("\"{}\"", harmless.replace('"', "\"\"")),
        false => harmless,
    }
}

fn spelled(c: char) -> String {
    match c {
        '"' | '\'' | '\\' => c.to_string(),
        c => c.escape_debug().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_no_formula_no_second_line_and_no_escape_sequence() {
        let table = [
            ("ada", "ada"),
            ("", ""),
            ("=cmd|' /C calc'!A0", "\"'=cmd|' /C calc'!A0\""),
            ("+1", "\"'+1\""),
            ("-1+2", "\"'-1+2\""),
            ("@SUM(A1)", "\"'@SUM(A1)\""),
            ("\t=1", "\"'\\t=1\""),
            ("\r=1", "\"'\\r=1\""),
            ("＝1", "\"'＝1\""),
            ("a,b", "\"a,b\""),
            ("say \"hi\"", "\"say \"\"hi\"\"\""),
            ("two\nlines", "two\\nlines"),
            ("\u{1b}[2J\u{9b}31m\u{202e}", "\\u{1b}[2J\\u{9b}31m\\u{202e}"),
            ("müller", "müller"),
        ];
        for (text, want) in table {
            assert_eq!(cell(text), want, "{text:?}");
        }
    }
}

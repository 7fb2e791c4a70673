//! The job's GPUs on the page: drawn over time, and as the newest sample found them. What several GPUs have alike to the
//! last sign is said once for all of them.

use super::Told;
use super::text::{Page, grouped};
use super::timeline::{self, Mark, Rows, Seen, Timeline};
use crate::model::*;
use crate::policy::{interval, level};
use crate::reading::{Absence, Reading};
use crate::screen::{Cell, Ink, Screen};
use crate::units::{MemoryBytes, Milliwatts, WallMs, human_ms};
use std::collections::BTreeSet;

/// Beyond so many columns a drawing shows no more.
const WIDEST: usize = 200;

/// The GPUs' names on the page: their index, and for instances of one GPU a letter behind it.
fn names(told: &Told) -> Vec<String> {
    let units = &told.assessment.units;
    let index = |n: usize| units[n].unit.index;
    let name = |n: usize| {
        let same = (0..units.len()).filter(|other| index(*other) == index(n)).count();
        let before = (0..n).filter(|other| index(*other) == index(n)).count();
        let letter =
            if same > 1 { char::from(b'a' + before.min(25) as u8).to_string() } else { String::new() };
        format!("{}{letter}", index(n))
    };
    (0..units.len()).map(name).collect()
}

/// `0-3,5` for names in a row.
fn listed(names: &[String], members: &[usize]) -> String {
    let follows = |a: usize, b: usize| {
        let number = |n: usize| names[n].parse::<u32>().ok();
        number(a).zip(number(b)).is_some_and(|(a, b)| a + 1 == b)
    };
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &member in members {
        match parts.last_mut() {
            Some((_, last)) if follows(*last, member) => *last = member,
            _ => parts.push((member, member)),
        }
    }
    let part = |(first, last): &(usize, usize)| match first == last {
        true => names[*first].clone(),
        false => format!("{}-{}", names[*first], names[*last]),
    };
    parts.iter().map(part).collect::<Vec<_>>().join(",")
}

/// What each GPU says, once for all that say the same, with the GPUs' names.
fn alike(names: &[String], of: impl Fn(usize) -> String) -> Vec<(String, String)> {
    let mut groups: Vec<(Vec<usize>, String)> = Vec::new();
    for n in 0..names.len() {
        let says = of(n);
        match groups.iter_mut().find(|(_, said)| *said == says) {
            Some((members, _)) => members.push(n),
            None => groups.push((vec![n], says)),
        }
    }
    groups.into_iter().map(|(members, says)| (format!("GPU {}", listed(names, &members)), says)).collect()
}

/// One quantity that is drawn.
struct Quantity {
    name: &'static str,
    top: u64,
    top_words: String,
    row: fn(&Rows) -> &Vec<Seen>,
}

fn quantities(told: &Told, drawn: &Timeline) -> [Quantity; 3] {
    let newest = told.history.ticks.last();
    let limits = newest.iter().flat_map(|t| &t.units).filter_map(|o| o.power_limit.measured()).map(|p| p.0);
    let totals = newest.iter().flat_map(|t| &t.units).filter_map(|o| o.memory.measured()).map(|m| m.total.0);
    let highest = |row: fn(&Rows) -> &Vec<Seen>| {
        let values = drawn.units.iter().flat_map(row).filter_map(|seen| match seen {
            Seen::Value(value) => Some(*value),
            Seen::Absent(_) | Seen::Hole => None,
        });
        values.max().unwrap_or(0)
    };
    let power: fn(&Rows) -> &Vec<Seen> = |rows| &rows.power;
    let memory: fn(&Rows) -> &Vec<Seen> = |rows| &rows.memory;
    let (watts, bytes) = (|n| Milliwatts(n).watts(), |n| MemoryBytes(n).human());
    let (power_top, power_words) = match limits.max() {
        Some(limit) => (limit, format!("the power limit, {}", watts(limit))),
        None => (
            highest(power),
            format!("the highest seen, {} (no power limit is readable)", watts(highest(power))),
        ),
    };
    let (memory_top, memory_words) = match totals.max() {
        Some(total) => (total, format!("all of it, {}", bytes(total))),
        None => (highest(memory), format!("the most seen, {}", bytes(highest(memory)))),
    };
    [
        Quantity {
            name: "utilization, highest",
            top: 100,
            top_words: "100 %".to_owned(),
            row: |rows| &rows.util,
        },
        Quantity { name: "power, mean", top: power_top, top_words: power_words, row: power },
        Quantity { name: "memory, highest", top: memory_top, top_words: memory_words, row: memory },
    ]
}

/// The job over time, drawn.
pub(super) fn over_time(page: &mut Page, told: &Told) {
    let names = names(told);
    if told.units_are_shared() || names.is_empty() || told.history.ticks.is_empty() {
        return;
    }
    let longest = format!("  GPU {}  ", listed(&names, &(0..names.len()).collect::<Vec<_>>())).len();
    let indent = longest.clamp(10, 20);
    let columns = (page.screen.width - indent - 2).min(WIDEST);
    let Some(drawn) = timeline::of(told, columns) else { return };
    let column_ms = (drawn.to.0 - drawn.from.0) / columns as i64;
    let from = if drawn.whole { "its start" } else { "the oldest sample that is kept" };
    let to = if told.ended.is_some() { "its end" } else { "now" };
    page.head(&format!("Over time, from {from} to {to}: {} a column", human_ms(column_ms.max(1000))));
    let frame = |label: &str, signs: &str| format!("{:<indent$}|{signs}|\n", format!("  {label}"));
    for quantity in quantities(told, &drawn) {
        page.out += &page.screen.paragraph(
            Ink::Plain,
            "",
            &format!("{}; top: {}", quantity.name, quantity.top_words),
        );
        for (label, signs) in alike(&names, |n| signs(&drawn, n, &quantity, page.screen)) {
            page.out += &frame(&label, &signs);
        }
    }
    let marks = alike(&names, |n| drawn.units.get(n).map_or(String::new(), marks));
    if marks.iter().any(|(_, signs)| !signs.trim().is_empty()) {
        page.out += "`s` at 95 % or more without memory traffic; `h` slowed by hardware or heat\n";
        marks.iter().for_each(|(label, signs)| page.out += &frame(label, signs));
    }
    page.out += &format!("{}{}\n", " ".repeat(indent), axis(&drawn, columns).trim_end());
    page.out += &page.screen.paragraph(Ink::Plain, "", page.screen.legend());
    for (label, why) in alike(&names, |n| unreadable(&drawn, n)) {
        if !why.is_empty() {
            page.out += &page.screen.paragraph(Ink::Notice, &format!("? {label}: "), &why);
        }
    }
}

fn signs(drawn: &Timeline, unit: usize, quantity: &Quantity, screen: &Screen) -> String {
    let cell = |seen: &Seen| match seen {
        Seen::Value(value) => Cell::of(*value, quantity.top),
        Seen::Absent(_) => Cell::Absent,
        Seen::Hole => Cell::Hole,
    };
    let row = drawn.units.get(unit).map(quantity.row);
    row.into_iter().flatten().map(|seen| screen.sign(cell(seen))).collect()
}

fn marks(rows: &Rows) -> String {
    let sign = |mark: &Mark| match mark {
        Mark::None => ' ',
        Mark::Spin => 's',
        Mark::Throttled => 'h',
    };
    rows.marks.iter().map(sign).collect()
}

/// Why something of a unit is drawn as not readable.
fn unreadable(drawn: &Timeline, unit: usize) -> String {
    let Some(rows) = drawn.units.get(unit) else { return String::new() };
    let mut parts: BTreeSet<(&str, Absence)> = BTreeSet::new();
    for (name, row) in [("utilization", &rows.util), ("power", &rows.power), ("memory", &rows.memory)] {
        parts.extend(row.iter().filter_map(|seen| match seen {
            Seen::Absent(why) => Some((name, *why)),
            Seen::Value(_) | Seen::Hole => None,
        }));
    }
    grouped(&parts.into_iter().map(|(name, why)| (name, Reading::Absent(why))).collect::<Vec<_>>())
}

/// Clock times under the columns that they name, in UTC as everywhere.
fn axis(drawn: &Timeline, columns: usize) -> String {
    const STEPS_M: [i64; 15] = [1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10_080, 43_200];
    const APART: i64 = 12;
    let span_ms = (drawn.to.0 - drawn.from.0).max(1);
    let fits = |minutes: &&i64| **minutes * 60_000 * columns as i64 / span_ms >= APART;
    let step_ms = STEPS_M.iter().find(fits).unwrap_or(&STEPS_M[14]) * 60_000;
    let mut line = String::new();
    let mut at_ms = (drawn.from.0 + step_ms - 1).div_euclid(step_ms) * step_ms;
    while at_ms < drawn.to.0 {
        let column = ((at_ms - drawn.from.0) * columns as i64 / span_ms) as usize;
        // 2026-11-29T13:25:38Z
        let text = WallMs(at_ms).rfc3339();
        let day = at_ms.rem_euclid(86_400_000) == 0;
        let label = if day { text.get(5..10) } else { text.get(11..16) };
        let label = format!("|{}", label.unwrap_or(""));
        // The frame's own bar takes the first place of the line.
        if column + 1 >= line.len() && column + 1 + label.len() <= columns + 2 {
            line = format!("{line:<0$}{label}", column + 1);
        }
        at_ms += step_ms;
    }
    if line.is_empty() {
        line = format!("|{}", drawn.from.rfc3339().get(11..16).unwrap_or(""));
    }
    match line.len() + 4 <= columns + 2 {
        true => line + " UTC",
        false => line,
    }
}

/// A reading in a cell.
fn cell<T>(reading: &Reading<T>, words: impl Fn(&T) -> String) -> String {
    reading.measured().map_or("?".to_owned(), words)
}

/// The GPUs as the newest sample found them.
pub(super) fn gpus(page: &mut Page, told: &Told) {
    if told.units_are_shared() {
        return page.head("Whose its GPUs are is not certain; no sample is shown as its own");
    }
    let Some(newest) = told.history.ticks.last() else { return page.head("There is no sample of it yet") };
    let (kept, at) = (told.history.ticks.len(), newest.wall.rfc3339());
    page.head(&format!("Its GPUs, as of {at}, the newest of {kept} samples"));
    let names = names(told);
    let heads = ["GPU", "util", "mem util", "memory", "power", "mean", "procs", "quiet for"];
    let mut rows = vec![(Ink::Strong, heads.map(str::to_owned).to_vec())];
    let of = |n: usize| now_cells(told, n, &newest.units[n]).join("\n");
    for (label, cells) in alike(&names, of) {
        let label = label.trim_start_matches("GPU ").to_owned();
        rows.push((Ink::Plain, std::iter::once(label).chain(cells.lines().map(str::to_owned)).collect()));
    }
    page.out += &page.screen.table(&rows);
    for (label, why) in alike(&names, |n| not_readable(told, n, &newest.units[n])) {
        if !why.is_empty() {
            page.out += &page.screen.paragraph(Ink::Notice, &format!("? {label}: "), &why);
        }
    }
    for (label, says) in alike(&names, |n| counted(told, n)) {
        page.out += &page.screen.paragraph(Ink::Plain, &format!("{label}, since the run before: "), &says);
    }
    page.out += &page.screen.paragraph(Ink::Plain, "At rest: ", &learnt(told));
    let units = &told.assessment.units;
    let short = |n: usize| units[n].unit.uuid.as_str().get(..12);
    let differ = (0..names.len()).map(short).collect::<BTreeSet<_>>().len() == names.len();
    let uuid = |n: usize| {
        let short = short(n).filter(|_| differ && page.screen.width < 130);
        format!("{} {}", names[n], short.unwrap_or(units[n].unit.uuid.as_str()))
    };
    let uuids: Vec<String> = (0..names.len()).map(uuid).collect();
    page.out += &page.screen.paragraph(Ink::Plain, "UUIDs: ", &uuids.join(", "));
}

/// One GPU's row of the table, but for its name.
fn now_cells(told: &Told, unit: usize, seen: &Observation) -> [String; 7] {
    let memory = |m: &Memory| format!("{} of {}", m.used.human().trim_end_matches(" GiB"), m.total.human());
    [
        cell(&level::peak(seen.sm_util, &seen.sm_peak), |p| p.to_string()),
        cell(&seen.mem_util, |p| p.to_string()),
        cell(&seen.memory, memory),
        cell(&seen.power, |p| p.watts()),
        cell(&mean_power(told, unit), |p| p.watts()),
        cell(&seen.processes, |p| p.compute.to_string()),
        human_ms(told.assessment.units[unit].quiet_ms),
    ]
}

fn mean_power(told: &Told, unit: usize) -> Reading<Milliwatts> {
    match &told.history.ticks[..] {
        [.., before, now] => interval::mean_power(before.moment(unit), now.moment(unit)),
        _ => Reading::Absent(Absence::NotRecorded),
    }
}

/// Why a cell of a GPU's row is empty.
fn not_readable(told: &Told, unit: usize, seen: &Observation) -> String {
    let why = |name, absence: Option<Absence>| absence.map(|why| (name, Reading::Absent(why)));
    let parts = [
        why("utilization", level::peak(seen.sm_util, &seen.sm_peak).absence()),
        why("memory utilization", seen.mem_util.absence()),
        why("memory", seen.memory.absence()),
        why("power", seen.power.absence()),
        why("mean power", mean_power(told, unit).absence()),
        why("processes", seen.processes.absence()),
    ];
    grouped(&parts.into_iter().flatten().collect::<Vec<_>>())
}

/// What the counters say of the time since the run before.
fn counted(told: &Told, unit: usize) -> String {
    let [.., before, now] = &told.history.ticks[..] else { return "nothing, it was the first".to_owned() };
    let (then, at) = (before.moment(unit), now.moment(unit));
    let gpm = now.units[unit].fields.get(Field::GpmSmActive);
    let parts = [
        ("slowed", interval::slowed_permille(then, at).map(|n| format!("{}.{} %", n / 10, n % 10))),
        (
            "PCIe and NVLink traffic",
            interval::traffic(then, at).map(|moved| if moved { "yes" } else { "none" }.to_owned()),
        ),
        ("activity by GPM", gpm.map(|n| format!("{}.{:02} %", n / 100, n % 100))),
    ];
    grouped(&parts)
}

/// What this node learnt that the cards draw at rest, from the least to the most of them; a mean a quarter above it was
/// work.
fn learnt(told: &Told) -> String {
    const RESTS: [(&str, Rest); 4] = [
        ("empty", Rest::EmptyLow),
        ("empty at high clocks", Rest::EmptyHigh),
        ("with a process", Rest::ContextLow),
        ("with a process at high clocks", Rest::ContextHigh),
    ];
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    for (name, rest) in RESTS {
        let watts = told.history.floors.iter().filter_map(|floors| floors.get(rest).measured().copied());
        match (watts.clone().min(), watts.max()) {
            (Some(least), Some(most)) if least == most => known.push(format!("{name} {}", least.watts())),
            (Some(least), Some(most)) => known.push(format!("{name} {} to {}", least.watts(), most.watts())),
            _ => unknown.push(name),
        }
    }
    if !unknown.is_empty() {
        known.push(format!("not yet known: {}", unknown.join(", ")));
    }
    known.join("; ")
}

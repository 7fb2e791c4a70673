//! The page for a terminal: GPUs as a table, then each job, the hours, and our drains.

use super::{Drain, Part, Status, Unit, part, withheld};
use crate::explain::{Told, text::verdict};
use crate::policy::attribution::Holder;
use crate::policy::fault::Kind;
use crate::policy::free::Free;
use crate::reading::{Absence, Reading};
use crate::screen::{Ink, Screen};
use crate::units::{GpuHours, UnitUuid, human_ms};
use std::collections::BTreeMap;

/// So wide a page has room for the next step beside each GPU; else it stands with its job.
const WIDE: usize = 100;
/// Columns that are numbers.
const NUMBERS: [usize; 3] = [2, 3, 4];
/// Of a UUID so much is shown: `GPU-8f2c1a3b`.
const UUID_SIGNS: usize = 12;

/// One page about this node.
pub fn page(status: &Status, screen: &Screen) -> String {
    let mut out = head(status, screen);
    out.push('\n');
    out += &gpus(status, screen);
    let jobs: String = status.jobs.iter().map(|told| job(told, screen)).collect();
    if !jobs.is_empty() {
        out.push('\n');
        out += &jobs;
    }
    out.push('\n');
    out += &hours(status, screen);
    for drain in &status.drains {
        out += &drained(status, drain, screen);
    }
    for orphan in &status.orphans {
        out += &screen.paragraph(Ink::Bad, "orphan     ", &orphan.detail);
    }
    out
}

fn head(status: &Status, screen: &Screen) -> String {
    let mode = if status.mode.enforces() { "enforce" } else { "observe" };
    let words = format!("{}, mode {mode}, as of {}", status.node, status.now.wall.rfc3339());
    let mut out = screen.paragraph(Ink::Strong, "node       ", &words);
    let (ink, words) = last_run(status);
    out += &screen.paragraph(ink, "last run   ", &words);
    if let Some(new) = &status.too_new {
        out += &screen.paragraph(Ink::Notice, "note       ", new);
    }
    for fault in &status.faults {
        let taken = fault.acked_by.as_ref().map_or(String::new(), |by| format!(" (acknowledged by {by})"));
        let since = fault.opened.rfc3339();
        // What is no kind of fault is a trouble of the collector: nobody can take that on, it ends by itself.
        let (label, what) = match Kind::from_word(&fault.kind) {
            Some(kind) => (format!("fault {}", fault.id), kind.word()),
            None => ("note".to_owned(), "the GPUs cannot be read"),
        };
        let words = format!("{what}{taken} since {since}: {}", fault.detail);
        let ink = if taken.is_empty() { Ink::Bad } else { Ink::Notice };
        out += &screen.paragraph(ink, &format!("{label:<11}"), &words);
    }
    out
}

fn last_run(status: &Status) -> (Ink, String) {
    let often = match status.cadence {
        Reading::Measured(cadence) => format!("one every {}", human_ms(cadence.median_ms)),
        Reading::Absent(_) => "how often runs come is not known yet".to_owned(),
    };
    let Some(look) = &status.newest else {
        let last = match status.last_run {
            Some(wall) => format!("none since this node booted; the last one was {}", wall.rfc3339()),
            None => "none yet".to_owned(),
        };
        return (Ink::Bad, last);
    };
    let read = match look.failed {
        None => match status.seen_gpus() {
            1 => "1 GPU".to_owned(),
            all => format!("{all} GPUs"),
        },
        Some(why) => format!("GPUs not read: {}", why.words()),
    };
    let ago = human_ms(status.age_ms().unwrap_or(0));
    match status.is_stale() {
        true => (Ink::Bad, format!("{ago} ago, {often}: no run came since, nothing below is newer; {read}")),
        false if look.failed.is_some() => (Ink::Bad, format!("{ago} ago, {often}; {read}")),
        false => (Ink::Plain, format!("{ago} ago, {often}; {read}")),
    }
}

fn gpus(status: &Status, screen: &Screen) -> String {
    if status.units.is_empty() {
        return "no GPU was seen since this node booted\n".to_owned();
    }
    let heading = ["GPU", "UUID", "UTIL", "MEMORY", "POWER", "HELD BY, AND HOW IT STANDS"];
    let mut rows = vec![(Ink::Strong, heading.map(str::to_owned).to_vec())];
    rows.extend(status.units.iter().map(|unit| row(status, unit, screen)));
    let mut out = screen.table_with_numbers(&rows, &NUMBERS);
    for (what, units) in not_readable(status) {
        out += &screen.paragraph(Ink::Notice, "-          ", &format!("{what} of GPU {}", units.join(", ")));
    }
    out
}

fn row(status: &Status, unit: &Unit, screen: &Screen) -> (Ink, Vec<String>) {
    let seen = &unit.seen;
    let (ink, state) = state(status, unit, screen.width >= WIDE);
    let cells = [
        label(unit),
        short(&unit.known.uuid),
        shown(unit.utilization(), |percent| percent.to_string()),
        shown(seen.memory, |memory| memory.used.human()),
        shown(seen.power, |power| power.watts()),
        state,
    ];
    (ink, cells.to_vec())
}

fn shown<T>(reading: Reading<T>, words: impl Fn(T) -> String) -> String {
    match reading {
        Reading::Measured(value) => words(value),
        Reading::Absent(_) => "-".to_owned(),
    }
}

/// Its index; of an instance also those of GPU instance and compute instance.
fn label(unit: &Unit) -> String {
    match unit.instance() {
        None => unit.known.index.to_string(),
        Some((gi, ci)) => format!("{}/{gi}/{ci}", unit.known.index),
    }
}

fn short(uuid: &UnitUuid) -> String {
    uuid.as_str().chars().take(UUID_SIGNS).collect()
}

fn state(status: &Status, unit: &Unit, with_next: bool) -> (Ink, String) {
    if let Some(free) = &unit.free {
        let ink = match free {
            Free::Reclaimable => Ink::Good,
            Free::NotSettled(_) => Ink::Plain,
            Free::Doubted(_) => Ink::Notice,
        };
        return (ink, free.words());
    }
    let ids = |ids: &[_]| -> String {
        let shown = ids.iter().filter_map(|id| status.job(*id)).map(|told| told.history.job.shown_id());
        shown.collect::<Vec<_>>().join(", ")
    };
    let Some(told) = status.holder(unit) else {
        return match &unit.holder {
            Holder::MayBe(jobs) => (Ink::Notice, format!("may be held by {}: not known", ids(jobs))),
            Holder::Jobs(jobs) => (Ink::Notice, format!("shared by {}: not judged", ids(jobs))),
            Holder::Nobody => (Ink::Plain, String::new()),
        };
    };
    let part = part(told, &unit.known.uuid);
    let length = human_ms(part.quiet_ms);
    let guard = told.guard().map_or(String::new(), |guard| format!(" ({})", guard.word()));
    let mut words = match part {
        Part { found: true, word, .. } => format!("{word} {length}"),
        Part { word, quiet_ms, .. } if quiet_ms >= 60_000 => format!("{word}{guard}, quiet {length}"),
        Part { word, .. } => format!("{word}{guard}"),
    };
    if with_next
        && told.next.is_some()
        && let Some(next) = next(told)
    {
        words += &format!("; next: {next}");
    }
    (ink(told), format!("{}: {words}", who(told)))
}

fn ink(told: &Told) -> Ink {
    if told.finding().is_some() { Ink::Bad } else { Ink::Plain }
}

/// The job as Slurm shows it, and its user.
fn who(told: &Told) -> String {
    let job = &told.history.job;
    match &job.registration.user {
        Reading::Measured(user) => format!("{} {user}", job.shown_id()),
        Reading::Absent(_) => job.shown_id(),
    }
}

/// The next step and when, while a finding stands.
fn next(told: &Told) -> Option<String> {
    told.finding()?;
    Some(match &told.next {
        None => "no further stage".to_owned(),
        Some(next) => {
            let withheld = told.next_is_withheld().map_or(String::new(), |why| format!(" (withheld: {why})"));
            match next.in_ms {
                0 => format!("{} is due{withheld}", next.verdict),
                in_ms => format!("{} in {}{withheld}", next.verdict, human_ms(in_ms)),
            }
        }
    })
}

fn job(told: &Told, screen: &Screen) -> String {
    let run = &told.history.job.registration;
    let head = format!("{:<11}", format!("job {}", screen.clean(&told.history.job.shown_id())));
    let named = |name: &str, reading: &Reading<String>| match reading {
        Reading::Measured(text) => format!("{name} {text}, "),
        Reading::Absent(_) => String::new(),
    };
    let whose = named("user", &run.user) + &named("partition", &run.partition);
    let mut out = screen.paragraph(ink(told), &head, &format!("{whose}{}", verdict(told)));
    let withheld = withheld(told);
    // Where the last stage is withheld that says it.
    if let Some(next) = next(told).filter(|_| told.next.is_some() || withheld.is_empty()) {
        out += &screen.paragraph(Ink::Plain, "  next     ", &next);
    }
    for (asked, because) in withheld {
        out += &screen.paragraph(Ink::Notice, "  withheld ", &format!("{asked}: {because}"));
    }
    out
}

fn hours(status: &Status, screen: &Screen) -> String {
    let hours = &status.hours;
    let figure = |hours: GpuHours| format!("{:.1}", hours.hours());
    let sum = hours.wasted.iter().map(|(_, hours)| hours.unit_ms()).sum();
    let each: Vec<String> =
        hours.wasted.iter().map(|(name, hours)| format!("{name} {}", figure(*hours))).collect();
    let each = if each.is_empty() { String::new() } else { format!(" ({})", each.join(", ")) };
    let standing = match hours.standing {
        Some(standing) => {
            format!("what stands now has cost {}, the most of it counted there", figure(standing))
        }
        None => "what stands now is not known".to_owned(),
    };
    let words = format!(
        "wasted {}{each}, blocked by our own drains {}: certified since {}, never projected; {standing}",
        figure(GpuHours::of(1, sum)),
        figure(hours.blocked),
        status.begun.rfc3339(),
    );
    screen.paragraph(Ink::Plain, "GPU-hours  ", &words)
}

fn drained(status: &Status, drain: &Drain, screen: &Screen) -> String {
    let blocks = if drain.certain { "blocks" } else { "may stand, and block" };
    let blocked = match status.free_gpus() {
        Some((1, all)) => format!("1 free GPU of {all}"),
        Some((free, all)) => format!("{free} free GPUs of {all}"),
        None => "how many free GPUs is not known".to_owned(),
    };
    let (what, since, stays) = (&drain.what, drain.since.rfc3339(), &drain.stays);
    let words = format!("for {what} since {since}: {blocks} {blocked}; it stays: {stays}");
    screen.paragraph(Ink::Notice, "our drain  ", &words)
        + &screen.paragraph(Ink::Plain, "  reason   ", &drain.reason)
}

/// What could not be read, and of which units, each reason once.
fn not_readable(status: &Status) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    // Where the whole look failed the head says so.
    for unit in
        status.units.iter().filter(|_| status.newest.as_ref().is_some_and(|look| look.failed.is_none()))
    {
        let mut by_reason: BTreeMap<Absence, Vec<&str>> = BTreeMap::new();
        let seen = &unit.seen;
        for (name, why) in [
            ("utilization", unit.utilization().absence()),
            ("memory", seen.memory.absence()),
            ("power", seen.power.absence()),
            ("process list", seen.processes.absence()),
        ] {
            // The line of a free unit says that there was no look at it yet.
            if let Some(why) = why.filter(|why| *why != Absence::NotRecorded || unit.free.is_none()) {
                by_reason.entry(why).or_default().push(name);
            }
        }
        for (why, names) in by_reason {
            all.entry(format!("not readable ({}): {}", why.words(), names.join(", ")))
                .or_default()
                .push(label(unit));
        }
    }
    all
}

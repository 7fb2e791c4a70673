//! The page for a terminal: facts, then what follows from them, then what they rest on. It needs no other page beside it.

use super::drawn::{gpus, over_time};
use super::{Told, elsewhere};
use crate::model::*;
use crate::policy::signature::Look;
use crate::policy::{Finding, Guard, Judgement, Scope, Signature};
use crate::reading::{Absence, Reading};
use crate::screen::{Ink, Screen};
use crate::units::{MemoryBytes, WallMs, human_ms};
use std::collections::BTreeMap;

pub use elsewhere::answer;

/// A page while it is written: a label, and what is said to it.
pub(super) struct Page<'a> {
    /// What it is written for.
    pub screen: &'a Screen,
    /// So far.
    pub out: String,
}

impl Page<'_> {
    /// One paragraph beside its label.
    pub fn say(&mut self, ink: Ink, label: &str, text: &str) {
        self.out += &self.screen.paragraph(ink, &format!("{label:<10}"), text);
    }

    /// A heading, after an empty line.
    pub fn head(&mut self, text: &str) {
        self.out.push('\n');
        self.out += &self.screen.paragraph(Ink::Strong, "", text);
    }
}

/// One page about a registered job run.
pub fn page(told: &Told, screen: &Screen) -> String {
    let mut page = Page { screen, out: String::new() };
    head(&mut page, told);
    match told.finding() {
        Some(finding) => found(&mut page, told, finding),
        None => page.say(ink(told), "verdict", &verdict(told)),
    }
    for xid in &told.xids {
        page.say(Ink::Notice, "driver", xid);
    }
    earlier(&mut page, told);
    deeds(&mut page, told);
    if told.ended.is_none() {
        next(&mut page, told);
    }
    over_time(&mut page, told);
    gpus(&mut page, told);
    beside(&mut page, told);
    guards(&mut page, told);
    page.out
}

/// The judgement in one line of facts.
pub fn verdict(told: &Told) -> String {
    match &told.assessment.judgement {
        Judgement::Spared { guard, because } => format!("spared by `{}`: {because}", guard.word()),
        Judgement::Unjudged { guard, because } => {
            format!("not judged (`{}`): {because}", guard.word())
        }
        Judgement::Alive { because } => format!("alive: {because}"),
        Judgement::Breaching(finding) => finding.facts(),
    }
}

fn ink(told: &Told) -> Ink {
    match told.assessment.judgement {
        Judgement::Breaching(_) => Ink::Bad,
        Judgement::Alive { .. } => Ink::Good,
        Judgement::Spared { .. } | Judgement::Unjudged { .. } => Ink::Notice,
    }
}

fn head(page: &mut Page, told: &Told) {
    let (job, r) = (&told.history.job, &told.history.job.registration);
    let text = |reading: &Reading<String>| match reading {
        Reading::Measured(text) => text.clone(),
        Reading::Absent(why) => format!("({})", why.words()),
    };
    let (id, user, partition) = (job.shown_id(), text(&r.user), text(&r.partition));
    page.say(
        Ink::Strong,
        "job",
        &format!("{id} of user {user}, partition {partition}, on node {}", told.node),
    );
    if let Some(Reading::Measured(name)) = job.details.as_ref().map(|d| &d.name) {
        page.say(Ink::Plain, "name", name);
    }
    let age = human_ms(told.now.boot.since_ms(r.start.boot));
    let restart = match r.restart {
        0 => String::new(),
        n => format!(", restarted {n} times"),
    };
    let started = r.start.wall.rfc3339();
    match told.ended {
        None => page.say(Ink::Plain, "run", &format!("started {started}, {age} ago{restart}")),
        Some(how) => {
            let ended = told.now.wall.rfc3339();
            page.say(
                Ink::Plain,
                "run",
                &format!("started {started}, over {ended}, after {age}{restart}: {how}"),
            );
        }
    }
    for other in &told.other_runs {
        page.say(Ink::Plain, "", &format!("another run of this job: {other}"));
    }
}

/// What the look of a finding is, for somebody who reads its name for the first time.
fn meaning(signature: Signature) -> &'static str {
    match signature {
        Signature::Throttled => {
            "a card at work is slowed by its hardware or by heat: the node's trouble, not the job's"
        }
        Signature::Spinning => {
            "kernels run at 95 % or more without touching memory, at the power of a wait; a collective operation \
             whose partner is gone looks so"
        }
        Signature::Idle => "nobody uses the GPUs: no process, empty memory",
        Signature::Hung => {
            "the GPUs are held and compute nothing; a server between requests and an open notebook look the same"
        }
        Signature::Starved => "the GPUs compute a little and are never busy",
        Signature::Unknown => "neither plain work nor plain waste",
    }
}

fn found(page: &mut Page, told: &Told, finding: &Finding) {
    let cost = match finding.signature {
        Signature::Throttled => String::new(),
        _ => format!("; {:.1} GPU-hours", finding.wasted().hours()),
    };
    page.say(Ink::Plain, "seen", &format!("{}{cost}", finding.seen()));
    let established = finding.established_wall(told.newest(), &told.now).rfc3339();
    let window = human_ms(told.window_ms);
    page.say(
        Ink::Plain,
        "since",
        &format!(
            "{}, without a break; a finding since {established}, after {window} of it",
            finding.since_wall.rfc3339()
        ),
    );
    let which = match finding.scope {
        Scope::Whole => "",
        Scope::Part => "; other GPUs of the job work",
    };
    let (scope, meaning) = (finding.scope.word(), meaning(finding.signature));
    let verdict =
        format!("{} on {} ({scope} of the job): {meaning}{which}", finding.signature, finding.gpus_words());
    page.say(Ink::Bad, "verdict", &verdict);
    let by = finding.capped_by.as_ref();
    let by = by.map_or(String::new(), |(guard, why)| format!(": {why} (`{}`)", guard.word()));
    page.say(Ink::Plain, "may bring", &format!("{} at most{by}", finding.cap));
}

/// Findings that are over, the latest of them.
fn earlier(page: &mut Page, told: &Told) {
    const MOST: usize = 3;
    let over: Vec<_> = told.findings.iter().filter_map(|row| Some((row, row.closed.as_ref()?))).collect();
    let left_out = over.len().saturating_sub(MOST);
    if left_out > 0 {
        page.say(Ink::Plain, "earlier", &format!("{left_out} findings before these (with --json)"));
    }
    for (row, (how, at)) in &over[left_out..] {
        let cost = row.wasted.measured().map_or(String::new(), |h| format!("; {:.1} GPU-hours", h.hours()));
        let (signature, since, at) = (&row.signature, row.since_wall.rfc3339(), at.rfc3339());
        let how = match how.as_str() {
            "alive" => "work was seen",
            "lost" => "samples were missing, or could not say",
            "exempt" => "the job became exempt",
            other => other,
        };
        page.say(Ink::Plain, "earlier", &format!("{signature}, {since} to {at}, ended: {how}{cost}"));
    }
}

/// A deed in a word that needs no other.
fn deed_word(deed: Deed) -> &'static str {
    match deed {
        Deed::Vote => "agree",
        other => other.word(),
    }
}

fn deeds(page: &mut Page, told: &Told) {
    for a in &told.actions {
        let detail = if a.detail.is_empty() { String::new() } else { format!(": {}", a.detail) };
        let (at, outcome) = (a.wall.rfc3339(), a.outcome.word());
        page.say(Ink::Plain, deed_word(a.deed), &format!("{at} {outcome} (run {}){detail}", a.run.0));
        if let Some(reason) = &a.reason {
            page.say(Ink::Plain, "", &format!("the node's Reason: {reason}"));
        }
    }
    for w in &told.withheld {
        let runs = if w.count == 1 { "1 run".to_owned() } else { format!("{} runs", w.count) };
        let last = w.last.1.rfc3339();
        page.say(
            Ink::Notice,
            "withheld",
            &format!("{}: {} ({runs}, {} to {last})", deed_word(w.deed), w.because, w.first.1.rfc3339()),
        );
    }
    if told.actions.is_empty() && told.withheld.is_empty() {
        page.say(Ink::Plain, "done", "nothing so far");
    }
}

fn next(page: &mut Page, told: &Told) {
    let at = |in_ms: i64| WallMs(told.now.wall.0.saturating_add(in_ms)).rfc3339();
    let judged_anew = "nothing is drained or cancelled; every run judges anew";
    let Some(finding) = told.finding() else {
        let words = match &told.assessment.judgement {
            Judgement::Spared { guard: Guard::Warmup, .. } => {
                let age_ms = told.now.boot.since_ms(told.history.job.registration.start.boot);
                let in_ms = told.warmup_ms.saturating_sub(age_ms).max(0);
                format!("it is judged from {} on, when it is {} old", at(in_ms), human_ms(told.warmup_ms))
            }
            Judgement::Spared { .. } => "nothing, as long as it is exempt".to_owned(),
            _ => {
                let window = human_ms(told.window_ms);
                format!(
                    "{judged_anew}; a finding needs {window} without a break, no GPU at {} %",
                    told.util_pct
                )
            }
        };
        return page.say(Ink::Plain, "next", &words);
    };
    let withheld = |verdict: Verdict| told.withheld.iter().any(|w| w.deed == verdict.into());
    let words = match &told.next {
        Some(next) if next.in_ms == 0 && withheld(next.verdict) => {
            format!("{} is due, and done once nothing withholds it", next.verdict)
        }
        Some(next) => {
            let when = match next.in_ms {
                0 => "with the next run".to_owned(),
                in_ms => format!("in {}, at {}", human_ms(in_ms), at(in_ms)),
            };
            let withheld = told.next_is_withheld();
            let withheld = withheld.map_or(String::new(), |why| format!("; it will be withheld: {why}"));
            format!("{} {when}, if this goes on{withheld}", next.verdict)
        }
        None => match told.withheld.last() {
            Some(w) if w.deed > Deed::Alert => {
                let deed = deed_word(w.deed);
                format!("{deed} is due, and done once nothing withholds it; no later stage")
            }
            _ => "no later stage".to_owned(),
        },
    };
    page.say(Ink::Plain, "next", &words);
    page.say(Ink::Plain, "cleared", &clears(told, finding));
    if finding.cap > Verdict::Alert {
        let job = told.history.job.registration.job;
        let how = format!("gpu-reaper-hc keep {job} --for 4h --reason TEXT");
        page.say(
            Ink::Plain,
            "to spare",
            &format!("{how}: neither drain nor cancel for so long; alerts go on"),
        );
    }
}

/// What would end a finding.
fn clears(told: &Told, finding: &Finding) -> String {
    let which = match finding.scope {
        Scope::Whole => "any of its GPUs".to_owned(),
        Scope::Part => finding.gpus_words(),
    };
    match finding.signature.look() {
        Look::Throttled => "by a card that is slowed no more".to_owned(),
        Look::Zero | Look::Dead | Look::Quiet => format!(
            "by one sample of {} % or more on {which} (95 % or more without memory traffic is none), or by power well \
             above rest",
            told.util_pct
        ),
    }
}

fn guards(page: &mut Page, told: &Told) {
    page.head("Guards: each can only hold a verdict or a deed back");
    let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
    let mut rows = vec![(Ink::Strong, row(["guard", "holds back", "saw", "limit"]))];
    for g in &told.assessment.guards {
        let (holds, ink) = if g.held { ("yes", Ink::Notice) } else { ("no", Ink::Plain) };
        rows.push((ink, row([g.name.word(), holds, &g.saw, &g.limit])));
    }
    page.out += &page.screen.table(&rows);
    for adapted in told.assessment.limits.iter().flat_map(|limits| &limits.adapted) {
        page.say(Ink::Notice, "note", adapted);
    }
}

/// What the job's processes did beside their GPUs, over the last hour or as much of it as is kept.
fn beside(page: &mut Page, told: &Told) {
    const BACK_MS: i64 = 3_600_000;
    let ticks = &told.history.ticks;
    let Some(now) = ticks.last() else { return };
    let Some(then) = ticks.iter().find(|tick| now.at.since_ms(tick.at) <= BACK_MS) else { return };
    let over_ms = now.at.since_ms(then.at);
    let reset = Reading::Absent(Absence::CounterReset);
    let rate = |from: Reading<u64>, to: Reading<u64>, unit: f64| {
        let rise = from.and_then(|from| {
            to.and_then(|to| to.checked_sub(from).filter(|_| over_ms > 0).map_or(reset, Reading::Measured))
        });
        rise.map(|n| format!("{:.1}", n as f64 / over_ms as f64 / unit))
    };
    let mib_a_ms = 1_048_576.0 / 1000.0;
    let parts = [
        ("cores busy", rate(then.job.cpu_ms, now.job.cpu_ms, 1.0)),
        ("MiB/s written", rate(then.job.written_bytes, now.job.written_bytes, mib_a_ms)),
        ("MiB/s read", rate(then.job.read_bytes, now.job.read_bytes, mib_a_ms)),
        ("working set", now.job.working_set_bytes.map(|n| MemoryBytes(n).human())),
        ("frozen or stopped", now.job.frozen.map(|f| if f { "yes" } else { "no" }.to_owned())),
    ];
    page.head(&format!("Beside the GPUs, its processes over {}", human_ms(over_ms)));
    page.out += &page.screen.paragraph(Ink::Plain, "", &grouped(&parts));
}

/// What could be read, one after the other; then what could not, by its reason: nothing is left out.
pub(super) fn grouped(parts: &[(&str, Reading<String>)]) -> String {
    let mut said: Vec<String> = Vec::new();
    let mut absent: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, reading) in parts {
        match reading {
            Reading::Measured(value) => said.push(format!("{name}: {value}")),
            Reading::Absent(why) => absent.entry(why.words()).or_default().push(name),
        }
    }
    said.extend(absent.into_iter().map(|(why, names)| format!("{} not readable: {why}", names.join(", "))));
    said.join("; ")
}

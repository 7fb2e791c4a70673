//! `ack`: a person takes a fault of this node on. It is told no more, holds back the lifting of no drain and makes none,
//! until it is over and comes again; a drain for it that stands, stays until somebody lifts it. Without a name: what there
//! is to take on.

use crate::ledger::{FaultDrain, FaultRow, Ledger, LedgerError};
use crate::model::{Now, Outcome};
use crate::policy::fault::Kind;
use crate::policy::fault::missing;
use crate::run::faults::{MOST_GPUS, NODE};

/// Does it, and gives what was done or what there is, in words.
///
/// # Errors
///
/// One line: what is not known by that name, or that the ledger could not be read, and that nothing was done.
pub fn ack(ledger: &mut Ledger, named: Option<&str>, by: &str, now: &Now) -> Result<String, String> {
    let nothing = |e: LedgerError| format!("{e}; nothing was acknowledged");
    let mut faults = ledger.faults().map_err(nothing)?;
    faults.retain(|row| row.told && Kind::from_word(&row.kind).is_some());
    let made = ledger.fault_drains(now).map_err(nothing)?;
    let Some(named) = named else { return Ok(list(&faults, &made)) };
    let meant: Vec<&FaultRow> = faults.iter().filter(|row| is_named(row, named)).collect();
    if meant.is_empty() {
        return Err(format!(
            "no open fault is called `{}`; allowed: the number or the kind of one of them, which `gpu-reaper-hc ack` \
             lists; nothing was acknowledged",
            named.escape_debug()
        ));
    }
    let mut said = String::new();
    for row in meant {
        // The first one stands: whom the others ask.
        said += &match &row.acked_by {
            Some(taken) => format!("already acknowledged by {taken}: {}\n", name(row)),
            None => {
                ledger.acknowledge(row.id, by, now).map_err(nothing)?;
                format!("acknowledged {}\n", line(row))
            }
        };
        // From now on as many GPUs are expected as are listed.
        if row.kind == Kind::GpuMissing.word() && row.subject == missing::COUNT {
            ledger.forget(NODE, MOST_GPUS).map_err(nothing)?;
        }
        said += &drain_of(row, &made);
    }
    Ok(said)
}

fn is_named(row: &FaultRow, named: &str) -> bool {
    row.kind == named || named.parse() == Ok(row.id)
}

/// Its number and kind, and since when.
fn name(row: &FaultRow) -> String {
    format!("{} {} since {}", row.id, row.kind, row.opened.rfc3339())
}

/// Whether somebody has taken it on stands before its words, which may be long.
fn line(row: &FaultRow) -> String {
    let acked = row.acked_by.as_ref().map_or(String::new(), |by| format!(" (acknowledged by {by})"));
    format!("{}{acked}: {}", name(row), row.detail)
}

/// The drain for this fault: it stands and is left to people, or is withheld.
fn drain_of(row: &FaultRow, made: &[FaultDrain]) -> String {
    let stands = made.iter().any(|drain| drain.fault == row.id && drain.outcome == Outcome::Done);
    match &row.withheld {
        _ if stands => {
            "  the node was drained for it, and stays so: `gpu-reaper-hc release` lifts it\n".to_owned()
        }
        // Nobody drains for one that a person has taken on.
        Some(because) if row.acked_by.is_none() => format!("  its drain is withheld: {because}\n"),
        _ => String::new(),
    }
}

fn list(faults: &[FaultRow], made: &[FaultDrain]) -> String {
    if faults.is_empty() {
        return "no fault of this node is open\n".to_owned();
    }
    let lines = faults.iter().map(|row| format!("{}\n{}", line(row), drain_of(row, made)));
    let waits = faults.iter().any(FaultRow::counts);
    lines.collect::<String>() + if waits { "to take one on: gpu-reaper-hc ack NUMBER\n" } else { "" }
}

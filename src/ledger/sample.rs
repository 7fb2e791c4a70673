//! One unit's readings and one job's, as rows of `sample` and `job_sample`: the writer and the reader
//! stand side by side, because they must agree on the order of the columns. Judges nothing.

use super::ProcessFacts;
use super::columns::{Cells, Cursor, Sink, Source, fits, large, small};
use crate::model::{
    Fields, GpuProcess, JobRunId, JobSample, Memory, MigMode, Observation, Peak, ProcessCount, ProcessKind,
    Readings,
};
use crate::reading::{Absence, Reading};
use crate::units::*;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Where a unit's readings begin in a row of `sample`: after run, unit and job run.
pub(super) const FIRST_READING: usize = 3;
/// How many columns they have, in the table's order, which is that of [`readings`] and [`observation`]: whole rows
/// are written and read, since naming a column costs SQLite more than reading it.
pub(super) const READINGS: usize = 35;

/// Writes a unit's readings; `listed` are its processes, in [`words`].
pub(super) fn readings(cells: &mut Cells, r: &Readings, listed: String) {
    numbers(cells, r, |list| {
        let graphics = list.iter().filter(|p| p.kind == ProcessKind::Graphics).count();
        let all = fits(list.len() as u64)?;
        let graphics = fits(graphics as u64)?;
        Some([all - graphics, graphics])
    });
    cells.words(listed).bytes(r.fields.pack());
}

/// The main readings in their order; `count` makes compute and graphics processes of what is known of them.
pub(super) fn numbers<P>(sink: &mut impl Sink, r: &Readings<P>, count: impl Fn(&P) -> Option<[i64; 2]>) {
    let percent = |p: &Percent| Some(i64::from(p.get()));
    let peak = |p: &Peak| Some([i64::from(p.percent.get()), i64::from(p.covered_ms)]);
    sink.pair(&r.sm_util, percent)
        .pair(&r.mem_util, percent)
        .group(&r.sm_peak, peak)
        .group(&r.mem_peak, peak)
        .group(&r.memory, memory_columns)
        .pair(&r.power, |p| fits(p.0))
        .pair(&r.power_limit, |p| fits(p.0))
        .pair(&r.energy, |e| fits(e.0))
        .pair(&r.sm_clock, |c| Some(i64::from(c.0)))
        .pair(&r.sm_clock_max, |c| Some(i64::from(c.0)))
        .pair(&r.temperature, |t| Some(i64::from(t.0)))
        // The mask's bits as they are: SQLite has no unsigned integers.
        .pair(&r.clocks_event, |m| Some(m.0.cast_signed()))
        .pair(&r.mig, |m| Some(i64::from(*m == MigMode::Enabled)))
        .group(&r.processes, count);
}

/// Processes as people read them: schema version 2 says how. One that the driver names twice in one list it has
/// named once. `job_run` says of which a process is, `owner` of which the unit is.
pub(super) fn words(
    list: &[GpuProcess],
    facts: &BTreeMap<u32, ProcessFacts>,
    job_run: impl Fn(JobRunId) -> Option<i64>,
    owner: Option<i64>,
) -> String {
    let mut words = String::new();
    for (place, process) in list.iter().enumerate() {
        let same = |other: &GpuProcess| (other.pid, other.kind) == (process.pid, process.kind);
        if list[..place].iter().any(same) {
            continue;
        }
        let kind = match process.kind {
            ProcessKind::Compute => 'C',
            ProcessKind::Graphics => 'G',
            ProcessKind::Mps => 'M',
        };
        let known = facts.get(&process.pid);
        let start = known.map_or(Reading::Absent(Absence::NotAsked), |facts| facts.start_ticks);
        let comma = if words.is_empty() { "" } else { ", " };
        // Writing to a text cannot fail.
        _ = write!(words, "{comma}{} {kind}", process.pid);
        push(&mut words, start, |ticks| ticks.to_string());
        push(&mut words, process.memory, size);
        match known.and_then(|facts| facts.job_run).and_then(&job_run) {
            own if own == owner => {}
            Some(other) => _ = write!(words, " {other}"),
            None => words.push_str(" -"),
        }
    }
    words
}

/// The numbers of the compute processes in such words; MPS clients compute too.
pub(super) fn compute_pids(words: &str) -> Vec<u32> {
    let pid = |entry: &str| {
        let (pid, rest) = entry.split_once(' ')?;
        pid.parse().ok().filter(|_| !rest.starts_with('G'))
    };
    words.split(", ").filter_map(pid).collect()
}

fn push<T>(words: &mut String, reading: Reading<T>, word: impl Fn(T) -> String) {
    words.push(' ');
    match reading {
        Reading::Measured(value) => words.push_str(&word(value)),
        Reading::Absent(why) => _ = write!(words, "?{}", why.code()),
    }
}

/// Exact, and short where it is whole MiB, as what drivers give out is.
fn size(memory: MemoryBytes) -> String {
    match memory.0 % (1 << 20) {
        0 => format!("{}M", memory.0 >> 20),
        _ => memory.0.to_string(),
    }
}

fn memory_columns(m: &Memory) -> Option<[i64; 3]> {
    if m.total.0 == 0 || m.used > m.total {
        return None;
    }
    Some([fits(m.used.0)?, fits(m.total.0)?, i64::from(m.excludes_reserved)])
}

fn memory([used, total, excludes]: [i64; 3]) -> Option<Memory> {
    let (used, total) = (large(used)?, large(total)?);
    (total > 0 && used <= total).then_some(Memory {
        used: MemoryBytes(used),
        total: MemoryBytes(total),
        excludes_reserved: excludes == 1,
    })
}

/// Reads readings from the cursor's place on.
pub(super) fn observation(c: &mut Cursor) -> rusqlite::Result<Observation> {
    let main = main(c)?;
    // The processes are for people.
    c.skip();
    Ok(Observation { fields: Fields::packed(c.bytes()?), ..main })
}

/// The main readings in their order; the fields come after them.
pub(super) fn main(c: &mut impl Source) -> rusqlite::Result<Observation> {
    let percent = |n| small(n).and_then(Percent::new);
    let peak = |[p, ms]: [i64; 2]| Some(Peak { percent: percent(p)?, covered_ms: small(ms)? });
    Ok(Observation {
        sm_util: c.pair(percent)?,
        mem_util: c.pair(percent)?,
        sm_peak: c.group(peak)?,
        mem_peak: c.group(peak)?,
        memory: c.group(memory)?,
        power: c.pair(|n| large(n).map(Milliwatts))?,
        power_limit: c.pair(|n| large(n).map(Milliwatts))?,
        energy: c.pair(|n| large(n).map(Millijoules))?,
        sm_clock: c.pair(|n| small(n).map(Megahertz))?,
        sm_clock_max: c.pair(|n| small(n).map(Megahertz))?,
        temperature: c.pair(|n| small(n).map(Celsius))?,
        clocks_event: c.pair(|n| Some(ClocksEventMask(n.cast_unsigned())))?,
        mig: c.pair(|n| match n {
            0 => Some(MigMode::Disabled),
            1 => Some(MigMode::Enabled),
            _ => None,
        })?,
        processes: c.group(|[compute, graphics]| {
            Some(ProcessCount { compute: small(compute)?, graphics: small(graphics)? })
        })?,
        fields: Fields::absent(Absence::NotRecorded),
    })
}

/// Writes a job's readings.
pub(super) fn job_readings(cells: &mut Cells, s: &JobSample) {
    cells
        .pair(&s.frozen, |f| Some(i64::from(*f)))
        .pair(&s.cpu_ms, |n| fits(*n))
        .pair(&s.written_bytes, |n| fits(*n))
        .pair(&s.read_bytes, |n| fits(*n))
        .pair(&s.working_set_bytes, |n| fits(*n))
        .pair(&s.holders, |n| Some(i64::from(*n)));
}

/// Reads a job's readings from the cursor's place on.
pub(super) fn job_sample(c: &mut Cursor) -> rusqlite::Result<JobSample> {
    let flag = |n| match n {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    };
    Ok(JobSample {
        frozen: c.pair(flag)?,
        cpu_ms: c.pair(large)?,
        written_bytes: c.pair(large)?,
        read_bytes: c.pair(large)?,
        working_set_bytes: c.pair(large)?,
        holders: c.pair(small)?,
    })
}

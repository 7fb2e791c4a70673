//! Units that nobody holds: whether one can be given away. Only once three looks in a row showed it empty, everything
//! about it measured; what could not be read, or is too old, is told as that. Says nothing of units that a job holds.

use super::interval::peak;
use super::signature::is_empty;
use crate::model::Observation;
use crate::reading::{Absence, Reading};
use crate::units::{BootMs, MemoryBytes, Percent};

/// So many looks in a row have to show it empty.
pub const LOOKS: usize = 3;
/// The memory controller of a card at rest shows so much at most, as in every rule about zero.
const REST_MEM_PCT: u32 = 1;

/// One run's look at a unit that no job holds now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// When.
    pub at: BootMs,
    /// A job run held it then.
    pub was_held: bool,
    /// What it said.
    pub seen: Observation,
    /// Its compute processes, as far as they are known by number.
    pub pids: Vec<u32>,
}

/// Why a unit that nobody holds is not empty, or not known to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Processes are on it, by the driver's list: by number, and how many there are.
    Processes(Vec<u32>, u32),
    /// So much memory is held, and no process is listed for it.
    Memory(MemoryBytes),
    /// It is utilized.
    Utilized(Percent),
    /// Its memory controller is.
    Copies(Percent),
    /// A reading that has to be there is absent.
    NotReadable(&'static str, Absence),
    /// The newest look was so long ago, milliseconds.
    Stale(i64),
    /// No look of it is kept: it is new, or was its last job's.
    NeverSeen,
}

/// What is said of a unit that nobody holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Free {
    /// It can be given away.
    Reclaimable,
    /// So many of the newest looks showed it empty and free, and they are not enough yet.
    NotSettled(usize),
    /// It is not empty, or not known to be.
    Doubted(Doubt),
}

impl Free {
    /// The word in JSON.
    pub fn word(&self) -> &'static str {
        match self {
            Free::Reclaimable => "reclaimable",
            Free::NotSettled(_) => "not_settled",
            Free::Doubted(
                Doubt::Processes(..) | Doubt::Memory(_) | Doubt::Utilized(_) | Doubt::Copies(_),
            ) => "in_use",
            Free::Doubted(Doubt::NotReadable(..) | Doubt::Stale(_) | Doubt::NeverSeen) => "not_known",
        }
    }

    /// In few words, without the reason of an absence.
    pub fn words(&self) -> String {
        match self {
            Free::Reclaimable => format!("reclaimable: empty in {LOOKS} looks"),
            Free::NotSettled(looks) => format!("free, empty in {looks} of {LOOKS} looks"),
            Free::Doubted(doubt) => doubt.words(),
        }
    }
}

impl Doubt {
    fn words(&self) -> String {
        match self {
            Doubt::Processes(pids, count) => match (pids.first(), count) {
                (Some(pid), 1) => format!("free, but held by pid {pid} (leak?)"),
                (Some(pid), n) => format!("free, but held by pid {pid} and {} more (leak?)", n - 1),
                (None, n) => format!("free, but held by {n} processes (leak?)"),
            },
            Doubt::Memory(held) => format!("free, but {} held by no process", held.human()),
            Doubt::Utilized(percent) => format!("free, but at work: {percent}"),
            Doubt::Copies(percent) => format!("free, but its memory at work: {percent}"),
            Doubt::NotReadable(what, _) => format!("free, {what} not readable"),
            Doubt::Stale(ms) => format!("free, last seen {} ago", crate::units::human_ms(*ms)),
            Doubt::NeverSeen => "free, no look at it yet".to_owned(),
        }
    }
}

/// Judges a unit that nobody holds by its looks, newest first. `gap_ms`: two looks further apart are not in a row, nor
/// is `now` with the newest.
pub fn free(looks: &[Look], gap_ms: i64, now: BootMs) -> Free {
    let Some(newest) = looks.first() else { return Free::Doubted(Doubt::NeverSeen) };
    let age_ms = now.since_ms(newest.at);
    if age_ms > gap_ms {
        return Free::Doubted(Doubt::Stale(age_ms));
    }
    if let Some(doubt) = doubt(newest) {
        return Free::Doubted(doubt);
    }
    let in_a_row = |n: usize| n == 0 || looks[n - 1].at.since_ms(looks[n].at) <= gap_ms;
    let counts = |n: &usize| in_a_row(*n) && !looks[*n].was_held && doubt(&looks[*n]).is_none();
    match (0..looks.len()).take_while(counts).count() {
        n if n >= LOOKS => Free::Reclaimable,
        n => Free::NotSettled(n),
    }
}

/// What speaks against an empty unit in one look. Who is on it says most, so that comes first.
fn doubt(look: &Look) -> Option<Doubt> {
    let seen = &look.seen;
    let read = |what, why| Some(Doubt::NotReadable(what, why));
    if let Reading::Measured(listed) = seen.processes
        && listed.compute > 0
    {
        return Some(Doubt::Processes(look.pids.clone(), listed.compute));
    }
    let utilization = match peak(seen.sm_util, &seen.sm_peak) {
        Reading::Absent(Absence::NotRecorded) => return Some(Doubt::NeverSeen),
        Reading::Absent(why) => return read("utilization", why),
        Reading::Measured(percent) => percent,
    };
    let memory = match seen.memory {
        Reading::Absent(why) => return read("memory", why),
        Reading::Measured(memory) => memory,
    };
    if let Reading::Absent(why) = seen.processes {
        return read("process list", why);
    }
    let copies = peak(seen.mem_util, &seen.mem_peak);
    match copies {
        _ if utilization.get() > 0 => Some(Doubt::Utilized(utilization)),
        Reading::Measured(percent) if percent.get() > REST_MEM_PCT => Some(Doubt::Copies(percent)),
        _ if !is_empty(&memory) => Some(Doubt::Memory(memory.used)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Memory, Peak, ProcessCount};

    const MINUTE: i64 = 60_000;
    const GAP: i64 = 3 * MINUTE;
    const NOW: BootMs = BootMs(100 * MINUTE);

    fn percent(n: u32) -> Reading<Percent> {
        Reading::Measured(Percent::new(n).unwrap())
    }

    fn memory(used_mib: u64, excludes_reserved: bool) -> Reading<Memory> {
        let (used, total) = (MemoryBytes(used_mib << 20), MemoryBytes(80 << 30));
        Reading::Measured(Memory { used, total, excludes_reserved })
    }

    fn processes(compute: u32, graphics: u32) -> Reading<ProcessCount> {
        Reading::Measured(ProcessCount { compute, graphics })
    }

    fn empty() -> Observation {
        Observation {
            sm_util: percent(0),
            mem_util: percent(0),
            memory: memory(4, true),
            processes: processes(0, 0),
            ..Observation::absent(Absence::NotSupported)
        }
    }

    /// So many minutes ago.
    fn ago(minutes: i64, seen: Observation) -> Look {
        Look { at: BootMs(NOW.0 - minutes * MINUTE), was_held: false, seen, pids: vec![900] }
    }

    fn seen(change: impl Fn(&mut Observation)) -> Observation {
        let mut seen = empty();
        change(&mut seen);
        seen
    }

    fn of(looks: &[Look]) -> String {
        free(looks, GAP, NOW).words()
    }

    #[test]
    fn three_looks_in_a_row_have_to_show_it_empty() {
        // An article on reclaimable GPUs (LG-06): one look at 0 % is a job between two steps.
        let at = |minutes: &[i64]| minutes.iter().map(|m| ago(*m, empty())).collect::<Vec<_>>();
        let reclaimable = "reclaimable: empty in 3 looks";
        let table = [
            (at(&[]), "free, no look at it yet"),
            (at(&[0]), "free, empty in 1 of 3 looks"),
            (at(&[0, 1]), "free, empty in 2 of 3 looks"),
            (at(&[0, 1, 2]), reclaimable),
            (at(&[3, 6, 9]), reclaimable),
            (at(&[0, 1, 5]), "free, empty in 2 of 3 looks"),
            (at(&[0, 4, 5]), "free, empty in 1 of 3 looks"),
            (at(&[4, 5, 6]), "free, last seen 4 m ago"),
        ];
        for (looks, want) in table {
            assert_eq!(of(&looks), want, "{looks:?}");
        }
        for place in [1, 2] {
            let mut looks = at(&[0, 1, 2]);
            looks[place].was_held = true;
            assert_eq!(of(&looks), format!("free, empty in {place} of 3 looks"));
            looks[place] = ago(place as i64, Observation::absent(Absence::DeadlinePassed));
            assert_eq!(of(&looks), format!("free, empty in {place} of 3 looks"), "absent is not empty");
        }
    }

    #[test]
    fn whatever_speaks_against_an_empty_card_is_named_and_an_absent_reading_is_one() {
        let ring = |n: u32| Reading::Measured(Peak { percent: Percent::new(n).unwrap(), covered_ms: 1 });
        let gone = Reading::Absent(Absence::NotSupported);
        let reclaimable = "reclaimable: empty in 3 looks";
        let table = [
            (seen(|o| o.processes = processes(1, 0)), "free, but held by pid 900 (leak?)"),
            (seen(|o| o.processes = processes(3, 0)), "free, but held by pid 900 and 2 more (leak?)"),
            (seen(|o| o.processes = processes(0, 2)), reclaimable),
            (
                seen(|o| o.processes = Reading::Absent(Absence::NoPermission)),
                "free, process list not readable",
            ),
            (seen(|o| o.sm_util = percent(1)), "free, but at work: 1 %"),
            (seen(|o| o.sm_peak = ring(7)), "free, but at work: 7 %"),
            (seen(|o| o.sm_util = gone), "free, utilization not readable"),
            (seen(|o| o.mem_util = percent(2)), "free, but its memory at work: 2 %"),
            (seen(|o| o.mem_util = percent(1)), reclaimable),
            (seen(|o| o.memory = Reading::Absent(Absence::Transient)), "free, memory not readable"),
            (seen(|o| o.memory = memory(250, true)), reclaimable),
            (seen(|o| o.memory = memory(251, true)), "free, but 251 MiB held by no process"),
            // 1.6 % of 80 GiB are the driver's own, where it does not leave them out.
            (seen(|o| o.memory = memory(1500, false)), reclaimable),
            (seen(|o| o.memory = memory(20 << 10, false)), "free, but 20.0 GiB held by no process"),
            (Observation::absent(Absence::GpuLost), "free, utilization not readable"),
            (Observation::absent(Absence::NotRecorded), "free, no look at it yet"),
        ];
        for (seen, want) in table {
            let looks = [0, 1, 2].map(|minutes| ago(minutes, seen.clone()));
            assert_eq!(of(&looks), want, "{seen:?}");
        }
    }

    #[test]
    fn whose_number_is_not_known_is_counted_all_the_same() {
        let look = Look { pids: vec![], ..ago(0, seen(|o| o.processes = processes(2, 0))) };
        assert_eq!(of(&[look]), "free, but held by 2 processes (leak?)");
    }
}

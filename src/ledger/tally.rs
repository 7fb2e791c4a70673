//! Counts that survive from run to run, and from job to job: whole numbers that only ever grow, by a closed list of
//! names. They begin anew with a new ledger, as any counter does with its program. Judges nothing: no rule reads them.

use super::{Ledger, LedgerError, findings};
use crate::model::{Deed, JobRun, Outcome, RunId};
use crate::reading::Absence;
use rusqlite::{OptionalExtension, Transaction};
use std::collections::{BTreeMap, BTreeSet};

/// Partitions that are told apart; any further one is counted as [`OTHERS`].
const MOST_PARTITIONS: i64 = 64;
/// The partition of those beyond.
pub const OTHERS: &str = "(others)";
/// The partition of a job run whose partition is not known.
pub const NOT_KNOWN: &str = "(not known)";
/// Bounds of the classes in which runs are counted by what they took, milliseconds; beyond is the last class.
pub const RUN_BOUNDS_MS: [u32; 9] = [25, 50, 100, 250, 500, 1000, 5000, 15_000, 45_000];

/// Who was asked to do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Actor {
    /// The line that tells people.
    Journal,
    /// A message to Slack, or to what takes the same form.
    Slack,
    /// A site's own program.
    Exec,
    /// Drains, votes, requeues, releases.
    Scontrol,
    /// Cancels, and the signals that warn of one.
    Scancel,
}

impl Actor {
    /// All of them.
    pub const ALL: [Actor; 5] = [Actor::Journal, Actor::Slack, Actor::Exec, Actor::Scontrol, Actor::Scancel];

    /// Who does a deed.
    pub fn of(deed: Deed) -> Actor {
        match deed {
            Deed::Alert => Actor::Journal,
            Deed::Drain | Deed::Vote | Deed::Requeue | Deed::Release => Actor::Scontrol,
            Deed::Warn | Deed::Cancel => Actor::Scancel,
        }
    }

    /// The word in the ledger and for people.
    pub fn word(self) -> &'static str {
        match self {
            Actor::Journal => "journal",
            Actor::Slack => "slack",
            Actor::Exec => "exec",
            Actor::Scontrol => "scontrol",
            Actor::Scancel => "scancel",
        }
    }

    fn from_word(word: &str) -> Option<Actor> {
        Actor::ALL.into_iter().find(|actor| actor.word() == word)
    }
}

/// What a run reads from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The GPUs, by whichever way they are read.
    Gpu,
    /// Slurm's commands, or slurmrestd.
    Slurm,
    /// Slurm's cgroups of jobs.
    Cgroup,
}

impl Source {
    /// All of them.
    pub const ALL: [Source; 3] = [Source::Gpu, Source::Slurm, Source::Cgroup];

    /// The word in the ledger and for people.
    pub fn word(self) -> &'static str {
        match self {
            Source::Gpu => "gpu",
            Source::Slurm => "slurm",
            Source::Cgroup => "cgroup",
        }
    }

    fn from_word(word: &str) -> Option<Source> {
        Source::ALL.into_iter().find(|source| source.word() == word)
    }
}

/// What is counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tally {
    /// Milliseconds of GPUs that were certified to be wasted, never projected. Always kept.
    WastedGpuMs {
        /// The partition of the job; [`NOT_KNOWN`] and [`OTHERS`] are none.
        partition: String,
        /// The finding's signature when it was counted.
        signature: String,
    },
    /// Milliseconds of this node's GPUs that nobody held while a drain of ours stood. Always kept.
    BlockedGpuMs,
    /// Deeds that were seen to be done, and those that were withheld, once a job run. Always kept.
    Deed {
        /// Who was asked.
        actor: Actor,
        /// What for.
        deed: Deed,
        /// It was done; else it was withheld.
        enforced: bool,
    },
    /// Deeds and messages that failed, or of which it is not known how they ended. Always kept.
    DeedError(Actor),
    /// Drains withheld because the job shares its node, once a job run. Always kept.
    SharedNode,
    /// Runs that could not read a source.
    SourceError(Source),
    /// Runs by what they took: the class of that number in [`RUN_BOUNDS_MS`], or of their count for those beyond.
    RunsTook(usize),
    /// Microseconds that these runs took in all.
    RunUs,
}

impl Tally {
    /// Its key: the name, and the labels as one text in which only the last may hold a space.
    fn key(&self) -> (&'static str, String) {
        match self {
            Tally::WastedGpuMs { partition, signature } => {
                ("wasted_gpu_ms", format!("{signature} {partition}"))
            }
            Tally::BlockedGpuMs => ("blocked_gpu_ms", String::new()),
            Tally::Deed { actor, deed, enforced } => {
                let how = if *enforced { "done" } else { "withheld" };
                ("deed", format!("{} {} {how}", actor.word(), deed.word()))
            }
            Tally::DeedError(actor) => ("deed_error", actor.word().to_owned()),
            Tally::SharedNode => ("shared_node", String::new()),
            Tally::SourceError(source) => ("source_error", source.word().to_owned()),
            Tally::RunsTook(class) => ("runs_took", class.to_string()),
            Tally::RunUs => ("run_us", String::new()),
        }
    }

    fn read(name: &str, labels: &str) -> Option<Tally> {
        Some(match name {
            "wasted_gpu_ms" => {
                let (signature, partition) = labels.split_once(' ')?;
                Tally::WastedGpuMs { partition: partition.to_owned(), signature: signature.to_owned() }
            }
            "blocked_gpu_ms" => Tally::BlockedGpuMs,
            "deed" => {
                let mut words = labels.split(' ');
                let (actor, deed) = (Actor::from_word(words.next()?)?, Deed::from_word(words.next()?)?);
                Tally::Deed { actor, deed, enforced: words.next()? == "done" }
            }
            "deed_error" => Tally::DeedError(Actor::from_word(labels)?),
            "shared_node" => Tally::SharedNode,
            "source_error" => Tally::SourceError(Source::from_word(labels)?),
            "runs_took" => Tally::RunsTook(labels.parse().ok()?),
            "run_us" => Tally::RunUs,
            _ => return None,
        })
    }
}

/// Every count of a ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tallies(BTreeMap<Tally, u64>);

impl Tallies {
    /// One count; 0 while nothing was counted under it.
    pub fn of(&self, tally: &Tally) -> u64 {
        self.0.get(tally).copied().unwrap_or(0)
    }

    /// Whether anything was ever counted under it, were it 0.
    pub fn knows(&self, tally: &Tally) -> bool {
        self.0.contains_key(tally)
    }

    /// All that were ever counted, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Tally, u64)> {
        self.0.iter().map(|(tally, value)| (tally, *value))
    }

    /// Whether what a finding costs in this partition would be counted under its name, and not under [`OTHERS`].
    pub fn tells_apart(&self, partition: &str) -> bool {
        let known: BTreeSet<&str> = self
            .0
            .keys()
            .filter_map(|tally| match tally {
                Tally::WastedGpuMs { partition, .. } => Some(partition.as_str()),
                _ => None,
            })
            .collect();
        known.len() < MOST_PARTITIONS as usize || known.contains(partition)
    }

    /// The partition under which a job run's finding was counted.
    pub fn partition_of(&self, job: &JobRun, signature: &str) -> String {
        let of = |partition: &str| Tally::WastedGpuMs {
            partition: partition.to_owned(),
            signature: signature.to_owned(),
        };
        let own = findings::partition(job);
        if self.0.contains_key(&of(own)) { own } else { OTHERS }.to_owned()
    }

    /// Certified wasted milliseconds of GPUs, over all partitions and signatures.
    pub fn wasted_gpu_ms(&self) -> u64 {
        self.iter().filter(|(tally, _)| matches!(tally, Tally::WastedGpuMs { .. })).map(|(_, ms)| ms).sum()
    }

    /// Milliseconds of GPUs that nobody held under a drain of ours.
    pub fn blocked_gpu_ms(&self) -> u64 {
        self.of(&Tally::BlockedGpuMs)
    }
}

/// Adds to a count, inside a transaction with what is counted.
pub(super) fn add(tx: &Transaction, tally: &Tally, more: i64) -> rusqlite::Result<()> {
    let (name, labels) = tally.key();
    let sql = "INSERT INTO tally VALUES (?1, ?2, ?3)
               ON CONFLICT (name, labels) DO UPDATE SET value = value + ?3";
    tx.prepare(sql)?.execute((name, labels, more.max(0))).map(|_| ())
}

/// Adds certified wasted time; the partition is told by its name as long as there are not too many.
pub(super) fn add_wasted(
    tx: &Transaction,
    partition: &str,
    signature: &str,
    ms: i64,
) -> rusqlite::Result<()> {
    let of = |partition: &str| Tally::WastedGpuMs {
        partition: partition.to_owned(),
        signature: signature.to_owned(),
    };
    let sql = "SELECT count(DISTINCT partition) < ?2 OR max(partition = ?1) FROM
                   (SELECT substr(labels, instr(labels, ' ') + 1) AS partition FROM tally
                        WHERE name = 'wasted_gpu_ms')";
    let is_told_apart: bool = tx.query_row(sql, (partition, MOST_PARTITIONS), |r| r.get(0))?;
    add(tx, &of(if is_told_apart { partition } else { OTHERS }), ms)
}

/// Counts how a deed ended. `before`: the outcome that was kept of it until now; what an earlier look has counted is not
/// counted again.
pub(super) fn add_ended(
    tx: &Transaction,
    deed: Deed,
    before: Outcome,
    outcome: Outcome,
) -> rusqlite::Result<()> {
    let actor = Actor::of(deed);
    let is_new = matches!(before, Outcome::Begun | Outcome::Unknown) && before != outcome;
    match outcome {
        Outcome::Done if is_new => add(tx, &Tally::Deed { actor, deed, enforced: true }, 1),
        Outcome::Failed | Outcome::Unknown if before == Outcome::Begun => {
            add(tx, &Tally::DeedError(actor), 1)
        }
        _ => Ok(()),
    }
}

impl Ledger {
    /// Adds to counts, in one transaction.
    pub fn count(&mut self, more: &[(Tally, i64)]) -> Result<(), LedgerError> {
        self.write("count", |tx| more.iter().try_for_each(|(tally, n)| add(tx, tally, *n)))
    }

    /// Adds the time between this run and the one before it on this boot, for each GPU that nobody held in either, to
    /// [`Tally::BlockedGpuMs`]: of a GPU that is cut, only where all of it is free. Gives how many GPUs that were; none
    /// where the runs lie further apart than `gap_ms`. For runs between which a drain of ours stood.
    pub fn count_blocked(&mut self, run: RunId, gap_ms: i64) -> Result<u32, LedgerError> {
        self.write("count what is blocked", |tx| {
            let sql = "SELECT p.id, r.boottime_ms - p.boottime_ms FROM run r JOIN run p ON p.boot = r.boot AND p.id < r.id
                       WHERE r.id = ?1 ORDER BY p.id DESC LIMIT 1";
            let before: Option<(i64, i64)> =
                tx.query_row(sql, [run.0], |r| Ok((r.get(0)?, r.get(1)?))).optional()?;
            let Some((before, ms)) = before.filter(|(_, ms)| (1..=gap_ms).contains(ms)) else { return Ok(0) };
            let sql = "SELECT count(*) FROM sample s JOIN sample b ON b.unit = s.unit AND b.run = ?2
                           JOIN unit u ON u.id = s.unit
                       WHERE s.run = ?1 AND s.job_run ISNULL AND b.job_run ISNULL AND u.parent ISNULL
                           AND s.mem_absent IS NOT ?3 AND NOT EXISTS
                           (SELECT 1 FROM sample m JOIN unit i ON i.id = m.unit
                            WHERE m.run IN (?1, ?2) AND i.parent = u.uuid AND m.job_run NOTNULL)";
            let not_listed = Absence::NotListed.code();
            let gpus: u32 = tx.query_row(sql, (run.0, before, not_listed), |r| r.get(0))?;
            if gpus > 0 {
                add(tx, &Tally::BlockedGpuMs, i64::from(gpus) * ms)?;
            }
            Ok(gpus)
        })
    }

    /// Every count.
    pub fn tallies(&self) -> Result<Tallies, LedgerError> {
        self.read("read what was counted", |conn| {
            let mut all = conn.prepare("SELECT name, labels, value FROM tally")?;
            let mut rows = all.query([])?;
            let mut tallies = BTreeMap::new();
            while let Some(row) = rows.next()? {
                let (name, labels): (String, String) = (row.get(0)?, row.get(1)?);
                if let Some(tally) = Tally::read(&name, &labels) {
                    tallies.insert(tally, u64::try_from(row.get::<_, i64>(2)?).unwrap_or(0));
                }
            }
            Ok(Tallies(tallies))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crate::model::RegisteredBy;

    fn wasted(partition: &str, signature: &str) -> Tally {
        Tally::WastedGpuMs { partition: partition.to_owned(), signature: signature.to_owned() }
    }

    #[test]
    fn every_count_is_read_back_under_its_own_name_and_grows() {
        let (_dir, mut ledger) = fresh();
        let all = [
            wasted("a b \"c\"\\ \n d", "hung"),
            wasted("", "idle"),
            Tally::BlockedGpuMs,
            Tally::Deed { actor: Actor::Scontrol, deed: Deed::Drain, enforced: true },
            Tally::Deed { actor: Actor::Scontrol, deed: Deed::Drain, enforced: false },
            Tally::DeedError(Actor::Slack),
            Tally::SharedNode,
            Tally::SourceError(Source::Cgroup),
            Tally::RunsTook(9),
            Tally::RunUs,
        ];
        for (n, tally) in (1..).zip(&all) {
            ledger.count(&[(tally.clone(), n), (tally.clone(), n)]).unwrap();
        }
        let read = ledger.tallies().unwrap();
        for (n, tally) in (1u64..).zip(&all) {
            assert_eq!(read.of(tally), 2 * n, "{tally:?}");
        }
        assert_eq!((read.iter().count(), read.wasted_gpu_ms(), read.blocked_gpu_ms()), (all.len(), 6, 6));
    }

    #[test]
    fn a_count_never_shrinks_and_one_that_is_not_known_is_passed_over() {
        let (_dir, mut ledger) = fresh();
        ledger.count(&[(Tally::BlockedGpuMs, 5), (Tally::BlockedGpuMs, -3)]).unwrap();
        ledger.conn.execute("INSERT INTO tally VALUES ('of another version', 'x', 1)", []).unwrap();
        assert_eq!(ledger.tallies().unwrap().iter().collect::<Vec<_>>(), [(&Tally::BlockedGpuMs, 5)]);
    }

    #[test]
    fn what_our_drains_block_is_what_nobody_held_in_two_runs_that_follow_each_other() {
        let (_dir, mut ledger) = fresh();
        let job = ledger.register(&at(0), &registration(1, 0, RegisteredBy::Prolog)).unwrap();
        let gap_ms = 3 * 60_000;
        let blocked = |ledger: &mut Ledger, minute: i64, owned: u32| {
            let mut brought = Brought::at(minute, report(8, 0));
            brought.owners = (0..owned).map(|n| (uuid(n), job)).collect();
            let run = brought.append(ledger);
            let gpus = ledger.count_blocked(run, gap_ms).unwrap();
            (gpus, ledger.tallies().unwrap().blocked_gpu_ms() / 60_000)
        };
        assert_eq!(blocked(&mut ledger, 1, 0), (0, 0), "the first run has none before it");
        assert_eq!(blocked(&mut ledger, 2, 8), (0, 0), "held now");
        assert_eq!(blocked(&mut ledger, 3, 6), (0, 0), "held a minute ago");
        assert_eq!(blocked(&mut ledger, 5, 6), (2, 4));
        assert_eq!(blocked(&mut ledger, 9, 6), (0, 4), "a hole");
        assert_eq!(blocked(&mut ledger, 10, 0), (2, 6));
        let mut rebooted = Brought::at(11, report(8, 0));
        rebooted.now.boot_id = "another".to_owned();
        let run = rebooted.append(&mut ledger);
        assert_eq!(ledger.count_blocked(run, gap_ms).unwrap(), 0, "another boot");
        let mut lost = Brought::at(12, report(6, 0));
        lost.now.boot_id = "another".to_owned();
        let run = lost.append(&mut ledger);
        assert_eq!(ledger.count_blocked(run, gap_ms).unwrap(), 6, "of two the driver says nothing now");
    }

    #[test]
    fn partitions_beyond_a_bound_are_one() {
        let (_dir, mut ledger) = fresh();
        ledger
            .write("count", |tx| {
                (0..MOST_PARTITIONS + 6).try_for_each(|n| {
                    ["hung", "idle"].iter().try_for_each(|s| add_wasted(tx, &format!("p{n}"), s, 1))
                })
            })
            .unwrap();
        let read = ledger.tallies().unwrap();
        assert_eq!((read.of(&wasted("p63", "idle")), read.of(&wasted("p64", "idle"))), (1, 0));
        assert_eq!(read.of(&wasted(OTHERS, "hung")), 6);
        assert_eq!(["p63", "p64", "new"].map(|p| read.tells_apart(p)), [true, false, false]);
        assert_eq!(read.wasted_gpu_ms(), 2 * (MOST_PARTITIONS as u64 + 6));
    }

    #[test]
    fn a_deed_is_counted_once_however_often_it_is_looked_at() {
        use Outcome::{Begun, Done, Failed, Lifted, Unknown};
        // How it was kept, one after the other; deeds done; errors.
        let table: [(&[Outcome], u64, u64); 6] = [
            (&[Begun, Done], 1, 0),
            (&[Begun, Failed], 0, 1),
            (&[Begun, Unknown, Unknown, Done], 1, 1),
            (&[Begun, Unknown, Failed], 0, 1),
            (&[Begun, Done, Done, Lifted], 1, 0),
            (&[Begun, Lifted], 0, 0),
        ];
        for (kept, done, errors) in table {
            let (_dir, mut ledger) = fresh();
            ledger
                .write("count", |tx| {
                    kept.windows(2).try_for_each(|pair| add_ended(tx, Deed::Drain, pair[0], pair[1]))
                })
                .unwrap();
            let read = ledger.tallies().unwrap();
            let drained = Tally::Deed { actor: Actor::Scontrol, deed: Deed::Drain, enforced: true };
            assert_eq!(
                (read.of(&drained), read.of(&Tally::DeedError(Actor::Scontrol))),
                (done, errors),
                "{kept:?}"
            );
        }
    }
}

//! Findings, and what was withheld: what the rules said of a job run, for as long as it held. They keep what
//! pruned samples can no longer tell (since when, how much of it certified), and judge nothing.

use super::jobs::{job_id, number};
use super::tally::{self, Actor, Tally};
use super::words::known;
use super::{Ledger, LedgerError, boot_row_made};
use crate::model::*;
use crate::policy::Signature;
use crate::policy::stage::WOULD_BLOCK;
use crate::reading::{Absence, Reading};
use crate::units::{BootMs, GpuHours, WallMs};
use rusqlite::{OptionalExtension, Row, Transaction};

/// A finding as the rules see it in one run.
#[derive(Clone, Debug)]
pub struct NewFinding<'a> {
    /// Of which job run.
    pub job: &'a JobRun,
    /// Its signature.
    pub signature: &'a str,
    /// `whole` or `part`.
    pub scope: &'a str,
    /// Its units, in words.
    pub units: &'a str,
    /// Start of the breach.
    pub since: BootMs,
    /// Since when it is a finding: `since` and a window.
    pub established: BootMs,
    /// Certified breaching time up to this run.
    pub certified_ms: i64,
    /// What it has cost up to this run: the certified time of each of its units.
    pub wasted: GpuHours,
    /// How many units that are.
    pub gpus: usize,
}

/// Why a finding is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// Certified work was seen.
    Alive,
    /// A hole that nothing bridges: neither held nor cleared.
    Lost,
    /// The job run became exempt.
    Exempt,
    /// The job run is over.
    Ended,
}

impl Closing {
    /// The word in the ledger.
    pub fn word(self) -> &'static str {
        match self {
            Closing::Alive => "alive",
            Closing::Lost => "lost",
            Closing::Exempt => "exempt",
            Closing::Ended => "ended",
        }
    }
}

/// A finding as it was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FindingRow {
    /// Its row.
    pub id: i64,
    /// The job's id.
    pub job: JobId,
    /// Its restart count.
    pub restart: u32,
    /// The id as Slurm shows it, where it was known.
    pub display_id: String,
    /// The job run.
    pub job_run: JobRunId,
    /// Its last signature.
    pub signature: String,
    /// Its last scope.
    pub scope: String,
    /// Its units, in words.
    pub units: String,
    /// On which boot.
    pub boot_id: String,
    /// Start of the breach.
    pub since: BootMs,
    /// The same, for showing.
    pub since_wall: WallMs,
    /// Since when it is a finding.
    pub established: BootMs,
    /// Certified breaching time.
    pub certified_ms: i64,
    /// What it has cost: that time of each of its units. Absent where an earlier version kept it last.
    pub wasted: Reading<GpuHours>,
    /// The run that opened it.
    pub opened_run: RunId,
    /// The last run that saw it.
    pub last_run: RunId,
    /// Why and when it was closed (`alive`, `lost`, `exempt`, `ended`), if it was.
    pub closed: Option<(String, WallMs)>,
}

/// What was not done, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withheld {
    /// What was asked for.
    pub deed: Deed,
    /// Why it was not done.
    pub because: String,
    /// First withheld for this reason.
    pub first: (RunId, WallMs),
    /// Last.
    pub last: (RunId, WallMs),
    /// How many times.
    pub count: u32,
}

impl Ledger {
    /// Keeps what this run found, and gives the finding's row. A job run has one open finding: its start stays
    /// what it was when it was opened, the rest follows. New clocks need [`Ledger::close_finding`] first. By how much its
    /// cost has grown is added to [`Tally::WastedGpuMs`] in the same transaction.
    pub fn record_finding(
        &mut self,
        finding: &NewFinding,
        run: RunId,
        now: &Now,
    ) -> Result<i64, LedgerError> {
        self.write("keep a finding", |tx| {
            let boot = boot_row_made(tx, &now.boot_id)?.id;
            let job = &finding.job.registration;
            let more_ms = growth_ms(tx, finding, boot, now)?;
            tally::add_wasted(tx, partition(finding.job), finding.signature, more_ms)?;
            tx.query_row(
                "INSERT INTO finding (job_id, restart, display_id, job_run, signature, scope, units, boot,
                     since_boot_ms, since_wall_ms, established_boot_ms, certified_ms, opened_run, last_run,
                     wasted_gpu_ms)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?13, ?14)
                 ON CONFLICT (job_run) WHERE closed_how IS NULL DO UPDATE SET display_id = ?3, signature = ?5,
                     scope = ?6, units = ?7, certified_ms = ?12, last_run = ?13, wasted_gpu_ms = ?14
                 RETURNING id",
                rusqlite::params![
                    number(job.job),
                    job.restart,
                    finding.job.shown_id(),
                    finding.job.id.0,
                    finding.signature,
                    finding.scope,
                    finding.units,
                    boot,
                    finding.since.0,
                    now.wall_of(finding.since).0,
                    finding.established.0,
                    finding.certified_ms,
                    run.0,
                    finding.wasted.unit_ms(),
                ],
                |r| r.get(0),
            )
        })
    }

    /// Closes the open finding of a job run, if there is one.
    pub fn close_finding(
        &mut self,
        job: JobRunId,
        how: Closing,
        run: RunId,
        now: &Now,
    ) -> Result<(), LedgerError> {
        self.write("close a finding", |tx| {
            tx.execute(
                "UPDATE finding SET closed_how = ?2, closed_wall_ms = ?3, closed_run = ?4
                 WHERE job_run = ?1 AND closed_how IS NULL",
                (job.0, how.word(), now.wall.0, run.0),
            )
            .map(|_| ())
        })
    }

    /// The findings of a job run, oldest first; only the last can be open.
    pub fn findings_of(&self, job: JobRunId) -> Result<Vec<FindingRow>, LedgerError> {
        self.findings("f.job_run = ?1", [job.0])
    }

    /// Every open finding, oldest first.
    pub fn open_findings(&self) -> Result<Vec<FindingRow>, LedgerError> {
        let open = "SELECT 1 FROM finding WHERE closed_how IS NULL";
        match self.read("look for findings", |conn| conn.prepare(open)?.exists([]))? {
            true => self.findings("f.closed_how IS NULL", []),
            false => Ok(Vec::new()),
        }
    }

    fn findings(
        &self,
        condition: &str,
        params: impl rusqlite::Params,
    ) -> Result<Vec<FindingRow>, LedgerError> {
        self.read("read findings", |conn| {
            let mut found = conn.prepare(&format!(
                "SELECT f.id, f.job_id, f.restart, f.display_id, f.job_run, f.signature, f.scope, f.units,
                     b.boot_id, f.since_boot_ms, f.since_wall_ms, f.established_boot_ms, f.certified_ms,
                     f.opened_run, f.last_run, f.closed_how, f.closed_wall_ms, f.wasted_gpu_ms
                 FROM finding f JOIN boot b ON b.id = f.boot WHERE {condition} ORDER BY f.id"
            ))?;
            found.query_map(params, finding_row)?.collect()
        })
    }

    /// Counts that something was not done for a job run, by reason; `true` if the reason is new. Reasons that
    /// differ in their figures only are one, kept with the newest figures.
    pub fn withhold(
        &mut self,
        job: JobRunId,
        deed: Deed,
        because: &str,
        run: RunId,
        now: &Now,
    ) -> Result<bool, LedgerError> {
        self.write("keep what was withheld", |tx| {
            let sql =
                "SELECT because FROM withheld WHERE job_run = ?1 AND verdict = ?2 ORDER BY last_run DESC";
            let mut known = tx.prepare(sql)?;
            let mut rows = known.query((job.0, deed.word()))?;
            let (mut is_first, mut is_known_to_share) = (true, false);
            while let Some(row) = rows.next()? {
                is_first = false;
                let before: String = row.get(0)?;
                is_known_to_share |= before.starts_with(WOULD_BLOCK);
                if without_figures(&before) == without_figures(because) {
                    let sql = "UPDATE OR REPLACE withheld
                               SET because = ?4, last_run = ?5, last_wall_ms = ?6, count = count + 1
                               WHERE job_run = ?1 AND verdict = ?2 AND because = ?3";
                    tx.execute(sql, (job.0, deed.word(), before, because, run.0, now.wall.0))?;
                    return Ok(false);
                }
            }
            if is_first {
                tally::add(tx, &Tally::Deed { actor: Actor::of(deed), deed, enforced: false }, 1)?;
            }
            if because.starts_with(WOULD_BLOCK) && !is_known_to_share {
                tally::add(tx, &Tally::SharedNode, 1)?;
            }
            let sql = "INSERT INTO withheld VALUES (?1, ?2, ?3, ?4, ?5, ?4, ?5, 1)";
            tx.execute(sql, (job.0, deed.word(), because, run.0, now.wall.0))?;
            Ok(true)
        })
    }

    /// What was withheld from a job run, the latest first.
    pub fn withheld_of(&self, job: JobRunId) -> Result<Vec<Withheld>, LedgerError> {
        self.read("read what was withheld", |conn| {
            let mut found = conn.prepare(
                "SELECT verdict, because, first_run, first_wall_ms, last_run, last_wall_ms, count
                 FROM withheld WHERE job_run = ?1 ORDER BY last_run DESC, verdict, because",
            )?;
            found.query_map([job.0], withheld)?.collect()
        })
    }
}

/// By how much a finding has cost more than was counted when it was last kept. No more than its units times the time
/// since then, also where that was another finding of the job run: however often it is closed and found again, and
/// whichever units it names, no hour of a GPU counts twice.
fn growth_ms(tx: &Transaction, finding: &NewFinding, boot: i64, now: &Now) -> rusqlite::Result<i64> {
    let sql = "SELECT f.closed_how ISNULL, f.wasted_gpu_ms, r.boottime_ms
               FROM finding f LEFT JOIN run r ON r.id = f.last_run
               WHERE f.job_run = ?1 AND f.boot = ?2 ORDER BY f.id DESC LIMIT 1";
    let last: Option<(bool, i64, Option<i64>)> =
        tx.query_row(sql, (finding.job.id.0, boot), |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?))).optional()?;
    let counted_ms = last.filter(|(is_open, ..)| *is_open).map_or(0, |(_, ms, _)| ms);
    let since = last.and_then(|(.., kept)| kept).unwrap_or(finding.since.0).max(finding.since.0);
    let most = GpuHours::of(finding.gpus, now.boot.0 - since);
    Ok((finding.wasted.unit_ms() - counted_ms).clamp(0, most.unit_ms()))
}

/// The partition under which a job run's hours are counted, [`super::NOT_KNOWN`] where nobody says it.
pub fn partition(job: &JobRun) -> &str {
    let told = job.details.as_ref().map(|d| &d.partition);
    match (&job.registration.partition, told) {
        (Reading::Measured(name), _) | (Reading::Absent(_), Some(Reading::Measured(name))) => name,
        _ => tally::NOT_KNOWN,
    }
}

/// A reason without its figures and the units of time, which change with them: 59 m, then 1 h 2 m.
fn without_figures(because: &str) -> Vec<&str> {
    let changes = |word: &&str| {
        word.contains(|c: char| c.is_ascii_digit())
            || matches!(word.trim_end_matches([',', ';', ')']), "d" | "h" | "m" | "s")
    };
    because.split_whitespace().filter(|word| !changes(word)).collect()
}

fn finding_row(row: &Row) -> rusqlite::Result<FindingRow> {
    let closed = match (row.get::<_, Option<String>>(15)?, row.get::<_, Option<i64>>(16)?) {
        (Some(how), Some(wall)) => Some((how, WallMs(wall))),
        _ => None,
    };
    Ok(FindingRow {
        id: row.get(0)?,
        job: job_id(row.get(1)?)?,
        restart: row.get(2)?,
        display_id: row.get(3)?,
        job_run: JobRunId(row.get(4)?),
        signature: row.get(5)?,
        scope: row.get(6)?,
        units: row.get(7)?,
        boot_id: row.get(8)?,
        since: BootMs(row.get(9)?),
        since_wall: WallMs(row.get(10)?),
        established: BootMs(row.get(11)?),
        certified_ms: row.get(12)?,
        wasted: wasted(row.get(17)?, row)?,
        opened_run: RunId(row.get(13)?),
        last_run: RunId(row.get(14)?),
        closed,
    })
}

/// Before version 5 the cost was not kept and reads as 0, which only slowed work costs.
fn wasted(gpu_ms: i64, row: &Row) -> rusqlite::Result<Reading<GpuHours>> {
    let costs_nothing = row.get_ref(5)?.as_str()? == Signature::Throttled.word();
    Ok(match gpu_ms {
        0 if !costs_nothing => Reading::Absent(Absence::NotRecorded),
        ms => Reading::Measured(GpuHours::of(1, ms)),
    })
}

fn withheld(row: &Row) -> rusqlite::Result<Withheld> {
    Ok(Withheld {
        deed: known(Deed::from_word(&row.get::<_, String>(0)?), "withheld.verdict")?,
        because: row.get(1)?,
        first: (RunId(row.get(2)?), WallMs(row.get(3)?)),
        last: (RunId(row.get(4)?), WallMs(row.get(5)?)),
        count: row.get(6)?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    #[test]
    fn a_finding_keeps_its_start_until_it_is_closed() {
        let (_dir, mut ledger) = fresh();
        ledger.register(&at(0), &registration(1, 0, RegisteredBy::Prolog)).unwrap();
        let job = ledger.open_runs(BOOT).unwrap().pop().unwrap();
        let seen = |signature, since: i64, minutes: i64| NewFinding {
            job: &job,
            signature,
            scope: "whole",
            units: "0-7",
            since: at(since).boot,
            established: at(since + 30).boot,
            certified_ms: minutes * 60_000,
            wasted: GpuHours::of(8, minutes * 60_000),
            gpus: 8,
        };
        let first = ledger.record_finding(&seen("idle", 0, 30), RunId(1), &at(30)).unwrap();
        let same = ledger.record_finding(&seen("hung", 5, 31), RunId(2), &at(31)).unwrap();
        assert_eq!(first, same);
        let row = &ledger.findings_of(job.id).unwrap()[0];
        assert_eq!((row.since, row.since_wall), (at(0).boot, at(0).wall));
        assert_eq!((row.signature.as_str(), row.certified_ms, row.last_run), ("hung", 1_860_000, RunId(2)));
        ledger.close_finding(job.id, Closing::Lost, RunId(3), &at(60)).unwrap();
        let second = ledger.record_finding(&seen("hung", 60, 30), RunId(4), &at(90)).unwrap();
        assert_ne!(first, second);
        let all = ledger.findings_of(job.id).unwrap();
        assert_eq!(all[0].closed, Some(("lost".to_owned(), at(60).wall)));
        assert_eq!(all[1].since, at(60).boot);
        ledger.clear(job.registration.job, Some(0), &at(91), false, None).unwrap();
        assert!(ledger.open_findings().unwrap().is_empty());
        assert_eq!(ledger.findings_of(job.id).unwrap().len(), 2, "what was found is kept");
    }

    /// Keeps a finding of these units in a run of its own, and gives what was counted so far, in minutes of a GPU.
    fn kept(ledger: &mut Ledger, minute: i64, since: i64, gpus: usize, signature: &str) -> u64 {
        let run = Brought::at(minute, report(8, 0)).append(ledger);
        let job = ledger.open_runs(BOOT).unwrap().pop().unwrap();
        let finding = NewFinding {
            job: &job,
            signature,
            scope: "whole",
            units: "",
            since: at(since).boot,
            established: at(since + 30).boot,
            certified_ms: (minute - since) * 60_000,
            wasted: GpuHours::of(gpus, (minute - since) * 60_000),
            gpus,
        };
        for _killed_and_repeated in 0..2 {
            ledger.record_finding(&finding, run, &at(minute)).unwrap();
        }
        ledger.tallies().unwrap().wasted_gpu_ms() / 60_000
    }

    #[test]
    fn what_a_finding_cost_is_counted_as_it_grows_and_no_hour_twice() {
        let (_dir, mut ledger) = fresh();
        let run = ledger.register(&at(0), &registration(1, 0, RegisteredBy::Prolog)).unwrap();
        assert_eq!(kept(&mut ledger, 30, 0, 8, "hung"), 240);
        assert_eq!(kept(&mut ledger, 31, 0, 8, "hung"), 248);
        // The same time under another look, and of fewer units: what they have cost was counted.
        assert_eq!(kept(&mut ledger, 32, 0, 2, "idle"), 248);
        assert_eq!(kept(&mut ledger, 33, 0, 2, "idle"), 250);
        assert_eq!(kept(&mut ledger, 34, 0, 8, "idle"), 258);
        // Closed and found again with the same start, as after an exemption that was taken back.
        ledger.close_finding(run, Closing::Exempt, RunId(5), &at(34)).unwrap();
        assert_eq!(kept(&mut ledger, 44, 0, 8, "idle"), 338);
        // Another start is another breach.
        ledger.close_finding(run, Closing::Alive, RunId(6), &at(45)).unwrap();
        assert_eq!(kept(&mut ledger, 90, 60, 8, "idle"), 578);
        let wasted = |signature: &str| {
            let (partition, signature) = ("h100".to_owned(), signature.to_owned());
            ledger.tallies().unwrap().of(&Tally::WastedGpuMs { partition, signature }) / 60_000
        };
        assert_eq!((wasted("hung"), wasted("idle")), (248, 330));
        assert_eq!(&578, &(wasted("hung") + wasted("idle")));
    }

    #[test]
    fn what_was_withheld_is_counted_once_a_job_run_and_deed() {
        let (_dir, mut ledger) = fresh();
        let run = ledger.register(&at(0), &registration(1, 0, RegisteredBy::Prolog)).unwrap();
        let reasons =
            ["mode is observe", "would block 4 GPUs of others", "would block 3 GPUs of others", "no answer"];
        for (minute, because) in (1..).zip(reasons) {
            ledger.withhold(run, Deed::Drain, because, RunId(minute), &at(minute)).unwrap();
        }
        let withheld = Tally::Deed { actor: Actor::Scontrol, deed: Deed::Drain, enforced: false };
        let tallies = ledger.tallies().unwrap();
        assert_eq!((tallies.of(&withheld), tallies.of(&Tally::SharedNode)), (1, 1));
    }

    #[test]
    fn what_was_withheld_is_counted_by_reason() {
        let (_dir, mut ledger) = fresh();
        let run = ledger.register(&at(0), &registration(1, 0, RegisteredBy::Prolog)).unwrap();
        let drain = Deed::Drain;
        for (minute, because) in [(1, "mode is observe"), (2, "mode is observe"), (3, "no answer")] {
            ledger.withhold(run, drain, because, RunId(minute), &at(minute)).unwrap();
        }
        let kept = ledger.withheld_of(run).unwrap();
        assert_eq!(kept.len(), 2);
        assert_eq!((kept[1].count, kept[1].first.0, kept[1].last.0), (2, RunId(1), RunId(2)));
    }

    #[test]
    fn reasons_that_differ_in_their_figures_only_are_one_with_the_newest_figures() {
        let (_dir, mut ledger) = fresh();
        let run = ledger.register(&at(0), &registration(1, 0, RegisteredBy::Prolog)).unwrap();
        let drain = Deed::Drain;
        let kinds = [
            ["a CPU phase: 12.7 cores busy", "a CPU phase: 13.4 cores busy", "a CPU phase: 9 cores busy"],
            [
                "nothing is done for another 1 h 2 m",
                "nothing is done for another 59 m 30 s",
                "nothing is done for another 45 s",
            ],
            ["GPU 3 works again: 97 %", "GPU 4 works again: 61 %", "GPU 0 works again: 9 %"],
        ];
        for (minute, kind) in (1..).zip(kinds) {
            for (second, because) in (0i64..).zip(kind) {
                let new =
                    ledger.withhold(run, drain, because, RunId(minute * 10 + second), &at(minute)).unwrap();
                assert_eq!(new, second == 0, "{because}");
            }
            let kept = ledger.withheld_of(run).unwrap();
            assert_eq!((kept.len() as i64, kept[0].because.as_str(), kept[0].count), (minute, kind[2], 3));
        }
        assert!(ledger.withhold(run, Deed::Cancel, kinds[0][0], RunId(99), &at(9)).unwrap());
    }
}

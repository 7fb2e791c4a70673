//! What is still to be told, and which node faults are open: queued with what it is about, told once, bounded.
//! Sends nothing.

use super::{Ledger, LedgerError, boot_row, boot_row_made};
use crate::model::{Now, RunId};
use crate::units::WallMs;
use rusqlite::OptionalExtension;

/// Waits between attempts to deliver; after the last of them the letter is given up.
const BACK_OFF_MS: [i64; 6] = [60_000, 120_000, 300_000, 900_000, 1_800_000, 3_600_000];

/// A message that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// Its row.
    pub id: i64,
    /// What it is about; one letter per subject.
    pub subject: String,
    /// Its text, as it was queued.
    pub body: String,
    /// Attempts so far.
    pub tries: u32,
}

/// An open fault of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRow {
    /// Its row.
    pub id: i64,
    /// What kind of fault.
    pub kind: String,
    /// Of which unit or part.
    pub subject: String,
    /// In words, as last seen.
    pub detail: String,
    /// When it was first seen.
    pub opened: WallMs,
    /// The last run that saw it.
    pub last_run: RunId,
}

impl Ledger {
    /// Queues a message; a second one about the same subject is not queued, and `false` says so.
    pub fn queue_letter(&mut self, subject: &str, body: &str, now: &Now) -> Result<bool, LedgerError> {
        self.write("queue a message", |tx| {
            let boot = boot_row_made(tx, &now.boot_id)?.id;
            let queued = tx.execute(
                "INSERT INTO outbox (subject, body, queued_wall_ms, boot, next_boot_ms, tries)
                 VALUES (?1, ?2, ?3, ?4, ?5, 0) ON CONFLICT (subject) DO NOTHING",
                (subject, body, now.wall.0, boot, now.boot.0),
            )?;
            Ok(queued == 1)
        })
    }

    /// Messages that are due, oldest first; those of an earlier boot are due at once.
    pub fn due_letters(&self, most: u32, now: &Now) -> Result<Vec<Letter>, LedgerError> {
        self.read("read messages", |conn| {
            let boot = boot_row(conn, &now.boot_id)?.map(|b| b.id);
            let mut due = conn.prepare(
                "SELECT id, subject, body, tries FROM outbox
                 WHERE sent_wall_ms IS NULL AND tries <= ?4 AND (boot IS NOT ?1 OR next_boot_ms <= ?2)
                 ORDER BY id LIMIT ?3",
            )?;
            due.query_map((boot, now.boot.0, most, BACK_OFF_MS.len() as u32), |r| {
                Ok(Letter { id: r.get(0)?, subject: r.get(1)?, body: r.get(2)?, tries: r.get(3)? })
            })?
            .collect()
        })
    }

    /// A message arrived. Its subject stays known, so that it is not queued again.
    pub fn letter_sent(&mut self, id: i64, now: &Now) -> Result<(), LedgerError> {
        self.write("keep that a message was sent", |tx| {
            let sql = "UPDATE outbox SET sent_wall_ms = ?2, tries = tries + 1, body = '' WHERE id = ?1";
            tx.execute(sql, (id, now.wall.0)).map(|_| ())
        })
    }

    /// A message did not arrive: tried again later, and less and less often.
    pub fn letter_failed(&mut self, id: i64, now: &Now) -> Result<(), LedgerError> {
        self.write("keep that a message failed", |tx| {
            let boot = boot_row_made(tx, &now.boot_id)?.id;
            let sql = "UPDATE outbox SET tries = tries + 1 WHERE id = ?1 RETURNING tries";
            let tries: Option<u32> = tx.query_row(sql, [id], |r| r.get(0)).optional()?;
            let Some(tries) = tries else { return Ok(()) };
            let wait = BACK_OFF_MS[(tries as usize).saturating_sub(1).min(BACK_OFF_MS.len() - 1)];
            let sql = "UPDATE outbox SET boot = ?2, next_boot_ms = ?3 WHERE id = ?1";
            tx.execute(sql, (id, boot, now.boot.0 + wait)).map(|_| ())
        })
    }

    /// Keeps that a fault was seen; `true` if it is new.
    pub fn fault_seen(
        &mut self,
        kind: &str,
        subject: &str,
        detail: &str,
        run: RunId,
        now: &Now,
    ) -> Result<bool, LedgerError> {
        self.write("keep a fault", |tx| {
            let sql = "UPDATE fault SET last_run = ?3, detail = ?4
                       WHERE kind = ?1 AND subject = ?2 AND closed_wall_ms IS NULL";
            if tx.execute(sql, (kind, subject, run.0, detail))? > 0 {
                return Ok(false);
            }
            tx.execute(
                "INSERT INTO fault (kind, subject, detail, opened_run, opened_wall_ms, last_run)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?4)",
                (kind, subject, detail, run.0, now.wall.0),
            )?;
            Ok(true)
        })
    }

    /// Closes a fault.
    pub fn fault_gone(&mut self, id: i64, now: &Now) -> Result<(), LedgerError> {
        self.write("close a fault", |tx| {
            let sql = "UPDATE fault SET closed_wall_ms = ?2 WHERE id = ?1 AND closed_wall_ms IS NULL";
            tx.execute(sql, (id, now.wall.0)).map(|_| ())
        })
    }

    /// Closes whatever is open of one kind about one subject.
    pub fn faults_gone(&mut self, kind: &str, subject: &str, now: &Now) -> Result<(), LedgerError> {
        self.write("close faults", |tx| {
            let sql = "UPDATE fault SET closed_wall_ms = ?3
                 WHERE kind = ?1 AND subject = ?2 AND closed_wall_ms IS NULL";
            tx.execute(sql, (kind, subject, now.wall.0)).map(|_| ())
        })
    }

    /// The open faults, oldest first.
    pub fn open_faults(&self) -> Result<Vec<FaultRow>, LedgerError> {
        self.read("read faults", |conn| {
            let mut open = conn.prepare(
                "SELECT id, kind, subject, detail, opened_wall_ms, last_run FROM fault
                 WHERE closed_wall_ms IS NULL ORDER BY id",
            )?;
            open.query_map([], |r| {
                Ok(FaultRow {
                    id: r.get(0)?,
                    kind: r.get(1)?,
                    subject: r.get(2)?,
                    detail: r.get(3)?,
                    opened: WallMs(r.get(4)?),
                    last_run: RunId(r.get(5)?),
                })
            })?
            .collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    #[test]
    fn a_message_is_queued_once_tried_ever_more_rarely_and_given_up() {
        let (_dir, mut ledger) = fresh();
        assert!(ledger.queue_letter("finding 7 alert", "text", &at(0)).unwrap());
        assert!(!ledger.queue_letter("finding 7 alert", "text", &at(0)).unwrap());
        let due = |ledger: &Ledger, minute| ledger.due_letters(3, &at(minute)).unwrap();
        let letter = due(&ledger, 0).pop().unwrap();
        ledger.letter_failed(letter.id, &at(0)).unwrap();
        assert!(due(&ledger, 0).is_empty());
        assert_eq!(due(&ledger, 1)[0].tries, 1);
        let mut rebooted = at(0);
        rebooted.boot_id = "another".to_owned();
        assert_eq!(ledger.due_letters(3, &rebooted).unwrap().len(), 1);
        for _ in 0..6 {
            ledger.letter_failed(letter.id, &at(1)).unwrap();
        }
        assert!(due(&ledger, 100_000).is_empty());

        ledger.queue_letter("another", "text", &at(0)).unwrap();
        let letter = due(&ledger, 0).pop().unwrap();
        ledger.letter_sent(letter.id, &at(1)).unwrap();
        assert!(due(&ledger, 2).is_empty());
        assert!(!ledger.queue_letter("another", "text", &at(2)).unwrap(), "told already");
    }

    #[test]
    fn a_fault_is_open_until_it_is_gone() {
        let (_dir, mut ledger) = fresh();
        assert!(ledger.fault_seen("gpu-lost", "GPU-1", "lost", RunId(1), &at(1)).unwrap());
        assert!(!ledger.fault_seen("gpu-lost", "GPU-1", "still lost", RunId(2), &at(2)).unwrap());
        let open = ledger.open_faults().unwrap();
        assert_eq!((open.len(), open[0].last_run, open[0].opened), (1, RunId(2), at(1).wall));
        ledger.fault_gone(open[0].id, &at(3)).unwrap();
        assert!(ledger.open_faults().unwrap().is_empty());
        assert!(ledger.fault_seen("gpu-lost", "GPU-1", "again", RunId(4), &at(4)).unwrap());
    }
}

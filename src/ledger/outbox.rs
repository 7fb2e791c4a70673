//! What is still to be told: queued with what it is about, told once, bounded. Sends nothing.

use super::{Ledger, LedgerError, boot_row, boot_row_made};
use crate::model::Now;
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
}

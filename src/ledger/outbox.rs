//! What is still to be told: queued with what it is about, told once, bounded. Sends nothing.
//!
//! A letter's subject is its thread and a last word, the stage: `slack finding 7 alert`. Letters of one thread go in
//! their order; one that waits holds up no other thread.

use super::{Ledger, LedgerError, boot_row, boot_row_made};
use crate::model::Now;
use crate::units::BootMs;
use rusqlite::OptionalExtension;

/// Waits between attempts to deliver; after the last of them the letter is given up. The first is shorter than the
/// usual minute between runs: what failed once goes out with the next one.
const BACK_OFF_MS: [i64; 7] = [45_000, 120_000, 300_000, 900_000, 1_800_000, 3_600_000, 10_800_000];
/// What a letter's tries are once it is given up.
const GIVEN_UP: u32 = 99;
/// How many letters may wait; one more, and the oldest is given up.
pub const MOST_WAITING: u32 = 100;
/// A server may ask for no longer a wait than this.
const LONGEST_WAIT_MS: i64 = 6 * 3_600_000;
/// What has waited for longer is old: no longer news, and perhaps no longer so. By the wall clock, for it may have waited
/// over a boot; but no letter of this boot is older than the boot, whatever that clock did meanwhile.
const OLD_MS: i64 = 86_400_000;

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
    /// It has waited for longer than anybody wants to hear of it.
    pub is_old: bool,
}

/// What became of a letter that was to be queued.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queued {
    /// It is new; another of its subject was told, waits, or was given up.
    pub new: bool,
    /// The subject of one that was given up in its place.
    pub given_up: Option<String>,
}

fn thread(subject: &str) -> &str {
    subject.rsplit_once(' ').map_or(subject, |(thread, _)| thread)
}

impl Ledger {
    /// Queues a message, to be sent no earlier than `due`; a second one about the same subject is not queued.
    pub fn queue_letter(
        &mut self,
        subject: &str,
        body: &str,
        due: BootMs,
        now: &Now,
    ) -> Result<Queued, LedgerError> {
        let known = "SELECT 1 FROM outbox WHERE subject = ?1";
        if self.read("look for a message", |conn| conn.prepare(known)?.exists([subject]))? {
            return Ok(Queued::default());
        }
        self.write("queue a message", |tx| {
            let boot = boot_row_made(tx, &now.boot_id)?.id;
            let queued = tx.execute(
                "INSERT INTO outbox (subject, body, queued_wall_ms, boot, next_boot_ms, tries)
                 VALUES (?1, ?2, ?3, ?4, ?5, 0) ON CONFLICT (subject) DO NOTHING",
                (subject, body, now.wall.0, boot, due.0),
            )?;
            let sql = "UPDATE outbox SET tries = ?1, body = '' WHERE id =
                         (SELECT id FROM outbox WHERE sent_wall_ms IS NULL AND tries < ?1
                          ORDER BY id DESC LIMIT 1 OFFSET ?2) RETURNING subject";
            let given_up = tx.query_row(sql, (GIVEN_UP, MOST_WAITING), |r| r.get(0)).optional()?;
            Ok(Queued { new: queued == 1, given_up })
        })
    }

    /// Messages that are due, those first that were tried least; those of an earlier boot are due at once.
    pub fn due_letters(&self, now: &Now) -> Result<Vec<Letter>, LedgerError> {
        self.read("read messages", |conn| {
            let boot = boot_row(conn, &now.boot_id)?.map(|b| b.id);
            let mut waiting = conn.prepare(
                "SELECT id, subject, tries, boot IS NOT ?1 OR next_boot_ms <= ?2, body, queued_wall_ms, boot IS ?1
                 FROM outbox
                 WHERE sent_wall_ms IS NULL AND tries < ?3 ORDER BY id",
            )?;
            let mut rows = waiting.query((boot, now.boot.0, GIVEN_UP))?;
            let (mut due, mut threads) = (Vec::new(), Vec::new());
            while let Some(row) = rows.next()? {
                let subject: String = row.get(1)?;
                if threads.iter().any(|known| known == thread(&subject)) {
                    continue;
                }
                threads.push(thread(&subject).to_owned());
                if row.get(3)? {
                    let waited_ms = now.wall.0.saturating_sub(row.get(5)?);
                    let most_ms = if row.get(6)? { now.boot.0 } else { i64::MAX };
                    let is_old = waited_ms.min(most_ms) > OLD_MS;
                    let (id, tries, body) = (row.get(0)?, row.get(2)?, row.get(4)?);
                    due.push(Letter { id, subject, body, tries, is_old });
                }
            }
            due.sort_by_key(|letter| letter.tries);
            Ok(due)
        })
    }

    /// The stages of a thread that were told or wait.
    pub fn told_in(&self, thread: &str) -> Result<Vec<String>, LedgerError> {
        self.read("look for messages", |conn| {
            // '!' comes next after the blank, and subjects are indexed.
            let sql = "SELECT substr(subject, length(?1) + 2) FROM outbox
                       WHERE subject > ?1 || ' ' AND subject < ?1 || '!' AND tries < ?2 ORDER BY id";
            conn.prepare(sql)?.query_map((thread, GIVEN_UP), |r| r.get(0))?.collect()
        })
    }

    /// A message arrived. Its subject stays known, so that it is not queued again.
    pub fn letter_sent(&mut self, id: i64, now: &Now) -> Result<(), LedgerError> {
        self.write("keep that a message was sent", |tx| {
            let sql = "UPDATE outbox SET sent_wall_ms = ?2, tries = tries + 1, body = '' WHERE id = ?1";
            tx.execute(sql, (id, now.wall.0)).map(|_| ())
        })
    }

    /// A message did not arrive: tried again later, and less and less often, and not before the server wants it.
    /// `false`: it was tried often enough, and is given up.
    pub fn letter_failed(&mut self, id: i64, wanted_ms: Option<i64>, now: &Now) -> Result<bool, LedgerError> {
        let again = self.write("keep that a message failed", |tx| {
            let boot = boot_row_made(tx, &now.boot_id)?.id;
            let sql = "UPDATE outbox SET tries = tries + 1 WHERE id = ?1 RETURNING tries";
            let tries: Option<u32> = tx.query_row(sql, [id], |r| r.get(0)).optional()?;
            let step = tries.and_then(|tries| BACK_OFF_MS.get((tries as usize).checked_sub(1)?));
            let Some(step) = step else { return Ok(false) };
            let wait = wanted_ms.map_or(*step, |wanted| wanted.min(LONGEST_WAIT_MS).max(*step));
            let sql = "UPDATE outbox SET boot = ?2, next_boot_ms = ?3 WHERE id = ?1";
            tx.execute(sql, (id, boot, now.boot.0 + wait)).map(|_| true)
        })?;
        if !again {
            self.give_letter_up(id)?;
        }
        Ok(again)
    }

    /// A message is not tried again. Its subject stays known. Where it was all that was to be told, nobody is told of the
    /// end of what nobody was told of.
    pub fn give_letter_up(&mut self, id: i64) -> Result<(), LedgerError> {
        self.write("give a message up", |tx| {
            let sql = "UPDATE outbox SET tries = ?2, body = '' WHERE id = ?1 RETURNING subject";
            let subject: Option<String> = tx.query_row(sql, (id, GIVEN_UP), |r| r.get(0)).optional()?;
            let Some(subject) = subject else { return Ok(()) };
            let ends = "(?1 || ' recovered', ?1 || ' over', ?1 || ' lifted')";
            let sql = format!(
                "UPDATE outbox SET tries = ?2, body = '' WHERE subject IN {ends} AND sent_wall_ms ISNULL
                 AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.subject > ?1 || ' ' AND o.subject < ?1 || '!'
                     AND o.tries < ?2 AND o.subject NOT IN {ends})"
            );
            tx.execute(&sql, (thread(&subject), GIVEN_UP)).map(|_| ())
        })
    }

    /// Takes back a message that nobody was sent yet; `true`: there was one, and nobody is told.
    pub fn withdraw_letter(&mut self, subject: &str) -> Result<bool, LedgerError> {
        self.write("take a message back", |tx| {
            let sql = "UPDATE outbox SET tries = ?2, body = '' WHERE subject = ?1 AND sent_wall_ms ISNULL AND tries = 0";
            Ok(tx.execute(sql, (subject, GIVEN_UP))? > 0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    fn queue(ledger: &mut Ledger, subject: &str, minute: i64) -> Queued {
        ledger.queue_letter(subject, "text", at(minute).boot, &at(minute)).unwrap()
    }

    fn due(ledger: &Ledger, minute: i64) -> Vec<String> {
        ledger.due_letters(&at(minute)).unwrap().into_iter().map(|letter| letter.subject).collect()
    }

    fn first(ledger: &Ledger, minute: i64) -> Letter {
        ledger.due_letters(&at(minute)).unwrap().remove(0)
    }

    #[test]
    fn a_message_is_queued_once_tried_ever_more_rarely_and_given_up() {
        // YelpArchive/elastalert#1345 (AL-01): one attempt a step, attempts bounded, told once.
        let (_dir, mut ledger) = fresh();
        assert!(queue(&mut ledger, "slack finding 7 alert", 0).new);
        assert!(!queue(&mut ledger, "slack finding 7 alert", 0).new);
        let letter = first(&ledger, 0);
        let mut minute = 0;
        for wait in [1, 2, 5, 15, 30, 60, 180] {
            assert!(ledger.letter_failed(letter.id, None, &at(minute)).unwrap());
            assert!(due(&ledger, minute + wait - 1).is_empty(), "{wait}");
            minute += wait;
            assert_eq!(due(&ledger, minute).len(), 1, "{wait}");
        }
        assert!(!ledger.letter_failed(letter.id, None, &at(minute)).unwrap(), "the eighth was the last");
        assert!(due(&ledger, 100_000).is_empty());
        assert!(!queue(&mut ledger, "slack finding 7 alert", minute).new);
        assert_eq!(ledger.told_in("slack finding 7").unwrap(), Vec::<String>::new(), "nobody was told");

        queue(&mut ledger, "slack finding 8 alert", 0);
        let letter = first(&ledger, 0);
        ledger.letter_sent(letter.id, &at(1)).unwrap();
        assert!(due(&ledger, 2).is_empty());
        assert!(!queue(&mut ledger, "slack finding 8 alert", 2).new, "told already");
        assert_eq!(ledger.told_in("slack finding 8").unwrap(), ["alert"]);
        assert!(ledger.told_in("slack finding 80").unwrap().is_empty());
    }

    #[test]
    fn a_server_may_ask_for_a_longer_wait_and_not_for_ever() {
        let (_dir, mut ledger) = fresh();
        queue(&mut ledger, "slack finding 7 alert", 0);
        let id = first(&ledger, 0).id;
        ledger.letter_failed(id, Some(3_600_000), &at(0)).unwrap();
        assert!(due(&ledger, 59).is_empty() && due(&ledger, 60).len() == 1);
        ledger.letter_failed(id, Some(0), &at(60)).unwrap();
        assert!(due(&ledger, 61).is_empty() && due(&ledger, 62).len() == 1, "no sooner than by itself");
        ledger.letter_failed(id, Some(i64::MAX), &at(62)).unwrap();
        assert!(due(&ledger, 62 + 359).is_empty() && due(&ledger, 62 + 360).len() == 1);
        let mut rebooted = at(62);
        rebooted.boot_id = "another".to_owned();
        assert!(!ledger.due_letters(&rebooted).unwrap()[0].is_old);
        let week = at(7 * 24 * 60);
        rebooted.wall = week.wall;
        assert!(ledger.due_letters(&rebooted).unwrap()[0].is_old, "a week behind a boot it is no news");
        assert!(first(&ledger, 7 * 24 * 60).is_old);
        // A clock that began in 2000 and was set: the letter has waited for minutes.
        let set = Now { wall: week.wall, ..at(62 + 360) };
        assert!(set.boot.0 < OLD_MS && !ledger.due_letters(&set).unwrap()[0].is_old);
    }

    #[test]
    fn of_what_nobody_was_told_nobody_is_told_the_end() {
        let (_dir, mut ledger) = fresh();
        for subject in ["slack finding 7 alert", "slack finding 7 recovered", "exec finding 7 recovered"] {
            queue(&mut ledger, subject, 0);
        }
        ledger.give_letter_up(first(&ledger, 0).id).unwrap();
        assert_eq!(due(&ledger, 0), ["exec finding 7 recovered"], "another channel is another's");
        for subject in ["slack finding 8 alert", "slack finding 8 drain", "slack finding 8 recovered"] {
            queue(&mut ledger, subject, 1);
        }
        let eighth = |letter: &Letter| letter.subject == "slack finding 8 alert";
        let letter = ledger.due_letters(&at(1)).unwrap().into_iter().find(eighth).unwrap();
        ledger.give_letter_up(letter.id).unwrap();
        assert_eq!(ledger.told_in("slack finding 8").unwrap(), ["drain", "recovered"]);
        assert!(ledger.withdraw_letter("slack finding 8 drain").unwrap());
        assert!(!ledger.withdraw_letter("slack finding 8 drain").unwrap());
    }

    #[test]
    fn a_thread_goes_in_its_order_and_holds_up_no_other() {
        // Uninett/nav#2170 (AL-04): what one refusal meant for the next message.
        let (_dir, mut ledger) = fresh();
        for subject in ["slack finding 7 alert", "slack finding 7 drain", "exec finding 7 alert"] {
            queue(&mut ledger, subject, 0);
        }
        assert_eq!(due(&ledger, 0), ["slack finding 7 alert", "exec finding 7 alert"]);
        ledger.letter_failed(first(&ledger, 0).id, None, &at(0)).unwrap();
        queue(&mut ledger, "slack finding 8 alert", 0);
        assert_eq!(due(&ledger, 0), ["exec finding 7 alert", "slack finding 8 alert"]);
        assert_eq!(due(&ledger, 1).last().unwrap(), "slack finding 7 alert", "what failed comes last");
        ledger.queue_letter("slack fault 3 alert", "text", at(9).boot, &at(0)).unwrap();
        assert!(!due(&ledger, 8).contains(&"slack fault 3 alert".to_owned()) && due(&ledger, 9).len() == 4);
    }

    #[test]
    fn of_too_many_that_wait_the_oldest_is_given_up() {
        let (_dir, mut ledger) = fresh();
        for n in 0..i64::from(MOST_WAITING) {
            assert_eq!(queue(&mut ledger, &format!("slack finding {n} alert"), 0).given_up, None);
        }
        let one_more = queue(&mut ledger, "slack finding 1000 alert", 0);
        assert_eq!(one_more, Queued { new: true, given_up: Some("slack finding 0 alert".to_owned()) });
        assert_eq!(due(&ledger, 0).len(), MOST_WAITING as usize);
    }
}

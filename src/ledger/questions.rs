//! Questions to Slurm: what was asked, what was answered, and how soon it may be asked again. Keeps the
//! controller quiet; asks nothing itself.

use super::{Ledger, LedgerError, boot_row, boot_row_made};
use crate::model::Now;
use rusqlite::OptionalExtension;

/// How long to wait after the first failure, the second, and any later one.
const BACK_OFF_MS: [i64; 3] = [60_000, 300_000, 1_800_000];

/// How a question stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// It may be asked.
    Ask,
    /// It was answered, so many milliseconds ago.
    Answered {
        /// What was answered.
        answer: String,
        /// How long ago.
        age_ms: i64,
    },
    /// It failed; not before so many milliseconds from now.
    Wait {
        /// How long still.
        ms: i64,
        /// How often it has failed in a row.
        failures: u32,
    },
}

impl Ledger {
    /// How a question stands on this boot; what an earlier boot was told is not asked for.
    pub fn question(&self, subject: &str, now: &Now) -> Result<Question, LedgerError> {
        self.read("look for an answer", |conn| {
            let boot = boot_row(conn, &now.boot_id)?.map(|b| b.id);
            let sql = "SELECT asked_boot_ms, failures, next_boot_ms, answer FROM question
                       WHERE subject = ?1 AND boot = ?2";
            let kept: Option<(i64, u32, i64, Option<String>)> = conn
                .query_row(sql, (subject, boot), |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?)))
                .optional()?;
            let now = now.boot.0;
            Ok(match kept {
                Some((_, failures, next, _)) if failures > 0 && next > now => {
                    Question::Wait { ms: next - now, failures }
                }
                Some((asked, 0, _, Some(answer))) => Question::Answered { answer, age_ms: now - asked },
                _ => Question::Ask,
            })
        })
    }

    /// Whether a question may be asked now: never asked, or its back-off is over. Answered ones may not.
    pub fn ask_allowed(&self, subject: &str, now: &Now) -> Result<bool, LedgerError> {
        Ok(self.question(subject, now)? == Question::Ask)
    }

    /// Keeps an answer.
    pub fn answered(&mut self, subject: &str, answer: &str, now: &Now) -> Result<(), LedgerError> {
        self.write("keep an answer", |tx| {
            let boot = boot_row_made(tx, &now.boot_id)?.id;
            tx.execute(
                "INSERT OR REPLACE INTO question VALUES (?1, ?2, ?3, 0, ?3, ?4)",
                (subject, boot, now.boot.0, answer),
            )
            .map(|_| ())
        })
    }

    /// Keeps that no usable answer came: the next attempt is 1, then 5, then every 30 minutes later.
    pub fn unanswered(&mut self, subject: &str, now: &Now) -> Result<(), LedgerError> {
        self.write("keep a failed question", |tx| {
            let boot = boot_row_made(tx, &now.boot_id)?.id;
            let sql = "SELECT failures FROM question WHERE subject = ?1 AND boot = ?2";
            let earlier: Option<u32> = tx.query_row(sql, (subject, boot), |r| r.get(0)).optional()?;
            let failures = earlier.map_or(1, |n| n + 1);
            let wait = BACK_OFF_MS[(failures as usize - 1).min(BACK_OFF_MS.len() - 1)];
            tx.execute(
                "INSERT OR REPLACE INTO question VALUES (?1, ?2, ?3, ?4, ?5, NULL)",
                (subject, boot, now.boot.0, failures, now.boot.0 + wait),
            )
            .map(|_| ())
        })
    }

    /// Forgets an answer that is too old for its purpose: it may be asked again.
    pub fn forget_answer(&mut self, subject: &str) -> Result<(), LedgerError> {
        self.write("forget an answer", |tx| {
            tx.execute("DELETE FROM question WHERE subject = ?1", [subject]).map(|_| ())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    #[test]
    fn a_question_that_fails_is_asked_ever_more_rarely() {
        let (_dir, mut ledger) = fresh();
        let mut minute = 0;
        for wait in [1, 5, 30, 30] {
            assert!(ledger.ask_allowed("job 5", &at(minute)).unwrap());
            ledger.unanswered("job 5", &at(minute)).unwrap();
            assert!(!ledger.ask_allowed("job 5", &at(minute + wait - 1)).unwrap(), "{wait}");
            minute += wait;
        }
        ledger.answered("job 5", "RUNNING", &at(minute)).unwrap();
        let answer = Question::Answered { answer: "RUNNING".to_owned(), age_ms: 120_000 };
        assert_eq!(ledger.question("job 5", &at(minute + 2)).unwrap(), answer);
        ledger.unanswered("job 5", &at(minute + 2)).unwrap();
        assert!(ledger.ask_allowed("job 5", &at(minute + 3)).unwrap(), "an answer ends the row of failures");
        let mut rebooted = at(minute + 2);
        rebooted.boot_id = "another".to_owned();
        assert!(ledger.ask_allowed("job 5", &rebooted).unwrap());
        ledger.forget_answer("job 5").unwrap();
        assert_eq!(ledger.question("job 5", &at(minute + 2)).unwrap(), Question::Ask);
    }
}

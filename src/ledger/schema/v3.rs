//! Version 3: votes, warnings and requeues among the actions, and whether a drain was counted again.
//!
//! - **`action` is built anew**: the words it allows are a CHECK, which cannot be changed. It holds a few rows at most.
//!   `released` is what we lifted again; in version 2 that was `lifted`, as somebody else's doing still is.
//! - **`job_run.by_epilog`**: 1 if our Epilog hook closed it. A health run may find a job ended whose Epilog failed:
//!   then it is closed too, and its drain must not be lifted.
//! - **`counted_again_run`**: the run after a drain counts the cluster's drains once more; until one did, it is tried
//!   again.

/// From version 2.
pub(super) const V3: &str = "
DROP INDEX action_of_run;
ALTER TABLE action RENAME TO action_2;

CREATE TABLE action (
  id INTEGER PRIMARY KEY,
  finding INTEGER,
  verdict TEXT NOT NULL,
  node TEXT NOT NULL,
  job_id INTEGER NOT NULL,
  restart INTEGER NOT NULL,
  start_wall_ms INTEGER NOT NULL,
  job_run INTEGER NOT NULL,
  boot INTEGER NOT NULL,
  boottime_ms INTEGER NOT NULL,
  run INTEGER NOT NULL,
  wall_ms INTEGER NOT NULL,
  signature TEXT NOT NULL,
  seen_before TEXT NOT NULL,
  reason TEXT,
  outcome TEXT NOT NULL,
  detail TEXT NOT NULL,
  release_seen_run INTEGER,
  counted_again_run INTEGER,
  CHECK (verdict IN ('alert', 'drain', 'vote', 'warn', 'cancel', 'requeue', 'release')
    AND outcome IN ('begun', 'done', 'failed', 'unknown', 'released', 'lifted')
    AND length(reason) > 0 AND NOT reason GLOB '*[^ -~]*')
) STRICT;

INSERT INTO action SELECT *, NULL FROM action_2;
UPDATE action SET outcome = 'released' WHERE outcome = 'lifted' AND detail = 'released by us';
DROP TABLE action_2;
CREATE INDEX action_of_run ON action (job_run);
ALTER TABLE job_run ADD COLUMN by_epilog INTEGER;
";

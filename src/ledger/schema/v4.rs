//! Version 4: faults of the node with their hysteresis, the drains that are for them, and what a look remembers for the
//! next one.
//!
//! - **A fault begins as a suspicion**: `seen` runs in a row saw it, and it is told (`told`) once they are enough; `clean`
//!   counts the runs since that saw it gone. One row is one episode. What older versions kept was told at once; their
//!   Xids, which are notes of jobs, make room for those that mean hardware.
//! - **`fault_drain` is no `action`**: an action names a job run, and a cancel asks for an earlier drain of its own. A
//!   drain that stands for a fault can never be taken for one.
//! - **`remembered`** holds what makes the next run's reading news: error counters of each GPU, the most GPUs and links
//!   ever listed, and how far the kernel's log was read on which boot.
//! - What an Epilog could not settle in its time is a suspicion too; a later run ends the look.

/// From version 3.
pub(super) const V4: &str = "
ALTER TABLE fault ADD COLUMN seen INTEGER NOT NULL DEFAULT 1;
ALTER TABLE fault ADD COLUMN clean INTEGER NOT NULL DEFAULT 0;
ALTER TABLE fault ADD COLUMN told INTEGER NOT NULL DEFAULT 1;
ALTER TABLE fault ADD COLUMN place TEXT;
ALTER TABLE fault ADD COLUMN withheld TEXT;
ALTER TABLE fault ADD COLUMN acked_by TEXT;
ALTER TABLE fault ADD COLUMN acked_wall_ms INTEGER;
UPDATE fault SET kind = 'job-xid' WHERE kind = 'xid';
CREATE UNIQUE INDEX fault_open ON fault (kind, subject) WHERE closed_wall_ms ISNULL;

CREATE TABLE fault_drain (
  id INTEGER PRIMARY KEY,
  fault INTEGER NOT NULL,
  boot INTEGER NOT NULL,
  boottime_ms INTEGER NOT NULL,
  run INTEGER NOT NULL,
  wall_ms INTEGER NOT NULL,
  seen_before TEXT NOT NULL,
  reason TEXT NOT NULL,
  outcome TEXT NOT NULL,
  detail TEXT NOT NULL,
  counted_again INTEGER,
  CHECK (outcome IN ('begun', 'done', 'failed', 'unknown', 'lifted') AND NOT reason GLOB '*[^ -~]*')
) STRICT;

CREATE TABLE remembered (
  subject TEXT,
  what TEXT,
  value INTEGER NOT NULL,
  PRIMARY KEY (subject, what)
) STRICT, WITHOUT ROWID;
";

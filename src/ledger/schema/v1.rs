//! Version 1, and why it is as it is. What version 2 changed is argued there.
//!
//! - **The schema mirrors the types.** A reading is two columns, the value and the code of its absence
//!   ([`crate::reading::Absence::code`]), and a CHECK wants exactly one of them: neither "0 because unknown"
//!   nor "unknown, but look, 0" can be stored. Tables are STRICT (measured: it costs nothing) and units are
//!   integers (rows of text and floating point were 5.8 times larger).
//! - **Order is by `run.id`**, which only grows. Time within a boot is CLOCK_BOOTTIME; the wall clock is kept
//!   for showing and may step either way (prometheus/blackbox_exporter#38).
//! - **`sample` is keyed (run, unit) WITHOUT ROWID**: one run's rows lie together, an append touches the right
//!   edge only, replay is one range, pruning is one range. Keys that begin with the unit replayed half as fast.
//! - **`unit` maps the UUID to a small number.** The UUID alone identifies: index, minor and address are what
//!   they were when last seen.
//! - **A number never returns**, so that a late writer that holds one can name nothing but what it meant:
//!   `job_run` by AUTOINCREMENT; `run`, which is written each time, because its newest row is never deleted.
//! - **Samples belong to an open registration, by trigger and not by foreign key.** A foreign key would say
//!   "the row exists"; the promise is "the registration is open". It would also have to look for children at
//!   each deletion of a parent: without an index on `sample.job_run` a scan of the whole table, with one a
//!   second tree to write in every run. The triggers look once, at insertion, where the promise can be broken.
//!   They fail and do not abort: for that SQLite would copy each page before each row. Nothing of the one row
//!   was written yet, and the transaction ends with the error.
//!   Rows that go together are written and deleted together, in one transaction each, so no other foreign key
//!   would ever speak either.
//! - **`ended` are tombstones**: the Epilog's mark that a job run is over, also for runs never registered. A
//!   discovery that began before the Epilog cannot bring the run back: a trigger refuses it. Only a Prolog,
//!   which means a new run, removes the mark.
//! - **A closed job run keeps its row** (closed by the Epilog, by a requeue, by a replacement) as long as samples
//!   of it may be there, so that they can be judged again and "which runs had this job" has an answer.
//! - **The archive is no table of its own.** What the policy reads are the samples of open registrations; an
//!   Epilog that archives closes the registration and marks it, and pruning passes its samples over until
//!   their own, later time. Nothing is copied while a job waits for its Epilog, and what is judged again are
//!   the very rows that were judged. Rows older than `meta.thinned_run` are archived ones only, so dropping
//!   the oldest runs drops the archive first.
//! - **What is known of a job run are rows of `job_fact`**, one reading each, by name: a dozen readings of
//!   Slurm's and as many of the registration would be fifty columns.
//! - **Text costs.** SQLite parses the whole schema at each opening, about 140 instructions a byte: the largest
//!   part of an opening. Hence one CHECK per table (a list of them costs a third more), no CHECK for what a
//!   type, a key or the only writer says anyway, and AUTOINCREMENT only where a number must not return.
//! - **`action` names its job in clear** and outlives job run, boot and Epilog. A Reason is one line of
//!   printable ASCII by CHECK: it goes out to Slurm byte for byte and is compared byte for byte.
//! - Everything in `meta` is one row: a second one cannot exist.

pub(super) const V1: &str = concat!(
    "
CREATE TABLE meta (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  node TEXT NOT NULL,
  created_boot TEXT NOT NULL,
  created_boot_ms INTEGER NOT NULL,
  created_wall_ms INTEGER NOT NULL,
  thinned_run INTEGER NOT NULL,
  cadence_median_ms INTEGER,
  cadence_p90_ms INTEGER,
  cadence_run INTEGER
) STRICT;

CREATE TABLE boot (
  id INTEGER PRIMARY KEY,
  boot_id TEXT NOT NULL UNIQUE,
  first_run INTEGER
) STRICT;

CREATE TABLE run (
  id INTEGER PRIMARY KEY,
  boot INTEGER NOT NULL,
  boottime_ms INTEGER NOT NULL,
  wall_ms INTEGER NOT NULL,
  outcome TEXT NOT NULL,
  phase TEXT,
  driver TEXT,
  driver_absent INTEGER,
  gpus_absent INTEGER,
  overlapped INTEGER NOT NULL,
  CHECK (outcome IN ('ok', 'fault', 'killed') AND (outcome = 'killed') = (phase NOTNULL)
    AND (driver ISNULL) <> (driver_absent ISNULL))
) STRICT;

CREATE TABLE unit (
  id INTEGER PRIMARY KEY,
  uuid TEXT NOT NULL UNIQUE,
  parent TEXT,
  gi INTEGER,
  ci INTEGER,
  nvml_index INTEGER NOT NULL,
  minor INTEGER,
  minor_absent INTEGER,
  pci TEXT,
  pci_absent INTEGER,
  name TEXT,
  name_absent INTEGER,
  last_run INTEGER NOT NULL,
  CHECK (length(uuid) > 4
    AND (parent ISNULL) = (gi ISNULL) AND (gi ISNULL) = (ci ISNULL)
    AND (minor ISNULL) <> (minor_absent ISNULL)
    AND (pci ISNULL) <> (pci_absent ISNULL)
    AND (name ISNULL) <> (name_absent ISNULL))
) STRICT;

CREATE TABLE sample (
  run INTEGER,
  unit INTEGER,
  job_run INTEGER,
  sm_util INTEGER,
  sm_util_absent INTEGER,
  mem_util INTEGER,
  mem_util_absent INTEGER,
  sm_peak INTEGER,
  sm_peak_covered_ms INTEGER,
  sm_peak_absent INTEGER,
  mem_peak INTEGER,
  mem_peak_covered_ms INTEGER,
  mem_peak_absent INTEGER,
  mem_used INTEGER,
  mem_total INTEGER,
  mem_excludes_reserved INTEGER,
  mem_absent INTEGER,
  power_mw INTEGER,
  power_absent INTEGER,
  power_limit_mw INTEGER,
  power_limit_absent INTEGER,
  sm_clock_mhz INTEGER,
  sm_clock_absent INTEGER,
  sm_clock_max_mhz INTEGER,
  sm_clock_max_absent INTEGER,
  temperature_c INTEGER,
  temperature_absent INTEGER,
  clocks_event INTEGER,
  clocks_event_absent INTEGER,
  mig INTEGER,
  mig_absent INTEGER,
  processes_compute INTEGER,
  processes_graphics INTEGER,
  processes_absent INTEGER,
  PRIMARY KEY (run, unit),
  CHECK (sm_util BETWEEN 0 AND 100
    AND mem_util BETWEEN 0 AND 100
    AND sm_peak BETWEEN 0 AND 100
    AND mem_peak BETWEEN 0 AND 100
    AND mem_used BETWEEN 0 AND mem_total
    AND (sm_util ISNULL) <> (sm_util_absent ISNULL)
    AND (mem_util ISNULL) <> (mem_util_absent ISNULL)
    AND (sm_peak ISNULL) <> (sm_peak_absent ISNULL)
    AND (sm_peak ISNULL) = (sm_peak_covered_ms ISNULL)
    AND (mem_peak ISNULL) <> (mem_peak_absent ISNULL)
    AND (mem_peak ISNULL) = (mem_peak_covered_ms ISNULL)
    AND (mem_used ISNULL) <> (mem_absent ISNULL)
    AND (mem_used ISNULL) = (mem_total ISNULL)
    AND (mem_used ISNULL) = (mem_excludes_reserved ISNULL)
    AND (power_mw ISNULL) <> (power_absent ISNULL)
    AND (power_limit_mw ISNULL) <> (power_limit_absent ISNULL)
    AND (sm_clock_mhz ISNULL) <> (sm_clock_absent ISNULL)
    AND (sm_clock_max_mhz ISNULL) <> (sm_clock_max_absent ISNULL)
    AND (temperature_c ISNULL) <> (temperature_absent ISNULL)
    AND (clocks_event ISNULL) <> (clocks_event_absent ISNULL)
    AND (mig ISNULL) <> (mig_absent ISNULL)
    AND (processes_compute ISNULL) <> (processes_absent ISNULL)
    AND (processes_compute ISNULL) = (processes_graphics ISNULL))
) STRICT, WITHOUT ROWID;

CREATE TABLE counter (
  run INTEGER,
  unit INTEGER,
  kind INTEGER,
  scope INTEGER,
  value INTEGER,
  value_absent INTEGER,
  PRIMARY KEY (run, unit, kind, scope),
  CHECK (value >= 0 AND (value ISNULL) <> (value_absent ISNULL))
) STRICT, WITHOUT ROWID;

CREATE TABLE proc (
  run INTEGER,
  unit INTEGER,
  pid INTEGER,
  kind INTEGER,
  job_run INTEGER,
  start_ticks INTEGER,
  start_absent INTEGER,
  memory_bytes INTEGER,
  memory_absent INTEGER,
  PRIMARY KEY (run, unit, pid, kind),
  CHECK ((start_ticks ISNULL) <> (start_absent ISNULL)
    AND (memory_bytes ISNULL) <> (memory_absent ISNULL))
) STRICT, WITHOUT ROWID;

CREATE TABLE job_sample (
  run INTEGER,
  job_run INTEGER,
  frozen INTEGER,
  frozen_absent INTEGER,
  cpu_ms INTEGER,
  cpu_absent INTEGER,
  written_bytes INTEGER,
  written_absent INTEGER,
  read_bytes INTEGER,
  read_absent INTEGER,
  PRIMARY KEY (run, job_run),
  CHECK (frozen IN (0, 1)
    AND (frozen ISNULL) <> (frozen_absent ISNULL)
    AND (cpu_ms ISNULL) <> (cpu_absent ISNULL)
    AND (written_bytes ISNULL) <> (written_absent ISNULL)
    AND (read_bytes ISNULL) <> (read_absent ISNULL))
) STRICT, WITHOUT ROWID;

CREATE TABLE job_run (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  boot INTEGER NOT NULL,
  job_id INTEGER NOT NULL,
  restart INTEGER NOT NULL,
  registered_by TEXT NOT NULL,
  registered_boot_ms INTEGER NOT NULL,
  after_run INTEGER NOT NULL,
  start_boot_ms INTEGER NOT NULL,
  start_wall_ms INTEGER NOT NULL,
  start_source TEXT NOT NULL,
  het_leader INTEGER,
  first_activity_ms INTEGER,
  last_activity_ms INTEGER,
  archived INTEGER NOT NULL,
  closed_how TEXT,
  closed_wall_ms INTEGER,
  CHECK (job_id > 0 AND registered_by IN ('prolog', 'discovery')
    AND closed_how IN ('ended', 'requeued', 'replaced')
    AND (closed_how ISNULL) = (closed_wall_ms ISNULL))
) STRICT;
CREATE UNIQUE INDEX job_run_open ON job_run (boot, job_id, restart) WHERE closed_how ISNULL;

CREATE TABLE job_fact (
  job_run INTEGER,
  name TEXT,
  value ANY,
  absent INTEGER CHECK ((value ISNULL) <> (absent ISNULL)),
  PRIMARY KEY (job_run, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE ended (
  boot INTEGER,
  job_id INTEGER,
  restart INTEGER,
  ended_wall_ms INTEGER NOT NULL,
  job_run INTEGER,
  PRIMARY KEY (boot, job_id, restart)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER job_run_ended BEFORE INSERT ON job_run WHEN NEW.registered_by = 'discovery' AND EXISTS
  (SELECT 1 FROM ended WHERE boot = NEW.boot AND job_id = NEW.job_id AND restart >= NEW.restart)
BEGIN SELECT RAISE(ABORT, 'this job run has ended'); END;
",
    owned!("sample"),
    owned!("proc"),
    owned!("job_sample"),
    "
CREATE TABLE finding (
  id INTEGER PRIMARY KEY,
  job_id INTEGER NOT NULL,
  restart INTEGER NOT NULL,
  display_id TEXT NOT NULL,
  job_run INTEGER NOT NULL,
  signature TEXT NOT NULL,
  scope TEXT NOT NULL,
  units TEXT NOT NULL,
  boot INTEGER NOT NULL,
  since_boot_ms INTEGER NOT NULL,
  since_wall_ms INTEGER NOT NULL,
  established_boot_ms INTEGER NOT NULL,
  certified_ms INTEGER NOT NULL,
  opened_run INTEGER NOT NULL,
  last_run INTEGER NOT NULL,
  closed_run INTEGER,
  closed_how TEXT,
  closed_wall_ms INTEGER,
  CHECK (established_boot_ms >= since_boot_ms
    AND closed_how IN ('alive', 'lost', 'exempt', 'ended')
    AND (closed_how ISNULL) = (closed_wall_ms ISNULL))
) STRICT;
CREATE UNIQUE INDEX finding_open ON finding (job_run) WHERE closed_how ISNULL;

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
  CHECK (verdict IN ('alert', 'drain', 'cancel', 'release')
    AND outcome IN ('begun', 'done', 'failed', 'unknown', 'lifted')
    AND length(reason) > 0 AND NOT reason GLOB '*[^ -~]*')
) STRICT;
CREATE INDEX action_of_run ON action (job_run);

CREATE TABLE withheld (
  job_run INTEGER,
  verdict TEXT,
  because TEXT,
  first_run INTEGER NOT NULL,
  first_wall_ms INTEGER NOT NULL,
  last_run INTEGER NOT NULL,
  last_wall_ms INTEGER NOT NULL,
  count INTEGER NOT NULL,
  PRIMARY KEY (job_run, verdict, because)
) STRICT, WITHOUT ROWID;

CREATE TABLE outbox (
  id INTEGER PRIMARY KEY,
  subject TEXT NOT NULL UNIQUE,
  body TEXT NOT NULL,
  queued_wall_ms INTEGER NOT NULL,
  boot INTEGER NOT NULL,
  next_boot_ms INTEGER NOT NULL,
  tries INTEGER NOT NULL,
  sent_wall_ms INTEGER
) STRICT;

CREATE TABLE fault (
  id INTEGER PRIMARY KEY,
  kind TEXT NOT NULL,
  subject TEXT NOT NULL,
  detail TEXT NOT NULL,
  opened_run INTEGER NOT NULL,
  opened_wall_ms INTEGER NOT NULL,
  last_run INTEGER NOT NULL,
  closed_wall_ms INTEGER
) STRICT;

CREATE TABLE case_file (
  id INTEGER PRIMARY KEY,
  job_id INTEGER NOT NULL,
  restart INTEGER NOT NULL,
  display_id TEXT NOT NULL,
  created_wall_ms INTEGER NOT NULL,
  body TEXT NOT NULL
) STRICT;

CREATE TABLE question (
  subject TEXT PRIMARY KEY,
  boot INTEGER NOT NULL,
  asked_boot_ms INTEGER NOT NULL,
  failures INTEGER NOT NULL,
  next_boot_ms INTEGER NOT NULL,
  answer TEXT
) STRICT, WITHOUT ROWID;
"
);

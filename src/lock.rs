//! One health-check run at a time per node name, and a mark that outlives a kill: the lock file holds the phase
//! in progress, so that the next run knows what the last one died of. The lock is the kernel's and goes with
//! the process; a file left behind blocks nobody.

use crate::model::Now;
use crate::units::{BootMs, WallMs};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a run that ended early was doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Killed {
    /// The boot it ran on.
    pub boot_id: String,
    /// When it began.
    pub boot: BootMs,
    /// The same on the wall clock.
    pub wall: WallMs,
    /// Its last phase.
    pub phase: String,
}

/// How the run before ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Before {
    /// By itself, with nothing that a later run has to look after.
    Ended,
    /// By itself, with something amiss; or nobody knows of one.
    EndedAmiss,
    /// Early.
    Killed(Killed),
}

/// The held lock.
#[derive(Debug)]
pub struct RunLock {
    file: File,
    head: String,
    written: usize,
    previous: Option<BootMs>,
}

/// What a look from outside sees of the last run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Last {
    /// It goes on.
    Running,
    /// It is over.
    Over(Before),
}

/// The last run, without waiting for it or counting as one; `None`: there is no lock file, or no mark in it.
pub fn last(dir: &Path) -> io::Result<Option<Last>> {
    let mut options = OpenOptions::new();
    let file = match options.read(true).custom_flags(libc::O_NOFOLLOW).open(dir.join("run.lock")) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    // A run that begins in this moment tries again 20 ms later.
    match file.try_lock_shared() {
        Ok(()) => Ok(read_mark(&file).map(|(before, _)| Last::Over(before))),
        Err(TryLockError::WouldBlock) => Ok(Some(Last::Running)),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

/// How an attempt ended.
#[derive(Debug)]
pub enum Taken {
    /// Ours; with how the run before ended.
    Ours(RunLock, Before),
    /// Another run holds it: this one was counted and has nothing to do.
    Busy,
}

const DONE: &str = "done";
/// The run ended by itself, and left something amiss.
const DONE_AMISS: &str = "done-amiss";
const POLL: Duration = Duration::from_millis(20);

/// Makes the node's folder, closed to others: it holds jobs' names and the lock.
pub fn prepare_folder(dir: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().recursive(true).mode(0o750).create(dir) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        made => made,
    }
}

/// Takes `run.lock` in `dir`, waiting at most `wait` for a run in progress. A run that gives up leaves one line
/// in `overlap`, which the next one counts.
pub fn take(dir: &Path, wait: Duration, now: &Now) -> io::Result<Taken> {
    let path = dir.join("run.lock");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o640).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(&path)?;
    let until = Instant::now() + wait;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(POLL),
            Err(TryLockError::WouldBlock) => {
                count_overlap(dir, now);
                return Ok(Taken::Busy);
            }
            Err(TryLockError::Error(e)) => return Err(e),
        }
    }
    let (before, began) = read_mark(&file).unwrap_or((Before::EndedAmiss, None));
    let previous = began.filter(|(boot_id, _)| *boot_id == now.boot_id).map(|(_, at)| at);
    let head = format!("{} {} {}", now.boot_id, now.boot.0, now.wall.0);
    let mut lock = RunLock { file, head, written: 0, previous };
    lock.phase("start");
    Ok(Taken::Ours(lock, before))
}

fn overlap_path(dir: &Path) -> PathBuf {
    dir.join("overlap")
}

/// Leaves the line of a run that another one made needless. A full disk costs the count, no more: the other run does
/// the work.
pub fn count_overlap(dir: &Path, now: &Now) {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o640).custom_flags(libc::O_NOFOLLOW);
    let line = format!("{}\n", now.boot.0);
    let _ = options.open(overlap_path(dir)).and_then(|mut file| file.write_all(line.as_bytes()));
}

/// How many runs found the lock held since this was last asked. Held under the lock only.
pub fn take_overlaps(dir: &Path) -> u32 {
    // Renamed first, so that a run that gives up meanwhile is counted next time instead of lost.
    let taken = dir.join("overlap.counted");
    if std::fs::rename(overlap_path(dir), &taken).is_err() {
        return 0;
    }
    let lines = std::fs::read(&taken).map_or(0, |text| text.iter().filter(|b| **b == b'\n').count());
    let _ = std::fs::remove_file(&taken);
    u32::try_from(lines).unwrap_or(u32::MAX)
}

/// How the run before ended, and when it began, on which boot.
fn read_mark(file: &File) -> Option<(Before, Option<(String, BootMs)>)> {
    let mut text = [0u8; 256];
    let n = file.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(&text[..n]).ok()?;
    let mut words = text.lines().next()?.split(' ');
    let (boot_id, boot, wall, phase) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let at = boot.parse().ok().map(BootMs);
    let before = match phase {
        DONE => Before::Ended,
        DONE_AMISS => Before::EndedAmiss,
        _ => Before::Killed(Killed {
            boot_id: boot_id.to_owned(),
            boot: at?,
            wall: WallMs(wall.parse().ok()?),
            phase: phase.to_owned(),
        }),
    };
    Some((before, at.map(|at| (boot_id.to_owned(), at))))
}

impl RunLock {
    /// When the run before this one began, if that was on this boot.
    pub fn previous(&self) -> Option<BootMs> {
        self.previous
    }

    /// Marks the phase in progress. A disk that refuses the mark costs the mark, never the run.
    pub fn phase(&mut self, phase: &str) {
        let mut line = format!("{} {phase}\n", self.head);
        let length = line.len();
        // Blanks over the rest of a longer mark: one write, never a torn line.
        line.extend(std::iter::repeat_n(' ', self.written.saturating_sub(length)));
        self.written = length;
        let _ = self.file.write_all_at(line.as_bytes(), 0);
    }

    /// The run ended by itself; `amiss`: without a reading of the GPUs, or while one is missing.
    pub fn finish(mut self, amiss: bool) {
        self.phase(if amiss { DONE_AMISS } else { DONE });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(boot_ms: i64) -> Now {
        Now { boot_id: "b".to_owned(), boot: BootMs(boot_ms), wall: WallMs(1_000_000 + boot_ms) }
    }

    fn ours(taken: Taken) -> (RunLock, Option<Killed>) {
        match taken {
            Taken::Ours(lock, Before::Killed(killed)) => (lock, Some(killed)),
            Taken::Ours(lock, _) => (lock, None),
            Taken::Busy => panic!("busy"),
        }
    }

    #[test]
    fn a_killed_run_is_seen_with_its_phase_and_a_finished_one_is_not() {
        // mej/nhc#161 (RT-01): killed at the time limit with no clue what it was doing.
        let dir = tempfile::tempdir().unwrap();
        let (mut lock, before) = ours(take(dir.path(), Duration::ZERO, &now(5)).unwrap());
        assert_eq!(before, None);
        lock.phase("observe-and-much-longer");
        lock.phase("act");
        drop(lock);
        // celerity/slurmactiond#4 (RT-04): the file is still there, the lock is not.
        let (lock, before) = ours(take(dir.path(), Duration::ZERO, &now(9)).unwrap());
        let before = before.unwrap();
        assert_eq!((before.phase.as_str(), before.boot), ("act", BootMs(5)));
        lock.finish(false);
        let (_lock, before) = ours(take(dir.path(), Duration::ZERO, &now(12)).unwrap());
        assert_eq!(before, None);
    }

    #[test]
    fn a_look_from_outside_tells_a_run_that_goes_on_from_one_that_was_killed() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(last(dir.path()).unwrap(), None);
        let (mut lock, _) = ours(take(dir.path(), Duration::ZERO, &now(5)).unwrap());
        lock.phase("observe");
        assert_eq!(last(dir.path()).unwrap(), Some(Last::Running));
        drop(lock);
        let Some(Last::Over(Before::Killed(killed))) = last(dir.path()).unwrap() else {
            panic!("not killed")
        };
        assert_eq!(killed.phase, "observe");
        let (lock, _) = ours(take(dir.path(), Duration::ZERO, &now(9)).unwrap());
        lock.finish(true);
        assert_eq!(last(dir.path()).unwrap(), Some(Last::Over(Before::EndedAmiss)));
        assert_eq!(take_overlaps(dir.path()), 0);
    }

    #[test]
    fn runs_that_find_the_lock_held_are_counted_once() {
        // vamseeachanta/workspace-hub#3463 (RT-02): overlapping runs pile up.
        let dir = tempfile::tempdir().unwrap();
        let held = take(dir.path(), Duration::ZERO, &now(1)).unwrap();
        for at in 2..5 {
            assert!(matches!(take(dir.path(), Duration::ZERO, &now(at)).unwrap(), Taken::Busy));
        }
        assert_eq!(take_overlaps(dir.path()), 3);
        assert_eq!(take_overlaps(dir.path()), 0);
        drop(held);
    }

    #[test]
    fn a_torn_or_foreign_mark_is_no_killed_run() {
        let dir = tempfile::tempdir().unwrap();
        let texts: [&[u8]; 5] = [b"", b"x", b"a b c d", b"b 1 2\n", b"\xff 1 2 act"];
        for text in texts {
            std::fs::write(dir.path().join("run.lock"), text).unwrap();
            let (_lock, before) = ours(take(dir.path(), Duration::ZERO, &now(1)).unwrap());
            assert_eq!(before, None, "{text:?}");
        }
    }
}

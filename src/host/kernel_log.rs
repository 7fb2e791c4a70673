//! What the NVIDIA driver wrote to the kernel's log about GPUs: Xids, and cards that fell off the bus. Reads the log
//! record by record and consumes nothing; records are numbered, so that each is heard once and a gap is known as one.
//! Knows of no job, and does not say which numbers mean a broken card. Names of processes in it are users' text.

use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use crate::units::{BootMs, PciAddress};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

/// The kernel's log, one record at each read (Documentation/ABI/testing/dev-kmsg).
const LOG: &str = "/dev/kmsg";
/// No record is longer (CONSOLE_EXT_LOG_MAX).
const RECORD_BYTES: usize = 8 << 10;
/// How every line of the driver's begins.
const MARK: &str = "NVRM: ";
/// A process's name in the kernel is at most so long (TASK_COMM_LEN without its end).
const NAME_BYTES: usize = 15;
/// The number of "GPU has fallen off the bus", which some drivers leave out.
const OFF_THE_BUS: u32 = 79;
/// The words for it come within so long of the number; later ones are another fall.
const AGAIN_MS: i64 = 10_000;
/// Some kernels keep the lines of one message as records of their own: so many may follow the first.
const LINES_MORE: u64 = 2;

/// One word of the driver's about one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xid {
    /// The number of its record, which rises through a boot.
    pub seq: u64,
    /// When. The kernel's log has a clock of its own, that counts from boot and that nobody disciplines: after weeks
    /// it may be a minute off.
    pub at: BootMs,
    /// Whether the kernel itself wrote it. What a process writes into the log (root may) never looks like that.
    pub by_kernel: bool,
    /// Which GPU.
    pub gpu: PciAddress,
    /// The GPU instance, under MIG.
    pub instance: Option<u32>,
    /// Its number; `None` where the driver only says that the card fell off the bus.
    pub number: Option<u32>,
    /// The process that the driver names.
    pub pid: Option<u32>,
    /// That process's name, as it chose it: to be escaped.
    pub name: Option<String>,
}

/// What one reading brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Everything of that kind from the cursor on, oldest first.
    pub xids: Vec<Xid>,
    /// What the log still holds from before it: its job may not have been registered when it was heard first.
    pub older: Vec<Xid>,
    /// Where the next reading goes on: after the last record of this one. Good for this boot alone.
    pub next: u64,
    /// So many records after the cursor were overwritten before they could be read: what they said is not known.
    pub lost: u64,
    /// The log was read to its end: what comes later is written later.
    pub to_end: bool,
}

/// How much of a log is read in one go; the rest is the next reading's.
#[derive(Clone, Copy, Debug)]
struct Bound {
    /// Records after the cursor.
    new: u64,
    /// Time for those.
    time: Duration,
    /// Records in all: a log in which the cursor is looked for may be long, and a kernel in a loop never ends.
    all: u64,
}

const BOUND: Bound = Bound { new: 100_000, time: Duration::from_millis(100), all: 2_000_000 };

/// What the log holds from `cursor` on, which is the `next` of an earlier reading in the same boot; `None`: all that
/// is there. A cursor that the log has not come to yet is none. Absent where the log may not be read.
pub fn since(cursor: Option<u64>) -> Reading<Heard> {
    match File::options().read(true).custom_flags(libc::O_NONBLOCK).open(LOG) {
        Ok(mut log) => hear(cursor, BOUND, |record| log.read(record)),
        Err(e) => Absent(unreadable(&e)),
    }
}

/// A record of a log that is imagined.
#[derive(Clone, Copy, Debug)]
pub struct Record<'t> {
    /// Its number.
    pub seq: u64,
    /// When.
    pub at: BootMs,
    /// Whether it is the kernel's own.
    pub by_kernel: bool,
    /// Its text, as it was written.
    pub text: &'t str,
}

/// [`since`] for a log that is imagined, of these records.
pub fn imagined<'t>(records: impl IntoIterator<Item = Record<'t>>, cursor: Option<u64>) -> Heard {
    let mut ear = Ear::new(cursor);
    for record in records {
        ear.passes(record.seq);
        if record.text.starts_with(MARK) {
            ear.driver_says(record.seq, record.at, record.by_kernel, record.text);
        }
    }
    ear.end()
}

fn unreadable(error: &io::Error) -> Absence {
    match error.kind() {
        ErrorKind::PermissionDenied => Absence::NoPermission,
        _ => Absence::SourceFailed,
    }
}

fn hear(
    cursor: Option<u64>,
    bound: Bound,
    mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
) -> Reading<Heard> {
    let mut ear = Ear::new(cursor);
    let (mut buffer, mut new, mut began) = ([0; RECORD_BYTES], 0, None);
    for _ in 0..bound.all {
        match read(&mut buffer) {
            Ok(0) => return Measured(ear.end()),
            Ok(length) => ear.record(&buffer[..length]),
            Err(e) => match e.kind() {
                ErrorKind::WouldBlock => return Measured(ear.end()),
                // A signal; records that were overwritten meanwhile, which shows by the next one's number; one that is
                // longer than any should be, which the kernel passes over.
                ErrorKind::Interrupted | ErrorKind::BrokenPipe | ErrorKind::InvalidInput => {}
                _ => return Absent(unreadable(&e)),
            },
        }
        if ear.next >= ear.cursor {
            new += 1;
            let began: &mut Instant = began.get_or_insert_with(Instant::now);
            // The clock is not looked at for each record.
            if new >= bound.new || (new % 64 == 0 && began.elapsed() >= bound.time) {
                break;
            }
        }
    }
    Measured(ear.stop())
}

/// A log as it is heard.
struct Ear {
    cursor: Option<u64>,
    /// After the last record.
    next: Option<u64>,
    lost: u64,
    told: Vec<Xid>,
    /// A message of the driver's whose end may stand in a record of its own.
    begun: Option<Xid>,
    /// Cards that fell off the bus by number: when, and whether the kernel said it.
    off: BTreeMap<PciAddress, (BootMs, bool)>,
}

fn find(text: &[u8], what: &[u8]) -> bool {
    text.windows(what.len()).any(|part| part == what)
}

impl Ear {
    fn new(cursor: Option<u64>) -> Ear {
        Ear { cursor, next: None, lost: 0, told: Vec::new(), begun: None, off: BTreeMap::new() }
    }

    /// One record: `level,number,microseconds,flags;text`, then lines that begin with a space and are about the
    /// device. Most are not the driver's, and little is done for them.
    fn record(&mut self, record: &[u8]) {
        let line = record.split(|b| *b == b'\n').next().unwrap_or_default();
        let Some(end) = line.iter().position(|b| *b == b';') else { return };
        let (head, text) = (&line[..end], &line[end + 1..]);
        let mut parts = head.split(|b| *b == b',');
        let mut next = || number::<u64>(std::str::from_utf8(parts.next()?).ok()?);
        let (Some(level), Some(seq), Some(micros)) = (next(), next(), next()) else { return };
        self.passes(seq);
        // A log rule of netfilter begins its records with a text that a user may choose.
        let of_netfilter = || find(text, b" IN=") && find(text, b" OUT=");
        if text.starts_with(MARK.as_bytes()) && !of_netfilter() {
            let at = BootMs(i64::try_from(micros / 1000).unwrap_or(i64::MAX));
            // syslog(3): the level is the lowest three bits, and what is above them is 0 for the kernel alone.
            self.driver_says(seq, at, level >> 3 == 0, &unescaped(text));
        }
    }

    fn passes(&mut self, seq: u64) {
        let due = self.next.max(self.cursor).unwrap_or(seq);
        self.lost += seq.saturating_sub(due);
        self.next = Some(seq.saturating_add(1));
    }

    fn driver_says(&mut self, seq: u64, at: BootMs, by_kernel: bool, text: &str) {
        let xid = |gpu| Xid { seq, at, by_kernel, gpu, instance: None, number: None, pid: None, name: None };
        match said(text) {
            Said::Xid(words) => self.tell(numbered(words, xid)),
            Said::OffTheBus(gpu) => self.tell(Some(xid(gpu))),
            Said::Begins(gpu) => self.begun = Some(xid(gpu)),
            Said::Ends => {
                let begun = self.begun.take().filter(|begun| seq.saturating_sub(begun.seq) <= LINES_MORE);
                // The end's number: a cursor between the two has not heard of it.
                let ended = |begun: Xid| Xid { seq, by_kernel: by_kernel && begun.by_kernel, ..begun };
                self.tell(begun.map(ended));
            }
            Said::Else => {}
        }
    }

    /// Adds it, unless it says once more in words what the number before it said (osinit.c, osHandleGpuLost).
    fn tell(&mut self, xid: Option<Xid>) {
        let Some(xid) = xid else { return };
        let again = |said: &(BootMs, bool)| xid.at.since_ms(said.0) <= AGAIN_MS && (said.1 || !xid.by_kernel);
        match xid.number {
            Some(OFF_THE_BUS) => drop(self.off.insert(xid.gpu.clone(), (xid.at, xid.by_kernel))),
            None if self.off.get(&xid.gpu).is_some_and(again) => return,
            _ => {}
        }
        self.told.push(xid);
    }

    /// The log was read to its end.
    fn end(mut self) -> Heard {
        if self.next < self.cursor && self.next.is_some() {
            // Of another boot, or of no log at all.
            self.cursor = None;
        }
        Heard { to_end: true, ..self.stop() }
    }

    /// No more is read, now.
    fn stop(self) -> Heard {
        let next = self.next.max(self.cursor).unwrap_or(0);
        let is_new = |x: &Xid| self.cursor.is_none_or(|cursor| x.seq >= cursor);
        let (xids, older) = self.told.into_iter().partition(is_new);
        Heard { xids, older, next, lost: self.lost, to_end: false }
    }
}

/// Digits and nothing else.
fn number<N: std::str::FromStr>(text: &str) -> Option<N> {
    text.parse().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()))
}

/// A record's text as it was written: the kernel puts `\xNN` in place of what is no printable ASCII, and in place of a
/// backslash. So a line break in it begins no record, whoever chose it.
fn unescaped(text: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let escaped = rest.strip_prefix(b"\\x").and_then(|hex| hex.split_at_checked(2));
        let byte = escaped.and_then(|(hex, after)| {
            let digits = std::str::from_utf8(hex).ok().filter(|_| hex.iter().all(u8::is_ascii_hexdigit))?;
            Some((u8::from_str_radix(digits, 16).ok()?, after))
        });
        let (byte, after) = byte.unwrap_or((*first, after));
        bytes.push(byte);
        rest = after;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What one record of the driver's says.
enum Said<'a> {
    /// An Xid: what stands after the opening bracket.
    Xid(&'a str),
    /// A card that fell off the bus.
    OffTheBus(PciAddress),
    /// Something about a card, whose rest may follow.
    Begins(PciAddress),
    /// The rest: that it fell off the bus.
    Ends,
    /// Anything else.
    Else,
}

fn said(text: &str) -> Said<'_> {
    let is_end = |line: &str| {
        ["NVRM: fallen off the bus", "NVRM: system has fallen off the bus"]
            .iter()
            .any(|end| line.starts_with(end))
    };
    let mut lines = text.split('\n');
    let line = lines.next().unwrap_or_default();
    let words = line.strip_prefix(MARK).unwrap_or_default();
    if let Some(rest) = text.strip_prefix("NVRM: Xid (") {
        return Said::Xid(rest);
    }
    if let Some(rest) = words.strip_prefix("GPU ") {
        let address = rest.strip_suffix(": GPU has fallen off the bus.");
        return address.and_then(|a| PciAddress::parse(a).ok()).map_or(Said::Else, Said::OffTheBus);
    }
    if let Some(rest) = words.strip_prefix("The NVIDIA GPU ") {
        let address = rest.split(' ').next().and_then(|a| PciAddress::parse(a).ok());
        return match address {
            Some(gpu) if lines.any(is_end) => Said::OffTheBus(gpu),
            Some(gpu) => Said::Begins(gpu),
            None => Said::Else,
        };
    }
    if is_end(line) { Said::Ends } else { Said::Else }
}

/// `PCI:0000:9b:00): 31, pid=1234, name=python, ...`, also `PCI:0000:9b:00 GPU-I:05 GPU-CI:00): 94, pid=...`, and
/// without process or `PCI:` as older drivers have it. What a user chose stands last: it shifts no field.
fn numbered(rest: &str, xid: impl Fn(PciAddress) -> Xid) -> Option<Xid> {
    let (place, rest) = rest.split_once("): ")?;
    let mut parts = place.strip_prefix("PCI:").unwrap_or(place).split(' ');
    let gpu = PciAddress::parse(parts.next()?).ok()?;
    let instance = match parts.next() {
        Some(part) => Some(number(part.strip_prefix("GPU-I:")?)?),
        None => None,
    };
    let (code, rest) = rest.split_once(',').unwrap_or((rest, ""));
    let said = Xid { instance, number: Some(number(code)?), ..xid(gpu) };
    let Some((pid, rest)) = rest.strip_prefix(" pid=").map(|r| r.split_once(',').unwrap_or((r, ""))) else {
        return Some(said);
    };
    let name = rest.strip_prefix(" name=").map(|r| r.split_once(", ").map_or(r, |(name, _)| name));
    let name = name.filter(|name| !name.is_empty() && *name != "<unknown>");
    Some(Xid { pid: number(pid).filter(|pid| *pid > 0), name: name.map(cut), ..said })
}

fn cut(name: &str) -> String {
    let end = (0..=NAME_BYTES.min(name.len())).rev().find(|end| name.is_char_boundary(*end));
    name[..end.unwrap_or(0)].to_owned()
}

#[cfg(test)]
mod tests;

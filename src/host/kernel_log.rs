//! What the NVIDIA driver wrote to the kernel's log about GPUs: Xids, and cards that fell off the bus. Reads the log's
//! newest part and consumes nothing; knows of no job, and does not say which numbers mean a broken card. Names of
//! processes in it are users' text.

use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use crate::units::{BootMs, PciAddress};
use std::io;

/// SYSLOG_ACTION_READ_ALL (syslog(2)): the newest records that fit, each line with its time.
const READ_ALL: libc::c_int = 3;
/// So much of the log is read: two thousand lines. The kernel weighs all its records whatever is asked for.
const TAIL_BYTES: usize = 256 << 10;
/// How every line of the driver's begins.
const MARK: &[u8] = b"NVRM: ";
/// A process's name in the kernel is at most so long (TASK_COMM_LEN without its end).
const NAME_BYTES: usize = 15;
/// The number of "GPU has fallen off the bus", which some drivers leave out.
const OFF_THE_BUS: u32 = 79;

/// One word of the driver's about one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xid {
    /// When. The kernel's log has a clock of its own, that counts from boot and that nobody disciplines: after weeks
    /// it may be a minute off.
    pub at: BootMs,
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

/// Everything of that kind in the log's newest part, oldest first. Absent where the log may not be read; a log without
/// times (`printk.time=0`) holds none.
pub fn xids() -> Reading<Vec<Xid>> {
    let mut text: Vec<u8> = Vec::with_capacity(TAIL_BYTES);
    // SAFETY: the buffer has room for what is asked for, and as much of it is taken as was written.
    let read = unsafe {
        let read = libc::klogctl(READ_ALL, text.as_mut_ptr().cast(), TAIL_BYTES as libc::c_int);
        text.set_len(usize::try_from(read).unwrap_or(0).min(TAIL_BYTES));
        read
    };
    match read {
        0.. => Measured(in_text(&text)),
        _ if io::Error::last_os_error().kind() == io::ErrorKind::PermissionDenied => {
            Absent(Absence::NoPermission)
        }
        _ => Absent(Absence::SourceFailed),
    }
}

fn in_text(text: &[u8]) -> Vec<Xid> {
    let mut found: Vec<Xid> = Vec::new();
    let mut from = 0;
    while let Some(at) = find(&text[from..], MARK) {
        let start = from + at;
        from = start + MARK.len();
        let line_start = text[..start].iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
        if let Some(at) = stamp(&text[line_start..start]) {
            found.extend(xid(at, &text[start..]));
        }
    }
    // The card that fell off the bus is told by number and in words.
    let numbered: Vec<PciAddress> =
        found.iter().filter(|x| x.number == Some(OFF_THE_BUS)).map(|x| x.gpu.clone()).collect();
    found.retain(|x| x.number.is_some() || !numbered.contains(&x.gpu));
    found
}

/// The C library's search: of a quarter of a megabyte, a thousandth is the driver's.
fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    // SAFETY: both pointers are to live bytes of the lengths given.
    let hit = unsafe { libc::memmem(text.as_ptr().cast(), text.len(), what.as_ptr().cast(), what.len()) };
    (!hit.is_null()).then(|| hit as usize - text.as_ptr() as usize)
}

/// The time of a line: `<4>[ 1843.308145] ` or, with CONFIG_PRINTK_CALLER, `<4>[ 1843.308145][  T123] `, and nothing
/// else before the driver's words: a text that only quotes them is none of the driver's.
fn stamp(prefix: &[u8]) -> Option<BootMs> {
    let text = std::str::from_utf8(prefix).ok()?.strip_prefix('<')?;
    let (_, text) = text.split_once('>').filter(|(level, _)| number(level).is_some())?;
    let (time, rest) = text.strip_prefix('[')?.split_once(']')?;
    let caller = |rest: &str| rest.starts_with('[') && rest.ends_with("] ") && rest.matches('[').count() == 1;
    let (seconds, micros) = time.trim_start().split_once('.')?;
    let (seconds, micros) = (number(seconds)?, number(micros).filter(|_| micros.len() == 6)?);
    (rest == " " || caller(rest)).then(|| BootMs(i64::from(seconds) * 1000 + i64::from(micros) / 1000))
}

/// Digits and nothing else.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()))
}

/// Reads the driver's words at the beginning of `text`, which goes on to the end of the log.
fn xid(at: BootMs, text: &[u8]) -> Option<Xid> {
    let mut lines = text.split(|b| *b == b'\n');
    let line = String::from_utf8_lossy(lines.next()?);
    let words = line.strip_prefix("NVRM: ")?;
    let plain = |gpu| Xid { at, gpu, instance: None, number: None, pid: None, name: None };
    if let Some(rest) = words.strip_prefix("Xid (") {
        return numbered(rest).map(|said| Xid { at, ..said });
    }
    if let Some(rest) = words.strip_prefix("GPU ") {
        let address = rest.strip_suffix(": GPU has fallen off the bus.")?;
        return PciAddress::parse(address).ok().map(plain);
    }
    let address = words.strip_prefix("The NVIDIA GPU ")?.split(' ').next()?;
    let gone = |line: &[u8]| {
        let start = find(line, b"NVRM: fallen off the bus");
        start.is_some_and(|start| stamp(&line[..start]).is_some())
    };
    lines.take(2).any(gone).then(|| PciAddress::parse(address).ok().map(plain))?
}

/// `PCI:0000:9b:00): 31, pid=1234, name=python, ...`, also `PCI:0000:9b:00 GPU-I:05 GPU-CI:00): 94, pid=...`, and
/// without process or `PCI:` as older drivers have it. What a user chose stands last: it shifts no field.
fn numbered(rest: &str) -> Option<Xid> {
    let (place, rest) = rest.split_once("): ")?;
    let mut parts = place.strip_prefix("PCI:").unwrap_or(place).split(' ');
    let gpu = PciAddress::parse(parts.next()?).ok()?;
    let instance = match parts.next() {
        Some(part) => Some(number(part.strip_prefix("GPU-I:")?)?),
        None => None,
    };
    let (code, rest) = rest.split_once(',').unwrap_or((rest, ""));
    let said = Xid { at: BootMs(0), gpu, instance, number: Some(number(code)?), pid: None, name: None };
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
mod tests {
    use super::*;

    /// What is read of one line, in short: address, instance, number, pid, name.
    fn read(line: &str) -> Vec<String> {
        let text = format!("<6>[    0.000000] Linux\n{line}\n<6>[ 9999.000000] later\n");
        let or = |n: Option<u32>| n.map_or("-".to_owned(), |n| n.to_string());
        let short = |x: &Xid| {
            let name = x.name.as_deref().unwrap_or("-");
            format!("{} {} {} {} {} {name}", x.at.0, x.gpu, or(x.instance), or(x.number), or(x.pid))
        };
        in_text(text.as_bytes()).iter().map(short).collect()
    }

    #[test]
    fn every_form_of_an_xid_is_read_field_by_field() {
        // kubernetes-sigs/dra-driver-nvidia-gpu#689, NVIDIA/k8s-device-plugin#268 (FT-04): 13, 31 and 43 are users'.
        let table = [
            (
                "PCI:0000:9b:00): 31, pid=1234, name=python, Ch 00000008, intr 10000000.",
                "0000:9b:00.0 - 31 1234 python",
            ),
            ("PCI:0000:9b:00): 43, pid=1234, name=a b, Ch 1", "0000:9b:00.0 - 43 1234 a b"),
            (
                "PCI:0000:81:00): 13, pid='<unknown>', name=<unknown>, Graphics Exception",
                "0000:81:00.0 - 13 - -",
            ),
            ("PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE", "0000:01:00.0 5 94 7194 -"),
            ("PCI:0000:01:00 GPU-I:05 GPU-CI:00): 13, pid=7, name=x", "0000:01:00.0 5 13 7 x"),
            ("PCI:0000:01:00): 79, GPU has fallen off the bus.", "0000:01:00.0 - 79 - -"),
            ("0000:03:00): 14, Channel 00000001", "0000:03:00.0 - 14 - -"),
            ("PCI:0001:03:00): 119, pid=9, name=y, Timeout", "0001:03:00.0 - 119 9 y"),
        ];
        for (text, want) in table {
            for prefix in ["<4>[ 1843.308145] ", "<12>[ 1843.308145][ T1234] "] {
                assert_eq!(
                    read(&format!("{prefix}NVRM: Xid ({text}")),
                    [format!("1843308 {want}")],
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn a_card_off_the_bus_is_told_without_a_number_once() {
        // NVIDIA/NVSentinel#155 (FT-06)
        let short = "<3>[ 1843.308145] NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.";
        assert_eq!(read(short), ["1843308 0000:18:00.0 - - - -"]);
        let three = "<3>[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0\n<3>[ 1843.308145] NVRM: (PCI ID: 10de:26b5) \
                     installed in this system has\n<3>[ 1843.308145] NVRM: fallen off the bus and is not responding to \
                     commands.";
        assert_eq!(read(three), ["1843308 0000:b3:00.0 - - - -"]);
        let two = "<3>[ 1843.308145] NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:2d04) installed in this system \
                   has\n<3>[ 1843.308145] NVRM: fallen off the bus and is not responding to commands.";
        assert_eq!(read(two), ["1843308 0000:01:00.0 - - - -"]);
        let unsupported = "<3>[ 1843.308145] NVRM: The NVIDIA GPU 0000:01:00.0\n<3>[ 1843.308145] NVRM: installed in \
                           this system is not supported by open\n<3>[ 1843.308145] NVRM: nvidia.ko";
        assert_eq!(read(unsupported), [""; 0]);
        let both =
            format!("<3>[ 1843.308145] NVRM: Xid (PCI:0000:18:00): 79, pid=1, name=x, GPU has\n{short}");
        assert_eq!(read(&both), ["1843308 0000:18:00.0 - 79 1 x"]);
    }

    #[test]
    fn what_a_user_chose_shifts_no_field_and_makes_no_line() {
        let from = |name: &str| {
            read(&format!("<4>[ 1843.308145] NVRM: Xid (PCI:0000:9b:00): 31, pid=12, name={name}, Ch 1"))
        };
        assert_eq!(from("a, pid=99"), ["1843308 0000:9b:00.0 - 31 12 a"]);
        assert_eq!(from("): 79, pid=9"), ["1843308 0000:9b:00.0 - 31 12 ): 79"]);
        assert_eq!(from("sixteen-bytes-and-more"), ["1843308 0000:9b:00.0 - 31 12 sixteen-bytes-a"]);
        assert_eq!(from("NVRM: Xid (PCI"), ["1843308 0000:9b:00.0 - 31 12 NVRM: Xid (PCI"]);
        // The most that a name can hold, as a line of its own.
        let forged = "<4>[ 1843.308145] NVRM: Xid (PCI:0000:9b:00): 31, pid=12, name=x\n<4>[ 1843.308145] NVRM: Xid (PCI, Ch 1";
        assert_eq!(read(forged), ["1843308 0000:9b:00.0 - 31 12 x"]);
    }

    #[test]
    fn a_line_that_is_not_wholly_understood_is_none() {
        let said = "NVRM: Xid (PCI:0000:9b:00): 31, pid=1, name=x";
        let prefixes = [
            "",
            "<4>",
            "[ 1843.308145] ",
            "<4>[ 1843] ",
            "<4>[ 1843.308145]",
            "<4>[ 1843.308145] app: ",
            "<4>[ 1843.308145][x][y] ",
            "<x>[ 1843.308145] ",
            "<4>[99999999999.308145] ",
        ];
        for prefix in prefixes {
            assert_eq!(read(&format!("{prefix}{said}")), [""; 0], "{prefix:?}");
        }
        for odd in [
            "(PCI:0000:9b:00): , x",
            "(PCI:zz:9b:00): 3",
            "(PCI:0000:9b:00 X:1): 3",
            "(PCI:0000:9b:00) 3",
            ": 3",
        ] {
            assert_eq!(read(&format!("<4>[ 1843.308145] NVRM: Xid {odd}")), [""; 0], "{odd:?}");
        }
        let whole = format!("<4>[ 1843.308145] {said}");
        for end in 0..whole.find("): 31").unwrap() + 4 {
            assert_eq!(in_text(&whole.as_bytes()[..end]), [], "{end}");
        }
        assert_eq!(in_text(b"<4>[ 1.000000] NVRM: \xff\xfe\n"), []);
    }

    #[test]
    fn this_machines_log_is_read_or_refused() {
        match xids() {
            Measured(found) => assert!(found.iter().all(|x| x.at.0 >= 0)),
            Absent(why) => assert_eq!(why, Absence::NoPermission),
        }
    }
}

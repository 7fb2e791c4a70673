//! The log in its records, as the kernel writes them, and this machine's own.

use super::*;
use std::io::Write;

/// A log of these records, as they are read; then it is at its end.
fn log<'a>(records: &'a [String]) -> impl FnMut(&mut [u8]) -> io::Result<usize> + 'a {
    let mut left = records.iter();
    move |buffer| {
        let record = left.next().ok_or(ErrorKind::WouldBlock)?;
        buffer[..record.len()].copy_from_slice(record.as_bytes());
        Ok(record.len())
    }
}

fn heard(cursor: Option<u64>, records: &[String]) -> Heard {
    hear(cursor, BOUND, log(records)).measured().unwrap().clone()
}

/// Records of the kernel's from number 100 on, all of one moment.
fn records(texts: &[&str]) -> Vec<String> {
    let record = |(n, text)| format!("4,{},1843308145,-;{text}\n", 100 + n);
    texts.iter().enumerate().map(record).collect()
}

/// In short: number of the record, moment, address, instance, number, pid, name.
fn short(xid: &Xid) -> String {
    let or = |n: Option<u32>| n.map_or("-".to_owned(), |n| n.to_string());
    let name = xid.name.as_deref().unwrap_or("-");
    let numbers = [xid.instance, xid.number, xid.pid].map(or).join(" ");
    format!("{} {} {} {numbers} {name}", xid.seq, xid.at.0, xid.gpu)
}

/// What is read of these texts among others.
fn read(texts: &[&str]) -> Vec<String> {
    let all = [&["Linux"], texts, &["later"]].concat();
    heard(None, &records(&all)).xids.iter().map(short).collect()
}

const SAID: &str = "NVRM: Xid (PCI:0000:9b:00): 31, pid=1, name=x";

#[test]
fn every_form_of_an_xid_is_read_field_by_field() {
    // kubernetes-sigs/dra-driver-nvidia-gpu#689, NVIDIA/k8s-device-plugin#268 (FT-04): 13, 31 and 43 are users'.
    let table = [
        (
            "PCI:0000:9b:00): 31, pid=1234, name=python, Ch 00000008, intr 10000000.",
            "0000:9b:00.0 - 31 1234 python",
        ),
        ("PCI:0000:9b:00): 43, pid=1234, name=a b, Ch 1", "0000:9b:00.0 - 43 1234 a b"),
        ("PCI:0000:81:00): 13, pid='<unknown>', name=<unknown>, Graphics Exception", "0000:81:00.0 - 13 - -"),
        ("PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE", "0000:01:00.0 5 94 7194 -"),
        ("PCI:0000:01:00 GPU-I:05 GPU-CI:00): 13, pid=7, name=x", "0000:01:00.0 5 13 7 x"),
        ("PCI:0000:01:00): 79, GPU has fallen off the bus.", "0000:01:00.0 - 79 - -"),
        ("0000:03:00): 14, Channel 00000001", "0000:03:00.0 - 14 - -"),
        ("PCI:0001:03:00): 119, pid=9, name=y, Timeout", "0001:03:00.0 - 119 9 y"),
    ];
    for (text, want) in table {
        assert_eq!(read(&[&format!("NVRM: Xid ({text}")]), [format!("101 1843308 {want}")], "{text}");
    }
}

#[test]
fn a_card_off_the_bus_is_told_without_a_number_once() {
    // NVIDIA/NVSentinel#155 (FT-06)
    let short = "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.";
    assert_eq!(read(&[short]), ["101 1843308 0000:18:00.0 - - - -"]);
    let three = [
        "NVRM: The NVIDIA GPU 0000:b3:00.0",
        "NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    ];
    // The driver writes the three lines at once (osapi.c), and the kernel keeps them as one record.
    assert_eq!(read(&[&three.join("\\x0a")]), ["101 1843308 0000:b3:00.0 - - - -"]);
    assert_eq!(read(&three), ["103 1843308 0000:b3:00.0 - - - -"]);
    let two = [
        "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:2d04) installed in this",
        "NVRM: system has fallen off the bus and is not responding to commands.",
    ];
    assert_eq!(read(&two), ["102 1843308 0000:01:00.0 - - - -"]);
    assert_eq!(read(&[two[0], "a", "b", two[1]]), [""; 0], "another's end");
    let unsupported = [
        "NVRM: The NVIDIA GPU 0000:01:00.0",
        "NVRM: installed in this system is not supported by open",
        "NVRM: nvidia.ko",
    ];
    assert_eq!(read(&unsupported), [""; 0]);
    assert_eq!(read(&[&unsupported.join("\\x0a")]), [""; 0]);
    let both = ["NVRM: Xid (PCI:0000:18:00): 79, pid=1, name=x, GPU has", short];
    assert_eq!(read(&both), ["101 1843308 0000:18:00.0 - 79 1 x"]);
}

#[test]
fn a_later_fall_is_another_and_no_process_can_hide_the_kernels_word() {
    let number = "NVRM: Xid (PCI:0000:18:00): 79, pid=1, name=x";
    let words = "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.";
    let all = [
        format!("4,1,1000000,-;{number}\n"),
        format!("4,2,1000000,-;{words}\n"),
        format!("4,3,60000000,-;{words}\n"),
        format!("12,4,90000000,-;{number}\n"),
        format!("4,5,90000000,-;{words}\n"),
    ];
    let told: Vec<(u64, bool)> = heard(None, &all).xids.iter().map(|x| (x.seq, x.by_kernel)).collect();
    assert_eq!(told, [(1, true), (3, true), (4, false), (5, true)]);
}

#[test]
fn only_the_kernels_own_word_is_marked_so() {
    let line = ["NVRM: The NVIDIA GPU 0000:18:00.0", "NVRM: fallen off the bus and"];
    // syslog(3): the level is what remains of 8; a process cannot write with a facility of 0.
    for (level, by_kernel) in [("0", true), ("7", true), ("8", false), ("12", false), ("1028", false)] {
        let all = [format!("{level},7,9000,-,caller=T12;{SAID}\n")];
        let xid = heard(None, &all).xids.remove(0);
        assert_eq!((xid.by_kernel, xid.at), (by_kernel, BootMs(9)), "{level}");
        let ends = [format!("4,7,9000,-;{}\n", line[0]), format!("{level},8,9000,-;{}\n", line[1])];
        assert_eq!(heard(None, &ends).xids.remove(0).by_kernel, by_kernel, "{level}");
    }
}

#[test]
fn each_record_is_heard_once_and_a_gap_is_counted() {
    let all = records(&["Linux", SAID, SAID, "a", SAID, "b"]);
    let second = "NVRM: fallen off the bus and";
    let split = records(&["NVRM: The NVIDIA GPU 0000:18:00.0", second]);
    // The cursor, what is still there, the records told, where it goes on, and how many are lost.
    type Row<'a> = (&'a str, Option<u64>, &'a [String], &'a [u64], u64, u64);
    let table: [Row; 11] = [
        ("all of it", None, &all, &[101, 102, 104], 106, 0),
        ("none before", None, &all[3..], &[104], 106, 0),
        ("from there on", Some(102), &all, &[102, 104], 106, 0),
        ("nothing new", Some(106), &all, &[], 106, 0),
        ("just overwritten", Some(102), &all[3..], &[104], 106, 1),
        ("overwritten long since", Some(0), &all[3..], &[104], 106, 103),
        ("beyond the end: another boot's", Some(107), &all, &[101, 102, 104], 106, 0),
        ("the same after a gap", Some(5000), &all[2..], &[102, 104], 106, 0),
        ("an empty log", Some(9), &[], &[], 9, 0),
        ("no log, no cursor", None, &[], &[], 0, 0),
        ("between two lines of one message", Some(101), &split, &[101], 102, 0),
    ];
    for (name, cursor, records, told, next, lost) in table {
        let heard = heard(cursor, records);
        let seqs: Vec<u64> = heard.xids.iter().map(|x| x.seq).collect();
        assert_eq!((seqs.as_slice(), heard.next, heard.lost), (told, next, lost), "{name}");
    }
    let torn = [&all[..2], &all[4..]].concat();
    for (cursor, lost) in [(None, 2), (Some(0), 102), (Some(101), 2), (Some(103), 1), (Some(104), 0)] {
        assert_eq!(heard(cursor, &torn).lost, lost, "overwritten while it was read: {cursor:?}");
    }
}

#[test]
fn what_a_reading_answers_beside_records_is_no_end_of_it() {
    let all = records(&["Linux", SAID, "later"]);
    let table = [
        (libc::EPIPE, Ok(1)),
        (libc::EINTR, Ok(1)),
        (libc::EINVAL, Ok(1)),
        (libc::EAGAIN, Ok(0)),
        (libc::EPERM, Err(Absence::NoPermission)),
        (libc::EACCES, Err(Absence::NoPermission)),
        (libc::EIO, Err(Absence::SourceFailed)),
    ];
    for (code, want) in table {
        let (mut log, mut at) = (log(&all), 0);
        let reading = hear(None, BOUND, |buffer| {
            at += 1;
            if at == 2 { Err(io::Error::from_raw_os_error(code)) } else { log(buffer) }
        });
        let found = match reading {
            Measured(heard) => Ok(heard.xids.len()),
            Absent(why) => Err(why),
        };
        assert_eq!(found, want, "{code}");
    }
    let missing = unreadable(&io::Error::from_raw_os_error(libc::ENOENT));
    assert_eq!(missing, Absence::SourceFailed);
}

#[test]
fn a_reading_ends_in_time_and_the_next_one_goes_on() {
    let all = records(&vec![SAID; 1000]);
    let bound = |new, all| Bound { new, time: Duration::from_secs(60), all };
    let told = |cursor, bound| {
        let heard = hear(cursor, bound, log(&all)).measured().unwrap().clone();
        let at_end = heard.next == 1100;
        assert_eq!(heard.to_end, at_end && bound.all > 1000, "{bound:?}");
        (heard.xids.len(), heard.next, heard.lost)
    };
    assert_eq!(told(None, bound(400, 10_000)), (400, 500, 0));
    // Where the cursor lies is found whatever lies before it.
    assert_eq!(told(Some(800), bound(100, 10_000)), (99, 899, 0));
    assert_eq!(told(Some(900), bound(400, 10_000)), (200, 1100, 0));
    assert_eq!(told(None, Bound { time: Duration::ZERO, ..bound(10_000, 10_000) }), (64, 164, 0));
    // A log that is longer than it can be: what is beyond is neither told nor passed over.
    assert_eq!(told(Some(900), bound(400, 300)), (0, 900, 0));
    assert_eq!(told(None, bound(10_000, 300)), (300, 400, 0));
}

#[test]
fn what_a_user_chose_shifts_no_field_and_makes_no_record() {
    let from = |name: &str| read(&[&format!("NVRM: Xid (PCI:0000:9b:00): 31, pid=12, name={name}, Ch 1")]);
    let table = [
        ("a, pid=99", "a"),
        ("): 79, pid=9", "): 79"),
        ("sixteen-bytes-and-more", "sixteen-bytes-a"),
        ("NVRM: Xid (PCI", "NVRM: Xid (PCI"),
        // As the kernel writes a line break, a backslash, a letter, an escape, and half of one.
        (r"x\x0aNVRM: Xid (PC", "x\nNVRM: Xid (PC"),
        (r"x\x0a4,9,9,-;NVRM:", "x\n4,9,9,-;NVRM:"),
        (r"a\x5cx0ab", r"a\x0ab"),
        (r"\xc3\xa9t\xc3\xa9", "\u{e9}t\u{e9}"),
        (r"\x1b[2J", "\u{1b}[2J"),
        (r"a\x0", r"a\x0"),
        (r"\x+1\xzz", r"\x+1\xzz"),
        (r"\xff", "\u{fffd}"),
    ];
    for (written, name) in table {
        assert_eq!(from(written), [format!("101 1843308 0000:9b:00.0 - 31 12 {name}")], "{written}");
    }
    // What follows a line break is the record's, whatever it looks like.
    let forged = format!(r"NVRM: other\x0a{SAID}\x0aNVRM: GPU 0000:18:00.0: GPU has fallen off the bus.");
    assert_eq!(read(&[&forged]), [""; 0]);
    let about_it = format!("4,7,9000,-;NVRM: other\n SUBSYSTEM=pci\n {SAID}\n{SAID}\n");
    assert_eq!(heard(None, &[about_it]).xids, []);
}

#[test]
fn a_record_that_is_not_wholly_understood_is_none() {
    let table = [
        "",
        ";",
        "4,7,9000,-",
        ",7,9000,-;",
        "4,,9000,-;",
        "4,7,,-;",
        "4,7;",
        "x,7,9000,-;",
        "+4,7,9000,-;",
        "4,-7,9000,-;",
        "4,99999999999999999999,9000,-;",
        "4,7,9000,-; ",
        "4,7,9000,-;app: ",
        "4,7,9000,-;\n",
    ];
    for before in table {
        assert_eq!(heard(None, &[format!("{before}{SAID}\n")]).xids, [], "{before:?}");
    }
    for odd in
        ["(PCI:0000:9b:00): , x", "(PCI:zz:9b:00): 3", "(PCI:0000:9b:00 X:1): 3", "(PCI:0000:9b:00) 3", ": 3"]
    {
        assert_eq!(read(&[&format!("NVRM: Xid {odd}")]), [""; 0], "{odd:?}");
    }
    let whole = format!("4,7,9000,-;{SAID}");
    for end in 0..whole.find("): 31").unwrap() + 4 {
        assert_eq!(heard(None, &[whole[..end].to_owned()]).xids, [], "{end}");
    }
}

#[test]
fn this_machines_log_is_read_or_refused() {
    let now = match since(None) {
        Measured(heard) => heard,
        Absent(why) => return assert_eq!(why, Absence::NoPermission),
    };
    assert!(now.xids.iter().all(|x| x.at.0 >= 0 && x.seq < now.next));
    // The log is the whole machine's: this card's address is no other test's.
    let place = format!("{:04x}:e2:00", 0x8000 + std::process::id() % 0x7fff);
    let text = format!("<4>NVRM: Xid (PCI:{place}): 31, pid=1, name=x\nNVRM: Xid (PCI:{place}): 79, x\n");
    let log = File::options().write(true).open(LOG);
    if log.and_then(|mut log| log.write_all(text.as_bytes())).is_err() {
        return println!("skipped: the kernel's log can not be written here (needs root)");
    }
    let after = since(Some(now.next)).measured().unwrap().clone();
    let mine: Vec<&Xid> = after.xids.iter().filter(|x| x.gpu.as_str() == format!("{place}.0")).collect();
    assert_eq!(mine.len(), 1, "a line break makes no record: {mine:?}");
    assert_eq!((mine[0].number, mine[0].by_kernel), (Some(31), false));
    assert!(mine[0].seq >= now.next && after.next > mine[0].seq, "{after:?}");
    assert!(since(Some(after.next)).measured().unwrap().xids.iter().all(|x| x.seq >= after.next));
}

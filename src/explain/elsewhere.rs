//! What is said where no registered job run can be shown: it ended, it is another node's, nobody knows it, or the
//! ledger itself cannot be read. Each has its own words and its own exit status.

use super::{Answer, text};
use crate::ledger::{LedgerError, LedgerErrorKind, StoredCase};
use crate::place::Place;
use crate::screen::{Ink, Screen};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The answer as people read it.
pub fn answer(answer: &Answer, id: &str, screen: &Screen) -> String {
    let line = |text: &str| screen.paragraph(Ink::Plain, "", text);
    match answer {
        Answer::Told(told) => text::page(told, screen),
        Answer::Ended { when, case: Some(case), .. } => match page_of(case) {
            Some(page) => {
                let lines = page.lines().map(|line| format!("{}\n", screen.clean(line)));
                line(&format!("job {id} {when}; as it stood then:")) + "\n" + &lines.collect::<String>()
            }
            None => line(&format!("job {id} {when}; its case file is not readable")),
        },
        Answer::Ended { when, case: None, left } if left.is_empty() => line(&format!(
            "job {id} {when}; the ledger has no finding and no deed of it, and no case file: none was kept, or that is \
             longer ago than `history.case_files`"
        )),
        Answer::Ended { when, case: None, left } => {
            let head = line(&format!("job {id} {when}; it has no case file, the ledger still has:"));
            left.iter().fold(head, |out, one| out + &screen.paragraph(Ink::Plain, "  ", one))
        }
        Answer::OtherNode(node) => {
            line(&format!("job {id} is known to node {node} of this host: ask with --node {node}"))
        }
        Answer::Unknown { node, ledger, begun } => {
            let mut out = line(&format!("job {id} is not known to node {node}"));
            let looked =
                format!("{ledger}, begun {}, and the ledgers of other nodes on this host", begun.rfc3339());
            out += &screen.paragraph(Ink::Plain, "looked at  ", &looked);
            let why = "it runs or ran on another node, it holds no GPU of this one and no Prolog registered it, or it \
                       ended before this ledger was begun or longer ago than is kept (`history`)";
            out += &screen.paragraph(Ink::Plain, "because    ", why);
            out + &screen.paragraph(Ink::Plain, "try        ", &to_try(id))
        }
    }
}

/// What a case file shows to people; `None`: it is none of ours, or damaged.
pub(super) fn page_of(case: &StoredCase) -> Option<String> {
    let body: Value = serde_json::from_str(&case.body).ok()?;
    body["page"].as_str().map(str::to_owned)
}

/// Where to look for a job that is not known here.
fn to_try(id: &str) -> String {
    let by_number = match id.contains(['_', '+']) {
        true => "; and its raw job id, which %A shows, in place of this form",
        false => "",
    };
    format!("squeue -j {id} -o '%A %T %N': the node where it runs, and ask there{by_number}")
}

/// Why nothing could be explained: exit status 17.
#[derive(Debug)]
pub struct Refusal {
    /// The reason in one word: `no_ledger`, `permission`, `newer_schema`, `older_schema`, `damaged`, `busy`,
    /// `configuration`, `other`.
    pub kind: &'static str,
    /// One line: what failed, its cause, what to do.
    pub words: String,
}

impl Refusal {
    /// For a reason that is none of the ledger's.
    pub fn other(words: String) -> Refusal {
        Refusal { kind: "other", words }
    }

    /// The configuration has errors, which are said apart.
    pub fn of_configuration() -> Refusal {
        let words = "the configuration has errors: `gpu-reaper-hc config check` lists them";
        Refusal { kind: "configuration", words: words.to_owned() }
    }

    /// The node has no ledger.
    pub fn no_ledger(place: &Place) -> Refusal {
        Refusal { kind: "no_ledger", words: place.no_ledger() }
    }

    /// A ledger that is there and could not be read.
    pub fn of(error: &LedgerError, place: &Place) -> Refusal {
        let file = place.dir.join("ledger.db");
        if let Some(words) = closed(&file) {
            return Refusal { kind: "permission", words };
        }
        if fs::metadata(&file).is_ok_and(|meta| !meta.is_file()) {
            let words =
                format!("ledger `{}` is no file: move it away, the next run begins a ledger", file.display());
            return Refusal { kind: "damaged", words };
        }
        let (kind, more) = match error.kind {
            LedgerErrorKind::NewerSchema => ("newer_schema", "; use that version's program"),
            LedgerErrorKind::OlderSchema => {
                ("older_schema", "; the next health-check run brings it up to date")
            }
            LedgerErrorKind::Corrupt => {
                ("damaged", "; the next health-check run puts it aside and begins a new one")
            }
            LedgerErrorKind::Busy => ("busy", "; a run or a hook holds it, try again"),
            LedgerErrorKind::ReadOnly => (
                "permission",
                "; a run was killed while it wrote, and only who may write there can read it before the next one",
            ),
            _ => ("other", ""),
        };
        Refusal { kind, words: format!("{error}{more}") }
    }

    /// The same as a value.
    pub fn json(&self) -> Value {
        json!({ "schema": 1, "error": self.kind, "because": self.words })
    }

    /// The same as an answer about a job.
    pub fn json_of(&self, id: &str) -> Value {
        let mut answer = self.json();
        (answer["job"], answer["judgement"]) = (id.into(), "unreadable".into());
        answer
    }
}

/// Who may read a file that this user may not, in words; `None` where it may be read, or something else is wrong.
fn closed(file: &Path) -> Option<String> {
    let denied = |e: std::io::Error| e.kind() == ErrorKind::PermissionDenied;
    File::open(file).err().filter(|e| e.kind() == ErrorKind::PermissionDenied)?;
    let mut shut = file;
    // A folder that may not be entered hides what lies in it.
    while fs::symlink_metadata(shut).is_err_and(denied) {
        shut = shut.parent()?;
    }
    let closed = fs::metadata(shut).ok()?;
    let name = |id: u32, kind: &str| if id == 0 { "root".to_owned() } else { format!("{kind} {id}") };
    let (user, group, mode) = (name(closed.uid(), "uid"), name(closed.gid(), "gid"), closed.mode() & 0o7777);
    Some(format!(
        "ledger `{}`: permission denied: `{}` has mode {mode:04o}, user {user}, group {group}; only these may read it",
        file.display(),
        shut.display()
    ))
}

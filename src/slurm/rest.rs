//! Jobs and nodes asked of slurmrestd (`slurm.source: rest`) where a site would rather not have every node's commands
//! ask slurmctld. It only reads: what is done to Slurm goes through its commands, and no token that could do more
//! than read has to lie on a node. Whatever is not plainly an answer is none.

mod token;

use super::json::{self, Complaint};
use super::{Answer, Listed, NoAnswer};
use crate::http::{Failure, Reply, Server};
use crate::model::{JobId, NodeRow};
use crate::program::one_line;
use crate::units::NodeName;
use serde::Deserialize;
use std::cell::{Cell, OnceCell};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use token::Token;
use ureq::http::HeaderValue;

/// As errors name it.
pub(super) const PROGRAM: &str = "slurmrestd";

/// The versions whose answers are understood: `v0.0.38` (22.05) to `v0.0.45` (26.05).
pub const VERSIONS: RangeInclusive<u8> = 38..=45;

/// slurmctld's "Invalid job id specified": it knows no such job (measured on 22.05 with status 500, on 24.11 and
/// 26.05 with 404). A token that is refused and a slurmctld that is away have other numbers.
const INVALID_JOB_ID: i64 = 2017;

/// Where slurmrestd is, and as whom it is asked.
#[derive(Clone, Debug)]
pub struct RestSite {
    /// `http://host:port`, `https://host:port` or `unix:/path`.
    pub url: String,
    /// Of `v0.0.41` the 41; `None`: the newest that is served.
    pub version: Option<u8>,
    /// For X-SLURM-USER-NAME.
    pub username: Option<String>,
    /// Holds the token for X-SLURM-USER-TOKEN; `None`: no token is sent, and on a unix socket slurmrestd knows us by
    /// our uid.
    pub token_file: Option<PathBuf>,
    /// How long one question may take: connecting, and finding out the version too.
    pub limit: Duration,
}

/// slurmrestd.
pub(super) struct Rest {
    site: RestSite,
    server: OnceCell<Result<Server, String>>,
    /// The version that it has answered to.
    spoken: Cell<Option<u8>>,
    /// How often it gave no answer.
    pub(super) silences: Cell<u32>,
}

impl Rest {
    /// Nothing is read or connected yet.
    pub fn new(site: RestSite) -> Rest {
        Rest { site, server: OnceCell::new(), spoken: Cell::new(None), silences: Cell::new(0) }
    }

    /// One job; `None`: Slurm does not know it (any more). One JOB_INFO_SINGLE at the controller.
    pub fn job(&self, job: JobId) -> Answer<Option<Listed>> {
        let told = self.ask(&format!("job/{job}"))?;
        if told.is_of_an_unknown_job() {
            return Ok(None);
        }
        let rows = json::jobs(&told.answer()?).map_err(misread)?;
        let none_at_all = rows.is_empty();
        // An array's leader id brings all its tasks: only the raw id tells which is meant.
        let mut ours = rows.into_iter().filter(|row| row.job == job);
        match (ours.next(), ours.next()) {
            (_, Some(_)) => Err(misread(format!("job {job} is there twice"))),
            (None, _) if none_at_all => Err(misread(format!("no job {job}, and no error"))),
            (row, None) => Ok(row),
        }
    }

    /// One node. One REQUEST_NODE_INFO_SINGLE at the controller.
    pub fn node(&self, node: &NodeName) -> Answer<NodeRow> {
        let mut rows = json::nodes(&self.ask(&format!("node/{node}"))?.answer()?).map_err(misread)?;
        match (rows.pop(), rows.len()) {
            (Some(row), 0) if row.name == *node => Ok(row),
            _ => Err(misread(format!("it is not node `{node}` alone"))),
        }
    }

    /// Every node of the cluster.
    pub fn survey(&self) -> Answer<Vec<NodeRow>> {
        match json::nodes(&self.ask("nodes/")?.answer()?).map_err(misread)? {
            none if none.is_empty() => Err(misread("no node at all".to_owned())),
            nodes => Ok(nodes),
        }
    }

    /// Asks the newest version first and goes down from there: an address that is not served costs slurmctld nothing
    /// and is refused before the token is looked at (measured on 22.05, 24.11 and 26.05). One that was answered is
    /// kept for as long as this process lives.
    fn ask(&self, question: &str) -> Answer<Told> {
        let told = self.ask_each_version(question);
        if told.is_err() {
            self.silences.set(self.silences.get() + 1);
        }
        told
    }

    fn ask_each_version(&self, question: &str) -> Answer<Told> {
        let until = Instant::now() + self.site.limit;
        let server = self.server.get_or_init(|| Server::at(&self.site.url));
        let server = server.as_ref().map_err(|why| unavailable(why.clone()))?;
        let token = self.site.token_file.as_deref().map(Token::read).transpose().map_err(unavailable)?;
        let versions = match self.site.version.or(self.spoken.get()) {
            Some(version) => version..=version,
            None => VERSIONS,
        };
        for version in versions.clone().rev() {
            let path = format!("/slurm/v0.0.{version}/{question}");
            let left = until.saturating_duration_since(Instant::now());
            let reply = server
                .get(&path, self.headers(token.as_ref())?, left)
                .map_err(|failure| self.silence(failure, token.as_ref()))?;
            if !is_not_served(&reply) {
                self.spoken.set(Some(version));
                return Told::from(reply, token.as_ref());
            }
        }
        let (oldest, newest) = (versions.start(), versions.end());
        Err(NoAnswer::Refused {
            program: PROGRAM,
            code: 404,
            text: match oldest == newest {
                true => format!("it does not serve v0.0.{newest}, as slurm.rest_version asks"),
                false => format!("it serves none of v0.0.{oldest} to v0.0.{newest}"),
            },
        })
    }

    fn headers(&self, token: Option<&Token>) -> Answer<Vec<(&'static str, HeaderValue)>> {
        let said = [
            ("X-SLURM-USER-NAME", self.site.username.as_deref()),
            ("X-SLURM-USER-TOKEN", token.map(Token::secret)),
        ];
        let header = |(name, value): (&'static str, Option<&str>)| {
            let value =
                HeaderValue::from_str(value?).map_err(|_| unavailable(format!("{name} is no header")));
            Some(value.map(|mut value| {
                value.set_sensitive(true);
                (name, value)
            }))
        };
        said.into_iter().filter_map(header).collect()
    }

    fn silence(&self, failure: Failure, token: Option<&Token>) -> NoAnswer {
        match failure {
            Failure::TimedOut => {
                NoAnswer::TimedOut { program: PROGRAM, limit_ms: self.site.limit.as_millis() as u64 }
            }
            Failure::Unreachable(why) => unavailable(format!("`{}`: {}", self.site.url, without(token, why))),
            Failure::Broken(why) => misread(without(token, why)),
        }
    }
}

/// What slurmrestd said.
enum Told {
    /// Status 200 and no complaint.
    Answer(String),
    /// Another status, or a complaint.
    Refusal { status: u16, complaints: Vec<Complaint>, text: String },
}

#[derive(Deserialize)]
struct Complaints {
    errors: Vec<Complaint>,
}

impl Told {
    fn from(reply: Reply, token: Option<&Token>) -> Answer<Told> {
        let text = String::from_utf8(reply.body)
            .unwrap_or_else(|bad| String::from_utf8_lossy(bad.as_bytes()).into_owned());
        // Here already: what is not understood is repeated in parts.
        let text = without(token, text);
        let told = serde_json::from_str::<Complaints>(&text);
        match (reply.status, told) {
            (200, Ok(told)) if told.errors.is_empty() => Ok(Told::Answer(text)),
            (200, Err(why)) => Err(misread(why.to_string())),
            (status, told) => {
                let complaints = told.map_or(Vec::new(), |told| told.errors);
                let words = complaints.first().map_or(text, words);
                Ok(Told::Refusal { status, complaints, text: without(token, words) })
            }
        }
    }

    fn is_of_an_unknown_job(&self) -> bool {
        let Told::Refusal { status: 404 | 500, complaints, .. } = self else {
            return false;
        };
        matches!(complaints[..], [Complaint { error_number: Some(INVALID_JOB_ID), .. }])
    }

    fn answer(self) -> Answer<String> {
        match self {
            Told::Answer(text) => Ok(text),
            Told::Refusal { status, text, .. } => Err(NoAnswer::Refused {
                program: PROGRAM,
                code: status.into(),
                text: one_line(text.as_bytes()),
            }),
        }
    }
}

/// The number -1 has no meaning of its own: what slurmrestd could not do may have many causes.
fn words(complaint: &Complaint) -> String {
    let hint = match complaint.error_number {
        Some(-1) => " (so it says where a token is refused or slurmctld is not reached)",
        _ => "",
    };
    match (complaint.description.as_str(), complaint.error.as_str()) {
        ("", error) => format!("{error}{hint}"),
        (description, "") => format!("{description}{hint}"),
        (description, error) => format!("{description}: {error}{hint}"),
    }
}

/// An address that no part of slurmrestd serves: the only 404 that is not written in JSON.
fn is_not_served(reply: &Reply) -> bool {
    reply.status == 404 && serde_json::from_slice::<Complaints>(&reply.body).is_err()
}

/// A text from the other side, which may hold anything, without our token.
fn without(token: Option<&Token>, text: String) -> String {
    match token {
        Some(token) => token.hidden_in(text),
        None => text,
    }
}

fn unavailable(why: String) -> NoAnswer {
    NoAnswer::Unavailable { program: PROGRAM, why }
}

fn misread(why: String) -> NoAnswer {
    NoAnswer::NotUnderstood { program: PROGRAM, text: one_line(why.as_bytes()) }
}

#[cfg(test)]
mod tests;

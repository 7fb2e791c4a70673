//! One case file as a row. What its body does not hold is absent, never empty or 0; a body that cannot be read is a row
//! that says so.

use crate::ledger::StoredCase;
use crate::units::{NodeName, WallMs};
use serde_json::{Value, json};

/// Certified GPU-hours.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hours {
    /// By signature, in the order of the findings.
    pub by_signature: Vec<(String, f64)>,
    /// There was a finding of which the body holds no hours: the sum is a part of the whole.
    pub some_lacking: bool,
}

impl Hours {
    /// Of all signatures; `None`: nothing of it is known.
    pub fn sum(&self) -> Option<f64> {
        let known = !self.by_signature.is_empty() || !self.some_lacking;
        // From 0 on: the sum of nothing is -0 else.
        known.then(|| self.by_signature.iter().fold(0.0, |sum, (_, hours)| sum + hours))
    }

    /// Adds some of one signature.
    pub fn add(&mut self, signature: &str, hours: f64) {
        match self.by_signature.iter_mut().find(|(known, _)| known == signature) {
            Some((_, sum)) => *sum += hours,
            None => self.by_signature.push((signature.to_owned(), hours)),
        }
    }
}

/// What a case file says of its job run.
#[derive(Clone, Debug, PartialEq)]
pub struct Body {
    /// User-chosen text, as it is; `None`: not known.
    pub user: Option<String>,
    /// The same.
    pub account: Option<String>,
    /// The same.
    pub partition: Option<String>,
    /// Nodes of the allocation.
    pub nodes: Option<u64>,
    /// GPUs and MIG instances that it held on this node.
    pub gpus: u64,
    /// Of its last finding.
    pub signature: Option<String>,
    /// `whole` or `part`, of its last finding.
    pub scope: Option<String>,
    /// When its last finding began, RFC 3339.
    pub since: Option<String>,
    /// When it was one, RFC 3339.
    pub established: Option<String>,
    /// Of all its findings.
    pub hours: Hours,
    /// What was done for it, in order.
    pub done: Vec<String>,
    /// What was asked for and not done, with its reason.
    pub withheld: Vec<(String, String)>,
}

/// One case file.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Whose ledger it is from.
    pub node: NodeName,
    /// The job as Slurm shows it.
    pub job: String,
    /// Its restart count.
    pub restart: u32,
    /// When the job run ended.
    pub ended: WallMs,
    /// What it says; `None`: it is not readable.
    pub body: Option<Body>,
}

impl Row {
    /// Of a file of this node's ledger.
    pub fn of(node: &NodeName, case: &StoredCase) -> Row {
        let (job, restart, ended) = (case.display_id.clone(), case.restart, case.created);
        let body = serde_json::from_str(&case.body).ok().and_then(|body| Body::read(&body));
        Row { node: node.clone(), job, restart, ended, body }
    }

    /// As one object.
    pub fn json(&self) -> Value {
        let mut line = json!({
            "schema": 1,
            "node": self.node,
            "job": self.job,
            "restart": self.restart,
            "ended": self.ended.rfc3339(),
            "readable": self.body.is_some(),
        });
        let body = self.body.as_ref();
        let hours = body.map(|body| {
            let each = body.hours.by_signature.iter();
            each.map(|(name, hours)| (name.clone(), json!(hours))).collect::<serde_json::Map<_, _>>()
        });
        let withheld = body.map(|body| {
            let each = body.withheld.iter();
            each.map(|(asked, because)| json!({ "asked": asked, "because": because })).collect::<Vec<_>>()
        });
        let of_job = json!({
            "user": body.map(|body| &body.user),
            "account": body.map(|body| &body.account),
            "partition": body.map(|body| &body.partition),
            "nodes": body.map(|body| body.nodes),
            "gpus": body.map(|body| body.gpus),
            "signature": body.map(|body| &body.signature),
            "scope": body.map(|body| &body.scope),
            "since": body.map(|body| &body.since),
            "established": body.map(|body| &body.established),
            "certified_gpu_hours": body.and_then(|body| body.hours.sum()),
            "certified_gpu_hours_by_signature": hours,
            "hours_complete": body.map(|body| !body.hours.some_lacking),
            "done": body.map(|body| &body.done),
            "withheld": withheld,
        });
        if let (Value::Object(line), Value::Object(of_job)) = (&mut line, of_job) {
            line.extend(of_job);
        }
        line
    }
}

impl Body {
    /// `None` for what is no page of ours.
    fn read(page: &Value) -> Option<Body> {
        let job = page["job"].as_object()?;
        let registration = &job["registration"];
        let text = |name: &str| registration[name]["value"].as_str().map(str::to_owned);
        let findings = findings(page);
        let last = findings.last().copied().unwrap_or(page);
        let of_last = |name: &str| last[name].as_str().map(str::to_owned);
        let words = |list: &Value| -> Vec<String> {
            list.as_array()
                .into_iter()
                .flatten()
                .filter_map(|word| word.as_str().map(str::to_owned))
                .collect()
        };
        let pair = |entry: &Value| {
            Some((entry["asked"].as_str()?.to_owned(), entry["because"].as_str()?.to_owned()))
        };
        Some(Body {
            user: text("user"),
            account: text("account"),
            partition: text("partition"),
            nodes: registration["nodes"]["value"].as_u64(),
            gpus: registration["gpus"].as_array()?.len() as u64,
            signature: of_last("signature"),
            scope: of_last("scope"),
            since: of_last("since"),
            established: of_last("established"),
            hours: hours(&findings),
            done: words(&page["done"]),
            withheld: page["withheld"].as_array().into_iter().flatten().filter_map(pair).collect(),
        })
    }
}

/// Every finding that the page tells of, oldest first. One that stood and that no run had kept yet is told by the page
/// itself, as is the only one of a page of before they were listed.
fn findings(page: &Value) -> Vec<&Value> {
    let Some(listed) = page["findings"].as_array() else { return vec![page] };
    let stands = page["signature"].is_string();
    let kept = listed.iter().any(|finding| finding["closed"].is_null());
    listed.iter().chain((stands && !kept).then_some(page)).collect()
}

fn hours(findings: &[&Value]) -> Hours {
    let mut hours = Hours::default();
    for finding in findings {
        match (finding["signature"].as_str(), finding["wasted_gpu_hours"].as_f64()) {
            (Some(signature), Some(wasted)) => hours.add(signature, wasted),
            _ => hours.some_lacking = true,
        }
    }
    hours
}

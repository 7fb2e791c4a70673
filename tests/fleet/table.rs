//! What a story brought, in one row for each size of the cluster.

use super::fleet::{Minute, Told};
use std::fmt::Write;

impl Told {
    /// The most of something in a minute.
    pub fn most(&self, of: impl Fn(&Minute) -> usize) -> usize {
        self.minutes.iter().map(of).max().unwrap_or(0)
    }

    /// Something in all.
    pub fn sum(&self, of: impl Fn(&Minute) -> usize) -> usize {
        self.minutes.iter().map(of).sum()
    }

    /// Nodes that carry our drains at the end.
    pub fn standing(&self) -> usize {
        self.minutes.last().map_or(0, |m| m.standing)
    }

    /// How many nodes more than the cap ever carried our drains.
    pub fn overshoot(&self) -> usize {
        self.most(|m| m.standing).saturating_sub(self.cap)
    }

    /// The longest stretch of ticks at whose end more nodes than the cap carried our drains.
    pub fn ticks_over(&self) -> usize {
        self.minutes.split(|m| m.standing <= self.cap).map(<[Minute]>::len).max().unwrap_or(0)
    }

    /// RPCs of a minute.
    pub fn rpcs(minute: &Minute) -> usize {
        minute.asked.rpcs() as usize
    }
}

/// The table.
pub fn of(name: &str, told: &[Told]) -> String {
    let mut text = format!(
        "{name}\n{:>6} {:>5} | {:>10} {:>8} {:>8} | {:>6} {:>7} {:>5} | {:>8} {:>8} {:>9} {:>9} | {:>7} {:>8} {:>9}\n",
        "nodes",
        "cap",
        "drains/min",
        "standing",
        "most",
        "over",
        "% nodes",
        "ticks",
        "RPC/min",
        "mean",
        "survs/min",
        "node-hour",
        "updates",
        "withdrew",
        "cancelled"
    );
    for t in told {
        let mean = t.sum(Told::rpcs) as f64 / t.minutes.len() as f64;
        let percent = 100.0 * t.overshoot() as f64 / t.nodes as f64;
        let _ = writeln!(
            text,
            "{:>6} {:>5} | {:>10} {:>8} {:>8} | {:>6} {:>7.1} {:>5} | {:>8} {:>8.1} {:>9} {:>9} | {:>7} {:>8} {:>9}",
            t.nodes,
            t.cap,
            t.most(|m| m.drained),
            t.standing(),
            t.most(|m| m.standing),
            t.overshoot(),
            percent,
            t.ticks_over(),
            t.most(Told::rpcs),
            mean,
            t.most(|m| m.asked.surveys as usize),
            t.node_hour,
            t.sum(|m| m.asked.updates as usize),
            t.sum(|m| m.withdrew),
            t.sum(|m| m.cancelled),
        );
    }
    text
}

//! The same fault on every node at the same tick, where the configuration drains for it: what a run does then, by the same
//! calls of rules, deeds and ledger. Half of what the limit allows is taken by drains for jobs, made long before.

use super::fleet::{Minute, Site, Told, names};
use super::node::Done;
use super::slurmctld::{Seat, Slurmctld};
use gpu_reaper_hc::act::look::Look;
use gpu_reaper_hc::act::{self, Desk, Ending};
use gpu_reaper_hc::ledger::{FaultRow, Ledger, SeenFault};
use gpu_reaper_hc::model::*;
use gpu_reaper_hc::policy::Signature;
use gpu_reaper_hc::policy::fault::{Circumstances, Kind, Standing, Step, escalate};
use gpu_reaper_hc::policy::reason::{RunKey, Stand, Where, waste};
use gpu_reaper_hc::policy::slot::Slot;
use gpu_reaper_hc::reading::{Absence, Reading};
use gpu_reaper_hc::slurm::Controller;
use gpu_reaper_hc::units::NodeName;
use std::collections::BTreeMap;

const KIND: Kind = Kind::Fabric;
const YAML: &str = "faults: { mode: enforce, actions: { fabric: drain } }";

/// A node with the fault.
struct Faulty {
    at: usize,
    name: NodeName,
    /// Its drain is still to be counted again.
    uncounted: bool,
    /// RPCs that it caused.
    caused: u32,
}

/// Plays an hour of it on so many nodes.
pub fn play(nodes: usize) -> Told {
    let site = Site::new(YAML);
    let names = names(nodes);
    let cap = site.cap().nodes(nodes as u32) as usize;
    let mut slurmctld = Slurmctld::new(&names, BTreeMap::new());
    slurmctld.begin(site.beginning().wall.0 / 1000);
    for (at, job) in (1..).take(cap / 2).enumerate() {
        let key = RunKey { job: JobId::new(job).unwrap(), start_unix_s: 1, restart: 0 };
        let reason = waste(key, Signature::Hung, Stand::Drain, site.beginning().wall);
        slurmctld.seat(at).drain(&reason).unwrap();
    }
    slurmctld.end();
    let node = |(at, name)| Faulty { at, name, uncounted: false, caused: 0 };
    let mut faulty: Vec<Faulty> = names.into_iter().enumerate().map(node).collect();
    let mut minutes = Vec::new();
    for tick in 0..60 {
        slurmctld.begin(site.moment(tick).wall.0 / 1000);
        let mut minute = Minute::default();
        for node in &mut faulty {
            minute.add(&node.run(tick, &site, &slurmctld));
        }
        slurmctld.end();
        minute.standing = slurmctld.standing();
        minutes.push(minute);
    }
    Told { nodes, cap, minutes, node_hour: faulty.iter().map(|node| node.caused).max().unwrap_or(0) }
}

impl Faulty {
    /// One run. Where nothing can happen it opens no ledger.
    fn run(&mut self, tick: i64, site: &Site, slurmctld: &Slurmctld) -> Done {
        let (now, previous) = (site.moment(tick), site.moment(tick - 1).boot);
        let slot = Slot::of_fault(&self.name, KIND.word(), site.spread_ms(), None);
        let open = slot.is_open(Some(previous), now.boot);
        let mut done = Done::default();
        if !open && !self.uncounted {
            return done;
        }
        let seat = slurmctld.seat(self.at);
        let mut ledger = Ledger::open(&site.folder(&self.name), &self.name, &now, site.opening()).unwrap();
        let row = sighted(RunId(tick), &now, &mut ledger);
        let mut gpus = || Reading::Absent(Absence::NotAsked);
        let look = site.look(&mut gpus);
        let mut desk = Desk { ledger: &mut ledger, slurm: &seat, now: &now, run: RunId(tick), finding: 0 };
        if std::mem::take(&mut self.uncounted) {
            let drain = desk.ledger.fault_drains(&now).unwrap().pop().unwrap();
            let ending = act::fault::count_again(&drain, &look, &mut desk).unwrap();
            done.withdrew = matches!(ending, Some(Ending::Ended(Outcome::Done, _)));
        }
        let wait_ms = if open { 0 } else { slot.next_in_ms(now.boot) };
        done.drained = self.step(&row, wait_ms, (site, &look), &mut desk);
        self.uncounted = done.drained;
        done.asked = Seat::asked(&seat);
        self.caused += done.asked.rpcs() as u32;
        done
    }

    /// The one step; whether it drained.
    fn step(&self, row: &FaultRow, wait_ms: i64, (site, look): (&Site, &Look), desk: &mut Desk) -> bool {
        let place = Where::read(row.place.as_deref().unwrap()).unwrap();
        let standing = Standing { kind: KIND, place, since: row.opened, seen_now: true };
        let back_off = format!("drain for fault {}", row.id);
        let drains = desk.ledger.fault_drains(desk.now).unwrap();
        let circumstances = Circumstances {
            action: site.config.faults.law.action(KIND),
            permit: site.config.faults_mode().node_permit(&site.config.enforce_in, &self.name),
            drained: drains.iter().any(|drain| drain.stands()),
            wait_ms,
            held_by: None,
        };
        let Step::Drain(warrant) = escalate(&standing, circumstances) else { return false };
        if !desk.ledger.ask_allowed(&back_off, desk.now).unwrap() {
            return false;
        }
        let ending = act::fault::drain(warrant, row.id, look, desk).unwrap();
        if !matches!(ending, Ending::Ended(Outcome::Done, _)) {
            desk.ledger.unanswered(&back_off, desk.now).unwrap();
        }
        matches!(ending, Ending::Ended(Outcome::Done, _))
    }
}

fn sighted(run: RunId, now: &Now, ledger: &mut Ledger) -> FaultRow {
    let (subject, detail) = ("GPU-0", "its NVLink fabric is not up yet");
    let place = Some("0000:1a:00.0");
    let seen = SeenFault { kind: KIND.word(), subject, detail, place, tells_after: 1 };
    ledger.fault_sighted(&seen, run, now).unwrap();
    ledger.open_faults().unwrap().remove(0)
}

//! One node of the fleet: what `run` does for a job with a finding, by the same calls of rules, deeds and ledger. A run
//! in which nothing can happen (no deed is due, its slot is closed or a refused deed waits, and no drain of its own is to be looked
//! after) opens no ledger, and a node that never looks has none: what is in memory is one ledger a thread.

use super::fleet::Site;
use super::slurmctld::{Asked, Seat, Slurmctld};
use gpu_reaper_hc::act::{self, Desk, Doubt, Ending, Lift, Terminate};
use gpu_reaper_hc::ledger::{Ledger, NewAction, NewFinding, OpenDrain, Question};
use gpu_reaper_hc::mode::{EnforceIn, Mode};
use gpu_reaper_hc::model::*;
use gpu_reaper_hc::policy::nodes::Nodes;
use gpu_reaper_hc::policy::slot::Slot;
use gpu_reaper_hc::policy::stage::{Circumstances, Step, due};
use gpu_reaper_hc::policy::{Finding, escalate};
use gpu_reaper_hc::reading::Reading;
use gpu_reaper_hc::slurm::{Ask, Controller};
use gpu_reaper_hc::units::{BootMs, NodeName};

/// What a run did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// It drained.
    pub drained: bool,
    /// It withdrew its drain: the cap was overshot.
    pub withdrew: bool,
    /// It ended the job.
    pub cancelled: bool,
    /// It lifted its drain, for the job is gone.
    pub released: bool,
    /// What it asked of slurmctld.
    pub asked: Asked,
}

/// One run of all nodes.
pub struct Tick<'a> {
    /// This moment.
    pub now: &'a Now,
    /// Of the run before.
    pub previous: BootMs,
    /// This run; also the number of the tick.
    pub run: RunId,
    /// What the configuration says.
    pub mode: Mode,
    /// The finding as it looks now.
    pub finding: &'a Finding,
    /// The run that found it first, and alerted.
    pub alerted: RunId,
    /// Whether runs in which nothing can happen are skipped.
    pub skips: bool,
}

/// A node with a hung job.
pub struct Node {
    /// Its place in the cluster.
    pub at: usize,
    name: NodeName,
    nodes: Nodes,
    job: JobRun,
    has_ledger: bool,
    /// Until then it has no drain to look after.
    quiet_until: BootMs,
    /// Until then a deed that was refused waits.
    waits_until: BootMs,
}

impl Node {
    pub fn new(at: usize, name: NodeName, nodes: Nodes, job: JobRun) -> Node {
        let (quiet_until, waits_until) = (BootMs(i64::MAX), BootMs(i64::MIN));
        Node { at, name, nodes, job, has_ledger: false, quiet_until, waits_until }
    }

    /// One run.
    pub fn run(&mut self, tick: &Tick, site: &Site, slurmctld: &Slurmctld) -> Done {
        let slot = Slot::of(&self.name, self.job.registration.job, site.spread_ms());
        let open = slot.is_open(Some(tick.previous), tick.now.boot);
        let seat = slurmctld.seat(self.at);
        let mut done = Done::default();
        if tick.run == tick.alerted {
            // The run that finds it asks Slurm about the job, at once.
            let _ = seat.job(self.job.registration.job, Ask::NOTHING_MORE);
        }
        let told_only = due(tick.finding, &site.config.rules.stages) <= Some(Verdict::Alert);
        let held = !open || told_only || tick.now.boot < self.waits_until;
        if tick.skips && held && tick.now.boot < self.quiet_until {
            return Done { asked: seat.asked(), ..done };
        }
        let mut ledger = self.ledger(tick, site);
        for drain in ledger.open_drains(tick.now).unwrap() {
            done.withdrew |= self.count_again(&drain, (tick, site), &seat, &mut ledger);
        }
        if slurmctld.is_over(self.job.registration.job) {
            let r = &self.job.registration;
            ledger.clear(r.job, Some(r.restart), tick.now, false, None).unwrap();
        } else {
            self.ask_whether_it_ended(tick, &seat, &mut ledger);
            let wait_ms = if open { 0 } else { slot.next_in_ms(tick.now.boot) };
            self.settle(wait_ms, (tick, site), &seat, &mut ledger, &mut done);
        }
        for drain in ledger.open_drains(tick.now).unwrap() {
            done.released |= self.release(&drain, tick, &seat, &mut ledger);
        }
        let to_clear = done.cancelled || slurmctld.is_over(self.job.registration.job);
        self.quiet_until = if to_clear { tick.now.boot } else { self.next_moment(tick, &ledger) };
        if let Question::Wait { ms, .. } =
            ledger.question(&back_off(&self.job, Deed::Drain), tick.now).unwrap()
        {
            self.waits_until = BootMs(tick.now.boot.0 + ms);
        }
        Done { asked: seat.asked(), ..done }
    }

    /// Its ledger; a new one knows what the node's runs did before it looked for the first time: they alerted.
    fn ledger(&mut self, tick: &Tick, site: &Site) -> Ledger {
        let before = site.beginning();
        let begun = if self.has_ledger { tick.now } else { &before };
        let mut ledger = Ledger::open(&site.folder(&self.name), &self.name, begun, site.opening()).unwrap();
        if self.has_ledger {
            return ledger;
        }
        self.has_ledger = true;
        ledger.register(&before, &self.job.registration).unwrap();
        let registered = ledger.open_runs(&before.boot_id).unwrap().pop().unwrap();
        self.job = JobRun { details: self.job.details.take(), ..registered };
        if tick.alerted < tick.run {
            let moment = site.moment(tick.alerted.0);
            self.alert(tick.finding, tick.alerted, &moment, &mut ledger);
        }
        ledger
    }

    fn record(&self, finding: &Finding, run: RunId, now: &Now, ledger: &mut Ledger) -> i64 {
        let seen = NewFinding {
            job: &self.job,
            signature: finding.signature.word(),
            scope: finding.scope.word(),
            units: finding.units[0].uuid.as_str(),
            since: finding.since,
            established: finding.since,
            certified_ms: finding.evidence().certified_ms(),
            wasted: finding.wasted(),
            gpus: finding.units.len(),
        };
        ledger.record_finding(&seen, run, now).unwrap()
    }

    fn alert(&self, finding: &Finding, run: RunId, now: &Now, ledger: &mut Ledger) {
        let row = self.record(finding, run, now, ledger);
        let action = NewAction {
            deed: Deed::Alert,
            finding: Some(row),
            job: &self.job,
            run,
            signature: finding.signature.word(),
            seen_before: "",
            reason: None,
        };
        let action = ledger.begin_action(&action, now).unwrap();
        ledger.end_action(action, Outcome::Done, "journal", false).unwrap();
    }

    /// While a drain of ours stands, Slurm is asked ever more rarely whether the job has ended without an Epilog.
    fn ask_whether_it_ended(&self, tick: &Tick, seat: &Seat, ledger: &mut Ledger) {
        let drained = |a: &ActionRecord| a.deed == Deed::Drain && a.outcome == Outcome::Done;
        let ended = format!("ended {}", self.job.id.0);
        if ledger.actions_of(self.job.id).unwrap().iter().any(drained)
            && ledger.ask_allowed(&ended, tick.now).unwrap()
        {
            ledger.unanswered(&ended, tick.now).unwrap();
            let _ = seat.job(self.job.registration.job, Ask::NOTHING_MORE);
        }
    }

    /// One step for the finding.
    fn settle(
        &self,
        wait_ms: i64,
        (tick, site): (&Tick, &Site),
        seat: &Seat,
        ledger: &mut Ledger,
        done: &mut Done,
    ) {
        let finding = self.record(tick.finding, tick.run, tick.now, ledger);
        let actions = ledger.actions_of(self.job.id).unwrap();
        let circumstances = Circumstances {
            permit: tick.mode.permit(&EnforceIn::EVERYWHERE, &self.job, &self.name),
            run: tick.run,
            now: tick.now.boot,
            job: &self.job,
            actions: &actions,
            node_units: Reading::Measured(1),
            nodes: Ok(self.nodes.clone()),
            wait_ms,
            held_by: self.held_by(tick, site, ledger),
            backing_off: self.backing_off(tick, ledger),
        };
        let (rules, report) = (&site.config.rules, &site.quiet);
        let step = escalate(tick.finding, rules, circumstances);
        let mut gpus = || Reading::Measured(report.clone());
        let mut look = site.look(&mut gpus);
        let mut desk = Desk { ledger: &mut *ledger, slurm: seat, now: tick.now, run: tick.run, finding };
        let job = &self.job;
        let (asked, ending) = match step {
            Step::Drain(warrant) => (Deed::Drain, act::drain(warrant, job, &mut look, &mut desk)),
            Step::Vote(warrant) => (Deed::Vote, act::vote(warrant, job, &mut look, &mut desk)),
            Step::Cancel(all) => {
                let (deed, ending) = act::cancel(all, Terminate::Cancel, job, &mut look, &mut desk).unwrap();
                (deed, Ok(ending))
            }
            Step::Alert => return self.alert(tick.finding, tick.run, tick.now, ledger),
            Step::Withheld { asked, because, .. } => {
                ledger.withhold(job.id, asked.into(), &because, tick.run, tick.now).unwrap();
                return;
            }
            Step::Rest | Step::Later { .. } => return,
            other => panic!("no command was ever lost, and yet: {other:?}"),
        };
        match ending.unwrap() {
            Ending::Ended(Outcome::Done, _) => {
                ledger.forget_answer(&back_off(job, asked)).unwrap();
                done.drained = asked == Deed::Drain;
                done.cancelled = asked == Deed::Cancel;
            }
            Ending::Ended(..) => ledger.unanswered(&back_off(job, asked), tick.now).unwrap(),
            Ending::Withheld(Doubt { because, of_limit, .. }) => {
                if of_limit || asked == Deed::Vote {
                    ledger.unanswered(&back_off(job, asked), tick.now).unwrap();
                }
                ledger.withhold(job.id, asked, &because, tick.run, tick.now).unwrap();
            }
        }
    }

    fn backing_off(&self, tick: &Tick, ledger: &Ledger) -> Vec<Deed> {
        let waits = |deed: &Deed| !ledger.ask_allowed(&back_off(&self.job, *deed), tick.now).unwrap();
        [Deed::Drain, Deed::Vote, Deed::Warn, Deed::Cancel].into_iter().filter(waits).collect()
    }

    /// As a run has it, but for what no run of this story meets: a new ledger, a fresh slurmd, a want of time.
    fn held_by(&self, tick: &Tick, site: &Site, ledger: &Ledger) -> Option<String> {
        if ledger.actions_in_last_hour(tick.now).unwrap() >= site.config.limits.max_actions_per_hour {
            return Some("`limits.max_actions_per_hour`".to_owned());
        }
        None
    }

    /// A drain of an earlier run is counted again; whether it was one too many and is gone.
    fn count_again(
        &self,
        drain: &OpenDrain,
        (tick, site): (&Tick, &Site),
        seat: &Seat,
        ledger: &mut Ledger,
    ) -> bool {
        let action = &drain.action;
        let counts = action.outcome == Outcome::Done && action.counted_again.is_none();
        if !counts || !drain.job_open || action.run >= tick.run {
            return false;
        }
        let mut gpus = || Reading::Measured(site.quiet.clone());
        let look = site.look(&mut gpus);
        let mut desk = Desk { ledger, slurm: seat, now: tick.now, run: tick.run, finding: 0 };
        lifted(act::count_again(drain, &self.nodes, &look, &mut desk).unwrap())
    }

    /// A drain whose job is gone is lifted once two runs agree.
    fn release(&self, drain: &OpenDrain, tick: &Tick, seat: &Seat, ledger: &mut Ledger) -> bool {
        if drain.action.outcome != Outcome::Done || drain.action.run >= tick.run || drain.job_open {
            return false;
        }
        let agreed = ledger.note_release_seen(drain.action.id, tick.run).unwrap().is_some();
        let mut desk = Desk { ledger, slurm: seat, now: tick.now, run: tick.run, finding: 0 };
        lifted(agreed.then(|| act::lift(drain, Lift::Release, &mut desk).unwrap()))
    }

    /// When a run has something to do even if its slot is closed.
    fn next_moment(&self, tick: &Tick, ledger: &Ledger) -> BootMs {
        let drains = ledger.open_drains(tick.now).unwrap();
        let Some(drain) = drains.last() else { return BootMs(i64::MAX) };
        if drain.action.counted_again.is_none() || self.nodes.are_several() {
            return tick.now.boot;
        }
        match ledger.question(&format!("ended {}", self.job.id.0), tick.now).unwrap() {
            Question::Wait { ms, .. } => BootMs(tick.now.boot.0 + ms),
            _ => tick.now.boot,
        }
    }
}

fn lifted(ending: Option<Ending>) -> bool {
    matches!(ending, Some(Ending::Ended(Outcome::Done | Outcome::Lifted, _)))
}

/// Where a refused deed is kept, as a run keeps it.
fn back_off(job: &JobRun, asked: Deed) -> String {
    format!("{} {}", asked.word(), job.id.0)
}

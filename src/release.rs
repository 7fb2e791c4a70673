//! `release`: an administrator on the node has our own drain lifted, one that the ledger knows or an orphan. Whose it is
//! and that the node is in a plain state is looked at first; whether the job has gone, and whether the GPUs are clean,
//! is for the person to judge. Nobody else's drain is ever touched. Needs no GPU; a ledger that is not there is fine.

use crate::act::{self, Desk, Ending, Lift};
use crate::ledger::{Ledger, LedgerError};
use crate::model::{NodeStatus, Now, Outcome, RunId};
use crate::policy::reason::{self, PREFIX, RunKey};
use crate::run::release;
use crate::slurm::Controller;
use crate::units::NodeName;

/// Where it is done.
pub struct Site<'a> {
    /// This node.
    pub node: &'a NodeName,
    /// Asked and told about it.
    pub slurm: &'a dyn Controller,
    /// Told of it, where there is one.
    pub ledger: Option<Ledger>,
    /// This moment.
    pub now: &'a Now,
}

/// Lifts the drain and sees that it is gone; what was found and done, in words.
///
/// # Errors
///
/// One line: why it was refused and that nothing was done, or what is not certain.
pub fn release(site: Site) -> Result<String, String> {
    let Site { node: name, slurm, ledger, now } = site;
    let nothing = |why: String| format!("node {name}: {why}; nothing was lifted");
    let node = slurm.node().map_err(|silence| nothing(silence.to_string()))?;
    let (reason, whose) = ours(&node).map_err(nothing)?;
    let told = |e: LedgerError| nothing(e.to_string());
    let ending = match ledger {
        None => {
            let (outcome, words) = act::undrain(slurm);
            Ending::Ended(outcome, words)
        }
        Some(mut ledger) => {
            let ending = match whose {
                Whose::Job(key) => of_job((&node, reason), key, slurm, &mut ledger, now).map_err(told)?,
                Whose::Fault => of_fault(&node, slurm, &mut ledger, now).map_err(told)?,
            };
            if matches!(ending, Ending::Ended(Outcome::Done | Outcome::Lifted, _)) {
                // It is lifted: a note that stays open is closed by the next look.
                let _ = ledger.faults_gone(release::ORPHAN, reason, now);
            }
            ending
        }
    };
    match ending {
        Ending::Ended(Outcome::Done | Outcome::Lifted, after) => {
            Ok(format!("node {name} was {node}\nlifted: it is {after}\n"))
        }
        Ending::Ended(Outcome::Failed, why) => Err(nothing(why)),
        Ending::Ended(_, why) => Err(format!(
            "node {name}: asked for, and not seen to be done: {why}; look: scontrol show node {name}"
        )),
        Ending::Withheld(doubt) => Err(nothing(doubt.because)),
    }
}

/// What a drain of ours is for.
#[derive(Debug)]
enum Whose {
    /// This job run.
    Job(RunKey),
    /// A fault of the node.
    Fault,
}

fn of_job(
    (node, reason): (&NodeStatus, &str),
    key: RunKey,
    slurm: &dyn Controller,
    ledger: &mut Ledger,
    now: &Now,
) -> Result<Ending, LedgerError> {
    let known = ledger.open_drains(now)?.into_iter().rfind(|drain| drain.shows(node));
    let mut desk = Desk { ledger, slurm, now, run: RunId(0), finding: 0 };
    let Some(drain) = known else { return act::lift_unknown(reason, key, &mut desk) };
    let ending = act::lift(&drain, Lift::ByHand, &mut desk)?;
    if matches!(ending, Ending::Ended(Outcome::Done | Outcome::Lifted, _)) {
        let _ = ledger.faults_gone(release::KIND, &drain.action.id.to_string(), now);
    }
    Ok(ending)
}

/// The record of one that the ledger does not know is not missed: nothing but a person ever lifts it.
fn of_fault(
    node: &NodeStatus,
    slurm: &dyn Controller,
    ledger: &mut Ledger,
    now: &Now,
) -> Result<Ending, LedgerError> {
    match ledger.fault_drains(now)?.into_iter().rfind(|drain| drain.shows(node)) {
        Some(drain) => act::fault::lift(&drain, Lift::ByHand, slurm, ledger),
        None => {
            let (outcome, words) = act::undrain(slurm);
            Ok(Ending::Ended(outcome, words))
        }
    }
}

/// The reason and what it is for, if the drain is ours and may be lifted.
fn ours(node: &NodeStatus) -> Result<(&str, Whose), String> {
    if !node.drained() {
        return Err(format!("it is {node}: not drained"));
    }
    let Some(reason) = node.reason.as_deref().filter(|reason| reason.starts_with(PREFIX)) else {
        return Err(format!("it is {node}: that drain is not ours"));
    };
    // It begins like ours: a later version's, or somebody changed it, or answered in our words.
    let of_job = reason::read(reason).map(|ours| Whose::Job(ours.key));
    let Some(whose) = of_job.or(reason::read_fault(reason).map(|_| Whose::Fault)) else {
        let by_hand = "scontrol update nodename=NODE state=undrain";
        return Err(format!(
            "it is {node}: that is not what we write, or somebody changed it; to lift it: {by_hand}"
        ));
    };
    if !node.plain() {
        return Err(format!("it is {node}: beside DRAIN only IDLE, MIXED or ALLOCATED is touched"));
    }
    Ok((reason, whose))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NodeBase;

    const FAULT: &str = "gpu-reaper: fault=gpu-lost at=0000:9b:00.0 since=2026-11-29T13:25:38Z";
    const OURS: &str = "gpu-reaper: job=1 run=1764422738.0 sig=hung st=drain since=2026-11-29T13:25:38Z";

    #[test]
    fn only_our_own_drain_of_a_plain_node_is_lifted() {
        // mej/nhc#134 (ND-04): an administrator's note was replaced and the node resumed.
        // mej/nhc#82, #36, clustershell#362 (ND-08): states with more beside them.
        let down = || NodeBase::Other("down".to_owned());
        let (rebooting, changed) = (format!("{OURS} : reboot"), format!("{OURS} ada: disk too"));
        let table = [
            (NodeBase::Idle, &["drain"][..], Some(OURS), None),
            (NodeBase::Mixed, &["drain"], Some(OURS), None),
            (NodeBase::Allocated, &["drain", "planned"], Some(OURS), None),
            (NodeBase::Idle, &["drain"], Some("gpu-reaper: see ticket 7, by eve"), Some("not what we write")),
            (NodeBase::Idle, &["drain"], Some(FAULT), None),
            (NodeBase::Idle, &["drain"], Some("gpu-reaper: fault=ecc at=node"), Some("not what we write")),
            (NodeBase::Idle, &[], None, Some("not drained")),
            (NodeBase::Idle, &[], Some(OURS), Some("not drained")),
            (NodeBase::Idle, &["drain"], None, Some("not ours")),
            (NodeBase::Idle, &["drain"], Some("fan 3 dead, ticket 4711"), Some("not ours")),
            (NodeBase::Idle, &["drain"], Some("Kill task failed"), Some("not ours")),
            (NodeBase::Idle, &["drain"], Some(changed.as_str()), Some("somebody changed it")),
            (NodeBase::Idle, &["drain", "reboot_requested"], Some(OURS), Some("beside DRAIN")),
            (NodeBase::Idle, &["drain", "maintenance", "reserved"], Some(OURS), Some("beside DRAIN")),
            (NodeBase::Idle, &["completing", "drain"], Some(OURS), Some("beside DRAIN")),
            (down(), &["drain", "reboot_issued"], Some(rebooting.as_str()), Some("somebody changed it")),
        ];
        for (base, flags, reason, refused) in table {
            let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
            let node = NodeStatus { base, flags, reason: reason.map(str::to_owned) };
            match (ours(&node), refused) {
                (Ok(_), None) => {}
                (Err(why), Some(part)) => assert!(why.contains(part), "{node}: {why}"),
                (found, want) => panic!("{node}: {found:?}, not {want:?}"),
            }
        }
    }
}

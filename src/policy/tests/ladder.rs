//! The ladder where a job runs on several nodes, is warned first, or has to wait for its node's moment.

use super::*;
use crate::policy::stage::would_vote;

const LONG: i64 = 1130;

/// Five hours of nothing on every GPU: every stage is due.
fn due() -> (JobHistory, Finding) {
    let quiet = history(&[vec![at(0); 600]]);
    let found = finding(&quiet);
    (quiet, *found)
}

fn nodes(me: &str) -> Nodes {
    let name = |text: &str| NodeName::new(text).unwrap();
    Nodes::new(["n1", "n2"].map(name).to_vec(), &name(me)).unwrap()
}

fn ago(minutes: i64, deed: Deed, stand: Stand) -> ActionRecord {
    let reason = waste(KEY, Signature::Hung, stand, WallMs(0));
    let at = BootMs(NOW - minutes * MINUTE);
    ActionRecord { at, reason: Some(reason), ..record(minutes, deed, LONG - 1 - minutes, Outcome::Done) }
}

/// Alerted and drained long ago, and what this node wrote since.
fn climbed(votes: &[(i64, Stand)]) -> JobHistory {
    let (mut quiet, found) = due();
    quiet.actions.push(record(1, Deed::Alert, found.since_run.0, Outcome::Done));
    quiet.actions.push(ago(200, Deed::Drain, Stand::Drain));
    quiet.actions.extend(votes.iter().map(|(minutes, stand)| ago(*minutes, Deed::Vote, *stand)));
    quiet.actions.iter_mut().for_each(|a| a.run = a.run.max(found.since_run));
    (1..).zip(&mut quiet.actions).for_each(|(id, a)| a.id = id);
    quiet
}

fn taken(history: &JobHistory, me: &str, wait_ms: i64) -> Step {
    let c = Circumstances { nodes: Ok(nodes(me)), wait_ms, ..circumstances(history, Mode::Enforce, 2000) };
    escalate(&due().1, &rules(), c)
}

#[test]
fn every_node_votes_once_and_only_the_first_goes_on_to_cancel() {
    const FOUR: [(i64, Stand); 4] =
        [(42, Stand::Vote(0)), (32, Stand::Vote(1)), (22, Stand::Vote(2)), (12, Stand::Vote(3))];
    let aged = |minutes: i64| FOUR.map(|(at, stand)| (at + minutes, stand));
    for (me, votes, want) in [
        ("n1", &[][..], "vote 0"),
        ("n2", &[][..], "vote 0"),
        ("n1", &[(5, Stand::Vote(0))][..], "cancel"),
        ("n2", &[(5, Stand::Vote(0))][..], "rest"),
        ("n2", &[(10, Stand::Vote(0))][..], "vote 1"),
        // Its moment comes with that time: were the vote written first, it would never count.
        ("n1", &[(12, Stand::Vote(0))][..], "cancel"),
        ("n1", &[(16, Stand::Vote(0))][..], "vote 1"),
        ("n1", &aged(-2)[1..], "cancel"),
        ("n2", &aged(0)[..], "rest"),
        ("n1", &aged(4)[..], "withheld"),
        ("n2", &aged(4)[..], "withheld"),
        ("n2", &[(9, Stand::Vote(0)), (8, Stand::Drain)][..], "vote 1"),
        ("n2", &[&aged(0)[..], &[(8, Stand::Drain)][..]].concat()[..], "withheld"),
    ] {
        let got = match taken(&climbed(votes), me, 0) {
            Step::Vote(warrant) => match warrant.stand() {
                Stand::Vote(n) => format!("vote {n}"),
                Stand::Drain => "drain".to_owned(),
            },
            Step::Cancel(_) => "cancel".to_owned(),
            Step::Rest => "rest".to_owned(),
            Step::Withheld { .. } => "withheld".to_owned(),
            other => format!("{other:?}"),
        };
        assert_eq!(got, want, "{me} {votes:?}");
    }
}

#[test]
fn a_stage_waits_for_its_nodes_moment_and_a_vote_that_grows_old_does_not() {
    let (mut quiet, found) = due();
    quiet.actions.push(record(1, Deed::Alert, found.since_run.0, Outcome::Done));
    let wait = |step: Step| matches!(step, Step::Later { in_ms: 5, .. });
    assert!(wait(taken(&quiet, "n1", 5)), "drain");
    assert!(wait(taken(&climbed(&[]), "n2", 5)), "vote");
    assert!(wait(taken(&climbed(&[(5, Stand::Vote(0))]), "n1", 5)), "cancel");
    for me in ["n1", "n2"] {
        assert!(matches!(taken(&climbed(&[(10, Stand::Vote(0))]), me, 5), Step::Vote(_)), "{me}");
        assert!(wait(taken(&climbed(&[(16, Stand::Vote(0))]), me, 5)), "none by now: {me}");
    }
}

#[test]
fn nothing_follows_a_drain_before_the_cluster_was_counted_again() {
    let mut quiet = climbed(&[(5, Stand::Vote(0))]);
    assert!(matches!(taken(&quiet, "n1", 0), Step::Cancel(_)));
    quiet.actions[1].counted_again = None;
    assert!(matches!(taken(&quiet, "n1", 0), Step::Withheld { asked: Verdict::Cancel, .. }));
}

#[test]
fn a_drain_that_somebody_lifted_is_made_no_more_and_one_that_we_lifted_is() {
    for (outcome, again) in [(Outcome::Lifted, false), (Outcome::Released, true)] {
        let mut quiet = climbed(&[]);
        quiet.actions[1].outcome = outcome;
        // Of a finding before this one: a hole in the samples, and not work, may lie between.
        quiet.actions[1].run = RunId(1);
        assert_eq!(matches!(taken(&quiet, "n1", 0), Step::Drain(_)), again, "{outcome:?}");
    }
}

#[test]
fn a_node_votes_no_longer_than_it_would_cancel_a_job_of_its_own() {
    let permit = |mode: Mode| mode.permit(&EnforceIn::EVERYWHERE, &due().0.job, &NodeName::nowhere());
    let votes = |change: fn(&mut Finding), mode: Mode| {
        let mut found = due().1;
        change(&mut found);
        would_vote(&Judgement::Breaching(Box::new(found)), &rules(), &permit(mode))
    };
    assert!(votes(|_| {}, Mode::Enforce));
    assert!(!votes(|_| {}, Mode::Observe));
    assert!(!votes(|f| f.scope = Scope::Part, Mode::Enforce), "one of its GPUs works");
    assert!(!votes(|f| f.cap = Verdict::Alert, Mode::Enforce), "the host works");
    assert!(!votes(|f| f.acting_for_ms = 0, Mode::Enforce), "another breach");
    let because = String::new();
    let unjudged = Judgement::Unjudged { guard: Guard::Gap, because };
    assert!(!would_vote(&unjudged, &rules(), &permit(Mode::Enforce)));
}

#[test]
fn a_job_is_warned_in_one_run_and_cancelled_in_a_later_one() {
    let mut warned = rules();
    warned.warn = Some(Warn { signal: "USR1", ahead_ms: 5 * MINUTE });
    let step =
        |history: &JobHistory| escalate(&due().1, &warned, circumstances(history, Mode::Enforce, 2000));
    let mut quiet = climbed(&[]);
    assert!(matches!(step(&quiet), Step::Warn(_)));
    quiet.actions.push(ActionRecord { run: RunId(1990), ..ago(2, Deed::Warn, Stand::Drain) });
    assert!(matches!(step(&quiet), Step::Later { in_ms: 180_000, .. }));
    quiet.actions.last_mut().unwrap().at = BootMs(NOW - 5 * MINUTE);
    assert!(matches!(step(&quiet), Step::Cancel(_)));
    quiet.actions.last_mut().unwrap().outcome = Outcome::Unknown;
    assert!(
        matches!(step(&quiet), Step::Withheld { .. }),
        "never sent twice, and no cancel that was not warned of"
    );
}

#[test]
fn a_permit_is_for_one_job_run_and_as_narrow_as_the_site_says() {
    let (quiet, _) = due();
    let permit = |narrow: EnforceIn| Mode::Enforce.permit(&narrow, &quiet.job, &NodeName::nowhere());
    assert_eq!(permit(EnforceIn::EVERYWHERE).unwrap().job(), quiet.job.id);
    let lists = |partitions: &[&str]| EnforceIn {
        partitions: partitions.iter().map(|p| (*p).to_owned()).collect(),
        ..EnforceIn::EVERYWHERE
    };
    assert!(permit(lists(&["h100"])).is_ok());
    assert!(matches!(permit(lists(&["a100"])), Err(NoPermit::Outside(_))));
    let unknown = EnforceIn { qos: vec!["normal".into()], ..EnforceIn::EVERYWHERE };
    assert!(matches!(permit(unknown), Err(NoPermit::Outside(_))), "a QOS that is not known is in no list");
    assert!(matches!(
        permit(EnforceIn { node_share: 0.0, ..EnforceIn::EVERYWHERE }),
        Err(NoPermit::Outside(_))
    ));
    let other = JobRun { id: JobRunId(77), ..quiet.job.clone() };
    let history = climbed(&[]);
    let stolen = Circumstances {
        permit: Mode::Enforce.permit(&EnforceIn::EVERYWHERE, &other, &NodeName::nowhere()),
        ..circumstances(&history, Mode::Enforce, 2000)
    };
    assert!(matches!(escalate(&due().1, &rules(), stolen), Step::Withheld { .. }));
}

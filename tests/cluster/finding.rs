//! What is found, and what is only said.

use super::lab::lease;
use super::settings::{ENFORCE, OBSERVE};

#[test]
fn of_a_busy_and_a_hung_job_on_one_node_only_the_hung_one_is_found_and_observe_changes_nothing() {
    let Some(node) = lease(&OBSERVE) else { return };
    let (busy, hung) = (node.submit(2), node.submit(2));
    node.show(&[busy.busy(), hung.hung()].concat());
    let before = node.standing();

    node.wait_until("a drain of the hung job's node is due, and withheld", || {
        node.ledger().withheld(hung.id).iter().any(|w| w.verdict == "drain")
    });
    node.nothing_happens(3, &before);
    assert_eq!(node.ledger().findings(busy.id), 0);
    assert_eq!(node.ledger().findings(hung.id), 1);
    assert!(
        node.ledger().actions(hung.id).iter().all(|a| a.verdict == "alert"),
        "{:?}",
        node.ledger().actions(hung.id)
    );
    let (status, text) = node.explain(hung.id);
    assert_eq!(status, 0, "a finding\n{text}");
    let (status, text) = node.explain(busy.id);
    assert_eq!(status, 10, "active\n{text}");
}

#[test]
fn a_hung_job_beside_free_gpus_takes_nothing_from_others() {
    let Some(node) = lease(&ENFORCE) else { return };
    let hung = node.submit(1);
    node.show(&hung.hung());
    let before = node.standing();

    node.wait_until("the drain is withheld", || {
        node.ledger()
            .withheld(hung.id)
            .iter()
            .any(|w| w.verdict == "drain" && w.because.contains("would block"))
    });
    node.nothing_happens(3, &before);
    assert!(node.ledger().actions(hung.id).iter().all(|a| a.verdict == "alert"));
}

#[test]
fn a_job_from_before_the_hooks_is_found_by_what_the_node_itself_shows() {
    let Some(node) = lease(&OBSERVE) else { return };
    node.without_prolog();
    let hung = node.submit(4);
    node.show(&hung.hung());
    let before = node.standing();

    node.wait_until("it is registered", || node.ledger().registration(hung.id).is_some());
    node.wait_until("it is found", || node.ledger().done(hung.id, "alert").is_some());
    node.nothing_happens(1, &before);
    node.cancel(&hung);
    node.wait_until("its Epilog cleared it", || node.ledger().registration(hung.id).is_none());
}

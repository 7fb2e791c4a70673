//! A driver bug or a bad configuration on all nodes at once must not be able to drain a cluster. Shown on a simulated
//! one: the real rules, deeds and ledgers of 10 to 10,000 nodes against a stand-in of slurmctld in which every read of
//! a tick is answered before any write of that tick: the worst order of events that there is.
//!
//! Prints its tables with `--nocapture`. The usual run has 10 to 1,000 nodes; all stories on 1,000, and on 10,000 those
//! that a limit is for, take minutes and an optimised build:
//!
//! ```text
//! cargo test --release --test fleet -- --ignored --nocapture
//! ```
//!
//! Bounds, of a tick of a minute, a spread of ten and a cap of a tenth. A look costs slurmctld 5 RPCs: the brake, the
//! job, all nodes (two), and the node once more. A drain costs 3 more, 2 to count again, 5 to withdraw or lift it; of a drained node's job
//! it is asked four times in the first hour. A node has seven slots an hour at most and four deeds, so it causes
//! [`NODE_HOUR`] RPCs an hour at most. The cap is overshot by no more than drained in one tick, and for one tick.

mod faulty;
mod finding;
mod fleet;
mod node;
mod slurmctld;
mod table;

use fleet::{Story, Told, play};

const DRAIN: &str = "
mode: enforce
stages: [{ after: 0m, verdict: alert }, { after: 60m, verdict: drain }]
";
const CANCEL: &str = "
mode: enforce
stages: [{ after: 0m, verdict: alert }, { after: 60m, verdict: drain }, { after: 4h, verdict: cancel }]
";
const AT_ONCE: &str = "
mode: enforce
stages: [{ after: 0m, verdict: alert }, { after: 60m, verdict: drain }]
limits: { spread: 0s }
";
const CANCEL_AT_ONCE: &str = "
mode: enforce
stages: [{ after: 0m, verdict: alert }, { after: 60m, verdict: drain }, { after: 4h, verdict: cancel }]
limits: { spread: 0s }
";

/// RPCs that one node may cause within an hour: seven slots, four deeds with all that follows them, six questions.
const NODE_HOUR: u32 = 7 * 5 + 4 * (3 + 2 + 5) + 6;

/// Every node has a finding at the same tick; an hour later a drain is due. What a driver bug looks like.
const EVERYWHERE: Story = Story {
    name: "finding everywhere",
    one_in: 1,
    job_nodes: 1,
    found: 0,
    enforced: 0,
    let_go: 0,
    back: 0,
    ticks: 240,
    yaml: DRAIN,
    skips: true,
};
const HEALTHY: Story = Story { name: "healthy", one_in: 0, ..EVERYWHERE };
const ONE_PERCENT: Story = Story { name: "1 % with findings", one_in: 100, ..EVERYWHERE };
const ENFORCED: Story =
    Story { name: "enforce switched on, drains due", found: -60, enforced: 20, ticks: 110, ..EVERYWHERE };
const LET_GO: Story =
    Story { name: "brake let go, drains due", found: -60, let_go: 20, ticks: 110, ..EVERYWHERE };
const BACK: Story = Story {
    name: "slurmctld back after 30 min, cancels due",
    found: -600,
    back: 30,
    ticks: 210,
    yaml: CANCEL,
    ..EVERYWHERE
};
const OF_FOUR: Story = Story { name: "everywhere, jobs of 4 nodes", job_nodes: 4, ticks: 150, ..EVERYWHERE };
const FEW_OF_FOUR: Story = Story {
    name: "1 % of jobs of 4 nodes, cancels due",
    one_in: 100,
    job_nodes: 4,
    found: -600,
    ticks: 120,
    yaml: CANCEL,
    ..EVERYWHERE
};
const WITHOUT_SPREAD: Story =
    Story { name: "everywhere, `spread: 0s`", yaml: AT_ONCE, ticks: 100, ..EVERYWHERE };
const ALL_DUE: Story = Story {
    name: "enforce switched on, `spread: 0s`, cancels due",
    found: -600,
    yaml: CANCEL_AT_ONCE,
    ..ENFORCED
};

/// Plays a story on clusters of these sizes, prints what it brought, and holds it to what every story promises.
fn on(story: &Story, sizes: &[usize]) -> Vec<Told> {
    let told: Vec<Told> = sizes.iter().map(|nodes| play(story, *nodes)).collect();
    println!("{}", table::of(story.name, &told));
    for t in &told {
        let of = format!("{} on {} nodes", story.name, t.nodes);
        keeps_the_cap(&of, t);
        // A question of every node at once when all find something; later a tick's share of the nodes looks and acts.
        let most = if story.yaml.contains("spread: 0s") { 11 * t.nodes } else { t.nodes * 17 / 10 + 20 };
        assert!(t.most(Told::rpcs) <= most, "{of}: {} RPCs a minute", t.most(Told::rpcs));
    }
    told
}

fn keeps_the_cap(of: &str, t: &Told) {
    assert!(t.standing() <= t.cap, "{of}: {} stand", t.standing());
    assert!(t.ticks_over() <= 1, "{of}: over the cap for {} ticks", t.ticks_over());
    assert!(t.overshoot() <= t.most(|m| m.drained), "{of}: overshot by {}", t.overshoot());
    assert!(t.node_hour <= NODE_HOUR, "{of}: {} RPCs of one node", t.node_hour);
}

#[test]
fn a_healthy_fleet_asks_nothing() {
    assert!(fleet::healthy_asks_nothing());
    for t in on(&HEALTHY, &[10, 100, 1000]) {
        assert_eq!(t.sum(Told::rpcs), 0);
    }
}

#[test]
fn few_findings_are_all_acted_on() {
    for t in on(&ONE_PERCENT, &[10, 100, 1000]) {
        assert_eq!(t.standing(), t.nodes.div_ceil(100));
    }
}

#[test]
fn a_finding_everywhere_drains_the_cap_and_no_more() {
    // Until a cluster of 1,000 is steady: its slots come round twice.
    let short = Story { ticks: 80, ..EVERYWHERE };
    for t in on(&EVERYWHERE, &[10, 100]).iter().chain(&on(&short, &[1000])) {
        assert_eq!(t.standing(), t.cap);
    }
}

#[test]
fn a_fault_everywhere_shares_the_cap_with_drains_for_jobs() {
    let told = [10, 100, 300].map(faulty::play);
    println!("{}", table::of("fault everywhere, half the cap taken by jobs", &told));
    for t in &told {
        keeps_the_cap(&format!("a fault on {} nodes", t.nodes), t);
        let for_faults = t.sum(|m| m.drained) - t.sum(|m| m.withdrew);
        assert_eq!((t.standing(), for_faults), (t.cap, t.cap - t.cap / 2));
    }
}

#[test]
fn switched_on_let_go_or_back_all_at_once_is_no_worse() {
    for story in [ENFORCED, LET_GO] {
        on(&story, &[10, 100]);
    }
}

#[test]
fn jobs_of_several_nodes_stay_below_the_cap_too() {
    on(&OF_FOUR, &[10, 100]);
}

#[test]
fn jobs_of_several_nodes_are_cancelled_once_each_by_the_votes_of_all() {
    for t in on(&FEW_OF_FOUR, &[40, 1000]) {
        assert_eq!((t.sum(|m| m.cancelled), t.standing()), (t.nodes.div_ceil(400), 0));
    }
}

#[test]
fn without_a_spread_the_cap_holds_from_the_next_tick_on() {
    for t in on(&WITHOUT_SPREAD, &[10, 100]) {
        assert_eq!((t.most(|m| m.standing), t.standing()), (t.nodes, t.cap));
    }
}

#[test]
fn what_is_everywhere_at_once_ends_no_job() {
    for story in [BACK, ALL_DUE] {
        for t in on(&story, &[40, 100]) {
            assert_eq!((t.standing(), t.sum(|m| m.cancelled)), (t.cap, 0), "{}", story.name);
        }
    }
}

#[test]
fn a_run_that_the_fleet_skips_would_have_done_nothing() {
    let story = Story { ticks: 90, ..EVERYWHERE };
    let every_run = Story { skips: false, ..story };
    let minutes =
        |story: &Story| play(story, 10).minutes.iter().map(|m| format!("{m:?}")).collect::<Vec<_>>();
    assert_eq!(minutes(&story), minutes(&every_run));
}

#[test]
#[ignore = "minutes; see the file's head"]
fn a_thousand_nodes_in_every_story() {
    for story in [EVERYWHERE, ENFORCED, LET_GO, BACK, ALL_DUE, OF_FOUR, FEW_OF_FOUR, WITHOUT_SPREAD] {
        on(&story, &[1000]);
    }
}

#[test]
#[ignore = "minutes; see the file's head"]
fn ten_thousand_nodes() {
    for story in [HEALTHY, ONE_PERCENT, EVERYWHERE, BACK] {
        on(&story, &[10_000]);
    }
}

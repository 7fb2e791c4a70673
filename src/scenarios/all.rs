//! The scenario files, in the binary: `scenarios` and `demo` need nothing beside it. A test holds this list and
//! the folder together.

use super::Named;

macro_rules! scenarios {
    ($($name:literal),* $(,)?) => {
        /// Every scenario, by name.
        pub const ALL: &[Named] = &[$(Named {
            name: $name,
            text: include_str!(concat!("../../fixtures/scenarios/", $name, "/scenario.yaml")),
        },)*];
    };
}

scenarios![
    "a-cancel-without-a-drain-stage-is-withheld",
    "a-card-at-a-fifth-of-its-clock-is-the-nodes-trouble",
    "a-card-that-drops-out-renumbers-nobody",
    "a-checkpoint-save-of-fifteen-minutes-is-no-hang",
    "a-completing-job-is-the-nodes-trouble",
    "a-component-and-an-array-task-are-each-their-own-job",
    "a-cpu-phase-is-not-a-hang",
    "a-deadlocked-collective-spins-on-some-cards-and-stands-still-on-others",
    "a-driver-upgrade-under-a-running-job-is-a-gap",
    "a-failed-epilog-heals-by-itself",
    "a-gpu-that-needs-a-reset-is-not-an-idle-one",
    "a-gpu-with-two-holders-is-nobodys",
    "a-holder-with-an-unknown-card-still-holds-the-others",
    "a-hole-in-the-samples-begins-a-new-window",
    "a-hole-longer-than-a-window-is-never-proven-idle",
    "a-hole-that-energy-proves-idle-only-stops-the-clock",
    "a-job-at-work-with-little-memory-is-no-finding",
    "a-job-never-active-is-only-alerted-on",
    "a-job-on-two-nodes-is-never-acted-on-alone",
    "a-job-that-no-prolog-saw-is-found-late",
    "a-job-without-any-process-is-idle-by-its-registration",
    "a-latched-utilization-without-a-process-proves-nothing",
    "a-leftover-reason-of-ours-is-no-obstacle",
    "a-node-with-a-card-out-of-sight-is-not-wholly-a-jobs",
    "a-pause-after-hours-of-little-compute-is-still-starved",
    "a-portal-session-is-exempt-by-name-but-only-a-small-one",
    "a-rank-that-busy-waits-through-a-checkpoint-is-no-hang",
    "a-reason-by-somebody-else-is-not-overwritten",
    "a-refused-drain-does-not-advance-the-ladder",
    "a-requeued-job-is-a-new-run",
    "a-silent-controller-stops-every-deed",
    "a-slow-start-of-an-hour-is-alerted-on-and-forgiven",
    "a-slower-interval-is-judged-by-its-own-steps",
    "a-starved-job-is-only-ever-alerted-on",
    "a-suspended-job-is-not-idle",
    "alert-then-drain-then-cancel-in-three-runs",
    "an-administrators-drain-stays-as-it-is",
    "an-exempt-user-is-spared",
    "bursts-between-slow-runs-are-seen-by-their-energy",
    "energy-between-the-runs-was-work",
    "full-utilization-whose-power-rises-is-slow-progress",
    "hours-of-another-look-do-not-count-for-a-drain",
    "memory-that-cannot-be-read-leaves-the-rest-judged",
    "mig-without-utilization-is-not-idle",
    "observe-never-drains",
    "one-busy-sample-clears-the-window",
    "one-lost-gpu-leaves-seven-judged",
    "one-unused-gpu-of-eight-is-a-note-not-a-kill",
    "our-drain-is-released-when-the-job-has-gone",
    "processes-that-cannot-be-listed-block-idle",
    "rollouts-of-27-minutes-without-compute-are-no-hang",
    "slow-runs-with-an-energy-counter-find-the-empty-job",
    "slow-runs-without-gap-free-evidence-judge-nothing",
    "slurms-word-that-a-job-is-suspended-stays-in-its-history",
    "stale-samples-judge-nothing",
    "ten-minutes-of-work-in-every-hour-never-add-up",
    "the-brake-stops-every-node",
    "two-jobs-that-share-a-gpu-for-good-ask-nobody",
    "wrong-minors-would-judge-the-wrong-card",
    "young-jobs-are-left-alone",
];

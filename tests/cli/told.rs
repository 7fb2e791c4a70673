//! Whole stories, on a clock of their own: which messages people get, in which order, and which they do not.

use crate::alerts::site_program;
use crate::webhook::{Answer, WebHook};
use crate::*;
use gpu_reaper_hc::scenarios::file::Scenario;
use gpu_reaper_hc::scenarios::stage::Stage;
use serde_json::Value;

/// Two hours at work, then nothing for 98 minutes, then work again.
const QUIET_THEN_WORK: &str = "
samples:
  - { from: -220m, to: -101m, every: 45s, util: 97%, memctl: 40%, memory: 61GiB, processes: 2, power: 620W }
  - { from: -100m, to: -2m, every: 45s, util: 0%, memory: 61GiB, processes: 2, power: 120W }
  - { from: -1m, to: 1m, every: 1m, util: 97%, memctl: 40%, memory: 61GiB, processes: 2, power: 620W }
";
/// Quiet for just a window.
const QUIET: &str = "
samples:
  - { from: -130m, to: -31m, every: 1m, util: 97%, memctl: 40%, memory: 61GiB, processes: 2, power: 620W }
  - { from: -30m30s, to: 12m, every: 45s, util: 0%, memory: 61GiB, processes: 2, power: 118W }
";
const HOSTILE: &str = "debug-<!channel> <https://evil.example|click> &<> `*x*` @here";

/// Plays a story on node n1 to its end; `after` is told after each run of it.
fn play(config: &str, job: &str, samples: &str, mut after: impl FnMut(i64)) -> String {
    let text = format!(
        "about: x\nconfig: {{ {config} }}\nnode: {{ gpus: 2 }}\njobs: [{{ id: 4242, gpus: 2, {job} }}]\nexpect: []\n{samples}"
    );
    let scenario = Scenario::parse(&text).unwrap();
    let mut stage = Stage::set(&scenario).unwrap();
    for at_ms in scenario.runs() {
        stage.run_at(at_ms).unwrap();
        after(at_ms);
    }
    let folder = stage.place().dir.ancestors().nth(2).unwrap();
    fs::read_to_string(folder.join("cluster/calls")).unwrap_or_default()
}

/// The configuration of a hook, as a flow mapping has it.
fn slack(hook: &WebHook, more: &str) -> String {
    let (file, ca_file) = (hook.file(), hook.ca_file());
    format!("slack: {{ webhook_file: {}, ca_file: {}{more} }}", file.display(), ca_file.display())
}

/// The first lines.
fn heads(hook: &WebHook) -> Vec<String> {
    hook.heard().iter().map(|text| text.lines().next().unwrap().to_owned()).collect()
}

#[test]
fn a_finding_is_told_once_a_stage_and_so_is_its_end() {
    let (hook, folder) = (WebHook::new(), tempfile::tempdir_in("/var/tmp").unwrap());
    let told = folder.path().join("told");
    let program =
        site_program(folder.path(), &format!("#!/bin/sh\n{{ cat; echo; }} >> {}\n", told.display()));
    let config = format!("{}, notify: {{ exec: [{}] }}", slack(&hook, ""), program.display());
    let calls = play(&config, "started: -220m", QUIET_THEN_WORK, |_| {});
    assert!(!calls.contains("notify"), "{calls}");
    let texts = hook.heard();
    assert_eq!(texts.len(), 3, "{texts:#?}");
    let of = "job `4242` of user `ada`, partition `h100`, node `n1`";
    assert!(
        texts[0].starts_with(&format!("*Alert*: {of}, GPU 0,1\nhung on GPU 0,1 (whole): ")),
        "{}",
        texts[0]
    );
    let due = "Next: a drain falls due in 1 h (2026-11-29T11:50:00Z) at the earliest, if it goes on; mode is observe, \
               so it will be withheld.";
    assert!(texts[0].contains("\nSince 2026-11-29T10:20:00Z.\n") && texts[0].contains(due), "{}", texts[0]);
    assert!(
        texts[0]
            .contains("Why: `gpu-reaper-hc --explain 4242` on `n1`. To spare the job: `gpu-reaper-hc keep")
    );
    assert!(texts[1].starts_with(&format!("*Drain withheld*: {of}")), "{}", texts[1]);
    assert!(texts[1].contains("Not done: mode is observe"), "{}", texts[1]);
    assert!(texts[2].starts_with(&format!("*Over*: {of}\nalive: ")), "{}", texts[2]);
    let events: Vec<Value> =
        fs::read_to_string(&told).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let words: Vec<_> =
        events.iter().map(|e| (e["event"].as_str().unwrap(), e["verdict"].as_str().unwrap())).collect();
    assert_eq!(words, [("finding", "alert"), ("withheld", "drain"), ("recovered", "alert")]);
    let alert = &events[0];
    assert_eq!(
        (&alert["schema"], &alert["job"]["id"], &alert["mode"]),
        (&1.into(), &4242.into(), &"observe".into())
    );
    assert_eq!((&alert["finding"]["signature"], &alert["next"]["in_s"]), (&"hung".into(), &3600.into()));
    assert_eq!((&alert["job"]["name"], &events[1]["guard"]), (&Value::Null, &"observe".into()));
    println!("{}\n{}", texts.join("\n\n"), serde_json::to_string_pretty(alert).unwrap());
}

#[test]
fn deeds_are_told_and_a_jobs_name_is_no_markup_wherever_it_is_told() {
    // google/cybernetic-agent-governance-engine#26, 8398a7/action-slack#158 (AL-06)
    let hook = WebHook::new();
    let config = format!(
        "mode: enforce, act: {{ notify_job: true }}, limits: {{ spread: 0s }}, \
         exemptions: {{ name_pattern: '^spare-' }}, stages: [{{ after: 0m, verdict: alert }}, \
         {{ after: 0m, verdict: drain }}, {{ after: 0m, verdict: cancel }}], {}",
        slack(&hook, "")
    );
    let job = format!("started: -130m, ended: 5m, name: '{HOSTILE}'");
    let calls = play(&config, &job, QUIET, |_| {});
    let mut heads = heads(&hook);
    // What the story leaves on its GPUs is nobody's any more, and holds the drain.
    heads.retain(|head| !head.starts_with("*Drain stays*"));
    let name =
        "`debug-&lt;!channel&gt; &lt;https: //evil.example|click&gt; &amp;&lt;&gt; '*x*' \u{ff20}here`";
    let starts = ["*Alert*", "*Node drained*", "*Job cancelled*"];
    assert_eq!(heads.len(), 3, "who was told of the cancel is not told that it is over: {heads:#?}");
    for (head, start) in heads.iter().zip(starts) {
        assert!(head.starts_with(&format!("{start}: job `4242` ({name}) of user `ada`")), "{head}");
    }
    assert!(hook.heard().iter().all(|text| !text.contains(['<', '>', '@'])));
    let notices: Vec<&str> = calls.lines().filter(|call| call.starts_with("scontrol notify ")).collect();
    let of = "scontrol notify 4242 gpu-reaper: job 4242: hung on GPU 0,1 of node n1 for ";
    assert_eq!(notices.len(), 3, "{notices:?}");
    assert!(
        notices[0].starts_with(of) && notices[0].ends_with("; ask: gpu-reaper-hc --explain 4242"),
        "{notices:?}"
    );
    assert!(notices[1].starts_with(of) && notices[1].contains("; the node is drained, this job goes on; "));
    assert!(notices[2].starts_with("scontrol notify 4242 gpu-reaper: cancelling 2026-"), "{notices:?}");
    let last = calls.lines().position(|call| call == notices[2]).unwrap();
    assert!(
        calls.lines().nth(last + 1).is_some_and(|call| !call.starts_with("scancel")),
        "one more look: {calls}"
    );
}

#[test]
fn the_second_node_of_a_job_tells_nobody() {
    let hook = WebHook::new();
    let config = format!("act: {{ notify_job: true }}, {}", slack(&hook, ""));
    let job = "started: -130m, nodes: 2, node_list: 'n[0-1]'";
    let calls = play(&config, job, QUIET, |_| {});
    assert!(hook.heard().is_empty() && !calls.contains("notify"), "{:?} {calls}", hook.heard());
    let calls = play(&config, "started: -130m, nodes: 2, node_list: 'n[1-2]'", QUIET, |_| {});
    assert!(hook.heard().len() == 1 && hook.heard()[0].contains("node `n1`, the first of its 2"));
    assert_eq!(calls.matches("scontrol notify").count(), 1, "{calls}");
}

#[test]
fn what_is_milder_than_the_site_wants_is_not_told_and_nobody_hears_of_its_end() {
    let hook = WebHook::new();
    let job = "started: -130m, ended: 5m";
    play(&slack(&hook, ", min_verdict: drain"), job, QUIET, |_| {});
    assert_eq!(hook.heard(), Vec::<String>::new());
    play(&slack(&hook, ""), job, QUIET, |_| {});
    assert!(
        heads(&hook)[0].starts_with("*Alert*") && heads(&hook)[1].starts_with("*Over*"),
        "{:?}",
        heads(&hook)
    );
    assert!(hook.heard()[1].contains("\nthe job has ended\n"), "the Epilog's word, sent by the run after it");
}

#[test]
fn a_message_that_was_not_taken_comes_before_the_one_after_it() {
    // YelpArchive/elastalert#1345 (AL-01), Uninett/nav#2170 (AL-04)
    let hook = WebHook::new();
    let wait = || Answer::Says("429 Too Many Requests", "Retry-After: 240\r\n".to_owned(), "");
    hook.answers([wait(), Answer::Says("500 Internal Server Error", String::new(), "")]);
    let mut attempts = Vec::new();
    play(&slack(&hook, ""), "started: -130m, ended: 2m", QUIET, |at_ms| {
        attempts.push((at_ms, hook.heard().len()));
    });
    attempts.dedup_by_key(|(_, n)| *n);
    let at: Vec<i64> = attempts.iter().skip(1).map(|(at_ms, _)| at_ms / 1000).collect();
    let steps: Vec<i64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(steps[0] >= 240 && steps[0] < 300 && steps[1] >= 120 && steps[1] < 180, "{at:?}");
    let told: Vec<String> = heads(&hook).iter().map(|head| head[..7].to_owned()).collect();
    assert_eq!(told, ["*Alert*", "*Alert*", "*Alert*", "*Over*:"], "its end waits for its beginning");
}

#[test]
fn a_drain_that_nobody_but_a_person_will_lift_is_told() {
    let hook = WebHook::new();
    let config = format!(
        "mode: enforce, act: {{ release: never }}, limits: {{ spread: 0s }}, \
         stages: [{{ after: 0m, verdict: alert }}, {{ after: 0m, verdict: drain }}], {}",
        slack(&hook, ", min_verdict: drain")
    );
    play(&config, "started: -130m, ended: 5m", QUIET, |_| {});
    let heads = heads(&hook);
    assert!(heads.contains(&"*Drain stays*: node `n1`".to_owned()), "{heads:?}");
    let text = hook.heard().into_iter().find(|text| text.starts_with("*Drain stays*")).unwrap();
    assert!(text.ends_with("To lift it: `gpu-reaper-hc release` on `n1`"), "{text}");
}

#[test]
fn who_was_told_of_a_drain_is_told_that_it_is_lifted() {
    let story = "
samples:
  - { from: -130m, to: -31m, every: 1m, util: 97%, memctl: 40%, memory: 61GiB, processes: 2, power: 620W }
  - { from: -30m30s, to: 3m, every: 45s, util: 0%, memory: 61GiB, processes: 2, power: 118W }
  - { from: 4m, to: 9m, every: 1m, util: 97%, memctl: 40%, memory: 61GiB, processes: 2, power: 620W }
";
    let hook = WebHook::new();
    let config = |verdict: &str| {
        format!(
            "mode: enforce, limits: {{ spread: 0s }}, stages: [{{ after: 0m, verdict: alert }}, \
             {{ after: 0m, verdict: drain }}], {}",
            slack(&hook, verdict)
        )
    };
    play(&config(""), "started: -130m", story, |_| {});
    let starts: Vec<String> =
        heads(&hook).iter().map(|head| head.split(':').next().unwrap().to_owned()).collect();
    assert_eq!(starts, ["*Alert*", "*Node drained*", "*Over*", "*Drain lifted*"]);
    let text = hook.heard().pop().unwrap();
    assert!(text.contains("our drain for job 4242 is lifted: ") && text.contains(" on `n1`"), "{text}");
    play(&config(", min_verdict: cancel"), "started: -130m", story, |_| {});
    assert_eq!(hook.heard().len(), 4, "who was told of nothing is told of nothing");
}

#[test]
fn faults_of_the_node_are_told_where_the_site_wants_that_and_not_by_all_nodes_at_once() {
    let story = "
samples:
  - { from: -60m, to: 0, every: 1m, util: 97%, memctl: 40%, memory: 61GiB, processes: 2, power: 620W }
  - { from: -50m, to: -30m, gpus: [1], lost: true }
";
    let hook = WebHook::new();
    play(&slack(&hook, ""), "started: -60m", story, |_| {});
    assert_eq!(hook.heard(), Vec::<String>::new());
    let mut first = None;
    let config = format!("notify: {{ node_faults: true }}, {}", slack(&hook, ""));
    play(&config, "started: -60m", story, |at_ms| {
        if first.is_none() && !hook.heard().is_empty() {
            first = Some(at_ms / 60_000);
        }
    });
    let heads = heads(&hook);
    assert!(heads[0].starts_with("*Node fault*: gpu-lost on node `n1`"), "{heads:?}");
    assert!(heads.last().unwrap().starts_with("*Node fault over*: gpu-lost on node `n1`"), "{heads:?}");
    let spread = i64::from(gpu_reaper_hc::units::hash("n1")) % 600_000 / 60_000;
    assert!((-51..=-48).contains(&(first.unwrap() - spread)), "{first:?}, {spread} m later than the fault");
    assert!(hook.heard()[0].contains("Why: `gpu-reaper-hc ack` on `n1`"), "{:?}", hook.heard());
}

//! `status`: the node on one screen, from the ledger alone; what `--explain` says of a job is what it says; GPUs that
//! nobody holds are given away only after three looks; and nothing is written or asked.

use crate::cases::state;
use crate::fake_nvml;
use crate::ladder::{SECONDS, run_until};
use crate::slurm::{Cluster, START_S};
use crate::*;
use serde_json::Value;
use std::fmt::Write;

const HOSTILE: &str = "a\n2026-11-29 cancelled by root\r\u{1b}[2J\u{9b}31m\u{202e}b";

/// What one GPU shows, by its number for NVML.
#[derive(Clone, Copy)]
enum Shows {
    /// Memory and a process, no compute.
    Quiet,
    /// Nothing.
    Empty,
    /// A process of nobody's.
    Leak,
    /// Work.
    Busy,
    /// As quiet, and how busy cannot be read.
    Blind,
}

/// So many GPUs; `/dev/nvidiaN` is the N-th from the end.
fn cards(all: &[Shows]) -> String {
    let node = fake_nvml::node(all.len() as u64);
    let (head, gpus) = node.split_once("gpu 0").unwrap();
    let mut played = head.to_owned();
    for (index, gpu) in format!(" 0{gpus}").split("gpu ").map(str::trim).enumerate() {
        let lists = |line: &&str| line.trim().starts_with("proc ");
        let lines: Vec<&str> = gpu.lines().filter(|line| !lists(line)).collect();
        let quiet = "nvmlDeviceGetUtilizationRates = 0 0\nsample 1 = 100000:0 9900000:0\nsample 2 = 100000:0 9900000:0\n\
                     nvmlDeviceGetPowerUsage = 92000\nnvmlDeviceGetTotalEnergyConsumption ! 3\n";
        let memory =
            |used: u64| format!("nvmlDeviceGetMemoryInfo_v2 = {} {used} 0\n", fake_nvml::TOTAL_BYTES);
        let held = |pid: u32| format!("{}proc compute = {pid} 1073741824\n", memory(61 << 30));
        let own = match all[index] {
            Shows::Quiet => quiet.to_owned() + &held(std::process::id()),
            Shows::Empty => quiet.to_owned() + &memory(4 << 20),
            Shows::Leak => quiet.to_owned() + &held(fake_nvml::INIT),
            Shows::Busy => format!("nvmlDeviceGetUtilizationRates = 97 40\n{}", held(std::process::id())),
            Shows::Blind => format!("{quiet}nvmlDeviceGetUtilizationRates ! 3\n{}", held(std::process::id())),
        };
        write!(played, "gpu {}\n{own}", lines.join("\n")).unwrap();
    }
    played
}

/// A node of such cards, under a law whose times are seconds.
fn site(config: &str, all: &[Shows]) -> Cluster {
    let cluster = Cluster::new(config);
    cluster.show(&cards(all));
    let files = format!("AutoDetect=off\nName=gpu File=/dev/nvidia[0-{}]\n", all.len() - 1);
    fs::write(cluster.node.path("etc/gres.conf"), files).unwrap();
    cluster
}

fn observing() -> String {
    SECONDS.replace("mode: enforce", "mode: observe")
}

fn text(node: &Node) -> String {
    let said = node.call(&["status"]);
    assert_eq!((said.status, said.err.as_str()), (Some(0), ""), "{said:?}");
    said.out
}

fn json(node: &Node) -> Value {
    let said = node.call(&["status", "--json"]);
    assert_eq!((said.status, said.err.as_str()), (Some(0), ""), "{said:?}");
    let page: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&page["schema"], &page["node"]), (&1.into(), &"n1".into()));
    page
}

fn run(cluster: &Cluster) {
    let run = cluster.node.health_check();
    assert_eq!(run.status, Some(0), "{run:?}");
}

/// The line of a GPU.
fn line(page: &str, index: &str) -> String {
    let of_it = |line: &&str| line.starts_with(&format!("{index}  "));
    page.lines().find(of_it).unwrap_or_else(|| panic!("GPU {index}: {page}")).to_owned()
}

#[test]
fn status_says_of_a_job_what_explain_says_and_writes_and_asks_nothing() {
    use Shows::*;
    let cluster = site(&observing(), &[Empty, Leak, Quiet]);
    cluster.job(4242, "4240_2", "train");
    assert_eq!(cluster.prolog(4242, &[("SLURM_JOB_USER", HOSTILE)]).err, "");
    run_until(&cluster, "alert");
    run(&cluster);
    let (before, calls) = (state(&cluster.node), cluster.calls().len());
    let page = json(&cluster.node);
    let text = text(&cluster.node);
    assert_eq!(
        (state(&cluster.node), cluster.calls().len()),
        (before, calls),
        "read only, Slurm is not asked"
    );

    let told = cluster.node.call(&["explain", "4242", "--json"]);
    let told: Value = serde_json::from_str(&told.out).unwrap();
    let job = &page["jobs"][0];
    for name in ["judgement", "guard", "because", "signature", "scope", "since", "done", "withheld"] {
        assert_eq!(job[name], told[name], "{name}");
    }
    assert_eq!((&job["job"], &job["signature"]), (&"4240_2".into(), &"hung".into()));
    assert!(job["certified_gpu_hours"].as_f64() > Some(0.0) && job["user"]["value"] == HOSTILE, "{job}");

    let gpus = page["gpus"].as_array().unwrap();
    assert_eq!(gpus.iter().map(|gpu| &gpu["held"]).collect::<Vec<_>>(), ["nobody", "nobody", "job"]);
    assert_eq!((&gpus[2]["jobs"][0], &gpus[2]["verdict"]), (&"4240_2".into(), &"hung".into()));
    assert_eq!(gpus[0]["free"]["state"], "reclaimable");
    assert_eq!((&gpus[1]["free"]["state"], &gpus[1]["free"]["pids"][0]), (&"in_use".into(), &1.into()));
    assert_eq!(gpus[0]["uuid"], "GPU-00000000-1111-2222-3333-444444444444");
    assert_eq!(gpus[2]["utilization_pct"]["value"], 0);

    // meziantou/Meziantou.Framework#2899, rust-lang/log#611 (LG-05): perfect fake entries, cleared terminals.
    assert!(text.bytes().all(|b| b == b'\n' || (0x20..0x7f).contains(&b)), "{text}");
    assert!(text.contains("a\\n2026-11-29 cancelled"), "{text}");
    assert!(line(&text, "0").ends_with("reclaimable: empty in 3 looks"), "{text}");
    assert!(line(&text, "1").ends_with("free, but held by pid 1 (leak?)"), "{text}");
    assert!(text.contains("job 4240_2 ") && text.contains("  withheld drain: "), "{text}");
    let hours = "GPU-hours  wasted 0.0 (hung 0.0), blocked by our own drains 0.0: certified since 20";
    assert!(text.replace("\n           ", " ").contains(hours), "{text}");
}

#[test]
fn a_gpu_of_nobody_is_given_away_after_three_empty_looks_and_what_is_not_readable_is_not() {
    use Shows::*;
    let cluster = site(&observing(), &[Empty, Busy, Blind]);
    let said = |index: &str| line(&text(&cluster.node), index);
    for looks in ["1", "2"] {
        run(&cluster);
        assert!(said("0").ends_with(&format!("free, empty in {looks} of 3 looks")), "{}", said("0"));
    }
    run(&cluster);
    assert!(said("0").ends_with("reclaimable: empty in 3 looks"), "{}", said("0"));
    cluster.show(&cards(&[Blind, Empty, Leak]));
    run(&cluster);
    let page = text(&cluster.node);
    assert!(line(&page, "1").ends_with("free, empty in 1 of 3 looks"), "{page}");
    assert!(line(&page, "0").contains("  -  ") && line(&page, "2").contains("(leak?)"), "{page}");
    let why = "not readable (not supported by this GPU or driver): utilization of GPU 0";
    assert!(page.replace("\n           ", " ").contains(why), "{page}");
    let gpu = &json(&cluster.node)["gpus"][0];
    assert_eq!(
        (&gpu["utilization_pct"]["value"], &gpu["utilization_pct"]["absent"]),
        (&Value::Null, &"not_supported".into())
    );

    // A job that is given it takes it from the list, and one whose GPU cannot be told makes every free one doubtful.
    cluster.job(7, "7", "train");
    assert_eq!(cluster.prolog(7, &[]).err, "");
    assert!(said("2").contains("7 ada: "), "{}", said("2"));
    cluster.job(8, "8", "train");
    assert_eq!(cluster.prolog(8, &[("SLURM_JOB_GPUS", "9")]).err, "");
    assert!(said("1").ends_with("may be held by 8: not known"), "{}", said("1"));
}

#[test]
fn what_is_old_is_told_as_old_and_gives_no_gpu_away() {
    let cluster = site(&observing(), &[Shows::Empty]);
    for _ in 0..3 {
        run(&cluster);
    }
    assert!(text(&cluster.node).contains("reclaimable"));
    cluster.change("UPDATE run SET boottime_ms = boottime_ms - 7200000");
    let page = text(&cluster.node);
    assert!(page.contains("last run   2 h ago,") && page.contains("no run came since"), "{page}");
    assert!(line(&page, "0").ends_with("free, last seen 2 h ago"), "{page}");
    let page = json(&cluster.node);
    assert_eq!((&page["stale"], &page["gpus"][0]["free"]["state"]), (&true.into(), &"not_known".into()));
    assert_eq!(page["gpu_hours"]["wasted_certified_standing"], Value::Null, "what stands is not known");
    cluster.change("UPDATE boot SET boot_id = 'an earlier one'");
    let page = text(&cluster.node);
    assert!(page.contains("last run   none since this node booted; the last one was 20"), "{page}");
}

#[test]
fn eight_gpus_and_three_jobs_are_one_screen() {
    use Shows::*;
    let cluster = site(&observing(), &[Empty, Leak, Busy, Busy, Quiet, Quiet, Quiet, Quiet]);
    for (id, gpus) in [(4242, "0,1,2,3"), (4243, "4"), (4244, "5")] {
        cluster.job(id, &id.to_string(), "train");
        assert_eq!(cluster.prolog(id, &[("SLURM_JOB_GPUS", gpus)]).err, "");
    }
    run_until(&cluster, "alert");
    let page = text(&cluster.node);
    assert!(page.lines().count() <= 30, "{page}");
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    for index in 4..8 {
        let at = line(&page, &index.to_string());
        assert!(
            at.contains("GPU-0000000") && at.contains("61.0 GiB") && at.contains("4242 ada: hung "),
            "{page}"
        );
    }
    assert!(line(&page, "3").contains("97 %") && line(&page, "3").contains("4243 ada: alive"), "{page}");
}

#[test]
fn a_drain_of_ours_is_shown_with_what_it_blocks_and_why_it_stays() {
    use Shows::*;
    let shared = format!("{SECONDS}act: {{ drain_shared: true }}\n");
    let cluster = site(&shared, &[Empty, Quiet]);
    cluster.job(4242, "4242", "train");
    assert_eq!(cluster.prolog(4242, &[]).err, "");
    run_until(&cluster, "drain");
    let reason = cluster.read("node.reason");
    let page = text(&cluster.node);
    let flat = page.replace("\n           ", " ");
    assert!(
        flat.contains("our drain  for job 4242 since 20") && flat.contains(&format!("  reason   {reason}")),
        "{page}"
    );
    let why = ": blocks 1 free GPU of 2; it stays: its job still runs and does not certainly work";
    assert!(flat.contains(why), "{page}");
    let drain = &json(&cluster.node)["drains"][0];
    assert_eq!((drain["reason"].as_str(), &drain["blocks_gpus"]), (Some(reason.as_str()), &1.into()));

    assert_eq!(cluster.node.hook("epilog", "4242", &[("SLURM_JOB_GPUS", "0")]).status, Some(0));
    cluster.configure(&shared.replace("mode: enforce", "mode: observe"));
    let page = text(&cluster.node);
    assert!(page.replace("\n           ", " ").contains("it stays: mode is observe"), "{page}");
    assert!(line(&page, "1").ends_with("free, no look at it yet"), "its samples went with the job: {page}");
    let table = [
        (
            "an orphaned drain of ours, which this ledger does not know, stays: x",
            "orphan",
            "orphan     an orphaned",
        ),
        ("1 of 3 GPUs missing", "gpu-missing", "fault 900  gpu-missing since "),
    ];
    for (detail, kind, want) in table {
        cluster.change(&format!(
            "DELETE FROM fault WHERE id = 900;
             INSERT INTO fault (id, kind, subject, detail, opened_run, opened_wall_ms, last_run)
             VALUES (900, '{kind}', 'x', '{detail}', 1, {START_S}000, 1)"
        ));
        assert!(text(&cluster.node).contains(want), "{want}: {}", text(&cluster.node));
    }
}

#[test]
fn what_could_not_be_written_out_is_17_and_a_reader_that_left_is_nothing() {
    let cluster = site(&observing(), &[Shows::Empty]);
    run(&cluster);
    for args in [&["status"][..], &["status", "--json"], &["cases", "--csv"], &["config", "show"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let done = cluster.node.command(args).stdout(full).output().unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(17), "{args:?}: {said}");
        assert!(said.starts_with("gpu-reaper-hc: standard output: No space left on device"), "{said}");
        let (reader, gone) = std::io::pipe().unwrap();
        drop(reader);
        let done = cluster.node.command(args).stdout(gone).output().unwrap();
        assert_eq!((done.status.code(), done.stderr), (Some(0), Vec::new()), "{args:?}");
    }
}

#[test]
fn a_ledger_that_is_not_there_or_not_one_is_17_and_is_left_alone() {
    let node = Node::without_driver();
    for args in [&["status"][..], &["--json", "status"]] {
        let said = node.call(args);
        assert_eq!(said.status, Some(17), "{said:?}");
        assert!(said.line().contains("no run has left a ledger of node n1"), "{said:?}");
        match args.len() {
            1 => assert_eq!(said.out, "", "{said:?}"),
            _ => {
                let said: Value = serde_json::from_str(&said.out).unwrap();
                assert_eq!((&said["error"], said["because"].is_string()), (&"no_ledger".into(), true));
            }
        }
    }
    assert!(!node.state().exists());
    fs::create_dir_all(node.state()).unwrap();
    fs::write(node.state().join("ledger.db"), "no ledger at all\n".repeat(500)).unwrap();
    let (before, said) = (state(&node), node.call(&["status"]));
    assert!(said.status == Some(17) && said.line().contains("ledger.db"), "{said:?}");
    assert_eq!(state(&node), before);
}

#[test]
fn a_driver_that_is_not_there_is_told_and_no_gpu_is_empty_for_it() {
    let node = Node::without_driver();
    node.prolog("7");
    assert_eq!(node.health_check().status, Some(0));
    let page = text(&node).replace("\n           ", " ");
    assert!(
        page.contains("GPUs not read: libnvidia-ml.so.1 was not found")
            && page.contains("no GPU was seen since this node booted"),
        "{page}"
    );
    assert!(page.contains("job 7      user ada, "), "{page}");
}

#[test]
fn an_instance_is_a_unit_of_its_own_and_one_without_utilization_is_never_given_away() {
    // NordicHPC/sonar#247, Syllo/nvtop#256 (NR-01): utilization under MIG printed as 0.
    let scenario = format!(
        "{}nvmlDeviceGetMigMode = 1 1
         nvmlDeviceGetUtilizationRates ! 3
         nvmlDeviceGetMaxMigDeviceCount = 7
         mig 2
           nvmlDeviceGetUUID = MIG-22222222-1111-2222-3333-444444444444
           nvmlDeviceGetName = NVIDIA H100 80GB HBM3 MIG 3g.40gb
           nvmlDeviceGetGpuInstanceId = 3
           nvmlDeviceGetComputeInstanceId = 1
           nvmlDeviceGetMemoryInfo_v2 = 42412802048 4194304 0
           nvmlDeviceGetComputeRunningProcesses_v3 = ok\n",
        fake_nvml::node(1)
    );
    let cluster = Cluster::new(&observing());
    cluster.show(&scenario);
    for _ in 0..3 {
        run(&cluster);
    }
    let page = text(&cluster.node);
    let at = line(&page, "0/3/1");
    assert!(at.contains("  MIG-22222222 ") && at.ends_with("free, utilization not readable"), "{page}");
    assert!(!page.lines().any(|line| line.starts_with("0  ")), "the GPU itself is no unit: {page}");
    let gpu = &json(&cluster.node)["gpus"][0];
    assert_eq!((&gpu["instance"]["gi"], &gpu["free"]["state"]), (&3.into(), &"not_known".into()));
}

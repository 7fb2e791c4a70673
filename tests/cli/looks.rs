//! Cards and jobs that rules of thumb get wrong: memory that the driver keeps for itself, slow drivers, split cards,
//! another time zone, a server that waits. Times are seconds here.

use crate::fake_nvml::{self, FakeNvml, INIT};
use crate::slurm::{Cluster, START_S, install};
use crate::*;
use gpu_reaper_hc::reading::Absence;
use gpu_reaper_hc::scenarios::file::Scenario;
use gpu_reaper_hc::scenarios::stage::Stage;
use gpu_reaper_hc::screen::Screen;
use serde_json::Value;

const SECONDS: &str =
    "thresholds: { window: 4s, warmup: 0s, first_activity_grace: 0s, min_samples: 3, max_sample_gap: 2s }\n";

fn node(driver: &FakeNvml, gpu: &str) -> Node {
    Node::new(&format!("gpu: {{ library: {}{gpu} }}\n{SECONDS}", driver.library().display()))
}

/// Runs until `--explain` of job 7 says something of that field.
fn explained(node: &Node, field: &str) -> Value {
    for _ in 0..400 {
        assert_eq!(node.health_check().status, Some(0));
        let page: Value = serde_json::from_str(&node.call(&["--explain", "7", "--json"]).out).unwrap();
        if !page[field].is_null() {
            return page;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("never: {}", node.call(&["--explain", "7"]).out)
}

/// One card at rest that nobody is on, with these answers about its memory.
fn empty(name: &str, power_mw: u32, memory: &str) -> String {
    let all = crate::slurm::quiet();
    let lines = all.lines().filter(|line| !line.trim_start().starts_with("proc "));
    let rest: Vec<&str> = lines.collect();
    format!(
        "{}\nnvmlDeviceGetName = {name}\nnvmlDeviceGetPowerUsage = {power_mw}\n{memory}\n",
        rest.join("\n")
    )
}

#[test]
fn what_the_driver_keeps_for_itself_is_nobodys_memory() {
    // scitix/sichek#113, local-inference-lab/blackwell-llm-docker#44, AMD-AGI/TraceLens#809 (NR-12): the older call
    // counts the reservation as used; a line of 256 MB failed on big cards.
    let (b200, kept) = (192_265_846_784_u64, 900_u64 << 20);
    let (workstation, little) = (25_757_220_864_u64, 2_u64 << 20);
    let table = [
        (
            "the older call",
            empty(
                "NVIDIA B200",
                140_000,
                &format!("nvmlDeviceGetMemoryInfo_v2 ! 3\nnvmlDeviceGetMemoryInfo = {b200} {kept}"),
            ),
        ),
        (
            "the newer call",
            empty("NVIDIA B200", 140_000, &format!("nvmlDeviceGetMemoryInfo_v2 = {b200} 0 {kept}")),
        ),
        (
            "a workstation card",
            empty(
                "NVIDIA RTX A5000",
                20_000,
                &format!("nvmlDeviceGetMemoryInfo_v2 ! 3\nnvmlDeviceGetMemoryInfo = {workstation} {little}"),
            ),
        ),
    ];
    std::thread::scope(|scope| {
        for (name, scenario) in &table {
            scope.spawn(move || {
                let driver = FakeNvml::new(scenario);
                let library = driver.library();
                let config =
                    format!("gpu: {{ library: {} }}\nslurm: {{ COMMANDS }}\n{SECONDS}", library.display());
                let cluster = Cluster::new(&config);
                cluster.job(7, "7", "train");
                cluster.node.prolog("7");
                let page = explained(&cluster.node, "signature");
                assert_eq!(page["signature"], "idle", "{name}: {page:#}");
            });
        }
    });
}

#[test]
fn no_run_asks_who_used_the_card_lately() {
    // autowarefoundation/autoware_universe#11285, rust-nvml/nvml-wrapper#56 (NR-06): NotFound is what an idle card
    // answers; it became a warning a second, and a panic.
    let driver = FakeNvml::new(&format!("log\n{}", empty("NVIDIA H100 80GB HBM3", 72_000, "")));
    let node = node(&driver, "");
    node.prolog("7");
    let run = node.health_check();
    assert!(run.status == Some(0) && !run.err.contains("WARN"), "{run:?}");
    let calls = driver.calls();
    assert!(
        calls.iter().any(|call| call.starts_with("nvmlDeviceGetComputeRunningProcesses_v3")),
        "{calls:?}"
    );
    let asked = calls
        .iter()
        .filter(|call| call.contains("ProcessUtilization") || call.contains("ProcessesUtilization"));
    assert_eq!(asked.count(), 0, "{calls:?}");
}

#[test]
fn a_driver_that_starts_slowly_is_waited_for_or_named_and_never_a_hang_of_a_job() {
    // Azure/aks-gpu#105, Azure/AgentBaker#2829, NVIDIA/nvidia-docker#628 (RT-06): 25 to 30 s from cold, half a second a
    // card, without persistence mode; here in hundredths.
    let slow = |init_ms: u32| {
        let cards = "gpu 0\nnvmlDeviceGetUUID ~ 5\ngpu 1\nnvmlDeviceGetUUID ~ 5\n";
        format!("nvmlInit_v2 ~ {init_ms}\n{}{cards}", fake_nvml::node(2))
    };
    let driver = FakeNvml::new(&slow(280));
    let patient = node(&driver, ", deadline: 5s");
    let run = patient.health_check();
    assert!(run.err.contains("2 GPUs read"), "{run:?}");
    assert_eq!(patient.ledger("SELECT count(sm_util) FROM sample"), "2", "a whole sample");
    driver.play(&slow(5_000));
    let hasty = node(&driver, ", deadline: 1s");
    hasty.prolog("7");
    for _ in 0..2 {
        let run = hasty.health_check();
        assert!(run.status == Some(0) && run.took < Duration::from_millis(2_500), "{run:?}");
        assert!(run.err.contains("GPUs not read: no answer within the deadline"), "{run:?}");
        assert!(!run.err.contains("hung") && !run.err.contains("stuck"), "{run:?}");
    }
    let late = Absence::DeadlinePassed.code();
    assert_eq!(hasty.ledger(&format!("SELECT count(*) FROM run WHERE gpus_absent = {late}")), "2");
    assert_eq!(hasty.ledger("SELECT count(*) FROM finding"), "0");
    driver.play(&fake_nvml::node(2));
    assert!(hasty.health_check().err.contains("2 GPUs read"), "warm again");
}

/// GPU 0 cut in two, each half with a job's process; GPU 1 whole and at work.
fn mixed() -> String {
    let measures = "nvmlGpmQueryDeviceSupport = 1\ngpm 2 = 61.07\ngpm 5 = 0\ngpm 10 = 3.5\n";
    let mut scenario = format!(
        "{}nvmlDeviceGetUtilizationRates = 90 40\nsample 1 = 100000:90\n{measures}gpu 0\n{measures}\
         nvmlDeviceGetMigMode = 1 1\nnvmlDeviceGetUtilizationRates ! 3\nsample 1 ! 3\nsample 2 ! 3\n\
         nvmlDeviceGetMaxMigDeviceCount = 7\n",
        fake_nvml::node(2)
    );
    for (place, gi) in [(0, 1), (2, 5)] {
        scenario += &format!(
            "mig {place}\nnvmlDeviceGetUUID = MIG-half-{gi}\nnvmlDeviceGetName = NVIDIA H100 MIG 3g.40gb\n\
             nvmlDeviceGetGpuInstanceId = {gi}\nnvmlDeviceGetComputeInstanceId = 0\n\
             nvmlDeviceGetMemoryInfo_v2 = 42412802048 20736638976 0\nnvmlDeviceGetComputeRunningProcesses_v3 = ok\n\
             proc compute = {INIT} 4096\ngpm 2 = 55.5\ngpm 5 = 0\ngpm 10 = 9\n"
        );
    }
    scenario
}

#[test]
fn a_whole_card_beside_a_split_one_is_judged_and_the_halves_only_where_gpm_measures_them() {
    // guilbaults/slurm-job-exporter#50 (SH-01): one choice for the whole node failed for every job.
    let halves = [("7", "MIG-half-1"), ("8", "MIG-half-5")];
    for (gpm, of_halves) in [("off", 12), ("mig", 10)] {
        let driver = FakeNvml::new(&mixed());
        let node = node(&driver, &format!(", gpm: {gpm}"));
        for (job, uuid) in halves.into_iter().chain([("9", "GPU-00000001-1111-2222-3333-444444444444")]) {
            let environment = [("CUDA_VISIBLE_DEVICES", uuid), ("SLURM_JOB_NUM_NODES", "1")];
            assert_eq!(node.hook("prolog", job, &environment).err, "");
        }
        for _ in 0..6 {
            assert_eq!(node.health_check().status, Some(0));
        }
        let whole = node.call(&["--explain", "9"]);
        assert!(whole.status == Some(10) && whole.out.contains("alive: GPU 1 at 90 %"), "{whole:?}");
        for (job, _) in halves {
            let half = node.call(&["--explain", job]);
            assert_eq!(half.status, Some(of_halves), "gpm {gpm}: {half:?}");
            let unreadable = half.out.contains("utilization of GPU 0 not readable: not supported under MIG");
            assert_eq!(unreadable, gpm == "off", "{half:?}");
        }
    }
}

#[test]
fn a_job_is_as_old_in_every_time_zone() {
    // ArjunaCluster/ArjunaUsers#66 (CK-05): some nodes ran on UTC, the rest on local time; five hours are more than any
    // threshold. squeue writes local time, unless it is asked for seconds.
    let local = "#!/bin/sh\nreal=${0%/*}/../real/squeue\n[ \"$SLURM_TIME_FORMAT\" != %s ] || exec \"$real\" \"$@\"\n\
                 \"$real\" \"$@\" | sed \"s/START/$(TZ=EST5 date -d @START +%FT%T)/\"\n";
    for zone in ["UTC", "EST5", "CET-1"] {
        let cluster = Cluster::new("gpu: { library: LIBRARY }\nslurm: { source: squeue, COMMANDS }\n");
        cluster.job(7, "7", "train");
        let real = cluster.node.path("real");
        fs::create_dir(&real).unwrap();
        // The stand-in looks beside its own folder.
        fs::rename(cluster.node.path("bin/squeue"), real.join("squeue")).unwrap();
        install(&cluster.node.path("bin/squeue"), &local.replace("START", &START_S.to_string()));
        let run = said(cluster.node.command(&[]).env("TZ", zone));
        assert!(run.status == Some(0) && run.err.contains("job 7 found"), "{run:?}");
        let start = "SELECT start_wall_ms FROM job_run WHERE job_id = 7";
        assert_eq!(cluster.node.ledger(start), (START_S * 1000).to_string(), "{zone}");
        let shown = said(cluster.node.command(&["--explain", "7"]).env("TZ", zone)).out;
        assert!(shown.contains("started 2026-11-29T"), "UTC everywhere: {shown}");
    }
}

#[test]
fn a_server_that_waits_is_told_in_facts_and_not_as_a_deadlock() {
    // huggingface/physics-intern#5, vllm-project/vllm#15287 (FP-07): 0 % with a loaded model is a normal state.
    let text = include_str!(
        "../../fixtures/scenarios/a-server-between-requests-holds-memory-and-is-quiet/scenario.yaml"
    );
    let scenario = Scenario::parse(text).unwrap();
    let mut stage = Stage::set(&scenario).unwrap();
    let mut pages = Vec::new();
    for at_ms in scenario.runs() {
        stage.run_at(at_ms).unwrap();
    }
    for job in [4242, 4243, 4244, 4245] {
        pages.push(stage.page(job, &Screen::UNBROKEN).unwrap());
    }
    assert!(pages[0].contains("processes resident or memory held, no compute for"), "{}", pages[0]);
    for page in pages {
        for guess in ["deadlock", "stuck", "broken", "dead "] {
            assert!(!page.contains(guess), "{guess}: {page}");
        }
    }
}

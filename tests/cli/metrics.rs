//! The file for Prometheus as the real program writes it, read by Prometheus' own parser and by a real node_exporter.
//! Where Debian's prometheus and prometheus-node-exporter are not installed it is said aloud.

use crate::ladder::{SECONDS, run_until};
use crate::slurm::Cluster;
use crate::*;
use gpu_reaper_hc::deliver::metrics::METRICS;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;

/// A partition that no site has, and that breaks whoever does not escape.
const HOSTILE: &str = "a\\b\"c}\n# TYPE gpu_reaper_findings counter {x=\"1\"} 7 \u{fc}";
/// All that promtool may say: the two names are given, and in hours.
const KNOWN: [&str; 2] = [
    "gpu_reaper_blocked_gpu_hours use base unit \"seconds\" instead of \"hours\"",
    "gpu_reaper_wasted_gpu_hours use base unit \"seconds\" instead of \"hours\"",
];

fn metrics(folder: &Path) -> String {
    format!("metrics: {{ textfile: {} }}\n", folder.join("gpu_reaper.prom").display())
}

fn written(cluster: &Cluster) -> String {
    fs::read_to_string(cluster.node.path("textfile/gpu_reaper.prom")).unwrap()
}

/// The sample of this series.
fn value(text: &str, series: &str) -> Option<f64> {
    let found = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    found.map(|number| number.parse().unwrap())
}

fn is_sound_for_prometheus(text: &str) {
    let mut asked = Command::new("promtool");
    asked.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = asked.spawn() else {
        return eprintln!("not tested: promtool is not installed");
    };
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let said = ended(child);
    let unknown = said.err.lines().chain(said.out.lines()).find(|line| !KNOWN.contains(line));
    assert_eq!(unknown, None, "{text}");
    assert!(!said.err.is_empty(), "it reads what it is given: {said:?}");
}

/// Every name is there with its type and its help, and none that is not in the list.
fn names_all(text: &str) {
    for metric in METRICS {
        let said = format!("# TYPE gpu_reaper_{} {}\n", metric.name, metric.kind);
        assert!(text.contains(&said), "{said}{text}");
    }
    assert_eq!(text.lines().filter(|line| line.starts_with("# TYPE ")).count(), METRICS.len(), "{text}");
    for series in text.lines().filter_map(|line| line.split_once('{')?.1.rsplit_once('}')) {
        let is_hidden = ["4242", "ada", "GPU-"].iter().any(|hidden| series.0.contains(hidden));
        assert!(!is_hidden, "no label names a job, a user or a GPU: {series:?}");
    }
}

fn cluster(mode: &str) -> Cluster {
    let cluster = Cluster::new("");
    fs::create_dir(cluster.node.path("textfile")).unwrap();
    let config = SECONDS.replace("enforce", mode) + &metrics(&cluster.node.path("textfile"));
    cluster.configure(&config);
    cluster
}

#[test]
fn a_fresh_node_speaks_prometheus_and_its_series_are_there_before_anything_happens() {
    let cluster = cluster("observe");
    assert_eq!(cluster.node.health_check().status, Some(0));
    let text = written(&cluster);
    is_sound_for_prometheus(&text);
    names_all(&text);
    for series in [
        "gpu_reaper_jobs_evaluated",
        "gpu_reaper_blocked_gpu_hours",
        "gpu_reaper_orphan_drains",
        "gpu_reaper_faults{kind=\"ecc\"}",
        "gpu_reaper_actions_total{actor=\"scontrol\",verdict=\"drain\",enforced=\"false\"}",
        "gpu_reaper_action_errors_total{actor=\"slack\"}",
        "gpu_reaper_scrape_errors_total{source=\"gpu\"}",
    ] {
        assert_eq!(value(&text, series), Some(0.0), "{series}: {text}");
    }
    let info = format!("gpu_reaper_info{{version=\"{}\",mode=\"observe\"}}", env!("CARGO_PKG_VERSION"));
    assert_eq!(value(&text, &info), Some(1.0), "{text}");
    assert_eq!(value(&text, "gpu_reaper_scrape_duration_seconds_count"), Some(1.0));
    let file = fs::metadata(cluster.node.path("textfile/gpu_reaper.prom")).unwrap();
    assert_eq!(file.permissions().mode() & 0o777, 0o644);
}

#[test]
fn findings_are_counted_by_partition_whatever_its_name_and_stay_as_zero_once_they_are_over() {
    let cluster = cluster("enforce");
    cluster.job(4242, "4242", "train");
    assert_eq!(cluster.prolog(4242, &[("SLURM_JOB_PARTITION", HOSTILE)]).status, Some(0));
    run_until(&cluster, "drain");
    let text = written(&cluster);
    is_sound_for_prometheus(&text);
    names_all(&text);
    let partition = HOSTILE.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let of = |name: &str| format!("gpu_reaper_{name}{{partition=\"{partition}\",signature=\"hung\"}}");
    let findings: Vec<&str> = text.lines().filter(|line| line.starts_with("gpu_reaper_findings{")).collect();
    assert!(findings.iter().filter(|line| line.ends_with(" 1")).count() == 1, "{findings:?}");
    assert_eq!(value(&text, &of("gpus_held_breaching")), Some(1.0), "{text}");
    let wasted = value(&text, &of("wasted_gpu_hours")).unwrap();
    assert!(wasted > 0.0 && wasted < 0.1, "{wasted}");
    let drained = "gpu_reaper_actions_total{actor=\"scontrol\",verdict=\"drain\",enforced=\"true\"}";
    let alerted = "gpu_reaper_actions_total{actor=\"journal\",verdict=\"alert\",enforced=\"true\"}";
    assert_eq!((value(&text, alerted), value(&text, drained)), (Some(1.0), Some(1.0)), "{text}");

    // The job is gone, and with it what is found; what it has cost stays.
    assert_eq!(cluster.node.hook("epilog", "4242", &[("SLURM_JOB_GPUS", "0")]).status, Some(0));
    assert_eq!(cluster.node.health_check().status, Some(0));
    let text = written(&cluster);
    is_sound_for_prometheus(&text);
    names_all(&text);
    assert!(value(&text, &of("wasted_gpu_hours")).unwrap() >= wasted);
    assert_eq!(value(&text, &of("gpus_held_breaching")), Some(0.0), "{text}");
    let findings: Vec<&str> = text.lines().filter(|line| line.starts_with("gpu_reaper_findings{")).collect();
    assert!(findings.len() == 4 && findings.iter().all(|line| line.ends_with(" 0")), "{findings:?}");
}

#[test]
fn what_cannot_be_read_is_told_and_the_file_is_written_all_the_same() {
    let cluster = cluster("observe");
    cluster.node.health_check();
    let before = value(&written(&cluster), "gpu_reaper_last_run_timestamp_seconds").unwrap();
    let config = SECONDS.replace("enforce", "observe").replace("LIBRARY", "/nonexistent/libnvidia-ml.so.1");
    cluster.configure(&(config + &metrics(&cluster.node.path("textfile"))));
    for errors in [1.0, 2.0] {
        assert_eq!(cluster.node.health_check().status, Some(0));
        let text = written(&cluster);
        is_sound_for_prometheus(&text);
        assert_eq!(value(&text, "gpu_reaper_scrape_errors_total{source=\"gpu\"}"), Some(errors), "{text}");
        assert!(value(&text, "gpu_reaper_last_run_timestamp_seconds").unwrap() > before);
    }
    assert_eq!(value(&written(&cluster), "gpu_reaper_scrape_duration_seconds_count"), Some(3.0));
}

#[test]
fn a_folder_that_is_missing_is_told_once_and_fails_no_run() {
    let node = Node::without_driver();
    let text = fs::read_to_string(node.path("config.yaml")).unwrap() + &metrics(&node.path("textfile"));
    fs::write(node.path("config.yaml"), text).unwrap();
    let about = |said: &Said| said.err.lines().filter(|line| line.contains("gpu_reaper.prom")).count();
    let first = node.health_check();
    assert!(first.status == Some(0) && first.err.contains("No such file") && about(&first) == 1, "{first:?}");
    let second = node.health_check();
    assert!(second.status == Some(0) && about(&second) == 0, "{second:?}");
    fs::create_dir(node.path("textfile")).unwrap();
    let third = node.health_check();
    assert!(third.err.contains("written again") && about(&third) == 1, "{third:?}");
    assert!(node.path("textfile/gpu_reaper.prom").exists());
    fs::remove_dir_all(node.path("textfile")).unwrap();
    assert_eq!(about(&node.health_check()), 1, "another change is another line");
}

#[test]
fn a_full_disk_leaves_the_old_file_whole() {
    let Some(disk) = SmallDisk::mount("128k") else { return };
    let node = Node::without_driver();
    let text = fs::read_to_string(node.path("config.yaml")).unwrap() + &metrics(disk.path());
    fs::write(node.path("config.yaml"), text).unwrap();
    assert_eq!(node.health_check().status, Some(0));
    let file = disk.path().join("gpu_reaper.prom");
    let before = fs::read_to_string(&file).unwrap();
    disk.fill();
    let full = node.health_check();
    assert!(full.status == Some(0) && full.err.contains("No space left"), "{full:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 2, "nothing half is left behind");
    disk.empty();
    node.health_check();
    assert_ne!(fs::read_to_string(&file).unwrap(), before);
}

#[test]
fn where_no_file_is_named_nothing_is_counted_for_it() {
    let node = Node::without_driver();
    node.health_check();
    assert_eq!(node.ledger("SELECT count(*) FROM tally"), "0");
}

/// A node_exporter of the test's own, ended with it.
struct Exporter(Child, u16);

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Exporter {
    /// With the textfile collector alone. `None`: it is not installed.
    fn start(folder: &Path) -> Option<Exporter> {
        // Somebody may take the port that was free a moment ago.
        for _ in 0..5 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let mut command = Command::new("prometheus-node-exporter");
            command.args(["--collector.disable-defaults", "--collector.textfile"]);
            command.arg(format!("--collector.textfile.directory={}", folder.display()));
            command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
            let Ok(child) = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
                eprintln!("not tested: prometheus-node-exporter is not installed");
                return None;
            };
            let mut exporter = Exporter(child, port);
            let until = Instant::now() + Duration::from_secs(20);
            while Instant::now() < until && exporter.0.try_wait().unwrap().is_none() {
                if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                    return Some(exporter);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        panic!("prometheus-node-exporter never listened");
    }

    fn scrape(&self) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.1)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }
}

#[test]
fn a_real_node_exporter_serves_it() {
    let cluster = cluster("observe");
    let folder = cluster.node.path("textfile");
    // What a killed run may leave is none of its files.
    fs::write(folder.join(".gpu_reaper.prom.new"), "gpu_reaper_half{").unwrap();
    let Some(exporter) = Exporter::start(&folder) else { return };
    cluster.job(4242, "4242", "train");
    assert_eq!(cluster.prolog(4242, &[("SLURM_JOB_PARTITION", HOSTILE)]).status, Some(0));
    run_until(&cluster, "alert");
    fs::write(folder.join(".gpu_reaper.prom.new"), "gpu_reaper_half{").unwrap();
    let served = exporter.scrape();
    assert_eq!(value(&served, "node_textfile_scrape_error"), Some(0.0), "{served}");
    let written = written(&cluster);
    let ours = |text: &str| text.lines().filter(|line| line.starts_with("gpu_reaper_")).count();
    assert!(ours(&written) > 40, "{written}");
    assert_eq!(ours(&served), ours(&written), "every series is served: {served}");
    assert!(served.contains(r#"partition="a\\b\"c}\n# TYPE"#), "{served}");
    assert!(served.contains("gpu_reaper.prom\"} 1."), "with the file's own time: {served}");
}

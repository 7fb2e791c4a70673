//! `hooks/monitoring`: the dashboard and the alert rules name what the program writes and nothing else, and Prometheus'
//! own tool agrees with the rules. Where it is not installed that is said aloud.

use gpu_reaper_hc::deliver::metrics::{METRICS, Metric, PREFIX};
use regex_lite::Regex;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What Prometheus or node_exporter adds to every series.
const ADDED: [&str; 3] = ["instance", "job", "le"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn text(name: &str) -> String {
    std::fs::read_to_string(root().join("hooks/monitoring").join(name)).unwrap()
}

fn dashboard() -> Value {
    serde_json::from_str(&text("gpu-reaper-dashboard.json")).unwrap()
}

/// Every text under such a key, wherever it stands.
fn texts_under<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(map) => {
            found.extend(map.get(key).and_then(Value::as_str));
            map.values().for_each(|value| texts_under(value, key, found));
        }
        Value::Array(all) => all.iter().for_each(|value| texts_under(value, key, found)),
        _ => {}
    }
}

/// Every query: those of the dashboard's panels and variables, and those of the alerts.
fn queries() -> Vec<String> {
    let dashboard = dashboard();
    let mut found = Vec::new();
    texts_under(&dashboard, "expr", &mut found);
    texts_under(&dashboard, "definition", &mut found);
    let mut queries: Vec<String> = found.into_iter().map(str::to_owned).collect();
    let rules: serde_yaml::Value = serde_yaml::from_str(&text("gpu-reaper-alerts.yaml")).unwrap();
    let rules = serde_json::to_value(rules).unwrap();
    let mut found = Vec::new();
    texts_under(&rules, "expr", &mut found);
    assert!(found.len() > 5 && queries.len() > 20, "{queries:?} {found:?}");
    queries.extend(found.into_iter().map(str::to_owned));
    queries
}

/// The metric of a series' name; a histogram has three.
fn metric(series: &str) -> Option<&'static Metric> {
    let name = series.strip_prefix(PREFIX)?;
    let parts = |metric: &Metric| ["_bucket", "_sum", "_count"].map(|part| metric.name.to_owned() + part);
    METRICS.iter().find(|metric| match metric.kind {
        "histogram" => parts(metric).iter().any(|part| part == name),
        _ => metric.name == name,
    })
}

#[test]
fn every_series_that_is_asked_for_is_one_that_the_program_writes() {
    let series = Regex::new(r"gpu_reaper_[a-z_]+").unwrap();
    let mut asked = BTreeSet::new();
    for query in queries() {
        for name in series.find_iter(&query) {
            let metric = metric(name.as_str());
            assert!(metric.is_some(), "`{}` is not written: {query}", name.as_str());
            asked.extend(metric.map(|metric| metric.name));
        }
    }
    let all: BTreeSet<_> = METRICS.iter().map(|metric| metric.name).collect();
    assert_eq!(asked, all, "what nobody looks at need not be written");
}

#[test]
fn every_label_that_is_asked_for_is_one_of_its_series() {
    let matchers = Regex::new(r"(gpu_reaper_[a-z_]+)\{([^}]*)\}").unwrap();
    let label = Regex::new(r"([a-z_]+)(?:=~|=|!=)").unwrap();
    let groups = Regex::new(r"by \(([^)]*)\) \(.*?(gpu_reaper_[a-z_]+)").unwrap();
    let mut seen = 0;
    for query in queries() {
        let selected = matchers.captures_iter(&query).flat_map(|found| {
            let series = found[1].to_owned();
            label
                .captures_iter(&found[2])
                .map(|label| (series.clone(), label[1].to_owned()))
                .collect::<Vec<_>>()
        });
        let grouped = groups.captures_iter(&query).flat_map(|found| {
            let series = found[2].to_owned();
            found[1].split(',').map(|label| (series.clone(), label.trim().to_owned())).collect::<Vec<_>>()
        });
        for (series, label) in selected.chain(grouped) {
            let known =
                metric(&series).unwrap().labels.contains(&label.as_str()) || ADDED.contains(&label.as_str());
            assert!(known, "`{series}` has no label `{label}`: {query}");
            seen += 1;
        }
    }
    assert!(seen > 40, "{seen}");
}

#[test]
fn the_dashboard_takes_its_data_source_from_a_variable_and_its_panels_lie_side_by_side() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut taken = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in panels {
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        let (x, y, w, h) = (place("x"), place("y"), place("w"), place("h"));
        assert!(x + w <= 24 && w > 0 && h > 0, "{}", panel["title"]);
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(cell), "{} lies on another panel", panel["title"]);
        }
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{} has another's number", panel["title"]);
    }
    let mut sources = Vec::new();
    texts_under(&dashboard, "uid", &mut sources);
    sources.retain(|uid| *uid != "gpu-reaper-hc");
    assert!(sources.len() > 20 && sources.iter().all(|uid| *uid == "${datasource}"), "{sources:?}");
    assert_eq!(dashboard["templating"]["list"][0]["type"], "datasource");
}

#[test]
fn the_alerts_are_sound_for_prometheus_and_say_what_they_should() {
    for asked in [
        ["check", "rules", "hooks/monitoring/gpu-reaper-alerts.yaml"],
        ["test", "rules", "tests/monitoring/alerts.test.yaml"],
    ] {
        let mut promtool = Command::new("promtool");
        let Ok(output) = promtool.args(asked).current_dir(root()).stdin(Stdio::null()).output() else {
            return eprintln!("not tested: promtool is not installed");
        };
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(output.status.success(), "{}{}", said[0], said[1]);
    }
}

#[test]
fn every_query_of_the_dashboard_is_one_for_prometheus() {
    let dashboard = dashboard();
    let mut found = Vec::new();
    texts_under(&dashboard, "expr", &mut found);
    let plain = |query: &str| {
        let query = query.replace("$__range", "1h").replace("$__rate_interval", "5m");
        query.replace("$instance", ".*").replace("$partition", ".*")
    };
    let rule = |(n, query): (usize, &&str)| {
        let record = format!("asked_{n}");
        serde_json::json!({ "record": record, "expr": plain(query) })
    };
    let rules: Vec<Value> = found.iter().enumerate().map(rule).collect();
    // JSON is YAML.
    let text = serde_json::json!({ "groups": [{ "name": "dashboard", "rules": rules }] }).to_string();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dashboard.yaml");
    std::fs::write(&file, text).unwrap();
    let mut promtool = Command::new("promtool");
    let Ok(output) = promtool.args(["check", "rules"]).arg(&file).stdin(Stdio::null()).output() else {
        return eprintln!("not tested: promtool is not installed");
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn every_alert_is_tried() {
    let tried = std::fs::read_to_string(root().join("tests/monitoring/alerts.test.yaml")).unwrap();
    let name = Regex::new(r"- alert: (\w+)").unwrap();
    for alert in name.captures_iter(&text("gpu-reaper-alerts.yaml")) {
        assert!(tried.contains(&format!("alertname: {}\n        exp_alerts:\n", &alert[1])), "{}", &alert[1]);
    }
}

//! Readings from the driver to the ledger to the page: what is absent stays absent all the way.

use crate::fake_nvml::{self, FakeNvml};
use crate::*;
use serde_json::Value;

fn node(driver: &FakeNvml) -> Node {
    let library = driver.library();
    Node::new(&format!("gpu: {{ library: {} }}\nthresholds: {{ warmup: 0s }}\n", library.display()))
}

#[test]
fn two_failing_fields_of_one_card_are_two_nulls_in_eight_rows() {
    // influxdata/telegraf#7659, #9785, microsoft/pai#949 (NR-08): one field lost the whole sample.
    let faults = "gpu 3\nnvmlDeviceGetPowerUsage ! 999\nnvmlDeviceGetTemperature(0) ! 999\n";
    let driver = FakeNvml::new(&(fake_nvml::node(8) + faults));
    let node = node(&driver);
    assert_eq!(node.health_check().status, Some(0));
    assert_eq!(node.ledger("SELECT count(*) FROM sample"), "8");
    let whose = "SELECT group_concat(nvml_index) FROM sample JOIN unit ON unit.id = unit";
    assert_eq!(node.ledger(&format!("{whose} WHERE power_mw IS NULL AND temperature_c IS NULL")), "3");
    for field in ["sm_util", "mem_used", "power_limit_mw", "processes_compute"] {
        assert_eq!(node.ledger(&format!("SELECT count({field}) FROM sample")), "8", "{field}");
    }
    assert_eq!(node.ledger("SELECT count(power_mw) + count(temperature_c) FROM sample"), "14");
}

#[test]
fn a_card_that_declines_every_question_is_never_shown_as_zero() {
    // slurmwatch article (NR-09): drawn as unpowered and sub-freezing, and a busy card scored idle.
    // leptonai/gpud#1170 (NR-04): memory too.
    let named =
        "gpu 0\nnvmlDeviceGetUUID = GPU-00000000-1111-2222-3333-444444444444\nnvmlDeviceGetMinorNumber = 0\n";
    let driver = FakeNvml::new(named);
    let node = node(&driver);
    node.prolog("7");
    for _ in 0..6 {
        assert_eq!(node.health_check().status, Some(0));
    }
    let readings =
        ["sm_util", "mem_util", "mem_used", "power_mw", "temperature_c", "sm_clock_mhz", "processes_compute"];
    for field in readings {
        assert_eq!(
            node.ledger(&format!("SELECT count({field}) || ' of ' || count(*) FROM sample")),
            "0 of 6",
            "{field}"
        );
    }
    let text = node.call(&["--explain", "7"]);
    assert_eq!(text.status, Some(12), "{text:?}");
    let all =
        "? GPU 0: utilization, memory utilization, memory, power, processes not readable: not supported";
    assert!(text.words().contains(all), "{}", text.out);
    assert!(!text.out.contains(" 0 W") && !text.out.contains(" 0 %"), "{}", text.out);
    let drawn = text.out.lines().filter(|line| line.starts_with("  GPU 0 "));
    let drawn: Vec<&str> = drawn.filter_map(|line| line.split('|').nth(1)).collect();
    assert_eq!(drawn.len(), 3, "utilization, power, memory: {}", text.out);
    assert!(drawn.iter().all(|row| row.bytes().all(|b| b == b'?')), "drawn as not readable: {}", text.out);
    let page: Value = serde_json::from_str(&node.call(&["--explain", "7", "--json"]).out).unwrap();
    let newest = &page["units"][0]["newest"];
    for field in ["sm_util_pct", "memory", "power_mw", "temperature_c", "compute_processes"] {
        let want = serde_json::json!({ "value": null, "absent": "not_supported" });
        assert_eq!(newest[field], want, "{field}");
    }
}

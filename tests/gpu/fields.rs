//! The numbers by field id: one call a GPU, each number on its own, none under another driver's meaning.

use crate::fake_nvml::{FIELDS, FakeNvml, field_value, node};
use crate::*;

/// No field; GPM is off, and the states are not asked for.
pub fn no_fields() -> Fields {
    let none = Fields::absent(Absence::NotSupported);
    Field::ALL[FIELDS.len()..].iter().fold(none, |all, field| all.with(*field, Absent(Absence::NotAsked)))
}

/// Everything that [`node`] says of the fields of a GPU.
pub fn all_fields(gpu: u64) -> Fields {
    let of_ids = FIELDS.iter().zip(Field::ALL).enumerate();
    of_ids.fold(no_fields(), |all, (n, (_, field))| all.with(*field, Measured(field_value(gpu, n as u64))))
}

/// The same for a driver that has none of the ids that ever moved.
pub fn settled_fields(gpu: u64) -> Fields {
    use Field::*;
    [SwThermalNs, HwThermalNs, HwPowerBrakeNs, PcieTxBytes, PcieRxBytes, RecoveryAction]
        .into_iter()
        .fold(all_fields(gpu), |all, field| all.with(field, Absent(Absence::NotSupported)))
}

fn only(fake: &FakeNvml) -> Readings {
    report(fake).units.remove(0).readings
}

#[test]
fn all_fields_of_a_gpu_cost_one_call() {
    let fake = FakeNvml::new(&format!("log\n{}", node(8)));
    assert_eq!(report(&fake).units, (0..8).map(|i| healthy(i, 8)).collect::<Vec<_>>());
    let calls = fake.calls();
    for gpu in 0..8 {
        let batch = format!("nvmlDeviceGetFieldValues {gpu}");
        assert_eq!(calls.iter().filter(|c| **c == batch).count(), 1, "GPU {gpu}");
    }
    assert!(!calls.iter().any(|c| c.starts_with("nvmlDeviceGetTotalEnergyConsumption")));
    // The start, the count, the driver's version (the binding asks for it too); then 20 a GPU, as many as before
    // there were fields.
    assert_eq!(calls.len(), 4 + 8 * 20, "{calls:#?}");
}

#[test]
fn a_field_that_is_refused_hides_no_other() {
    // influxdata/telegraf#9785 (NR-08), NVIDIA/DCGM#263 (FT-11): absent is not "nothing to do".
    use Absence::*;
    use Field::*;
    let table: &[(&str, Field, Reading<u64>)] = &[
        ("field 74 ! 3", PowerCapNs, Absent(NotSupported)),
        ("field 3 ! 4", EccCorrectedVolatile, Absent(NoPermission)),
        ("field 94 ! 999", PcieReplays, Absent(Transient)),
        ("field 94 ! 2", PcieReplays, Absent(NotSupported)),
        ("field 144 = si -1", RemapPending, Absent(Implausible)),
        ("field 5 = sll -5", EccCorrectedAggregate, Absent(Implausible)),
        ("field 31 = d 0.5", RetiredPending, Absent(NotUnderstood)),
        ("field 230 = u 1", RecoveryAction, Measured(1)),
        ("field 230 ! 3", RecoveryAction, Absent(NotSupported)),
        ("field 138 all ! 3\nfield 138 = ull 5", NvlinkTxKib, Absent(NotSupported)),
        ("field 269 = ull 18446744073709551615", SwThermalNs, Measured(u64::MAX)),
    ];
    let fake = FakeNvml::new("");
    for (fault, field, want) in table {
        fake.play(&format!("{}gpu 1\n{fault}\n", node(2)));
        let mut unit = healthy(1, 2);
        unit.readings.fields.set(*field, *want);
        assert_eq!(report(&fake).units, [healthy(0, 2), unit], "{fault}");
    }
}

#[test]
fn a_batch_that_fails_as_a_whole_costs_the_fields_and_nothing_else() {
    let table = [
        ("nvmlDeviceGetFieldValues ! 3", Absence::NotSupported),
        ("nvmlDeviceGetFieldValues ! 25", Absence::NotSupported),
        ("nvmlDeviceGetFieldValues ! 999", Absence::Transient),
        ("nvmlDeviceGetFieldValues ! 15", Absence::GpuLost),
    ];
    for (fault, why) in table {
        let mut want = healthy(0, 1);
        for field in &Field::ALL[..FIELDS.len()] {
            want.readings.fields.set(*field, Absent(why));
        }
        assert_eq!(report(&FakeNvml::new(&format!("{}{fault}\n", node(1)))).units, [want], "{fault}");
    }
}

#[test]
fn energy_comes_with_the_fields_and_else_by_its_own_call() {
    let table = [
        ("field 83 = ull 6000000000", Measured(6_000_000_000)),
        ("field 83 ! 3", Measured(5_000_000_000)),
        ("field 83 ! 999", Measured(5_000_000_000)),
        ("field 83 = d 1.5", Measured(5_000_000_000)),
        ("field 83 ! 3\nnvmlDeviceGetTotalEnergyConsumption ! 3", Absent(Absence::NotSupported)),
        ("field 83 ! 3\nnvmlDeviceGetTotalEnergyConsumption ! 999", Absent(Absence::Transient)),
    ];
    for (fault, want) in table {
        let readings = only(&FakeNvml::new(&format!("{}{fault}\n", node(1))));
        assert_eq!(readings.energy, want.map(Millijoules), "{fault}");
    }
}

#[test]
fn another_drivers_ids_are_not_mistaken_for_ours() {
    // The ids of 575 to 580.81 hold other numbers here, as those of 570 do (power smoothing).
    let older = "field 251 = ull 51\nfield 252 = ull 52\nfield 253 = ull 53\n";
    let times = |fields: &Fields| {
        [Field::SwThermalNs, Field::HwThermalNs, Field::HwPowerBrakeNs].map(|f| fields.get(f))
    };
    let none = [Absent(Absence::NotSupported); 3];
    let table = [
        ("570.211.01", none),
        ("575.51.03", [51, 52, 53].map(Measured)),
        ("580.65.06", [51, 52, 53].map(Measured)),
        ("580.82.07", [2, 3, 4].map(|n| Measured(field_value(0, n)))),
        ("a driver of tomorrow", none),
    ];
    for (driver, want) in table {
        let scenario = node(1).replace("580.95.05", driver) + older;
        assert_eq!(times(&only(&FakeNvml::new(&scenario)).fields), want, "{driver}");
    }
    let nameless = node(1).replace("nvmlSystemGetDriverVersion = 580.95.05", "");
    assert_eq!(only(&FakeNvml::new(&nameless)).fields, settled_fields(0));
}

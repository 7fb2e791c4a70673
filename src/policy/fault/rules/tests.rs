//! The rules by table: what each calls faulty, what it calls fine, and where it can say nothing.

use super::*;
use crate::model::*;
use crate::units::*;
use Absence::*;
use Reading::{Absent, Measured};

fn thresholds() -> Thresholds {
    crate::policy::tests::rules().thresholds
}

/// A GPU at rest that is well.
fn well() -> UnitSample {
    let fields = [
        (Field::RecoveryAction, 0),
        (Field::EccUncorrectedVolatile, 2),
        (Field::EccUncorrectedAggregate, 9),
        (Field::RemapPending, 0),
        (Field::RemapFailed, 0),
        (Field::RetiredPending, 0),
        (Field::RetiredSingleBit, 3),
        (Field::RetiredDoubleBit, 4),
        (Field::NvlinkActive, 18),
        (Field::FabricState, 3),
        (Field::FabricStatus, 0),
        (Field::PersistenceMode, 1),
    ];
    let none = Fields::absent(NotSupported);
    UnitSample {
        identity: UnitIdentity {
            uuid: Measured(UnitUuid::new("GPU-1").unwrap()),
            kind: UnitKind::Gpu,
            index: NvmlIndex(0),
            minor: Measured(DeviceMinor(0)),
            pci: Measured(PciAddress::parse("0000:1a:00.0").unwrap()),
            name: Measured("NVIDIA H100".to_owned()),
        },
        readings: Readings {
            sm_util: Measured(Percent::new(90).unwrap()),
            memory: Measured(Memory {
                used: MemoryBytes(0),
                total: MemoryBytes(80 << 30),
                excludes_reserved: true,
            }),
            power: Measured(Milliwatts(400_000)),
            power_limit: Measured(Milliwatts(400_000)),
            sm_clock: Measured(Megahertz(1785)),
            sm_clock_max: Measured(Megahertz(1785)),
            clocks_event: Measured(ClocksEventMask(0)),
            processes: Measured(vec![]),
            fields: fields.into_iter().fold(none, |all, (field, n)| all.with(field, Measured(n))),
            ..Readings::absent(NotSupported)
        },
    }
}

fn with(change: impl FnOnce(&mut UnitSample)) -> UnitSample {
    let mut sample = well();
    change(&mut sample);
    sample
}

fn field(field: Field, value: Reading<u64>) -> UnitSample {
    with(|s| s.readings.fields.set(field, value))
}

fn earlier(word: Word) -> Option<u64> {
    Some(match word {
        Word::EccVolatile => 2,
        Word::EccAggregate => 9,
        Word::NvlinksUp => 18,
    })
}

fn says(kind: Kind, sample: &UnitSample) -> Says {
    let thresholds = thresholds();
    let link = Measured(Link { current: 16, max: 16 });
    let foreign = Measured(vec![]);
    of_unit(kind, &Unit { sample, earlier: &earlier, link, foreign, thresholds: &thresholds }).unwrap()
}

/// `f`aulty, `o`k, or `?`.
fn short(says: &Says) -> char {
    match says {
        Says::Faulty(_) => 'f',
        Says::MayBe(_) => 'm',
        Says::Fine => 'o',
        Says::CannotSay => '?',
    }
}

#[test]
fn a_gpu_that_is_well_is_fine_by_every_rule_and_one_that_is_not_readable_by_none() {
    let lost = UnitSample { readings: Readings::absent(NoPermission), ..well() };
    let nameless = with(|s| {
        s.identity.uuid = Absent(NoPermission);
        s.readings = Readings::absent(NoPermission);
    });
    for (kind, _) in OF_UNIT {
        assert_eq!(says(kind, &well()), Says::Fine, "{kind:?}");
        // What has a name was opened, and whose links and processes the caller looked at is as the caller says.
        let by_others = [Kind::GpuLost, Kind::ForeignProcess];
        if !by_others.contains(&kind) {
            assert_eq!(says(kind, &lost), Says::CannotSay, "{kind:?}");
        }
    }
    assert_eq!(says(Kind::GpuLost, &nameless), Says::CannotSay, "a set-up that may not look is no lost card");
}

#[test]
fn each_rule_calls_faulty_what_it_says_and_nothing_that_is_absent() {
    // NVIDIA/dcgm-exporter#46, #348 (FT-02); NVIDIA/DCGM#263 (FT-11): absent on old drivers is absent, not "none".
    let absent = |why| move |s: &mut UnitSample| s.readings = Readings::absent(why);
    let unopened = |s: &mut UnitSample| {
        s.identity.uuid = Absent(SourceFailed);
        s.readings = Readings::absent(SourceFailed);
    };
    let cut = |s: &mut UnitSample| {
        s.readings.mig = Measured(MigMode::Enabled);
        s.readings.fields.set(Field::NvlinkActive, Measured(0));
    };
    let no_power = |s: &mut UnitSample| s.readings.power = Absent(Transient);
    let table = [
        (Kind::GpuLost, with(absent(GpuLost)), 'f'),
        (Kind::GpuLost, with(unopened), 'm'),
        (Kind::GpuLost, with(no_power), 'o'),
        (Kind::GpuLost, with(absent(ResetRequired)), 'o'),
        (Kind::GpuReset, with(absent(ResetRequired)), 'f'),
        (Kind::GpuReset, with(absent(GpuLost)), '?'),
        (Kind::GpuReset, field(Field::RecoveryAction, Measured(1)), 'f'),
        (Kind::GpuReset, field(Field::RecoveryAction, Measured(7)), 'f'),
        (Kind::GpuReset, field(Field::RecoveryAction, Measured(8)), '?'),
        (Kind::GpuReset, field(Field::RecoveryAction, Absent(NotSupported)), 'o'),
        (Kind::GpuReset, field(Field::RecoveryAction, Absent(Transient)), '?'),
        (Kind::Ecc, field(Field::EccUncorrectedVolatile, Measured(3)), 'f'),
        (Kind::Ecc, field(Field::EccUncorrectedAggregate, Measured(10)), 'f'),
        (Kind::Ecc, field(Field::EccUncorrectedVolatile, Measured(0)), 'o'),
        (Kind::Ecc, field(Field::EccUncorrectedVolatile, Absent(NotSupported)), 'o'),
        (Kind::RowRemapPending, field(Field::RemapPending, Measured(1)), 'f'),
        (Kind::RowRemapPending, field(Field::RemapPending, Absent(NotSupported)), '?'),
        (Kind::RowRemapFailure, field(Field::RemapFailed, Measured(1)), 'f'),
        (Kind::RetiredPages, field(Field::RetiredPending, Measured(1)), 'f'),
        (Kind::RetiredPages, field(Field::RetiredSingleBit, Measured(56)), 'f'),
        (Kind::RetiredPages, field(Field::RetiredSingleBit, Measured(55)), 'o'),
        (Kind::RetiredPages, field(Field::RetiredSingleBit, Absent(NotSupported)), '?'),
        (Kind::Nvlink, with(cut), '?'),
        (Kind::Nvlink, field(Field::NvlinkActive, Measured(17)), 'f'),
        (Kind::Nvlink, field(Field::NvlinkActive, Measured(0)), 'f'),
        (Kind::Nvlink, field(Field::NvlinkActive, Absent(NotAsked)), '?'),
        (Kind::Fabric, field(Field::FabricState, Measured(0)), 'o'),
        (Kind::Fabric, field(Field::FabricState, Measured(1)), 'f'),
        (Kind::Fabric, field(Field::FabricState, Measured(2)), 'f'),
        (Kind::Fabric, field(Field::FabricStatus, Measured(999)), 'f'),
        (Kind::Fabric, field(Field::FabricStatus, Absent(Transient)), '?'),
    ];
    for (n, (kind, sample, want)) in table.iter().enumerate() {
        assert_eq!(short(&says(*kind, sample)), *want, "row {n}: {kind:?} {:?}", says(*kind, sample));
    }
}

#[test]
fn only_hardware_and_heat_at_work_are_a_slow_down_and_no_temperature_is() {
    // slurmwatch (TH-01): 385 of 1785 MHz at 160 of 400 W, 52 C, 100 % busy. Azure/azurehpc#595 (TH-02): power cap, idle
    // and application clocks are normal. Azure/azurehpc-health-checks#138 (TH-04): each bit by itself.
    // mmontes11/k8s-infrastructure#115 (TH-05): 88 C at full clocks is no fault.
    let slowed = |bit: u64, clock: u32, watts: u64, util: u32| {
        with(|s| {
            s.readings.clocks_event = Measured(ClocksEventMask(bit));
            s.readings.sm_clock = Measured(Megahertz(clock));
            s.readings.power = Measured(Milliwatts(watts * 1000));
            s.readings.sm_util = Measured(Percent::new(util).unwrap());
            s.readings.temperature = Measured(Celsius(88));
        })
    };
    for shift in 0..16 {
        let bit = 1 << shift;
        let want = if [0x8, 0x20, 0x40, 0x80].contains(&bit) { 'f' } else { 'o' };
        assert_eq!(short(&says(Kind::HwSlowdown, &slowed(bit, 385, 160, 100))), want, "{bit:#x}");
    }
    assert_eq!(short(&says(Kind::HwSlowdown, &slowed(0x8, 1785, 160, 100))), 'o', "at full clock");
    assert_eq!(short(&says(Kind::HwSlowdown, &slowed(0x8, 385, 390, 100))), 'o', "near its power limit");
    assert_eq!(short(&says(Kind::HwSlowdown, &slowed(0x8, 385, 160, 3))), '?', "at rest");
    let no_clock = with(|s| {
        s.readings.clocks_event = Measured(ClocksEventMask(0x8));
        s.readings.sm_clock = Absent(Transient);
    });
    assert_eq!(short(&says(Kind::HwSlowdown, &no_clock)), '?');
}

#[test]
fn a_narrow_link_is_one_only_under_load_and_strangers_are_told() {
    let look = |sample: &UnitSample, link, foreign| {
        let thresholds = thresholds();
        let unit = Unit { sample, earlier: &earlier, link, foreign, thresholds: &thresholds };
        (short(&pcie_width(&unit)), short(&foreign_process(&unit)))
    };
    let (narrow, at_rest) = (
        Measured(Link { current: 8, max: 16 }),
        with(|s| s.readings.sm_util = Measured(Percent::new(0).unwrap())),
    );
    let someone = || Measured(vec!["pid 900".to_owned()]);
    assert_eq!(look(&well(), narrow, someone()), ('f', 'f'));
    assert_eq!(look(&at_rest, narrow, Absent(NotMapped)), ('?', '?'));
    assert_eq!(look(&well(), Absent(NotAsked), Measured(vec![])), ('?', 'o'));
}

#[test]
fn a_silent_driver_a_slow_one_and_one_of_another_version_are_different_faults() {
    // leptonai/gpud#117 (FT-01), Azure/aks-gpu#105 (RT-06): a slow start is no hang.
    let table = [
        (DeadlinePassed, true, [Kind::DriverUnresponsive].as_slice()),
        (DeadlinePassed, false, &[Kind::PersistenceMode]),
        (WorkerStuck, false, &[Kind::DriverUnresponsive]),
        (VersionMismatch, true, &[Kind::DriverMismatch]),
        (DriverNotLoaded, true, &[Kind::DriverNotLoaded]),
        (LibraryNotFound, true, &[]),
        (NoPermission, true, &[]),
    ];
    for (why, persistent, want) in table {
        let gpus = Absent(why);
        let node = Node { gpus: &gpus, has_gpus: true, persistent };
        let faulty = |kind: &&Kind| matches!(of_node(**kind, &node), Some(Says::Faulty(_)));
        assert_eq!(
            Kind::ALL.iter().filter(faulty).copied().collect::<Vec<_>>(),
            want,
            "{why:?} {persistent}"
        );
        let fine = |kind: &&Kind| of_node(**kind, &node) == Some(Says::Fine);
        assert_eq!(Kind::ALL.iter().filter(fine).count(), 0, "{why:?}: nothing is seen to be well");
    }
    let none = Absent(DriverNotLoaded);
    let node = Node { gpus: &none, has_gpus: false, persistent: true };
    assert_eq!(of_node(Kind::DriverNotLoaded, &node), Some(Says::CannotSay), "a node without GPUs");
    let report = |mode| {
        let units = vec![well(), field(Field::PersistenceMode, mode)];
        Measured(GpuReport { driver: Measured("580".to_owned()), units })
    };
    for (mode, want) in [(Measured(0), 'f'), (Measured(1), 'o'), (Absent(Transient), 'o')] {
        let gpus = report(mode);
        let node = Node { gpus: &gpus, has_gpus: true, persistent: true };
        assert_eq!(short(&of_node(Kind::PersistenceMode, &node).unwrap()), want, "{mode:?}");
    }
}

#[test]
fn what_is_remembered_is_what_was_read_and_the_most_links() {
    let none = |_: Word| None;
    let news = counters(&well(), &none);
    assert_eq!(news, [(Word::EccVolatile, 2), (Word::EccAggregate, 9), (Word::NvlinksUp, 18)]);
    assert_eq!(counters(&well(), &earlier), [], "no news");
    let fewer = field(Field::NvlinkActive, Measured(3));
    assert_eq!(counters(&fewer, &earlier), [], "a link that is down was up once");
    let anew = field(Field::EccUncorrectedVolatile, Measured(0));
    assert_eq!(counters(&anew, &earlier), [(Word::EccVolatile, 0)], "the driver was loaded anew");
    let blind = UnitSample { readings: Readings::absent(GpuLost), ..well() };
    assert_eq!(counters(&blind, &earlier), []);
}

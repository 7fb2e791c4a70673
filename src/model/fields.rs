//! What the driver says beside the main readings: the cumulative counters, whose differences speak for the whole
//! time between two runs, a few states, and the activity that GPM measured. Raw numbers, in NVML's units.

use crate::reading::{Absence, Reading, packed};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident = $word:literal;)*) => {
        /// One number of [`Fields`]. Its place in this list is its place in the ledger: new ones go to the end. What the
        /// rules look at stands first, since a stored row is read from its beginning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Field { $($(#[$doc])* $name,)* }

        impl Field {
            /// All of them, in order.
            pub const ALL: &'static [Field] = &[$(Field::$name,)*];

            /// Its name for people and JSON.
            pub fn word(self) -> &'static str { match self { $(Field::$name => $word,)* } }
        }
    };
}

fields! {
    /// What the driver wants done to this GPU: 0 nothing, 1 reset, 2 reboot, ... (230, from driver 570).
    RecoveryAction = "recovery_action";
    /// Time below the wanted clocks because of temperature, ns (75).
    ThermalNs = "thermal_ns";
    /// Software thermal slow-down, ns (251 from driver 575, 269 from 580.82).
    SwThermalNs = "sw_thermal_ns";
    /// Hardware thermal slow-down, ns (252, 270).
    HwThermalNs = "hw_thermal_ns";
    /// Hardware power brake, ns (253, 271).
    HwPowerBrakeNs = "hw_power_brake_ns";
    /// Bytes sent over PCIe (197, from driver 555). May wrap: only "equal or not" is to be believed.
    PcieTxBytes = "pcie_tx_bytes";
    /// Bytes received over PCIe (198). May wrap.
    PcieRxBytes = "pcie_rx_bytes";
    /// KiB of data sent over all NVLinks (138, scope all links).
    NvlinkTxKib = "nvlink_tx_kib";
    /// KiB of data received over all NVLinks (139).
    NvlinkRxKib = "nvlink_rx_kib";
    /// Uncorrected ECC errors since the driver was loaded (4).
    EccUncorrectedVolatile = "ecc_uncorrected_volatile";
    /// Time below the wanted clocks because of the power limit, ns (74). Normal at work.
    PowerCapNs = "power_cap_ns";
    /// The same because of other GPUs in a sync-boost group, ns (76).
    SyncBoostNs = "sync_boost_ns";
    /// The same because of the board's limit, ns (77).
    BoardLimitNs = "board_limit_ns";
    /// The same because of low utilization, ns (78). Kept, never judged on: no recording confirms it.
    LowUtilizationNs = "low_utilization_ns";
    /// The same because of the board's reliability limit, ns (79).
    ReliabilityNs = "reliability_ns";
    /// Corrected ECC errors since the driver was loaded (3).
    EccCorrectedVolatile = "ecc_corrected_volatile";
    /// Corrected ECC errors of the card's life (5).
    EccCorrectedAggregate = "ecc_corrected_aggregate";
    /// Uncorrected ECC errors of the card's life (6).
    EccUncorrectedAggregate = "ecc_uncorrected_aggregate";
    /// Pages retired for single-bit errors; cards before Ampere (29).
    RetiredSingleBit = "retired_single_bit";
    /// Pages retired for double-bit errors (30).
    RetiredDoubleBit = "retired_double_bit";
    /// Whether a page waits to be retired, 0 or 1 (31).
    RetiredPending = "retired_pending";
    /// PCIe replays (94).
    PcieReplays = "pcie_replays";
    /// Rows remapped for correctable errors; Ampere and newer (142).
    RemappedCorrectable = "remapped_correctable";
    /// Rows remapped for uncorrectable errors (143).
    RemappedUncorrectable = "remapped_uncorrectable";
    /// Whether a row waits to be remapped, 0 or 1 (144).
    RemapPending = "remap_pending";
    /// Whether a row could not be remapped, 0 or 1 (145).
    RemapFailed = "remap_failed";
    /// Share of time in which an SM was active, hundredths of a percent (GPM metric 2, over 100 ms or more).
    GpmSmActive = "gpm_sm_active";
    /// Share of time in which a tensor pipe was active, hundredths of a percent (GPM 5).
    GpmTensorActive = "gpm_tensor_active";
    /// Share of the memory bandwidth used, hundredths of a percent (GPM 10).
    GpmDramActive = "gpm_dram_active";
    /// Whether the driver keeps the GPU initialised without a client, 0 or 1. This and what follows are states that
    /// take calls of their own: only some looks ask for them.
    PersistenceMode = "persistence_mode";
    /// How far the GPU has come into the NVLink fabric: 0 not supported, 1 not started, 2 in progress, 3 completed.
    FabricState = "fabric_state";
    /// How that ended, by NVML's code, 0 well; only of a completed one.
    FabricStatus = "fabric_status";
    /// NVLinks that are up, asleep ones too. A board may have fewer wired than its GPU has.
    NvlinkActive = "nvlink_active";
    /// NVLinks that are down: also those that lead nowhere, as all do of a card without a bridge.
    NvlinkInactive = "nvlink_inactive";
}

/// All fields of one unit in one run.
#[derive(Clone, Debug)]
pub struct Fields(Held);

/// As they were read, or as the ledger holds them: of the thousands of a history the rules look at a few, so a
/// stored one is taken apart only where it is asked for something.
#[derive(Clone, Debug)]
enum Held {
    Nothing(Absence),
    Read(Vec<Reading<u64>>),
    Packed(Box<[u8]>),
}

impl Fields {
    /// All absent for one reason.
    pub fn absent(why: Absence) -> Fields {
        Fields(Held::Nothing(why))
    }

    /// One of them; what an older ledger does not hold was not recorded.
    pub fn get(&self, field: Field) -> Reading<u64> {
        match &self.0 {
            Held::Nothing(why) => Reading::Absent(*why),
            Held::Read(all) => {
                all.get(field as usize).copied().unwrap_or(Reading::Absent(Absence::NotRecorded))
            }
            Held::Packed(bytes) => packed::find(bytes, field as usize),
        }
    }

    /// Writes one down.
    pub fn set(&mut self, field: Field, value: Reading<u64>) {
        if !matches!(self.0, Held::Read(_)) {
            self.0 = Held::Read(self.all().collect());
        }
        if let Held::Read(all) = &mut self.0
            && let Some(place) = all.get_mut(field as usize)
        {
            *place = value;
        }
    }

    /// The same with one written down.
    pub fn with(mut self, field: Field, value: Reading<u64>) -> Fields {
        self.set(field, value);
        self
    }

    /// The ledger's form: [`packed`], field after field, up to the last that was recorded.
    pub fn pack(&self) -> Vec<u8> {
        match &self.0 {
            Held::Nothing(_) => packed::pack(&self.all().collect::<Vec<_>>()),
            Held::Read(all) => packed::pack(all),
            Held::Packed(bytes) => bytes.to_vec(),
        }
    }

    /// From the ledger's form. What it does not hold was not recorded; from where its bytes make no sense, nothing
    /// was understood, and no number comes of it.
    pub fn packed(bytes: &[u8]) -> Fields {
        Fields(Held::Packed(bytes.into()))
    }

    fn all(&self) -> impl Iterator<Item = Reading<u64>> {
        Field::ALL.iter().map(|field| self.get(*field))
    }
}

impl PartialEq for Fields {
    fn eq(&self, other: &Fields) -> bool {
        self.all().eq(other.all())
    }
}

impl Eq for Fields {}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.all())
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Fields, D::Error> {
        Ok(Fields(Held::Read(Vec::deserialize(d)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::Reading::{Absent, Measured};

    #[test]
    fn what_was_packed_comes_back_as_itself() {
        let first = |value| Fields::absent(Absence::NotSupported).with(Field::RecoveryAction, value);
        let mixed = Fields::absent(Absence::NotAsked)
            .with(Field::RecoveryAction, Measured(0))
            .with(Field::ThermalNs, Measured(126))
            .with(Field::SwThermalNs, Measured(127))
            .with(Field::LowUtilizationNs, Measured(0))
            .with(Field::ReliabilityNs, Measured(0))
            .with(Field::PcieTxBytes, Measured(u64::MAX - 1))
            .with(Field::RemapFailed, Absent(Absence::GpuLost))
            .with(Field::GpmDramActive, Measured(10_000));
        let absent = Absence::ALL.iter().map(|why| Fields::absent(*why));
        for fields in absent.chain([mixed, first(Measured(1 << 40)), first(Absent(Absence::NotRecorded))]) {
            let bytes = fields.pack();
            assert_eq!(Fields::packed(&bytes), fields, "{bytes:?}");
            assert_eq!(Fields::packed(&bytes).pack(), bytes);
        }
        assert!(Fields::absent(Absence::NotRecorded).pack().is_empty());
        assert!(Fields::absent(Absence::NotSupported).pack().len() < 4);
    }

    #[test]
    fn a_number_that_does_not_fit_is_implausible_and_the_others_stay() {
        let fields = Fields::absent(Absence::NoData)
            .with(Field::RecoveryAction, Measured(u64::MAX))
            .with(Field::ThermalNs, Measured(7));
        let back = Fields::packed(&fields.pack());
        assert_eq!(back.get(Field::RecoveryAction), Absent(Absence::Implausible));
        assert_eq!(back.get(Field::ThermalNs), Measured(7));
        assert_eq!(back.get(Field::HwThermalNs), Absent(Absence::NoData));
    }

    #[test]
    fn a_field_that_an_older_row_does_not_hold_was_not_recorded() {
        let older = Fields::packed(&[8, 0, 1, 2]);
        assert_eq!(older.get(Field::RecoveryAction), Measured(7));
        assert_eq!(older.get(Field::SwThermalNs), Absent(Absence::NotSupported));
        assert_eq!(older.get(Field::HwThermalNs), Absent(Absence::NotRecorded));
        assert_eq!(Fields::packed(&[]), Fields::absent(Absence::NotRecorded));
    }

    #[test]
    fn bytes_that_make_no_sense_are_not_understood_and_never_a_number() {
        let broken: [(&str, &[u8]); 9] = [
            ("a number that does not end", &[8, 0x80]),
            ("an absence without its reason", &[8, 0]),
            ("an absence without its count", &[8, 0, 3]),
            ("no reason", &[8, 0, 0, 1]),
            ("for no field", &[8, 0, 3, 0]),
            ("a nought without its count", &[8, 1]),
            ("a nought for no field", &[8, 1, 0]),
            ("larger than any number", &[8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2]),
            ("longer than any number", &[8, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 0]),
        ];
        for (name, bytes) in broken {
            let fields = Fields::packed(bytes);
            assert_eq!(fields.get(Field::RecoveryAction), Measured(7), "{name}");
            for field in &Field::ALL[1..] {
                assert_eq!(fields.get(*field), Absent(Absence::NotUnderstood), "{name}");
            }
        }
        let later = Fields::packed(&[0, 99, 1]);
        assert_eq!(
            later.get(Field::RecoveryAction),
            Absent(Absence::NotRecorded),
            "a later version's reason"
        );
    }

    #[test]
    fn writing_one_down_keeps_what_was_stored() {
        let stored = Fields::absent(Absence::NoData).with(Field::ThermalNs, Measured(5));
        let changed = Fields::packed(&stored.pack()).with(Field::RecoveryAction, Measured(1));
        assert_eq!(changed, stored.with(Field::RecoveryAction, Measured(1)));
    }
}

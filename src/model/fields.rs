//! What the driver says beside the main readings: the cumulative counters, whose differences speak for the whole
//! time between two runs, a few states, and the activity that GPM measured. Raw numbers, in NVML's units.

mod packed;

use crate::reading::{Absence, Reading};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident = $word:literal;)*) => {
        /// One number of [`Fields`]. Its place in this list is its place in the ledger: new ones go to the end.
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
    /// Time below the wanted clocks because of the power limit, ns (NVML field 74). Normal at work.
    PowerCapNs = "power_cap_ns";
    /// The same because of temperature, ns (75).
    ThermalNs = "thermal_ns";
    /// The same because of other GPUs in a sync-boost group, ns (76).
    SyncBoostNs = "sync_boost_ns";
    /// The same because of the board's limit, ns (77).
    BoardLimitNs = "board_limit_ns";
    /// The same because of low utilization, ns (78). Kept, never judged on: no recording confirms it.
    LowUtilizationNs = "low_utilization_ns";
    /// The same because of the board's reliability limit, ns (79).
    ReliabilityNs = "reliability_ns";
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
    /// Corrected ECC errors since the driver was loaded (3).
    EccCorrectedVolatile = "ecc_corrected_volatile";
    /// Uncorrected ECC errors since the driver was loaded (4).
    EccUncorrectedVolatile = "ecc_uncorrected_volatile";
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
    /// What the driver wants done to this GPU: 0 nothing, 1 reset, 2 reboot, ... (230, from driver 570).
    RecoveryAction = "recovery_action";
    /// Share of time in which an SM was active, hundredths of a percent (GPM metric 2, over 100 ms or more).
    GpmSmActive = "gpm_sm_active";
    /// Share of time in which a tensor pipe was active, hundredths of a percent (GPM 5).
    GpmTensorActive = "gpm_tensor_active";
    /// Share of the memory bandwidth used, hundredths of a percent (GPM 10).
    GpmDramActive = "gpm_dram_active";
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

    /// The ledger's form: field after field in varints, seven bits a byte, the lowest first. A value stands as the
    /// next higher number. 0 begins an absence: the reason's code and for how many fields in a row it holds follow.
    /// After 1, the value 0, so does for how many it holds: most counters of a sound card stand there. The last field
    /// that was recorded ends it. A value that has no next higher number is implausible.
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

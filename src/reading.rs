//! A field read once: measured, or absent with the reason. The type that carries "never act on absent
//! evidence": there is no default, no fallback and no conversion from `Option`, so an absence can be
//! neither lost nor turned into a number.

pub mod packed;

use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, SerializeMap, Serializer};

/// One reading. Made by the sources (`gpu`, `slurm`, `host`) and by the ledger, which stores both halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading<T> {
    /// The source answered with a plausible value.
    Measured(T),
    /// It did not; a rule that needs this field cannot hold, in either direction.
    Absent(Absence),
}

use Reading::{Absent, Measured};

impl<T> Reading<T> {
    /// The value, to be matched on: what happens without one is the caller's to say.
    pub fn measured(&self) -> Option<&T> {
        match self {
            Measured(value) => Some(value),
            Absent(_) => None,
        }
    }

    /// Why there is no value.
    pub fn absence(&self) -> Option<Absence> {
        match self {
            Measured(_) => None,
            Absent(why) => Some(*why),
        }
    }

    /// The same reading in another form; an absence stays what it is.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Measured(value) => Measured(f(value)),
            Absent(why) => Absent(why),
        }
    }

    /// A reading computed from this one; an absence stays what it is.
    pub fn and_then<U>(self, f: impl FnOnce(T) -> Reading<U>) -> Reading<U> {
        match self {
            Measured(value) => f(value),
            Absent(why) => Absent(why),
        }
    }

    /// By reference.
    pub fn as_ref(&self) -> Reading<&T> {
        match self {
            Measured(value) => Measured(value),
            Absent(why) => Absent(*why),
        }
    }

    /// Keeps a value that the test accepts; another one is [`Absence::Implausible`].
    pub fn plausible(self, test: impl FnOnce(&T) -> bool) -> Reading<T> {
        match self {
            Measured(value) if !test(&value) => Absent(Absence::Implausible),
            other => other,
        }
    }
}

impl Absence {
    /// A fault of the collector as a whole, not of one card or one reading: a hole in the samples.
    pub fn is_collector_fault(self) -> bool {
        use Absence::*;
        matches!(
            self,
            DeadlinePassed
                | DriverNotLoaded
                | LibraryNotFound
                | VersionMismatch
                | WorkerStuck
                | ControlRefused
                | SourceFailed
        )
    }
}

macro_rules! absences {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $key:literal, $words:literal;)*) => {
        /// Why a reading is absent. Codes are stored in the ledger and never change their meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Absence { $($(#[$doc])* $name,)* }

        impl Absence {
            /// Every reason there is, in code order.
            pub const ALL: &'static [Absence] = &[$(Absence::$name,)*];

            /// The ledger's code, above 0.
            pub fn code(self) -> i64 { match self { $(Absence::$name => $code,)* } }

            /// The key in JSON: `not_supported`.
            pub fn key(self) -> &'static str { match self { $(Absence::$name => $key,)* } }

            /// The reason in words, to follow "not readable: ".
            pub fn words(self) -> &'static str { match self { $(Absence::$name => $words,)* } }

            /// The reason of a stored code; a code of a later version reads as [`Absence::NotRecorded`].
            pub fn from_code(code: i64) -> Absence {
                match code { $($code => Absence::$name,)* _ => Absence::NotRecorded }
            }
        }
    };
}

absences! {
    /// This GPU, driver or MIG mode cannot say (NVML 3, 13, 25, 26; symbol missing).
    NotSupported = 1, "not_supported", "not supported by this GPU or driver";
    /// Asked, nothing to tell (NVML 6, 21).
    NoData = 2, "no_data", "the driver has no data";
    /// More rights are needed (NVML 4, 17): a fault of the set-up.
    NoPermission = 3, "no_permission", "permission refused";
    /// The GPU has fallen off or hangs (NVML 15; 999 at the handle).
    GpuLost = 4, "gpu_lost", "the GPU is lost";
    /// NVML 16, or a pending recovery action.
    ResetRequired = 5, "reset_required", "the GPU needs a reset";
    /// One call failed for now (NVML 10, 19, 20, 27, 999 on one value).
    Transient = 6, "transient", "the driver could not say this time";
    /// A value that cannot be: kept out of every rule.
    Implausible = 7, "implausible", "the value is implausible";
    /// Budget spent, or an earlier failure made asking pointless.
    NotAsked = 8, "not_asked", "not asked";
    /// The worker did not answer in time.
    DeadlinePassed = 9, "deadline_passed", "no answer within the deadline";
    /// NVML 9 with no driver in /proc.
    DriverNotLoaded = 10, "driver_not_loaded", "the NVIDIA driver is not loaded";
    /// libnvidia-ml.so.1 cannot be opened (or NVML 12).
    LibraryNotFound = 11, "library_not_found", "libnvidia-ml.so.1 was not found";
    /// NVML 18: library and kernel module differ, as after an upgrade under running jobs.
    VersionMismatch = 12, "version_mismatch", "driver and library versions differ";
    /// The worker of an earlier run still hangs in the driver; no second one was started.
    WorkerStuck = 13, "worker_stuck", "an earlier run's worker still hangs in the driver";
    /// The ledger holds no such reading.
    NotRecorded = 14, "not_recorded", "not recorded";
    /// Known on this node, not listed by the driver this time.
    NotListed = 15, "not_listed", "the driver does not list this unit";
    /// The driver is loaded but its control device refuses to open (NVML 9 with /proc/driver/nvidia).
    ControlRefused = 16, "control_refused", "the driver's control device refuses to open";
    /// A program's or a file's answer was not understood.
    NotUnderstood = 17, "not_understood", "the answer was not understood";
    /// A program could not be started or ended with an error.
    SourceFailed = 18, "source_failed", "the source failed";
    /// A cumulative counter cannot speak for this interval: it went back, or boot or driver changed.
    CounterReset = 19, "counter_reset", "the counter started anew";
    /// More than one job holds the unit (shards, MPS): whose reading it is cannot be said.
    Shared = 20, "shared", "more than one job holds it";
    /// What slurmd's configuration means by a GRES index could not be found out.
    NotMapped = 21, "not_mapped", "its GRES index could not be mapped to a device by gres.conf";
    /// One run may look at so much, and this is more.
    LimitReached = 22, "limit_reached", "more than one run may look at";
    /// A worker of another asker, which still had time, was at the GPUs for as long as could be waited.
    LookAtWork = 23, "look_at_work", "another look at the GPUs was still at work";
}

impl<T: Serialize> Serialize for Reading<T> {
    /// `{"value": 97}` or `{"value": null, "absent": "not_supported"}` for people; a tagged value on the
    /// worker's pipe.
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if s.is_human_readable() {
            let mut map = s.serialize_map(None)?;
            match self {
                Measured(value) => map.serialize_entry("value", value)?,
                Absent(why) => {
                    map.serialize_entry("value", &None::<()>)?;
                    map.serialize_entry("absent", why.key())?;
                }
            }
            map.end()
        } else {
            let wire: Result<&T, i64> = match self {
                Measured(value) => Ok(value),
                Absent(why) => Err(why.code()),
            };
            wire.serialize(s)
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Reading<T> {
    /// Only the pipe's form is read back; JSON is for others to read.
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Reading<T>, D::Error> {
        Ok(match Result::<T, i64>::deserialize(d)? {
            Ok(value) => Measured(value),
            Err(code) => Absent(Absence::from_code(code)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_reading_is_null_with_its_reason_never_zero() {
        // slurmwatch article (NR-09): failed readings printed as 0 W, 0 C, 0 %.
        let json = |r: Reading<u32>| serde_json::to_string(&r).unwrap();
        assert_eq!(json(Measured(97)), r#"{"value":97}"#);
        assert_eq!(json(Measured(0)), r#"{"value":0}"#);
        assert_eq!(json(Absent(Absence::NotSupported)), r#"{"value":null,"absent":"not_supported"}"#);
    }

    #[test]
    fn every_reason_survives_its_code_and_keys_are_distinct() {
        let mut keys: Vec<_> = Absence::ALL.iter().map(|a| a.key()).collect();
        for why in Absence::ALL {
            assert_eq!(Absence::from_code(why.code()), *why);
            assert!(why.code() > 0);
        }
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), Absence::ALL.len());
    }

    #[test]
    fn the_pipe_carries_both_halves() {
        for r in [Measured(5u64), Absent(Absence::GpuLost)] {
            let bytes = postcard::to_allocvec(&r).unwrap();
            assert_eq!(postcard::from_bytes::<Reading<u64>>(&bytes).unwrap(), r);
        }
    }
}

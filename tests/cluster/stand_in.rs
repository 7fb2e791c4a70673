//! The stand-in libnvidia-ml.so.1 of a node, and the scenario.txt beside it that says what its GPUs look like.

use super::fake_nvml::FakeNvml;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// GPUs of each node.
pub const GPUS: usize = 4;

/// Builds the library; the path of the finished file.
pub fn build() -> Result<PathBuf, String> {
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cluster-libnvidia-ml.so.1");
    match fs::copy(FakeNvml::new("").library(), &library) {
        Ok(_) => Ok(library),
        Err(e) => Err(format!("the stand-in library: {}: {e}", library.display())),
    }
}

/// What a GPU looks like.
#[derive(Clone, Copy, Debug)]
pub enum Look {
    /// Nobody's: no process, no memory held.
    Free,
    /// At work for this process.
    Busy(u32),
    /// Memory held, this process resident, no compute.
    Hung(u32),
}

impl Look {
    fn power_mw(self) -> u64 {
        match self {
            Look::Free => 70_000,
            Look::Busy(_) => 650_000,
            Look::Hung(_) => 118_000,
        }
    }
}

/// The GPUs of one node. The energy counter runs on across changes, as a real one does.
pub struct Gpus {
    node: usize,
    epoch_us: u64,
    energy_mj: [u64; GPUS],
    since_us: u64,
    looks: [Look; GPUS],
    /// Cards before Volta have no energy counter.
    pub counts_energy: bool,
}

impl Gpus {
    /// All free. `now_us`: Unix time in microseconds.
    pub fn new(node: usize, now_us: u64) -> Gpus {
        Gpus {
            node,
            epoch_us: now_us,
            energy_mj: [1_000_000_000; GPUS],
            since_us: now_us,
            looks: [Look::Free; GPUS],
            counts_energy: true,
        }
    }

    /// They look like this from now on.
    pub fn change(&mut self, looks: &[(usize, Look)], now_us: u64) {
        for (mj, look) in self.energy_mj.iter_mut().zip(self.looks) {
            *mj += look.power_mw() * (now_us - self.since_us) / 1_000_000;
        }
        self.since_us = now_us;
        for &(gpu, look) in looks {
            self.looks[gpu] = look;
        }
    }

    /// scenario.txt.
    pub fn text(&self) -> String {
        let mut text = format!("epoch {}\nnvmlSystemGetDriverVersion = 580.95.05\n", self.epoch_us);
        for gpu in 0..GPUS {
            self.card(gpu, &mut text);
        }
        text
    }

    fn card(&self, gpu: usize, text: &mut String) {
        let (node, look) = (self.node + 1, self.looks[gpu]);
        let power_mw = look.power_mw();
        let (util, mem_util, clock, used, pid): (u32, u32, u32, u64, _) = match look {
            Look::Free => (0, 0, 345, 0, None),
            Look::Busy(pid) => (97, 60, 1755, 70 << 30, Some(pid)),
            Look::Hung(pid) => (0, 0, 1980, 60 << 30, Some(pid)),
        };
        // A counter is `base + rate` from the epoch: the base is what makes it continuous now.
        let run_ms = (self.since_us - self.epoch_us) / 1000;
        let base_mj = self.energy_mj[gpu].saturating_sub(power_mw * run_ms / 1000);
        let ring = |value: u32| {
            (0..40).rev().map(|i| format!("{}:{value}", 20_000 + i * 166_000)).collect::<Vec<_>>().join(" ")
        };
        let _ = write!(
            text,
            "gpu {gpu}
  nvmlDeviceGetUUID = GPU-0000000{node}-0000-0000-0000-00000000000{gpu}
  nvmlDeviceGetMinorNumber = {gpu}
  nvmlDeviceGetPciInfo_v3 = 00000000:{:02X}:00.0
  nvmlDeviceGetName = NVIDIA H100 80GB HBM3
  nvmlDeviceGetPersistenceMode = 1
  nvmlDeviceGetMigMode = 0 0
  nvmlDeviceGetUtilizationRates = {util} {mem_util}
  sample 1 = {}
  sample 2 = {}
  nvmlDeviceGetMemoryInfo_v2 = 85520809984 {used} 608174080
  nvmlDeviceGetPowerUsage = {power_mw}
  nvmlDeviceGetEnforcedPowerLimit = 700000
  nvmlDeviceGetPowerManagementDefaultLimit = 700000
  nvmlDeviceGetClockInfo(1) = {clock}
  nvmlDeviceGetMaxClockInfo(1) = 1980
  nvmlDeviceGetTemperature(0) = 41
  nvmlDeviceGetCurrentClocksEventReasons = {}
  nvmlDeviceGetCurrentClocksThrottleReasons = {0}
  nvmlDeviceGetComputeRunningProcesses_v3 = ok
  nvmlDeviceGetGraphicsRunningProcesses_v3 = ok
  nvmlDeviceGetMPSComputeRunningProcesses_v3 = ok
",
            0x1a + gpu * 0x10,
            ring(util),
            ring(mem_util),
            if util == 0 { "0x1" } else { "0x4" },
        );
        if self.counts_energy {
            let _ = writeln!(text, "  nvmlDeviceGetTotalEnergyConsumption = {base_mj} + {power_mw}");
        }
        if let Some(pid) = pid {
            let _ = writeln!(text, "  proc compute = {pid} {used}");
        }
    }
}

/// A driver that never answers.
pub const DRIVER_HANGS: &str = "nvmlInit_v2 ~ forever\n";

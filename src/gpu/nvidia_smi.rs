//! Reads the GPUs through the nvidia-smi program, for nodes where only that serves. It knows less than NVML:
//! no rings, no energy, no MIG instances, of processes only those with compute. Words instead of a number are
//! reasons, never 0. One lost GPU makes nvidia-smi silent about the others too (exit status 15): then the
//! whole look is absent.

pub mod table;

use super::processes::is_there;
use super::{GpuSource, driver};
use crate::model::{GpuProcess, GpuReport, UnitSample};
use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use crate::units::UnitUuid;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// GPUs through nvidia-smi.
#[derive(Clone, Debug)]
pub struct NvidiaSmi {
    program: PathBuf,
}

/// The mask's column, as drivers since 535 call it, and before.
const REASONS: [&str; 2] = ["clocks_event_reasons.active", "clocks_throttle_reasons.active"];
const OUTPUT_MOST_BYTES: u64 = 1 << 20;

impl NvidiaSmi {
    /// `program`: its absolute path.
    pub fn new(program: PathBuf) -> NvidiaSmi {
        NvidiaSmi { program }
    }

    /// Exit status and standard output.
    fn ask(&self, query: &str) -> Result<(i32, String), Absence> {
        let mut command = Command::new(&self.program);
        command.args([query, "--format=csv,noheader,nounits"]).env_clear().env("LC_ALL", "C");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        // SAFETY: one system call, between fork and exec. The program dies with the worker, where it can die.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command.spawn().map_err(|_| Absence::SourceFailed)?;
        let mut bytes = Vec::new();
        if let Some(out) = child.stdout.take() {
            out.take(OUTPUT_MOST_BYTES).read_to_end(&mut bytes).map_err(|_| Absence::SourceFailed)?;
        }
        if bytes.len() as u64 == OUTPUT_MOST_BYTES {
            return Err(Absence::NotUnderstood);
        }
        let status = child.wait().map_err(|_| Absence::SourceFailed)?.code().ok_or(Absence::SourceFailed)?;
        Ok((status, String::from_utf8(bytes).map_err(|_| Absence::NotUnderstood)?))
    }

    fn units(&self) -> Result<(Reading<String>, Vec<UnitSample>), Absence> {
        let mut answer = (0, String::new());
        for reasons in REASONS {
            answer = self.ask(&format!("--query-gpu={}", table::COLUMNS.replace("REASONS", reasons)))?;
            if !answer.1.contains("is not a valid field") {
                break;
            }
        }
        let (status, text) = answer;
        if text.contains("No devices were found") {
            return Ok((Absent(Absence::NoData), Vec::new()));
        }
        refused(status, driver::loaded())?;
        table::gpus(&text)
    }

    fn processes(&self) -> Result<Vec<(UnitUuid, GpuProcess)>, Absence> {
        let (status, text) = self.ask(&format!("--query-compute-apps={}", table::PROCESS_COLUMNS))?;
        refused(status, driver::loaded())?;
        table::processes(&text)
    }
}

impl GpuSource for NvidiaSmi {
    fn read(&mut self) -> Reading<GpuReport> {
        let (driver, mut units) = match self.units() {
            Ok(found) => found,
            Err(why) => return Absent(why),
        };
        if !units.is_empty() {
            table::assign(self.processes(), &mut units, is_there);
        }
        for unit in &mut units {
            unit.identity.minor = unit.identity.pci.as_ref().and_then(driver::minor_of);
        }
        Measured(GpuReport { driver, units })
    }
}

/// nvidia-smi(1) RETURN VALUE, which are NVML's codes. 14, a corrupt infoROM, is said of one GPU beside whole
/// answers.
fn refused(status: i32, driver_loaded: bool) -> Result<(), Absence> {
    Err(match status {
        0 | 14 => return Ok(()),
        3 | 13 => Absence::NotSupported,
        4 => Absence::NoPermission,
        9 if driver_loaded => Absence::ControlRefused,
        9 => Absence::DriverNotLoaded,
        12 => Absence::LibraryNotFound,
        15 => Absence::GpuLost,
        16 => Absence::ResetRequired,
        18 => Absence::VersionMismatch,
        _ => Absence::SourceFailed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_statuses_are_nvml_codes() {
        let table = [
            (0, true, Ok(())),
            (14, true, Ok(())),
            (9, false, Err(Absence::DriverNotLoaded)),
            (9, true, Err(Absence::ControlRefused)),
            (12, true, Err(Absence::LibraryNotFound)),
            (15, true, Err(Absence::GpuLost)),
            (18, true, Err(Absence::VersionMismatch)),
            (255, true, Err(Absence::SourceFailed)),
        ];
        for (status, loaded, want) in table {
            assert_eq!(refused(status, loaded), want, "status {status}");
        }
    }
}

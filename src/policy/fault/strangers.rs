//! Processes that belong to no job: which of them are services of the site, and how one is told.

use crate::model::{GpuProcess, Who};
use crate::reading::Reading;

/// A name is cut to so many bytes by the kernel (TASK_COMM_LEN).
const NAME_BYTES: usize = 15;

/// Services that may hold a GPU for ever: NVIDIA's persistence daemon and the MPS server.
const SERVICES: [&str; 2] = ["nvidia-persistenced", "nvidia-cuda-mps-server"];

/// Whether a process of this short name is a service of the site: one of NVIDIA's, or of `epilog.allow`. The name is no
/// proof: whoever takes it is not told of, no more.
pub fn is_service(comm: &str, allow: &[String]) -> bool {
    SERVICES.iter().any(|name| is_cut_to(name, comm)) || is_allowed(comm, allow)
}

/// The same of the site's own names alone, where NVIDIA's are not believed.
pub fn is_allowed(comm: &str, allow: &[String]) -> bool {
    allow.iter().any(|name| is_cut_to(name, comm))
}

fn is_cut_to(name: &str, comm: &str) -> bool {
    name.as_bytes()[..name.len().min(NAME_BYTES)] == *comm.as_bytes()
}

/// "pid 900 `python` of uid 1001 with 20480 MiB"; the name escaped, for the process chose it.
pub fn words(process: &GpuProcess, who: &Who) -> String {
    let uid = who.uid.measured().map_or("unknown".to_owned(), u32::to_string);
    let comm = who.comm.measured().map_or("?".to_owned(), |comm| comm.escape_default().to_string());
    let memory = match &process.memory {
        Reading::Measured(bytes) => format!("{} MiB", bytes.0 >> 20),
        Reading::Absent(_) => "an unknown amount of memory".to_owned(),
    };
    format!("pid {} `{comm}` of uid {uid} with {memory}", process.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_known_by_its_name_as_the_kernel_cuts_it() {
        // XuehaiPan/nvitop#152, wookayin/gpustat#157 (PE-14): services hold every GPU for ever.
        let allow = ["nv-hostengine".to_owned(), "a-name-of-the-site-that-is-long".to_owned()];
        for comm in ["nvidia-persiste", "nvidia-cuda-mps", "nv-hostengine", "a-name-of-the-s"] {
            assert!(is_service(comm, &allow), "{comm}");
        }
        for comm in ["python", "", "nvidia-persist", "a-name-of-the-site"] {
            assert!(!is_service(comm, &allow), "{comm}");
        }
        assert!(is_allowed("nv-hostengine", &allow) && !is_allowed("nvidia-cuda-mps", &allow));
    }
}

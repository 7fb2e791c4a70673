//! The stand-in libnvidia-ml.so.1: compiled from `tests/fake-nvml/` once per test binary, then set down with
//! a scenario of its own for each test. It is driven through the real loader and the real bindings.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

/// Which driver the library is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Like {
    /// A current one.
    Current,
    /// 535.43 to 535.86: lacks the symbol by which readers know the sound process structure.
    Driver535,
    /// 470: no *_v3 lists, no second memory call, no clocks-event reasons.
    Driver470,
}

/// A library with its scenario, in a folder of its own.
pub struct FakeNvml {
    dir: TempDir,
}

impl FakeNvml {
    /// A current driver that answers by `scenario` (its grammar: `tests/fake-nvml/fake_nvml.c`).
    pub fn new(scenario: &str) -> FakeNvml {
        FakeNvml::like(Like::Current, scenario)
    }

    /// The same with another driver's symbols.
    pub fn like(like: Like, scenario: &str) -> FakeNvml {
        let dir = tempfile::tempdir().unwrap();
        fs::copy(built(like), dir.path().join("libnvidia-ml.so.1")).unwrap();
        let fake = FakeNvml { dir };
        fake.play(scenario);
        fake
    }

    /// Another scenario from the next start on.
    pub fn play(&self, scenario: &str) {
        fs::write(self.dir.path().join("scenario.txt"), scenario).unwrap();
    }

    /// What to name as `gpu.library`.
    pub fn library(&self) -> PathBuf {
        self.dir.path().join("libnvidia-ml.so.1")
    }

    /// The folder, for what a test needs beside the library.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Every call so far, `<function> <gpu>`, where the scenario says `log`.
    pub fn calls(&self) -> Vec<String> {
        let log = fs::read_to_string(self.dir.path().join("calls.log"));
        log.map(|text| text.lines().map(str::to_owned).collect()).unwrap_or_default()
    }
}

fn built(like: Like) -> &'static Path {
    static BUILDS: [OnceLock<PathBuf>; 3] = [const { OnceLock::new() }; 3];
    BUILDS[like as usize].get_or_init(|| {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake-nvml/fake_nvml.c");
        let out = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("fake-nvml-{like:?}-{}.so", std::process::id()));
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]);
        cc.arg("-Wl,-soname,libnvidia-ml.so.1").arg("-o").arg(&out);
        match like {
            Like::Current => {}
            Like::Driver535 => drop(cc.arg("-DOLD_535")),
            Like::Driver470 => drop(cc.arg("-DOLD_470")),
        }
        let status = cc.arg(source).arg("-ldl").status().expect("a C compiler named `cc`");
        assert!(status.success(), "the stand-in library did not compile");
        out
    })
}

/// A process that exists wherever tests run, beside the test's own.
pub const INIT: u32 = 1;

/// The fields of [`node`]'s GPUs by id, with their kinds of value: in the order of the model, but for GPM's
/// activity. Each is another kind where drivers differ, and NVLink's count only for all links together.
pub const FIELDS: [(&str, &str); 26] = [
    ("230", "u"),
    ("75", "ull"),
    ("269", "ull"),
    ("270", "ull"),
    ("271", "ull"),
    ("197", "ull"),
    ("198", "ull"),
    ("138 all", "ull"),
    ("139 all", "ull"),
    ("4", "ul"),
    ("74", "ull"),
    ("76", "ull"),
    ("77", "ull"),
    ("78", "ull"),
    ("79", "ull"),
    ("3", "ull"),
    ("5", "sll"),
    ("6", "ull"),
    ("29", "u"),
    ("30", "u"),
    ("31", "u"),
    ("94", "u"),
    ("142", "u"),
    ("143", "us"),
    ("144", "si"),
    ("145", "u"),
];

/// What GPU `gpu` says of the `n`-th of [`FIELDS`]: no two alike, and the wide ones wider than 32 bits; but these are
/// healthy cards, that want nothing done to them.
pub fn field_value(gpu: u64, n: u64) -> u64 {
    match FIELDS[n as usize].0 {
        "230" | "31" | "144" | "145" => return 0,
        "29" => return 2 * gpu + 1,
        "30" => return 2 * gpu + 2,
        _ => {}
    }
    let wide = FIELDS[n as usize].1.ends_with("ll");
    100 * gpu + n + if wide { 3 << 32 } else { 0 }
}

/// Memory of every GPU of [`node`].
pub const TOTAL_BYTES: u64 = 85_520_809_984;
/// The driver's own part of it.
pub const RESERVED_BYTES: u64 = 608_174_080;

/// A node of so many healthy GPUs, no two alike, with minors in the opposite order of indices.
pub fn node(gpus: u64) -> String {
    let mut scenario = String::from("nvmlSystemGetDriverVersion = 580.95.05\n");
    for i in 0..gpus {
        let (used, reserved) = ((i + 1) << 30, RESERVED_BYTES);
        write!(
            scenario,
            "gpu {i}
               nvmlDeviceGetUUID = GPU-{i:08}-1111-2222-3333-444444444444
               nvmlDeviceGetMinorNumber = {minor}
               nvmlDeviceGetPciInfo_v3 = 00000000:{bus:02X}:00.0
               nvmlDeviceGetName = NVIDIA H100 80GB HBM3
               nvmlDeviceGetMigMode = 0 0
               nvmlDeviceGetUtilizationRates = {sm} {mem}
               sample 1 = 100000:0 9900000:{peak} 5000000:1
               sample 2 = 100000:0 9000000:2
               nvmlDeviceGetMemoryInfo_v2 = {TOTAL_BYTES} {used} {reserved}
               nvmlDeviceGetMemoryInfo = {TOTAL_BYTES} {v1}
               nvmlDeviceGetPowerUsage = {power}
               nvmlDeviceGetEnforcedPowerLimit = 700000
               nvmlDeviceGetTotalEnergyConsumption = {energy}
               field 83 = ull {energy}
               field 186 = u {instant}
               nvmlDeviceGetClockInfo(1) = {clock}
               nvmlDeviceGetMaxClockInfo(1) = 1980
               nvmlDeviceGetTemperature(0) = {celsius}
               nvmlDeviceGetCurrentClocksEventReasons = 0x604
               nvmlDeviceGetCurrentClocksThrottleReasons = 0x4
               nvmlDeviceGetComputeRunningProcesses_v3 = ok
               nvmlDeviceGetGraphicsRunningProcesses_v3 = ok
               nvmlDeviceGetMPSComputeRunningProcesses_v3 = ok
               proc compute = {pid} {used}
               proc mps = {client} na\n",
            minor = gpus - 1 - i,
            bus = 0x1a + i,
            sm = 10 * i,
            mem = 5 * i,
            peak = 20 + i,
            v1 = used + reserved,
            power = 90_000 + i,
            instant = 91_000 + i,
            energy = 5_000_000_000 * (i + 1),
            clock = 345 + i,
            celsius = 30 + i,
            pid = std::process::id(),
            client = INIT,
        )
        .unwrap();
        for (n, (id, kind)) in FIELDS.iter().enumerate() {
            writeln!(scenario, "field {id} = {kind} {}", field_value(i, n as u64)).unwrap();
        }
    }
    scenario
}

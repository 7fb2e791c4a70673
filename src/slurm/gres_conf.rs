//! gres.conf, as far as it says which device file a GRES index is. Slurm numbers this node's GPUs in the
//! order of its merged list; where that order cannot be known from this file, there is no map.

use super::conf::logical_lines;
use super::hostlist;
use crate::units::{DeviceMinor, GresIndex};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Linux's major number of /dev/nvidiaN (the kernel's devices.txt).
const NVIDIA_MAJOR: u32 = 195;
/// Where slurmd looks without SLURM_CONF: the usual default, and a configless node's cache.
const USUAL_FOLDERS: [&str; 2] = ["/etc/slurm", "/run/slurm/conf"];

/// What GRES indices mean on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GresMap {
    /// The device files in index order, as listed by hand.
    Files(Vec<PathBuf>),
    /// slurmd asks NVML: PCI bus order, which is NVML's own where every GPU is configured and none is lost.
    AutoDetected,
    /// The same, and so many GPUs are configured.
    AutoDetectedCount(u32),
    /// The same, and those of these device files are configured, as listed: others may be left out, so NVML's
    /// index is not Slurm's.
    AutoDetectedFiles(Vec<PathBuf>),
}

/// gres.conf as it stands.
pub struct GresConf {
    file: PathBuf,
    text: String,
}

impl GresConf {
    /// From the folder of slurm.conf, or from where slurmd looks by itself.
    pub fn read(conf: Option<&Path>) -> Result<GresConf, String> {
        let given = conf.and_then(Path::parent).map(Path::to_path_buf);
        let folders = given.map_or_else(|| USUAL_FOLDERS.map(PathBuf::from).to_vec(), |folder| vec![folder]);
        for file in folders.iter().map(|folder| folder.join("gres.conf")) {
            match std::fs::read_to_string(&file) {
                Ok(text) => return Ok(GresConf { file, text }),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                Err(e) => return Err(format!("`{}`: {e}", file.display())),
            }
        }
        let places: Vec<String> = folders.iter().map(|f| format!("`{}`", f.display())).collect();
        Err(format!("no gres.conf in {}", places.join(" or ")))
    }

    /// By its text; `file` is what errors call it.
    pub fn of(file: PathBuf, text: String) -> GresConf {
        GresConf { file, text }
    }

    /// What it says of this node's GPUs.
    pub fn map(&self, node: &str) -> Result<GresMap, String> {
        GresMap::parse(&self.text, node).map_err(|e| format!("`{}`: {e}", self.file.display()))
    }

    /// Whether GPUs of this node are given out in shares: then a job that is registered on one may hold a part of it,
    /// and no variable of the Prolog tells which it is. A line that is not understood is taken as concerning us.
    pub fn shares(&self, node: &str) -> bool {
        let of_shares = |name: &str| ["shard", "mps"].iter().any(|share| name.eq_ignore_ascii_case(share));
        let shares = |(_, line): &(usize, String)| match Line::parse(line) {
            Ok(line) => line.name.is_some_and(of_shares) && line.concerns(node).unwrap_or(true),
            Err(_) => ["name=shard", "name=mps"].iter().any(|s| line.to_ascii_lowercase().contains(s)),
        };
        logical_lines(&self.text).iter().any(shares)
    }
}

impl GresMap {
    /// From its text.
    pub fn parse(text: &str, node: &str) -> Result<GresMap, String> {
        let mut everywhere = None;
        let mut here = None;
        let (mut for_all, mut for_us) = (Vec::new(), Vec::new());
        let lines = logical_lines(text);
        for (_, line) in &lines {
            let line = Line::parse(line)?;
            if !line.concerns(node)? {
                continue;
            }
            match (line.auto_detect, line.name, line.nodes) {
                (Some(auto), None, None) => everywhere = Some(auto),
                (Some(auto), _, Some(_)) => here = Some(auto),
                _ => {}
            }
            if line.name.is_some_and(|name| name.eq_ignore_ascii_case("gpu")) {
                // slurm's gres.c: lines that begin with Name come before those that begin with NodeName.
                if line.nodes.is_some() { for_us.push(line) } else { for_all.push(line) }
            }
        }
        for_all.extend(for_us);
        let detects = here.or(everywhere).is_some_and(|auto| !auto.eq_ignore_ascii_case("off"));
        if !detects {
            return files_of(&for_all).map(GresMap::Files);
        }
        if for_all.iter().any(|line| line.file.is_some() || line.many_files) {
            return files_of(&for_all).map(GresMap::AutoDetectedFiles);
        }
        one_type(&for_all)?;
        let counts = for_all.iter().map(Line::number).collect::<Result<Option<Vec<u32>>, String>>()?;
        Ok(match counts {
            Some(counts) if !counts.is_empty() => GresMap::AutoDetectedCount(counts.into_iter().sum()),
            _ => GresMap::AutoDetected,
        })
    }

    /// The device file of an index; `None` where the file names fewer, or none at all.
    pub fn device(&self, index: GresIndex) -> Option<&Path> {
        match self {
            GresMap::Files(files) => files.get(index.0 as usize).map(PathBuf::as_path),
            GresMap::AutoDetected | GresMap::AutoDetectedCount(_) | GresMap::AutoDetectedFiles(_) => None,
        }
    }
}

/// N of /dev/nvidiaN: the device's own minor number where it exists (links are followed), else by its name.
pub fn minor_of(device: &Path) -> Result<DeviceMinor, String> {
    let by_name = || {
        let name = device.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_prefix("nvidia"));
        let digits = name.filter(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
        digits.and_then(|n| n.parse().ok()).map(DeviceMinor)
    };
    match std::fs::metadata(device) {
        Ok(meta) if meta.file_type().is_char_device() => {
            let (major, minor) = (libc::major(meta.rdev()), libc::minor(meta.rdev()));
            if major == NVIDIA_MAJOR {
                Ok(DeviceMinor(minor))
            } else {
                Err(format!("`{}` has major number {major}, not NVIDIA's {NVIDIA_MAJOR}", device.display()))
            }
        }
        _ => by_name().ok_or_else(|| format!("`{}` is no device file of an NVIDIA GPU", device.display())),
    }
}

/// The keys of one line that matter here.
#[derive(Default)]
struct Line<'a> {
    nodes: Option<&'a str>,
    name: Option<&'a str>,
    kind: Option<&'a str>,
    file: Option<&'a str>,
    count: Option<&'a str>,
    auto_detect: Option<&'a str>,
    many_files: bool,
}

impl<'a> Line<'a> {
    fn parse(text: &'a str) -> Result<Line<'a>, String> {
        let mut line = Line::default();
        for word in text.split_whitespace() {
            let (key, value) = word.split_once('=').ok_or_else(|| format!("`{word}` is no `Key=value`"))?;
            let value = value.trim_matches('"');
            let slot = match key.to_ascii_lowercase().as_str() {
                "nodename" => &mut line.nodes,
                "name" => &mut line.name,
                "type" => &mut line.kind,
                "file" => &mut line.file,
                "count" => &mut line.count,
                "autodetect" => &mut line.auto_detect,
                "multiplefiles" => {
                    line.many_files = true;
                    continue;
                }
                "cores" | "cpus" | "links" | "flags" => continue,
                _ => return Err(format!("key `{key}` is not known here")),
            };
            *slot = Some(value);
        }
        Ok(line)
    }

    /// How many GPUs a line without files says there are, if it does.
    fn number(&self) -> Result<Option<u32>, String> {
        let number = |count: &str| {
            count.parse::<u16>().map(u32::from).map_err(|_| format!("Count={count} is no number of GPUs"))
        };
        self.count.map(number).transpose()
    }

    fn concerns(&self, node: &str) -> Result<bool, String> {
        self.nodes.map_or(Ok(true), |list| hostlist::names(list, node))
    }
}

/// With types, the order is that of the types in slurm.conf's Gres=, which this file does not tell (slurm's
/// gres.c merges by type).
fn one_type(lines: &[Line<'_>]) -> Result<(), String> {
    match lines.windows(2).any(|pair| pair[0].kind != pair[1].kind) {
        true => Err("GPUs of several types: their order is in slurm.conf's Gres=".to_owned()),
        false => Ok(()),
    }
}

fn files_of(lines: &[Line<'_>]) -> Result<Vec<PathBuf>, String> {
    one_type(lines)?;
    let mut files = Vec::new();
    for line in lines {
        let of_line = match line.file {
            Some(list) if !line.many_files => hostlist::expand(list, 1024)?,
            _ => return Err("a GPU line without File=, or with MultipleFiles=".to_owned()),
        };
        if line.count.is_some_and(|count| count.parse() != Ok(of_line.len())) {
            return Err(format!("Count={} beside {} files", line.count.unwrap_or(""), of_line.len()));
        }
        files.extend(of_line.into_iter().map(PathBuf::from));
    }
    if files.is_empty() {
        return Err("no line names a GPU of this node".to_owned());
    }
    let mut sorted: Vec<&PathBuf> = files.iter().collect();
    sorted.sort();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("`{}` is named twice", pair[0].display())),
        None => Ok(files),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(numbers: &[u32]) -> GresMap {
        GresMap::Files(numbers.iter().map(|n| PathBuf::from(format!("/dev/nvidia{n}"))).collect())
    }

    #[test]
    fn an_index_is_a_place_in_the_files_as_listed() {
        let table: [(&str, &[u32]); 7] = [
            ("AutoDetect=off\nName=gpu Type=h100 File=/dev/nvidia[0-3]\n", &[0, 1, 2, 3]),
            ("name=GPU file=/dev/nvidia1\nNAME=gpu FILE=/dev/nvidia0 # swapped on this board\n", &[1, 0]),
            (
                "NodeName=n[1-4] Name=gpu File=/dev/nvidia[2-3]\nNodeName=n9 Name=gpu File=/dev/nvidia7\n",
                &[2, 3],
            ),
            ("NodeName=n1 Name=gpu File=/dev/nvidia0\nName=gpu File=/dev/nvidia1\n", &[1, 0]),
            (
                "Name=gpu \\\n  File=/dev/nvidia[0,2] Cores=0-7 Count=2\nName=shard Count=8 File=/dev/nvidia0\n",
                &[0, 2],
            ),
            ("AutoDetect=nvml\nNodeName=n1 AutoDetect=off Name=gpu File=/dev/nvidia0\n", &[0]),
            ("Name=gpu File=\"/dev/nvidia0\"\n", &[0]),
        ];
        for (text, want) in table {
            assert_eq!(GresMap::parse(text, "n1"), Ok(files(want)), "{text}");
        }
        assert_eq!(files(&[1, 0]).device(GresIndex(0)), Some(Path::new("/dev/nvidia1")));
        assert_eq!(files(&[1, 0]).device(GresIndex(2)), None);
    }

    #[test]
    fn where_slurmd_asks_the_driver_no_file_is_guessed() {
        let listed = |numbers: &[u32]| match files(numbers) {
            GresMap::Files(files) => GresMap::AutoDetectedFiles(files),
            other => other,
        };
        let table = [
            ("AutoDetect=nvml\n", GresMap::AutoDetected),
            ("NodeName=n1 AutoDetect=nvml\n", GresMap::AutoDetected),
            ("AutoDetect=nvml\nName=gpu Type=a Cores=0-7\n", GresMap::AutoDetected),
            ("AutoDetect=nvml\nNodeName=n2 Name=gpu File=/dev/nvidia1\n", GresMap::AutoDetected),
            (
                "AutoDetect=nvml\nName=gpu Count=2 Cores=0\nName=gpu Count=2 Cores=1\n",
                GresMap::AutoDetectedCount(4),
            ),
            ("AutoDetect=nvml\nName=gpu File=/dev/nvidia0\n", listed(&[0])),
            ("AutoDetect=nvml\nNodeName=n1 Name=gpu File=/dev/nvidia[1-3]\n", listed(&[1, 2, 3])),
        ];
        for (text, want) in table {
            let map = GresMap::parse(text, "n1");
            assert_eq!(map, Ok(want), "{text}");
            assert_eq!(map.unwrap().device(GresIndex(0)), None);
        }
    }

    #[test]
    fn an_order_that_cannot_be_known_is_an_error() {
        for text in [
            "",
            "Name=gpu Count=4\n",
            "Name=gpu Count=2 File=/dev/nvidia[0-3]\n",
            "Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap1\n",
            "Name=gpu Type=a File=/dev/nvidia0\nName=gpu Type=b File=/dev/nvidia1\n",
            "Name=gpu File=/dev/nvidia0\nName=gpu File=/dev/nvidia0\n",
            "Name=gpu File=/dev/nvidia[0-\n",
            "NodeName=n[ Name=gpu File=/dev/nvidia0\n",
            "NodeName=n2 Name=gpu File=/dev/nvidia0\n",
            "AutoDetect=nvml\nName=gpu Type=a\nName=gpu Type=b\n",
            "AutoDetect=nvml\nName=gpu File=/dev/nvidia0\nName=gpu Cores=0\n",
            "AutoDetect=nvml\nName=gpu Count=many\n",
            "Include /etc/slurm/more.conf\n",
            "Name=gpu File=/dev/nvidia0 NewKey=1\n",
        ] {
            assert!(GresMap::parse(text, "n1").is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_minor_is_read_from_the_device_or_from_its_name() {
        assert_eq!(minor_of(Path::new("/nowhere/nvidia12")), Ok(DeviceMinor(12)));
        for other in
            ["/nowhere/nvidia", "/nowhere/nvidiactl", "/nowhere/card0", "/nowhere/nvidia-uvm", "/dev/null"]
        {
            assert!(minor_of(Path::new(other)).is_err(), "{other}");
        }
    }

    #[test]
    fn the_recorded_files_are_read() {
        for version in ["22.05.8", "24.11.5", "26.05.5"] {
            let path = format!("{}/fixtures/slurm/{version}/gres.conf", env!("CARGO_MANIFEST_DIR"));
            let map = GresMap::parse(&std::fs::read_to_string(path).unwrap(), "node1").unwrap();
            assert_eq!(map.device(GresIndex(3)), Some(Path::new("/LAB/dev/nvidia3")), "{version}");
        }
        let conf = format!("{}/fixtures/slurm/22.05.8/slurm.conf", env!("CARGO_MANIFEST_DIR"));
        let read = |conf: &str| GresConf::read(Some(Path::new(conf)));
        assert!(read(&conf).unwrap().map("node1").is_ok(), "beside slurm.conf");
        assert!(read("/nowhere/slurm.conf").is_err());
    }

    #[test]
    fn a_node_whose_gpus_are_given_out_in_shares_is_known() {
        // dsx-ai-factory/fleet-intelligence-agent#258 (SH-02): several jobs on one device.
        let table = [
            ("AutoDetect=nvml\nName=shard Count=8\n", true),
            ("NodeName=n[1-2] Name=MPS Count=100 File=/dev/nvidia0\n", true),
            ("NodeName=n[2-3] Name=shard Count=8\nName=gpu File=/dev/nvidia0\n", false),
            ("Name=shard Count=8 DmemRegion=off\n", true),
            ("# Name=shard\nName=gpu Type=shard File=/dev/nvidia0\n", false),
            ("", false),
        ];
        for (text, want) in table {
            let conf = GresConf { file: PathBuf::new(), text: text.to_owned() };
            assert_eq!(conf.shares("n1"), want, "{text}");
        }
    }
}

//! Who holds the device file of a GPU open and can compute on it: a witness beside the driver's own process list,
//! which has been seen empty under a busy card. Asked only before a card is called idle. It never stands for more
//! than it saw: past its limit, or where it may not look, it cannot say.
//!
//! Whatever computes by CUDA has `/dev/nvidia-uvm` open beside `/dev/nvidia<minor>`, and so have the children that a
//! dead process leaves with its memory. What only watches has not: nvidia-smi, DCGM's nv-hostengine and every
//! other client of NVML, slurmstepd where it counts for the accounting, and nvidia-persistenced, which holds every
//! card's file for ever (NVIDIA/gpu-operator#118) and is known by its name too, for it can be told to hold the
//! other file. That name is no proof, and none is needed: who takes it gives up a witness in favour of himself.

use super::processes::{DELETED, Proc};
use crate::model::PERSISTENCED;
use crate::reading::{Absence, Reading};
use crate::units::DeviceMinor;
use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Links of open files looked at in one run.
const MOST_LINKS: usize = 5_000;
/// Linux's major number of /dev/nvidiaN (the kernel's devices.txt).
const NVIDIA_MAJOR: u32 = 195;

/// One run's search. Each process is looked at once.
pub struct Holders {
    proc: Proc,
    major: u32,
    links_left: usize,
    looked: BTreeMap<u32, Vec<DeviceMinor>>,
}

impl Holders {
    /// Nothing is looked at yet.
    pub fn new(proc: Proc) -> Holders {
        Holders { proc, major: NVIDIA_MAJOR, links_left: MOST_LINKS, looked: BTreeMap::new() }
    }

    /// Who holds these cards: `first` is looked at before all others, and where it holds them all no one else is.
    /// Empty: nobody. Absent with `LimitReached` past the limit.
    pub fn of(&mut self, minors: &[DeviceMinor], first: &[u32]) -> Reading<Vec<(DeviceMinor, u32)>> {
        let mut held = Vec::new();
        let looked = self.look(minors, first, &mut held);
        let lacking = |held: &[(DeviceMinor, u32)]| minors.iter().any(|m| !held.iter().any(|(h, _)| h == m));
        if lacking(&held) {
            let all = looked.and_then(|()| self.proc.all());
            if let Reading::Absent(why) = all.and_then(|all| self.look(minors, &all, &mut held)) {
                return Reading::Absent(why);
            }
        }
        held.sort_unstable();
        held.dedup();
        Reading::Measured(held)
    }

    fn look(
        &mut self,
        minors: &[DeviceMinor],
        pids: &[u32],
        held: &mut Vec<(DeviceMinor, u32)>,
    ) -> Reading<()> {
        for &pid in pids {
            if !self.looked.contains_key(&pid) {
                match self.held_by(pid) {
                    Reading::Measured(minors) => drop(self.looked.insert(pid, minors)),
                    Reading::Absent(Absence::NotListed) => continue,
                    Reading::Absent(why) => return Reading::Absent(why),
                }
            }
            let its = self.looked.get(&pid).into_iter().flatten();
            held.extend(its.filter(|m| minors.contains(m)).map(|m| (*m, pid)));
        }
        Reading::Measured(())
    }

    fn held_by(&mut self, pid: u32) -> Reading<Vec<DeviceMinor>> {
        let files = match self.proc.open_files(pid, self.links_left) {
            Reading::Measured(files) => files,
            Reading::Absent(why) => return Reading::Absent(why),
        };
        self.links_left -= files.len();
        let computes = files.iter().any(|(_, name)| device(name) == Some("-uvm"));
        let mut minors: Vec<DeviceMinor> = Vec::new();
        if computes {
            minors.extend(files.iter().filter_map(|(link, name)| self.minor(link, name)));
        }
        minors.sort_unstable();
        minors.dedup();
        // Asked only of those few that would count.
        if !minors.is_empty() && (self.proc.is_this_program(pid) || self.is_persistenced(pid)) {
            minors.clear();
        }
        Reading::Measured(minors)
    }

    /// By the file's own number: a container may show a card under another's name.
    fn minor(&self, link: &Path, name: &Path) -> Option<DeviceMinor> {
        device(name).filter(|n| n.parse::<u32>().is_ok())?;
        let meta = std::fs::metadata(link).ok().filter(|meta| meta.file_type().is_char_device())?;
        (libc::major(meta.rdev()) == self.major).then(|| DeviceMinor(libc::minor(meta.rdev())))
    }

    fn is_persistenced(&self, pid: u32) -> bool {
        self.proc.facts(pid).measured().is_some_and(|facts| facts.comm == PERSISTENCED)
    }
}

/// What follows `nvidia` in the name of a device file: `0`, `-uvm`, `ctl`. The folder must be called `dev`, as it is
/// also inside a container or a driver's own root (NVIDIA/gpu-operator shows `/run/nvidia/driver/dev/nvidia0`): so
/// nothing on a network is ever looked at.
fn device(name: &Path) -> Option<&str> {
    let file = name.file_name()?.to_str()?.strip_prefix("nvidia")?;
    let folder = name.parent()?.file_name()?;
    (folder == "dev").then(|| file.strip_suffix(DELETED).unwrap_or(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    const UVM: &str = "nvidia-uvm";

    /// A folder like /proc, whose devices are /dev/null and /dev/zero (1,3 and 1,5) under names of cards.
    struct Host(tempfile::TempDir);

    impl Host {
        fn new() -> Host {
            let host = Host(tempfile::tempdir().unwrap());
            let dev = host.0.path().join("c/dev");
            fs::create_dir_all(&dev).unwrap();
            for (name, device) in [("nvidia3", "null"), ("nvidia5", "zero"), ("nvidia0", "zero")] {
                symlink(format!("/dev/{device}"), dev.join(name)).unwrap();
            }
            for plain in [UVM, "nvidia9", "nvidiactl"] {
                fs::write(dev.join(plain), "").unwrap();
            }
            host
        }

        fn process(&self, pid: u32, comm: &str, files: &[&str]) {
            let folder = self.0.path().join(format!("proc/{pid}/fd"));
            fs::create_dir_all(&folder).unwrap();
            for (fd, file) in files.iter().enumerate() {
                let target: PathBuf =
                    if file.contains('/') { file.into() } else { self.0.path().join("c/dev").join(file) };
                symlink(target, folder.join(fd.to_string())).unwrap();
            }
            let stat = format!("{pid} ({comm}) S 1 1 1 0 -1 0 1 2 3 4 1 2 3 4 20 0 1 0 9 1 2\n");
            fs::write(folder.with_file_name("stat"), stat).unwrap();
        }

        fn holders(&self) -> Holders {
            Holders { major: 1, ..Holders::new(Proc::at(&self.0.path().join("proc"))) }
        }
    }

    fn minors(numbers: &[u32]) -> Vec<DeviceMinor> {
        numbers.iter().map(|n| DeviceMinor(*n)).collect()
    }

    fn found(held: &[(u32, u32)]) -> Reading<Vec<(DeviceMinor, u32)>> {
        Reading::Measured(held.iter().map(|(minor, pid)| (DeviceMinor(*minor), *pid)).collect())
    }

    #[test]
    fn a_process_that_can_compute_is_found_and_one_that_watches_is_not() {
        let host = Host::new();
        host.process(10, "python", &["/dev/null", "nvidiactl", UVM, "nvidia3", "nvidia3"]);
        host.process(11, "nv-hostengine", &["nvidiactl", "nvidia3", "nvidia5"]);
        host.process(12, "nvidia-persiste", &["nvidiactl", "nvidia3", "nvidia5", UVM]);
        host.process(13, "renamed", &[UVM, "nvidia0"]);
        host.process(14, "plain", &[UVM, "nvidia9", "socket:[5]", "/home/ada/nvidia5"]);
        assert_eq!(host.holders().of(&minors(&[3]), &[]), found(&[(3, 10)]));
        assert_eq!(host.holders().of(&minors(&[3, 5]), &[]), found(&[(3, 10), (5, 13)]), "by its own number");
        assert_eq!(host.holders().of(&minors(&[0, 9]), &[]), found(&[]), "nobody");
    }

    #[test]
    fn the_jobs_own_processes_are_looked_at_first_and_the_limit_is_no_answer() {
        let host = Host::new();
        host.process(10, "python", &[UVM, "nvidia3"]);
        for pid in 100..160 {
            host.process(pid, "many", &["/dev/null"; 100]);
        }
        assert_eq!(host.holders().of(&minors(&[3]), &[10]), found(&[(3, 10)]), "enough was seen");
        let mut holders = host.holders();
        assert_eq!(holders.of(&minors(&[5]), &[10]), Reading::Absent(Absence::LimitReached));
        assert_eq!(
            holders.of(&minors(&[5]), &[]),
            Reading::Absent(Absence::LimitReached),
            "nor the next time"
        );
        assert_eq!(host.holders().of(&minors(&[3]), &[99]), Reading::Absent(Absence::LimitReached), "gone");
        let nowhere = Holders::new(Proc::at(Path::new("/nowhere"))).of(&minors(&[3]), &[]);
        assert_eq!(nowhere, Reading::Absent(Absence::NotListed), "not looked is not nobody");
    }

    #[test]
    fn a_real_process_with_a_device_file_open_is_found_and_this_program_is_not() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("dev")).unwrap();
        let paths = ["dev/nvidia3", "dev/nvidia-uvm"].map(|name| temp.path().join(name));
        let name = std::ffi::CString::new(paths[0].to_str().unwrap()).unwrap();
        // SAFETY: a path that lives through the call.
        if unsafe { libc::mknod(name.as_ptr(), libc::S_IFCHR | 0o666, libc::makedev(1, 3)) } != 0 {
            eprintln!("SKIPPED: no device file can be made here");
            return;
        }
        fs::write(&paths[1], "").unwrap();
        let files = paths.each_ref().map(|path| fs::File::open(path).unwrap());
        for file in &files {
            // SAFETY: clears the close-on-exec mark of a file that is open.
            unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) };
        }
        let mut child = std::process::Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let (own, its) = (std::process::id(), child.id());
        let of = |pids: &[u32]| {
            let mut holders = Holders { major: 1, ..Holders::new(Proc::default()) };
            let mut held = Vec::new();
            let looked = holders.look(&minors(&[3]), pids, &mut held);
            looked.map(|()| held)
        };
        let (child_holds, we_hold) = (of(&[its]), of(&[own]));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(child_holds, found(&[(3, its)]));
        assert_eq!(we_hold, found(&[]));
    }
}

//! What files say of themselves: whose they are, who may change them, what they hold, on what kind of disk they lie.
//! Follows links as the kernel would. Changes nothing, and waits for no FIFO; a dead file server is for the caller to
//! bound ([`super::aside`]).

use crate::units::rights::writable_by_others;
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What came of a look: absent is no fault of the look's, unknown is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Look<T> {
    /// It is there, and this was seen.
    Is(T),
    /// There is nothing of that name.
    NotThere,
    /// It could not be looked at, with the reason.
    Unknown(String),
}

impl<T> Look<T> {
    /// What was seen, if anything was.
    pub fn is(&self) -> Option<&T> {
        match self {
            Look::Is(seen) => Some(seen),
            Look::NotThere | Look::Unknown(_) => None,
        }
    }

    /// From a result of std's.
    pub fn of(result: io::Result<T>) -> Look<T> {
        match result {
            Ok(seen) => Look::Is(seen),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Look::NotThere,
            Err(e) => Look::Unknown(e.to_string()),
        }
    }
}

/// A file as stat(2) shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// Whether it is a regular file.
    pub regular: bool,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Permission bits.
    pub mode: u32,
    /// Bytes.
    pub size: u64,
    /// Device and inode: the same file has the same, whatever its name.
    pub id: (u64, u64),
}

impl FileFacts {
    /// What access(2) answers a user who asks to read and to execute it. Root may read everything, and execute what
    /// anybody may.
    pub fn runs_for(&self, uid: u32) -> bool {
        match uid {
            0 => self.mode & 0o111 != 0,
            _ if uid == self.uid => self.mode & 0o500 == 0o500,
            _ => self.mode & 0o005 == 0o005,
        }
    }
}

/// Looks at a file.
pub fn facts(path: &Path) -> Look<FileFacts> {
    let facts = |meta: Metadata| FileFacts {
        regular: meta.is_file(),
        uid: meta.uid(),
        gid: meta.gid(),
        mode: meta.mode() & 0o7777,
        size: meta.len(),
        id: (meta.dev(), meta.ino()),
    };
    Look::of(fs::metadata(path).map(facts))
}

/// The first bytes of a file, what is no UTF-8 replaced. A program's hold a NUL.
pub fn head(path: &Path, most: u64) -> Look<String> {
    let read = || {
        // O_NONBLOCK: opening a FIFO would wait for a writer.
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("no regular file"));
        }
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    Look::of(read())
}

/// Who besides root could put something else in a file's place: the file, and each folder on the way to it, by the
/// name it was found under and by its own. `Is(None)`: nobody.
pub fn changeable(path: &Path) -> Look<Option<String>> {
    let doubt = |meta: &Metadata| writable_by_others(meta.uid(), meta.gid(), meta.mode(), 0);
    let look = || {
        if let Some(why) = doubt(&fs::metadata(path)?) {
            return Ok(Some(format!("it {why}")));
        }
        let (named, own) = (path.parent().unwrap_or(path).canonicalize()?, path.canonicalize()?);
        let elsewhere = own.ancestors().skip(1).filter(|folder| !named.starts_with(folder));
        for folder in named.ancestors().chain(elsewhere) {
            if let Some(why) = doubt(&fs::metadata(folder)?) {
                return Ok(Some(format!("its folder `{}` {why}", folder.display())));
            }
        }
        Ok(None)
    };
    Look::of(look())
}

/// The files that a pattern of the shell's names, in byte order. An error where a folder could not be read.
pub fn matching(pattern: &str) -> Result<Vec<PathBuf>, String> {
    let text = CString::new(pattern).map_err(|_| "a NUL in a file name".to_owned())?;
    // SAFETY: glob fills the struct, which is zeroed as it wants and freed once; the paths are copied before.
    let (code, mut paths) = unsafe {
        let mut found: libc::glob_t = std::mem::zeroed();
        let code = libc::glob(text.as_ptr(), libc::GLOB_ERR, None, &mut found);
        let count = if code == 0 { found.gl_pathc } else { 0 };
        let path = |at: usize| {
            let name = CStr::from_ptr(*found.gl_pathv.add(at));
            PathBuf::from(OsStr::from_bytes(name.to_bytes()))
        };
        let paths: Vec<PathBuf> = (0..count).map(path).collect();
        libc::globfree(&mut found);
        (code, paths)
    };
    paths.sort();
    match code {
        0 | libc::GLOB_NOMATCH => Ok(paths),
        _ => Err(format!("`{pattern}`: {}", io::Error::last_os_error())),
    }
}

/// What a file system is, as far as it matters to a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskKind {
    /// On this host's own disks.
    Local,
    /// Served by others: a lock may wait for a server that is gone.
    Network,
    /// Gone at the next boot, and held in memory.
    Memory,
    /// Over another one, which decides.
    Layered,
}

/// Types of file systems by the number that statfs(2) gives (linux/magic.h and the file systems' own sources).
const KINDS: [(u64, &str, DiskKind); 27] = [
    (0xEF53, "ext4", DiskKind::Local),
    (0x5846_5342, "xfs", DiskKind::Local),
    (0x9123_683E, "btrfs", DiskKind::Local),
    (0x2FC1_2FC1, "zfs", DiskKind::Local),
    (0xF2F5_2010, "f2fs", DiskKind::Local),
    (0xCA45_1A4E, "bcachefs", DiskKind::Local),
    (0x3153_464A, "jfs", DiskKind::Local),
    (0x5265_4973, "reiserfs", DiskKind::Local),
    (0x4D44, "vfat", DiskKind::Local),
    (0x0102_1994, "tmpfs", DiskKind::Memory),
    (0x8584_58F6, "ramfs", DiskKind::Memory),
    (0x794C_7630, "overlayfs", DiskKind::Layered),
    (0x6969, "nfs", DiskKind::Network),
    (0x517B, "smb", DiskKind::Network),
    (0xFF53_4D42, "cifs", DiskKind::Network),
    (0xFE53_4D42, "smb2", DiskKind::Network),
    (0x0BD0_0BD0, "lustre", DiskKind::Network),
    (0x4750_4653, "gpfs", DiskKind::Network),
    (0x1983_0326, "beegfs", DiskKind::Network),
    (0x00C3_6400, "ceph", DiskKind::Network),
    (0x6573_5546, "fuse", DiskKind::Network),
    (0x5346_414F, "afs", DiskKind::Network),
    (0x0102_1997, "9p", DiskKind::Network),
    (0x7461_636F, "ocfs2", DiskKind::Network),
    (0x0116_1970, "gfs2", DiskKind::Network),
    (0xAAD7_AAEA, "panfs", DiskKind::Network),
    (0x2003_0528, "orangefs", DiskKind::Network),
];

/// The file system that a folder lies on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// The folder itself, or the nearest above it that exists.
    pub folder: PathBuf,
    /// The type's number.
    pub magic: u64,
    /// Bytes that others than root may still use.
    pub free_bytes: u64,
    /// Whether nothing can be written.
    pub read_only: bool,
}

/// Of a file system that several nodes may share: locks may hold on one node alone, or not at all, and nodes would write
/// over each other (metomi/rose#1897). FUSE may be this host's own.
fn shared(magic: u64) -> Option<&'static str> {
    let is_shared = |kind: &&(u64, &str, DiskKind)| kind.0 == magic && kind.2 == DiskKind::Network;
    KINDS.iter().find(is_shared).map(|(_, name, _)| *name).filter(|name| *name != "fuse")
}

/// Why a folder is no place for a ledger, if so: by the file system that it lies on, or would.
///
/// # Errors
///
/// One line with the type that was found.
pub fn refuse_shared(folder: &Path) -> Result<(), String> {
    let disk = disk(folder);
    match disk.is().and_then(|disk| shared(disk.magic)) {
        None => Ok(()),
        Some(name) => Err(format!(
            "state_dir `{}` lies on {name}: a ledger needs a disk of this node's own, ext4 or xfs for instance",
            folder.display()
        )),
    }
}

impl Disk {
    /// Its name and what it means; `None`: a type that is not known here.
    pub fn kind(&self) -> Option<(&'static str, DiskKind)> {
        KINDS.iter().find(|(magic, ..)| *magic == self.magic).map(|(_, name, kind)| (*name, *kind))
    }
}

/// The folder itself, or the nearest above it that may be there: one that cannot be seen is not passed over.
pub fn nearest(folder: &Path) -> &Path {
    folder.ancestors().find(|folder| facts(folder) != Look::NotThere).unwrap_or(Path::new("/"))
}

/// The disk that `folder` lies on, or would lie on once it is made.
pub fn disk(folder: &Path) -> Look<Disk> {
    let there = nearest(folder);
    let look = || {
        let path = CString::new(there.as_os_str().as_bytes()).map_err(io::Error::other)?;
        // SAFETY: both structs are plain data that live through the calls, and the path is a C string.
        let (of_type, of_space) = unsafe {
            let (mut of_type, mut of_space): (libc::statfs, libc::statvfs) = std::mem::zeroed();
            if libc::statfs(path.as_ptr(), &mut of_type) != 0
                || libc::statvfs(path.as_ptr(), &mut of_space) != 0
            {
                return Err(io::Error::last_os_error());
            }
            (of_type, of_space)
        };
        Ok(Disk {
            folder: there.to_owned(),
            // A type is 32 bits wide, whatever the field is and whether it has a sign.
            magic: of_type.f_type as u64 & 0xFFFF_FFFF,
            free_bytes: of_space.f_bavail.saturating_mul(of_space.f_frsize),
            read_only: of_space.f_flag & libc::ST_RDONLY != 0,
        })
    };
    Look::of(look())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_file_is_looked_at_and_one_that_is_not_there_is_not_unknown() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        fs::write(&file, "#!/bin/sh\nexec x\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o711)).unwrap();
        let seen = facts(&file);
        let seen = seen.is().unwrap();
        assert!(seen.regular && seen.mode == 0o711 && seen.size == 17);
        symlink(&file, folder.path().join("b")).unwrap();
        assert_eq!(facts(&folder.path().join("b")).is().unwrap().id, seen.id);
        assert_eq!(head(&file, 9), Look::Is("#!/bin/sh".to_owned()));
        assert_eq!(facts(&folder.path().join("c")), Look::NotThere);
        assert_eq!(facts(&file.join("c")), Look::NotThere);
        assert!(matches!(head(folder.path(), 9), Look::Unknown(_)));
    }

    #[test]
    fn who_may_run_a_file_is_told_by_its_bits() {
        let file = |uid, mode| FileFacts { regular: true, uid, gid: 0, mode, size: 1, id: (0, 0) };
        let table = [
            (0o755, 0, true),
            (0o755, 64030, true),
            (0o711, 0, true),
            (0o711, 64030, false),
            (0o700, 64030, false),
            (0o644, 0, false),
            (0o600, 64030, false),
        ];
        for (mode, uid, want) in table {
            assert_eq!(file(0, mode).runs_for(uid), want, "{mode:o} for {uid}");
        }
        assert!(file(64030, 0o500).runs_for(64030) && !file(64030, 0o100).runs_for(64030));
    }

    #[test]
    fn a_folder_that_others_write_makes_its_files_theirs() {
        let folder = tempfile::tempdir().unwrap();
        let (safe, open) = (folder.path().join("safe"), folder.path().join("open"));
        for (folder, mode) in [(&safe, 0o755), (&open, 0o777)] {
            fs::create_dir(folder).unwrap();
            fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
            fs::write(folder.join("a"), "").unwrap();
        }
        symlink(open.join("a"), safe.join("link")).unwrap();
        let doubt = |path: &Path| changeable(path).is().unwrap().clone();
        assert!(doubt(&open.join("a")).unwrap().contains("its folder"));
        assert!(doubt(&safe.join("link")).unwrap().contains("open"), "by its own name too");
        if facts(&safe).is().unwrap().uid == 0 {
            assert_eq!(doubt(&safe.join("a")), None);
        }
        assert_eq!(changeable(&safe.join("none")), Look::NotThere);
    }

    #[test]
    fn a_file_system_of_several_nodes_is_no_place_for_a_ledger() {
        // metomi/rose#1897, charmbracelet/crush#3461 (DB-09): locks that hold on one node alone, or not at all.
        for magic in [0x6969, 0x0BD0_0BD0, 0x4750_4653, 0x1983_0326, 0x00C3_6400, 0xFE53_4D42] {
            assert!(shared(magic).is_some(), "{magic:x}");
        }
        for magic in [0xEF53, 0x5846_5342, 0x0102_1994, 0x794C_7630, 0x6573_5546, 0xDEAD_BEEF] {
            assert_eq!(shared(magic), None, "{magic:x}");
        }
        assert_eq!(refuse_shared(&tempfile::tempdir().unwrap().path().join("not/there/yet")), Ok(()));
    }

    #[test]
    fn a_pattern_names_its_files_in_byte_order() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.sh", "00-x.sh", "B.sh", ".hidden"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let all = matching(&format!("{}/*", folder.path().display())).unwrap();
        let names: Vec<_> = all.iter().map(|p| p.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["00-x.sh", "B.sh", "a.sh"]);
        assert_eq!(matching(&format!("{}/none*", folder.path().display())), Ok(vec![]));
        assert_eq!(matching("/nowhere/at/all"), Ok(vec![]));
    }

    #[test]
    fn a_disk_is_told_by_its_type() {
        let proc = disk(Path::new("/proc/self/nothing/here"));
        assert_eq!(proc.is().unwrap().folder, Path::new("/proc/self"));
        assert_eq!(proc.is().unwrap().kind(), None, "not one for files");
        let shm = disk(Path::new("/dev/shm"));
        assert_eq!(shm.is().and_then(Disk::kind), Some(("tmpfs", DiskKind::Memory)));
        let lustre = Disk { folder: "/".into(), magic: 0x0BD0_0BD0, free_bytes: 0, read_only: false };
        assert_eq!(lustre.kind(), Some(("lustre", DiskKind::Network)));
    }
}

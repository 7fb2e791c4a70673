//! Who can write a file or a folder, by what stat(2) says of it. Looks at none itself.

/// Why somebody else can write it; `None`: nobody can. Root's own, or, where not root runs (`euid`), that user's own;
/// writable by neither group nor others. A folder with the sticky bit (`/tmp`) lets nobody replace what is not theirs.
pub fn writable_by_others(uid: u32, gid: u32, mode: u32, euid: u32) -> Option<String> {
    // Numbers of inode(7).
    const TYPE: u32 = 0o170_000;
    const FOLDER: u32 = 0o040_000;
    const STICKY: u32 = 0o001_000;
    if uid != 0 && uid != euid {
        return Some(format!("belongs to uid {uid}, not to root"));
    }
    let sticky_folder = mode & TYPE == FOLDER && mode & STICKY != 0;
    let by_group = mode & 0o020 != 0 && gid != 0;
    let by_others = mode & 0o002 != 0;
    ((by_group || by_others) && !sticky_folder)
        .then(|| format!("is writable by others (mode {:o})", mode & 0o7777))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_root_alone_can_write_is_believed() {
        const FILE: u32 = 0o100_000;
        const FOLDER: u32 = 0o040_000;
        let table = [
            ((0, 0, FILE | 0o644, 0), true),
            ((0, 0, FILE | 0o600, 0), true),
            ((0, 0, FILE | 0o664, 0), true),
            ((0, 50, FILE | 0o664, 0), false),
            ((0, 0, FILE | 0o646, 0), false),
            ((1000, 1000, FILE | 0o600, 0), false),
            ((1000, 1000, FILE | 0o600, 1000), true),
            ((0, 0, FILE | 0o644, 1000), true),
            ((1001, 1001, FILE | 0o600, 1000), false),
            ((0, 0, FILE | 0o1646, 0), false),
            ((0, 0, FOLDER | 0o1777, 0), true),
            ((0, 0, FOLDER | 0o777, 0), false),
        ];
        for ((uid, gid, mode, euid), believed) in table {
            let doubt = writable_by_others(uid, gid, mode, euid);
            assert_eq!(doubt.is_none(), believed, "{uid} {gid} {mode:o} as {euid}: {doubt:?}");
        }
    }
}

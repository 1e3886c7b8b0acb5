//! One file, as a source of files (a directory, a tar) describes it.

/// A moment, in seconds since 1970 and nanoseconds of that second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, PartialOrd, Ord)]
pub(crate) struct Stamp {
    pub seconds: i64,
    pub nanoseconds: u32,
}

/// The four times of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stamps {
    pub access: Stamp,
    pub modify: Stamp,
    pub change: Stamp,
    pub birth: Stamp,
}

impl Stamps {
    /// The times for a reproducible image: the time of modification, which is the only one that a build controls,
    /// replaces all four, and none is later than the epoch given.
    pub fn reproducible(self, epoch_seconds: i64) -> Stamps {
        let latest = Stamp { seconds: epoch_seconds, nanoseconds: 0 };
        let stamp = self.modify.min(latest);
        Stamps { access: stamp, modify: stamp, change: stamp, birth: stamp }
    }
}

/// Extended attributes: names and values.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Everything about a file but its name and contents.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meta {
    /// Type and permission bits, as in `st_mode`.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub times: Stamps,
    pub xattrs: Xattrs,
}

/// What the host calls a file that may have several names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) struct HostFile {
    pub device: u64,
    pub inode: u64,
}

/// One name of a directory, with everything known without reading the file.
pub(crate) struct Child {
    pub name: Vec<u8>,
    pub meta: Meta,
    pub kind: ChildKind,
    pub host: HostFile,
    pub links: u32,
}

#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "there is no child"))]
pub(crate) enum ChildKind {
    Dir,
    File { size: u64, sparse: bool },
    Symlink(Vec<u8>),
    Node { major: u32, minor: u32 },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a reproducible image depends on modification times alone, up to the epoch.
    #[test]
    fn reproducible_times() {
        let at = |seconds| Stamp { seconds, nanoseconds: 7 };
        let times = Stamps { access: at(9), modify: at(5), change: at(9), birth: at(2) };
        assert_eq!(times.reproducible(8), Stamps { access: at(5), modify: at(5), change: at(5), birth: at(5) });
        assert_eq!(times.reproducible(4).modify, Stamp { seconds: 4, nanoseconds: 0 });
    }
}

/// A piece of a file as it was read.
pub(crate) struct UnpreparedPiece {
    pub offset: u64,
    pub bytes: Vec<u8>,
    pub whole: Whole,
}

/// Whether a piece is all there is of its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Whole {
    /// All of it.
    File,
    /// A part, up to the end.
    End,
    /// A part, and there is more.
    Part,
}

impl Whole {
    /// What the bytes `from..to` are to a file of this size.
    pub fn of(from: u64, to: u64, size: u64) -> Whole {
        match (from, to == size) {
            (0, true) => Whole::File,
            (_, true) => Whole::End,
            _ => Whole::Part,
        }
    }
}

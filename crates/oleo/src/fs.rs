//! Files, names, attributes and subvolumes: what [`Image::fs`](crate::Image::fs) works with, for whatever [`Image`](crate::Image) has
//! no shorter call.

pub use crate::ops::{Depth, Sharing};
pub use crate::settings::{PROPERTIES, parse_compress};
pub use oleo_format::{Compression, Ino, InodeFlags};
pub use oleo_fs::data::{CloneRange, Compress, DataOptions, ExtentInfo, ExtentKind, KeepSize};
pub use oleo_fs::{
    Attr, Clock, Descent, DirEntryInfo, FileKind, FixedClock, Follow, Fs, FsError, FsOptions, InodeRef, NewInode,
    NewKind, NewSubvol, RandomUuids, Rdev, RenameMode, SetAttr, SnapshotOptions, SubvolInfo, SystemClock, Target, Time,
    Times, UuidSource, XattrMode,
};

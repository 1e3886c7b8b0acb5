//! Oleo: btrfs without the kernel. The public library.
//!
//! Everything works on images and devices that nobody has mounted, as an ordinary user.

mod build;
mod error;
mod file;
mod image;
pub mod inspect;
mod ops;
pub mod restore;
mod settings;
mod usage;

pub use build::{BuildOptions, BuildReport, Source, build};
pub use error::{Error, ErrorKind, Result};
pub use file::File;
pub use image::{Image, OpenOptions};
pub use ops::{Depth, Sharing};
pub use settings::{PROPERTIES, parse_checksum, parse_compress, random_seed, seed_from_text};
pub use usage::{FileUsage, GroupUsage};

pub use oleo_device::{Device, FileDevice, FileOptions, MemDevice};
pub use oleo_format::{ByteLen, Compression, CsumType, DevId, Generation, Ino, Logical, TreeId};
pub use oleo_fs::data::{CloneRange, Compress, ExtentInfo, ExtentKind, KeepSize};
pub use oleo_fs::{
    Attr, Clock, DirEntryInfo, FileKind, FixedClock, Follow, Fs, FsError, FsOptions, InodeRef, NewInode, NewKind,
    NewSubvol, Rdev, RenameMode, SetAttr, SnapshotOptions, SubvolInfo, Target, Time, Times, UuidSource, XattrMode,
};
pub use oleo_mkfs::{
    FeatureSet, FillOptions, Made, MkfsError, MkfsOptions, OnProgress, Profile, Progress, Report, SubvolWish, make,
};

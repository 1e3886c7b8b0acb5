//! The numbers of commands, attributes and compressions.

use crate::error::Corruption;
use crate::file_extent::Compression;

macro_rules! numbers {
    ($(#[$doc:meta])* $name:ident: $int:ty { $($variant:ident = $value:literal $text:literal $extra:expr,)* } $extra_name:ident: $extra_ty:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[allow(missing_docs, reason = "names are those of the format")]
        #[repr($int)]
        pub enum $name { $($variant = $value,)* }

        impl $name {
            /// Every one there is, in the order of the numbers.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The one with this number.
            pub fn from_number(value: $int) -> Option<$name> {
                match value { $($value => Some($name::$variant),)* _ => None }
            }

            /// Its number in the stream.
            pub fn number(self) -> $int {
                self as $int
            }

            /// Its name, as dumps of streams print it.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }

            #[allow(missing_docs, reason = "documented below")]
            pub(super) fn $extra_name(self) -> $extra_ty {
                match self { $($name::$variant => $extra,)* }
            }
        }
    };
}

numbers! {
    /// Which command it is (`BTRFS_SEND_C_*`).
    CommandKind: u16 {
        Subvol = 1 "subvol" 1,
        Snapshot = 2 "snapshot" 1,
        MkFile = 3 "mkfile" 1,
        MkDir = 4 "mkdir" 1,
        MkNod = 5 "mknod" 1,
        MkFifo = 6 "mkfifo" 1,
        MkSock = 7 "mksock" 1,
        Symlink = 8 "symlink" 1,
        Rename = 9 "rename" 1,
        Link = 10 "link" 1,
        Unlink = 11 "unlink" 1,
        RmDir = 12 "rmdir" 1,
        SetXattr = 13 "set_xattr" 1,
        RemoveXattr = 14 "remove_xattr" 1,
        Write = 15 "write" 1,
        Clone = 16 "clone" 1,
        Truncate = 17 "truncate" 1,
        Chmod = 18 "chmod" 1,
        Chown = 19 "chown" 1,
        Utimes = 20 "utimes" 1,
        End = 21 "end" 1,
        UpdateExtent = 22 "update_extent" 1,
        Fallocate = 23 "fallocate" 2,
        FileAttr = 24 "fileattr" 2,
        EncodedWrite = 25 "encoded_write" 2,
        EnableVerity = 26 "enable_verity" 3,
    } version: u32
}

impl CommandKind {
    /// The first version of the stream that has it.
    pub fn since(self) -> u32 {
        self.version()
    }
}

/// How long the value of an attribute is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ValueLen {
    /// Exactly this many bytes.
    Fixed(usize),
    /// Any number.
    Any,
}
use ValueLen::{Any, Fixed};

numbers! {
    /// Which attribute it is (`BTRFS_SEND_A_*`).
    AttrKind: u16 {
        Uuid = 1 "uuid" Fixed(16),
        Ctransid = 2 "ctransid" Fixed(8),
        Ino = 3 "ino" Fixed(8),
        Size = 4 "size" Fixed(8),
        Mode = 5 "mode" Fixed(8),
        Uid = 6 "uid" Fixed(8),
        Gid = 7 "gid" Fixed(8),
        Rdev = 8 "rdev" Fixed(8),
        Ctime = 9 "ctime" Fixed(12),
        Mtime = 10 "mtime" Fixed(12),
        Atime = 11 "atime" Fixed(12),
        Otime = 12 "otime" Fixed(12),
        XattrName = 13 "xattr_name" Any,
        XattrData = 14 "xattr_data" Any,
        Path = 15 "path" Any,
        PathTo = 16 "path_to" Any,
        PathLink = 17 "path_link" Any,
        FileOffset = 18 "file_offset" Fixed(8),
        Data = 19 "data" Any,
        CloneUuid = 20 "clone_uuid" Fixed(16),
        CloneCtransid = 21 "clone_ctransid" Fixed(8),
        ClonePath = 22 "clone_path" Any,
        CloneOffset = 23 "clone_offset" Fixed(8),
        CloneLen = 24 "clone_len" Fixed(8),
        FallocateMode = 25 "fallocate_mode" Fixed(4),
        FileAttr = 26 "fileattr" Fixed(8),
        UnencodedFileLen = 27 "unencoded_file_len" Fixed(8),
        UnencodedLen = 28 "unencoded_len" Fixed(8),
        UnencodedOffset = 29 "unencoded_offset" Fixed(8),
        Compression = 30 "compression" Fixed(4),
        Encryption = 31 "encryption" Fixed(4),
        VerityAlgorithm = 32 "verity_algorithm" Fixed(1),
        VerityBlockSize = 33 "verity_block_size" Fixed(4),
        VeritySaltData = 34 "verity_salt_data" Any,
        VeritySigData = 35 "verity_sig_data" Any,
    } value_len: ValueLen
}

/// How the data of an encoded write is compressed (`BTRFS_ENCODED_IO_COMPRESSION_*` of the UAPI header): the kind, and for LZO the
/// sector size whose framing it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EncodedCompression {
    /// The kind.
    pub kind: Compression,
    /// Bytes of a sector, of which LZO's framing depends.
    pub lzo_sectorsize: Option<u32>,
}

impl EncodedCompression {
    /// What this number means.
    pub fn from_number(value: u32) -> Result<EncodedCompression, Corruption> {
        let plain = |kind| Ok(EncodedCompression { kind, lzo_sectorsize: None });
        match value {
            0 => plain(Compression::None),
            1 => plain(Compression::Zlib),
            2 => plain(Compression::Zstd),
            3..=7 => Ok(EncodedCompression { kind: Compression::Lzo, lzo_sectorsize: Some(4096 << (value - 3)) }),
            _ => Err(Corruption::new("encoded_write", "compression", value, "0 to 7")),
        }
    }

    /// The number of this kind, for a volume with sectors of this size; `None` if the stream has no number for it.
    pub fn number(kind: Compression, sectorsize: u32) -> Option<u32> {
        match kind {
            Compression::None => Some(0),
            Compression::Zlib => Some(1),
            Compression::Zstd => Some(2),
            Compression::Lzo => (0..5).find(|n| 4096 << n == sectorsize).map(|n| n + 3),
        }
    }
}

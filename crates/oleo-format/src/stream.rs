//! The send stream: what `btrfs send` writes and `btrfs receive` applies, versions 1 to 3.
//!
//! A stream is a header (magic and version) and commands. A command is a header of its own (length of what follows,
//! number, CRC-32C over all of it with the field of the CRC zero) and attributes, each a number, a length and a value.
//! The attribute DATA is the last of its command; from version 2 on it has no length and runs to the command's end, so
//! that it may be longer than 64 KiB. Several streams may follow one another, each with its header and an END; a stream
//! may also hold several subvolumes without an END between them.
//!
//! [`Command`] is one decoded command, borrowed from its bytes; [`Command::encode`] appends one to a buffer,
//! [`CommandHead`] and [`Command::decode`] parse one. Decoding checks that the attributes the command needs are
//! present, once each, and have the length of their type; undefined numbers are refused, known attributes that the
//! command does not use are skipped, as every implementation does (fifos carry a mode, for example).
//!
//! Not here: reading streams (`oleo_stream::Commands`), the order of commands, which paths are allowed, and what
//! commands do.
//! Source of the numbers: `BTRFS_SEND_C_*` and `BTRFS_SEND_A_*` of the format's documentation ("Send stream format").

mod decode;
mod encode;
mod numbers;
#[cfg(test)]
mod tests;

pub use decode::version;
pub use numbers::{AttrKind, CommandKind, EncodedCompression};

use crate::Timespec;
use uuid::Uuid;

/// What every stream begins with.
pub const MAGIC: &[u8; 13] = b"btrfs-stream\0";
/// Bytes of the header of a stream: magic and version.
pub const HEADER_LEN: usize = 17;
/// Bytes of the header of a command.
pub const COMMAND_HEAD_LEN: usize = 10;
/// The newest version there is.
pub const VERSION_MAX: u32 = 3;
/// The longest command of version 1, its header included: every implementation has a buffer of 64 KiB.
pub const COMMAND_LEN_MAX_V1: usize = 64 << 10;
/// The most data the kernel puts into a write of version 2: a compressed extent.
pub const WRITE_LEN_MAX_V2: usize = 128 << 10;
/// The longest command the kernel writes in version 2: the data and 16 KiB for the rest.
pub const COMMAND_LEN_MAX_V2: usize = WRITE_LEN_MAX_V2 + (16 << 10);

/// The header of a stream of this version.
pub fn header(version: u32) -> [u8; HEADER_LEN] {
    let mut out = [0; HEADER_LEN];
    out[..MAGIC.len()].copy_from_slice(MAGIC);
    out[MAGIC.len()..].copy_from_slice(&version.to_le_bytes());
    out
}

/// One command. Paths are relative to the subvolume's root, without a leading slash; the root itself is the empty path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "`path` is what the command is about, `ino` the sender's inode number")]
pub enum Command<'a> {
    /// A new, empty subvolume begins. `ctransid`: the sender's generation of its last change.
    Subvol { path: &'a [u8], uuid: Uuid, ctransid: u64 },
    /// A snapshot begins, of the subvolume that was received from (or is) `clone_uuid` as it was at `clone_ctransid`.
    Snapshot { path: &'a [u8], uuid: Uuid, ctransid: u64, clone_uuid: Uuid, clone_ctransid: u64 },
    /// A new, empty file.
    MkFile { path: &'a [u8], ino: u64 },
    /// A new directory.
    MkDir { path: &'a [u8], ino: u64 },
    /// A new device; `mode` holds the type, `rdev` is as in stat(2).
    MkNod { path: &'a [u8], ino: u64, mode: u64, rdev: u64 },
    /// A new named pipe.
    MkFifo { path: &'a [u8], ino: u64 },
    /// A new socket.
    MkSock { path: &'a [u8], ino: u64 },
    /// A new symbolic link.
    Symlink { path: &'a [u8], ino: u64, target: &'a [u8] },
    /// Another name for an inode; an existing one there is replaced.
    Rename { path: &'a [u8], to: &'a [u8] },
    /// Another name `path` of `target`.
    Link { path: &'a [u8], target: &'a [u8] },
    /// A name goes.
    Unlink { path: &'a [u8] },
    /// An empty directory goes.
    RmDir { path: &'a [u8] },
    /// An extended attribute gets a value.
    SetXattr { path: &'a [u8], name: &'a [u8], value: &'a [u8] },
    /// An extended attribute goes.
    RemoveXattr { path: &'a [u8], name: &'a [u8] },
    /// Data at `offset`.
    Write { path: &'a [u8], offset: u64, data: &'a [u8] },
    /// Data at `offset` as it is stored: `unencoded_len` bytes when decoded, of which those from `unencoded_offset` on are
    /// the file's, `unencoded_file_len` of them. `compression`: see [`EncodedCompression`]. From version 2 on.
    EncodedWrite {
        path: &'a [u8],
        offset: u64,
        unencoded_file_len: u64,
        unencoded_len: u64,
        unencoded_offset: u64,
        compression: u32,
        encryption: u32,
        data: &'a [u8],
    },
    /// `len` bytes at `offset` shared with `clone_path` at `clone_offset` in the subvolume that `clone_uuid` names.
    Clone {
        path: &'a [u8],
        offset: u64,
        len: u64,
        clone_uuid: Uuid,
        clone_ctransid: u64,
        clone_path: &'a [u8],
        clone_offset: u64,
    },
    /// The file's size.
    Truncate { path: &'a [u8], size: u64 },
    /// Permission bits.
    Chmod { path: &'a [u8], mode: u64 },
    /// Owner and group.
    Chown { path: &'a [u8], uid: u64, gid: u64 },
    /// Times. `otime` from version 2 on.
    Utimes { path: &'a [u8], atime: Timespec, mtime: Timespec, ctime: Timespec, otime: Option<Timespec> },
    /// Data there has changed; a stream without data (`--no-data`) has only this command.
    UpdateExtent { path: &'a [u8], offset: u64, len: u64 },
    /// fallocate(2) with this mode. From version 2 on.
    Fallocate { path: &'a [u8], mode: u32, offset: u64, len: u64 },
    /// The inode's flags as they are on disk. From version 2 on.
    FileAttr { path: &'a [u8], attr: u64 },
    /// fs-verity is enabled with these parameters. From version 3 on.
    EnableVerity { path: &'a [u8], algorithm: u8, block_size: u32, salt: &'a [u8], signature: &'a [u8] },
    /// The end of the stream.
    End,
}

/// The header of a command: how long it is, which it is, and its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommandHead {
    /// Bytes of the attributes, without this header.
    pub len: u32,
    /// The command's number.
    pub kind: u16,
    /// The checksum that is stored.
    pub crc: u32,
}

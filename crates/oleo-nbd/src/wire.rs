//! The wire format: numbers, fixed headers and flags. Pure functions of bytes, without a socket.
//!
//! Everything is big-endian. Source: the NBD protocol (`doc/proto.md` of the NetworkBlockDevice project), fixed newstyle
//! with simple and structured replies; no extended headers. The data of options is in [`option`], replies to requests
//! are in [`reply`].
//!
//! Invariant: decoding takes any bytes, allocates no more than they justify, and never panics.

use bitflags::bitflags;

pub mod option;
pub mod reply;

/// The server's first eight bytes.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// The next eight of a newstyle server, and the first eight of each option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// The second magic of a server of the old kind, which is not spoken here.
pub const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
/// The first eight bytes of a reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// The first four bytes of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// The first four bytes of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// The first four bytes of a chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Longest string (names, descriptions, texts) in bytes, by the protocol.
pub const STRING_LEN_MAX: usize = 4096;
/// Longest data of an option that is parsed, in bytes.
pub const OPTION_LEN_MAX: u32 = 64 << 10;
/// Longest payload of a request or of a chunk, in bytes: what a client may assume that was not told.
pub const PAYLOAD_LEN_MAX: u32 = 32 << 20;
/// The zero bytes after the answer to `EXPORT_NAME`, unless agreed otherwise.
pub const EXPORT_NAME_ZEROS: usize = 124;
/// The name of the one metadata context that is known here.
pub const ALLOCATION_CONTEXT: &str = "base:allocation";

bitflags! {
    /// What the server can, in its greeting; the client answers with the same bits, as 32.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct HandshakeFlags: u16 {
        /// Fixed newstyle.
        const FIXED_NEWSTYLE = 1 << 0;
        /// No zero bytes after the answer to `EXPORT_NAME`.
        const NO_ZEROES = 1 << 1;
    }

    /// What an export can.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct TransmissionFlags: u16 {
        /// Always set.
        const HAS_FLAGS = 1 << 0;
        /// Writes are refused.
        const READ_ONLY = 1 << 1;
        /// `FLUSH`.
        const SEND_FLUSH = 1 << 2;
        /// The flag `FUA`.
        const SEND_FUA = 1 << 3;
        /// A turning disk.
        const ROTATIONAL = 1 << 4;
        /// `TRIM`.
        const SEND_TRIM = 1 << 5;
        /// `WRITE_ZEROES`, with the flag `NO_HOLE`.
        const SEND_WRITE_ZEROES = 1 << 6;
        /// The flag `DF` of `READ`; only with structured replies.
        const SEND_DF = 1 << 7;
        /// A flush on one connection covers what the others were replied to.
        const CAN_MULTI_CONN = 1 << 8;
        /// `RESIZE` (never offered).
        const SEND_RESIZE = 1 << 9;
        /// `CACHE`.
        const SEND_CACHE = 1 << 10;
        /// The flag `FAST_ZERO` of `WRITE_ZEROES`.
        const SEND_FAST_ZERO = 1 << 11;
        const _ = !0;
    }

    /// Flags of a request.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct CommandFlags: u16 {
        /// The reply comes when what was written is durable.
        const FUA = 1 << 0;
        /// Zeros that stay allocated.
        const NO_HOLE = 1 << 1;
        /// The data in one chunk.
        const DF = 1 << 2;
        /// One extent.
        const REQ_ONE = 1 << 3;
        /// Zeros quickly or not at all.
        const FAST_ZERO = 1 << 4;
        /// Of extended headers: refused.
        const PAYLOAD_LEN = 1 << 5;
        const _ = !0;
    }

    /// Flags of a chunk.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct ChunkFlags: u16 {
        /// The last of its reply.
        const DONE = 1 << 0;
        const _ = !0;
    }

    /// Flags of an extent in the context `base:allocation`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct AllocationFlags: u32 {
        /// Not allocated.
        const HOLE = 1 << 0;
        /// Reads as zeros.
        const ZERO = 1 << 1;
        const _ = !0;
    }
}

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Bytes.
    Read,
    /// Takes bytes.
    Write,
    /// The end, without a reply.
    Disconnect,
    /// Makes durable what was replied to.
    Flush,
    /// These are not needed.
    Trim,
    /// These will be read.
    Cache,
    /// Zeros.
    WriteZeroes,
    /// What is where.
    BlockStatus,
}

impl Command {
    /// All of them.
    pub const ALL: [Command; 8] = [
        Command::Read,
        Command::Write,
        Command::Disconnect,
        Command::Flush,
        Command::Trim,
        Command::Cache,
        Command::WriteZeroes,
        Command::BlockStatus,
    ];

    /// The number.
    pub const fn number(self) -> u16 {
        match self {
            Command::Read => 0,
            Command::Write => 1,
            Command::Disconnect => 2,
            Command::Flush => 3,
            Command::Trim => 4,
            Command::Cache => 5,
            Command::WriteZeroes => 6,
            Command::BlockStatus => 7,
        }
    }

    /// The command of a number.
    pub fn of(number: u16) -> Option<Command> {
        Command::ALL.into_iter().find(|c| c.number() == number)
    }

    /// The flags that it takes. `FUA` fits all: a client may set it everywhere.
    pub const fn flags(self) -> CommandFlags {
        match self {
            Command::Read => CommandFlags::FUA.union(CommandFlags::DF),
            Command::WriteZeroes => CommandFlags::FUA.union(CommandFlags::NO_HOLE).union(CommandFlags::FAST_ZERO),
            Command::BlockStatus => CommandFlags::FUA.union(CommandFlags::REQ_ONE),
            _ => CommandFlags::FUA,
        }
    }
}

/// A request, without its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Flags, unknown bits too.
    pub flags: CommandFlags,
    /// The number of the command; see [`Command::of`].
    pub command: u16,
    /// The client's name for it, which the reply repeats.
    pub cookie: u64,
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

impl Request {
    /// Bytes of a header.
    pub const LEN: usize = 28;

    /// The header.
    pub fn encode(&self) -> [u8; Request::LEN] {
        let mut out = [0; Request::LEN];
        out[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.bits().to_be_bytes());
        out[6..8].copy_from_slice(&self.command.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset.to_be_bytes());
        out[24..].copy_from_slice(&self.len.to_be_bytes());
        out
    }

    /// Reads a header; `None` if the magic is wrong.
    pub fn decode(bytes: &[u8; Request::LEN]) -> Option<Request> {
        let mut at = Fields(bytes);
        (at.u32()? == REQUEST_MAGIC).then_some(())?;
        Some(Request {
            flags: CommandFlags::from_bits_retain(at.u16()?),
            command: at.u16()?,
            cookie: at.u64()?,
            offset: at.u64()?,
            len: at.u32()?,
        })
    }
}

/// The errors that a reply can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyError {
    /// Not allowed: a write to what is read-only.
    Perm,
    /// The device failed.
    Io,
    /// No memory.
    NoMem,
    /// The request makes no sense.
    Inval,
    /// No space, or a write beyond the end.
    NoSpace,
    /// Too long for one chunk.
    Overflow,
    /// Not in this way.
    NotSup,
    /// The server ends.
    Shutdown,
}

impl ReplyError {
    /// All of them.
    pub const ALL: [ReplyError; 8] = [
        ReplyError::Perm,
        ReplyError::Io,
        ReplyError::NoMem,
        ReplyError::Inval,
        ReplyError::NoSpace,
        ReplyError::Overflow,
        ReplyError::NotSup,
        ReplyError::Shutdown,
    ];

    /// Its number, which is Linux's errno.
    pub const fn number(self) -> u32 {
        match self {
            ReplyError::Perm => 1,
            ReplyError::Io => 5,
            ReplyError::NoMem => 12,
            ReplyError::Inval => 22,
            ReplyError::NoSpace => 28,
            ReplyError::Overflow => 75,
            ReplyError::NotSup => 95,
            ReplyError::Shutdown => 108,
        }
    }

    /// The error of a number; `None` for zero, which is none. Unknown ones are `Inval`, as the protocol asks.
    pub fn of(number: u32) -> Option<ReplyError> {
        (number != 0).then(|| ReplyError::ALL.into_iter().find(|e| e.number() == number).unwrap_or(ReplyError::Inval))
    }
}

/// Bytes that are taken apart from the front. Each method returns `None` if there are too few.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// The next `len` bytes.
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next four.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next eight.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string of `len` bytes, if it is one as the protocol wants them.
    pub fn string(&mut self, len: usize) -> Option<&'a str> {
        string(self.take(len)?)
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

/// The bytes as a string of the protocol: UTF-8, no NUL, not longer than [`STRING_LEN_MAX`].
pub fn string(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    (text.len() <= STRING_LEN_MAX && !text.contains('\0')).then_some(text)
}

/// What a stranger sent as text for people, fit to be shown: at most 200 characters, controls escaped.
pub fn shown(bytes: &[u8]) -> String {
    const CHARS_MAX: usize = 200;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(STRING_LEN_MAX)]);
    text.chars().take(CHARS_MAX).flat_map(|c| c.escape_debug()).collect()
}

#[cfg(test)]
mod tests;

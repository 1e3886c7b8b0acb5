//! Options: their headers, their data, and the replies.

use super::{Fields, OPTION_MAGIC, OPTION_REPLY_MAGIC, STRING_LEN_MAX, TransmissionFlags};

/// Chooses an export, and cannot be refused but by closing.
pub const EXPORT_NAME: u32 = 1;
/// Ends.
pub const ABORT: u32 = 2;
/// Lists exports.
pub const LIST: u32 = 3;
/// Begins TLS.
pub const STARTTLS: u32 = 5;
/// Asks for what is to be known of an export.
pub const INFO: u32 = 6;
/// The same, and chooses it.
pub const GO: u32 = 7;
/// Wants structured replies.
pub const STRUCTURED_REPLY: u32 = 8;
/// Lists metadata contexts.
pub const LIST_META_CONTEXT: u32 = 9;
/// Chooses some.
pub const SET_META_CONTEXT: u32 = 10;

/// Reply: done.
pub const REP_ACK: u32 = 1;
/// Reply: one export of a list.
pub const REP_SERVER: u32 = 2;
/// Reply: something about an export.
pub const REP_INFO: u32 = 3;
/// Reply: a metadata context.
pub const REP_META_CONTEXT: u32 = 4;
/// The bit of all replies that are errors.
pub const REP_ERROR_BIT: u32 = 1 << 31;
/// Refusal: unknown option.
pub const ERR_UNSUP: u32 = REP_ERROR_BIT + 1;
/// Refusal: not allowed.
pub const ERR_POLICY: u32 = REP_ERROR_BIT + 2;
/// Refusal: makes no sense.
pub const ERR_INVALID: u32 = REP_ERROR_BIT + 3;
/// Refusal: not on this platform.
pub const ERR_PLATFORM: u32 = REP_ERROR_BIT + 4;
/// Refusal: TLS first.
pub const ERR_TLS_REQD: u32 = REP_ERROR_BIT + 5;
/// Refusal: no such export.
pub const ERR_UNKNOWN: u32 = REP_ERROR_BIT + 6;
/// Refusal: the server ends.
pub const ERR_SHUTDOWN: u32 = REP_ERROR_BIT + 7;
/// Refusal: the client has to ask for block sizes first.
pub const ERR_BLOCK_SIZE_REQD: u32 = REP_ERROR_BIT + 8;
/// Refusal: too long.
pub const ERR_TOO_BIG: u32 = REP_ERROR_BIT + 9;

/// Information: size and flags.
pub const INFO_EXPORT: u16 = 0;
/// Information: the name.
pub const INFO_NAME: u16 = 1;
/// Information: a text.
pub const INFO_DESCRIPTION: u16 = 2;
/// Information: block sizes.
pub const INFO_BLOCK_SIZE: u16 = 3;

/// Most informations that may be asked for.
pub const INFOS_MAX: usize = 32;
/// Most queries for contexts.
pub const QUERIES_MAX: u32 = 64;

/// The header of an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionHeader {
    /// Which.
    pub option: u32,
    /// Bytes of data that follow.
    pub len: u32,
}

impl OptionHeader {
    /// Bytes of a header.
    pub const LEN: usize = 16;

    /// The header.
    pub fn encode(&self) -> [u8; OptionHeader::LEN] {
        let mut out = [0; OptionHeader::LEN];
        out[..8].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        out[8..12].copy_from_slice(&self.option.to_be_bytes());
        out[12..].copy_from_slice(&self.len.to_be_bytes());
        out
    }

    /// Reads a header; `None` if the magic is wrong.
    pub fn decode(bytes: &[u8; OptionHeader::LEN]) -> Option<OptionHeader> {
        let mut at = Fields(bytes);
        (at.u64()? == OPTION_MAGIC).then_some(())?;
        Some(OptionHeader { option: at.u32()?, len: at.u32()? })
    }
}

/// The header of a reply to an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionReply {
    /// Which option.
    pub option: u32,
    /// Which reply.
    pub kind: u32,
    /// Bytes of data that follow.
    pub len: u32,
}

impl OptionReply {
    /// Bytes of a header.
    pub const LEN: usize = 20;

    /// The header.
    pub fn encode(&self) -> [u8; OptionReply::LEN] {
        let mut out = [0; OptionReply::LEN];
        out[..8].copy_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
        out[8..12].copy_from_slice(&self.option.to_be_bytes());
        out[12..16].copy_from_slice(&self.kind.to_be_bytes());
        out[16..].copy_from_slice(&self.len.to_be_bytes());
        out
    }

    /// Reads a header; `None` if the magic is wrong.
    pub fn decode(bytes: &[u8; OptionReply::LEN]) -> Option<OptionReply> {
        let mut at = Fields(bytes);
        (at.u64()? == OPTION_REPLY_MAGIC).then_some(())?;
        Some(OptionReply { option: at.u32()?, kind: at.u32()?, len: at.u32()? })
    }

    /// Whether it is a refusal.
    pub fn is_error(&self) -> bool {
        self.kind & REP_ERROR_BIT != 0
    }
}

/// Appends a whole option.
pub fn push_option(out: &mut Vec<u8>, option: u32, data: &[u8]) {
    out.extend_from_slice(&OptionHeader { option, len: data.len() as u32 }.encode());
    out.extend_from_slice(data);
}

/// Appends a whole reply.
pub fn push_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend_from_slice(&OptionReply { option, kind, len: data.len() as u32 }.encode());
    out.extend_from_slice(data);
}

/// The data of `INFO` and `GO`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InfoRequest {
    /// The export; empty: the default one.
    pub name: String,
    /// What is asked for, no number twice.
    pub infos: Vec<u16>,
}

impl InfoRequest {
    /// The data.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        push_string(&mut out, &self.name);
        out.extend_from_slice(&(self.infos.len() as u16).to_be_bytes());
        self.infos.iter().for_each(|info| out.extend_from_slice(&info.to_be_bytes()));
        out
    }

    /// Reads the data; `None` if lengths do not fit or a number comes twice.
    pub fn decode(data: &[u8]) -> Option<InfoRequest> {
        let mut at = Fields(data);
        let len = at.u32()? as usize;
        let name = at.string(len)?.to_owned();
        let count = usize::from(at.u16()?);
        if count > INFOS_MAX || at.0.len() != count * 2 {
            return None;
        }
        let mut infos = Vec::with_capacity(count);
        while let Some(info) = at.u16() {
            if infos.contains(&info) {
                return None;
            }
            infos.push(info);
        }
        Some(InfoRequest { name, infos })
    }
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetaQuery {
    /// The export.
    pub name: String,
    /// Contexts, or patterns of them.
    pub queries: Vec<String>,
}

impl MetaQuery {
    /// The data.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        push_string(&mut out, &self.name);
        out.extend_from_slice(&(self.queries.len() as u32).to_be_bytes());
        self.queries.iter().for_each(|query| push_string(&mut out, query));
        out
    }

    /// Reads the data; `None` if lengths do not fit, or there are more than [`QUERIES_MAX`].
    pub fn decode(data: &[u8]) -> Option<MetaQuery> {
        let mut at = Fields(data);
        let len = at.u32()? as usize;
        let name = at.string(len)?.to_owned();
        let count = at.u32()?;
        if count > QUERIES_MAX {
            return None;
        }
        let mut queries = Vec::new();
        for _ in 0..count {
            let len = at.u32()? as usize;
            queries.push(at.string(len)?.to_owned());
        }
        at.0.is_empty().then_some(MetaQuery { name, queries })
    }
}

/// Appends a string after its length as 32 bits.
fn push_string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// The data of a `REP_SERVER`: a name and a description.
pub fn server_data(name: &str, description: &str) -> Vec<u8> {
    let mut out = Vec::new();
    push_string(&mut out, name);
    out.extend_from_slice(description.as_bytes());
    out
}

/// Reads a `REP_SERVER`: name, description.
pub fn server_of(data: &[u8]) -> Option<(String, String)> {
    let mut at = Fields(data);
    let len = at.u32()? as usize;
    let name = at.string(len)?.to_owned();
    Some((name, super::string(at.rest())?.to_owned()))
}

/// The data of a `REP_META_CONTEXT`: a number and a name.
pub fn context_data(id: u32, name: &str) -> Vec<u8> {
    let mut out = id.to_be_bytes().to_vec();
    out.extend_from_slice(name.as_bytes());
    out
}

/// Reads a `REP_META_CONTEXT`: number, name.
pub fn context_of(data: &[u8]) -> Option<(u32, String)> {
    let mut at = Fields(data);
    Some((at.u32()?, super::string(at.rest())?.to_owned()))
}

/// Block sizes of an export, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockSizes {
    /// Requests are multiples of this: a power of two up to 65536.
    pub min: u32,
    /// Requests that are multiples of this are quick: a power of two, at least `min` and 512.
    pub preferred: u32,
    /// Longest payload.
    pub max: u32,
}

impl BlockSizes {
    /// What a client assumes that was not told.
    pub const ASSUMED: BlockSizes = BlockSizes { min: 512, preferred: 4096, max: super::PAYLOAD_LEN_MAX };

    /// Whether they are as the protocol wants them.
    pub fn are_sound(&self) -> bool {
        self.min.is_power_of_two()
            && self.min <= 65536
            && self.preferred.is_power_of_two()
            && self.preferred >= self.min.max(512)
            && (self.max == u32::MAX || (self.max >= self.preferred && self.max.is_multiple_of(self.min)))
    }
}

/// One piece of information about an export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Info {
    /// Size and flags.
    Export {
        /// In bytes.
        size: u64,
        /// What it can.
        flags: TransmissionFlags,
    },
    /// Its name.
    Name(String),
    /// A text.
    Description(String),
    /// Its block sizes.
    BlockSize(BlockSizes),
    /// Something else, which is to be ignored.
    Other(u16),
}

impl Info {
    /// The data of a `REP_INFO`.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Info::Export { size, flags } => {
                out.extend_from_slice(&INFO_EXPORT.to_be_bytes());
                out.extend_from_slice(&size.to_be_bytes());
                out.extend_from_slice(&flags.bits().to_be_bytes());
            }
            Info::Name(name) => {
                out.extend_from_slice(&INFO_NAME.to_be_bytes());
                out.extend_from_slice(name.as_bytes());
            }
            Info::Description(text) => {
                out.extend_from_slice(&INFO_DESCRIPTION.to_be_bytes());
                out.extend_from_slice(text.as_bytes());
            }
            Info::BlockSize(BlockSizes { min, preferred, max }) => {
                out.extend_from_slice(&INFO_BLOCK_SIZE.to_be_bytes());
                [min, preferred, max].iter().for_each(|size| out.extend_from_slice(&size.to_be_bytes()));
            }
            Info::Other(number) => out.extend_from_slice(&number.to_be_bytes()),
        }
        out
    }

    /// Reads the data of a `REP_INFO`; `None` if a known kind has the wrong length.
    pub fn decode(data: &[u8]) -> Option<Info> {
        let mut at = Fields(data);
        let info = match at.u16()? {
            INFO_EXPORT => Info::Export { size: at.u64()?, flags: TransmissionFlags::from_bits_retain(at.u16()?) },
            INFO_NAME => Info::Name(super::string(at.rest())?.to_owned()),
            INFO_DESCRIPTION => Info::Description(super::string(at.rest())?.to_owned()),
            INFO_BLOCK_SIZE => Info::BlockSize(BlockSizes { min: at.u32()?, preferred: at.u32()?, max: at.u32()? }),
            other => {
                at.rest();
                Info::Other(other)
            }
        };
        at.0.is_empty().then_some(info)
    }
}

/// A text for people, cut to what a string may have.
pub fn error_text(text: &str) -> &[u8] {
    let mut end = text.len().min(STRING_LEN_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text.as_bytes()[..end]
}

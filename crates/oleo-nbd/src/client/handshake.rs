//! What is agreed before the first request: TLS, structured replies, the context of allocations, the export and its
//! limits.
//!
//! Normal path: (1) the greeting; (2) `STARTTLS`, if the URI demands TLS; (3) `STRUCTURED_REPLY`; (4)
//! `SET_META_CONTEXT`; (5) `GO`, or `EXPORT_NAME` if the server does not know it. A server that is not of the fixed kind
//! knows only the last.
//!
//! Invariants: what the server sends is bounded, in length ([`REPLY_LEN_MAX`]), number ([`REPLIES_MAX`]) and time; a
//! refusal of something that is not needed is no error. Plain servers are not spoken to if TLS is demanded.

use std::io::IoSlice;
use std::time::Instant;

use super::options::ClientOptions;
use crate::channel::{Channel, Pace};
use crate::error::NbdError;
#[cfg(feature = "tls")]
use crate::uri::At;
use crate::uri::Uri;
use crate::wire::option::{
    BlockSizes, ERR_UNSUP, EXPORT_NAME, GO, INFO_BLOCK_SIZE, Info, InfoRequest, MetaQuery, OptionReply, REP_ACK,
    REP_ERROR_BIT, REP_INFO, REP_META_CONTEXT, SET_META_CONTEXT, STARTTLS, STRUCTURED_REPLY, context_of, push_option,
};
use crate::wire::{
    ALLOCATION_CONTEXT, EXPORT_NAME_ZEROS, Fields, GREETING_MAGIC, HandshakeFlags, OLDSTYLE_MAGIC, OPTION_MAGIC,
    TransmissionFlags, shown,
};

/// Longest reply to an option, in bytes.
const REPLY_LEN_MAX: u32 = 64 << 10;
/// Most replies to one option.
const REPLIES_MAX: usize = 1024;

/// What a session's connections agreed with the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Agreed {
    /// Bytes of the export that can be reached: a multiple of the smallest block.
    pub(super) size: u64,
    /// What the export can.
    pub(super) flags: TransmissionFlags,
    /// Its limits.
    pub(super) blocks: BlockSizes,
    /// Whether reads are answered by chunks.
    pub(super) structured: bool,
    /// The number of the context of allocations, if there is one.
    pub(super) context: Option<u32>,
}

impl Agreed {
    /// Whether the export can something.
    pub(super) fn can(&self, flags: TransmissionFlags) -> bool {
        self.flags.contains(flags)
    }

    /// Whether another connection is with the same export; numbers of contexts are each connection's own.
    pub(super) fn is_like(&self, other: &Agreed) -> bool {
        self.context.is_some() == other.context.is_some() && Agreed { context: other.context, ..*self } == *other
    }

    /// Why an export that was `self` and now is `now` cannot be used as before, if it cannot.
    pub(super) fn differs(&self, now: &Agreed) -> Option<String> {
        // That it can be read by several connections in parallel is no part of the export.
        let needed = self.flags - TransmissionFlags::ROTATIONAL - TransmissionFlags::CAN_MULTI_CONN;
        let read_only = |agreed: &Agreed| agreed.can(TransmissionFlags::READ_ONLY);
        if self.size != now.size {
            Some(format!("{} bytes long, was {}", now.size, self.size))
        } else if read_only(now) && !read_only(self) {
            Some("read-only now".into())
        } else if self.blocks.min != now.blocks.min || now.blocks.max < self.blocks.max {
            Some("its blocks have other sizes".into())
        } else if !now.flags.contains(needed - TransmissionFlags::READ_ONLY) {
            Some("the server can less than before".into())
        } else {
            None
        }
    }
}

/// Agrees on everything, up to the first request.
pub(super) fn shake_hands(
    channel: Channel,
    uri: &Uri,
    options: &ClientOptions,
    deadline: Instant,
) -> Result<(Channel, Agreed), NbdError> {
    let talk = Talk { channel, deadline };
    let greeting: [u8; 18] = talk.bytes()?;
    let mut fields = Fields(&greeting);
    let (magic, second, flags) = (fields.u64(), fields.u64(), fields.u16());
    if magic != Some(GREETING_MAGIC) {
        return Err(NbdError::protocol("it is no server of network block devices"));
    } else if second == Some(OLDSTYLE_MAGIC) {
        return Err(NbdError::Oldstyle);
    } else if second != Some(OPTION_MAGIC) {
        return Err(NbdError::protocol("an unknown greeting"));
    }
    let flags = HandshakeFlags::from_bits_truncate(flags.unwrap_or_default());
    let fixed = flags.contains(HandshakeFlags::FIXED_NEWSTYLE);
    talk.send(&u32::from(flags.bits()).to_be_bytes())?;
    if uri.tls {
        if !fixed {
            return Err(NbdError::NoTls);
        }
        talk.begin_tls(uri, options)?;
    }
    let structured = fixed && talk.option("STRUCTURED_REPLY", STRUCTURED_REPLY, &[], |_, _| Ok(()))?.is_ok();
    let context = if structured { talk.context(&uri.export)? } else { None };
    let mut told = None;
    if fixed {
        told = talk.go(&uri.export)?;
    }
    let (size, flags, blocks) = match told {
        Some(told) => told,
        None => talk.export_name(&uri.export, flags.contains(HandshakeFlags::NO_ZEROES))?,
    };
    let agreed = checked(size, flags, blocks)?;
    Ok((talk.channel, Agreed { structured, context, ..agreed }))
}

/// Size, flags and limits, if they make sense.
fn checked(size: u64, flags: TransmissionFlags, blocks: Option<BlockSizes>) -> Result<Agreed, NbdError> {
    if !flags.contains(TransmissionFlags::HAS_FLAGS) {
        return Err(NbdError::protocol("an export without flags"));
    }
    if i64::try_from(size).is_err() {
        return Err(NbdError::protocol(format!("an export of {size} bytes")));
    }
    if blocks.is_some_and(|blocks| !blocks.are_sound()) {
        return Err(NbdError::protocol("block sizes that the protocol forbids"));
    }
    let blocks = blocks.unwrap_or_else(|| {
        // An export whose last bytes cannot be reached was not meant.
        let min = if size.is_multiple_of(BlockSizes::ASSUMED.min.into()) { BlockSizes::ASSUMED.min } else { 1 };
        BlockSizes { min, ..BlockSizes::ASSUMED }
    });
    let size = size - size % u64::from(blocks.min);
    Ok(Agreed { size, flags, blocks, structured: false, context: None })
}

type Told = (u64, TransmissionFlags, Option<BlockSizes>);

struct Talk {
    channel: Channel,
    deadline: Instant,
}

impl Talk {
    fn pace(&self) -> Pace {
        Pace { progress: self.deadline.saturating_duration_since(Instant::now()), deadline: self.deadline }
    }

    fn send(&self, bytes: &[u8]) -> Result<(), NbdError> {
        self.channel.send_all(&mut [IoSlice::new(bytes)], self.pace()).map_err(NbdError::broken)
    }

    fn bytes<const N: usize>(&self) -> Result<[u8; N], NbdError> {
        let mut bytes = [0; N];
        self.channel.recv_all(&mut bytes, self.pace()).map_err(NbdError::broken)?;
        Ok(bytes)
    }

    /// Sends an option and gives its replies to `each`, up to the last: an acknowledgement, or a refusal.
    fn option(
        &self,
        name: &'static str,
        option: u32,
        data: &[u8],
        mut each: impl FnMut(u32, &[u8]) -> Result<(), NbdError>,
    ) -> Result<Result<(), NbdError>, NbdError> {
        let mut message = Vec::new();
        push_option(&mut message, option, data);
        self.send(&message)?;
        for _ in 0..REPLIES_MAX {
            let reply = OptionReply::decode(&self.bytes()?);
            let reply = reply.ok_or_else(|| NbdError::protocol("what came is no reply to an option"))?;
            if reply.option != option {
                return Err(NbdError::protocol("a reply to another option"));
            }
            if reply.len > REPLY_LEN_MAX {
                return Err(NbdError::protocol(format!("a reply of {} bytes to an option", reply.len)));
            }
            let mut data = vec![0; reply.len as usize];
            self.channel.recv_all(&mut data, self.pace()).map_err(NbdError::broken)?;
            match reply.kind {
                REP_ACK => return Ok(Ok(())),
                _ if reply.is_error() => {
                    let code = reply.kind & !REP_ERROR_BIT;
                    return Ok(Err(NbdError::Refused { option: name, code, text: shown(&data) }));
                }
                kind => each(kind, &data)?,
            }
        }
        Err(NbdError::protocol("endless replies to an option"))
    }

    /// The number of the context of allocations, if the server has it.
    fn context(&self, export: &str) -> Result<Option<u32>, NbdError> {
        let query = MetaQuery { name: export.into(), queries: vec![ALLOCATION_CONTEXT.into()] };
        let mut context = None;
        let result = self.option("SET_META_CONTEXT", SET_META_CONTEXT, &query.encode(), |kind, data| {
            if kind == REP_META_CONTEXT {
                let (id, name) = context_of(data).ok_or_else(|| NbdError::protocol("a context that is none"))?;
                if name == ALLOCATION_CONTEXT {
                    context = Some(id);
                }
            }
            Ok(())
        })?;
        Ok(context.filter(|_| result.is_ok()))
    }

    /// Chooses the export; `None`: the server does not know how.
    fn go(&self, export: &str) -> Result<Option<Told>, NbdError> {
        let request = InfoRequest { name: export.into(), infos: vec![INFO_BLOCK_SIZE] };
        let (mut about, mut blocks) = (None, None);
        let result = self.option("GO", GO, &request.encode(), |kind, data| {
            if kind == REP_INFO {
                match Info::decode(data).ok_or_else(|| NbdError::protocol("information that is none"))? {
                    Info::Export { size, flags } => about = Some((size, flags)),
                    Info::BlockSize(sizes) => blocks = Some(sizes),
                    _ => {}
                }
            }
            Ok(())
        })?;
        match result {
            Ok(()) => {
                let (size, flags) = about.ok_or_else(|| NbdError::protocol("an export without a size"))?;
                Ok(Some((size, flags, blocks)))
            }
            Err(NbdError::Refused { code, .. }) if code == ERR_UNSUP & !REP_ERROR_BIT => Ok(None),
            Err(why) => Err(why),
        }
    }

    /// The old way to choose the export; a server refuses by closing.
    fn export_name(&self, export: &str, no_zeroes: bool) -> Result<Told, NbdError> {
        let mut message = Vec::new();
        push_option(&mut message, EXPORT_NAME, export.as_bytes());
        self.send(&message)?;
        let about: [u8; 10] = self.bytes().map_err(|e| match e {
            NbdError::Broken { source } if source.kind() == std::io::ErrorKind::UnexpectedEof => {
                NbdError::Refused { option: "EXPORT_NAME", code: 0, text: String::new() }
            }
            other => other,
        })?;
        if !no_zeroes {
            let _zeros: [u8; EXPORT_NAME_ZEROS] = self.bytes()?;
        }
        let mut fields = Fields(&about);
        let (size, flags) = (fields.u64().unwrap_or_default(), fields.u16().unwrap_or_default());
        Ok((size, TransmissionFlags::from_bits_retain(flags), None))
    }

    /// From here on in TLS.
    fn begin_tls(&self, uri: &Uri, options: &ClientOptions) -> Result<(), NbdError> {
        self.option("STARTTLS", STARTTLS, &[], |_, _| Ok(()))?.map_err(|_| NbdError::NoTls)?;
        self.start_tls(uri, options)
    }

    #[cfg(feature = "tls")]
    fn start_tls(&self, uri: &Uri, options: &ClientOptions) -> Result<(), NbdError> {
        // With each connection: certificates are renewed while a device is in use.
        let dir = uri.tls_certificates.as_ref().or(options.tls_certificates.as_ref());
        let tls = crate::channel::ClientTls::load(dir.map(std::path::PathBuf::as_path), uri.tls_verify_peer)?;
        let host = match &uri.at {
            At::Tcp { host, .. } => host,
            At::Unix(_) => "localhost",
        };
        let name = uri.tls_hostname.as_deref().or(options.tls_hostname.as_deref()).unwrap_or(host);
        self.channel.start_tls_client(&tls, name, self.deadline)
    }

    #[cfg(not(feature = "tls"))]
    fn start_tls(&self, _: &Uri, _: &ClientOptions) -> Result<(), NbdError> {
        Err(NbdError::Tls { what: "it is not built in".into() })
    }
}

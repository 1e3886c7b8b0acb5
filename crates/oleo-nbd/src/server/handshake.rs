//! From the greeting to the export: what a client may ask before it reads and writes.
//!
//! A state machine over anything that reads and writes bytes, with a time limit that the stream has: a client that
//! stalls meets an error there. Its steps: the greeting; options one by one, each answered before the next is read;
//! `GO` or `EXPORT_NAME` end it well, everything else ends it by closing.
//!
//! Bounds: [`Terms::options_max`] options; data of an option is read up to [`crate::wire::OPTION_LEN_MAX`] and skipped up to
//! [`SKIP_LEN_MAX`]; more is a reason to close. Whatever a client sends, it gets the reply that the protocol demands, or
//! the end.
//! With TLS demanded, nothing is answered before it but the wish for it; what was agreed before is forgotten.

use std::io::{self, Read, Write};

use super::export::Served;
use crate::wire::option::{
    ABORT, ERR_BLOCK_SIZE_REQD, ERR_INVALID, ERR_POLICY, ERR_SHUTDOWN, ERR_TLS_REQD, ERR_TOO_BIG, ERR_UNKNOWN,
    ERR_UNSUP, EXPORT_NAME, GO, INFO, INFO_BLOCK_SIZE, INFO_DESCRIPTION, INFO_NAME, Info, InfoRequest, LIST,
    LIST_META_CONTEXT, MetaQuery, OptionHeader, REP_ACK, REP_INFO, REP_META_CONTEXT, REP_SERVER, SET_META_CONTEXT,
    STARTTLS, STRUCTURED_REPLY, context_data, error_text, push_reply, server_data,
};
use crate::wire::{
    ALLOCATION_CONTEXT, EXPORT_NAME_ZEROS, GREETING_MAGIC, HandshakeFlags, OPTION_LEN_MAX, OPTION_MAGIC,
    PAYLOAD_LEN_MAX, STRING_LEN_MAX, string,
};

/// The number of the context `base:allocation` in replies.
pub(crate) const ALLOCATION_ID: u32 = 1;
/// Most data that is skipped to stay in step with a client, in bytes.
const SKIP_LEN_MAX: u32 = 1 << 20;

/// What a server demands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Most options of one connection.
    pub(crate) options_max: u32,
    /// Whether nothing goes without TLS.
    pub(crate) tls: bool,
}

/// What the handshake asks the server.
pub(crate) trait Host {
    /// Whether the client may use the export; with `stay`, it does from now on. An error is what it is told.
    fn admit(&mut self, export: usize, stay: bool) -> Result<(), String>;
    /// Whether the server ends.
    fn is_stopping(&self) -> bool;
}

/// What was agreed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Agreed {
    /// Which export.
    pub(crate) export: usize,
    /// Structured replies.
    pub(crate) structured: bool,
    /// The context `base:allocation`.
    pub(crate) allocation: bool,
}

/// How a handshake goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The client reads and writes now.
    Transmit(Agreed),
    /// TLS begins now; then `run` goes on.
    StartTls,
    /// The end.
    Close,
}

/// What is to be done after an option.
enum Next {
    Option,
    Done(Outcome),
}

/// A handshake.
pub(crate) struct Handshake<'a> {
    exports: &'a [Served],
    terms: Terms,
    greeted: bool,
    no_zeroes: bool,
    tls_on: bool,
    options: u32,
    structured: bool,
    /// The export for which contexts were chosen.
    allocation_of: Option<usize>,
    out: Vec<u8>,
}

impl<'a> Handshake<'a> {
    pub(crate) fn new(exports: &'a [Served], terms: Terms) -> Handshake<'a> {
        Handshake {
            exports,
            terms,
            greeted: false,
            no_zeroes: false,
            tls_on: false,
            options: 0,
            structured: false,
            allocation_of: None,
            out: Vec::new(),
        }
    }

    /// Goes on up to the next outcome. An error is one of the stream.
    pub(crate) fn run(&mut self, stream: &mut (impl Read + Write), host: &mut impl Host) -> io::Result<Outcome> {
        if !self.greeted && !self.greet(stream)? {
            return Ok(Outcome::Close);
        }
        self.greeted = true;
        loop {
            let mut head = [0; OptionHeader::LEN];
            stream.read_exact(&mut head)?;
            let Some(header) = OptionHeader::decode(&head) else { return Ok(Outcome::Close) };
            self.options += 1;
            if self.options > self.terms.options_max {
                return Ok(Outcome::Close);
            }
            let next = self.option(header, stream, host)?;
            let sent = if self.out.is_empty() { Ok(()) } else { stream.write_all(&self.out) };
            self.out.clear();
            match next {
                // The client may be gone before it has the answer.
                Next::Done(Outcome::Close) => return Ok(Outcome::Close),
                Next::Done(outcome) => return sent.map(|()| outcome),
                Next::Option => sent?,
            }
        }
    }

    /// Whether the client's answer to the greeting is in order.
    fn greet(&mut self, stream: &mut (impl Read + Write)) -> io::Result<bool> {
        let flags = HandshakeFlags::FIXED_NEWSTYLE | HandshakeFlags::NO_ZEROES;
        let mut hello = GREETING_MAGIC.to_be_bytes().to_vec();
        hello.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        hello.extend_from_slice(&flags.bits().to_be_bytes());
        stream.write_all(&hello)?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer)?;
        let known = u16::try_from(u32::from_be_bytes(answer)).ok().and_then(HandshakeFlags::from_bits);
        self.no_zeroes = known.is_some_and(|f| f.contains(HandshakeFlags::NO_ZEROES));
        Ok(known.is_some_and(|f| f.contains(HandshakeFlags::FIXED_NEWSTYLE)))
    }

    fn option(
        &mut self,
        OptionHeader { option, len }: OptionHeader,
        stream: &mut impl Read,
        host: &mut impl Host,
    ) -> io::Result<Next> {
        const CLOSE: Next = Next::Done(Outcome::Close);
        let known =
            matches!(option, LIST | STARTTLS | INFO | GO | STRUCTURED_REPLY | LIST_META_CONTEXT | SET_META_CONTEXT);
        if option == EXPORT_NAME && len as usize > STRING_LEN_MAX {
            return Ok(CLOSE);
        }
        if len > OPTION_LEN_MAX || !(known || option == EXPORT_NAME) {
            if len > SKIP_LEN_MAX {
                return Ok(CLOSE);
            }
            skip(stream, len)?;
            match option {
                ABORT => {
                    self.reply(option, REP_ACK, &[]);
                    return Ok(CLOSE);
                }
                _ if self.lacks_tls() => self.refuse(option, ERR_TLS_REQD, "TLS first"),
                _ if known => self.refuse(option, ERR_TOO_BIG, "too much data"),
                _ => self.refuse(option, ERR_UNSUP, "unknown option"),
            }
            return Ok(Next::Option);
        }
        let mut data = vec![0; len as usize];
        stream.read_exact(&mut data)?;
        if self.lacks_tls() && option != STARTTLS {
            if option == EXPORT_NAME {
                return Ok(CLOSE);
            }
            self.refuse(option, ERR_TLS_REQD, "TLS first");
            return Ok(Next::Option);
        }
        if host.is_stopping() {
            if option != EXPORT_NAME {
                self.refuse(option, ERR_SHUTDOWN, "the server ends");
            }
            return Ok(CLOSE);
        }
        Ok(match option {
            EXPORT_NAME => self.export_name(&data, host),
            INFO | GO => self.info(option, &data, host),
            STARTTLS => self.start_tls(&data),
            LIST_META_CONTEXT | SET_META_CONTEXT => {
                self.contexts(option, &data);
                Next::Option
            }
            _ if !data.is_empty() => {
                self.refuse(option, ERR_INVALID, "this option has no data");
                Next::Option
            }
            LIST => {
                for export in self.exports {
                    let data = server_data(&export.name, &export.description);
                    push_reply(&mut self.out, LIST, REP_SERVER, &data);
                }
                self.reply(LIST, REP_ACK, &[]);
                Next::Option
            }
            _ => {
                self.structured = true;
                self.reply(STRUCTURED_REPLY, REP_ACK, &[]);
                Next::Option
            }
        })
    }

    fn lacks_tls(&self) -> bool {
        self.terms.tls && !self.tls_on
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) {
        push_reply(&mut self.out, option, kind, data);
    }

    fn refuse(&mut self, option: u32, error: u32, text: &str) {
        self.reply(option, error, error_text(text));
    }

    /// The export of a name. The only one also answers to the empty name.
    fn find(&self, name: &str) -> Option<usize> {
        let named = self.exports.iter().position(|e| e.name == name);
        named.or_else(|| (name.is_empty() && self.exports.len() == 1).then_some(0))
    }

    fn start_tls(&mut self, data: &[u8]) -> Next {
        if !data.is_empty() {
            self.refuse(STARTTLS, ERR_INVALID, "this option has no data");
        } else if self.tls_on {
            self.refuse(STARTTLS, ERR_INVALID, "TLS is on");
        } else if !self.terms.tls {
            self.refuse(STARTTLS, ERR_POLICY, "this server has no TLS");
        } else {
            (self.tls_on, self.structured, self.allocation_of) = (true, false, None);
            self.reply(STARTTLS, REP_ACK, &[]);
            return Next::Done(Outcome::StartTls);
        }
        Next::Option
    }

    fn agreed(&self, export: usize) -> Outcome {
        let allocation = self.allocation_of == Some(export);
        Outcome::Transmit(Agreed { export, structured: self.structured, allocation })
    }

    fn export_name(&mut self, data: &[u8], host: &mut impl Host) -> Next {
        let found = string(data).and_then(|name| self.find(name));
        let Some(export) = found.filter(|&export| host.admit(export, true).is_ok()) else {
            return Next::Done(Outcome::Close);
        };
        let served = &self.exports[export];
        self.out.extend_from_slice(&served.size.to_be_bytes());
        self.out.extend_from_slice(&served.flags(self.structured).bits().to_be_bytes());
        if !self.no_zeroes {
            self.out.extend_from_slice(&[0; EXPORT_NAME_ZEROS]);
        }
        Next::Done(self.agreed(export))
    }

    fn info(&mut self, option: u32, data: &[u8], host: &mut impl Host) -> Next {
        let Some(InfoRequest { name, infos }) = InfoRequest::decode(data) else {
            self.refuse(option, ERR_INVALID, "the data does not fit");
            return Next::Option;
        };
        let Some(export) = self.find(&name) else {
            self.refuse(option, ERR_UNKNOWN, "no such export");
            return Next::Option;
        };
        let served = &self.exports[export];
        let sizes = Info::BlockSize(served.block_sizes());
        let unusual = served.payload_max < PAYLOAD_LEN_MAX && !infos.contains(&INFO_BLOCK_SIZE);
        let refused = match unusual {
            true => Some((ERR_BLOCK_SIZE_REQD, "the longest payload is not the usual one".to_owned())),
            false => host.admit(export, option == GO).err().map(|text| (ERR_POLICY, text)),
        };
        if let Some((error, text)) = refused {
            if unusual {
                self.reply(option, REP_INFO, &sizes.encode());
            }
            self.refuse(option, error, &text);
            return Next::Option;
        }
        let about = Info::Export { size: served.size, flags: served.flags(self.structured) };
        let mut answers = vec![about];
        for info in infos {
            match info {
                INFO_NAME => answers.push(Info::Name(served.name.clone())),
                INFO_DESCRIPTION => answers.push(Info::Description(served.description.clone())),
                INFO_BLOCK_SIZE => answers.push(sizes.clone()),
                _ => {}
            }
        }
        for answer in answers {
            self.reply(option, REP_INFO, &answer.encode());
        }
        self.reply(option, REP_ACK, &[]);
        if option == GO { Next::Done(self.agreed(export)) } else { Next::Option }
    }

    fn contexts(&mut self, option: u32, data: &[u8]) {
        let set = option == SET_META_CONTEXT;
        if set {
            self.allocation_of = None;
        }
        if set && !self.structured {
            return self.refuse(option, ERR_INVALID, "structured replies first");
        }
        let Some(MetaQuery { name, queries }) = MetaQuery::decode(data) else {
            return self.refuse(option, ERR_INVALID, "the data does not fit");
        };
        let Some(export) = self.find(&name) else {
            return self.refuse(option, ERR_UNKNOWN, "no such export");
        };
        let listed = !set && (queries.is_empty() || queries.iter().any(|q| q == "base:"));
        if listed || queries.iter().any(|q| q == ALLOCATION_CONTEXT) {
            let id = if set { ALLOCATION_ID } else { 0 };
            self.reply(option, REP_META_CONTEXT, &context_data(id, ALLOCATION_CONTEXT));
            if set {
                self.allocation_of = Some(export);
            }
        }
        self.reply(option, REP_ACK, &[]);
    }
}

/// Reads bytes and forgets them.
fn skip(stream: &mut impl Read, len: u32) -> io::Result<()> {
    let skipped = io::copy(&mut stream.take(len.into()), &mut io::sink())?;
    if skipped < len.into() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests;

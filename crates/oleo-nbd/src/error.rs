//! What goes wrong with a server, a client, or a name.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use oleo_device::DeviceError;
use oleo_format::{Class, Classified, errno};

use crate::wire::ReplyError;

/// Why something failed. Texts from the other side are cut and escaped before they come here ([`crate::wire::shown`]).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NbdError {
    /// A name that is no URI of this kind, or one with something that is not supported.
    #[error("{uri}: {what}")]
    Uri {
        /// The name.
        uri: String,
        /// What is wrong with it.
        what: String,
    },
    /// No address for a host.
    #[error("cannot resolve {host}: {source}")]
    Resolve {
        /// The host.
        host: String,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// No connection.
    #[error("cannot connect to {to}: {source}")]
    Connect {
        /// Where to.
        to: String,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// No listening.
    #[error("cannot listen on {on}: {source}")]
    Listen {
        /// On what.
        on: String,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The other side refused an option.
    #[error("{option} was refused by the server (code {code}){}", text_after(text))]
    Refused {
        /// The option's name.
        option: &'static str,
        /// The reply's number, without the bit of errors.
        code: u32,
        /// What it said.
        text: String,
    },
    /// A server of the old kind.
    #[error("the server speaks the oldstyle protocol, which is not supported")]
    Oldstyle,
    /// TLS was wanted and is not to be had.
    #[error("the server offers no TLS")]
    NoTls,
    /// TLS failed.
    #[error("TLS: {what}")]
    Tls {
        /// Why.
        what: String,
    },
    /// The other side broke the protocol.
    #[error("the other side breaks the protocol: {what}")]
    Protocol {
        /// How.
        what: String,
    },
    /// Nothing came for too long.
    #[error("no answer for {:.1} s", after.as_secs_f64())]
    TimedOut {
        /// How long was waited.
        after: Duration,
    },
    /// The connection is gone.
    #[error("the connection is broken: {source}")]
    Broken {
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The connection went before a flush confirmed what was written: it may be gone.
    #[error("the connection broke before {} were flushed; they may be lost ({why})", written_bytes(*bytes))]
    Lost {
        /// How many bytes; `u64::MAX`: nobody knows.
        bytes: u64,
        /// Why it broke.
        why: Arc<NbdError>,
    },
    /// After a reconnect the export is another one.
    #[error("the export is not what it was: {what}")]
    Changed {
        /// What differs.
        what: String,
    },
    /// The server could not do what a request asked for.
    #[error("the server answered with error {}{}", error.number(), text_after(text))]
    Answered {
        /// Which.
        error: ReplyError,
        /// What it said.
        text: String,
    },
    /// The server cannot do what is needed.
    #[error("the server {what}")]
    Unsupported {
        /// What it cannot.
        what: String,
    },
    /// The options make no sense.
    #[error("{what}")]
    Usage {
        /// Why.
        what: String,
    },
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

fn written_bytes(count: u64) -> String {
    if count == u64::MAX { "writes".into() } else { format!("{count} written bytes") }
}

fn text_after(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

impl NbdError {
    /// A breach of the protocol.
    pub fn protocol(what: impl Into<String>) -> NbdError {
        NbdError::Protocol { what: what.into() }
    }

    /// A broken connection: an end of the stream, or the system's error.
    pub fn broken(source: io::Error) -> NbdError {
        NbdError::Broken { source: Arc::new(source) }
    }
}

impl Classified for NbdError {
    #[deny(clippy::wildcard_enum_match_arm)]
    fn class(&self) -> Class {
        match self {
            NbdError::Uri { .. } | NbdError::Usage { .. } => Class::USAGE,
            NbdError::Resolve { .. } => Class::refusal(errno::ENXIO),
            NbdError::Connect { source, .. } | NbdError::Listen { source, .. } => {
                Class::refusal(source.raw_os_error().unwrap_or(errno::EIO))
            }
            NbdError::Refused { .. } => Class::refusal(errno::EACCES),
            NbdError::Oldstyle | NbdError::NoTls | NbdError::Unsupported { .. } => Class::refusal(errno::EOPNOTSUPP),
            NbdError::Tls { .. } => Class::refusal(errno::EACCES),
            NbdError::Changed { .. } => Class { errno: errno::ESTALE, ..Class::DEVICE },
            NbdError::Protocol { .. }
            | NbdError::TimedOut { .. }
            | NbdError::Broken { .. }
            | NbdError::Lost { .. }
            | NbdError::Answered { .. } => Class::DEVICE,
            NbdError::Device(e) => e.class(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every error is of its kind and has its errno.
    #[test]
    fn every_error_has_its_class() {
        let what = || String::from("x");
        let says = |number| Arc::new(io::Error::from_raw_os_error(number));
        oleo_format::assert_classes!(NbdError {
            Uri: NbdError::Uri { uri: what(), what: what() } => Class::USAGE,
            Resolve: NbdError::Resolve { host: what(), source: says(errno::ENOENT) } => Class::refusal(errno::ENXIO),
            Connect: NbdError::Connect { to: what(), source: says(errno::ENOENT) } => Class::refusal(errno::ENOENT),
            Listen: NbdError::Listen { on: what(), source: says(errno::EACCES) } => Class::refusal(errno::EACCES),
            Refused: NbdError::Refused { option: "GO", code: 2, text: what() } => Class::refusal(errno::EACCES),
            Oldstyle: NbdError::Oldstyle => Class::refusal(errno::EOPNOTSUPP),
            NoTls: NbdError::NoTls => Class::refusal(errno::EOPNOTSUPP),
            Tls: NbdError::Tls { what: what() } => Class::refusal(errno::EACCES),
            Protocol: NbdError::protocol("x") => Class::DEVICE,
            TimedOut: NbdError::TimedOut { after: Duration::ZERO } => Class::DEVICE,
            Broken: NbdError::broken(io::ErrorKind::UnexpectedEof.into()) => Class::DEVICE,
            Lost: NbdError::Lost { bytes: 1, why: Arc::new(NbdError::protocol("x")) } => Class::DEVICE,
            Answered: NbdError::Answered { error: ReplyError::Io, text: what() } => Class::DEVICE,
            Changed: NbdError::Changed { what: what() } => Class { errno: errno::ESTALE, ..Class::DEVICE },
            Unsupported: NbdError::Unsupported { what: what() } => Class::refusal(errno::EOPNOTSUPP),
            Usage: NbdError::Usage { what: what() } => Class::USAGE,
            Device: NbdError::Device(DeviceError::ReadOnly { name: "d".into(), op: oleo_device::Op::Write })
                => Class::refusal(errno::EROFS),
        });
    }
}

//! Sending from a mount: the stream goes from the server to who asks through a socket of its own.
//!
//! Normal path: (1) the client listens ([`Feed::collect`]) and asks; (2) the server connects to it, sees that it is the caller's, and
//! writes the stream into it; (3) the answer says what was sent, when all is written. A client that goes away ends the send.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};

use super::caller::Caller;
use super::receive::{Feed, connect, pump};
use super::request::{Bytes, Error, Reply};
use crate::send::SendOptions;
use crate::{Image, TreeId};

/// How to send from a mount; see [`SendOptions`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SendHow {
    /// Version of the stream.
    pub version: u32,
    /// Compressed extents as they are stored.
    pub compressed: bool,
    /// Which ranges changed, without contents.
    pub no_data: bool,
    /// One END behind all.
    pub one_end: bool,
    /// Bytes of memory, about; the server takes at most [`MEMORY_MAX`].
    pub memory_bytes: u64,
}

/// The most memory a server spends on one send, bytes.
pub const MEMORY_MAX: u64 = 1 << 30;

/// What was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SentShown {
    /// Bytes of the stream.
    pub bytes: u64,
    /// Commands in it.
    pub commands: u64,
    /// Bytes of contents in it.
    pub data_bytes: u64,
    /// Bytes of contents that are cloned.
    pub cloned_bytes: u64,
}

impl From<crate::send::Sent> for SentShown {
    fn from(sent: crate::send::Sent) -> SentShown {
        let crate::send::Sent { bytes, commands, data_bytes, cloned_bytes, .. } = sent;
        SentShown { bytes, commands, data_bytes, cloned_bytes }
    }
}

impl Feed {
    /// Waits for a stream, and writes it to `out`; the thread that does so ends with the stream.
    ///
    /// # Errors
    /// There is no place for the socket.
    pub fn collect(mut out: Box<dyn Write + Send>) -> io::Result<(Feed, JoinHandle<io::Result<()>>)> {
        let (feed, listener) = Feed::listen()?;
        let thread = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept()?;
            pump(&mut socket, &mut out)
        });
        Ok((feed, thread))
    }

    /// Lets a collecting thread end where the server never came.
    pub fn give_up(&self) {
        drop(UnixStream::connect(self.path()));
    }
}

/// What takes part in a send.
pub(super) struct Parts {
    pub subvols: Vec<TreeId>,
    pub parent: Option<TreeId>,
    pub clone_sources: Vec<TreeId>,
}

/// Carries the request out.
pub(super) fn send(image: &Image, caller: &Caller, parts: Parts, feed: &Bytes, how: &SendHow) -> Result<Reply, Error> {
    let mut out = connect(caller, feed)?;
    let options = SendOptions {
        parent: parts.parent,
        clone_sources: parts.clone_sources,
        version: how.version,
        compressed: how.compressed,
        no_data: how.no_data,
        one_end: how.one_end,
        memory_bytes: usize::try_from(how.memory_bytes.min(MEMORY_MAX)).unwrap_or(usize::MAX),
        ..SendOptions::default()
    };
    let sent = image.send(&parts.subvols, &options, &mut out)?;
    Ok(Reply::Sent(sent.into()))
}

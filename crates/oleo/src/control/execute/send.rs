//! Sending from a mount: the stream goes from the server to who asks through a socket of its own.
//!
//! Normal path: (1) the client listens ([`Feed::collect`](super::super::Feed::collect)) and asks; (2) the server connects to it, sees that it is the
//! caller's, and writes the stream into it; (3) the reply says what was sent, when all is written. A client that goes away ends
//! the send, and so does one that takes nothing for [`STALL_MAX`](super::super::STALL_MAX).
//!
//! Progress goes through another such socket ([`Feed::watch`](super::super::Feed::watch)), if the client wants it: a message of fixed length now
//! and then, in place of which nothing is sent if the client does not read.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use oleo_fs::errno;
use parking_lot::Mutex;

use crate::control::bytes::Bytes;
use crate::control::caller::Caller;
use crate::control::error::Error;
use crate::control::feed::{PROGRESS_LEN, connect, encode};
use crate::control::reply::Reply;
use crate::control::request::{MEMORY_MAX, SendHow};
use crate::send::{Progress, SendOptions};
use crate::{Image, TreeId};

/// The time between two messages about progress.
const PROGRESS_PAUSE: Duration = Duration::from_millis(50);

/// The receiver of a send's progress.
struct Watcher {
    socket: UnixStream,
    last: Option<Instant>,
}

impl Watcher {
    /// Reports progress if it is time. Returns `false` if nobody listens any more.
    fn report(&mut self, now: &Progress) -> bool {
        if self.last.is_some_and(|last| last.elapsed() < PROGRESS_PAUSE) {
            return true;
        }
        self.last = Some(Instant::now());
        match self.socket.write(&encode(now)) {
            // A part of a message can only be followed by the rest, for which there is no room.
            Ok(len) => len == PROGRESS_LEN,
            Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
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
    let watcher = match &how.progress {
        None => None,
        Some(feed) => {
            let socket = connect(caller, feed)?;
            socket
                .set_nonblocking(true)
                .map_err(|e| Error::refused(e.raw_os_error().unwrap_or(errno::EIO), e.to_string()))?;
            Some(Watcher { socket, last: None })
        }
    };
    let watcher = Mutex::new(watcher);
    let hook = |now: &Progress| {
        let mut watcher = watcher.lock();
        if watcher.as_mut().is_some_and(|watcher| !watcher.report(now)) {
            *watcher = None;
        }
        ControlFlow::Continue(())
    };
    let options = SendOptions::default()
        .parent(parts.parent)
        .clone_sources(parts.clone_sources)
        .version(how.version)
        .compressed(how.compressed)
        .no_data(how.no_data)
        .one_end(how.one_end)
        .memory_bytes(usize::try_from(how.memory_bytes.min(MEMORY_MAX)).unwrap_or(usize::MAX))
        .progress(how.progress.is_some().then_some(&hook));
    let sent = image.send(&parts.subvols, &options, &mut out)?;
    Ok(Reply::Sent(sent.into()))
}

//! Sending from a mount: the stream goes from the server to who asks through a socket of its own.
//!
//! Normal path: (1) the client listens ([`Feed::collect`]) and asks; (2) the server connects to it, sees that it is the caller's, and
//! writes the stream into it; (3) the answer says what was sent, when all is written. A client that goes away ends the send, and
//! so does one that takes nothing for [`STALL_MAX`](super::receive::STALL_MAX).
//!
//! Progress goes through another such socket ([`Feed::watch`]), if the client wants it: a message of fixed length now and then,
//! in place of which nothing is sent where the client does not read.

use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use oleo_fs::errno;
use serde::{Deserialize, Serialize};

use super::caller::Caller;
use super::receive::{Feed, connect, pump};
use super::request::{Bytes, Error, Reply};
use crate::send::{Progress, SendOptions};
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
    /// The socket of a [`Feed`] that is told how far it is.
    #[serde(default)]
    pub progress: Option<Bytes>,
}

/// Bytes of a message about progress: four numbers, lowest byte first.
const PROGRESS_LEN: usize = 32;
/// The time between two of them.
const PROGRESS_PAUSE: Duration = Duration::from_millis(50);

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

    /// Waits for progress of a send and passes it to `reported`, on a thread that ends with the send.
    ///
    /// # Errors
    /// There is no place for the socket.
    pub fn watch(mut reported: impl FnMut(Progress) + Send + 'static) -> io::Result<(Feed, JoinHandle<()>)> {
        let (feed, listener) = Feed::listen()?;
        let thread = std::thread::spawn(move || {
            let Ok((mut socket, _)) = listener.accept() else { return };
            let mut message = [0; PROGRESS_LEN];
            while socket.read_exact(&mut message).is_ok() {
                reported(parse(&message));
            }
        });
        Ok((feed, thread))
    }

    /// Ends a collecting thread if the server never connected.
    pub fn give_up(&self) {
        drop(UnixStream::connect(self.path()));
    }
}

fn encode(now: &Progress) -> [u8; PROGRESS_LEN] {
    let mut message = [0; PROGRESS_LEN];
    let numbers = [now.inodes, now.at_inode, now.last_inode, now.bytes];
    for (place, number) in message.chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    message
}

fn parse(message: &[u8; PROGRESS_LEN]) -> Progress {
    let number = |n: usize| u64::from_le_bytes(message[n * 8..][..8].try_into().expect("eight bytes"));
    Progress { inodes: number(0), at_inode: number(1), last_inode: number(2), bytes: number(3) }
}

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

//! The sockets through which a mount's server and its client pass a stream to each other, and the progress of a send.
//!
//! The client listens at a name that nobody else may use ([`Feed`]) and puts the name into its request; the server connects to
//! it ([`connect`]) and sees that it is the caller's. Either side gives up when the other is silent for [`STALL_MAX`]. Others are
//! served meanwhile: each connection has a thread of its own.
//!
//! Progress is a message of fixed length ([`encode`]) now and then.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use oleo_fs::errno;
use oleo_stream::Progress;

use super::bytes::Bytes;
use super::caller::Caller;
use super::error::Error;

/// How long the other end of a stream may neither give nor take a byte.
pub const STALL_MAX: Duration = Duration::from_secs(600);

/// Bytes of a message about progress: four numbers, lowest byte first.
pub(super) const PROGRESS_LEN: usize = 32;
/// Where a stream can be fetched, once.
#[derive(Debug)]
pub struct Feed {
    dir: PathBuf,
    path: PathBuf,
}

impl Feed {
    /// Offers a stream; a thread of its own hands it out.
    ///
    /// # Errors
    /// There is no place for the socket.
    pub fn offer(mut stream: Box<dyn Read + Send>) -> io::Result<Feed> {
        let (feed, listener) = Feed::listen()?;
        std::thread::spawn(move || {
            let Ok((mut socket, _)) = listener.accept() else { return };
            // What cannot be read or written is missing at the other end, which says so.
            let _cut = pump(&mut stream, &mut socket);
        });
        Ok(feed)
    }

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

    /// A socket that nobody else may use.
    pub(super) fn listen() -> io::Result<(Feed, UnixListener)> {
        // A name that nobody can make first, to keep this user from receiving.
        let dir = std::env::temp_dir().join(format!("oleo-feed-{}", crate::Uuid::new_v4().simple()));
        std::fs::DirBuilder::new().mode(0o700).create(&dir)?;
        let path = dir.join("stream");
        let feed = Feed { dir, path };
        let listener = UnixListener::bind(&feed.path)?;
        Ok((feed, listener))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its name, for the request.
    pub fn name(&self) -> Bytes {
        self.path.as_os_str().as_bytes().into()
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        // What stays behind is an empty directory of the user's.
        let _gone = std::fs::remove_file(&self.path).and_then(|()| std::fs::remove_dir(&self.dir));
    }
}

/// Hands on all there is, in large pieces.
pub(super) fn pump(from: &mut dyn Read, to: &mut dyn Write) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 18];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return to.flush(),
            Ok(len) => to.write_all(&buffer[..len])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Progress as a message.
pub(super) fn encode(now: &Progress) -> [u8; PROGRESS_LEN] {
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

/// The socket that the caller, and nobody else, listens at.
pub(super) fn connect(caller: &Caller, feed: &Bytes) -> Result<UnixStream, Error> {
    connect_for(caller, feed, STALL_MAX)
}

/// The same; reads and writes that wait for longer than `stall` fail.
pub(super) fn connect_for(caller: &Caller, feed: &Bytes, stall: Duration) -> Result<UnixStream, Error> {
    let path = Path::new(OsStr::from_bytes(&feed.0));
    let refused = |error: io::Error| {
        Error::refused(
            error.raw_os_error().unwrap_or(errno::EIO),
            format!("cannot reach the other end of the stream: {error}"),
        )
    };
    let stream = UnixStream::connect(path).map_err(refused)?;
    let peer = rustix::net::sockopt::socket_peercred(&stream).map_err(|e| refused(e.into()))?;
    if peer.uid.as_raw() != caller.uid {
        return Err(Error::refused(errno::EACCES, "the stream is offered by somebody else"));
    }
    stream.set_read_timeout(Some(stall)).and_then(|()| stream.set_write_timeout(Some(stall))).map_err(refused)?;
    Ok(stream)
}

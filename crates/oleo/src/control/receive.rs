//! Receiving on a mount: the stream goes from who asks to the server through a socket of its own.
//!
//! Normal path: (1) the client listens at a name that nobody else may use ([`Feed`]), and asks; (2) the server connects to it,
//! sees that it is the caller's, and reads the stream from it; (3) what was received is answered, errors of the stream
//! included, so that what was done before is told too.
//!
//! A client that goes away ends its stream, which then is one that is cut short; so does one that is silent for [`STALL_MAX`].
//! Until then the mount is in use. Others are served meanwhile: each connection has a thread of its own.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use oleo_fs::errno;
use serde::{Deserialize, Serialize};

use super::caller::{Caller, WRITE};
use super::execute::Invalidation;
use super::request::{Bytes, Error, Location, Reply};
use crate::receive::{Receive, ReceiveOptions, Report};
use crate::{Image, TreeId};

/// How long the other end of a stream may neither give nor take a byte.
pub const STALL_MAX: Duration = Duration::from_secs(600);

/// How to receive on a mount; see [`Receive`].
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReceiveHow {
    /// Stop at the first END.
    pub one_stream: bool,
    /// Errors that are passed over; none: any number.
    pub errors_passed_max: Option<u64>,
    /// Go on with what is incomplete.
    pub resume: bool,
    /// Leave nothing behind after an error. What a crash leaves is marked.
    pub atomic: bool,
}

/// What was received, and what ended it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Received {
    /// Subvolumes, in order.
    pub subvols: Vec<ReceivedSubvol>,
    /// Commands read.
    pub commands: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Errors that were passed over.
    pub errors: Vec<String>,
    /// Things that are not as one might expect.
    pub warnings: Vec<String>,
    /// The error that ended it.
    pub error: Option<Error>,
}

/// One subvolume.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ReceivedSubvol {
    /// Its path where it was received.
    pub path: Bytes,
    /// It is a snapshot of one that was there.
    pub incremental: bool,
    /// It was complete before.
    pub passed_over: bool,
}

impl Received {
    /// What a report says, for sending.
    pub fn of(report: Report, error: Option<Error>) -> Received {
        let Report { subvols, commands, bytes, errors, warnings } = report;
        let subvols = subvols.into_iter().map(|subvol| ReceivedSubvol {
            path: subvol.path.into(),
            incremental: subvol.incremental,
            passed_over: subvol.passed_over,
        });
        Received { subvols: subvols.collect(), commands, bytes, errors, warnings, error }
    }
}

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

/// Carries the request out.
pub(super) fn receive(
    image: &Image,
    caller: &Caller,
    into: &Location,
    feed: &Bytes,
    rebase: Option<TreeId>,
    how: &ReceiveHow,
) -> Result<(Reply, Vec<Invalidation>), Error> {
    caller.must_be_privileged("receive")?;
    let fs = image.fs();
    let dir = caller.find(image, into)?;
    caller.must_have(fs, &dir, WRITE)?;
    let stream = connect(caller, feed)?;
    let how = Receive {
        atomic: how.atomic,
        options: ReceiveOptions::default()
            .one_stream(how.one_stream)
            .errors_passed_max(how.errors_passed_max)
            .resume(how.resume),
        ..Receive::default()
    };
    let (report, result) = image.receive_into(&dir, rebase, stream, &how)?;
    let mut changed = vec![Invalidation::Inode { tree: dir.tree(), ino: dir.ino() }];
    for subvol in &report.subvols {
        // Somebody may have looked into it while it was incomplete.
        if let Ok(root) = image.resolve(&dir, &subvol.path)
            && root.tree() != dir.tree()
        {
            changed.push(Invalidation::Subtree { tree: root.tree() });
        }
        let name = subvol.path.clone();
        changed.push(Invalidation::Entry { tree: dir.tree(), dir: dir.ino(), name });
    }
    let received = Received::of(report, result.err().map(Error::from));
    Ok((Reply::Received(Box::new(received)), changed))
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

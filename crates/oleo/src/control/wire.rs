//! Requests and replies over a local socket: a length of four bytes, lowest first, and that many bytes of JSON.
//!
//! Normal path of the server: (1) [`serve`] accepts, and gives each connection a thread; (2) the thread learns from the
//! socket who is there, reads a request, has it handled and writes the answer, until the other side closes. [`stop`]
//! ends it from another thread: requests that are being handled are still answered.
//!
//! Invariants: lengths are checked before anything is allocated; a connection that is silent for [`SILENCE_MAX`], or takes
//! longer for a message that it has begun, is closed. At most [`CONNECTIONS_MAX`] are open at a time, [`OF_ONE_USER_MAX`] of them of one
//! user, and [`KEPT`] only for those who are privileged: nobody can keep others off by doing nothing, or little.
//! Crash: the client sees the connection end and reports it; the request may or may not have been carried out.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::net::Shutdown;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::caller::Caller;
use super::error::Error;
use super::reply::Reply;
use super::request::Request;

/// The most bytes of a request.
pub const REQUEST_MAX: usize = 1 << 20;
/// The most bytes of a reply.
pub const REPLY_MAX: usize = 64 << 20;
/// Connections open at a time: many more than people at one machine type commands at the same moment.
const CONNECTIONS_MAX: usize = 32;
/// Of these, those of one user who is not privileged.
const OF_ONE_USER_MAX: usize = 8;
/// Of these, those that only who is privileged gets.
const KEPT: usize = 8;
/// How long a connection may be silent between requests, take for sending one, or not take an answer.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// What the other side is called in messages.
const SERVER: &str = "the mount's server";
/// `EOVERFLOW`.
const TOO_LARGE: i32 = oleo_fs::errno::EOVERFLOW;

/// A connection to a mount's server.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
}

impl Client {
    /// Connects to the socket at a path.
    ///
    /// # Errors
    /// Nobody listens there, or this user may not connect.
    pub fn connect(path: impl AsRef<Path>) -> io::Result<Client> {
        Ok(Client { stream: UnixStream::connect(path)? })
    }

    /// Connects to the control socket that a mount has named, of which a file is open.
    ///
    /// # Errors
    /// Nobody listens there, or the socket belongs to another user than the mount, whose owner may name any socket.
    pub fn connect_of(file: &File, socket: &Path) -> io::Result<Client> {
        Ok(Client { stream: connect_of(file, socket)? })
    }

    /// A connection that is there already.
    pub fn over(stream: UnixStream) -> Client {
        Client { stream }
    }

    /// Sends a request and waits for the answer, however long it takes.
    ///
    /// # Errors
    /// The server refuses, or has gone.
    pub fn ask(&mut self, request: &Request) -> crate::Result<Reply> {
        self.post(request).map_err(crate::Error::host("ask", SERVER))?;
        self.answer()
    }

    /// Sends a request whose answer is waited for later.
    ///
    /// # Errors
    /// The server has gone.
    pub fn post(&mut self, request: &Request) -> io::Result<()> {
        send(&mut self.stream, request, REQUEST_MAX)
    }

    /// Waits for the answer to the request that was sent.
    ///
    /// # Errors
    /// The server refuses, or has gone.
    pub fn answer(&mut self) -> crate::Result<Reply> {
        let answer: Option<Result<Reply, Error>> =
            receive(&mut self.stream, REPLY_MAX, None).map_err(crate::Error::host("ask", SERVER))?;
        match answer {
            Some(answer) => Ok(answer?),
            None => {
                let closed = io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection");
                Err(crate::Error::host("ask", SERVER)(closed))
            }
        }
    }

    /// Waits for answers that long at most, from now on.
    ///
    /// # Errors
    /// The socket does not take it.
    pub fn wait_at_most(&mut self, time: Option<Duration>) -> io::Result<()> {
        self.stream.set_read_timeout(time)
    }
}

/// Connects to the control socket that a mount has named; see [`Client::connect_of`].
///
/// # Errors
/// As there.
pub fn connect_of(file: &File, socket: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    let peer = rustix::net::sockopt::socket_peercred(&stream)?.uid.as_raw();
    let stat = rustix::fs::fstat(file)?;
    let device = format!("{}:{}", rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let mounts = oleo_device::mountinfo::mounts_of("self")?;
    let owner = mounts.iter().find(|mount| mount.device == device).and_then(|mount| mount.user);
    // Where the mount is not seen from here, it has to be root's or one's own.
    let own = [0, rustix::process::geteuid().as_raw()];
    if owner.map_or(own.contains(&peer), |owner| peer == owner) {
        return Ok(stream);
    }
    let owner = owner.map_or("nobody who is known".to_owned(), |owner| format!("user {owner}"));
    Err(io::Error::other(format!("the mount is of {owner}, but its control socket of user {peer}")))
}

/// A connection that is open.
struct Open {
    stream: UnixStream,
    /// `None` for who is privileged.
    user: Option<u32>,
}

/// Whether there is room for one more of this user.
fn has_room(open: &HashMap<u64, Open>, user: Option<u32>) -> bool {
    match user {
        None => open.len() < CONNECTIONS_MAX,
        Some(_) => {
            open.len() < CONNECTIONS_MAX - KEPT
                && open.values().filter(|other| other.user == user).count() < OF_ONE_USER_MAX
        }
    }
}

/// Answers requests until [`stop`] is called. `handle` is called by one thread for each connection.
///
/// # Errors
/// The socket fails.
pub fn serve(
    listener: &UnixListener,
    handle: impl Fn(Caller, Request) -> Result<Reply, Error> + Sync,
) -> io::Result<()> {
    let open: Mutex<HashMap<u64, Open>> = Mutex::default();
    std::thread::scope(|threads| {
        let mut number = 0u64;
        let ended = loop {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                // What `shutdown` does to a listener.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => break Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Somebody hung up early, or there are no descriptors left at the moment.
                Err(error) if is_passing(&error) => {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
                Err(error) => break Err(error),
            };
            number += 1;
            let (Ok(second), Ok(caller)) = (stream.try_clone(), caller_of(&stream)) else { continue };
            let user = (!caller.privileged).then_some(caller.uid);
            if !has_room(&open.lock(), user) {
                continue;
            }
            open.lock().insert(number, Open { stream: second, user });
            let (open, handle) = (&open, &handle);
            threads.spawn(move || {
                // What goes wrong on one connection is that connection's affair, a panic too: the client sees it end.
                let _ended = catch_unwind(AssertUnwindSafe(|| talk(stream, &caller, handle)));
                open.lock().remove(&number);
            });
        };
        for open in open.lock().values() {
            // Reading ends; answers still go out.
            let _gone = open.stream.shutdown(std::net::Shutdown::Read);
        }
        ended
    })
}

/// Ends [`serve`] on that listener.
///
/// # Errors
/// The socket is none.
pub fn stop(listener: &UnixListener) -> io::Result<()> {
    Ok(rustix::net::shutdown(listener, Shutdown::Both)?)
}

fn is_passing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::CONNABORTED | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS))
}

/// Who has connected. Looked up once: whoever has the process's number later is somebody else.
fn caller_of(stream: &UnixStream) -> io::Result<Caller> {
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).unwrap_or(0);
    Ok(Caller::by_socket(pid, peer.uid.as_raw(), peer.gid.as_raw()))
}

/// A stream of which all reads together may take so long.
struct Timed<'a> {
    stream: &'a mut UnixStream,
    until: Instant,
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buffer)
    }
}

fn talk(
    mut stream: UnixStream,
    caller: &Caller,
    handle: &impl Fn(Caller, Request) -> Result<Reply, Error>,
) -> io::Result<()> {
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    while let Some(request) = receive(&mut stream, REQUEST_MAX, Some(SILENCE_MAX))? {
        let answer = handle(caller.clone(), request);
        match send(&mut stream, &answer, REPLY_MAX) {
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                let answer: Result<Reply, Error> = Err(Error::refused(TOO_LARGE, "the answer is too large"));
                send(&mut stream, &answer, REPLY_MAX)?;
            }
            other => other?,
        }
    }
    Ok(())
}

fn send(stream: &mut UnixStream, value: &impl Serialize, max: usize) -> io::Result<()> {
    let body = serde_json::to_vec(value)?;
    let len = u32::try_from(body.len()).ok().filter(|_| body.len() <= max);
    let len = len.ok_or_else(|| io::Error::new(io::ErrorKind::FileTooLarge, "too large for one message"))?;
    stream.write_all(&[&len.to_le_bytes()[..], &body].concat())
}

/// The next message; `None` when the other side has closed. With `patience` that much time for it to begin, and as much again
/// from there to its end.
fn receive<T: DeserializeOwned>(
    stream: &mut UnixStream,
    max: usize,
    patience: Option<Duration>,
) -> io::Result<Option<T>> {
    let mut len = [0; 4];
    if patience.is_some() {
        stream.set_read_timeout(patience)?;
    }
    match stream.read(&mut len[..1]) {
        Ok(0) => return Ok(None),
        Ok(_) => {}
        Err(error) => return Err(error),
    }
    match patience {
        Some(patience) => rest(&mut Timed { until: Instant::now() + patience, stream }, len, max),
        None => rest(stream, len, max),
    }
}

/// The rest of a message of which a byte is there.
fn rest<T: DeserializeOwned>(stream: &mut impl Read, mut len: [u8; 4], max: usize) -> io::Result<Option<T>> {
    stream.read_exact(&mut len[1..])?;
    let len = u32::from_le_bytes(len) as usize;
    if len > max {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("a message of {len} bytes; {max} are allowed"),
        ));
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body)?;
    Ok(Some(serde_json::from_slice(&body)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: one user, and all who are not privileged together, leave room for others. Method: connections as they come.
    #[test]
    fn there_is_room_for_others() {
        let mut open = HashMap::new();
        let mut come = |user: Option<u32>| {
            let fits = has_room(&open, user);
            if fits {
                open.insert(open.len() as u64, Open { stream: UnixStream::pair().unwrap().0, user });
            }
            fits
        };
        let mut count = |user: Option<u32>| (0..CONNECTIONS_MAX).filter(|_| come(user)).count();
        assert_eq!(count(Some(1000)), OF_ONE_USER_MAX);
        assert_eq!((count(Some(1001)), count(Some(1002)), count(Some(1003))), (8, 8, 0));
        assert_eq!(count(None), KEPT);
    }

    /// Goal: a message has to be whole in time, however slowly its bytes drip. Method: a byte now and then, for longer.
    #[test]
    fn messages_have_a_deadline() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let began = Instant::now();
        std::thread::scope(|threads| {
            threads.spawn(move || {
                theirs.write_all(&1000u32.to_le_bytes()).unwrap();
                while theirs.write_all(b" ").is_ok() && began.elapsed() < Duration::from_secs(60) {
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let read: io::Result<Option<Request>> = receive(&mut ours, REQUEST_MAX, Some(Duration::from_millis(300)));
            assert!(read.is_err());
            drop(ours);
        });
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}

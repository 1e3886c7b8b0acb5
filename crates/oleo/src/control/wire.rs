//! Requests and replies over a local socket: a length of four bytes, lowest first, and that many bytes of JSON.
//!
//! Normal path of the server: (1) [`serve`] accepts, and gives each connection a thread; (2) the thread learns from the
//! socket who is there, reads a request, has it handled and writes the answer, until the other side closes. [`stop`]
//! ends it from another thread: requests that are being handled are still answered.
//!
//! Invariants: lengths are checked before anything is allocated; a connection that is silent for [`SILENCE_MAX`] is
//! closed, and at most [`CONNECTIONS_MAX`] are open at once, so nobody can tie up the server by doing nothing.
//! Crash: the client sees the connection end and says so; what was asked may or may not have been done.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::Shutdown;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::caller::Caller;
use super::request::{Error, Reply, Request};

/// The most bytes of a request.
pub const REQUEST_MAX: usize = 1 << 20;
/// The most bytes of a reply.
pub const REPLY_MAX: usize = 64 << 20;
/// Connections open at once: many more than people at one machine type commands at the same moment.
const CONNECTIONS_MAX: usize = 32;
/// How long a connection may be silent between requests, or not take an answer.
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

    /// A connection that is there already.
    pub fn over(stream: UnixStream) -> Client {
        Client { stream }
    }

    /// Sends a request and waits for the answer, however long it takes.
    ///
    /// # Errors
    /// The server refuses, or has gone.
    pub fn ask(&mut self, request: &Request) -> crate::Result<Reply> {
        self.tell(request).map_err(crate::Error::host("ask", SERVER))?;
        self.answer()
    }

    /// Sends a request whose answer is waited for later.
    ///
    /// # Errors
    /// The server has gone.
    pub fn tell(&mut self, request: &Request) -> io::Result<()> {
        send(&mut self.stream, request, REQUEST_MAX)
    }

    /// Waits for the answer to the request that was sent.
    ///
    /// # Errors
    /// The server refuses, or has gone.
    pub fn answer(&mut self) -> crate::Result<Reply> {
        let answer: Option<Result<Reply, Error>> =
            receive(&mut self.stream, REPLY_MAX).map_err(crate::Error::host("ask", SERVER))?;
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

/// Answers requests until [`stop`] is called. `handle` is called by one thread for each connection, and may make more of
/// the caller than the socket tells, such as that it owns the mount.
///
/// # Errors
/// The socket fails.
pub fn serve(
    listener: &UnixListener,
    handle: impl Fn(Caller, Request) -> Result<Reply, Error> + Sync,
) -> io::Result<()> {
    let open: Mutex<HashMap<u64, UnixStream>> = Mutex::default();
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
            let Ok(second) = stream.try_clone() else { continue };
            if open.lock().len() >= CONNECTIONS_MAX {
                continue;
            }
            open.lock().insert(number, second);
            let (open, handle) = (&open, &handle);
            threads.spawn(move || {
                // What goes wrong on one connection is that connection's affair: the client sees it end.
                let _ended = talk(stream, handle);
                open.lock().remove(&number);
            });
        };
        for stream in open.lock().values() {
            // Reading ends; answers still go out.
            let _gone = stream.shutdown(std::net::Shutdown::Read);
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

fn talk(mut stream: UnixStream, handle: &impl Fn(Caller, Request) -> Result<Reply, Error>) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
    let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).unwrap_or(0);
    while let Some(request) = receive(&mut stream, REQUEST_MAX)? {
        let caller = Caller::process(pid, peer.uid.as_raw(), peer.gid.as_raw());
        let answer = handle(caller, request);
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

/// The next message; `None` when the other side has closed.
fn receive<T: DeserializeOwned>(stream: &mut UnixStream, max: usize) -> io::Result<Option<T>> {
    let mut len = [0; 4];
    match stream.read(&mut len[..1]) {
        Ok(0) => return Ok(None),
        Ok(_) => {}
        Err(error) => return Err(error),
    }
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

//! A connection: a stream socket that never blocks by itself, in the clear or under TLS.
//!
//! [`Channel::try_recv`] and [`Channel::try_send`] do what the socket takes now; [`Channel::wait`] waits for more, up
//! to a time, or until another descriptor (a server that is to stop) has something. [`Channel::recv_all`] and
//! [`Channel::send_all`] combine the two at a [`Pace`] that a stalling other side cannot stretch.
//!
//! One thread may receive while another sends. Who does is not decided here; two that send would mix their bytes.
//! Under TLS one short lock is held while bytes are taken in or given out, never while something is waited for.
//! An error of the stream is final: whoever meets one calls [`Channel::shutdown`], which wakes all who wait.

use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
#[cfg(feature = "tls")]
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use bitflags::bitflags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

use crate::error::NbdError;
use crate::uri::At;

#[cfg(feature = "tls")]
mod tls;

#[cfg(feature = "tls")]
pub use tls::{ClientTls, ServerTls};
#[cfg(feature = "tls")]
use tls::{Session, Want};

/// Most pieces of memory that one call sends (`IOV_MAX` of Linux).
const PARTS_MAX: usize = 1024;
/// The pace that a transfer must keep on the whole, in bytes per second: a client that takes one byte every few seconds
/// would hold memory for ever.
const RATE_MIN: u64 = 64 << 10;
/// How often a socket whose queue of connections is full is tried again.
const RETRY: Duration = Duration::from_millis(5);

bitflags! {
    /// What is waited for, and what came.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Interest: u8 {
        /// Something to be received, the end or an error too.
        const RECV = 1;
        /// Space to send.
        const SEND = 2;
        /// The other descriptor has something.
        const OTHER = 4;
    }
}

/// Who is at the other end, as far as can be told.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Peer {
    /// A process of this machine, by its number.
    Process(i32),
    /// A machine.
    Address(IpAddr),
    /// Nothing is known.
    Unknown,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Peer::Process(pid) => write!(f, "process {pid}"),
            Peer::Address(ip) => write!(f, "{ip}"),
            Peer::Unknown => f.write_str("somebody"),
        }
    }
}

/// How long a transfer may take: some progress within each `progress`, and the whole before `deadline`.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The longest time without a byte.
    pub progress: Duration,
    /// The end.
    pub deadline: Instant,
}

impl Pace {
    /// For `len` bytes that begin now.
    pub fn new(progress: Duration, len: u64) -> Pace {
        Pace { progress, deadline: Instant::now() + progress + Duration::from_secs(len / RATE_MIN) }
    }

    /// Until when to wait for the next byte.
    fn next(&self) -> Instant {
        self.deadline.min(Instant::now() + self.progress)
    }
}

/// A connection.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    peer: Peer,
    /// What everything goes through from the moment on that it is there.
    #[cfg(feature = "tls")]
    tls: OnceLock<Session>,
}

impl Channel {
    /// Connects.
    pub fn connect(at: &At, deadline: Instant) -> Result<Channel, NbdError> {
        let failed = |e: io::Error| NbdError::Connect { to: at.to_string(), source: Arc::new(e) };
        let socket = match at {
            At::Unix(path) => connect_unix(path, deadline).map_err(failed)?,
            At::Tcp { host, port } => connect_tcp(host, *port, deadline, failed)?,
        };
        Channel::adopt(socket).map_err(failed)
    }

    /// Makes a channel of a connected stream socket.
    pub fn adopt(socket: OwnedFd) -> io::Result<Channel> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let peer = match sockopt::socket_domain(&socket)? {
            AddressFamily::UNIX => match sockopt::socket_peercred(&socket) {
                // A process of another namespace has no number here.
                Ok(who) if who.pid.as_raw_pid() > 0 => Peer::Process(who.pid.as_raw_pid()),
                _ => Peer::Unknown,
            },
            _ => {
                sockopt::set_tcp_nodelay(&socket, true)?;
                sockopt::set_socket_keepalive(&socket, true)?;
                let name = rustix::net::getpeername(&socket)?;
                match name.and_then(|name| SocketAddr::try_from(name).ok()) {
                    Some(addr) => Peer::Address(addr.ip().to_canonical()),
                    None => Peer::Unknown,
                }
            }
        };
        Ok(Channel {
            socket,
            peer,
            #[cfg(feature = "tls")]
            tls: OnceLock::new(),
        })
    }

    /// Two that are connected with each other.
    pub fn pair() -> io::Result<(Channel, Channel)> {
        let flags = SocketFlags::CLOEXEC;
        let (one, two) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok((Channel::adopt(one)?, Channel::adopt(two)?))
    }

    /// Who is at the other end.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Begins TLS as a server, before anything else is received. `other` ends the attempt if it has something.
    #[cfg(feature = "tls")]
    pub fn start_tls_server(
        &self,
        tls: &ServerTls,
        deadline: Instant,
        other: Option<BorrowedFd<'_>>,
    ) -> Result<(), NbdError> {
        self.start_tls(Session::server(tls)?, deadline, other)
    }

    /// Begins TLS as a client of a server of that name.
    #[cfg(feature = "tls")]
    pub fn start_tls_client(&self, tls: &ClientTls, name: &str, deadline: Instant) -> Result<(), NbdError> {
        self.start_tls(Session::client(tls, name)?, deadline, None)
    }

    #[cfg(feature = "tls")]
    fn start_tls(&self, session: Session, deadline: Instant, other: Option<BorrowedFd<'_>>) -> Result<(), NbdError> {
        session.shake_hands(Raw(&self.socket), |want| {
            let want = if want == Want::Recv { Interest::RECV } else { Interest::SEND };
            match self.wait(want, Some(deadline), other)? {
                came if came.contains(Interest::OTHER) => Err(io::ErrorKind::ConnectionAborted.into()),
                came if came.is_empty() => Err(io::ErrorKind::TimedOut.into()),
                _ => Ok(()),
            }
        })?;
        self.tls.set(session).map_err(|_| NbdError::Tls { what: "begun twice".into() })
    }

    #[cfg(feature = "tls")]
    fn session(&self) -> Option<&Session> {
        self.tls.get()
    }

    /// Receives what is there; 0: the other side has ended the stream.
    pub fn try_recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        #[cfg(feature = "tls")]
        if let Some(session) = self.session() {
            return session.try_recv(Raw(&self.socket), buf);
        }
        Raw(&self.socket).read(buf)
    }

    /// Sends what the socket takes, in order; returns how many bytes. What a TLS session has taken and not sent yet is
    /// sent by the next call, or by [`Channel::try_finish`].
    pub fn try_send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        #[cfg(feature = "tls")]
        if let Some(session) = self.session() {
            return session.try_send(Raw(&self.socket), parts);
        }
        Raw(&self.socket).write_vectored(parts)
    }

    /// Sends what is left of what was taken; `WouldBlock` if something still is.
    pub fn try_finish(&self) -> io::Result<()> {
        #[cfg(feature = "tls")]
        if let Some(session) = self.session() {
            return session.try_finish(Raw(&self.socket));
        }
        Ok(())
    }

    /// Whether something is there to be received, or the end.
    pub fn has_input(&self) -> bool {
        #[cfg(feature = "tls")]
        if self.session().is_some_and(Session::has_input) {
            return true;
        }
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|n| n > 0)
    }

    /// Waits until one of what is wanted is there, or `other` has something, or the time is over: then nothing is in
    /// the result. An error of the stream counts as what is wanted; the next call that receives or sends returns it.
    pub fn wait(
        &self,
        want: Interest,
        deadline: Option<Instant>,
        other: Option<BorrowedFd<'_>>,
    ) -> io::Result<Interest> {
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, want.contains(Interest::RECV));
        events.set(PollFlags::OUT, want.contains(Interest::SEND));
        #[cfg(feature = "tls")]
        if want.contains(Interest::RECV) && self.session().is_some_and(Session::has_input) {
            return Ok(Interest::RECV);
        }
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let time = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
            let mut fds = [
                PollFd::new(&self.socket, events),
                PollFd::from_borrowed_fd(other.unwrap_or(self.socket.as_fd()), PollFlags::IN),
            ];
            let count = if other.is_some() { 2 } else { 1 };
            match poll(&mut fds[..count], time.as_ref()) {
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
                Ok(_) => {}
            }
            let mut came = Interest::empty();
            let got = fds[0].revents();
            let broken = got.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
            came.set(Interest::RECV, want.contains(Interest::RECV) && (broken || got.contains(PollFlags::IN)));
            came.set(Interest::SEND, want.contains(Interest::SEND) && (broken || got.contains(PollFlags::OUT)));
            came.set(Interest::OTHER, other.is_some() && !fds[1].revents().is_empty());
            return Ok(came);
        }
    }

    /// Fills `buf`, or fails: with `UnexpectedEof` at the end of the stream, with `TimedOut` if the pace is not kept.
    pub fn recv_all(&self, mut buf: &mut [u8], pace: Pace) -> io::Result<()> {
        while !buf.is_empty() {
            match self.try_recv(buf) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => buf = &mut buf[n..],
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait_at_pace(Interest::RECV, pace)?,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Sends everything, or fails, with `TimedOut` if the pace is not kept.
    pub fn send_all(&self, mut parts: &mut [IoSlice<'_>], pace: Pace) -> io::Result<()> {
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            match self.try_send(parts) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => IoSlice::advance_slices(&mut parts, n),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait_at_pace(Interest::SEND, pace)?,
                Err(e) => return Err(e),
            }
        }
        while let Err(e) = self.try_finish() {
            match e.kind() {
                io::ErrorKind::WouldBlock => self.wait_at_pace(Interest::SEND, pace)?,
                _ => return Err(e),
            }
        }
        Ok(())
    }

    fn wait_at_pace(&self, want: Interest, pace: Pace) -> io::Result<()> {
        match self.wait(want, Some(pace.next()), None)?.is_empty() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(()),
        }
    }

    /// Ends the stream both ways; whoever waits wakes up and meets the end.
    pub fn shutdown(&self) {
        #[cfg(feature = "tls")]
        if let Some(session) = self.session() {
            session.say_goodbye(Raw(&self.socket));
        }
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The socket, without what goes on above it.
struct Raw<'a>(&'a OwnedFd);

impl Read for Raw<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        retry(|| rustix::io::read(self.0, &mut *buf))
    }
}

impl Write for Raw<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let parts = &parts[..parts.len().min(PARTS_MAX)];
        let none = &mut SendAncillaryBuffer::default();
        // Not SIGPIPE, which would end a program that does not expect it.
        retry(|| rustix::net::sendmsg(self.0, parts, none, SendFlags::NOSIGNAL))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// The address of a socket in the file system, or of an abstract one: a NUL and its name.
pub(crate) fn unix_address(path: &Path) -> io::Result<SocketAddrUnix> {
    Ok(match path.as_os_str().as_bytes() {
        [0, name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
        _ => SocketAddrUnix::new(path)?,
    })
}

pub(crate) fn unix_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

fn connect_unix(path: &Path, deadline: Instant) -> io::Result<OwnedFd> {
    let (address, socket) = (unix_address(path)?, unix_socket()?);
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::INTR) => {}
            // The queue of a server that does not accept is full.
            Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(RETRY),
            Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(e) => return Err(e.into()),
        }
    }
}

fn connect_tcp(
    host: &str,
    port: u16,
    deadline: Instant,
    failed: impl Fn(io::Error) -> NbdError,
) -> Result<OwnedFd, NbdError> {
    let addresses = (host, port)
        .to_socket_addrs()
        .map_err(|e| NbdError::Resolve { host: host.escape_debug().to_string(), source: Arc::new(e) })?;
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            last = io::ErrorKind::TimedOut.into();
            break;
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Ok(stream.into()),
            Err(e) => last = e,
        }
    }
    Err(failed(last))
}

//! The server: devices for clients elsewhere.
//!
//! Normal path: (1) [`Server::start`] takes exports and listeners; (2) [`Server::serve`] accepts connections, each on a
//! thread of its own, until a [`Stopper`] ends it; (3) a connection's thread leads the handshake (`handshake`), which
//! ends with an export; (4) it and a few more threads serve the requests (`connection`: rounds from `receive`, on the
//! device by `execute`); (5) when the server ends, connections finish what is under way, and the devices are flushed.
//!
//! Clients are strangers. What one can cost is bounded: connections, threads, memory (`budget`), the time of a
//! handshake, of a stalled request, of a reply that is not read; and lines of the log. One client has at most three quarters of
//! the connections and of the memory, so that there is some left for others. A writable export has one client at a time (`peers`).
//!
//! Promises: a flush is answered when the device has flushed everything that was answered before, on any connection; a
//! request with FUA when it is durable. After a write or flush that failed, every later one fails, on all connections.
//! When the server is killed, what was flushed is on the device.
//! Locks: `NbdServeReceive`, then `NbdServeSend`; the rest are leaves.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oleo_device::Device;
use oleo_lock::{Mutex, rank};
use rustix::event::{PollFd, PollFlags, poll};

#[cfg(feature = "tls")]
use crate::channel::ServerTls;
use crate::channel::{Channel, Interest, Pace, Peer};
use crate::error::NbdError;
use crate::listen::Listener;
use crate::wire::PAYLOAD_LEN_MAX;

mod budget;
mod connection;
mod execute;
mod export;
mod handshake;
mod peers;
mod receive;
mod registry;
mod stop;

use budget::Budget;
use connection::{Connection, Times};
use handshake::{Agreed, Handshake, Host, Outcome, Terms};
use peers::{Peers, Seat};
use registry::{Entry, Registry};

pub use export::Export;
use export::Served as ServedExport;
pub use stop::Stopper;

/// How long connections may take to finish when the server ends.
const STOP_MAX: Duration = Duration::from_secs(10);
/// Most lines about failed connections in a time, and that time.
const FAILURES_MAX: u64 = 20;
const FAILURES_EVERY: Duration = Duration::from_secs(60);
/// How often a refused connection is told of.
const REFUSALS_EVERY: Duration = Duration::from_secs(60);
/// How long accepting pauses when the process has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Least memory for payloads: a request of this length works everywhere.
const MEMORY_MIN: u64 = 1 << 20;

/// How much of what there is for all one client may have: three quarters, at least one.
fn share_of(all: u64) -> u64 {
    all - all / 4
}

/// How a server serves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServeOptions {
    /// Most connections, of all clients.
    pub connections_max: usize,
    /// Threads that carry out requests of one connection.
    pub threads_per_connection: usize,
    /// Memory for payloads of more than 1 MiB, of all connections, in bytes; each thread has 1 MiB besides.
    pub memory_bytes_max: u64,
    /// From accepting to the choice of an export, TLS included.
    pub handshake_max: Duration,
    /// Most options of one connection.
    pub options_max: u32,
    /// Longest time in which a begun request or a reply does not move at all.
    pub progress_max: Duration,
    /// Longest time between requests; `None`: for ever.
    pub idle_max: Option<Duration>,
    /// Several clients may use one writable export.
    pub shared_writers: bool,
    /// Other machines may connect without TLS.
    pub plain: bool,
    /// Other machines may write through TLS without a certificate.
    pub anonymous: bool,
    /// Everything goes through TLS, and nothing without it.
    #[cfg(feature = "tls")]
    pub tls: Option<ServerTls>,
}

impl Default for ServeOptions {
    fn default() -> ServeOptions {
        ServeOptions {
            connections_max: 32,
            threads_per_connection: 4,
            memory_bytes_max: 256 << 20,
            handshake_max: Duration::from_secs(10),
            options_max: 64,
            progress_max: Duration::from_secs(30),
            idle_max: None,
            shared_writers: false,
            plain: false,
            anonymous: false,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

oleo_format::setters!(ServeOptions {
    connections_max: usize,
    threads_per_connection: usize,
    memory_bytes_max: u64,
    handshake_max: Duration,
    options_max: u32,
    progress_max: Duration,
    idle_max: Option<Duration>,
    shared_writers: bool,
    plain: bool,
    anonymous: bool,
});

impl ServeOptions {
    /// Sets what a server shows in TLS, without which nothing goes then.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: ServerTls) -> ServeOptions {
        self.tls = Some(tls);
        self
    }

    /// Whether clients are known by their certificates.
    fn demands_certificates(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.as_ref().is_some_and(ServerTls::verifies_peers);
        #[cfg(not(feature = "tls"))]
        false
    }

    fn demands_tls(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        false
    }
}

/// Takes one line for people.
pub type Log = Box<dyn Fn(&str) + Send + Sync>;

/// What a server did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Served {
    /// Connections that were accepted and not refused.
    pub connections: u64,
}

/// A server.
pub struct Server {
    shared: Arc<Shared>,
    listeners: Vec<Listener>,
}

struct Shared {
    exports: Vec<ServedExport>,
    options: ServeOptions,
    budget: Budget,
    peers: Peers,
    registry: Arc<Registry>,
    stop: Stopper,
    log: Log,
    failures: Mutex<rank::NbdFailures, Failures>,
}

/// Lines about connections that failed: clients cause them, so they are counted.
#[derive(Default)]
struct Failures {
    /// Since when.
    since: Option<Instant>,
    lines: u64,
}

impl Failures {
    /// Whether one more may be logged, and how many were not in the time before.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let is_over = self.since.is_none_or(|since| now.duration_since(since) >= FAILURES_EVERY);
        let left_out = if is_over { self.lines.saturating_sub(FAILURES_MAX) } else { 0 };
        if is_over {
            (self.since, self.lines) = (Some(now), 0);
        }
        self.lines += 1;
        (self.lines <= FAILURES_MAX).then_some(left_out)
    }
}

impl Server {
    /// Takes what is to be served, and where. Nothing is accepted before [`Server::serve`].
    pub fn start(
        exports: Vec<Export>,
        listeners: Vec<Listener>,
        options: ServeOptions,
        log: Log,
    ) -> Result<Server, NbdError> {
        let usage = |what: String| Err(NbdError::Usage { what });
        if exports.is_empty() || listeners.is_empty() {
            return usage("a server needs an export and a place to listen".into());
        }
        if options.memory_bytes_max < MEMORY_MIN || options.connections_max == 0 || options.threads_per_connection == 0
        {
            return usage(format!("a server needs a connection, a thread, and {MEMORY_MIN} bytes of memory"));
        }
        let open = listeners.iter().find(|l| l.is_beyond_this_machine());
        if let Some(open) = open
            && !options.plain
            && !options.demands_tls()
        {
            return usage(format!("{}: other machines could connect without TLS, which has to be allowed", open.at()));
        }
        let payload_max = u32::try_from(options.memory_bytes_max).unwrap_or(u32::MAX).min(PAYLOAD_LEN_MAX);
        let payload_max = 1 << payload_max.ilog2();
        let mut served: Vec<ServedExport> = Vec::new();
        for export in exports {
            if served.iter().any(|e| e.name == export.name) {
                return usage(format!("two exports have the name {:?}", export.name));
            }
            served.push(ServedExport::new(export, payload_max)?);
        }
        if let Some(open) = open
            && options.demands_tls()
            && !options.demands_certificates()
            && !options.anonymous
            && served.iter().any(|e| !e.read_only)
        {
            return usage(format!(
                "{}: other machines could write without a certificate: demand one, serve read-only, or allow it",
                open.at()
            ));
        }
        let stop = Stopper::new().map_err(NbdError::broken)?;
        let shared = Shared {
            budget: Budget::new(options.memory_bytes_max),
            peers: Peers::new(served.len()),
            exports: served,
            options,
            registry: Arc::default(),
            stop,
            log,
            failures: Mutex::default(),
        };
        Ok(Server { shared: Arc::new(shared), listeners })
    }

    /// Where it listens.
    pub fn listeners(&self) -> &[Listener] {
        &self.listeners
    }

    /// What ends it.
    pub fn stopper(&self) -> Stopper {
        self.shared.stop.clone()
    }

    /// Serves until it is stopped. Then nothing is accepted any more, connections finish what is under way (in 10
    /// seconds, or they are cut), and every writable device is flushed. An error is the first failure of a device, which
    /// its clients met too if they flushed after it, or one of the listeners.
    pub fn serve(self) -> Result<Served, NbdError> {
        let Server { shared, listeners } = self;
        let accepted = accept(&shared, &listeners);
        // A client that connects now is refused by the system.
        drop(listeners);
        shared.stop.stop();
        if !shared.registry.wait_until(Instant::now() + STOP_MAX) {
            shared.registry.end();
        }
        let mut flushed = Ok(());
        for export in shared.exports.iter().filter(|e| !e.read_only) {
            flushed = flushed.and(export.device.flush());
        }
        // Whoever has the server may keep it, and with it the devices.
        for export in &shared.exports {
            flushed = flushed.and_then(|()| export.device.release());
        }
        flushed?;
        accepted?;
        Ok(Served { connections: shared.registry.count() })
    }
}

/// Accepts connections until the server is to end.
fn accept(shared: &Arc<Shared>, listeners: &[Listener]) -> Result<(), NbdError> {
    let failed =
        |listener: &Listener, e: io::Error| NbdError::Listen { on: listener.at().to_string(), source: Arc::new(e) };
    let mut refused_at: Option<Instant> = None;
    while !shared.stop.is_set() {
        let mut fds: Vec<PollFd<'_>> =
            listeners.iter().map(|l| PollFd::from_borrowed_fd(l.as_fd(), PollFlags::IN)).collect();
        fds.push(PollFd::from_borrowed_fd(shared.stop.event(), PollFlags::IN));
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other.map_err(|e| failed(&listeners[0], e.into()))?,
        };
        for (listener, fd) in listeners.iter().zip(&fds) {
            if fd.revents().is_empty() {
                continue;
            }
            let channel = match listener.accept() {
                Ok(channel) => channel,
                Err(e) if is_passing(&e) => continue,
                Err(e) if is_shortage(&e) => {
                    std::thread::sleep(ACCEPT_PAUSE);
                    continue;
                }
                Err(e) => return Err(failed(listener, e)),
            };
            let peer = channel.peer();
            let started = match shared.registry.enter(channel, shared.options.connections_max) {
                Err(why) => Err(why.to_owned()),
                Ok(entry) => shared.start(entry).map_err(|e| e.to_string()),
            };
            if let Err(why) = started
                && refused_at.is_none_or(|at| at.elapsed() > REFUSALS_EVERY)
            {
                refused_at = Some(Instant::now());
                (shared.log)(&format!("a connection of {peer} was refused: {why}"));
            }
        }
    }
    Ok(())
}

/// The client has gone before it was accepted, or there was none.
fn is_passing(e: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, NotConnected, TimedOut, WouldBlock};
    let kinds = [WouldBlock, Interrupted, ConnectionAborted, ConnectionReset, NotConnected, TimedOut];
    kinds.contains(&e.kind()) || e.raw_os_error() == Some(rustix::io::Errno::PROTO.raw_os_error())
}

/// The process or the system has no descriptors or memory left, for now.
fn is_shortage(e: &io::Error) -> bool {
    use rustix::io::Errno;
    let numbers = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    numbers.iter().any(|n| e.raw_os_error() == Some(n.raw_os_error()))
}

impl Shared {
    /// Begins to serve a connection on a thread of its own.
    fn start(self: &Arc<Shared>, entry: Entry) -> io::Result<()> {
        let shared = self.clone();
        std::thread::Builder::new().name("nbd".into()).spawn(move || shared.connection(&entry)).map(drop)
    }

    /// A connection, from its first byte to its last.
    fn connection(&self, entry: &Entry) {
        let channel = &entry.channel;
        let peer = channel.peer();
        let mut host = ConnectionHost { shared: self, peer, seat: None };
        let (agreed, _seat) = match self.handshake(channel, &mut host) {
            Ok(Some(agreed)) => (agreed, host.seat),
            Ok(None) => return,
            // Whoever only looks whether somebody listens closes in the greeting.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof || self.stop.is_set() => return,
            Err(e) => return self.tell(&format!("a connection of {peer} ended in the handshake: {e}")),
        };
        let Some(served) = self.exports.get(agreed.export) else { return };
        let ServeOptions { progress_max, idle_max, threads_per_connection, .. } = self.options;
        let times = Times { progress_max, idle_max };
        let connection = Connection::new(channel.clone(), served, agreed, (&self.budget, &self.stop), times);
        if let Some(why) = connection.serve(threads_per_connection)
            && !self.stop.is_set()
        {
            self.tell(&format!("a connection of {peer} to {:?} broke: {why}", served.name));
        }
    }

    /// Logs a failure of a client, a bounded number in a time.
    fn tell(&self, line: &str) {
        let left_out = self.failures.lock().take(Instant::now());
        match left_out {
            None => {}
            Some(0) => (self.log)(line),
            Some(count) => (self.log)(&format!("{line} ({count} more failures were not told)")),
        }
    }

    fn handshake(&self, channel: &Channel, host: &mut impl Host) -> io::Result<Option<Agreed>> {
        let deadline = Instant::now() + self.options.handshake_max;
        let mut stream = Timed { channel, deadline, progress_max: self.options.progress_max, stop: &self.stop };
        let terms = Terms { options_max: self.options.options_max, tls: self.options.demands_tls() };
        let mut handshake = Handshake::new(&self.exports, terms);
        loop {
            match handshake.run(&mut stream, host)? {
                Outcome::Transmit(agreed) => return Ok(Some(agreed)),
                Outcome::Close => return Ok(None),
                Outcome::StartTls => self.start_tls(channel, deadline)?,
            }
        }
    }

    #[cfg(feature = "tls")]
    fn start_tls(&self, channel: &Channel, deadline: Instant) -> io::Result<()> {
        let Some(tls) = &self.options.tls else { return Err(io::ErrorKind::Unsupported.into()) };
        channel.start_tls_server(tls, deadline, Some(self.stop.event())).map_err(io::Error::other)
    }

    #[cfg(not(feature = "tls"))]
    fn start_tls(&self, _: &Channel, _: Instant) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// What the handshake of one connection asks.
struct ConnectionHost<'a> {
    shared: &'a Shared,
    peer: Peer,
    seat: Option<Seat<'a>>,
}

impl Host for ConnectionHost<'_> {
    fn admit(&mut self, export: usize, stay: bool) -> Result<(), String> {
        let in_use = |by: Peer| format!("in use by {by}: an export that is written to has one client");
        if self.shared.options.shared_writers || self.shared.exports[export].read_only {
            return Ok(());
        }
        match stay {
            true => self.seat = Some(self.shared.peers.enter(export, self.peer).map_err(in_use)?),
            false => {
                if let Some(by) = self.shared.peers.other(export, self.peer) {
                    return Err(in_use(by));
                }
            }
        }
        Ok(())
    }

    fn is_stopping(&self) -> bool {
        self.shared.stop.is_set()
    }
}

/// A channel as a stream that ends at a time, or with the server.
struct Timed<'a> {
    channel: &'a Channel,
    deadline: Instant,
    progress_max: Duration,
    stop: &'a Stopper,
}

impl Read for Timed<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.channel.try_recv(buf) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
            if self.stop.is_set() {
                return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the server ends"));
            }
            if self.channel.wait(Interest::RECV, Some(self.deadline), Some(self.stop.event()))?.is_empty() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let pace = Pace { progress: self.progress_max, deadline: self.deadline };
        self.channel.send_all(&mut [io::IoSlice::new(buf)], pace)?;
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

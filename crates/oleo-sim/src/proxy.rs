//! A connection to a server that is far away and not always good: TCP, between a client and a server of this machine.
//!
//! Each connection has two threads, one for each direction. Bytes of the client after bytes of the server are a request, and
//! bytes of the server after bytes of the client an answer: so it is for protocols that ask and answer by turns, as HTTP/1
//! does. Answers come late ([`Faults::delay`]); some requests never reach the server, and the answers to some never come
//! back, in which cases the connection breaks. [`Proxy::away`] breaks all connections and takes no new ones for a time.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::rng::Rng;

/// Bytes that are passed on at a time.
const PIECE_LEN: usize = 64 << 10;
/// Connections that are open at a time, of two descriptors each: for one more, the one that was silent for longest ends, as servers end them. More
/// than clients need, and few beside the 1024 descriptors that a process usually may have.
pub const CONNECTION_MAX: usize = 200;

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Faults {
    /// How late answers are. Other faults end the wait of those that are late.
    pub delay: Duration,
    /// One of so many requests does not arrive; 0: all do.
    pub lost_requests: u64,
    /// One of so many answers does not arrive; 0: all do.
    pub lost_answers: u64,
}

/// See the module's text. It ends when it is dropped.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    server: SocketAddr,
    state: Mutex<State>,
    /// Other faults were set.
    changed: Condvar,
    away: AtomicBool,
    ended: AtomicBool,
    requests: AtomicU64,
    lost: AtomicU64,
    /// Bytes that clients sent, and that they got.
    up: AtomicU64,
    down: AtomicU64,
}

struct State {
    faults: Faults,
    rng: Rng,
    /// Each connection that has not ended.
    open: BTreeMap<u64, Arc<Connection>>,
    /// How many there were.
    made: u64,
}

/// A client, its way to the server, and since when it is silent.
struct Connection {
    client: TcpStream,
    server: TcpStream,
    begun: Instant,
    /// When bytes came last, in microseconds after it began.
    last: AtomicU64,
    /// Whether the client's bytes were the last ones: then an answer is due.
    asked: AtomicBool,
}

impl Connection {
    fn new(client: TcpStream, server: SocketAddr) -> std::io::Result<Connection> {
        let server = TcpStream::connect(server)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        Ok(Connection { client, server, begun: Instant::now(), last: 0.into(), asked: false.into() })
    }

    fn end(&self) {
        for stream in [&self.client, &self.server] {
            // It may be broken already.
            let _broken = stream.shutdown(Shutdown::Both);
        }
    }

    fn is_used(&self) {
        self.last.store(self.begun.elapsed().as_micros() as u64, Ordering::SeqCst);
    }

    /// Whether nobody waits for an answer, and for how long no bytes came.
    fn silent(&self) -> (bool, Duration) {
        let last = Duration::from_micros(self.last.load(Ordering::SeqCst));
        (!self.asked.load(Ordering::SeqCst), self.begun.elapsed().saturating_sub(last))
    }
}

impl Proxy {
    /// Between clients and this server; the same seed gives the same chances.
    pub fn start(server: SocketAddr, faults: Faults, seed: u64) -> std::io::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let state = Mutex::new(State { faults, rng: Rng::new(seed), open: BTreeMap::new(), made: 0 });
        let (away, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let [requests, lost, up, down] = [0; 4].map(AtomicU64::new);
        let shared = Arc::new(Shared { server, state, changed: Condvar::new(), away, ended, requests, lost, up, down });
        let accepting = {
            let shared = shared.clone();
            Some(std::thread::spawn(move || accept(&listener, &shared)))
        };
        Ok(Proxy { address, shared, accepting })
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What goes wrong from now on.
    pub fn set(&self, faults: Faults) {
        self.shared.state().faults = faults;
        self.shared.changed.notify_all();
    }

    /// Breaks all connections, and every new one until it is told otherwise.
    pub fn away(&self, away: bool) {
        self.shared.away.store(away, Ordering::SeqCst);
        if away {
            self.shared.break_all();
        }
    }

    /// How many requests came.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// How many connections have not ended.
    pub fn connections(&self) -> usize {
        self.shared.state().open.len()
    }

    /// How many bytes clients sent, and how many they got, headers included.
    pub fn bytes(&self) -> (u64, u64) {
        (self.shared.up.load(Ordering::SeqCst), self.shared.down.load(Ordering::SeqCst))
    }

    /// How many requests and answers were lost.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.shared.break_all();
        // It waits for a connection.
        let _woken = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ended = accepting.join();
        }
    }
}

impl Shared {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn break_all(&self) {
        std::mem::take(&mut self.state().open).values().for_each(|connection| connection.end());
    }

    /// A connection more, and its number. The one that was silent for longest ends if there are too many.
    fn begin(&self, client: TcpStream) -> std::io::Result<(u64, Arc<Connection>)> {
        let connection = Arc::new(Connection::new(client, self.server)?);
        let mut state = self.state();
        if state.open.len() >= CONNECTION_MAX
            && let Some((&number, _)) = state.open.iter().max_by_key(|(_, connection)| connection.silent())
            && let Some(silent) = state.open.remove(&number)
        {
            silent.end();
        }
        state.made += 1;
        let number = state.made;
        state.open.insert(number, connection.clone());
        // It was accepted before the proxy went away, and `break_all` may not have seen it.
        if self.away.load(Ordering::SeqCst) {
            connection.end();
        }
        Ok((number, connection))
    }

    /// Whether one of so many is lost, this time.
    fn loses(&self, of: impl Fn(&Faults) -> u64) -> bool {
        let mut state = self.state();
        let n = of(&state.faults);
        let loses = n > 0 && state.rng.below(n) == 0;
        self.lost.fetch_add(u64::from(loses), Ordering::SeqCst);
        loses
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if shared.ended.load(Ordering::SeqCst) {
            return;
        }
        if shared.away.load(Ordering::SeqCst) {
            continue;
        }
        // A server that is not there breaks the connection, which the client sees.
        let Ok((number, connection)) = client.and_then(|client| shared.begin(client)) else { continue };
        for is_answer in [false, true] {
            let (shared, connection) = (shared.clone(), connection.clone());
            std::thread::spawn(move || {
                pass(&shared, &connection, is_answer);
                // Both directions are shut down, and their descriptors are to be had again.
                shared.state().open.remove(&number);
            });
        }
    }
}

/// Passes bytes on in one direction until one side ends it.
fn pass(shared: &Shared, connection: &Connection, is_answer: bool) {
    let ends = (&connection.client, &connection.server);
    let (mut from, mut to) = if is_answer { (ends.1, ends.0) } else { ends };
    let mut piece = vec![0; PIECE_LEN];
    while let Ok(len @ 1..) = from.read(&mut piece) {
        connection.is_used();
        // The first bytes after the other side's.
        if connection.asked.swap(!is_answer, Ordering::SeqCst) == is_answer {
            let lost = if is_answer {
                let state = shared.state();
                let delay = state.faults.delay;
                drop(shared.changed.wait_timeout_while(state, delay, |state| state.faults.delay == delay));
                shared.loses(|faults| faults.lost_answers)
            } else {
                shared.requests.fetch_add(1, Ordering::SeqCst);
                shared.loses(|faults| faults.lost_requests)
            };
            if lost {
                break;
            }
        }
        if to.write_all(&piece[..len]).is_err() {
            break;
        }
        let counter = if is_answer { &shared.down } else { &shared.up };
        counter.fetch_add(len as u64, Ordering::SeqCst);
    }
    connection.end();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers each line with itself.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || {
                    let mut piece = [0; 100];
                    while let Ok(len @ 1..) = stream.read(&mut piece) {
                        stream.write_all(&piece[..len]).unwrap();
                    }
                });
            }
        });
        address
    }

    fn ask(stream: &mut TcpStream) -> std::io::Result<usize> {
        stream.write_all(b"hello")?;
        stream.read(&mut [0; 100])
    }

    /// Goal: answers are late, some are lost with their connection, and nobody gets through while it is away. Method: a server
    /// that echoes, asked many times.
    #[test]
    fn faults() {
        let proxy = Proxy::start(echo(), Faults::default(), 1).unwrap();
        let mut stream = TcpStream::connect(proxy.address()).unwrap();
        assert_eq!(ask(&mut stream).unwrap(), 5);
        // It is counted when it has been passed on, which its reader may know first.
        while proxy.bytes() != (5, 5) {
            std::thread::yield_now();
        }
        proxy.set(Faults { delay: Duration::from_millis(30), ..Faults::default() });
        let begun = std::time::Instant::now();
        assert_eq!(ask(&mut stream).unwrap(), 5);
        assert!(begun.elapsed() >= Duration::from_millis(30));
        proxy.set(Faults { lost_answers: 4, lost_requests: 4, ..Faults::default() });
        let mut lost = 0;
        for _ in 0..40 {
            let mut stream = TcpStream::connect(proxy.address()).unwrap();
            lost += u64::from(!ask(&mut stream).is_ok_and(|len| len == 5));
        }
        assert!((5..35).contains(&lost), "{lost}");
        assert_eq!(proxy.lost(), lost);
        assert_eq!(proxy.requests(), 42);
        proxy.set(Faults::default());
        let mut stream = TcpStream::connect(proxy.address()).unwrap();
        proxy.away(true);
        assert!(!ask(&mut stream).is_ok_and(|len| len > 0));
        let mut stream = TcpStream::connect(proxy.address()).unwrap();
        assert!(!ask(&mut stream).is_ok_and(|len| len > 0));
        proxy.away(false);
        let mut stream = TcpStream::connect(proxy.address()).unwrap();
        assert_eq!(ask(&mut stream).unwrap(), 5);
    }

    /// Goal: connections that have ended take nothing. Method: many, one after the other.
    #[test]
    fn ended_connections() {
        let proxy = Proxy::start(echo(), Faults::default(), 1).unwrap();
        for _ in 0..200 {
            let mut stream = TcpStream::connect(proxy.address()).unwrap();
            assert_eq!(ask(&mut stream).unwrap(), 5);
        }
        let begun = std::time::Instant::now();
        while proxy.connections() > 0 && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(proxy.connections(), 0);
    }

    /// Goal: connections that nobody uses any more are bounded, those that are used stay. Method: more than there may be, of which none is ended
    /// and one is used all the time.
    #[test]
    fn silent_connections() {
        let proxy = Proxy::start(echo(), Faults::default(), 1).unwrap();
        let mut used = TcpStream::connect(proxy.address()).unwrap();
        let mut all = Vec::new();
        for _ in 0..CONNECTION_MAX + 50 {
            let mut stream = TcpStream::connect(proxy.address()).unwrap();
            assert_eq!(ask(&mut stream).unwrap(), 5);
            assert_eq!(ask(&mut used).unwrap(), 5);
            all.push(stream);
        }
        assert_eq!(proxy.connections(), CONNECTION_MAX);
        assert!(!ask(&mut all[0]).is_ok_and(|len| len > 0), "the first of them has ended");
        assert_eq!(ask(all.last_mut().unwrap()).unwrap(), 5);
    }
}

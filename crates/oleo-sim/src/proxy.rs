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
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::rng::Rng;

/// Bytes that are passed on at a time.
const PIECE_LEN: usize = 64 << 10;

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Faults {
    /// How late answers are.
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
    /// Both ends of each connection that has not ended.
    open: BTreeMap<u64, [TcpStream; 2]>,
    /// How many there were.
    made: u64,
}

impl Proxy {
    /// Between clients and this server; the same seed gives the same chances.
    pub fn start(server: SocketAddr, faults: Faults, seed: u64) -> std::io::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let state = Mutex::new(State { faults, rng: Rng::new(seed), open: BTreeMap::new(), made: 0 });
        let (away, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let [requests, lost, up, down] = [0; 4].map(AtomicU64::new);
        let shared = Arc::new(Shared { server, state, away, ended, requests, lost, up, down });
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
        for stream in std::mem::take(&mut self.state().open).into_values().flatten() {
            // It may be broken already.
            let _broken = stream.shutdown(Shutdown::Both);
        }
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
        let connected = client.and_then(|client| {
            let server = TcpStream::connect(shared.server)?;
            client.set_nodelay(true)?;
            server.set_nodelay(true)?;
            let ends = [client.try_clone()?, server.try_clone()?];
            let number = {
                let mut state = shared.state();
                state.made += 1;
                let number = state.made;
                state.open.insert(number, ends);
                number
            };
            let asked = Arc::new(AtomicBool::new(false));
            for (from, to, is_answer) in [(client.try_clone()?, server.try_clone()?, false), (server, client, true)] {
                let (shared, asked) = (shared.clone(), asked.clone());
                std::thread::spawn(move || {
                    pass(&shared, from, to, &asked, is_answer);
                    // Both directions are shut down, and their descriptors are to be had again.
                    shared.state().open.remove(&number);
                });
            }
            Ok(())
        });
        // A server that is not there breaks the connection, which the client sees.
        drop(connected);
    }
}

/// Passes bytes on in one direction until one side ends it.
fn pass(shared: &Shared, mut from: TcpStream, mut to: TcpStream, asked: &AtomicBool, is_answer: bool) {
    let mut piece = vec![0; PIECE_LEN];
    while let Ok(len @ 1..) = from.read(&mut piece) {
        // The first bytes after the other side's.
        if asked.swap(!is_answer, Ordering::SeqCst) == is_answer {
            let lost = if is_answer {
                let delay = shared.state().faults.delay;
                std::thread::sleep(delay);
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
    for stream in [from, to] {
        // The other thread may have done so.
        let _broken = stream.shutdown(Shutdown::Both);
    }
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
        while proxy.connections() > 0 && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(proxy.connections(), 0);
    }
}

//! What clients that misbehave can cost.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oleo_device::{Device, MemDevice};
use oleo_nbd::{At, Export, Listener, ServeOptions, Server};

use crate::server::raw::*;

const LEN: u64 = 64 << 20;

fn device() -> Arc<dyn Device> {
    Arc::new(MemDevice::new(LEN))
}

fn quick() -> ServeOptions {
    ServeOptions::default().progress_max(Duration::from_millis(300)).handshake_max(Duration::from_millis(300))
}

/// Threads of this process.
fn threads() -> usize {
    fs::read_dir("/proc/self/task").expect("tasks").count()
}

/// Waits until something is so.
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Goal: a client that does not read its replies is cut off, and others do not notice. Method: it asks for more than
/// sockets hold, and waits; another one reads meanwhile.
#[test]
fn slow_reader() {
    let server = Running::of(device(), quick().shared_writers(true));
    let (mut slow, mut other) = (server.client(true), server.client(true));
    for _ in 0..8 {
        slow.request(READ, 0, 0, 32 << 20, &[]);
    }
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(600) {
        assert_eq!(other.read(5, 4096).expect("read").len(), 4096);
    }
    eventually("the slow one was cut off", || server.log.lock().unwrap().iter().any(|l| l.contains("sending")));
    let mut rest = Vec::new();
    let _ = std::io::Read::read_to_end(&mut slow.stream, &mut rest);
    assert!(rest.len() < 32 << 20, "it got {} bytes", rest.len());
}

/// Goal: a handshake or a request that stalls ends; a connection without requests stays. Method: half a header of each
/// kind, and half a payload.
#[test]
fn stalling() {
    let server = Running::of(device(), quick().shared_writers(true));
    let mut idle = server.client(true);
    let mut silent = server.connect();
    silent.recv(18);
    assert!(silent.is_closed(), "nothing within the time for a handshake");
    let mut dripping = server.connect();
    dripping.greet();
    let start = Instant::now();
    while dripping.stream.write_all(b"I").is_ok() {
        assert!(start.elapsed() < Duration::from_secs(30), "byte by byte is no way to stay");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut half = server.client(true);
    half.send(&0x25609513u32.to_be_bytes());
    assert!(half.is_closed());
    let mut half = server.client(true);
    half.request(WRITE, 0, 0, 1 << 20, &[7; 1000]);
    assert!(half.is_closed());
    assert_eq!(server.client(true).read(0, 10), Ok(vec![0; 10]), "half a write is none");
    let stalls = || server.log.lock().unwrap().iter().filter(|l| l.contains("a request stalls")).count();
    eventually("both were told of", || stalls() == 2);
    assert_eq!(idle.read(0, 10), Ok(vec![0; 10]), "whoever asks nothing may stay");
}

/// Goal: a client that asks nothing gives its connection back, if the server has a time for that; one that asks keeps it. Method: one of each, and
/// room for no third.
#[test]
fn idling() {
    let options = ServeOptions::default().idle_max(Some(Duration::from_millis(500))).shared_writers(true);
    let server = Running::of(device(), options.connections_max(2));
    let (mut idle, mut busy) = (server.client(true), server.client(true));
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        assert_eq!(busy.read(0, 10), Ok(vec![0; 10]));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(idle.is_closed());
    assert_eq!(server.client(true).read(0, 10), Ok(vec![0; 10]));
}

/// Goal: who breaks the protocol is cut off. Method: garbage, and a write that is too long.
#[test]
fn breaches() {
    let server = Running::of(device(), ServeOptions::default().shared_writers(true));
    let mut raw = server.client(true);
    raw.send(&[0x55; 28]);
    assert!(raw.is_closed());
    let mut raw = server.client(true);
    raw.request(WRITE, 0, 0, u32::MAX, &[]);
    assert!(raw.is_closed());
    // What came before is answered.
    let mut raw = server.client(true);
    let cookie = raw.request(READ, 0, 0, 10, &[]);
    raw.send(&[0x55; 28]);
    assert_eq!(raw.answer(cookie, 0, Some(10)), Ok(vec![0; 10]));
    assert!(raw.is_closed());
    eventually("it is told", || server.log.lock().unwrap().len() == 3);
}

/// Goal: connections are bounded, and when one goes another may come. Method: more than are allowed.
#[test]
fn many() {
    let before = threads();
    let server = Running::of(device(), ServeOptions::default().connections_max(20).threads_per_connection(3));
    let mut clients: Vec<Raw> = (0..20).map(|_| server.client(true)).collect();
    for raw in &mut clients {
        assert_eq!(raw.write(0, b"x"), Ok(vec![]));
    }
    let threads = threads();
    // Other tests of this process have threads too.
    assert!(threads <= before + 1 + 20 * 3 + 60, "{threads} threads, {before} before");
    for _ in 0..80 {
        assert!(server.connect().is_closed());
    }
    assert_eq!(server.log.lock().unwrap().len(), 1, "told once a minute");
    drop(clients.pop());
    let start = Instant::now();
    loop {
        let mut raw = server.connect();
        let mut hello = [0; 18];
        if std::io::Read::read_exact(&mut raw.stream, &mut hello).is_ok() {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "there is a free place");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A server of this machine's addresses, and its port.
fn local() -> (Listener, u16) {
    let listener = Listener::bind(&At::Tcp { host: "127.0.0.1".into(), port: 0 }).expect("listen");
    let At::Tcp { port, .. } = *listener.at() else { panic!("{:?}", listener.at()) };
    (listener, port)
}

/// A client with an address of its own, 127.0.0.`last`.
fn from(last: u8, port: u16) -> Raw {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("socket");
    bind(&socket, &SocketAddr::from(([127, 0, 0, last], 0))).expect("bind");
    connect(&socket, &SocketAddr::from(([127, 0, 0, 1], port))).expect("connect");
    Raw::over(socket)
}

/// Goal: one address leaves connections for others. Method: two addresses of this machine, and as many connections as there are.
#[test]
fn connections_for_others() {
    let (listener, port) = local();
    let export = Export { name: "a".into(), description: String::new(), device: device(), read_only: true };
    let _server = Running::on(vec![export], listener, ServeOptions::default().connections_max(4));
    let mut held: Vec<Raw> = (0..3).map(|_| from(2, port)).collect();
    for raw in &mut held {
        raw.shake_hands(true);
    }
    assert!(from(2, port).is_closed(), "three quarters");
    let mut other = from(3, port);
    other.shake_hands(true);
    assert_eq!(other.read(0, 10), Ok(vec![0; 10]));
}

/// Goal: a client that is slow with large writes holds up no other. Method: two addresses of this machine; one begins writes that take
/// all memory, the other writes as much as its share is.
#[test]
fn memory_for_others() {
    let (listener, port) = local();
    let export = Export { name: "a".into(), description: String::new(), device: device(), read_only: false };
    let options = ServeOptions::default().shared_writers(true).memory_bytes_max(32 << 20);
    let _server = Running::on(vec![export], listener, options);
    let mut slow: Vec<Raw> = (0..5).map(|_| from(2, port)).collect();
    for raw in &mut slow {
        raw.shake_hands(true);
        raw.request(WRITE, 0, 0, 8 << 20, &[7; 1000]);
    }
    let mut other = from(3, port);
    other.shake_hands(true);
    assert_eq!(other.write(0, &vec![1; 8 << 20]), Ok(vec![]));
}

/// Goal: clients cannot fill the log. Method: many handshakes that stall.
#[test]
fn few_lines() {
    let server = Running::of(device(), quick());
    let mut clients: Vec<Raw> = (0..30).map(|_| server.connect()).collect();
    for raw in &mut clients {
        raw.recv(18);
        assert!(raw.is_closed());
    }
    eventually("most are told of", || server.log.lock().unwrap().len() == 20);
}

/// Goal: a writable export has one client, and lists and looks are free for all. Method: two addresses of this machine.
#[test]
fn one_client() {
    let (listener, port) = local();
    let from = |last| from(last, port);
    let export = Export { name: "a".into(), description: String::new(), device: device(), read_only: false };
    let _server = Running::on(vec![export], listener, ServeOptions::default());
    let (mut first, mut second) = (from(1), from(1));
    first.shake_hands(true);
    second.shake_hands(false);
    let mut other = from(2);
    other.greet();
    for option in [6, 7] {
        other.option(option, &[0, 0, 0, 0, 0, 0]);
        let (kind, text) = other.option_reply(option);
        assert_eq!(kind, (1 << 31) + 2);
        assert!(String::from_utf8_lossy(&text).contains("127.0.0.1"), "it is told who");
    }
    other.option(3, &[]);
    let kinds = [other.option_reply(3).0, other.option_reply(3).0];
    assert_eq!(kinds, [2, 1]);
    drop(first);
    other.option(7, &[0, 0, 0, 0, 0, 0]);
    assert_eq!(other.option_reply(7).0, (1 << 31) + 2, "one of its connections is left");
    drop(second);
    eventually("the export is free", || {
        let mut other = from(2);
        other.greet();
        other.option(7, &[0, 0, 0, 0, 0, 0]);
        other.option_reply(7).0 == 3
    });
}

/// Goal: what would open an export to other machines in the clear has to be said. Method: starts that are refused.
#[test]
fn starts_that_are_refused() {
    let listen = |host: &str| Listener::bind(&At::Tcp { host: host.into(), port: 0 }).expect("listen");
    let export =
        |name: &str| Export { name: name.into(), description: String::new(), device: device(), read_only: false };
    let start = |exports, listeners, options| Server::start(exports, listeners, options, Box::new(|_| {})).map(drop);
    let (all, here) = (|| vec![listen("")], || vec![listen("127.0.0.1")]);
    let options = ServeOptions::default;
    start(vec![export("a")], all(), options()).expect_err("in the clear");
    start(vec![export("a")], all(), options().plain(true)).expect("as told");
    start(vec![export("a")], here(), options()).expect("here");
    start(vec![export("a"), export("a")], here(), options()).expect_err("one name");
    start(vec![export("a\0")], here(), options()).expect_err("no name");
    start(vec![], here(), options()).expect_err("no export");
    start(vec![export("a")], vec![], options()).expect_err("no place");
    start(vec![export("a")], here(), options().memory_bytes_max(1000)).expect_err("no memory");
}

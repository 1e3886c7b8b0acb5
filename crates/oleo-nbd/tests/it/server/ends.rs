//! Failures of the device, and the end of a server.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use oleo_device::{Device, DeviceError, MemDevice, Op};
use oleo_nbd::ServeOptions;

use crate::server::raw::*;

/// Memory that counts, fails once when told to, and holds writes at a door.
struct Moody {
    inner: MemDevice,
    fail_write: AtomicBool,
    fail_flush: AtomicBool,
    full: AtomicBool,
    flushes: AtomicU64,
    unflushed: AtomicU64,
    /// Says that a write is there, and waits for the word to go on.
    door: Option<(Sender<()>, Mutex<Receiver<()>>)>,
}

impl Moody {
    fn new() -> Moody {
        Moody {
            inner: MemDevice::new(1 << 20),
            fail_write: AtomicBool::new(false),
            fail_flush: AtomicBool::new(false),
            full: AtomicBool::new(false),
            flushes: AtomicU64::new(0),
            unflushed: AtomicU64::new(0),
            door: None,
        }
    }

    fn failure(op: Op, number: i32) -> DeviceError {
        let source = Arc::new(std::io::Error::from_raw_os_error(number));
        DeviceError::Io { name: "moody".into(), op, offset: 0, len: 1, source }
    }
}

impl Device for Moody {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        if let Some((there, go)) = &self.door {
            there.send(()).expect("the test waits");
            go.lock().unwrap().recv().expect("the test goes on");
        }
        if self.fail_write.swap(false, Ordering::SeqCst) {
            return Err(Moody::failure(Op::Write, 5));
        }
        if self.full.load(Ordering::SeqCst) {
            return Err(Moody::failure(Op::Write, 28));
        }
        self.unflushed.fetch_add(1, Ordering::SeqCst);
        self.inner.write_at(offset, buf)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        if self.fail_flush.swap(false, Ordering::SeqCst) {
            return Err(Moody::failure(Op::Flush, 5));
        }
        self.flushes.fetch_add(1, Ordering::SeqCst);
        self.unflushed.store(0, Ordering::SeqCst);
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset, len)
    }
    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.inner.set_len(len)
    }
    fn name(&self) -> String {
        "moody".into()
    }
    fn read_only(&self) -> bool {
        false
    }
}

/// Goal: a flush or write that failed once fails for all, for ever: the system tells such an error once, and what it was
/// about is lost. Method: two clients; one meets the failure, then both flush. The server ends with the error.
#[test]
fn flush_error_for_all() {
    for of_flush in [true, false] {
        let device = Arc::new(Moody::new());
        let mut server = Running::of(device.clone(), ServeOptions::default());
        let (mut one, mut two) = (server.client(true), server.client(false));
        assert_eq!(two.write(5, b"abc"), Ok(vec![]));
        match of_flush {
            true => device.fail_flush.store(true, Ordering::SeqCst),
            false => device.fail_write.store(true, Ordering::SeqCst),
        }
        let failed = if of_flush { one.flush() } else { one.write(0, b"x") };
        assert_eq!(failed, Err(EIO));
        for raw in [&mut one, &mut two] {
            assert_eq!(raw.flush(), Err(EIO));
            assert_eq!(raw.write(9, b"y"), Err(EIO));
            assert_eq!(raw.ask(WRITE, FUA, 9, 1, b"y"), Err(EIO));
            assert_eq!(raw.ask(ZEROES, 0, 9, 1, &[]), Err(EIO));
            assert_eq!(raw.read(5, 3), Ok(b"abc".to_vec()), "reads go on");
        }
        server.stop().expect_err("what was written may be lost");
    }
}

/// Goal: no space is no failure: the write was not taken, and later ones may be. Method: a device that is full for a
/// while.
#[test]
fn a_full_device() {
    let device = Arc::new(Moody::new());
    let server = Running::of(device.clone(), ServeOptions::default());
    let mut raw = server.client(true);
    device.full.store(true, Ordering::SeqCst);
    assert_eq!(raw.write(0, b"x"), Err(ENOSPC));
    device.full.store(false, Ordering::SeqCst);
    assert_eq!(raw.write(0, b"x"), Ok(vec![]));
    assert_eq!(raw.flush(), Ok(vec![]));
}

/// Goal: what is to be durable is, when it is answered. Method: flush, and FUA on each command that changes something.
#[test]
fn durable_when_answered() {
    let device = Arc::new(Moody::new());
    let server = Running::of(device.clone(), ServeOptions::default());
    let mut raw = server.client(true);
    let unflushed = || device.unflushed.load(Ordering::SeqCst);
    assert_eq!(raw.write(0, b"x"), Ok(vec![]));
    assert_eq!(unflushed(), 1);
    raw.flush().expect("flush");
    assert_eq!(unflushed(), 0);
    raw.ask(WRITE, FUA, 0, 1, b"y").expect("write");
    assert_eq!(unflushed(), 0);
    raw.ask(ZEROES, FUA, 0, 1, &[]).expect("zeros");
    assert_eq!(unflushed(), 0);
    let before = device.flushes.load(Ordering::SeqCst);
    raw.ask(TRIM, FUA, 0, 1, &[]).expect("trim");
    assert_eq!(device.flushes.load(Ordering::SeqCst), before + 1);
}

/// Goal: the end of a server finishes what is under way, refuses what comes then, and flushes. Method: a write is held
/// in the device; the server is stopped; another request comes; the write goes on.
#[test]
fn stops() {
    let ((there, is_there), (go, word)) = (channel(), channel());
    let device = Arc::new(Moody { door: Some((there, Mutex::new(word))), ..Moody::new() });
    let mut server = Running::of(device.clone(), ServeOptions::default());
    let (mut raw, mut idle) = (server.client(true), server.client(true));
    let held = raw.request(WRITE, 0, 7, 1, b"x");
    is_there.recv_timeout(Duration::from_secs(60)).expect("the write is in the device");
    server.stopper.stop();
    assert!(idle.is_closed(), "whoever has nothing under way is let go");
    std::thread::sleep(Duration::from_millis(50));
    assert!(std::os::unix::net::UnixStream::connect(&server.socket).is_err(), "nobody listens");
    go.send(()).expect("the write goes on");
    assert_eq!(raw.answer(held, 7, None), Ok(vec![]));
    assert!(raw.is_closed());
    let served = server.stop().expect("ends well");
    assert_eq!(served.connections, 2);
    assert_eq!((device.flushes.load(Ordering::SeqCst), device.unflushed.load(Ordering::SeqCst)), (1, 0));
    assert!(!server.socket.exists(), "its name is gone");
}

/// Goal: who breaks the protocol is still answered what came before. Method: a write is held in the device; something that is no
/// request comes, and the server has time to find that; the write goes on.
#[test]
fn what_came_before_a_breach_is_answered() {
    let ((there, is_there), (go, word)) = (channel(), channel());
    let device = Arc::new(Moody { door: Some((there, Mutex::new(word))), ..Moody::new() });
    let server = Running::of(device, ServeOptions::default());
    let mut raw = server.client(true);
    let held = raw.request(WRITE, 0, 7, 1, b"x");
    is_there.recv_timeout(Duration::from_secs(60)).expect("the write is in the device");
    raw.send(&[0x55; 28]);
    std::thread::sleep(Duration::from_millis(200));
    go.send(()).expect("the write goes on");
    assert_eq!(raw.answer(held, 7, None), Ok(vec![]));
    assert!(raw.is_closed());
}

/// Goal: requests that come while a server ends are refused as such. Method: requests sent just before it is stopped, by
/// a client that does not stop sending; each is answered well or with ESHUTDOWN, and after that nothing is done.
#[test]
fn refused_while_it_ends() {
    let mut server = Running::of(Arc::new(MemDevice::new(1 << 20)), ServeOptions::default().threads_per_connection(1));
    let mut raw = server.client(true);
    let (mut sent, mut done, mut refused) = (0u64, 0, 0);
    for round in 0..104 {
        if round == 100 {
            server.stopper.stop();
        }
        let mut bytes = Vec::new();
        for _ in 0..50 {
            sent += 1;
            bytes.extend(0x25609513u32.to_be_bytes());
            bytes.extend([0, 0, 0, 0]);
            bytes.extend(sent.to_be_bytes());
            bytes.extend(0u64.to_be_bytes());
            bytes.extend(16u32.to_be_bytes());
        }
        if std::io::Write::write_all(&mut raw.stream, &bytes).is_err() {
            break;
        }
        if round < 100 {
            for _ in 0..50 {
                assert!(matches!(raw.message(|_| Some(16)).2, Message::Data(..)));
                done += 1;
            }
        }
    }
    while !raw.is_end() {
        match raw.message(|_| Some(16)).2 {
            Message::Data(..) => assert_eq!(refused, 0),
            Message::Error(ESHUTDOWN) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(done, 5000);
    server.stop().expect("ends well");
}

//! A client of bytes, and a server to talk to.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use oleo_device::Device;
use oleo_nbd::{At, Export, Listener, NbdError, ServeOptions, Served, Server, Stopper};

/// How long a test waits for bytes that have to come.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server.
pub struct Running {
    pub stopper: Stopper,
    pub socket: PathBuf,
    pub log: Arc<Mutex<Vec<String>>>,
    pub thread: Option<JoinHandle<Result<Served, NbdError>>>,
    _dir: Option<tempfile::TempDir>,
}

impl Running {
    pub fn of(device: Arc<dyn Device>, options: ServeOptions) -> Running {
        Running::with(
            vec![Export { name: "disk".into(), description: String::new(), device, read_only: false }],
            options,
        )
    }

    pub fn with(exports: Vec<Export>, options: ServeOptions) -> Running {
        let dir = tempfile::tempdir().expect("dir");
        let socket = dir.path().join("s");
        let listener = Listener::bind(&At::Unix(socket.clone())).expect("listen");
        let mut running = Running::on(exports, listener, options);
        (running.socket, running._dir) = (socket, Some(dir));
        running
    }

    pub fn on(exports: Vec<Export>, listener: Listener, options: ServeOptions) -> Running {
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let lines = log.clone();
        let say = Box::new(move |line: &str| lines.lock().unwrap().push(line.into()));
        let server = Server::start(exports, vec![listener], options, say).expect("start");
        let stopper = server.stopper();
        let thread = Some(std::thread::spawn(move || server.serve()));
        Running { stopper, socket: PathBuf::new(), log, thread, _dir: None }
    }

    pub fn connect(&self) -> Raw {
        Raw::over(UnixStream::connect(&self.socket).expect("connect").into())
    }

    /// A client that has chosen the only export.
    pub fn client(&self, structured: bool) -> Raw {
        let mut raw = self.connect();
        raw.shake_hands(structured);
        raw
    }

    pub fn stop(&mut self) -> Result<Served, NbdError> {
        self.stopper.stop();
        self.thread.take().expect("it was not stopped").join().expect("no panic")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let result = thread.join();
            if !std::thread::panicking() {
                result.expect("no panic").expect("the server ends well");
            }
        }
    }
}

/// A client.
pub struct Raw {
    pub stream: UnixStream,
    cookie: u64,
}

/// What came back for a request: `Err` with its number.
pub type Answer = Result<Vec<u8>, u32>;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const ZEROES: u16 = 6;
pub const STATUS: u16 = 7;
pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;
pub const DF: u16 = 4;
pub const REQ_ONE: u16 = 8;
pub const FAST_ZERO: u16 = 16;

pub const EPERM: u32 = 1;
pub const EIO: u32 = 5;
pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;
pub const EOVERFLOW: u32 = 75;
pub const ENOTSUP: u32 = 95;
pub const ESHUTDOWN: u32 = 108;

impl Raw {
    /// Over a connected socket of any kind: the type stands for all of them.
    pub fn over(socket: OwnedFd) -> Raw {
        let stream = UnixStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("timeout");
        Raw { stream, cookie: 0 }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("send");
    }

    pub fn recv(&mut self, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.stream.read_exact(&mut out).expect("receive");
        out
    }

    fn number<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        self.stream.read_exact(&mut out).expect("receive");
        out
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.number())
    }
    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.number())
    }
    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.number())
    }

    /// Whether the server has closed.
    pub fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        match self.stream.read(&mut byte) {
            Ok(n) => n == 0,
            Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }

    /// Whether nothing more comes; does not take what does.
    pub fn is_end(&mut self) -> bool {
        let mut byte = [0];
        match rustix::net::recv(&self.stream, &mut byte, rustix::net::RecvFlags::PEEK) {
            Ok((n, _)) => n == 0,
            Err(e) => e == rustix::io::Errno::CONNRESET,
        }
    }

    pub fn option(&mut self, option: u32, data: &[u8]) {
        let mut out = b"IHAVEOPT".to_vec();
        out.extend(option.to_be_bytes());
        out.extend((data.len() as u32).to_be_bytes());
        out.extend(data);
        self.send(&out);
    }

    /// A reply to an option: kind, data.
    pub fn option_reply(&mut self, option: u32) -> (u32, Vec<u8>) {
        assert_eq!(self.u64(), 0x3e889045565a9);
        assert_eq!(self.u32(), option);
        let (kind, len) = (self.u32(), self.u32());
        (kind, self.recv(len as usize))
    }

    pub fn greet(&mut self) {
        assert_eq!(self.recv(16), b"NBDMAGICIHAVEOPT");
        assert_eq!(self.u16(), 3);
        self.send(&[0, 0, 0, 3]);
    }

    /// Chooses the default export; size and flags.
    pub fn shake_hands(&mut self, structured: bool) -> (u64, u16) {
        self.greet();
        if structured {
            self.option(8, b"");
            assert_eq!(self.option_reply(8).0, 1);
            let mut data = vec![0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 15];
            data.extend(b"base:allocation");
            self.option(10, &data);
            let (kind, context) = self.option_reply(10);
            assert_eq!((kind, &context[4..]), (4, &b"base:allocation"[..]));
            assert_eq!(self.option_reply(10).0, 1);
        }
        self.option(7, &[0, 0, 0, 0, 0, 0]);
        let (kind, info) = self.option_reply(7);
        assert_eq!((kind, info.len(), &info[..2]), (3, 12, &[0, 0][..]));
        assert_eq!(self.option_reply(7).0, 1);
        (u64::from_be_bytes(info[2..10].try_into().unwrap()), u16::from_be_bytes([info[10], info[11]]))
    }

    /// Sends a request; its cookie.
    pub fn request(&mut self, command: u16, flags: u16, offset: u64, len: u32, data: &[u8]) -> u64 {
        self.cookie += 0x0101;
        let mut out = 0x25609513u32.to_be_bytes().to_vec();
        out.extend(flags.to_be_bytes());
        out.extend(command.to_be_bytes());
        out.extend(self.cookie.to_be_bytes());
        out.extend(offset.to_be_bytes());
        out.extend(len.to_be_bytes());
        // Small requests go whole, so that the server may find several of them together.
        match data.len() {
            0..100_000 => out.extend(data),
            _ => {
                self.send(&out);
                out.clear();
                self.send(data);
            }
        }
        self.send(&out);
        self.cookie
    }

    /// The next message: its cookie, whether it is the last, and what it brings.
    pub fn message(&mut self, reads: impl Fn(u64) -> Option<usize>) -> (u64, bool, Message) {
        match self.u32() {
            0x67446698 => {
                let (error, cookie) = (self.u32(), self.u64());
                if error != 0 {
                    return (cookie, true, Message::Error(error));
                }
                match reads(cookie) {
                    Some(len) => (cookie, true, Message::Whole(self.recv(len))),
                    None => (cookie, true, Message::Done),
                }
            }
            0x668e33ef => {
                let (flags, kind, cookie, len) = (self.u16(), self.u16(), self.u64(), self.u32());
                assert!(flags <= 1);
                let payload = self.recv(len as usize);
                let message = match kind {
                    0 => Message::Done,
                    1 => Message::Data(u64::from_be_bytes(payload[..8].try_into().unwrap()), payload[8..].to_vec()),
                    5 => Message::Status(payload[4..].to_vec()),
                    0x8001 | 0x8002 => {
                        let text = u16::from_be_bytes([payload[4], payload[5]]) as usize;
                        assert_eq!(payload.len(), 6 + text + if kind == 0x8002 { 8 } else { 0 });
                        assert!(text > 0, "an error says something");
                        Message::Error(u32::from_be_bytes(payload[..4].try_into().unwrap()))
                    }
                    _ => panic!("chunk {kind:#x}"),
                };
                (cookie, flags & 1 == 1, message)
            }
            other => panic!("magic {other:#x}"),
        }
    }

    /// Does one request, alone.
    pub fn ask(&mut self, command: u16, flags: u16, offset: u64, len: u32, data: &[u8]) -> Answer {
        let cookie = self.request(command, flags, offset, len, data);
        self.answer(cookie, offset, (command == READ).then_some(len as usize))
    }

    /// The answer to a request that is the only one under way.
    pub fn answer(&mut self, cookie: u64, offset: u64, read: Option<usize>) -> Answer {
        // Nobody gets more than the longest payload.
        let mut whole = vec![0xEE; read.unwrap_or(0).min(32 << 20)];
        let (mut got, mut error) = (0, None);
        loop {
            let (of, last, message) = self.message(|_| read);
            assert_eq!(of, cookie);
            match message {
                Message::Done => {}
                Message::Error(number) => error = Some(number),
                Message::Whole(data) => (got, whole) = (data.len(), data),
                Message::Status(data) => (got, whole) = (0, data),
                Message::Data(at, data) => {
                    assert!(!data.is_empty());
                    let at = (at - offset) as usize;
                    whole[at..at + data.len()].copy_from_slice(&data);
                    got += data.len();
                }
            }
            if last {
                return match error {
                    Some(number) => Err(number),
                    None => {
                        assert_eq!(got, read.unwrap_or(0));
                        Ok(whole)
                    }
                };
            }
        }
    }

    pub fn read(&mut self, offset: u64, len: u32) -> Answer {
        self.ask(READ, 0, offset, len, &[])
    }
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Answer {
        self.ask(WRITE, 0, offset, data.len() as u32, data)
    }
    pub fn flush(&mut self) -> Answer {
        self.ask(FLUSH, 0, 0, 0, &[])
    }
}

#[derive(PartialEq, Eq, Debug)]
pub enum Message {
    Done,
    Error(u32),
    /// Of a simple reply to a read.
    Whole(Vec<u8>),
    Data(u64, Vec<u8>),
    Status(Vec<u8>),
}

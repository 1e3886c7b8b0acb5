//! A server that does what a test says. It has its own encoder, so that one mistake cannot blind both sides.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::{At, ClientOptions, NbdDevice, NbdError, Uri};

pub(super) const READ: u16 = 0;
pub(super) const WRITE: u16 = 1;
pub(super) const FLUSH: u16 = 3;
pub(super) const TRIM: u16 = 4;
pub(super) const ZEROES: u16 = 6;
pub(super) const STATUS: u16 = 7;

/// Flags: has flags, flush, FUA, trim, zeroes, fast zeroes.
pub(super) const ALL: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 11;
pub(super) const READ_ONLY: u16 = 1 << 1;
pub(super) const SEND_FUA: u16 = 1 << 3;
pub(super) const MULTI_CONN: u16 = 1 << 8;

/// What a connection shows.
#[derive(Clone, Copy)]
pub(super) struct Export {
    pub(super) size: u64,
    pub(super) flags: u16,
    /// Smallest and largest block; `None` tells nothing.
    pub(super) blocks: Option<(u32, u32)>,
    pub(super) structured: bool,
    pub(super) status: bool,
    /// Knows `GO`.
    pub(super) go: bool,
    pub(super) fixed: bool,
}

impl Export {
    pub(super) fn new(size: u64) -> Export {
        Export { size, flags: ALL, blocks: Some((1, 1 << 20)), structured: true, status: true, go: true, fixed: true }
    }
}

/// A request that came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Req {
    pub(super) connection: usize,
    pub(super) flags: u16,
    pub(super) command: u16,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) payload: Vec<u8>,
}

/// What to do about it.
pub(super) enum Act {
    /// As a good server does.
    Answer,
    /// With an error.
    Fail(u32),
    /// These bytes, whatever they are.
    Raw(Vec<u8>),
    /// Closes the connection, and does nothing.
    Close,
    /// Does it, and closes the connection without an answer.
    DoAndClose,
    /// Never answers; goes on receiving.
    Hold,
    /// Never does anything again.
    Stall,
}

type Shows = Box<dyn Fn(usize) -> Option<Export> + Send + Sync>;
type Acts = Box<dyn Fn(&Req) -> Act + Send + Sync>;

struct Shared {
    shows: Shows,
    acts: Acts,
    disk: Mutex<Vec<u8>>,
    log: Mutex<Vec<Req>>,
    connections: AtomicUsize,
}

/// See the module's text. Its threads end with the connections.
pub(super) struct Scripted {
    shared: Arc<Shared>,
    dir: tempfile::TempDir,
}

impl Scripted {
    /// `shows`: what the nth connection shows, if it is not closed immediately; `acts`: what is done about a request.
    pub(super) fn start(
        size: usize,
        shows: impl Fn(usize) -> Option<Export> + Send + Sync + 'static,
        acts: impl Fn(&Req) -> Act + Send + Sync + 'static,
    ) -> Scripted {
        let dir = tempfile::tempdir().expect("directory");
        let listener = UnixListener::bind(dir.path().join("s")).expect("listen");
        let shared = Arc::new(Shared {
            shows: Box::new(shows),
            acts: Box::new(acts),
            disk: Mutex::new(vec![0; size]),
            log: Mutex::default(),
            connections: AtomicUsize::new(0),
        });
        let held = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(stream), shared) = (stream, held.clone()) else { break };
                let number = shared.connections.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || {
                    // It ends with an error if the client goes, which tests do all the time.
                    let _ended = serve(&shared, number, stream);
                });
            }
        });
        Scripted { shared, dir }
    }

    pub(super) fn good(export: Export) -> Scripted {
        Scripted::start(export.size as usize, move |_| Some(export), |_| Act::Answer)
    }

    pub(super) fn uri(&self) -> Uri {
        Uri::new(At::Unix(self.dir.path().join("s")), "disk")
    }

    /// A client with short times.
    pub(super) fn client(&self) -> NbdDevice {
        self.try_client(true, &options()).expect("connect")
    }

    pub(super) fn try_client(&self, write: bool, options: &ClientOptions) -> Result<NbdDevice, NbdError> {
        NbdDevice::connect(&self.uri(), write, options)
    }

    /// Nobody can connect any more.
    pub(super) fn vanish(&self) {
        std::fs::remove_file(self.dir.path().join("s")).expect("the socket");
    }

    pub(super) fn disk(&self) -> Vec<u8> {
        self.shared.disk.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn change_disk(&self, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.shared.disk.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// All requests of a command so far.
    pub(super) fn log(&self, command: u16) -> Vec<Req> {
        let log = self.shared.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.iter().filter(|req| req.command == command).cloned().collect()
    }
}

/// Short times, one connection.
pub(super) fn options() -> ClientOptions {
    ClientOptions::default()
        .connections(1)
        .connect_max(Duration::from_secs(2))
        .request_max(Duration::from_secs(5))
        .reconnect_max(Duration::from_secs(5))
        .settle_after(Duration::from_secs(600))
}

fn number<const N: usize>(stream: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes[8 - N..])?;
    Ok(u64::from_be_bytes(bytes))
}

pub(super) fn be(fields: &[(u64, usize)]) -> Vec<u8> {
    fields.iter().flat_map(|(value, len)| value.to_be_bytes()[8 - len..].to_vec()).collect()
}

/// A simple reply.
pub(super) fn simple(cookie: u64, error: u32, data: &[u8]) -> Vec<u8> {
    [be(&[(0x6744_6698, 4), (error.into(), 4), (cookie, 8)]), data.to_vec()].concat()
}

/// A chunk.
pub(super) fn chunk(cookie: u64, done: bool, kind: u16, payload: &[u8]) -> Vec<u8> {
    let head = [(0x668e_33ef, 4), (done.into(), 2), (kind.into(), 2), (cookie, 8), (payload.len() as u64, 4)];
    [be(&head), payload.to_vec()].concat()
}

/// A chunk of data.
pub(super) fn data(cookie: u64, done: bool, offset: u64, bytes: &[u8]) -> Vec<u8> {
    chunk(cookie, done, 1, &[be(&[(offset, 8)]), bytes.to_vec()].concat())
}

fn shake_hands(stream: &mut UnixStream, export: &Export) -> io::Result<()> {
    stream.write_all(&be(&[(0x4e42_444d_4147_4943, 8), (0x4948_4156_454f_5054, 8), (u64::from(export.fixed), 2)]))?;
    number::<4>(stream)?;
    loop {
        assert_eq!(number::<8>(stream)?, 0x4948_4156_454f_5054);
        let (option, len) = (number::<4>(stream)?, number::<4>(stream)?);
        let mut data = vec![0; len as usize];
        stream.read_exact(&mut data)?;
        let mut reply = |kind: u64, payload: &[u8]| {
            let head = be(&[(0x0003_e889_0455_65a9, 8), (option, 4), (kind, 4), (payload.len() as u64, 4)]);
            stream.write_all(&[head, payload.to_vec()].concat())
        };
        match option {
            1 => {
                stream.write_all(&be(&[(export.size, 8), (export.flags.into(), 2)]))?;
                return stream.write_all(&[0; 124]);
            }
            7 if export.go => {
                reply(3, &be(&[(0, 2), (export.size, 8), (export.flags.into(), 2)]))?;
                if let Some((min, max)) = export.blocks {
                    reply(3, &be(&[(3, 2), (min.into(), 4), (u64::from(min.max(4096)), 4), (max.into(), 4)]))?;
                }
                return reply(1, &[]);
            }
            8 if export.structured => reply(1, &[])?,
            10 if export.status => {
                reply(4, &[be(&[(77, 4)]), b"base:allocation".to_vec()].concat())?;
                reply(1, &[])?;
            }
            _ => reply(1 << 31 | 1, b"no")?,
        }
    }
}

fn serve(shared: &Shared, connection: usize, mut stream: UnixStream) -> io::Result<()> {
    let Some(export) = (shared.shows)(connection) else { return Ok(()) };
    shake_hands(&mut stream, &export)?;
    loop {
        assert_eq!(number::<4>(&mut stream)?, 0x2560_9513, "a request");
        let (flags, command) = (number::<2>(&mut stream)? as u16, number::<2>(&mut stream)? as u16);
        let (cookie, offset) = (number::<8>(&mut stream)?, number::<8>(&mut stream)?);
        let len = number::<4>(&mut stream)? as u32;
        let mut payload = vec![0; if command == WRITE { len as usize } else { 0 }];
        stream.read_exact(&mut payload)?;
        let req = Req { connection, flags, command, cookie, offset, len, payload };
        shared.log.lock().unwrap_or_else(PoisonError::into_inner).push(req.clone());
        if command == 2 {
            return Ok(());
        }
        if let Some((min, max)) = export.blocks.filter(|_| command != FLUSH) {
            let even = offset.is_multiple_of(min.into()) && len.is_multiple_of(min) && len > 0;
            assert!(even && (len <= max || !matches!(command, READ | WRITE)), "{req:?}");
        }
        match (shared.acts)(&req) {
            Act::Answer => {
                let reply = answer(shared, &export, &req);
                stream.write_all(&reply)?;
            }
            Act::Fail(error) if command == READ && export.structured => {
                stream.write_all(&chunk(cookie, true, 0x8001, &be(&[(error.into(), 4), (0, 2)])))?;
            }
            Act::Fail(error) => stream.write_all(&simple(cookie, error, &[]))?,
            Act::Raw(bytes) => stream.write_all(&bytes)?,
            Act::Close => return Ok(()),
            Act::DoAndClose => {
                answer(shared, &export, &req);
                return Ok(());
            }
            Act::Hold => {}
            Act::Stall => loop {
                std::thread::sleep(Duration::from_secs(600));
            },
        }
    }
}

/// Does it, and makes the reply.
fn answer(shared: &Shared, export: &Export, req: &Req) -> Vec<u8> {
    let (at, end) = (req.offset as usize, req.offset as usize + req.len as usize);
    let mut disk = shared.disk.lock().unwrap_or_else(PoisonError::into_inner);
    match req.command {
        READ if !export.structured => simple(req.cookie, 0, &disk[at..end]),
        READ => {
            // Out of order and in pieces, zeros as holes.
            let mut out = Vec::new();
            let cuts: Vec<usize> = (at..end).step_by(3000).collect();
            for start in cuts.into_iter().rev() {
                let bytes = &disk[start..end.min(start + 3000)];
                match bytes.iter().all(|b| *b == 0) {
                    true => out.extend(chunk(req.cookie, false, 2, &be(&[(start as u64, 8), (bytes.len() as u64, 4)]))),
                    false => out.extend(data(req.cookie, false, start as u64, bytes)),
                }
            }
            out.extend(chunk(req.cookie, true, 0, &[]));
            out
        }
        WRITE => {
            disk[at..end].copy_from_slice(&req.payload);
            simple(req.cookie, 0, &[])
        }
        TRIM | ZEROES => {
            disk[at..end].fill(0);
            simple(req.cookie, 0, &[])
        }
        STATUS => {
            let mut payload = be(&[(77, 4)]);
            let mut at = at;
            while at < end {
                let zero = disk[at] == 0;
                let len = disk[at..end].iter().take_while(|b| (**b == 0) == zero).count();
                payload.extend(be(&[(len as u64, 4), (if zero { 3 } else { 0 }, 4)]));
                at += len;
                if req.flags & 1 << 3 != 0 {
                    break;
                }
            }
            chunk(req.cookie, true, 5, &payload)
        }
        _ => simple(req.cookie, 0, &[]),
    }
}

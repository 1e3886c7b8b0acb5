//! A client against a server that says anything: each call returns, in its time, and what is read well has no byte that nobody
//! sent.
//!
//! The input is a script: a byte that says how the server begins ([`Begins`]), then pieces, each with its length in two bytes.
//! With each request of the client the next piece is sent, with the request's cookie where replies have it; when there are no
//! more the connection is ended.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use oleo_device::Device;
use oleo_nbd::wire::option::{
    BlockSizes, GO, INFO_BLOCK_SIZE, Info, REP_ACK, REP_INFO, REP_META_CONTEXT, SET_META_CONTEXT, STRUCTURED_REPLY,
    context_data, push_reply,
};
use oleo_nbd::wire::reply::Chunk;
use oleo_nbd::wire::{ALLOCATION_CONTEXT, GREETING_MAGIC, OPTION_MAGIC, Request, TransmissionFlags};
use oleo_nbd::{At, ClientOptions, NbdDevice, Uri};

/// The export, what is read of it, and the context of its extents.
pub const SIZE: u64 = 1 << 20;
pub const AT: u64 = 4096;
pub const LEN: usize = 4096;
pub const CONTEXT: u32 = 77;
/// The times of the client, and that of all calls together.
const STEP: Duration = Duration::from_millis(300);
const CALLS_MAX: Duration = Duration::from_secs(60);

/// After so long without a request the server ends a connection.
const SILENCE: Duration = Duration::from_millis(30);

/// How the server begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Begins {
    /// As it should.
    Well = 0,
    /// With its first piece.
    AsItSays = 1,
}

/// A script of pieces.
pub fn script(begins: Begins, pieces: &[&[u8]]) -> Vec<u8> {
    let mut out = vec![begins as u8];
    for piece in pieces {
        out.extend((piece.len() as u16).to_be_bytes());
        out.extend_from_slice(piece);
    }
    out
}

/// What a sound server says until an export is chosen.
pub fn greeting() -> Vec<u8> {
    let mut out = [GREETING_MAGIC.to_be_bytes(), OPTION_MAGIC.to_be_bytes()].concat();
    out.extend(3u16.to_be_bytes());
    push_reply(&mut out, STRUCTURED_REPLY, REP_ACK, &[]);
    push_reply(&mut out, SET_META_CONTEXT, REP_META_CONTEXT, &context_data(CONTEXT, ALLOCATION_CONTEXT));
    push_reply(&mut out, SET_META_CONTEXT, REP_ACK, &[]);
    let flags = TransmissionFlags::HAS_FLAGS | TransmissionFlags::SEND_FLUSH | TransmissionFlags::SEND_FUA;
    push_reply(&mut out, GO, REP_INFO, &Info::Export { size: SIZE, flags }.encode());
    let sizes = Info::BlockSize(BlockSizes { min: 1, preferred: 4096, max: 1 << 20 });
    assert_eq!(sizes.encode()[..2], INFO_BLOCK_SIZE.to_be_bytes());
    push_reply(&mut out, GO, REP_INFO, &sizes.encode());
    push_reply(&mut out, GO, REP_ACK, &[]);
    out
}

/// Where the server listens.
pub fn socket() -> PathBuf {
    std::env::temp_dir().join(format!("oleo-nbd-mutated-{}-client", std::process::id()))
}

/// The server's socket, and who is told what the next connections are to hear.
fn server() -> &'static (PathBuf, Sender<Vec<u8>>) {
    static SERVER: OnceLock<(PathBuf, Sender<Vec<u8>>)> = OnceLock::new();
    SERVER.get_or_init(|| {
        let socket = socket();
        let _earlier = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).expect("listen");
        let (to, from) = channel::<Vec<u8>>();
        std::thread::spawn(move || {
            let mut data = Vec::new();
            for stream in listener.incoming() {
                if let Some(newest) = from.try_iter().last() {
                    data = newest;
                }
                if let Ok(stream) = stream {
                    let data = data.clone();
                    std::thread::spawn(move || play(stream, &data));
                }
            }
        });
        (socket, to)
    })
}

/// One connection.
fn play(mut stream: UnixStream, data: &[u8]) {
    let (begins, mut rest) = data.split_first().map_or((0, data), |(first, rest)| (*first, rest));
    let mut next = move || {
        let (head, more) = rest.split_at_checked(2)?;
        let len = usize::from(u16::from_be_bytes([head[0], head[1]])).min(more.len());
        let (piece, after) = more.split_at(len);
        rest = after;
        Some(piece.to_vec())
    };
    let first = if begins % 2 == Begins::Well as u8 { Some(greeting()) } else { next() };
    let Ok(mut reading) = stream.try_clone() else { return };
    // A client that waits for the rest of a reply is not kept waiting.
    if stream.set_read_timeout(Some(SILENCE)).is_err() {
        return;
    }
    if stream.write_all(&first.unwrap_or_default()).is_err() {
        return;
    }
    // Whatever the client says before its first request: options.
    let mut seen = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(len @ 1..) = reading.read(&mut piece) {
        seen.extend_from_slice(&piece[..len]);
        while let Some(at) = seen.windows(4).position(|w| w == oleo_nbd::wire::REQUEST_MAGIC.to_be_bytes()) {
            let Some(request) = seen[at..].first_chunk().and_then(Request::decode) else { break };
            seen.drain(..at + Request::LEN);
            let Some(mut reply) = next() else { return };
            set_cookies(&mut reply, request.cookie);
            if stream.write_all(&reply).is_err() {
                return;
            }
        }
    }
}

/// Each reply of a piece has the cookie of its request, as far as they can be told apart.
fn set_cookies(piece: &mut [u8], cookie: u64) {
    let mut at = 0;
    while let Some(to) = piece.get_mut(at + 8..at + 16) {
        to.copy_from_slice(&cookie.to_be_bytes());
        let Some(chunk) = piece[at..].first_chunk().and_then(Chunk::decode) else { return };
        at = at.saturating_add(Chunk::LEN).saturating_add(chunk.len as usize);
        if at > piece.len() {
            return;
        }
    }
}

/// Whether the client has connected.
pub fn body(data: &[u8]) -> bool {
    let (socket, to) = server();
    to.send(data.to_vec()).expect("the server is there");
    let options = ClientOptions::default().connections(1).connect_max(STEP).request_max(STEP);
    let options = options.reconnect_max(Duration::ZERO);
    let begun = Instant::now();
    let Ok(dev) = NbdDevice::connect(&Uri::new(At::Unix(socket.clone()), "x"), false, &options) else {
        assert!(begun.elapsed() < CALLS_MAX);
        return false;
    };
    assert!(dev.len() < 1 << 63);
    let mut buf = [1; LEN];
    let read = dev.read_at(AT, &mut buf);
    if let Ok(extents) = dev.extents(0, dev.len().min(SIZE), 10) {
        assert!(extents.iter().map(|extent| extent.len).sum::<u64>() <= SIZE);
    }
    let _unknown = dev.flush();
    let sent = |byte: &u8| *byte == 0 || data.contains(byte);
    assert!(read.is_err() || buf.iter().all(sent), "bytes that nobody sent");
    drop(dev);
    assert!(begun.elapsed() < CALLS_MAX, "it took {:?}", begun.elapsed());
    true
}

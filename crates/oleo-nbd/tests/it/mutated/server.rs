//! A server against a client that says anything, and then nothing more: it answers and lets go, with its device as long as it
//! was.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use oleo_device::{Device, MemDevice};
use oleo_nbd::{At, Export, Listener, ServeOptions, Server};

/// The export.
pub const NAME: &str = "disk";
/// Its bytes.
const LEN: u64 = 1 << 20;
/// How long it may take to let go of a client that has gone.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest answer, in bytes, that is read.
const ANSWER_MAX: u64 = 64 << 20;

static PANICKED: AtomicBool = AtomicBool::new(false);

/// Where it listens.
pub fn socket() -> PathBuf {
    std::env::temp_dir().join(format!("oleo-nbd-mutated-{}", std::process::id()))
}

/// The server, which serves as long as the process lives.
fn server() -> &'static (PathBuf, Arc<MemDevice>) {
    static SERVER: OnceLock<(PathBuf, Arc<MemDevice>)> = OnceLock::new();
    SERVER.get_or_init(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICKED.store(true, Ordering::SeqCst);
            before(info);
        }));
        let socket = socket();
        let _earlier = std::fs::remove_file(&socket);
        let listener = Listener::bind(&At::Unix(socket.clone())).expect("listen");
        let device = Arc::new(MemDevice::new(LEN));
        let export =
            Export { name: NAME.into(), description: "a text".into(), device: device.clone(), read_only: false };
        // Clients come faster than they are let go of.
        let options = ServeOptions::default().shared_writers(true).connections_max(1000);
        let server = Server::start(vec![export], vec![listener], options, Box::new(|_| {})).expect("start");
        std::thread::spawn(move || server.serve());
        (socket, device)
    })
}

/// Threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Whether the server has got as far as a request. Its threads for the client have ended: memory of one that has not looks like a leak.
pub fn body(data: &[u8]) -> bool {
    let (socket, device) = server();
    let before = threads();
    let mut stream = UnixStream::connect(socket).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    let mut writing = stream.try_clone().expect("a socket");
    let data = data.to_vec();
    // It may answer more than a socket holds before it has read all, or let go before it has.
    let writer = std::thread::spawn(move || {
        let _gone = writing.write_all(&data).and_then(|()| writing.shutdown(std::net::Shutdown::Write));
    });
    let mut answer = Vec::new();
    let ended = (&mut stream).take(ANSWER_MAX).read_to_end(&mut answer);
    assert!(!ended.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock), "it does not let go");
    drop(stream);
    writer.join().expect("the writer");
    let begun = Instant::now();
    while threads() > before {
        assert!(begun.elapsed() < PATIENCE, "a thread of the connection does not end");
        std::thread::sleep(Duration::from_micros(50));
    }
    assert!(!PANICKED.load(Ordering::SeqCst), "a thread of the server has panicked");
    assert_eq!(device.len(), LEN);
    answer.len() > 100
}

//! An explorer, and what it answers over HTTP.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use oleo::OpenOptions;
use oleo_view::explore::{Ask, Explorer, Target};
use serde_json::Value;

/// What came.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    pub fn lines(&self) -> Vec<Value> {
        self.body
            .split(|b| *b == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .find_map(|line| line.split_once(": ").filter(|(known, _)| known.eq_ignore_ascii_case(name)))
            .map(|(_, value)| value)
    }
}

/// Sends a request as it stands and reads what comes until the connection ends.
pub fn raw(at: SocketAddr, request: &str) -> Answer {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut body = bytes.split_off(end);
    if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        body = unchunked(&body);
    }
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head, body }
}

/// Panics if the last chunk is not there.
fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let line = bytes.windows(2).position(|w| w == b"\r\n").expect("a chunk");
        let len = usize::from_str_radix(std::str::from_utf8(&bytes[..line]).unwrap(), 16).unwrap();
        bytes = &bytes[line + 2..];
        if len == 0 {
            return out;
        }
        out.extend_from_slice(&bytes[..len]);
        bytes = &bytes[len + 2..];
    }
}

/// A running explorer, which is stopped when this is dropped.
pub struct Served(Option<Explorer>);

impl Served {
    pub fn new(path: &Path) -> Served {
        Served::of(path, None)
    }

    pub fn of(path: &Path, mount: Option<Ask>) -> Served {
        let target = Target { image: path.to_owned(), options: OpenOptions::default(), mount, map_bytes: 64 << 20 };
        Served(Some(Explorer::start(target, 0).unwrap()))
    }

    pub fn explorer(&self) -> &Explorer {
        self.0.as_ref().unwrap()
    }

    pub fn at(&self) -> SocketAddr {
        self.explorer().address()
    }

    /// The path with the token.
    pub fn root(&self) -> String {
        self.explorer().url().split_once(&self.at().to_string()).unwrap().1.to_owned()
    }

    pub fn get(&self, path: &str) -> Answer {
        let (at, root) = (self.at(), self.root());
        raw(at, &format!("GET {root}{path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n"))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(explorer) = self.0.take() {
            explorer.stop();
        }
    }
}

//! A server that speaks as S3 does, as a process: `moto`, which `scripts/test` installs below `target/venv`. It keeps
//! everything in memory.
//!
//! It ends with the guard, and also if this process is killed: a shell waits for the end of its input, which is ours.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::oracle::Scratch;

/// How long it may take to begin: it is a large program, and the machine may be busy.
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// The bucket that there is.
pub const BUCKET: &str = "bucket";
/// Keys that it takes; it takes any.
pub const KEY: &str = "testing";

/// The server; see the module's text.
pub struct Moto {
    shell: Child,
    address: SocketAddr,
    log: PathBuf,
    _own: Scratch,
}

impl Moto {
    /// Starts one with an empty bucket.
    ///
    /// # Errors
    /// It is not installed, or does not begin.
    pub fn start() -> Result<Moto> {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/venv/bin/moto_server");
        ensure!(program.exists(), "{} is missing (scripts/test installs what tests need)", program.display());
        let own = Scratch::new()?;
        let log = own.path().join("log");
        let out = File::create(&log)?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let script = "\"$0\" -H 127.0.0.1 -p \"$1\" </dev/null & read -r end; kill $!; wait $!";
        let shell = Command::new("sh")
            .args(["-c", script])
            .arg(&program)
            .arg(address.port().to_string())
            .stdin(Stdio::piped())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .context("cannot run sh")?;
        let moto = Moto { shell, address, log, _own: own };
        let start = Instant::now();
        while !moto.makes_bucket()? {
            ensure!(start.elapsed() < LIMIT, "moto does not answer: {}", moto.log());
            std::thread::sleep(POLL);
        }
        Ok(moto)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it wrote.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Options of a volume, as `--remote` takes them, at this server or a proxy in front of it.
    pub fn options(at: SocketAddr) -> String {
        format!("endpoint=http://{at},region=us-east-1,AWS_ACCESS_KEY_ID={KEY},AWS_SECRET_ACCESS_KEY={KEY}")
    }

    /// Makes the bucket; false: nobody answers yet.
    fn makes_bucket(&self) -> Result<bool> {
        let Ok(mut stream) = TcpStream::connect(self.address) else { return Ok(false) };
        let host = self.address;
        write!(stream, "PUT /{BUCKET} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        match answer.split(' ').nth(1) {
            Some("200") => Ok(true),
            _ => bail!("moto does not make a bucket: {answer}"),
        }
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        // The end of its input ends it.
        drop(self.shell.stdin.take());
        let _ended = self.shell.wait();
    }
}

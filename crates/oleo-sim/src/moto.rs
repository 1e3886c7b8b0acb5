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

/// Names a server to use instead, `SCHEME://ADDRESS[/PATH][,WORD…]`: of which cloud it is, where, and the options of volumes that it needs.
/// It has the bucket; one of S3 takes the keys. `cargo xtask stores` sets it.
const OTHER: &str = "OLEO_TEST_STORE";

/// The server; see the module's text.
pub struct Moto {
    /// None: it is not ours.
    shell: Option<Child>,
    address: SocketAddr,
    log: PathBuf,
    base: String,
    _own: Scratch,
}

impl Moto {
    /// Starts one with an empty bucket.
    ///
    /// # Errors
    /// It is not installed, or does not begin.
    pub fn start() -> Result<Moto> {
        if let Ok(other) = std::env::var(OTHER) {
            return Moto::other(&other);
        }
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/venv/bin/python");
        ensure!(program.exists(), "{} is missing (scripts/test installs what tests need)", program.display());
        let own = Scratch::new()?;
        let log = own.path().join("log");
        let out = File::create(&log)?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let script = "\"$0\" -c \"$2\" \"$1\" </dev/null & read -r end; kill $!; wait $!";
        let shell = Command::new("sh")
            .args(["-c", script])
            .arg(&program)
            .arg(address.port().to_string())
            .arg(include_str!("moto.py"))
            .stdin(Stdio::piped())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .context("cannot run sh")?;
        let moto = Moto { shell: Some(shell), address, log, base: format!("s3://{BUCKET}"), _own: own };
        let start = Instant::now();
        while !moto.makes_bucket()? {
            ensure!(start.elapsed() < LIMIT, "moto does not answer: {}", moto.log());
            std::thread::sleep(POLL);
        }
        Ok(moto)
    }

    /// One that runs already, and a prefix on it that nobody else has.
    fn other(text: &str) -> Result<Moto> {
        let Named { scheme, address, .. } = Named::of(text);
        let address = address.parse().with_context(|| format!("{OTHER}: {address} is no address"))?;
        let own = Scratch::new()?;
        let unique = own.path().file_name().map(|name| name.to_string_lossy().into_owned());
        let unique: String = unique.unwrap_or_default().chars().filter(char::is_ascii_alphanumeric).collect();
        let base = format!("{scheme}://{BUCKET}/{unique}-{}", std::process::id());
        Ok(Moto { shell: None, address, log: PathBuf::new(), base, _own: own })
    }

    /// The name of the bucket, or of what there is of it for this server's user.
    pub fn base(&self) -> &str {
        &self.base
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
        let other = std::env::var(OTHER).unwrap_or_else(|_| "s3://".into());
        let Named { scheme, path, words, .. } = Named::of(&other);
        let keys = format!(",region=us-east-1,AWS_ACCESS_KEY_ID={KEY},AWS_SECRET_ACCESS_KEY={KEY}");
        format!("endpoint=http://{at}{path}{}{words}", if scheme == "s3" { keys.as_str() } else { "" })
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

/// The parts of [`OTHER`].
struct Named<'a> {
    scheme: &'a str,
    address: &'a str,
    /// With a slash before it, or empty.
    path: &'a str,
    /// With a comma before them, or empty.
    words: &'a str,
}

impl Named<'_> {
    fn of(text: &str) -> Named<'_> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("s3", text));
        let (place, words) = rest.split_at(rest.find(',').unwrap_or(rest.len()));
        let (address, path) = place.split_at(place.find('/').unwrap_or(place.len()));
        Named { scheme, address, path, words }
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        // The end of its input ends it.
        if let Some(shell) = &mut self.shell {
            drop(shell.stdin.take());
            let _ended = shell.wait();
        }
    }
}

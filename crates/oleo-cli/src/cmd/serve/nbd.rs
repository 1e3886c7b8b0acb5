//! `oleo serve nbd`
//!
//! Sockets come from --listen, or from whoever started this program, as systemd hands them over (sd_listen_fds(3)): the
//! variables LISTEN_PID, this process, and LISTEN_FDS, how many there are from descriptor 3 on.

use std::path::PathBuf;
use std::time::Duration;

use oleo::serve::{self, At, ExportOptions, Listener, Log, ServeOptions, Server, Uri};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::{StoreArgs, size};
use crate::cmd::ready::announce;
use crate::out::{Out, human, misuse, plain};

/// The first descriptor that is handed over.
const HANDED_OVER_FIRST: i32 = 3;
/// Most that are taken.
const HANDED_OVER_MAX: i32 = 64;

/// Serve images as network block devices (NBD)
///
/// Clients see the bytes of an image as a disk: the kernel's nbd-client, qemu, nbdcopy, and oleo itself (nbd://HOST/NAME or
/// nbd+unix:///NAME?socket=PATH in place of IMG). Nobody else may use an image meanwhile. SIGTERM ends the server: requests
/// under way are finished, and everything written is made durable. That may take a minute if what is served is itself on the
/// network and does not answer; a second SIGTERM ends it without, and with exit code 4.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    oleo serve nbd --listen unix:/run/disk.sock disk.img\n  \
    oleo serve nbd --read-only --listen tcp:127.0.0.1:10809 --export golden golden.img\n  \
    oleo serve nbd --tls-certificates /etc/pki/nbd --tls-verify-peer --listen tcp::10809 disk.img")]
pub(crate) struct Args {
    /// Images to serve: files, block devices, volumes on object stores, or exports of other servers.
    #[arg(value_name = "IMG", required = true)]
    images: Vec<PathBuf>,
    /// Listen here: unix:PATH (for the owner only) or tcp:HOST[:PORT] (tcp::PORT: on all addresses); repeat it for each. Every user of
    /// this machine can connect to tcp:127.0.0.1, even if the image belongs to one of them. Needed unless sockets are handed over, as systemd does.
    #[arg(long, short, value_name = "WHERE")]
    listen: Vec<String>,
    /// Let clients only read.
    #[arg(long, short)]
    read_only: bool,
    /// Name of the export, once for each image [default: none for a single image; for several, the names of the files]. A
    /// single export is also found without a name.
    #[arg(long, short = 'x', value_name = "NAME")]
    export: Vec<String>,
    /// Offset of the image in the file, in bytes (suffixes K, M, G, T).
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = size, hide_default_value = true)]
    offset: u64,
    /// Serve through TLS only, with server-cert.pem and server-key.pem of this directory.
    #[cfg(feature = "tls")]
    #[arg(long, value_name = "DIR")]
    tls_certificates: Option<PathBuf>,
    /// Demand a certificate of clients that ca-cert.pem of that directory vouches for.
    #[cfg(feature = "tls")]
    #[arg(long, requires = "tls_certificates")]
    tls_verify_peer: bool,
    /// Allow other machines to write through TLS without a certificate: every client that reaches the port can.
    #[cfg(feature = "tls")]
    #[arg(long, requires = "tls_certificates", conflicts_with = "tls_verify_peer")]
    anonymous: bool,
    /// Allow other machines to connect without TLS: whoever reaches the port can read, and write.
    #[arg(long)]
    plain: bool,
    /// Let several clients use an export that is written to. They must agree on who writes what: a file system on it is
    /// destroyed if two use it.
    #[arg(long)]
    shared: bool,
    /// Most connections at a time; one address has at most three quarters of them.
    #[arg(long, value_name = "N", default_value_t = 32)]
    connections: usize,
    /// End connections that have asked for nothing for so long [default: never].
    #[arg(long, value_name = "SECONDS")]
    idle: Option<u32>,
    /// Most memory for data of large requests; one client has at most three quarters of it.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    memory: u64,
    /// Say "ready" on standard output when clients can connect, then let go of the terminal.
    #[arg(long)]
    announce: bool,
    #[command(flatten)]
    store: StoreArgs,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        // Signals that come while images are opened end the server as soon as it has begun.
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        // Where a second one may listen is found out before images are opened.
        let ats: Vec<At> =
            self.listen.iter().map(|text| serve::listen_at(text)).collect::<Result<_, _>>().map_err(said)?;
        let options = self.options()?;
        let handed_over = handed_over()?;
        if ats.is_empty() && handed_over.is_empty() {
            return Err(misuse!("missing option --listen: where clients can connect (unix:PATH or tcp:HOST:PORT)"));
        }
        let how = ExportOptions::default().names(self.export.clone()).read_only(self.read_only).offset(self.offset);
        let how = how.places(self.store.places()?);
        let exports = serve::exports(&self.images, &how)?;
        let shown: Vec<(String, u64)> = exports.iter().map(|e| (e.name.clone(), e.device.len())).collect();
        let handed_over_count = handed_over.len();
        let mut listeners = handed_over;
        for at in &ats {
            listeners.push(Listener::bind(at).map_err(said)?);
        }
        let server = Server::start(exports, listeners, options, log(self.announce)).map_err(said)?;
        for (image, (name, len)) in self.images.iter().zip(&shown) {
            // Whoever has handed a socket over knows where it is, and may read something else.
            for listener in &server.listeners()[handed_over_count..] {
                let uri = self.uri(listener.at(), name);
                out.note_unless(self.announce, || format!("serving {} ({}) as {uri}", image.display(), human(*len)));
            }
        }
        if self.announce {
            announce()?;
        }
        let stopper = server.stopper();
        std::thread::spawn(move || {
            let mut signals = signals.forever();
            if signals.next().is_some() {
                stopper.stop();
            }
            if signals.next().is_some() {
                eprintln!("oleo: ended by a second signal: what was written and not flushed may be lost");
                std::process::exit(4);
            }
        });
        let served = server.serve().map_err(said)?;
        out.detail(|| format!("{} connections", served.connections));
        Ok(())
    }

    fn options(&self) -> anyhow::Result<ServeOptions> {
        let options = ServeOptions::default()
            .connections_max(self.connections)
            .memory_bytes_max(self.memory)
            .idle_max(self.idle.map(|seconds| Duration::from_secs(seconds.into())))
            .shared_writers(self.shared)
            .plain(self.plain);
        #[cfg(feature = "tls")]
        if let Some(dir) = &self.tls_certificates {
            let tls = serve::ServerTls::load(dir, self.tls_verify_peer).map_err(said)?;
            return Ok(options.anonymous(self.anonymous).tls(tls));
        }
        Ok(options)
    }

    /// By which name a client finds it.
    fn uri(&self, at: &At, name: &str) -> Uri {
        let at = match at {
            At::Unix(path) if !path.as_os_str().as_encoded_bytes().starts_with(&[0]) => {
                At::Unix(std::path::absolute(path).unwrap_or_else(|_| path.clone()))
            }
            at => at.clone(),
        };
        let mut uri = Uri::new(at, name);
        uri.tls = self.has_tls();
        uri
    }

    fn has_tls(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls_certificates.is_some();
        #[cfg(not(feature = "tls"))]
        false
    }
}

/// An error of the server as one of the library, which has a kind.
fn said(error: oleo::error::NbdError) -> oleo::Error {
    error.into()
}

/// The sockets that were handed over.
fn handed_over() -> anyhow::Result<Vec<Listener>> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Ok(Vec::new());
    }
    let count = number("LISTEN_FDS").and_then(|n| i32::try_from(n).ok()).filter(|n| (0..=HANDED_OVER_MAX).contains(n));
    let Some(count) = count else { return Err(misuse!("LISTEN_FDS is no number from 0 to {HANDED_OVER_MAX}")) };
    let listeners = (HANDED_OVER_FIRST..HANDED_OVER_FIRST + count).map(Listener::inherited);
    Ok(listeners.collect::<Result<_, _>>().map_err(said)?)
}

/// Where lines about clients go.
fn log(in_background: bool) -> Log {
    if in_background {
        return Box::new(crate::cmd::ready::to_syslog);
    }
    Box::new(|line| eprintln!("oleo: {}", plain(line, &[])))
}

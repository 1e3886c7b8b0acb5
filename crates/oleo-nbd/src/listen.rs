//! Sockets that a server listens on: in the file system, of the network, or handed over by whoever started the process.
//!
//! A socket in the file system is for its owner alone (mode 0600), which is set before it has a name. One that nobody
//! listens on any more is replaced; it is told from a living one by connecting. When the listener is dropped, its name
//! goes too, if it still is this one's.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, sockopt};

use crate::channel::{Channel, unix_address, unix_socket};
use crate::error::NbdError;
use crate::uri::{At, PORT};

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 128;

/// Reads where to listen: `unix:PATH`, `tcp:HOST:PORT`, `tcp:HOST`, `tcp::PORT` (all addresses).
pub fn listen_at(text: &str) -> Result<At, NbdError> {
    let refused = |what: &str| NbdError::Usage { what: format!("{}: {what}", text.escape_debug()) };
    if let Some(path) = text.strip_prefix("unix:") {
        if path.is_empty() || path.contains('\0') {
            return Err(refused("the socket's path makes no sense"));
        }
        return Ok(At::Unix(path.into()));
    }
    let Some(rest) = text.strip_prefix("tcp:") else {
        return Err(refused("where to listen is unix:PATH or tcp:HOST:PORT"));
    };
    let (host, port) = match rest.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or_else(|| refused("a bracket is open"))?;
            (host, after.strip_prefix(':').unwrap_or(after))
        }
        None => rest.rsplit_once(':').unwrap_or((rest, "")),
    };
    let port = match port {
        "" => PORT,
        _ => port.parse().map_err(|_| refused("the port is no number from 0 to 65535"))?,
    };
    Ok(At::Tcp { host: host.to_owned(), port })
}

/// A socket that is listened on.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    at: At,
    /// The name in the file system that goes with it: path, device, inode.
    named: Option<(PathBuf, u64, u64)>,
}

impl Listener {
    /// Begins to listen. An empty host means all addresses.
    pub fn bind(at: &At) -> Result<Listener, NbdError> {
        let failed = |e: io::Error| NbdError::Listen { on: at.to_string(), source: Arc::new(e) };
        match at {
            At::Unix(path) => bind_unix(path).map_err(failed),
            At::Tcp { host, port } => {
                let listener = match host.as_str() {
                    "" => TcpListener::bind(("::", *port)).or_else(|_| TcpListener::bind(("0.0.0.0", *port))),
                    host => TcpListener::bind((host, *port)),
                };
                Listener::adopt(listener.map_err(failed)?.into())
            }
        }
    }

    /// Takes over a socket that somebody else listens on.
    pub fn adopt(socket: OwnedFd) -> Result<Listener, NbdError> {
        let at = adopted(&socket)
            .map_err(|e| NbdError::Listen { on: "an inherited descriptor".into(), source: Arc::new(e) })?;
        Ok(Listener { socket, at, named: None })
    }

    /// Takes over a socket by its number, which whoever started the process has handed over. The number stays open, too.
    pub fn inherited(number: i32) -> Result<Listener, NbdError> {
        use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
        // Our own descriptor, fetched like that of another process: then nobody has to promise that it exists.
        let fetched = pidfd_open(getpid(), PidfdFlags::empty())
            .and_then(|own| pidfd_getfd(own, number, PidfdGetfdFlags::empty()));
        let failed = |e: Errno| NbdError::Listen { on: format!("descriptor {number}"), source: Arc::new(e.into()) };
        Listener::adopt(fetched.map_err(failed)?)
    }

    /// Where: for port 0, the one that was chosen.
    pub fn at(&self) -> &At {
        &self.at
    }

    /// Whether other machines can reach it.
    pub fn is_beyond_this_machine(&self) -> bool {
        match &self.at {
            At::Unix(_) => false,
            At::Tcp { host, .. } => !host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback()),
        }
    }

    /// Takes the next connection; `WouldBlock` if there is none.
    pub fn accept(&self) -> io::Result<Channel> {
        let socket = rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        Channel::adopt(socket)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some((path, dev, ino)) = &self.named
            && std::fs::symlink_metadata(path).is_ok_and(|meta| (meta.dev(), meta.ino()) == (*dev, *ino))
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn bind_unix(path: &Path) -> io::Result<Listener> {
    let address = unix_address(path)?;
    let mut socket = unix_socket()?;
    // Its name in the file system gets the socket's own mode: nobody else can connect in between.
    let private = Mode::RUSR | Mode::WUSR;
    rustix::fs::fchmod(&socket, private)?;
    match rustix::net::bind(&socket, &address) {
        Err(Errno::ADDRINUSE) if is_stale(path) => {
            std::fs::remove_file(path)?;
            socket = unix_socket()?;
            rustix::fs::fchmod(&socket, private)?;
            rustix::net::bind(&socket, &address)?;
        }
        other => other?,
    }
    rustix::net::listen(&socket, BACKLOG)?;
    // By a name that stays good when the process changes its directory.
    let whole = std::path::absolute(path)?;
    let named = std::fs::symlink_metadata(path).ok().map(|meta| (whole, meta.dev(), meta.ino()));
    Ok(Listener { socket, at: At::Unix(path.to_owned()), named })
}

/// Whether it is a socket that nobody listens on.
fn is_stale(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    let refused = || -> io::Result<bool> {
        Ok(rustix::net::connect(&unix_socket()?, &unix_address(path)?) == Err(Errno::CONNREFUSED))
    };
    is_socket && refused().unwrap_or(false)
}

fn adopted(socket: &OwnedFd) -> io::Result<At> {
    if !sockopt::socket_acceptconn(socket)? {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "nobody listens on it"));
    }
    rustix::io::ioctl_fionbio(socket, true)?;
    let name = rustix::net::getsockname(socket)?;
    if name.address_family() == AddressFamily::UNIX {
        let address = rustix::net::SocketAddrUnix::try_from(name)?;
        let path = address.path_bytes().map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        return Ok(At::Unix(path.unwrap_or_default().into()));
    }
    let address = SocketAddr::try_from(name)?;
    Ok(At::Tcp { host: address.ip().to_string(), port: address.port() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: where to listen is understood. Method: a table.
    #[test]
    fn places() {
        let tcp = |host: &str, port| At::Tcp { host: host.into(), port };
        for (text, at) in [
            ("unix:/run/x", At::Unix("/run/x".into())),
            ("tcp:localhost:7", tcp("localhost", 7)),
            ("tcp:h", tcp("h", PORT)),
            ("tcp::7", tcp("", 7)),
            ("tcp:[::1]:7", tcp("::1", 7)),
            ("tcp:[::1]", tcp("::1", PORT)),
        ] {
            assert_eq!(listen_at(text).expect(text), at);
        }
        for text in ["", "unix:", "/run/x", "tcp:h:x", "tcp:h:70000", "tcp:[::1"] {
            listen_at(text).expect_err(text);
        }
    }

    /// Goal: a socket is private, a dead one is replaced, a living one is not, and its name goes with it. Method: the
    /// same path thrice.
    #[test]
    fn sockets_come_and_go() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("s");
        let at = At::Unix(path.clone());
        let first = Listener::bind(&at).expect("listen");
        assert_eq!(std::fs::symlink_metadata(&path).expect("there").mode() & 0o777, 0o600);
        assert!(!first.is_beyond_this_machine());
        assert!(matches!(Listener::bind(&at), Err(NbdError::Listen { .. })), "somebody listens");
        let client = Channel::connect(&at, std::time::Instant::now()).expect("connect");
        first.accept().expect("accept");
        drop((client, first));
        assert!(!path.exists());
        // A server that was killed leaves its name behind.
        let dead = unix_socket().expect("socket");
        rustix::net::bind(&dead, &unix_address(&path).expect("address")).expect("bind");
        drop(dead);
        drop(Listener::bind(&at).expect("replaces it"));
        std::fs::write(&path, "no socket").expect("write");
        assert!(Listener::bind(&at).is_err());
        assert!(path.exists());
        let any = Listener::bind(&At::Tcp { host: "127.0.0.1".into(), port: 0 }).expect("listen");
        assert!(!any.is_beyond_this_machine() && !matches!(any.at(), At::Tcp { port: 0, .. }));
        // One that was handed over is found by its number.
        let number = std::os::fd::AsRawFd::as_raw_fd(&any.socket);
        let same = Listener::inherited(number).expect("the same");
        assert_eq!(same.at(), any.at());
        let client = Channel::connect(same.at(), std::time::Instant::now() + std::time::Duration::from_secs(5));
        assert!(client.is_ok() && same.accept().is_ok());
        assert!(Listener::inherited(0).is_err() && Listener::inherited(i32::MAX).is_err(), "no socket, no descriptor");
        let all = Listener::bind(&At::Tcp { host: String::new(), port: 0 }).expect("listen");
        assert!(all.is_beyond_this_machine());
    }
}

//! The same under TLS, and who is turned away. Certificates are made by `openssl`, as those of users are.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use oleo_device::{Device, MemDevice};
use oleo_nbd::channel::{Channel, Interest, Pace};
use oleo_nbd::{At, ClientTls, Export, Listener, NbdError, ServeOptions, Server, ServerTls};

use crate::server::commands::model;
use crate::server::raw::*;

const PATIENCE: Duration = Duration::from_secs(60);

/// Certificates: `ours` and `theirs` are directories with an authority each, and a server and a client that it vouches
/// for; `anonymous` has ours' authority alone.
fn certificates() -> Option<&'static Path> {
    static MADE: OnceLock<Option<tempfile::TempDir>> = OnceLock::new();
    let dir = MADE.get_or_init(|| {
        let dir = tempfile::tempdir().expect("dir");
        let script = r#"set -e; cd "$1"
            for who in ours theirs; do mkdir $who; (cd $who
                openssl req -x509 -newkey ec:<(openssl ecparam -name prime256v1) -nodes -days 30 -subj "/CN=$who CA" -keyout ca-key.pem -out ca-cert.pem
                for side in server client; do
                    openssl req -newkey ec:<(openssl ecparam -name prime256v1) -nodes -subj "/CN=$side" -keyout $side-key.pem -out $side.csr
                    printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\n' >ext
                    openssl x509 -req -in $side.csr -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days 30 \
                        -extfile ext -out $side-cert.pem
                done); done
            mkdir anonymous; cp ours/ca-cert.pem anonymous"#;
        let out = Command::new("bash").args(["-c", script, "make"]).arg(dir.path()).output().ok()?;
        match out.status.success() {
            true => Some(dir),
            false => {
                assert!(std::env::var_os("CI").is_none(), "{}", String::from_utf8_lossy(&out.stderr));
                None
            }
        }
    });
    if dir.is_none() {
        oleo_sim::oracle::skip("openssl made no certificates");
    }
    dir.as_ref().map(|dir| dir.path())
}

fn device() -> Arc<dyn Device> {
    Arc::new(MemDevice::new(3 << 20))
}

fn server(dir: &Path, verify_peer: bool) -> Running {
    let tls = ServerTls::load(&dir.join("ours"), verify_peer).expect("certificates");
    Running::of(device(), ServeOptions::default().shared_writers(true).tls(tls))
}

fn begin(socket: &Path) -> Channel {
    let channel = Channel::connect(&At::Unix(socket.to_owned()), Instant::now() + PATIENCE).expect("connect");
    let pace = || Pace::new(PATIENCE, 0);
    channel.recv_all(&mut [0; 18], pace()).expect("greeting");
    let mut hello = vec![0, 0, 0, 3];
    hello.extend(b"IHAVEOPT");
    hello.extend([0, 0, 0, 5, 0, 0, 0, 0]);
    channel.send_all(&mut [std::io::IoSlice::new(&hello)], pace()).expect("send");
    let mut reply = [0; 20];
    channel.recv_all(&mut reply, pace()).expect("reply");
    assert_eq!(reply[12..16], [0, 0, 0, 1], "TLS may begin");
    channel
}

/// A client after `STARTTLS`: its bytes go through a channel that two threads feed.
fn upgrade(server: &Running, certificates: &Path, verify: bool, name: &str) -> Result<Raw, NbdError> {
    let tls = ClientTls::load(Some(certificates), verify)?;
    let channel = Arc::new(begin(&server.socket));
    channel.start_tls_client(&tls, name, Instant::now() + PATIENCE)?;
    let (near, far) = UnixStream::pair().expect("pair");
    let (mut from, out) = (far.try_clone().expect("clone"), channel.clone());
    std::thread::spawn(move || {
        let mut buf = vec![0; 100_000];
        while let Ok(n) = from.read(&mut buf) {
            if n == 0 || out.send_all(&mut [std::io::IoSlice::new(&buf[..n])], Pace::new(PATIENCE, 0)).is_err() {
                break;
            }
        }
        out.shutdown();
    });
    std::thread::spawn(move || {
        let (mut to, mut buf) = (far, vec![0; 100_000]);
        loop {
            match channel.try_recv(&mut buf) {
                Ok(0) => break,
                Ok(n) => to.write_all(&buf[..n]).expect("write"),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    channel.wait(Interest::RECV, None, None).expect("wait");
                }
                Err(_) => break,
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
    Ok(Raw::over(near.into()))
}

/// A handshake without its greeting, which went before TLS.
fn go(raw: &mut Raw) -> (u32, Vec<u8>) {
    raw.option(7, &[0, 0, 0, 0, 0, 0]);
    raw.option_reply(7)
}

/// Goal: under TLS the same is true. Method: the model of commands, with and without client certificates.
#[test]
fn is_as_a_vector() {
    let Some(dir) = certificates() else { return };
    for (verify_peer, who, name) in [(false, "anonymous", "localhost"), (true, "ours", "127.0.0.1")] {
        let server = server(dir, verify_peer);
        let mut raw = upgrade(&server, &dir.join(who), true, name).expect("TLS");
        raw.option(8, b"");
        assert_eq!(raw.option_reply(8).0, 1);
        assert_eq!(go(&mut raw).0, 3);
        assert_eq!(raw.option_reply(7).0, 1);
        // No context was chosen, so nothing is asked about extents.
        model(&mut raw, false, true, 11);
        drop(raw);
    }
}

/// Goal: other machines write without a certificate only if that is said. Method: starts with and without.
#[test]
fn anonymous_writers() {
    let Some(dir) = certificates() else { return };
    let start = |host: &str, verify_peer, read_only, anonymous| {
        let tls = ServerTls::load(&dir.join("ours"), verify_peer).expect("certificates");
        let listener = Listener::bind(&At::Tcp { host: host.into(), port: 0 }).expect("listen");
        let export = Export { name: "a".into(), description: String::new(), device: device(), read_only };
        let options = ServeOptions::default().tls(tls).anonymous(anonymous);
        Server::start(vec![export], vec![listener], options, Box::new(|_| {})).map(drop)
    };
    start("", false, false, false).expect_err("anyone could write");
    start("", false, false, true).expect("as told");
    start("", false, true, false).expect("read only");
    start("", true, false, false).expect("with certificates");
    start("127.0.0.1", false, false, false).expect("here");
}

/// Goal: whoever cannot show what is demanded is turned away, on both sides. Method: wrong authorities, no certificate,
/// a wrong name; and a client that does not care.
#[test]
fn strangers() {
    let Some(dir) = certificates() else { return };
    let open = server(dir, false);
    assert!(
        matches!(upgrade(&open, &dir.join("theirs"), true, "localhost"), Err(NbdError::Tls { .. })),
        "a stranger's"
    );
    assert!(
        matches!(upgrade(&open, &dir.join("ours"), true, "example.com"), Err(NbdError::Tls { .. })),
        "another name"
    );
    let mut careless = upgrade(&open, &dir.join("theirs"), false, "example.com").expect("told not to look");
    assert_eq!(go(&mut careless).0, 3);
    let closed = server(dir, true);
    for who in ["anonymous", "theirs"] {
        // The client learns of it when it asks for something: its part of the handshake is over by then.
        if let Ok(mut raw) = upgrade(&closed, &dir.join(who), false, "localhost") {
            let _ = raw.stream.write_all(b"IHAVEOPT\0\0\0\x03\0\0\0\0");
            assert!(raw.is_closed(), "{who}");
        }
    }
    let mut known = upgrade(&closed, &dir.join("ours"), true, "localhost").expect("ours");
    assert_eq!(go(&mut known).0, 3);
    ServerTls::load(&dir.join("anonymous"), false).expect_err("no key");
    ClientTls::load(Some(&dir.join("none")), true).expect_err("no directory");
}

/// Goal: nothing goes in the clear. Method: a client that asks without TLS; bytes of the old kind where TLS should begin;
/// silence there.
#[test]
fn nothing_in_the_clear() {
    let Some(dir) = certificates() else { return };
    let tls = ServerTls::load(&dir.join("ours"), false).expect("certificates");
    let options = ServeOptions::default().tls(tls).handshake_max(Duration::from_secs(1));
    let server = Running::of(device(), options);
    let mut raw = server.connect();
    raw.greet();
    assert_eq!(go(&mut raw).0, (1 << 31) + 5, "TLS first");
    raw.option(3, &[]);
    assert_eq!(raw.option_reply(3).0, (1 << 31) + 5);
    raw.option(1, b"disk");
    assert!(raw.is_closed());
    // What is sent before TLS is taken for TLS, not for an option after it.
    let channel = begin(&server.socket);
    let mut option = b"IHAVEOPT".to_vec();
    option.extend([0; 8]);
    channel.send_all(&mut [std::io::IoSlice::new(&option)], Pace::new(PATIENCE, 0)).expect("send");
    let tls = ClientTls::load(Some(&dir.join("ours")), true).expect("certificates");
    channel.start_tls_client(&tls, "localhost", Instant::now() + PATIENCE).expect_err("cut off");
    let silent = begin(&server.socket);
    let start = Instant::now();
    let mut byte = [0; 100];
    while !matches!(silent.try_recv(&mut byte), Ok(0)) {
        assert!(start.elapsed() < PATIENCE, "it is not waited for");
        silent.wait(Interest::RECV, Some(start + PATIENCE), None).expect("wait");
    }
}

/// Goal: our own client does under TLS what it does without it, and believes no other authority. Method: threads that
/// write and read their own parts over several connections.
#[test]
fn our_client() {
    let Some(dir) = certificates() else { return };
    let server = server(dir, true);
    let uri = |who: &str| {
        let mut uri = oleo_nbd::Uri::new(At::Unix(server.socket.clone()), "");
        (uri.tls, uri.tls_certificates) = (true, Some(dir.join(who)));
        uri
    };
    let options = oleo_nbd::ClientOptions::default();
    let dev = oleo_nbd::NbdDevice::connect(&uri("ours"), true, &options).expect("connect");
    std::thread::scope(|scope| {
        for n in 0..4u64 {
            let dev = &dev;
            scope.spawn(move || {
                for round in 0..10u64 {
                    let len = [700_000, 4096, 13][(round % 3) as usize];
                    let (at, data) = (n * 750_000 + round, vec![(n * 10 + round) as u8 + 1; len]);
                    let mut buf = vec![0; len];
                    dev.write_at(at, &data).expect("write");
                    dev.read_at(at, &mut buf).expect("read");
                    assert!(buf == data, "thread {n} round {round}");
                }
            });
        }
    });
    dev.flush().expect("flush");
    assert_eq!(dev.stats().map(|stats| stats.reconnects), Some(0));
    let refused = oleo_nbd::NbdDevice::connect(&uri("theirs"), true, &options);
    assert!(matches!(refused, Err(NbdError::Tls { .. })), "{:?}", refused.err());
}

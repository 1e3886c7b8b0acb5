//! `oleo serve nbd`, and the programs of others as its clients.

use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use oleo_sim::oracle::{Scratch, oracle, skip};

use crate::common::{fails_with, ok, run};
use crate::nbd::harness::{OLEO, Process, nbdsh, nbdsh_command, same, sparse, tool, try_tool};

const MIB: u64 = 1 << 20;

/// Goal: a client learns the truth: lengths that are no multiple of anything, what can be done, names, block sizes. Method:
/// nbdinfo on one export, on a list, and with a server that it starts itself with a socket that it hands over.
#[test]
fn nbdinfo_is_told_the_truth() {
    let scratch = Scratch::new().unwrap();
    let (one, two) = (scratch.path().join("one"), scratch.path().join("two img"));
    sparse(&one, 10 * MIB + 777, &[(MIB, 4096, 1)]);
    sparse(&two, 3, &[]);
    let server = Process::oleo(&[&one], &[]);
    let info = |uri: &str| -> serde_json::Value {
        serde_json::from_str(&tool("nbdinfo", &["--json", "--no-content", uri])).unwrap()
    };
    let shown = info(&server.uri(""));
    assert_eq!(shown["protocol"], "newstyle-fixed");
    assert_eq!(shown["structured"], true);
    let export = &shown["exports"][0];
    assert_eq!(export["export-size"], 10 * MIB + 777);
    for (name, value) in [
        ("is_read_only", false),
        ("can_flush", true),
        ("can_fua", true),
        ("can_trim", true),
        ("can_zero", true),
        ("can_fast_zero", true),
        ("can_cache", true),
        ("can_df", true),
        ("can_multi_conn", true),
    ] {
        assert_eq!(export[name], value, "{name}: {export}");
    }
    assert_eq!(export["contexts"], serde_json::json!(["base:allocation"]));
    assert_eq!(export["block_size_minimum"], 1);
    assert_eq!(export["block_size_maximum"], 32 * MIB);
    assert!(server.end().success());

    let server = Process::oleo(&[&one, &two], &["--read-only"]);
    let list: serde_json::Value =
        serde_json::from_str(&tool("nbdinfo", &["--json", "--no-content", "--list", &server.uri("")])).unwrap();
    let names: Vec<_> = list["exports"].as_array().unwrap().iter().map(|e| e["export-name"].clone()).collect();
    assert_eq!(names, ["one", "two img"]);
    assert_eq!(info(&server.uri("two%20img"))["exports"][0]["is_read_only"], true);
    assert!(!try_tool("nbdinfo", &[server.uri("three")]).0.success(), "there is none of that name");
    drop(server);

    let size = tool("nbdinfo", &["--size", "--", "[", OLEO, "serve", "nbd", one.to_str().unwrap(), "]"]);
    assert_eq!(size.trim(), (10 * MIB + 777).to_string());
}

/// Goal: an image is copied out and in, whole, and stays sparse. Method: nbdcopy both ways, with many connections.
#[test]
fn nbdcopy_both_ways() {
    let scratch = Scratch::new().unwrap();
    let at = |name: &str| scratch.path().join(name);
    let len = 64 * MIB + 4096 * 3;
    sparse(&at("from"), len, &[(0, 70_000, 1), (20 * MIB + 5, 3 << 20, 2), (len - 100, 100, 3)]);
    sparse(&at("to"), len, &[(40 * MIB, 1 << 20, 4)]);
    let from = Process::oleo(&[&at("from")], &["--read-only"]);
    tool("nbdcopy", &[&from.uri(""), at("out").to_str().unwrap()]);
    assert!(same(&at("from"), &at("out")));
    assert!(std::fs::metadata(at("out")).unwrap().blocks() * 512 < 8 * MIB, "holes were not told of");
    let to = Process::oleo(&[&at("to")], &[]);
    tool("nbdcopy", &["--flush", &from.uri(""), &to.uri("")]);
    assert!(to.end().success());
    assert!(same(&at("from"), &at("to")));
    assert!(std::fs::metadata(at("to")).unwrap().blocks() * 512 < 8 * MIB, "zeros were written as bytes");
}

/// Goal: each command does what the protocol says, at odd offsets and at the edges; what makes no sense has its own error.
/// Method: a script of nbdsh, and the file afterwards.
#[test]
fn each_command() {
    let scratch = Scratch::new().unwrap();
    let image = scratch.path().join("image");
    sparse(&image, 4 * MIB + 123, &[(0, 65_536, 1)]);
    let server = Process::oleo(&[&image], &[]);
    nbdsh(
        &server.uri(""),
        r#"
import errno
size = h.get_size()
assert size == 4 * 1024 * 1024 + 123
h.pwrite(b"a" * 513, 1)
h.pwrite(b"b" * 100, size - 100, nbd.CMD_FLAG_FUA)
h.zero(1000, 3000)
h.zero(65536, 1 << 20, nbd.CMD_FLAG_NO_HOLE)
h.zero(65536, 2 << 20, nbd.CMD_FLAG_FAST_ZERO)
h.trim(4096, 8192)
h.cache(65536, 0)
h.flush()
assert h.pread(513, 1) == b"a" * 513
assert h.pread(100, size - 100) == b"b" * 100
assert h.pread(1000, 3000) == bytes(1000)
assert h.pread_structured(65536, 1 << 20, lambda data, at, kind, error: None, nbd.CMD_FLAG_DF) == bytes(65536)
extents = []
def take(context, offset, entries, error):
    extents.extend(zip(entries[0::2], entries[1::2]))
h.block_status(size, 0, take)
assert sum(length for length, _ in extents) == size, extents
assert any(flags == 3 for _, flags in extents), extents
h.set_strict_mode(0)
def fails(number, call):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == number, (error, number)
        return
    raise AssertionError("it did not fail")
fails(errno.EINVAL, lambda: h.pread(1, size))
fails(errno.EINVAL, lambda: h.pread(2, size - 1))
fails(errno.ENOSPC, lambda: h.pwrite(b"xx", size - 1))
fails(errno.EINVAL, lambda: h.trim(2, size - 1))
fails(errno.ENOSPC, lambda: h.zero(2, size - 1))
fails(errno.EINVAL, lambda: h.trim(512, 0, 1 << 9))
assert h.pread(1, 1) == b"a"
"#,
    );
    assert!(server.end().success());
    let bytes = std::fs::read(&image).unwrap();
    assert_eq!((&bytes[1..514], &bytes[bytes.len() - 100..]), (&[b'a'; 513][..], &[b'b'; 100][..]));

    let server = Process::oleo(&[&image], &["--read-only"]);
    nbdsh(
        &server.uri(""),
        r#"
import errno
h.set_strict_mode(0)
for call in [lambda: h.pwrite(b"x", 0), lambda: h.trim(512, 0), lambda: h.zero(512, 0)]:
    try:
        call()
        raise AssertionError("it did not fail")
    except nbd.Error as error:
        assert error.errnum == errno.EPERM, error
assert h.pread(1, 1) == b"a"
"#,
    );
    assert!(server.end().success());
    assert!(bytes == std::fs::read(&image).unwrap());
}

/// Goal: qemu reads, writes, converts and compares, and sees where there is nothing.
#[test]
fn qemu() {
    let scratch = Scratch::new().unwrap();
    let at = |name: &str| scratch.path().join(name);
    sparse(&at("image"), 32 * MIB, &[(0, 1 << 20, 1), (16 * MIB, 1 << 20, 2)]);
    let server = Process::oleo(&[&at("image")], &[]);
    let uri = server.uri("");
    let info: serde_json::Value = serde_json::from_str(&tool("qemu-img", &["info", "--output=json", &uri])).unwrap();
    assert_eq!(info["virtual-size"], 32 * MIB);
    let (copy, qcow) = (at("copy"), at("qcow"));
    let (copy, qcow) = (copy.to_str().unwrap(), qcow.to_str().unwrap());
    tool("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, qcow]);
    tool("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", &uri, qcow]);
    tool("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, copy]);
    assert!(same(&at("image"), &at("copy")));
    let map: serde_json::Value =
        serde_json::from_str(&tool("qemu-img", &["map", "-f", "raw", "--output=json", &uri])).unwrap();
    let zeros = map.as_array().unwrap().iter().filter(|e| e["zero"] == true && e["data"] == false);
    let bytes: u64 = zeros.map(|e| e["length"].as_u64().unwrap()).sum();
    assert_eq!(bytes, 30 * MIB, "{map}");
    tool(
        "qemu-io",
        &[
            "-f",
            "raw",
            "-c",
            "write -P 7 1k 5k",
            "-c",
            "write -z 8M 1M",
            "-c",
            "write -f -P 9 12M 64k",
            "-c",
            "discard 0 512",
            "-c",
            "flush",
            "-c",
            "read -P 7 1k 5k",
            "-c",
            "read -P 0 8M 1M",
            "-c",
            "read -P 9 12M 64k",
            &uri,
        ],
    );
    // Onto the server, over what is there.
    tool("qemu-img", &["convert", "-n", "-f", "qcow2", "-O", "raw", qcow, &uri]);
    assert!(server.end().success());
    assert!(same(&at("image"), &at("copy")));
}

/// Goal: what many requests at a time have written is what they read. Method: fio verifies its own checksums.
#[test]
fn fio_verifies() {
    let scratch = Scratch::new().unwrap();
    let image = scratch.path().join("image");
    sparse(&image, 64 * MIB, &[]);
    let server = Process::oleo(&[&image], &[]);
    for (block, depth) in [("4k-4k", "16"), ("1m-1m", "4"), ("512-70k", "8")] {
        let uri = format!("--uri={}", server.uri(""));
        let (sizes, depth) = (format!("--bsrange={block}"), format!("--iodepth={depth}"));
        tool(
            "fio",
            &[
                "--name=x",
                "--ioengine=nbd",
                &uri,
                "--rw=randwrite",
                &sizes,
                &depth,
                "--size=64m",
                "--io_size=32m",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--verify_state_save=0",
                "--randseed=7",
            ],
        );
    }
    assert!(server.end().success());
}

/// Goal: strangers cost others nothing. Method: garbage, half a handshake, connections that say nothing, more of them than are
/// allowed; then a client that behaves.
#[test]
fn strangers() {
    let scratch = Scratch::new().unwrap();
    let image = scratch.path().join("image");
    sparse(&image, MIB, &[(0, 4096, 1)]);
    let server = Process::oleo(&[&image], &["--connections", "8"]);
    let connect = || UnixStream::connect(server.socket()).unwrap();
    for bytes in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], &[0; 3], b"\0\0\0\x03IHAVEOPT\0\0\0\x07\xff\xff\xff\xff"]
    {
        let mut stranger = connect();
        let _ = stranger.write_all(bytes);
        let mut said = Vec::new();
        stranger.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stranger.shutdown(std::net::Shutdown::Write).unwrap();
        match stranger.read_to_end(&mut said) {
            // What was sent and not read any more.
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {}
            other => drop(other.unwrap_or_else(|e| panic!("{bytes:?} keeps a connection: {e}"))),
        }
    }
    // One is left for whoever behaves.
    let silent: Vec<UnixStream> = (0..7).map(|_| connect()).collect();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(tool("nbdinfo", &["--size", &server.uri("")]).trim(), MIB.to_string());
    let more: Vec<UnixStream> = (0..30).map(|_| connect()).collect();
    drop(more);
    drop(silent);
    std::thread::sleep(Duration::from_millis(200));
    nbdsh(&server.uri(""), "assert len(h.pread(4096, 0)) == 4096");
    assert!(server.end().success());
}

/// Goal: an image is used by one at a time, in all directions, and by many who only read. Method: servers, mounts and commands on
/// the same file; two clients of one export.
#[test]
fn one_at_a_time() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "300M", "i"]);
    let image = dir.join("i");
    let server = Process::oleo(&[&image], &[]);
    let listen = |name: &str| format!("unix:{}", dir.join(name).display());
    assert!(fails_with(dir, 1, &["serve", "nbd", "--listen", &listen("s2"), "i"]).contains("in use"));
    assert!(!dir.join("s2").exists(), "a socket was left behind");
    assert!(fails_with(dir, 1, &["ls", "i"]).contains("in use"));
    assert!(fails_with(dir, 1, &["mkdir", "i", "d"]).contains("in use"));
    assert!(fails_with(dir, 1, &["mkfs", "-f", "i"]).contains("in use"));
    // The first client holds the export until it goes.
    let mut first = nbdsh_command(&server.uri(""), "h.pread(1, 0); print('on', flush=True); input()")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 2];
    first.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    let refused = fails_with(dir, 1, &["ls", &server.uri("")]);
    assert!(refused.contains("in use by"), "{refused}");
    first.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(first.wait().unwrap().success());
    ok(dir, &["mkdir", &server.uri(""), "d"]);
    assert!(server.end().success());
    assert_eq!(ok(dir, &["ls", "i"]), "d\n");

    // Reading is for all, also beside others that read.
    let server = Process::oleo(&[&image], &["--read-only"]);
    let second = Process::oleo(&[&image], &["--read-only"]);
    assert_eq!(ok(dir, &["ls", "i"]), "d\n");
    assert_eq!(ok(dir, &["ls", &server.uri("")]), "d\n");
    assert_eq!(ok(dir, &["ls", &second.uri("")]), "d\n");
    assert!(fails_with(dir, 1, &["mkdir", &server.uri(""), "e"]).contains("read-only"));
    assert!(fails_with(dir, 1, &["mkdir", "i", "e"]).contains("in use"));
    assert!(second.end().success() && server.end().success());
}

/// Goal: wrong usage is said to be that, and what does not work has its code. Method: a table.
#[test]
fn refusals() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    std::fs::create_dir(dir.join("d")).unwrap();
    for name in ["i", "d/i", "taken"] {
        sparse(&dir.join(name), MIB, &[]);
    }
    for (code, args, says) in [
        (2, &["i"][..], "--listen"),
        (2, &["--listen", "/tmp/x", "i"], "unix:PATH"),
        (2, &["--listen", "tcp::0", "i"], "without TLS"),
        (2, &["--listen", "unix:s", "i", "d/i"], "two exports"),
        (2, &["--listen", "unix:s", "--export", "a", "i", "d/i"], "names"),
        (2, &["--listen", "unix:s", "--memory", "1k", "i"], "memory"),
        (1, &["--listen", "unix:s", "missing"], "No such file"),
        (1, &["--listen", "unix:s", "d"], "neither a regular file"),
        (1, &["--listen", "unix:taken", "i"], "cannot listen"),
        (1, &["--listen", "unix:no/such/dir", "i"], "cannot listen"),
        (2, &["--listen", "unix:s", "s9://bucket"], "unknown scheme"),
    ] {
        let line = fails_with(dir, code, &[&["serve", "nbd"], args].concat());
        assert!(line.contains(says), "{args:?}: {line}");
    }
    assert!(!dir.join("s").exists());
    // Of the variables of a socket that is handed over, another process's are none of ours.
    let output = Command::new(OLEO)
        .args(["serve", "nbd", "i"])
        .current_dir(dir)
        .env("LISTEN_PID", "1")
        .env("LISTEN_FDS", "1")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}

/// Goal: names of any letters are found by the name that the server prints. Method: an export and a socket with spaces, umlauts
/// and signs that mean something in names; the printed name given to nbdinfo and to us.
#[test]
fn odd_names() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "300M", "i mage"]);
    let socket = dir.join("s o?ck&et=ü%41");
    let server = Process::oleo_at(&socket, &[&dir.join("i mage")], &["--export", "a b/ü?&=#%41"]);
    let line = server.first_line();
    assert!(line.starts_with("serving ") && line.contains("i mage (300.00MiB) as nbd+unix:///"), "{line}");
    let uri = line.rsplit(" as ").next().unwrap().to_owned();
    assert_eq!(tool("nbdinfo", &["--size", &uri]).trim(), (300 * MIB).to_string());
    ok(dir, &["mkdir", &uri, "d"]);
    assert_eq!(ok(dir, &["ls", &uri]), "d\n");
    assert!(server.end().success());
    assert!(!socket.exists(), "the socket's name goes with the server");
}

/// Goal: after --announce it lets go of the terminal and still goes on, and its socket goes with it. Method: wait for the end of
/// standard output.
#[test]
fn announces() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    sparse(&dir.join("i"), MIB, &[]);
    let mut child = Command::new(OLEO)
        .args(["serve", "nbd", "--announce", "--listen", "unix:s", "i"])
        .current_dir(dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "ready\n");
    let uri = format!("nbd+unix:///?socket={}", dir.join("s").display());
    assert_eq!(tool("nbdinfo", &["--size", &uri]).trim(), MIB.to_string());
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!dir.join("s").exists());
}

/// Goal: what was flushed survives kill -9 of the server, and its socket does not stand in the way of the next. Method: write,
/// flush, kill, serve on the same socket, read; the same with a client that is killed while it writes.
#[test]
fn killed() {
    let scratch = Scratch::new().unwrap();
    let (image, socket) = (scratch.path().join("i"), scratch.path().join("s"));
    sparse(&image, 256 * MIB, &[]);
    let server = Process::oleo_at(&socket, &[&image], &[]);
    nbdsh(&server.uri(""), "h.pwrite(b'x' * 100000, 12345); h.flush()");
    server.kill();
    assert!(socket.exists(), "killed");
    let server = Process::oleo_at(&socket, &[&image], &[]);
    let mut client =
        nbdsh_command(&server.uri(""), "print('on', flush=True)\nwhile True: h.pwrite(b'y' * 1000000, 1 << 20)")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
    let mut said = [0; 2];
    client.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    client.kill().unwrap();
    client.wait().unwrap();
    let check = "assert h.pread(100000, 12345) == b'x' * 100000";
    // The server sees the end of the first client in a moment.
    let mut tries = 0;
    while !nbdsh_command(&server.uri(""), check).status().unwrap().success() {
        tries += 1;
        assert!(tries < 50, "{}", server.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(server.end().success());
}

/// Goal: without room below the image a client is told ENOSPC, and told no lie by a flush; there is room again, and it goes on.
/// Method: a sparse image on a small tmpfs.
#[test]
fn a_full_disk() {
    if oracle().is_none() {
        return skip("a file system of its own needs root");
    }
    let scratch = Scratch::new().unwrap();
    let dir = scratch.dir("small").unwrap();
    tool("mount", &["-t", "tmpfs", "-o", "size=4m", "tmpfs", dir.to_str().unwrap()]);
    struct Unmount<'a>(&'a Path);
    impl Drop for Unmount<'_> {
        fn drop(&mut self) {
            let _ = Command::new("umount").args(["-l"]).arg(self.0).status();
        }
    }
    let _unmount = Unmount(&dir);
    sparse(&dir.join("i"), 64 * MIB, &[]);
    std::fs::write(dir.join("ballast"), vec![1; 2 << 20]).unwrap();
    let server = Process::oleo(&[&dir.join("i")], &[]);
    nbdsh(
        &server.uri(""),
        r#"
import errno
h.pwrite(b"k" * 4096, 0)
h.flush()
try:
    for at in range(16):
        h.pwrite(b"z" * (1 << 20), (8 + at) << 20)
    raise AssertionError("there was room")
except nbd.Error as error:
    assert error.errnum == errno.ENOSPC, error
h.flush()
assert h.pread(4096, 0) == b"k" * 4096
"#,
    );
    std::fs::remove_file(dir.join("ballast")).unwrap();
    nbdsh(&server.uri(""), "h.pwrite(b'z' * 4096, 60 << 20); h.flush()");
    assert!(server.end().success());
}

/// Goal: a server may serve what is another server's. Method: two servers, one behind the other.
#[test]
fn other_places_can_be_served() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "300M", "i"]);
    let inner = Process::oleo(&[&dir.join("i")], &[]);
    let uri = inner.uri("");
    let outer = Process::start(OLEO, |socket| {
        ["serve", "nbd", "--listen", &format!("unix:{socket}"), &uri].map(str::to_owned).into()
    });
    ok(dir, &["mkdir", &outer.uri(""), "d"]);
    assert_eq!(ok(dir, &["ls", &outer.uri("")]), "d\n");
    assert!(outer.end().success() && inner.end().success());
    assert_eq!(String::from_utf8_lossy(&run(dir, &["ls", "i"]).stdout), "d\n");
}

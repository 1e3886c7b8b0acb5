//! `nbd://…` in place of an image, over the servers of others.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use oleo_sim::oracle::{Scratch, oracle};
use rustix::process::Signal;

use crate::common::{fails_with, ok, run};
use crate::nbd::harness::{Process, nbdsh, same, sparse, tool};
use crate::nbd::mounted;

const MIB: u64 = 1 << 20;

/// nbdkit in the foreground on a socket.
fn nbdkit(args: &[&str]) -> Process {
    Process::start("nbdkit", |socket| {
        let own = ["--foreground", "--exit-with-parent", "--unix", socket];
        own.iter().chain(args).map(|&arg| arg.to_owned()).collect()
    })
}

/// nbdfuse, which makes a file of an export, until it is unmounted.
struct File {
    child: Child,
    at: PathBuf,
}

impl File {
    fn of(at: PathBuf, uri: &str) -> File {
        std::fs::create_dir(&at).unwrap();
        let child = Command::new("nbdfuse").arg(at.join("file")).arg(uri).stdin(Stdio::null()).spawn();
        let mut child = child.unwrap_or_else(|e| panic!("nbdfuse: {e} (scripts/test installs what tests need)"));
        let start = Instant::now();
        while !at.join("file").exists() {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("nbdfuse ended ({status})");
            }
            assert!(start.elapsed() < Duration::from_secs(30), "nbdfuse does not mount");
            std::thread::sleep(Duration::from_millis(20));
        }
        File { child, at }
    }

    fn path(&self) -> PathBuf {
        self.at.join("file")
    }

    fn end(mut self) {
        tool("fusermount3", &["-u", self.at.to_str().unwrap()]);
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = Command::new("fusermount3").arg("-uz").arg(&self.at).status();
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A directory with a tree to fill in.
fn source(dir: &Path) -> PathBuf {
    let src = dir.join("src");
    std::fs::create_dir_all(src.join("sub/deep")).unwrap();
    std::fs::write(src.join("small"), "small").unwrap();
    sparse(&src.join("sub/large"), 20 * MIB + 5, &[(0, 3 << 20, 1), (15 * MIB, 100_000, 2)]);
    for i in 0..300 {
        std::fs::write(src.join(format!("sub/deep/{i}")), vec![i as u8; 10 + i * 37]).unwrap();
    }
    src
}

/// All kinds of commands on an image that is named like this; it is sound afterwards.
fn use_it(dir: &Path, uri: &str, size: Option<&str>) {
    let sized: &[&str] = size.map_or(&[], |_| &["--size"]);
    let made = ok(dir, &[&["mkfs", "--rootdir", "src", "--label", "far"], sized, size.as_slice(), &[uri]].concat());
    assert!(made.contains("btrfs"), "{made}");
    assert!(fails_with(dir, 1, &["mkfs", uri]).contains("holds"), "it is overwritten only by force");
    assert_eq!(ok(dir, &["cat", uri, "small"]), "small");
    ok(dir, &["put", uri, "src/sub", "again"]);
    ok(dir, &["subvolume", "create", uri, "v"]);
    ok(dir, &["cp", "--reflink", uri, "again/large", "v"]);
    ok(dir, &["subvolume", "snapshot", "-r", uri, "v", "w"]);
    ok(dir, &["rm", "-r", uri, "again/deep"]);
    assert!(ok(dir, &["filesystem", "show", uri]).contains("nbd"), "it names its device");
    assert!(ok(dir, &["inspect", "dump-super", uri]).contains("far"));
    ok(dir, &["send", "--subvol", "w", "-f", "stream", uri]);
    ok(dir, &["mkdir", uri, "received"]);
    ok(dir, &["receive", "--into", "received", "-f", "stream", uri]);
    ok(dir, &["balance", "start", "-dusage=50", uri]);
    ok(dir, &["filesystem", "trim", uri]);
    assert!(ok(dir, &["check", "--data", uri]).contains("clean"));
    let _ = std::fs::remove_dir_all(dir.join("out"));
    ok(dir, &["restore", uri, "out"]);
    assert!(same(&dir.join("src/sub/large"), &dir.join("out/received/w/large")));
}

/// Goal: every command takes the name of an export in place of an image, whatever the server can and cannot. Method: servers of
/// nbdkit that know no structured replies, no fixed newstyle, only one connection, only blocks of 512 or 4096 bytes, no zeroes,
/// no trim, that are slow or give no extents; a session of commands on each.
#[test]
fn over_nbdkit() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    source(dir);
    for args in [
        &["memory", "512M"][..],
        &["--no-sr", "memory", "512M"],
        &["--mask-handshake=0", "memory", "512M"],
        &["--filter=blocksize-policy", "memory", "512M", "blocksize-minimum=4096", "blocksize-error-policy=error"],
        &["--filter=blocksize-policy", "memory", "512M", "blocksize-minimum=512", "blocksize-error-policy=error"],
        &["--filter=multi-conn", "memory", "512M", "multi-conn-mode=disable"],
        &["--filter=nozero", "--filter=noextents", "memory", "512M", "zeromode=none"],
        &["--filter=fua", "memory", "512M", "fuamode=emulate"],
        &["--filter=delay", "memory", "512M", "rdelay=1ms", "wdelay=1ms"],
    ] {
        eprintln!("nbdkit {args:?}");
        let server = nbdkit(args);
        use_it(dir, &server.uri(""), None);
    }
}

/// Goal: what was made over the network is what is in the file, for the kernel and `btrfs check` too. Method: nbdkit's file plugin,
/// whose file is mounted when the server has ended; the same below an offset, and at a length of its own.
#[test]
fn the_kernel_agrees() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    source(dir);
    sparse(&dir.join("i"), 400 * MIB + 1000, &[]);
    let server = nbdkit(&["file", dir.join("i").to_str().unwrap()]);
    use_it(dir, &server.uri(""), Some("350M"));
    assert!(fails_with(dir, 1, &["mkfs", "-f", "--size", "1G", &server.uri("")]).contains("cannot grow"));
    assert!(fails_with(dir, 2, &["mkfs", "-f", "--shrink", &server.uri("")]).contains("only an image file"));
    assert!(
        fails_with(dir, 2, &["mkfs", "-f", "--rootdir", "src", "--reflink", &server.uri("")]).contains("image file")
    );
    assert!(server.end().success());
    if let Some(oracle) = oracle() {
        oracle.must_be_sound(&[dir.join("i")], "over nbdkit").unwrap();
        let mounted = oracle.mount(&[dir.join("i")], "").unwrap();
        assert!(same(&dir.join("src/sub/large"), &mounted.path().join("received/w/large")));
        std::fs::write(mounted.path().join("kernel"), "was here").unwrap();
        mounted.unmount().unwrap();
        let server = nbdkit(&["file", dir.join("i").to_str().unwrap()]);
        assert_eq!(ok(dir, &["cat", &server.uri(""), "kernel"]), "was here");
    }
    sparse(&dir.join("offset"), 302 * MIB, &[]);
    let server = nbdkit(&["file", dir.join("offset").to_str().unwrap()]);
    ok(dir, &["mkfs", "--offset", "1M", &server.uri("")]);
    ok(dir, &["put", "--offset", "1M", &server.uri(""), "src/small", "/"]);
    assert_eq!(ok(dir, &["cat", "--offset", "1M", &server.uri(""), "small"]), "small");
    assert!(server.end().success());
    assert_eq!(ok(dir, &["cat", "--offset", "1M", "offset", "small"]), "small");
    let bytes = std::fs::read(dir.join("offset")).unwrap();
    assert!(bytes[..MIB as usize].iter().all(|&byte| byte == 0), "nothing before the offset is touched");
}

/// Goal: a qcow2 image is used through qemu-nbd, and both images are sound. Method: as above; then `qemu-img check`, and a
/// conversion for the kernel.
#[test]
fn over_qemu_nbd() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    source(dir);
    let qcow = dir.join("q.qcow2").display().to_string();
    tool("qemu-img", &["create", "-f", "qcow2", &qcow, "512M"]);
    let server = Process::start("qemu-nbd", |socket| {
        ["--persistent", "--shared=8", "--format=qcow2", "--discard=unmap", "--socket", socket, &qcow]
            .map(str::to_owned)
            .into()
    });
    use_it(dir, &server.uri(""), None);
    server.end();
    tool("qemu-img", &["check", &qcow]);
    tool("qemu-img", &["convert", "-O", "raw", &qcow, dir.join("raw").to_str().unwrap()]);
    if let Some(oracle) = oracle() {
        oracle.must_be_sound(&[dir.join("raw")], "over qemu-nbd").unwrap();
    }
}

/// Goal: an image of Ceph is a device through qemu-nbd: for commands, for mounts that write, under kill -9 of server and of mount, and
/// the kernel takes turns with us on it. Method: as over qemu-nbd, the loads of `mounted`, and nbdfuse, which makes a file of the export
/// that the kernel mounts and writes.
#[test]
#[ignore = "needs Ceph: `cargo xtask stores rbd`"]
fn over_ceph() {
    let image = std::env::var("OLEO_TEST_RBD").expect("`cargo xtask stores rbd` sets it");
    let oracle = oracle().expect("`cargo xtask stores` demands it");
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    source(dir);
    let serve = |socket: &Path| {
        Process::start_at(socket, "qemu-nbd", |socket| {
            ["--persistent", "--shared=8", "--format=raw", "--discard=unmap", "--socket", socket, &image]
                .map(str::to_owned)
                .into()
        })
    };
    let raw = || {
        let to = dir.join("raw");
        tool("qemu-img", &["convert", "-f", "raw", "-O", "raw", &image, to.to_str().unwrap()]);
        to
    };
    let socket = dir.join("s");
    let server = serve(&socket);
    use_it(dir, &server.uri(""), None);
    // The kernel on the image itself.
    let file = File::of(dir.join("fuse"), &server.uri(""));
    let kernel = oracle.mount(&[file.path()], "").unwrap();
    assert!(same(&dir.join("src/sub/large"), &kernel.path().join("received/w/large")));
    std::fs::copy(dir.join("src/sub/large"), kernel.path().join("kernel")).unwrap();
    kernel.unmount().unwrap();
    file.end();
    assert!(ok(dir, &["check", "--data", &server.uri("")]).contains("clean"));
    std::fs::remove_dir_all(dir.join("out")).unwrap();
    ok(dir, &["restore", &server.uri(""), "out"]);
    assert!(same(&dir.join("src/sub/large"), &dir.join("out/kernel")), "what the kernel wrote");
    assert!(server.end().success());
    oracle.must_be_sound(&[raw()], "over an image of Ceph").unwrap();
    mounted::servers_are_killed(dir, &serve, &raw);
    mounted::mounts_are_killed(dir, serve(&socket), &raw);
}

/// Goal: a volume may have some of its devices on the network. Method: raid1 over a file and an export; each half is enough, and the
/// kernel mounts both.
#[test]
fn several_devices() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    source(dir);
    sparse(&dir.join("far"), 400 * MIB, &[]);
    let server = nbdkit(&["file", dir.join("far").to_str().unwrap()]);
    let uri = server.uri("");
    let more = ["-d", "raid1", "-m", "raid1", "--size", "400M", "--rootdir", "src", "near"];
    ok(dir, &[&["mkfs"][..], &more, &[&uri]].concat());
    ok(dir, &["put", "--device", &uri, "near", "src/small", "second"]);
    ok(dir, &["put", "--device", "near", &uri, "src/small", "third"]);
    assert!(ok(dir, &["check", "--data", "--device", &uri, "near"]).contains("clean"));
    // The same export once more is the same device.
    let twice = uri.replace("nbd+unix", "NBD+unix");
    assert_eq!(ok(dir, &["cat", "--device", &uri, "--device", &twice, "near", "third"]), "small");
    assert_eq!(ok(dir, &["cat", "--degraded", &uri, "second"]), "small");
    assert!(fails_with(dir, 1, &["cat", &uri, "second"]).contains("--device"), "one is missing");
    assert!(server.end().success());
    assert!(fails_with(dir, 1, &["cat", "--device", &uri, "near", "second"]).contains("cannot connect"));
    if let Some(oracle) = oracle() {
        oracle.must_be_sound(&[dir.join("near"), dir.join("far")], "of two devices").unwrap();
    }
}

/// Goal: what a server refuses or fails to do has its exit code and its words: a device that fails is no damage. Method: nbdkit
/// that is read-only, or fails reads, writes, flushes.
#[test]
fn failures() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "300M", "i"]);
    let image = dir.join("i").display().to_string();
    let server = nbdkit(&["--readonly", "file", &image]);
    assert!(fails_with(dir, 1, &["mkdir", &server.uri(""), "d"]).contains("read-only"));
    assert_eq!(ok(dir, &["ls", &server.uri("")]), "");
    drop(server);
    for (failing, code, args) in [
        ("error-pread-rate=100%", 4, &["ls"][..]),
        ("error-pwrite-rate=100%", 4, &["mkdir"]),
        ("error-pread-rate=100%", 4, &["check"]),
    ] {
        let server = nbdkit(&["--filter=error", "file", &image, failing, "error=EIO"]);
        let uri = server.uri("");
        let more: &[&str] = if args == ["mkdir"] { &["d"] } else { &[] };
        let args = [args, &[uri.as_str()], more].concat();
        let line = fails_with(dir, code, &args);
        assert!(line.contains("nbd+unix:///"), "{failing}: {line}");
    }
    let full = nbdkit(&["--filter=error", "memory", "300M", "error-pwrite-rate=100%", "error=ENOSPC"]);
    assert!(fails_with(dir, 4, &["mkfs", &full.uri("")]).contains("No space"));
    assert!(ok(dir, &["check", "i"]).contains("clean"), "nothing half done is left");
    let tiny = nbdkit(&["memory", "1M"]);
    fails_with(dir, 1, &["mkfs", &tiny.uri("")]);
    assert!(fails_with(dir, 3, &["ls", &tiny.uri("")]).contains("nbd+unix"));
}

/// Goal: names that lead nowhere are refused by name, without delay, and never become files. Method: a table.
#[test]
fn names_that_lead_nowhere() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let far = format!("nbd://127.0.0.1:{nobody}/x");
    for (code, name, says) in [
        (1, "nbd+unix:///x?socket=none", "cannot connect"),
        (1, far.as_str(), "refused"),
        (1, "nbd://no-such-host.invalid/x", "cannot resolve"),
        (2, "nbd://h:x/e", "port"),
        (2, "nbd+unix:///x", "socket"),
        (2, "nbdx://h/e", "unknown scheme nbdx"),
        (2, "http://h/e", "unknown scheme http"),
    ] {
        for args in [&["ls", name][..], &["mkfs", "--size", "300M", name], &["mkdir", name, "d"], &["mount", name, "."]]
        {
            let output = run(dir, args);
            let line = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(code), "{args:?}: {line}");
            assert!(line.contains(says), "{args:?}: {line}");
        }
    }
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0, "something was made");
    // In a directory of that name it is a file, and so it is with a dot in front.
    std::fs::create_dir(dir.join("abc:")).unwrap();
    ok(dir, &["mkfs", "--size", "300M", "abc:/x"]);
    assert_eq!(ok(dir, &["ls", "abc://x"]), "");
    std::fs::create_dir(dir.join("nbd:")).unwrap();
    ok(dir, &["mkfs", "--size", "300M", "./nbd://x"]);
    assert!(dir.join("nbd:/x").exists());
    // Somebody who listens and says nothing is waited for, but not for ever.
    let uri = format!("nbd://{}/x", silent.local_addr().unwrap());
    let start = Instant::now();
    assert!(fails_with(dir, 4, &["ls", &uri]).contains("no answer"));
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

/// Goal: it works over TCP, IPv4 and IPv6. Method: our server on a port of the system's choice, our client.
#[test]
fn over_tcp() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "300M", "i"]);
    for host in ["127.0.0.1", "[::1]"] {
        if host == "[::1]" && TcpListener::bind("[::1]:0").is_err() {
            continue;
        }
        let mut child = Command::new(crate::nbd::harness::OLEO)
            .args(["serve", "nbd", "--listen", &format!("tcp:{host}:0"), "i"])
            .current_dir(dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.as_mut().unwrap()), &mut line).unwrap();
        let uri = line.trim().rsplit(' ').next().unwrap().to_owned();
        assert!(uri.starts_with(&format!("nbd://{host}:")), "{line}");
        TcpStream::connect(uri.trim_start_matches("nbd://").trim_end_matches('/')).unwrap();
        ok(dir, &["mkdir", "-p", &uri, "d"]);
        assert_eq!(ok(dir, &["ls", &uri]), "d\n");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(ok(dir, &["ls", "i"]), "d\n");
}

/// Goal: a server of what another one has, whose other one is gone, can be ended, and says that it lost something.
/// Method: a client of the first writes without a flush; the other one is killed; the first gets one signal, then a second.
#[test]
fn a_gateway_without_its_server_ends() {
    let scratch = Scratch::new().unwrap();
    let image = scratch.path().join("image");
    sparse(&image, MIB, &[]);
    let inner = Process::oleo(&[&image], &[]);
    let uri = inner.uri("");
    let outer = Process::oleo(&[Path::new(&uri)], &[]);
    nbdsh(&outer.uri(""), "h.pwrite(b'x' * 4096, 0); h.shutdown()");
    inner.kill();
    outer.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    let status = outer.end();
    assert!(!status.success() && began.elapsed() < Duration::from_secs(30), "{status} after {:?}", began.elapsed());
}

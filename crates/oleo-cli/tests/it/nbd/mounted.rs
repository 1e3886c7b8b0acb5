//! A mount over a network block device, and what is left when one of the two is killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use oleo_sim::budget::budget;
use oleo_sim::oracle::{Scratch, oracle, skip};
use oleo_sim::served::{Limits, Served};
use rustix::process::Signal;

use crate::common::{confirm, fails_with, must_hold, ok};
use crate::nbd::harness::{OLEO, Process, same, sparse};

const MIB: u64 = 1 << 20;

fn mount(images: &[&str], options: &str) -> Served {
    Served::mount(Path::new(OLEO), images, options, Limits::default()).unwrap()
}

/// Whether mounts are possible here.
fn can_mount() -> bool {
    let can = Path::new("/dev/fuse").exists() && oracle().is_some();
    if !can {
        skip("no mounts here");
    }
    can
}

/// Goal: a mount works over the network, by a name that is relative, with a second device of the volume there too; the source that
/// is shown is the name. Method: our server of two images, files written and read, the kernel mounts what came of it.
#[test]
fn a_mount() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    for name in ["a", "b"] {
        sparse(&dir.join(name), 400 * MIB, &[]);
    }
    sparse(&dir.join("large"), 30 * MIB, &[(MIB, 5 << 20, 1), (20 * MIB, 5 << 20, 2)]);
    let server = Process::oleo(&[&dir.join("a"), &dir.join("b")], &[]);
    let (a, b) = (server.uri("a"), server.uri("b"));
    ok(dir, &["mkfs", "-d", "raid1", "-m", "raid1", &a, &b]);
    let mounted = mount(&[&a], &format!("device={b}"));
    let shown = fs::read_to_string("/proc/mounts").unwrap();
    assert!(shown.lines().any(|l| l.starts_with("nbd+unix:///a?socket=") && l.contains("fuse.oleo")), "{shown}");
    fs::create_dir(mounted.path().join("d")).unwrap();
    fs::copy(dir.join("large"), mounted.path().join("d/large")).unwrap();
    let names: Vec<String> = (0..50).map(|i| format!("f{i}")).collect();
    names.iter().for_each(|name| confirm(mounted.path(), name).unwrap());
    let usage = ok(dir, &["filesystem", "show", mounted.path().to_str().unwrap()]);
    assert!(usage.contains("nbd+unix:///b?"), "{usage}");
    let stats = ok(dir, &["filesystem", "stats", mounted.path().to_str().unwrap()]);
    let flushes = stats.lines().filter(|l| l.starts_with("  flushes")).map(|l| l.rsplit(' ').next().unwrap() != "0");
    assert_eq!(flushes.collect::<Vec<_>>(), [true, true], "of both devices: {stats}");
    mounted.unmount().unwrap();
    assert!(server.end().success());
    let oracle = oracle().unwrap();
    oracle.must_be_sound(&[dir.join("a"), dir.join("b")], "a mount over the network").unwrap();
    let kernel = oracle.mount(&[dir.join("a"), dir.join("b")], "").unwrap();
    assert!(same(&dir.join("large"), &kernel.path().join("d/large")));
    must_hold(kernel.path(), &names);
}

/// Goal: whatever fsync confirmed over the network survives kill -9 of the server in the middle of writing; the mount then gets
/// errors, within its bounds, and goes. Method: [`servers_are_killed`] on an image that we serve.
#[test]
fn the_server_is_killed() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "400M", "i"]);
    servers_are_killed(dir, &|socket| Process::oleo_at(socket, &[&dir.join("i")], &[]), &|| dir.join("i"));
}

/// A writer on a mount notes what was confirmed; its server, which `serve` starts, is killed, three times (in CI once). The image that it served, which
/// `raw` makes a file of, is checked, and mounted by us and by the kernel.
pub fn servers_are_killed(dir: &Path, serve: &dyn Fn(&Path) -> Process, raw: &dyn Fn() -> PathBuf) {
    let socket = dir.join("s");
    for round in 0..budget().count(1, 3) {
        let server = serve(&socket);
        let mut mounted = mount(&[&server.uri("")], "");
        let mut confirmed = Vec::new();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut names = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let name = format!("r{round}-{}", names.len());
                    match confirm(mounted.path(), &name) {
                        Ok(()) => names.push(name),
                        Err(_) => break,
                    }
                }
                names
            });
            std::thread::sleep(Duration::from_millis(300 + 150 * round));
            server.kill();
            let begun = Instant::now();
            confirmed = writer.join().unwrap();
            assert!(begun.elapsed() < Duration::from_secs(100), "the writer waited {:?}", begun.elapsed());
        });
        stop.store(true, Ordering::Relaxed);
        mounted.kill().unwrap();
        drop(mounted);
        assert!(!confirmed.is_empty());
        if let Some(oracle) = oracle() {
            oracle.must_be_sound_after_a_kill(&[raw()], "after the server was killed").unwrap();
        }
        // Over the network again, with the log.
        let server = serve(&socket);
        let mounted = mount(&[&server.uri("")], "");
        must_hold(mounted.path(), &confirmed);
        confirm(mounted.path(), "afterwards").unwrap();
        mounted.unmount().unwrap();
        assert!(server.end().success());
        let kernel = oracle().unwrap().mount(&[raw()], "").unwrap();
        must_hold(kernel.path(), &confirmed);
    }
}

/// Goal: a server that is exchanged while nothing is under way is not noticed: the mount goes on. Method: sync, wait until the
/// client has settled, kill -9, serve the same image on the same socket, read and write.
#[test]
fn the_server_comes_back() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "400M", "i"]);
    let socket = dir.join("s");
    let server = Process::oleo_at(&socket, &[&dir.join("i")], &[]);
    let mounted = mount(&[&server.uri("")], "commit=300");
    confirm(mounted.path(), "before").unwrap();
    crate::nbd::harness::tool("sync", &["-f", mounted.path().to_str().unwrap()]);
    std::thread::sleep(Duration::from_secs(3));
    server.kill();
    let server = Process::oleo_at(&socket, &[&dir.join("i")], &[]);
    confirm(mounted.path(), "after").unwrap_or_else(|e| panic!("{e}: {}", mounted.log()));
    must_hold(mounted.path(), &["before".to_owned(), "after".to_owned()]);
    mounted.unmount().unwrap();
    assert!(server.end().success());
    oracle().unwrap().must_be_sound(&[dir.join("i")], "over two servers").unwrap();
}

/// Goal: a server that stands still for a while costs that while and nothing else. Method: it is stopped in the middle of writing, for
/// three seconds, and goes on; all that was confirmed is there, and the image is sound.
#[test]
fn the_server_stands_still() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "400M", "i"]);
    let server = Process::oleo(&[&dir.join("i")], &[]);
    let mounted = mount(&[&server.uri("")], "commit=1");
    let names: Vec<String> = (0..60).map(|i| format!("f{i}")).collect();
    let (before, after) = names.split_at(20);
    before.iter().for_each(|name| confirm(mounted.path(), name).unwrap());
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| after.iter().try_for_each(|name| confirm(mounted.path(), name)));
        server.signal(Signal::STOP);
        std::thread::sleep(Duration::from_secs(3));
        assert!(!writer.is_finished(), "nobody waited for the server");
        server.signal(Signal::CONT);
        writer.join().unwrap().unwrap();
    });
    must_hold(mounted.path(), &names);
    mounted.unmount().unwrap();
    assert!(server.end().success());
    oracle().unwrap().must_be_sound(&[dir.join("i")], "over a server that stood still").unwrap();
}

/// Goal: what is mounted is not served. Method: our mount of an image, the kernel's, and a server for each.
#[test]
fn a_mounted_image_is_not_served() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "300M", "i"]);
    let listen = format!("unix:{}", dir.join("s").display());
    let refused = |how: &[&str]| {
        let args = [&["serve", "nbd", "--listen", &listen], how].concat();
        let said = fails_with(dir, 1, &args);
        assert!(said.contains("in use") || said.contains("mounted"), "{said}");
    };
    let image = dir.join("i");
    let mounted = mount(&[image.to_str().unwrap()], "");
    refused(&["i"]);
    refused(&["--read-only", "i"]);
    mounted.unmount().unwrap();
    let kernel = oracle().unwrap().mount(&[&image], "").unwrap();
    refused(&["i"]);
    kernel.unmount().unwrap();
    let server = Process::oleo(&[&image], &[]);
    assert!(server.end().success());
}

/// Goal: the server outlives the kill -9 of a mount that writes, and whatever fsync confirmed is there for the next client. Method:
/// [`mounts_are_killed`] on an image that we serve.
#[test]
fn the_client_is_killed() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "400M", "i"]);
    mounts_are_killed(dir, Process::oleo(&[&dir.join("i")], &[]), &|| dir.join("i"));
}

/// Mounts over one server are killed while they write, three times; then what it served, which `raw` makes a file of, is checked,
/// and mounted by the kernel.
pub fn mounts_are_killed(dir: &Path, server: Process, raw: &dyn Fn() -> PathBuf) {
    let mut all = Vec::new();
    for round in 0..3 {
        let mut mounted = mount(&[&server.uri("")], "");
        must_hold(mounted.path(), &all);
        for i in 0..20 {
            let name = format!("m{round}-{i}");
            confirm(mounted.path(), &name).unwrap();
            all.push(name);
        }
        // And something that nobody has confirmed.
        fs::write(mounted.path().join("loose"), vec![1; 3 << 20]).unwrap();
        mounted.kill().unwrap();
        drop(mounted);
    }
    let mut tries = 0;
    while !crate::common::run(dir, &["check", &server.uri("")]).status.success() {
        // The server sees the end of the last client in a moment.
        tries += 1;
        assert!(tries < 50, "{}", server.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(server.end().success());
    let oracle = oracle().unwrap();
    oracle.must_be_sound_after_a_kill(&[raw()], "after mounts were killed").unwrap();
    let kernel = oracle.mount(&[raw()], "").unwrap();
    must_hold(kernel.path(), &all);
}

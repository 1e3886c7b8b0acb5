//! Users of files, in the presence of file systems that must not be queried.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use rustix::mount::{MountFlags, UnmountFlags};

use super::*;

fn mount(line: &str) -> Mount {
    let fields: Vec<&str> = line.split(' ').collect();
    Mount {
        id: fields[0].into(),
        device: fields[1].into(),
        root: fields[2].into(),
        at: fields[3].into(),
        source: fields[4].into(),
        read_only: false,
        user: None,
        kind: fields[5].into(),
    }
}

/// A regular file on the root file system of a machine with some mounts.
fn target(path: &str) -> Target {
    let lines = [
        "20 8:1 / / /dev/sda1 ext4",
        "21 0:6 / /dev udev devtmpfs",
        "22 0:40 / /nfs server:/nfs nfs4",
        "23 8:1 /srv/images /images /dev/sda1 ext4",
        "24 0:41 / /nfs/a/dead remote: fuse.sshfs",
        "25 8:1 / /nfs/a/back /dev/sda1 ext4",
    ];
    let open = Descriptor { writable: false, mount: "20".into(), ino: Some(77) };
    let mounts = Mounts(lines.iter().map(|line| mount(line)).collect());
    Target { file: Some((2049, 77)), blocks: Vec::new(), path: path.into(), open: Some(open), mounts }
}

/// Goal: a path is resolved only if that queries no foreign file system. Method: paths on a machine with a mount of
/// NFS, one of FUSE on it, and a local one on it again.
#[test]
fn quiet_paths() {
    let target = target("/srv/images/a.img");
    for (path, quiet) in [
        ("/srv/images/b.img", true),
        ("/dev/loop7", true),
        ("/dev/mapper/vg-lv", true),
        ("/nfs/b.img", false),
        ("/nfs/a/dead/b.img", false),
        ("/nfs/a/back/b.img", false),
        ("/images/a.img", false),
        ("relative", false),
        ("server:/nfs", false),
    ] {
        assert_eq!(target.is_quiet(Path::new(path)), quiet, "{path}");
    }
    // The target's own path crosses NFS, so NFS is queried anyway.
    let target = self::target("/nfs/a/back/a.img");
    assert!(target.is_quiet(Path::new("/nfs/b.img")) && !target.is_quiet(Path::new("/nfs/a/dead/b.img")));
}

/// Goal: a backing file is recognised by its place in the file system, whatever mount shows it.
#[test]
fn backing_files_by_place() {
    let target = target("/srv/images/a.img");
    for (path, same) in [
        ("/srv/images/a.img", true),
        ("/images/a.img", true),
        ("/nfs/a/back/srv/images/a.img", true),
        ("/images/b.img", false),
        ("/nfs/srv/images/a.img", false),
        ("/srv/images/a.img (deleted)", false),
    ] {
        assert_eq!(target.is_backing(Path::new(path), None), same, "{path}");
    }
}

/// Goal: `stat` is called only for descriptors that may be the target, and never on a foreign file system.
#[test]
fn descriptors_that_may_be_the_target() {
    let file = target("/srv/images/a.img");
    let block = Target { file: None, blocks: vec![(7, 0)], ..target("/dev/loop0") };
    let fd = |mount: &str, ino| Descriptor { writable: true, mount: mount.into(), ino };
    let seen = |fd: &Descriptor| file.mounts.by_id(&fd.mount).cloned();
    for (other, of_file, of_block) in [
        (fd("20", Some(77)), true, true),
        (fd("23", Some(77)), true, true),
        (fd("23", None), true, true),
        (fd("23", Some(78)), false, true),
        (fd("21", Some(77)), false, true),
        (fd("22", Some(77)), false, false),
        (fd("24", Some(77)), false, false),
        (fd("99", Some(77)), false, false),
        (Descriptor { writable: false, ..fd("20", Some(77)) }, false, false),
    ] {
        let mount = seen(&other);
        assert_eq!(file.may_be(&other, mount.as_ref()), of_file, "{other:?}");
        assert_eq!(block.may_be(&other, mount.as_ref()), of_block, "{other:?}");
    }
}

/// Goal: descriptors are read as the kernel shows them, with and without an inode number.
#[test]
fn fdinfo_is_understood() {
    let of = |text| Descriptor::parse(text);
    let whole = "pos:\t0\nflags:\t0100002\nmnt_id:\t31\nino:\t12\nlock:\t1: FLOCK  ADVISORY  WRITE 1 00:1f:12 0 EOF\n";
    assert_eq!(of(whole), Some(Descriptor { writable: true, mount: "31".into(), ino: Some(12) }));
    let old = "pos:\t0\nflags:\t0100000\nmnt_id:\t31\n";
    assert_eq!(of(old), Some(Descriptor { writable: false, mount: "31".into(), ino: None }));
    let path_only = "pos:\t0\nflags:\t012000000\nmnt_id:\t31\n";
    assert!(!of(path_only).expect("whole").writable);
    assert_eq!(of("pos:\t0\n"), None);
}

/// A FUSE file system with one file, of any name and a given inode number. It answers, and counts the requests of one
/// thread.
struct Foreign {
    dir: tempfile::TempDir,
    asked: Arc<AtomicU64>,
    server: Option<JoinHandle<()>>,
}

impl Foreign {
    fn mount(ino: u64, thread: u32) -> Option<Foreign> {
        let channel = crate::fuse::open_channel().ok()?;
        let dir = tempfile::tempdir().expect("dir");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0\0", channel.as_raw_fd());
        let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).expect("one zero byte");
        rustix::mount::mount("foreign", dir.path(), "fuse", MountFlags::empty(), options).ok()?;
        let asked = Arc::new(AtomicU64::new(0));
        let counter = asked.clone();
        let server = std::thread::spawn(move || serve(channel, ino, thread, &counter));
        Some(Foreign { dir, asked, server: Some(server) })
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("file")
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.dir.path(), UnmountFlags::DETACH);
        // The server's channel fails when the last descriptor of the mount is closed.
        self.server.take().expect("once").join().expect("the server did not panic");
    }
}

/// Answers until the mount is gone. Formats: `linux/fuse.h`, version 7.31.
fn serve(mut channel: File, ino: u64, thread: u32, asked: &AtomicU64) {
    const LOOKUP: u32 = 1;
    const FORGET: u32 = 2;
    const GETATTR: u32 = 3;
    const OPEN: u32 = 14;
    const INIT: u32 = 26;
    const OPENDIR: u32 = 27;
    const DIR: u32 = 0o40755;
    const REGULAR: u32 = 0o100644;
    const ENOSYS: i32 = 38;
    let attr = |node: u64| {
        let (ino, mode) = if node == 1 { (1, DIR) } else { (ino, REGULAR) };
        let long = [ino, 0, 0, 0, 0, 0].map(u64::to_le_bytes).concat();
        // Nanoseconds, mode, links, owner, device, block size, flags.
        [long, [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0].map(u32::to_le_bytes).concat()].concat()
    };
    let mut request = vec![0; 1 << 17];
    while let Ok(len) = channel.read(&mut request) {
        let head = request[..len].first_chunk::<40>().expect("a whole header");
        let long = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let (op, unique, node) = (word(4), long(8), long(16));
        if word(32) == thread {
            asked.fetch_add(1, Ordering::SeqCst);
        }
        // All attributes and names are valid for no time, so each `stat` is a request.
        let answer = match op {
            INIT => Some([7, 31, 65536, 0, 0, 65536, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0].map(u32::to_le_bytes).concat()),
            LOOKUP => Some([[2, 0, 0, 0, 0].map(u64::to_le_bytes).concat(), attr(2)].concat()),
            GETATTR => Some([[0, 0].map(u64::to_le_bytes).concat(), attr(node)].concat()),
            OPEN | OPENDIR => Some(vec![0; 16]),
            FORGET => continue,
            _ => None,
        };
        let error = if answer.is_some() { 0 } else { -ENOSYS };
        let body = answer.unwrap_or_default();
        let mut reply = (16 + body.len() as u32).to_le_bytes().to_vec();
        reply.extend(error.to_le_bytes());
        reply.extend(unique.to_le_bytes());
        reply.extend(body);
        if channel.write(&reply).is_err() {
            return;
        }
    }
}

/// Goal: opening an image asks no file system of other processes, because its server may not answer. Method: a process
/// has a file of a FUSE mount open for writing, with the image's own inode number; the server counts the requests of
/// the thread that opens the image. The server always answers, so that no other process of the machine blocks.
#[test]
fn no_foreign_file_system_is_asked() {
    let dir = tempfile::tempdir().expect("dir");
    let image = dir.path().join("img");
    fs::write(&image, [0; 4096]).expect("write");
    let ino = fs::metadata(&image).expect("stat").ino();
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let Some(foreign) = Foreign::mount(ino, thread) else {
        return oleo_sim::oracle::skip("no FUSE mount by this user");
    };
    let held = OpenOptions::new().read(true).write(true).open(foreign.path()).expect("open");
    let mut holder = Command::new("sleep").arg("60").stdout(Stdio::from(held)).spawn().expect("sleep");
    assert!(foreign.asked.load(Ordering::SeqCst) > 0, "the server saw this thread open the file");

    let before = foreign.asked.swap(0, Ordering::SeqCst);
    let users = users_of(&image);
    let asked = foreign.asked.swap(0, Ordering::SeqCst);
    let own = users_of(&foreign.path());
    let asked_for_itself = foreign.asked.load(Ordering::SeqCst);

    holder.kill().expect("kill");
    holder.wait().expect("wait");
    assert_eq!((users, asked), (Vec::new(), 0), "{before} before");
    assert!(asked_for_itself > 0, "the count works");
    assert!(
        matches!(&own[..], [User::Writer { pid, .. }] if *pid == holder.id()),
        "the file of the mount itself has a writer: {own:?}"
    );
}

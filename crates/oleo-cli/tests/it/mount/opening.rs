//! open(2): what each flag does and refuses.

use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::mount::place::{Place, family, open, refused};

family!(
    "";
    creat_makes_and_opens, creat_excl, trunc, append, append_of_two_writers, nofollow, directory, read_only_and_write_only,
    path_only, direct after direct_after, tmpfile_is_nameless, tmpfile_gets_a_name after tmpfile_after, tmpfile_excl, trailing_slash,
    creat_through_a_symlink, trunc_of_an_open_file, proc_self_fd, nonblocking_fifo,
);

fn creat_makes_and_opens(at: &Place) {
    let path = at.at("f");
    refused(open(&path, OFlags::RDONLY), Errno::NOENT);
    let file = rustix::fs::open(&path, OFlags::CREATE | OFlags::RDWR, Mode::from_raw_mode(0o4751)).unwrap();
    rustix::io::pwrite(&file, b"one", 0).unwrap();
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.mode(), meta.len(), meta.nlink(), meta.uid()), (0o104_751, 3, 1, 0));
    // A mode without rights does not keep its maker from using the descriptor.
    let sealed = rustix::fs::open(at.at("sealed"), OFlags::CREATE | OFlags::RDWR, Mode::empty()).unwrap();
    rustix::io::pwrite(&sealed, b"x", 0).unwrap();
    // Again: opened as it is.
    let again = rustix::fs::open(&path, OFlags::CREATE | OFlags::RDONLY, Mode::from_raw_mode(0o600)).unwrap();
    assert_eq!(rustix::fs::fstat(&again).unwrap().st_size, 3);
    assert_eq!(fs::metadata(&path).unwrap().mode(), 0o104_751);
}

fn creat_excl(at: &Place) {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
    open(&at.at("f"), flags).unwrap();
    refused(open(&at.at("f"), flags), Errno::EXIST);
    at.subdir("d");
    refused(open(&at.at("d"), flags), Errno::EXIST);
    // Also where the last part is a symlink, whether it leads somewhere or not.
    rustix::fs::symlink("nowhere", at.at("l")).unwrap();
    refused(open(&at.at("l"), flags), Errno::EXIST);
    assert!(!at.at("nowhere").exists());
}

fn trunc(at: &Place) {
    let path = at.file("f", &[7; 10_000]);
    open(&path, OFlags::WRONLY).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 10_000);
    open(&path, OFlags::WRONLY | OFlags::TRUNC).unwrap();
    let meta = fs::metadata(&path).unwrap();
    assert_eq!(meta.len(), 0);
    fs::write(&path, b"again").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"again");
}

fn append(at: &Place) {
    let path = at.file("f", b"start ");
    let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).unwrap();
    file.write_all(b"one ").unwrap();
    // The file gets longer behind its back.
    let other = fs::OpenOptions::new().append(true).open(&path).unwrap();
    (&other).write_all(b"two ").unwrap();
    file.write_all(b"three").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"start one two three");
    // On Linux, pwrite on such a descriptor appends too.
    rustix::io::pwrite(&file, b"!", 0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"start one two three!");
}

/// No write of two that append concurrently is lost or torn.
fn append_of_two_writers(at: &Place) {
    const LINES: usize = 300;
    let path = at.file("f", b"");
    std::thread::scope(|s| {
        for who in ["a", "b"] {
            let path = &path;
            s.spawn(move || {
                let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
                for n in 0..LINES {
                    file.write_all(format!("{who} {n:05}\n").as_bytes()).unwrap();
                }
            });
        }
    });
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), 2 * LINES);
    for who in ["a", "b"] {
        let of: Vec<String> = text.lines().filter(|l| l.starts_with(who)).map(str::to_owned).collect();
        let want: Vec<String> = (0..LINES).map(|n| format!("{who} {n:05}")).collect();
        assert_eq!(of, want);
    }
}

fn nofollow(at: &Place) {
    at.file("f", b"x");
    rustix::fs::symlink("f", at.at("l")).unwrap();
    open(&at.at("f"), OFlags::RDONLY | OFlags::NOFOLLOW).unwrap();
    refused(open(&at.at("l"), OFlags::RDONLY | OFlags::NOFOLLOW), Errno::LOOP);
    refused(open(&at.at("l"), OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CREATE), Errno::LOOP);
    // With O_PATH the link itself is opened.
    let link = open(&at.at("l"), OFlags::PATH | OFlags::NOFOLLOW).unwrap();
    assert_eq!(rustix::fs::fstat(&link).unwrap().st_size, 1);
}

fn directory(at: &Place) {
    at.file("f", b"x");
    at.subdir("d");
    open(&at.at("d"), OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
    refused(open(&at.at("f"), OFlags::RDONLY | OFlags::DIRECTORY), Errno::NOTDIR);
    refused(open(&at.at("d"), OFlags::WRONLY), Errno::ISDIR);
    refused(open(&at.at("d"), OFlags::RDWR), Errno::ISDIR);
    refused(open(&at.at("d"), OFlags::RDONLY | OFlags::TRUNC), Errno::ISDIR);
    refused(open(&at.at("d"), OFlags::RDONLY | OFlags::CREATE), Errno::ISDIR);
    let dir = open(&at.at("d"), OFlags::RDONLY).unwrap();
    let mut buf = [0; 10];
    refused(rustix::io::read(&dir, &mut buf[..]), Errno::ISDIR);
}

fn read_only_and_write_only(at: &Place) {
    let path = at.file("f", b"content");
    let mut buf = [0; 10];
    let read = open(&path, OFlags::RDONLY).unwrap();
    refused(rustix::io::write(&read, b"x"), Errno::BADF);
    refused(rustix::fs::ftruncate(&read, 1), Errno::INVAL);
    let write = open(&path, OFlags::WRONLY).unwrap();
    refused(rustix::io::read(&write, &mut buf[..]), Errno::BADF);
    assert_eq!(fs::read(&path).unwrap(), b"content");
}

fn path_only(at: &Place) {
    let path = at.file("f", b"content");
    let file = open(&path, OFlags::PATH).unwrap();
    let mut buf = [0; 10];
    refused(rustix::io::read(&file, &mut buf[..]), Errno::BADF);
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 7);
    rustix::fs::linkat(&file, "", CWD, at.at("second"), AtFlags::EMPTY_PATH).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().nlink(), 2);
}

/// A buffer whose address is a multiple of 4096.
fn aligned(len: usize) -> (Vec<u8>, usize) {
    let buf = vec![0u8; len + 4096];
    let skip = buf.as_ptr().align_offset(4096);
    (buf, skip)
}

fn direct(at: &Place) {
    const LEN: usize = 64 << 10;
    let path = at.at("f");
    let file = open(&path, OFlags::CREATE | OFlags::RDWR | OFlags::DIRECT).unwrap();
    let (mut buf, skip) = aligned(LEN);
    buf[skip..skip + LEN].fill(0xa5);
    assert_eq!(rustix::io::pwrite(&file, &buf[skip..skip + LEN], 0), Ok(LEN));
    assert_eq!(rustix::io::pwrite(&file, &buf[skip..skip + 4096], 1 << 20), Ok(4096));
    // What was written directly is read through the cache, and the other way round.
    assert_eq!(fs::read(&path).unwrap()[..LEN], [0xa5; LEN]);
    let cached = fs::OpenOptions::new().write(true).open(&path).unwrap();
    rustix::io::pwrite(&cached, b"cached", 4096).unwrap();
    buf[skip..skip + LEN].fill(0);
    assert_eq!(rustix::io::pread(&file, &mut buf[skip..skip + LEN], 0), Ok(LEN));
    assert_eq!(&buf[skip + 4096..skip + 4102], b"cached");
    assert_eq!(buf[skip + 4102], 0xa5);
    // At the end reads are short.
    assert_eq!(rustix::io::pread(&file, &mut buf[skip..skip + LEN], 1 << 20), Ok(4096));
    assert_eq!(rustix::io::pread(&file, &mut buf[skip..skip + LEN], 2 << 20), Ok(0));
    // Direct over pages that the cache holds.
    buf[skip..skip + 4096].fill(0x11);
    assert_eq!(rustix::io::pwrite(&file, &buf[skip..skip + 4096], 8192), Ok(4096));
    assert_eq!(fs::read(&path).unwrap()[8192..12288], [0x11; 4096]);
}

fn direct_after(dir: &std::path::Path) {
    let data = fs::read(dir.join("f")).unwrap();
    assert_eq!(data.len(), (1 << 20) + 4096);
    assert_eq!(&data[4096..4103], b"cached\xa5");
    assert_eq!(data[8192..12288], [0x11; 4096]);
    assert_eq!(data[1 << 20..], [0xa5; 4096]);
}

fn tmpfile_is_nameless(at: &Place) {
    let file = open(&at.dir, OFlags::TMPFILE | OFlags::RDWR).unwrap();
    assert_eq!(fs::read_dir(&at.dir).unwrap().count(), 0);
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_nlink, 0);
    rustix::io::pwrite(&file, &[3; 100_000], 50).unwrap();
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 100_050);
    refused(open(&at.dir, OFlags::TMPFILE | OFlags::RDONLY), Errno::INVAL);
    let path = at.file("f", b"");
    refused(open(&path, OFlags::TMPFILE | OFlags::RDWR), Errno::NOTDIR);
}

fn tmpfile_gets_a_name(at: &Place) {
    let file = rustix::fs::open(&at.dir, OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o640)).unwrap();
    rustix::io::pwrite(&file, b"before", 0).unwrap();
    rustix::fs::linkat(file.as_fd(), "", CWD, at.at("f"), AtFlags::EMPTY_PATH).unwrap();
    rustix::io::pwrite(&file, b" after", 6).unwrap();
    let meta = fs::metadata(at.at("f")).unwrap();
    assert_eq!((meta.nlink(), meta.mode(), meta.len()), (1, 0o100_640, 12));
    refused(rustix::fs::linkat(&file, "", CWD, at.at("f"), AtFlags::EMPTY_PATH), Errno::EXIST);
    // By way of /proc, as programs without privileges do it.
    let other = open(&at.dir, OFlags::TMPFILE | OFlags::RDWR).unwrap();
    let proc = format!("/proc/self/fd/{}", other.as_raw_fd());
    rustix::fs::linkat(CWD, proc, CWD, at.at("g"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(fs::metadata(at.at("g")).unwrap().nlink(), 1);
}

fn tmpfile_after(dir: &std::path::Path) {
    assert_eq!(fs::read(dir.join("f")).unwrap(), b"before after");
    assert_eq!(fs::read(dir.join("g")).unwrap(), b"");
}

fn tmpfile_excl(at: &Place) {
    let file = open(&at.dir, OFlags::TMPFILE | OFlags::RDWR | OFlags::EXCL).unwrap();
    refused(rustix::fs::linkat(&file, "", CWD, at.at("f"), AtFlags::EMPTY_PATH), Errno::NOENT);
}

fn trailing_slash(at: &Place) {
    at.file("f", b"");
    refused(open(&at.at("f/"), OFlags::RDONLY), Errno::NOTDIR);
    refused(open(&at.at("new/"), OFlags::CREATE | OFlags::WRONLY), Errno::ISDIR);
    rustix::fs::mkdir(at.at("d/"), Mode::from_raw_mode(0o755)).unwrap();
    open(&at.at("d/"), OFlags::RDONLY).unwrap();
}

fn creat_through_a_symlink(at: &Place) {
    at.subdir("d");
    rustix::fs::symlink("d/target", at.at("l")).unwrap();
    open(&at.at("l"), OFlags::CREATE | OFlags::WRONLY).unwrap();
    assert!(at.at("d/target").is_file());
}

fn trunc_of_an_open_file(at: &Place) {
    let path = at.file("f", &[9; 20_000]);
    let file = open(&path, OFlags::RDWR).unwrap();
    open(&path, OFlags::WRONLY | OFlags::TRUNC).unwrap();
    let mut buf = [1; 10];
    assert_eq!(rustix::io::pread(&file, &mut buf[..], 0), Ok(0));
    rustix::io::pwrite(&file, b"end", 10_000).unwrap();
    let data = fs::read(&path).unwrap();
    assert_eq!(data.len(), 10_003);
    assert!(data[..10_000].iter().all(|b| *b == 0), "what was cut off must not come back");
}

/// Opening a descriptor's file once more, also after its name is gone.
fn proc_self_fd(at: &Place) {
    let path = at.file("f", b"content");
    let file = open(&path, OFlags::RDONLY).unwrap();
    let proc = std::path::PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    rustix::io::pwrite(open(&proc, OFlags::WRONLY).unwrap(), b"C", 0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"Content");
    fs::remove_file(&path).unwrap();
    rustix::io::pwrite(open(&proc, OFlags::WRONLY).unwrap(), b"K", 0).unwrap();
    let mut buf = [0; 10];
    assert_eq!(rustix::io::pread(&file, &mut buf[..], 0), Ok(7));
    assert_eq!(&buf[..7], b"Kontent");
}

fn nonblocking_fifo(at: &Place) {
    rustix::fs::mknodat(CWD, at.at("p"), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    refused(open(&at.at("p"), OFlags::WRONLY | OFlags::NONBLOCK), Errno::NXIO);
    let read = open(&at.at("p"), OFlags::RDONLY | OFlags::NONBLOCK).unwrap();
    let write = open(&at.at("p"), OFlags::WRONLY | OFlags::NONBLOCK).unwrap();
    rustix::io::write(&write, b"through").unwrap();
    let mut buf = [0; 10];
    assert_eq!(rustix::io::read(&read, &mut buf[..]), Ok(7));
}

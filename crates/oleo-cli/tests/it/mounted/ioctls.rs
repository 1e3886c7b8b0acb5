//! The ioctls of btrfs on a mount, as programs call them.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use oleo_sim::oracle::{Loop, ReadOnly, oracle, run as oracle_run};
use oleo_sim::served::{Limits, Served};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};

use crate::common::run;
use crate::mounted::{Mount, json, ok};

mod strangers;

/// Numbers of `linux/btrfs.h` and `linux/fs.h`.
const SNAP_CREATE_V2: u32 = 0x5000_9417;
const SUBVOL_CREATE: u32 = 0x5000_940e;
const SUBVOL_CREATE_V2: u32 = 0x5000_9418;
const SNAP_DESTROY: u32 = 0x5000_940f;
const SNAP_DESTROY_V2: u32 = 0x5000_943f;
const RESIZE: u32 = 0x5000_9403;
const DEFRAG_RANGE: u32 = 0x4030_9410;
const TREE_SEARCH: u32 = 0xd000_9411;
const INO_LOOKUP: u32 = 0xd000_9412;
const DEFAULT_SUBVOL: u32 = 0x4008_9413;
const WAIT_SYNC: u32 = 0x4008_9416;
const START_SYNC: u32 = 0x8008_9418;
const SUBVOL_GETFLAGS: u32 = 0x8008_9419;
const SUBVOL_SETFLAGS: u32 = 0x4008_941a;
const ADD_DEV: u32 = 0x5000_940a;
const RM_DEV: u32 = 0x5000_940b;
const RM_DEV_V2: u32 = 0x5000_943a;
const SCRUB: u32 = 0xc400_941b;
const SCRUB_CANCEL: u32 = 0x0000_941c;
const SCRUB_PROGRESS: u32 = 0xc400_941d;
const DEV_INFO: u32 = 0xd000_941e;
const FS_INFO: u32 = 0x8400_941f;
const BALANCE_V2: u32 = 0xc400_9420;
const BALANCE_PROGRESS: u32 = 0x8400_9422;
const SET_RECEIVED_SUBVOL: u32 = 0xc0c8_9425;
const GET_DEV_STATS: u32 = 0xc408_9434;
const DEV_REPLACE: u32 = 0xca28_9435;
const GET_FEATURES: u32 = 0x8018_9439;
const LOGICAL_INO_V2: u32 = 0xc038_943b;
const GET_SUBVOL_INFO: u32 = 0x81f8_943c;
const GET_SUBVOL_ROOTREF: u32 = 0xd000_943d;
const INO_LOOKUP_USER: u32 = 0xd000_943e;
const GET_FSLABEL: u32 = 0x8100_9431;
const SET_FSLABEL: u32 = 0x4100_9432;
const GETVERSION: u32 = 0x8008_7601;
const FITRIM: u32 = 0xc018_5879;

/// An ioctl whose number says how many bytes go in and out.
struct Raw<'a> {
    number: u32,
    data: &'a mut [u8],
}

// SAFETY: `call` gives as many bytes as the number says, which is what the kernel reads and writes on a FUSE file
// system; any bytes are a value.
#[allow(unsafe_code, reason = "an ioctl has no safe form")]
unsafe impl Ioctl for Raw<'_> {
    type Output = i32;
    const IS_MUTATING: bool = true;
    fn opcode(&self) -> Opcode {
        self.number
    }
    fn as_ptr(&mut self) -> *mut rustix::ffi::c_void {
        self.data.as_mut_ptr().cast()
    }
    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut rustix::ffi::c_void) -> rustix::io::Result<i32> {
        Ok(out)
    }
}

/// Calls it on a file; what comes back in the bytes.
#[allow(unsafe_code, reason = "an ioctl has no safe form")]
fn call(path: &Path, number: u32, data: &[u8]) -> io::Result<Vec<u8>> {
    let file = File::open(path).unwrap();
    let mut bytes = data.to_vec();
    bytes.resize((number >> 16 & 0x3fff) as usize, 0);
    // SAFETY: the bytes are as many as the number says.
    unsafe { ioctl(&file, Raw { number, data: &mut bytes }) }?;
    Ok(bytes)
}

fn errno(path: &Path, number: u32, data: &[u8]) -> i32 {
    call(path, number, data).unwrap_err().raw_os_error().unwrap()
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn text_at(bytes: &[u8], at: usize) -> String {
    let rest = &bytes[at..];
    String::from_utf8(rest[..rest.iter().position(|b| *b == 0).unwrap()].to_vec()).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The first form of arguments: a descriptor and a name.
fn named(name: &str) -> Vec<u8> {
    [&[0; 8], name.as_bytes(), &[0]].concat()
}

/// The second form: a descriptor, flags, a name.
fn named_v2(fd: i32, flags: u64, name: &str) -> Vec<u8> {
    [&words(&[fd as u64, 0, flags, 0, 0, 0, 0]), name.as_bytes(), &[0]].concat()
}

/// Goal: programs that know btrfs by its ioctls find them on a mount: making, snapshotting by descriptor, flags, deletion.
/// Method: the calls as libbtrfsutil makes them; errors of the kernel's kind; then the image in the kernel.
#[test]
fn subvolumes() {
    let Some(mut mount) = Mount::new("") else { return };
    let top = mount.path("");
    call(&top, SUBVOL_CREATE, &named("v")).unwrap();
    assert_eq!(errno(&top, SUBVOL_CREATE, &named("v")), 17);
    assert_eq!(errno(&top, SUBVOL_CREATE, &named("a/b")), 22);
    assert_eq!(errno(&top, SUBVOL_CREATE, &named(&"x".repeat(300))), 36);
    fs::write(mount.path("v/file"), "contents").unwrap();
    assert_eq!(errno(&mount.path("v/file"), SUBVOL_CREATE, &named("x")), 20);

    let source = File::open(mount.path("v")).unwrap();
    call(&top, SNAP_CREATE_V2, &named_v2(source.as_raw_fd(), 2, "s")).unwrap();
    assert_eq!(fs::read(mount.path("s/file")).unwrap(), b"contents");
    assert!(fs::write(mount.path("s/file"), "x").is_err());
    let file = File::open(mount.path("v/file")).unwrap();
    assert_eq!(errno(&top, SNAP_CREATE_V2, &named_v2(file.as_raw_fd(), 0, "t")), 22);
    let foreign = File::open("/proc").unwrap();
    assert_eq!(errno(&top, SNAP_CREATE_V2, &named_v2(foreign.as_raw_fd(), 0, "t")), 18);
    assert_eq!(errno(&top, SNAP_CREATE_V2, &named_v2(999, 0, "t")), 9);
    assert_eq!(errno(&top, SNAP_CREATE_V2, &named_v2(source.as_raw_fd(), 4, "t")), 22);
    let root = File::open(&top).unwrap();
    call(&mount.path("v"), SNAP_CREATE_V2, &named_v2(root.as_raw_fd(), 0, "of-top")).unwrap();
    assert!(mount.path("v/of-top/v").is_dir(), "the empty directory in place of v");
    drop((file, source, root));

    let flags = |path: &str| u64_at(&call(&mount.path(path), SUBVOL_GETFLAGS, &[]).unwrap(), 0);
    assert_eq!((flags("v"), flags("s")), (0, 2));
    assert_eq!(errno(&mount.path("v/file"), SUBVOL_GETFLAGS, &[]), 22);
    call(&mount.path("s"), SUBVOL_SETFLAGS, &words(&[0])).unwrap();
    fs::write(mount.path("s/file"), "changed").unwrap();
    call(&mount.path("s"), SUBVOL_SETFLAGS, &words(&[2])).unwrap();
    assert!(fs::write(mount.path("s/file"), "x").is_err());
    assert_eq!(errno(&mount.path("s"), SUBVOL_SETFLAGS, &words(&[8])), 95);

    call(&top, SUBVOL_CREATE_V2, &named_v2(0, 0, "gone")).unwrap();
    call(&top, SUBVOL_CREATE_V2, &named_v2(0, 0, "gone2")).unwrap();
    let id = u64_at(&call(&mount.path("gone2"), GET_SUBVOL_INFO, &[]).unwrap(), 0);
    call(&top, SNAP_DESTROY, &named("gone")).unwrap();
    call(&top, SNAP_DESTROY_V2, &words(&[0, 0, 16, 0, 0, 0, 0, id])).unwrap();
    assert!(!mount.path("gone").exists() && !mount.path("gone2").exists());
    assert_eq!(errno(&top, SNAP_DESTROY, &named("gone")), 2);
    fs::create_dir(mount.path("plain")).unwrap();
    assert_eq!(errno(&top, SNAP_DESTROY, &named("plain")), 22);
    mount.verify(|seen| {
        assert_eq!(fs::read(seen.join("s/file")).unwrap(), b"changed");
        assert!(!seen.join("gone").exists() && seen.join("v/of-top").is_dir());
    });
}

/// Goal: what the ioctls tell of the file system and its subvolumes is true. Method: compared with what the command says, and
/// with what was just made.
#[test]
fn telling() {
    let Some(mut mount) = Mount::new("") else { return };
    let top = mount.path("");
    let dir = mount.dir().to_owned();
    fs::create_dir_all(mount.path("d/e")).unwrap();
    fs::write(mount.path("d/e/f"), "x").unwrap();
    call(&mount.path("d/e"), SUBVOL_CREATE, &named("v")).unwrap();
    let info = call(&mount.path("d/e/v"), GET_SUBVOL_INFO, &[]).unwrap();
    let (id, dirid) = (u64_at(&info, 0), u64_at(&info, 272));
    assert_eq!((text_at(&info, 8), u64_at(&info, 264)), ("v".to_owned(), 5));
    let shown = json(&dir, &["subvolume", "show", "--json", "m/d/e/v"]);
    assert_eq!(shown["id"], id);
    assert_eq!(shown["uuid"].as_str().unwrap().replace('-', ""), hex(&info[296..312]));

    let refs = call(&top, GET_SUBVOL_ROOTREF, &[]).unwrap();
    assert_eq!((refs[4088], u64_at(&refs, 8), u64_at(&refs, 16)), (1, id, dirid));
    let found = call(&top, INO_LOOKUP, &words(&[0, dirid])).unwrap();
    assert_eq!((u64_at(&found, 0), text_at(&found, 16)), (5, "d/e/".to_owned()));
    let found = call(&mount.path("d/e/v"), INO_LOOKUP, &words(&[0, 256])).unwrap();
    assert_eq!((u64_at(&found, 0), text_at(&found, 16)), (id, String::new()));
    let found = call(&mount.path("d"), INO_LOOKUP_USER, &words(&[dirid, id])).unwrap();
    assert_eq!((text_at(&found, 16), text_at(&found, 272)), ("v".to_owned(), "e/".to_owned()));

    let fs_info = call(&top, FS_INFO, &[]).unwrap();
    assert_eq!((u64_at(&fs_info, 0), u64_at(&fs_info, 8), u32_at(&fs_info, 32)), (1, 1, 16384));
    let usage = json(&dir, &["filesystem", "usage", "--json", "m"]);
    assert_eq!(usage["uuid"].as_str().unwrap().replace('-', ""), hex(&fs_info[16..32]));
    let device = call(&top, DEV_INFO, &words(&[1])).unwrap();
    assert_eq!(u64_at(&device, 32), 512 << 20);
    assert_eq!(Path::new(&text_at(&device, 3072)), dir.join("i").canonicalize().unwrap());
    assert_eq!(errno(&top, DEV_INFO, &words(&[2])), 19);
    assert_eq!(u64_at(&call(&top, GET_DEV_STATS, &words(&[1, 5])).unwrap(), 24), 0);
    assert!(u64_at(&call(&top, GET_FEATURES, &[]).unwrap(), 16) & 1 << 9 != 0, "no holes");

    // The root items, as `btrfs subvolume list` looks for them.
    let mut key = words(&[1, 256, u64::MAX, 0, u64::MAX, 0, u64::MAX]);
    key.extend([132u32, 132, 100, 0].iter().flat_map(|n| n.to_le_bytes()));
    let items = call(&top, TREE_SEARCH, &key).unwrap();
    let mut at = 104;
    let mut roots = Vec::new();
    for _ in 0..u32_at(&items, 64) {
        roots.push(u64_at(&items, at + 8));
        at += 32 + u32_at(&items, at + 28) as usize;
    }
    assert!(roots.contains(&id), "{roots:?}");
    assert!(u64_at(&call(&mount.path("d/e/f"), GETVERSION, &[]).unwrap(), 0) > 0);
    assert_eq!(errno(&top, LOGICAL_INO_V2, &[]), 25, "what holds pointers cannot be answered");
    mount.verify(|_| {});
}

/// Goal: ioctls that change the whole do so. Method: each, then a look by command and by the kernel.
#[test]
fn the_whole() {
    let Some(mut mount) = Mount::new("") else { return };
    let top = mount.path("");
    let dir = mount.dir().to_owned();
    assert_eq!(text_at(&call(&top, GET_FSLABEL, &[]).unwrap(), 0), "first");
    call(&top, SET_FSLABEL, b"by ioctl\0").unwrap();
    assert_eq!(ok(&dir, &["filesystem", "label", "m"]), "by ioctl\n");
    call(&top, RESIZE, &named("1:+64M")).unwrap();
    assert_eq!(json(&dir, &["filesystem", "usage", "--json", "m"])["device_size"], 576 << 20);
    assert_eq!(errno(&top, RESIZE, &named("nonsense")), 22);

    call(&top, SUBVOL_CREATE, &named("v")).unwrap();
    let id = u64_at(&call(&mount.path("v"), GET_SUBVOL_INFO, &[]).unwrap(), 0);
    call(&top, DEFAULT_SUBVOL, &words(&[id])).unwrap();
    assert!(ok(&dir, &["subvolume", "get-default", "m"]).ends_with("path v\n"));
    call(&top, DEFAULT_SUBVOL, &words(&[0])).unwrap();
    let received = [vec![7; 16], words(&[42, 0, 1_000_000, 5])].concat();
    let noted = call(&mount.path("v"), SET_RECEIVED_SUBVOL, &received).unwrap();
    assert!(u64_at(&noted, 24) > 0);
    let shown = json(&dir, &["subvolume", "show", "--json", "m/v"]);
    assert_eq!((&shown["send_transid"], &shown["send_time"]), (&42.into(), &1_000_000.into()));
    assert_eq!(shown["received_uuid"], "07070707-0707-0707-0707-070707070707");

    let text = "many words, many words\n".repeat(20_000);
    fs::write(mount.path("v/f"), &text).unwrap();
    let mut args = words(&[0, u64::MAX, 1]);
    args.extend([0u32, 3].iter().flat_map(|n| n.to_le_bytes()));
    call(&mount.path("v/f"), DEFRAG_RANGE, &args).unwrap();
    let found = json(&dir, &["subvolume", "find-new", "--json", "m/v", "0"]);
    assert_eq!(found["extents"][0]["flags"], "COMPRESS");
    let transid = call(&top, START_SYNC, &[]).unwrap();
    call(&top, WAIT_SYNC, &transid).unwrap();
    let trimmed = call(&top, FITRIM, &words(&[0, u64::MAX, 0])).unwrap();
    assert!(u64_at(&trimmed, 8) > 1 << 20);
    mount.verify(|seen| assert_eq!(fs::read_to_string(seen.join("v/f")).unwrap(), text));
}

/// Goal: ioctls that change a directory do not hang with others who hold its lock, even when they take up every thread of
/// the server. Method: a server of two threads; eight callers make and delete subvolumes in one directory in which eight
/// others make and remove directories.
#[test]
fn many_at_once() {
    let Some(mut mount) = Mount::new("thread_pool=2") else { return };
    let top = mount.path("");
    std::thread::scope(|threads| {
        for n in 0..8 {
            let top = &top;
            threads.spawn(move || {
                for round in 0..12 {
                    call(top, SUBVOL_CREATE, &named(&format!("v{n}-{round}"))).unwrap();
                    if round % 2 == 0 {
                        call(top, SNAP_DESTROY, &named(&format!("v{n}-{round}"))).unwrap();
                    }
                }
            });
            threads.spawn(move || {
                for round in 0..100 {
                    let dir = top.join(format!("d{n}-{round}"));
                    fs::create_dir(&dir).unwrap();
                    if round % 2 == 0 {
                        fs::remove_dir(&dir).unwrap();
                    }
                }
            });
        }
    });
    let names = |path: &Path| {
        let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let seen_before = names(&top);
    assert_eq!(seen_before.len(), 8 * (6 + 50));
    mount.verify(|seen| assert_eq!(names(seen), seen_before));
}

/// Goal: programs begin balances by ioctl, which waits for the end and says what was done, and ask for their progress;
/// what cannot be is refused. Method: the struct as `linux/btrfs.h` has it: flags, state, three times 136 bytes of
/// filters, three counts.
#[test]
fn balance() {
    const METADATA_AT: usize = 16 + 136;
    const SYSTEM_AT: usize = METADATA_AT + 136;
    const COUNTS_AT: usize = SYSTEM_AT + 136;
    const TARGET: usize = 56;
    const FLAGS: usize = 64;
    let Some(mut mount) = Mount::new("") else { return };
    let top = mount.path("");
    fs::write(mount.path("f"), vec![7; 1 << 20]).unwrap();
    assert_eq!(errno(&top, BALANCE_PROGRESS, &[]), 107, "there is none");
    let args = |flags: u64, target: u64| {
        let mut args = vec![0u8; 1024];
        let mut put = |at: usize, value: u64| args[at..at + 8].copy_from_slice(&value.to_le_bytes());
        put(0, flags);
        for at in [METADATA_AT, SYSTEM_AT].into_iter().filter(|_| target != 0) {
            put(at + TARGET, target);
            put(at + FLAGS, 1 << 8);
        }
        args
    };
    let reported = call(&top, BALANCE_V2, &args(0b001, 0)).unwrap();
    assert!(u64_at(&reported, COUNTS_AT + 8) >= 3, "all groups were considered");
    assert_eq!(
        (u64_at(&reported, COUNTS_AT + 16), u64_at(&reported, 8)),
        (1, 0),
        "that of data was moved, and it has ended"
    );
    let single = 1 << 48;
    assert_eq!(errno(&top, BALANCE_V2, &args(0b110, single)), 22, "copies are not given up by accident");
    assert_eq!(errno(&top, BALANCE_V2, &args(0b110, 1 << 4)), 22, "one device is not enough");
    assert_eq!(errno(&top, BALANCE_V2, &args(1 << 4, 0)), 107, "there is nothing to resume");
    call(&top, BALANCE_V2, &args(0b1110, single)).unwrap();
    let groups = ok(mount.dir(), &["filesystem", "df", "m"]);
    assert!(groups.contains("Metadata, single") && groups.contains("System, single"), "{groups}");
    mount.verify(|top| assert_eq!(fs::read(top.join("f")).unwrap(), vec![7; 1 << 20]));
}

/// Goal: FITRIM refuses what the kernel refuses, and nothing overflows; a label is on disk when its ioctl is done; a refused
/// property leaves no transaction behind; a new subvolume is put into quota groups; the empty directory in place of a
/// nested subvolume takes no attributes; /dev/null takes a stream. Method: the calls; the superblock beside the mount;
/// quota as shown.
#[test]
fn as_the_kernel_answers() {
    let Some(mut mount) = Mount::new("") else { return };
    let dir = mount.dir().to_owned();
    let top = mount.path("");
    for refused in [[0, 0, 0], [0, 4095, 0], [u64::MAX, u64::MAX, 0], [u64::MAX - 4095, 4096, 0]] {
        assert_eq!(errno(&top, FITRIM, &words(&refused)), 22, "{refused:?}");
    }
    for nothing in [[1 << 50, 1 << 20, 0], [1 << 60, u64::MAX, 0], [0, u64::MAX, u64::MAX], [0, u64::MAX, 1 << 60]] {
        let trimmed = call(&top, FITRIM, &words(&nothing)).unwrap();
        assert_eq!(u64_at(&trimmed, 8), 0, "{nothing:?}");
    }
    let on_disk = || json(&dir, &["inspect", "dump-super", "--json", "i"]);
    call(&top, SET_FSLABEL, b"known at once\0").unwrap();
    assert!(on_disk().to_string().contains("known at once"));

    call(&top, SUBVOL_CREATE, &named("v")).unwrap();
    fs::write(mount.path("v/f"), b"content").unwrap();
    ok(&dir, &["filesystem", "sync", "m"]);
    let before = on_disk();
    for (path, name, value) in [("m/v/f", "compression", "nonsense"), ("m/v/f", "ro", "true"), ("m/v", "ro", "perhaps")]
    {
        let out = run(&dir, &["property", "set", path, name, value]);
        assert!(!out.status.success(), "{name}={value}");
    }
    let set =
        rustix::fs::setxattr(mount.path("v/f"), "btrfs.compression", b"nonsense", rustix::fs::XattrFlags::empty());
    assert_eq!(set, Err(rustix::io::Errno::INVAL));
    ok(&dir, &["filesystem", "sync", "m"]);
    assert_eq!(on_disk(), before);

    ok(&dir, &["quota", "enable", "m"]);
    ok(&dir, &["qgroup", "create", "1/7", "m"]);
    let inherit = words(&[0, 1, 0, 0, 0, 0, 0, 0, 0, 1 << 48 | 7]);
    let address = inherit.as_ptr() as u64;
    let with = |name: &str| [&words(&[0, 0, 4, inherit.len() as u64, address, 0, 0]), name.as_bytes(), &[0]].concat();
    call(&top, SUBVOL_CREATE_V2, &with("w")).unwrap();
    let bad = [&words(&[0, 0, 4, 80, 8, 0, 0]), &b"x\0"[..]].concat();
    assert_eq!(errno(&top, SUBVOL_CREATE_V2, &bad), 14);
    let groups = json(&dir, &["qgroup", "show", "--json", "--sync", "m"]);
    let group = groups.as_array().unwrap().iter().find(|g| g["qgroupid"] == "1/7").unwrap().to_string();
    assert!(group.contains("0/257"), "{group}");

    call(&mount.path("v"), SUBVOL_CREATE, &named("nested")).unwrap();
    ok(&dir, &["subvolume", "snapshot", "m/v", "m/s"]);
    let empty_subvol_dir =
        rustix::fs::setxattr(mount.path("s/nested"), "user.a", b"x", rustix::fs::XattrFlags::empty());
    assert_eq!(empty_subvol_dir, Err(rustix::io::Errno::OPNOTSUPP));
    ok(&dir, &["property", "set", "m/s", "ro", "true"]);
    ok(&dir, &["send", "-f", "/dev/null", "m/s"]);
    drop(inherit);
    mount.verify(|seen| assert_eq!(fs::read(seen.join("v/f")).unwrap(), b"content"));
}

/// Goal: what is told of a device's replacement is what the kernel tells of the same volume: never begun, or finished and when; there is
/// none to cancel, and none is begun without names.
/// Method: the ioctl on a kernel mount, before and after the kernel replaced the only device, and on ours of either image.
#[test]
fn replacing_a_device() {
    let Some(oracle) = oracle() else { return };
    const STATUS: u64 = 1;
    const TOLD: usize = 64;
    let scratch = oracle.scratch().unwrap();
    let [old, new] = ["old", "new"].map(|name| scratch.image(name, 256 << 20).unwrap());
    oracle.mkfs(&["-m", "single"], &[&old]).unwrap();
    let status = |top: &Path| call(top, DEV_REPLACE, &words(&[STATUS, 7])).unwrap()[..TOLD].to_vec();
    let ours = |image: &Path| {
        let served = Served::mount(Path::new(env!("CARGO_BIN_EXE_oleo")), &[image], "", Limits::default()).unwrap();
        let reported = status(served.path());
        let cancelled = call(served.path(), DEV_REPLACE, &words(&[2])).unwrap();
        assert_eq!(u64_at(&cancelled, 8), 1, "there is none");
        assert_eq!(errno(served.path(), DEV_REPLACE, &words(&[0])), 22);
        assert_eq!(errno(served.path(), DEV_REPLACE, &words(&[9])), 22);
        served.unmount().unwrap();
        reported
    };
    let never = ours(&old);
    let mounted = oracle.mount(&[&old], "").unwrap();
    assert_eq!(never, status(mounted.path()));
    let cancelled = call(mounted.path(), DEV_REPLACE, &words(&[2])).unwrap();
    assert_eq!(u64_at(&cancelled, 8), 1, "the kernel says so, too");
    let target = Loop::attach(&new, ReadOnly::No).unwrap();
    let replace = ["replace", "start", "-B", "-f", "1"].map(std::ffi::OsStr::new).into_iter();
    oracle_run("btrfs", replace.chain([target.path().as_os_str(), mounted.path().as_os_str()])).unwrap();
    let finished = status(mounted.path());
    mounted.unmount().unwrap();
    drop(target);
    assert_eq!(ours(&new), finished);
    assert_ne!(finished, never);
}

/// The start of a replacement: a number, and names.
fn replacement(devid: u64, target: &Path) -> Vec<u8> {
    let mut start = words(&[0, 0, devid, 0]);
    start.resize(32 + 1025, 0);
    start.extend(target.to_str().unwrap().bytes());
    start
}

/// Goal: programs that know devices by their ioctls find them on a mount: one is added, replaces another and is removed, by number and by path; counters are told and set to
/// zero for one device; of a scrub it is told whether there is one. `btrfs` itself asks statfs(2) first, and calls none of them.
/// Method: the calls on a mount of a mirror of which a sector of one side was changed; then all is as it was, in the kernel, too.
#[test]
fn devices() {
    let Some(oracle) = oracle() else { return };
    const LEN: u64 = 256 << 20;
    let scratch = oracle.scratch().unwrap();
    let all = ["a", "b", "c", "d"].map(|name| scratch.image(name, LEN).unwrap());
    let [a, b, c, d] = all.each_ref().map(|path| path.as_path());
    oracle.mkfs(&["-m", "raid1", "-d", "raid1"], &[a, b]).unwrap();
    let content = b"what is not to be lost, and is found again by these words".repeat(1000);
    let mounted = oracle.mount(&[a, b], "").unwrap();
    fs::write(mounted.path().join("file"), &content).unwrap();
    mounted.unmount().unwrap();
    rot(b, &content[..4096]);

    let served = Served::mount(Path::new(env!("CARGO_BIN_EXE_oleo")), &[a, b], "", Limits::default()).unwrap();
    let top = served.path();
    let devices = || u64_at(&call(top, FS_INFO, &[]).unwrap(), 8);
    let counted = |devid, flags| {
        let stats = call(top, GET_DEV_STATS, &words(&[devid, 5, flags])).unwrap();
        [u64_at(&stats, 24 + 8 * 3), u64_at(&stats, 8)]
    };
    ok(scratch.path(), &["scrub", "start", "-B", top.to_str().unwrap()]);
    let [bad, values] = counted(2, 0);
    assert!(bad > 0 && values == 5, "{bad} {values}");
    assert_eq!(counted(1, 1), [0, 5]);
    assert_eq!(counted(2, 1), [bad, 5], "those of another device were set to zero");
    assert_eq!(counted(2, 0), [0, 5]);
    assert_eq!(errno(top, GET_DEV_STATS, &words(&[9, 5])), 19);

    assert_eq!(errno(top, SCRUB, &words(&[1, 0, u64::MAX])), 25);
    assert_eq!(errno(top, SCRUB_CANCEL, &[]), 107);
    assert_eq!(errno(top, SCRUB_PROGRESS, &words(&[1])), 107);
    assert_eq!(errno(top, SCRUB_PROGRESS, &words(&[9])), 19);

    assert_eq!(errno(top, ADD_DEV, &named("c")), 22, "relative to whom?");
    call(top, ADD_DEV, &named(c.to_str().unwrap())).unwrap();
    assert_eq!(devices(), 3);
    let done = call(top, DEV_REPLACE, &replacement(2, d)).unwrap();
    assert_eq!(u64_at(&done, 8), 0);
    assert_eq!(u64_at(&call(top, DEV_REPLACE, &words(&[1])).unwrap(), 16), 2, "finished");
    let by_number = [&words(&[0, 0, 8, 0, 0, 0, 0])[..], &words(&[1])].concat();
    call(top, RM_DEV_V2, &by_number).unwrap();
    assert_eq!(devices(), 2);
    assert_eq!(errno(top, RM_DEV_V2, &words(&[0, 0, 1 << 4])), 95);
    // The mount still has the name of the first.
    assert_eq!(errno(top, ADD_DEV, &named(a.to_str().unwrap())), 16);
    call(top, ADD_DEV, &named(b.to_str().unwrap())).unwrap();
    call(top, RM_DEV, &named(c.to_str().unwrap())).unwrap();
    assert_eq!(devices(), 2);

    let theirs = |args: &[&str]| {
        let said = oracle_run("btrfs", args.iter().copied().chain([top.to_str().unwrap()])).unwrap_err().to_string();
        assert!(said.contains("not a btrfs filesystem"), "{args:?}: {said}");
    };
    [&["device", "add", "/dev/null"][..], &["device", "remove", "1"], &["device", "stats"], &["scrub", "start", "-B"]]
        .into_iter()
        .for_each(theirs);
    served.unmount().unwrap();
    oracle.must_be_sound(&[b, d], "devices were changed by ioctls").unwrap();
    let mounted = oracle.mount(&[b, d], "").unwrap();
    assert!(fs::read(mounted.path().join("file")).unwrap() == content);
    assert!(mounted.scrub().unwrap().is_clean());
    mounted.unmount().unwrap();
}

/// Changes every copy of some bytes in an image.
fn rot(image: &Path, bytes: &[u8]) {
    let mut all = fs::read(image).unwrap();
    let places: Vec<usize> = (0..all.len()).step_by(4096).filter(|at| all[*at..].starts_with(bytes)).collect();
    assert!(!places.is_empty(), "{} does not have it", image.display());
    places.into_iter().for_each(|at| all[at] ^= 1);
    fs::write(image, all).unwrap();
}

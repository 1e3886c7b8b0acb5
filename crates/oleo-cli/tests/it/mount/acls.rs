//! POSIX access control lists, as extended attributes of the layout that linux/posix_acl_xattr.h gives.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Gid, Mode, OFlags, Uid, XattrFlags};
use rustix::io::{Errno, Result};

use crate::mount::place::{Place, family, open, refused};
use crate::mount::sys::{ALICE, BOB, Who, act_as, with_umask};

family!(
    "";
    named_user, named_group, mask_limits, chmod_changes_the_mask, minimal_acl_is_the_mode, set_changes_the_mode, default_is_inherited after default_after,
    default_and_umask, default_only_on_directories, bad_lists, only_the_owner_sets, removing, setgid_goes_when_a_stranger_sets,
    tmpfile_inherits,
);

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const NOBODY: u32 = u32::MAX;

/// An entry: tag, permissions, id.
type Entry = (u16, u16, u32);
const fn user_obj(perm: u16) -> Entry {
    (0x01, perm, NOBODY)
}
const fn user(id: u32, perm: u16) -> Entry {
    (0x02, perm, id)
}
const fn group_obj(perm: u16) -> Entry {
    (0x04, perm, NOBODY)
}
const fn group(id: u32, perm: u16) -> Entry {
    (0x08, perm, id)
}
const fn mask(perm: u16) -> Entry {
    (0x10, perm, NOBODY)
}
const fn other(perm: u16) -> Entry {
    (0x20, perm, NOBODY)
}

fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(perm.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

fn set(path: &Path, name: &str, entries: &[Entry]) -> Result<()> {
    rustix::fs::setxattr(path, name, &encode(entries), XattrFlags::empty())
}

fn get(path: &Path, name: &str) -> Result<Vec<Entry>> {
    let mut buf = [0; 1000];
    let len = rustix::fs::getxattr(path, name, &mut buf[..])?;
    let word = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
    let entry = |b: &[u8]| (word(b), word(&b[2..]), u32::from_le_bytes([b[4], b[5], b[6], b[7]]));
    Ok(buf[4..len].chunks(8).map(entry).collect())
}

fn bits(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn chmod(path: &Path, to: u32) {
    rustix::fs::chmod(path, Mode::from_raw_mode(to)).unwrap();
}

fn can(who: Who<'_>, path: &Path, flags: OFlags) -> bool {
    match act_as(who, || open(path, flags).map(drop)) {
        Ok(()) => true,
        Err(e) => {
            refused(Err::<(), _>(e), Errno::ACCESS);
            false
        }
    }
}

fn named_user(at: &Place) {
    let path = at.file("f", b"x");
    chmod(&path, 0o600);
    assert!(!can(ALICE, &path, OFlags::RDONLY));
    set(&path, ACCESS, &[user_obj(6), user(ALICE.uid, 6), group_obj(0), mask(6), other(0)]).unwrap();
    assert!(can(ALICE, &path, OFlags::RDWR));
    assert!(!can(BOB, &path, OFlags::RDONLY));
    // The mask is shown in the place of the group's bits.
    assert_eq!(bits(&path), 0o660);
}

fn named_group(at: &Place) {
    let path = at.file("f", b"x");
    set(&path, ACCESS, &[user_obj(6), group_obj(0), group(77_000, 4), mask(7), other(0)]).unwrap();
    let member = Who { groups: &[77_000], ..BOB };
    assert!(can(member, &path, OFlags::RDONLY));
    assert!(!can(member, &path, OFlags::WRONLY));
    assert!(!can(BOB, &path, OFlags::RDONLY));
}

fn mask_limits(at: &Place) {
    let path = at.file("f", b"x");
    set(&path, ACCESS, &[user_obj(6), user(ALICE.uid, 7), group_obj(7), mask(4), other(6)]).unwrap();
    assert!(can(ALICE, &path, OFlags::RDONLY));
    assert!(!can(ALICE, &path, OFlags::WRONLY));
    assert!(can(BOB, &path, OFlags::RDWR), "others are not masked");
}

fn chmod_changes_the_mask(at: &Place) {
    let path = at.file("f", b"x");
    set(&path, ACCESS, &[user_obj(6), user(ALICE.uid, 6), group_obj(4), mask(6), other(0)]).unwrap();
    chmod(&path, 0o740);
    let want = [user_obj(7), user(ALICE.uid, 6), group_obj(4), mask(4), other(0)];
    assert_eq!(get(&path, ACCESS).unwrap(), want);
    assert!(!can(ALICE, &path, OFlags::WRONLY));
    chmod(&path, 0o660);
    assert!(can(ALICE, &path, OFlags::WRONLY));
}

fn minimal_acl_is_the_mode(at: &Place) {
    let path = at.file("f", b"x");
    refused(get(&path, ACCESS), Errno::NODATA);
    set(&path, ACCESS, &[user_obj(7), group_obj(5), other(1)]).unwrap();
    assert_eq!(bits(&path), 0o751);
    // Nothing is kept beside the mode.
    refused(get(&path, ACCESS), Errno::NODATA);
    assert_eq!(rustix::fs::listxattr_query(&path), Ok(0));
}

fn set_changes_the_mode(at: &Place) {
    let path = at.file("f", b"x");
    let ctime = || {
        let meta = fs::metadata(&path).unwrap();
        (meta.ctime(), meta.ctime_nsec())
    };
    let before = ctime();
    std::thread::sleep(std::time::Duration::from_millis(25));
    set(&path, ACCESS, &[user_obj(7), user(1, 1), group_obj(1), mask(3), other(4)]).unwrap();
    assert_eq!(bits(&path), 0o734);
    assert!(ctime() > before);
    let mut buf = [0; 100];
    let len = rustix::fs::listxattr(&path, &mut buf[..]).unwrap();
    assert_eq!(&buf[..len], b"system.posix_acl_access\0");
}

const INHERITED: [Entry; 6] = [user_obj(7), user(ALICE.uid, 7), group_obj(5), group(77_000, 6), mask(7), other(0)];

fn default_is_inherited(at: &Place) {
    let dir = at.subdir("d");
    set(&dir, DEFAULT, &INHERITED).unwrap();
    assert_eq!(bits(&dir), 0o777, "a default list does not concern the directory itself");
    rustix::fs::open(dir.join("f"), OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(0o664)).unwrap();
    rustix::fs::mkdir(dir.join("e"), Mode::from_raw_mode(0o775)).unwrap();
    rustix::fs::mkdir(dir.join("e/deeper"), Mode::from_raw_mode(0o700)).unwrap();
    rustix::fs::symlink("f", dir.join("l")).unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, dir.join("p"), fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    default_after(&at.dir);
    assert!(can(ALICE, &dir.join("f"), OFlags::RDWR));
    assert!(!can(BOB, &dir.join("f"), OFlags::RDONLY));
}

fn default_after(dir: &Path) {
    let dir = dir.join("d");
    let as_made = |owner, mask_perm| {
        [user_obj(owner), user(ALICE.uid, 7), group_obj(5), group(77_000, 6), mask(mask_perm), other(0)]
    };
    assert_eq!(get(&dir.join("f"), ACCESS).unwrap(), as_made(6, 6));
    assert_eq!(bits(&dir.join("f")), 0o660);
    refused(get(&dir.join("f"), DEFAULT), Errno::NODATA);
    assert_eq!(get(&dir.join("e"), ACCESS).unwrap(), as_made(7, 7));
    assert_eq!(get(&dir.join("e"), DEFAULT).unwrap(), INHERITED);
    assert_eq!(get(&dir.join("e/deeper"), ACCESS).unwrap(), as_made(7, 0));
    assert_eq!(get(&dir.join("e/deeper"), DEFAULT).unwrap(), INHERITED);
    assert_eq!(get(&dir.join("p"), ACCESS).unwrap(), as_made(6, 0));
    assert_eq!(fs::symlink_metadata(dir.join("l")).unwrap().mode(), 0o120_777);
}

/// Where there is a default list, the umask does not count.
fn default_and_umask(at: &Place) {
    let (plain, with) = (at.subdir("plain"), at.subdir("with"));
    set(&with, DEFAULT, &[user_obj(7), group_obj(7), other(7)]).unwrap();
    with_umask(0o027, || {
        for dir in [&plain, &with] {
            rustix::fs::open(dir.join("f"), OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(0o666)).unwrap();
            rustix::fs::mkdir(dir.join("d"), Mode::from_raw_mode(0o777)).unwrap();
        }
    });
    assert_eq!((bits(&plain.join("f")), bits(&plain.join("d"))), (0o640, 0o750));
    assert_eq!((bits(&with.join("f")), bits(&with.join("d"))), (0o666, 0o777));
}

fn default_only_on_directories(at: &Place) {
    let path = at.file("f", b"x");
    refused(set(&path, DEFAULT, &[user_obj(7), group_obj(5), other(5)]), Errno::ACCESS);
}

fn bad_lists(at: &Place) {
    let path = at.file("f", b"x");
    // Without a mask, out of order, twice the same, without the others.
    refused(set(&path, ACCESS, &[user_obj(6), user(1, 6), group_obj(0), other(0)]), Errno::INVAL);
    refused(set(&path, ACCESS, &[other(0), group_obj(0), user_obj(6)]), Errno::INVAL);
    refused(set(&path, ACCESS, &[user_obj(6), user_obj(6), group_obj(0), other(0)]), Errno::INVAL);
    refused(set(&path, ACCESS, &[user_obj(6), group_obj(0)]), Errno::INVAL);
    refused(rustix::fs::setxattr(&path, ACCESS, b"\x02\0\0\0\x01", XattrFlags::empty()), Errno::INVAL);
    let mut other_version = encode(&[user_obj(6), group_obj(0), other(0)]);
    other_version[0] = 3;
    refused(rustix::fs::setxattr(&path, ACCESS, &other_version, XattrFlags::empty()), Errno::OPNOTSUPP);
    assert_eq!(bits(&path), 0o666);
}

fn only_the_owner_sets(at: &Place) {
    let path = at.file("f", b"x");
    rustix::fs::chown(&path, Some(Uid::from_raw(ALICE.uid)), Some(Gid::from_raw(ALICE.gid))).unwrap();
    let list = [user_obj(6), user(BOB.uid, 6), group_obj(0), mask(6), other(0)];
    refused(act_as(BOB, || set(&path, ACCESS, &list)), Errno::PERM);
    act_as(ALICE, || set(&path, ACCESS, &list)).unwrap();
    assert!(can(BOB, &path, OFlags::RDWR));
    refused(act_as(BOB, || rustix::fs::removexattr(&path, ACCESS)), Errno::PERM);
}

fn removing(at: &Place) {
    let dir = at.subdir("d");
    set(&dir, DEFAULT, &INHERITED).unwrap();
    rustix::fs::removexattr(&dir, DEFAULT).unwrap();
    refused(get(&dir, DEFAULT), Errno::NODATA);
    let path = at.file("d/f", b"x");
    refused(get(&path, ACCESS), Errno::NODATA);
    set(&path, ACCESS, &INHERITED).unwrap();
    rustix::fs::removexattr(&path, ACCESS).unwrap();
    refused(get(&path, ACCESS), Errno::NODATA);
    assert!(!can(ALICE, &path, OFlags::RDONLY));
}

fn setgid_goes_when_a_stranger_sets(at: &Place) {
    let path = at.file("f", b"x");
    rustix::fs::chown(&path, Some(Uid::from_raw(ALICE.uid)), Some(Gid::from_raw(77_000))).unwrap();
    let list = [user_obj(7), user(BOB.uid, 5), group_obj(5), mask(5), other(0)];
    chmod(&path, 0o2755);
    act_as(ALICE, || set(&path, ACCESS, &list)).unwrap();
    assert_eq!(bits(&path), 0o750);
    chmod(&path, 0o2755);
    act_as(Who { groups: &[77_000], ..ALICE }, || set(&path, ACCESS, &list)).unwrap();
    assert_eq!(bits(&path), 0o2750);
}

fn tmpfile_inherits(at: &Place) {
    let dir = at.subdir("d");
    set(&dir, DEFAULT, &INHERITED).unwrap();
    let file = rustix::fs::open(&dir, OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o660)).unwrap();
    assert_eq!(rustix::fs::fgetxattr(&file, ACCESS, &mut [0; 100][..]), Ok(4 + 6 * 8));
    rustix::fs::linkat(&file, "", rustix::fs::CWD, at.at("named"), rustix::fs::AtFlags::EMPTY_PATH).unwrap();
    assert_eq!(bits(&at.at("named")), 0o660);
    assert!(can(ALICE, &at.at("named"), OFlags::RDWR));
}

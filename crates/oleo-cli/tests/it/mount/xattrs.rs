//! Extended attributes.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rustix::fs::{Gid, Mode, Uid, XattrFlags};
use rustix::io::{Errno, Result};

use crate::mount::place::{Place, family, refused};
use crate::mount::sys::{ALICE, BOB, act_as};

family!(
    "";
    set_get_list_remove after set_after, create_and_replace, small_buffers, too_large, name_lengths, name_spaces, trusted_is_roots,
    user_needs_rights, kinds_of_files, of_symlinks, many after many_after, values_of_any_bytes, replaced_by_other_lengths,
    on_read_only_descriptors,
);

fn set(path: &Path, name: &str, value: &[u8]) -> Result<()> {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())
}

fn get(path: &Path, name: &str) -> Result<Vec<u8>> {
    let mut buf = vec![0; 70_000];
    let len = rustix::fs::lgetxattr(path, name, &mut buf[..])?;
    buf.truncate(len);
    Ok(buf)
}

fn list(path: &Path) -> BTreeSet<String> {
    let mut buf = vec![0; 70_000];
    let len = rustix::fs::llistxattr(path, &mut buf[..]).unwrap();
    assert!(len == 0 || buf[len - 1] == 0);
    let names = buf[..len].split(|b| *b == 0).filter(|n| !n.is_empty());
    names.map(|n| String::from_utf8(n.to_vec()).unwrap()).collect()
}

fn names(of: &[&str]) -> BTreeSet<String> {
    of.iter().map(|s| (*s).to_owned()).collect()
}

fn set_get_list_remove(at: &Place) {
    let path = at.file("f", b"x");
    assert_eq!(list(&path), names(&[]));
    refused(get(&path, "user.a"), Errno::NODATA);
    refused(rustix::fs::removexattr(&path, "user.a"), Errno::NODATA);
    set(&path, "user.a", b"one").unwrap();
    set(&path, "trusted.b", b"two").unwrap();
    set(&path, "security.c", b"three").unwrap();
    set(&path, "user.empty", b"").unwrap();
    assert_eq!(list(&path), names(&["user.a", "trusted.b", "security.c", "user.empty"]));
    assert_eq!(get(&path, "user.empty").unwrap(), b"");
    set(&path, "user.a", b"a longer value").unwrap();
    assert_eq!(get(&path, "user.a").unwrap(), b"a longer value");
    set(&path, "user.gone", b"x").unwrap();
    rustix::fs::removexattr(&path, "user.gone").unwrap();
    refused(get(&path, "user.gone"), Errno::NODATA);
    set_after(&at.dir);
}

fn set_after(dir: &Path) {
    let path = dir.join("f");
    assert_eq!(get(&path, "user.a").unwrap(), b"a longer value");
    assert_eq!(get(&path, "trusted.b").unwrap(), b"two");
    assert_eq!(get(&path, "security.c").unwrap(), b"three");
    assert_eq!(list(&path).len(), 4);
}

fn create_and_replace(at: &Place) {
    let path = at.file("f", b"x");
    let with = |value: &[u8], flags| rustix::fs::setxattr(&path, "user.a", value, flags);
    refused(with(b"1", XattrFlags::REPLACE), Errno::NODATA);
    with(b"1", XattrFlags::CREATE).unwrap();
    refused(with(b"2", XattrFlags::CREATE), Errno::EXIST);
    assert_eq!(get(&path, "user.a").unwrap(), b"1");
    with(b"2", XattrFlags::REPLACE).unwrap();
    assert_eq!(get(&path, "user.a").unwrap(), b"2");
}

fn small_buffers(at: &Place) {
    let path = at.file("f", b"x");
    set(&path, "user.name", b"0123456789").unwrap();
    assert_eq!(rustix::fs::getxattr_query(&path, "user.name"), Ok(10));
    assert_eq!(rustix::fs::listxattr_query(&path), Ok(10));
    refused(rustix::fs::getxattr(&path, "user.name", &mut [0; 9][..]), Errno::RANGE);
    refused(rustix::fs::listxattr(&path, &mut [0; 9][..]), Errno::RANGE);
    assert_eq!(rustix::fs::getxattr(&path, "user.name", &mut [0; 10][..]), Ok(10));
    assert_eq!(rustix::fs::listxattr(&path, &mut [0; 10][..]), Ok(10));
}

/// Beyond 64 KiB the kernel refuses by itself, beyond what a tree block takes the file system.
fn too_large(at: &Place) {
    let path = at.file("f", b"x");
    refused(set(&path, "user.a", &vec![1; 65_537]), Errno::TOOBIG);
    refused(set(&path, "user.a", &vec![1; 65_536]), Errno::NOSPC);
    refused(set(&path, "user.a", &vec![1; 16_384]), Errno::NOSPC);
    set(&path, "user.a", &vec![7; 16_000]).unwrap();
    assert_eq!(get(&path, "user.a").unwrap(), vec![7; 16_000]);
    assert_eq!(list(&path), names(&["user.a"]));
}

fn name_lengths(at: &Place) {
    let path = at.file("f", b"x");
    let fits = format!("user.{}", "n".repeat(250));
    set(&path, &fits, b"x").unwrap();
    assert_eq!(get(&path, &fits).unwrap(), b"x");
    refused(set(&path, &format!("user.{}", "n".repeat(251)), b"x"), Errno::RANGE);
    refused(set(&path, "", b"x"), Errno::RANGE);
    refused(set(&path, "user.", b"x"), Errno::INVAL);
}

fn name_spaces(at: &Place) {
    let path = at.file("f", b"x");
    refused(set(&path, "nonsense.a", b"x"), Errno::OPNOTSUPP);
    refused(set(&path, "plain", b"x"), Errno::OPNOTSUPP);
    refused(get(&path, "nonsense.a"), Errno::OPNOTSUPP);
    refused(set(&path, "system.a", b"x"), Errno::OPNOTSUPP);
    // btrfs has its own, with values of its own.
    set(&path, "btrfs.compression", b"zstd").unwrap();
    assert_eq!(get(&path, "btrfs.compression").unwrap(), b"zstd");
    refused(set(&path, "btrfs.compression", b"rar"), Errno::INVAL);
    refused(set(&path, "btrfs.nothing", b"x"), Errno::INVAL);
}

fn trusted_is_roots(at: &Place) {
    let path = at.file("f", b"x");
    rustix::fs::chmod(&path, Mode::from_raw_mode(0o666)).unwrap();
    set(&path, "trusted.a", b"x").unwrap();
    set(&path, "user.a", b"x").unwrap();
    act_as(ALICE, || {
        refused(get(&path, "trusted.a"), Errno::NODATA);
        refused(set(&path, "trusted.b", b"x"), Errno::PERM);
        refused(rustix::fs::removexattr(&path, "trusted.a"), Errno::PERM);
        refused(set(&path, "security.a", b"x"), Errno::PERM);
    });
}

fn user_needs_rights(at: &Place) {
    let path = at.file("f", b"x");
    rustix::fs::chown(&path, Some(Uid::from_raw(ALICE.uid)), Some(Gid::from_raw(ALICE.gid))).unwrap();
    rustix::fs::chmod(&path, Mode::from_raw_mode(0o644)).unwrap();
    act_as(ALICE, || set(&path, "user.a", b"x")).unwrap();
    act_as(BOB, || {
        assert_eq!(get(&path, "user.a").unwrap(), b"x");
        refused(set(&path, "user.a", b"y"), Errno::ACCESS);
        refused(rustix::fs::removexattr(&path, "user.a"), Errno::ACCESS);
    });
    rustix::fs::chmod(&path, Mode::from_raw_mode(0o600)).unwrap();
    refused(act_as(BOB, || get(&path, "user.a")), Errno::ACCESS);
    // In a sticky directory only its owner may set them.
    let dir = at.open_dir("d");
    rustix::fs::chmod(&dir, Mode::from_raw_mode(0o1777)).unwrap();
    refused(act_as(ALICE, || set(&dir, "user.a", b"x")), Errno::PERM);
}

fn kinds_of_files(at: &Place) {
    let dir = at.subdir("d");
    set(&dir, "user.a", b"x").unwrap();
    assert_eq!(get(&dir, "user.a").unwrap(), b"x");
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, at.at("p"), fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    refused(set(&at.at("p"), "user.a", b"x"), Errno::PERM);
    set(&at.at("p"), "trusted.a", b"x").unwrap();
    // A property that means nothing there is taken and forgotten.
    set(&at.at("p"), "btrfs.compression", b"lzo").unwrap();
    refused(set(&at.at("p"), "btrfs.compression", b"rar"), Errno::INVAL);
    assert_eq!(list(&at.at("p")), names(&["trusted.a"]));
}

fn of_symlinks(at: &Place) {
    let path = at.file("f", b"x");
    rustix::fs::symlink("f", at.at("l")).unwrap();
    refused(set(&at.at("l"), "user.a", b"x"), Errno::PERM);
    set(&at.at("l"), "trusted.a", b"on the link").unwrap();
    assert_eq!(list(&path), names(&[]));
    rustix::fs::setxattr(at.at("l"), "user.a", b"through", XattrFlags::empty()).unwrap();
    assert_eq!(get(&path, "user.a").unwrap(), b"through");
    assert_eq!(list(&at.at("l")), names(&["trusted.a"]));
}

const MANY: usize = 500;

fn many(at: &Place) {
    let path = at.file("f", b"x");
    for n in 0..MANY {
        set(&path, &format!("user.attribute-number-{n}"), format!("{n}").repeat(20).as_bytes()).unwrap();
    }
    for n in (0..MANY).step_by(3) {
        rustix::fs::removexattr(&path, format!("user.attribute-number-{n}")).unwrap();
    }
    many_after(&at.dir);
}

fn many_after(dir: &Path) {
    let path = dir.join("f");
    assert_eq!(list(&path).len(), MANY - MANY.div_ceil(3));
    for n in (0..MANY).filter(|n| n % 3 != 0) {
        assert_eq!(get(&path, &format!("user.attribute-number-{n}")).unwrap(), format!("{n}").repeat(20).as_bytes());
    }
}

fn values_of_any_bytes(at: &Place) {
    let path = at.file("f", b"x");
    let value: Vec<u8> = (0..=255).collect();
    set(&path, "user.a", &value).unwrap();
    assert_eq!(get(&path, "user.a").unwrap(), value);
    // Names too.
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::OsStr::from_bytes(b"user.\xff\xfe\x01");
    rustix::fs::setxattr(&path, name, b"y", XattrFlags::empty()).unwrap();
    assert_eq!(rustix::fs::getxattr_query(&path, name), Ok(1));
    rustix::fs::removexattr(&path, name).unwrap();
}

fn replaced_by_other_lengths(at: &Place) {
    let path = at.file("f", b"x");
    set(&path, "user.other", b"stays").unwrap();
    for len in [1, 3000, 5, 12_000, 0, 700] {
        set(&path, "user.a", &vec![b'v'; len]).unwrap();
        assert_eq!(get(&path, "user.a").unwrap(), vec![b'v'; len]);
    }
    assert_eq!(get(&path, "user.other").unwrap(), b"stays");
}

fn on_read_only_descriptors(at: &Place) {
    let file = fs::File::open(at.file("f", b"x")).unwrap();
    rustix::fs::fsetxattr(&file, "user.a", b"x", XattrFlags::empty()).unwrap();
    assert_eq!(rustix::fs::fgetxattr(&file, "user.a", &mut [0; 10][..]), Ok(1));
    assert_eq!(rustix::fs::flistxattr(&file, &mut [0; 10][..]), Ok(7));
    rustix::fs::fremovexattr(&file, "user.a").unwrap();
}

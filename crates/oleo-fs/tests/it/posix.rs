//! What POSIX and Linux ask of single operations: files without names, marks that renames leave, privileges, flags.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use anyhow::{Context, Result, ensure};
use oleo_device::{Device, FileDevice, FileOptions, MemDevice};
use oleo_format::{Ino, InodeFlags, ItemType, Key, TreeId};
use oleo_fs::data::{CloneRange, KeepSize};
use oleo_fs::{
    AtimePolicy, Clock, FileKind, Fs, FsError, FsOptions, InodeRef, NewInode, NewKind, NewSubvol, ReadOnly, RenameMode,
    SetAttr, SnapshotOptions, Strip, Time, XattrMode, errno,
};
use oleo_mkfs::{MkfsOptions, make};
use oleo_sim::oracle::oracle;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

const IMAGE_LEN: u64 = 256 << 20;
const DAY: i64 = 86_400;

/// A clock that the test moves.
#[derive(Default)]
struct HandClock(AtomicI64);

impl HandClock {
    fn set(&self, sec: i64) {
        self.0.store(sec, Ordering::SeqCst);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Time {
        at(self.0.load(Ordering::SeqCst))
    }
}

fn at(sec: i64) -> Time {
    Time { sec, nsec: 5 }
}

fn open_on(device: Arc<dyn Device>, clock: Arc<HandClock>) -> Result<Fs> {
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() })?;
    let engine = Engine::open(Arc::new(volume), &EngineOptions::default())?;
    Ok(Fs::open(engine, &FsOptions::default().clock(clock))?)
}

/// A file system in memory, its clock at second 1000, and its top directory.
fn in_memory() -> Result<(Fs, InodeRef, Arc<HandClock>)> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(IMAGE_LEN));
    make(std::slice::from_ref(&device), &MkfsOptions::default())?;
    let clock = Arc::new(HandClock::default());
    clock.set(1000);
    let fs = open_on(device, clock.clone())?;
    let root = fs.root(TreeId::FS)?;
    Ok((fs, root, clock))
}

fn in_file(image: &Path) -> Result<Arc<dyn Device>> {
    Ok(Arc::new(FileDevice::open(image, &FileOptions::default().write(true))?))
}

fn file(fs: &Fs, dir: &InodeRef, name: &str) -> Result<InodeRef> {
    Ok(fs.create(dir, name.as_bytes(), &NewInode::new(NewKind::File, 0o644))?)
}

fn mkdir(fs: &Fs, dir: &InodeRef, name: &str) -> Result<InodeRef> {
    Ok(fs.create(dir, name.as_bytes(), &NewInode::new(NewKind::Dir, 0o755))?)
}

/// The errno of what must fail.
fn refused<T>(done: Result<T, FsError>) -> i32 {
    done.err().map_or(0, |e| e.errno())
}

fn mode_of(fs: &Fs, inode: &InodeRef) -> u32 {
    fs.attr(inode).mode & 0o7777
}

fn set_flags(fs: &Fs, inode: &InodeRef, flags: InodeFlags) -> Result<()> {
    fs.set_attr(inode, &SetAttr::default().flags(Some(flags)))?;
    Ok(())
}

/// Goal: a file made without a name can be given one as long as it is held, and leaves nothing behind otherwise.
/// Method: one is linked, one dropped, one held when everything stops; afterwards, and after cleaning, `btrfs check` is
/// asked and the kernel looks for the linked one.
#[test]
fn files_without_names() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("tmpfiles", IMAGE_LEN)?;
    make(&[in_file(&image)?], &MkfsOptions::default())?;
    let clock = Arc::new(HandClock::default());
    let fs = open_on(in_file(&image)?, clock.clone())?;
    let root = fs.root(TreeId::FS)?;
    let new = NewInode::new(NewKind::File, 0o600);
    ensure!(refused(fs.tmpfile(&root, &NewInode::new(NewKind::Dir, 0o700))) == errno::EINVAL);
    let before = fs.attr(&root);
    let linked = fs.tmpfile(&root, &new)?;
    ensure!(fs.attr(&linked).nlink == 0 && fs.names(&linked)?.is_empty());
    fs.write(&linked, 0, &[7; 10_000])?;
    fs.sync()?;
    ensure!(fs.readdir(&root, 0, 10)?.is_empty() && fs.attr(&root) == before, "the directory is as it was");
    drop(fs.tmpfile(&root, &new)?);
    let held = fs.tmpfile(&root, &new)?;
    fs.write(&held, 0, &[8; 10_000])?;
    fs.link(&linked, &root, b"linked")?;
    ensure!(fs.attr(&linked).nlink == 1 && fs.lookup(&root, b"linked")?.context("linked")?.same(&linked));
    drop(linked);
    fs.sync()?;
    ensure!(orphan_items(&fs)? == [held.ino()], "one has no name");
    let file = fs.lookup(&root, b"linked")?.context("still there")?;
    let mut out = [0; 10_000];
    ensure!(fs.read(&file, 0, &mut out)? == 10_000 && out == [7; 10_000]);
    drop(file);
    // As a crash leaves it: the held one is an orphan on disk.
    let left = scratch.path().join("left");
    std::fs::copy(&image, &left)?;
    drop((held, root));
    fs.sync()?;
    fs.sync()?;
    ensure!(orphan_items(&fs)?.is_empty());
    drop(fs);
    oracle.must_be_sound(&[&image], "tmpfiles")?;
    let fs = open_on(in_file(&left)?, clock)?;
    while fs.clean(100)? {}
    fs.sync()?;
    drop(fs);
    oracle.must_be_sound(&[&left], "tmpfiles after a crash")?;
    let mounted = oracle.mount(&[&left], "")?;
    let names = std::fs::read_dir(mounted.path())?.count();
    ensure!(names == 1 && std::fs::read(mounted.path().join("linked"))? == vec![7; 10_000]);
    mounted.unmount()
}

/// The inodes of the top that orphan items on disk name.
fn orphan_items(fs: &Fs) -> Result<Vec<Ino>> {
    let tree = fs.engine().root(TreeId::FS)?.context("the top's tree")?;
    let mut cursor = fs.engine().blocks().cursor(&tree);
    cursor.seek(&Key::new(Key::ORPHAN, ItemType::ORPHAN_ITEM, 0))?;
    let mut found = Vec::new();
    while let Some(key) = cursor.key() {
        found.push(Ino(key.offset));
        cursor.next()?;
    }
    Ok(found)
}

/// Goal: a commit writes an orphan item for each inode that has no name at that moment and lives, and for no other; the next
/// removes those of inodes that were erased meanwhile. Method: files lose their names before a commit, some of them held by
/// somebody; one is closed before the commit, others after it; the items that the tree holds are counted after each commit.
#[test]
fn orphan_items_come_with_commits() -> Result<()> {
    let (fs, root, _) = in_memory()?;
    let files: Vec<_> = (0..4).map(|n| file(&fs, &root, &format!("file{n}"))).collect::<Result<_>>()?;
    fs.sync()?;
    for n in 0..4 {
        fs.unlink(&root, format!("file{n}").as_bytes())?;
    }
    let mut files = files.into_iter();
    drop(files.next());
    while fs.clean(100)? {}
    let held: Vec<_> = files.collect();
    fs.engine().commit()?;
    ensure!(orphan_items(&fs)? == held.iter().map(|file| file.ino()).collect::<Vec<_>>(), "those that are held");
    fs.write(&held[0], 0, b"still in use")?;
    let kept = held.into_iter().next().context("one")?;
    fs.sync()?;
    ensure!(orphan_items(&fs)? == [kept.ino()], "the others were erased");
    drop(kept);
    fs.sync()?;
    ensure!(orphan_items(&fs)?.is_empty(), "all were erased");
    Ok(())
}

/// Goal: only a file that never had a name can get a first one.
/// Method: a file is unlinked while it is held, a tmpfile linked and unlinked; linking either fails as on Linux.
#[test]
fn what_was_unlinked_stays_so() -> Result<()> {
    let (fs, root, _) = in_memory()?;
    let gone = file(&fs, &root, "gone")?;
    fs.unlink(&root, b"gone")?;
    ensure!(refused(fs.link(&gone, &root, b"again")) == errno::ENOENT);
    let tmp = fs.tmpfile(&root, &NewInode::new(NewKind::File, 0o600))?;
    fs.link(&tmp, &root, b"tmp")?;
    fs.link(&tmp, &root, b"tmp2")?;
    fs.unlink(&root, b"tmp")?;
    fs.unlink(&root, b"tmp2")?;
    ensure!(refused(fs.link(&tmp, &root, b"again")) == errno::ENOENT);
    Ok(())
}

/// Goal: a rename leaves the mark that union mounts look for, in the same transaction, and keeps the modes' rules.
/// Method: within and across directories, over a target and refusing one; the kernel is shown the result.
#[test]
fn renames_leave_marks() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("whiteout", IMAGE_LEN)?;
    make(&[in_file(&image)?], &MkfsOptions::default())?;
    let fs = open_on(in_file(&image)?, Arc::new(HandClock::default()))?;
    let root = fs.root(TreeId::FS)?;
    let dir = mkdir(&fs, &root, "dir")?;
    let whiteout = |no_replace| RenameMode::Whiteout { uid: 12, gid: 34, no_replace };
    for name in ["a", "b", "c"] {
        file(&fs, &root, name)?;
    }
    fs.rename(&root, b"a", &dir, b"a", whiteout(true))?;
    fs.rename(&root, b"b", &root, b"c", whiteout(false))?;
    ensure!(refused(fs.rename(&root, b"c", &dir, b"a", whiteout(true))) == errno::EEXIST);
    ensure!(refused(fs.rename(&root, b"c", &root, b"dir", whiteout(false))) == errno::EISDIR);
    // Over the mark itself, as a union mount does when the file comes back.
    fs.rename(&dir, b"a", &root, b"a", whiteout(false))?;
    for (dir, name) in [(&root, b"b"), (&dir, b"a")] {
        let mark = fs.attr(&fs.lookup(dir, name)?.context("a mark")?);
        ensure!(mark.kind == FileKind::CharDevice && mark.mode & 0o7777 == 0 && mark.rdev.to_disk() == 0);
        ensure!((mark.uid, mark.gid, mark.nlink) == (12, 34, 1));
    }
    ensure!(fs.attr(&fs.lookup(&root, b"a")?.context("a")?).kind == FileKind::File);
    fs.sync()?;
    drop((dir, root));
    drop(fs);
    oracle.must_be_sound(&[&image], "whiteouts")?;
    let mounted = oracle.mount(&[&image], "")?;
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let mark = std::fs::symlink_metadata(mounted.path().join("dir/a"))?;
    ensure!(mark.file_type().is_char_device() && mark.rdev() == 0 && (mark.uid(), mark.gid()) == (12, 34));
    mounted.unmount()
}

/// Goal: what a file must not keep after a change goes, and nothing else; a second time nothing is to do.
/// Method: every reason on files with all bits, with a capability, and on a directory.
#[test]
fn privileges_go() -> Result<()> {
    let (fs, root, clock) = in_memory()?;
    let made = |name: &str, mode: u32| -> Result<InodeRef> {
        Ok(fs.create(&root, name.as_bytes(), &NewInode::new(NewKind::File, mode))?)
    };
    let all = made("all", 0o6755)?;
    clock.set(2000);
    fs.strip_privileges(&all, Strip::CapabilityOnly)?;
    ensure!(mode_of(&fs, &all) == 0o6755 && fs.attr(&all).ctime == at(1000));
    fs.strip_privileges(&all, Strip::Content)?;
    ensure!(mode_of(&fs, &all) == 0o755 && fs.attr(&all).ctime == at(2000));
    clock.set(3000);
    fs.strip_privileges(&all, Strip::Content)?;
    ensure!(fs.attr(&all).ctime == at(2000), "nothing was to do");
    let no_group = made("no-group", 0o6745)?;
    fs.strip_privileges(&no_group, Strip::Owner)?;
    ensure!(mode_of(&fs, &no_group) == 0o2745, "set-group-id without execution is no privilege");
    let able = made("able", 0o755)?;
    fs.strip_privileges(&able, Strip::Content)?;
    fs.xattr_set(&able, b"security.capability", b"some", XattrMode::Any)?;
    fs.xattr_set(&able, b"user.other", b"stays", XattrMode::Any)?;
    fs.strip_privileges(&able, Strip::CapabilityOnly)?;
    ensure!(fs.xattr_list(&able)? == [b"user.other".to_vec()]);
    fs.xattr_set(&able, b"security.capability", b"again", XattrMode::Any)?;
    fs.strip_privileges(&able, Strip::Owner)?;
    ensure!(fs.xattr_list(&able)? == [b"user.other".to_vec()]);
    let dir = fs.create(&root, b"dir", &NewInode::new(NewKind::Dir, 0o6775))?;
    fs.strip_privileges(&dir, Strip::Owner)?;
    ensure!(mode_of(&fs, &dir) == 0o6775);
    Ok(())
}

/// Goal: an immutable inode does not change at all, an append-only one only grows, and the flags can be cleared.
/// Method: every operation on a file and a directory with each flag, with the errno it must have.
#[test]
fn flags_forbid() -> Result<()> {
    let (fs, root, clock) = in_memory()?;
    let (dir, f) = (mkdir(&fs, &root, "dir")?, file(&fs, &root, "f")?);
    let inside = file(&fs, &dir, "inside")?;
    let source = file(&fs, &root, "source")?;
    fs.write(&source, 0, &[1; 8192])?;
    fs.write(&f, 0, &[2; 8192])?;
    let touch = SetAttr::default().mtime(Some(at(1500))).touch(true);
    let chosen = SetAttr::default().mtime(Some(at(1)));
    let clone = CloneRange { from: 0, len: 4096, to: 0 };
    let chmod = SetAttr::default().mode(Some(0o600));
    for flag in [InodeFlags::IMMUTABLE, InodeFlags::APPEND] {
        let append = flag == InodeFlags::APPEND;
        let grows = if append { 0 } else { errno::EPERM };
        set_flags(&fs, &f, flag)?;
        set_flags(&fs, &dir, flag)?;
        let has = |done: i32, want: i32, what: &str| -> Result<()> {
            ensure!(done == want, "{flag:?}: {what}: have {done}, want {want}");
            Ok(())
        };
        let eperm = errno::EPERM;
        has(refused(fs.write(&f, 0, b"x")), eperm, "write")?;
        has(refused(fs.write(&f, fs.attr(&f).size, b"x")), grows, "append")?;
        has(refused(fs.truncate(&f, 1)), eperm, "truncate")?;
        has(refused(fs.set_attr(&f, &SetAttr::default().size(Some(1)))), eperm, "size")?;
        has(refused(fs.preallocate(&f, 1 << 20, 4096, KeepSize::Yes)), grows, "preallocate")?;
        has(refused(fs.punch_hole(&f, 0, 4096)), eperm, "punch")?;
        has(refused(fs.zero_range(&f, 0, 4096, KeepSize::Yes)), eperm, "zero")?;
        has(refused(fs.clone_range(&source, &f, &clone)), eperm, "clone into")?;
        has(refused(fs.clone_range(&f, &source, &clone)), 0, "clone from")?;
        has(refused(fs.set_attr(&f, &chmod)), eperm, "chmod")?;
        has(refused(fs.set_attr(&f, &chosen)), eperm, "utimens")?;
        has(refused(fs.set_attr(&f, &touch)), grows, "touch")?;
        has(refused(fs.xattr_set(&f, b"user.x", b"", XattrMode::Any)), eperm, "setxattr")?;
        has(refused(fs.xattr_remove(&f, b"user.x")), eperm, "removexattr")?;
        has(refused(fs.link(&f, &root, b"other")), eperm, "link")?;
        has(refused(fs.unlink(&root, b"f")), eperm, "unlink")?;
        has(refused(fs.rename(&root, b"f", &root, b"g", RenameMode::Replace)), eperm, "rename")?;
        has(refused(fs.rename(&root, b"source", &root, b"f", RenameMode::Replace)), eperm, "replace")?;
        has(refused(fs.rename(&root, b"source", &root, b"f", RenameMode::Exchange)), eperm, "exchange")?;
        let new = NewInode::new(NewKind::File, 0o600);
        has(refused(fs.create(&dir, b"inside", &new)), errno::EEXIST, "create what exists")?;
        has(refused(fs.create(&dir, b"new", &new)), grows, "create")?;
        has(refused(fs.tmpfile(&dir, &new)), grows, "tmpfile")?;
        has(refused(fs.link(&source, &dir, b"linked")), grows, "link into")?;
        has(refused(fs.unlink(&dir, b"inside")), eperm, "unlink in")?;
        has(refused(fs.unlink(&dir, b"nothing")), errno::ENOENT, "unlink nothing")?;
        has(refused(fs.rename(&dir, b"inside", &root, b"out", RenameMode::Replace)), eperm, "rename out")?;
        has(refused(fs.rename(&root, b"source", &dir, b"source", RenameMode::NoReplace)), grows, "rename into")?;
        has(refused(fs.rename(&root, b"dir", &root, b"dir2", RenameMode::Replace)), eperm, "rename the directory")?;
        has(refused(fs.rmdir(&root, b"dir")), eperm, "rmdir")?;
        has(refused(fs.subvol_create(&dir, b"sub", &NewSubvol::default())), grows, "subvolume in")?;
        set_flags(&fs, &f, InodeFlags::empty())?;
        set_flags(&fs, &dir, InodeFlags::empty())?;
        if append {
            fs.rename(&dir, b"source", &root, b"source", RenameMode::NoReplace)?;
        }
        clock.set(2000);
    }
    fs.write(&f, 0, b"x")?;
    fs.unlink(&dir, b"inside")?;
    ensure!(fs.attr(&inside).nlink == 0);
    let id = fs.lookup(&dir, b"sub")?.context("sub")?.tree();
    set_flags(&fs, &fs.root(id)?, InodeFlags::IMMUTABLE)?;
    ensure!(refused(fs.subvol_delete(id)) == errno::EPERM);
    ensure!(refused(fs.rename(&dir, b"sub", &root, b"sub", RenameMode::Replace)) == errno::EPERM);
    Ok(())
}

/// Goal: what an inode holds that the format marks as read-only stays, as with the kernel: data, entries, attributes of users, and where
/// the data lies, which going back from a conversion needs. Its names, owner, mode and times are not meant.
/// Method: each change, first here, then by the kernel on the same image; after both the bytes are where they were.
#[test]
fn the_mark_of_the_format() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("marked", IMAGE_LEN)?;
    make(&[in_file(&image)?], &MkfsOptions::default())?;
    let fs = open_on(in_file(&image)?, Arc::new(HandClock::default()))?;
    let root = fs.root(TreeId::FS)?;
    let (dir, f) = (mkdir(&fs, &root, "dir")?, file(&fs, &root, "f")?);
    file(&fs, &dir, "inside")?;
    let source = file(&fs, &root, "source")?;
    fs.write(&source, 0, &[1; 8192])?;
    fs.write(&f, 0, &[2; 8192])?;
    fs.xattr_set(&f, b"user.old", b"x", XattrMode::Any)?;
    fs.sync()?;
    let places =
        || anyhow::Ok(fs.extents(&f, 0, 8192)?.iter().map(|part| (part.at, part.len, part.disk)).collect::<Vec<_>>());
    let before = places()?;
    set_flags(&fs, &f, InodeFlags::READONLY)?;
    set_flags(&fs, &dir, InodeFlags::READONLY)?;

    let clone = CloneRange { from: 0, len: 4096, to: 0 };
    let new = NewInode::new(NewKind::File, 0o600);
    let denied = [
        refused(fs.write(&f, 0, b"x")),
        refused(fs.write(&f, 8192, b"x")),
        refused(fs.truncate(&f, 1)),
        refused(fs.set_attr(&f, &SetAttr::default().size(Some(1 << 20)))),
        refused(fs.preallocate(&f, 1 << 20, 4096, KeepSize::Yes)),
        refused(fs.punch_hole(&f, 0, 4096)),
        refused(fs.zero_range(&f, 0, 4096, KeepSize::Yes)),
        refused(fs.clone_range(&source, &f, &clone)),
        refused(fs.rewrite(&f, 0, 8192, None)),
        refused(fs.xattr_set(&f, b"user.x", b"", XattrMode::Any)),
        refused(fs.xattr_remove(&f, b"user.old")),
        refused(fs.xattr_set(&dir, b"user.x", b"", XattrMode::Any)),
        refused(fs.create(&dir, b"new", &new)),
        refused(fs.tmpfile(&dir, &new)),
        refused(fs.link(&source, &dir, b"linked")),
        refused(fs.unlink(&dir, b"inside")),
        refused(fs.rename(&dir, b"inside", &root, b"out", RenameMode::Replace)),
        refused(fs.rename(&root, b"source", &dir, b"source", RenameMode::NoReplace)),
        refused(fs.subvol_create(&dir, b"sub", &NewSubvol::default())),
    ];
    ensure!(denied == [errno::EACCES; 19], "{denied:?}");
    fs.clone_range(&f, &source, &clone)?;
    fs.xattr_set(&f, b"trusted.x", b"", XattrMode::Any)?;
    for marked in [&f, &dir] {
        fs.set_attr(marked, &SetAttr::default().mode(Some(0o700)).uid(Some(1)).mtime(Some(at(1))))?;
    }
    fs.link(&f, &root, b"other")?;
    fs.rename(&root, b"dir", &root, b"renamed", RenameMode::Replace)?;
    fs.unlink(&root, b"f")?;
    ensure!(places()? == before);
    fs.sync()?;
    drop((f, dir, source, root, fs));
    oracle.must_be_sound(&[&image], "marked")?;

    let mounted = oracle.mount(&[&image], "")?;
    let at = |name: &str| mounted.path().join(name);
    let open = |name: &str| std::fs::OpenOptions::new().write(true).open(at(name)).map(drop);
    let denied = [
        open("other"),
        std::fs::write(at("renamed/new"), b""),
        std::fs::hard_link(at("source"), at("renamed/linked")),
        std::fs::remove_file(at("renamed/inside")),
        std::fs::rename(at("renamed/inside"), at("out")),
        std::fs::rename(at("source"), at("renamed/source")),
        std::fs::create_dir(at("renamed/sub")),
    ]
    .map(|done| done.err().and_then(|e| e.raw_os_error()).unwrap_or(0));
    ensure!(denied == [errno::EACCES; 7], "the kernel: {denied:?}");
    std::fs::hard_link(at("other"), at("third"))?;
    std::fs::rename(at("renamed"), at("again"))?;
    std::fs::remove_file(at("other"))?;
    ensure!(std::fs::read(at("third"))? == vec![2; 8192]);
    mounted.unmount()
}

/// Goal: names of attributes and the inodes they fit follow Linux.
/// Method: each name space on each kind of file.
#[test]
fn attribute_names() -> Result<()> {
    let (fs, root, _) = in_memory()?;
    let f = file(&fs, &root, "f")?;
    let link = fs.create(&root, b"link", &NewInode::new(NewKind::Symlink(b"f"), 0o777))?;
    let fifo = fs.create(&root, b"fifo", &NewInode::new(NewKind::Fifo, 0o666))?;
    for inode in [&link, &fifo] {
        ensure!(refused(fs.xattr_set(inode, b"user.x", b"1", XattrMode::Any)) == errno::EPERM);
        ensure!(refused(fs.xattr_remove(inode, b"user.x")) == errno::EPERM);
        ensure!(fs.xattr_get(inode, b"user.x")?.is_none());
        fs.xattr_set(inode, b"trusted.x", b"1", XattrMode::Any)?;
        fs.xattr_set(inode, b"security.x", b"1", XattrMode::Any)?;
    }
    for inode in [&f, &root] {
        fs.xattr_set(inode, b"user.x", b"1", XattrMode::Any)?;
    }
    for name in [b"other.x".as_slice(), b"system.other", b"nothing"] {
        ensure!(refused(fs.xattr_set(&f, name, b"1", XattrMode::Any)) == errno::EOPNOTSUPP);
    }
    ensure!(refused(fs.xattr_set(&f, b"user.", b"1", XattrMode::Any)) == errno::EINVAL);
    ensure!(
        refused(fs.xattr_set(&f, &[b"user.".as_slice(), &[b'x'; 251]].concat(), b"1", XattrMode::Any)) == errno::ERANGE
    );
    ensure!(refused(fs.xattr_set(&f, b"btrfs.compression", b"fast", XattrMode::Any)) == errno::EINVAL);
    Ok(())
}

/// An ACL as the attribute holds it.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&perm.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

/// Goal: an access ACL and the mode say the same, whichever is set; nonsense is refused; the umask counts only where no
/// default ACL does.
/// Method: set both ways and look; make files below directories with and without a default ACL.
#[test]
fn acls_and_modes() -> Result<()> {
    const ACCESS: &[u8] = b"system.posix_acl_access";
    const DEFAULT: &[u8] = b"system.posix_acl_default";
    let none = u32::MAX;
    let (fs, root, _) = in_memory()?;
    let f = file(&fs, &root, "f")?;
    let named = acl(&[(1, 7, none), (2, 6, 1000), (4, 5, none), (0x10, 6, none), (0x20, 1, none)]);
    fs.xattr_set(&f, ACCESS, &named, XattrMode::Any)?;
    ensure!(mode_of(&fs, &f) == 0o761, "have {:o}", mode_of(&fs, &f));
    ensure!(fs.xattr_get(&f, ACCESS)?.as_deref() == Some(&named[..]));
    fs.xattr_set(&f, ACCESS, &acl(&[(1, 6, none), (4, 4, none), (0x20, 0, none)]), XattrMode::Any)?;
    ensure!(mode_of(&fs, &f) == 0o640 && fs.xattr_get(&f, ACCESS)?.is_none(), "the mode says it all");
    for wrong in [acl(&[(1, 7, none)]), acl(&[(1, 7, none), (2, 7, 1), (4, 7, none), (0x20, 7, none)]), vec![1, 2, 3]] {
        ensure!(refused(fs.xattr_set(&f, ACCESS, &wrong, XattrMode::Any)) == errno::EINVAL);
    }
    ensure!(refused(fs.xattr_set(&f, DEFAULT, &named, XattrMode::Any)) == errno::EINVAL);
    let new = NewInode::new(NewKind::File, 0o666).umask(0o027);
    let plain = fs.create(&root, b"plain", &new)?;
    ensure!(mode_of(&fs, &plain) == 0o640);
    let dir = mkdir(&fs, &root, "dir")?;
    fs.xattr_set(&dir, DEFAULT, &acl(&[(1, 7, none), (4, 7, none), (0x20, 7, none)]), XattrMode::Any)?;
    let inherits = fs.create(&dir, b"inherits", &new)?;
    ensure!(mode_of(&fs, &inherits) == 0o666, "a default ACL takes the place of the umask");
    let tmp = fs.tmpfile(&dir, &new)?;
    ensure!(mode_of(&fs, &tmp) == 0o666);
    let kept = fs.create(&root, b"copied", &new.plain(true))?;
    ensure!(mode_of(&fs, &kept) == 0o666, "copies keep their mode");
    Ok(())
}

/// Goal: set-group-id directories hand down their group, and to directories the bit.
/// Method: a file, a directory and a file without a name in one.
#[test]
fn groups_are_handed_down() -> Result<()> {
    let (fs, root, _) = in_memory()?;
    let dir = fs.create(&root, b"dir", &NewInode::new(NewKind::Dir, 0o2775).gid(77))?;
    let f = fs.create(&dir, b"f", &NewInode::new(NewKind::File, 0o644).uid(5).gid(6))?;
    let d = fs.create(&dir, b"d", &NewInode::new(NewKind::Dir, 0o755).uid(5).gid(6))?;
    let t = fs.tmpfile(&dir, &NewInode::new(NewKind::File, 0o644).uid(5).gid(6))?;
    for inode in [&f, &d, &t] {
        ensure!((fs.attr(inode).uid, fs.attr(inode).gid) == (5, 77));
    }
    ensure!(mode_of(&fs, &f) == 0o644 && mode_of(&fs, &d) == 0o2755);
    Ok(())
}

/// Goal: reads renew the access time as the policy says, and never where nothing may change.
/// Method: a clock moved by hand over the rule's edges.
#[test]
fn access_times() -> Result<()> {
    let (fs, root, clock) = in_memory()?;
    let f = file(&fs, &root, "f")?;
    let touched = |sec: i64, policy: AtimePolicy| {
        clock.set(sec);
        fs.touch_atime(&f, policy);
        fs.attr(&f).atime.sec
    };
    ensure!(touched(1001, AtimePolicy::None) == 1000);
    ensure!(touched(1002, AtimePolicy::Relatime) == 1002, "as old as the change");
    ensure!(touched(1003, AtimePolicy::Relatime) == 1002, "younger than the change");
    ensure!(touched(1002 + DAY - 1, AtimePolicy::Relatime) == 1002);
    ensure!(touched(1002 + DAY, AtimePolicy::Relatime) == 1002 + DAY, "a day old");
    ensure!(touched(2002 + DAY, AtimePolicy::Strict) == 2002 + DAY);
    ensure!(fs.attr(&f).ctime == at(1000), "reading is no change");
    fs.write(&f, 0, b"x")?;
    ensure!(touched(2003 + DAY, AtimePolicy::Relatime) == 2003 + DAY, "what is buffered is younger");
    set_flags(&fs, &f, InodeFlags::NOATIME)?;
    ensure!(touched(9 * DAY, AtimePolicy::Strict) == 2003 + DAY);
    set_flags(&fs, &f, InodeFlags::empty())?;
    fs.set_read_only(TreeId::FS, ReadOnly::Yes)?;
    ensure!(touched(9 * DAY, AtimePolicy::Strict) == 2003 + DAY);
    Ok(())
}

/// Goal: each operation sets the times that POSIX says, and no others.
/// Method: the clock moves before each; the inode's and the directories' times are looked at.
#[test]
fn times_of_changes() -> Result<()> {
    let (fs, root, clock) = in_memory()?;
    let (a, b) = (mkdir(&fs, &root, "a")?, mkdir(&fs, &root, "b")?);
    let f = file(&fs, &a, "f")?;
    let times = |inode: &InodeRef| {
        let attr = fs.attr(inode);
        (attr.mtime.sec, attr.ctime.sec)
    };
    clock.set(1100);
    fs.set_attr(&f, &SetAttr::default().mode(Some(0o600)))?;
    ensure!(times(&f) == (1000, 1100) && fs.attr(&f).atime == at(1000), "chmod");
    clock.set(1200);
    fs.set_attr(&f, &SetAttr::default().uid(Some(1)))?;
    ensure!(times(&f) == (1000, 1200), "chown");
    clock.set(1250);
    fs.set_attr(&f, &SetAttr::default())?;
    ensure!(times(&f) == (1000, 1200), "nothing to set");
    clock.set(1300);
    fs.link(&f, &b, b"g")?;
    ensure!(times(&f) == (1000, 1300) && times(&b) == (1300, 1300) && times(&a) == (1000, 1000), "link");
    clock.set(1400);
    fs.rename(&a, b"f", &b, b"h", RenameMode::Replace)?;
    ensure!(times(&f) == (1000, 1400) && times(&b) == (1400, 1400) && times(&a) == (1400, 1400), "rename");
    clock.set(1500);
    fs.unlink(&b, b"g")?;
    ensure!(times(&f) == (1000, 1500) && times(&b) == (1500, 1500), "unlink");
    clock.set(1600);
    fs.xattr_set(&f, b"user.x", b"1", XattrMode::Any)?;
    ensure!(times(&f) == (1000, 1600), "setxattr");
    clock.set(1700);
    fs.xattr_remove(&f, b"user.x")?;
    ensure!(times(&f) == (1000, 1700), "removexattr");
    clock.set(1800);
    fs.write(&f, 0, &[1; 5000])?;
    ensure!(times(&f) == (1800, 1800), "write");
    clock.set(1900);
    fs.truncate(&f, 5000)?;
    ensure!(times(&f) == (1900, 1900), "truncate to the same size");
    clock.set(2000);
    fs.set_attr(&f, &SetAttr::default().size(Some(0)))?;
    ensure!(times(&f) == (2000, 2000), "truncate to nothing");
    clock.set(2100);
    fs.set_attr(&f, &SetAttr::default().size(Some(0)))?;
    ensure!(times(&f) == (2100, 2100), "truncate of what is empty");
    clock.set(2200);
    mkdir(&fs, &b, "sub")?;
    ensure!(times(&b) == (2200, 2200), "mkdir");
    clock.set(2300);
    fs.rmdir(&b, b"sub")?;
    ensure!(times(&b) == (2300, 2300), "rmdir");
    clock.set(2400);
    fs.snapshot(TreeId::FS, &b, b"snap", SnapshotOptions::default())?;
    ensure!(times(&b) == (2400, 2400), "snapshot");
    Ok(())
}

/// Goal: names, targets, sizes and links beyond what the format or Linux allows are refused with the right errno.
/// Method: the largest that goes and the smallest that does not.
#[test]
fn limits() -> Result<()> {
    let (fs, root, _) = in_memory()?;
    let new = NewInode::new(NewKind::File, 0o600);
    fs.create(&root, &[b'n'; 255], &new)?;
    ensure!(refused(fs.create(&root, &[b'n'; 256], &new)) == errno::ENAMETOOLONG);
    ensure!(refused(fs.lookup(&root, &[b'n'; 256])) == errno::ENAMETOOLONG);
    ensure!(refused(fs.unlink(&root, &[b'n'; 256])) == errno::ENAMETOOLONG);
    let target = vec![b't'; 4096];
    let link = fs.create(&root, b"link", &NewInode::new(NewKind::Symlink(&target[..4095]), 0o777))?;
    ensure!(fs.read_link(&link)? == target[..4095] && fs.attr(&link).size == 4095);
    ensure!(
        refused(fs.create(&root, b"long", &NewInode::new(NewKind::Symlink(&target), 0o777))) == errno::ENAMETOOLONG
    );
    let f = file(&fs, &root, "f")?;
    ensure!(refused(fs.truncate(&f, 1 << 63)) == errno::EFBIG);
    ensure!(refused(fs.write(&f, i64::MAX as u64, b"xy")) == errno::EFBIG);
    ensure!(refused(fs.preallocate(&f, i64::MAX as u64, 4096, KeepSize::No)) == errno::EFBIG);
    fs.truncate(&f, i64::MAX as u64)?;
    ensure!(refused(fs.truncate(&root, 0)) == errno::EISDIR && refused(fs.truncate(&link, 0)) == errno::EINVAL);
    Ok(())
}

/// Goal: a file has 65 535 names and no more.
/// Method: links over many directories until one is refused.
#[test]
fn many_links() -> Result<()> {
    let (fs, root, _) = in_memory()?;
    let f = file(&fs, &root, "f")?;
    let mut dir = root;
    for n in 1..65_535u32 {
        if n % 20_000 == 1 {
            dir = mkdir(&fs, &dir, "d")?;
        }
        fs.link(&f, &dir, n.to_string().as_bytes())?;
    }
    ensure!(fs.attr(&f).nlink == 65_535);
    ensure!(refused(fs.link(&f, &dir, b"one too many")) == errno::EMLINK);
    ensure!(fs.attr(&f).nlink == 65_535 && fs.lookup(&dir, b"one too many")?.is_none());
    Ok(())
}

/// Goal: a listing with inodes gives what the listing and single look-ups give.
/// Method: a directory with every kind of entry, some changed, some not in memory, listed in small pieces; the same
/// inodes must come back.
#[test]
fn listing_with_inodes() -> Result<()> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(IMAGE_LEN));
    make(std::slice::from_ref(&device), &MkfsOptions::default())?;
    let clock = Arc::new(HandClock::default());
    let fs = open_on(device.clone(), clock.clone())?;
    let root = fs.root(TreeId::FS)?;
    let dir = mkdir(&fs, &root, "dir")?;
    for n in 0..3000 {
        file(&fs, &dir, &n.to_string())?;
    }
    fs.link(&fs.lookup(&dir, b"7")?.context("7")?, &dir, b"seven")?;
    fs.subvol_create(&dir, b"sub", &NewSubvol::default())?;
    fs.sync()?;
    drop((dir, root));
    drop(fs);
    let fs = open_on(device, clock)?;
    let root = fs.root(TreeId::FS)?;
    let dir = fs.lookup(&root, b"dir")?.context("dir")?;
    let changed = fs.lookup(&dir, b"1234")?.context("1234")?;
    fs.set_attr(&changed, &SetAttr::default().mode(Some(0o123)))?;
    fs.unlink(&dir, b"99")?;
    let (mut after, mut seen) = (0, 0);
    loop {
        let part = fs.readdir_plus(&dir, after, 257)?;
        let Some(last) = part.last() else { break };
        after = last.0.index;
        for (entry, inode) in &part {
            let inode = inode.as_ref().context("it is there")?;
            ensure!(fs.lookup(&dir, &entry.name)?.context("by name")?.same(inode), "two inodes of one file");
            ensure!(fs.attr(inode).kind == entry.kind);
            seen += 1;
        }
    }
    ensure!(seen == 3001 && mode_of(&fs, &changed) == 0o123);
    Ok(())
}

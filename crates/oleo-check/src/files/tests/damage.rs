//! Each kind of damage gives its finding and no other.

use oleo_format::{
    Compression, FileExtent, FileType, Ino, InodeExtrefEntry, InodeFlags, InodeRefEntry, ItemType, Key, extref_hash,
};

use super::kit::*;
use crate::finding::{Kind, Severity};

/// `/d/f` with two names, `/d/s` a link, an orphan.
struct Sample {
    tree: Tree,
    dir: u64,
    file: u64,
    link: u64,
    orphan: u64,
}

fn sample() -> Sample {
    let mut tree = Tree::new();
    let dir = tree.make(FileType::Dir, ROOT, b"d");
    let file = tree.make(FileType::RegFile, dir, b"f");
    tree.link(file, ROOT, b"g");
    tree.data(file, 0, 2 * SECTOR);
    tree.data(file, 2 * SECTOR, SECTOR);
    tree.set_size(file, 3 * SECTOR);
    tree.xattr(file, b"user.a", b"1");
    let link = tree.make(FileType::Symlink, dir, b"s");
    tree.inline(link, b"somewhere");
    let orphan = tree.inode(FileType::RegFile);
    tree.orphan(orphan);
    assert_eq!(check(&tree).findings, []);
    Sample { tree, dir, file, link, orphan }
}

#[track_caller]
fn expect(tree: &Tree, kind: Kind) {
    expect_with(tree, kind, How::default());
}

#[track_caller]
fn expect_with(tree: &Tree, kind: Kind, how: How) {
    let verdict = check_with(tree, how);
    assert_eq!(verdict.kinds(), [kind], "{:#?}", verdict.findings);
    // The same when every item is a leaf of its own.
    let items = tree.list();
    let every: Vec<usize> = (1..items.len()).collect();
    assert_eq!(check_cut(&items, &every, Order::Halves, how).findings, verdict.findings);
}

#[test]
fn root_dir() {
    let mut s = sample();
    s.tree.items.clear();
    expect(&s.tree, Kind::RootDir);
}

#[test]
fn inode_missing() {
    let mut s = sample();
    s.tree.remove(Key::inode(Ino(s.file)));
    expect(&s.tree, Kind::InodeMissing);
}

#[test]
fn inode_cache() {
    let mut s = sample();
    let mut item = s.tree.items[&Key::inode(Ino(s.orphan))].clone();
    item[40..44].fill(0);
    s.tree.items.insert(Key::inode(Ino(Key::FREE_INO)), item);
    expect(&s.tree, Kind::InodeCache);
}

#[test]
fn item_unknown() {
    let mut s = sample();
    s.tree.items.insert(Key::new(s.file, ItemType(8), 256), Vec::new());
    expect(&s.tree, Kind::ItemUnknown);
}

#[test]
fn inode_links() {
    let mut s = sample();
    s.tree.edit(s.file, |i| i.nlink = 3.into());
    expect(&s.tree, Kind::InodeLinks);
}

#[test]
fn item_generation() {
    let mut s = sample();
    s.tree.edit(s.file, |i| i.transid = (GENERATION + 1).into());
    expect(&s.tree, Kind::ItemGeneration);
}

#[test]
fn dir_size() {
    let mut s = sample();
    s.tree.set_size(s.dir, 5);
    expect(&s.tree, Kind::DirSize);
}

#[test]
fn dir_links() {
    let mut s = sample();
    s.tree.link(s.dir, ROOT, b"d2");
    expect(&s.tree, Kind::DirLinks);
}

#[test]
fn dir_entry_odd() {
    let mut s = sample();
    // In a file, an entry that is complete otherwise.
    s.tree.link(s.link, s.file, b"inside");
    s.tree.set_size(s.file, 3 * SECTOR);
    expect(&s.tree, Kind::DirEntryOdd);
}

#[test]
fn dir_entry_twice() {
    let mut s = sample();
    // The same name again, with everything that belongs to it.
    s.tree.link(s.link, s.dir, b"f");
    expect(&s.tree, Kind::DirEntryTwice);
}

#[test]
fn xattr_twice() {
    let mut s = sample();
    s.tree.xattr(s.file, b"user.a", b"2");
    expect(&s.tree, Kind::XattrTwice);
}

#[test]
fn dir_item() {
    let mut s = sample();
    s.tree.remove(Key::dir_item(Ino(s.dir), b"f"));
    let size = s.tree.get(s.dir).size.get();
    s.tree.set_size(s.dir, size - 1);
    expect(&s.tree, Kind::DirItem);

    // Both are there and disagree on the inode, or on the type.
    let mut s = sample();
    s.tree.respell(Key::dir_item(Ino(s.dir), b"f"), |e| e.location.objectid = s.link);
    expect(&s.tree, Kind::DirItem);
    let mut s = sample();
    s.tree.respell(Key::dir_item(Ino(s.dir), b"f"), |e| e.file_type = FileType::Dir);
    expect(&s.tree, Kind::DirItem);
}

#[test]
fn dir_index() {
    let mut s = sample();
    s.tree.remove(Key::dir_index(Ino(s.dir), 2));
    let size = s.tree.get(s.dir).size.get();
    s.tree.set_size(s.dir, size - 1);
    expect(&s.tree, Kind::DirIndex);
}

#[test]
fn inode_ref() {
    // None.
    let mut s = sample();
    s.tree.remove(Key::inode_ref(Ino(s.file), Ino(s.dir)));
    s.tree.edit(s.file, |i| i.nlink = 1.into());
    expect(&s.tree, Kind::InodeRef);
    // Another index.
    let mut s = sample();
    let entry = InodeRefEntry { index: 77, name: b"f".to_vec() };
    s.tree.items.insert(Key::inode_ref(Ino(s.file), Ino(s.dir)), entry.encode());
    expect(&s.tree, Kind::InodeRef);
    // The root directory by another name or index.
    for (index, name) in [(0, b"x".to_vec()), (2, b"..".to_vec())] {
        let mut s = sample();
        let entry = InodeRefEntry { index, name };
        s.tree.items.insert(Key::inode_ref(Ino(ROOT), Ino(ROOT)), entry.encode());
        expect(&s.tree, Kind::InodeRef);
    }
    // An extended one under the wrong hash.
    let mut s = sample();
    s.tree.link_extended(s.file, ROOT, b"extended");
    assert_eq!(check(&s.tree).findings, []);
    let key = Key::inode_extref(Ino(s.file), Ino(ROOT), b"extended");
    let bytes = s.tree.items.remove(&key).unwrap();
    assert!(InodeExtrefEntry::parse(&bytes).is_ok());
    s.tree.items.insert(Key { offset: extref_hash(Ino(ROOT), b"other"), ..key }, bytes);
    expect(&s.tree, Kind::InodeRef);
}

#[test]
fn dir_entry() {
    let mut s = sample();
    s.tree.remove(Key::dir_index(Ino(s.dir), 2));
    s.tree.remove(Key::dir_item(Ino(s.dir), b"f"));
    let size = s.tree.get(s.dir).size.get();
    s.tree.set_size(s.dir, size - 2);
    expect(&s.tree, Kind::DirEntry);
}

#[test]
fn dir_entry_dangling() {
    let mut s = sample();
    s.tree.entry(s.dir, b"nowhere", Key::inode(Ino(9999)), FileType::RegFile);
    expect(&s.tree, Kind::DirEntryDangling);
}

#[test]
fn dir_entry_type() {
    let mut s = sample();
    s.tree.respell(Key::dir_item(Ino(s.dir), b"f"), |e| e.file_type = FileType::Fifo);
    s.tree.respell(Key::dir_index(Ino(s.dir), 2), |e| e.file_type = FileType::Fifo);
    expect(&s.tree, Kind::DirEntryType);
}

/// The bit for encrypted names, which readers leave out.
#[test]
fn dir_entry_of_an_encrypted_name() {
    let keys: [fn(Ino, &[u8]) -> Key; 2] = [|dir, name| Key::dir_item(dir, name), |dir, _| Key::dir_index(dir, 2)];
    for key in keys {
        let mut s = sample();
        let last = size_of::<oleo_format::DirItem>() - 1;
        s.tree.items.get_mut(&key(Ino(s.dir), b"f")).unwrap()[last] |= 0x80;
        expect(&s.tree, Kind::DirEntryType);
    }
}

#[test]
fn dir_ring() {
    let mut s = sample();
    // Two directories in each other.
    let a = s.tree.inode(FileType::Dir);
    let b = s.tree.inode(FileType::Dir);
    s.tree.link(a, b, b"a");
    s.tree.link(b, a, b"b");
    expect(&s.tree, Kind::DirRing);
    // A directory with a lower number than its parent is normal.
    let mut s = sample();
    let low = s.tree.inode(FileType::Dir);
    let high = s.tree.make(FileType::Dir, ROOT, b"high");
    s.tree.link(low, high, b"low");
    assert_eq!(check(&s.tree).findings, []);
    // One in itself.
    let mut s = sample();
    let own = s.tree.inode(FileType::Dir);
    s.tree.link(own, own, b"own");
    expect(&s.tree, Kind::DirRing);
}

#[test]
fn orphan_missing() {
    let mut s = sample();
    s.tree.remove(Key::orphan(s.orphan));
    expect(&s.tree, Kind::OrphanMissing);
}

#[test]
fn orphan_stale() {
    let mut s = sample();
    s.tree.orphan(s.file);
    expect(&s.tree, Kind::OrphanStale);
    let mut s = sample();
    s.tree.orphan(9999);
    expect(&s.tree, Kind::OrphanStale);
    assert_eq!(check(&s.tree).findings[0].severity, Severity::Warning);
}

#[test]
fn file_extent_overlap() {
    let mut s = sample();
    s.tree.data(s.file, SECTOR, SECTOR);
    expect(&s.tree, Kind::FileExtentOverlap);
}

#[test]
fn file_extent_odd() {
    let mut s = sample();
    s.tree.data(s.dir, 0, SECTOR);
    s.tree.edit(s.dir, |i| i.nbytes = 0.into());
    expect(&s.tree, Kind::FileExtentOdd);
    let mut s = sample();
    let fifo = s.tree.make(FileType::Fifo, ROOT, b"fifo");
    s.tree.data(fifo, 0, SECTOR);
    expect(&s.tree, Kind::FileExtentOdd);
}

#[test]
fn file_extent_length() {
    let mut s = sample();
    let key = Key::extent_data(Ino(s.file), 0);
    let Ok(FileExtent::Regular(mut e)) = FileExtent::parse(&s.tree.items[&key]) else { panic!("a regular one") };
    e.ram_bytes.0 = SECTOR;
    s.tree.items.insert(key, FileExtent::Regular(e).encode());
    expect(&s.tree, Kind::FileExtentLength);
    for (len, found) in [(0, true), (1, false), (SECTOR - 1, false), (SECTOR, true)] {
        let mut s = sample();
        let file = s.tree.make(FileType::RegFile, ROOT, b"inline");
        s.tree.inline(file, &vec![7; usize::try_from(len).unwrap()]);
        if found {
            expect(&s.tree, Kind::FileExtentLength);
        } else {
            assert_eq!(check(&s.tree).findings, []);
        }
    }
}

#[test]
fn file_compressed() {
    let mut s = sample();
    let key = Key::extent_data(Ino(s.file), 0);
    let Ok(FileExtent::Regular(mut e)) = FileExtent::parse(&s.tree.items[&key]) else { panic!("a regular one") };
    e.compression = Compression::Zstd;
    s.tree.items.insert(key, FileExtent::Regular(e).encode());
    assert_eq!(check(&s.tree).findings, []);
    s.tree.edit(s.file, |i| i.flags = InodeFlags::NODATASUM.bits().into());
    expect(&s.tree, Kind::FileCompressed);
}

#[test]
fn inode_flags() {
    let mut s = sample();
    s.tree.edit(s.link, |i| i.flags = InodeFlags::IMMUTABLE.bits().into());
    expect(&s.tree, Kind::InodeFlags);
}

#[test]
fn file_bytes() {
    let mut s = sample();
    s.tree.edit(s.file, |i| i.nbytes = SECTOR.into());
    expect(&s.tree, Kind::FileBytes);
}

#[test]
fn file_hole() {
    let how = How { no_holes: false, ..How::default() };
    // Behind, between and before.
    let mut s = sample();
    s.tree.set_size(s.file, 9 * SECTOR);
    assert_eq!(check(&s.tree).findings, [], "with NO_HOLES there is nothing to tell");
    expect_with(&s.tree, Kind::FileHole, how);
    s.tree.hole(s.file, 3 * SECTOR, 6 * SECTOR);
    assert_eq!(check_with(&s.tree, how).findings, []);
    for at in [0, 2 * SECTOR] {
        let mut s = sample();
        let key = Key::extent_data(Ino(s.file), at);
        let len = FileExtent::parse(&s.tree.items[&key]).unwrap().len().0;
        s.tree.remove(key);
        s.tree.edit(s.file, |i| i.nbytes = (i.nbytes.get() - len).into());
        expect_with(&s.tree, Kind::FileHole, how);
    }
    let mut s = sample();
    let empty = s.tree.make(FileType::RegFile, ROOT, b"sparse");
    s.tree.set_size(empty, 1);
    expect_with(&s.tree, Kind::FileHole, how);
}

/// Goal: a target that is shorter than the size is damage; a longer one is not, since it is read up to the size.
#[test]
fn symlink_size() {
    let mut s = sample();
    s.tree.set_size(s.link, 10);
    expect(&s.tree, Kind::SymlinkSize);
    s.tree.set_size(s.link, 8);
    assert_eq!(check(&s.tree).findings, []);
}

#[test]
fn verity_needs_its_descriptor() {
    let mut s = sample();
    s.tree.edit(s.file, |i| i.flags = InodeFlags::RO_VERITY.bits().into());
    expect(&s.tree, Kind::Verity);
    s.tree.items.insert(Key::new(s.file, ItemType::VERITY_DESC_ITEM, 0), vec![0; 25]);
    s.tree.items.insert(Key::new(s.file, ItemType::VERITY_DESC_ITEM, 1), vec![0; 300]);
    assert_eq!(check(&s.tree).findings, []);
}

/// Goal: data of files with checksums is reported as needing them, data of files without as the opposite, wherever
/// leaves are cut.
#[test]
fn data_needs() {
    let mut tree = Tree::new();
    let with = tree.make(FileType::RegFile, ROOT, b"with");
    let without = tree.make(FileType::RegFile, ROOT, b"without");
    tree.edit(without, |i| i.flags = InodeFlags::NODATASUM.bits().into());
    let mut want = Vec::new();
    for n in 0..5 {
        want.push((tree.data(with, n * SECTOR, SECTOR), true));
        want.push((tree.data(without, n * SECTOR, SECTOR), false));
    }
    want.sort_unstable();
    let items = tree.list();
    let every: Vec<usize> = (1..items.len()).collect();
    for (cuts, order) in [(&[][..], Order::FromLeft), (&every, Order::FromRight), (&every, Order::Halves)] {
        let verdict = check_cut(&items, cuts, order, How::default());
        let have: Vec<_> = verdict.needs.iter().map(|n| (n.start, n.sums)).collect();
        assert_eq!(have, want);
        assert!(verdict.needs.iter().all(|n| n.len == SECTOR));
    }
}

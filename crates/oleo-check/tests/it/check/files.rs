//! Damage inside trees of files and between trees, on a whole volume: the walk passes it to the checks, also if an
//! inode's items are in several leaves and if snapshots share the leaf. The tests beside the checks cover each finding
//! alone.

use std::sync::OnceLock;

use oleo::Image;
use oleo::mkfs::MkfsOptions;
use oleo_check::Kind;
use oleo_format::{DirEntry, FileType, Ino, InodeFlags, InodeItem, InodeRefEntry, ItemType, Key, RootItem, TreeId};
use zerocopy::FromBytes;

use crate::check::kit::{Disk, noise};

/// A subvolume `v` of many leaves with directories, links and a subvolume `v/n`, and a snapshot of it, which shows
/// `n` as an empty directory. Small blocks, so that inodes lie across leaves.
fn make(image: &Image) {
    let top = image.top().unwrap();
    image.create_subvol("v").unwrap();
    image.create_subvol("v/n").unwrap();
    image.create_dir("v/a").unwrap();
    image.create_dir("v/a/b").unwrap();
    image.create_dir("v/a/b/x").unwrap();
    for i in 0..60 {
        image.write(format!("v/a/{i}"), &noise(200 + i * 100, i as u64)).unwrap();
        image.hard_link(&top, format!("v/a/{i}").as_bytes(), format!("v/a/b/link-{i}").as_bytes()).unwrap();
    }
    image.symlink(&top, b"to somewhere", b"v/symlink").unwrap();
    // A file of many extents, so that its items fill leaves of their own.
    let file = image.create_file("v/extents").unwrap();
    for i in 0..200 {
        file.write_at(&noise(8192, i), i * 12288).unwrap();
    }
    image.sync().unwrap();
    image.snapshot("v", "s", &Default::default()).unwrap();
    image.sync().unwrap();
}

fn disk() -> Disk {
    static MADE: OnceLock<Disk> = OnceLock::new();
    let options = MkfsOptions::default().nodesize(Some(4096));
    MADE.get_or_init(|| Disk::new(&options, 1, make)).copy()
}

#[track_caller]
fn expect(disk: &Disk, kinds: &[Kind]) {
    let report = disk.check();
    let mut have: Vec<Kind> = report.findings.iter().map(|f| f.kind).collect();
    have.sort_unstable();
    assert_eq!(have, kinds, "{:#?}", report.findings);
}

/// The subvolumes `v` and `v/n`.
fn subvols(disk: &Disk) -> (TreeId, TreeId) {
    let (key, _) = disk.find(TreeId::ROOT, |key, _| key.item_type == ItemType::ROOT_REF && key.objectid >= 256);
    (TreeId(key.objectid), TreeId(key.offset))
}

/// The number of the inode with this name in `v`.
fn ino(disk: &Disk, name: &[u8]) -> (TreeId, Ino) {
    let (v, _) = subvols(disk);
    let named = |key: &Key, item: &[u8]| {
        key.item_type == ItemType::DIR_INDEX && DirEntry::parse(item).is_ok_and(|e| e.name == name)
    };
    let (_, item) = disk.find(v, named);
    (v, Ino(DirEntry::parse(&item).unwrap().location.objectid))
}

fn edit_inode(disk: &Disk, name: &[u8], edit: impl FnOnce(&mut InodeItem)) {
    let (v, ino) = ino(disk, name);
    disk.edit(v, &Key::inode(ino), |item| edit(InodeItem::mut_from_bytes(item).unwrap()));
}

/// Goal: the volume is sound, with a file whose extents lie in several leaves, and leaves that two trees share.
#[test]
fn the_volume_is_sound_before() {
    let disk = disk();
    expect(&disk, &[]);
    let (v, file) = ino(&disk, b"extents");
    assert_ne!(disk.leaf(v, &Key::inode(file)).logical(), disk.leaf(v, &Key::extent_data(file, 199 * 12288)).logical());
    assert!(disk.items(TreeId::ROOT).iter().any(|(key, _)| key.item_type == ItemType::ROOT_ITEM && key.offset > 0));
}

/// Goal: a fault of an inode is reported once, though two trees have the inode.
#[test]
fn a_shared_inode_is_reported_once() {
    type Edit = fn(&mut InodeItem);
    let cases: [(&[u8], Kind, Edit); 7] = [
        (b"7", Kind::InodeLinks, |i| i.nlink = 3.into()),
        (b"7", Kind::ItemGeneration, |i| i.transid = 1000.into()),
        (b"a", Kind::DirSize, |i| i.size = 3.into()),
        (b"extents", Kind::FileBytes, |i| i.nbytes = 4096.into()),
        (b"symlink", Kind::SymlinkSize, |i| i.size = 30.into()),
        (b"symlink", Kind::InodeFlags, |i| i.flags = InodeFlags::APPEND.bits().into()),
        (b"7", Kind::Verity, |i| i.flags = InodeFlags::RO_VERITY.bits().into()),
    ];
    for (name, kind, edit) in cases {
        let disk = disk();
        edit_inode(&disk, name, edit);
        expect(&disk, &[kind]);
    }
}

/// Goal: an extent in a leaf that the inode item is not in counts for the inode.
#[test]
fn extents_in_other_leaves() {
    let disk = disk();
    let (v, file) = ino(&disk, b"extents");
    let keys = (0..200).map(|i| Key::extent_data(file, i * 12288));
    let far = keys.clone().find(|key| disk.leaf(v, &Key::inode(file)).logical() != disk.leaf(v, key).logical());
    // The last of one leaf moves over the first of the next.
    let leaf_of = |key: &Key| disk.leaf(v, key).logical();
    let last = keys.clone().zip(keys.skip(1)).find(|(a, b)| Some(*a) >= far && leaf_of(a) != leaf_of(b)).unwrap().0;
    disk.move_item(v, &last, Key { offset: last.offset + 8192, ..last });
    let kinds = disk.kinds();
    assert!(kinds.contains(&Kind::FileExtentOverlap), "{kinds:?}");
    assert!(kinds.iter().all(|k| *k == Kind::FileExtentOverlap || k.name().starts_with("extent-ref")), "{kinds:?}");
}

/// Goal: names are matched across leaves: the directory, the inode.
#[test]
fn names_match_across_leaves() {
    // The two entries of one name disagree.
    let disk1 = disk();
    let (v, a) = ino(&disk1, b"a");
    disk1.edit(v, &Key::dir_item(a, b"33"), |item| {
        let mut entry = DirEntry::parse(item).unwrap();
        entry.file_type = FileType::Fifo;
        *item = entry.encode();
    });
    expect(&disk1, &[Kind::DirItem]);
    // Both record a type that the inode does not have.
    let disk1 = disk();
    let (_, file) = ino(&disk1, b"33");
    edit_inode(&disk1, b"33", |i| i.mode = 0o010_644.into());
    // Two names, and what the inode has that a pipe has not.
    let kinds: Vec<Kind> = disk1.check().findings.iter().map(|f| f.kind).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == Kind::DirEntryType).count(), 2, "{kinds:?} inode {file}");
    assert!(kinds.contains(&Kind::FileExtentOdd), "{kinds:?}");
    // A reference with another index; one that is gone; an inode that is gone.
    let disk1 = disk();
    let (_, file) = ino(&disk1, b"33");
    disk1.edit(v, &Key::inode_ref(file, a), |item| {
        let mut entry = InodeRefEntry::parse(item).unwrap();
        entry.index += 1000;
        *item = entry.encode();
    });
    expect(&disk1, &[Kind::InodeRef]);
    let disk1 = disk();
    disk1.remove(v, &Key::inode_ref(file, a));
    expect(&disk1, &[Kind::InodeLinks, Kind::InodeRef]);
    let disk1 = disk();
    disk1.remove(v, &Key::dir_item(a, b"33"));
    expect(&disk1, &[Kind::DirSize, Kind::DirItem]);
}

/// Goal: directories that lie in each other are found from the leaves' lists, for the tree as a whole.
#[test]
fn rings_of_directories_are_found() {
    let disk = disk();
    let (v, a) = ino(&disk, b"a");
    let (_, b) = ino(&disk, b"b");
    assert!(b > a);
    // `a` and the empty directory `x`, which is in `b`, change places: `b` is in `a`, and `a` in `b`.
    let (_, x) = ino(&disk, b"x");
    let index_of = |name: &[u8]| {
        let named = |key: &Key, item: &[u8]| {
            key.item_type == ItemType::DIR_INDEX && DirEntry::parse(item).is_ok_and(|e| e.name == name)
        };
        disk.find(v, named).0
    };
    for (dir, name, now) in [(Ino::ROOT_DIR, b"a", x), (b, b"x", a)] {
        for key in [index_of(name), Key::dir_item(dir, name)] {
            disk.edit(v, &key, |item| {
                let mut entry = DirEntry::parse(item).unwrap();
                entry.location.objectid = now.0;
                *item = entry.encode();
            });
        }
    }
    let reference = |ino: Ino, dir: Ino| disk.find(v, |key, _| *key == Key::inode_ref(ino, dir)).1;
    let (of_a, of_x) = (reference(a, Ino::ROOT_DIR), reference(x, b));
    for (ino, from, to, item) in [(a, Ino::ROOT_DIR, b, of_x), (x, b, Ino::ROOT_DIR, of_a)] {
        disk.edit(v, &Key::inode_ref(ino, from), |old| *old = item);
        disk.move_item(v, &Key::inode_ref(ino, from), Key::inode_ref(ino, to));
    }
    expect(&disk, &[Kind::DirRing]);
}

/// Goal: what ties subvolumes to each other.
#[test]
fn subvolume_references_and_entries() {
    let disk1 = disk();
    let (v, n) = subvols(&disk1);
    let cases = [(Key::root_ref(v, n), Kind::RootRef), (Key::root_backref(n, v), Kind::RootBackref)];
    for (key, kind) in cases {
        let disk1 = disk();
        disk1.remove(TreeId::ROOT, &key);
        expect(&disk1, &[kind]);
    }
    // Neither of both: nothing leads to it. The entry alone is an empty subvolume directory.
    let disk1 = disk();
    cases.iter().for_each(|(key, _)| disk1.remove(TreeId::ROOT, key));
    expect(&disk1, &[Kind::RootUnreachable]);
    // Another directory than the entry is in.
    let disk1 = disk();
    for (key, _) in cases {
        disk1.edit(TreeId::ROOT, &key, |item| item[..8].copy_from_slice(&300u64.to_le_bytes()));
    }
    expect(&disk1, &[Kind::RootEntry]);
    let root = |disk: &Disk, edit: fn(&mut RootItem)| {
        disk.edit(TreeId::ROOT, &Key::root_item(n), |item| edit(RootItem::mut_from_bytes(item).unwrap()));
    };
    let disk1 = disk();
    root(&disk1, |root| root.root_dirid = 300.into());
    expect(&disk1, &[Kind::RootDirid]);
    let disk1 = disk();
    root(&disk1, |root| root.uuid = [7; 16]);
    expect(&disk1, &[Kind::UuidMissing, Kind::UuidStale]);
    // Deleted without an orphan item, so that it will not be cleaned up; the entry and references, which only live
    // subvolumes have, are still there.
    let disk1 = disk();
    root(&disk1, |root| root.refs = 0.into());
    assert!(disk1.kinds().contains(&Kind::RootOrphanMissing), "{:?}", disk1.kinds());
    let disk1 = disk();
    disk1.insert(TreeId::ROOT, Key::orphan(v.0), Vec::new());
    expect(&disk1, &[Kind::RootOrphanStale]);
    let disk1 = disk();
    let (key, item) = disk1.find(TreeId::ROOT, |key, _| key.item_type == ItemType::DIR_ITEM);
    let mut entry = DirEntry::parse(&item).unwrap();
    entry.location.objectid = 999;
    disk1.edit(TreeId::ROOT, &key, |item| *item = entry.encode());
    expect(&disk1, &[Kind::DefaultSubvol]);
}

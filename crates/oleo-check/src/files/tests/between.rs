//! The relations between trees: root, UUID, quota and log trees made by hand. Sound ones give no findings, each damage
//! gives its own.

use std::collections::BTreeMap;

use oleo_format::{
    DirEntry, DirLogItem, DiskKey, FileType, FreeSpaceHeader, Generation, Ino, InodeItem, ItemType, Key,
    QgroupInfoItem, QgroupLimitItem, QgroupStatus, QgroupStatusFlags, RootItem, RootRefEntry, TreeId, UuidItem,
};
use uuid::Uuid;
use zerocopy::IntoBytes;

use super::super::logs::{self, Log};
use super::super::qgroups::Qgroups;
use super::super::roots::{Entry, Roots};
use super::super::uuids::Uuids;
use super::kit::*;
use crate::finding::{Kind, Severity};
use crate::input::{Share, Used};

const A: TreeId = TreeId(257);
const B: TreeId = TreeId(258);
const DEAD: TreeId = TreeId(259);

/// The top level holds A, A holds B; a third one is being deleted.
struct Volume {
    root: BTreeMap<Key, Vec<u8>>,
    uuid: BTreeMap<Key, Vec<u8>>,
    quota: BTreeMap<Key, Vec<u8>>,
    log: BTreeMap<Key, Vec<u8>>,
    entries: BTreeMap<(TreeId, Ino, u64), Entry>,
    used: Used,
}

fn root_item(refs: u32, uuid: u8, received: u8) -> RootItem {
    RootItem {
        refs: refs.into(),
        root_dirid: 256.into(),
        generation: 9.into(),
        generation_v2: 9.into(),
        uuid: [uuid; 16],
        received_uuid: [received; 16],
        ..RootItem::default()
    }
}

fn group(level: u64, number: u64) -> u64 {
    level << 48 | number
}

impl Volume {
    fn put_root(&mut self, tree: TreeId, item: &RootItem) {
        self.root.insert(Key::root_item(tree), item.encode());
    }

    fn place(&mut self, parent: TreeId, child: TreeId, name: &[u8]) {
        let at = RootRefEntry { dirid: Ino(256), sequence: child.0, name: name.to_vec() };
        self.root.insert(Key::root_ref(parent, child), at.encode());
        self.root.insert(Key::root_backref(child, parent), at.encode());
        let entry = DirEntry {
            location: Key::new(child.0, ItemType::ROOT_ITEM, u64::MAX),
            transid: Generation(8),
            file_type: FileType::Dir,
            name: name.to_vec(),
            data: Vec::new(),
        };
        self.entries.insert((parent, Ino(256), child.0), Entry::Is(entry));
    }

    fn qgroup(&mut self, id: u64, rfer: u64, excl: u64) {
        let info = QgroupInfoItem {
            generation: GENERATION.into(),
            rfer: rfer.into(),
            rfer_cmpr: rfer.into(),
            excl: excl.into(),
            excl_cmpr: excl.into(),
        };
        self.quota.insert(Key::new(0, ItemType::QGROUP_INFO, id), info.as_bytes().to_vec());
        let limit = QgroupLimitItem::default();
        self.quota.insert(Key::new(0, ItemType::QGROUP_LIMIT, id), limit.as_bytes().to_vec());
    }

    fn relate(&mut self, a: u64, b: u64) {
        self.quota.insert(Key::new(a, ItemType::QGROUP_RELATION, b), Vec::new());
        self.quota.insert(Key::new(b, ItemType::QGROUP_RELATION, a), Vec::new());
    }

    fn status(&mut self, flags: QgroupStatusFlags, generation: u64) {
        let enable_gen = flags.contains(QgroupStatusFlags::SIMPLE_MODE).then_some(Generation(3));
        let status = QgroupStatus { version: 1, generation: Generation(generation), flags, rescan: 0, enable_gen };
        self.quota.insert(Key::new(0, ItemType::QGROUP_STATUS, 0), status.encode());
    }

    fn sound() -> Volume {
        let mut v = Volume {
            root: BTreeMap::new(),
            uuid: BTreeMap::new(),
            quota: BTreeMap::new(),
            log: BTreeMap::new(),
            entries: BTreeMap::new(),
            used: Used::Shares(Vec::new()),
        };
        v.put_root(TreeId::FS, &root_item(1, 0, 0));
        v.put_root(A, &root_item(1, 1, 0));
        v.put_root(B, &root_item(1, 2, 9));
        v.put_root(DEAD, &root_item(0, 3, 0));
        v.root.insert(Key::orphan(DEAD.0), Vec::new());
        v.place(TreeId::FS, A, b"a");
        v.place(A, B, b"b");
        let default = DirEntry {
            location: Key::new(A.0, ItemType::ROOT_ITEM, u64::MAX),
            transid: Generation(0),
            file_type: FileType::Dir,
            name: b"default".to_vec(),
            data: Vec::new(),
        };
        v.root.insert(Key::dir_item(Ino(TreeId::ROOT_DIR.0), b"default"), default.encode());
        v.root.insert(Key::inode(Ino(256)), InodeItem::default().as_bytes().to_vec());
        let location = DiskKey::from(Key::inode(Ino(256)));
        let header = FreeSpaceHeader { location, ..FreeSpaceHeader::default() };
        v.root.insert(Key::new(Key::FREE_SPACE, ItemType(0), 1 << 20), header.as_bytes().to_vec());
        for (uuid, kind, tree) in
            [(1, ItemType::UUID_SUBVOL, A), (2, ItemType::UUID_SUBVOL, B), (9, ItemType::UUID_RECEIVED_SUBVOL, B)]
        {
            let item = UuidItem { subvols: vec![tree] };
            v.uuid.insert(Key::uuid(Uuid::from_bytes([uuid; 16]), kind), item.encode());
        }
        v.status(QgroupStatusFlags::ON, GENERATION);
        let shares = [(vec![TreeId::FS], 100), (vec![A], 10), (vec![A, B], 7), (vec![TreeId::FS, A, B], 1000)];
        v.used = Used::Shares(shares.map(|(trees, bytes)| Share { trees, bytes }).to_vec());
        v.qgroup(TreeId::FS.0, 1100, 100);
        v.qgroup(A.0, 1017, 10);
        v.qgroup(B.0, 1007, 0);
        v.qgroup(DEAD.0, 0, 0);
        v.qgroup(group(1, 1), 1017, 17);
        v.qgroup(group(2, 1), 1017, 17);
        v.relate(A.0, group(1, 1));
        v.relate(B.0, group(1, 1));
        v.relate(group(1, 1), group(2, 1));
        let range = |end: u64| DirLogItem { end: end.into() }.as_bytes().to_vec();
        v.log.insert(Key::new(256, ItemType::DIR_LOG_INDEX, 0), range(5));
        v.log.insert(Key::new(256, ItemType::DIR_LOG_INDEX, 6), range(u64::MAX));
        v.log.insert(Key::new(300, ItemType::DIR_LOG_INDEX, 3), range(3));
        let inode = InodeItem { transid: (GENERATION + 1).into(), ..InodeItem::default() };
        v.log.insert(Key::inode(Ino(300)), inode.as_bytes().to_vec());
        v
    }

    fn check(&self) -> Verdict {
        reported(How::default(), |c| {
            let mut roots = Roots::default();
            self.root.iter().for_each(|(k, v)| roots.item(k, v));
            roots.check(c, &mut |tree, dir, index| {
                self.entries.get(&(tree, dir, index)).cloned().unwrap_or(Entry::Nothing)
            });
            let mut uuids = Uuids::default();
            self.uuid.iter().for_each(|(k, v)| uuids.item(k, v));
            uuids.check(c, &roots);
            let mut qgroups = Qgroups::default();
            self.quota.iter().for_each(|(k, v)| qgroups.item(k, v));
            qgroups.check(c, &roots, Some(&self.used));
            let mut log = Log::default();
            self.log.iter().for_each(|(k, v)| log.item(c, k, v));
        })
    }

    #[track_caller]
    fn expect(&self, kind: Kind) {
        let verdict = self.check();
        assert_eq!(verdict.kinds(), [kind], "{:#?}", verdict.findings);
    }
}

/// Feeds all checks with the same items, as if each of these trees had them.
pub fn check_items(items: &[(Key, Vec<u8>)]) -> Verdict {
    let mut v = Volume::sound();
    for (key, bytes) in items {
        // Every type is fed, whatever the tree.
        for item_type in [key.item_type, ItemType::ROOT_ITEM, ItemType::ROOT_REF, ItemType::UUID_SUBVOL] {
            let key = Key { item_type, ..*key };
            for tree in [&mut v.root, &mut v.uuid, &mut v.quota, &mut v.log] {
                tree.insert(key, bytes.clone());
            }
        }
        for item_type in [ItemType::QGROUP_INFO, ItemType::QGROUP_RELATION, ItemType::DIR_LOG_INDEX] {
            let key = Key { item_type, ..*key };
            v.quota.insert(key, bytes.clone());
            v.log.insert(key, bytes.clone());
        }
    }
    v.check()
}

/// Goal: a sound volume with everything in it gives no findings; nor do empty subvolume directories and unrelated
/// items.
#[test]
fn sound_relations_are_silent() {
    let mut v = Volume::sound();
    assert_eq!(v.check().findings, []);
    // A snapshot of A shows B without a reference.
    let empty_subvol_dir = v.entries[&(A, Ino(256), B.0)].clone();
    v.entries.insert((B, Ino(256), 77), empty_subvol_dir);
    // The group of a subvolume that is gone.
    v.qgroup(444, 0, 0);
    assert_eq!(v.check().findings, []);
}

#[test]
fn root_ref() {
    let mut v = Volume::sound();
    v.root.remove(&Key::root_ref(A, B));
    v.expect(Kind::RootRef);
}

#[test]
fn root_backref() {
    let mut v = Volume::sound();
    v.root.remove(&Key::root_backref(B, A));
    v.expect(Kind::RootBackref);
    let mut v = Volume::sound();
    let other = RootRefEntry { dirid: Ino(256), sequence: B.0, name: b"other".to_vec() };
    v.root.insert(Key::root_backref(B, A), other.encode());
    v.expect(Kind::RootBackref);
}

#[test]
fn root_ref_dangling() {
    let mut v = Volume::sound();
    v.place(A, TreeId(999), b"gone");
    v.expect(Kind::RootRefDangling);
}

#[test]
fn root_entry() {
    let mut v = Volume::sound();
    v.entries.remove(&(A, Ino(256), B.0));
    v.expect(Kind::RootEntry);
    let mut v = Volume::sound();
    let Some(Entry::Is(entry)) = v.entries.get_mut(&(A, Ino(256), B.0)) else { panic!("it is there") };
    entry.location.objectid = A.0;
    v.expect(Kind::RootEntry);
    v.entries.insert((A, Ino(256), B.0), Entry::Unknown);
    assert_eq!(v.check().findings, [], "a block that cannot be read is told of elsewhere");
}

#[test]
fn root_unreachable() {
    let mut v = Volume::sound();
    v.root.remove(&Key::root_ref(A, B));
    v.root.remove(&Key::root_backref(B, A));
    v.expect(Kind::RootUnreachable);
    let mut v = Volume::sound();
    v.put_root(TreeId::FS, &root_item(0, 0, 0));
    v.root.insert(Key::orphan(5), Vec::new());
    v.expect(Kind::RootUnreachable);
}

#[test]
fn root_ring() {
    let mut v = Volume::sound();
    v.root.remove(&Key::root_ref(TreeId::FS, A));
    v.root.remove(&Key::root_backref(A, TreeId::FS));
    v.place(B, A, b"a");
    v.expect(Kind::RootRing);
}

#[test]
fn root_dirid() {
    let mut v = Volume::sound();
    v.put_root(A, &RootItem { root_dirid: 300.into(), ..root_item(1, 1, 0) });
    v.expect(Kind::RootDirid);
}

#[test]
fn root_orphans() {
    let mut v = Volume::sound();
    v.root.remove(&Key::orphan(DEAD.0));
    v.expect(Kind::RootOrphanMissing);
    for number in [A.0, 12345] {
        let mut v = Volume::sound();
        v.root.insert(Key::orphan(number), Vec::new());
        v.expect(Kind::RootOrphanStale);
    }
    // The file of a cache.
    let mut v = Volume::sound();
    v.root.insert(Key::orphan(256), Vec::new());
    assert_eq!(v.check().findings, []);
}

#[test]
fn default_subvol() {
    for number in [DEAD.0, 999] {
        let mut v = Volume::sound();
        let item = v.root.get_mut(&Key::dir_item(Ino(6), b"default")).unwrap();
        let mut entry = DirEntry::parse(item).unwrap();
        entry.location.objectid = number;
        *item = entry.encode();
        v.expect(Kind::DefaultSubvol);
    }
}

#[test]
fn space_cache() {
    let mut v = Volume::sound();
    v.root.remove(&Key::inode(Ino(256)));
    v.expect(Kind::SpaceCache);
}

#[test]
fn uuid_entries_missing_and_stale() {
    let key = |n: u8, kind| Key::uuid(Uuid::from_bytes([n; 16]), kind);
    for (n, kind) in [(1, ItemType::UUID_SUBVOL), (9, ItemType::UUID_RECEIVED_SUBVOL)] {
        let mut v = Volume::sound();
        v.uuid.remove(&key(n, kind));
        v.expect(Kind::UuidMissing);
    }
    for (n, kind, tree) in [
        (1, ItemType::UUID_SUBVOL, B),
        (9, ItemType::UUID_RECEIVED_SUBVOL, A),
        (77, ItemType::UUID_SUBVOL, TreeId(999)),
    ] {
        let mut v = Volume::sound();
        let subvols = v.uuid.get(&key(n, kind)).map_or_else(Vec::new, |item| UuidItem::parse(item).subvols);
        let item = UuidItem { subvols: subvols.into_iter().chain([tree]).collect() };
        v.uuid.insert(key(n, kind), item.encode());
        v.expect(Kind::UuidStale);
    }
}

#[test]
fn qgroup_status() {
    let mut v = Volume::sound();
    v.quota.remove(&Key::new(0, ItemType::QGROUP_STATUS, 0));
    v.expect(Kind::QgroupStatus);
    let flags = QgroupStatusFlags::ON | QgroupStatusFlags::SIMPLE_MODE;
    let status = QgroupStatus { version: 1, generation: Generation(GENERATION), flags, rescan: 0, enable_gen: None };
    v.quota.insert(Key::new(0, ItemType::QGROUP_STATUS, 0), status.encode());
    v.expect(Kind::QgroupStatus);
    let (version, flags) = (2, QgroupStatusFlags::ON);
    let status = QgroupStatus { version, generation: Generation(GENERATION), flags, rescan: 0, enable_gen: None };
    v.quota.insert(Key::new(0, ItemType::QGROUP_STATUS, 0), status.encode());
    v.expect(Kind::QgroupStatus);
}

#[test]
fn qgroup_items() {
    for key in [
        Key::new(0, ItemType::QGROUP_LIMIT, group(2, 1)),
        Key::new(0, ItemType::QGROUP_LIMIT, A.0),
        Key::new(0, ItemType::QGROUP_INFO, DEAD.0),
    ] {
        let mut v = Volume::sound();
        v.quota.remove(&key).unwrap();
        v.expect(Kind::QgroupItem);
    }
    // Neither of both.
    let mut v = Volume::sound();
    v.quota.retain(|k, _| k.offset != TreeId::FS.0);
    v.expect(Kind::QgroupItem);
}

#[test]
fn qgroup_relations() {
    let mut v = Volume::sound();
    v.quota.remove(&Key::new(group(2, 1), ItemType::QGROUP_RELATION, group(1, 1))).unwrap();
    v.expect(Kind::QgroupRelation);
    let mut v = Volume::sound();
    v.relate(A.0, group(3, 9));
    assert_eq!(v.check().kinds(), [Kind::QgroupRelation; 2], "one from each side");
    let mut v = Volume::sound();
    v.relate(A.0, B.0);
    assert_eq!(v.check().kinds(), [Kind::QgroupRelation; 2]);
}

#[test]
fn qgroup_numbers() {
    for (id, rfer, excl) in [(A.0, 1016, 10), (B.0, 1007, 1), (group(1, 1), 1017, 10), (DEAD.0, 5, 0)] {
        let mut v = Volume::sound();
        v.qgroup(id, rfer, excl);
        v.expect(Kind::QgroupNumbers);
        // If the numbers are marked wrong, nothing is reported, and if they are not of this transaction, that alone.
        v.status(QgroupStatusFlags::ON | QgroupStatusFlags::INCONSISTENT, GENERATION);
        assert_eq!(v.check().findings, []);
        v.status(QgroupStatusFlags::ON, GENERATION - 1);
        v.expect(Kind::QgroupStatus);
        assert_eq!(v.check().findings[0].severity, Severity::Warning);
        // Nor while a subvolume is half dropped.
        v.status(QgroupStatusFlags::ON, GENERATION);
        let drop_progress = DiskKey::from(Key::inode(Ino(300)));
        v.put_root(DEAD, &RootItem { drop_progress, ..root_item(0, 3, 0) });
        assert_eq!(v.check().findings, []);
    }
}

/// The same volume with simple quotas.
fn simple() -> Volume {
    let mut v = Volume::sound();
    v.status(QgroupStatusFlags::ON | QgroupStatusFlags::SIMPLE_MODE, GENERATION);
    v.used = Used::Owned([(TreeId::FS, 100), (A, 20), (B, 3), (DEAD, 7), (TreeId::EXTENT, 50)].into());
    for (id, bytes) in [(TreeId::FS.0, 100), (A.0, 20), (B.0, 3), (DEAD.0, 7), (group(1, 1), 23), (group(2, 1), 23)] {
        v.qgroup(id, bytes, bytes);
    }
    v
}

#[test]
fn simple_qgroup_numbers() {
    assert_eq!(simple().check().findings, []);
    for (id, rfer, excl) in [(A.0, 21, 21), (A.0, 20, 19), (B.0, 0, 0), (group(1, 1), 20, 20), (DEAD.0, 0, 0)] {
        let mut v = simple();
        v.qgroup(id, rfer, excl);
        v.expect(Kind::QgroupNumbers);
        // Every transaction keeps these numbers, also one that does not write them, and half-dropped trees do not
        // matter.
        v.status(QgroupStatusFlags::ON | QgroupStatusFlags::SIMPLE_MODE, GENERATION - 1);
        let drop_progress = DiskKey::from(Key::inode(Ino(300)));
        v.put_root(DEAD, &RootItem { drop_progress, ..root_item(0, 3, 0) });
        v.expect(Kind::QgroupNumbers);
        v.status(QgroupStatusFlags::ON | QgroupStatusFlags::SIMPLE_MODE | QgroupStatusFlags::INCONSISTENT, GENERATION);
        assert_eq!(v.check().findings, []);
    }
}

#[test]
fn log_ranges() {
    let mut v = Volume::sound();
    let range = |end: u64| DirLogItem { end: end.into() }.as_bytes().to_vec();
    v.log.insert(Key::new(300, ItemType::DIR_LOG_INDEX, 3), range(2));
    v.expect(Kind::LogRange);
    let mut v = Volume::sound();
    v.log.insert(Key::new(256, ItemType::DIR_LOG_INDEX, 0), range(6));
    assert_eq!(v.check().findings, [], "what two ranges cover counts once");
}

#[test]
fn log_items() {
    let mut v = Volume::sound();
    let inode = InodeItem { transid: (GENERATION + 2).into(), ..InodeItem::default() };
    v.log.insert(Key::inode(Ino(300)), inode.as_bytes().to_vec());
    v.expect(Kind::ItemGeneration);

    let mut tree = Tree::new();
    let file = tree.make(FileType::RegFile, ROOT, b"f");
    tree.data(file, 0, 2 * SECTOR);
    tree.data(file, 2 * SECTOR, SECTOR);
    let mut v = Volume::sound();
    v.log.extend(tree.items.clone());
    assert_eq!(v.check().findings, []);
    tree.data(file, SECTOR, SECTOR);
    v.log.extend(tree.items);
    v.expect(Kind::FileExtentOverlap);
}

#[test]
fn log_root() {
    let v = Volume::sound();
    for (number, found) in [(A.0, 0), (TreeId::FS.0, 0), (DEAD.0, 1), (999, 1)] {
        let verdict = reported(How::default(), |c| {
            let mut roots = Roots::default();
            v.root.iter().for_each(|(k, v)| roots.item(k, v));
            let key = Key::new(TreeId::TREE_LOG.0, ItemType::ROOT_ITEM, number);
            assert!(logs::check_root(c, &roots, &key, &root_item(0, 0, 0).encode()).is_some());
        });
        assert_eq!(verdict.kinds(), vec![Kind::LogRoot; found], "tree {number}");
    }
}

//! Many transactions on one volume, verified by `btrfs check`.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use oleo_device::{Device, FileDevice, FileOptions};
use oleo_format::{DirItem, ItemType, Key, TreeId, dir_hash};
use oleo_mkfs::MkfsOptions;
use oleo_sim::{oracle, rng::Rng};
use oleo_space::Kind;
use oleo_tree::Change;
use oleo_txn::{CsumCheck, DataWant, DeltaSource, Engine, EngineOptions, Need, Stage, TxnError};
use oleo_volume::{OpenOptions, Volume};
use parking_lot::Mutex;
use zerocopy::IntoBytes;

/// A `DeltaSource` whose changes are extended attributes of the top directory, the smallest valid content there is.
#[derive(Default)]
struct Attributes {
    open: Mutex<BTreeMap<Key, Change>>,
    frozen: Mutex<BTreeMap<Key, Change>>,
}

impl DeltaSource for Attributes {
    fn freeze(&self) {
        *self.frozen.lock() = std::mem::take(&mut *self.open.lock());
    }
    fn itemise(&self) -> Result<Stage, TxnError> {
        let batch = self.frozen.lock().values().cloned().collect();
        Ok(Stage { trees: vec![(TreeId::FS, batch)], root_items: Vec::new() })
    }
    fn published(&self) {
        self.frozen.lock().clear();
    }
}

fn attribute(name: &[u8], value: &[u8]) -> (Key, Vec<u8>) {
    let head = DirItem {
        location: Key::MIN.into(),
        transid: 1.into(),
        data_len: (value.len() as u16).into(),
        name_len: (name.len() as u16).into(),
        r#type: 8,
    };
    let key = Key::new(256, ItemType::XATTR_ITEM, u64::from(dir_hash(name)));
    (key, [head.as_bytes(), name, value].concat())
}

fn open(path: &std::path::Path) -> Engine {
    let options = FileOptions::default().write(true);
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(path, &options).unwrap());
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() }).unwrap();
    Engine::open(Arc::new(volume), &EngineOptions::default()).unwrap()
}

/// Bytes that all tree blocks of a volume take in the cache, with what it needs beside each.
fn live_bytes(engine: &Engine) -> u64 {
    const BESIDE: u64 = 160;
    let used: u64 = [Kind::Metadata, Kind::System].map(|kind| engine.space().totals(kind).used.0).iter().sum();
    used + used / u64::from(engine.nodesize()) * BESIDE
}

fn churn(name: &str, options: MkfsOptions, seed: u64) {
    let Some(oracle) = oracle::oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let image = scratch.image(name, 512 << 20).unwrap();
    {
        let options_file = FileOptions::default().write(true);
        let device: Arc<dyn Device> = Arc::new(FileDevice::open(&image, &options_file).unwrap());
        oleo_mkfs::make(&[device], &options).unwrap();
    }
    let mut rng = Rng::new(seed);
    let mut model: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
    for reopen in 0..3 {
        let engine = open(&image);
        let source = Arc::new(Attributes::default());
        let weak: Weak<Attributes> = Arc::downgrade(&source);
        engine.set_source(weak);
        let max = (engine.nodesize() as usize / 8).min(1500) as u64;
        for commit in 0..6 {
            let _handle = engine.join(Need { items: 600, bytes: 600 * max as u32, ..Need::default() }).unwrap();
            for _ in 0..rng.between(1, 600) {
                let name = format!("user.{}", rng.below(1500));
                let value = vec![b'v'; rng.below(max) as usize];
                let (key, item) = attribute(name.as_bytes(), &value);
                let change = if rng.one_in(3) {
                    model.remove(&key);
                    Change::delete(key)
                } else {
                    model.insert(key, item.clone());
                    Change::put(key, item)
                };
                source.open.lock().insert(key, change);
            }
            drop(_handle);
            if rng.one_in(3) {
                engine.stage(|_| Ok(())).unwrap();
            }
            engine.commit().unwrap();
            let (cached, live) = (engine.blocks().cached_bytes(), live_bytes(&engine));
            assert!(cached <= live, "seed {seed}, commit {commit}: {cached} bytes are cached, and there are {live}");
        }
        let root = engine.root(TreeId::FS).unwrap().unwrap();
        let mut have = BTreeMap::new();
        let mut cursor = engine.blocks().cursor(&root);
        let mut more = cursor.seek(&Key::new(256, ItemType::XATTR_ITEM, 0)).unwrap();
        while more {
            let Some((key, data)) = cursor.current() else { break };
            have.insert(key, data.to_vec());
            more = cursor.next().unwrap();
        }
        assert!(have == model, "the tree holds what was put, seed {seed}");
        drop(engine);
        oracle.must_be_sound(&[&image], &format!("{name}, seed {seed}, after {} openings", reopen + 1)).unwrap();
    }
    oracle.mount(&[&image], "").unwrap().unmount().unwrap();
}

/// Goal: any number of transactions leaves extents, references, free space, groups and roots as `btrfs check` wants them.
/// The cache holds no more blocks than there are.
/// Method: attributes come and go in seeded transactions with stages in between; a map is the model; the tool verifies.
#[test]
fn transactions_leave_sound_volumes() {
    churn("plain", MkfsOptions::default(), 1);
}

/// Goal and method as above, with small blocks, so that trees are high, and the block-group tree.
#[test]
fn small_blocks_and_the_block_group_tree() {
    let mut options = MkfsOptions::default().nodesize(Some(4096));
    options.features.block_group_tree = true;
    churn("small", options, 2);
}

/// Goal and method as above, without skinny metadata and without a free-space tree.
#[test]
fn old_features() {
    let mut options = MkfsOptions::default();
    options.features.skinny_metadata = false;
    options.features.free_space_tree = false;
    churn("old", options, 3);
}

/// Goal: data that was never named is not lost space, and checksums go with it. Method: grant, write, name in a handle, do
/// not reference; commit; the space is free again and the volume sound.
#[test]
fn unreferenced_new_extents_leave_no_trace() {
    let Some(oracle) = oracle::oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let image = scratch.image("births", 512 << 20).unwrap();
    let options_file = FileOptions::default().write(true);
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&image, &options_file).unwrap());
    oleo_mkfs::make(&[device], &MkfsOptions::default()).unwrap();
    let engine = open(&image);
    let free = engine.space().totals(oleo_space::Kind::Data).free;
    let len = oleo_format::ByteLen(1 << 20);
    for _ in 0..3 {
        let reservation = engine.reserve_data(len).unwrap();
        let grant = engine.alloc_data(DataWant { len, min_len: len, stream: 7, directory: 0 }).unwrap();
        let run = grant.run();
        let data = vec![5u8; len.0 as usize];
        engine.write_data(&[(run.start, &data)]).unwrap();
        let mut sums = Vec::new();
        engine.csum_type().csum_sectors(&data, engine.sectorsize(), &mut sums);
        {
            let handle = engine.join(Need { items: 2, bytes: 1024, ..Need::default() }).unwrap();
            handle.record_new_extent(grant, TreeId::FS);
            handle.add_csums(run.start, sums);
        }
        drop(reservation);
        let mut back = vec![0; 8192];
        engine.read_data(run.start, &mut back, CsumCheck::Verify).unwrap();
        assert!(back.iter().all(|b| *b == 5), "what was written can be read before it is committed");
        engine.commit().unwrap();
    }
    assert_eq!(engine.space().totals(oleo_space::Kind::Data).free, free);
    drop(engine);
    oracle.must_be_sound(&[&image], "after births without references").unwrap();
}

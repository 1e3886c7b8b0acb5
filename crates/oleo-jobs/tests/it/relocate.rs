//! Relocation: groups are emptied and removed, and nothing changes but addresses.

mod beside;
mod half_way;
mod histories;
mod odd_groups;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use oleo_device::{FileDevice, FileOptions};
use oleo_format::{BlockGroupFlags, BlockGroupItem, ByteLen, InodeFlags, ItemType, Key, Logical, TreeId};
use oleo_fs::data::KeepSize;
use oleo_fs::{Fs, InodeRef, NewInode, NewKind, NewSubvol, SetAttr, SnapshotOptions};
use oleo_jobs::{TrimRange, quota, quota_enable, shares, trim};
use oleo_mkfs::{FeatureSet, MkfsOptions};
use oleo_sim::oracle::{Oracle, oracle, run};
use oleo_sim::rng::Rng;
use oleo_tree::Change;
use oleo_txn::{Moved, TxnError};
use oleo_volume::ChunkWant;
use zerocopy::IntoBytes;

use crate::common::{SECTOR, World, create_levels, kernel_counts, must_be_clean, must_be_exact, nodesize, open, said};

/// Bytes by the set of subvolumes that shares them, as of the last commit.
fn sharing(fs: &Fs) -> anyhow::Result<BTreeMap<Arc<[TreeId]>, u64>> {
    let base = fs.engine().scan_base(false)?;
    Ok(shares(fs.engine(), &base, &|| true)?.unwrap().into_iter().collect())
}

/// What may be in a world.
struct Known {
    subvols: Vec<TreeId>,
    made: u32,
}

impl Known {
    fn of(world: &World) -> Known {
        Known { subvols: world.subvols.clone(), made: world.made }
    }
}

/// All files of the subvolumes: their lengths, and hashes of their bytes.
fn contents(fs: &Fs, world: &Known) -> anyhow::Result<BTreeMap<(TreeId, String), (usize, u64)>> {
    let mut all = BTreeMap::new();
    let names = (0..8).map(|n| format!("file{n}"));
    let names: Vec<String> = names.chain((0..world.made * 100 + 30).map(|n| format!("small{n}"))).collect();
    for tree in &world.subvols {
        let root = fs.root(*tree)?;
        for name in &names {
            if let Some(file) = fs.lookup(&root, name.as_bytes())? {
                all.insert((*tree, name.clone()), bytes(fs, &file)?);
            }
        }
    }
    Ok(all)
}

fn bytes(fs: &Fs, file: &InodeRef) -> anyhow::Result<(usize, u64)> {
    let mut out = vec![0; fs.attr(file).size as usize];
    fs.read(file, 0, &mut out)?;
    let mut hasher = DefaultHasher::new();
    out.hash(&mut hasher);
    Ok((out.len(), hasher.finish()))
}

fn groups(fs: &Fs, flags: BlockGroupFlags) -> Vec<Logical> {
    fs.engine().space().groups().into_iter().filter(|g| g.flags.intersects(flags)).map(|g| g.start).collect()
}

/// Moves every group that is there now.
fn move_all(fs: &Fs, flags: BlockGroupFlags) -> anyhow::Result<Moved> {
    let mut all = Moved::default();
    for start in groups(fs, flags) {
        all += fs.engine().relocate_group(start, &|_| true)?.expect("nobody stops it");
    }
    Ok(all)
}

/// Makes a volume as `mkfs.btrfs` with these arguments does, or one of ours if it cannot.
fn make(oracle: Oracle, image: &Path, mkfs: &[&str]) -> anyhow::Result<()> {
    if mkfs != BLOCK_GROUP_TREE {
        return oracle.mkfs(mkfs, &[image]);
    }
    let options = FileOptions::default().write(true);
    let features = FeatureSet::default().block_group_tree(true);
    let device = Arc::new(FileDevice::open(image, &options)?);
    oleo_mkfs::make(&[device], &MkfsOptions::default().features(features).seed([9; 32]))?;
    Ok(())
}

const BLOCK_GROUP_TREE: [&str; 2] = ["-O", "block-group-tree"];

/// Not every `btrfs check` can read volumes with a tree of block groups: the kernel verifies those alone.
fn must_be_sound(oracle: Oracle, image: &Path, mkfs: &[&str], what: &str) -> anyhow::Result<()> {
    if mkfs != BLOCK_GROUP_TREE {
        return oracle.must_be_sound(&[image], what);
    }
    let mounted = oracle.mount(&[image], "")?;
    let found = mounted.scrub()?;
    assert!(found.is_clean(), "{what}: scrub: {found}");
    mounted.unmount()
}

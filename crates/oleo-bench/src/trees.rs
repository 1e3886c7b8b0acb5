//! The trees alone: batches applied to a tree whose blocks are in memory, look-ups, and a cursor's steps.
//!
//! Everything else does as little as possible: addresses rise, nothing is shared, and references are recorded in a
//! ledger that is never settled. Written blocks stay in the cache. The tree is that of many new files in one directory,
//! four items each, on blocks of 16 KiB with crc32c.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use oleo::format::{Generation, Logical};
use oleo::mkfs::CsumType;
use oleo::{TreeId, Uuid};
use oleo_format::{
    BlockHead, CheckedNode, CompatRo, Corruption, Features, HeaderFlags, Incompat, ItemType, Key, NodeExpect, NodeRules,
};
use oleo_sim::rng::Rng;
use oleo_space::Ledger;
use oleo_tree::{
    ApplyEnv, BlockAlloc, BlockReader, Blocks, Change, Dirty, ExtentInfo, ExtentState, TreeError, TreeRoot,
};
use parking_lot::Mutex;

use crate::Args;
use crate::measure::Report;

const NODE_LEN: u32 = 16384;
/// A type that the format does not define, so that any bytes may be in such an item.
const ANY: ItemType = ItemType(100);
const TREE: TreeId = TreeId(256);
const LOOKUPS: u64 = 1_000_000;
/// Files that look-ups of a working set are among.
const FEW_FILES: u64 = 10_000;
const SINGLE_CHANGES: u32 = 1000;

/// Written blocks by address.
struct Kept {
    rules: NodeRules,
    blocks: Mutex<BTreeMap<u64, Box<[u8]>>>,
}

impl BlockReader for Kept {
    fn rules(&self) -> &NodeRules {
        &self.rules
    }

    fn read_block(&self, expect: &NodeExpect) -> Result<CheckedNode, TreeError> {
        let bytes = self.blocks.lock().get(&expect.logical.0).cloned();
        let bytes = bytes.ok_or_else(|| Corruption::new("kept blocks", "block", "missing", expect.logical))?;
        Ok(CheckedNode::verify(bytes, &self.rules, expect)?)
    }

    fn read_blocks(&self, expects: &[NodeExpect]) -> Vec<Result<CheckedNode, TreeError>> {
        expects.iter().map(|expect| self.read_block(expect)).collect()
    }
}

/// Addresses that rise.
struct Rising(Mutex<u64>);

impl BlockAlloc for Rising {
    fn alloc(&self, count: usize, out: &mut Vec<Logical>) -> Result<(), TreeError> {
        let mut next = self.0.lock();
        for _ in 0..count {
            *next += u64::from(NODE_LEN);
            out.push(Logical(*next));
        }
        Ok(())
    }
}

/// Every block is referenced once.
struct Once;

impl ExtentInfo for Once {
    fn lookup(&self, blocks: &[(Logical, u8)]) -> Result<Vec<ExtentState>, TreeError> {
        Ok(blocks.iter().map(|_| ExtentState { refs: 1, full_backref: false }).collect())
    }
}

struct World {
    kept: Arc<Kept>,
    blocks: Blocks,
    dirty: Dirty,
    ledger: Ledger,
    alloc: Rising,
    head: BlockHead,
    generation: Generation,
    /// Whether batches are applied on all cores.
    threads: bool,
}

impl World {
    fn new(cache_bytes: usize, threads: bool) -> World {
        let rules = NodeRules {
            fsid: Uuid::from_u128(7),
            nodesize: NODE_LEN,
            sectorsize: 4096,
            csum: CsumType::Crc32c,
            features: Features { compat: 0, compat_ro: CompatRo::empty(), incompat: Incompat::empty() },
        };
        let kept = Arc::new(Kept { rules, blocks: Mutex::default() });
        let head = BlockHead {
            logical: Logical(0),
            generation: Generation(0),
            owner: TREE,
            level: 0,
            flags: HeaderFlags::empty(),
            fsid: rules.fsid,
            chunk_tree_uuid: Uuid::from_u128(8),
        };
        World {
            blocks: Blocks::new(kept.clone(), cache_bytes),
            kept,
            dirty: Dirty::new(),
            ledger: Ledger::new(),
            alloc: Rising(Mutex::new(1 << 20)),
            head,
            generation: Generation(10),
            threads,
        }
    }

    fn with_env<R>(&self, f: impl FnOnce(&ApplyEnv<'_>) -> R) -> R {
        f(&ApplyEnv {
            generation: self.generation,
            owner: TREE,
            last_snapshot: Some(Generation(0)),
            dirty: &self.dirty,
            ledger: &self.ledger,
            alloc: &self.alloc,
            extents: &Once,
            head: &self.head,
            threads: self.threads,
        })
    }

    fn apply(&self, root: &TreeRoot, batch: &[Change]) -> Result<TreeRoot> {
        Ok(self.with_env(|env| self.blocks.apply(root, batch, env))?)
    }

    /// Verifies the new blocks, keeps them, and puts them into the cache: a commit without a device.
    fn commit(&mut self) -> Result<()> {
        while !self.ledger.drain(4096).is_empty() {}
        let written = self.dirty.drain_sorted();
        Dirty::verify(&written, self.blocks.rules())?;
        self.kept.blocks.lock().extend(written.iter().map(|node| (node.logical().0, node.bytes().into())));
        self.blocks.publish(&written);
        self.generation.0 += 1;
        Ok(())
    }
}

/// The items of new empty files in one directory.
fn new_files(files: u64) -> Vec<Change> {
    let mut batch = Vec::new();
    for n in 0..files {
        let hash = n.wrapping_mul(0x9e37_79b9) & 0xffff_ffff;
        batch.push(Change::put(Key::new(256, ANY, hash), vec![1; 40]));
        batch.push(Change::put(Key::new(256, ANY, (1 << 40) + n), vec![1; 40]));
        batch.push(Change::put(Key::new(257 + n, ANY, 0), vec![0; 160]));
        batch.push(Change::put(Key::new(257 + n, ANY, 1), vec![2; 20]));
    }
    batch.sort_unstable_by_key(|change| change.key);
    batch.dedup_by_key(|change| change.key);
    batch
}

/// The item of a file that is there.
fn inode(n: u64) -> Key {
    Key::new(257 + n, ANY, 0)
}

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let files = args.files;
    ensure!(files > 0, "--files must not be 0");
    report.note(&format!("{files} files of four items, all in cache; one run each; no peer"));
    for (threads, name) in [(false, "one thread"), (true, "all cores")] {
        // What the items take at most, in blocks that are full.
        let mut world = World::new(usize::try_from(files)? * 4096 + (64 << 20), threads);
        let root = world.with_env(|env| world.blocks.create_tree(&[], env))?;
        let batch = new_files(files);
        let (start, items) = (Instant::now(), batch.len());
        let root = world.apply(&root, &batch)?;
        let each = |start: Instant, count: u64| start.elapsed().as_secs_f64() * 1e9 / count.max(1) as f64;
        report.value(&format!("{name}: into an empty tree"), "ns/item", each(start, items as u64));
        drop(batch);
        world.commit()?;
        let root = root.settled();

        let some: Vec<Change> = (0..files.div_ceil(10)).map(|n| Change::put(inode(n * 10), vec![3; 160])).collect();
        let start = Instant::now();
        black_box(world.apply(&root, &some)?);
        report.value(&format!("{name}: every tenth file changed"), "ns/change", each(start, some.len() as u64));
        let one = [Change::put(inode(files / 2), vec![4; 160])];
        let start = Instant::now();
        for _ in 0..SINGLE_CHANGES {
            black_box(world.apply(&root, &one)?);
        }
        report.value(&format!("{name}: one change"), "ns", each(start, u64::from(SINGLE_CHANGES)));
        if !threads {
            reading(&world, &root, files, report)?;
        }
    }
    Ok(())
}

fn reading(world: &World, root: &TreeRoot, files: u64, report: &Report) -> Result<()> {
    let mut rng = Rng::new(1);
    for (name, among) in [("look-up among all files", files), ("look-up among few", FEW_FILES.min(files))] {
        let start = Instant::now();
        for _ in 0..LOOKUPS {
            let n = rng.below(among);
            black_box(world.blocks.get(root, &inode(n))?.context("a file that is there")?);
        }
        report.value(name, "ns", start.elapsed().as_secs_f64() * 1e9 / LOOKUPS as f64);
    }
    let start = Instant::now();
    let (mut cursor, mut steps) = (world.blocks.cursor(root), 0u64);
    while cursor.next()? {
        steps += 1;
    }
    ensure!(steps > files * 2, "only {steps} items of {files} files");
    report.value("a cursor's step", "ns", start.elapsed().as_secs_f64() * 1e9 / steps as f64);
    Ok(())
}

//! A small world around the trees: blocks in a map instead of a volume, references in a map instead of an extent tree,
//! commits that settle the ledger into it. What the tests compare with is derived from scratch by walking all trees.

mod batch;
mod read;
mod refs;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use oleo_format::{
    BlockHead, ByteLen, CheckedNode, CompatRo, Compression, Corruption, CsumType, DiskExtent, Features, FileExtent,
    Generation, HeaderFlags, Incompat, ItemType, Key, Logical, NodeExpect, NodeRules, TreeId, data_use,
};
use oleo_sim::rng::Rng;
use oleo_space::{ExtentKind, Ledger, RefKey};
use parking_lot::Mutex;

use crate::*;

/// Blocks by address. Other addresses cannot be read.
pub(crate) struct MemDisk {
    rules: NodeRules,
    blocks: Mutex<BTreeMap<u64, Box<[u8]>>>,
}

impl BlockReader for MemDisk {
    fn rules(&self) -> &NodeRules {
        &self.rules
    }

    fn read_block(&self, expect: &NodeExpect) -> Result<CheckedNode, TreeError> {
        let bytes = self.blocks.lock().get(&expect.logical.0).cloned();
        let bytes = bytes.ok_or_else(|| Corruption::new("test disk", "block", "missing", expect.logical))?;
        Ok(CheckedNode::verify(bytes, &self.rules, expect)?)
    }

    fn read_blocks(&self, expects: &[NodeExpect]) -> Vec<Result<CheckedNode, TreeError>> {
        expects.iter().map(|expect| self.read_block(expect)).collect()
    }
}

#[derive(Default)]
struct Addresses {
    next: u64,
    free: Vec<Logical>,
}

/// Gives addresses; those of freed blocks are used again.
pub(crate) struct MemAlloc(Mutex<Addresses>, u64);

impl BlockAlloc for MemAlloc {
    fn alloc(&self, count: usize, out: &mut Vec<Logical>) -> Result<(), TreeError> {
        let mut addresses = self.0.lock();
        for _ in 0..count {
            let at = addresses.free.pop().unwrap_or_else(|| {
                addresses.next += self.1;
                Logical(addresses.next)
            });
            out.push(at);
        }
        Ok(())
    }
}

/// The extent tree's record of one extent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    pub refs: BTreeMap<RefKey, i64>,
    pub full: bool,
}

pub(crate) struct Extents<'a>(pub &'a Mutex<BTreeMap<Logical, Record>>, pub &'a Ledger);

impl ExtentInfo for Extents<'_> {
    fn lookup(&self, blocks: &[(Logical, u8)]) -> Result<Vec<ExtentState>, TreeError> {
        assert!(blocks.is_sorted(), "questions come sorted");
        let records = self.0.lock();
        Ok(blocks
            .iter()
            .map(|(at, _)| {
                let pending = self.1.pending(*at);
                let record = records.get(at).cloned().unwrap_or_default();
                let refs = record.refs.values().sum::<i64>() + pending.refs;
                ExtentState {
                    refs: u64::try_from(refs).expect("no negative count"),
                    full_backref: record.full || pending.full_backref,
                }
            })
            .collect())
    }
}

/// How often blocks were gained, less how often they were lost.
struct Sums<'a>(&'a mut BTreeMap<Logical, i64>);

impl DropVisit<TreeError> for Sums<'_> {
    fn passes_over(&mut self, _: &oleo_format::ChildPtr, _: u8) -> Result<bool, TreeError> {
        Ok(false)
    }

    fn meet(&mut self, node: &Arc<Node>, block_change: BlockChange) -> Result<Walk, TreeError> {
        *self.0.entry(node.logical()).or_default() += if block_change == BlockChange::Lost { -1 } else { 1 };
        Ok(Walk::Into)
    }
}

/// Chooses the shared nodes that are dropped piece by piece.
pub(crate) type Choice<'a> = &'a mut dyn FnMut(&Node) -> Result<bool, TreeError>;

pub(crate) struct Tree {
    pub root: TreeRoot,
    pub last_snapshot: Option<Generation>,
    pub created: Generation,
    pub model: BTreeMap<Key, Box<[u8]>>,
    /// The tree is being dropped.
    pub dropping: bool,
    pub progress: Option<DropProgress>,
}

pub(crate) struct World {
    pub disk: Arc<MemDisk>,
    pub blocks: Blocks,
    pub dirty: Dirty,
    pub ledger: Ledger,
    pub alloc: MemAlloc,
    pub records: Mutex<BTreeMap<Logical, Record>>,
    pub freed: Vec<Logical>,
    pub generation: Generation,
    pub trees: BTreeMap<TreeId, Tree>,
    pub head: BlockHead,
    pub threads: bool,
}

impl World {
    pub fn new(nodesize: u32) -> World {
        let rules = NodeRules {
            fsid: uuid::Uuid::from_u128(7),
            nodesize,
            sectorsize: 4096,
            csum: CsumType::Crc32c,
            features: Features { compat: 0, compat_ro: CompatRo::empty(), incompat: Incompat::empty() },
        };
        let disk = Arc::new(MemDisk { rules, blocks: Mutex::default() });
        let blocks = Blocks::new(disk.clone(), 64 * nodesize as usize);
        let head = BlockHead {
            logical: Logical(0),
            generation: Generation(0),
            owner: TreeId(0),
            level: 0,
            flags: HeaderFlags::empty(),
            fsid: rules.fsid,
            chunk_tree_uuid: uuid::Uuid::from_u128(8),
        };
        let addresses = Addresses { next: 1 << 20, free: Vec::new() };
        World {
            disk,
            blocks,
            dirty: Dirty::new(),
            ledger: Ledger::new(),
            alloc: MemAlloc(Mutex::new(addresses), u64::from(nodesize)),
            records: Mutex::default(),
            freed: Vec::new(),
            generation: Generation(10),
            trees: BTreeMap::new(),
            head,
            threads: false,
        }
    }

    /// Calls with the environment of a tree.
    pub fn with_env<R>(&self, tree: TreeId, last: Option<Generation>, f: impl FnOnce(&ApplyEnv<'_>) -> R) -> R {
        let extents = Extents(&self.records, &self.ledger);
        f(&ApplyEnv {
            generation: self.generation,
            owner: tree,
            last_snapshot: last,
            dirty: &self.dirty,
            ledger: &self.ledger,
            alloc: &self.alloc,
            extents: &extents,
            head: &self.head,
            threads: self.threads,
        })
    }

    pub fn create(&mut self, tree: TreeId) {
        let last_snapshot = tree.is_shareable().then_some(Generation(0));
        let root = self.with_env(tree, last_snapshot, |env| self.blocks.create_tree(&[], env)).unwrap();
        let (model, created) = (BTreeMap::new(), Generation(0));
        self.trees.insert(tree, Tree { root, last_snapshot, created, model, dropping: false, progress: None });
    }

    pub fn apply(&mut self, tree: TreeId, batch: &[Change]) {
        let t = &self.trees[&tree];
        let root = self.with_env(tree, t.last_snapshot, |env| self.blocks.apply(&t.root, batch, env)).unwrap();
        let t = self.trees.get_mut(&tree).unwrap();
        t.root = root;
        for change in batch {
            match &change.op {
                Op::Put(item) => t.model.insert(change.key, (**item).into()),
                Op::Delete => t.model.remove(&change.key),
            };
        }
    }

    pub fn snapshot(&mut self, source: TreeId, target: TreeId) {
        let generation = self.generation;
        let root = self
            .with_env(target, Some(generation), |env| self.blocks.copy_root(&self.trees[&source].root, target, env))
            .unwrap();
        let source = self.trees.get_mut(&source).unwrap();
        source.last_snapshot = Some(generation);
        let tree = Tree {
            root,
            last_snapshot: Some(generation),
            created: generation,
            model: source.model.clone(),
            dropping: false,
            progress: None,
        };
        self.trees.insert(target, tree);
    }

    /// One step of dropping a tree; whether it is gone.
    pub fn drop_step(&mut self, tree: TreeId, budget_blocks: usize) -> bool {
        self.drop_step_slowly(tree, budget_blocks, None)
    }

    /// The same with a choice of shared nodes that are dropped piece by piece. Walks show what the tree lost and
    /// gained.
    pub fn drop_step_slowly(&mut self, tree: TreeId, budget_blocks: usize, apart: Option<Choice<'_>>) -> bool {
        self.trees.get_mut(&tree).unwrap().dropping = true;
        let t = &self.trees[&tree];
        let before = self.reached(&t.root, t.progress);
        let plan = DropPlan { created: t.created, from: t.progress, budget_blocks, full_root: false };
        let done = self
            .with_env(tree, t.last_snapshot, |env| {
                let apart = apart.map(|asks| TakesApart { refs_max: u64::MAX, asks });
                self.blocks.drop_tree_slowly(&t.root, &plan, env, apart)
            })
            .unwrap();
        assert!(done.looked_at <= budget_blocks.max(1));
        let root = done.root.clone().unwrap_or_else(|| t.root.clone());
        let progress = match done.step {
            DropStep::Done => None,
            DropStep::More(progress) => Some(progress),
        };
        let after = if progress.is_some() { self.reached(&root, progress) } else { BTreeSet::new() };
        let mut said: BTreeMap<Logical, i64> = BTreeMap::new();
        let from = DropMoment { root: &t.root, progress: t.progress.as_ref() };
        let to = progress.as_ref().map(|progress| DropMoment { root: &root, progress: Some(progress) });
        self.blocks.dropped(from, to, &mut Sums(&mut said)).unwrap();
        let lost = before.difference(&after).map(|at| (*at, -1));
        let want: BTreeMap<Logical, i64> = lost.chain(after.difference(&before).map(|at| (*at, 1))).collect();
        said.retain(|_, n| *n != 0);
        assert_eq!(said, want, "what the tree lost and gained");
        let Some(progress) = progress else {
            self.trees.remove(&tree);
            return true;
        };
        assert!(t.progress != Some(progress), "every step comes further: {progress:?}");
        let t = self.trees.get_mut(&tree).unwrap();
        (t.root, t.progress) = (root, Some(progress));
        false
    }

    /// The blocks of a tree; of one that is being dropped, those that are left.
    fn reached(&self, root: &TreeRoot, progress: Option<DropProgress>) -> BTreeSet<Logical> {
        let mut all = BTreeSet::new();
        let mut stack = vec![(self.blocks.root_node_in(root, &self.dirty).unwrap(), progress)];
        while let Some((node, progress)) = stack.pop() {
            all.insert(node.logical());
            if node.is_leaf() {
                continue;
            }
            let from = progress.map_or(0, |p| node.child_slot(&p.key));
            for slot in from..node.len() {
                let inherited = progress.filter(|p| slot == from && node.level() > p.level);
                stack.push((self.blocks.child(root.tree, &node, slot).unwrap(), inherited));
            }
        }
        all
    }

    /// Settles the ledger into the records.
    pub fn settle(&mut self) {
        let mut records = self.records.lock();
        loop {
            let batch = self.ledger.drain(100);
            if batch.is_empty() {
                break;
            }
            for head in batch.heads() {
                let record = records.entry(head.at).or_default();
                record.full |= head.full_backref;
                for (key, delta) in head.refs() {
                    let count = record.refs.entry(key).or_default();
                    *count += i64::from(delta);
                    assert!(*count >= 0, "{key:?} of {} goes to {count}", head.at);
                    if *count == 0 {
                        record.refs.remove(&key);
                    }
                }
                if record.refs.is_empty() {
                    records.remove(&head.at);
                    if matches!(head.kind, ExtentKind::Tree { .. }) {
                        self.dirty.remove(head.at);
                        self.freed.push(head.at);
                    }
                }
            }
        }
    }

    pub fn commit(&mut self) {
        self.settle();
        let written = self.dirty.drain_sorted();
        Dirty::verify(&written, self.blocks.rules()).unwrap();
        let mut disk = self.disk.blocks.lock();
        for at in &self.freed {
            disk.remove(&at.0);
        }
        for node in &written {
            disk.insert(node.logical().0, node.bytes().into());
        }
        drop(disk);
        self.alloc.0.lock().free.append(&mut self.freed);
        self.blocks.publish(&written);
        for tree in self.trees.values_mut() {
            tree.root = tree.root.settled();
        }
        self.generation.0 += 1;
    }

    /// Everything in a tree by a scan.
    pub fn contents(&self, root: &TreeRoot) -> BTreeMap<Key, Box<[u8]>> {
        let mut out = BTreeMap::new();
        self.blocks
            .scan::<TreeError>(root, Key::MIN, Key::MAX, |key, item| {
                out.insert(*key, item.into());
                Ok(ControlFlow::Continue(()))
            })
            .unwrap();
        out
    }

    /// Compares the trees with their models.
    pub fn check_contents(&self, note: &str) {
        for (id, tree) in self.trees.iter().filter(|(_, tree)| !tree.dropping) {
            let have = self.contents(&tree.root);
            assert!(have == tree.model, "{note}: tree {id}: {} items, want {}", have.len(), tree.model.len());
        }
    }

    /// The records are what walking all trees finds; every implicit reference can be found by the name it goes by.
    pub fn check_refs(&self, note: &str) {
        let mut want: BTreeMap<Logical, Record> = BTreeMap::new();
        let records = self.records.lock();
        let mut reached: BTreeMap<Logical, BTreeSet<TreeId>> = BTreeMap::new();
        let mut counted: BTreeSet<Logical> = BTreeSet::new();
        for (id, tree) in &self.trees {
            let root = self.blocks.root_node_in(&tree.root, &self.dirty).unwrap();
            *want.entry(root.logical()).or_default().refs.entry(RefKey::TreeRoot(*id)).or_default() += 1;
            let mut stack = vec![(root, tree.progress)];
            while let Some((node, progress)) = stack.pop() {
                let at = node.logical();
                reached.entry(at).or_default().insert(*id);
                let full =
                    records.get(&at).unwrap_or_else(|| panic!("{note}: block {at} is reached, not recorded")).full;
                let first_time = counted.insert(at);
                want.entry(at).or_default().full = full;
                if node.is_leaf() {
                    for (key, item) in node.iter() {
                        if let Some(used) = data_use(&key, item).filter(|_| first_time && tree.last_snapshot.is_some())
                        {
                            let by = if full {
                                RefKey::DataParent(at)
                            } else {
                                RefKey::DataRoot { root: node.owner(), ino: used.ino, offset: used.offset }
                            };
                            *want.entry(used.extent).or_default().refs.entry(by).or_default() += 1;
                        }
                    }
                    continue;
                }
                let from = progress.map_or(0, |p| node.child_slot(&p.key));
                for slot in from..node.len() {
                    let child = node.child(slot);
                    if first_time {
                        let by = if full { RefKey::TreeParent(at) } else { RefKey::TreeRoot(node.owner()) };
                        *want.entry(child.logical).or_default().refs.entry(by).or_default() += 1;
                    }
                    let inherited = progress.filter(|p| slot == from && node.level() > p.level);
                    stack.push((self.blocks.child(*id, &node, slot).unwrap(), inherited));
                }
            }
        }
        for (at, by) in &reached {
            let node_owner = self.dirty.get(*at).map(|n| n.owner()).unwrap_or_else(|| {
                let disk = self.disk.blocks.lock();
                TreeId(u64::from_le_bytes(disk[&at.0][88..96].try_into().unwrap()))
            });
            assert!(
                want[at].full || by.contains(&node_owner),
                "{note}: block {at} of {node_owner} is reached by {by:?}"
            );
        }
        for (at, record) in &want {
            assert_eq!(Some(record), records.get(at), "{note}: extent {at}: derived, recorded");
        }
        for at in records.keys() {
            assert!(want.contains_key(at), "{note}: extent {at} is recorded, not reached: {:?}", records[at]);
        }
    }
}

/// A file extent at `extent`.
pub(crate) fn file_extent(extent: u64, sectors: u64) -> Box<[u8]> {
    let len = ByteLen(sectors * 4096);
    FileExtent::Regular(DiskExtent {
        generation: Generation(1),
        ram_bytes: len,
        compression: Compression::None,
        disk_bytenr: Logical(extent),
        disk_num_bytes: len,
        offset: ByteLen(0),
        num_bytes: len,
    })
    .encode()
    .into()
}

/// Item type for items of any size and content.
pub(crate) const ANY: ItemType = ItemType::STRING_ITEM;

/// A random key in a small space, so that batches hit existing items.
pub(crate) fn random_key(rng: &mut Rng, space: u64) -> Key {
    let n = rng.below(space);
    if n.is_multiple_of(3) {
        // All of one inode, and far enough apart for the longest extent: the verifier compares an item with the one
        // before it.
        Key::new(256, ItemType::EXTENT_DATA, n * 16384)
    } else {
        Key::new(257 + n / 16, ANY, n % 16)
    }
}

/// A random item for a key: file extents come from a few addresses that many share.
pub(crate) fn random_item(rng: &mut Rng, key: &Key, len_max: usize) -> Box<[u8]> {
    if key.item_type == ItemType::EXTENT_DATA {
        let n = rng.below(200);
        return file_extent((1 << 40) + n * 65536, 1 + n % 4);
    }
    let len = match rng.below(20) {
        0 => rng.below(len_max as u64 + 1),
        1..4 => rng.below(400),
        _ => rng.below(60),
    };
    rng.bytes(len as usize).into()
}

/// A random batch of a random style over a tree's items.
pub(crate) fn random_batch(
    rng: &mut Rng,
    model: &BTreeMap<Key, Box<[u8]>>,
    space: u64,
    count: u64,
    len_max: usize,
) -> Vec<Change> {
    let mut batch: BTreeMap<Key, Op> = BTreeMap::new();
    let style = rng.below(8);
    if style == 0 && !model.is_empty() {
        // A range is deleted, sometimes all of it.
        let start = rng.below(model.len() as u64) as usize;
        let some = if rng.below(6) == 0 { model.len() } else { rng.below(model.len() as u64 + 1) as usize };
        let start = if some == model.len() { 0 } else { start };
        batch.extend(model.keys().skip(start).take(some).map(|key| (*key, Op::Delete)));
    }
    for n in 0..count {
        let key = match style {
            1 => Key::new(1 << 40, ANY, model.len() as u64 * 1000 + n),
            2 => {
                let mut key = random_key(rng, space);
                if key.item_type == ANY {
                    key.objectid = 300 + key.objectid % 3;
                }
                key
            }
            _ => random_key(rng, space),
        };
        let delete = rng.below(10) < if style == 3 { 8 } else { 2 };
        let op = if delete { Op::Delete } else { Op::Put(random_item(rng, &key, len_max).into()) };
        batch.insert(key, op);
    }
    // Some puts change nothing.
    if style == 4 {
        batch = model.iter().take(5).map(|(key, item)| (*key, Op::Put((**item).into()))).collect();
    }
    batch.into_iter().map(|(key, op)| Change { key, op }).collect()
}

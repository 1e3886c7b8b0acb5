//! The steps of a check, from beginning to end.
//!
//! (1) Check superblocks and their mirrors; (2) read the root tree, which lists the trees; (3) read the extent tree,
//! with the block-group tree, and the checksum tree: the claims; (4) walk all other trees, shared blocks once, and
//! compare every reference found with the claims; (5) report the differences, after examining them (`details`); (6)
//! compare block groups, free space, devices and checksums with the extents; (7) fold and check the trees of files; (8)
//! check the relations between trees; (9) with `data`, read all data.
//!
//! Memory, besides a batch of blocks per thread (64 blocks of each copy): 40 bytes per extent (tree blocks included),
//! 16 per gap in the checksums, 32 per item of free space, 80 per pointer of one level of the trees, and for trees of
//! files the summaries of each leaf and 8 bytes per child. Nothing per reference, so nothing per snapshot or clone.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use oleo_format::{
    Classified, Generation, ItemType, Key, Logical, QgroupStatus, QgroupStatusFlags, RootItem, SuperFlags, TreeId,
    errno,
};
use oleo_volume::{Volume, VolumeError};

use crate::collect::Findings;
use crate::csums::{CsumVisitor, Csums};
use crate::extents::{Early, ExtentRecords, ExtentVisitor, extent_place, note_early};
use crate::finding::{Finding, Kind, Place, Severity};
use crate::input::{Env, Input, TreeStart, Used};
use crate::refs::{Extents, RefHash, RefKey};
use crate::sets::Sets;
use crate::trees::{Counts, TreePart, TreeVisitor, check_record};
use crate::walk::{Class, Context, Progress, Visit, Visitor, walk};
use crate::{details, files, prealloc, reduce, space, supers};

/// Options of a check.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct CheckOptions<'a> {
    /// Threads: 0 uses the process's own pool (all cores), 1 works on the calling thread alone.
    pub threads: usize,
    /// Read all data that has checksums, on every copy.
    pub data: bool,
    /// How many findings of one kind are kept; the others are counted.
    pub kept_max: usize,
    /// Called now and then, from any thread.
    pub progress: Option<&'a (dyn Fn(Progress) + Sync)>,
}

impl Default for CheckOptions<'_> {
    fn default() -> Self {
        CheckOptions { threads: 0, data: false, kept_max: 100, progress: None }
    }
}

oleo_format::setters!(CheckOptions<'a> {
    threads: usize,
    data: bool,
    kept_max: usize,
    progress: Option<&'a (dyn Fn(Progress) + Sync)>,
});

impl std::fmt::Debug for CheckOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let CheckOptions { threads, data, kept_max, .. } = self;
        write!(f, "CheckOptions {{ threads: {threads}, data: {data}, kept_max: {kept_max} }}")
    }
}

/// Why a check could not be run.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The volume cannot be read at all.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// Threads could not be started.
    #[error("cannot start threads: {0}")]
    Threads(String),
}

impl Classified for CheckError {
    #[deny(clippy::wildcard_enum_match_arm)]
    fn class(&self) -> oleo_format::Class {
        match self {
            CheckError::Volume(error) => error.class(),
            CheckError::Threads(_) => oleo_format::Class::refusal(errno::EAGAIN),
        }
    }
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Findings by kind and place; of each kind at most as many as [`CheckOptions::kept_max`].
    pub findings: Vec<Finding>,
    /// How many more findings there are of each kind.
    pub left_out: std::collections::BTreeMap<Kind, u64>,
    /// Numbers of objects in the volume.
    pub counts: Counts,
    /// The volume was made by `btrfs-image`: it has no data, so none was verified.
    pub metadata_only: bool,
    /// Bytes of the tables that grow with the volume, at their largest: an estimate.
    pub memory_bytes: u64,
    /// How long each part took.
    pub times: Vec<(&'static str, Duration)>,
}

impl Report {
    /// Whether there are no findings.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Whether there are findings worse than warnings.
    pub fn has_errors(&self) -> bool {
        self.findings.iter().any(|f| f.severity == Severity::Error)
    }
}

/// Checks a volume to which nobody writes meanwhile. Writes nothing.
///
/// # Errors
/// The volume cannot be read at all. Anything wrong with what can be read is a finding.
pub fn check(volume: &Volume, options: &CheckOptions<'_>) -> Result<Report, CheckError> {
    if options.threads > 1 {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(options.threads).build();
        let pool = pool.map_err(|e| CheckError::Threads(e.to_string()))?;
        return pool.install(|| run(volume, options));
    }
    run(volume, options)
}

/// Records how long the parts take.
struct Clock {
    last: Instant,
    times: Vec<(&'static str, Duration)>,
}

impl Clock {
    fn lap(&mut self, what: &'static str) {
        let now = Instant::now();
        self.times.push((what, now - self.last));
        self.last = now;
    }
}

fn run(volume: &Volume, options: &CheckOptions<'_>) -> Result<Report, CheckError> {
    let sb = volume.super_block();
    let mut clock = Clock { last: Instant::now(), times: Vec::new() };
    let mut cx = Context {
        volume,
        env: Env { sb, rules: *volume.rules() },
        findings: Findings::new(options.kept_max.max(1)),
        parallel: options.threads != 1,
        progress: options.progress,
        done: AtomicU64::new(0),
        expected: metadata_blocks(volume),
        lost_extent: AtomicBool::new(false),
        lost_csum: AtomicBool::new(false),
        lost_any: AtomicBool::new(false),
        sets: Sets::new(false),
        simple_since: None,
    };
    let mut counts = Counts::default();
    let mut memory = 0u64;
    let hash = RefHash::new();
    supers::check_mirrors(&cx);

    // The list of trees.
    let root = TreeStart::of_super(TreeId::ROOT, sb.root.get(), sb.generation.get(), sb.root_level);
    let roots = RootParts::gather(&cx, &root);
    let mut trees = roots.trees;
    check_roots(&cx, &trees);
    counts.trees = trees.len() as u64;
    counts.subvolumes = trees.iter().filter(|t| t.tree.is_subvol()).count() as u64;
    let input = Input { volume };
    let quota = quota_status(&input, &trees).filter(|status| status.flags.contains(QgroupStatusFlags::ON));
    match quota.map(|status| (status.flags.contains(QgroupStatusFlags::SIMPLE_MODE), status.enable_gen)) {
        Some((true, since)) => cx.simple_since = since.map(|since| since.0),
        Some((false, _)) => cx.sets = Sets::new(true),
        None => {}
    }
    clock.lap("roots");

    // The claims.
    let of = |class: &dyn Fn(Class) -> bool| -> Vec<TreeStart> {
        trees.iter().filter(|t| class(Class::of(t.tree))).cloned().collect()
    };
    let claiming = of(&|c| matches!(c, Class::Extent | Class::BlockGroup));
    let parts = walk(&cx, &claiming, &ExtentVisitor { cx: &cx, hash });
    let mut records = ExtentRecords::merge(&cx, hash, parts);
    clock.lap("extents");
    let csum_trees = of(&|c| c == Class::Csum);
    let visitor = CsumVisitor { csum_len: cx.env.rules.csum.csum_len(), sectorsize: cx.env.rules.sectorsize.into() };
    let mut csum_parts = walk(&cx, &csum_trees, &visitor);
    let csums = Csums::merge(&cx, &mut csum_parts);
    clock.lap("checksums");
    let extents = std::mem::take(&mut records.extents);
    memory += extents.len() as u64 * 40 + csums.runs().len() as u64 * 16;

    // The references that trees hold.
    let mut missing = Missing::default();
    let early = roots.early.iter().chain(&records.early).chain(csum_parts.iter().flat_map(|p| &p.early));
    for block in early {
        counts.blocks += 1;
        counts.leaves += u64::from(block.level == 0);
        if let Some(record) = extents.get(block.at) {
            check_record(&cx, block.at, block.tree, block.level, block.generation, record);
        }
    }
    let refs = roots.refs.iter().chain(&records.refs).chain(csum_parts.iter().flat_map(|p| &p.refs));
    for &(at, owner) in refs {
        missing.found(&extents, hash, at, RefKey::Tree(owner));
    }
    for (at, key) in &roots.data {
        missing.found(&extents, hash, *at, *key);
    }
    let mut others = of(&|c| !matches!(c, Class::Extent | Class::BlockGroup | Class::Csum | Class::Root | Class::Log));
    others.push(TreeStart::of_super(
        TreeId::CHUNK,
        sb.chunk_root.get(),
        sb.chunk_root_generation.get(),
        sb.chunk_root_level,
    ));
    for tree in others.iter().chain(&claiming).chain(&csum_trees).chain([&root]) {
        let key = match Class::of(tree.tree) {
            Class::Reloc => RefKey::Parent(tree.logical),
            _ => RefKey::Tree(tree.tree),
        };
        missing.found(&extents, hash, tree.logical.0, key);
    }
    let extent_sets: Vec<AtomicU32> =
        if cx.sets.is_on() { extents.at.iter().map(|_| AtomicU32::new(0)).collect() } else { Vec::new() };
    let is_dying = |t: &&TreeStart| t.tree.is_subvol() && t.item.refs.get() == 0;
    let mut dying: Vec<TreeId> = trees.iter().filter(is_dying).map(|t| t.tree).collect();
    // A relocation tree is named after the tree with which it swaps blocks.
    dying.extend(trees.iter().filter(|t| Class::of(t.tree) == Class::Reloc).map(|t| TreeId(t.key.offset)));
    let visitor =
        TreeVisitor { cx: &cx, hash, extents: &extents, csums: &csums, extent_sets: &extent_sets, dying: &dying };
    let mut all = TreePart::default();
    for mut part in walk(&cx, &others, &visitor) {
        counts.add(&part.counts);
        all.missing.append(&mut part.missing);
        all.nodes.append(&mut part.nodes);
        all.leaves.append(&mut part.leaves);
        all.chunks.append(&mut part.chunks);
        all.dev_items.append(&mut part.dev_items);
        all.dev_extents.append(&mut part.dev_extents);
        all.free.append(&mut part.free);
        all.prealloc.append(&mut part.prealloc);
        all.set_blocks.append(&mut part.set_blocks);
        for (tree, blocks) in std::mem::take(&mut part.owned_blocks) {
            *all.owned_blocks.entry(tree).or_default() += blocks;
        }
    }
    memory += all.leaves.len() as u64 * size_of::<(u64, files::LeafSummary)>() as u64
        + all.nodes.iter().map(|node| 40 + node.children.len() as u64 * 8).sum::<u64>()
        + all.free.len() as u64 * size_of::<crate::trees::FreeItem>() as u64;
    clock.lap("trees");

    // The log, which may name extents that have no record yet.
    let log = (sb.log_root.get() != 0).then(|| {
        let generation = sb.generation.get() + 1;
        TreeStart::of_super(TreeId::TREE_LOG, sb.log_root.get(), generation, sb.log_root_level)
    });
    let logged =
        log.as_ref().map_or_else(Vec::new, |log| crate::log::check_log(&cx, log, &extents, &csums, &mut counts));

    // The differences.
    missing.list.append(&mut all.missing);
    missing.report(&cx);
    prealloc::check(&cx, &csums, &others, std::mem::take(&mut all.prealloc));
    let walked: Vec<TreeStart> = others.iter().chain(&claiming).chain(&csum_trees).chain([&root]).cloned().collect();
    details::check_refs(&cx, &extents, &claiming, &walked, &roots.data);
    clock.lap("references");
    all.chunks.sort_by_key(|(key, _)| key.offset);
    supers::check_chunks(&cx, &all.chunks, &all.dev_items);
    space::check_devices(&cx, &all.chunks, &all.dev_items, &all.dev_extents);
    let groups = space::check_groups(&cx, &all.chunks, &records.groups);
    space::check_used(&cx, &groups, &extents);
    if has_valid_free_space_tree(&cx) && trees.iter().any(|t| t.tree == TreeId::FREE_SPACE) {
        space::check_free_space(&cx, &groups, &extents, &mut all.free);
    }
    if !cx.lost_extent.load(Ordering::Relaxed) {
        csums.check_extents(&cx, &extents, &logged);
    }
    clock.lap("space");

    // Files.
    let (leaves, nodes) = (std::mem::take(&mut all.leaves), std::mem::take(&mut all.nodes));
    reduce::check_trees(&cx, &others, &csums, leaves, nodes);
    clock.lap("files");
    let used = if cx.sets.is_on() {
        let mut bytes = std::collections::BTreeMap::new();
        for set in &all.set_blocks {
            *bytes.entry(set.0).or_insert(0) += u64::from(cx.env.rules.nodesize);
        }
        for (i, set) in extent_sets.iter().enumerate() {
            let len = extents.bytes(i, cx.env.rules.sectorsize.into());
            *bytes.entry(set.load(Ordering::Relaxed)).or_insert(0) += len;
        }
        Some(Used::Shares(cx.sets.shares(&bytes)))
    } else if cx.simple_since.is_some() && !cx.lost_any.load(Ordering::Relaxed) {
        let mut owned = std::mem::take(&mut records.owned);
        for (tree, blocks) in &all.owned_blocks {
            let sum = owned.entry(*tree).or_default();
            *sum = sum.saturating_add(blocks.saturating_mul(cx.env.rules.nodesize.into()));
        }
        Some(Used::Owned(owned))
    } else {
        None
    };
    trees.insert(0, root);
    if let Some(log) = log {
        trees.insert(1, log);
    }
    let report = |finding: Finding| cx.findings.report(finding);
    files::check_volume(&cx.env, &input, &trees, used.as_ref(), &report);
    clock.lap("volume");
    let metadata_only = sb.flags().intersects(SuperFlags::METADUMP | SuperFlags::METADUMP_V2);
    if options.data && !metadata_only {
        counts.verified_bytes = crate::data::verify(&cx, &input, &csum_trees, csums.bytes());
        clock.lap("data");
    }

    counts.extents = extents.len() as u64;
    for (i, extent) in extents.of.iter().enumerate().filter(|(_, e)| e.is_data()) {
        counts.data_extents += 1;
        counts.data_bytes += u64::from(extent.sectors) * u64::from(cx.env.rules.sectorsize);
        debug_assert!(i < extents.len());
    }
    counts.csum_bytes = csums.bytes();
    let (findings, left_out) = cx.findings.finish();
    Ok(Report { findings, left_out, counts, metadata_only, memory_bytes: memory, times: clock.times })
}

/// An estimate of the number of tree blocks, for progress only.
fn metadata_blocks(volume: &Volume) -> u64 {
    let sb = volume.super_block();
    sb.bytes_used.get() / u64::from(sb.nodesize.get().max(1))
}

fn has_valid_free_space_tree(cx: &Context<'_>) -> bool {
    use oleo_format::CompatRo;
    cx.env.rules.features.compat_ro.contains(CompatRo::FREE_SPACE_TREE | CompatRo::FREE_SPACE_TREE_VALID)
}

fn quota_status(input: &Input<'_>, trees: &[TreeStart]) -> Option<QgroupStatus> {
    let tree = trees.iter().find(|t| t.tree == TreeId::QUOTA)?;
    let status = input.get(tree, Key::new(0, ItemType::QGROUP_STATUS, 0));
    QgroupStatus::parse(&status?).ok()
}

/// Checks that the required trees exist.
fn check_roots(cx: &Context<'_>, trees: &[TreeStart]) {
    let features = &cx.env.rules.features;
    let mut needed = vec![TreeId::EXTENT, TreeId::DEV, TreeId::FS, TreeId::CSUM];
    if features.block_group_tree() {
        needed.push(TreeId::BLOCK_GROUP);
    }
    if has_valid_free_space_tree(cx) {
        needed.push(TreeId::FREE_SPACE);
    }
    if !cx.lost_any.load(Ordering::Relaxed) {
        for tree in needed.into_iter().filter(|id| !trees.iter().any(|t| t.tree == *id)) {
            let place = Place { tree: Some(tree), ..Place::default() };
            cx.error(Kind::RootMissing, place, "no root item", "one");
        }
    }
    for tree in trees {
        let place = Place { tree: Some(TreeId::ROOT), key: Some(tree.key), ..Place::default() };
        let newest = cx.env.sb.generation();
        if tree.generation > newest {
            let have = format!("generation {}", tree.generation);
            cx.error(Kind::RootItem, place.clone(), have, format_args!("at most {newest}"));
        }
        let last = Generation(tree.item.last_snapshot.get());
        if last > newest {
            cx.error(
                Kind::RootItem,
                place.clone(),
                format_args!("last_snapshot {last}"),
                format_args!("at most {newest}"),
            );
        }
        if tree.drop_progress().is_some() && tree.item.refs.get() > 0 && tree.tree.is_subvol() {
            cx.error(Kind::RootItem, place, "drop_progress of a tree that is not deleted", "none");
        }
    }
}

/// What the root tree yields.
#[derive(Default)]
struct RootParts {
    trees: Vec<TreeStart>,
    early: Vec<Early>,
    refs: Vec<(u64, TreeId)>,
    /// Data of version-1 free-space caches.
    data: Vec<(u64, RefKey)>,
}

struct RootVisitor;

impl Visitor for RootVisitor {
    type Out = RootParts;

    fn block(&self, node: &oleo_format::CheckedNode, visit: &Visit<'_>, out: &mut RootParts) -> usize {
        note_early(node, visit, &mut out.early, &mut out.refs);
        if node.is_leaf() {
            for (key, item) in node.iter() {
                if key.item_type == ItemType::ROOT_ITEM
                    && let Ok(item) = RootItem::decode(item)
                {
                    out.trees.push(TreeStart::of_item(key, item));
                }
                if let Some(used) = oleo_format::data_use(&key, item) {
                    let key = RefKey::Data { root: TreeId::ROOT, ino: used.ino, offset: used.offset };
                    out.data.push((used.extent.0, key));
                }
            }
        }
        0
    }
}

impl RootParts {
    fn gather(cx: &Context<'_>, root: &TreeStart) -> RootParts {
        let mut all = RootParts::default();
        for mut part in walk(cx, std::slice::from_ref(root), &RootVisitor) {
            all.trees.append(&mut part.trees);
            all.early.append(&mut part.early);
            all.refs.append(&mut part.refs);
            all.data.append(&mut part.data);
        }
        all.trees.sort_by_key(|t| t.key);
        all
    }
}

/// References to extents that have no record.
#[derive(Default)]
struct Missing {
    list: Vec<(u64, RefKey)>,
}

impl Missing {
    fn found(&mut self, extents: &Extents, hash: RefHash, at: u64, key: RefKey) {
        match extents.get(at) {
            Some(extent) => extent.found(hash.of(key)),
            None => self.list.push((at, key)),
        }
    }

    fn report(&mut self, cx: &Context<'_>) {
        if cx.lost_extent.load(Ordering::Relaxed) {
            return;
        }
        self.list.sort_unstable();
        // The walk has reported blocks outside of all chunks.
        let reported = |key: &RefKey| matches!(key, RefKey::Tree(_) | RefKey::Parent(_));
        self.list.retain(|(at, key)| !reported(key) || cx.volume.copies(Logical(*at)) > 0);
        for of_one in self.list.chunk_by(|a, b| a.0 == b.0) {
            let (at, key) = of_one[0];
            let more = if of_one.len() > 1 { format!(" and {} more", of_one.len() - 1) } else { String::new() };
            cx.error(Kind::ExtentMissing, extent_place(at), format_args!("no record; used by {key}{more}"), "a record");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every error is of its kind and has its errno.
    #[test]
    fn every_error_has_its_class() {
        oleo_format::assert_classes!(CheckError {
            Volume: VolumeError::ReadOnly.into() => oleo_format::Class::refusal(errno::EROFS),
            Threads: CheckError::Threads("so".into()) => oleo_format::Class::refusal(errno::EAGAIN),
        });
    }
}

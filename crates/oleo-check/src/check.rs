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

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use oleo_format::{
    Classified, Generation, ItemType, Key, Logical, QgroupStatus, QgroupStatusFlags, RootItem, SuperFlags, TreeId,
    errno,
};
use oleo_volume::{Volume, VolumeError};

use crate::collect::Findings;
use crate::csums::{CsumPart, CsumVisitor, Csums};
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
    pub left_out: BTreeMap<Kind, u64>,
    /// Numbers of objects in the volume.
    pub counts: Counts,
    /// The volume was made by `btrfs-image`: it has no data, so none was verified.
    pub metadata_only: bool,
    /// Bytes of the tables that grow with the volume, at their largest: an estimate.
    pub memory_bytes: u64,
    /// How long each part took; nothing where there is no clock (WebAssembly).
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

/// Records how long the parts take, where there is a clock.
struct Clock {
    last: Option<Instant>,
    times: Vec<(&'static str, Duration)>,
}

impl Clock {
    fn new() -> Clock {
        let has_clock = !cfg!(target_family = "wasm");
        Clock { last: has_clock.then(Instant::now), times: Vec::new() }
    }

    fn lap(&mut self, what: &'static str) {
        let Some(last) = &mut self.last else { return };
        self.times.push((what, last.elapsed()));
        *last = Instant::now();
    }
}

fn run(volume: &Volume, options: &CheckOptions<'_>) -> Result<Report, CheckError> {
    let mut clock = Clock::new();
    let mut cx = context(volume, options);
    let sb = cx.env.sb;
    supers::check_mirrors(&cx);

    let root = TreeStart::of_super(TreeId::ROOT, sb.root.get(), sb.generation.get(), sb.root_level);
    let roots = RootParts::gather(&cx, &root);
    check_roots(&cx, &roots.trees);
    let input = Input { volume };
    follow_quota(&mut cx, &input, &roots.trees);
    clock.lap("roots");

    let mut claims = Claims::read(&cx, &roots.trees, &mut clock);
    let mut found = Found::walk(&cx, &root, &roots, &claims);
    let memory_bytes = claims.memory() + found.memory();
    clock.lap("trees");

    // The log, which may name extents that have no record yet.
    let log = (sb.log_root.get() != 0).then(|| {
        let generation = sb.generation.get() + 1;
        TreeStart::of_super(TreeId::TREE_LOG, sb.log_root.get(), generation, sb.log_root_level)
    });
    let (extents, counts) = (&claims.records.extents, &mut found.parts.counts);
    let logged =
        log.as_ref().map_or_else(Vec::new, |log| crate::log::check_log(&cx, log, extents, &claims.csums, counts));

    found.report_differences(&cx, &root, &roots, &claims);
    clock.lap("references");
    check_space(&cx, &roots, &claims, &mut found.parts, &logged);
    clock.lap("space");
    let (leaves, nodes) = (std::mem::take(&mut found.parts.leaves), std::mem::take(&mut found.parts.nodes));
    reduce::check_trees(&cx, &found.trees, &claims.csums, leaves, nodes);
    clock.lap("files");
    let used = found.usage(&cx, &mut claims.records);
    let mut counts = found.parts.counts;
    counts.trees = roots.trees.len() as u64;
    counts.subvolumes = roots.trees.iter().filter(|t| t.tree.is_subvol()).count() as u64;
    let trees: Vec<TreeStart> = [root].into_iter().chain(log).chain(roots.trees).collect();
    let report = |finding: Finding| cx.findings.report(finding);
    files::check_volume(&cx.env, &input, &trees, used.as_ref(), &report);
    clock.lap("volume");
    let metadata_only = sb.flags().intersects(SuperFlags::METADUMP | SuperFlags::METADUMP_V2);
    if options.data && !metadata_only {
        counts.verified_bytes = crate::data::verify(&cx, &input, &claims.csum_trees, claims.csums.bytes());
        clock.lap("data");
    }
    claims.count(&cx, &mut counts);
    let (findings, left_out) = cx.findings.finish();
    Ok(Report { findings, left_out, counts, metadata_only, memory_bytes, times: clock.times })
}

fn context<'a>(volume: &'a Volume, options: &'a CheckOptions<'_>) -> Context<'a> {
    Context {
        volume,
        env: Env { sb: volume.super_block(), rules: *volume.rules() },
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
    }
}

/// Has the walk gather what quota's numbers are compared with, if quota is on.
fn follow_quota(cx: &mut Context<'_>, input: &Input<'_>, trees: &[TreeStart]) {
    let quota = quota_status(input, trees).filter(|status| status.flags.contains(QgroupStatusFlags::ON));
    match quota.map(|status| (status.flags.contains(QgroupStatusFlags::SIMPLE_MODE), status.enable_gen)) {
        Some((true, since)) => cx.simple_since = since.map(|since| since.0),
        Some((false, _)) => cx.sets = Sets::new(true),
        None => {}
    }
}

/// The trees whose class is one of those wanted.
fn of_class(trees: &[TreeStart], wanted: impl Fn(Class) -> bool) -> Vec<TreeStart> {
    trees.iter().filter(|t| wanted(Class::of(t.tree))).cloned().collect()
}

/// What the extent tree and the checksum tree claim.
struct Claims {
    hash: RefHash,
    /// The extent tree and the block-group tree.
    trees: Vec<TreeStart>,
    records: ExtentRecords,
    csum_trees: Vec<TreeStart>,
    csum_parts: Vec<CsumPart>,
    csums: Csums,
}

impl Claims {
    fn read(cx: &Context<'_>, all: &[TreeStart], clock: &mut Clock) -> Claims {
        let hash = RefHash::new();
        let trees = of_class(all, |c| matches!(c, Class::Extent | Class::BlockGroup));
        let parts = walk(cx, &trees, &ExtentVisitor { cx, hash });
        let records = ExtentRecords::merge(cx, hash, parts);
        clock.lap("extents");
        let csum_trees = of_class(all, |c| c == Class::Csum);
        let visitor =
            CsumVisitor { csum_len: cx.env.rules.csum.csum_len(), sectorsize: cx.env.rules.sectorsize.into() };
        let mut csum_parts = walk(cx, &csum_trees, &visitor);
        let csums = Csums::merge(cx, &mut csum_parts);
        clock.lap("checksums");
        Claims { hash, trees, records, csum_trees, csum_parts, csums }
    }

    fn memory(&self) -> u64 {
        self.records.extents.len() as u64 * 40 + self.csums.runs().len() as u64 * 16
    }

    fn count(&self, cx: &Context<'_>, counts: &mut Counts) {
        let extents = &self.records.extents;
        counts.extents = extents.len() as u64;
        for extent in extents.of.iter().filter(|e| e.is_data()) {
            counts.data_extents += 1;
            counts.data_bytes += u64::from(extent.sectors) * u64::from(cx.env.rules.sectorsize);
        }
        counts.csum_bytes = self.csums.bytes();
    }
}

/// What the walk over all other trees found.
struct Found {
    /// All trees but those of claims, the root tree and logs.
    trees: Vec<TreeStart>,
    parts: TreePart,
    missing: Missing,
    /// For each extent, the set of subvolumes that reach it; empty unless quota needs it.
    extent_sets: Vec<AtomicU32>,
}

impl Found {
    fn walk(cx: &Context<'_>, root: &TreeStart, roots: &RootParts, claims: &Claims) -> Found {
        let (sb, extents, hash) = (&cx.env.sb, &claims.records.extents, claims.hash);
        let mut trees = of_class(&roots.trees, |c| {
            !matches!(c, Class::Extent | Class::BlockGroup | Class::Csum | Class::Root | Class::Log)
        });
        trees.push(TreeStart::of_super(
            TreeId::CHUNK,
            sb.chunk_root.get(),
            sb.chunk_root_generation.get(),
            sb.chunk_root_level,
        ));
        let extent_sets =
            if cx.sets.is_on() { extents.at.iter().map(|_| AtomicU32::new(0)).collect() } else { Vec::new() };
        let mut found = Found { trees, parts: TreePart::default(), missing: Missing::default(), extent_sets };
        found.enter_early(cx, roots, claims);
        for tree in found.walked(root, claims) {
            let key = match Class::of(tree.tree) {
                Class::Reloc => RefKey::Parent(tree.logical),
                _ => RefKey::Tree(tree.tree),
            };
            found.missing.found(extents, hash, tree.logical.0, key);
        }
        let dying = dying_trees(&roots.trees);
        let (csums, extent_sets) = (&claims.csums, &found.extent_sets[..]);
        let visitor = TreeVisitor { cx, hash, extents, csums, extent_sets, dying: &dying };
        for part in walk(cx, &found.trees, &visitor) {
            found.parts.append(part);
        }
        found
    }

    /// Compares what was read before the extents were known: the blocks of the root tree and of the claims, and their references.
    fn enter_early(&mut self, cx: &Context<'_>, roots: &RootParts, claims: &Claims) {
        let (records, extents, hash) = (&claims.records, &claims.records.extents, claims.hash);
        let early = roots.early.iter().chain(&records.early).chain(claims.csum_parts.iter().flat_map(|p| &p.early));
        for block in early {
            self.parts.counts.blocks += 1;
            self.parts.counts.leaves += u64::from(block.level == 0);
            if let Some(record) = extents.get(block.at) {
                check_record(cx, block.at, block.tree, block.level, block.generation, record);
            }
        }
        let refs = roots.refs.iter().chain(&records.refs).chain(claims.csum_parts.iter().flat_map(|p| &p.refs));
        for &(at, owner) in refs {
            self.missing.found(extents, hash, at, RefKey::Tree(owner));
        }
        for (at, key) in &roots.data {
            self.missing.found(extents, hash, *at, *key);
        }
    }

    /// All trees but logs.
    fn walked(&self, root: &TreeStart, claims: &Claims) -> Vec<TreeStart> {
        self.trees.iter().chain(&claims.trees).chain(&claims.csum_trees).chain([root]).cloned().collect()
    }

    fn memory(&self) -> u64 {
        let parts = &self.parts;
        parts.leaves.len() as u64 * size_of::<(u64, files::LeafSummary)>() as u64
            + parts.nodes.iter().map(|node| 40 + node.children.len() as u64 * 8).sum::<u64>()
            + parts.free.len() as u64 * size_of::<crate::trees::FreeItem>() as u64
    }

    /// Reports references without records and records without references.
    fn report_differences(&mut self, cx: &Context<'_>, root: &TreeStart, roots: &RootParts, claims: &Claims) {
        self.missing.list.append(&mut self.parts.missing);
        self.missing.report(cx);
        prealloc::check(cx, &claims.csums, &self.trees, std::mem::take(&mut self.parts.prealloc));
        details::check_refs(cx, &claims.records.extents, &claims.trees, &self.walked(root, claims), &roots.data);
    }

    /// The usage that quota's numbers are compared with; `None` if quota is off or it is not known completely.
    fn usage(&mut self, cx: &Context<'_>, records: &mut ExtentRecords) -> Option<Used> {
        let rules = &cx.env.rules;
        if cx.sets.is_on() {
            let mut bytes = BTreeMap::new();
            for set in &self.parts.set_blocks {
                *bytes.entry(set.0).or_insert(0) += u64::from(rules.nodesize);
            }
            for (i, set) in self.extent_sets.iter().enumerate() {
                let len = records.extents.bytes(i, rules.sectorsize.into());
                *bytes.entry(set.load(Ordering::Relaxed)).or_insert(0) += len;
            }
            return Some(Used::Shares(cx.sets.shares(&bytes)));
        }
        if cx.simple_since.is_none() || cx.lost_any.load(Ordering::Relaxed) {
            return None;
        }
        let mut owned = std::mem::take(&mut records.owned);
        for (tree, blocks) in &self.parts.owned_blocks {
            let sum = owned.entry(*tree).or_default();
            *sum = sum.saturating_add(blocks.saturating_mul(rules.nodesize.into()));
        }
        Some(Used::Owned(owned))
    }
}

/// Subvolumes that are being deleted, and the trees of relocation trees: those with which they swap blocks.
fn dying_trees(trees: &[TreeStart]) -> Vec<TreeId> {
    let is_dying = |t: &&TreeStart| t.tree.is_subvol() && t.item.refs.get() == 0;
    let relocated = trees.iter().filter(|t| Class::of(t.tree) == Class::Reloc).map(|t| TreeId(t.key.offset));
    trees.iter().filter(is_dying).map(|t| t.tree).chain(relocated).collect()
}

/// Compares chunks, devices, block groups, free space and checksums with each other and with the extents.
fn check_space(cx: &Context<'_>, roots: &RootParts, claims: &Claims, parts: &mut TreePart, logged: &[(u64, u64)]) {
    let extents = &claims.records.extents;
    parts.chunks.sort_by_key(|(key, _)| key.offset);
    supers::check_chunks(cx, &parts.chunks, &parts.dev_items);
    space::check_devices(cx, &parts.chunks, &parts.dev_items, &parts.dev_extents);
    let groups = space::check_groups(cx, &parts.chunks, &claims.records.groups);
    space::check_used(cx, &groups, extents);
    if has_valid_free_space_tree(cx) && roots.trees.iter().any(|t| t.tree == TreeId::FREE_SPACE) {
        space::check_free_space(cx, &groups, extents, &mut parts.free);
    }
    if !cx.lost_extent.load(Ordering::Relaxed) {
        claims.csums.check_extents(cx, extents, logged);
    }
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

//! Quota groups: their items, their relations, and their numbers compared with what trees really use.
//!
//! `rfer` of a group is what any of its subvolumes uses, `excl` what no other subvolume uses; groups of higher levels
//! contain all subvolumes below them. The usage comes as bytes per exact set of trees, so an extent that 64 snapshots
//! share counts once here, with all extents that the same 64 share.
//!
//! With simple quotas both are what its subvolumes wrote: data by the owner in its record, tree blocks by the owner in
//! their headers, unless they are older than the quotas.
//!
//! Not reported: groups of subvolumes that are gone (the kernel keeps them); any number while a rescan runs or while
//! quota is marked inconsistent; with full quotas also if a subvolume is half deleted (the kernel no longer counts it, but
//! its blocks still refer), or if the status is of another transaction: that is a warning by itself, as the kernel marks
//! quota as inconsistent at the next mount.

use std::collections::{BTreeMap, BTreeSet};

use oleo_format::{ItemType, Key, QgroupInfoItem, QgroupStatus, QgroupStatusFlags, TreeId};

use super::Context;
use super::roots::Roots;
use crate::finding::Kind;
use crate::input::{Owned, Share, Used};

/// The version of a status that kernels understand (`BTRFS_QGROUP_STATUS_VERSION`); with another they mount the volume and switch quota off.
const VERSION: u64 = 1;
/// The key of the status.
const STATUS: Key = Key::new(0, ItemType::QGROUP_STATUS, 0);
/// The level of a group is in the upper 16 bits of its number.
const LEVEL_SHIFT: u32 = 48;

/// What the quota tree holds.
#[derive(Default, Debug)]
pub(super) struct Qgroups {
    status: Option<QgroupStatus>,
    infos: BTreeMap<u64, QgroupInfoItem>,
    limits: BTreeSet<u64>,
    /// Each relation once from each side, as the items record it.
    relations: BTreeSet<(u64, u64)>,
}

impl Qgroups {
    /// Takes the next item of the quota tree.
    pub(super) fn item(&mut self, key: &Key, data: &[u8]) {
        match key.item_type {
            ItemType::QGROUP_STATUS => self.status = QgroupStatus::parse(data).ok(),
            ItemType::QGROUP_INFO => {
                if let Ok(info) = QgroupInfoItem::parse_start(data) {
                    self.infos.insert(key.offset, *info);
                }
            }
            ItemType::QGROUP_LIMIT => {
                self.limits.insert(key.offset);
            }
            ItemType::QGROUP_RELATION => {
                self.relations.insert((key.objectid, key.offset));
            }
            _ => {}
        }
    }

    /// Checks the tree after all its items. Without `used` the numbers are not compared.
    pub(super) fn check(&self, c: &Context<'_>, roots: &Roots, used: Option<&Used>) {
        let Some(status) = &self.status else {
            c.error(Kind::QgroupStatus, STATUS, "a quota tree without status", "a status item");
            return;
        };
        if !status.flags.contains(QgroupStatusFlags::ON) {
            return;
        }
        let simple = status.flags.contains(QgroupStatusFlags::SIMPLE_MODE);
        // Later kernels have the field without simple quota, too.
        if simple && status.enable_gen.is_none() {
            c.error(Kind::QgroupStatus, STATUS, "simple quota without `enable_gen`", "the longer form");
        }
        if status.version != VERSION {
            c.warning(Kind::QgroupStatus, STATUS, format_args!("version {}", status.version), VERSION);
        }
        if !simple && status.generation != c.generation {
            let have = format_args!("numbers of transaction {}", status.generation);
            c.warning(Kind::QgroupStatus, STATUS, have, format_args!("of {}; a rescan counts anew", c.generation));
        }
        self.check_items(c, roots);
        let members = self.check_relations(c);
        let unsure = QgroupStatusFlags::INCONSISTENT | QgroupStatusFlags::RESCAN;
        let current = status.generation == c.generation && !status.flags.intersects(unsure);
        let half = roots.trees.values().any(|(_, root)| Key::from(root.drop_progress) != Key::MIN);
        match used {
            Some(Used::Shares(shares)) if current && !simple && !half => {
                self.check_numbers(c, &count_shares(&members, shares), true);
            }
            // The writer of an extent does not change, and every writer keeps these numbers.
            Some(Used::Owned(owned)) if simple && !status.flags.intersects(unsure) => {
                // The kernel leaves the compressed numbers at zero here.
                self.check_numbers(c, &count_owned(&members, owned), false);
            }
            _ => {}
        }
    }

    fn check_items(&self, c: &Context<'_>, roots: &Roots) {
        for &tree in roots.trees.keys().filter(|tree| roots.is_live(**tree)) {
            if !self.infos.contains_key(&tree.0) {
                let key = Key::new(0, ItemType::QGROUP_INFO, tree.0);
                c.error(Kind::QgroupItem, key, "nothing", "an info item for every subvolume");
            }
        }
        for &group in self.infos.keys().filter(|group| !self.limits.contains(group)) {
            let key = Key::new(0, ItemType::QGROUP_LIMIT, group);
            c.error(Kind::QgroupItem, key, "nothing", "a limit item for every group");
        }
        for &group in self.limits.iter().filter(|group| !self.infos.contains_key(group)) {
            let key = Key::new(0, ItemType::QGROUP_INFO, group);
            c.error(Kind::QgroupItem, key, "nothing", "an info item for every group");
        }
    }

    /// Checks the relations and returns, for each subvolume's group, that group and all groups that contain it.
    fn check_relations(&self, c: &Context<'_>) -> BTreeMap<u64, BTreeSet<u64>> {
        let mut above: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for &(a, b) in &self.relations {
            let key = Key::new(a, ItemType::QGROUP_RELATION, b);
            if !self.relations.contains(&(b, a)) {
                c.error(Kind::QgroupRelation, key, "from one side", "one from the other side too");
            }
            if !self.infos.contains_key(&a) || !self.infos.contains_key(&b) {
                c.error(Kind::QgroupRelation, key, "a relation", "two groups that are there");
            }
            if a >> LEVEL_SHIFT == b >> LEVEL_SHIFT {
                c.error(Kind::QgroupRelation, key, "groups of one level", "of different levels");
            }
            if a >> LEVEL_SHIFT < b >> LEVEL_SHIFT {
                above.entry(a).or_default().push(b);
            }
        }
        let mut members = BTreeMap::new();
        for &group in self.infos.keys().filter(|&&group| group >> LEVEL_SHIFT == 0) {
            let mut all = BTreeSet::from([group]);
            // Levels rise, so this ends.
            let mut todo = vec![group];
            while let Some(next) = todo.pop() {
                let higher = above.get(&next).into_iter().flatten().copied();
                todo.extend(higher.filter(|&group| all.insert(group)));
            }
            members.insert(group, all);
        }
        members
    }

    /// `compressed`: the compressed numbers are kept, too, and are the same.
    fn check_numbers(&self, c: &Context<'_>, counted: &Counted, compressed: bool) {
        for (&group, info) in &self.infos {
            let (rfer, excl) = counted.get(&group).copied().unwrap_or_default();
            let have = [info.rfer.get(), info.rfer_cmpr.get(), info.excl.get(), info.excl_cmpr.get()];
            let wrong = (have[0], have[2]) != (rfer, excl) || compressed && (have[1], have[3]) != (rfer, excl);
            if wrong {
                let key = Key::new(0, ItemType::QGROUP_INFO, group);
                let [have_rfer, have_rfer_cmpr, have_excl, have_excl_cmpr] = have;
                let have = format_args!(
                    "rfer {have_rfer} ({have_rfer_cmpr} compressed), excl {have_excl} ({have_excl_cmpr} compressed)"
                )
                .to_string();
                c.error(Kind::QgroupNumbers, key, have, format_args!("rfer {rfer}, excl {excl}"));
            }
        }
    }
}

/// The usage of groups: referenced, exclusive.
type Counted = BTreeMap<u64, (u64, u64)>;

/// The usage by full quotas. `members` has all groups that contain a subvolume's group, itself included.
fn count_shares(members: &BTreeMap<u64, BTreeSet<u64>>, shares: &[Share]) -> Counted {
    let mut counted = Counted::new();
    for Share { trees, bytes } in shares {
        let trees: Vec<TreeId> = trees.iter().copied().filter(|tree| tree.is_subvol()).collect();
        let mut reached: BTreeMap<u64, usize> = BTreeMap::new();
        for tree in &trees {
            for &group in members.get(&tree.0).into_iter().flatten() {
                *reached.entry(group).or_default() += 1;
            }
        }
        for (group, by) in reached {
            let (rfer, excl) = counted.entry(group).or_default();
            *rfer = rfer.saturating_add(*bytes);
            if by == trees.len() {
                *excl = excl.saturating_add(*bytes);
            }
        }
    }
    counted
}

/// The usage by simple quotas: both numbers are the same.
fn count_owned(members: &BTreeMap<u64, BTreeSet<u64>>, owned: &Owned) -> Counted {
    let mut counted = Counted::new();
    for (tree, bytes) in owned {
        for &group in members.get(&tree.0).into_iter().flatten() {
            let (rfer, excl) = counted.entry(group).or_default();
            *rfer = rfer.saturating_add(*bytes);
            *excl = *rfer;
        }
    }
    counted
}

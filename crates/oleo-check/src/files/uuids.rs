//! The UUID tree: leads from the uuid of a subvolume, and from the uuid it was received with, to its number.
//!
//! If `uuid_tree_generation` is not that of the superblock, the kernel rebuilds the tree at the next mount; then
//! nothing here is wrong. Wrong entries are warnings: readers use the tree as a hint, since the item of a UUID that many
//! subvolumes have becomes full and does not list later ones; and the kernel and `btrfs check` do not verify it.

use std::collections::BTreeSet;

use oleo_format::{ItemType, Key, TreeId, UuidItem};
use uuid::Uuid;

use super::Context;
use super::roots::Roots;
use crate::finding::Kind;

/// The entries of the UUID tree.
#[derive(Default, Debug)]
pub(super) struct Uuids(BTreeSet<(ItemType, Uuid, TreeId)>);

impl Uuids {
    /// Takes the next item of the tree.
    pub(super) fn item(&mut self, key: &Key, data: &[u8]) {
        if !matches!(key.item_type, ItemType::UUID_SUBVOL | ItemType::UUID_RECEIVED_SUBVOL) {
            return;
        }
        for tree in UuidItem::parse(data).subvols {
            self.0.insert((key.item_type, key.as_uuid(), tree));
        }
    }

    /// Compares in both directions.
    pub(super) fn check(&self, c: &Context<'_>, roots: &Roots) {
        let mut want = BTreeSet::new();
        for (&tree, (_, root)) in roots.trees.iter().filter(|(tree, _)| roots.is_live(**tree)) {
            let both = [(ItemType::UUID_SUBVOL, root.uuid), (ItemType::UUID_RECEIVED_SUBVOL, root.received_uuid)];
            for (item_type, uuid) in both {
                let uuid = Uuid::from_bytes(uuid);
                if !uuid.is_nil() {
                    want.insert((item_type, uuid, tree));
                }
            }
        }
        for &(item_type, uuid, tree) in want.difference(&self.0) {
            let key = Key::uuid(uuid, item_type);
            let want = format_args!("subvolume {tree}, whose uuid is {uuid}");
            c.warning(Kind::UuidMissing, key, "no entry", want);
        }
        for &(item_type, uuid, tree) in self.0.difference(&want) {
            // A subvolume that is being deleted needs no entry and may have one.
            if roots.trees.contains_key(&tree) && !roots.is_live(tree) {
                continue;
            }
            let key = Key::uuid(uuid, item_type);
            c.warning(Kind::UuidStale, key, format_args!("subvolume {tree}"), format_args!("one whose uuid is {uuid}"));
        }
    }
}

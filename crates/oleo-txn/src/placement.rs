//! Where data lies by the raid-stripe tree: items (address, RAID_STRIPE, length), each with a device and a place for each copy.

use oleo_format::{ByteLen, Corruption, DevId, ItemType, Key, Logical, Physical, RaidStripe, TreeId};
use oleo_volume::{Placement, PlacementSource, VolumeError};

use crate::TxnError;
use crate::engine::Inner;

/// Pieces of one range, at most: a sector each of the longest extent that there is.
const PIECES_MAX: usize = 1 << 16;

impl PlacementSource for Inner {
    fn placements(&self, at: Logical, len: ByteLen) -> Result<Vec<Placement>, VolumeError> {
        self.read_placements(at, len).map_err(|error| {
            let text = error.to_string();
            VolumeError::Corrupt(Box::new(
                Corruption::new("raid-stripe tree", "places", text, "places of all data").within(at),
            ))
        })
    }
}

impl Inner {
    fn read_placements(&self, at: Logical, len: ByteLen) -> Result<Vec<Placement>, TxnError> {
        let root = self.tree(TreeId::RAID_STRIPE)?.root;
        let mut cursor = self.blocks.cursor(&root);
        let end = at.0.saturating_add(len.0);
        let mut there = cursor.seek_back(&Key::new(at.0, ItemType::RAID_STRIPE, u64::MAX))?;
        let mut found = Vec::new();
        let mut next = at.0;
        while next < end {
            if found.len() == PIECES_MAX {
                return Err(Corruption::new("raid stripe", "items", "more", PIECES_MAX).within(at).into());
            }
            let item = there.then(|| cursor.current()).flatten();
            let held = item.filter(|(key, _)| {
                key.item_type == ItemType::RAID_STRIPE
                    && key.objectid <= next
                    && key.objectid.saturating_add(key.offset) > next
            });
            let Some((key, bytes)) = held else {
                let have = format!("none at {next}");
                return Err(Corruption::new("raid stripe", "item", have, "one for all data").within(at).into());
            };
            let inside = next - key.objectid;
            let take = (key.offset - inside).min(end - next);
            let strides = RaidStripe::parse(bytes)?.strides;
            let copy = |devid: u64, physical: u64| Some((DevId(devid), Physical(physical.checked_add(inside)?)));
            let copies = strides.iter().filter_map(|s| copy(s.devid.get(), s.physical.get())).collect();
            found.push(Placement { len: ByteLen(take), copies });
            next += take;
            there = cursor.next()?;
        }
        Ok(found)
    }
}

//! The free space of the devices, seen as the chunks it would become, so that space can be reserved before the chunks
//! are made.
//!
//! Unlike `Volume::unallocated`, which adds up, this places chunk after chunk as `propose_chunk` would, on a copy of
//! the free space. So devices of uneven length, holes that are too short, and superblock mirrors inside chunks are
//! taken into account. The result holds as long as no other chunks are made than those of the request.

use oleo_format::{BlockGroupFlags, ByteLen};

use crate::Volume;
use crate::carve::{ChunkPlan, ChunkWant, Room};

/// What to look out for.
#[derive(Clone, Copy, Debug)]
pub struct Outlook<'a> {
    /// Type and profile of the chunks.
    pub flags: BlockGroupFlags,
    /// One that takes its place first.
    pub taken: Option<&'a ChunkPlan>,
    /// The sort of another that comes before them, as far as there is room for it.
    pub first: Option<BlockGroupFlags>,
    /// How many are counted.
    pub chunks_max: u32,
    /// Shorter ones are not.
    pub len_min: ByteLen,
    /// What of each does not count.
    pub lost: ByteLen,
}

fn take(rooms: &mut [Room], map: &crate::ChunkMap) {
    for stripe in &map.stripes {
        for room in rooms.iter_mut() {
            room.take(stripe.devid, stripe.offset.0, map.stripe_bytes().0);
        }
    }
}

impl Volume {
    /// The bytes that chunks of a kind would offer if they were made one after the other.
    pub fn outlook(&self, ask: &Outlook<'_>) -> ByteLen {
        let mut rooms = self.rooms();
        if let Some(plan) = ask.taken {
            take(&mut rooms, &plan.map);
        }
        if let Some(flags) = ask.first
            && let Ok(map) = self.place(&rooms, &ChunkWant::new(flags))
        {
            take(&mut rooms, &map);
        }
        let mut sum = ByteLen(0);
        for _ in 0..ask.chunks_max {
            let Ok(map) = self.place(&rooms, &ChunkWant::new(ask.flags)) else { break };
            if map.len < ask.len_min {
                break;
            }
            let withheld: u64 = map.withheld_ranges().iter().map(|(_, len)| len.0).sum();
            sum += ByteLen(map.len.0.saturating_sub(withheld).saturating_sub(ask.lost.0));
            take(&mut rooms, &map);
        }
        sum
    }
}

//! Parity that a crash left wrong, found by its records when a volume is opened.
//!
//! Normal path: (1) [`patches`] computes what parity has to be in the recorded columns, in memory; (2) a volume that is opened for reading keeps
//! that, and rebuilds by it; (3) for writing it is written ([`put_in_order`]), and then the records are forgotten.
//!
//! Crash in (3): the records are there until all is durable, and the next opening begins anew.

use std::sync::Arc;

use oleo_device::{Device, DeviceError};

use crate::geometry::STRIPE_LEN;
use crate::member::Member;
use crate::records::{LiveParity, forget, parity_after};
use crate::rows::{GRAIN, Patches};
use crate::table::Table;

/// What the parity of recorded columns has to be; of what is recorded twice, as the newer record has it.
pub(crate) fn patches(table: &Table, recorded: &[LiveParity]) -> Patches {
    let mut patches = Patches::new();
    for live in recorded {
        let columns = &live.columns;
        let Some(placed) = table.get(columns.chunk).filter(|placed| columns.fit(&placed.map)) else { continue };
        let map = &placed.map;
        let offset = columns.row * STRIPE_LEN + columns.from as u64;
        let data = map.data_stripes() as usize;
        let read = |unit: usize| {
            let stripe = map.rotated(columns.row, unit);
            let device = placed.on[stripe].device().filter(|_| placed.on[stripe].is_sound())?;
            let mut bytes = vec![0; columns.len];
            device.read_at(map.physical(stripe, offset).0, &mut bytes).ok()?;
            Some(bytes)
        };
        let units: Vec<Option<Vec<u8>>> = (0..data).map(read).collect();
        let Some(parity) = parity_after(live, map, &units) else { continue };
        for (nth, bytes) in parity.iter().enumerate().take(usize::from(map.profile.shape().parities)) {
            let stripe = map.rotated(columns.row, data + nth);
            let at = map.physical(stripe, offset).0;
            for (piece, bytes) in bytes.chunks(GRAIN).enumerate() {
                patches.insert((map.stripes[stripe].devid, at + (piece * GRAIN) as u64), bytes.to_vec());
            }
        }
    }
    patches
}

/// Writes parity where it has to be, and then takes away the records.
///
/// # Errors
/// A device failed: the records are still there.
pub(crate) fn put_in_order(members: &[Arc<Member>], patches: &Patches) -> Result<(), DeviceError> {
    let there = || members.iter().filter_map(|member| Some((member, member.to_write().ok()?)));
    for ((devid, at), bytes) in patches {
        if let Some((_, device)) = there().find(|(member, _)| member.devid == *devid) {
            device.write_at(*at, bytes)?;
        }
    }
    there().try_for_each(|(_, device)| device.flush())?;
    there().try_for_each(|(member, _)| forget(member))?;
    there().try_for_each(|(_, device)| device.flush())
}

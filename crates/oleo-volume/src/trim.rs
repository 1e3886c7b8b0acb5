//! Discards the space of devices that no chunk covers.
//!
//! [`Volume::discard_unallocated`] discards one piece at a time, so that the caller does not have to prevent new chunks
//! for long. The first MiB of a device and its superblocks are not discarded.

use oleo_device::{Device, DeviceError};
use oleo_format::{ByteLen, DevId, Physical, SUPER_OFFSETS};

use crate::Volume;
use crate::carve::DEVICE_HEAD_LEN;
use crate::error::VolumeError;
use crate::geometry::STRIPE_LEN;
use crate::places::Places;

/// A place on a device: devices in the order of their numbers.
pub type DevicePlace = (DevId, Physical);

/// What one call has discarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Discarded {
    /// Where to continue.
    pub next: DevicePlace,
    /// How many bytes it was; 0 if the device does not take such hints.
    pub len: ByteLen,
}

impl Volume {
    /// Discards the next piece, of at most `piece_max` bytes, of a run of at least `min_len` bytes outside of chunks,
    /// at or after a place; `None` if there is none. The caller makes sure that no chunk is made meanwhile.
    ///
    /// # Errors
    /// The volume is not open for writing, or a device failed.
    pub fn discard_unallocated(
        &self,
        from: DevicePlace,
        min_len: ByteLen,
        piece_max: ByteLen,
    ) -> Result<Option<Discarded>, VolumeError> {
        self.may_write()?;
        let mut members: Vec<_> = self.members.read().iter().filter(|m| m.devid >= from.0).cloned().collect();
        members.sort_by_key(|m| m.devid);
        for member in members {
            let Ok(device) = member.to_write() else { continue };
            let start = if member.devid == from.0 { from.1.0 } else { 0 };
            let piece = {
                let (chunks, none) = (self.chunks.read(), Places::default());
                let taken = chunks.places(member.devid).unwrap_or(&none);
                next_piece(taken, member.total(), start, min_len.0, piece_max.0)
            };
            let Some((at, len)) = piece else { continue };
            let next = (member.devid, Physical(at + len));
            return match device.discard(at, len) {
                Ok(()) => Ok(Some(Discarded { next, len: ByteLen(len) })),
                Err(DeviceError::Unsupported { .. }) => Ok(Some(Discarded { next, len: ByteLen(0) })),
                Err(e) => Err(e.into()),
            };
        }
        Ok(None)
    }
}

/// The next piece of free space at or after `from`, start and length, without the stripes that superblocks are in.
fn next_piece(taken: &Places, total: u64, from: u64, min_len: u64, piece_max: u64) -> Option<(u64, u64)> {
    for (start, len) in taken.holes(DEVICE_HEAD_LEN, total) {
        let (mut pos, end) = (start, start + len);
        let inside = SUPER_OFFSETS.into_iter().filter(|at| (start..end).contains(at));
        for stop in inside.chain([end]) {
            let at = pos.max(from);
            if stop.saturating_sub(pos) >= min_len.max(1) && at < stop {
                return Some((at, (stop - at).min(piece_max)));
            }
            pos = stop + STRIPE_LEN;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Goal: no space of a chunk or a superblock is named, all else but the first MiB is, and pieces are no longer than
    /// requested. Method: all pieces of a device with two chunks and a superblock in a hole.
    #[test]
    fn pieces_keep_away_from_what_is_taken() {
        let mut taken = Places::default();
        taken.take(8 * MIB, 16 * MIB);
        taken.take(100 * MIB, 104 * MIB);
        let (mut pieces, mut from) = (Vec::new(), 0);
        while let Some((at, len)) = next_piece(&taken, 128 * MIB, from, MIB, 32 * MIB) {
            pieces.push((at, at + len));
            from = at + len;
        }
        let behind = 64 * MIB + STRIPE_LEN;
        let want = [
            (MIB, 8 * MIB),
            (16 * MIB, 48 * MIB),
            (48 * MIB, 64 * MIB),
            (behind, behind + 32 * MIB),
            (behind + 32 * MIB, 100 * MIB),
            (104 * MIB, 128 * MIB),
        ];
        assert_eq!(pieces, want);
        assert_eq!(next_piece(&taken, 128 * MIB, 0, 30 * MIB, MIB), Some((16 * MIB, MIB)));
    }
}

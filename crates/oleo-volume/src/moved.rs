//! Data whose places are in a tree of their own (the raid-stripe tree), not computed from the chunk: reading it.
//!
//! Whoever has the trees open says where things are ([`Volume::set_placement`]); until then such data is refused by name. With the feature, data of
//! chunks of some profiles has an item for each piece that was written together: its address, its length, and where each copy lies. Which
//! profiles these are is from the design of the raid-stripe tree in btrfs's documentation.
//!
//! Normal path of [`Volume::read_moved`]: (1) ask where the range lies; (2) read each piece from its first copy, and compare; (3) what does not fit is
//! read from the others, sector by sector. Bad copies are counted; nothing is healed, since such volumes are not written.

use std::sync::{Arc, Weak};

use oleo_format::{BlockGroupFlags, ByteLen, DevId, Incompat, Logical, Physical};

use crate::Volume;
use crate::error::VolumeError;
use crate::geometry::ChunkMap;
use crate::member::{Count, Member};
use crate::profile::Profile;

/// A piece of data and where its copies are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Bytes; whole sectors.
    pub len: ByteLen,
    /// Device and place of each copy.
    pub copies: Vec<(DevId, Physical)>,
}

/// Knows where data lies that a tree has the places of.
pub trait PlacementSource: Send + Sync {
    /// The pieces of a range, in order, all of it.
    ///
    /// # Errors
    /// The tree cannot be read, or does not have all of it.
    fn placements(&self, at: Logical, len: ByteLen) -> Result<Vec<Placement>, VolumeError>;
}

impl Volume {
    /// From now on asks `by` where data lies that a tree has the places of, while it lives. Once.
    pub fn set_placement(&self, by: Weak<dyn PlacementSource>) {
        let _ = self.placement.set(by);
    }

    /// Whether a tree has the places of the data of a chunk.
    pub(crate) fn is_placed_by_tree(&self, map: &ChunkMap) -> bool {
        let has_copies_or_stripes = !matches!(map.profile, Profile::Single | Profile::Raid5 | Profile::Raid6);
        map.flags.contains(BlockGroupFlags::DATA) && has_copies_or_stripes && self.has_placement_tree()
    }

    /// Whether there is such a tree.
    pub fn has_placement_tree(&self) -> bool {
        self.rules.features.incompat.contains(Incompat::RAID_STRIPE_TREE)
    }

    fn placements(&self, at: Logical, len: u64) -> Result<Vec<Placement>, VolumeError> {
        let source = self.placement.get().and_then(Weak::upgrade);
        let what = || "incompat feature RAID_STRIPE_TREE, here".to_owned();
        source.ok_or_else(|| VolumeError::Unsupported { what: what() })?.placements(at, ByteLen(len))
    }

    /// Reads data of one chunk whose places are in a tree, as [`Volume::read_data`] does.
    pub(crate) fn read_moved(&self, at: Logical, buf: &mut [u8], csums: Option<&[u8]>) -> Result<(), VolumeError> {
        let (unit, csum_len) = (self.rules.sectorsize as usize, self.rules.csum.csum_len());
        let mut done = 0;
        for placement in self.placements(at, buf.len() as u64)? {
            let len = usize::try_from(placement.len.0).unwrap_or(usize::MAX).min(buf.len() - done);
            let piece = &mut buf[done..done + len];
            // The first copy at one go, if it can be had.
            let first = placement.copies.first().and_then(|&(devid, place)| Some((self.reader_of(devid).ok()?, place)));
            let is_read = first.is_some_and(|(member, place)| member.read(place, piece).is_ok());
            for (nth, sector) in piece.chunks_mut(unit).enumerate() {
                let from = done + nth * unit;
                let sum = csums.and_then(|sums| sums.get(from / unit * csum_len..(from / unit + 1) * csum_len));
                if !is_read || !self.fits(sector, sum) {
                    self.read_copy_of(&placement, at + ByteLen(from as u64), (nth * unit) as u64, sector, sum)?;
                }
            }
            done += len;
        }
        if done < buf.len() {
            return Err(VolumeError::Unmapped { at: at + ByteLen(done as u64), len: (buf.len() - done) as u64 });
        }
        Ok(())
    }

    fn fits(&self, sector: &[u8], sum: Option<&[u8]>) -> bool {
        sum.is_none_or(|sum| self.rules.csum.csum(sector)[..sum.len()] == *sum)
    }

    /// A member with this number that can be read.
    fn reader_of(&self, devid: DevId) -> Result<Arc<Member>, VolumeError> {
        let readable = self.members_of(devid).into_iter().find(|member| member.is_readable());
        readable.ok_or(VolumeError::OnMissing { devid })
    }

    /// A sector, from the first copy that fits.
    fn read_copy_of(
        &self,
        placement: &Placement,
        at: Logical,
        offset: u64,
        sector: &mut [u8],
        sum: Option<&[u8]>,
    ) -> Result<(), VolumeError> {
        let mut why = VolumeError::Unmapped { at, len: sector.len() as u64 };
        for (devid, physical) in &placement.copies {
            let member = match self.reader_of(*devid) {
                Ok(member) => member,
                Err(missing) => {
                    why = missing;
                    continue;
                }
            };
            let Some(place) = physical.0.checked_add(offset) else { continue };
            match member.read(Physical(place), sector) {
                Ok(()) if self.fits(sector, sum) => return Ok(()),
                Ok(()) => {
                    member.count(Count::Corruption);
                    why = VolumeError::DataChecksum { at, devid: *devid };
                }
                Err(e) => why = e,
            }
        }
        Err(VolumeError::NoGoodCopy { at, len: sector.len() as u64, why: Box::new(why) })
    }

    /// Reads one copy of data of one chunk whose places are in a tree.
    pub(crate) fn read_moved_copy(&self, at: Logical, copy: usize, buf: &mut [u8]) -> Result<(), VolumeError> {
        let mut done = 0;
        for placement in self.placements(at, buf.len() as u64)? {
            let len = usize::try_from(placement.len.0).unwrap_or(usize::MAX).min(buf.len() - done);
            let part = &mut buf[done..done + len];
            let (devid, physical) = placement.copies.get(copy).ok_or(VolumeError::Unmapped { at, len: len as u64 })?;
            self.reader_of(*devid)?.read(*physical, part)?;
            done += len;
        }
        if done < buf.len() { Err(VolumeError::Unmapped { at, len: buf.len() as u64 }) } else { Ok(()) }
    }
}

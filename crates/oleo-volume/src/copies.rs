//! Reads one given copy, for callers that have to know whether every copy is good, not only some.
//!
//! Nothing is verified, counted or healed here. The copies of an address are numbered from 0 in the order of the
//! chunk's stripes; with parity there is one, and `read_block` rebuilds.

use std::sync::Arc;

use oleo_device::{Device, DeviceError};
use oleo_format::{DevId, Logical, NodeRules};

use crate::Volume;
use crate::batch::Batch;
use crate::error::VolumeError;
use crate::table::{Index, Placed};

/// A read of one copy, and its result.
#[derive(Debug)]
pub struct CopyRead<'a> {
    /// The address; sector-aligned.
    pub at: Logical,
    /// Which copy, below [`Volume::copies`].
    pub copy: usize,
    /// Filled with as many bytes as it is long.
    pub buf: &'a mut [u8],
    /// The result.
    pub result: Result<(), VolumeError>,
}

impl<'a> CopyRead<'a> {
    /// A read to be done.
    pub fn new(at: Logical, copy: usize, buf: &'a mut [u8]) -> CopyRead<'a> {
        CopyRead { at, copy, buf, result: Ok(()) }
    }
}

impl Volume {
    /// How many copies there are of the byte at an address, parity not counted; 0 if no chunk is.
    pub fn copies(&self, at: Logical) -> usize {
        self.remapped(at, 1).and_then(|at| self.placed(at)).map_or(0, |p| usize::from(p.map.profile.shape().copies))
    }

    /// The device with a number, unless it is missing.
    pub fn device(&self, devid: DevId) -> Option<Arc<dyn Device>> {
        let members = self.members_of(devid);
        members.into_iter().find_map(|m| m.plain())
    }

    /// The device that has a copy of the byte at an address.
    pub fn device_of_copy(&self, at: Logical, copy: usize) -> Option<DevId> {
        let at = self.remapped(at, 1).ok()?;
        let placed = self.placed(at).ok()?;
        let piece = placed.map.piece(at.0 - placed.map.start.0, 1);
        Some(placed.on.get(piece.stripe + copy)?.devid)
    }

    /// The rules for a block with these bytes: those of the seed whose fsid it carries, or the volume's own.
    pub fn rules_of(&self, bytes: &[u8]) -> &NodeRules {
        self.rules_for(bytes)
    }

    /// The parts of a range, by where they are.
    fn spans<'c>(&self, chunks: &'c Index, at: Logical, len: u64) -> Result<Vec<(&'c Placed, u64, u64)>, VolumeError> {
        if self.remaps.is_empty() {
            return chunks.spans(at, len);
        }
        let mut spans = Vec::new();
        for (at, len) in self.remaps.runs(at, len)? {
            spans.extend(chunks.spans(at, len)?);
        }
        Ok(spans)
    }

    /// Reads copies, all of a device in one batch. A read that spans chunks or stripe units is cut up.
    pub fn read_copies(&self, reads: &mut [CopyRead<'_>]) {
        let chunks = self.chunks.now();
        let mut batch = Batch::default();
        let mut errors: Vec<(usize, VolumeError)> = Vec::new();
        for (index, read) in reads.iter_mut().enumerate() {
            let spans = match self.spans(&chunks, read.at, read.buf.len() as u64) {
                Ok(spans) => spans,
                Err(e) => {
                    errors.push((index, e));
                    continue;
                }
            };
            if spans.iter().any(|(placed, ..)| self.is_placed_by_tree(&placed.map)) {
                if let Err(e) = self.read_moved_copy(read.at, read.copy, read.buf) {
                    errors.push((index, e));
                }
                continue;
            }
            let mut rest = &mut *read.buf;
            for &(placed, offset, len) in &spans {
                for piece in placed.map.pieces(offset, len) {
                    let (head, tail) = std::mem::take(&mut rest).split_at_mut(piece.len as usize);
                    rest = tail;
                    let stripe = piece.stripe + read.copy;
                    match placed.on.get(stripe).filter(|_| read.copy < piece.copies) {
                        Some(member) if member.is_readable() => {
                            batch.add(member, placed.map.physical(stripe, piece.offset).0, head, index);
                        }
                        Some(member) => errors.push((index, VolumeError::OnMissing { devid: member.devid })),
                        None => errors.push((index, VolumeError::Unmapped { at: read.at, len })),
                    }
                }
            }
        }
        let results: Vec<(usize, Result<(), DeviceError>)> = batch.run();
        for (index, result) in results {
            if let Err(e) = result {
                errors.push((index, e.into()));
            }
        }
        for (index, e) in errors {
            reads[index].result = Err(e);
        }
    }
}

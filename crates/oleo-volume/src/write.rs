//! Writing: every byte to all its copies; flush; superblocks; discard.
//!
//! Invariants: after the first write or flush that fails, the volume is stopped: nothing else is written, superblocks
//! least of all, so the last transaction that was made durable stays the newest. Writing to chunks with parity is
//! refused. Devices work in parallel, each on its own sorted and merged batch.

use std::collections::BTreeMap;
use std::sync::Arc;

use oleo_device::{Device, DeviceError, Latched, WriteReq};
use oleo_format::{ByteLen, Logical, SUPER_LEN, SUPER_OFFSETS, SYS_CHUNK_ARRAY_LEN, SuperBlock};
use zerocopy::IntoBytes;

use crate::Volume;
use crate::error::VolumeError;
use crate::geometry::ChunkMap;
use crate::member::{Count, Member};
use crate::parallel::{PARALLEL_BYTES_MIN, each};

/// The writes of one device: place, bytes.
type DeviceWrites<'a> = (Arc<Member>, Vec<(u64, &'a [u8])>);

impl Volume {
    /// Writes parts, which must not overlap, to all their copies. Durable after `flush`.
    pub fn write(&self, parts: &[(Logical, &[u8])]) -> Result<(), VolumeError> {
        self.may_write()?;
        let mut by_device: BTreeMap<u64, DeviceWrites<'_>> = BTreeMap::new();
        for &(at, bytes) in parts {
            let mut rest = bytes;
            for (placed, offset, len) in self.spans(at, bytes.len() as u64)? {
                if placed.map.profile.has_parity() {
                    return Err(parity_refused(&placed.map));
                }
                for piece in placed.map.pieces(offset, len) {
                    let (head, tail) = rest.split_at(piece.len as usize);
                    rest = tail;
                    for stripe in piece.stripe..piece.stripe + piece.copies {
                        let member = &placed.on[stripe];
                        member.to_write()?;
                        let writes = by_device.entry(member.devid.0).or_insert_with(|| (member.clone(), Vec::new()));
                        writes.1.push((placed.map.physical(stripe, piece.offset).0, head));
                    }
                }
            }
        }
        let bytes: u64 = parts.iter().map(|p| p.1.len() as u64).sum();
        let work = by_device.into_values().collect();
        let done = each(work, bytes >= PARALLEL_BYTES_MIN, |(member, mut writes): DeviceWrites<'_>| {
            write_device(&member, &mut writes)
        });
        all_done(done).map_err(|e| self.stop(e))
    }

    /// Makes everything durable that was written before.
    pub fn flush(&self) -> Result<(), VolumeError> {
        if !self.write {
            return Ok(());
        }
        self.may_write()?;
        let members = self.writable_members();
        let flush =
            |(member, device): (Arc<Member>, Arc<Latched>)| device.flush().inspect_err(|_| member.count(Count::Flush));
        all_done(each(members, true, flush)).map_err(|e| self.stop(e))
    }

    /// Makes `sb` the superblock of every device: flush, first mirrors, flush, other mirrors. `dev_item`, `bytenr` and
    /// `csum` are filled in for each device; all else is as given (see [`stamp`](Self::stamp)).
    pub fn write_supers(&self, sb: &SuperBlock) -> Result<(), VolumeError> {
        self.may_write()?;
        self.flush()?;
        let members = self.writable_members();
        let write = |mirrors: &[u64]| -> Result<(), DeviceError> {
            for (member, device) in &members {
                let total = member.total();
                let bytes = |&at: &u64| SuperBlock { dev_item: *member.item.lock(), ..*sb }.to_bytes(at);
                let fit = mirrors.iter().filter(|&&at| at + (SUPER_LEN as u64) < total);
                for (at, bytes) in fit.map(|at| (*at, bytes(at))) {
                    device.write_at(at, &bytes).inspect_err(|_| member.count(Count::Write))?;
                }
            }
            Ok(())
        };
        write(&SUPER_OFFSETS[..1]).map_err(|e| self.stop(e))?;
        self.flush()?;
        *self.super_block.write() = *sb;
        write(&SUPER_OFFSETS[1..]).map_err(|e| self.stop(e))
    }

    /// Sets the fields of a superblock that the volume knows: the system chunks, the number of devices and their
    /// total size. The caller does this when the trees that it is about to write say the same.
    pub fn stamp(&self, sb: &mut SuperBlock) -> Result<(), VolumeError> {
        let array = self.system_array();
        if array.len() > SYS_CHUNK_ARRAY_LEN {
            return Err(VolumeError::SystemArrayFull);
        }
        sb.sys_chunk_array = [0; SYS_CHUNK_ARRAY_LEN];
        sb.sys_chunk_array[..array.len()].copy_from_slice(&array);
        sb.sys_chunk_array_size = (array.len() as u32).into();
        let members = self.members.read();
        sb.num_devices = (members.len() as u64).into();
        let total = members.iter().fold(0u64, |sum, m| sum.saturating_add(m.item.lock().total_bytes.get()));
        sb.total_bytes = total.into();
        Ok(())
    }

    /// The superblock's array of system chunks as it would be now, however long.
    pub(crate) fn system_array(&self) -> Vec<u8> {
        let mut array = Vec::new();
        let chunks = self.chunks.read();
        for placed in chunks.iter().filter(|p| is_system(&p.map) && !chunks.is_retired(p.map.start)) {
            array.extend_from_slice(oleo_format::DiskKey::from(placed.map.key()).as_bytes());
            array.extend_from_slice(&placed.map.encode());
        }
        array
    }

    /// Tells the devices that nobody needs a range, as far as they care to know.
    pub fn discard(&self, at: Logical, len: ByteLen) -> Result<(), VolumeError> {
        self.may_write()?;
        for (placed, offset, len) in self.spans(at, len.0)? {
            if placed.map.profile.has_parity() {
                continue; // the parity would have to follow
            }
            for piece in placed.map.pieces(offset, len) {
                for stripe in piece.stripe..piece.stripe + piece.copies {
                    let device = placed.on[stripe].to_write()?;
                    match device.discard(placed.map.physical(stripe, piece.offset).0, piece.len) {
                        Ok(()) | Err(DeviceError::Unsupported { .. }) => {}
                        Err(e) => return Err(e.into()),
                    }
                }
            }
        }
        Ok(())
    }

    fn writable_members(&self) -> Vec<(Arc<Member>, Arc<Latched>)> {
        let members = self.members.read();
        members.iter().filter_map(|m| Some((m.clone(), m.to_write().ok()?.clone()))).collect()
    }

    fn may_write(&self) -> Result<(), VolumeError> {
        if let Some(first) = self.stopped.get() {
            return Err(VolumeError::Stopped { first: first.clone() });
        }
        if self.write { Ok(()) } else { Err(VolumeError::ReadOnly) }
    }

    /// Remembers the first failure; from now on nothing is written.
    fn stop(&self, e: DeviceError) -> VolumeError {
        let _ = self.stopped.set(e.clone());
        e.into()
    }
}

/// The first failure, if there is one.
fn all_done(results: Vec<Result<(), DeviceError>>) -> Result<(), DeviceError> {
    results.into_iter().collect()
}

/// Sorts one device's writes, merges neighbours, and hands them over as one batch.
fn write_device(member: &Member, writes: &mut [(u64, &[u8])]) -> Result<(), DeviceError> {
    let Some(device) = &member.device else { return Ok(()) };
    writes.sort_unstable_by_key(|w| w.0);
    debug_assert!(writes.windows(2).all(|w| w[0].0 + w[0].1.len() as u64 <= w[1].0), "writes overlap");
    let parts: Vec<&[u8]> = writes.iter().map(|w| w.1).collect();
    let mut reqs = Vec::new();
    let mut first = 0;
    for run in writes.chunk_by(|a, b| a.0 + a.1.len() as u64 == b.0) {
        reqs.push(WriteReq { offset: run[0].0, parts: &parts[first..first + run.len()] });
        first += run.len();
    }
    device.write_batch(&reqs).inspect_err(|_| member.count(Count::Write))
}

pub(crate) fn is_system(map: &ChunkMap) -> bool {
    map.flags.contains(oleo_format::BlockGroupFlags::SYSTEM)
}

#[cold]
pub(crate) fn parity_refused(map: &ChunkMap) -> VolumeError {
    VolumeError::Unsupported { what: format!("writing {} chunks", map.profile) }
}

//! Writing: every byte to all its copies; flush; superblocks; discard.
//!
//! Invariants: after the first write or flush that fails, and that the volume cannot do without (`losses`), it is poisoned: nothing else is
//! written, least of all superblocks, so the last durable transaction stays the newest. What is lost is left out: copies, units of rows, and
//! superblocks. The parity of what was written fits (`stripes`). Devices
//! work in parallel, each on its own sorted and merged batch; a large one is handed over in parts by several threads, since most of the
//! time goes into copying it to the system.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use oleo_device::{Device, DeviceError, Latched, Op, WriteReq};
use oleo_format::{
    ByteLen, Chunk, DevId, DevItem, Key, Logical, SUPER_LEN, SUPER_MAGIC_TEMPORARY, SUPER_OFFSETS, SuperBlock,
};

use crate::Volume;
use crate::copying::DeviceRange;
use crate::error::VolumeError;
use crate::geometry::ChunkMap;
use crate::losses::Failure;
use crate::member::{Count, Output};
use crate::parallel::{PARALLEL_BYTES_MIN, each};
use crate::stripes::{Put, RowWrites};
use crate::supers::check_fields;
use crate::table::Placed;

/// Bytes of one device's writes from which several threads hand them over.
const SPLIT_BYTES_MIN: u64 = 8 << 20;
/// Threads that do: enough to fill a memory's bandwidth.
const SPLIT_MAX: usize = 4;

/// The writes of one device: place, bytes.
type DeviceWrites<'a> = (Output, Vec<(u64, &'a [u8])>);

/// Which of a device's ways of writing.
pub(crate) type HandOver = fn(&Latched, &[WriteReq<'_>]) -> Result<(), DeviceError>;

/// What goes to which device.
#[derive(Default)]
pub(crate) struct Writes<'a> {
    /// By number, the target of a device behind it.
    by_device: BTreeMap<(u64, bool), DeviceWrites<'a>>,
    bytes: u64,
}

impl<'a> Writes<'a> {
    /// Adds a write to what takes a device's place, alone.
    pub fn add_to_target(&mut self, placed: &Placed, put: &Put<'a>) {
        if let Some(output) = placed.on[put.stripe].target_output() {
            self.add_to(output, placed, put);
        }
    }

    /// The places of devices with targets.
    fn on_targets(&self) -> impl Iterator<Item = DeviceRange> {
        let of_targets = self.by_device.iter().filter(|((_, is_target), _)| *is_target);
        of_targets.flat_map(|((devid, _), (_, writes))| {
            let range = |(at, bytes): &(u64, &[u8])| DeviceRange {
                devid: DevId(*devid),
                from: *at,
                to: *at + bytes.len() as u64,
            };
            writes.iter().map(range)
        })
    }

    fn add_to(&mut self, output: Output, placed: &Placed, put: &Put<'a>) {
        let key = (output.member.devid.0, output.is_target);
        let writes = self.by_device.entry(key).or_insert_with(|| (output, Vec::new()));
        writes.1.push((placed.map.physical(put.stripe, put.offset).0, put.bytes));
        self.bytes += put.bytes.len() as u64;
    }

    /// Adds a write. It is left out where the device is lost: the caller has made sure that the bytes are elsewhere ([`can_write`]).
    pub fn add(&mut self, placed: &Placed, put: &Put<'a>) -> Result<(), VolumeError> {
        let member = &placed.on[put.stripe];
        if member.seed {
            return Err(VolumeError::ReadOnly);
        }
        member.outputs().for_each(|output| self.add_to(output, placed, put));
        Ok(())
    }
}

/// Refuses to write to a chunk, as far as `stripes` of it say, that cannot do without the devices that are lost.
pub(crate) fn can_write(placed: &Placed, stripes: std::ops::Range<usize>) -> Result<(), VolumeError> {
    let lost = |stripe: &usize| !placed.on[*stripe].is_sound();
    let parities = usize::from(placed.map.profile.shape().parities);
    let borne = if parities > 0 { parities } else { stripes.len().saturating_sub(1) };
    match stripes.clone().find(lost) {
        Some(first) if stripes.filter(lost).count() > borne => {
            Err(VolumeError::NotBorne { chunk: placed.map.start, devid: placed.on[first].devid })
        }
        _ => Ok(()),
    }
}

impl Volume {
    /// Writes parts, which must not overlap, to all their copies, sorted and merged for each device. Durable after
    /// [`flush`](Self::flush).
    ///
    /// # Errors
    /// A write failed: unless it only found no space, nothing is written after it. Or what parity needs besides the parts cannot be read.
    pub fn write(&self, parts: &[(Logical, &[u8])]) -> Result<(), VolumeError> {
        self.write_parts(parts, |device, reqs| device.write_batch(reqs))
    }

    /// [`write`](Self::write) of what the caller keeps in memory: the system's cache need not keep it, too.
    ///
    /// # Errors
    /// As there.
    pub fn write_uncached(&self, parts: &[(Logical, &[u8])]) -> Result<(), VolumeError> {
        self.write_parts(parts, |device, reqs| device.write_uncached(reqs))
    }

    fn write_parts(&self, parts: &[(Logical, &[u8])], hand_over: HandOver) -> Result<(), VolumeError> {
        self.may_write()?;
        let _targets_stay = self.targets_stay.read();
        let chunks = self.chunks.now();
        let mut writes = Writes::default();
        let mut rows = RowWrites::default();
        for &(at, bytes) in parts {
            let mut rest = bytes;
            for (placed, offset, len) in chunks.spans(at, bytes.len() as u64)? {
                for piece in placed.map.pieces(offset, len) {
                    let (head, tail) = rest.split_at(piece.len as usize);
                    rest = tail;
                    if placed.map.profile.has_parity() {
                        can_write(placed, 0..placed.on.len())?;
                        rows.add(placed, &piece, head);
                        continue;
                    }
                    can_write(placed, piece.stripe..piece.stripe + piece.copies)?;
                    for stripe in piece.stripe..piece.stripe + piece.copies {
                        writes.add(placed, &Put { stripe, offset: piece.offset, bytes: head })?;
                    }
                }
            }
        }
        let _nobody_copies_there = self.has_targets.load(Ordering::SeqCst).then(|| {
            let ranges = writes.on_targets().chain(rows.on_targets());
            self.copying.write(ranges.collect())
        });
        if rows.is_empty() {
            return self.hand_over(writes, hand_over);
        }
        self.write_rows(rows, writes, hand_over)
    }

    /// Has all devices write their part, in parallel if it is much.
    pub(crate) fn hand_over(&self, writes: Writes<'_>, hand_over: HandOver) -> Result<(), VolumeError> {
        let parallel = writes.bytes >= PARALLEL_BYTES_MIN;
        let threads = if parallel { threads_of_a_write() } else { 1 };
        let work = writes.by_device.into_values().flat_map(|(output, writes)| {
            let parts = split(writes, threads);
            parts.into_iter().map(move |part| (output.clone(), part))
        });
        let done = each(work.collect(), parallel, |(output, writes): DeviceWrites<'_>| {
            let done = write_device(&output, &writes, hand_over);
            done.map_err(|error| Failure::new(&output, error))
        });
        self.bear(failures(done))
    }

    /// Makes everything durable that was written before. If a flush fails, nothing is written after it.
    pub fn flush(&self) -> Result<(), VolumeError> {
        if !self.write {
            return Ok(());
        }
        self.may_write()?;
        self.rows.turn();
        self.flush_members()
    }

    /// The same for what no superblock is to name.
    pub(crate) fn flush_members(&self) -> Result<(), VolumeError> {
        self.flush_outputs(&self.outputs())
    }

    pub(crate) fn flush_outputs(&self, outputs: &[Output]) -> Result<(), VolumeError> {
        let devices: Vec<Arc<Latched>> = outputs.iter().map(|output| output.device.clone()).collect();
        let done = self.flushers.flush_all(&devices).into_iter().zip(outputs);
        let done = done.map(|(done, output)| {
            done.map_err(|error| {
                output.member.count(Count::Flush);
                Failure::new(output, error)
            })
        });
        self.bear(failures(done.collect()))
    }

    /// Says to the devices that whoever has them open is done ([`Device::release`]). After a failure there is nothing to be said.
    ///
    /// # Errors
    /// A device failed: what was written since the last flush may be lost.
    pub fn release(&self) -> Result<(), VolumeError> {
        if self.poisoned.get().is_some() {
            return Ok(());
        }
        let members = self.members.read().clone();
        let targets = members.iter().filter_map(|member| member.target());
        let devices = members.iter().filter_map(|member| member.any_device()).chain(targets);
        // What failed before was told, and the volume does without it.
        let devices: Vec<_> = devices.filter(|device| device.failure().is_none()).collect();
        let done: Vec<_> = devices.iter().map(|device| device.release()).collect();
        done.into_iter().collect::<Result<(), _>>().map_err(|e| self.stop(e))
    }

    /// Sees to it that nothing that is written from now on survives a crash that loses something written before. With one device its own
    /// barrier does, which need not make anything durable. With several, an order on each is none between them: of two devices the
    /// one might keep a superblock that names what the other never had. So those are flushed.
    fn barrier(&self) -> Result<(), VolumeError> {
        let outputs = self.outputs();
        let [output] = outputs.as_slice() else { return self.flush() };
        self.rows.turn();
        let done = output.device.barrier().inspect_err(|_| output.member.count(Count::Flush));
        self.bear(failures(vec![done.map_err(|error| Failure::new(output, error))]))
    }

    /// Rows that are begun from here on may be under way when `sb` is the newest; those that were begun before are written by then, and their
    /// records done with.
    fn is_to_be_newest(&self, sb: &SuperBlock) -> Result<(), VolumeError> {
        if self.rows.is_to_be_newest(sb) {
            return Ok(());
        }
        let source = Arc::new(io::Error::other("superblocks of too many moments may be on disk"));
        let (op, offset, len) = (Op::Write, SUPER_OFFSETS[0], SUPER_LEN as u64);
        Err(self.stop(DeviceError::Io { name: "superblock".into(), op, offset, len, source }))
    }

    /// Makes `sb` the superblock of every device: barrier, first mirrors, flush, other mirrors. `dev_item`, `bytenr` and
    /// `csum` are filled in for each device; all else is as given (see [`stamp`](Self::stamp)). What could not be opened again
    /// is refused: the superblocks on disk stay.
    pub fn write_supers(&self, sb: &SuperBlock) -> Result<(), VolumeError> {
        self.may_write()?;
        check_fields(sb).map_err(|e| e.within("superblock to be written"))?;
        self.is_to_be_newest(sb)?;
        let losses = self.losses.count();
        // From the exchange until a superblock says so nobody writes: it would be on one of the two alone.
        let finishing = self.is_finishing();
        let _nobody_writes = finishing.then(|| self.targets_stay.write());
        self.barrier()?;
        if finishing {
            self.exchange(sb)?;
        }
        let (new, known): (Vec<_>, Vec<_>) = self.outputs().into_iter().partition(Output::is_new);
        // A superblock that names a device comes after that device's own: the other way round a crash leaves a volume with a device that
        // nobody can recognise.
        if !new.is_empty() {
            self.write_mirrors(sb, &SUPER_OFFSETS[..1], &new, Output::next_item)?;
            self.flush_outputs(&new)?;
        }
        self.write_mirrors(sb, &SUPER_OFFSETS[..1], &known, Output::next_item)?;
        self.flush()?;
        self.rows.is_newest(sb);
        *self.super_block.write() = *sb;
        for output in new.iter().chain(&known) {
            output.written();
        }
        for member in self.members.read().iter() {
            let mut settled = member.settled.lock();
            settled.written = settled.next;
        }
        self.losses.superblock_written(losses);
        self.write_mirrors(sb, &SUPER_OFFSETS[1..], &self.outputs(), Output::written_item)
    }

    /// Makes `sb`, the superblock on disk with the root of a log in it, the first mirror of every device: barrier, first
    /// mirrors, flush. It differs from the one before in its first 512 bytes only, so it is never seen in parts.
    pub fn write_log_super(&self, sb: &SuperBlock) -> Result<(), VolumeError> {
        self.may_write()?;
        self.is_to_be_newest(sb)?;
        self.barrier()?;
        self.write_mirrors(sb, &SUPER_OFFSETS[..1], &self.known_outputs(), Output::written_item)?;
        self.flush()?;
        self.rows.is_newest(sb);
        Ok(())
    }

    /// Marks the volume on disk as unfinished, or, when all of it is durable, as finished: flush, all mirrors of the superblock
    /// as it was written last, flush. No reader opens an unfinished volume; commits keep the mark. For mkfs, which fills a
    /// volume after it has made it.
    pub fn mark_unfinished(&self, unfinished: bool) -> Result<(), VolumeError> {
        self.may_write()?;
        self.flush()?;
        self.unfinished.store(unfinished, Ordering::Release);
        self.write_mirrors(&self.super_block(), &SUPER_OFFSETS, &self.known_outputs(), Output::written_item)?;
        self.flush()
    }

    /// Writes `sb` to all mirrors but the first; durable after the next flush.
    pub fn write_other_mirrors(&self, sb: &SuperBlock) -> Result<(), VolumeError> {
        self.may_write()?;
        self.write_mirrors(sb, &SUPER_OFFSETS[1..], &self.known_outputs(), Output::written_item)
    }

    /// Writes some mirrors, with the `item` of each device that the trees of this superblock have. What missed writes gets none: its
    /// superblock says so.
    pub(crate) fn write_mirrors(
        &self,
        sb: &SuperBlock,
        mirrors: &[u64],
        on: &[Output],
        item: impl Fn(&Output) -> DevItem,
    ) -> Result<(), VolumeError> {
        let magic = if self.unfinished.load(Ordering::Acquire) { SUPER_MAGIC_TEMPORARY } else { sb.magic };
        let one = |output: &Output| -> Result<(), Failure> {
            let item = item(output);
            let total = item.total_bytes.get().min(output.device.len());
            let bytes = |&at: &u64| SuperBlock { dev_item: item, magic, ..*sb }.to_bytes(at);
            let fit = mirrors.iter().filter(|&&at| at + (SUPER_LEN as u64) < total);
            for (at, bytes) in fit.map(|at| (*at, bytes(at))) {
                let done = output.device.write_at(at, &bytes).inspect_err(|e| count_write(output, e));
                done.map_err(|error| Failure::new(output, error))?;
            }
            Ok(())
        };
        self.bear(failures(on.iter().filter(|output| output.takes_supers()).map(one).collect()))
    }

    /// Sets the fields of a superblock that the volume knows: the system chunks, the number of devices and their total
    /// size; and keeps the devices' items for when it is written. They must match the trees that this superblock leads
    /// to, so `uncommitted` names the chunks to be left out: those added since these trees were made. (The kernel refuses a volume
    /// with a system chunk that has no block group.)
    pub fn stamp_without(&self, sb: &mut SuperBlock, uncommitted: &[Logical]) -> Result<(), VolumeError> {
        let chunks = self.system_chunks(|map| !uncommitted.contains(&map.start));
        if !sb.set_sys_chunks(chunks.iter().map(|(key, chunk)| (*key, chunk))) {
            return Err(VolumeError::SystemArrayFull);
        }
        let members = self.members.read();
        for member in members.iter() {
            let item = *member.item.lock();
            member.settled.lock().next = item;
        }
        sb.num_devices = (members.len() as u64).into();
        let total = members.iter().fold(0u64, |sum, m| sum.saturating_add(m.item.lock().total_bytes.get()));
        sb.total_bytes = total.into();
        Ok(())
    }

    /// [`stamp_without`](Self::stamp_without) leaving anything out.
    pub fn stamp(&self, sb: &mut SuperBlock) -> Result<(), VolumeError> {
        self.stamp_without(sb, &[])
    }

    /// Whether the superblock's array has room for another system chunk.
    pub(crate) fn fits_system_array(&self, map: &ChunkMap) -> bool {
        let mut chunks = self.system_chunks(|_| true);
        chunks.push((map.key(), map.chunk()));
        SuperBlock::default().set_sys_chunks(chunks.iter().map(|(key, chunk)| (*key, chunk)))
    }

    fn system_chunks(&self, wanted: impl Fn(&ChunkMap) -> bool) -> Vec<(Key, Chunk)> {
        let chunks = self.chunks.read();
        chunks.system().filter(|p| wanted(&p.map)).map(|p| (p.map.key(), p.map.chunk())).collect()
    }

    /// Discards a range on the devices that support it, except on seeds.
    pub fn discard(&self, at: Logical, len: ByteLen) -> Result<(), VolumeError> {
        self.may_write()?;
        let chunks = self.chunks.now();
        for (placed, offset, len) in chunks.spans(at, len.0)? {
            if placed.map.profile.has_parity() {
                continue; // the parity would have to follow
            }
            for piece in placed.map.pieces(offset, len) {
                for stripe in piece.stripe..piece.stripe + piece.copies {
                    if placed.on[stripe].seed {
                        continue;
                    }
                    for output in placed.on[stripe].outputs() {
                        match output.device.discard(placed.map.physical(stripe, piece.offset).0, piece.len) {
                            Ok(()) | Err(DeviceError::Unsupported { .. }) => {}
                            Err(e) => return Err(e.into()),
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// All that is written to.
    pub(crate) fn outputs(&self) -> Vec<Output> {
        self.members.read().iter().flat_map(|member| member.outputs()).collect()
    }

    /// Those of them that a superblock names.
    fn known_outputs(&self) -> Vec<Output> {
        self.outputs().into_iter().filter(|output| !output.is_new()).collect()
    }

    pub(crate) fn may_write(&self) -> Result<(), VolumeError> {
        if let Some(first) = self.poisoned.get() {
            return Err(VolumeError::Poisoned { first: first.clone() });
        }
        if self.write { Ok(()) } else { Err(VolumeError::ReadOnly) }
    }

    /// Remembers the first failure; from then on nothing is written. A write that found no space is not such a failure:
    /// the caller repeats it before it writes anything that relies on it.
    pub(crate) fn stop(&self, e: DeviceError) -> VolumeError {
        if !e.is_full() {
            let _ = self.poisoned.set(e.clone());
        }
        e.into()
    }

    /// The same whatever the failure was.
    pub(crate) fn stop_for_good(&self, e: VolumeError) -> VolumeError {
        if let VolumeError::Device(e) = &e {
            let _ = self.poisoned.set(e.clone());
        }
        e
    }
}

fn failures(results: Vec<Result<(), Failure>>) -> Vec<Failure> {
    results.into_iter().filter_map(Result::err).collect()
}

/// How many threads one large write of a device is worth. Counted once: the standard library reads files of the system to find out.
fn threads_of_a_write() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from).min(SPLIT_MAX))
}

/// Sorts one device's writes; if there is much, in parts of about equal length.
fn split(mut writes: Vec<(u64, &[u8])>, parts_max: usize) -> Vec<Vec<(u64, &[u8])>> {
    writes.sort_unstable_by_key(|w| w.0);
    let bytes: u64 = writes.iter().map(|w| w.1.len() as u64).sum();
    let count = if bytes >= SPLIT_BYTES_MIN { parts_max.max(1) as u64 } else { 1 };
    let (mut parts, mut part, mut before) = (Vec::new(), Vec::new(), 0);
    for write in writes {
        if before * count >= bytes * (parts.len() as u64 + 1) {
            parts.push(std::mem::take(&mut part));
        }
        before += write.1.len() as u64;
        part.push(write);
    }
    parts.push(part);
    parts
}

/// Merges neighbours of one device's sorted writes, and hands them over as one batch.
fn write_device(output: &Output, writes: &[(u64, &[u8])], hand_over: HandOver) -> Result<(), DeviceError> {
    debug_assert!(writes.windows(2).all(|w| w[0].0 + w[0].1.len() as u64 <= w[1].0), "writes overlap");
    let parts: Vec<&[u8]> = writes.iter().map(|w| w.1).collect();
    let mut reqs = Vec::new();
    let mut first = 0;
    for run in writes.chunk_by(|a, b| a.0 + a.1.len() as u64 == b.0) {
        reqs.push(WriteReq { offset: run[0].0, parts: &parts[first..first + run.len()] });
        first += run.len();
    }
    hand_over(&output.device, &reqs).inspect_err(|e| count_write(output, e))
}

/// Counts a failed write. Missing space below the device is not the device's failure, and a target is no device of the volume yet.
fn count_write(output: &Output, e: &DeviceError) {
    if !e.is_full() && !output.is_target {
        output.member.count(Count::Write);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: many writes are parts of about equal length, in order, and few stay together.
    /// Method: blocks in any order; the parts put together again are all of them, sorted.
    #[test]
    fn large_batches_are_split() {
        let block = vec![0; 16384];
        let some = |count: u64| (0..count).map(|n| ((n * 7919 % count) * 32768, &block[..])).collect::<Vec<_>>();
        assert_eq!(split(some(100), 4).len(), 1);
        for threads in 1..=SPLIT_MAX {
            let parts = split(some(1999), threads);
            assert_eq!(parts.len(), threads);
            assert!(parts.iter().all(|part| part.len().abs_diff(1999 / threads) <= 1), "about equal");
            let all: Vec<u64> = parts.concat().into_iter().map(|(at, _)| at).collect();
            assert_eq!(all, (0..1999).map(|n| n * 32768).collect::<Vec<_>>());
        }
        assert_eq!(split(Vec::new(), 4).concat(), []);
    }
}

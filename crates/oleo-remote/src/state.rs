//! What a volume is in memory: where each block of the device is, which segments there are, and what is not stored yet.
//!
//! Nothing here does I/O. A change is one frame: (1) [`State::append`] puts it into the open segment and into the map, and
//! counts what of which segment is gone by it; (2) when the open segment is long enough, [`State::seal`] ends it, and whoever
//! holds the state gets it to be stored; (3) [`State::gather`] is what a publish needs, as of one moment; (4) when it is
//! published, [`State::published`] frees the memory.
//!
//! Parts: `region` (runs of a GiB), `regions` (which of them are in memory), `table` (the segments), `open_segment`,
//! `sealed` and `under_way` (what is sealed and not published).
//!
//! Invariants: a row's `live` is the number of blocks that runs of it name in regions in memory and in changes to others,
//! and in the pages of others as of the last checkpoint; so while a region is not in memory it may be too high, never too
//! low. The map has exactly what frames before [`State::position`] say.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use oleo_format::Corruption;

use crate::error::RemoteError;
use crate::format::head::Head;
use crate::format::map::{MapObject, Root, Row, Run, TABLE_ROWS};
use crate::format::packing::Coder;
use crate::format::segment::{Change, Entry};
use crate::format::{BLOCK_LEN, Grave, OBJECT_LEN_MAX, OBJECT_N_MAX, ObjectId, ObjectRef, REGION_BLOCKS, SegmentRef};
use crate::host::{Host, Mistake};

mod graves;
mod open_segment;
mod region;
mod regions;
mod sealed;
mod table;
mod under_way;

pub(crate) use graves::Graves;
pub(crate) use open_segment::OpenSegment;
pub(crate) use region::Region;
pub(crate) use regions::Regions;
pub(crate) use sealed::Sealed;
pub(crate) use table::Table;
pub(crate) use under_way::UnderWay;

/// A frame that has no place yet.
pub(crate) use crate::format::packing::Packed as NewFrame;

/// Where blocks of a look-up are.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// Nowhere: they are zeros.
    Zeros,
    /// In a frame that is in memory, header and all, as it is stored or will be.
    Memory {
        /// The segment.
        id: ObjectId,
        /// Where the frame begins.
        off: u32,
        /// Its bytes.
        piece: Arc<Vec<u8>>,
    },
    /// In a frame of a segment that is stored.
    Stored {
        /// The segment.
        id: ObjectId,
        /// Where the frame begins.
        off: u32,
        /// Length of its payload, bytes.
        stored: u32,
    },
}

/// Blocks that follow one another, and where they are.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// The first on the device.
    pub first: u64,
    /// How many.
    pub blocks: u64,
    /// Blocks of the frame's payload before it.
    pub skip: u8,
    /// Where.
    pub source: Source,
}

/// A region whose page must be read first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Missing {
    pub region: u32,
    pub page: ObjectRef,
}

/// What a publish needs, as of one moment.
pub(crate) struct Gathered {
    pub position: u64,
    pub device_len: u64,
    pub next_n: u64,
    pub segments: Vec<SegmentRef>,
    /// No segment of these was in a head of an earlier sequence.
    pub oldest: u64,
    pub tail_id: ObjectId,
    pub tail: Vec<Arc<Vec<u8>>>,
}

/// See the module's text.
pub(crate) struct State {
    coder: Coder,
    epoch: u32,
    /// Frames that the volume has had.
    position: u64,
    device_len: u64,
    /// The next number of an object.
    next_n: u64,
    pub(crate) regions: Regions,
    pub(crate) table: Table,
    open: Option<OpenSegment>,
    pub(crate) under_way: UnderWay,
    /// The sealed segments since the last checkpoint, in their order, with the position after each.
    listed: Vec<(SegmentRef, u64)>,
    /// Sequence of the newest published head.
    sequence: u64,
    /// What the last checkpoint wrote.
    pub(crate) saved: Saved,
    pub(crate) graves: Graves,
    /// Sequence that no segment is older than which is replayed.
    oldest: u64,
}

/// The pages of a checkpoint besides those of the regions.
#[derive(Default)]
pub(crate) struct Saved {
    pub(crate) root: Option<ObjectRef>,
    pub(crate) index: BTreeMap<u32, ObjectRef>,
    pub(crate) table: BTreeMap<u32, ObjectRef>,
    pub(crate) graves: BTreeMap<u32, ObjectRef>,
    pub(crate) objects: BTreeMap<ObjectId, MapObject>,
    /// Whether the pages of the index are all written again.
    pub(crate) rewrite: bool,
}

impl State {
    /// As it is in a head, before anything is loaded or replayed, for the writer of `epoch` (or a reader).
    pub(crate) fn new(head: &Head, epoch: u32) -> State {
        State {
            coder: Coder::of(head),
            epoch,
            position: 0,
            device_len: 0,
            // A reader takes the tail into a segment of its own, which must not have the name of another.
            next_n: head.next_n,
            regions: Regions::default(),
            table: Table::default(),
            open: None,
            under_way: UnderWay::default(),
            listed: Vec::new(),
            sequence: head.sequence,
            saved: Saved::default(),
            graves: Graves::default(),
            oldest: head.oldest,
        }
    }

    /// Frames that the volume has had.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Length of the device, bytes.
    pub(crate) fn device_len(&self) -> u64 {
        self.device_len
    }

    /// Bytes in memory that are not in a published object.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.under_way.bytes() + self.open_len()
    }

    /// The open segment, if there is one.
    pub(crate) fn open_id(&self) -> Option<ObjectId> {
        self.open.as_ref().map(|open| open.id)
    }

    /// Bytes of the open segment.
    pub(crate) fn open_len(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.len().into())
    }

    /// Begins with a position; what comes is counted from there.
    pub(crate) fn restore(&mut self, position: u64) {
        self.position = position;
    }

    /// What the root of the last checkpoint says of pages.
    pub(crate) fn restore_root(&mut self, at: ObjectRef, root: &Root) {
        self.saved = Saved {
            root: Some(at),
            index: root.index.iter().copied().collect(),
            table: root.table.iter().copied().collect(),
            graves: root.graves.iter().filter(|(_, page)| page.id.origin == 0).copied().collect(),
            objects: root.objects.iter().map(|object| (object.id, *object)).collect(),
            rewrite: false,
        };
        // A root cannot say of its own object how long it is. It is as old as the youngest of the others, or younger; those of
        // other volumes have the sequences of those.
        let (len, live) = (at.off + at.len, at.len);
        let own = root.objects.iter().filter(|object| object.id.origin == 0);
        let born = own.map(|object| object.born).max().unwrap_or(0);
        self.saved.objects.insert(at.id, MapObject { id: at.id, len, live, born });
        // What the parent of a branch has buried is none of the branch's business.
        root.graves.iter().filter(|(_, page)| page.id.origin > 0).for_each(|(_, page)| self.forget(*page));
    }

    /// The length of the device, as a head has it.
    pub(crate) fn set_device_len(&mut self, len: u64) {
        self.device_len = len;
    }

    /// Sequence of the next head.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.sequence + 1
    }

    /// The position that a checkpoint begun now is of: that of the first frame that is in no sealed segment.
    pub(crate) fn checkpoint_position(&self) -> u64 {
        self.open.as_ref().map_or(self.position, OpenSegment::first_position)
    }

    /// The page of a region has been read. Nothing happens if it is not the region's any more.
    pub(crate) fn install(&mut self, of: Missing, runs: &[Run]) -> Result<(), RemoteError> {
        self.regions.install(of, runs, &mut self.table)
    }

    /// See [`Regions::stage`].
    pub(crate) fn stage(&mut self, region: u32, write: impl FnOnce(&Region) -> ObjectRef) -> Result<(), RemoteError> {
        self.regions.stage(region, &mut self.table, write)
    }

    /// A number for an object of this epoch.
    pub(crate) fn take_number(&mut self) -> Result<u64, RemoteError> {
        let n = self.next_n;
        if n >= OBJECT_N_MAX {
            return Err(RemoteError::Limit { what: format!("{n} objects of one epoch are the most") });
        }
        self.next_n += 1;
        Ok(n)
    }

    /// Replays a stored segment: what its directory says, in order.
    pub(crate) fn replay(&mut self, segment: &SegmentRef, entries: &[Entry]) -> Result<(), RemoteError> {
        let row = self.table.find_or_add(segment.id, segment.len, self.oldest)?;
        for entry in entries {
            self.apply(row, entry)?;
        }
        self.table.set(row, Some(segment.len), Some(blocks_of(entries)))?;
        self.position += entries.len() as u64;
        self.listed.push((*segment, self.position));
        Ok(())
    }

    /// Takes the frame into the open segment and into the map. Where nothing is open, a segment is begun.
    pub(crate) fn append(&mut self, frame: NewFrame) -> Result<(), RemoteError> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => {
                let id = ObjectId::segment(self.epoch, self.take_number()?);
                let row = self.table.find_or_add(id, 0, self.sequence + 1)?;
                OpenSegment::new(self.coder.clone(), id, row, self.position)
            }
        };
        let entry = open.push(frame);
        let row = open.row;
        self.open = Some(open);
        self.position += 1;
        self.apply(row, &entry)
    }

    /// Changes the map by a frame.
    fn apply(&mut self, row: u32, entry: &Entry) -> Result<(), RemoteError> {
        match entry.change {
            Change::Data { first, blocks, stored, .. } => {
                self.table.gain(row, blocks.into())?;
                let start = (first % REGION_BLOCKS) as u32;
                let run = Run { start, blocks, skip: 0, row, off: entry.off, stored };
                self.regions.set((first / REGION_BLOCKS) as u32, run, &mut self.table)?;
            }
            Change::Zeros { first, count } => self.regions.clear(first, first + count, &mut self.table)?,
            Change::Len { len } => {
                // A replay begins without knowing the length before, so this is done when it grows, too.
                self.regions.clear(len.div_ceil(BLOCK_LEN as u64), u64::MAX, &mut self.table)?;
                self.device_len = len;
            }
        }
        Ok(())
    }

    /// Whether a frame so long fits into the open segment without making it longer than `len_max`.
    pub(crate) fn fits(&self, frame_len: usize, len_max: u64) -> bool {
        let ends = self.open.as_ref().map_or(0, |open| open.len_with(frame_len));
        ends <= len_max.min(OBJECT_LEN_MAX.into())
    }

    /// Ends the open segment, if there is one, and hands it over to be stored.
    pub(crate) fn seal(&mut self) -> Result<Option<Arc<Sealed>>, RemoteError> {
        let Some(open) = self.open.take() else { return Ok(None) };
        let sealed = Arc::new(open.seal());
        self.table.set(sealed.row, Some(sealed.known.len), Some(blocks_of(sealed.entries())))?;
        self.listed.push((sealed.known, self.position));
        self.under_way.push(sealed.clone());
        Ok(Some(sealed))
    }

    /// The frames from a position to before another that are not published, with their segments and positions.
    pub(crate) fn frames(&self, from: u64, to: u64) -> Vec<(ObjectId, u64, Arc<Vec<u8>>)> {
        let sealed = self.under_way.sealed().map(|sealed| (sealed.known.id, sealed.first_position(), sealed.frames()));
        let open = self.open.iter().map(|open| (open.id, open.first_position(), open.pieces()));
        let mut out = Vec::new();
        for (id, first, pieces) in sealed.chain(open) {
            let place = |position: u64| (position.saturating_sub(first)).min(pieces.len() as u64) as usize;
            let wanted = pieces.iter().zip(first..).take(place(to)).skip(place(from));
            out.extend(wanted.map(|(piece, position)| (id, position, piece.clone())));
        }
        out
    }

    /// Everything that is appended, for a head. The tail is what is in the open segment; of the sealed ones those are listed
    /// that have something behind `from`, the position of the checkpoint.
    pub(crate) fn gather(&self, from: u64) -> Gathered {
        let none = ObjectId::segment(self.epoch, self.next_n.min(OBJECT_N_MAX - 1));
        let segments: Vec<SegmentRef> =
            self.listed.iter().filter(|(_, after)| *after > from).map(|(known, _)| *known).collect();
        let born = segments.iter().filter_map(|known| Some(self.table.of(known.id)?.born)).min();
        Gathered {
            position: self.position,
            device_len: self.device_len,
            next_n: self.next_n,
            segments,
            oldest: born.unwrap_or(self.sequence + 1),
            tail_id: self.open.as_ref().map_or(none, |open| open.id),
            tail: self.open.as_ref().map_or(Vec::new(), |open| open.pieces().to_vec()),
        }
    }

    /// A head of this sequence is published, with all segments up to this position.
    pub(crate) fn published(&mut self, sequence: u64, position: u64) {
        self.sequence = sequence;
        self.under_way.free(position);
    }

    /// A checkpoint up to this position is published: it has what the segments before it say, and all graves.
    pub(crate) fn checkpointed(&mut self, root: ObjectRef, position: u64, now: Duration) {
        self.graves.published(now);
        self.saved.root = Some(root);
        self.listed.retain(|(_, after)| *after > position);
    }

    /// Segments that nothing needs from the next head on, whose checkpoint is of `position`, get their graves. What that head
    /// lists is needed whatever lives of it: its frames remove older ones.
    pub(crate) fn bury(&mut self, position: u64, host: &dyn Host) {
        if self.graves.is_full() {
            return;
        }
        let listed = self.listed.iter().filter(|(_, after)| *after > position).map(|(known, _)| known.id);
        let open = self.open.as_ref().map(|open| open.id);
        let needed: HashSet<ObjectId> = listed.chain(open).chain(self.under_way.ids()).collect();
        let died = self.next_sequence();
        let named = |written: u32| written > 0 && !host.makes(Mistake::FreesNamedRows);
        let rows = self.table.take_dead(|id, written| named(written) || needed.contains(&id));
        let dead = rows.into_iter().map(|row| Grave { id: row.id, born: row.born.min(died), died });
        self.graves.add_own(dead);
    }

    /// The same for map objects none of whose pages is needed.
    pub(crate) fn bury_maps(&mut self) {
        if self.graves.is_full() {
            return;
        }
        let died = self.next_sequence();
        let objects = &mut self.saved.objects;
        let dead = objects.values().filter(|object| object.live == 0);
        let dead: Vec<Grave> = dead.map(|o| Grave { id: o.id, born: o.born.min(died), died }).collect();
        dead.iter().for_each(|grave| _ = objects.remove(&grave.id));
        self.graves.add_own(dead.into_iter());
    }

    /// A page of a map object is not needed any more.
    pub(crate) fn forget(&mut self, page: ObjectRef) {
        if let Some(object) = self.saved.objects.get_mut(&page.id) {
            object.live = object.live.saturating_sub(page.len);
        }
    }

    /// The next checkpoint writes all pages that name objects.
    pub(crate) fn rewrite_pages(&mut self) {
        self.saved.rewrite = true;
        self.table.touch_all();
    }

    /// The next checkpoint writes everything that is in an object of another volume.
    pub(crate) fn rewrite_foreign(&mut self) {
        self.regions.touch_foreign();
        self.rewrite_pages();
    }

    /// Whether it names an object of another volume.
    pub(crate) fn names_foreign(&self) -> bool {
        let listed = self.listed.iter().any(|(known, _)| known.id.origin > 0);
        listed || self.census().any(|(id, _)| id.origin > 0)
    }

    /// Objects and rows with what lives of them, for those who compare.
    pub(crate) fn census(&self) -> impl Iterator<Item = (ObjectId, u32)> + '_ {
        let rows = self.table.rows().iter().flatten().map(|row| (row.id, row.live));
        rows.chain(self.saved.objects.values().map(|object| (object.id, object.live)))
    }

    /// Whether an object is part of the volume, or dead and not deleted.
    pub(crate) fn knows(&self, id: ObjectId) -> bool {
        self.table.of(id).is_some() || self.saved.objects.contains_key(&id) || self.graves.has(id)
    }

    /// How many segments there are of which nothing lives.
    pub(crate) fn dead_count(&self) -> usize {
        self.table.rows().iter().flatten().filter(|row| row.live == 0 && row.len > 0).count()
    }

    /// Stored segments that are worth emptying, the emptiest first, with their lengths: those of which less than half lives, or
    /// with `foreign` all of other volumes of which anything does.
    pub(crate) fn sparse(&self, foreign: bool) -> Vec<(ObjectId, u32)> {
        let busy: HashSet<ObjectId> = self.under_way.ids().chain(self.open.as_ref().map(|open| open.id)).collect();
        let wanted = |row: &&Row| match foreign {
            true => row.id.origin > 0,
            false => row.id.origin == 0 && row.live < row.total.div_ceil(2),
        };
        let rows = self.table.rows().iter().flatten().filter(wanted);
        let mut out: Vec<&Row> = rows.filter(|row| row.live > 0 && row.len > 0 && !busy.contains(&row.id)).collect();
        out.sort_by_key(|row| (u64::from(row.live) * 1024 / u64::from(row.total.max(1)), row.id));
        out.into_iter().map(|row| (row.id, row.len)).collect()
    }

    /// How many segments an attach would replay, and their bytes.
    pub(crate) fn listed(&self) -> (usize, u64) {
        (self.listed.len(), self.listed.iter().map(|(known, _)| u64::from(known.len)).sum())
    }

    /// Where blocks are, or which regions must be loaded before that is known.
    pub(crate) fn look_up(
        &mut self,
        first: u64,
        count: u64,
        out: &mut Vec<Found>,
    ) -> Result<Option<Missing>, RemoteError> {
        let end = first + count;
        let mut at = first;
        while at < end {
            let region = (at / REGION_BLOCKS) as u32;
            let base = u64::from(region) * REGION_BLOCKS;
            let stop = end.min(base + REGION_BLOCKS);
            let runs = match self.regions.loaded(region) {
                Ok(None) => {
                    push_zeros(out, at, stop);
                    at = stop;
                    continue;
                }
                Ok(Some(region)) => region,
                Err(missing) => return Ok(Some(missing)),
            };
            for run in runs.range((at - base) as u32, (stop - base) as u32) {
                let from = (base + u64::from(run.start)).max(at);
                let to = (base + u64::from(run.end())).min(stop);
                push_zeros(out, at, from);
                let skip = run.skip + (from - base - u64::from(run.start)) as u8;
                let source = source_of(&run, &self.table, self.open.as_ref(), &self.under_way)?;
                out.push(Found { first: from, blocks: to - from, skip, source });
                at = to;
            }
            push_zeros(out, at, stop);
            at = stop;
        }
        Ok(None)
    }

    /// Compares everything that is counted with what is there; for tests. Regions that are not in memory must have no page.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let mut live = std::collections::HashMap::new();
        for run in self.regions.all_runs() {
            *live.entry(run.row).or_insert(0u32) += u32::from(run.blocks);
        }
        for (n, row) in self.table.rows().iter().enumerate().filter_map(|(n, row)| Some((n as u32, row.as_ref()?))) {
            assert_eq!(row.live, live.remove(&n).unwrap_or(0), "live blocks of {}", row.id);
        }
        assert!(live.is_empty(), "runs of no row: {live:?}");
    }
}

/// How many blocks the frames of a segment have.
fn blocks_of(entries: &[Entry]) -> u32 {
    let blocks = entries.iter().map(|entry| match entry.change {
        Change::Data { blocks, .. } => u32::from(blocks),
        Change::Zeros { .. } | Change::Len { .. } => 0,
    });
    blocks.sum()
}

fn push_zeros(out: &mut Vec<Found>, from: u64, to: u64) {
    if from < to {
        out.push(Found { first: from, blocks: to - from, skip: 0, source: Source::Zeros });
    }
}

/// Where the frame of a run is.
fn source_of(
    run: &Run,
    table: &Table,
    open: Option<&OpenSegment>,
    under_way: &UnderWay,
) -> Result<Source, RemoteError> {
    let in_memory = match open.filter(|open| open.row == run.row) {
        Some(open) => open.piece(run.off).map(|piece| (open.id, piece)),
        None => under_way.of_row(run.row).and_then(|sealed| Some((sealed.known.id, sealed.piece(run.off)?))),
    };
    if let Some((id, piece)) = in_memory {
        return Ok(Source::Memory { id, off: run.off, piece });
    }
    let row = table.get(run.row).ok_or_else(|| no_row(run.row))?;
    Ok(Source::Stored { id: row.id, off: run.off, stored: run.stored })
}

fn no_row(row: u32) -> Corruption {
    Corruption::new("map", "row of a run", row, format!("one of the table, in pages of {TABLE_ROWS}"))
}

#[cfg(test)]
mod tests;

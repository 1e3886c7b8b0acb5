//! Checkpoints: the map is stored, so that opening the volume reads it instead of replaying everything that was written.
//!
//! Normal path, by the thread that has just published: (1) the position is taken, that of the first frame in no sealed
//! segment; (2) every region that differs from its page is loaded if need be, made into a page, and its page stored in a
//! map object; (3) then the pages of the index and of the segment table that changed, without the segments that nothing needs
//! from now on, which get their graves; (4) the pages of the graves, and the root; (5) a head is published with that root, and
//! with the segments that have frames behind the position.
//!
//! The claim is renewed in (2), while objects are stored. From (3) on no head may come in between: what dies with this checkpoint
//! gets the sequence of the next head.
//!
//! Changes go on meanwhile, so a page may have more than the position says: all of that is in segments and the tail that the
//! same head lists, and replaying a change twice, with all that follow it, ends as replaying it once. Counts of live blocks
//! agree since the table has those of the pages that are written (`state::table`), and a replay takes from a row what it
//! gives it again.
//!
//! A crash or an error before (5) leaves map objects that no head names. An error ends writing.
//! Memory: pages of one map object, and the regions they are of, until it is stored.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::RemoteError;
use crate::format::map::{INDEX_REGIONS, MapObject, Root, encode_graves, encode_index, encode_region, encode_table};
use crate::format::{ObjectId, ObjectRef, xxh64};
use crate::host::nonce;
use crate::publish::{Checkpoint, How, OnFailure, publish_now, renewing};
use crate::read::load;
use crate::shared::{Core, Published, add};
use crate::store::{Body, Cond, Deadline, put};

/// A map object is ended when it is longer, bytes.
const OBJECT_AIM: usize = 24 << 20;
/// A head whose list of segments is longer makes a checkpoint due, bytes of 40 each.
const SECTIONS_MAX: usize = 64 << 10;
/// How often a region is loaded to be written: others may make it be let go of in between.
const LOADS_MAX: u32 = 64;

/// Makes a checkpoint if opening would have to replay much, or if much of the map in memory is not stored.
pub(crate) fn checkpoint_if_due(core: &Core, published: &mut Published) -> Result<(), RemoteError> {
    let bounds = &core.options.bounds;
    let due = {
        let state = core.state.lock();
        let (count, bytes) = state.listed();
        count > bounds.replay_count_max.min(SECTIONS_MAX / 40)
            || bytes > bounds.replay_bytes_max
            || (state.regions.dirty_bytes() > bounds.map_bytes_max / 2 && count > 0)
    };
    if due { checkpoint(core, published, false) } else { Ok(()) }
}

/// A map object that is being put together.
struct Writer<'a> {
    core: &'a Core,
    published: &'a mut Published,
    /// Whether a head may be published that renews the claim.
    may_renew: bool,
    deadline: Deadline,
    position: u64,
    bytes: Vec<u8>,
    id: Option<ObjectId>,
    /// The regions whose pages are in it.
    regions: Vec<u32>,
    /// Pages that others have replaced.
    replaced: Vec<ObjectRef>,
}

/// Makes a checkpoint, right after a publish: until then nothing may be under way that could still replace the head.
pub(crate) fn checkpoint(core: &Core, published: &mut Published, release: bool) -> Result<(), RemoteError> {
    debug_assert!(published.given_up.is_empty(), "the next head has the next sequence");
    let deadline = core.deadline(core.options.bounds.flush_max);
    let position = core.state.lock().checkpoint_position();
    let mut writer = Writer {
        core,
        published,
        may_renew: true,
        deadline,
        position,
        bytes: Vec::new(),
        id: None,
        regions: Vec::new(),
        replaced: Vec::new(),
    };
    let mut changed = writer.write_regions()?;
    writer.store()?;
    writer.may_renew = false;
    {
        let mut state = core.state.lock();
        if std::mem::take(&mut state.saved.rewrite) {
            changed.extend(state.regions.with_pages());
        }
    }
    writer.write_index(&changed)?;
    writer.write_table()?;
    writer.store()?;
    writer.write_graves()?;
    let root = writer.write_root()?;
    let horizon = core.state.lock().graves.horizon();
    let how = How { release, checkpoint: Some(Checkpoint { root, position, horizon }), ..How::default() };
    publish_now(core, published, how, deadline)?;
    add(&core.counts.checkpoints, 1);
    core.state.lock().regions.evict(core.options.bounds.map_bytes_max);
    Ok(())
}

impl Writer<'_> {
    /// The object that pages go into.
    fn begin(&mut self) -> Result<ObjectId, RemoteError> {
        match self.id {
            Some(id) => Ok(id),
            None => {
                let id = ObjectId::map(self.core.epoch, self.core.state.lock().take_number()?);
                self.id = Some(id);
                Ok(id)
            }
        }
    }

    /// Writes the pages of all regions that differ from theirs; returns which those are.
    fn write_regions(&mut self) -> Result<BTreeSet<u32>, RemoteError> {
        let mut changed = BTreeSet::new();
        let (mut from, mut loads) = (0, 0);
        loop {
            let (id, position) = (self.begin()?, self.position);
            let core = self.core;
            let mut state = core.state.lock();
            let region = match state.regions.next_dirty(from) {
                None => return Ok(changed),
                Some((region, None)) => region,
                Some((_, Some(missing))) => {
                    drop(state);
                    loads += 1;
                    if loads > LOADS_MAX {
                        let what = format!("region {} does not stay in memory", missing.region);
                        return Err(RemoteError::Limit { what });
                    }
                    load(core, missing, self.deadline)?;
                    // Again: meanwhile it may have been let go of.
                    continue;
                }
            };
            let mut page = Vec::new();
            state.stage(region, |runs| {
                encode_region(&mut page, region, position, runs.all());
                ObjectRef { id, off: 0, len: 0, xxh: 0 }
            })?;
            drop(state);
            if !page.is_empty() {
                // Sealing and summing take their time.
                let at = place_page(core, &mut self.bytes, id, page);
                core.state.lock().regions.restage(region, at);
            }
            loads = 0;
            self.regions.push(region);
            changed.insert(region);
            if self.bytes.len() > OBJECT_AIM {
                self.store()?;
            }
            match region.checked_add(1) {
                Some(next) => from = next,
                None => return Ok(changed),
            }
        }
    }

    /// Stores the object; its regions have their new pages from now on.
    fn store(&mut self) -> Result<(), RemoteError> {
        let (bytes, regions) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.regions));
        let id = self.id.take();
        if let Some(id) = id.filter(|_| !bytes.is_empty()) {
            let key = id.key();
            let len = bytes.len() as u32;
            let (body, deadline, core) = (Body::from(bytes), self.deadline, self.core);
            let store = || put(&*core.store, &key, body.clone(), Cond::None, deadline);
            let stored = match self.may_renew {
                true => renewing(core, self.published, deadline, OnFailure::Fail, store)?,
                false => store(),
            };
            stored.map_err(|e| RemoteError::store("put", key, e))?;
            let mut state = self.core.state.lock();
            let born = state.next_sequence();
            state.saved.objects.insert(id, MapObject { id, len, live: len, born });
        }
        let mut state = self.core.state.lock();
        for region in regions {
            self.replaced.extend(state.regions.settle(region));
        }
        state.regions.evict(self.core.options.bounds.map_bytes_max);
        Ok(())
    }

    /// Writes the index pages of the regions that have other pages.
    fn write_index(&mut self, changed: &BTreeSet<u32>) -> Result<(), RemoteError> {
        let numbers: BTreeSet<u32> = changed.iter().map(|region| region / INDEX_REGIONS).collect();
        for number in numbers {
            let id = self.begin()?;
            let mut state = self.core.state.lock();
            let regions: Vec<(u32, ObjectRef)> = state.regions.pages_of(number * INDEX_REGIONS, INDEX_REGIONS);
            let before = match regions.is_empty() {
                true => state.saved.index.remove(&number),
                false => {
                    let position = self.position;
                    let page = append_page(self.core, &mut self.bytes, id, |bytes| {
                        encode_index(bytes, number, position, &regions)
                    });
                    state.saved.index.insert(number, page)
                }
            };
            self.replaced.extend(before);
            drop(state);
            self.store_if_long()?;
        }
        Ok(())
    }

    /// Writes the pages of the segment table that changed.
    fn write_table(&mut self) -> Result<(), RemoteError> {
        let dirty = {
            let mut state = self.core.state.lock();
            state.bury(self.position, &*self.core.options.host);
            state.table.take_dirty()
        };
        for number in dirty {
            let id = self.begin()?;
            let mut state = self.core.state.lock();
            let (rows, position) = (state.table.page(number), self.position);
            let page =
                append_page(self.core, &mut self.bytes, id, |bytes| encode_table(bytes, number, position, &rows));
            self.replaced.extend(state.saved.table.insert(number, page));
            drop(state);
            self.store_if_long()?;
        }
        Ok(())
    }

    fn store_if_long(&mut self) -> Result<(), RemoteError> {
        if self.bytes.len() > OBJECT_AIM { self.store() } else { Ok(()) }
    }

    /// Objects that no page of this checkpoint needs get their graves, those that were deleted lose theirs, and the pages of
    /// graves that changed are written.
    fn write_graves(&mut self) -> Result<(), RemoteError> {
        let id = self.begin()?;
        let mut state = self.core.state.lock();
        let old = state.saved.root;
        self.replaced.drain(..).chain(old).for_each(|page| state.forget(page));
        state.bury_maps();
        state.graves.drop_deleted();
        let mut numbers = BTreeSet::new();
        loop {
            // A page that is written again leaves the object that it was in, which may get a grave by that.
            let dirty = state.graves.take_dirty();
            if dirty.is_empty() {
                break;
            }
            let before: Vec<ObjectRef> = dirty.iter().filter_map(|n| state.saved.graves.remove(n)).collect();
            before.into_iter().for_each(|page| state.forget(page));
            state.bury_maps();
            numbers.extend(dirty);
        }
        for number in numbers {
            let graves = state.graves.page(number);
            if !graves.is_empty() {
                let (bytes, position) = (&mut self.bytes, self.position);
                let page = append_page(self.core, bytes, id, |bytes| encode_graves(bytes, number, position, &graves));
                state.saved.graves.insert(number, page);
            }
        }
        drop(state);
        self.store()
    }

    /// Writes the root, into an object of its own, so that the lengths of all others are known.
    fn write_root(&mut self) -> Result<ObjectRef, RemoteError> {
        let id = self.begin()?;
        let root = {
            let state = self.core.state.lock();
            let refs = |pages: &BTreeMap<u32, ObjectRef>| pages.iter().map(|(number, page)| (*number, *page)).collect();
            Root {
                device_len: state.device_len(),
                position: self.position,
                index: refs(&state.saved.index),
                table: refs(&state.saved.table),
                graves: refs(&state.saved.graves),
                objects: state.saved.objects.values().copied().collect(),
            }
        };
        let page = append_page(self.core, &mut self.bytes, id, |bytes| root.encode(bytes));
        self.store()?;
        Ok(page)
    }
}

/// Appends a page, and says where it is.
fn append_page(core: &Core, bytes: &mut Vec<u8>, id: ObjectId, encode: impl FnOnce(&mut Vec<u8>)) -> ObjectRef {
    let mut page = Vec::new();
    encode(&mut page);
    place_page(core, bytes, id, page)
}

/// The same for a page that is made.
fn place_page(core: &Core, bytes: &mut Vec<u8>, id: ObjectId, page: Vec<u8>) -> ObjectRef {
    let off = bytes.len();
    bytes.extend(core.coder.pack_page(page, id, off as u32, || nonce(&*core.options.host)));
    let page = &bytes[off..];
    ObjectRef { id, off: off as u32, len: page.len() as u32, xxh: xxh64(page) }
}

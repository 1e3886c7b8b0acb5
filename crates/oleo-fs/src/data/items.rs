//! The extent map on top of an inode's items.
//!
//! Where the inode knows that nothing reaches so far ([`Items::extents_end`]), nobody looks into the tree.

use std::ops::ControlFlow;

use oleo_format::ItemType;
use oleo_txn::Handle;

use crate::FsError;
use crate::data::map::{Extent, ExtentMap, ExtentMapMut};
use crate::object::{Direction, Items, ItemsMut, WriteGuard};

/// The extent items of an inode that is locked for reading.
pub(crate) struct MapOf<'a, I: Items + ?Sized> {
    pub items: &'a I,
    pub sector: u64,
}

/// The extent items of an inode that is locked for changing.
pub(crate) struct MapMutOf<'a, 'g> {
    pub guard: &'a mut WriteGuard<'g>,
    pub handle: &'a Handle<'a>,
    pub sector: u64,
}

fn last_of(items: &(impl Items + ?Sized), at_or_below: u64, sector: u64) -> Result<Option<(u64, Extent)>, FsError> {
    if items.extents_end() == Some(0) {
        return Ok(None);
    }
    let mut found = Ok(None);
    items.walk(ItemType::EXTENT_DATA, 0, at_or_below, Direction::Down, &mut |at, bytes| {
        found = Extent::parse(at, bytes, sector).map(|e| Some((at, e)));
        ControlFlow::Break(())
    })?;
    found
}

fn batch_of(
    items: &(impl Items + ?Sized),
    from: u64,
    to_incl: u64,
    limit: usize,
    sector: u64,
) -> Result<Vec<(u64, Extent)>, FsError> {
    let mut found = Vec::new();
    if items.extents_end().is_some_and(|end| end <= from) {
        return Ok(found);
    }
    let mut failed = None;
    items.walk(ItemType::EXTENT_DATA, from, to_incl, Direction::Up, &mut |at, bytes| {
        match Extent::parse(at, bytes, sector) {
            Ok(extent) => found.push((at, extent)),
            Err(e) => failed = Some(e),
        }
        if failed.is_some() || found.len() >= limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    failed.map_or(Ok(found), Err)
}

impl<I: Items + ?Sized> ExtentMap for MapOf<'_, I> {
    fn sector(&self) -> u64 {
        self.sector
    }
    fn last(&self, at_or_below: u64) -> Result<Option<(u64, Extent)>, FsError> {
        last_of(self.items, at_or_below, self.sector)
    }
    fn batch(&self, from: u64, to_incl: u64, limit: usize) -> Result<Vec<(u64, Extent)>, FsError> {
        batch_of(self.items, from, to_incl, limit, self.sector)
    }
}

impl ExtentMap for MapMutOf<'_, '_> {
    fn sector(&self) -> u64 {
        self.sector
    }
    fn last(&self, at_or_below: u64) -> Result<Option<(u64, Extent)>, FsError> {
        last_of(&*self.guard, at_or_below, self.sector)
    }
    fn batch(&self, from: u64, to_incl: u64, limit: usize) -> Result<Vec<(u64, Extent)>, FsError> {
        batch_of(&*self.guard, from, to_incl, limit, self.sector)
    }
}

impl ExtentMapMut for MapMutOf<'_, '_> {
    fn put(&mut self, at: u64, extent: Extent) {
        let known = self.guard.state().extents_end;
        self.guard.put(self.handle, ItemType::EXTENT_DATA, at, extent.encode());
        // An empty inline extent is an item, too.
        self.guard.state_mut().extents_end = known.map(|end| end.max(at + extent.len(self.sector).max(1)));
    }
    fn delete(&mut self, at: u64) {
        self.guard.delete(self.handle, ItemType::EXTENT_DATA, at);
    }
    fn note_empty(&mut self, from: u64, to: u64) {
        self.guard.note_empty(from, to);
    }
}

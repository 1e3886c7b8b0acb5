//! What operations see of an object: its items and fields, to be read and changed while it is locked.

use std::ops::ControlFlow;

use oleo_format::{Generation, ItemType};
use oleo_tree::ItemBytes;
use oleo_txn::{Handle, Staged};

use crate::FsError;
use crate::object::delta::{Direction, Seen, Value, Visit};
use crate::object::fields::InodeFields;

/// One inode's items, its lock held.
pub trait Items {
    /// The item at `offset`, or `None`.
    fn get(&self, t: ItemType, offset: u64) -> Result<Option<Value>, FsError>;

    /// Calls `seen` once with the item at `offset`, or without. Cheaper than [`get`](Self::get) for who does not keep it.
    fn see(&self, t: ItemType, offset: u64, seen: &mut Seen<'_>) -> Result<(), FsError>;

    /// Calls `visit` for the items of type `t` from `from` to `to_incl` until it breaks; upwards or downwards.
    fn walk(
        &self,
        t: ItemType,
        from: u64,
        to_incl: u64,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), FsError>;

    /// The inode item's fields as they stand.
    fn fields(&self) -> &InodeFields;

    /// No extent item begins or reaches beyond this offset; `None`: not known.
    fn extents_end(&self) -> Option<u64>;

    /// At most `limit` items of type `t` from `from` to `to_incl`, rising.
    fn range_limit(&self, t: ItemType, from: u64, to_incl: u64, limit: usize) -> Result<Vec<(u64, Value)>, FsError> {
        let mut found = Vec::new();
        if limit == 0 {
            return Ok(found);
        }
        self.walk(t, from, to_incl, Direction::Up, &mut |offset, bytes| {
            found.push((offset, Value::Owned(bytes.into())));
            if found.len() >= limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(found)
    }

    /// The items of type `t` from `from` to `to_incl`, rising.
    fn range(&self, t: ItemType, from: u64, to_incl: u64) -> Result<Vec<(u64, Value)>, FsError> {
        self.range_limit(t, from, to_incl, usize::MAX)
    }

    /// The last item of type `t` at or below an offset.
    fn last(&self, t: ItemType, at_or_below: u64) -> Result<Option<(u64, Value)>, FsError> {
        let mut found = None;
        self.walk(t, 0, at_or_below, Direction::Down, &mut |offset, bytes| {
            found = Some((offset, Value::Owned(bytes.into())));
            ControlFlow::Break(())
        })?;
        Ok(found)
    }
}

impl dyn Items + '_ {
    /// What `f` makes of the item at `offset`, or of its absence.
    pub(crate) fn with<R>(
        &self,
        t: ItemType,
        offset: u64,
        f: impl FnOnce(Option<&[u8]>) -> Result<R, FsError>,
    ) -> Result<R, FsError> {
        let (mut f, mut made) = (Some(f), None);
        self.see(t, offset, &mut |item| made = f.take().map(|f| f(item)))?;
        made.expect("a look-up calls back once")
    }
}

/// Proof of being inside the open transaction: an operation's handle, or a stage.
pub trait Joined {
    /// The generation that changes made now will be committed under.
    fn generation(&self) -> Generation;
}

impl Joined for Handle<'_> {
    fn generation(&self) -> Generation {
        Handle::generation(self)
    }
}

impl Joined for Staged<'_> {
    fn generation(&self) -> Generation {
        Staged::generation(self)
    }
}

/// One inode's items, locked for changing.
pub trait ItemsMut: Items {
    /// Sets an item. The handle says which transaction the change belongs to.
    fn put(&mut self, h: &dyn Joined, t: ItemType, offset: u64, v: ItemBytes);
    /// Removes an item; one that is not there stays so.
    fn delete(&mut self, h: &dyn Joined, t: ItemType, offset: u64);
    /// The inode item's fields, to be changed.
    fn fields_mut(&mut self, h: &dyn Joined) -> &mut InodeFields;
}

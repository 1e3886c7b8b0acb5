//! A second look at where an inode believes that its extents end ([`InodeState::extents_end`]), in debug builds.
//!
//! Reads of the extent map go by that and do not ask the tree. A bound that is too low would hide extents: from whoever reads, and from whoever puts
//! others in their place or deletes the file. So it is compared with the last extent item each time somebody goes by it. Nothing is read for that, and nothing kept:
//! where blocks of the tree are not in memory, there is nothing to compare with, nor where the last items are many that are deleted.

use std::ops::ControlFlow;

use oleo_format::{FileExtent, ItemType, Key};

use crate::FsError;
use crate::object::delta::{Base, BaseVisit, Direction, Layers, Seen, Slot, Value};
use crate::object::inode::{Inode, InodeState};

/// Items of the tree that are looked at.
const LOOKED_AT_MAX: usize = 64;

/// The items of one object in a tree, as far as they are in memory.
struct InMemory<'a>(&'a Inode);

impl Base for InMemory<'_> {
    fn get(&self, _: Slot) -> Result<Option<Value>, FsError> {
        Ok(None)
    }

    fn see(&self, _: Slot, seen: &mut Seen<'_>) -> Result<(), FsError> {
        seen(None);
        Ok(())
    }

    /// From the last item down: nothing else is asked for here.
    fn walk(
        &self,
        t: ItemType,
        from: u64,
        to_incl: u64,
        direction: Direction,
        visit: &mut BaseVisit<'_>,
    ) -> Result<(), FsError> {
        debug_assert!(matches!(direction, Direction::Down), "only the last is asked for");
        let engine = self.0.core().engine();
        let _look = engine.look();
        let Some(root) = engine.root(self.0.tree())? else { return Ok(()) };
        let low = self.0.key(t, from);
        let mut next = Some(to_incl);
        let mut left = LOOKED_AT_MAX;
        while let Some(at_or_below) = next
            && let Some(Some(item)) = engine.blocks().last_in_memory(&root, &self.0.key(t, at_or_below))
        {
            left = left.checked_sub(1).ok_or(FsError::NotFound)?;
            let key: Key = item.key();
            if key < low || visit(key.offset, &item).is_break() {
                break;
            }
            next = key.offset.checked_sub(1);
        }
        Ok(())
    }

    fn slots(&self, _: &mut dyn FnMut(Slot) -> ControlFlow<()>) -> Result<(), FsError> {
        Ok(())
    }
}

/// Where an extent ends; an inline one stands for whole sectors, and is an item even if it is empty. `None`: that is not what an extent looks like.
fn end_of(at: u64, item: &[u8], sector: u64) -> Option<u64> {
    let len = match FileExtent::parse(item).ok()? {
        FileExtent::Inline { ram_bytes, .. } => ram_bytes.0.checked_next_multiple_of(sector)?.max(1),
        FileExtent::Regular(extent) | FileExtent::Prealloc(extent) => extent.num_bytes.0,
    };
    at.checked_add(len)
}

/// Compares.
///
/// # Panics
/// There is an extent behind the bound.
pub(super) fn compare(inode: &Inode, state: &InodeState) {
    let Some(believed) = state.extents_end.filter(|_| !state.gone && !inode.subvol().is_deleted()) else { return };
    let base = InMemory(inode);
    let layers = Layers {
        open: &state.open,
        frozen: state.frozen.as_deref().map(|frozen| &frozen.items),
        base: (!state.fresh).then_some(&base as &dyn Base),
        empty: None,
    };
    let sector = u64::from(inode.core().engine().sectorsize());
    let mut last = None;
    let walked = layers.walk(ItemType::EXTENT_DATA, 0, u64::MAX, Direction::Down, &mut |at, item| {
        last = end_of(at, item, sector);
        ControlFlow::Break(())
    });
    if walked.is_ok() {
        let end = last.unwrap_or(0);
        assert!(end <= believed, "{inode:?}: its extents reach to {end}, and are believed to end at {believed}");
    }
}

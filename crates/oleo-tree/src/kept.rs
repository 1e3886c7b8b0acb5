//! Blocks that a thread keeps, so that a look-up of what is in memory writes to no line that other threads use.
//!
//! The cache of all threads costs four such stores for each block: its lock and the count of the block. So each thread keeps the blocks that
//! it used last, some upper ones and some leaves. A look-up takes a block out of its place (`Blocks::lend`) and puts it back when it has
//! done with it ([`Lent`]): nothing is counted. Who needs the same block in between, on the same thread, gets it from the cache.
//!
//! Invariants: what is kept is what the cache would return. A block is kept under the number of its `Blocks`, which changes whenever the cache
//! may come to have another block of the same address and generation, or is to be empty (`publish`, `forget_all`); so what was kept
//! before is not found any more. Unwritten blocks are not kept, since they hold others.
//! Memory: [`PLACES`] times two blocks for each thread, whatever the cache may hold, until the thread uses other blocks or ends.
//! Locks: none. What a thread uses often is looked up in the cache now and then, so that it stays there, too.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;

use oleo_format::{Generation, Logical};

use crate::Node;

/// Places for leaves, and as many for blocks above them; a power of two. With the usual block size a megabyte in all.
const PLACES: usize = 32;
/// Uses of other blocks that one which is not used itself survives in its place.
const LIVES: u8 = 4;
/// Uses of a kept block between two looks into the cache.
const USES: u32 = 256;

/// Which block of which cache.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Which {
    blocks: u64,
    logical: Logical,
    generation: Generation,
}

struct Place {
    which: Which,
    node: Option<Arc<Node>>,
    lives: u8,
    uses: u32,
}

impl Place {
    const EMPTY: Place = Place {
        which: Which { blocks: 0, logical: Logical(0), generation: Generation(0) },
        node: None,
        lives: 0,
        uses: 0,
    };
}

type Places = [[Place; PLACES]; 2];

thread_local! {
    static KEPT: RefCell<Places> = const { RefCell::new([const { [const { Place::EMPTY }; PLACES] }; 2]) };
}

/// With the place of a block; nothing while the thread ends.
fn with_place<R>(which: Which, level: u8, f: impl FnOnce(&mut Place) -> R) -> Option<R> {
    let at = (which.logical.0 >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59;
    let row = usize::from(level > 0);
    KEPT.try_with(|kept| f(&mut kept.borrow_mut()[row][at as usize % PLACES])).ok()
}

/// A block that a look-up uses. It goes back to where this thread keeps it.
pub(crate) struct Lent {
    /// `None` only while it is dropped.
    node: Option<Arc<Node>>,
    /// The number of the blocks when it was lent; `None`: it is not to be kept.
    blocks: Option<u64>,
}

impl Lent {
    /// A block that is not kept.
    pub(crate) fn unkept(node: Arc<Node>) -> Lent {
        Lent { node: Some(node), blocks: None }
    }

    /// One from the cache.
    pub(crate) fn cached(node: Arc<Node>, blocks: u64) -> Lent {
        Lent { node: Some(node), blocks: Some(blocks) }
    }
}

impl Deref for Lent {
    type Target = Arc<Node>;
    #[inline]
    fn deref(&self) -> &Arc<Node> {
        self.node.as_ref().expect("it is there until it is dropped")
    }
}

impl std::fmt::Debug for Lent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(node), Some(blocks)) = (self.node.take(), self.blocks) {
            keep(blocks, node);
        }
    }
}

/// What [`take`] has found.
pub(crate) struct Kept {
    pub(crate) node: Arc<Node>,
    /// The cache is to be looked into, so that it keeps the block.
    pub(crate) is_due: bool,
}

/// Takes a block out of its place, if this thread keeps it.
pub(crate) fn take(blocks: u64, logical: Logical, generation: Generation, level: u8) -> Option<Kept> {
    let which = Which { blocks, logical, generation };
    with_place(which, level, |place| {
        if place.which != which {
            return None;
        }
        let node = place.node.take()?;
        place.lives = LIVES;
        place.uses = place.uses.wrapping_add(1);
        Some(Kept { node, is_due: place.uses.is_multiple_of(USES) })
    })?
}

/// Keeps a block, or gives it back to its place.
fn keep(blocks: u64, node: Arc<Node>) {
    let which = Which { blocks, logical: node.logical(), generation: node.generation() };
    let level = node.level();
    let mut node = Some(node);
    // What is not kept is dropped outside: that may free it.
    let _gone = with_place(which, level, |place| {
        if place.which == which {
            // Another use of it on this thread may have put it back.
            return if place.node.is_some() { node.take() } else { std::mem::replace(&mut place.node, node.take()) };
        }
        if place.which.blocks == blocks && place.lives > 0 {
            place.lives -= 1;
            return node.take();
        }
        place.which = which;
        (place.lives, place.uses) = (1, 0);
        std::mem::replace(&mut place.node, node.take())
    });
}

/// How many blocks this thread keeps under a number.
#[cfg(test)]
pub(crate) fn count(blocks: u64) -> usize {
    let is_of = |place: &&Place| place.which.blocks == blocks && place.node.is_some();
    KEPT.with_borrow(|kept| kept.iter().flatten().filter(is_of).count())
}

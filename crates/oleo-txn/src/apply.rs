//! Applying a sorted batch to one tree in the open transaction: what `oleo-tree` needs to know for it comes from here.

use std::sync::atomic::Ordering;

use oleo_format::{BlockHead, Generation, HeaderFlags, Logical, TreeId};
use oleo_space::Kind;
use oleo_tree::{ApplyEnv, BlockAlloc, Change, ExtentInfo, ExtentState, TreeError};

use crate::TxnError;
use crate::engine::Inner;
use crate::extents::stored_state;
use crate::trees::TreeState;

/// Allocates tree blocks of one kind.
struct KindAlloc<'a> {
    inner: &'a Inner,
    kind: Kind,
}

impl BlockAlloc for KindAlloc<'_> {
    fn alloc(&self, count: usize, out: &mut Vec<Logical>) -> Result<(), TreeError> {
        let inner = self.inner;
        let hold = if self.kind == Kind::Metadata { inner.metadata_reserve.frozen() } else { None };
        if let Some(hold) = &hold {
            let beyond = (count as u64).saturating_sub(hold.left().0 / u64::from(inner.rules.nodesize));
            inner.overdrawn.fetch_add(beyond, Ordering::Relaxed);
        }
        inner.alloc_blocks_from(hold.as_deref(), self.kind, count, out).map_err(TreeError::outside)
    }
}

/// Counts and flags of blocks that may be shared: the extent tree as it is now, plus the ledger.
struct States<'a>(&'a Inner);

impl ExtentInfo for States<'_> {
    fn lookup(&self, blocks: &[(Logical, u8)]) -> Result<Vec<ExtentState>, TreeError> {
        let inner = self.0;
        // With a tree of block groups nobody may have looked at the extent tree before.
        let root = inner.tree(TreeId::EXTENT).map_err(TreeError::outside)?;
        let mut cursor = inner.blocks.cursor(&root.root);
        let mut out = Vec::with_capacity(blocks.len());
        for (at, _) in blocks {
            let stored = stored_state(&mut cursor, *at).map_err(TreeError::outside)?.unwrap_or((0, false));
            let pending = inner.ledger.pending(*at);
            let refs = i128::from(stored.0) + i128::from(pending.refs);
            out.push(ExtentState {
                refs: u64::try_from(refs).unwrap_or(0),
                full_backref: stored.1 || pending.full_backref,
            });
        }
        Ok(out)
    }
}

impl Inner {
    /// Applies a batch to one tree and remembers its new root.
    pub(crate) fn apply(&self, tree: TreeId, batch: &[Change], generation: Generation) -> Result<(), TxnError> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut state = self.tree(tree)?;
        if tree.is_subvol() && state.key_offset == generation.0 {
            // A snapshot that changes in the transaction that makes it: its own blocks must be younger than its making, or
            // its deletion takes them for the source's.
            state.key_offset = generation.0 - 1;
        }
        let root = self.with_env(&state, tree, generation, |env| self.blocks.apply(&state.root, batch, env))?;
        self.trees.set(TreeState { root, changed: true, ..state });
        Ok(())
    }

    pub(crate) fn with_env<R>(
        &self,
        state: &TreeState,
        owner: TreeId,
        generation: Generation,
        f: impl FnOnce(&ApplyEnv<'_>) -> Result<R, TreeError>,
    ) -> Result<R, TxnError> {
        let kind = if owner == TreeId::CHUNK { Kind::System } else { Kind::Metadata };
        let head = BlockHead {
            logical: Logical(0),
            generation,
            owner,
            level: 0,
            flags: HeaderFlags::WRITTEN,
            fsid: self.rules.metadata_uuid,
            chunk_tree_uuid: self.rules.chunk_tree_uuid,
        };
        let env = ApplyEnv {
            generation,
            owner,
            last_snapshot: state.last_snapshot(),
            dirty: &self.dirty,
            ledger: &self.ledger,
            alloc: &KindAlloc { inner: self, kind },
            extents: &States(self),
            head: &head,
            threads: true,
        };
        Ok(f(&env)?)
    }
}

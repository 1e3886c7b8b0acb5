//! What the kernel leaves when its relocation is cut short, brought to order when a volume is opened for writing.
//!
//! The kernel moves blocks in *relocation trees*: snapshots of subvolumes whose blocks it copies and swaps with those of the
//! subvolume bit by bit. However far it came, every committed state counts each reference: a relocation tree is one more tree that
//! shares blocks with a subvolume, so it can be taken apart like a deleted snapshot, and nothing that a subvolume has is lost. What
//! is not moved then can be moved again. It copies data into files of a tree made for that, which are orphans: these go too.
//!
//! Facts of the format: the root items of relocation trees have the subvolume's number as the offset of their keys. The
//! root block of one is referred to by its own address. Every block that is its alone refers to others by its address. The
//! progress in a root item says how far the tree is dropped if the item has no references left; else how far the swapping had
//! come, which is no matter here.
//!
//! Crash: between steps the root item has the progress; nothing else is special.

use oleo_format::{Generation, ItemType, Key, TreeId};
use oleo_tree::{Change, DropPlan, DropProgress, DropStep};

use crate::TxnError;
use crate::engine::Engine;
use crate::staged::Staged;
use crate::trees::TreeState;

/// Blocks looked at in one step.
const STEP_BLOCKS: usize = 4096;
/// Items deleted in one step.
const STEP_ITEMS: usize = 4096;

impl Engine {
    /// Takes away what a relocation of the kernel's has left, if it was cut short. Done before anything else is changed, after
    /// the log was applied; returns whether there was anything.
    pub fn recover_relocation(&self) -> Result<bool, TxnError> {
        if self.0.writable().is_err() {
            return Ok(false);
        }
        let mut any = false;
        while let Some((key, state)) = self.some_reloc_tree()? {
            any = true;
            self.stage(|staged| staged.drop_reloc_step(key, state))?;
            self.commit()?;
        }
        while self.has_reloc_orphan()? {
            any = true;
            self.stage(|staged| staged.drop_reloc_orphan())?;
            self.commit()?;
        }
        Ok(any)
    }

    fn some_reloc_tree(&self) -> Result<Option<(Key, TreeState)>, TxnError> {
        let _reader = self.reader();
        let root = self.root(TreeId::ROOT)?.ok_or(TxnError::NoTree(TreeId::ROOT))?;
        let mut cursor = self.0.blocks.cursor(&root);
        if !cursor.seek(&Key::new(TreeId::TREE_RELOC.0, ItemType::ROOT_ITEM, 0))? {
            return Ok(None);
        }
        let Some((key, item)) = cursor.current() else { return Ok(None) };
        if key.objectid != TreeId::TREE_RELOC.0 || key.item_type != ItemType::ROOT_ITEM {
            return Ok(None);
        }
        Ok(Some((key, TreeState::of(TreeId::TREE_RELOC, &key, item)?)))
    }

    fn has_reloc_orphan(&self) -> Result<bool, TxnError> {
        let _reader = self.reader();
        let Some(root) = self.root(TreeId::DATA_RELOC)? else { return Ok(false) };
        let mut cursor = self.0.blocks.cursor(&root);
        let there = cursor.seek(&Key::orphan(0))?;
        Ok(there && cursor.key().is_some_and(is_orphan))
    }
}

fn is_orphan(key: Key) -> bool {
    key.objectid == Key::ORPHAN && key.item_type == ItemType::ORPHAN_ITEM
}

impl Staged<'_> {
    fn drop_reloc_step(&mut self, key: Key, state: TreeState) -> Result<(), TxnError> {
        let (inner, generation) = (self.inner(), self.generation());
        let Some(mut item) = state.item else { return Err(TxnError::NoTree(TreeId::TREE_RELOC)) };
        let begun = item.refs.get() == 0;
        let from = Key::from(item.drop_progress);
        let from = (begun && from != Key::MIN).then_some(DropProgress {
            key: from,
            level: item.drop_level,
            backref_conversion: None,
        });
        let plan = DropPlan { created: Generation(0), from, budget_blocks: STEP_BLOCKS, full_root: true };
        let step = inner
            .with_env(&state, TreeId::TREE_RELOC, generation, |env| inner.blocks.drop_tree(&state.root, &plan, env))
            .map_err(|e| inner.poison(e))?;
        let change = match step {
            DropStep::Done => Change::delete(key),
            DropStep::More(progress) => {
                item.refs.set(0);
                item.drop_progress = progress.key.into();
                item.drop_level = progress.level;
                Change::put(key, item.encode())
            }
        };
        self.put(TreeId::ROOT, &[change])
    }

    fn drop_reloc_orphan(&mut self) -> Result<(), TxnError> {
        let inner = self.inner();
        let root = self.root(TreeId::DATA_RELOC)?;
        let mut cursor = inner.blocks.cursor(&root);
        if !cursor.seek(&Key::orphan(0))? {
            return Ok(());
        }
        let Some(orphan) = cursor.key().filter(|key| is_orphan(*key)) else { return Ok(()) };
        let mut changes = Vec::new();
        let mut more = cursor.seek(&Key::new(orphan.offset, ItemType(0), 0))?;
        while more && changes.len() < STEP_ITEMS {
            let Some(key) = cursor.key().filter(|key| key.objectid == orphan.offset) else { break };
            changes.push(Change::delete(key));
            more = cursor.next()?;
        }
        if changes.len() < STEP_ITEMS {
            changes.push(Change::delete(orphan));
        }
        changes.sort_unstable_by_key(|change| change.key);
        self.put(TreeId::DATA_RELOC, &changes)
    }
}

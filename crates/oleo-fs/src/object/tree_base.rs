//! One object's items in a tree: the layer below its deltas.

use std::ops::ControlFlow;

use oleo_format::{ItemType, Key, TreeId};
use oleo_tree::Cursor;

use crate::FsError;
use crate::object::Core;
use crate::object::delta::{Base, BaseVisit, Direction, NEAR, Seen, Slot, Value};

/// The items of one object in a tree, at the newest root when it is asked.
pub(crate) struct TreeBase<'a> {
    pub(crate) core: &'a Core,
    pub(crate) tree: TreeId,
    pub(crate) objectid: u64,
}

impl Base for TreeBase<'_> {
    fn get(&self, slot: Slot) -> Result<Option<Value>, FsError> {
        let _look = self.core.engine.look();
        let Some(root) = self.core.engine.root(self.tree)? else { return Ok(None) };
        let key = Key::new(self.objectid, slot.0, slot.1);
        Ok(self.core.engine.blocks().get(&root, &key)?.map(Value::InTree))
    }

    fn see(&self, slot: Slot, seen: &mut Seen<'_>) -> Result<(), FsError> {
        let _look = self.core.engine.look();
        let Some(root) = self.core.engine.root(self.tree)? else {
            seen(None);
            return Ok(());
        };
        Ok(self.core.engine.blocks().get_with(&root, &Key::new(self.objectid, slot.0, slot.1), seen)?)
    }

    fn walk(
        &self,
        t: ItemType,
        from: u64,
        to_incl: u64,
        direction: Direction,
        visit: &mut BaseVisit<'_>,
    ) -> Result<(), FsError> {
        let _look = self.core.engine.look();
        let Some(root) = self.core.engine.root(self.tree)? else { return Ok(()) };
        let (low, high) = (Key::new(self.objectid, t, from), Key::new(self.objectid, t, to_incl));
        let mut cursor = self.core.engine.blocks().cursor(&root);
        match direction {
            Direction::Up => cursor.seek(&low)?,
            Direction::Down => cursor.seek_back(&high)?,
        };
        while let Some((key, bytes)) = cursor.current() {
            if key < low || key > high {
                break;
            }
            let ControlFlow::Continue(past) = visit(key.offset, bytes) else { break };
            let step = |cursor: &mut Cursor<'_>| match direction {
                Direction::Up => cursor.next(),
                Direction::Down => cursor.prev(),
            };
            step(&mut cursor)?;
            let Some(past) = past else { continue };
            let past = Key::new(self.objectid, t, past);
            let is_before = |cursor: &Cursor<'_>| {
                cursor.key().is_some_and(|key| match direction {
                    Direction::Up => key < past,
                    Direction::Down => key > past,
                })
            };
            for _ in 1..NEAR {
                if is_before(&cursor) {
                    step(&mut cursor)?;
                }
            }
            if is_before(&cursor) {
                match direction {
                    Direction::Up => cursor.seek(&past)?,
                    Direction::Down => cursor.seek_back(&past)?,
                };
            }
        }
        Ok(())
    }

    fn slots(&self, visit: &mut dyn FnMut(Slot) -> ControlFlow<()>) -> Result<(), FsError> {
        let _look = self.core.engine.look();
        let Some(root) = self.core.engine.root(self.tree)? else { return Ok(()) };
        let mut cursor = self.core.engine.blocks().cursor(&root);
        cursor.seek(&Key::new(self.objectid, ItemType(0), 0))?;
        while let Some(key) = cursor.key() {
            if key.objectid != self.objectid || visit((key.item_type, key.offset)).is_break() {
                break;
            }
            cursor.next()?;
        }
        Ok(())
    }
}

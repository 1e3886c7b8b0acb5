//! The difference of two trees, inode by inode.
//!
//! Normal path: (1) [`walk`] goes through the difference of parent and subvolume (or, without a parent, all of the
//! subvolume) in the order of keys; (2) items of one inode are gathered into a [`Head`] until its extents begin, which
//! come last; (3) the [`InodeVisitor`] gets the head, each extent item that differs, and the end of the inode.
//!
//! An inode number whose generation differs is another inode: the old one is reported as gone, the new one as new, with
//! all its items and not only those that differ. Inodes without names (deleted while open) are ignored.
//!
//! Memory: the items of one inode, without its extents.

use std::ops::ControlFlow;

use oleo_format::{DirEntryRef, Ino, InodeExtrefEntryRef, InodeRefEntryRef, ItemType, Key, dir_hash};
use oleo_fs::InodeFields;
use oleo_tree::{Blocks, Diff, TreeRoot};

use super::SendError;

/// A name: directory and entry.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Name {
    pub dir: u64,
    pub name: Box<[u8]>,
}

/// An attribute's name and value.
pub(super) type Xattr = (Vec<u8>, Vec<u8>);

/// The parent, if there is one, and the subvolume.
#[derive(Clone)]
pub(super) struct Sides<'e> {
    pub blocks: &'e Blocks,
    pub old: Option<TreeRoot>,
    pub new: TreeRoot,
}

/// Items of one side.
#[derive(Default, Debug)]
pub(super) struct Part {
    pub names: Vec<Name>,
    pub xattrs: Vec<Xattr>,
}

/// An inode that is new or differs. For a new one `new` has all names and attributes, otherwise both sides have those of the
/// items that differ.
#[derive(Debug)]
pub(super) struct Head {
    pub ino: u64,
    /// The parent's inode, if it is the same one.
    pub before: Option<InodeFields>,
    pub now: InodeFields,
    pub old: Part,
    pub new: Part,
}

/// Receives the difference.
pub(super) trait InodeVisitor {
    /// The parent has an inode that the subvolume has not.
    fn gone(&mut self, _ino: u64, _fields: &InodeFields, _names: Vec<Name>) -> Result<(), SendError> {
        Ok(())
    }
    /// An inode number means one inode in the parent and another in the subvolume; `gone` and `head` are called, too.
    fn replaced(&mut self, _ino: u64) {}
    /// An inode; whether its extents matter.
    fn head(&mut self, head: Head) -> Result<bool, SendError>;
    /// An extent item that differs, at a position in the file.
    fn extent(&mut self, _at: u64, _old: Option<&[u8]>, _new: Option<&[u8]>) -> Result<(), SendError> {
        Ok(())
    }
    /// The end of an inode whose extents matter.
    fn end(&mut self) -> Result<(), SendError> {
        Ok(())
    }
}

/// Tells all that differs.
pub(super) fn walk(sides: &Sides<'_>, visitor: &mut dyn InodeVisitor) -> Result<(), SendError> {
    let mut gather = Gather::new(sides, visitor);
    let first = Key::new(Ino::ROOT_DIR.0, ItemType(0), 0);
    let last = Key::new(Ino::LAST.0, ItemType(u8::MAX), u64::MAX);
    match &sides.old {
        None => sides.blocks.scan(&sides.new, first, last, |key, item| {
            gather.item(*key, None, Some(item)).map(|()| ControlFlow::Continue(()))
        })?,
        Some(old) => sides.blocks.diff(old, &sides.new, |diff| {
            let (key, old, new) = match diff {
                Diff::OnlyA { key, a } => (key, Some(a), None),
                Diff::OnlyB { key, b } => (key, None, Some(b)),
                Diff::Changed { key, a, b } => (key, Some(a), Some(b)),
            };
            if key >= first && key <= last {
                gather.item(key, old, new)?;
            }
            Ok::<_, SendError>(ControlFlow::Continue(()))
        })?,
    }
    gather.finish()
}

/// The inode item of a tree, if it is there.
pub(super) fn fields(blocks: &Blocks, root: &TreeRoot, ino: u64) -> Result<Option<InodeFields>, SendError> {
    let key = Key::new(ino, ItemType::INODE_ITEM, 0);
    let item = blocks.get(root, &key)?;
    item.map(|item| InodeFields::parse(&item, key)).transpose().map_err(SendError::from)
}

/// One attribute of an inode in a tree.
pub(super) fn xattr(blocks: &Blocks, root: &TreeRoot, ino: u64, name: &[u8]) -> Result<Option<Vec<u8>>, SendError> {
    let key = Key::new(ino, ItemType::XATTR_ITEM, u64::from(dir_hash(name)));
    let Some(item) = blocks.get(root, &key)? else { return Ok(None) };
    for entry in DirEntryRef::iter(&item) {
        let entry = entry?;
        if entry.name == name {
            return Ok(Some(entry.data.to_vec()));
        }
    }
    Ok(None)
}

/// The names and attributes of an inode in a tree.
pub(super) fn part(blocks: &Blocks, root: &TreeRoot, ino: u64) -> Result<Part, SendError> {
    let mut part = Part::default();
    let (from, to) = (Key::new(ino, ItemType::INODE_REF, 0), Key::new(ino, ItemType::XATTR_ITEM, u64::MAX));
    blocks.scan(root, from, to, |key, item| {
        part.add(key, item)?;
        Ok::<_, SendError>(ControlFlow::Continue(()))
    })?;
    Ok(part)
}

impl Part {
    fn add(&mut self, key: &Key, item: &[u8]) -> Result<(), SendError> {
        match key.item_type {
            ItemType::INODE_REF => {
                for entry in InodeRefEntryRef::iter(item) {
                    self.names.push(Name { dir: key.offset, name: entry?.name.into() });
                }
            }
            ItemType::INODE_EXTREF => {
                for entry in InodeExtrefEntryRef::iter(item) {
                    let entry = entry?;
                    self.names.push(Name { dir: entry.parent.0, name: entry.name.into() });
                }
            }
            ItemType::XATTR_ITEM => {
                for entry in DirEntryRef::iter(item) {
                    let entry = entry?;
                    self.xattrs.push((entry.name.to_vec(), entry.data.to_vec()));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// The inode whose items are being gathered.
#[derive(Default)]
struct Current {
    ino: u64,
    /// The inode items, if they differ.
    before: Option<InodeFields>,
    now: Option<InodeFields>,
    old: Part,
    new: Part,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// Items before the extents.
    #[default]
    Head,
    /// The hearer wants the extents.
    Extents,
    /// Nothing more of this inode.
    Over,
}

struct Gather<'g, 'e> {
    sides: &'g Sides<'e>,
    visitor: &'g mut dyn InodeVisitor,
    current: Option<Current>,
}

impl<'g, 'e> Gather<'g, 'e> {
    fn new(sides: &'g Sides<'e>, visitor: &'g mut dyn InodeVisitor) -> Gather<'g, 'e> {
        Gather { sides, visitor, current: None }
    }

    fn item(&mut self, key: Key, old: Option<&[u8]>, new: Option<&[u8]>) -> Result<(), SendError> {
        if self.current.as_ref().is_none_or(|c| c.ino != key.objectid) {
            self.finish()?;
            self.current = Some(Current { ino: key.objectid, ..Current::default() });
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        match key.item_type {
            ItemType::INODE_ITEM => {
                current.before = old.map(|item| InodeFields::parse(item, key)).transpose()?;
                current.now = new.map(|item| InodeFields::parse(item, key)).transpose()?;
            }
            ItemType::INODE_REF | ItemType::INODE_EXTREF | ItemType::XATTR_ITEM => {
                old.map(|item| current.old.add(&key, item)).transpose()?;
                new.map(|item| current.new.add(&key, item)).transpose()?;
            }
            ItemType::EXTENT_DATA => {
                if current.state == State::Head {
                    self.emit_head()?;
                }
                if self.current.as_ref().is_some_and(|c| c.state == State::Extents) {
                    self.visitor.extent(key.offset, old, new)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SendError> {
        if self.current.as_ref().is_some_and(|c| c.state == State::Head) {
            self.emit_head()?;
        }
        if self.current.take().is_some_and(|c| c.state == State::Extents) {
            self.visitor.end()?;
        }
        Ok(())
    }

    /// All items in front of the extents are there.
    fn emit_head(&mut self) -> Result<(), SendError> {
        let Some(current) = &mut self.current else { return Ok(()) };
        let ino = current.ino;
        let (old, new) = (std::mem::take(&mut current.old), std::mem::take(&mut current.new));
        let exists = |f: &InodeFields| f.nlink > 0;
        let (before, now) = match (current.before, current.now) {
            (None, None) => {
                let same = fields(self.sides.blocks, &self.sides.new, ino)?;
                (same, same)
            }
            both => both,
        };
        current.state = State::Over;
        let (before, now) = (before.filter(exists), now.filter(exists));
        let is_same = |a: &InodeFields, b: &InodeFields| a.generation == b.generation || ino == Ino::ROOT_DIR.0;
        match (before, now) {
            (None, None) => {}
            (Some(before), Some(now)) if is_same(&before, &now) => {
                let wants = self.visitor.head(Head { ino, before: Some(before), now, old, new })?;
                current.state = if wants { State::Extents } else { State::Over };
            }
            // The items given are all there are.
            (None, Some(now)) if current.before.is_none() => {
                let wants = self.visitor.head(Head { ino, before: None, now, old, new })?;
                current.state = if wants { State::Extents } else { State::Over };
            }
            (Some(before), None) if current.now.is_none() => self.visitor.gone(ino, &before, old.names)?,
            (before, now) => {
                if let Some(before) = before {
                    let names = match &self.sides.old {
                        Some(root) => part(self.sides.blocks, root, ino)?.names,
                        None => Vec::new(),
                    };
                    self.visitor.gone(ino, &before, names)?;
                }
                if before.is_some() && now.is_some() {
                    self.visitor.replaced(ino);
                }
                if now.is_some() {
                    self.whole(ino)?;
                }
            }
        }
        Ok(())
    }

    /// Tells of an inode with all its items.
    fn whole(&mut self, ino: u64) -> Result<(), SendError> {
        let mut gather = Gather::new(self.sides, self.visitor);
        let (from, to) = (Key::new(ino, ItemType(0), 0), Key::new(ino, ItemType(u8::MAX), u64::MAX));
        gather.sides.blocks.scan(&gather.sides.new, from, to, |key, item| {
            gather.item(*key, None, Some(item)).map(|()| ControlFlow::Continue(()))
        })?;
        gather.finish()
    }
}

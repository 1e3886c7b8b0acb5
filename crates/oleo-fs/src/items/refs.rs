//! An inode's names in its own items: INODE_REF by parent, INODE_EXTREF by a hash of parent and name.
//!
//! An INODE_REF holds all names that the inode has in one directory; a name that would make it outgrow a leaf goes
//! into an INODE_EXTREF, if the volume has that feature. Several names of one hash share an INODE_EXTREF.

use std::ops::ControlFlow;

use oleo_format::{
    Ino, InodeExtref, InodeExtrefEntryRef, InodeRef as InodeRefHead, InodeRefEntryRef, ItemType, extref_hash,
    item_len_max,
};
use smallvec::SmallVec;
use zerocopy::IntoBytes;

use crate::FsError;
use crate::items::dir::NAME_MAX;
use crate::object::{Direction, Items, ItemsMut, Joined, WriteGuard};
use oleo_tree::ItemBytes;

/// One name of an inode.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NameOf {
    /// The directory that the name is in.
    pub parent: Ino,
    /// The entry's index there.
    pub index: u64,
    /// The name.
    pub name: Vec<u8>,
}

/// The names that an INODE_REF holds.
pub(crate) fn parse_refs(parent: Ino, mut bytes: &[u8]) -> Result<Vec<NameOf>, FsError> {
    let mut names = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = InodeRefHead::parse_prefix(bytes)?;
        let (name, rest) = split_name(rest, head.name_len.get())?;
        names.push(NameOf { parent, index: head.index.get(), name });
        bytes = rest;
    }
    Ok(names)
}

/// The names that an INODE_EXTREF holds.
pub(crate) fn parse_extrefs(mut bytes: &[u8]) -> Result<Vec<NameOf>, FsError> {
    let mut names = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = InodeExtref::parse_prefix(bytes)?;
        let (name, rest) = split_name(rest, head.name_len.get())?;
        names.push(NameOf { parent: Ino(head.parent_objectid.get()), index: head.index.get(), name });
        bytes = rest;
    }
    Ok(names)
}

fn split_name(rest: &[u8], name_len: u16) -> Result<(Vec<u8>, &[u8]), FsError> {
    match rest.split_at_checked(usize::from(name_len)) {
        Some((name, rest)) => Ok((name.to_vec(), rest)),
        None => Err(FsError::corrupt("inode reference", "", "length", rest.len(), name_len)),
    }
}

/// The bytes of one name in an INODE_REF.
pub(crate) fn encode_ref(index: u64, name: &[u8]) -> ItemBytes {
    ref_bytes(index, name).as_slice().into()
}

/// The same on the stack, so that only the item itself is allocated.
pub(crate) fn ref_bytes(index: u64, name: &[u8]) -> SmallVec<[u8; size_of::<InodeRefHead>() + NAME_MAX]> {
    let head = InodeRefHead { index: index.into(), name_len: (name.len() as u16).into() };
    let mut bytes = SmallVec::from_slice(head.as_bytes());
    bytes.extend_from_slice(name);
    bytes
}

fn encode_extref(of: &NameOf) -> Vec<u8> {
    let head = InodeExtref {
        parent_objectid: of.parent.0.into(),
        index: of.index.into(),
        name_len: (of.name.len() as u16).into(),
    };
    [head.as_bytes(), &of.name].concat()
}

/// Fails if [`add`] would fail for lack of room.
pub(crate) fn check_room(inode: &WriteGuard<'_>, parent: Ino, name: &[u8]) -> Result<(), FsError> {
    let engine = inode.inode().core().engine();
    let len_max = item_len_max(engine.nodesize());
    let old = inode.get(ItemType::INODE_REF, parent.0)?.map_or(0, |old| old.len());
    if old + size_of::<InodeRefHead>() + name.len() <= len_max {
        return Ok(());
    }
    if !engine.features().extended_iref() {
        return Err(FsError::TooManyLinks);
    }
    let old = inode.get(ItemType::INODE_EXTREF, extref_hash(parent, name))?.map_or(0, |old| old.len());
    if old + size_of::<InodeExtref>() + name.len() <= len_max { Ok(()) } else { Err(FsError::TooManyLinks) }
}

/// Adds a name that the inode does not have yet.
pub(crate) fn add(
    inode: &mut WriteGuard<'_>,
    h: &dyn Joined,
    parent: Ino,
    name: &[u8],
    index: u64,
) -> Result<(), FsError> {
    inode.state_mut().moved = h.generation();
    let engine = inode.inode().core().engine();
    let len_max = item_len_max(engine.nodesize());
    let new = encode_ref(index, name);
    match inode.get(ItemType::INODE_REF, parent.0)? {
        None => inode.put(h, ItemType::INODE_REF, parent.0, new),
        Some(old) if old.len() + new.len() <= len_max => {
            inode.put(h, ItemType::INODE_REF, parent.0, [&*old, &*new].concat().into());
        }
        Some(_) if !engine.features().extended_iref() => return Err(FsError::TooManyLinks),
        Some(_) => {
            let hash = extref_hash(parent, name);
            let old = inode.get(ItemType::INODE_EXTREF, hash)?;
            let mut bytes = old.map_or(Vec::new(), |old| old.to_vec());
            bytes.extend_from_slice(&encode_extref(&NameOf { parent, index, name: name.to_vec() }));
            if bytes.len() > len_max {
                return Err(FsError::TooManyLinks);
            }
            inode.put(h, ItemType::INODE_EXTREF, hash, bytes.into());
        }
    }
    Ok(())
}

/// One name of an inode, and the item that it is in, as they were when it was looked for.
pub(crate) struct Found {
    /// The index of its entry in the directory.
    pub(crate) index: u64,
    item_type: ItemType,
    offset: u64,
    /// The item without it.
    kept: Vec<u8>,
}

impl Found {
    /// Whether other names are in the same item.
    pub(crate) fn has_others(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Removes the name. None of the inode's names has changed since it was found.
    pub(crate) fn remove(self, inode: &mut WriteGuard<'_>, h: &dyn Joined) {
        inode.state_mut().moved = h.generation();
        if self.kept.is_empty() {
            inode.delete(h, self.item_type, self.offset);
        } else {
            inode.put(h, self.item_type, self.offset, self.kept.into());
        }
    }
}

/// Looks for a name; `None` if the inode does not know it.
pub(crate) fn find(inode: &dyn Items, parent: Ino, name: &[u8]) -> Result<Option<Found>, FsError> {
    if let Some(old) = inode.get(ItemType::INODE_REF, parent.0)? {
        // In one pass over the item's bytes: it may hold thousands of names.
        let mut gone = None;
        for entry in InodeRefEntryRef::iter(&old) {
            let entry = entry?;
            if entry.name == name {
                gone = Some(entry.index);
            }
        }
        if let Some(index) = gone {
            let mut kept = Vec::with_capacity(old.len());
            for entry in InodeRefEntryRef::iter(&old) {
                let entry = entry?;
                if entry.name != name {
                    entry.encode_to(&mut kept);
                }
            }
            return Ok(Some(Found { index, item_type: ItemType::INODE_REF, offset: parent.0, kept }));
        }
    }
    let hash = extref_hash(parent, name);
    if let Some(old) = inode.get(ItemType::INODE_EXTREF, hash)? {
        let names = parse_extrefs(&old)?;
        let this = |n: &&NameOf| n.parent == parent && n.name == name;
        if let Some(gone) = names.iter().find(this) {
            let kept = names.iter().filter(|n| !this(n)).flat_map(encode_extref).collect();
            return Ok(Some(Found { index: gone.index, item_type: ItemType::INODE_EXTREF, offset: hash, kept }));
        }
    }
    Ok(None)
}

/// Removes a name and returns its index, or `None` if the inode does not know the name.
pub(crate) fn remove(
    inode: &mut WriteGuard<'_>,
    h: &dyn Joined,
    parent: Ino,
    name: &[u8],
) -> Result<Option<u64>, FsError> {
    let Some(found) = find(inode, parent, name)? else { return Ok(None) };
    let index = found.index;
    found.remove(inode, h);
    Ok(Some(index))
}

/// The names in one item of references.
pub(crate) fn parse(t: ItemType, offset: u64, bytes: &[u8]) -> Result<Vec<NameOf>, FsError> {
    if t == ItemType::INODE_REF { parse_refs(Ino(offset), bytes) } else { parse_extrefs(bytes) }
}

/// How many names an item of references has; 0 for items of other types.
pub(crate) fn count(t: ItemType, bytes: &[u8]) -> usize {
    match t {
        ItemType::INODE_REF => InodeRefEntryRef::iter(bytes).map_while(Result::ok).count(),
        ItemType::INODE_EXTREF => InodeExtrefEntryRef::iter(bytes).map_while(Result::ok).count(),
        _ => 0,
    }
}

/// The name that an inode has at an index of a directory, by its INODE_REF.
pub(crate) fn name_at(inode: &dyn Items, parent: Ino, index: u64) -> Result<Option<Vec<u8>>, FsError> {
    let Some(item) = inode.get(ItemType::INODE_REF, parent.0)? else { return Ok(None) };
    let found = InodeRefEntryRef::iter(&item).map_while(Result::ok).find(|entry| entry.index == index);
    Ok(found.map(|entry| entry.name.to_vec()))
}

/// Whether an inode that has one name in a directory has INODE_REFs of other directories.
pub(crate) fn has_elsewhere(inode: &dyn Items) -> Result<bool, FsError> {
    let mut items = 0;
    inode.walk(ItemType::INODE_REF, 0, u64::MAX, Direction::Up, &mut |_, _| {
        items += 1;
        if items > 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(items > 1)
}

/// What an inode knows of one name; nothing, or where its entry is.
pub(crate) fn all_in(inode: &dyn Items, parent: Ino, name: &[u8]) -> Result<Vec<NameOf>, FsError> {
    let mut names = Vec::new();
    if let Some(item) = inode.get(ItemType::INODE_REF, parent.0)? {
        for entry in InodeRefEntryRef::iter(&item) {
            let entry = entry?;
            if entry.name == name {
                names.push(NameOf { parent, index: entry.index, name: name.to_vec() });
            }
        }
    }
    if let Some(item) = inode.get(ItemType::INODE_EXTREF, extref_hash(parent, name))? {
        for entry in InodeExtrefEntryRef::iter(&item) {
            let entry = entry?;
            if entry.parent == parent && entry.name == name {
                names.push(NameOf { parent, index: entry.index, name: name.to_vec() });
            }
        }
    }
    Ok(names)
}

/// All names of an inode.
pub(crate) fn all(inode: &dyn Items) -> Result<Vec<NameOf>, FsError> {
    let mut names = Vec::new();
    for (parent, item) in inode.range(ItemType::INODE_REF, 0, u64::MAX)? {
        names.append(&mut parse_refs(Ino(parent), &item)?);
    }
    for (_, item) in inode.range(ItemType::INODE_EXTREF, 0, u64::MAX)? {
        names.append(&mut parse_extrefs(&item)?);
    }
    Ok(names)
}

/// The directory that a directory is in: it has one name only.
pub(crate) fn parent(dir: &dyn Items) -> Result<Option<Ino>, FsError> {
    Ok(dir.range_limit(ItemType::INODE_REF, 0, u64::MAX, 1)?.first().map(|(parent, _)| Ino(*parent)))
}

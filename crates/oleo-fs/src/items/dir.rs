//! Directory entries as items: DIR_ITEM by the hash of the name, DIR_INDEX by the order of creation.
//!
//! Both hold the same bytes, except that a DIR_ITEM holds all entries whose names have one hash, one after the other.
//! A directory's size is twice the length of all its names. Extended attributes have the same form (`attributes::xattr`).
//!
//! Invariants, while the directory's lock is not held: every entry is in one DIR_ITEM and one DIR_INDEX, and the
//! entry's inode (or, for a subvolume, a reference in the root tree) names the directory and the index.

use std::ops::ControlFlow;
use std::sync::Arc;

use oleo_format::{DirItem, DiskKey, FileType, Ino, ItemType, Key, TreeId, dir_hash, item_len_max};
use smallvec::SmallVec;
use zerocopy::IntoBytes;

use crate::object::{Direction, Inode, Items, ItemsMut, Joined, ReadGuard, WriteGuard};
use crate::{FileKind, FsError};
use oleo_tree::ItemBytes;

/// Bytes that a name may have.
pub const NAME_MAX: usize = 255;
/// The sequence number of a directory's first entry: 0 and 1 are "." and "..", which are not stored.
pub(crate) const FIRST_INDEX: u64 = 2;
/// Bytes of an entry before its name.
const HEAD_LEN: usize = size_of::<DirItem>();

/// One entry of a DIR_ITEM, DIR_INDEX or XATTR_ITEM, borrowed from the item.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) head: &'a DirItem,
    pub(crate) name: &'a [u8],
    pub(crate) data: &'a [u8],
}

/// The entries of an item.
pub(crate) fn entries(mut bytes: &[u8]) -> impl Iterator<Item = Result<Entry<'_>, FsError>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let parsed = parse(bytes);
        match &parsed {
            Ok((_, rest)) => bytes = rest,
            Err(_) => bytes = &[],
        }
        Some(parsed.map(|p| p.0))
    })
}

fn parse(bytes: &[u8]) -> Result<(Entry<'_>, &[u8]), FsError> {
    let (head, rest) = DirItem::parse_prefix(bytes)?;
    let (name_len, data_len) = (usize::from(head.name_len.get()), usize::from(head.data_len.get()));
    if rest.len() < name_len + data_len {
        return Err(FsError::corrupt("directory entry", "", "length", rest.len(), name_len + data_len));
    }
    let (name, rest) = rest.split_at(name_len);
    let (data, rest) = rest.split_at(data_len);
    Ok((Entry { head, name, data }, rest))
}

/// The bytes of one entry.
pub(crate) fn encode(location: Key, transid: u64, kind: FileType, name: &[u8], data: &[u8]) -> Vec<u8> {
    let head = head_of(location, transid, kind, name.len(), data.len());
    let mut bytes = Vec::with_capacity(HEAD_LEN + name.len() + data.len());
    bytes.extend_from_slice(head.as_bytes());
    bytes.extend_from_slice(name);
    bytes.extend_from_slice(data);
    bytes
}

/// The same of an entry without data, made where it stays, and other bytes in the same piece of memory.
fn encode_shared(location: Key, transid: u64, kind: FileType, name: &[u8], beside: &[u8]) -> (ItemBytes, ItemBytes) {
    let head = head_of(location, transid, kind, name.len(), 0);
    let mut bytes: SmallVec<[u8; 2 * (HEAD_LEN + NAME_MAX)]> = SmallVec::from_slice(head.as_bytes());
    bytes.extend_from_slice(name);
    let len = bytes.len();
    bytes.extend_from_slice(beside);
    let both: Arc<[u8]> = bytes.as_slice().into();
    (ItemBytes::part(&both, 0..len), ItemBytes::part(&both, len..both.len()))
}

fn head_of(location: Key, transid: u64, kind: FileType, name_len: usize, data_len: usize) -> DirItem {
    DirItem {
        location: DiskKey::from(location),
        transid: transid.into(),
        data_len: u16::try_from(data_len).unwrap_or(u16::MAX).into(),
        name_len: u16::try_from(name_len).unwrap_or(u16::MAX).into(),
        r#type: kind.to_disk(),
    }
}

/// Adds an entry to those that an item holds already, unless the item would outgrow a leaf.
pub(crate) fn append(old: &[u8], entry: &[u8], nodesize: u32) -> Option<ItemBytes> {
    if old.len() + entry.len() > item_len_max(nodesize) {
        return None;
    }
    Some([old, entry].concat().into())
}

/// An item without the entry of that name; empty when it was the only one.
pub(crate) fn without(bytes: &[u8], name: &[u8]) -> Result<Vec<u8>, FsError> {
    let mut kept = Vec::with_capacity(bytes.len());
    for entry in entries(bytes) {
        let entry = entry?;
        if entry.name != name {
            kept.extend_from_slice(entry.head.as_bytes());
            kept.extend_from_slice(entry.name);
            kept.extend_from_slice(entry.data);
        }
    }
    Ok(kept)
}

/// What an entry leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// An inode of the same subvolume.
    Inode(Ino),
    /// The root directory of another subvolume.
    Subvol(TreeId),
}

impl Target {
    pub(crate) fn of(location: Key) -> Result<Target, FsError> {
        match location.item_type {
            ItemType::INODE_ITEM => Ok(Target::Inode(Ino(location.objectid))),
            ItemType::ROOT_ITEM => Ok(Target::Subvol(TreeId(location.objectid))),
            _ => Err(FsError::corrupt("directory entry", location, "location", "neither", "an inode or a root")),
        }
    }

    pub(crate) fn location(self) -> Key {
        match self {
            Target::Inode(ino) => Key::new(ino.0, ItemType::INODE_ITEM, 0),
            Target::Subvol(id) => Key::new(id.0, ItemType::ROOT_ITEM, u64::MAX),
        }
    }
}

/// One entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntryInfo {
    /// The name, of 1 to 255 bytes.
    pub name: Vec<u8>,
    /// Its place in the order of creation: pass it to `readdir` to go on after it.
    pub index: u64,
    /// What it leads to.
    pub target: Target,
    /// What kind of file that is.
    pub kind: FileKind,
}

/// Refuses what cannot be a name.
pub(crate) fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.len() > NAME_MAX {
        Err(FsError::NameTooLong)
    } else if name.is_empty() || name == b"." || name == b".." {
        Err(FsError::Invalid("not a name that an entry can have"))
    } else if name.contains(&b'/') || name.contains(&0) {
        Err(FsError::Invalid("a name with a slash or a zero byte"))
    } else {
        Ok(())
    }
}

/// Where an entry of a name is or would be, as of a look at its directory. Handed on to who adds or removes it, so that trees and deltas are
/// searched once.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    hash: u64,
    /// Bytes of the item of the name's hash; 0: there is none.
    item_len: usize,
    /// What the entry leads to, if it is there.
    pub(crate) entry: Option<(Target, FileKind)>,
    /// The item has nothing but the entry.
    is_alone: bool,
    /// The directory's count of changes then.
    changes: u32,
}

impl Place {
    /// Looks, for a caller that may only read. That there was nothing of the name's hash is remembered, for who comes to make the name.
    pub(crate) fn seen(dir: &ReadGuard<'_>, name: &[u8]) -> Result<Place, FsError> {
        let place = Place::look(dir, dir.inode(), dir.state().changes, name)?;
        if place.item_len == 0 {
            dir.inode().note_absent(place.hash);
        }
        Ok(place)
    }

    pub(crate) fn of(dir: &WriteGuard<'_>, name: &[u8]) -> Result<Place, FsError> {
        Place::look(dir, dir.inode(), dir.state().changes, name)
    }

    fn look(dir: &dyn Items, inode: &Inode, changes: u32, name: &[u8]) -> Result<Place, FsError> {
        let hash = u64::from(dir_hash(name));
        let none = Place { hash, item_len: 0, entry: None, is_alone: false, changes };
        if inode.is_absent(hash) {
            return Ok(none);
        }
        dir.with(ItemType::DIR_ITEM, hash, |item| {
            let Some(item) = item else { return Ok(none) };
            let entry = find_in(Some(item), name)?;
            let is_alone = entry.is_some() && item.len() == HEAD_LEN + name.len();
            Ok(Place { item_len: item.len(), entry, is_alone, ..none })
        })
    }

    /// The same if nothing of the directory has changed since; otherwise looks once more.
    pub(crate) fn confirmed_by(self, dir: &WriteGuard<'_>, name: &[u8]) -> Result<Place, FsError> {
        if self.changes == dir.state().changes { Ok(self) } else { Place::of(dir, name) }
    }

    /// What the entry leads to, if it is there.
    pub(crate) fn target(&self) -> Option<Target> {
        self.entry.map(|entry| entry.0)
    }

    /// Whether another name's entry would be in the same item of the same directory.
    pub(crate) fn shares_item(&self, other: &Place) -> bool {
        self.hash == other.hash
    }

    /// Fails if an entry of the name would make its item outgrow a leaf, so that [`add_at`] cannot fail for that. An entry that is
    /// there makes way for the new one, and so does that of the name `leaves`, which must be in the same item.
    pub(crate) fn check_room(&self, dir: &WriteGuard<'_>, name: &[u8], leaves: Option<&[u8]>) -> Result<(), FsError> {
        if self.entry.is_some() {
            return Ok(());
        }
        let nodesize = dir.inode().core().engine().nodesize();
        let kept = self.item_len - leaves.map_or(0, |leaves| HEAD_LEN + leaves.len());
        if kept + HEAD_LEN + name.len() > item_len_max(nodesize) {
            return Err(FsError::Overflow("too many names with one hash"));
        }
        Ok(())
    }
}

fn find_in(item: Option<&[u8]>, name: &[u8]) -> Result<Option<(Target, FileKind)>, FsError> {
    for entry in entries(item.unwrap_or_default()) {
        let entry = entry?;
        if entry.name == name {
            let target = Target::of(Key::from(entry.head.location))?;
            return Ok(Some((target, FileKind::of_disk(entry.head.r#type)?)));
        }
    }
    Ok(None)
}

/// Finds an entry by name.
pub(crate) fn find(dir: &dyn Items, name: &[u8]) -> Result<Option<(Target, FileKind)>, FsError> {
    dir.with(ItemType::DIR_ITEM, u64::from(dir_hash(name)), |item| find_in(item, name))
}

/// Finds out which index the next entry of a directory gets, unless it is known.
pub(crate) fn learn_next_index(dir: &mut WriteGuard<'_>) -> Result<(), FsError> {
    if dir.state().next_index == 0 {
        let last = dir.last(ItemType::DIR_INDEX, u64::MAX)?;
        dir.state_mut().next_index = match last {
            Some((index, _)) => index.checked_add(1).ok_or(FsError::NoSpace)?.max(FIRST_INDEX),
            None => FIRST_INDEX,
        };
    }
    Ok(())
}

/// The index that the next entry of a directory gets.
fn next_index(dir: &mut WriteGuard<'_>) -> Result<u64, FsError> {
    learn_next_index(dir)?;
    let index = dir.state().next_index;
    dir.state_mut().next_index += 1;
    Ok(index)
}

/// Adds an entry, which must not exist, and returns its index. The directory's times are the caller's.
pub(crate) fn add(
    dir: &mut WriteGuard<'_>,
    h: &dyn Joined,
    name: &[u8],
    target: Target,
    kind: FileKind,
) -> Result<u64, FsError> {
    let place = Place::of(dir, name)?;
    add_at(dir, h, place, name, target, kind)
}

/// The same for a caller that has looked already, and knows that nothing of the name's hash has changed.
pub(crate) fn add_at(
    dir: &mut WriteGuard<'_>,
    h: &dyn Joined,
    place: Place,
    name: &[u8],
    target: Target,
    kind: FileKind,
) -> Result<u64, FsError> {
    let index = next_index(dir)?;
    put_entry(dir, h, place, name, target, kind, index, &[])?;
    Ok(index)
}

/// The same for a new inode, whose own item of the name, which `beside` makes of the index, is returned: it lies in the same piece of memory.
pub(crate) fn add_new<B: AsRef<[u8]>>(
    dir: &mut WriteGuard<'_>,
    h: &dyn Joined,
    place: Place,
    name: &[u8],
    target: Target,
    kind: FileKind,
    beside: impl FnOnce(u64) -> B,
) -> Result<ItemBytes, FsError> {
    let index = next_index(dir)?;
    put_entry(dir, h, place, name, target, kind, index, beside(index).as_ref())
}

/// The same at an index, if nobody has that yet, and otherwise behind all others; returns which.
pub(crate) fn add_near(
    dir: &mut WriteGuard<'_>,
    h: &dyn Joined,
    name: &[u8],
    target: Target,
    kind: FileKind,
    index: u64,
) -> Result<u64, FsError> {
    let place = Place::of(dir, name)?;
    let index = if dir.get(ItemType::DIR_INDEX, index)?.is_some() { next_index(dir)? } else { index };
    put_entry(dir, h, place, name, target, kind, index, &[])?;
    if dir.state().next_index <= index {
        // To be looked up when it is needed.
        dir.state_mut().next_index = 0;
    }
    Ok(index)
}

#[allow(clippy::too_many_arguments, reason = "an entry, where it goes, and what lies beside it; one helper of three")]
fn put_entry(
    dir: &mut WriteGuard<'_>,
    h: &dyn Joined,
    place: Place,
    name: &[u8],
    target: Target,
    kind: FileKind,
    index: u64,
    beside: &[u8],
) -> Result<ItemBytes, FsError> {
    // Both items share one copy, unless others have the same hash.
    let (entry, beside) = encode_shared(target.location(), h.generation().0, kind.to_disk(), name, beside);
    let old = if place.item_len == 0 { None } else { dir.get(ItemType::DIR_ITEM, place.hash)? };
    let item = match old {
        None => entry.clone(),
        Some(old) => {
            let nodesize = dir.inode().core().engine().nodesize();
            append(&old, &entry, nodesize).ok_or(FsError::Overflow("too many names with one hash"))?
        }
    };
    dir.put(h, ItemType::DIR_ITEM, place.hash, item);
    dir.put(h, ItemType::DIR_INDEX, index, entry);
    dir.fields_mut(h).size += 2 * name.len() as u64;
    Ok(beside)
}

/// Fails if an entry of that name would make its item outgrow a leaf, so that [`add`] cannot fail for that.
pub(crate) fn check_room(dir: &WriteGuard<'_>, name: &[u8]) -> Result<(), FsError> {
    Place::of(dir, name)?.check_room(dir, name, None)
}

/// Removes an entry that exists, but for its DIR_INDEX.
pub(crate) fn remove_item(dir: &mut WriteGuard<'_>, h: &dyn Joined, name: &[u8]) -> Result<(), FsError> {
    let place = Place::of(dir, name)?;
    remove_at(dir, h, place, name)
}

/// The same for a caller that has looked already, and knows that nothing of the name's hash has changed.
pub(crate) fn remove_at(dir: &mut WriteGuard<'_>, h: &dyn Joined, place: Place, name: &[u8]) -> Result<(), FsError> {
    if place.is_alone {
        dir.delete(h, ItemType::DIR_ITEM, place.hash);
    } else {
        let key = dir.inode().key(ItemType::DIR_ITEM, place.hash);
        let old = dir
            .get(ItemType::DIR_ITEM, place.hash)?
            .ok_or_else(|| FsError::corrupt("directory", key, "entry", "missing", "an entry"))?;
        let kept = without(&old, name)?;
        if kept.is_empty() {
            dir.delete(h, ItemType::DIR_ITEM, place.hash);
        } else {
            dir.put(h, ItemType::DIR_ITEM, place.hash, kept.into());
        }
    }
    let fields = dir.fields_mut(h);
    fields.size = fields.size.saturating_sub(2 * name.len() as u64);
    Ok(())
}

/// Sets a directory's size anew after a half entry was removed: the size may have counted the missing part or not. If not all entries can be
/// read, the size stays.
pub(crate) fn recount(dir: &mut WriteGuard<'_>, h: &dyn Joined) {
    let mut size = 0;
    let counted = [ItemType::DIR_ITEM, ItemType::DIR_INDEX].into_iter().try_for_each(|t| {
        dir.walk(t, 0, u64::MAX, Direction::Up, &mut |_, bytes| {
            size += entries(bytes).map_while(Result::ok).map(|entry| entry.name.len() as u64).sum::<u64>();
            ControlFlow::Continue(())
        })
    });
    if counted.is_ok() {
        dir.fields_mut(h).size = size;
    }
}

/// Whether a directory has no entries, nor any half of one.
pub(crate) fn is_empty(dir: &dyn Items) -> Result<bool, FsError> {
    // A size of 0 counts no entry. The items of those that went are then not gone through again.
    Ok(dir.range_limit(ItemType::DIR_INDEX, 0, u64::MAX, 1)?.is_empty()
        && (dir.fields().size == 0 || dir.range_limit(ItemType::DIR_ITEM, 0, u64::MAX, 1)?.is_empty()))
}

/// At most `limit` entries after index `after`, in the order of creation.
pub(crate) fn list(dir: &dyn Items, after: u64, limit: usize) -> Result<Vec<DirEntryInfo>, FsError> {
    let mut found = Vec::new();
    let mut wrong = None;
    let Some(from) = after.checked_add(1) else { return Ok(found) };
    if limit == 0 {
        return Ok(found);
    }
    dir.walk(ItemType::DIR_INDEX, from, u64::MAX, Direction::Up, &mut |index, bytes| {
        match info(index, bytes) {
            Ok(entry) => found.push(entry),
            Err(e) => {
                wrong = Some(e);
                return ControlFlow::Break(());
            }
        }
        if found.len() >= limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    match wrong {
        Some(e) => Err(e),
        None => Ok(found),
    }
}

/// One DIR_INDEX item, taken apart.
pub(crate) fn info(index: u64, bytes: &[u8]) -> Result<DirEntryInfo, FsError> {
    let (entry, _) = parse(bytes)?;
    Ok(DirEntryInfo {
        name: entry.name.to_vec(),
        index,
        target: Target::of(Key::from(entry.head.location))?,
        kind: FileKind::of_disk(entry.head.r#type)?,
    })
}

/// The entry at an index of a directory.
pub(crate) fn entry_at(dir: &dyn Items, index: u64) -> Result<Option<DirEntryInfo>, FsError> {
    dir.with(ItemType::DIR_INDEX, index, |item| item.map(|item| info(index, item)).transpose())
}

/// The place of an entry's DIR_INDEX: index `known` if that is the entry's; else the whole directory is searched.
pub(crate) fn index_of(
    dir: &dyn Items,
    (name, target): (&[u8], Target),
    known: Option<u64>,
) -> Result<Option<u64>, FsError> {
    let leads_there = |entry: &Entry<'_>| Target::of(Key::from(entry.head.location)).is_ok_and(|to| to == target);
    let is_it = |bytes: &[u8]| parse(bytes).is_ok_and(|(entry, _)| entry.name == name && leads_there(&entry));
    if let Some(index) = known
        && dir.with(ItemType::DIR_INDEX, index, |item| Ok(item.is_some_and(is_it)))?
    {
        return Ok(known);
    }
    let mut found = None;
    dir.walk(ItemType::DIR_INDEX, 0, u64::MAX, Direction::Up, &mut |index, bytes| {
        found = is_it(bytes).then_some(index);
        if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(found)
}

/// Whether the entry at an index leads to `target` and has a name that the DIR_ITEMs do not have, or have for another target.
pub(crate) fn is_misspelled(dir: &dyn Items, target: Target, index: u64) -> Result<bool, FsError> {
    let Some(entry) = entry_at(dir, index)?.filter(|entry| entry.target == target) else { return Ok(false) };
    Ok(find(dir, &entry.name)?.is_none_or(|found| found.0 != target))
}

/// The first DIR_INDEX of a name, whatever it leads to, by going through the whole directory.
pub(crate) fn first_index(dir: &dyn Items, name: &[u8]) -> Result<Option<DirEntryInfo>, FsError> {
    let mut found = None;
    dir.walk(ItemType::DIR_INDEX, 0, u64::MAX, Direction::Up, &mut |index, bytes| {
        found = info(index, bytes).ok().filter(|entry| entry.name == name);
        if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(found)
}

/// The first entry of a directory's DIR_ITEMs that is found by its name; it is given no index.
pub(crate) fn first_found(dir: &dyn Items) -> Result<Option<DirEntryInfo>, FsError> {
    let mut found = None;
    dir.walk(ItemType::DIR_ITEM, 0, u64::MAX, Direction::Up, &mut |hash, bytes| {
        let hashed = |entry: &Entry<'_>| u64::from(dir_hash(entry.name)) == hash;
        let entry = entries(bytes).map_while(Result::ok).find(hashed);
        found = entry.and_then(|entry| {
            let (target, kind) = find_in(Some(bytes), entry.name).ok()??;
            Some(DirEntryInfo { name: entry.name.to_vec(), index: 0, target, kind })
        });
        if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(found)
}

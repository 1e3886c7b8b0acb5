//! Items that hold names: directory entries, extended attributes, references of inodes and of subvolumes.
//!
//! DIR_ITEM, XATTR_ITEM, INODE_REF and INODE_EXTREF are lists: names whose hash or parent is the same share one item.
//! Each kind has an owned form, and a borrowed one (`…Ref`) whose `iter` walks an item without copying.

use zerocopy::IntoBytes;

use crate::csum::{dir_hash, extref_hash};
use crate::error::{Corruption, ensure};
use crate::flags::FileType;
use crate::structs::{DirItem, InodeExtref, InodeRef, RootRef};
use crate::{Generation, Ino, ItemType, Key, TreeId};

/// The longest name of a file in bytes.
pub const NAME_LEN_MAX: usize = 255;

/// A name and the bytes after it, if it is complete.
fn take<'a>(structure: &'static str, bytes: &'a [u8], len: usize) -> Result<(&'a [u8], &'a [u8]), Corruption> {
    bytes
        .split_at_checked(len)
        .ok_or_else(|| Corruption::new(structure, "length of its name", len, format_args!("at most {}", bytes.len())))
}

fn len_u16(bytes: &[u8]) -> u16 {
    u16::try_from(bytes.len()).expect("names and values are at most 65535 bytes")
}

/// Declares the borrowed list iterator of an entry type.
macro_rules! entry_list {
    ($iter:ident, $entry:ident) => {
        #[doc = concat!("Walks the [`", stringify!($entry), "`]s of an item. Ends after the first error.")]
        #[derive(Clone, Debug)]
        pub struct $iter<'a>(&'a [u8]);

        impl<'a> Iterator for $iter<'a> {
            type Item = Result<$entry<'a>, Corruption>;

            fn next(&mut self) -> Option<Self::Item> {
                if self.0.is_empty() {
                    return None;
                }
                Some(match $entry::parse_prefix(self.0) {
                    Ok((entry, rest)) => {
                        self.0 = rest;
                        Ok(entry)
                    }
                    Err(e) => {
                        self.0 = &[];
                        Err(e)
                    }
                })
            }
        }

        impl<'a> $entry<'a> {
            /// All entries of an item.
            pub fn iter(item: &'a [u8]) -> $iter<'a> {
                $iter(item)
            }
        }
    };
}

/// Implements the list functions of an owned entry.
macro_rules! owned_list {
    ($owned:ident, $entry:ident) => {
        impl $owned {
            /// The entry of an item that holds exactly one.
            pub fn parse(item: &[u8]) -> Result<$owned, Corruption> {
                let (entry, rest) = $entry::parse_prefix(item)?;
                ensure!(rest.is_empty(), stringify!($owned), "length of the item", item.len(), item.len() - rest.len());
                Ok(entry.to_owned())
            }

            /// The entries of an item.
            pub fn parse_all(item: &[u8]) -> Result<Vec<$owned>, Corruption> {
                $entry::iter(item).map(|e| e.map(|e| e.to_owned())).collect()
            }

            /// The item of this entry alone.
            pub fn encode(&self) -> Vec<u8> {
                let mut out = Vec::new();
                self.borrow().encode_to(&mut out);
                out
            }

            /// The item of these entries, in this order.
            pub fn encode_all(entries: &[$owned]) -> Vec<u8> {
                let mut out = Vec::new();
                entries.iter().for_each(|e| e.borrow().encode_to(&mut out));
                out
            }
        }
    };
}

/// A directory entry or an extended attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The key of its target: an INODE_ITEM, or the ROOT_ITEM of a subvolume. All zero for attributes.
    pub location: Key,
    /// The transaction that made it.
    pub transid: Generation,
    /// The type of its target.
    pub file_type: FileType,
    /// The name.
    pub name: Vec<u8>,
    /// The value of an attribute; empty in entries.
    pub data: Vec<u8>,
}

/// A [`DirEntry`] inside an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "see DirEntry")]
pub struct DirEntryRef<'a> {
    pub location: Key,
    pub transid: Generation,
    pub file_type: FileType,
    pub name: &'a [u8],
    pub data: &'a [u8],
}

impl<'a> DirEntryRef<'a> {
    fn parse_prefix(bytes: &'a [u8]) -> Result<(DirEntryRef<'a>, &'a [u8]), Corruption> {
        let (head, rest) = DirItem::parse_prefix(bytes)?;
        let (name, rest) = take("directory entry", rest, usize::from(head.name_len.get()))?;
        let (data, rest) = take("directory entry", rest, usize::from(head.data_len.get()))?;
        let file_type = FileType::from_disk(head.r#type)
            .ok_or_else(|| Corruption::new("directory entry", "type", head.r#type, "0 to 8"))?;
        let transid = Generation(head.transid.get());
        Ok((DirEntryRef { location: head.location.into(), transid, file_type, name, data }, rest))
    }

    /// Whether an entry in an item says that its name is encrypted (`BTRFS_FT_ENCRYPTED`), which no feature that Oleo knows allows. It has no
    /// other meaning to a reader.
    pub fn claims_encryption(mut item: &[u8]) -> bool {
        while let Ok((head, rest)) = DirItem::parse_prefix(item) {
            if head.r#type & FileType::ENCRYPTED != 0 {
                return true;
            }
            let len = usize::from(head.name_len.get()) + usize::from(head.data_len.get());
            item = rest.get(len..).unwrap_or_default();
        }
        false
    }

    /// An owned copy.
    pub fn to_owned(self) -> DirEntry {
        let DirEntryRef { location, transid, file_type, name, data } = self;
        DirEntry { location, transid, file_type, name: name.to_vec(), data: data.to_vec() }
    }

    /// Appends the entry's bytes.
    pub fn encode_to(&self, out: &mut Vec<u8>) {
        let head = DirItem {
            location: self.location.into(),
            transid: self.transid.0.into(),
            data_len: len_u16(self.data).into(),
            name_len: len_u16(self.name).into(),
            r#type: self.file_type.to_disk(),
        };
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(self.name);
        out.extend_from_slice(self.data);
    }
}

impl DirEntry {
    /// The same, borrowed.
    pub fn borrow(&self) -> DirEntryRef<'_> {
        let DirEntry { location, transid, file_type, name, data } = self;
        DirEntryRef { location: *location, transid: *transid, file_type: *file_type, name, data }
    }
}

entry_list!(DirEntries, DirEntryRef);
owned_list!(DirEntry, DirEntryRef);

/// One name of an inode in the directory given by the item's key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InodeRefEntry {
    /// The entry's position in the directory (offset of its DIR_INDEX).
    pub index: u64,
    /// The name.
    pub name: Vec<u8>,
}

/// An [`InodeRefEntry`] inside an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "see InodeRefEntry")]
pub struct InodeRefEntryRef<'a> {
    pub index: u64,
    pub name: &'a [u8],
}

impl<'a> InodeRefEntryRef<'a> {
    fn parse_prefix(bytes: &'a [u8]) -> Result<(InodeRefEntryRef<'a>, &'a [u8]), Corruption> {
        let (head, rest) = InodeRef::parse_prefix(bytes)?;
        let (name, rest) = take("inode reference", rest, usize::from(head.name_len.get()))?;
        Ok((InodeRefEntryRef { index: head.index.get(), name }, rest))
    }

    /// An owned copy.
    pub fn to_owned(self) -> InodeRefEntry {
        InodeRefEntry { index: self.index, name: self.name.to_vec() }
    }

    /// Appends the entry's bytes.
    pub fn encode_to(&self, out: &mut Vec<u8>) {
        let head = InodeRef { index: self.index.into(), name_len: len_u16(self.name).into() };
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(self.name);
    }
}

impl InodeRefEntry {
    /// The same, borrowed.
    pub fn borrow(&self) -> InodeRefEntryRef<'_> {
        InodeRefEntryRef { index: self.index, name: &self.name }
    }
}

entry_list!(InodeRefs, InodeRefEntryRef);
owned_list!(InodeRefEntry, InodeRefEntryRef);

/// One name of an inode in any directory: used if the [`InodeRefEntry`]s of one directory no longer fit one item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InodeExtrefEntry {
    /// The directory.
    pub parent: Ino,
    /// The entry's position in the directory (offset of its DIR_INDEX).
    pub index: u64,
    /// The name.
    pub name: Vec<u8>,
}

/// An [`InodeExtrefEntry`] inside an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "see InodeExtrefEntry")]
pub struct InodeExtrefEntryRef<'a> {
    pub parent: Ino,
    pub index: u64,
    pub name: &'a [u8],
}

impl<'a> InodeExtrefEntryRef<'a> {
    fn parse_prefix(bytes: &'a [u8]) -> Result<(InodeExtrefEntryRef<'a>, &'a [u8]), Corruption> {
        let (head, rest) = InodeExtref::parse_prefix(bytes)?;
        let (name, rest) = take("extended inode reference", rest, usize::from(head.name_len.get()))?;
        Ok((InodeExtrefEntryRef { parent: Ino(head.parent_objectid.get()), index: head.index.get(), name }, rest))
    }

    /// An owned copy.
    pub fn to_owned(self) -> InodeExtrefEntry {
        InodeExtrefEntry { parent: self.parent, index: self.index, name: self.name.to_vec() }
    }

    /// Appends the entry's bytes.
    pub fn encode_to(&self, out: &mut Vec<u8>) {
        let head = InodeExtref {
            parent_objectid: self.parent.0.into(),
            index: self.index.into(),
            name_len: len_u16(self.name).into(),
        };
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(self.name);
    }
}

impl InodeExtrefEntry {
    /// The same, borrowed.
    pub fn borrow(&self) -> InodeExtrefEntryRef<'_> {
        InodeExtrefEntryRef { parent: self.parent, index: self.index, name: &self.name }
    }
}

entry_list!(InodeExtrefs, InodeExtrefEntryRef);
owned_list!(InodeExtrefEntry, InodeExtrefEntryRef);

/// The place of a subvolume: ROOT_REF (parent to child) and ROOT_BACKREF (child to parent) items.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RootRefEntry {
    /// The directory in the parent subvolume.
    pub dirid: Ino,
    /// The entry's position in the directory (offset of its DIR_INDEX).
    pub sequence: u64,
    /// The name.
    pub name: Vec<u8>,
}

impl RootRefEntry {
    /// The entry of an item.
    pub fn parse(item: &[u8]) -> Result<RootRefEntry, Corruption> {
        let (head, rest) = RootRef::parse_prefix(item)?;
        let (name, rest) = take("root reference", rest, usize::from(head.name_len.get()))?;
        ensure!(rest.is_empty(), "root reference", "length of the item", item.len(), item.len() - rest.len());
        Ok(RootRefEntry { dirid: Ino(head.dirid.get()), sequence: head.sequence.get(), name: name.to_vec() })
    }

    /// The item.
    pub fn encode(&self) -> Vec<u8> {
        let head = RootRef {
            dirid: self.dirid.0.into(),
            sequence: self.sequence.into(),
            name_len: len_u16(&self.name).into(),
        };
        [head.as_bytes(), &self.name].concat()
    }
}

/// Keys of names.
impl Key {
    /// A directory entry by name.
    pub fn dir_item(dir: Ino, name: &[u8]) -> Key {
        Key::new(dir.0, ItemType::DIR_ITEM, dir_hash(name).into())
    }
    /// A directory entry by position.
    pub fn dir_index(dir: Ino, index: u64) -> Key {
        Key::new(dir.0, ItemType::DIR_INDEX, index)
    }
    /// An extended attribute.
    pub fn xattr(ino: Ino, name: &[u8]) -> Key {
        Key::new(ino.0, ItemType::XATTR_ITEM, dir_hash(name).into())
    }
    /// An inode.
    pub fn inode(ino: Ino) -> Key {
        Key::new(ino.0, ItemType::INODE_ITEM, 0)
    }
    /// The names of an inode in one directory.
    pub fn inode_ref(ino: Ino, parent: Ino) -> Key {
        Key::new(ino.0, ItemType::INODE_REF, parent.0)
    }
    /// The extended names of an inode with this hash.
    pub fn inode_extref(ino: Ino, parent: Ino, name: &[u8]) -> Key {
        Key::new(ino.0, ItemType::INODE_EXTREF, extref_hash(parent, name))
    }
    /// The link from a subvolume to one inside it.
    pub fn root_ref(parent: TreeId, child: TreeId) -> Key {
        Key::new(parent.0, ItemType::ROOT_REF, child.0)
    }
    /// The link from a subvolume to the one that it is in.
    pub fn root_backref(child: TreeId, parent: TreeId) -> Key {
        Key::new(child.0, ItemType::ROOT_BACKREF, parent.0)
    }
}

//! The second pass: reads a tree whose sums do not balance again, to name the items at fault.
//!
//! Normal path; each round feeds the whole tree item by item. (1) The first round adds claims up in buckets, each for
//! many names (or inodes), so that the faults are in the few buckets that do not balance. (2) The second round keeps
//! all claims on the names and inodes of those buckets. (3) [`SecondPass::end`] compares them and reports each that has
//! no counterpart.
//!
//! Memory: 4 × 16384 buckets of 32 bytes; then at most about `KEPT_MAX` names and inodes (buckets are chosen until
//! their claims are that many, and one finding says that there is more); and as many directories without a name.

use std::collections::{BTreeMap, BTreeSet};

use oleo_format::{DirEntryRef, FileType, Ino, InodeExtrefEntryRef, InodeItem, InodeRefEntryRef, ItemType, Key};

use super::Context;
use super::claim::{self, Hash, PAIRS, Pair};
use super::inode_summary::Fields;
use crate::finding::Kind;

/// Buckets of each pair. A power of two.
const BUCKETS: usize = 1 << 14;
/// How many claims the second round keeps.
const KEPT_MAX: u64 = 1 << 16;

/// A claim that one item makes.
enum Claim<'a> {
    ByName {
        dir: u64,
        name: &'a [u8],
        to: Key,
        kind: FileType,
    },
    ByIndex {
        dir: u64,
        name: &'a [u8],
        index: u64,
        to: Key,
        kind: FileType,
    },
    Ref {
        dir: u64,
        name: &'a [u8],
        index: u64,
        ino: u64,
    },
    Inode {
        ino: u64,
        fields: Fields,
    },
    /// Made after all items of an inode that has an inode item.
    Named {
        ino: u64,
        fields: Fields,
        times: u64,
    },
    Orphan {
        ino: u64,
    },
}

/// The claims on one name in one directory.
#[derive(Default, Debug)]
struct Name {
    by_name: Vec<(Key, FileType)>,
    by_index: Vec<(u64, Key, FileType)>,
    refs: Vec<(u64, u64)>,
}

/// The claims on one inode.
#[derive(Default, Debug)]
struct Inode {
    fields: Option<Fields>,
    orphan: bool,
    /// Entries that lead to it: key, name, type.
    entries: Vec<(Key, Box<[u8]>, FileType)>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Bucket {
    sum: u128,
    claims: u32,
    kept: bool,
}

/// See the module's essay.
#[derive(Default, Debug)]
pub(super) struct SecondPass {
    round: u8,
    buckets: Vec<[Bucket; PAIRS]>,
    current: Option<Current>,
    names: BTreeMap<(u64, Box<[u8]>), Name>,
    inodes: BTreeMap<u64, Inode>,
    /// Directories without a name, which are to be deleted: what is left of their entries does not matter.
    dying: BTreeSet<u64>,
    left_out: u64,
}

/// The inode whose items are being fed.
#[derive(Debug)]
struct Current {
    ino: u64,
    fields: Option<Fields>,
    named: u64,
}

/// The bucket of all claims on one name.
fn name_bucket(dir: u64, name: &[u8]) -> usize {
    bucket(Hash::new(Pair::Names).word(dir).bytes(name))
}

/// The bucket of all claims on one inode.
fn ino_bucket(ino: u64) -> usize {
    bucket(Hash::new(Pair::Orphans).word(ino))
}

#[allow(clippy::cast_possible_truncation, reason = "the low bits are meant")]
fn bucket(hash: Hash) -> usize {
    hash.end() as usize % BUCKETS
}

impl SecondPass {
    /// Whether the whole tree must be read (once more).
    pub(super) fn again(&mut self) -> bool {
        self.leave_inode();
        self.round += 1;
        match self.round {
            1 => {
                self.buckets = vec![[Bucket::default(); PAIRS]; BUCKETS];
                true
            }
            2 => self.choose(),
            _ => false,
        }
    }

    /// Chooses the buckets to keep in the second round; false if there is none.
    fn choose(&mut self) -> bool {
        let mut claims = 0;
        let mut some = false;
        for bucket in self.buckets.iter_mut().flatten().filter(|bucket| bucket.sum != 0) {
            if some && claims >= KEPT_MAX {
                self.left_out += 1;
                continue;
            }
            bucket.kept = true;
            some = true;
            claims += u64::from(bucket.claims);
        }
        some
    }

    /// Takes the next item.
    pub(super) fn item(&mut self, key: &Key, item: &[u8]) {
        let dir = key.objectid;
        if key.item_type == ItemType::ORPHAN_ITEM {
            if dir == Key::ORPHAN {
                self.one_claim(Claim::Orphan { ino: key.offset });
            }
            return;
        }
        if self.current.as_ref().is_none_or(|current| current.ino != key.objectid) {
            self.leave_inode();
            self.current = Some(Current { ino: key.objectid, fields: None, named: 0 });
        }
        match key.item_type {
            ItemType::INODE_ITEM => {
                if let Ok(inode) = InodeItem::parse(item)
                    && key.objectid != Key::FREE_INO
                {
                    let fields = Fields::of(inode);
                    if let Some(current) = &mut self.current {
                        current.fields = Some(fields);
                    }
                    let is_dying = fields.nlink == 0 && fields.kind() == FileType::Dir;
                    if is_dying && (self.dying.len() as u64) < KEPT_MAX {
                        self.dying.insert(key.objectid);
                    }
                    self.one_claim(Claim::Inode { ino: key.objectid, fields });
                }
            }
            ItemType::INODE_REF => {
                for e in InodeRefEntryRef::iter(item).flatten() {
                    self.reference(key.offset, e.index, e.name, key.objectid);
                }
            }
            ItemType::INODE_EXTREF => {
                for e in InodeExtrefEntryRef::iter(item).flatten() {
                    self.reference(e.parent.0, e.index, e.name, key.objectid);
                }
            }
            ItemType::DIR_ITEM => {
                for e in DirEntryRef::iter(item).flatten() {
                    self.one_claim(Claim::ByName { dir, name: e.name, to: e.location, kind: e.file_type });
                }
            }
            ItemType::DIR_INDEX => {
                for e in DirEntryRef::iter(item).flatten() {
                    let index = key.offset;
                    self.one_claim(Claim::ByIndex { dir, name: e.name, index, to: e.location, kind: e.file_type });
                }
            }
            _ => {}
        }
    }

    fn reference(&mut self, dir: u64, index: u64, name: &[u8], ino: u64) {
        if ino == Ino::ROOT_DIR.0 && dir == ino {
            return;
        }
        if let Some(current) = &mut self.current {
            current.named += 1;
        }
        self.one_claim(Claim::Ref { dir, name, index, ino });
    }

    fn leave_inode(&mut self) {
        let Some(Current { ino, fields: Some(fields), named }) = self.current.take() else { return };
        self.one_claim(Claim::Named { ino, fields, times: named });
    }

    fn one_claim(&mut self, one_claim: Claim<'_>) {
        if self.round <= 1 { self.count(&one_claim) } else { self.keep(&one_claim) }
    }

    /// First round: adds to the buckets.
    fn count(&mut self, one_claim: &Claim<'_>) {
        match *one_claim {
            Claim::ByName { dir, name, to, kind } => {
                self.add(Pair::Entries, name_bucket(dir, name), claim::entry(claim::named(dir, name), to, kind));
            }
            Claim::ByIndex { dir, name, index, to, kind } => {
                let at = name_bucket(dir, name);
                self.add(Pair::Entries, at, claim::entry(claim::named(dir, name), to, kind).wrapping_neg());
                if to.item_type != ItemType::ROOT_ITEM {
                    self.add(Pair::Names, at, claim::name(claim::named(dir, name), index, to.objectid));
                    self.add(Pair::Types, ino_bucket(to.objectid), claim::kind(to.objectid, kind));
                }
            }
            Claim::Ref { dir, name, index, ino } => {
                self.add(
                    Pair::Names,
                    name_bucket(dir, name),
                    claim::name(claim::named(dir, name), index, ino).wrapping_neg(),
                );
            }
            Claim::Inode { ino, fields } => {
                if fields.nlink == 0 {
                    self.add(Pair::Orphans, ino_bucket(ino), claim::orphan(ino));
                }
            }
            Claim::Named { ino, fields, times } => {
                let hash = claim::kind(ino, fields.kind()).wrapping_mul(u128::from(times));
                self.add(Pair::Types, ino_bucket(ino), hash.wrapping_neg());
            }
            Claim::Orphan { ino } => {
                self.add(Pair::Orphans, ino_bucket(ino), claim::orphan(ino).wrapping_neg());
            }
        }
    }

    fn add(&mut self, pair: Pair, at: usize, hash: u128) {
        if let Some(bucket) = self.buckets.get_mut(at).and_then(|row| row.get_mut(pair as usize)) {
            bucket.sum = bucket.sum.wrapping_add(hash);
            bucket.claims = bucket.claims.saturating_add(1);
        }
    }

    fn is_kept(&self, at: usize, pairs: [Pair; 2]) -> bool {
        let Some(row) = self.buckets.get(at) else { return false };
        pairs.iter().any(|&pair| row.get(pair as usize).is_some_and(|bucket| bucket.kept))
    }

    /// Second round: keeps the claims on names and inodes in the chosen buckets.
    fn keep(&mut self, one_claim: &Claim<'_>) {
        const OF_NAME: [Pair; 2] = [Pair::Entries, Pair::Names];
        const OF_INODE: [Pair; 2] = [Pair::Types, Pair::Orphans];
        let name_at = match *one_claim {
            Claim::ByName { dir, name, .. } | Claim::ByIndex { dir, name, .. } | Claim::Ref { dir, name, .. } => {
                self.is_kept(name_bucket(dir, name), OF_NAME).then(|| (dir, Box::from(name)))
            }
            _ => None,
        };
        let ino = match *one_claim {
            Claim::ByIndex { to, .. } if to.item_type != ItemType::ROOT_ITEM => Some(to.objectid),
            Claim::Inode { ino, .. } | Claim::Orphan { ino } => Some(ino),
            _ => None,
        };
        if let Some(at) = name_at {
            let name = self.names.entry(at).or_default();
            match *one_claim {
                Claim::ByName { to, kind, .. } => name.by_name.push((to, kind)),
                Claim::ByIndex { index, to, kind, .. } => name.by_index.push((index, to, kind)),
                Claim::Ref { index, ino, .. } => name.refs.push((index, ino)),
                _ => {}
            }
        }
        if let Some(ino) = ino.filter(|&ino| self.is_kept(ino_bucket(ino), OF_INODE)) {
            let inode = self.inodes.entry(ino).or_default();
            match *one_claim {
                Claim::ByIndex { dir, name, index, kind, .. } => {
                    inode.entries.push((Key::dir_index(Ino(dir), index), name.into(), kind));
                }
                Claim::Inode { fields, .. } => inode.fields = Some(fields),
                Claim::Orphan { .. } => inode.orphan = true,
                _ => {}
            }
        }
    }

    /// Reports what was found.
    pub(super) fn end(self, c: &Context<'_>) {
        for ((dir, text), name) in self.names.iter().filter(|((dir, _), _)| !self.dying.contains(dir)) {
            check_entries(c, *dir, text, name);
            check_refs(c, *dir, text, name, &self.inodes);
        }
        for (ino, inode) in &self.inodes {
            check_inode(c, *ino, inode);
        }
        if self.left_out > 0 {
            let have = format_args!("{} more groups of names or inodes that do not match", self.left_out);
            c.error(Kind::DirEntry, Key::inode(Ino::ROOT_DIR), have, "none");
        }
    }
}

/// Compares the two entries of a name.
fn check_entries(c: &Context<'_>, dir: u64, text: &[u8], name: &Name) {
    let mut by_name = name.by_name.clone();
    let mut lone = Vec::new();
    for &(index, to, kind) in &name.by_index {
        match by_name.iter().position(|&e| e == (to, kind)) {
            Some(at) => {
                by_name.swap_remove(at);
            }
            None => lone.push((index, to, kind)),
        }
    }
    let text_shown = text.escape_ascii();
    for (index, to, kind) in lone {
        let key = Key::dir_item(Ino(dir), text);
        let have = match by_name.pop() {
            Some((to, kind)) => format!("`{text_shown}` to {to}, {kind:?}"),
            None => "nothing".to_owned(),
        };
        c.error(Kind::DirItem, key, have, format_args!("`{text_shown}` to {to}, {kind:?}, as index {index} says"));
    }
    for (to, kind) in by_name {
        let key = Key::dir_item(Ino(dir), text);
        c.error(Kind::DirIndex, key, format_args!("`{text_shown}` to {to}, {kind:?}"), "an entry by index too");
    }
}

/// Compares the entry by index with the reference of the inode.
fn check_refs(c: &Context<'_>, dir: u64, text: &[u8], name: &Name, inodes: &BTreeMap<u64, Inode>) {
    let mut refs = name.refs.clone();
    let mut lone = Vec::new();
    for &(index, to, _) in name.by_index.iter().filter(|(_, to, _)| to.item_type != ItemType::ROOT_ITEM) {
        match refs.iter().position(|&e| e == (index, to.objectid)) {
            Some(at) => {
                refs.swap_remove(at);
            }
            None => lone.push((index, to.objectid)),
        }
    }
    let text = text.escape_ascii();
    for (index, ino) in lone {
        if let Some(at) = refs.iter().position(|&(_, other)| other == ino) {
            let (have, _) = refs.swap_remove(at);
            let key = Key::inode_ref(Ino(ino), Ino(dir));
            c.error(Kind::InodeRef, key, format_args!("`{text}` with index {have}"), index);
        } else if inodes.get(&ino).is_some_and(|inode| inode.fields.is_none()) {
            let key = Key::dir_index(Ino(dir), index);
            c.error(Kind::DirEntryDangling, key, format_args!("`{text}` to inode {ino}"), "an existing inode");
        } else {
            let key = Key::inode_ref(Ino(ino), Ino(dir));
            c.error(Kind::InodeRef, key, "nothing", format_args!("`{text}` with index {index}"));
        }
    }
    for (index, ino) in refs {
        // If the entry by name exists, the missing one is that by index, which is already reported.
        if !name.by_name.iter().any(|(to, _)| to.objectid == ino) {
            let key = Key::dir_index(Ino(dir), index);
            c.error(Kind::DirEntry, key, "nothing", format_args!("`{text}` to inode {ino}, which says so"));
        }
    }
}

fn check_inode(c: &Context<'_>, ino: u64, inode: &Inode) {
    if inode.orphan && inode.fields.is_none_or(|fields| fields.nlink > 0) {
        let want = match inode.fields {
            Some(fields) => format!("none: nlink is {}", fields.nlink),
            None => "none: there is no such inode".to_owned(),
        };
        c.warning(Kind::OrphanStale, Key::orphan(ino), "an orphan", want);
    }
    let Some(fields) = &inode.fields else { return };
    for (key, name, kind) in inode.entries.iter().filter(|(_, _, kind)| *kind != fields.kind()) {
        let have = format_args!("`{}` a {kind:?}", name.escape_ascii());
        c.error(Kind::DirEntryType, *key, have, format_args!("a {:?}", fields.kind()));
    }
    if fields.nlink == 0 && !inode.orphan {
        c.error(Kind::OrphanMissing, Key::inode(Ino(ino)), "no name, no orphan item", "one of them");
    }
}

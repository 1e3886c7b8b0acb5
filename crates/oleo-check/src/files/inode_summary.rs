//! One inode, as far as its items have been seen.
//!
//! The items of an inode may be in several leaves. An [`InodeSummary`] describes some adjacent ones: sums and ends, no
//! lists, so it is small however large the inode. Parts that meet are joined ([`InodeSummary::then`]). If items of
//! other inodes are on both sides, the inode is complete and [`InodeSummary::check`] reports what is wrong with it.

use std::sync::Arc;

use oleo_format::{FileType, Ino, InodeFlags, InodeItem, Key, Logical, TreeId};

use super::claim::{self, Pair};
use super::closed::Closed;
use super::extents::{Extent, Run};
use super::{Context, DataNeed};
use crate::finding::Kind;

/// The names of verity items that an inode has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Verity {
    pub descriptor: bool,
    pub merkle: bool,
}

/// The fields of the inode item that are compared with something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fields {
    pub mode: u32,
    pub nlink: u32,
    pub size: u64,
    pub nbytes: u64,
    pub flags: InodeFlags,
}

impl Fields {
    pub(crate) fn of(item: &InodeItem) -> Fields {
        Fields {
            mode: item.mode.get(),
            nlink: item.nlink.get(),
            size: item.size.get(),
            nbytes: item.nbytes.get(),
            flags: InodeFlags::from_bits_retain(item.flags.get()),
        }
    }

    pub(crate) fn kind(&self) -> FileType {
        FileType::of_mode(self.mode)
    }
}

/// One inode, as far as its items have been seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct InodeSummary {
    pub ino: u64,
    /// The owner and the address of the leaf that the first of these items is in, where findings are placed. So trees
    /// that share the leaf report the same.
    pub tree: TreeId,
    pub block: Option<Logical>,
    /// Its inode item, which comes before all others.
    pub fields: Option<Fields>,
    /// Names counted from INODE_REF and INODE_EXTREF.
    pub refs: u64,
    /// The directory of the first name; 0 is none.
    pub parent: u64,
    /// Bytes of names in DIR_ITEM and DIR_INDEX.
    pub entry_bytes: u64,
    /// Entries in DIR_INDEX.
    pub entries: u64,
    pub verity: Verity,
    pub run: Option<Run>,
    /// Data on disk that may need checksums: the inode item has not been seen yet. One list for each leaf, shared by
    /// all that contain the leaf.
    pub pending: Vec<Arc<[(u64, u64)]>>,
    /// A neighbouring block is lost, which may have held more of it: it is not checked.
    pub torn: bool,
}

impl InodeSummary {
    pub(crate) fn new(ino: u64, c: &Context<'_>) -> InodeSummary {
        InodeSummary {
            ino,
            tree: c.tree,
            block: c.block,
            fields: None,
            refs: 0,
            parent: 0,
            entry_bytes: 0,
            entries: 0,
            verity: Verity::default(),
            run: None,
            pending: Vec::new(),
            torn: false,
        }
    }

    fn place<'a>(&self, c: &Context<'a>) -> Context<'a> {
        Context { tree: self.tree, block: self.block, ..*c }
    }

    /// Adds a file extent; `fresh` collects data that waits for the inode item.
    pub(crate) fn extent(&mut self, c: &Context<'_>, e: &Extent, fresh: &mut Vec<(u64, u64)>) {
        if let Some(data) = e.data {
            match &self.fields {
                Some(fields) => need(fields, data, c),
                None => fresh.push(data),
            }
        }
        if let Some((have, want)) = e.odd {
            let key = Key::extent_data(Ino(self.ino), e.run.start);
            c.error(Kind::FileExtentLength, key, have, want);
        }
        let (run, overlap) = match self.run {
            Some(run) => run.then(e.run),
            None => (e.run, None),
        };
        self.run = Some(run);
        self.overlap(c, overlap);
    }

    fn overlap(&self, c: &Context<'_>, overlap: Option<(u64, u64)>) {
        if let Some((start, end)) = overlap {
            let key = Key::extent_data(Ino(self.ino), start);
            c.error(Kind::FileExtentOverlap, key, format_args!("the one before ends at {end}"), "no overlap");
        }
    }

    /// Joins this part and the one that follows it, of the same inode.
    pub(crate) fn then(&self, next: &InodeSummary, c: &Context<'_>) -> InodeSummary {
        let run = match (self.run, next.run) {
            (Some(a), Some(b)) => {
                let (run, overlap) = a.then(b);
                self.overlap(&next.place(c), overlap);
                Some(run)
            }
            (a, b) => a.or(b),
        };
        let fields = self.fields.or(next.fields);
        let mut pending = Vec::new();
        for list in self.pending.iter().chain(&next.pending) {
            match &fields {
                Some(fields) => list.iter().for_each(|&data| need(fields, data, c)),
                None => pending.push(Arc::clone(list)),
            }
        }
        InodeSummary {
            ino: self.ino,
            tree: self.tree,
            block: self.block,
            fields,
            refs: self.refs.saturating_add(next.refs),
            parent: if self.parent != 0 { self.parent } else { next.parent },
            entry_bytes: self.entry_bytes.wrapping_add(next.entry_bytes),
            entries: self.entries.saturating_add(next.entries),
            verity: Verity {
                descriptor: self.verity.descriptor || next.verity.descriptor,
                merkle: self.verity.merkle || next.verity.merkle,
            },
            run,
            pending,
            torn: self.torn || next.torn,
        }
    }

    /// Checks the inode, whose items have all been seen, and adds it to what is known of the tree.
    pub(crate) fn check(&self, c: &Context<'_>, closed: &mut Closed, dirs: &mut Vec<(u64, u64)>) {
        let c = &self.place(c);
        let key = Key::inode(Ino(self.ino));
        if self.torn {
            return;
        }
        let Some(fields) = &self.fields else {
            c.error(Kind::InodeMissing, key, "other items of the inode", "an inode item");
            return;
        };
        if self.ino == Key::FREE_INO {
            c.error(Kind::InodeCache, key, "a cache of free inode numbers", "none: no kernel has kept them since 5.11");
            return;
        }
        let kind = fields.kind();
        closed.sums.minus(Pair::Types, claim::kind(self.ino, kind), self.named());
        if fields.nlink == 0 {
            closed.sums.plus(Pair::Orphans, claim::orphan(self.ino));
        }
        if kind == FileType::Dir && ![0, Ino::ROOT_DIR.0].contains(&self.parent) {
            dirs.push((self.ino, self.parent));
            let edge = claim::edge(self.ino, self.parent);
            closed.edges = closed.edges.wrapping_add(edge);
            closed.upward |= self.parent >= self.ino;
        }
        if self.ino == Ino::ROOT_DIR.0 {
            closed.root_dir = Some(kind == FileType::Dir);
        }
        if u64::from(fields.nlink) != self.refs {
            c.error(Kind::InodeLinks, key, format_args!("nlink {}", fields.nlink), self.refs);
        }
        if kind == FileType::Dir {
            self.check_dir(fields, c)
        } else {
            self.check_file(fields, c)
        }
        self.check_verity(fields, c);
    }

    /// How many entries name it, without the root directory's reference to itself.
    fn named(&self) -> u64 {
        if self.ino == Ino::ROOT_DIR.0 { self.refs.saturating_sub(1) } else { self.refs }
    }

    fn check_dir(&self, fields: &Fields, c: &Context<'_>) {
        let key = Key::inode(Ino(self.ino));
        // An inode without a name is not checked here: eviction removes entries without counting.
        if fields.size != self.entry_bytes && fields.nlink > 0 {
            c.error(Kind::DirSize, key, fields.size, self.entry_bytes);
        }
        if let Some(run) = &self.run {
            let at = Key::extent_data(Ino(self.ino), run.start);
            c.error(Kind::FileExtentOdd, at, "a file extent", "none in a directory");
        }
        if self.refs > 1 {
            c.error(Kind::DirLinks, key, format_args!("{} names", self.refs), "one name");
        }
    }

    fn check_file(&self, fields: &Fields, c: &Context<'_>) {
        let key = Key::inode(Ino(self.ino));
        let kind = fields.kind();
        if self.entry_bytes > 0 {
            c.error(Kind::DirEntryOdd, key, "directory entries", format_args!("none in a {kind:?}"));
        }
        let nbytes = self.run.map_or(0, |run| run.nbytes);
        match kind {
            FileType::RegFile | FileType::Symlink => {
                // Eviction removes extents without counting, over several transactions.
                if fields.nbytes != nbytes && fields.nlink > 0 {
                    c.error(Kind::FileBytes, key, fields.nbytes, nbytes);
                }
            }
            _ => {
                if let Some(run) = &self.run {
                    let at = Key::extent_data(Ino(self.ino), run.start);
                    c.error(Kind::FileExtentOdd, at, "a file extent", format_args!("none in a {kind:?}"));
                }
            }
        }
        if fields.flags.contains(InodeFlags::NODATASUM) && self.run.is_some_and(|run| run.compressed) {
            c.error(Kind::FileCompressed, key, "compressed extents", "none in a file without checksums");
        }
        if kind == FileType::Symlink && fields.flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
            c.error(Kind::InodeFlags, key, "immutable or append-only", "neither for a symbolic link");
        }
        if kind == FileType::Symlink {
            let inline = self.run.filter(|run| run.count == 1).and_then(|run| run.inline);
            // Targets are read up to the size: mkfs.btrfs stores a zero byte behind those of `--rootdir`.
            if inline.is_none_or(|len| len < fields.size) && fields.nlink > 0 {
                let have = inline.map_or_else(|| "no inline extent alone".to_owned(), |len| format!("{len} bytes"));
                c.error(Kind::SymlinkSize, key, have, format_args!("one of {} bytes", fields.size));
            }
        }
        if kind == FileType::RegFile
            && !c.no_holes
            && fields.nlink > 0
            && let Some(at) = Run::hole_below(self.run.as_ref(), fields.size)
        {
            let key = Key::extent_data(Ino(self.ino), at);
            c.error(Kind::FileHole, key, "no file extent", "one for every sector, holes too");
        }
    }

    fn check_verity(&self, fields: &Fields, c: &Context<'_>) {
        let key = Key::inode(Ino(self.ino));
        let flagged = fields.flags.contains(InodeFlags::RO_VERITY);
        if flagged && !self.verity.descriptor {
            c.error(Kind::Verity, key, "the verity flag", "a verity descriptor");
        }
        if flagged && fields.kind() != FileType::RegFile {
            c.error(Kind::Verity, key, format_args!("a {:?}", fields.kind()), "verity on regular files");
        }
    }
}

/// Reports whether data needs checksums.
fn need(fields: &Fields, (start, len): (u64, u64), c: &Context<'_>) {
    if c.data_sums {
        (c.reporter.data)(DataNeed { start, len, sums: !fields.flags.contains(InodeFlags::NODATASUM) });
    }
}

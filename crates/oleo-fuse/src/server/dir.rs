//! Listing directories.
//!
//! Offsets: 1 is behind ".", 2 behind "..", and `index + 1` behind the entry of that index, so that an offset stays
//! valid whatever is created or removed meanwhile. A listing ends with the entries that existed when it began (offset
//! 0): otherwise a program that renames each listed entry would never reach the end.

use oleo::fs::{DirEntryInfo, FileKind, Target};
use oleo_fs::InodeRef;

use super::{Answer, Errno, Server};
use crate::wire::Reply;
use crate::wire::abi;

/// Entries that one look into the directory brings: about what a reply holds of short names.
const ENTRIES_PER_LOOK: usize = 512;
/// The same if each entry comes with its inode.
const ENTRIES_PER_LOOK_PLUS: usize = 128;
/// The highest index that is behind no entry: "." and ".." have 0 and 1.
const BEFORE_FIRST: u64 = 1;

/// `DT_*` of a kind.
fn dirent_type(kind: FileKind) -> u32 {
    kind.mode_bits() >> 12
}

impl Server {
    fn target_number(&self, dir: &InodeRef, entry: &DirEntryInfo) -> u64 {
        match entry.target {
            Target::Inode(ino) => self.nodes.number(dir.tree(), ino),
            Target::Subvol(tree) => self.nodes.number(tree, oleo::fs::Ino::ROOT_DIR),
        }
    }

    /// The number of the parent directory. The root of the mount has none, nor has a removed directory.
    fn parent_number(&self, dir: &InodeRef) -> Option<u64> {
        if dir.is_empty_subvol_dir() || self.nodes.id(dir.tree(), dir.ino()) == abi::ROOT_ID {
            return None;
        }
        let up = self.fs.parent(dir).ok()??;
        Some(self.nodes.number(up.tree(), up.ino()))
    }

    /// "." and ".."; false when the reply is full.
    fn dots(&self, dir: &InodeRef, from: u64, plus: bool, reply: &mut Reply<'_>) -> Result<bool, Errno> {
        let this = self.nodes.number(dir.tree(), dir.ino());
        let up = if from > 1 { this } else { self.parent_number(dir).unwrap_or(this) };
        for (at, name, ino) in [(0u64, &b"."[..], this), (1, &b".."[..], up)] {
            if from > at {
                continue;
            }
            let dirent =
                abi::Dirent { ino, off: at + 1, namelen: name.len() as u32, r#type: dirent_type(FileKind::Dir) };
            let nothing = abi::EntryOut::default();
            if !reply.entry(plus.then_some(&nothing), &dirent, name) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The highest index that this part of a listing may have.
    fn listing_end(&self, node: u64, dir: &InodeRef, offset: u64) -> Result<u64, Errno> {
        if offset == 0 && !dir.is_empty_subvol_dir() {
            let last = self.fs.last_index(dir).map_err(|e| self.errno("readdir", &e))?;
            self.nodes.list_up_to(node, last);
        }
        // The kernel has no offsets beyond.
        Ok(self.nodes.listed_to(node).min(i64::MAX as u64 - 1))
    }

    pub(super) fn readdir(&self, node: u64, args: &abi::ReadIn, reply: &mut Reply<'_>) -> Answer {
        let dir = self.inode(node)?;
        reply.limit(args.size as usize);
        if !self.dots(&dir, args.offset, false, reply)? {
            return Ok(());
        }
        let end = self.listing_end(node, &dir, args.offset)?;
        let mut after = args.offset.saturating_sub(1).max(BEFORE_FIRST);
        'reply: loop {
            let entries = self.fs.readdir(&dir, after, ENTRIES_PER_LOOK).map_err(|e| self.errno("readdir", &e))?;
            for entry in &entries {
                if entry.index > end {
                    break 'reply;
                }
                let dirent = self.dirent(&dir, entry);
                if !reply.entry(None, &dirent, &entry.name) {
                    break 'reply;
                }
                after = entry.index;
            }
            if entries.len() < ENTRIES_PER_LOOK {
                break;
            }
        }
        self.touch(&dir, FileKind::Dir);
        Ok(())
    }

    fn dirent(&self, dir: &InodeRef, entry: &DirEntryInfo) -> abi::Dirent {
        abi::Dirent {
            ino: self.target_number(dir, entry),
            off: entry.index + 1,
            namelen: entry.name.len() as u32,
            r#type: dirent_type(entry.kind),
        }
    }

    pub(super) fn readdir_plus(&self, node: u64, args: &abi::ReadIn, reply: &mut Reply<'_>) -> Answer {
        let dir = self.inode(node)?;
        reply.limit(args.size as usize);
        if !self.dots(&dir, args.offset, true, reply)? {
            return Ok(());
        }
        let end = self.listing_end(node, &dir, args.offset)?;
        let mut after = args.offset.saturating_sub(1).max(BEFORE_FIRST);
        'reply: loop {
            let entries = if self.has_many_nodes() {
                let alone = self.fs.readdir(&dir, after, ENTRIES_PER_LOOK_PLUS);
                alone.map(|entries| entries.into_iter().map(|entry| (entry, None)).collect::<Vec<_>>())
            } else {
                self.fs.readdir_plus(&dir, after, ENTRIES_PER_LOOK_PLUS)
            };
            let entries = entries.map_err(|e| self.errno("readdirplus", &e))?;
            let last = entries.len() < ENTRIES_PER_LOOK_PLUS;
            for (entry, inode) in entries {
                if entry.index > end {
                    break 'reply;
                }
                let dirent = self.dirent(&dir, &entry);
                let before = reply.len();
                // Check the room first: once a node was counted, the kernel must get it.
                if !reply.entry(Some(&abi::EntryOut::default()), &dirent, &entry.name) {
                    break 'reply;
                }
                if let Some(inode) = inode {
                    reply.cut(before);
                    let reported = self.entry(inode);
                    assert!(reply.entry(Some(&reported), &dirent, &entry.name), "it did fit");
                }
                after = entry.index;
            }
            if last {
                break;
            }
        }
        self.touch(&dir, FileKind::Dir);
        Ok(())
    }
}

//! Two subvolumes compared: what was added, removed and changed. Parts of their trees that both share are not read.

use std::io;
use std::ops::ControlFlow;

use oleo_format::{Ino, InodeItem, ItemType, Key, TreeId};
use oleo_fs::{Fs, FsError};
use oleo_tree::{Diff, TreeError};
use serde_json::json;

use crate::name_text;
use crate::output::Output;
use crate::query::{Query, encoded};
use crate::refused::{Refused, Unread, wrong};
use crate::reply::Reply;

/// Differences that are told, at most.
const TOLD_MAX: u64 = 50_000;

/// What differs of one inode.
#[derive(Default)]
struct Change {
    added: bool,
    removed: bool,
    /// Its number has been given to another file.
    replaced: bool,
    contents: bool,
    names: bool,
    /// What somebody has set: mode, owner, flags, extended attributes.
    attributes: bool,
    /// Entries of a directory, which are told by themselves; they change its size and times.
    entries: bool,
    /// Anything of its inode.
    inode: bool,
}

impl Change {
    fn word(&self) -> Option<&'static str> {
        Some(match self {
            Change { added: true, .. } => "added",
            Change { removed: true, .. } => "removed",
            Change { replaced: true, .. } => "replaced",
            Change { contents: true, .. } => "contents",
            Change { names: true, .. } => "names",
            Change { attributes: true, .. } => "attributes",
            Change { entries: true, .. } => return None,
            Change { inode: true, .. } => "attributes",
            _ => return None,
        })
    }

    fn note(&mut self, diff: &Diff<'_>) {
        let (key, a, b) = match *diff {
            Diff::OnlyA { key, a } => (key, Some(a), None),
            Diff::OnlyB { key, b } => (key, None, Some(b)),
            Diff::Changed { key, a, b } => (key, Some(a), Some(b)),
        };
        match key.item_type {
            ItemType::INODE_ITEM => match (a, b) {
                (Some(_), None) => self.removed = true,
                (None, Some(_)) => self.added = true,
                (Some(a), Some(b)) => {
                    let parsed = |item| InodeItem::parse(item).ok();
                    let born = |item: Option<&InodeItem>| item.map(|item| item.generation.get());
                    let set = |item: Option<&InodeItem>| {
                        item.map(|item| {
                            (item.mode.get(), item.uid.get(), item.gid.get(), item.rdev.get(), item.flags.get())
                        })
                    };
                    let (a, b) = (parsed(a), parsed(b));
                    self.replaced |= born(a) != born(b);
                    self.attributes |= set(a) != set(b);
                    self.inode = true;
                }
                (None, None) => {}
            },
            ItemType::EXTENT_DATA | ItemType::VERITY_DESC_ITEM => self.contents = true,
            ItemType::INODE_REF | ItemType::INODE_EXTREF => self.names = true,
            ItemType::XATTR_ITEM => self.attributes = true,
            ItemType::DIR_ITEM | ItemType::DIR_INDEX => self.entries = true,
            _ => {}
        }
    }
}

fn key_of(diff: &Diff<'_>) -> Key {
    match diff {
        Diff::OnlyA { key, .. } | Diff::OnlyB { key, .. } | Diff::Changed { key, .. } => *key,
    }
}

/// The end of a comparison before its end.
enum Stop {
    Tree(TreeError),
    Output(io::Error),
}

impl From<TreeError> for Stop {
    fn from(error: TreeError) -> Stop {
        Stop::Tree(error)
    }
}

pub(crate) fn compare(fs: &Fs, query: &Query<'_>) -> Result<Reply, Unread> {
    let (old, new) = (TreeId(query.number("old", 0)?), TreeId(query.number("new", 0)?));
    let root = |id: TreeId| {
        if !id.is_subvol() {
            return Err(Unread::from(wrong(format!("{} is no subvolume", id.0))));
        }
        let root = fs.engine().root(id).map_err(FsError::from)?;
        root.ok_or_else(|| Refused { status: 404, why: format!("there is no subvolume {}", id.0) }.into())
    };
    let (old_root, new_root) = (root(old)?, root(new)?);
    let fs = fs.clone();
    Ok(Reply::lines(move |out| {
        let mut at = 0u64;
        let mut change = Change::default();
        let mut told = 0;
        let done = fs.engine().blocks().diff(&old_root, &new_root, |diff| {
            let ino = key_of(&diff).objectid;
            if ino != at {
                told += tell(&fs, old, new, at, &change, out).map_err(Stop::Output)?;
                (at, change) = (ino, Change::default());
            }
            change.note(&diff);
            if told >= TOLD_MAX || !out.is_read() {
                return Ok(ControlFlow::Break(()));
            }
            Ok(ControlFlow::Continue(()))
        });
        match done {
            Ok(()) => {
                told += tell(&fs, old, new, at, &change, out)?;
                out.line(&json!({ "done": true, "told": told, "more": told >= TOLD_MAX }))
            }
            Err(Stop::Output(error)) => Err(error),
            Err(Stop::Tree(error)) => out.line(&json!({ "error": name_text(error.to_string().as_bytes()) })),
        }
    }))
}

/// Tells what differs of an inode, with its path in the subvolume that has it; how many lines that is.
fn tell(fs: &Fs, old: TreeId, new: TreeId, ino: u64, change: &Change, out: &mut dyn Output) -> io::Result<u64> {
    let Some(word) = change.word().filter(|_| (Ino::FIRST.0..=Ino::LAST.0).contains(&ino)) else { return Ok(0) };
    let tree = if change.removed { old } else { new };
    let paths = fs.subvol(tree).and_then(|subvol| fs.inode(&subvol, Ino(ino))).and_then(|inode| fs.paths(&inode));
    let path = paths.ok().and_then(|paths| paths.into_iter().next());
    let text = path.as_ref().map_or_else(|| format!("(inode {ino})"), |path| name_text(path));
    out.line(&json!({ "change": word, "path": text, "raw": path.map(|path| encoded(&path)), "subvolume": tree.0 }))?;
    Ok(1)
}

//! Two subvolumes compared: what was added, removed and changed. Parts of their trees that both share are not read.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use oleo::Image;
use oleo::control::{Caller, Reply as Replied, Request, execute};
use oleo::layers::format::{Ino, InodeItem, ItemType, Key, TreeId};
use oleo::layers::tree::{Diff, TreeError};
use serde_json::json;

use super::body::Pieces;
use super::query::{Query, Refused, encoded, wrong};
use super::reply::Reply;
use super::volume::{Current, Unread};
use crate::name_text;

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

pub(super) fn compare(volume: &Arc<Current>, query: &Query<'_>) -> Result<Reply, Refused> {
    let (old, new) = (TreeId(query.number("old", 0)?), TreeId(query.number("new", 0)?));
    let root = |image: &Image, id: TreeId| {
        if !id.is_subvol() {
            return Err(Unread::from(wrong(format!("{} is no subvolume", id.0))));
        }
        let root = image.fs().engine().root(id).map_err(oleo::Error::from)?;
        root.ok_or_else(|| (hyper::StatusCode::NOT_FOUND, format!("there is no subvolume {}", id.0)).into())
    };
    let (image, old_root, new_root) = volume.read(|image| Ok((image.clone(), root(image, old)?, root(image, new)?)))?;
    Ok(Reply::lines(move |out| {
        let mut at = 0u64;
        let mut change = Change::default();
        let mut told = 0;
        let done = image.fs().engine().blocks().diff(&old_root, &new_root, |diff| {
            let ino = key_of(&diff).objectid;
            if ino != at {
                told += tell(&image, old, new, at, &change, out).map_err(Stop::Output)?;
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
                told += tell(&image, old, new, at, &change, out)?;
                out.line(&json!({ "done": true, "told": told, "more": told >= TOLD_MAX }))
            }
            Err(Stop::Output(error)) => Err(error),
            Err(Stop::Tree(error)) => out.line(&json!({ "error": name_text(error.to_string().as_bytes()) })),
        }
    }))
}

/// Tells what differs of an inode, with its path in the subvolume that has it; how many lines that is.
fn tell(image: &Image, old: TreeId, new: TreeId, ino: u64, change: &Change, out: &mut Pieces) -> io::Result<u64> {
    let Some(word) = change.word().filter(|_| (Ino::FIRST.0..=Ino::LAST.0).contains(&ino)) else { return Ok(0) };
    let tree = if change.removed { old } else { new };
    let paths = execute(image, &Caller::owner(), Request::InodeResolve { tree, ino: Ino(ino) });
    let path = match paths {
        Ok((Replied::Paths(paths), _)) => paths.into_iter().next(),
        _ => None,
    };
    let text = path.as_ref().map_or_else(|| format!("(inode {ino})"), |path| name_text(&path.0));
    out.line(&json!({ "change": word, "path": text, "raw": path.map(|path| encoded(&path.0)), "subvolume": tree.0 }))?;
    Ok(1)
}

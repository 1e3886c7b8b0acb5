//! Search by name: a walk from a directory down, whose finds are told as they come.

use oleo_fs::{Descent, FileKind, Fs, InodeRef};
use serde_json::json;

use crate::files::{kind_name, named};
use crate::name_text;
use crate::query::{Query, encoded};
use crate::refused::{Unread, wrong};
use crate::reply::Reply;

/// Finds, at most.
const FOUND_MAX: usize = 1000;
/// Entries of a directory read at a time.
const ENTRIES_AT_ONCE: usize = 4096;
/// Directories that wait to be looked into, and the bytes of their paths; beyond that, what is in further ones is left out, and said.
const WAITING_MAX: usize = 1 << 20;
const WAITING_PATH_BYTES_MAX: usize = 128 << 20;
/// After how many names it is told how many that were.
const TOLD_EVERY: u64 = 1 << 16;

/// Directories that wait to be looked into, with their paths.
#[derive(Default)]
struct Due {
    dirs: Vec<(InodeRef, Vec<u8>)>,
    path_bytes: usize,
}

impl Due {
    /// Adds one; whether there is room.
    fn push(&mut self, dir: InodeRef, path: Vec<u8>) -> bool {
        if self.dirs.len() >= WAITING_MAX || self.path_bytes + path.len() > WAITING_PATH_BYTES_MAX {
            return false;
        }
        self.path_bytes += path.len();
        self.dirs.push((dir, path));
        true
    }

    fn pop(&mut self) -> Option<(InodeRef, Vec<u8>)> {
        let (dir, path) = self.dirs.pop()?;
        self.path_bytes -= path.len();
        Some((dir, path))
    }
}

pub(crate) fn search(fs: &Fs, query: &Query<'_>) -> Result<Reply, Unread> {
    let wanted = query.bytes("name").filter(|name| !name.is_empty()).ok_or_else(|| wrong("no name to search for"))?;
    let wanted = wanted.to_ascii_lowercase();
    let names = query.path()?;
    let (start, _) = named(fs, query)?;
    if fs.attr(&start).kind != FileKind::Dir {
        return Err(wrong("not a directory").into());
    }
    let fs = fs.clone();
    Ok(Reply::lines(move |out| {
        let mut descent = Descent::new(&start);
        let mut due = Due::default();
        due.push(start, names.join(&b'/'));
        let (mut looked_at, mut found, mut left_out, mut unread) = (0u64, 0usize, 0u64, 0u64);
        let mut told = 0;
        'walk: while let Some((dir, path)) = due.pop() {
            let mut after = 0;
            loop {
                let Ok(batch) = fs.readdir(&dir, after, ENTRIES_AT_ONCE) else {
                    unread += 1;
                    break;
                };
                let Some(last) = batch.last() else { break };
                after = last.index;
                for entry in &batch {
                    looked_at += 1;
                    let join = || match path.is_empty() {
                        true => entry.name.clone(),
                        false => [&path[..], b"/", &entry.name].concat(),
                    };
                    if contains(&entry.name, &wanted) {
                        let path = join();
                        out.line(
                            &json!({ "path": name_text(&path), "raw": encoded(&path), "kind": kind_name(entry.kind) }),
                        )?;
                        found += 1;
                        if found == FOUND_MAX {
                            break 'walk;
                        }
                    }
                    if entry.kind == FileKind::Dir {
                        match fs.open_entry(&dir, entry) {
                            Ok(Some(child)) => {
                                if descent.enters(&fs, &dir, &entry.name, &child) && !due.push(child, join()) {
                                    left_out += 1;
                                }
                            }
                            Ok(None) => {}
                            Err(_) => unread += 1,
                        }
                    }
                }
                if looked_at - told > TOLD_EVERY {
                    told = looked_at;
                    out.line(&json!({ "looked_at": looked_at }))?;
                }
                if !out.is_read() {
                    return Ok(());
                }
            }
        }
        out.line(&json!({ "done": true, "looked_at": looked_at, "more": found == FOUND_MAX, "left_out": left_out, "unread": unread }))
    }))
}

/// Whether a name has a part in it, letters of ASCII in either case.
fn contains(name: &[u8], lower: &[u8]) -> bool {
    name.len() >= lower.len() && name.windows(lower.len()).any(|part| part.eq_ignore_ascii_case(lower))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what waits to be looked into is bounded in the bytes of paths, too, and there is room again when it has been looked into.
    #[test]
    fn paths_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let image = oleo::Image::create(dir.path().join("disk.img"), 512 << 20).unwrap();
        let top = image.top().unwrap();
        let mut due = Due::default();
        let half = vec![b'a'; WAITING_PATH_BYTES_MAX / 2];
        assert!(due.push(top.clone(), half.clone()) && due.push(top.clone(), half.clone()));
        assert!(!due.push(top.clone(), vec![b'a']) && due.push(top.clone(), Vec::new()));
        assert!(due.pop().is_some_and(|(_, path)| path.is_empty()) && due.pop().is_some());
        assert!(due.push(top, half));
    }
}

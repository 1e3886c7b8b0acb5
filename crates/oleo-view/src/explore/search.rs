//! Search by name: a walk from a directory down, whose finds are told as they come.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oleo::fs::{Descent, FileKind, InodeRef};
use serde_json::json;

use super::files::{kind_name, named};
use super::query::{Query, Refused, encoded, wrong};
use super::reply::Reply;
use super::volume::{Current, refused};
use crate::name_text;

/// Finds, at most.
const FOUND_MAX: usize = 1000;
/// Entries of a directory read at a time.
const ENTRIES_AT_ONCE: usize = 4096;
/// Directories that wait to be looked into; beyond that, what is in further ones is left out, and said.
const WAITING_MAX: usize = 1 << 20;
/// How often progress is told.
const TOLD_EVERY: Duration = Duration::from_millis(200);

pub(super) fn search(volume: &Arc<Current>, query: &Query<'_>) -> Result<Reply, Refused> {
    let wanted = query.bytes("name").filter(|name| !name.is_empty()).ok_or_else(|| wrong("no name to search for"))?;
    let wanted = wanted.to_ascii_lowercase();
    let image = volume.image().map_err(refused)?;
    let names = query.path()?;
    let (start, _) = named(&image, query)?;
    if image.fs().attr(&start).kind != FileKind::Dir {
        return Err(wrong("not a directory"));
    }
    Ok(Reply::lines(move |out| {
        let mut descent = Descent::new(&start);
        let mut due: Vec<(InodeRef, Vec<u8>)> = vec![(start, names.join(&b'/'))];
        let (mut looked_at, mut found, mut left_out, mut unread) = (0u64, 0usize, 0u64, 0u64);
        let mut told = Instant::now();
        'walk: while let Some((dir, path)) = due.pop() {
            let mut after = 0;
            loop {
                let Ok(batch) = image.fs().readdir(&dir, after, ENTRIES_AT_ONCE) else {
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
                        match image.fs().open_entry(&dir, entry) {
                            Ok(Some(child)) if due.len() < WAITING_MAX => {
                                if descent.enters(image.fs(), &dir, &entry.name, &child) {
                                    due.push((child, join()));
                                }
                            }
                            Ok(Some(_)) => left_out += 1,
                            Ok(None) => {}
                            Err(_) => unread += 1,
                        }
                    }
                }
                if told.elapsed() > TOLD_EVERY {
                    told = Instant::now();
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

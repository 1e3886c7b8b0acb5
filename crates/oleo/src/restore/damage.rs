//! Reading what is left beside damage.
//!
//! A tree block that cannot be read hides a range of keys. The entries of a directory, and the extents of a file, behind that range
//! are readable; the end of the range is found by trying.

use std::ops::Range;

use oleo_format::{Classified, Corruption, ErrorKind};
use oleo_fs::{DirEntryInfo, Fs, FsError, InodeRef, Target};

use crate::Error;

/// Entries of a directory.
pub(super) struct Listed {
    pub entries: Vec<DirEntryInfo>,
    /// The index to continue after; `None` at the end.
    pub next: Option<u64>,
    /// Entries between the last of these and `next` cannot be read.
    pub lost: Option<FsError>,
}

/// At most `limit` entries of a directory after an index, and how to read on.
pub(super) fn list(fs: &Fs, dir: &InodeRef, after: u64, limit: usize) -> Listed {
    let error = match fs.readdir(dir, after, limit) {
        Ok(entries) => {
            let next = if entries.len() == limit { entries.last().map(|last| last.index) } else { None };
            return Listed { entries, next, lost: None };
        }
        Err(error) => error,
    };
    if !is_damage(&error) {
        return Listed { entries: Vec::new(), next: None, lost: Some(error) };
    }
    let mut entries = Vec::new();
    let mut last = after;
    while entries.len() < limit
        && let Ok(mut one) = fs.readdir(dir, last, 1)
        && let Some(one) = one.pop()
    {
        last = one.index;
        entries.push(one);
    }
    if !entries.is_empty() {
        return Listed { entries, next: Some(last), lost: None };
    }
    let next = next_good(after, |after| fs.readdir(dir, after, 1).is_ok());
    Listed { entries, next, lost: Some(error) }
}

/// A run of a file that holds data.
pub(super) struct Run {
    pub range: Range<u64>,
    /// Why none of it can be read, if that is known without reading: it is as long as a damaged extent map says, which may
    /// be longer than anything that could be read.
    pub lost: Option<FsError>,
}

/// The first run at or after `at` and before `end`; `None` if there is none.
pub(super) fn next_run(fs: &Fs, file: &InodeRef, at: u64, end: u64) -> Option<Run> {
    if at >= end {
        return None;
    }
    match fs.data_run(file, at) {
        Ok(run) => {
            let run = run.filter(|run| run.range.start < end)?;
            let range = run.range.start..run.range.end.min(end);
            let lost =
                || Corruption::new("file extent", "address", "in no chunk", "in a chunk").within(range.start).into();
            Some(Run { lost: (!run.in_chunks).then(lost), range })
        }
        Err(error) => {
            let sector = u64::from(fs.engine().sectorsize());
            let is_good = |at: u64| at >= end || fs.data_run(file, at).is_ok();
            let good = next_good(at / sector, |at| at.checked_mul(sector).is_none_or(is_good));
            let good = good.and_then(|at| at.checked_mul(sector)).unwrap_or(u64::MAX);
            Some(Run { range: at..good.min(end), lost: Some(error) })
        }
    }
}

/// The first position after a bad one that is good, if all positions behind it are, too. Positions are tried at growing distances,
/// then between the last bad and the first good one: 128 at most.
fn next_good(bad: u64, mut is_good: impl FnMut(u64) -> bool) -> Option<u64> {
    let (mut bad, mut step) = (bad, 1);
    let mut good = loop {
        let next = bad.checked_add(step)?;
        if is_good(next) {
            break next;
        }
        bad = next;
        step = step.checked_mul(2)?;
    };
    while good - bad > 1 {
        let middle = bad + (good - bad) / 2;
        if is_good(middle) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    Some(good)
}

/// The error of an entry whose inode was not found; `None` if the entry has been removed meanwhile.
pub(super) fn missing_inode(fs: &Fs, dir: &InodeRef, entry: &DirEntryInfo) -> Option<Error> {
    let there = fs.readdir(dir, entry.index.saturating_sub(1), 1).ok()?.pop()?;
    if (there.index, there.target) != (entry.index, entry.target) {
        return None;
    }
    let ino = match entry.target {
        Target::Inode(ino) => ino.to_string(),
        Target::Subvol(id) => id.to_string(),
    };
    Some(Corruption::new("directory entry", "inode", "none", ino).within(format!("directory {}", dir.ino())).into())
}

/// The error of an inode whose mode is of no type that there is.
pub(super) fn unknown_kind(mode: u32) -> Error {
    Corruption::new("inode", "type of file", format!("mode {mode:o}"), "a known one").into()
}

/// Whether the image or a device is the reason, so that what is beside it may be readable.
pub(super) fn is_damage(error: &FsError) -> bool {
    matches!(error.kind(), ErrorKind::Corruption | ErrorKind::Device)
}

#[cfg(test)]
mod tests {
    use super::next_good;

    /// Goal: the end of damage is found exactly, in few steps. Method: damage of many lengths from many positions on, up to the end
    /// of all numbers.
    #[test]
    fn ends_of_damage() {
        for start in [0, 1, 77, 1 << 40, u64::MAX - 5000] {
            for len in [1, 2, 3, 255, 256, 4000, 1 << 33, u64::MAX] {
                let end = start.checked_add(len);
                let mut tried = 0;
                let found = next_good(start, |at| {
                    tried += 1;
                    end.is_some_and(|end| at >= end)
                });
                match end {
                    // Near the end of all numbers the steps may lead beyond it.
                    Some(end) if end < u64::MAX / 2 => assert_eq!(found, Some(end), "{start} {len}"),
                    _ => assert!(found.is_none_or(|found| Some(found) == end), "{start} {len}"),
                }
                assert!(tried <= 128, "{tried}");
            }
        }
    }
}

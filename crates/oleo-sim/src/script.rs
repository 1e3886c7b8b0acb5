//! Random operation scripts: data that can be run on anything that keeps files, compared step by step, and shrunk.
//!
//! Normal path: (1) [`generate()`] makes a list of [`Op`] from a seed; (2) [`run_both`] applies each to two
//! [`Target`]s, one of them usually a [`Host`] on a kernel mount, and compares the result of each call; (3) at each
//! [`Op::Sync`] and at the end it compares the manifests; (4) a [`Mismatch`] names the step; (5) `shrink` looks for a
//! short script that still fails and [`to_text`] prints it, one operation a line, so that [`from_text`] can run it
//! again.
//!
//! Invariants: a script means the same on every target: paths are relative to the target's top, contents follow from
//! the seed in the operation. Times that a script does not set itself are "now" on either side; [`blur_times`] makes
//! all of them equal, so the comparison covers which times are explicit and that these are kept.

use std::fmt;

use anyhow::Result;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::manifest::{Detail, Ignore, Manifest, Time};
use crate::rng::Rng;

mod generate;
mod host;
mod shrink;
pub use generate::{Mix, generate};
pub use host::{Host, may_be_written};
pub use shrink::shrink;

/// Times from here on (2017) are not a script's own.
pub const NOW_FROM_SEC: i64 = 1_500_000_000;

/// How a rename treats its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameHow {
    /// Replaces it.
    Plain,
    /// Fails when it exists.
    NoReplace,
    /// Swaps the two.
    Exchange,
}

/// By which inode flag [`Op::Keep`] asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Keep {
    /// `S`, for files and directories.
    All,
    /// `D`, for directories.
    Names,
}

/// The contents of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Style {
    /// Does not compress.
    Random,
    /// Compresses to about a quarter.
    Text,
    /// One byte over and over.
    Same,
}

impl Style {
    /// The bytes that an operation with this style, seed and length writes.
    pub fn data(self, seed: u64, len: u64) -> Vec<u8> {
        let len = usize::try_from(len).unwrap_or(0);
        match self {
            Style::Random => Rng::new(seed).bytes(len),
            Style::Text => Rng::new(seed).text(len),
            Style::Same => vec![seed.to_le_bytes()[0]; len],
        }
    }
}

/// What a block group is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum GroupKind {
    Data,
    Metadata,
    System,
}

/// One operation. Offsets and lengths are bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Op {
    Create {
        path: String,
        mode: u32,
    },
    Mkdir {
        path: String,
        mode: u32,
    },
    Symlink {
        path: String,
        target: String,
    },
    /// A fifo (0, 0) or a char device.
    Mknod {
        path: String,
        mode: u32,
        major: u32,
        minor: u32,
    },
    Write {
        path: String,
        at: u64,
        len: u64,
        seed: u64,
        style: Style,
    },
    Truncate {
        path: String,
        size: u64,
    },
    Punch {
        path: String,
        at: u64,
        len: u64,
    },
    Zero {
        path: String,
        at: u64,
        len: u64,
        keep_size: bool,
    },
    Prealloc {
        path: String,
        at: u64,
        len: u64,
        keep_size: bool,
    },
    /// As FICLONERANGE: `at`, `to_at` and, but at the end of the source, `len` are multiples of the sector size.
    Clone {
        from: String,
        at: u64,
        len: u64,
        to: String,
        to_at: u64,
    },
    Link {
        from: String,
        to: String,
    },
    Unlink {
        path: String,
    },
    Rmdir {
        path: String,
    },
    Rename {
        from: String,
        to: String,
        how: RenameHow,
    },
    SetXattr {
        path: String,
        name: String,
        len: u64,
        seed: u64,
    },
    RemoveXattr {
        path: String,
        name: String,
    },
    Chmod {
        path: String,
        mode: u32,
    },
    Chown {
        path: String,
        uid: u32,
        gid: u32,
    },
    /// Sets mtime, and atime an hour before it.
    Times {
        path: String,
        sec: i64,
        nsec: u32,
    },
    /// The compression property: `zstd`, `lzo`, `zlib`, or none for an empty value.
    Compress {
        path: String,
        algo: String,
    },
    Subvol {
        path: String,
    },
    Snapshot {
        from: String,
        to: String,
        read_only: bool,
    },
    DeleteSubvol {
        path: String,
    },
    SetReadOnly {
        path: String,
        read_only: bool,
    },
    /// From now on all changes of a file's content, or of a directory's entries, are to be durable when they return.
    Keep {
        path: String,
        keep: Keep,
    },
    /// Of a file or directory.
    Fsync {
        path: String,
    },
    Fdatasync {
        path: String,
    },
    /// A file without a name, written to, perhaps synced, then linked at `path`.
    Tmpfile {
        path: String,
        len: u64,
        seed: u64,
        sync: bool,
    },
    /// Moves everything in block groups of one kind to other places.
    Balance {
        kind: GroupKind,
    },
    /// The same, into groups of another profile: mirrored on two devices, or not at all.
    Convert {
        kind: GroupKind,
        mirrored: bool,
    },
    /// Counts quota anew.
    Rescan,
    /// Discards free space on the devices.
    Trim,
    /// Makes the only device this long.
    Resize {
        len: u64,
    },
    /// Writes everything out and commits; manifests are compared here.
    Sync,
    /// Closes the file system and opens it again, if the target can.
    Reopen,
}

/// A result that equals every other: for operations that a target refuses and no program should rely on.
pub const ANY_ANSWER: Errno = Errno::BADR;

/// Something that scripts run on.
pub trait Target {
    /// Applies one operation.
    fn apply(&mut self, op: &Op) -> Result<(), Errno>;
    /// What there is now, after everything has been written out.
    fn manifest(&mut self, detail: Detail) -> Result<Manifest>;
}

impl Op {
    /// The paths that it is about.
    pub fn paths(&self) -> Vec<&str> {
        match self {
            Op::Create { path, .. }
            | Op::Mkdir { path, .. }
            | Op::Symlink { path, .. }
            | Op::Mknod { path, .. }
            | Op::Write { path, .. }
            | Op::Truncate { path, .. }
            | Op::Punch { path, .. }
            | Op::Zero { path, .. }
            | Op::Prealloc { path, .. }
            | Op::Unlink { path }
            | Op::Rmdir { path }
            | Op::SetXattr { path, .. }
            | Op::RemoveXattr { path, .. }
            | Op::Chmod { path, .. }
            | Op::Chown { path, .. }
            | Op::Times { path, .. }
            | Op::Compress { path, .. }
            | Op::Subvol { path }
            | Op::DeleteSubvol { path }
            | Op::SetReadOnly { path, .. }
            | Op::Keep { path, .. }
            | Op::Fsync { path }
            | Op::Fdatasync { path }
            | Op::Tmpfile { path, .. } => vec![path],
            Op::Clone { from, to, .. }
            | Op::Link { from, to }
            | Op::Rename { from, to, .. }
            | Op::Snapshot { from, to, .. } => {
                vec![from, to]
            }
            Op::Balance { .. }
            | Op::Convert { .. }
            | Op::Rescan
            | Op::Trim
            | Op::Resize { .. }
            | Op::Sync
            | Op::Reopen => Vec::new(),
        }
    }
}

/// What to compare, and how often.
#[derive(Clone, Debug)]
pub struct Compare {
    /// What the manifests record.
    pub detail: Detail,
    /// What may be different.
    pub ignore: Ignore,
    /// Compare at every nth [`Op::Sync`]; 0: only at the end.
    pub every_syncs: u32,
}

impl Default for Compare {
    fn default() -> Compare {
        Compare { detail: Detail::default(), ignore: Ignore::default(), every_syncs: 4 }
    }
}

/// The step at which two targets differ.
#[derive(Debug)]
pub struct Mismatch {
    /// Index of the operation after which they differ.
    pub step: usize,
    /// The difference in words.
    pub what: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: {}", self.step, self.what)
    }
}

/// Runs a script on two targets; `want` is the one that is believed. Returns how many operations succeeded.
pub fn run_both(
    script: &[Op],
    want: &mut dyn Target,
    have: &mut dyn Target,
    compare: &Compare,
) -> Result<usize, Mismatch> {
    let (mut syncs, mut succeeded) = (0, 0);
    for (step, op) in script.iter().enumerate() {
        let (a, b) = (want.apply(op), have.apply(op));
        if a != b && b != Err(ANY_ANSWER) {
            let say = |r: &Result<(), Errno>| r.map_or_else(|e| format!("{e:?}"), |()| "success".into());
            return Err(Mismatch { step, what: format!("{op:?}: wanted {}, got {}", say(&a), say(&b)) });
        }
        succeeded += usize::from(a.is_ok());
        if *op == Op::Sync {
            syncs += 1;
            if compare.every_syncs != 0 && syncs % compare.every_syncs == 0 {
                compare_now(step, want, have, compare)?;
            }
        }
    }
    compare_now(script.len(), want, have, compare)?;
    Ok(succeeded)
}

fn compare_now(step: usize, want: &mut dyn Target, have: &mut dyn Target, compare: &Compare) -> Result<(), Mismatch> {
    const SHOWN_MAX: usize = 30;
    let fail = |what: String| Mismatch { step, what };
    let mut a = want.manifest(compare.detail).map_err(|e| fail(format!("manifest of what is wanted: {e:#}")))?;
    let mut b = have.manifest(compare.detail).map_err(|e| fail(format!("manifest: {e:#}")))?;
    blur_times(&mut a);
    blur_times(&mut b);
    let found = a.differences(&b, &compare.ignore);
    if found.is_empty() {
        return Ok(());
    }
    let lines: String = found.iter().take(SHOWN_MAX).map(|l| format!("\n  {l}")).collect();
    Err(fail(format!("{} differences (want | have):{lines}", found.len())))
}

/// Makes all times alike that no script sets.
pub fn blur_times(manifest: &mut Manifest) {
    const NOW: Time = Time { sec: NOW_FROM_SEC, nsec: 0 };
    let blur = |t: &mut Time| {
        if t.sec >= NOW_FROM_SEC {
            *t = NOW;
        }
    };
    for entry in manifest.entries.values_mut() {
        blur(&mut entry.mtime);
        if let Some((a, c)) = &mut entry.atime_ctime {
            blur(a);
            blur(c);
        }
    }
}

/// One operation a line.
pub fn to_text(script: &[Op]) -> String {
    script.iter().map(|op| serde_json::to_string(op).unwrap_or_default() + "\n").collect()
}

/// Reads what [`to_text`] has written; lines that begin with `#` are skipped.
pub fn from_text(text: &str) -> Result<Vec<Op>> {
    let lines = text.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#'));
    lines.map(|l| Ok(serde_json::from_str(l)?)).collect()
}

#[cfg(test)]
mod tests;

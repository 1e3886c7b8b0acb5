//! Everything that a program can see of a directory tree, as data that can be compared.
//!
//! Normal path: (1) a tree that can be walked implements [`TreeView`]: [`HostTree`] does for a directory of this
//! machine, and the tests do for the library's view of an image; (2) [`Manifest::of`] walks it; (3)
//! [`Manifest::differences`] describes the differences in words.
//!
//! Invariants: entries are keyed by their path below the top, as bytes, joined with `/`; the top itself is the empty
//! path. Names that lead to the same inode carry the same group: the first of their paths in byte order. Contents are
//! kept as a hash per [`HASHED_LEN`] bytes, so that a difference can be located. Nothing depends on inode numbers,
//! device numbers or disk addresses: sharing is expressed as "the same bytes on disk as file so-and-so at such an
//! offset".

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use anyhow::{Context, Result};
use twox_hash::XxHash64;

mod compare;
mod fiemap;
mod host;
pub use compare::{Ignore, differences};
pub use host::{HostTree, kind_of, set_xattr, xattrs_of};

/// One hash is kept for this many bytes of a file.
pub const HASHED_LEN: usize = 64 << 10;

/// Bytes of one read.
const READ_LEN: usize = 16 * HASHED_LEN;

/// More of a file's data than this is not read: nothing that a test makes has as much.
const CONTENT_MAX: u64 = 4 << 30;

/// The view has no end. A test of damaged images fails with it ([`Manifest::of_damaged`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endless(String);

impl fmt::Display for Endless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "endless: {}", self.0)
    }
}

impl std::error::Error for Endless {}

/// What sort of thing an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Kind {
    File,
    Dir,
    Symlink,
    Fifo,
    Socket,
    Char,
    Block,
}

/// Seconds since 1970 and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds, negative before 1970.
    pub sec: i64,
    /// Nanoseconds after that second.
    pub nsec: u32,
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.sec, self.nsec)
    }
}

/// The attributes of `stat`.
#[derive(Clone, Debug)]
pub struct Attr {
    /// What sort of thing it is.
    pub kind: Kind,
    /// The twelve permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Number of names.
    pub nlink: u64,
    /// Device number (major, minor) of a char or block device; zeros otherwise.
    pub rdev: (u32, u32),
    /// Inode number, unique together with `tree`.
    pub ino: u64,
    /// Which inode number space: a device number or a subvolume id.
    pub tree: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
    /// Birth, if known.
    pub otime: Option<Time>,
    /// An empty directory in a snapshot in place of a nested subvolume: its other attributes mean nothing.
    pub empty_subvol_dir: bool,
}

/// A mapped part of a file, as FIEMAP reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset in the file, bytes.
    pub at: u64,
    /// Length in the file, bytes.
    pub len: u64,
    /// Address in the file system's logical space; meaningless for inline data.
    pub address: u64,
    /// Allocated but not written.
    pub unwritten: bool,
    /// Lies in a tree block.
    pub inline: bool,
    /// Compressed: `address` is that of the whole extent.
    pub encoded: bool,
}

/// A tree of files that can be walked and read.
pub trait TreeView {
    /// Names a file while the view lives.
    type Node: Clone;
    /// The top directory.
    fn root(&self) -> Result<Self::Node>;
    /// The names in a directory, `.` and `..` left out, in any order.
    fn list(&self, dir: &Self::Node) -> Result<Vec<(Vec<u8>, Self::Node)>>;
    /// The attributes of `lstat`.
    fn attr(&self, node: &Self::Node) -> Result<Attr>;
    /// Reads a regular file; short only at its end.
    fn read(&self, file: &Self::Node, at: u64, buf: &mut [u8]) -> Result<usize>;
    /// The target of a symlink.
    fn read_link(&self, link: &Self::Node) -> Result<Vec<u8>>;
    /// All extended attributes by full name.
    fn xattrs(&self, node: &Self::Node) -> Result<BTreeMap<Vec<u8>, Vec<u8>>>;
    /// The parts that hold data, as (offset, length), as `SEEK_DATA` and `SEEK_HOLE` report them.
    fn data_runs(&self, file: &Self::Node, size: u64) -> Result<Vec<(u64, u64)>>;
    /// The mapped parts in rising order, as FIEMAP reports them.
    fn pieces(&self, file: &Self::Node) -> Result<Vec<Piece>>;
    /// The parts of a file that are allocated, or will be when it is written out: offset, length, and whether they are
    /// unwritten. `None` if unknown.
    fn room(&self, _file: &Self::Node) -> Result<Option<Vec<(u64, u64, bool)>>> {
        Ok(None)
    }
    /// The flags of an inode, as they are on disk; `None` if unknown.
    fn flags(&self, _node: &Self::Node) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// What to record beyond type, mode, owner, size, links, mtime, xattrs, targets and contents.
#[derive(Clone, Copy, Debug, Default)]
pub struct Detail {
    /// The places of data and holes.
    pub holes: bool,
    /// Which files share which bytes on disk (needs a synced file system).
    pub sharing: bool,
    /// Access and change times.
    pub atime_ctime: bool,
    /// Birth times.
    pub otime: bool,
}

/// Part of a file and the first place that has the same bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Offset in this file, bytes.
    pub at: u64,
    /// Length, bytes.
    pub len: u64,
    /// The first file (in path order) that has the same bytes on disk, and the offset in it; itself if nothing is
    /// shared.
    pub seen: (Vec<u8>, u64),
    /// Allocated but not written.
    pub unwritten: bool,
}

/// One name.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Entry {
    pub kind: Kind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub nlink: u64,
    pub rdev: (u32, u32),
    pub mtime: Time,
    pub atime_ctime: Option<(Time, Time)>,
    pub otime: Option<Time>,
    /// The first path of this inode; its own if it has one name.
    pub group: Vec<u8>,
    pub target: Option<Vec<u8>>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// A hash per [`HASHED_LEN`] bytes; only at the first name of a file.
    pub content: Option<Vec<u64>>,
    pub data_runs: Option<Vec<(u64, u64)>>,
    pub shares: Option<Vec<Share>>,
}

/// A whole tree.
#[derive(Clone, Debug, Default)]
pub struct Manifest {
    /// By path below the top.
    pub entries: BTreeMap<Vec<u8>, Entry>,
}

impl Manifest {
    /// Walks a tree.
    pub fn of<V: TreeView>(view: &V, detail: Detail) -> Result<Manifest> {
        let mut paths = BTreeMap::new();
        collect(view, &mut paths)?;
        let mut out = Manifest::default();
        let mut first_names: HashMap<(u64, u64), Vec<u8>> = HashMap::new();
        let mut seen = Seen::default();
        for (path, node) in &paths {
            let entry = describe(view, path, node, detail, &mut first_names, &mut seen)
                .with_context(|| format!("at {}", path.escape_ascii()))?;
            out.entries.insert(path.clone(), entry);
        }
        Ok(out)
    }

    /// Walks a tree that may be damaged.
    ///
    /// # Panics
    /// If the tree has no end: the view should have reported damage.
    pub fn of_damaged<V: TreeView>(view: &V, detail: Detail) -> Result<Manifest> {
        let walked = Manifest::of(view, detail);
        if let Err(endless) = &walked
            && endless.is::<Endless>()
        {
            panic!("{endless:#}");
        }
        walked
    }

    /// A directory of this machine.
    pub fn of_dir(dir: &std::path::Path, detail: Detail) -> Result<Manifest> {
        Manifest::of(&HostTree::new(dir), detail)
    }

    /// The differences in words; empty if there are none.
    pub fn differences(&self, other: &Manifest, ignore: &Ignore) -> Vec<String> {
        differences(self, other, ignore)
    }

    /// # Panics
    /// When something is different: with what.
    pub fn must_equal(&self, other: &Manifest, ignore: &Ignore, what: &str) {
        const SHOWN_MAX: usize = 40;
        let found = self.differences(other, ignore);
        let shown: String = found.iter().take(SHOWN_MAX).map(|l| format!("\n  {l}")).collect();
        assert!(found.is_empty(), "{what}: {} differences (want | have):{shown}", found.len());
    }

    /// The part below a directory, as if that were the top.
    pub fn below(&self, dir: &[u8]) -> Manifest {
        let mut prefix = dir.to_vec();
        prefix.push(b'/');
        let mut entries = BTreeMap::new();
        if let Some(top) = self.entries.get(dir) {
            entries.insert(Vec::new(), Entry { group: Vec::new(), ..top.clone() });
        }
        for (path, entry) in self.entries.range(prefix.clone()..).take_while(|(p, _)| p.starts_with(&prefix)) {
            let group = entry.group.strip_prefix(&prefix[..]).unwrap_or(&entry.group).to_vec();
            entries.insert(path[prefix.len()..].to_vec(), Entry { group, ..entry.clone() });
        }
        Manifest { entries }
    }
}

/// Fills in every path and the node it leads to.
fn collect<V: TreeView>(view: &V, paths: &mut BTreeMap<Vec<u8>, V::Node>) -> Result<()> {
    let top = view.root()?;
    paths.insert(Vec::new(), top.clone());
    let attr = view.attr(&top)?;
    // Each directory has one name, so that a walk ends.
    let mut entered = HashSet::from([(attr.tree, attr.ino)]);
    let mut todo = vec![(Vec::new(), top)];
    while let Some((path, dir)) = todo.pop() {
        for (name, node) in view.list(&dir).with_context(|| format!("listing {}", path.escape_ascii()))? {
            let mut below = path.clone();
            if !below.is_empty() {
                below.push(b'/');
            }
            below.extend_from_slice(&name);
            let attr = view.attr(&node).with_context(|| format!("stat of {}", below.escape_ascii()))?;
            if attr.kind == Kind::Dir {
                let first = attr.empty_subvol_dir || entered.insert((attr.tree, attr.ino));
                anyhow::ensure!(first, "a directory has two names, one of them {}", below.escape_ascii());
                todo.push((below.clone(), node.clone()));
            }
            anyhow::ensure!(paths.insert(below.clone(), node).is_none(), "listed twice: {}", below.escape_ascii());
        }
    }
    Ok(())
}

fn describe<V: TreeView>(
    view: &V,
    path: &[u8],
    node: &V::Node,
    detail: Detail,
    first_names: &mut HashMap<(u64, u64), Vec<u8>>,
    seen: &mut Seen,
) -> Result<Entry> {
    let mut attr = view.attr(node)?;
    if attr.empty_subvol_dir {
        let never = Time { sec: 0, nsec: 0 };
        attr = Attr {
            mode: 0o755,
            uid: 0,
            gid: 0,
            size: 0,
            nlink: 1,
            atime: never,
            mtime: never,
            ctime: never,
            otime: None,
            ..attr
        };
    }
    let group = match attr.kind {
        Kind::Dir => path.to_vec(),
        _ => first_names.entry((attr.tree, attr.ino)).or_insert_with(|| path.to_vec()).clone(),
    };
    let file = attr.kind == Kind::File && group == path;
    Ok(Entry {
        kind: attr.kind,
        mode: attr.mode,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        nlink: attr.nlink,
        rdev: attr.rdev,
        mtime: attr.mtime,
        atime_ctime: detail.atime_ctime.then_some((attr.atime, attr.ctime)),
        otime: if detail.otime { attr.otime } else { None },
        target: if attr.kind == Kind::Symlink { Some(view.read_link(node)?) } else { None },
        xattrs: if attr.empty_subvol_dir { BTreeMap::new() } else { view.xattrs(node)? },
        content: if file { Some(hash(view, node, attr.size)?) } else { None },
        data_runs: if file && detail.holes { Some(view.data_runs(node, attr.size)?) } else { None },
        shares: if file && detail.sharing { Some(seen.shares(path, view.pieces(node)?)) } else { None },
        group,
    })
}

fn hash<V: TreeView>(view: &V, file: &V::Node, size: u64) -> Result<Vec<u64>> {
    // Allocated as zeros: filling a vector takes long where nothing is optimised.
    let mut buf = vec![0; usize::try_from(size).unwrap_or(READ_LEN).clamp(1, READ_LEN)];
    let mut hashes = Vec::new();
    if size <= CONTENT_MAX {
        hash_run(view, file, (0, size), &mut buf, &mut hashes)?;
    } else {
        // Holes may be of any size, and reading their zeros would take too long.
        let runs = view.data_runs(file, size)?;
        let data = runs.iter().fold(0_u64, |sum, run| sum.saturating_add(run.1));
        if data > CONTENT_MAX {
            return Err(Endless(format!("{data} bytes of data in a file")).into());
        }
        for run in runs {
            hashes.extend([run.0, run.1]);
            hash_run(view, file, run, &mut buf, &mut hashes)?;
        }
    }
    let past_the_end = view.read(file, size, &mut buf[..1])?;
    anyhow::ensure!(past_the_end == 0, "it can be read past its size {size}");
    Ok(hashes)
}

/// Adds the hashes of a number of bytes from an offset on.
fn hash_run<V: TreeView>(
    view: &V,
    file: &V::Node,
    (start, len): (u64, u64),
    buf: &mut [u8],
    hashes: &mut Vec<u64>,
) -> Result<()> {
    let mut done = 0;
    while done < len {
        let want = usize::try_from(len - done).unwrap_or(usize::MAX).min(buf.len());
        let got = view.read(file, start + done, &mut buf[..want])?;
        anyhow::ensure!(got == want, "a read of {want} bytes at {} gave {got}", start + done);
        hashes.extend(buf[..want].chunks(HASHED_LEN).map(|c| XxHash64::oneshot(0, c)));
        done += got as u64;
    }
    Ok(())
}

/// The first place of each address, block by block. A compressed extent has an address only at its beginning, and
/// FIEMAP merges extents whose addresses happen to be adjacent; counting on from the beginning, block by block, gives
/// the same result for the same extents either way.
#[derive(Default)]
struct Seen {
    plain: HashMap<u64, (Vec<u8>, u64)>,
    encoded: HashMap<u64, (Vec<u8>, u64)>,
}

impl Seen {
    fn shares(&mut self, path: &[u8], pieces: Vec<Piece>) -> Vec<Share> {
        const BLOCK: u64 = 4096;
        let mut out: Vec<Share> = Vec::new();
        for piece in pieces.iter().filter(|p| !p.inline) {
            let map = if piece.encoded { &mut self.encoded } else { &mut self.plain };
            let mut done = 0;
            while done < piece.len {
                let (at, len) = (piece.at + done, BLOCK.min(piece.len - done));
                let seen = map.entry(piece.address + done).or_insert_with(|| (path.to_vec(), at)).clone();
                done += len;
                match out.last_mut() {
                    Some(last)
                        if last.at + last.len == at
                            && last.seen.0 == seen.0
                            && last.seen.1 + last.len == seen.1
                            && last.unwritten == piece.unwritten =>
                    {
                        last.len += len;
                    }
                    _ => out.push(Share { at, len, seen, unwritten: piece.unwritten }),
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests;

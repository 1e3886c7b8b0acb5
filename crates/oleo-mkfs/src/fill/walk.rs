//! Walks a directory of the host and reads its files ahead on several threads, but reports its findings in one fixed
//! order.
//!
//! The order: the entries of a directory sorted by name, then each of its subdirectories in the same way. It depends on
//! names alone.
//!
//! 1. [`walk`] starts workers and a *sequencer*. The sequencer goes through directories in order; for each it takes the
//!    listing that a worker has made, or makes it itself if no worker has begun.
//! 2. For every regular file the sequencer reserves space in the budget of bytes, queues a read per piece, and sends an
//!    [`Event`] that holds the slots where the pieces will appear.
//! 3. Workers serve reads first, in order, then list directories, the next ones first. The closure given prepares each
//!    piece (checksums, compression).
//! 4. The receiver takes events in order and waits for each slot; taking a piece releases its space.
//!
//! Invariants: space is reserved in the order in which it is released, so a walk cannot deadlock however small the
//! budget is. Listings ahead of the sequencer are bounded by [`ENTRIES_AHEAD_MAX`].
//! Locks: one mutex for the queues, one per slot; never two together, never held over a system call.
//! An error ends the walk: it is sent in the order of events, so that the first error is the same in every run.

#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod host;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};

#[cfg(not(target_os = "linux"))]
use self::elsewhere as host;
pub(crate) use self::host::{DirHandle, FileRange, Listing};
use super::entry::{UnpreparedPiece, Whole};
use super::pool::{Filled, Pool, Scan, Source, Workers};
use crate::MkfsError;
use crate::fill::entry::{Child, ChildKind, HostFile, Meta};

/// Events that wait for the receiver at most.
const EVENTS_AHEAD_MAX: usize = 4096;
/// Entries in listings that were not taken yet; beyond this, directories are listed when their turn comes.
const ENTRIES_AHEAD_MAX: usize = 50_000;
/// Bytes of one piece of a file.
pub(crate) const PIECE_BYTES: u64 = 4 << 20;
/// The least that a piece takes of the budget: the cost of its bookkeeping.
const PIECE_COST_MIN: u64 = 4096;

/// How a walk goes about it.
#[derive(Clone, Debug)]
pub(crate) struct WalkOptions {
    /// Threads that list and read.
    pub threads: usize,
    /// Bytes of files that are read but not taken yet, at most (one piece is always allowed).
    pub bytes_ahead_max: u64,
    /// Files that are not part of what is walked: the image itself.
    pub skip: Vec<HostFile>,
    /// Absolute paths of directories that hard links do not cross: they become subvolumes.
    pub boundaries: HashSet<PathBuf>,
    /// Runs of data in sparse files begin and end at multiples of this many bytes.
    pub align: u64,
}

/// A file with several names, as seen from one side of the boundaries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) struct LinkId {
    pub file: HostFile,
    /// The directory number of the boundary (or top) above.
    pub domain: u64,
}

/// What a walk reports.
pub(crate) enum Event<P> {
    /// The events up to `Leave` are the entries of this directory. The top is number 0.
    Enter { dir: u64 },
    /// An entry of the directory entered last.
    Entry(Entry<P>),
    /// More data of the last regular file.
    More(Piece<P>),
    /// The directory entered last has no more entries. Its own times and xattrs come here, when nothing in it
    /// changes any more.
    Leave { meta: Meta },
}

/// One name in a directory.
pub(crate) struct Entry<P> {
    pub name: Vec<u8>,
    pub meta: Meta,
    pub body: Body<P>,
    /// Set for the first name of a file with several.
    pub links: Option<LinkId>,
    /// For messages.
    pub path: PathBuf,
}

/// The file behind a name.
pub(crate) enum Body<P> {
    /// A directory, and the number under which its entries follow.
    Dir(u64),
    /// A regular file: its size, and its data in rising order: a first piece here, others in [`Event::More`]. What
    /// no piece covers is a hole.
    File { size: u64, first: Option<Piece<P>> },
    /// Another name of an earlier file.
    Link(LinkId),
    /// A symbolic link.
    Symlink(Vec<u8>),
    /// A device node, fifo or socket, with major and minor number.
    Node { major: u32, minor: u32 },
}

/// A piece that is being read.
pub(crate) struct Piece<P> {
    slot: Arc<Filled<P>>,
    cost: u64,
    pool: Arc<Pool<P>>,
}

impl<P> Piece<P> {
    pub fn new(slot: Arc<Filled<P>>, cost: u64, pool: Arc<Pool<P>>) -> Piece<P> {
        Piece { slot, cost, pool }
    }

    /// Waits for the piece and takes it: its data in rising order, without holes.
    pub fn take(self) -> Result<Vec<P>, MkfsError> {
        let result = self.slot.take();
        self.pool.give_room_back(self.cost);
        result
    }
}

/// A running walk: events come out of `events` in order. Dropping it ends it, also in the middle.
pub(crate) struct Walk<P> {
    /// Stands before the workers: fields are dropped in this order.
    pub events: Receiver<Result<Event<P>, MkfsError>>,
    _workers: Workers<P>,
}

/// Starts to walk `top`.
///
/// # Errors
/// `top` cannot be opened as a directory.
pub(crate) fn walk<P, F>(top: &Path, options: &WalkOptions, prepare: F) -> Result<Walk<P>, MkfsError>
where
    P: Send + 'static,
    F: Fn(UnpreparedPiece) -> Result<P, MkfsError> + Send + Sync + 'static,
{
    let handle = Arc::new(DirHandle::open_top(top)?);
    let meta = handle.meta()?;
    Ok(start(Scan::opened(handle), meta, options, prepare))
}

/// The same for a single file that is not a directory: it is reported as the only entry of its directory.
///
/// # Errors
/// There is no such file.
pub(crate) fn walk_one<P, F>(path: &Path, options: &WalkOptions, prepare: F) -> Result<Walk<P>, MkfsError>
where
    P: Send + 'static,
    F: Fn(UnpreparedPiece) -> Result<P, MkfsError> + Send + Sync + 'static,
{
    let listing = Listing::of_one(path)?;
    Ok(start(Scan::done(listing), Meta::default(), options, prepare))
}

fn start<P, F>(scan: Scan, meta: Meta, options: &WalkOptions, prepare: F) -> Walk<P>
where
    P: Send + 'static,
    F: Fn(UnpreparedPiece) -> Result<P, MkfsError> + Send + Sync + 'static,
{
    let mut workers = Workers::start(options.threads, options.bytes_ahead_max, prepare);
    let (sender, events) = bounded(EVENTS_AHEAD_MAX);
    let sequencer =
        Sequencer { pool: workers.pool(), sender, options: options.clone(), next_dir: 1, seen: HashMap::new() };
    workers.add(move || sequencer.run(scan, meta));
    Walk { events, _workers: workers }
}

/// A directory whose turn has not come yet.
struct Pending {
    number: u64,
    domain: u64,
    scan: Arc<Scan>,
    meta: Meta,
}

struct Sequencer<P> {
    pool: Arc<Pool<P>>,
    sender: Sender<Result<Event<P>, MkfsError>>,
    options: WalkOptions,
    next_dir: u64,
    /// Files with several names of which some are still to come, and how many at most.
    seen: HashMap<LinkId, u32>,
}

/// The receiver is gone, so the rest is not needed.
struct Gone;

impl<P: Send + 'static> Sequencer<P> {
    fn run(mut self, scan: Scan, meta: Meta) {
        let mut stack = vec![Pending { number: 0, domain: 0, scan: Arc::new(scan), meta }];
        while let Some(pending) = stack.pop() {
            let first_child = stack.len();
            match self.directory(pending, &mut stack) {
                Ok(()) => {}
                Err(Ok(error)) => {
                    let _gone = self.send(Err(error));
                    return;
                }
                Err(Err(Gone)) => return,
            }
            // The first subdirectory comes next, so it must lie on top, for us and for the workers.
            stack[first_child..].reverse();
            self.pool.queue_scans(stack[first_child..].iter().map(|p| p.scan.clone()), ENTRIES_AHEAD_MAX);
        }
    }

    fn send(&self, event: Result<Event<P>, MkfsError>) -> Result<(), Gone> {
        self.sender.send(event).map_err(|_| Gone)
    }

    /// Reports one directory. Its subdirectories go on the stack.
    fn directory(&mut self, dir: Pending, stack: &mut Vec<Pending>) -> Result<(), Result<MkfsError, Gone>> {
        let listing = self.pool.take_listing(&dir.scan).map_err(Ok)?;
        self.send(Ok(Event::Enter { dir: dir.number })).map_err(Err)?;
        let Listing { handle, children, xattrs } = listing;
        for child in children {
            if self.options.skip.contains(&child.host) {
                continue;
            }
            self.child(&handle, dir.domain, child, stack)?;
        }
        let meta = Meta { xattrs, ..dir.meta };
        self.send(Ok(Event::Leave { meta })).map_err(Err)
    }

    fn child(
        &mut self,
        dir: &Arc<DirHandle>,
        domain: u64,
        child: Child,
        stack: &mut Vec<Pending>,
    ) -> Result<(), Result<MkfsError, Gone>> {
        let path = dir.path_of(&child.name);
        let mut links = None;
        if child.links > 1 && !matches!(child.kind, ChildKind::Dir) {
            let id = LinkId { file: child.host, domain };
            if let Some(left) = self.seen.get_mut(&id) {
                *left -= 1;
                if *left == 0 {
                    self.seen.remove(&id);
                }
                let entry = Entry { name: child.name, meta: child.meta, body: Body::Link(id), links: None, path };
                return self.send(Ok(Event::Entry(entry))).map_err(Err);
            }
            self.seen.insert(id, child.links - 1);
            links = Some(id);
        }
        let mut ranges = Vec::new();
        let mut file_size = 0;
        let body = match child.kind {
            ChildKind::Dir => {
                let number = self.next_dir;
                self.next_dir += 1;
                let scan = Arc::new(Scan::below(dir.clone(), child.name.clone()));
                let domain = if self.options.boundaries.contains(&path) { number } else { domain };
                stack.push(Pending { number, domain, scan, meta: child.meta.clone() });
                Body::Dir(number)
            }
            ChildKind::Symlink(target) => Body::Symlink(target),
            ChildKind::Node { major, minor } => Body::Node { major, minor },
            ChildKind::File { size, sparse } => {
                ranges = if sparse {
                    dir.data_runs(&child.name, size, self.options.align).map_err(Ok)?
                } else {
                    vec![(0, size)]
                };
                file_size = size;
                Body::File { size, first: None }
            }
        };
        let mut entry = Some(Entry { name: child.name.clone(), meta: child.meta, body, links, path });
        for (from, to) in ranges.into_iter().flat_map(|(from, to)| pieces_of(from, to)) {
            let whole = Whole::of(from, to, file_size);
            let range =
                FileRange { dir: dir.clone(), name: child.name.clone(), from, to, whole, align: self.options.align };
            let piece = self.queue_read(range).ok_or(Err(Gone))?;
            let event = match entry.take() {
                Some(Entry { name, meta, body: Body::File { size, .. }, links, path }) => {
                    Event::Entry(Entry { name, meta, body: Body::File { size, first: Some(piece) }, links, path })
                }
                _ => Event::More(piece),
            };
            self.send(Ok(event)).map_err(Err)?;
        }
        match entry {
            Some(entry) => self.send(Ok(Event::Entry(entry))).map_err(Err),
            None => Ok(()),
        }
    }

    /// `None`: the pool has closed.
    fn queue_read(&self, range: FileRange) -> Option<Piece<P>> {
        let cost = self.pool.take_room((range.to - range.from).max(PIECE_COST_MIN))?;
        let slot = self.pool.queue(Source::Range(range));
        Some(Piece::new(slot, cost, self.pool.clone()))
    }
}

/// Cuts a run of data at multiples of the piece size, so that the cuts are aligned in the image, too.
pub(crate) fn pieces_of(start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut from = start;
    std::iter::from_fn(move || {
        let at = from;
        from = end.min((at / PIECE_BYTES + 1).saturating_mul(PIECE_BYTES));
        (at < end).then_some((at, from))
    })
}

#[cfg(test)]
mod tests;

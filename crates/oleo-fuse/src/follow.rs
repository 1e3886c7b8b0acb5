//! A mount that follows: it shows the newest state of a volume that another machine writes.
//!
//! The volume is shown as moments (`oleo::Follower`), each with an image and a [`Server`] of its own. What is looked up is looked
//! up in the newest. Normal path: (1) the asking thread (`ask.rs`) finds a newer moment, and [`Following::shows`] makes it the one
//! that names are looked up in; (2) the kernel believes names for a short time only, looks them up again, and gets the same
//! node for what has not changed and another one for what has; (3) a file that is open keeps the moment in which it was opened,
//! until it is closed; (4) a moment in which no file is open is let go of.
//!
//! | the kernel's node of | shows | is believed |
//! |---|---|---|
//! | a directory | the newest moment, by its number; ESTALE when it is gone there | for a moment: its attributes, never its listing |
//! | anything else | one state, for ever: another state has another node | for ever |
//!
//! So what the kernel has of a file's bytes stays right, and whoever reads a file sees one state of it from the beginning to the
//! end. Whether a file has changed is said by the number of the transaction that last changed it, if that was committed when it was
//! first seen; what was only synced then counts as changed. A node whose moment was let go of is looked for in the newest, and is
//! ESTALE if it has changed since: paths are then looked up again by the kernel.
//!
//! Bounds: names are at most `follow` seconds late, besides the time that opening takes: asked is every half of that, and names
//! are believed for a quarter of it, at most [`VALID_MAX`]. If for `follow` seconds and the time of a read nobody could be asked,
//! names and listings fail with ETIMEDOUT; open files go on. At most [`OLD_MAX`] older moments are kept for open files; files of
//! the oldest are ESTALE then, unless they have not changed.
//!
//! Locks: `state`, a leaf; never held while something is read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use oleo::TreeId;
use oleo::fs::{FileKind, Ino};
use oleo_format::Generation;
use oleo_fs::InodeRef;
use oleo_lock::{Mutex, rank};
use zerocopy::{FromBytes, IntoBytes};

use crate::server::{Errno, Newest, Server};
use crate::transport::{Handler, Outcome};
use crate::wire::abi::{self, ROOT_ID};
use crate::wire::{Op, Reply, Request};

/// For how long the kernel believes a name at most.
const VALID_MAX: Duration = Duration::from_secs(1);
/// Moments besides the newest that are kept for open files. Each takes the memory of what was read in it.
const OLD_MAX: usize = 16;
/// The first of the numbers that are given to what has changed. Numbers that servers give are below.
const FRESH: u64 = 7 << 61;
/// How often a name is looked up again because the newest moment has changed meanwhile.
const TRIES: usize = 4;

/// One state of the volume.
struct Moment {
    server: Arc<Server>,
    /// The newest transaction that was committed then.
    committed: Generation,
}

/// What a node of the kernel's is.
struct Seat {
    tree: TreeId,
    ino: Ino,
    is_dir: bool,
    /// The transaction that made it, and the one that last changed it.
    generation: u64,
    transid: u64,
    /// What was committed when that was found.
    committed: Generation,
    lookups: u64,
    /// How often it is open.
    opens: u64,
    /// The moment it is shown of, and its node there.
    held: Option<(Arc<Moment>, u64)>,
    /// Look-ups of it in that moment's server that are taken back when the kernel forgets this node. Those of a look-up under way are not
    /// among them: it may become another node of the kernel's.
    entered: u64,
}

impl Seat {
    /// Whether an inode of a later moment is the same, and in the same state.
    fn is(&self, generation: u64, transid: u64, is_dir: bool) -> bool {
        let same = self.transid == transid && self.transid <= self.committed.0;
        self.generation == generation && self.is_dir == is_dir && (is_dir || same)
    }

    fn is_of(&self, moment: &Arc<Moment>) -> bool {
        self.held.as_ref().is_some_and(|(held, _)| Arc::ptr_eq(held, moment))
    }

    /// It is shown of a moment, whose server has just entered it.
    fn hold(&mut self, moment: &Arc<Moment>, inner: u64) {
        let is_same = self.held.as_ref().is_some_and(|(held, known)| Arc::ptr_eq(held, moment) && *known == inner);
        self.entered = if is_same { self.entered + 1 } else { 1 };
        self.held = Some((moment.clone(), inner));
    }
}

struct State {
    now: Arc<Moment>,
    /// When the store was last asked with success; the beginning of that.
    asked: Instant,
    /// Earlier moments, the oldest first, as long as a file of theirs may be open.
    old: Vec<Arc<Moment>>,
    seats: HashMap<u64, Seat>,
    /// The newest node of an inode.
    current: HashMap<(TreeId, Ino), u64>,
    fresh: u64,
    shown: u64,
}

/// Answers the requests of a mount that follows.
pub(crate) struct Following {
    /// The first server. It has what the mount has but once: the control socket, and the end.
    front: Arc<Server>,
    state: Mutex<rank::FuseFollow, State>,
    follow: Duration,
    valid: Duration,
    /// How old what is shown may become.
    late_max: Duration,
}

/// What is to be done with a request: a server, and the node there.
type Place = (Arc<Moment>, u64);

impl Following {
    /// Begins with the moment of a server.
    pub(crate) fn new(front: &Arc<Server>, committed: Generation) -> Arc<Following> {
        let follow = Duration::from_secs(front.options().follow.unwrap_or(1));
        let state = State {
            now: Arc::new(Moment { server: front.clone(), committed }),
            asked: Instant::now(),
            old: Vec::new(),
            seats: HashMap::new(),
            current: HashMap::new(),
            fresh: FRESH,
            shown: 1,
        };
        Arc::new(Following {
            front: front.clone(),
            state: Mutex::new(state),
            follow,
            valid: (follow / 4).min(VALID_MAX),
            late_max: follow + front.options().places.read_max(),
        })
    }

    /// How often the store is to be asked.
    pub(crate) fn every(&self) -> Duration {
        self.follow / 2
    }

    /// What was shown is the newest, as of a time.
    pub(crate) fn is_newest(&self, asked: Instant) {
        self.state.lock().asked = asked;
    }

    /// Shows a newer moment from now on.
    pub(crate) fn shows(&self, server: Server, committed: Generation, asked: Instant) {
        if let Some(path) = self.front.control_path() {
            server.set_control(path.clone());
        }
        if let Some(notifier) = self.front.notifier() {
            server.set_notifier(notifier.clone());
        }
        if let Some(device) = self.front.device() {
            server.set_device(device.to_owned());
        }
        if let Some(dir) = self.front.dir() {
            server.set_dir(dir.clone());
        }
        let now = Arc::new(Moment { server: Arc::new(server), committed });
        let open: Vec<u64> = {
            let mut state = self.state.lock();
            let before = std::mem::replace(&mut state.now, now);
            state.old.push(before);
            (state.asked, state.shown) = (asked, state.shown + 1);
            for seat in state.seats.values_mut().filter(|seat| seat.opens == 0) {
                seat.held = None;
            }
            state.seats.iter().filter(|(_, seat)| seat.opens > 0).map(|(node, _)| *node).collect()
        };
        // What is open and has not changed needs no moment of its own.
        for node in open {
            let _stays = self.move_on(node);
        }
    }

    /// The first server.
    pub(crate) fn front(&self) -> &Arc<Server> {
        &self.front
    }

    /// Lets go of moments that nobody needs.
    pub(crate) fn let_go(&self) {
        for moment in self.unneeded() {
            // This asks the store. A lease that is not ended ends by itself.
            let _ended = moment.server.image().release();
        }
    }

    fn unneeded(&self) -> Vec<Arc<Moment>> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let mut gone = Vec::new();
        let mut take_unused = |state: &mut State| {
            let (used, unused) = state.old.drain(..).partition(|moment| Arc::strong_count(moment) > 1);
            state.old = used;
            gone.extend::<Vec<_>>(unused);
        };
        take_unused(state);
        while state.old.len() > OLD_MAX {
            let oldest = state.old[0].clone();
            for seat in state.seats.values_mut().filter(|seat| seat.is_of(&oldest)) {
                seat.held = None;
            }
            drop(oldest);
            let before = state.old.len();
            take_unused(state);
            if state.old.len() == before {
                // A request is being answered from it.
                break;
            }
        }
        gone
    }

    /// Nodes that the kernel may forget, if it knows too many.
    pub(crate) fn too_many(&self) -> Vec<u64> {
        let state = self.state.lock();
        let most = self.front.nodes_max();
        let excess = state.seats.len().saturating_sub(most);
        if excess == 0 {
            return Vec::new();
        }
        let closed = state.seats.iter().filter(|(_, seat)| seat.opens == 0 && !seat.is_dir);
        closed.map(|(node, _)| *node).take(excess + most / 16).collect()
    }

    /// The kernel has forgotten everything, and nobody asks any more.
    pub(crate) fn end(&self) {
        let moments = {
            let mut guard = self.state.lock();
            let state = &mut *guard;
            state.seats.clear();
            state.current.clear();
            let mut moments = std::mem::take(&mut state.old);
            moments.push(state.now.clone());
            moments
        };
        for moment in moments {
            moment.server.forget_all();
            // A lease that is not ended ends by itself.
            let _ended = moment.server.image().release();
        }
    }

    /// The newest moment, unless it may be too old.
    fn now(&self) -> Result<Arc<Moment>, Errno> {
        let state = self.state.lock();
        if state.asked.elapsed() > self.late_max { Err(Errno::ETIMEDOUT) } else { Ok(state.now.clone()) }
    }

    /// Where a node is answered.
    fn place(&self, node: u64) -> Result<Place, Errno> {
        if node == ROOT_ID {
            return Ok((self.now()?, ROOT_ID));
        }
        {
            let state = self.state.lock();
            let seat = state.seats.get(&node).ok_or(Errno::ESTALE)?;
            let is_late = seat.is_dir && !seat.is_of(&state.now);
            if let (Some((moment, inner)), false) = (&seat.held, is_late) {
                if seat.is_dir && state.asked.elapsed() > self.late_max {
                    return Err(Errno::ETIMEDOUT);
                }
                return Ok((moment.clone(), *inner));
            }
        }
        self.move_on(node)
    }

    /// Moves a node to the newest moment, if it is the same there.
    fn move_on(&self, node: u64) -> Result<Place, Errno> {
        let now = self.now()?;
        let (tree, ino) = {
            let state = self.state.lock();
            let seat = state.seats.get(&node).ok_or(Errno::ESTALE)?;
            (seat.tree, seat.ino)
        };
        let fs = now.server.image().fs();
        let inode = fs.subvol(tree).and_then(|subvol| fs.inode(&subvol, ino)).map_err(|e| match Errno::from(&e) {
            Errno::EIO => Errno::EIO,
            _ => Errno::ESTALE,
        })?;
        let attr = fs.attr(&inode);
        let inner = now.server.nodes().enter(inode);
        let mut state = self.state.lock();
        let seat = state.seats.get_mut(&node).ok_or(Errno::ESTALE)?;
        if !seat.is(attr.generation, attr.transid, attr.kind == FileKind::Dir) || attr.nlink == 0 {
            drop(state);
            now.server.nodes().forget(inner, 1);
            return Err(Errno::ESTALE);
        }
        (seat.committed, seat.transid) = (now.committed, attr.transid);
        seat.hold(&now, inner);
        Ok((now, inner))
    }

    /// The kernel's number of an inode of a moment, which it is about to get; none: there is a newer moment.
    fn seat(&self, moment: &Arc<Moment>, inner: u64, inode: &InodeRef) -> Option<u64> {
        let attr = moment.server.image().fs().attr(inode);
        let is_dir = attr.kind == FileKind::Dir;
        let key = (inode.tree(), inode.ino());
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if !Arc::ptr_eq(&state.now, moment) {
            return None;
        }
        // Places of subvolumes that a snapshot does not have are all of one number.
        let known = if inode.is_empty_subvol_dir() { None } else { state.current.get(&key).copied() };
        if let Some((node, seat)) = known.and_then(|node| state.seats.get_mut(&node).map(|seat| (node, seat)))
            && (seat.is_of(moment) || seat.is(attr.generation, attr.transid, is_dir))
        {
            (seat.committed, seat.transid) = (moment.committed, attr.transid);
            seat.hold(moment, inner);
            seat.lookups += 1;
            return Some(node);
        }
        let node = if state.seats.contains_key(&inner) || inner >= FRESH || inode.is_empty_subvol_dir() {
            state.fresh += 1;
            state.fresh
        } else {
            inner
        };
        let (generation, transid) = (attr.generation, attr.transid);
        let held = Some((moment.clone(), inner));
        let (tree, ino) = key;
        let committed = moment.committed;
        let seat = Seat { tree, ino, is_dir, generation, transid, committed, lookups: 1, opens: 0, held, entered: 1 };
        state.seats.insert(node, seat);
        state.current.insert(key, node);
        Some(node)
    }

    fn forget(&self, node: u64, lookups: u64) {
        let gone = {
            let mut guard = self.state.lock();
            let state = &mut *guard;
            let Some(seat) = state.seats.get_mut(&node) else { return };
            seat.lookups = seat.lookups.saturating_sub(lookups);
            if seat.lookups > 0 {
                return;
            }
            let gone = state.seats.remove(&node);
            if let Some(seat) = &gone
                && state.current.get(&(seat.tree, seat.ino)) == Some(&node)
            {
                state.current.remove(&(seat.tree, seat.ino));
            }
            gone
        };
        if let Some(Seat { held: Some((moment, inner)), entered, .. }) = gone {
            moment.server.nodes().forget(inner, entered);
        }
    }

    fn lookup(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Outcome {
        let begins = reply.len();
        for _ in 0..TRIES {
            reply.cut(begins);
            let (moment, inner) = match self.place(request.head.nodeid) {
                Ok(place) => place,
                Err(errno) => return Outcome::Failed(errno.0),
            };
            let done = ask(&moment, inner, request, reply);
            if done != Outcome::Done {
                return done;
            }
            let Ok((mut entry, _)) = abi::EntryOut::read_from_prefix(&reply.written()[begins..]) else { return done };
            (entry.entry_valid, entry.entry_valid_nsec) = split(self.valid);
            if entry.nodeid != 0 && entry.nodeid != ROOT_ID {
                let Some(inode) = moment.server.nodes().get(entry.nodeid) else { continue };
                let Some(node) = self.seat(&moment, entry.nodeid, &inode) else { continue };
                entry.nodeid = node;
            }
            if is_dir(entry.attr.mode) {
                (entry.attr_valid, entry.attr_valid_nsec) = split(self.valid);
            }
            reply.cut(begins);
            reply.put(&entry);
            return Outcome::Done;
        }
        Outcome::Failed(Errno::ESTALE.0)
    }

    /// Attributes of directories are believed for a moment only.
    fn attributes(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Outcome {
        let begins = reply.len();
        let done = self.pass_on(request, reply);
        let out = &mut reply.written()[begins..];
        if let (Outcome::Done, Op::GetAttr) = (done, &request.op) {
            if let Ok((mut attr, _)) = abi::AttrOut::read_from_prefix(out)
                && is_dir(attr.attr.mode)
            {
                (attr.attr_valid, attr.attr_valid_nsec) = split(self.valid);
                out[..size_of::<abi::AttrOut>()].copy_from_slice(attr.as_bytes());
            }
        } else if done == Outcome::Done
            && let Ok((mut stat, _)) = abi::StatxOut::read_from_prefix(out)
            && is_dir(stat.stat.mode.into())
        {
            (stat.attr_valid, stat.attr_valid_nsec) = split(self.valid);
            out[..size_of::<abi::StatxOut>()].copy_from_slice(stat.as_bytes());
        }
        done
    }

    fn pass_on(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Outcome {
        match self.place(request.head.nodeid) {
            Ok((moment, inner)) => ask(&moment, inner, request, reply),
            Err(errno) => Outcome::Failed(errno.0),
        }
    }

    fn open(&self, node: u64, reply: &mut Reply<'_>) -> Result<(), Errno> {
        let (moment, inner) = self.place(node)?;
        let mut state = self.state.lock();
        let seat = state.seats.get_mut(&node).ok_or(Errno::ESTALE)?;
        seat.opens += 1;
        if seat.held.is_none() {
            // A newer moment came meanwhile, and let go of what nobody had open; the server there still knows it.
            seat.hold(&moment, inner);
        }
        let open_flags = abi::FOPEN_KEEP_CACHE | abi::FOPEN_NOFLUSH;
        reply.put(&abi::OpenOut { fh: 0, open_flags, backing_id: 0 });
        Ok(())
    }

    fn release(&self, node: u64) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(seat) = state.seats.get_mut(&node) else { return };
        seat.opens = seat.opens.saturating_sub(1);
        if seat.opens == 0 && !seat.is_of(&state.now) {
            // The asking thread lets go of the moment.
            seat.held = None;
        }
    }
}

/// Has the server of a moment answer a request about a node of its own.
fn ask(moment: &Moment, node: u64, request: &Request<'_>, reply: &mut Reply<'_>) -> Outcome {
    let head = abi::InHeader { nodeid: node, ..request.head };
    moment.server.answered(&head, &request.op, reply)
}

fn is_dir(mode: u32) -> bool {
    FileKind::of_mode(mode) == FileKind::Dir
}

fn split(time: Duration) -> (u64, u32) {
    (time.as_secs(), time.subsec_nanos())
}

impl Handler for Following {
    fn handle(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Outcome {
        let node = request.head.nodeid;
        match &request.op {
            Op::Forget { nlookup } => {
                self.forget(node, *nlookup);
                Outcome::Silent
            }
            Op::BatchForget(list) => {
                list.iter().for_each(|one| self.forget(one.nodeid, one.nlookup));
                Outcome::Silent
            }
            Op::Interrupt => Outcome::Silent,
            Op::Lookup { .. } => self.lookup(request, reply),
            Op::GetAttr | Op::Statx(_) => self.attributes(request, reply),
            Op::Open(_) => match self.open(node, reply) {
                Ok(()) => Outcome::Done,
                Err(errno) => Outcome::Failed(errno.0),
            },
            // Listings are not kept by the kernel.
            Op::OpenDir(_) => {
                reply.put(&abi::OpenOut { fh: 0, open_flags: 0, backing_id: 0 });
                Outcome::Done
            }
            Op::Release(_) => {
                self.release(node);
                Outcome::Done
            }
            Op::ReleaseDir | Op::Flush | Op::Destroy | Op::SyncFs => Outcome::Done,
            Op::Fsync { .. } | Op::FsyncDir { .. } => Outcome::Done,
            Op::ReadLink
            | Op::Read(_)
            | Op::ReadDir(_)
            | Op::Lseek(_)
            | Op::GetXattr { .. }
            | Op::ListXattr { .. }
            | Op::Ioctl { .. }
            | Op::StatFs => self.pass_on(request, reply),
            Op::Access | Op::Unknown(_) | Op::Init(_) => Outcome::Failed(Errno::ENOSYS.0),
            _ => Outcome::Failed(Errno::EROFS.0),
        }
    }
}

impl Newest for Following {
    fn newest(&self) -> Arc<Server> {
        self.state.lock().now.server.clone()
    }

    fn counts(&self) -> Vec<(String, u64)> {
        let state = self.state.lock();
        let late = u64::try_from(state.asked.elapsed().as_millis()).unwrap_or(u64::MAX);
        vec![
            ("moments shown".to_owned(), state.shown),
            ("older moments kept for open files".to_owned(), state.old.len() as u64),
            ("milliseconds since the newest was asked for".to_owned(), late),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seat(transid: u64, committed: u64, is_dir: bool) -> Seat {
        let (tree, ino) = (TreeId::FS, Ino(300));
        let committed = Generation(committed);
        Seat { tree, ino, is_dir, generation: 7, transid, committed, lookups: 1, opens: 0, held: None, entered: 0 }
    }

    /// Goal: only what cannot have changed keeps its node. Method: a table; what was synced and not committed may have changed
    /// again in the same transaction.
    #[test]
    fn what_has_not_changed() {
        assert!(seat(9, 9, false).is(7, 9, false));
        assert!(!seat(9, 9, false).is(7, 10, false), "changed");
        assert!(!seat(9, 9, false).is(8, 9, false), "another inode of the same number");
        assert!(!seat(9, 9, false).is(7, 9, true), "another kind");
        assert!(!seat(10, 9, false).is(7, 10, false), "synced, and perhaps changed after");
        assert!(seat(9, 9, true).is(7, 12, true), "a directory shows whatever it has");
        assert!(!seat(9, 9, true).is(8, 12, true));
    }
}

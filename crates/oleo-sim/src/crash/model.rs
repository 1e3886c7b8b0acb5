//! What may be found after a crash, given what a program did and saw: the promises, as rules that a machine can check.
//!
//! A run is a list of *moments*, numbered from 0: everything a program sees before the first step, then after each. A
//! *promise* is a step that returned before the crash and made something durable:
//! - `sync`: everything.
//! - `fsync(file)`: its bytes, size, attributes, xattrs, and all its names, with the directories on the way to each. A
//!   name that it lost before does not come back.
//! - `fsync(directory)`: its attributes and exactly its entries, with the inodes they lead to, but not the contents of
//!   new ones.
//! - `fdatasync`: the bytes and the size of a file and what is needed to reach them, its names; nothing else of its
//!   attributes.
//!
//! POSIX requires less (it does not speak of names); this is what btrfs has always given, and what programs rely on.
//! What was not promised may exist or not, but not in any form. Let `lo` be the moment of the last promise that covers
//! a thing, and `hi` the moment of the crash (one later if a step was cut in the middle):
//! 1. A name leads to what it led to at some moment from `lo` to `hi`, or nowhere if it did so then.
//! 2. An inode exists if it existed at all moments from `lo` to `hi`, and does not if it existed at none.
//! 3. If no name of an inode was removed alone from `lo` to `hi`, the set of its names is that of one of these moments.
//!    So a rename is one name or the other, an exchange both or none, and a file that is renamed is never lost. The
//!    kernel (6.18) does not keep this: `rename A/x B/x; fsync(B)` leaves the file with both names, and two links. (A
//!    name may be gone and the one that was linked before not yet there: `link a b; unlink a; fsync(directory of a)`.)
//! 4. Mode and owner, the xattrs, the time of change, the bytes with the size: each is that of one moment at which the
//!    inode existed. On the kernel each *byte* is that of some moment, since it writes pages back at any time; a byte
//!    may also be a zero if a moment had none. A file that was created after `lo` may be empty. If writes are split
//!    (FUSE sends one in several requests, others work beside it), each byte is verified in this way, too, and the size
//!    may be between those of two consecutive moments. If the view reports them, the same holds for inode flags, and
//!    each sector of a file is a hole, written, or allocated and unwritten, as at one of the moments that its bytes may
//!    be of. The time of the last change of an inode, and of a directory that of its contents, is within the range of
//!    these moments. (These three are not required of the kernel.)
//! 5. An inode's link count is the number of its names.
//! 6. If the superblock names no log, all names, attributes and xattrs are those of one moment: that at which its
//!    generation became durable. Only bytes that were not flushed may be older.
//! 7. The generation is not older than the last `sync`'s.
//!
//! Moments are what the file system itself shows while it runs; other tests prove that it shows the right thing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::seen::{Id, Name, Node, Room, Seen};
use super::states::Progress;
use crate::manifest::{Kind, Time};

/// What a step made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promise {
    /// `sync`.
    All,
    /// `fsync` of a file or directory.
    Inode(Id),
    /// `fdatasync`.
    Data(Id),
    /// `fsync` of a file before it had its name: the bytes, if it exists.
    Unnamed(Id),
}

/// A step of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// For messages.
    pub label: String,
    /// The promise it made when it returned; `None` if it failed, or promises nothing.
    pub promise: Option<Promise>,
}

/// A run: one moment more than steps.
#[derive(Clone, Debug)]
pub struct History {
    /// The view before and after each step.
    pub moments: Vec<Seen>,
    /// The steps.
    pub steps: Vec<Step>,
    /// The generation that was durable at each moment; empty if unknown.
    pub durable: Vec<u64>,
    /// The kernel ran it: bytes are verified one by one, and a renamed file may have both names.
    pub by_kernel: bool,
    /// Others were at work too, or what ran it takes writes apart: bytes are verified one by one.
    pub by_byte: bool,
}

/// The superblock's state after a crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Commit {
    /// Of the last commit.
    pub generation: u64,
    /// Whether there is a log.
    pub log: bool,
}

/// Moments, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    lo: usize,
    hi: usize,
}

impl Window {
    fn from(self, lo: usize) -> Window {
        Window { lo: self.lo.max(lo), hi: self.hi }
    }
    fn moments(self) -> std::ops::RangeInclusive<usize> {
        self.lo..=self.hi
    }
}

/// A run and a crash, made ready for questions.
struct Verifier<'a> {
    run: &'a History,
    found: &'a Seen,
    /// Names and attributes that no `fsync` covers.
    base: Window,
    /// The same for bytes.
    bytes: Window,
    /// The last promises about single inodes: all of them, their names, their bytes.
    synced: BTreeMap<Id, usize>,
    named: BTreeMap<Id, usize>,
    filled: BTreeMap<Id, usize>,
    out: Vec<String>,
}

/// Returns everything that is wrong with what was found; empty if all promises are kept.
pub fn verify(run: &History, progress: Progress, commit: Option<Commit>, found: &Seen) -> Vec<String> {
    let hi = (progress.done + usize::from(progress.begun)).min(run.steps.len());
    let promises = || run.steps[..progress.done].iter().enumerate().filter_map(|(i, s)| Some((i + 1, s.promise?)));
    let last_sync = promises().filter(|(_, p)| *p == Promise::All).map(|(m, _)| m).next_back().unwrap_or(0);
    let mut verify = Verifier {
        run,
        found,
        base: Window { lo: last_sync, hi },
        bytes: Window { lo: last_sync, hi },
        synced: BTreeMap::new(),
        named: BTreeMap::new(),
        filled: BTreeMap::new(),
        out: Vec::new(),
    };
    for (moment, promise) in promises() {
        let (Promise::Inode(id) | Promise::Data(id) | Promise::Unnamed(id)) = promise else { continue };
        verify.filled.insert(id, moment);
        if !matches!(promise, Promise::Unnamed(_)) {
            verify.named.insert(id, moment);
        }
        if matches!(promise, Promise::Inode(_)) {
            verify.synced.insert(id, moment);
        }
    }
    if let Some(commit) = commit
        && !run.durable.is_empty()
    {
        verify.commit(commit, last_sync);
    }
    verify.names();
    verify.inodes();
    verify.out
}

impl<'a> Verifier<'a> {
    fn say(&mut self, what: String) {
        self.out.push(what);
    }

    /// Rules 6 and 7, and a narrower base for all others.
    fn commit(&mut self, commit: Commit, last_sync: usize) {
        let durable = &self.run.durable;
        let Commit { generation, log } = commit;
        if generation < durable[last_sync] {
            self.say(format!("generation {generation}, after a sync that made {} durable", durable[last_sync]));
            return;
        }
        // The commit came within the step before the first moment at which it was durable, or within the last one.
        let Some(moment) = durable[..=self.base.hi].iter().position(|d| *d >= generation) else {
            if self.base.hi + 1 < durable.len() || generation > durable[self.base.hi] + 2 {
                let newest = durable[self.base.hi];
                self.say(format!("generation {generation}, where {newest} was the newest that was asked for"));
            }
            return;
        };
        // A sync that found nothing to commit promises its own moment all the same.
        let lo = moment.saturating_sub(1).max(last_sync);
        let whole = Window { lo, hi: moment.min(self.base.hi).max(lo) };
        self.base.lo = self.base.lo.max(whole.lo);
        if !log {
            self.base.hi = whole.hi;
            self.bytes.hi = whole.hi;
            if !whole.moments().any(|m| same_names(&self.run.moments[m], self.found)) {
                let Window { lo, hi } = whole;
                let differs = first_difference(&self.run.moments[hi], self.found);
                self.say(format!("no log, and not the state of moments {lo} to {hi} that was committed: {differs}"));
            }
        }
    }

    fn seen(&self, window: Window) -> impl DoubleEndedIterator<Item = &'a Seen> + use<'a> {
        // A later promise behind a commit without a log was complained about already.
        let hi = window.hi.max(window.lo).min(self.run.moments.len() - 1);
        self.run.moments[window.lo.min(hi)..=hi].iter()
    }

    fn history_of(&self, id: Id, window: Window) -> impl Iterator<Item = &'a Arc<Node>> + use<'a> {
        self.seen(window).filter_map(move |s| s.nodes.get(&id))
    }

    fn since(&self, promises: &BTreeMap<Id, usize>, id: Id) -> usize {
        promises.get(&id).copied().unwrap_or(0)
    }

    /// The moment from which on a name is certain: its directory was synced, or the inode it then led to.
    fn name_since(&self, name: &Name) -> usize {
        let by_inode = self.named.iter().filter(|(id, m)| self.run.moments[**m].entries.get(name) == Some(*id));
        let by_inode = by_inode.map(|(_, m)| *m).max().unwrap_or(0);
        by_inode.max(self.since(&self.synced, name.0))
    }

    /// Rule 1.
    fn names(&mut self) {
        let mut all: BTreeSet<&Name> = self.found.entries.keys().collect();
        for seen in self.seen(self.base) {
            all.extend(seen.entries.keys());
        }
        for name in all {
            let have = self.found.entries.get(name);
            let window = self.base.from(self.name_since(name));
            let dir_found = self.found.nodes.contains_key(&name.0);
            // While its directory does not exist, a name says nothing: rule 2 covers that.
            let mut could_be = self.seen(window).filter(|s| !dir_found || s.nodes.contains_key(&name.0));
            if could_be.any(|s| s.entries.get(name) == have) {
                continue;
            }
            let show = |id: Option<&Id>| id.map_or("nothing".to_owned(), |id| format!("inode {id}"));
            let mut want: Vec<String> = self.seen(window).map(|s| show(s.entries.get(name))).collect();
            want.dedup();
            let place = self.place(name);
            self.say(format!("{place} leads to {}, allowed: {} (moments {:?})", show(have), want.join(", "), window));
        }
    }

    fn place(&self, name: &Name) -> String {
        let last = self.run.moments.iter().rev().find(|s| s.nodes.contains_key(&name.0)).unwrap_or(self.found);
        let mut path = vec![name.1.escape_ascii().to_string()];
        let mut at = name.0;
        while at != last.top
            && path.len() < 50
            && let Some((dir, part)) = last.names_of(at).first()
        {
            path.push(part.escape_ascii().to_string());
            at = *dir;
        }
        path.reverse();
        path.join("/")
    }

    fn inodes(&mut self) {
        let mut all: BTreeSet<Id> = self.found.nodes.keys().copied().collect();
        for seen in self.seen(self.base) {
            all.extend(seen.nodes.keys());
        }
        for id in all {
            let window = self.base.from(self.since(&self.synced, id));
            let names = self.base.from(self.since(&self.named, id));
            match self.found.nodes.get(&id) {
                None => {
                    // Rule 2.
                    if self.seen(names).all(|s| s.nodes.contains_key(&id)) {
                        let name =
                            self.seen(names).next_back().and_then(|s| s.names_of(id).first().map(|n| (*n).clone()));
                        let name = name.map(|n| self.place(&n)).unwrap_or_default();
                        self.say(format!("inode {id} ({name}) is gone; it was there at all moments of {names:?}"));
                    }
                }
                Some(node) => {
                    if self.history_of(id, names).next().is_none() {
                        self.say(format!("inode {id} is there; it was at none of the moments of {names:?}"));
                        continue;
                    }
                    self.node(id, node, window);
                    self.set_of_names(id, node, names);
                }
            }
        }
    }

    /// Rule 4.
    fn node(&mut self, id: Id, node: &Arc<Node>, window: Window) {
        if node.empty_subvol_dir || self.history_of(id, window).any(|n| Arc::ptr_eq(n, node)) {
            return;
        }
        if !self.history_of(id, window).any(|n| n.kind == node.kind && n.owner == node.owner) {
            self.say(format!("inode {id}: mode and owner {:?} of no moment of {window:?}", node.owner));
        }
        if !self.history_of(id, window).any(|n| n.xattrs == node.xattrs) {
            let names: Vec<_> = node.xattrs.keys().map(|k| k.escape_ascii().to_string()).collect();
            self.say(format!("inode {id}: xattrs {names:?} as at no moment of {window:?}"));
        }
        let times = self.bytes.from(self.since(&self.synced, id));
        let bytes = self.bytes.from(self.since(&self.filled, id));
        // Bytes and their time come when they are flushed: of a file that was born since, perhaps neither.
        let born = |window: Window| !self.run.moments[window.lo.min(window.hi)].nodes.contains_key(&id);
        let empty = node.data.is_empty() && born(bytes);
        self.changed(id, node, if node.kind == Kind::File { times } else { window });
        if !empty {
            self.room(id, node, bytes);
        }
        // fdatasync promises bytes, even none, and no time.
        let timeless = node.data.is_empty() && born(times);
        let times_of = || self.history_of(id, times).map(|n| n.mtime);
        // A split step has times in between; and on a mount the kernel says after its writes what their time was, so that until then it
        // is that of their arrival, which may be the latest of all.
        let latest = || self.run.moments.iter().flat_map(|seen| seen.nodes.values()).map(|n| n.mtime).max();
        let between = || self.run.by_byte && times_of().min() <= Some(node.mtime) && Some(node.mtime) <= latest();
        if !timeless && !times_of().any(|mtime| mtime == node.mtime) && !between() {
            self.say(format!("inode {id}: mtime {:?} of no moment of {times:?}", node.mtime));
        }
        if empty || self.history_of(id, bytes).any(|n| n.data == node.data) {
            return;
        }
        if !self.run.by_kernel && !self.run.by_byte {
            let (len, hash) = (node.data.len(), crc32c::crc32c(&node.data));
            let then: Vec<_> = self.history_of(id, bytes).map(|n| (n.data.len(), crc32c::crc32c(&n.data))).collect();
            self.say(format!("inode {id}: {len} bytes (crc {hash:x}) as at no moment of {bytes:?}: {then:x?}"));
            return;
        }
        let len = node.data.len();
        let sizes: Vec<usize> = self.history_of(id, bytes).map(|n| n.data.len()).collect();
        // A split write ends in between.
        let between = |w: &[usize]| (w[0].min(w[1])..=w[0].max(w[1])).contains(&len);
        let known = sizes.contains(&len) || self.run.by_byte && sizes.windows(2).any(between);
        if !known {
            self.say(format!("inode {id}: size {} of no moment of {bytes:?}", node.data.len()));
        }
        let strange = node.data.iter().enumerate().position(|(at, byte)| {
            !self.history_of(id, bytes).any(|n| n.data.get(at).map_or(*byte == 0, |b| b == byte))
        });
        if let Some(at) = strange {
            self.say(format!("inode {id}: the byte at {at} is of no moment of {bytes:?}"));
        }
    }

    /// Rule 4 for flags and the times that no call sets.
    fn changed(&mut self, id: Id, node: &Node, window: Window) {
        // A kernel that has replayed a log has set times of its own; it cannot report flags.
        let (Some((mtime, ctime)), Some(flags), false) = (node.times, node.flags, self.run.by_kernel) else { return };
        let then: Vec<(Time, Time)> = self.history_of(id, window).filter_map(|n| n.times).collect();
        // An inode created since then has unseen states between two moments.
        let born = !self.run.moments[window.lo.min(window.hi)].nodes.contains_key(&id);
        let outside = |time: Time, of: fn((Time, Time)) -> Time| {
            let all = || then.iter().copied().map(of);
            let (first, last) = (all().min(), all().max());
            first.is_some_and(|first| time < first && !born) || last.is_some_and(|last| time > last)
        };
        let is_dir = node.kind == Kind::Dir;
        let wrong = [("ctime", ctime, outside(ctime, |t| t.1)), ("mtime", mtime, is_dir && outside(mtime, |t| t.0))];
        for (what, time, _) in wrong.into_iter().filter(|w| w.2) {
            self.say(format!("inode {id}: {what} {time:?} outside of all moments of {window:?}: {then:?}"));
        }
        // A split step has flags in between.
        let mut known = self.history_of(id, window).filter_map(|n| n.flags).peekable();
        if !self.run.by_byte && known.peek().is_some() && !known.any(|f| f == flags) {
            self.say(format!("inode {id}: flags {flags:x} of no moment of {window:?}"));
        }
    }

    /// Rule 4 for space.
    fn room(&mut self, id: Id, node: &Node, window: Window) {
        let all: Vec<&Vec<Room>> = self.history_of(id, window).filter_map(|n| n.room.as_ref()).collect();
        let Some(have) = &node.room else { return };
        if all.is_empty() || all.contains(&have) || self.run.by_kernel || self.run.by_byte {
            return;
        }
        let kind = |room: &[Room], at: u64| room.iter().find(|r| (r.first..r.end).contains(&at)).map(|r| r.unwritten);
        // The places at which anything changes; between them all is alike.
        let places = |room: &Vec<Room>| room.iter().flat_map(|r| [r.first, r.end]).collect::<Vec<_>>();
        let mut at: BTreeSet<u64> = all.iter().flat_map(|room| places(room)).chain(places(have)).collect();
        at.insert(0);
        let strange = at.into_iter().find(|at| !all.iter().any(|room| kind(room, *at) == kind(have, *at)));
        if let Some(at) = strange {
            let have = match kind(have, at) {
                None => "a hole",
                Some(false) => "written",
                Some(true) => "space in which nothing was written",
            };
            self.say(format!("inode {id}: sector {at} is {have} as at no moment of {window:?}"));
        }
    }

    /// Rules 3 and 5.
    fn set_of_names(&mut self, id: Id, node: &Node, window: Window) {
        let have = self.found.names_of(id);
        if node.kind != Kind::Dir && node.nlink != have.len() as u64 {
            self.say(format!("inode {id}: {} links, {} names", node.nlink, have.len()));
        }
        let sets: Vec<BTreeSet<&Name>> =
            self.seen(window).filter(|s| s.nodes.contains_key(&id)).map(|s| s.names_of(id)).collect();
        let lost_alone = sets.windows(2).any(|w| w[1].len() < w[0].len());
        if node.empty_subvol_dir || lost_alone || self.run.by_kernel || sets.contains(&have) {
            return;
        }
        let show = |set: &BTreeSet<&Name>| set.iter().map(|n| self.place(n)).collect::<Vec<_>>().join(" and ");
        let mut want: Vec<String> = sets.iter().map(show).collect();
        want.dedup();
        let what = format!("inode {id} is {}, allowed: {} ({window:?})", show(&have), want.join("; or "));
        self.say(what);
    }
}

/// Whether all but bytes and times is alike.
fn same_names(a: &Seen, b: &Seen) -> bool {
    a.entries == b.entries
        && a.nodes.len() == b.nodes.len()
        && a.nodes.iter().all(|(id, x)| {
            b.nodes.get(id).is_some_and(|y| {
                x.empty_subvol_dir || (x.kind, x.owner, x.nlink) == (y.kind, y.owner, y.nlink) && x.xattrs == y.xattrs
            })
        })
}

fn first_difference(want: &Seen, have: &Seen) -> String {
    for (name, id) in &want.entries {
        if have.entries.get(name) != Some(id) {
            return format!("{}:{} led to {id}", name.0, name.1.escape_ascii());
        }
    }
    for (name, id) in &have.entries {
        if want.entries.get(name) != Some(id) {
            return format!("{}:{} leads to {id}", name.0, name.1.escape_ascii());
        }
    }
    "attributes differ".into()
}

#[cfg(test)]
mod tests;

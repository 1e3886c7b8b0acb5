//! The ranks: one table, in the order in which a thread may take locks. `docs/locking.md` explains what the lines leave
//! open; `cargo xtask locking` generates its tables from here.
//!
//! A new lock gets a line at its place in the order, and a name that says which lock it is. Leaves come last: nothing
//! is taken under them, so their order means nothing.

use std::fmt;
use std::fmt::Write;

/// How many locks of a rank a thread may hold, and whether others beside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One.
    One,
    /// Several, in the order given in the text.
    Several(&'static str),
    /// One, and nothing is taken while it is held.
    Leaf,
}

/// Whether a device may be read or written while a lock is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Io {
    /// It may not.
    No,
    /// I/O is allowed: which.
    May(&'static str),
}

/// The description of a rank.
#[derive(Debug)]
pub struct Entry {
    /// The name of its type.
    pub name: &'static str,
    /// The crate whose lock it is.
    pub krate: &'static str,
    /// The lock, as the source names it.
    pub lock: &'static str,
    /// How many.
    pub kind: Kind,
    /// Which I/O is allowed under it.
    pub io: Io,
    /// What it protects.
    pub covers: &'static str,
    /// How long it is held.
    pub held: &'static str,
}

/// A type that represents a rank.
pub trait Ranked: 'static {
    /// Which one.
    const RANK: Rank;
}

macro_rules! ranks {
    ($($name:ident, $krate:literal, $lock:literal, $kind:expr, $io:expr, $covers:literal, $held:literal;)*) => {
        /// The ranks, in their order.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Rank {
            $(#[doc = $lock] $name,)*
        }

        impl Rank {
            /// All of them, in their order.
            pub const ALL: &[Rank] = &[$(Rank::$name),*];

            /// Its description.
            pub const fn entry(self) -> &'static Entry {
                match self {
                    $(Rank::$name => &Entry {
                        name: stringify!($name),
                        krate: $krate,
                        lock: $lock,
                        kind: $kind,
                        io: $io,
                        covers: $covers,
                        held: $held,
                    },)*
                }
            }
        }

        /// The ranks as types.
        pub mod rank {
            $(
                #[doc = $lock]
                #[derive(Debug)]
                pub enum $name {}
                impl super::Ranked for $name {
                    const RANK: super::Rank = super::Rank::$name;
                }
            )*
        }
    };
}

use Io::{May, No};
use Kind::{Leaf, One, Several};

ranks! {
    RestoreLinks, "oleo", "`Core::links` of a restore", One, May("the file is read and made"),
        "where files with several names are",
        "a file with several names is made";
    RestoreDescent, "oleo", "`Core::descent` of a restore", One, May("parents are looked up"),
        "which directories have been entered",
        "a directory is entered";
    RestoreWork, "oleo", "`Work::state` of a restore", One, No,
        "jobs to be done, and how many are",
        "a push, a pop or a wait";
    Throttling, "oleo-fs", "`Core::throttling`", One, May("the commit's"),
        "who commits because too many inodes are dirty",
        "that commit; others try for a millisecond at a time, until something is frozen";
    Moving, "oleo-fs", "`Core::moving`", One, May("ancestors are looked up"),
        "who is whose ancestor, while a directory changes its parent",
        "one rename";
    FileFlush, "oleo-fs", "`FileData::flush`", Several("(tree, number)"), May("data is read and written"),
        "a file's extent map",
        "a flush, a resize, a clone, a rewrite of up to 32 MiB; a step of a write that is accepted for space the file has";
    Addresses, "oleo-txn", "`Engine::addresses` (read/write)", One, May("data is read and written where it was found"),
        "where data lies",
        "read: by whoever goes by an address that it has looked up; written: see below";
    JoinAlone, "oleo-txn", "`MetadataReserve::alone_lock`", One, May("commits"),
        "who joins alone, because there is no space for more",
        "until that operation has joined; others wait for it before they join";
    LogWriter, "oleo-txn", "`Inner::log_writer`", One, May("the log commit's"),
        "who writes a log commit",
        "a log commit, and its wait for the commit whose superblock it changes";
    Commit, "oleo-txn", "`Inner::commit_lock`", One, May("one transaction is in flight"),
        "the transaction that is being committed, and the trees",
        "a commit, a stage, a step of dropping a tree; a log commit that came while a commit was in flight";
    LogRecording, "oleo-txn", "`Inner::log_recording` (read/write)", One, May("blocks of trees that are not in memory are read"),
        "that the trees have all of the transaction before the open one, and nothing of that",
        "read: one inode's changes are recorded; a log is put together; written: from before a freeze until what it froze is in the trees; a log is put together that concerns several inodes";
    Log, "oleo-txn", "`Inner::log`", One, May("a chunk is planned for it"),
        "the log trees and their blocks",
        "a look; changes are put into them; a freeze takes them away";
    LogFound, "oleo-txn", "`LogAlloc::found`", One, May("a new chunk is planned"),
        "blocks that a log commit has taken",
        "an allocation of log blocks";
    BlockJoins, "oleo-txn", "`TransactionBarrier::blocking`", One, May("what the freeze or the log commit must read"),
        "who blocks joins",
        "as long as joins are blocked";
    Join, "oleo-txn", "the transaction barrier, a `JoinGuard`", One, May("blocks of trees that are not in memory are read"),
        "the open transaction",
        "one operation";
    Frozen, "oleo-fs", "`Core::frozen`", One, May("blocks of trees that are not in memory are read"),
        "the inodes and subvolumes that were frozen",
        "`freeze`, which locks roots of subvolumes under it, and `itemise`, which locks inodes, one after the other; a look in `published`";
    InodeState, "oleo-fs", "`Inode::state` (read/write)", Several("(objects that are no inodes last, tree, number)"),
        May("blocks of trees that are not in memory are read"),
        "an inode's fields and changed items; of objects that are no inodes: orphans, references in the root tree, the UUID tree",
        "the items of one operation; one item of an object that is no inode";
    FileBuffer, "oleo-fs", "`FileData::buffer`", One, May("blocks of trees that are not in memory are read"),
        "what is written and not in the extent map",
        "a look-up, a change of the buffer; the extent map is looked up under it, so that both are of one moment";
    Sharing, "oleo-tree", "`Dirty::sharing`", One, May("blocks are read and references looked up"),
        "one change of a shareable tree at a time",
        "an `apply`, `copy_root` or step of `drop_tree`; never waited for: a second one meanwhile is a bug";
    Growing, "oleo-txn", "`Growth::growing`", One, May("a file that grows; a root tree's block is read for a superblock; devices forget what no chunk has"),
        "the chunks",
        "a chunk is planned; what is unallocated is looked over for promises of metadata; a commit makes its superblock, at the end of its settling";
    LogGivenUp, "oleo-txn", "`Inner::log_given_up`", One, May("log blocks are written"),
        "whether the places of log blocks are still theirs",
        "log blocks are written; a commit gives them up";
    LogOnDisk, "oleo-txn", "`Inner::log_on_disk`", One, May("the superblock is written"),
        "the superblock on disk",
        "the end of a commit, of a log commit";
    ReserveHeld, "oleo-txn", "`MetadataReserve::held`", One, No,
        "the reservations of the open and of the frozen transaction",
        "an addition or a split";
    QuotaSums, "oleo-txn", "`Charges::sums`", One, No,
        "what operations under way may come to use, by tree and group",
        "an addition; `table` is read under it. Taken only where a group has a limit";
    QuotaTable, "oleo-txn", "`Quota::table` (read/write)", One, No,
        "the groups",
        "a look-up; the changes of one commit; groups come, go and are joined only with the commit lock held";
    QuotaNotes, "oleo-txn", "`Quota::notes`", One, No,
        "snapshots made and trees dropped since the last commit",
        "a push or a take";
    QuotaScan, "oleo-txn", "`Quota::scan`", One, No,
        "what commits did since a scan began",
        "a push or a take";
    Agreed, "oleo-txn", "`Inner::agreed`", One, May("devices are told what is free; a group is read"),
        "in which groups may be discarded",
        "while devices are told what commits freed; whoever looks for space waits for it";
    Targets, "oleo-volume", "`Volume::targets_stay` (read/write)", One, May("data is written, or copied"),
        "which devices are about to give their place to others",
        "read: one write, or one run that is copied; whoever has it may wait for those who copy, or write, in the same places (`Copying`). Written: a device gets such another, or gives its place to it";
    Trees, "oleo-txn", "`Trees::map` (read/write)", One, No,
        "the newest roots",
        "a look-up or a store";
    PendingSums, "oleo-txn", "`Pending::shards[n]` (read/write)", One, No,
        "checksums of data of the open transaction, and of the frozen one",
        "a look-up, an insertion or a move";
    StripeRow, "oleo-volume", "`Rows::shards[n]`", Several("number"), May("the row is read and written"),
        "rows of chunks with parity",
        "a part of a row is written, or rebuilt; bad bytes in it are overwritten";
    StripeRecords, "oleo-volume", "`Rows::records`", One, May("a record is written and flushed, and then what it is for"),
        "records of stripes in flight",
        "one record, until what it is for is written";
    Sweep, "oleo-space", "`Ledger::sweep` (read/write)", One, No,
        "the runs that are being drained, and what of them is next",
        "written: a batch is chosen; the first of a sweep takes all shards' runs and lists their regions; read: one `pending`";
    LedgerShard, "oleo-space", "`Ledger::shards[n]`", One, No,
        "the records of some regions",
        "a push, now and then with a merge of runs; a drain takes them one after the other";
    GroupTable, "oleo-space", "`Tables::shards[n]` (read/write)", Several("number, for writing"), No,
        "which groups there are, and the index over them",
        "read: one look into groups, their states included; written when a group comes or goes";
    GroupState, "oleo-space", "`Group::state`", One, No,
        "a group's free runs, pins and state",
        "a few steps in its runs; tried, not waited for, except by frees and by the last pass of an allocation. The free space is read between two holdings, the group marked `Loading` in between; `Wakeups` says who waits";
    RestoreReport, "oleo", "`Core::report` of a restore", One, No,
        "what was restored",
        "an addition; every so often who asked for the restore is told under it";
    DeviceLosses, "oleo-volume", "`Losses::losing`", One, No,
        "which devices have failed",
        "it is found out whether the volume can do without another";
    DeviceMembers, "oleo-volume", "`Volume::members` (read/write)", One, No,
        "the devices",
        "a look-up or a change";
    Chunks, "oleo-volume", "`Volume::chunks` (read/write)", One, No,
        "which chunk lies where",
        "a look-up or a change";
    DeviceItem, "oleo-volume", "`Member::item`", One, No,
        "a device's item",
        "a copy or a change of a field";
    NbdServeReceive, "oleo-nbd", "`Connection::receive` of the server", One, May("a small round that came alone is carried out"),
        "the receiving end of a connection",
        "a round of requests is received; a lone small one is answered too";
    NbdServeSend, "oleo-nbd", "`Connection::send` of the server", One, No,
        "the sending end of a connection",
        "the replies of a round, or one chunk, are sent";
    Overlay, "oleo-device", "`Overlay::pages` (read/write)", One, May("the base is read"),
        "pages written over a device",
        "a read or a write of the overlay";
    SlicePages, "oleo-web", "`Slices::pages`", One, May("the file is read"),
        "pages of a file of the reader's machine",
        "the part of a read that lies in one page";
    RemoteEdges, "oleo-remote", "`Core::edges`", One, May("blocks are read and written back; what waits is published"),
        "blocks of which only a part is written",
        "such a write, with the reads before it";
    RemotePublish, "oleo-remote", "`Core::published`", One, May("segments and the head are written"),
        "the head that is the volume's newest, as far as this writer knows",
        "a publish, with all its attempts; whoever wants the same waits for it";
    RemoteLog, "oleo-remote", "`LocalLog::inner`", One, May("the log on the local disk is written and flushed"),
        "the log on the local disk",
        "one confirmation, with the flush of its file; one note";
    RemoteState, "oleo-remote", "`Core::state`", One, No,
        "where every block is, and what is not written yet",
        "a look-up; one frame is appended; what is to be published is gathered";
    NbdEdges, "oleo-nbd", "`Shared::edges` of the client", One, May("blocks are read and written back"),
        "blocks of which only a part is written",
        "such a write, with the reads before it";
    NbdSend, "oleo-nbd", "`Link::send` of the client", One, May("a socket is written, and read if it is full"),
        "who sends on a connection",
        "some requests of one call with their payload";
    FuseNodes, "oleo-fuse", "`Nodes::shards[n]`", One, No,
        "the nodes that the kernel knows",
        "a look-up; the last handle of a node is dropped outside";
    DataWaiting, "oleo-fs", "`Shared::waiting` of data", One, No,
        "who waits for dirty bytes, or for space for more",
        "a look at the counts, or a wait";
    InodeCache, "oleo-fs", "shards of the `InodeCache`", One, No,
        "the inodes in memory",
        "a look-up, or a sweep";
    RestoreDirs, "oleo", "`OpenDirs::open` of a restore", Leaf, No,
        "the directories that are open",
        "a look-up or a change; descriptors are closed outside";
    RestoreFailed, "oleo", "`Core::failed` of a restore", Leaf, No,
        "the error that ends the restore",
        "a look";
    FuseFollow, "oleo-fuse", "`Following::state`", Leaf, No,
        "moments of a volume that is followed, and which of them nodes are of",
        "a look-up; nodes are looked through when the newest moment changes";
    FuseWriters, "oleo-fuse", "`Writers::shards[n]`", Leaf, No,
        "the nodes that are open for writing",
        "a look-up";
    FuseForeign, "oleo-fuse", "`Nodes::odd`", Leaf, No,
        "numbers that do not follow from an inode's",
        "a look-up";
    FusePool, "oleo-fuse", "`Pool::unjoined`", Leaf, No,
        "the threads of a transport",
        "a push or a pop";
    FuseEnding, "oleo-fuse", "`Ending::state`", Leaf, No,
        "how far the end of a mount has come, and the requests under way",
        "a look, or a wait";
    FuseNotices, "oleo-fuse", "the queue of `NoticeThread`", Leaf, No,
        "pages that the kernel is to forget",
        "a push";
    FuseReplies, "oleo-fuse", "`Done::slots`, one per ring", Leaf, No,
        "slots with replies on their way back",
        "a push or a take";
    FuseWork, "oleo-fuse", "`Helpers::work`", Leaf, No,
        "slots with requests that take long",
        "a push, a pop or a wait; not while a request is answered";
    FuseRings, "oleo-fuse", "`UringFuse::rings`", Leaf, No,
        "the rings, until the transport begins",
        "a take";
    BalanceState, "oleo-jobs", "`Balancer::state`", Leaf, No,
        "what is reported of a balance, and whether it is to stop",
        "a look, a change, or a wait. Whoever runs one holds nothing of this crate's meanwhile";
    ScrubState, "oleo-jobs", "`Scrubber::state`", Leaf, No,
        "what is asked of a scrub, and whether it is to stop",
        "a look, a change, or a wait. Whoever runs one holds nothing of this crate's meanwhile";
    ScrubRun, "oleo-jobs", "`Shared::progress`, `Throttle`, `Buffers::state`, and the lists of a run", Leaf, No,
        "what is reported of a scrub, and what its threads tell each other",
        "a look, a change, or a wait for memory";
    ReplaceState, "oleo-jobs", "`Replacer::state`", Leaf, No,
        "how far the replacement of a device is, and whether it is to stop",
        "a look or a change";
    DirtyInodes, "oleo-fs", "`Core::dirty[n]`", Leaf, No,
        "inodes with changes",
        "a push, or a move of them all";
    DirtySubvols, "oleo-fs", "`Core::dirty_subvols`", Leaf, No,
        "subvolumes with changes",
        "a push or a take";
    Subvols, "oleo-fs", "`Core::subvols`", Leaf, No,
        "the subvolumes in memory",
        "a look-up, or a sweep";
    SubvolRoot, "oleo-fs", "`Subvol::root`", Leaf, No,
        "a subvolume's root item",
        "a look or a change";
    Evictable, "oleo-fs", "`Core::evictable`", Leaf, No,
        "inodes without name or handle",
        "a push or a pop";
    Nameless, "oleo-fs", "`Core::nameless`", Leaf, No,
        "when somebody's inode lost its last name",
        "a look";
    FsPoisoned, "oleo-fs", "`Core::poisoned`", Leaf, No,
        "why the open transaction must not be committed",
        "a look";
    CommitWanted, "oleo-fs", "`Core::waiting`", Leaf, No,
        "whether the background committer has work",
        "a look, or a wait";
    DirtyFiles, "oleo-fs", "`Shared::files` of data", Leaf, No,
        "which files have dirty bytes",
        "a look-up or a push";
    Cloned, "oleo-fs", "`Shared::cloned` of data", Leaf, No,
        "extents that were cloned, and when",
        "a look-up or a push";
    LogQueue, "oleo-fs", "`Shared::queue` of the log", Leaf, No,
        "who waits for a round of fsync",
        "a look, a push, or a wait";
    LogRenamed, "oleo-fs", "`Shared::renamed` of the log", Leaf, No,
        "inodes whose names have changed",
        "a push or a take";
    BarrierWaiting, "oleo-txn", "`TransactionBarrier::waiting`", Leaf, No,
        "waits for the barrier",
        "a look, or a wait";
    DataAhead, "oleo-txn", "`DataAhead::of_threads[n]`", Leaf, No,
        "data space that was promised ahead for some threads",
        "a reservation, or a part of one";
    NewExtents, "oleo-txn", "`Inner::new_extents[n]`", Leaf, No,
        "data that came to be referenced",
        "a push or a take";
    ChunkPlans, "oleo-txn", "`Growth::plans`", Leaf, No,
        "chunks on their way into the trees",
        "a push, a look or a take";
    IdleGroups, "oleo-txn", "`Growth::idle`, `Growth::idle_looked`", Leaf, No,
        "groups that nothing is in",
        "a look";
    TreesGone, "oleo-txn", "`Trees::gone` (read/write)", Leaf, No,
        "trees that were dropped",
        "a look-up or an insertion";
    NewData, "oleo-txn", "`Owners::new_data` (read/write)", Leaf, No,
        "who wrote data that no item tells of yet, with simple quotas",
        "a look-up, or noting the new extents of one stage";
    ReaderToken, "oleo-txn", "`Readers::newest[n]` (read/write)", Leaf, No,
        "the token that the next reader on some threads gets",
        "a copy, or an exchange";
    Readers, "oleo-txn", "`Readers::queue`", Leaf, No,
        "what readers may be looking at",
        "a look or a push";
    SuperBlock, "oleo-txn", "`Inner::super_block`", Leaf, No,
        "the superblock as it will be written",
        "a copy, or a change of a field";
    Unwritten, "oleo-txn", "`Inner::unwritten`", Leaf, No,
        "a transaction that found no room below the devices; changed with the commit lock held",
        "a look or a move";
    UnreplayedLog, "oleo-txn", "`Inner::unreplayed_log`", Leaf, No,
        "the log that a crash left",
        "a look or a move";
    Source, "oleo-txn", "`Inner::source` (read/write)", Leaf, No,
        "who has the changes",
        "a look";
    Poisoned, "oleo-txn", "`Inner::poisoned_by` (read/write)", Leaf, No,
        "the error that poisoned the engine",
        "a look";
    BackrefConversion, "oleo-txn", "`Inner::backref_conversion`", Leaf, No,
        "how far shared subtrees of trees that are being dropped were converted",
        "a look";
    InvalidatedCaches, "oleo-txn", "`Inner::invalidated_caches`", Leaf, No,
        "groups whose old free-space caches nobody can take for true any more",
        "a look-up";
    DirtyBlocks, "oleo-tree", "`Dirty::map`", Leaf, No,
        "the unwritten blocks by address",
        "a look-up, or an exchange of blocks";
    NodeKids, "oleo-tree", "`Node::kids` (read/write)", Leaf, No,
        "the unwritten children of one block",
        "a look-up; written once, when they are on disk";
    Pins, "oleo-space", "`Inner::pins`", Leaf, No,
        "runs pinned since the last commit",
        "a push or a take";
    UsedDirty, "oleo-space", "`Inner::used_dirty`", Leaf, No,
        "groups whose used bytes changed",
        "a push or a take";
    FreeSource, "oleo-space", "`Inner::source` (read/write)", Leaf, No,
        "who is asked for free space",
        "a copy";
    Residents, "oleo-space", "`Residents::queue`", Leaf, No,
        "groups whose runs are in memory",
        "a push or a pop";
    Wakeups, "oleo-space", "`Wakeups::waiting`", Leaf, No,
        "that something was told, to whoever waits for a load or for a held run",
        "a count, or a wait; whoever waits holds nothing else of this crate's";
    CopiedPlaces, "oleo-volume", "`Copying::state`", Leaf, No,
        "which bytes of devices are being copied, and which written meanwhile",
        "a look, an addition or a removal, or a wait";
    ReplaceTargets, "oleo-volume", "`Volume::targets`, `Volume::replaced`", Leaf, No,
        "devices that say that they are about to take another's place, and those that gave theirs to another",
        "a push or a removal";
    WrittenItem, "oleo-volume", "`Member::settled`", Leaf, No,
        "a device's item as the superblocks on disk have it",
        "a copy";
    RecordBases, "oleo-volume", "`Rows::bases`", Leaf, No,
        "which superblocks may be the newest while rows are written",
        "a copy";
    RowStamps, "oleo-volume", "`Rows::stamps`", Leaf, No,
        "which sectors of rows were written since the last flush",
        "a look or a note";
    RowPatches, "oleo-volume", "`Rows::patches` (read/write)", Leaf, No,
        "what parity has to be where a crash left it wrong, and nobody may write it",
        "a copy; set when a volume is opened";
    VolumeSuper, "oleo-volume", "`Volume::super_block` (read/write)", Leaf, No,
        "the superblock that was opened or written last",
        "a copy";
    IdleFlushers, "oleo-volume", "`Flushers::idle`", Leaf, No,
        "threads that flush devices and have nothing to do",
        "a push or a pop";
    ParallelSlot, "oleo-volume", "slots of `parallel::each`", Leaf, No,
        "an item of work, or its result",
        "a move";
    NbdState, "oleo-nbd", "`State::inner` of the client", Leaf, No,
        "its session, and what is written and not flushed",
        "a look, a change or a wait; not while a new session is made";
    NbdSlots, "oleo-nbd", "`Link::inner` of the client", Leaf, No,
        "the requests under way on a connection, and whose turn it is to receive",
        "a look, a change or a wait; not while something is received";
    NbdBudget, "oleo-nbd", "`Budget::state` of the server", Leaf, No,
        "bytes of memory that requests take",
        "a look, a change, or a wait";
    NbdPeers, "oleo-nbd", "`Peers::seats` of the server", Leaf, No,
        "who uses which export",
        "a look-up or a change";
    NbdConnections, "oleo-nbd", "`Registry::open` of the server", Leaf, No,
        "the connections",
        "a look, a change, or a wait";
    NbdFailures, "oleo-nbd", "`Shared::failures` of the server", Leaf, No,
        "how many failures of clients were logged",
        "a count";
    NbdTls, "oleo-nbd", "the session of a `Channel`", Leaf, No,
        "what TLS has taken in and not given out",
        "bytes are taken in or given out, as far as the socket goes";
    RemoteDiskCache, "oleo-remote", "`DiskCache::files`", Leaf, No,
        "which files of the disk cache there are, and when each was used",
        "one look, or the sorting of all";
    RemoteMemory, "oleo-remote", "`MemoryStore::objects`, and which stores there are", Leaf, No,
        "the objects of a store in memory",
        "one operation";
    MemDevice, "oleo-device", "`MemDevice::shards[n]` (read/write)", Leaf, No,
        "pages of a device in memory",
        "a copy of a page";
    DirectBuffers, "oleo-device", "`Direct::spare`", Leaf, No,
        "buffers of direct writes that are not in use",
        "one is taken or given back";
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.entry().name, self.entry().lock)
    }
}

/// The table of a crate's locks in `docs/locking.md`, in the order of their ranks.
pub fn table(krate: &str) -> String {
    let mut out =
        String::from("| place | rank | lock | what it covers | held for | I/O |\n|---|---|---|---|---|---|\n");
    for (place, rank) in (1..).zip(Rank::ALL) {
        let entry = rank.entry();
        if entry.krate != krate {
            continue;
        }
        let place = if entry.kind == Kind::Leaf { "leaf".to_owned() } else { format!("{place}") };
        let several = match entry.kind {
            Kind::Several(order) => format!("; several by {order}"),
            Kind::One | Kind::Leaf => String::new(),
        };
        let io = match entry.io {
            Io::No => "no".to_owned(),
            Io::May(what) => format!("yes: {what}"),
        };
        let Entry { name, lock, covers, held, .. } = entry;
        let _ = writeln!(out, "| {place} | {name} | {lock}{several} | {covers} | {held} | {io} |");
    }
    out
}

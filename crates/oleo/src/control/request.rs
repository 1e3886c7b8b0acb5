//! Requests and replies. Everything here goes over the socket as JSON.

use std::fmt;
use std::path::PathBuf;

use oleo_format::{ByteLen, DevId, Generation, Ino, Logical, TreeId};
use oleo_fs::{SubvolInfo, Time};
use oleo_jobs::{
    BalanceArgs, BalanceStatus, DefragOptions, Defragmented, NewExtent, NewSize, Reclaimed, Resized, SubvolSize,
};
use oleo_volume::DeviceInfo;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::usage::FileUsage;
use crate::{ErrorKind, Hint};

/// Any bytes, such as a name. In JSON a text of which each character stands for one byte (U+0000 to U+00FF).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&self.0.iter().map(|&b| char::from(b)).collect::<String>())
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(d)?;
        let byte =
            |c: char| u8::try_from(u32::from(c)).map_err(|_| serde::de::Error::custom("a character beyond U+00FF"));
        Ok(Bytes(text.chars().map(byte).collect::<Result<_, _>>()?))
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Bytes {
        Bytes(bytes.to_vec())
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes(bytes)
    }
}

/// UUIDs as people write them.
mod uuid_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use uuid::Uuid;

    pub(super) fn serialize<S: Serializer>(id: &Uuid, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(id)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Uuid, D::Error> {
        String::deserialize(d)?.parse().map_err(D::Error::custom)
    }
}

/// A file or directory: a path from an inode on. The path may be empty.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Location {
    /// The tree of the inode that the path begins at.
    pub tree: TreeId,
    /// Its number.
    pub ino: Ino,
    /// The path from there on.
    #[serde(default)]
    pub path: Bytes,
}

impl Location {
    /// An inode itself.
    pub fn inode(tree: TreeId, ino: Ino) -> Location {
        Location { tree, ino, path: Bytes::default() }
    }

    /// A path from an inode on.
    pub fn below(tree: TreeId, ino: Ino, path: impl Into<Bytes>) -> Location {
        Location { tree, ino, path: path.into() }
    }

    /// A path from the top level.
    pub fn top(path: impl Into<Bytes>) -> Location {
        Location::below(TreeId::FS, Ino::ROOT_DIR, path)
    }
}

/// A subvolume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SubvolRef {
    /// By the place of its root directory.
    At(Location),
    /// By its number.
    Id(TreeId),
}

/// A property of a file, directory or subvolume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Property {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// A request to a file system.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// Makes an empty subvolume. Answer: [`Reply::Made`].
    SubvolCreate {
        /// Where; the last name must not be taken.
        at: Location,
        /// Makes the directories on the way too.
        parents: bool,
        /// Quota groups that it becomes part of.
        #[serde(default)]
        groups: Vec<u64>,
    },
    /// Makes a snapshot. Answer: [`Reply::Made`].
    Snapshot {
        /// Of what.
        source: SubvolRef,
        /// Where; the last name must not be taken.
        at: Location,
        /// Make it read-only.
        read_only: bool,
        /// Where there is a directory already: into it, under the source's name.
        #[serde(default)]
        into: bool,
        /// Quota groups that it becomes part of.
        #[serde(default)]
        groups: Vec<u64>,
    },
    /// Deletes a subvolume. Answer: [`Reply::Made`] with its number.
    SubvolDelete {
        /// Which.
        which: SubvolRef,
        /// Those inside it too.
        recursive: bool,
    },
    /// All subvolumes. Answer: [`Reply::Subvols`].
    SubvolList,
    /// Everything about one subvolume. Answer: [`Reply::Subvol`].
    SubvolShow {
        /// Which.
        which: SubvolRef,
    },
    /// Sets the subvolume that is mounted where none is named.
    SetDefault {
        /// Which.
        which: SubvolRef,
    },
    /// That subvolume. Answer: [`Reply::Subvol`].
    GetDefault,
    /// Which of these deleted subvolumes (none given: of all) are not removed completely yet. Answer: [`Reply::Subvolumes`].
    SubvolPending {
        /// Their numbers.
        ids: Vec<TreeId>,
    },
    /// Applies a stream. Answer: [`Reply::Received`], whether it came to its end or not.
    Receive {
        /// The directory where subvolumes are made.
        into: Location,
        /// The socket of a [`Feed`](super::Feed).
        feed: Bytes,
        /// Use this subvolume as the parent.
        #[serde(default)]
        rebase: Option<SubvolRef>,
        /// The rest.
        how: super::ReceiveHow,
    },
    /// Writes a stream of subvolumes. Answer: [`Reply::Sent`].
    Send {
        /// Which, in order.
        subvols: Vec<SubvolRef>,
        /// What the receiver has, and the first of them is made out of.
        #[serde(default)]
        parent: Option<SubvolRef>,
        /// What the receiver has too.
        #[serde(default)]
        clone_sources: Vec<SubvolRef>,
        /// The socket of a [`Feed`](super::Feed).
        feed: Bytes,
        /// The rest.
        how: super::SendHow,
    },
    /// Notes what a subvolume was received from. Answer: [`Reply::Generation`], of the transaction that notes it.
    SetReceived {
        /// Which.
        which: SubvolRef,
        /// The UUID of what was sent; nil for none.
        #[serde(with = "uuid_text")]
        uuid: Uuid,
        /// The sender's transaction.
        stransid: u64,
        /// When it was sent: seconds and nanoseconds.
        stime: (i64, u32),
    },
    /// The file extents that a subvolume gained in a generation or later. Answer: [`Reply::New`].
    FindNew {
        /// Which.
        which: SubvolRef,
        /// The generation.
        since: u64,
    },
    /// Changes how much of a device is used. Answer: [`Reply::Resized`].
    Resize {
        /// Which device; the only one, if there is no other.
        devid: Option<DevId>,
        /// Its new size.
        to: NewSize,
    },
    /// Rewrites fragmented files. Answer: [`Reply::Defragmented`].
    Defragment {
        /// A file, or a directory if `recursive`.
        at: Location,
        /// Everything below a directory, but not other subvolumes.
        recursive: bool,
        /// How.
        options: DefragOptions,
    },
    /// Discards free space on the devices. Answer: [`Reply::Bytes`].
    Trim {
        /// From this logical address on.
        start: u64,
        /// So many bytes.
        len: u64,
        /// Shorter runs are left alone.
        min_len: u64,
    },
    /// Which files are at a logical address. Answer: [`Reply::Places`].
    LogicalResolve {
        /// The address.
        at: Logical,
        /// Paths too.
        paths: bool,
    },
    /// Changes quota. It is durable when the answer comes.
    QuotaChange {
        /// What to change.
        change: QuotaChange,
    },
    /// Quota and its groups. Answer: [`Reply::Quota`].
    Quota,
    /// Starts, pauses or cancels a balance. Starting one returns [`Reply::Number`] as soon as the balance item is on disk: the balance
    /// runs in the background of a mount, and by `Balancer::run` on an image. Pausing and cancelling wait for the current group.
    Balance {
        /// What to do.
        change: BalanceChange,
    },
    /// State and progress of the balance. Answer: [`Reply::Balance`].
    BalanceStatus,
    /// Frees nearly empty block groups. Answer: [`Reply::Reclaimed`].
    Reclaim {
        /// Those of which less is used, in percent.
        percent: u64,
    },
    /// What each subvolume takes. Answer: [`Reply::Sizes`].
    SubvolSizes,
    /// What deleting exactly these subvolumes would free. Answer: [`Reply::Bytes`].
    Frees {
        /// Which.
        subvols: Vec<SubvolRef>,
    },
    /// Space by type and profile. Answer: [`Reply::Df`].
    Df,
    /// Where the space of the devices is. Answer: [`Reply::Usage`].
    Usage,
    /// What a file, or everything below a directory, takes. Answer: [`Reply::Du`].
    Du {
        /// What to look at.
        at: Location,
    },
    /// What has been counted since the volume was opened. Answer: [`Reply::Stats`].
    Stats,
    /// Makes everything durable. Answer: [`Reply::Generation`].
    Sync,
    /// Of a mount: where it is, and how far its end has come. Answer: [`Reply::Mounted`].
    Mounted,
    /// Of a mount: waits until it is unmounted and everything is on disk. Fails if something cannot be written; the server keeps it
    /// and tries again. A request then makes it try immediately.
    Finish,
    /// Of a mount: writes all files as they are into a directory of the host. Answer: [`Reply::Number`] of files and directories.
    SaveTo {
        /// An absolute path; there must be nothing in it.
        dir: Bytes,
    },
    /// Of a mount that is unmounted: its server ends and discards what is not on disk.
    GiveUp,
    /// The label. Answer: [`Reply::Label`].
    Label,
    /// Changes the label.
    SetLabel {
        /// The new one.
        label: Bytes,
    },
    /// The properties that are set, or the one named. Answer: [`Reply::Properties`].
    PropertyGet {
        /// Of what.
        at: Location,
        /// Which one.
        name: Option<String>,
    },
    /// Sets a property.
    PropertySet {
        /// Of what.
        at: Location,
        /// Which one, and to what.
        property: Property,
        /// Makes a received subvolume writable, which forgets what it was received from.
        force: bool,
    },
    /// The paths of an inode, from the top level. Answer: [`Reply::Paths`].
    InodeResolve {
        /// The subvolume.
        tree: TreeId,
        /// The number.
        ino: Ino,
    },
    /// The path of a subvolume, from the top level. Answer: [`Reply::Paths`].
    SubvolPath {
        /// Its number.
        id: TreeId,
    },
    /// Which subvolume something is in. Answer: [`Reply::Made`].
    Rootid {
        /// What.
        at: Location,
    },
}

impl Request {
    /// Whether it changes the file system, which is refused to callers that see it read-only.
    pub fn changes(&self) -> bool {
        match self {
            Request::SubvolCreate { .. }
            | Request::Snapshot { .. }
            | Request::SubvolDelete { .. }
            | Request::SetDefault { .. }
            | Request::Receive { .. }
            | Request::SetReceived { .. }
            | Request::Resize { .. }
            | Request::Defragment { .. }
            | Request::Trim { .. }
            | Request::QuotaChange { .. }
            | Request::Balance { .. }
            | Request::Reclaim { .. }
            | Request::SetLabel { .. }
            | Request::PropertySet { .. } => true,
            Request::SubvolList
            | Request::SubvolShow { .. }
            | Request::GetDefault
            | Request::SubvolPending { .. }
            | Request::FindNew { .. }
            | Request::LogicalResolve { .. }
            | Request::Quota
            | Request::BalanceStatus
            | Request::SubvolSizes
            | Request::Frees { .. }
            | Request::Df
            | Request::Usage
            | Request::Stats
            | Request::Du { .. }
            | Request::Label
            | Request::PropertyGet { .. }
            | Request::InodeResolve { .. }
            | Request::SubvolPath { .. }
            | Request::Rootid { .. }
            | Request::Send { .. }
            | Request::Sync
            | Request::Mounted
            | Request::Finish
            | Request::SaveTo { .. }
            | Request::GiveUp => false,
        }
    }
}

/// The reply to a request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// Done, without a result.
    Done,
    /// The number of the subvolume that was made, deleted or asked for.
    Made(TreeId),
    /// What was received.
    Received(Box<super::Received>),
    /// What was sent.
    Sent(super::SentShown),
    /// The transaction that is on disk.
    Generation(Generation),
    /// Subvolumes.
    Subvols(Vec<Subvol>),
    /// One subvolume.
    Subvol(Box<SubvolShown>),
    /// Numbers of subvolumes.
    Subvolumes(Vec<TreeId>),
    /// Space by type and profile.
    Df(Vec<GroupUsed>),
    /// Where the space is.
    Usage(Box<Usage>),
    /// Counters.
    Stats(Box<Stats>),
    /// What files take: the entries of the directory asked for, then the whole, whose path is empty.
    Du(Vec<DuLine>),
    /// The label.
    Label(Bytes),
    /// Properties.
    Properties(Vec<Property>),
    /// Paths from the top level, without a leading slash.
    Paths(Vec<Bytes>),
    /// What is new.
    New {
        /// Parts of files.
        parts: Vec<NewPart>,
        /// The subvolume's generation: what to ask for the next time.
        marker: u64,
    },
    /// What a resize did.
    Resized(Resized),
    /// What a defragmentation did.
    Defragmented {
        /// In numbers.
        done: Defragmented,
        /// Files that could not be, and why.
        skipped: Vec<String>,
    },
    /// Quota; `None`: it is off.
    Quota(Option<Box<QuotaShown>>),
    /// The balance.
    Balance(Box<BalanceStatus>),
    /// The number of the balance that was begun.
    Number(u64),
    /// What was freed.
    Reclaimed(Reclaimed),
    /// What subvolumes take, in the order of their numbers.
    Sizes(Vec<SizeLine>),
    /// So many bytes.
    Bytes(ByteLen),
    /// Places in files.
    Places(Vec<Place>),
    /// A mount.
    Mounted(Box<MountShown>),
}

/// A mount, as its server sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MountShown {
    /// Where it is or was mounted.
    pub dir: Bytes,
    /// The kernel has it still.
    pub attached: bool,
    /// Why not everything could be written at the end, and is kept.
    pub unwritten: Option<String>,
}

/// A change of the balance.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "balance", rename_all = "kebab-case")]
pub enum BalanceChange {
    /// A new one.
    Start {
        /// What it is to do.
        args: Box<BalanceArgs>,
    },
    /// Resume the paused one.
    Resume,
    /// Pause it.
    Pause,
    /// Cancel it.
    Cancel,
}

/// A change of quota. Groups are named by their numbers: the level in the upper 16 bits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "quota", rename_all = "kebab-case")]
pub enum QuotaChange {
    /// Turns it on, and counts.
    Enable,
    /// Turns simple quotas on: what is written from now on counts for the subvolume that writes it.
    EnableSimple,
    /// Turns it off.
    Disable,
    /// Counts anew.
    Rescan,
    /// A new group.
    Create {
        /// Its number.
        id: u64,
    },
    /// A group goes.
    Destroy {
        /// Its number.
        id: u64,
    },
    /// Delete the groups of deleted subvolumes.
    ClearStale,
    /// A group becomes part of another.
    Assign {
        /// The one.
        member: u64,
        /// The other.
        parent: u64,
        /// Rescan if the new numbers do not follow from the old ones; otherwise they are marked as inconsistent then.
        rescan: bool,
    },
    /// A group is no part of another any more.
    Remove {
        /// The one.
        member: u64,
        /// The other.
        parent: u64,
        /// As with `Assign`.
        rescan: bool,
    },
    /// Sets the limits of a group.
    Limit {
        /// Which, or that of a subvolume.
        group: WhichGroup,
        /// Referenced bytes: leave it, no limit, or a limit.
        rfer: NewLimit,
        /// Exclusive bytes, likewise.
        excl: NewLimit,
    },
}

/// A quota group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhichGroup {
    /// By its number.
    Id(u64),
    /// That of a subvolume.
    Of(SubvolRef),
}

/// A limit to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NewLimit {
    /// As it is.
    Keep,
    /// None.
    None,
    /// So many bytes.
    Bytes(u64),
}

/// Quota and its groups.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QuotaShown {
    /// The numbers are known to be wrong.
    pub inconsistent: bool,
    /// They are being counted.
    pub rescan: bool,
    /// Extents count for the subvolume that made them only.
    pub simple: bool,
    /// The transaction that the numbers are of.
    pub generation: Generation,
    /// The groups, in the order of their numbers.
    pub groups: Vec<QgroupShown>,
}

/// A quota group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QgroupShown {
    /// The number, the level in the upper 16 bits.
    pub id: u64,
    /// Bytes that its subvolumes reach.
    pub rfer: u64,
    /// Bytes that nobody else reaches.
    pub excl: u64,
    /// Limits.
    pub max_rfer: Option<u64>,
    /// Limits.
    pub max_excl: Option<u64>,
    /// The groups that it is in.
    pub parents: Vec<u64>,
    /// The groups in it.
    pub children: Vec<u64>,
    /// Of a subvolume that is there: its path from the top level.
    pub path: Option<Bytes>,
}

/// What a subvolume takes, in bytes; see [`oleo_jobs::SubvolSize`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "documented there")]
pub struct SizeLine {
    pub id: TreeId,
    pub rfer: u64,
    pub excl: u64,
    pub with_previous: u64,
    pub with_next: u64,
}

impl From<SubvolSize> for SizeLine {
    fn from(size: SubvolSize) -> SizeLine {
        let SubvolSize { id, rfer, excl, with_previous, with_next } = size;
        SizeLine { id, rfer, excl, with_previous, with_next }
    }
}

/// A part of a file that is new.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewPart {
    /// What and where.
    pub extent: NewExtent,
    /// A path of the file from the top level; empty if it has none any more.
    pub path: Bytes,
}

/// A place in a file, and the file's paths.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The subvolume.
    pub tree: TreeId,
    /// The file.
    pub ino: Ino,
    /// Where in the file, in bytes.
    pub at: u64,
    /// Its paths from the top level, if they were asked for.
    pub paths: Vec<Bytes>,
}

/// What is known of a subvolume; see [`SubvolInfo`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "documented there")]
pub struct Subvol {
    pub id: TreeId,
    pub parent: Option<TreeId>,
    pub dirid: Option<Ino>,
    pub name: Bytes,
    pub path: Bytes,
    pub generation: u64,
    pub read_only: bool,
    #[serde(with = "uuid_text")]
    pub uuid: Uuid,
    #[serde(with = "uuid_text")]
    pub parent_uuid: Uuid,
    #[serde(with = "uuid_text")]
    pub received_uuid: Uuid,
    pub ctransid: u64,
    pub otransid: u64,
    pub stransid: u64,
    pub rtransid: u64,
    pub ctime: (i64, u32),
    pub otime: (i64, u32),
    pub stime: (i64, u32),
    pub rtime: (i64, u32),
}

impl From<SubvolInfo> for Subvol {
    fn from(i: SubvolInfo) -> Subvol {
        let time = |t: Time| (t.sec, t.nsec);
        Subvol {
            id: i.id,
            parent: i.parent,
            dirid: i.place.as_ref().map(|p| p.dirid),
            name: i.place.map(|p| p.name).unwrap_or_default().into(),
            path: i.path.into(),
            generation: i.generation,
            read_only: i.read_only,
            uuid: i.uuid,
            parent_uuid: i.parent_uuid,
            received_uuid: i.received_uuid,
            ctransid: i.ctransid,
            otransid: i.otransid,
            stransid: i.stransid,
            rtransid: i.rtransid,
            ctime: time(i.ctime),
            otime: time(i.otime),
            stime: time(i.stime),
            rtime: time(i.rtime),
        }
    }
}

/// One subvolume, and the snapshots of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SubvolShown {
    /// The subvolume.
    pub subvol: Subvol,
    /// Paths of its snapshots, from the top level.
    pub snapshots: Vec<Bytes>,
}

/// Space of all block groups of one type and profile.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupUsed {
    /// `BTRFS_BLOCK_GROUP_*`.
    pub flags: u64,
    /// Data, Metadata, System, Data+Metadata.
    pub kind: String,
    /// single, DUP, RAID1 …
    pub profile: String,
    /// Bytes that the groups have.
    pub total: ByteLen,
    /// Bytes that are taken.
    pub used: ByteLen,
    /// Bytes on each device, copies and parity included.
    pub on_devices: Vec<(DevId, ByteLen)>,
}

/// One device, and how much of it is given to chunks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceUsage {
    /// Its number.
    pub devid: DevId,
    /// Its UUID.
    #[serde(with = "uuid_text")]
    pub uuid: Uuid,
    /// What it is called on the machine that has it open.
    pub path: PathBuf,
    /// Its bytes.
    pub total: ByteLen,
    /// Bytes that chunks have.
    pub allocated: ByteLen,
    /// The device is missing.
    pub missing: bool,
}

impl From<DeviceInfo> for DeviceUsage {
    fn from(d: DeviceInfo) -> DeviceUsage {
        let (devid, uuid, path) = (d.devid, d.uuid, d.name.into());
        DeviceUsage { devid, uuid, path, total: d.total, allocated: d.used, missing: d.missing }
    }
}

/// What has been counted since the volume was opened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stats {
    /// fsync and its log.
    pub log: LogStats,
    /// Quota.
    #[serde(default)]
    pub qgroup: QgroupStats,
    /// The inodes in memory: those that the kernel knows, and some more.
    #[serde(default)]
    pub inodes: u64,
    /// Of a mount: the inodes that the kernel knows.
    #[serde(default)]
    pub nodes: Option<u64>,
}

/// Counters of quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QgroupStats {
    /// Extents that commits have looked at, because a subvolume lost or gained them.
    pub dirty_extents: u64,
}

/// Counters of fsync. Commits made by link and rename are counted too: there must be none.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LogStats {
    /// Calls of fsync and fdatasync.
    pub fsyncs: u64,
    /// Of these, calls that found nothing to write.
    pub idle: u64,
    /// Log commits.
    pub log_commits: u64,
    /// Full commits in their place.
    pub full_commits: u64,
    /// The same by the rule that asked for them.
    pub full_commits_by: Vec<(String, u64)>,
    /// Bytes of tree blocks in log commits.
    pub log_bytes: u64,
    /// Commits of any kind made by calls of link and rename.
    pub commits_by_link_rename: u64,
    /// How many log commits served up to 1, 2, 4, 8 … calls, and in the last place more.
    pub batches: Vec<u64>,
    /// The most calls that one served.
    pub batch_max: u64,
    /// Half of the calls took no longer, nanoseconds.
    pub latency_p50: u64,
    /// 99 of 100 took no longer, nanoseconds.
    pub latency_p99: u64,
    /// The longest, nanoseconds.
    pub latency_max: u64,
}

impl From<oleo_fs::LogStats> for LogStats {
    fn from(s: oleo_fs::LogStats) -> LogStats {
        LogStats {
            fsyncs: s.fsyncs,
            idle: s.idle,
            log_commits: s.log_commits,
            full_commits: s.full_commits,
            full_commits_by: s.full_commits_by.into_iter().map(|(rule, n)| (rule.to_owned(), n)).collect(),
            log_bytes: s.log_bytes,
            commits_by_link_rename: s.commits_by_link_rename,
            batches: s.batches.to_vec(),
            batch_max: s.batch_max,
            latency_p50: s.latency_p50,
            latency_p99: s.latency_p99,
            latency_max: s.latency_max,
        }
    }
}

/// Space usage of a file system.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Usage {
    /// The label.
    pub label: Bytes,
    /// The file system's UUID.
    #[serde(with = "uuid_text")]
    pub fsid: Uuid,
    /// The transaction that is on disk.
    pub generation: Generation,
    /// Its devices.
    pub devices: Vec<DeviceUsage>,
    /// Its block groups, by type and profile.
    pub groups: Vec<GroupUsed>,
    /// Bytes of data that could still be written: in data groups, and in new ones of the same profile.
    pub data_free: ByteLen,
    /// The minimum of `data_free`, if unallocated space is needed for metadata as well.
    pub data_free_min: ByteLen,
}

/// What a file or directory takes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DuLine {
    /// Its name in the directory that was asked for; empty for the whole.
    pub path: Bytes,
    /// What it takes.
    pub usage: FileUsage,
}

/// Why a request was not carried out.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Error {
    /// The errno that a system call would return.
    pub errno: i32,
    /// The kind of error.
    pub kind: ErrorKind,
    /// Message.
    pub message: String,
    /// What to try.
    pub hint: Option<Hint>,
}

impl Error {
    /// A refusal.
    pub fn refused(errno: i32, message: impl Into<String>) -> Error {
        Error { errno, kind: ErrorKind::Refusal, message: message.into(), hint: None }
    }
}

impl oleo_format::Classified for Error {
    fn class(&self) -> oleo_format::Class {
        oleo_format::Class { kind: self.kind, errno: self.errno }
    }
}

impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Error {
        match error {
            crate::Error::Control(error) => *error,
            other => Error { errno: other.errno(), kind: other.kind(), hint: other.hint(), message: other.to_string() },
        }
    }
}

impl From<oleo_fs::FsError> for Error {
    fn from(error: oleo_fs::FsError) -> Error {
        crate::Error::from(error).into()
    }
}

impl From<oleo_txn::TxnError> for Error {
    fn from(error: oleo_txn::TxnError) -> Error {
        crate::Error::from(error).into()
    }
}

impl From<oleo_jobs::JobError> for Error {
    fn from(error: oleo_jobs::JobError) -> Error {
        crate::Error::from(error).into()
    }
}

impl From<oleo_volume::VolumeError> for Error {
    fn from(error: oleo_volume::VolumeError) -> Error {
        crate::Error::from(error).into()
    }
}

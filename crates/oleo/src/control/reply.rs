//! Replies to requests, and what they show. Everything here goes over the socket as JSON.

use std::path::PathBuf;

use oleo_format::{ByteLen, DevId, Generation, Ino, TreeId};
use oleo_fs::{SubvolInfo, Time};
use oleo_jobs::{
    BalanceStatus, Defragmented, DeviceJob, NewExtent, Reclaimed, Removed, ReplaceStatus, Resized, ScrubStatus,
    SubvolSize, Unhealed,
};
use oleo_stream::Sent;
use oleo_stream::receive::Report;
use oleo_volume::{DeviceInfo, RowStats};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::bytes::{Bytes, uuid_text};
use super::error::Error;
use super::request::Property;
use crate::usage::FileUsage;

/// The reply to a request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// Done, without a result.
    Done,
    /// The number of the subvolume that was made, deleted or asked for.
    Made(TreeId),
    /// What was received.
    Received(Box<Received>),
    /// What was sent.
    Sent(SentShown),
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
    /// The errors of each device, by number.
    DeviceErrors(Vec<DeviceErrors>),
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
    /// What the removal of a device did.
    DeviceRemoved(Removed),
    /// The replacement of a device.
    Replace(Box<ReplaceStatus>),
    /// What is under way with devices.
    DeviceJob(DeviceJob),
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
    /// The scrub.
    Scrub(Box<ScrubShown>),
    /// The number of the balance or scrub that was begun.
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
    /// It is a seed, which other volumes are made of.
    #[serde(default)]
    pub seed: bool,
}

/// A scrub.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ScrubShown {
    /// The file system.
    #[serde(with = "uuid_text")]
    pub fsid: Uuid,
    /// What it has found; what could not be healed is in [`ScrubShown::unhealed`].
    pub status: ScrubStatus,
    /// What could not be healed, if it was asked for.
    pub unhealed: Vec<UnhealedShown>,
    /// Places that were healed, likewise.
    #[serde(default)]
    pub healed: Vec<UnhealedShown>,
    /// What the devices are called on the machine that has them open.
    pub paths: Vec<(DevId, PathBuf)>,
    /// Why the state could not be kept.
    pub unkept: Option<String>,
}

/// A place that was bad, and the files that it is in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnhealedShown {
    /// The place.
    pub place: Unhealed,
    /// The files.
    pub files: Vec<Place>,
    /// How many more there are.
    pub more: u64,
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

impl From<oleo_jobs::Referrer> for Place {
    fn from(found: oleo_jobs::Referrer) -> Place {
        Place { tree: found.tree, ino: found.ino, at: found.at, paths: Vec::new() }
    }
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

/// How often a device failed: the values of its DEV_STATS item, and what has come since.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceErrors {
    /// Its number.
    pub devid: DevId,
    /// What it is called on the machine that has it open; empty if it is missing.
    pub path: PathBuf,
    /// Writes that failed.
    pub write: u64,
    /// Reads that failed.
    pub read: u64,
    /// Flushes that failed.
    pub flush: u64,
    /// Bad checksums, and blocks with wrong contents.
    pub corruption: u64,
    /// Blocks of another generation than their parent has: lost writes.
    pub generation: u64,
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
    /// Devices that count what they are asked to do: those on the network.
    #[serde(default)]
    pub devices: Vec<DeviceCounts>,
    /// How rows with parity were written, if the volume has any.
    #[serde(default)]
    pub rows: Option<RowCounts>,
}

/// How rows of RAID5 and RAID6 were written. A column is the sectors of a row at one offset of their units.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RowCounts {
    /// Rows that were written whole: nothing was read.
    pub whole: u64,
    /// Runs of columns that were written in part: the rest was read first.
    pub parts: u64,
    /// Of these, those with something that must not be lost beside what was written: recorded before.
    pub recorded: u64,
    /// The same where no record can be kept: a crash and the loss of a device together may take what is beside.
    pub unrecorded: u64,
    /// Records that were written, each with a flush of all devices.
    pub records: u64,
    /// Bytes that were read for parity.
    pub read_bytes: u64,
    /// Bytes of parity that were written.
    pub parity_bytes: u64,
    /// Runs of columns whose parity did not fit what was there.
    pub misfits: u64,
    /// Rotten sectors (4096 bytes) in these that were rebuilt and written.
    pub healed: u64,
    /// The same that could not be rebuilt.
    pub lost: u64,
}

impl RowCounts {
    /// What they are called in text, in their order.
    pub fn lines(&self) -> [(&'static str, u64); 10] {
        [
            ("rows written whole", self.whole),
            ("columns written in part", self.parts),
            ("  recorded before", self.recorded),
            ("  endangered, no record", self.unrecorded),
            ("records, each with a flush", self.records),
            ("bytes read for parity", self.read_bytes),
            ("bytes of parity", self.parity_bytes),
            ("parity that did not fit", self.misfits),
            ("  rotten sectors healed", self.healed),
            ("  rotten sectors lost", self.lost),
        ]
    }
}

impl From<RowStats> for RowCounts {
    fn from(s: RowStats) -> RowCounts {
        RowCounts {
            whole: s.whole,
            parts: s.parts,
            recorded: s.recorded,
            unrecorded: s.unrecorded,
            records: s.records,
            read_bytes: s.read_bytes,
            parity_bytes: s.parity_bytes,
            misfits: s.misfits,
            healed: s.healed,
            lost: s.lost,
        }
    }
}

/// What a device has been asked to do since it was opened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceCounts {
    /// Its number.
    pub devid: DevId,
    /// What it is called on the machine that has it open.
    pub path: PathBuf,
    /// The counters, by name.
    pub counts: Vec<(String, u64)>,
}

impl DeviceCounts {
    /// Those of a device, if it has any.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "requests are carried out on Linux only"))]
    pub(crate) fn of(info: DeviceInfo) -> Option<DeviceCounts> {
        let stats = info.stats?;
        let own = [
            ("reads", stats.reads),
            ("bytes read", stats.read_bytes),
            ("writes", stats.writes),
            ("bytes written", stats.write_bytes),
            ("flushes", stats.flushes),
            ("discards", stats.discards),
            ("requests sent again", stats.retries),
            ("connections made again", stats.reconnects),
        ];
        let counts = own.into_iter().chain(stats.extra).map(|(name, count)| (name.to_owned(), count)).collect();
        Some(DeviceCounts { devid: info.devid, path: info.name.into(), counts })
    }
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
    /// Bytes that statfs(2) reports as available on a mount.
    #[serde(default)]
    pub statfs_free: ByteLen,
}

/// What a file or directory takes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DuLine {
    /// Its name in the directory that was asked for; empty for the whole.
    pub path: Bytes,
    /// What it takes.
    pub usage: FileUsage,
}

/// What was received, and what ended it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Received {
    /// Subvolumes, in order.
    pub subvols: Vec<ReceivedSubvol>,
    /// Commands read.
    pub commands: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Errors that were passed over.
    pub errors: Vec<String>,
    /// Things that are not as one might expect.
    pub warnings: Vec<String>,
    /// The error that ended it.
    pub error: Option<Error>,
}

/// One subvolume.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ReceivedSubvol {
    /// Its path where it was received.
    pub path: Bytes,
    /// It is a snapshot of one that was there.
    pub incremental: bool,
    /// It was complete before.
    pub passed_over: bool,
}

impl Received {
    /// What a report says, for sending.
    pub fn of(report: Report, error: Option<Error>) -> Received {
        let Report { subvols, commands, bytes, errors, warnings } = report;
        let subvols = subvols.into_iter().map(|subvol| ReceivedSubvol {
            path: subvol.path.into(),
            incremental: subvol.incremental,
            passed_over: subvol.passed_over,
        });
        Received { subvols: subvols.collect(), commands, bytes, errors, warnings, error }
    }
}

/// What was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SentShown {
    /// Bytes of the stream.
    pub bytes: u64,
    /// Commands in it.
    pub commands: u64,
    /// Bytes of contents in it.
    pub data_bytes: u64,
    /// Bytes of contents that are cloned.
    pub cloned_bytes: u64,
}

impl From<Sent> for SentShown {
    fn from(sent: Sent) -> SentShown {
        let Sent { bytes, commands, data_bytes, cloned_bytes, .. } = sent;
        SentShown { bytes, commands, data_bytes, cloned_bytes }
    }
}

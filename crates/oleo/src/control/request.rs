//! Requests, and what they are made of. Everything here goes over the socket as JSON.

use oleo_format::{DevId, Ino, Logical, TreeId};
use oleo_jobs::{BalanceArgs, DefragOptions, NewSize, ScrubWant};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::bytes::{Bytes, uuid_text};
use super::location::Location;
use crate::SubvolRef;
use crate::devices::WhichDevice;

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
    /// Makes an empty subvolume. Answer: [`Reply::Made`](super::Reply::Made).
    SubvolCreate {
        /// Where; the last name must not be taken.
        at: Location,
        /// Makes the directories on the way too.
        parents: bool,
        /// Quota groups that it becomes part of.
        #[serde(default)]
        groups: Vec<u64>,
    },
    /// Makes a snapshot. Answer: [`Reply::Made`](super::Reply::Made).
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
    /// Deletes a subvolume. Answer: [`Reply::Made`](super::Reply::Made) with its number.
    SubvolDelete {
        /// Which.
        which: SubvolRef,
        /// Those inside it too.
        recursive: bool,
    },
    /// All subvolumes. Answer: [`Reply::Subvols`](super::Reply::Subvols).
    SubvolList,
    /// Everything about one subvolume. Answer: [`Reply::Subvol`](super::Reply::Subvol).
    SubvolShow {
        /// Which.
        which: SubvolRef,
    },
    /// Sets the subvolume that is mounted where none is named.
    SetDefault {
        /// Which.
        which: SubvolRef,
    },
    /// That subvolume. Answer: [`Reply::Subvol`](super::Reply::Subvol).
    GetDefault,
    /// Which of these deleted subvolumes (none given: of all) are not removed completely yet. Answer: [`Reply::Subvolumes`](super::Reply::Subvolumes).
    SubvolPending {
        /// Their numbers.
        ids: Vec<TreeId>,
    },
    /// Applies a stream. Answer: [`Reply::Received`](super::Reply::Received), whether it came to its end or not.
    Receive {
        /// The directory where subvolumes are made.
        into: Location,
        /// The socket of a [`Feed`](super::Feed).
        feed: Bytes,
        /// Use this subvolume as the parent.
        #[serde(default)]
        rebase: Option<SubvolRef>,
        /// The rest.
        how: ReceiveHow,
    },
    /// Writes a stream of subvolumes. Answer: [`Reply::Sent`](super::Reply::Sent).
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
        how: SendHow,
    },
    /// Notes what a subvolume was received from. Answer: [`Reply::Generation`](super::Reply::Generation), of the transaction that notes it.
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
    /// The file extents that a subvolume gained in a generation or later. Answer: [`Reply::New`](super::Reply::New).
    FindNew {
        /// Which.
        which: SubvolRef,
        /// The generation.
        since: u64,
    },
    /// Changes how much of a device is used. Answer: [`Reply::Resized`](super::Reply::Resized).
    Resize {
        /// Which device; the only one, if there is no other.
        devid: Option<DevId>,
        /// Its new size.
        to: NewSize,
    },
    /// Rewrites fragmented files. Answer: [`Reply::Defragmented`](super::Reply::Defragmented).
    Defragment {
        /// A file, or a directory if `recursive`.
        at: Location,
        /// Everything below a directory, but not other subvolumes.
        recursive: bool,
        /// How.
        options: DefragOptions,
    },
    /// Discards free space on the devices. Answer: [`Reply::Bytes`](super::Reply::Bytes).
    Trim {
        /// From this logical address on.
        start: u64,
        /// So many bytes.
        len: u64,
        /// Shorter runs are left alone.
        min_len: u64,
    },
    /// Which files are at a logical address. Answer: [`Reply::Places`](super::Reply::Places).
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
    /// Quota and its groups. Answer: [`Reply::Quota`](super::Reply::Quota).
    Quota,
    /// Starts, pauses or cancels a balance. Starting one returns [`Reply::Number`](super::Reply::Number) as soon as the balance item is on disk: the balance
    /// runs in the background of a mount, and by `Balancer::run` on an image. Pausing and cancelling wait for the current group.
    Balance {
        /// What to do.
        change: BalanceChange,
    },
    /// Changes which devices the volume has. It is on disk when the answer comes; of a replacement, its beginning is: it runs in the background of a
    /// mount, and by `Replacer::run` on an image.
    Device {
        /// How.
        change: DeviceChange,
    },
    /// What is under way of that. Answer: [`Reply::DeviceJob`](super::Reply::DeviceJob).
    DeviceJob,
    /// State and progress of the replacement of a device. Answer: [`Reply::Replace`](super::Reply::Replace).
    ReplaceStatus,
    /// State and progress of the balance. Answer: [`Reply::Balance`](super::Reply::Balance).
    BalanceStatus,
    /// Starts, resumes, cancels or slows a scrub. Starting one returns [`Reply::Number`](super::Reply::Number): the scrub runs in the background of a mount, and
    /// by `Scrubber::run` on an image. Cancelling waits for its end.
    Scrub {
        /// What to do.
        change: ScrubChange,
    },
    /// What the scrub under way has found so far, or the last one. Answer: [`Reply::Scrub`](super::Reply::Scrub).
    ScrubStatus {
        /// With what could not be healed, and the files that it is in.
        files: bool,
    },
    /// Frees nearly empty block groups. Answer: [`Reply::Reclaimed`](super::Reply::Reclaimed).
    Reclaim {
        /// Those of which less is used, in percent.
        percent: u64,
    },
    /// What each subvolume takes. Answer: [`Reply::Sizes`](super::Reply::Sizes).
    SubvolSizes,
    /// What deleting exactly these subvolumes would free. Answer: [`Reply::Bytes`](super::Reply::Bytes).
    Frees {
        /// Which.
        subvols: Vec<SubvolRef>,
    },
    /// Space by type and profile. Answer: [`Reply::Df`](super::Reply::Df).
    Df,
    /// Where the space of the devices is. Answer: [`Reply::Usage`](super::Reply::Usage).
    Usage,
    /// How often each device failed since its counters were last set to zero. Answer: [`Reply::DeviceErrors`](super::Reply::DeviceErrors).
    DeviceErrors {
        /// Sets them to zero; the answer is what they were.
        reset: bool,
        /// Those of this device alone.
        #[serde(default)]
        only: Option<DevId>,
    },
    /// What a file, or everything below a directory, takes. Answer: [`Reply::Du`](super::Reply::Du).
    Du {
        /// What to look at.
        at: Location,
    },
    /// What has been counted since the volume was opened. Answer: [`Reply::Stats`](super::Reply::Stats).
    Stats,
    /// Makes everything durable. Answer: [`Reply::Generation`](super::Reply::Generation).
    Sync,
    /// Of a mount: where it is, and how far its end has come. Answer: [`Reply::Mounted`](super::Reply::Mounted).
    Mounted,
    /// Of a mount: waits until it is unmounted and everything is on disk. Fails if something cannot be written; the server keeps it
    /// and tries again. A request then makes it try immediately.
    Finish,
    /// Of a mount: writes all files as they are into a directory of the host. Answer: [`Reply::Number`](super::Reply::Number) of files and directories.
    SaveTo {
        /// An absolute path; there must be nothing in it.
        dir: Bytes,
    },
    /// Of a mount that is unmounted: its server ends and discards what is not on disk.
    GiveUp,
    /// The label. Answer: [`Reply::Label`](super::Reply::Label).
    Label,
    /// Changes the label.
    SetLabel {
        /// The new one.
        label: Bytes,
    },
    /// The properties that are set, or the one named. Answer: [`Reply::Properties`](super::Reply::Properties).
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
    /// The paths of an inode, from the top level. Answer: [`Reply::Paths`](super::Reply::Paths).
    InodeResolve {
        /// The subvolume.
        tree: TreeId,
        /// The number.
        ino: Ino,
    },
    /// The path of a subvolume, from the top level. Answer: [`Reply::Paths`](super::Reply::Paths).
    SubvolPath {
        /// Its number.
        id: TreeId,
    },
    /// Which subvolume something is in. Answer: [`Reply::Made`](super::Reply::Made).
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
            | Request::DeviceErrors { reset: true, .. }
            | Request::PropertySet { .. } => true,
            Request::Scrub { change } => change.heals(),
            // What is made of a seed is another volume.
            Request::Device { change } => !matches!(change, DeviceChange::Sprout { .. }),
            Request::SubvolList
            | Request::SubvolShow { .. }
            | Request::GetDefault
            | Request::SubvolPending { .. }
            | Request::FindNew { .. }
            | Request::LogicalResolve { .. }
            | Request::Quota
            | Request::BalanceStatus
            | Request::DeviceJob
            | Request::ScrubStatus { .. }
            | Request::ReplaceStatus
            | Request::SubvolSizes
            | Request::Frees { .. }
            | Request::Df
            | Request::Usage
            | Request::Stats
            | Request::DeviceErrors { reset: false, .. }
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

/// A change of the devices.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "device", rename_all = "kebab-case")]
pub enum DeviceChange {
    /// Makes one part of the volume. Answer: [`Reply::Number`](super::Reply::Number), the number that it has.
    Add {
        /// Where it is, for the process that has the volume open.
        place: String,
        /// Overwrite what it holds.
        force: bool,
        /// Discard all of it first.
        discard: bool,
    },
    /// Makes a new volume of this one, which is a seed and stays as it is. Answer: [`Reply::Done`](super::Reply::Done).
    Sprout {
        /// Where the new device is, for the process that has the volume open.
        place: String,
        /// Overwrite what it holds.
        force: bool,
        /// Discard all of it first.
        discard: bool,
    },
    /// Moves everything away from one and takes it out of the volume. Answer: [`Reply::DeviceRemoved`](super::Reply::DeviceRemoved).
    Remove {
        /// Which.
        which: WhichDevice,
        /// Read what is on it from other copies.
        avoid_reading: bool,
    },
    /// Ends a removal that is under way.
    CancelRemoval,
    /// Has a new device take another's place; it is begun when this is answered.
    Replace {
        /// Which.
        source: WhichDevice,
        /// Where the new one is, for the process that has the volume open.
        place: String,
        /// Overwrite what it holds.
        force: bool,
        /// Discard all of it first.
        discard: bool,
        /// Read from other copies.
        avoid_reading: bool,
    },
    /// Goes on with a replacement that was interrupted.
    ResumeReplace,
    /// Ends a replacement; the device stays.
    CancelReplace,
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

/// A change of the scrub.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "scrub", rename_all = "kebab-case")]
pub enum ScrubChange {
    /// A new one.
    Start {
        /// What it is to do.
        want: ScrubWant,
        /// Where to look for what no copy has: directories, images and streams, for the process that has the volume open.
        #[serde(default)]
        from: Vec<Bytes>,
    },
    /// The rest of one that was interrupted.
    Resume {
        /// As for a new one.
        want: ScrubWant,
        /// Likewise.
        #[serde(default)]
        from: Vec<Bytes>,
    },
    /// Cancel it; it can be resumed.
    Cancel,
    /// Change how fast it reads.
    Limit {
        /// Of a device, or of all together: bytes a second, 0 for no limit.
        limits: Vec<(Option<DevId>, u64)>,
    },
}

impl ScrubChange {
    /// Whether what is bad is overwritten, which needs a file system that may be changed.
    fn heals(&self) -> bool {
        match self {
            ScrubChange::Start { want, .. } | ScrubChange::Resume { want, .. } => want.repair,
            ScrubChange::Cancel | ScrubChange::Limit { .. } => false,
        }
    }
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

/// How to receive on a mount; see [`Receive`](crate::receive::Receive).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReceiveHow {
    /// Stop at the first END.
    pub one_stream: bool,
    /// Errors that are passed over; none: any number.
    pub errors_passed_max: Option<u64>,
    /// Go on with what is incomplete.
    pub resume: bool,
    /// Leave nothing behind after an error. What a crash leaves is marked.
    pub atomic: bool,
}

/// How to send from a mount; see [`SendOptions`](crate::send::SendOptions).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SendHow {
    /// Version of the stream.
    pub version: u32,
    /// Compressed extents as they are stored.
    pub compressed: bool,
    /// Which ranges changed, without contents.
    pub no_data: bool,
    /// One END behind all.
    pub one_end: bool,
    /// Bytes of memory, about; the server takes at most [`MEMORY_MAX`].
    pub memory_bytes: u64,
    /// The socket of a [`Feed`](super::Feed) that is told how far it is.
    #[serde(default)]
    pub progress: Option<Bytes>,
}

/// The most memory a server spends on one send, bytes.
pub const MEMORY_MAX: u64 = 1 << 30;

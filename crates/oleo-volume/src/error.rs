//! Why an operation on a volume failed.

use oleo_device::DeviceError;
use oleo_format::{BlockGroupFlags, Class, Classified, Corruption, DevId, Generation, Logical, errno};
use uuid::Uuid;

impl VolumeError {
    /// Whether a write found no room in what holds a device: nothing is lost, and it may be done again.
    pub fn is_full(&self) -> bool {
        matches!(self, VolumeError::Device(e) if e.is_full())
    }
}

/// Why an operation on a volume failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The image is damaged.
    #[error(transparent)]
    Corrupt(Box<Corruption>),
    /// No mirror of the superblock is whole.
    #[error("{name}: no valid btrfs superblock: {why}")]
    NoSuper {
        /// The device.
        name: String,
        /// What is wrong with the first mirror.
        why: Box<Corruption>,
    },
    /// No device was given.
    #[error("no device was named")]
    NoDevices,
    /// The superblock has no such roots of an earlier transaction, or they were requested for writing.
    #[error("there is no backup of earlier roots number {0}, or the volume was to be opened for writing")]
    NoBackup(usize),
    /// A device belongs to something else.
    #[error("{name} belongs to file system {fsid}, not to {want}")]
    Stranger {
        /// The device.
        name: String,
        /// Whose it is.
        fsid: Uuid,
        /// Whose it should be.
        want: Uuid,
    },
    /// Two devices claim to be the same member.
    #[error(
        "{first} and {second} both say that they are device {devid}: a copy of a device, or one device named twice"
    )]
    Twins {
        /// The number that both have.
        devid: DevId,
        /// One device.
        first: String,
        /// The other.
        second: String,
    },
    /// Two sides of the volume have histories of their own since they parted.
    #[error(
        "{last} (generation {}) and {apart} (generation {}) were each written without the other: use one of them, leave the other out \
         (degraded), and add that again as a new device",
        .newest.1, .other.1, last = .newest.0, apart = .other.0
    )]
    Apart {
        /// A device of the side that was written last, and its last transaction.
        newest: (String, Generation),
        /// A device of the other, likewise.
        other: (String, Generation),
    },
    /// Members are missing.
    #[error("device {devid} ({uuid}) {are} missing: name every device, or read without it (degraded)",
        devid = .first.0, uuid = .first.1, are = if *.count > 1 { format!("and {} more are", .count - 1) } else { "is".into() })]
    Missing {
        /// Number and uuid of the first of them.
        first: (DevId, Uuid),
        /// How many there are.
        count: usize,
    },
    /// A member is missing, so it cannot be written to.
    #[error("device {devid} ({uuid}) is missing, or failed")]
    MissingForWriting {
        /// Its number.
        devid: DevId,
        /// Its uuid.
        uuid: Uuid,
    },
    /// A chunk cannot be written to without a device that is missing, failed, or missed writes.
    #[error(
        "the chunk at {chunk} cannot do without device {devid}, which is missing, failed, or missed writes: the volume can only be read"
    )]
    NotBorne {
        /// Where the chunk begins.
        chunk: Logical,
        /// A device that it needs.
        devid: DevId,
    },
    /// The only copy that is there may be an old one, and nothing tells.
    #[error("device {devid} missed writes, and what has no checksum is not read from it")]
    Outdated {
        /// The device.
        devid: DevId,
    },
    /// The volume, or the request, needs something that is not implemented.
    #[error("not supported: {what}")]
    Unsupported {
        /// What.
        what: String,
    },
    /// A change of a volume that was opened for reading.
    #[error("the volume was opened for reading only")]
    ReadOnly,
    /// A write or a flush failed earlier; since then nothing is written.
    #[error("no writes since an earlier failure: {first}")]
    Poisoned {
        /// The failure.
        first: DeviceError,
    },
    /// No chunk has these addresses.
    #[error("no chunk maps {len} bytes at logical address {at}")]
    Unmapped {
        /// The address.
        at: Logical,
        /// How many bytes.
        len: u64,
    },
    /// No copy could be read.
    #[error("no good copy of {len} bytes at logical address {at}: {why}")]
    NoGoodCopy {
        /// The address.
        at: Logical,
        /// How many bytes.
        len: u64,
        /// What was wrong with the first copy.
        why: Box<VolumeError>,
    },
    /// A copy lies on a device that is missing.
    #[error("device {devid} is missing")]
    OnMissing {
        /// The device.
        devid: DevId,
    },
    /// Data and its checksum do not fit each other.
    #[error("checksum of data at logical address {at} is wrong on device {devid}")]
    DataChecksum {
        /// The first such sector.
        at: Logical,
        /// The device that the copy came from.
        devid: DevId,
    },
    /// An address or a length is not a multiple of the sector size, or there are too few checksums.
    #[error("{len} bytes at logical address {at} with {csums} bytes of checksums are not whole sectors")]
    Unaligned {
        /// The address.
        at: Logical,
        /// How many bytes.
        len: u64,
        /// How many bytes of checksums.
        csums: usize,
    },
    /// No room on the devices for a chunk.
    #[error("no unallocated space for a {profile} chunk: {devices} devices have space, {want} are needed",
        profile = .flags.profile_name())]
    NoRoom {
        /// What the chunk was to be.
        flags: BlockGroupFlags,
        /// Devices with room for a stripe.
        devices: usize,
        /// Devices needed.
        want: usize,
    },
    /// The superblock's array of system chunks is full.
    #[error("the superblock has no space for another system chunk")]
    SystemArrayFull,
}

oleo_format::error_from!(VolumeError { Corrupt(Corruption), });

impl Classified for VolumeError {
    #[deny(clippy::wildcard_enum_match_arm)]
    fn class(&self) -> Class {
        match self {
            VolumeError::Device(error) => error.class(),
            VolumeError::Corrupt(_) | VolumeError::NoSuper { .. } | VolumeError::Unmapped { .. } => Class::DAMAGE,
            VolumeError::DataChecksum { .. } => Class::DATA,
            VolumeError::NoDevices | VolumeError::Unaligned { .. } => Class::USAGE,
            VolumeError::NoBackup(_) | VolumeError::Stranger { .. } => Class::refusal(errno::EINVAL),
            VolumeError::Twins { .. } => Class::refusal(errno::EEXIST),
            VolumeError::Apart { .. } => Class::refusal(errno::ESTALE),
            VolumeError::Missing { .. } => Class::refusal(errno::ENODEV),
            VolumeError::MissingForWriting { .. } | VolumeError::NotBorne { .. } | VolumeError::ReadOnly => {
                Class::refusal(errno::EROFS)
            }
            VolumeError::Unsupported { .. } => Class::refusal(errno::EOPNOTSUPP),
            VolumeError::Poisoned { first } => first.class(),
            // Reads return EIO, whatever is wrong with the copies.
            VolumeError::NoGoodCopy { why, .. } => Class { errno: errno::EIO, ..why.class() },
            VolumeError::OnMissing { .. } | VolumeError::Outdated { .. } => Class::DEVICE,
            VolumeError::NoRoom { .. } | VolumeError::SystemArrayFull => Class::refusal(errno::ENOSPC),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Goal: every error is of its kind and has its errno.
    #[test]
    fn every_error_has_its_class() {
        let device = || DeviceError::Io {
            name: "d".into(),
            op: oleo_device::Op::Read,
            offset: 0,
            len: 1,
            source: Arc::new(std::io::Error::other("broken")),
        };
        let lie = || Box::new(Corruption::new("node", "level", 9, 1));
        let (at, devid, uuid) = (Logical(1), DevId(1), Uuid::nil());
        let name = || "d".to_owned();
        oleo_format::assert_classes!(VolumeError {
            Device: device().into() => Class::DEVICE,
            Corrupt: VolumeError::Corrupt(lie()) => Class::DAMAGE,
            NoSuper: VolumeError::NoSuper { name: name(), why: lie() } => Class::DAMAGE,
            NoDevices: VolumeError::NoDevices => Class::USAGE,
            NoBackup: VolumeError::NoBackup(1) => Class::refusal(errno::EINVAL),
            Stranger: VolumeError::Stranger { name: name(), fsid: uuid, want: uuid } => Class::refusal(errno::EINVAL),
            Twins: VolumeError::Twins { devid, first: name(), second: name() } => Class::refusal(errno::EEXIST),
            Apart: VolumeError::Apart { newest: (name(), Generation(9)), other: (name(), Generation(7)) } => Class::refusal(errno::ESTALE),
            Missing: VolumeError::Missing { first: (devid, uuid), count: 1 } => Class::refusal(errno::ENODEV),
            MissingForWriting: VolumeError::MissingForWriting { devid, uuid } => Class::refusal(errno::EROFS),
            NotBorne: VolumeError::NotBorne { chunk: at, devid } => Class::refusal(errno::EROFS),
            Outdated: VolumeError::Outdated { devid } => Class::DEVICE,
            Unsupported: VolumeError::Unsupported { what: name() } => Class::refusal(errno::EOPNOTSUPP),
            ReadOnly: VolumeError::ReadOnly => Class::refusal(errno::EROFS),
            Poisoned: VolumeError::Poisoned { first: device() } => Class::DEVICE,
            Unmapped: VolumeError::Unmapped { at, len: 1 } => Class::DAMAGE,
            NoGoodCopy: VolumeError::NoGoodCopy { at, len: 1, why: Box::new(device().into()) } => Class::DEVICE,
            NoGoodCopy: VolumeError::NoGoodCopy { at, len: 1, why: Box::new(VolumeError::Corrupt(lie())) } => Class::DATA,
            OnMissing: VolumeError::OnMissing { devid } => Class::DEVICE,
            DataChecksum: VolumeError::DataChecksum { at, devid } => Class::DATA,
            Unaligned: VolumeError::Unaligned { at, len: 1, csums: 1 } => Class::USAGE,
            NoRoom: VolumeError::NoRoom { flags: BlockGroupFlags::DATA, devices: 0, want: 1 } => Class::refusal(errno::ENOSPC),
            SystemArrayFull: VolumeError::SystemArrayFull => Class::refusal(errno::ENOSPC),
        });
    }
}

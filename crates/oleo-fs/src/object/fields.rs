//! The fields of an inode item, decoded.

use oleo_format::{InodeItem, Key, Timespec};

use crate::options::Time;
use crate::{FileKind, FsError};

/// The fields of an inode item, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InodeFields {
    /// The transaction that created the inode.
    pub generation: u64,
    /// The transaction that last changed it.
    pub transid: u64,
    /// Bytes of content; of a directory twice the length of all names.
    pub size: u64,
    /// Bytes that the extents take, before compression.
    pub nbytes: u64,
    /// Names that the inode has; 1 for a directory.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Type and permission bits.
    pub mode: u32,
    /// Device number as stored; see [`Rdev`](crate::Rdev).
    pub rdev: u64,
    /// `BTRFS_INODE_*`; see [`InodeFlags`](oleo_format::InodeFlags).
    pub flags: u64,
    /// Counts changes.
    pub sequence: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Creation.
    pub otime: Time,
}

pub(crate) fn time_of(t: &Timespec) -> Time {
    // The kernel does not check it; system calls refuse more.
    Time { sec: t.seconds(), nsec: t.nsec.get().min(999_999_999) }
}

pub(crate) fn timespec_of(t: Time) -> Timespec {
    Timespec::new(t.sec, t.nsec)
}

impl InodeFields {
    /// Decodes an inode item.
    pub fn parse(bytes: &[u8], at: Key) -> Result<InodeFields, FsError> {
        Ok(InodeFields::of(InodeItem::parse(bytes).map_err(|e| e.within(at))?))
    }

    /// What an inode item says.
    pub fn of(item: &InodeItem) -> InodeFields {
        InodeFields {
            generation: item.generation.get(),
            transid: item.transid.get(),
            size: item.size.get(),
            nbytes: item.nbytes.get(),
            nlink: item.nlink.get(),
            uid: item.uid.get(),
            gid: item.gid.get(),
            mode: item.mode.get(),
            rdev: item.rdev.get(),
            flags: item.flags.get(),
            sequence: item.sequence.get(),
            atime: time_of(&item.atime),
            ctime: time_of(&item.ctime),
            mtime: time_of(&item.mtime),
            otime: time_of(&item.otime),
        }
    }

    /// The inode item that says the same.
    pub fn to_item(&self) -> InodeItem {
        InodeItem {
            generation: self.generation.into(),
            transid: self.transid.into(),
            size: self.size.into(),
            nbytes: self.nbytes.into(),
            nlink: self.nlink.into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            mode: self.mode.into(),
            rdev: self.rdev.into(),
            flags: self.flags.into(),
            sequence: self.sequence.into(),
            atime: timespec_of(self.atime),
            ctime: timespec_of(self.ctime),
            mtime: timespec_of(self.mtime),
            otime: timespec_of(self.otime),
            ..InodeItem::default()
        }
    }

    /// The item's bytes.
    pub fn encode(&self) -> oleo_tree::ItemBytes {
        use zerocopy::IntoBytes;
        self.to_item().as_bytes().into()
    }

    /// What kind of file the mode says this is.
    pub fn kind(&self) -> FileKind {
        FileKind::of_mode(self.mode)
    }

    /// The content changed; without a time if somebody else sets it.
    pub(crate) fn changed(&mut self, time: Option<Time>) {
        match time {
            Some(time) => self.touch(time),
            None => self.sequence = self.sequence.wrapping_add(1),
        }
    }

    /// The content changed at `time`.
    pub(crate) fn touch(&mut self, time: Time) {
        self.mtime = time;
        self.ctime = self.ctime.max(time);
        self.sequence = self.sequence.wrapping_add(1);
    }
}

//! What can be set of a subvolume: whether it is the default one, whether it refuses changes, what it was received from.

use oleo_format::{FileType, Incompat, ItemType, RootFlags, TreeId};
use oleo_txn::Need;
use uuid::Uuid;

use crate::FsError;
use crate::fs::Fs;
use crate::items::dir::{self, Target};
use crate::object::{ItemsMut, timespec_of};
use crate::options::Time;

/// The name of the entry in the root tree's directory that says which subvolume is mounted by default.
const DEFAULT_NAME: &[u8] = b"default";

/// What a subvolume was received from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Received {
    /// The UUID of the subvolume that was sent; nil: none.
    pub uuid: Uuid,
    /// The sender's transaction.
    pub stransid: u64,
    /// When it was sent.
    pub stime: Time,
}

/// Whether a subvolume refuses changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum ReadOnly {
    Yes,
    No,
}

impl Fs {
    /// The subvolume that is mounted if none is named.
    pub fn default_subvol(&self) -> Result<TreeId, FsError> {
        let object = self.core().object(TreeId::ROOT, TreeId::ROOT_DIR.0)?;
        let guard = object.read();
        match dir::find(&guard, DEFAULT_NAME)? {
            Some((Target::Subvol(id), _)) => Ok(id),
            _ => Ok(TreeId::FS),
        }
    }

    /// Sets the subvolume that is mounted if none is named.
    pub fn set_default(&self, id: TreeId) -> Result<(), FsError> {
        self.fs_writable()?;
        self.subvol(id)?;
        let h = self.engine().join(Need { items: 2, bytes: 256, ..Need::default() })?;
        let object = self.core().object(TreeId::ROOT, TreeId::ROOT_DIR.0)?;
        let mut guard = object.write();
        let hash = u64::from(oleo_format::dir_hash(DEFAULT_NAME));
        let location = Target::Subvol(id).location();
        let entry = dir::encode(location, h.generation().0, FileType::Dir, DEFAULT_NAME, &[]);
        guard.put(&h, ItemType::DIR_ITEM, hash, entry.into());
        drop(guard);
        if id != TreeId::FS {
            self.engine().require_incompat(Incompat::DEFAULT_SUBVOL);
        }
        Ok(())
    }

    fn fs_writable(&self) -> Result<(), FsError> {
        if self.options().read_only { Err(FsError::ReadOnly(FsError::OPENED_FOR_READING)) } else { Ok(()) }
    }

    /// Makes a subvolume refuse changes, or allow them again. Changes are refused to every caller, so whoever fills a read-only
    /// subvolume calls this at the end.
    pub fn set_read_only(&self, id: TreeId, options: ReadOnly) -> Result<(), FsError> {
        self.fs_writable()?;
        let subvol = self.subvol(id)?;
        self.core().flush_all(Some(id))?;
        let _h = self.engine().join(Need { items: 2, bytes: 512, ..Need::default() })?;
        subvol.edit_root(|item| {
            let mut flags = RootFlags::from_bits_retain(item.flags.get());
            flags.set(RootFlags::SUBVOL_RDONLY, options == ReadOnly::Yes);
            item.flags = flags.bits().into();
        });
        Ok(())
    }

    /// Notes what a subvolume was received from, and when.
    pub fn set_received(&self, id: TreeId, received: &Received) -> Result<(), FsError> {
        self.fs_writable()?;
        let subvol = self.subvol(id)?;
        let h = self.engine().join(Need { items: 4, bytes: 512, ..Need::default() })?;
        let (now, generation) = (self.core().now(), h.generation());
        let old = subvol.root_item().map_or(Uuid::nil(), |item| Uuid::from_bytes(item.received_uuid));
        if old != received.uuid {
            self.uuid_remove(&h, ItemType::UUID_RECEIVED_SUBVOL, old, id)?;
            self.uuid_add(&h, ItemType::UUID_RECEIVED_SUBVOL, received.uuid, id)?;
        }
        subvol.edit_root(|item| {
            item.received_uuid = received.uuid.into_bytes();
            item.stransid = received.stransid.into();
            item.stime = timespec_of(received.stime);
            item.rtransid = generation.0.into();
            item.rtime = timespec_of(now);
        });
        Ok(())
    }
}

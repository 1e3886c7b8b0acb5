//! The volumes that a branch goes back to: where they are, and how a branch names what is theirs.

use std::sync::Arc;

use crate::disk_cache::DiskCache;
use crate::error::RemoteError;
use crate::format::head::Origin;
use crate::format::{ObjectId, ObjectRef};
use crate::open_store::open_store;
use crate::options::StoreOptions;
use crate::store::{Retry, Store};
use crate::url::Url;

/// A volume that a branch goes back to.
pub(crate) struct OriginStore {
    pub(crate) uuid: [u8; 16],
    pub(crate) store: Arc<dyn Store>,
    /// What is on the local disk of it, which its other branches share.
    pub(crate) disk: Option<DiskCache>,
}

/// Whose head a volume is opened from: its own, or when it is made that of its parent.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    pub(crate) uuid: [u8; 16],
    /// Number of the origin that the parent is for the child; 0: there is none.
    pub(crate) shift: u16,
}

/// The stores of a head's origins.
pub(crate) fn open_origins(origins: &[Origin], options: &StoreOptions) -> Result<Vec<OriginStore>, RemoteError> {
    let open = |origin: &Origin| {
        let url = Url::parse(&origin.prefix)?;
        let store = Retry::new(open_store(&url, options)?, options.host.clone());
        let disk = options.cache.as_ref().map(|cache| DiskCache::open(&cache.dir, origin.uuid, cache.bytes_max));
        Ok(OriginStore { uuid: origin.uuid, store: Arc::new(store), disk: disk.transpose()? })
    };
    origins.iter().map(open).collect()
}

/// An object of the parent, as a child names it, for whom the parent is the origin `by`; 0: there is no child.
pub(crate) fn shifted(id: ObjectId, by: u16) -> ObjectId {
    if id.origin == 0 { ObjectId { origin: by, ..id } } else { id }
}

/// The same for a part of one.
pub(crate) fn shifted_ref(at: ObjectRef, by: u16) -> ObjectRef {
    ObjectRef { id: shifted(at.id, by), ..at }
}

//! From the name of a volume to its store.

use std::sync::Arc;

use crate::error::RemoteError;
use crate::options::StoreOptions;
use crate::store::{Counted, FileStore, MemoryStore, Store};
use crate::url::{Place, Url};

/// The store of a name. Nothing is asked of it yet.
///
/// # Errors
/// This build does not have it, or what is said of it makes no sense.
pub fn open_store(url: &Url, options: &StoreOptions) -> Result<Arc<dyn Store>, RemoteError> {
    if let Some(store) = options.host.store(url) {
        return Ok(store);
    }
    let store: Arc<dyn Store> = match &url.place {
        Place::File(path) => Arc::new(FileStore::new(path, options.host.clone())),
        Place::Memory { name, prefix } => Arc::new(MemoryStore::open(name, prefix)),
        Place::Bucket { .. } => bucket(url, options)?,
    };
    Ok(Arc::new(Counted::new(store, options.host.clone())))
}

#[cfg(feature = "cloud")]
fn bucket(url: &Url, options: &StoreOptions) -> Result<Arc<dyn Store>, RemoteError> {
    Ok(Arc::new(crate::store::CloudStore::open(url, options)?))
}

#[cfg(not(feature = "cloud"))]
fn bucket(url: &Url, _: &StoreOptions) -> Result<Arc<dyn Store>, RemoteError> {
    Err(RemoteError::Unsupported { what: format!("{url}: this build does not speak to clouds (feature cloud)") })
}

//! From the name of a volume to its store, and to its device.

use std::sync::Arc;

use crate::create::create;
use crate::device::RemoteDevice;
use crate::error::RemoteError;
use crate::options::StoreOptions;
use crate::store::{Counted, FileStore, MemoryStore, Store};
use crate::url::{Place, Url};

/// The store of a name. Nothing is asked of it yet.
///
/// # Errors
/// This build does not have it, or what is said of it makes no sense.
pub fn open_store(url: &Url, options: &StoreOptions) -> Result<Arc<dyn Store>, RemoteError> {
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

/// Opens the volume of a name: a pin, or the newest head, for reading; or the newest head for writing.
///
/// # Errors
/// There is no volume, somebody else writes, it is to be written and is a pin, or the store fails.
pub fn open_at(url: &Url, write: bool, options: &StoreOptions) -> Result<RemoteDevice, RemoteError> {
    let store = open_store(url, options)?;
    match (write, &url.pin) {
        (false, pin) => RemoteDevice::open(store, pin.as_deref(), options),
        (true, None) => RemoteDevice::open_writable(store, options),
        (true, Some(_)) => Err(is_pin(url)),
    }
}

/// Makes a volume of `len` bytes, all zeros, under a name, and opens it for writing. With `force` in the place of another.
///
/// # Errors
/// There is one already, or the store fails.
pub fn create_at(url: &Url, len: u64, force: bool, options: &StoreOptions) -> Result<RemoteDevice, RemoteError> {
    if url.pin.is_some() {
        return Err(is_pin(url));
    }
    let store = open_store(url, options)?;
    create(store.clone(), len, force, options)?;
    RemoteDevice::open_writable(store, options)
}

fn is_pin(url: &Url) -> RemoteError {
    RemoteError::Unsupported { what: format!("{url}: a pin is for reading only") }
}

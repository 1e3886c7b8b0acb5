//! From the name of a volume to its device.

use crate::create::{check_free, create};
use crate::device::RemoteDevice;
use crate::error::RemoteError;
use crate::follow::Follower;
use crate::open_store::open_store;
use crate::options::StoreOptions;
use crate::probe::{ProbeOptions, probe};
use crate::url::Url;

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

/// Opens the newest moment of a volume for reading, to go on to newer ones later.
///
/// # Errors
/// As [`open_at`]; the name is that of a pin, which never changes.
pub fn follow_at(url: &Url, options: &StoreOptions) -> Result<(Follower, RemoteDevice), RemoteError> {
    match url.pin {
        None => Follower::open(open_store(url, options)?, options),
        Some(_) => {
            Err(RemoteError::Unsupported { what: format!("{url}: a pin does not change, so nobody follows it") })
        }
    }
}

/// Makes a volume of `len` bytes, all zeros, under a name, and opens it for writing. With `force` in the place of another. The
/// store is probed before, if that is wanted.
///
/// # Errors
/// There is one already, or the store fails or does not keep conditions.
pub fn create_at(url: &Url, len: u64, force: bool, options: &StoreOptions) -> Result<RemoteDevice, RemoteError> {
    if url.pin.is_some() {
        return Err(is_pin(url));
    }
    let store = open_store(url, options)?;
    if !force {
        check_free(&store, options)?;
    }
    if options.probe {
        probe(&store, options, ProbeOptions::SHORT)?.accepted()?;
    }
    create(store.clone(), len, force, options)?;
    RemoteDevice::open_writable(store, options)
}

fn is_pin(url: &Url) -> RemoteError {
    RemoteError::Unsupported { what: format!("{url}: a pin is for reading only") }
}

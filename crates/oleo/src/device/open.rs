//! Opens what a user names. Everything that takes the name of an image goes through here.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

#[cfg(any(feature = "nbd", feature = "remote"))]
use oleo_device::Window;
use oleo_device::{Device, FileDevice, FileOptions};

use super::place::Place;
use crate::Result;

/// How places are reached that are no files of this machine.
#[derive(Clone, Default, Debug)]
#[non_exhaustive]
pub struct PlaceOptions {
    /// Exports of network block devices.
    #[cfg(feature = "nbd")]
    pub nbd: oleo_nbd::ClientOptions,
    /// Volumes on object stores.
    #[cfg(feature = "remote")]
    pub remote: oleo_remote::StoreOptions,
}

#[cfg(feature = "nbd")]
oleo_format::setters!(PlaceOptions { nbd: oleo_nbd::ClientOptions });
#[cfg(feature = "remote")]
oleo_format::setters!(PlaceOptions { remote: oleo_remote::StoreOptions });

impl PlaceOptions {
    /// Takes an option of volumes on object stores as people write it, such as `take-over` or `claim=60`. False: there is no
    /// such option, at least in this build.
    ///
    /// # Errors
    /// Its value makes no sense.
    #[cfg(feature = "remote")]
    pub fn set(&mut self, word: &str) -> Result<bool> {
        match self.remote.set(word) {
            Ok(()) => Ok(true),
            Err(oleo_remote::OptionError::Unknown(_)) => Ok(false),
            Err(error) => Err(oleo_remote::RemoteError::from(error).into()),
        }
    }

    /// The same where there are none.
    ///
    /// # Errors
    /// None.
    #[cfg(not(feature = "remote"))]
    pub fn set(&mut self, _: &str) -> Result<bool> {
        Ok(false)
    }
}

impl PlaceOptions {
    /// How long a read of a volume on a store may take; zero where there are none.
    pub fn read_max(&self) -> Duration {
        #[cfg(feature = "remote")]
        return self.remote.bounds.read_max;
        #[cfg(not(feature = "remote"))]
        Duration::ZERO
    }

    /// Whether other devices may have what one has, so that a store which is known to be away is not waited for.
    pub(crate) fn mirrored(&mut self, mirrored: bool) {
        #[cfg(feature = "remote")]
        {
            self.remote.mirrored = mirrored;
        }
        #[cfg(not(feature = "remote"))]
        let _unused = mirrored;
    }
}

/// Opens a file, a block device, or what else the name means ([`Place::parse`]).
///
/// Of the options, only files take `create`, `read_in_use` and `claimed`: elsewhere the server or store decides who may use
/// what.
///
/// # Errors
/// It is not there, somebody else uses it, or it cannot be what it is opened for.
pub fn open_named(name: &Path, how: &FileOptions, places: &PlaceOptions) -> Result<Arc<dyn Device>> {
    open_place(&Place::parse(name)?, how, places)
}

/// The same of a name that was read already.
pub(crate) fn open_place(place: &Place, how: &FileOptions, places: &PlaceOptions) -> Result<Arc<dyn Device>> {
    // Used by what the features bring.
    let _ = places;
    match place {
        Place::File(path) => Ok(Arc::new(FileDevice::open(path, how)?)),
        #[cfg(feature = "nbd")]
        Place::Nbd(uri) => part(Arc::new(oleo_nbd::NbdDevice::connect(uri, how.write, &places.nbd)?), how),
        #[cfg(feature = "remote")]
        Place::Remote(url) => part(Arc::new(oleo_remote::open_at(url, how.write, &places.remote)?), how),
    }
}

/// The part of a device that the options ask for.
#[cfg(any(feature = "nbd", feature = "remote"))]
fn part(device: Arc<dyn Device>, how: &FileOptions) -> Result<Arc<dyn Device>> {
    if how.offset == 0 && how.len.is_none() {
        return Ok(device);
    }
    let rest = device.len().saturating_sub(how.offset);
    let (base, len) = (how.offset.min(device.len()), how.len.map_or(rest, |len| len.min(rest)));
    Ok(Arc::new(Window::new(device, base, len)?))
}

//! Opens what a user names. Everything that takes the name of an image goes through here.

use std::path::Path;
use std::sync::Arc;

#[cfg(feature = "nbd")]
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
}

#[cfg(feature = "nbd")]
oleo_format::setters!(PlaceOptions { nbd: oleo_nbd::ClientOptions });

/// Opens a file, a block device, or what else the name means ([`Place::parse`]).
///
/// Of the options, only files take `create`, `read_in_use` and `claimed`: elsewhere the server decides who may use what.
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
    }
}

/// The part of a device that the options ask for.
#[cfg(feature = "nbd")]
fn part(device: Arc<dyn Device>, how: &FileOptions) -> Result<Arc<dyn Device>> {
    if how.offset == 0 && how.len.is_none() {
        return Ok(device);
    }
    let rest = device.len().saturating_sub(how.offset);
    let (base, len) = (how.offset.min(device.len()), how.len.map_or(rest, |len| len.min(rest)));
    Ok(Arc::new(Window::new(device, base, len)?))
}

//! A volume that somebody else writes, read again and again at its newest state, without being opened anew by hand.
//!
//! [`Follower::open`] opens the newest moment of a volume on an object store; [`Follower::newer`] gives the next one, if there is
//! something new. A moment is an [`Image`] of its own: what is open in it stays as it is, for as long as it is open.

use std::path::Path;

use oleo_format::Generation;

use crate::{Image, OpenOptions, Result};

#[cfg(feature = "remote")]
use imp::Source;

/// A volume at one moment.
pub struct Moment {
    /// The file system, for reading.
    pub image: Image,
    /// The newest transaction that was committed then: an inode that says of its last change a number up to this one is the same
    /// in every later moment that says the same number of it. What was only synced says higher numbers.
    pub committed: Generation,
}

/// Who asks for the newest state of a volume; see the module's text. One thread asks; moments are for as many as want them.
pub struct Follower {
    options: OpenOptions,
    #[cfg(feature = "remote")]
    source: Source,
}

impl Follower {
    /// Opens the newest moment of the volume of a name.
    ///
    /// # Errors
    /// As [`Image::open`]; the name is not that of a volume on an object store, or is that of a pin; the options ask for changes, for
    /// several devices, or for an offset.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<(Follower, Moment)> {
        imp::open(path.as_ref(), options).map_err(|error| error.of_image(path.as_ref()))
    }

    /// The next moment; none: nothing has changed. One request to the store if so.
    ///
    /// # Errors
    /// The store fails, or has an older state than before, or another volume. Asking again later is fine.
    pub fn newer(&mut self) -> Result<Option<Moment>> {
        imp::newer(self)
    }
}

#[cfg(feature = "remote")]
mod imp {
    use std::path::Path;
    use std::sync::Arc;

    use oleo_device::Device;
    use oleo_format::Generation;
    use oleo_fs::errno::EOPNOTSUPP;
    use oleo_remote::RemoteDevice;

    use super::{Follower, Moment};
    use crate::device::Place;
    use crate::{Error, Image, OpenOptions, Result};

    pub(super) struct Source {
        follower: oleo_remote::Follower,
        /// The transaction that the last moment shows, if nothing was synced since.
        shown: Option<Generation>,
    }

    pub(super) fn open(path: &Path, options: &OpenOptions) -> Result<(Follower, Moment)> {
        let Place::Remote(url) = Place::parse(path)? else {
            return Err(Error::refused(EOPNOTSUPP, "only volumes on object stores can be followed"));
        };
        if options.writes() || options.offset != 0 || !options.devices.is_empty() || !options.scan.is_empty() {
            return Err(Error::Request("a volume is followed for reading, on one device, from its beginning".into()));
        }
        let (follower, device) = oleo_remote::follow_at(&url, &options.places.remote)?;
        let (moment, shown) = moment(device, options)?;
        Ok((Follower { options: options.clone(), source: Source { follower, shown } }, moment))
    }

    pub(super) fn newer(of: &mut Follower) -> Result<Option<Moment>> {
        let Some(device) = of.source.follower.newer()? else { return Ok(None) };
        let (committed, shown) = state(&device)?;
        if shown.is_some() && shown == of.source.shown {
            // A sign of life, or data of a transaction that is under way.
            return Ok(None);
        }
        of.source.shown = None;
        let image = Image::from_devices(vec![Arc::new(device)], &of.options)?;
        of.source.shown = shown;
        Ok(Some(Moment { image, committed }))
    }

    fn moment(device: RemoteDevice, options: &OpenOptions) -> Result<(Moment, Option<Generation>)> {
        let (committed, shown) = state(&device)?;
        let image = Image::from_devices(vec![Arc::new(device)], options)?;
        Ok((Moment { image, committed }, shown))
    }

    /// The transaction that was committed, and the same if nothing was synced since.
    fn state(device: &dyn Device) -> Result<(Generation, Option<Generation>)> {
        let sb = oleo_volume::read_super(device)?;
        let committed = Generation(sb.generation.get());
        Ok((committed, (sb.log_root.get() == 0).then_some(committed)))
    }
}

#[cfg(not(feature = "remote"))]
mod imp {
    use std::path::Path;

    use oleo_fs::errno::EOPNOTSUPP;

    use super::{Follower, Moment};
    use crate::{Error, OpenOptions, Result};

    fn missing() -> Error {
        Error::refused(EOPNOTSUPP, "only volumes on object stores can be followed: not in this build (feature remote)")
    }

    pub(super) fn open(_: &Path, _: &OpenOptions) -> Result<(Follower, Moment)> {
        Err(missing())
    }

    pub(super) fn newer(of: &mut Follower) -> Result<Option<Moment>> {
        let _options = &of.options;
        Err(missing())
    }
}

//! Devices that come and go, by library.

use std::path::Path;

use oleo_device::FileOptions;
use oleo_format::{BlockGroupFlags, DevId, SuperFlags};
use oleo_volume::{Candidate, ChunkMap};
use serde::{Deserialize, Serialize};

use crate::device::{Place, PlaceOptions, open_named};
use crate::{Access, Error, Hint, Image, OpenOptions, Result};

pub use oleo_jobs::{DeviceJob, Members, Removed, ReplaceState, ReplaceStatus, Replacer};

/// Which device of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhichDevice {
    /// That with this number.
    Number(DevId),
    /// That which is there.
    Place(String),
    /// The first that is missing.
    Missing,
}

impl WhichDevice {
    /// As btrfs's users write it: a number, `missing`, or a path.
    pub fn parse(text: &str) -> WhichDevice {
        match text.parse() {
            Ok(number) => WhichDevice::Number(DevId(number)),
            Err(_) if text == "missing" => WhichDevice::Missing,
            Err(_) => WhichDevice::Place(text.to_owned()),
        }
    }

    /// The same for another process, which may be in another directory.
    ///
    /// # Errors
    /// It is no place.
    pub fn absolute(self) -> Result<WhichDevice> {
        Ok(match self {
            WhichDevice::Place(name) => WhichDevice::Place(absolute(name.as_ref())?),
            other => other,
        })
    }
}

/// The name of a place for another process, which may be in another directory.
///
/// # Errors
/// It is no place.
pub fn absolute(name: &Path) -> Result<String> {
    Ok(Place::parse(name)?.absolute().display().to_string())
}

/// How a device is added.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AddOptions {
    /// Overwrite what it holds.
    pub force: bool,
    /// Discard all of it first. Default: yes.
    pub discard: bool,
    /// How it is reached, if it is no file of this machine.
    pub places: PlaceOptions,
}

impl Default for AddOptions {
    fn default() -> AddOptions {
        AddOptions { force: false, discard: true, places: PlaceOptions::default() }
    }
}

oleo_format::setters!(AddOptions { force: bool, discard: bool, places: PlaceOptions });

impl Image {
    /// Makes a file, block device, or what else the name means ([`Place`]) part of the volume, with all that it has of room. Returns its
    /// number. It is on disk when this returns; from then on the volume needs it to be opened.
    ///
    /// # Errors
    /// It is in use, holds something (unless `force`), is too small, or cannot be written to; or a balance is under way.
    pub fn device_add(&self, name: impl AsRef<Path>, options: &AddOptions) -> Result<DevId> {
        let name = name.as_ref();
        self.candidate(name, options).and_then(|new| Ok(self.members().add(new)?)).map_err(|e| e.of_image(name))
    }

    /// Makes a new volume of a seed: it has all that the seed has, which stays as it is, and what is written goes to the new device. It is on
    /// disk when this returns; from then on it is opened by naming both.
    ///
    /// # Errors
    /// It is no seed; or as [`Image::device_add`].
    pub fn sprout(
        seed: impl AsRef<Path>,
        options: &OpenOptions,
        name: impl AsRef<Path>,
        add: &AddOptions,
    ) -> Result<Image> {
        let mut options = options.clone().access(Access::Write);
        options.sprout = Some(options.fs.uuids.fresh());
        let image = Image::open(seed, &options)?;
        image.grow_into(name.as_ref(), add)?;
        Ok(image)
    }

    /// The same of this image, which is a seed and stays what it is, for reading: a mount shows it as before.
    ///
    /// # Errors
    /// As [`Image::sprout`].
    pub fn sprout_beside(&self, name: impl AsRef<Path>, add: &AddOptions) -> Result<Image> {
        let mut options = OpenOptions::default().access(Access::Write);
        options.sprout = Some(options.fs.uuids.fresh());
        let volume = self.volume();
        let devices = volume.devices().iter().filter_map(|info| volume.device(info.devid)).collect();
        let image = Image::from_devices(devices, &options)?;
        image.grow_into(name.as_ref(), add)?;
        Ok(image)
    }

    /// Gives a volume that is being made of a seed its own device.
    fn grow_into(&self, name: &Path, add: &AddOptions) -> Result<()> {
        self.device_add(name, add)?;
        // The superblock names the chunks of the chunk tree, and the kernel looks at it before it has the seed: none may be there.
        let volume = self.volume();
        let is_wanted = |chunk: &ChunkMap| chunk.flags.contains(BlockGroupFlags::SYSTEM) && volume.is_on_seed(chunk);
        for chunk in volume.chunks().iter().filter(|chunk| is_wanted(chunk)) {
            self.fs().engine().relocate_group(chunk.start, &|_| true).map_err(oleo_fs::FsError::from)?;
        }
        Ok(())
    }

    /// Whether it is a seed, which others are made of.
    pub fn is_seed(&self) -> bool {
        self.volume().super_block().flags().contains(SuperFlags::SEEDING)
    }

    /// Opens a device that is to become part of the volume. Nothing is done to it yet.
    fn candidate(&self, name: &Path, options: &AddOptions) -> Result<Candidate> {
        if self.volume().read_only() {
            return Err(Error::refused(oleo_fs::errno::EROFS, "the volume is open for reading only"));
        }
        if self.device_at(name).is_ok() {
            return Err(Error::refused(oleo_fs::errno::EEXIST, "it is a device of the volume already"));
        }
        let device = open_named(name, &FileOptions::default().write(true), &options.places)?;
        if !options.force
            && let Some(what) = oleo_mkfs::signature(device.as_ref())?
        {
            return Err(Error::refused(oleo_fs::errno::EEXIST, format!("holds {what}")).with_hint(Hint::Overwrite));
        }
        let uuid = self.fs().options().uuids.fresh();
        Ok(Candidate::new(device, uuid, options.discard)?)
    }

    /// Moves everything away from a device and takes it out of the volume. `avoid_reading`: read what is on it from other copies, where
    /// there are some.
    ///
    /// # Errors
    /// There is no such device; a profile cannot be had without it; there is no room for what is on it; it was cancelled
    /// ([`Members::cancel`]); a balance is under way.
    pub fn device_remove(&self, which: &WhichDevice, avoid_reading: bool) -> Result<Removed> {
        Ok(self.members().remove(self.device_number(which)?, avoid_reading)?)
    }

    /// Has a new device take another's place, and begins it: [`Replacer::run`] does it, and where the image has a
    /// [`Background`](crate::Background) that does.
    ///
    /// # Errors
    /// As [`Image::device_add`]; or the new one is too short, or another is being replaced.
    pub fn device_replace(
        &self,
        source: &WhichDevice,
        name: impl AsRef<Path>,
        options: &AddOptions,
        avoid_reading: bool,
    ) -> Result<()> {
        let (source, name) = (self.device_number(source)?, name.as_ref());
        let start = |new| Ok(self.replacer().start(source, new, avoid_reading)?);
        self.candidate(name, options).and_then(start).map_err(|e| e.of_image(name))
    }

    /// The number of a device.
    ///
    /// # Errors
    /// There is none.
    pub fn device_number(&self, which: &WhichDevice) -> Result<DevId> {
        let none = |text: String| Error::refused(oleo_fs::errno::ENODEV, text);
        match which {
            WhichDevice::Number(devid) => Ok(*devid),
            WhichDevice::Missing => {
                let devices = self.volume().devices();
                let missing =
                    devices.iter().find(|device| device.missing).or(devices.iter().find(|device| device.failed));
                missing.map(|device| device.devid).ok_or_else(|| none("no device is missing".into()))
            }
            WhichDevice::Place(name) => self.device_at(Path::new(name)),
        }
    }

    fn device_at(&self, name: &Path) -> Result<DevId> {
        let place = Place::parse(name)?;
        let wanted = place.identity().ok();
        let is_it = |other: &str| {
            let same = || Place::parse(Path::new(other)).and_then(|place| place.identity()).ok() == wanted;
            Path::new(other) == name || wanted.is_some() && same()
        };
        let devices = self.volume().devices();
        let found = devices.iter().find(|device| !device.missing && is_it(&device.name));
        let none = || Error::refused(oleo_fs::errno::ENODEV, format!("{} is no device of the volume", name.display()));
        found.map(|device| device.devid).ok_or_else(none)
    }
}

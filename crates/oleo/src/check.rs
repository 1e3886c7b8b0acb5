//! Checking an image: everything is rebuilt from what is on disk and compared; nothing is changed. What is in use changes meanwhile, so it is
//! not checked: a [scrub](crate::scrub) verifies it.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let scratch = tempfile::tempdir()?;
//! # let img = scratch.path().join("disk.img");
//! # oleo::Image::create(&img, 256 << 20)?.close()?;
//! # use oleo::check::Start;
//! let report = oleo::check::image(&img, &oleo::OpenOptions::default(), Start::default(), &Default::default())?;
//! assert!(report.is_clean(), "{:?}", report.findings);
//! # Ok(())
//! # }
//! ```

use std::path::Path;
use std::sync::Arc;

use oleo_format::Classified;
use oleo_volume::{OpenOptions as VolumeOptions, Volume};

use crate::image::open_devices;
use crate::{Access, Device, Error, Hint, OpenOptions, Result};

pub use oleo_check::{
    CheckError, CheckOptions, Counts, Finding, Kind, Place, Progress, Report, Severity, check as volume,
};

/// What a check begins with; by default the best superblock, and the newest roots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Start {
    /// The roots that the superblock keeps of an earlier transaction, 0 being the last of these: the findings then say how
    /// much of it is still whole.
    pub backup: Option<usize>,
    /// This copy of each device's superblock, whatever the others say: 0 to 2, as far as the devices reach.
    pub super_copy: Option<usize>,
}

oleo_format::setters!(Start { backup: Option<usize>, super_copy: Option<usize> });

/// Checks the file system in an image or on a device that nobody has mounted.
///
/// # Errors
/// What cannot be opened for reading cannot be checked: no superblock, no chunk tree, devices missing (unless `degraded`). Nor can what is in use
/// ([`Access::ReadOnlyInUse`]): it changes meanwhile, so that what is found would say nothing.
pub fn image(path: impl AsRef<Path>, open: &OpenOptions, start: Start, how: &CheckOptions<'_>) -> Result<Report> {
    let path = path.as_ref();
    let check = || {
        if open.access == Access::ReadOnlyInUse {
            let text = "a volume that is in use cannot be checked, since it changes meanwhile";
            return Err(Error::refused(oleo_fs::errno::EBUSY, text).with_hint(Hint::Scrub));
        }
        let found = open_devices(path, &OpenOptions { access: Access::ReadOnly, ..open.clone() })?;
        devices(found, open.degraded, start, how)
    };
    check().map_err(|error| error.of_image(path))
}

/// The same of devices that are open already, in any order, and that nobody writes to meanwhile. With `degraded`, some may be missing.
///
/// # Errors
/// As [`image`].
pub fn devices(devices: Vec<Arc<dyn Device>>, degraded: bool, start: Start, how: &CheckOptions<'_>) -> Result<Report> {
    let Start { backup, super_copy } = start;
    let volume = Volume::open(devices, &VolumeOptions { degraded, backup, super_copy, ..VolumeOptions::default() })?;
    if let Some(tree) = volume.tree_that_moves() {
        let text = format!("a volume with a {tree} cannot be checked yet");
        return Err(Error::refused(oleo_fs::errno::EOPNOTSUPP, text));
    }
    match oleo_check::check(&volume, how) {
        Ok(report) => Ok(report),
        Err(CheckError::Volume(error)) => Err(error.into()),
        Err(error) => Err(Error::refused(error.class().errno, error.to_string())),
    }
}

//! New file systems that are opened as they are made.

use std::path::Path;
use std::sync::Arc;

use oleo_device::{Device, MemDevice};
use oleo_fs::errno;
use oleo_mkfs::{MkfsOptions, make};

use crate::device::Place;
use crate::mkfs::{BuildOptions, build};
use crate::{Access, Error, Image, OpenOptions, Result};

impl Image {
    /// Makes an empty file system of `size` bytes in an image file or on a block device, and opens it for changes.
    ///
    /// A file that does not exist is created, sparse. The identifiers of the file system are random, its time of creation is
    /// now, everything else is as in [`MkfsOptions::default`]. [`Image::create_with`] takes other options; [`build`] also fills
    /// a file system, spreads it over several devices, and overwrites what is there.
    ///
    /// # Errors
    /// The file exists and is not empty, or the device holds a file system (`EEXIST`); `size` is too small (a little over 100 MiB
    /// is enough); the file cannot be created or is in use.
    pub fn create(path: impl AsRef<Path>, size: u64) -> Result<Image> {
        Image::create_with(path, size, MkfsOptions::unique(), &OpenOptions::writing())
    }

    /// Makes an empty file system as `mkfs` says, and opens it as `open` says, for changes in any case. [`MkfsOptions::unique`] is
    /// what [`Image::create`] begins with; the default of these options has no random identifiers.
    ///
    /// # Errors
    /// As [`Image::create`]; or the options do not fit together.
    pub fn create_with(path: impl AsRef<Path>, size: u64, mkfs: MkfsOptions, open: &OpenOptions) -> Result<Image> {
        let path = path.as_ref();
        let is_filled = || std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() > 0);
        if open.offset == 0 && Place::parse(path)?.is_file() && is_filled() {
            return Err(Error::refused(errno::EEXIST, "the file exists and is not empty").at(path.display()));
        }
        let how = BuildOptions::default().mkfs(mkfs).size(Some(size)).offset(open.offset).places(open.places.clone());
        build(&[path], how)?;
        Image::open(path, &OpenOptions { access: Access::Write, ..open.clone() })
    }

    /// Makes an empty file system on devices that hold nothing yet, and opens it as `open` says, for changes in any case.
    ///
    /// # Errors
    /// The devices are too small or too few for the options, or one failed.
    pub fn create_on(devices: Vec<Arc<dyn Device>>, mkfs: &MkfsOptions, open: &OpenOptions) -> Result<Image> {
        make(&devices, mkfs)?;
        let image = Image::from_devices(devices, &OpenOptions { access: Access::Write, ..open.clone() })?;
        if mkfs.features.simple_quota {
            image.quota_enable_simple()?;
        }
        if mkfs.features.quota {
            image.quota_enable()?;
        }
        Ok(image)
    }

    /// Makes an empty file system on a device of `len` bytes in memory, and opens it. Only what is written takes memory, and
    /// everything is lost when the image is dropped.
    ///
    /// # Errors
    /// `len` is too small (a little over 100 MiB is enough).
    pub fn create_in_memory(len: u64) -> Result<Image> {
        Image::create_on(vec![Arc::new(MemDevice::new(len))], &MkfsOptions::unique(), &OpenOptions::writing())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 128 << 20;

    /// Goal: a new image can be written to, is what it was said to be, and is not made a second time in the same place.
    #[test]
    fn a_file_is_created_once() -> std::result::Result<(), Box<dyn std::error::Error>> {
        let scratch = tempfile::tempdir()?;
        let path = scratch.path().join("disk.img");
        let image = Image::create(&path, LEN)?;
        let first = image.volume().super_block().fsid();
        image.write("file", b"contents")?;
        image.close()?;
        assert_eq!(std::fs::metadata(&path)?.len(), LEN);

        let again = Image::create(&path, LEN).map(drop).unwrap_err();
        assert_eq!(again.errno(), errno::EEXIST);
        assert_eq!(Image::open(&path, &OpenOptions::default())?.read("file")?, b"contents");

        let text = scratch.path().join("notes.txt");
        std::fs::write(&text, "do not overwrite me")?;
        assert_eq!(Image::create(&text, LEN).map(drop).unwrap_err().errno(), errno::EEXIST);
        assert_eq!(std::fs::read(&text)?, b"do not overwrite me");

        let other = Image::create(scratch.path().join("other.img"), LEN)?;
        assert_ne!(other.volume().super_block().fsid(), first, "each file system has its own UUID");
        Ok(())
    }

    /// Goal: what is too small is refused, and no file is left behind.
    #[test]
    fn too_small() -> std::result::Result<(), Box<dyn std::error::Error>> {
        let scratch = tempfile::tempdir()?;
        let path = scratch.path().join("disk.img");
        assert!(Image::create(&path, 1 << 20).is_err());
        assert!(!path.exists());
        assert!(Image::create_in_memory(1 << 20).is_err());
        Ok(())
    }

    /// Goal: the time of creation is the clock's, options reach mkfs, and quota asked for is on.
    #[test]
    fn options() -> Result<()> {
        let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let image = Image::create_in_memory(LEN)?;
        assert!(image.fs().attr(&image.top()?).otime.sec.unsigned_abs() >= before);
        let mut mkfs = MkfsOptions::unique().label("mine".into());
        mkfs.features.simple_quota = true;
        let image = Image::create_on(vec![Arc::new(MemDevice::new(LEN))], &mkfs, &OpenOptions::default())?;
        assert_eq!(image.label(), b"mine");
        assert!(image.quota().is_some());
        image.write("file", b"contents")?;
        Ok(())
    }
}

//! Where there are no files (WebAssembly): the type is there, none of it can be made.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::{Device, DeviceError, FileOptions};

/// A file; there are none.
#[derive(Debug)]
pub enum FileDevice {}

impl FileDevice {
    /// Refused.
    ///
    /// # Errors
    /// There are no files.
    pub fn open(path: &Path, _: &FileOptions) -> Result<FileDevice, DeviceError> {
        Err(DeviceError::Open { path: path.to_path_buf(), source: Arc::new(io::ErrorKind::Unsupported.into()) })
    }
}

impl Device for FileDevice {
    fn len(&self) -> u64 {
        match *self {}
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> Result<(), DeviceError> {
        match *self {}
    }

    fn write_at(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        match *self {}
    }

    fn flush(&self) -> Result<(), DeviceError> {
        match *self {}
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), DeviceError> {
        match *self {}
    }

    fn set_len(&self, _: u64) -> Result<(), DeviceError> {
        match *self {}
    }

    fn name(&self) -> String {
        match *self {}
    }

    fn read_only(&self) -> bool {
        match *self {}
    }
}

//! Sharing data with the host's files, where Oleo does not do it: there is no [`Reflink`].

use std::path::Path;

use oleo_fs::{Fs, InodeRef};

use crate::MkfsError;

/// The image as a file of the host.
#[derive(Debug)]
pub enum Reflink {}

impl Reflink {
    /// Refused.
    ///
    /// # Errors
    /// Always.
    pub fn new(_: &Path, _: u64) -> Result<Reflink, MkfsError> {
        Err(MkfsError::Unsupported("sharing data with files of the host, other than on Linux".into()))
    }

    pub(super) fn share(&self, _: &Fs, _: &InodeRef, _: &Path, _: u64, _: u64) -> Result<(), MkfsError> {
        match *self {}
    }
}

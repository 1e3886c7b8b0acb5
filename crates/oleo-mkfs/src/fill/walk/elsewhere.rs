//! Directories of the host, where Oleo does not walk them: none is ever opened, so that there is no [`DirHandle`].

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::MkfsError;
use crate::fill::entry::{Child, Meta, Xattrs};
use crate::fill::entry::{UnpreparedPiece, Whole};

/// An open directory.
pub(crate) enum DirHandle {}

/// The names of a directory, sorted.
pub(crate) struct Listing {
    pub handle: Arc<DirHandle>,
    pub children: Vec<Child>,
    pub xattrs: Xattrs,
}

/// A part of a file to be read.
#[allow(dead_code, reason = "nothing is read")]
pub(crate) struct FileRange {
    pub dir: Arc<DirHandle>,
    pub name: Vec<u8>,
    pub from: u64,
    pub to: u64,
    pub whole: Whole,
    pub align: u64,
}

fn refused(path: &Path) -> MkfsError {
    MkfsError::Unsupported(format!("taking over files of the host, other than on Linux ({})", path.display()))
}

impl DirHandle {
    pub fn open_top(path: &Path) -> Result<DirHandle, MkfsError> {
        Err(refused(path))
    }

    pub fn open_dir(&self, _: &[u8]) -> Result<DirHandle, MkfsError> {
        match *self {}
    }

    pub fn path_of(&self, _: &[u8]) -> PathBuf {
        match *self {}
    }

    pub fn meta(&self) -> Result<Meta, MkfsError> {
        match *self {}
    }

    pub fn data_runs(&self, _: &[u8], _: u64, _: u64) -> Result<Vec<(u64, u64)>, MkfsError> {
        match *self {}
    }
}

impl Listing {
    pub fn of(dir: Arc<DirHandle>) -> Result<Listing, MkfsError> {
        match *dir {}
    }

    pub fn of_one(path: &Path) -> Result<Listing, MkfsError> {
        Err(refused(path))
    }
}

impl FileRange {
    pub fn read(&self) -> Result<Vec<UnpreparedPiece>, MkfsError> {
        match *self.dir {}
    }
}

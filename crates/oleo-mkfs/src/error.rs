//! What can go wrong while making a file system.

use std::io;
use std::path::PathBuf;

use oleo_device::DeviceError;
use oleo_fs::FsError;
use oleo_txn::TxnError;
use oleo_volume::VolumeError;

/// Why a file system could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MkfsError {
    /// The options contradict each other or leave what is possible.
    #[error("{0}")]
    Options(String),
    /// Known, but not built.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// A device has no room for the first chunks.
    #[error("device {} of {len} bytes is too small: it needs at least {more} bytes more", device + 1)]
    TooSmall {
        /// Index of the device in the list given.
        device: usize,
        /// Its length in bytes.
        len: u64,
        /// Bytes that are missing.
        more: u64,
    },
    /// The source of the files could not be read.
    #[error("cannot {what} {}: {cause}", path.display())]
    Source {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// A tar archive is damaged or cannot be read.
    #[error("tar, near byte {at}: {what}")]
    Tar {
        /// Bytes of the (decompressed) stream read so far.
        at: u64,
        /// What is wrong.
        what: String,
    },
    /// A device failed.
    #[error(transparent)]
    Device(Box<DeviceError>),
    /// From the volume.
    #[error(transparent)]
    Volume(Box<VolumeError>),
    /// From the transaction engine.
    #[error(transparent)]
    Engine(Box<TxnError>),
    /// From files and names.
    #[error(transparent)]
    Fs(#[from] FsError),
}

// Boxed, so that results stay small.

impl From<VolumeError> for MkfsError {
    fn from(error: VolumeError) -> MkfsError {
        MkfsError::Volume(Box::new(error))
    }
}

impl From<DeviceError> for MkfsError {
    fn from(error: DeviceError) -> MkfsError {
        MkfsError::Device(Box::new(error))
    }
}

impl From<TxnError> for MkfsError {
    fn from(error: TxnError) -> MkfsError {
        MkfsError::Engine(Box::new(error))
    }
}

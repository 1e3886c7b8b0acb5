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
    Device(#[from] DeviceError),
    /// From the volume.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// From the transaction engine.
    #[error(transparent)]
    Engine(#[from] TxnError),
    /// From files and names.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// From files and names, about this file of the source.
    #[error("{}: {cause}", path.display())]
    At {
        /// Which file.
        path: PathBuf,
        /// What went wrong.
        cause: FsError,
    },
}

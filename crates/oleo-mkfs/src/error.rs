//! Why a file system could not be made.

use std::io;
use std::path::PathBuf;

use oleo_device::DeviceError;
use oleo_format::{Class, Classified, errno};
use oleo_fs::FsError;
use oleo_txn::TxnError;
use oleo_volume::VolumeError;

/// Why a file system could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MkfsError {
    /// The options contradict each other or are not possible.
    #[error("{0}")]
    Options(String),
    /// Known, but not built.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// A device has no room for the first chunks.
    #[error("device {} of {len} bytes is too small: at least {} MiB are needed", device + 1, (len + more).div_ceil(1 << 20))]
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
        /// The operation.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's error.
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
oleo_format::error_from!(MkfsError { Volume(VolumeError), Device(DeviceError), Engine(TxnError), });

impl Classified for MkfsError {
    #[deny(clippy::wildcard_enum_match_arm)]
    fn class(&self) -> Class {
        match self {
            MkfsError::Options(_) => Class::USAGE,
            MkfsError::Unsupported(_) => Class::refusal(errno::EOPNOTSUPP),
            MkfsError::TooSmall { .. } => Class::refusal(errno::ENOSPC),
            MkfsError::Source { cause, .. } => Class::of_io(cause),
            // The archive is damaged, not the image.
            MkfsError::Tar { .. } => Class::refusal(errno::EINVAL),
            MkfsError::Device(error) => error.class(),
            MkfsError::Volume(error) => error.class(),
            MkfsError::Engine(error) => error.class(),
            MkfsError::Fs(error) => error.class(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every error is of its kind and has its errno.
    #[test]
    fn every_error_has_its_class() {
        let path = || PathBuf::from("a");
        let none = || io::Error::from_raw_os_error(errno::ENOENT);
        oleo_format::assert_classes!(MkfsError {
            Options: MkfsError::Options("so".into()) => Class::USAGE,
            Unsupported: MkfsError::Unsupported("so".into()) => Class::refusal(errno::EOPNOTSUPP),
            TooSmall: MkfsError::TooSmall { device: 0, len: 1, more: 1 } => Class::refusal(errno::ENOSPC),
            Source: MkfsError::Source { what: "read", path: path(), cause: none() } => Class::refusal(errno::ENOENT),
            Tar: MkfsError::Tar { at: 0, what: "so".into() } => Class::refusal(errno::EINVAL),
            Device: DeviceError::Kind { path: path() }.into() => Class::refusal(errno::EINVAL),
            Volume: VolumeError::ReadOnly.into() => Class::refusal(errno::EROFS),
            Engine: TxnError::QuotaOff.into() => Class::refusal(errno::ENOTCONN),
            Fs: FsError::NoSpace.into() => Class::refusal(errno::ENOSPC),
        });
    }
}

//! Why a job was not done.

use oleo_format::Corruption;
use oleo_fs::{FsError, errno};
use oleo_tree::TreeError;
use oleo_txn::TxnError;
use oleo_volume::VolumeError;

/// Why a job was not done.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// It cannot be done as asked; the text says why, and what could be.
    #[error("{text}")]
    Refused {
        /// What a system call would answer.
        errno: i32,
        /// Why.
        text: String,
    },
    /// From files and names.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// From the volume.
    #[error(transparent)]
    Volume(Box<VolumeError>),
}

impl JobError {
    pub(crate) fn refused(errno: i32, text: impl Into<String>) -> JobError {
        JobError::Refused { errno, text: text.into() }
    }

    /// What a system call would answer.
    pub fn errno(&self) -> i32 {
        match self {
            JobError::Refused { errno, .. } => *errno,
            JobError::Fs(error) => error.errno(),
            JobError::Volume(error) => match **error {
                VolumeError::Corrupt(_) => errno::EUCLEAN,
                VolumeError::NoRoom { .. } => errno::ENOSPC,
                VolumeError::Unsupported { .. } => errno::EOPNOTSUPP,
                _ => errno::EIO,
            },
        }
    }
}

impl From<VolumeError> for JobError {
    fn from(error: VolumeError) -> JobError {
        JobError::Volume(Box::new(error))
    }
}

impl From<TxnError> for JobError {
    fn from(error: TxnError) -> JobError {
        JobError::Fs(error.into())
    }
}

impl From<TreeError> for JobError {
    fn from(error: TreeError) -> JobError {
        JobError::Fs(error.into())
    }
}

impl From<Corruption> for JobError {
    fn from(error: Corruption) -> JobError {
        JobError::Fs(error.into())
    }
}

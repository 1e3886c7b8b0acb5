//! Why a stream was not made.

use oleo_format::Corruption;
use oleo_fs::{FsError, errno};
use oleo_tree::TreeError;
use oleo_txn::TxnError;

/// Why a stream was not made.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// It cannot be done as asked; the text says why, and what could be.
    #[error("{text}")]
    Refused {
        /// What a system call would answer.
        errno: i32,
        /// Why.
        text: String,
    },
    /// Reading failed, or the image lies.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// The stream could not be written.
    #[error("the stream cannot be written: {0}")]
    Write(#[source] std::io::Error),
    /// The caller's progress function said stop.
    #[error("stopped")]
    Stopped,
}

impl SendError {
    /// What a system call would answer.
    pub fn errno(&self) -> i32 {
        match self {
            SendError::Refused { errno, .. } => *errno,
            SendError::Fs(error) => error.errno(),
            SendError::Write(error) => error.raw_os_error().unwrap_or(errno::EIO),
            SendError::Stopped => errno::EINTR,
        }
    }

    pub(super) fn refused(errno: i32, text: impl Into<String>) -> SendError {
        SendError::Refused { errno, text: text.into() }
    }
}

impl From<TxnError> for SendError {
    fn from(error: TxnError) -> SendError {
        SendError::Fs(error.into())
    }
}

impl From<TreeError> for SendError {
    fn from(error: TreeError) -> SendError {
        SendError::Fs(error.into())
    }
}

impl From<Corruption> for SendError {
    fn from(error: Corruption) -> SendError {
        SendError::Fs(error.into())
    }
}

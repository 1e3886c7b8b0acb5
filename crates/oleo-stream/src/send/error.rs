//! Why a send failed.

use oleo_format::{Class, Classified, Corruption, ErrorKind, errno};
use oleo_fs::FsError;
use oleo_tree::TreeError;
use oleo_txn::TxnError;

/// Why a stream was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The request is refused; the text says why, and what is possible.
    #[error("{text}")]
    Refused {
        /// The errno of a system call.
        errno: i32,
        /// Why.
        text: String,
    },
    /// Reading failed, or the image is damaged.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// The stream could not be written.
    #[error("the stream cannot be written: {0}")]
    Write(#[source] std::io::Error),
    /// The caller's progress function returned `Break`.
    #[error("stopped")]
    Stopped,
}

impl SendError {
    /// The errno of a system call.
    pub fn errno(&self) -> i32 {
        self.class().errno
    }

    pub(super) fn refused(errno: i32, text: impl Into<String>) -> SendError {
        SendError::Refused { errno, text: text.into() }
    }
}

oleo_format::error_from!(SendError { Fs(TxnError), Fs(TreeError), Fs(Corruption), });

impl Classified for SendError {
    #[deny(clippy::wildcard_enum_match_arm)]
    fn class(&self) -> Class {
        match self {
            SendError::Refused { errno, .. } => Class::refusal(*errno),
            SendError::Fs(error) => error.class(),
            SendError::Write(error) => Class { kind: ErrorKind::Device, ..Class::of_io(error) },
            SendError::Stopped => Class::refusal(errno::EINTR),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every error is of its kind and has its errno.
    #[test]
    fn every_error_has_its_class() {
        let full = std::io::Error::from_raw_os_error(errno::ENOSPC);
        oleo_format::assert_classes!(SendError {
            Refused: SendError::refused(errno::EINVAL, "so") => Class::refusal(errno::EINVAL),
            Fs: FsError::NotFound.into() => Class::refusal(errno::ENOENT),
            Write: SendError::Write(full) => Class { kind: ErrorKind::Device, errno: errno::ENOSPC },
            Stopped: SendError::Stopped => Class::refusal(errno::EINTR),
        });
    }
}

//! Why a job failed.

use oleo_format::{Class, Classified, Corruption, errno};
use oleo_fs::FsError;
use oleo_tree::TreeError;
use oleo_txn::TxnError;
use oleo_volume::VolumeError;

/// Why a job was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The request is refused; the text says why, and what is possible.
    #[error("{text}")]
    Refused {
        /// The errno of a system call.
        errno: i32,
        /// Why.
        text: String,
    },
    /// It would reduce the number of copies, and `force` is not set; the text names the profiles.
    #[error("{0}")]
    FewerCopies(String),
    /// No scrub was interrupted.
    #[error("there is no scrub to resume")]
    NothingToResume,
    /// Data of files that has no good copy is in the way.
    #[error("{source}; it is data of {files}: restore or delete these, then try again")]
    Unreadable {
        /// What could not be read.
        source: Box<TxnError>,
        /// The files, and the places in them.
        files: String,
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

    /// The errno of a system call.
    pub fn errno(&self) -> i32 {
        self.class().errno
    }
}

impl Classified for JobError {
    #[deny(clippy::wildcard_enum_match_arm)]
    fn class(&self) -> Class {
        match self {
            JobError::Refused { errno, .. } => Class::refusal(*errno),
            JobError::FewerCopies(_) => Class::refusal(errno::EINVAL),
            JobError::NothingToResume => Class::refusal(errno::ENOTCONN),
            JobError::Unreadable { source, .. } => source.class(),
            JobError::Fs(error) => error.class(),
            JobError::Volume(error) => error.class(),
        }
    }
}

oleo_format::error_from!(JobError { Volume(VolumeError), Fs(TxnError), Fs(TreeError), Fs(Corruption), });

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every error is of its kind and has its errno.
    #[test]
    fn every_error_has_its_class() {
        oleo_format::assert_classes!(JobError {
            Refused: JobError::refused(errno::EBUSY, "so") => Class::refusal(errno::EBUSY),
            FewerCopies: JobError::FewerCopies("so".into()) => Class::refusal(errno::EINVAL),
            NothingToResume: JobError::NothingToResume => Class::refusal(errno::ENOTCONN),
            Unreadable: JobError::Unreadable {
                source: Box::new(VolumeError::ReadOnly.into()), files: "so".into()
            } => Class::refusal(errno::EROFS),
            Fs: FsError::NotFound.into() => Class::refusal(errno::ENOENT),
            Volume: VolumeError::ReadOnly.into() => Class::refusal(errno::EROFS),
        });
    }
}

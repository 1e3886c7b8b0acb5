//! What can go wrong with files and names, and the one table that turns it into an errno.

use oleo_format::{Class, Classified, Corruption, Ino, TreeId};
use oleo_tree::TreeError;
use oleo_txn::TxnError;
use thiserror::Error;

/// Why an operation on files or names did not happen.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FsError {
    /// No entry of that name, or no such inode or subvolume.
    #[error("not found")]
    NotFound,
    /// There is an entry of that name already.
    #[error("exists already")]
    Exists,
    /// A directory or subvolume that is to go has entries, or is in the way.
    #[error("directory not empty")]
    NotEmpty,
    /// A file was needed, this is a directory.
    #[error("is a directory")]
    IsDir,
    /// A directory was needed, this is something else.
    #[error("not a directory")]
    NotDir,
    /// A name above 255 bytes, or a symbolic link's target that no leaf can hold.
    #[error("name too long")]
    NameTooLong,
    /// A file has as many names as the format allows.
    #[error("too many links")]
    TooManyLinks,
    /// Source and target are in different subvolumes.
    #[error("source and target are in different subvolumes")]
    CrossSubvolume,
    /// The subvolume, the volume or the way it was opened does not allow changes.
    #[error("read-only: {0}")]
    ReadOnly(&'static str),
    /// No space left for data or metadata.
    #[error("no space left")]
    NoSpace,
    /// The request makes no sense.
    #[error("invalid request: {0}")]
    Invalid(&'static str),
    /// More symbolic links on the way than any sound path has.
    #[error("too many symbolic links")]
    TooManySymlinks,
    /// No extended attribute of that name.
    #[error("no such attribute")]
    NoData,
    /// An extended attribute's value is longer than any leaf can hold.
    #[error("attribute value too long")]
    TooBig,
    /// An attribute's name is empty or too long.
    #[error("out of range: {0}")]
    Range(&'static str),
    /// What the format or this version does not do.
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// Not allowed on this kind of object.
    #[error("not permitted: {0}")]
    NotPermitted(&'static str),
    /// The object's mark as read-only denies it, to everybody.
    #[error("permission denied: {0}")]
    Denied(&'static str),
    /// An item of the tree would outgrow a leaf (for example too many names with one hash).
    #[error("an item would outgrow a leaf: {0}")]
    Overflow(&'static str),
    /// A file would get longer than the format allows.
    #[error("file too large")]
    FileTooBig,
    /// The inode or subvolume has been deleted meanwhile.
    #[error("deleted meanwhile")]
    Stale,
    /// In use, so that it cannot be deleted or changed now.
    #[error("in use: {0}")]
    Busy(&'static str),
    /// Data of a file could not be read.
    #[error("inode {ino} of tree {tree}, at byte {at}: {source}")]
    Data {
        /// The subvolume.
        tree: TreeId,
        /// The file.
        ino: Ino,
        /// Where in the file.
        at: u64,
        /// What went wrong below.
        source: Box<TxnError>,
    },
    /// The image is damaged.
    #[error(transparent)]
    Corruption(#[from] Corruption),
    /// From the trees below.
    #[error(transparent)]
    Tree(TreeError),
    /// From the transaction engine below.
    #[error(transparent)]
    Txn(TxnError),
}

impl From<TreeError> for FsError {
    fn from(error: TreeError) -> FsError {
        FsError::Tree(error)
    }
}

impl From<TxnError> for FsError {
    fn from(error: TxnError) -> FsError {
        match error {
            TxnError::NoSpace { .. } => FsError::NoSpace,
            TxnError::Corrupt(corrupt) => FsError::Corruption(corrupt),
            other => FsError::Txn(other),
        }
    }
}

pub use oleo_format::errno;

impl FsError {
    /// What [`FsError::ReadOnly`] has if the whole file system was opened for reading.
    pub const OPENED_FOR_READING: &'static str = "opened for reading";

    /// The errno that a system call with this outcome returns.
    pub fn errno(&self) -> i32 {
        self.class().errno
    }

    /// Damage that the verifier of blocks cannot see, because it takes several items to detect.
    pub(crate) fn corrupt(
        structure: &'static str,
        at: impl std::fmt::Display,
        what: &'static str,
        have: impl std::fmt::Display,
        want: impl std::fmt::Display,
    ) -> FsError {
        FsError::Corruption(Corruption::new(structure, what, have, want).within(at))
    }
}

impl Classified for FsError {
    #[deny(clippy::wildcard_enum_match_arm)]
    fn class(&self) -> Class {
        let errno = match self {
            FsError::Corruption(error) => return error.class(),
            FsError::Tree(error) => return error.class(),
            FsError::Txn(error) => return error.class(),
            // A call that reads returns this, whatever is wrong below.
            FsError::Data { source, .. } => return Class { errno: errno::EIO, ..source.class() },
            FsError::NotFound => errno::ENOENT,
            FsError::Exists => errno::EEXIST,
            FsError::NotEmpty => errno::ENOTEMPTY,
            FsError::IsDir => errno::EISDIR,
            FsError::NotDir => errno::ENOTDIR,
            FsError::NameTooLong => errno::ENAMETOOLONG,
            FsError::TooManyLinks => errno::EMLINK,
            FsError::CrossSubvolume => errno::EXDEV,
            FsError::ReadOnly(_) => errno::EROFS,
            FsError::NoSpace => errno::ENOSPC,
            FsError::Invalid(_) => errno::EINVAL,
            FsError::TooManySymlinks => errno::ELOOP,
            FsError::NoData => errno::ENODATA,
            FsError::TooBig => errno::E2BIG,
            FsError::Range(_) => errno::ERANGE,
            FsError::NotSupported(_) => errno::EOPNOTSUPP,
            FsError::NotPermitted(_) => errno::EPERM,
            FsError::Denied(_) => errno::EACCES,
            FsError::Overflow(_) => errno::EOVERFLOW,
            FsError::FileTooBig => errno::EFBIG,
            FsError::Stale => errno::ESTALE,
            FsError::Busy(_) => errno::EBUSY,
        };
        Class::refusal(errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every error is of its kind and has its errno.
    #[test]
    fn classes() {
        let (tree, ino) = (TreeId(5), Ino(257));
        let data = |source: TxnError| FsError::Data { tree, ino, at: 0, source: Box::new(source) };
        let refusal = Class::refusal;
        oleo_format::assert_classes!(FsError {
            NotFound: FsError::NotFound => refusal(errno::ENOENT),
            Exists: FsError::Exists => refusal(errno::EEXIST),
            NotEmpty: FsError::NotEmpty => refusal(errno::ENOTEMPTY),
            IsDir: FsError::IsDir => refusal(errno::EISDIR),
            NotDir: FsError::NotDir => refusal(errno::ENOTDIR),
            NameTooLong: FsError::NameTooLong => refusal(errno::ENAMETOOLONG),
            TooManyLinks: FsError::TooManyLinks => refusal(errno::EMLINK),
            CrossSubvolume: FsError::CrossSubvolume => refusal(errno::EXDEV),
            ReadOnly: FsError::ReadOnly("so") => refusal(errno::EROFS),
            NoSpace: FsError::NoSpace => refusal(errno::ENOSPC),
            NoSpace: TxnError::NoSpace { what: "data", wanted: oleo_format::ByteLen(1) }.into() => refusal(errno::ENOSPC),
            Invalid: FsError::Invalid("so") => refusal(errno::EINVAL),
            TooManySymlinks: FsError::TooManySymlinks => refusal(errno::ELOOP),
            NoData: FsError::NoData => refusal(errno::ENODATA),
            TooBig: FsError::TooBig => refusal(errno::E2BIG),
            Range: FsError::Range("so") => refusal(errno::ERANGE),
            NotSupported: FsError::NotSupported("so") => refusal(errno::EOPNOTSUPP),
            NotPermitted: FsError::NotPermitted("so") => refusal(errno::EPERM),
            Denied: FsError::Denied("so") => refusal(errno::EACCES),
            Overflow: FsError::Overflow("so") => refusal(errno::EOVERFLOW),
            FileTooBig: FsError::FileTooBig => refusal(errno::EFBIG),
            Stale: FsError::Stale => refusal(errno::ESTALE),
            Busy: FsError::Busy("so") => refusal(errno::EBUSY),
            Data: data(TxnError::NoChecksum(oleo_format::Logical(1))) => Class::DATA,
            Data: data(Corruption::new("node", "level", 9, 1).into()) => Class::DATA,
            Corruption: Corruption::new("node", "level", 9, 1).into() => Class::DAMAGE,
            Tree: TreeError::TooHigh { tree, max: 8 }.into() => refusal(errno::EFBIG),
            Txn: TxnError::ReadOnly("so".into()).into() => refusal(errno::EROFS),
            Txn: TxnError::QuotaExceeded(tree).into() => refusal(errno::EDQUOT),
        });
    }
}

//! What can go wrong with files and names, and the one table that turns it into an errno.

use oleo_format::{Corruption, Ino, TreeId};
use oleo_tree::TreeError;
use oleo_txn::TxnError;
use thiserror::Error;

/// Why an operation on files or names did not happen.
#[derive(Debug, Error)]
pub enum FsError {
    /// No entry of that name, or no such inode or subvolume.
    #[error("not found")]
    NotFound,
    /// There is an entry of that name already.
    #[error("exists already")]
    Exists,
    /// A directory or subvolume that is to go has entries, or stands in the way.
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
    /// The image lies.
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
            TxnError::Corrupt(lie) => FsError::Corruption(lie),
            other => FsError::Txn(other),
        }
    }
}

/// Linux errno values, which are the same on every architecture that we meet.
#[allow(missing_docs, reason = "errno(3) documents them")]
pub mod errno {
    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const EINTR: i32 = 4;
    pub const EIO: i32 = 5;
    pub const EACCES: i32 = 13;
    pub const EBUSY: i32 = 16;
    pub const E2BIG: i32 = 7;
    pub const EEXIST: i32 = 17;
    pub const EXDEV: i32 = 18;
    pub const ENODEV: i32 = 19;
    pub const ENOTDIR: i32 = 20;
    pub const EISDIR: i32 = 21;
    pub const EINVAL: i32 = 22;
    pub const EFBIG: i32 = 27;
    pub const ENOSPC: i32 = 28;
    pub const EROFS: i32 = 30;
    pub const ENOTCONN: i32 = 107;
    pub const EINPROGRESS: i32 = 115;
    pub const ECANCELED: i32 = 125;
    pub const EDQUOT: i32 = 122;
    pub const EMLINK: i32 = 31;
    pub const ERANGE: i32 = 34;
    pub const ENAMETOOLONG: i32 = 36;
    pub const ENOTEMPTY: i32 = 39;
    pub const ELOOP: i32 = 40;
    pub const ENODATA: i32 = 61;
    pub const EOVERFLOW: i32 = 75;
    pub const EOPNOTSUPP: i32 = 95;
    pub const ESTALE: i32 = 116;
    pub const EUCLEAN: i32 = 117;
}

impl FsError {
    /// The errno that a system call with this outcome returns.
    pub fn errno(&self) -> i32 {
        match self {
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
            FsError::Overflow(_) => errno::EOVERFLOW,
            FsError::FileTooBig => errno::EFBIG,
            FsError::Stale => errno::ESTALE,
            FsError::Busy(_) => errno::EBUSY,
            FsError::Corruption(_) => errno::EUCLEAN,
            FsError::Data { .. } => errno::EIO,
            FsError::Tree(_) => errno::EIO,
            FsError::Txn(TxnError::ReadOnly(_)) => errno::EROFS,
            FsError::Txn(TxnError::QuotaOff) => errno::ENOTCONN,
            FsError::Txn(TxnError::StillUsed(_)) => errno::EBUSY,
            FsError::Txn(TxnError::QuotaExceeded(_)) => errno::EDQUOT,
            FsError::Txn(TxnError::Qgroup { errno, .. }) => *errno,
            FsError::Txn(error) if error.is_full() => errno::ENOSPC,
            FsError::Txn(_) => errno::EIO,
        }
    }

    /// Data of a file could not be read at `at`.
    pub(crate) fn data(inode: &crate::inode::Inode, at: u64, source: TxnError) -> FsError {
        FsError::Data { tree: inode.tree(), ino: inode.ino(), at, source: Box::new(source) }
    }

    /// A lie of the image that the verifier of blocks cannot see, because it takes several items to tell.
    pub(crate) fn lie(
        structure: &'static str,
        at: impl std::fmt::Display,
        what: &'static str,
        have: impl std::fmt::Display,
        want: impl std::fmt::Display,
    ) -> FsError {
        FsError::Corruption(Corruption::new(structure, what, have, want).within(at))
    }
}

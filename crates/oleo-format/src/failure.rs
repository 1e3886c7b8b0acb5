//! The classes of errors, for all crates: the kind, which decides the exit code of a command, and the errno, which a
//! system call and an ioctl return.
//!
//! Each error enum defines both in one place, its [`Classified::class`]: a `match` without wildcard, beside the enum,
//! with a row for every variant in a test there. Crates above delegate to it and do not decide again.

use std::io;

use serde::{Deserialize, Serialize};

/// The kinds of errors, which are never mixed. A fifth, a bug of ours, is not an error but a panic.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// It cannot be done as asked: not found, no room, not supported, in use.
    Refusal,
    /// The request is invalid for any volume.
    Usage,
    /// The disk holds something that the format does not allow.
    Corruption,
    /// A device or the host failed.
    Device,
}

/// What an error is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Class {
    /// Its kind.
    pub kind: ErrorKind,
    /// The errno of a system call with this outcome.
    pub errno: i32,
}

/// An error that has a class.
pub trait Classified {
    /// Its kind and its errno.
    fn class(&self) -> Class;

    /// Its kind.
    fn kind(&self) -> ErrorKind {
        self.class().kind
    }
}

impl Class {
    /// The image is damaged.
    pub const DAMAGE: Class = Class { kind: ErrorKind::Corruption, errno: errno::EUCLEAN };
    /// Data differs from what was written.
    pub const DATA: Class = Class { kind: ErrorKind::Corruption, errno: errno::EIO };
    /// The hardware failed.
    pub const DEVICE: Class = Class { kind: ErrorKind::Device, errno: errno::EIO };
    /// The request makes no sense.
    pub const USAGE: Class = Class { kind: ErrorKind::Usage, errno: errno::EINVAL };

    /// A refusal.
    pub const fn refusal(errno: i32) -> Class {
        Class { kind: ErrorKind::Refusal, errno }
    }

    /// An error of the host's system: a failure or a refusal.
    pub fn of_io(error: &io::Error) -> Class {
        let errno = errno::of(error);
        let failed = [errno::EIO, errno::ENXIO, errno::ENODEV, errno::EREMOTEIO].contains(&errno);
        Class { kind: if failed { ErrorKind::Device } else { ErrorKind::Refusal }, errno }
    }
}

/// Linux errno values, which are the same on every architecture that we meet.
#[allow(missing_docs, reason = "errno(3) documents them")]
pub mod errno {
    /// Of an error of the host's system. The numbers are those of Linux everywhere: other systems have others, so there it is the kind of the
    /// error that decides.
    pub fn of(error: &std::io::Error) -> i32 {
        match error.raw_os_error() {
            Some(number) if cfg!(target_os = "linux") => number,
            Some(_) => of_kind(error.kind()),
            None => EIO,
        }
    }

    /// What Linux calls errors of a kind; `EIO` where the kind says nothing.
    pub(super) fn of_kind(kind: std::io::ErrorKind) -> i32 {
        use std::io::ErrorKind as Kind;
        match kind {
            Kind::NotFound => ENOENT,
            Kind::PermissionDenied => EACCES,
            Kind::AlreadyExists => EEXIST,
            Kind::NotADirectory => ENOTDIR,
            Kind::IsADirectory => EISDIR,
            Kind::DirectoryNotEmpty => ENOTEMPTY,
            Kind::ReadOnlyFilesystem => EROFS,
            Kind::InvalidInput => EINVAL,
            Kind::InvalidFilename => ENAMETOOLONG,
            Kind::StorageFull => ENOSPC,
            Kind::QuotaExceeded => EDQUOT,
            Kind::FileTooLarge => EFBIG,
            Kind::ResourceBusy => EBUSY,
            Kind::WouldBlock => EAGAIN,
            Kind::Interrupted => EINTR,
            Kind::CrossesDevices => EXDEV,
            Kind::TooManyLinks => EMLINK,
            Kind::BrokenPipe => EPIPE,
            Kind::OutOfMemory => ENOMEM,
            Kind::Unsupported => EOPNOTSUPP,
            _ => EIO,
        }
    }

    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const EINTR: i32 = 4;
    pub const EIO: i32 = 5;
    pub const ENXIO: i32 = 6;
    pub const E2BIG: i32 = 7;
    pub const EAGAIN: i32 = 11;
    pub const ENOMEM: i32 = 12;
    pub const EACCES: i32 = 13;
    pub const EBUSY: i32 = 16;
    pub const EEXIST: i32 = 17;
    pub const EXDEV: i32 = 18;
    pub const ENODEV: i32 = 19;
    pub const ENOTDIR: i32 = 20;
    pub const EISDIR: i32 = 21;
    pub const EINVAL: i32 = 22;
    pub const ENFILE: i32 = 23;
    pub const EMFILE: i32 = 24;
    pub const EFBIG: i32 = 27;
    pub const ENOSPC: i32 = 28;
    pub const EROFS: i32 = 30;
    pub const EMLINK: i32 = 31;
    pub const EPIPE: i32 = 32;
    pub const ERANGE: i32 = 34;
    pub const ENAMETOOLONG: i32 = 36;
    pub const ENOTEMPTY: i32 = 39;
    pub const ELOOP: i32 = 40;
    pub const ENODATA: i32 = 61;
    pub const EOVERFLOW: i32 = 75;
    pub const EOPNOTSUPP: i32 = 95;
    pub const ENOTCONN: i32 = 107;
    pub const EINPROGRESS: i32 = 115;
    pub const ESTALE: i32 = 116;
    pub const EUCLEAN: i32 = 117;
    pub const EREMOTEIO: i32 = 121;
    pub const EDQUOT: i32 = 122;
    pub const ECANCELED: i32 = 125;
}

/// Compares the class of every variant of an error enum with a table. A variant without a row does not compile.
#[doc(hidden)]
#[macro_export]
macro_rules! assert_classes {
    ($error:ident { $($variant:ident: $value:expr => $class:expr,)* }) => {{
        #[allow(unreachable_patterns, reason = "some have several rows")]
        #[deny(clippy::wildcard_enum_match_arm)]
        let row_of = |error: &$error| match error { $($error::$variant { .. } => stringify!($variant),)* };
        $({
            let value: $error = $value;
            assert_eq!(row_of(&value), stringify!($variant));
            assert_eq!($crate::Classified::class(&value), $class, "{value:?}");
        })*
    }};
}

/// `From` impls of an error enum, one for each `Variant(Error)`. The error is converted into what the variant holds: that is the error
/// in a `Box`, or another error that it converts into.
#[doc(hidden)]
#[macro_export]
macro_rules! error_from {
    ($error:ident { $($variant:ident($from:ty),)* }) => { $(
        impl From<$from> for $error {
            fn from(error: $from) -> $error {
                $error::$variant(error.into())
            }
        }
    )* };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a host that fails is reported from one that refuses.
    #[test]
    fn of_the_host() {
        let of = |errno| Class::of_io(&io::Error::from_raw_os_error(errno));
        assert_eq!(of(errno::EIO), Class::DEVICE);
        assert_eq!(of(errno::ENOENT), Class::refusal(errno::ENOENT));
        assert_eq!(Class::of_io(&io::Error::other("odd")), Class::DEVICE);
    }

    /// Goal: errors of systems that number them otherwise get Linux's numbers. Method: the kinds that Rust makes of Linux's numbers lead back to them.
    #[test]
    fn kinds_have_numbers() {
        let numbers = [
            errno::ENOENT,
            errno::EACCES,
            errno::EEXIST,
            errno::ENOTDIR,
            errno::EISDIR,
            errno::ENOTEMPTY,
            errno::EROFS,
            errno::EINVAL,
            errno::ENAMETOOLONG,
            errno::ENOSPC,
            errno::EDQUOT,
            errno::EFBIG,
            errno::EBUSY,
            errno::EAGAIN,
            errno::EINTR,
            errno::EXDEV,
            errno::EMLINK,
            errno::EPIPE,
            errno::ENOMEM,
            errno::EOPNOTSUPP,
            errno::EIO,
        ];
        for number in numbers {
            assert_eq!(errno::of_kind(io::Error::from_raw_os_error(number).kind()), number, "{number}");
        }
    }
}

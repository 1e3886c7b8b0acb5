//! Errors as errnos for the kernel.

use oleo_fs::FsError;

/// An errno, positive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) i32);

macro_rules! errnos {
    ($($name:ident = $value:literal),* $(,)?) => {
        #[allow(dead_code, reason = "a table")]
        impl Errno {
            $(pub(crate) const $name: Errno = Errno($value);)*
        }
    };
}

// The values of Linux on every architecture that we meet.
errnos! {
    EPERM = 1, ENOENT = 2, EIO = 5, ENXIO = 6, EACCES = 13, EBUSY = 16, EEXIST = 17, EXDEV = 18, ENOTDIR = 20, EISDIR = 21, EINVAL = 22,
    ENOTTY = 25, EFBIG = 27, EROFS = 30, ERANGE = 34, ENOSYS = 38, ENODATA = 61, EOPNOTSUPP = 95, ETIMEDOUT = 110, ESTALE = 116,
}

impl From<&FsError> for Errno {
    fn from(error: &FsError) -> Errno {
        Errno(error.errno())
    }
}

impl From<FsError> for Errno {
    fn from(error: FsError) -> Errno {
        Errno(error.errno())
    }
}

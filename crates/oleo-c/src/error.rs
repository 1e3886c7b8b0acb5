//! Errors: a negative errno as the result, a message and a kind for the thread.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use oleo::Error;
use oleo::error::{ErrorKind, FsError};

/// Why a call did nothing, or not all.
pub(crate) struct Failure {
    errno: c_int,
    kind: &'static CStr,
    text: String,
}

impl Failure {
    pub(crate) fn invalid(text: String) -> Failure {
        Failure { errno: libc::EINVAL, kind: c"usage", text }
    }

    pub(crate) fn null(name: &str) -> Failure {
        Failure::invalid(format!("{name} is a null pointer"))
    }

    pub(crate) fn bad_handle(what: &str) -> Failure {
        Failure { errno: libc::EBADF, kind: c"usage", text: format!("this is no open {what}") }
    }

    pub(crate) fn no_room(what: &str, bytes: usize) -> Failure {
        Failure { errno: libc::ERANGE, kind: c"refusal", text: format!("{what} has {bytes} bytes") }
    }

    pub(crate) fn not_there(text: String) -> Failure {
        Failure { errno: libc::ENODATA, kind: c"refusal", text }
    }
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Failure {
        Error::from(error).into()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let kind = match error.kind() {
            ErrorKind::Refusal => c"refusal",
            ErrorKind::Usage => c"usage",
            ErrorKind::Corruption => c"corruption",
            ErrorKind::Device => c"device",
        };
        // A result of 0 means that all is well.
        let errno = if error.errno() > 0 { error.errno() } else { libc::EIO };
        Failure { errno, kind, text: error.to_string() }
    }
}

struct Last {
    text: CString,
    kind: &'static CStr,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::new(Last { text: CString::default(), kind: c"" });
}

fn keep(failure: Failure) -> c_int {
    let mut text = failure.text.into_bytes();
    // A message ends in C where it has a zero byte.
    text.retain(|&byte| byte != 0);
    let text = CString::new(text).unwrap_or_default();
    LAST.with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = Last { text, kind: failure.kind };
        }
    });
    -failure.errno
}

/// Runs what a function of the header does. A panic is a bug of ours, and an error like others for the caller.
pub(crate) fn call(work: impl FnOnce() -> Result<i64, Failure>) -> i64 {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => done,
        Ok(Err(failure)) => keep(failure).into(),
        Err(panic) => {
            let why = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let why = why.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            let text = format!("a bug in Oleo, please report it: {why}");
            keep(Failure { errno: libc::ENOTRECOVERABLE, kind: c"bug", text }).into()
        }
    }
}

/// The same where success says no more than that.
pub(crate) fn status(work: impl FnOnce() -> Result<(), Failure>) -> c_int {
    c_int::try_from(call(|| work().map(|()| 0))).unwrap_or(-libc::EIO)
}

/// What went wrong in the last call of this thread that returned a negative number. Empty before the first. It stays until the next
/// such call of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn oleo_error_message() -> *const c_char {
    LAST.with(|last| last.try_borrow().map_or(c"".as_ptr(), |last| last.text.as_ptr()))
}

/// Of which kind that was: "refusal" (it cannot be done as asked), "usage" (the call makes no sense), "corruption" (the image is damaged),
/// "device" (what it lies on failed), or "bug". It stays for ever.
#[unsafe(no_mangle)]
pub extern "C" fn oleo_error_kind() -> *const c_char {
    LAST.with(|last| last.try_borrow().map_or(c"".as_ptr(), |last| last.kind.as_ptr()))
}

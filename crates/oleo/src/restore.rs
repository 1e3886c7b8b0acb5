//! Copies files out of an image: into a directory of the host (on Linux), or as a tar archive.
//!
//! Kept: contents, holes, types, modes, owners, times of access and modification, hard links, extended attributes
//! (access lists and capabilities among them), device nodes, fifos, sockets. Nested subvolumes become directories.
//! What the host or the caller's rights do not allow (owners, devices, some attributes) is left out and listed in the
//! report. Times of change and birth cannot be set on a host; a tar archive keeps them.
//!
//! An entry that cannot be restored, because the image is damaged or the host refuses it, does not end a restore: the error is
//! reported, the rest is restored, and the result is [`Error::Incomplete`]. Bytes of a file that cannot be read are zeros. Only
//! a host that accepts nothing more (no space, too many open files, an I/O error) ends a restore.
//!
//! The image may come from a stranger. A file whose owner could not be kept loses its set-user-ID and set-group-ID bits, so that no
//! program runs as the user who restored it. Unless exact modes are requested, the umask applies and set-ID bits are dropped
//! for all users but root. A directory that is reached twice is entered once, with a warning. Depth has no bound: memory grows with
//! the number of levels, and the number of open directories is bounded.

mod damage;
#[cfg(target_os = "linux")]
mod dir;
mod place;
pub(crate) mod report;
mod tar;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use oleo_format::errno;
use oleo_mkfs::OnProgress;

use crate::{Error, Result};

#[cfg(target_os = "linux")]
pub use self::dir::restore_to_dir;
pub use self::report::RestoreReport;
pub use self::tar::restore_to_tar;

/// How to restore.
#[derive(Default)]
#[non_exhaustive]
pub struct RestoreOptions {
    /// Leave nested subvolumes out (an empty directory stands for each).
    pub one_subvol: bool,
    /// Threads; 0 for one per core. A tar archive is read by one and written by another, unless this is 1: then the caller's does both.
    pub threads: usize,
    /// Keep modes regardless of the umask; always so for root and in a tar archive.
    pub exact_modes: bool,
    /// Create no device nodes, and no files with set-user-ID or set-group-ID bits. A tar archive always has them.
    pub no_special: bool,
    /// Called as work goes on.
    pub on_progress: Option<OnProgress>,
    /// Called with each error that concerns one entry; the error names it.
    pub on_failure: Option<OnFailure>,
}

/// Called for an entry that was not restored, or not whole.
pub type OnFailure = Box<dyn Fn(&Error) + Send + Sync>;

oleo_format::setters!(RestoreOptions {
    one_subvol: bool,
    threads: usize,
    exact_modes: bool,
    no_special: bool,
    on_progress: Option<OnProgress>,
    on_failure: Option<OnFailure>,
});

/// Errors that concern one entry each.
#[derive(Default)]
struct Failures {
    count: AtomicU64,
    first: OnceLock<Error>,
}

impl Failures {
    /// Counts and reports one; an error that ends the restore is returned.
    fn note(&self, error: Error, options: &RestoreOptions) -> Result<()> {
        if ends_all(&error) {
            return Err(error);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        if let Some(on_failure) = &options.on_failure {
            on_failure(&error);
        }
        // Only the first is kept.
        let _ = self.first.set(error);
        Ok(())
    }

    /// The result of a restore that has come to its end.
    fn result(self, mut report: RestoreReport) -> Result<RestoreReport> {
        report.failed = self.count.into_inner();
        match self.first.into_inner() {
            None => Ok(report),
            Some(first) => Err(Error::Incomplete { report: Box::new(report), first: Box::new(first) }),
        }
    }
}

/// Whether an error would repeat for every further entry.
fn ends_all(error: &Error) -> bool {
    const ALL: [i32; 8] = [
        errno::ENOSPC,
        errno::EDQUOT,
        errno::EROFS,
        errno::EIO,
        errno::EMFILE,
        errno::ENFILE,
        errno::ENOMEM,
        errno::ENOTCONN,
    ];
    match error {
        Error::At { source, .. } | Error::Hinted { source, .. } => ends_all(source),
        Error::Host { source, .. } => source.raw_os_error().is_some_and(|errno| ALL.contains(&errno)),
        Error::Output(_) => true,
        _ => false,
    }
}

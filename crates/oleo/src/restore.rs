//! Copies files out of an image: into a directory of the host (on Linux), or as a tar archive.
//!
//! Kept: contents, holes, types, modes, owners, times of access and modification, hard links, extended attributes
//! (access lists and capabilities among them), device nodes, fifos, sockets. Nested subvolumes become directories.
//! What the host or the caller's rights do not allow (owners, devices, some attributes) is left out and listed in the
//! report. Times of change and birth cannot be set on a host; a tar archive keeps them.
//!
//! The image may come from a stranger. A file whose owner could not be kept loses its set-user-ID and set-group-ID bits, so that no
//! program runs as the user who restored it. Unless exact modes are requested, the umask applies and set-ID bits are dropped
//! for everybody but root. A directory that is reached twice is entered once, with a warning.

#[cfg(target_os = "linux")]
mod dir;
mod tar;

use oleo_mkfs::{OnProgress, Progress};

#[cfg(target_os = "linux")]
pub use self::dir::restore_to_dir;
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
}

oleo_format::setters!(RestoreOptions {
    one_subvol: bool,
    threads: usize,
    exact_modes: bool,
    no_special: bool,
    on_progress: Option<OnProgress>,
});

/// What a restore did.
#[derive(Clone, Debug, Default)]
pub struct RestoreReport {
    /// The numbers.
    pub done: Progress,
    /// What could not be kept.
    pub warnings: Vec<String>,
    /// Names whose owner could not be kept, because only root can give files away.
    pub owners_lost: u64,
}

/// Warnings that are kept; the rest is counted.
const WARNINGS_MAX: usize = 100;

impl RestoreReport {
    fn warn(&mut self, text: impl FnOnce() -> String) {
        match self.warnings.len() {
            n if n < WARNINGS_MAX => self.warnings.push(text()),
            WARNINGS_MAX => self.warnings.push("… and more of these".into()),
            _ => {}
        }
    }
}

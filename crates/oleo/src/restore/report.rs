//! The result of a restore.

use oleo_mkfs::Progress;

/// The result of a restore.
#[derive(Clone, Debug, Default)]
pub struct RestoreReport {
    /// The numbers.
    pub done: Progress,
    /// What could not be kept.
    pub warnings: Vec<String>,
    /// Names whose owner could not be kept, because only root can give files away.
    pub owners_lost: u64,
    /// Entries that were not restored, or not whole. The contents of a directory that was not restored are not counted.
    pub failed: u64,
}

/// Warnings that are kept; the rest is counted.
const WARNINGS_MAX: usize = 100;

impl RestoreReport {
    pub(super) fn warn(&mut self, text: impl FnOnce() -> String) {
        match self.warnings.len() {
            n if n < WARNINGS_MAX => self.warnings.push(text()),
            WARNINGS_MAX => self.warnings.push("… and more of these".into()),
            _ => {}
        }
    }
}

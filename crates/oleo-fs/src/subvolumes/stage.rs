//! Running a change of whole trees with all other changes in the trees and other operations kept out.

use oleo_txn::{Need, Staged, TxnError};

use crate::FsError;
use crate::fs::Fs;

/// What making, copying or condemning a tree may need: paths in four trees.
pub(super) const TREE_NEED: Need = Need { items: 64, bytes: 8192, releasing: false };

impl Fs {
    /// Runs `f` with all changes in the trees and everybody else kept out.
    pub(super) fn staged<R: Send>(
        &self,
        f: impl FnOnce(&mut Staged<'_>) -> Result<R, FsError> + Send,
    ) -> Result<R, FsError> {
        self.staged_with(TREE_NEED, f)
    }

    /// The same with this reserved. What `f` refuses is no failure of the file system.
    pub fn staged_with<R: Send>(
        &self,
        need: Need,
        f: impl FnOnce(&mut Staged<'_>) -> Result<R, FsError> + Send,
    ) -> Result<R, FsError> {
        // Reserves for the open transaction; what it reserved stays taken until the commit.
        drop(self.engine().join(need)?);
        self.on_stage(f)
    }

    pub(super) fn on_stage<R: Send>(
        &self,
        f: impl FnOnce(&mut Staged<'_>) -> Result<R, FsError> + Send,
    ) -> Result<R, FsError> {
        let mut outcome = None;
        self.engine().stage(|s| {
            outcome = Some(f(s));
            Ok::<(), TxnError>(())
        })?;
        outcome.unwrap_or(Err(FsError::Invalid("the stage did not run")))
    }
}

//! Running a change of whole trees with all other changes in the trees and other operations kept out.

use oleo_txn::{Claim, Need, Staged, TxnError};

use crate::FsError;
use crate::fs::Fs;

/// What making or copying a tree may need: the tree's root, its entry in a directory, and items of bookkeeping trees.
const MAKE_NEED: Need = Need { items: 16, row: 8, bytes: 8192, claim: Claim::Ordinary };
/// What condemning a tree may need: its entry in a directory goes, which is two items and the directory's own; the others are in bookkeeping trees.
const CONDEMN_NEED: Need = Need { items: 12, row: 9, bytes: 512, claim: Claim::Reclaim };

impl Fs {
    /// Runs `f`, which makes a tree, with all changes in the trees and all operations kept out.
    pub(super) fn staged_to_make<R: Send>(
        &self,
        f: impl FnOnce(&mut Staged<'_>) -> Result<R, FsError> + Send,
    ) -> Result<R, FsError> {
        self.staged_with(MAKE_NEED, f)
    }

    /// The same if `f` condemns a tree. If there is no room even for that, trees that were condemned before are taken apart first.
    pub(super) fn staged_to_condemn<R: Send>(
        &self,
        mut f: impl FnMut(&mut Staged<'_>) -> Result<R, FsError> + Send,
    ) -> Result<R, FsError> {
        // Ends since each round takes a part of those apart.
        loop {
            match self.staged_with(CONDEMN_NEED, &mut f) {
                Err(FsError::NoSpace) if self.core().drop_some()? => {}
                done => return done,
            }
        }
    }

    /// The same with `need` reserved. What `f` refuses is no failure of the file system.
    pub fn staged_with<R: Send>(
        &self,
        need: Need,
        f: impl FnOnce(&mut Staged<'_>) -> Result<R, FsError> + Send,
    ) -> Result<R, FsError> {
        let mut outcome = None;
        self.engine().stage_with(need, |s| {
            outcome = Some(f(s));
            Ok::<(), TxnError>(())
        })?;
        outcome.unwrap_or(Err(FsError::Invalid("the stage did not run")))
    }
}

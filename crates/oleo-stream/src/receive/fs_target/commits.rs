//! Commits in the background: the thread of a commit continues writing once the transaction is frozen.

use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};

use oleo_fs::{Fs, FsError};

use super::super::ApplyError;

/// One commit at a time.
#[derive(Default)]
pub(super) struct Commits(Option<JoinHandle<Result<(), FsError>>>);

impl Commits {
    /// Starts a commit, which does not contain what is done after this call. Fails if the previous commit failed.
    pub fn begin(&mut self, fs: &Fs) -> Result<(), ApplyError> {
        self.finish()?;
        let fs = fs.clone();
        let (frozen, heard) = sync_channel(1);
        let commit = move || {
            let on_frozen = || {
                let _reported = frozen.try_send(());
            };
            fs.commit_notifying(&on_frozen).map(drop)
        };
        let thread = thread::Builder::new().name("commit".to_owned()).spawn(commit);
        self.0 = Some(thread.map_err(|source| ApplyError::Host { what: "start a thread", source })?);
        // The channel also ends with the commit, if nothing was frozen.
        let _ended = heard.recv();
        Ok(())
    }

    /// Waits for the one that was begun.
    pub fn finish(&mut self) -> Result<(), ApplyError> {
        match self.0.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(error))) => Err(error.into()),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Commits {
    fn drop(&mut self) {
        // A panic has reported itself, and a failed commit leaves a file system that reports it.
        let _ended = self.0.take().map(JoinHandle::join);
    }
}

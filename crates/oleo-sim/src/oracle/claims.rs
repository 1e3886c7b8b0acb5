//! Claims on ids of file systems: the kernel takes two images with one id for one file system, so two test processes must not have
//! such images attached at the same time.
//!
//! A claim is a locked file named after the id, in the directory for temporary files. Within a process claims are counted: the
//! devices of one file system share one. The file is removed when the claim ends; a process that waited for the removed file sees
//! that its name is gone, and tries again.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::read_super;

/// How long another process may keep an id. Tests with images of one id have them attached for seconds.
const WAIT_MAX: Duration = Duration::from_secs(240);
const POLL: Duration = Duration::from_millis(20);

static HELD: Mutex<BTreeMap<u128, (File, usize)>> = Mutex::new(BTreeMap::new());

/// A claim; it ends when it is dropped.
#[derive(Debug)]
pub(super) struct Claim(u128);

fn path_of(id: u128) -> PathBuf {
    std::env::temp_dir().join(format!("oleo-claim-{id:032x}"))
}

/// Claims the id in the superblock of an image; `None` if there is no superblock.
///
/// # Errors
/// If another process has it for too long.
pub(super) fn claim(image: &Path) -> Result<Option<Claim>> {
    let Some(id) = read_super(image).map(|sb| sb.fsid().as_u128()) else { return Ok(None) };
    let begun = Instant::now();
    loop {
        let mut held = HELD.lock().expect("lock");
        if let Some((_, count)) = held.get_mut(&id) {
            *count += 1;
            return Ok(Some(Claim(id)));
        }
        if let Some(file) = lock(&path_of(id))? {
            held.insert(id, (file, 1));
            return Ok(Some(Claim(id)));
        }
        drop(held);
        if begun.elapsed() > WAIT_MAX {
            bail!("another process has the file system {id:032x} of {} attached", image.display());
        }
        std::thread::sleep(POLL);
    }
}

/// Locks the file of this name, if no other process has it.
fn lock(path: &Path) -> Result<Option<File>> {
    let file = File::options().create(true).append(true).open(path)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Ok(None),
        other => other?,
    }
    let same = fs::metadata(path).is_ok_and(|now| file.metadata().is_ok_and(|mine| mine.ino() == now.ino()));
    Ok(same.then_some(file))
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut held = HELD.lock().expect("lock");
        let Some((_, count)) = held.get_mut(&self.0) else { return };
        *count -= 1;
        if *count == 0 {
            // Removed while it is locked.
            let _ = fs::remove_file(path_of(self.0));
            held.remove(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: one holder at a time, also after the file was removed and made again.
    #[test]
    fn one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("claim");
        let first = lock(&path).unwrap().expect("free");
        assert!(lock(&path).unwrap().is_none(), "another descriptor is another holder");
        let waiting = File::options().append(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        drop(first);
        // A process that had opened the removed file would lock it; the name decides.
        waiting.try_lock().unwrap();
        let second = lock(&path).unwrap().expect("a new file");
        assert!(lock(&path).unwrap().is_none());
        drop(second);
    }
}

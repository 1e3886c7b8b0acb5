//! Names the files whose data a job could not read: the user has to restore or delete them before the job can succeed.

use oleo_format::Logical;
use oleo_fs::{Fs, FsError};
use oleo_txn::TxnError;
use oleo_volume::VolumeError;

use crate::JobError;
use crate::backrefs::{Referrer, referrers_at_commit};

/// Places in files that are named; the rest is counted.
const NAMED_MAX: usize = 8;

/// Adds the names of the files to an error about data without a good copy; other errors are returned as they are.
pub(crate) fn named(fs: &Fs, error: TxnError) -> JobError {
    let at = match &error {
        TxnError::Volume(volume) => match &**volume {
            VolumeError::NoGoodCopy { at, .. } => *at,
            _ => return error.into(),
        },
        _ => return error.into(),
    };
    match files_at(fs, at) {
        Some(files) => JobError::Unreadable { source: Box::new(error), files },
        None => error.into(),
    }
}

/// The files at an address, as a list; `None` if there are none, or if they cannot be found: the first error counts.
fn files_at(fs: &Fs, at: Logical) -> Option<String> {
    let found = referrers_at_commit(fs, at).ok()?;
    let mut files: Vec<String> = found.iter().take(NAMED_MAX).map(|place| name_of(fs, place)).collect();
    let more = found.len() - files.len();
    if more > 0 {
        files.push(format!("{more} more places"));
    }
    (!files.is_empty()).then(|| files.join(", "))
}

/// The first path of a file, and the place in it.
fn name_of(fs: &Fs, place: &Referrer) -> String {
    let path = || -> Result<Option<Vec<u8>>, FsError> {
        let inode = fs.inode(&fs.subvol(place.tree)?, place.ino)?;
        Ok(fs.paths(&inode)?.into_iter().next())
    };
    // A deleted file that is still open has no path, and the parents of a file may be damaged.
    let name = match path() {
        Ok(Some(path)) => path.escape_ascii().to_string(),
        _ => format!("inode {} of subvolume {}", place.ino, place.tree),
    };
    format!("{name} (at byte {})", place.at)
}

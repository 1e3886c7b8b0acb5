//! Scrub by library.

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod encoded;
mod sources;
mod streams;

use std::path::Path;

use crate::control::{Place, UnhealedShown};
use crate::{Image, Result};

pub use oleo_jobs::{
    Candidates, DeviceScrub, ScrubEnd, ScrubStatus, ScrubWant, Scrubber, Unhealed, WIDE_ROWS_LEN_MAX, Wanted, What,
};

pub use sources::Sources;

/// Where btrfs-progs keep the state of scrubs, and look for it.
pub const STATE_DIR: &str = "/var/lib/btrfs";

/// Names of files that are found for what could not be healed, all together.
const NAMES_MAX: usize = 10_000;

impl Image {
    /// Reads and verifies every copy of everything, and parity, and heals what is bad from what is good, if that is wanted; until it is done, or until
    /// [`Scrubber::cancel`] in another thread. [`Image::scrub_status`] returns what was found, and the progress meanwhile.
    ///
    /// Nothing of it is kept in a file, unless [`Scrubber::keep_in`] says where.
    ///
    /// # Errors
    /// One is under way, a device is not there, or nothing can be healed on an image that is open for reading only. Later failures are in the returned end.
    pub fn scrub(&self, want: ScrubWant) -> Result<ScrubEnd> {
        let number = self.scrubber().start(want)?;
        let here = self.scrubber().run();
        Ok(here.or_else(|| self.scrubber().wait_end(number).end).unwrap_or(ScrubEnd::Interrupted))
    }

    /// What the scrub under way, or the last one, has found.
    pub fn scrub_status(&self) -> ScrubStatus {
        self.scrubber().status()
    }

    /// What could not be healed, with the files that it is in.
    ///
    /// # Errors
    /// Trees cannot be read.
    pub fn scrub_unhealed(&self) -> Result<Vec<UnhealedShown>> {
        self.with_files(self.scrubber().unhealed())
    }

    /// Places that were healed, with the files that they are in.
    ///
    /// # Errors
    /// Trees cannot be read.
    pub fn scrub_healed(&self) -> Result<Vec<UnhealedShown>> {
        self.with_files(self.scrubber().healed())
    }

    fn with_files(&self, places: Vec<Unhealed>) -> Result<Vec<UnhealedShown>> {
        let mut names = 0;
        let mut shown = Vec::new();
        for place in places {
            let mut files = UnhealedShown { place, files: Vec::new(), more: 0 };
            if files.place.what == What::Data {
                self.add_files(&mut files, &mut names);
            }
            shown.push(files);
        }
        Ok(shown)
    }

    /// The files at a place that was bad. Trees that cannot be read have no names to give: the place stays without.
    fn add_files(&self, shown: &mut UnhealedShown, names: &mut usize) {
        let Ok(found) = oleo_jobs::referrers_at_commit(self.fs(), shown.place.at) else { return };
        for found in found {
            if *names >= NAMES_MAX {
                shown.more += 1;
                continue;
            }
            let mut place = Place::from(found);
            let inode = self.fs().subvol(found.tree).and_then(|subvol| self.fs().inode(&subvol, found.ino));
            if let Ok(paths) = inode.map_err(crate::Error::from).and_then(|inode| self.paths(&inode)) {
                place.paths = paths.into_iter().map(Into::into).collect();
            }
            *names += place.paths.len().max(1);
            shown.files.push(place);
        }
    }

    /// Has the state of scrubs kept in a directory, and found there.
    pub fn keep_scrubs_in(&self, dir: impl AsRef<Path>) {
        self.scrubber().keep_in(dir.as_ref());
    }
}

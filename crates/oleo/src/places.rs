//! Which files are at an address.

use oleo_format::Logical;
use oleo_fs::FsError;

use crate::control::Place;
use crate::{Image, Result};

impl Image {
    /// The files whose data is at a logical address, with their paths, in rising order.
    ///
    /// # Errors
    /// The address holds nothing or a tree block, there are too many, or the image is damaged.
    pub fn files_at(&self, at: Logical) -> Result<Vec<Place>> {
        let mut places = Vec::new();
        for found in oleo_jobs::referrers(self.fs(), at)? {
            let mut place = Place::from(found);
            // Deleted subvolumes that are not gone yet have no names.
            match self.fs().subvol(found.tree).and_then(|subvol| self.fs().inode(&subvol, found.ino)) {
                Ok(inode) => place.paths = self.paths(&inode)?.into_iter().map(Into::into).collect(),
                Err(FsError::NotFound | FsError::Stale) => {}
                Err(error) => return Err(error.into()),
            }
            places.push(place);
        }
        Ok(places)
    }
}

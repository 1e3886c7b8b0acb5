//! Streams for `btrfs receive` and [`Image::receive`], made of the subvolumes of an image.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let image = oleo::Image::create_in_memory(256 << 20)?;
//! use oleo::send::SendOptions;
//!
//! image.create_subvol("home")?;
//! image.write("home/file", b"contents")?;
//! let first = image.snapshot("home", "first", &oleo::SnapshotOptions::default().read_only(true))?;
//! image.write("home/other", b"more")?;
//! let second = image.snapshot("home", "second", &oleo::SnapshotOptions::default().read_only(true))?;
//!
//! let (mut whole, mut change) = (Vec::new(), Vec::new());
//! image.send(&[first], &SendOptions::default(), &mut whole)?;
//! image.send(&[second], &SendOptions::default().parent(Some(first)), &mut change)?;
//! assert!(change.len() < whole.len());
//! # Ok(())
//! # }
//! ```

use std::io::Write;

use oleo_format::TreeId;

use crate::{Image, Result};

pub use oleo_stream::{Hook, Progress, SendError, SendOptions, Sent};

impl Image {
    /// Writes a stream of read-only subvolumes, in this order. An image that is open for changes is committed first.
    ///
    /// # Errors
    /// A subvolume is not there or not read-only, the image is damaged, or the stream cannot be written. What was written
    /// then has no end, and receivers tell.
    pub fn send(&self, subvols: &[TreeId], options: &SendOptions<'_>, out: &mut (dyn Write + Send)) -> Result<Sent> {
        Ok(oleo_stream::send(self.fs(), subvols, options, out)?)
    }
}

//! Files out of streams of `btrfs send`, as sources of bytes: what each snapshot in them has at a path.
//!
//! Normal path: (1) [`StreamFiles::open`] reads every stream once, from its beginning to its end, and keeps which files it is about and where
//! their commands are (`lookup` in `oleo-stream`), not their contents; (2) for a place in a file, each snapshot is asked, the last first: what is packed there is
//! offered as the stream has it, then the bytes of the file.
//!
//! Memory: that of the indexes, [`INDEX_BYTES_MAX`] at most. Trust: streams may be anything; the steps for one sector are bounded by who asks.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use oleo_device::positioned::read_exact_at;
use oleo_format::Compression;
use oleo_format::stream::MAGIC;
use oleo_stream::lookup::{Chain, LookupError, Places, Steps, scan};

use crate::{Error, Result};

/// What the indexes of all streams may take in memory: of about three million files.
const INDEX_BYTES_MAX: usize = 1 << 30;

/// See the text of the module.
pub(super) struct StreamFiles {
    chain: Chain,
    files: Vec<File>,
    /// Which file each link is in.
    links: Vec<usize>,
}

/// Whether a file begins as a stream does.
pub(super) fn is_stream(path: &Path) -> bool {
    let mut magic = [0; MAGIC.len()];
    let is_file = path.metadata().is_ok_and(|meta| meta.is_file());
    is_file && File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == *MAGIC
}

impl StreamFiles {
    /// Of these streams, in any order.
    ///
    /// # Errors
    /// One cannot be read or is damaged, is built on one that is not among them, or they are about too many files.
    pub(super) fn open(paths: &[&PathBuf]) -> Result<StreamFiles> {
        let (mut files, mut found) = (Vec::new(), Vec::new());
        let mut left = INDEX_BYTES_MAX;
        for path in paths {
            let file = File::open(path).map_err(Error::host("open", *path))?;
            let subvols = scan(&file, &mut left).map_err(|error| Error::from(error).at(path.display()))?;
            found.extend(subvols.into_iter().map(|subvol| (files.len(), subvol)));
            files.push(file);
        }
        let (chain, links) = Chain::of_scanned(found)?;
        Ok(StreamFiles { chain, files, links })
    }

    /// Offers what the snapshots have at a path, until something is taken: what is packed as it is stored, and then bytes of the file. What cannot be
    /// read is passed over, and so is what takes more steps than there are.
    pub(super) fn offer(
        &self,
        path: &[u8],
        made: &Made,
        steps: &mut Steps,
        take: &mut dyn FnMut(Offer<'_>) -> bool,
    ) -> bool {
        let mut places = self;
        let newest_first = || (0..self.chain.links()).rev();
        if made.packed.is_some() {
            for link in newest_first() {
                if let Ok(Some((kind, bytes))) = self.chain.packed_at(link, path, made.begins, &mut places, steps)
                    && take(Offer::Packed(kind, &bytes))
                {
                    return true;
                }
            }
        }
        // Most snapshots have what the next one has.
        let mut last = Vec::new();
        for link in newest_first() {
            if let Ok(Some(bytes)) = self.chain.read_at(link, path, (made.at, made.len), &mut places, steps)
                && bytes != last
            {
                if take(Offer::Plain(&bytes)) {
                    return true;
                }
                last = bytes;
            }
        }
        false
    }
}

/// Which bytes of a file a sector is made of.
pub(super) struct Made {
    pub at: u64,
    pub len: usize,
    /// Where in the file the part of it begins that names the extent.
    pub begins: u64,
    /// Bytes of a sector.
    pub sector: usize,
    /// How they are compressed, and where in that the sector is.
    pub packed: Option<(Compression, usize)>,
}

/// Bytes that are offered.
pub(super) enum Offer<'b> {
    /// Of a file.
    Plain(&'b [u8]),
    /// As they are stored, packed in this way, without what fills their last sector.
    Packed(Compression, &'b [u8]),
    /// The wanted sector as another volume stores it.
    Stored(&'b [u8]),
}

impl Places for &StreamFiles {
    fn get(&mut self, link: usize, at: u64, len: u32) -> std::result::Result<Vec<u8>, LookupError> {
        let mut bytes = vec![0; len as usize];
        let read = |error: io::Error| LookupError::Read(Box::new(error));
        read_exact_at(&self.files[self.links[link]], &mut bytes, at).map_err(read)?;
        Ok(bytes)
    }
}

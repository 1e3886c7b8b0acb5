//! Shares data between the host's files and the image.
//!
//! Data is read, summed and written as always; afterwards the host is asked to let the image's range and the file's
//! range share their blocks. The bytes are the same before and after, so an interruption does no harm. If a source
//! changes in between, its time of change shows it, and the file is refused.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use oleo_format::{Compression, Logical};
use oleo_fs::data::ExtentKind;
use oleo_fs::{Fs, InodeRef};

use crate::MkfsError;

/// What hosts that share blocks can share: whole blocks of this many bytes.
const HOST_BLOCK: u64 = 4096;

/// The image as a file of the host.
#[derive(Debug)]
pub struct Reflink {
    image: File,
    /// The offset in the file at which the image begins, in bytes.
    base: u64,
}

impl Reflink {
    /// For an image that begins at `base` bytes in a file that is open for writing.
    ///
    /// # Errors
    /// The host cannot share blocks between files in that place.
    pub fn new(path: &Path, base: u64) -> Result<Reflink, MkfsError> {
        let failed = |cause| MkfsError::Source { what: "open", path: path.to_owned(), cause };
        let image = File::options().read(true).write(true).open(path).map_err(failed)?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::CLOEXEC;
        let tried = rustix::fs::open(dir, flags, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
            .and_then(|probe| rustix::fs::ioctl_ficlone(&probe, &image));
        match tried {
            Ok(()) => Ok(Reflink { image, base }),
            Err(errno) => {
                let what = format!("sharing data with files of the host at {} ({errno})", dir.display());
                Err(MkfsError::Unsupported(what))
            }
        }
    }

    /// Lets a range of the file in the image share the data of a file of the host.
    pub(super) fn share(&self, fs: &Fs, inode: &InodeRef, source: &Path, at: u64, len: u64) -> Result<(), MkfsError> {
        let failed = |what: &'static str| {
            let path = source.to_owned();
            move |cause: std::io::Error| MkfsError::Source { what, path, cause }
        };
        let file = File::open(source).map_err(failed("open"))?;
        let before = file.metadata().map_err(failed("stat"))?;
        if before.dev() != self.image.metadata().map_err(failed("stat"))?.dev() {
            return Ok(());
        }
        for extent in fs.extents(inode, at, len)? {
            let (ExtentKind::Data, Compression::None, Some(disk)) = (extent.kind, extent.compression, extent.disk)
            else {
                continue;
            };
            let end = (extent.at + extent.len).min(at + len) & !(HOST_BLOCK - 1);
            let mut from = extent.at;
            while from < end {
                let Some((to, run)) = self.place(fs, Logical(disk.0 + (from - extent.at)), end - from)? else { break };
                let (mut source_at, mut image_at) = (from, to);
                let step = usize::try_from(run).unwrap_or(usize::MAX);
                let copied =
                    rustix::fs::copy_file_range(&file, Some(&mut source_at), &self.image, Some(&mut image_at), step);
                match copied.map_err(|e| failed("share")(e.into()))? {
                    0 => break,
                    n => from += n as u64,
                }
            }
        }
        let after = file.metadata().map_err(failed("stat"))?;
        if (before.ctime(), before.ctime_nsec()) != (after.ctime(), after.ctime_nsec()) {
            let cause = std::io::Error::other("it was changed meanwhile");
            return Err(failed("share")(cause));
        }
        Ok(())
    }

    /// The offset of an address in the image file, and how many bytes follow there; `None` if data has several copies
    /// or is not block-aligned on the host.
    fn place(&self, fs: &Fs, at: Logical, len: u64) -> Result<Option<(u64, u64)>, MkfsError> {
        let chunk = fs.engine().volume().chunk_of(at)?;
        if chunk.stripes.len() != 1 {
            return Ok(None);
        }
        let inside = at.0 - chunk.start.0;
        let to = self.base + chunk.stripes[0].offset.0 + inside;
        let run = len.min(chunk.len.0 - inside);
        Ok(to.is_multiple_of(HOST_BLOCK).then_some((to, run)))
    }
}

//! Copies the bytes of an image from one place to another: a volume on an object store to a file that the kernel mounts,
//! a file to a store, an export to a file.
//!
//! What is copied is of one moment where the source is a volume on a store or a pin of one; of others, nobody may change it
//! meanwhile. Holes stay holes, and so do blocks of zeros where the target is known to hold nothing else.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use oleo_device::{Device, Extent, ExtentKind, FileDevice, FileOptions, ReadReq, WriteReq, Zeroing};
use oleo_fs::errno;

use crate::device::open::open_place;
use crate::device::{Place, PlaceOptions};
use crate::{Error, Hint, Result};

/// Bytes of one read.
const PIECE_LEN: u64 = 1 << 20;
/// How many are under way together.
const PIECES: usize = 16;
/// Blocks of zeros of this length are not written.
const ZEROS_LEN: usize = 64 << 10;
/// How many extents are asked for at a time.
const EXTENTS: usize = 1024;

/// What is called now and then, with the bytes that were looked at and those that there are.
pub type OnCopied = Box<dyn Fn(u64, u64) + Send + Sync>;

/// How to copy.
#[derive(Default)]
#[non_exhaustive]
pub struct CopyOptions {
    /// Overwrite what is there.
    pub force: bool,
    /// Where in a source file the image begins, in bytes.
    pub offset: u64,
    /// How devices are reached that are no files of this machine.
    pub places: PlaceOptions,
    /// Who is told how far it is.
    pub on_copied: Option<OnCopied>,
}

oleo_format::setters!(CopyOptions { force: bool, offset: u64, places: PlaceOptions, on_copied: Option<OnCopied> });

/// What was copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copied {
    /// Length of the image, bytes.
    pub len: u64,
    /// Bytes that were written; the rest are zeros.
    pub written: u64,
}

/// Copies an image. The target is made if it is a file or a volume on a store; a block device or export has to be large enough.
///
/// # Errors
/// The target holds something and `force` is not set, it is the source, or it is too small; a device failed.
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>, options: &CopyOptions) -> Result<Copied> {
    let (from, to) = (from.as_ref(), to.as_ref());
    let source_place = Place::parse(from)?;
    let target_place = Place::parse(to)?;
    // A target that is not there yet has no identity.
    if target_place.identity().ok().is_some_and(|id| source_place.identity().ok() == Some(id)) {
        return Err(Error::Request("the source and the target are the same".into()));
    }
    let how = FileOptions::default().offset(options.offset);
    let source = open_place(&source_place, &how, &options.places).map_err(|error| error.of_image(from))?;
    let target = target(&target_place, source.len(), options).map_err(|error| error.of_image(to))?;
    let written = copy_bytes(source.as_ref(), &target, options)?;
    target.device.flush()?;
    Ok(Copied { len: source.len(), written })
}

/// Where the bytes go.
struct Target {
    device: Arc<dyn Device>,
    /// It holds zeros only.
    empty: bool,
}

fn target(place: &Place, len: u64, options: &CopyOptions) -> Result<Target> {
    match place {
        Place::File(path) => match fs::metadata(path) {
            Ok(meta) if !meta.is_file() => large_enough(place, len, options),
            Ok(meta) if meta.len() > 0 && !options.force => Err(holds("something already")),
            Ok(_) | Err(_) => {
                let device = FileDevice::open(path, &FileOptions::default().write(true).create(true))?;
                device.set_len(0)?;
                device.set_len(len)?;
                Ok(Target { device: Arc::new(device), empty: true })
            }
        },
        #[cfg(feature = "remote")]
        Place::Remote(url) => {
            let device = oleo_remote::create_at(url, len, options.force, &options.places.remote)?;
            Ok(Target { device: Arc::new(device), empty: true })
        }
        #[cfg(feature = "nbd")]
        Place::Nbd(_) => large_enough(place, len, options),
    }
}

/// What has a length of its own.
fn large_enough(place: &Place, len: u64, options: &CopyOptions) -> Result<Target> {
    let device = open_place(place, &FileOptions::default().write(true), &options.places)?;
    if device.len() < len {
        let text = format!("has {} bytes; {len} are needed", device.len());
        return Err(Error::refused(errno::ENOSPC, text));
    }
    if !options.force
        && let Some(what) = oleo_mkfs::signature(device.as_ref())?
    {
        return Err(holds(what));
    }
    Ok(Target { device, empty: false })
}

fn holds(what: &str) -> Error {
    Error::refused(errno::EEXIST, format!("holds {what}")).with_hint(Hint::Overwrite)
}

/// Copies all extents that are no holes; returns how many bytes were written.
fn copy_bytes(source: &dyn Device, target: &Target, options: &CopyOptions) -> Result<u64> {
    let (len, mut at, mut written) = (source.len(), 0, 0);
    let mut bufs: Vec<Vec<u8>> = vec![vec![0; PIECE_LEN as usize]; PIECES];
    while at < len {
        let mut extents = source.extents(at, len - at, EXTENTS)?;
        if extents.is_empty() {
            // No device says so little; whoever does is read.
            extents.push(Extent { len: len - at, kind: ExtentKind::Data });
        }
        for extent in extents {
            let end = at + extent.len;
            if extent.kind != ExtentKind::Data {
                if !target.empty {
                    target.device.write_zeroes(at, extent.len, Zeroing::default())?;
                }
                at = end;
            }
            while at < end {
                let part = (end - at).min(PIECE_LEN * PIECES as u64);
                written += copy_part(source, target, at, part, &mut bufs)?;
                at += part;
                if let Some(told) = &options.on_copied {
                    told(at, len);
                }
            }
        }
    }
    Ok(written)
}

/// Copies up to [`PIECES`] pieces.
fn copy_part(source: &dyn Device, target: &Target, at: u64, len: u64, bufs: &mut [Vec<u8>]) -> Result<u64> {
    let mut reads: Vec<ReadReq<'_>> = Vec::with_capacity(PIECES);
    let mut done = 0;
    for buf in bufs.iter_mut() {
        let part = (len - done).min(PIECE_LEN) as usize;
        if part == 0 {
            break;
        }
        reads.push(ReadReq::new(at + done, &mut buf[..part]));
        done += part as u64;
    }
    source.read_batch(&mut reads);
    let mut wanted: Vec<(u64, &[u8])> = Vec::new();
    for read in reads {
        read.result?;
        wanted.extend(worth_writing(read.offset, read.buf, target.empty));
    }
    let parts: Vec<[&[u8]; 1]> = wanted.iter().map(|(_, block)| [*block]).collect();
    let writes = wanted.iter().zip(&parts).map(|((offset, _), parts)| WriteReq { offset: *offset, parts });
    let writes: Vec<WriteReq<'_>> = writes.collect();
    target.device.write_batch(&writes)?;
    Ok(wanted.iter().map(|(_, block)| block.len() as u64).sum())
}

/// The parts of what was read that are to be written: all of it, or what is not zero.
fn worth_writing(offset: u64, buf: &[u8], skip_zeros: bool) -> Vec<(u64, &[u8])> {
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for start in (0..buf.len()).step_by(ZEROS_LEN) {
        let end = (start + ZEROS_LEN).min(buf.len());
        if skip_zeros && buf[start..end].iter().all(|&b| b == 0) {
            continue;
        }
        match runs.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => runs.push(start..end),
        }
    }
    runs.into_iter().map(|run| (offset + run.start as u64, &buf[run])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Image, OpenOptions};

    /// Goal: a copy is the same bytes, holes are kept, and nothing is overwritten unasked. Method: an image with some data, to a
    /// file, and, where there are stores, to a volume in a directory and back.
    #[test]
    fn round_trip() -> std::result::Result<(), Box<dyn std::error::Error>> {
        use std::os::unix::fs::MetadataExt;

        let scratch = tempfile::tempdir()?;
        let (first, second) = (scratch.path().join("first.img"), scratch.path().join("second.img"));
        let image = Image::create(&first, 512 << 20)?;
        let data: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        image.write("file", &data)?;
        image.close()?;
        let copied = copy(&first, &second, &CopyOptions::default())?;
        assert_eq!(copied.len, 512 << 20);
        assert!(copied.written < 64 << 20, "{copied:?}");
        assert!(fs::metadata(&second)?.blocks() * 512 < 64 << 20, "holes are kept");
        assert!(fs::read(&first)? == fs::read(&second)?);
        let again = copy(&first, &second, &CopyOptions::default()).unwrap_err();
        assert_eq!(again.errno(), errno::EEXIST);
        assert!(copy(&first, &first, &CopyOptions::default().force(true)).is_err(), "onto itself");
        copy(&first, &second, &CopyOptions::default().force(true))?;
        #[cfg(feature = "remote")]
        {
            let url = format!("file://{}/volume", scratch.path().display());
            copy(&first, &url, &CopyOptions::default())?;
            assert_eq!(Image::open(&url, &OpenOptions::default())?.read("file")?, data);
            assert_eq!(copy(&first, &url, &CopyOptions::default()).unwrap_err().errno(), errno::EEXIST);
            copy(&url, &second, &CopyOptions::default().force(true))?;
        }
        assert!(fs::read(&first)? == fs::read(&second)?);
        assert_eq!(Image::open(&second, &OpenOptions::default())?.read("file")?, data);
        Ok(())
    }
}

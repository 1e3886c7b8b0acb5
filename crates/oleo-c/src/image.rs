//! Images: opened, made, closed.

use std::ffi::{OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use oleo::mkfs::MkfsOptions;
use oleo::{Access, OpenOptions};

use crate::error::{Failure, status};
use crate::pointers::{must_be_there, put, text, texts};
use crate::table::{self, Image, Open};

/// For reading and changes. Nobody else may use the image meanwhile.
pub const OLEO_OPEN_WRITE: u32 = 1;
/// For reading although somebody else may write to it; what is read may be torn.
pub const OLEO_OPEN_IN_USE: u32 = 2;
/// Go on without devices that are missing.
pub const OLEO_OPEN_DEGRADED: u32 = 4;
/// Where the newest roots cannot be read, go on from those of an earlier transaction (reading only).
pub const OLEO_OPEN_BACKUP_ROOT: u32 = 8;
/// Go on without trees that cannot be read, as far as files can be read without them (reading only).
pub const OLEO_OPEN_IGNORE_BAD_TREES: u32 = 16;
/// Do not apply the log that a crash left (reading only).
pub const OLEO_OPEN_NO_LOG_REPLAY: u32 = 32;

/// All flags.
const KNOWN: u32 = OLEO_OPEN_WRITE
    | OLEO_OPEN_IN_USE
    | OLEO_OPEN_DEGRADED
    | OLEO_OPEN_BACKUP_ROOT
    | OLEO_OPEN_IGNORE_BAD_TREES
    | OLEO_OPEN_NO_LOG_REPLAY;

/// What is known of an image. Numbers are bytes.
#[repr(C)]
pub struct Info {
    /// All that files can have: copies and parity taken off.
    pub total: u64,
    /// What nothing uses.
    pub free: u64,
    /// What files can still have.
    pub available: u64,
    /// The newest transaction on disk.
    pub generation: u64,
    /// The UUID of the file system.
    pub uuid: [u8; 16],
    /// A tree block.
    pub nodesize: u32,
    /// A data block.
    pub sectorsize: u32,
    /// The label, ending in a zero byte.
    pub label: [c_char; 256],
    /// Zeros.
    pub reserved: [u64; 8],
}

/// The version of the library: "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn oleo_version() -> *const c_char {
    // A version has no zero byte but this one.
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

pub(crate) fn options(flags: u32, offset: u64) -> Result<OpenOptions, Failure> {
    if flags & !KNOWN != 0 {
        return Err(Failure::invalid(format!("unknown flags {:#x}", flags & !KNOWN)));
    }
    let has = |flag| flags & flag != 0;
    let access = match (has(OLEO_OPEN_WRITE), has(OLEO_OPEN_IN_USE)) {
        (true, true) => return Err(Failure::invalid("an image that is in use cannot be written to".into())),
        (true, false) => Access::Write,
        (false, true) => Access::ReadOnlyInUse,
        (false, false) => Access::ReadOnly,
    };
    Ok(OpenOptions::default()
        .access(access)
        .offset(offset)
        .degraded(has(OLEO_OPEN_DEGRADED))
        .use_backup_root(has(OLEO_OPEN_BACKUP_ROOT))
        .ignore_bad_trees(has(OLEO_OPEN_IGNORE_BAD_TREES))
        .no_log_replay(has(OLEO_OPEN_NO_LOG_REPLAY)))
}

pub(crate) fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

fn keep(image: oleo::Image, writable: bool) -> Result<Image, Failure> {
    table::keep(0, Open::Image { image: Arc::new(image), writable })
}

/// Opens the image in a file, on a block device, or under an address (nbd://…). 0, or a negative errno.
///
/// # Safety
/// `name` ends in a zero byte; `out` has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_open(name: *const c_char, flags: u32, out: *mut Image) -> c_int {
    // SAFETY: as the caller says; an array of one.
    unsafe { oleo_open_devices(&raw const name, 1, flags, 0, out) }
}

/// The same for a volume on several devices, all of which are named; `offset` is where in the first one the image begins, in bytes.
///
/// # Safety
/// `names` has `count` texts, each ending in a zero byte; `out` has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_open_devices(
    names: *const *const c_char,
    count: usize,
    flags: u32,
    offset: u64,
    out: *mut Image,
) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let names = unsafe { texts(names, count, "names") }?;
        must_be_there(out, "out")?;
        let Some((first, others)) = names.split_first() else {
            return Err(Failure::invalid("no image is named".into()));
        };
        let how = options(flags, offset)?.devices(others.iter().map(|name| path(name)).collect());
        let image = keep(oleo::Image::open(path(first), &how)?, how.writes())?;
        // SAFETY: as the caller says.
        unsafe { put(out, image, "out") }
    })
}

/// Makes an empty file system of `size` bytes in a file that is not there or empty, or on a block device that holds none, and opens it
/// for changes. `label` may be null.
///
/// # Safety
/// `name`, and `label` if it is not null, end in a zero byte; `out` has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_create(name: *const c_char, size: u64, label: *const c_char, out: *mut Image) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let name = unsafe { text(name, "name") }?;
        must_be_there(out, "out")?;
        let mut how = MkfsOptions::unique();
        if !label.is_null() {
            // SAFETY: as the caller says.
            let label = unsafe { text(label, "label") }?;
            let label = std::str::from_utf8(label);
            how.label = label.map_err(|_| Failure::invalid("the label is not UTF-8".into()))?.to_owned();
        }
        let image = oleo::Image::create_with(path(name), size, how, &OpenOptions::writing())?;
        let image = keep(image, true)?;
        // SAFETY: as the caller says.
        unsafe { put(out, image, "out") }
    })
}

/// Makes everything done so far durable.
#[unsafe(no_mangle)]
pub extern "C" fn oleo_sync(image: Image) -> c_int {
    status(|| {
        table::image(image)?.sync()?;
        Ok(())
    })
}

/// Makes everything durable and gives the image up, and what is open in it. Also after an error the handle is no longer valid: what
/// was not durable is lost then, so call oleo_sync before if that has to be known.
#[unsafe(no_mangle)]
pub extern "C" fn oleo_close(image: Image) -> c_int {
    status(|| {
        let (image, writable) = table::take_image(image)?;
        match Arc::try_unwrap(image) {
            Ok(image) => image.close()?,
            // A call of another thread is not done with it; the image is given up when that has ended.
            Err(image) => {
                if writable {
                    image.sync()?;
                }
                image.release()?;
            }
        }
        Ok(())
    })
}

/// What is known of an image.
///
/// # Safety
/// `out` has room for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_get_info(image: Image, out: *mut Info) -> c_int {
    status(|| {
        let image = table::image(image)?;
        let space = image.space_summary();
        let super_block = image.volume().super_block();
        let mut label = [0; 256];
        for (to, from) in label[..255].iter_mut().zip(image.label()) {
            *to = from as c_char;
        }
        let info = Info {
            total: space.total.0,
            free: space.free.0,
            available: space.available.0,
            generation: super_block.generation.get(),
            uuid: *super_block.fsid().as_bytes(),
            nodesize: super_block.nodesize.get(),
            sectorsize: super_block.sectorsize.get(),
            label,
            reserved: [0; 8],
        };
        // SAFETY: as the caller says.
        unsafe { put(out, info, "out") }
    })
}

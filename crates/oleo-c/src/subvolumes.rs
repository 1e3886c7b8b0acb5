//! Subvolumes and snapshots.

use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex, PoisonError};

use oleo::{Error, SnapshotOptions, TreeId};

use crate::error::{Failure, call, status};
use crate::names::Time;
use crate::pointers::{must_be_there, put, text};
use crate::table::{self, Image, Infos, Open, Subvolumes};

/// A snapshot, or a subvolume, refuses changes.
pub const OLEO_READ_ONLY: u32 = 1;

/// A subvolume or snapshot.
#[repr(C)]
pub struct Subvolume {
    /// Its number; 5 for the top level.
    pub id: u64,
    /// The number of the one that it is in; 0 for the top level.
    pub parent_id: u64,
    /// The transaction that last wrote it.
    pub generation: u64,
    /// The transaction of its last change.
    pub ctransid: u64,
    /// The transaction that made it.
    pub otransid: u64,
    /// Its UUID; zeros on very old file systems.
    pub uuid: [u8; 16],
    /// The UUID of the one that it is a snapshot of; zeros if it is none.
    pub parent_uuid: [u8; 16],
    /// The UUID of the one that it was received from; zeros if it was not.
    pub received_uuid: [u8; 16],
    /// Its last change.
    pub ctime: Time,
    /// Its creation.
    pub otime: Time,
    /// 0 or OLEO_READ_ONLY.
    pub flags: u32,
    /// Zero.
    pub reserved_flags: u32,
    /// Its path from the top level, ending in a zero byte; empty for the top level. It stays until the next call with the same list.
    pub path: *const c_char,
    /// Zeros.
    pub reserved: [u64; 4],
}

/// Makes a list of all subvolumes.
///
/// # Safety
/// `out` has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_subvolumes_open(image: Image, out: *mut Subvolumes) -> c_int {
    status(|| {
        must_be_there(out, "out")?;
        let mut left = table::image(image)?.fs().subvol_list()?;
        left.reverse();
        let infos = Arc::new(Mutex::new(Infos { left, path: Vec::new() }));
        // SAFETY: as the caller says.
        unsafe { put(out, table::keep(image, Open::Subvolumes(infos))?, "out") }
    })
}

/// The next subvolume, by number, the top level first: 1 if there is one, 0 at the end, or a negative errno.
///
/// # Safety
/// `out` has room for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_subvolumes_next(list: Subvolumes, out: *mut Subvolume) -> c_int {
    let next = call(|| {
        let list = table::subvolumes(list)?;
        must_be_there(out, "out")?;
        let mut infos = list.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(info) = infos.left.pop() else { return Ok(0) };
        infos.path = info.path;
        infos.path.push(0);
        let subvolume = Subvolume {
            id: info.id.0,
            parent_id: info.parent.map_or(0, |id| id.0),
            generation: info.generation,
            ctransid: info.ctransid,
            otransid: info.otransid,
            uuid: *info.uuid.as_bytes(),
            parent_uuid: *info.parent_uuid.as_bytes(),
            received_uuid: *info.received_uuid.as_bytes(),
            ctime: Time::of(info.ctime),
            otime: Time::of(info.otime),
            flags: if info.read_only { OLEO_READ_ONLY } else { 0 },
            reserved_flags: 0,
            path: infos.path.as_ptr().cast(),
            reserved: [0; 4],
        };
        // SAFETY: as the caller says.
        unsafe { put(out, subvolume, "out") }?;
        Ok(1)
    });
    c_int::try_from(next).unwrap_or(-libc::EIO)
}

/// Gives a list up.
#[unsafe(no_mangle)]
pub extern "C" fn oleo_subvolumes_close(list: Subvolumes) -> c_int {
    status(|| table::take(list, "list of subvolumes", |open| matches!(open, Open::Subvolumes(_))))
}

/// # Safety
/// `out` is null or has room for a number.
unsafe fn tell(out: *mut u64, id: TreeId) -> Result<(), Failure> {
    if out.is_null() {
        return Ok(());
    }
    // SAFETY: as the caller says.
    unsafe { put(out, id.0, "out") }
}

/// Makes an empty subvolume; its number goes to `out`, which may be null.
///
/// # Safety
/// `path` ends in a zero byte; `out` is null or has room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_subvolume_create(image: Image, path: *const c_char, out: *mut u64) -> c_int {
    status(|| {
        let image = table::image(image)?;
        // SAFETY: as the caller says.
        let id = image.create_subvol(unsafe { text(path, "path") }?)?;
        // SAFETY: as the caller says.
        unsafe { tell(out, id) }
    })
}

/// Makes a snapshot of the subvolume at `source`; `flags` is 0 or OLEO_READ_ONLY. Its number goes to `out`, which may be null.
///
/// # Safety
/// `source` and `path` end in a zero byte; `out` is null or has room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_snapshot(
    image: Image,
    source: *const c_char,
    path: *const c_char,
    flags: u32,
    out: *mut u64,
) -> c_int {
    status(|| {
        let image = table::image(image)?;
        if flags & !OLEO_READ_ONLY != 0 {
            return Err(Failure::invalid(format!("unknown flags {:#x}", flags & !OLEO_READ_ONLY)));
        }
        // SAFETY: as the caller says.
        let source = unsafe { text(source, "source") }?;
        // SAFETY: as the caller says.
        let path = unsafe { text(path, "path") }?;
        let options = SnapshotOptions::default().read_only(flags & OLEO_READ_ONLY != 0);
        let id = image.snapshot(source, path, &options)?;
        // SAFETY: as the caller says.
        unsafe { tell(out, id) }
    })
}

/// Deletes the subvolume at `path`; one with others inside is refused.
///
/// # Safety
/// `path` ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_subvolume_delete(image: Image, path: *const c_char) -> c_int {
    status(|| {
        let image = table::image(image)?;
        // SAFETY: as the caller says.
        let path = unsafe { text(path, "path") }?;
        let id = image.subvol(path)?.tree();
        Ok(image.fs().subvol_delete(id).map_err(|error| Error::from(error).at(path.escape_ascii()))?)
    })
}

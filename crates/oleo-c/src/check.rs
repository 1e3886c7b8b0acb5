//! Checks of images, and what they find.

use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex, PoisonError};

use oleo::check::{CheckOptions, Severity, Start};

use crate::error::{Failure, call, status};
use crate::image::{OLEO_OPEN_DEGRADED, options, path};
use crate::pointers::{must_be_there, put, texts};
use crate::table::{self, Findings, Found, Open};

/// Of a check: read and verify the contents of files, too, on every copy. In addition to OLEO_OPEN_DEGRADED.
pub const OLEO_CHECK_DATA: u32 = 1 << 16;

/// A finding has a tree.
pub const OLEO_AT_TREE: u32 = 1;
/// A finding has an address.
pub const OLEO_AT_BLOCK: u32 = 2;
/// A finding has a key.
pub const OLEO_AT_KEY: u32 = 4;
/// A finding has a device.
pub const OLEO_AT_DEVICE: u32 = 8;

/// Something that is not as it should be.
#[repr(C)]
pub struct Finding {
    /// 1: a warning, without consequence; 2: an error.
    pub severity: u32,
    /// Which of the places below are known: OLEO_AT_TREE and so on.
    pub places: u32,
    /// The number of the tree.
    pub tree: u64,
    /// The logical address of the tree block or extent.
    pub block: u64,
    /// The number of the device.
    pub device: u64,
    /// The key of the item: the number of the object.
    pub key_objectid: u64,
    /// The key of the item: the offset.
    pub key_offset: u64,
    /// The key of the item: the type.
    pub key_type: u32,
    /// Zero.
    pub reserved_key: u32,
    /// What kind of finding, such as "data-checksum"; names never change. Texts end in a zero byte, and stay until the next call with the
    /// same list.
    pub kind: *const c_char,
    /// What is there.
    pub have: *const c_char,
    /// What should be there.
    pub want: *const c_char,
    /// Zeros.
    pub reserved: [u64; 4],
}

/// Checks a volume that nobody uses meanwhile, on all its devices; `offset` is where in the first one the image begins. Nothing is changed.
/// How many findings there are, 0 if it is sound, or a negative errno if it cannot be checked. A list of them goes to `out`, which may be
/// null: of each kind at most 100.
///
/// # Safety
/// `names` has `count` texts, each ending in a zero byte; `out` is null or has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_check(
    names: *const *const c_char,
    count: usize,
    flags: u32,
    offset: u64,
    out: *mut Findings,
) -> i64 {
    call(|| {
        // SAFETY: as the caller says.
        let names = unsafe { texts(names, count, "names") }?;
        if !out.is_null() {
            must_be_there(out, "out")?;
        }
        let Some((first, others)) = names.split_first() else {
            return Err(Failure::invalid("no image is named".into()));
        };
        if flags & !(OLEO_CHECK_DATA | OLEO_OPEN_DEGRADED) != 0 {
            return Err(Failure::invalid(format!("flags {flags:#x} are not for checks, or unknown")));
        }
        let open = options(flags & !OLEO_CHECK_DATA, offset)?.devices(others.iter().map(|name| path(name)).collect());
        let how = CheckOptions::default().data(flags & OLEO_CHECK_DATA != 0);
        let report = oleo::check::image(path(first), &open, Start::default(), &how)?;
        let left_out: u64 = report.left_out.values().sum();
        let count = i64::try_from(left_out.saturating_add(report.findings.len() as u64)).unwrap_or(i64::MAX);
        if !out.is_null() {
            let mut left = report.findings;
            left.reverse();
            let found = Arc::new(Mutex::new(Found { left, texts: Default::default() }));
            // SAFETY: as the caller says.
            unsafe { put(out, table::keep(0, Open::Findings(found))?, "out") }?;
        }
        Ok(count)
    })
}

/// The next finding: 1 if there is one, 0 at the end, or a negative errno.
///
/// # Safety
/// `out` has room for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_findings_next(findings: Findings, out: *mut Finding) -> c_int {
    let next = call(|| {
        let found = table::findings(findings)?;
        must_be_there(out, "out")?;
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(next) = found.left.pop() else { return Ok(0) };
        found.texts = [next.kind.name(), &next.have, &next.want].map(|text| {
            // A text ends in C where it has a zero byte.
            text.bytes().filter(|&byte| byte != 0).chain([0]).collect()
        });
        let [kind, have, want] = [0, 1, 2].map(|at| found.texts[at].as_ptr().cast());
        let at = &next.at;
        let known = [
            (at.tree.is_some(), OLEO_AT_TREE),
            (at.block.is_some(), OLEO_AT_BLOCK),
            (at.key.is_some(), OLEO_AT_KEY),
            (at.device.is_some(), OLEO_AT_DEVICE),
        ];
        let finding = Finding {
            severity: if next.severity == Severity::Error { 2 } else { 1 },
            places: known.iter().filter(|(is, _)| *is).map(|(_, flag)| flag).sum(),
            tree: at.tree.map_or(0, |tree| tree.0),
            block: at.block.map_or(0, |block| block.0),
            device: at.device.unwrap_or(0),
            key_objectid: at.key.map_or(0, |key| key.objectid),
            key_offset: at.key.map_or(0, |key| key.offset),
            key_type: at.key.map_or(0, |key| u32::from(key.item_type.0)),
            reserved_key: 0,
            kind,
            have,
            want,
            reserved: [0; 4],
        };
        // SAFETY: as the caller says.
        unsafe { put(out, finding, "out") }?;
        Ok(1)
    });
    c_int::try_from(next).unwrap_or(-libc::EIO)
}

/// Gives a list of findings up.
#[unsafe(no_mangle)]
pub extern "C" fn oleo_findings_close(findings: Findings) -> c_int {
    status(|| table::take(findings, "list of findings", |open| matches!(open, Open::Findings(_))))
}

//! Handles: numbers, and what they stand for.
//!
//! Invariants: no number is given twice, nor is 0; what is open in an image goes with it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oleo::check::Finding;
use oleo::fs::{InodeRef, SubvolInfo};

use crate::error::Failure;

/// An open image.
pub type Image = u64;
/// An open file.
pub type FileHandle = u64;
/// An open directory.
pub type Dir = u64;
/// A list of subvolumes.
pub type Subvolumes = u64;
/// What a check found.
pub type Findings = u64;

/// What is read of a directory so far.
pub(crate) struct Listing {
    pub image: Arc<oleo::Image>,
    pub dir: InodeRef,
    /// Entries that were read and not handed out, the next one last.
    pub ahead: Vec<oleo::fs::DirEntryInfo>,
    /// Where to go on.
    pub after: u64,
}

/// Subvolumes that were not handed out, the next one last.
pub(crate) struct Infos {
    pub left: Vec<SubvolInfo>,
    /// The path of the one that was handed out last, ending in a zero byte.
    pub path: Vec<u8>,
}

/// Findings that were not handed out, the next one last.
pub(crate) struct Found {
    pub left: Vec<Finding>,
    /// The texts of the one that was handed out last, each ending in a zero byte.
    pub texts: [Vec<u8>; 3],
}

#[derive(Clone)]
pub(crate) enum Open {
    Image { image: Arc<oleo::Image>, writable: bool },
    File(oleo::File),
    Dir(Arc<Mutex<Listing>>),
    Subvolumes(Arc<Mutex<Infos>>),
    Findings(Arc<Mutex<Found>>),
}

#[derive(Default)]
struct Table {
    last: u64,
    /// With the image that it is open in.
    open: HashMap<u64, (u64, Open)>,
}

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

fn table() -> MutexGuard<'static, Option<Table>> {
    // What is in it is whole after every statement.
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps what was opened in an image (0: it is one); its number.
pub(crate) fn keep(image: Image, open: Open) -> Result<u64, Failure> {
    let mut table = table();
    let table = table.get_or_insert_default();
    if image != 0 && !table.open.contains_key(&image) {
        return Err(Failure::bad_handle("image"));
    }
    table.last += 1;
    table.open.insert(table.last, (image, open));
    Ok(table.last)
}

fn find(number: u64) -> Option<Open> {
    table().as_ref()?.open.get(&number).map(|(_, open)| open.clone())
}

pub(crate) fn image(number: Image) -> Result<Arc<oleo::Image>, Failure> {
    match find(number) {
        Some(Open::Image { image, .. }) => Ok(image),
        _ => Err(Failure::bad_handle("image")),
    }
}

pub(crate) fn file(number: FileHandle) -> Result<oleo::File, Failure> {
    match find(number) {
        Some(Open::File(file)) => Ok(file),
        _ => Err(Failure::bad_handle("file")),
    }
}

/// A file, and the image that it is in.
pub(crate) fn file_and_image(number: FileHandle) -> Result<(oleo::File, Arc<oleo::Image>), Failure> {
    let of = table().as_ref().and_then(|table| table.open.get(&number).map(|(image, _)| *image));
    Ok((file(number)?, image(of.unwrap_or(0))?))
}

pub(crate) fn dir(number: Dir) -> Result<Arc<Mutex<Listing>>, Failure> {
    match find(number) {
        Some(Open::Dir(dir)) => Ok(dir),
        _ => Err(Failure::bad_handle("directory")),
    }
}

pub(crate) fn subvolumes(number: Subvolumes) -> Result<Arc<Mutex<Infos>>, Failure> {
    match find(number) {
        Some(Open::Subvolumes(infos)) => Ok(infos),
        _ => Err(Failure::bad_handle("list of subvolumes")),
    }
}

pub(crate) fn findings(number: Findings) -> Result<Arc<Mutex<Found>>, Failure> {
    match find(number) {
        Some(Open::Findings(found)) => Ok(found),
        _ => Err(Failure::bad_handle("list of findings")),
    }
}

/// Takes an image out, and what is open in it with it.
pub(crate) fn take_image(number: Image) -> Result<(Arc<oleo::Image>, bool), Failure> {
    let (found, gone) = {
        let mut table = table();
        let table = table.get_or_insert_default();
        match table.open.get(&number) {
            Some((_, Open::Image { .. })) => {}
            _ => return Err(Failure::bad_handle("image")),
        }
        let found = table.open.remove(&number);
        let gone: Vec<_> = table.open.extract_if(|_, (image, _)| *image == number).collect();
        (found, gone)
    };
    // Dropped when the table is free again.
    drop(gone);
    match found {
        Some((_, Open::Image { image, writable })) => Ok((image, writable)),
        _ => Err(Failure::bad_handle("image")),
    }
}

/// Takes something else out.
pub(crate) fn take(number: u64, what: &str, is: impl Fn(&Open) -> bool) -> Result<(), Failure> {
    let gone = {
        let mut table = table();
        let table = table.get_or_insert_default();
        match table.open.get(&number) {
            Some((_, open)) if is(open) => table.open.remove(&number),
            _ => return Err(Failure::bad_handle(what)),
        }
    };
    drop(gone);
    Ok(())
}

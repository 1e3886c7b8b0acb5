//! Names: directories, attributes, links, and changes of all these.

use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex, PoisonError};

use oleo::fs::{Attr, Depth, Follow, InodeRef, NewInode, NewKind, RenameMode, SetAttr, Target, XattrMode};
use oleo::{Error, Image as Volume};

use crate::error::{Failure, call, status};
use crate::pointers::{bytes, must_be_there, put, room, text};
use crate::table::{self, Dir, Image, Listing, Open};

/// The last name of a path may be a symbolic link that is meant itself.
pub const OLEO_NOFOLLOW: u32 = 1;
/// An attribute that is set must not be there.
pub const OLEO_XATTR_CREATE: u32 = 2;
/// An attribute that is set must be there.
pub const OLEO_XATTR_REPLACE: u32 = 4;

/// Entries of a directory that are read ahead.
const AHEAD: usize = 256;

/// A time.
#[repr(C)]
pub struct Time {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanoseconds: u32,
    /// Zero.
    pub reserved: u32,
}

impl Time {
    pub(crate) fn of(time: oleo::fs::Time) -> Time {
        Time { seconds: time.sec, nanoseconds: time.nsec, reserved: 0 }
    }
}

/// What is known of a file or directory.
#[repr(C)]
pub struct Stat {
    /// The number of the subvolume.
    pub subvolume: u64,
    /// The number of the inode within it.
    pub ino: u64,
    /// Bytes of content.
    pub size: u64,
    /// Bytes that the extents stand for, before compression.
    pub nbytes: u64,
    /// The transaction that made it.
    pub generation: u64,
    /// The transaction that last changed it.
    pub transid: u64,
    /// The flags of the inode, as they are on disk.
    pub flags: u64,
    /// Type and permission bits, as in stat(2).
    pub mode: u32,
    /// Names; 1 for a directory.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Of a device: its major number.
    pub rdev_major: u32,
    /// Of a device: its minor number.
    pub rdev_minor: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Creation.
    pub otime: Time,
    /// Zeros.
    pub reserved: [u64; 4],
}

impl Stat {
    pub(crate) fn of(attr: &Attr) -> Stat {
        Stat {
            subvolume: attr.subvol.0,
            ino: attr.ino.0,
            size: attr.size,
            nbytes: attr.nbytes,
            generation: attr.generation,
            transid: attr.transid,
            flags: attr.flags.bits(),
            mode: attr.mode & 0o7777 | attr.kind.mode_bits(),
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev_major: attr.rdev.major,
            rdev_minor: attr.rdev.minor,
            atime: Time::of(attr.atime),
            mtime: Time::of(attr.mtime),
            ctime: Time::of(attr.ctime),
            otime: Time::of(attr.otime),
            reserved: [0; 4],
        }
    }
}

/// An entry of a directory.
#[repr(C)]
pub struct Entry {
    /// The number of the inode; 0 if it leads to another subvolume.
    pub ino: u64,
    /// The number of the subvolume that it leads to; 0 for everything else.
    pub subvolume: u64,
    /// The type bits of a mode.
    pub mode: u32,
    /// Bytes of the name, without the zero byte.
    pub name_len: u32,
    /// The name, ending in a zero byte. Names are bytes: nothing says that they are text.
    pub name: [c_char; 256],
}

/// What is at a path.
fn at(image: &Volume, path: &[u8], flags: u32) -> Result<InodeRef, Failure> {
    let follow = match flags {
        0 => Follow::Yes,
        OLEO_NOFOLLOW => Follow::No,
        _ => return Err(Failure::invalid(format!("unknown flags {:#x}", flags & !OLEO_NOFOLLOW))),
    };
    let found = image.fs().resolve(&image.top()?, path, follow);
    Ok(found.map_err(|error| Error::from(error).at(path.escape_ascii()))?)
}

/// What is known of what is at a path, from the top level; `flags` is 0 or OLEO_NOFOLLOW.
///
/// # Safety
/// `path` ends in a zero byte; `out` has room for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_stat(image: Image, path: *const c_char, flags: u32, out: *mut Stat) -> c_int {
    status(|| {
        let image = table::image(image)?;
        // SAFETY: as the caller says.
        let inode = at(&image, unsafe { text(path, "path") }?, flags)?;
        let stat = Stat::of(&image.fs().attr(&inode));
        // SAFETY: as the caller says.
        unsafe { put(out, stat, "out") }
    })
}

/// Opens a directory for listing.
///
/// # Safety
/// `path` ends in a zero byte; `out` has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_dir_open(image: Image, path: *const c_char, out: *mut Dir) -> c_int {
    status(|| {
        let open = table::image(image)?;
        // SAFETY: as the caller says.
        let path = unsafe { text(path, "path") }?;
        must_be_there(out, "out")?;
        let dir = at(&open, path, 0)?;
        // Said now, not when it is read.
        let mut ahead =
            open.fs().readdir(&dir, 0, AHEAD).map_err(|error| Error::from(error).at(path.escape_ascii()))?;
        let after = ahead.last().map_or(0, |entry| entry.index);
        ahead.reverse();
        let listing = Listing { image: open, dir, ahead, after };
        // SAFETY: as the caller says.
        unsafe { put(out, table::keep(image, Open::Dir(Arc::new(Mutex::new(listing))))?, "out") }
    })
}

/// The next entry, in the order of their creation: 1 if there is one, 0 at the end, or a negative errno. "." and ".." are not
/// among them.
///
/// # Safety
/// `out` has room for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_dir_next(dir: Dir, out: *mut Entry) -> c_int {
    let next = call(|| {
        let dir = table::dir(dir)?;
        must_be_there(out, "out")?;
        let mut listing = dir.lock().unwrap_or_else(PoisonError::into_inner);
        if listing.ahead.is_empty() {
            let mut ahead = listing.image.fs().readdir(&listing.dir, listing.after, AHEAD)?;
            listing.after = ahead.last().map_or(listing.after, |entry| entry.index);
            ahead.reverse();
            listing.ahead = ahead;
        }
        let Some(entry) = listing.ahead.pop() else { return Ok(0) };
        let (ino, subvolume) = match entry.target {
            Target::Inode(ino) => (ino.0, 0),
            Target::Subvol(id) => (0, id.0),
        };
        // A name has 255 bytes at most, and the last place stays zero in any case.
        let mut name = [0; 256];
        let mut name_len = 0;
        for (to, from) in name[..255].iter_mut().zip(&entry.name) {
            *to = *from as c_char;
            name_len += 1;
        }
        let entry = Entry { ino, subvolume, mode: entry.kind.mode_bits(), name_len, name };
        // SAFETY: as the caller says.
        unsafe { put(out, entry, "out") }?;
        Ok(1)
    });
    c_int::try_from(next).unwrap_or(-libc::EIO)
}

/// Gives a directory up.
#[unsafe(no_mangle)]
pub extern "C" fn oleo_dir_close(dir: Dir) -> c_int {
    status(|| table::take(dir, "directory", |open| matches!(open, Open::Dir(_))))
}

/// Copies bytes of the library's into a buffer of C's, if they fit; how many there are.
///
/// # Safety
/// `buffer` has room for `len` bytes.
unsafe fn hand_over(bytes: &[u8], buffer: *mut u8, len: usize, what: &str) -> Result<i64, Failure> {
    let count = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
    if len == 0 {
        return Ok(count);
    }
    if bytes.len() > len {
        return Err(Failure::no_room(what, bytes.len()));
    }
    // SAFETY: as the caller says.
    let room = unsafe { room(buffer, len, "buffer") }?;
    for (to, from) in room.iter_mut().zip(bytes) {
        *to = *from;
    }
    Ok(count)
}

/// The target of a symbolic link: how many bytes it has, or a negative errno. With `len` 0 nothing is written; where it does not fit,
/// -ERANGE. There is no zero byte at its end.
///
/// # Safety
/// `path` ends in a zero byte; `buffer` has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_readlink(image: Image, path: *const c_char, buffer: *mut u8, len: usize) -> i64 {
    call(|| {
        let image = table::image(image)?;
        // SAFETY: as the caller says.
        let path = unsafe { text(path, "path") }?;
        let target = image.fs().read_link(&at(&image, path, OLEO_NOFOLLOW)?);
        let target = target.map_err(|error| Error::from(error).at(path.escape_ascii()))?;
        // SAFETY: as the caller says.
        unsafe { hand_over(&target, buffer, len, "the target") }
    })
}

/// An extended attribute ("user.name"): how many bytes it has, or a negative errno; -ENODATA if there is none. The buffer is as for
/// oleo_readlink, `flags` as for oleo_stat.
///
/// # Safety
/// `path` and `name` end in a zero byte; `buffer` has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_getxattr(
    image: Image,
    path: *const c_char,
    name: *const c_char,
    flags: u32,
    buffer: *mut u8,
    len: usize,
) -> i64 {
    call(|| {
        let image = table::image(image)?;
        // SAFETY: as the caller says.
        let inode = at(&image, unsafe { text(path, "path") }?, flags)?;
        // SAFETY: as the caller says.
        let name = unsafe { text(name, "name") }?;
        let Some(value) = image.fs().xattr_get(&inode, name)? else {
            return Err(Failure::not_there(format!("there is no attribute {}", name.escape_ascii())));
        };
        // SAFETY: as the caller says.
        unsafe { hand_over(&value, buffer, len, "the attribute") }
    })
}

/// The names of all extended attributes, each ending in a zero byte: how many bytes they have together, or a negative errno. The buffer is
/// as for oleo_readlink, `flags` as for oleo_stat.
///
/// # Safety
/// `path` ends in a zero byte; `buffer` has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_listxattr(
    image: Image,
    path: *const c_char,
    flags: u32,
    buffer: *mut u8,
    len: usize,
) -> i64 {
    call(|| {
        let image = table::image(image)?;
        // SAFETY: as the caller says.
        let inode = at(&image, unsafe { text(path, "path") }?, flags)?;
        let mut names = Vec::new();
        for name in image.fs().xattr_list(&inode)? {
            names.extend_from_slice(&name);
            names.push(0);
        }
        // SAFETY: as the caller says.
        unsafe { hand_over(&names, buffer, len, "the list of names") }
    })
}

/// Sets an extended attribute to `len` bytes. `flags` is 0, or OLEO_NOFOLLOW, OLEO_XATTR_CREATE (-EEXIST if it is there), OLEO_XATTR_REPLACE
/// (-ENODATA if it is not).
///
/// # Safety
/// `path` and `name` end in a zero byte; `value` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_setxattr(
    image: Image,
    path: *const c_char,
    name: *const c_char,
    value: *const u8,
    len: usize,
    flags: u32,
) -> c_int {
    status(|| {
        let image = table::image(image)?;
        let mode = match flags & !OLEO_NOFOLLOW {
            0 => XattrMode::Any,
            OLEO_XATTR_CREATE => XattrMode::Create,
            OLEO_XATTR_REPLACE => XattrMode::Replace,
            _ => {
                return Err(Failure::invalid(format!("unknown flags {flags:#x}, or flags that contradict each other")));
            }
        };
        // SAFETY: as the caller says.
        let path = unsafe { text(path, "path") }?;
        // SAFETY: as the caller says.
        let name = unsafe { text(name, "name") }?;
        // SAFETY: as the caller says.
        let value = unsafe { bytes(value, len, "value") }?;
        let inode = at(&image, path, flags & OLEO_NOFOLLOW)?;
        let set = image.fs().xattr_set(&inode, name, value, mode);
        Ok(set.map_err(|error| Error::from(error).at(path.escape_ascii()))?)
    })
}

/// Removes an extended attribute; -ENODATA if there is none. `flags` as for oleo_stat.
///
/// # Safety
/// `path` and `name` end in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_removexattr(image: Image, path: *const c_char, name: *const c_char, flags: u32) -> c_int {
    status(|| {
        let image = table::image(image)?;
        // SAFETY: as the caller says.
        let path = unsafe { text(path, "path") }?;
        // SAFETY: as the caller says.
        let name = unsafe { text(name, "name") }?;
        let inode = at(&image, path, flags)?;
        let removed = image.fs().xattr_remove(&inode, name);
        Ok(removed.map_err(|error| Error::from(error).at(path.escape_ascii()))?)
    })
}

/// Makes a directory with these permission bits.
///
/// # Safety
/// `path` ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_mkdir(image: Image, path: *const c_char, mode: u32) -> c_int {
    status(|| {
        let image = table::image(image)?;
        // SAFETY: as the caller says.
        let path = unsafe { text(path, "path") }?;
        let (dir, name) = image.find_parent(&image.top()?, path)?;
        let made = image.fs().create(&dir, name, &NewInode::new(NewKind::Dir, mode & 0o7777));
        made.map_err(|error| Error::from(error).at(path.escape_ascii()))?;
        Ok(())
    })
}

/// Removes a file.
///
/// # Safety
/// `path` ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_unlink(image: Image, path: *const c_char) -> c_int {
    status(|| {
        let image = table::image(image)?;
        // SAFETY: as the caller says.
        let path = unsafe { text(path, "path") }?;
        let (dir, name) = image.find_parent(&image.top()?, path)?;
        Ok(image.fs().unlink(&dir, name).map_err(|error| Error::from(error).at(path.escape_ascii()))?)
    })
}

/// Removes an empty directory.
///
/// # Safety
/// `path` ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_rmdir(image: Image, path: *const c_char) -> c_int {
    status(|| {
        let image = table::image(image)?;
        // SAFETY: as the caller says.
        let path = unsafe { text(path, "path") }?;
        let (dir, name) = image.find_parent(&image.top()?, path)?;
        Ok(image.fs().rmdir(&dir, name).map_err(|error| Error::from(error).at(path.escape_ascii()))?)
    })
}

/// Removes a file, or a directory with everything below, nested subvolumes included.
///
/// # Safety
/// `path` ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_remove_tree(image: Image, path: *const c_char) -> c_int {
    status(|| {
        let image = table::image(image)?;
        // SAFETY: as the caller says.
        let path = unsafe { text(path, "path") }?;
        Ok(image.remove(&image.top()?, path, Depth::Tree)?)
    })
}

/// Renames or moves, to exactly this path; a file that has it is replaced.
///
/// # Safety
/// `from` and `to` end in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_rename(image: Image, from: *const c_char, to: *const c_char) -> c_int {
    status(|| {
        let image = table::image(image)?;
        // SAFETY: as the caller says.
        let from = unsafe { text(from, "from") }?;
        // SAFETY: as the caller says.
        let to = unsafe { text(to, "to") }?;
        let top = image.top()?;
        let (from_dir, from_name) = image.find_parent(&top, from)?;
        let (to_dir, to_name) = image.find_parent(&top, to)?;
        let done = image.fs().rename(&from_dir, from_name, &to_dir, to_name, RenameMode::Replace);
        Ok(done.map_err(|error| Error::from(error).at(from.escape_ascii()))?)
    })
}

/// Gives the file at `path` another name.
///
/// # Safety
/// `path` and `name` end in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_link(image: Image, path: *const c_char, name: *const c_char) -> c_int {
    status(|| {
        let image = table::image(image)?;
        // SAFETY: as the caller says.
        let path = unsafe { text(path, "path") }?;
        // SAFETY: as the caller says.
        let name = unsafe { text(name, "name") }?;
        let inode = at(&image, path, OLEO_NOFOLLOW)?;
        let (dir, last) = image.find_parent(&image.top()?, name)?;
        Ok(image.fs().link(&inode, &dir, last).map_err(|error| Error::from(error).at(name.escape_ascii()))?)
    })
}

/// Makes a symbolic link at `path`.
///
/// # Safety
/// `target` and `path` end in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_symlink(image: Image, target: *const c_char, path: *const c_char) -> c_int {
    status(|| {
        let image = table::image(image)?;
        // SAFETY: as the caller says.
        let target = unsafe { text(target, "target") }?;
        // SAFETY: as the caller says.
        let path = unsafe { text(path, "path") }?;
        let (dir, name) = image.find_parent(&image.top()?, path)?;
        let made = image.fs().create(&dir, name, &NewInode::new(NewKind::Symlink(target), 0o777));
        made.map_err(|error| Error::from(error).at(path.escape_ascii()))?;
        Ok(())
    })
}

fn set(image: Image, path: &[u8], flags: u32, set: &SetAttr) -> Result<(), Failure> {
    let image = table::image(image)?;
    let inode = at(&image, path, flags)?;
    image.fs().set_attr(&inode, set).map_err(|error| Error::from(error).at(path.escape_ascii()))?;
    Ok(())
}

/// Changes permission bits. `flags` as for oleo_stat.
///
/// # Safety
/// `path` ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_set_mode(image: Image, path: *const c_char, mode: u32, flags: u32) -> c_int {
    // SAFETY: as the caller says.
    status(|| set(image, unsafe { text(path, "path") }?, flags, &SetAttr::default().mode(Some(mode & 0o7777))))
}

/// Changes owner and group. `flags` as for oleo_stat.
///
/// # Safety
/// `path` ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_set_owner(image: Image, path: *const c_char, uid: u32, gid: u32, flags: u32) -> c_int {
    let change = SetAttr::default().uid(Some(uid)).gid(Some(gid));
    // SAFETY: as the caller says.
    status(|| set(image, unsafe { text(path, "path") }?, flags, &change))
}

//! Paths, attributes and contents.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use oleo::fs::{
    Attr, Depth, Descent, ExtentKind, FileKind, Follow, InodeRef, SetAttr, Sharing, Target, Time, XattrMode,
};
use oleo::mkfs::FillOptions;
use oleo::restore::{RestoreOptions, restore_to_dir};
use oleo::{Error, Image};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::OrRaise;
use crate::handle::Handle;
use crate::make::Filled;
use crate::watch::watched;

/// `errno` of a name that is not there.
const ENOENT: i32 = 2;

/// What is at a path; the last name may be a link that is meant itself.
fn at(image: &Image, path: &[u8], follow: bool) -> Result<InodeRef, Error> {
    if follow {
        return image.find(path);
    }
    let found = image.fs().resolve(&image.top()?, path, Follow::No);
    found.map_err(|error| Error::from(error).at(path.escape_ascii()))
}

/// What is known of a file: the fields of `os.stat_result` that a volume has, and what btrfs has beyond them.
#[pyclass(frozen, module = "oleo")]
pub(crate) struct Stat(Attr);

fn nanoseconds(time: Time) -> i128 {
    i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec)
}

#[allow(clippy::cast_precision_loss, reason = "as os.stat_result has it; the fields in nanoseconds are exact")]
fn seconds(time: Time) -> f64 {
    time.sec as f64 + f64::from(time.nsec) / 1e9
}

#[pymethods]
impl Stat {
    /// Type and permission bits.
    #[getter]
    fn st_mode(&self) -> u32 {
        self.0.mode & 0o7777 | self.0.kind.mode_bits()
    }

    /// The number of the inode within its subvolume.
    #[getter]
    fn st_ino(&self) -> u64 {
        self.0.ino.0
    }

    /// The number of the subvolume.
    #[getter]
    fn st_dev(&self) -> u64 {
        self.0.subvol.0
    }

    /// How many names it has; 1 for a directory.
    #[getter]
    fn st_nlink(&self) -> u32 {
        self.0.nlink
    }

    /// The owner.
    #[getter]
    fn st_uid(&self) -> u32 {
        self.0.uid
    }

    /// The group.
    #[getter]
    fn st_gid(&self) -> u32 {
        self.0.gid
    }

    /// Bytes of content.
    #[getter]
    fn st_size(&self) -> u64 {
        self.0.size
    }

    /// Units of 512 bytes that its extents stand for, before compression.
    #[getter]
    fn st_blocks(&self) -> u64 {
        self.0.nbytes.div_ceil(512)
    }

    /// The number of a device.
    #[getter]
    fn st_rdev(&self) -> u32 {
        self.0.rdev.to_stat()
    }

    /// Last access, in nanoseconds since 1970.
    #[getter]
    fn st_atime_ns(&self) -> i128 {
        nanoseconds(self.0.atime)
    }

    /// Last change of the content, in nanoseconds since 1970.
    #[getter]
    fn st_mtime_ns(&self) -> i128 {
        nanoseconds(self.0.mtime)
    }

    /// Last change of the inode, in nanoseconds since 1970.
    #[getter]
    fn st_ctime_ns(&self) -> i128 {
        nanoseconds(self.0.ctime)
    }

    /// Creation, in nanoseconds since 1970.
    #[getter]
    fn st_birthtime_ns(&self) -> i128 {
        nanoseconds(self.0.otime)
    }

    /// Last access, in seconds since 1970.
    #[getter]
    fn st_atime(&self) -> f64 {
        seconds(self.0.atime)
    }

    /// Last change of the content, in seconds since 1970.
    #[getter]
    fn st_mtime(&self) -> f64 {
        seconds(self.0.mtime)
    }

    /// Last change of the inode, in seconds since 1970.
    #[getter]
    fn st_ctime(&self) -> f64 {
        seconds(self.0.ctime)
    }

    /// Creation, in seconds since 1970.
    #[getter]
    fn st_birthtime(&self) -> f64 {
        seconds(self.0.otime)
    }

    /// The flags of the inode, as they are on disk.
    #[getter]
    fn flags(&self) -> u64 {
        self.0.flags.bits()
    }

    /// The transaction that made it.
    #[getter]
    fn generation(&self) -> u64 {
        self.0.generation
    }

    /// The transaction that last changed it.
    #[getter]
    fn transid(&self) -> u64 {
        self.0.transid
    }

    fn __repr__(&self) -> String {
        let Attr { subvol, ino, uid, gid, nlink, size, .. } = self.0;
        let mode = self.st_mode();
        format!(
            "oleo.Stat(st_mode=0o{mode:o}, st_ino={}, st_dev={}, st_nlink={nlink}, st_uid={uid}, st_gid={gid}, st_size={size})",
            ino.0, subvol.0
        )
    }
}

#[pyfunction]
fn stat(py: Python<'_>, handle: &Handle, path: &[u8], follow: bool) -> PyResult<Stat> {
    let image = handle.image()?;
    py.detach(|| at(&image, path, follow).map(|inode| Stat(image.fs().attr(&inode)))).or_raise(py)
}

/// Name, type bits, inode number (0 for a subvolume), number of the subvolume that it leads to.
type Entry = (Vec<u8>, u32, u64, Option<u64>);

/// Entries of a directory behind `after`, and where to go on.
#[pyfunction]
fn entries(py: Python<'_>, handle: &Handle, path: &[u8], after: u64, limit: usize) -> PyResult<(Vec<Entry>, u64)> {
    let image = handle.image()?;
    let read = py.detach(|| {
        let dir = image.find(path)?;
        image.fs().readdir(&dir, after, limit).map_err(|error| Error::from(error).at(path.escape_ascii()))
    });
    let read = read.or_raise(py)?;
    let last = read.last().map_or(after, |entry| entry.index);
    let entries = read.into_iter().map(|entry| {
        let (ino, subvol) = match entry.target {
            Target::Inode(ino) => (ino.0, None),
            Target::Subvol(id) => (0, Some(id.0)),
        };
        (entry.name, entry.kind.mode_bits(), ino, subvol)
    });
    Ok((entries.collect(), last))
}

/// What a walk has seen, so that it ends on a damaged image too.
#[pyclass(frozen, module = "oleo._oleo")]
pub(crate) struct Walk(Mutex<Descent>);

#[pyfunction]
fn walk(py: Python<'_>, handle: &Handle, path: &[u8]) -> PyResult<Walk> {
    let image = handle.image()?;
    let start = py.detach(|| image.find(path)).or_raise(py)?;
    Ok(Walk(Mutex::new(Descent::new(&start))))
}

#[pymethods]
impl Walk {
    /// Whether to enter a directory that was found under this name.
    fn enters(&self, py: Python<'_>, handle: &Handle, dir: &[u8], name: &[u8]) -> PyResult<bool> {
        let image = handle.image()?;
        py.detach(|| {
            let dir = image.find(dir)?;
            let Some(child) = image.fs().lookup(&dir, name)? else { return Ok(false) };
            let mut descent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Ok::<_, Error>(descent.enters(image.fs(), &dir, name, &child))
        })
        .or_raise(py)
    }
}

/// Contents from `offset` on, `len` bytes at most; all if that is not given.
#[pyfunction]
#[pyo3(signature = (handle, path, offset = 0, len = None))]
fn read<'py>(
    py: Python<'py>,
    handle: &Handle,
    path: &[u8],
    offset: u64,
    len: Option<u64>,
) -> PyResult<Bound<'py, PyBytes>> {
    let image = handle.image()?;
    let file = py.detach(|| image.open_file(path)).or_raise(py)?;
    read_file(py, &file, offset, len)
}

fn read_file<'py>(py: Python<'py>, file: &oleo::File, offset: u64, len: Option<u64>) -> PyResult<Bound<'py, PyBytes>> {
    let there = file.len().saturating_sub(offset);
    let want = usize::try_from(len.unwrap_or(u64::MAX).min(there)).unwrap_or(usize::MAX);
    let mut have = 0;
    let bytes = PyBytes::new_with(py, want, |out| {
        have = py.detach(|| file.read_at(out, offset)).or_raise(py)?;
        Ok(())
    })?;
    // It was cut meanwhile.
    Ok(if have < want { PyBytes::new(py, &bytes.as_bytes()[..have]) } else { bytes })
}

/// Makes or replaces a file.
#[pyfunction]
fn write(py: Python<'_>, handle: &Handle, path: &[u8], data: &[u8]) -> PyResult<()> {
    let image = handle.image()?;
    py.detach(|| image.write(path, data)).or_raise(py)
}

/// Opens a file; its number.
#[pyfunction]
fn open_file(py: Python<'_>, handle: &Handle, path: &[u8], create: bool, exclusive: bool, cut: bool) -> PyResult<u64> {
    let image = handle.image()?;
    let file = py.detach(|| {
        let file = if exclusive {
            image.create_file(path)
        } else {
            match image.open_file(path) {
                Err(error) if create && error.errno() == ENOENT => image.create_file(path),
                other => other,
            }
        }?;
        if cut && !file.is_empty() {
            file.set_len(0)?;
        }
        Ok::<_, Error>(file)
    });
    handle.keep(file.or_raise(py)?)
}

#[pyfunction]
fn file_read<'py>(py: Python<'py>, handle: &Handle, file: u64, offset: u64, len: u64) -> PyResult<Bound<'py, PyBytes>> {
    read_file(py, &handle.file(file)?, offset, Some(len))
}

#[pyfunction]
fn file_write(py: Python<'_>, handle: &Handle, file: u64, offset: u64, data: &[u8]) -> PyResult<()> {
    let file = handle.file(file)?;
    py.detach(|| file.write_at(data, offset)).or_raise(py)
}

#[pyfunction]
fn file_len(handle: &Handle, file: u64) -> PyResult<u64> {
    Ok(handle.file(file)?.len())
}

#[pyfunction]
fn file_set_len(py: Python<'_>, handle: &Handle, file: u64, len: u64) -> PyResult<()> {
    let file = handle.file(file)?;
    py.detach(|| file.set_len(len)).or_raise(py)
}

/// Makes what was written to the file durable.
#[pyfunction]
fn file_sync(py: Python<'_>, handle: &Handle, file: u64) -> PyResult<()> {
    let (image, file) = (handle.image()?, handle.file(file)?);
    py.detach(|| image.fs().fsync(file.inode())).or_raise(py)
}

#[pyfunction]
fn file_close(py: Python<'_>, handle: &Handle, file: u64) {
    let file = handle.give_up(file);
    py.detach(|| drop(file));
}

#[pyfunction]
fn mkdir(py: Python<'_>, handle: &Handle, path: &[u8], mode: u32) -> PyResult<()> {
    let image = handle.image()?;
    py.detach(|| {
        let made = image.create_dir(path)?;
        image.fs().set_attr(&made, &SetAttr::default().mode(Some(mode)))?;
        Ok::<_, Error>(())
    })
    .or_raise(py)
}

#[pyfunction]
fn makedirs(py: Python<'_>, handle: &Handle, path: &[u8]) -> PyResult<()> {
    let image = handle.image()?;
    py.detach(|| image.create_dirs(&image.top()?, path).map(drop)).or_raise(py)
}

/// Removes a file, or an empty directory.
#[pyfunction]
fn unlink(py: Python<'_>, handle: &Handle, path: &[u8], dir: bool) -> PyResult<()> {
    let image = handle.image()?;
    py.detach(|| {
        let (parent, name) = image.find_parent(&image.top()?, path)?;
        let gone = if dir { image.fs().rmdir(&parent, name) } else { image.fs().unlink(&parent, name) };
        gone.map_err(|error| Error::from(error).at(path.escape_ascii()))
    })
    .or_raise(py)
}

#[pyfunction]
fn rmtree(py: Python<'_>, handle: &Handle, path: &[u8]) -> PyResult<()> {
    let image = handle.image()?;
    py.detach(|| image.remove(&image.top()?, path, Depth::Tree)).or_raise(py)
}

/// Renames to exactly this path, as `os.rename` does; what has it is replaced, if it can be.
#[pyfunction]
fn rename(py: Python<'_>, handle: &Handle, source: &[u8], target: &[u8]) -> PyResult<()> {
    let image = handle.image()?;
    py.detach(|| {
        let top = image.top()?;
        let (from_dir, from_name) = image.find_parent(&top, source)?;
        let (to_dir, to_name) = image.find_parent(&top, target)?;
        let done = image.fs().rename(&from_dir, from_name, &to_dir, to_name, oleo::fs::RenameMode::Replace);
        done.map_err(|error| Error::from(error).at(source.escape_ascii()))
    })
    .or_raise(py)
}

#[pyfunction]
fn link(py: Python<'_>, handle: &Handle, file: &[u8], path: &[u8]) -> PyResult<()> {
    let image = handle.image()?;
    py.detach(|| image.hard_link(&image.top()?, file, path)).or_raise(py)
}

#[pyfunction]
fn symlink(py: Python<'_>, handle: &Handle, target: &[u8], path: &[u8]) -> PyResult<()> {
    let image = handle.image()?;
    py.detach(|| image.symlink(&image.top()?, target, path)).or_raise(py)
}

#[pyfunction]
fn readlink(py: Python<'_>, handle: &Handle, path: &[u8]) -> PyResult<Vec<u8>> {
    let image = handle.image()?;
    py.detach(|| {
        let read = image.fs().read_link(&at(&image, path, false)?);
        read.map_err(|error| Error::from(error).at(path.escape_ascii()))
    })
    .or_raise(py)
}

#[pyfunction]
fn copy(py: Python<'_>, handle: &Handle, source: &[u8], target: &[u8], tree: bool, reflink: bool) -> PyResult<()> {
    let image = handle.image()?;
    let depth = if tree { Depth::Tree } else { Depth::One };
    let sharing = if reflink { Sharing::Reflink } else { Sharing::Copy };
    watched(py, |_| Ok(()), || {}, || image.copy(&image.top()?, source, target, depth, sharing))?.or_raise(py)
}

/// What to change; times are seconds and nanoseconds.
#[derive(FromPyObject)]
struct Changes {
    #[pyo3(item)]
    mode: Option<u32>,
    #[pyo3(item)]
    uid: Option<u32>,
    #[pyo3(item)]
    gid: Option<u32>,
    #[pyo3(item)]
    size: Option<u64>,
    #[pyo3(item)]
    atime: Option<(i64, u32)>,
    #[pyo3(item)]
    mtime: Option<(i64, u32)>,
}

#[pyfunction]
fn set_attr(py: Python<'_>, handle: &Handle, path: &[u8], changes: Changes, follow: bool) -> PyResult<()> {
    let image = handle.image()?;
    let time = |time: Option<(i64, u32)>| time.map(|(sec, nsec)| Time { sec, nsec });
    let set = SetAttr::default()
        .mode(changes.mode)
        .uid(changes.uid)
        .gid(changes.gid)
        .size(changes.size)
        .atime(time(changes.atime))
        .mtime(time(changes.mtime));
    py.detach(|| {
        let inode = at(&image, path, follow)?;
        if changes.size.is_some() && image.fs().attr(&inode).kind != FileKind::File {
            image.open_file(path)?;
        }
        let done = image.fs().set_attr(&inode, &set);
        done.map(drop).map_err(|error| Error::from(error).at(path.escape_ascii()))
    })
    .or_raise(py)
}

#[pyfunction]
fn getxattr(py: Python<'_>, handle: &Handle, path: &[u8], name: &[u8], follow: bool) -> PyResult<Option<Vec<u8>>> {
    let image = handle.image()?;
    py.detach(|| Ok::<_, Error>(image.fs().xattr_get(&at(&image, path, follow)?, name)?)).or_raise(py)
}

#[pyfunction]
fn listxattr(py: Python<'_>, handle: &Handle, path: &[u8], follow: bool) -> PyResult<Vec<Vec<u8>>> {
    let image = handle.image()?;
    py.detach(|| Ok::<_, Error>(image.fs().xattr_list(&at(&image, path, follow)?)?)).or_raise(py)
}

#[pyfunction]
fn setxattr(py: Python<'_>, handle: &Handle, path: &[u8], name: &[u8], value: &[u8], follow: bool) -> PyResult<()> {
    let image = handle.image()?;
    let set = || image.fs().xattr_set(&at(&image, path, follow)?, name, value, XattrMode::Any).map_err(Error::from);
    py.detach(set).or_raise(py)
}

#[pyfunction]
fn removexattr(py: Python<'_>, handle: &Handle, path: &[u8], name: &[u8], follow: bool) -> PyResult<()> {
    let image = handle.image()?;
    py.detach(|| Ok::<_, Error>(image.fs().xattr_remove(&at(&image, path, follow)?, name)?)).or_raise(py)
}

/// Offset, length, kind, address on disk, compression, whether it is shared.
type Extent = (u64, u64, &'static str, Option<u64>, &'static str, bool);

#[pyfunction]
fn extents(py: Python<'_>, handle: &Handle, path: &[u8]) -> PyResult<Vec<Extent>> {
    let image = handle.image()?;
    let found = py.detach(|| {
        let file = image.open_file(path)?;
        Ok::<_, Error>(image.fs().extents(file.inode(), 0, u64::MAX)?)
    });
    let extent = |extent: oleo::fs::ExtentInfo| {
        let kind = match extent.kind {
            ExtentKind::Delayed => "delayed",
            ExtentKind::Inline => "inline",
            ExtentKind::Data => "data",
            ExtentKind::Unwritten => "unwritten",
        };
        (extent.at, extent.len, kind, extent.disk.map(|at| at.0), extent.compression.name(), extent.shared)
    };
    Ok(found.or_raise(py)?.into_iter().map(extent).collect())
}

/// Copies a file or directory of the host into the image.
#[pyfunction]
fn put(py: Python<'_>, handle: &Handle, source: PathBuf, path: &[u8]) -> PyResult<Filled> {
    let image = handle.image()?;
    let work = || image.put(&image.top()?, &source, path, &FillOptions::default());
    let report = watched(py, |_| Ok(()), || {}, work)?.or_raise(py)?;
    Ok(Filled::new(&report.done, report.warnings))
}

/// Copies everything in a directory out of the image into a directory of the host, which is empty or made; of something else, puts it
/// there under its own name.
#[pyfunction]
fn restore(py: Python<'_>, handle: &Handle, path: &[u8], dest: PathBuf, no_special: bool) -> PyResult<Filled> {
    let image = handle.image()?;
    let options = RestoreOptions::default().no_special(no_special);
    let name = path.rsplit(|&b| b == b'/').find(|part| !part.is_empty()).unwrap_or_default();
    let work = || restore_to_dir(&image, &at(&image, path, false)?, name, &dest, &options);
    let report = watched(py, |_| Ok(()), || {}, work)?.or_raise(py)?;
    Ok(Filled::new(&report.done, report.warnings))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Stat>()?;
    module.add_class::<Walk>()?;
    module.add_function(wrap_pyfunction!(stat, module)?)?;
    module.add_function(wrap_pyfunction!(entries, module)?)?;
    module.add_function(wrap_pyfunction!(walk, module)?)?;
    module.add_function(wrap_pyfunction!(read, module)?)?;
    module.add_function(wrap_pyfunction!(write, module)?)?;
    module.add_function(wrap_pyfunction!(open_file, module)?)?;
    module.add_function(wrap_pyfunction!(file_read, module)?)?;
    module.add_function(wrap_pyfunction!(file_write, module)?)?;
    module.add_function(wrap_pyfunction!(file_len, module)?)?;
    module.add_function(wrap_pyfunction!(file_set_len, module)?)?;
    module.add_function(wrap_pyfunction!(file_sync, module)?)?;
    module.add_function(wrap_pyfunction!(file_close, module)?)?;
    module.add_function(wrap_pyfunction!(mkdir, module)?)?;
    module.add_function(wrap_pyfunction!(makedirs, module)?)?;
    module.add_function(wrap_pyfunction!(unlink, module)?)?;
    module.add_function(wrap_pyfunction!(rmtree, module)?)?;
    module.add_function(wrap_pyfunction!(rename, module)?)?;
    module.add_function(wrap_pyfunction!(link, module)?)?;
    module.add_function(wrap_pyfunction!(symlink, module)?)?;
    module.add_function(wrap_pyfunction!(readlink, module)?)?;
    module.add_function(wrap_pyfunction!(copy, module)?)?;
    module.add_function(wrap_pyfunction!(set_attr, module)?)?;
    module.add_function(wrap_pyfunction!(getxattr, module)?)?;
    module.add_function(wrap_pyfunction!(listxattr, module)?)?;
    module.add_function(wrap_pyfunction!(setxattr, module)?)?;
    module.add_function(wrap_pyfunction!(removexattr, module)?)?;
    module.add_function(wrap_pyfunction!(extents, module)?)?;
    module.add_function(wrap_pyfunction!(put, module)?)?;
    module.add_function(wrap_pyfunction!(restore, module)?)
}

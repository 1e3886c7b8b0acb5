//! An open image and the files that are open in it.
//!
//! A file of Python's is a number here, so that closing an image closes its files: whatever refers to it later is told that it is
//! closed, and nothing keeps the image in use. A call that is under way when its image is closed ends as if it had come before.
//!
//! Lock: `state`, a leaf, held to look something up.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oleo::fs::{DataOptions, FsOptions, parse_compress};
use oleo::{Access, File, Image, OnNotice, OpenOptions};
use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;

use crate::errors::{OrRaise, closed};

#[derive(Default)]
struct State {
    image: Option<Arc<Image>>,
    files: HashMap<u64, File>,
    next_file: u64,
}

/// An open image.
#[pyclass(frozen, module = "oleo._oleo")]
pub(crate) struct Handle {
    state: Mutex<State>,
    writable: bool,
}

impl Handle {
    pub(crate) fn new(image: Image, writable: bool) -> Handle {
        Handle { state: Mutex::new(State { image: Some(Arc::new(image)), ..State::default() }), writable }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What is in it is whole after every statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The image, unless it is closed.
    pub(crate) fn image(&self) -> PyResult<Arc<Image>> {
        self.state().image.clone().ok_or_else(|| closed("image"))
    }

    /// A file, unless it or the image is closed.
    pub(crate) fn file(&self, number: u64) -> PyResult<File> {
        let state = self.state();
        if state.image.is_none() {
            return Err(closed("image"));
        }
        state.files.get(&number).cloned().ok_or_else(|| closed("file"))
    }

    /// Keeps a file; returns its number.
    pub(crate) fn keep(&self, file: File) -> PyResult<u64> {
        let mut state = self.state();
        if state.image.is_none() {
            return Err(closed("image"));
        }
        let number = state.next_file;
        state.next_file += 1;
        state.files.insert(number, file);
        Ok(number)
    }

    /// Gives a file up; one that is closed already is fine.
    pub(crate) fn give_up(&self, number: u64) -> Option<File> {
        self.state().files.remove(&number)
    }
}

#[pymethods]
impl Handle {
    #[getter]
    fn closed(&self) -> bool {
        self.state().image.is_none()
    }

    #[getter]
    fn writable(&self) -> bool {
        self.writable
    }

    #[getter]
    fn open_files(&self) -> usize {
        self.state().files.len()
    }

    /// Ends the work: everything done is durable. A second time does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let (image, files) = {
            let mut state = self.state();
            (state.image.take(), std::mem::take(&mut state.files))
        };
        let Some(image) = image else { return Ok(()) };
        py.detach(|| {
            drop(files);
            match Arc::try_unwrap(image) {
                Ok(image) => image.close(),
                // A call on another thread is not done with it; the image is given up when that has ended.
                Err(image) => {
                    if self.writable {
                        image.sync()?;
                    }
                    image.release()
                }
            }
        })
        .or_raise(py)
    }

    fn sync(&self, py: Python<'_>) -> PyResult<u64> {
        let image = self.image()?;
        py.detach(|| image.sync()).or_raise(py).map(|generation| generation.0)
    }

    fn clean(&self, py: Python<'_>) -> PyResult<()> {
        let image = self.image()?;
        py.detach(|| image.clean()).or_raise(py)
    }

    #[getter]
    fn label(&self) -> PyResult<Vec<u8>> {
        Ok(self.image()?.label())
    }

    fn set_label(&self, py: Python<'_>, label: &[u8]) -> PyResult<()> {
        let image = self.image()?;
        py.detach(|| image.set_label(label)).or_raise(py)
    }

    #[getter]
    fn uuid(&self) -> PyResult<String> {
        Ok(self.image()?.volume().super_block().fsid().to_string())
    }

    /// Bytes in all, free, and available to files.
    fn space(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        let image = self.image()?;
        let space = py.detach(|| image.space_summary());
        Ok((space.total.0, space.free.0, space.available.0))
    }
}

/// How to open, as Python says it.
#[derive(FromPyObject)]
pub(crate) struct How {
    #[pyo3(item)]
    writable: bool,
    #[pyo3(item)]
    in_use: bool,
    #[pyo3(item)]
    devices: Vec<PathBuf>,
    #[pyo3(item)]
    scan: Vec<PathBuf>,
    #[pyo3(item)]
    degraded: bool,
    #[pyo3(item)]
    offset: u64,
    #[pyo3(item)]
    cache_bytes: Option<usize>,
    #[pyo3(item)]
    compress: Option<String>,
    #[pyo3(item)]
    use_backup_root: bool,
    #[pyo3(item)]
    ignore_bad_trees: bool,
    #[pyo3(item)]
    no_log_replay: bool,
}

impl How {
    pub(crate) fn options(&self, py: Python<'_>) -> PyResult<OpenOptions> {
        let access = match (self.writable, self.in_use) {
            (true, _) => Access::Write,
            (false, true) => Access::ReadOnlyInUse,
            (false, false) => Access::ReadOnly,
        };
        let mut fs = FsOptions::default();
        if let Some(compress) = &self.compress {
            fs = fs.data(DataOptions::default().compress(parse_compress(compress).or_raise(py)?));
        }
        let mut options = OpenOptions::default()
            .access(access)
            .devices(self.devices.clone())
            .scan(self.scan.clone())
            .degraded(self.degraded)
            .offset(self.offset)
            .use_backup_root(self.use_backup_root)
            .ignore_bad_trees(self.ignore_bad_trees)
            .no_log_replay(self.no_log_replay)
            .fs(fs);
        if let Some(bytes) = self.cache_bytes {
            options.cache_bytes = bytes;
        }
        Ok(options)
    }
}

/// Opens an image. What is to be said of its devices becomes warnings.
#[pyfunction]
fn open(py: Python<'_>, path: PathBuf, how: How) -> PyResult<Handle> {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    let options = how.options(py)?.on_notice(OnNotice::new(move |line| {
        tell.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
    }));
    let image = py.detach(|| Image::open(&path, &options)).or_raise(py)?;
    let lines = std::mem::take(&mut *told.lock().unwrap_or_else(PoisonError::into_inner));
    let category = py.get_type::<PyUserWarning>();
    for line in lines {
        let line = std::ffi::CString::new(line).unwrap_or_default();
        PyErr::warn(py, &category, &line, 2)?;
    }
    Ok(Handle::new(image, how.writable))
}

/// Opens a new volume in memory.
#[pyfunction]
fn in_memory(py: Python<'_>, size: u64) -> PyResult<Handle> {
    let image = py.detach(|| Image::create_in_memory(size)).or_raise(py)?;
    Ok(Handle::new(image, true))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Handle>()?;
    module.add_function(wrap_pyfunction!(open, module)?)?;
    module.add_function(wrap_pyfunction!(in_memory, module)?)
}

//! New images.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use oleo::Uuid;
use oleo::fs::parse_compress;
use oleo::mkfs::{
    BuildOptions, FillOptions, MkfsOptions, Profile, Progress, Source, SubvolSpec, build, parse_checksum,
    seed_from_text,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::OrRaise;
use crate::streams::Source as PySource;
use crate::watch::watched;

/// What was put in, or copied out.
#[pyclass(frozen, get_all, module = "oleo")]
pub(crate) struct Filled {
    /// Regular files.
    files: u64,
    /// Directories, without the top.
    dirs: u64,
    /// Names of files that had a name already.
    links: u64,
    /// Symbolic links, devices, fifos, sockets.
    others: u64,
    /// Subvolumes.
    subvols: u64,
    /// Bytes of file data, without holes.
    data_bytes: u64,
    /// What was left out, or is not as in the source.
    warnings: Vec<String>,
}

impl Filled {
    pub(crate) fn new(done: &Progress, warnings: Vec<String>) -> Filled {
        let Progress { files, dirs, links, others, subvols, data_bytes } = *done;
        Filled { files, dirs, links, others, subvols, data_bytes, warnings }
    }
}

#[pymethods]
impl Filled {
    fn __repr__(&self) -> String {
        let Filled { files, dirs, links, others, subvols, data_bytes, warnings } = self;
        format!(
            "oleo.Filled(files={files}, dirs={dirs}, links={links}, others={others}, subvols={subvols}, data_bytes={data_bytes}, warnings={})",
            warnings.len()
        )
    }
}

/// What to make, as Python says it.
#[derive(FromPyObject)]
struct Want {
    #[pyo3(item)]
    size: Option<u64>,
    #[pyo3(item)]
    offset: u64,
    #[pyo3(item)]
    rootdir: Option<PathBuf>,
    #[pyo3(item)]
    label: String,
    #[pyo3(item)]
    uuid: Option<String>,
    #[pyo3(item)]
    seed: Option<String>,
    #[pyo3(item)]
    created: Option<i64>,
    #[pyo3(item)]
    checksum: String,
    #[pyo3(item)]
    nodesize: Option<u32>,
    #[pyo3(item)]
    sectorsize: u32,
    #[pyo3(item)]
    data: Option<String>,
    #[pyo3(item)]
    metadata: Option<String>,
    #[pyo3(item)]
    mixed: bool,
    #[pyo3(item)]
    quota: bool,
    #[pyo3(item)]
    simple_quota: bool,
    #[pyo3(item)]
    compress: Option<String>,
    #[pyo3(item)]
    subvols: Vec<(PathBuf, bool, bool)>,
    #[pyo3(item)]
    shrink: bool,
    #[pyo3(item)]
    force: bool,
}

impl Want {
    fn mkfs(&self, py: Python<'_>) -> PyResult<MkfsOptions> {
        let wrong = |error: &dyn std::fmt::Display| PyValueError::new_err(error.to_string());
        let profile = |name: &Option<String>| -> PyResult<Option<Profile>> {
            name.as_ref().map(|name| name.parse().map_err(|error| wrong(&error))).transpose()
        };
        let mut options = MkfsOptions::unique()
            .label(self.label.clone())
            .csum(parse_checksum(&self.checksum).or_raise(py)?)
            .nodesize(self.nodesize)
            .sectorsize(self.sectorsize)
            .data(profile(&self.data)?)
            .metadata(profile(&self.metadata)?);
        options.features.mixed = self.mixed;
        options.features.quota = self.quota;
        options.features.simple_quota = self.simple_quota;
        if let Some(uuid) = &self.uuid {
            options.fsid = Some(uuid.parse::<Uuid>().map_err(|error| wrong(&error))?);
        }
        if let Some(seed) = &self.seed {
            options.seed = seed_from_text(seed);
        }
        if let Some(created) = self.created {
            options.created_seconds = created;
        }
        Ok(options)
    }
}

/// Makes a file system: its UUID, bytes of all images, and what was put in.
#[pyfunction]
fn mkfs(
    py: Python<'_>,
    images: Vec<PathBuf>,
    want: Want,
    tar: Option<Py<PyAny>>,
    progress: Option<Py<PyAny>>,
) -> PyResult<(String, u64, Filled)> {
    let tar = tar.map(PySource::new).transpose()?;
    let raised = tar.as_ref().map(PySource::raised);
    let stop = tar.as_ref().map(PySource::stop).unwrap_or_default();
    let source = match (&want.rootdir, tar) {
        (Some(_), Some(_)) => return Err(PyValueError::new_err("rootdir and tar cannot go together")),
        (Some(dir), None) => Source::Dir(dir.clone()),
        (None, Some(tar)) => Source::Tar(Box::new(tar)),
        (None, None) => Source::Empty,
    };
    let subvol = |(path, read_only, default): &(PathBuf, bool, bool)| {
        SubvolSpec::new(path.clone()).read_only(*read_only).default(*default)
    };
    let seen = Arc::new(Mutex::new(None::<Progress>));
    let note = seen.clone();
    let compress = want.compress.as_deref().map_or(Ok(None), parse_compress).or_raise(py)?;
    let mut fill = FillOptions::default().compress(compress).subvols(want.subvols.iter().map(subvol).collect());
    fill.on_progress = Some(Box::new(move |done: &Progress| {
        *note.lock().unwrap_or_else(PoisonError::into_inner) = Some(done.clone());
    }));
    let options = BuildOptions::default()
        .mkfs(want.mkfs(py)?)
        .source(source)
        .fill(fill)
        .size(want.size)
        .offset(want.offset)
        .shrink(want.shrink)
        .force(want.force);
    let look = |py: Python<'_>| {
        let done = seen.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (&progress, done) {
            (Some(tell), Some(done)) => tell.call1(py, (Filled::new(&done, Vec::new()),)).map(drop),
            _ => Ok(()),
        }
    };
    let made = watched(py, look, || stop.store(true, Ordering::Relaxed), || build(&images, options))?;
    if let Some(error) = raised.and_then(|raised| raised.lock().unwrap_or_else(PoisonError::into_inner).take()) {
        return Err(error);
    }
    let made = made.or_raise(py)?;
    Ok((made.made.fsid.to_string(), made.bytes, Filled::new(&made.filled.done, made.filled.warnings)))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Filled>()?;
    module.add_function(wrap_pyfunction!(mkfs, module)?)
}

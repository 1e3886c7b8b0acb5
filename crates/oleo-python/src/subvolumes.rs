//! Subvolumes and snapshots.

use oleo::fs::{InodeRef, SubvolInfo, Time};
use oleo::{Error, Image, SnapshotOptions, SubvolRef, TreeId, Uuid};
use pyo3::prelude::*;

use crate::errors::OrRaise;
use crate::handle::Handle;

/// Which subvolume: its number, or its path.
#[derive(FromPyObject)]
pub(crate) enum Which {
    Id(u64),
    Path(Vec<u8>),
}

impl Which {
    pub(crate) fn subvol_ref(&self) -> SubvolRef {
        match self {
            Which::Id(id) => SubvolRef::from(TreeId(*id)),
            Which::Path(path) => SubvolRef::from(path),
        }
    }

    pub(crate) fn root(&self, image: &Image) -> Result<InodeRef, Error> {
        image.subvol(self.subvol_ref())
    }
}

/// A subvolume or snapshot, as it was when it was asked for.
#[pyclass(frozen, get_all, module = "oleo")]
pub(crate) struct Subvolume {
    /// Its number.
    id: u64,
    /// The number of the subvolume that it is in; none for the top level.
    parent_id: Option<u64>,
    path: Vec<u8>,
    /// Changes are refused.
    read_only: bool,
    /// Its own UUID.
    uuid: Option<String>,
    /// That of the subvolume that it is a snapshot of.
    parent_uuid: Option<String>,
    /// That of the subvolume that it was received from.
    received_uuid: Option<String>,
    /// The transaction that last wrote it.
    generation: u64,
    /// The transaction of its last change.
    ctransid: u64,
    /// The transaction that made it.
    otransid: u64,
    ctime: (i64, u32),
    otime: (i64, u32),
}

fn uuid(uuid: Uuid) -> Option<String> {
    (!uuid.is_nil()).then(|| uuid.to_string())
}

fn time(Time { sec, nsec }: Time) -> (i64, u32) {
    (sec, nsec)
}

impl From<SubvolInfo> for Subvolume {
    fn from(info: SubvolInfo) -> Subvolume {
        Subvolume {
            id: info.id.0,
            parent_id: info.parent.map(|id| id.0),
            path: info.path,
            read_only: info.read_only,
            uuid: uuid(info.uuid),
            parent_uuid: uuid(info.parent_uuid),
            received_uuid: uuid(info.received_uuid),
            generation: info.generation,
            ctransid: info.ctransid,
            otransid: info.otransid,
            ctime: time(info.ctime),
            otime: time(info.otime),
        }
    }
}

#[pyfunction]
fn subvolumes(py: Python<'_>, handle: &Handle) -> PyResult<Vec<Subvolume>> {
    let image = handle.image()?;
    let all = py.detach(|| image.fs().subvol_list()).or_raise(py)?;
    Ok(all.into_iter().map(Subvolume::from).collect())
}

#[pyfunction]
fn subvolume(py: Python<'_>, handle: &Handle, which: Which) -> PyResult<Subvolume> {
    let image = handle.image()?;
    let info = py.detach(|| Ok::<_, Error>(image.fs().subvol_info(which.root(&image)?.tree())?));
    info.map(Subvolume::from).or_raise(py)
}

#[pyfunction]
fn create_subvolume(py: Python<'_>, handle: &Handle, path: &[u8]) -> PyResult<u64> {
    let image = handle.image()?;
    py.detach(|| image.create_subvol(path)).or_raise(py).map(|id| id.0)
}

#[pyfunction]
fn snapshot(py: Python<'_>, handle: &Handle, source: Which, path: &[u8], read_only: bool) -> PyResult<u64> {
    let image = handle.image()?;
    let options = SnapshotOptions::default().read_only(read_only);
    py.detach(|| image.snapshot(source.subvol_ref(), path, &options)).or_raise(py).map(|id| id.0)
}

#[pyfunction]
fn delete_subvolume(py: Python<'_>, handle: &Handle, which: Which) -> PyResult<()> {
    let image = handle.image()?;
    py.detach(|| {
        let id = which.root(&image)?.tree();
        image.fs().subvol_delete(id).map_err(|error| Error::from(error).at(which.subvol_ref()))
    })
    .or_raise(py)
}

#[pyfunction]
fn set_read_only(py: Python<'_>, handle: &Handle, which: Which, read_only: bool) -> PyResult<()> {
    let image = handle.image()?;
    let value = if read_only { "true" } else { "false" };
    py.detach(|| image.set_property(&which.root(&image)?, "ro", value)).or_raise(py)
}

#[pyfunction]
fn default_subvolume(py: Python<'_>, handle: &Handle) -> PyResult<u64> {
    let image = handle.image()?;
    py.detach(|| image.fs().default_subvol()).or_raise(py).map(|id| id.0)
}

#[pyfunction]
fn set_default_subvolume(py: Python<'_>, handle: &Handle, which: Which) -> PyResult<()> {
    let image = handle.image()?;
    py.detach(|| Ok::<_, Error>(image.fs().set_default(which.root(&image)?.tree())?)).or_raise(py)
}

/// A property of a file, directory or subvolume.
#[pyfunction]
fn get_property(py: Python<'_>, handle: &Handle, path: &[u8], name: &str) -> PyResult<Option<String>> {
    let image = handle.image()?;
    py.detach(|| image.property(&image.find(path)?, name)).or_raise(py)
}

#[pyfunction]
fn set_property(py: Python<'_>, handle: &Handle, path: &[u8], name: &str, value: &str) -> PyResult<()> {
    let image = handle.image()?;
    py.detach(|| image.set_property(&image.find(path)?, name, value)).or_raise(py)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Subvolume>()?;
    module.add_function(wrap_pyfunction!(subvolumes, module)?)?;
    module.add_function(wrap_pyfunction!(subvolume, module)?)?;
    module.add_function(wrap_pyfunction!(create_subvolume, module)?)?;
    module.add_function(wrap_pyfunction!(snapshot, module)?)?;
    module.add_function(wrap_pyfunction!(delete_subvolume, module)?)?;
    module.add_function(wrap_pyfunction!(set_read_only, module)?)?;
    module.add_function(wrap_pyfunction!(default_subvolume, module)?)?;
    module.add_function(wrap_pyfunction!(set_default_subvolume, module)?)?;
    module.add_function(wrap_pyfunction!(get_property, module)?)?;
    module.add_function(wrap_pyfunction!(set_property, module)?)
}

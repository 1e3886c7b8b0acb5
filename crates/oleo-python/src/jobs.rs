//! Balance, quota, check.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use oleo::balance::{BalanceArgs, BalanceEnd, BalanceState, BalanceStatus, Filters};
use oleo::check::{CheckOptions, Finding, Progress, Severity, Start, image};
use oleo::quota::{Assigned, QgroupChange, QgroupId, QgroupLimit, QgroupStatusFlags, Recount};
use oleo::{Error, OpenOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{OrRaise, refused};
use crate::handle::{Handle, How};
use crate::watch::watched;

/// Says to a function of Python's how far a balance is.
fn tell(py: Python<'_>, progress: Option<&Py<PyAny>>, status: &BalanceStatus) -> PyResult<()> {
    match progress {
        Some(progress) => progress.call1(py, (status_of(py, status)?,)).map(drop),
        None => Ok(()),
    }
}

fn status_of<'py>(py: Python<'py>, status: &BalanceStatus) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    all.set_item(
        "state",
        match status.state {
            BalanceState::Idle => "idle",
            BalanceState::Running => "running",
            BalanceState::Paused => "paused",
        },
    )?;
    all.set_item(
        "end",
        status.end.as_ref().map(|end| match end {
            BalanceEnd::Done => "done",
            BalanceEnd::Paused => "paused",
            BalanceEnd::Cancelled => "cancelled",
            BalanceEnd::Failed { .. } => "failed",
        }),
    )?;
    let progress = &status.progress;
    all.set_item("expected", progress.expected)?;
    all.set_item("considered", progress.considered)?;
    all.set_item("completed", progress.completed)?;
    all.set_item("no_space", progress.no_space)?;
    all.set_item("bytes_expected", progress.bytes_expected)?;
    all.set_item("bytes_done", progress.bytes_done)?;
    all.set_item("data_bytes", progress.data_bytes)?;
    all.set_item("elapsed_ms", progress.elapsed_ms)?;
    all.set_item("remaining_ms", progress.remaining_ms)?;
    Ok(all)
}

/// Runs a balance that `begin` starts or resumes. An exception of `progress`, or a signal, pauses it.
fn run<'py>(
    py: Python<'py>,
    handle: &Handle,
    progress: Option<Py<PyAny>>,
    begin: impl FnOnce(&oleo::Image) -> Result<BalanceEnd, Error> + Send,
) -> PyResult<Bound<'py, PyDict>> {
    let image = handle.image()?;
    let look = |py: Python<'_>| tell(py, progress.as_ref(), &image.balance_status());
    let end = watched(py, look, || image.balancer().interrupt(), || begin(&image))?.or_raise(py)?;
    let status = image.balance_status();
    if let BalanceEnd::Failed { errno, kind, text } = &end {
        return Err(refused(py, *errno, *kind, text, None));
    }
    tell(py, progress.as_ref(), &status)?;
    status_of(py, &status)
}

#[pyfunction]
fn balance<'py>(
    py: Python<'py>,
    handle: &Handle,
    data: Option<&str>,
    metadata: Option<&str>,
    system: Option<&str>,
    force: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let filters = |text: Option<&str>| -> PyResult<Option<Filters>> {
        text.map(|text| text.parse().map_err(PyValueError::new_err::<String>)).transpose()
    };
    let args =
        BalanceArgs::default().data(filters(data)?).metadata(filters(metadata)?).system(filters(system)?).force(force);
    run(py, handle, progress, move |image| image.balance(args))
}

#[pyfunction]
fn balance_resume<'py>(py: Python<'py>, handle: &Handle, progress: Option<Py<PyAny>>) -> PyResult<Bound<'py, PyDict>> {
    run(py, handle, progress, |image| image.balance_resume())
}

#[pyfunction]
fn balance_pause(py: Python<'_>, handle: &Handle) -> PyResult<()> {
    let image = handle.image()?;
    py.detach(|| image.balancer().pause()).or_raise(py)
}

#[pyfunction]
fn balance_cancel(py: Python<'_>, handle: &Handle) -> PyResult<()> {
    let image = handle.image()?;
    py.detach(|| image.balance_cancel()).or_raise(py)
}

#[pyfunction]
fn balance_status<'py>(py: Python<'py>, handle: &Handle) -> PyResult<Bound<'py, PyDict>> {
    status_of(py, &handle.image()?.balance_status())
}

/// Number, referenced, exclusive, the limits of both, parents, children.
type Group = (u64, u64, u64, Option<u64>, Option<u64>, Vec<u64>, Vec<u64>);

/// Whether the numbers are wrong, whether quotas are simple, and the groups; none if quota is off.
#[pyfunction]
fn quota(py: Python<'_>, handle: &Handle) -> PyResult<Option<(bool, bool, Vec<Group>)>> {
    let image = handle.image()?;
    let Some(state) = py.detach(|| image.quota()) else { return Ok(None) };
    let wrong = state.flags.intersects(QgroupStatusFlags::INCONSISTENT | QgroupStatusFlags::RESCAN);
    let ids = |set: std::collections::BTreeSet<QgroupId>| set.into_iter().map(|id| id.0).collect();
    let groups = state.groups.into_iter().map(|(id, group)| {
        let QgroupLimit { max_rfer, max_excl } = group.limit;
        (id.0, group.rfer, group.excl, max_rfer, max_excl, ids(group.parents), ids(group.children))
    });
    Ok(Some((wrong, state.since.is_some(), groups.collect())))
}

#[pyfunction]
fn quota_enable(py: Python<'_>, handle: &Handle, simple: bool) -> PyResult<()> {
    let image = handle.image()?;
    let work = || if simple { image.quota_enable_simple() } else { image.quota_enable() };
    watched(py, |_| Ok(()), || {}, work)?.or_raise(py)
}

#[pyfunction]
fn quota_disable(py: Python<'_>, handle: &Handle) -> PyResult<()> {
    let image = handle.image()?;
    py.detach(|| image.quota_disable()).or_raise(py)
}

#[pyfunction]
fn quota_rescan(py: Python<'_>, handle: &Handle) -> PyResult<()> {
    let image = handle.image()?;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let goes_on = || !stop.load(std::sync::atomic::Ordering::Relaxed);
    let ask = || stop.store(true, std::sync::atomic::Ordering::Relaxed);
    watched(py, |_| Ok(()), ask, || image.quota_rescan_until(&goes_on))?.or_raise(py)
}

/// Whether all numbers are right afterwards.
#[pyfunction]
fn qgroup_change(
    py: Python<'_>,
    handle: &Handle,
    what: &str,
    group: u64,
    parent: Option<u64>,
    limits: (Option<u64>, Option<u64>),
    recount: bool,
) -> PyResult<bool> {
    let image = handle.image()?;
    let id = QgroupId(group);
    let (max_rfer, max_excl) = limits;
    let change = match (what, parent) {
        ("create", None) => QgroupChange::Create(id),
        ("destroy", None) => QgroupChange::Destroy(id),
        ("assign", Some(parent)) => QgroupChange::Assign(id, QgroupId(parent)),
        ("remove", Some(parent)) => QgroupChange::Remove(id, QgroupId(parent)),
        ("limit", None) => QgroupChange::Limit(id, QgroupLimit { max_rfer, max_excl }),
        _ => return Err(PyValueError::new_err(format!("there is no change {what}"))),
    };
    let recount = if recount { Recount::Now } else { Recount::Later };
    let done = watched(py, |_| Ok(()), || {}, || image.qgroup_change(change, recount))?.or_raise(py)?;
    Ok(done == Assigned::Exact)
}

/// Number, and bytes: what Python makes a tuple of names of.
type Sizes = (u64, u64, u64, u64, u64);

/// Number, referenced and exclusive bytes of each subvolume, and what it shares with its neighbours.
#[pyfunction]
fn subvolume_sizes(py: Python<'_>, handle: &Handle) -> PyResult<Vec<Sizes>> {
    let image = handle.image()?;
    let sizes = watched(py, |_| Ok(()), || {}, || image.subvol_sizes())?.or_raise(py)?;
    Ok(sizes.into_iter().map(|of| (of.id.0, of.rfer, of.excl, of.with_previous, of.with_next)).collect())
}

/// Kind, whether it is an error, tree, block, key, device, what is there, what should be there.
type Found = (&'static str, bool, Option<u64>, Option<u64>, Option<(u64, u8, u64)>, Option<u64>, String, String);

fn found(finding: Finding) -> Found {
    let Finding { severity, kind, at, have, want } = finding;
    let key = at.key.map(|key| (key.objectid, key.item_type.0, key.offset));
    let (tree, block) = (at.tree.map(|tree| tree.0), at.block.map(|block| block.0));
    (kind.name(), severity == Severity::Error, tree, block, key, at.device, have, want)
}

/// Checks an image: findings, how many of each kind were left out, counts.
#[pyfunction]
fn check<'py>(
    py: Python<'py>,
    path: PathBuf,
    how: How,
    data: bool,
    threads: usize,
    kept_max: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<(Vec<Found>, Bound<'py, PyDict>, Bound<'py, PyDict>)> {
    let latest = Mutex::new(None::<Progress>);
    let note = |progress: Progress| {
        *latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
    };
    let options = CheckOptions::default().data(data).threads(threads).kept_max(kept_max).progress(Some(&note));
    let look = |py: Python<'_>| {
        let done = latest.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (&progress, done) {
            (Some(tell), Some(at)) => tell.call1(py, (at.what, at.done, at.expected)).map(drop),
            _ => Ok(()),
        }
    };
    let open: OpenOptions = how.options(py)?;
    let work = || image(&path, &open, Start::default(), &options);
    let report = watched(py, look, || {}, work)?.or_raise(py)?;
    if let (Some(tell), Some(at)) = (&progress, latest.lock().unwrap_or_else(PoisonError::into_inner).take()) {
        tell.call1(py, (at.what, at.done, at.expected))?;
    }
    let left_out = PyDict::new(py);
    for (kind, count) in &report.left_out {
        left_out.set_item(kind.name(), count)?;
    }
    let counts = PyDict::new(py);
    counts.set_item("blocks", report.counts.blocks)?;
    counts.set_item("extents", report.counts.extents)?;
    counts.set_item("data_extents", report.counts.data_extents)?;
    counts.set_item("data_bytes", report.counts.data_bytes)?;
    counts.set_item("inodes", report.counts.inodes)?;
    counts.set_item("subvolumes", report.counts.subvolumes)?;
    counts.set_item("verified_bytes", report.counts.verified_bytes)?;
    Ok((report.findings.into_iter().map(found).collect(), left_out, counts))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(balance, module)?)?;
    module.add_function(wrap_pyfunction!(balance_resume, module)?)?;
    module.add_function(wrap_pyfunction!(balance_pause, module)?)?;
    module.add_function(wrap_pyfunction!(balance_cancel, module)?)?;
    module.add_function(wrap_pyfunction!(balance_status, module)?)?;
    module.add_function(wrap_pyfunction!(quota, module)?)?;
    module.add_function(wrap_pyfunction!(quota_enable, module)?)?;
    module.add_function(wrap_pyfunction!(quota_disable, module)?)?;
    module.add_function(wrap_pyfunction!(quota_rescan, module)?)?;
    module.add_function(wrap_pyfunction!(qgroup_change, module)?)?;
    module.add_function(wrap_pyfunction!(subvolume_sizes, module)?)?;
    module.add_function(wrap_pyfunction!(check, module)?)
}

//! Oleo for Python: the module `oleo._oleo`, on which the package in `python/oleo` is written.
//!
//! What users see is Python: classes, file objects, documentation. Here is only what needs Rust, as functions on a `handle::Handle`
//! (`handle`), one file a subject: `files` (paths, attributes, contents), `subvolumes`, `streams` (send, receive, commands), `jobs`
//! (balance, quota, check), `make` (new images). `errors` makes Python's exceptions, `watch` does long work.
//!
//! Invariants: the interpreter is released around every call into the library. Names are bytes; the package makes text of them
//! (`os.fsdecode`). What an image says about lengths is never believed before there are bytes.
//! Locks: those of `handle` and `streams` are the standard library's, held for moments, never over I/O nor while Python runs.

use pyo3::prelude::*;

mod errors;
mod files;
mod handle;
mod jobs;
mod make;
mod streams;
mod subvolumes;
mod watch;

/// What the package `oleo` is written on; nothing here is for other programs.
#[pymodule]
fn _oleo(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add("HINTS", errors::hints())?;
    handle::register(module)?;
    files::register(module)?;
    subvolumes::register(module)?;
    streams::register(module)?;
    jobs::register(module)?;
    make::register(module)
}

//! Errors of the library as exceptions: which class, decided by the package (`oleo/_errors.py`) from kind and errno.

use oleo::error::ErrorKind;
use oleo::{Error, Hint};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// What a call of the library returns, as a call of Python's does.
pub(crate) trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T, E: Into<Error>> OrRaise<T> for Result<T, E> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| raised(py, &error.into()))
    }
}

/// The exception for an error.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let hint = error.hint().map(|hint| format!("{hint:?}"));
    refused(py, error.errno(), error.kind(), &error.to_string(), hint)
}

/// The exception for what is not an [`Error`] yet.
pub(crate) fn refused(py: Python<'_>, errno: i32, kind: ErrorKind, text: &str, hint: Option<String>) -> PyErr {
    let kind = match kind {
        ErrorKind::Refusal => "refusal",
        ErrorKind::Usage => "usage",
        ErrorKind::Corruption => "corruption",
        ErrorKind::Device => "device",
    };
    let made = py
        .import("oleo._errors")
        .and_then(|module| module.getattr("error_of"))
        .and_then(|of| of.call1((errno, kind, text, hint)));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(broken) => broken,
    }
}

/// As a file that was closed says it.
pub(crate) fn closed(what: &str) -> PyErr {
    PyValueError::new_err(format!("I/O operation on closed {what}"))
}

/// The names of all hints, for which the package has words.
pub(crate) fn hints() -> Vec<String> {
    Hint::ALL.iter().map(|hint| format!("{hint:?}")).collect()
}

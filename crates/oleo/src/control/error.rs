//! The error of a request, as it goes over the socket.

use oleo_format::{Class, Classified, ErrorKind};
use serde::{Deserialize, Serialize};

use crate::Hint;

/// Why a request was not carried out.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Error {
    /// The errno that a system call would return.
    pub errno: i32,
    /// The kind of error.
    pub kind: ErrorKind,
    /// Message.
    pub message: String,
    /// What to try.
    pub hint: Option<Hint>,
}

impl Error {
    /// A refusal.
    pub fn refused(errno: i32, message: impl Into<String>) -> Error {
        Error { errno, kind: ErrorKind::Refusal, message: message.into(), hint: None }
    }
}

impl Classified for Error {
    fn class(&self) -> Class {
        Class { kind: self.kind, errno: self.errno }
    }
}

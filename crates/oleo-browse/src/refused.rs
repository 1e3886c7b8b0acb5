//! Why something is not answered.

use oleo_format::{Classified, ErrorKind};
use oleo_fs::FsError;

use crate::name_text;

/// What whoever asks is told instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// As HTTP has them.
    pub status: u16,
    /// In words.
    pub why: String,
}

/// The question makes no sense.
pub fn wrong(why: impl Into<String>) -> Refused {
    Refused { status: 400, why: why.into() }
}

/// Why something was not read.
#[derive(Debug)]
pub enum Unread {
    /// An error of the volume, which may be over if it is read anew.
    Fs(FsError),
    /// A refusal, which will be the same.
    Refused(Refused),
}

impl From<FsError> for Unread {
    fn from(error: FsError) -> Unread {
        Unread::Fs(error)
    }
}

impl From<Refused> for Unread {
    fn from(why: Refused) -> Unread {
        Unread::Refused(why)
    }
}

impl From<Unread> for Refused {
    fn from(why: Unread) -> Refused {
        match why {
            Unread::Fs(error) => Refused::of(&error),
            Unread::Refused(why) => why,
        }
    }
}

impl Refused {
    /// An error of a library as an answer.
    pub fn of(error: &(impl Classified + ToString)) -> Refused {
        let status = match error.kind() {
            ErrorKind::Usage => 400,
            ErrorKind::Refusal => 404,
            ErrorKind::Corruption | ErrorKind::Device => 500,
        };
        Refused { status, why: name_text(error.to_string().as_bytes()) }
    }
}
